/* SPDX-License-Identifier: MIT
 * Loops and table of float_halves.c for one type; no include guard. Given are SFX, its name, TABLE, its table's, READ and MAKE, which convert, and the bits of
 * INFINITE and of what makes a NaN QUIET, as conversions do. */
#define CAT2(a, b)  a##_##b
#define CAT1(a, b)  CAT2(a, b)
#define LOOP(name)  CAT1(loop_##name, SFX)
#define ARGS        char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p
#define HALF(k)     ((const uint16_t *)(const void *)ptr[k])
#define EACH_STEP   for (int64_t i = 0; i < n; i += STEP)
#define EACH        PLK_IVDEP for (int j = 0; j < STEP; j++)
#define IN(v, k)    step_in(READ, HALF(k) + i, v, n - i)
#define OUT(v)      step_out(MAKE, v, (uint16_t *)(void *)ptr[0] + i, n - i)
#define OUT_BOOL(v) memcpy(ptr[0] + i, v, (size_t)(n - i < STEP ? n - i : STEP))

#define ONE(NAME, PARAMS, R, WRITE, E) \
  static int LOOP(NAME)(ARGS) {        \
    (void)stride, (void)p;             \
    PARAMS EACH_STEP {                 \
      _Alignas(64) T a[STEP];          \
      _Alignas(64) R o[STEP];          \
      IN(a, 1);                        \
      EACH {                           \
        const T x = a[j];              \
        o[j] = (R)(E);                 \
      }                                \
      WRITE(o);                        \
    }                                  \
    return 0;                          \
  }
#define TWO(NAME, PARAMS, R, WRITE, X, Y, E)     \
  static int LOOP(NAME)(ARGS) {                  \
    _Alignas(64) T a[STEP], b[STEP];             \
    (void)p;                                     \
    if (stride[1] == 0) spread(ptr[1], a, STEP); \
    if (stride[2] == 0) spread(ptr[2], b, STEP); \
    PARAMS EACH_STEP {                           \
      _Alignas(64) R o[STEP];                    \
      if (stride[1] != 0) IN(a, 1);              \
      if (stride[2] != 0) IN(b, 2);              \
      EACH {                                     \
        const T X = a[j], Y = b[j];              \
        o[j] = (R)(E);                           \
      }                                          \
      WRITE(o);                                  \
    }                                            \
    return 0;                                    \
  }
/* The loop of f32 with this code, MANY elements at a time. */
static int LOOP(by_f32)(int code, int nin, bool to_bool, ARGS) {
  const PlkLoop f32 = PLK_SUFFIX(plk_ew_f32)[code];
  const int64_t whole[4] = {sizeof(float), sizeof(float), sizeof(float), sizeof(float)};
  _Alignas(64) float v[4][MANY];
  char *at[4] = {(char *)v[0], (char *)v[1], (char *)v[2], (char *)v[3]};
  bool one[4] = {false};
  for (int k = 1; nin == 2 && k <= 2; k++)
    if ((one[k] = stride[k] == 0)) spread(ptr[k], v[k], n < MANY ? (int)n : MANY);
  for (int64_t i = 0; i < n; i += MANY) {
    const int64_t m = n - i < MANY ? n - i : MANY;
    for (int k = 1; k <= nin; k++)
      if (!one[k]) READ(HALF(k) + i, v[k], m);
    if (to_bool) at[0] = ptr[0] + i;
    f32(at, whole, m, p);
    if (!to_bool) MAKE(v[0], (uint16_t *)(void *)ptr[0] + i, m);
  }
  return 0;
}
#define BY_F32(NAME, nin, to_bool) \
  static int LOOP(NAME)(ARGS) { return LOOP(by_f32)(PLK_EW_##NAME, nin, to_bool, ptr, stride, n, p); }
#define BY_F32_1(NAME, PARAMS, R, WRITE, E)       BY_F32(NAME, 1, sizeof(R) == 1)
#define BY_F32_2(NAME, PARAMS, R, WRITE, X, Y, E) BY_F32(NAME, 2, sizeof(R) == 1)
#define BY_F32_3(NAME, PARAMS, E)                 BY_F32(NAME, 3, false)

#define U(NAME, PARAMS, E)  WAY(NAME, ONE, BY_F32_1)(NAME, PARAMS, T, OUT, E)
#define P1(NAME, E)         WAY(NAME, ONE, BY_F32_1)(NAME, , uint8_t, OUT_BOOL, E)
#define B(NAME, PARAMS, E)  WAY(NAME, TWO, BY_F32_2)(NAME, PARAMS, T, OUT, x, y, E)
#define P2(NAME, E)         WAY(NAME, TWO, BY_F32_2)(NAME, , uint8_t, OUT_BOOL, x, y, E)
#define G(NAME, PARAMS, E)  WAY(NAME, TWO, BY_F32_2)(NAME, PARAMS, T, OUT, dy, x, E)
#define T3(NAME, PARAMS, E) WAY(NAME, THREE, BY_F32_3)(NAME, PARAMS, E)
#define THREE(NAME, PARAMS, E)                  \
  static int LOOP(NAME)(ARGS) {                 \
    (void)stride, (void)p;                      \
    PARAMS EACH_STEP {                          \
      _Alignas(64) T a[STEP], b[STEP], c[STEP]; \
      _Alignas(64) T o[STEP];                   \
      IN(a, 1), IN(b, 2), IN(c, 3);             \
      EACH {                                    \
        const T x = a[j], y = b[j], z = c[j];   \
        o[j] = (T)(E);                          \
      }                                         \
      OUT(o);                                   \
    }                                           \
    return 0;                                   \
  }
#include "kernels/elementwise_formulas.h"
#undef U
#undef P1
#undef B
#undef P2
#undef G
#undef T3

#define SIGN(NAME, E)                                                       \
  static int LOOP(NAME)(ARGS) {                                             \
    uint16_t *const o = (uint16_t *)(void *)ptr[0];                         \
    const uint16_t *const x = HALF(1);                                      \
    (void)stride, (void)p;                                                  \
    PLK_IVDEP for (int64_t i = 0; i < n; i++) {                             \
      const uint16_t h = x[i], nan = (h & 0x7fffu) > INFINITE ? QUIET : 0u; \
      o[i] = (uint16_t)((E) | nan);                                         \
    }                                                                       \
    return 0;                                                               \
  }
SIGN(neg_bits, h ^ 0x8000u)
SIGN(abs_bits, h & 0x7fffu)

#define U(NAME, PARAMS, E)  [PLK_EW_##NAME] = LOOP(NAME),
#define P1(NAME, E)         [PLK_EW_##NAME] = LOOP(NAME),
#define B(NAME, PARAMS, E)  [PLK_EW_##NAME] = LOOP(NAME),
#define P2(NAME, E)         [PLK_EW_##NAME] = LOOP(NAME),
#define G(NAME, PARAMS, E)  [PLK_EW_##NAME] = LOOP(NAME),
#define T3(NAME, PARAMS, E) [PLK_EW_##NAME] = LOOP(NAME),
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
const PlkLoop TABLE[PLK_NEW] = {
#include "kernels/elementwise_formulas.h"
    [PLK_EW_NEG] = LOOP(neg_bits),
    [PLK_EW_ABS] = LOOP(abs_bits),
};
#pragma GCC diagnostic pop
#undef U
#undef P1
#undef B
#undef P2
#undef G
#undef T3
#undef CAT2
#undef CAT1
#undef LOOP
#undef ARGS
#undef HALF
#undef EACH_STEP
#undef EACH
#undef IN
#undef OUT
#undef OUT_BOOL
#undef ONE
#undef TWO
#undef THREE
#undef BY_F32
#undef BY_F32_1
#undef BY_F32_2
#undef BY_F32_3
#undef SFX
#undef TABLE
#undef SIGN
#undef INFINITE
#undef QUIET
#undef READ
#undef MAKE
