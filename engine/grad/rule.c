/* SPDX-License-Identifier: MIT
 * The rule of one node during backward: gradients of its outputs in, gradients of its inputs out. What it saved is
 * checked here for in-place changes. */
#include <stdlib.h>
#include <string.h>

#include "engine/grad/checkpoint.h"
#include "engine/grad/graph.h"
#include "engine/grad/packing.h"
#include "engine/grad/walk.h"

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

/* The gradient that a rule reads where none arrived. */
static PlStatus missing_grad(PlNode *n, uint32_t o, PlTensor **out) {
  PlTensor *shape = n->slots[o].shape;
  if (!shape) PL_FAIL(PL_ERR_STATE, "backward of %s: no gradient for output %u", n->name, o + 1);
  *out = pl_retain(shape);
  return PL_OK;
}

static PlStatus no_gradient(const PlNode *n) {
  const char *bwd = strstr(n->name, "_bwd");
  if (bwd)
    PL_FAIL(PL_ERR_UNSUPPORTED, "not %s differentiable: %.*s", bwd[4] == '2' ? "three times" : "twice",
            (int)(bwd - n->name), n->name);
  PL_FAIL(PL_ERR_UNSUPPORTED,
          "backward: op %s has no gradient; compute it under no_grad, or give it a rule with T.custom", n->name);
}

static PlStatus run_graph(PlNode *n, PlTensor **dx) {
  PlBackward *b = n->u.graph;
  if (!b) return no_gradient(n);
  enum { FEW = 24 };
  PlTensor *few[FEW], **args = few, *res_few[FEW], **res = res_few;
  int total = b->backward->ninputs, k = 0;
  if ((total > FEW || b->backward->nresults > FEW) &&
      (!(args = malloc((size_t)(total + b->backward->nresults) * sizeof *args)) || !(res = args + total)))
    PL_FAIL(PL_ERR_OOM, "backward: out of memory");
  PlStatus s = PL_OK;
  for (uint32_t i = 0; i < n->nsaved && s == PL_OK; i++) {
    s = pl_saved_get(n, i, &args[k]);
    if (s == PL_OK) k++;
  }
  for (int o = 0; o < b->nout && s == PL_OK; o++) {
    if (!b->save[b->nin + b->nout + o]) continue;
    if (n->slots[o].grad)
      args[k++] = pl_retain(n->slots[o].grad);
    else if ((s = missing_grad(n, (uint32_t)o, &args[k])) == PL_OK)
      k++;
  }
  if (s == PL_OK) s = pl_graph_run(b->backward, args, res);
  while (k > 0) pl_tensor_release(args[--k]);
  if (s == PL_OK)
    for (int i = 0, r = 0; i < b->nin; i++)
      if (b->has_grad[i]) dx[i] = res[r++];
  if (args != few) free(args);
  return s;
}

static PlStatus run_native(PlNode *n, PlTensor **dx) {
  PlTensor *saved[PL_MAX_IN + PL_MAX_OUT], *dy[PL_MAX_OUT];
  bool want[PL_MAX_IN];
  uint32_t k = 0;
  PlStatus s = PL_OK;
  for (; k < n->nsaved && s == PL_OK; k++)
    if ((s = pl_saved_get(n, k, &saved[k])) != PL_OK) break;
  for (uint32_t i = 0; i < n->nin; i++) want[i] = n->dests[i].node != NULL;
  for (uint32_t o = 0; o < n->nout; o++) dy[o] = n->slots[o].grad;
  if (s == PL_OK) s = n->op->native->bwd(n->u.native.attrs, saved, dy, want, dx);
  while (k > 0) pl_tensor_release(saved[--k]);
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
  for (uint32_t i = 0; i < n->nin; i++) want[i] = n->dests[i].node != NULL;
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
