/* SPDX-License-Identifier: MIT
 * Attention without the matrix of all scores: a few rows of scores at a time. q[…,L,E], k[…,S,E], v[…,S,D] of one
 * floating dtype and equal batch dims, any strides; outputs dense. f16 and bf16 are added up in f32.
 * attrs: 0 scale, 1 causal (query i sees keys 0 … i), 2 p of dropout. */
#ifndef PL_KERNELS_ATTENTION_H
#define PL_KERNELS_ATTENTION_H

#include "kernels/kernel.h"

/* in q, k, v, mask (or NULL: broadcast to […,L,S], bool or floating); out y[…,L,D], sums[…,L,2]: each row's largest
 * score and its sum of exponentials above that, f32 or f64. (Their logarithm in one number would lose the digits that
 * the gradient of saturated rows needs.) With dropout also state[3]: seed, stream and offset of its random words. */
PlStatus plk_cpu_attention(const PlkCall *call);
/* Random counters that the dropout of an output y[…,L,D] with S keys takes. */
uint64_t plk_attention_draws(const PlkCall *call);
/* in dy, q, k, v, sums, mask or NULL, state or NULL, y or NULL (not read here); out dq, dk, dv. */
PlStatus plk_cpu_attention_bwd(const PlkCall *call);
/* in q, k, state; out […,L,S] f32 or f64: 0 where dropout drops, 1 / (1 - p) elsewhere. attrs: 0 p. */
PlStatus plk_cpu_attention_keep(const PlkCall *call);

#endif
