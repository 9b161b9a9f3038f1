/* SPDX-License-Identifier: MIT
 * Opening the device plug-in: PERILUNE_CUDA_PLUGIN names the file, else perilune_cuda.so is beside the module (or program)
 * that this code is part of. What went wrong is kept, so that every later question gets the same answer at once. */
#include "engine/device/device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/device/plugin.h"
#include "engine/tensor/alloc.h"
#include "kernels/gemm.h"

static struct {
  pthread_mutex_t lock;
  _Atomic(const PlDeviceTable *) table;
  bool tried;
  int count; /* of its GPUs */
  PlStatus code;
  char why[400];
} device = {.lock = PTHREAD_MUTEX_INITIALIZER};

static PlStatus host_fail(PlStatus code, const char *text) { return pl_fail(code, "%s", text); }
static void host_warn(const char *text) { fprintf(stderr, "perilune: %s\n", text); }

static bool host_tf32(void) { return plk_matmul_precision() != PLK_PRECISION_HIGHEST; }
static bool host_reclaim(void) { return pl_reclaim && pl_reclaim(); }

static const PlDeviceHost host_services = {
    .abi = PL_DEVICE_ABI, .fail = host_fail, .poll = plk_poll, .warn = host_warn, .tf32 = host_tf32, .reclaim = host_reclaim};

static PlStatus load(const PlDeviceTable **out) {
  const char *named = getenv("PERILUNE_CUDA_PLUGIN");
  void *lib = named && *named ? dlopen(named, RTLD_NOW | RTLD_LOCAL) : pl_plugin_open("perilune_cuda.so", RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    const char *why = dlerror();
    if (!why || strstr(why, "perilune_cuda.so: cannot open shared object file: No such file"))
      PL_FAIL(PL_ERR_UNSUPPORTED, "cuda: this build has no CUDA plug-in (perilune_cuda.so); build with ./setup build --cuda or "
                                  "-DPERILUNE_CUDA=ON");
    PL_FAIL(PL_ERR_UNSUPPORTED, "cuda: the CUDA plug-in does not load: %s", why);
  }
  PlDeviceEntry entry = NULL;
  void *symbol = dlsym(lib, PL_DEVICE_ENTRY);
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from object to function pointers */
  const PlDeviceTable *t = entry ? entry(&host_services) : NULL;
  if (!t || t->abi != PL_DEVICE_ABI || t->size != sizeof *t) {
    dlclose(lib);
    PL_FAIL(PL_ERR_UNSUPPORTED, "cuda: the CUDA plug-in belongs to another version of perilune; build both together");
  }
  PL_TRY(t->open(&device.count));
  if (device.count > PL_GPUS) device.count = PL_GPUS;
  *out = t;
  return PL_OK;
}

PlStatus pl_device(const PlDeviceTable **out) {
  const PlDeviceTable *t = atomic_load_explicit(&device.table, memory_order_acquire);
  if (PL_LIKELY(t != NULL)) {
    *out = t;
    return PL_OK;
  }
  pthread_mutex_lock(&device.lock);
  if (!device.tried) {
    device.tried = true;
    device.code = load(&t);
    if (device.code == PL_OK) atomic_store_explicit(&device.table, t, memory_order_release);
    else snprintf(device.why, sizeof device.why, "%s", pl_message());
  }
  t = atomic_load_explicit(&device.table, memory_order_relaxed);
  pthread_mutex_unlock(&device.lock);
  *out = t;
  return t ? PL_OK : pl_fail(device.code, "%s", device.why);
}

const PlDeviceTable *pl_device_open(void) { return atomic_load_explicit(&device.table, memory_order_acquire); }

int pl_device_count(void) { return pl_device_open() ? device.count : 0; }

const char *pl_device_name(int d) {
  static const char *const names[] = {"cuda:0", "cuda:1", "cuda:2",  "cuda:3",  "cuda:4",  "cuda:5",  "cuda:6",  "cuda:7",
                                      "cuda:8", "cuda:9", "cuda:10", "cuda:11", "cuda:12", "cuda:13", "cuda:14", "cuda:15"};
  _Static_assert(sizeof names / sizeof *names == PL_GPUS, "a name for each");
  if (!pl_on_gpu(d)) return "cpu";
  return pl_device_count() > 1 && d < PL_CUDA + PL_GPUS ? names[pl_gpu_index(d)] : "cuda";
}

int pl_device_parse(const char *name) {
  if (strcmp(name, "cpu") == 0) return PL_CPU;
  if (strcmp(name, "cuda") == 0) return PL_CUDA + pl_state.gpu;
  if (strncmp(name, "cuda:", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
  char *end;
  const long i = strtol(name + 5, &end, 10);
  return *end || (name[5] == '0' && name[6]) ? -1 : i < 200 ? PL_CUDA + (int)i : PL_CUDA + 200;
}

uint32_t pl_device_modes(void) {
  static const PlDeviceSetting of[] = {PL_DEVICE_DETERMINISTIC, PL_DEVICE_CUDNN, PL_DEVICE_BENCHMARK};
  uint32_t m = (uint32_t)plk_matmul_precision();
  const PlDeviceTable *t = pl_device_open();
  for (size_t k = 0; t && k < sizeof of / sizeof *of; k++) m = m << 1 | (t->get(of[k]) != 0);
  return m;
}

PlStatus pl_device_storage(int d, size_t nbytes, void **out) {
  const PlDeviceTable *t = NULL;
  if (PL_UNLIKELY(pl_reclaim_tested) && pl_reclaim) (void)pl_reclaim();
  PL_TRY(pl_device(&t));
  __atomic_fetch_add(&pl_device_handed_out, (int64_t)nbytes, __ATOMIC_RELAXED);
  return t->alloc(pl_gpu_index(d), nbytes, out);
}

void pl_device_storage_free(int d, void *p) {
  const PlDeviceTable *t = pl_device_open();
  if (t) t->release(pl_gpu_index(d), p);
}
