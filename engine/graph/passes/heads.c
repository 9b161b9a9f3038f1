/* SPDX-License-Identifier: MIT
 * Attention with its heads side by side: found here, run by run/device_heads.c. */
#include "engine/graph/passes/heads.h"

#include <stdlib.h>
#include <string.h>

#include "engine/ops/names.h"

/* Nodes by what they read: readers of value v are node[at[v]] … node[at[v + 1] - 1]. */
typedef struct Readers {
  int32_t *at, *node;
} Readers;

typedef struct Heads {
  const PlGraph *f;
  const int32_t *last;
  const uint8_t *written, *apart;
  int32_t *tail;
  Readers readers;
} Heads;

static PlStatus readers_of(const PlGraph *f, Readers *r) {
  int32_t all = 0;
  r->at = calloc((size_t)f->nvals + 2, sizeof *r->at);
  for (int32_t i = 0; i < f->nnodes; i++) all += f->nodes[i].nin;
  r->node = malloc(((size_t)all + 1) * sizeof *r->node);
  if (!r->at || !r->node) PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph");
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) r->at[f->nodes[i].in[k] + 2]++;
  for (PlGVal v = 0; v < f->nvals; v++) r->at[v + 2] += r->at[v + 1];
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) r->node[r->at[f->nodes[i].in[k] + 1]++] = i;
  return PL_OK;
}

static bool swaps_heads(const PlGraph *f, const PlGNode *n) {
  const PlGValue *x = &f->vals[n->in[0]], *y = &f->vals[n->first];
  if (n->op != &pl_op_transpose || !(n->flags & PL_FN_VIEW) || x->ndim != 4) return false;
  return (pl_attr_i(n->attrs, 0) == 1 && pl_attr_i(n->attrs, 1) == 2 && y->dims[1] == x->dims[2]) ||
         (pl_attr_i(n->attrs, 0) == 2 && pl_attr_i(n->attrs, 1) == 1 && y->dims[1] == x->dims[2]);
}

/* Nobody writes into it, and it is the graph's own. */
static bool untouched(const Heads *a, PlGVal v) { return !a->written[a->f->vals[v].store] && a->last[v] >= 0 && a->last[v] < a->f->nnodes; }

/* May the value of node j, dense, be made before its turn, alone? */
static bool makes(const Heads *a, int32_t j) {
  const PlGNode *n = &a->f->nodes[j];
  return !a->apart[j] && a->tail[j] < 0 && n->nout == 1 && !(n->flags & (PL_FN_VIEW | PL_FN_MUTATES)) && a->f->vals[n->first].contiguous &&
         untouched(a, n->first);
}

/* The reshape that copies attention's result first; -1: other things are done with it. */
static int32_t rows_of(const Heads *a, PlGVal y) {
  const PlGraph *f = a->f;
  int32_t first = -1;
  if (!untouched(a, y)) return -1;
  for (int32_t k = a->readers.at[y]; k < a->readers.at[y + 1]; k++) {
    const PlGNode *t = &f->nodes[a->readers.node[k]];
    if (t->op == &pl_op_attention_bwd) continue;
    if (!swaps_heads(f, t) || !untouched(a, t->first)) return -1;
    for (int32_t q = a->readers.at[t->first]; q < a->readers.at[t->first + 1]; q++) {
      const int32_t j = a->readers.node[q];
      const PlGNode *n = &f->nodes[j];
      const PlGValue *x = &f->vals[t->first], *v = &f->vals[n->first];
      if (n->op != &pl_op_reshape || !untouched(a, n->first)) return -1;
      const bool rows = v->ndim == 3 && v->dims[0] == x->dims[0] && v->dims[1] == x->dims[1] && makes(a, j);
      if (rows && (first < 0 || j < first)) first = j;
    }
  }
  return first;
}

/* The join of all three gradients that node i makes; -1: other things are done with one of them. */
static int32_t join_of(const Heads *a, int32_t i) {
  const PlGraph *f = a->f;
  int32_t join = -1;
  for (int k = 0; k < 3; k++) {
    const PlGVal v = f->nodes[i].first + k;
    if (f->vals[v].dtype == PL_NDTYPE || !untouched(a, v) || a->readers.at[v + 1] - a->readers.at[v] != 1) return -1;
    const PlGNode *t = &f->nodes[a->readers.node[a->readers.at[v]]];
    if (!swaps_heads(f, t) || !untouched(a, t->first) || a->readers.at[t->first + 1] - a->readers.at[t->first] != 1) return -1;
    const int32_t j = a->readers.node[a->readers.at[t->first]];
    if (join >= 0 && j != join) return -1;
    join = j;
  }
  const PlGNode *n = &f->nodes[join];
  const bool heads = n->op == &pl_op_slices_bwd && n->nin == 3 && pl_attr_i(n->attrs, 0) == 2 && makes(a, join);
  return heads && f->vals[n->first].ndim == 4 && f->vals[n->first].dtype == f->vals[f->nodes[i].first].dtype ? join : -1;
}

static void find(Heads *a) {
  const PlGraph *f = a->f;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    if ((n->op != &pl_op_attention && n->op != &pl_op_attention_bwd) || a->apart[i] || n->nin > PL_MAX_IN) continue;
    if (f->vals[n->first].ndim != 4 || f->vals[n->first].numel == 0) continue;
    const int32_t j = n->op == &pl_op_attention ? rows_of(a, n->first) : join_of(a, i);
    if (j > i) a->tail[i] = a->tail[j] = j;
  }
}

PlStatus pl_heads(const PlGraph *f, const int32_t *last, const uint8_t *written, const uint8_t *apart, int32_t *tail) {
  Heads a = {.f = f, .last = last, .written = written, .apart = apart, .tail = tail};
  bool any = false;
  for (int32_t i = 0; i < f->nnodes && !any; i++) any = f->nodes[i].op == &pl_op_attention || f->nodes[i].op == &pl_op_attention_bwd;
  if (!any) return PL_OK;
  PlStatus s = readers_of(f, &a.readers);
  if (s == PL_OK) find(&a);
  free(a.readers.at);
  free(a.readers.node);
  return s;
}
