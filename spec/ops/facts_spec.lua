-- SPDX-License-Identifier: MIT
-- What descriptors say of their ops (PL_F_* in engine/ops/op.h) is so: passes and executors believe it.

local T = require "perilune"
local support = require "spec.ops.support"

local floats = {
  { 0.1, -2.5, 3e4, 1e-7, 0.0, -0.0, 1 / 0, 0 / 0 },
  { 0.3, 2.5, -3e4, 1e-7, -0.0, 0.0, 4, 7 },
}
local whole = {
  { 1, -2, 127, -128, 0, 12, 40, 7 },
  { 3, 2, 2, -1, 5, -18, 0, 7 },
}
local kinds = {
  f16 = floats, bf16 = floats, f32 = floats, f64 = floats, i8 = whole, i32 = whole, i64 = whole,
  bool = { { true, true, false, false }, { true, false, true, false } },
}

-- The elements so that -0 is not 0.
local function bits(t)
  local list = t:tolist()
  for i, v in ipairs(list) do
    list[i] = v ~= v and "nan" or math.type(v) == "float" and ("%a"):format(v) or tostring(v)
  end
  return t:dtype() .. ": " .. table.concat(list, " ")
end

local function inputs(dtype)
  local a, b = kinds[dtype][1], kinds[dtype][2]
  return T.tensor(a, { dtype = dtype }), T.tensor(b, { dtype = dtype })
end

describe("an op that commutes", function()
  local tried = {}
  for _, info in ipairs(T.core.ops()) do
    if info.flags.commutes then
      tried[#tried + 1] = info.name
      it(info.name .. " gives the same bits with its inputs exchanged", function()
        assert.equal(2, info.nin)
        assert.same({}, info.attrs)
        local f, compared = support.raw(info.name), 0
        for dtype in pairs(kinds) do
          local x, y = inputs(dtype)
          local ok, z = pcall(f, x, y)
          if ok then
            assert.equal(bits(z), bits(f(y, x)), dtype)
            compared = compared + 1
          end
        end
        assert.is_true(compared >= 3, "refused nearly every dtype")
      end)
    end
  end

  it("is among others a sum and a product", function()
    local names = " " .. table.concat(tried, " ") .. " "
    for _, name in ipairs { "add", "mul", "eq", "ne", "logical_and", "logical_or" } do
      assert.truthy(names:find(" " .. name .. " ", 1, true), name)
    end
    assert.falsy(names:find(" sub ", 1, true))
  end)
end)

-- Whatever a kernel meets on its way (a divisor of 0): an op in place that fails leaves its tensor as it was.
describe("in place", function()
  for _, info in ipairs(T.core.ops()) do
    if info.nin == 2 and info.class == "pointwise" and info.flags.inplace and not info.flags.internal then
      it(info.name .. "_ changes nothing where it fails", function()
        for _, dtype in ipairs { "u8", "i8", "i16", "i32", "i64", "f32" } do
          local x = T.tensor({ 7, 8, 9, 10 }, { dtype = dtype })
          local y = T.tensor({ 2, 0, 3, 1 }, { dtype = dtype })
          local attrs = {}
          for _, a in ipairs(info.attrs) do attrs[#attrs + 1] = a.default or 2 end
          local fine, why = pcall(x[info.name .. "_"], x, y, table.unpack(attrs))
          if not fine and not tostring(why):find("noticed on the device", 1, true) then -- undefined since then
            assert.same({ 7, 8, 9, 10 }, x:tolist(), dtype)
          end
        end
      end)
    end
  end
end)
