-- SPDX-License-Identifier: MIT
-- Operands of fused groups that expand repeats, broadcast, or both: random shapes, also such where a row, a column and
-- a whole have equally many elements. A traced function has the bits of the function as written.

local T = require "perilune"
local random = require "spec.support.random"

-- A tensor that broadcasts to `shape`: dims of size 1, leading dims left out, some of either expanded.
local function operand(g, shape)
  local drop = g:int(0, #shape)
  local own, wide = {}, {}
  for d = drop + 1, #shape do
    own[#own + 1] = g:int(1, 3) == 1 and 1 or shape[d]
    wide[#wide + 1] = g:int(1, 2) == 1 and shape[d] or own[#own]
  end
  local n = 1
  for _, s in ipairs(own) do n = n * s end
  local t = T.tensor(g:list(n, -2, 2), { dtype = "f32" }):view(own)
  local left = {}
  for d = g:int(1, drop + 1), drop do left[#left + 1] = shape[d] end
  table.move(wide, 1, #wide, #left + 1, left)
  return t, left
end

local function try(seed)
  local g = random.new(seed)
  local shape, n = {}, 1
  for d = 1, g:int(1, 4) do
    shape[d] = g:int(1, 4)
    n = n * shape[d]
  end
  local whole = T.tensor(g:list(n, -2, 2), { dtype = "f32" }):view(shape)
  local column = { table.unpack(shape) }
  column[#shape] = 1
  local first, wa = operand(g, shape)
  local second, wb = operand(g, shape)
  local third, wc = operand(g, column)
  local inside, kind = g:int(1, 2) == 1, g:int(1, 4)
  local function f(x, a, b, c)
    if inside then a, b, c = a:expand(wa), b:expand(wb), c:expand(wc) end
    local y = (x + a) * b
    if kind == 1 then return y * 2 end
    local m = y:sum(-1, { keepdim = true })
    if kind == 2 then return (m + 1) * c end
    local z = (m * c):tanh()
    if kind == 3 then return y - z, z + c end
    return (y - z):softmax(-1) * a, z
  end
  if not inside then first, second, third = first:expand(wa), second:expand(wb), third:expand(wc) end
  local want, got = { f(whole, first, second, third) }, { T.jit(f)(whole, first, second, third) }
  for i, w in ipairs(want) do
    if not w:equal(got[i]) then
      return ("seed %d, result %d: %s, right is %s"):format(seed, i, got[i], w)
    end
  end
end

describe("operands of fused groups", function()
  it("are read where expand repeats them as broadcasting would read them", function()
    local found = {}
    for seed = 1, 400 do found[#found + 1] = try(seed) end
    assert.equal("", table.concat(found, "\n", 1, math.min(#found, 3)))
  end)
end)
