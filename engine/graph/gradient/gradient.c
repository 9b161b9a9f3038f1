/* SPDX-License-Identifier: MIT
 * The gradient pass: walks a graph backwards from ys and appends the nodes that compute the gradients of xs. What an
 * op's gradient is, its maker says (engine/grad/gradient_maker.c); the small graph it emits is run on symbolic tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/grad/gradient_graph.h"
#include "engine/graph/gradient/gradient_internal.h"
#include "engine/ops/names.h"

/* ---- what matters ---------------------------------------------------------------------------------------- */

static bool is_floating(const PlGValue *v) { return v->dtype != PL_NDTYPE && pl_is_float((PlDtype)v->dtype); }

static bool may_float(const PlGValue *v) { return v->dtype == PL_NDTYPE || pl_is_float((PlDtype)v->dtype); }

/* Does no gradient ever pass node n? */
static bool bars(const PlGraph *f, const PlGNode *n) {
  if (n->flags & PL_FN_THROUGH) return false;
  if ((n->op->flags & PL_F_NOGRAD_OK) || (n->flags & PL_FN_NO_GRAD)) return true;
  for (int32_t o = 0; o < n->nout; o++)
    if (may_float(&f->vals[n->first + o])) return false;
  return true;
}

/* Who may do without a gradient hears of zeros only where the tape would have had them: not behind comparisons, detach and
 * the like. */
static PlStatus mark_reached(PlGradWalk *w, int ny, const PlGVal *ys) {
  PlGraph *f = w->f;
  int32_t *stack = malloc((size_t)(w->nnodes + 1) * sizeof *stack), n = 0;
  if (!stack) return pl_grad_no_memory();
  for (int i = 0; i <= ny; i++) {
    while (n) {
      const PlGNode *node = &f->nodes[stack[--n]];
      bool barred = w->opts->allow_unused && (bars(f, node) || (node->op->flags & PL_F_STOPS));
      for (int32_t k = barred ? node->nin : 0; k < node->nin + node->nafter; k++) {
        int32_t to = k < node->nin ? -1 : node->after[k - node->nin];
        if (k < node->nin && node->in[k] >= 0) {
          if (w->opts->allow_unused && !may_float(&f->vals[node->in[k]])) continue;
          w->reached[node->in[k]] = 1;
          to = f->vals[node->in[k]].node;
        }
        if (to < 0 || w->touched[to]) continue;
        w->touched[to] = 1;
        stack[n++] = to;
      }
    }
    if (i == ny) break;
    w->reached[ys[i]] = 1;
    int32_t node = f->vals[ys[i]].node;
    if (node >= 0 && !w->touched[node]) {
      w->touched[node] = 1;
      stack[n++] = node;
    }
  }
  free(stack);
  return PL_OK;
}

PlStatus pl_grad_reached(PlGraph *f, PlGVal y, uint8_t *reached) {
  const PlGradientOptions o = {.allow_unused = true};
  PlGradWalk w = {.f = f, .opts = &o, .nvals = f->nvals, .nnodes = f->nnodes, .reached = reached};
  memset(reached, 0, (size_t)f->nvals);
  if (!(w.touched = calloc((size_t)f->nnodes + 1, 1))) return pl_grad_no_memory();
  const PlStatus s = mark_reached(&w, 1, &y);
  free(w.touched);
  return s;
}

static void mark_dependent(PlGradWalk *w, int nx, const PlGVal *xs) {
  PlGraph *f = w->f;
  for (int i = 0; i < nx; i++) w->dep[xs[i]] = 1;
  for (int32_t i = 0; i < w->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    if (n->flags & PL_FN_THROUGH) {
      for (int32_t o = 0; o < n->nout; o++) w->dep[n->first + o] = w->dep[n->in[o]];
      continue;
    }
    if (!w->touched[i] || bars(f, n)) continue;
    bool dep = false;
    for (int32_t k = 0; k < n->nin && !dep; k++) dep = n->in[k] >= 0 && w->dep[n->in[k]];
    for (int32_t o = 0; o < n->nout; o++)
      if (dep && is_floating(&f->vals[n->first + o])) w->dep[n->first + o] = 1;
  }
}

/* ---- one node -------------------------------------------------------------------------------------------- */

static bool all_zero(const PlGradWalk *w, const PlGNode *n) {
  if (w->opts->zero_ops && w->opts->nzero_ops == 0) return false;
  for (int32_t o = 0; o < n->nout; o++)
    if (w->sum[n->first + o] >= 0 && !pl_grad_is_zero(w, w->sum[n->first + o])) return false;
  return true;
}

/* Gradients are linear in those that arrive: zeros stay zeros. Without a rule others have no way on. */
static PlStatus without_rule(PlGradWalk *w, int32_t i) {
  PlGraph *f = w->f;
  const PlGNode *n = &f->nodes[i];
  bool ruled = n->op->grad != NULL;
  if (!all_zero(w, n))
    PL_FAIL(PL_ERR_UNSUPPORTED,
            "op %s has no gradient (node %s); detach its input, or give it a rule with "
            "T.custom",
            n->op->name, n->name);
  int32_t nin = n->nin;
  for (int32_t k = 0; k < nin; k++) {
    PlGVal x = f->nodes[i].in[k], z;
    if (x < 0 || !w->dep[x]) continue;
    char name[160];
    snprintf(name, sizeof name, nin == 1 ? "%.120s_backward" : "%.120s_in%d_backward", f->nodes[i].name, (int)k + 1);
    const char *kept = pl_graph_string(f, name);
    if (!kept) return pl_grad_no_memory();
    PL_TRY(pl_grad_zeros(w, x, kept, &z));
    if (!ruled) PL_TRY(pl_graph_after(f, f->vals[z].node, i));
    PL_TRY(pl_grad_add_term(w, x, z));
  }
  return PL_OK;
}

/* Of input k only the sizes? */
static bool reads_sizes_alone(const PlGradGraph *g, int32_t k) {
  for (int i = 0; i < g->nnodes; i++)
    for (int d = 0; d < g->nodes[i].nin; d++)
      if (g->nodes[i].in[d] == k && !(g->nodes[i].op->flags & PL_F_SIZES)) return false;
  for (int i = 0; i < g->nresults; i++)
    if (g->results[i] == k) return false;
  return true;
}

/* Runs the gradient graph on symbolic tensors: those of the node that it reads. */
static PlStatus inline_graph(PlGradWalk *w, int32_t i, const PlGradGraph *g, const uint8_t *has_grad) {
  PlGraph *f = w->f;
  int32_t nin = f->nodes[i].nin, nout = f->nodes[i].nout, n = nin + 2 * nout;
  PlTensor **t = calloc((size_t)(n + g->nresults + 1), sizeof *t), **res = t ? t + n : NULL;
  PlStatus s = t ? PL_OK : pl_grad_no_memory();
  for (int32_t k = 0; k < n && s == PL_OK; k++) {
    PlGVal v = k < nin ? f->nodes[i].in[k] : k < nin + nout ? f->nodes[i].first + k - nin : w->sum[f->nodes[i].first + k - nin - nout];
    if (v < 0 || g->last[k] < 0) continue;
    if (f->vals[v].version != f->stores[f->vals[v].store].version && !reads_sizes_alone(g, k)) {
      s = pl_fail(PL_ERR_STATE,
                  "the gradient of %s reads a tensor whose memory was overwritten after it; take the "
                  "gradient before the write, or write into a clone",
                  f->nodes[i].name);
      continue;
    }
    if (f->vals[v].weak && f->vals[v].real) t[k] = pl_retain(f->vals[v].real);
    else s = pl_sym_tensor(&t[k], f, v);
  }
  if (s == PL_OK) s = pl_grad_graph_run(g, t, res);
  int r = 0;
  for (int32_t k = 0; k < nin && s == PL_OK; k++) {
    if (!has_grad[k]) continue;
    PlGVal v;
    s = pl_sym_value_of(f, res[r++], &v);
    if (s == PL_OK) s = pl_grad_add_term(w, f->nodes[i].in[k], v);
  }
  for (int32_t k = 0; t && k < n + g->nresults; k++) pl_tensor_release(t[k]);
  free(t);
  return s;
}

typedef struct Types {
  PlArray *arr;
  const PlArray **ptr;
  bool *want, *same;
  uint8_t *has_grad;
  PlDesc outd[PL_MAX_OUT];
  bool given[PL_MAX_OUT];
} Types;

static void describe(const PlGradWalk *w, const PlGNode *n, Types *t) {
  const PlGraph *f = w->f;
  for (int32_t k = 0; k < n->nin; k++) {
    if (n->in[k] < 0) continue;
    const PlGValue *v = &f->vals[n->in[k]];
    t->arr[k] = pl_gvalue_array(v);
    t->ptr[k] = &t->arr[k];
    t->want[k] = w->dep[n->in[k]];
    const PlGValue *y = &f->vals[n->first];
    t->same[k] = y->dtype != PL_NDTYPE && v->ndim == y->ndim && memcmp(v->dims, y->dims, v->ndim * sizeof(int64_t)) == 0;
  }
  for (int32_t o = 0; o < n->nout && o < PL_MAX_OUT; o++) {
    const PlGValue *y = &f->vals[n->first + o];
    if (y->dtype != PL_NDTYPE) pl_desc_set(&t->outd[o], (PlDtype)y->dtype, y->ndim, y->dims);
    t->given[o] = w->sum[n->first + o] >= 0;
  }
}

static PlStatus with_rule(PlGradWalk *w, int32_t i) {
  const PlGNode *n = &w->f->nodes[i];
  size_t nin = (size_t)n->nin;
  Types t = {.arr = NULL};
  memset(t.outd, 0, sizeof t.outd);
  char *room = calloc(nin + 1, sizeof(PlArray) + sizeof(PlArray *) + 2 * sizeof(bool) + 1);
  if (!room) return pl_grad_no_memory();
  t.arr = (PlArray *)(void *)room;
  t.ptr = (const PlArray **)(void *)(t.arr + nin);
  t.want = (bool *)(t.ptr + nin);
  t.same = t.want + nin;
  t.has_grad = (uint8_t *)(t.same + nin);
  describe(w, n, &t);
  PlMakeArgs a = {n->op, n->nin, t.ptr, n->attrs, t.outd, t.want, t.given, t.same};
  PlGradGraph *g = NULL;
  PlStatus s = pl_gradient_graph_make(&a, &g, t.has_grad);
  if (s == PL_OK) s = inline_graph(w, i, g, t.has_grad);
  pl_grad_graph_free(g);
  free(room);
  return s;
}

static PlStatus node_backward(PlGradWalk *w, int32_t i) {
  PlGraph *f = w->f;
  const PlGNode *n = &f->nodes[i];
  bool any = false, dep = false;
  for (int32_t o = 0; o < n->nout; o++) {
    PL_TRY(pl_grad_sum_terms(w, f->nodes[i].first + o));
    any |= w->sum[f->nodes[i].first + o] >= 0;
  }
  n = &f->nodes[i]; /* sums may have moved the array */
  if (n->flags & PL_FN_THROUGH) {
    for (int32_t o = 0; o < f->nodes[i].nout; o++) {
      const PlGVal x = f->nodes[i].in[o], g = w->sum[f->nodes[i].first + o];
      if (g >= 0 && w->dep[x]) PL_TRY(pl_grad_add_term(w, x, g));
    }
    return PL_OK;
  }
  for (int32_t k = 0; k < n->nin; k++) dep |= n->in[k] >= 0 && w->dep[n->in[k]];
  if (!any || !dep || (n->op->flags & PL_F_NOGRAD_OK)) return PL_OK;
  char name[160];
  snprintf(name, sizeof name, "%.140s_backward", n->name);
  const char *kept = pl_graph_string(f, name);
  if (!kept) return pl_grad_no_memory();
  f->origin = i;
  pl_grad_name_next(f, kept);
  return n->op->grad && !all_zero(w, n) ? with_rule(w, i) : without_rule(w, i);
}

/* ---- the pass -------------------------------------------------------------------------------------------- */

static PlStatus seed(PlGradWalk *w, int ny, const PlGVal *ys, const PlGVal *dys) {
  PlGraph *f = w->f;
  for (int i = 0; i < ny; i++) {
    PlGVal g = dys ? dys[i] : -1;
    const PlGValue *y = &f->vals[ys[i]];
    PlArray a = pl_gvalue_array(y);
    if (!is_floating(y)) PL_FAIL(PL_ERR_DTYPE, "gradient: output %d is %s; only floating ones have gradients", i + 1, pl_desc_text(&a));
    if (g < 0) PL_TRY(pl_grad_constant_like(f, &pl_op_ones, ys[i], "ones", &g));
    else {
      PlArray b = pl_gvalue_array(&f->vals[g]);
      if (b.dtype != a.dtype || !pl_shape_equal(&a, &b))
        PL_FAIL(PL_ERR_SHAPE, "gradient: output %d is %s, its out-gradient is %s", i + 1, pl_desc_text(&a), pl_desc_text(&b));
    }
    PL_TRY(pl_grad_add_term(w, ys[i], g));
  }
  return PL_OK;
}

static PlStatus unreachable(const PlGraph *f, PlGVal x, int i) {
  const char *name = f->vals[x].name;
  char number[24];
  if (!name && f->vals[x].node >= 0) name = f->nodes[f->vals[x].node].name;
  if (!name) {
    snprintf(number, sizeof number, "#%d", i + 1);
    name = number;
  }
  PL_FAIL(PL_ERR_ARG, "cannot differentiate with respect to input %s: not reachable from the outputs", name);
}

static PlStatus collect(PlGradWalk *w, int nx, const PlGVal *xs, PlGVal *dx) {
  PlGraph *f = w->f;
  for (int i = 0; i < nx; i++) {
    dx[i] = -1;
    if (!w->reached[xs[i]]) continue; /* allow_unused */
    PL_TRY(pl_grad_sum_terms(w, xs[i]));
    if (w->sum[xs[i]] < 0) PL_TRY(pl_grad_constant_like(f, &pl_op_zeros, xs[i], "zero_grad", &w->sum[xs[i]]));
    dx[i] = w->sum[xs[i]];
  }
  for (int i = 0; w->opts->copy && i < nx; i++) {
    int k = 0;
    PlGVal g = dx[i];
    for (int j = 0; j < i; j++) k += dx[i] >= 0 && w->sum[xs[j]] == w->sum[xs[i]];
    if (!k) continue;
    char name[160];
    const char *of = f->vals[g].node >= 0 ? f->nodes[f->vals[g].node].name : f->vals[g].name ? f->vals[g].name : "grad";
    snprintf(name, sizeof name, "%.120s_%d_copy", of, k);
    const char *kept = pl_graph_string(f, name);
    if (!kept) return pl_grad_no_memory();
    PL_TRY(pl_grad_copy(w, g, kept, &dx[i]));
  }
  return PL_OK;
}

PlStatus pl_graph_region(PlGraph *f, int32_t begin, int ny, const PlGVal *ys, PlRecomputeOptions *m) {
  PlGRegion *r = realloc(f->regions, (size_t)(f->nregions + 1) * sizeof *r);
  if (!r) return pl_grad_no_memory();
  f->regions = r;
  PlGVal *copy = malloc((size_t)(ny ? ny : 1) * sizeof *copy);
  if (!copy) return pl_grad_no_memory();
  memcpy(copy, ys, (size_t)ny * sizeof *ys);
  f->regions[f->nregions++] = (PlGRegion){.begin = begin, .end = f->nnodes, .ny = ny, .ys = copy, .recompute = *m};
  m->choice = NULL;
  f->edition++;
  return PL_OK;
}

static PlStatus pass(PlGradWalk *w, int ny, const PlGVal *ys, const PlGVal *dys, int nx, const PlGVal *xs, PlGVal *dx) {
  PL_TRY(mark_reached(w, ny, ys));
  for (int i = 0; i < nx && !w->opts->allow_unused; i++)
    if (!w->reached[xs[i]]) return unreachable(w->f, xs[i], i);
  mark_dependent(w, nx, xs);
  PL_TRY(seed(w, ny, ys, dys));
  const uint8_t home = pl_state.device;
  for (int32_t i = w->nnodes - 1; i >= 0; i--) {
    if (!w->touched[i]) continue;
    pl_state.device = pl_device_first(w->f->vals[w->f->nodes[i].first].device, home);
    PL_TRY(node_backward(w, i));
  }
  pl_state.device = home;
  w->f->origin = -1;
  return collect(w, nx, xs, dx);
}

PlStatus pl_graph_gradient(PlGraph *f, int ny, const PlGVal *ys, const PlGVal *dys, int nx, const PlGVal *xs, PlGradientOptions *opts,
                           PlGVal *dx) {
  size_t nv = (size_t)f->nvals, nn = (size_t)f->nnodes;
  PlGradWalk w = {.f = f, .opts = opts, .nvals = f->nvals, .nnodes = f->nnodes};
  w.terms = calloc(nv + 1, sizeof *w.terms);
  w.sum = malloc((nv + 1) * sizeof *w.sum);
  w.reached = calloc(2 * nv + nn + 1, 1);
  PlGMark mark = {.counts = NULL};
  PlStatus s = w.terms && w.sum && w.reached ? pl_graph_mark(f, &mark) : pl_grad_no_memory();
  if (s == PL_OK) {
    w.dep = w.reached + nv;
    w.touched = w.dep + nv;
    for (size_t v = 0; v < nv; v++) w.sum[v] = -1;
    uint8_t stage = f->stage;
    PlGraph *was = pl_state.trace;
    uint8_t cast = pl_set_autocast(0); /* gradients have the dtypes of what they belong to */
    bool rec = f->record;
    uint8_t device = pl_state.device; /* ones and zeros are on the device of what they are gradients of */
    pl_state.device = PL_CPU;
    for (int i = 0; i < ny; i++) pl_state.device = pl_device_first(pl_state.device, f->vals[ys[i]].device);
    pl_state.device = pl_device_first(pl_state.device, device);
    f->record = false;
    pl_set_trace(f);
    f->stage = (uint8_t)(f->nregions < 254 ? f->nregions + 1 : 255);
    int32_t begin = f->nnodes;
    s = pass(&w, ny, ys, dys, nx, xs, dx);
    if (s == PL_OK) s = pl_graph_region(f, begin, ny, ys, &opts->recompute);
    f->record = rec;
    pl_set_trace(was);
    pl_state.device = device;
    pl_set_autocast(cast);
    f->stage = stage;
    f->origin = -1;
    f->emit_name = NULL;
    if (s != PL_OK && !opts->aggregate) pl_graph_back(f, &mark); /* half a pass is none; a script's sums may be held by it */
  }
  free(mark.counts);
  free(w.terms);
  free(w.sum);
  free(w.reached);
  return s;
}
