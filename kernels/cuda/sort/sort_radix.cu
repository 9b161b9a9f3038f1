/* SPDX-License-Identifier: MIT
 * See sort.h. A pass counts the digits of each tile, sums up what is before each digit of each tile, and moves the tile's
 * pairs there in order: warps own runs of a tile, and ballots rank equal digits inside a warp. */
#include "kernels/cuda/sort/sort.h"

namespace {

enum { TILE = 4096, WARPS = PLC_BLOCK / 32, RUN = TILE / WARPS, DIGITS = 256 };

/* hist[row][digit][tile] */
template <typename K> __global__ void count(int64_t n, int64_t tiles, int shift, const K *key, uint32_t *hist) {
  __shared__ uint32_t room[DIGITS];
  const int64_t row = (int64_t)blockIdx.x / tiles, tile = (int64_t)blockIdx.x % tiles;
  const int64_t end = (tile + 1) * TILE < n ? (tile + 1) * TILE : n;
  room[threadIdx.x] = 0;
  __syncthreads();
  for (int64_t i = tile * TILE + threadIdx.x; i < end; i += PLC_BLOCK) atomicAdd(&room[(uint32_t)(key[row * n + i] >> shift) & 255u], 1u);
  __syncthreads();
  hist[(row * DIGITS + threadIdx.x) * tiles + tile] = room[threadIdx.x];
}

/* Exclusive sums of 256 values, one a thread; room: 8 */
PLC_DEV uint32_t before(uint32_t v, uint32_t *room, uint32_t *all) {
  const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  uint32_t s = v;
  for (int d = 1; d < 32; d <<= 1) {
    const uint32_t o = __shfl_up_sync(0xffffffffu, s, d);
    if (lane >= d) s += o;
  }
  __syncthreads();
  if (lane == 31) room[warp] = s;
  __syncthreads();
  uint32_t left = 0, sum = 0;
  for (int w = 0; w < WARPS; w++) {
    if (w == warp) left = sum;
    sum += room[w];
  }
  *all = sum;
  return left + s - v;
}

/* A block for each digit of each row: its tiles' counts become what is before them, total[row][digit] their sum. */
__global__ void over_tiles(int64_t tiles, uint32_t *hist, uint32_t *total) {
  __shared__ uint32_t room[WARPS];
  uint32_t *h = hist + (int64_t)blockIdx.x * tiles, carry = 0, all;
  for (int64_t i = 0; i < tiles; i += PLC_BLOCK) {
    const int64_t at = i + threadIdx.x;
    const uint32_t b = before(at < tiles ? h[at] : 0, room, &all);
    if (at < tiles) h[at] = carry + b;
    carry += all;
  }
  if (threadIdx.x == 0) total[blockIdx.x] = carry;
}

template <typename K>
__global__ void scatter(int64_t n, int64_t tiles, int shift, const K *key, const uint32_t *at, const uint32_t *hist, const uint32_t *total,
                        K *key2, uint32_t *at2) { /* hist NULL: one tile, nothing is before it */
  __shared__ uint32_t next[WARPS][DIGITS], room[WARPS];
  const int t = (int)threadIdx.x, lane = t & 31, warp = t >> 5;
  const int64_t row = (int64_t)blockIdx.x / tiles, tile = (int64_t)blockIdx.x % tiles;
  const int64_t first = tile * TILE + warp * RUN, most = first + RUN < n ? first + RUN : n;
  uint32_t all, to = before(total[row * DIGITS + t], room, &all) + (hist ? hist[(row * DIGITS + t) * tiles + tile] : 0);
  key += row * n, at += row * n, key2 += row * n, at2 += row * n;
  for (int w = 0; w < WARPS; w++) next[w][t] = 0;
  __syncthreads();
  for (int64_t i = first + lane; i < most; i += 32) atomicAdd(&next[warp][(uint32_t)(key[i] >> shift) & 255u], 1u);
  __syncthreads();
  for (int w = 0; w < WARPS; w++) { /* a thread a digit */
    const uint32_t c = next[w][t];
    next[w][t] = to;
    to += c;
  }
  __syncthreads();
  for (int64_t i0 = first; i0 < first + RUN; i0 += 32) {
    const int64_t i = i0 + lane;
    const bool in = i < most;
    const K k = in ? key[i] : (K)0;
    const uint32_t digit = (uint32_t)(k >> shift) & 255u;
    unsigned same = __ballot_sync(0xffffffffu, in);
    for (int b = 0; b < 8; b++) {
      const unsigned bit = __ballot_sync(0xffffffffu, (int)(digit >> b & 1u));
      same &= digit >> b & 1u ? bit : ~bit;
    }
    uint32_t slot = 0;
    if (in) slot = next[warp][digit] + (uint32_t)__popc(same & ((1u << lane) - 1u));
    __syncwarp();
    if (in && lane == __ffs((int)same) - 1) next[warp][digit] += (uint32_t)__popc(same);
    __syncwarp();
    if (in) {
      key2[slot] = k;
      at2[slot] = at[i];
    }
  }
}

template <typename K> PlStatus sort_pairs(plc_pairs<K> *p, int64_t rows, int64_t n, int bits) {
  const int64_t tiles = (n + TILE - 1) / TILE;
  void *mem;
  if (rows == 0 || n == 0) return PL_OK;
  if (n > INT32_MAX || rows * tiles > INT32_MAX)
    PL_FAIL(PL_ERR_UNSUPPORTED, "sorting %lld rows of %lld elements is more than the device's kernel takes; sort on the CPU",
            (long long)rows, (long long)n);
  PL_TRY(plc_scratch((size_t)(rows * DIGITS * (tiles + 1)) * sizeof(uint32_t), &mem));
  uint32_t *total = (uint32_t *)mem, *hist = tiles > 1 ? total + rows * DIGITS : NULL;
  for (int shift = 0; shift < bits; shift += 8) {
    PLC_LAUNCH(count<K>, (unsigned)(rows * tiles), PLC_BLOCK, 0, n, tiles, shift, p->key, hist ? hist : total);
    if (hist) PLC_LAUNCH(over_tiles, (unsigned)(rows * DIGITS), PLC_BLOCK, 0, tiles, hist, total);
    PLC_LAUNCH(scatter<K>, (unsigned)(rows * tiles), PLC_BLOCK, 0, n, tiles, shift, p->key, p->at, hist, total, p->key2, p->at2);
    K *k = p->key;
    uint32_t *a = p->at;
    p->key = p->key2, p->at = p->at2, p->key2 = k, p->at2 = a;
  }
  plc_scratch_free(mem);
  return PL_OK;
}

/* `width` threads a destination: its pairs are found by bisection and added in a fixed order. */
__global__ void sum_sorted(int64_t n, const uint32_t *key, const uint32_t *at, int xtype, const void *x, int64_t m, int ytype, void *y,
                           int width) {
  __shared__ double room[32];
  const int t = (int)threadIdx.x % width;
  const int64_t d = (int64_t)blockIdx.x * (PLC_BLOCK / width) + (int)threadIdx.x / width;
  int64_t bound[2] = {0, 0};
  for (int b = 0; b < 2 && d < m; b++) { /* the first key that is not below d, not below d + 1 */
    int64_t lo = bound[0], hi = n;
    while (lo < hi) {
      const int64_t mid = lo + (hi - lo) / 2;
      if ((int64_t)key[mid] < d + b) lo = mid + 1;
      else hi = mid;
    }
    bound[b] = lo;
  }
  double sum = 0;
  for (int64_t i = bound[0] + t; i < bound[1]; i += width) sum += plc_get_f(x, xtype, at[i]);
  if (width == 32) sum = plc_warp_all(sum, plc_sum());
  else if (width == PLC_BLOCK) sum = plc_block_all(sum, plc_sum(), 0.0, room);
  if (d < m && t == 0) plc_put_f(y, ytype, d, sum);
}

} // namespace

PlStatus plc_sum_sorted(const plc_pairs<uint32_t> *p, int64_t n, int xtype, const void *x, int64_t m, int ytype, void *y) {
  const int width = m < 1024 ? PLC_BLOCK : n / m >= 16 ? 32 : 1, each = PLC_BLOCK / width;
  if (m == 0) return PL_OK;
  PLC_LAUNCH(sum_sorted, (unsigned)((m + each - 1) / each), PLC_BLOCK, 0, n, p->key, p->at, xtype, x, m, ytype, y, width);
  return PL_OK;
}

PlStatus plc_sort_pairs(plc_pairs<uint32_t> *p, int64_t rows, int64_t n, int bits) { return sort_pairs(p, rows, n, bits); }
PlStatus plc_sort_pairs(plc_pairs<uint64_t> *p, int64_t rows, int64_t n, int bits) { return sort_pairs(p, rows, n, bits); }
