-- SPDX-License-Identifier: MIT
--- GPTQ (Frantar et al. 2022): columns of W are rounded one after another, and what is lost in one is made up for in
-- those that are left. With H = XᵀX + damp, and Uᵀ U = H⁻¹, U upper:
--
--   e_i = (w_i - q_i) / U_ii,   w_j -= U_ij e_i for j > i
--
-- which is what removing columns from H⁻¹ one by one gives. act_order: the columns with the largest H_ii first; groups
-- then have the scales of the weights as they were, as their columns come at different times.
-- @module perilune.nn.quant.gptq
local T = require "perilune"
local core = require "perilune.core"
local codes = require "perilune.nn.quant.codes"

local M = {}

local COLUMNS = 128 -- that are worked on before the others hear of it

-- H with damp times the mean of its diagonal added to it: U and the damping that it took.
local function factor(gram, damp)
  local mean = gram:diagonal():mean():item()
  if mean <= 0 then mean = 1 end
  for _ = 1, 8 do
    local h = gram:clone()
    h:diagonal():add_(damp * mean)
    local ok, u = core.attempt(function()
      return T.linalg.cholesky(T.cholesky_inverse(T.linalg.cholesky(h)), { upper = true })
    end)
    if ok and T.isfinite(u:sum()):item() then return u end
    damp = math.max(damp, 1e-6) * 10 -- few rows of data: H is singular
  end
  return nil
end

local function weighted(weights, group)
  local w = weights:view(1, -1, group)
  return function(gap) return (gap:square() * w):sum(3) end
end

--- Blocks of format f, u8 [N, bytes], for w [N, K] whose inputs have this Gram matrix, f64 [K, K]. o: damp, act_order.
function M.quantize(w, gram, f, o)
  local n, k = w:size(1), w:size(2)
  w = w:detach():double()
  local places, blocks, base, step
  if o.act_order then
    local diagonal = gram:diagonal():contiguous()
    blocks, base, step = codes.search(f, w, weighted(diagonal, f.group))
    places = diagonal:argsort({ descending = true, stable = true })
    gram = gram:index_select(1, places):index_select(2, places)
  end
  local u = factor(gram, o.damp)
  if not u then return nil end
  local diagonal = u:diagonal():contiguous()
  local pivots = diagonal:totable()
  local left = w:t():contiguous() -- [K, N]: a column of w is a row
  local found = T.zeros_like(left)
  local bases, steps
  if places then
    left = left:index_select(1, places)
    local groups = (places - 1) // f.group + 1
    bases, steps = base:t():contiguous():index_select(1, groups), step:t():contiguous():index_select(1, groups)
  end
  local parts, span = {}, math.max(COLUMNS, f.elements)
  for from = 1, k, span do
    local count = math.min(span, k - from + 1)
    local now = left:narrow(1, from, count)
    local errors = T.zeros({ count, n }, { dtype = "f64", device = left:device() })
    for i = 1, count do
      local at = from + i - 1
      local b, s
      if places then
        b, s = bases:select(1, at), steps:select(1, at)
      else
        if (at - 1) % f.elements == 0 then -- scales of what the columns have become
          local columns = now:narrow(1, i, f.elements):t():contiguous()
          local weights = diagonal:narrow(1, at, f.elements):square():reciprocal()
          parts[#parts + 1], base, step = codes.search(f, columns, weighted(weights, f.group))
          base, step = base:t():contiguous(), step:t():contiguous()
        end
        local g = (at - 1) % f.elements // f.group + 1
        b, s = base:select(1, g), step:select(1, g)
      end
      local column = now:select(1, i)
      local q = codes.round(f, column, b, s)
      found:select(1, at):copy_(q)
      local e = (column - (b + s * q)) / pivots[at]
      errors:select(1, i):copy_(e)
      if i < count then
        now:narrow(1, i + 1, count - i):addmm_(u:narrow(2, at + 1, count - i):narrow(1, at, 1):t(), e:unsqueeze(1),
          { alpha = -1 })
      end
    end
    local rest = k - from - count + 1
    if rest > 0 then
      left:narrow(1, from + count, rest):addmm_(u:narrow(1, from, count):narrow(2, from + count, rest):t(), errors,
        { alpha = -1 })
    end
  end
  if places then
    found = T.zeros_like(found):index_copy(1, places, found)
  else
    blocks = T.cat(parts, 2)
  end
  return codes.put(f, blocks, found:t():contiguous())
end

return M
