/* SPDX-License-Identifier: MIT
 * Lists of tensors as one long row, and tensors of any layout in pieces of it: what optimizer steps and the helpers of lists share
 * (list.c). */
#ifndef PL_KERNELS_CPU_OPTIM_LIST_H
#define PL_KERNELS_CPU_OPTIM_LIST_H

#include "kernels/cpu/optim/optim.h"
#include "kernels/optim.h"

enum { PLK_LIST_BLOCK = 16384 };

/* Element offset of row-major position `at`, and the odometer that walks on from there. */
typedef struct PlkWalk {
  int64_t idx[PL_MAX_DIM], off;
} PlkWalk;
void plk_walk_start(PlkWalk *w, const PlArray *a, int64_t at);
void plk_walk_next(PlkWalk *w, const PlArray *a);
double plk_get_one(const PlArray *a, int64_t off);
void plk_put_one(const PlArray *a, int64_t off, double v);
/* n elements from `at` on, as f32 or, wide, f64. */
void plk_list_load(const PlArray *a, int64_t at, int64_t n, bool wide, void *out);
/* Where these are: in room, unless they lie one behind the other. filled: what room holds of one element, which is repeated as often. */
typedef struct PlkFilled {
  const void *element;
  int64_t n;
} PlkFilled;
const void *plk_list_look(const PlArray *a, int64_t at, int64_t n, bool wide, void *room, PlkFilled *filled);
void plk_list_store(const PlArray *a, int64_t at, int64_t n, bool wide, const void *from);

typedef struct PlkList PlkList;
/* Works on elements [at, at + n) of group `g`; `part` is the number of the block. */
typedef void (*PlkStretch)(const PlkList *list, int64_t g, int64_t at, int64_t n, int64_t part);

struct PlkList {
  const PlkCall *call;
  const PlkOptimLoops *loops;
  int64_t ngroup, k, total;
  int64_t *ends; /* elements in groups 0 … g */
  int64_t few[64];
  PlkStretch stretch;
  const void *opt;
  double *partial;     /* norms: one a block; sums of a rule: two a stretch */
  double *factor;      /* a parameter's, or NULL */
  bool looked, shares; /* of plk_list_write */
};
static inline const PlArray *plk_list_column(const PlkList *l, int64_t g, int64_t j) { return l->call->in[g * l->k + j]; }

PlStatus plk_list_init(PlkList *l, const PlkCall *call, int64_t ntensor, int64_t k, PlkStretch stretch, const void *opt);
void plk_list_free(PlkList *l);
/* All blocks, in parallel. */
PlStatus plk_list_run(PlkList *l);
/* All of a step or nothing: Ctrl-C before it, or behind it. Tensors that share memory are written one after the other, not by
 * two threads at once. */
PlStatus plk_list_write(PlkList *l);

#endif
