/* SPDX-License-Identifier: MIT
 * Attention whose heads lie side by side in memory. Its result [B,H,L,D] goes into rows of all heads, transposed and copied by a
 * reshape; the gradients for q, k and v, transposed, are joined into one tensor of all heads. The kernel writes straight to where the
 * copy, or the join, would put it: that node's value is made in attention's turn, attention's results are windows of it, and the
 * node is passed over. Only where nothing writes into any of these values, since they share memory then. A join adds 0 to what it
 * copies: of its zeros the sign may differ. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/graph/passes/heads.h"
#include "engine/graph/run/device_run_internal.h"

PlStatus pl_device_heads(PlDeviceRun *a) {
  const PlGraph *f = a->f;
  uint8_t *apart = calloc((size_t)f->nnodes + 1, 1);
  if (!apart) PL_FAIL(PL_ERR_OOM, "out of memory to run a graph on the device");
  for (int32_t g = 0; g < a->ngroups; g++) memset(apart + a->groups[g].begin, 1, (size_t)(a->groups[g].end - a->groups[g].begin));
  for (int32_t i = 0; i < f->nnodes; i++) apart[i] |= f->nodes[i].nout > 0 && !pl_on_gpu(a->device[f->nodes[i].first]);
  PlStatus s = pl_heads(f, a->last, a->written, apart, a->tail);
  free(apart);
  return s;
}

/* Result o of attention node i: heads from `head` on of the rows of `all` [B,L,heads D] or [B,L,heads,D]. */
static PlStatus window(PlDeviceRun *a, int32_t i, int o, const PlTensor *all, int64_t head) {
  const PlGVal v = a->f->nodes[i].first + o;
  const PlGValue *y = &a->f->vals[v];
  const int64_t D = y->dims[3], row = all->a.numel / (y->dims[0] * y->dims[2]);
  const int64_t strides[4] = {y->dims[2] * row, D, row, 1};
  return pl_tensor_window(&a->vals[v], all, 4, y->dims, strides,
                          (char *)all->a.data + head * D * (int64_t)pl_dtype_size((PlDtype)y->dtype));
}

/* Results of node i as windows of the value of node j; the rest beside it. */
static PlStatus make_room(PlDeviceRun *a, int32_t i, int32_t j, int device, PlArray **out) {
  const PlGraph *f = a->f;
  const PlGNode *n = &f->nodes[i], *m = &f->nodes[j];
  const PlGValue *whole = &f->vals[m->first];
  PL_TRY(pl_tensor_empty_on(&a->vals[m->first], device, (PlDtype)whole->dtype, whole->ndim, whole->dims));
  const PlTensor *all = a->vals[m->first];
  if (m->nin == 1) PL_TRY(window(a, i, 0, all, 0));
  for (int64_t k = 0, head = 0; m->nin == 3 && k < 3; k++) {
    const PlGVal part = f->nodes[f->vals[m->in[k]].node].in[0]; /* what part k of the join was before its dims were swapped */
    PL_TRY(window(a, i, part - n->first, all, head));
    head += f->vals[part].dims[1];
  }
  for (int32_t o = 0; o < n->nout; o++) {
    const PlGVal v = n->first + o;
    const PlGValue *y = &f->vals[v];
    if (!a->vals[v] && y->dtype != PL_NDTYPE) PL_TRY(pl_tensor_empty_on(&a->vals[v], device, (PlDtype)y->dtype, y->ndim, y->dims));
    out[o] = a->vals[v] ? &a->vals[v]->a : NULL;
  }
  return PL_OK;
}

PlStatus pl_device_heads_take(PlDeviceRun *a, int32_t i, bool *taken) {
  const PlGraph *f = a->f;
  const PlGNode *n = &f->nodes[i];
  const PlArray *in[PL_MAX_IN] = {NULL};
  PlArray *out[PL_MAX_OUT] = {NULL};
  const PlTensor *q = a->vals[n->in[f->nodes[a->tail[i]].nin == 3]]; /* of gradients the first input is dy */
  *taken = false;
  if (pl_state.profile) return PL_OK; /* has every op by itself */
  for (int32_t k = 0; k < n->nin; k++) {
    const PlTensor *t = n->in[k] < 0 ? NULL : a->vals[n->in[k]];
    if (t && (t->a.device != q->a.device || t->a.symbolic)) return PL_OK;
    in[k] = t ? &t->a : NULL;
  }
  if (q->a.dtype != f->vals[n->first].dtype || q->a.ndim != 4 || !pl_on_gpu(q->a.device)) return PL_OK;
  PL_TRY(make_room(a, i, a->tail[i], q->a.device, out));
  if (PL_UNLIKELY(a->noting != NULL)) a->noting->settings(NULL);
  const PlkCall call = {.name = n->op->name, .code = n->op->kcode, .nin = n->nin, .nout = n->nout, .in = in, .out = out, .attrs = n->attrs};
  PL_TRY(pl_call_run_device(q->a.device, n->op, &call));
  *taken = true;
  pl_device_run_drop_behind(a, i);
  return PL_OK;
}
