/* SPDX-License-Identifier: MIT
 * Philox4x32-10, a counter-based generator: a block of four words is a pure function of (key, counter).
 * Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Header only, so that
 * every device draws the same words. */
#ifndef PL_KERNELS_PHILOX_H
#define PL_KERNELS_PHILOX_H

#include <stdint.h>

#ifndef PLK_PHILOX_FN
#define PLK_PHILOX_FN static inline
#endif

/* Word lane[0..3] of the block at (block, stream) under `seed`. */
PLK_PHILOX_FN void plk_philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t lane[4]) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
  uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t a = 0xD2511F53u * (uint64_t)c0, b = 0xCD9E8D57u * (uint64_t)c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  lane[0] = c0, lane[1] = c1, lane[2] = c2, lane[3] = c3;
}

#endif
