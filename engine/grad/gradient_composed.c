/* SPDX-License-Identifier: MIT
 * Gradients of gradients' own ops. Where the gradient of an op, or the gradient of that, has a kernel of its own, the last of
 * them has no rule by hand. Its rule is found here: the first op as a composition of ops that have gradients of any order
 * (PlOp.composed) is put into a graph, and the gradient pass of graphs differentiates it once more than the kernels do. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/call.h"
#include "engine/call/thread_state.h"
#include "engine/grad/gradient_graph.h"
#include "engine/graph/ir/graph.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for the gradient of a gradient"); }

/* ---- from a graph into a gradient graph ------------------------------------------------------------------------ */

static PlStatus map_value(PlGradGraph *to, const PlGraph *f, PlVal *map, PlGVal v, PlVal *out) {
  *out = PL_NONE;
  if (v < 0) return PL_OK;
  if (map[v] == PL_NONE) PL_TRY(pl_grad_graph_const(to, f->vals[v].real, &map[v]));
  *out = map[v];
  return PL_OK;
}

static PlStatus copy_node(PlGradGraph *to, const PlGraph *f, PlVal *map, const PlGNode *n) {
  PlVal few[PL_MAX_IN] = {0}, *in = few, first;
  if (n->flags & PL_FN_MUTATES) PL_FAIL(PL_ERR_UNSUPPORTED, "%s writes into what it reads", n->op->name);
  if (n->op->flags & PL_F_SEEDED) PL_FAIL(PL_ERR_UNSUPPORTED, "%s draws random numbers", n->op->name);
  if (n->nin > PL_MAX_IN && !(in = malloc((size_t)n->nin * sizeof *in))) return no_memory();
  PlStatus s = PL_OK;
  for (int32_t k = 0; k < n->nin && s == PL_OK; k++) s = map_value(to, f, map, n->in[k], &in[k]);
  if (s == PL_OK) s = pl_grad_graph_add(to, n->op, n->nin, in, n->attrs, &first);
  if (in != few) free(in);
  PL_TRY(s);
  for (int32_t o = 0; o < n->nout; o++) map[n->first + o] = first + o;
  return PL_OK;
}

PlStatus pl_grad_graph_from(PlGradGraph *to, const PlGraph *f, PlVal *map, int n, const PlGVal *wanted, PlVal *out) {
  bool *need = calloc((size_t)f->nnodes + 1, sizeof *need);
  if (!need) return no_memory();
  for (int o = 0; o < n; o++)
    if (wanted[o] >= 0 && f->vals[wanted[o]].node >= 0) need[f->vals[wanted[o]].node] = true;
  for (int32_t i = f->nnodes - 1; i >= 0; i--)
    for (int32_t k = 0; need[i] && k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0 && f->vals[f->nodes[i].in[k]].node >= 0) need[f->vals[f->nodes[i].in[k]].node] = true;
  PlStatus s = PL_OK;
  for (int32_t i = 0; i < f->nnodes && s == PL_OK; i++)
    if (need[i]) s = copy_node(to, f, map, &f->nodes[i]);
  for (int o = 0; o < n && s == PL_OK; o++) s = map_value(to, f, map, wanted[o], &out[o]);
  free(need);
  return s;
}

/* ---- the composition --------------------------------------------------------------------------------------------- */

typedef struct Composing {
  PlMaker *g;
  const PlOp *first, *chain[2]; /* the composed op; its gradient's ops, chain[depth - 1] is g->op */
  int depth;
  PlGraph *f;
  PlGVal in[PL_MAX_IN], dy[PL_MAX_OUT]; /* what stands for g's inputs and for the gradients that arrive */
} Composing;

static int arg_of(const PlOp *op, const char *name) {
  for (int i = 0; i < op->nin; i++)
    if (!strcmp(op->args[i], name)) return i;
  return -1;
}

static PlStatus add_input(Composing *c, PlDtype dtype, int ndim, const int64_t *shape, uint8_t device, PlGVal *out) {
  PL_TRY(pl_graph_input(c->f, "x", dtype, ndim, shape, false, out));
  c->f->vals[*out].device = device;
  return PL_OK;
}

static PlStatus add_inputs(Composing *c) {
  const PlMaker *g = c->g;
  uint8_t device = PL_CPU;
  for (int i = 0; i < g->nin; i++) {
    const PlArray *a = g->in[i];
    c->in[i] = -1;
    if (!a) continue;
    device = a->device;
    PL_TRY(add_input(c, (PlDtype)a->dtype, a->ndim, a->shape, a->device, &c->in[i]));
  }
  for (int o = 0; o < g->nout; o++) {
    c->dy[o] = -1;
    if (g->dy[o] != PL_NONE) PL_TRY(add_input(c, (PlDtype)g->outd[o].dtype, g->outd[o].ndim, g->outd[o].shape, device, &c->dy[o]));
  }
  return PL_OK;
}

/* Where the arguments of op that `before` has not are, in order: the gradients of its results, and what else it takes. */
static int seeds(const Composing *c, const PlOp *op, const PlOp *before, PlGVal *out) {
  int n = 0;
  for (int i = 0; i < op->nin && n < before->nout; i++)
    if (arg_of(before, op->args[i]) < 0) out[n++] = c->in[arg_of(c->g->op, op->args[i])];
  return n;
}

static void describe(const Composing *c, PlGVal v, PlDesc *d) {
  const PlGValue *a = &c->f->vals[v];
  pl_desc_set(d, (PlDtype)a->dtype, a->ndim, a->dims);
}

/* The first op's results, by other ops. Described are the gradients that they get, so those that get one. */
static PlStatus compose(Composing *c, PlGVal *ys) {
  PlMaker *g = c->g;
  const PlOp *op = c->first;
  const PlArray *in[PL_MAX_IN];
  PlVal x[PL_MAX_IN], y[PL_MAX_OUT];
  PlTensor *t[PL_MAX_IN] = {NULL}, *res[PL_MAX_OUT] = {NULL};
  PlGradGraph *small = NULL;
  PlDesc outd[PL_MAX_OUT] = {0};
  PlGVal dys[PL_MAX_OUT];
  const int ndy = c->depth ? seeds(c, c->chain[0], op, dys) : 0;
  for (int i = 0; i < op->nin; i++) {
    const int at = arg_of(g->op, op->args[i]);
    in[i] = at < 0 ? NULL : g->in[at];
    x[i] = in[i] ? i : PL_NONE;
  }
  for (int o = 0; o < op->nout; o++) y[o] = PL_NONE;
  for (int o = 0; o < ndy; o++)
    if (dys[o] >= 0) describe(c, dys[o], &outd[o]);
  for (int o = 0; c->depth == 0 && o < op->nout; o++) outd[o] = g->outd[o];
  PlStatus s = pl_grad_graph_new(&small, op->nin);
  PlMaker m = {.graph = small, .op = g->op, .attrs = g->attrs, .nin = op->nin, .nout = op->nout, .in = in, .outd = outd, .x = x, .dx = y};
  if (s == PL_OK) s = op->composed(&m);
  if (s == PL_OK) s = m.status;
  int n = 0;
  while (n < op->nout && y[n] != PL_NONE) n++;
  if (s == PL_OK) s = pl_grad_graph_results(small, n, y);
  if (s == PL_OK) s = pl_grad_graph_finish(small);
  for (int i = 0; i < op->nin && s == PL_OK; i++)
    if (in[i]) s = pl_sym_tensor(&t[i], c->f, c->in[arg_of(g->op, op->args[i])]);
  if (s == PL_OK) s = pl_grad_graph_run(small, t, res);
  for (int o = 0; o < op->nout; o++) {
    ys[o] = -1;
    if (s == PL_OK && o < n) s = pl_sym_value_of(c->f, res[o], &ys[o]);
    pl_tensor_release(res[o]);
  }
  for (int i = 0; i < op->nin; i++) pl_tensor_release(t[i]);
  pl_grad_graph_free(small);
  return s;
}

/* xs := the gradients of those of ys that get one, for xs. */
static PlStatus differentiate(Composing *c, int n, const PlGVal *ys, const PlGVal *dys, int nx, PlGVal *xs) {
  PlGVal some[PL_MAX_IN], seed[PL_MAX_IN], dx[2 * PL_MAX_IN];
  int k = 0;
  for (int o = 0; o < n; o++)
    if (ys[o] >= 0 && dys[o] >= 0) {
      some[k] = ys[o];
      seed[k++] = dys[o];
    }
  PlGradientOptions opts = {.allow_unused = true};
  for (int i = 0; i < nx; i++) dx[i] = -1;
  if (k > 0 && nx > 0) PL_TRY(pl_graph_gradient(c->f, k, some, seed, nx, xs, &opts, dx));
  memcpy(xs, dx, (size_t)nx * sizeof *xs);
  return PL_OK;
}

static PlStatus derive(Composing *c) {
  PlMaker *g = c->g;
  PlGVal ys[PL_MAX_IN], dys[PL_MAX_IN], xs[PL_MAX_IN];
  int at[PL_MAX_IN], nx = 0;
  PL_TRY(add_inputs(c));
  PL_TRY(compose(c, ys));
  const PlOp *before = c->first;
  for (int k = 0; k < c->depth; k++) { /* result i of a gradient's op is for input i of the op before */
    const PlOp *op = c->chain[k];
    const int n = seeds(c, op, before, dys);
    for (int i = 0; i < op->nout; i++) xs[i] = c->in[arg_of(g->op, before->args[i])];
    PL_TRY(differentiate(c, n, ys, dys, op->nout, xs));
    memcpy(ys, xs, (size_t)op->nout * sizeof *ys);
    before = op;
  }
  for (int i = 0; i < g->nin; i++)
    if (g->want[i] && c->in[i] >= 0) {
      at[nx] = i;
      xs[nx++] = c->in[i];
    }
  PL_TRY(differentiate(c, g->nout, ys, c->dy, nx, xs));
  PlVal *map = malloc(((size_t)c->f->nvals + 1) * sizeof *map), out[PL_MAX_IN];
  if (!map) return no_memory();
  for (PlGVal v = 0; v < c->f->nvals; v++) map[v] = PL_NONE;
  for (int i = 0; i < g->nin; i++)
    if (c->in[i] >= 0) map[c->in[i]] = g->x[i];
  for (int o = 0; o < g->nout; o++)
    if (c->dy[o] >= 0) map[c->dy[o]] = g->dy[o];
  PlStatus s = pl_grad_graph_from(g->graph, c->f, map, nx, xs, out);
  free(map);
  for (int i = 0; i < nx && s == PL_OK; i++) g->dx[at[i]] = out[i];
  return s;
}

PlStatus pl_grad_by_composition(PlMaker *g) {
  Composing c = {.g = g, .first = g->op};
  for (const PlOp *op = g->op; !op->composed; op = op->gradient_of) {
    if (!op->gradient_of || c.depth == 2) PL_FAIL(PL_ERR_STATE, "%s: no op that it is the gradient of is composed", g->op->name);
    c.chain[c.depth++] = op;
    c.first = op->gradient_of;
  }
  if (c.depth == 2) { /* it was found from the last to the first */
    c.chain[1] = c.chain[0];
    c.chain[0] = c.chain[1]->gradient_of;
  }
  PL_TRY(pl_graph_new(&c.f));
  PlGraph *trace = pl_state.trace;
  const uint8_t autocast = pl_state.autocast;
  pl_set_trace(c.f);
  pl_set_autocast(0);
  PlStatus s = derive(&c);
  pl_set_trace(trace);
  pl_set_autocast(autocast);
  pl_graph_release(c.f);
  return s;
}

/* ---- the composition alone ---- */

static PlStatus run_composed(const PlCall *c, PlTensor **out) {
  const PlOp *op = c->op;
  PlVal x[PL_MAX_IN], y[PL_MAX_OUT];
  PlGradGraph *small;
  PL_TRY(pl_grad_graph_new(&small, c->nin));
  for (int i = 0; i < c->nin; i++) x[i] = c->in[i] ? i : PL_NONE;
  for (int o = 0; o < op->nout; o++) y[o] = PL_NONE;
  PlMaker m = {
      .graph = small, .op = op, .attrs = c->attrs, .nin = c->nin, .nout = op->nout, .in = c->arr, .outd = c->desc, .x = x, .dx = y};
  PlStatus s = op->composed(&m);
  if (s == PL_OK) s = m.status;
  if (s == PL_OK) s = pl_grad_graph_results(small, op->nout, y);
  if (s == PL_OK) s = pl_grad_graph_finish(small);
  if (s == PL_OK) s = pl_grad_graph_run(small, c->in, out);
  pl_grad_graph_free(small);
  return s;
}

PlStatus pl_expand_composed(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  PlCall c;
  PL_TRY(pl_call_begin(&c, op, in, nin, attrs));
  PlStatus s = pl_call_infer(&c);
  if (s == PL_OK) s = run_composed(&c, out);
  pl_call_end(&c);
  return s;
}
