/* SPDX-License-Identifier: MIT
 * Lowering the peak of a plan by computing values again behind the point where most is alive. */
#ifndef PL_ENGINE_GRAPH_RECOMPUTE_PEAK_H
#define PL_ENGINE_GRAPH_RECOMPUTE_PEAK_H

#include "engine/graph/plan/plan.h"
#include "engine/graph/recompute/recompute.h"

/* *plan, whose graph is m's, with copies behind its forward nodes or without, becomes one with less alive at once, as far as
 * rounds bring it, or until the peak is at most `enough`. Buffers are known afterwards, their places are not. */
PlStatus pl_peak_lower(PlPlan **plan, const PlRecompute *m, int64_t enough);

#endif
