/* SPDX-License-Identifier: MIT
 * Graphs whose tensors lie on a device: nodes run one by one through pl_apply, as reference.c does it, but neighbouring
 * elementwise nodes become one kernel, compiled for the group (kernels/fused.h). Memory comes from the device's caching
 * allocator; what passes between the nodes of a group has none.
 *
 * After three runs all of it is captured (kernels/capture.h) and from then on repeated as one piece of work: inputs are copied
 * into memory that stays, results out of it. PERILUNE_CUDA_GRAPHS=0 turns that off. */
#ifndef PL_ENGINE_GRAPH_RUN_DEVICE_RUN_H
#define PL_ENGINE_GRAPH_RUN_DEVICE_RUN_H

#include "engine/graph/plan/plan.h"

typedef struct PlAway PlAway;

/* For the flow of a plan (borrowed: it must outlive this). */
PlStatus pl_away_new(PlAway **out, const PlFlow *f);
void pl_away_free(PlAway *a); /* NULL is fine */
/* in[ninputs], out[noutputs] as pl_flow_run's. */
PlStatus pl_away_run(PlAway *a, PlTensor *const *in, PlTensor **out);
/* Groups that run as one kernel, and the nodes in them. */
int32_t pl_away_groups(const PlAway *a, int32_t *members);

/* How runs go: "captured", or why not: "not captured: a node looks at values"; also what of it is left out. */
const char *pl_away_how(const PlAway *a);

#endif
