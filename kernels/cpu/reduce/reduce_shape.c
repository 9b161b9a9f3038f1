/* SPDX-License-Identifier: MIT
 * How a reduction sees its array: [kept][reduced][kept], in place wherever one of them runs along memory, or a copy whose reduced dims are last (reduce_run.h), or, for sums
 * around a kept dim, twice. */
#include "kernels/cpu/reduce/reduce_run.h"
#include "kernels/cpu/shape/strided_copy.h"

bool plk_reduce_shape(const PlArray *x, uint32_t mask, PlkReduceShape *r) {
  enum { MOST = 3 };
  int64_t size[MOST], step[MOST];
  bool reduced[MOST];
  int n = 0, at = -1; /* at: the reduced one */
  for (int d = 0; d < x->ndim; d++) {
    const bool red = mask >> d & 1;
    if (x->shape[d] == 1) continue;
    if (n > 0 && reduced[n - 1] == red && step[n - 1] == x->strides[d] * x->shape[d]) {
      size[n - 1] *= x->shape[d], step[n - 1] = x->strides[d];
      continue;
    }
    if (n == MOST || (red && at >= 0)) return false;
    if (red) at = n;
    size[n] = x->shape[d], step[n] = x->strides[d], reduced[n++] = red;
  }
  *r = (PlkReduceShape){.O = 1, .R = 1, .I = 1, .sr = 1, .si = 1, .rows = true};
  if (at >= 0) r->R = size[at], r->sr = step[at];
  const int before = at < 0 ? n : at, after = at < 0 ? 0 : n - 1 - at;
  if (after == 0) {
    if (before > 0) r->O = size[0], r->so = step[0];
    if (before <= 1 && r->sr == 1) return true;
    r->across = true;
    if (at < 0 || before == 0 || step[before - 1] != 1) return false;
    if (before == 1) r->O = 1, r->so = 0;
    r->I = size[before - 1];
    return true;
  }
  if (after > 1 || before > 1) return false;
  if (before > 0) r->O = size[0], r->so = step[0];
  r->I = size[at + 1], r->si = step[at + 1];
  r->rows = false, r->across = r->si != 1;
  return r->si == 1 || r->sr == 1;
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
  int64_t to[PL_MAX_DIM], s = 1;
  *r = (PlkReduceShape){.O = 1, .R = 1, .I = 1, .sr = 1, .si = 1, .rows = true};
  for (int pass = 1; pass >= 0; pass--) /* the reduced dims are innermost */
    for (int d = x->ndim; d-- > 0;)
      if ((int)(mask >> d & 1) == pass) {
        to[d] = s, s *= x->shape[d];
        *(pass ? &r->R : &r->O) *= x->shape[d];
      }
  const size_t size = pl_dtype_size((PlDtype)x->dtype);
  r->so = r->R;
  for (int d = 0; d < x->ndim; d++) plk_nd_dim(&walk, x->shape[d], to[d], x->strides[d]);
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
  const int64_t steps[2] = {shape[2], 1}, each_step[2] = {shape[1], 1};
  x.ndim = 2, x.shape = rows, x.strides = steps;
  PlkReduceJob each = {.x = &x, .mask = 2, .pre = job->pre, .comp = job->comp, .p = job->p, .to = part, .parts = job->parts};
  PlStatus s = plk_reduce_run_parts(&each);
  x.data = part, x.dtype = PL_F64, x.numel = rows[0], x.shape = left, x.strides = each_step;
  PlkReduceJob all = {.x = &x,
                      .mask = 1,
                      .post = job->post,
                      .comp = PLK_CF64,
                      .p = job->p,
                      .out = job->out,
                      .to = job->to,
                      .count = job->x->numel / shape[1],
                      .parts = job->parts};
  if (s == PL_OK) s = plk_reduce_run_parts(&all);
  plk_scratch_free(part);
  return s;
}
