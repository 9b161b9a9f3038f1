/* SPDX-License-Identifier: MIT
 * All loops of all levels: see kernels/cpu/isa/table.h. */
#define PLK_F16(v)      plk_ew_f16_##v
#define PLK_BF16(v)     plk_ew_bf16_##v
#define PLK_INTEGERS(v) plk_ew_int_##v
#define PLK_TANGENTS(v) plk_ew_dual_##v
#define PLK_LEVELS      static const PlkIsaLevels levels
#include "kernels/cpu/isa_levels.h"

const PlkIsaLevels *const plk_isa_chosen = &levels;
