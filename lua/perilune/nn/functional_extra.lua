-- SPDX-License-Identifier: MIT
--- More of nn.F: rrelu, dropout for SELU networks, embedding_bag, max_unpool, upsample.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"

local fail, describe, unpack = options.fail, options.describe, table.unpack

return function(F)
  local function floating(who, x)
    if not T.is_tensor(x) or not x:is_floating_point() then
      fail("%s: a floating tensor is wanted, got %s", who, describe(x))
    end
    return x
  end
  local function share(who, p)
    if type(p) ~= "number" or not (p >= 0 and p <= 1) then
      fail("%s: p must be a number from 0 to 1, got %s", who, describe(p))
    end
    return p
  end

  --- x where positive, else a x: in training a is uniform in [lower, upper) for each element, else their mean (Xu et
  -- al. 2015). Options `lower=1/8 upper=1/3 training=false`.
  function F.rrelu(x, lower, upper, training)
    floating("rrelu", x)
    if type(lower) == "table" then
      local o = options.check("rrelu", lower, { "lower", "upper", "training" })
      lower, upper, training = o.lower, o.upper, o.training
    end
    lower, upper = lower or 1 / 8, upper or 1 / 3
    if type(lower) ~= "number" or type(upper) ~= "number" or lower > upper then
      fail("rrelu: lower %s must be a number up to upper %s", describe(lower), describe(upper))
    end
    if not training then return T.leaky_relu(x, { negative_slope = (lower + upper) / 2 }) end
    return T.where(x:ge(0), x, x * T.uniform(lower, upper, x:shape(), { dtype = x:dtype(), device = x:device() }))
  end

  -- Dropped elements become SELU's lower limit; then mean and variance are put back (Klambauer et al. 2017).
  local limit = -1.7580993408473766
  local function alpha(who, x, mask_shape, p, training)
    floating(who, x)
    if type(p) == "table" then
      local o = options.check(who, p, { "p", "training" })
      p, training = o.p, o.training
    end
    p = share(who, p == nil and 0.5 or p)
    if training == nil then training = false end
    if not training or p == 0 then return x end
    if p == 1 then return x * 0 end
    local keep = T.bernoulli(T.zeros(mask_shape(x), { dtype = x:dtype(), device = x:device() }), 1 - p)
    local a = ((1 - p) * (1 + p * limit * limit)) ^ -0.5
    return (x * keep + (1 - keep) * limit) * a - a * limit * p
  end
  --- Dropout that keeps the mean and variance of SELU's outputs. Options `p=0.5 training=false`.
  function F.alpha_dropout(x, p, training)
    return alpha("alpha_dropout", x, function(t) return t:shape() end, p, training)
  end
  --- The same for whole channels of [N, C, *].
  function F.feature_alpha_dropout(x, p, training)
    return alpha("feature_alpha_dropout", x, function(t)
      local shape = t:shape()
      if #shape < 2 then fail("feature_alpha_dropout: [N, C, *] is wanted, got %s", describe(t)) end
      for d = 3, #shape do shape[d] = 1 end
      return shape
    end, p, training)
  end

  -- ---- bags of embeddings --------------------------------------------------------------------------------

  -- The reduction of the rows e [n, D] with weights and without what `skip` marks, into the bags 1 … count.
  local function bagged(mode, e, bag, count, weights, keep)
    local n, D = e:size(1), e:size(2)
    local shape, dtype, device = { count, D }, e:dtype(), e:device()
    if weights then e = e * weights:unsqueeze(2) end
    if keep then
      local kept = keep:nonzero():reshape(-1)
      e, bag, n = T.index_select(e, kept, 1), T.index_select(bag, kept, 1), kept:numel()
    end
    if mode == "max" then
      return T.scatter_reduce(T.zeros(shape, { dtype = dtype, device = device }), bag:unsqueeze(2):expand(n, D), e,
        { dim = 1, reduce = "amax", include_self = false })
    end
    local sum = T.index_add(T.zeros(shape, { dtype = dtype, device = device }), bag, e, { dim = 1 })
    if mode == "sum" then return sum end
    local one = T.ones({ n }, { device = device })
    local sizes = T.index_add(T.zeros({ count }, { device = device }), bag, one, { dim = 1 }):clamp { min = 1 }
    return sum / sizes:to(dtype):unsqueeze(2)
  end

  --- Sums, means or maxima of rows of weight [rows, D] over bags of ids: rows of ids [B, N], or one list [n] cut at
  -- `offsets`, the positions where bags begin. Options `mode="mean" per_sample_weights padding_idx
  -- include_last_offset=false index_base=1`; offsets are counted as the ids are.
  function F.embedding_bag(ids, weight, offsets, opts)
    local who = "embedding_bag"
    if type(offsets) == "table" and opts == nil then offsets, opts = nil, offsets end
    local o = options.check(who, opts, { "mode", "per_sample_weights", "padding_idx", "include_last_offset",
      "index_base" })
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
    local count, bag
    if ids:dim() == 2 then
      if offsets ~= nil then fail("%s: ids [B, N] are bags already; offsets go with ids [n]", who) end
      count = ids:size(1)
      bag = T.arange(count, { device = ids:device() }):unsqueeze(2):expand(count, ids:size(2)):reshape(-1)
    else
      if not T.is_tensor(offsets) or offsets:dim() ~= 1 or offsets:is_floating_point() then
        fail("%s: ids [n] need offsets, a vector of integers, got %s", who, describe(offsets))
      end
      count = offsets:numel() - (o.include_last_offset and 1 or 0)
      local starts = offsets:narrow(1, 1, math.max(count, 0)) - base + 1
      if count < 1 or starts:get(1) ~= 1 then fail("%s: the first offset must be %d", who, base) end
      if starts:max():item() > ids:numel() + 1 or (count > 1 and starts:diff():lt(0):any():item()) then
        fail("%s: offsets must not decrease, nor lie behind the %d ids", who, ids:numel())
      end
      bag = T.bucketize(T.arange(ids:numel(), { device = starts:device() }), starts, { right = true, index_base = 0 })
    end
    local flat = ids:reshape(-1)
    local keep = o.padding_idx and flat:ne(o.padding_idx) or nil
    local e = T.embedding(weight, flat, { padding_idx = o.padding_idx, index_base = base })
    return bagged(mode, e, bag, count, w and w:reshape(-1), keep)
  end

  -- ---- the other way round from max_pool --------------------------------------------------------------------

  local function per_dim(who, name, v, nd)
    local list = type(v) == "table" and v or nil
    if not list then
      list = {}
      for d = 1, nd do list[d] = v end
    end
    for d = 1, nd do
      if not options.integer(list[d]) then fail("%s: %s must be %d integers, got %s", who, name, nd, describe(v)) end
    end
    return list
  end
  for nd = 1, 3 do
    local who = ("max_unpool%dd"):format(nd)
    --- Zeros with the values of x [N, C, *] at the places that max_pool gave as indices. Options `stride=kernel_size
    -- padding=0 output_size index_base=1`.
    F[who] = function(x, indices, kernel_size, opts)
      floating(who, x)
      local o = options.check(who, opts, { "stride", "padding", "output_size", "index_base" })
      if not T.is_tensor(indices) or indices:is_floating_point()
        or table.concat(indices:shape(), ",") ~= table.concat(x:shape(), ",") then
        fail("%s: indices must be integers of x's shape %s, got %s", who, describe(x), describe(indices))
      end
      local rank = x:dim()
      if rank ~= nd + 1 and rank ~= nd + 2 then
        fail("%s: x must have %d or %d dimensions, got %s", who, nd + 1, nd + 2, describe(x))
      end
      local kernel = per_dim(who, "kernel_size", kernel_size, nd)
      local stride = per_dim(who, "stride", o.stride or kernel, nd)
      local padding = per_dim(who, "padding", o.padding or 0, nd)
      local s, size, plane = x:shape(), {}, 1
      for d = 1, nd do
        local want = (s[rank - nd + d] - 1) * stride[d] - 2 * padding[d] + kernel[d]
        local given = o.output_size and o.output_size[#o.output_size - nd + d]
        if given and (given <= want - stride[d] or given >= want + stride[d]) then
          fail("%s: output_size %d of dimension %d must lie between %d and %d", who, given, d, want - stride[d] + 1,
            want + stride[d] - 1)
        end
        size[d] = given or want
        plane = plane * size[d]
      end
      local lead, out = { unpack(s, 1, rank - nd) }, { unpack(s, 1, rank - nd) }
      for d = 1, nd do out[#out + 1] = size[d] end
      local flat, zeros = { unpack(lead) }, { unpack(lead) }
      flat[#flat + 1], zeros[#zeros + 1] = -1, plane
      local y = T.zeros(zeros, { dtype = x:dtype(), device = x:device() })
      y = T.scatter(y, indices:reshape(flat), x:reshape(flat), { dim = #zeros, index_base = o.index_base or 1 })
      return y:reshape(out)
    end
  end

  -- ---- other forms ---------------------------------------------------------------------------------------------

  F.upsample = F.interpolate
  for nd = 1, 3 do
    for _, kind in ipairs { "max_pool", "adaptive_max_pool" } do
      local pool = ("%s%dd"):format(kind, nd)
      --- The largest values and their places.
      F[pool .. "_with_indices"] = function(x, size, opts)
        local o = { return_indices = true }
        if opts ~= nil and type(opts) ~= "table" then
          fail("%s_with_indices: options must be a table, got %s", pool, describe(opts))
        end
        for key, v in pairs(opts or {}) do o[key] = v end
        return T[pool](x, size, o)
      end
    end
  end
end
