-- SPDX-License-Identifier: MIT
-- What random programs (spec/support/whole/) have found, each as the small program that is left of it; and the switch
-- with which they choose when Lua collects.

local T = require "perilune"

local function f64(...) return T.tensor({ ... }, { dtype = "f64" }) end
local function list(t) return t:detach():flatten():totable() end

describe("backward into some leaves", function()
  it("leaves gradients that are dense and shared with nobody", function()
    local x, y = f64(1, 2, 3):requires_grad_(), f64(1, 2, 3):requires_grad_()
    local z = x + y
    z:sum():backward { inputs = { x, y }, retain_graph = true }
    assert.is_true(x.grad:is_contiguous())
    y.grad:mul_(5)
    assert.same({ 1, 1, 1 }, list(x.grad))
    z:sum():backward()
    assert.same({ 2, 2, 2 }, list(x.grad))
    assert.same({ 6, 6, 6 }, list(y.grad))
  end)

  it("refuses what was computed, and says what does that", function()
    local x = f64(1, 2):requires_grad_()
    local y = x * 2
    local ok, err = pcall(function() y:sum():backward { inputs = { y } } end)
    assert.is_false(ok)
    assert.matches("inputs must be leaves.*T%.grad_of", err)
  end)
end)

describe("gradients of chosen inputs", function()
  it("are refused where a part of the tape was freed, which might have led there", function()
    local x = f64(1, 2):requires_grad_()
    local y = x * x
    y:sum():backward()
    assert.error_matches(function() T.grad_of(y:sum(), x, { allow_unused = true }) end, "freed by an earlier backward")
  end)

  it("leave the tape of an input alone that nothing leads to", function()
    local x = f64(1, 2):requires_grad_()
    local y, z = x * x, x * 3
    local got = T.grad_of({ y:sum() }, { x, z }, { allow_unused = true })
    assert.same({ 2, 4 }, list(got[1]))
    assert.is_nil(got[2])
    z:sum():backward()
    assert.same({ 3, 3 }, list(x.grad))
  end)
end)

describe("what is written into the result of a rule", function()
  local function rule(forward)
    return T.custom { name = "rule", forward = function(_, a) return forward(a) end, backward = function(_, g, h)
      return (h and g and g + h or g or h):t() * 2
    end }
  end
  local writes = {
    function(y) y[3] = 7 end,
    function(y) y[1]:mul_(3) end,
    function(y) y:mul_(3) end,
    function(y) y:t():narrow(2, 1, 2):fill_(1) end,
  }
  local function matrix() return T.tensor { { 1, 2, 3 }, { 4, 5, 6 } } end

  it("has its gradient in a trace, too, where the result of a transposed argument is a view", function()
    local twice = T.custom {
      name = "twice",
      forward = function(_, a) return a * 2 end,
      backward = function(_, g) return g * 2 end,
    }
    local x = matrix()
    for _, write in ipairs(writes) do
      local function f(a)
        local leaf = a:clone():requires_grad_()
        local y = twice(leaf:t())
        write(y)
        y:square():sum():backward()
        return leaf.grad
      end
      local want = f(x)
      for _, mirror in ipairs { "none", "mirror", "mincut" } do
        assert.is_true(T.jit(f, { mirror = mirror })(x):equal(want))
      end
    end
  end)

  for name, forward in pairs {
    ["a view of what it made"] = function(a) return (a * 2):t() end,
    ["a view of its argument"] = function(a) return a:t() end,
    ["a tensor returned twice"] = function(a)
      local z = a:t() * 2
      return z, z
    end,
  } do
    local own = "in memory that is not its own"
    it("is refused where that is " .. name, function()
      for _, write in ipairs(writes) do
        local function f(a)
          local leaf = a:clone():requires_grad_()
          local y = rule(forward)(leaf * 1)
          write(y)
          y:sum():backward()
          return leaf.grad
        end
        assert.error_matches(function() f(matrix()) end, own)
        assert.error_matches(function() T.jit(f)(matrix()) end, own)
      end
    end)
    it("unseen spoils that, and views of it, where it is " .. name, function()
      local y = rule(forward)(matrix():requires_grad_() * 1)
      local row = y[1]
      T.no_grad(function() y[2]:mul_(2) end)
      for _, t in ipairs { y, row } do assert.error_matches(function() return t * 2 end, own) end
      assert.same(row:detach():totable(), (row:detach() * 1):totable())
    end)
  end
end)

describe("gradients with a history that were asked for twice", function()
  it("do not lead to each other", function()
    local x = f64(1, 2):requires_grad_()
    local a, b = table.unpack(T.grad_of({ (x * x):sum() }, { x, x }, { create_graph = true }))
    local called = 0
    a:register_hook(function() called = called + 1 end)
    b:register_hook(function() called = called + 10 end)
    a:sum():backward { retain_graph = true }
    assert.equal(1, called)
    b:sum():backward { retain_graph = true }
    assert.equal(11, called)
    for _, pair in ipairs { { a, b }, { b, a } } do
      assert.is_nil(T.grad_of({ pair[1]:sum() }, { pair[2] }, { allow_unused = true, retain_graph = true })[1])
    end
    T.no_grad(function() a:add_(1) end)
    assert.same({ 2, 4 }, list(b))
  end)
end)

describe("one result of a call that another gradient is asked for", function()
  local calls = {
    ["T.jit"] = function() return T.jit(function(a) return a * 2, a * 3 end) end,
    ["T.custom"] = function() return T.custom { name = "twice", forward = function(_, a) return a * 2, a * 3 end,
      backward = function(_, g, h) return (g and g * 2 or 0) + (h and h * 3 or 0) end } end,
  }
  for name, make in pairs(calls) do
    it("is not walked through: " .. name, function()
      local x = f64(1, 2):requires_grad_()
      local y, z = make()(x)
      local called = 0
      z:register_hook(function() called = called + 1 end)
      local o = { allow_unused = true, retain_graph = true }
      assert.is_nil(T.grad_of({ z:sum() }, { y }, o)[1])
      assert.is_nil(T.grad_of({ z }, { y }, { grad_outputs = { T.ones_like(z) }, allow_unused = true,
        retain_graph = true })[1])
      assert.equal(0, called)
      local both = T.grad_of({ (y + z):sum() }, { y, x }, o)
      assert.equal(1, called)
      assert.same({ { 1, 1 }, { 5, 5 } }, { list(both[1]), list(both[2]) })
      both = T.grad_of({ (z * y):sum() }, { y, z }, o)
      assert.equal(2, called)
      assert.same({ { 3, 6 }, { 2, 4 } }, { list(both[1]), list(both[2]) })
    end)
  end
end)

describe("a gradient with a history that others were made of", function()
  it("is no part of theirs", function()
    local x = f64(1, 2):requires_grad_()
    local h = x:sin() * 1
    local dx, dh = table.unpack(T.grad_of({ (-h):cos():sum() }, { x, h }, { create_graph = true }))
    local called = 0
    dh:register_hook(function() called = called + 1 end)
    dx:sum():backward { retain_graph = true }
    assert.equal(0, called)
    assert.is_nil(T.grad_of({ dx:sum() }, { dh }, { allow_unused = true, retain_graph = true })[1])
  end)
end)

describe("a view that its base's history does not reach", function()
  it("does not say that it needs no gradient", function() -- detached with gaps in memory, then written
    local x = f64(1, 2, 3, 4):requires_grad_():view(2, 2)
    local column = x:select(2, 1)
    local whole = column:detach()
    local part = whole[{ { 2, 2 } }]
    whole:copy_(column:sin())
    assert.is_true(whole.requires_grad)
    assert.is_true(part.requires_grad)
    assert.error_matches(function() return part * 2 end, "gaps in memory")
  end)
end)

describe("T.checkpoint", function()
  it("runs again with one tensor where it was given one twice", function()
    local function body(a, b)
      assert(rawequal(a, b))
      a[{ { 1, 1 } }] = -0.5
      local c = b:sigmoid()
      a:mul_(2)
      return c * b
    end
    local grads = {}
    for i, checkpointed in ipairs { false, true } do
      local x = f64(1, 2):requires_grad_()
      local y = x * 3
      local z
      if checkpointed then z = T.checkpoint(body, y, y) else z = body(y, y) end
      z:sum():backward()
      grads[i] = list(x.grad)
    end
    assert.same(grads[1], grads[2])
  end)
end)

describe("a result of a traced function", function()
  it("that was written where nothing is recorded still leads to what was computed of it before", function()
    local x = f64(1, 2):requires_grad_()
    local f = T.jit(function(a)
      local b = a:sin()
      local c = b:sum()
      T.no_grad(function() b:mul_(-2) end)
      return b, c
    end)
    local b, c = f(x)
    assert.error_matches(function() T.grad_of({ c }, { b }, { allow_unused = true }) end,
      "computes further results from this one")
  end)
end)

describe("a view of a leaf", function()
  it("is not written, whether Lua has collected the leaf or not", function()
    local x = f64(1, 2, 3):requires_grad_()
    local v = x:view(1, 3)
    x = nil -- luacheck: ignore
    collectgarbage()
    assert.error_matches(function() v:sigmoid_() end, "view of a leaf that requires a gradient")
    assert.same({ 1, 2, 3 }, list(v))
  end)
end)

describe("what backward keeps", function()
  it("of a product is what it reads, at every size", function()
    local w = f64(1, 2, 3)
    for what, f in pairs { number = function(y) return y * 0.5 end, constant = function(y) return y * w end,
      ["constant first"] = function(y) return w * y end } do
      local x = f64(1, 2, 3):requires_grad_()
      local y = x * x
      local z = f(y)
      y:add_(1) -- z's gradient does not read y
      z:sum():backward()
      assert.same(what == "number" and { 1, 2, 3 } or { 2, 8, 18 }, list(x.grad), what)
    end
  end)

  it("and what is read is still watched", function()
    local x, w = f64(1, 2, 3):requires_grad_(), f64(1, 2, 3)
    local y = x * x
    local z = y * w
    w:add_(1)
    assert.error_matches(function() z:sum():backward() end, "modified in place")
    y = x * x
    z = y * y
    y:add_(1)
    assert.error_matches(function() z:sum():backward() end, "modified in place")
  end)

  it("of a traced function's arguments is what its gradient reads", function()
    local x = f64(1, 2, 3):requires_grad_()
    local f = T.jit(function(a, b) return a:sin(), b:detach() * 2 end)
    local other = f64(1, 2, 3)
    local y = f(x, other)
    other:add_(1)
    y:sum():backward()
    assert.near(math.cos(2), x.grad[2]:item(), 1e-12)
    y = f(x, other)
    local ok, err = pcall(function()
      T.no_grad(function() x:add_(1) end)
      y:sum():backward()
    end)
    assert.is_false(ok)
    assert.matches("argument 1, f64%[3%], was modified in place", err)
  end)

  it("of a traced function whose gradient is nothing is nothing", function()
    local x = f64(1, 2):requires_grad_()
    ;(x * 1):sum():backward()
    local f = T.jit(function(a)
      local b = a - a
      return -1.5 - b, b
    end)
    local y = f(x)
    y:sum():backward { retain_graph = true }
    y:sum():backward()
    assert.same({ 1, 1 }, list(x.grad))
  end)
end)

describe("traced functions", function()
  it("begin each backward with a fresh 1", function()
    local f = T.jit(function(a)
      local x = a:clone():requires_grad_()
      local y = x + 1
      y:backward { retain_graph = true }
      y:backward()
      return x.grad
    end)
    for _ = 1, 3 do assert.equal(2, f(T.ones {}):item()) end
    f = T.jit(function(a) -- one element: the gradient of its sum is a view of that 1
      local x = a:clone():requires_grad_()
      local y = x:sub(x, { alpha = 0.5 })
      y:sum():backward()
      return x.grad
    end)
    for _ = 1, 3 do assert.equal(0.5, f(T.ones(1)):item()) end
  end)

  it("give a sum whose readers have a copy no memory", function()
    for _, mirror in ipairs { "mirror", "mincut" } do
      local f = T.jit(function(a)
        local x = a:clone():requires_grad_()
        local y = x:expand(2, 2)
        y:sum():backward { retain_graph = true }
        y:sum():backward()
        return x.grad
      end, { mirror = mirror })
      assert.same({ 4, 4 }, list(f(T.ones(2))))
    end
  end)

  it("that write into an argument where nothing is recorded pass its gradient on, or refuse", function()
    for _, body in ipairs { function(a) return a * 3 end, function(a) return a * a end } do
      local function f(a)
        T.no_grad(function() a:mul_(2) end)
        return body(a)
      end
      local x, y = f64(1, 3):requires_grad_(), f64(1, 3):requires_grad_()
      f(x):sum():backward()
      local ok, err = pcall(function() T.jit(f)(y):sum():backward() end)
      if ok then assert.same(list(x.grad), list(y.grad)) else assert.matches("wrote it in place", err) end
    end
  end)

  it("whose gradient reads the sizes of a tensor alone let its values be overwritten", function()
    local function f(a)
      local s = a:sum()
      local m = a:mean()
      T.no_grad(function() a:mul_(2) end)
      return s + m
    end
    local x, y = f64(1, 3):requires_grad_(), f64(1, 3):requires_grad_()
    f(x * 1):backward()
    T.jit(f)(y * 1):backward()
    assert.same(list(x.grad), list(y.grad))
  end)

  it("refuse a tracked write through a detached alias without harm", function()
    local f = T.jit(function(a, b)
      local x, y = a:clone():requires_grad_(), b:clone():requires_grad_()
      local c = x:detach()
      local z = y:view(1, 4):mean()
      c[{ { 2, 2 } }] = z
      return c:detach():clone()
    end)
    for _ = 1, 3 do
      local ok, err = pcall(f, T.ones(2), T.ones(4))
      if ok then assert.same({ 1, 1 }, list(err)) else assert.matches("was detached and is written", err) end
    end
  end)

  it("are not kept by an argument that is changed by what they gave", function()
    local f = T.jit(function(a, b) return a * b end)
    local function round()
      local x, w = f64(1, 2), f64(3, 4):requires_grad_()
      local y = f(x, w)
      x:sub_(y:sum())
    end
    round()
    require "spec.support.live".flat(T, round)
  end)
end)

it("T.gradcheck leaves no key behind, which would keep jitted functions from their graphs", function()
  collectgarbage()
  collectgarbage "stop"
  local before = #T.grad_keys()
  assert(T.gradcheck(function(x) return x:sin() end, { f64(1, 2) }))
  assert(T.gradgradcheck(function(x) return x:sin() end, { f64(1, 2) }))
  local after = #T.grad_keys()
  collectgarbage "restart"
  assert.equal(before, after)
end)

describe("core.debug_collect", function()
  after_each(function()
    T.core.debug_collect "off"
    collectgarbage "restart"
  end)

  local function live() return T.memory().live end

  it("collects where an op begins and where a tensor's userdata is made", function()
    collectgarbage()
    T.core.debug_collect "1"
    local before = live()
    for _ = 1, 3 do
      T.zeros(1000)
      assert.is_true(live() < before + 2 * 4 * 1000 + 1024)
    end
  end)

  it("collects at every n-th point from the k-th on", function()
    local seen = 0
    local function ghost() setmetatable({}, { __gc = function() seen = seen + 1 end }) end
    local x = T.ones(2)
    for first = 1, 4 do
      collectgarbage()
      T.core.debug_collect(("1000+%d"):format(first))
      seen = 0
      ghost()
      local calls = 0
      while seen == 0 and calls < 10 do
        x:size(1) -- makes nothing
        local _ = x + x -- two points: the op, its result
        calls = calls + 1
      end
      assert.equal((first + 1) // 2, calls)
    end
  end)

  it("forces emergency collections, which run no finalizer, at Lua's own allocations", function()
    local finalized = false
    setmetatable({}, { __gc = function() finalized = true end })
    local weak = setmetatable({ {} }, { __mode = "v" })
    T.core.debug_collect "alloc:1"
    local t = {}
    local then_ = finalized
    T.core.debug_collect "off"
    assert.is_nil(weak[1])
    assert.is_false(then_)
    assert.equal(0, #t)
    collectgarbage()
    assert.is_true(finalized)
  end)

  it("stops all collections but those that are asked for", function()
    collectgarbage()
    T.core.debug_collect "stop"
    local before = live()
    for _ = 1, 200 do T.zeros(1 << 16) end
    assert.is_true(live() - before >= 200 * 4 * (1 << 16))
    collectgarbage()
    assert.is_true(live() - before < 4 * (1 << 16))
  end)

  it("says what it takes", function()
    for _, text in ipairs { "", "0", "-1", "3+4", "3+0", "x", "alloc:", "alloc:0", "2 ", "1+" } do
      assert.error_matches(function() T.core.debug_collect(text) end, "N%+K with K from 1 to N")
    end
  end)
end)
