-- SPDX-License-Identifier: MIT
-- Places of extremes in rows (sort/argmax.c, isa/reduce/reduce.c) and filled masks (kernels/cpu/index/mask.c)
-- against loops in Lua, at sizes around those of vectors, with equal elements, NaN, infinities, both zeros.

describe("places of extremes", function()
  local T = require "perilune"

  -- The first place of the best; the first NaN is better than all.
  local function place(row, better)
    local at = 1
    for i = 2, #row do
      if row[at] ~= row[at] then break end
      if row[i] ~= row[i] or better(row[i], row[at]) then at = i end
    end
    return at
  end
  local greater, less = function(a, b) return a > b end, function(a, b) return a < b end

  local function check(x, what)
    local largest, most = x:max(2)
    local smallest, least = x:min(2)
    local same = { { x:argmax(2), most, largest, greater }, { x:argmin(2), least, smallest, less } }
    for r = 1, x:size(1) do
      local row = x[r]:tolist()
      for k, s in ipairs(same) do
        local want = place(row, s[4])
        local got, with, value = s[1][r]:item(), s[2][r]:item(), s[3][r]:item()
        local fine = got == want and with == want and (value == row[want] or value ~= value and row[want] ~= row[want])
        assert(fine, ("%s, row %d, %s: %s and %s, not %d"):format(what, r, k == 1 and "max" or "min", got, with, want))
      end
    end
  end

  for _, kind in ipairs { "f32", "f64", "bf16", "i64", "u8" } do
    it("are the first ones in " .. kind, function()
      T.manual_seed(5)
      for _, n in ipairs { 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 65, 130 } do
        local x = T.randint(0, 9, { 12, n }):to(kind) -- many are equal
        check(x, ("%s of %d"):format(kind, n))
        check(x:t():contiguous():t(), ("%s of %d, transposed"):format(kind, n))
        if n > 2 then check(x:narrow(2, 2, n - 2), ("%s of %d, narrowed"):format(kind, n)) end
      end
    end)
  end

  for _, kind in ipairs { "f32", "f64" } do
    it("of NaN, infinities and zeros in " .. kind, function()
      T.manual_seed(6)
      for _, n in ipairs { 5, 16, 17, 40 } do
        local x, which = T.randn(40, n):to(kind), T.randint(0, 20, { 40, n })
        for k, v in ipairs { math.huge, -math.huge, 0.0, -0.0 } do x = x:masked_fill(which:eq(k), v) end
        check(x, ("%s of %d"):format(kind, n))
        check(x:masked_fill(which:eq(5), 0 / 0), ("%s of %d with NaN"):format(kind, n))
        check(x:mul(0), ("%s of %d, zeros"):format(kind, n))
        check(T.full({ 3, n }, -math.huge, { dtype = kind }), ("%s of %d, nothing above"):format(kind, n))
      end
    end)
  end
end)

describe("filled masks", function()
  local T = require "perilune"

  local function flat(x) return x:contiguous():flatten():tolist() end

  for _, kind in ipairs { "f32", "f64", "bf16", "i64", "i32", "u8", "bool" } do
    it("are those of a loop in " .. kind, function()
      T.manual_seed(7)
      local value = kind == "bool" and true or 1
      for _, size in ipairs { { 1, 1 }, { 3, 5 }, { 17, 33 }, { 100, 37 }, { 300, 130 }, { 0, 4 } } do
        local rows, cols = size[1], size[2]
        local x, mask = T.randint(0, 2, size):to(kind), T.rand(size):lt(0.4)
        local column = T.rand(rows, 1):lt(0.5)
        local layouts = {
          { x, mask }, { x:t():contiguous():t(), mask }, { x, mask:t():contiguous():t() }, { x, column },
          { x:flip(1):t(), mask:t() },
        }
        if cols > 3 then layouts[6] = { x:narrow(2, 2, cols - 2), mask:narrow(2, 1, cols - 2) } end
        for k, lay in ipairs(layouts) do
          local a, m = flat(lay[1]), flat(lay[2]:expand(lay[1]:shape()))
          for i = 1, #a do if m[i] then a[i] = value end end
          local what = ("%s %d x %d, layout %d"):format(kind, rows, cols, k)
          assert.are.same(a, flat(lay[1]:masked_fill(lay[2], value)), what)
          local y = lay[1]:clone()
          assert.are.same(a, flat(y:masked_fill_(lay[2], value)), what .. ", in place")
        end
      end
      assert.are.equal(value, T.tensor(0):to(kind):masked_fill(T.tensor(true), value):item())
    end)
  end

  it("hold NaN and infinities as they are", function()
    local x = T.tensor { 0 / 0, math.huge, -0.0, 5 }
    local y = x:masked_fill(T.tensor { false, false, false, true }, -math.huge):tolist()
    assert(y[1] ~= y[1] and y[2] == math.huge and 1 / y[3] == -math.huge and y[4] == -math.huge)
  end)
end)
