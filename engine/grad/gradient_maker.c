/* SPDX-License-Identifier: MIT
 * Backward graphs of single ops: the emitters that gradient makers call, the making of a graph from a call,
 * and their cache, which dies with the thread. */
#include <stdlib.h>
#include <string.h>

#include "engine/grad/gradient_graph.h"
#include "engine/grad/gradient_graph_cache.h"
#include "engine/ops/names.h"

/* ---- emitters -------------------------------------------------------------------------------------- */

void pl_g_fail(PlMaker *g, PlStatus s) {
  if (g->status == PL_OK) g->status = s;
}

PlVal pl_g_op(PlMaker *g, const PlOp *op, int nin, const PlVal *in, const PlAttrs *attrs, PlVal *outs) {
  if (g->status != PL_OK) return PL_NONE;
  PlVal first;
  pl_g_fail(g, pl_grad_graph_add(g->graph, op, nin, in, attrs, &first));
  if (g->status != PL_OK) return PL_NONE;
  for (int o = 0; outs && o < op->nout; o++) outs[o] = first + o;
  return first;
}

PlVal pl_g1(PlMaker *g, const PlOp *op, PlVal a) { return pl_g_op(g, op, 1, &a, NULL, NULL); }

PlVal pl_g2(PlMaker *g, const PlOp *op, PlVal a, PlVal b) {
  PlVal in[2] = {a, b};
  return pl_g_op(g, op, 2, in, NULL, NULL);
}

PlVal pl_g3(PlMaker *g, const PlOp *op, PlVal a, PlVal b, PlVal c) {
  PlVal in[3] = {a, b, c};
  return pl_g_op(g, op, 3, in, NULL, NULL);
}

PlVal pl_g_num(PlMaker *g, double v) {
  PlTensor *t;
  PlVal out = PL_NONE;
  if (g->status != PL_OK) return PL_NONE;
  bool whole = v > -1e15 && v < 1e15 && v == (double)(int64_t)v;
  pl_g_fail(g, pl_tensor_number(&t, whole, whole ? (int64_t)v : 0, v));
  if (g->status != PL_OK) return PL_NONE;
  pl_g_fail(g, pl_grad_graph_const(g->graph, t, &out));
  pl_tensor_release(t);
  return out;
}

static bool poly(const PlMaker *g) { return (g->op->flags & PL_F_POLY) != 0; }

/* op(v; shape) with the sizes of input i as an attribute: position `at` of the op's table is a list. */
static PlVal with_sizes(PlMaker *g, const PlOp *op, int nin, const PlVal *in, int at, int i) {
  PlAttrs a;
  pl_attrs_init(op, &a);
  pl_g_fail(g, pl_attrs_list(&a, at, g->in[i]->ndim, g->in[i]->shape));
  return pl_g_op(g, op, nin, in, &a, NULL);
}

PlVal pl_g_sum_to(PlMaker *g, PlVal dy, int i) {
  if (g->same[i]) return dy;
  if (poly(g)) return pl_g2(g, &pl_op_sum_to, dy, pl_g1(g, &pl_op_shape_of, g->x[i]));
  PlVal in[2] = {dy, PL_NONE};
  return with_sizes(g, &pl_op_sum_to, 2, in, 0, i);
}

PlVal pl_g_zeros_like(PlMaker *g, int i) {
  PlAttrs a;
  pl_attrs_init(&pl_op_zeros_of, &a);
  pl_attrs_int(&a, 0, g->in[i]->dtype);
  PlVal shape = pl_g1(g, &pl_op_shape_of, g->x[i]);
  return pl_g_op(g, &pl_op_zeros_of, 1, &shape, &a, NULL);
}

PlVal pl_g_expand_like(PlMaker *g, PlVal v, int i) {
  if (!poly(g)) return with_sizes(g, &pl_op_expand, 1, &v, 0, i);
  return pl_g2(g, &pl_op_expand_to, v, pl_g1(g, &pl_op_shape_of, g->x[i]));
}

PlVal pl_g_reshape_like(PlMaker *g, PlVal v, int i) {
  if (!poly(g)) return with_sizes(g, &pl_op_reshape, 1, &v, 0, i);
  return pl_g2(g, &pl_op_reshape_to, v, pl_g1(g, &pl_op_shape_of, g->x[i]));
}

PlVal pl_g_cast(PlMaker *g, PlVal v, PlDtype d) {
  PlAttrs a;
  pl_attrs_init(&pl_op_cast, &a);
  pl_attrs_int(&a, 0, d);
  return pl_g_op(g, &pl_op_cast, 1, &v, &a, NULL);
}

/* ---- making ----------------------------------------------------------------------------------------- */

void pl_backward_graph_release(PlBackward *b) {
  if (!b || --b->refs) return;
  pl_grad_graph_free(b->precomp);
  pl_grad_graph_free(b->backward);
  free(b->save);
  free(b);
}

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a gradient graph"); }

/* Runs the maker; *g receives the graph over [inputs | outputs | dys] whose results are the gradients that
 * exist, has_grad says of which inputs. */
static PlStatus emit(const PlMakeArgs *a, PlGradGraph **out, uint8_t *has_grad) {
  int nin = a->nin, nout = a->op->nout;
  size_t n = (size_t)(2 * nin + 2 * nout);
  PlVal *vals = malloc(n * sizeof *vals);
  PlGradGraph *g = NULL;
  if (!vals) return no_memory();
  PlStatus s = pl_grad_graph_new(&g, nin + 2 * nout);
  PlVal *x = vals, *dx = vals + nin, *y = dx + nin, *dy = y + nout;
  for (int i = 0; i < nin; i++) {
    x[i] = a->in[i] ? i : PL_NONE;
    dx[i] = PL_NONE;
  }
  for (int o = 0; o < nout; o++) {
    y[o] = nin + o;
    dy[o] = a->dy_given[o] ? nin + nout + o : PL_NONE;
  }
  if (s == PL_OK) {
    PlMaker m = {.graph = g,
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
                 .dy = dy,
                 .dx = dx};
    s = a->op->grad(&m);
    if (s == PL_OK) s = m.status;
  }
  int k = 0;
  for (int i = 0; i < nin; i++) {
    has_grad[i] = a->want[i] && dx[i] != PL_NONE;
    if (has_grad[i]) dx[k++] = dx[i];
  }
  if (s == PL_OK) s = pl_grad_graph_results(g, k, dx);
  free(vals);
  if (s != PL_OK) {
    pl_grad_graph_free(g);
    return s;
  }
  *out = g;
  return PL_OK;
}

PlStatus pl_gradient_graph_make(const PlMakeArgs *a, PlGradGraph **out, uint8_t *has_grad) {
  PlGradGraph *g;
  PL_TRY(emit(a, &g, has_grad));
  PlStatus s = pl_grad_graph_optimize(&g);
  if (s != PL_OK) {
    pl_grad_graph_free(g);
    return s;
  }
  *out = g;
  return PL_OK;
}

PlStatus pl_backward_graph_make(const PlMakeArgs *a, PlBackward **out, PlGradGraph **unsplit) {
  int nin = a->nin, nout = a->op->nout;
  PlBackward *b = calloc(1, sizeof *b);
  uint8_t *masks = calloc((size_t)(2 * nin + 2 * nout) + 1, 1);
  PlGradGraph *g = NULL;
  PlStatus s = b && masks ? PL_OK : no_memory();
  if (s != PL_OK) {
    free(b);
    free(masks);
    return s;
  }
  *b = (PlBackward){.refs = 1, .nin = nin, .nout = nout, .save = masks, .has_grad = masks + nin + 2 * nout};
  s = emit(a, &g, b->has_grad);
  if (s == PL_OK && g->nresults == 0) { /* not differentiable */
    pl_grad_graph_free(g);
    pl_backward_graph_release(b);
    *out = NULL;
    return PL_OK;
  }
  if (s == PL_OK) s = pl_grad_graph_optimize(&g);
  if (s == PL_OK) s = pl_backward_graph_split(g, a, b);
  if (s != PL_OK) {
    pl_grad_graph_free(g);
    pl_backward_graph_release(b);
    return s;
  }
  if (unsplit) *unsplit = g;
  else pl_grad_graph_free(g);
  *out = b;
  return PL_OK;
}

/* ---- the cache ---------------------------------------------------------------------------------------- */

static void drop_graph(void *b) { pl_backward_graph_release(b); }
static _Thread_local PlGradGraphCache cache = {.drop = drop_graph};

static void desc_of(PlDesc *d, const PlTensor *t) {
  if (!t) return;
  pl_desc_set(d, (PlDtype)t->a.dtype, t->a.ndim, t->a.shape);
}

PlStatus pl_make_args(PlMakeRoom *r, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out,
                      const bool *want, const bool *same) {
  r->arr = r->few;
  if (nin > PL_MAX_IN && !(r->arr = malloc((size_t)nin * sizeof *r->arr))) return no_memory();
  for (int i = 0; i < nin; i++) r->arr[i] = in[i] ? &in[i]->a : NULL;
  memset(r->outd, 0, sizeof r->outd); /* absent outputs have none */
  for (int o = 0; o < op->nout; o++) {
    desc_of(&r->outd[o], out[o]);
    r->given[o] = out[o] && pl_is_float((PlDtype)out[o]->a.dtype);
  }
  r->args = (PlMakeArgs){op, nin, r->arr, attrs, r->outd, want, r->given, same};
  return PL_OK;
}

void pl_make_args_end(PlMakeRoom *r) {
  if (r->arr != r->few) free((void *)r->arr);
}

static PlStatus make(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out, const bool *want,
                     const bool *same, PlBackward **result) {
  PlMakeRoom room;
  PL_TRY(pl_make_args(&room, op, in, nin, attrs, out, want, same));
  PlStatus s = pl_backward_graph_make(&room.args, result, NULL);
  pl_make_args_end(&room);
  return s;
}

PlStatus pl_backward_graph_get(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out, const bool *want,
                               PlBackward **result) {
  PlGradGraphKey k;
  void *found;
  bool few[PL_MAX_IN], *same = few;
  PL_TRY(pl_grad_graph_cache_open(&cache));
  if (nin > PL_MAX_IN && !(same = malloc((size_t)nin * sizeof *same))) return no_memory();
  for (int i = 0; i < nin; i++) same[i] = in[i] && out[0] && pl_shape_equal(&in[i]->a, &out[0]->a);
  PlStatus s = PL_OK;
  pl_grad_graph_key(&k, op, in, nin, attrs, out, want, same, !(op->flags & PL_F_POLY));
  if (pl_grad_graph_cache_find(&cache, op, &k, &found)) {
    *result = found;
    if (found) (*result)->refs++;
  } else if ((s = make(op, in, nin, attrs, out, want, same, result)) == PL_OK) {
    if (*result) (*result)->refs++; /* the caller's and the cache's */
    pl_grad_graph_cache_put(&cache, op, &k, *result);
  }
  if (same != few) free(same);
  return s;
}

void pl_backward_cache_stats(int64_t *hits, int64_t *misses, int64_t *entries) {
  *hits = cache.hits;
  *misses = cache.misses;
  *entries = cache.entries;
}

void pl_backward_cache_end(void) { pl_grad_graph_cache_end(&cache); }

void pl_backward_cache_clear(void) { pl_grad_graph_cache_clear(&cache); }
