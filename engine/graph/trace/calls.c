/* SPDX-License-Identifier: MIT
 * Notes what a traced function asks of the engine (calls.h). Whatever is not understood refuses the whole list: then
 * the trace stands for its own sizes only. */
#include "engine/graph/ir/calls.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/grad/node.h"
#include "engine/graph/trace/symbolic.h"
#include "engine/vmap/vmap.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a trace"); }

static PlStatus room(void *array, int32_t n, int32_t *cap, size_t size) {
  if (n < *cap) return PL_OK;
  int32_t want = 2 * n + 32;
  void **a = array, *p = realloc(*a, (size_t)want * size);
  if (!p) return no_memory();
  *a = p;
  *cap = want;
  return PL_OK;
}

void pl_calls_refuse(PlGraph *f, const char *why, ...) {
  PlCalls *c = f ? f->calls : NULL;
  if (!c || c->refused || c->inside) return;
  char text[200];
  va_list ap;
  va_start(ap, why);
  vsnprintf(text, sizeof text, why, ap);
  va_end(ap);
  c->refused = pl_graph_string(f, text);
  if (!c->refused) c->refused = "out of memory";
}

void pl_calls_spoil(PlGraph *f, const char *why) {
  PlCalls *c = f ? f->calls : NULL;
  if (!c || c->refused || !c->inside) return;
  c->inside = false;
  pl_calls_refuse(f, "%s", why);
  c->inside = true;
}

/* ---- tensors ------------------------------------------------------------------------------------------------- */

static uint32_t slot_of(const PlCalls *c, const PlTensor *t) {
  const uint32_t mask = (uint32_t)c->nslots - 1;
  uint32_t s = (uint32_t)(((uint64_t)(uintptr_t)t * UINT64_C(0x9E3779B97F4A7C15)) >> 33) & mask;
  while (c->slots[s] >= 0 && c->t[c->slots[s]] != t) s = (s + 1) & mask;
  return s;
}

static PlStatus grow_slots(PlCalls *c) {
  if (2 * (c->nt + 1) <= c->nslots) return PL_OK;
  int32_t n = c->nslots ? 2 * c->nslots : 128, *slots = malloc((size_t)n * sizeof *slots);
  if (!slots) return no_memory();
  free(c->slots);
  c->slots = slots;
  c->nslots = n;
  for (int32_t i = 0; i < n; i++) slots[i] = -1;
  for (int32_t i = 0; i < c->nt; i++) slots[slot_of(c, c->t[i])] = i;
  return PL_OK;
}

/* Its number, a new one if it is not known. */
static PlStatus number_of(PlCalls *c, PlTensor *t, bool real, int32_t *out) {
  PL_TRY(grow_slots(c));
  uint32_t s = slot_of(c, t);
  if (c->slots[s] < 0) {
    int32_t cap = c->cap_t;
    PL_TRY(room(&c->t, c->nt, &cap, sizeof *c->t));
    PL_TRY(room(&c->real, c->nt, &c->cap_t, sizeof *c->real));
    c->slots[s] = c->nt;
    c->real[c->nt] = real;
    c->t[c->nt++] = pl_retain(t);
  }
  *out = c->slots[s];
  return PL_OK;
}

/* An input: a result of an earlier call, an argument, or a real tensor from outside, which has to have no history: held here,
 * it could hold the trace in turn. */
static PlStatus input(PlGraph *f, PlTensor *t, int32_t *out) {
  PlCalls *c = f->calls;
  *out = -1;
  if (!t) return PL_OK;
  if (pl_is_batched(t)) {
    pl_calls_refuse(f, "it uses T.vmap");
    return PL_OK;
  }
  PL_TRY(grow_slots(c));
  if (c->slots[slot_of(c, t)] < 0) {
    if (t->a.symbolic) pl_calls_refuse(f, "it uses %s, which came another way than by an operation", pl_desc_text(&t->a));
    else if ((t->node || t->more) && !(t->node && t->node->kind == PL_NODE_LEAF && !t->more))
      pl_calls_refuse(f, "it uses %s, which was computed outside from tensors that require a gradient", pl_desc_text(&t->a));
    if (c->refused) return PL_OK;
  }
  return number_of(c, t, true, out);
}

/* ---- making -------------------------------------------------------------------------------------------------- */

PlStatus pl_calls_new(PlGraph *f, int n, PlTensor *const *args) {
  PlCalls *c = calloc(1, sizeof *c);
  if (!c) return no_memory();
  f->calls = c;
  c->nargs = n;
  c->grad_at = malloc((size_t)(n + 1) * sizeof *c->grad_at);
  c->wants = calloc((size_t)n + 1, sizeof *c->wants);
  PlStatus s = c->grad_at && c->wants ? PL_OK : no_memory();
  for (int i = 0; i < n && s == PL_OK; i++) {
    int32_t k;
    s = number_of(c, args[i], false, &k);
    if (s == PL_OK && (k != i || !args[i]->a.symbolic || f->vals[pl_sym_value(args[i])].slot != i))
      pl_calls_refuse(f, "its arguments are not as expected");
  }
  for (int i = 0; i < n && s == PL_OK; i++) {
    const PlTensor *g = pl_grad(args[i]);
    c->wants[i] = pl_tensor_requires_grad(args[i]);
    c->grad_at[i] = -1;
    for (int k = 0; k < n && g; k++)
      if (args[k] == g) c->grad_at[i] = k;
  }
  c->nodes = f->nnodes;
  c->floating = pl_default_float();
  if (s != PL_OK) {
    pl_calls_free(c);
    f->calls = NULL;
  }
  return s;
}

/* What is held of a real tensor when the trace is over. A tensor that is no leaf may get a history that holds the graph: then
 * another handle on its memory stays. */
static PlStatus keep(PlTensor **t) {
  PlTensor *alias;
  if ((*t)->a.weak || ((*t)->flags & PL_T_CONST) || ((*t)->node && (*t)->node->kind == PL_NODE_LEAF)) return PL_OK;
  PL_TRY(pl_tensor_alias(&alias, *t));
  pl_tensor_release(*t);
  *t = alias;
  return PL_OK;
}

void pl_calls_close(PlGraph *f) {
  PlCalls *c = f->calls;
  if (!c || !c->slots) return;
  if (c->nodes != f->nnodes) pl_calls_refuse(f, "its results are not as expected");
  if (f->opaque) pl_calls_refuse(f, "it has %s", f->opaque);
  for (int32_t i = 0; i < c->nt; i++) {
    if (c->real[i] && !c->refused) {
      if (keep(&c->t[i]) == PL_OK) continue;
      c->refused = "out of memory";
    }
    pl_tensor_release(c->t[i]);
    c->t[i] = NULL;
  }
  free(c->slots);
  c->slots = NULL;
}

void pl_calls_free(PlCalls *c) {
  if (!c) return;
  for (int32_t i = 0; i < c->nt; i++) pl_tensor_release(c->t[i]);
  free(c->t);
  free(c->real);
  free(c->slots);
  free(c->list);
  free(c->saw);
  free(c->grad_at);
  free(c->wants);
  free(c);
}

/* ---- noting -------------------------------------------------------------------------------------------------- */

PlCalling pl_calls_enter(PlGraph *f) {
  PlCalls *c = f ? f->calls : NULL;
  if (PL_LIKELY(!c)) return (PlCalling){.f = NULL};
  if (c->depth++ == 0 && c->nodes != f->nnodes) pl_calls_refuse(f, "operations were added in a way that is not known");
  return (PlCalling){.f = f, .values = f->nvals};
}

static PlStatus note(PlGraph *f, const PlCalling *k, const PlCallIs *is) {
  PlCalls *c = f->calls;
  if (pl_state.batch || (pl_state.modes & (PL_MODE_FORWARD | PL_MODE_PACKING)))
    pl_calls_refuse(f, "it uses %s", pl_state.batch ? "T.vmap" : pl_state.modes & PL_MODE_FORWARD ? "T.jvp" : "hooks of saved tensors");
  if (c->floating != pl_default_float()) pl_calls_refuse(f, "it changes the default dtype");
  if (c->refused) return PL_OK;
  PL_TRY(room(&c->list, c->n, &c->cap, sizeof *c->list));
  int32_t nin = is->n[0] + is->n[1] + is->n[2], at = 0;
  PlNotedCall call = {.kind = (uint8_t)is->kind,
                      .retain = is->retain,
                      .create = is->create,
                      .unused = is->unused,
                      .mark = f->mark,
                      .scope = pl_scope_now(),
                      .op = is->op,
                      .nin = nin,
                      .nout = is->nout,
                      .ny = is->n[0],
                      .nx = is->n[2],
                      .values = k->values};
  call.in = pl_graph_alloc(f, (size_t)(nin + is->nout + 1) * sizeof *call.in);
  if (!call.in) return no_memory();
  call.out = call.in + nin;
  if (is->attrs) {
    call.attrs = pl_graph_alloc(f, pl_attrs_size(is->attrs));
    if (!call.attrs) return no_memory();
    memcpy(call.attrs, is->attrs, pl_attrs_size(is->attrs));
  }
  for (int g = 0; g < 3; g++)
    for (int i = 0; i < is->n[g]; i++) PL_TRY(input(f, is->in[g] ? is->in[g][i] : NULL, &call.in[at++]));
  if (c->refused) return PL_OK;
  for (int i = 0; i < is->nout; i++) {
    call.out[i] = -1;
    if (is->out[i]) PL_TRY(number_of(c, is->out[i], false, &call.out[i]));
  }
  c->list[c->n++] = call;
  /* the sizes themselves, as a tensor, may be read */
  if (is->kind == PL_CALL_OP && (is->op->flags & PL_F_SIZES)) pl_calls_saw(is->in[0][0], PL_SAW_SHAPE);
  return PL_OK;
}

PlStatus pl_calls_leave(const PlCalling *k, PlStatus s, const PlCallIs *is) {
  PlGraph *f = k->f;
  if (PL_LIKELY(!f)) return s;
  if (--f->calls->depth > 0) return s;
  if (s != PL_OK) pl_calls_refuse(f, "an operation failed in it");
  else if (!f->calls->refused && note(f, k, is) != PL_OK) f->calls->refused = "out of memory";
  f->calls->nodes = f->nnodes;
  return s;
}

bool pl_calls_again_begin(PlGraph *f, PlCalling *k) {
  if (!f || !f->calls || f->calls->refused || f->calls->depth > 0) return false;
  *k = pl_calls_enter(f);
  f->calls->inside = true;
  return true;
}

int32_t pl_calls_again_end(const PlCalling *k, bool ok, int nin, PlTensor *const *in, int nout, PlTensor *const *out) {
  PlCalls *c = k->f->calls;
  c->inside = false;
  (void)pl_calls_leave(k, ok ? PL_OK : PL_ERR_STATE, &(PlCallIs){.kind = PL_CALL_AGAIN, .in = {in}, .n = {nin}, .out = out, .nout = nout});
  return c->refused ? -1 : c->nagain++;
}

void pl_calls_saw(PlTensor *t, int dim) {
  const bool layout = dim == PL_SAW_STRIDES || dim == PL_SAW_SCRIPT_LAYOUT;
  if (dim == PL_SAW_SCRIPT_LAYOUT) dim = PL_SAW_LAYOUT;
  if (PL_UNLIKELY(pl_is_batched(t))) {
    if (pl_state.trace && layout) pl_state.trace->reads_layout = true;
    if (pl_state.trace) pl_calls_refuse(pl_state.trace, "it uses T.vmap");
    return;
  }
  if (!t->a.symbolic) return;
  PlGraph *f = pl_sym_graph(t);
  PlCalls *c = f->calls;
  if (layout) f->reads_layout = true;
  if (!c || c->refused || c->inside) return;
  const PlSaw saw = {.v = pl_sym_value(t), .dim = dim};
  for (int32_t i = c->nsaw - 1; i >= 0 && i >= c->nsaw - 16; i--)
    if (c->saw[i].v == saw.v && c->saw[i].dim == saw.dim) return;
  if (room(&c->saw, c->nsaw, &c->cap_saw, sizeof *c->saw) != PL_OK) {
    c->refused = "out of memory";
    return;
  }
  c->saw[c->nsaw++] = saw;
}
