/* SPDX-License-Identifier: MIT
 * cache_write: rows of [B,H] into rows of a longer third dim. */
#include <string.h>

#include "kernels/cpu/index/rowmove.h"
#include "kernels/index.h"

PlStatus plk_cpu_cache_write(const PlkCall *call) {
  const PlArray *src = call->in[1], *at = call->in[2];
  PlArray *cache = call->out[0];
  const int64_t base = pl_attr_i(call->attrs, 0), room = cache->shape[2], n = src->shape[2], batch = cache->shape[0];
  if (base != 0 && base != 1) PL_FAIL(PL_ERR_ARG, "%s: index_base %lld; it must be 0 or 1", call->name, (long long)base);
  for (int64_t b = 0; b < at->numel; b++) { /* all before the first write */
    const int64_t place = ((const int64_t *)at->data)[b], first = (int64_t)((uint64_t)place - (uint64_t)base);
    if (first < 0 || first > room - n)
      PL_FAIL(PL_ERR_INDEX, "%s: %lld places from %lld on do not fit into the %lld of the cache%s", call->name, (long long)n,
              (long long)place, (long long)room, place == 0 && base == 1 ? "; places count from 1, or pass index_base=0" : "");
  }
  const size_t size = pl_dtype_size((PlDtype)cache->dtype), row = (size_t)cache->shape[3] * size;
  const int64_t heads = cache->shape[1];
  if (n == 0 || row == 0) return PL_OK;
  for (int64_t h = 0; h < batch * heads; h++) {
    const int64_t first = ((const int64_t *)at->data)[at->numel > 1 ? h / heads : 0] - base;
    memcpy((char *)cache->data + (size_t)(h * room + first) * row, (const char *)src->data + (size_t)(h * n) * row, (size_t)n * row);
  }
  return PL_OK;
}
