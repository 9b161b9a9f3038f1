-- SPDX-License-Identifier: MIT
-- Numbers with fractions beside tensors of integers, as attributes of ops: the result is that of f64, or the number is
-- refused by name. What cuts the fraction off is wrong without a word.

local T = require "perilune"
local support = require "spec.ops.support"

local VALUES = { 0.5, -0.5, 1.5, 2.75, -1.25 }
local SHAPES = { { 4 }, { 2, 3 }, { 3, 3 }, { 2, 3, 3 }, { 1, 2, 4, 4 } }
local LISTS = { pad = { pad = { 1, 1 } } }
-- What writes a number into elements of a dtype that the caller has named casts it, as x:to(dtype) does; random draws
-- are no function of their arguments.
local CASTS = { fill = true, bernoulli = true }
-- Factors and limits that count as integers beside integers, as PyTorch's do (the golden cases ask for it).
for name in ("hardtanh addmm baddbmm addmv addr addbmm"):gmatch "%S+" do CASTS[name] = true end

local function iota(shape, from)
  local n = 1
  for _, s in ipairs(shape) do n = n * s end
  return T.arange(from, from + n - 1):reshape(table.unpack(shape))
end

local function numbers_of(info)
  local list = {}
  for _, a in ipairs(info.attrs) do
    if a.type == "float" or a.type == "scalar" then list[#list + 1] = a.name end
  end
  return list
end

describe("a number with a fraction beside integers", function()
  local computed, refused, reached = 0, 0, {}
  for _, info in ipairs(support.public()) do
    local names = numbers_of(info)
    if #names > 0 and info.nin > 0 and not CASTS[info.name] and not info.flags.mutates then
      it("in " .. info.name, function()
        local f = T.core.op[info.name]
        local function compare(shape, which, v, dtype)
          local given, wide = {}, {}
          for i = 1, info.nin do
            given[i] = iota(shape, i - 3):to(dtype)
            wide[i] = given[i]:to "f64"
          end
          local o = {}
          for key, list in pairs(LISTS[info.name] or {}) do o[key] = list end
          for i, name in ipairs(names) do o[name] = i == which and v or 2 end
          given[#given + 1], wide[#wide + 1] = o, o
          local fine, want = pcall(f, table.unpack(wide))
          if not fine or not T.is_tensor(want) then return end
          local ok, got = pcall(f, table.unpack(given))
          if not ok then
            refused = refused + 1
            local said = tostring(got)
            assert(said:find(info.name, 1, true) or said:find("add: alpha", 1, true)
              or said:find("floating", 1, true) or said:find("not defined for", 1, true), said)
            if said:find("has no fractions", 1, true) or said:find("an integer", 1, true) then
              reached[info.name] = true
              assert(said:find(names[which], 1, true), said)
            end
          elseif not got:is_floating_point() then
            computed = computed + 1
            local what = ("%s of %s with %s = %g is %s, of f64 %s"):format(info.name, dtype, names[which], v,
              tostring(got), tostring(want))
            assert(T.equal(got:to "f64", want:to "f64"), what)
          end
        end
        for which = 1, #names do
          for _, v in ipairs(VALUES) do
            for _, dtype in ipairs { "i64", "i8" } do
              for _, shape in ipairs(SHAPES) do compare(shape, which, v, dtype) end
            end
          end
        end
      end)
    end
  end

  it("is refused by all that would cut it off", function()
    for _, name in ipairs { "threshold", "pad", "addcmul", "add_scaled" } do
      assert(reached[name], name .. " does not refuse")
    end
    assert(computed > 50 and refused > 100, computed .. " computed, " .. refused .. " refused")
  end)

  it("has its meaning where it is whole, or decides only", function()
    local x, m = T.tensor({ -3, 0, 7 }, { dtype = "i64" }), T.tensor({ { 1, 2 }, { 3, 4 } }, { dtype = "i64" })
    assert.same({ 9, 0, 7 }, x:threshold(-0.5, 9.0):totable())
    assert.same({ -1, 0, 2 }, x:hardtanh(-1, 2.0):totable())
    assert.same({ 5, -3, 0, 7, 5 }, x:pad({ 1, 1 }, { value = 5.0 }):totable())
    assert.same({ { 9, 14 }, { 21, 30 } }, T.addmm(m, m, m, { beta = 2.0, alpha = 1 }):totable())
    assert.same({ -3, 0, 7 }, x:round(2):totable())
  end)

  it("and decimals before the point are refused for integers, limits that no element can keep, too", function()
    local x = T.tensor({ 150, 7 }, { dtype = "u8" })
    for what, f in pairs {
      ["round: decimals = -2 is for floating x"] = function() return x:round(-2) end,
      ["hardtanh: 260 does not fit into u8"] = function() return x:hardtanh(260, 300) end,
      ["hardtanh: -2 does not fit into u8"] = function() return x:hardtanh(-3, -2) end,
      ["round: decimals must be an integer, got 0.5"] = function() return T.tensor({ 1.5 }):round(0.5) end,
    } do
      local ok, err = pcall(f)
      assert(not ok and err:find(what, 1, true), what .. ": " .. tostring(err))
    end
    assert.same({ 100, 7 }, x:hardtanh(-1, 100):totable())
    assert.same({ 150, 7 }, x:hardtanh(0, 300):totable())
  end)
end)
