/* SPDX-License-Identifier: MIT
 * Arithmetic of sizes that kernels share. */
#ifndef PL_KERNELS_CPU_SIZES_H
#define PL_KERNELS_CPU_SIZES_H

#include <stdint.h>

static inline int64_t plk_max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t plk_min64(int64_t a, int64_t b) { return a < b ? a : b; }
/* a / b rounded up; a >= 0, b > 0 */
static inline int64_t plk_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

#endif
