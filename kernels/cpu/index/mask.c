/* SPDX-License-Identifier: MIT
 * Bool masks: filling, selecting, scattering, and the positions of what is not zero. */
#include <string.h>

#include "kernels/cpu/index/rowmove.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

static size_t esize_of(const PlArray *a) { return pl_dtype_size((PlDtype)a->dtype); }

/* ---- fill ----------------------------------------------------------------------------------------------- */

/* where(mask, value, x), whose loops need no branch: a mask that is not foreseen costs ten times the copy. */
PlStatus plk_cpu_masked_fill(const PlkCall *call) {
  const PlArray *value = call->in[2];
  PlArray *y = call->out[0];
  uint64_t number = 0; /* as y holds it */
  PlArray one = *value;
  PlkNd walk = {0};
  plk_nd_dim(&walk, 1, 1, 1);
  PL_TRY(plk_nd_cast(&number, (PlDtype)y->dtype, value->data, (PlDtype)value->dtype, &walk));
  one.data = &number, one.dtype = y->dtype;
  const PlArray *in[] = {call->in[1], &one, call->in[0]};
  PlkCall where = *call;
  where.code = PLK_EW_WHERE, where.in = in, where.nin = 3, where.attrs = NULL;
  return plk_cpu_elementwise(&where);
}

/* ---- select, scatter ------------------------------------------------------------------------------------- */

/* Pairs the trues of m with consecutive items of `list`: out of x (get), or into it. */
static int64_t pairs(const uint8_t *m, int64_t n, char *x, char *list, size_t esize, bool get) {
  int64_t k = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!m[i]) continue;
    char *a = plk_at(x, i, esize), *b = plk_at(list, k++, esize);
    memcpy(get ? b : a, get ? a : b, esize);
  }
  return k;
}

static int64_t count_bytes(const uint8_t *m, int64_t n) {
  int64_t k = 0;
  for (int64_t i = 0; i < n; i++) k += m[i] != 0;
  return k;
}

/* Does the list have an item for each true? Masks are values: no infer rule has looked at them. */
static PlStatus enough(const char *op, const uint8_t *m, int64_t n, int64_t have) {
  const int64_t need = count_bytes(m, n);
  if (need > have) PL_FAIL(PL_ERR_SHAPE, "%s: the mask selects %lld elements, but src has only %lld", op, (long long)need, (long long)have);
  return PL_OK;
}

#define SELECT(T)                   \
  {                                 \
    const T *x = xp;                \
    T *y = yp;                      \
    int64_t k = 0;                  \
    for (int64_t i = 0; i < n; i++) \
      if (m[i]) y[k++] = x[i];      \
  }                                 \
  break;

static void compact(const uint8_t *m, int64_t n, const void *xp, void *yp, size_t esize) {
  switch (esize) {
  case 1: SELECT(uint8_t)
  case 2: SELECT(uint16_t)
  case 4: SELECT(uint32_t)
  default: SELECT(uint64_t)
  }
}

/* The common shape of x and mask, broadcast. infer has checked that it exists. */
static int common(const PlArray *a, const PlArray *b, int64_t *shape, int64_t *numel) {
  int n = a->ndim > b->ndim ? a->ndim : b->ndim;
  *numel = 1;
  for (int d = 0; d < n; d++) {
    int ka = d - (n - a->ndim), kb = d - (n - b->ndim);
    int64_t sa = ka < 0 ? 1 : a->shape[ka], sb = kb < 0 ? 1 : b->shape[kb];
    shape[d] = sa == 1 ? sb : sa;
    *numel *= shape[d];
  }
  return n;
}

static PlStatus masked_select(const PlkCall *call) {
  const PlArray *x = call->in[0], *mask = call->in[1];
  int64_t shape[PL_MAX_DIM], numel;
  int n = common(x, mask, shape, &numel);
  void *s1 = NULL, *s2 = NULL;
  const void *xv, *mv;
  PL_TRY(plk_nd_dense(x, (PlDtype)x->dtype, n, shape, &s1, &xv));
  PlStatus st = plk_nd_dense(mask, PL_BOOL, n, shape, &s2, &mv);
  if (st == PL_OK) compact(mv, numel, xv, call->out[0]->data, esize_of(x));
  plk_scratch_free(s1);
  plk_scratch_free(s2);
  return st;
}
PlStatus plk_cpu_masked_select(const PlkCall *call) { return plk_dense_out(call, masked_select); }

PlStatus plk_cpu_masked_select_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0];
  PlArray *dx = call->out[0];
  void *scratch;
  const void *m;
  PL_TRY(plk_nd_dense(call->in[1], PL_BOOL, dx->ndim, dx->shape, &scratch, &m));
  PlStatus st = enough(call->name, m, dx->numel, dy->numel);
  if (st == PL_OK) st = plk_nd_zero(dx->data, (size_t)dx->numel * esize_of(dx));
  if (st == PL_OK) pairs(m, dx->numel, dx->data, dy->data, esize_of(dx), false);
  plk_scratch_free(scratch);
  return st;
}

PlStatus plk_cpu_masked_scatter(const PlkCall *call) {
  const PlArray *x = call->in[0], *src = call->in[2];
  PlArray *y = call->out[0];
  void *scratch;
  const void *m;
  PlkNd w;
  PL_TRY(plk_nd_dense(call->in[1], PL_BOOL, y->ndim, y->shape, &scratch, &m));
  PlStatus st = enough(call->name, m, y->numel, src->numel);
  if (st == PL_OK && x->data != y->data) {
    plk_nd_walk(&w, y, x);
    st = plk_nd_copy(y->data, x->data, &w, esize_of(x));
  }
  if (st == PL_OK) pairs(m, y->numel, y->data, src->data, esize_of(y), false);
  plk_scratch_free(scratch);
  return st;
}

PlStatus plk_cpu_masked_scatter_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0];
  PlArray *dsrc = call->out[0];
  void *scratch;
  const void *m;
  PL_TRY(plk_nd_dense(call->in[1], PL_BOOL, dy->ndim, dy->shape, &scratch, &m));
  PlStatus st = enough(call->name, m, dy->numel, dsrc->numel);
  if (st == PL_OK) st = plk_nd_zero(dsrc->data, (size_t)dsrc->numel * esize_of(dsrc));
  if (st == PL_OK) pairs(m, dy->numel, dy->data, dsrc->data, esize_of(dy), true);
  plk_scratch_free(scratch);
  return st;
}

/* ---- nonzero ---------------------------------------------------------------------------------------------- */

/* One byte an element: is it nonzero (NaN is, -0 is not)? In scratch, or the bool tensor itself. */
static PlStatus truths(const PlArray *x, void **scratch, const uint8_t **m) {
  const void *data;
  if (x->dtype == PL_BOOL) {
    PL_TRY(plk_nd_dense(x, PL_BOOL, x->ndim, x->shape, scratch, &data));
  } else {
    PlArray copy = *x;
    copy.contiguous = 0; /* a new array even where nothing needs converting */
    PL_TRY(plk_nd_dense(&copy, PL_BOOL, x->ndim, x->shape, scratch, &data));
  }
  *m = data;
  return PL_OK;
}

PlStatus plk_cpu_count_nonzero(const PlArray *x, int64_t *count) {
  void *scratch;
  const uint8_t *m;
  PL_TRY(truths(x, &scratch, &m));
  *count = count_bytes(m, x->numel);
  plk_scratch_free(scratch);
  return PL_OK;
}

static PlStatus nonzero(const PlkCall *call) {
  const PlArray *x = call->in[0];
  int64_t *out = call->out[0]->data, coord[PL_MAX_DIM], base = pl_attr_i(call->attrs, 0);
  void *scratch;
  const uint8_t *m;
  PL_TRY(truths(x, &scratch, &m));
  for (int64_t i = 0; i < x->numel; i++) {
    if (!m[i]) continue;
    plk_nd_unravel(i, x->ndim, x->shape, coord);
    for (int d = 0; d < x->ndim; d++) *out++ = coord[d] + base;
  }
  plk_scratch_free(scratch);
  return PL_OK;
}
PlStatus plk_cpu_nonzero(const PlkCall *call) { return plk_dense_out(call, nonzero); }
