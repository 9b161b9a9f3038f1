/* SPDX-License-Identifier: MIT
 * See share.h. */
#include "engine/tensor/share.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/device.h"
#include "engine/tensor/alloc.h"
#include "engine/tensor/presence.h"
#include "engine/tensor/tensor.h"

struct PlShared {
  atomic_int refs;
  uint8_t owns, device; /* what the block is, and whose */
  void *block;
};

struct PlTensorShare {
  PlShared *shared; /* NULL: the elements are in `small` */
  PlDtype dtype;
  int ndim;
  int64_t shape[PL_MAX_DIM], strides[PL_MAX_DIM], offset; /* in elements from the block's begin */
  size_t nbytes;                                          /* of the block */
  unsigned char small[PL_SMALL];
};

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for handing a tensor to another thread"); }

void pl_shared_release(PlShared *s) {
  if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) > 1) return;
  pl_storage_memory_free(s->owns, s->device, s->block);
  free(s);
}

/* The storage's own block becomes one that can be shared. */
static PlStatus share(PlStorage *st) {
  if (st->shared) return PL_OK;
  PlShared *s = malloc(sizeof *s);
  if (!s) return no_memory();
  atomic_init(&s->refs, 1);
  s->owns = st->owns;
  s->device = st->device;
  s->block = st->data;
  st->shared = s;
  return PL_OK;
}

static PlStatus fill(PlTensorShare *p, PlTensor *t) {
  PlStorage *st = t->storage;
  p->dtype = (PlDtype)t->a.dtype;
  p->ndim = t->a.ndim;
  memcpy(p->shape, t->a.shape, (size_t)p->ndim * sizeof *p->shape);
  if (!st->owns) {
    PlTensor *c = t;
    if (!t->a.contiguous) PL_TRY(pl_tensor_copy(&c, t));
    size_t n = (size_t)c->a.numel * pl_dtype_size(p->dtype);
    if (n <= PL_SMALL) memcpy(p->small, c->a.data, n);
    PlStatus s = n <= PL_SMALL ? PL_OK : fill(p, c); /* an expanded view of few bytes: its copy owns a block */
    if (c != t) pl_tensor_release(c);
    return s;
  }
  PL_TRY(share(st));
  memcpy(p->strides, t->a.strides, (size_t)p->ndim * sizeof *p->strides);
  p->offset = ((char *)t->a.data - (char *)st->data) / (int64_t)pl_dtype_size(p->dtype);
  p->nbytes = st->nbytes;
  p->shared = st->shared;
  atomic_fetch_add_explicit(&p->shared->refs, 1, memory_order_relaxed);
  return PL_OK;
}

PlStatus pl_tensor_share(PlTensorShare **out, PlTensor *t) {
  if (t->a.symbolic) PL_FAIL(PL_ERR_TRACE, "%s is symbolic: it has no values to hand over", pl_desc_text(&t->a));
  PL_TRY(pl_writes(t->storage)); /* the other thread knows nothing of notes */
  PlTensorShare *p = calloc(1, sizeof *p);
  if (!p) return no_memory();
  PlStatus s = fill(p, t);
  if (s != PL_OK) {
    free(p);
    return s;
  }
  *out = p;
  return PL_OK;
}

/* A tensor of all of the block, then the window on it. */
PlStatus pl_tensor_share_open(const PlTensorShare *p, PlTensor **out) {
  if (!p->shared) return pl_tensor_from(out, p->dtype, p->ndim, p->shape, p->small);
  PlTensor *whole;
  const int64_t none = 0;
  PL_TRY(pl_tensor_empty(&whole, p->dtype, 1, &none));
  PlStorage *st = whole->storage;
  st->data = p->shared->block;
  st->nbytes = p->nbytes;
  st->owns = p->shared->owns;
  st->device = p->shared->device;
  st->shared = p->shared;
  atomic_fetch_add_explicit(&p->shared->refs, 1, memory_order_relaxed);
  whole->a.data = st->data;
  whole->a.device = p->shared->device;
  PlStatus s = pl_tensor_view(out, whole, p->ndim, p->shape, p->strides, p->offset);
  pl_tensor_release(whole);
  return s;
}

void pl_tensor_share_release(PlTensorShare *p) {
  if (!p) return;
  if (p->shared) pl_shared_release(p->shared);
  free(p);
}
