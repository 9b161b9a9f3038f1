-- SPDX-License-Identifier: MIT
-- Values that do not fit where they are given, and what Lua's own operators give in place of a tensor: errors that say
-- so, never a number that nobody meant.

local T = require "perilune"
local nn = T.nn

local HERE = debug.getinfo(1, "S").short_src:gsub("%p", "%%%0")

local function refused(words, f, ...)
  local args = table.pack(...)
  local ok, err = pcall(function()
    local r = f(table.unpack(args, 1, args.n))
    return r
  end)
  assert.is_false(ok, "accepted: " .. words)
  assert.is_string(err)
  assert.is_truthy(err:find("^" .. HERE .. ":%d+: "), err)
  assert.is_truthy(err:find(words, 1, true), err)
end

describe("a boolean is no number:", function()
  local a, b, mask
  before_each(function()
    a, b = T.tensor { 1, 2, 3 }, T.tensor { 1, 0, 3 }
    mask = a:eq(b)
  end)
  after_each(function() a, b, mask = nil, nil, nil end)

  it("operators say eq", function()
    for _, f in ipairs {
      function() return a * (a == b) end, function() return (a == b) * a end, function() return a + true end,
      function() return false - a end, function() return a / true end, function() return a ^ true end,
      function() return a % true end, function() return a // true end, function() return mask & (a == b) end,
      function() return mask | true end, function() return a:long() ~ true end,
    } do
      refused("a:eq(b)", f)
    end
  end)

  it("functions, too, but beside bool tensors", function()
    refused("a:eq(b)", T.where, a == b, a, b)
    refused("a:eq(b)", T.where, mask, a, true)
    refused("a:eq(b)", T.add, a, true)
    refused("a:eq(b)", a.mul, a, false)
    refused("a:eq(b)", T.maximum, a, true)
    refused("a:eq(b)", a.masked_fill, a, mask, true)
    refused("a:eq(b)", T.add, true, true)
    refused("a:eq(b)", function() a[1] = a == b end)
    assert.same({ true, true, true }, mask:logical_or(true):totable())
    assert.same({ true, false, true }, mask:eq(true):totable())
    assert.same({ false, true, false }, mask:masked_fill(mask, false):masked_fill(mask:logical_not(), true):totable())
    assert.same({ true, false, true }, T.where(mask, true, false):totable())
    local m = mask:clone()
    m[1] = false
    assert.same({ false, false, true }, m:totable())
    assert.same({ true, true }, T.full({ 2 }, true):totable())
    assert.equal(2, T.full({ 2 }, true, { dtype = "f32" }):sum():item())
  end)

  it("other types are named", function()
    refused("got table", function() return a + {} end)
    refused("got string", function() return a * "2" end)
    refused("got function", function() return print / a end)
    refused("got nil", function() return a - nil end)
  end)
end)

describe("a table of numbers", function()
  it("has no entries besides 1 to n", function()
    refused("did you mean dtype?", T.tensor, { 1, 2, dtyp = "f32" })
    refused("unknown option 'a'", T.tensor, { a = 1 })
    refused("unknown option 'a'", T.tensor, { 1, 2, a = 3 })
    refused("the key 0", T.tensor, { [0] = 1, 2 })
    refused("the key", T.tensor, { [2.5] = 1, 2 })
    refused("the key", T.tensor, { [true] = 1, 2 })
    refused("the key 'a'", T.tensor, { { 1, 2 }, { 3, 4, a = 5 } })
    refused("the key 'dtype'", T.tensor, { { 1, 2 }, { 3, 4, dtype = "f64" } })
    refused("the key 'a'", T.tensor, { 1, 2, a = 3 }, { dtype = "f64" })
    refused("the key '3'", T.tensor, { { [1] = 1, [3] = 2 }, { 1 } })
    assert.equal("f64", T.tensor({ 1, 2, dtype = "f64" }):dtype())
    assert.same({}, T.tensor({}):totable())
    local long = {}
    for i = 300, 1, -1 do long[i] = i end -- not in Lua's array part
    assert.equal(300, T.tensor(long):numel())
  end)
end)

describe("a value that does not fit", function()
  local u8, i8, i16, i32 = { dtype = "u8" }, { dtype = "i8" }, { dtype = "i16" }, { dtype = "i32" }

  it("into an integer dtype", function()
    refused("300 does not fit into u8, which holds 0 to 255", T.tensor, { 1, 300 }, u8)
    refused("does not fit", T.tensor, { -1 }, u8)
    refused("does not fit", T.tensor, { { 1 }, { 128 } }, i8)
    refused("does not fit", T.tensor, -129, i8)
    refused("does not fit", T.tensor, { 1 << 15 }, i16)
    refused("does not fit", T.tensor, { 1 << 31 }, i32)
    refused("does not fit", T.tensor, { 2.0 ^ 63 }, { dtype = "i64" })
    refused("does not fit", T.tensor, { 0 / 0 }, { dtype = "i64" })
    refused("does not fit", T.tensor, { 1, math.huge }, i32)
    refused("does not fit", T.full, { 2 }, 300, u8)
    refused("full_like: 300 does not fit", T.full_like, T.zeros(2, u8), 300)
    refused("does not fit", T.zeros(2, u8).new_full, T.zeros(2, u8), { 2 }, 300)
    refused("fill_: 300 does not fit", T.zeros(2, u8).fill_, T.zeros(2, u8), 300)
    refused("masked_fill: 300 does not fit", T.zeros(2, u8).masked_fill, T.zeros(2, u8), T.ones(2):bool(), 300)
    refused("does not fit", function() T.zeros(2, u8)[1] = 300 end)
    refused("does not fit", T.zeros(2, u8).set, T.zeros(2, u8), 1, 256)
    assert.same({ 255, 0 }, T.tensor({ 255, 0 }, u8):totable())
    assert.same({ 255 }, T.tensor({ 255.9 }, u8):totable()) -- a fraction is cut off
    assert.same({ -128, 127 }, T.tensor({ -128, 127 }, i8):totable())
    assert.same({ math.mininteger, math.maxinteger }, T.tensor({ math.mininteger, math.maxinteger },
      { dtype = "i64" }):totable())
    assert.same({ true }, T.tensor({ 300 }, { dtype = "bool" }):totable())
  end)

  it("limits of random integers", function()
    refused("does not fit into u8", T.randint, 0, 300, { 2 }, u8)
    refused("does not fit into i8", T.randint, -200, 5, { 2 }, i8)
    refused("does not fit into u8", T.randint_like, T.zeros(2, u8), 0, 256)
    refused("does not fit into u8", T.zeros(2, u8).random_, T.zeros(2, u8), 0, 300)
    assert.is_true(T.randint(0, 255, { 1000 }, u8):max():item() <= 255)
  end)

  it("a negative power of integers", function()
    for _, dtype in ipairs { "i64", "i32", "u8" } do
      local x = T.ones({ 3 }, { dtype = dtype })
      refused("pow: ", function() return x ^ -1 end)
      refused("negative", T.pow, x, -2)
      refused("negative", x.pow_, x, -2)
    end
    assert.same({ 0.5 }, (T.tensor({ 2 }, { dtype = "i64" }) ^ -1.0):totable())
    assert.same({ 8 }, (T.tensor({ 2 }, { dtype = "i64" }) ^ 3):totable())
  end)

  it("into what distributions, norms and layers take", function()
    local x = T.ones(4)
    refused("uniform_: ", x.uniform_, x, 1, 0)
    refused("normal_: ", x.normal_, x, 0, -1)
    refused("uniform: ", T.uniform, 1, 0, { 2 })
    refused("normal: ", T.normal, 0, -1, { 2 })
    refused("std", nn.init.normal_, x, 0, -1)
    refused("exceed", nn.init.uniform_, x, 1, 0)
    refused("max_norm must be", nn.utils.clip_grad_norm_, { x }, -1)
    refused("max_norm must be", nn.utils.clip_grad_norm_, { x }, 0 / 0)
    refused("clip_value must be", nn.utils.clip_grad_value_, { x }, -1)
    refused("len must be", T.data.Dataset, { len = -1, get = function() end })
    for _, sigma in ipairs { 0, -1 } do refused("cauchy_: sigma", x.cauchy_, x, 0, sigma) end
    refused("softshrink: ", T.softshrink, x, -1)
    refused("softshrink_: ", x.softshrink_, x, -0.5)
    refused("margin", nn.F.triplet_margin_loss, T.ones(2, 2), T.ones(2, 2), T.ones(2, 2), { margin = 0 })
    refused("margin", nn.TripletMarginLoss, { margin = -1 })
    refused("must be a vector", T.meshgrid, { T.ones(2, 2), T.ones(2) })
    refused("unknown indexing 'ji'", T.meshgrid, { T.ones(2) }, { indexing = "ji" })
  end)
end)

describe("a number with a fraction", function()
  it("is not written into integers where the call does not name their dtype", function()
    local x, mask, first = T.arange(3), T.tensor { true, false, true }, T.tensor({ 1 }, { dtype = "i64" })
    for _, dtype in ipairs { "i64", "i32", "u8" } do
      local v = x:clone():to(dtype)
      refused("fill_: 0.5 has a fraction", v.fill_, v, 0.5)
      refused("masked_fill: 0.5 has a fraction", v.masked_fill, v, mask, 0.5)
      refused("masked_fill_: 0.5 has a fraction", v.masked_fill_, v, mask, 0.5)
      refused("index_fill: 0.5 has a fraction", v.index_fill, v, 1, first, 0.5)
      refused("index: 0.5 has a fraction", function() v[1] = 0.5 end)
      refused("index: 0.5 has a fraction", function() v[mask] = 0.5 end)
      refused("set: 0.5 has a fraction", v.set, v, 1, 0.5)
      refused("full_like: 0.5 has a fraction", T.full_like, v, 0.5)
      refused("new_full: 0.5 has a fraction", v.new_full, v, { 2 }, 0.5)
      refused("arange: 0.5 has a fraction", T.arange, 0.5, 4, 1, { dtype = dtype })
      refused("arange: 1.5 has a fraction", T.arange, 1, 4, 1.5, { dtype = dtype })
      assert.same({ 1, 2, 3 }, v:totable())
      v[1] = 7.0
      assert.same({ 7, 9, 3 }, v:index_fill(1, first + 1, 9.0):totable())
      assert.same({ 0, 0 }, T.full({ 2 }, 0.5, { dtype = dtype }):totable()) -- a dtype that is named is a cast
      assert.same({ 0, 0, 0 }, T.full_like(v, 0.5, { dtype = dtype }):totable())
      assert.same({ 1, 3 }, T.arange(1, 4, 2.0, { dtype = dtype }):totable())
    end
    assert.same({ true, true, true }, mask:masked_fill(mask:logical_not(), 0.5):totable())
  end)
end)

describe("a target that is no probability", function()
  local F = nn.F
  it("is refused by binary_cross_entropy, wherever it stands", function()
    for _, n in ipairs { 1, 3, 255, 256, 257, 20000 } do
      for _, dtype in ipairs { "f32", "f64", "bf16" } do
        local x, t, last = T.full({ n }, 0.25, { dtype = dtype }), T.ones(n, { dtype = dtype }), T.zeros(n)
        last[n] = 1
        for _, v in ipairs { 2, -1, 0.0 / 0.0 } do
          local bad = T.where(last:gt(0), v, t:float()):to(dtype)
          for _, reduction in ipairs { "mean", "sum", "none" } do
            local o = { reduction = reduction }
            local function plain() return F.binary_cross_entropy(x, bad, o) end
            local function logits() return F.binary_cross_entropy_with_logits(x, bad, o) end
            if v ~= v then
              assert.is_true(plain():isnan():any():item() and logits():isnan():any():item())
            else
              refused(("binary_cross_entropy: target holds %g"):format(v), plain)
              if reduction == "none" then assert.equal(n, logits():numel())
              else refused(("binary_cross_entropy_with_logits: target holds %g"):format(v), logits) end
            end
          end
          if v == v then -- left out, it is nobody's target
            local w = T.ones(n, { dtype = dtype }) - last:to(dtype)
            assert.is_true(F.binary_cross_entropy_with_logits(x, bad, { weight = w }):isfinite():item())
          end
        end
        assert.is_true(F.binary_cross_entropy(x, t):isfinite():item())
      end
    end
  end)
end)

describe("class 0", function()
  it("is told of index_base", function()
    local x, zero = T.randn(2, 3), T.tensor({ 0, 1 }, { dtype = "i64" })
    refused("index_base=0", nn.F.cross_entropy, x, zero)
    refused("index_base=0", nn.F.nll_loss, x, zero)
    refused("is not in 1 … 3", nn.F.cross_entropy, x, zero + 4)
    assert.is_truthy(nn.F.cross_entropy(x, zero, { index_base = 0 }))
  end)
end)

describe("a budget of memory", function()
  it("charges a power of two with little more than itself", function()
    collectgarbage()
    local before = T.memory().live
    local t = T.zeros({ 1 << 20 }, { dtype = "u8" })
    local took = T.memory().live - before
    assert.is_true(took >= 1 << 20 and took <= (1 << 20) + 8192, took)
    t:free()
  end)
end)

describe("an index", function()
  it("that is none is named", function()
    local x = T.arange(6):view(2, 3)
    refused("got 1.5", function() return x[1.5] end)
    refused("got 2.5", function() return x[{ 1, 2.5 }] end)
    refused("got inf", function() return x[math.huge] end)
    refused("\"a:b\"", function() return x["a:b"] end)
    refused("\"1:b\"", function() return x["1:b"] end)
    refused("\"1,b\"", function() return x["1,b"] end)
    refused("\"a-b\"", function() return x["a-b"] end)
    assert.is_nil(x.no_such_name)
    assert.same({ 2, 3 }, x["1, 2:"]:totable())
    assert.same({ 1, 2 }, x["1, :2"]:totable())
    assert.same({ 1, 3 }, x["1, ::2"]:totable())
    assert.same({ { 1, 2, 3 } }, x["1 : 1, :"]:totable())
  end)
end)

describe("what makes tensors", function()
  local huge = 1 << 44
  it("says its own name, not that of the op inside", function()
    for _, name in ipairs { "zeros", "ones", "empty", "rand", "randn" } do
      refused(name .. ": out of memory", T[name], huge)
      refused(name .. ": out of memory", T[name], { huge })
      refused(name .. ": the sizes multiply", T[name], 1 << 62, 1 << 62)
      refused(name .. "_like: out of memory", T[name .. "_like"], T.ones(1):expand(huge))
    end
    refused("randint: out of memory", T.randint, 1, 3, { huge })
    refused("full: out of memory", T.full, { huge }, 1)
    refused("multi_margin_loss: index value 0", nn.F.multi_margin_loss, T.ones(2, 3), T.zeros(2):long())
    refused("index_base=0", nn.F.cross_entropy, T.ones(2, 3), T.zeros(2):long())
    refused("empty chunks of f32[0,3] are too many", function() return T.zeros(0, 3):chunk(5 << 40) end)
    assert.equal(3, #T.ones(3):chunk(1 << 40))
  end)

  it("takes nils behind its sizes for no options", function()
    for _, name in ipairs { "zeros", "ones", "empty", "rand", "randn" } do
      assert.same({ 2, 3 }, T[name](2, 3, nil, nil):shape())
      assert.same({ 2, 3 }, T[name]({ 2, 3 }, nil):shape())
      refused(name .. ": size 2 must be an integer, got nil", T[name], 2, nil, 3)
    end
    for _, name in ipairs { "zeros", "ones", "empty" } do
      assert.same({ 2, 3 }, T.ones(1)["new_" .. name](T.ones(1), 2, 3, nil):shape())
      assert.same({ 2, 3 }, T.ones(1)["new_" .. name](T.ones(1), { 2, 3 }, nil):shape())
      assert.same({}, T.ones(1)["new_" .. name](T.ones(1), {}, nil):shape())
    end
    for _, t in ipairs { T.uniform(0, 1, { 2 }, nil), T.normal(0, 1, { 2 }, nil), T.randint(1, 3, { 2 }, nil),
      T.randint(3, { 2 }, nil), T.full({ 2 }, 1, nil), T.randint(1, 3, 2, nil) } do
      assert.same({ 2 }, t:shape())
    end
  end)
end)
