/* SPDX-License-Identifier: MIT
 * Running plans: see cudnn.h. */
#include "kernels/cuda/libs/cudnn.h"

enum { REPEATS = 3 };

/* Milliseconds of one run of a way, or 0: it does not run here. */
static double time_of(const PlcPlan *plan, int way, cudnnHandle_t handle, int n, const int64_t *uid, void *const *at, cudaEvent_t *e) {
  void *workspace = NULL;
  float ms = 0;
  const size_t bytes = plc_plan_workspace(plan, way);
  if (bytes > 0 && plc_scratch(bytes, &workspace) != PL_OK) return 0;
  PlStatus s = plc_plan_run(plan, way, handle, n, uid, at, workspace); /* the first run may load code */
  bool fine = s == PL_OK && cudaEventRecord(e[0], plc_stream()) == cudaSuccess;
  for (int k = 0; k < REPEATS && s == PL_OK; k++) s = plc_plan_run(plan, way, handle, n, uid, at, workspace);
  fine = fine && s == PL_OK && cudaEventRecord(e[1], plc_stream()) == cudaSuccess && cudaEventSynchronize(e[1]) == cudaSuccess &&
         cudaEventElapsedTime(&ms, e[0], e[1]) == cudaSuccess;
  plc_scratch_free(workspace);
  return fine ? (double)ms / REPEATS : 0;
}

/* T.cuda.benchmark: each way is run, with the call's own operands (results are written anew each time), and the fastest kept. */
static PlStatus measure(PlcPlan *plan, cudnnHandle_t handle, int n, const int64_t *uid, void *const *at) {
  double times[PLC_PLAN_WAYS] = {0};
  cudaEvent_t e[2];
  PLC_TRY(cudaEventCreateWithFlags(&e[0], cudaEventDefault));
  cudaError_t made = cudaEventCreateWithFlags(&e[1], cudaEventDefault);
  for (int k = 0; made == cudaSuccess && k < plc_plan_ways(plan); k++) times[k] = time_of(plan, k, handle, n, uid, at, e);
  if (made == cudaSuccess) (void)cudaEventDestroy(e[1]);
  (void)cudaEventDestroy(e[0]);
  if (made != cudaSuccess) return plc_failed(made, "making an event", __FILE__, __LINE__);
  plc_plan_decide(plan, times);
  return plc_alive();
}

static PlStatus run(cudnnHandle_t handle, const void *key, size_t size, PlcPlanMake make, int n, const int64_t *uid, void *const *at,
                    bool *done) {
  PlcPlan *plan = NULL;
  plc_plans_measure(plc_benchmark());
  PlStatus s = plc_plan_get(key, size, (PlcDnnTarget){.handle = handle}, make, &plan);
  if (s == PL_ERR_UNSUPPORTED || s == PL_ERR_ARG) return PL_OK; /* own kernels compute it */
  PL_TRY(s);
  void *workspace = NULL;
  if (plc_plan_ways(plan) > 1 && plc_benchmark() && !plc_capturing()) s = measure(plan, handle, n, uid, at);
  if (s == PL_OK && plc_plan_workspace(plan, -1) > 0) s = plc_scratch(plc_plan_workspace(plan, -1), &workspace);
  if (s == PL_OK) s = plc_plan_run(plan, -1, handle, n, uid, at, workspace);
  plc_scratch_free(workspace);
  plc_plan_release(plan);
  *done = s == PL_OK;
  return s;
}

bool plc_dnn_plans(void) { return plc_cudnn() && plc_dnn_version(); }

PlStatus plc_dnn_run(const void *key, size_t size, PlcPlanMake make, int n, const int64_t *uid, void *const *at, bool *done) {
  const PlcDnnApi *api;
  cudnnHandle_t handle;
  *done = false;
  if (!plc_dnn_plans()) return PL_OK;
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
