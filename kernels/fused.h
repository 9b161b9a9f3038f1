/* SPDX-License-Identifier: MIT
 * A group of operations that a device runs as one kernel: what the engine says of it, and the table ("fused",
 * PlDeviceTable.extension) that compiles and runs it. Elementwise operations alone, or, in a group of rows, beside some that
 * work along the rows of the space: sums, softmax, norms. Results are bit for bit those of the operations one by one: what
 * passes between two of them is rounded to its dtype, and rows add up in one order. */
#ifndef PL_KERNELS_FUSED_H
#define PL_KERNELS_FUSED_H

#include "kernels/kernel.h"

enum { PLK_FUSED_MEMBERS = 32, PLK_FUSED_ARGS = 24, PLK_FUSED_PARAMS = 16 }; /* most of them; PARAMS: members that have parameters */

/* How an argument broadcasts against the space of numel elements, seen as rows of cols. */
typedef enum PlkFusedKind {
  PLK_FUSED_FULL,  /* all of it, dense */
  PLK_FUSED_ROW,   /* one row */
  PLK_FUSED_COL,   /* one value a row */
  PLK_FUSED_ONE,   /* one value on the device */
  PLK_FUSED_NUMBER /* one value on the host, read at every run */
} PlkFusedKind;

typedef struct PlkFusedArg {
  uint8_t dtype, kind;
  bool out; /* written (FULL, or COL in a group of rows); else read */
} PlkFusedArg;

/* What members of a group of rows do along them; codes beside PLK_EW_…. Sums and their kind give one value a row. */
typedef enum PlkFusedRows {
  PLK_FUSED_SUM = 1000,
  PLK_FUSED_MEAN,
  PLK_FUSED_AMAX,
  PLK_FUSED_AMIN,
  PLK_FUSED_LOGSUMEXP,
  PLK_FUSED_VAR, /* parameter 0: correction */
  PLK_FUSED_STD,
  PLK_FUSED_SOFTMAX,
  PLK_FUSED_LOG_SOFTMAX,
  PLK_FUSED_SOFTMAX_BWD, /* dy, y */
  PLK_FUSED_LOG_SOFTMAX_BWD,
  PLK_FUSED_LAYER_NORM_BWD, /* dy, x, mean, 1/deviation, weight: dx; sums over rows are the caller's */
  PLK_FUSED_RMS_NORM_BWD,   /* dy, x, 1/root, weight: the same */
  PLK_FUSED_LAYER_NORM,     /* x, weight, bias; parameter 0: eps. Further results: mean, 1/deviation */
  PLK_FUSED_RMS_NORM,       /* x, weight; the same. Further result: 1/root */
  PLK_FUSED_ROWS_END
} PlkFusedRows;

enum { PLK_FUSED_NONE = INT16_MIN }; /* no such input */

enum { PLK_FUSED_IN = 5 };
/* y = code(x0, x1, …). in[k] ≥ 0: result of that member; < 0: argument -1 - in[k]; or PLK_FUSED_NONE. */
typedef struct PlkFusedMember {
  int16_t code;
  uint8_t dtype, result; /* of the inputs (WHERE: of inputs 1 and 2), of the result */
  uint8_t nin, set;      /* set: bit k: parameter k is given */
  bool col;              /* the result is one value a row; an elementwise member then works on such values alone */
  int16_t in[PLK_FUSED_IN];
  int16_t out;     /* argument that takes the result, -1: only members read it */
  int16_t more[2]; /* the same of further results, which no member reads */
} PlkFusedMember;

typedef struct PlkFused {
  int nmember, narg;
  bool rows;    /* some member works along rows; cols of a run is their length then */
  int64_t cols; /* their length, for which the kernel is made; 0: any */
  PlkFusedMember member[PLK_FUSED_MEMBERS];
  PlkFusedArg arg[PLK_FUSED_ARGS];
} PlkFused;

/* What changes from run to run. Parameters are those of the members in order, three each where set is not 0. */
typedef struct PlkFusedRun {
  int64_t numel, cols;
  const PlArray *const *arg;
  const PlAttrs *const *attrs; /* per member, or NULL entries */
} PlkFusedRun;

typedef struct PlkFusedKernel PlkFusedKernel;

typedef struct PlkFusedTable {
  /* Can this operation be a member (code: PLK_EW_… or PLK_FUSED_SUM …)? Else it runs alone. */
  bool (*takes)(int code, PlDtype dtype, PlDtype result);
  /* Does one piece of work a row suffice for rows like these? Else operations along them do better alone. */
  bool (*takes_rows)(int64_t rows, int64_t cols);
  /* The kernel of a group for a GPU like that one, compiled or found; kernels are kept by the table until the process ends. Errors: UNSUPPORTED
   * without NVRTC. */
  PlStatus (*make)(int gpu, const PlkFused *group, const PlkFusedKernel **out);
  PlStatus (*run)(int gpu, const PlkFusedKernel *k, const PlkFusedRun *run);
  /* The source text of a group and its length, malloc'ed: for tests and `explain`. */
  PlStatus (*source)(const PlkFused *group, char **out);
} PlkFusedTable;

#endif
