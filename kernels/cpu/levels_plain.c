/* SPDX-License-Identifier: MIT
 * Loops of f32, f64, integers and bool: see kernels/cpu/isa/table.h. A loop that is not there is an error of the op that asks for it; halves
 * are widened. */
#define PLK_NO_TANGENTS
#define PLK_F16(v)      no_loops
#define PLK_BF16(v)     no_loops
#define PLK_INTEGERS(v) plk_ew_int_##v
#define PLK_TANGENTS(v) no_tangents
#define PLK_LEVELS      const PlkIsaLevels plk_isa_plain
#include "kernels/cpu/isa_levels.h"
