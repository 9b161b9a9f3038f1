/* SPDX-License-Identifier: MIT
 * Shared by norm.c and norm_double_backward.c: the gradients of the fused backward ops of normalization. */
#ifndef PL_ENGINE_OPS_NN_NORM_H
#define PL_ENGINE_OPS_NN_NORM_H

#include "engine/ops/reduce/dims.h"

PlStatus norm_second_layer(PlMaker *g); /* of layer_norm_bwd(dy, x, mean, rstd, weight?) */
PlStatus norm_second_rms(PlMaker *g);   /* of rms_norm_bwd(dy, x, rstd, weight?) */
PlStatus norm_second_group(PlMaker *g); /* of group_norm_bwd(dy, x, mean, rstd, weight?; num_groups) */
PlStatus norm_second_batch(PlMaker *g); /* of batch_norm_bwd(dy, x, mean, var, weight?; training, wanted, eps) */
/* "2, 3" into buf; returns buf. */
const char *norm_list_text(char *buf, size_t size, int n, const int64_t *v);

#endif
