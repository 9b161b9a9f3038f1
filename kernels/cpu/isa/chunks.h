/* SPDX-License-Identifier: MIT
 * Loops whose vector code does not take every number (T, F and K as in float.h; no include guard, as both float_f32.c
 * and float_f64.c expand it): runs of elements that all fit take it; in other runs each element takes the way its own
 * value says, so a result never depends on neighbours. */

/* Sine and its kin: magnitudes up to `limit` fit. Up to `near` a shorter formula holds, which a run takes where all fit it; where
 * there is none, near is -1. */
#define TRIG(NAME, near, NEAR, limit, FAST, SLOW)                                                \
  static int loop_##NAME(char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p) { \
    (void)stride, (void)p;                                                                       \
    for (int64_t at = 0; at < n; at += 512) {                                                    \
      T *const o = (T *)(void *)ptr[0] + at;                                                     \
      const T *const a = (const T *)(const void *)ptr[1] + at;                                   \
      const int64_t m = n - at < 512 ? n - at : 512;                                             \
      uint32_t far = 0, big = 0;                                                                 \
      for (int64_t i = 0; i < m; i++) {                                                          \
        far |= (uint32_t) !(F(vm_abs)(a[i]) <= K(near));                                         \
        big |= (uint32_t) !(F(vm_abs)(a[i]) <= K(limit));                                        \
      }                                                                                          \
      if (!far) {                                                                                \
        PLK_IVDEP for (int64_t i = 0; i < m; i++) {                                              \
          const T x = a[i];                                                                      \
          o[i] = (NEAR);                                                                         \
        }                                                                                        \
      } else if (!big) {                                                                         \
        PLK_IVDEP for (int64_t i = 0; i < m; i++) {                                              \
          const T x = a[i];                                                                      \
          o[i] = (FAST);                                                                         \
        }                                                                                        \
      } else {                                                                                   \
        for (int64_t i = 0; i < m; i++) {                                                        \
          const T x = a[i];                                                                      \
          o[i] = F(vm_abs)(x) <= K(limit) ? (FAST) : (SLOW);                                     \
        }                                                                                        \
      }                                                                                          \
    }                                                                                            \
    return 0;                                                                                    \
  }

/* Two operands, FITS says which. A single value is spread out: as a constant of the loop it would make compilers
 * split the loop rather than vectorize it. */
#define PAIRS(NAME, FITS, FAST, SLOW)                                                                 \
  static int loop_##NAME(char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p) {      \
    T xs[256], ys[256];                                                                               \
    const T *const px = (const T *)(const void *)ptr[1], *const py = (const T *)(const void *)ptr[2]; \
    (void)p;                                                                                          \
    for (int i = 0; i < 256 && stride[1] == 0; i++) xs[i] = *px;                                      \
    for (int i = 0; i < 256 && stride[2] == 0; i++) ys[i] = *py;                                      \
    for (int64_t at = 0; at < n; at += 256) {                                                         \
      T *const o = (T *)(void *)ptr[0] + at;                                                          \
      const T *const a = stride[1] ? px + at : xs, *const b = stride[2] ? py + at : ys;               \
      const int64_t m = n - at < 256 ? n - at : 256;                                                  \
      uint32_t other = 0;                                                                             \
      for (int64_t i = 0; i < m; i++) {                                                               \
        const T x = a[i], y = b[i];                                                                   \
        (void)x, (void)y;                                                                             \
        other |= (uint32_t) !(FITS);                                                                  \
      }                                                                                               \
      if (!other) {                                                                                   \
        PLK_IVDEP for (int64_t i = 0; i < m; i++) {                                                   \
          const T x = a[i], y = b[i];                                                                 \
          o[i] = (FAST);                                                                              \
        }                                                                                             \
      } else {                                                                                        \
        for (int64_t i = 0; i < m; i++) {                                                             \
          const T x = a[i], y = b[i];                                                                 \
          o[i] = (FITS) ? (FAST) : (SLOW);                                                            \
        }                                                                                             \
      }                                                                                               \
    }                                                                                                 \
    return 0;                                                                                         \
  }
/* Powers of one small whole exponent are products; others as POW_ANY has them. */
#define WHOLE_POWERS                                                                            \
  static int loop_POW(char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p) {   \
    T *const o = (T *)(void *)ptr[0];                                                           \
    const T *const a = (const T *)(const void *)ptr[1], y = *(const T *)(const void *)ptr[2];   \
    if (stride[2] != 0 || (y != 1 && y != 2 && y != 3)) return loop_POW_ANY(ptr, stride, n, p); \
    if (y == 1) {                                                                               \
      PLK_IVDEP for (int64_t i = 0; i < n; i++) o[i] = a[i];                                    \
    } else if (y == 2) {                                                                        \
      PLK_IVDEP for (int64_t i = 0; i < n; i++) o[i] = a[i] * a[i];                             \
    } else {                                                                                    \
      PLK_IVDEP for (int64_t i = 0; i < n; i++) o[i] = a[i] * a[i] * a[i];                      \
    }                                                                                           \
    return 0;                                                                                   \
  }
/* A finite divisor that is not 0, and a quotient within `most`. Without branches, so the loop is vectorized; the casts
 * tell the compiler that & is meant. */
#define DIVIDES(most) \
  ((int)(F(vm_abs)(y) > 0) & (int)(F(vm_abs)(y) <= F(vm_largest)) & (int)((double)F(vm_abs)(x) <= (most) * (double)F(vm_abs)(y)))
