/* SPDX-License-Identifier: MIT
 * Tails of convolutions: relu(conv(x)), conv(x) + r and relu(conv(x) + r), where nobody else reads what is between, become one node, whose
 * kernel adds and clips what it has just computed while that is in cache: the same operations on the same numbers, without writing
 * and reading them again. f32 on the CPU, in graphs that write into nothing and need no gradients. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/passes/pass.h"
#include "engine/ops/names.h"

typedef struct Tails {
  PlGraph *f;
  int32_t *uses; /* per value: readers, outputs too */
} Tails;

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

/* Is it all of what a tail may work on? */
static bool plain(const PlGValue *v) { return v->dtype == PL_F32 && v->device == PL_CPU && v->contiguous && !v->weak; }

/* The node that computes v for one reader alone; -1: none. */
static int32_t own(const Tails *t, PlGVal v) {
  if (v < 0 || t->uses[v] != 1 || t->f->vals[v].kind != PL_FV_NODE || !plain(&t->f->vals[v])) return -1;
  const PlGNode *n = &t->f->nodes[t->f->vals[v].node];
  return n->flags & (PL_FN_VIEW | PL_FN_MUTATES | PL_FN_RECOMPUTED | PL_FN_DEAD) ? -1 : t->f->vals[v].node;
}

static bool is_conv(const PlGraph *f, int32_t i) {
  return i >= 0 && (f->nodes[i].op == &pl_op_conv1d || f->nodes[i].op == &pl_op_conv2d || f->nodes[i].op == &pl_op_conv3d);
}

static bool same_shape(const PlGValue *a, const PlGValue *b) {
  return a->ndim == b->ndim && (a->ndim == 0 || memcmp(a->dims, b->dims, a->ndim * sizeof *a->dims) == 0);
}

/* Of v = conv(x) + r: the convolution, and r. The later one of two, so that r is there. */
static int32_t sum_of(const Tails *t, int32_t i, PlGVal *r) {
  const PlGraph *f = t->f;
  const PlGNode *n = &f->nodes[i];
  int32_t best = -1;
  if (n->op != &pl_op_add) return -1;
  for (int k = 0; k < 2; k++) {
    const int32_t conv = own(t, n->in[k]);
    const PlGVal other = n->in[1 - k];
    if (!is_conv(f, conv) || conv < best || other < 0 || !plain(&f->vals[other]) || !same_shape(&f->vals[other], &f->vals[n->first]))
      continue;
    best = conv;
    *r = other;
  }
  return best;
}

static PlStatus become(const Tails *t, int32_t i, int32_t conv, PlGVal r, bool relu) {
  PlGraph *f = t->f;
  const PlGNode *c = &f->nodes[conv];
  PlGNode *n = &f->nodes[i];
  PlAttrs a = {.nval = 0};
  memcpy(&a, c->attrs, pl_attrs_size(c->attrs));
  a.nval = 6;
  pl_attrs_int(&a, 4, relu);
  pl_attrs_int(&a, 5, 0);
  PlGVal *in = pl_graph_alloc(f, 4 * sizeof *in);
  PlAttrs *kept = pl_graph_alloc(f, pl_attrs_size(&a));
  if (!in || !kept) return no_memory();
  memcpy(kept, &a, pl_attrs_size(&a));
  in[0] = c->in[0], in[1] = c->in[1], in[2] = c->nin > 2 ? c->in[2] : -1, in[3] = r;
  n->op = &pl_op_conv_tail, n->in = in, n->nin = 4, n->attrs = kept, n->flops = c->flops;
  f->nodes[conv].flags |= PL_FN_DEAD;
  return PL_OK;
}

static PlStatus rewrite(const Tails *t, int32_t i, int32_t *removed) {
  PlGraph *f = t->f;
  const PlGNode *n = &f->nodes[i];
  if (n->flags & (PL_FN_VIEW | PL_FN_MUTATES | PL_FN_RECOMPUTED | PL_FN_DEAD) || !plain(&f->vals[n->first])) return PL_OK;
  const bool relu = n->op == &pl_op_relu;
  const int32_t sum = relu ? own(t, n->in[0]) : i;
  PlGVal r = -1;
  if (sum < 0) return PL_OK;
  int32_t conv = is_conv(f, sum) ? sum : sum_of(t, sum, &r);
  if (conv < 0 || conv == i) return PL_OK;
  if (sum != conv && sum != i) {
    f->nodes[sum].flags |= PL_FN_DEAD;
    ++*removed;
  }
  ++*removed;
  return become(t, i, conv, r, relu);
}

/* A sum that is clipped belongs to its relu. */
static bool clipped(const Tails *t, int32_t i, const int32_t *reader) {
  const PlGNode *n = &t->f->nodes[i];
  return n->op == &pl_op_add && t->uses[n->first] == 1 && reader[n->first] >= 0 && t->f->nodes[reader[n->first]].op == &pl_op_relu;
}

static bool may(const PlGraph *f) {
  if (f->nregions > 0) return false;
  for (int32_t i = 0; i < f->nnodes; i++)
    if (f->nodes[i].flags & PL_FN_MUTATES || f->nodes[i].nafter > 0 || f->nodes[i].stage != 0) return false;
  return true;
}

PlStatus pl_pass_tails(PlGraph *f, int32_t *removed) {
  *removed = 0;
  if (!may(f)) return PL_OK;
  int32_t *uses = calloc(2 * (size_t)f->nvals + 1, sizeof *uses), *reader = uses ? uses + f->nvals : NULL;
  const Tails t = {.f = f, .uses = uses};
  PlStatus s = PL_OK;
  if (!uses) return no_memory();
  for (int32_t v = 0; v < f->nvals; v++) reader[v] = -1;
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) {
        uses[f->nodes[i].in[k]]++;
        reader[f->nodes[i].in[k]] = i;
      }
  for (int32_t o = 0; o < f->noutputs; o++) uses[f->outputs[o]]++;
  for (int32_t i = 0; i < f->nnodes && s == PL_OK; i++)
    if (!clipped(&t, i, reader)) s = rewrite(&t, i, removed);
  free(uses);
  return s == PL_OK && *removed ? pl_graph_compact(f, NULL) : s;
}
