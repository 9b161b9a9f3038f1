/* SPDX-License-Identifier: MIT
 * The tables of levels, for levels.c and those with fewer loops. Before it is included PLK_F16(v), PLK_BF16(v), PLK_INTEGERS(v) and
 * PLK_TANGENTS(v) say what a level v has beside floats (no_loops, no_integers, no_tangents: nothing), and PLK_LEVELS declares what is
 * defined. */
#include "kernels/cpu/isa/table.h"
#include "kernels/elementwise_codes.h"

#ifdef PLK_NO_TANGENTS
static const PlkLoop no_loops[PLK_NEW];
static const PlkLoop no_tangents[PLK_NEW][2][PLK_DUAL_KINDS];
#endif
#ifdef PLK_NO_INTEGERS
static const PlkLoop no_integers[PLK_NEW][PLK_NINT];
#endif

/* The build says which levels it compiled; without word, all of this architecture. */
#if !defined(PLK_HAVE_V2) && !defined(PLK_HAVE_V3) && !defined(PLK_HAVE_V4) && !defined(PLK_HAVE_GENERIC)
#if defined(__x86_64__)
#define PLK_HAVE_V2
#define PLK_HAVE_V3
#define PLK_HAVE_V4
#else
#define PLK_HAVE_GENERIC
#endif
#endif

#define LEVEL(v)                                   \
  static const PlkIsa isa_##v = {#v,               \
                                 plk_ew_f32_##v,   \
                                 plk_ew_f64_##v,   \
                                 PLK_F16(v),       \
                                 PLK_BF16(v),      \
                                 PLK_TANGENTS(v),  \
                                 plk_ew_where_##v, \
                                 plk_ew_copy_##v,  \
                                 plk_ew_cast_##v,  \
                                 PLK_INTEGERS(v),  \
                                 &plk_convert_##v, \
                                 &plk_random_##v};
#if defined(PLK_HAVE_V2)
LEVEL(v2)
#endif
#if defined(PLK_HAVE_V3)
LEVEL(v3)
#endif
#if defined(PLK_HAVE_V4)
LEVEL(v4)
#endif
#if defined(PLK_HAVE_GENERIC)
LEVEL(generic)
#endif

PLK_LEVELS = {
#if defined(PLK_HAVE_GENERIC)
    .generic = &isa_generic,
#endif
#if defined(PLK_HAVE_V2)
    .v2 = &isa_v2,
#endif
#if defined(PLK_HAVE_V3)
    .v3 = &isa_v3,
#endif
#if defined(PLK_HAVE_V4)
    .v4 = &isa_v4,
#endif
};
