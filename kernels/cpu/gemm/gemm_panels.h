/* SPDX-License-Identifier: MIT
 * Products of some dozens or hundreds of rows, as layers have them: the rows are packed once, by all threads, and every unit packs its
 * columns and multiplies all rows with them (gemm_panels.c). */
#ifndef PL_KERNELS_CPU_GEMM_GEMM_PANELS_H
#define PL_KERNELS_CPU_GEMM_GEMM_PANELS_H

#include "kernels/cpu/gemm/gemm.h"

/* gemm_micro.h of one scalar type at one ISA level. */
typedef struct PlkGemmCode {
  int64_t mr, w; /* rows and columns of a panel */
  void (*pack)(int64_t k, int64_t n, int w, const void *src, int64_t sp, int64_t sj, void *dst);
  void (*strip)(const PlkGemm *g, int64_t p0, int64_t kc, const void *rows, const void *columns, int64_t nc, void *to, uintptr_t soon,
                int64_t soon_row);
} PlkGemmCode;

const PlkGemmCode *plk_gemm_code(PlDtype d); /* gemm_packed.c */

/* By shape, dtype and processor level alone. */
bool plk_gemm_panels_fits(const PlkGemm *g);
PlStatus plk_gemm_panels(const PlkGemm *g);

#endif
