/* SPDX-License-Identifier: MIT
 * Handles and storages: making, viewing, copying, releasing. See tensor.h; single elements are in element.c. */
#include "engine/tensor/tensor.h"

#include "engine/device/device.h"

#include <stdio.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/tensor/alloc.h"
#include "engine/tensor/file_map.h"
#include "engine/tensor/hooks.h"
#include "engine/tensor/presence.h"
#include "engine/tensor/share.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

PlStatus pl_count(int ndim, const int64_t *shape, PlDtype dtype, int64_t *numel, size_t *nbytes) {
  if (ndim < 0 || ndim > PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "a tensor has at most %d dimensions, not %d", PL_MAX_DIM, ndim);
  int64_t n = 1, bytes;
  bool over = false, zero = false;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] < 0) PL_FAIL(PL_ERR_SHAPE, "size %lld of dimension %d is negative", (long long)shape[d], d + 1);
    zero |= shape[d] == 0;
    over |= __builtin_mul_overflow(n, shape[d] ? shape[d] : 1, &n);
  }
  over |= __builtin_mul_overflow(n, (int64_t)pl_dtype_size(dtype), &bytes) || bytes > INT64_MAX / 2;
  if (over) PL_FAIL(PL_ERR_SHAPE, "sizes multiply to more bytes than memory can address");
  *numel = zero ? 0 : n;
  *nbytes = zero ? 0 : (size_t)bytes;
  return PL_OK;
}

/* A piece with handle and dims; with `extra` bytes behind. */
static PlTensor *new_handle(PlDtype dtype, int ndim, size_t extra) {
  size_t size = pl_round16(sizeof(PlTensor) + 2 * (size_t)ndim * sizeof(int64_t)) + extra;
  PlTensor *t = pl_pool_get(size);
  if (PL_UNLIKELY(!t)) return NULL;
  t->a.shape = t->dims;
  t->a.strides = t->dims + ndim;
  t->a.dtype = (uint8_t)dtype;
  t->a.ndim = (uint8_t)ndim;
  t->a.device = PL_CPU;
  t->a.contiguous = 1;
  t->a.weak = 0;
  t->a.symbolic = 0;
  t->refs = 1;
  t->flags = 0;
  t->piece = (uint16_t)(size / PL_POOL_STEP);
  t->storage = NULL;
  t->node = NULL;
  t->more = NULL;
  t->slot = 0;
  t->history = 0;
  t->base = NULL;
  t->boxes = 0;
  return t;
}

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a tensor handle"); }

static PlStatus make(PlTensor **out, PlDtype dtype, int ndim, const int64_t *shape, int64_t numel, size_t nbytes) {
  if (PL_UNLIKELY(pl_reclaim_tested) && pl_reclaim) (void)pl_reclaim();
  bool small = nbytes <= PL_SMALL;
  size_t head = pl_round16(sizeof(PlStorage));
  PlTensor *t = new_handle(dtype, ndim, head + (small ? pl_round16(nbytes) : 0));
  if (PL_UNLIKELY(!t)) return no_memory();
  size_t size = (size_t)t->piece * PL_POOL_STEP;
  PlStorage *s = (PlStorage *)(void *)((char *)t + size - head - (small ? pl_round16(nbytes) : 0));
  *s = (PlStorage){
      .refs = 1, .piece = (uint32_t)size, .block = t, .nbytes = nbytes, .owns = small ? PL_OWNS_NOTHING : PL_OWNS_BLOCK, .stamp = pl_clock};
  if (small) s->data = (char *)s + head;
  else {
    PlStatus st = pl_block_alloc(nbytes, &s->data);
    if (st != PL_OK) {
      pl_pool_put(t, size);
      return st;
    }
  }
  t->flags = PL_T_EMBEDDED;
  t->storage = s;
  t->a.data = s->data;
  t->a.numel = numel;
  int64_t stride = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    t->dims[d] = shape[d];
    t->dims[ndim + d] = stride;
    stride *= shape[d] ? shape[d] : 1;
  }
  *out = t;
  return PL_OK;
}

void pl_storage_memory_free(uint8_t owns, int device, void *data) {
  if (owns == PL_OWNS_DEVICE) pl_device_storage_free(device, data);
  else if (owns == PL_OWNS_PINNED) pl_device_pinned_free(data);
  else if (owns == PL_OWNS_MAP) pl_file_unmap(data);
  else pl_block_free(data);
}

PlStatus pl_tensor_over(PlTensor **out, void *data, uint8_t owns, int device, PlDtype dtype, int ndim, const int64_t *shape) {
  int64_t numel;
  size_t nbytes;
  PlStatus st = pl_count(ndim, shape, dtype, &numel, &nbytes);
  PlTensor *t = st == PL_OK ? new_handle(dtype, ndim, pl_round16(sizeof(PlStorage))) : NULL;
  if (PL_UNLIKELY(!t)) {
    pl_storage_memory_free(owns, device, data);
    return st == PL_OK ? no_memory() : st;
  }
  size_t size = (size_t)t->piece * PL_POOL_STEP;
  PlStorage *s = (PlStorage *)(void *)((char *)t + size - pl_round16(sizeof(PlStorage)));
  *s = (PlStorage){.refs = 1,
                   .piece = (uint32_t)size,
                   .block = t,
                   .nbytes = nbytes,
                   .owns = owns,
                   .device = (uint8_t)device,
                   .data = data,
                   .stamp = pl_clock};
  t->flags = PL_T_EMBEDDED;
  t->storage = s;
  t->a.device = (uint8_t)device;
  t->a.data = data;
  t->a.numel = numel;
  int64_t stride = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    t->dims[d] = shape[d];
    t->dims[ndim + d] = stride;
    stride *= shape[d] ? shape[d] : 1;
  }
  *out = t;
  return PL_OK;
}

PlStatus pl_tensor_empty_on(PlTensor **out, int device, PlDtype dtype, int ndim, const int64_t *shape) {
  if (device == PL_CPU) return pl_tensor_empty(out, dtype, ndim, shape);
  int64_t numel;
  size_t nbytes;
  void *data;
  PL_TRY(pl_count(ndim, shape, dtype, &numel, &nbytes));
  PL_TRY(pl_device_storage(device, nbytes, &data));
  return pl_tensor_over(out, data, PL_OWNS_DEVICE, device, dtype, ndim, shape);
}

PlStatus pl_tensor_empty(PlTensor **out, PlDtype dtype, int ndim, const int64_t *shape) {
  int64_t numel;
  size_t nbytes;
  PL_TRY(pl_count(ndim, shape, dtype, &numel, &nbytes));
  return make(out, dtype, ndim, shape, numel, nbytes);
}

/* t's element count was checked for its own dtype; wider ones stay far from overflow only if it is small. */
PlStatus pl_tensor_like(PlTensor **out, const PlTensor *t, PlDtype dtype) {
  if (PL_UNLIKELY(t->a.device != PL_CPU)) return pl_tensor_empty_on(out, t->a.device, dtype, t->a.ndim, t->a.shape);
  size_t few = (size_t)t->a.numel * pl_dtype_size(dtype);
  if (t->a.contiguous && (uint64_t)t->a.numel <= PL_SMALL && few <= PL_SMALL) { /* what small models make most */
    PlTensor *y = pl_tensor_small_like(t, dtype, few);
    if (PL_UNLIKELY(!y)) return no_memory();
    *out = y;
    return PL_OK;
  }
  if (PL_UNLIKELY(t->a.numel > INT64_MAX / 32)) return pl_tensor_empty(out, dtype, t->a.ndim, t->a.shape);
  return make(out, dtype, t->a.ndim, t->a.shape, t->a.numel, (size_t)t->a.numel * pl_dtype_size(dtype));
}

/* Apart, so that the usual way saves no registers for it. */
static PL_NOINLINE void special_release(PlStorage *s) {
  if (s->owns == PL_OWNS_REMAT) {
    pl_remat_end(s);
    return;
  }
  if (s->owns == PL_OWNS_SYMBOLIC) pl_sym_storage_end(s);
  else if (s->shared) pl_shared_release(s->shared);
  else pl_storage_memory_free(s->owns, s->device, s->data);
  pl_pool_put(s->block, s->piece);
}
static PL_NOINLINE void leave_lists(PlTensor *t) {
  if (t->flags & PL_T_BATCHED) pl_batch_drop(t);
  if (t->flags & PL_T_LISTED) pl_remat_unlist(t);
}

static inline __attribute__((always_inline)) void storage_release(PlStorage *s) { /* with every tensor */
  if (--s->refs) return;
  if (s->owns) {
    if (PL_UNLIKELY(s->owns >= PL_OWNS_SYMBOLIC)) {
      special_release(s);
      return;
    } else if (PL_LIKELY(!s->shared)) pl_block_free(s->data);
    else pl_shared_release(s->shared);
  }
  pl_pool_put(s->block, s->piece);
}

void pl_tensor_retain(PlTensor *t) { t->refs++; }

void pl_tensor_release(PlTensor *t) {
  if (!t || --t->refs) return;
  if (PL_UNLIKELY(t->node || t->more)) pl_entries_drop(t);
  PlStorage *s = t->storage;
  PlTensor *base = t->base;
  if (!(t->flags & PL_T_EMBEDDED)) {
    if (PL_UNLIKELY(t->flags & (PL_T_BATCHED | PL_T_LISTED))) leave_lists(t);
    pl_pool_put(t, (size_t)t->piece * PL_POOL_STEP);
  }
  storage_release(s);
  if (PL_UNLIKELY(base != NULL)) pl_tensor_release(base); /* which has none itself */
}

void pl_tensor_leave(PlTensor *t) {
  PlTensor *base = t->base;
  t->base = NULL;
  pl_tensor_release(base);
}

void pl_tensor_set_contiguous(PlTensor *t) {
  int64_t stride = 1;
  t->a.contiguous = 1;
  if (t->a.numel == 0) return;
  for (int d = t->a.ndim - 1; d >= 0; d--) {
    if (t->a.shape[d] != 1 && t->a.strides[d] != stride) {
      t->a.contiguous = 0;
      return;
    }
    stride *= t->a.shape[d];
  }
}

PlStatus pl_tensor_window(PlTensor **out, const PlTensor *t, int ndim, const int64_t *shape, const int64_t *strides, void *data) {
  return pl_tensor_window_extra(out, t, ndim, shape, strides, data, 0);
}

PlStatus pl_tensor_window_extra(PlTensor **out, const PlTensor *t, int ndim, const int64_t *shape, const int64_t *strides, void *data,
                                size_t extra) {
  const bool noted = t->storage->owns == PL_OWNS_REMAT;
  PlTensor *v = new_handle((PlDtype)t->a.dtype, ndim, PL_UNLIKELY(noted) ? extra + sizeof(PlListed) : extra);
  if (PL_UNLIKELY(!v)) return no_memory();
  int64_t n = 1;
  for (int d = 0; d < ndim; d++) {
    v->dims[d] = shape[d];
    v->dims[ndim + d] = strides[d];
    n *= shape[d];
  }
  v->a.device = t->a.device;
  v->a.weak = t->a.weak;
  v->a.symbolic = t->a.symbolic;
  v->a.data = data;
  v->a.numel = n;
  v->storage = t->storage;
  v->storage->refs++;
  pl_tensor_set_contiguous(v);
  if (PL_UNLIKELY(noted)) pl_remat_list(v);
  *out = v;
  return PL_OK;
}

PlStatus pl_tensor_handle(PlTensor **out, const PlArray *type, PlStorage *s) {
  const bool noted = s->owns == PL_OWNS_REMAT;
  PlTensor *t = new_handle((PlDtype)type->dtype, type->ndim, noted ? sizeof(PlListed) : 0);
  if (!t) {
    storage_release(s);
    return no_memory();
  }
  for (int d = 0; d < type->ndim; d++) {
    t->dims[d] = type->shape[d];
    t->dims[type->ndim + d] = type->strides[d];
  }
  t->a.data = type->data;
  t->a.numel = type->numel;
  t->a.device = type->device;
  t->a.weak = type->weak;
  t->a.symbolic = type->symbolic;
  t->a.contiguous = type->contiguous;
  t->storage = s;
  if (noted) pl_remat_list(t);
  *out = t;
  return PL_OK;
}

PlStatus pl_tensor_view(PlTensor **out, PlTensor *t, int ndim, const int64_t *shape, const int64_t *strides, int64_t offset) {
  int64_t numel, size = (int64_t)pl_dtype_size((PlDtype)t->a.dtype);
  size_t nbytes;
  if (t->a.symbolic) return pl_sym_view(out, t, ndim, shape, strides, offset);
  PL_TRY(pl_count(ndim, shape, (PlDtype)t->a.dtype, &numel, &nbytes));
  int64_t start = ((char *)t->a.data - (char *)t->storage->data) / size;
  int64_t last;
  bool bad = __builtin_add_overflow(start, offset, &start) || start < 0;
  last = start;
  for (int d = 0; d < ndim && numel > 0; d++) {
    int64_t reach;
    bad = bad || strides[d] < 0 || __builtin_mul_overflow(shape[d] - 1, strides[d], &reach) || __builtin_add_overflow(last, reach, &last);
  }
  if (bad || (numel > 0 && last >= (int64_t)t->storage->nbytes / size))
    PL_FAIL(PL_ERR_SHAPE, "sizes, strides and offset reach outside the storage of %lld elements",
            (long long)((int64_t)t->storage->nbytes / size));
  char *data = (char *)t->storage->data + (numel > 0 ? start * size : 0);
  return pl_tensor_window(out, t, ndim, shape, strides, data);
}

PlStatus pl_tensor_alias(PlTensor **out, PlTensor *t) {
  if (PL_UNLIKELY(pl_is_batched(t))) return pl_batch_alias(out, t);
  return pl_tensor_window(out, t, t->a.ndim, t->a.shape, t->a.strides, t->a.data);
}

PlStatus pl_tensor_detach(PlTensor **out, PlTensor *t) {
  if (PL_UNLIKELY(pl_is_batched(t))) return pl_batch_detach(out, t);
  if (PL_UNLIKELY(t->a.symbolic)) return pl_sym_detach(out, t);
  return pl_tensor_alias(out, t); /* a family of its own: it never has the history of t */
}

PlStatus pl_tensor_from(PlTensor **out, PlDtype dtype, int ndim, const int64_t *shape, const void *data) {
  PL_TRY(pl_tensor_empty(out, dtype, ndim, shape));
  if ((*out)->storage->nbytes) memcpy((*out)->a.data, data, (*out)->storage->nbytes);
  return PL_OK;
}

PlStatus pl_tensor_full(PlTensor **out, PlDtype dtype, int ndim, const int64_t *shape, double value) {
  PlTensor *t;
  PL_TRY(pl_tensor_empty(&t, dtype, ndim, shape));
  size_t size = pl_dtype_size(dtype), n = t->storage->nbytes;
  char *p = t->a.data;
  if (n) pl_write_f(dtype, p, value);
  for (size_t done = size; done < n;) { /* doubling copies run at memory speed for every dtype */
    size_t k = done < n - done ? done : n - done;
    if (k > (1 << 16)) k = 1 << 16;
    memcpy(p + done, p, k);
    done += k;
  }
  *out = t;
  return PL_OK;
}

PlDtype pl_tensor_dtype(const PlTensor *t) { return (PlDtype)t->a.dtype; }
int pl_tensor_ndim(const PlTensor *t) { return t->a.ndim; }
const int64_t *pl_tensor_shape(const PlTensor *t) { return t->a.shape; }
const int64_t *pl_tensor_strides(const PlTensor *t) { return t->a.strides; }
int64_t pl_tensor_numel(const PlTensor *t) { return t->a.numel; }
PlStatus pl_tensor_hold(const PlTensor *t) { return pl_writes(t->storage); }
/* Whoever asks keeps the address: the values stay there. */
void *pl_tensor_data(const PlTensor *t) { return pl_writes(t->storage) == PL_OK ? t->a.data : NULL; }

const char *pl_tensor_text(const PlTensor *t, char *buf, size_t size) {
  snprintf(buf, size, "%s", pl_desc_text(&t->a));
  return buf;
}

bool pl_shape_equal(const PlArray *a, const PlArray *b) {
  if (a->ndim != b->ndim) return false;
  for (int d = 0; d < a->ndim; d++)
    if (a->shape[d] != b->shape[d]) return false;
  return true;
}

bool pl_self_overlaps(const PlArray *a) {
  if (a->contiguous || a->numel <= 1) return false;
  /* sorted by stride, each stride must step over everything below it */
  int order[PL_MAX_DIM], n = 0;
  for (int d = 0; d < a->ndim; d++) {
    if (a->shape[d] == 1) continue;
    int i = n++;
    for (; i > 0 && a->strides[order[i - 1]] > a->strides[d]; i--) order[i] = order[i - 1];
    order[i] = d;
  }
  int64_t reach = 0;
  for (int i = 0; i < n; i++) {
    if (a->strides[order[i]] <= reach) return true;
    reach += (a->shape[order[i]] - 1) * a->strides[order[i]];
  }
  return false;
}

/* ---- copies ----------------------------------------------------------------------------------- */

enum { FEW_ELEMENTS = 1024 }; /* copied here: the kernel would take longer to find out how */

static const char *window_end(const PlArray *a) {
  int64_t last = 0;
  for (int d = 0; d < a->ndim; d++) last += (a->shape[d] - 1) * a->strides[d];
  return (const char *)a->data + (last + 1) * (int64_t)pl_dtype_size((PlDtype)a->dtype);
}

/* Windows on one storage that meet, and are not the same one: a write to `dst` may change what is still to be read. */
static bool meets(const PlTensor *dst, const PlTensor *src) {
  const PlArray *a = &dst->a, *b = &src->a;
  if (PL_LIKELY(dst->storage != src->storage) || a->numel == 0 || b->numel == 0) return false;
  if (a->data == b->data && a->dtype == b->dtype && pl_shape_equal(a, b) && memcmp(a->strides, b->strides, a->ndim * sizeof(int64_t)) == 0)
    return false;
  return (const char *)a->data < window_end(b) && (const char *)b->data < window_end(a);
}

static PlStatus copy_data(PlTensor *dst, PlTensor *src) {
  if (PL_UNLIKELY(meets(dst, src))) {
    PlTensor *apart;
    PL_TRY(pl_tensor_copy(&apart, src));
    const PlStatus s = copy_data(dst, apart);
    pl_tensor_release(apart);
    return s;
  }
  const PlArray *in[1] = {&src->a};
  PlArray *out[1] = {&dst->a};
  static const PlAttrs none; /* all zero */
  PlkCall call = {.name = "copy",
                  .code = src->a.dtype == dst->a.dtype ? PLK_EW_COPY : PLK_EW_CAST,
                  .nin = 1,
                  .nout = 1,
                  .in = in,
                  .out = out,
                  .attrs = &none};
  if (PL_UNLIKELY(pl_state.watch != NULL)) pl_state.watch->wrote("copy", dst->storage);
  PL_TRY(pl_own(dst->storage));
  if (PL_UNLIKELY(dst->a.device | src->a.device)) {
    PL_TRY(pl_copy_arrays(&dst->a, &src->a));
    dst->storage->version++;
    return PL_OK;
  }
  if (call.code == PLK_EW_COPY && src->a.contiguous && dst->a.contiguous && src->a.numel == dst->a.numel && src->a.numel <= FEW_ELEMENTS) {
    memmove(dst->a.data, src->a.data, (size_t)src->a.numel * pl_dtype_size((PlDtype)src->a.dtype));
    dst->storage->version++;
    return PL_OK;
  }
  PlStatus s = plk_cpu_elementwise(&call);
  if (s == PL_OK || s == PL_ERR_INTERRUPT) dst->storage->version++; /* else nothing was written */
  return s;
}

PlStatus pl_copy_data(PlTensor *dst, PlTensor *src) {
  if (PL_UNLIKELY(dst->a.symbolic | src->a.symbolic)) {
    if (dst->a.symbolic) return pl_sym_assign(dst, src);
    PL_FAIL(PL_ERR_TRACE, "%s is symbolic: it has no values yet to copy", pl_desc_text(&src->a));
  }
  if (PL_LIKELY(pl_state.remat == NULL)) return copy_data(dst, src);
  PlPins pins;
  PL_TRY(pl_writes(dst->storage));
  PL_TRY(pl_remat_pin(&pins, "copy", &src, 1));
  PlStatus s = copy_data(dst, src);
  pl_remat_unpin(&pins);
  return s;
}

PlStatus pl_tensor_copy(PlTensor **out, PlTensor *t) {
  PlTensor *c;
  if (PL_UNLIKELY(t->a.symbolic)) return pl_sym_copy(out, t);
  PL_TRY(pl_tensor_like(&c, t, (PlDtype)t->a.dtype));
  PlStatus s = PL_OK;
  if (PL_LIKELY(t->a.contiguous && t->a.numel <= FEW_ELEMENTS && t->a.device == PL_CPU)) {
    s = pl_present(t);
    if (s == PL_OK && t->a.numel) memcpy(c->a.data, t->a.data, (size_t)t->a.numel * pl_dtype_size((PlDtype)t->a.dtype));
    c->storage->version++; /* as a write would */
  } else s = pl_copy_data(c, t);
  if (s != PL_OK) {
    pl_tensor_release(c);
    return s;
  }
  c->a.weak = t->a.weak;
  *out = c;
  return PL_OK;
}
