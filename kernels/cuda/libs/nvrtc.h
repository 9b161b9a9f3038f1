/* SPDX-License-Identifier: MIT
 * NVRTC: CUDA source to machine code at run time, with a cache on disk. The headers that a source may include are those
 * that were built into the plug-in (plc_headers). */
#ifndef PL_KERNELS_CUDA_LIBS_NVRTC_H
#define PL_KERNELS_CUDA_LIBS_NVRTC_H

#include "kernels/base.h"

/* Made by cmake/CudaHeaders.cmake; ends with a NULL name. */
typedef struct PlcHeader {
  const char *name, *text;
} PlcHeader;
extern const PlcHeader plc_headers[];

/* Machine code of `source` for sm_<arch>, malloc'ed. Compiled, or read from the cache folder: $PERILUNE_CACHE_DIR, else
 * $XDG_CACHE_HOME/perilune, else ~/.cache/perilune; an empty PERILUNE_CACHE_DIR means none. Errors: UNSUPPORTED without
 * NVRTC; STATE with the compiler's words. *fresh: it was compiled now (may be NULL). */
PlStatus plc_nvrtc_compile(const char *source, int arch, void **image, size_t *size, bool *fresh);
const char *plc_nvrtc_version(void); /* "13.0", NULL: not there */

#endif
