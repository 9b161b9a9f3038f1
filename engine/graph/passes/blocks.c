/* SPDX-License-Identifier: MIT
 * Blocks of channels: libraries compute convolutions on [N, C/b, H, W, b] rather than [N, C, H, W], and turn what they read and
 * write each time. Here what goes from one convolution to the next stays in blocks: such values get five dims, so that their
 * size, their memory and what is computed element by element need no word about it, and are turned where somebody wants the
 * plain ones. Between convolutions may be: pointwise ops, also with one number a channel, max pooling, joins of channels.
 * f32 on the CPU, in graphs that write into nothing and need no gradients. The numbers are the same. */
#include "engine/graph/passes/blocks.h"

#include <stdlib.h>
#include <string.h>

#include "engine/graph/passes/pass.h"
#include "engine/ops/names.h"
#include "kernels/conv.h"

/* What a node can do with blocks. */
enum { PLAIN, CONV, EACH, POOL, JOIN };

typedef struct Blocks {
  PlGraph *f;
  int64_t b;      /* channels of a block */
  int32_t nnodes; /* nodes, and values, before the pass */
  int32_t nvals;
  uint8_t *kind;    /* per node */
  uint8_t *takes;   /* per convolution: READS | WRITES */
  uint8_t *blocked; /* per value: lies in blocks; per node's output 0 alone */
  PlGVal *as;       /* per value: in blocks, -1: not made yet */
  PlGVal *plain;    /* per value: in the plain layout */
  int32_t *order, norder;
} Blocks;
enum { READS = 1, WRITES = 2 };

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

/* ---- what may be ------------------------------------------------------------------------------------------------------ */

/* [N, C, H, W] with whole blocks. */
static bool image(const Blocks *q, PlGVal v) {
  if (v < 0) return false;
  const PlGValue *x = &q->f->vals[v];
  return x->dtype == PL_F32 && x->device == PL_CPU && x->contiguous && !x->weak && x->ndim == 4 && x->numel > 0 && x->dims[1] % q->b == 0;
}

static bool same_shape(const PlGValue *a, const PlGValue *b) {
  return a->ndim == b->ndim && (a->ndim == 0 || memcmp(a->dims, b->dims, a->ndim * sizeof *a->dims) == 0);
}

/* Beside an image y, what is the same in all of it: a number, or one for each channel. */
static bool number(const PlGValue *v) { return v->numel == 1 && v->ndim <= 4; }
static bool per_channel(const PlGValue *v, const PlGValue *y) {
  const int64_t *d = v->dims + v->ndim - 3;
  if (v->ndim < 3 || v->ndim > 4 || !v->contiguous || d[0] != y->dims[1] || d[1] != 1 || d[2] != 1) return false;
  return v->ndim == 3 || v->dims[0] == 1 || v->dims[0] == y->dims[0];
}

static bool each(const Blocks *q, const PlGNode *n) {
  const PlGValue *y = &q->f->vals[n->first];
  bool any = false;
  if (!pl_op_each(n->op) || n->nout != 1 || !image(q, n->first) || n->op->flags & PL_F_SEEDED) return false;
  for (int32_t k = 0; k < n->nin; k++) {
    if (n->in[k] < 0) continue;
    const PlGValue *x = &q->f->vals[n->in[k]];
    if (same_shape(x, y)) {
      if (!image(q, n->in[k])) return false;
      any = true;
    } else if (x->device != PL_CPU || !(number(x) || per_channel(x, y))) return false;
  }
  return any;
}

/* Windows that take every channel for itself, and whose places nobody asks for. */
static bool pool(const Blocks *q, const PlGNode *n, const int32_t *uses) {
  if (n->op != &pl_op_max_pool2d || !image(q, n->in[0]) || !image(q, n->first)) return false;
  for (int32_t o = 1; o < n->nout; o++)
    if (q->f->vals[n->first + o].dtype != PL_NDTYPE && uses[n->first + o]) return false;
  return true;
}

static bool join(const Blocks *q, const PlGNode *n) {
  if (n->op != &pl_op_cat || !image(q, n->first) || pl_attr_i(n->attrs, 0) != 1) return false;
  for (int32_t k = 0; k < n->nin; k++)
    if (!image(q, n->in[k])) return false;
  return true;
}

static bool is_conv(const PlGraph *f, const PlGNode *n) {
  const PlGValue *y = &f->vals[n->first], *x = n->nin > 0 && n->in[0] >= 0 ? &f->vals[n->in[0]] : NULL;
  return (n->op == &pl_op_conv2d || (n->op == &pl_op_conv_tail && y->ndim == 4 && f->vals[n->in[1]].ndim == 4)) && x && x->ndim == 4 &&
         y->ndim == 4 && y->dtype == PL_F32 && y->device == PL_CPU && x->contiguous && y->contiguous && x->numel > 0 && y->numel > 0;
}

static uint8_t kind_of(const Blocks *q, int32_t i, const int32_t *uses) {
  const PlGNode *n = &q->f->nodes[i];
  if (n->flags & (PL_FN_VIEW | PL_FN_MUTATES | PL_FN_RECOMPUTED | PL_FN_DEAD) || n->nout < 1) return PLAIN;
  if (is_conv(q->f, n)) return CONV;
  if (each(q, n)) return EACH;
  if (pool(q, n, uses)) return POOL;
  return join(q, n) ? JOIN : PLAIN;
}

static bool may(const PlGraph *f) {
  if (f->nregions > 0) return false;
  for (int32_t i = 0; i < f->nnodes; i++)
    if (f->nodes[i].flags & PL_FN_MUTATES || f->nodes[i].nafter > 0 || f->nodes[i].stage != 0) return false;
  return true;
}

/* ---- what is chosen --------------------------------------------------------------------------------------------------- */

/* First what can be in blocks, in order; then, backwards, what leads to a convolution that reads them. */
static void choose(Blocks *q) {
  const PlGraph *f = q->f;
  uint8_t *can = q->blocked;
  memset(can, 0, (size_t)q->nvals);
  for (int32_t i = 0; i < q->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    if (q->kind[i] == CONV) can[n->first] = q->takes[i] & WRITES ? 1 : 0;
    else if (q->kind[i] != PLAIN) {
      bool all = true;
      for (int32_t k = 0; k < n->nin; k++)
        if (n->in[k] >= 0 && image(q, n->in[k]) && (q->kind[i] != EACH || same_shape(&f->vals[n->in[k]], &f->vals[n->first])))
          all = all && can[n->in[k]];
      can[n->first] = all;
    }
  }
  /* bit 1: somebody gains by it */
  for (int32_t i = q->nnodes - 1; i >= 0; i--) {
    const PlGNode *n = &f->nodes[i];
    const bool reads = q->kind[i] == CONV && q->takes[i] & READS;
    const bool hands_on = q->kind[i] != CONV && q->kind[i] != PLAIN && can[n->first] & 2;
    const int32_t most = q->kind[i] == CONV ? 1 : n->nin;
    for (int32_t k = 0; (reads || hands_on) && k < most; k++)
      if (n->in[k] >= 0 && can[n->in[k]]) can[n->in[k]] |= 2;
    if (q->kind[i] == CONV && n->nin > 3 && n->in[3] >= 0 && can[n->first] == 3 && can[n->in[3]]) can[n->in[3]] |= 2;
  }
  for (PlGVal v = 0; v < q->nvals; v++) can[v] = can[v] == 3;
}

/* The type of v in blocks: dims[5], and strides behind them. */
static PlArray blocks_of(const Blocks *q, PlGVal v, int64_t *dims) {
  const PlGValue *x = &q->f->vals[v];
  PlArray a = pl_gvalue_array(x);
  dims[0] = x->dims[0], dims[1] = x->dims[1] / q->b, dims[2] = x->dims[2], dims[3] = x->dims[3], dims[4] = q->b;
  for (int64_t k = 4, step = 1; k >= 0; step *= dims[k--]) dims[5 + k] = step;
  a.ndim = 5, a.shape = dims, a.strides = dims + 5;
  return a;
}

/* Does its kernel compute convolution i with x, or y, in blocks? */
static bool takes(const Blocks *q, int32_t i, bool x, bool y) {
  const PlGNode *n = &q->f->nodes[i];
  int64_t dims[2][10];
  const PlArray w = pl_gvalue_array(&q->f->vals[n->in[1]]);
  const PlArray in = x ? blocks_of(q, n->in[0], dims[0]) : pl_gvalue_array(&q->f->vals[n->in[0]]);
  const PlArray out = y ? blocks_of(q, n->first, dims[1]) : pl_gvalue_array(&q->f->vals[n->first]);
  return pl_conv_takes_blocks(n->attrs, &in, &w, &out);
}

/* Until every convolution takes what is chosen for it: each round leaves out one that does not. */
static void settle(Blocks *q) {
  for (bool again = true; again;) {
    again = false;
    choose(q);
    for (int32_t i = 0; i < q->nnodes && !again; i++) {
      if (q->kind[i] != CONV) continue;
      const PlGNode *n = &q->f->nodes[i];
      const bool x = q->takes[i] & READS && q->blocked[n->in[0]], y = q->blocked[n->first];
      if ((x || y) && !takes(q, i, x, y)) {
        q->takes[i] = 0;
        again = true;
      }
    }
  }
}

/* ---- rewriting -------------------------------------------------------------------------------------------------------- */

static PlStatus add(Blocks *q, const PlOp *op, int32_t nin, const PlGVal *in, const PlAttrs *a, const PlDesc *d, int32_t *node) {
  PL_TRY(pl_graph_node(q->f, op, nin, in, a, d, 0, node));
  q->order[q->norder++] = *node;
  return PL_OK;
}

/* x, contiguous, under another shape. */
static PlStatus reshaped(Blocks *q, PlGVal x, int ndim, const int64_t *dims, PlGVal *out) {
  PlAttrs a;
  PlDesc d = {.dtype = q->f->vals[x].dtype};
  int32_t node;
  pl_desc_set(&d, (PlDtype)d.dtype, ndim, dims);
  d.is_view = true;
  for (int64_t k = ndim - 1, step = 1; k >= 0; step *= dims[k--]) d.strides[k] = step;
  pl_attrs_init(&pl_op_reshape, &a);
  PL_TRY(pl_attrs_list(&a, 0, ndim, dims));
  PL_TRY(add(q, &pl_op_reshape, 1, &x, &a, &d, &node));
  *out = q->f->nodes[node].first;
  return PL_OK;
}

/* x of five dims, copied with its dims in that order. */
static PlStatus turned(Blocks *q, PlGVal x, const int *order, PlGVal *out) {
  PlAttrs a;
  PlDesc d = {.dtype = PL_F32, .ndim = 5, .is_view = true}, dense = {.dtype = PL_F32};
  int64_t dims[5];
  int32_t node;
  for (int k = 0; k < 5; k++) {
    dims[k] = order[k];
    d.shape[k] = q->f->vals[x].dims[order[k]];
    d.strides[k] = q->f->vals[x].dims[5 + order[k]];
  }
  pl_attrs_init(&pl_op_permute, &a);
  PL_TRY(pl_attrs_list(&a, 0, 5, dims));
  PL_TRY(add(q, &pl_op_permute, 1, &x, &a, &d, &node));
  const PlGVal view = q->f->nodes[node].first;
  pl_desc_set(&dense, PL_F32, 5, d.shape);
  PL_TRY(add(q, &pl_op_clone, 1, &view, NULL, &dense, &node));
  q->f->nodes[node].flops = (double)q->f->vals[view].numel;
  *out = q->f->nodes[node].first;
  return PL_OK;
}

/* Value v of before in the plain layout. */
static PlStatus plain_of(Blocks *q, PlGVal v, PlGVal *out) {
  static const int order[5] = {0, 1, 4, 2, 3};
  if (v >= 0 && q->plain[v] < 0) {
    int64_t dims[4];
    PlGVal copy;
    memcpy(dims, q->f->vals[v].dims, sizeof dims);
    PL_TRY(turned(q, q->as[v], order, &copy));
    PL_TRY(reshaped(q, copy, 4, dims, &q->plain[v]));
  }
  *out = v < 0 ? v : q->plain[v];
  return PL_OK;
}

/* Value v of before in blocks. */
static PlStatus blocks_from(Blocks *q, PlGVal v, PlGVal *out) {
  static const int order[5] = {0, 1, 3, 4, 2};
  if (q->as[v] < 0) {
    const PlGValue *x = &q->f->vals[v];
    const int64_t dims[5] = {x->dims[0], x->dims[1] / q->b, q->b, x->dims[2], x->dims[3]};
    PlGVal view;
    PL_TRY(reshaped(q, q->plain[v], 5, dims, &view));
    PL_TRY(turned(q, view, order, &q->as[v]));
  }
  *out = q->as[v];
  return PL_OK;
}

/* What is not of y's shape, beside y in blocks: one number a channel gets its own blocks. */
static PlStatus beside(Blocks *q, PlGVal v, PlGVal *out) {
  PL_TRY(plain_of(q, v, out));
  const PlGValue *x = &q->f->vals[v];
  if (number(x)) return PL_OK;
  const int64_t dims[5] = {x->ndim == 4 ? x->dims[0] : 1, x->dims[x->ndim - 3] / q->b, 1, 1, q->b};
  return reshaped(q, *out, 5, dims, out);
}

/* A list of one or two numbers for two dims, of four for both ends of each, with a last dim's behind. */
static PlStatus longer(PlAttrs *to, const PlAttrs *from, int k, int64_t last) {
  const int n = pl_attr_n(from, k);
  const int64_t *v = pl_attr_list(from, k), both[6] = {v[0], v[n > 1], last, v[n > 2 ? 2 : 0], v[n > 2 ? 3 : n > 1], last};
  return pl_attrs_list(to, k, n > 2 ? 6 : 3, both);
}

/* max_pool2d as max_pool3d, whose third dim is the block. */
static PlStatus pool_attrs(const PlAttrs *from, PlAttrs *to) {
  enum { KERNEL, STRIDE, PADDING, DILATION };
  static const int64_t last[] = {[KERNEL] = 1, [STRIDE] = 1, [PADDING] = 0, [DILATION] = 1};
  *to = (PlAttrs){.nval = 0};
  memcpy(to, from, pl_attrs_size(from));
  to->npool = 0;
  for (int k = KERNEL; k <= DILATION; k++)
    if (pl_attr_has(from, k) && pl_attr_n(from, k)) PL_TRY(longer(to, from, k, last[k]));
  return PL_OK;
}

static PlStatus conv_attrs(const PlGNode *n, int64_t block, PlAttrs *to) {
  const bool tail = n->op == &pl_op_conv_tail;
  *to = (PlAttrs){.nval = 0};
  memcpy(to, n->attrs, pl_attrs_size(n->attrs));
  to->nval = 6;
  if (!tail) pl_attrs_int(to, 4, 0);
  pl_attrs_int(to, 5, block);
  return PL_OK;
}

/* In place of node i, whose first result is from now on in blocks, or plain. */
static PlStatus instead(Blocks *q, int32_t i, const PlOp *op, int32_t nin, const PlGVal *in, const PlAttrs *a, bool blocked) {
  PlGraph *f = q->f;
  const PlGVal v = f->nodes[i].first;
  const PlGValue *y = &f->vals[v];
  PlDesc d[PL_MAX_OUT];
  int64_t dims[10];
  int32_t node;
  memset(d, 0, sizeof d);
  const PlArray type = blocked ? blocks_of(q, v, dims) : pl_gvalue_array(y);
  pl_desc_set(&d[0], PL_F32, type.ndim, type.shape);
  for (int32_t o = 1; o < op->nout; o++) {
    d[o].dtype = f->vals[v + o].dtype;
    if (d[o].dtype != PL_NDTYPE) pl_desc_set(&d[o], (PlDtype)d[o].dtype, type.ndim, type.shape);
  }
  PL_TRY(add(q, op, nin, in, a, d, &node));
  const PlGNode *old = &f->nodes[i];
  PlGNode *n = &f->nodes[node];
  n->flops = old->flops, n->where = old->where, n->source = old->source;
  f->nodes[i].flags |= PL_FN_DEAD;
  q->as[v] = blocked ? n->first : -1;
  q->plain[v] = blocked ? -1 : n->first;
  return PL_OK;
}

static PlStatus conv(Blocks *q, int32_t i) {
  const PlGNode n = q->f->nodes[i];
  const bool y = q->blocked[n.first], x = q->takes[i] & READS && q->blocked[n.in[0]];
  PlGVal in[4] = {-1, -1, -1, -1};
  PlAttrs a;
  PL_TRY(x ? blocks_from(q, n.in[0], &in[0]) : plain_of(q, n.in[0], &in[0]));
  for (int32_t k = 1; k < n.nin; k++) PL_TRY(y && k == 3 && n.in[k] >= 0 ? blocks_from(q, n.in[k], &in[k]) : plain_of(q, n.in[k], &in[k]));
  PL_TRY(conv_attrs(&n, y ? q->b : 0, &a));
  return instead(q, i, &pl_op_conv_tail, 4, in, &a, y);
}

static PlStatus between(Blocks *q, int32_t i) {
  const PlGNode n = q->f->nodes[i];
  const PlOp *op = q->kind[i] == POOL ? &pl_op_max_pool3d : n.op;
  PlGVal *in = pl_graph_alloc(q->f, (size_t)n.nin * sizeof *in + 1);
  PlAttrs a;
  if (!in) return no_memory();
  for (int32_t k = 0; k < n.nin; k++) {
    in[k] = -1;
    if (n.in[k] < 0) continue;
    const bool whole = q->kind[i] != EACH || same_shape(&q->f->vals[n.in[k]], &q->f->vals[n.first]);
    PL_TRY(whole ? blocks_from(q, n.in[k], &in[k]) : beside(q, n.in[k], &in[k]));
  }
  if (q->kind[i] == POOL) PL_TRY(pool_attrs(n.attrs, &a));
  return instead(q, i, op, n.nin, in, q->kind[i] == POOL ? &a : n.attrs, true);
}

static PlStatus rewrite(Blocks *q) {
  PlGraph *f = q->f;
  for (int32_t i = 0; i < q->nnodes; i++) {
    const PlGVal first = f->nodes[i].first;
    const bool reads = q->kind[i] == CONV && q->takes[i] & READS && q->blocked[f->nodes[i].in[0]];
    if (f->nodes[i].nout > 0 && q->blocked[first] && q->kind[i] != CONV) PL_TRY(between(q, i));
    else if (q->kind[i] == CONV && (reads || q->blocked[first])) PL_TRY(conv(q, i));
    else
      for (int32_t k = 0; k < f->nodes[i].nin; k++) {
        PlGVal v;
        PL_TRY(plain_of(q, f->nodes[i].in[k], &v));
        f->nodes[i].in[k] = v;
      }
    q->order[q->norder++] = i;
  }
  for (int32_t o = 0; o < f->noutputs; o++) {
    PlGVal v;
    PL_TRY(plain_of(q, f->outputs[o], &v));
    f->outputs[o] = v;
  }
  return PL_OK;
}

static PlStatus run(Blocks *q) {
  const PlGraph *f = q->f;
  int32_t *uses = calloc((size_t)q->nvals + 1, sizeof *uses);
  size_t most = 16;
  bool any = false;
  if (!uses) return no_memory();
  for (int32_t i = 0; i < q->nnodes; i++) {
    most += 8 + 2 * (size_t)f->nodes[i].nin + 7 * (size_t)f->nodes[i].nout;
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) uses[f->nodes[i].in[k]]++;
  }
  for (int32_t o = 0; o < f->noutputs; o++) uses[f->outputs[o]]++;
  for (int32_t i = 0; i < q->nnodes; i++) {
    q->kind[i] = kind_of(q, i, uses);
    if (q->kind[i] != CONV) continue;
    q->takes[i] = (uint8_t)((image(q, f->nodes[i].in[0]) ? READS : 0) | (image(q, f->nodes[i].first) ? WRITES : 0));
  }
  free(uses);
  for (int32_t o = 0; o < f->noutputs; o++) { /* two copies of a result would live on */
    const int32_t i = f->vals[f->outputs[o]].node;
    if (i >= 0 && q->kind[i] == CONV) q->takes[i] &= READS;
    else if (i >= 0) q->kind[i] = PLAIN;
  }
  settle(q);
  for (PlGVal v = 0; v < q->nvals; v++) {
    q->as[v] = -1, q->plain[v] = v;
    any = any || q->blocked[v];
  }
  if (!any) return PL_OK;
  q->order = malloc((most + 7 * (size_t)q->nvals) * sizeof *q->order);
  if (!q->order) return no_memory();
  PL_TRY(rewrite(q));
  return pl_graph_compact(q->f, q->order);
}

PlStatus pl_pass_blocks(PlGraph *f, int32_t *removed) {
  *removed = 0;
  bool some = false;
  for (int32_t i = 0; i < f->nnodes && !some; i++) some = f->nodes[i].op == &pl_op_conv2d || f->nodes[i].op == &pl_op_conv_tail;
  if (!some || f->alone || !may(f)) return PL_OK;
  Blocks q = {.f = f, .b = plk_conv_block(), .nnodes = f->nnodes, .nvals = f->nvals};
  if (q.b == 0) return PL_OK;
  q.kind = calloc(2 * (size_t)f->nnodes + (size_t)f->nvals + 1, 1);
  q.as = calloc(2 * (size_t)f->nvals + 1, sizeof *q.as);
  PlStatus s = PL_OK;
  if (!q.kind || !q.as) s = no_memory();
  if (s == PL_OK) {
    q.takes = q.kind + f->nnodes, q.blocked = q.takes + f->nnodes, q.plain = q.as + f->nvals;
    s = run(&q);
  }
  free(q.kind);
  free(q.as);
  free(q.order);
  return s;
}
