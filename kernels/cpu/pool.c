/* SPDX-License-Identifier: MIT
 * Pooling (kernels/pool.h). Spatial dims are padded to three; each output position asks
 * span() for its window in each dim. Planes are independent and shared out between
 * threads. The 2×2 window with stride 2 in f32 has vector code for each ISA level. */
#include "kernels/pool.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/moves.h"

typedef struct Pool {
  bool adaptive, include_pad;
  PlDtype dtype;
  int64_t planes, insize, outsize, divisor; /* divisor 0: the window's size */
  int64_t in[3], out[3], k[3], stride[3], pad[3], dil[3];
  void *x, *y; /* or dx, dy */
  int64_t *index;
} Pool;

/* One dim of a window: positions lo, lo + step … below hi; `full` counts padding too (but
 * not what lies beyond it, where ceil_mode may reach). */
typedef struct Span {
  int64_t lo, hi, step, full;
} Span;

static Span span(const Pool *p, int d, int64_t t) {
  Span s = {0, 0, 1, 0};
  if (p->adaptive) {
    s.lo = t * p->in[d] / p->out[d];
    s.hi = ((t + 1) * p->in[d] + p->out[d] - 1) / p->out[d];
    s.full = s.hi - s.lo;
    return s;
  }
  const int64_t from = t * p->stride[d] - p->pad[d];
  s.step = p->dil[d];
  s.lo = from < 0 ? from + (-from + s.step - 1) / s.step * s.step : from;
  s.hi = plk_min64(from + (p->k[d] - 1) * s.step + 1, p->in[d]);
  s.full = plk_min64(from + p->k[d], p->in[d] + p->pad[d]) - from;
  return s;
}

/* Calls for each window of a plane: body sees o (output position) and z, y, x spans. */
#define WINDOWS(p, ...)                                                                  \
  for (int64_t oz = 0, o = 0; oz < (p)->out[0]; oz++) {                                  \
    const Span z = span(p, 0, oz);                                                       \
    for (int64_t oy = 0; oy < (p)->out[1]; oy++) {                                       \
      const Span y = span(p, 1, oy);                                                     \
      for (int64_t ox = 0; ox < (p)->out[2]; ox++, o++) {                                \
        const Span x = span(p, 2, ox);                                                   \
        __VA_ARGS__                                                                      \
      }                                                                                  \
    }                                                                                    \
  }
/* Calls for each position `at` of the window. */
#define POSITIONS(p, ...)                                                                \
  for (int64_t i = z.lo; i < z.hi; i += z.step)                                          \
    for (int64_t j = y.lo; j < y.hi; j += y.step)                                        \
      for (int64_t k = x.lo; k < x.hi; k += x.step) {                                    \
        const int64_t at = (i * (p)->in[1] + j) * (p)->in[2] + k;                        \
        __VA_ARGS__                                                                      \
      }

static double divisor(const Pool *p, const Span *z, const Span *y, const Span *x) {
  if (p->divisor) return (double)p->divisor;
  if (p->include_pad) return (double)(z->full * y->full * x->full);
  return (double)((z->hi - z->lo) * (y->hi - y->lo) * (x->hi - x->lo));
}

static bool empty(const Span *z, const Span *y, const Span *x) {
  return z->hi <= z->lo || y->hi <= y->lo || x->hi <= x->lo;
}

/* One plane each. dst and src are y and x forward, dx and dy backward. */
#define PLANES(T, name)                                                                  \
  static void max_##name(const Pool *p, T *dst, const T *src, int64_t *index) {          \
    WINDOWS(p, {                                                                         \
      T best = -(T)INFINITY;                                                             \
      int64_t which =                                                                    \
          empty(&z, &y, &x) ? 0 : (z.lo * p->in[1] + y.lo) * p->in[2] + x.lo;            \
      POSITIONS(p, {                                                                     \
        const T v = src[at];                                                             \
        if (v > best || v != v) best = v, which = at;                                    \
      })                                                                                 \
      if (dst) dst[o] = best;                                                            \
      if (index) index[o] = which;                                                       \
    })                                                                                   \
  }                                                                                      \
  static void avg_##name(const Pool *p, T *dst, const T *src) {                          \
    if (p->adaptive && p->outsize == 1) {                                                \
      *dst = (T)(plk_reduce_loops()->sum_##name(src, p->insize) / (double)p->insize);    \
      return;                                                                            \
    }                                                                                    \
    WINDOWS(p, {                                                                         \
      T sum = 0;                                                                         \
      POSITIONS(p, { sum += src[at]; })                                                  \
      dst[o] = empty(&z, &y, &x) ? 0 : sum / (T)divisor(p, &z, &y, &x);                  \
    })                                                                                   \
  }                                                                                      \
  static void avg_back_##name(const Pool *p, T *dst, const T *src) {                     \
    memset(dst, 0, (size_t)p->insize * sizeof *dst);                                     \
    WINDOWS(p, {                                                                         \
      if (empty(&z, &y, &x)) continue;                                                   \
      const T part = src[o] / (T)divisor(p, &z, &y, &x);                                 \
      POSITIONS(p, { dst[at] += part; })                                                 \
    })                                                                                   \
  }                                                                                      \
  static PlStatus max_back_##name(const Pool *p, T *dst, const T *src,                   \
                                  const int64_t *index) {                                \
    memset(dst, 0, (size_t)p->insize * sizeof *dst);                                     \
    for (int64_t o = 0; o < p->outsize; o++) {                                           \
      const int64_t at = index[o];                                                       \
      if (PL_UNLIKELY(at < 0 || at >= p->insize))                                        \
        PL_FAIL(PL_ERR_INDEX, "pooling index %lld outside a plane of %lld elements",     \
                (long long)at, (long long)p->insize);                                    \
      dst[at] += src[o];                                                                 \
    }                                                                                    \
    return PL_OK;                                                                        \
  }
PLANES(float, f32)
PLANES(double, f64)

/* ---- 2×2, stride 2, f32 -------------------------------------------------------------------------------- */

typedef float F8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t I8 __attribute__((vector_size(32)));
typedef int64_t L8 __attribute__((vector_size(64), aligned(8), may_alias));
typedef float F4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef int64_t L4 __attribute__((vector_size(32), aligned(8), may_alias));

#define EVEN_8(u, v)              __builtin_shufflevector(u, v, 0, 2, 4, 6, 8, 10, 12, 14)
#define ODD_8(u, v)               __builtin_shufflevector(u, v, 1, 3, 5, 7, 9, 11, 13, 15)
#define EVEN_4(u, v)              __builtin_shufflevector(u, v, 0, 2, 4, 6)
#define ODD_4(u, v)               __builtin_shufflevector(u, v, 1, 3, 5, 7)
#define PICK(F, I, mask, yes, no) ((F)(((I)(yes) & (mask)) | ((I)(no) & ~(mask))))
/* The right one of a pair wins if greater or NaN, like a scan of the window in row-major
 * order. */
#define WINS(F, right, left) (((right) > (left)) | ((right) != (right)))

/* N outputs from column j on. */
#define STEP(N, F, I, L)                                                                 \
  {                                                                                      \
    const F a0 = *(const F *)(a + 2 * j), a1 = *(const F *)(a + 2 * j + N);              \
    const F b0 = *(const F *)(b + 2 * j), b1 = *(const F *)(b + 2 * j + N);              \
    const F v0 = EVEN_##N(a0, a1), v1 = ODD_##N(a0, a1);                                 \
    const F v2 = EVEN_##N(b0, b1), v3 = ODD_##N(b0, b1);                                 \
    const I t = WINS(F, v1, v0), u = WINS(F, v3, v2);                                    \
    const F top = PICK(F, I, t, v1, v0), low = PICK(F, I, u, v3, v2);                    \
    const I l = WINS(F, low, top);                                                       \
    I at = {0};                                                                          \
    for (int i = 0; i < N; i++) at[i] = 2 * i;                                           \
    at += base + 2 * j + PICK(I, I, l, W - u, -t); /* a mask that is set is -1 */        \
    *(F *)(d + j) = PICK(F, I, l, low, top);                                             \
    *(L *)(index + r * Wo + j) = __builtin_convertvector(at, L);                         \
  }

/* Vectors of eight, then of four, the last of which may overlap what is done; rows below
 * four outputs by the general code. */
static inline __attribute__((always_inline)) void
two_by_two(const Pool *p, float *dst, const float *src, int64_t *index) {
  const int32_t W = (int32_t)p->in[2], Wo = (int32_t)p->out[2];
  for (int64_t r = 0; r < p->out[1]; r++) {
    const float *a = src + 2 * r * W, *b = a + W;
    float *d = dst + r * Wo;
    const int32_t base = (int32_t)(2 * r) * W;
    int32_t j = 0;
    for (; j + 8 <= Wo; j += 8) STEP(8, F8, I8, L8)
    for (; j < Wo; j += 4) {
      if (j + 4 > Wo) j = Wo - 4;
      STEP(4, F4, I4, L4)
    }
  }
}

static void two_by_two_base(const Pool *p, float *d, const float *s, int64_t *i) {
  two_by_two(p, d, s, i);
}
#if defined(__x86_64__)
__attribute__((target("avx2"))) static void two_by_two_v3(const Pool *p, float *d,
                                                          const float *s, int64_t *i) {
  two_by_two(p, d, s, i);
}
__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw"))) static void
two_by_two_v4(const Pool *p, float *d, const float *s, int64_t *i) {
  two_by_two(p, d, s, i);
}
#endif

static bool is_two_by_two(const Pool *p) {
  bool yes = !p->adaptive && p->dtype == PL_F32 && p->y && p->index && p->in[0] == 1 &&
             p->k[0] == 1 && p->insize < INT32_MAX && p->out[0] == 1 && p->out[2] >= 4;
  for (int i = 1; i < 3; i++)
    yes = yes && p->k[i] == 2 && p->stride[i] == 2 && p->pad[i] == 0 && p->dil[i] == 1 &&
          2 * p->out[i] <= p->in[i];
  return yes;
}

/* ---- planes in parallel -------------------------------------------------------------------------------- */

static void *plane_at(const Pool *p, void *base, int64_t elements) {
  return base ? (char *)base + (size_t)elements * pl_dtype_size(p->dtype) : NULL;
}

static PlStatus max_body(void *ctx, int64_t begin, int64_t end) {
  const Pool *p = ctx;
  const char level = plk_isa()[1];
  const bool small = is_two_by_two(p);
  for (int64_t n = begin; n < end; n++) {
    const void *src = plane_at(p, p->x, n * p->insize);
    void *dst = plane_at(p, p->y, n * p->outsize);
    int64_t *index = p->index ? p->index + n * p->outsize : NULL;
    if (small) {
#if defined(__x86_64__)
      if (level == '4')
        two_by_two_v4(p, dst, src, index);
      else if (level == '3')
        two_by_two_v3(p, dst, src, index);
      else
#endif
        two_by_two_base(p, dst, src, index);
    } else if (p->dtype == PL_F64) {
      max_f64(p, dst, src, index);
    } else {
      max_f32(p, dst, src, index);
    }
  }
  (void)level;
  return PL_OK;
}

static PlStatus avg_body(void *ctx, int64_t begin, int64_t end) {
  const Pool *p = ctx;
  for (int64_t n = begin; n < end; n++) {
    void *dst = plane_at(p, p->y, n * p->outsize),
         *src = plane_at(p, p->x, n * p->insize);
    if (p->dtype == PL_F64)
      avg_f64(p, dst, src);
    else
      avg_f32(p, dst, src);
  }
  return PL_OK;
}

static PlStatus avg_back_body(void *ctx, int64_t begin, int64_t end) {
  const Pool *p = ctx;
  for (int64_t n = begin; n < end; n++) {
    void *dst = plane_at(p, p->x, n * p->insize),
         *src = plane_at(p, p->y, n * p->outsize);
    if (p->dtype == PL_F64)
      avg_back_f64(p, dst, src);
    else
      avg_back_f32(p, dst, src);
  }
  return PL_OK;
}

static PlStatus max_back_body(void *ctx, int64_t begin, int64_t end) {
  const Pool *p = ctx;
  for (int64_t n = begin; n < end; n++) {
    void *dst = plane_at(p, p->x, n * p->insize),
         *src = plane_at(p, p->y, n * p->outsize);
    const int64_t *index = p->index + n * p->outsize;
    PL_TRY(p->dtype == PL_F64 ? max_back_f64(p, dst, src, index)
                              : max_back_f32(p, dst, src, index));
  }
  return PL_OK;
}

static PlStatus over_planes(Pool *p, PlkBody body) {
  const int64_t work = plk_max64(1, plk_max64(p->insize, p->outsize));
  return plk_parallel(p->planes, plk_max64(1, PLK_GRAIN / work), body, p);
}

/* ---- calls --------------------------------------------------------------------------------------------- */

/* attrs NULL: adaptive. `lists` of kernel, stride, padding and, for max, dilation. */
static void describe(Pool *p, const PlAttrs *attrs, int lists, const PlArray *x,
                     const PlArray *y) {
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
    if (lists > 3) p->dil[d] = pl_attr_list(attrs, 3)[i];
  }
  p->planes = 1;
  for (int i = 0; i < x->ndim - nd; i++) p->planes *= x->shape[i];
  if (attrs && lists == 3) {
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

/* Runs the body over all planes; f16 and bf16 on f32 copies. `back`: p->x is written,
 * else p->y. */
static PlStatus run(Pool *p, PlkBody body, bool back) {
  const PlDtype half = p->dtype;
  if (!pl_is_float(half))
    PL_FAIL(PL_ERR_DTYPE, "pooling takes floats, got %s", pl_dtype_name(half));
  if (p->planes == 0 || (back ? p->insize : p->outsize) == 0) return PL_OK;
  if (half == PL_F32 || half == PL_F64) return over_planes(p, body);
  const int64_t n[2] = {p->planes * p->insize, p->planes * p->outsize};
  void *const data[2] = {p->x, p->y}, *mem[2] = {NULL, NULL};
  PlStatus s = PL_OK;
  for (int i = 0; i < 2 && s == PL_OK; i++) {
    s = plk_scratch((size_t)plk_max64(n[i], 1) * sizeof(float), &mem[i]);
    if (s == PL_OK && i == back) s = convert(mem[i], PL_F32, data[i], half, n[i]);
  }
  p->x = mem[0], p->y = mem[1], p->dtype = PL_F32;
  if (s == PL_OK) s = over_planes(p, body);
  if (s == PL_OK && data[!back])
    s = convert(data[!back], half, mem[!back], PL_F32, n[!back]);
  plk_scratch_free(mem[1]);
  plk_scratch_free(mem[0]);
  return s;
}

static PlStatus run_max(const PlkCall *call, const PlAttrs *attrs) {
  Pool p;
  PlArray *y = call->out[0], *index = call->nout > 1 ? call->out[1] : NULL;
  if (!y && !index) return PL_OK;
  describe(&p, attrs, 4, call->in[0], y ? y : index);
  p.y = y ? y->data : NULL;
  p.index = index ? index->data : NULL;
  return run(&p, max_body, false);
}

PlStatus plk_cpu_max_pool(const PlkCall *call) {
  return run_max(call, call->attrs);
}
PlStatus plk_cpu_adaptive_max_pool(const PlkCall *call) {
  return run_max(call, NULL);
}

PlStatus plk_cpu_max_pool_bwd(const PlkCall *call) {
  Pool p;
  const PlAttrs *a = call->attrs && call->attrs->nval > 3 ? call->attrs : NULL;
  describe(&p, a, 4, call->out[0], call->in[0]);
  p.index = call->in[1]->data;
  return run(&p, max_back_body, true);
}

PlStatus plk_cpu_avg_pool(const PlkCall *call) {
  Pool p;
  describe(&p, call->attrs, 3, call->in[0], call->out[0]);
  return run(&p, avg_body, false);
}

PlStatus plk_cpu_avg_pool_bwd(const PlkCall *call) {
  Pool p;
  describe(&p, call->attrs, 3, call->out[0], call->in[0]);
  return run(&p, avg_back_body, true);
}

PlStatus plk_cpu_adaptive_avg_pool(const PlkCall *call) {
  Pool p;
  describe(&p, NULL, 0, call->in[0], call->out[0]);
  return run(&p, avg_body, false);
}

PlStatus plk_cpu_adaptive_avg_pool_bwd(const PlkCall *call) {
  Pool p;
  describe(&p, NULL, 0, call->out[0], call->in[0]);
  return run(&p, avg_back_body, true);
}
