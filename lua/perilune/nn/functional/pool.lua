-- SPDX-License-Identifier: MIT
--- Pooling made of other ops: by powers (lp_pool), its inverse (max_unpool), maxima with their places.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"

local fail, describe, unpack = options.fail, options.describe, table.unpack

return function(F)
  -- ---- powers -----------------------------------------------------------------------------------------------

  --- nn.F.lp_pool1d(x, norm_type, kernel_size, {stride=, ceil_mode=false, padding=0, dilation=1}) → tensor
  -- (Σ x^p)^(1/p) over each window, p = norm_type; math.huge: the largest |x|, -math.huge: the
  -- least. Padding counts as zeros.
  --   print(nn.F.lp_pool1d(T.ones(1, 1, 2), 1, 2))  --> {{{2.}}}  -- f32[1,1,1] cpu

  --- nn.F.lp_pool2d(x, norm_type, kernel_size, {stride=, ceil_mode=false, padding=0, dilation=1}) → tensor
  -- (Σ x^p)^(1/p) over each window, p = norm_type; math.huge: the largest |x|, -math.huge: the
  -- least. Padding counts as zeros.
  --   print(nn.F.lp_pool2d(T.ones(1, 1, 2, 2), 1, 2))  --> {{{{4.}}}}  -- f32[1,1,1,1] cpu

  --- nn.F.lp_pool3d(x, norm_type, kernel_size, {stride=, ceil_mode=false, padding=0, dilation=1}) → tensor
  -- (Σ x^p)^(1/p) over each window, p = norm_type; math.huge: the largest |x|, -math.huge: the
  -- least. Padding counts as zeros.
  --   print(nn.F.lp_pool3d(T.ones(1, 1, 2, 2, 2), 1, 2))  --> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu
  for nd = 1, 3 do
    local who, avg, max = ("lp_pool%dd"):format(nd), T[("avg_pool%dd"):format(nd)], T[("max_pool%dd"):format(nd)]
    F[who] = function(x, ...)
      if not T.is_tensor(x) then fail("%s: argument #1 must be a tensor, got %s", who, describe(x)) end
      local a = { ... }
      local o = type(a[#a]) == "table" and a[#a][1] == nil and table.remove(a) or {}
      options.check(who, o, { "norm_type", "kernel_size", "stride", "ceil_mode", "padding", "dilation" })
      local p, kernel, stride = o.norm_type or a[1], o.kernel_size or a[2], o.stride or a[3]
      if type(p) ~= "number" or p == 0 then fail("%s: norm_type must be a number, not 0", who) end
      if kernel == nil then fail("%s: kernel_size is missing", who) end
      local window = { kernel_size = kernel, stride = stride, ceil_mode = o.ceil_mode or false, padding = o.padding,
        dilation = o.dilation }
      if p == math.huge then return (max(x:abs(), window)) end
      if p == -math.huge then
        local pads = o.padding
        for _, n in ipairs(type(pads) == "table" and pads or { pads }) do
          if n ~= 0 then fail("%s: norm_type -inf takes no padding, whose zeros would be the least", who) end
        end
        return -max(-x:abs(), window)
      end
      local count = 1
      for d = 1, nd do count = count * (type(kernel) == "table" and (kernel[d] or kernel[1]) or kernel) end
      local y = avg(x ^ p, window)
      return ((y:sign() * y:abs():relu()) * count) ^ (1 / p)
    end
  end

  -- ---- the inverse of max_pool ------------------------------------------------------------------------------

  local function integers(who, name, v, nd)
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

  --- nn.F.max_unpool1d(x, indices, kernel_size, {stride=, padding=0, output_size=, index_base=1}) → tensor
  -- Zeros with the values of x at the places that max_pool gave as indices.
  --   local y, where = T.max_pool1d(T.arange(2):float():view(1, 1, 2), 2, { return_indices = true })
  --   print(nn.F.max_unpool1d(y, where, 2))  --> {{{0., 2.}}}  -- f32[1,1,2] cpu

  --- nn.F.max_unpool2d(x, indices, kernel_size, {stride=, padding=0, output_size=, index_base=1}) → tensor
  -- Zeros with the values of x at the places that max_pool gave as indices.
  --   local y, where = T.max_pool2d(T.arange(4):float():view(1, 1, 2, 2), 2, { return_indices = true })
  --   print(nn.F.max_unpool2d(y, where, 2))
  --   --> {{{{0., 0.},
  --   -->    {0., 4.}}}}  -- f32[1,1,2,2] cpu

  --- nn.F.max_unpool3d(x, indices, kernel_size, {stride=, padding=0, output_size=, index_base=1}) → tensor
  -- Zeros with the values of x at the places that max_pool gave as indices.
  --   local y, where = T.max_pool3d(T.arange(8):float():view(1, 1, 2, 2, 2), 2, { return_indices = true })
  --   print(nn.F.max_unpool3d(y, where, 2))
  --   --> {{{{{0., 0.},
  --   -->     {0., 0.}},
  --   -->
  --   -->    {{0., 0.},
  --   -->     {0., 8.}}}}}  -- f32[1,1,2,2,2] cpu
  for nd = 1, 3 do
    local who = ("max_unpool%dd"):format(nd)
    --- Zeros with the values of x [N, C, *] at the places that max_pool gave as indices. Options `stride=kernel_size
    -- padding=0 output_size index_base=1`.
    F[who] = function(x, indices, kernel_size, opts)
      if not T.is_tensor(x) or not x:is_floating_point() then
        fail("%s: a floating tensor is wanted, got %s", who, describe(x))
      end
      local o = options.check(who, opts, { "stride", "padding", "output_size", "index_base" })
      if not T.is_tensor(indices) or indices:is_floating_point()
        or table.concat(indices:shape(), ",") ~= table.concat(x:shape(), ",") then
        fail("%s: indices must be integers of x's shape %s, got %s", who, describe(x), describe(indices))
      end
      local rank = x:dim()
      if rank ~= nd + 1 and rank ~= nd + 2 then
        fail("%s: x must have %d or %d dimensions, got %s", who, nd + 1, nd + 2, describe(x))
      end
      local kernel = integers(who, "kernel_size", kernel_size, nd)
      local stride = integers(who, "stride", o.stride or kernel, nd)
      local padding = integers(who, "padding", o.padding or 0, nd)
      for d = 1, nd do
        if kernel[d] < 1 or stride[d] < 1 or padding[d] < 0 then
          fail("%s: kernel_size and stride must be at least 1 and padding at least 0, got %d, %d and %d", who,
            kernel[d], stride[d], padding[d])
        end
      end
      local s, size, plane = x:shape(), {}, 1
      for d = 1, nd do
        local want = (s[rank - nd + d] - 1) * stride[d] - 2 * padding[d] + kernel[d]
        local given = o.output_size and o.output_size[#o.output_size - nd + d]
        if given and (given <= want - stride[d] or given >= want + stride[d]) then
          fail("%s: output_size %d of dimension %d must be between %d and %d", who, given, d, want - stride[d] + 1,
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

  -- ---- maxima and their places ------------------------------------------------------------------------------

  --- nn.F.adaptive_max_pool1d_with_indices(x, output_size, {index_base=1}) → values, indices
  -- Largest values of windows cut for the output's size, and their places.
  --   local y, where = nn.F.adaptive_max_pool1d_with_indices(T.arange(2):float():view(1, 1, 2), 1)
  --   print(y:item(), where:item())  --> 2.0	2

  --- nn.F.adaptive_max_pool2d_with_indices(x, output_size, {index_base=1}) → values, indices
  -- Largest values of windows cut for the output's size, and their places.
  --   local y, where = nn.F.adaptive_max_pool2d_with_indices(T.arange(4):float():view(1, 1, 2, 2), 1)
  --   print(y:item(), where:item())  --> 4.0	4

  --- nn.F.adaptive_max_pool3d_with_indices(x, output_size, {index_base=1}) → values, indices
  -- Largest values of windows cut for the output's size, and their places.
  --   local y, where = nn.F.adaptive_max_pool3d_with_indices(T.arange(8):float():view(1, 1, 2, 2, 2), 1)
  --   print(y:item(), where:item())  --> 8.0	8

  --- nn.F.max_pool1d_with_indices(x, kernel_size, {stride=, padding=0, dilation=1, ceil_mode=false, index_base=1}) →
  --   values, indices
  -- The largest value of each window and its place.
  --   local y, where = nn.F.max_pool1d_with_indices(T.arange(2):float():view(1, 1, 2), 2)
  --   print(y:item(), where:item())  --> 2.0	2

  --- nn.F.max_pool2d_with_indices(x, kernel_size, {stride=, padding=0, dilation=1, ceil_mode=false, index_base=1}) →
  --   values, indices
  -- The largest value of each window and its place.
  --   local y, where = nn.F.max_pool2d_with_indices(T.arange(4):float():view(1, 1, 2, 2), 2)
  --   print(y:item(), where:item())  --> 4.0	4

  --- nn.F.max_pool3d_with_indices(x, kernel_size, {stride=, padding=0, dilation=1, ceil_mode=false, index_base=1}) →
  --   values, indices
  -- The largest value of each window and its place.
  --   local y, where = nn.F.max_pool3d_with_indices(T.arange(8):float():view(1, 1, 2, 2, 2), 2)
  --   print(y:item(), where:item())  --> 8.0	8
  for nd = 1, 3 do
    for _, kind in ipairs { "max_pool", "adaptive_max_pool" } do
      local pool = ("%s%dd"):format(kind, nd)
      local names = kind == "max_pool" and { "stride", "padding", "dilation", "ceil_mode", "index_base" }
        or { "index_base" }
      --- The largest values and their places.
      F[pool .. "_with_indices"] = function(x, size, opts)
        local o = { return_indices = true }
        for key, v in pairs(options.check(pool .. "_with_indices", opts, names)) do o[key] = v end
        return T[pool](x, size, o)
      end
    end
  end
end
