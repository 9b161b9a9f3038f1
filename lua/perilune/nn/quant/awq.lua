-- SPDX-License-Identifier: MIT
--- AWQ (Lin et al. 2023): channels of the input that are large weigh more, so their weights are multiplied by s before
-- they are rounded and the input divided by it. s = (mean |x|)^α / √(max · min), and α is the one of 20 whose rounded
-- weights change the output on the calibration data least. With the Gram matrix H of the inputs that change is
-- tr(D H Dᵀ), D = W - Q(W s) / s: no data is needed any more.
-- @module perilune.nn.quant.awq
local T = require "perilune"
local codes = require "perilune.nn.quant.codes"

local M = {}

local STEPS = 20
local RIDGE = 0.01 -- of the mean of H's diagonal: what channels count that the data hardly has

local function rounded(w, f)
  return T.dequantize_blocks(T.quantize_blocks(w:float(), { format = f.name }), { format = f.name, dtype = "f64" })
end

local function change(d, gram) return (d:matmul(gram) * d):sum():item() end

--- The factors of the input's channels, f64 [K], for the weights of layers that have one input: a list of f64 [N, K].
-- gram: of the inputs, size: sum of |x|.
function M.scales(weights, gram, size, f)
  gram = gram:clone()
  gram:diagonal():add_(gram:diagonal():mean() * RIDGE)
  local mean = size / size:mean():clamp { min = 1e-30 }
  mean = mean:clamp { min = 1e-4 }
  local best, found
  for step = 0, STEPS - 1 do
    local s = mean:pow(step / STEPS)
    s = s / (s:amax() * s:amin()):sqrt()
    local sum = 0
    for _, w in ipairs(weights) do sum = sum + change(w - rounded(w * s, f) / s, gram) end
    if not best or sum < best then best, found = sum, s end
  end
  return found
end

--- Blocks for w [N, K], f64, that is multiplied by s; the range of each group is cut where that helps.
function M.quantize(w, gram, s, f)
  local scaled = (w * s):contiguous()
  local h = gram / (s:unsqueeze(2) * s)
  local parts, groups = {}, w:size(2) // f.group
  for g = 1, groups do
    local at = (g - 1) * f.group + 1
    parts[g] = h:narrow(1, at, f.group):narrow(2, at, f.group)
  end
  local own = T.stack(parts, 1) -- H of each group, [groups, group, group]
  local blocks, base, step = codes.search(f, scaled, function(gap)
    local by_group = gap:transpose(1, 2) -- [groups, N, group]
    return (by_group:bmm(own) * by_group):sum(3):t()
  end)
  local wide = scaled:view(w:size(1), -1, f.group)
  local q = codes.round(f, wide, base:unsqueeze(3), step:unsqueeze(3))
  return codes.put(f, blocks, q:view(w:shape()))
end

return M
