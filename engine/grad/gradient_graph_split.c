/* SPDX-License-Identifier: MIT
 * Splitting a gradient graph into precomp, which runs in forward, and backward, so that less is kept in between.
 * Shapes always move. Other values move where a minimum cut over the values known in forward, with their bytes as
 * capacities, keeps fewer bytes; only values without a gradient of their own are kept, since recording the others
 * for higher orders would keep their inputs anyway. See docs/design/backward-split.md. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/call.h"
#include "engine/grad/gradient_graph.h"

/* Passes over memory that forward may take on, and the size up to which a cut is looked for. */
enum { MAX_PASSES = 6, MAX_VALUES = 256 };

static _Thread_local bool split_off;

typedef struct Split {
  const PlGradGraph *g;
  const PlMakeArgs *a;
  int nfwd;   /* values known in forward: inputs and outputs */
  bool *dy;   /* depends on a dy */
  bool *back; /* needed in backward */
  bool *pre;  /* per node: runs in forward */
  PlVal *fmap, *bmap;
} Split;

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a gradient graph"); }

static bool is_shape(const PlGradNode *n) { return n->op->flags & PL_F_SIZES; }

static void mark_dy(Split *s) {
  const PlGradGraph *g = s->g;
  for (int v = s->nfwd; v < g->ninputs; v++) s->dy[v] = true;
  for (int i = 0; i < g->nnodes; i++) {
    bool dep = false;
    for (int k = 0; k < g->nodes[i].nin; k++) dep |= g->nodes[i].in[k] >= 0 && s->dy[g->nodes[i].in[k]];
    for (int o = 0; o < g->nodes[i].nout; o++) s->dy[g->nodes[i].first + o] = dep;
  }
}

/* From the nodes that run in forward: which values backward reads. */
static void mark_back(Split *s) {
  const PlGradGraph *g = s->g;
  memset(s->back, 0, (size_t)g->nvals * sizeof *s->back);
  for (int r = 0; r < g->nresults; r++) s->back[g->results[r]] = true;
  for (int i = 0; i < g->nnodes; i++)
    for (int k = 0; k < g->nodes[i].nin; k++)
      if (!s->pre[i] && g->nodes[i].in[k] >= 0) s->back[g->nodes[i].in[k]] = true;
}

/* Shapes move unless all they are read from is kept anyway. */
static void choose_shapes(Split *s) {
  const PlGradGraph *g = s->g;
  for (int i = 0; i < g->nnodes; i++) s->pre[i] = !split_off && is_shape(&g->nodes[i]) && !s->dy[g->nodes[i].first];
  mark_back(s);
  for (int i = 0; i < g->nnodes; i++) {
    bool held = true;
    for (int k = 0; k < g->nodes[i].nin; k++) held &= g->nodes[i].in[k] < 0 || s->back[g->nodes[i].in[k]];
    if (held) s->pre[i] = false;
    if (!s->pre[i])
      for (int o = 0; o < g->nodes[i].nout; o++) s->back[g->nodes[i].first + o] = true;
  }
}

/* ---- what values weigh ---------------------------------------------------------------------------------- */

typedef struct Value {
  PlDesc d;
  PlArray a; /* points into d, or is that of an input */
  bool known;
  bool fixed; /* no gradient flows through it: a constant, not floating, or made of such values alone */
  bool bulk;  /* has output 0's number of elements, whatever the sizes */
  bool view;  /* keeps other memory alive: never kept itself */
} Value;

static const int64_t ENDLESS = (int64_t)1 << 60;

static bool cheap(const PlGradNode *n) {
  return pl_op_is_pure(n->op) && !n->op->reads_values &&
         (n->op->cls == PL_POINTWISE || n->op->cls == PL_REDUCTION || n->op->cls == PL_VIEW);
}

static void know(Value *v, const PlArray *a) {
  v->a = *a;
  v->known = true;
  v->fixed = !pl_is_float((PlDtype)a->dtype);
}

/* A value that has been inferred: dense, unless it is a view, whose rule gave its strides. */
static bool know_desc(Value *v) {
  PlArray a = {.shape = v->d.shape, .strides = v->d.strides, .ndim = v->d.ndim, .dtype = v->d.dtype, .contiguous = !v->d.is_view};
  size_t bytes;
  if (pl_count(a.ndim, a.shape, (PlDtype)a.dtype, &a.numel, &bytes) != PL_OK) return false;
  int64_t stride = 1;
  for (int k = a.ndim - 1; k >= 0 && !v->d.is_view; k--) {
    v->d.strides[k] = stride;
    stride *= a.shape[k];
  }
  know(v, &a);
  return true;
}

/* Output 0 of a cheap node from its inputs, whose tensors must agree on a dtype. */
static bool infer_node(const PlGradGraph *g, int i, Value *vals) {
  const PlGradNode *n = &g->nodes[i];
  const PlArray *in[PL_MAX_IN] = {NULL};
  int compute = -1;
  bool fixed = (n->op->flags & PL_F_NOGRAD_OK) != 0, all_fixed = true, bulk = false, mixed = false;
  if (!cheap(n) || n->nin > PL_MAX_IN || n->nin < 1 || n->nout != 1) return false;
  for (int k = 0; k < n->nin; k++) {
    if (n->in[k] < 0) continue;
    Value *x = &vals[n->in[k]];
    if (!x->known) return false;
    in[k] = &x->a;
    all_fixed &= x->fixed;
    bulk |= x->bulk;
    mixed |= !x->bulk && !x->a.weak;
    if (x->a.weak) continue;
    if (compute >= 0 && compute != x->a.dtype) return false;
    compute = x->a.dtype;
  }
  if (compute < 0 || !in[0]) return false;
  for (int k = 0; k < n->nin; k++) /* a number of a higher class than the tensors' changes the dtype */
    if (in[k] && in[k]->weak && pl_is_float((PlDtype)in[k]->dtype) && !pl_is_float((PlDtype)compute)) return false;
  PlAttrs given, attrs;
  if (n->attrs) memcpy(&given, n->attrs, pl_attrs_size(n->attrs));
  else pl_attrs_init(n->op, &given);
  if (pl_attrs_normalize(n->op, &given, in[0], &attrs) != PL_OK) return false;
  if (n->op->promote == PL_PROMOTE_FLOAT && !pl_is_float((PlDtype)compute)) compute = (int)pl_default_float();
  Value *y = &vals[n->first];
  y->d.dtype = (uint8_t)compute;
  PlInfer f = {
      .op = n->op, .attrs = &attrs, .nin = n->op->nin > 0 ? n->op->nin : n->nin, .in = in, .compute = (PlDtype)compute, .out = &y->d};
  if (n->op->infer(&f) != PL_OK || !know_desc(y)) return false;
  y->fixed |= fixed || all_fixed;
  y->view = y->d.is_view || n->op->cls == PL_VIEW;
  y->bulk = n->op->cls == PL_POINTWISE && bulk && !mixed;
  return true;
}

static void learn(const Split *s, Value *vals) {
  const PlGradGraph *g = s->g;
  const PlMakeArgs *a = s->a;
  for (int v = 0; v < s->nfwd; v++) {
    Value *x = &vals[v];
    if (v < a->nin) {
      if (!a->in[v]) continue;
      know(x, a->in[v]);
      x->bulk = a->same[v];
      continue;
    }
    x->d = a->outd[v - a->nin];
    know_desc(x);
    x->bulk = v == a->nin;
  }
  for (int v = g->ninputs; v < g->nvals; v++)
    if (g->consts[v]) {
      know(&vals[v], &g->consts[v]->a);
      vals[v].fixed = true;
    }
  for (int i = 0; i < g->nnodes; i++)
    if (!s->dy[g->nodes[i].first]) infer_node(g, i, vals);
}

/* Where sizes are not known, only values of one class are compared; others count as next to nothing when let go
 * of, and are never kept anew. */
static int64_t weight(const Split *s, const Value *v, bool is_input) {
  if (!v->known || (!is_input && (!v->fixed || v->view))) return ENDLESS;
  int64_t size = (int64_t)pl_dtype_size((PlDtype)v->a.dtype);
  if (s->a->op->flags & PL_F_POLY) {
    if (v->bulk) return size << 20;
    return is_input ? 1 << 10 : ENDLESS;
  }
  if (v->a.numel >= ENDLESS >> 20) return ENDLESS;
  return 2 + (v->a.numel * size << 10); /* more than a shape, which weighs 1 */
}

/* ---- the cut ------------------------------------------------------------------------------------------------ */

typedef struct Edge {
  int to, next;
  int64_t room;
} Edge;

/* Vertices: a value each, then a node each, then source and sink. Edge e ^ 1 is e's reverse. */
typedef struct Net {
  int n, nedges, *head, *from, *queue;
  Edge *edges;
} Net;

static void connect(Net *t, int a, int b, int64_t room) {
  t->edges[t->nedges] = (Edge){b, t->head[a], room};
  t->head[a] = t->nedges++;
  t->edges[t->nedges] = (Edge){a, t->head[b], 0};
  t->head[b] = t->nedges++;
}

/* Breadth first from the source; from[v] is the edge that reached v, -1: not reached. */
static bool reach(Net *t, int source, int sink) {
  for (int v = 0; v < t->n; v++) t->from[v] = -1;
  int head = 0, tail = 0;
  t->queue[tail++] = source;
  t->from[source] = -2;
  while (head < tail) {
    int v = t->queue[head++];
    for (int e = t->head[v]; e >= 0; e = t->edges[e].next) {
      int to = t->edges[e].to;
      if (t->edges[e].room <= 0 || t->from[to] != -1) continue;
      t->from[to] = e;
      t->queue[tail++] = to;
    }
  }
  return t->from[sink] != -1;
}

/* Afterwards from[v] != -1 exactly on the source's side of the minimum cut nearest to the source: where it does not
 * pay, nothing moves. False: there is no finite cut. */
static bool cut(Net *t, int source, int sink) {
  for (int rounds = 0; reach(t, source, sink); rounds++) {
    int64_t room = ENDLESS;
    for (int v = sink; v != source; v = t->edges[t->from[v] ^ 1].to)
      if (t->edges[t->from[v]].room < room) room = t->edges[t->from[v]].room;
    if (room >= ENDLESS / 2 || rounds > 8 * MAX_VALUES) return false;
    for (int v = sink; v != source; v = t->edges[t->from[v] ^ 1].to) {
      t->edges[t->from[v]].room -= room;
      t->edges[t->from[v] ^ 1].room += room;
    }
  }
  return true;
}

/* The node before i that makes value v; -1: a constant. */
static int maker_of(const PlGradGraph *g, int i, PlVal v) {
  while (--i >= 0)
    if (v >= g->nodes[i].first && v < g->nodes[i].first + g->nodes[i].nout) return i;
  return -1;
}

static void build_net(const Split *s, const Value *vals, Net *t, int source, int sink) {
  const PlGradGraph *g = s->g;
  for (int v = 0; v < t->n; v++) t->head[v] = -1;
  for (int v = 0; v < s->nfwd; v++) connect(t, source, v, weight(s, &vals[v], true));
  for (int r = 0; r < g->nresults; r++)
    if (!s->dy[g->results[r]]) connect(t, g->results[r], sink, ENDLESS);
  for (int i = 0; i < g->nnodes; i++) {
    const PlGradNode *n = &g->nodes[i];
    int me = s->dy[n->first] ? sink : g->nvals + i; /* what reads a dy stays in backward, and so do costly ops */
    if (me != sink && !cheap(n) && !is_shape(n)) connect(t, me, sink, ENDLESS);
    for (int k = 0; k < n->nin; k++) {
      PlVal v = n->in[k];
      if (v < 0 || s->dy[v]) continue;
      connect(t, v, me, ENDLESS);
      int maker = me == sink || v < g->ninputs ? -1 : maker_of(g, i, v);
      if (maker >= 0) connect(t, me, g->nvals + maker, ENDLESS); /* what forward reads, forward makes */
    }
    for (int o = 0; me != sink && o < n->nout; o++) connect(t, me, n->first + o, is_shape(n) ? 1 : weight(s, &vals[n->first + o], false));
  }
}

/* Looks for the cut and takes it where it needs few passes; otherwise the choice stays as it is. */
static PlStatus choose_cut(Split *s) {
  const PlGradGraph *g = s->g;
  int source = g->nvals + g->nnodes, sink = source + 1, passes = 0;
  size_t nedges = (size_t)(s->nfwd + g->nresults + g->nnodes);
  for (int i = 0; i < g->nnodes; i++) nedges += (size_t)(2 * g->nodes[i].nin + g->nodes[i].nout);
  Net t = {.n = sink + 1};
  Value *vals = calloc((size_t)g->nvals, sizeof *vals);
  int *ints = malloc(3 * (size_t)t.n * sizeof *ints);
  t.edges = malloc(2 * nedges * sizeof *t.edges);
  if (!vals || !ints || !t.edges) {
    free(vals);
    free(ints);
    free(t.edges);
    return no_memory();
  }
  t.head = ints;
  t.from = ints + t.n;
  t.queue = ints + 2 * t.n;
  learn(s, vals);
  build_net(s, vals, &t, source, sink);
  bool found = cut(&t, source, sink);
  for (int i = 0; i < g->nnodes; i++)
    passes += found && !s->dy[g->nodes[i].first] && !is_shape(&g->nodes[i]) && g->nodes[i].op->cls != PL_VIEW && t.from[g->nvals + i] != -1;
  if (found && passes > 0 && passes <= MAX_PASSES) {
    for (int i = 0; i < g->nnodes; i++) s->pre[i] = !s->dy[g->nodes[i].first] && t.from[g->nvals + i] != -1;
    mark_back(s);
  }
  free(vals);
  free(ints);
  free(t.edges);
  return PL_OK;
}

/* Is there anything but shapes that could be kept instead of what it is made of? */
static bool worth_a_cut(const Split *s) {
  const PlGradGraph *g = s->g;
  if (split_off || g->nvals > MAX_VALUES || g->nnodes > MAX_VALUES) return false;
  for (int i = 0; i < g->nnodes; i++)
    if (!s->dy[g->nodes[i].first] && cheap(&g->nodes[i]) && (g->nodes[i].op->flags & PL_F_NOGRAD_OK)) return true;
  return false;
}

/* ---- the halves ------------------------------------------------------------------------------------------------ */

static PlStatus build_precomp(Split *s, PlBackward *b, int npre, PlVal *next) {
  const PlGradGraph *g = s->g;
  PlVal outs[64];
  if (npre > 64) PL_FAIL(PL_ERR_UNSUPPORTED, "a gradient with more than 64 values to compute in forward");
  PL_TRY(pl_grad_graph_new(&b->precomp, s->nfwd));
  for (int v = 0; v < s->nfwd; v++) s->fmap[v] = v;
  PL_TRY(pl_grad_graph_copy_consts(b->precomp, g, s->fmap, NULL));
  for (int i = 0; i < g->nnodes; i++) {
    if (!s->pre[i]) continue;
    PL_TRY(pl_grad_graph_copy_node(b->precomp, g, i, s->fmap));
    for (int o = 0; o < g->nodes[i].nout; o++)
      if (s->back[g->nodes[i].first + o]) {
        outs[*next] = s->fmap[g->nodes[i].first + o];
        s->bmap[g->nodes[i].first + o] = (*next)++;
      }
  }
  PL_TRY(pl_grad_graph_results(b->precomp, npre, outs));
  return pl_grad_graph_finish(b->precomp);
}

static PlStatus build_halves(Split *s, PlBackward *b) {
  const PlGradGraph *g = s->g;
  int npre = 0;
  for (int i = 0; i < g->nnodes; i++)
    for (int o = 0; s->pre[i] && o < g->nodes[i].nout; o++) npre += s->back[g->nodes[i].first + o];
  int nsave = 0;
  for (int v = 0; v < g->ninputs; v++) nsave += b->save[v] = s->back[v];
  PL_TRY(pl_grad_graph_new(&b->backward, npre + nsave));
  for (int v = 0; v < g->nvals; v++) s->fmap[v] = s->bmap[v] = PL_NONE;
  PlVal next = 0;
  if (npre) PL_TRY(build_precomp(s, b, npre, &next));
  for (int v = 0; v < g->ninputs; v++)
    if (b->save[v]) s->bmap[v] = next++;
  PL_TRY(pl_grad_graph_copy_consts(b->backward, g, s->bmap, NULL));
  for (int i = 0; i < g->nnodes; i++)
    if (!s->pre[i]) PL_TRY(pl_grad_graph_copy_node(b->backward, g, i, s->bmap));
  PlVal *res = malloc((size_t)(g->nresults ? g->nresults : 1) * sizeof *res);
  if (!res) return no_memory();
  for (int r = 0; r < g->nresults; r++) res[r] = s->bmap[g->results[r]];
  PlStatus st = pl_grad_graph_results(b->backward, g->nresults, res);
  free(res);
  PL_TRY(st);
  return pl_grad_graph_finish(b->backward);
}

PlStatus pl_backward_graph_split(const PlGradGraph *g, const PlMakeArgs *a, PlBackward *b) {
  size_t nv = (size_t)g->nvals + 1, nn = (size_t)g->nnodes + 1;
  Split s = {.g = g, .a = a, .nfwd = b->nin + b->nout};
  bool *flags = calloc(2 * nv + nn, sizeof *flags);
  PlVal *maps = malloc(2 * nv * sizeof *maps);
  PlStatus st = PL_OK;
  if (!flags || !maps) st = no_memory();
  else {
    s.dy = flags;
    s.back = flags + nv;
    s.pre = flags + 2 * nv;
    s.fmap = maps;
    s.bmap = maps + nv;
    mark_dy(&s);
    choose_shapes(&s);
    if (worth_a_cut(&s)) st = choose_cut(&s);
    if (st == PL_OK) st = build_halves(&s, b);
  }
  free(flags);
  free(maps);
  return st;
}

bool pl_backward_split_enable(bool on) {
  bool was = !split_off;
  split_off = !on;
  if (was != on) pl_backward_cache_clear();
  return was;
}
