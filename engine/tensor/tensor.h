/* SPDX-License-Identifier: MIT
 * Inside of tensors and storages, for engine and bindings. One pooled piece holds a handle, its sizes and
 * strides, and (for tensors that own their memory) the storage header with up to PL_SMALL bytes of data. */
#ifndef PL_ENGINE_TENSOR_TENSOR_H
#define PL_ENGINE_TENSOR_TENSOR_H

#include "engine/ops/op.h"
#include "engine/tensor/alloc.h"

enum { PL_SMALL = 64 };

enum {
  PL_OWNS_NOTHING,
  PL_OWNS_BLOCK,
  PL_OWNS_SYMBOLIC,
  PL_OWNS_DEVICE,
  PL_OWNS_PINNED /* of the host */,
  PL_OWNS_REMAT /* a block, of which remat/remat.h has notes; it may be away */,
  PL_OWNS_MAP /* a part of a file: file_map.h */
};

/* Stamps memory that is made; moves while checkpoints run (grad/checkpoint.h). Of this thread. */
extern _Thread_local uint64_t pl_clock;
enum { PL_CLOCK_TRACE = 1 }; /* while T.jit traces inside of a checkpoint's function */

/* Memory with its version: every write after creation moves the version, saved tensors remember it. */
struct PlStorage {
  uint32_t refs, version;
  uint32_t piece;   /* size of the pooled piece this header is in */
  uint8_t owns;     /* PL_OWNS_…: what data is */
  uint8_t device;   /* whose memory */
  bool has_history; /* of a graph under construction: some handle on it had a gradient history */
  bool kept;        /* a checkpoint that made it holds it as a result to be used again */
  uint64_t stamp;   /* pl_clock when it was made: checkpoints tell by it what is their own */
  void *data;
  size_t nbytes;
  void *block; /* the piece; freed with the storage */
  union {
    struct PlShared *shared; /* owns: other threads hold the block too (share.h); NULL: only this storage does */
    struct PlValue *value;   /* PL_OWNS_REMAT */
  };
};

/* A further key's gradient entry (the first one is inline in the tensor). */
typedef struct PlEntry {
  struct PlEntry *next;
  PlNode *node;
  uint32_t slot;
} PlEntry;

enum {
  PL_T_EMBEDDED = 1,    /* the storage header is in this handle's piece */
  PL_T_BOXED = 2,       /* known to the bindings' table of boxes */
  PL_T_LEAF = 4,        /* the inline entry is this tensor's own leaf node */
  PL_T_FOREIGN = 8,     /* result of a rule in memory that others may write, or a view of one: refused once they have */
  PL_T_CONST = 16,      /* never changes: a graph under construction may look at its values */
  PL_T_BATCHED = 32,    /* represents many tensors, see engine/vmap/vmap.h */
  PL_T_SAVED = 64,      /* some node saved this very handle */
  PL_T_DETACHED = 128,  /* of a graph under construction: made by detach, or a view of such a one */
  PL_T_LEFT = 256,      /* a leaf that went on with other memory: this handle keeps what it was (grad/leaf_move.c) */
  PL_T_STANDS_IN = 512, /* for a leaf, while a checkpoint's function runs again */
  PL_T_LISTED = 1024,   /* known to its storage's notes: remat/remat.h */
  PL_T_MET = 2048       /* while a list is looked through for tensors that are in it twice, met in it; nobody else sees this */
};

struct PlTensor {
  PlArray a; /* first: kernels take &t->a. a.shape and a.strides point at dims */
  uint32_t refs;
  uint16_t flags;
  uint16_t piece; /* size of this handle's pooled piece in PL_POOL_STEP units */
  PlStorage *storage;
  PlNode *node;  /* strong, or NULL; the entry of one key */
  PlEntry *more; /* entries of other keys */
  uint32_t slot;
  uint32_t history; /* moves with each in-place op that rewrites its entries; a view: its base's when its own were made;
                     * PL_T_FOREIGN: the version of the storage at birth */
  PlTensor *base;   /* a view: the handle that views were taken from and whose history its own is a part of, strong.
                     * NULL: a family of its own; detach begins one */
  uint32_t boxes;   /* for the embedding program: how many of its objects, of whatever Lua state, are the tensor itself
                     * rather than a use of it */
  int64_t dims[];   /* shape, then strides */
};

static inline PlTensor *pl_retain(PlTensor *t) {
  t->refs++;
  return t;
}
/* Releases n handles, NULL ones too, and forgets them. */
static inline void pl_release_all(PlTensor **t, int n) {
  for (int i = 0; i < n; i++) {
    pl_tensor_release(t[i]);
    t[i] = NULL;
  }
}

/* Behind the sizes of a handle with PL_T_LISTED. */
typedef struct PlListed {
  PlTensor *next, **at;
} PlListed;

/* Behind the sizes of a handle with PL_T_BATCHED (engine/vmap/), at the end of its piece. */
typedef struct PlBatched {
  PlTensor *full; /* holds all of them */
  uint64_t born;  /* of its batch */
} PlBatched;
static inline bool pl_is_batched(const PlTensor *t) { return (t->flags & PL_T_BATCHED) != 0; }
static inline PlBatched *pl_batched(const PlTensor *t) {
  return (PlBatched *)(void *)((char *)(uintptr_t)t + (size_t)t->piece * PL_POOL_STEP - sizeof(PlBatched));
}
/* What t is a handle of: all elements of all batches that run. */
static inline PlTensor *pl_behind(PlTensor *t) {
  while (pl_is_batched(t)) t = pl_batched(t)->full;
  return t;
}

/* Writable views of the sizes: only while a tensor is being made. */
static inline int64_t *pl_strides(PlTensor *t) { return t->dims + t->a.ndim; }

PlStatus pl_tensor_like(PlTensor **out, const PlTensor *t, PlDtype dtype); /* empty, same shape */
/* A tensor on memory that is there: of that kind, on that device. It belongs to the tensor, after a failure to nobody. */
PlStatus pl_tensor_over(PlTensor **out, void *data, uint8_t owns, int device, PlDtype dtype, int ndim, const int64_t *shape);
void pl_storage_memory_free(uint8_t owns, int device, void *data);
static inline size_t pl_round16(size_t n) { return (n + 15) & ~(size_t)15; }
/* The same where t is contiguous, of the CPU, with `bytes` <= PL_SMALL bytes of data of this dtype: one piece for handle,
 * storage and data. NULL: no memory. */
static PL_ALWAYS_INLINE PlTensor *pl_tensor_small_like(const PlTensor *t, PlDtype dtype, size_t bytes) {
  const int n = t->a.ndim;
  const size_t handle = pl_round16(sizeof(PlTensor) + 2 * (size_t)n * sizeof(int64_t));
  const size_t size = handle + pl_round16(sizeof(PlStorage)) + pl_round16(bytes);
  PlTensor *y = pl_pool_get(size);
  if (PL_UNLIKELY(!y)) return NULL;
  PlStorage *s = (PlStorage *)(void *)((char *)y + handle);
  void *data = (char *)s + pl_round16(sizeof(PlStorage));
  *y = (PlTensor){.a = {.data = data,
                        .numel = t->a.numel,
                        .shape = y->dims,
                        .strides = y->dims + n,
                        .dtype = (uint8_t)dtype,
                        .ndim = (uint8_t)n,
                        .device = 0,
                        .contiguous = 1},
                  .refs = 1,
                  .flags = PL_T_EMBEDDED,
                  .piece = (uint16_t)(size / PL_POOL_STEP),
                  .storage = s};
  *s = (PlStorage){.refs = 1, .piece = (uint32_t)size, .block = y, .nbytes = bytes, .data = data, .stamp = pl_clock};
  int64_t stride = 1;
  for (int d = n - 1; d >= 0; d--) {
    y->dims[d] = t->a.shape[d];
    y->dims[n + d] = stride;
    stride *= t->a.shape[d] ? t->a.shape[d] : 1;
  }
  return y;
}
/* `view`, a window on t's memory, belongs to t's family: what is written through one of them is part of all histories. */
static inline void pl_tensor_join(PlTensor *view, PlTensor *t) {
  PlTensor *base = t->base ? t->base : t;
  if (__builtin_expect((t->flags & PL_T_FOREIGN) != 0, 0)) { /* nothing can be written there, so there is no family: one more of them */
    view->flags |= PL_T_FOREIGN;
    view->history = t->history;
    return;
  }
  base->refs++;
  view->base = base;
  view->history = base->history;
  view->flags |= t->flags & PL_T_DETACHED;
}
/* How many references of its storage a view has by its base, which nothing else holds. */
static inline uint32_t pl_tensor_base_refs(const PlTensor *t) { return t->base && t->base->refs == 1; }
/* Does nothing but this one reference see the memory? */
static inline bool pl_tensor_sole(const PlTensor *t) { return t->refs == 1 && t->storage->refs == 1 + pl_tensor_base_refs(t); }
/* The handle leaves its family and keeps its entries: nothing that is written through others becomes part of them. */
void pl_tensor_leave(PlTensor *t);
/* A handle on storage s, whose reference it takes; on failure s is released. */
PlStatus pl_tensor_handle(PlTensor **out, const PlArray *type, PlStorage *s);
/* Another handle on t's storage with these sizes, strides and byte address; no checks. */
PlStatus pl_tensor_window(PlTensor **out, const PlTensor *t, int ndim, const int64_t *shape, const int64_t *strides, void *data);
/* The same with room for `extra` bytes at the end of its piece. */
PlStatus pl_tensor_window_extra(PlTensor **out, const PlTensor *t, int ndim, const int64_t *shape, const int64_t *strides, void *data,
                                size_t extra);
void pl_tensor_set_contiguous(PlTensor *t); /* recomputes the flag */
bool pl_shape_equal(const PlArray *a, const PlArray *b);
/* Product of sizes; SHAPE error on negative sizes or overflow of the byte count. */
PlStatus pl_count(int ndim, const int64_t *shape, PlDtype dtype, int64_t *numel, size_t *nbytes);
/* True if two elements of the array share an address (expanded or overlapping strides). */
bool pl_self_overlaps(const PlArray *a);
/* Converts number or element i of contiguous data. */
double pl_read_f(const PlArray *a, int64_t byte_offset);
int64_t pl_read_i(const PlArray *a, int64_t byte_offset);
void pl_write_f(PlDtype dtype, void *at, double v);
void pl_write_i(PlDtype dtype, void *at, int64_t v);
/* A weak 0-d tensor in the caller's memory, for one call that keeps nothing of its inputs: nobody may retain it. */
typedef struct PlNumber {
  _Alignas(16) char piece[sizeof(PlTensor) + sizeof(PlStorage) + 16];
} PlNumber;
PlTensor *pl_number_local(PlNumber *room, PlDtype dtype);
/* A 0-d tensor of `dtype` from a weak number. */
PlStatus pl_number_as(PlTensor **out, const PlTensor *number, PlDtype dtype);
/* A contiguous copy without history. */
PlStatus pl_tensor_copy(PlTensor **out, PlTensor *t);
/* dst's elements := src's, broadcast and cast; no history, moves dst's version. */
PlStatus pl_copy_data(PlTensor *dst, PlTensor *src);

#endif
