/* SPDX-License-Identifier: MIT
 * Makes a trace again for inputs of other sizes, from what was noted of it (calls.h): the same calls of the engine, whose shape
 * rules, expansions and gradients see the new sizes. What comes out has to be the graph that was there, node by node, but for
 * sizes: what is kept of a trace speaks of nodes and values by their numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/grad/node.h"
#include "engine/graph/ir/calls.h"
#include "engine/graph/trace/symbolic.h"
#include "engine/tensor/hooks.h"
#include "engine/tensor/layout.h"

typedef struct Replay {
  const PlGraph *f;
  PlGraph *g;
  PlTensor **t; /* per tensor of the calls; each held twice, as by the script and by the notes */
  char *why;    /* PL_WHY bytes */
  const PlAgain *again;
  bool strict;
  int32_t nagain; /* how many were called */
} Replay;

#define OTHER(...) (snprintf(r->why, PL_WHY, __VA_ARGS__), PL_ERR_UNSUPPORTED)

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a trace"); }

/* As the script's object and the notes hold it: without an object nobody could ask a leaf for its .grad. */
static void hold(Replay *r, int32_t k, PlTensor *t) {
  r->t[k] = pl_retain(t);
  pl_retain(t);
  t->boxes++;
}

static void let_go(PlTensor *t) {
  if (!t) return;
  t->boxes--;
  pl_tensor_release(t);
  pl_tensor_release(t);
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

static PlStatus make_inputs(Replay *r, PlTensor *const *in) {
  const PlCalls *c = r->f->calls;
  for (int32_t i = 0; i < c->nargs; i++) {
    const PlGValue *old = NULL;
    for (PlGVal v = i; v < r->f->nvals && !old; v++)
      if (r->f->vals[v].kind == PL_FV_INPUT && r->f->vals[v].slot == i) old = &r->f->vals[v];
    PlGVal v;
    PlTensor *t;
    if (!old || in[i]->a.dtype != old->dtype || in[i]->a.ndim != old->ndim) return OTHER("argument tensor %d is of another kind", i + 1);
    PL_TRY(pl_graph_input_like(r->g, old->name, (PlDtype)old->dtype, old->ndim, in[i]->a.shape, &in[i]->a, old->leaf, &v));
    r->g->vals[v].device = old->device;
    PL_TRY(pl_sym_tensor(&t, r->g, v));
    hold(r, i, t);
    pl_tensor_release(t);
  }
  for (int32_t i = 0; i < c->nargs; i++) {
    if (c->wants[i]) PL_TRY(pl_requires_grad(r->t[i], true));
    if (c->grad_at[i] >= 0) PL_TRY(pl_set_grad(r->t[i], r->t[c->grad_at[i]]));
  }
  return PL_OK;
}

/* Leaves that came between the calls. */
static PlStatus catch_up(Replay *r, int32_t values) {
  while (r->g->nvals < values) {
    const PlGValue *old = &r->f->vals[r->g->nvals];
    const int32_t was = r->g->nvals;
    PlGVal v;
    if (old->kind == PL_FV_CAPTURE) PL_TRY(pl_graph_capture(r->g, old->real, &v));
    else if (old->kind == PL_FV_CONST) PL_TRY(pl_graph_const(r->g, old->real, &v));
    if (r->g->nvals == was) return OTHER("%s came another way than by an operation", old->name ? old->name : "a value");
  }
  return PL_OK;
}

static PlStatus call_again(Replay *r, const PlNotedCall *k, PlTensor **in, PlTensor **out) {
  if (!r->again) return OTHER("a function cannot be called again");
  return r->again->call(r->again->ud, r->nagain++, k->nin, in, k->nout, out);
}

static PlStatus make_call(Replay *r, const PlNotedCall *k, PlTensor **in, PlTensor **out) {
  switch ((PlCallKind)k->kind) {
  case PL_CALL_OP: return pl_sym_apply(k->op, in, k->nin, k->attrs, out);
  case PL_CALL_INTO: return pl_sym_apply_into(k->op, in, k->nin - 1, k->attrs, in + k->nin - 1);
  case PL_CALL_BACKWARD: return pl_backward_into(in, in + k->ny, k->ny, in + 2 * (size_t)k->ny, k->nx, k->retain, k->create);
  case PL_CALL_GRAD_OF: return pl_grad_of(in, in + k->ny, k->ny, in + 2 * (size_t)k->ny, k->nx, k->retain, k->create, k->unused, out);
  case PL_CALL_LOOK_GRAD: {
    PL_TRY(pl_graph_leaf_look(r->g, in[0]));
    PlTensor *g = pl_grad(in[0]);
    out[0] = g ? pl_retain(g) : NULL;
    return PL_OK;
  }
  case PL_CALL_SET_GRAD: return pl_set_grad(in[0], in[1]);
  case PL_CALL_REQUIRES_GRAD: return pl_requires_grad(in[0], k->retain);
  case PL_CALL_DETACH: return pl_tensor_detach(out, in[0]);
  case PL_CALL_AGAIN: return call_again(r, k, in, out);
  }
  return PL_OK;
}

/* By PlCallKind, for messages. */
static const char *const kinds[] = {"an operation",  "a write",        "backward", "grad_of",   "a look at .grad",
                                    "setting .grad", "requires_grad_", "detach",   "a function"};

static PlStatus run_call(Replay *r, const PlNotedCall *k, PlTensor **room) {
  const PlCalls *c = r->f->calls;
  PlTensor **in = room, **out = room + k->nin;
  PL_TRY(catch_up(r, k->values));
  for (int32_t i = 0; i < k->nin; i++) {
    in[i] = k->in[i] < 0 ? NULL : c->real[k->in[i]] ? c->t[k->in[i]] : r->t[k->in[i]];
    if (k->in[i] >= 0 && !in[i]) return OTHER("a result that there was is missing");
  }
  for (int32_t i = 0; i < k->nout; i++) out[i] = NULL;
  pl_scope_set(&k->scope);
  if (k->scope.autocast_depth == 0) pl_autocast_end();
  r->g->mark = k->mark;
  PL_TRY(make_call(r, k, in, out));
  bool same = true;
  for (int32_t i = 0; i < k->nout; i++) {
    const int32_t o = k->out[i];
    if ((o < 0) != (out[i] == NULL)) same = false;
    else if (o >= 0) {
      PlTensor *known = c->real[o] ? c->t[o] : r->t[o];
      if (!known) hold(r, o, out[i]);
      else same = same && known == out[i];
    }
  }
  pl_release_all(out, k->nout);
  return same ? PL_OK
              : OTHER("the results of %s are others (call %d of %d)", k->op ? k->op->name : kinds[k->kind], (int)(k - c->list) + 1,
                      (int)c->n);
}

static PlStatus run_calls(Replay *r, PlTensor *const *in) {
  const PlCalls *c = r->f->calls;
  int32_t most = 1;
  for (int32_t i = 0; i < c->n; i++)
    if (c->list[i].nin + c->list[i].nout > most) most = c->list[i].nin + c->list[i].nout;
  PlTensor **room = malloc((size_t)most * sizeof(PlTensor *));
  if (!room) return no_memory();
  PlStatus s = make_inputs(r, in);
  for (int32_t i = 0; i < c->n && s == PL_OK; i++) s = run_call(r, &c->list[i], room);
  free(room);
  if (s == PL_OK) s = catch_up(r, r->f->nvals);
  return s;
}

/* ---- the same graph? --------------------------------------------------------------------------------------------- */

static bool same_list(const int32_t *a, const int32_t *b, int32_t n) { return n == 0 || memcmp(a, b, (size_t)n * sizeof *a) == 0; }

/* A tensor that the engine made itself, such as the 1 that a backward begins with: no call got it from outside. */
static bool made_inside(const PlGraph *f, const PlTensor *t) {
  const PlCalls *c = f->calls;
  bool outside = t->node || t->more;
  for (int32_t i = 0; i < c->nt && !outside; i++) outside = c->real[i] && c->t[i]->storage == t->storage;
  return !outside;
}

static bool same_real(const PlTensor *a, const PlTensor *b) {
  return a == b ||
         (a && b && a->storage == b->storage && a->a.data == b->a.data && a->a.dtype == b->a.dtype && pl_shape_equal(&a->a, &b->a));
}

static PlStatus compare_nodes(Replay *r) {
  const PlGraph *f = r->f;
  PlGraph *g = r->g;
  if (f->nnodes != g->nnodes || f->nvals != g->nvals || f->nstores != g->nstores || f->ninputs != g->ninputs || f->ndraws != g->ndraws)
    return OTHER("it is made of %d operations, not of %d", (int)g->nnodes, (int)f->nnodes);
  const char *from = NULL, *to = NULL;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *a = &f->nodes[i];
    PlGNode *b = &g->nodes[i];
    if (a->op != b->op || a->nin != b->nin || a->nout != b->nout || a->first != b->first || a->flags != b->flags || a->stage != b->stage ||
        a->draw != b->draw || a->nafter != b->nafter || (a->attrs == NULL) != (b->attrs == NULL) || !same_list(a->in, b->in, a->nin) ||
        !same_list(a->after, b->after, a->nafter))
      return OTHER("%s at %s becomes %s", a->name, a->where ? a->where : "?", a->op != b->op ? b->op->name : "another one");
    if (a->where && a->where != from) {
      from = a->where;
      if (!(to = pl_graph_string(g, from))) return no_memory();
    }
    b->where = a->where ? to : NULL;
    b->origin = a->origin;
    b->mark = a->mark;
    b->whole = a->whole;
  }
  return PL_OK;
}

static PlStatus compare_values(Replay *r) {
  const PlGraph *f = r->f, *g = r->g;
  for (PlGVal v = 0; v < f->nvals; v++) {
    const PlGValue *a = &f->vals[v], *b = &g->vals[v];
    if (a->kind != b->kind || a->dtype != b->dtype || a->ndim != b->ndim || a->weak != b->weak || a->device != b->device ||
        a->node != b->node || a->slot != b->slot || a->store != b->store || a->version != b->version || a->leaf != b->leaf)
      return OTHER("a value is of another kind");
    if (a->kind == PL_FV_CAPTURE && !same_real(a->real, b->real) && (r->strict || !made_inside(f, a->real) || !made_inside(f, b->real)))
      return OTHER("it reads another tensor");
  }
  for (int32_t s = 0; s < f->nstores; s++)
    if (f->stores[s].first != g->stores[s].first || f->stores[s].version != g->stores[s].version || f->stores[s].root != g->stores[s].root)
      return OTHER("it writes something else");
  return PL_OK;
}

static PlStatus compare_leaves(Replay *r) {
  const PlGraph *f = r->f, *g = r->g;
  bool same = f->nleaves == g->nleaves && f->nregions == g->nregions && !g->opaque;
  for (int32_t i = 0; i < f->nleaves && same; i++) {
    const PlGLeaf *a = &f->leaves[i], *b = &g->leaves[i];
    same = a->t == b->t && a->zeroed == b->zeroed && a->looked == b->looked && a->cleared == b->cleared && a->expects == b->expects &&
           a->slot == b->slot;
    r->g->leaves[i].asks = a->asks;
  }
  for (int32_t i = 0; i < f->nregions && same; i++) {
    const PlGRegion *a = &f->regions[i], *b = &g->regions[i];
    same = a->begin == b->begin && a->end == b->end && a->ny == b->ny && same_list(a->ys, b->ys, a->ny);
  }
  return same ? PL_OK : OTHER("its gradients are others");
}

static bool same_ones(const PlGValue *a, const PlGValue *b) {
  bool same = true;
  for (int d = 0; d < a->ndim; d++) same = same && (a->dims[d] == 1) == (b->dims[d] == 1);
  return same;
}

/* Would the function have seen the same sizes? */
static PlStatus compare_seen(Replay *r) {
  const PlCalls *c = r->f->calls;
  for (int32_t i = 0; i < c->nsaw; i++) {
    const PlSaw *s = &c->saw[i];
    if (s->v >= r->g->nvals) return OTHER("it looks at the size of a tensor that there is none of");
    const PlGValue *a = &r->f->vals[s->v], *b = &r->g->vals[s->v];
    const PlArray was = pl_gvalue_array(a), is = pl_gvalue_array(b);
    bool same = a->ndim == b->ndim;
    if (same && s->dim == PL_SAW_NUMEL) same = a->numel == b->numel;
    else if (same && s->dim == PL_SAW_ONES) same = same_ones(a, b);
    else if (same && s->dim == PL_SAW_LAYOUT)
      same = was.contiguous == is.contiguous && pl_channels_last(&was) == pl_channels_last(&is) &&
             pl_is_channels_last(&was) == pl_is_channels_last(&is);
    else if (same && s->dim >= 0) same = s->dim < a->ndim && a->dims[s->dim] == b->dims[s->dim];
    else if (same)
      same = a->ndim == 0 || memcmp(a->dims, b->dims, (s->dim == PL_SAW_STRIDES ? 2 : 1) * (size_t)a->ndim * sizeof *a->dims) == 0;
    if (same) continue;
    char text[120];
    snprintf(text, sizeof text, "%s", pl_desc_text(&was));
    return OTHER("it asked for the size of %s, which is %s now", text, pl_desc_text(&is));
  }
  return PL_OK;
}

static PlStatus compare(Replay *r) {
  PL_TRY(compare_seen(r));
  PL_TRY(compare_nodes(r));
  PL_TRY(compare_values(r));
  return compare_leaves(r);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static PlStatus make_graph(PlGraph **out, const PlGraph *f) {
  PL_TRY(pl_graph_new(out));
  PlGraph *g = *out;
  g->unsafe_math = f->unsafe_math;
  g->reads_layout = f->reads_layout;
  g->record = true;
  g->began = pl_state.seq;
  g->recompute = f->recompute;
  g->recompute.choice = NULL;
  g->recompute.nchoice = 0;
  return PL_OK;
}

static PlStatus replay(Replay *r, PlTensor *const *in, PlGVal *grads) {
  const PlModes was = pl_modes_now();
  pl_set_trace(r->g);
  struct PlCasts *casts = pl_state.casts; /* of real leaves: not ours */
  pl_state.casts = NULL;
  PlStatus s = run_calls(r, in);
  PlGVal *got = malloc((size_t)(r->g->nleaves + 1) * sizeof *got);
  PlStatus end = pl_graph_leaf_grads(r->g, got);
  if (s == PL_OK) s = got ? end : no_memory();
  if (s == PL_OK && r->g->nleaves == r->f->nleaves) memcpy(grads, got, (size_t)r->g->nleaves * sizeof *got);
  free(got);
  pl_autocast_end();
  pl_state.casts = casts;
  pl_modes_set(&was);
  r->g->mark = 0;
  if (s == PL_OK) s = compare(r);
  if (s == PL_OK) s = pl_graph_guards_copy(r->g, r->f);
  r->g->closed = true;
  return s;
}

PlStatus pl_graph_replay(PlGraph **out, const PlGraph *f, PlTensor *const *in, const PlAgain *again, bool strict, PlGVal *grads,
                         char *why) {
  const PlCalls *c = f->calls;
  *out = NULL;
  why[0] = 0;
  const char *no = !c || !f->closed ? "it was not noted" : c->refused;
  if (!no && (pl_state.trace || pl_state.in_backward || pl_state.keys || pl_state.batch || pl_default_float() != c->floating))
    no = "another trace or backward runs";
  if (no) {
    snprintf(why, PL_WHY, "%s", no);
    return PL_OK;
  }
  Replay r = {.f = f, .why = why, .again = again, .strict = strict};
  PlStatus s = make_graph(&r.g, f);
  if (s == PL_OK) {
    r.t = calloc((size_t)c->nt + 1, sizeof(PlTensor *));
    s = r.t ? PL_OK : no_memory();
  }
  if (s == PL_OK) s = replay(&r, in, grads);
  for (int32_t i = 0; r.t && i < c->nt; i++) let_go(r.t[i]);
  free(r.t);
  if (s == PL_OK) {
    *out = r.g;
    return PL_OK;
  }
  pl_graph_release(r.g);
  if (pl_must_report(s)) return s;
  if (!why[0]) snprintf(why, PL_WHY, "%s", pl_message());
  return PL_OK;
}
