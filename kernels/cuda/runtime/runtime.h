/* SPDX-License-Identifier: MIT
 * The plug-in's runtime among its own files: what runtime.c, streams.c, copies.c and alloc.c give to plugin.c and each other.
 * Functions that take no GPU work on the thread's current one, which plc_use has chosen. */
#ifndef PL_KERNELS_CUDA_RUNTIME_RUNTIME_H
#define PL_KERNELS_CUDA_RUNTIME_RUNTIME_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/capture.h"
#include "kernels/cuda/cuda.h"

/* Uploads go through a ring of pinned memory in pieces; a piece is taken again when the copy that reads it is done. */
enum { PLC_RING = 8 << 20, PLC_PIECE = 2 << 20, PLC_PIECES = 64 };
typedef struct PlcPiece {
  size_t from, to;  /* bytes of the ring */
  cudaEvent_t read; /* NULL until it is first used */
} PlcPiece;

/* What scripts hold. */
typedef struct PlcStream {
  struct PlcStream *next;
  cudaStream_t s;
  int gpu;
} PlcStream;
typedef struct PlcEvent {
  cudaEvent_t e;
  int gpu; /* < 0: not recorded yet, there is no e */
  bool timing;
} PlcEvent;

/* One GPU. Written once when it is opened, or under the lock beside it. */
typedef struct PlcGpu {
  int index, processors, capability;
  atomic_bool opened, dead;
  cudaStream_t compute, copy;  /* copy: of uploads beside the work; NULL while there was none */
  PlcFlag *flag, *flag_device; /* one piece of pinned memory, host and device address */
  char why_dead[256];
  pthread_mutex_t lock; /* of the ring */
  char *ring;           /* pinned */
  size_t ring_at;       /* where the next piece begins */
  PlcPiece piece[PLC_PIECES];
  int oldest, npieces; /* those that copies may still read: a queue in `piece` */
  PlcStream *streams;  /* those that scripts made */
  atomic_int nstreams;
  pthread_mutex_t stream_lock; /* of them */
  atomic_int captures;         /* that run now, in any thread */
  struct PlcPool *pool;        /* alloc.c */
  cudaEvent_t met, arrived;    /* of copies between GPUs; of the copy stream */
  bool reached[PL_GPUS];       /* it is known how copies go there */
} PlcGpu;

extern const PlDeviceHost *plc_host; /* set once, by the entry */

PlStatus plc_open(int *count);
PlStatus plc_use_other(int gpu); /* the same where it is another one than before */
PlcGpu *plc_here(void);          /* the current one */
PlcGpu *plc_gpu(int i);          /* NULL while it is not open */
const char *plc_name(void);      /* of the current one, for messages: "cuda", "cuda:1" */
PlStatus plc_describe(int gpu, PlDeviceInfo *info);
PlStatus plc_synchronize(int gpu);
PlStatus plc_upload_beside(int gpu, void **out, const void *src, size_t n);
PlStatus plc_download_later(int gpu, void *dst, const void *src, size_t n);
PlStatus plc_copy_peer(int to, void *dst, int from, const void *src, size_t n);
void plc_set(PlDeviceSetting what, int64_t value);
int64_t plc_get(PlDeviceSetting what);

PlStatus plc_stream_new(int gpu, void **out, int priority);
void plc_stream_free(void *stream);
int plc_stream_gpu(const void *stream);
void plc_stream_set(int gpu, void *stream); /* a PlcStream, or NULL */
void *plc_stream_get(int gpu);
bool plc_streams_exist(const PlcGpu *g);                                                  /* that scripts made */
void plc_each_stream(PlcGpu *g, void (*f)(cudaStream_t s, void *context), void *context); /* the compute stream and those */
void plc_captures(int gpu, int step);                                                     /* one more runs, or one less */
PlStatus plc_stream_wait(int gpu, void *stream, void *event);
PlStatus plc_stream_synchronize(int gpu, void *stream);
PlStatus plc_stream_query(int gpu, void *stream, bool *done);
PlStatus plc_event_new(void **out, bool timing);
void plc_event_free(void *event);
PlStatus plc_event_record(void *event, int gpu, void *stream);
PlStatus plc_event_synchronize(void *event);
PlStatus plc_event_query(void *event, bool *done);
PlStatus plc_event_elapsed(void *start, void *end, double *milliseconds);

PlStatus plc_pool_open(PlcGpu *g);
PlStatus plc_pool_share(PlcGpu *g, int with);                         /* that GPU may reach g's memory */
void plc_memory_moves(PlcGpu *g, cudaStream_t from, cudaStream_t to); /* all work on `from` is done */
PlStatus plc_alloc_on(cudaStream_t s, size_t bytes, void **out);      /* on the current GPU, in that stream's order */
PlStatus plc_alloc(int gpu, size_t bytes, void **out);
void plc_release(int gpu, void *p);
void plc_memory(int gpu, PlDeviceMemory *out);
void plc_reset_peak(int gpu);
PlStatus plc_limit(int gpu, int64_t bytes);
void plc_trim(int gpu);

/* Memory apart, for captured work: between begin and pause the thread's allocations come from the owner,
 * and what it frees of them goes back there; end gives all of it to everybody. Other memory that is freed meanwhile counts
 * as freed on the stream that was the current one at begin. */
typedef struct PlcOwner PlcOwner;
PlStatus plc_owner_begin(const PlkCaptureRoom *room, PlcOwner **out); /* as in kernels/capture.h; *out also after a failure: end it */
void plc_owner_pause(void);
void plc_owner_end(PlcOwner *o); /* its GPU is the current one; NULL is fine */
const PlkCapturePiece *plc_owner_pieces(const PlcOwner *o, int64_t *n);

/* What has to happen before memory is handed out again. */
typedef struct PlcAfter {
  struct PlcAfter *next;
  cudaStream_t stream; /* one event a stream: the last thing noted comes behind all before it */
  cudaEvent_t event;
} PlcAfter;
void plc_after_note(PlcAfter **list, cudaStream_t s); /* what s, of the current GPU, holds now; waits if it cannot be noted */
bool plc_after_done(PlcAfter **list, bool wait);      /* has all of it happened? wait: it has when this returns */

PlStatus plc_host_alloc(int gpu, size_t bytes, void **out);
void plc_host_free(void *p);
void plc_host_used(const void *p, cudaStream_t s); /* what that stream holds now reads or writes this pinned memory */

int plc_find(const char *family);
const PlcSettings *plc_settings_of(const char *family); /* NULL: it has none */

#endif
