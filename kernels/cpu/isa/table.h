/* SPDX-License-Identifier: MIT
 * What one ISA level provides to the elementwise engine and the random kernels, and how loops look.
 * Files in kernels/cpu/isa are compiled once per level with -DPLK_ISA=<v2|v3|v4|generic>, which becomes
 * the suffix of the tables' names; kernels/cpu/runtime.c picks a level. */
#ifndef PL_KERNELS_CPU_ISA_TABLE_H
#define PL_KERNELS_CPU_ISA_TABLE_H

#include "kernels/elementwise.h"

/* Casts run over f32, f64, i8 … bool: halves come as f32. */
enum { PLK_NINT = 6, PLK_NCAST = 8 };
static inline int plk_cast_index(int dtype) { return dtype < PL_F16 ? dtype : dtype - 2; }

typedef struct PlkConvert {
  void (*f16_load)(const uint16_t *in, float *out, int64_t n);
  void (*f16_store)(const float *in, uint16_t *out, int64_t n);
  void (*bf16_load)(const uint16_t *in, float *out, int64_t n);
  void (*bf16_store)(const float *in, uint16_t *out, int64_t n);
} PlkConvert;

/* Generators of n values that belong to the blocks from `block` on (kernels/philox.h). */
typedef struct PlkRandomLoops {
  void (*bits)(uint32_t *out, int64_t nblock, const PlkRng *rng, uint64_t block); /* 4 words a block */
  void (*uniform)(float *io, const uint32_t *bits, int64_t n, double lo, double hi);
  /* n even; pairs of words become pairs of normals. */
  void (*normal)(float *out, const uint32_t *bits, int64_t n, double mean, double std);
  void (*normal64)(double *out, const uint32_t *bits, int64_t n, double mean, double std);
} PlkRandomLoops;

typedef struct PlkIsa {
  const char *name;
  const PlkLoop *f32, *f64;                 /* [PLK_NEW]; NULL: no loop at this level */
  const PlkLoop *f16, *bf16;                /* [PLK_NEW], of halves as they are stored; NULL: they are widened for the loop of f32 */
  const PlkLoop (*dual)[2][PLK_DUAL_KINDS]; /* with tangents: [PLK_NEW][f32, f64][PlkDual] */
  const PlkLoop *where;                     /* by log2 of the element size */
  const PlkLoop *copy;                      /* likewise */
  const PlkLoop (*cast)[PLK_NCAST];         /* [from][to], see plk_cast_index */
  const PlkLoop (*integer)[PLK_NINT];       /* integers and bool: [PLK_NEW][i8, i16, i32, i64, u8, bool] */
  const PlkConvert *convert;
  const PlkRandomLoops *random;
} PlkIsa;

#define PLK_CAT2(a, b)   a##b
#define PLK_CAT(a, b)    PLK_CAT2(a, b)
#define PLK_SUFFIX(name) PLK_CAT(name##_, PLK_ISA)

/* Without their lengths, PLK_NEW: kernels/elementwise_codes.h is for those who name members. */
#define PLK_DECLARE_ISA(level)                                    \
  extern const PlkLoop plk_ew_f32_##level[];                      \
  extern const PlkLoop plk_ew_f64_##level[];                      \
  extern const PlkLoop plk_ew_f16_##level[];                      \
  extern const PlkLoop plk_ew_bf16_##level[];                     \
  extern const PlkLoop plk_ew_dual_##level[][2][PLK_DUAL_KINDS];  \
  extern const PlkLoop plk_ew_where_##level[4];                   \
  extern const PlkLoop plk_ew_copy_##level[4];                    \
  extern const PlkLoop plk_ew_cast_##level[PLK_NCAST][PLK_NCAST]; \
  extern const PlkLoop plk_ew_int_##level[][PLK_NINT];            \
  extern const PlkConvert plk_convert_##level;                    \
  extern const PlkRandomLoops plk_random_##level;
PLK_DECLARE_ISA(v2)
PLK_DECLARE_ISA(v3)
PLK_DECLARE_ISA(v4)
PLK_DECLARE_ISA(generic)

/* Compiled once: floats that are not hot [PLK_NEW][f32, f64]. */
extern const PlkLoop plk_ew_rare[][2];
_Static_assert(PL_F32 == 0 && PL_F64 == 1 && PL_BF16 == 3 && PL_I8 == 4 && PL_BOOL == 9, "table order");

/* The levels that were compiled; NULL: not that one. */
typedef struct PlkIsaLevels PlkIsaLevels;
struct PlkIsaLevels {
  const PlkIsa *generic, *v2, *v3, *v4;
};
/* Those that runtime.c picks from: all loops (levels.c). A program of one model defines it as one of these, so that the linker
 * need not take loops for dtypes that the model does not have (levels_floats.c, levels_plain.c; engine/deploy/emit.c). */
extern const PlkIsaLevels *const plk_isa_chosen;
extern const PlkIsaLevels plk_isa_floats; /* f32 and f64 */
extern const PlkIsaLevels plk_isa_plain;  /* integers and bool too */

/* The level in use. */
const PlkIsa *plk_isa_tables(void);

/* The iterations of the next loop are independent although pointers may be equal. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* loops around libm stay scalar */
#define PLK_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define PLK_IVDEP _Pragma("GCC ivdep")
#endif

/* Parameter k as a double, or `otherwise` if it was not given. */
static inline double plk_param(const PlAttrs *a, int k, double otherwise) {
  if (!pl_attr_has(a, k)) return otherwise;
  return (a->isint >> k) & 1 ? (double)a->v[k].i : a->v[k].f;
}

#endif
