-- SPDX-License-Identifier: MIT
-- What is promised of keys, recording, backward, rules and in-place ops, sentence by sentence, where keys_spec,
-- custom_rules_spec, manager_spec and higher_order_spec do not say it.

local T = require "perilune"
local live = require "spec.support.live"

local f64 = { dtype = "f64" }
local function vec(...) return T.tensor({ ... }, f64) end
local function eq(got, want) assert.same(T.is_tensor(want) and want:totable() or want, got:totable()) end
local function fails(text, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok, "no error: " .. text)
  assert.is_truthy(tostring(err):find(text, 1, true), tostring(err))
end

describe("a key", function()
  it("has a name of its own: grad_N, or the one given, once", function()
    local a <close> = T.GradKey {}
    local b <close> = T.GradKey {}
    assert.is_truthy(tostring(a):find "grad_%d+")
    assert.is_not.equal(tostring(a), tostring(b))
    local mine <close> = T.GradKey { name = "mine" }
    assert.is_truthy(tostring(mine):find("mine", 1, true))
    fails("a live key is already named 'mine'", T.GradKey, { name = "mine" })
    mine:close()
    T.GradKey({ name = "mine" }):close() -- free again
  end)

  it("is listed while it lives", function()
    local function listed(key)
      for _, k in ipairs(T.grad_keys()) do if k == key then return true end end
      return false
    end
    local key = T.GradKey {}
    assert.is_true(listed(key))
    assert.is_true(key.active)
    key:close()
    assert.is_false(listed(key))
    assert.is_false(key.active)
  end)

  it("knows what is attached to it, in order, the same objects", function()
    local key <close> = T.GradKey {}
    local other <close> = T.GradKey {}
    local x, y, z = vec(1), vec(2), vec(3)
    assert.equal(x, key:attach(x))
    key:attach(y, function() end)
    assert.is_true(key:is_attached_to(x))
    assert.is_false(key:is_attached_to(z))
    assert.is_false(other:is_attached_to(x))
    assert.same({ x, y }, key:attached())
    assert.equal(x, key:attached()[1])
  end)

  it("takes a level above the highest active key", function()
    local low <close> = T.GradKey {}
    local high <close> = T.GradKey {}
    local x = vec(0.5)
    local first
    low:attach(x, function(_, g) first = g end)
    local y = high:attach(x:sin())
    local got
    high:attach(y, function(_, g) got = g end)
    high:backward(y * y)
    eq(got, { 2 * math.sin(0.5) })
    assert.is_nil(first)
    fails("level must be at least 1", T.GradKey, { level = 0 })
    fails("out of range", T.GradKey, { level = 1 << 30 })
  end)

  it("drops what a branch held as soon as its results go", function()
    local key <close> = T.GradKey {}
    local x = key:attach(T.randn(1000))
    local held = T.memory().live
    local y = x:exp():sin()
    assert.is_true(T.memory().live > held + 4000)
    y:free()
    collectgarbage()
    collectgarbage()
    assert.is_true(T.memory().live <= held + 500)
    assert.same({}, { key:backward(x * 2) })
  end)
end)

describe("recording", function()
  it("forgets keys that were finalized", function()
    local x = vec(1, 2)
    local first = T.GradKey {}
    first:attach(x)
    first:close()
    local second, got = T.GradKey {}, nil
    second:attach(x, function(_, g) got = g end)
    second:backward(x * 3)
    eq(got, { 3, 3 })
    assert.same({}, T.debug.tape(x * 2))
  end)

  it("tracks only outputs whose gradient a rule reads", function()
    local x = T.randn({ 4, 3 }, f64):requires_grad_()
    local v, i = x:max(1)
    assert.is_true(v.requires_grad)
    assert.is_false(i.requires_grad)
    local s, at = x:sort(1)
    assert.is_true(s.requires_grad)
    assert.is_false(at.requires_grad)
    local y, mean, var = T.batch_norm(x, { training = true })
    assert.is_true(y.requires_grad)
    assert.is_false(mean.requires_grad or var.requires_grad)
    assert.is_false(x:gt(0).requires_grad)
    assert.is_false(x:argmax(1).requires_grad)
  end)

  it("makes one node for each key that tracks an input, and runs the forward once", function()
    local runs = 0
    local twice = T.custom { name = "twice", forward = function(_, a)
      runs = runs + 1
      return a * 2
    end, backward = function(_, g) return g * 2 end }
    local a <close> = T.GradKey {}
    local b <close> = T.GradKey {}
    local x = vec(1, 2):requires_grad_()
    a:attach(x)
    b:attach(x)
    local count = {}
    for _, row in ipairs(T.debug.tape(twice(x))) do count[row.name] = (count[row.name] or 0) + 1 end
    assert.equal(1, runs)
    assert.equal(3, count.twice) -- the ambient key and two of ours
    count = {}
    for _, row in ipairs(T.debug.tape(x:exp())) do count[row.name] = (count[row.name] or 0) + 1 end
    assert.equal(3, count.exp)
  end)

  it("has third order of functions that keep their result, under the ambient key and nested ones", function()
    local at = 0.7
    local cases = {
      { "exp", function(x) return x:exp() end, math.exp(at) },
      { "tanh", function(x) return x:tanh() end, (function()
        local t = (math.exp(2 * at) - 1) / (math.exp(2 * at) + 1)
        return (1 - t * t) * (6 * t * t - 2)
      end)() },
      { "sigmoid", function(x) return x:sigmoid() end, (function()
        local s = 1 / (1 + math.exp(-at))
        return s * (1 - s) * (1 - 6 * s + 6 * s * s)
      end)() },
      { "sqrt", function(x) return x:sqrt() end, 0.375 * at ^ -2.5 },
      { "softmax", function(x) return T.stack({ x, x * 0 }, 1):softmax(1)[1] end, (function()
        local s = 1 / (1 + math.exp(-at))
        return s * (1 - s) * (1 - 6 * s + 6 * s * s)
      end)() },
    }
    for _, c in ipairs(cases) do
      local name, f, want = c[1], c[2], c[3]
      local nested = T.grad(T.grad(T.grad(f)))(T.tensor(at, f64)):item()
      assert.is_true(math.abs(nested - want) < 1e-9, name .. " nested")
      local x = T.tensor(at, f64):requires_grad_()
      local g = T.grad_of(f(x), x, { create_graph = true })
      g = T.grad_of(g, x, { create_graph = true })
      assert.is_true(math.abs(T.grad_of(g, x):item() - want) < 1e-9, name .. " ambient")
    end
  end)

  it("gives the same object for the same tensor", function()
    local x = vec(1, 2):requires_grad_();
    (x * x):sum():backward()
    assert.is_true(rawequal(x.grad, x.grad))
    local t = { [x] = 1, [x.grad] = 2 }
    assert.equal(2, t[x.grad])
    collectgarbage()
    assert.equal(1, t[x])
  end)

  it("refuses what has no gradient, with its dtype", function()
    for _, dtype in ipairs { "i64", "u8", "bool" } do
      local x = T.ones({ 2 }, { dtype = dtype })
      fails(dtype, function() x:requires_grad_() end)
      local key <close> = T.GradKey {}
      fails(dtype, function() key:attach(x) end)
    end
  end)

  it("detaches as an alias of the same memory", function()
    local x = vec(1, 2):requires_grad_()
    local y = x * 2
    local d = y:detach()
    assert.is_false(d.requires_grad)
    assert.is_true(d:shares_storage(y))
    assert.same({}, T.debug.tape(d))
  end)
end)

describe("T.backward", function()
  it("of a list walks once, with what y:backward of each would add", function()
    local x, w = T.randn({ 3 }, f64):requires_grad_(), T.randn({ 3 }, f64):requires_grad_()
    local calls = 0
    local dy = T.randn({ 3 }, f64)
    local function both()
      local h = x * w
      h:register_hook(function() calls = calls + 1 end)
      return h * 2, (h * h):sum()
    end
    local a, b = both()
    a:backward(dy, { retain_graph = true })
    b:backward()
    local want = { x.grad, w.grad }
    for form = 1, 3 do
      x.grad, w.grad, calls = nil, nil, 0
      a, b = both()
      if form == 1 then T.backward({ a, b }, { dy, false })
      elseif form == 2 then T.backward({ a, b }, { gradient = { dy, false } })
      else T.backward({ a, b }, { dy, false }, { inputs = { x } }) end
      assert.equal(1, calls)
      assert.is_true(x.grad:allclose(want[1], { rtol = 1e-12 }))
      if form == 3 then assert.is_nil(w.grad) else assert.is_true(w.grad:allclose(want[2], { rtol = 1e-12 })) end
    end
    T.backward(x:sum())
    assert.is_true(x.grad:allclose(want[1] + 1, { rtol = 1e-12 }))
  end)

  it("refuses outputs without a history, counts and gradients that stand twice", function()
    local x = T.randn({ 2 }, f64):requires_grad_()
    assert.error_matches(function() T.backward { x:sum(), T.ones(1) } end, "output 2, f32%[1%], does not depend")
    assert.error_matches(function() T.grad_of({ x:sum(), T.ones(1) }, x) end, "output 2, f32%[1%], does not depend")
    local dy = T.ones({ 2 }, f64)
    assert.error_matches(function() T.backward({ x * 1, x:sum() }, { dy }) end, "2 outputs, but 1 gradients")
    assert.error_matches(function() T.backward(x * 1, dy, { gradient = { x } }) end, "stand twice")
    assert.error_matches(function() T.backward {} end, "ys has no tensor")
    assert.is_nil(x.grad)
  end)

  it("with create_graph leaves a .grad that the script holds as it is", function()
    local x = T.randn({ 2 }, f64):requires_grad_()
    local y = x + 2 -- whose gradient has no history
    y:sum():backward { retain_graph = true }
    local held = x.grad
    y:sum():backward { create_graph = true }
    assert.is_true(held:equal(T.ones({ 2 }, f64)) and x.grad:equal(T.full({ 2 }, 2, f64)))
    y:sum():backward()
    assert.is_true(x.grad:equal(T.full({ 2 }, 3, f64)))
  end)
end)

describe("key:backward", function()
  it("adds up a y that is given twice, ignores ones that are not tracked, takes ones for a missing dy", function()
    local key, got = T.GradKey {}, nil
    local x = key:attach(vec(1, 2), function(_, g) got = g end)
    local y = x * 3
    key:backward({ y, y, vec(5, 5) }, { vec(1, 1), vec(10, 20), vec(9, 9) })
    eq(got, { 33, 63 })
    key = T.GradKey {}
    key:attach(x, function(_, g) got = g end)
    key:backward { x * 2, x * 5 }
    eq(got, { 7, 7 })
  end)

  it("leaves the key usable when counts differ", function()
    local key, got = T.GradKey {}, nil
    local x = key:attach(vec(1, 2), function(_, g) got = g end)
    local y = x * 3
    fails("tensor and grad size mismatch", function() key:backward({ y }, { y:detach(), y:detach() }) end)
    assert.is_true(key.active)
    key:backward(y)
    eq(got, { 3, 3 })
  end)

  it("calls back for a seeded y before the walk, for others when final, and never twice", function()
    local key, order = T.GradKey {}, {}
    local x = key:attach(vec(2), function(_, g) order[#order + 1] = { "x", g:item() } end)
    local y = x * x
    key:attach(y, function(_, g) order[#order + 1] = { "y", g:item() } end)
    local unused = x:exp()
    key:attach(unused, function() order[#order + 1] = { "unused" } end)
    key:backward({ y, y * y }, { vec(1), vec(1) })
    assert.same({ { "y", 9.0 }, { "x", 36.0 } }, order)
    fails("finalized", function() key:backward(y) end)
  end)

  it("ends the key also when a callback, a hook or a rule fails, with the same error object", function()
    local object = setmetatable({}, { __tostring = function() return "mine" end })
    local boom = T.custom { name = "boom", forward = function(_, a) return a * 1 end,
      backward = function() error(object) end }
    for _, make in ipairs {
      function(key, x)
        key:attach(x, function() error(object) end)
        return x * 2
      end,
      function(key, x)
        key:attach(x)
        local y = x * 2
        y:requires_grad_()
        return boom(y)
      end,
    } do
      live.flat(T, function()
        local key, x = T.GradKey {}, vec(1, 2)
        local ok, err = pcall(key.backward, key, make(key, x))
        assert.is_false(ok)
        assert.is_true(rawequal(err, object), tostring(err))
        assert.is_false(key.active)
      end)
    end
  end)

  it("gives nothing without a path, unless strict", function()
    local key = T.GradKey {}
    key:attach(vec(1), function() error "called" end)
    key:backward(vec(2) * 2)
    key = T.GradKey {}
    local x = key:attach(vec(1, 2))
    fails("tensor 1, f64[1], has no path", function() key:backward(vec(2) * 2, nil, { strict = true }) end)
    assert.is_true(x:numel() == 2)
  end)

  it("keeps .grad dense and its own", function()
    local x = T.randn({ 3, 4 }, f64):requires_grad_()
    x:expand(2, 3, 4):sum():backward()
    assert.is_true(x.grad:is_contiguous())
    x.grad = nil
    x:t():backward(T.ones({ 4, 3 }, f64))
    assert.is_true(x.grad:is_contiguous())
    local g = T.ones({ 3, 4 }, f64)
    x.grad = nil
    x:backward(g)
    g:mul_(5)
    assert.equal(1, x.grad:max():item())
  end)

  it("says which arguments it wants", function()
    local key <close> = T.GradKey {}
    local x = key:attach(vec(1))
    fails("GradKey", key.backward, x)
    fails("must be a tensor or a list of tensors", key.backward, key, 3)
    fails("a tensor", key.attach, key, 3)
    fails("callback must be a function", key.attach, key, x, 3)
    fails("unknown option", T.GradKey, { nam = "x" })
    fails("name must be a string", T.GradKey, { name = {} })
  end)
end)

describe("a rule in Lua", function()
  it("knows which inputs need a gradient, in forward and backward", function()
    local seen = {}
    local rule = T.custom { name = "r", forward = function(ctx, a, b)
      seen.forward = ctx.needs_input_grad
      ctx:save(a, b)
      return a * b
    end, backward = function(ctx, g)
      seen.backward = ctx.needs_input_grad
      local a, b = ctx:saved()
      return g * b, g * a
    end }
    local x = vec(2):requires_grad_()
    rule(x, vec(3)):backward()
    assert.same({ true, false }, seen.forward)
    assert.same({ true, false }, seen.backward)
    eq(x.grad, { 3 })
  end)

  it("may mark results that have no gradient", function()
    local rule = T.custom { name = "r", forward = function(ctx, a)
      local n = a:floor()
      ctx:mark_non_differentiable(n)
      return a - n, n
    end, backward = function(_, g, none)
      assert(none == nil)
      return g
    end }
    local x = vec(1.5, 2.25):requires_grad_()
    local frac, n = rule(x)
    assert.is_true(frac.requires_grad)
    assert.is_false(n.requires_grad)
    frac:sum():backward()
    eq(x.grad, { 1, 1 })
  end)

  it("keeps fields of its context, passes other arguments through, and gives them no gradient", function()
    local rule = T.custom { name = "power", forward = function(ctx, a, n, opts)
      ctx.n = n
      ctx:save(a)
      return a ^ n * opts.scale
    end, backward = function(ctx, g)
      return g * ctx.n * ctx:saved() ^ (ctx.n - 1)
    end }
    local x = vec(3):requires_grad_()
    rule(x, 2, { scale = 1 }):backward()
    eq(x.grad, { 6 })
  end)

  it("is skipped without gradients, unless always", function()
    for _, always in ipairs { false, true } do
      local ran = 0
      local rule = T.custom { name = "r", always = always, forward = function(_, a) return a * 1, a * 2 end,
        backward = function(_, g, h)
          ran = ran + 1
          return g or h
        end }
      local key = T.GradKey {}
      local x = key:attach(vec(1))
      local a, b = rule(x)
      key:backward({}, {})
      assert.equal(always and 1 or 0, ran)
      assert.is_true(a:numel() + b:numel() == 2)
    end
  end)

  it("lives as long as a recorded .grad needs it, and no longer", function()
    local cube = T.custom { name = "cube", forward = function(ctx, a)
      ctx:save(a)
      return a * a * a
    end, backward = function(ctx, g)
      local a = ctx:saved()
      return g * 3 * a * a
    end }
    live.flat(T, function()
      local x = vec(1, 2):requires_grad_()
      cube(x):sum():backward(nil, { create_graph = true })
      cube(x * 1):sum():backward(nil, { create_graph = true }) -- added to the first
      live.collect()
      eq(x.grad:detach(), { 6, 24 })
      local g = x.grad
      x.grad = nil
      live.collect()
      g:sum():backward()
      eq(x.grad, { 12, 24 })
    end)
    -- a graph that nobody holds any more is gone, also when it was the last one recorded
    local before = live.blocks(T)
    do
      local x = vec(1, 2):requires_grad_()
      cube(cube(x)):sum():backward(nil, { create_graph = true })
    end
    assert.equal(before, (live.blocks(T)))
  end)

  it("gives back the rule that override_gradient replaced", function()
    local function mine(_, g) return g * 100 end
    assert.is_nil(T.override_gradient("sin", mine))
    assert.equal(mine, T.override_gradient("sin", nil))
    assert.is_nil(T.override_gradient("sin", nil))
  end)
end)

describe("hooks", function()
  it("may replace the gradient, in order, and run before callbacks", function()
    local key, got = T.GradKey {}, nil
    local x = vec(1, 2)
    key:attach(x, function(_, g) got = g end)
    local y = x:requires_grad_() * 1
    y:register_hook(function(g) return g + 1 end)
    y:register_hook(function(g) return g * 10 end)
    y:register_hook(function() end)
    y:backward(vec(1, 1))
    eq(x.grad, { 20, 20 })
    key:close()
    assert.is_nil(got)
    local z = vec(3):requires_grad_()
    z:register_hook(function(g) return g * 2 end)
    local other, last = T.GradKey {}, nil
    other:attach(z, function(_, g) last = g end)
    other:backward(z * 5)
    assert.is_true(last:item() == 5 or last:item() == 10)
    fails("must return a tensor or nil", function()
      local w = vec(1):requires_grad_()
      w:register_hook(function() return 3 end)
      w:backward()
    end)
  end)
end)

describe("in place", function()
  it("a view taken before sees the base's new history", function()
    local w = vec(1, 2):requires_grad_()
    local base = T.zeros({ 2, 2 }, f64) * 1
    local row, column = base[1], base[{ {}, 2 }]
    row:copy_(w * 3)
    column:sum():backward(nil, { retain_graph = true })
    eq(w.grad, { 0, 3 })
    w.grad = nil
    base:sum():backward()
    eq(w.grad, { 3, 3 })
  end)

  it("assigning through masks, indices and ranges is differentiated", function()
    local w = vec(1, 2, 3):requires_grad_()
    local y = T.zeros({ 3, 3 }, f64)
    y[2] = w
    y[{ {}, 1 }] = w * 10
    y[y:eq(3)] = 0
    y[T.tensor({ 3 }, { dtype = "i64" })] = w * 100
    y:sum():backward()
    -- the mask took y[2][3], the last assignment row 3, so of the column only two places are left
    eq(w.grad, { 110, 111, 100 })
  end)

  it("refuses leaves, views of leaves and tensors that overlap themselves", function()
    local w = vec(1, 2):requires_grad_()
    fails("is a leaf that requires a gradient", function() w:add_(1) end)
    fails("is a view of a leaf", function() w[1]:add_(1) end)
    fails("several of its elements share memory", function() T.ones(1):expand(3):add_(1) end)
    T.no_grad(function() w:add_(1) end)
    eq(w:detach(), { 2, 3 })
  end)
end)

describe("backward graphs", function()
  it("are cached by signature, also where there is no gradient, and counted", function()
    T.debug.cache_clear()
    local x = T.randn({ 3, 5 }, f64):requires_grad_()
    x:softmax(1)
    local first = T.debug.cache_stats()
    assert.is_true(first.entries >= 1)
    x:softmax(1)
    local second = T.debug.cache_stats()
    assert.equal(first.entries, second.entries)
    assert.equal(first.hits + 1, second.hits)
    T.randn({ 3, 5 }):requires_grad_():softmax(1) -- another dtype
    assert.equal(first.entries + 1, T.debug.cache_stats().entries)
    for n = 1, 200 do T.randn({ n, 2 }, f64):requires_grad_():mean() end -- one for each shape
    assert.is_true(T.debug.cache_stats().entries < first.entries + 140)
    T.debug.cache_clear()
    assert.equal(0, T.debug.cache_stats().entries)
  end)

  it("T.debug.tape lists what a tensor depends on", function()
    local x = T.randn({ 100 }, f64):requires_grad_()
    local other = x:cos()
    local rows = T.debug.tape((x:exp() * 2):sum())
    local names = {}
    for i, row in ipairs(rows) do names[i] = row.name end
    assert.same({ "exp", "mul", "sum" }, { table.unpack(names, #names - 2) })
    assert.is_true(rows[#rows - 2].saved_bytes == 800) -- exp keeps its result
    assert.equal("leaf", rows[1].kind)
    for i = 2, #rows do assert.is_true(rows[i].seq > rows[i - 1].seq) end
    assert.equal("cos", T.debug.tape(other)[#T.debug.tape(other)].name)
    assert.same({}, T.debug.tape(T.ones(1)))
  end)
end)
