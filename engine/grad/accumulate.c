/* SPDX-License-Identifier: MIT
 * Gradients add up: those that arrive at one result from all its consumers, and a leaf's in .grad. In place where nobody else can
 * see the sum. */
#include "engine/grad/backward_walk.h"
#include "engine/graph/ir/graph.h"
#include "engine/ops/names.h"
#include "engine/tensor/layout.h"
#include "engine/tensor/presence.h"

/* Only a buffer that this slot alone can see may be added to in place. `holders` is how many handles it has. */
static bool owned(const PlTensor *t, const PlTensor *g, uint32_t holders) {
  return t->refs == 1 && t->storage->refs == holders + pl_tensor_base_refs(t) && (t->a.contiguous || pl_channels_last(&t->a)) &&
         t->a.dtype == g->a.dtype && !t->node && !t->more && !g->node && !g->more && !t->a.weak && pl_shape_equal(&t->a, &g->a) &&
         !(PL_UNLIKELY(pl_state.trace != NULL) && pl_sym_constant(t));
}

/* *sum += g where one represents many tensors. */
static PlStatus add_batched(PlTensor **sum, PlTensor *g) {
  PlTensor *in[2] = {*sum, g}, *out = NULL;
  bool both = pl_is_batched(*sum) && pl_is_batched(g) && pl_batched(*sum)->born == pl_batched(g)->born;
  if (both && (*sum)->refs == 1 && !(*sum)->node && !(*sum)->more && !g->node && !g->more) {
    PlTensor *all[2] = {pl_batched(*sum)->full, pl_batched(g)->full};
    if (!pl_is_batched(all[0]) && !pl_is_batched(all[1]) && owned(all[0], all[1], 2)) return pl_apply_into(&pl_op_add, all, 2, NULL, all);
  }
  PL_TRY(pl_apply(&pl_op_add, in, 2, NULL, &out));
  pl_tensor_release(*sum);
  *sum = out;
  return PL_OK;
}

PlStatus pl_gradient_accumulate(PlTensor **sum, PlTensor *g) {
  if (!*sum) {
    *sum = g;
    return PL_OK;
  }
  PlTensor *in[2] = {*sum, g}, *out = NULL;
  PlStatus s;
  if (PL_UNLIKELY((((*sum)->flags | g->flags) & PL_T_BATCHED) != 0)) s = add_batched(sum, g);
  else if (owned(*sum, g, 1)) s = pl_apply_into(&pl_op_add, in, 2, NULL, in);
  else {
    s = pl_apply(&pl_op_add, in, 2, NULL, &out);
    if (s == PL_OK) {
      pl_tensor_release(*sum);
      *sum = out;
    }
  }
  pl_tensor_release(g);
  return s;
}

/* *g in the leaf's dtype, on its device; on failure released. */
static PlStatus as_leaf(PlTensor **g, const PlTensor *leaf) {
  PlAttrs a;
  for (int move = 0; move < 2; move++) {
    const PlOp *op = move ? &pl_op_to_device : &pl_op_cast;
    if (move ? leaf->a.device == (*g)->a.device : leaf->a.dtype == (*g)->a.dtype) continue;
    PlTensor *out;
    pl_attrs_init(op, &a);
    pl_attrs_int(&a, 0, move ? leaf->a.device : leaf->a.dtype);
    PlStatus s = pl_apply(op, g, 1, &a, &out);
    pl_tensor_release(*g);
    PL_TRY(s);
    *g = out;
  }
  return PL_OK;
}

/* Is what the running backward computes recorded itself, create_graph? */
static bool differentiated(void) { return !pl_state.grad_off && pl_key_records(pl_key_ambient()); }

/* A leaf's .grad is dense and shared with nobody. Takes g. */
static PlStatus take(PlNode *n, PlTensor *g) {
  if (PL_UNLIKELY(pl_is_batched(g))) {
    PlStatus b = pl_fail(PL_ERR_STATE,
                         "backward inside vmap: a gradient for each element, %s, does not fit into .grad; "
                         "use T.grad or T.grad_of",
                         pl_desc_text(&g->a));
    pl_tensor_release(g);
    return b;
  }
  const PlTensor *leaf = n->u.target;
  if (PL_UNLIKELY(leaf && (leaf->a.dtype != g->a.dtype || leaf->a.device != g->a.device)) && !leaf->a.symbolic && !g->a.symbolic)
    PL_TRY(as_leaf(&g, leaf)); /* converted since the op was recorded (leaf_move.c) */
  if (n->grad) {
    /* Who differentiates gradients holds them: with create_graph the sum is another tensor, also where neither has a history. */
    if (n->grad->node || n->grad->more || g->node || g->more || n->grad->a.dtype != g->a.dtype || differentiated()) {
      PlTensor *in[2] = {n->grad, g}, *out;
      PlStatus s = pl_apply(&pl_op_add, in, 2, NULL, &out);
      pl_tensor_release(g);
      PL_TRY(s);
      pl_tensor_release(n->grad);
      n->grad = out;
      return PL_OK;
    }
    PlTensor *in[2] = {n->grad, g};
    PlStatus s = pl_apply_into(&pl_op_add, in, 2, NULL, in);
    pl_tensor_release(g);
    return s;
  }
  /* the 1 that a traced backward begins with, and views of it, are read again in every run of the graph */
  const bool constant = PL_UNLIKELY(pl_state.trace != NULL) && pl_sym_constant(g);
  if (!constant && pl_tensor_sole(g) && (g->a.contiguous || (g->a.device != PL_CPU && pl_channels_last(&g->a))) && !g->a.weak) {
    pl_tensor_leave(g);
    n->grad = g;
    return pl_settle(g); /* a result of the walk: computing it again would be the walk again */
  }
  PlTensor *c;
  PlStatus s;
  if (g->node || g->more || constant) s = pl_apply(&pl_op_clone, &g, 1, NULL, &c);
  else if (PL_UNLIKELY(g->a.device != PL_CPU) && !g->a.symbolic && n->u.target && pl_channels_last(&n->u.target->a))
    s = pl_tensor_copy_as(&c, PL_CHANNELS_LAST, g); /* in the layout of the leaf */
  else s = pl_tensor_copy(&c, g);
  pl_tensor_release(g);
  PL_TRY(s);
  c->a.weak = 0;
  n->grad = c;
  return PL_OK;
}

static uint32_t version_of(const PlTensor *g) {
  return PL_UNLIKELY(pl_state.trace != NULL) ? pl_graph_grad_version(pl_state.trace, g) : g->storage->version;
}

bool pl_leaf_torn(const PlNode *n) {
  if (PL_LIKELY(!n->torn) || !n->grad || (n->grad->a.symbolic && !pl_state.trace)) return false;
  return version_of(n->grad) == n->torn_at;
}

void pl_leaf_tear(PlNode *n) {
  n->torn = n->grad != NULL;
  if (n->torn) n->torn_at = version_of(n->grad);
}

PlStatus pl_leaf_take_grad(PlNode *n, PlTensor *g) {
  n->torn = pl_leaf_torn(n);
  PlStatus s = pl_sums_note(n);
  if (s != PL_OK) {
    pl_tensor_release(g);
    return s;
  }
  s = take(n, g);
  if (PL_UNLIKELY(n->torn)) pl_leaf_tear(n); /* what is added makes it no better */
  return s;
}
