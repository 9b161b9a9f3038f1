/* SPDX-License-Identifier: MIT
 * What computing values again costs. */
#include "engine/remat/remat_internal.h"

/* How many missing values a look at what one needs takes in; where there are more it is dear in any case. */
enum { LOOK_INTO = 256 };

/* Estimated nanoseconds: arithmetic, memory, and what every call takes. Figures, not a clock, so that evictions hang on the
 * program alone. Of the two rates only the ratio matters: convolutions and products reach 130 GFLOP/s on a processor with
 * AVX-512 while elementwise ops and norms move some 7 GB/s. Where arithmetic counts for more, cheap results are evicted over
 * and over to spare convolutions that were hardly dearer. */
double remat_cost(const PlCall *c, PlTensor *const *out) {
  double bytes = 0;
  PlArray *made[PL_MAX_OUT];
  for (int o = 0; o < c->op->nout; o++) {
    made[o] = out[o] ? &out[o]->a : NULL;
    if (out[o]) bytes += (double)out[o]->storage->nbytes;
  }
  for (int i = 0; i < c->nin; i++)
    if (c->in[i]) bytes += (double)c->in[i]->a.numel * (double)pl_dtype_size((PlDtype)c->in[i]->a.dtype);
  return 2000 + 0.15 * bytes + 0.008 * pl_flops_made(c->op, c->attrs, c->arr, c->nin, made);
}

/* The cost of v's recipe and of all that is missing for it, each counted once. */
double remat_estimate(PlValue *v) {
  PlValue *last = v;
  const uint64_t pass = ++remat()->pass;
  double cost = 0;
  int n = 0;
  v->pass = pass;
  v->link = NULL;
  for (PlValue *at = v; at && n < LOOK_INTO; at = at->link, n++) {
    const Recipe *r = at->recipe;
    if (!r) continue;
    cost += r->cost;
    for (int i = 0; i < r->nin; i++) {
      PlValue *w = r->in[i].of;
      if (!w || w->pass == pass || is_resident(w)) continue;
      w->pass = pass;
      w->link = NULL;
      last->link = w;
      last = w;
    }
  }
  return cost;
}
