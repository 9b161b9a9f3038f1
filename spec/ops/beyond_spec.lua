-- SPDX-License-Identifier: MIT
-- Numbers beside tensors of integers that do not hold them, 256 or -1 beside u8: every op of two operands either
-- computes what exact integers give, in the dtype of the result, or refuses the number by name. Modulo the range of the
-- dtype, which a cast of the number is, powers, quotients, extremes and comparisons are wrong.

local T = require "perilune"
local support = require "spec.ops.support"

local ENDS = { i8 = { -128, 127 }, i16 = { -32768, 32767 }, i32 = { -(1 << 31), (1 << 31) - 1 }, u8 = { 0, 255 } }
local VALUES = { 0, 1, 2, 3, 7, 100, 127 }

local function cut(v, dtype) -- v modulo the range of dtype
  local low, high = ENDS[dtype][1], ENDS[dtype][2]
  return (v - low) % (high - low + 1) + low
end

local function values(dtype)
  local list = { table.unpack(VALUES) }
  for _, v in ipairs(ENDS[dtype]) do list[#list + 1] = v end
  return T.tensor(list, { dtype = dtype })
end

local function beyond(dtype)
  local low, high = ENDS[dtype][1], ENDS[dtype][2]
  return { low - 1, high + 1, high + 2, 2 * high + 2, low - 3, 1 << 33, -(1 << 33), math.maxinteger, math.mininteger }
end

describe("numbers beyond a dtype of integers beside", function()
  local tried, computed = 0, 0
  for _, info in ipairs(support.public()) do
    local pointwise = info.class == "pointwise" and info.nin == 2 and info.nout == 1 and not info.flags.mutates
    if pointwise or info.name == "isin" then
      it(info.name, function()
        local f = T.core.op[info.name]
        for dtype in pairs(ENDS) do
          local x = values(dtype)
          for _, v in ipairs(beyond(dtype)) do
            for place = 1, info.name == "isin" and 1 or 2 do
              local function call(t, n)
                if place == 1 then return pcall(f, t, n) end
                return pcall(f, n, t)
              end
              local ok, got = call(x, v)
              local fine, want = call(x:to "i64", v)
              tried = tried + 1
              local order = place == 1 and "second" or "first"
              local what = ("%s of %s and %d, the number %s"):format(info.name, dtype, v, order)
              if not ok then
                -- refused, or as i64 is; or a kind of argument that the op takes nowhere
                local said = got:find("does not fit into " .. dtype, 1, true) or not fine
                assert(said, what .. ": " .. tostring(got))
                local zero = not fine and got:find("division by zero", 1, true) and v ~= 0 and place == 1
                assert(not zero, what .. " divides by a number that is not 0")
              elseif fine and (got:dtype() == "bool" or ENDS[got:dtype()]) then
                computed = computed + 1
                local g, w = got:reshape(-1):totable(), want:reshape(-1):totable()
                for i, e in ipairs(w) do
                  if got:dtype() ~= "bool" then e = cut(e, got:dtype()) end
                  assert(g[i] == e, ("%s: entry %d is %s, not %s"):format(what, i, tostring(g[i]), tostring(e)))
                end
              end
            end
          end
        end
      end)
    end
  end

  it("many ops, both ways", function()
    assert(tried > 1000 and computed > 500, tried .. " calls, " .. computed .. " computed")
  end)

  it("comparisons with 0-d tensors of wider integers", function()
    local x = T.tensor({ 1, 2 }, { dtype = "i32" })
    for _, v in ipairs { (1 << 32) + 1, -(1 << 40), 1 } do
      local y = T.tensor(v, { dtype = "i64" })
      for _, name in ipairs { "eq", "ne", "lt", "le", "gt", "ge" } do
        local want = T[name](x:to "i64", v):totable()
        assert.same(want, T[name](x, y):totable(), name)
        assert.same(want, T.jit(function(t) return T[name](t, y) end)(x):totable(), name .. " in T.jit")
        assert.same(want, T.jit(function(t) return T[name](t, v) end)(x):totable(), name .. " of a number in T.jit")
      end
    end
  end)

  it("number lines, fillings and thresholds", function()
    local a = T.tensor({ 0, 2, 3 }, { dtype = "u8" })
    for what, f in pairs {
      arange = function() return T.arange(0, 300, 100, { dtype = "u8" }) end,
      ["arange down"] = function() return T.arange(2, -2, -1, { dtype = "u8" }) end,
      linspace = function() return T.linspace(0, 300, 3, { dtype = "u8" }) end,
      logspace = function() return T.logspace(0, 3, 4, { dtype = "i8" }) end,
      pad = function() return a:pad({ 1, 1 }, { value = 300 }) end,
      threshold = function() return a:threshold(2, 300) end,
      where = function() return T.where(a:eq(2), a, 256) end,
      scatter = function() return a:scatter(1, T.tensor({ 1 }, { dtype = "i64" }), 300) end,
      ["pow_"] = function() return a:clone():pow_(256) end,
    } do
      local ok, err = pcall(f)
      assert(not ok and err:find "does not fit into [iu]8", what .. ": " .. tostring(err))
    end
    assert.same({ 0, 2, 3 }, a:threshold(-1, 7):totable())
    assert.same({ 7, 7, 7 }, a:threshold(300, 7):totable())
    local b = T.tensor({ -1, 0, 1 }, { dtype = "i32" })
    assert.same({ 9, 0, 1 }, b:threshold(-0.5, 9):totable())
    assert.same({ 9, 9, 1 }, b:threshold(0.5, 9):totable())
    assert.same({ 0, 100, 200 }, T.arange(0, 200, 100, { dtype = "u8" }):totable())
    assert.same({ -128, 0, 127 }, T.linspace(-128, 127, 3, { dtype = "i8" }):clamp(-128, 127):totable())
  end)

  it("thresholds of any number", function()
    local count = 0
    for _, dtype in ipairs { "i8", "i16", "i32", "i64", "u8" } do
      local ends = ENDS[dtype] or { math.mininteger, math.maxinteger }
      local list = { 0, 1, 2, 100, ends[1], ends[1] + 1, ends[2] - 1, ends[2] }
      local x = T.tensor(list, { dtype = dtype })
      for _, at in ipairs {
        -math.huge, math.huge, 0 / 0, -1e300, 1e300, -2.0 ^ 63, 2.0 ^ 63, -128.5, -128.0, -0.5, -0.0, 0.5, 1.0, 254.5,
        255.0, math.mininteger, math.maxinteger, -129, -128, -1, 0, 1, 127, 255, 256, ends[1], ends[2], ends[1] + 0.0,
        ends[2] + 0.0,
      } do
        local got = x:threshold(at, 7):totable()
        for i, v in ipairs(list) do
          local want = v <= at and 7 or v
          assert(got[i] == want, ("%s %d, threshold %s: %d"):format(dtype, v, at, got[i]))
          count = count + 1
        end
      end
    end
    assert(count > 1000)
  end)

  it("isclose of integers", function()
    local low, high = math.mininteger, math.maxinteger
    local x, y = { 3, 0, low, high, high, high, 5, low }, { 5, low, high, -1, high - 5, high, 5, low }
    local a, b = T.tensor(x, { dtype = "i64" }), T.tensor(y, { dtype = "i64" })
    assert.same({ false, false, false, false, true, true, true, true }, a:isclose(b):totable())
    local strict = a:isclose(b, { rtol = 0, atol = 4 }):totable()
    assert.same({ true, false, false, false, false, true, true, true }, strict)
    local u = T.tensor({ 3, 200 }, { dtype = "u8" })
    assert.same({ true, false }, u:isclose(T.tensor({ 5, 0 }, { dtype = "u8" }), { rtol = 0.5 }):totable())
  end)
end)
