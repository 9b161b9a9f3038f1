/* SPDX-License-Identifier: MIT
 * Tensors in pinned memory of the host, and copies from and to GPUs that nobody waits for. */
#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/tensor/alloc.h"
#include "engine/tensor/presence.h"
#include "engine/tensor/tensor.h"

void pl_device_pinned_free(void *p) {
  const PlDeviceTable *t = pl_device_open();
  if (t) t->host_free(p);
}

PlStatus pl_tensor_empty_pinned(PlTensor **out, PlDtype dtype, int ndim, const int64_t *shape) {
  const PlDeviceTable *t = NULL;
  int64_t numel;
  size_t nbytes;
  void *data;
  PL_TRY(pl_device(&t));
  PL_TRY(pl_count(ndim, shape, dtype, &numel, &nbytes));
  PL_TRY(t->host_alloc(pl_state.gpu, nbytes ? nbytes : 1, &data));
  __atomic_fetch_add(&pl_device_handed_out, (int64_t)nbytes, __ATOMIC_RELAXED); /* the collector is to see it */
  return pl_tensor_over(out, data, PL_OWNS_PINNED, PL_CPU, dtype, ndim, shape);
}

static PlStatus up(PlTensor **out, const PlTensor *t, int device, size_t n) {
  void *data;
  PL_TRY(pl_writes(t->storage)); /* it stays where it is while it is copied */
  PL_TRY(pl_device_open()->upload_beside(pl_gpu_index(device), &data, t->a.data, n));
  __atomic_fetch_add(&pl_device_handed_out, (int64_t)n, __ATOMIC_RELAXED);
  return pl_tensor_over(out, data, PL_OWNS_DEVICE, device, (PlDtype)t->a.dtype, t->a.ndim, t->a.shape);
}

static PlStatus down(PlTensor **out, const PlTensor *t, size_t n) {
  PL_TRY(pl_tensor_empty_pinned(out, (PlDtype)t->a.dtype, t->a.ndim, t->a.shape));
  PlStatus s = pl_device_open()->download_later(pl_gpu_index(t->a.device), (*out)->a.data, t->a.data, n);
  if (s != PL_OK) pl_tensor_release(*out);
  return s;
}

PlStatus pl_tensor_moved_later(PlTensor **out, PlTensor *t, int device, bool *done) {
  const size_t n = (size_t)t->a.numel * pl_dtype_size((PlDtype)t->a.dtype);
  const bool to = t->a.device == PL_CPU && pl_on_gpu(device), from = pl_on_gpu(t->a.device) && device == PL_CPU;
  *done = false;
  if (n == 0 || !t->a.contiguous || t->a.symbolic || t->node || t->more || pl_state.trace || pl_state.batch_busy) return PL_OK;
  if (!from && !(to && t->storage->owns == PL_OWNS_PINNED)) return PL_OK;
  PL_TRY(to ? up(out, t, device, n) : down(out, t, n));
  *done = true;
  return PL_OK;
}
