/* SPDX-License-Identifier: MIT
 * Backward through the ambient key, y:backward() and T.grad_of: where a walk (backward_walk.c) begins and what it returns.
 * Explicit keys have the same in key.c and vjp.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/device.h"
#include "engine/grad/backward_walk.h"
#include "engine/graph/ir/calls.h"

PlStatus pl_walk_seed_tensor(PlWalk *w, PlTensor *y, PlTensor *dy, PlNode *node, uint32_t slot, bool scalar_only) {
  PlTensor *one = NULL;
  if (!dy) {
    if (scalar_only && y->a.numel != 1)
      PL_FAIL(PL_ERR_SHAPE,
              "backward: the gradient of %s must be given; without one only a single element "
              "is differentiated, e.g. y:sum():backward()",
              pl_desc_text(&y->a));
    PL_TRY(pl_tensor_full_on(&one, y->a.device, (PlDtype)y->a.dtype, y->a.ndim, y->a.shape, 1));
    dy = one;
  } else if (!pl_shape_equal(&y->a, &dy->a))
    PL_FAIL(PL_ERR_SHAPE, "backward: gradient %s does not have the shape of its tensor %s", pl_desc_text(&dy->a), pl_desc_text(&y->a));
  else if (dy->a.dtype != y->a.dtype)
    PL_FAIL(PL_ERR_DTYPE, "backward: gradient %s does not have the dtype of its tensor %s", pl_desc_text(&dy->a), pl_desc_text(&y->a));
  PlStatus s = pl_walk_seed(w, node, slot, dy);
  pl_tensor_release(one);
  return s;
}

/* The i-th of n outputs, counted from 0. */
static PlStatus not_tracked(const PlTensor *y, int i, int n) {
  char which[32] = "";
  if (n > 1) snprintf(which, sizeof which, "output %d, ", i + 1);
  const char *comma = n > 1 ? "," : "";
  if (pl_state.in_backward && pl_key_ambient()->muted)
    PL_FAIL(PL_ERR_STATE,
            "backward: %s%s%s does not depend on a tensor that requires a gradient: while a backward runs, "
            "requires_grad_() records nothing; inside rules and hooks use T.grad, T.vjp or a T.GradKey",
            which, pl_desc_text(&y->a), comma);
  if (pl_state.grad_off)
    PL_FAIL(PL_ERR_STATE, "backward: %s%s%s does not depend on a tensor that requires a gradient: recording is off", which,
            pl_desc_text(&y->a), comma);
  PL_FAIL(PL_ERR_STATE,
          "backward: %s%s%s does not depend on a tensor that requires a gradient; "
          "call requires_grad_() on a leaf before computing it",
          which, pl_desc_text(&y->a), comma);
}

/* Gradients that a running walk would leave without a history are no answer to create_graph. */
static PlStatus check_create(const char *what, bool create_graph) {
  if (create_graph && pl_state.in_backward && pl_key_ambient()->muted)
    PL_FAIL(PL_ERR_STATE,
            "%s: create_graph = true inside of a backward without it records nothing; run the outer one with "
            "create_graph = true, or use T.grad, T.vjp or a T.GradKey in rules and hooks",
            what);
  return PL_OK;
}

static PlStatus seed_all(PlWalk *w, PlTensor *const *ys, PlTensor *const *dys, int n) {
  PlKey *key = pl_key_ambient();
  for (int i = 0; i < n; i++) {
    PlNode *node;
    uint32_t slot;
    PL_TRY(pl_history_refresh(ys[i]));
    if (!pl_entry_get(ys[i], key, &node, &slot)) return not_tracked(ys[i], i, n);
    PL_TRY(pl_walk_seed_tensor(w, ys[i], dys ? dys[i] : NULL, node, slot, true));
  }
  return PL_OK;
}

/* The walk ends at these leaves, and adds into no other. */
static PlStatus choose_leaves(PlWalk *w, PlTensor *const *xs, int nx) {
  for (int i = 0; i < nx; i++) {
    PlNode *node;
    uint32_t slot;
    PL_TRY(pl_history_current(&xs[i], 1));
    if (!pl_entry_get(xs[i], pl_key_ambient(), &node, &slot))
      PL_FAIL(PL_ERR_STATE, "backward: input %d, %s, does not require a gradient; call requires_grad_() on it before computing", i + 1,
              pl_desc_text(&xs[i]->a));
    if (node->kind != PL_NODE_LEAF)
      PL_FAIL(PL_ERR_STATE, "backward: inputs must be leaves, which hold a .grad; input %d, %s, was computed: use T.grad_of", i + 1,
              pl_desc_text(&xs[i]->a));
    PL_TRY(pl_walk_touch(w, node));
    node->slots[slot].capture = 1;
  }
  return PL_OK;
}

static PlStatus backward(PlTensor *const *ys, PlTensor *const *dys, int n, PlTensor *const *xs, int nx, bool retain_graph,
                         bool create_graph) {
  PlWalk w = {.retain = retain_graph || create_graph, .fill_leaves = true, .narrow = nx > 0, .ys = ys, .ny = n};
  PL_TRY(check_create("backward", create_graph));
  PlStatus s = seed_all(&w, ys, dys, n);
  if (s == PL_OK) s = nx ? choose_leaves(&w, xs, nx) : pl_walk_touch_always(&w, pl_key_ambient());
  if (s != PL_OK) {
    pl_walk_abandon(&w);
    return s;
  }
  return pl_walk_run(&w, pl_key_ambient(), create_graph ? PL_MUTE_NONE : PL_MUTE_ABOVE);
}

PlStatus pl_backward_into(PlTensor *const *ys, PlTensor *const *dys, int n, PlTensor *const *xs, int nx, bool retain_graph,
                          bool create_graph) {
  const PlCalling calling = pl_calls_enter(pl_state.trace);
  if (PL_UNLIKELY(pl_state.trace != NULL)) pl_graph_asked(pl_state.trace, xs, nx);
  const PlStatus s = backward(ys, dys, n, xs, nx, retain_graph, create_graph);
  return pl_calls_leave(
      &calling, s,
      &(PlCallIs){.kind = PL_CALL_BACKWARD, .in = {ys, dys, xs}, .n = {n, n, nx}, .retain = retain_graph, .create = create_graph});
}

PlStatus pl_backward(PlTensor *const *ys, PlTensor *const *dys, int n, bool retain_graph, bool create_graph) {
  return pl_backward_into(ys, dys, n, NULL, 0, retain_graph, create_graph);
}

PlStatus pl_walk_capture(PlWalk *w, PlKey *key, PlTensor *const *xs, int nx, int *same_as) {
  for (int i = 0; i < nx; i++) {
    PlNode *node;
    uint32_t slot;
    same_as[i] = -1;
    PL_TRY(pl_history_current(&xs[i], 1));
    if (!pl_entry_get(xs[i], key, &node, &slot)) continue;
    PL_TRY(pl_slot_whole("grad_of", node, slot));
    PL_TRY(pl_walk_touch(w, node));
    if (node->slots[slot].capture) same_as[i] = (int)node->slots[slot].capture - 1;
    else {
      node->slots[slot].capture = (uint32_t)i + 1;
      if (node->nin) same_as[i] = PL_GOES_ON;
    }
  }
  return PL_OK;
}

static PlStatus grad_of(PlTensor *const *ys, PlTensor *const *dys, int ny, PlTensor *const *xs, int nx, bool retain_graph,
                        bool create_graph, bool allow_unused, PlTensor **out) {
  PL_TRY(check_create("grad_of", create_graph));
  PlWalk w = {.retain = retain_graph || create_graph, .narrow = true, .results = out, .ys = ys, .ny = ny};
  int *same_as = malloc((size_t)(nx ? nx : 1) * sizeof *same_as);
  if (!same_as) PL_FAIL(PL_ERR_OOM, "grad_of: out of memory");
  memset(out, 0, (size_t)nx * sizeof *out);
  for (int i = 0; i < nx; i++) pl_retain(xs[i]); /* a hook may free one */
  PlStatus s = seed_all(&w, ys, dys, ny);
  if (s == PL_OK) s = pl_walk_capture(&w, pl_key_ambient(), xs, nx, same_as);
  if (s == PL_OK) s = pl_walk_run(&w, pl_key_ambient(), create_graph ? PL_MUTE_NONE : PL_MUTE_ABOVE);
  else pl_walk_abandon(&w);
  if (s == PL_OK) {
    const bool records = pl_grad_enable(create_graph || !pl_state.grad_off); /* what is copied keeps its history */
    s = pl_walk_results(out, nx, same_as);
    pl_grad_enable(records);
  }
  for (int i = 0; i < nx && s == PL_OK; i++) {
    if (!out[i] && !allow_unused)
      s = pl_fail(PL_ERR_STATE,
                  "grad_of: input %d, %s, was not used to compute the outputs; "
                  "pass allow_unused=true to get nil for it",
                  i + 1, pl_desc_text(&xs[i]->a));
  }
  free(same_as);
  for (int i = 0; i < nx; i++) pl_tensor_release(xs[i]);
  if (s != PL_OK) pl_release_all(out, nx);
  return s;
}

PlStatus pl_grad_of(PlTensor *const *ys, PlTensor *const *dys, int ny, PlTensor *const *xs, int nx, bool retain_graph, bool create_graph,
                    bool allow_unused, PlTensor **out) {
  const PlCalling calling = pl_calls_enter(pl_state.trace);
  if (PL_UNLIKELY(pl_state.trace != NULL)) pl_graph_asked(pl_state.trace, xs, nx);
  const PlStatus s = grad_of(ys, dys, ny, xs, nx, retain_graph, create_graph, allow_unused, out);
  return pl_calls_leave(&calling, s,
                        &(PlCallIs){.kind = PL_CALL_GRAD_OF,
                                    .in = {ys, dys, xs},
                                    .n = {ny, ny, nx},
                                    .retain = retain_graph,
                                    .create = create_graph,
                                    .unused = allow_unused,
                                    .out = out,
                                    .nout = nx});
}
