/* SPDX-License-Identifier: MIT
 * Graphs of tangents. What an op's gradient maker emits is linear in the gradients dy of the outputs: dx = Jᵀ dy. The
 * gradient of that graph for dy, with the tangents of the inputs as what arrives at dx, is J v. So every op that is
 * differentiable twice has a tangent; of the double backward only what does not depend on dy is left. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/grad/forward_mode.h"
#include "engine/grad/gradient_graph_cache.h"
#include "engine/graph/ir/graph.h"
#include "engine/ops/names.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a graph of tangents"); }

void pl_forward_graph_release(PlForward *g) {
  if (!g || --g->refs) return;
  pl_grad_graph_free(g->graph);
  free(g);
}

/* ---- the gradient in a graph, and its gradient ---------------------------------------------------------------- */

typedef struct Making {
  const PlMakeArgs *a;
  PlTensor *const *out;
  PlGraph *f;
  PlGradGraph *gradient;
  uint8_t *has_grad;
  PlGVal *value;    /* nin + nout + nin + nout: the graph's inputs in the order of PlForward's graph; -1: not there */
  PlGVal *ys, *dys; /* gradients of inputs, and the tangents that arrive at them */
  PlTensor **t, **res;
  PlGVal *map; /* per value of the graph: of the new graph */
} Making;

static PlStatus add_input(Making *m, int at, const PlArray *like) {
  if (!like) {
    m->value[at] = -1;
    return PL_OK;
  }
  PL_TRY(pl_graph_input(m->f, "x", (PlDtype)like->dtype, like->ndim, like->shape, false, &m->value[at]));
  m->f->vals[m->value[at]].device = like->device;
  return PL_OK;
}

static PlStatus add_inputs(Making *m) {
  const PlMakeArgs *a = m->a;
  const int nin = a->nin, nout = a->op->nout;
  for (int i = 0; i < nin; i++) {
    PL_TRY(add_input(m, i, a->in[i]));
    PL_TRY(add_input(m, nin + nout + i, a->want[i] ? a->in[i] : NULL));
  }
  for (int o = 0; o < nout; o++) {
    PL_TRY(add_input(m, nin + o, m->out[o] ? &m->out[o]->a : NULL));
    PL_TRY(add_input(m, nin + nout + nin + o, a->dy_given[o] ? &m->out[o]->a : NULL));
  }
  return PL_OK;
}

/* Runs the gradient graph on symbolic tensors. */
static PlStatus run_gradient(Making *m) {
  const int nin = m->a->nin, nout = m->a->op->nout, n = nin + 2 * nout;
  PlStatus s = PL_OK;
  for (int k = 0; k < n; k++) m->t[k] = NULL;
  for (int k = 0; k < n && s == PL_OK; k++) {
    const PlGVal v = m->value[k < nin + nout ? k : k + nin];
    if (v >= 0) s = pl_sym_tensor(&m->t[k], m->f, v);
  }
  if (s == PL_OK) s = pl_grad_graph_run(m->gradient, m->t, m->res);
  for (int k = 0; k < n; k++) pl_tensor_release(m->t[k]);
  PL_TRY(s);
  for (int i = 0, r = 0; i < nin; i++) {
    if (!m->has_grad[i]) continue;
    if (s == PL_OK) s = pl_sym_value_of(m->f, m->res[r], &m->ys[r]);
    m->dys[r] = m->value[nin + nout + i];
    pl_tensor_release(m->res[r++]);
  }
  return s;
}

/* ---- back into a small graph --------------------------------------------------------------------------------- */

/* dy[nout]: the gradients for the dys, values of the graph. */
static PlStatus copy_graph(Making *m, const PlGVal *dy, PlForward *g) {
  const PlGraph *f = m->f;
  const int n = 2 * (g->nin + g->nout);
  PlVal res[PL_MAX_OUT];
  PlGVal wanted[PL_MAX_OUT];
  int nres = 0;
  PL_TRY(pl_grad_graph_new(&g->graph, n));
  for (PlGVal v = 0; v < f->nvals; v++) m->map[v] = PL_NONE;
  for (int k = 0; k < n; k++)
    if (m->value[k] >= 0) m->map[m->value[k]] = k;
  for (int o = 0; o < g->nout; o++)
    if (g->has[o]) wanted[nres++] = dy[o];
  PL_TRY(pl_grad_graph_from(g->graph, f, m->map, nres, wanted, res));
  PL_TRY(pl_grad_graph_results(g->graph, nres, res));
  PL_TRY(pl_grad_graph_optimize(&g->graph));
  for (int o = 0; o < g->nout && o < PL_MAX_OUT; o++) g->zero[o] = g->graph->last[2 * g->nin + g->nout + o] >= 0;
  return PL_OK;
}

/* ---- second derivatives that are symmetric ------------------------------------------------------------------ */

/* The input whose gradient output o is. */
static int input_of(const PlOp *op, int o) {
  int i = 0;
  while (op->hessian[i] != 'x' || o-- > 0) i++;
  return i;
}

/* The derivative in x: the gradient of the op for its xs, where their tangents arrive at the outputs. */
static PlStatus through_x(Making *m, PlForward *g, PlVal *t) {
  const PlMakeArgs *a = m->a;
  const int nin = g->nin, nout = g->nout;
  bool want[PL_MAX_IN], given[PL_MAX_OUT], any = false;
  PlMakeArgs b = *a;
  b.want = want;
  b.dy_given = given;
  for (int i = 0; i < nin; i++) want[i] = a->op->hessian[i] == 'x';
  for (int o = 0; o < nout; o++) any |= given[o] = a->want[input_of(a->op, o)];
  if (!any) return PL_OK;
  PL_TRY(pl_gradient_graph_make(&b, &m->gradient, m->has_grad));
  const PlGradGraph *from = m->gradient;
  if (!(m->map = malloc((size_t)from->nvals * sizeof *m->map))) return no_memory();
  for (PlVal v = 0; v < from->nvals; v++) m->map[v] = PL_NONE;
  for (int v = 0; v < nin + nout; v++) m->map[v] = v;
  for (int o = 0; o < nout; o++) m->map[nin + nout + o] = nin + nout + input_of(a->op, o);
  PL_TRY(pl_grad_graph_copy_consts(g->graph, from, m->map, NULL));
  for (int i = 0; i < from->nnodes; i++) PL_TRY(pl_grad_graph_copy_node(g->graph, from, i, m->map));
  for (int i = 0, r = 0, o = 0; i < nin; i++) {
    if (m->has_grad[i]) t[o] = m->map[from->results[r++]];
    o += want[i];
  }
  return PL_OK;
}

/* The op is linear in what it is the gradient of <d, f(x)> for: itself with the tangents of d, zeros where there are none. */
static PlStatus through_d(Making *m, PlForward *g, PlVal *t) {
  const PlMakeArgs *a = m->a;
  const PlOp *op = a->op;
  PlVal in[PL_MAX_IN] = {0}, first, shape;
  bool any = false;
  for (int i = 0; i < g->nin; i++) any |= op->hessian[i] == 'd' && a->want[i];
  for (int i = 0; any && i < g->nin; i++) {
    in[i] = a->in[i] ? i : PL_NONE;
    if (op->hessian[i] != 'd' || !a->in[i]) continue;
    in[i] = g->nin + g->nout + i;
    if (a->want[i]) continue;
    PlAttrs zero;
    pl_attrs_init(&pl_op_zeros_of, &zero);
    pl_attrs_int(&zero, 0, a->in[i]->dtype);
    const PlVal x = i;
    PL_TRY(pl_grad_graph_add(g->graph, &pl_op_shape_of, 1, &x, NULL, &shape));
    PL_TRY(pl_grad_graph_add(g->graph, &pl_op_zeros_of, 1, &shape, &zero, &in[i]));
  }
  if (any) PL_TRY(pl_grad_graph_add(g->graph, op, g->nin, in, op->nattr ? a->attrs : NULL, &first));
  for (int o = 0; any && o < g->nout; o++) {
    PlVal sum[2] = {first + o, t[o]};
    if (t[o] == PL_NONE) t[o] = first + o;
    else PL_TRY(pl_grad_graph_add(g->graph, &pl_op_add, 2, sum, NULL, &t[o]));
  }
  return PL_OK;
}

static PlStatus by_symmetry(Making *m, PlForward *g) {
  PlVal t[PL_MAX_OUT], res[PL_MAX_OUT];
  int nres = 0;
  for (int o = 0; o < PL_MAX_OUT; o++) t[o] = PL_NONE;
  PL_TRY(pl_grad_graph_new(&g->graph, 2 * (g->nin + g->nout)));
  PL_TRY(through_x(m, g, t));
  PL_TRY(through_d(m, g, t));
  for (int o = 0; o < g->nout; o++) {
    g->has[o] = t[o] != PL_NONE;
    if (g->has[o]) res[nres++] = t[o];
  }
  PL_TRY(pl_grad_graph_results(g->graph, nres, res));
  return pl_grad_graph_optimize(&g->graph);
}

/* ---- by a maker of its own ------------------------------------------------------------------------------------ */

/* Without a graph where it declines. */
static PlStatus by_maker(Making *m, PlForward *g) {
  const PlMakeArgs *a = m->a;
  const int nin = g->nin, nout = g->nout;
  PlVal *vals = malloc((size_t)(2 * nin + 2 * nout) * sizeof *vals), res[PL_MAX_OUT];
  if (!vals) return no_memory();
  PlVal *x = vals, *v = x + nin, *y = v + nin, *t = y + nout;
  for (int i = 0; i < nin; i++) {
    x[i] = a->in[i] ? i : PL_NONE;
    v[i] = a->want[i] ? nin + nout + i : PL_NONE;
  }
  for (int o = 0; o < nout; o++) {
    y[o] = m->out[o] ? nin + o : PL_NONE;
    t[o] = PL_NONE;
  }
  PlStatus s = pl_grad_graph_new(&g->graph, 2 * (nin + nout));
  PlMaker k = {.graph = g->graph,
               .op = a->op,
               .attrs = a->attrs,
               .nin = nin,
               .nout = nout,
               .in = a->in,
               .outd = a->outd,
               .want = a->want,
               .same = a->same,
               .x = x,
               .y = y,
               .dy = v,
               .dx = t};
  if (s == PL_OK) s = a->op->tangent(&k);
  if (s == PL_OK) s = k.status;
  int nres = 0;
  for (int o = 0; o < nout && s == PL_OK; o++) {
    g->has[o] = t[o] != PL_NONE;
    if (g->has[o]) res[nres++] = t[o];
  }
  free(vals);
  if (s == PL_OK && nres > 0) {
    PL_TRY(pl_grad_graph_results(g->graph, nres, res));
    return pl_grad_graph_optimize(&g->graph);
  }
  pl_grad_graph_free(g->graph);
  g->graph = NULL;
  return s;
}

/* ---- together ------------------------------------------------------------------------------------------------ */

static PlStatus transpose(Making *m, PlForward *g) {
  const int nin = g->nin, nout = g->nout;
  int nx = 0, at[PL_MAX_OUT];
  PlGVal us[PL_MAX_OUT], dx[PL_MAX_OUT], dy[PL_MAX_OUT];
  PL_TRY(run_gradient(m));
  for (int o = 0; o < nout; o++)
    if (m->value[2 * nin + nout + o] >= 0) {
      us[nx] = m->value[2 * nin + nout + o];
      at[nx++] = o;
    }
  PlGradientOptions opts = {.allow_unused = true};
  PL_TRY(pl_graph_gradient(m->f, m->gradient->nresults, m->ys, m->dys, nx, us, &opts, dx));
  bool any = false;
  for (int k = 0; k < nx; k++) {
    dy[at[k]] = dx[k];
    /* what is zero for every tangent is none */
    any |= g->has[at[k]] = dx[k] >= 0 && !(m->f->vals[dx[k]].node >= 0 && (m->f->nodes[m->f->vals[dx[k]].node].op->flags & PL_F_ZEROS));
  }
  if (!any) return PL_OK;
  m->map = malloc((size_t)(m->f->nvals + 1) * sizeof *m->map);
  return m->map ? copy_graph(m, dy, g) : no_memory();
}

static PlStatus make_in(Making *m, PlForward *g) {
  if (m->a->op->hessian) return by_symmetry(m, g);
  if (m->a->op->tangent) PL_TRY(by_maker(m, g));
  if (g->graph) return PL_OK;
  PL_TRY(pl_gradient_graph_make(m->a, &m->gradient, m->has_grad));
  if (m->gradient->nresults == 0) return PL_OK; /* not differentiable */
  PL_TRY(pl_graph_new(&m->f));
  PL_TRY(add_inputs(m));
  PlGraph *trace = pl_state.trace;
  const uint8_t autocast = pl_state.autocast;
  pl_set_trace(m->f);
  pl_set_autocast(0);
  PlStatus s = transpose(m, g);
  pl_set_trace(trace);
  pl_set_autocast(autocast);
  return s;
}

static PlStatus make(const PlMakeArgs *a, PlTensor *const *out, PlForward **result) {
  const int nin = a->nin, nout = a->op->nout;
  const size_t n = (size_t)(nin + nout);
  Making m = {.a = a, .out = out};
  PlForward *g = calloc(1, sizeof *g);
  m.value = malloc(2 * n * sizeof *m.value);
  m.ys = malloc(2 * n * sizeof *m.ys);
  m.t = calloc(2 * n + (size_t)nin + 1, sizeof(PlTensor *));
  m.has_grad = calloc(n, 1);
  PlStatus s = g && m.value && m.ys && m.t && m.has_grad ? PL_OK : no_memory();
  if (s == PL_OK) {
    m.dys = m.ys + n;
    m.res = m.t + 2 * n;
    *g = (PlForward){.refs = 1, .nin = nin, .nout = nout};
    s = make_in(&m, g);
  }
  pl_grad_graph_free(m.gradient);
  pl_graph_release(m.f);
  free(m.value);
  free(m.ys);
  free((void *)m.t);
  free(m.has_grad);
  free(m.map);
  if (g && (s != PL_OK || !g->graph)) {
    pl_grad_graph_free(g->graph);
    free(g);
    g = NULL;
  }
  if (s == PL_OK) *result = g;
  return s;
}

/* ---- the cache ----------------------------------------------------------------------------------------------- */

static void drop_graph(void *g) { pl_forward_graph_release(g); }
static _Thread_local PlGradGraphCache cache = {.drop = drop_graph};

static PlStatus make_call(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out, const bool *want,
                          const bool *same, PlForward **result) {
  PlMakeRoom room;
  PL_TRY(pl_make_args(&room, op, in, nin, attrs, out, want, same));
  PlStatus s = make(&room.args, out, result);
  pl_make_args_end(&room);
  return s;
}

PlStatus pl_forward_graph_get(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out, const bool *want,
                              PlForward **result) {
  PlGradGraphKey k;
  void *found;
  bool few[PL_MAX_IN], *same = few;
  PL_TRY(pl_grad_graph_cache_open(&cache));
  if (nin > PL_MAX_IN && !(same = malloc((size_t)nin * sizeof *same))) return no_memory();
  for (int i = 0; i < nin; i++) same[i] = in[i] && out[0] && pl_shape_equal(&in[i]->a, &out[0]->a);
  pl_grad_graph_key(&k, op, in, nin, attrs, out, want, same, true);
  PlStatus s = PL_OK;
  if (pl_grad_graph_cache_find(&cache, op, &k, &found)) {
    *result = found;
    if (found) (*result)->refs++;
  } else if ((s = make_call(op, in, nin, attrs, out, want, same, result)) == PL_OK) {
    if (*result) (*result)->refs++; /* the caller's and the cache's */
    pl_grad_graph_cache_put(&cache, op, &k, *result);
  }
  if (same != few) free(same);
  return s;
}

void pl_forward_cache_stats(int64_t *hits, int64_t *misses, int64_t *entries) {
  *hits = cache.hits;
  *misses = cache.misses;
  *entries = cache.entries;
}

void pl_forward_cache_clear(void) {
  pl_forward_pointwise_clear();
  pl_grad_graph_cache_clear(&cache);
}

void pl_forward_cache_end(void) {
  pl_forward_pointwise_end();
  pl_grad_graph_cache_end(&cache);
}
