/* SPDX-License-Identifier: MIT
 * Strides, paddings and dilations of convolution and pooling: reading them from attributes, the sizes that
 * follow, and the kernels' view of unbatched inputs. */
#ifndef PL_ENGINE_OPS_NN_CONV_POOL_ATTRS_H
#define PL_ENGINE_OPS_NN_CONV_POOL_ATTRS_H

#include "engine/ops/linalg/matmul_operands.h"

/* One entry a spatial dim, nd of them; pad and end: the padding before and behind. */
typedef struct PlGeometry {
  int nd;
  int64_t kernel[3], stride[3], pad[3], end[3], dil[3];
} PlGeometry;

/* List attribute k as nd numbers, a single one repeated; each at least `least`. */
PlStatus pl_spatial_list(const char *op, const char *name, const PlAttrs *a, int k, int nd, int64_t least, int64_t *out);
/* Position count of a window over a padded size; negative where the window does not fit. Exact for all values. */
int64_t pl_window_count(int64_t size, int64_t kernel, int64_t stride, int64_t pad, int64_t end, int64_t dil, bool ceil_mode);
/* Appends list v of n numbers as attribute k; the pool has room for these ops. */
void pl_kernel_list(PlAttrs *a, int k, int n, const int64_t *v);
void pl_kernel_int(PlAttrs *a, int k, int64_t v);

#endif
