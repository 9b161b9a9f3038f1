/* SPDX-License-Identifier: MIT
 * Choosing a recomputation by what the whole plan then costs. */
#ifndef PL_ENGINE_GRAPH_RECOMPUTE_POLICY_H
#define PL_ENGINE_GRAPH_RECOMPUTE_POLICY_H

#include "engine/graph/plan/plan.h"
#include "engine/graph/recompute/recompute.h"

/* Policy "auto", or a budget: tries candidates for region r of p->graph and puts the best into p. Errors: a budget in bytes
 * that none meets; the message names the lowest peak. */
PlStatus pl_recompute_choose(PlPlan *p, int32_t region);

#endif
