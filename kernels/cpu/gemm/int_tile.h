/* SPDX-License-Identifier: MIT
 * The inner loop of products of 8-bit integers on processors with AVX2, faster with VNNI (int_mm.c). */
#ifndef PL_KERNELS_CPU_GEMM_INT_TILE_H
#define PL_KERNELS_CPU_GEMM_INT_TILE_H

#include <stdbool.h>
#include <stdint.h>

enum { PLK_INT_COLS = 64, PLK_INT_ROWS = 6 };

/* Whether the processor has what it takes, and PERILUNE_ISA allows it; nobody else calls plk_int_tile. */
bool plk_int_tile_there(void);

/* z[i, j] = off[i] + sum of x[i, k] panel[k / 4][j][k % 4] over k < 4 · quads, for i < rows <= PLK_INT_ROWS, j < n <= PLK_INT_COLS.
 * x's rows are ldx apart, z's ldz; a panel has PLK_INT_COLS columns, also where n is less. Sums wrap. */
void plk_int_tile(int64_t rows, int64_t quads, const int8_t *x, int64_t ldx, const uint8_t *panel, const int32_t *off, int32_t *z,
                  int64_t ldz, int64_t n);

#endif
