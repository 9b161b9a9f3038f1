/* SPDX-License-Identifier: MIT
 * Symbolic tensors: what pl_apply does when an input is a value of a graph. Ops become nodes. Writes are in symbolic_write.c. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/autocast.h"
#include "engine/call/thread_state.h"
#include "engine/grad/node.h"
#include "engine/graph/ir/calls.h"
#include "engine/graph/trace/symbolic.h"
#include "engine/ops/names.h"
#include "engine/tensor/alloc.h"
#include "engine/tensor/layout.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a graph"); }

/* ---- handles ------------------------------------------------------------------------------------------- */

void pl_sym_storage_end(PlStorage *s) {
  PlSymStorage *y = (PlSymStorage *)(void *)s;
  PlGraph *f = y->graph;
  if (y->store < f->nstores && f->stores[y->store].live == y) {
    f->stores[y->store].live = NULL;
    f->stores[y->store].has_history = s->has_history;
  }
  pl_graph_release(f);
}

static PlStatus storage_new(PlSymStorage **out, PlGraph *f, int32_t store) {
  size_t size = (sizeof(PlSymStorage) + PL_POOL_STEP - 1) / PL_POOL_STEP * PL_POOL_STEP;
  PlSymStorage *s = pl_pool_get(size);
  if (!s) return no_memory();
  *s = (PlSymStorage){.s = {.refs = 1,
                            .piece = (uint32_t)size,
                            .nbytes = (size_t)f->stores[store].bytes,
                            .block = s,
                            .owns = PL_OWNS_SYMBOLIC,
                            .has_history = f->stores[store].has_history},
                      .graph = pl_graph_retain(f),
                      .store = store};
  f->stores[store].live = s;
  *out = s;
  return PL_OK;
}

PlStatus pl_sym_tensor(PlTensor **out, PlGraph *f, PlGVal v) {
  const PlGValue *val = &f->vals[v];
  PlSymStorage *s = f->stores[val->store].live;
  if (s && s->store == val->store) s->s.refs++;
  else PL_TRY(storage_new(&s, f, val->store));
  PlArray a = pl_gvalue_array(val);
  PlStatus st = pl_tensor_handle(out, &a, &s->s);
  if (st == PL_OK) pl_sym_point(*out, v);
  return st;
}

/* Is the value what the memory that t shares holds now? */
static bool is_current(const PlTensor *t) {
  const PlGraph *f = pl_sym_graph(t);
  const PlGValue *v = &f->vals[pl_sym_value(t)];
  return v->store == pl_sym_storage(t)->store && v->version == f->stores[v->store].version;
}

PlStatus pl_sym_window(const PlOp *op, const PlTensor *t, int64_t offset, PlAttrs *a) {
  pl_attrs_init(op, a);
  PL_TRY(pl_attrs_list(a, 0, t->a.ndim, t->a.shape));
  PL_TRY(pl_attrs_list(a, 1, t->a.ndim, t->a.strides));
  pl_attrs_int(a, 2, offset);
  return PL_OK;
}

int64_t pl_sym_offset(const PlTensor *t, const PlTensor *base) {
  const PlGraph *f = pl_sym_graph(t);
  return f->vals[pl_sym_value(t)].offset - f->vals[pl_sym_value(base)].offset;
}

/* t := value of fresh, which is no constant to the graph's gradient pass because t is used where nothing is recorded; but
 * it is one if t was detached. Takes fresh. */
static PlStatus point_to(PlGraph *f, PlTensor *t, PlTensor *fresh) {
  f->nodes[f->vals[pl_sym_value(fresh)].node].flags &= (uint8_t)~PL_FN_NO_GRAD; /* t is as it was, whoever asks first */
  if (t->flags & PL_T_DETACHED) {
    PlTensor *stopped;
    PlStatus s = pl_sym_apply(&pl_op_stop_grad, &fresh, 1, NULL, &stopped);
    pl_tensor_release(fresh);
    PL_TRY(s);
    fresh = stopped;
  }
  pl_sym_point(t, pl_sym_value(fresh));
  pl_tensor_release(fresh);
  return PL_OK;
}

PlStatus pl_sym_refresh(PlTensor *t) {
  if (is_current(t)) return PL_OK;
  PlGraph *f = pl_sym_graph(t);
  const PlGStore *st = &f->stores[pl_sym_storage(t)->store];
  if (st->root < 0)
    PL_FAIL(PL_ERR_TRACE,
            "%s is used after a window of it was written that the graph does not know as a part of the "
            "whole; use the whole tensor inside of the graph first and take views there",
            pl_desc_text(&t->a));
  const PlGValue *root = &f->vals[st->root], *old = &f->vals[pl_sym_value(t)];
  if (old->offset == root->offset && old->numel == root->numel && old->contiguous && root->contiguous && old->ndim == root->ndim &&
      memcmp(old->dims, root->dims, root->ndim * sizeof(int64_t)) == 0) {
    if (!(t->flags & PL_T_DETACHED)) {
      pl_sym_point(t, st->root);
      return PL_OK;
    }
  }
  PlTensor *base, *fresh;
  PlAttrs a;
  PL_TRY(pl_sym_window(&pl_op_as_strided, t, old->offset - root->offset, &a));
  PL_TRY(pl_sym_tensor(&base, f, st->root));
  PlStatus s = pl_sym_apply(&pl_op_as_strided, &base, 1, &a, &fresh);
  pl_tensor_release(base);
  PL_TRY(s);
  return point_to(f, t, fresh);
}

PlStatus pl_sym_value_of(PlGraph *f, PlTensor *t, PlGVal *out) {
  if (!t) {
    *out = -1;
    return PL_OK;
  }
  if (!t->a.symbolic) return t->a.weak || (t->flags & PL_T_CONST) ? pl_graph_const(f, t, out) : pl_graph_capture(f, t, out);
  if (pl_sym_graph(t) != f)
    PL_FAIL(PL_ERR_STATE, "%s belongs to another graph; make it an output there and feed what run returns", pl_desc_text(&t->a));
  PL_TRY(pl_sym_refresh(t));
  *out = pl_sym_value(t);
  return PL_OK;
}

/* ---- shapes as tensors: known while the graph is made ---------------------------------------------------- */

/* shape_of(x) → a real, constant tensor. */
static PlStatus shape_tensor(const PlTensor *x, PlTensor **out) {
  const int64_t n = x->a.ndim;
  PL_TRY(pl_tensor_from(out, PL_I64, 1, &n, x->a.shape));
  (*out)->flags |= PL_T_CONST;
  return PL_OK;
}

/* Ops that take a shape as a tensor, and their twins that take it as an attribute: the same, but readable. */
static PlStatus with_sizes(const PlOp *op, const PlCall *c, PlTensor **out, bool *done) {
  const PlOp *to = op->sized;
  *done = false;
  if (!to) return PL_OK;
  const int at = op->sizes & 1 ? 0 : 1;
  const PlDesc *d = &c->desc[0];
  PlTensor *x = c->in[0];
  *done = true;
  if (op->sizes && at == 1 && x->a.ndim == d->ndim && memcmp(x->a.shape, d->shape, d->ndim * sizeof(int64_t)) == 0) {
    *out = pl_retain(x); /* nothing to do */
    return PL_OK;
  }
  if (at == 1 && !c->in[1]) { /* sum_to with sizes already */
    *done = false;
    return PL_OK;
  }
  PlAttrs a;
  pl_attrs_init(to, &a);
  PL_TRY(pl_attrs_list(&a, 0, d->ndim, d->shape));
  if (at == 0) {
    pl_attrs_int(&a, 1, d->dtype);
    return pl_sym_apply(to, NULL, 0, &a, out); /* on the default device, as zeros_of itself: the shape is always the CPU's */
  }
  return pl_sym_apply(to, &x, 1, &a, out);
}

static PlStatus check_values_known(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs) {
  for (int i = 0; i < nin && i < 8; i++)
    if (((op->reads_values >> i) & 1) && in[i] && !in[i]->a.weak && !(in[i]->flags & PL_T_CONST) &&
        !(op->by_shape && op->by_shape(&in[i]->a, attrs)))
      PL_FAIL(PL_ERR_TRACE,
              "%s: its result's shape depends on the values of %s, which a graph does not know; call "
              "it outside, or use a masked form of fixed shape (where, masked_fill)",
              op->name, op->nin != PL_VARIADIC && op->args[i] ? op->args[i] : "an input");
  return PL_OK;
}

/* ---- nodes --------------------------------------------------------------------------------------------- */

static double flops_of(const PlCall *c) {
  return pl_flops(
      &(PlInfer){.op = c->op, .attrs = c->attrs, .nin = c->nin, .in = c->arr, .compute = c->compute, .out = (PlDesc *)(uintptr_t)c->desc});
}

PlStatus pl_sym_node(PlGraph *f, PlCall *c, uint8_t flags, int32_t *node) {
  PlGVal few[PL_MAX_IN] = {0}, *vals = few;
  if (c->nin > PL_MAX_IN && !(vals = malloc((size_t)c->nin * sizeof *vals))) return no_memory();
  PlStatus s = PL_OK;
  for (int i = 0; i < c->nin && s == PL_OK; i++) s = pl_sym_value_of(f, c->in[i], &vals[i]);
  if (s == PL_OK) s = pl_graph_node(f, c->op, c->nin, vals, c->op->nattr ? c->attrs : NULL, c->desc, flags, node);
  if (vals != few) free(vals);
  if (s == PL_OK) f->nodes[*node].flops = flops_of(c);
  /* also a gradient that is taken without create_graph: what is computed with it is no function of what it is of */
  const bool off = f->stage == 0 ? pl_state.grad_off : pl_state.ambient && !pl_key_records(pl_state.ambient);
  if (s == PL_OK && f->record && off) f->nodes[*node].flags |= PL_FN_NO_GRAD;
  return s;
}

/* Views belong to the family of what they were taken from: what is written through one of them becomes part of all
 * histories (grad/inplace.c). */
static void note_base(PlTensor *whole, PlTensor *view) {
  if (view->storage == whole->storage && view != whole && !view->base) pl_tensor_join(view, whole);
}

/* Are all leaves until now the CPU's? */
static bool at_home(const PlGraph *f) {
  for (PlGVal v = 0; v < f->nvals; v++)
    if (f->vals[v].kind != PL_FV_NODE && f->vals[v].device != PL_CPU) return false;
  return true;
}

/* ---- how values would lie without the graph ------------------------------------------------------------- */

static uint8_t layout_notes(const PlGraph *f, int32_t store) {
  return f->stores[store].layout_notes | (f->vals[f->stores[store].first].kind == PL_FV_INPUT ? PL_LAYOUT_OF_ARGUMENT : 0);
}

/* `to` was taken from `from`: a view or a copy, as that lies in memory. */
static void note_taken(const PlTensor *from, const PlTensor *to) {
  PlGraph *f = pl_sym_graph(from);
  const int32_t a = pl_sym_storage(from)->store, b = pl_sym_storage(to)->store;
  const uint8_t how = layout_notes(f, a);
  /* A view of an argument itself needs nothing: only row-major arguments are written (l_program_apart). */
  if (!(how & PL_LAYOUT_NAMED) && (a == b ? !(f->stores[a].layout_notes & PL_LAYOUT_OF_ARGUMENT) : !(how & PL_LAYOUT_OF_ARGUMENT))) return;
  const uint8_t taken = how & PL_LAYOUT_NAMED ? PL_LAYOUT_UNKNOWN : PL_LAYOUT_TAKEN;
  f->stores[a].layout_notes |= taken;
  f->stores[b].layout_notes |= (uint8_t)(how | taken);
}

PlStatus pl_sym_layout_known(const PlTensor *t, const char *what) {
  if (!t->a.symbolic || !(pl_sym_graph(t)->stores[pl_sym_storage(t)->store].layout_notes & PL_LAYOUT_NAMED)) return PL_OK;
  PL_FAIL(PL_ERR_TRACE, "%s: %s would be channels last without a graph, in which all is row-major; ask outside", what, pl_desc_text(&t->a));
}

PlStatus pl_sym_writes(PlGraph *f, const PlTensor *t) {
  const PlGStore *st = &f->stores[pl_sym_storage(t)->store];
  if (PL_LIKELY(!(st->layout_notes & (PL_LAYOUT_TAKEN | PL_LAYOUT_UNKNOWN)))) return PL_OK;
  if (st->layout_notes & PL_LAYOUT_UNKNOWN)
    PL_FAIL(PL_ERR_TRACE,
            "%s is written, which was taken by contiguous, reshape or the like from what is channels last, or the other way round: "
            "whether both share memory, a graph does not know, in which all is row-major; write into a clone",
            pl_desc_text(&t->a));
  f->reads_layout = true;
  return PL_OK;
}

static void note_layout(PlGraph *f, const PlCall *c, PlTensor *const *out) {
  const PlOp *op = c->op;
  for (int o = 0; o < op->nout; o++) {
    if (!out[o] || c->desc[o].is_view) continue;
    PlGStore *to = &f->stores[pl_sym_storage(out[o])->store];
    if (c->desc[o].layout == PL_CHANNELS_LAST) to->layout_notes |= PL_LAYOUT_NAMED;
    const bool away = c->device != PL_CPU, follows = op->cls == PL_POINTWISE || (away && c->desc[0].layout == PL_MAY_FOLLOW);
    const uint8_t told = away ? PL_LAYOUT_OF_ARGUMENT | PL_LAYOUT_NAMED : PL_LAYOUT_NAMED; /* how arguments of the CPU lie, a trace knows */
    for (int i = 0; i < (follows ? c->nin : (op->flags & PL_F_KEEPS) ? 1 : 0); i++)
      if (c->in[i] && c->in[i]->a.symbolic && (c->in[i]->a.ndim == 4 || c->in[i]->a.ndim == 5))
        to->layout_notes |= layout_notes(f, pl_sym_storage(c->in[i])->store) & told;
  }
  if (op->cls == PL_VIEW && op->kernel[PL_CPU] && c->in[0]->a.symbolic) note_taken(c->in[0], out[0]);
}

static PlStatus emit(PlGraph *f, PlCall *c, PlTensor **out) {
  int32_t node;
  PL_TRY(pl_sym_node(f, c, 0, &node));
  if (c->nin == 0 && c->device == PL_CPU && !at_home(f)) f->nodes[node].flags |= PL_FN_PLACED;
  for (int o = 0; o < c->op->nout; o++) out[o] = NULL;
  for (int o = 0; o < c->op->nout; o++) {
    PlGVal v = f->nodes[node].first + o;
    if (f->vals[v].dtype == PL_NDTYPE) continue;
    PlStatus s = pl_sym_tensor(&out[o], f, v);
    if (s != PL_OK) {
      pl_release_all(out, o);
      return s;
    }
  }
  note_layout(f, c, out);
  if (f->record && c->desc[0].is_view && c->in[0]->a.symbolic) note_base(c->in[0], out[0]);
  return PL_OK;
}

/* ---- the doors ------------------------------------------------------------------------------------------ */

/* Has t a history that is not just being a leaf? */
static bool is_computed(const PlTensor *t) {
  PlNode *n;
  uint32_t slot;
  return t->node && pl_entry_get(t, pl_state.ambient, &n, &slot) && n->kind != PL_NODE_LEAF;
}

/* The captured value that v, the newest of its store, came from by writes and views; -1: there is none. */
static PlGVal origin(const PlGraph *f, PlGVal v) {
  while (v >= 0 && f->vals[v].kind == PL_FV_NODE) {
    const PlGNode *n = &f->nodes[f->vals[v].node];
    v = n->in[n->flags & PL_FN_MUTATES ? v - n->first : 0];
  }
  return v >= 0 && f->vals[v].kind == PL_FV_CAPTURE ? v : -1;
}

static const PlTensor *family(const PlTensor *t) { return t->base ? t->base : t; }

/* h, a handle on captured value v of t, was written through another tensor that shares its memory. What t is now has t's history: none
 * if t has none; and if the other one has none, what was written there is a write to t that no history knows of. */
static PlStatus written_elsewhere(PlGraph *f, PlTensor *t, PlGVal v, PlTensor *h) {
  const bool known = t->node || t->more;
  if (!known) h->storage->has_history = true; /* perhaps of another tensor that shares the memory */
  const PlGVal root = f->stores[f->vals[v].store].root, from = origin(f, root);
  if (is_current(h) || from < 0 || from == v) return PL_OK;
  const PlTensor *other = f->vals[from].real;
  if (!known) {
    h->flags |= PL_T_DETACHED;
    return PL_OK;
  }
  if (family(other) == family(t)) return PL_OK;
  const PlGValue *a = &f->vals[from], *b = &f->vals[v];
  if (!other->node && !other->more && a->version == b->version && a->offset == b->offset && a->ndim == b->ndim &&
      memcmp(a->dims, b->dims, 2 * a->ndim * sizeof *a->dims) == 0) {
    for (int32_t i = 0; i < f->nnodes; i++)
      for (int32_t k = 0; k < f->nodes[i].nout && f->nodes[i].flags & PL_FN_THROUGH; k++)
        if (f->nodes[i].in[k] == from) f->nodes[i].in[k] = v;
    if (origin(f, root) == v) return PL_OK;
  }
  PL_FAIL(PL_ERR_TRACE,
          "%s shares its memory with a tensor of another history, through which the traced function has written; write through this "
          "one, inside T.no_grad()",
          pl_desc_text(&t->a));
}

/* h, on the captured value v, stands for t as that is now. */
static PlStatus handle_of(PlGraph *f, PlTensor *t, PlGVal v, PlTensor *h) {
  if (f->record) PL_TRY(written_elsewhere(f, t, v, h));
  PL_TRY(pl_sym_refresh(h));
  if (!f->record || !(t->node || t->more)) return PL_OK;
  if (t->node && t->node->kind == PL_NODE_LEAF) PL_TRY(pl_graph_leaf(f, t, false));
  return pl_entries_copy(h, t, NULL);
}

PlStatus pl_sym_enter(PlGraph *f, PlTensor *t, PlTensor **out) {
  if (t->a.symbolic || t->a.weak || (t->flags & PL_T_CONST)) {
    *out = pl_retain(t);
    return PL_OK;
  }
  PlGVal v;
  PlTensor *h;
  PL_TRY(pl_history_current(&t, 1));
  if (!f->record && pl_state.ambient && !pl_state.grad_off && is_computed(t))
    PL_FAIL(PL_ERR_TRACE,
            "%s was computed from tensors that require a gradient before it came into the graph; compute it "
            "inside g:trace(f), or detach it",
            pl_desc_text(&t->a));
  PL_TRY(pl_graph_switched(f, t, &t));
  PlStatus s = pl_graph_capture(f, t, &v);
  if (s == PL_OK) s = pl_sym_tensor(&h, f, v);
  if (s == PL_OK) {
    s = handle_of(f, t, v, h);
    if (s == PL_OK) *out = h;
    else pl_tensor_release(h);
  }
  pl_tensor_release(t);
  return s;
}

PlGraph *pl_sym_graph_of(PlTensor *const *in, int nin) {
  for (int i = 0; i < nin; i++)
    if (in[i] && in[i]->a.symbolic) return pl_sym_graph(in[i]);
  return pl_state.trace;
}

/* ---- one call ----------------------------------------------------------------------------------------------- */

static PlStatus apply(PlGraph *f, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  if (op->flags & PL_F_SIZES) return shape_tensor(in[0], out);
  if (op->autocast && pl_state.autocast) return pl_autocast_apply(op, in, nin, attrs, out);
  if (op->expand && pl_op_expands(op, in, nin)) return op->expand(in, nin, attrs, out);
  PlCall c;
  PL_TRY(check_values_known(op, in, nin, attrs));
  PL_TRY(pl_call_begin(&c, op, in, nin, attrs));
  bool done = false;
  PlStatus s = pl_call_infer(&c);
  if (s == PL_OK) s = with_sizes(op, &c, out, &done);
  if (s == PL_OK && !done && PL_UNLIKELY(c.desc[0].layout == PL_STRIDED)) {
    s = pl_sym_apply_strided(&c, out);
    done = true;
  }
  if (s == PL_OK && !done) s = (op->flags & PL_F_MUTATES) ? pl_sym_mutate(f, &c, out) : emit(f, &c, out);
  if (s == PL_OK && !done && f->record && !(op->flags & PL_F_MUTATES) && !pl_state.grad_off && pl_may_record(c.in, c.nin)) {
    uint64_t first = pl_state.seq + 1;
    s = pl_record(op, c.in, c.nin, c.attrs, out);
    if (s == PL_OK) s = pl_graph_note_line(f, first);
    if (s != PL_OK) pl_release_all(out, op->nout);
  }
  pl_call_end(&c);
  return s;
}

PlStatus pl_sym_apply(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  PlGraph *f = pl_sym_graph_of(in, nin);
  PL_TRY(pl_call_check_count(op, in, nin));
  if (!f) PL_FAIL(PL_ERR_STATE, "%s: no graph is being made", op->name);
  if (f->closed) PL_FAIL(PL_ERR_STATE, "%s: this symbolic tensor's trace is over; return it from the traced function", op->name);
  PlTensor *few[PL_MAX_IN], **sym = few;
  if (nin > PL_MAX_IN && !(sym = malloc((size_t)nin * sizeof *sym))) return no_memory();
  PlStatus s = PL_OK;
  const PlCalling calling = pl_calls_enter(f);
  int n = 0;
  for (; n < nin && s == PL_OK; n++) {
    sym[n] = NULL;
    if (in[n]) s = pl_sym_enter(f, in[n], &sym[n]);
  }
  PlGraph *was = pl_set_trace(f);
  pl_graph_retain(f);
  if (s == PL_OK) s = apply(f, op, sym, nin, attrs, out);
  s = pl_calls_leave(&calling, s,
                     &(PlCallIs){.kind = PL_CALL_OP, .op = op, .attrs = attrs, .in = {in}, .n = {nin}, .out = out, .nout = op->nout});
  pl_set_trace(was);
  pl_graph_release(f);
  pl_release_all(sym, n);
  if (sym != few) free(sym);
  return s;
}

PlStatus pl_sym_emit(PlGraph *f, int stage, int origin, const char *name, const PlOp *op, PlTensor **in, int nin, const PlAttrs *a,
                     PlTensor **out) {
  PlGraph *was = pl_set_trace(f);
  f->stage = (uint8_t)stage;
  f->origin = origin;
  f->emit_name = name;
  f->emit_count = 0;
  PlStatus s = pl_apply(op, in, nin, op->nattr ? a : NULL, out);
  f->emit_name = NULL;
  f->stage = 0;
  f->origin = -1;
  pl_set_trace(was);
  return s;
}
