/* SPDX-License-Identifier: MIT
 * Lowering the peak, inside: peak.c looks and chooses, peak_apply.c computes again what was chosen. */
#ifndef PL_ENGINE_GRAPH_RECOMPUTE_PEAK_INTERNAL_H
#define PL_ENGINE_GRAPH_RECOMPUTE_PEAK_INTERNAL_H

#include "engine/graph/recompute/peak.h"

enum { PL_PEAK_CLOSURE = 64 }; /* nodes computed again for one store */

typedef struct PlPeakUse {
  int32_t at_most;     /* last reader that is no node of this backward half; -1 */
  int32_t first, last; /* of all readers and the maker */
} PlPeakUse;

typedef struct PlPeak {
  PlPlan *p; /* the plan so far, without places */
  int32_t stage;
  uint8_t *may; /* per node: may be computed again; plus TRIED for each time that this was tried in vain */
  /* of p, made anew for each round */
  int64_t most;              /* bytes alive at once in the arena */
  int32_t at, until, places; /* the moment, the first of so many */
  PlPeakUse *use;            /* per store */
  int32_t *use_at, *uses;    /* store → nodes that read it, views aside, in order */
  int32_t *kin;              /* per store: the next one that holds the same result of the same node; a ring */
  int32_t *writes;           /* per store: the first node that writes it, nnodes: none; and behind nstores the last, -1 */
  int32_t *cut, *from;       /* per store: computed again before this node, idle since that; -1 */
  int32_t *low, *high;       /* per store: where copies of this round read it */
  /* chosen in this round */
  int32_t *pick;
  int32_t npick;
  uint8_t *banned; /* per store */
} PlPeak;

/* The node that node i repeats, or i. */
static inline int32_t pl_peak_root(const PlGraph *f, int32_t i) {
  return f->nodes[i].flags & PL_FN_RECOMPUTED && f->nodes[i].origin >= 0 ? f->nodes[i].origin : i;
}

typedef struct PlPeakClosure {
  int32_t node[PL_PEAK_CLOSURE]; /* roots; what they read comes first */
  int32_t n;
  int32_t read[2 * PL_PEAK_CLOSURE], nread; /* stores alive that they read */
  double flops;
} PlPeakClosure;

/* Of the results like store s one that is alive in front of node u, whatever was chosen in this round; -1. */
int32_t pl_peak_alive(const PlPeak *k, int32_t s, int32_t u);
/* What must be computed in front of node u to have store s again, without what is alive there. false: it cannot be. */
bool pl_peak_close(const PlPeak *k, PlPeakClosure *c, int32_t s, int32_t u);
/* The plan with the chosen stores evicted; *may goes with it. */
PlStatus pl_peak_apply(const PlPeak *k, PlPlan **out, uint8_t **may);

#endif
