/* SPDX-License-Identifier: MIT
 * Fills and number lines. Values are computed in double (integers in int64) and rounded once. */
#include "kernels/create.h"

#include <math.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/shape/strided_copy.h"
#include "kernels/random.h"

PlStatus plk_cpu_zeros(const PlkCall *call) {
  PlArray *y = call->out[0];
  const uint64_t zero = 0;
  if (y->contiguous) return plk_nd_zero(y->data, (size_t)y->numel * pl_dtype_size((PlDtype)y->dtype));
  return plk_nd_fill(y, &zero);
}

PlStatus plk_cpu_full(const PlkCall *call) {
  uint64_t value = 0;
  plk_nd_attr(&value, (PlDtype)call->out[0]->dtype, call->attrs, call->code);
  return plk_nd_fill(call->out[0], &value);
}

PlStatus plk_cpu_ones(const PlkCall *call) {
  uint64_t value = 0;
  const int64_t one = 1;
  plk_nd_store_i64(&value, (PlDtype)call->out[0]->dtype, &one, 1, 1);
  return plk_nd_fill(call->out[0], &value);
}

PlStatus plk_cpu_eye(const PlkCall *call) {
  PlArray *y = call->out[0];
  uint64_t value = 0;
  const int64_t one = 1, n = plk_min64(y->shape[0], y->shape[1]);
  PL_TRY(plk_cpu_zeros(call));
  plk_nd_store_i64(&value, (PlDtype)y->dtype, &one, 1, 1);
  PlkNd w = {0};
  plk_nd_dim(&w, n, y->strides[0] + y->strides[1], 0);
  return plk_nd_copy(y->data, &value, &w, pl_dtype_size((PlDtype)y->dtype));
}

/* ---- number lines ------------------------------------------------------------------------------------- */

enum { BLOCK = 512 };
typedef enum LineKind { LINE_INT, LINE_FLOAT, LINE_SPACE, LINE_LOG } LineKind;

typedef struct Line {
  PlArray *y;
  LineKind kind;
  int64_t istart, istep, n;
  double start, end, step, base;
} Line;

/* Both ends come out exact: the second half counts from the end. */
static double space_at(const Line *l, int64_t i) {
  return i < l->n / 2 ? l->start + (double)i * l->step : l->end - (double)(l->n - 1 - i) * l->step;
}

static PlStatus line_body(void *ctx, int64_t begin, int64_t end) {
  const Line *l = ctx;
  const PlDtype t = (PlDtype)l->y->dtype;
  const size_t esize = pl_dtype_size(t);
  union {
    double f[BLOCK];
    int64_t i[BLOCK];
  } v;
  for (int64_t at = begin; at < end; at += BLOCK) {
    int64_t n = plk_min64(BLOCK, end - at);
    void *to = plk_at(l->y->data, at, esize);
    switch (l->kind) {
    case LINE_INT:
      for (int64_t i = 0; i < n; i++) v.i[i] = (int64_t)((uint64_t)l->istart + (uint64_t)(at + i) * (uint64_t)l->istep);
      plk_nd_store_i64(to, t, v.i, n, 1);
      continue;
    case LINE_FLOAT:
      for (int64_t i = 0; i < n; i++) v.f[i] = l->start + (double)(at + i) * l->step;
      break;
    case LINE_SPACE:
      for (int64_t i = 0; i < n; i++) v.f[i] = space_at(l, at + i);
      break;
    case LINE_LOG:
      for (int64_t i = 0; i < n; i++) v.f[i] = pow(l->base, space_at(l, at + i));
      break;
    }
    plk_nd_store_f64(to, t, v.f, n, 1);
  }
  return PL_OK;
}

static PlStatus line_run(Line *l) { return plk_parallel(l->y->numel, PLK_GRAIN, line_body, l); }

static double number(const PlAttrs *a, int k) { return (a->isint >> k) & 1 ? (double)a->v[k].i : a->v[k].f; }

PlStatus plk_cpu_linear_fill(const PlkCall *call) {
  const PlAttrs *a = call->attrs;
  bool whole = ((a->isint >> 1) & 1) && ((a->isint >> 2) & 1);
  Line l = {.y = call->out[0],
            .kind = whole ? LINE_INT : LINE_FLOAT,
            .istart = a->v[1].i,
            .istep = a->v[2].i,
            .start = number(a, 1),
            .step = number(a, 2)};
  return line_run(&l);
}

static Line space(const PlkCall *call) {
  const PlAttrs *a = call->attrs;
  Line l = {.y = call->out[0], .kind = LINE_SPACE, .start = pl_attr_f(a, 0), .end = pl_attr_f(a, 1), .n = call->out[0]->numel};
  if (l.n == 1) l.end = l.start;
  l.step = l.n > 1 ? (l.end - l.start) / (double)(l.n - 1) : 0.0;
  return l;
}

PlStatus plk_cpu_linspace(const PlkCall *call) {
  Line l = space(call);
  return line_run(&l);
}

PlStatus plk_cpu_logspace(const PlkCall *call) {
  Line l = space(call);
  l.kind = LINE_LOG;
  l.base = pl_attr_f(call->attrs, 3);
  return line_run(&l);
}

/* ---- layers over the random kernels ---------------------------------------------------------------------- */

static void add_base(PlArray *y, int64_t base) {
  int64_t *v = y->data;
  if (base)
    for (int64_t i = 0; i < y->numel; i++) v[i] += base;
}

PlStatus plk_cpu_randperm_based(const PlkCall *call) {
  PL_TRY(plk_cpu_randperm(call));
  add_base(call->out[0], pl_attr_i(call->attrs, 1));
  return PL_OK;
}

PlStatus plk_cpu_multinomial_based(const PlkCall *call) {
  PL_TRY(plk_cpu_multinomial(call));
  add_base(call->out[0], pl_attr_i(call->attrs, 2));
  return PL_OK;
}

PlStatus plk_cpu_bernoulli_fill(const PlkCall *call) {
  PlkCall plain = *call;
  const PlArray *none[1] = {NULL};
  plain.nin = 0;
  plain.in = none;
  return plk_cpu_bernoulli(&plain);
}

PlStatus plk_cpu_bernoulli_like(const PlkCall *call) {
  return pl_attr_has(call->attrs, 0) ? plk_cpu_bernoulli_fill(call) : plk_cpu_bernoulli(call);
}

typedef struct Drop {
  const PlkCall *call;
  double scale;
} Drop;

static PlStatus drop_body(void *ctx, int64_t begin, int64_t end) {
  const Drop *d = ctx;
  const uint8_t *m = d->call->in[1]->data;
  const float s = (float)d->scale;
  const void *in = d->call->in[0]->data;
  void *out = d->call->out[0]->data;
#define DROP(T, EXPR)                                                     \
  {                                                                       \
    const T *dy = in;                                                     \
    T *dx = out;                                                          \
    for (int64_t i = begin; i < end; i++) dx[i] = (T)(m[i] ? (EXPR) : 0); \
  }                                                                       \
  break;
  switch (d->call->out[0]->dtype) {
  case PL_F32: DROP(float, dy[i] * s)
  case PL_F64: DROP(double, dy[i] * d->scale)
  case PL_F16: DROP(uint16_t, plk_f32_to_f16(plk_f16_to_f32(dy[i]) * s))
  default: DROP(uint16_t, plk_f32_to_bf16(plk_bf16_to_f32(dy[i]) * s))
  }
#undef DROP
  return PL_OK;
}

PlStatus plk_cpu_dropout_bwd(const PlkCall *call) {
  double p = pl_attr_f(call->attrs, 0);
  Drop d = {call, p < 1.0 ? 1.0 / (1.0 - p) : 0.0};
  return plk_parallel(call->out[0]->numel, PLK_GRAIN, drop_body, &d);
}
