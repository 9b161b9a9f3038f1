/* SPDX-License-Identifier: MIT
 * The contract between the engine and the plug-in of a device that is not the CPU: one table of functions, found by
 * dlopen and checked by its ABI number. No CUDA header is needed to include this. Memory of the device is addressed by
 * plain pointers that the host never reads through. All work of one GPU is queued in order; what waits says so.
 *
 * One plug-in serves all GPUs of the process, numbered from 0 as the driver shows them. Functions that concern one say which,
 * and make it the calling thread's current one where it is not. Nothing is made on a GPU that nobody has asked for yet. */
#ifndef PL_KERNELS_DEVICE_H
#define PL_KERNELS_DEVICE_H

#include "kernels/kernel.h"

#define PL_DEVICE_ABI   7u
#define PL_DEVICE_ENTRY "perilune_device_plugin"

/* What the engine lends to the plug-in. */
typedef struct PlDeviceHost {
  uint32_t abi;
  PlStatus (*fail)(PlStatus code, const char *text); /* becomes pl_message() */
  PlStatus (*poll)(void);                            /* PL_ERR_INTERRUPT once the user asked to stop */
  void (*warn)(const char *text);                    /* one line for the user */
  bool (*tf32)(void);    /* products of f32 of the calling thread may round their factors to TF32 (T.set_float32_matmul_precision) */
  bool (*reclaim)(void); /* memory is out: true where the program has let go of what nobody needs, so that it is worth another try */
} PlDeviceHost;

typedef struct PlDeviceInfo {
  char name[128];      /* "NVIDIA H200" */
  char libraries[256]; /* "CUDA 13.0 (driver 13.0), cuBLASLt 13.1, cuDNN 9.14": what was found, and what not */
  int major, minor, processors;
  int64_t memory, available; /* bytes */
} PlDeviceInfo;

typedef struct PlDeviceMemory {
  int64_t live, peak;                   /* bytes that tensors and scratch hold */
  int64_t reserved, limit;              /* bytes taken from the driver; limit < 0: none of our own */
  int64_t blocks, allocations, retries; /* live blocks; since start: requests, and those that needed a flush */
} PlDeviceMemory;

typedef enum PlDeviceSetting {
  PL_DEVICE_DETERMINISTIC, /* 1: same bits in every run (the default) */
  PL_DEVICE_SYNC,          /* 1: wait after every kernel, so that a failure names its op */
  PL_DEVICE_CUDNN,         /* 0: own kernels where cuDNN would compute (1 by default) */
  PL_DEVICE_BENCHMARK,     /* 1: algorithms of libraries are chosen by their times, once a shape, unless deterministic (0 by default) */
  PL_DEVICE_NSETTING
} PlDeviceSetting;

typedef struct PlDeviceTable {
  uint32_t abi, size; /* PL_DEVICE_ABI, sizeof(PlDeviceTable) */
  const char *kind;   /* "cuda"; "emulated" for the one that tests use */

  PlStatus (*open)(int *count);                      /* once; 0 devices is a failure that says why. Makes nothing on any GPU */
  PlStatus (*use)(int gpu);                          /* opens it and makes it the thread's current one */
  PlStatus (*describe)(int gpu, PlDeviceInfo *info); /* opens nothing; what is free is -1 then */

  /* Memory: at least 256-byte aligned; free is in stream order and never fails. What is asked about a GPU that nothing was
   * made on yet makes nothing there. */
  PlStatus (*alloc)(int gpu, size_t bytes, void **out);
  void (*release)(int gpu, void *p);
  void (*memory)(int gpu, PlDeviceMemory *out);
  void (*reset_peak)(int gpu);
  PlStatus (*limit)(int gpu, int64_t bytes); /* < 0: none */
  void (*trim)(int gpu);                     /* cached blocks go back to the driver */

  /* upload: src may be reused when it returns. download: waits, and reports what kernels flagged. copy_peer: from one GPU to
   * another, after what both streams hold now and before what comes on either. */
  PlStatus (*upload)(int gpu, void *dst, const void *src, size_t bytes);
  PlStatus (*download)(int gpu, void *dst, const void *src, size_t bytes);
  PlStatus (*copy_peer)(int gpu, void *dst, int from, const void *src, size_t bytes);
  /* Pinned memory of the host: copies go straight from and to it, beside the GPU's work. Kept for reuse; what copies still
   * read or write is handed out again when they are done. */
  PlStatus (*host_alloc)(int gpu, size_t bytes, void **out);
  void (*host_free)(void *p);
  /* New device memory with those bytes of pinned memory in it: copied on a stream of its own while the GPU computes. What the
   * thread's stream gets from now on comes behind the copy. */
  PlStatus (*upload_beside)(int gpu, void **out, const void *src, size_t bytes);
  PlStatus (*download_later)(int gpu, void *dst, const void *src, size_t bytes); /* dst is pinned; nobody waits */
  PlStatus (*synchronize)(int gpu);                                              /* waits for all streams; reports what kernels flagged */

  /* Kernel families: < 0 where the plug-in has none of that name. */
  int (*find)(const char *family);
  PlStatus (*run)(int gpu, int family, const PlkCall *call);
  void (*set)(PlDeviceSetting what, int64_t value);
  int64_t (*get)(PlDeviceSetting what);

  /* Streams and events; NULL is the GPU's compute stream. The calling thread has a current stream on each. An event belongs to
   * the GPU that it was first recorded on; other GPUs' streams may wait for it. */
  PlStatus (*stream_new)(int gpu, void **out, int priority);
  void (*stream_free)(void *stream);
  int (*stream_gpu)(const void *stream); /* whose it is */
  void (*stream_set)(int gpu, void *stream);
  void *(*stream_get)(int gpu);
  PlStatus (*stream_wait)(int gpu, void *stream, void *event); /* later work on the stream waits for the event */
  PlStatus (*stream_synchronize)(int gpu, void *stream);
  PlStatus (*stream_query)(int gpu, void *stream, bool *done);
  PlStatus (*event_new)(void **out, bool timing);
  void (*event_free)(void *event);
  PlStatus (*event_record)(void *event, int gpu, void *stream);
  PlStatus (*event_synchronize)(void *event);
  PlStatus (*event_query)(void *event, bool *done);
  PlStatus (*event_elapsed)(void *start, void *end, double *milliseconds);

  /* Further tables by name (fused groups, graph capture); NULL where the plug-in has none. */
  const void *(*extension)(const char *name);
} PlDeviceTable;

/* The plug-in's one exported function, under PL_DEVICE_ENTRY; NULL if it does not speak host->abi. */
typedef const PlDeviceTable *(*PlDeviceEntry)(const PlDeviceHost *host);

#endif
