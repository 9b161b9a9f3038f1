/* SPDX-License-Identifier: MIT
 * Moving between devices as an op, so that gradients move back. */
#include "engine/ops/make.h"

#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/tensor/layout.h"

static PlStatus to_device_cpu(const PlkCall *call) { return pl_copy_arrays(call->out[0], call->in[0]); }

static PlStatus to_device_grad(PlMaker *g) {
  PlAttrs a;
  pl_attrs_init(g->op, &a);
  pl_attrs_int(&a, 0, g->in[0]->device);
  g->dx[0] = pl_g_op(g, g->op, 1, &g->dy[0], &a, NULL);
  return g->status;
}
static PlStatus to_device_infer(PlInfer *c) {
  const int64_t to = pl_attr_i(c->attrs, 0);
  if (to < PL_CPU || to >= PL_CUDA + PL_GPUS) PL_FAIL(PL_ERR_ARG, "to_device: there is no device number %lld", (long long)to);
  PL_TRY(pl_infer_same(c));
  if (!pl_state.row_major && pl_channels_last(c->in[0])) c->out[0].layout = PL_CHANNELS_LAST;
  return PL_OK;
}

PL_OP(to_device, .doc = "A copy of x in the memory of another device.", .formula = "dx = dy, moved back", .nin = 1, .nout = 1, .nattr = 1,
      .args = {"x"}, .attrs = {A_INT("device", PL_CPU)}, .cls = PL_OPAQUE, .batch = pl_batch_each,
      .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_POLY | PL_F_MOVES | PL_F_CROSSES | PL_F_KEEPS, .infer = to_device_infer,
      .grad = to_device_grad, .kernel = {[PL_CPU] = to_device_cpu});
