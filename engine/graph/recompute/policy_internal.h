/* SPDX-License-Identifier: MIT
 * Choosing a recomputation, inside: policy.c ranks candidates, policy_exhaustive.c lists all of a small graph, peak.c goes on from a
 * candidate where its peak is. */
#ifndef PL_ENGINE_GRAPH_RECOMPUTE_POLICY_INTERNAL_H
#define PL_ENGINE_GRAPH_RECOMPUTE_POLICY_INTERNAL_H

#include "engine/graph/recompute/policy.h"

typedef struct Search {
  PlPlan *p; /* its graph has run through the passes */
  int32_t region;
  PlRecompute *m;                /* the problem with cheap ops; `again` is the candidate's decision */
  PlRecompute *all;              /* the problem with every op that has no effect */
  int64_t most_stash, most_peak; /* budget; INT64_MAX: none */
  bool by_peak;                  /* rank by peak, not by operations */
  PlPlan *best;
  int64_t low_peak, low_stash; /* of all candidates */
} Search;

/* The plan of s->p's graph under m's decision, compared with the best so far. */
PlStatus pl_choose_consider(Search *s, const PlRecompute *m, const char *name);
/* All decisions about m's nodes, where there are few. */
PlStatus pl_choose_all(Search *s, PlRecompute *m);

#endif
