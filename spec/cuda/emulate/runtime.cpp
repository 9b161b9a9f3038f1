// SPDX-License-Identifier: MIT
// Devices on the CPU, for tests: the CUDA runtime's functions but for memory (memory.cpp), streams, events and graphs
// (streams.cpp). PERILUNE_EMULATE, words separated by commas, plays a bad day:
//   no-driver, old-driver, no-device, memory=BYTES (of each device), pinned=BYTES (the most at once), fault=N (the N-th launch is an illegal access),
//   fault-as=CODE (as which cudaError that shows; else 700), no-pools (the GPU has no memory pools),
//   shared=BYTES (the most that a block may have),
//   slow (work is done when somebody has asked three times whether something is),
//   open (memory stays accessible to everybody: what takes long takes less),
//   idle (kernels and large copies are counted, but nothing is computed: what a large network takes and launches, in seconds),
//   guard, twice (kernels are watched: guard.cpp), reverse (blocks and threads run in the opposite order),
//   devices=N (else 1), only=D (nothing may be made on another device), old-device=D (its architecture is too old),
//   late (streams do nothing before somebody waits for it: what is not ordered by events shows)
#include "inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t plce_lock = PTHREAD_MUTEX_INITIALIZER;
bool plce_dead[PLCE_DEVICES];

bool plce_word(const char *word, long long *value) {
  const char *s = getenv("PERILUNE_EMULATE");
  size_t n = strlen(word);
  while (s && *s) {
    if (strncmp(s, word, n) == 0 && (s[n] == 0 || s[n] == ',' || s[n] == '=')) {
      if (value && s[n] == '=') *value = atoll(s + n + 1);
      return true;
    }
    s = strchr(s, ',');
    if (s) s++;
  }
  return false;
}

static thread_local cudaError_t last = cudaSuccess;
static thread_local int current;      // as of cudaSetDevice
static thread_local int working = -1; // whose work is done now, by a stream that was late

cudaError_t plce_said(cudaError_t e) { return last = e; }
int plce_current(void) { return working >= 0 ? working : current; }
int plce_work_of(int device) {
  const int was = working;
  working = device;
  return was;
}
void plce_touch(void) {
  long long only = -1;
  if (plce_word("only", &only) && current != only) {
    fprintf(stderr, "cuda emulation: something is made on device %d\n", current);
    abort();
  }
  plce_memory_start(current);
}
cudaError_t plce_fault(void) {
  long long as = cudaErrorIllegalAddress;
  (void)plce_word("fault-as", &as);
  return (cudaError_t)as;
}
cudaError_t plce_state(int device) { return plce_dead[device] ? plce_fault() : cudaSuccess; }

struct plce_pool {
  int device;
  bool shared[PLCE_DEVICES];
};

extern "C" {

const char *cudaGetErrorName(cudaError_t e) {
  switch (e) {
  case cudaSuccess: return "cudaSuccess";
  case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
  case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
  case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
  case cudaErrorNoDevice: return "cudaErrorNoDevice";
  case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
  case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
  case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
  case cudaErrorUnknown: return "cudaErrorUnknown";
  case cudaErrorContextIsDestroyed: return "cudaErrorContextIsDestroyed";
  case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
  default: return "cudaError";
  }
}
const char *cudaGetErrorString(cudaError_t e) {
  return e == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : cudaGetErrorName(e);
}
cudaError_t cudaGetLastError(void) {
  cudaError_t e = last;
  last = cudaSuccess;
  return e;
}

// ---- devices

static int devices(void) {
  long long n = 1;
  (void)plce_word("devices", &n);
  return n < 0 ? 0 : n > PLCE_DEVICES ? PLCE_DEVICES : (int)n;
}
cudaError_t cudaDriverGetVersion(int *v) {
  *v = plce_word("no-driver", NULL) ? 0 : plce_word("old-driver", NULL) ? 12020 : 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *n) {
  *n = 0;
  if (plce_word("no-driver", NULL) || plce_word("old-driver", NULL)) return cudaErrorInsufficientDriver;
  if (plce_word("no-device", NULL)) return cudaErrorNoDevice;
  *n = devices();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
  current = device;
  plce_touch();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr attr, int device) {
  long long old = -1;
  const bool is_old = plce_word("old-device", &old) && old == device;
  *v = attr == cudaDevAttrMemoryPoolsSupported     ? !plce_word("no-pools", NULL)
       : attr == cudaDevAttrMultiProcessorCount    ? 2
       : attr == cudaDevAttrComputeCapabilityMajor ? (is_old ? 7 : 9)
                                                   : 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int) {
  memset(prop, 0, sizeof *prop);
  snprintf(prop->name, sizeof prop->name, "emulation on the CPU");
  prop->totalGlobalMem = plce_capacity();
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *left, size_t *all) {
  *all = plce_capacity();
  *left = plce_capacity() - plce_in_use(current);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = device != peer && !plce_word("no-peers", NULL);
  return cudaSuccess;
}

// ---- memory: without pools, and from them

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  static bool enabled[PLCE_DEVICES][PLCE_DEVICES];
  int can = 0;
  (void)cudaDeviceCanAccessPeer(&can, current, peer);
  if (!can) return plce_said(cudaErrorInvalidDevice);
  if (enabled[current][peer]) return plce_said(cudaErrorPeerAccessAlreadyEnabled);
  enabled[current][peer] = true;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void **out, size_t n) {
  plce_touch();
  if (plce_dead[current]) return plce_fault();
  pthread_mutex_lock(&plce_lock);
  cudaError_t e = plce_take(current, out, (n + 511) & ~(size_t)511);
  pthread_mutex_unlock(&plce_lock);
  return last = e;
}
cudaError_t cudaFree(void *p) { // waits for the device, which ends captures
  const cudaError_t e = cudaDeviceSynchronize();
  pthread_mutex_lock(&plce_lock);
  plce_give(p);
  pthread_mutex_unlock(&plce_lock);
  return e;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *out, const struct cudaMemPoolProps *props) {
  plce_touch();
  *out = (cudaMemPool_t)calloc(1, sizeof **out);
  (*out)->device = props->location.id;
  if (plce_word("no-pools", NULL)) return plce_said(cudaErrorInvalidValue);
  return props->location.id == current ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attr, void *v) {
  if (attr != cudaMemPoolAttrReservedMemCurrent) return cudaErrorInvalidValue;
  *(uint64_t *)v = plce_in_use(pool->device);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access, size_t n) {
  int can = 0;
  for (size_t i = 0; i < n; i++) {
    (void)cudaDeviceCanAccessPeer(&can, access[i].location.id, pool->device);
    if (!can) return cudaErrorInvalidDevice;
    pool->shared[access[i].location.id] = true;
  }
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
cudaError_t cudaMallocFromPoolAsync(void **out, size_t n, cudaMemPool_t pool, cudaStream_t s) {
  if (plce_is_captured(s)) return plce_ends(s), cudaErrorStreamCaptureUnsupported;
  if (plce_stream_device(s) != pool->device) return cudaErrorInvalidResourceHandle;
  if (plce_dead[pool->device]) return plce_fault();
  pthread_mutex_lock(&plce_lock);
  cudaError_t e = plce_take(pool->device, out, (n + 511) & ~(size_t)511);
  pthread_mutex_unlock(&plce_lock);
  return last = e;
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) {
  if (plce_is_captured(s)) return plce_ends(s);
  plce_drain(s);
  pthread_mutex_lock(&plce_lock);
  plce_give(p);
  pthread_mutex_unlock(&plce_lock);
  return cudaSuccess;
}

// ---- copies

struct Copy { // or, from NULL, a fill
  void *to;
  const void *from;
  size_t n;
  int byte, device, other; // other >= 0: whose memory is touched, too
  void *kept;              // of bytes that the host may change at once
};
static cudaError_t copy_now(void *p) {
  const Copy *c = (const Copy *)p;
  if (plce_dead[c->device]) return plce_fault();
  if (c->n > PLCE_SMALL && plce_idle()) return cudaSuccess;
  pthread_mutex_lock(&plce_lock);
  plce_enter(c->device);
  if (c->other >= 0) plce_enter(c->other);
  if (c->from) memmove(c->to, c->from, c->n);
  else memset(c->to, c->byte, c->n);
  if (c->other >= 0) plce_leave(c->other);
  plce_leave(c->device);
  pthread_mutex_unlock(&plce_lock);
  free(c->kept);
  return cudaSuccess;
}
static cudaError_t copy_or_note(Copy c, cudaStream_t s) {
  if (!plce_notes(s)) return copy_now(&c);
  if (c.from && !plce_is_captured(s) && plce_owner(c.from, 1) < 0 && !plce_is_pinned(c.from)) {
    c.kept = malloc(c.n);
    c.from = memcpy(c.kept, c.from, c.n);
  }
  Copy *kept = (Copy *)malloc(sizeof c);
  *kept = c;
  return plce_note(s, copy_now, kept);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind, cudaStream_t s) {
  const bool to_device = kind != cudaMemcpyDeviceToHost, from_device = kind != cudaMemcpyHostToDevice;
  const int a = plce_owner(to, n), b = plce_owner(from, n);
  if ((a >= 0) != to_device || (b >= 0) != from_device || (to_device && from_device && a != b)) return cudaErrorInvalidValue;
  return copy_or_note(Copy{to, from, n, 0, to_device ? a : b, -1, NULL}, s);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int device, const void *from, int other, size_t n, cudaStream_t s) {
  if (plce_owner(to, n) != device || plce_owner(from, n) != other || device == other) return cudaErrorInvalidValue;
  if (plce_is_captured(s)) return plce_ends(s);
  return copy_or_note(Copy{to, from, n, 0, device, other, NULL}, s);
}
cudaError_t cudaMemsetAsync(void *to, int byte, size_t n, cudaStream_t s) {
  if (plce_owner(to, n) < 0) return cudaErrorInvalidValue;
  return copy_or_note(Copy{to, NULL, n, byte, plce_owner(to, n), -1, NULL}, s);
}
} // extern "C"
