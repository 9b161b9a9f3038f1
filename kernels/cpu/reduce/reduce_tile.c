/* SPDX-License-Identifier: MIT
 * Tiles of a reduction (reduce_run.h): elements as the job's type, mapped, where no loop of isa/reduce/reduce_map.c does it all. */
#include <math.h>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/reduce/reduce_run.h"
#include "kernels/cpu/vmath/vmath.h"

/* Maps a tile of doubles; aux steps by `step` (0: one value for all). */
static void pre_f64(const PlkReduceJob *j, double *v, int64_t n, const double *aux, int step) {
  switch (j->pre) {
  case PLK_PRE_NONZERO:
    for (int64_t i = 0; i < n; i++) v[i] = v[i] != 0 ? 1 : 0;
    break;
  case PLK_PRE_NAN0:
    for (int64_t i = 0; i < n; i++) v[i] = v[i] != v[i] ? 0 : v[i];
    break;
  case PLK_PRE_ABS:
    for (int64_t i = 0; i < n; i++) v[i] = fabs(v[i]);
    break;
  case PLK_PRE_SQUARE:
    for (int64_t i = 0; i < n; i++) v[i] *= v[i];
    break;
  case PLK_PRE_POW:
    for (int64_t i = 0; i < n; i++) v[i] = pow(fabs(aux ? v[i] / aux[i * step] : v[i]), j->p);
    break;
  case PLK_PRE_DIFF:
    for (int64_t i = 0; i < n; i++) v[i] -= aux[i * step];
    break;
  case PLK_PRE_SQDIFF:
    for (int64_t i = 0; i < n; i++) {
      double d = v[i] - aux[i * step];
      v[i] = d * d;
    }
    break;
  case PLK_PRE_EXPDIFF:
    for (int64_t i = 0; i < n; i++) v[i] = vm_exp_f64(v[i] - aux[i * step]);
    break;
  default: break;
  }
}

/* exp(v - aux) of a tile of floats: the only map that floats have. */
static void exp_f32(const PlkReduceJob *j, float *v, int64_t n, const double *aux, int step) {
  if (step == 0) {
    j->parts->exps()->exp_f32(v, (float)*aux, 1, v, n);
    return;
  }
  for (int64_t i = 0; i < n; i++) v[i] = vm_exp_f32(v[i] - (float)aux[i]);
}

/* NaN is not zero; floats between -1 and 1 must not be truncated first. */
static void load_nonzero(int64_t *dst, const void *x, int dtype, int64_t at, int64_t n) {
  if (!pl_is_float((PlDtype)dtype)) {
    plk_load(PLK_CI64, dst, n, x, dtype, at, 1, n, 1);
    for (int64_t i = 0; i < n; i++) dst[i] = dst[i] != 0;
    return;
  }
  double v[PLK_REDUCE_TILE];
  plk_load(PLK_CF64, v, n, x, dtype, at, 1, n, 1);
  for (int64_t i = 0; i < n; i++) dst[i] = v[i] != 0;
}

const void *plk_reduce_tile(const PlkReduceJob *j, const void *x, int dtype, bool direct, void *buf, int64_t at, int64_t n,
                            const double *aux, int step) {
  if (direct) return (const char *)x + (size_t)at * plk_comp_size(j->comp);
  if (j->comp == PLK_CI64 && j->pre == PLK_PRE_NONZERO) {
    load_nonzero(buf, x, dtype, at, n);
    return buf;
  }
  plk_load(j->comp, buf, n, x, dtype, at, 1, n, 1);
  if (j->pre != PLK_PRE_NONE && j->comp == PLK_CF32) exp_f32(j, buf, n, aux, step);
  else if (j->pre != PLK_PRE_NONE) pre_f64(j, buf, n, aux, step);
  return buf;
}
