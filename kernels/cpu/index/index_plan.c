/* SPDX-License-Identifier: MIT
 * Lists of index tensors (NumPy's advanced indexing): which dims they take, their broadcast shape, where it
 * goes in the result, and the table offset of every position. Shared by infer rules and kernels. */
#include <stdio.h>

#include "kernels/cpu/index/rowmove.h"

static PlStatus broadcast_into(const char *op, PlkIndexPlan *p, int k, int ndim, const int64_t *shape) {
  int lead = ndim - p->nb;
  if (lead > 0) {
    for (int d = p->nb - 1; d >= 0; d--) p->bshape[d + lead] = p->bshape[d];
    for (int d = 0; d < lead; d++) p->bshape[d] = 1;
    p->nb = ndim;
  }
  for (int d = 0; d < ndim; d++) {
    int64_t *have = &p->bshape[p->nb - ndim + d];
    if (shape[d] == *have || shape[d] == 1) continue;
    if (*have != 1)
      PL_FAIL(PL_ERR_SHAPE, "%s: index tensor %d does not broadcast with those before it: sizes %lld and %lld differ", op, k + 1,
              (long long)shape[d], (long long)*have);
    *have = shape[d];
  }
  return PL_OK;
}

/* Checks one index tensor against the dims of x from `dim` on, and takes them; a mask's trues are counted, or one by `by_shape`. */
static PlStatus take_dims(const char *op, PlkIndexPlan *p, int k, const PlArray *a, int ndim, const int64_t *shape, int64_t dim,
                          bool by_shape) {
  bool mask = a->dtype == PL_BOOL;
  int n = mask ? a->ndim : 1;
  if (!mask && !pl_is_int((PlDtype)a->dtype))
    PL_FAIL(PL_ERR_DTYPE, "%s: index tensor %d is %s; it must hold integers, say index:long(), or be a bool mask", op, k + 1,
            pl_dtype_name((PlDtype)a->dtype));
  if (dim > PL_MAX_DIM) dim = PL_MAX_DIM; /* out of range anyway; the message adds to it */
  if (dim < 0 || dim > ndim - n)
    PL_FAIL(PL_ERR_INDEX, "%s: index tensor %d needs dims %lld..%lld, but there are %d", op, k + 1, (long long)dim + 1, (long long)dim + n,
            ndim);
  for (int d = 0; d < n; d++) {
    if (p->taken[dim + d]) PL_FAIL(PL_ERR_INDEX, "%s: dim %lld is indexed twice", op, (long long)dim + d + 1);
    p->taken[dim + d] = !mask && a->ndim == 0 ? PLK_ONE : PLK_POSITIONS;
    if (mask && a->shape[d] != shape[dim + d])
      PL_FAIL(PL_ERR_SHAPE, "%s: the mask's size %lld at its dim %d differs from size %lld of dim %lld it selects from", op,
              (long long)a->shape[d], d + 1, (long long)shape[dim + d], (long long)dim + d + 1);
  }
  p->at[k].dim = (int)dim;
  p->at[k].ndim = n;
  p->at[k].mask = mask;
  if (!mask) return broadcast_into(op, p, k, a->ndim, a->shape);
  p->at[k].count = 1;
  if (!by_shape) PL_TRY(plk_cpu_count_nonzero(a, &p->at[k].count));
  return broadcast_into(op, p, k, 1, &p->at[k].count);
}

/* The result: free dims before, the broadcast dims, free dims after. */
static PlStatus result_shape(const char *op, PlkIndexPlan *p, int ndim, const int64_t *shape) {
  int count = 0;
  for (int d = 0; d < ndim; d++) count += p->taken[d] != PLK_FREE;
  p->where = plk_index_where(ndim, p->taken);
  p->ndim = ndim - count + p->nb;
  if (p->ndim > PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "%s: the result would have %d dims; at most %d are possible", op, p->ndim, PL_MAX_DIM);
  int n = 0, before = 0;
  for (int d = 0; d < ndim; d++) {
    if (p->taken[d]) continue;
    if (before++ == p->where)
      for (int b = 0; b < p->nb; b++) p->shape[n++] = p->bshape[b];
    p->shape[n++] = shape[d];
  }
  if (before <= p->where)
    for (int b = 0; b < p->nb; b++) p->shape[n++] = p->bshape[b];
  p->np = 1;
  for (int b = 0; b < p->nb; b++) {
    if (p->bshape[b] == 0) p->np = 0;
    if (__builtin_mul_overflow(p->np, p->bshape[b], &p->np))
      PL_FAIL(PL_ERR_SHAPE, "%s: the index tensors broadcast to too many positions", op);
  }
  return PL_OK;
}

static PlStatus plan_of(const char *op, int ndim, const int64_t *shape, int n, const PlArray *const *index, int ndims, const int64_t *dims,
                        bool by_shape, PlkIndexPlan *plan) {
  *plan = (PlkIndexPlan){.n = n};
  if (n < 1 || n > PL_MAX_DIM) PL_FAIL(PL_ERR_ARG, "%s: %d index tensors; 1 to %d are possible", op, n, PL_MAX_DIM);
  if (dims && ndims != n) PL_FAIL(PL_ERR_ARG, "%s: %d dims for %d index tensors", op, ndims, n);
  int64_t next = 0;
  for (int k = 0; k < n; k++) {
    if (dims) next = dims[k];
    PL_TRY(take_dims(op, plan, k, index[k], ndim, shape, next, by_shape));
    next += plan->at[k].ndim;
  }
  return result_shape(op, plan, ndim, shape);
}

PlStatus plk_cpu_index_plan(const char *op, int ndim, const int64_t *shape, int n, const PlArray *const *index, int ndims,
                            const int64_t *dims, PlkIndexPlan *plan) {
  return plan_of(op, ndim, shape, n, index, ndims, dims, false, plan);
}

PlStatus plk_cpu_index_plan_by_shape(const char *op, int ndim, const int64_t *shape, int n, const PlArray *const *index, int ndims,
                                     const int64_t *dims, PlkIndexPlan *plan) {
  return plan_of(op, ndim, shape, n, index, ndims, dims, true, plan);
}

/* ---- offsets ---------------------------------------------------------------------------------------------- */

/* Offsets of a mask's trues, in row-major order, into o[0 … count-1]. */
static PlStatus mask_offsets(const PlArray *mask, const int64_t *strides, int64_t *o) {
  void *scratch;
  const void *data;
  PL_TRY(plk_nd_dense(mask, PL_BOOL, mask->ndim, mask->shape, &scratch, &data));
  const uint8_t *m = data;
  int last = mask->ndim - 1;
  int64_t coord[PL_MAX_DIM] = {0}, at = 0, n = 0;
  if (mask->ndim == 0) {
    if (*m) o[0] = 0;
  } else if (mask->numel) {
    int64_t len = mask->shape[last];
    for (int64_t row = 0; row < mask->numel; row += len) {
      for (int64_t i = 0; i < len; i++)
        if (m[row + i]) o[n++] = at + i * strides[last];
      for (int d = last - 1; d >= 0; d--) {
        at += strides[d];
        if (++coord[d] < mask->shape[d]) break;
        at -= coord[d] * strides[d];
        coord[d] = 0;
      }
    }
  }
  plk_scratch_free(scratch);
  return PL_OK;
}

/* offs += v (of shape [ndim dims], row-major, times stride) broadcast to the plan's shape. */
static void add_offsets(const PlkIndexPlan *p, int64_t *offs, const int64_t *v, int64_t base, int64_t stride, int ndim,
                        const int64_t *shape) {
  int64_t step[PL_MAX_DIM] = {0}, coord[PL_MAX_DIM] = {0}, s = 1, at = 0;
  for (int d = ndim - 1; d >= 0; d--) {
    int k = p->nb - ndim + d;
    step[k] = shape[d] == 1 ? 0 : s;
    s *= shape[d];
  }
  if (p->nb == 0) {
    offs[0] += (v[0] - base) * stride;
    return;
  }
  int last = p->nb - 1;
  int64_t len = p->bshape[last];
  for (int64_t row = 0; row < p->np; row += len) {
    for (int64_t i = 0; i < len; i++) offs[row + i] += (v[at + i * step[last]] - base) * stride;
    for (int d = last - 1; d >= 0; d--) {
      at += step[d];
      if (++coord[d] < p->bshape[d]) break;
      at -= coord[d] * step[d];
      coord[d] = 0;
    }
  }
}

static PlStatus one_index(const char *op, const PlkIndexPlan *p, int k, const PlArray *a, const int64_t *shape, const int64_t *strides,
                          int64_t base, int64_t *offs) {
  int dim = p->at[k].dim;
  if (!p->at[k].mask) {
    PlkIndex iv;
    PL_TRY(plk_index_load(op, a, shape[dim], base, true, &iv));
    if (p->np) add_offsets(p, offs, iv.v, iv.base, strides[dim], a->ndim, a->shape);
    plk_index_free(&iv);
    return PL_OK;
  }
  void *mem;
  PL_TRY(plk_scratch((size_t)(p->at[k].count + 1) * sizeof(int64_t), &mem));
  PlStatus st = mask_offsets(a, strides + dim, mem);
  if (st == PL_OK && p->np) add_offsets(p, offs, mem, 0, 1, 1, &p->at[k].count);
  plk_scratch_free(mem);
  return st;
}

PlStatus plk_plan_offsets(const char *op, const PlkIndexPlan *plan, const PlArray *const *index, const int64_t *shape,
                          const int64_t *strides, int64_t base, int64_t **offs) {
  void *mem;
  PL_TRY(plk_scratch((size_t)(plan->np + 1) * sizeof(int64_t), &mem));
  PlStatus st = plk_nd_zero(mem, (size_t)plan->np * sizeof(int64_t));
  for (int k = 0; k < plan->n && st == PL_OK; k++) st = one_index(op, plan, k, index[k], shape, strides, base, mem);
  if (st != PL_OK) {
    plk_scratch_free(mem);
    return st;
  }
  *offs = mem;
  return PL_OK;
}

void plk_plan_rows(PlkRows *r, const PlkIndexPlan *plan, int ndim, const int64_t *shape, const int64_t *strides) {
  int64_t row[PL_MAX_DIM];
  int before = 0;
  plk_nd_strides(plan->ndim, plan->shape, row);
  r->np = plan->np;
  r->na = r->nb = 0;
  r->span = 1;
  for (int d = 0; d < ndim; d++) {
    if (plan->taken[d]) {
      r->span += plk_max64(shape[d] - 1, 0) * strides[d];
    } else if (before < plan->where) {
      r->ashape[r->na] = shape[d];
      r->atable[r->na] = strides[d];
      r->arow[r->na++] = row[before++];
    } else {
      r->bshape[r->nb] = shape[d];
      r->btable[r->nb] = strides[d];
      r->brow[r->nb++] = row[before++ + plan->nb];
    }
  }
  int64_t tail = 1;
  for (int d = plan->where + plan->nb; d < plan->ndim; d++) tail *= plan->shape[d];
  r->prow = tail;
}
