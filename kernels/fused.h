/* SPDX-License-Identifier: MIT
 * A group of elementwise operations that a device runs as one kernel: what the engine says of it, and the table
 * ("fused", PlDeviceTable.extension) that compiles and runs it. Results are bit for bit those of the operations one by
 * one: what passes between two of them is rounded to its dtype. */
#ifndef PL_KERNELS_FUSED_H
#define PL_KERNELS_FUSED_H

#include "kernels/kernel.h"

enum { PLK_FUSED_MEMBERS = 32, PLK_FUSED_ARGS = 24 };

/* How an argument lies against the space of numel elements, seen as rows of cols. */
typedef enum PlkFusedKind {
  PLK_FUSED_FULL,  /* all of it, dense */
  PLK_FUSED_ROW,   /* one row */
  PLK_FUSED_COL,   /* one value a row */
  PLK_FUSED_ONE,   /* one value on the device */
  PLK_FUSED_NUMBER /* one value on the host, read at every run */
} PlkFusedKind;

typedef struct PlkFusedArg {
  uint8_t dtype, kind;
  bool out; /* written (FULL); else read */
} PlkFusedArg;

/* y = code(x0, x1, x2), PLK_EW_…. in[k] ≥ 0: result of that member; < 0: argument -1 - in[k]. */
typedef struct PlkFusedMember {
  int16_t code;
  uint8_t dtype, result; /* of the inputs (WHERE: of inputs 1 and 2), of the result */
  uint8_t nin, set;      /* set: bit k: parameter k is given */
  int16_t in[3];
  int16_t out;           /* argument that takes the result, -1: only members read it */
} PlkFusedMember;

typedef struct PlkFused {
  int nmember, narg;
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
  /* Can this operation be a member? Else it runs alone. */
  bool (*takes)(int code, PlDtype dtype, PlDtype result);
  /* The kernel of a group, compiled or found; kernels are kept by the table until the process ends. Errors: UNSUPPORTED
   * without NVRTC. */
  PlStatus (*make)(const PlkFused *group, const PlkFusedKernel **out);
  PlStatus (*run)(const PlkFusedKernel *k, const PlkFusedRun *run);
  /* The source text of a group and its length, malloc'ed: for tests and `explain`. */
  PlStatus (*source)(const PlkFused *group, char **out);
} PlkFusedTable;

#endif
