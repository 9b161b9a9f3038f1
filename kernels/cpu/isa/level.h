/* SPDX-License-Identifier: MIT
 * How a kernel family gets one table per ISA level and picks the one in use.
 *   in kernels/cpu/isa/<family>.c (compiled once per level):   const Loops PLK_ISA_NAME(plk_x) = {…};
 *   in kernels/cpu/<family>.c:   PLK_ISA_DECLARE(const Loops, plk_x);   … PLK_ISA_PICK(plk_x).f(…) */
#ifndef PL_KERNELS_CPU_ISA_LEVEL_H
#define PL_KERNELS_CPU_ISA_LEVEL_H

#include "kernels/cpu/isa/table.h"

#define PLK_ISA_NAME(name) PLK_SUFFIX(name)

#if defined(__x86_64__)
#define PLK_ISA_DECLARE(type, name) extern type name##_v2, name##_v3, name##_v4
/* The level's second letter tells them apart. */
#define PLK_ISA_PICK(name) \
  (*(plk_isa()[1] == '4' ? &name##_v4 : plk_isa()[1] == '3' ? &name##_v3 : &name##_v2))
#else
#define PLK_ISA_DECLARE(type, name) extern type name##_generic
#define PLK_ISA_PICK(name) name##_generic
#endif

#endif
