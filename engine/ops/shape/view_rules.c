/* SPDX-License-Identifier: MIT
 * Rules and emitters that the view, shape, join and index families share: resolving sizes and positions,
 * strides of a reshaped window, and the shape ops that gradient makers emit most. */
#include "engine/ops/names.h"
#include "engine/ops/shape/view.h"

#include <string.h>

/* ---- shared rules --------------------------------------------------------------------------------- */

void pl_view_same(const PlInfer *c, PlDesc *d) {
  const PlArray *x = c->in[0];
  pl_desc_set(d, (PlDtype)x->dtype, x->ndim, x->shape);
  d->is_view = true;
  d->offset = 0;
  for (int i = 0; i < x->ndim; i++) d->strides[i] = x->strides[i];
}

PlStatus pl_sizes_check(const PlInfer *c, int n, const int64_t *sizes) {
  int64_t numel = 1;
  bool empty = false;
  if (n > PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "%s: %d dims; at most %d are possible", c->op->name, n, PL_MAX_DIM);
  for (int d = 0; d < n; d++) {
    if (sizes[d] < 0) PL_FAIL(PL_ERR_SHAPE, "%s: size %lld of dim %d is negative", c->op->name, (long long)sizes[d], d + 1);
    empty = empty || sizes[d] == 0;
    if (!empty && __builtin_mul_overflow(numel, sizes[d], &numel))
      PL_FAIL(PL_ERR_SHAPE, "%s: the sizes multiply to more elements than 64 bits can count", c->op->name);
  }
  return PL_OK;
}

static PlStatus sizes_fail(const PlInfer *c, int n, const int64_t *sizes) {
  PlArray want = {.shape = sizes, .ndim = (uint8_t)(n > PL_MAX_DIM ? PL_MAX_DIM : n), .dtype = c->in[0]->dtype};
  PL_FAIL(PL_ERR_SHAPE, "%s: %s has %lld elements and cannot become %s; the sizes must multiply to the same number", c->op->name,
          pl_desc_text(c->in[0]), (long long)c->in[0]->numel, pl_desc_text(&want));
}

PlStatus pl_sizes_resolve_to(const PlInfer *c, int64_t numel, int n, const int64_t *sizes, int64_t *out) {
  int64_t known = 1;
  int hole = -1;
  if (n > PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "%s: %d dims; at most %d are possible", c->op->name, n, PL_MAX_DIM);
  for (int d = 0; d < n; d++) {
    out[d] = sizes[d];
    if (sizes[d] == -1) {
      if (hole >= 0) PL_FAIL(PL_ERR_SHAPE, "%s: only one size may be -1", c->op->name);
      hole = d;
    } else if (sizes[d] < 0) {
      PL_FAIL(PL_ERR_SHAPE, "%s: size %lld of dim %d is negative", c->op->name, (long long)sizes[d], d + 1);
    } else if (__builtin_mul_overflow(known, sizes[d], &known)) {
      return sizes_fail(c, n, sizes);
    }
  }
  if (hole >= 0) {
    if (known == 0 && numel == 0) PL_FAIL(PL_ERR_SHAPE, "%s: the size -1 could be anything, as another size is 0; give it", c->op->name);
    if (known == 0 || numel % known) return sizes_fail(c, n, sizes);
    out[hole] = numel / known;
    return PL_OK;
  }
  return known == numel ? PL_OK : sizes_fail(c, n, sizes);
}

PlStatus pl_sizes_resolve(const PlInfer *c, int n, const int64_t *sizes, int64_t *out) {
  return pl_sizes_resolve_to(c, c->in[0]->numel, n, sizes, out);
}

bool pl_strides_reshaped(int n, const int64_t *shape, const int64_t *strides, int m, const int64_t *to, int64_t *out) {
  int64_t numel = 1;
  for (int d = 0; d < n; d++) numel *= shape[d];
  int64_t s = 1;
  if (numel == 0 && n == m && memcmp(shape, to, (size_t)n * sizeof *to) == 0) { /* the same shape has the same strides */
    memcpy(out, strides, (size_t)n * sizeof *out);
    return true;
  }
  if (numel == 0 || n == 0) { /* nothing to address, or one element */
    for (int d = m - 1; d >= 0; d--) {
      out[d] = s;
      s *= to[d] > 0 ? to[d] : 1;
    }
    return true;
  }
  /* Old dims from the last: gather a group that is one run, then spend it on new dims. */
  int d = m - 1;
  int64_t run = 1, base = strides[n - 1], taken = 1;
  for (int k = n - 1; k >= 0; k--) {
    run *= shape[k];
    bool ends = k == 0 || (shape[k - 1] != 1 && strides[k - 1] != run * base);
    if (!ends) continue;
    while (d >= 0 && (taken < run || to[d] == 1)) {
      out[d] = taken * base;
      taken *= to[d--];
    }
    if (taken != run) return false;
    if (k > 0) run = taken = 1, base = strides[k - 1];
  }
  return d == -1;
}

PlStatus pl_index_resolve(const PlInfer *c, const char *what, int64_t index, int64_t n, int64_t *out) {
  if (index >= n || index < -n)
    PL_FAIL(PL_ERR_INDEX, "%s: %s %lld of %s is out of range 1..%lld (or -%lld..-1 from the end)", c->op->name, what,
            (long long)(index >= 0 ? index + 1 : index), pl_desc_text(c->in[0]), (long long)n, (long long)n);
  *out = index < 0 ? index + n : index;
  return PL_OK;
}

/* ---- emitters ---------------------------------------------------------------------------------------- */

PlVal pl_g_list(PlMaker *g, const PlOp *op, PlVal v, int k, int n, const int64_t *list) {
  PlAttrs a;
  pl_attrs_init(op, &a);
  pl_g_attrs_list(g, &a, k, n, list);
  return pl_g_op(g, op, 1, &v, &a, NULL);
}
PlVal pl_g_reshape(PlMaker *g, PlVal v, int n, const int64_t *sizes) { return pl_g_list(g, &pl_op_reshape, v, 0, n, sizes); }
PlVal pl_g_permute(PlMaker *g, PlVal v, int n, const int64_t *dims) { return pl_g_list(g, &pl_op_permute, v, 0, n, dims); }
