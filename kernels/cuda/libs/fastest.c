/* SPDX-License-Identifier: MIT
 * See fastest.h. */
#include "kernels/cuda/libs/fastest.h"

#include <string.h>

enum { ROUNDS = 9, MOST_RUNS = 20 };
static const double SAMPLE = 0.3, BUDGET = 100, WARM = 10; /* ms */

/* ms of a sample of `runs` runs, a run; 0: it does not run. */
static double sample(PlcWayRun run, void *what, int way, int runs, cudaEvent_t *e) {
  float ms = 0;
  bool fine = cudaEventRecord(e[0], plc_stream()) == cudaSuccess;
  for (int k = 0; k < runs && fine; k++) fine = run(what, way);
  fine = fine && cudaEventRecord(e[1], plc_stream()) == cudaSuccess && cudaEventSynchronize(e[1]) == cudaSuccess &&
         cudaEventElapsedTime(&ms, e[0], e[1]) == cudaSuccess;
  return fine && ms > 0 ? (double)ms / runs : 0;
}

static double median(double *v, int n) {
  for (int i = 1; i < n; i++)
    for (int k = i; k > 0 && v[k] < v[k - 1]; k--) {
      const double t = v[k];
      v[k] = v[k - 1], v[k - 1] = t;
    }
  return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static double least(int n, const double *times) {
  double best = 0;
  for (int k = 0; k < n; k++)
    if (times[k] > 0 && (best <= 0 || times[k] < best)) best = times[k];
  return best;
}

static void time_all(PlcWayRun run, void *what, int n, double *times, cudaEvent_t *e) {
  double seen[PLC_WAYS][ROUNDS], spent = 0;
  int runs[PLC_WAYS] = {0};                                          /* of a sample; 0: not looked at again */
  for (int k = 0; k < n; k++) times[k] = sample(run, what, k, 1, e); /* may load code */
  for (int round = 0; round < 16 && spent < WARM && least(n, times) > 0; round++)
    for (int k = 0; k < n; k++) {
      if (times[k] <= 0) continue;
      times[k] = sample(run, what, k, 1, e);
      spent += times[k];
    }
  spent = 0;
  for (int round = 0; round < ROUNDS && (round == 0 || spent < BUDGET); round++) {
    const double best = least(n, times);
    for (int i = 0; i < n; i++) {
      const int k = (i + round) % n; /* who comes behind whom changes */
      if (times[k] <= 0 || times[k] > 2 * best || (round > 0 && runs[k] == 0)) {
        runs[k] = 0;
        continue;
      }
      if (round == 0) {
        const double fit = SAMPLE / times[k];
        runs[k] = fit < 1 ? 1 : fit > MOST_RUNS ? MOST_RUNS : (int)fit;
      }
      seen[k][round] = sample(run, what, k, runs[k], e);
      spent += seen[k][round] * runs[k];
    }
    for (int k = 0; k < n; k++) {
      double sorted[ROUNDS];
      if (runs[k] == 0) continue;
      memcpy(sorted, seen[k], (size_t)(round + 1) * sizeof *sorted);
      times[k] = seen[k][round] > 0 ? median(sorted, round + 1) : 0;
    }
  }
}

PlStatus plc_ways_time(PlcWayRun run, void *what, int n, double *times) {
  cudaEvent_t e[2];
  for (int k = 0; k < n; k++) times[k] = 0;
  PLC_TRY(cudaEventCreateWithFlags(&e[0], cudaEventDefault));
  const cudaError_t made = cudaEventCreateWithFlags(&e[1], cudaEventDefault);
  if (made == cudaSuccess) {
    time_all(run, what, n < PLC_WAYS ? n : PLC_WAYS, times, e);
    (void)cudaEventDestroy(e[1]);
  }
  (void)cudaEventDestroy(e[0]);
  if (made != cudaSuccess) return plc_failed(made, "making an event", __FILE__, __LINE__);
  return plc_alive();
}
