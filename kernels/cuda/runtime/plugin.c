/* SPDX-License-Identifier: MIT
 * The plug-in's one door: the table of functions, and how a kernel family is found and run. Families come
 * from the section that PLC_KERNEL fills. */
#include "kernels/cuda/runtime/runtime.h"

#include <string.h>

/* The linker's names for the section. */
extern const PlcKernel __start_plc_kernels[], __stop_plc_kernels[];

int plc_find(const char *family) {
  for (const PlcKernel *k = __start_plc_kernels; k < __stop_plc_kernels; k++)
    if (strcmp(k->family, family) == 0) return (int)(k - __start_plc_kernels);
  return -1;
}

const PlcSettings *plc_settings_of(const char *family) {
  const int id = plc_find(family);
  return id < 0 ? NULL : (__start_plc_kernels + id)->settings;
}

PlStatus plc_run(const PlcKernel *k, const PlkCall *call) {
  bool done = false;
  PL_TRY(plc_alive());
  if (k->library) PL_TRY(k->library(call, &done));
  if (!done) PL_TRY(k->run(call));
  if (PL_UNLIKELY(plc_get(PL_DEVICE_SYNC) != 0) && !(plc_capturing && plc_capturing())) {
    cudaError_t e = cudaStreamSynchronize(plc_stream());
    if (e != cudaSuccess) return plc_failed(e, call->name, __FILE__, __LINE__);
    return plc_flag_check();
  }
  return PL_OK;
}

/* ---- what the engine asks of one GPU ---------------------------------------------------------------------------------- */

static PlStatus run(int gpu, int family, const PlkCall *call) {
  PL_TRY(plc_use(gpu));
  return plc_run(__start_plc_kernels + family, call);
}
static PlStatus upload(int gpu, void *dst, const void *src, size_t n) {
  PL_TRY(plc_use(gpu));
  return plc_upload(dst, src, n);
}
static PlStatus download(int gpu, void *dst, const void *src, size_t n) {
  PL_TRY(plc_use(gpu));
  return plc_download(dst, src, n);
}
static const void *extension(const char *name) { return plc_libraries_extension ? plc_libraries_extension(name) : NULL; }

#ifndef PLC_KIND
#define PLC_KIND "cuda"
#endif

__attribute__((visibility("default"))) const PlDeviceTable *perilune_device_plugin(const PlDeviceHost *host);

const PlDeviceTable *perilune_device_plugin(const PlDeviceHost *host) {
  static const PlDeviceTable table = {.abi = PL_DEVICE_ABI,
                                      .size = sizeof table,
                                      .kind = PLC_KIND,
                                      .open = plc_open,
                                      .describe = plc_describe,
                                      .alloc = plc_alloc,
                                      .release = plc_release,
                                      .memory = plc_memory,
                                      .reset_peak = plc_reset_peak,
                                      .limit = plc_limit,
                                      .trim = plc_trim,
                                      .upload = upload,
                                      .download = download,
                                      .copy_peer = plc_copy_peer,
                                      .host_alloc = plc_host_alloc,
                                      .host_free = plc_host_free,
                                      .upload_beside = plc_upload_beside,
                                      .download_later = plc_download_later,
                                      .synchronize = plc_synchronize,
                                      .use = plc_use,
                                      .find = plc_find,
                                      .run = run,
                                      .set = plc_set,
                                      .get = plc_get,
                                      .stream_new = plc_stream_new,
                                      .stream_free = plc_stream_free,
                                      .stream_gpu = plc_stream_gpu,
                                      .stream_set = plc_stream_set,
                                      .stream_get = plc_stream_get,
                                      .stream_wait = plc_stream_wait,
                                      .stream_synchronize = plc_stream_synchronize,
                                      .stream_query = plc_stream_query,
                                      .event_new = plc_event_new,
                                      .event_free = plc_event_free,
                                      .event_record = plc_event_record,
                                      .event_synchronize = plc_event_synchronize,
                                      .event_query = plc_event_query,
                                      .event_elapsed = plc_event_elapsed,
                                      .extension = extension};
  if (host->abi != PL_DEVICE_ABI) return NULL;
  plc_host = host;
  return &table;
}
