-- SPDX-License-Identifier: MIT
-- Bad input and failing allocations: a clear error, nothing lost, nothing leaked, the process goes on.

local T = require "perilune"
local near = require "spec.support.near"
local live = require "spec.support.live"
local nn = T.nn
local fails = near.fails

describe("tensors after free", function()
  it("are refused by every use, and free again is an error or nothing", function()
    local x = T.ones(3)
    local view = x:view(3)
    x:free()
    for _, use in ipairs {
      function() return x + 1 end, function() return x:sum() end, function() return x:shape() end,
      function() return x:item() end, function() return x[1] end, function() return x:to_string() end,
      function() return T.cat { x, x } end, function() return x:requires_grad_() end,
      function() return #x end,
      function() return x:get(1) end, function() x[1] = 2 end, function() return x:add_(1) end,
    } do
      fails("free", use)
    end
    pcall(x.free, x)
    near.near(view, 1) -- a view keeps the storage alive
    assert.is_string(tostring(x))
  end)

  it("cannot be finalized by hand", function()
    local x = T.ones(3)
    assert.is_false(type(getmetatable(x)) == "table")
    local mt = debug.getmetatable(x)
    if mt and mt.__gc then
      mt.__gc(x)
      mt.__gc(x)
      fails("free", function() return x + 1 end)
    end
  end)
end)

describe("sizes", function()
  it("that overflow, are negative or no numbers are refused", function()
    for _, make in ipairs { T.zeros, T.ones, T.empty, T.randn, T.rand } do
      for _, shape in ipairs {
        { math.maxinteger }, { 1 << 40, 1 << 40 }, { 1 << 31, 1 << 31, 4 }, { -1 }, { 2, -3 }, { 0 / 0 },
        { math.huge }, { 1.5 }, { "3" }, { true }, { math.mininteger },
      } do
        local ok, err = pcall(make, table.unpack(shape))
        assert.is_false(ok)
        assert.is_string(err)
      end
    end
    local x = T.ones(6)
    for _, shape in ipairs { { 4 }, { -1, -1 }, { -2 }, { 0, -1 }, { math.maxinteger, 2 }, { 1 << 62, 4 } } do
      assert.is_false((pcall(x.view, x, table.unpack(shape))))
      assert.is_false((pcall(x.reshape, x, table.unpack(shape))))
      if shape[1] ~= 0 then assert.is_false((pcall(x.expand, x, table.unpack(shape)))) end
    end
    assert.is_false((pcall(T.full, { 1 << 62 }, 1)))
    assert.is_false((pcall(T.arange, 1, math.maxinteger)))
    assert.is_false((pcall(T.arange, 1, 10, 0)))
    assert.is_false((pcall(T.arange, 0 / 0)))
    assert.is_false((pcall(T.eye, -1)))
    local seventeen = {}
    for i = 1, 17 do seventeen[i] = 1 end
    assert.is_false((pcall(T.zeros, table.unpack(seventeen))))
  end)

  it("that memory cannot hold raise an out-of-memory error, and the next call works", function()
    fails("memory", T.zeros, 1 << 44)
    near.near(T.ones(3) + 1, 2)
  end)

  it("beyond the budget raise, and lifting it helps", function()
    live.collect()
    T.set_memory_budget(T.memory().live + (1 << 20))
    fails("memory", T.zeros, 1 << 20)
    near.near(T.ones(3) + 1, 2)
    T.set_memory_budget(-1)
    assert.equal(1 << 20, T.zeros(1 << 20):numel())
  end)
end)

describe("positions", function()
  it("start at 1", function()
    local x = T.arange(12):view(3, 4)
    for _, f in ipairs {
      function() return x[0] end, function() return x:get(0, 1) end, function() return x[{ 0, 1 }] end,
      function() return x:select(1, 0) end, function() return x:narrow(1, 0, 2) end,
      function() return x:sum(0) end, function() return x:transpose(0, 1) end, function() x[0] = 1 end,
      function() return x:index_select(T.tensor({ 0 }, { dtype = "i64" }), { dim = 1 }) end,
    } do
      local err = fails("1", f)
      assert.is_truthy(err:find("start at 1", 1, true) or err:find("1", 1, true), err)
    end
  end)

  it("out of range are refused before anything is written", function()
    local x = T.arange(12):view(3, 4)
    local long = { dtype = "i64" }
    local copy = x:clone()
    for _, f in ipairs {
      function() return x[5] end, function() return x[-4] end, function() return x:get(3, 5) end,
      function() return x[{ { 1, 4 } }] end, function() return x[T.tensor({ 1, 4 }, long)] end,
      function() x[T.tensor({ 1, 4 }, long)] = 7 end, function() x[4] = 7 end,
      function() return x:gather(T.tensor({ { 9 } }, long), { dim = 1 }) end,
      function() return x:index_select(T.tensor({ 1, -9 }, long), { dim = 1 }) end,
      function() return x[T.tensor { true, false }] end,
      function() return nn.F.embedding(T.tensor({ 1, 9 }, long), T.ones(3, 2)) end,
    } do
      assert.is_false((pcall(f)))
    end
    near.same_bits(x, copy)
  end)

  it("labels out of range name the value and the range", function()
    local logits = T.randn(2, 5)
    for _, bad in ipairs { 0, 6, -1, math.maxinteger, math.mininteger } do
      local labels = T.tensor({ 1, bad }, { dtype = "i64" })
      local err = fails("5", nn.F.cross_entropy, logits, labels)
      assert.is_string(err)
      assert.is_false((pcall(nn.F.nll_loss, logits, labels)))
    end
    local nan = T.tensor { 1, 0 / 0 }
    assert.is_false((pcall(nn.F.cross_entropy, logits, nan)))
  end)
end)

describe("arithmetic that traps in C", function()
  it("does not end the process", function()
    local i = function(v) return T.tensor({ v }, { dtype = "i64" }) end
    for _, op in ipairs { "floor_divide", "remainder", "fmod" } do
      if T[op] then assert.is_false((pcall(T[op], i(7), i(0)))) end
    end
    if T.floor_divide then
      assert.equal(math.mininteger, T.floor_divide(i(math.mininteger), i(-1)):item())
    end
    assert.equal(0, T.tensor { 0 / 0 }:to("i32"):item())
    assert.equal(2147483647, T.tensor { 1e30 }:to("i32"):item())
    assert.equal(-128, T.tensor { -1e9 }:to("i8"):item())
  end)
end)

-- ---- failing allocations -----------------------------------------------------------------------

local SCRIPTS = require "spec.support.fault_scripts"

describe("a failing allocation in", function()
  local function run(script, n, count)
    T.core.fail_at(n, count)
    local ok, err = pcall(script)
    T.core.fail_at(-1)
    return ok, err
  end

  for _, row in ipairs(SCRIPTS) do
    it(row[1], function()
      local name, script = row[1], row[2]
      T.manual_seed(3)
      script()
      script()
      T.empty_cache()
      local blocks = live.blocks(T)
      local last
      for n = 0, 5000 do
        local ok, err = run(script, n, 1 << 40)
        if ok then
          last = n
          break
        end
        assert.is_string(err, name)
        assert.is_truthy(err:find("memory", 1, true), err)
        if n % 10 == 1 then
          assert.equal(blocks, (live.blocks(T)), "blocks left after failure " .. n)
          assert.is_truthy(script())
        end
      end
      assert.is_number(last, "never succeeded")
      assert.is_true(last > 0, "no allocation failed")
      for n = 0, last do
        for count = 1, 2 do
          local ok, err = run(script, n, count)
          if not ok then assert.is_string(err) end
        end
      end
      assert.is_truthy(script())
      assert.equal(blocks, (live.blocks(T)), "blocks left")
    end)
  end
end)
