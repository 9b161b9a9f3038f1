/* SPDX-License-Identifier: MIT
 * The process's cuDNN handle, and running a cached plan on the current stream. */
#ifndef PL_KERNELS_CUDA_LIBS_CUDNN_H
#define PL_KERNELS_CUDA_LIBS_CUDNN_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/libs/cudnn_ops.h"

#define PLC_DNN_WORKSPACE ((int64_t)1 << 30) /* bytes that a plan may ask for */

/* Finds or makes the plan of a key and runs it with its workspace. *done stays false where no engine takes it, or cuDNN
 * is not there. */
PlStatus plc_dnn_run(const void *key, size_t size, PlcPlanMake make, int n, const int64_t *uid, void *const *at, bool *done);

/* Is it there, and may it compute? */
bool plc_dnn_plans(void);

/* The power of two, at most 16, that all addresses are multiples of. */
int plc_dnn_align(int n, void *const *at);

#endif
