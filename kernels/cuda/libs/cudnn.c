/* SPDX-License-Identifier: MIT
 * Running plans: see cudnn.h. */
#include "kernels/cuda/libs/cudnn.h"

static PlStatus run(cudnnHandle_t handle, const void *key, size_t size, PlcPlanMake make, int n, const int64_t *uid, void *const *at,
                    bool *done) {
  PlcPlan *plan = NULL;
  PlStatus s = plc_plan_get(key, size, (PlcDnnTarget){.handle = handle}, make, &plan);
  if (s == PL_ERR_UNSUPPORTED || s == PL_ERR_ARG) return PL_OK; /* own kernels compute it */
  PL_TRY(s);
  void *workspace = NULL;
  if (plc_plan_workspace(plan) > 0) s = plc_scratch(plc_plan_workspace(plan), &workspace);
  if (s == PL_OK) s = plc_plan_run(plan, handle, n, uid, at, workspace);
  plc_scratch_free(workspace);
  plc_plan_release(plan);
  *done = s == PL_OK;
  return s;
}

PlStatus plc_dnn_run(const void *key, size_t size, PlcPlanMake make, int n, const int64_t *uid, void *const *at, bool *done) {
  const PlcDnnApi *api;
  cudnnHandle_t handle;
  *done = false;
  if (!plc_cudnn() || !plc_dnn_version()) return PL_OK;
  PlStatus s = plc_dnn_begin(&api, &handle);
  if (s == PL_OK) s = run(handle, key, size, make, n, uid, at, done);
  plc_dnn_end();
  return s;
}

int plc_dnn_align(int n, void *const *at) {
  uintptr_t bits = 16;
  for (int k = 0; k < n; k++) bits |= (uintptr_t)at[k];
  return (int)(bits & (~bits + 1));
}
