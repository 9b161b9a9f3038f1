/* SPDX-License-Identifier: MIT
 * Between the files of the emulated cuDNN. */
#ifndef PL_SPEC_CUDA_CUDNN_INTERNAL_H
#define PL_SPEC_CUDA_CUDNN_INTERNAL_H

#include "cudnn.h"

struct cudnnContext {
  cudaStream_t stream;
};
struct cudnnTensorStruct {
  int n, dim[3], stride[3];
  cudnnDataType_t type;
};

cudnnStatus_t plce_dnn_bad(const char *what); /* keeps it for cudnnGetLastErrorString */
#define WANT(what) \
  if (!(what)) return plce_dnn_bad(#what)

#endif
