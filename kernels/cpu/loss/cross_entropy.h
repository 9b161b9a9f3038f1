/* SPDX-License-Identifier: MIT
 * What the losses over classes share (cross_entropy.c): one call's geometry, options and results by row; and cross entropy
 * down columns (cross_entropy_columns.c), for classes that are not adjacent. */
#ifndef PL_KERNELS_CPU_LOSS_CROSS_ENTROPY_H
#define PL_KERNELS_CPU_LOSS_CROSS_ENTROPY_H

#include <math.h>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/rows.h"
#include "kernels/loss.h"

enum { PLK_CLASS_FEW = 256 };

/* Whether a log-sum-exp that was kept in the loss' dtype is too far from 0 to divide by: rounding it moves e^(x - lse) as a whole. */
static inline bool plk_class_far(double lse) { return fabs(lse) >= PLK_LSE_FAR && isfinite(lse); }

typedef struct PlkClass {
  const PlkCall *c;
  const PlkSoftmaxLoops *loops;
  int64_t n, rows, ignore, base, reduction;
  double smooth, wsum, scale; /* scale: dy / (what mean divides by), for reductions */
  const double *w;            /* [n], NULL: ones */
  double *loss, *wt;          /* per row */
  double *tangent;            /* per row, of cross_entropy_dual */
  bool f64;
  void *heap;
  double few[2 * PLK_CLASS_FEW];
} PlkClass;

static inline double plk_class_weight(const PlkClass *k, int64_t i) { return k->w ? k->w[i] : 1; }

/* The 0-based class of a row's target; -1: ignored. */
PlStatus plk_class_target(const PlkClass *k, int64_t row, int64_t v, int64_t *t);

/* Whether x (and so dx) can be read in place, column by column. */
bool plk_class_by_columns(const PlkClass *k, const PlkRows *r, const PlArray *target);
/* Cross entropy: losses and weights of all rows, and the outputs but for the reduced loss. Its gradient. */
PlStatus plk_class_columns(PlkClass *k, const PlkRows *r, const PlArray *target);
PlStatus plk_class_columns_bwd(PlkClass *k, const PlkRows *r);

#endif
