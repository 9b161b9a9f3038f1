/* SPDX-License-Identifier: MIT
 * For kernels of ops that bring their inputs into form and then call another kernel: PL_EITHER(matmul) makes either_matmul,
 * which is plk_cpu_matmul or the device's family "matmul", by where the output is. Descriptors with such a kernel say
 * PL_KERNEL_EITHER. They look at shapes, never at values. */
#ifndef PL_ENGINE_DEVICE_DISPATCH_H
#define PL_ENGINE_DEVICE_DISPATCH_H

#include "engine/device/device.h"

#define PL_EITHER(NAME)                                                                                                            \
  static PlStatus either_##NAME(const PlkCall *call) {                                                                             \
    return PL_LIKELY(call->out[0]->device == PL_CPU) ? plk_cpu_##NAME(call) : pl_device_family(call->out[0]->device, #NAME, call); \
  }
#define PL_KERNEL_EITHER(FUNCTION) PL_KERNEL_OWN(FUNCTION), .family = ""

/* Temporary memory on that device. */
static inline PlStatus pl_scratch_at(int device, size_t bytes, void **out) {
  return device == PL_CPU ? plk_scratch(bytes, out) : pl_device_storage(device, bytes, out);
}
static inline void pl_scratch_free_at(int device, void *p) {
  if (device == PL_CPU) plk_scratch_free(p);
  else pl_device_storage_free(device, p);
}

#endif
