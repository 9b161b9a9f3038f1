/* SPDX-License-Identifier: MIT
 * Programs: planned graphs as plain data, a list of kernel calls over memory whose size is known. A program is read only, but for
 * what kernels make of its weights, once for all: any number of threads may run it at once, each with a session of its own, which has the arena, the arrays and the scratch memory.
 * Once a session has run, a further run takes no lock and asks nobody for memory, if it uses one thread (with several, what
 * helpers need for themselves comes from the process).
 * engine/deploy/program.c makes programs of plans; `perilune build` writes them as C, which needs this and nothing above. */
#ifndef PL_KERNELS_PROGRAM_H
#define PL_KERNELS_PROGRAM_H

#include "kernels/kernel.h"

/* ---- kernels whose results are sums over all rows, run on some rows at a time. The bits are those of one call on everything:
 * such kernels cut their rows into grains, add each grain up in order and then the grains ---- */

typedef struct PlkPieces {
  int64_t rows, cols; /* of everything */
  int64_t grain;      /* elements that one thread must take in order */
  int64_t unit;       /* rows of a piece are a multiple of this, at the end of a grain apart */
  size_t shared;      /* bytes for what grains come to, kept until the end */
  size_t local;       /* bytes of a thread, kept from piece to piece */
  int note;           /* the plan's, for pieces, which do not see the sums */
} PlkPieces;

typedef struct PlkPiecewise {
  /* From rows and cols and the arrays of the whole call, whose data is not there yet; false: not in pieces. */
  bool (*plan)(const PlkCall *whole, PlkPieces *p);
  /* Elements at … of a grain; the arrays are windows on them, outputs that are sums NULL. */
  PlStatus (*piece)(const PlkCall *call, const PlkPieces *p, int64_t at, void *shared, void *local);
  /* The sums, in the whole call's outputs; others are not looked at. */
  PlStatus (*end)(const PlkCall *whole, const PlkPieces *p, void *shared);
} PlkPiecewise;

/* sum, mean, sum_to: of columns if the output has p->cols elements, else of everything. f32 and f64. */
extern const PlkPiecewise plk_cpu_sum_pieces;
/* layer_norm_bwd, rms_norm_bwd: dw and db. */
extern const PlkPiecewise plk_cpu_layer_norm_bwd_pieces;

/* ---- groups of calls that run tile by tile, so that what passes between them stays in the first-level cache. The graph's
 * planner makes them (engine/graph/fuse/tile_plan.c), kernels/cpu/tiles.c runs them ---- */

/* One array of one member: its tile is at base + row * by_row + col * by_col bytes. */
typedef struct PlkTileOperand {
  int32_t v;      /* number of the value */
  int8_t slot;    /* ≥ 0: is in the tile's memory */
  uint8_t column; /* that slot is of one value a row */
  uint8_t kind;   /* a PlFuseRole, for the planner */
  uint8_t wide;   /* repeated by steps of 0 (expand), not by being broadcast; for the planner */
  int64_t by_row, by_col;
} PlkTileOperand;

typedef struct PlkTileMember {
  const char *name;
  PlKernel kernel;
  const PlkPiecewise *pieces; /* of a member that sums over rows */
  const PlAttrs *attrs;       /* NULL: none */
  const int32_t *at;          /* operands: nin inputs, then nout outputs; -1: none */
  const int32_t *arg;         /* values, in the same order; -1: none */
  int32_t code, nin, nout;
  PlkPieces cut;        /* grain 0: it does not sum over rows */
  size_t shared, local; /* where its memory begins in that of the group and of a block */
} PlkTileMember;

typedef struct PlkTileGroup {
  int32_t begin, end, n;      /* nodes of the plan; members */
  int64_t numel, inner;       /* elements of the space, of a row */
  int64_t cols, rows;         /* of a full tile */
  int64_t ncol, ntile, chunk; /* tiles: across, in all, that one thread takes in order */
  const PlkTileMember *m;
  const PlkTileOperand *op;
  const PlArray *form[2]; /* the operands' arrays in a full tile and in the last one; data NULL */
  bool summed;            /* some member sums over rows */
  int32_t nop, nptr;
  int32_t nfull, ncolumn;          /* slots */
  size_t full_bytes, column_bytes; /* of one slot */
  size_t bytes, local, shared;     /* of a block's memory; of it for sums; for all blocks' sums */
} PlkTileGroup;

static inline size_t plk_round64(size_t n) { return (n + 63) & ~(size_t)63; }

/* vals[v]: the array of value v, NULL where it has none. */
PlStatus plk_tiles_run(const PlkTileGroup *g, PlArray *const *vals);

/* ---- programs ---- */

typedef enum PlkPlace { PLK_AT_NOTHING, PLK_AT_WEIGHT, PLK_AT_INPUT, PLK_AT_OUTPUT, PLK_AT_ARENA } PlkPlace;

/* A value: an array `at` bytes behind the beginning of weight, input or output `which`, or of the arena. */
typedef struct PlkValue {
  const int64_t *dims; /* shape, then strides in elements */
  int64_t numel, at;
  int32_t which;
  uint8_t place, dtype, ndim, contiguous;
} PlkValue;

/* One call of a kernel, or of a group of them. */
typedef struct PlkCallStep {
  const char *name;
  PlKernel kernel;
  const PlkTileGroup *group; /* NULL: the kernel alone */
  const PlAttrs *attrs;      /* NULL: none */
  const int32_t *arg;        /* values: nin inputs, then nout outputs; -1: none */
  int32_t code, nin, nout;
} PlkCallStep;

/* An input or output: contiguous, row-major. */
typedef struct PlkPort {
  const char *name;
  const int64_t *shape;
  int64_t bytes;
  uint8_t dtype, ndim;
} PlkPort;

typedef struct PlkProgram {
  const PlkValue *vals;
  const PlkCallStep *steps;
  const PlkPort *in, *out;
  const void *const *weights;
  PlkKept *kept; /* a step: which of its inputs are weights, and what its kernel made of them; shared by all sessions */
  int64_t arena; /* bytes */
  int32_t nvals, nsteps, nin, nout, nweights;
} PlkProgram;

/* What one thread needs to run a program, and nobody else uses meanwhile. */
typedef struct PlkSession PlkSession;
PlStatus plk_session_new(PlkSession **out, const PlkProgram *p); /* p outlives it. Errors: OOM */
void plk_session_free(PlkSession *s);                            /* NULL is fine */
/* Runs it on `threads` threads (< 1: as many as the calling thread's other kernels). in[nin], out[nout]: addresses that
 * their dtype's size divides; an output shares no memory with anything else. Errors: what kernels say; outputs are
 * undefined then. */
PlStatus plk_session_run(PlkSession *s, int threads, const void *const *in, void *const *out);
int64_t plk_session_bytes(const PlkSession *s); /* arena and scratch memory, so far */

#endif
