/* SPDX-License-Identifier: MIT
 * How a reduction sees its array: [kept][reduced][kept], or a copy whose reduced dims are last (reduce_run.h). */
#include "kernels/cpu/moves.h"
#include "kernels/cpu/reduce_run.h"

bool plk_reduce_shape(const PlArray *x, uint32_t mask, PlkReduceShape *r) {
  r->O = r->R = r->I = 1;
  int stage = 0; /* 0: in O, 1: in R, 2: in I */
  for (int d = 0; d < x->ndim; d++) {
    int64_t n = x->shape[d];
    if (n == 1) continue;
    if (mask >> d & 1) {
      if (stage == 2) return false;
      stage = 1;
      r->R *= n;
    } else {
      if (stage == 1) stage = 2;
      *(stage == 2 ? &r->I : &r->O) *= n;
    }
  }
  return true;
}

PlStatus plk_reduce_permute(const PlArray *x, uint32_t mask, PlkReduceShape *r, void **copy) {
  PlkNd walk = {.n = 0};
  int64_t step[PL_MAX_DIM], to[PL_MAX_DIM], s = 1;
  for (int d = x->ndim; d-- > 0; s *= x->shape[d]) step[d] = s;
  r->O = r->R = r->I = 1;
  s = 1;
  for (int pass = 1; pass >= 0; pass--) /* the reduced dims are innermost */
    for (int d = x->ndim; d-- > 0;)
      if ((int)(mask >> d & 1) == pass) {
        to[d] = s, s *= x->shape[d];
        *(pass ? &r->R : &r->O) *= x->shape[d];
      }
  const size_t size = pl_dtype_size((PlDtype)x->dtype);
  for (int d = 0; d < x->ndim; d++) plk_nd_dim(&walk, x->shape[d], to[d], step[d]);
  PL_TRY(plk_scratch((size_t)x->numel * size, copy));
  PlStatus status = plk_nd_copy(*copy, x->data, &walk, size);
  if (status == PL_OK) return PL_OK;
  plk_scratch_free(*copy);
  *copy = NULL;
  return status;
}
