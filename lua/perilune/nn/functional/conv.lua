-- SPDX-License-Identifier: MIT
--- Convolutions whose padding may be a word.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"

local fail = options.fail

return function(F)
  local function entry(v, d) return type(v) == "table" and (v[d] or v[1]) or v or 1 end

  -- 'valid' is no padding; 'same' keeps the size: dilation (kernel - 1) in all, what does not halve goes
  -- behind.
  local function padded(x, weight, opts, nd)
    local new = {}
    for key, v in pairs(opts) do new[key] = v end
    if opts.padding == "valid" then
      new.padding = 0
      return x, new
    elseif opts.padding ~= "same" then
      fail("conv%dd: %s", nd, options.unknown("padding", opts.padding, { "same", "valid" }))
    end
    local before, extra, uneven = {}, {}, false
    for d = 1, nd do
      if entry(opts.stride, d) ~= 1 then fail("conv%dd: padding 'same' needs stride 1", nd) end
      local total = entry(opts.dilation, d) * (weight:size(d + 2) - 1)
      before[d] = total // 2
      extra[2 * (nd - d) + 1], extra[2 * (nd - d) + 2] = 0, total % 2
      uneven = uneven or total % 2 == 1
    end
    new.padding = before
    return uneven and x:pad(extra) or x, new
  end

  -- conv1d, conv2d, conv3d (x, weight, bias, {stride=, padding=, dilation=, groups=}); padding also "same",
  -- "valid".
  for nd = 1, 3 do
    local conv = T[("conv%dd"):format(nd)]
    F[("conv%dd"):format(nd)] = function(x, weight, bias, opts, ...)
      if type(bias) == "table" and opts == nil then bias, opts = nil, bias end
      if type(opts) == "table" and type(opts.padding) == "string" then x, opts = padded(x, weight, opts, nd) end
      return conv(x, weight, bias, opts, ...)
    end
  end
end
