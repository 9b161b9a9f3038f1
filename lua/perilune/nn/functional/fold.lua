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
  for d = 1, n do
    local e = options.integer(type(v) == "table" and (v[d] or #v == 1 and v[1]) or v)
    if not e or e < least then fail("%s: %s must be %d integers >= %d, got %s", who, name, n, least, describe(v)) end
    out[d] = e
  end
  return out
end

local window = { "kernel_size", "dilation", "padding", "stride" }

local function read_window(who, o)
  return list(who, "kernel_size", o.kernel_size, 2, 1), list(who, "dilation", o.dilation or 1, 2, 1),
    list(who, "padding", o.padding or 0, 2, 0), list(who, "stride", o.stride or 1, 2, 1)
end

-- How many windows fit on each side.
local function counts(who, h, w, k, d, p, s)
  local out = {}
  for i, size in ipairs { h, w } do
    local room = size + 2 * p[i] - d[i] * (k[i] - 1) - 1
    if room < 0 then
      fail("%s: a window of %d x %d (dilation %d, %d) does not fit into %d x %d with padding %d, %d", who, k[1], k[2],
        d[1], d[2], h, w, p[1], p[2])
    end
    out[i] = room // s[i] + 1
  end
  return out[1], out[2]
end

-- One dimension of sliding windows: [.., n, ..] → [.., count, .., k], every dilation-th element.
local function slide(x, dim, k, d, s)
  local y = op.unfold(x, { dim = dim, size = d * (k - 1) + 1, step = s })
  if d == 1 then return y end
  return op.index_select(y, T.arange(1, d * (k - 1) + 1, d, { device = x:device() }), { dim = y:dim() })
end

return function(F)
  --- im2col: windows of x [N, C, H, W] (or [C, H, W]) as columns, [N, C·kh·kw, L].
  -- Options `kernel_size dilation=1 padding=0 stride=1`.
  function F.unfold(x, opts)
    local who = "unfold"
    if not T.is_tensor(x) or x:dim() < 3 or x:dim() > 4 then
      fail("%s: [N, C, H, W] or [C, H, W] is wanted, got %s", who, describe(x))
    end
    local o = options.check(who, opts, window)
    local k, d, p, s = read_window(who, o)
    local single = x:dim() == 3
    if single then x = x:unsqueeze(1) end
    local N, C = x:size(1), x:size(2)
    local oh, ow = counts(who, x:size(3), x:size(4), k, d, p, s)
    if p[1] > 0 or p[2] > 0 then x = x:pad { p[2], p[2], p[1], p[1] } end
    local y = slide(slide(x, 3, k[1], d[1], s[1]), 4, k[2], d[2], s[2]) -- [N, C, oh, ow, kh, kw]
    y = y:permute { 1, 2, 5, 6, 3, 4 }:reshape(N, C * k[1] * k[2], oh * ow)
    y = T.core.own(y, x)
    return single and y:squeeze(1) or y
  end

  -- The adjoint of unfold: columns [N, C·kh·kw, L] (or without N) added up into [N, C, H, W].
  -- Options `output_size kernel_size dilation=1 padding=0 stride=1`.
  --- nn.F.fold(x, {output_size=, kernel_size=, dilation=1, padding=0, stride=1}) → [N, C, H, W]
  -- Adds sliding blocks [N, C k, L] back into images.
  --   print(nn.F.fold(T.ones(1, 4, 1), { output_size = 2, kernel_size = 2 }))
  --   --> {{{{1., 1.},
  --   -->    {1., 1.}}}}  -- f32[1,1,2,2] cpu
  function F.fold(x, opts)
    local who = "fold"
    if not T.is_tensor(x) or x:dim() < 2 or x:dim() > 3 then
      fail("%s: [N, C·kh·kw, L] is wanted, got %s", who, describe(x))
    end
    local o = options.check(who, opts, { "output_size", table.unpack(window) })
    local k, d, p, s = read_window(who, o)
    local size = list(who, "output_size", o.output_size, 2, 1)
    local oh, ow = counts(who, size[1], size[2], k, d, p, s)
    local single = x:dim() == 2
    if single then x = x:unsqueeze(1) end
    local N, K, L = x:size(1), k[1] * k[2], oh * ow
    if x:size(2) % K ~= 0 or x:size(3) ~= L then
      fail("%s: %s does not fit: its second size must be a multiple of %d, its last %d", who, describe(x), K, L)
    end
    local C, H, W = x:size(2) // K, size[1] + 2 * p[1], size[2] + 2 * p[2]
    -- where each column's element goes in the padded plane, [kh, kw, oh, ow]
    local function places(n, kernel, count, step)
      local where = { device = x:device() }
      return T.arange(0, n * (kernel - 1), n, where):unsqueeze(2) +
        T.arange(0, step * (count - 1), step, where):unsqueeze(1)
    end
    local rows, cols = places(d[1], k[1], oh, s[1]), places(d[2], k[2], ow, s[2])
    local at = rows:view(k[1], 1, oh, 1) * W + cols:view(1, k[2], 1, ow)
    local plane = T.zeros({ N, C, H * W }, { dtype = x:dtype(), device = x:device() })
    local y = T.index_add(plane, at:reshape(-1), x:reshape(N, C, K * L), { dim = 3, index_base = 0 }):view(N, C, H, W)
    if p[1] > 0 or p[2] > 0 then y = y:narrow(3, p[1] + 1, size[1]):narrow(4, p[2] + 1, size[2]) end
    return single and y:squeeze(1) or y
  end
end
