/* SPDX-License-Identifier: MIT
 * Forward keys, and what recording an op means for them: the tangents of its outputs. See forward_mode.h. */
#include "engine/grad/forward_mode.h"

#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/grad/backward_walk.h"
#include "engine/grad/saved_tensors_hooks.h"

/* ---- tangents of tensors ------------------------------------------------------------------------------------- */

PlStatus pl_forward_key_new(PlKey **out, int level) {
  PL_TRY(pl_key_new(out, NULL, level, false));
  (*out)->forward = true;
  pl_set_forward(pl_state.forward + 1);
  return PL_OK;
}

bool pl_forward_runs(void) {
  bool yes = false;
  for (const PlKey *k = pl_state.keys; k && !yes; k = k->next) yes = k->forward && k->active;
  return yes;
}

PlStatus pl_forward_set(PlKey *k, const char *name, PlTensor *y, PlTensor *tangent) {
  PlNode *n;
  if (!y->node && !y->base && !y->a.symbolic) return pl_node_tangent(y, k, name, tangent);
  PlStatus s = pl_node_new(&n, k, PL_NODE_TANGENT, 0, 0, 0);
  if (s != PL_OK) {
    pl_tensor_release(tangent);
    return s;
  }
  n->name = name;
  n->grad = tangent;
  s = pl_entry_set(y, n, 0);
  pl_node_release(n);
  return s;
}

static PlStatus check(const char *what, const PlTensor *t, const PlTensor *v) {
  if (v->a.dtype != t->a.dtype || !pl_shape_equal(&v->a, &t->a))
    PL_FAIL(PL_ERR_SHAPE, "%s: %s cannot be the tangent of %s", what, pl_desc_text(&v->a), pl_desc_text(&t->a));
  return PL_OK;
}

PlStatus pl_forward_attach(PlKey *k, PlTensor *t, PlTensor *v) {
  if (!k->active || !k->forward) PL_FAIL(PL_ERR_STATE, "jvp: the key is finalized, or none of tangents");
  if (!pl_is_float((PlDtype)t->a.dtype))
    PL_FAIL(PL_ERR_DTYPE, "jvp: only floating tensors have tangents, not %s; convert first, e.g. x:float()", pl_desc_text(&t->a));
  PL_TRY(check("jvp", t, v));
  PL_TRY(pl_history_current(&t, 1));
  return pl_forward_set(k, "jvp", t, pl_retain(v));
}

static PlStatus unknown(const char *name) {
  PL_FAIL(PL_ERR_UNSUPPORTED,
          "jvp: %s has no derivative that forward mode knows; compute it under no_grad, detach what it "
          "gives, or give it a rule with T.custom",
          name);
}

PlStatus pl_forward_tangent(const PlKey *k, PlTensor *t, PlTensor **out) {
  PlNode *n;
  uint32_t slot;
  *out = NULL;
  PL_TRY(pl_history_current(&t, 1));
  if (!pl_entry_get(t, k, &n, &slot)) return PL_OK;
  if (!n->grad) return unknown(n->name);
  *out = n->grad;
  return PL_OK;
}

PlStatus pl_forward_zero(PlTensor **out, const PlTensor *t) {
  static const int64_t strides[PL_MAX_DIM];
  PlTensor *zero;
  PL_TRY(pl_tensor_full_on(&zero, t->a.device, (PlDtype)t->a.dtype, 0, NULL, 0));
  PlStatus s = pl_tensor_window(out, zero, t->a.ndim, t->a.shape, strides, zero->a.data);
  pl_tensor_release(zero);
  return s;
}

/* ---- who sees it ---------------------------------------------------------------------------------------------- */

/* Dtypes are what the op itself has chosen; keys made before a running vmap see all of it (engine/vmap). Views are brought
 * up to date also inside no_grad (inplace.c): their tangents have histories, too, for the keys below and no others. */
PlForwardPause pl_forward_pause(const PlKey *k) {
  PlForwardPause p = {.key = k, .born = ++pl_state.key_seq, .was = pl_modes_now(), .changes = pl_changes_begin()};
  pl_keys_mute(k, PL_MUTE_ABOVE, p.born, 1);
  pl_state.key_floor = 0;
  pl_set_autocast(0);
  pl_state.grad_off = pl_state.bookkeeping = false;
  return p;
}

void pl_forward_resume(PlForwardPause p) {
  pl_modes_set(&p.was);
  pl_changes_end(p.changes);
  pl_keys_mute(p.key, PL_MUTE_ABOVE, p.born, (uint32_t)-1);
}

/* ---- one op ---------------------------------------------------------------------------------------------------- */

/* A call with the tangents of its inputs (borrowed; NULL: none). */
typedef struct Call {
  PlKey *key;
  const PlOp *op;
  PlTensor *const *in;
  int nin;
  const PlAttrs *attrs;
  PlTensor **out;
  PlTensor **v;
  bool *want;
} Call;

/* No output of floating dtype has a tangent that anybody knows: an error for who asks. */
static PlStatus set_unknown(const Call *c, const char *name) {
  for (int o = 0; o < c->op->nout; o++)
    if (c->out[o] && pl_is_float((PlDtype)c->out[o]->a.dtype)) PL_TRY(pl_forward_set(c->key, name, c->out[o], NULL));
  return PL_OK;
}

/* Takes the tangents t[nout]. */
static PlStatus set_tangents(const Call *c, PlTensor **t) {
  PlStatus s = PL_OK;
  for (int o = 0; o < c->op->nout; o++) {
    PlTensor *v = t[o];
    t[o] = NULL;
    if (v && s == PL_OK && c->out[o] && pl_is_float((PlDtype)c->out[o]->a.dtype)) s = check(c->op->name, c->out[o], v);
    if (v && s == PL_OK && c->out[o] && pl_is_float((PlDtype)c->out[o]->a.dtype)) s = pl_forward_set(c->key, c->op->name, c->out[o], v);
    else pl_tensor_release(v);
  }
  return s;
}

/* Is the op linear in its floating inputs, and has each of them a tangent, or is it a list? */
static bool runs_itself(const Call *c) {
  if (!(c->op->flags & PL_F_LINEAR)) return false;
  for (int i = 0; i < c->nin && c->op->nin != PL_VARIADIC; i++)
    if (c->in[i] && pl_is_float((PlDtype)c->in[i]->a.dtype) && !c->v[i]) return false;
  return true;
}

/* Does input i become elements of the result? Of floating dtype it does, and as an integer where a list (index_put) says which of the
 * others are indices, or the last one is stored (masked_fill). */
static bool varies(const Call *c, int i) {
  const uint8_t indices = c->op->nin == PL_VARIADIC ? c->op->reads_values : 0;
  if (!c->in[i] || pl_is_float((PlDtype)c->in[i]->a.dtype)) return c->in[i] != NULL;
  if (indices) return i < 8 && !((indices >> i) & 1);
  return (c->op->flags & PL_F_STORES) && i > 0 && i == c->nin - 1;
}

/* y = op(x) is linear: its tangent is op(v), with zeros for what has none. */
static PlStatus run_itself(const Call *c, PlTensor **t) {
  PlTensor *few[PL_MAX_IN], **args = few;
  if (c->nin > PL_MAX_IN && !(args = malloc((size_t)c->nin * sizeof *args))) PL_FAIL(PL_ERR_OOM, "jvp: out of memory");
  PlStatus s = PL_OK;
  int n = 0;
  for (; n < c->nin && s == PL_OK; n++) {
    args[n] = NULL;
    if (c->v[n] || !varies(c, n)) args[n] = c->v[n] ? pl_retain(c->v[n]) : c->in[n] ? pl_retain(c->in[n]) : NULL;
    else s = pl_forward_zero(&args[n], c->in[n]);
  }
  if (s == PL_OK) s = pl_apply(c->op, args, c->nin, c->attrs, t);
  pl_release_all(args, n);
  if (args != few) free(args);
  return s;
}

/* Has the op a rule by hand that applies? Such ops are elementwise: J is diagonal, so that what turns the gradient of the
 * output into that of an input does so with tangents, too, where shapes and dtypes are those of the output. */
static bool has_native(const Call *c) {
  const PlNative *r = c->op->native;
  if (!r || c->op->cls != PL_POINTWISE || !r->ok(c->in, c->nin, c->out, c->attrs)) return false;
  const PlArray *y = &c->out[0]->a;
  for (int i = 0; i < c->nin; i++)
    if (c->v[i] && (c->v[i]->a.weak || c->v[i]->a.dtype != y->dtype || !pl_shape_equal(&c->v[i]->a, y))) return false;
  return true;
}

static PlStatus run_native(const Call *c, PlTensor **t) {
  PlStatus s = PL_OK;
  for (int i = 0; i < c->nin && s == PL_OK; i++) {
    if (!c->v[i]) continue;
    const bool want[2] = {i == 0, i == 1};
    PlTensor *dx[2] = {NULL, NULL};
    s = c->op->native->bwd(c->attrs, c->in, &c->v[i], want, dx);
    if (s == PL_OK && t[0]) s = pl_gradient_accumulate(&t[0], dx[i]);
    else if (s == PL_OK) t[0] = dx[i];
  }
  if (s != PL_OK) {
    pl_tensor_release(t[0]);
    t[0] = NULL;
  }
  return s;
}

static PlStatus run_graph(const Call *c, const PlForward *g, PlTensor **t) {
  enum { FEW = 2 * (PL_MAX_IN + PL_MAX_OUT) };
  PlTensor *few[FEW], **args = few, *zero[PL_MAX_OUT] = {NULL}, *res[PL_MAX_OUT];
  const int n = 2 * (g->nin + g->nout);
  if (n > FEW && !(args = malloc((size_t)n * sizeof *args))) PL_FAIL(PL_ERR_OOM, "jvp: out of memory");
  PlStatus s = PL_OK;
  memcpy(args, c->in, (size_t)g->nin * sizeof *args);
  memcpy(args + g->nin, c->out, (size_t)g->nout * sizeof *args);
  memcpy(args + g->nin + g->nout, c->v, (size_t)g->nin * sizeof *args);
  for (int o = 0; o < g->nout; o++) {
    if (g->zero[o] && s == PL_OK) s = pl_forward_zero(&zero[o], c->out[o]);
    args[2 * g->nin + g->nout + o] = zero[o];
  }
  if (s == PL_OK) s = pl_grad_graph_run(g->graph, args, res);
  for (int o = 0, r = 0; s == PL_OK && o < g->nout; o++)
    if (g->has[o]) t[o] = res[r++];
  pl_release_all(zero, g->nout);
  if (args != few) free(args);
  return s;
}

static PlStatus compute(const Call *c) {
  PlTensor *t[PL_MAX_OUT] = {NULL};
  PlForward *g = NULL;
  PlStatus s = PL_OK;
  bool itself = runs_itself(c);
  const bool native = !itself && has_native(c);
  if (!itself && !native) s = pl_forward_graph_get(c->op, c->in, c->nin, c->attrs, c->out, c->want, &g);
  if (s == PL_ERR_UNSUPPORTED || s == PL_ERR_TRACE) {
    if (!(c->op->flags & PL_F_LINEAR)) return set_unknown(c, c->op->name);
    itself = true; /* its shape depends on values, which a graph does not know */
    s = PL_OK;
  }
  if (s != PL_OK || !(itself || native || g)) return s;
  const PlForwardPause p = pl_forward_pause(c->key);
  s = itself ? run_itself(c, t) : native ? run_native(c, t) : run_graph(c, g, t);
  pl_forward_resume(p);
  pl_forward_graph_release(g);
  return s == PL_OK ? set_tangents(c, t) : s;
}

static PlStatus record(const Call *c) {
  const char *lost = NULL;
  bool any = false;
  for (int i = 0; i < c->nin; i++) {
    PlNode *n;
    uint32_t slot;
    c->v[i] = NULL;
    if (c->in[i] && pl_is_float((PlDtype)c->in[i]->a.dtype) && pl_entry_get(c->in[i], c->key, &n, &slot)) {
      any = true;
      if (!n->grad) lost = n->name;
      c->v[i] = n->grad;
    }
    c->want[i] = c->v[i] != NULL;
  }
  if (!any) return PL_OK;
  if (lost) return set_unknown(c, lost);
  return c->op->grad ? compute(c) : set_unknown(c, c->op->name);
}

PlStatus pl_forward_record(PlKey *k, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  PlTensor *few[PL_MAX_IN];
  bool few_want[PL_MAX_IN];
  Call c = {k, op, in, nin, attrs, out, few, few_want};
  if (nin <= PL_MAX_IN) return record(&c);
  if (!(c.v = malloc((size_t)nin * (sizeof *c.v + 1)))) PL_FAIL(PL_ERR_OOM, "jvp: out of memory");
  c.want = (bool *)(c.v + nin);
  PlStatus s = record(&c);
  free((void *)c.v);
  return s;
}
