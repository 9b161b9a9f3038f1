-- SPDX-License-Identifier: MIT
-- T.jit and histories of what a function reads from outside: tensors that share memory, arguments that are captured,
-- too, gradients that are taken inside and go on outside, hooks that come and go, what was asked of a tensor.
local T = require "perilune"

local compiled = require "spec.support.compiled"
local raises = compiled.raises

local function text(t) return T.is_tensor(t) and table.concat(t:detach():flatten():totable(), " ") or tostring(t) end

-- One leaf and what shares its memory; h is computed.
local function world()
  local a = T.tensor { 1, 2, 3 }:requires_grad_()
  local h = a * 2
  local e = { a = a, d = a:detach(), l = a:detach():requires_grad_(), v = a:view(3), h = h, hd = h:detach(),
    w = T.tensor { 1, 2, 3 }:requires_grad_(), part = a:detach():narrow(1, 1, 2) }
  e.still = T.no_grad(function() return a:view(3) end)
  return e
end

-- f(e, x) three times, with the gradients that it and a backward of its result leave, as written and compiled. Where a
-- graph refuses, `may` allows it; never is the number another one. change(e, i) goes before call i.
local function same(name, f, o)
  o = o or {}
  local function run(wrap)
    local e, out = world(), {}
    local g = wrap(function(...) return f(e, ...) end)
    for i = 1, o.calls or 3 do
      if o.change then o.change(e, i) end
      local ok, err = pcall(function()
        local x = T.ones(2, 3):requires_grad_()
        local y = o.call and o.call(g, e) or not o.call and g(x * 1)
        if y.requires_grad then y:sum():backward { retain_graph = true } end
        out[i] = table.concat({ text(y), tostring(y.requires_grad), text(x.grad), text(e.a), text(e.a.grad),
          text(e.l.grad), text(e.w.grad) }, " | ")
      end)
      if not ok then out[i] = { err } end
    end
    return out
  end
  local want, got = run(function(g) return g end), run(T.jit)
  for i = 1, o.calls or 3 do
    local refused = false
    for _, may in ipairs(type(got[i]) == "table" and o.may or {}) do refused = refused or got[i][1]:find(may) ~= nil end
    if refused then break end -- later calls go on from another state
    if type(want[i]) == "table" then assert.is_table(got[i], name) else assert.equal(want[i], got[i], name) end
  end
end

-- What a backward outside cannot read of a graph any more, and what has two histories.
local GONE = { "wrote it in place", "overwritten after it" }
local TWO = { "shares its memory with a tensor of another history" }
local function each(cases, o)
  for i, f in ipairs(cases) do same("case " .. i, f, o) end
end

describe("gradients of a jitted function", function()
  it("tell apart what shares memory: a leaf, what was detached from it, another leaf, views", function()
    each {
      function(e, x) return x * e.a + e.a:detach() end,
      function(e, x) return x * e.a:detach() + e.a end,
      function(e, x) return x * e.a + e.d end,
      function(e, x) return x * e.d + e.a end,
      function(e, x) return x * e.d end,
      function(e, x) return x * e.a + e.l * 2 end,
      function(e, x) return x * e.l + e.a * 2 + e.d end,
      function(e, x) return x * e.v + e.a * 2 end,
      function(e, x) return x * e.h + e.hd * 2 end,
      function(e, x) return x * e.hd + e.h * 2 end,
      function(e, x) return x * e.a + e.still * 2 end,
      function(e, x) return x * e.a + e.d:detach():requires_grad_() end,
      function(e, x)
        local y = x:detach() * e.l + e.d
        T.sum(y * e.a * e.a:detach()):backward()
        return y:detach()
      end,
    }
  end)

  it("keep them apart when one of them is written", function()
    each({
      function(e, x) e.a:detach():mul_(0.5) return x:detach() * e.a end,
      function(e, x) local y = x * 2 e.d:mul_(0.5) return y + e.a + e.d end,
      function(e, x) local y = (x * e.d):detach() e.d:mul_(0.5) return y + e.a * 2 end,
      function(e, x) local y = (x * e.a):detach() e.d:mul_(0.5) return y + e.a + e.d end,
      function(e, x) T.no_grad(function() e.a:mul_(0.5) end) return x + e.a + e.d end,
      function(e, x) T.no_grad(function() e.a[1] = 7 end) return x + e.d + e.a end,
      function(e, x) e.part:mul_(2) return x + e.d + e.a end,
      function(e, x) local y = e.a * 1 e.part:mul_(2) return x + e.d + e.a + y end,
      function(e, x) T.no_grad(function() e.l:mul_(2) end) return x + e.l end,
      function(e, x) T.no_grad(function() e.a:mul_(2) end) return x + e.v end,
      function(e, x) e.hd:mul_(2) return x + e.h + e.hd end,
      function(e, x) T.no_grad(function() e.still:mul_(2) end) return x + e.a + e.still end,
      function(_, x) x:detach():mul_(2) return x * 3 end,
      function(_, x) local c = x:detach() c:mul_(2) c:add_(1) return x * 3 + c end,
      function(_, x) local y = x * 2 local c = y:detach() c:mul_(2) c:add_(1) return y * 3 + c * c end,
    }, { may = GONE })
    same("two leaves", function(e, x) T.no_grad(function() e.l:mul_(2) end) return x + e.l + e.a end, { may = TWO })
    same("both", function(e, x)
      T.no_grad(function() e.a:mul_(0.5) end)
      e.d:mul_(2)
      return x + e.a + e.d
    end, { may = TWO })
    same("read before", function(e, x) local y = x * e.d e.d:mul_(0.5) return y + e.a end, { may = GONE })
  end)

  it("end where a gradient was taken inside without create_graph", function()
    each({
      function(e, x) return x * e.a + T.grad_of((x * e.a * e.a):sum(), e.a) end,
      function(e, x)
        local y = x * e.a
        local g = T.grad_of((y * e.a):sum(), e.a, { retain_graph = true })
        return (y + g) * e.a
      end,
      function(e, x)
        local y = x * e.a
        local g = T.grad_of((y * e.a * e.a):sum(), e.a, { create_graph = true })
        local k = T.grad_of(g:sum(), e.a, { retain_graph = true })
        return y + g + k
      end,
      function(e, x) return x * e.a + T.grad(function(z) return (z * e.a * z):sum() end, x) end,
      function(e, x)
        local y = x:detach() * e.a
        T.sum(y * e.a):backward { retain_graph = true }
        local g = e.a.grad
        e.a.grad = nil
        return y * g
      end,
    }, { may = GONE })
  end)

  it("pass the step of an optimizer that was taken inside", function()
    for _, settings in ipairs { { lr = 0.1 }, { lr = 0.1, momentum = 0.9 } } do
      local opt
      same("step", function(e, x)
        T.sum(x:detach() * e.w):backward()
        opt:step()
        opt:zero_grad()
        return e.w:sum() * x:detach()
      end, { calls = 5, change = function(e, i) opt = i == 1 and T.optim.SGD({ e.w }, settings) or opt end })
    end
    same("cleared inside", function(e, x)
      T.sum(x:detach() * e.w):backward()
      e.w.grad = nil
      return e.w * x:detach()
    end, { calls = 5 })
  end)

  it("read what the function left in tensors from outside, where nobody has written it since", function()
    for _, class in ipairs { "SGD", "AdamW" } do
      local opt
      local function step(e, x)
        T.sum(x:detach() * e.w * e.w):backward()
        opt:step()
        opt:zero_grad()
      end
      local change = function(e, i) opt = i == 1 and T.optim[class]({ e.w }, { lr = 0.1 }) or opt end
      for k, f in ipairs {
        function(e, x) step(e, x) return e.w * e.w * x end,
        function(e, x) step(e, x) return (e.w:view(3, 1) * e.w):exp():sum() * x:detach() end,
        function(e, x) x = x:detach() x:mul_(2) step(e, x) return x * e.w end,
        function(e, x) step(e, x) local y = e.w * e.w step(e, x) return e.w * e.w * x + y:detach() end,
      } do
        same(class .. " " .. k, f, { calls = 4, change = change })
      end
      same(class .. ", twice", function(e, x) step(e, x) return e.w * e.w * x end, { change = change,
        may = { "another run would not find it" }, call = function(f, e)
          local x = T.ones(2, 3):requires_grad_()
          local g = T.grad_of(f(x):sum(), e.w, { create_graph = true })
          return T.grad_of(g:sum(), x)
        end })
      same(class .. ", written since", function(e, x) step(e, x) return e.w * e.w * x end, { change = change,
        call = function(f, e)
          local y = f(T.ones(2, 3))
          T.no_grad(function() e.w:mul_(2) end)
          return y
        end })
    end
    each {
      function(_, x) x = x:detach() x:mul_(2) x:add_(1) return x * x end,
      function(e, x) x = x:detach() x:mul_(2) return x * e.a * e.a end,
      function(e, x) x = x:detach() x[1]:mul_(2) return x * e.a * e.a end,
    }
    local call = function(f, e)
      local x = T.ones(2, 3)
      local y = f(x)
      return y, x, e
    end
    same("an argument", function(e, x) x:mul_(2) return x * e.a * e.a end, { call = call })
    same("an argument, written since", function(e, x) x:mul_(2) return x * e.a * e.a end, { call = function(f, e)
      local y, x = call(f, e)
      x:add_(1)
      return y
    end })
    same("a row of it", function(e, x) x[1]:mul_(e.d) return x * e.a * e.a end,
      { call = call, may = { "wrote it in place" } })
  end)

  it("reach what an argument leads to, or is besides", function()
    local function of(make) return { call = function(f, e) return f(make(e)) end, calls = 4 } end
    local function inner(e, x)
      T.sum(x * e.a):backward()
      return x:detach()
    end
    same("computed", inner, of(function(e) return e.w * 2 end))
    same("a leaf", inner, of(function(e) return e.w end))
    same("captured, too", inner, of(function(e) return e.a end))
    same("captured, too, and outside", function(e, x) return x * e.a end, of(function(e) return e.a end))
    local function asked(e, x) return T.grad_of((x * e.a):sum(), e.a) end
    same("asked of what an argument was computed from", asked, of(function(e) return e.a * 2 end))
    same("asked of another", function(e, x)
      return T.grad_of((x * e.a):sum(), e.w, { allow_unused = true }) or e.a * 1
    end, of(function(e) return e.w * 2 end))
    same("one of another", function(_, x, y) return T.grad_of((x * y):sum(), x) end, { call = function(f, e)
      local x = e.w * 1
      return f(x, x * 2)
    end })
    for _, second in ipairs { "a", "d", "v", "l" } do
      same("twice", function(_, x, y) return x * y * 2 end, { call = function(f, e) return f(e.a, e[second]) end })
      same("twice, inside", function(_, x, y)
        (x * y * y):sum():backward()
        return x:detach()
      end, { call = function(f, e) return f(e.a, second == "v" and e.a or e[second]) end })
    end
  end)

  it("are refused where they would be lost", function()
    local w = T.ones(2):requires_grad_()
    local on = T.jit(function(x) return T.enable_grad(function() return x * w end) end)
    raises("turns gradients on.*call it outside of T%.no_grad", function() T.no_grad(on, T.ones(2)) end)
    raises("returns a leaf that it has made.*make the leaf outside", T.jit(function(x)
      local z = T.ones(2):requires_grad_()
      return x * z * w, z
    end), T.ones(2))
  end)
end)

describe("results that a backward inside of the function went through", function()
  local function gone(e, x, o)
    local y = x:detach() * e.a
    ;(y * y):sum():backward(o)
    return y
  end
  it("have a history that is freed, as outside: a backward that gets there is an error", function()
    each {
      gone,
      function(e, x) return gone(e, x):view(6) end,
      function(e, x) return gone(e, x) * 2 end,
      function(e, x) return gone(e, x):sum() + x:sum() end,
      function(e, x) return gone(e, x):detach() end,
      function(e, x) return gone(e, x, { retain_graph = true }) end,
      function(e, x) return T.no_grad(gone, e, x) end,
      function(e, x)
        local y = x:detach() * e.a * e.w
        return y + T.grad_of((y * y):sum(), e.a)
      end,
      function(e, x) return gone(e, x):add_(1) end,
    }
    local read = function(f, e) return T.no_grad(f, T.ones(2, 3)) end
    each({ gone, function(e, x) return gone(e, x) * 2 end }, { call = read, may = { "no_grad" } })
  end)

  it("which may be arguments that it writes, views of them, or what they are views of", function()
    local backward = function(x) (x * 1):sum():backward() end
    local writes = {
      function(e, x) x:mul_(e.a) backward(x) end,
      function(e, x) x:narrow(1, 1, 1):mul_(e.a) backward(x) end,
      function(e, x) x[1] = e.a backward(x) return x end,
      function(e, x) local y = e.a * 2 backward(y) x:copy_(y:expand(2, 3)) return x:view(6) end,
      function(e, x) x:mul_(e.a) backward(x) T.no_grad(function() x:mul_(2) end) end,
      function(e, x) x:mul_(e.a) backward(x) x:detach_() end,
    }
    for i, f in ipairs(writes) do
      for _, which in ipairs { "whole", "row", "other" } do
        local function call(g)
          local base = T.ones(3, 3)
          local x, other = base:narrow(1, 1, 2), base:narrow(1, 2, 2)
          if which == "whole" then x = base:clone():narrow(1, 1, 2):contiguous() end
          g(x)
          return which == "other" and other or which == "row" and base or x
        end
        same("write " .. i .. " " .. which, f, { call = call, calls = 2 })
      end
    end
  end)

  it("are not written through views that were taken where nothing is recorded", function()
    local h = T.ones(4):requires_grad_() * 2
    local v = T.no_grad(function() return h:view(2, 2) end)
    raises("view that was taken where no gradients are recorded", T.jit(function(x) x:mul_(3) end), v)
    assert.same({ 2, 2, 2, 2 }, h:detach():totable())
  end)

  it("are told so beside what others give to a sum, at each size, and cost a loop that reads them nothing", function()
    local w = T.ones(3):requires_grad_()
    local f = T.jit(function(x)
      local y = x * w
      y:sum():backward()
      return y
    end)
    for n = 1, 6 do
      local x = T.ones(n, 3)
      local y = f(x)
      assert.is_true(y.requires_grad)
      assert.is_false(y.is_leaf)
      assert.equal(3 * n, y:sum():item())
      raises("backward: the tape below this tensor was freed by an earlier backward", function()
        (y + x * w):sum():backward()
      end)
      assert.is_false((y:detach() + x).requires_grad)
    end
  end)
end)

describe("hooks of tensors from outside", function()
  local function inside(e, x)
    T.sum(x:detach() * e.a):backward()
    return x:detach()
  end
  local function asked(e, x) return T.grad_of((x:detach() * e.a):sum(), e.a) end

  it("that come and go between calls are seen by a graph", function()
    for _, f in ipairs { inside, asked } do
      local k, handle = 10, nil
      same("added", f, { calls = 8, change = function(e, i)
        if i == 5 then e.a:register_hook(function(g) return g * 10 end) end
      end })
      same("removed", f, { calls = 8, change = function(e, i)
        if i == 1 then handle = e.a:register_hook(function(g) return g * 10 end) end
        if i == 5 then handle:remove() end
      end })
      same("another number", f, { calls = 6, change = function(e, i)
        k = i
        if i == 1 then e.a:register_hook(function(g) return g * k end) end
      end })
    end
    same("behind accumulation", inside, { calls = 8, change = function(e, i)
      if i == 4 then e.a:register_post_accumulate_grad_hook(function(t) t.grad = t.grad * 0.5 end) end
    end })
    same("of an argument", function(e, x)
      T.sum(x * e.a):backward()
      return x:detach()
    end, { calls = 6, call = function(f, e) return f(e.w) end, change = function(e, i)
      if i == 3 then e.w:register_hook(function(g) return g * 10 end) end
    end })
  end)

  it("are errors where a graph would not repeat what they do", function()
    local w, n = T.ones(2):requires_grad_(), 0
    raises("register_hook: the tensor comes from outside of the traced function", T.jit(function(x)
      w:register_hook(print)
      return x * w
    end), T.ones(2))
    w:register_hook(function() n = n + 1 end)
    raises("changes n %(from 0 to 1%)", T.jit(function(x) T.sum(x * w):backward() end), T.ones(2))
  end)
end)

it("hooks that a function gives to its own tensors may keep what they see in its variables", function()
  local w, last, scale = T.randn(3):requires_grad_(), nil, 2
  local function hooked(x)
    local norm, kept, key = nil, {}, T.GradKey {}
    local y, z = x * w, key:attach(x:detach(), function(_, g) kept.inner = g * scale end)
    key:backward((z * 3):sum())
    y:register_hook(function(g)
      norm = g:norm()
      kept[#kept + 1] = g * scale
      return g * scale
    end)
    y:sin():sum():backward()
    local grad = w.grad
    w.grad = nil
    return norm, kept[1], kept.inner, grad
  end
  local f = T.jit(hooked)
  for round = 1, 4 do
    scale = round // 2 + 1
    local x = T.randn(3)
    local one, other = { hooked(x) }, { f(x) }
    for i = 1, 4 do assert.is_true(one[i]:equal(other[i])) end
  end
  assert.equal(3, f.ntraces)
  local outside = { last = function(g) last = g end, scale = function() scale = scale + 1 end }
  for name, write in pairs(outside) do
    raises("changes " .. name, T.jit(function(x)
      local y = x * w
      y:register_hook(write)
      y:sum():backward()
    end), T.ones(3))
    assert.is_true(last == nil or T.is_tensor(last))
    w.grad, last = nil, nil
  end
end)

it("what a jitted function asks of a tensor without reading it is asked again", function()
  local function asks(f, change)
    same("asked", function(e, x) return f(e) and x:detach() * 2 or x:detach() end,
      { calls = 6, change = function(e, i) if i == 4 then change(e) end end })
  end
  asks(function(e) return e.d.requires_grad end, function(e) e.d:requires_grad_() end)
  asks(function(e) return e.w.requires_grad end, function(e) e.w:requires_grad_(false) end)
  asks(function(e) return e.d.grad end, function(e) e.d:requires_grad_().grad = T.ones(3) end)
  asks(function(e) return e.hd.is_leaf end, function(e) e.hd:mul_(e.w) end)
  asks(function(e) return e.d:version() > 0 end, function(e) e.d:mul_(1) end)
end)
