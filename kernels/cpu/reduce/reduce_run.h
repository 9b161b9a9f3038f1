/* SPDX-License-Identifier: MIT
 * One reduction job: y = post(combine(pre(x))) over the dims in `mask`. */
#ifndef PL_KERNELS_CPU_REDUCE_REDUCE_RUN_H
#define PL_KERNELS_CPU_REDUCE_REDUCE_RUN_H

#include "kernels/cpu/loops.h"
#include "kernels/cpu/reduce/reduce_int.h"
#include "kernels/cpu/rows.h"

/* EXPDIFF, SQDIFF and DIFF take aux[output element]; POW divides by it, if there is one. */
typedef enum PlkPre {
  PLK_PRE_NONE,
  PLK_PRE_NONZERO,
  PLK_PRE_NAN0,
  PLK_PRE_ABS,
  PLK_PRE_SQUARE,
  PLK_PRE_POW,
  PLK_PRE_DIFF,
  PLK_PRE_SQDIFF,
  PLK_PRE_EXPDIFF
} PlkPre;
typedef enum PlkPost {
  PLK_POST_NONE,
  PLK_POST_MEAN, /* / n */
  PLK_POST_SQRT,
  PLK_POST_ROOT, /* ^(1/p) */
  PLK_POST_VAR,  /* / max(0, n - p) */
  PLK_POST_STD,
  PLK_POST_LOG /* log + aux */
} PlkPost;

/* What one call of a job's `piece` is about: `rows` elements of each of `cols` outputs from `out` on, which begin `at` elements after the
 * first of x. Where columns are reduced they lie side by side and the elements of each ld apart; rows are ld apart. block: which part
 * of the outputs' elements it is. */
typedef struct PlkReducePiece {
  int64_t at, out, block, rows, cols, ld;
} PlkReducePiece;

/* The tables of loops that a job may need. A program of one model that only adds floats links the least of them. */
typedef struct PlkReduceParts {
  const PlkReduceLoops *(*loops)(void);
  const PlkMapLoops *(*maps)(void); /* NULL, as those that follow: plain sums of f32 and f64 */
  const PlkIntLoops *(*integers)(void);
  const PlkSoftmaxLoops *(*exps)(void);
} PlkReduceParts;

typedef struct PlkReduceJob {
  const PlArray *x; /* any strides */
  uint32_t mask;    /* bit d: dimension d is reduced; bits beyond ndim are ignored */
  PlkCore core;
  PlkPre pre;
  PlkPost post;
  PlkComp comp; /* CF32 with SUM (pre NONE or EXPDIFF), MAX and MIN only */
  double p;
  int64_t count;     /* what MEAN divides by; 0: as many as are reduced */
  bool boolean;      /* ANY, ALL: start values 0 and 1 */
  bool zero_empty;   /* MAX of nothing is 0 */
  const double *aux; /* one value per output element */
  PlArray *out;      /* contiguous; or */
  double *to;        /* plain doubles */
  /* Of an x that lies as plk_reduce_shape says and not across: is called with what each piece gives, acc[cols], before blocks are
   * combined, while x is in the cache; or, with `instead`, computes that itself (one row; columns, from the start values). Any thread
   * may call. */
  void (*piece)(const struct PlkReduceJob *job, const PlkReducePiece *p, double *acc);
  bool instead;
  void *ctx;
  const PlkReduceParts *parts; /* set by plk_reduce_run */
} PlkReduceJob;

const PlkReduceLoops *plk_float_sums_loops(void); /* sums of f32 and f64, and what begins and ends them; the rest is NULL */

/* With all loops; with those of job->parts. */
PlStatus plk_reduce_run(const PlkReduceJob *job);
PlStatus plk_reduce_run_parts(const PlkReduceJob *job);

/* At most PLK_REDUCE_TILE elements of x from offset `at` on, in place (direct) or in buf; aux steps by `step`, 0: one
 * value for all. */
enum { PLK_REDUCE_TILE = 512 };
const void *plk_reduce_tile(const PlkReduceJob *job, const void *x, int dtype, bool direct, void *buf, int64_t at, int64_t n,
                            const double *aux, int step);

/* O kept, R reduced, I kept elements; element (o, r, i) is o so + r sr + i si from the first, result (o, i) is o I + i.
 * `rows`: in row-major order the reduced dims are last, and are added as rows are, which then lie in x one after the other
 * (I = 1, sr = 1) or across (si = 1, I kept dims that run along x). Else columns are added, which lie side by side (si = 1)
 * or across (sr = 1). */
typedef struct PlkReduceShape {
  int64_t O, R, I, so, sr, si;
  bool rows, across;
} PlkReduceShape;
/* Collapses dims of equal kind. Returns false if x is no such thing; then a copy of it is. */
bool plk_reduce_shape(const PlArray *x, uint32_t mask, PlkReduceShape *shape);
/* Whether x, which is contiguous, is [reduced][kept][reduced], with rows at its end that are worth a pass of their own. */
bool plk_reduce_around(const PlArray *x, uint32_t mask, int64_t shape[3]);
/* Float sums of it, as of biases' gradients: rows first, then what they left. */
PlStatus plk_reduce_twice(const PlkReduceJob *job, const int64_t shape[3]);
/* A copy with the reduced dims last. */
PlStatus plk_reduce_permute(const PlArray *x, uint32_t mask, PlkReduceShape *shape, void **copy);
/* Reduced elements in a block, whose results are combined as a tree; for `cols` columns reduced together, 1: rows. */
int64_t plk_reduce_block(int64_t cols);

/* ---- the jobs of some ops (reduce.c), which are done with tangents, too (reduce_tangent.c) ---- */

/* Bit d: dimension d of x is reduced. Attribute k is a list of dims. */
uint32_t plk_reduce_mask(const PlkCall *c, int k);
/* logsumexp: the largest elements, 0 where that is infinite; then the sums of exp(x - max). */
PlStatus plk_reduce_greatest(const PlkCall *c, uint32_t mask, double *max);
PlkReduceJob plk_reduce_exps(const PlkCall *c, uint32_t mask, const double *max);
/* norm: whether some result is not what it would be if doubles had no ends; it is computed again by other means. */
bool plk_norm_left(const PlkCall *c, double p);
/* var and std: means, with as much room for what they are taken about; then the sums of squares. */
PlStatus plk_reduce_means(const PlkCall *c, uint32_t mask, double *mean, double *about);
PlkReduceJob plk_reduce_variances(const PlkCall *c, uint32_t mask, const double *mean);

#endif
