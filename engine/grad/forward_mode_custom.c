/* SPDX-License-Identifier: MIT
 * Tangents through rules of the embedding program: by the rule's own jvp, or else from its backward, which is linear in
 * the gradients dy: the gradient of dx for dy, with the tangents as what arrives at dx. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/grad/forward_mode.h"

/* One call of a rule: tangents v[nin] of its inputs (borrowed, NULL: none), t[nout] of its outputs (owned). */
typedef struct Call {
  PlKey *key;
  PlTensor *const *in, *const *out;
  int nin, nout;
  const bool *differentiable;
  const PlRuleSaved *saved;
  const char *name;
  PlRule *(*make)(void *ctx, PlNode *node);
  void *ctx;
  PlTensor **v, **t;
} Call;

static bool has_tangent(const Call *c, int o) {
  return (!c->differentiable || c->differentiable[o]) && pl_is_float((PlDtype)c->out[o]->a.dtype);
}

/* ---- double backward --------------------------------------------------------------------------------------------- */

/* Two keys above the forward one: the rule is recorded on `inner` for aliases of its inputs, what its backward does with
 * dys is recorded on `outer`. */
typedef struct Double {
  const Call *c;
  PlKey *outer, *inner;
  PlTensor **x, **y, **u;      /* nin, nout, nout: aliases of inputs and outputs; gradients of the outputs, which are zeros */
  PlTensor **dx, **vs, **back; /* nin; those of them that are there, and their tangents; nout */
} Double;

static PlStatus alias(PlTensor **out, PlTensor *t, const PlKey *key) {
  PL_TRY(pl_tensor_alias(out, t));
  return pl_entries_copy(*out, t, key);
}

static PlStatus record_inner(const Double *d) {
  const Call *c = d->c;
  for (int i = 0; i < c->nin; i++) {
    PL_TRY(alias(&d->x[i], c->in[i], c->key));
    if (c->v[i]) PL_TRY(pl_key_attach(d->inner, d->x[i], NULL));
  }
  for (int o = 0; o < c->nout; o++) PL_TRY(alias(&d->y[o], c->out[o], c->key));
  PL_TRY(pl_record_rule_on(d->inner, d->x, c->nin, d->y, c->nout, c->differentiable, c->saved, c->name, c->make, c->ctx));
  for (int o = 0; o < c->nout; o++) {
    PL_TRY(pl_forward_zero(&d->u[o], c->out[o]));
    if (has_tangent(c, o)) PL_TRY(pl_key_attach(d->outer, d->u[o], NULL));
  }
  return PL_OK;
}

static PlStatus pull_twice(const Double *d) {
  const Call *c = d->c;
  int n = 0;
  PL_TRY(pl_key_pull(d->inner, d->y, d->u, c->nout, d->x, c->nin, d->dx));
  for (int i = 0; i < c->nin; i++) {
    PlTensor *g = d->dx[i];
    PlNode *node;
    uint32_t slot;
    d->dx[i] = NULL;
    if (!g || !c->v[i]) {
      pl_tensor_release(g);
      continue;
    }
    if (!pl_entry_get(g, d->outer, &node, &slot)) {
      pl_tensor_release(g);
      PL_FAIL(PL_ERR_UNSUPPORTED,
              "jvp: rule %s has no jvp, and its backward is not made of ops that can be differentiated; "
              "give it one: T.custom{…, jvp = function(ctx, t1, …) … end}",
              c->name);
    }
    d->vs[n] = c->v[i];
    d->dx[n++] = g;
  }
  pl_key_close(d->inner); /* it need not see what follows */
  if (n == 0) return PL_OK;
  PL_TRY(pl_key_pull(d->outer, d->dx, d->vs, n, d->u, c->nout, d->back));
  for (int o = 0; o < c->nout; o++) {
    c->t[o] = d->back[o];
    d->back[o] = NULL;
  }
  return PL_OK;
}

static PlStatus by_backward(const Call *c) {
  const size_t nin = (size_t)c->nin, nout = (size_t)c->nout;
  PlTensor **m = calloc(3 * (nin + nout) + 1, sizeof *m);
  if (!m) PL_FAIL(PL_ERR_OOM, "%s: out of memory", c->name);
  Double d = {.c = c, .x = m, .dx = m + nin, .vs = m + 2 * nin, .y = m + 3 * nin};
  d.u = d.y + nout;
  d.back = d.u + nout;
  PlStatus s = pl_key_new(&d.outer, NULL, c->key->level, false);
  if (s == PL_OK) s = pl_key_new(&d.inner, NULL, c->key->level + 1, false);
  if (s == PL_OK) d.outer->born = d.inner->born = c->key->born; /* to a running vmap they are what the key is */
  if (s == PL_OK) s = record_inner(&d);
  if (s == PL_OK) s = pull_twice(&d);
  pl_release_all(d.x, c->nin);
  pl_release_all(d.dx, c->nin);
  pl_release_all(d.y, 3 * c->nout);
  if (d.inner) {
    pl_key_close(d.inner);
    pl_key_release(d.inner);
  }
  if (d.outer) { /* what its results came from is known; they keep what other keys recorded */
    pl_key_close(d.outer);
    pl_key_release(d.outer);
  }
  free((void *)m);
  return s;
}

/* ---- by its jvp -------------------------------------------------------------------------------------------------- */

/* *known: the rule has a jvp, and t is what it gave. */
static PlStatus by_jvp(const Call *c, bool *known) {
  PlNode *n;
  *known = false;
  PL_TRY(pl_node_new(&n, c->key, PL_NODE_RULE, (uint32_t)c->nin, (uint32_t)c->nout, c->saved ? (uint32_t)c->saved->n : 0));
  n->name = c->name;
  n->u.rule = c->make(c->ctx, n);
  PlStatus s = n->u.rule ? PL_OK : pl_fail(PL_ERR_OOM, "%s: out of memory for a gradient node", c->name);
  if (s == PL_OK && n->u.rule->jvp) {
    *known = true;
    s = pl_rule_save(n, c->saved, c->out, c->nout);
  }
  if (s == PL_OK && *known) {
    s = n->u.rule->jvp(n->u.rule->ud, n, c->v, c->out, c->t);
  }
  pl_node_release(n);
  return s;
}

static PlStatus set_all(const Call *c, const char *lost) {
  PlStatus s = PL_OK;
  for (int o = 0; o < c->nout && s == PL_OK; o++) {
    PlTensor *t = c->t[o];
    if (!has_tangent(c, o) || !(t || lost)) continue;
    c->t[o] = NULL;
    s = pl_forward_set(c->key, lost ? lost : c->name, c->out[o], t);
  }
  return s;
}

static PlStatus run(const Call *c) {
  const char *lost = NULL;
  bool any = false, known = false;
  for (int i = 0; i < c->nin; i++) {
    PlNode *n;
    uint32_t slot;
    if (!c->in[i] || !pl_entry_get(c->in[i], c->key, &n, &slot)) continue;
    any = true;
    if (!n->grad) lost = n->name;
    c->v[i] = n->grad;
  }
  if (!any) return PL_OK;
  PlStatus s = PL_OK;
  if (!lost) {
    const PlForwardPause p = pl_forward_pause(c->key);
    s = by_jvp(c, &known);
    if (s == PL_OK && !known) s = by_backward(c);
    pl_forward_resume(p);
  }
  return s == PL_OK ? set_all(c, lost) : s;
}

PlStatus pl_forward_rule(PlKey *k, PlTensor *const *in, int nin, PlTensor *const *out, int nout, const bool *differentiable,
                         const PlRuleSaved *saved, const char *name, PlRule *(*make)(void *ctx, PlNode *node), void *ctx) {
  PlTensor **m = calloc((size_t)nin + (size_t)nout + 1, sizeof *m);
  if (!m) PL_FAIL(PL_ERR_OOM, "%s: out of memory", name);
  Call c = {k, in, out, nin, nout, differentiable, saved, name, make, ctx, m, m + nin};
  PlStatus s = run(&c);
  pl_release_all(c.t, nout);
  free((void *)m);
  return s;
}
