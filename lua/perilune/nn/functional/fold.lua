-- SPDX-License-Identifier: MIT
--- Sliding windows as columns, and their adjoint: unfold, fold.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local op = T.core.op

-- A number as a list of n; entries at least `least`.
local function list(who, name, v, n, least)
  if v == nil then fail("%s: %s is missing", who, name) end
  local out = {}
  if type(v) == "table" and #v ~= 1 and #v ~= n then
    fail("%s: %s must be one integer or %d, got %d", who, name, n, #v)
  end
  for d = 1, n do
    local e = options.integer(type(v) == "table" and (v[d] or #v == 1 and v[1]) or v)
    if not e or e < least then fail("%s: %s must be %d integers >= %d, got %s", who, name, n, least, describe(v)) end
    out[d] = e
  end
  return out
end

local window = { "kernel_size", "dilation", "padding", "stride" }

-- The window of nd dims: kernel, dilation, padding, stride as lists.
local function read_window(who, o, nd)
  return list(who, "kernel_size", o.kernel_size, nd, 1), list(who, "dilation", o.dilation or 1, nd, 1),
    list(who, "padding", o.padding or 0, nd, 0), list(who, "stride", o.stride or 1, nd, 1)
end

-- How many windows fit along each dim, and their product.
local function counts(who, size, k, d, p, s)
  local out, all = {}, 1
  for i, n in ipairs(size) do
    local room = n + 2 * p[i] - d[i] * (k[i] - 1) - 1
    if room < 0 then
      local function text(v) return table.concat(v, " x ") end
      fail("%s: a window of %s (dilation %s) does not fit into %s with padding %s", who, text(k), table.concat(d, ", "),
        text(size), table.concat(p, ", "))
    end
    out[i] = room // s[i] + 1
    all = all * out[i]
  end
  return out, all
end

-- How many dims are spatial: as many as a list in `v` has; otherwise `default`.
local function spatial(who, default, ...)
  local nd
  for _, v in ipairs { ... } do
    if type(v) == "table" then nd = nd or #v end
  end
  nd = nd or default
  if nd < 1 or nd > 3 then fail("%s: windows have 1 to 3 dims, got %d", who, nd) end
  return nd
end

-- One dimension of sliding windows: [.., n, ..] → [.., count, .., k], every dilation-th element.
local function slide(x, dim, k, d, s)
  local y = op.unfold(x, { dim = dim, size = d * (k - 1) + 1, step = s })
  if d == 1 then return y end
  return op.index_select(y, T.arange(1, d * (k - 1) + 1, d, { device = x:device() }), { dim = y:dim() })
end

local function product(sizes)
  local n = 1
  for _, v in ipairs(sizes) do n = n * v end
  return n
end

local forms = { "[N, C, L] or [C, L]", "[N, C, H, W] or [C, H, W]", "[N, C, D, H, W] or [C, D, H, W]" }

return function(F)
  -- im2col: the windows of x [N, C, H, W] (or [C, H, W]) as columns [N, C k, L]. kernel_size a list of one: x is
  -- [N, C, L]; of three: [N, C, D, H, W]. Options `kernel_size dilation=1 padding=0 stride=1`.
  function F.unfold(x, opts)
    local who = "unfold"
    local o = options.check(who, opts, window)
    local nd = spatial(who, T.is_tensor(x) and x:dim() == 5 and 3 or 2, o.kernel_size)
    if not T.is_tensor(x) or x:dim() < nd + 1 or x:dim() > nd + 2 then
      fail("%s: %s is wanted, got %s", who, forms[nd], describe(x))
    end
    local k, d, p, s = read_window(who, o, nd)
    local single = x:dim() == nd + 1
    if single then x = x:unsqueeze(1) end
    local shape = x:shape()
    local N, C = shape[1], shape[2]
    local _, L = counts(who, { table.unpack(shape, 3) }, k, d, p, s)
    if math.max(table.unpack(p)) > 0 then
      local around = {}
      for i = nd, 1, -1 do
        around[#around + 1], around[#around + 2] = p[i], p[i]
      end
      x = x:pad(around)
    end
    local y = x -- becomes [N, C, counts …, kernel …]
    for i = 1, nd do y = slide(y, i + 2, k[i], d[i], s[i]) end
    local order = { 1, 2 }
    for i = 1, nd do
      order[2 + i], order[2 + nd + i] = 2 + nd + i, 2 + i
    end
    y = y:permute(order):reshape(N, C * product(k), L)
    y = T.core.own(y, x)
    return single and y:squeeze(1) or y
  end

  --- nn.F.fold(x, {output_size=, kernel_size=, dilation=1, padding=0, stride=1}) → [N, C, H, W]
  -- col2im, the adjoint of unfold: adds the columns [N, C k, L] (or [C k, L]) back into images; into [N, C, L] or
  -- [N, C, D, H, W] where output_size is a list of one or three.
  --   print(nn.F.fold(T.ones(1, 4, 1), { output_size = 2, kernel_size = 2 }))
  --   --> {{{{1., 1.},
  --   -->    {1., 1.}}}}  -- f32[1,1,2,2] cpu
  function F.fold(x, opts)
    local who = "fold"
    if not T.is_tensor(x) or x:dim() < 2 or x:dim() > 3 then
      fail("%s: [N, C·k, L] is wanted, k the window's size, got %s", who, describe(x))
    end
    local o = options.check(who, opts, { "output_size", table.unpack(window) })
    local nd = spatial(who, 2, o.output_size, o.kernel_size)
    local k, d, p, s = read_window(who, o, nd)
    local size = list(who, "output_size", o.output_size, nd, 1)
    local count, L = counts(who, size, k, d, p, s)
    local single = x:dim() == 2
    if single then x = x:unsqueeze(1) end
    local N, K = x:size(1), product(k)
    if x:size(2) % K ~= 0 or x:size(3) ~= L then
      fail("%s: %s does not fit: its second size must be a multiple of %d, its last %d", who, describe(x), K, L)
    end
    -- where each column's element goes in the padded volume: [k1, k2, …, count1, count2, …]
    local C, padded, at, stride = x:size(2) // K, {}, nil, 1
    local where = { device = x:device() }
    for i = nd, 1, -1 do
      padded[i] = size[i] + 2 * p[i]
      local shape = {}
      for j = 1, 2 * nd do shape[j] = 1 end
      shape[i], shape[nd + i] = k[i], count[i]
      local place = T.arange(0, d[i] * (k[i] - 1), d[i], where):unsqueeze(2) +
        T.arange(0, s[i] * (count[i] - 1), s[i], where):unsqueeze(1)
      place = place:view(shape) * stride
      at = at and place + at or place
      stride = stride * padded[i]
    end
    local volume = T.zeros({ N, C, stride }, { dtype = x:dtype(), device = x:device() })
    local y = T.index_add(volume, at:reshape(-1), x:reshape(N, C, K * L), { dim = 3, index_base = 0 })
    y = y:view(N, C, table.unpack(padded))
    for i = 1, nd do
      if p[i] > 0 then y = y:narrow(i + 2, p[i] + 1, size[i]) end
    end
    return single and y:squeeze(1) or y
  end
end
