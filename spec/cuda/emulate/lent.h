/* SPDX-License-Identifier: MIT
 * What emulate.cpp has for whole kernels, as a table for those that are compiled while the emulation runs: fused.cpp fills it,
 * fused_before.h reads it. */
#ifndef PL_SPEC_CUDA_LENT_H
#define PL_SPEC_CUDA_LENT_H

#include <cuda_runtime_api.h>

struct Lent {
  dim3 *thread, *block, *block_size, *grid_size;
  void (*barrier)(void);
  void (*warp_barrier)(unsigned);
  void (*swap)(unsigned, const void *, size_t, int, void *);
  unsigned (*ballot)(unsigned, int);
  int (*lane)(void);
};

#endif
