-- SPDX-License-Identifier: MIT
-- Hooks of tensors, callbacks of keys, and the gradients they are given.

local T = require "perilune"

local function close(a, b)
  assert.is_true((a - b):abs():max():item() < 1e-5, tostring(a) .. " is not " .. tostring(b))
end
local function leaf(...) return T.tensor { ... }:requires_grad_() end
local function fails(part, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.truthy(message:find(part, 1, true), message)
end

describe("retain_grad", function()
  -- As in PyTorch: a hook stays with the value that it was registered for, .grad is of what the tensor is now.
  it("is of the tensor as it is when backward runs, written in place or through views and bases", function()
    local function check(name, write)
      local x = leaf(1, 2, 3)
      local h = x * 2
      local v = h:narrow(1, 1, 2)
      local seen = {}
      h:retain_grad()
      h:register_hook(function(g) seen[#seen + 1] = g end)
      v:retain_grad()
      write(h, v)
      local loss = (h * h):sum() + (v * v * v):sum()
      loss:backward()
      local want = 2 * h:detach()
      close(v.grad, 3 * v:detach() ^ 2)
      want[{ { 1, 2 } }] = want[{ { 1, 2 } }] + 3 * v:detach() ^ 2
      close(h.grad, want)
      assert.equal(1, #seen, name)
      close(x.grad, seen[1] * 2)
    end
    check("not at all", function() end)
    check("mul_", function(h) h:mul_(3) end)
    check("twice", function(h) h:mul_(3); h:add_(1) end)
    check("through the view", function(_, v) v:mul_(3) end)
    check("through another view", function(h) h:view(3, 1)[2] = 5 end)
    check("as a whole", function(h) h:fill_(2) end)
    check("both", function(h, v) v:sub_(1); collectgarbage(); h:neg_() end)
    check("unseen", function(h) T.no_grad(function() h:mul_(2) end) end)
  end)
end)

describe("the handle of a hook", function()
  it("removes it", function()
    local x, ran = leaf(1), 0
    local handle = x:register_hook(function() ran = ran + 1 end)
    x:sum():backward()
    handle:remove()
    handle:remove()
    x:sum():backward()
    assert.equal(1, ran)
    assert.equal("HookHandle(removed)", tostring(handle))
  end)

  it("removes it while it runs, and others; the next one is not skipped", function()
    local x, order = leaf(1), {}
    local handles = {}
    for i = 1, 4 do
      handles[i] = x:register_hook(function()
        order[#order + 1] = i
        if i == 1 then handles[1]:remove() end
        if i == 2 then handles[3]:remove() end
      end)
    end
    x:sum():backward()
    x:sum():backward()
    assert.same({ 1, 2, 4, 2, 4 }, order)
  end)

  it("may outlive the tensor", function()
    local handle = (leaf(1) * 2):register_hook(print)
    collectgarbage()
    collectgarbage()
    handle:remove()
  end)
end)

describe("register_post_accumulate_grad_hook", function()
  it("runs when .grad is complete, with the leaf", function()
    local x, seen = leaf(1, 2), {}
    x:register_post_accumulate_grad_hook(function(p)
      assert.equal(x, p)
      seen[#seen + 1] = p.grad:clone()
      p.grad = nil
    end);
    (x * x + x):sum():backward()
    x:sum():backward()
    assert.equal(2, #seen)
    close(seen[1], T.tensor { 3, 5 })
    close(seen[2], T.tensor { 1, 1 })
    assert.is_nil(x.grad)
  end)

  it("steps an optimizer in backward, with no memory for gradients", function()
    local a, b = leaf(1, 2), leaf(3, 4)
    local plain = { leaf(1, 2), leaf(3, 4) }
    for _, p in ipairs { a, b } do
      local opt = T.optim.SGD({ p }, { lr = 0.1 })
      p:register_post_accumulate_grad_hook(function()
        opt:step()
        opt:zero_grad()
      end)
    end
    local opt = T.optim.SGD(plain, { lr = 0.1 })
    for _ = 1, 3 do
      local joint = (a * b):sum()
      joint:backward()
      opt:zero_grad()
      local loss = (plain[1] * plain[2]):sum()
      loss:backward()
      opt:step()
    end
    close(a:detach(), plain[1]:detach())
    close(b:detach(), plain[2]:detach())
  end)

  it("is for leaves, and not for grad_of", function()
    local x, ran = leaf(1), 0
    fails("accumulates no .grad", function() (x * 2):register_post_accumulate_grad_hook(print) end)
    fails("does not require a gradient", function() T.ones(1):register_post_accumulate_grad_hook(print) end)
    x:register_post_accumulate_grad_hook(function() ran = ran + 1 end)
    T.grad_of((x * 2):sum(), x)
    assert.equal(0, ran)
  end)
end)

describe("a gradient that is handed out", function()
  it("is the callback's own", function()
    local a, b = T.ones(3), T.ones(3)
    local key, got = T.GradKey(), {}
    key:attach(a, function(_, g) g:mul_(100) end)
    key:attach(b, function(_, g) got[1] = g end)
    key:backward(a + b)
    close(got[1], T.ones(3))
    key = T.GradKey()
    key:attach(a, function(_, g) got.a = g end)
    local h = a * 2
    key:attach(h, function(_, g) g:zero_() end)
    key:attach(h, function(_, g) got.h = g end)
    local dy = T.ones(3)
    key:backward(h, dy)
    close(got.a, T.full({ 3 }, 2.0))
    close(got.h, T.ones(3))
    close(dy, T.ones(3))
  end)

  it("is .grad's own", function()
    local x, y = leaf(1, 2), leaf(3, 4)
    local dy = T.ones(2);
    (x + y):backward(dy)
    x.grad:mul_(5)
    close(y.grad, T.ones(2))
    close(dy, T.ones(2))
    local t = T.ones(2)
    x.grad = t
    t:zero_()
    close(x.grad, T.ones(2))
    x.grad = T.ones(1):expand(2)
    x:sum():backward()
    close(x.grad, T.full({ 2 }, 2.0))
    x.grad = y.grad
    x.grad:zero_()
    close(y.grad, T.ones(2))
  end)

  it("is grad_of's and T.grad's own", function()
    local x, y = leaf(1, 2), leaf(3, 4)
    local gs = T.grad_of((x + y):sum(), { x, y, x })
    gs[1]:zero_()
    close(gs[2], T.ones(2))
    close(gs[3], T.ones(2))
    local a, b = T.grad(function(u, v) return (u + v):sum() end, T.ones(2), T.ones(2))
    if b then
      a:zero_()
      close(b, T.ones(2))
    end
  end)

  it("is a hook's own, where it is another tensor's, too", function()
    local x, y = leaf(1, 2), leaf(3, 4)
    x:register_hook(function(g) g:mul_(7) end);
    (x + y):sum():backward()
    close(y.grad, T.ones(2))
    close(x.grad, T.full({ 2 }, 7.0))
  end)

  it("can be written, also where it is one number for all elements", function()
    local x = leaf(1, 2)
    close(T.grad_of(x:sum(), x):mul_(2), T.full({ 2 }, 2.0))
    local h = x * 1
    h:register_hook(function(g) g:mul_(3) end)
    x:register_hook(function(g) g:mul_(5) end)
    h:sum():backward()
    x:sum():backward()
    close(x.grad, T.full({ 2 }, 20.0))
    local key, got = T.GradKey(), nil
    local a = T.ones(3)
    key:attach(a, function(_, g) got = g:mul_(2) end)
    key:backward(a:sum())
    close(got, T.full({ 3 }, 2.0))
  end)
end)

describe("keys", function()
  it("call back as soon as a gradient is final", function()
    local x, order = T.ones(2), {}
    local key = T.GradKey()
    key:attach(x)
    local h = x * 2
    key:attach(h, function() order[#order + 1] = "h" end)
    local first = h * 3 -- recorded after h, walked before what is between
    local rule = T.custom { forward = function(_, a) return a * 1 end, backward = function(_, g)
      order[#order + 1] = "rule"
      return g
    end }
    local other = rule(x * 5)
    key:backward { first:sum(), other:sum() }
    assert.equal("h", order[#order == 2 and (order[1] == "h" and 1 or 2)])
    assert.equal(2, #order)
    -- h is final when first's gradient has been delivered; the older rule's turn comes later
    key = T.GradKey()
    order = {}
    key:attach(x)
    other = rule(x * 5)
    local k = x * 2
    key:attach(k, function() order[#order + 1] = "k" end)
    key:backward { (k * 3):sum(), other:sum() }
    assert.same({ "k", "rule" }, order)
  end)

  it("check arguments of attach, and take callable objects", function()
    local x, seen = T.ones(2), 0
    local key = T.GradKey()
    fails("takes at most 3 arguments (key, tensor, fn)", function() key:attach(x, print, 5) end)
    fails("must be a function", function() key:attach(x, {}) end)
    key:attach(x, setmetatable({}, { __call = function(_, t) seen = seen + t:numel() end }))
    key:backward((x * 2):sum())
    assert.equal(2, seen)
    local y = leaf(1)
    y:register_hook(setmetatable({}, { __call = function(_, g) return g * 3 end }))
    y:backward()
    close(y.grad, T.tensor { 3 })
  end)

  it("can be named", function()
    local a, b = T.GradKey { name = "first of two" }, T.GradKey()
    b.name = "other of two"
    assert.equal("other of two", b.name)
    fails("already named", function() b.name = "first of two" end)
    fails("cannot be set", function() b.level = 3 end)
    fails("must be a string", function() b.name = 3 end)
    a:close()
    b.name = "first of two"
  end)

  it("take false and nil among the gradients for ones", function()
    local x, g = T.ones(2), nil
    local function run(dys)
      local key = T.GradKey()
      key:attach(x, function(_, d) g = d end)
      key:backward({ x * 2, x * 3, x * 5 }, dys)
      return g
    end
    close(run { false, T.full({ 2 }, 10.0), T.ones(2) }, T.full({ 2 }, 37.0))
    close(run { [2] = T.ones(2), [3] = T.zeros(2) }, T.full({ 2 }, 5.0))
    fails("tensor and grad size mismatch", run, { T.ones(2) })
    fails("belongs to none", run, { T.ones(2), T.ones(2), T.ones(2), x = 1 })
  end)

  it("run rules flagged always, and so does backward()", function()
    local ran = 0
    local send = T.custom { name = "send", always = true, forward = function(_, a) return a * 1 end,
      backward = function() ran = ran + 1 end }
    local x = leaf(1, 2)
    local sent = send(x);
    (x * 2):sum():backward()
    assert.equal(1, ran)
    assert.is_truthy(sent);
    (x * 2):sum():backward()
    assert.equal(1, ran) -- it has run
  end)
end)

describe("grad_outputs", function()
  it("are counted", function()
    local x = leaf(1, 2)
    local function of(list) return T.grad_of({ x:sum(), (x * 2):sum() }, x, { grad_outputs = list }) end
    close(of { false, T.tensor(3.0) }, T.full({ 2 }, 7.0))
    fails("2 outputs, but 1 grad_outputs", of, { T.tensor(3.0) })
    fails("2 outputs, but 3 grad_outputs", of, { T.tensor(3.0), T.tensor(3.0), T.tensor(3.0) })
    fails("entry 1", of, { [2] = T.tensor(3.0) })
    fails("entry 2", of, { T.tensor(3.0), 5 })
  end)
end)

describe("gradients for chosen tensors", function()
  local function counting()
    local ran = 0
    return T.custom { forward = function(_, a) return a * 2 end, backward = function(_, g)
      ran = ran + 1
      return g * 2
    end }, function() return ran end
  end

  it("walk only what is between", function()
    local below, ran_below = counting()
    local beside, ran_beside = counting()
    local w, hooks = leaf(1, 2), 0
    local x = below(w)
    local side = beside(w)
    side:register_hook(function() hooks = hooks + 1 end)
    w:register_hook(function() hooks = hooks + 1 end)
    local y = (x * x * side):sum()
    local g = T.grad_of(y, x)
    close(g, T.tensor { 8, 32 })
    assert.equal(0, ran_below() + ran_beside() + hooks)
  end)

  it("leave the tape below as it was", function()
    local w = leaf(1, 2)
    local x = w:exp()
    local g = T.grad_of((x * x):sum(), x)
    x:backward(g) -- the gradients that were computed go on by hand
    close(w.grad, (w * 2):exp():detach() * 2)
  end)

  it("need no saved tensor that the chosen ones do not", function()
    local x, w = leaf(1, 2), leaf(3, 4)
    local h = x * 1
    local y = (h * w):sum()
    h:detach():zero_() -- the gradient for w would be wrong now, and is not asked for
    close(T.grad_of(y, h, { retain_graph = true }), T.tensor { 3, 4 })
    fails("modified in place", T.grad_of, y, w)
  end)

  it("accumulate with backward{inputs=}", function()
    local below, ran = counting()
    local w = leaf(1, 2)
    local u = leaf(5, 6)
    local y = (below(w) * u):sum()
    y:backward { inputs = { u } }
    assert.equal(0, ran())
    assert.is_nil(w.grad)
    close(u.grad, T.tensor { 2, 4 })
  end)

  it("are a backward that accumulates, with backward{inputs=}", function()
    local u, w, unused, seen = leaf(5, 6), leaf(1, 2), leaf(3), {}
    u:register_post_accumulate_grad_hook(function(t) seen[#seen + 1] = t.grad:clone() end)
    local y = (u * w * w):sum()
    y:backward { inputs = { u, unused, u }, retain_graph = true }
    y:backward(T.tensor(2.0), { inputs = u, retain_graph = true })
    close(seen[1], T.tensor { 1, 4 })
    close(seen[2], T.tensor { 3, 12 })
    assert.equal(2, #seen)
    assert.is_nil(w.grad)
    assert.is_nil(unused.grad)
    -- a wrong input: no .grad has changed, and nothing is freed
    fails("inputs must be leaves, which hold a .grad; input 2, f32[2], was computed", y.backward, y,
      { inputs = { u, u * 1 } })
    fails("input 2, f32[2], does not require a gradient", y.backward, y, { inputs = { u, T.ones(2) } })
    fails("inputs has no tensor", y.backward, y, { inputs = {} })
    close(u.grad, T.tensor { 3, 12 })
    y:backward { inputs = { w } }
    close(w.grad, T.tensor { 10, 24 })
  end)
end)

describe("what mul saves", function()
  it("is what its gradients read, at every size", function()
    for _, n in ipairs { 4, 4096, 5000 } do
      local x, c = T.ones(n):requires_grad_(), T.ones(n)
      local h = x * 1
      local y = h * c
      h:add_(1) -- no gradient reads it
      y:sum():backward()
      close(x.grad, T.ones(n))
    end
  end)

  it("is no tensor that nobody needs", function()
    local live = require "spec.support.live"
    local w = T.ones(1000):requires_grad_()
    live.collect()
    local before = T.memory().live
    local y = (w * 2) * 3
    live.collect()
    assert.is_true(T.memory().live - before < 8000, "only the result is there")
    y:sum():backward()
    close(w.grad, T.full({ 1000 }, 6.0))
  end)
end)

describe("hooks of modules", function()
  it("may remove themselves; the next one is not skipped, and those registered meanwhile wait", function()
    local l, order = T.nn.Linear(2, 2), {}
    local function note(i) return function() order[#order + 1] = i end end
    for _, kind in ipairs { "forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook" } do
      order = {}
      local handles = {}
      handles[1] = l["register_" .. kind](l, function()
        order[#order + 1] = 1
        handles[1]:remove()
        handles[3]:remove()
        handles[5] = l["register_" .. kind](l, note(5))
      end)
      for i = 2, 4 do handles[i] = l["register_" .. kind](l, note(i)) end
      for _ = 1, 2 do l(T.ones(1, 2):requires_grad_()):sum():backward() end
      assert.same({ 1, 2, 4, 2, 4, 5 }, order, kind)
      for i = 1, 5 do handles[i]:remove() end
    end
  end)
end)

describe("a generator in a traced function", function()
  it("is refused by its own name", function()
    local g = T.Generator(3)
    fails("generator: its state", T.jit(function(x) return x + T.rand(3, { generator = g }) end), T.ones(3))
  end)
end)

describe("a result of a jitted function that the function uses further", function()
  it("takes no hook, and no gradient for it: only a part would be seen", function()
    local f = T.jit(function(a)
      local y = a * 2
      return y, y - y:sum()
    end)
    local x = leaf(1, 2)
    local y, z = f(x)
    local part = "computes further results from this one"
    fails(part, y.register_hook, y, function() end)
    fails(part, T.grad_of, z:sum(), y)
    fails(part, function() y:retain_grad() end)
    local hook = z:register_hook(function(g) return g * 10 end)
    z:sum():backward()
    close(x.grad, T.full({ 2 }, -20.0))
    hook:remove()
  end)
end)

describe("many hooks", function()
  it("take time in proportion", function()
    local x = leaf(1, 2)
    local began, sum = os.clock(), 0
    for _ = 1, 100000 do x:register_hook(function() sum = sum + 1 end) end
    assert.is_true(os.clock() - began < 10) -- 35 s when each one walked along the others
    x:sum():backward()
    assert.equal(100000, sum)
  end)

  it("that are removed go", function()
    local x, seen = leaf(1, 2), {}
    local first = x:register_hook(function() seen[#seen + 1] = "first" end)
    local kept = {}
    for i = 1, 9 do
      kept[i] = x:register_hook(function() seen[#seen + 1] = i end)
    end
    first:remove()
    for i = 2, 9, 2 do kept[i]:remove() end
    x:register_hook(function() seen[#seen + 1] = "last" end)
    x:sum():backward()
    assert.same({ 1, 3, 5, 7, 9, "last" }, seen)
    local weak = setmetatable({}, { __mode = "k" })
    for _ = 1, 200 do
      local f = function(g) return g * 1, weak end
      weak[f] = true
      x:register_hook(f):remove()
    end
    T.core.collect()
    local left = 0
    for _ in pairs(weak) do left = left + 1 end
    assert.is_true(left < 40, left)
  end)
end)

describe("create_graph inside of a hook", function()
  it("is refused where the walk records nothing", function()
    local x = leaf(1, 2)
    local old = (x * x * x):sum()
    local function second(create_graph)
      local got
      local y = x * 2
      y:register_hook(function()
        got = T.grad_of({ old }, { x }, { create_graph = true, retain_graph = true })[1]
      end)
      y:sum():backward { create_graph = create_graph }
      return got
    end
    fails("create_graph = true inside of a backward without it records nothing", second, false)
    assert.is_true(second(true).requires_grad)
  end)
end)

describe("after a hook that raises", function()
  it("a graph that was to be kept is there, one that was not is gone", function()
    for _, keep in ipairs { true, false } do
      local x, w = leaf(1, 2), leaf(3, 4)
      local y = ((x * w):sin() * w):sum()
      local want = T.grad_of(y, { x, w }, { retain_graph = true })
      local handle = w:register_hook(function() error "stop" end)
      fails("stop", function() y:backward { retain_graph = keep } end)
      handle:remove()
      x.grad, w.grad = nil, nil
      if keep then
        y:backward()
        close(x.grad, want[1])
        close(w.grad, want[2])
      else
        fails("freed by an earlier backward", y.backward, y)
      end
    end
  end)
end)
