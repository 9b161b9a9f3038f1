/* SPDX-License-Identifier: MIT
 * The device, its streams and events, copies, and what happens when CUDA reports an error. One device (number 0) and one
 * non-blocking compute stream that is never the legacy one; scripts may add streams. The state below is written under
 * `lock` or once, in plc_open. */
#include "kernels/cuda/runtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/convert.h"

const PlDeviceHost *plc_host;

static struct {
  cudaStream_t compute;
  PlcFlag *flag, *flag_device; /* one piece of pinned memory, host and device address */
  int processors, capability;
  atomic_bool dead;
  char why_dead[256];
  _Atomic int64_t setting[PL_DEVICE_NSETTING];
  pthread_mutex_t lock; /* of the staging buffer */
  char *stage;          /* pinned; two halves, used in turn */
  cudaEvent_t staged[2];
  int half;
  struct Stream *streams;      /* those that scripts made */
  atomic_int nstreams;
  pthread_mutex_t stream_lock; /* of them */
  atomic_int captures;         /* that run now, in any thread */
} rt = {.lock = PTHREAD_MUTEX_INITIALIZER, .stream_lock = PTHREAD_MUTEX_INITIALIZER, .setting = {[PL_DEVICE_DETERMINISTIC] = 1, [PL_DEVICE_CUDNN] = 1}};

typedef struct Stream {
  struct Stream *next;
  cudaStream_t s;
} Stream;

enum { STAGE_HALF = 4 << 20 };
static _Thread_local cudaStream_t current; /* NULL: rt.compute */

/* ---- status ---------------------------------------------------------------------------------------------- */

PlStatus pl_fail(PlStatus code, const char *fmt, ...) {
  char text[640];
  va_list args;
  va_start(args, fmt);
  if (vsnprintf(text, sizeof text, fmt, args) < 0) text[0] = '\0';
  va_end(args);
  return plc_host->fail(code, text);
}

const char *pl_dtype_name(PlDtype d) {
  static const char *const name[PL_NDTYPE] = {"f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "bool"};
  return (unsigned)d < PL_NDTYPE ? name[d] : "?";
}

PlStatus plk_poll(void) { return plc_host->poll(); }

/* After these nothing on the device can be used again before the process ends. */
static bool fatal(cudaError_t e) {
  return e == cudaErrorIllegalAddress || e == cudaErrorLaunchFailure || e == cudaErrorMisalignedAddress ||
         e == cudaErrorIllegalInstruction || e == cudaErrorInvalidAddressSpace || e == cudaErrorInvalidPc ||
         e == cudaErrorHardwareStackError || e == cudaErrorAssert || e == cudaErrorECCUncorrectable ||
         e == cudaErrorLaunchTimeout;
}

PlStatus plc_failed(cudaError_t e, const char *what, const char *file, int line) {
  const char *base = strrchr(file, '/');
  base = base ? base + 1 : file;
  (void)cudaGetLastError(); /* an error that does not stick is taken away */
  if (e == cudaErrorMemoryAllocation)
    PL_FAIL(PL_ERR_OOM, "cuda: out of device memory in %s (%s:%d)", what, base, line);
  if (fatal(e) && !atomic_exchange(&rt.dead, true))
    snprintf(rt.why_dead, sizeof rt.why_dead, "%s: %s, noticed in %s (%s:%d)", cudaGetErrorName(e), cudaGetErrorString(e), what,
             base, line);
  if (atomic_load(&rt.dead)) return plc_alive();
  PL_FAIL(PL_ERR_STATE, "cuda: %s: %s, in %s (%s:%d)", cudaGetErrorName(e), cudaGetErrorString(e), what, base, line);
}

PlStatus plc_alive(void) {
  if (PL_LIKELY(!atomic_load_explicit(&rt.dead, memory_order_relaxed))) return PL_OK;
  PL_FAIL(PL_ERR_STATE, "cuda: the device stopped working after %s; tensors on it are lost, the CPU goes on. Run again with "
                        "PERILUNE_CUDA_SYNC=1 to see which op it was", rt.why_dead);
}

/* ---- the device ---------------------------------------------------------------------------------------------- */

static PlStatus no_device(cudaError_t e) {
  (void)cudaGetLastError();
  int driver = 0;
  (void)cudaDriverGetVersion(&driver);
  if (driver == 0)
    PL_FAIL(PL_ERR_UNSUPPORTED, "cuda: no NVIDIA driver (libcuda.so.1) on this system");
  if (e == cudaErrorInsufficientDriver)
    PL_FAIL(PL_ERR_UNSUPPORTED, "cuda: the driver supports CUDA %d.%d, the plug-in needs %d.%d; install a newer driver",
            driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  if (e == cudaSuccess || e == cudaErrorNoDevice) PL_FAIL(PL_ERR_UNSUPPORTED, "cuda: the driver is there, but no device");
  PL_FAIL(PL_ERR_UNSUPPORTED, "cuda: %s: %s", cudaGetErrorName(e), cudaGetErrorString(e));
}

PlStatus plc_open(int *count) {
  int n = 0;
  cudaError_t e = cudaGetDeviceCount(&n);
  if (e != cudaSuccess || n == 0) return no_device(e);
  PLC_TRY(cudaSetDevice(0));
  int major = 0, minor = 0;
  PLC_TRY(cudaDeviceGetAttribute(&rt.processors, cudaDevAttrMultiProcessorCount, 0));
  PLC_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  PLC_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  rt.capability = major * 10 + minor;
  if (rt.capability < 80)
    PL_FAIL(PL_ERR_UNSUPPORTED, "cuda: device 0 has compute capability %d.%d; 8.0 (Ampere) or newer is needed", major, minor);
  PLC_TRY(cudaStreamCreateWithFlags(&rt.compute, cudaStreamNonBlocking));
  void *flag = NULL, *flag_device = NULL, *stage = NULL;
  PLC_TRY(cudaHostAlloc(&flag, sizeof *rt.flag, cudaHostAllocMapped));
  PLC_TRY(cudaHostGetDevicePointer(&flag_device, flag, 0));
  PLC_TRY(cudaHostAlloc(&stage, 2 * STAGE_HALF, cudaHostAllocDefault));
  memset(flag, 0, sizeof *rt.flag);
  rt.flag = flag;
  rt.flag_device = flag_device;
  rt.stage = stage;
  for (int i = 0; i < 2; i++) PLC_TRY(cudaEventCreateWithFlags(&rt.staged[i], cudaEventDisableTiming));
  PL_TRY(plc_pool_open());
  const char *sync = getenv("PERILUNE_CUDA_SYNC");
  if (sync && *sync && strcmp(sync, "0") != 0) plc_set(PL_DEVICE_SYNC, 1);
  *count = 1; /* further devices are not used */
  return PL_OK;
}

PlStatus plc_describe(PlDeviceInfo *info) {
  *info = (PlDeviceInfo){.major = rt.capability / 10, .minor = rt.capability % 10, .processors = rt.processors};
  struct cudaDeviceProp prop;
  PLC_TRY(cudaGetDeviceProperties(&prop, 0));
  snprintf(info->name, sizeof info->name, "%.127s", prop.name);
  size_t left = 0, all = 0;
  PLC_TRY(cudaMemGetInfo(&left, &all));
  info->memory = (int64_t)all;
  info->available = (int64_t)left;
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  char libraries[160] = "";
  if (plc_libraries_text) plc_libraries_text(libraries, sizeof libraries);
  snprintf(info->libraries, sizeof info->libraries, "CUDA %d.%d (driver %d.%d)%s%s", runtime / 1000, runtime % 1000 / 10,
           driver / 1000, driver % 1000 / 10, libraries[0] ? ", " : "", libraries);
  return PL_OK;
}

int plc_processors(void) { return rt.processors; }
int plc_capability(void) { return rt.capability; }
bool plc_deterministic(void) { return plc_get(PL_DEVICE_DETERMINISTIC) != 0; }
bool plc_tf32(void) { return plc_get(PL_DEVICE_TF32) != 0; }
bool plc_cudnn(void) { return plc_get(PL_DEVICE_CUDNN) != 0; }
bool plc_benchmark(void) { return plc_get(PL_DEVICE_BENCHMARK) != 0; }
void plc_set(PlDeviceSetting what, int64_t value) { atomic_store_explicit(&rt.setting[what], value, memory_order_relaxed); }
int64_t plc_get(PlDeviceSetting what) { return atomic_load_explicit(&rt.setting[what], memory_order_relaxed); }

/* ---- streams and events ---------------------------------------------------------------------------------------- */

cudaStream_t plc_stream(void) { return current ? current : rt.compute; }

static cudaStream_t or_compute(void *stream) { return stream ? (cudaStream_t)stream : rt.compute; }

PlStatus plc_stream_new(void **out, int priority) {
  PL_TRY(plc_alive());
  Stream *node = malloc(sizeof *node);
  if (!node) PL_FAIL(PL_ERR_OOM, "cuda: out of host memory");
  cudaError_t e = cudaStreamCreateWithPriority(&node->s, cudaStreamNonBlocking, priority);
  if (e != cudaSuccess) {
    free(node);
    return plc_failed(e, "cudaStreamCreateWithPriority", __FILE__, __LINE__);
  }
  *out = node->s;
  pthread_mutex_lock(&rt.stream_lock);
  node->next = rt.streams;
  rt.streams = node;
  atomic_fetch_add(&rt.nstreams, 1);
  pthread_mutex_unlock(&rt.stream_lock);
  return PL_OK;
}

/* Its memory goes on to the compute stream once its work is done. */
void plc_stream_free(void *stream) {
  Stream *gone = NULL;
  if (!stream) return;
  if (current == (cudaStream_t)stream) current = NULL;
  (void)cudaStreamSynchronize((cudaStream_t)stream);
  pthread_mutex_lock(&rt.stream_lock);
  for (Stream **at = &rt.streams; *at && !gone; at = &(*at)->next)
    if ((*at)->s == (cudaStream_t)stream) {
      gone = *at;
      *at = gone->next;
      atomic_fetch_sub(&rt.nstreams, 1);
      break;
    }
  pthread_mutex_unlock(&rt.stream_lock);
  plc_memory_moves((cudaStream_t)stream, rt.compute);
  (void)cudaStreamDestroy((cudaStream_t)stream);
  free(gone);
}

bool plc_streams_exist(void) { return atomic_load_explicit(&rt.nstreams, memory_order_relaxed) > 0; }
void plc_each_stream(void (*f)(cudaStream_t s, void *context), void *context) {
  f(rt.compute, context);
  pthread_mutex_lock(&rt.stream_lock);
  for (const Stream *s = rt.streams; s; s = s->next) f(s->s, context);
  pthread_mutex_unlock(&rt.stream_lock);
}
void plc_captures(int step) { atomic_fetch_add(&rt.captures, step); }

void plc_stream_set(void *stream) { current = (cudaStream_t)stream; }
void *plc_stream_get(void) { return current; }
PlStatus plc_stream_wait(void *stream, void *event) {
  PL_TRY(plc_alive());
  PLC_TRY(cudaStreamWaitEvent(or_compute(stream), (cudaEvent_t)event, 0));
  return PL_OK;
}
PlStatus plc_stream_synchronize(void *stream) {
  PL_TRY(plc_alive());
  PLC_TRY(cudaStreamSynchronize(or_compute(stream)));
  return plc_flag_check();
}

/* done, from what a query says. */
static PlStatus queried(cudaError_t e, bool *done, const char *what, int line) {
  if (e != cudaSuccess && e != cudaErrorNotReady) return plc_failed(e, what, __FILE__, line);
  if (e == cudaErrorNotReady) (void)cudaGetLastError(); /* no launch that follows is to blame */
  *done = e == cudaSuccess;
  return PL_OK;
}
PlStatus plc_stream_query(void *stream, bool *done) {
  PL_TRY(plc_alive());
  return queried(cudaStreamQuery(or_compute(stream)), done, "cudaStreamQuery", __LINE__);
}
PlStatus plc_event_new(void **out, bool timing) {
  cudaEvent_t e;
  PL_TRY(plc_alive());
  PLC_TRY(cudaEventCreateWithFlags(&e, timing ? cudaEventDefault : cudaEventDisableTiming));
  *out = e;
  return PL_OK;
}
void plc_event_free(void *event) {
  if (event) (void)cudaEventDestroy((cudaEvent_t)event);
}
PlStatus plc_event_record(void *event, void *stream) {
  PL_TRY(plc_alive());
  PLC_TRY(cudaEventRecord((cudaEvent_t)event, or_compute(stream)));
  return PL_OK;
}
PlStatus plc_event_synchronize(void *event) {
  PL_TRY(plc_alive());
  PLC_TRY(cudaEventSynchronize((cudaEvent_t)event));
  return plc_flag_check();
}
PlStatus plc_event_query(void *event, bool *done) {
  PL_TRY(plc_alive());
  return queried(cudaEventQuery((cudaEvent_t)event), done, "cudaEventQuery", __LINE__);
}
PlStatus plc_event_elapsed(void *start, void *end, double *milliseconds) {
  float ms = 0;
  PL_TRY(plc_alive());
  PLC_TRY(cudaEventElapsedTime(&ms, (cudaEvent_t)start, (cudaEvent_t)end));
  *milliseconds = (double)ms;
  return PL_OK;
}
static void wait_for(cudaStream_t s, void *worst) {
  cudaError_t e = cudaStreamSynchronize(s);
  if (e != cudaSuccess) *(cudaError_t *)worst = e;
}
/* The device as a whole cannot be waited for while some thread captures: that would end the capture. */
PlStatus plc_synchronize(void) {
  PL_TRY(plc_alive());
  cudaError_t e = cudaSuccess;
  if (atomic_load(&rt.captures) > 0)
    plc_each_stream(wait_for, &e);
  else
    e = cudaDeviceSynchronize();
  if (e != cudaSuccess) return plc_failed(e, "waiting for the device", __FILE__, __LINE__);
  return plc_flag_check();
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* Through the pinned ring: the caller's memory is free again when this returns, the copy itself is queued. */
static PlStatus upload_staged(void *dst, const char *src, size_t n) {
  for (size_t at = 0; at < n; at += STAGE_HALF) {
    size_t k = n - at < STAGE_HALF ? n - at : STAGE_HALF;
    int h = rt.half;
    rt.half = 1 - h;
    PLC_TRY(cudaEventSynchronize(rt.staged[h])); /* what this half held last has left it */
    memcpy(rt.stage + (size_t)h * STAGE_HALF, src + at, k);
    PLC_TRY(cudaMemcpyAsync((char *)dst + at, rt.stage + (size_t)h * STAGE_HALF, k, cudaMemcpyHostToDevice, plc_stream()));
    PLC_TRY(cudaEventRecord(rt.staged[h], plc_stream()));
  }
  return PL_OK;
}

PlStatus plc_upload(void *dst, const void *src, size_t n) {
  PL_TRY(plc_alive());
  if (n == 0) return PL_OK;
  if (PL_UNLIKELY(plc_capturing && plc_capturing())) return plc_capture_upload(dst, src, n);
  pthread_mutex_lock(&rt.lock);
  PlStatus s = upload_staged(dst, src, n);
  pthread_mutex_unlock(&rt.lock);
  return s;
}

PlStatus plc_download(void *dst, const void *src, size_t n) {
  PL_TRY(plc_alive());
  if (PL_UNLIKELY(plc_capturing && plc_capturing())) PL_FAIL(PL_ERR_STATE, "cuda: a value is read while work is captured");
  if (n) PLC_TRY(cudaMemcpyAsync(dst, src, n, cudaMemcpyDeviceToHost, plc_stream()));
  PLC_TRY(cudaStreamSynchronize(plc_stream()));
  return plc_flag_check();
}

/* ---- what kernels flag --------------------------------------------------------------------------------------------- */

PlcFlag *plc_flag(void) { return rt.flag_device; }

PlStatus plc_flag_check(void) {
  PlcFlag f = *(volatile PlcFlag *)rt.flag;
  if (PL_LIKELY(!f.set)) return PL_OK;
  memset(rt.flag, 0, sizeof *rt.flag);
  if (f.set == PLC_FAULT_ZERO_DIVISION) PL_FAIL(PL_ERR_ARG, "%s: integer division by zero", f.name);
  if (f.set == PLC_FAULT_PROBABILITY) PL_FAIL(PL_ERR_ARG, "%s: a probability outside [0, 1]", f.name);
  if (f.set == PLC_FAULT_WEIGHT) PL_FAIL(PL_ERR_ARG, "%s: a weight is not a finite number >= 0", f.name);
  if (f.set == PLC_FAULT_NO_WEIGHT) PL_FAIL(PL_ERR_ARG, "%s: all weights are zero", f.name);
  if (f.set == PLC_FAULT_FEW_WEIGHTS)
    PL_FAIL(PL_ERR_ARG, "%s: %lld samples without replacement from %lld positive weights", f.name, (long long)f.size, (long long)f.value);
  PL_FAIL(PL_ERR_INDEX, "%s: index %lld is out of range: %lld to %lld (noticed on the device; results since then are undefined)",
          f.name, (long long)f.value, (long long)f.base, (long long)(f.base + f.size - 1));
}

/* ---- numbers --------------------------------------------------------------------------------------------------------- */

double plc_number_f(const PlArray *a) {
  const void *p = a->data;
  switch ((PlDtype)a->dtype) {
  case PL_F32: return (double)*(const float *)p;
  case PL_F64: return *(const double *)p;
  case PL_F16: return (double)plk_f16_to_f32(*(const uint16_t *)p);
  case PL_BF16: return (double)plk_bf16_to_f32(*(const uint16_t *)p);
  default: return (double)plc_number_i(a);
  }
}

int64_t plc_number_i(const PlArray *a) {
  const void *p = a->data;
  switch ((PlDtype)a->dtype) {
  case PL_I8: return *(const int8_t *)p;
  case PL_I16: return *(const int16_t *)p;
  case PL_I32: return *(const int32_t *)p;
  case PL_I64: return *(const int64_t *)p;
  case PL_U8:
  case PL_BOOL: return *(const uint8_t *)p;
  default: return (int64_t)plc_number_f(a);
  }
}
