/* SPDX-License-Identifier: MIT
 * What stands before a generated kernel that fused.cpp compiles: what it asks of the emulation goes through a table. Compiled once, when
 * the emulation is built (cmake/Cuda.cmake): a kernel is a few lines, this is most of the work. */
#include <cuda_runtime_api.h>
#include <lent.h>

static Lent lent;
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#define threadIdx (*lent.thread)
#define blockIdx  (*lent.block)
#define blockDim  (*lent.block_size)
#define gridDim   (*lent.grid_size)

#include "kernels/cuda/elementwise/fused.h"
