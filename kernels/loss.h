/* SPDX-License-Identifier: MIT
 * Kernels of losses. Attribute positions are those of engine/ops/nn/loss.c; attribute 0 is always the
 * reduction: 0 none, 1 mean, 2 sum, 3 batchmean. */
#ifndef PL_KERNELS_LOSS_H
#define PL_KERNELS_LOSS_H

#include "kernels/kernel.h"

/* From here on a log-sum-exp kept in f32 is too coarse to divide by: half a unit of its last place is 2e-6, and the units grow. */
enum { PLK_LSE_FAR = 32 };

/* Pointwise: inputs broadcast; attribute 1 is beta, delta or log_target. */
typedef enum PlkLoss {
  PLK_L_MSE,
  PLK_L_L1,
  PLK_L_SMOOTH_L1,
  PLK_L_HUBER,
  PLK_L_BCE,        /* x, target, weight? */
  PLK_L_BCE_LOGITS, /* x, target, weight?, pos_weight? */
  PLK_L_KL_DIV
} PlkLoss;
PlStatus plk_cpu_loss(const PlkCall *call);
/* x, target, v -> loss, t (what the loss changes by where x does by v), all inputs of one shape; MSE, L1, SMOOTH_L1, HUBER */
PlStatus plk_cpu_loss_dual(const PlkCall *call);

/* Classes along dim 1 of x[N,C,…] or dim 0 of x[C]. Attributes reduction, ignore_index, index_base,
 * label_smoothing (cross entropy only).
 *   nll_loss: x, target, weight? -> loss              nll_loss_bwd: dy, target, weight? -> dx
 *   cross_entropy: x, target, weight? -> loss, lse    cross_entropy_bwd: dy, x, target, lse, weight? -> dx
 *   cross_entropy_dual: x, target, v, weight? -> loss, lse, t  (t: what the loss changes by where x does by v; x[N,C] or x[C] in f32 or f64)
 *   cross_entropy_bwd2: dy, x, target, lse, v, weight? -> ddy, dx  (v: the gradient of bwd's dx) */
PlStatus plk_cpu_nll_loss(const PlkCall *call);
PlStatus plk_cpu_nll_loss_bwd(const PlkCall *call);
PlStatus plk_cpu_cross_entropy(const PlkCall *call);
PlStatus plk_cpu_nll_loss_with_tangent(const PlkCall *call); /* x, target, weight?, v -> loss, t */
PlStatus plk_cpu_cross_entropy_dual(const PlkCall *call);
PlStatus plk_cpu_cross_entropy_bwd(const PlkCall *call);
PlStatus plk_cpu_cross_entropy_bwd2(const PlkCall *call);
/* Target probabilities of x's shape. x, target, weight? -> loss; attributes reduction, label_smoothing. */
PlStatus plk_cpu_cross_entropy_prob(const PlkCall *call);

/* ---- connectionist temporal classification, without a reduction ---- */

/* in log_probs[T,N,C] (f32 or f64), targets[N,S], input_lengths[N], target_lengths[N] (i64); out nll[N],
 * alpha[N,T,2S+1] (f64). attrs: 0 blank, 1 index_base; class numbers count from the base. */
PlStatus plk_cpu_ctc_loss(const PlkCall *call);
/* in dnll, log_probs, targets, input_lengths, target_lengths, nll, alpha; out dlog_probs. Same attrs. */
PlStatus plk_cpu_ctc_loss_bwd(const PlkCall *call);

#endif
