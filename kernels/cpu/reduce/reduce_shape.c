/* SPDX-License-Identifier: MIT
 * How a reduction sees its array: [kept][reduced][kept], or a copy whose reduced dims are last (reduce_run.h), or, for sums
 * around a kept dim, twice. */
#include "kernels/cpu/reduce/reduce_run.h"
#include "kernels/cpu/shape/strided_copy.h"

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

bool plk_reduce_around(const PlArray *x, uint32_t mask, int64_t shape[3]) {
  int stage = 0; /* dims of `shape` */
  shape[0] = shape[1] = shape[2] = 1;
  for (int d = 0; d < x->ndim; d++) {
    const bool reduced = mask >> d & 1;
    if (x->shape[d] == 1) continue;
    if (reduced == (stage == 1)) stage++;
    if (stage > 2) return false;
    shape[stage] *= x->shape[d];
  }
  return shape[0] > 1 && shape[2] >= 16;
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

PlStatus plk_reduce_twice(const PlkReduceJob *job, const int64_t shape[3]) {
  const int64_t rows[2] = {shape[0] * shape[1], shape[2]}, left[2] = {shape[0], shape[1]};
  void *part;
  PL_TRY(plk_scratch((size_t)rows[0] * sizeof(double), &part));
  PlArray x = *job->x;
  x.ndim = 2, x.shape = rows;
  PlkReduceJob each = {.x = &x, .mask = 2, .pre = job->pre, .comp = job->comp, .p = job->p, .to = part};
  PlStatus s = plk_reduce_run(&each);
  x.data = part, x.dtype = PL_F64, x.numel = rows[0], x.shape = left;
  PlkReduceJob all = {.x = &x,
                      .mask = 1,
                      .post = job->post,
                      .comp = PLK_CF64,
                      .p = job->p,
                      .out = job->out,
                      .to = job->to,
                      .count = job->x->numel / shape[1]};
  if (s == PL_OK) s = plk_reduce_run(&all);
  plk_scratch_free(part);
  return s;
}
