-- SPDX-License-Identifier: MIT
-- Calls that no one should make: each is a clear error at the caller's line, or harmless, and never more. The worst
-- of them came out of spec/support/fuzz.lua and of reading the bindings as an adversary.

local T = require "perilune"
local term = require "spec.support.terminal"
local live = require "spec.support.live"

local HERE = debug.getinfo(1, "S").short_src:gsub("%p", "%%%0")

-- f fails with a message that names this file and holds `words`.
local function refused(words, f, ...)
  local args = table.pack(...)
  local ok, err = pcall(function() return f(table.unpack(args, 1, args.n)) end)
  assert.is_false(ok, "accepted")
  assert.is_string(err)
  assert.is_truthy(err:find("^" .. HERE .. ":%d+: "), err)
  assert.is_truthy(err:find(words, 1, true), err)
  return err
end

local long = { dtype = "i64" }

describe("wrong calls say what is wrong:", function()
  it("making tensors", function()
    refused("ragged table: 1 entries at depth 2 where 2 were expected", T.tensor, { { 1, 2 }, { 3 } })
    refused("ragged table: an integer at depth 2 where a table was expected", T.tensor, { { 1 }, 2 })
    refused("entries must be numbers or booleans, got string", T.tensor, { 1, "2" })
    refused("got nothing", T.tensor)
    refused("unknown dtype \"f31\"", T.tensor, { 1 }, { dtype = "f31" })
    refused("did you mean dtype?", T.tensor, { 1 }, { dtyp = "f32" })
    local deep = 1
    for _ = 1, 17 do deep = { deep } end
    refused("nested deeper than 16", T.tensor, deep)
    local loop = {}
    loop[1] = loop
    refused("nested deeper than 16", T.tensor, loop)
    refused("argument 1 must be a string", T.from_string, 5, "f32")
    refused("the shape needs 16 bytes, the string has 4", T.from_string, "abcd", "f32", { 4 })
    refused("the shape must be a list of sizes, got string", T.from_string, "abcd", "f32", "1")
    refused("negative", T.from_string, "", "f32", { -1 })
    refused("multiply to more bytes", T.from_string, "", "f32", { 1 << 62, 1 << 62 })
    refused("must be a finite number, got nil", T.arange)
    refused("a function or nothing expected, got", T.no_grad, T.ones(2))
  end)

  it("looking at tensors", function()
    local x = T.ones(2, 3)
    refused("6 elements, not one", x.item, x)
    refused("needs 2 indices, got 1", x.get, x, 1)
    refused("takes 2 indices, got 3", x.get, x, 1, 2, 3)
    refused("indices start at 1", x.get, x, 0, 1)
    refused("argument index must be an integer, got 1.5", x.get, x, 1.5, 1)
    refused("takes 2 indices and a value", x.set, x, 1, 2)
    refused("the value must be a number or a boolean", x.set, x, 1, 2, "3")
    refused("dimensions start at 1", x.size, x, 0)
    refused("call it as x:numel()", x.numel, 3)
    refused("argument #2 must be a tensor, got table", x.shares_storage, x, {})
    refused("has no length", function() return #T.tensor(1) end)
    refused("x:lt(y) for x < y", function() return x < x end)
    refused("must be a tensor", T.core.op.exp, io.stdout)
  end)

  it("indices", function()
    local x = T.arange(6):view(2, 3)
    refused("0 in dimension 1 of i64[2,3]", function() return x[0] end)
    refused("4 is out of range for dimension 2", function() return x[{ 1, 4 }] end)
    refused("3 indices for i64[2,3]", function() return x[{ 1, 1, 1 }] end)
    refused("an empty key", function() return x[{}] end)
    refused("only one ... is possible", function() return x["..., ..."] end)
    refused("a range has two or three numbers", function() return x[{ { 1, 2, 3, 4 } }] end)
    refused("steps are positive", function() return x[{ { 1, 2, -1 } }] end)
    refused("runs backwards", function() return x[{ {}, { 3, 1 } }] end)
    refused("a step is missing", function() return x["::x"] end)
    refused("must be integer or bool", function() return x[T.ones(2)] end)
    refused("no dimension to index", function() return T.tensor(5)[1] end)
    refused("the value must be a tensor or a number, got string", function() x[1] = "a" end)
    refused("no assignable field 'shape'", function() x.shape = 3 end)
    refused("'data'; values are changed by T.no_grad", function() x.data = 3 end)
    assert.is_nil(x.no_such_thing)
    assert.is_nil(x[3])
  end)

  it("gradients", function()
    local x = T.ones(2):requires_grad_()
    refused("must be given", function() (x * 2):backward() end)
    refused("does not have the shape", function() (x * 2):backward(T.ones(3)) end)
    refused("does not have the dtype", function() (x * 2):backward(T.ones(2, { dtype = "f64" })) end)
    refused("the gradient must be a tensor", function() (x * 2):backward(5) end)
    refused("the gradient must be a tensor", function() (x * 2):backward { gradient = 5 } end)
    refused("did you mean retain_graph?", function() (x * 2):backward(nil, { retain_grap = true }) end)
    refused("only floating tensors have gradients", T.ones(2, long).requires_grad_, T.ones(2, long))
    refused("a function expected, got an integer", x.register_hook, x, 5)
    refused("does not require a gradient", function() T.ones(2):register_hook(print) end)
    refused("entry 2 of xs must be a tensor", T.grad_of, x:sum(), { x, 3 })
    refused("was not used", T.grad_of, { x:sum() }, { T.ones(2) })
    refused("cannot be the gradient", function() x.grad = T.ones(3) end)
    refused("level", T.GradKey, { level = 0 })
    refused("out of range", T.GradKey, { level = -(1 << 32) + 5 })
    refused("name must be a string", T.GradKey, { name = 5 })
    refused("forward must be a function", T.custom, { backward = print })
    refused("no op", T.override_gradient, "no such op")
  end)

  it("everything after free", function()
    local x, y = T.ones(3), T.ones(3)
    x:free()
    for name, method in pairs(T.core.metatable().methods) do
      if not (name == "is_freed" or name == "describe" or name == "tostring") then
        local ok, err = pcall(method, x, y, 1)
        if ok then ok, err = pcall(method, x) end
        assert.is_false(ok, name)
        assert.is_string(err, name)
      end
    end
    for _, f in ipairs {
      function() return x + 1 end, function() return 1 - x end, function() return y * x end,
      function() return T.cat { y, x } end, function() return y[x] end, function() y[1] = x end,
      function() return T.stack({ x }) end, function() return T.tensor(x) end, function() y.grad = x end,
      function() return x.grad end, function() return -x end, function() return T.grad_of(y, { x }) end,
    } do
      assert.is_false((pcall(f)))
    end
    refused("freed before", x.free, x)
  end)
end)

describe("a custom rule that", function()
  local function rule(forward, backward)
    return T.custom { name = "odd", forward = forward, backward = backward or function(_, g) return g end }
  end
  local x
  before_each(function() x = T.ones(4):requires_grad_() end)
  after_each(function() x = nil end)

  it("frees its input is refused", function()
    local f = rule(function(_, a)
      local r = a * 2
      a:free()
      return r
    end)
    refused("forward freed its argument #1", f, x * 1)
  end)

  it("overwrites what ctx:save keeps is refused", function()
    for _, n in ipairs { -5, 1 << 40, -(1 << 62) } do
      local f = rule(function(ctx, a)
        ctx:save(a)
        ctx[0] = n
        return a * 1
      end, function(ctx, g)
        ctx:saved()
        return g
      end)
      f(x):sum():backward() -- the nodes hold what was saved: no field of the context can harm it
      local kept
      local g = rule(function(ctx, a)
        kept = ctx
        return a * 1
      end, function(ctx, d)
        ctx:saved()
        return d
      end)
      local y = g(x):sum()
      kept:save(x)
      kept[0] = n
      refused("it belongs to ctx:save", function() y:backward() end)
    end
    refused("called without its context", function()
      rule(function(ctx, a)
        ctx.save()
        return a * 1
      end)(x)
    end)
  end)

  it("returns a gradient of another dtype, shape or number is refused", function()
    local function returning(...)
      local r = table.pack(...)
      return function() rule(function(_, a) return a * 1 end, function()
        return table.unpack(r, 1, r.n)
      end)(x):sum():backward() end
    end
    refused("custom grad rule of odd returned i64[4] for input 1, which is f32[4]", returning(T.ones(4, long)))
    refused("returned f32[3]", returning(T.ones(3)))
    refused("returned non-tensor", returning("g"))
    refused("wrong number of grads", returning(T.ones(4), T.ones(4)))
    assert.is_nil(x.grad)
  end)

  it("has a long name keeps it", function()
    local name = ("long name "):rep(10)
    local f = T.custom { name = name, forward = function(_, a) return a * 1 end, backward = function() return 1 end }
    for _ = 1, 3 do
      local err = refused("returned non-tensor", function() f(x):sum():backward() end)
      assert.is_truthy(err:find(name, 1, true))
      collectgarbage()
    end
  end)

  it("closes the key that runs it lets the walk end", function()
    local key = T.GradKey {}
    local a, seen = T.ones(4), 0
    local f = rule(function(ctx, v)
      ctx:save(v)
      return v * 3
    end, function(ctx, g)
      key:close()
      collectgarbage()
      return g * ctx:saved()
    end)
    key:attach(a, function() seen = seen + 1 end)
    key:backward(f(a * a), T.ones(4))
    assert.is_true(seen <= 1)
    refused("finalized", key.backward, key, a)
  end)
end)

describe("a hook that", function()
  it("frees, detaches or assigns what the walk is using does no harm", function()
    for _, act in ipairs {
      function(x, y, z) x:free() y:free() z:free() end,
      function(x, y) x:detach_() y:detach_() end,
      function(x) x.grad = T.ones(4) x.grad = nil end,
      function(_, _, _, g) g:free() end,
    } do
      local x = T.ones(4):requires_grad_()
      local y = x * x
      local z = (y * 2):sum()
      y:register_hook(function(g) act(x, y, z, g) end)
      z:backward()
    end
  end)

  it("frees an input of grad_of leaves its name in the message", function()
    local x, unused = T.ones(3):requires_grad_(), T.ones(2, 5):requires_grad_()
    local w = x * 1
    w:register_hook(function() unused:free() end)
    refused("input 2, f32[2,5], was not used", T.grad_of, w:sum(), { x, unused })
  end)

  it("calls backward on the running tape is refused", function()
    local x = T.ones(3):requires_grad_()
    local y = x * x
    local z = y:sum()
    y:register_hook(function() z:backward() end)
    refused("", function() z:backward(nil, { retain_graph = true }) end)
    x.grad = nil;
    (x * 3):sum():backward()
    assert.equal(9, x.grad:sum():item())
  end)
end)

describe("a finalizer that", function()
  local function churn(f)
    for _ = 1, 200 do
      f()
      for _ = 1, 20 do T.ones(50) end
    end
    collectgarbage()
  end

  it("frees a tensor leaves it to the collector", function()
    churn(function()
      local x = T.ones(100)
      setmetatable({}, { __gc = function() x:free() end })
      for _ = 1, 10 do assert.equal(200, (x + x):sum():item()) end
    end)
  end)

  it("changes a table that T.tensor reads, or a gradient being read, does no harm", function()
    churn(function()
      local list = { 1, 2, 3 }
      setmetatable({}, { __gc = function() for i = 1, 500 do list[i] = i end end })
      for _ = 1, 5 do assert.is_true(T.tensor(list):numel() >= 3) end
    end)
    churn(function()
      local x = T.ones(10):requires_grad_()
      x.grad = T.ones(10)
      setmetatable({}, { __gc = function() x.grad = nil end })
      for _ = 1, 10 do assert.is_true(x.grad == nil or x.grad:numel() == 10) end
    end)
  end)

  it("runs while the tape and the keys are listed does no harm", function()
    churn(function()
      local key = T.GradKey {}
      local x = T.ones(4):requires_grad_()
      local y = x
      for _ = 1, 20 do y = y * 2 end
      key:attach(x * 1)
      assert.is_table(T.debug.tape(y))
      assert.is_table(T.grad_keys())
      assert.is_table(key:attached())
    end)
  end)

  it("runs at the end of the state may still compute", function()
    local programs = { not term.missing "perilune" and term.command, not term.missing("plain", "lua5.4") and "lua5.4" }
    local script = [[
      local T = require "perilune"
      G = setmetatable({ x = T.ones(100) }, { __gc = function(s)
        local y = (s.x * 2):requires_grad_()
        local z = (y * y):sum()
        z:backward()
        print("late", z:item())
      end })]]
    local ran = 0
    for _, program in pairs(programs) do
      if program then
        assert.equal("late\t400.0\n", (term.shell(("%s -e %s"):format(term.quote(program), term.quote(script)))))
        ran = ran + 1
      end
    end
    assert.is_true(ran >= 1)
  end)
end)

describe("a cycle through", function()
  it("a gradient with a history of its own is collected", function()
    live.flat(T, function()
      for _ = 1, 5 do
        local x = T.ones(100):requires_grad_();
        (x * x * x):sum():backward(nil, { create_graph = true })
        local w = T.ones(100):requires_grad_()
        w.grad = w * 2
      end
    end)
    live.flat(T, function() -- the leaf's object goes before its gradient comes
      local y
      do
        local x = T.ones(100):requires_grad_()
        y = (x * x * x):sum()
      end
      collectgarbage()
      y:backward(nil, { create_graph = true })
    end)
  end)

  it("a tensor that was saved and then overwritten is collected", function()
    live.flat(T, function()
      local f = T.rand(3, 4):requires_grad_() * 1
      local e = f:erf()
      f:mul_(e)
      local g = T.rand(3, 4):requires_grad_() * 1
      local s = g:sin()
      g[2] = s[1]
    end)
  end)
end)

describe("the state after an error", function()
  it("is what it was", function()
    local seed = T.get_rng_state()
    assert.is_false((pcall(T.randn, 1 << 40)))
    assert.is_false((pcall(function() return T.randint(5, 1, { 3 }) end)))
    assert.equal(seed, T.get_rng_state())
    local x = T.arange(4)
    local version = x:version()
    assert.is_false((pcall(function() x[T.tensor({ 1, 9 }, long)] = 7 end)))
    assert.is_false((pcall(function() return x:add_(T.ones(3)) end)))
    assert.equal(version, x:version())
    assert.is_false((pcall(T.no_grad, function() error "inside" end)))
    assert.is_true(T.core.grad_enabled())
  end)
end)
