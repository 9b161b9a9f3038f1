/* SPDX-License-Identifier: MIT
 * Writing single elements at positions along a dim: scatter, scatter_add, scatter_reduce, and gather's
 * adjoint. Threads share a dim other than the indexed one, so writes that meet one element stay in index
 * order. All arrays are contiguous here, but an index may repeat along dims (strides 0): whole rows then go to one place. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/index/rowmove.h"

enum { RUN = 128 }; /* elements of a row that one job takes at least */

typedef enum Mode { SET, ADD, MUL, MAX, MIN, TAKE, NMODE } Mode;

/* out[l·os + (v[l·vs] - base)·od] op= src[l·ss] for l < n. false: one of these is not a position below limit, and what is before it
 * was written. A branch that is never taken costs less here than a pass of its own. */
typedef bool (*Row)(void *out, int64_t os, int64_t od, const void *src, int64_t ss, const int64_t *v, int64_t vs, int64_t base,
                    uint64_t limit, int64_t n);

/* An index that was expanded, also where it was copied since: whole rows go to one place each. */
static bool one_place(const int64_t *v, int64_t vs, int64_t n) {
  int64_t other = 0;
  if (vs == 0) return true;
  if (n < 4 || v[n - 1] != v[0] || v[1] != v[0]) return false;
  for (int64_t l = 0; l < n; l++) other |= v[l] ^ v[0];
  return other == 0;
}

#define ARGS \
  void *out, int64_t os, int64_t od, const void *src, int64_t ss, const int64_t *v, int64_t vs, int64_t base, uint64_t limit, int64_t n
/* The position that l has, as `at`. */
#define POSITION(l)                                      \
  const uint64_t at = (uint64_t)(v[l]) - (uint64_t)base; \
  if (PL_UNLIKELY(at >= limit)) return false;

#define ROW(NAME, T, EXPR)                                                                  \
  static bool NAME(ARGS) {                                                                  \
    T *o = out;                                                                             \
    const T *s = src;                                                                       \
    if (os == 1 && ss == 1 && one_place(v, vs, n)) {                                        \
      POSITION(0)                                                                           \
      T *PL_RESTRICT p = o + (int64_t)at * od;                                              \
      for (int64_t l = 0; l < n; l++) {                                                     \
        T a = p[l], b = s[l];                                                               \
        (void)a;                                                                            \
        p[l] = EXPR;                                                                        \
      }                                                                                     \
      return true;                                                                          \
    }                                                                                       \
    if (os == 0 && od == 1 && ss == 1 && vs == 1) { /* along rows: nothing is multiplied */ \
      PLK_FOUR for (int64_t l = 0; l < n; l++) {                                            \
        POSITION(l)                                                                         \
        T *p = o + at, a = *p, b = s[l];                                                    \
        (void)a;                                                                            \
        *p = EXPR;                                                                          \
      }                                                                                     \
      return true;                                                                          \
    }                                                                                       \
    for (int64_t l = 0; l < n; l++) {                                                       \
      POSITION(l *vs)                                                                       \
      T *p = o + l * os + (int64_t)at * od, a = *p, b = s[l * ss];                          \
      (void)a;                                                                              \
      *p = EXPR;                                                                            \
    }                                                                                       \
    return true;                                                                            \
  }
ROW(set1, uint8_t, b)
ROW(set2, uint16_t, b)
ROW(set4, uint32_t, b)
ROW(set8, uint64_t, b)

/* The other way round: src[l·ss] = out[…], which becomes 0. */
#define TAKING(NAME, T)                                                                \
  static bool NAME(ARGS) {                                                             \
    T *o = out, *s = (T *)(uintptr_t)src;                                              \
    if (os == 1 && ss == 1 && one_place(v, vs, n)) {                                   \
      POSITION(0)                                                                      \
      T *p = o + (int64_t)at * od;                                                     \
      memcpy(s, p, (size_t)n * sizeof(T));                                             \
      memset(p, 0, (size_t)n * sizeof(T));                                             \
      return true;                                                                     \
    }                                                                                  \
    if (os == 0 && od == 1 && ss == -1 && vs == -1) { /* along rows, the last first */ \
      PLK_FOUR for (int64_t l = 0; l < n; l++) {                                       \
        POSITION(-l)                                                                   \
        s[-l] = o[at];                                                                 \
        o[at] = 0;                                                                     \
      }                                                                                \
      return true;                                                                     \
    }                                                                                  \
    for (int64_t l = 0; l < n; l++) {                                                  \
      POSITION(l *vs)                                                                  \
      T *p = o + l * os + (int64_t)at * od;                                            \
      s[l * ss] = *p;                                                                  \
      *p = 0;                                                                          \
    }                                                                                  \
    return true;                                                                       \
  }
TAKING(take1, uint8_t)
TAKING(take2, uint16_t)
TAKING(take4, uint32_t)
TAKING(take8, uint64_t)

#define H(x) plk_f16_to_f32(x)
#define B(x) plk_bf16_to_f32(x)
/* The larger (smaller) of two; NaN wins. */
#define FMAX(a, b) ((b) > (a) || isnan(b))
#define FMIN(a, b) ((b) < (a) || isnan(b))
#define FLOAT_ROWS(N, T, L, S)              \
  ROW(add_##N, T, S(L(a) + L(b)))           \
  ROW(mul_##N, T, S(L(a) * L(b)))           \
  ROW(max_##N, T, FMAX(L(a), L(b)) ? b : a) \
  ROW(min_##N, T, FMIN(L(a), L(b)) ? b : a)
#define INT_ROWS(N, T)                            \
  ROW(add_##N, T, (T)((uint64_t)a + (uint64_t)b)) \
  ROW(mul_##N, T, (T)((uint64_t)a * (uint64_t)b)) \
  ROW(max_##N, T, b > a ? b : a)                  \
  ROW(min_##N, T, b < a ? b : a)
#define SAME(x) (x)
FLOAT_ROWS(f32, float, SAME, SAME)
FLOAT_ROWS(f64, double, SAME, SAME)
FLOAT_ROWS(f16, uint16_t, H, plk_f32_to_f16)
FLOAT_ROWS(bf16, uint16_t, B, plk_f32_to_bf16)
INT_ROWS(i8, int8_t)
INT_ROWS(i16, int16_t)
INT_ROWS(i32, int32_t)
INT_ROWS(i64, int64_t)
INT_ROWS(u8, uint8_t)
ROW(or_, uint8_t, (uint8_t)(a | b))
ROW(and_, uint8_t, (uint8_t)((a) & (b)))

#define TABLE(M) \
  {              \
    M##_f32, M##_f64, M##_f16, M##_bf16, M##_i8, M##_i16, M##_i32, M##_i64, M##_u8
static const Row rows[NMODE][PL_NDTYPE] = {[SET] = {set4, set8, set2, set2, set1, set2, set4, set8, set1, set1},
                                           [TAKE] = {take4, take8, take2, take2, take1, take2, take4, take8, take1, take1},
                                           [ADD] = TABLE(add),
                                           or_},
                 [MUL] = TABLE(mul), and_
}
, [MAX] = TABLE(max), or_
}
, [MIN] = TABLE(min), and_
}
,
}
;
_Static_assert(PL_F32 == 0 && PL_F64 == 1 && PL_F16 == 2 && PL_BF16 == 3 && PL_I8 == 4 && PL_U8 == 8 && PL_BOOL == 9,
               "the row table follows PL_DTYPES");

typedef struct Scatter {
  int n, dim, part;                                                          /* part: the dim that threads share */
  int64_t shape[PL_MAX_DIM], os[PL_MAX_DIM], ss[PL_MAX_DIM], is[PL_MAX_DIM]; /* os[dim] = 0 */
  int64_t od, base;
  char *out;
  const char *src;
  const int64_t *v;
  size_t oesize, sesize;
  Row row;
  int64_t limit; /* values are checked as they are read, `bad` tells; 0: they were before */
  atomic_bool *bad;
} Scatter;

static PlStatus scatter_body(void *ctx, int64_t begin, int64_t end) {
  const Scatter *s = ctx;
  const int last = s->n - 1;
  const uint64_t limit = s->limit ? (uint64_t)s->limit : INT64_MAX;
  int64_t shape[PL_MAX_DIM], coord[PL_MAX_DIM] = {0}, o, r, i;
  memcpy(shape, s->shape, sizeof shape);
  shape[s->part] = end - begin;
  o = begin * s->os[s->part], r = begin * s->ss[s->part], i = begin * s->is[s->part];
  for (;;) {
    if (!s->row(s->out + o * (int64_t)s->oesize, s->os[last], s->od, s->src + r * (int64_t)s->sesize, s->ss[last], s->v + i, s->is[last],
                s->base, limit, shape[last])) {
      atomic_store(s->bad, true);
      return PL_OK;
    }
    int d = last - 1;
    for (; d >= 0; d--) {
      o += s->os[d], r += s->ss[d], i += s->is[d];
      if (++coord[d] < shape[d]) break;
      o -= coord[d] * s->os[d], r -= coord[d] * s->ss[d], i -= coord[d] * s->is[d];
      coord[d] = 0;
    }
    if (d < 0) return PL_OK;
  }
}

/* index and src walk index's shape; src NULL means one element at `scalar`. */
static Scatter scatter_plan(PlArray *out, const PlArray *index, const PlkIndex *iv, const int64_t *steps, const PlArray *src, int dim) {
  Scatter s = {.n = index->ndim ? index->ndim : 1,
               .dim = dim,
               .part = -1,
               .shape = {1},
               .os = {0},
               .ss = {0},
               .is = {1},
               .out = out->data,
               .v = iv->v,
               .base = iv->base};
  bool scalar = !src || (src->ndim == 0 && index->ndim > 0);
  s.src = src ? src->data : NULL;
  s.oesize = s.sesize = pl_dtype_size((PlDtype)out->dtype);
  for (int d = 0; d < index->ndim; d++) {
    s.shape[d] = index->shape[d];
    s.is[d] = steps[d];
    s.os[d] = d == dim || out->ndim == 0 ? 0 : out->strides[d];
    s.ss[d] = scalar || src->ndim == 0 ? 0 : src->strides[d];
    if (d != dim && (s.part < 0 || s.shape[d] > s.shape[s.part])) s.part = d;
  }
  s.od = out->ndim ? out->strides[dim] : 1;
  return s;
}

static PlStatus scatter_run(Scatter *s, const PlArray *index) {
  if (s->part < 0) {
    s->part = 0;
    return scatter_body(s, 0, s->shape[0]);
  }
  int64_t block = plk_max64(1, PLK_GRAIN / (index->numel / s->shape[s->part]));
  if (s->part == s->n - 1) block = plk_max64(block, RUN); /* whole lines */
  return plk_parallel(s->shape[s->part], block, scatter_body, s);
}

/* An index and how it is read: writes into a mere result (`fresh`) check values as they come, and begin anew where one is not a
 * position as it stands; what must stay as it was has them checked first. */
typedef struct Values {
  const PlkCall *call;
  const PlArray *index;
  int64_t limit, base;
  bool wrap, fresh;
} Values;
typedef PlStatus (*Write)(const Values *v, Scatter *s, const PlkIndex *iv, const int64_t *steps);

static PlStatus with_values(const Values *v, Write write) {
  const char *name = v->call->name;
  PlkIndex iv;
  int64_t steps[PL_MAX_DIM];
  PlStatus st;
  if (v->fresh && v->limit > 0) {
    atomic_bool bad = false;
    Scatter s = {.limit = v->limit, .bad = &bad};
    PL_TRY(plk_index_unchecked(name, v->index, v->base, &iv, steps));
    st = write(v, &s, &iv, steps);
    plk_index_free(&iv);
    if (st != PL_OK || !atomic_load(&bad)) return st;
  }
  Scatter s = {0};
  PL_TRY(plk_index_spread(name, v->index, v->limit, v->base, v->wrap, &iv, steps));
  st = write(v, &s, &iv, steps);
  plk_index_free(&iv);
  return st;
}

static PlStatus write_values(const Values *v, Scatter *s, const PlkIndex *iv, const int64_t *steps) {
  static const Mode modes[] = {SET, ADD, MUL}; /* attribute reduce: none, add, multiply */
  const PlkCall *call = v->call;
  PlArray *y = call->out[0];
  const int dim = (int)pl_attr_i(call->attrs, 0);
  PL_TRY(plk_start_from(call->in[0], y));
  if (v->index->numel == 0) return PL_OK;
  const Scatter how = *s;
  *s = scatter_plan(y, v->index, iv, steps, call->in[2], dim);
  s->limit = how.limit, s->bad = how.bad;
  s->row = rows[call->code == 1 ? ADD : modes[pl_attr_i(call->attrs, 2)]][y->dtype];
  return scatter_run(s, v->index);
}

static PlStatus scatter(const PlkCall *call) {
  const PlArray *x = call->in[0];
  const Values v = {.call = call,
                    .index = call->in[1],
                    .limit = x->ndim ? x->shape[pl_attr_i(call->attrs, 0)] : 1,
                    .base = pl_attr_i(call->attrs, 1),
                    .fresh = x->data != call->out[0]->data};
  return with_values(&v, write_values);
}
PlStatus plk_cpu_scatter(const PlkCall *call) {
  return (call->code == 1 || pl_attr_i(call->attrs, 2)) ? plk_wide_sums(call, scatter) : scatter(call);
}

static PlStatus add_values(const Values *v, Scatter *s, const PlkIndex *iv, const int64_t *steps) {
  PlArray *dx = v->call->out[0];
  PL_TRY(plk_nd_zero(dx->data, (size_t)dx->numel * pl_dtype_size((PlDtype)dx->dtype)));
  if (v->index->numel == 0) return PL_OK;
  const Scatter how = *s;
  *s = scatter_plan(dx, v->index, iv, steps, v->call->in[0], (int)pl_attr_i(v->call->attrs, 1));
  s->limit = how.limit, s->bad = how.bad;
  s->row = rows[ADD][dx->dtype];
  return scatter_run(s, v->index);
}

static PlStatus gather_bwd(const PlkCall *call) {
  const PlArray *dx = call->out[0];
  const Values v = {.call = call,
                    .index = call->in[1],
                    .limit = dx->ndim ? dx->shape[pl_attr_i(call->attrs, 1)] : 1,
                    .base = pl_attr_i(call->attrs, 2),
                    .wrap = true,
                    .fresh = true};
  return with_values(&v, add_values);
}
PlStatus plk_cpu_gather_bwd(const PlkCall *call) { return plk_wide_sums(call, gather_bwd); }

/* The steps along dim from the last one on: who finds a place that was taken finds zeros. */
static PlStatus take_values(const Values *v, Scatter *s, const PlkIndex *iv, const int64_t *steps) {
  PlArray *dx = v->call->out[0], *dsrc = v->call->out[1];
  const int dim = (int)pl_attr_i(v->call->attrs, 0);
  PL_TRY(plk_start_from(v->call->in[0], dx));
  if (v->index->numel == 0) return PL_OK;
  const Scatter how = *s;
  *s = scatter_plan(dx, v->index, iv, steps, dsrc, dim);
  s->limit = how.limit, s->bad = how.bad;
  s->row = rows[TAKE][dx->dtype];
  s->v += (s->shape[dim] - 1) * s->is[dim], s->src += (s->shape[dim] - 1) * s->ss[dim] * (int64_t)s->sesize;
  s->is[dim] = -s->is[dim], s->ss[dim] = -s->ss[dim];
  return scatter_run(s, v->index);
}

PlStatus plk_cpu_scatter_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0];
  const Values v = {.call = call,
                    .index = call->in[1],
                    .limit = dy->ndim ? dy->shape[pl_attr_i(call->attrs, 0)] : 1,
                    .base = pl_attr_i(call->attrs, 1),
                    .fresh = true};
  return with_values(&v, take_values);
}

/* ---- scatter_reduce ----------------------------------------------------------------------------------------- */

enum { RED_SUM, RED_PROD, RED_MEAN, RED_AMAX, RED_AMIN };

/* What leaves the reduction's other operand alone, as an element of the dtype. */
static void identity(int64_t reduce, PlDtype t, void *out) {
  static const int bits[PL_NDTYPE] = {[PL_I8] = 7, [PL_I16] = 15, [PL_I32] = 31, [PL_I64] = 63};
  if (pl_is_float(t)) {
    double v = reduce == RED_PROD ? 1.0 : reduce == RED_AMAX ? -INFINITY : reduce == RED_AMIN ? INFINITY : 0.0;
    plk_nd_store_f64(out, t, &v, 1, 1);
    return;
  }
  int64_t top = bits[t] ? (int64_t)(((uint64_t)1 << bits[t]) - 1) : t == PL_U8 ? 255 : 1;
  int64_t v = reduce == RED_PROD ? 1 : reduce == RED_AMAX ? (bits[t] ? -top - 1 : 0) : reduce == RED_AMIN ? top : 0;
  plk_nd_store_i64(out, t, &v, 1, 1);
}

/* y /= max(count, 1); integers round down. */
static void divide_counts(PlArray *y, const int64_t *count) {
  for (int64_t i = 0; i < y->numel; i++) {
    if (count[i] <= 1) continue;
    void *p = plk_at(y->data, i, pl_dtype_size((PlDtype)y->dtype));
    if (pl_is_float((PlDtype)y->dtype)) {
      double v;
      plk_nd_load_f64(&v, p, (PlDtype)y->dtype, 1, 1);
      v /= (double)count[i];
      plk_nd_store_f64(p, (PlDtype)y->dtype, &v, 1, 1);
    } else {
      int64_t v, q;
      plk_nd_load_i64(&v, p, (PlDtype)y->dtype, 1, 1);
      q = v / count[i];
      if (v % count[i] < 0) q--;
      plk_nd_store_i64(p, (PlDtype)y->dtype, &q, 1, 1);
    }
  }
}

/* How many are summed into each element of y; needs nothing of y, so that it is known before anything is written. */
static PlStatus mean_counts(const PlArray *y, const PlArray *index, const PlkIndex *iv, const int64_t *steps, int dim, bool include_self,
                            void **out) {
  const int64_t one = 1;
  void *mem;
  PL_TRY(plk_scratch((size_t)(y->numel + 1) * sizeof(int64_t), &mem));
  *out = mem;
  for (int64_t i = 0; i < y->numel; i++) ((int64_t *)mem)[i] = include_self;
  PlArray count = *y;
  count.data = mem;
  count.dtype = PL_I64;
  Scatter s = scatter_plan(&count, index, iv, steps, NULL, dim);
  s.src = (const char *)&one;
  s.row = rows[ADD][PL_I64];
  return scatter_run(&s, index);
}

static PlStatus scatter_reduce(const PlkCall *call) {
  static const Mode mode[] = {[RED_SUM] = ADD, [RED_PROD] = MUL, [RED_MEAN] = ADD, [RED_AMAX] = MAX, [RED_AMIN] = MIN};
  const PlArray *x = call->in[0], *index = call->in[1], *src = call->in[2];
  PlArray *y = call->out[0];
  const int dim = (int)pl_attr_i(call->attrs, 0);
  const int64_t reduce = pl_attr_i(call->attrs, 1);
  const bool self = pl_attr_i(call->attrs, 2) != 0;
  PlkIndex iv;
  int64_t steps[PL_MAX_DIM];
  if (index->numel == 0) return plk_start_from(x, y);
  PL_TRY(plk_index_spread(call->name, index, x->ndim ? x->shape[dim] : 1, pl_attr_i(call->attrs, 3), false, &iv, steps));
  void *counts = NULL;
  PlStatus st = reduce == RED_MEAN ? mean_counts(y, index, &iv, steps, dim, self, &counts) : PL_OK;
  if (st == PL_OK) st = plk_start_from(x, y);
  if (st == PL_OK && !self) { /* what is reduced into starts afresh */
    uint64_t start = 0;
    identity(reduce, (PlDtype)y->dtype, &start);
    Scatter s = scatter_plan(y, index, &iv, steps, NULL, dim);
    s.src = (const char *)&start;
    s.row = rows[SET][y->dtype];
    st = scatter_run(&s, index);
  }
  if (st == PL_OK) {
    Scatter s = scatter_plan(y, index, &iv, steps, src, dim);
    s.row = rows[mode[reduce]][y->dtype];
    st = scatter_run(&s, index);
  }
  if (st == PL_OK && counts) divide_counts(y, counts);
  plk_scratch_free(counts);
  plk_index_free(&iv);
  return st;
}
PlStatus plk_cpu_scatter_reduce(const PlkCall *call) {
  return (pl_attr_i(call->attrs, 1) <= RED_MEAN) ? plk_wide_sums(call, scatter_reduce) : scatter_reduce(call);
}
