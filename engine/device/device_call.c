/* SPDX-License-Identifier: MIT
 * One op call on the device: where it computes, what has to be moved there first, and how it runs where the plug-in has no
 * kernel of the op's family: on the CPU, with copies there and back and one warning for each op. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/call.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/ops/names.h"
#include "engine/tensor/layout.h"
#include "engine/tensor/presence.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

/* ---- where ------------------------------------------------------------------------------------------------------ */

static bool gives_sizes(const PlOp *op, int i) { return i < PL_MAX_IN && ((op->sizes >> i) & 1); }

static const char *arg_name(const PlOp *op, int i, char *room, size_t size) {
  if (op->nin != PL_VARIADIC && op->args[i]) return op->args[i];
  snprintf(room, size, "%s[%d]", op->args[0] ? op->args[0] : "tensors", i + 1);
  return room;
}

static PlStatus apart(const PlCall *c, int here, int there) {
  char a[32], b[32];
  const char *home = pl_device_name(c->in[here]->a.device);
  PL_FAIL(PL_ERR_ARG, "%s: %s is %s on %s, %s is %s on %s; tensors of one operation must be on one device: move one, %s:to(\"%s\")",
          c->op->name, arg_name(c->op, here, a, sizeof a), pl_desc_text(&c->in[here]->a), home, arg_name(c->op, there, b, sizeof b),
          pl_desc_text(&c->in[there]->a), pl_device_name(c->in[there]->a.device), arg_name(c->op, there, b, sizeof b), home);
}

PlStatus pl_call_place(PlCall *c) {
  const PlOp *op = c->op;
  int on = -1, arrays = 0;
  for (int i = 0; i < c->nin; i++) {
    if (!c->in[i]) continue;
    if (pl_on_gpu(c->in[i]->a.device)) on = on < 0 ? i : on;
    else if (!c->in[i]->a.weak && !gives_sizes(op, i)) arrays++;
  }
  if (op->flags & PL_F_MOVES) {
    c->device = (uint8_t)pl_attr_i(c->attrs, 0);
    return PL_OK;
  }
  if (op->flags & PL_F_SIZES) {
    c->device = PL_CPU;
    return PL_OK;
  }
  c->device = on >= 0 ? c->in[on]->a.device : op->cls == PL_CREATION && arrays == 0 ? pl_state.device : PL_CPU;
  if (on < 0 || (op->flags & PL_F_CROSSES)) return PL_OK;
  for (int i = 0; i < c->nin; i++) {
    const PlTensor *t = c->in[i];
    if (!t || t->a.device == c->device) continue;
    if (pl_on_gpu(t->a.device)) return apart(c, on, i);
    if (t->a.weak || t->a.ndim == 0 || gives_sizes(op, i)) continue;
    if (op->cls == PL_INDEXING && i > 0 && !pl_is_float((PlDtype)t->a.dtype)) continue; /* indices and masks are brought */
    return apart(c, on, i);
  }
  if (c->in[0] && c->in[0]->a.device == PL_CPU && (op->flags & PL_F_MUTATES)) return apart(c, on, 0);
  return PL_OK;
}

/* Pointwise kernels read 0-d CPU arrays when they are launched. */
PlStatus pl_call_bring(PlCall *c) {
  const PlOp *op = c->op;
  if (c->device == PL_CPU || (op->flags & PL_F_CROSSES) || pl_state.trace) return PL_OK;
  for (int i = 0; i < c->nin; i++) {
    PlTensor *t = c->in[i], *moved;
    if (!t || pl_on_gpu(t->a.device) || gives_sizes(op, i) || (op->cls == PL_POINTWISE && t->a.ndim == 0)) continue;
    PL_TRY(pl_tensor_moved(&moved, t, c->device));
    moved->a.weak = t->a.weak;
    if (c->made[i]) pl_tensor_release(t);
    c->in[i] = moved;
    c->made[i] = true;
  }
  return PL_OK;
}

PlStatus pl_call_infer_device(PlCall *c) {
  const PlOp *op = c->op;
  PlTensor *copies[PL_MAX_IN] = {NULL};
  PlStatus s = PL_OK;
  const PlArray *arr[PL_MAX_IN];
  if (op->reads_values && c->nin <= PL_MAX_IN) {
    for (int i = 0; i < c->nin && s == PL_OK; i++) {
      arr[i] = c->arr[i];
      if (!c->in[i] || !((op->reads_values >> i) & 1) || c->in[i]->a.device == PL_CPU || c->in[i]->a.symbolic) continue;
      s = pl_tensor_on_host(&copies[i], c->in[i]);
      if (s == PL_OK) arr[i] = &copies[i]->a;
    }
  }
  PlInfer f = {.op = op, .attrs = c->attrs, .nin = c->nin, .in = op->reads_values ? arr : c->arr, .compute = c->compute, .out = c->desc};
  if (s == PL_OK) s = op->infer(&f);
  if (s == PL_OK) pl_layout_follow(c);
  for (int i = 0; i < PL_MAX_IN; i++) pl_tensor_release(copies[i]);
  return s;
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

/* Family numbers by op, found once: 0 not asked yet, 1 none, else number + 2. */
static _Atomic int16_t family_of[PL_NOP];

static int family(const PlOp *op) {
  int id = pl_op_id(op);
  if (id < 0) return -1;
  int16_t known = atomic_load_explicit(&family_of[id], memory_order_relaxed);
  if (known == 0) {
    const PlDeviceTable *t = pl_device_open();
    if (!t) return -1;
    int found = t->find(op->family ? op->family : op->name);
    known = (int16_t)(found < 0 ? 1 : found + 2);
    atomic_store_explicit(&family_of[id], known, memory_order_relaxed);
  }
  return known == 1 ? -1 : known - 2;
}

/* Its kernel calls families (engine/device/dispatch.h). */
static bool picks_itself(const PlOp *op) { return op->family && !op->family[0]; }

bool pl_op_on_device(const PlOp *op) { return picks_itself(op) || family(op) >= 0; }

static PlStatus launch(const PlDeviceTable *t, int device, int id, const PlkCall *call) {
  if (PL_UNLIKELY(pl_state.profile != NULL)) pl_state.profile->launch(device);
  return t->run(pl_gpu_index(device), id, call);
}

PlStatus pl_device_family(int device, const char *name, const PlkCall *call) {
  const PlDeviceTable *t = NULL;
  PL_TRY(pl_device(&t));
  int id = t->find(name);
  if (id < 0) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: no kernel %s for device cuda", call->name, name);
  return launch(t, device, id, call);
}

static PlStatus alone(const PlArray *a, PlTensor **out) { /* a host copy of a device array, contiguous */
  PlTensor *h;
  PL_TRY(pl_tensor_empty(&h, (PlDtype)a->dtype, a->ndim, a->shape));
  PlStatus s = pl_copy_arrays(&h->a, a);
  if (s != PL_OK) {
    pl_tensor_release(h);
    return s;
  }
  *out = h;
  return PL_OK;
}

static void warn_once(const PlOp *op) {
  static _Atomic uint8_t warned[PL_NOP];
  int id = pl_op_id(op);
  if (id < 0 || atomic_exchange_explicit(&warned[id], 1, memory_order_relaxed)) return;
  const char *quiet = getenv("PERILUNE_CUDA_QUIET");
  if (quiet && *quiet && strcmp(quiet, "0") != 0) return;
  fprintf(stderr, "perilune: %s has no CUDA kernel: it runs on the CPU, with copies there and back (said once)\n", op->name);
}

typedef struct Mirror { /* device arrays and their host copies, an array met twice being one */
  const PlArray *from;
  PlTensor *host;
} Mirror;

static PlStatus mirror(Mirror *m, int *n, const PlArray *a, PlArray **out) {
  for (int i = 0; i < *n; i++)
    if (m[i].from->data == a->data && m[i].from->dtype == a->dtype && pl_shape_equal(m[i].from, a) &&
        memcmp(m[i].from->strides, a->strides, a->ndim * sizeof *a->strides) == 0) {
      *out = &m[i].host->a;
      return PL_OK;
    }
  PL_TRY(alone(a, &m[*n].host));
  m[*n].from = a;
  *out = &m[(*n)++].host->a;
  return PL_OK;
}

static PlStatus through_host(const PlOp *op, const PlkCall *call) {
  if (!op->kernel[PL_CPU]) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: no kernel for device cuda", op->name);
  size_t n = (size_t)(call->nin + call->nout) + 1;
  Mirror *m = calloc(n, sizeof *m);
  const PlArray **in = calloc(n, sizeof *in);
  PlArray *out[PL_MAX_OUT] = {NULL}, *a;
  int count = 0;
  PlStatus s = m && in ? PL_OK : pl_fail(PL_ERR_OOM, "%s: out of memory", op->name);
  if (s == PL_OK) warn_once(op);
  for (int i = 0; i < call->nin && s == PL_OK; i++) {
    in[i] = call->in[i];
    if (!in[i] || in[i]->device == PL_CPU) continue;
    s = mirror(m, &count, in[i], &a);
    in[i] = a;
  }
  for (int o = 0; o < call->nout && s == PL_OK; o++)
    if (call->out[o]) s = mirror(m, &count, call->out[o], &out[o]);
  if (s == PL_OK) {
    PlkCall k = *call;
    k.in = in;
    k.out = out;
    s = op->kernel[PL_CPU](&k);
  }
  bool all = (op->flags & PL_F_MUTATES) && op->nin == PL_VARIADIC; /* such an op may write to any of its inputs */
  for (int i = 0; i < count && s == PL_OK; i++) {
    bool written = all;
    for (int o = 0; o < call->nout && !written; o++) written = out[o] == &m[i].host->a;
    PlArray to = *m[i].from;
    if (written) s = pl_copy_arrays(&to, &m[i].host->a);
  }
  for (int i = 0; i < count; i++) pl_tensor_release(m[i].host);
  free(m);
  free((void *)in);
  return s;
}

static PlStatus run_on(int device, const PlOp *op, const PlkCall *call);
static PlStatus run_turned(const PlOp *op, const PlkCall *call) { return run_on(call->out[0]->device, op, call); }

PlStatus pl_call_run_device(int device, const PlOp *op, const PlkCall *call) {
  const bool turns = pl_op_each(op);
  return turns && call->nout == 1 && call->out[0] && !call->out[0]->contiguous ? pl_layout_turned(op, call, run_turned)
                                                                               : run_on(device, op, call);
}

static PlStatus run_on(int device, const PlOp *op, const PlkCall *call) {
  if (op->flags & PL_F_CROSSES) {
    const PlArray *from = call->in[call->nin - 1];
    return pl_copy_arrays(call->out[0], from);
  }
  if (picks_itself(op)) return op->kernel[PL_CPU](call);
  int id = family(op);
  if (id < 0) return through_host(op, call);
  return launch(pl_device_open(), device, id, call);
}

/* ---- copies ---------------------------------------------------------------------------------------------------------- */

static PlStatus elementwise_there(const PlOp *op, const PlkCall *call) {
  const PlDeviceTable *t = NULL;
  (void)op;
  PL_TRY(pl_device(&t));
  int id = t->find("elementwise");
  if (id < 0) PL_FAIL(PL_ERR_UNSUPPORTED, "copy: no kernel for device cuda");
  return launch(t, call->out[0]->device, id, call);
}

static PlStatus elementwise(PlArray *dst, const PlArray *src, int device) {
  static const PlAttrs none;
  const PlArray *in[1] = {src};
  PlArray *out[1] = {dst};
  PlkCall call = {.name = "copy",
                  .code = src->dtype == dst->dtype ? PLK_EW_COPY : PLK_EW_CAST,
                  .nin = 1,
                  .nout = 1,
                  .in = in,
                  .out = out,
                  .attrs = &none};
  if (device == PL_CPU) return plk_cpu_elementwise(&call);
  return pl_layout_turned(&pl_op_clone, &call, elementwise_there);
}

/* The bytes of two dense arrays of one dtype and size, in one order. */
static PlStatus across(PlArray *dst, const PlArray *src) {
  const PlDeviceTable *t = NULL;
  PL_TRY(pl_device(&t));
  size_t n = (size_t)src->numel * pl_dtype_size((PlDtype)src->dtype);
  if (dst->device == PL_CPU) return t->download(pl_gpu_index(src->device), dst->data, src->data, n);
  if (src->device == PL_CPU) return t->upload(pl_gpu_index(dst->device), dst->data, src->data, n);
  return t->copy_peer(pl_gpu_index(dst->device), dst->data, pl_gpu_index(src->device), src->data, n);
}

static bool dense(const PlArray *a) { return a->contiguous || a->numel <= 1; }
/* One order of elements, without gaps. */
static bool alike(const PlArray *a, const PlArray *b) {
  if (dense(a) && dense(b)) return true;
  return !dense(a) && !dense(b) && pl_shape_equal(a, b) && pl_channels_last(a) && pl_channels_last(b);
}

/* Over the border only dense bytes of one dtype go: what is strided, broadcast or cast is made so on its own side first,
 * on the side where fewer bytes result. */
PlStatus pl_copy_arrays(PlArray *dst, const PlArray *src) {
  if (dst->device == src->device) return elementwise(dst, src, dst->device);
  if (dst->numel == 0) return PL_OK;
  PlTensor *packed = NULL, *landed = NULL;
  PlStatus s = PL_OK;
  if (dst->dtype == src->dtype && dst->numel == src->numel && alike(dst, src)) return across(dst, src);
  const PlArray *from = src;
  if (!dense(src)) {
    s = pl_tensor_empty_on(&packed, src->device, (PlDtype)src->dtype, src->ndim, src->shape);
    if (s == PL_OK) s = elementwise(&packed->a, src, src->device);
    if (s == PL_OK) from = &packed->a;
  }
  if (s == PL_OK && dense(dst) && dst->dtype == src->dtype && dst->numel == src->numel) s = across(dst, from);
  else if (s == PL_OK) {
    s = pl_tensor_empty_on(&landed, dst->device, (PlDtype)src->dtype, src->ndim, src->shape);
    if (s == PL_OK) s = across(&landed->a, from);
    if (s == PL_OK) s = elementwise(dst, &landed->a, dst->device);
  }
  pl_tensor_release(packed);
  pl_tensor_release(landed);
  return s;
}

PlStatus pl_tensor_moved(PlTensor **out, PlTensor *t, int device) {
  PlTensor *c;
  PL_TRY(pl_tensor_empty_on(&c, device, (PlDtype)t->a.dtype, t->a.ndim, t->a.shape));
  PlStatus s = pl_writes(t->storage); /* the copy may allocate */
  if (s == PL_OK) s = pl_copy_arrays(&c->a, &t->a);
  if (s != PL_OK) {
    pl_tensor_release(c);
    return s;
  }
  *out = c;
  return PL_OK;
}

PlStatus pl_tensor_on_host(PlTensor **out, PlTensor *t) {
  if (PL_LIKELY(t->a.device == PL_CPU)) {
    PL_TRY(pl_present(t)); /* to be looked at */
    *out = pl_retain(t);
    return PL_OK;
  }
  return pl_tensor_moved(out, t, PL_CPU);
}

PlStatus pl_tensor_full_on(PlTensor **out, int device, PlDtype dtype, int ndim, const int64_t *shape, double value) {
  PlTensor *here;
  PL_TRY(pl_tensor_full(&here, dtype, ndim, shape, value));
  if (device == PL_CPU) {
    *out = here;
    return PL_OK;
  }
  PlStatus s = pl_tensor_moved(out, here, device);
  pl_tensor_release(here);
  return s;
}
