-- SPDX-License-Identifier: MIT
--- nn.F.fractional_max_pool2d and 3d: maxima over windows whose places are drawn at random (Graham 2014).
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"

local fail, describe, floor = options.fail, options.describe, math.floor

local function per_dim(who, what, v, nd, whole)
  local list = {}
  for d = 1, nd do
    local one = type(v) == "table" and v[d] or type(v) ~= "table" and v or nil
    if whole then one = options.integer(one) end
    if type(one) ~= "number" or one <= 0 or type(v) == "table" and #v ~= nd then
      fail("%s: %s must be a %snumber or %d of them, got %s", who, what, whole and "whole " or "", nd, describe(v))
    end
    list[d] = one
  end
  return list
end

-- Where the windows begin in a dimension of n elements, counted from 0: [N, C, out]. u [N, C] in [0, 1) shifts a
-- sequence of equal steps (n - k) / (out - 1); the last window ends with the input. In f32 or f64 as u is.
local function starts(u, n, out, k)
  local last = T.full({ u:size(1), u:size(2), 1 }, n - k, { dtype = "i64", device = u:device() })
  if out == 1 then return last end
  local i = T.arange(0, out - 2, { device = u:device() }):to(u:dtype())
  local step = T.tensor((n - k) / (out - 1), { dtype = u:dtype(), device = u:device() })
  u = u:unsqueeze(3)
  local begin = ((i + u) * step):floor() - (u * step):floor()
  return T.cat({ begin:long(), last }, 3)
end

return function(F)

  --- nn.F.fractional_max_pool2d(x, kernel_size, {output_size=, output_ratio=, return_indices=false, index_base=1,
  --   _random_samples=}) → tensor[, indices]
  -- Maxima over windows at random places (Graham 2014).
  --   print(nn.F.fractional_max_pool2d(T.ones(1, 5, 5), 2, { output_size = 2 }))
  --   --> {{{1., 1.},
  --   -->   {1., 1.}}}  -- f32[1,2,2] cpu

--- nn.F.fractional_max_pool3d(x, kernel_size, {output_size=, output_ratio=, return_indices=false, index_base=1,
--   _random_samples=}) → tensor[, indices]
-- Maxima over windows at random places (Graham 2014).
--   print(table.concat(nn.F.fractional_max_pool3d(T.ones(1, 5, 5, 5), 2, { output_size = { 2, 3, 4 } }):shape(), " "))
--   --> 1 2 3 4
  for nd = 2, 3 do
    local who = ("fractional_max_pool%dd"):format(nd)
    --- Maxima of x [N, C, *] (or [C, *]) over windows of kernel_size, as many as output_size or output_ratio say.
    -- Options `output_size output_ratio return_indices=false index_base=1`, and `_random_samples` [N, C, 2 or 3] in
    -- [0, 1) in place of ones drawn here.
    F[who] = function(x, kernel_size, opts)
      local o = options.check(who, opts, { "output_size", "output_ratio", "return_indices", "index_base",
        "_random_samples" })
      if not T.is_tensor(x) or not x:is_floating_point() or x:dim() < nd + 1 or x:dim() > nd + 2 then
        fail("%s: a floating tensor with %d or %d dimensions is wanted, got %s", who, nd + 1, nd + 2, describe(x))
      end
      if (o.output_size == nil) == (o.output_ratio == nil) then
        fail("%s: either output_size or output_ratio must be given", who)
      end
      local single = x:dim() == nd + 1
      if single then x = x:unsqueeze(1) end
      local N, C, kernel = x:size(1), x:size(2), per_dim(who, "kernel_size", kernel_size, nd, true)
      local sizes = o.output_size and per_dim(who, "output_size", o.output_size, nd, true)
      local ratios = not sizes and per_dim(who, "output_ratio", o.output_ratio, nd)
      if ratios then sizes = {} end
      for d = 1, nd do
        local n = x:size(d + 2)
        if ratios and ratios[d] >= 1 then fail("%s: output_ratio must be between 0 and 1, got %g", who, ratios[d]) end
        if ratios then sizes[d] = floor(n * ratios[d]) end
        if sizes[d] < 1 or sizes[d] + kernel[d] - 1 > n then
          fail("%s: %d windows of %d do not fit into %d elements of %s", who, sizes[d], kernel[d], n, describe(x))
        end
      end
      local u = o._random_samples
      local own = x:dtype() == "f64" and "f64" or "f32"
      if u == nil then
        u = T.rand({ N, C, nd }, { dtype = own, device = x:device() })
      elseif not T.is_tensor(u) or u:dim() ~= 3 or u:size(1) ~= N or u:size(2) ~= C or u:size(3) ~= nd then
        fail("%s: _random_samples must be [%d,%d,%d], got %s", who, N, C, nd, describe(u))
      end
      u = u:to { dtype = own, device = x:device() }
      -- places [N, C, out…, kernel…] of all elements of all windows
      local places
      for d = 1, nd do
        -- the first number is for the last dimension in 2-d, for the first in 3-d
        local begin = starts(u:select(3, nd == 2 and 3 - d or d), x:size(d + 2), sizes[d], kernel[d])
        local shape, inner = { N, C }, { 1, 1 }
        for e = 1, nd do shape[e + 2], inner[e + 2] = e == d and sizes[d] or 1, 1 end
        for e = 1, nd do shape[nd + e + 2], inner[nd + e + 2] = 1, e == d and kernel[d] or 1 end
        local at = begin:view(shape) + T.arange(0, kernel[d] - 1, { device = x:device() }):long():view(inner)
        places = places and places * x:size(d + 2) + at or at
      end
      local count, windows_of, elements, out = 1, 1, 1, { N, C, table.unpack(sizes) }
      for d = 1, nd do
        count, windows_of, elements = count * kernel[d], windows_of * sizes[d], elements * x:size(d + 2)
      end
      places = places:reshape(N, C, windows_of * count)
      local windows = T.gather(x:reshape(N, C, elements), places, { dim = 3, index_base = 0 })
        :view(N, C, windows_of, count)
      local value, which = windows:max(4)
      value = value:view(out)
      if single then value = value:squeeze(1) end
      if not o.return_indices then return value end
      local index = T.gather(places:view(N, C, windows_of, count), which:unsqueeze(4), { dim = 4 }):view(out)
      index = index + (o.index_base or 1)
      return value, single and index:squeeze(1) or index
    end
  end
end
