/* SPDX-License-Identifier: MIT
 * T.cuda.benchmark: which of several ways to compute the same is the fastest here. */
#ifndef PL_KERNELS_CUDA_LIBS_FASTEST_H
#define PL_KERNELS_CUDA_LIBS_FASTEST_H

#include "kernels/cuda/cuda.h"

enum { PLC_WAYS = 8 };

/* Puts one run of a way on the current stream; false: it does not run here. */
typedef bool (*PlcWayRun)(void *what, int way);

/* Times of n ways, at most PLC_WAYS, in ms a run; 0: it does not run. Every way is run before the first is timed (which loads
 * code and brings the clock up), samples of the ways alternate, and the median of a way's samples counts. Ways that take
 * more than twice the fastest's time are not looked at again. Some 100 ms, or one sample of each if that takes longer. */
PlStatus plc_ways_time(PlcWayRun run, void *what, int n, double *times);

/* The way to take: the first that runs (ways come with the library's best guess first), unless another is faster by 3 %. */
static inline int plc_ways_choose(int n, const double *times) {
  int best = -1;
  double clear = 0;
  for (int k = 0; k < n; k++) {
    if (!(times[k] > 0) || (best >= 0 && times[k] >= clear)) continue;
    clear = best < 0 ? 0.97 * times[k] : times[k];
    best = k;
  }
  return best < 0 ? 0 : best;
}

#endif
