-- SPDX-License-Identifier: MIT
--- Weights as whole numbers in the blocks of ggml's formats (kernels/blocks.h): where a format has its codes, and what
-- they stand for. A number is base + step · code, base and step shared by a group; both are read off the format
-- itself, from blocks whose codes are all 0 or all the largest.
-- @module perilune.nn.quant.codes
local T = require "perilune"

local M = {}

-- Codes q [rows, elements], i32, as bytes [rows, bytes]; `places` of a format is where in a block they go.
local function low4(q, from) return q:narrow(2, from, 16) + q:narrow(2, from + 16, 16) * 16 end
local function halves(q) return low4(q % 16, 1) end

-- The fifth bit of 32 codes: bit j of 4 bytes.
local function fifth(q)
  local powers = T.tensor({ 1, 2, 4, 8, 16, 32, 64, 128 }, { dtype = "i32", device = q:device() })
  local bits = (q // 16):view(q:size(1), 4, 8) * powers
  return bits:sum(3)
end

-- 64 codes each in 32 bytes: the first half low, the second high.
local function nibbles(q)
  local v = (q % 16):view(q:size(1), 4, 2, 32)
  return (v:select(3, 1) + v:select(3, 2) * 16):view(q:size(1), 128)
end

-- What stands above the low 4 bits, `bits` each, of `parts` lists of 32 codes that share 32 bytes.
local function above(q, parts, bits)
  local v, sum = (q // 16):view(q:size(1), -1, parts, 32), nil
  for k = 1, parts do
    local part = v:select(3, k) * (1 << (bits * (k - 1)))
    sum = sum and sum + part or part
  end
  return sum:flatten(2)
end

-- Q6_K: 128 codes in 64 bytes of low bits and 32 of high ones, twice.
local function low6(q)
  local v = (q % 16):view(q:size(1), 2, 4, 32)
  local a, b = v:select(3, 1) + v:select(3, 3) * 16, v:select(3, 2) + v:select(3, 4) * 16
  return T.cat({ a, b }, 3):view(q:size(1), 128)
end

-- group: elements that share base and step. halves: where the f16 are that all numbers of a block are multiples of.
-- places: {first byte, bytes of codes}, in any order.
local formats = {
  Q4_0 = { group = 32, top = 15, halves = { 1 }, places = { { 3, halves } } },
  Q4_1 = { group = 32, top = 15, halves = { 1, 3 }, places = { { 5, halves } } },
  Q5_0 = { group = 32, top = 31, halves = { 1 }, places = { { 3, fifth }, { 7, halves } } },
  Q5_1 = { group = 32, top = 31, halves = { 1, 3 }, places = { { 5, fifth }, { 9, halves } } },
  Q8_0 = { group = 32, top = 254, halves = { 1 }, places = { { 3, function(q) return (q - 127) % 256 end } } },
  Q4_K = { group = 32, top = 15, halves = { 1, 3 }, places = { { 17, nibbles } } },
  Q5_K = { group = 32, top = 31, halves = { 1, 3 },
    places = { { 17, function(q) return above(q, 8, 1) end }, { 49, nibbles } } },
  Q6_K = { group = 16, top = 63, halves = { 209 },
    places = { { 1, low6 }, { 129, function(q) return above(q, 4, 2) end } } },
}
for _, f in ipairs(T.core.block_formats()) do
  local own = formats[f.name]
  if own then own.name, own.elements, own.bytes = f.name, f.elements, f.bytes end
end

--- The names of the formats that codes can be put into.
function M.names()
  local list = {}
  for name in pairs(formats) do list[#list + 1] = name end
  table.sort(list)
  return list
end

--- What is known of a format; nil for those with codes of another kind.
function M.format(name) return formats[name] end

--- blocks [rows, n · bytes] with codes [rows, n · elements], whole numbers from 0 to top, in place of theirs.
function M.put(f, blocks, codes)
  local rows = codes:reshape(-1, f.elements):to("i32")
  local out = blocks:reshape(-1, f.bytes):clone()
  for _, place in ipairs(f.places) do
    local bytes = place[2](rows)
    out:narrow(2, place[1], bytes:size(2)):copy_(bytes)
  end
  return out:view(blocks:shape())
end

local function numbers_of(f, blocks, code)
  local shape = { blocks:size(1), blocks:size(2) // f.bytes * f.elements }
  local same = T.full(shape, code, { dtype = "i32", device = blocks:device() })
  return T.dequantize_blocks(M.put(f, blocks, same), { format = f.name, dtype = "f64" })
end

--- base and step of the groups of blocks, f64 [rows, groups] each.
function M.grid(f, blocks)
  local base, last = numbers_of(f, blocks, 0), numbers_of(f, blocks, f.top)
  local step = (last - base) / f.top
  local function one(t) return t:view(t:size(1), -1, f.group):select(3, 1):contiguous() end
  return one(base), one(step)
end

--- The nearest codes of w, f64, for base and step of the same shape: f64.
function M.round(f, w, base, step)
  local flat = step:eq(0)
  local q = ((w - base) / step:masked_fill(flat, 1)):round():clamp(0, f.top)
  return q:masked_fill(flat, 0)
end

-- Two bytes each [n, 2] as the f16 that they are, f64 [n], and back. Q8_0 has an f16 in front of codes that it is
-- multiplied with.
local function halves_of(bytes)
  local ones = T.ones({ bytes:size(1), 32 }, { dtype = "u8", device = bytes:device() })
  return T.dequantize_blocks(T.cat({ bytes, ones }, 2), { format = "Q8_0", dtype = "f64" }):select(2, 1):contiguous()
end
local function bytes_of(v)
  local wide = (v:abs() * 127):unsqueeze(2):expand(v:size(1), 32):contiguous()
  local bytes = T.quantize_blocks(wide:float(), { format = "Q8_0" }):narrow(2, 1, 2):clone()
  bytes:select(2, 2):add_(v:lt(0):to("u8") * 128)
  return bytes
end

--- Blocks [rows, …] of numbers times by, f64 [rows], with the codes that they have; nil where that is no f16 of full
-- precision.
function M.multiply_rows(f, blocks, by)
  local out = blocks:reshape(-1, f.bytes):clone()
  local each = by:repeat_interleave(out:size(1) // blocks:size(1), 1)
  for _, at in ipairs(f.halves) do
    local v = halves_of(out:narrow(2, at, 2):contiguous())
    local new = v * each
    local size = new:abs()
    local bad = size:gt(65000):logical_or(size:lt(2.0 ^ -14):logical_and(v:ne(0)))
    if bad:any():item() then return nil end
    out:narrow(2, at, 2):copy_(bytes_of(new))
  end
  return out:view(blocks:shape())
end

-- Shares of a group's range that are tried: the farthest weights are cut where that makes the others' error smaller.
local SHARES = { 1, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7 }

--- Blocks whose scales lose least of w [rows, columns], f64; loss(differences [rows, groups, group]) is
-- [rows, groups]. → blocks, base, step
function M.search(f, w, loss)
  local best, blocks, base, step
  local span = f.elements
  local groups = w:view(w:size(1), -1, span)
  for _, share in ipairs(SHARES) do
    local cut = groups
    if share < 1 then
      local hi = groups:amax(3, { keepdim = true }):clamp { min = 0 } * share
      local lo = groups:amin(3, { keepdim = true }):clamp { max = 0 } * share
      cut = T.minimum(T.maximum(groups, lo), hi)
    end
    local b = T.quantize_blocks(cut:reshape(w:shape()):float(), { format = f.name })
    local o, s = M.grid(f, b)
    local wide = w:view(w:size(1), -1, f.group)
    local ou, su = o:unsqueeze(3), s:unsqueeze(3)
    local gap = wide - (ou + su * M.round(f, wide, ou, su))
    local e = loss(gap)
    e = e:view(e:size(1), -1, span // f.group):sum(3) -- of a whole block: its scales go together
    if not best then
      best, blocks, base, step = e, b, o, s
    else
      local better = e:lt(best)
      best = T.where(better, e, best)
      local per_group = better:repeat_interleave(span // f.group, 2)
      base, step = T.where(per_group, o, base), T.where(per_group, s, step)
      blocks = T.where(better:repeat_interleave(f.bytes, 2), b, blocks)
    end
  end
  return blocks, base, step
end

return M
