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

/* DO at places i of m, where k trues lie before i, up to the last of `need` trues. What a mask says is not foreseen, so nothing branches by
 * it: DO is done where `on` is false, too, and must leave nothing there that the next true does not do over. */
#define EACH_TRUE(m, n, need, DO)                                   \
  {                                                                 \
    int64_t i = 0, k = 0;                                           \
    while (i < (n) && k < (need)) {                                 \
      const int64_t end = plk_min64(i + 8, n);                      \
      uint64_t eight = 1;                                           \
      if (end == i + 8) memcpy(&eight, (m) + i, 8);                 \
      if (eight == 0) {                                             \
        i = end;                                                    \
      } else if (end < i + 8 || k + 8 > (need)) {                   \
        for (const bool on = true; i < end && k < (need); i++)      \
          if ((m)[i]) {                                             \
            DO;                                                     \
            (void)on, k++;                                          \
          }                                                         \
      } else if (eight == 0x0101010101010101u) {                    \
        for (const bool on = true; i < end; (void)on, i++, k++) DO; \
      } else {                                                      \
        for (int j = 0; j < 8; j++, i++) {                          \
          const bool on = (uint8_t)(eight >> 8 * j) != 0;           \
          DO;                                                       \
          k += on;                                                  \
        }                                                           \
      }                                                             \
    }                                                               \
  }

/* Pairs the trues of m, `need` of them, with consecutive items of `list`: out of x (get), or into it. */
#define PAIR(T)                                                                     \
  {                                                                                 \
    T *const x = xp, *const list = lp;                                              \
    if (get) EACH_TRUE(m, n, need, list[k] = x[i])                                  \
    else EACH_TRUE(m, n, need, x[i] = (T)(x[i] ^ ((x[i] ^ list[k]) & (T) - (T)on))) \
  }                                                                                 \
  break;
static void pairs(const uint8_t *m, int64_t n, int64_t need, void *xp, void *lp, size_t esize, bool get) {
  switch (esize) {
  case 1: PAIR(uint8_t)
  case 2: PAIR(uint16_t)
  case 4: PAIR(uint32_t)
  default: PAIR(uint64_t)
  }
}

static int64_t count_bytes(const uint8_t *m, int64_t n) {
  int64_t k = 0;
  for (int64_t at = 0; at < n; at += 255) { /* as many as a byte counts */
    const int64_t end = plk_min64(at + 255, n);
    uint8_t some = 0;
    for (int64_t i = at; i < end; i++) some = (uint8_t)(some + (m[i] != 0));
    k += some;
  }
  return k;
}

/* Does the list have an item for each true? Masks are values: no infer rule has looked at them. */
static PlStatus enough(const char *op, const uint8_t *m, int64_t n, int64_t have, int64_t *need) {
  *need = count_bytes(m, n);
  if (*need > have)
    PL_FAIL(PL_ERR_SHAPE, "%s: the mask selects %lld elements, but src has only %lld", op, (long long)*need, (long long)have);
  return PL_OK;
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
  if (st == PL_OK) pairs(mv, numel, call->out[0]->numel, (void *)(uintptr_t)xv, call->out[0]->data, esize_of(x), true);
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
  int64_t need;
  PlStatus st = enough(call->name, m, dx->numel, dy->numel, &need);
  if (st == PL_OK) st = plk_nd_zero(dx->data, (size_t)dx->numel * esize_of(dx));
  if (st == PL_OK) pairs(m, dx->numel, need, dx->data, dy->data, esize_of(dx), false);
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
  int64_t need;
  PlStatus st = enough(call->name, m, y->numel, src->numel, &need);
  if (st == PL_OK && x->data != y->data) {
    plk_nd_walk(&w, y, x);
    st = plk_nd_copy(y->data, x->data, &w, esize_of(x));
  }
  if (st == PL_OK) pairs(m, y->numel, need, y->data, src->data, esize_of(y), false);
  plk_scratch_free(scratch);
  return st;
}

PlStatus plk_cpu_masked_scatter_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0];
  PlArray *dsrc = call->out[0];
  void *scratch;
  const void *m;
  PL_TRY(plk_nd_dense(call->in[1], PL_BOOL, dy->ndim, dy->shape, &scratch, &m));
  int64_t need;
  PlStatus st = enough(call->name, m, dy->numel, dsrc->numel, &need);
  if (st == PL_OK) st = plk_nd_zero(dsrc->data, (size_t)dsrc->numel * esize_of(dsrc));
  if (st == PL_OK) pairs(m, dy->numel, need, dy->data, dsrc->data, esize_of(dy), true);
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

/* The places of `need` trues of a row of n along the last dim, whose other places are coord. */
static void nonzero_row(const uint8_t *m, int64_t n, int64_t need, int nd, const int64_t *coord, int64_t base, int64_t *out) {
  if (nd == 1) EACH_TRUE(m, n, need, out[k] = i + base)
  else if (nd == 2) EACH_TRUE(m, n, need, (out[2 * k] = coord[0] + base, out[2 * k + 1] = i + base))
  else {
    for (int64_t k = 0; k < need; k++)
      for (int d = 0; d < nd - 1; d++) out[k * nd + d] = coord[d] + base;
    EACH_TRUE(m, n, need, out[k * nd + nd - 1] = i + base)
  }
}

static PlStatus nonzero(const PlkCall *call) {
  const PlArray *x = call->in[0];
  int64_t *out = call->out[0]->data, coord[PL_MAX_DIM], base = pl_attr_i(call->attrs, 0);
  const int64_t n = x->ndim ? x->shape[x->ndim - 1] : 1;
  void *scratch;
  const uint8_t *m;
  PL_TRY(truths(x, &scratch, &m));
  for (int64_t i = 0; i < x->numel && x->ndim; i += n) {
    const int64_t need = count_bytes(m + i, n);
    if (need == 0) continue;
    plk_nd_unravel(i, x->ndim, x->shape, coord);
    nonzero_row(m + i, n, need, x->ndim, coord, base, out);
    out += need * x->ndim;
  }
  plk_scratch_free(scratch);
  return PL_OK;
}
PlStatus plk_cpu_nonzero(const PlkCall *call) { return plk_dense_out(call, nonzero); }
