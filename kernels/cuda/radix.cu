/* SPDX-License-Identifier: MIT
 * See radix.h. Least significant digit first, four bits a pass: a block counts the digits of its tile thread by thread, one
 * block adds all counts up in digit order, then every element knows its place. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/radix.h"

enum { DIGITS = 16, THREADS = 256, EACH = 8, TILE = THREADS * EACH };

__global__ void first_ids(int64_t *ids, int64_t n) {
  for (PLC_EACH(i, n)) ids[i] = i;
}

/* counts[digit][tile] */
__global__ void count_digits(const uint64_t *keys, int64_t n, int shift, int64_t tiles, int64_t *counts) {
  __shared__ int seen[DIGITS][THREADS];
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    for (int d = 0; d < DIGITS; d++) seen[d][threadIdx.x] = 0;
    for (int e = 0; e < EACH; e++) {
      int64_t i = t * TILE + (int64_t)threadIdx.x * EACH + e;
      if (i < n) seen[(keys[i] >> shift) & (DIGITS - 1)][threadIdx.x]++;
    }
    __syncthreads();
    if (threadIdx.x < DIGITS) {
      int64_t sum = 0;
      for (int k = 0; k < THREADS; k++) sum += seen[threadIdx.x][k];
      counts[(int64_t)threadIdx.x * tiles + t] = sum;
    }
    __syncthreads();
  }
}

/* v[i] := sum of v before i; one block. *total gets the sum. */
__global__ void running_sums(int64_t *v, int64_t n, int64_t *total) {
  __shared__ int64_t sums[THREADS];
  int64_t each = (n + THREADS - 1) / THREADS, begin = (int64_t)threadIdx.x * each, end = begin + each < n ? begin + each : n, sum = 0;
  for (int64_t i = begin; i < end; i++) sum += v[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    int64_t at = 0;
    for (int k = 0; k < THREADS; k++) {
      int64_t s = sums[k];
      sums[k] = at;
      at += s;
    }
    if (total) *total = at;
  }
  __syncthreads();
  int64_t at = sums[threadIdx.x];
  for (int64_t i = begin; i < end; i++) {
    int64_t s = v[i];
    v[i] = at;
    at += s;
  }
}

__global__ void place(const uint64_t *keys, const int64_t *ids, int64_t n, int shift, int64_t tiles, const int64_t *starts, uint64_t *to_keys,
                      int64_t *to_ids) {
  __shared__ int seen[DIGITS][THREADS];
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    for (int d = 0; d < DIGITS; d++) seen[d][threadIdx.x] = 0;
    for (int e = 0; e < EACH; e++) {
      int64_t i = t * TILE + (int64_t)threadIdx.x * EACH + e;
      if (i < n) seen[(keys[i] >> shift) & (DIGITS - 1)][threadIdx.x]++;
    }
    __syncthreads();
    if (threadIdx.x < DIGITS) { /* counts of the threads before, per digit */
      int at = 0;
      for (int k = 0; k < THREADS; k++) {
        int c = seen[threadIdx.x][k];
        seen[threadIdx.x][k] = at;
        at += c;
      }
    }
    __syncthreads();
    for (int e = 0; e < EACH; e++) {
      int64_t i = t * TILE + (int64_t)threadIdx.x * EACH + e;
      if (i >= n) continue;
      int d = (int)((keys[i] >> shift) & (DIGITS - 1));
      int64_t to = starts[(int64_t)d * tiles + t] + seen[d][threadIdx.x]++;
      to_keys[to] = keys[i];
      to_ids[to] = ids[i];
    }
    __syncthreads();
  }
}

extern "C" PlStatus plc_radix_sort(uint64_t *keys, int64_t *ids, int64_t n, int bits, uint64_t **keys_out, int64_t **ids_out) {
  uint64_t *k[2] = {keys, keys + n};
  int64_t *v[2] = {ids, ids + n}, tiles = (n + TILE - 1) / TILE;
  void *counts;
  *keys_out = keys;
  *ids_out = ids;
  if (n == 0) return PL_OK;
  PLC_LAUNCH(first_ids, plc_grid(n, 1), PLC_BLOCK, 0, ids, n);
  PL_TRY(plc_scratch((size_t)(tiles * DIGITS) * sizeof(int64_t), &counts));
  unsigned blocks = (unsigned)(tiles < 1 << 16 ? tiles : 1 << 16);
  int now = 0;
  for (int shift = 0; shift < bits; shift += 4, now = 1 - now) {
    PLC_LAUNCH(count_digits, blocks, THREADS, 0, (const uint64_t *)k[now], n, shift, tiles, (int64_t *)counts);
    PLC_LAUNCH(running_sums, 1, THREADS, 0, (int64_t *)counts, tiles * DIGITS, (int64_t *)NULL);
    PLC_LAUNCH(place, blocks, THREADS, 0, (const uint64_t *)k[now], (const int64_t *)v[now], n, shift, tiles, (const int64_t *)counts,
               k[1 - now], v[1 - now]);
  }
  plc_scratch_free(counts);
  *keys_out = k[now];
  *ids_out = v[now];
  return PL_OK;
}

/* ---- positions of what is not 0 ------------------------------------------------------------------------------------------ */

PLC_DEV bool set_at(const plc_layout<1> &l, const void *x, int dtype, int64_t i) {
  int64_t at[1];
  plc_offsets<1>(l, i, at);
  return plc_f64_at(x, dtype, at[0]) != 0;
}
/* Each thread's EACH elements: how many are set. */
__global__ void count_set(plc_layout<1> l, const void *x, int dtype, int64_t threads, int64_t *counts) {
  for (PLC_EACH(t, threads)) {
    int64_t c = 0;
    for (int64_t i = t * EACH; i < (t + 1) * EACH && i < l.numel; i++) c += set_at(l, x, dtype, i);
    counts[t] = c;
  }
}
__global__ void put_set(plc_layout<1> l, const void *x, int dtype, int64_t threads, const int64_t *starts, int64_t *positions) {
  for (PLC_EACH(t, threads)) {
    int64_t to = starts[t];
    for (int64_t i = t * EACH; i < (t + 1) * EACH && i < l.numel; i++)
      if (set_at(l, x, dtype, i)) positions[to++] = i;
  }
}

extern "C" PlStatus plc_nonzero(const PlArray *a, int64_t **positions, int64_t *count) {
  const PlArray *arr[1] = {a};
  plc_layout<1> l;
  int64_t threads = (a->numel + EACH - 1) / EACH;
  void *counts = NULL, *found = NULL;
  plc_layout_of<1>(&l, arr);
  *count = 0;
  PL_TRY(plc_scratch((size_t)(threads + 1) * sizeof(int64_t), &counts));
  PlStatus s = PL_OK;
  if (threads) {
    PLC_LAUNCH(count_set, plc_grid(threads, 1), PLC_BLOCK, 0, l, (const void *)a->data, (int)a->dtype, threads, (int64_t *)counts);
    PLC_LAUNCH(running_sums, 1, THREADS, 0, (int64_t *)counts, threads, (int64_t *)counts + threads);
    s = plc_download(count, (int64_t *)counts + threads, sizeof *count);
  }
  if (s == PL_OK) s = plc_scratch((size_t)(*count ? *count : 1) * sizeof(int64_t), &found);
  if (s == PL_OK && *count)
    PLC_LAUNCH(put_set, plc_grid(threads, 1), PLC_BLOCK, 0, l, (const void *)a->data, (int)a->dtype, threads, (const int64_t *)counts,
               (int64_t *)found);
  plc_scratch_free(counts);
  if (s == PL_OK) *positions = (int64_t *)found;
  return s;
}
