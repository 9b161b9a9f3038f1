/* SPDX-License-Identifier: MIT
 * Attention without the matrix of all scores: a few rows of scores at a time. f32, everything contiguous.
 * q[B,L,E], k[B,S,E], v[B,S,D]; attrs: 0 scale, 1 causal (query i sees keys 0 … i). */
#ifndef PL_KERNELS_ATTENTION_H
#define PL_KERNELS_ATTENTION_H

#include "kernels/kernel.h"

/* in q, k, v; out y[B,L,D], sums[B,L,2]: each row's largest score and its sum of exponentials above that. (Their
 * logarithm in one number would lose the digits that the gradient of saturated rows needs.) */
PlStatus plk_cpu_attention(const PlkCall *call);
/* in dy, q, k, v, sums; out dq, dk, dv. */
PlStatus plk_cpu_attention_bwd(const PlkCall *call);

#endif
