-- SPDX-License-Identifier: MIT
--- Rows of tables by number: embedding, embedding_bag.
-- @module perilune.nn.functional
local T = require "perilune"
local core = require "perilune.core"
local options = require "perilune.options"
local values = require "perilune.values"

local fail, describe = options.fail, options.describe

-- y, whose gradient is divided by how often ids has its row's id; its tangent is not, as in PyTorch.
local by_frequency = T.custom { name = "scale_grad_by_freq", forward = function(ctx, y, ids, base, rows)
  ctx:save(ids)
  ctx.base, ctx.rows = base, rows
  return y:view(y:shape())
end, backward = function(ctx, g)
  local ids = ctx:saved()
  local flat = ids:reshape(-1):long()
  local at, none = { dim = 1, index_base = ctx.base }, { dtype = "i64", device = flat:device() }
  local counts = T.index_add(T.zeros({ ctx.rows }, none), flat, T.ones_like(flat), at)
  local often = T.index_select(counts, flat, at)
  return g / often:to(g:dtype()):reshape(ids:shape()):unsqueeze(-1), nil
end, jvp = function(_, v) return v end }

return function(F)
  --- Rows of weight [rows, width] for ids of any shape: [*, width]. Options `padding_idx index_base=1`; with
  -- `scale_grad_by_freq` the gradient of a row is divided by how often ids has it.
  -- With `max_norm` rows that are read and whose `norm_type`-norm (2) is larger are first scaled down to it, in place.
  function F.embedding(ids, weight, opts)
    if opts == nil or opts.max_norm == nil and not (opts.scale_grad_by_freq and T.is_grad_enabled()) then
      return T.embedding(weight, ids, opts and { padding_idx = opts.padding_idx, index_base = opts.index_base })
    end
    local o = { padding_idx = opts.padding_idx, index_base = opts.index_base }
    if opts.scale_grad_by_freq then -- each row's gradient by how often ids has it
      local rest = { padding_idx = opts.padding_idx, index_base = opts.index_base, max_norm = opts.max_norm,
        norm_type = opts.norm_type }
      return by_frequency(F.embedding(ids, weight, rest), ids, o.index_base, weight:size(1))
    end
    T.no_grad(function()
      local at, p = { dim = 1, index_base = o.index_base }, opts.norm_type or 2.0
      if core.is_symbolic(ids) then -- which rows are read is not known yet: all are looked at, those read are scaled
        local none = { dtype = "i64", device = ids:device() }
        local read = T.index_fill(T.zeros({ weight:size(1) }, none), ids:reshape(-1), 1, at):gt(0):unsqueeze(2)
        local norm = weight:norm { p = p, dim = { 2 }, keepdim = true }
        weight:mul_(T.where(norm:gt(opts.max_norm):logical_and(read), opts.max_norm / (norm + 1e-7), T.ones_like(norm)))
        return
      end
      local rows = (ids:reshape(-1):unique())
      local read = T.index_select(weight, rows, at)
      local norm = read:norm { p = p, dim = { 2 }, keepdim = true }
      local scale = T.where(norm:gt(opts.max_norm), opts.max_norm / (norm + 1e-7), T.ones_like(norm))
      weight:index_copy_(1, rows, read * scale, { index_base = o.index_base })
    end)
    return T.embedding(weight, ids, o)
  end

  -- `most` [count, D], the maxima of the rows e [n, D] in each bag, read of the first row that has them: of ties that
  -- one gets the gradient, as in PyTorch.
  local function first_of(e, most, bag)
    local n, D = e:size(1), e:size(2)
    local own, seen = e:detach(), T.index_select(most, bag, { dim = 1 })
    local place = T.arange(0, n - 1, { device = e:device() }):unsqueeze(2)
    place = T.where(own:eq(seen):logical_or(own:isnan()), place, n):expand(n, D)
    local first = T.scatter_reduce(T.full(most:shape(), n, { dtype = "i64", device = e:device() }),
      bag:unsqueeze(2):expand(n, D), place, { dim = 1, reduce = "amin" })
    local empty = first:eq(n) -- a bag of nothing
    local read = T.gather(e, T.where(empty, 0, first), { dim = 1, index_base = 0 })
    return T.where(empty, most, read)
  end

  -- The reduction of the rows e [n, D] with weights and without what `skip` marks, into the bags 1 … count.
  local function bagged(mode, e, bag, count, weights, keep)
    local n, D = e:size(1), e:size(2)
    local shape, dtype, device = { count, D }, e:dtype(), e:device()
    local given = dtype
    local narrow = mode ~= "max" and (dtype == "f16" or dtype == "bf16") and (not weights or weights:dtype() == dtype)
    if narrow then -- products, sums and quotients in f32, rounded once
      e, weights, dtype = e:float(), weights and weights:float(), "f32"
    end
    local function result(y) return narrow and y:to(given) or y end
    if keep then
      e = T.where(keep:unsqueeze(2), e, mode == "max" and -math.huge or 0)
      weights = weights and T.where(keep, weights, 0)
    end
    if weights then e = e * weights:unsqueeze(2) end
    local function sizes() -- of bags, without what is skipped; whatever the default dtype is
      local exact = { dtype = "f32", device = device }
      local one = keep and keep:to "f32" or T.ones({ n }, exact)
      return T.index_add(T.zeros({ count }, exact), bag, one, { dim = 1 })
    end
    if mode == "max" then
      local tracked = T.is_grad_enabled()
      local most = T.scatter_reduce(T.zeros(shape, { dtype = dtype, device = device }),
        bag:unsqueeze(2):expand(n, D), tracked and e:detach() or e, { dim = 1, reduce = "amax", include_self = false })
      if tracked then most = first_of(e, most, bag) end
      return keep and T.where(sizes():eq(0):unsqueeze(2), 0, most) or most
    end
    local sum = T.index_add(T.zeros(shape, { dtype = dtype, device = device }), bag, e, { dim = 1 })
    if mode == "sum" then return result(sum) end
    return result(sum / sizes():clamp { min = 1 }:to(dtype):unsqueeze(2))
  end

  --- nn.F.embedding_bag(ids, weight, offsets, {mode="mean", per_sample_weights=, padding_idx=,
  --   include_last_offset=false, max_norm=, norm_type=2, scale_grad_by_freq=false, index_base=1}) → [B, D]
  -- Sums, means or maxima of rows of weight over bags of ids [B, N], or [n] cut at offsets; with include_last_offset
  -- the last offset is where the last bag ends, and ids from there on are in none. max_norm, norm_type and (for
  -- sums and means) scale_grad_by_freq as in nn.F.embedding.
  --   print(nn.F.embedding_bag(T.tensor({ { 1, 2 } }, { dtype = "i64" }), T.tensor { { 1 }, { 3 } }))
  --   --> {{2.}}  -- f32[1,1] cpu
  function F.embedding_bag(ids, weight, offsets, opts)
    local who = "embedding_bag"
    if type(offsets) == "table" and opts == nil then offsets, opts = nil, offsets end
    local o = options.check(who, opts, { "mode", "per_sample_weights", "padding_idx", "include_last_offset",
      "max_norm", "norm_type", "scale_grad_by_freq", "index_base" })
    local mode, base = o.mode or "mean", o.index_base or 1
    if mode ~= "sum" and mode ~= "mean" and mode ~= "max" then
      fail("%s: %s", who, options.unknown("mode", mode, { "sum", "mean", "max" }))
    end
    if not T.is_tensor(ids) or ids:is_floating_point() or (ids:dim() ~= 1 and ids:dim() ~= 2) then
      fail("%s: ids must be integers [B, N], or [n] with offsets, got %s", who, describe(ids))
    end
    local w = o.per_sample_weights
    if w and mode ~= "sum" then fail("%s: per_sample_weights go with mode \"sum\", not \"%s\"", who, mode) end
    if w and (not T.is_tensor(w) or w:numel() ~= ids:numel()) then
      fail("%s: per_sample_weights must have one number for each of %s, got %s", who, describe(ids), describe(w))
    end
    if o.scale_grad_by_freq and mode == "max" then
      fail('%s: scale_grad_by_freq goes with mode "sum" or "mean", not "max"', who)
    end
    local count, bag, ended
    if ids:dim() == 2 then
      if offsets ~= nil then fail("%s: ids [B, N] are bags already; offsets go with ids [n]", who) end
      count = ids:size(1)
      bag = T.arange(count, { device = ids:device() }):unsqueeze(2):expand(count, ids:size(2)):reshape(-1)
    else
      if not T.is_tensor(offsets) or offsets:dim() ~= 1 or offsets:is_floating_point() then
        fail("%s: ids [n] need offsets, a vector of integers, got %s", who, describe(offsets))
      end
      ended = o.include_last_offset
      count = offsets:numel() - (ended and 1 or 0)
      local starts = offsets - base + 1
      if count < 1 or values.some(starts:narrow(1, 1, 1), function(t) return t:ne(1) end) then
        fail("%s: the first offset must be %d", who, base)
      end
      local function behind(t) return t:gt(ids:numel() + 1) end
      local function less(t) return t:diff():lt(0) end
      if values.some(starts, behind) or starts:numel() > 1 and values.some(starts, less) then
        fail("%s: offsets must not decrease, nor be behind the %d ids", who, ids:numel())
      end
      bag = T.bucketize(T.arange(ids:numel(), { device = starts:device() }), starts, { right = true, index_base = 0 })
    end
    local flat = ids:reshape(-1)
    local padding = o.padding_idx
    if padding and padding < base then -- -1 is the last row, as in T.embedding
      if padding < 0 then padding = padding + weight:size(1) + base end
      if padding < base then fail("%s: padding_idx %d is no row of %s", who, o.padding_idx, describe(weight)) end
    end
    local keep = padding and flat:ne(padding) or nil
    local e = F.embedding(flat, weight, { padding_idx = padding, index_base = base, max_norm = o.max_norm,
      norm_type = o.norm_type, scale_grad_by_freq = o.scale_grad_by_freq })
    w = w and w:reshape(-1)
    if not ended then return bagged(mode, e, bag, count, w, keep) end
    return bagged(mode, e, bag, count + 1, w, keep):narrow(1, 1, count):contiguous() -- the last: ids behind the bags
  end
end
