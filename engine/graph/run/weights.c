/* SPDX-License-Identifier: MIT
 * See weights.h. A weight is the same as before if its memory is, which is held so that no other gets its address, and its version:
 * whoever writes moves it. A training writes its weights before each run, so nothing is made of them there: only what was the same
 * twice is kept. Memory that others may write without moving this version (shared with threads, parts of files) never is. */
#include "engine/graph/run/weights.h"

#include <stdlib.h>

#include "engine/tensor/tensor.h"

typedef struct Weight {
  int32_t node, input;
  PlGVal leaf;
  PlTensor *held; /* a handle of its own on the memory */
  uint32_t version;
  PlkKept kept;
} Weight;

struct PlWeights {
  Weight *list; /* by node */
  int32_t n;
};

/* The input of a node that is a captured tensor, and that its kernel may keep a form of; -1: none. One is enough: weights. */
static int32_t weight_of(const PlGraph *f, const PlGNode *n) {
  for (int32_t k = n->op->prepares ? 0 : n->nin; k < n->nin && k < 32; k++)
    if (n->in[k] >= 0 && f->vals[n->in[k]].kind == PL_FV_CAPTURE && f->vals[n->in[k]].ndim > 1) return k;
  return -1;
}

PlStatus pl_weights_new(PlWeights **out, const PlGraph *f) {
  int32_t n = 0;
  *out = NULL;
  for (int32_t i = 0; i < f->nnodes; i++) {
    if (f->nodes[i].flags & PL_FN_MUTATES) return PL_OK;
    n += weight_of(f, &f->nodes[i]) >= 0;
  }
  if (n == 0) return PL_OK;
  PlWeights *w = calloc(1, sizeof *w);
  if (w) w->list = calloc((size_t)n, sizeof *w->list);
  if (!w || !w->list) {
    free(w);
    PL_FAIL(PL_ERR_OOM, "out of memory to run a graph");
  }
  for (int32_t i = 0; i < f->nnodes; i++) {
    const int32_t k = weight_of(f, &f->nodes[i]);
    if (k >= 0) w->list[w->n++] = (Weight){.node = i, .input = k, .leaf = f->nodes[i].in[k]};
  }
  *out = w;
  return PL_OK;
}

static void let_go(Weight *g) {
  plk_kept_clear(&g->kept, 1);
  g->kept.fixed = 0;
  pl_tensor_release(g->held);
  g->held = NULL;
}

void pl_weights_free(PlWeights *w) {
  if (!w) return;
  for (int32_t i = 0; i < w->n; i++) let_go(&w->list[i]);
  free(w->list);
  free(w);
}

static bool ours_alone(const PlStorage *s) { return s->owns == PL_OWNS_BLOCK && !s->shared && s->device == PL_CPU; }

static bool same(const Weight *g, const PlTensor *t) {
  return g->held && g->held->storage == t->storage && g->held->a.data == t->a.data && g->version == t->storage->version;
}

void pl_weights_look(PlWeights *w, PlTensor *const *vals) {
  for (int32_t i = 0; i < w->n; i++) {
    Weight *g = &w->list[i];
    PlTensor *t = vals[g->leaf];
    if (ours_alone(t->storage) && same(g, t)) {
      g->kept.fixed = UINT32_C(1) << g->input;
      continue;
    }
    let_go(g);
    if (!ours_alone(t->storage)) continue;
    t->storage->refs++;
    if (pl_tensor_handle(&g->held, &t->a, t->storage) != PL_OK) { /* not kept, then */
      t->storage->refs--;
      g->held = NULL;
      continue;
    }
    g->version = t->storage->version;
  }
}

PlkKept *pl_weights_kept(PlWeights *w, int32_t i) {
  int32_t lo = 0, hi = w->n;
  while (lo < hi) {
    const int32_t mid = lo + (hi - lo) / 2;
    if (w->list[mid].node < i) lo = mid + 1;
    else hi = mid;
  }
  return lo < w->n && w->list[lo].node == i ? &w->list[lo].kept : NULL;
}
