/* SPDX-License-Identifier: MIT
 * Kernels that move whole windows: copies of views, joins, repeats, pads, diagonals, and the adjoints that
 * put a window's gradient back into zeros. Attribute positions are those of the ops in engine/ops/. */
#ifndef PL_KERNELS_JOIN_H
#define PL_KERNELS_JOIN_H

#include "kernels/kernel.h"

/* kernels/cpu/shape/shape.c */
PlStatus plk_cpu_copy(const PlkCall *call);      /* out = in0 in row-major order, equal numel and dtype */
PlStatus plk_cpu_copy_into(const PlkCall *call); /* out (= in0) = in1, broadcast and converted */
PlStatus plk_cpu_shape_of(const PlkCall *call);
PlStatus plk_cpu_slice_bwd(const PlkCall *call);      /* dy; shape, dim, start, step */
PlStatus plk_cpu_slices_bwd(const PlkCall *call);     /* dys; dim: as cat, each added to 0 */
PlStatus plk_cpu_diagonal_bwd(const PlkCall *call);   /* dy; shape, offset, dim1, dim2 */
PlStatus plk_cpu_unfold_bwd(const PlkCall *call);     /* dy; shape, dim, size, step */
PlStatus plk_cpu_as_strided_bwd(const PlkCall *call); /* dy; shape, sizes, strides, offset */
PlStatus plk_cpu_strided_put(const PlkCall *call);    /* x, value; sizes, strides, offset */
PlStatus plk_cpu_diag_embed(const PlkCall *call);     /* x; offset, dim1, dim2 */
PlStatus plk_cpu_diag(const PlkCall *call);           /* a vector; diagonal: its matrix */
PlStatus plk_cpu_tri(const PlkCall *call);            /* x; diagonal. code 0: lower, 1: upper */
PlStatus plk_cpu_trace(const PlkCall *call);

/* kernels/cpu/shape/join.c */
PlStatus plk_cpu_cat(const PlkCall *call);                   /* list; dim */
PlStatus plk_cpu_stack(const PlkCall *call);                 /* list; dim */
PlStatus plk_cpu_tile(const PlkCall *call);                  /* x; repeats */
PlStatus plk_cpu_tile_bwd(const PlkCall *call);              /* dy; repeats, shape */
PlStatus plk_cpu_repeat_interleave(const PlkCall *call);     /* x; repeats, dim or none */
PlStatus plk_cpu_repeat_interleave_bwd(const PlkCall *call); /* dy; repeats, dim or none, shape */
PlStatus plk_cpu_repeat_each(const PlkCall *call);           /* x, counts; dim or none */
PlStatus plk_cpu_repeat_each_bwd(const PlkCall *call);       /* dy, counts; dim or none, shape */
PlStatus plk_cpu_flip(const PlkCall *call);                  /* x; dims */
PlStatus plk_cpu_roll(const PlkCall *call);                  /* x; shifts, dims or none */
PlStatus plk_cpu_pad(const PlkCall *call);                   /* x; pads, mode, value */
PlStatus plk_cpu_pad_bwd(const PlkCall *call);               /* dy; pads, mode, shape */

#endif
