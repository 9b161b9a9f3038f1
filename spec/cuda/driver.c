/* SPDX-License-Identifier: MIT
 * A stand-in for libcuda.so.1 that has no device and takes every kernel it is given: with it cuDNN compiles a plan for a
 * GPU that is only described, up to the point where the kernel would be loaded. For spec/cuda/cudnn.c alone. */
#include <stddef.h>
#include <string.h>

#pragma GCC visibility push(default)

enum { DONE = 0, NO_DEVICE = 100 };

static long token[8];

/* clang-format off */
#define TAKES_ALL(X)                                                                                                 \
  X(cuCtxGetCurrent) X(cuCtxGetLimit) X(cuCtxPopCurrent) X(cuCtxPushCurrent) X(cuDeviceGet) X(cuGetErrorName)        \
  X(cuGetErrorString) X(cuKernelGetAttribute) X(cuKernelSetAttribute) X(cuLaunchCooperativeKernel) X(cuLaunchKernel) \
  X(cuLaunchKernelEx) X(cuLibraryLoadFromFile) X(cuLibraryUnload) X(cuLinkAddData) X(cuLinkComplete) X(cuLinkCreate) \
  X(cuLinkDestroy) X(cuOccupancyMaxPotentialClusterSize) X(cuStreamGetCtx)
/* clang-format on */
#define DEFINE(name) \
  int name(void);    \
  int name(void) { return DONE; }
TAKES_ALL(DEFINE)

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *count);
int cuLibraryLoadData(void **library);
int cuLibraryGetKernel(void **kernel);
int cuGetProcAddress(const char *name, void **out);
int cuGetProcAddress_v2(const char *name, void **out);

int cuInit(unsigned flags) { return flags == 0 ? NO_DEVICE : 1; }
int cuDriverGetVersion(int *version) { return *version = 13000, DONE; }
int cuDeviceGetCount(int *count) { return *count = 0, NO_DEVICE; }
int cuLibraryLoadData(void **library) { return *library = token, DONE; }
int cuLibraryGetKernel(void **kernel) { return *kernel = token, DONE; }

int cuGetProcAddress_v2(const char *name, void **out) {
  static const struct {
    const char *name;
    int (*f)(void);
  } known[] = {
#define ENTRY(f) {#f, f},
      TAKES_ALL(ENTRY){"cuInit", (int (*)(void))cuInit},         {"cuDriverGetVersion", (int (*)(void))cuDriverGetVersion},
      {"cuDeviceGetCount", (int (*)(void))cuDeviceGetCount},     {"cuLibraryLoadData", (int (*)(void))cuLibraryLoadData},
      {"cuLibraryGetKernel", (int (*)(void))cuLibraryGetKernel}, {"cuGetProcAddress", (int (*)(void))cuGetProcAddress_v2}};
  int (*f)(void) = cuGetErrorName; /* anything else succeeds as well */
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(known[i].name, name) == 0) f = known[i].f;
  memcpy(out, &f, sizeof f);
  return DONE;
}
int cuGetProcAddress(const char *name, void **out) { return cuGetProcAddress_v2(name, out); }
