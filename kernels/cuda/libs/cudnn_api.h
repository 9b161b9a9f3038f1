/* SPDX-License-Identifier: MIT
 * cuDNN 9 as it is found at run time. The library is opened when something first needs it, so that a machine without it
 * loads the plug-in, computes what it can by own kernels and says in one line what is missing. */
#ifndef PL_KERNELS_CUDA_LIBS_CUDNN_API_H
#define PL_KERNELS_CUDA_LIBS_CUDNN_API_H

#include <cudnn.h>

#include "kernels/base.h"

/* What is taken from the library. */
#define PLC_DNN_FUNCTIONS(X)         \
  X(cudnnGetVersion)                 \
  X(cudnnGetErrorString)             \
  X(cudnnGetLastErrorString)         \
  X(cudnnCreate)                     \
  X(cudnnDestroy)                    \
  X(cudnnSetStream)                  \
  X(cudnnBackendCreateDescriptor)    \
  X(cudnnBackendDestroyDescriptor)   \
  X(cudnnBackendFinalize)            \
  X(cudnnBackendSetAttribute)        \
  X(cudnnBackendGetAttribute)        \
  X(cudnnBackendExecute)             \
  X(cudnnCreateTensorDescriptor)     \
  X(cudnnDestroyTensorDescriptor)    \
  X(cudnnSetTensorNdDescriptor)      \
  X(cudnnGetTensorNdDescriptor)      \
  X(cudnnCreateRNNDescriptor)        \
  X(cudnnDestroyRNNDescriptor)       \
  X(cudnnSetRNNDescriptor_v8)        \
  X(cudnnGetRNNWeightSpaceSize)      \
  X(cudnnGetRNNWeightParams)         \
  X(cudnnGetRNNTempSpaceSizes)       \
  X(cudnnCreateRNNDataDescriptor)    \
  X(cudnnDestroyRNNDataDescriptor)   \
  X(cudnnSetRNNDataDescriptor)       \
  X(cudnnRNNForward)                 \
  X(cudnnRNNBackwardData_v8)         \
  X(cudnnRNNBackwardWeights_v8)      \
  X(cudnnCreateCTCLossDescriptor)    \
  X(cudnnDestroyCTCLossDescriptor)   \
  X(cudnnSetCTCLossDescriptor_v9)    \
  X(cudnnGetCTCLossWorkspaceSize_v8) \
  X(cudnnCTCLoss_v8)

typedef struct PlcDnnApi {
#define PLC_X(name) __typeof__(&name) name;
  PLC_DNN_FUNCTIONS(PLC_X)
#undef PLC_X
} PlcDnnApi;

/* The library, opened by the first call. Errors: UNSUPPORTED, which library or function is missing and what to install;
 * the same answer at every later call. */
PlStatus plc_dnn_api(const PlcDnnApi **out);
/* "9.19.0", or NULL when it cannot be opened. */
const char *plc_dnn_version(void);
/* The current GPU's handle, set to the calling thread's stream and locked until plc_dnn_end, which also follows a failure. */
PlStatus plc_dnn_begin(const PlcDnnApi **api, cudnnHandle_t *handle);
void plc_dnn_end(void);
/* "cudnn: <doing>: <cuDNN's own words> (<code>)" as a status: UNSUPPORTED when cuDNN says so, OOM, ARG or STATE else. */
PlStatus plc_dnn_fail(cudnnStatus_t code, const char *doing);

#define PLC_DNN_TRY(api, call, doing)                                                        \
  do {                                                                                       \
    cudnnStatus_t plc_dnn_ = (api)->call;                                                    \
    if (PL_UNLIKELY(plc_dnn_ != CUDNN_STATUS_SUCCESS)) return plc_dnn_fail(plc_dnn_, doing); \
  } while (0)

#endif
