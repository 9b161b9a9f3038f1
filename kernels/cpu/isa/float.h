/* SPDX-License-Identifier: MIT
 * Float loops: included by float_f32.c and float_f64.c, which define T (the element type), F(f) (the
 * function f for T) and K(c) (the constant c as a T). Expands elementwise_formulas.h three times: loops, then table.
 * Every loop body is one expression of x, y, z and the parameters p0 …, so a tail computes what the
 * vector code computes. */
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/vmath/vmath.h"
#include "kernels/elementwise_codes.h"

#define ARGS                char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p
#define PARAM(k, otherwise) const T p##k = (T)plk_param(p, k, otherwise);
#define EACH                PLK_IVDEP for (int64_t i = 0; i < n; i++)
#define IN(k)               ((const T *)(const void *)ptr[k])
#define OUT(type)           ((type *)(void *)ptr[0])

#if defined(__AVX512F__)
#define WHOLE_VECTORS(f) n = F(f)(o, a, n);
#endif

/* ---- loops ---- */

#define U(NAME, PARAMS, E)       \
  static int loop_##NAME(ARGS) { \
    T *const o = OUT(T);         \
    const T *const a = IN(1);    \
    (void)stride, (void)p;       \
    PARAMS EACH {                \
      const T x = a[i];          \
      o[i] = (T)(E);             \
    }                            \
    return 0;                    \
  }
#define P1(NAME, E)                  \
  static int loop_##NAME(ARGS) {     \
    uint8_t *const o = OUT(uint8_t); \
    const T *const a = IN(1);        \
    (void)stride, (void)p;           \
    EACH {                           \
      const T x = a[i];              \
      o[i] = (uint8_t)(E);           \
    }                                \
    return 0;                        \
  }
#define BINARY(NAME, R, PARAMS, E)              \
  static int loop_##NAME(ARGS) {                \
    R *const o = OUT(R);                        \
    const T *const a = IN(1), *const b = IN(2); \
    (void)p;                                    \
    PARAMS if (stride[2] == 0) {                \
      const T y = *b;                           \
      EACH {                                    \
        const T x = a[i];                       \
        o[i] = (R)(E);                          \
      }                                         \
    }                                           \
    else if (stride[1] == 0) {                  \
      const T x = *a;                           \
      EACH {                                    \
        const T y = b[i];                       \
        o[i] = (R)(E);                          \
      }                                         \
    }                                           \
    else EACH {                                 \
      const T x = a[i], y = b[i];               \
      o[i] = (R)(E);                            \
    }                                           \
    return 0;                                   \
  }
#define B(NAME, PARAMS, E) BINARY(NAME, T, PARAMS, E)
#define P2(NAME, E)        BINARY(NAME, uint8_t, , E)
/* dy is always a whole array. */
#define G(NAME, PARAMS, E)                      \
  static int loop_##NAME(ARGS) {                \
    T *const o = OUT(T);                        \
    const T *const a = IN(1), *const b = IN(2); \
    (void)stride, (void)p;                      \
    PARAMS EACH {                               \
      const T dy = a[i], x = b[i];              \
      o[i] = (T)(E);                            \
    }                                           \
    return 0;                                   \
  }
#define T3(NAME, PARAMS, E)                                       \
  static int loop_##NAME(ARGS) {                                  \
    T *const o = OUT(T);                                          \
    const T *const a = IN(1), *const b = IN(2), *const c = IN(3); \
    (void)stride, (void)p;                                        \
    PARAMS EACH {                                                 \
      const T x = a[i], y = b[i], z = c[i];                       \
      o[i] = (T)(E);                                              \
    }                                                             \
    return 0;                                                     \
  }
#include "kernels/elementwise_formulas.h"

/* Half to even; with d decimals round(x * 10^d) / 10^d, for negative d the other way round. */
static int loop_ROUND(ARGS) {
  T *const o = OUT(T);
  const T *const a = IN(1);
  const double d = plk_param(p, 0, 0.0);
  const T s = d == 0.0 ? K(1) : (T)pow(10.0, fabs(d));
  (void)stride;
  if (d == 0.0) EACH o[i] = F(vm_rint)(a[i]);
  else if (d < 0.0) EACH o[i] = F(vm_rint)(a[i] / s) * s;
  else EACH o[i] = F(vm_rint)(a[i] * s) / s;
  return 0;
}
#ifdef EXTRA_LOOPS
EXTRA_LOOPS
#endif
#undef U
#undef P1
#undef B
#undef P2
#undef G
#undef T3

/* ---- table ---- */

#define U(NAME, PARAMS, E)  [PLK_EW_##NAME] = loop_##NAME,
#define P1(NAME, E)         [PLK_EW_##NAME] = loop_##NAME,
#define B(NAME, PARAMS, E)  [PLK_EW_##NAME] = loop_##NAME,
#define P2(NAME, E)         [PLK_EW_##NAME] = loop_##NAME,
#define G(NAME, PARAMS, E)  [PLK_EW_##NAME] = loop_##NAME,
#define T3(NAME, PARAMS, E) [PLK_EW_##NAME] = loop_##NAME,
const PlkLoop TABLE[PLK_NEW] = {
#include "kernels/elementwise_formulas.h"
    [PLK_EW_ROUND] = loop_ROUND,
#ifdef EXTRA_TABLE
    EXTRA_TABLE
#endif
};
