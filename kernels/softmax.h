/* SPDX-License-Identifier: MIT
 * Kernels of softmax and log_softmax. */
#ifndef PL_KERNELS_SOFTMAX_H
#define PL_KERNELS_SOFTMAX_H

#include "kernels/kernel.h"

/* attr 0 = dim. kcode 1: the logarithm. bwd: inputs dy, y. */
PlStatus plk_cpu_softmax(const PlkCall *call);
PlStatus plk_cpu_softmax_bwd(const PlkCall *call);
PlStatus plk_cpu_softmax_with_tangent(const PlkCall *call); /* PlOp.with_tangent: x, v -> y, t */

#endif
