/* SPDX-License-Identifier: MIT
 * Recomputation: which forward nodes of a joint graph are computed again in its backward half, so that their results
 * need not be kept in between. problem.c states the problem over stores (views are transparent), policy_mirror.c and policy_mincut.c
 * decide, recompute.c rewrites the graph. */
#ifndef PL_ENGINE_GRAPH_RECOMPUTE_RECOMPUTE_H
#define PL_ENGINE_GRAPH_RECOMPUTE_RECOMPUTE_H

#include "engine/graph/ir/graph.h"

typedef struct PlRecompute {
  const PlGraph *f;
  int32_t stage; /* of the backward nodes */
  int32_t first; /* the first of them: forward nodes come before it */
  int32_t nstores;
  int64_t *bytes;
  uint8_t *held; /* per store: a leaf or a requested output, which stays anyway */
  uint8_t *leaf;
  uint8_t *back;               /* per store: a backward node reads it */
  int32_t *maker;              /* per store: its forward node, -1: none */
  int32_t *in_at, *in;         /* forward node → the stores it reads, each once; empty for views */
  int32_t *out_at, *out;       /* … → the stores it makes */
  int32_t *reader_at, *reader; /* store → forward nodes that read it */
  uint8_t *may;                /* per node: may be computed again */
  uint8_t *force;              /* per node: must be, if it is read */
  uint8_t *again;              /* per node, the decision: backward reads a copy of it */
} PlRecompute;

/* What may be decided about region r of f, by its options. NULL in *out: the region has no nodes left. */
PlStatus pl_recompute_new(PlRecompute **out, const PlGraph *f, int32_t region);
void pl_recompute_free(PlRecompute *m);
/* May this op be computed again unasked? seeded, heavy: those, too. */
bool pl_recompute_cheap(const PlGNode *n, bool seeded, bool heavy);
/* Is something to be computed again whatever the policy, as marked where the script made it or by name? */
bool pl_recompute_forced(const PlGraph *f, const PlRecomputeOptions *o);
/* Each sets `again`. */
PlStatus pl_recompute_greedy(PlRecompute *m);
PlStatus pl_recompute_mincut(PlRecompute *m);
/* Bytes of forward stores that backward would keep under `again`, and operations it would repeat. */
PlStatus pl_recompute_cost(const PlRecompute *m, int64_t *stash, double *flops);
/* Stores through which all paths from inputs to ys go, in forward order: block outputs. malloc'ed list. */
PlStatus pl_recompute_cuts(const PlRecompute *m, int32_t **stores, int32_t *n);
/* Appends the copies that `again` asks for, each just before its first reader, and compacts f. */
PlStatus pl_recompute_apply(PlGraph *f, const PlRecompute *m, int32_t *copies, double *flops);
/* Elementwise copies on a device come together with what reads the same input behind them (recompute_meet.c). */
PlStatus pl_recompute_meet(PlGraph *f);
/* Appends a copy of node i for the backward half `stage`; it reads in[]. */
PlStatus pl_recompute_repeat(PlGraph *f, int32_t i, int32_t stage, const PlGVal *in, int32_t *node);
/* Bytes of forward stores read by region r's backward nodes as f is. */
PlStatus pl_recompute_stash(const PlGraph *f, int64_t *bytes);

#endif
