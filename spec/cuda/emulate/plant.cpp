// SPDX-License-Identifier: MIT
// Kernels with the mistakes that guard.cpp finds, for spec/cuda/guard_spec.lua, which calls them by package.loadlib: each
// function takes a Lua state and gives no results. plce_plant_counts prints what the emulation has counted, plce_plant_launches
// how often each kernel ran since it was last asked.
#include "kernels/cuda/device.h"

#include <stdio.h>

__global__ void fill(float *x, int n, int shift) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) x[i + shift] = 1.0f;
}
__global__ void take(float *x, const float *y, int n) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) x[0] += y[i];
}
__global__ void last_wins(float *x) { x[0] = (float)(threadIdx.x + blockIdx.x * blockDim.x); }
// Every thread reads its right neighbour's element after writing its own: right with a barrier in between.
__global__ void neighbours(float *x, bool barriers) {
  const unsigned i = threadIdx.x, n = blockDim.x;
  PLC_SHARED(float, room);
  room[i] = (float)i;
  if (barriers) __syncthreads();
  x[i] = room[i + 1 < n ? i + 1 : i];
}
__global__ void shared_behind(float *x) {
  PLC_SHARED(float, room);
  room[threadIdx.x + 4] = 1;
  x[threadIdx.x] = 0;
}
__global__ void packs(float *x) { ((plc_pack<float, 4> *)x)[threadIdx.x] = plc_pack<float, 4>{{1, 2, 3, 4}}; }
__global__ void add(float *x, const float *y, int n) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) x[i] += y[i];
}

enum { N = 100 };
static PlStatus with_blocks(int kind) {
  void *x, *y;
  PL_TRY(plc_scratch(N * sizeof(float), &x));
  PL_TRY(plc_scratch(N * sizeof(float), &y));
  float *a = (float *)x, *b = (float *)y;
  switch (kind) {
  case 'f': // fine
    PLC_LAUNCH(fill, 4, 32, 0, a, N, 0);
    PLC_LAUNCH(fill, 4, 32, 0, b, N, 0);
    PLC_LAUNCH(add, 4, 32, 0, a, b, N);
    PLC_LAUNCH(neighbours, 1, 64, 64 * sizeof(float), a, true);
    break;
  case 'w': PLC_LAUNCH(fill, 4, 32, 0, a, N, 1); break; // 100 floats end where memory ends
  case 's': PLC_LAUNCH(fill, 4, 32, 0, a, N, -1); break;
  case 'r': PLC_LAUNCH(take, 4, 32, 0, a, b, N + 1); break;
  case 'g':
    plc_scratch_free(y);
    PLC_LAUNCH(add, 4, 32, 0, a, b, N);
    break;
  case 'l': PLC_LAUNCH(last_wins, 4, 32, 0, a); break;
  case 'b': PLC_LAUNCH(neighbours, 1, 64, 64 * sizeof(float), a, false); break;
  case 'p': PLC_LAUNCH(packs, 1, 8, 0, a + 1); break;
  case 'm': PLC_LAUNCH(shared_behind, 1, 64, 64 * sizeof(float), a); break;
  default: break;
  }
  plc_scratch_free(x);
  plc_scratch_free(y);
  return PL_OK;
}
// 99 floats leave four bytes of slack, which only a write shows.
static PlStatus into_slack(void) {
  void *x;
  PL_TRY(plc_scratch((N - 1) * sizeof(float), &x));
  PLC_LAUNCH(fill, 4, 32, 0, (float *)x, N, 0);
  plc_scratch_free(x);
  return PL_OK;
}

#define PLANT(name, ...)                                                            \
  extern "C" __attribute__((visibility("default"))) int plce_plant_##name(void *) { \
    (void)(__VA_ARGS__);                                                            \
    return 0;                                                                       \
  }
PLANT(fine, with_blocks('f'))
PLANT(write_behind, with_blocks('w'))
PLANT(write_before, with_blocks('s'))
PLANT(read_behind, with_blocks('r'))
PLANT(write_slack, into_slack())
PLANT(use_freed, with_blocks('g'))
PLANT(last_wins, with_blocks('l'))
PLANT(no_barrier, with_blocks('b'))
PLANT(not_aligned, with_blocks('p'))
PLANT(shared_behind, with_blocks('m'))

extern "C" int plce_events, plce_event_waits;
static int counts(void) {
  printf("events %d, waits for events %d\n", plce_events, plce_event_waits);
  return fflush(stdout);
}
PLANT(counts, counts())

extern "C" void plce_tell_launches(void);
static int launches(void) {
  plce_tell_launches();
  return fflush(stdout);
}
PLANT(launches, launches())
