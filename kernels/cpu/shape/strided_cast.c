/* SPDX-License-Identifier: MIT
 * Conversions between dtypes for strided windows, fills, and reading single numbers. Floats among themselves are an
 * elementwise cast; otherwise integers and bools go through int64, everything else through double, in blocks that stay in
 * the first-level cache. */
#include <math.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/shape/strided_copy.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

enum { BLOCK = 512, FEW = 32 /* elements that are not worth an elementwise call */ };

#define LOAD(T, EXPR)                 \
  {                                   \
    const T *s = src;                 \
    for (int64_t i = 0; i < n; i++) { \
      T x = s[i * stride];            \
      d[i] = EXPR;                    \
    }                                 \
  }                                   \
  break;
#define STORE(T, EXPR)                                    \
  {                                                       \
    T *d = dst;                                           \
    for (int64_t i = 0; i < n; i++) d[i * stride] = EXPR; \
  }                                                       \
  break;

/* Truncates toward zero; what does not fit saturates; NaN gives 0. */
static int64_t f64_to_i64(double x) {
  if (x >= 9223372036854775808.0) return INT64_MAX;
  if (x < -9223372036854775808.0) return INT64_MIN;
  return isnan(x) ? 0 : (int64_t)x;
}

/* The same for narrower integers. */
static int64_t f64_to_int(double x, int64_t least, int64_t most) {
  if (x >= (double)most) return most;
  if (x <= (double)least) return least;
  return isnan(x) ? 0 : (int64_t)x;
}

void plk_nd_load_f64(double *d, const void *src, PlDtype from, int64_t n, int64_t stride) {
  switch (from) {
  case PL_F32: LOAD(float, (double)x)
  case PL_F64: LOAD(double, x)
  case PL_F16: LOAD(uint16_t, (double)plk_f16_to_f32(x))
  case PL_BF16: LOAD(uint16_t, (double)plk_bf16_to_f32(x))
  case PL_I8: LOAD(int8_t, (double)x)
  case PL_I16: LOAD(int16_t, (double)x)
  case PL_I32: LOAD(int32_t, (double)x)
  case PL_I64: LOAD(int64_t, (double)x)
  default: LOAD(uint8_t, (double)x)
  }
}

void plk_nd_load_i64(int64_t *d, const void *src, PlDtype from, int64_t n, int64_t stride) {
  switch (from) {
  case PL_F32: LOAD(float, f64_to_i64((double)x))
  case PL_F64: LOAD(double, f64_to_i64(x))
  case PL_F16: LOAD(uint16_t, f64_to_i64((double)plk_f16_to_f32(x)))
  case PL_BF16: LOAD(uint16_t, f64_to_i64((double)plk_bf16_to_f32(x)))
  case PL_I8: LOAD(int8_t, x)
  case PL_I16: LOAD(int16_t, x)
  case PL_I32: LOAD(int32_t, x)
  case PL_I64: LOAD(int64_t, x)
  default: LOAD(uint8_t, x)
  }
}

void plk_nd_store_f64(void *dst, PlDtype to, const double *s, int64_t n, int64_t stride) {
  switch (to) {
  case PL_F32: STORE(float, (float)s[i])
  case PL_F64: STORE(double, s[i])
  case PL_F16: STORE(uint16_t, plk_f32_to_f16((float)s[i]))
  case PL_BF16: STORE(uint16_t, plk_f32_to_bf16((float)s[i]))
  case PL_I8: STORE(int8_t, (int8_t)f64_to_int(s[i], INT8_MIN, INT8_MAX))
  case PL_I16: STORE(int16_t, (int16_t)f64_to_int(s[i], INT16_MIN, INT16_MAX))
  case PL_I32: STORE(int32_t, (int32_t)f64_to_int(s[i], INT32_MIN, INT32_MAX))
  case PL_I64: STORE(int64_t, f64_to_i64(s[i]))
  case PL_BOOL: STORE(uint8_t, s[i] != 0.0)
  default: STORE(uint8_t, (uint8_t)f64_to_int(s[i], 0, UINT8_MAX))
  }
}

void plk_nd_store_i64(void *dst, PlDtype to, const int64_t *s, int64_t n, int64_t stride) {
  switch (to) {
  case PL_F32: STORE(float, (float)s[i])
  case PL_F64: STORE(double, (double)s[i])
  case PL_F16: STORE(uint16_t, plk_f32_to_f16((float)s[i]))
  case PL_BF16: STORE(uint16_t, plk_f32_to_bf16((float)s[i]))
  case PL_I8: STORE(int8_t, (int8_t)s[i])
  case PL_I16: STORE(int16_t, (int16_t)s[i])
  case PL_I32: STORE(int32_t, (int32_t)s[i])
  case PL_I64: STORE(int64_t, s[i])
  case PL_BOOL: STORE(uint8_t, s[i] != 0)
  default: STORE(uint8_t, (uint8_t)s[i])
  }
}

void plk_nd_attr(void *dst, PlDtype to, const PlAttrs *a, int k) {
  if ((a->isint >> k) & 1) plk_nd_store_i64(dst, to, &a->v[k].i, 1, 1);
  else plk_nd_store_f64(dst, to, &a->v[k].f, 1, 1);
}

/* ---- walks ---------------------------------------------------------------------------------------- */

typedef struct Cast {
  char *dst;
  const char *src;
  PlDtype to, from;
  PlkNd w;
} Cast;

static void cast_run(const Cast *c, int64_t d, int64_t s, int64_t n, int64_t ds, int64_t ss) {
  union {
    double f[BLOCK];
    int64_t i[BLOCK];
  } tmp;
  bool whole = !pl_is_float(c->from) && !pl_is_float(c->to);
  const int64_t de = (int64_t)pl_dtype_size(c->to), se = (int64_t)pl_dtype_size(c->from);
  for (int64_t at = 0; at < n; at += BLOCK) {
    int64_t m = plk_min64(BLOCK, n - at);
    char *to = c->dst + (d + at * ds) * de;
    const char *from = c->src + (s + at * ss) * se;
    if (whole) {
      plk_nd_load_i64(tmp.i, from, c->from, m, ss);
      plk_nd_store_i64(to, c->to, tmp.i, m, ds);
    } else if (c->from == PL_I64) { /* double would round twice */
      plk_nd_load_i64(tmp.i, from, c->from, m, ss);
      plk_nd_store_i64(to, c->to, tmp.i, m, ds);
    } else {
      plk_nd_load_f64(tmp.f, from, c->from, m, ss);
      plk_nd_store_f64(to, c->to, tmp.f, m, ds);
    }
  }
}

static PlStatus cast_body(void *ctx, int64_t begin, int64_t end) {
  const Cast *c = ctx;
  const PlkNd *w = &c->w;
  int last = w->n - 1;
  if (last == 0) {
    cast_run(c, begin * w->dst[0], begin * w->src[0], end - begin, w->dst[0], w->src[0]);
    return PL_OK;
  }
  for (int64_t row = begin; row < end; row++) {
    int64_t at[PLK_ND], d = 0, s = 0;
    plk_nd_unravel(row, last, w->shape, at);
    for (int k = 0; k < last; k++) d += at[k] * w->dst[k], s += at[k] * w->src[k];
    cast_run(c, d, s, w->shape[last], w->dst[last], w->src[last]);
  }
  return PL_OK;
}

static PlStatus cast_floats(const Cast *c) {
  const PlkNd *w = &c->w;
  int64_t numel = 1, strides[PLK_ND];
  plk_nd_strides(w->n, w->shape, strides);
  bool dense[2] = {true, true};
  for (int d = 0; d < w->n; d++) {
    numel *= w->shape[d];
    dense[0] = dense[0] && w->dst[d] == strides[d], dense[1] = dense[1] && w->src[d] == strides[d];
  }
  PlArray y = {.data = c->dst, .numel = numel, .shape = w->shape, .strides = w->dst, .dtype = (uint8_t)c->to, .ndim = (uint8_t)w->n};
  PlArray x = {.data = (void *)(uintptr_t)c->src, .numel = numel, .shape = w->shape, .strides = w->src, .dtype = (uint8_t)c->from};
  x.ndim = y.ndim;
  y.contiguous = dense[0], x.contiguous = dense[1];
  const PlkCall call = {
      .name = "cast", .code = PLK_EW_CAST, .nin = 1, .nout = 1, .in = (const PlArray *const[]){&x}, .out = (PlArray *const[]){&y}};
  return plk_cpu_elementwise(&call);
}

PlStatus plk_nd_cast(void *dst, PlDtype to, const void *src, PlDtype from, const PlkNd *walk) {
  if (to == from) return plk_nd_copy(dst, src, walk, pl_dtype_size(to));
  Cast c = {.dst = dst, .src = src, .to = to, .from = from};
  PlkNd *w = &c.w;
  int64_t rows = 1;
  for (int d = 0; d < walk->n; d++) { /* merges what is one run on both sides */
    if (walk->shape[d] == 0) return PL_OK;
    if (walk->shape[d] == 1) continue;
    int k = w->n - 1;
    if (k >= 0 && w->dst[k] == walk->dst[d] * walk->shape[d] && w->src[k] == walk->src[d] * walk->shape[d]) {
      w->shape[k] *= walk->shape[d];
      w->dst[k] = walk->dst[d];
      w->src[k] = walk->src[d];
    } else {
      plk_nd_dim(w, walk->shape[d], walk->dst[d], walk->src[d]);
    }
  }
  if (w->n == 0) plk_nd_dim(w, 1, 1, 1);
  const bool floats = pl_is_float(from) && pl_is_float(to) && w->n <= PL_MAX_DIM;
  if (floats && (w->n > 1 || w->shape[0] > FEW)) return cast_floats(&c);
  if (w->n == 1) return plk_parallel(w->shape[0], PLK_GRAIN, cast_body, &c);
  for (int d = 0; d + 1 < w->n; d++) rows *= w->shape[d];
  return plk_parallel(rows, plk_max64(1, PLK_GRAIN / w->shape[w->n - 1]), cast_body, &c);
}

static PlStatus zero_body(void *ctx, int64_t begin, int64_t end) {
  memset((char *)ctx + begin, 0, (size_t)(end - begin));
  return PL_OK;
}

PlStatus plk_nd_zero(void *dst, size_t bytes) {
  if (bytes <= 4 * PLK_GRAIN) {
    if (bytes) memset(dst, 0, bytes);
    return PL_OK;
  }
  return plk_parallel((int64_t)bytes, 4 * PLK_GRAIN, zero_body, dst);
}

PlStatus plk_nd_fill(const PlArray *a, const void *value) {
  PlkNd w = {0};
  for (int d = 0; d < a->ndim; d++) plk_nd_dim(&w, a->shape[d], a->strides[d], 0);
  return plk_nd_copy(a->data, value, &w, pl_dtype_size((PlDtype)a->dtype));
}

PlStatus plk_nd_dense(const PlArray *a, PlDtype to, int ndim, const int64_t *shape, void **scratch, const void **data) {
  bool same = a->contiguous && a->dtype == to && a->ndim == ndim;
  int64_t numel = 1, strides[PL_MAX_DIM];
  for (int d = 0; d < ndim; d++) {
    numel *= shape[d];
    same = same && a->shape[d] == shape[d];
  }
  *scratch = NULL;
  *data = a->data;
  if (same) return PL_OK;
  plk_nd_strides(ndim, shape, strides);
  PL_TRY(plk_scratch((size_t)plk_max64(numel, 1) * pl_dtype_size(to), scratch));
  PlArray dst = {
      .data = *scratch, .numel = numel, .shape = shape, .strides = strides, .dtype = (uint8_t)to, .ndim = (uint8_t)ndim, .contiguous = 1};
  PlkNd w;
  plk_nd_walk(&w, &dst, a);
  PlStatus st = plk_nd_cast(*scratch, to, a->data, (PlDtype)a->dtype, &w);
  if (st != PL_OK) {
    plk_scratch_free(*scratch);
    *scratch = NULL;
    return st;
  }
  *data = *scratch;
  return PL_OK;
}
