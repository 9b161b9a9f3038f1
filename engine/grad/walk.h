/* SPDX-License-Identifier: MIT
 * One running backward. Fill the flags, seed, run; run always cleans up. */
#ifndef PL_ENGINE_GRAD_WALK_H
#define PL_ENGINE_GRAD_WALK_H

#include "engine/grad/node.h"

typedef struct PlWalk {
  uint64_t pass;
  bool retain;        /* keep saved tensors for another backward */
  bool fill_leaves;   /* add into the leaves' .grad */
  bool started;       /* rules have run: a failure from here on empties the tape */
  PlStatus status;
  PlNode *first, *last; /* visited nodes, retained, linked through node->link */
  PlNode **heap;        /* nodes ready to run */
  size_t nheap, cap;
  PlTensor **results; /* captured gradients */
} PlWalk;

PlStatus pl_walk_seed(PlWalk *w, PlNode *n, uint32_t slot, PlTensor *dy);
/* Checks dy against y (NULL: ones) and seeds. */
PlStatus pl_walk_seed_tensor(PlWalk *w, PlTensor *y, PlTensor *dy, PlNode *node, uint32_t slot,
                             bool scalar_only);
/* Makes the walk pass through n although no gradient may arrive there. */
PlStatus pl_walk_touch(PlWalk *w, PlNode *n);
PlStatus pl_walk_run(PlWalk *w, int record_below);
void pl_walk_abandon(PlWalk *w);

#endif
