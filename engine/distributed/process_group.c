/* SPDX-License-Identifier: MIT
 * Opening the plug-in that joins processes (PERILUNE_MPI_PLUGIN names the file, else perilune_mpi.so is beside this
 * code), and calls on tensors. */
#include "engine/distributed/process_group.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/device.h"
#include "engine/device/plugin.h"
#include "engine/grad/checkpoint.h"
#include "engine/tensor/presence.h"
#include "engine/tensor/tensor.h"

static struct {
  pthread_mutex_t lock;
  _Atomic(const PlGroupTable *) table;
} joined = {.lock = PTHREAD_MUTEX_INITIALIZER};

static PlStatus host_fail(PlStatus code, const char *text) { return pl_fail(code, "%s", text); }

static PlStatus load(const PlGroupTable **out) {
  static const PlGroupHost host_services = {.abi = PL_GROUP_ABI, .fail = host_fail, .poll = plk_poll};
  static const char file[] = "perilune_mpi.so";
  /* Open MPI opens further files that look for its own symbols. */
  const int flags = RTLD_NOW | RTLD_GLOBAL;
  const char *named = getenv("PERILUNE_MPI_PLUGIN");
  void *lib = named && *named ? dlopen(named, flags) : pl_plugin_open(file, flags);
  if (!lib) {
    const char *why = dlerror();
    if (!why || strstr(why, "perilune_mpi.so: cannot open shared object file: No such file"))
      PL_FAIL(PL_ERR_UNSUPPORTED, "init_process_group: this build of perilune has no MPI (perilune_mpi.so); install Open MPI "
                                  "(Debian: openmpi-bin libopenmpi-dev), then build again");
    PL_FAIL(PL_ERR_UNSUPPORTED, "init_process_group: MPI does not load: %s; install Open MPI (Debian: openmpi-bin)", why);
  }
  PlGroupEntry entry = NULL;
  void *symbol = dlsym(lib, PL_GROUP_ENTRY);
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from object to function pointers */
  const PlGroupTable *t = entry ? entry(&host_services) : NULL;
  if (!t || t->abi != PL_GROUP_ABI || t->size != sizeof *t)
    PL_FAIL(PL_ERR_UNSUPPORTED, "init_process_group: perilune_mpi.so belongs to another version of perilune; build both together");
  *out = t;
  return PL_OK;
}

PlStatus pl_group(const PlGroupTable **out, PlGroupInfo *info) {
  const PlGroupTable *t;
  pthread_mutex_lock(&joined.lock);
  t = atomic_load_explicit(&joined.table, memory_order_acquire);
  PlStatus s = t ? PL_OK : load(&t);
  if (s == PL_OK) s = t->open(info);
  if (s == PL_OK) atomic_store_explicit(&joined.table, t, memory_order_release);
  pthread_mutex_unlock(&joined.lock);
  if (s == PL_OK) *out = t;
  return s;
}

const PlGroupTable *pl_group_open(void) { return atomic_load_explicit(&joined.table, memory_order_acquire); }

/* ---- calls ------------------------------------------------------------------------------------------------------------ */

struct PlGroupWork {
  void *work;
  PlTensor *src, *dst;
};

static PlStatus check(const char *name, const char *what, const PlTensor *t, int device) {
  if (!t) PL_FAIL(PL_ERR_ARG, "%s: no %s", name, what);
  if (t->a.symbolic || t->a.device != device || (t->flags & PL_T_BATCHED))
    PL_FAIL(PL_ERR_ARG, "%s: %s must have its values on %s", name, what, pl_device_name(device));
  if (!t->a.contiguous) PL_FAIL(PL_ERR_ARG, "%s: %s must be contiguous", name, what);
  return PL_OK;
}

static PlStatus wrong_size(const PlGroupCall *c, const PlTensor *src, const PlTensor *dst, int n) {
  PL_FAIL(PL_ERR_SHAPE, "%s: %s -> %s do not fit in a group of %d", c->name, src ? pl_desc_text(&src->a) : "nothing",
          dst ? pl_desc_text(&dst->a) : "nothing", n);
}

static PlStatus check_pieces(const PlGroupCall *c, const PlTensor *src, const PlTensor *dst, int n) {
  int64_t from = 0, to = 0;
  for (int r = 0; r < n; r++)
    if (c->send[r] < 0 || c->receive[r] < 0 || __builtin_add_overflow(from, c->send[r], &from) ||
        __builtin_add_overflow(to, c->receive[r], &to))
      return wrong_size(c, src, dst, n);
  return from == src->a.numel && to == dst->a.numel ? PL_OK : wrong_size(c, src, dst, n);
}

PlStatus pl_group_fit(PlGroupCall *c, const PlTensor *src, const PlTensor *dst, int rank, int n, int device) {
  const bool root = rank == c->peer;
  int64_t read = 1, write = 1; /* pieces of count elements */
  bool reads = true, writes = true;
  switch (c->kind) {
  case PL_GROUP_REDUCE: writes = root; break;
  case PL_GROUP_BROADCAST:
  case PL_GROUP_RECEIVE: reads = false; break;
  case PL_GROUP_ALL_GATHER: write = n; break;
  case PL_GROUP_GATHER: write = n, writes = root; break;
  case PL_GROUP_SCATTER: read = n, reads = root; break;
  case PL_GROUP_REDUCE_SCATTER: read = n; break;
  case PL_GROUP_ALL_TO_ALL: read = write = n; break;
  case PL_GROUP_SEND: writes = false; break;
  default: break;
  }
  if (reads) PL_TRY(check(c->name, "source", src, device));
  if (writes) PL_TRY(check(c->name, "destination", dst, device));
  const PlTensor *t = writes ? dst : src;
  c->dtype = (PlDtype)t->a.dtype;
  if (reads && writes && src->a.dtype != dst->a.dtype)
    PL_FAIL(PL_ERR_DTYPE, "%s: %s and %s differ in dtype", c->name, pl_desc_text(&src->a), pl_desc_text(&dst->a));
  if (c->send) return check_pieces(c, src, dst, n);
  c->count = t->a.numel / (writes ? write : read);
  if ((reads && c->count * read != src->a.numel) || (writes && c->count * write != dst->a.numel)) return wrong_size(c, src, dst, n);
  return PL_OK;
}

PlStatus pl_group_start(PlGroupWork **out, const PlGroupCall *call, PlTensor *src, PlTensor *dst) {
  const PlGroupTable *t = pl_group_open();
  if (!t) PL_FAIL(PL_ERR_STATE, "%s: there is no process group", call->name);
  PlGroupCall c = *call;
  int rank, n;
  t->group_info(c.group, &rank, &n);
  if (c.kind != PL_GROUP_BARRIER) PL_TRY(pl_group_fit(&c, src, dst, rank, n, PL_CPU));
  if (c.peer >= n) PL_FAIL(PL_ERR_INDEX, "%s: there is no rank %d in a group of %d", c.name, c.peer, n);
  if (dst && PL_UNLIKELY(pl_watched())) PL_TRY(pl_checkpoint_writes(c.name, dst));
  if (src) PL_TRY(pl_writes(src->storage)); /* both stay where they are while others work on them */
  if (dst) PL_TRY(pl_writes(dst->storage));
  if (dst) PL_TRY(pl_own(dst->storage));
  PlGroupWork *w = calloc(1, sizeof *w);
  if (!w) PL_FAIL(PL_ERR_OOM, "%s: out of memory", c.name);
  c.src = src ? src->a.data : NULL;
  c.dst = dst ? dst->a.data : NULL;
  PlStatus s = t->start(&c, &w->work);
  if (s != PL_OK) {
    free(w);
    return s;
  }
  if (src) w->src = pl_retain(src);
  if (dst) w->dst = pl_retain(dst);
  if (dst) dst->storage->version++; /* what backward saved of it is overwritten */
  if (dst && PL_UNLIKELY(pl_watched())) pl_checkpoint_wrote(dst);
  *out = w;
  return PL_OK;
}

PlStatus pl_group_test(PlGroupWork *w, bool *done) { return pl_group_open()->test(w->work, done); }

PlStatus pl_group_wait(PlGroupWork *w, double seconds, int *source) { return pl_group_open()->wait(w->work, seconds, source); }

void pl_group_work_release(PlGroupWork *w) {
  if (!w) return;
  if (pl_group_open()->release(w->work)) {
    pl_tensor_release(w->src);
    pl_tensor_release(w->dst);
  }
  free(w);
}
