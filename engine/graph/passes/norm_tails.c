/* SPDX-License-Identifier: MIT
 * relu(batch_norm(x)) and relu(batch_norm(x) + r), where nobody else reads what is between: found here, run by run/device_norms.c. */
#include "engine/graph/passes/norm_tails.h"

#include <stdlib.h>
#include <string.h>

#include "engine/ops/names.h"

/* The only reader of v; -1: none, several, or the caller. */
static int32_t reader(const PlGraph *f, const int32_t *uses, const int32_t *last, PlGVal v) {
  return uses[v] == 1 && last[v] >= 0 && last[v] < f->nnodes ? last[v] : -1;
}

static bool plain(const PlGraph *f, int32_t i) {
  const PlGNode *n = &f->nodes[i];
  return n->nout == 1 && !n->nafter && !(n->flags & (PL_FN_MUTATES | PL_FN_VIEW | PL_FN_DEAD));
}

static bool same(const PlGValue *a, const PlGValue *b) {
  return a->dtype == b->dtype && a->ndim == b->ndim && memcmp(a->dims, b->dims, a->ndim * sizeof *a->dims) == 0;
}

/* Is r, of nobody's memory but its own, made before node i, and as it is until node end? */
static bool there(const PlGraph *f, PlGVal r, int32_t i, int32_t end) {
  if (r < 0 || f->vals[r].kind != PL_FV_NODE || f->vals[r].node >= i) return false;
  for (int32_t k = i; k < end; k++)
    for (int32_t j = 0; j < f->nodes[k].nin && (f->nodes[k].flags & PL_FN_MUTATES); j++)
      if (f->nodes[k].in[j] >= 0 && f->vals[f->nodes[k].in[j]].store == f->vals[r].store) return false;
  return f->vals[f->stores[f->vals[r].store].first].kind == PL_FV_NODE;
}

static void choose(const PlGraph *f, const int32_t *uses, const int32_t *last, int32_t i, int32_t *tail) {
  const PlGNode *n = &f->nodes[i];
  const PlGValue *y = &f->vals[n->first];
  int32_t sum = -1, end = reader(f, uses, last, n->first);
  if ((n->flags & (PL_FN_MUTATES | PL_FN_DEAD)) || (y->ndim != 4 && y->ndim != 5)) return;
  if (end >= 0 && f->nodes[end].op == &pl_op_add && plain(f, end) && f->nodes[end].nin == 2) {
    sum = end;
    end = same(&f->vals[f->nodes[sum].first], y) ? reader(f, uses, last, f->nodes[sum].first) : -1;
  }
  if (end < 0 || f->nodes[end].op != &pl_op_relu || !plain(f, end) || !same(&f->vals[f->nodes[end].first], y)) return;
  if (sum >= 0) {
    const PlGVal r = f->nodes[sum].in[f->nodes[sum].in[0] == n->first];
    if (!there(f, r, i, end) || !same(&f->vals[r], y)) return;
  }
  tail[i] = end;
  tail[end] = end;
  if (sum >= 0) tail[sum] = end;
}

PlStatus pl_norm_tails(const PlGraph *f, const int32_t *last, int32_t *tail) {
  int32_t *uses = calloc((size_t)f->nvals + 1, sizeof *uses);
  if (!uses) PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph");
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) uses[f->nodes[i].in[k]]++;
  for (int32_t o = 0; o < f->noutputs; o++) uses[f->outputs[o]]++;
  for (int32_t i = 0; i < f->nnodes; i++)
    if (f->nodes[i].op == &pl_op_batch_norm && tail[i] < 0) choose(f, uses, last, i, tail);
  free(uses);
  return PL_OK;
}
