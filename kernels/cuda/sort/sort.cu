/* SPDX-License-Identifier: MIT
 * sort, argsort, topk, kthvalue, median, mode along a dim, in kernels/cpu/sort/sort.c's order: by keys that order like the values
 * (NaN last, -0 equal to 0), then by position. Short rows in shared memory; long ones by radix passes; a few of many by
 * radix selection of the last one's key. */
#include "kernels/cuda/sort/sort.h"
#include "kernels/sort.h"

namespace {

enum { SHORT = 2048, SELECT_ROWS = 8 };

struct Job {
  plc_rows r;
  int64_t k, base; /* k: results of a row, or which one is the result */
  int code, dtype, bits;
  bool descending, single;
};

PLC_DEV int64_t place(const Job &j, int64_t row, int64_t i) {
  return j.r.inner == 1 ? row * j.r.n + i : (row / j.r.inner * j.r.n + i) * j.r.inner + row % j.r.inner;
}
PLC_DEV uint64_t key_at(const Job &j, const void *x, int64_t row, int64_t i) {
  const uint64_t k = plc_key(x, j.dtype, place(j, row, i));
  return j.descending ? k ^ (~(uint64_t)0 >> (64 - j.bits)) : k;
}
/* Result i of a row is the element at position `at`. */
PLC_DEV void give(const Job &j, int64_t row, int64_t i, int64_t at, const void *x, void *y, int64_t *index) {
  const int64_t m = j.single ? 1 : j.k, to = (row / j.r.inner * m + i) * j.r.inner + row % j.r.inner;
  if (y) plc_move(y, to, x, place(j, row, at), plc_size(j.dtype));
  if (index) index[to] = at + j.base;
}

/* Of a sorted row: the first of the longest groups of equal keys, its last member. room: 8 words */
template <typename K> PLC_DEV int64_t mode_of(const K *key, int64_t n, uint64_t *room) {
  uint64_t best = 0;
  for (int64_t i = threadIdx.x; i < n; i += PLC_BLOCK) {
    if (i + 1 < n && key[i + 1] == key[i]) continue;
    int64_t lo = 0, hi = i;
    while (lo < hi) {
      const int64_t mid = (lo + hi) / 2;
      if (key[mid] < key[i]) lo = mid + 1;
      else hi = mid;
    }
    const uint64_t v = (uint64_t)(i - lo + 1) << 32 | (uint64_t)(0xffffffffu - (uint32_t)i);
    if (v > best) best = v;
  }
  best = plc_block_all(best, plc_max(), (uint64_t)0, room);
  return (int64_t)(0xffffffffu - (uint32_t)best);
}
/* Which of a sorted row is the result of kthvalue, median, mode. */
template <typename K> PLC_DEV int64_t chosen(const Job &j, const K *key, uint64_t *room) {
  if (j.code == PLK_O_MODE) return mode_of(key, j.r.n, room);
  const uint64_t nan = plc_key_nan(j.dtype);
  if (j.code != PLK_O_MEDIAN || j.dtype > PL_BF16 || (uint64_t)key[j.r.n - 1] != nan) return j.k;
  int64_t lo = 0, hi = j.r.n - 1; /* NaN takes everything: the first one */
  while (lo < hi) {
    const int64_t mid = (lo + hi) / 2;
    if ((uint64_t)key[mid] < nan) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

/* Bitonic sort (Batcher 1968) of `each` segments of `size` pairs, a power of two, by key and position. */
PLC_DEV void bitonic(uint64_t *key, uint32_t *at, int size, int all) {
  for (int k = 2; k <= size; k <<= 1)
    for (int d = k >> 1; d > 0; d >>= 1) {
      __syncthreads();
      for (int i = (int)threadIdx.x; i < all / 2; i += PLC_BLOCK) {
        const int a = 2 * i - (i & (d - 1)), b = a + d;
        const bool up = (a & (size - 1) & k) == 0;
        const bool swap = key[a] > key[b] || (key[a] == key[b] && at[a] > at[b]);
        if (swap != up) continue;
        const uint64_t t = key[a];
        key[a] = key[b], key[b] = t;
        const uint32_t u = at[a];
        at[a] = at[b], at[b] = u;
      }
    }
  __syncthreads();
}

/* `each` rows a block. */
__global__ void sort_short(Job j, int size, int each, const void *x, void *y, int64_t *index) {
  PLC_SHARED(uint64_t, key);
  __shared__ uint64_t room[32];
  uint32_t *at = (uint32_t *)(key + size * each);
  const int64_t rows = j.r.outer * j.r.inner, row0 = (int64_t)blockIdx.x * each;
  for (int e = (int)threadIdx.x; e < size * each; e += PLC_BLOCK) {
    const int64_t row = row0 + e / size;
    const int i = e % size;
    const bool in = row < rows && i < j.r.n;
    key[e] = in ? key_at(j, x, row, i) : ~(uint64_t)0;
    at[e] = in ? (uint32_t)i : 0x80000000u + (uint32_t)i;
  }
  bitonic(key, at, size, size * each);
  if (j.single) {
    for (int s = 0; s < each; s++) {
      const int64_t i = chosen(j, key + s * size, room);
      if (threadIdx.x == 0 && row0 + s < rows) give(j, row0 + s, 0, at[s * size + i], x, y, index);
    }
    return;
  }
  for (int e = (int)threadIdx.x; e < size * each; e += PLC_BLOCK)
    if (row0 + e / size < rows && e % size < j.k) give(j, row0 + e / size, e % size, at[e], x, y, index);
}

/* ---- long rows --------------------------------------------------------------------------------------------------------- */

template <typename K> __global__ void make_pairs(Job j, int64_t row0, int64_t rows, const void *x, K *key, uint32_t *at) {
  for (PLC_EACH(e, rows * j.r.n)) {
    const int64_t row = e / j.r.n, i = e - row * j.r.n;
    key[e] = (K)key_at(j, x, row0 + row, i);
    at[e] = (uint32_t)i;
  }
}
template <typename K>
__global__ void give_pairs(Job j, int64_t row0, int64_t rows, const uint32_t *at, const void *x, void *y, int64_t *index) {
  for (PLC_EACH(e, rows * j.k)) {
    const int64_t row = e / j.k, i = e - row * j.k;
    give(j, row0 + row, i, at[row * j.r.n + i], x, y, index);
  }
}
template <typename K>
__global__ void give_one(Job j, int64_t row0, const K *key, const uint32_t *at, const void *x, void *y, int64_t *index) {
  __shared__ uint64_t room[32];
  const int64_t row = (int64_t)blockIdx.x, i = chosen(j, key + row * j.r.n, room);
  if (threadIdx.x == 0) give(j, row0 + row, 0, at[row * j.r.n + i], x, y, index);
}

template <typename K> PlStatus sort_long(const Job &j, const void *x, void *y, int64_t *index) {
  const int64_t all = j.r.outer * j.r.inner, n = j.r.n, fit = ((int64_t)1 << 26) / n, some = fit < 1 ? 1 : fit < all ? fit : all;
  plc_pairs<K> p;
  void *mem;
  PL_TRY(plc_pairs_room(&p, some * n, &mem));
  for (int64_t row = 0; row < all; row += some) {
    const int64_t rows = all - row < some ? all - row : some;
    PLC_LAUNCH(make_pairs<K>, plc_grid(rows * n, 1), PLC_BLOCK, 0, j, row, rows, x, p.key, p.at);
    PlStatus s = plc_sort_pairs(&p, rows, n, j.bits);
    if (s != PL_OK) {
      plc_scratch_free(mem);
      return s;
    }
    if (j.single) PLC_LAUNCH(give_one<K>, (unsigned)rows, PLC_BLOCK, 0, j, row, p.key, p.at, x, y, index);
    else PLC_LAUNCH(give_pairs<K>, plc_grid(rows * j.k, 1), PLC_BLOCK, 0, j, row, rows, p.at, x, y, index);
  }
  plc_scratch_free(mem);
  return PL_OK;
}

/* ---- a few of many ------------------------------------------------------------------------------------------------------- */

/* A block a row: the key of rank k (from 1) byte by byte, then its equals in order of position. topk collects what comes
 * before and sorts it; kthvalue and median give the last one. */
__global__ void select(Job j, int64_t rank, int size, const void *x, void *y, int64_t *index) {
  PLC_SHARED(uint64_t, key);
  __shared__ uint64_t room[32], prefix;
  __shared__ uint32_t hist[256], many, warp_n[8];
  __shared__ int64_t need;
  uint32_t *at = (uint32_t *)(key + size);
  const int64_t row = (int64_t)blockIdx.x, n = j.r.n;
  const int t = (int)threadIdx.x, lane = t & 31, warp = t >> 5;
  if (t == 0) prefix = 0, need = rank, many = 0;
  if (j.code == PLK_O_MEDIAN && j.dtype <= PL_BF16) { /* NaN takes everything: the first one */
    uint64_t first = ~(uint64_t)0;
    for (int64_t i = t; i < n; i += PLC_BLOCK)
      if (key_at(j, x, row, i) == plc_key_nan(j.dtype) && (uint64_t)i < first) first = (uint64_t)i;
    first = plc_block_all(first, plc_min(), ~(uint64_t)0, room);
    if (first != ~(uint64_t)0) {
      if (t == 0) give(j, row, 0, (int64_t)first, x, y, index);
      return;
    }
  }
  uint64_t mask = 0;
  for (int shift = j.bits - 8; shift >= 0; shift -= 8) {
    hist[t] = 0;
    __syncthreads();
    const uint64_t want = prefix;
    for (int64_t i = t; i < n; i += PLC_BLOCK) {
      const uint64_t k = key_at(j, x, row, i);
      if ((k & mask) == want) atomicAdd(&hist[(uint32_t)(k >> shift) & 255u], 1u);
    }
    __syncthreads();
    if (t == 0) {
      int64_t left = need;
      int d = 0;
      while (d < 255 && left > (int64_t)hist[d]) left -= hist[d++];
      need = left;
      prefix = want | (uint64_t)d << shift;
    }
    mask |= (uint64_t)255 << shift;
    __syncthreads();
  }
  const uint64_t last = prefix;
  const int64_t equals = need; /* how many of them, from the first position on */
  int64_t met = 0;
  for (int64_t i0 = 0; i0 < n; i0 += PLC_BLOCK) {
    const int64_t i = i0 + t;
    const uint64_t k = i < n ? key_at(j, x, row, i) : 0;
    const bool tie = i < n && k == last;
    const unsigned ties = __ballot_sync(0xffffffffu, tie);
    if (lane == 0) warp_n[warp] = (uint32_t)__popc(ties);
    __syncthreads();
    int64_t mine = met + __popc(ties & ((1u << lane) - 1u));
    for (int w = 0; w < 8; w++) {
      if (w < warp) mine += warp_n[w];
      met += warp_n[w];
    }
    const bool take = tie && mine < equals;
    if (j.single) {
      if (take && mine == equals - 1) give(j, row, 0, i, x, y, index);
    } else if (take || (i < n && k < last)) {
      const uint32_t slot = atomicAdd(&many, 1u); /* any order: they are sorted below */
      key[slot] = k;
      at[slot] = (uint32_t)i;
    }
    __syncthreads();
    if (j.single && met >= equals) return;
  }
  for (int e = t; e < size; e += PLC_BLOCK)
    if (e >= j.k) key[e] = ~(uint64_t)0, at[e] = 0x80000000u + (uint32_t)e;
  bitonic(key, at, size, size);
  for (int64_t e = t; e < j.k; e += PLC_BLOCK) give(j, row, e, at[e], x, y, index);
}

__global__ void fill_median(int64_t n, int dtype, int64_t base, void *y, int64_t *index) {
  for (PLC_EACH(i, n)) {
    if (y) plc_put_f(y, dtype, i, (double)NAN);
    if (index) index[i] = base;
  }
}

int power_of_two(int64_t n) {
  int p = 2;
  while (p < n) p <<= 1;
  return p;
}

PlStatus sorted(const PlkCall *call) {
  const PlArray *x = call->in[0];
  const bool has_k = call->code == PLK_O_TOPK || call->code == PLK_O_KTH, only_at = call->code == PLK_O_ARGSORT;
  const int kdim = has_k ? 1 : 0, kbase = call->code == PLK_O_TOPK ? 4 : call->code <= PLK_O_ARGSORT || has_k ? 3 : 2;
  const bool flat = !pl_attr_has(call->attrs, kdim);
  Job j = {plc_rows_of(x, flat ? -1 : pl_attr_i(call->attrs, kdim)),
           0,
           pl_attr_i(call->attrs, kbase),
           call->code,
           (int)x->dtype,
           plc_key_bits(x->dtype),
           false,
           false};
  const int64_t n = j.r.n, rows = j.r.outer * j.r.inner;
  PlArray *values = only_at ? NULL : call->out[0], *at = call->out[only_at ? 0 : 1];
  void *y = values ? values->data : NULL;
  int64_t *index = at ? (int64_t *)at->data : NULL;
  if (rows == 0) return PL_OK;
  if (n == 0) { /* the median of nothing is NaN */
    if (call->code == PLK_O_MEDIAN && flat) PLC_LAUNCH(fill_median, 1, PLC_BLOCK, 0, (int64_t)1, j.dtype, j.base, y, index);
    return PL_OK;
  }
  j.k = n;
  j.single = !(call->code == PLK_O_SORT || only_at || call->code == PLK_O_TOPK);
  if (call->code == PLK_O_TOPK) j.k = pl_attr_i(call->attrs, 0), j.descending = pl_attr_i(call->attrs, 2) != 0;
  else if (!j.single) j.descending = pl_attr_i(call->attrs, 1) != 0;
  else j.k = call->code == PLK_O_KTH ? pl_attr_i(call->attrs, 0) - 1 : call->code == PLK_O_MEDIAN ? (n - 1) / 2 : 0;
  if (j.k == 0 && !j.single) return PL_OK;
  if (n <= SHORT) {
    const int size = power_of_two(n), each = size >= 512 ? 1 : 512 / size;
    PLC_LAUNCH(sort_short, (unsigned)((rows + each - 1) / each), PLC_BLOCK, size * each * 12, j, size, each, x->data, y, index);
    return PL_OK;
  }
  const bool few = j.single ? call->code != PLK_O_MODE : call->code == PLK_O_TOPK && j.k <= SHORT;
  if (few && rows <= INT32_MAX && n <= INT32_MAX && (rows >= SELECT_ROWS || n <= (1 << 18))) {
    const int size = j.single ? 2 : power_of_two(j.k);
    PLC_LAUNCH(select, (unsigned)rows, PLC_BLOCK, size * 12, j, j.single ? j.k + 1 : j.k, size, x->data, y, index);
    return PL_OK;
  }
  return j.bits <= 32 ? sort_long<uint32_t>(j, x->data, y, index) : sort_long<uint64_t>(j, x->data, y, index);
}

} // namespace

PLC_KERNEL(sort, sorted)
PLC_KERNEL(mode, sorted)
