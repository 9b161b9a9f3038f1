-- SPDX-License-Identifier: MIT
-- Forward mode: levels, in-place ops and views, rules, transforms around it and inside of it. That every op has the
-- right tangent is the matter of spec/ops/forward_spec.lua.

local T = require "perilune"
local near = require "spec.support.near"
local nn = T.nn

local f64 = { dtype = "f64" }
local function vec(...) return T.tensor({ ... }, f64) end
local function eq(got, want, tol) near.near(got, want, tol or 1e-10) end
local function fails(text, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok)
  assert.truthy(tostring(err):find(text, 1, true), tostring(err))
end
local function tangent(f, x, v) return (select(2, T.jvp(f, x, v))) end

before_each(function() T.manual_seed(3) end)

describe("levels of forward mode", function()
  -- Each differentiates a function of one number.
  local ways = {
    jvp = function(f) return function(x) return tangent(f, x, T.ones_like(x)) end end,
    grad = function(f) return function(x) return T.grad(f)(x) or T.zeros_like(x) end end,
    linearize = function(f) return function(x) return select(2, T.linearize(f, x))(T.ones_like(x)) end end,
    vjp = function(f) return function(x) return select(2, T.vjp(f, x))(T.ones_like(x)) end end,
  }

  it("are not confused: d/dx x d/dy (x + y) is 1, and its kin", function()
    local x = T.tensor(3.0, f64)
    for a, outer in pairs(ways) do
      for b, inner in pairs(ways) do
        local function what(name) return a .. " of " .. b .. ", " .. name end
        local one = T.tensor(1.0, f64)
        eq(outer(function(p) return p * inner(function(q) return p + q end)(one) end)(x), 1.0)
        eq(outer(function(p) return inner(function(q) return p * q * q end)(p) end)(x), 12.0) -- d 2 p p
        eq(outer(function(p) return inner(function() return p * p end)(one) + p end)(x), 1.0)
        eq(outer(function(p) return p * inner(function(q) return (p * q):sin() end)(p) end)(x),
          T.grad(function(p) return p * (p * p):cos() * p end)(x))
        -- the inner function keeps a tensor of its own level for the outer one
        local kept
        local got = outer(function(p)
          local d = inner(function(q)
            kept = q * q * p
            return kept
          end)(p)
          return d + kept:detach() * p
        end)(x)
        assert.is_true(math.abs(got:item() - 4 * 3 - 27) < 1e-9, what "kept")
      end
    end
  end)

  it("three derivatives of sin x², in every order of modes", function()
    local x = T.tensor(0.7, f64)
    local v = 0.7
    local want = -12 * v * math.sin(v * v) - 8 * v ^ 3 * math.cos(v * v)
    for _, a in pairs(ways) do
      for _, b in pairs(ways) do
        for _, c in pairs(ways) do
          eq(a(b(c(function(p) return (p * p):sin() end)))(x), want, 1e-9)
        end
      end
    end
  end)

  it("tangents are seen by the keys around: .grad of parameters, explicit keys", function()
    local w = vec(2, 3):requires_grad_()
    tangent(function(a) return (a * w) ^ 3 end, vec(1, 2), vec(1, 1)):sum():backward()
    eq(w.grad, { 3 * 3 * 4, 3 * 3 * 9 * 4 }) -- 3 a² w³
    local key <close> = T.GradKey {}
    local seen
    local p = key:attach(vec(2), function(_, g) seen = g end)
    key:backward(tangent(function(a) return a * a * p end, vec(5), vec(1)))
    eq(seen, { 10 })
  end)

  it("a backward of outer keys inside of f is a part of f", function()
    local x, v = vec(0.5, 1), vec(1, 2)
    -- dl/dw = a exp(w a) at w = 1: the tangent is v (1 + a) exp(a); exp keeps its output for that
    local want = v * (1 + x) * x:exp()
    local function ambient(how)
      return function(a)
        local w = T.ones({ 2 }, f64):requires_grad_()
        local l = (w * a):exp():sum()
        if how == "backward" then
          l:backward()
          return w.grad
        end
        return T.grad_of(l, w, { create_graph = how == "create_graph" })
      end
    end
    for _, how in ipairs { "backward", "grad_of", "create_graph" } do eq(tangent(ambient(how), x, v), want) end
    eq(tangent(function(a)
      local key <close> = T.GradKey { level = 1 }
      local got
      local w = key:attach(T.ones({ 2 }, f64), function(_, g) got = g end)
      key:backward((w * a):exp():sum())
      return got
    end, x, v), want)
    local f = T.custom { name = "exponential",
      forward = function(ctx, a)
        local y = a:exp()
        ctx:save(y)
        return y
      end,
      backward = function(ctx, g) return g * ctx:saved() end }
    eq(tangent(function(a)
      local w = T.ones({ 2 }, f64):requires_grad_()
      f(w * a):sum():backward()
      return w.grad
    end, x, v), want)
  end)

  it("a backward inside of f has the tangents of what T.saved_tensors has packed", function()
    local x, v = vec(0.5, 1), vec(1, 2)
    local exponential = T.custom { name = "packed_exponential",
      forward = function(ctx, a)
        local y = a:exp()
        ctx:save(y)
        return y
      end,
      backward = function(ctx, g) return g * ctx:saved() end }
    local packings = {
      packed = { pack = function(t) return t * 1 end, unpack = function(t) return t end },
      kept = { offload = "disk" }, -- too small for it
      offloaded = { offload = "disk", min_bytes = 0 },
    }
    for _, opts in pairs(packings) do
      for _, how in ipairs { "backward", "create_graph", "custom", "input" } do
        local function f(a)
          local w = T.ones({ 2 }, f64):requires_grad_()
          local l
          do
            local _ <close> = T.saved_tensors(opts)
            -- exp keeps its output, sin its input
            l = how == "custom" and exponential(w * a) or how == "input" and (w * a):sin() or (w * a):exp()
          end
          l = l:sum()
          if how == "create_graph" then return T.grad_of(l, w, { create_graph = true }) end
          l:backward()
          return w.grad
        end
        local want = how == "input" and v * (x:cos() - x * x:sin()) or v * (1 + x) * x:exp()
        eq(tangent(f, x, v), want)
      end
    end
  end)

  it("one tensor and a list of one are the same, whatever the function returns and wherever it runs", function()
    local x, v, w = vec(0.3, -2, 1.5), vec(1, 0.5, -3), vec(2, 1, 4):requires_grad_()
    local functions = {
      dense = function(a) return (a * a):sin() * w end,
      expanded = function(a) return a:sum():expand(4) end,
      transposed = function(a) return (a:view(3, 1) * w):t() end,
      constant = function() return w * 2 end,
      itself = function(a) return a end,
      written = function(a) a:mul_(a) return a end,
      list = function(a) return { a * 2, { n = a:exp(), name = "text" } } end,
      integer = function(a) return a:gt(0) end,
      number = function() return 7 end,
      more = function(a) return a * 3, a:gt(0) end,
      callable = setmetatable({}, { __call = function(_, a) return a:tanh() end }),
      yielding = function(a) coroutine.yield() return a * w end,
    }
    local function flat(t)
      local out = {}
      for _, k in ipairs { 1, 2, "n", "name" } do
        if type(t) == "table" and t[k] ~= nil then out[#out + 1] = T.is_tensor(t[k]) and t[k] or flat(t[k]) end
      end
      return out
    end
    local function same(a, b)
      if T.is_tensor(a) then
        assert.is_true(T.equal(a, b))
        assert.equal(a.requires_grad, b.requires_grad)
        assert.is_true(a.requires_grad or a:is_contiguous() == b:is_contiguous())
      elseif type(a) == "table" then
        local list, other = flat(a), flat(b)
        assert.equal(#list, #other)
        for i = 1, #list do same(list[i], other[i]) end
      else
        assert.equal(a, b)
      end
    end
    for _, around in ipairs { function(f, ...) return f(...) end, T.no_grad } do
      for name, f in pairs(functions) do
        local results = {}
        for way, primals in ipairs { x:clone(), { x:clone() } } do
          local run = coroutine.wrap(function()
            results[way] = table.pack(around(T.jvp, f, primals, way == 1 and v or { v }))
          end)
          local yielded = run()
          if results[way] == nil then run(yielded) end
        end
        if results[1] or results[2] then -- yields across no_grad are refused for both
          assert.equal(2, results[1].n, name)
          same(results[1][1], results[2][1])
          same(results[1][2], results[2][2])
          assert.is_true(not T.is_tensor(results[1][2]) or results[1][2]:is_contiguous(), name)
        end
      end
    end
    fails("but must be like", T.jvp, functions.dense, x, vec(1, 2))
    fails("the tangent must be a table like the other, got 3", T.jvp, functions.dense, x, 3)
    fails("a function expected", T.jvp, 3, x, v)
    fails("nonsense", T.jvp, function() error("nonsense") end, x, v)
    collectgarbage() -- coroutines that were not finished hold keys
    collectgarbage()
    assert.equal(0, #T.grad_keys())
  end)

  it("what is kept of an ended jvp is a constant", function()
    local kept
    T.jvp(function(a)
      kept = a * 2
      return kept
    end, vec(1), vec(1))
    eq(tangent(function(b) return b * kept end, vec(3), vec(1)), { 2 })
    assert.is_false(kept.requires_grad)
  end)
end)

describe("tangents", function()
  it("are zero where none is given, and cost nothing there", function()
    local x, w = T.randn({ 4 }, f64), T.randn({ 4 }, f64)
    local function f(a, b) return { a * b, b:exp():sum(), a } end
    local _, jv = T.jvp(f, { x, w }, { nil, T.ones({ 4 }, f64) })
    eq(jv[1], x)
    eq(jv[2], w:exp():sum())
    eq(jv[3], 0)
    local function ops(vs)
      local n = 0
      local p = T.profile(function() T.jvp(function(a, b) return a * b:exp():sin():exp() end, { x, w }, vs) end)
      for _, row in ipairs(p:rows("op")) do n = n + row.calls end
      return n
    end
    assert.equal(ops {} + 1, ops { x, nil }) -- x's tangent passes one op alone
    eq(tangent(function(a) return a:detach() * a end, vec(3), vec(1)), { 3 })
    eq(tangent(function(a) return a + T.no_grad(function() return a * a end) end, vec(3), vec(1)), { 1 })
    eq(tangent(function() return vec(1, 2) end, vec(3), vec(1)), { 0, 0 })
  end)

  it("integers have none, several results have one each", function()
    local x = vec(3, 1, 2)
    local _, jv = T.jvp(function(a)
      local largest, at = a:max(1)
      local sorted, order = a:sort(1)
      return { largest, at, sorted, order, n = 2 }
    end, x, vec(10, 20, 30))
    eq(jv[1], 10.0)
    assert.is_nil(jv[2])
    eq(jv[3], { 20, 30, 10 })
    assert.is_nil(jv[4])
    assert.is_nil(jv.n)
    fails("must be like", T.jvp, T.sin, vec(1, 2), T.tensor { 1, 2 })
    local parts = tangent(function(a) return a:split(2, 1) end, x, vec(10, 20, 30))
    eq(parts[1], { 10, 20 })
    eq(parts[2], { 30 })
  end)

  it("have the dtype of what they belong to, in mixed precision, too", function()
    local w, x = T.randn(6, 6), T.randn(3, 6)
    for _, region in ipairs { "bf16", "f16" } do
      local y, v
      T.autocast(region, function()
        y, v = T.jvp(function(a) return a:matmul(w):softmax(-1):matmul(w) end, x, T.ones_like(x))
      end)
      assert.equal(y:dtype(), v:dtype())
      local exact = tangent(function(a) return a:matmul(w):softmax(-1):matmul(w) end, x, T.ones_like(x))
      eq(v:float(), exact, 0.1)
    end
    local y, v = T.jvp(function(a) return a:half() * 2 end, vec(1, 2), vec(1, 1))
    assert.same({ "f16", "f16" }, { y:dtype(), v:dtype() })
  end)

  it("are pure of outer records inside no_grad", function()
    local w = vec(2):requires_grad_()
    T.no_grad(function()
      local y, v = T.jvp(function(a) return a * a * w end, w, vec(1))
      eq(v, { 12 - 4 }, 1e-12)
      assert.same({ false, false }, { y.requires_grad, v.requires_grad })
    end)
  end)

  it("of an op without a derivative are an error only for who asks", function()
    local x = T.randn({ 4, 3 }, f64)
    local function loss(a) return (T.linalg.geqrf(a)) end
    fails("geqrf has no derivative that forward mode knows", T.jvp, loss, x, x)
    fails("geqrf has no derivative", T.jvp, function(a) return (loss(a) * 2):sum() end, x, x)
    eq(tangent(function(a)
      loss(a)
      return loss(a):detach():sum() * 0 + a:sum()
    end, x, x), x:sum())
  end)
end)

describe("in-place ops and views", function()
  -- Programs over a base [3,4] and w [4]; each leaves its result in what it returns.
  local programs = {
    ["whole tensor"] = function(b, w) b:mul_(w):add_(1):sin_() return b end,
    ["by itself"] = function(b) b:mul_(b):mul_(b) return b end,
    ["row of the base"] = function(b, w) b[2]:mul_(w) return b end,
    ["sibling views"] = function(b, w)
      local r, c = b[2], b:t()[3]
      r:mul_(w)
      c:mul_(c)
      return b * 1 + r:sum() * c:sum()
    end,
    ["view of a view"] = function(b, w)
      local v = b:narrow(1, 2, 2):transpose(1, 2)[2]
      v:mul_(w[1]):exp_()
      return b * b
    end,
    ["old view of a changed base"] = function(b, w)
      local v = b[1]
      b:mul_(w)
      return v * v + b[1]
    end,
    ["constant over part"] = function(b)
      b[2]:fill_(3)
      b[3] = 0
      return b * b
    end,
    ["into constants"] = function(_, w)
      local z = T.zeros({ 2, 4 }, f64)
      z[1] = w
      z[2]:copy_(w * w)
      return z
    end,
    ["assignment by index"] = function(b, w)
      b[{ {}, 2 }] = w[1]
      b[b:gt(0)] = b[b:gt(0)] * 2
      return b
    end,
    ["index_put, scatter, masked_fill"] = function(b, w)
      b:scatter_(1, T.tensor({ { 1, 2, 3, 1 } }, { dtype = "i64" }), w:view(1, 4))
      b:masked_fill_(b:gt(1), 0.5)
      return b:index_add(1, T.tensor({ 1, 1 }, { dtype = "i64" }), b:narrow(1, 1, 2))
    end,
    ["swap of rows"] = function(b)
      local first = b[1]:clone()
      b[1] = b[2]
      b[2] = first
      return b * T.arange(4):to("f64")
    end,
    ["a loop over rows"] = function(b, w)
      for i = 2, 3 do b[i]:add_(b[i - 1] * w) end
      return b
    end,
    ["channels last"] = function(b, w)
      local c = b:view(1, 3, 2, 2):contiguous { memory_format = "channels_last" } * 1
      c[{ 1, 2 }]:mul_(w:view(2, 2))
      c:narrow(2, 1, 2):sin_()
      return c
    end,
    ["out="] = function(b, w)
      local out = T.zeros({ 3, 4 }, f64)
      T.mul(b, w, { out = out })
      return out + b
    end,
    ["detached alias"] = function(b)
      local d = b:detach():clone()
      d:mul_(2)
      return d * b
    end,
  }

  for name, program in pairs(programs) do
    it("have exact tangents: " .. name, function()
      local x, w = T.randn({ 3, 4 }, f64), T.randn({ 4 }, f64)
      local vx, vw = T.randn({ 3, 4 }, f64), T.randn({ 4 }, f64)
      local function f(a, b) return program(a:clone(), b:clone()) end
      local y, jv = T.jvp(f, { x, w }, { vx, vw })
      eq(y, f(x, w), 0)
      local zero = { T.zeros_like(x), T.zeros_like(w) }
      for _, given in ipairs { { vx, vw }, { vx, nil }, { nil, vw } } do
        local got, v, u, h = tangent(f, { x, w }, given), given[1] or zero[1], given[2] or zero[2], 1e-6
        local ok, want = pcall(function() return select(2, T.linearize(f, x, w))(v, u) end)
        if ok then eq(got, want, 1e-10) else assert.truthy(want:find("modified in place afterwards", 1, true), want) end
        if name ~= "detached alias" then
          eq(got, (f(x + v * h, w + u * h) - f(x - v * h, w - u * h)) / (2 * h), 1e-6)
        end
      end
      eq(jv, tangent(f, { x, w }, { vx, vw }), 0)
    end)
  end

  it("the argument itself may be changed; the caller's tangent is not", function()
    local x, v = vec(1, 2), vec(1, 1)
    local jv = tangent(function(a)
      a:mul_(3)
      return a * a
    end, x:clone(), v)
    eq(jv, { 18, 36 })
    eq(v, { 1, 1 })
  end)

  it("views outlive their base, and are brought up to date inside no_grad", function()
    eq(tangent(function(a)
      local one, two
      do
        local base = a:clone()
        one, two = base[1], base[2]
      end
      collectgarbage()
      one:mul_(2)
      return two * 1
    end, vec(1, 2), vec(1, 1)), 1.0)
    -- d²/dx² x⁴ through a view of what was squared in place, first looked at where nothing records
    local function f(a)
      local base = a * 1
      local view = base:view(1)
      base:mul_(base)
      T.no_grad(function() return view + 1 end)
      return view * view
    end
    local x = vec(2)
    eq(tangent(function(a) return tangent(f, a, T.ones_like(a)) end, x, vec(1)), { 48 })
    eq(T.grad(function(a) return tangent(f, a, T.ones_like(a)):sum() end)(x), { 48 })
  end)
end)

describe("rules of T.custom", function()
  local function cube(jvp)
    return T.custom { name = "cube",
      forward = function(ctx, x)
        ctx:save(x)
        return x ^ 3
      end,
      backward = function(ctx, g) return 3 * ctx:saved() ^ 2 * g end,
      jvp = jvp }
  end

  it("say their own tangent", function()
    local times = 0
    local f = cube(function(ctx, t)
      times = times + 1
      return 30 * ctx:saved() ^ 2 * t
    end)
    eq(tangent(f, vec(2), vec(1)), { 120 })
    assert.equal(1, times)
    eq(T.grad(function(x) return f(x):sum() end)(vec(2)), { 12 })
    eq(tangent(function(a) return tangent(f, a, T.ones_like(a)) end, vec(2), vec(1)), { 120 })
    f(vec(2))
    assert.is_true(times >= 3)
  end)

  it("or have it from their backward, to any order", function()
    local f = cube()
    eq(tangent(f, vec(2), vec(1)), { 12 })
    eq(tangent(function(a) return tangent(f, a, T.ones_like(a)) end, vec(2), vec(1)), { 12 })
    eq(T.grad(function(a) return tangent(f, a, T.ones_like(a)):sum() end)(vec(2)), { 12 })
    eq(select(2, T.hvp(function(a) return f(a):sum() end, vec(2), vec(5))), { 60 })
    eq(tangent(T.grad(function(a) return f(a):sum() end), vec(2), vec(5)), { 60 })
  end)

  it("get nil for no tangent and give nil for zero", function()
    local got
    local f = T.custom { name = "two",
      forward = function(_, a, n, b) return a * n, b * 1, a:gt(0) end,
      backward = function(_, g, h) return g and g * 2, h end,
      jvp = function(_, ta, tb)
        got = { ta, tb }
        return ta and ta * 2, nil, nil
      end }
    local _, jv = T.jvp(function(a, b) return { f(a, 2, b) } end, { vec(1), vec(2) }, { vec(10), nil })
    eq(jv[1], { 20 })
    eq(jv[2], { 0 })
    assert.is_nil(jv[3])
    eq(got[1], { 10 })
    assert.is_nil(got[2])
  end)

  it("are errors that name them", function()
    local x = vec(2)
    local function with(jvp)
      return T.custom { name = "mine", forward = function(_, a) return a * 2 end,
        backward = function(_, g) return (g * 2):detach() end, jvp = jvp }
    end
    fails("rule mine has no jvp", T.jvp, with(), x, x)
    fails("returned wrong number of tangents: mine has 1 results, its jvp returned 2", T.jvp,
      with(function(_, t) return t, t end), x, x)
    fails("custom jvp rule returned non-tensor: an integer for result 1 of mine", T.jvp,
      with(function() return 3 end), x, x)
    fails("custom jvp rule of mine returned f64[] for result 1, which is f64[1]", T.jvp,
      with(function(_, t) return t:sum() end), x, x)
    fails("thrown", T.jvp, with(function() error("thrown") end), x, x)
    fails("jvp must be a function", T.custom, { forward = print, backward = print, jvp = 3 })
  end)

  it("inside and outside of vmap", function()
    local xs, vs = vec(1, 2, 3), vec(1, 10, 100)
    for _, jvp in ipairs { false, function(ctx, t) return 3 * ctx:saved() ^ 2 * t end } do
      local f = cube(jvp or nil)
      eq(T.vmap(function(v) return tangent(f, T.tensor(2.0, f64), v) end)(vs), { 12, 120, 1200 })
      eq(T.vmap(function(x, v) return tangent(f, x, v) end)(xs, vs), { 3, 120, 2700 })
      eq(tangent(T.vmap(f), xs, vs), { 3, 120, 2700 })
    end
  end)

  it("edited in place, and marked as not differentiable", function()
    local f = T.custom { name = "edit",
      forward = function(ctx, x)
        x:mul_(2)
        ctx:mark_dirty(x)
        local sign = x:sign()
        ctx:mark_non_differentiable(sign)
        return x, sign
      end,
      backward = function(_, g) return g * 2 end,
      jvp = function(_, t) return t * 2, t end }
    local _, jv = T.jvp(function(a)
      local b = a * 1
      local _, sign = f(b)
      return { b * b, sign * a:detach() }
    end, vec(3), vec(1))
    eq(jv[1], { 24 })
    eq(jv[2], { 0 })
  end)

  it("replaced gradients of built-in ops are what counts", function()
    T.override_gradient("relu", function(_, g) return g * 5 end)
    local ok, jv = pcall(tangent, T.relu, vec(1, -1), vec(1, 1))
    T.override_gradient("relu", nil)
    assert.is_true(ok, jv)
    eq(jv, { 5, 5 })
  end)
end)

describe("other transforms", function()
  it("vmap over tangents computes the primal once", function()
    local x, vs = T.randn({ 4 }, f64), T.randn({ 3, 4 }, f64)
    local function f(a) return a:softmax(-1) * a:cumsum(1) end
    local calls = 0
    local got = T.vmap(function(v)
      return tangent(function(a)
        calls = calls + 1
        return f(a)
      end, x, v)
    end)(vs)
    assert.equal(1, calls)
    for i = 1, 3 do eq(got[i], tangent(f, x, vs[i])) end
    local xs = T.randn({ 3, 4 }, f64)
    got = T.vmap(function(p, v) return tangent(f, p, v) end)(xs, vs)
    for i = 1, 3 do eq(got[i], tangent(f, xs[i], vs[i])) end
    got = tangent(T.vmap(f), xs, vs)
    for i = 1, 3 do eq(got[i], tangent(f, xs[i], vs[i])) end
    -- constants of the batch that an outer key tracks
    local w = T.randn({ 4 }, f64)
    local g = T.grad(function(p)
      return T.vmap(function(v) return tangent(function(a) return a * p:sin() end, x, v) end)(vs):sum()
    end)(w)
    eq(g, w:cos() * vs:sum(1))
  end)

  it("T.jit traces it, and runs as written inside of it", function()
    local function f(a) return (a:sin() * a):tanh():matmul(a) end
    local x, v = T.randn({ 5 }, f64), T.randn({ 5 }, f64)
    local compiled = T.jit(function(p, q) return tangent(f, p, q) end)
    for _ = 1, 3 do eq(compiled(x, v), tangent(f, x, v), 1e-12) end
    local inner = T.jit(f)
    inner(x)
    eq(tangent(inner, x, v), tangent(f, x, v), 1e-12)
    local trained = T.jit(function(p, q)
      local w = p * 1
      return T.grad(function(a) return tangent(f, a, q) end)(w)
    end)
    for _ = 1, 2 do eq(trained(x, v), T.grad(function(a) return tangent(f, a, v) end)(x), 1e-12) end
  end)

  it("checkpoint is passed through", function()
    local w = T.randn({ 4 }, f64):requires_grad_()
    local x, v = T.randn({ 4 }, f64), T.randn({ 4 }, f64)
    local function f(a) return T.checkpoint(function(b) return (b * w):sin() end, a):sum() end
    eq(tangent(f, x, v), ((x * w):cos() * w * v):sum())
    local _, hv = T.hvp(f, x, v)
    eq(hv, -(x * w):sin() * w * w * v)
    eq(tangent(T.grad(f), x, v), hv)
    tangent(f, x, v):backward()
    eq(w.grad, (v * (x * w):cos() - v * w * x * (x * w):sin()):detach())
  end)

  it("linearize computes the function once", function()
    local calls = 0
    local x, w = T.randn({ 4 }, f64), T.randn({ 4 }, f64)
    local function f(a, p)
      calls = calls + 1
      return { y = a:sin() * p.w, n = 3 }
    end
    local y, push = T.linearize(f, x, { w = w })
    eq(y.y, x:sin() * w)
    assert.equal(3, y.n)
    for _ = 1, 3 do
      local v, u = T.randn({ 4 }, f64), T.randn({ 4 }, f64)
      eq(push(v, { w = u }).y, x:cos() * w * v + x:sin() * u)
      eq(push(v).y, x:cos() * w * v)
      eq(push(nil, { w = u }).y, x:sin() * u)
    end
    eq(push().y, { 0, 0, 0, 0 })
    assert.equal(1, calls)
    fails("linearize: the tangent is f64[3]", push, T.randn({ 3 }, f64))
    fails("3 tangents for 2 arguments", push, nil, nil, x)
    eq(T.grad(function(v) return (push(v).y * v):sum() end)(x), 2 * x:cos() * w * x)
  end)

  it("Jacobians and Hessians by tangents are those by backward passes, in chunks, too", function()
    local x, p = T.randn({ 3, 2 }, f64), { w = T.randn({ 4 }, f64) }
    local calls = 0
    local function f(a, b)
      calls = calls + 1
      return { y = a:matmul(a:t()) * b.w[1], z = b.w:sin(), c = T.ones({ 2 }, f64) }
    end
    local jx, jp = T.jacobian(f, x, p, { mode = "reverse" })
    for _, chunk in ipairs { 100, 3, 1 } do
      T.debug.jacobian_chunk(chunk)
      calls = 0
      local kx, kp = T.jacobian(f, { mode = "forward" })(x, p)
      T.debug.jacobian_chunk(nil)
      assert.equal(math.ceil(10 / chunk), calls)
      for _, name in ipairs { "y", "z", "c" } do
        assert.same(jx[name]:shape(), kx[name]:shape())
        eq(kx[name], jx[name])
        eq(kp[name].w, jp[name].w)
      end
    end
    local function g(a) return (a:sin() * a:matmul(a:t()):sum()):sum() end
    eq(T.hessian(g, x, { mode = "forward" }), T.hessian(g, x))
    local h = T.hessian(function(a, b) return (a * b * b):sum() end, vec(1, 2), vec(3, 4), { mode = "forward" })
    eq(h[1][2], { 6, 0, 0, 8 })
    eq(h[2][2], { 2, 0, 0, 4 })
    local sum = T.grad(function(a)
      return T.jacobian(function(q) return q * q * a end, x, { mode = "forward" }):sum()
    end)
    eq(sum(x), 2 * x)
    fails('mode must be "forward" or "reverse", got "sideways"', T.jacobian, f, x, p, { mode = "sideways" })
    fails("unknown option 'mod'", T.jacobian, function(t) return t * 2 end, x, { mod = "forward" })
    fails("holds a floating tensor", T.jacobian, function(t) return t * 2 end, T.arange(3))
  end)

  it("graphs of tangents are made once for a kind of call", function()
    local x, v = T.randn({ 4, 4 }, f64), T.randn({ 4, 4 }, f64)
    local function f(a) return ((a * a:sin()):matmul(a):softmax(-1) * a:pow(3)):sum() end
    tangent(f, x, v)
    local before = T.debug.cache_stats("tangents")
    tangent(f, x, v)
    local after = T.debug.cache_stats("tangents")
    assert.equal(before.misses, after.misses)
    assert.is_true(after.hits > before.hits)
    fails('nil, "tangents" or "pointwise" expected', T.debug.cache_stats, "other")
  end)

  it("values and tangents that a limit of memory has evicted come back", function()
    local x, v = T.rand(10000) + 0.5, T.randn(10000)
    local function f(a)
      local kept, sum = {}, a * 0
      for i = 1, 100 do kept[i] = (a * (i / 100)):sin() end -- 8 MB with the tangents
      for i = 1, 100 do sum = sum + kept[i] * a end
      return sum
    end
    local y, jv = T.jvp(f, x, v)
    collectgarbage()
    collectgarbage()
    local _ <close> = T.memory_limit "4 MB"
    local again, jv_again = T.jvp(f, x, v)
    assert.is_true(y:equal(again) and jv:equal(jv_again))
  end)

  describe("pointwise ops and their tangents run in one pass", function()
    local unary = { "sin", "cos", "exp", "tanh", "sigmoid", "log", "sqrt", "relu", "gelu", "silu", "square", "neg",
      "abs", "rsqrt", "reciprocal", "expm1" }
    local functions = {
      mul = function(a) return a * a end,
      ["mul of two"] = function(a, b) return a * b end,
      ["div of two"] = function(a, b) return a / b end,
      ["sub of one"] = function(a, b) return a - b:detach() end,
      ["sub of two"] = function(a, b) return (a - b) * (b + a) end,
      ["second alone"] = function(a, b) return a:detach() / b * a:detach() - b end,
      ["large angles"] = function(a) return (a * 2e6):sin() + (a * 7e5):cos() end,
      ["number"] = function(a) return 3 / (2 * a + 1.5) - a end,
      ["0-d"] = function(a, b) return a * b:detach():sum() - b end,
      ["attribute"] = function(a) return a:gelu { approximate = "tanh" } + a:leaky_relu(0.3) end,
    }
    for _, e in ipairs { 0, 0.5, 1, 2, 3, 4, -1, -2.5 } do
      functions["power " .. e] = function(a) return (a - 1) ^ e end
    end
    for _, name in ipairs(unary) do functions[name] = function(a) return a[name](a) end end
    local function hits() return T.debug.cache_stats("pointwise").hits end

    -- Windows on every second element are no plain arrays: those calls go the general way.
    local function strided(t)
      local wide = T.zeros({ t:size(1), 2 }, { dtype = t:dtype() })
      wide:select(2, 1):copy_(t)
      return wide:select(2, 1)
    end

    for name, f in pairs(functions) do
      it("with the same bits as one by one: " .. name, function()
        for _, dtype in ipairs { "f32", "f64" } do
          for _, n in ipairs { 1, 5, 513, 1027, 40003 } do
            local a, b = T.rand({ n }, { dtype = dtype }) + 0.5, T.rand({ n }, { dtype = dtype }) + 0.5
            local va, vb = T.randn({ n }, { dtype = dtype }), T.randn({ n }, { dtype = dtype })
            T.jvp(f, { a, b }, { va, vb })
            local before = hits()
            local y, jv = T.jvp(f, { a, b }, { va, vb })
            assert.is_true(hits() > before, "no pass")
            before = hits()
            local want = f(a, b)
            assert.equal(before, hits(), "without a tangent")
            local _, one = T.jvp(f, { strided(a), strided(b) }, { strided(va), strided(vb) })
            local function same(p, q, what)
              assert.is_true(p:isnan():equal(q:isnan()) and p:nan_to_num(7):equal(q:nan_to_num(7)), dtype .. what .. n)
            end
            same(y, want, " value, ")
            same(jv, one, " tangent, ")
          end
        end
      end)
    end

    it("with those of the general way at the ends of a power's domain", function()
      local x = T.tensor({ 0, -0.0, 1, -1, 2, -2, 1 / 0, -1 / 0, 0 / 0, 1e-30, 1e30 }, { dtype = "f32" })
      for _, dtype in ipairs { "f32", "f64" } do
        for _, e in ipairs { 0, 0.5, 1, 2, 3, -1, 1e3, 1 / 0, 0 / 0 } do
          local a, v = x:to(dtype), T.ones(11, { dtype = dtype }) * 3
          local function f(b) return b ^ e end
          T.jvp(f, a, v)
          local _, jv = T.jvp(f, a, v)
          local _, one = T.jvp(f, strided(a), strided(v))
          assert.is_true(jv:isnan():equal(one:isnan()) and jv:nan_to_num(7):equal(one:nan_to_num(7)), dtype .. e)
        end
      end
    end)

    it("and large ones on several threads, with the same bits", function()
      local was = T.get_num_threads()
      T.set_num_threads(2)
      local x, v = T.rand(300001) + 0.5, T.randn(300001)
      local function f(a) return (a:sin() * a:exp()):lgamma() end
      local y, jv = T.jvp(f, x, v)
      T.set_num_threads(1)
      local again, jv1 = T.jvp(f, x, v)
      T.set_num_threads(was)
      assert.is_true(y:equal(again) and jv:equal(jv1))
    end)

    it("but not where somebody else records, watches or computes otherwise", function()
      local x, v = T.rand({ 4, 4 }, f64) + 0.5, T.randn({ 4, 4 }, f64)
      local function f(a) return a:sin() * a end
      local _, want = T.jvp(f, x, v)
      local w = (x * 1):requires_grad_()
      local _, jv = T.jvp(f, w, v)
      jv:sum():backward()
      eq(w.grad, T.grad(function(a) return (v * (a:cos() * a + a:sin())):sum() end, x))
      eq(T.vmap(function(a, b) return tangent(f, a, b) end)(x, v), want)
      eq(T.jit(function(a, b) return tangent(f, a, b) end)(x, v), want)
      eq(tangent(function(a) return T.checkpoint(f, a) end, x, v), want)
      eq(tangent(function(a)
        local b = a * 1
        b:sin_()
        b:mul_(a)
        return b
      end, x, v), want)
      eq(tangent(function(a)
        local b = a * 1
        local top = b[1]
        b:sin_()
        return top * a[1]
      end, x, v), want[1])
      T.autocast({ dtype = "bf16" }, function() eq(tangent(function(a) return a:sin() * a end, x, v), want) end)
    end)
  end)

  it("hvp is the Hessian times a vector, for several arguments, and for parameters", function()
    local x, v = T.randn({ 5 }, f64), T.randn({ 5 }, f64)
    local function f(a) return (a:softmax(-1) * a:exp()):sum() + a:norm() end
    local y, hv = T.hvp(f, x, v)
    eq(y, f(x))
    eq(hv, T.hessian(f)(x):matmul(v), 1e-9)
    assert.is_false(hv.requires_grad)
  end)
end)

describe("networks", function()
  local function agree(f, x)
    local v = T.randn(x:shape(), { dtype = x:dtype() })
    local y, jv = T.jvp(f, x, v)
    local u = T.randn(y:shape(), { dtype = x:dtype() })
    local _, pull = T.vjp(f, x)
    local a, b = (jv * u):sum():item(), (pull(u) * v):sum():item()
    assert.is_true(math.abs(a - b) <= 1e-3 * (1 + math.abs(a)), a .. " and " .. b)
  end
  local kinds = {
    mlp = function()
      return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), T.randn(3, 8)
    end,
    conv = function()
      return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3, { stride = 2 }), nn.Flatten()), T.randn(2, 3, 12, 12)
    end,
    transformer = function() return nn.TransformerEncoderLayer(8, 2, 16, { dropout = 0.0 }), T.randn(2, 5, 8) end,
  }
  for _, k in ipairs { "LSTM", "GRU", "RNN" } do
    kinds[k] = function()
      local m = nn[k](5, 6, { num_layers = 2, batch_first = true, bidirectional = true })
      return function(a) return (m(a)) end, T.randn(2, 4, 5)
    end
  end
  for name, make in pairs(kinds) do
    it("forward and reverse agree: " .. name, function()
      local f, x = make()
      agree(function(a) return f(a) end, x)
    end)
  end

  it("by their parameters, through functional_call", function()
    local net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    local x, params, vs = T.randn(5, 4), {}, {}
    for name, p in net:named_parameters() do params[name], vs[name] = p:detach(), T.randn_like(p:detach()) end
    local function f(p) return nn.utils.functional_call(net, p, x):sum() end
    local jv = tangent(f, { params }, { vs })
    local g, want = T.grad(f)(params), 0
    for name, t in pairs(g) do want = want + (t * vs[name]):sum():item() end
    eq(jv:double(), want, 1e-4)
  end)

  it("dropout draws the same numbers for value and tangent", function()
    local x = T.randn { 1000 }
    local y, jv = T.jvp(function(a) return nn.F.dropout(a, 0.5) end, x, x)
    eq(jv, y)
  end)
end)

describe("forward mode leaves nothing behind", function()
  it("no key, no tensor, whatever fails", function()
    local live = require "spec.support.live"
    local x, v = T.randn({ 6 }, f64), T.randn({ 6 }, f64)
    live.flat(T, function()
      for k = 1, 6 do
        local n = 0
        pcall(T.jvp, function(a)
          for _ = 1, 6 do
            n = n + 1
            if n == k then error("here") end
            a = a:sin() * a
          end
          return a
        end, x, v)
      end
      tangent(function(a) return tangent(function(b) return (b * a):sin() end, a, v) end, x, v)
    end)
    assert.same({}, T.grad_keys())
  end)
end)

describe("cross_entropy and its tangent run in one pass", function()
  -- Against the same by other ops, in every option; and with the same bits where a trace or a limit of memory looks at
  -- single ops.
  it("right in every option, with the bits of the general way", function()
    local count = 0
    for _, dtype in ipairs { "f32", "f64" } do
      for _, shape in ipairs { { 7, 5 }, { 300, 3 }, { 2, 600 }, { 4 } } do
        local x, v = T.randn(shape, { dtype = dtype }), T.randn(shape, { dtype = dtype })
        local classes = shape[#shape]
        local rows = #shape > 1 and { shape[1] } or {}
        local y = T.randint(1, classes, rows)
        for _, reduction in ipairs { "mean", "sum", "none" } do
          for _, smooth in ipairs { 0, 0.25 } do
            for _, weight in ipairs { false, T.rand(classes, { dtype = dtype }) + 0.5 } do
              local o = { weight = weight or nil, reduction = reduction, label_smoothing = smooth, ignore_index = 2 }
              local function f(a) return T.nn.F.cross_entropy(a, y, o) end
              local function plain(a)
                local lp, keep = a:log_softmax(-1), y:ne(2):to(dtype)
                local w = weight or T.ones(classes, { dtype = dtype })
                local at = y:unsqueeze(-1)
                local wt = w:index_select(1, y:reshape(-1)):reshape(rows) * keep
                local hit, all = lp:gather(#shape, at):squeeze(-1), (lp * w):sum(-1)
                local l = -(1 - smooth) * wt * hit - smooth / classes * all * keep
                return reduction == "none" and l or reduction == "sum" and l:sum() or l:sum() / wt:sum()
              end
              local value, d = T.jvp(f, x, v)
              local want, slope = T.jvp(plain, x, v)
              if value:isfinite():all():item() then
                local tol = dtype == "f64" and 1e-11 or 2e-5
                eq(value, want, tol)
                eq(d, slope, tol * 10)
              end
              local function same(a, b) assert.is_true(T.equal(a:nan_to_num(7), b:nan_to_num(7))) end
              same(f(x), value)
              same(d, select(2, T.jvp(T.jit(f), x, v)))
              same(d, T.jit(function(a, b) return select(2, T.jvp(f, a, b)) end)(x, v))
              do
                local _ <close> = T.memory_limit "1 GB"
                same(d, select(2, T.jvp(f, x, v)))
              end
              local _, each = T.vmap(function(b) return T.jvp(f, x, b) end)(T.stack({ v, v * 2 }, 1))
              eq(each[2]:nan_to_num(7), (d * 2):nan_to_num(7), 1e-4)
              count = count + 1
            end
          end
        end
      end
    end
    assert.equal(96, count)
  end)

  it("refuses by the op's own name", function()
    local y = T.tensor({ 9 }, { dtype = "i64" })
    local ok, why = pcall(T.jvp, function(a) return T.nn.F.cross_entropy(a, y) end, T.zeros(1, 3), T.ones(1, 3))
    assert.is_false(ok)
    assert.truthy(why:find "cross_entropy: %a+ 9 ", why) -- "target 9"; on a device "index 9"
  end)
end)

describe("what T.jvp gives", function()
  it("is not the tangent that it was given, nor a view of it", function()
    for _, f in ipairs { function(x) return x end, function(x) return x[1] end, function(x) return x:view(4) end } do
      local v = T.ones(2, 2)
      local _, jv = T.jvp(f, T.zeros(2, 2), v)
      jv:mul_(5)
      assert.same({ { 1, 1 }, { 1, 1 } }, v:totable())
    end
  end)
end)

describe("T.jvp while the collector runs", function()
  after_each(function() T.core.debug_collect "off" end)

  it("holds results that others track until both have an object", function()
    local x, v = T.rand(16) + 0.5, T.ones(16)
    local gradient = T.grad(function(a) return a:exp():sum() end)
    for n = 1, 40 do
      T.core.debug_collect(("%d+%d"):format(7, n % 7 + 1))
      local y, d = T.jvp(gradient, x, v)
      T.core.debug_collect "off"
      eq(y, x:exp(), 1e-6)
      eq(d, x:exp(), 1e-6)
    end
  end)
end)
