/* SPDX-License-Identifier: MIT
 * Batch norm where channels are columns, x[N, C] (batch_norm_columns.c), for batch_norm.c. */
#ifndef PL_KERNELS_CPU_NORM_BATCH_NORM_H
#define PL_KERNELS_CPU_NORM_BATCH_NORM_H

#include "kernels/kernel.h"

/* Whether x (and dy, NULL forward) can be read in place. */
bool plk_batch_by_columns(const PlkCall *c, const PlArray *x, const PlArray *dy);
PlStatus plk_batch_columns(const PlkCall *c);
PlStatus plk_batch_columns_bwd(const PlkCall *c);

#endif
