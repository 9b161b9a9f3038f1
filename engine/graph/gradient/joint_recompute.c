/* SPDX-License-Identifier: MIT
 * What backward of a traced function computes again instead of being given it by forward: the recompute options of the trace,
 * decided on forward and gradient pass together, as for a step that has both. Draws are not repeated: forward and backward are
 * two runs, and only the numbers of one could be found again. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/gradient/joint_internal.h"
#include "engine/graph/recompute/recompute.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a traced function"); }

static bool is_wanted(const PlGraph *f) {
  if (f->base) return false; /* numbers of nodes would not be those of f */
  return f->recompute.policy != PL_RECOMPUTE_NONE || pl_recompute_forced(f, &f->recompute);
}

/* The trace's options, with draws pinned. */
static PlStatus options_of(PlRecomputeOptions *o, const PlGraph *f) {
  *o = f->recompute;
  o->choice = calloc((size_t)f->nnodes + 1, 1);
  if (!o->choice) return no_memory();
  o->nchoice = f->nnodes;
  for (int32_t i = 0; i < f->nnodes; i++) {
    if (f->recompute.choice && i < f->recompute.nchoice) o->choice[i] = f->recompute.choice[i];
    if (f->nodes[i].draw >= 0) o->choice[i] = PL_RECOMPUTE_PIN;
  }
  return PL_OK;
}

PlStatus pl_joint_recompute(PlPlan **out, PlGraph *g, const PlGraph *f, int32_t nx, PlGVal *dx) {
  int32_t n = f->noutputs, region = g->nregions - 1;
  *out = NULL;
  if (!is_wanted(f) || region < 0 || region >= 253) return PL_OK;
  PlGVal *outs = malloc(((size_t)n + (size_t)nx + 1) * sizeof *outs);
  if (!outs) return no_memory();
  memcpy(outs, g->outputs, (size_t)n * sizeof *outs);
  for (int32_t i = 0; i < nx; i++)
    if (dx[i] >= 0) outs[n++] = dx[i];
  PlStatus s = pl_graph_set_outputs(g, n, outs);
  free(outs);
  PlRecomputeOptions *o = &g->regions[region].recompute;
  free(o->choice);
  o->choice = NULL;
  if (s == PL_OK) s = options_of(o, f);
  if (s == PL_OK) s = pl_plan_recompute(out, g, region);
  if (s != PL_OK) return s;
  n = f->noutputs;
  for (int32_t i = 0; i < nx; i++)
    if (dx[i] >= 0) dx[i] = (*out)->graph->outputs[n++];
  return PL_OK;
}

void pl_joint_report(const PlPlan *decided, int64_t kept, PlPlan *forward, PlPlan *backward) {
  if (forward) forward->stash_bytes = kept;
  if (!decided) return;
  const PlGraph *g = decided->graph;
  for (int32_t i = 0; forward && i < g->nnodes; i++)
    if ((g->nodes[i].flags & PL_FN_RECOMPUTED) && g->nodes[i].source >= 0 && g->nodes[i].source < forward->nsource)
      forward->recomputed[g->nodes[i].source] = 1;
  if (forward) forward->policy = decided->policy;
  if (!backward) return;
  backward->policy = decided->policy;
  backward->copies = decided->copies;
  backward->extra_flops = decided->extra_flops;
}
