/* SPDX-License-Identifier: MIT
 * The rule of one node during backward: gradients of its outputs in, gradients of its inputs out. What it saved is
 * checked here for in-place changes. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/call.h"
#include "engine/device/device.h"
#include "engine/grad/backward_walk.h"
#include "engine/grad/checkpoint.h"
#include "engine/grad/gradient_graph.h"
#include "engine/grad/saved_tensors_hooks.h"
#include "engine/ops/names.h"

static PlStatus stale_saved(const PlNode *n, uint32_t i) {
  const PlStorage *st = n->saved[i].t->storage;
  char by[160] = "", at[160] = "";
  if (pl_state.watch) {
    pl_state.watch->writer(st, by, sizeof by);
    pl_state.watch->where(n, at, sizeof at);
  }
  PL_FAIL(PL_ERR_STATE,
          "backward of %s%s: a tensor it saved, %s, was modified in place afterwards%s (version %u, saved at %u); "
          "modify a copy, x:clone(), or do it before the op",
          n->name, at, pl_desc_text(&n->saved[i].t->a), by, st->version, n->saved[i].version);
}

static PlStatus get_packed(PlNode *n, const PlSavedPacked *p, PlTensor **out) {
  const int32_t relink = p->relink;
  PL_TRY(pl_packed_get(p->value, n->name, out));
  if (relink < 0 || pl_state.grad_off || !pl_key_records(n->key)) return PL_OK;
  PlStatus s = pl_entry_set(*out, n, (uint32_t)relink);
  if (s != PL_OK) pl_tensor_release(*out);
  return s;
}

PlStatus pl_saved_get(PlNode *n, uint32_t i, PlTensor **out) {
  PlSaved *s = &n->saved[i];
  while (PL_UNLIKELY(!s->t)) { /* of nested checkpoints, the outer first */
    if (s->packed) return get_packed(n, s->packed, out);
    PL_TRY(pl_checkpoint_restore(n));
  }
  if (PL_UNLIKELY(s->t->storage->version != s->version)) return stale_saved(n, i);
  if (s->relink >= 0 && !pl_state.grad_off && pl_key_records(n->key)) {
    PlTensor *alias;
    PL_TRY(pl_tensor_alias(&alias, s->t));
    PlStatus st = pl_entries_copy(alias, s->t, n->key);
    if (st == PL_OK) st = pl_entry_set(alias, n, (uint32_t)s->relink);
    if (st != PL_OK) {
      pl_tensor_release(alias);
      return st;
    }
    *out = alias;
    return PL_OK;
  }
  *out = pl_retain(s->t);
  return PL_OK;
}

/* In a trace: made in the graph, since a tensor of this shape would tie it to its sizes. */
static PlStatus traced_zero(const PlTensor *like, PlTensor **out) {
  PlAttrs a;
  PlTensor *zero = NULL;
  const uint8_t was = pl_state.device;
  pl_attrs_init(&pl_op_zeros, &a);
  PL_TRY(pl_attrs_list(&a, 0, 0, NULL));
  pl_attrs_int(&a, 1, like->a.dtype);
  pl_state.device = like->a.device;
  PlStatus s = pl_apply(&pl_op_zeros, NULL, 0, &a, &zero);
  pl_state.device = was;
  PL_TRY(s);
  pl_attrs_init(&pl_op_expand, &a);
  s = pl_attrs_list(&a, 0, like->a.ndim, like->a.shape);
  if (s == PL_OK) s = pl_apply(&pl_op_expand, &zero, 1, &a, out);
  pl_tensor_release(zero);
  return s;
}

/* The gradient that a rule reads where none arrived. */
static PlStatus missing_grad(PlNode *n, uint32_t o, PlTensor **out) {
  PlTensor *shape = n->slots[o].shape;
  if (!shape) PL_FAIL(PL_ERR_STATE, "backward of %s: no gradient for output %u", n->name, o + 1);
  if (pl_state.trace) return traced_zero(shape, out);
  *out = pl_retain(shape);
  return PL_OK;
}

static PlStatus no_gradient(const PlNode *n) {
  const PlOp *of = n->op ? n->op->gradient_of : NULL;
  if (of && of->gradient_of) PL_FAIL(PL_ERR_UNSUPPORTED, "not three times differentiable: %s", of->gradient_of->name);
  if (of) PL_FAIL(PL_ERR_UNSUPPORTED, "not twice differentiable: %s", of->name);
  PL_FAIL(PL_ERR_UNSUPPORTED, "backward: op %s has no gradient; compute it under no_grad, or give it a rule with T.custom", n->name);
}

/* Which results of the backward graph the walk wants, if not all of them; NULL: all. */
static const bool *wanted_results(const PlNode *n, const PlBackward *b, bool *room) {
  bool all = true;
  for (int i = 0, r = 0; i < b->nin; i++)
    if (b->has_grad[i]) all &= room[r++] = pl_walk_wants(n, (uint32_t)i);
  return all ? NULL : room;
}

/* The tensors that the graph takes: saved ones, then gradients. need: of its inputs; NULL: all. */
static PlStatus graph_args(PlNode *n, const PlBackward *b, const bool *need, PlTensor **args) {
  int k = 0;
  for (uint32_t i = 0; i < n->nsaved; i++, k++)
    if (!need || need[k]) PL_TRY(pl_saved_get(n, i, &args[k]));
  for (int o = 0; o < b->nout; o++) {
    if (!b->save[b->nin + b->nout + o]) continue;
    if (n->slots[o].grad) args[k] = pl_retain(n->slots[o].grad);
    else PL_TRY(missing_grad(n, (uint32_t)o, &args[k]));
    k++;
  }
  return PL_OK;
}

static PlStatus run_graph(PlNode *n, PlTensor **dx) {
  PlBackward *b = n->u.graph;
  if (!b) return no_gradient(n);
  enum { FEW = 24, FEW_VALUES = 128 };
  const int total = b->backward->ninputs, results = b->backward->nresults, values = b->backward->nvals;
  PlTensor *few[2 * FEW], **args = few;
  bool flags_few[FEW + FEW_VALUES], *flags = flags_few;
  if ((total > FEW || results > FEW) && !(args = malloc((size_t)(total + results) * sizeof *args)))
    PL_FAIL(PL_ERR_OOM, "backward: out of memory");
  if ((results > FEW || values > FEW_VALUES) && !(flags = malloc((size_t)(results + values) * sizeof *flags))) {
    if (args != few) free(args);
    PL_FAIL(PL_ERR_OOM, "backward: out of memory");
  }
  PlTensor **res = args + total;
  memset(args, 0, (size_t)total * sizeof *args);
  const bool *wants = wanted_results(n, b, flags), *need = NULL;
  if (wants) {
    pl_grad_graph_needed(b->backward, wants, flags + results);
    need = flags + results;
  }
  PlStatus s = graph_args(n, b, need, args);
  uint8_t device = PL_CPU;
  for (uint32_t o = 0; o < n->nout; o++) device = pl_device_first(device, n->slots[o].grad ? n->slots[o].grad->a.device : PL_CPU);
  if (s == PL_OK) s = pl_grad_graph_run_some(b->backward, args, need, wants, device, res);
  for (int i = 0; i < total; i++) pl_tensor_release(args[i]);
  if (s == PL_OK)
    for (int i = 0, r = 0; i < b->nin; i++)
      if (b->has_grad[i]) dx[i] = res[r++];
  if (args != few) free(args);
  if (flags != flags_few) free(flags);
  return s;
}

static PlStatus run_native(PlNode *n, PlTensor **dx) {
  const PlNative *r = n->op->native;
  PlTensor *saved[2] = {NULL, NULL}, *dy[PL_MAX_OUT];
  bool want[2] = {pl_walk_wants(n, 0), n->nin > 1 && pl_walk_wants(n, 1)};
  const uint8_t has = n->u.native.saved, reads = (uint8_t)((want[0] ? r->reads[0] : 0) | (want[1] ? r->reads[1] : 0));
  PlStatus s = PL_OK;
  if (reads & 1) s = pl_saved_get(n, 0, &saved[0]);
  if ((reads & 2) && s == PL_OK) s = pl_saved_get(n, has & 1, &saved[1]);
  for (uint32_t o = 0; o < n->nout; o++) dy[o] = n->slots[o].grad;
  if (s == PL_OK) s = r->bwd(n->u.native.attrs, saved, dy, want, dx);
  pl_tensor_release(saved[0]);
  pl_tensor_release(saved[1]);
  return s;
}

static PlStatus run_rule(PlNode *n, PlTensor **dx) {
  PlTensor *dy_few[PL_MAX_IN], **dy = dy_few;
  bool want_few[PL_MAX_IN], *want = want_few;
  if (n->nout > PL_MAX_IN && !(dy = malloc(n->nout * sizeof *dy))) PL_FAIL(PL_ERR_OOM, "backward: out of memory");
  if (n->nin > PL_MAX_IN && !(want = malloc(n->nin * sizeof *want))) {
    if (dy != dy_few) free(dy);
    PL_FAIL(PL_ERR_OOM, "backward: out of memory");
  }
  for (uint32_t o = 0; o < n->nout; o++) dy[o] = n->slots[o].grad;
  for (uint32_t i = 0; i < n->nin; i++) want[i] = pl_walk_wants(n, i);
  PlStatus s = PL_OK;
  while (s == PL_OK && PL_UNLIKELY(!n->u.rule)) s = pl_checkpoint_restore(n);
  if (s == PL_OK) s = n->u.rule->bwd(n->u.rule->ud, n, dy, want, dx);
  if (dy != dy_few) free(dy);
  if (want != want_few) free(want);
  return s;
}

PlStatus pl_rule_run(PlNode *n, PlTensor **dx) {
  switch ((PlNodeKind)n->kind) {
  case PL_NODE_NATIVE: return run_native(n, dx);
  case PL_NODE_GRAPH: return run_graph(n, dx);
  case PL_NODE_RULE: return run_rule(n, dx);
  case PL_NODE_IDENTITY: dx[0] = pl_retain(n->slots[0].grad); break;
  case PL_NODE_LEAF:
  case PL_NODE_TANGENT: break;
  }
  return PL_OK;
}
