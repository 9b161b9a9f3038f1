/* SPDX-License-Identifier: MIT
 * From a graph to something that can run: pl_graph_compile clones it, runs the passes, decides what is computed again in
 * the backward half, and gives every store a place. The plan is what executors take.
 *
 * Memory of a plan: leaves are the caller's tensors; every requested output has a store of its own, which is the
 * caller's memory too; all other stores are in one arena at fixed offsets. Stores that share memory because a node works
 * in place form one buffer. A store is alive from the node that makes it to its last reader. */
#ifndef PL_ENGINE_GRAPH_PLAN_PLAN_H
#define PL_ENGINE_GRAPH_PLAN_PLAN_H

#include "engine/graph/ir/graph.h"

typedef enum PlPlace {
  PL_AT_NOTHING, /* an output that the call does not have, or no bytes */
  PL_AT_LEAF,    /* memory of an input, capture or constant: the leaf value is stores[s].first */
  PL_AT_OUTPUT,  /* memory of requested output number `at` */
  PL_AT_ARENA    /* `at` bytes behind the arena's beginning, 64-byte aligned */
} PlPlace;

typedef struct PlBuffer {
  PlPlace place;
  int64_t at, bytes;    /* bytes: rounded up to 64 in the arena */
  int32_t birth, death; /* nodes: the first that writes it, the last that touches it; death nnodes: until the end */
} PlBuffer;

/* What one pass did. */
typedef struct PlPassReport {
  const char *name;
  int32_t removed; /* nodes that went */
  bool ran;
} PlPassReport;

typedef struct PlPlan {
  uint32_t refs;
  PlGraph *graph;  /* the rewritten clone; its nodes in the order in which they run */
  int32_t *buffer; /* per store of graph */
  PlBuffer *buffers;
  int32_t nbuffers;
  uint8_t *recomputed; /* per node of the *source* graph: 1: some copy of it runs in a backward half */
  int32_t nsource;
  int32_t *group;            /* per node: first node of the group that runs as one, tile by tile; -1: alone (tile.h) */
  struct PlFuseSpace *space; /* per node where a group begins: what its members work on (roles.h) */
  uint8_t *inner;            /* per value: exists only inside of its group's tiles, has no memory */
  /* figures, in bytes and operations */
  int64_t stash_bytes;                    /* forward tensors that backward reads: neither leaves nor requested outputs */
  int64_t arena_bytes, lower_bound_bytes; /* the bound: the most that is alive at once in the arena */
  int64_t leaf_bytes, output_bytes;
  int64_t peak_bytes;        /* arena + leaves + outputs */
  int32_t copies;            /* recomputed nodes (views do not count) */
  double flops, extra_flops; /* all; those of recomputed nodes */
  int64_t inplace;           /* stores that took over an input's memory */
  /* The executor's own counter, of the newest run that ended well: the most memory that the run held at once, and the part
   * of it that kernels took for themselves. measured = arena + leaves + outputs + workspace. 0: it has not run. */
  int64_t measured_bytes, workspace_bytes;
  const char *policy; /* which policy was taken: "none" "mirror" "mincut" "pinned" "segments" "unlocked" "all" "peak" */
  PlPassReport *passes;
  int32_t npasses;
} PlPlan;

/* The plan of f for its requested outputs. Errors: no outputs; a budget that cannot be met; a leaf that is overwritten
 * before it would be read again. */
PlStatus pl_graph_compile(PlPlan **out, PlGraph *f);
/* A plan that says only what region r of f computes again: its graph is f with the copies, nothing else has run. */
PlStatus pl_plan_recompute(PlPlan **out, PlGraph *f, int32_t region);
void pl_plan_release(PlPlan *p);
bool pl_pass_is_off(const char *name); /* by PERILUNE_PASSES=-name,… */
/* Lifetimes, in-place pairs and offsets of p->graph as it is; fills buffers and figures. (memory.c) */
PlStatus pl_plan_memory(PlPlan *p);
/* The same, but for the offsets. */
PlStatus pl_plan_live(PlPlan *p);
/* Places n buffers with lifetimes into one arena; sets their `at`, returns the arena's size. (arena.c) */
PlStatus pl_arena_place(int32_t n, PlBuffer *const *b, int64_t *size, int64_t *lower_bound);

#endif
