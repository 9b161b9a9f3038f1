/* SPDX-License-Identifier: MIT
 * Kernels of connectionist temporal classification. */
#ifndef PL_KERNELS_CTC_H
#define PL_KERNELS_CTC_H

#include "kernels/kernel.h"

/* CTC: in log_probs[T,N,C] (f32 or f64), targets[N,S], input_lengths[N], target_lengths[N] (i64); out nll[N],
 * alpha[N,T,2S+1] (f64). attrs: 0 blank, 1 index_base; class numbers count from the base. */
PlStatus plk_cpu_ctc_loss(const PlkCall *call);
/* in dnll, log_probs, targets, input_lengths, target_lengths, nll, alpha; out dlog_probs. Same attrs. */
PlStatus plk_cpu_ctc_loss_bwd(const PlkCall *call);

#endif
