-- SPDX-License-Identifier: MIT
-- Corners of the gradient system where several parts meet: views that are out of date, walks inside walks, many keys,
-- replaced gradients in place, repeated positions, structures that do not fit.

local T = require "perilune"
local near = require "spec.support.near"
local live = require "spec.support.live"
local eq, fails = near.near, near.fails

local f64 = { dtype = "f64" }
local function vec(...) return T.tensor({ ... }, f64) end
local function ints(...) return T.tensor({ ... }, { dtype = "i64" }) end
local function leaf(...) return vec(...):requires_grad_() end

local copy = T.custom {
  name = "copy",
  forward = function(_, a) return a * 1 end,
  backward = function(_, g) return g end,
}

describe("a tensor that is overwritten as a whole", function()
  it("still requires a gradient, which is zero", function()
    for name, write in pairs {
      ["y[{ {} }] = v"] = function(y) y[{ {} }] = 2.5 end,
      ["y[{ { 1, 3 } }] = v"] = function(y) y[{ { 1, 3 } }] = 2.5 end,
      fill_ = function(y) y:fill_(2.5) end,
      zero_ = function(y) y:zero_() end,
      copy_ = function(y) y:copy_(vec(1, 2, 3)) end,
      uniform_ = function(y) y:uniform_() end,
      ["through a view"] = function(y) y:view(3, 1):fill_(1) end,
      mask = function(y) y[y:detach():eq(y:detach())] = 1 end,
    } do
      local x = leaf(1, 2, 3)
      local y = x * 2
      write(y)
      assert(y.requires_grad, name)
      local loss = (y * vec(1, 2, 3)):sum()
      loss:backward()
      eq(x.grad, { 0, 0, 0 })
    end
  end)
end)

describe("T.is_grad_enabled", function()
  it("is whether a hook or a rule would be recorded", function()
    local w, told = T.ones(1):requires_grad_(), {}
    local function tell() told[#told + 1] = T.is_grad_enabled() == (w * 2).requires_grad and T.is_grad_enabled() end
    local f = T.custom { forward = function(_, x) return x * 2 end,
      backward = function(_, g)
        tell()
        return g * 2
      end }
    for _, create in ipairs { false, true } do
      told = {}
      local y = f(w)
      y:register_hook(tell)
      w:register_post_accumulate_grad_hook(tell):remove()
      y:sum():backward { create_graph = create }
      T.grad_of(f(w):sum(), w, { create_graph = create })
      assert.same({ create, create, create }, told)
      assert.is_true(T.is_grad_enabled())
    end
    w.grad = nil
  end)
end)

describe("recording that was turned off", function()
  local term = require "spec.support.terminal"

  it("is told by backward, with the line", function()
    local w = T.ones(2):requires_grad_()
    local line = debug.getinfo(1, "l").currentline + 2
    local function f()
      local _ <close> = T.no_grad()
      local y = (w * w):sum()
      y:backward()
    end
    local _, text = pcall(f)
    assert.truthy(text:find(("recording is off since [^\n]*corners_spec.lua:%d$"):format(line)), text)
    _, text = pcall(T.no_grad, function() (w * w):sum():backward() end)
    assert.truthy(text:find "recording is off$", text)
    _, text = pcall(function() T.ones(2):sum():backward() end)
    assert.truthy(text:find "call requires_grad_%(%)", text)
  end)

  it("by a scope that nothing ends is warned of", function()
    local missing = term.missing "perilune"
    if missing then return pending(missing) end
    local function stderr(code)
      return (term.shell(("%s -e %s"):format(term.quote(term.command), term.quote('local T = require "perilune" '
        .. code))))
    end
    assert.truthy(stderr "T.no_grad() collectgarbage()":find(
      "warning: (command line):1: the scope of T.no_grad() was thrown away, so recording stays off; write", 1, true))
    assert.equal("", stderr "do local _ <close> = T.no_grad() end T.no_grad(print) collectgarbage()":gsub("^\n", ""))
    assert.equal("", stderr "T.set_grad_enabled(false) collectgarbage()")
    assert.equal("",
      stderr "coroutine.wrap(function() local _ <close> = T.no_grad() coroutine.yield() end)() collectgarbage()")
  end)
end)

describe("a view whose base was changed in place since", function()
  -- The gradient that x gets where `use` reads such a view of 3 x.
  local function through(use)
    local x = leaf(1, 2)
    local y = x * 1
    local v = y[{ { 1, 1 } }]
    y:mul_(3)
    use(v):sum():backward()
    return x.grad
  end

  it("has its history in whatever reads it", function()
    for i, use in ipairs {
      function(v) return v * 1 end,
      function(v) return v end,
      function(v) return copy(v) end,
      function(v) return T.checkpoint(function(a) return a * 1 end, v) end,
      function(v) return T.jit(function(a) return a * 1 end)(v) end,
      function(v) return T.vmap(function(a) return copy(a) end)(v) end,
      function(v) return v:retain_grad() * 1 end,
      function(v)
        local z = T.zeros({ 1 }, f64)
        z[1] = v[1]
        return z
      end,
    } do
      assert.has_no.errors(function() eq(through(use), { 3, 0 }) end, "use " .. i)
    end
    eq(through(function(v)
      v:register_hook(function(g) return g * 10 end)
      return v * 1
    end), { 30, 0 })
  end)

  it("is attached where it is now", function()
    local x, got = vec(1, 2), {}
    local key = T.GradKey {}
    key:attach(x, function(_, g) got.x = g end)
    local y = x * 1
    local v = y[{ { 1, 1 } }]
    y:mul_(3)
    key:attach(v, function(_, g) got.v = g end)
    assert.is_true(key:is_attached_to(v))
    key:backward((v * 2):sum())
    eq(got.v, { 2 })
    eq(got.x, { 6, 0 })
  end)

  it("tells what it depends on, also when it depended on nothing before", function()
    local x = leaf(1, 2)
    local y = T.zeros({ 2 }, f64)
    local v = y[{ { 1, 1 } }]
    y:copy_(x)
    assert.is_true(v.requires_grad)
    assert.is_false(v.is_leaf)
    assert.is_true(#T.debug.tape(v) > 1)
    copy(v):sum():backward()
    eq(x.grad, { 1, 0 })
  end)
end)

describe("keys", function()
  it("nest deeper than one would", function()
    local f = function(x) return (x * 0.5):exp() end
    for _ = 1, 40 do f = T.grad(f) end
    local want = 0.5 ^ 40 * math.exp(0.15)
    assert.is_true(math.abs(f(T.tensor(0.3, f64)):item() - want) < 1e-9 * want)
    local x, keys, got = vec(0.7), {}, {}
    for l = 1, 100 do
      keys[l] = T.GradKey {}
      keys[l]:attach(x, function(_, g) got[l] = g end)
    end
    local y = (x * 0.5):exp()
    for l = 100, 1, -1 do
      keys[l]:backward(y)
      y = assert(got[l], "no gradient at level " .. l)
    end
    assert.is_true(math.abs(y:item() / (0.5 ^ 100 * math.exp(0.35)) - 1) < 1e-9)
  end)

  it("may be closed in any order, and by their own callbacks", function()
    local x = vec(1, 2)
    local outer, inner = T.GradManager():attach(x), T.GradManager():attach(x)
    outer:record()
    inner:record()
    local y = x * x
    outer:release()
    inner:backward(y)
    eq(x.grad, { 2, 4 })
    assert.is_true((leaf(1) * 2).requires_grad)
    local key, calls = T.GradKey {}, 0
    local function close()
      calls = calls + 1
      key:close()
    end
    key:attach(x, close)
    local z = x * x
    key:attach(z, close)
    key:backward(z:exp())
    assert.equal(1, calls)
    assert.is_false(key.active)
  end)

  it("are named in no time, however many there are", function()
    local keys, names = {}, {}
    local start = os.clock()
    for i = 1, 2000 do
      keys[i] = T.GradKey { level = 1 }
      assert.is_nil(names[keys[i].name])
      names[keys[i].name] = true
    end
    for i = 1, 2000 do keys[i]:close() end
    assert.is_true(os.clock() - start < 1)
  end)
end)

describe("a walk inside a walk", function()
  it("may end at the same leaves", function()
    live.flat(T, function()
      local x = leaf(1, 2)
      local other = (x * 10):sum()
      local y = x * x
      y:register_hook(function() other:backward() end)
      y:sum():backward()
      eq(x.grad, { 12, 14 })
      -- the same in a rule, and for gradients that are handed out
      x.grad = nil
      local seen
      other = (x ^ 3):sum()
      local nosy = T.custom { name = "nosy", forward = function(_, a) return a * 1 end, backward = function(_, g)
        seen = T.grad_of(other, x)
        return g
      end };
      (nosy(x) + x):sum():backward()
      eq(seen, { 3, 12 })
      eq(x.grad, { 2, 2 })
    end)
  end)

  it("keeps what the outer one had noted when it fails", function()
    local x = leaf(1, 2)
    local bad = T.custom { name = "bad", forward = function(_, a) return a * 1 end,
      backward = function() error "inner" end }
    local other = (bad(x * 1) + x):sum()
    local y = x * x
    y:register_hook(function() fails("inner", other.backward, other) end);
    (y + x):sum():backward()
    eq(x.grad, { 3, 5 })
  end)

  it("goes over the same tape where the inner one keeps it", function()
    local x, n = leaf(1, 2), 0
    local y = x * x
    local u, seen = y * y, nil
    local z = u:sum()
    y:register_hook(function()
      n = n + 1
      if n == 1 then
        seen = T.grad_of(z, { x, y }, { retain_graph = true })
        z:backward { retain_graph = true }
      end
    end)
    z:backward { retain_graph = true }
    assert.equal(3, n)
    eq(seen[1], { 4, 32 })
    eq(seen[2], { 2, 8 })
    eq(x.grad, { 8, 64 })
    -- the outer one was asked about other results of the same nodes
    local a, inner = leaf(1, 2, 3, 4), nil
    local p, q = table.unpack((a * 1):chunk(2, 1))
    p = p * p
    local out = (p:sum() + (q * q * q):sum()) + 0
    p:register_hook(function()
      if inner == nil then
        inner = false
        inner = T.grad_of(out, { a, q }, { retain_graph = true })
      end
    end)
    local g = T.grad_of(out, { a, p, q }, { retain_graph = true })
    eq(g[1], { 2, 4, 27, 48 })
    eq(g[2], { 1, 1 })
    eq(g[3], { 27, 48 })
    eq(inner[1], { 2, 4, 27, 48 })
    eq(inner[2], { 27, 48 })
  end)

  it("is refused over the same tape, and says where nothing is recorded", function()
    local x = leaf(1, 2)
    local y = x * x
    local z = y:sum()
    y:register_hook(function() z:backward() end)
    fails("called again from inside itself over the same tape", function() z:backward() end)
    local w = x * 2
    w:register_hook(function(g) (g:detach():requires_grad_() * 2):sum():backward() end)
    fails("while a backward runs, requires_grad_() records nothing", function() w:sum():backward() end)
  end)

  it("does not run hooks that are registered meanwhile", function()
    local x, n = leaf(1), 0
    local function hook()
      n = n + 1
      assert(n < 10)
      x:register_hook(hook)
    end
    x:register_hook(hook)
    x:sum():backward()
    assert.equal(1, n)
    x:sum():backward()
    assert.equal(3, n)
  end)

  it("survives hooks that free what the walk goes over, and finalizers that walk", function()
    live.flat(T, function()
      local x, n = leaf(1, 2), 0
      local list, y = {}, x
      for i = 1, 50 do
        y = y * 2
        list[i] = y
      end
      y:register_hook(function(g)
        for _, t in ipairs(list) do t:free() end
        g:free()
        setmetatable({}, { __gc = function()
          n = n + 1
          local a = leaf(3);
          (a * a):sum():backward()
        end })
        collectgarbage()
      end)
      y:sum():backward()
      eq(x.grad, { 2.0 ^ 50, 2.0 ^ 50 })
      assert.equal(1, n)
    end)
  end)
end)

describe("a replaced gradient", function()
  local function with(name, rule, f)
    T.override_gradient(name, rule)
    local ok, err = pcall(f)
    T.override_gradient(name, nil)
    assert.is_true(ok, tostring(err))
  end

  it("is that of the op in place and of out=, too", function()
    with("sin", function(_, g) return g * 100 end, function()
      local x = leaf(0.5)
      local y = x + 0
      assert.equal(y, y:sin_())
      eq(y, { math.sin(0.5) })
      collectgarbage()
      collectgarbage()
      y:sum():backward()
      eq(x.grad, { 100 })
      local o = vec(0)
      assert.equal(o, T.sin(x, { out = o }))
      eq(o, { math.sin(0.5) })
      eq(T.grad_of(o:sum(), x), { 100 })
      fails("is a leaf that requires a gradient", function() x:sin_() end)
    end)
    with("mul", function(_, g) return g * 7, g * 9 end, function()
      local x, z = leaf(0.5, 1), leaf(3, 4)
      local y = x + 0
      y:mul_(z)
      eq(y, { 1.5, 4 })
      local gx, gz = table.unpack(T.grad_of(y:sum(), { x, z }))
      eq(gx, 7)
      eq(gz, 9)
      y = x + 0
      y:mul_(y) -- both operands are the tensor
      eq(y, { 0.25, 1 })
      eq(T.grad_of(y:sum(), x), 16)
      y = x + 0
      local v = y[{ { 1, 1 } }]
      v:mul_(z[{ { 1, 1 } }])
      eq(T.grad_of(y:sum(), x), { 7, 1 })
    end)
  end)

  it("may be replaced while backward runs, and is that of the time of the call", function()
    local x = leaf(0.5)
    T.override_gradient("sin", function(_, g) return g * 100 end)
    local y = x:sin()
    T.override_gradient("sin", nil)
    eq(T.grad_of(y:sum(), x), { 100 })
    local f = T.custom { name = "swap", forward = function(ctx, a)
      ctx:save(a)
      return a:sin()
    end, backward = function(ctx, g)
      local old = T.override_gradient("sin", function(_, h) return h * 3 end)
      local d = T.grad(function(a) return a:sin():sum() end)(ctx:saved())
      assert.is_nil(old)
      T.override_gradient("sin", old)
      return g * d
    end }
    eq(T.grad_of(f(x):sum(), x), { 3 })
    eq(T.grad_of(x:sin():sum(), x), { math.cos(0.5) })
  end)

  it("is not that of ops which change their operand", function()
    fails("copy changes its first operand", T.override_gradient, "copy", function() end)
  end)
end)

describe("assignment to repeated positions", function()
  it("gives a gradient to the value that stays", function()
    local cases = {
      { { 4, 3 }, { 3, 3 }, function(t, v) t[ints(2, 1, 2)] = v end },
      { { 4, 3 }, { 4, 3 }, function(t, v) t[{ {}, ints(2, 2, 1) }] = v end },
      { { 4, 3 }, { 4 }, function(t, v) t[{ ints(2, 2, 1, 2), ints(1, 1, 3, 1) }] = v end },
      { { 4, 3 }, { 1 }, function(t, v) t[ints(2, 2, 3)] = v end },
      { { 4, 3 }, { 1, 1, 3, 3 }, function(t, v) t[ints(2, 2, 3)] = v end },
      { { 4, 3 }, { 3, 3 }, function(t, v) t[ints(2, -3, 1)] = v end },
      { { 4, 3 }, { 2, 2, 3 }, function(t, v) t[T.tensor({ { 1, 2 }, { 2, 1 } }, { dtype = "i64" })] = v end },
      { { 4, 3 }, { 2, 3 }, function(t, v)
        t[{ T.tensor({ { 1 }, { 1 } }, { dtype = "i64" }), ints(1, 1, 3) }] = v
      end },
      { { 2, 3, 4 }, { 3, 3 }, function(t, v) t[{ ints(1, 2, 1), {}, ints(3, 3, 3) }] = v end },
      { { 2, 3, 4 }, { 2, 3 }, function(t, v) t[{ {}, ints(3, 1, 3), ints(3, 2, 3) }] = v end },
      { { 4, 3 }, { 2, 3 }, function(t, v) t[T.tensor { true, false, true, false }] = v end },
    }
    for i, case in ipairs(cases) do
      local x, v, w = T.randn(case[1], f64), T.randn(case[2], f64), T.randn(case[1], f64)
      local function f(a, b)
        local t = a * 1
        case[3](t, b)
        return (t * t * w):sum()
      end
      local ok, why = T.gradcheck(f, { x, v })
      assert.is_true(ok, ("case %d: %s"):format(i, tostring(why)))
      ok, why = T.gradgradcheck(f, { x, v })
      assert.is_true(ok, ("case %d: %s"):format(i, tostring(why)))
    end
  end)
end)

describe("scatter and put at repeated positions", function()
  local function int2(...) return T.tensor({ ... }, { dtype = "i64" }) end
  local cases = {
    { { 4 }, { 3 }, function(x, v) return x:scatter(1, ints(2, 2, 1), v) end },
    { { 4, 3 }, { 2, 3 }, function(x, v) return x:scatter(1, int2({ 1, 4, 2 }, { 1, 2, 2 }), v) end },
    { { 4, 3 }, { 4, 5 }, function(x, v) return x:scatter(2, int2({ 1, 1, 3 }, { 2, 1, 2 }), v) end },
    { { 4, 3 }, {}, function(x, v) return x:scatter(2, int2({ 1, 1, 3 }, { 2, 1, 2 }), v) end },
    { { 2, 3 }, { 4 }, function(x, v) return x:put(ints(1, 6, 1, 6), v) end },
  }
  for i, case in ipairs(cases) do
    it(("the value that stays gets the gradient, case %d"):format(i), function()
      local w = T.randn(case[1], f64)
      local function f(x, v)
        local y = case[3](x, v)
        return (y * y * w):sum()
      end
      local at = { T.randn(case[1], f64), T.randn(case[2], f64) }
      local ok, why = T.gradcheck(f, at)
      assert.is_true(ok, tostring(why))
      ok, why = T.gradgradcheck(f, at)
      assert.is_true(ok, tostring(why))
    end)
  end
end)

describe("structures that do not fit", function()
  it("are refused instead of read in part", function()
    local x = vec(1, 2)
    local _, pull = T.vjp(function(a) return { s = a:sum() } end, x)
    fails("has an entry 'summ', which the other has not", pull, { summ = T.tensor(1, f64) })
    fails("the gradient of the result, a table, is missing", pull)
    fails("an entry 'w'; an argument that is a table goes inside: {{w = …}}", T.jvp, T.sin, { w = x }, { w = x })
    fails("has an entry '2', which the other has not", T.jvp, T.sin, { x }, { x, x })
    fails("has an entry 'v', which the other has not", T.jvp, function(p) return p.w end, { { w = x } }, { { v = x } })
    fails("jvp: the tangent is missing", T.jvp, T.sin, x)
    fails("hvp: the vector is missing", T.hvp, function(a) return a:sum() end, x)
    fails("a function expected, got a tensor [2]", T.jacobian, x)
    fails("the function returned no floating tensor", T.gradcheck, function() return 3 end, { x })
    fails("the function returned no floating tensor", T.gradgradcheck, function() return 3 end, { x })
    fails("a list of tensors expected, got a table with an entry 'w'", function() T.GradManager():attach { w = x } end)
  end)

  it("but a scalar's gradient is one unless given", function()
    local _, pull = T.vjp(function(a) return (a * a):sum() end, vec(1, 2))
    eq(pull(), { 2, 4 })
    local y, dy = T.jvp(function(a, n, b) return a * b * n end, { n = 3, vec(2), 10, vec(3) }, { vec(1), nil, vec(0) })
    eq(y, { 60 })
    eq(dy, { 30 })
  end)
end)

describe("messages", function()
  it("name the function, the argument and what was wanted", function()
    local x, y = leaf(1, 2), leaf(1)
    fails("grad: a tensor or nil expected, got an integer", function() x.grad = 3 end)
    fails("attach: argument 2: a tensor expected, got an integer", function() T.GradKey {}:attach(3) end)
    fails("tape: argument 1: a tensor expected, got an integer", function() T.debug.tape(3) end)
    fails("retain_graph must be true or false, got string", function() y:backward(nil, { retain_graph = "yes" }) end)
    y:free()
    fails("attach: argument 2: this tensor was freed", function() T.GradKey {}:attach(y) end)
    local graph, one, two = T.debug.backward_graph, { { shape = { 2 } } }, { { shape = { 2 } }, { shape = { 2 } } }
    fails("there is no op 'foo'", graph, "foo", one, { true })
    fails("argmax has no gradient", graph, "argmax", one, { true })
    fails("softmax has no attribute 'dimm'", graph, "softmax", one, { true }, { attrs = { dimm = 1 } })
    fails("2 flags where there are 1", graph, "add", two, { true, true }, { has_grad = { true, true } })
  end)
end)

describe("x:detach_()", function()
  -- The gradient of a through f is always that of the factor beside the detached one.
  local function through(f, run)
    local x = leaf(1, 2)
    run(f)(x):sum():backward()
    return x.grad
  end
  local function plain(f) return f end
  local function twice(a)
    local b = a * 2
    assert(b:detach_() == b and not b.requires_grad)
    return b * a
  end
  local function window(a)
    local b = a * 2
    local v = b:view(2, 1)
    v:detach_()
    return v * a:view(2, 1)
  end
  local function rewritten(a)
    local b = a * 2
    b:detach_()
    b:mul_(3)
    return b * a
  end

  it("is heard of by traced functions and by vmap", function()
    for f, want in pairs { [twice] = { 2, 4 }, [window] = { 2, 4 }, [rewritten] = { 6, 12 } } do
      eq(through(f, plain), want)
      local traced = T.jit(f)
      for _ = 1, 2 do eq(through(traced, plain), want) end
    end
    local rows = T.tensor({ { 1, 2 }, { 3, 4 } }, f64):requires_grad_()
    T.vmap(twice)(rows):sum():backward()
    eq(rows.grad, { { 2, 4 }, { 6, 8 } })
    eq(T.vmap(T.grad(function(a) return twice(a):sum() end))(rows:detach()), { { 2, 4 }, { 6, 8 } })
  end)

  it("refuses an argument of a traced function, whose own history it would leave", function()
    -- of specs above: functions run as written while one records, which one of nobody does until its finalizer ran
    collectgarbage()
    for _, key in ipairs(T.grad_keys()) do key:close() end
    fails("argument of the traced function", T.jit(function(a)
      a:detach_()
      return a * 2
    end), leaf(1, 2))
  end)

  it("takes a view out of its family: no write to the base brings a history back", function()
    local x, w = leaf(1, 2), leaf(5, 6)
    local h = x * 1
    local v = h:view(1, 2)
    v:detach_()
    h:mul_(2)
    assert.is_false(v.requires_grad)
    eq(v, { { 2, 4 } })
    local u = h:view(1, 2):detach_()
    u:mul_(w)
    assert.is_true(u.requires_grad)
    h:sum():backward()
    eq(x.grad, { 2, 2 })
    assert.is_nil(w.grad)
  end)
end)

describe("requires_grad_(false)", function()
  it("keeps .grad, for a step or further gradients after it", function()
    local w, x = T.ones(2):requires_grad_(), T.tensor { 3, 4 }
    local opt = T.optim.SGD({ w }, { lr = 1 })
    local function grad() return w.grad and w.grad:totable() end
    (w * x):sum():backward()
    w:requires_grad_(false) -- while another network is trained through this one
    assert.is_false(w.requires_grad)
    assert.same({ 3, 4 }, grad())
    assert.is_false((w * x).requires_grad)
    w:requires_grad_(true)
    assert.same({ 3, 4 }, grad());
    (w * x):sum():backward()
    assert.same({ 6, 8 }, grad())
    w:requires_grad_(false)
    opt:step()
    assert.same({ -5, -7 }, w:totable())
    opt:zero_grad()
    assert.is_nil(grad())
    w:requires_grad_(true)
    assert.is_nil(grad())
  end)
end)

-- A gradient that is zeros whatever arrives reads no dy: the result has a history all the same.
describe("a result whose gradient is zeros", function()
  local function halves(...) return T.full({ ... }, 0.5):requires_grad_() end
  local function none() return T.zeros(0, 2, { dtype = "i64" }) end
  for name, of in pairs {
    ["scatter of nothing"] = function(v) return T.zeros(3, 2):scatter(1, none(), v) end,
    ["scatter_add of nothing"] = function(v) return T.zeros(3, 2):scatter_add(1, none(), v) end,
    ["scatter_reduce of nothing"] = function(v) return T.zeros(3, 2):scatter_reduce(1, none(), v, "amax") end,
    ["gather of nothing"] = function(v) return v:gather(1, none()) end,
    ["index_select of nothing"] = function(v) return v:index_select(1, T.zeros(0, { dtype = "i64" })) end,
    bernoulli = function(v) return T.bernoulli(v) end,
    floor = function(v) return v:floor() end, sign = function(v) return v:sign() end,
  } do
    it("is tracked: " .. name, function()
      local v = halves(3, 2)
      local y = of(v)
      assert.is_true(y.requires_grad)
      y:sum():backward()
      assert.same({ { 0, 0 }, { 0, 0 }, { 0, 0 } }, v.grad:totable())
      local w = halves(3, 2)
      T.jit(function(u) of(u):sum():backward() end)(w)
      assert.same({ { 0, 0 }, { 0, 0 }, { 0, 0 } }, w.grad:totable())
    end)
  end

  it("is not where nothing flows", function()
    local v = halves(3, 2)
    assert.is_false(v:detach().requires_grad)
    assert.is_false(T.jit(function(u) return u:detach() * 2 end)(v).requires_grad)
    assert.is_false(v:argmax(1).requires_grad)
    local bag = T.nn.EmbeddingBag(3, 2, { mode = "max", padding_idx = 1 })
    bag(T.ones(2, 2, { dtype = "i64" })):sum():backward()
    assert.equal(0, bag.weight.grad:abs():sum():item())
  end)
end)
