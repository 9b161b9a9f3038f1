/* SPDX-License-Identifier: MIT
 * Philox words on the device: those of the CPU (kernels/random.h), also where captured work begins elsewhere each time. */
#ifndef PL_KERNELS_CUDA_CREATE_RANDOM_H
#define PL_KERNELS_CUDA_CREATE_RANDOM_H

#include "kernels/cuda/device.h"
#define PLK_PHILOX_FN PLC_DEV
#include "kernels/philox.h"

/* Where this run draws from. */
PLC_DEV PlkRng plc_now(const PlcRng &r) {
  PlkRng now;
  now.seed = r.live ? r.live[0] : r.seed;
  now.stream = r.live ? r.live[1] : r.stream;
  now.offset = r.live ? r.live[2] + r.offset : r.offset;
  return now;
}

/* 64-bit word k of a call. */
PLC_DEV uint64_t plc_word64(const PlkRng &r, int64_t k) {
  uint32_t w[4];
  plk_philox(r.seed, r.stream, r.offset + (uint64_t)k / 2, w);
  return k % 2 ? (uint64_t)w[3] << 32 | w[2] : (uint64_t)w[1] << 32 | w[0];
}

#endif
