/* SPDX-License-Identifier: MIT
 * Pieces of a run that Ctrl-C does not part, because it did not part them in the script that was traced: an optimizer's step with all of
 * its groups, an average with its count. From the first node of such a piece that writes to the last one Ctrl-C waits. */
#ifndef PL_ENGINE_GRAPH_RUN_WHOLE_H
#define PL_ENGINE_GRAPH_RUN_WHOLE_H

#include "engine/graph/ir/graph.h"

typedef struct PlWhole {
  const int32_t *ends; /* of pl_whole_find */
  int32_t until;       /* node up to which Ctrl-C waits; -1: it does not */
} PlWhole;

/* Per node that writes and is of such a piece: the last of the piece; of others -1. NULL, and free() takes it: there is none. */
PlStatus pl_whole_find(int32_t **ends, const PlGraph *f);
/* Before node i runs: a piece that ended is over; one that begins holds Ctrl-C, which is asked for in between. */
PlStatus pl_whole_at(PlWhole *w, int32_t i);
void pl_whole_over(PlWhole *w); /* the run has ended */

#endif
