/* SPDX-License-Identifier: MIT
 * Memory formats as an op, so that gradients pass: x:contiguous("channels_last"), x:to{memory_format = …}. */
#include "engine/tensor/layout.h"

#include "engine/call/thread_state.h"
#include "engine/ops/shape/view.h"
#include "kernels/join.h"

static PlStatus to_layout_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  const int64_t format = pl_attr_i(c->attrs, 0);
  if (format > 0 && x->ndim != format + 3)
    PL_FAIL(PL_ERR_SHAPE, "contiguous: %s has %d dims; \"%s\" is for tensors of %d, [%s]", pl_desc_text(x), x->ndim,
            format == 1 ? "channels_last" : "channels_last_3d", (int)format + 3, format == 1 ? "N,C,H,W" : "N,C,D,H,W");
  if (pl_attr_i(c->attrs, 1) == 0 && (format > 0 ? pl_is_channels_last(x) : x->contiguous)) {
    pl_view_same(c, &c->out[0]);
    return PL_OK;
  }
  PL_TRY(pl_infer_same(c));
  if (!pl_state.row_major && format > 0) c->out[0].layout = PL_CHANNELS_LAST;
  return PL_OK;
}
static PlStatus to_layout_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = g->dy[0];
  return g->status;
}

/* No member of fused kernels, whose results have the layout of their arguments. */
PL_OP(to_layout,
      .doc = "x itself if its elements are in memory as the format says, else a copy whose are. exact: where sizes of 1 leave "
             "it open, the strides must say so too.",
      .nin = 1, .nout = 1, .nattr = 2, .args = {"x"},
      .attrs = {A_ENUM("memory_format", "contiguous|channels_last|channels_last_3d", 0), A_BOOL("exact", 0)}, .cls = PL_VIEW,
      .flags = PL_F_LINEAR | PL_F_POLY | PL_F_INTERNAL, .infer = to_layout_infer, .grad = to_layout_grad, PL_KERNEL(copy), );
