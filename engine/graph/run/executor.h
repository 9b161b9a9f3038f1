/* SPDX-License-Identifier: MIT
 * Executors of plans: everything that can be known before a run is prepared once, so a run is a loop over kernel calls
 * without allocation (besides requested outputs, and the arena, which is freed between runs). reference.c is its judge. */
#ifndef PL_ENGINE_GRAPH_RUN_EXECUTOR_H
#define PL_ENGINE_GRAPH_RUN_EXECUTOR_H

#include "engine/graph/plan/plan.h"

typedef struct PlExec PlExec;

/* Retains the plan. */
PlStatus pl_exec_new(PlExec **out, PlPlan *plan);
void pl_exec_release(PlExec *e); /* NULL is fine */
/* in[ninputs]: any strides; out[noutputs]: fresh tensors, owned by the caller. Called from inside itself it falls back
 * to pl_graph_run. After a failure captured tensors may be partly new, as after the same ops run one by one. */
PlStatus pl_exec_run(PlExec *e, PlTensor *const *in, PlTensor **out);
PlPlan *pl_exec_plan(const PlExec *e);
/* Has the newest run begun to write into what is there? Until then a failure has changed nothing. */
bool pl_exec_wrote(const PlExec *e);
/* Had the node with these attributes run in the newest run, which may have come to its end before something behind it failed?
 * pl_exec_forget: a call begins, whose run is the newest. */
bool pl_exec_ran(const PlExec *e, const PlAttrs *attrs);
void pl_exec_forget(PlExec *e);
/* Least seconds that node i of the plan's graph took in the first PL_EXEC_TIMED runs; of a group its first node says all. */
enum { PL_EXEC_TIMED = 3 };
double pl_exec_seconds(const PlExec *e, int32_t i);

/* What runs it on a device, NULL: it has not run there (device_run.h). */
const struct PlDeviceRun *pl_exec_device_run(const PlExec *e);

#endif
