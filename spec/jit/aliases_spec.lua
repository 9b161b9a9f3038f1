-- SPDX-License-Identifier: MIT
-- T.jit and memory that is shared: arguments that are written, results that are arguments, views or one tensor twice,
-- and gradients that come from outside of the graph.
local T = require "perilune"
local nn = T.nn

local function raises(pattern, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok, "no error")
  assert.matches(pattern, tostring(err))
end

local function values(t) return t:detach():totable() end

describe("T.jit", function()

  it("arguments that share memory with what is written, or are strided, are written as in the script", function()
    local function body(x, y)
      local before = y * 2
      x:add_(1)
      return before, y * 2
    end
    local function both(make)
      local out = {}
      for _, f in ipairs { body, T.jit(body) } do
        local a = T.zeros(2, 3)
        local list = {}
        for _ = 1, 3 do
          local p, q = f(make(a))
          list[#list + 1], list[#list + 2] = values(p), values(q)
        end
        out[#out + 1] = { list, values(a) }
      end
      assert.same(out[1], out[2])
    end
    both(function(a) return a, a end)
    both(function(a) return a, a:narrow(1, 1, 1) end)
    both(function(a) return a:t(), T.ones(2) end)
    local w = T.zeros(2)
    local f = T.jit(function(x) return (body(x, w)), w * 2 end)
    for i = 1, 3 do
      local p, q = f(w)
      assert.same({ 2 * i - 2, 2 * i }, { p:get(1), q:get(1) })
    end
  end)

  it("an argument that is returned is itself; what is returned twice is one tensor", function()
    local f = T.jit(function(x)
      local y = x * 2
      return x:add_(1), y, { y }
    end)
    local a = T.ones(2)
    for _ = 1, 2 do
      local x, y, list = f(a)
      assert.is_true(rawequal(x, a))
      assert.is_true(rawequal(y, list[1]))
    end
  end)

  it("results without gradients come with those that have them", function()
    local w = T.full({ 2 }, 3.0):requires_grad_()
    local f = T.jit(function(x)
      local free = T.no_grad(function() return w * w end)
      local y = (w * free * x):sum()
      return free, x:argmax(), y, y:detach()
    end)
    for _ = 1, 2 do
      w.grad = nil
      local free, at, y, cut = f(T.ones(2))
      assert.is_true(y.requires_grad)
      assert.is_false(free.requires_grad or at.requires_grad or cut.requires_grad)
      y:backward()
      assert.same({ 9, 9 }, values(w.grad))
    end
  end)

  it("a backward inside and a result that is differentiated outside go together", function()
    local a, b = T.ones(2):requires_grad_(), T.ones(2):requires_grad_()
    local f = T.jit(function(x)
      (a * x):sum():backward()
      return (b * x):sum()
    end)
    for i = 1, 3 do
      f(T.ones(2)):backward()
      assert.same({ i, i, i, i }, { a.grad:get(1), a.grad:get(2), b.grad:get(1), b.grad:get(2) })
    end
    local g = T.jit(function(h) (h * h):sum():backward() end)
    a.grad = nil
    for _ = 1, 2 do g(a * 3) end -- goes on into the argument's history
    assert.same({ 36, 36 }, values(a.grad))
  end)

  it("an element of a captured tensor that is written is that of the script", function()
    local w = T.zeros(4)
    local f = T.jit(function(x)
      w[2] = x[1]
      return w * 1
    end)
    for _ = 1, 20 do
      f:reset()
      collectgarbage()
      assert.same({ 0, 1, 0, 0 }, values(f(T.ones(2))))
    end
    assert.same({ 0, 1, 0, 0 }, values(w))
  end)

  it("gradients that would be wrong are errors: written parameters, hooks, rules of T.custom", function()
    local w = T.ones(2):requires_grad_()
    local f = T.jit(function(x) return (w * w * x):sum() end)
    local y = f(T.ones(2))
    T.no_grad(function() w:add_(1) end)
    raises("a tensor that it uses, .* was modified in place after the call", function() y:backward() end)
    local function hooked(x)
      local z = w * x
      z:register_hook(function(g) return g * 2 end)
      return z:sum()
    end
    raises("goes through a hook of register_hook", T.jit(hooked), T.ones(2))
    local inside = T.jit(function(x) hooked(x):backward() end)
    for _ = 1, 2 do inside(T.ones(2)) end
    assert.same({ 4, 4 }, values(w.grad))
  end)

  it("gradients that the function clears make room for the new ones", function()
    local net = nn.Linear(512, 512, { bias = false })
    local step = T.jit(function(x)
      net:zero_grad()
      net(x):sum():backward()
    end)
    local x = T.ones(1, 512)
    for _ = 1, 2 do step(x) end
    collectgarbage() collectgarbage()
    T.reset_peak_memory()
    local before = T.memory().live
    step(x)
    local size = 4 * 512 * 512
    assert.is_true(T.memory().peak - before < size / 2, T.memory().peak - before)
    assert.is_true(net.weight.grad:equal(T.ones(512, 512)))
  end)

  it("views that are returned share memory with what they look at, as the script's do", function()
    local w = T.zeros(3, 4):requires_grad_()
    local function body(x)
      local y = x * 2
      local whole = w:detach()
      x:add_(1)
      return x:t(), x[2], x:narrow(2, 1, 2):t(), y, y:narrow(1, 2, 2), y:t()[1], w:t(), whole[1]
    end
    local f = T.jit(body)
    for _, make in ipairs { function() return T.zeros(3, 4) end, function() return T.zeros(4, 3):t() end } do
      for _ = 1, 3 do
        local x = make()
        local r = { f(x) }
        x:fill_(7)
        r[4]:fill_(9)
        T.no_grad(function() w:fill_(3) end)
        local want = { { 4, 3, 7 }, { 4, 7 }, { 2, 3, 7 }, { 3, 4, 9 }, { 2, 4, 9 }, { 3, 9 }, { 4, 3, 3 }, { 4, 3 } }
        for i, t in ipairs(r) do
          local value = table.remove(want[i])
          assert.same(want[i], t:shape())
          assert.is_true(t:eq(value):all():item(), "result " .. i)
        end
        assert.is_true(r[7].requires_grad)
        assert.is_false(r[8].requires_grad)
      end
    end
    -- results lie as the arguments do; a graph on a device takes arguments row-major
    assert.equal(require "spec.support.device".mode and 1 or 2, f.ntraces)
  end)

  it("gradients go through views that are returned, of results, arguments and parameters", function()
    local function run(wrap)
      local w, x = T.ones(2, 3):requires_grad_(), (T.ones(3) * 2):requires_grad_()
      local f = wrap(function(t)
        local y = w * t
        return y:t(), y[1], t:view(3, 1), w[2], T.no_grad(function() return w[1] end)
      end)
      local out = {}
      for _ = 1, 2 do
        local a, b, c, d, e = f(x)
        assert.is_false(e.requires_grad)
        local sum = a:sum() * 2 + b:sum() + c:sum() * 3 + d:sum() * 5
        sum:backward()
        out[#out + 1], out[#out + 2] = values(w.grad), values(x.grad)
      end
      return out
    end
    assert.same(run(function(f) return f end), run(T.jit))
  end)
end)

describe("an output of a jitted function that backward does not reach", function()
  local function leaf() return T.tensor { 1, 2, 3 }:requires_grad_() end
  it("leaves inputs and captured tensors without a gradient, as eagerly", function()
    local w1, w2 = leaf(), leaf()
    local function body(x, y) return x * w1, (y * w2):exp(), x * y, y:detach() * x end
    local f = T.jit(body)
    for which = 1, 4 do
      local got = {}
      for k, call in ipairs { body, f, f } do
        local x, y = leaf(), leaf()
        local out = { call(x, y) }
        out[which]:sum():backward()
        local list = {}
        for i, t in ipairs { x, y, w1, w2 } do list[i] = t.grad and t.grad:totable() or false end
        got[k] = list
        w1.grad, w2.grad = nil, nil
      end
      assert.same(got[1], got[2], "output " .. which)
      assert.same(got[1], got[3], "output " .. which)
    end
  end)
  it("takes part where two are used", function()
    local x, y = leaf(), leaf()
    local f = T.jit(function(a, b) return a * 2, a * b, b * 3 end)
    local p, q = f(x, y);
    (p + q):sum():backward()
    assert.same({ 3, 4, 5 }, x.grad:totable())
    assert.same({ 1, 2, 3 }, y.grad:totable())
  end)
end)

describe("which arguments are one object", function()
  local f64 = { dtype = "f64" }
  local MAKE = {
    plain = function() return T.randn({ 3, 3 }, f64) end,
    leaf = function() return T.randn({ 3, 3 }, f64):requires_grad_() end,
    computed = function() return T.randn({ 3, 3 }, f64):requires_grad_() * 2 end,
    transposed = function() return T.randn({ 3, 3 }, f64):t() end,
    expanded = function() return T.randn({ 3, 1 }, f64):requires_grad_():expand(3, 3) end,
    ["with a gradient"] = function()
      local x = T.randn({ 3, 3 }, f64):requires_grad_()
      x:sum():backward()
      return x
    end,
  }
  local function f(x, y, z)
    local u, names = x * 1, { [x] = 7 }
    if rawequal(x, y) then u = u * 2 end
    if z and z.t == x then u = u * 3 end
    if z and rawequal(z.t, y) then u = u + y * 5 end
    return u * (names[y] or 1), y
  end
  for name, make in pairs(MAKE) do
    it("counts as in the script: " .. name, function()
      for first = 0, 7 do
        local compiled = T.jit(f, { max_traces = 32 })
        for call = 0, 23 do
          local k = (first + call * 5) % 8
          local x = make()
          local y = k % 2 == 0 and x or make()
          local z = k // 2 > 0 and { t = k // 2 == 1 and x or k // 2 == 2 and y or make() } or nil
          local function gradients(g)
            for _, t in ipairs { x, y } do t.grad = nil end
            local u, v = g(x, y, z)
            assert.is_true(rawequal(v, y))
            if u.requires_grad then (u * u):sum():backward { retain_graph = true } end
            return u:detach(), x.is_leaf and x.grad or u.requires_grad, y.is_leaf and y.grad or 0
          end
          local want, got = { gradients(f) }, { gradients(compiled) }
          for i, w in ipairs(want) do
            if T.is_tensor(w) then assert.is_true((w - got[i]):abs():max():item() < 1e-12)
            else assert.equal(w, got[i]) end
          end
        end
      end
    end)
  end

  it("counts for tables, what is in them and gradients, in random calls", function()
    -- all that is reached from the arguments, in order, compared with all before it
    local function codes(...)
      local met, same, total = {}, {}, nil
      local function look(v, depth)
        if type(v) ~= "table" and not T.is_tensor(v) or depth > 3 then return end
        local first = #met + 1
        for i, w in ipairs(met) do
          if rawequal(v, w) then first = i break end
        end
        met[#met + 1], same[#same + 1] = v, first
        if type(v) == "table" then
          for i = 1, #v do look(v[i], depth + 1) end
        else
          total = total and total + v or v * 1
          if v.is_leaf and v.grad then look(v.grad, depth + 1) end
        end
      end
      for i = 1, select("#", ...) do look((select(i, ...)), 0) end
      for i, first in ipairs(same) do total = total + first * i / 8 end
      return total, met[1] == met[2] and met[2] or { met[#met] }
    end
    local state = 12345
    local function random(n)
      state = (state * 1103515245 + 12345) % (1 << 31)
      return state // 65536 % n + 1
    end
    local compiled = T.jit(codes, { max_traces = 1000 })
    for _ = 1, 300 do
      local tensors, tables = {}, {}
      for i = 1, 3 do
        tensors[i] = T.randn({ 2, 2 }, f64)
        if random(2) == 1 then
          tensors[i]:requires_grad_():sum():backward()
          tensors[i + 3] = tensors[i].grad
        else tensors[i + 3] = tensors[i]:clone() end
      end
      for i = 1, 3 do
        tables[i] = {}
        for k = 1, random(2) do tables[i][k] = random(3) > 1 and tensors[random(6)] or tables[random(i)] end
      end
      local args = {}
      for i = 1, random(3) do args[i] = random(2) == 1 and tensors[random(6)] or tables[random(3)] end
      table.insert(args, 1, tensors[1])
      local want, got = codes(table.unpack(args)), compiled(table.unpack(args))
      assert.is_true((want - got):abs():max():item() < 1e-12)
    end
    assert.is_true(compiled.ntraces < 280) -- else no trace served a second call
    local cyclic = { T.ones(2) }
    cyclic[2], cyclic[3] = cyclic, cyclic -- not a path for each way to go round
    local g = T.jit(function(t) return t[2][3][1] * 2, t[2] == t[3] and t[3] == t end)
    for _ = 1, 2 do assert.is_true((select(2, g(cyclic)))) end
    local h = T.jit(function(v)
      local t = { v * 2 }
      return { t, t }, t
    end)
    for _ = 1, 2 do
      local t, u = h(T.ones(2))
      assert.is_true(rawequal(t[1], t[2]))
      assert.equal(u[1], t[1][1])
    end
    for _, k in ipairs { function(t) return t end, function(t) return { [t[1] * 2] = 1 } end } do
      assert.error_matches(function() T.jit(k)({ cyclic[1], [cyclic[1]] = 3 }) end, "has a tensor as a key")
    end
  end)

  -- A .grad that was there is an input of the graph, another tensor in each call that finds another one.
  it("results that are the .grad of a leaf are that of the call, not of the trace", function()
    local functions = {
      sum = function(p, x)
        (p * x):sum():backward()
        return p.grad
      end,
      window = function(p, x)
        (p * x):sum():backward()
        return p.grad:view(3, 1)
      end,
      read = function(p) return p.grad end,
      beside = function(p, x) return p.grad * x, p.grad:view(3) end,
      taken = function(p, x)
        local g = p.grad
        p.grad = nil;
        (p * x):sum():backward()
        return g, g * 2
      end,
      doubled = function(p, x)
        (p * x):sum():backward()
        local g = p.grad
        p.grad = g * 2
        return g, g:view(1, 3)
      end,
    }
    for name, body in pairs(functions) do
      local seen = {}
      for _, wrap in ipairs { function(g) return g end, function(g) return T.jit(g) end } do
        local p, list = T.tensor { 1.0, 2.0, 3.0 }:requires_grad_(), {}
        local step = wrap(function(x) return body(p, x) end)
        for k = 1, 8 do
          if k < 3 or k > 5 or not p.grad then p.grad = T.full({ 3 }, k * 1.0) end -- the same one in between
          for _, r in ipairs { step(T.tensor { 1.0, k, 2.0 }) } do
            list[#list + 1] = table.concat(r:detach():reshape(-1):totable(), " ")
            list[#list + 1] = r:shares_storage(p.grad)
          end
        end
        seen[#seen + 1] = list
      end
      assert.same(seen[1], seen[2], name)
    end
  end)
end)
