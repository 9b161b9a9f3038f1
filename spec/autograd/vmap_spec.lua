-- SPDX-License-Identifier: MIT
-- T.vmap: mapped dimensions, structures, nesting with itself and with gradients, randomness, what is refused; batched
-- backward passes. Every op under it: spec/ops/batch_spec.lua.

local T = require "perilune"

local f64 = { dtype = "f64" }

local function fails(text, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok)
  assert.is_truthy(tostring(err):find(text, 1, true), tostring(err))
end
local function near(want, got)
  assert.same(want:shape(), got:shape())
  assert.is_true((want - got):abs():max():item() < 1e-10)
end

describe("vmap", function()
  it("maps the first dimension of every tensor", function()
    local x, y = T.randn({ 5, 3 }, f64), T.randn({ 5, 3 }, f64)
    near((x * y):sum(2), T.vmap(T.dot)(x, y))
    near(x:sum(2), T.vmap(function(row, factor) return row:sum() * factor end)(x, 1))
  end)

  it("maps the dimensions asked for", function()
    local x, w = T.randn({ 3, 5 }, f64), T.randn({ 3, 4 }, f64)
    local f = T.vmap(function(a, b) return a:matmul(b) end, { in_dims = { 2, false } })
    near(x:t():matmul(w), f(x, w))
    near(x:t():matmul(w), T.vmap(function(a, b) return a:matmul(b) end, { in_dims = { -1 } })(x, w))
    local g = T.vmap(function(a) return a * 2, a:sum() end, { in_dims = 2, out_dims = { 2, 1 } })
    local double, sum = g(x)
    near(x * 2, double)
    near(x:sum(1), sum)
    near(x:t() * 2, (T.vmap(function(a) return a * 2 end, { in_dims = 2, out_dims = -2 })(x)))
  end)

  it("takes tables of tensors apart and puts them together", function()
    local p = { w = T.randn({ 4, 3 }, f64), deep = { b = T.randn({ 4 }, f64) } }
    local x = T.randn({ 3 }, f64)
    local f = function(q, v) return { y = { q.w:dot(v) + q.deep.b }, name = "n" } end
    local got = T.vmap(f, { in_dims = { 1, false } })(p, x)
    near(p.w:matmul(x) + p.deep.b, got.y[1])
    assert.equal("n", got.name)
    local part = T.vmap(function(q, v) return q.w:dot(v) + q.deep.b:sum() end, { in_dims = { { w = 1 }, false } })(p, x)
    near(p.w:matmul(x) + p.deep.b:sum(), part)
  end)

  it("repeats what is the same for all", function()
    local c = T.randn({ 2 }, f64)
    near(T.stack({ c, c, c }, 1), T.vmap(function() return c end)(T.ones(3)))
    assert.same({ 3, 2 }, T.vmap(function() return T.zeros(2) end)(T.ones(3)):shape())
  end)

  it("nests", function()
    local x, y = T.randn({ 3, 2 }, f64), T.randn({ 4, 2 }, f64)
    local all = T.vmap(T.vmap(T.dot, { in_dims = { false, 1 } }), { in_dims = { 1, false } })
    near(x:matmul(y:t()), all(x, y))
    local cube = T.randn({ 2, 3, 4 }, f64)
    near(cube:sin(), T.vmap(T.vmap(T.vmap(function(a) return a:sin() end)))(cube))
    local rows = T.vmap(function(r) return r:sum() end)
    near(cube:sum { dim = { 2, 3 } }, T.vmap(function(m) return rows(m):sum() end)(cube))
  end)

  it("goes in pieces", function()
    local x = T.randn({ 7, 3 }, f64)
    local sizes = {}
    local f = T.vmap(function(a)
      sizes[#sizes + 1] = 1
      return { a:softmax(1) }, a:sum()
    end, { chunk_size = 3, out_dims = { 2, 1 } })
    local soft, sum = f(x)
    assert.equal(3, #sizes)
    near(x:softmax(-1):t(), soft[1])
    near(x:sum(2), sum)
  end)

  it("gives gradients for each sample", function()
    local w, x, y = T.randn({ 4, 3 }, f64), T.randn({ 5, 3 }, f64), T.randn({ 5, 4 }, f64)
    local function loss(p, a, t) return ((p:matmul(a):tanh() - t) ^ 2):sum() end
    local each = T.vmap(T.grad(loss), { in_dims = { false, 1, 1 } })
    local got, gx = each(w, x, y)
    for i = 1, 5 do
      local one, onex = T.grad(loss)(w, x[i], y[i])
      near(one, got[i])
      near(onex, gx[i])
    end
    near(T.grad(function(p) return T.vmap(loss, { in_dims = { false, 1, 1 } })(p, x, y):sum() end)(w), got:sum(1))
  end)

  it("is seen by an outer gradient, also through inner ones", function()
    local x = T.randn({ 3, 4 }, f64)
    local function penalty(a) -- sum over rows of |grad of sum sin|^2
      return (T.vmap(T.grad(function(r) return r:sin():sum() end))(a) ^ 2):sum()
    end
    near(-2 * x:cos() * x:sin(), (T.grad(penalty)(x)))
    local leaf = x:clone():requires_grad_()
    penalty(leaf):backward()
    near(-2 * x:cos() * x:sin(), leaf.grad)
    assert(T.gradcheck(function(a) return T.vmap(function(r) return r:softmax(1):cumsum(1) end)(a) end, { x }))
    assert(T.gradgradcheck(function(a) return T.vmap(function(r) return r:tanh():prod() end)(a) end, { x }))
    local v = T.vmap(function(r) return select(2, T.jvp(function(q) return q ^ 3 end, r, T.ones_like(r))) end)(x)
    near(3 * x ^ 2, v)
    near(T.diag_embed(-(x:sin())), T.vmap(T.hessian(function(r) return r:sin():sum() end))(x))
    near(T.diag_embed(x:cos()), T.vmap(T.jacobian(function(r) return r:sin() end))(x))
  end)

  it("takes rules written in Lua, recorded inside and outside", function()
    local cube = T.custom { name = "cube", forward = function(ctx, a)
      ctx:save(a)
      return a * a * a
    end, backward = function(ctx, g)
      return g * ctx:saved() ^ 2 * 3
    end }
    local x = T.randn({ 3, 2 }, f64)
    near(3 * x ^ 2, (T.vmap(T.grad(function(r) return cube(r):sum() end))(x)))
    near(3 * x ^ 2, (T.grad(function(a) return T.vmap(function(r) return cube(r):sum() end)(a):sum() end)(x)))
    local leaf = x:clone():requires_grad_()
    local y = T.vmap(function(r) return cube(r) * 2 end)(leaf)
    collectgarbage()
    collectgarbage()
    y:sum():backward()
    near(6 * x ^ 2, leaf.grad)
    near(3 * x ^ 2, (T.vmap(T.grad(function(r) return T.checkpoint(function(q) return cube(q) end, r):sum() end))(x)))
  end)

  it("rules written in Lua have gradients for what is the same for all, whoever takes them", function()
    local rule = T.custom { name = "times", forward = function(ctx, a, b)
      ctx:save(a, b)
      return a * b
    end, backward = function(ctx, g)
      local a, b = ctx:saved()
      return g * b, g * a
    end }
    local function plain(a, b) return a * b end
    local x, w = T.randn({ 4, 3 }, f64), T.randn({ 3 }, f64)
    -- of the shared one only, of both; by keys outside of the batch, inside, on both sides, and between two
    local function takes(f)
      local out = {}
      local function add(t) out[#out + 1] = t end
      for _, leaf in ipairs { x:clone(), x:clone():requires_grad_() } do
        local v = w:clone():requires_grad_()
        T.vmap(function(r) return f(r, v):sin() end)(leaf):sum():backward()
        add(v.grad)
        add(leaf.grad or x)
        v.grad = nil
        T.vmap(T.vmap(function(e, u) return f(e, u) * u end))(leaf, v:expand(4, 3)):sum():backward()
        add(v.grad)
        v.grad = nil
        local inner = T.vmap(function(r)
          return T.grad(function(u) return (f(r, u):square() * v):sum() end)(v) + f(r, v)
        end)(leaf)
        inner:sin():sum():backward()
        add(inner:detach())
        add(v.grad)
        v.grad = nil
        T.vmap(function(r) return T.vmap(function(e) return f(e, v:sum()) end)(r) end)(leaf):sum():backward()
        add(v.grad)
        v.grad = nil
        T.vmap(function(r) return T.vmap(function(u) return f(r:sum(), u) end)(v) end)(leaf):square():sum():backward()
        add(v.grad)
      end
      add((T.grad(function(u) return T.vmap(function(r) return f(r, u) end)(x):square():sum() end)(w)))
      add((T.vmap(T.grad(function(u, r) return f(r, u):square():sum() end), { in_dims = { false, 1 } })(w, x)))
      add((T.jacobian(function(u) return T.vmap(function(r) return f(r, u):sum() end)(x) end, w)))
      add((T.hessian(function(u) return T.vmap(function(r) return f(f(r, u), u):sum() end)(x):sum() end, w)))
      return out
    end
    local function save(ctx, a, b)
      ctx:save(a, b)
      return a * b
    end
    local nested = T.custom { name = "nested", forward = save, backward = function(ctx, g)
      return select(2, T.vjp(plain, ctx:saved()))(g)
    end, jvp = function(ctx, s, t)
      local a, b = ctx:saved()
      return (select(2, T.jvp(plain, { a, b }, { s or T.zeros_like(a), t or T.zeros_like(b) })))
    end }
    local want = takes(plain)
    for _, r in ipairs { rule, nested } do
      local got = takes(r)
      assert.equal(#want, #got)
      for i, t in ipairs(want) do near(t, got[i]) end
      for _, v in ipairs { w, w:clone():requires_grad_() } do
        local function each(f)
          return (select(2, T.jvp(function(a) return T.vmap(function(e) return f(e, v) end)(a) end, x, x:cos())))
        end
        near(each(plain):detach(), each(r):detach())
      end
    end
  end)

  it("keeps marks of rules that are differentiated from outside", function()
    local f = T.custom { name = "halves",
      forward = function(ctx, x)
        local mask = x:gt(0):float()
        ctx:mark_non_differentiable(mask)
        return x * 2, mask
      end,
      backward = function(_, g, none)
        assert(none == nil or none:abs():sum():item() == 0)
        return g * 2
      end }
    local x = T.randn(3, 2):requires_grad_()
    local a, b = T.vmap(function(r)
      local y, m = f(r)
      return y, m
    end)(x)
    assert.is_true(a.requires_grad)
    assert.is_false(b.requires_grad)
    a:sum():backward()
    assert.is_true(x.grad:equal(T.full({ 3, 2 }, 2.0)))
  end)

  it("works inside of traced functions and graphs, with the bits of the script", function()
    local w, W, x = T.randn(6):requires_grad_(), T.randn(3, 6), T.randn(4, 6)
    local different = { randomness = "different" }
    local functions = {
      function(t) return T.vmap(function(r) return (r * w):sum() end)(t) end,
      function(t) return T.vmap(function(r) return (r:unsqueeze(1) * t):sum(1) end)(W) end,
      function(t) return T.vmap(T.grad(function(r) return (r * w):sin():sum() end))(t) end,
      function(t) return T.vmap(T.vmap(function(a) return a:exp() end))(t) end,
      function(t) return T.vmap(function(r) return r:cumsum(1):sort(1) end)(t) end,
      function(t) return T.vmap(function(r) return W:matmul(r):softmax(-1) end, { chunk_size = 3 })(t) end,
      function(t) return T.vmap(function(r) return T.nn.F.dropout(r, 0.5) * T.rand(6) end, different)(t) end,
      function(t) return T.vmap(function(r) return r * T.rand(6) end, { randomness = "same" })(t) end,
      function(t)
        return T.vmap(function(r)
          local y = r * 2
          y:add_(r):mul_(3)
          return y[2] + y:narrow(1, 2, 3)
        end)(t)
      end,
      function(t) return T.jacobian(function(r) return (r * w):sin() end, t[1]) end,
      function(t) return T.hessian(function(r) return (r * w):sin():sum() end, t[1]) end,
    }
    for i, f in ipairs(functions) do
      T.manual_seed(3)
      local want = { f(x) }
      local jitted = T.jit(f)
      for _ = 1, 2 do
        T.manual_seed(3)
        for k, t in ipairs { jitted(x) } do assert.is_true(t:equal(want[k]), "function " .. i) end
      end
    end
    local g = T.graph()
    local s = g:input("x", { 4, 6 })
    g:outputs { T.vmap(function(r) return r:softmax(1) end)(s) }
    assert.is_true(g:run({ x = x })[1]:equal(x:softmax(2)))
    fails("dropout is to draw the same numbers for all elements, which a graph cannot say", T.jit(function(t)
      return T.vmap(function(r) return T.nn.F.dropout(r, 0.5) end, { randomness = "same" })(t)
    end), x)
  end)

  it("trains inside of a traced step", function()
    local function run(wrap)
      T.manual_seed(1)
      local net = T.nn.Linear(6, 2)
      local opt = T.optim.SGD(net:parameters(), { lr = 0.1 })
      local step = wrap(function(x)
        opt:zero_grad()
        local loss = T.vmap(function(r) return net(r):pow(2):sum() end)(x):mean()
        loss:backward()
        opt:step()
        return loss
      end)
      for i = 1, 3 do step(T.ones(4, 6) * i) end
      return net.weight:detach()
    end
    assert.is_true(run(function(f) return f end):equal(run(T.jit)))
  end)

  it("takes numbers as tensors of one, with gradients", function()
    local x = T.tensor({ 0.5, 2, -1 }, f64)
    local one = T.ones({ 1 }, { dtype = "i64" })
    for name, f in pairs {
      max = function(v) return (v:max(1)) end, min = function(v) return (v:min(1)) end,
      median = function(v) return (v:median(1)) end, mode = function(v) return (v:mode(1)) end,
      kthvalue = function(v) return (v:kthvalue(1)) end, topk = function(v) return (v:topk(1)) end,
      sort = function(v) return (v:sort(1)) end, cummax = function(v) return (v:cummax(1)) end,
      cummin = function(v) return (v:cummin(1)) end, cumsum = function(v) return v:cumsum(1) end,
      cumprod = function(v) return v:cumprod(1) end, logcumsumexp = function(v) return v:logcumsumexp(1) end,
      softmax = function(v) return v:softmax(1) * v end, amax = function(v) return v:amax(1) end,
      prod = function(v) return v:prod(1) end, sum = function(v) return v:sum(1) end,
      gather = function(v) return v:gather(one:reshape {}, { dim = 1 }) end,
      scatter = function(v) return v:scatter(one:reshape {}, 3.0, { dim = 1 }) + v end,
      scatter_reduce = function(v) return v:scatter_reduce(one:reshape {}, v * 2, { dim = 1, reduce = "amax" }) end,
      index_select = function(v) return v:index_select(1, one) end,
      index_add = function(v) return v:index_add(1, one, v * 2) end,
      flip = function(v) return v:flip(1) end, unfold = function(v) return v:unfold(1, 1, 1) end,
    } do
      local want, slope = {}, T.grad(function(v) return f(v):sum() end)
      local ok, why = pcall(function()
        for i = 1, 3 do want[i] = f(x[i]) end
        near(T.stack(want, 1), (T.vmap(f)(x)))
        for i = 1, 3 do want[i] = slope(x[i]) end
        near(T.stack(want, 1), (T.vmap(slope)(x)))
      end)
      assert(ok, name .. ": " .. tostring(why))
    end
  end)

  it("puts what differs into a copy of what is shared", function()
    local x, src = T.randn({ 2, 3 }, f64), T.randn({ 4, 3 }, f64)
    local function each(f) return T.stack({ f(src[1]), f(src[2]), f(src[3]), f(src[4]) }, 1) end
    for name, f in pairs {
      select_scatter = function(v) return T.select_scatter(x, v, 1, 2) end,
      slice_scatter = function(v) return T.slice_scatter(x, v:unsqueeze(1), 1, 1, 1) end,
      diagonal_scatter = function(v) return T.diagonal_scatter(x:t():matmul(x), v) end,
      ["cat with nothing"] = function(v) return T.cat({ x, v:unsqueeze(1), T.zeros({ 0 }, f64) }, 1) end,
      masked_fill = function(v) return x:masked_fill(x:gt(0), v[2]) end,
    } do
      local ok, got = pcall(T.vmap(f), src)
      assert(ok, name .. ": " .. tostring(got))
      near(each(f), got)
      near(each(f), T.jit(T.vmap(f))(src))
      local slope = T.grad(function(v) return (f(v) * T.arange(f(v):numel()):to("f64"):view(f(v):shape())):sum() end)
      near(each(slope), T.vmap(slope)(src))
    end
  end)

  it("takes numbers for rows of one where ops with indices do", function()
    local i64 = { dtype = "i64" }
    local shapes = { {}, { 2 }, { 2, 3 } }
    local ops = {
      gather = function(x, i) return x:gather(1, i) end,
      take_along_dim = function(x, i) return x:take_along_dim(i, 1) end,
      index_select = function(x, i) return x:index_select(1, i) end,
      index_fill = function(x, i, s) return x:index_fill(1, i, s) end,
      scatter = function(x, i, s) return x:scatter(1, i, s) end,
      scatter_add = function(x, i, s) return x:scatter_add(1, i, s) end,
      scatter_reduce = function(x, i, s) return x:scatter_reduce(1, i, s, "prod") end,
    }
    local function both(f, a, b) return { f(table.unpack(a)), f(table.unpack(b)) } end
    local ran = 0
    for name, f in pairs(ops) do
      for k = 0, 26 do
        local x, s = T.randn(shapes[k % 3 + 1], f64), T.randn(shapes[k // 3 % 3 + 1], f64)
        local i = T.ones(({ {}, { 1 }, { 1, 2 } })[k // 9 + 1], i64)
        local function slope(a, c) return T.grad(function(p, q) return (f(p, i, q) * 3):sum() end)(a, c or s) end
        if pcall(f, x, i, s) then
          ran = ran + 1
          local what = ("%s of %s, %s, %s"):format(name, x:describe(), i:describe(), s:describe())
          local function same(want, got) assert(want[1]:allclose(got[1]) and want[2]:allclose(got[2]), what) end
          local xs, ss, shared = T.stack { x, x * 2 }, T.stack { s, s * 3 }, { false, false }
          same(both(f, { x, i, s }, { x * 2, i, s * 3 }), T.vmap(f, { in_dims = { 1, false, 1 } })(xs, i, ss))
          same(both(f, { x, i, s }, { x * 2, i, s }), T.vmap(f, { in_dims = { 1, table.unpack(shared) } })(xs, i, s))
          same(both(slope, { x }, { x * 2 }), (T.vmap(slope)(xs)))
          if f(x, i, s):allclose(f(x, i, s * 3)) then goto next end -- it takes no source
          same(both(f, { x, i, s }, { x, i, s * 3 }), T.vmap(f, { in_dims = { false, false, 1 } })(x, i, ss))
          ::next::
        end
      end
    end
    assert.is_true(ran > 60, ran .. " calls")
  end)

  it("works in place on what differs, not on what is shared", function()
    local x = T.randn({ 3, 2 }, f64)
    near(x * 2 + 1, (T.vmap(function(r)
      local c = r:clone()
      c:mul_(2)
      c[1] = c[1] + 1
      c[2]:add_(1)
      return c
    end)(x)))
    near(T.zeros({ 3, 2 }, f64), (T.vmap(function(r) return r:clone():zero_() end)(x)))
    near(T.full({ 3, 2 }, 7, f64), (T.vmap(function(r) return r:clone():fill_(7) end)(x)))
    near(x, (T.vmap(function(r) return T.zeros_like(r):add(r) end)(x)))
    near(T.vmap(function(r)
      local z = T.zeros_like(r)
      z[1] = r[2]
      return z:add_(r)
    end)(x), T.stack({ x[{ {}, 1 }] + x[{ {}, 2 }], x[{ {}, 2 }] }, 2))
    near(x:unsqueeze(2):expand(3, 2, 2) * 1, (T.vmap(function(r)
      return T.vmap(function() return T.zeros_like(r):add_(r) end)(T.ones(2))
    end)(x)))
    fails("is the same for all elements", T.vmap(function(r) return T.zeros({ 2 }, f64):add_(r) end), x)
    fails("is the same for all elements", T.vmap(function(r)
      local z = T.zeros({ 2 }, f64)
      z[1] = r[1]
      return z
    end), x)
    -- gradients taken inside are exact, too
    near(8 * x, (T.vmap(T.grad(function(r)
      local c = r * 1
      c:mul_(r):mul_(2):mul_(2)
      return c:sum()
    end))(x)))
    -- the gradient around it is exact
    near(T.full({ 3, 2 }, 2, f64), (T.grad(function(a)
      return T.vmap(function(r)
        local c = r + 0
        c:mul_(2)
        return c
      end)(a):sum()
    end)(x)))
  end)

  it("follows writes through views, for keys inside, outside and between", function()
    local x, m = T.randn({ 3, 4 }, f64), T.randn({ 2, 3, 4 }, f64)
    local function f(r)
      local y = T.zeros_like(r)
      local before = y:view(2, 2)
      y[1] = r:sum()
      y[{ { 2, 3 } }]:copy_(r[{ { 1, 2 } }]):mul_(r[{ { 2, 3 } }])
      y:view(2, 2):t():exp_()
      before[2]:mul_(y[1]:clone())
      return (y * y * r):sum() + before:sin():sum()
    end
    local function each(g, a)
      local rows = {}
      for i = 1, a:size(1) do rows[i] = g(a[i]) end
      return T.stack(rows, 1)
    end
    local function hessian(r) return T.hessian(f, r) end
    local function tangent(r) return (select(2, T.jvp(f, r, r:cos()))) end
    for _, g in ipairs { f, T.grad(f), hessian, tangent, T.grad(tangent) } do
      near(each(g, x), T.vmap(g)(x))
      near(each(g, x), T.jit(T.vmap(g))(x))
      near(each(g, x), T.vmap(g, { in_dims = 2 })(x:t():contiguous()))
      near(each(function(rows) return each(g, rows) end, m), T.vmap(T.vmap(g))(m))
    end
    near(each(T.grad(f), x), (T.grad(function(a) return T.vmap(f)(a):sum() end)(x)))
    local function between(rows) return T.grad(function(a) return T.vmap(T.grad(f))(a):sin():sum() end)(rows) end
    near(each(between, m), T.vmap(between)(m))
    -- a view of what has gaps in memory
    local function written(r) return T.grad(function(a)
      a:view(2, 2)[1]:mul_(2)
      return a:sum()
    end)(r) end
    fails("has gaps in memory", T.vmap(written, { in_dims = 2 }), x:t():contiguous())
  end)

  it("keeps running statistics of each element, not of all in one", function()
    local function f(v, mean, var) return T.nn.F.batch_norm(v, mean, var, nil, nil, true, 0.1) end
    local x = T.randn({ 3, 5, 2 }, f64)
    local mean, var = T.zeros({ 3, 2 }, f64), T.ones({ 3, 2 }, f64)
    local got_mean, got_var = mean:clone(), var:clone()
    local want = {}
    for i = 1, 3 do want[i] = f(x[i], mean[i], var[i]) end
    near(T.stack(want, 1), T.vmap(f)(x, got_mean, got_var))
    near(mean, got_mean)
    near(var, got_var)
    near(T.stack(want, 1), T.jit(T.vmap(f))(x, got_mean, got_var))
    T.vmap(f, { in_dims = { false, 1, 1 } })(x[2], got_mean, got_var) -- the same batch for all
    for i = 1, 3 do
      f(x[i], mean[i], var[i])
      f(x[2], mean[i], var[i])
    end
    near(mean, got_mean)
    near(var, got_var)
    fails("is the same for all elements", T.vmap(f, { in_dims = { 1, false, false } }), x, mean[1], var[1])
    fails("is the same for all elements", T.vmap(T.nn.BatchNorm1d(2):double()), x)
    local cache, at = T.zeros(3, 1, 1, 4, 2), T.tensor({ 2 }, { dtype = "i64" })
    T.vmap(function(c, s) return T.cache_write_(c, s, at) end)(cache, T.ones(3, 1, 1, 1, 2))
    assert.equal(6, cache:sum():item())
  end)

  it("draws random numbers as asked", function()
    local x = T.ones(4, 3)
    for _, draw in ipairs {
      function(r) return T.randn(3) * r end,
      function(r) return T.nn.F.dropout(r, 0.5, { training = true }) end,
      function(r) return (r * 0.5):bernoulli() end,
    } do
      fails('randomness="different" or "same"', T.vmap(draw), x)
      local same = T.vmap(draw, { randomness = "same" })(x)
      for i = 2, 4 do assert.is_true(same[1]:equal(same[i])) end
      T.manual_seed(3)
      local one = draw(x[1])
      T.manual_seed(3)
      assert.is_true(one:equal(T.vmap(draw, { randomness = "same" })(x)[2]))
    end
    T.manual_seed(5)
    local different = T.vmap(function(r) return T.randn(3) * r end, { randomness = "different" })(x)
    assert.is_false(different[1]:equal(different[2]))
    fails('randomness="different"', T.vmap(function(r) return r:clone():normal_(0, 1) end), x)
    local filled = T.vmap(function(r) return r:clone():normal_(0, 1) end, { randomness = "different" })(x)
    assert.is_false(filled[1]:equal(filled[2]))
    fails("the same for all elements", T.vmap(function() return T.zeros(3):normal_(0, 1) end,
      { randomness = "different" }), x)
    local nested = T.vmap(T.vmap(function(r) return T.rand(2) + r end, { randomness = "different" }),
      { randomness = "different" })(T.zeros(3, 4))
    assert.same({ 3, 4, 2 }, nested:shape())
    assert.is_false(nested[1]:equal(nested[2]))
  end)

  it("does not tell values", function()
    local x = T.randn(3, 2)
    for _, peek in ipairs {
      function(r) return r[1]:item() end, function(r) return r:get(1) end, function(r) return r:totable() end,
      function(r) return r[1] < 2 end, function(r) return 1 <= r[1] end, function(r) return r:to_string() end,
      function(r) return T.tensor(r) end,
      function(r) return T.tensor { r[1] } end, function(r) return r:equal(r) end,
    } do
      fails("stands for many tensors inside vmap", T.vmap(peek), x)
    end
    T.vmap(function(r)
      assert.same({ 2 }, r:shape())
      assert.equal(2, #r)
      assert.is_truthy(tostring(r):find("f32[2] for each of 3", 1, true), tostring(r))
      return r
    end)(x)
  end)

  it("names what is wrong", function()
    local x = T.randn(3, 2)
    fails("a function expected", T.vmap, 3)
    fails("did you mean 'in_dims'", T.vmap, T.sin, { in_dim = 1 })
    fails("in_dims must be a dimension", T.vmap, T.sin, { in_dims = "first" })
    fails('randomness must be "error"', T.vmap, T.sin, { randomness = "none" })
    fails("chunk_size must be", T.vmap, T.sin, { chunk_size = 0 })
    fails("no tensor is mapped", T.vmap(T.sin, { in_dims = false }), x)
    fails("no tensor is mapped", T.vmap(function() end), 3)
    fails("in_dims is 3; f32[3,2] has dimensions 1 to 2", T.vmap(T.sin, { in_dims = 3 }), x)
    fails("in_dims is 0", T.vmap(T.sin, { in_dims = 0 }), x)
    fails("all must agree", T.vmap(T.dot), x, T.randn(4, 2))
    fails("out_dims is 4", T.vmap(T.sin, { out_dims = 4 }), x)
    fails("no entry for result 2", T.vmap(function(a) return a, a end, { out_dims = { 1 } }), x)
    local mixed = T.tensor { { 1, -1 }, { 1, 1 } }
    fails("results must have one shape", T.vmap(function(a) return a:masked_select(a:gt(0)) end), mixed)
    fails("matmul", T.vmap(function(a) return a:matmul(T.ones(3)) end), x) -- the op's own message, of one element
  end)

  it("ends cleanly, whatever happens inside", function()
    local x, kept = T.randn(3, 2)
    fails("out", T.vmap(function(r)
      kept = r
      error "out"
    end), x)
    fails("kept from a vmap that has ended", function() return kept * 2 end)
    fails("kept from a vmap that has ended", function() return kept[1] end)
    fails("stands for many tensors", kept.totable, kept)
    kept = nil
    collectgarbage()
    collectgarbage()
    assert.equal(2, (T.ones(1) * 2):item())
    fails("does not fit into .grad", T.vmap(function(r)
      local w = T.ones(2):requires_grad_()
      local y = (w * 1):sum()
      y:backward(r[1])
    end), x)
    local wrap = coroutine.wrap(function() return T.vmap(function(r)
      coroutine.yield(1)
      return r * 2
    end)(x) end)
    assert.equal(1, wrap())
    assert.is_true(wrap():equal(x * 2))
  end)

  it("leaves nothing behind", function()
    local x = T.randn(20, 30)
    local function run()
      T.vmap(T.grad(function(r) return (r:sin() * r):sum() end))(x)
      assert.is_false((pcall(T.vmap(function(r) return r:matmul(T.ones(7)) end), x)))
    end
    run()
    collectgarbage()
    collectgarbage()
    local before = T.memory()
    for _ = 1, 20 do run() end
    collectgarbage()
    collectgarbage()
    local after = T.memory()
    assert.equal(before.live, after.live)
    assert.equal(before.blocks, after.blocks)
  end)
end)

describe("batched backward passes", function()
  it("take a dimension more: grad_of with is_grads_batched", function()
    local x = T.randn({ 3 }, f64):requires_grad_()
    local y = x:exp()
    local dys = T.randn({ 4, 3 }, f64)
    local g = T.grad_of(y, x, { grad_outputs = dys, is_grads_batched = true, retain_graph = true })
    near(dys * y:detach(), g)
    local list = T.grad_of({ y }, { x, T.ones(1):requires_grad_() }, { grad_outputs = { dys }, is_grads_batched = true,
      allow_unused = true })
    near(dys * y:detach(), list[1])
    assert.is_falsy(list[2])
    fails("needs grad_outputs", T.grad_of, y, x, { is_grads_batched = true })
    fails("a dimension in front", T.grad_of, y, x, { grad_outputs = T.ones({}, f64), is_grads_batched = true })
  end)

  it("may be differentiated again", function()
    local x = T.randn({ 3 }, f64):requires_grad_()
    local g = T.grad_of(x:sin(), x, { grad_outputs = T.eye(3, 3, f64), is_grads_batched = true, create_graph = true })
    near(T.diag_embed(x:detach():cos()), g:detach())
    near(-x:detach():sin(), T.grad_of(g:sum(), x))
  end)

  it("make jacobian and hessian equal to one pass after the other", function()
    local x = T.randn({ 2, 3 }, f64)
    local functions = {
      function(a) return a:softmax(-1) end, function(a) return a:matmul(a:t()) end,
      function(a) return { p = a:sum(1), q = a:sin() } end, function(a) return T.outer(a:flatten(), a:flatten()) end,
    }
    for _, f in ipairs(functions) do
      local many = T.jacobian(f, x)
      assert.is_nil(T.debug.jacobian_chunk(1))
      local ok, single = pcall(T.jacobian, f, x)
      assert.equal(1, T.debug.jacobian_chunk(2))
      local pairwise = T.jacobian(f, x)
      T.debug.jacobian_chunk(nil)
      assert.is_true(ok, single)
      if T.is_tensor(many) then
        near(single, many)
        near(single, pairwise)
      else
        for k in pairs(many) do
          near(single[k], many[k])
          near(single[k], pairwise[k])
        end
      end
    end
    fails("a whole number", T.debug.jacobian_chunk, 0)
  end)

  it("go through common networks without falling back to one at a time", function()
    local nn = T.nn
    local nets = {
      { nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4), nn.Softmax(-1)), T.randn(5, 6) },
      { nn.Sequential(nn.Conv2d(2, 4, 3, { padding = 1 }), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16, 3)), T.randn(3, 2, 4, 4) },
      { nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16, dropout = 0 }), T.randn(2, 5, 8) },
      { function(x) return (nn.LSTM(4, 4)(x)) end, T.randn(3, 2, 4) },
    }
    local away = T.zeros(1):device() == "cuda"
    if away then T.cuda.cudnn(false) end -- what cuDNN keeps of a recurrent net serves one gradient after the other
    for i, net in ipairs(nets) do
      local before = T.core.batch_loops()
      T.jacobian(function(x) return net[1](x) end, net[2])
      assert.equal(before, T.core.batch_loops(), "network " .. i)
    end
    if away then T.cuda.cudnn(true) end
  end)
end)
