/* SPDX-License-Identifier: MIT
 * A traced function whose results are differentiated outside: its graph becomes two, forward and backward, with what
 * backward reads of forward passed between them. Views are not passed but taken again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grad/node.h"
#include "engine/graph/gradient/gradient_internal.h"
#include "engine/graph/gradient/joint_internal.h"
#include "engine/graph/ir/graph.h"
#include "engine/graph/run/executor.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a traced function"); }

void pl_joint_release(PlJoint *j) {
  if (!j || --j->refs) return;
  pl_joint_release(j->second);
  free(j->xs);
  pl_exec_release(j->run_forward);
  pl_exec_release(j->run_backward);
  pl_graph_release(j->forward);
  pl_graph_release(j->backward);
  free(j->dx_at);
  free(j->reach);
  free(j->inside);
  free(j->read);
  free(j->input_read);
  free(j);
}

/* ---- making ------------------------------------------------------------------------------------------------ */

typedef struct Split {
  PlGraph *f;   /* joint graph, becomes backward */
  int stage;    /* of backward's nodes; below: forward's */
  bool *keep;   /* per forward node: a view that backward takes again */
  bool *kept;   /* per value: passed from forward to backward */
  bool *behind; /* per value: what forward left in a tensor from outside, where backward finds it */
  PlGVal *list; /* those values in order */
  int32_t n;
} Split;

static bool is_forward(const Split *s, int32_t node) { return s->f->nodes[node].stage < s->stage; }

/* Is it in memory that the graph has made itself? */
static bool is_own(const PlGraph *f, const PlGValue *val) { return f->vals[f->stores[val->store].first].kind == PL_FV_NODE; }

/* Is that what is in its memory when forward is over, and all of it? Of a tensor from outside backward reads the tensor itself then,
 * whose version it checks, as it does with what nobody wrote: parameters that are used after an optimizer's step. */
static bool is_left(const PlGraph *f, const PlGValue *val) {
  const PlGValue *first = &f->vals[f->stores[val->store].first];
  const PlArray is = pl_gvalue_array(val), was = pl_gvalue_array(first);
  return val->version == f->stores[val->store].version && is.dtype == was.dtype && pl_shape_equal(&is, &was);
}

/* Value v of the forward half is read by backward. */
static PlStatus need(Split *s, PlGVal v) {
  const PlGraph *f = s->f;
  for (;;) { /* up a chain of views, whose nodes come ever earlier */
    const PlGValue *val = &f->vals[v];
    if (val->kind != PL_FV_NODE || !is_forward(s, val->node) || s->kept[v] || s->keep[val->node]) return PL_OK;
    const PlGNode *n = &f->nodes[val->node];
    if (n->flags & PL_FN_MUTATES && !(is_left(f, val) && is_own(f, val))) {
      if ((s->behind[v] = is_left(f, val))) return PL_OK;
      PL_FAIL(PL_ERR_TRACE, "jit: the gradient reads %s after %s wrote it in place; use the out-of-place form",
              f->vals[f->stores[val->store].first].name ? f->vals[f->stores[val->store].first].name : "a tensor", n->op->name);
    }
    if (!(n->flags & PL_FN_VIEW)) {
      s->kept[v] = true;
      s->list[s->n++] = v;
      return PL_OK;
    }
    s->keep[val->node] = true;
    v = n->in[0];
  }
}

static PlStatus find_kept(Split *s, int32_t nx, const PlGVal *dx) {
  const PlGraph *f = s->f;
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin && !is_forward(s, i); k++)
      if (f->nodes[i].in[k] >= 0) PL_TRY(need(s, f->nodes[i].in[k]));
  for (int32_t i = 0; i < nx; i++)
    if (dx[i] >= 0) PL_TRY(need(s, dx[i]));
  return PL_OK;
}

/* What forward left in tensors from outside is read there. */
static void read_behind(const Split *s, int32_t nx, PlGVal *dx) {
  PlGraph *f = s->f;
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin && (!is_forward(s, i) || s->keep[i]); k++)
      if (f->nodes[i].in[k] >= 0 && s->behind[f->nodes[i].in[k]]) f->nodes[i].in[k] = f->stores[f->vals[f->nodes[i].in[k]].store].first;
  for (int32_t i = 0; i < nx; i++)
    if (dx[i] >= 0 && s->behind[dx[i]]) dx[i] = f->stores[f->vals[dx[i]].store].first;
}

/* Kept values become inputs, the rest of forward goes. */
static PlStatus cut(Split *s, PlJoint *j, int32_t nx, PlGVal *dx) {
  PlGraph *f = s->f;
  read_behind(s, nx, dx);
  for (int32_t k = 0; k < s->n; k++) {
    PlGValue *v = &f->vals[s->list[k]];
    v->kind = PL_FV_INPUT;
    v->node = -1;
    v->slot = f->ninputs++;
    v->name = "kept";
    v->version = 0;
    PlGStore *st = &f->stores[v->store];
    st->first = s->list[k];
    st->version = 0;
  }
  for (int32_t i = 0; i < f->nnodes; i++)
    if (is_forward(s, i) && !s->keep[i]) f->nodes[i].flags |= PL_FN_DEAD;
  PlGVal *outs = malloc((size_t)(nx + 1) * sizeof *outs);
  if (!outs) return no_memory();
  int32_t n = 0;
  for (int32_t i = 0; i < nx; i++) {
    j->dx_at[i] = dx[i] < 0 ? -1 : n;
    if (dx[i] >= 0) outs[n++] = dx[i];
  }
  PlStatus st = pl_graph_set_outputs(f, n, outs);
  free(outs);
  pl_graph_regions_drop(f);
  if (st == PL_OK) st = pl_graph_compact(f, NULL);
  if (st == PL_OK) st = pl_graph_verify(f);
  return st;
}

/* Kept values as f numbers them, to whose nodes those of the joint graph go back. recomputed: there are copies in between. */
static PlStatus keep_outputs(const Split *s, PlGraph *f, PlJoint *j, bool recomputed, int64_t *bytes) {
  PlGVal *outs = malloc((size_t)(j->nout + s->n + 1) * sizeof *outs);
  if (!outs) return no_memory();
  memcpy(outs, f->outputs, (size_t)j->nout * sizeof *outs);
  for (int32_t k = 0; k < s->n; k++) {
    const PlGValue *v = &s->f->vals[s->list[k]];
    PlGVal at = recomputed ? f->nodes[s->f->nodes[v->node].source].first + v->slot : s->list[k];
    bool result = false;
    for (int32_t o = 0; o < j->nout && !result; o++) result = f->vals[outs[o]].store == f->vals[at].store;
    if (!result) *bytes += f->stores[f->vals[at].store].bytes;
    outs[j->nout + k] = at;
  }
  j->nkept = s->n;
  PlStatus st = pl_graph_clone(&j->forward, f);
  if (st == PL_OK) st = pl_graph_set_outputs(j->forward, j->nout + s->n, outs);
  free(outs);
  return st;
}

PlStatus pl_joint_differentiate(PlGraph **out, PlGraph *f, const PlJoint *j, PlGVal *dys, PlGVal *dx) {
  PL_TRY(pl_graph_clone(out, f));
  PlGraph *g = *out;
  g->closed = g->record = false;
  int32_t n0 = g->nnodes;
  PlStatus st = PL_OK;
  for (int32_t i = 0; i < j->ny && st == PL_OK; i++) {
    PlArray a = pl_gvalue_array(&g->vals[g->outputs[i]]);
    st = pl_graph_input(g, "dy", (PlDtype)a.dtype, a.ndim, a.shape, false, &dys[i]);
    if (st == PL_OK) g->vals[dys[i]].device = a.device;
  }
  PlGradientOptions o = {.allow_unused = true};
  o.recompute.fraction = -1;
  o.recompute.bytes = -1;
  if (st == PL_OK) st = pl_graph_gradient(g, j->ny, g->outputs, dys, j->nx, j->xs, &o, dx);
  for (int32_t i = n0; i < g->nnodes && st == PL_OK; i++) { /* the line whose gradient it is */
    PlGNode *n = &g->nodes[i];
    if (!n->where && n->origin >= 0) n->where = g->nodes[n->origin].where;
  }
  return st;
}

/* Values that are made of zeros that a gradient is whatever arrives (round, sign). */
static void find_zeros(const PlGraph *g, bool *zeros) {
  memset(zeros, 0, (size_t)g->nvals);
  for (int32_t i = 0; i < g->nnodes; i++) {
    const PlGNode *n = &g->nodes[i];
    bool hit = n->origin >= 0 && (n->op->flags & PL_F_ZEROS);
    for (int32_t k = 0; k < n->nin && !hit; k++) hit = n->in[k] >= 0 && zeros[n->in[k]];
    for (int32_t o = 0; o < n->nout && hit; o++) zeros[n->first + o] = true;
  }
}

/* Which dys each dx is made of; of one that has such zeros in it, also of which it would be on a tape. A node that writes into memory
 * may pass a gradient on to whatever shares it: then all are. */
static PlStatus find_reach(PlJoint *j, PlGraph *g, const PlGVal *dys, const PlGVal *dx) {
  j->reach = malloc((size_t)j->nx * (size_t)j->ny + 1);
  bool *met = malloc((size_t)g->nvals + 1), *zeros = malloc((size_t)g->nvals + 1), any = false;
  uint8_t *reached = malloc((size_t)g->nvals + 1);
  PlStatus s = j->reach && met && zeros && reached ? PL_OK : no_memory();
  if (s == PL_OK) find_zeros(g, zeros);
  for (int32_t i = 0; i < j->nx && s == PL_OK; i++) any = any || (dx[i] >= 0 && zeros[dx[i]]);
  for (int32_t y = 0; y < j->ny && s == PL_OK; y++) {
    if (any) s = pl_grad_reached(g, g->outputs[y], reached);
    bool all = false;
    memset(met, 0, (size_t)g->nvals);
    met[dys[y]] = true;
    for (int32_t i = 0; i < g->nnodes; i++) {
      const PlGNode *n = &g->nodes[i];
      bool hit = false;
      for (int32_t k = 0; k < n->nin && !hit; k++) hit = n->in[k] >= 0 && met[n->in[k]];
      if (!hit) continue;
      all = all || (n->flags & PL_FN_MUTATES);
      for (int32_t o = 0; o < n->nout; o++) met[n->first + o] = true;
    }
    for (int32_t i = 0; i < j->nx; i++)
      j->reach[(int64_t)i * j->ny + y] = all || (dx[i] >= 0 && (met[dx[i]] || (zeros[dx[i]] && reached[j->xs[i]])));
  }
  free(met);
  free(zeros);
  free(reached);
  return s;
}

/* Which results others are computed from. One that was written where no history saw it has the history that it had before. */
static PlStatus find_inside(PlJoint *j, const PlGraph *f) {
  j->inside = calloc((size_t)j->ny + 1, sizeof *j->inside);
  bool *met = malloc((size_t)f->nvals + 1);
  for (int32_t y = 0; y < j->ny && j->inside && met; y++) {
    memset(met, 0, (size_t)f->nvals);
    PlGVal v = f->outputs[y];
    met[v] = true;
    while (f->vals[v].kind == PL_FV_NODE && f->nodes[f->vals[v].node].flags & PL_FN_THROUGH)
      met[v = f->nodes[f->vals[v].node].in[v - f->nodes[f->vals[v].node].first]] = true;
    for (int32_t i = 0; i < f->nnodes; i++) {
      const PlGNode *n = &f->nodes[i];
      bool hit = false;
      for (int32_t k = 0; k < n->nin && !hit; k++) hit = n->in[k] >= 0 && met[n->in[k]];
      for (int32_t o = 0; o < n->nout && hit; o++) met[n->first + o] = true;
    }
    for (int32_t i = 0; i < j->ny; i++) j->inside[y] |= i != y && met[f->outputs[i]];
  }
  const bool ok = j->inside && met;
  free(met);
  return ok ? PL_OK : no_memory();
}

/* Captured tensors that f reads, but does not only write, and that are not listed before `from`. */
static PlStatus find_read(PlJoint *j, const PlGraph *f, int32_t from) {
  bool *met = calloc((size_t)f->nvals + 1, sizeof *met);
  PlTensor **more = realloc(j->read, ((size_t)j->nread + (size_t)f->nvals + 1) * sizeof *more);
  if (more) j->read = more;
  if (!met || !more) {
    free(met);
    return no_memory();
  }
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin && !(f->nodes[i].flags & PL_FN_MUTATES); k++) {
      PlGVal v = f->nodes[i].in[k];
      if (v < 0 || met[v] || f->vals[v].kind != PL_FV_CAPTURE) continue;
      met[v] = true;
      bool before = false;
      for (int32_t r = 0; r < from && !before; r++) before = j->read[r] == f->vals[v].real;
      if (!before) j->read[j->nread++] = f->vals[v].real;
    }
  free(met);
  return PL_OK;
}

static void note_input(PlJoint *j, const PlGraph *f, PlGVal v) {
  if (v >= 0 && f->vals[v].kind == PL_FV_INPUT && f->vals[v].slot < j->nin) j->input_read[f->vals[v].slot] = true;
}

/* What backward reads by reference must not be written between the two; nor what forward reads, if it is to run again. */
static PlStatus find_all_read(PlJoint *j) {
  const PlGraph *b = j->backward;
  if (!(j->input_read = calloc((size_t)j->nin + 1, sizeof *j->input_read))) return no_memory();
  for (int32_t i = 0; i < b->nnodes; i++)
    for (int32_t k = 0; k < b->nodes[i].nin; k++) note_input(j, b, b->nodes[i].in[k]);
  for (int32_t o = 0; o < b->noutputs; o++) note_input(j, b, b->outputs[o]);
  PL_TRY(find_read(j, j->backward, 0));
  j->nread_back = j->nread;
  return find_read(j, j->forward, j->nread_back);
}

static PlStatus compile(PlExec **out, PlGraph *f) {
  PlPlan *plan;
  if (f->noutputs == 0) return PL_OK;
  PL_TRY(pl_graph_compile(&plan, f));
  PlStatus s = pl_exec_new(out, plan);
  pl_plan_release(plan);
  return s;
}

/* A write, such as an optimizer's step, after what a result was computed from: nobody asked for its gradient yet. */
static PlStatus written_before_gradient(PlStatus st) {
  char why[400];
  snprintf(why, sizeof why, "%s", pl_message());
  return pl_fail(st, "%s; it would be that of a result of the function: return those that need none detached, x:detach()", why);
}

PlStatus pl_joint_make(PlJoint **out, PlGraph *f, int32_t ny, int32_t nx, const PlGVal *xs, const char *name) {
  PlJoint *j = calloc(1, sizeof *j);
  PlGVal *dx = malloc((size_t)(nx + ny + 1) * sizeof *dx);
  Split s = {.f = NULL};
  PlPlan *decided = NULL;
  int64_t kept = 0;
  if (j) {
    *j = (PlJoint){.refs = 1, .name = name, .nin = f->ninputs, .ny = ny, .nout = f->noutputs, .nx = nx};
    j->dx_at = malloc((size_t)(nx + 1) * sizeof *j->dx_at);
    j->xs = malloc((size_t)(nx + 1) * sizeof *j->xs);
    if (j->xs) memcpy(j->xs, xs, (size_t)nx * sizeof *xs);
  }
  PlStatus st = j && dx && j->dx_at && j->xs ? pl_joint_differentiate(&j->backward, f, j, dx + nx, dx) : no_memory();
  if (st == PL_ERR_STATE) st = written_before_gradient(st);
  if (st == PL_OK) st = find_reach(j, j->backward, dx + nx, dx);
  if (st == PL_OK) st = find_inside(j, f);
  if (st == PL_OK) st = pl_joint_recompute(&decided, j->backward, f, nx, dx);
  if (st == PL_OK) {
    s.stage = j->backward->nregions;
    if (decided) {
      pl_graph_release(j->backward);
      j->backward = pl_graph_retain(decided->graph);
    }
    s.f = j->backward;
    s.keep = calloc((size_t)s.f->nnodes + 1, sizeof *s.keep);
    s.kept = calloc((size_t)s.f->nvals + 1, sizeof *s.kept);
    s.behind = calloc((size_t)s.f->nvals + 1, sizeof *s.behind);
    s.list = malloc((size_t)(s.f->nvals + 1) * sizeof *s.list);
    st = s.keep && s.kept && s.behind && s.list ? find_kept(&s, nx, dx) : no_memory();
  }
  if (st == PL_OK) st = keep_outputs(&s, f, j, decided != NULL, &kept);
  if (st == PL_OK) st = cut(&s, j, nx, dx);
  for (int32_t i = 0; i < nx && st == PL_OK; i++) j->noutside += pl_joint_outside(j, i);
  if (st == PL_OK) st = find_all_read(j);
  if (st == PL_OK) st = compile(&j->run_forward, j->forward);
  if (st == PL_OK) st = compile(&j->run_backward, j->backward);
  if (st == PL_OK)
    pl_joint_report(decided, kept, j->run_forward ? pl_exec_plan(j->run_forward) : NULL,
                    j->run_backward ? pl_exec_plan(j->run_backward) : NULL);
  pl_plan_release(decided);
  free(s.keep);
  free(s.kept);
  free(s.behind);
  free(s.list);
  free(dx);
  if (st == PL_OK) *out = j;
  else pl_joint_release(j);
  return st;
}

/* ---- running ----------------------------------------------------------------------------------------------- */

/* What one call keeps for its backward. */
typedef struct Kept {
  PlRule rule; /* first: the engine frees the piece through it */
  PlJoint *j;
  int32_t n;          /* inputs, then values kept, then captured tensors that were computed outside */
  uint32_t *versions; /* of the inputs, then of what is read by reference */
  PlJointDraws draws; /* the state of the generator */
  PlTensor *t[];
} Kept;

static void drop(void *ud) {
  Kept *k = ud;
  for (int32_t i = 0; i < k->n; i++) pl_tensor_release(k->t[i]);
  free(k->versions);
  pl_joint_release(k->j);
}

static PlStatus check_versions(const Kept *k, int32_t nread, bool again) {
  for (int32_t i = 0; i < k->j->nin; i++)
    if ((again || k->j->input_read[i]) && k->t[i]->storage->version != k->versions[i])
      PL_FAIL(PL_ERR_STATE,
              "backward of %s: its argument %d, %s, was modified in place afterwards (version %u, saved at %u); "
              "modify a copy, x:clone()",
              k->j->name, (int)i + 1, pl_desc_text(&k->t[i]->a), k->t[i]->storage->version, k->versions[i]);
  for (int32_t i = 0; i < nread; i++) {
    const PlTensor *t = k->j->read[i];
    if (t->storage->version != k->versions[k->j->nin + i])
      PL_FAIL(PL_ERR_STATE,
              "backward of %s: a tensor that it uses, %s, was modified in place after the call (version %u, saved "
              "at %u); run backward before the optimizer's step, or call it again",
              k->j->name, pl_desc_text(&t->a), t->storage->version, k->versions[k->j->nin + i]);
  }
  return PL_OK;
}

static PlStatus backward(void *ud, PlNode *n, PlTensor *const *dy, const bool *want, PlTensor **dx) {
  const Kept *k = ud;
  PlJoint *j = k->j;
  bool again = !pl_state.grad_off && pl_key_records(n->key); /* this backward is to be differentiated */
  PL_TRY(check_versions(k, again ? j->nread : j->nread_back, again));
  int32_t total = j->nin + j->ny + j->nkept;
  PlTensor **in = malloc((size_t)(total + j->backward->noutputs + 1) * sizeof *in), **out = in ? in + total : NULL;
  if (!in) return no_memory();
  PlStatus s = PL_OK;
  int32_t made = 0;
  memcpy(in, k->t, (size_t)j->nin * sizeof *in);
  for (; made < j->ny && s == PL_OK; made++) {
    PlTensor *zero = n->slots[made].shape ? n->slots[made].shape : NULL;
    if (dy[made]) in[j->nin + made] = pl_retain(dy[made]);
    else if (zero) in[j->nin + made] = pl_retain(zero);
    else s = pl_fail(PL_ERR_STATE, "backward of %s: no gradient for output %d", j->name, (int)made + 1);
  }
  if (s != PL_OK) made--;
  memcpy(in + j->nin + j->ny, k->t + j->nin, (size_t)j->nkept * sizeof *in);
  if (s == PL_OK && j->run_backward)
    s = again ? pl_joint_again(j, &k->draws, in, k->t + j->nin + j->nkept, out) : pl_exec_run(j->run_backward, in, out);
  for (int32_t o = 0; o < made; o++) pl_tensor_release(in[j->nin + o]);
  for (int32_t i = 0; s == PL_OK && i < j->nx; i++)
    if (j->dx_at[i] >= 0) {
      bool reached = false; /* by a gradient that arrived: eagerly there would be none, not zeros */
      for (int32_t y = 0; y < j->ny && !reached; y++) reached = dy[y] && j->reach[(int64_t)i * j->ny + y];
      if (want[i] && reached) dx[i] = out[j->dx_at[i]];
      else pl_tensor_release(out[j->dx_at[i]]);
    }
  free(in);
  return s;
}

typedef struct Making {
  PlJoint *j;
  PlTensor *const *in, *const *kept, *const *x;
  PlJointDraws draws;
} Making;

static PlRule *make_rule(void *ctx, PlNode *node) {
  const Making *m = ctx;
  (void)node;
  PlJoint *j = m->j;
  int32_t n = j->nin + j->nkept + j->noutside;
  Kept *k = malloc(sizeof *k + (size_t)n * sizeof *k->t);
  uint32_t *versions = malloc((size_t)(j->nin + j->nread + 1) * sizeof *versions);
  if (!k || !versions) {
    free(k);
    free(versions);
    return NULL;
  }
  *k = (Kept){.rule = {.bwd = backward, .drop = drop, .ud = k, .inside = j->inside, .again = true},
              .j = j,
              .n = n,
              .versions = versions,
              .draws = m->draws};
  j->refs++;
  PlStatus s = PL_OK;
  for (int32_t i = 0; i < n; i++) k->t[i] = NULL;
  int32_t at = 0;
  for (; at < j->nin + j->nkept && s == PL_OK; at++) s = pl_history_alias(&k->t[at], at < j->nin ? m->in[at] : m->kept[at - j->nin]);
  for (int32_t i = 0; i < j->nx && s == PL_OK; i++)
    if (pl_joint_outside(j, i)) s = pl_history_alias(&k->t[at++], m->x[i]);
  if (s != PL_OK) {
    drop(k);
    free(k);
    return NULL;
  }
  for (int32_t i = 0; i < j->nin; i++) versions[i] = m->in[i]->storage->version;
  for (int32_t i = 0; i < j->nread; i++) versions[j->nin + i] = j->read[i]->storage->version;
  return &k->rule;
}

PlStatus pl_joint_run(PlJoint *j, PlTensor *const *in, PlTensor *const *x, PlTensor **out) {
  int32_t n = j->nout + j->nkept;
  PlTensor **res = malloc((size_t)(n + 1) * sizeof *res);
  if (!res) return no_memory();
  PlJointDraws draws = pl_joint_draws(j);
  PlStatus s = pl_exec_run(j->run_forward, in, res);
  if (s == PL_OK && !pl_state.grad_off) {
    Making m = {.j = j, .in = in, .kept = res + j->nout, .x = x, .draws = draws};
    s = pl_record_rule(x, j->nx, res, j->ny, NULL, NULL, j->name, make_rule, &m);
    for (int32_t o = s == PL_OK ? j->nout : 0; o < n; o++) pl_tensor_release(res[o]);
  } else if (s == PL_OK)
    for (int32_t o = j->nout; o < n; o++) pl_tensor_release(res[o]);
  if (s == PL_OK) memcpy(out, res, (size_t)j->nout * sizeof *out);
  free(res);
  return s;
}
