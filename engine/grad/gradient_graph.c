/* SPDX-License-Identifier: MIT
 * Building, optimizing, printing and running small op graphs. See gradient_graph.h. */
#include "engine/grad/gradient_graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/call.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/tensor/alloc.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a gradient graph"); }

PlStatus pl_grad_graph_new(PlGradGraph **out, int ninputs) {
  PlGradGraph *g = calloc(1, sizeof *g);
  if (!g) return no_memory();
  g->ninputs = g->nvals = ninputs;
  g->cap_vals = ninputs + 16;
  g->consts = calloc((size_t)g->cap_vals, sizeof(PlTensor *));
  if (!g->consts) {
    free(g);
    return no_memory();
  }
  *out = g;
  return PL_OK;
}

void pl_grad_graph_free(PlGradGraph *g) {
  if (!g) return;
  for (int v = 0; v < g->nvals; v++) pl_tensor_release(g->consts[v]);
  for (int i = 0; i < g->nnodes; i++) {
    free(g->nodes[i].in);
    if (g->nodes[i].attrs) pl_pool_put(g->nodes[i].attrs, pl_attrs_size(g->nodes[i].attrs));
  }
  free(g->nodes);
  free(g->consts);
  free(g->results);
  free(g->last);
  free(g);
}

static PlStatus grow_vals(PlGradGraph *g, int n) {
  if (g->nvals + n <= g->cap_vals) return PL_OK;
  int cap = 2 * (g->nvals + n);
  PlTensor **c = realloc(g->consts, (size_t)cap * sizeof *c);
  if (!c) return no_memory();
  memset(c + g->nvals, 0, (size_t)(cap - g->nvals) * sizeof *c);
  g->consts = c;
  g->cap_vals = cap;
  return PL_OK;
}

PlStatus pl_grad_graph_const(PlGradGraph *g, PlTensor *t, PlVal *out) {
  PL_TRY(grow_vals(g, 1));
  g->consts[g->nvals] = pl_retain(t);
  *out = g->nvals++;
  return PL_OK;
}

PlStatus pl_grad_graph_add(PlGradGraph *g, const PlOp *op, int nin, const PlVal *in, const PlAttrs *attrs, PlVal *first) {
  if (g->nnodes == g->cap_nodes) {
    int cap = g->cap_nodes ? 2 * g->cap_nodes : 8;
    PlGradNode *n = realloc(g->nodes, (size_t)cap * sizeof *n);
    if (!n) return no_memory();
    g->nodes = n;
    g->cap_nodes = cap;
  }
  PL_TRY(grow_vals(g, op->nout));
  PlVal *copy = malloc((size_t)(nin ? nin : 1) * sizeof *copy);
  PlAttrs *a = attrs ? pl_attrs_compact(attrs) : NULL;
  if (!copy || (attrs && !a)) {
    free(copy);
    if (a) pl_pool_put(a, pl_attrs_size(a));
    return no_memory();
  }
  if (nin > 0) memcpy(copy, in, (size_t)nin * sizeof *copy);
  g->nodes[g->nnodes++] = (PlGradNode){.op = op, .attrs = a, .nin = nin, .nout = op->nout, .first = g->nvals, .in = copy};
  *first = g->nvals;
  g->nvals += op->nout;
  return PL_OK;
}

PlStatus pl_grad_graph_results(PlGradGraph *g, int n, const PlVal *v) {
  g->results = malloc((size_t)(n ? n : 1) * sizeof *g->results);
  if (!g->results) return no_memory();
  memcpy(g->results, v, (size_t)n * sizeof *v);
  g->nresults = n;
  return PL_OK;
}

PlStatus pl_grad_graph_finish(PlGradGraph *g) {
  free(g->last);
  g->last = malloc((size_t)(g->nvals ? g->nvals : 1) * sizeof *g->last);
  if (!g->last) return no_memory();
  for (int v = 0; v < g->nvals; v++) g->last[v] = -1;
  for (int i = 0; i < g->nnodes; i++) {
    for (int o = 0; o < g->nodes[i].nout; o++) g->last[g->nodes[i].first + o] = i; /* unread: die at birth */
    for (int k = 0; k < g->nodes[i].nin; k++)
      if (g->nodes[i].in[k] >= 0) g->last[g->nodes[i].in[k]] = i;
  }
  for (int r = 0; r < g->nresults; r++) g->last[g->results[r]] = g->nnodes;
  return PL_OK;
}

/* ---- what is needed ------------------------------------------------------------------------------- */

static bool node_needed(const PlGradNode *n, const bool *need) {
  for (int o = 0; o < n->nout; o++)
    if (need[n->first + o]) return true;
  return false;
}

/* And whatever the values marked so far are computed from. */
static void mark_needed(const PlGradGraph *g, bool *need) {
  for (int i = g->nnodes - 1; i >= 0; i--) {
    const bool live = node_needed(&g->nodes[i], need);
    for (int k = 0; live && k < g->nodes[i].nin; k++)
      if (g->nodes[i].in[k] >= 0) need[g->nodes[i].in[k]] = true;
  }
}

/* ---- running ------------------------------------------------------------------------------------- */

static PlStatus run_node(const PlGradGraph *g, int i, PlTensor *const *in, PlTensor **vals) {
  const PlGradNode *n = &g->nodes[i];
  PlTensor *few[PL_MAX_IN], **args = few, *outs[PL_MAX_OUT];
  if (n->nin > PL_MAX_IN && !(args = malloc((size_t)n->nin * sizeof *args))) return no_memory();
  for (int k = 0; k < n->nin; k++) {
    PlVal v = n->in[k];
    args[k] = v < 0 ? NULL : v < g->ninputs ? in[v] : g->consts[v] ? g->consts[v] : vals[v];
  }
  PlStatus s = pl_apply(n->op, args, n->nin, n->attrs, outs);
  if (args != few) free(args);
  PL_TRY(s);
  for (int o = 0; o < n->nout; o++) vals[n->first + o] = outs[o];
  for (int o = 0; o < n->nout; o++)
    if (g->last[n->first + o] == i) {
      pl_tensor_release(vals[n->first + o]);
      vals[n->first + o] = NULL;
    }
  for (int k = 0; k < n->nin; k++) {
    PlVal v = n->in[k];
    if (v >= g->ninputs && !g->consts[v] && g->last[v] == i && vals[v]) {
      pl_tensor_release(vals[v]);
      vals[v] = NULL;
    }
  }
  return PL_OK;
}

PlStatus pl_grad_graph_run(const PlGradGraph *g, PlTensor *const *in, PlTensor **out) {
  return pl_grad_graph_run_some(g, in, NULL, NULL, PL_CPU, out);
}

void pl_grad_graph_needed(const PlGradGraph *g, const bool *wants, bool *need) {
  memset(need, 0, (size_t)g->nvals * sizeof *need);
  for (int r = 0; r < g->nresults; r++) need[g->results[r]] |= wants[r];
  mark_needed(g, need);
}

PlStatus pl_grad_graph_run_some(const PlGradGraph *g, PlTensor *const *in, const bool *need, const bool *wants, uint8_t device,
                                PlTensor **out) {
  enum { FEW = 48 };
  PlTensor *few[FEW], **vals = few;
  if (g->nvals > FEW && !(vals = malloc((size_t)g->nvals * sizeof *vals))) return no_memory();
  memset(vals, 0, (size_t)g->nvals * sizeof *vals);
  PlStatus s = PL_OK;
  const uint8_t was = pl_state.device;
  for (int i = 0; i < g->ninputs; i++) device = pl_device_first(device, in[i] ? in[i]->a.device : PL_CPU);
  pl_state.device = device; /* of zeros that the graph makes */
  for (int i = 0; i < g->nnodes && s == PL_OK; i++)
    if (!need || node_needed(&g->nodes[i], need)) s = run_node(g, i, in, vals);
  pl_state.device = was;
  if (s == PL_OK)
    for (int r = 0; r < g->nresults; r++) {
      PlVal v = g->results[r];
      out[r] = NULL;
      if (!wants || wants[r]) out[r] = pl_retain(v < g->ninputs ? in[v] : g->consts[v] ? g->consts[v] : vals[v]);
    }
  for (int v = g->ninputs; v < g->nvals; v++) pl_tensor_release(vals[v]);
  if (vals != few) free(vals);
  return s;
}

/* ---- optimizing ------------------------------------------------------------------------------------- */

bool pl_op_is_pure(const PlOp *op) { return !(op->flags & (PL_F_SEEDED | PL_F_MUTATES | PL_F_IMPURE)); }

static bool same_node(const PlGradNode *a, const PlGradNode *b) {
  if (a->op != b->op || a->nin != b->nin || !pl_op_is_pure(a->op)) return false;
  const bool turned = (a->op->flags & PL_F_COMMUTES) && a->in[0] == b->in[1] && a->in[1] == b->in[0];
  if (memcmp(a->in, b->in, (size_t)a->nin * sizeof *a->in) != 0 && !turned) return false;
  if (!a->attrs || !b->attrs) return a->attrs == b->attrs;
  return pl_attrs_size(a->attrs) == pl_attrs_size(b->attrs) && memcmp(a->attrs, b->attrs, pl_attrs_size(a->attrs)) == 0;
}

PlStatus pl_grad_graph_copy_node(PlGradGraph *to, const PlGradGraph *from, int i, PlVal *map) {
  const PlGradNode *n = &from->nodes[i];
  PlVal few[PL_MAX_IN] = {0}, *in = few, first;
  if (n->nin > PL_MAX_IN && !(in = malloc((size_t)n->nin * sizeof *in))) return no_memory();
  for (int k = 0; k < n->nin; k++) in[k] = n->in[k] < 0 ? PL_NONE : map[n->in[k]];
  PlStatus s = pl_grad_graph_add(to, n->op, n->nin, in, n->attrs, &first);
  if (in != few) free(in);
  PL_TRY(s);
  for (int o = 0; o < n->nout; o++) map[n->first + o] = first + o;
  return PL_OK;
}

PlStatus pl_grad_graph_copy_consts(PlGradGraph *to, const PlGradGraph *from, PlVal *map, const bool *need) {
  for (int v = from->ninputs; v < from->nvals; v++)
    if (from->consts[v] && (!need || need[v])) PL_TRY(pl_grad_graph_const(to, from->consts[v], &map[v]));
  return PL_OK;
}

static PlStatus optimize_into(PlGradGraph *to, const PlGradGraph *g, PlVal *map, bool *need) {
  for (int r = 0; r < g->nresults; r++) need[g->results[r]] = true;
  mark_needed(g, need);
  for (int v = 0; v < g->nvals; v++) map[v] = v < g->ninputs ? v : PL_NONE;
  PL_TRY(pl_grad_graph_copy_consts(to, g, map, need));
  for (int i = 0; i < g->nnodes; i++) {
    if (!node_needed(&g->nodes[i], need)) continue;
    PL_TRY(pl_grad_graph_copy_node(to, g, i, map));
    PlGradNode *n = &to->nodes[to->nnodes - 1];
    /* near ones only: cat of thousands has thousands of nodes, none alike */
    for (int j = to->nnodes > 128 ? to->nnodes - 128 : 0; j < to->nnodes - 1; j++)
      if (same_node(&to->nodes[j], n)) {
        for (int o = 0; o < n->nout; o++) map[g->nodes[i].first + o] = to->nodes[j].first + o;
        to->nvals -= n->nout;
        free(n->in);
        if (n->attrs) pl_pool_put(n->attrs, pl_attrs_size(n->attrs));
        to->nnodes--;
        break;
      }
  }
  PlVal res[PL_MAX_IN + 1], *r = res;
  if (g->nresults > PL_MAX_IN && !(r = malloc((size_t)g->nresults * sizeof *r))) return no_memory();
  for (int k = 0; k < g->nresults; k++) r[k] = map[g->results[k]];
  PlStatus s = pl_grad_graph_results(to, g->nresults, r);
  if (r != res) free(r);
  PL_TRY(s);
  return pl_grad_graph_finish(to);
}

PlStatus pl_grad_graph_optimize(PlGradGraph **g) {
  PlGradGraph *to = NULL;
  PL_TRY(pl_grad_graph_new(&to, (*g)->ninputs));
  PlVal *map = malloc((size_t)(*g)->nvals * sizeof *map);
  bool *need = calloc((size_t)(*g)->nvals, sizeof *need);
  PlStatus s = map && need ? optimize_into(to, *g, map, need) : no_memory();
  free(map);
  free(need);
  if (s != PL_OK) {
    pl_grad_graph_free(to);
    return s;
  }
  pl_grad_graph_free(*g);
  *g = to;
  return PL_OK;
}

/* ---- text ------------------------------------------------------------------------------------------- */

char *pl_grad_graph_text(const PlGradGraph *g) {
  char *buf = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&buf, &size);
  if (!f) return NULL;
  fprintf(f, "inputs:");
  for (int v = 0; v < g->ninputs; v++) fprintf(f, " %%%d", v);
  fputc('\n', f);
  for (int v = g->ninputs; v < g->nvals; v++)
    if (g->consts[v]) fprintf(f, "%%%d = %g\n", v, pl_read_f(&g->consts[v]->a, 0));
  for (int i = 0; i < g->nnodes; i++) {
    const PlGradNode *n = &g->nodes[i];
    for (int o = 0; o < n->nout; o++) fprintf(f, "%s%%%d", o ? ", " : "", n->first + o);
    fprintf(f, " = %s(", n->op->name);
    for (int k = 0; k < n->nin; k++)
      if (n->in[k] < 0) fprintf(f, "%snil", k ? ", " : "");
      else fprintf(f, "%s%%%d", k ? ", " : "", n->in[k]);
    fprintf(f, ")\n");
  }
  fprintf(f, "results:");
  for (int r = 0; r < g->nresults; r++) fprintf(f, " %%%d", g->results[r]);
  fputc('\n', f);
  fclose(f);
  return buf;
}
