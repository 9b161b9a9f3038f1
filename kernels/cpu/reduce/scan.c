/* SPDX-License-Identifier: MIT
 * Running sums, products, maxima and log-sum-exps along one dim, and their gradients. Each row is walked in
 * order by one thread; floats accumulate in double. */

#include <math.h>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/sizes.h"
#include "kernels/reduce.h"

typedef struct Scan {
  int64_t n, base;
  int code, from, to; /* from, to: dtypes of x and y */
  PlkComp comp;
} Scan;

static Scan scan_of(const PlkCall *c, const PlArray *x) { return (Scan){.n = plk_dim_size(x, pl_attr_i(c->attrs, 0)), .code = c->code}; }
static PlkRows rows_of(const PlkCall *c, const PlArray *x, Scan *s, PlStatus (*body)(void *, int64_t, void *const *)) {
  int64_t dim = pl_attr_i(c->attrs, 0);
  return (PlkRows){.outer = plk_outer(x, dim), .inner = plk_inner(x, dim), .body = body, .ctx = s};
}

/* ---- sums and products --------------------------------------------------------------------------
 * A row in pieces, from its end where the sum runs backwards; `a` is what the pieces before it came to. */

enum { POLLED = 1 << 20 }; /* elements between two looks at Ctrl-C */

static double scan_f64(int code, const double *x, double *y, int64_t n, double a) {
  switch (code) {
  case PLK_S_CUMSUM:
    for (int64_t i = 0; i < n; i++) y[i] = a += x[i];
    break;
  case PLK_S_CUMSUM_REV:
    for (int64_t i = n; i-- > 0;) y[i] = a += x[i];
    break;
  case PLK_S_CUMPROD:
    for (int64_t i = 0; i < n; i++) y[i] = a *= x[i];
    break;
  default: /* log(e^a + e^x) = max + log1p(e^(min - max)); infinities and NaN pass through the sum */
    for (int64_t i = 0; i < n; i++) {
      double hi = a > x[i] ? a : x[i], lo = a > x[i] ? x[i] : a;
      if (a != a || x[i] != x[i]) a = a + x[i];
      else a = isinf(hi) ? hi : hi + log1p(exp(lo - hi));
      y[i] = a;
    }
  }
  return a;
}

static double scan_f32(int code, const float *x, float *y, int64_t n, double a) {
  if (code == PLK_S_CUMSUM)
    for (int64_t i = 0; i < n; i++) a += (double)x[i], y[i] = (float)a;
  else
    for (int64_t i = n; i-- > 0;) a += (double)x[i], y[i] = (float)a;
  return a;
}

static uint64_t scan_i64(int code, const int64_t *x, int64_t *y, int64_t n, uint64_t a) { /* wraps */
  if (code == PLK_S_CUMSUM)
    for (int64_t i = 0; i < n; i++) y[i] = (int64_t)(a += (uint64_t)x[i]);
  else if (code == PLK_S_CUMSUM_REV)
    for (int64_t i = n; i-- > 0;) y[i] = (int64_t)(a += (uint64_t)x[i]);
  else
    for (int64_t i = 0; i < n; i++) y[i] = (int64_t)(a *= (uint64_t)x[i]);
  return a;
}

static PlStatus scan_row(void *ctx, int64_t row, void *const *p) {
  (void)row;
  const Scan *s = ctx;
  _Alignas(64) char from[PLK_PIECE_BYTES], to[PLK_PIECE_BYTES];
  double a = s->code == PLK_S_CUMPROD ? 1 : s->code == PLK_S_LOGCUMSUMEXP ? -(double)INFINITY : 0;
  uint64_t whole = s->code == PLK_S_CUMPROD;
  for (int64_t done = 0; done < s->n; done += PLK_PIECE) {
    const int64_t n = plk_piece_size(done, s->n), at = s->code == PLK_S_CUMSUM_REV ? s->n - done - n : done;
    const void *x = plk_piece(s->comp, p[0], s->from, at, n, from);
    void *y = plk_piece_out(s->comp, p[1], s->to, at, to);
    if (s->comp == PLK_CI64) whole = scan_i64(s->code, x, y, n, whole);
    else if (s->comp == PLK_CF32) a = scan_f32(s->code, x, y, n, a);
    else a = scan_f64(s->code, x, y, n, a);
    plk_piece_put(s->comp, y, p[1], s->to, at, n);
    if ((done & (POLLED - 1)) == POLLED - PLK_PIECE) PL_TRY(plk_poll());
  }
  return PL_OK;
}

/* Sums and products of rows that lie one behind the other, several at a time: each is a chain, in which an element waits for the one
 * before, so that one row alone leaves most of the processor idle. The same steps, the same bits. */
enum { ROWS = 4 };
typedef struct Chains {
  int code;
  int64_t n, rows;
  const void *x;
  void *y;
} Chains;

#define CHAIN(at, STEP)                \
  for (int k = 0; k < ROWS; k++) {     \
    a[k] STEP(double) x[k * n + (at)]; \
    y[k * n + (at)] = (T)a[k];         \
  }
#define CHAINS(TYPE, name)                                                                                                       \
  static PlStatus name(const Chains *c, const TYPE *x, TYPE *y) {                                                                \
    typedef TYPE T;                                                                                                              \
    const int64_t n = c->n;                                                                                                      \
    double a[ROWS];                                                                                                              \
    for (int k = 0; k < ROWS; k++) a[k] = c->code == PLK_S_CUMPROD;                                                              \
    for (int64_t done = 0; done < n; done += PLK_GRAIN) {                                                                        \
      const int64_t end = n - done < PLK_GRAIN ? n : done + PLK_GRAIN;                                                           \
      if (c->code == PLK_S_CUMSUM)                                                                                               \
        for (int64_t i = done; i < end; i++) CHAIN(i, +=)                                                                        \
      else if (c->code == PLK_S_CUMSUM_REV)                                                                                      \
        for (int64_t i = done; i < end; i++) CHAIN(n - 1 - i, +=)                                                                \
      else                                                                                                                       \
        for (int64_t i = done; i < end; i++) CHAIN(i, *=)                                                                        \
      PL_TRY(plk_poll());                                                                                                        \
    }                                                                                                                            \
    return PL_OK;                                                                                                                \
  }                                                                                                                              \
  static PlStatus name##_body(void *ctx, int64_t begin, int64_t end) {                                                           \
    const Chains *c = ctx;                                                                                                       \
    for (int64_t b = begin; b < end; b++) PL_TRY(name(c, (const TYPE *)c->x + b * ROWS * c->n, (TYPE *)c->y + b * ROWS * c->n)); \
    return PL_OK;                                                                                                                \
  }
CHAINS(float, chains_f32)
CHAINS(double, chains_f64)

/* Columns of contiguous arrays side by side, tile by tile: the same steps of each, the same bits. */
enum { WIDTH = 512 };
typedef struct Columns {
  int code;
  int64_t n, inner, tiles;
  const void *x;
  void *y;
} Columns;

#define COLUMN_STEP(OP)             \
  for (int64_t k = 0; k < w; k++) { \
    a[k] = a[k] OP(double) p[k];    \
    q[k] = (T)a[k];                 \
  }
#define COLUMNS(TYPE, name)                                                                              \
  static PlStatus name(void *ctx, int64_t begin, int64_t end) {                                          \
    typedef TYPE T;                                                                                      \
    const Columns *c = ctx;                                                                              \
    for (int64_t it = begin; it < end; it++) {                                                           \
      const int64_t from = it % c->tiles * WIDTH, w = c->inner - from < WIDTH ? c->inner - from : WIDTH; \
      double a[WIDTH];                                                                                   \
      for (int64_t k = 0; k < w; k++) a[k] = c->code == PLK_S_CUMPROD;                                   \
      for (int64_t i = 0; i < c->n; i++) {                                                               \
        const int64_t row = it / c->tiles * c->n + (c->code == PLK_S_CUMSUM_REV ? c->n - 1 - i : i);     \
        const T *p = (const T *)c->x + row * c->inner + from;                                            \
        T *q = (T *)c->y + row * c->inner + from;                                                        \
        if (c->code == PLK_S_CUMPROD) COLUMN_STEP(*)                                                     \
        else COLUMN_STEP(+)                                                                              \
        if ((i & 0xfff) == 0xfff) PL_TRY(plk_poll());                                                    \
      }                                                                                                  \
    }                                                                                                    \
    return PL_OK;                                                                                        \
  }
COLUMNS(float, columns_f32)
COLUMNS(double, columns_f64)

static bool plain(const PlkCall *c) {
  const PlArray *x = c->in[0], *y = c->out[0];
  return x->dtype == y->dtype && (x->dtype == PL_F32 || x->dtype == PL_F64) && x->contiguous && y->contiguous &&
         c->code != PLK_S_LOGCUMSUMEXP && x->numel > 0;
}

static PlStatus scan_columns(const PlkCall *c, const PlkRows *r, int64_t n) {
  Columns q = {
      .code = c->code, .n = n, .inner = r->inner, .tiles = (r->inner + WIDTH - 1) / WIDTH, .x = c->in[0]->data, .y = c->out[0]->data};
  const int64_t work = n * (r->inner < WIDTH ? r->inner : WIDTH);
  return plk_parallel(r->outer * q.tiles, plk_max64(1, PLK_GRAIN / work), c->in[0]->dtype == PL_F32 ? columns_f32 : columns_f64, &q);
}

/* How many rows were done. */
static PlStatus scan_chains(const PlkCall *c, const PlkRows *r, int64_t n, int64_t *done) {
  const PlArray *x = c->in[0];
  PlArray *y = c->out[0];
  *done = 0;
  if (r->inner != 1 || !plain(c)) return PL_OK;
  Chains q = {.code = c->code, .n = n, .x = x->data, .y = y->data};
  *done = r->outer / ROWS * ROWS;
  return plk_parallel(r->outer / ROWS, plk_max64(1, PLK_GRAIN / (ROWS * n)), x->dtype == PL_F32 ? chains_f32_body : chains_f64_body, &q);
}

PlStatus plk_cpu_scan(const PlkCall *c) {
  const PlArray *x = c->in[0];
  Scan s = scan_of(c, x);
  bool sum = c->code == PLK_S_CUMSUM || c->code == PLK_S_CUMSUM_REV;
  s.comp = plk_comp(c->out[0]->dtype), s.from = x->dtype, s.to = c->out[0]->dtype;
  if (s.comp == PLK_CF32 && !sum) s.comp = PLK_CF64;
  PlkRows r = rows_of(c, x, &s, scan_row);
  if (r.inner >= 4 && plain(c)) return scan_columns(c, &r, s.n);
  int64_t done;
  PL_TRY(scan_chains(c, &r, s.n, &done));
  PlArray rest = *x, to = *c->out[0];
  if (done) {
    const size_t bytes = (size_t)(done * s.n) * pl_dtype_size((PlDtype)x->dtype);
    rest.data = (char *)rest.data + bytes, to.data = (char *)to.data + bytes;
    r.outer -= done;
    if (r.outer == 0) return PL_OK;
  }
  r.arg[r.narg++] = plk_row_arg(&rest, s.n, PLK_CRAW, false);
  r.arg[r.narg++] = plk_row_arg(&to, s.n, PLK_CRAW, true);
  return plk_rows(&r);
}

/* ---- maxima: the last index among equals; NaN, once met, stays ---------------------------------------- */

#define CUMEXTREME(T, name)                                                                     \
  static PlStatus name(void *ctx, int64_t row, void *const *p) {                                \
    (void)row;                                                                                  \
    const Scan *s = ctx;                                                                        \
    _Alignas(64) char from[PLK_PIECE_BYTES], to[PLK_PIECE_BYTES];                               \
    int64_t *place = p[2], best = 0;                                                            \
    T b = 0;                                                                                    \
    const bool max = s->code == PLK_S_CUMMAX;                                                   \
    for (int64_t at = 0; at < s->n; at += PLK_PIECE) {                                          \
      const int64_t n = plk_piece_size(at, s->n);                                               \
      const T *x = plk_piece(s->comp, p[0], s->from, at, n, from);                              \
      T *y = p[1] ? plk_piece_out(s->comp, p[1], s->from, at, to) : (T *)to;                    \
      for (int64_t i = 0; i < n; i++) {                                                         \
        const T v = x[i];                                                                       \
        if (at + i == 0 || v != v || (b == b && (max ? v >= b : v <= b))) best = at + i, b = v; \
        y[i] = b;                                                                               \
        if (place) place[at + i] = best + s->base;                                              \
      }                                                                                         \
      if (p[1]) plk_piece_put(s->comp, y, p[1], s->from, at, n);                                \
      if ((at & (POLLED - 1)) == POLLED - PLK_PIECE) PL_TRY(plk_poll());                        \
    }                                                                                           \
    return PL_OK;                                                                               \
  }
CUMEXTREME(float, cumextreme_f32)
CUMEXTREME(double, cumextreme_f64)
CUMEXTREME(int64_t, cumextreme_i64)

PlStatus plk_cpu_cumextreme(const PlkCall *c) {
  const PlArray *x = c->in[0];
  Scan s = scan_of(c, x);
  s.comp = plk_comp(x->dtype), s.from = x->dtype;
  s.base = pl_attr_i(c->attrs, 1);
  PlkRows r = rows_of(c, x, &s, s.comp == PLK_CI64 ? cumextreme_i64 : s.comp == PLK_CF32 ? cumextreme_f32 : cumextreme_f64);
  r.arg[r.narg++] = plk_row_arg(x, s.n, PLK_CRAW, false);
  r.arg[r.narg++] = plk_row_arg(c->out[0], s.n, PLK_CRAW, true);
  r.arg[r.narg++] = plk_row_arg(c->out[1], s.n, PLK_CI64, true);
  return plk_rows(&r);
}

/* ---- gradients ------------------------------------------------------------------------------------------
 * cumprod: dx_j = L_j S_j with L_j the product of x before j and S_j = dy_j + x_(j+1) S_(j+1).
 * Of that in turn, with v the gradient of dx: T_i = x_i T_(i-1) + v_i L_i is the gradient of dy; the
 * gradient of x follows by running the recurrences of T and L backwards:
 *   aT_i = dy_i + x_(i+1) aT_(i+1),  aL_i = v_i aT_i + x_i aL_(i+1),  result_i = T_(i-1) aT_i + L_i aL_(i+1). */

/* With infinities or NaN, as PyTorch has it: dx_j = sum over i >= j of dy_i y_i / x_j up to the first zero,
 * nothing beyond it. z: that zero's place, or n. */
static void cumprod_bwd_wild(const double *dy, const double *x, double *dx, int64_t n, int64_t z) {
  double y = 1, s = 0;
  for (int64_t j = 0; j < z; j++) y *= x[j], dx[j] = dy[j] * y;
  for (int64_t j = z; j-- > 0;) {
    s += dx[j];
    dx[j] = s / x[j];
  }
  if (z == n) return;
  s = 0;
  for (int64_t i = n; i-- > z;) {
    dx[i] = 0;
    s = dy[i] + (i + 1 < n ? x[i + 1] * s : 0);
  }
  dx[z] = y * s;
}

static PlStatus cumprod_bwd_row(void *ctx, int64_t row, void *const *p) {
  (void)row;
  int64_t n = ((const Scan *)ctx)->n, z = 0;
  const double *dy = p[0], *x = p[1];
  double *dx = p[2], l = 1, s = 0;
  bool finite = true;
  while (z < n && x[z] != 0) z++;
  for (int64_t j = 0; j < n; j++) finite &= isfinite(x[j]) != 0;
  if (!finite && n > 1) {
    cumprod_bwd_wild(dy, x, dx, n, z);
    return PL_OK;
  }
  for (int64_t j = 0; j < n; j++) dx[j] = l, l *= x[j];
  for (int64_t j = n; j-- > 0;) {
    s = dy[j] + (j + 1 < n ? x[j + 1] * s : 0);
    dx[j] *= s;
  }
  return PL_OK;
}

PlStatus plk_cpu_cumprod_bwd(const PlkCall *c) {
  Scan s = scan_of(c, c->in[1]);
  PlkRows r = rows_of(c, c->in[1], &s, cumprod_bwd_row);
  r.arg[r.narg++] = plk_row_arg(c->in[0], s.n, PLK_CF64, false);
  r.arg[r.narg++] = plk_row_arg(c->in[1], s.n, PLK_CF64, false);
  r.arg[r.narg++] = plk_row_arg(c->out[0], s.n, PLK_CF64, true);
  return plk_rows(&r);
}

static PlStatus cumprod_bwd2_row(void *ctx, int64_t row, void *const *p) {
  (void)row;
  int64_t n = ((const Scan *)ctx)->n;
  const double *dy = p[0], *x = p[1], *v = p[2];
  double *ddy = p[3], *dx = p[4], *t = p[5], *l = t + n, a = 1, b = 0;
  for (int64_t i = 0; i < n; i++) {
    l[i] = a;
    t[i] = b = x[i] * b + v[i] * a;
    a *= x[i];
  }
  if (ddy)
    for (int64_t i = 0; i < n; i++) ddy[i] = t[i];
  if (!dx) return PL_OK;
  double at = 0, al = 0;
  for (int64_t i = n; i-- > 0;) {
    at = dy[i] + (i + 1 < n ? x[i + 1] * at : 0);
    dx[i] = (i > 0 ? t[i - 1] * at : 0) + l[i] * al;
    al = v[i] * at + x[i] * al;
  }
  return PL_OK;
}

PlStatus plk_cpu_cumprod_bwd2(const PlkCall *c) {
  Scan s = scan_of(c, c->in[1]);
  PlkRows r = rows_of(c, c->in[1], &s, cumprod_bwd2_row);
  for (int i = 0; i < 3; i++) r.arg[r.narg++] = plk_row_arg(c->in[i], s.n, PLK_CF64, false);
  for (int i = 0; i < 2; i++) r.arg[r.narg++] = plk_row_arg(c->out[i], s.n, PLK_CF64, true);
  r.temp = 2 * (size_t)s.n * sizeof(double);
  return plk_rows(&r);
}

/* e^(y_i) of logcumsumexp, y_i the running log-sum-exp, is c e^m with m the greatest element so far: y itself, rounded to its dtype,
 * would show in every quotient where it is far from 0. Infinite m: c counts. */
typedef struct Running {
  double m, c;
} Running;
static Running running(Running r, double x, bool first) {
  if (first) return (Running){x, 1};
  if (x != x || r.m != r.m) return (Running){NAN, NAN};
  if (x == r.m) return (Running){x, r.c + 1};
  return x > r.m ? (Running){x, r.c * exp(r.m - x) + 1} : (Running){r.m, r.c + exp(x - r.m)};
}
/* e^(x - y), NaN where both are the same infinity, and e^(y - y') of a later y', 1 there. */
static double part(double x, Running y) { return exp(x - y.m) / y.c; }
static double rise(Running y, Running later) {
  if (y.m != later.m) return exp(y.m - later.m) * (y.c / later.c);
  return isfinite(y.m) ? y.c / later.c : 1;
}

/* dx_j = sum over i >= j of dy_i e^(x_j - y_i) = e^(x_j - y_j) A_j, A_j = dy_j + e^(y_j - y_(j+1)) A_(j+1);
 * y never falls, so no factor exceeds 1. */
static PlStatus logcumsumexp_bwd_row(void *ctx, int64_t row, void *const *p) {
  (void)row;
  int64_t n = ((const Scan *)ctx)->n;
  const double *dy = p[0], *x = p[1];
  double *dx = p[2], a = 0;
  Running *y = p[3];
  for (int64_t j = 0; j < n; j++) y[j] = running(j > 0 ? y[j - 1] : (Running){0}, x[j], j == 0);
  for (int64_t j = n; j-- > 0;) {
    double f = j + 1 < n ? rise(y[j], y[j + 1]) : 0;
    a = dy[j] + (f == 0 ? 0 : f * a);
    dx[j] = part(x[j], y[j]) * a;
  }
  return PL_OK;
}

/* t_i = sum over j <= i of v_j e^(x_j - y_i) = v_i e^(x_i - y_i) + e^(y_(i-1) - y_i) t_(i-1). */
static PlStatus logcumsumexp_tangent_row(void *ctx, int64_t row, void *const *p) {
  (void)row;
  int64_t n = ((const Scan *)ctx)->n;
  const double *v = p[0], *x = p[1];
  double *t = p[2], a = 0;
  Running y = {0}, before;
  for (int64_t i = 0; i < n; i++) {
    before = y, y = running(before, x[i], i == 0);
    double f = i > 0 ? rise(before, y) : 0;
    t[i] = a = v[i] * part(x[i], y) + (f == 0 ? 0 : f * a);
  }
  return PL_OK;
}

PlStatus plk_cpu_logcumsumexp_bwd(const PlkCall *c) {
  Scan s = scan_of(c, c->in[1]);
  PlkRows r = rows_of(c, c->in[1], &s, pl_attr_i(c->attrs, 1) ? logcumsumexp_tangent_row : logcumsumexp_bwd_row);
  for (int i = 0; i < 2; i++) r.arg[r.narg++] = plk_row_arg(c->in[i], s.n, PLK_CF64, false);
  r.arg[r.narg++] = plk_row_arg(c->out[0], s.n, PLK_CF64, true);
  r.temp = (size_t)s.n * sizeof(Running);
  return plk_rows(&r);
}
