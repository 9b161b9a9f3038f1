/* SPDX-License-Identifier: MIT
 * Formulas of the pointwise losses in double, compiled once per ISA level: y = loss(x, t). */
#include "kernels/loss.h"

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/vmath/vmath.h"

#define LOSS(name, FORMULA)                                                                                                \
  static void name(const double *PL_RESTRICT x, const double *PL_RESTRICT target, const double *PL_RESTRICT pos, double p, \
                   double *PL_RESTRICT y, int64_t n) {                                                                     \
    (void)p, (void)pos;                                                                                                    \
    for (int64_t i = 0; i < n; i++) {                                                                                      \
      const double v = x[i], t = target[i];                                                                                \
      y[i] = (FORMULA);                                                                                                    \
    }                                                                                                                      \
  }

/* The same of floats, added in fixed lanes while they are in registers. */
enum { LANES = 32 };
#define LOSS_SUM(name, FORMULA)                                                        \
  static double name##_sum(const float *x, const float *target, double p, int64_t n) { \
    double lane[LANES] = {0};                                                          \
    int64_t i = 0;                                                                     \
    (void)p;                                                                           \
    for (; i + LANES <= n; i += LANES)                                                 \
      for (int j = 0; j < LANES; j++) {                                                \
        const double v = (double)x[i + j], t = (double)target[i + j];                  \
        lane[j] += (FORMULA);                                                          \
      }                                                                                \
    for (int j = 0; i < n; i++, j++) {                                                 \
      const double v = (double)x[i], t = (double)target[i];                            \
      lane[j] += (FORMULA);                                                            \
    }                                                                                  \
    for (int h = LANES / 2; h; h /= 2)                                                 \
      for (int j = 0; j < h; j++) lane[j] += lane[j + h];                              \
    return lane[0];                                                                    \
  }
#define LOSS_SLOPE(name, SLOPE)                                                                                                        \
  static void name##_slope(const double *PL_RESTRICT x, const double *PL_RESTRICT target, const double *PL_RESTRICT tangent, double p, \
                           double *PL_RESTRICT y, int64_t n) {                                                                         \
    (void)p;                                                                                                                           \
    for (int64_t i = 0; i < n; i++) {                                                                                                  \
      const double d = x[i] - target[i];                                                                                               \
      y[i] = (SLOPE)*tangent[i];                                                                                                       \
    }                                                                                                                                  \
  }
/* The value's lanes are those of LOSS_SUM. */
#define LOSS_DUAL(name, FORMULA, SLOPE)                                                                                    \
  static double name##_dual(const float *x, const float *target, const float *tangent, double p, int64_t n, double *dot) { \
    double lane[LANES] = {0}, other[LANES] = {0};                                                                          \
    int64_t i = 0;                                                                                                         \
    (void)p;                                                                                                               \
    for (; i + LANES <= n; i += LANES)                                                                                     \
      for (int j = 0; j < LANES; j++) {                                                                                    \
        const double v = (double)x[i + j], t = (double)target[i + j], d = v - t;                                           \
        lane[j] += (FORMULA);                                                                                              \
        other[j] += (SLOPE) * (double)tangent[i + j];                                                                      \
      }                                                                                                                    \
    for (int j = 0; i < n; i++, j++) {                                                                                     \
      const double v = (double)x[i], t = (double)target[i], d = v - t;                                                     \
      lane[j] += (FORMULA);                                                                                                \
      other[j] += (SLOPE) * (double)tangent[i];                                                                            \
    }                                                                                                                      \
    for (int h = LANES / 2; h; h /= 2)                                                                                     \
      for (int j = 0; j < h; j++) lane[j] += lane[j + h], other[j] += other[j + h];                                        \
    *dot = other[0];                                                                                                       \
    return lane[0];                                                                                                        \
  }
#define LOSS_OF_DIFFERENCE(name, FORMULA, SLOPE) \
  LOSS(name, FORMULA) LOSS_SUM(name, FORMULA) LOSS_SLOPE(name, SLOPE) LOSS_DUAL(name, FORMULA, SLOPE)

VM double smooth(double d, double beta) {
  const double a = vm_abs_f64(d), low = a * a * (0.5 / beta), high = a - 0.5 * beta;
  return a < beta ? low : high;
}
VM double at_least(double v, double least) { return v < least ? least : v; }

/* (1 - t) x + q (log(1 + e^-|x|) + max(-x, 0)), q = 1 + (pos_weight - 1) t, or 1 without, whatever t. Multiples of x are added up first, so
 * that where they are none the logarithm keeps its digits. */
VM double with_logits(double x, double t, double q) {
  const double e = vm_log1p01_f64(vm_exp_f64(-vm_abs_f64(x)));
  return (1 - t - (x < 0 ? q : 0)) * x + q * e;
}

/* The same to 1e-9 of what is added, for elements that are floats or halves. */
VM double with_logits_low(double x, double t, double q) {
  const double z = vm_exp_low(-vm_abs_f64(x)), u = 1 + z;
  const bool upper = u > 1.4142135623730951;
  const double e = vm_logk_low(upper ? 0.5 * u - 1 : z, upper ? 1 : 0);
  return (1 - t - (x < 0 ? q : 0)) * x + q * e;
}

VM double sign(double d) { return d > 0 ? 1 : d < 0 ? -1 : 0; } /* of NaN, too, as its gradient is and PyTorch's */
VM double within(double d, double most) {
  const double low = d < -most ? -most : d;
  return low > most ? most : low;
}
LOSS_OF_DIFFERENCE(mse, (v - t) * (v - t), 2 * d)
LOSS_OF_DIFFERENCE(l1, vm_abs_f64(v - t), sign(d))
LOSS_OF_DIFFERENCE(smooth_l1, smooth(v - t, p), within(d *(1 / p), 1)) /* slope: of beta = 0 l1 is asked */
LOSS_OF_DIFFERENCE(huber, p *smooth(v - t, p), within(d, p))           /* delta times smooth L1 with beta = delta */
LOSS(bce, (t - 1) * at_least(vm_log1p_f64(-v), -100) - t * at_least(vm_log_f64(v), -100))
LOSS(bce_logits_1, with_logits(v, t, 1))
LOSS(bce_logits_pos, with_logits(v, t, 1 + (pos[i] - 1) * t))
static void bce_logits(const double *x, const double *t, const double *pos, double p, double *y, int64_t n) {
  (pos ? bce_logits_pos : bce_logits_1)(x, t, pos, p, y, n);
}
LOSS(bce_logits_low_1, with_logits_low(v, t, 1))
LOSS(bce_logits_low_pos, with_logits_low(v, t, 1 + (pos[i] - 1) * t))
static void bce_logits_low(const double *x, const double *t, const double *pos, double p, double *y, int64_t n) {
  (pos ? bce_logits_low_pos : bce_logits_low_1)(x, t, pos, p, y, n);
}
/* t log t - t x, 0 log 0 = 0; with log_target e^t (t - x) */
LOSS(kl_of_logs, vm_exp_f64(t) * (t - v))
LOSS(kl_of_shares, (t == 0 ? 0 : t * vm_log_f64(t)) - t * v)
static void kl_div(const double *x, const double *t, const double *pos, double p, double *y, int64_t n) {
  (p != 0 ? kl_of_logs : kl_of_shares)(x, t, pos, p, y, n);
}

extern const PlkLossLoops PLK_ISA_NAME(plk_loss_table);
#define DIFFERENCES(kind) \
  { [PLK_L_MSE] = mse_##kind, [PLK_L_L1] = l1_##kind, [PLK_L_SMOOTH_L1] = smooth_l1_##kind, [PLK_L_HUBER] = huber_##kind }
const PlkLossLoops PLK_ISA_NAME(plk_loss_table) = {
    .loop = {[PLK_L_MSE] = mse,
             [PLK_L_L1] = l1,
             [PLK_L_SMOOTH_L1] = smooth_l1,
             [PLK_L_HUBER] = huber,
             [PLK_L_BCE] = bce,
             [PLK_L_BCE_LOGITS] = bce_logits,
             [PLK_L_KL_DIV] = kl_div},
    .low = {[PLK_L_BCE_LOGITS] = bce_logits_low},
    .sum_f32 = DIFFERENCES(sum),
    .slope = DIFFERENCES(slope),
    .dual_f32 = DIFFERENCES(dual),
};
