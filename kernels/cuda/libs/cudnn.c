/* SPDX-License-Identifier: MIT
 * Running plans: see cudnn.h. One handle serves all threads, one at a time. */
#include "kernels/cuda/libs/cudnn.h"

#include <pthread.h>

static struct {
  pthread_mutex_t lock;
  cudnnHandle_t handle;
} dnn = {.lock = PTHREAD_MUTEX_INITIALIZER};

static PlStatus open_handle(const PlcDnnApi *api) {
  if (dnn.handle) return PL_OK;
  PLC_DNN_TRY(api, cudnnCreate(&dnn.handle), "opening the device");
  return PL_OK;
}

static PlStatus run(const PlcDnnApi *api, const void *key, size_t size, PlcPlanMake make, int n, const int64_t *uid,
                    void *const *at, bool *done) {
  PlcPlan *plan = NULL;
  PL_TRY(open_handle(api));
  PLC_DNN_TRY(api, cudnnSetStream(dnn.handle, plc_stream()), "setting the stream");
  PlStatus s = plc_plan_get(key, size, (PlcDnnTarget){.handle = dnn.handle}, make, &plan);
  if (s == PL_ERR_UNSUPPORTED || s == PL_ERR_ARG) return PL_OK; /* own kernels compute it */
  PL_TRY(s);
  void *workspace = NULL;
  if (plc_plan_workspace(plan) > 0) s = plc_scratch(plc_plan_workspace(plan), &workspace);
  if (s == PL_OK) s = plc_plan_run(plan, dnn.handle, n, uid, at, workspace);
  plc_scratch_free(workspace);
  plc_plan_release(plan);
  *done = s == PL_OK;
  return s;
}

PlStatus plc_dnn_run(const void *key, size_t size, PlcPlanMake make, int n, const int64_t *uid, void *const *at, bool *done) {
  const PlcDnnApi *api;
  *done = false;
  if (!plc_dnn_version()) return PL_OK;
  PL_TRY(plc_dnn_api(&api));
  pthread_mutex_lock(&dnn.lock);
  PlStatus s = run(api, key, size, make, n, uid, at, done);
  pthread_mutex_unlock(&dnn.lock);
  return s;
}

int plc_dnn_align(int n, void *const *at) {
  uintptr_t bits = 16;
  for (int k = 0; k < n; k++) bits |= (uintptr_t)at[k];
  return (int)(bits & (~bits + 1));
}
