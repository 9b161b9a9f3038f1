/* SPDX-License-Identifier: MIT
 * Between kernels/cpu/lstm.c and its inner loops, which are compiled once per ISA level (isa/lstm.c). */
#ifndef PL_KERNELS_CPU_LSTM_H
#define PL_KERNELS_CPU_LSTM_H

#include <stdint.h>

/* One row of H cells. p: the op's inputs, then its outputs, at that row. */
typedef void (*PlkLstmRow)(void *const *p, int64_t H);

typedef struct PlkLstmLoops {
  PlkLstmRow gates[2], bwd[2], bwd2[2]; /* f32, f64 */
} PlkLstmLoops;

#endif
