/* SPDX-License-Identifier: MIT
 * The loops of dual.c for one element type: T, F and K as in float.h; no include guard. x and y are inputs, v and w their tangents; z is
 * the value. A tangent's formula is that of the gradient (engine/ops/elementwise, elementwise_formulas.h) with v in place of
 * dy, operation by operation: the bits are the same. */

#define ARGS  char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p
#define IN(k) ((const T *)(const void *)ptr[k])

#define D1(NAME, Z, DZ)                                               \
  static int F(dual_##NAME)(ARGS) {                                   \
    T *const o = (T *)(void *)ptr[0], *const t = (T *)(void *)ptr[1]; \
    const T *const a = IN(2), *const da = IN(3);                      \
    (void)stride, (void)p;                                            \
    PLK_IVDEP for (int64_t i = 0; i < n; i++) {                       \
      const T x = a[i], v = da[i], z = (T)(Z);                        \
      o[i] = z;                                                       \
      t[i] = (T)(DZ);                                                 \
    }                                                                 \
    return 0;                                                         \
  }
D1(ABS, F(vm_abs)(x), v *(K(x > 0) - K(x < 0)))
D1(SQUARE, x *x, v *(x *K(2)))
D1(SQRT, F(vm_sqrt)(x), v / (z * K(2)))
D1(RSQRT, K(1) / F(vm_sqrt)(x), (v * K(-0.5)) * (z * (z * z)))
D1(RECIPROCAL, K(1) / x, -(v *(z *z)))
D1(EXP, F(vm_exp)(x), v *z)
D1(LOG, F(vm_log)(x), v / x)
D1(TANH, F(vm_tanh)(x), v *(K(1) - z * z))
D1(SIGMOID, F(vm_sigmoid)(x), v *(z *(K(1) - z)))
D1(RELU, x < 0 ? K(0) : x, z <= 0 ? K(0) : v)
D1(SILU, x *F(vm_sigmoid)(x), v *F(silu_slope)(x))
D1(GELU, K(0.5) * x * (K(1) + F(vm_erf_fast)(x * K(0.70710678118654752))), v *F(gelu_slope)(x))
D1(GELU_TANH, K(0.5) * x * (K(1) + F(vm_tanh)(F(gelu_inner)(x))), v *F(gelu_tanh_slope)(x))

/* As TRIG in chunks.h: a shorter formula near 0, libm's way for large numbers. */
#define DUAL_TRIG_LOOP(Z, DZ)                 \
  PLK_IVDEP for (int64_t i = 0; i < m; i++) { \
    const T x = a[i], v = da[i];              \
    o[i] = (Z);                               \
    t[i] = (DZ);                              \
  }
#define DUAL_TRIG(NAME, NEAR_Z, NEAR_DZ, Z, DZ, SLOW_Z, SLOW_DZ)                  \
  static int F(dual_##NAME)(ARGS) {                                               \
    (void)stride, (void)p;                                                        \
    for (int64_t at = 0; at < n; at += 512) {                                     \
      T *const o = (T *)(void *)ptr[0] + at, *const t = (T *)(void *)ptr[1] + at; \
      const T *const a = IN(2) + at, *const da = IN(3) + at;                      \
      const int64_t m = n - at < 512 ? n - at : 512;                              \
      uint32_t far = 0, big = 0;                                                  \
      for (int64_t i = 0; i < m; i++) {                                           \
        far |= (uint32_t) !(F(vm_abs)(a[i]) <= F(VM_TRIG_NEAR));                  \
        big |= (uint32_t) !(F(vm_abs)(a[i]) <= K(VM_TRIG_MAX));                   \
      }                                                                           \
      if (!far) {                                                                 \
        DUAL_TRIG_LOOP(NEAR_Z, NEAR_DZ)                                           \
      } else if (!big) {                                                          \
        DUAL_TRIG_LOOP(Z, DZ)                                                     \
      } else {                                                                    \
        for (int64_t i = 0; i < m; i++) {                                         \
          const T x = a[i], v = da[i];                                            \
          const bool fits = F(vm_abs)(x) <= K(VM_TRIG_MAX);                       \
          o[i] = fits ? (Z) : (SLOW_Z);                                           \
          t[i] = fits ? (DZ) : (SLOW_DZ);                                         \
        }                                                                         \
      }                                                                           \
    }                                                                             \
    return 0;                                                                     \
  }
DUAL_TRIG(SIN, F(vm_sin_near)(x), v *F(vm_cos_near)(x), F(vm_sin)(x), v *F(vm_cos)(x), (T)LIBM(sin)(x), v *(T)LIBM(cos)(x))
DUAL_TRIG(COS, F(vm_cos_near)(x), -(v *F(vm_sin_near)(x)), F(vm_cos)(x), -(v *F(vm_sin)(x)), (T)LIBM(cos)(x), -(v *(T)LIBM(sin)(x)))

/* One array of tangents, of the first or the second input, or both. */
#define D2_ONE(NAME, Z, DZ)                                           \
  static int F(dual_##NAME)(ARGS) {                                   \
    T *const o = (T *)(void *)ptr[0], *const t = (T *)(void *)ptr[1]; \
    const T *const a = IN(2), *const b = IN(3), *const d = IN(4);     \
    (void)stride, (void)p;                                            \
    PLK_IVDEP for (int64_t i = 0; i < n; i++) {                       \
      const T x = a[i], y = b[i], v = d[i], w = v;                    \
      (void)w;                                                        \
      o[i] = (T)(Z);                                                  \
      t[i] = (T)(DZ);                                                 \
    }                                                                 \
    return 0;                                                         \
  }
/* The second input is one value. */
#define D2(NAME, Z, DX, DY, BOTH)                                                     \
  D2_ONE(NAME##_first, Z, DX)                                                         \
  D2_ONE(NAME##_second, Z, DY)                                                        \
  static int F(dual_##NAME##_by)(ARGS) {                                              \
    T *const o = (T *)(void *)ptr[0], *const t = (T *)(void *)ptr[1];                 \
    const T *const a = IN(2), y = *IN(3), *const d = IN(4);                           \
    (void)stride, (void)p;                                                            \
    PLK_IVDEP for (int64_t i = 0; i < n; i++) {                                       \
      const T x = a[i], v = d[i];                                                     \
      o[i] = (T)(Z);                                                                  \
      t[i] = (T)(DX);                                                                 \
    }                                                                                 \
    return 0;                                                                         \
  }                                                                                   \
  static int F(dual_##NAME##_both)(ARGS) {                                            \
    T *const o = (T *)(void *)ptr[0], *const t = (T *)(void *)ptr[1];                 \
    const T *const a = IN(2), *const b = IN(3), *const da = IN(4), *const db = IN(5); \
    (void)stride, (void)p;                                                            \
    PLK_IVDEP for (int64_t i = 0; i < n; i++) {                                       \
      const T x = a[i], y = b[i], v = da[i], w = db[i];                               \
      o[i] = (T)(Z);                                                                  \
      t[i] = (T)(BOTH);                                                               \
    }                                                                                 \
    return 0;                                                                         \
  }
/* Powers of one whole number, 2 or 3, as WHOLE_POWERS in chunks.h has them. */
static int F(dual_POW_by)(ARGS) {
  T *const o = (T *)(void *)ptr[0], *const t = (T *)(void *)ptr[1];
  const T *const a = IN(2), y = *IN(3), *const d = IN(4);
  (void)stride, (void)p;
  if (y == 2) {
    PLK_IVDEP for (int64_t i = 0; i < n; i++) {
      const T x = a[i], v = d[i];
      o[i] = x * x;
      t[i] = v * (x * y);
    }
  } else {
    PLK_IVDEP for (int64_t i = 0; i < n; i++) {
      const T x = a[i], v = d[i];
      o[i] = x * x * x;
      t[i] = v * (x * x * y);
    }
  }
  return 0;
}

/* clang-format off */
D2(ADD, x + y, v, w, v + w)
D2(SUB, x - y, v, -w, v - w)
D2(MUL, x * y, v * y, w * x, v * y + w * x)
D2(DIV, x / y, v / y, -w * ((x / y) / y), v / y + -w * ((x / y) / y))
/* clang-format on */

#undef ARGS
#undef IN
#undef D1
#undef DUAL_TRIG
#undef DUAL_TRIG_LOOP
#undef D2_ONE
#undef D2
