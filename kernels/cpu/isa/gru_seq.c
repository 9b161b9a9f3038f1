/* SPDX-License-Identifier: MIT
 * Rows of GRU gates and their gradient, and of layers without gates, compiled once per ISA level:
 *   r = s(xr + ar), z = s(xz + az), m = an + b, n = tanh(xn + r m), h2 = n + z (h - n)
 *   d = dh + more:  dn = d (1 - z), dz = d (h - n), dm = r da_n, dr = m da_n, da_n = dn (1 - n²), dh <- d z */
#include "kernels/cpu/recurrent/gru_seq.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/vmath/vmath.h"

/* Template of backward, with the gradients of the activations on top or without. */
#define BACK(T, DACT)                                                                                \
  PLK_IVDEP for (int64_t j = 0; j < H; j++) {                                                        \
    const T r = act[j], z = act[H + j], n = act[2 * H + j], m = act[3 * H + j], d = dh[j] + more[j]; \
    const T an = (d * (1 - z) DACT(2)) * (1 - n * n);                                                \
    const T ar = (an * m DACT(0)) * r * (1 - r), az = (d * (h[j] - n) DACT(1)) * z * (1 - z);        \
    dx[j] = da[j] = ar;                                                                              \
    dx[H + j] = da[H + j] = az;                                                                      \
    dx[2 * H + j] = an;                                                                              \
    da[2 * H + j] = an * r DACT(3);                                                                  \
    more[j] = d * z;                                                                                 \
  }
#define NOTHING(k)
#define SOME(k) +dact[(k)*H + j]

#define GRU(T, X)                                                                                                \
  static void step_##X(const T *x, const T *a, const T *b, const T *h, T *act, T *h2, int64_t H) {               \
    PLK_IVDEP for (int64_t j = 0; j < H; j++) {                                                                  \
      const T r = vm_logistic_##X(x[j] + a[j]), z = vm_logistic_##X(x[H + j] + a[H + j]);                        \
      const T m = a[2 * H + j] + b[j], n = vm_tanh_##X(x[2 * H + j] + r * m);                                    \
      act[j] = r, act[H + j] = z, act[2 * H + j] = n, act[3 * H + j] = m;                                        \
      h2[j] = n + z * (h[j] - n);                                                                                \
    }                                                                                                            \
  }                                                                                                              \
  static void back_##X(const T *act, const T *h, const T *dh, T *more, const T *dact, T *dx, T *da, int64_t H) { \
    if (dact) BACK(T, SOME)                                                                                      \
    else BACK(T, NOTHING)                                                                                        \
  }                                                                                                              \
  static void plain_##X(const T *x, const T *a, bool relu, T *h2, int64_t H) {                                   \
    if (relu) PLK_IVDEP for (int64_t j = 0; j < H; j++) {                                                        \
        const T v = x[j] + a[j];                                                                                 \
        h2[j] = v < 0 ? 0 : v; /* keeps NaN */                                                                   \
      }                                                                                                          \
    else PLK_IVDEP for (int64_t j = 0; j < H; j++) h2[j] = vm_tanh_##X(x[j] + a[j]);                             \
  }                                                                                                              \
  static void plain_back_##X(const T *h2, const T *dh, const T *more, bool relu, T *da, int64_t H) {             \
    if (relu) PLK_IVDEP for (int64_t j = 0; j < H; j++) da[j] = h2[j] > 0 ? dh[j] + more[j] : 0;                 \
    else PLK_IVDEP for (int64_t j = 0; j < H; j++) da[j] = (dh[j] + more[j]) * (1 - h2[j] * h2[j]);              \
  }
GRU(float, f32)
GRU(double, f64)

extern const PlkGruLoops PLK_ISA_NAME(plk_gru);
const PlkGruLoops PLK_ISA_NAME(plk_gru) = {{step_f32, back_f32, plain_f32, plain_back_f32},
                                           {step_f64, back_f64, plain_f64, plain_back_f64}};
