/* SPDX-License-Identifier: MIT
 * The pointwise half of an LSTM step, its gradient and the gradient of that, one row at a time, compiled once
 * per ISA level. With s the logistic function:
 *   i = s(ai), f = s(af), g = tanh(ag), o = s(ao);  c2 = f c + i g;  t = tanh(c2);  h = o t
 *   q = dc2 + dh o (1 - t²):  dai = q g i', daf = q c f', dag = q i g', dao = dh t o';  dc = q f
 * where i' = i (1 - i) and so on, g' = 1 - g². The second gradient follows from
 *   L = q S + Vo dh t o',  S = Vi g i' + Vf c f' + Vg i g' + Vc f. */
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/recurrent/lstm.h"
#include "kernels/cpu/vmath/vmath.h"

#define LSTM(T, X)                                                                                   \
  static void gates_##X(void *const *p, int64_t H) {                                                 \
    const T *const a = p[0], *const c = p[1];                                                        \
    T *const h = p[2], *const c2 = p[3];                                                             \
    PLK_IVDEP for (int64_t j = 0; j < H; j++) {                                                      \
      const T i = vm_logistic_##X(a[j]), f = vm_logistic_##X(a[H + j]);                              \
      const T g = vm_tanh_##X(a[2 * H + j]), o = vm_logistic_##X(a[3 * H + j]);                      \
      const T cell = f * c[j] + i * g;                                                               \
      c2[j] = cell;                                                                                  \
      h[j] = o * vm_tanh_##X(cell);                                                                  \
    }                                                                                                \
  }                                                                                                  \
  static void bwd_##X(void *const *p, int64_t H) {                                                   \
    const T *const dh = p[0], *const dc2 = p[1], *const a = p[2], *const c = p[3];                   \
    T *const da = p[4], *const dc = p[5];                                                            \
    PLK_IVDEP for (int64_t j = 0; j < H; j++) {                                                      \
      const T i = vm_logistic_##X(a[j]), f = vm_logistic_##X(a[H + j]);                              \
      const T g = vm_tanh_##X(a[2 * H + j]), o = vm_logistic_##X(a[3 * H + j]);                      \
      const T t = vm_tanh_##X(f * c[j] + i * g);                                                     \
      const T q = dc2[j] + dh[j] * o * (1 - t * t);                                                  \
      da[j] = q * g * i * (1 - i);                                                                   \
      da[H + j] = q * c[j] * f * (1 - f);                                                            \
      da[2 * H + j] = q * i * (1 - g * g);                                                           \
      da[3 * H + j] = dh[j] * t * o * (1 - o);                                                       \
      dc[j] = q * f;                                                                                 \
    }                                                                                                \
  }                                                                                                  \
  static void bwd2_##X(void *const *p, int64_t H) {                                                  \
    const T *const dh = p[0], *const dc2 = p[1], *const a = p[2], *const c = p[3];                   \
    const T *const va = p[4], *const vc = p[5];                                                      \
    T *const gdh = p[6], *const gdc2 = p[7], *const ga = p[8], *const gc = p[9];                     \
    PLK_IVDEP for (int64_t j = 0; j < H; j++) {                                                      \
      const T i = vm_logistic_##X(a[j]), f = vm_logistic_##X(a[H + j]);                              \
      const T g = vm_tanh_##X(a[2 * H + j]), o = vm_logistic_##X(a[3 * H + j]);                      \
      const T t = vm_tanh_##X(f * c[j] + i * g);                                                     \
      const T di = i * (1 - i), df = f * (1 - f), dg = 1 - g * g, d_o = o * (1 - o), dt = 1 - t * t; \
      const T vi = va[j], vf = va[H + j], vg = va[2 * H + j], vo = va[3 * H + j];                    \
      const T q = dc2[j] + dh[j] * o * dt;                                                           \
      const T S = vi * g * di + vf * c[j] * df + vg * i * dg + vc[j] * f;                            \
      /* through t to c2, where all but o meet */                                                    \
      const T G = (vo * dh[j] * d_o - 2 * S * dh[j] * o * t) * dt;                                   \
      gdc2[j] = S;                                                                                   \
      gdh[j] = S * o * dt + vo * t * d_o;                                                            \
      ga[j] = q * (vi * g * di * (1 - 2 * i) + vg * dg * di) + G * g * di;                           \
      ga[H + j] = q * (vf * c[j] * df * (1 - 2 * f) + vc[j] * df) + G * c[j] * df;                   \
      ga[2 * H + j] = q * (vi * di * dg - 2 * vg * i * g * dg) + G * i * dg;                         \
      ga[3 * H + j] = S * dh[j] * dt * d_o + vo * dh[j] * t * d_o * (1 - 2 * o);                     \
      gc[j] = q * vf * df + G * f;                                                                   \
    }                                                                                                \
  }
LSTM(float, f32)
LSTM(double, f64)

extern const PlkLstmLoops PLK_ISA_NAME(plk_lstm);
const PlkLstmLoops PLK_ISA_NAME(plk_lstm) = {{gates_f32, gates_f64}, {bwd_f32, bwd_f64}, {bwd2_f32, bwd2_f64}};
