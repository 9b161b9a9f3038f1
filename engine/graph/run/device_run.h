/* SPDX-License-Identifier: MIT
 * Graphs whose tensors are on a device: nodes run one by one through pl_apply, as reference.c does it, but neighbouring
 * elementwise nodes become one kernel, compiled for the group (kernels/fused.h). Memory comes from the device's caching
 * allocator; what passes between the nodes of a group has none.
 *
 * After three runs all of it is captured (kernels/capture.h) and from then on repeated as one piece of work: inputs are copied
 * into memory that stays, results out of it. PERILUNE_CUDA_GRAPHS=0 turns that off. */
#ifndef PL_ENGINE_GRAPH_RUN_DEVICE_RUN_H
#define PL_ENGINE_GRAPH_RUN_DEVICE_RUN_H

#include "engine/graph/plan/plan.h"

typedef struct PlDeviceRun PlDeviceRun;

/* For the graph of a plan (borrowed: it must outlive this). */
PlStatus pl_device_run_new(PlDeviceRun **out, const PlGraph *f);
void pl_device_run_free(PlDeviceRun *a); /* NULL is fine */
/* in[ninputs], out[noutputs] as pl_graph_run's. */
PlStatus pl_device_run(PlDeviceRun *a, PlTensor *const *in, PlTensor **out);
/* How many nodes, the first ones, a run that failed had done; 0: it came to its end. */
int32_t pl_device_run_done(const PlDeviceRun *a);
/* Groups that run as one kernel, and the nodes in them. */
int32_t pl_device_run_groups(const PlDeviceRun *a, int32_t *members);

/* How runs go: "captured", or why not: "not captured: a node looks at values"; also what of it is left out. */
const char *pl_device_run_how(const PlDeviceRun *a);

#endif
