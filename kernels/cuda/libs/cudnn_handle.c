/* SPDX-License-Identifier: MIT
 * The process's cuDNN handles: one a GPU for all threads, one at a time (cudnn_api.h). */
#include <pthread.h>
#include <stdlib.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/libs/cudnn_api.h"
#include "kernels/cuda/runtime/locked.h"

static struct {
  pthread_mutex_t lock;
  cudnnHandle_t handle[PL_GPUS];
} dnn = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Recurrent nets go to cuBLAS on several streams, which repeats its bits only with workspaces of one size; it reads how many
 * when it is opened. What the user says goes first. */
static PlStatus open_handle(const PlcDnnApi *api, cudnnHandle_t *handle) {
  if (*handle) return PL_OK;
  if (plc_deterministic()) (void)setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  PLC_DNN_TRY(api, cudnnCreate(handle), "opening the device");
  return PL_OK;
}

PlStatus plc_dnn_begin(const PlcDnnApi **api, cudnnHandle_t *handle) {
  plc_lock(&dnn.lock);
  PL_TRY(plc_dnn_api(api));
  cudnnHandle_t *own = &dnn.handle[plc_gpu_number()];
  PL_TRY(open_handle(*api, own));
  PLC_DNN_TRY(*api, cudnnSetStream(*own, plc_stream()), "setting the stream");
  *handle = *own;
  return PL_OK;
}

void plc_dnn_end(void) { plc_unlock(&dnn.lock); }
