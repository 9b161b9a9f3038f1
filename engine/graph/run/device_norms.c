/* SPDX-License-Identifier: MIT
 * Batch norms with what is behind them: relu(batch_norm(x)) and relu(batch_norm(x) + r), where nobody else reads what is between, are
 * one pass over images that are channels last, with the roundings of the nodes. The norm makes the last node's value in its own turn;
 * the others are passed over. In other layouts, and where r is not there in time, nodes run one by one. */
#include "engine/device/device.h"
#include "engine/graph/passes/norm_tails.h"
#include "engine/graph/run/device_run_internal.h"
#include "engine/tensor/layout.h"
#include "kernels/norm.h"

/* Are there images whose channels are last? */
static bool any_last(const PlDeviceRun *a) {
  for (PlGVal v = 0; v < a->f->nvals; v++)
    if (a->f->vals[v].kind != PL_FV_NODE && a->vals[v] && !a->vals[v]->a.contiguous && pl_channels_last(&a->vals[v]->a)) return true;
  return false;
}

PlStatus pl_device_norms(PlDeviceRun *a) {
  for (int32_t i = 0; i < a->f->nnodes; i++) a->tail[i] = -1;
  return a->table && any_last(a) ? pl_norm_tails(a->f, a->last, a->tail) : PL_OK;
}

static bool fits(const PlTensor *t, const PlTensor *x) {
  return t->a.device == x->a.device && t->a.dtype == x->a.dtype && pl_is_channels_last(&t->a) && pl_shape_equal(&t->a, &x->a) &&
         (uintptr_t)t->a.data % 16 == 0;
}

PlStatus pl_device_norms_take(PlDeviceRun *a, int32_t i, bool *taken) {
  const PlGraph *f = a->f;
  const PlGNode *n = &f->nodes[i];
  const int32_t end = a->tail[i];
  *taken = false;
  if (end < 0) return PL_OK;
  if (n->nout == 1) { /* what the norm has made */
    *taken = a->vals[f->nodes[end].first] != NULL;
    if (*taken) pl_device_run_drop_behind(a, i);
    return PL_OK;
  }
  if (n->op->cls == PL_HEAVY) return pl_device_heads_take(a, i, taken);
  const PlArray *in[6] = {NULL};
  PlArray *out[3] = {NULL};
  const PlTensor *x = a->vals[n->in[0]];
  const int32_t sum = f->vals[n->first].node == i ? a->last[n->first] : -1;
  if (n->nin > 5 || !pl_on_gpu(x->a.device) || x->a.contiguous || x->a.dtype != f->vals[n->first].dtype || !fits(x, x)) return PL_OK;
  if (x->a.shape[1] * (int64_t)pl_dtype_size((PlDtype)x->a.dtype) % 16 || x->a.numel == 0) return PL_OK;
  for (int32_t k = 0; k < n->nin; k++) {
    const PlTensor *t = n->in[k] < 0 ? NULL : a->vals[n->in[k]];
    if (t && k && (!t->a.contiguous || t->a.device != x->a.device)) return PL_OK;
    in[k] = t ? &t->a : NULL;
  }
  if (sum != end) {
    PL_TRY(pl_device_casts_before(a, sum, sum + 1));
    const PlTensor *r = a->vals[f->nodes[sum].in[f->nodes[sum].in[0] == n->first]];
    if (!r || !fits(r, x)) return PL_OK;
    in[5] = &r->a;
  }
  for (int32_t o = 0; o < 3; o++) {
    const PlGVal v = o ? n->first + o : f->nodes[end].first;
    const PlGValue *val = &f->vals[v];
    PL_TRY(pl_tensor_empty_as(&a->vals[v], o ? PL_ROW_MAJOR : PL_CHANNELS_LAST, x->a.device, (PlDtype)val->dtype, val->ndim, val->dims));
    out[o] = &a->vals[v]->a;
  }
  const PlkCall call = {.name = n->op->name, .code = PLK_NORM_RELU, .nin = 6, .nout = 3, .in = in, .out = out, .attrs = n->attrs};
  PL_TRY(pl_call_run_device(x->a.device, n->op, &call));
  *taken = true;
  pl_device_run_drop_behind(a, i);
  return PL_OK;
}
