/* SPDX-License-Identifier: MIT
 * Images read at given places (Jaderberg et al. 2015). x[N,C,size…] with two or three spatial dims, grid[N,out…,nd]: the
 * last dim has the place in [-1, 1], that of the last spatial dim first. f32, f64, and f16/bf16 through f32; everything
 * contiguous and of one dtype. A place that is NaN, or infinite where it is reflected, reads NaN; an
 * infinite one is outside otherwise.
 */
#ifndef PL_KERNELS_GRID_SAMPLE_H
#define PL_KERNELS_GRID_SAMPLE_H

#include "kernels/kernel.h"

enum { PLK_GRID_BILINEAR, PLK_GRID_NEAREST, PLK_GRID_BICUBIC }; /* attr 0; bicubic: two spatial dims alone */
enum { PLK_GRID_ZEROS, PLK_GRID_BORDER, PLK_GRID_REFLECTION };  /* attr 1: what is outside */
enum { PLK_GRID_DIM_MAX = 1 << 30 };                            /* a spatial size at most */

/* in x, grid; out y[N,C,out…]. attrs: 0 mode, 1 padding, 2 align_corners: -1 and 1 are the outer elements' centres, else their
 * outer borders. */
PlStatus plk_cpu_grid_sample(const PlkCall *call);
/* in dy, x, grid; out dx, dgrid (either may be unwanted). dx adds up in the order of the places. */
PlStatus plk_cpu_grid_sample_bwd(const PlkCall *call);

#endif
