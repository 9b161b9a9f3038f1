/* SPDX-License-Identifier: MIT
 * cache_write: src[B,H,n,D] into cache[B,H,S,D] from a place on that a tensor says, for all B or for each. A place that does not fit
 * writes nothing and is noted. */
#include "kernels/cuda/index/index.h"
extern "C" {
#include "kernels/index.h"
}

struct Cache {
  int64_t batch, heads, room, n, row; /* row: units of a row */
  const int64_t *at;
  bool each; /* a place for each B */
  int64_t base;
  PlcFlag *flag;
};

template <typename E> __global__ void write_rows(Cache c, const E *src, E *cache, const char *name) {
  const int64_t part = c.n * c.row; /* of one head */
  for (PLC_EACH(i, c.batch * c.heads * part)) {
    const int64_t h = i / part, rest = i - h * part, place = c.at[c.each ? h / c.heads : 0];
    const int64_t first = (int64_t)((uint64_t)place - (uint64_t)c.base);
    if (first < 0 || first > c.room - c.n) {
      plc_fault(c.flag, PLC_FAULT_INDEX, name, place, c.room - c.n + 1, (int)c.base);
      continue;
    }
    cache[(h * c.room + first) * c.row + rest] = src[i];
  }
}

template <typename E> static PlStatus launch(const PlkCall *call, Cache c, int64_t bytes) {
  c.row = bytes / (int64_t)sizeof(E);
  PLC_LAUNCH(write_rows<E>, plc_grid(c.batch * c.heads * c.n * c.row, 1), PLC_BLOCK, 0, c, (const E *)call->in[1]->data,
             (E *)call->out[0]->data, call->name);
  return PL_OK;
}

static PlStatus cache_write(const PlkCall *call) {
  const PlArray *src = call->in[1], *at = call->in[2], *cache = call->out[0];
  const int64_t base = pl_attr_i(call->attrs, 0), size = (int64_t)pl_dtype_size((PlDtype)cache->dtype), bytes = cache->shape[3] * size;
  if (base != 0 && base != 1) PL_FAIL(PL_ERR_ARG, "%s: index_base %lld; it must be 0 or 1", call->name, (long long)base);
  const Cache c = {cache->shape[0], cache->shape[1], cache->shape[2], src->shape[2], 0, (const int64_t *)at->data, at->numel > 1, base,
                   plc_flag()};
  if (src->numel == 0) return PL_OK;
  const uintptr_t both = (uintptr_t)src->data | (uintptr_t)cache->data | (uintptr_t)bytes;
  if (both % 16 == 0) return launch<Sixteen>(call, c, bytes);
  switch (size) {
  case 1: return launch<uint8_t>(call, c, bytes);
  case 2: return launch<uint16_t>(call, c, bytes);
  case 4: return launch<uint32_t>(call, c, bytes);
  default: return launch<uint64_t>(call, c, bytes);
  }
}
PLC_KERNEL(cache_write, cache_write)
