/* SPDX-License-Identifier: MIT
 * Pooling over 1 to 3 trailing spatial dims; all leading dims are planes. f32, f64, and
 * f16/bf16 through f32; everything contiguous. Indices are i64, 0-based, flat within the
 * plane of x. Max keeps NaN and, among equals, the first in row-major order. Windows
 * never begin outside x padded; the output's shape already says what ceil_mode decided.
 */
#ifndef PL_KERNELS_POOL_H
#define PL_KERNELS_POOL_H

#include "kernels/kernel.h"

/* in x; out y, indices (either may be unwanted).
 * attrs: 0 kernel, 1 stride, 2 padding (all before, then all behind), 3 dilation lists, 4 ceil_mode. */
PlStatus plk_cpu_max_pool(const PlkCall *call);
/* The same with the tangent: in x, v; out y, indices (may be unwanted), t. f32 and f64. Same attrs. */
PlStatus plk_cpu_max_pool_with_tangent(const PlkCall *call);
/* in x; out y, indices; windows as in adaptive_avg_pool. */
PlStatus plk_cpu_adaptive_max_pool(const PlkCall *call);
/* in dy, indices; out dx: dx[indices] += dy. The same for both; spatial dims from attr
 * 0's length, or, without attributes, all dims but two. */
PlStatus plk_cpu_max_pool_bwd(const PlkCall *call);

/* in x; out y. attrs: 0 kernel, 1 stride, 2 padding lists (as above), 3 count_include_pad, 4
 * ceil_mode, 5 divisor_override (optional), 6 dilation list. */
PlStatus plk_cpu_avg_pool(const PlkCall *call);
/* in dy; out dx; same attrs. */
PlStatus plk_cpu_avg_pool_bwd(const PlkCall *call);

/* in x[N, C, in…]; out y[N, C, out…]: mean of x[floor(t in / out) … ceil((t + 1) in /
 * out)). */
PlStatus plk_cpu_adaptive_avg_pool(const PlkCall *call);
PlStatus plk_cpu_adaptive_avg_pool_bwd(const PlkCall *call);

#endif
