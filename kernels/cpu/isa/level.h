/* SPDX-License-Identifier: MIT
 * How a kernel family gets one table per ISA level and picks the one in use.
 *   in kernels/cpu/isa/<family>.c (compiled once per level):   const Loops PLK_ISA_NAME(plk_x) = {…};
 *   in kernels/cpu/<family>.c:   PLK_ISA_DECLARE(const Loops, plk_x);   … PLK_ISA_PICK(plk_x).f(…) */
#ifndef PL_KERNELS_CPU_ISA_LEVEL_H
#define PL_KERNELS_CPU_ISA_LEVEL_H

#include "kernels/cpu/isa/table.h"

#define PLK_ISA_NAME(name) PLK_SUFFIX(name)

/* The levels that were built (PLK_HAVE_…, from the build). Declared, not used: no level is needed for that. */
#if defined(PLK_HAVE_V4)
#define PLK_ISA_TOP(name) name##_v4
#elif defined(PLK_HAVE_V3)
#define PLK_ISA_TOP(name) name##_v3
#else
#define PLK_ISA_TOP(name) name##_v2
#endif
#if defined(PLK_HAVE_V3)
#define PLK_ISA_MIDDLE(name) name##_v3
#else
#define PLK_ISA_MIDDLE(name) PLK_ISA_TOP(name)
#endif
#if defined(PLK_HAVE_V2)
#define PLK_ISA_BOTTOM(name) name##_v2
#else
#define PLK_ISA_BOTTOM(name) PLK_ISA_MIDDLE(name)
#endif

#if defined(__x86_64__) && !defined(PLK_HAVE_GENERIC)
#define PLK_ISA_DECLARE(type, name) extern type name##_v2, name##_v3, name##_v4
/* The level's second letter tells them apart. */
#define PLK_ISA_PICK(name) \
  (*(plk_isa()[1] == '4' ? &PLK_ISA_TOP(name) : plk_isa()[1] == '3' ? &PLK_ISA_MIDDLE(name) : &PLK_ISA_BOTTOM(name)))
#else
#define PLK_ISA_DECLARE(type, name) extern type name##_generic
#define PLK_ISA_PICK(name)          name##_generic
#endif

#endif
