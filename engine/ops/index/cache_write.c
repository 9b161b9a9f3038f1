/* SPDX-License-Identifier: MIT
 * A write at a place that a tensor says, for caches of keys and values: a graph that writes at another place each time stays the same. */
#include "engine/ops/index/index.h"

static PlStatus infer(PlInfer *c) {
  const PlArray *cache = c->in[0], *src = c->in[1], *at = c->in[2];
  PL_TRY(pl_check_ndim(c, 0, 4, 4));
  PL_TRY(pl_check_ndim(c, 1, 4, 4));
  PL_TRY(pl_check_same_dtype(c, 1, 0));
  PL_TRY(pl_check_dtype(c, 2, PL_I64));
  bool fits = at->numel == 1 || (at->ndim == 1 && at->shape[0] == cache->shape[0]);
  for (int d = 0; d < 4; d++) fits = fits && (d == 2 ? src->shape[d] <= cache->shape[d] : src->shape[d] == cache->shape[d]);
  if (!fits)
    PL_FAIL(PL_ERR_SHAPE, "cache_write: %s at %s into %s; both need the same sizes but for the third, and one place, or one for each B",
            pl_desc_text(src), pl_desc_text(at), pl_desc_text(cache));
  return pl_infer_same(c);
}

PL_OP(cache_write,
      .doc = "Writes src[B,H,n,D] into cache[B,H,S,D] from place `at` of the third dim on, an i64 tensor of one element, or "
             "of B for a place of each, in place.",
      .example = "local cache = T.zeros(1, 1, 3, 1)\n"
                 "T.cache_write_(cache, T.ones(1, 1, 1, 1), T.tensor({ 2 }, { dtype = \"i64\" }))\n"
                 "print(cache:flatten())  --> {0., 1., 0.}  -- f32[3] cpu",
      .nin = 3, .nout = 1, .nattr = 1, .args = {"cache", "src", "at"}, .attrs = {A_BASE}, .cls = PL_OPAQUE,
      .flags = PL_F_CONTIGUOUS | PL_F_MUTATES | PL_F_NOGRAD_OK | PL_F_NOMETHOD, .infer = infer, PL_KERNEL(cache_write));
