/* SPDX-License-Identifier: MIT
 * Inner loops of the optimizer steps, compiled once per ISA level. Every element is computed alone and the
 * sums use a fixed number of lanes, so all levels and all thread counts give the same bits. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/isa/optim_coded.h"
#include "kernels/cpu/optim/optim.h"

/* SGD (Sutskever et al. 2013, in PyTorch's form):
 *   g = ±grad + decay p;  b = momentum b + (1 - dampening) g  (first step: b = g);
 *   g = nesterov ? g + momentum b : b;  p = p - lr g */
#define SGD(T, name)                                                                                                                      \
  static inline __attribute__((always_inline)) void name##_loop(T *PL_RESTRICT p, const T *PL_RESTRICT grad, T *PL_RESTRICT b, int64_t n, \
                                                                const PlkSgd *o, bool decay, bool momentum, bool nesterov, bool first) {  \
    const T lr = (T)o->lr, mu = (T)o->momentum, damp = (T)(1 - o->dampening);                                                             \
    const T wd = (T)o->decay, sign = o->maximize ? (T)-1 : (T)1;                                                                          \
    for (int64_t i = 0; i < n; i++) {                                                                                                     \
      T g = sign * grad[i];                                                                                                               \
      if (decay) g = g + wd * p[i];                                                                                                       \
      if (momentum) {                                                                                                                     \
        T v = first ? g : mu * b[i] + damp * g;                                                                                           \
        b[i] = v;                                                                                                                         \
        g = nesterov ? g + mu * v : v;                                                                                                    \
      }                                                                                                                                   \
      p[i] = p[i] - lr * g;                                                                                                               \
    }                                                                                                                                     \
  }                                                                                                                                       \
  static void name(T *const *col, int64_t n, const PlkSgd *o) {                                                                           \
    T *p = col[0], *g = col[1];                                                                                                           \
    bool wd = o->decay != 0;                                                                                                              \
    if (o->momentum == 0) {                                                                                                               \
      if (wd) name##_loop(p, g, NULL, n, o, true, false, false, false);                                                                   \
      else name##_loop(p, g, NULL, n, o, false, false, false, false);                                                                     \
    } else if (o->first) {                                                                                                                \
      if (o->nesterov) name##_loop(p, g, col[2], n, o, wd, true, true, true);                                                             \
      else name##_loop(p, g, col[2], n, o, wd, true, false, true);                                                                        \
    } else if (o->nesterov) {                                                                                                             \
      name##_loop(p, g, col[2], n, o, wd, true, true, false);                                                                             \
    } else if (wd) {                                                                                                                      \
      name##_loop(p, g, col[2], n, o, true, true, false, false);                                                                          \
    } else {                                                                                                                              \
      name##_loop(p, g, col[2], n, o, false, true, false, false);                                                                         \
    }                                                                                                                                     \
  }
SGD(float, sgd_f32)
SGD(double, sgd_f64)

/* x / y of many x >= 0 by the same y, once = 1 / y: rounded as the division is, which takes as long as all else of a step (Markstein 1990;
 * the last correction begins within a unit of the quotient's last place, its remainder is exact, once is rounded to the nearest).
 * x is a root and 2^-60 <= y <= 1, so nothing leaves the range; an infinite x stays what it is. */
#if defined(__FP_FAST_FMAF) && defined(__FP_FAST_FMA)
enum { CAN_MULTIPLY = 1 };
#define OVER(T, FMA, MOST, name)                          \
  static inline T name(T x, T y, T once, bool multiply) { \
    const T q = x * once;                                 \
    const T near = FMA(FMA(-q, y, x), once, q);           \
    const T nearest = FMA(FMA(-near, y, x), once, near);  \
    return !multiply ? x / y : x <= (MOST) ? nearest : x; \
  }
#else
enum { CAN_MULTIPLY = 0 };
#define OVER(T, FMA, MOST, name) \
  static inline T name(T x, T y, T once, bool multiply) { return (void)once, (void)multiply, x / y; }
#endif
OVER(float, __builtin_fmaf, FLT_MAX, over_f32)
OVER(double, __builtin_fma, DBL_MAX, over_f64)

/* Adam (Kingma & Ba 2015), AdamW (Loshchilov & Hutter 2019), AMSGrad (Reddi et al. 2018):
 *   m = m + (1-β1)(g - m);  v = β2 v + (1-β2) g²;  u = amsgrad ? max(u, v) : v;
 *   p = p - lr/(1-β1^t) m / (sqrt(u)/sqrt(1-β2^t) + eps); decoupled decay first: p = p (1 - lr decay) */
#define ADAM(T, SQRT, OVER, name)                                                                                                \
  static inline __attribute__((always_inline)) void name##_loop(T *PL_RESTRICT p, const T *PL_RESTRICT grad, T *PL_RESTRICT m,   \
                                                                T *PL_RESTRICT v, T *PL_RESTRICT u, int64_t n, const PlkAdam *o, \
                                                                bool decay, bool decoupled, bool amsgrad, bool multiply) {       \
    const T c1 = (T)(1 - o->beta1), b2 = (T)o->beta2, c2 = (T)(1 - o->beta2);                                                    \
    const T step = (T)o->step_size, root = (T)o->root, once = 1 / root, eps = (T)o->eps;                                         \
    const T wd = (T)o->decay, keep = (T)(1 - o->lr * o->decay);                                                                  \
    const T sign = o->maximize ? (T)-1 : (T)1;                                                                                   \
    for (int64_t i = 0; i < n; i++) {                                                                                            \
      T g = sign * grad[i], x = p[i];                                                                                            \
      if (decay) {                                                                                                               \
        if (decoupled) x = x * keep;                                                                                             \
        else g = g + wd * x;                                                                                                     \
      }                                                                                                                          \
      T mi = m[i] + c1 * (g - m[i]);                                                                                             \
      T vi = b2 * v[i] + c2 * g * g;                                                                                             \
      m[i] = mi;                                                                                                                 \
      v[i] = vi;                                                                                                                 \
      if (amsgrad) {                                                                                                             \
        vi = u[i] > vi ? u[i] : vi;                                                                                              \
        u[i] = vi;                                                                                                               \
      }                                                                                                                          \
      p[i] = x - step * (mi / (OVER(SQRT(vi), root, once, multiply) + eps));                                                     \
    }                                                                                                                            \
  }                                                                                                                              \
  static void name(T *const *col, int64_t n, const PlkAdam *o) {                                                                 \
    T *p = col[0], *g = col[1], *m = col[2], *v = col[3];                                                                        \
    const bool multiply = CAN_MULTIPLY;                                                                                          \
    if (multiply && !((T)o->root >= (T)0x1p-60 && (T)o->root <= 1))                                                              \
      name##_loop(p, g, m, v, o->amsgrad ? col[4] : NULL, n, o, o->decay != 0, o->decoupled, o->amsgrad, false);                 \
    else if (o->amsgrad) name##_loop(p, g, m, v, col[4], n, o, o->decay != 0, o->decoupled, true, multiply);                     \
    else if (o->decay == 0) name##_loop(p, g, m, v, NULL, n, o, false, false, false, multiply);                                  \
    else if (o->decoupled) name##_loop(p, g, m, v, NULL, n, o, true, true, false, multiply);                                     \
    else name##_loop(p, g, m, v, NULL, n, o, true, false, false, multiply);                                                      \
  }
ADAM(float, sqrtf, over_f32, adam_f32)
ADAM(double, sqrt, over_f64, adam_f64)

/* RMSprop (Hinton 2012; centered: Graves 2013):
 *   s = alpha s + (1-alpha) g²;  centered: a = a + (1-alpha)(g - a), r = sqrt(s - a²), else r = sqrt(s);
 *   u = g / (r + eps);  with a buffer: b = momentum b + u, u = b;  p = p - lr u */
#define RMS(T, SQRT, name)                                                                                                             \
  static inline                                                                                                                        \
      __attribute__((always_inline)) void name##_loop(T *PL_RESTRICT p, const T *PL_RESTRICT grad, T *PL_RESTRICT s, T *PL_RESTRICT b, \
                                                      T *PL_RESTRICT a, int64_t n, const PlkRms *o, bool buffer, bool centered) {      \
    const T lr = (T)o->lr, keep = (T)o->alpha, fresh = (T)(1 - o->alpha), eps = (T)o->eps;                                             \
    const T wd = (T)o->decay, mu = (T)o->momentum, sign = o->maximize ? (T)-1 : (T)1;                                                  \
    const bool decay = o->decay != 0; /* 0 times an infinite parameter would be NaN */                                                 \
    for (int64_t i = 0; i < n; i++) {                                                                                                  \
      T g = sign * grad[i];                                                                                                            \
      if (decay) g = g + wd * p[i];                                                                                                    \
      T v = keep * s[i] + fresh * g * g;                                                                                               \
      s[i] = v;                                                                                                                        \
      if (centered) {                                                                                                                  \
        T m = a[i] + fresh * (g - a[i]);                                                                                               \
        a[i] = m;                                                                                                                      \
        v = v - m * m;                                                                                                                 \
      }                                                                                                                                \
      T u = g / (SQRT(v) + eps);                                                                                                       \
      if (buffer) {                                                                                                                    \
        u = mu * b[i] + u;                                                                                                             \
        b[i] = u;                                                                                                                      \
      }                                                                                                                                \
      p[i] = p[i] - lr * u;                                                                                                            \
    }                                                                                                                                  \
  }                                                                                                                                    \
  static void name(T *const *col, int64_t n, const PlkRms *o) {                                                                        \
    T *p = col[0], *g = col[1], *s = col[2];                                                                                           \
    if (o->buffer && o->centered) name##_loop(p, g, s, col[3], col[4], n, o, true, true);                                              \
    else if (o->buffer) name##_loop(p, g, s, col[3], NULL, n, o, true, false);                                                         \
    else if (o->centered) name##_loop(p, g, s, NULL, col[3], n, o, false, true);                                                       \
    else name##_loop(p, g, s, NULL, NULL, n, o, false, false);                                                                         \
  }
RMS(float, sqrtf, rms_f32)
RMS(double, sqrt, rms_f64)

/* Sixteen lanes whatever the vector width, then a fixed tree. */
enum { LANES = 16 };
static double lanes_joined(double *acc) {
  for (int w = LANES / 2; w; w /= 2)
    for (int j = 0; j < w; j++) acc[j] += acc[j + w];
  return acc[0];
}

/* The rules of kernels/optim_formulas.h: element i, with what it adds to the sums in S and U. */
#define RULE_ONE(T, READS, WRITES, S, U, ...)                                               \
  {                                                                                         \
    T x = xs[i], g = HAS(READS, G) ? sign * gs[i] : (T)0, a = HAS(READS, A) ? as[i] : (T)0; \
    T b = HAS(READS, B) ? bs[i] : (T)0, c = HAS(READS, C) ? cs[i] : (T)0, s = 0, t = 0;     \
    const T d = HAS(READS, D) ? ds[i] : (T)0;                                               \
    if (coupled) g = g + decay * x;                                                         \
    if (decoupled) x = x * decay;                                                           \
    __VA_ARGS__                                                                             \
    if (HAS(WRITES, X)) xs[i] = x;                                                          \
    if (HAS(WRITES, A)) as[i] = a;                                                          \
    if (HAS(WRITES, B)) bs[i] = b;                                                          \
    if (HAS(WRITES, C)) cs[i] = c;                                                          \
    S = s, U = t;                                                                           \
    (void)d, (void)c, (void)b, (void)g, (void)F;                                            \
  }
#define HAS(MASK, COLUMN) (((MASK) & (COLUMN)) != 0)

/* Sums are taken in f64, LANES elements at a time. */
#define RULE_LOOP(NAME, T, SFX, READS, WRITES, SUMS, ...)                                                                           \
  static inline __attribute__((always_inline)) void NAME##_##SFX##_loop(                                                            \
      T *PL_RESTRICT xs, const T *PL_RESTRICT gs, T *PL_RESTRICT as, T *PL_RESTRICT bs, T *PL_RESTRICT cs, const T *PL_RESTRICT ds, \
      int64_t n, const PlkFormula *o, const bool coupled, const bool decoupled, double *sums) {                                     \
    const T sign = o->maximize ? (T)-1 : (T)1, decay = (T)o->decay, F = (T)o->factor;                                               \
    T number[PLK_OPTIM_MOST], s1[LANES], s2[LANES];                                                                                 \
    for (int k = 0; k < PLK_OPTIM_MOST; k++) number[k] = (T)o->number[k];                                                           \
    int64_t i = 0;                                                                                                                  \
    if (SUMS) {                                                                                                                     \
      double all1[LANES] = {0}, all2[LANES] = {0};                                                                                  \
      while (i + LANES <= n) {                                                                                                      \
        for (int j = 0; j < LANES; j++, i++) RULE_ONE(T, READS, WRITES, s1[j], s2[j], __VA_ARGS__)                                  \
        for (int j = 0; j < LANES; j++) all1[j] += (double)s1[j], all2[j] += (double)s2[j];                                         \
      }                                                                                                                             \
      for (int j = 0; i < n; i++, j++) {                                                                                            \
        RULE_ONE(T, READS, WRITES, s1[0], s2[0], __VA_ARGS__)                                                                       \
        all1[j] += (double)s1[0], all2[j] += (double)s2[0];                                                                         \
      }                                                                                                                             \
      sums[0] += lanes_joined(all1), sums[1] += lanes_joined(all2);                                                                 \
    } else {                                                                                                                        \
      for (; i < n; i++) RULE_ONE(T, READS, WRITES, s1[0], s2[0], __VA_ARGS__)                                                      \
    }                                                                                                                               \
  }                                                                                                                                 \
  static void NAME##_##SFX(T *const *col, int64_t n, const PlkFormula *o, double *sums) {                                           \
    T *x = col[0], *g = col[1], *a = col[2], *b = col[3], *c = col[4], *d = col[5];                                                 \
    if (o->coupled) NAME##_##SFX##_loop(x, g, a, b, c, d, n, o, true, false, sums);                                                 \
    else if (o->decoupled) NAME##_##SFX##_loop(x, g, a, b, c, d, n, o, false, true, sums);                                          \
    else NAME##_##SFX##_loop(x, g, a, b, c, d, n, o, false, false, sums);                                                           \
  }
#define X                                                           PLK_OPTIM_X
#define G                                                           PLK_OPTIM_G
#define A                                                           PLK_OPTIM_A
#define B                                                           PLK_OPTIM_B
#define C                                                           PLK_OPTIM_C
#define D                                                           PLK_OPTIM_D
#define N(k)                                                        number[k]
#define T                                                           float
#define SQRT                                                        sqrtf
#define ABS                                                         fabsf
#define R(NAME, WIDTH, NUMBERS, SETTINGS, READS, WRITES, SUMS, ...) RULE_LOOP(NAME, float, f32, READS, WRITES, SUMS, __VA_ARGS__)
#include "kernels/optim_formulas.h"
#undef T
#undef SQRT
#undef ABS
#undef R
#define T                                                           double
#define SQRT                                                        sqrt
#define ABS                                                         fabs
#define R(NAME, WIDTH, NUMBERS, SETTINGS, READS, WRITES, SUMS, ...) RULE_LOOP(NAME, double, f64, READS, WRITES, SUMS, __VA_ARGS__)
#include "kernels/optim_formulas.h"
#undef T
#undef SQRT
#undef ABS
#undef R
#undef N
#undef X
#undef G
#undef A
#undef B
#undef C
#undef D

/* ---- states in fewer bits (kernels/optim_states.h) ----------------------------------------------------------------------- */

/* Elements that share numbers for their chances, and begin at a multiple of as many. */
enum { WHOLE = PLK_OPTIM_WHOLE, HALF = WHOLE / 2 };

/* WHOLE elements, of which `first` is the number of the first. */
static inline __attribute__((always_inline)) void store_whole(const float *PL_RESTRICT x, uint16_t *PL_RESTRICT y, uint32_t seed,
                                                              uint32_t first) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i times = _mm512_set1_epi32(PLK_ROUNDING_MIX);
  __m512i h = _mm512_add_epi32(_mm512_set1_epi32((int)(first / 2 * PLK_ROUNDING_STEP + seed)),
                               _mm512_mullo_epi32(lane, _mm512_set1_epi32(PLK_ROUNDING_STEP)));
  h = _mm512_mullo_epi32(_mm512_xor_si512(h, _mm512_srli_epi32(h, 16)), times);
  h = _mm512_mullo_epi32(_mm512_xor_si512(h, _mm512_srli_epi32(h, 16)), times);
  h = _mm512_xor_si512(h, _mm512_srli_epi32(h, 16));
  const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + HALF);
  enum { SPECIAL = 0x99 }; /* NaN, infinities; a constant without optimization, too */
  if (__builtin_expect((_mm512_fpclass_ps_mask(low, SPECIAL) | _mm512_fpclass_ps_mask(high, SPECIAL)) == 0, 1)) {
    const __m512i a = _mm512_add_epi32(_mm512_castps_si512(low), _mm512_and_si512(h, _mm512_set1_epi32(0xFFFF)));
    const __m512i b = _mm512_add_epi32(_mm512_castps_si512(high), _mm512_srli_epi32(h, 16));
    /* the upper halves of all numbers */
    const __m512i odd = _mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(0x00040004)), _mm512_set1_epi32(0x00030001));
    _mm512_storeu_si512((void *)y, _mm512_permutex2var_epi16(a, odd, b));
    return;
  }
#endif
  uint32_t h16[HALF], wide[WHOLE];
  /* loops that stay loops become vectors */
#pragma GCC unroll 1
  for (int j = 0; j < HALF; j++) h16[j] = plk_rounding_mixed(seed, first / 2 + (uint32_t)j);
#pragma GCC unroll 1
  for (int j = 0; j < HALF; j++) wide[j] = plk_bf16_by_chance_above(x[j], h16[j] & 0xFFFFu);
#pragma GCC unroll 1
  for (int j = 0; j < HALF; j++) wide[HALF + j] = plk_bf16_by_chance_above(x[HALF + j], h16[j] >> 16);
#pragma GCC unroll 1
  for (int j = 0; j < WHOLE; j++) y[j] = (uint16_t)(wide[j] >> 16);
}

static void store_bf16(const float *from, uint16_t *to, int64_t n, int64_t first, uint32_t seed) {
  const uint32_t at = (uint32_t)first;
  int64_t i = 0;
  for (; i < n && (at + (uint32_t)i) % WHOLE != 0; i++) to[i] = plk_bf16_by_chance(from[i], plk_rounding_bits(seed, at + (uint32_t)i));
  for (; i + WHOLE <= n; i += WHOLE) store_whole(from + i, to + i, seed, at + (uint32_t)i);
  for (; i < n; i++) to[i] = plk_bf16_by_chance(from[i], plk_rounding_bits(seed, at + (uint32_t)i));
}

static inline __attribute__((always_inline)) void load_whole(const uint16_t *PL_RESTRICT h, float *PL_RESTRICT x) {
  for (int j = 0; j < WHOLE; j++) x[j] = plk_bits_float((uint32_t)h[j] << 16);
}

/* Steps with states in bf16, of elements that begin and end at multiples of WHOLE: what is loaded, worked out and stored lies so close together
 * that the processor does all three at once. */
static inline __attribute__((always_inline)) void adam_bf16_loop(float *p, const float *g, uint16_t *m, uint16_t *v, int64_t n,
                                                                 int64_t first, const uint32_t *seed, const PlkAdam *o, bool decay,
                                                                 bool decoupled) {
  const bool multiply = CAN_MULTIPLY && (float)o->root >= 0x1p-60f && (float)o->root <= 1;
  for (int64_t i = 0; i < n; i += WHOLE) {
    float mean[WHOLE], square[WHOLE];
    load_whole(m + i, mean);
    load_whole(v + i, square);
    if (multiply) adam_f32_loop(p + i, g + i, mean, square, NULL, WHOLE, o, decay, decoupled, false, true);
    else adam_f32_loop(p + i, g + i, mean, square, NULL, WHOLE, o, decay, decoupled, false, false);
    store_whole(mean, m + i, seed[0], (uint32_t)(first + i));
    store_whole(square, v + i, seed[1], (uint32_t)(first + i));
  }
}
static void adam_bf16(float *p, const float *g, uint16_t *const *state, int64_t n, int64_t first, const uint32_t *seed, const PlkAdam *o) {
  if (o->decay != 0 && o->decoupled) adam_bf16_loop(p, g, state[0], state[1], n, first, seed, o, true, true);
  else adam_bf16_loop(p, g, state[0], state[1], n, first, seed, o, o->decay != 0, false);
}
static void lion_bf16(float *p, const float *g, uint16_t *const *state, int64_t n, int64_t first, const uint32_t *seed,
                      const PlkFormula *o) {
  for (int64_t i = 0; i < n; i += WHOLE) {
    float mean[WHOLE];
    load_whole(state[0] + i, mean);
    LION_f32_loop(p + i, g + i, mean, NULL, NULL, NULL, WHOLE, o, o->coupled, o->decoupled, NULL);
    store_whole(mean, state[0] + i, seed[0], (uint32_t)(first + i));
  }
}

/* n elements from `at` on, of rows of up to 256. */
static void load_coded(const uint8_t *rows, int64_t at, bool has_sign, float *to, int64_t n) {
  while (n > 0) {
    const int first = (int)(at % PLK_CODED_BLOCK), m = (int)(n < PLK_CODED_BLOCK - first ? n : PLK_CODED_BLOCK - first);
    const uint8_t *row = rows + at / PLK_CODED_BLOCK * PLK_CODED_ROW, *code = row + PLK_CODED_HEAD + first;
    float most;
    memcpy(&most, row, sizeof most);
    if (has_sign) plk_decode_i8(code, to, m, most);
    else plk_decode_u8(code, to, m, most);
    at += m, to += m, n -= m;
  }
}
/* What is in front of a row of m elements. */
static float coded_most(const float *x, int m) {
  uint32_t high = 0; /* magnitudes order as their bits do, and NaN is above all */
  for (int j = 0; j < m; j++) {
    const uint32_t b = plk_float_bits(x[j]) & 0x7FFFFFFFu;
    high = b > high ? b : high;
  }
  const float most = plk_bits_float(high);
  return most > 1e-12f || most != most ? most : 1e-12f;
}
/* Whole rows, n elements in all. Two at a time: the codes of one need not wait for the largest of the other. */
static void store_coded(const float *from, bool has_sign, uint8_t *row, int64_t n) {
  enum { ROWS = 2 };
  for (int64_t i = 0; i < n; i += ROWS * PLK_CODED_BLOCK) {
    float most[ROWS];
    int m[ROWS];
    for (int k = 0; k < ROWS; k++) {
      const int64_t left = n - i - k * PLK_CODED_BLOCK;
      m[k] = (int)(left < 0 ? 0 : left < PLK_CODED_BLOCK ? left : PLK_CODED_BLOCK);
      most[k] = coded_most(from + i + k * PLK_CODED_BLOCK, m[k]);
    }
    for (int k = 0; k < ROWS && m[k]; k++, row += PLK_CODED_ROW) {
      const float *x = from + i + k * PLK_CODED_BLOCK;
      memcpy(row, &most[k], sizeof most[k]);
      if (has_sign) plk_encode_i8(x, row + PLK_CODED_HEAD, m[k], 1 / most[k]);
      else plk_encode_u8(x, row + PLK_CODED_HEAD, m[k], 1 / most[k]);
    }
  }
}

#define SUMSQ(T, name)                                                      \
  static double name(const T *x, int64_t n) {                               \
    double acc[LANES] = {0};                                                \
    int64_t i = 0;                                                          \
    for (; i + LANES <= n; i += LANES)                                      \
      for (int j = 0; j < LANES; j++) {                                     \
        double v = (double)x[i + j];                                        \
        acc[j] += v * v;                                                    \
      }                                                                     \
    for (int j = 0; i < n; i++, j++) acc[j] += (double)x[i] * (double)x[i]; \
    return lanes_joined(acc);                                               \
  }
SUMSQ(float, sumsq_f32)
SUMSQ(double, sumsq_f64)

#define SCALE(T, name)                               \
  static void name(T *x, int64_t n, double factor) { \
    const T f = (T)factor;                           \
    for (int64_t i = 0; i < n; i++) x[i] *= f;       \
  }
SCALE(float, scale_f32)
SCALE(double, scale_f64)

extern const PlkOptimLoops PLK_ISA_NAME(plk_optim);
const PlkOptimLoops PLK_ISA_NAME(plk_optim) = {
    .sgd_f32 = sgd_f32,
    .sgd_f64 = sgd_f64,
    .adam_f32 = adam_f32,
    .adam_f64 = adam_f64,
    .rms_f32 = rms_f32,
    .rms_f64 = rms_f64,
#define R(NAME, ...) .formula_f32[PLK_OPTIM_##NAME] = NAME##_f32, .formula_f64[PLK_OPTIM_##NAME] = NAME##_f64,
#include "kernels/optim_formulas.h"
#undef R
    .store_bf16 = store_bf16,
    .adam_bf16 = adam_bf16,
    .lion_bf16 = lion_bf16,
    .load_coded = load_coded,
    .store_coded = store_coded,
    .sumsq_f32 = sumsq_f32,
    .sumsq_f64 = sumsq_f64,
    .scale_f32 = scale_f32,
    .scale_f64 = scale_f64,
};
