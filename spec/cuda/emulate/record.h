/* SPDX-License-Identifier: MIT
 * Between the files of the emulation: is work noted at the moment, and not done? */
#ifndef PL_SPEC_CUDA_RECORD_H
#define PL_SPEC_CUDA_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C++" {
#endif
bool plce_recording(void);
bool plce_record_fused(void (*run)(const void *kernel, int64_t packs, const void *args), const void *kernel, int64_t packs,
                       const void *args, size_t size);
const void *plce_capture_table(void);
#ifdef __cplusplus
}
#endif
#endif
