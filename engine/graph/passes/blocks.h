/* SPDX-License-Identifier: MIT
 * What the pass `blocks` asks of convolutions (engine/ops/nn/conv.c). */
#ifndef PL_ENGINE_GRAPH_PASSES_BLOCKS_H
#define PL_ENGINE_GRAPH_PASSES_BLOCKS_H

#include "kernels/kernel.h"

/* Of a conv2d or conv_tail with these attributes, on the CPU: is it computed with x, or y, in blocks of channels as given
 * (kernels/conv.h)? No data is looked at. */
bool pl_conv_takes_blocks(const PlAttrs *attrs, const PlArray *x, const PlArray *w, const PlArray *y);

#endif
