/* SPDX-License-Identifier: MIT
 * Gradients for chosen tensors through an explicit key that stays usable: what the functional API is made of. */
#include <stdlib.h>
#include <string.h>

#include "engine/grad/backward_walk.h"

static PlStatus seed(PlWalk *w, PlKey *k, PlTensor *const *ys, PlTensor *const *dys, int n) {
  for (int i = 0; i < n; i++) {
    PlNode *node;
    uint32_t slot;
    PL_TRY(pl_history_refresh(ys[i]));
    if (pl_entry_get(ys[i], k, &node, &slot)) PL_TRY(pl_walk_seed_tensor(w, ys[i], dys ? dys[i] : NULL, node, slot, false));
  }
  return PL_OK;
}

PlStatus pl_key_pull(PlKey *k, PlTensor *const *ys, PlTensor *const *dys, int ny, PlTensor *const *xs, int nx, PlTensor **out) {
  if (!k->active) PL_FAIL(PL_ERR_STATE, "grad key finalized");
  PlWalk w = {.retain = true, .narrow = true, .results = out};
  memset(out, 0, (size_t)nx * sizeof *out);
  int *same_as = malloc((size_t)(nx ? nx : 1) * sizeof *same_as);
  if (!same_as) PL_FAIL(PL_ERR_OOM, "backward: out of memory");
  for (int i = 0; i < nx; i++) pl_retain(xs[i]);
  pl_key_retain(k);
  PlStatus s = seed(&w, k, ys, dys, ny);
  if (s == PL_OK) s = pl_walk_capture(&w, k, xs, nx, same_as);
  if (s == PL_OK) s = pl_walk_run(&w, k, PL_MUTE_SELF);
  else pl_walk_abandon(&w);
  if (s == PL_OK) s = pl_walk_results(out, nx, same_as);
  free(same_as);
  for (int i = 0; i < nx; i++) pl_tensor_release(xs[i]);
  if (s != PL_OK) pl_release_all(out, nx);
  pl_key_release(k);
  return s;
}
