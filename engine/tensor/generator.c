/* SPDX-License-Identifier: MIT
 * The default generator: a position in a Philox stream. Drawing is moving the offset, so a failed op that
 * takes its counters last leaves the stream as it was. */
#include <time.h>

#include "engine/call/thread_state.h"
#include "kernels/kernel.h"

void pl_manual_seed(uint64_t seed) {
  pl_state.seed = seed;
  pl_state.stream = 0;
  pl_state.offset = 0;
  pl_state.seeded = true;
}

PlkRng pl_rng_take(uint64_t n) {
  if (!pl_state.seeded) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    pl_manual_seed((uint64_t)t.tv_nsec * 0x9e3779b97f4a7c15u ^ (uint64_t)t.tv_sec);
  }
  PlkRng r = {pl_state.seed, pl_state.stream, pl_state.offset};
  pl_state.offset += n;
  return r;
}
