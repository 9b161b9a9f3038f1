/* SPDX-License-Identifier: MIT
 * Convolution in 1 to 3 spatial dims, cross-correlation as everywhere in deep learning:
 *   y[n, o, t] = bias[o] + sum over c, k of x[n, c, t * stride - padding + k * dilation]
 * w[o, c, k] with groups: output channels [i O/g, (i+1) O/g) see input channels [i C/g,
 * (i+1) C/g). Layout x[N, C, in…], w[O, C/g, k…], y[N, O, out…], all contiguous, one
 * dtype. A transposed convolution is bwd_input. attrs: 0 stride list, 1 padding list, 2
 * dilation list (an entry per spatial dim), 3 groups. f16 and bf16 are computed in f32
 * and rounded once; integers wrap. Bits do not depend on threads. */
#ifndef PL_KERNELS_CONV_H
#define PL_KERNELS_CONV_H

#include "kernels/kernel.h"

/* in x, w, optional bias[O]; out y. With a fourth input or attribute, of f32 alone: y + in[3], which has y's shape and may be NULL, then
 * max(y, 0) with attrs 4. */
PlStatus plk_cpu_conv(const PlkCall *call);
/* Of two spatial dims, with a fourth input or attribute, x and y may each be in blocks of b channels, [N, C / b, H, W, b] in place of
 * [N, C, H, W], as libraries compute best; the addend as y. The numbers are those of plain ones. */
int64_t plk_conv_block(void); /* the channels of a block on this machine; 0: there is no such layout */
/* Is such a call, of f32 arrays without data, computed in these blocks? Else it is too, but they are turned first. */
bool plk_cpu_conv_takes_blocks(const PlkCall *call);
/* in dy, w, of f16 and bf16 an optional bias[C] (of dx's channels); out dx, whose shape says how much of the padding is real. */
PlStatus plk_cpu_conv_bwd_input(const PlkCall *call);
/* in dy, x; out dw. */
PlStatus plk_cpu_conv_bwd_weight(const PlkCall *call);

/* x f32 [N, C, H, W] is rounded to q = x / x_scale + x_zero, whole numbers of 8 bits; w i8 [O, C/g, kh, kw]; sums are exact:
 *   y[n, o, t] = x_scale scale[o] sum of (q - x_zero) w + bias[o], outside of the image q = x_zero; then max(y, 0) with attrs 4.
 * in x, w, scale f32 [O], x_scale f32 [1], x_zero i32 [1], optional bias f32 [O]; attrs 0 to 3 as above, 4 relu. */
PlStatus plk_cpu_int8_conv2d(const PlkCall *call);

#endif
