/* SPDX-License-Identifier: MIT
 * What all files of the CUDA plug-in share: status of CUDA calls, the stream, scratch, launches, kernel families.
 * The same files are compiled by nvcc for a GPU and by a plain C++ compiler against spec/cuda/emulate, where a kernel
 * runs on the CPU (PLC_EMULATED); so no <<< >>> and no CUDA header outside this one and libs/.
 *
 * A family is one function of a PlkCall, entered by PLC_KERNEL(name, function) next to it. call->in[i] are on the device,
 * but for two cases: 0-d CPU arrays (numbers) given to pointwise ops, read by plc_number_*, and inputs that the CPU
 * kernel also only reads as sizes. A library (cuBLASLt, cuDNN) takes calls before the family does: PLC_LIBRARY. */
#ifndef PL_KERNELS_CUDA_CUDA_H
#define PL_KERNELS_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/device.h"
#include "kernels/kernel.h"
#ifdef __cplusplus
}
#endif

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ---------------------------------------------------------------------------------------------- */

/* A status with the call's text, CUDA's name for the error, file and line. A fault that CUDA cannot recover from marks
 * the context dead; every later call says so. */
PlStatus plc_failed(cudaError_t e, const char *what, const char *file, int line);
#define PLC_TRY(expr)                                                                                 \
  do {                                                                                                \
    cudaError_t plc_try_ = (expr);                                                                    \
    if (PL_UNLIKELY(plc_try_ != cudaSuccess)) return plc_failed(plc_try_, #expr, __FILE__, __LINE__); \
  } while (0)
void plc_warn(const char *text); /* one line for the user */
/* PL_ERR_STATE once the context is dead. */
PlStatus plc_alive(void);

/* ---- the device ---------------------------------------------------------------------------------------------- */

PlStatus plc_use(int gpu);     /* the calling thread works on it from now on; opens it */
cudaStream_t plc_stream(void); /* the calling thread's compute stream; never the legacy one */
int plc_gpu_number(void);      /* which GPU the calling thread works on */
int plc_processors(void);      /* multiprocessors */
int plc_capability(void);      /* 90 for sm_90 */
bool plc_deterministic(void);
bool plc_tf32(void);
bool plc_cudnn(void);     /* may it compute? */
bool plc_benchmark(void); /* may libraries' algorithms be chosen by their times? Not where bits must repeat */

/* Temporary device memory, 256-byte aligned; freed in stream order. NULL is fine. */
PlStatus plc_scratch(size_t bytes, void **out);
void plc_scratch_free(void *p);
/* Memory that a library keeps for good: it counts against the limit, but is no live block, nor in the peak of tensors. */
PlStatus plc_keep(size_t bytes, void **out);
/* Copies n bytes of host memory to the device in stream order; src may be reused at once. */
PlStatus plc_upload(void *dst, const void *src, size_t n);
enum { PLC_FEW_BYTES = 256 };
PlStatus plc_upload_few(void *dst, const void *src, size_t n); /* n <= PLC_FEW_BYTES, as arguments of a launch */
/* Copies n bytes to the host and waits. */
PlStatus plc_download(void *dst, const void *src, size_t n);

/* May a kernel have so many bytes of dynamic shared memory? Beyond 48 KiB they must be asked for, and GPUs differ: 99 to
 * 227 KiB. */
bool plc_shared_fits(const void *kernel, size_t bytes);

/* ---- numbers on the host ---------------------------------------------------------------------------------------- */

static inline bool plc_on_host(const PlArray *a) { return a->device == PL_CPU; }
double plc_number_f(const PlArray *a); /* the element of a 0-d CPU array */
int64_t plc_number_i(const PlArray *a);

/* ---- index values out of range ------------------------------------------------------------------------------------ */

/* Kernels report through host memory that the device can write: the first report stays until the next wait, which
 * fails with it. */
typedef struct PlcFlag {
  int set;          /* 0: nothing happened; else a PlcFault */
  int base;         /* what the first index is called */
  const char *name; /* of the op; host memory */
  int64_t value, size;
} PlcFlag;
typedef enum PlcFault {
  PLC_FAULT_NONE,
  PLC_FAULT_INDEX,
  PLC_FAULT_ZERO_DIVISION,
  PLC_FAULT_PROBABILITY,
  PLC_FAULT_WEIGHT,
  PLC_FAULT_NO_WEIGHT,
  PLC_FAULT_FEW_WEIGHTS, /* of multinomial; the last: value of size wanted ones */
  PLC_FAULT_COUNTS       /* of repetitions, which do not add up to size */
} PlcFault;
PlcFlag *plc_flag(void);       /* where kernels write; device address */
PlStatus plc_flag_check(void); /* after a wait: the failure that kernels reported, once */

/* ---- kernel families ------------------------------------------------------------------------------------------------ */

/* Settings (PlkCall.attrs) that captured work follows: what a kernel wants of them, and a number that changes when such
 * work must be captured again, because more than that depends on it. */
typedef struct PlcSettings {
  size_t size;
  void (*make)(const PlAttrs *attrs, void *out);
  int64_t (*frozen)(const PlAttrs *attrs);
} PlcSettings;
/* A library's turn: sets *done where it computed the call, leaves it false where the family's own kernel must. */
typedef PlStatus (*PlcLibrary)(const PlkCall *call, bool *done);
typedef struct PlcKernel {
  const char *family;
  PlKernel run;
  const PlcSettings *settings; /* NULL: all that it was captured with stays */
  PlcLibrary library;          /* NULL: none computes this family */
} PlcKernel;

/* Entries are adjacent: compilers must not align them further. */
#define PLC_ENTRY(type, section_name, id) \
  extern const type id;                   \
  __attribute__((used, section(section_name), aligned(sizeof(void *)))) const type id
/* At file scope: PLC_KERNEL(softmax, plk_cuda_softmax). The table is what the linker gathers; no list elsewhere. The linker
 * also finds the family's library, if a file has PLC_LIBRARY(softmax, function). */
#define PLC_KERNEL(name, function) PLC_KERNEL_SET(name, function, NULL)
#define PLC_KERNEL_SET(name, function, settings)                                                                     \
  PLC_C PlStatus plc_by_library_##name(const PlkCall *call, bool *done) __attribute__((weak, visibility("hidden"))); \
  PLC_ENTRY(PlcKernel, "plc_kernels", plc_kernel_##name) = {#name, function, settings, plc_by_library_##name};
#define PLC_LIBRARY(name, function)                                      \
  PLC_C PlStatus plc_by_library_##name(const PlkCall *call, bool *done); \
  PLC_C PlStatus plc_by_library_##name(const PlkCall *call, bool *done) { return function(call, done); }
#ifdef __cplusplus
#define PLC_C extern "C"
#else
#define PLC_C
#endif

/* Runs another family from inside one, e.g. a copy before a product. */
PlStatus plc_run(const PlcKernel *family, const PlkCall *call);
extern const PlcKernel plc_kernel_copy, plc_kernel_elementwise, plc_kernel_scan, plc_kernel_sort;

/* ---- matrix products ------------------------------------------------------------------------------------------------ */

typedef enum PlcEpilogue { PLC_EPI_NONE, PLC_EPI_BIAS, PLC_EPI_BIAS_RELU } PlcEpilogue;

/* C[m,n] = epilogue(alpha op(A)[m,k] op(B)[k,n] + beta C), row-major: element (i, j) of X at i ldx + j; op transposes where
 * ta or tb is set, so A is stored k × m then. `batch` such products, sa, sb, sc elements apart (0 repeats). bias[n] has c's
 * dtype. f16 and bf16 accumulate in f32, f32 in f32 (TF32 where plc_tf32()), f64 in f64. */
typedef struct PlcGemm {
  int64_t m, n, k, batch;
  PlDtype dtype;  /* of a and b */
  PlDtype result; /* of c: dtype, or f32 for f16 and bf16 */
  bool ta, tb;
  const void *a, *b;
  void *c;
  int64_t lda, ldb, ldc, sa, sb, sc;
  double alpha, beta;
  PlcEpilogue epilogue;
  const void *bias;
} PlcGemm;
/* cuBLASLt where it is there and takes the product, else the plain kernel of gemm.cu. */
PlStatus plc_gemm(const PlcGemm *g);
/* libs/: weak, NULL where the plug-in is built without it. *done false: the plain kernel must. */
__attribute__((weak)) PlStatus plc_gemm_library(const PlcGemm *g, bool *done);
PlStatus plc_gemm_plain(const PlcGemm *g);

/* What libs/ adds to the plug-in's description and to its extensions; weak as well. */
__attribute__((weak)) void plc_libraries_text(char *text, size_t size);
__attribute__((weak)) const void *plc_libraries_extension(const char *name);

/* ---- work that is captured (kernels/capture.h; weak: libs/capture.c) ---------------------------------------------------- */

/* Bytes of the host then go through plc_capture_upload, and what reads the device's answers fails. */
__attribute__((weak)) bool plc_capturing(void);
__attribute__((weak)) int plc_capture_gpu(void); /* of this thread's capture; < 0: none runs */
__attribute__((weak)) PlStatus plc_capture_upload(void *dst, const void *src, size_t n);

/* Where a kernel draws from. `live` (device) is set in captured work: seed, stream, and what the offset counts from. */
typedef struct PlcRng {
  uint64_t seed, stream, offset;
  const uint64_t *live;
} PlcRng;
__attribute__((weak)) PlcRng plc_capture_rng(const PlkRng *rng);
static inline PlcRng plc_rng(const PlkRng *rng) {
  if (PL_UNLIKELY(plc_capturing && plc_capturing())) return plc_capture_rng(rng);
  PlcRng r = {rng->seed, rng->stream, rng->offset, NULL};
  return r;
}

/* *live (device): where captured work finds what set->make gives for the settings of the moment; NULL outside of it. */
__attribute__((weak)) PlStatus plc_capture_settings(const PlcSettings *set, const void **live);
static inline PlStatus plc_settings(const PlcSettings *set, const PlkCall *call, void *now, const void **live) {
  set->make(call->attrs, now);
  *live = NULL;
  if (PL_UNLIKELY(plc_capturing && plc_capturing())) return plc_capture_settings(set, live);
  return PL_OK;
}

#ifdef __cplusplus
}
#endif

/* ---- launches ----------------------------------------------------------------------------------------------------------- */

/* PLC_LAUNCH(kernel, grid, block, shared bytes, arguments…); a template with commas in parentheses. Dynamic shared memory is
 * declared in a kernel as PLC_SHARED(type, name). The emulation brings its own (spec/cuda/emulate/cuda_runtime_api.h). */
#if defined(__CUDACC__)
#define PLC_UNROLL _Pragma("unroll")
#define PLC_ROLLED _Pragma("unroll 1")
#define PLC_LAUNCH(kernel, grid, block, shared, ...)                  \
  do {                                                                \
    kernel<<<(grid), (block), (shared), plc_stream()>>>(__VA_ARGS__); \
    PLC_TRY(cudaGetLastError());                                      \
  } while (0)
#define PLC_SHARED(type, name)                                 \
  extern __shared__ __align__(16) unsigned char plc_shared_[]; \
  type *name = (type *)plc_shared_
#else
#define PLC_UNROLL
#define PLC_ROLLED
#endif

enum { PLC_BLOCK = 256 }; /* threads */
/* Blocks of a launch at most: a multiprocessor works on 2 to 8 at a time, and the last round of them, which leaves part of the
 * device without work, is to be a small part of all. */
static inline int64_t plc_most_blocks(void) { return (int64_t)plc_processors() * 128; }
/* Blocks for n items at `each` a thread; kernels stride over the grid. */
#ifdef __cplusplus
static inline unsigned plc_grid(int64_t n, int each) {
  int64_t need = (n + (int64_t)PLC_BLOCK * each - 1) / ((int64_t)PLC_BLOCK * each);
  int64_t most = plc_most_blocks();
  return (unsigned)(need < most ? need : most);
}
#endif

#endif
