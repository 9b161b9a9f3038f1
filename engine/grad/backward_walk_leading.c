/* SPDX-License-Identifier: MIT
 * A walk for chosen inputs: which nodes lead from the seeds to a captured slot. The others stay as they are. */
#include <stdlib.h>

#include "engine/grad/backward_walk.h"

/* A node that can be reached, with the mark of an outer walk that it may carry. */
typedef struct Found {
  PlNode *node;
  uint64_t pass;
  bool skip;
  bool leads;  /* to a captured slot, be it one of its own */
  bool onward; /* to one of another node */
} Found;

typedef struct Search {
  Found *at;
  size_t n, cap;
  uint64_t mark, oldest; /* nodes that were recorded before any captured one lead nowhere */
} Search;

static PlStatus find(Search *f, PlNode *n) {
  if (n->pass == f->mark || n->seq < f->oldest) return PL_OK;
  if (f->n == f->cap) {
    size_t cap = f->cap ? 2 * f->cap : 64;
    Found *at = realloc(f->at, cap * sizeof *at);
    if (!at) PL_FAIL(PL_ERR_OOM, "backward: out of memory");
    f->at = at;
    f->cap = cap;
  }
  f->at[f->n++] = (Found){.node = n, .pass = n->pass, .skip = n->skip};
  n->pass = f->mark;
  return PL_OK;
}

static int by_record(const void *a, const void *b) {
  const uint64_t x = ((const Found *)a)->node->seq, y = ((const Found *)b)->node->seq;
  return (x > y) - (x < y);
}

/* Producers are older than what they are read by, so one pass in record order finds what leads to a captured slot; `skip`
 * says to the ones that come later whether a way leads on from here. Of a node's results each is on its own: where one is
 * asked about, nothing leads there by the others. */
static void find_leading(Search *f) {
  if (f->n > 1) qsort(f->at, f->n, sizeof *f->at, by_record);
  for (size_t i = 0; i < f->n; i++) {
    PlNode *n = f->at[i].node;
    bool own = false, onward = false;
    for (uint32_t o = 0; o < n->nout; o++) own |= n->slots[o].capture != 0;
    for (uint32_t d = 0; d < n->nin && !onward; d++) {
      const PlNode *to = n->dests[d].node;
      onward = to && to->pass == f->mark && (to->skip || to->slots[n->dests[d].slot].capture);
    }
    f->at[i].onward = n->skip = onward;
    f->at[i].leads = own || onward;
  }
}

/* Is n where the walk begins, rather than an input that it was asked about? */
static bool begins(const PlNode *n) {
  bool asked = false;
  for (uint32_t o = 0; o < n->nout; o++) {
    if (n->slots[o].grad) return true;
    asked |= n->slots[o].capture != 0;
  }
  return !asked;
}

/* n's results that are asked about are all that the walk wants of it: what it began with at others goes nowhere. */
static void end_at(PlNode *n) {
  n->ends = true;
  for (uint32_t o = 0; o < n->nout; o++) {
    if (n->slots[o].capture) continue;
    pl_tensor_release(n->slots[o].grad);
    n->slots[o].grad = NULL;
  }
}

/* Visits what is on a path from the seeds to a captured slot; the seeds that do not are to be skipped. Nodes that do not
 * lead there are as they were before: they may belong to a walk that this one runs inside of. */
PlStatus pl_walk_visit_leading(PlWalk *w) {
  Search f = {.mark = pl_walk_mark(), .oldest = UINT64_MAX};
  PlStatus s = PL_OK;
  for (const PlNode *n = w->first; n; n = n->link)
    for (uint32_t o = 0; o < n->nout; o++)
      if (n->slots[o].capture && n->seq < f.oldest) f.oldest = n->seq;
  for (PlNode *n = w->first; n && s == PL_OK; n = n->link)
    if (begins(n)) s = find(&f, n);
  for (size_t i = 0; i < f.n && s == PL_OK; i++) {
    const PlNode *n = f.at[i].node;
    s = pl_walk_unspent(n); /* where it led is not known any more: perhaps to a captured slot */
    for (uint32_t d = 0; d < n->nin && s == PL_OK; d++)
      if (n->dests[d].node) s = find(&f, n->dests[d].node);
  }
  if (s == PL_OK) find_leading(&f);
  for (PlNode *n = w->first; n && s == PL_OK; n = n->link) n->skip |= n->pass != f.mark; /* an input that nothing leads to */
  for (size_t i = 0; i < f.n; i++) {
    f.at[i].node->pass = f.at[i].pass;
    f.at[i].node->skip = f.at[i].skip;
  }
  for (size_t i = f.n; i > 0 && s == PL_OK; i--) {
    PlNode *n = f.at[i - 1].node;
    if (f.at[i - 1].leads) {
      s = pl_walk_touch(w, n);
      if (s == PL_OK && n->nout > 1 && !f.at[i - 1].onward) end_at(n);
    } else if (f.at[i - 1].pass == w->pass) n->skip = true; /* a seed */
  }
  for (PlNode *n = w->first; n; n = n->link) n->skip |= n->seq < f.oldest; /* a seed that was not even looked at */
  free(f.at);
  return s;
}
