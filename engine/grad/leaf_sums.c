/* SPDX-License-Identifier: MIT
 * What a backward that fails leaves in .grad: an error in a hook, Ctrl-C, memory that is out. Leaves that had no gradient have
 * none again. A sum that it has added to cannot be taken back, for its old value is gone (keeping it until the end would cost
 * as much memory as all gradients): such a leaf is torn until its .grad is set or written, and whoever would use the
 * gradients (optimizers, clipping) says so. */
#include <stdlib.h>

#include "engine/grad/backward_walk.h"
#include "engine/tensor/tensor.h"

PlStatus pl_sums_note(PlNode *n) {
  PlWalk *w = pl_state.walk;
  if (!w || PL_UNLIKELY(pl_state.trace != NULL)) return PL_OK; /* a graph is run as a whole, or not at all */
  if (w->nsums == w->cap_sums) {
    const size_t cap = w->cap_sums ? 2 * w->cap_sums : 16;
    PlSum *at = realloc(w->sums, cap * sizeof *at);
    if (!at) PL_FAIL(PL_ERR_OOM, "backward: out of memory");
    w->sums = at;
    w->cap_sums = cap;
  }
  n->refs++;
  w->sums[w->nsums++] = (PlSum){.leaf = n, .fresh = n->grad == NULL};
  return PL_OK;
}

static void forget(PlWalk *w, const PlNode *n) {
  for (size_t i = 0; i < w->nsums; i++)
    if (w->sums[i].leaf == n) {
      PlNode *leaf = w->sums[i].leaf;
      w->sums[i].leaf = NULL;
      pl_node_release(leaf);
    }
}

void pl_sums_forget(const PlNode *n) {
  for (PlWalk *w = pl_state.walk; w; w = w->outer) forget(w, n);
}

/* What a walk inside has added stays when the outer one fails: that leaf's sum is no longer the outer one's alone. */
static void keep(const PlWalk *w, const PlNode *n) {
  for (PlWalk *o = w->outer; o; o = o->outer)
    for (size_t i = 0; i < o->nsums; i++)
      if (o->sums[i].leaf == n) o->sums[i].fresh = false;
}

void pl_sums_end(PlWalk *w, bool whole) {
  while (w->nsums) {
    const PlSum *sum = &w->sums[--w->nsums];
    PlNode *n = sum->leaf;
    if (!n) continue;
    if (whole) keep(w, n);
    else if (sum->fresh) {
      pl_tensor_release(n->grad);
      n->grad = NULL;
    } else if (n->grad) {
      pl_leaf_tear(n);
      pl_state.torn = true;
    }
    pl_node_release(n);
  }
  free(w->sums);
  w->sums = NULL;
  w->cap_sums = 0;
}
