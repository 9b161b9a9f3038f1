-- SPDX-License-Identifier: MIT
-- What a jitted function asks of tensors from outside, in traces and in plans for other sizes made of them; and which
-- calls run the graph.
local T = require "perilune"

local QUESTIONS = {
  version = function(e) return e.c:version() - e.first end,
  ["requires_grad"] = function(e) return e.c.requires_grad and 2 or 1 end,
  ["is_leaf"] = function(e) return e.h.is_leaf and 2 or 1 end,
  ["grad_fn"] = function(e) return e.c.grad_fn and 2 or 1 end,
  ["grad"] = function(e) return e.a.grad and 2 or 1 end,
  ["values"] = function(e) return e.c:sum() end,
  ["a gradient inside"] = function(e)
    (e.a * 2):sum():backward()
    local g = e.a.grad:clone()
    e.a.grad = nil
    return g:sum()
  end,
  ["a leaf's backward"] = function(e)
    e.a:backward(T.ones(3))
    local g = e.a.grad:clone()
    e.a.grad = nil
    return g:sum()
  end,
}
local CHANGES = {
  ["nothing"] = function() end,
  ["a write"] = function(e) e.c:add_(1) end,
  ["requires_grad_"] = function(e) e.c:requires_grad_() end,
  ["no gradients"] = function(e) e.a:requires_grad_(false):requires_grad_() end,
  [".grad"] = function(e) e.a.grad = T.ones(3) end,
  ["a hook"] = function(e) e.a:register_hook(function(g) return g * 3 end) end,
  ["a hook after .grad"] = function(e) e.a:register_post_accumulate_grad_hook(function(x) x.grad:mul_(5) end) end,
}

local function text(y) return ("%s %s"):format(y:detach():sum():item(), tostring(y.requires_grad)) end

describe("what a jitted function asks of tensors from outside", function()
  for question, ask in pairs(QUESTIONS) do
    it(question .. " is asked again when that changes, at all sizes", function()
      for change, act in pairs(CHANGES) do
        local function run(wrap)
          local e = { a = T.tensor { 1, 2, 3 }:requires_grad_(), c = T.ones(3) }
          e.h, e.first = e.a * 2, e.c:version()
          local f, out = wrap(function(x) return x * ask(e) end), {}
          for i, n in ipairs { 2, 3, 4, 3, 4, 2, 5 } do
            if i == 4 then act(e) end
            local ok, y = pcall(f, T.ones(n, 3))
            out[i] = ok and text(y) or "raises"
          end
          return table.concat(out, ", ")
        end
        assert.equal(run(function(f) return f end), run(T.jit), change)
      end
    end)
  end

  it("is refused where a graph would not ask again", function()
    local a = T.ones(3)
    for name, f in pairs {
      is_freed = function(x) return a:is_freed() and x or x * 2 end,
      grad_keys = function(x) return x * #T.grad_keys() end,
    } do
      local ok, err = pcall(T.jit(f), T.ones(3))
      assert.is_false(ok)
      assert.matches(name .. ": .* ask outside", err)
      assert.equal(0, T.jit(f, { fallback = true })(T.ones(3)):sum():item() % 3)
    end
  end)
end)

describe("calls of a jitted function run its graph", function()
  local function runs(calls, f, ...)
    local j = T.jit(f)
    for _ = 1, calls do j(...):sum():backward() end
    assert.equal(calls, j.runs)
    assert.is_true(j.ntraces <= 2) -- with a .grad and without
  end

  it("also where a leaf comes in twice, or is captured, too, if gradients are taken outside", function()
    local w = T.tensor { 1, 2, 3 }:requires_grad_()
    runs(3, function(x, y) return x * y + x end, w, w)
    assert.equal("9 15 21", table.concat(w.grad:long():totable(), " ")) -- 3 (2 w + 1)
    w.grad = nil
    runs(3, function(x) return x * w end, w)
    assert.equal("6 12 18", table.concat(w.grad:long():totable(), " "))
  end)

  it("also where an argument has a hook, if gradients are taken outside", function()
    local n, w = 0, T.ones(3):requires_grad_()
    w:register_hook(function() n = n + 1 end)
    runs(3, function(x) return x:sin() end, w)
    assert.equal(3, n)
  end)

  it("but not where it takes gradients itself, of few leaves and of many", function()
    for _, n in ipairs { 2, 5, 40, 300 } do
      local w, list = T.ones(2):requires_grad_(), {}
      for i = 1, n do list[i] = T.ones(2):requires_grad_() end
      local j = T.jit(function(l)
        local y = w * 2
        for i = 1, #l do y = y + l[i] * i end
        y:sum():backward()
        return y:detach()
      end)
      j(list)
      assert.equal(1, j.runs)
      for _, other in ipairs { w, list[1] } do
        local was = list[n]
        list[n], w.grad, list[1].grad = other, nil, nil
        for i = 2, n - 1 do list[i].grad = nil end
        j(list)
        assert.equal(1, j.runs)
        assert.equal(n + (other == w and 2 or 1), other.grad:sum():item() / 2)
        list[n] = was
      end
    end
  end)

  it("and a hook that comes and goes as the same function is the same", function()
    local w = T.ones(3):requires_grad_()
    local function hook(g) return g * 2 end
    local j = T.jit(function(x)
      (x * w):sum():backward()
      return x * 1
    end)
    for i = 1, 12 do
      local h = w:register_hook(hook)
      w.grad = nil
      j(T.ones(3))
      h:remove()
      assert.equal(6, w.grad:sum():item(), i)
    end
    assert.equal(1, j.ntraces)
    assert.equal(12, j.runs)
  end)

  it("and what was detached may be written, whatever view it is", function()
    local x = T.ones(2, 3):requires_grad_()
    for _, view in ipairs {
      function(d) return d end, function(d) return d:t() end, function(d) return d:narrow(1, 1, 1) end,
      function(d) return d:t():detach():select(1, 2) end, function(d) return d:view(6) end,
    } do
      local function written(f)
        local y = f(x)
        return pcall(y.add_, y, 1), y.requires_grad, y:shares_storage(x)
      end
      for _, f in ipairs {
        function(z) return view(z:detach()) end, function(z) return view(z):detach() end,
        function(z) return view(view(z:detach()):detach()) end,
      } do
        if pcall(f, x) then assert.same({ written(f) }, { written(T.jit(f)) }) end
      end
    end
  end)
end)

describe("gradients of a jitted function's results", function()
  local support = require "spec.ops.support"
  local zeros, every = {}, os.getenv "PERILUNE_LANES" == "long" and 1 or 9
  for name in ("round ceil sign copysign nextafter trunc_divide"):gmatch "%S+" do zeros[name] = true end

  it("are those of the script where tensors that it made are overwritten", function()
    local ways = {
      zeros = function(p) return (p * 1):zero_() end,
      number = function(p) return (p * 2):fill_(3):square() end,
      copy = function(p, x) return p:clone():copy_(x) end,
      ["copy with a history"] = function(p, x) return (p * 2):copy_(p * x):square() end,
      ["then added to"] = function(p, x) return (p * 2):zero_():add_(x):square() end,
      ["after it was read"] = function(p, x)
        local y = p * 1
        local z = y * x
        y:copy_(x)
        return y * z + y
      end,
      normal = function(p, x) return p * x * T.empty(2):normal_() end,
      uniform = function(p) return p * p * T.zeros(2):uniform_() end,
      exponential = function(p) return p * p * T.zeros(2):exponential_() end,
      scaled = function(p, x) return p * p * T.zeros(2):bernoulli_(0.5):mul_(2):add_(x) end,
      ["shown in another shape"] = function(p) return (p * p):unsqueeze(1) * T.zeros(4):normal_():view(2, 2) end,
      rows = function(p)
        local n = T.zeros(2, 2)
        n[1]:normal_()
        n[2]:uniform_()
        return p * n
      end,
    }
    for name, f in pairs(ways) do
      for _, o in ipairs { {}, { mirror = "mirror" } } do
        local p, q = T.tensor({ 1.5, -2 }):requires_grad_(), T.tensor({ 1.5, -2 }):requires_grad_()
        local g = T.jit(function(x) return f(q, x) end, o)
        for k = 1, 2 do
          p.grad, q.grad = nil, nil
          T.manual_seed(k)
          local y, next_y = f(p, T.ones(2) * k), T.rand(1)
          T.manual_seed(k)
          local z, next_z = g(T.ones(2) * k), T.rand(1)
          assert.is_true(y:equal(z) and next_y:equal(next_z), name)
          y:sum():backward()
          z:sum():backward()
          assert.is_true(q.grad ~= nil and p.grad:equal(q.grad), name)
        end
      end
    end
  end)

  it("are there where the script has some, be they zeros", function()
    local count = 0
    for k, info in ipairs(support.public()) do
      local row = info.differentiable and not info.flags.mutates and support.cases[info.name]
      for v, args in ipairs(row and (zeros[info.name] or k % every == 0) and support.arguments(info.name) or {}) do
        local f = support.func(info.name)
        local function there(wrap)
          local leaves, sum, found = {}, nil, ""
          local given = support.map(args, function(t)
            if not t:is_floating_point() then return t end
            leaves[#leaves + 1] = t:clone():requires_grad_()
            return leaves[#leaves]
          end)
          support.map(table.pack(wrap(function(...) return f(...) end)(table.unpack(given, 1, given.n))), function(t)
            if t.grad_fn then sum = sum and sum + t:sum() or t:sum() end
          end)
          if not sum then return nil end
          sum:backward()
          for i, x in ipairs(leaves) do found = found .. (x.grad and i or "-") end
          return found
        end
        local ok, want = pcall(there, function(g) return g end)
        if ok and want then
          count = count + 1
          assert.equal(want, there(T.jit), ("%s, variant %d"):format(info.name, v))
        end
      end
    end
    assert.is_true(count > 20, count)
  end)
end)
