/* SPDX-License-Identifier: MIT
 * How much an op computes: what recomputation weighs and T.profile shows. */
#include "engine/call/call.h"

double pl_flops(const PlInfer *c) {
  const PlOp *op = c->op;
  if (op->cls == PL_VIEW || (op->nout && c->out[0].is_view)) return 0;
  if (op->flops) return op->flops(c);
  double n = 0;
  for (int i = 0; i < c->nin; i++)
    if (c->in[i] && (double)c->in[i]->numel > n) n = (double)c->in[i]->numel;
  for (int o = 0; o < op->nout; o++) {
    double m = 1;
    for (int d = 0; d < c->out[o].ndim; d++) m *= (double)c->out[o].shape[d];
    if (c->out[o].dtype != PL_NDTYPE && m > n) n = m;
  }
  return n;
}

double pl_flops_made(const PlOp *op, const PlAttrs *attrs, const PlArray *const *in, int nin, PlArray *const *out) {
  PlDesc d[PL_MAX_OUT] = {0};
  for (int o = 0; o < op->nout; o++) {
    d[o].dtype = out[o] ? (uint8_t)out[o]->dtype : (uint8_t)PL_NDTYPE;
    d[o].ndim = out[o] ? (uint8_t)out[o]->ndim : 0;
    for (int k = 0; k < d[o].ndim; k++) d[o].shape[k] = out[o]->shape[k];
  }
  PlDtype compute = pl_compute_dtype(op, nin, in);
  return pl_flops(&(PlInfer){.op = op, .attrs = attrs, .nin = nin, .in = in, .compute = compute, .out = d});
}
