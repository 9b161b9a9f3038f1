/* SPDX-License-Identifier: MIT
 * One running backward. Fill the flags, seed, run; run always cleans up. */
#ifndef PL_ENGINE_GRAD_BACKWARD_WALK_H
#define PL_ENGINE_GRAD_BACKWARD_WALK_H

#include "engine/grad/node.h"

typedef struct PlAside PlAside; /* a node's notes of the walk that this one runs inside of */

/* A leaf whose .grad a walk has added to. fresh: there was none before. */
typedef struct PlSum {
  PlNode *leaf; /* NULL: the script has set .grad since */
  bool fresh;
} PlSum;

typedef struct PlWalk {
  PlTensor *const *ys; /* what it begins at, for traces; ny 0: unknown */
  int ny;
  uint64_t pass;
  bool retain;      /* keep saved tensors for another backward */
  bool fill_leaves; /* add into the leaves' .grad */
  bool narrow;      /* only nodes from which a way leads to a captured slot run, the others stay as they are */
  bool started;     /* rules have run: a failure from here on empties the tape, unless it is to be kept */
  PlStatus status;
  PlNode *first, *last; /* visited nodes, retained, linked through node->link */
  PlNode **heap;        /* nodes ready to run; `few` until more are ready at once */
  size_t nheap, cap;
  PlNode *few[8];
  PlTensor **results; /* captured gradients; NULL: they go into the leaves' .grad */
  PlAside *aside;
  PlSum *sums;
  size_t nsums, cap_sums;
  struct PlWalk *outer; /* inside of a rule or hook of this one */
} PlWalk;

PlStatus pl_walk_seed(PlWalk *w, PlNode *n, uint32_t slot, PlTensor *dy);
/* Checks dy against y (NULL: ones) and seeds. */
PlStatus pl_walk_seed_tensor(PlWalk *w, PlTensor *y, PlTensor *dy, PlNode *node, uint32_t slot, bool scalar_only);
/* Notes that the gradients of xs go to w->results. same_as[i]: position of the x that has i's slot already, or -1, or
 * PL_GOES_ON where other gradients are made of it. */
enum { PL_GOES_ON = -2 };
PlStatus pl_walk_capture(PlWalk *w, PlKey *key, PlTensor *const *xs, int nx, int *same_as);
/* Makes the walk pass through n although no gradient may arrive there. */
PlStatus pl_walk_touch(PlWalk *w, PlNode *n);
/* Rules of the key's tape flagged `always`, such as a remote send, run even when no y leads there. */
PlStatus pl_walk_touch_always(PlWalk *w, PlKey *k);
/* Does the running walk want gradients for dest i of n? */
static inline bool pl_walk_wants(const PlNode *n, uint32_t i) {
  const PlNode *to = n->dests[i].node;
  return to && to->pass == n->pass && !to->skip && (!to->ends || to->slots[n->dests[i].slot].capture);
}
/* Which keys do not record the walk of `key`: none, itself, or every key of its level and above. Keys made while it
 * runs are not concerned. */
typedef enum PlMute { PL_MUTE_NONE, PL_MUTE_SELF, PL_MUTE_ABOVE } PlMute;
/* Mutes those that were made before `born`; by: 1, and -1 to end it. */
void pl_keys_mute(const PlKey *key, PlMute how, uint64_t born, uint32_t by);
PlStatus pl_walk_run(PlWalk *w, const PlKey *key, PlMute mute);
/* Of a narrow walk that is seeded: visits what leads to a captured slot. backward_walk_leading.c */
PlStatus pl_walk_visit_leading(PlWalk *w);
/* An error if n's tape was freed by an earlier backward. */
PlStatus pl_walk_unspent(const PlNode *n);
/* A number that no node's `pass` has. */
uint64_t pl_walk_mark(void);
/* After it: the captured gradients, each a tensor of its own; same_as from pl_walk_capture. */
PlStatus pl_walk_results(PlTensor **out, int nx, const int *same_as);
void pl_walk_abandon(PlWalk *w);
/* leaf_sums.c: n's .grad is about to be added to; the script sets it; the walk has ended. */
PlStatus pl_sums_note(PlNode *n);
void pl_sums_forget(const PlNode *n);
void pl_sums_end(PlWalk *w, bool whole);
/* *sum += g, in place where nobody else can see *sum; takes g. */
PlStatus pl_gradient_accumulate(PlTensor **sum, PlTensor *g);
/* What the walk does at a node: gradients of its inputs, dx[nin] (zeroed, then owned), from those in its slots. node_backward.c */
PlStatus pl_rule_run(PlNode *n, PlTensor **dx);
/* While anomalies are looked for: an error if one of the n tensors holds NaN or Inf. NULL entries are skipped. */
PlStatus pl_anomaly_check(const PlNode *n, PlTensor *const *dx, uint32_t count, bool seeded);

#endif
