-- SPDX-License-Identifier: MIT
-- Floats become integers in one way, whichever path they take: truncated toward zero, at the ends of the dtype where
-- they do not fit, 0 where they are NaN. Copies, writes through keys, tiles of graphs and strided windows agree.

local T = require "perilune"

local NAN, INF = 0 / 0, math.huge
local LIST = {
  0, -0.5, 1.9, -1.9, 300, -300, 127.9, 128, 255.5, 256, -129, 32768, -32769, 65504, 2.0 ^ 31, -2.0 ^ 31 - 1,
  2.0 ^ 31 - 1, 2.0 ^ 63, -2.0 ^ 63, 1e30, -1e30, INF, -INF, NAN, 0.999,
}
local ENDS = {
  i64 = { math.mininteger, math.maxinteger }, i32 = { -(1 << 31), (1 << 31) - 1 }, i16 = { -32768, 32767 },
  i8 = { -128, 127 }, u8 = { 0, 255 },
}

local function whole(v, dtype)
  if dtype == "bool" then return v ~= 0 end
  local low, high = ENDS[dtype][1], ENDS[dtype][2]
  if v ~= v then return 0 end
  if v >= high then return high end
  if v <= low then return low end
  return math.tointeger(v < 0 and math.ceil(v) or math.floor(v))
end

local function iota(n) return T.arange(1, n) end

-- x, 25 elements, as dtype
local WAYS = {
  to = function(x, d) return x:to(d) end,
  ["one by one"] = function(x, d)
    local list = {}
    for i = 1, 25 do list[i] = x:narrow(1, i, 1):to(d) end
    return T.cat(list)
  end,
  ["of a column"] = function(x, d) return T.stack({ x, x }, -1):select(-1, 1):to(d) end,
  ["of many"] = function(x, d) return x:tile(400):to(d):narrow(1, 25 * 399 + 1, 25) end,
  ["of rows"] = function(x, d) return x:reshape(5, 5):t():to(d):t():reshape(-1) end,
  ["in T.vmap"] = function(x, d)
    return T.vmap(function(u) return u:to(d) end)(x:reshape(5, 5)):reshape(-1)
  end,
  ["in T.jit"] = function(x, d) return T.jit(function(u) return (u + 0):to(d) end)(x) end,
  copy_ = function(x, d) return T.zeros({ 25 }, { dtype = d }):copy_(x) end,
  ["copy_ into a column"] = function(x, d)
    local z = T.zeros({ 25, 2 }, { dtype = d })
    z:select(2, 1):copy_(x)
    return z:select(2, 1):clone()
  end,
  ["a key"] = function(x, d)
    local z = T.zeros({ 25 }, { dtype = d })
    z[{ { 1, 25 } }] = x
    return z
  end,
  ["a list of indices"] = function(x, d)
    local z = T.zeros({ 25 }, { dtype = d })
    z[{ iota(25) }] = x
    return z
  end,
  ["a mask"] = function(x, d)
    local z = T.zeros({ 25 }, { dtype = d })
    z[T.ones({ 25 }, { dtype = "bool" })] = x
    return z
  end,
  ["out"] = function(x, d)
    local z = T.zeros({ 25 }, { dtype = d })
    T.mul(x, 1, { out = z })
    return z
  end,
}

describe("floats become integers alike by", function()
  for name, way in pairs(WAYS) do
    it(name, function()
      local count = 0
      for _, from in ipairs { "f32", "f64", "f16", "bf16" } do
        local x = T.tensor(LIST, { dtype = "f64" }):to(from)
        local values = x:to("f64"):totable()
        for _, dtype in ipairs { "i64", "i32", "i16", "i8", "u8", "bool" } do
          local ok, got = pcall(way, x, dtype)
          if ok then
            count = count + 1
            for i, v in ipairs(got:totable()) do
              local want = whole(values[i], dtype)
              local what = ("%g of %s is %s in %s, not %s"):format(values[i], from, tostring(v), dtype, tostring(want))
              assert(v == want, what)
            end
          else -- refused by name, not done otherwise
            assert(name ~= "to" and tostring(got):find(dtype, 1, true), got)
          end
        end
      end
      local may = name == "out" or name == "a list of indices" or name == "a mask"
      assert(count > 0 or may, name .. " is always refused")
    end)
  end
end)

describe("sums and products of one element in dtype", function()
  local WAYS_OF_SUMS = {
    sum = function(x, d) return x:view(-1, 1):sum(2, { dtype = d }) end,
    ["sum of columns"] = function(x, d) return x:view(1, -1):sum(1, { dtype = d }) end,
    nansum = function(x, d) return x:view(-1, 1):nansum(2, { dtype = d }) end,
    prod = function(x, d) return x:view(-1, 1):prod(2, { dtype = d }) end,
    cumsum = function(x, d) return x:view(-1, 1):cumsum(2, { dtype = d }):view(-1) end,
    cumprod = function(x, d) return x:view(1, -1):cumprod(1, { dtype = d }):view(-1) end,
  }
  for name, way in pairs(WAYS_OF_SUMS) do
    it("are the element, converted, or are refused: " .. name, function()
      local computed, refused = 0, 0
      for _, from in ipairs { "f32", "f64", "f16", "bf16", "i64", "i16", "u8", "bool" } do
        local x = T.tensor(LIST, { dtype = "f64" }):to(from)
        for _, d in ipairs { "i64", "i32", "i16", "i8", "u8", "bool" } do
          local ok, got = pcall(way, x, d)
          if ok then
            computed = computed + 1
            assert(T.equal(got, x:to(d)), ("%s as %s is %s"):format(from, d, tostring(got)))
          else
            refused = refused + 1
            assert(tostring(got):find(('x:to("%s")'):format(d), 1, true), got)
          end
        end
      end
      assert(computed >= 20 and refused >= 20, computed .. " computed, " .. refused .. " refused")
    end)
  end
  it("add up where elements are converted before", function()
    local x = T.tensor { 300, -300, 2 }
    assert.equal(1, x:to("u8"):sum({ dtype = "u8" }):item()) -- 255 + 0 + 2 wraps
    assert.equal(2, x:sum({ dtype = "i64" }):item())
  end)
end)
