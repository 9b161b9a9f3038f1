/* SPDX-License-Identifier: MIT
 * Pooling (kernels/pool.h). Spatial dims are padded to three; each output position asks plk_pool_span() for its window in
 * each dim. Planes are independent and shared out between threads. Rows of some width go through isa/pool.c; the loops
 * here take every window by itself and are the measure of those. */
#include "kernels/pool.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/conv/pool.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/shape/strided_copy.h"

PlkSpan plk_pool_span(const PlkPool *p, int d, int64_t t) {
  PlkSpan s = {.step = 1};
  if (p->adaptive) {
    s.lo = t * p->in[d] / p->out[d];
    s.hi = ((t + 1) * p->in[d] + p->out[d] - 1) / p->out[d];
    s.count = s.full = s.hi - s.lo;
    return s;
  }
  const int64_t from = t * p->stride[d] - p->pad[d];
  s.step = p->dil[d];
  s.lo = from < 0 ? from + (-from + s.step - 1) / s.step * s.step : from;
  s.hi = plk_min64(from + (p->k[d] - 1) * s.step + 1, p->in[d]);
  s.count = s.hi > s.lo ? (s.hi - s.lo + s.step - 1) / s.step : 0;
  s.full = plk_min64(p->k[d], (p->in[d] + p->end[d] - from + s.step - 1) / s.step);
  return s;
}

/* Calls for each window of a plane: body sees o (output position) and z, y, x spans. */
#define WINDOWS(p, ...)                                   \
  for (int64_t oz = 0, o = 0; oz < (p)->out[0]; oz++) {   \
    const PlkSpan z = plk_pool_span(p, 0, oz);            \
    for (int64_t oy = 0; oy < (p)->out[1]; oy++) {        \
      const PlkSpan y = plk_pool_span(p, 1, oy);          \
      for (int64_t ox = 0; ox < (p)->out[2]; ox++, o++) { \
        const PlkSpan x = plk_pool_span(p, 2, ox);        \
        __VA_ARGS__                                       \
      }                                                   \
    }                                                     \
  }
/* Calls for each position `at` of the window. */
#define POSITIONS(p, ...)                                         \
  for (int64_t i = z.lo; i < z.hi; i += z.step)                   \
    for (int64_t j = y.lo; j < y.hi; j += y.step)                 \
      for (int64_t k = x.lo; k < x.hi; k += x.step) {             \
        const int64_t at = (i * (p)->in[1] + j) * (p)->in[2] + k; \
        __VA_ARGS__                                               \
      }

static double divisor(const PlkPool *p, const PlkSpan *z, const PlkSpan *y, const PlkSpan *x) {
  if (p->divisor) return (double)p->divisor;
  if (p->include_pad) return (double)(z->full * y->full * x->full);
  return (double)(z->count * y->count * x->count);
}

static bool empty(const PlkSpan *z, const PlkSpan *y, const PlkSpan *x) { return z->hi <= z->lo || y->hi <= y->lo || x->hi <= x->lo; }

/* One plane each. dst and src are y and x forward, dx and dy backward. */
#define PLANES(T, name)                                                                                                    \
  static void max_##name(const PlkPool *p, T *dst, const T *src, int64_t *index) {                                         \
    WINDOWS(p, {                                                                                                           \
      T best = -(T)INFINITY;                                                                                               \
      int64_t which = empty(&z, &y, &x) ? 0 : (z.lo * p->in[1] + y.lo) * p->in[2] + x.lo;                                  \
      POSITIONS(p, {                                                                                                       \
        const T v = src[at];                                                                                               \
        if (v > best || v != v) best = v, which = at;                                                                      \
      })                                                                                                                   \
      if (dst) dst[o] = best;                                                                                              \
      if (index) index[o] = which;                                                                                         \
    })                                                                                                                     \
  }                                                                                                                        \
  static void avg_##name(const PlkPool *p, T *dst, const T *src) {                                                         \
    WINDOWS(p, {                                                                                                           \
      T sum = 0;                                                                                                           \
      POSITIONS(p, { sum += src[at]; })                                                                                    \
      dst[o] = empty(&z, &y, &x) ? 0 : sum / (T)divisor(p, &z, &y, &x);                                                    \
    })                                                                                                                     \
  }                                                                                                                        \
  static void avg_back_##name(const PlkPool *p, T *dst, const T *src) {                                                    \
    memset(dst, 0, (size_t)p->insize * sizeof *dst);                                                                       \
    WINDOWS(p, {                                                                                                           \
      if (empty(&z, &y, &x)) continue;                                                                                     \
      const T part = src[o] / (T)divisor(p, &z, &y, &x);                                                                   \
      POSITIONS(p, { dst[at] += part; })                                                                                   \
    })                                                                                                                     \
  }                                                                                                                        \
  static PlStatus max_back_##name(const PlkPool *p, T *dst, const T *src, const int64_t *index) {                          \
    memset(dst, 0, (size_t)p->insize * sizeof *dst);                                                                       \
    for (int64_t o = 0; o < p->outsize; o++) {                                                                             \
      const int64_t at = index[o];                                                                                         \
      if (PL_UNLIKELY(at < 0 || at >= p->insize))                                                                          \
        PL_FAIL(PL_ERR_INDEX, "pooling index %lld outside a plane of %lld elements", (long long)at, (long long)p->insize); \
      dst[at] += src[o];                                                                                                   \
    }                                                                                                                      \
    return PL_OK;                                                                                                          \
  }
PLANES(float, f32)
PLANES(double, f64)

/* ---- by rows ----------------------------------------------------------------------------------------- */

PLK_ISA_DECLARE(const PlkPoolLoops, plk_pool_table);

size_t plk_pool_room(const PlkPool *p) {
  const int64_t slots = plk_pool_slots(p), rows = (slots + 2) * plk_pool_wide(p);
  return (size_t)(slots * 8 + (2 * p->stride[2] * plk_pool_phase(p) + 2 * rows + p->in[2]) * (int64_t)pl_dtype_size(p->dtype));
}

/* Rows of some width, windows that all have an element, places that fit. */
bool plk_pool_by_rows(const PlkPool *p) {
  if (p->adaptive || p->out[2] < 4 || p->stride[2] > 8 || p->insize >= INT32_MAX / 4) return false;
  if (p->k[2] > 64 || p->outsize / p->out[2] * p->out[2] != p->outsize) return false;
  for (int d = 0; d < 3; d++)
    for (int64_t t = 0; t < p->out[d]; t++) {
      const PlkSpan s = plk_pool_span(p, d, t);
      if (s.lo >= s.hi) return false;
    }
  return true;
}

/* The mean of all of each plane. */
static bool is_whole(const PlkPool *p) {
  bool yes = p->outsize == 1 && p->divisor == 0;
  for (int d = 0; d < 3; d++) yes = yes && (p->adaptive || (p->k[d] == p->in[d] && p->pad[d] == 0 && p->dil[d] == 1));
  return yes;
}

/* ---- planes in parallel -------------------------------------------------------------------------------- */

static void *plane_at(const PlkPool *p, void *base, int64_t elements) {
  return base ? (char *)base + (size_t)elements * pl_dtype_size(p->dtype) : NULL;
}

/* Room for the loops by rows, where they serve. */
static PlStatus room_for(const PlkPool *p, void **room) {
  *room = NULL;
  return plk_pool_by_rows(p) ? plk_scratch(plk_pool_room(p), room) : PL_OK;
}

/* t = v at the places, of a plane. */
static void take_tangent(const PlkPool *p, void *t, const void *v, const int64_t *index) {
  if (p->dtype == PL_F64)
    for (int64_t o = 0; o < p->outsize; o++) ((double *)t)[o] = ((const double *)v)[index[o]];
  else
    for (int64_t o = 0; o < p->outsize; o++) ((float *)t)[o] = ((const float *)v)[index[o]];
}

static PlStatus max_body(void *ctx, int64_t begin, int64_t end) {
  const PlkPool *p = ctx;
  const PlkPoolLoops *l = &PLK_ISA_PICK(plk_pool_table);
  void *room, *places = NULL; /* of one plane, where nobody else wants them */
  PL_TRY(room_for(p, &room));
  const bool pairs = p->t && !p->index && p->dtype == PL_F32 && room && plk_pool_two_by_two(p);
  if (p->t && !p->index && !pairs) {
    PlStatus s = plk_scratch((size_t)p->outsize * sizeof(int64_t), &places);
    if (s != PL_OK) {
      plk_scratch_free(room);
      return s;
    }
  }
  for (int64_t n = begin; n < end; n++) {
    const void *src = plane_at(p, p->x, n * p->insize);
    void *dst = plane_at(p, p->y, n * p->outsize);
    int64_t *index = p->index ? p->index + n * p->outsize : places;
    void *const t = plane_at(p, p->t, n * p->outsize);
    const void *v = plane_at(p, (void *)(uintptr_t)p->v, n * p->insize);
    if (pairs) {
      l->pairs_f32(p, dst, src, t, v);
      continue;
    }
    if (p->dtype == PL_F64) room ? l->max_f64(p, dst, src, index, room, n == begin) : max_f64(p, dst, src, index);
    else room ? l->max_f32(p, dst, src, index, room, n == begin) : max_f32(p, dst, src, index);
    if (t) take_tangent(p, t, v, index);
  }
  plk_scratch_free(places);
  plk_scratch_free(room);
  return PL_OK;
}

PLK_ISA_DECLARE(const PlkRowSums, plk_row_sums);
static void means(const PlkPool *p, int64_t begin, int64_t end) {
  const PlkRowSums *l = &PLK_ISA_PICK(plk_row_sums);
  const double size = (double)p->insize;
  double sum[64];
  for (int64_t at = begin; at < end; at += 64) {
    const int64_t n = plk_min64(end - at, 64);
    const void *src = plane_at(p, p->x, at * p->insize);
    (p->dtype == PL_F32 ? l->f32 : l->f64)(src, p->insize, p->insize, n, sum);
    for (int64_t i = 0; i < n; i++)
      if (p->dtype == PL_F32) ((float *)p->y)[at + i] = (float)(sum[i] / size);
      else ((double *)p->y)[at + i] = sum[i] / size;
  }
}

static PlStatus avg_body(void *ctx, int64_t begin, int64_t end) {
  const PlkPool *p = ctx;
  const PlkPoolLoops *l = &PLK_ISA_PICK(plk_pool_table);
  if (is_whole(p)) {
    means(p, begin, end);
    return PL_OK;
  }
  void *room;
  PL_TRY(room_for(p, &room));
  for (int64_t n = begin; n < end; n++) {
    void *dst = plane_at(p, p->y, n * p->outsize), *src = plane_at(p, p->x, n * p->insize);
    if (p->dtype == PL_F64) room ? l->avg_f64(p, dst, src, room, n == begin) : avg_f64(p, dst, src);
    else room ? l->avg_f32(p, dst, src, room, n == begin) : avg_f32(p, dst, src);
  }
  plk_scratch_free(room);
  return PL_OK;
}

static PlStatus avg_back_body(void *ctx, int64_t begin, int64_t end) {
  const PlkPool *p = ctx;
  const PlkPoolLoops *l = &PLK_ISA_PICK(plk_pool_table);
  void *room;
  PL_TRY(room_for(p, &room));
  for (int64_t n = begin; n < end; n++) {
    void *dst = plane_at(p, p->x, n * p->insize), *src = plane_at(p, p->y, n * p->outsize);
    if (p->dtype == PL_F64) room ? l->avg_back_f64(p, dst, src, room, n == begin) : avg_back_f64(p, dst, src);
    else room ? l->avg_back_f32(p, dst, src, room, n == begin) : avg_back_f32(p, dst, src);
  }
  plk_scratch_free(room);
  return PL_OK;
}

static PlStatus max_back_body(void *ctx, int64_t begin, int64_t end) {
  const PlkPool *p = ctx;
  for (int64_t n = begin; n < end; n++) {
    void *dst = plane_at(p, p->x, n * p->insize), *src = plane_at(p, p->y, n * p->outsize);
    const int64_t *index = p->index + n * p->outsize;
    PL_TRY(p->dtype == PL_F64 ? max_back_f64(p, dst, src, index) : max_back_f32(p, dst, src, index));
  }
  return PL_OK;
}

static PlStatus over_planes(PlkPool *p, PlkBody body) {
  const int64_t work = plk_max64(1, plk_max64(p->insize, p->outsize));
  return plk_parallel(p->planes, plk_max64(1, PLK_GRAIN / work), body, p);
}

/* ---- calls --------------------------------------------------------------------------------------------- */

/* Adaptive windows of one size are ordinary ones. */
static void even_windows(PlkPool *p) {
  bool even = p->adaptive;
  for (int d = 0; d < 3; d++) even = even && p->out[d] > 0 && p->in[d] > 0 && p->in[d] % p->out[d] == 0;
  if (!even) return;
  p->adaptive = false;
  for (int d = 0; d < 3; d++) p->k[d] = p->stride[d] = p->in[d] / p->out[d];
}

/* How attributes read (kernels/pool.h): the one with dilations. */
enum { MAX = 3, AVG = 6 };

/* attrs NULL: adaptive. */
static void describe(PlkPool *p, const PlAttrs *attrs, int dilation, const PlArray *x, const PlArray *y) {
  memset(p, 0, sizeof *p);
  const int nd = attrs ? pl_attr_n(attrs, 0) : x->ndim - 2;
  p->adaptive = attrs == NULL;
  p->dtype = (PlDtype)x->dtype;
  p->insize = p->outsize = 1;
  for (int d = 0; d < 3; d++) {
    const int i = d - (3 - nd);
    p->in[d] = p->out[d] = p->k[d] = p->stride[d] = p->dil[d] = 1;
    if (i < 0) continue;
    p->in[d] = x->shape[x->ndim - nd + i];
    p->out[d] = y->shape[y->ndim - nd + i];
    p->insize *= p->in[d], p->outsize *= p->out[d];
    if (!attrs) continue;
    p->k[d] = pl_attr_list(attrs, 0)[i];
    p->stride[d] = pl_attr_list(attrs, 1)[i];
    p->pad[d] = pl_attr_list(attrs, 2)[i];
    p->end[d] = pl_attr_list(attrs, 2)[pl_attr_n(attrs, 2) > nd ? nd + i : i];
    p->dil[d] = pl_attr_list(attrs, dilation)[i];
  }
  p->planes = 1;
  for (int i = 0; i < x->ndim - nd; i++) p->planes *= x->shape[i];
  even_windows(p);
  if (attrs && dilation == AVG) {
    p->include_pad = pl_attr_i(attrs, 3) != 0;
    p->divisor = pl_attr_has(attrs, 5) ? pl_attr_i(attrs, 5) : 0;
  }
  p->x = x->data, p->y = y->data;
}

static PlStatus convert(void *dst, PlDtype to, const void *src, PlDtype from, int64_t n) {
  PlkNd walk = {.n = 0};
  plk_nd_dim(&walk, n, 1, 1);
  return plk_nd_cast(dst, to, src, from, &walk);
}

/* Planes of f16 and bf16, a few at a time in f32. */
typedef struct Halves {
  const PlkPool *p;
  PlkBody body;
  bool back; /* p->x is written, else p->y */
  int64_t group;
} Halves;

static PlStatus halves_group(const Halves *h, int64_t from, int64_t n, float *x, float *y) {
  const PlkPool *p = h->p;
  PlkPool few = *p;
  few.dtype = PL_F32, few.planes = n;
  few.x = x, few.y = p->y ? y : NULL, few.index = p->index ? p->index + from * p->outsize : NULL;
  void *const px = plane_at(p, p->x, from * p->insize), *const py = plane_at(p, p->y, from * p->outsize);
  PL_TRY(h->back ? convert(y, PL_F32, py, p->dtype, n * p->outsize) : convert(x, PL_F32, px, p->dtype, n * p->insize));
  PL_TRY(h->body(&few, 0, n));
  if (h->back) return convert(px, p->dtype, x, PL_F32, n * p->insize);
  return py ? convert(py, p->dtype, y, PL_F32, n * p->outsize) : PL_OK;
}

static PlStatus halves_body(void *ctx, int64_t begin, int64_t end) {
  const Halves *h = ctx;
  const int64_t x = h->group * h->p->insize;
  void *mem;
  PL_TRY(plk_scratch((size_t)(x + h->group * h->p->outsize) * sizeof(float), &mem));
  PlStatus s = PL_OK;
  for (int64_t n = begin; n < end && s == PL_OK; n += h->group) s = halves_group(h, n, plk_min64(h->group, end - n), mem, (float *)mem + x);
  plk_scratch_free(mem);
  return s;
}

/* Runs the body over all planes. `back`: p->x is written, else p->y. */
static PlStatus run(PlkPool *p, PlkBody body, bool back) {
  enum { GROUP = 1 << 14 }; /* elements of x and y in f32, which stay in a core's cache */
  if (!pl_is_float(p->dtype)) PL_FAIL(PL_ERR_DTYPE, "pooling takes floats, got %s", pl_dtype_name(p->dtype));
  if (p->planes == 0 || (back ? p->insize : p->outsize) == 0) return PL_OK;
  if (p->dtype == PL_F32 || p->dtype == PL_F64) return over_planes(p, body);
  const int64_t work = plk_max64(1, plk_max64(p->insize, p->outsize)), block = plk_max64(1, PLK_GRAIN / work);
  Halves h = {.p = p, .body = body, .back = back};
  h.group = plk_min64(plk_min64(block, p->planes), plk_max64(1, GROUP / work));
  return plk_parallel(p->planes, block, halves_body, &h);
}

static PlStatus run_max(const PlkCall *call, const PlAttrs *attrs) {
  PlkPool p;
  PlArray *y = call->out[0], *index = call->nout > 1 ? call->out[1] : NULL;
  if (!y && !index) return PL_OK;
  describe(&p, attrs, MAX, call->in[0], y ? y : index);
  p.y = y ? y->data : NULL;
  p.index = index ? index->data : NULL;
  return run(&p, max_body, false);
}

PlStatus plk_cpu_max_pool(const PlkCall *call) { return run_max(call, call->attrs); }
PlStatus plk_cpu_adaptive_max_pool(const PlkCall *call) { return run_max(call, NULL); }
PlStatus plk_cpu_max_pool_with_tangent(const PlkCall *call) {
  PlkPool p;
  describe(&p, call->attrs, MAX, call->in[0], call->out[0]);
  p.v = call->in[1]->data, p.t = call->out[2]->data;
  p.index = call->out[1] ? call->out[1]->data : NULL;
  return run(&p, max_body, false);
}

PlStatus plk_cpu_max_pool_bwd(const PlkCall *call) {
  PlkPool p;
  const PlAttrs *a = call->attrs && call->attrs->nval > 3 ? call->attrs : NULL;
  describe(&p, a, MAX, call->out[0], call->in[0]);
  p.index = call->in[1]->data;
  return run(&p, max_back_body, true);
}

PlStatus plk_cpu_avg_pool(const PlkCall *call) {
  PlkPool p;
  describe(&p, call->attrs, AVG, call->in[0], call->out[0]);
  return run(&p, avg_body, false);
}

PlStatus plk_cpu_avg_pool_bwd(const PlkCall *call) {
  PlkPool p;
  describe(&p, call->attrs, AVG, call->out[0], call->in[0]);
  return run(&p, avg_back_body, true);
}

PlStatus plk_cpu_adaptive_avg_pool(const PlkCall *call) {
  PlkPool p;
  describe(&p, NULL, 0, call->in[0], call->out[0]);
  return run(&p, avg_body, false);
}

PlStatus plk_cpu_adaptive_avg_pool_bwd(const PlkCall *call) {
  PlkPool p;
  describe(&p, NULL, 0, call->out[0], call->in[0]);
  return run(&p, avg_back_body, true);
}
