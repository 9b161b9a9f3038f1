/* SPDX-License-Identifier: MIT
 * Kernels of recurrent layers: the pointwise half of an LSTM step, and LSTM, GRU and plain layers over whole sequences. */
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

/* An LSTM over a sequence: in gx[S,N,4H], h0[N,H], c0[N,H], w[4H,H]; out hs and cs [S+1,N,H] (the states before, between
 * and after the steps), gates[S,N,4H] after their activations. attrs: 0 reverse: walk from the end; hs and cs are then
 * reversed, too. f32 or f64, all contiguous. */
PlStatus plk_cpu_lstm_seq(const PlkCall *call);
/* in gates, cs, hs, w, dhs, dcs or NULL, dgates or NULL; out dgx, dh0, dc0, dw. Same attrs. */
PlStatus plk_cpu_lstm_seq_bwd(const PlkCall *call);

/* The same with the inputs' product in it: in x[S,N,I], h0, c0, wx[4H,I], w, b[4H]. */
PlStatus plk_cpu_lstm_layer(const PlkCall *call);

/* A GRU the same way: in gx[S,N,3H], h0[N,H], w[3H,H], b[H] (the bias of n within its reset); out hs[S+1,N,H],
 * acts[S,N,4H]: r, z, n after activation and m = h w_n^T + b. */
PlStatus plk_cpu_gru_seq(const PlkCall *call);
/* in acts, hs, w, dhs, dacts or NULL; out dgx, dh0, dw, db. */
PlStatus plk_cpu_gru_seq_bwd(const PlkCall *call);

/* Without gates: in gx[S,N,H], h0[N,H], w[H,H]; out hs[S+1,N,H]. attrs: 0 reverse, 1 relu in place of tanh. */
PlStatus plk_cpu_rnn_seq(const PlkCall *call);
/* in hs, w, dhs; out dgx, dh0, dw. */
PlStatus plk_cpu_rnn_seq_bwd(const PlkCall *call);

#endif
