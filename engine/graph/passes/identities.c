/* SPDX-License-Identifier: MIT
 * Nodes that give back an input, bit for bit: x * 1, x / 1, x - 0, times a tensor of ones, casts to the same dtype, double
 * negation, moving what is made on that device anyway, and chains of views that end where they began. With unsafe_math
 * also x + 0, x / x = 1 and log(exp a + exp b) = logaddexp(a, b). */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/passes/pass.h"
#include "engine/ops/names.h"

enum { MOST_VIEWS = 64 }; /* of a chain that are looked back along; shorter detours inside of it are gone by then */

/* Value v read as a number that is the same in every element; false: not known. */
static bool number(const PlGraph *f, PlGVal v, double *out) {
  if (v < 0) return false;
  const PlGValue *val = &f->vals[v];
  if (val->kind == PL_FV_CONST && val->numel == 1 && val->real) {
    *out = pl_read_f(&val->real->a, 0);
    return true;
  }
  if (val->node < 0) return false;
  const PlGNode *n = &f->nodes[val->node];
  if (n->op == &pl_op_ones) *out = 1;
  return n->op == &pl_op_ones;
}

static bool same_type(const PlGValue *a, const PlGValue *b) {
  return a->dtype == b->dtype && a->ndim == b->ndim && !a->weak && !b->weak && memcmp(a->dims, b->dims, 2 * a->ndim * sizeof(int64_t)) == 0;
}

static bool same_window(const PlGValue *a, const PlGValue *b) {
  return a->store == b->store && a->offset == b->offset && a->version == b->version && same_type(a, b);
}

/* The device of leaves, and of what is made out of nothing with them; -1: there are none. */
static int home(const PlGraph *f) {
  int d = -1;
  for (PlGVal v = 0; v < f->nvals; v++)
    if (f->vals[v].kind != PL_FV_NODE && f->vals[v].device > d) d = f->vals[v].device;
  return d;
}

static const PlGNode *maker(const PlGraph *f, PlGVal v) { return v >= 0 && f->vals[v].node >= 0 ? &f->nodes[f->vals[v].node] : NULL; }

/* What v of node n may be read as, or -1. */
static PlGVal simpler(const PlGraph *f, const PlGNode *n) {
  double k;
  const PlGNode *by = maker(f, n->in[0]);
  if (n->flags & PL_FN_VIEW) {
    const PlGValue *v = &f->vals[n->first];
    if (n->op == &pl_op_stop_grad) return n->in[0];
    PlGVal x = n->in[0];
    for (int back = 0; back < MOST_VIEWS; back++, x = by->in[0]) {
      if (same_window(&f->vals[x], v)) return x;
      by = maker(f, x);
      if (!by || !(by->flags & PL_FN_VIEW)) return -1;
    }
    return -1;
  }
  if (n->op == &pl_op_mul) {
    if (number(f, n->in[1], &k) && k == 1) return n->in[0];
    if (number(f, n->in[0], &k) && k == 1) return n->in[1];
  }
  if (n->op == &pl_op_div && number(f, n->in[1], &k) && k == 1) return n->in[0];
  if (n->op == &pl_op_sub && number(f, n->in[1], &k) && k == 0 && !(1 / k < 0)) return n->in[0];
  if (n->op == &pl_op_cast) return n->in[0];
  if (n->op == &pl_op_to_device && by && by->nin == 0 && !(by->flags & PL_FN_PLACED) && home(f) == pl_attr_i(n->attrs, 0)) return n->in[0];
  if (n->op == &pl_op_neg && by && by->op == &pl_op_neg) return by->in[0];
  if (f->unsafe_math && n->op == &pl_op_add && number(f, n->in[1], &k) && k == 0) return n->in[0];
  return -1;
}

/* log(exp a + exp b): the node becomes logaddexp(a, b). x / x becomes ones. */
static PlStatus rewrite_unsafe(PlGraph *f, int32_t i) {
  PlGNode *n = &f->nodes[i];
  const PlGNode *sum = maker(f, n->in[0]);
  if (n->op == &pl_op_log && sum && sum->op == &pl_op_add) {
    const PlGNode *a = maker(f, sum->in[0]), *b = maker(f, sum->in[1]);
    if (!a || !b || a->op != &pl_op_exp || b->op != &pl_op_exp) return PL_OK;
    PlGVal *in = pl_graph_alloc(f, 2 * sizeof *in);
    if (!in) PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph");
    in[0] = a->in[0];
    in[1] = b->in[0];
    n->op = &pl_op_logaddexp;
    n->in = in;
    n->nin = 2;
  } else if (n->op == &pl_op_div && n->in[0] == n->in[1]) {
    PlAttrs a;
    const PlGValue *v = &f->vals[n->first];
    pl_attrs_init(&pl_op_ones, &a);
    PL_TRY(pl_attrs_list(&a, 0, v->ndim, v->dims));
    pl_attrs_int(&a, 1, v->dtype);
    PlAttrs *kept = pl_graph_alloc(f, pl_attrs_size(&a));
    if (!kept) PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph");
    memcpy(kept, &a, pl_attrs_size(&a));
    n->op = &pl_op_ones;
    n->attrs = kept;
    n->nin = 0;
  }
  return PL_OK;
}

PlStatus pl_pass_identities(PlGraph *f, int32_t *removed) {
  PlGVal *map = malloc(((size_t)f->nvals + 1) * sizeof *map);
  uint8_t *written = calloc((size_t)f->nstores + 1, 1);
  PlStatus s = map && written ? PL_OK : pl_fail(PL_ERR_OOM, "out of memory to plan a graph");
  *removed = 0;
  if (s == PL_OK) {
    pl_graph_written(f, written);
    for (PlGVal v = 0; v < f->nvals; v++) map[v] = v;
    for (int32_t i = 0; i < f->nnodes && s == PL_OK; i++) {
      PlGNode *n = &f->nodes[i];
      for (int32_t k = 0; k < n->nin; k++)
        if (n->in[k] >= 0) n->in[k] = map[n->in[k]];
      if (n->nin < 1 || n->nout != 1 || !pl_gnode_pure(n) || n->flags & PL_FN_RECOMPUTED || n->nafter || n->in[0] < 0) continue;
      if (f->unsafe_math) s = rewrite_unsafe(f, i);
      if (n->nin < 1) continue;
      PlGVal x = simpler(f, n), y = n->first;
      if (x < 0 || !same_type(&f->vals[x], &f->vals[y])) continue;
      if (!(n->flags & PL_FN_VIEW) && (written[f->vals[x].store] || written[f->vals[y].store])) continue;
      map[y] = x;
      n->flags |= PL_FN_DEAD;
      ++*removed;
    }
    pl_graph_rewire(f, map);
    if (s == PL_OK && *removed) s = pl_graph_compact(f, NULL);
  }
  free(map);
  free(written);
  return s;
}
