/* SPDX-License-Identifier: MIT
 * Groups of pointwise nodes that run together, tile by tile: what passes between them stays in the first-level cache
 * and needs no memory of the plan. pl_fuse decides before memory is planned, PlFusion runs what it decided. */
#ifndef PL_ENGINE_GRAPH_FUSE_H
#define PL_ENGINE_GRAPH_FUSE_H

#include "engine/graph/plan.h"

typedef struct PlFusion PlFusion;

/* Fills plan->group (per node: the group's first node, -1: alone) and plan->inner (per value: only its group reads it). */
PlStatus pl_fuse(PlPlan *plan);
PlStatus pl_fusion_new(PlFusion **out, const PlPlan *plan);
void pl_fusion_free(PlFusion *f); /* NULL is fine */
/* One behind the last node of the group that begins at node i; i itself: no group begins there. */
int32_t pl_fusion_end(const PlFusion *f, int32_t i);
PlStatus pl_fusion_run(const PlFusion *f, int32_t i, PlTensor *const *vals);

#endif
