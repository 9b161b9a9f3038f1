-- SPDX-License-Identifier: MIT
-- Copies of windows: slices, joins, rows of tables, flips, rolls, pads and fills of every element size and of widths
-- around those of vectors, against what each place must hold.

local T = require "perilune"

local DTYPES = { "u8", "bf16", "f32", "i64" }
local WIDTHS = { 1, 2, 3, 5, 8, 15, 17, 31, 63, 65, 130, 259, 300 }
local function widths(dtype) return dtype == "f32" and { 1025, 2051, table.unpack(WIDTHS) } or WIDTHS end

-- Numbers that every dtype holds exactly, different at neighbouring places.
local function number(i, j) return (i * 37 + j * 11) % 101 end

local function table_of(rows, cols, dtype)
  local list = {}
  for i = 1, rows do
    local row = {}
    for j = 1, cols do row[j] = number(i, j) end
    list[i] = row
  end
  return T.tensor(list, { dtype = "f32" }):to(dtype)
end

local function holds(y, rows, cols, expect, what)
  assert.same({ rows, cols }, y:shape())
  local got = y:to("f64"):tolist()
  for i = 1, rows do
    local row = got[i]
    for j = 1, cols do
      if row[j] ~= expect(i, j) then
        error(("%s: [%d, %d] is %s, not %s"):format(what, i, j, row[j], expect(i, j)))
      end
    end
  end
end

describe("copies of windows", function()
  for _, dtype in ipairs(DTYPES) do
    it("slice, join and turn rows of " .. dtype, function()
      for _, n in ipairs(widths(dtype)) do
        local x = table_of(4, n + 5, dtype)
        local what = ("%s, rows of %d"):format(dtype, n)
        local part = x:narrow(2, 3, n)
        holds(part:contiguous(), 4, n, function(i, j) return number(i, j + 2) end, what)
        local to = T.zeros({ 4, n }, { dtype = dtype }):copy_(part)
        holds(to, 4, n, function(i, j) return number(i, j + 2) end, "copy_, " .. what)
        holds(T.cat({ part, x }, 2), 4, 2 * n + 5, function(i, j)
          return j <= n and number(i, j + 2) or number(i, j - n)
        end, "cat, " .. what)
        holds(part:flip(1), 4, n, function(i, j) return number(5 - i, j + 2) end, "flip of rows, " .. what)
        holds(part:flip(2), 4, n, function(i, j) return number(i, n + 3 - j) end, "flip, " .. what)
        holds(part:roll(1, 2), 4, n, function(i, j) return number(i, (j - 2) % n + 3) end, "roll, " .. what)
        holds(part:tile { 2, 1 }, 8, n, function(i, j) return number((i - 1) % 4 + 1, j + 2) end, "tile, " .. what)
        holds(x:select(1, 2):narrow(1, 3, n):expand(3, n):contiguous(), 3, n, function(_, j)
          return number(2, j + 2)
        end, "expand, " .. what)
        holds(x:narrow(2, 2, 1):expand(4, n):contiguous(), 4, n, function(i) return number(i, 2) end, "fill, " .. what)
        holds(T.nn.F.pad(part, { 1, 2, 1, 0 }, { value = 7 }), 5, n + 3, function(i, j)
          return (i == 1 or j == 1 or j > n + 1) and 7 or number(i - 1, j + 1)
        end, "pad, " .. what)
        holds(x:index_select(T.tensor({ 4, 1, 1 }, { dtype = "i64" }), { dim = 1 }), 3, n + 5, function(i, j)
          return number(i == 1 and 4 or 1, j)
        end, "rows, " .. what)
      end
    end)
    it("take every second and every third element of " .. dtype, function()
      for _, n in ipairs(widths(dtype)) do
        local x = table_of(3, 2 * n, dtype)
        local what = ("%s, rows of %d"):format(dtype, n)
        local even = x:unflatten(2, { n, 2 }):select(3, 2)
        holds(even:contiguous(), 3, n, function(i, j) return number(i, 2 * j) end, what)
        local y = T.zeros({ 3, 2 * n }, { dtype = dtype })
        y:unflatten(2, { n, 2 }):select(3, 1):copy_(even)
        holds(y, 3, 2 * n, function(i, j) return j % 2 == 1 and number(i, j + 1) or 0 end, "every second, " .. what)
        local third = table_of(2, 3 * n, dtype):unflatten(2, { n, 3 }):select(3, 3)
        holds(third:contiguous(), 2, n, function(i, j) return number(i, 3 * j) end, "third, " .. what)
      end
    end)
  end

  it("are the same on any number of threads", function()
    local before, x = T.get_num_threads(), T.randn(700, 1031)
    local function all()
      return { x:narrow(2, 4, 1001):contiguous(), T.cat({ x, x }, 2), x:flip(1), x:roll(3, 2), x:t():contiguous(),
        T.nn.F.pad(x, { 1, 1, 1, 1 }, { mode = "reflect" }), x:index_select(T.randint(1, 700, { 900 }), { dim = 1 }) }
    end
    T.set_num_threads(1)
    T.manual_seed(3)
    local one = all()
    T.set_num_threads(3)
    T.manual_seed(3)
    for i, y in ipairs(all()) do assert.is_true(y:equal(one[i]), "copy " .. i) end
    T.set_num_threads(before)
  end)

  it("are of nothing, and of one element", function()
    assert.same({ 0, 5 }, T.zeros(0, 9):narrow(2, 2, 5):contiguous():shape())
    assert.same({ 3, 0 }, T.zeros(3, 9):narrow(2, 2, 0):contiguous():shape())
    assert.same({ 3, 0 }, T.cat({ T.zeros(3, 0), T.zeros(3, 0) }, 2):shape())
    assert.same({ 0, 4 }, T.zeros(3, 4):index_select(T.zeros({ 0 }, { dtype = "i64" }), { dim = 1 }):shape())
    local x = T.tensor { { 1, 2 }, { 3, 4 } }
    x:copy_(x)
    assert.same({ { 1, 2 }, { 3, 4 } }, x:tolist())
  end)
end)

describe("elements along the last dim", function()
  it("are those that are picked from the first of the transposed array, of any number and dtype", function()
    T.manual_seed(8)
    for _, dtype in ipairs { "u8", "bf16", "f32", "i64", "f64", "bool" } do
      for n = 1, 9 do
        local x = (T.rand(3, 11, 6) * 100):to(dtype):narrow(2, 2, 7)
        local places = T.randint(1, 6, { n })
        local got, want = x:index_select(3, places), x:transpose(1, 3):index_select(1, places):transpose(1, 3)
        assert.is_true(got:equal(want), dtype .. n)
        local one = x:select(1, 2):select(1, 3)
        assert.is_true(one:index_select(1, places):equal(want:select(1, 2):select(1, 3)), dtype .. n)
      end
    end
  end)
end)
