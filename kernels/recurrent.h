/* SPDX-License-Identifier: MIT
 * Kernels of sequence models: the pointwise half of an LSTM step, and connectionist temporal classification. */
#ifndef PL_KERNELS_RECURRENT_H
#define PL_KERNELS_RECURRENT_H

#include "kernels/kernel.h"

/* LSTM gates, all arrays contiguous and of one dtype (f32 or f64). a[N,4H] holds i, f, g, o before their
 * activations, c[N,H] the cell.
 * in a, c; out h, c2. */
PlStatus plk_cpu_lstm_gates(const PlkCall *call);
/* in dh, dc2, a, c; out da, dc. */
PlStatus plk_cpu_lstm_gates_bwd(const PlkCall *call);
/* in dh, dc2, a, c, vda, vdc (gradients of da and dc); out gradients of dh, dc2, a, c. */
PlStatus plk_cpu_lstm_gates_bwd2(const PlkCall *call);

/* CTC: in log_probs[T,N,C] (f32 or f64), targets[N,S], input_lengths[N], target_lengths[N] (i64); out nll[N],
 * alpha[N,T,2S+1] (f64). attrs: 0 blank, 1 index_base; class numbers count from the base. */
PlStatus plk_cpu_ctc_loss(const PlkCall *call);
/* in dnll, log_probs, targets, input_lengths, target_lengths, nll, alpha; out dlog_probs. Same attrs. */
PlStatus plk_cpu_ctc_loss_bwd(const PlkCall *call);

#endif
