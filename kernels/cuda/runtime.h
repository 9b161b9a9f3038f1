/* SPDX-License-Identifier: MIT
 * The plug-in's runtime among its own files: what runtime.c and alloc.c give to plugin.c. */
#ifndef PL_KERNELS_CUDA_RUNTIME_H
#define PL_KERNELS_CUDA_RUNTIME_H

#include "kernels/cuda/cuda.h"

extern const PlDeviceHost *plc_host; /* set once, by the entry */

PlStatus plc_open(int *count);
PlStatus plc_describe(PlDeviceInfo *info);
PlStatus plc_synchronize(void);
void plc_set(PlDeviceSetting what, int64_t value);
int64_t plc_get(PlDeviceSetting what);

PlStatus plc_stream_new(void **out, int priority);
void plc_stream_free(void *stream);
void plc_stream_set(void *stream);
void *plc_stream_get(void);
bool plc_streams_exist(void); /* that scripts made */
void plc_each_stream(void (*f)(cudaStream_t s, void *context), void *context); /* the compute stream and those */
void plc_captures(int step); /* one more runs, or one less */
PlStatus plc_stream_wait(void *stream, void *event);
PlStatus plc_stream_synchronize(void *stream);
PlStatus plc_stream_query(void *stream, bool *done);
PlStatus plc_event_new(void **out, bool timing);
void plc_event_free(void *event);
PlStatus plc_event_record(void *event, void *stream);
PlStatus plc_event_synchronize(void *event);
PlStatus plc_event_query(void *event, bool *done);
PlStatus plc_event_elapsed(void *start, void *end, double *milliseconds);

PlStatus plc_pool_open(void); /* once the device is chosen */
void plc_memory_moves(cudaStream_t from, cudaStream_t to); /* all work on `from` is done */
PlStatus plc_alloc(size_t bytes, void **out);
void plc_release(void *p);
void plc_memory(PlDeviceMemory *out);
void plc_reset_peak(void);
void plc_limit(int64_t bytes);
void plc_trim(void);

/* Memory apart, for captured work: between begin and pause (resume and pause) the thread's allocations come from the owner,
 * and what it frees of them goes back there; end gives all of it to everybody. Other memory that is freed meanwhile counts
 * as freed on the stream that was the current one at begin. */
typedef struct PlcOwner PlcOwner;
PlStatus plc_owner_begin(PlcOwner **out);
void plc_owner_pause(void);
void plc_owner_resume(PlcOwner *o);
void plc_owner_end(PlcOwner *o);

int plc_find(const char *family);
PlStatus plc_run_id(int family, const PlkCall *call);
const PlcSettings *plc_settings_of(const char *family); /* NULL: it has none */

#endif
