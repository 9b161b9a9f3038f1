/* SPDX-License-Identifier: MIT
 * Looking for the op whose backward first makes NaN or Inf, while the embedding program watches. */
#include "engine/device/device.h"
#include "engine/grad/backward_walk.h"
#include "engine/grad/gradient_graph.h"
#include "engine/ops/names.h"

/* Does every element count as finite? Through the ops themselves, so any layout and dtype is read right. */
static PlStatus finite(PlTensor *t, bool *yes) {
  PlTensor *each = NULL, *all = NULL;
  *yes = true;
  while (pl_is_batched(t)) t = pl_batched(t)->full;
  if (!pl_is_float((PlDtype)t->a.dtype) || t->a.numel == 0) return PL_OK;
  bool was = pl_grad_enable(false);
  PlStatus s = pl_apply(&pl_op_isfinite, &t, 1, NULL, &each);
  if (s == PL_OK) s = pl_apply(&pl_op_all, &each, 1, NULL, &all);
  PlTensor *here = NULL;
  if (s == PL_OK && !all->a.symbolic) s = pl_tensor_on_host(&here, all);
  if (here) *yes = *(const uint8_t *)here->a.data != 0;
  pl_tensor_release(here);
  pl_tensor_release(each);
  pl_tensor_release(all);
  pl_grad_enable(was);
  return s;
}

PlStatus pl_anomaly_check(const PlNode *n, PlTensor *const *dx, uint32_t count, bool seeded) {
  for (uint32_t i = 0; i < count; i++) {
    bool yes;
    if (!dx[i]) continue;
    PL_TRY(finite(dx[i], &yes));
    if (yes) continue;
    char at[160] = "";
    pl_state.watch->where(n, at, sizeof at);
    if (seeded)
      PL_FAIL(PL_ERR_STATE, "anomaly: the gradient given to backward, %s, for the result of %s%s holds NaN or Inf", pl_desc_text(&dx[i]->a),
              n->name, at);
    PL_FAIL(PL_ERR_STATE, "anomaly: backward of %s%s made NaN or Inf in the gradient of its input %u, %s", n->name, at, i + 1,
            pl_desc_text(&dx[i]->a));
  }
  return PL_OK;
}
