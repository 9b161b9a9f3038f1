/* SPDX-License-Identifier: MIT
 * Products with rows of blocks (isa/blocks.c, compiled once per ISA level). Whatever the format, 256 elements of a row are brought
 * into one form: whole numbers of 8 bits, and for every 16 of them a scale and an offset. What they are multiplied with are whole
 * numbers of 16 bits with a scale for every 32, so that sums of products are exact but for the scales. */
#ifndef PL_KERNELS_CPU_BLOCKS_LOOPS_H
#define PL_KERNELS_CPU_BLOCKS_LOOPS_H

#include <stdbool.h>
#include <stdint.h>

enum {
  PLK_SPAN = 256,         /* elements of a weight's row that are brought into form together */
  PLK_SPAN_PARTS = 16,    /* of 16 elements */
  PLK_BLOCK_FEW = 16,     /* rows of x at most that dots takes */
  PLK_BLOCK_FORMATS = 15, /* those that can be multiplied with: the words of PLK_BLOCK_CHOICES */
};

/* In which order a product wants x: the elements that pairs of bytes of q hold, even ones and odd ones apart; or those that four blocks of
 * 32 with two elements a byte hold, as their pairs of bytes have them in bits 0, 4, 8 and 12. */
typedef enum PlkSpanOrder { PLK_SPAN_PAIRS, PLK_SPAN_HALVES } PlkSpanOrder;

/* Numbers x[i] = scale * q. sum: scale times the sum of q over each 16. */
typedef struct PlkSpanX {
  int16_t q[PLK_SPAN]; /* PAIRS: the even ones, then the odd ones. Else four vectors of 32 for the first, four for the second 128 */
  float scale[PLK_SPAN_PARTS], sum[PLK_SPAN_PARTS];
} PlkSpanX;

typedef struct PlkBlockLoop {
  /* y[r * ldy] = the product of a row of `blocks` blocks and row r of x, whose spans are ldx apart. 1 <= rows <= PLK_BLOCK_FEW. */
  void (*dots)(const uint8_t *w, int64_t blocks, const PlkSpanX *x, int64_t ldx, int rows, float *y, int64_t ldy);
  /* The row's numbers, the same bits as the format's dequantize. */
  void (*numbers)(const uint8_t *w, int64_t blocks, float *x);
  PlkSpanOrder order; /* of dots' x */
} PlkBlockLoop;

typedef struct PlkBlockLoops {
  PlkBlockLoop of[PLK_BLOCK_FORMATS]; /* in the order of PLK_BLOCK_CHOICES */
  /* n numbers, the rest of the last span 0. false where rounding would lose more than the last bits of 16: a number that is not
   * finite, or so small that scales have no inverse. */
  bool (*round)(const float *x, int64_t n, PlkSpanOrder order, PlkSpanX *out);
} PlkBlockLoops;

#endif
