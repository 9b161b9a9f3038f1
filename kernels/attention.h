/* SPDX-License-Identifier: MIT
 * Attention without the matrix of all scores: a few rows of scores at a time. f32, everything contiguous.
 * q[B,L,E], k[B,S,E], v[B,S,D]; attrs: 0 scale, 1 causal (query i sees keys 0 … i). */
#ifndef PL_KERNELS_ATTENTION_H
#define PL_KERNELS_ATTENTION_H

#include "kernels/kernel.h"

/* in q, k, v; out y[B,L,D], lse[B,L]: the logarithm of each row's sum of exponentials. */
PlStatus plk_cpu_attention(const PlkCall *call);
/* in dy, q, k, v, lse; out dq, dk, dv. */
PlStatus plk_cpu_attention_bwd(const PlkCall *call);

#endif
