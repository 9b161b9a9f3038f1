/* SPDX-License-Identifier: MIT
 * Kernels that make tensors out of attributes, and the thin layers over kernels/random.h that count index
 * values from the script's base. Attribute positions are those of engine/ops/create/create.c and random.c. */
#ifndef PL_KERNELS_CREATE_H
#define PL_KERNELS_CREATE_H

#include "kernels/kernel.h"

PlStatus plk_cpu_zeros(const PlkCall *call);
PlStatus plk_cpu_full(const PlkCall *call); /* the SCALAR attribute at position `code` */
PlStatus plk_cpu_ones(const PlkCall *call);
PlStatus plk_cpu_eye(const PlkCall *call);
PlStatus plk_cpu_linear_fill(const PlkCall *call); /* n, start, step: start + i·step */
PlStatus plk_cpu_linspace(const PlkCall *call);    /* start, end, steps */
PlStatus plk_cpu_logspace(const PlkCall *call);    /* start, end, steps, base */

PlStatus plk_cpu_randperm_based(const PlkCall *call);    /* n, index_base */
PlStatus plk_cpu_multinomial_based(const PlkCall *call); /* num_samples, replacement, index_base */
PlStatus plk_cpu_bernoulli_like(const PlkCall *call);    /* x; p or none: x holds the probabilities */
PlStatus plk_cpu_bernoulli_fill(const PlkCall *call);    /* p */
PlStatus plk_cpu_dropout_bwd(const PlkCall *call);       /* dy, mask; p: dy·mask / (1 - p) */

#endif
