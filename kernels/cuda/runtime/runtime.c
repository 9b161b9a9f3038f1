/* SPDX-License-Identifier: MIT
 * The GPUs of the process, and what happens when CUDA reports an error. A GPU is opened when a thread first uses it: nothing
 * is made on others. A thread's current one is what CUDA calls that, too; plc_use moves both, and costs one comparison where
 * nothing moves. Streams and events: streams.c; copies: copies.c; memory: alloc.c. */
#include "kernels/cuda/runtime/runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/convert.h"

const PlDeviceHost *plc_host;

static struct {
  int count;
  PlcGpu gpu[PL_GPUS];
  pthread_mutex_t lock; /* of opening one */
  _Atomic int64_t setting[PL_DEVICE_NSETTING];
} rt = {.lock = PTHREAD_MUTEX_INITIALIZER, .setting = {[PL_DEVICE_DETERMINISTIC] = 1, [PL_DEVICE_CUDNN] = 1}};

static _Thread_local PlcGpu *here; /* the thread's current GPU; NULL: nobody knows */

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

void plc_warn(const char *text) { plc_host->warn(text); }

PlStatus plk_poll(void) { return plc_host->poll(); }

/* After these nothing on the device can be used again before the process ends. */
static bool fatal(cudaError_t e) {
  return e == cudaErrorIllegalAddress || e == cudaErrorLaunchFailure || e == cudaErrorMisalignedAddress ||
         e == cudaErrorIllegalInstruction || e == cudaErrorInvalidAddressSpace || e == cudaErrorInvalidPc ||
         e == cudaErrorHardwareStackError || e == cudaErrorAssert || e == cudaErrorECCUncorrectable || e == cudaErrorLaunchTimeout ||
         e == cudaErrorUnknown || e == cudaErrorContextIsDestroyed || e == cudaErrorDeviceUninitialized ||
         e == cudaErrorNvlinkUncorrectable || e == cudaErrorMpsClientTerminated || e == cudaErrorExternalDevice;
}

PlStatus plc_failed(cudaError_t e, const char *what, const char *file, int line) {
  const char *base = strrchr(file, '/');
  base = base ? base + 1 : file;
  (void)cudaGetLastError(); /* an error that does not stick is taken away */
  if (e == cudaErrorMemoryAllocation) PL_FAIL(PL_ERR_OOM, "%s: out of device memory in %s (%s:%d)", plc_name(), what, base, line);
  if (here && fatal(e) && !atomic_exchange(&here->dead, true))
    snprintf(here->why_dead, sizeof here->why_dead, "%s: %s, noticed in %s (%s:%d)", cudaGetErrorName(e), cudaGetErrorString(e), what, base,
             line);
  if (here && atomic_load(&here->dead)) return plc_alive();
  PL_FAIL(PL_ERR_STATE, "%s: %s: %s, in %s (%s:%d)", plc_name(), cudaGetErrorName(e), cudaGetErrorString(e), what, base, line);
}

PlStatus plc_alive(void) {
  if (PL_LIKELY(!atomic_load_explicit(&here->dead, memory_order_relaxed))) return PL_OK;
  PL_FAIL(PL_ERR_STATE,
          "%s: the device stopped working after %s; tensors on it are lost, the CPU goes on. Run again with "
          "PERILUNE_CUDA_SYNC=1 to see which op it was",
          plc_name(), here->why_dead);
}

/* ---- the device ---------------------------------------------------------------------------------------------- */

enum { OLDEST = 80 }; /* compute capability 8.0, Ampere */

static PlStatus too_old(const PlcGpu *g) {
  PL_FAIL(PL_ERR_UNSUPPORTED, "cuda: device %d has compute capability %d.%d; 8.0 (Ampere) or newer is needed", g->index, g->capability / 10,
          g->capability % 10);
}

static PlStatus no_device(cudaError_t e) {
  (void)cudaGetLastError();
  int driver = 0;
  (void)cudaDriverGetVersion(&driver);
  if (driver == 0) PL_FAIL(PL_ERR_UNSUPPORTED, "cuda: no NVIDIA driver (libcuda.so.1) on this system");
  if (e == cudaErrorInsufficientDriver)
    PL_FAIL(PL_ERR_UNSUPPORTED, "cuda: the driver supports CUDA %d.%d, the plug-in needs %d.%d; install a newer driver", driver / 1000,
            driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  if (e == cudaSuccess || e == cudaErrorNoDevice) PL_FAIL(PL_ERR_UNSUPPORTED, "cuda: the driver is there, but no device");
  PL_FAIL(PL_ERR_UNSUPPORTED, "cuda: %s: %s", cudaGetErrorName(e), cudaGetErrorString(e));
}

/* Asks about the GPUs and makes nothing on any. */
PlStatus plc_open(int *count) {
  int n = 0, fine = 0, major = 0, minor = 0;
  cudaError_t e = cudaGetDeviceCount(&n);
  if (e != cudaSuccess || n == 0) return no_device(e);
  rt.count = n < PL_GPUS ? n : PL_GPUS;
  for (int i = 0; i < rt.count; i++) {
    PlcGpu *g = &rt.gpu[i];
    g->index = i;
    PLC_TRY(cudaDeviceGetAttribute(&g->processors, cudaDevAttrMultiProcessorCount, i));
    PLC_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i));
    PLC_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, i));
    g->capability = major * 10 + minor;
    fine += g->capability >= OLDEST;
  }
  if (!fine) return too_old(&rt.gpu[0]);
  const char *sync = getenv("PERILUNE_CUDA_SYNC");
  if (sync && *sync && strcmp(sync, "0") != 0) plc_set(PL_DEVICE_SYNC, 1);
  *count = rt.count;
  return PL_OK;
}

/* The current device is g. */
static PlStatus make(PlcGpu *g) {
  void *flag = NULL, *flag_device = NULL, *ring = NULL;
  PLC_TRY(cudaStreamCreateWithFlags(&g->compute, cudaStreamNonBlocking));
  PLC_TRY(cudaHostAlloc(&flag, sizeof *g->flag, cudaHostAllocMapped));
  PLC_TRY(cudaHostGetDevicePointer(&flag_device, flag, 0));
  PLC_TRY(cudaHostAlloc(&ring, PLC_RING, cudaHostAllocDefault));
  memset(flag, 0, sizeof *g->flag);
  g->flag = flag;
  g->flag_device = flag_device;
  g->ring = ring;
  PLC_TRY(cudaEventCreateWithFlags(&g->met, cudaEventDisableTiming));
  PLC_TRY(cudaEventCreateWithFlags(&g->arrived, cudaEventDisableTiming));
  pthread_mutex_init(&g->lock, NULL);
  pthread_mutex_init(&g->stream_lock, NULL);
  return plc_pool_open(g);
}

static PlStatus open_gpu(PlcGpu *g) {
  PlStatus s = PL_OK;
  pthread_mutex_lock(&rt.lock);
  if (!g->opened) s = make(g);
  if (s == PL_OK) atomic_store(&g->opened, true);
  pthread_mutex_unlock(&rt.lock);
  return s;
}

PlStatus plc_use_other(int gpu) {
  if (gpu < 0 || gpu >= rt.count) PL_FAIL(PL_ERR_ARG, "cuda: there is no device \"cuda:%d\"; this process has %d", gpu, rt.count);
  PlcGpu *g = &rt.gpu[gpu];
  if (plc_capture_gpu && plc_capture_gpu() >= 0 && plc_capture_gpu() != gpu)
    PL_FAIL(PL_ERR_STATE, "cuda: work for another device while that of cuda:%d is captured", plc_capture_gpu());
  if (g->capability < OLDEST) return too_old(g);
  here = g; /* whom errors are about */
  cudaError_t e = cudaSetDevice(gpu);
  PlStatus s = e == cudaSuccess ? PL_OK : plc_failed(e, "cudaSetDevice", __FILE__, __LINE__);
  if (s == PL_OK && !atomic_load(&g->opened)) s = open_gpu(g);
  if (s != PL_OK) here = NULL;
  return s;
}

PlStatus plc_use(int gpu) { return PL_LIKELY(here && here->index == gpu) ? PL_OK : plc_use_other(gpu); }
PlcGpu *plc_here(void) { return here; }
PlcGpu *plc_gpu(int i) { return i >= 0 && i < rt.count && atomic_load(&rt.gpu[i].opened) ? &rt.gpu[i] : NULL; }

const char *plc_name(void) {
  static const char *const names[] = {"cuda:0", "cuda:1", "cuda:2",  "cuda:3",  "cuda:4",  "cuda:5",  "cuda:6",  "cuda:7",
                                      "cuda:8", "cuda:9", "cuda:10", "cuda:11", "cuda:12", "cuda:13", "cuda:14", "cuda:15"};
  return here && rt.count > 1 ? names[here->index] : "cuda";
}

/* What can be told without opening it; what is free only where it is open. */
PlStatus plc_describe(int gpu, PlDeviceInfo *info) {
  if (gpu < 0 || gpu >= rt.count) return plc_use_other(gpu);
  const PlcGpu *g = &rt.gpu[gpu];
  *info = (PlDeviceInfo){.major = g->capability / 10, .minor = g->capability % 10, .processors = g->processors, .available = -1};
  struct cudaDeviceProp prop;
  PLC_TRY(cudaGetDeviceProperties(&prop, gpu));
  snprintf(info->name, sizeof info->name, "%.127s", prop.name);
  info->memory = (int64_t)prop.totalGlobalMem;
  if (atomic_load(&g->opened)) {
    size_t left = 0, all = 0;
    PL_TRY(plc_use(gpu));
    PLC_TRY(cudaMemGetInfo(&left, &all));
    info->memory = (int64_t)all;
    info->available = (int64_t)left;
  }
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  char libraries[160] = "";
  if (plc_libraries_text) plc_libraries_text(libraries, sizeof libraries);
  int pools = 1;
  (void)cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, gpu);
  snprintf(info->libraries, sizeof info->libraries, "CUDA %d.%d (driver %d.%d)%s%s%s", runtime / 1000, runtime % 1000 / 10, driver / 1000,
           driver % 1000 / 10, libraries[0] ? ", " : "", libraries, pools ? "" : ", no memory pools");
  return PL_OK;
}

int plc_gpu_number(void) { return here->index; }
int plc_processors(void) { return here->processors; }
int plc_capability(void) { return here->capability; }
bool plc_deterministic(void) { return plc_get(PL_DEVICE_DETERMINISTIC) != 0; }
bool plc_tf32(void) { return plc_host->tf32(); }
bool plc_cudnn(void) { return plc_get(PL_DEVICE_CUDNN) != 0; }
bool plc_benchmark(void) { return plc_get(PL_DEVICE_BENCHMARK) != 0 && !plc_deterministic(); }
void plc_set(PlDeviceSetting what, int64_t value) { atomic_store_explicit(&rt.setting[what], value, memory_order_relaxed); }
int64_t plc_get(PlDeviceSetting what) { return atomic_load_explicit(&rt.setting[what], memory_order_relaxed); }

bool plc_shared_fits(const void *kernel, size_t bytes) {
  if (bytes <= (48u << 10)) return true;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) == cudaSuccess) return true;
  (void)cudaGetLastError();
  return false;
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
