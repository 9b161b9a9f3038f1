/* SPDX-License-Identifier: MIT
 * Pooling of one plane by rows (kernels/cpu/conv/pool.h), compiled once per ISA level; pool_body.h has the loops. */
#include "kernels/cpu/conv/pool.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/isa/lanes.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/isa/reduce/parts.h"

enum { STEP = PLK_POOL_STEP };

/* Every other element of two vectors, as wide as registers are: of wider ones gcc moves number by number. */
#if defined(__AVX512F__)
#define TWOS_f32(k) k, k + 2, k + 4, k + 6, k + 8, k + 10, k + 12, k + 14, k + 16, k + 18, k + 20, k + 22, k + 24, k + 26, k + 28, k + 30
#define TWOS_f64(k) k, k + 2, k + 4, k + 6, k + 8, k + 10, k + 12, k + 14
#elif defined(__AVX__)
#define TWOS_f32(k) k, k + 2, k + 4, k + 6, k + 8, k + 10, k + 12, k + 14
#define TWOS_f64(k) k, k + 2, k + 4, k + 6
#else
#define TWOS_f32(k) k, k + 2, k + 4, k + 6
#define TWOS_f64(k) k, k + 2
#endif
#define HALVES(sfx)                                                                                                   \
  PLK_LANE PlkP_##sfx even_##sfx(PlkP_##sfx a, PlkP_##sfx b) { return __builtin_shufflevector(a, b, TWOS_##sfx(0)); } \
  PLK_LANE PlkP_##sfx odd_##sfx(PlkP_##sfx a, PlkP_##sfx b) { return __builtin_shufflevector(a, b, TWOS_##sfx(1)); }
HALVES(f32)
HALVES(f64)

#define T   float
#define I   int32_t
#define SFX f32
#include "kernels/cpu/isa/pool_body.h"
#undef T
#undef I
#undef SFX

#define T   double
#define I   int64_t
#define SFX f64
#include "kernels/cpu/isa/pool_body.h"

/* ---- 2×2, stride 2, f32: the commonest by far, and rows are short ------------------------------------------ */

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

/* N outputs from column j on: how, with the places or the tangents of what wins. */
enum { VALUES, PLACES, TANGENTS };
#define PAIRS(N, F, I, L)                                                                              \
  {                                                                                                    \
    const F a0 = *(const F *)(a + 2 * j), a1 = *(const F *)(a + 2 * j + N);                            \
    const F b0 = *(const F *)(b + 2 * j), b1 = *(const F *)(b + 2 * j + N);                            \
    const F v0 = EVEN_##N(a0, a1), v1 = ODD_##N(a0, a1);                                               \
    const F v2 = EVEN_##N(b0, b1), v3 = ODD_##N(b0, b1);                                               \
    const I t = WINS(F, v1, v0), u = WINS(F, v3, v2);                                                  \
    const F top = PICK(F, I, t, v1, v0), low = PICK(F, I, u, v3, v2);                                  \
    const I l = WINS(F, low, top);                                                                     \
    *(F *)(d + j) = PICK(F, I, l, low, top);                                                           \
    if (how == PLACES) {                                                                               \
      I at = {0};                                                                                      \
      for (int i = 0; i < N; i++) at[i] = 2 * i;                                                       \
      at += base + 2 * j + PICK(I, I, l, W - u, -t); /* a mask that is set is -1 */                    \
      *(L *)(index + r * Wo + j) = __builtin_convertvector(at, L);                                     \
    } else if (how == TANGENTS) {                                                                      \
      const float *va = v + 2 * r * W + 2 * j, *vb = va + W;                                           \
      const F c0 = *(const F *)va, c1 = *(const F *)(va + N);                                          \
      const F e0 = *(const F *)vb, e1 = *(const F *)(vb + N);                                          \
      const F high = PICK(F, I, t, ODD_##N(c0, c1), EVEN_##N(c0, c1));                                 \
      *(F *)(dt + r * Wo + j) = PICK(F, I, l, PICK(F, I, u, ODD_##N(e0, e1), EVEN_##N(e0, e1)), high); \
    }                                                                                                  \
  }

/* Vectors of eight, then of four, the last of which may overlap what is done; rows below
 * four outputs by the general code. */
PLK_LANE void two_by_two(const PlkPool *p, float *dst, const float *src, int64_t *index, float *dt, const float *v, int how) {
  const int32_t W = (int32_t)p->in[2], Wo = (int32_t)p->out[2];
  for (int64_t r = 0; r < p->out[1]; r++) {
    const float *a = src + 2 * r * W, *b = a + W;
    float *d = dst + r * Wo;
    const int32_t base = (int32_t)(2 * r) * W;
    int32_t j = 0;
    for (; j + 8 <= Wo; j += 8) PAIRS(8, F8, I8, L8)
    for (; j < Wo; j += 4) {
      if (j + 4 > Wo) j = Wo - 4;
      PAIRS(4, F4, I4, L4)
    }
  }
}

/* ---- windows of one column, f32: rows as vectors. So are blocks of channels (kernels/conv.h) pooled ------------ */

#define COLUMN(N, F, I)                                             \
  for (int64_t j = 0; j + N <= w; j += N) {                         \
    F best = (F){0} - INFINITY;                                     \
    for (int64_t i = z.lo; i < z.hi; i += z.step)                   \
      for (int64_t k = y.lo; k < y.hi; k += y.step) {               \
        const F v = *(const F *)(src + (i * p->in[1] + k) * w + j); \
        const I yes = WINS(F, v, best);                             \
        best = PICK(F, I, yes, v, best);                            \
      }                                                             \
    *(F *)(dst + j) = best;                                         \
  }

static void columns(const PlkPool *p, float *dst, const float *src) {
  const int64_t w = p->in[2];
  for (int64_t oz = 0; oz < p->out[0]; oz++) {
    const PlkSpan z = plk_pool_span(p, 0, oz);
    for (int64_t oy = 0; oy < p->out[1]; oy++, dst += w) {
      const PlkSpan y = plk_pool_span(p, 1, oy);
      if (w % 16 == 0) {
        COLUMN(16, PlkV_f32, PlkM_f32)
      } else {
        COLUMN(8, F8, I8)
      }
    }
  }
}

static bool is_columns(const PlkPool *p) {
  return p->k[2] == 1 && p->stride[2] == 1 && p->pad[2] == 0 && p->out[2] == p->in[2] && p->in[2] % 8 == 0;
}

static void max_any_f32(const PlkPool *p, float *y, const float *x, int64_t *index, void *room, bool fresh) {
  if (y && plk_pool_two_by_two(p)) {
    if (index) two_by_two(p, y, x, index, NULL, NULL, PLACES);
    else two_by_two(p, y, x, index, NULL, NULL, VALUES);
  } else if (y && !index && is_columns(p)) {
    columns(p, y, x);
  } else {
    max_f32(p, y, x, index, room, fresh);
  }
}
static void pairs_f32(const PlkPool *p, float *y, const float *x, float *t, const float *v) { two_by_two(p, y, x, NULL, t, v, TANGENTS); }

extern const PlkPoolLoops PLK_ISA_NAME(plk_pool_table);
const PlkPoolLoops PLK_ISA_NAME(plk_pool_table) = {max_any_f32, max_f64, avg_f32, avg_f64, avg_back_f32, avg_back_f64, pairs_f32};
