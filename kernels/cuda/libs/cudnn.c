/* SPDX-License-Identifier: MIT
 * Running plans: see cudnn.h. */
#include "kernels/cuda/libs/cudnn.h"
#include "kernels/cuda/libs/fastest.h"

typedef struct Call {
  const PlcPlan *plan;
  cudnnHandle_t handle;
  int n;
  const int64_t *uid;
  void *const *at;
  void *workspace; /* enough for any way that will do */
  size_t room;
} Call;

static bool run_way(void *what, int way) {
  const Call *c = what;
  return plc_plan_workspace(c->plan, way) <= c->room && plc_plan_run(c->plan, way, c->handle, c->n, c->uid, c->at, c->workspace) == PL_OK;
}

/* T.cuda.benchmark: each way is run, with the call's own operands (results are written anew each time), and the fastest kept. */
static PlStatus measure(PlcPlan *plan, cudnnHandle_t handle, int n, const int64_t *uid, void *const *at) {
  double times[PLC_PLAN_WAYS] = {0};
  Call c = {plan, handle, n, uid, at, NULL, 0};
  for (int k = 0; k < plc_plan_ways(plan); k++)
    if (plc_plan_workspace(plan, k) > c.room) c.room = plc_plan_workspace(plan, k);
  if (c.room > 0 && plc_scratch(c.room, &c.workspace) != PL_OK) {
    c.room = plc_plan_workspace(plan, 0); /* little memory: what needs no more than the first */
    PL_TRY(c.room > 0 ? plc_scratch(c.room, &c.workspace) : PL_OK);
  }
  const PlStatus s = plc_ways_time(run_way, &c, plc_plan_ways(plan), times);
  plc_scratch_free(c.workspace);
  if (s == PL_OK) plc_plan_decide(plan, times);
  return s;
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
