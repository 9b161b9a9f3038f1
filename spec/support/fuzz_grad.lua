-- SPDX-License-Identifier: MIT
-- Random differentiable programs: a function of a few f64 tensors made of ops that are smooth at its values, with
-- views, in-place ops, custom rules, checkpoints and vmap in between. Its gradients are taken in many ways, which must
-- agree.

local T = require "perilune"
local random = require "spec.support.random"

local M = {}
local D = 3 -- tensors are [D], [D, D] or 0-d

local cube = T.custom { name = "cube", forward = function(ctx, a)
  ctx:save(a)
  return a * a * a
end, backward = function(ctx, g)
  local a = ctx:saved()
  return g * a * a * 3
end }
local pair = T.custom { name = "pair", forward = function(ctx, a, b)
  ctx:save(a, b)
  return a * b, a + b
end, backward = function(ctx, g, h)
  local a, b = ctx:saved()
  local x, y
  if g then x, y = g * b, g * a end
  if h then x, y = x and x + h or h, y and y + h or h end
  return x, y
end }

-- What keeps a norm away from 0 and a variance from vanishing, where they have no second derivative to speak of.
local function ramp() return T.tensor({ -2, 0, 3 }, { dtype = "f64" }) end

-- ---- ops; results stay bounded --------------------------------------------------------------------------------------

local unary = {
  function(a) return a:sin() end, function(a) return a:cos() end, function(a) return a:tanh() end,
  function(a) return a:sigmoid() end, function(a) return (a * 0.5):exp() end, function(a) return (a * a + 1):log() end,
  function(a) return (a * a + 0.5):sqrt() end, function(a) return (a * a + 1):reciprocal() end,
  function(a) return a:softplus() end, function(a) return a:erf() end, function(a) return -a end,
  function(a) return T.nn.F.gelu(a) end, function(a) return T.nn.F.silu(a) end,
  function(a) return (a * a + 1) ^ 1.5 * 0.3 end,
  cube, function(a) return T.checkpoint(function(b) return b:sin() * b end, a) end,
  function(a) return T.checkpoint(cube, a) end,
}
local binary = {
  function(a, b) return a + b end, function(a, b) return a - b end, function(a, b) return a * b end,
  function(a, b) return a / (b * b + 1) end, function(a, b) return a:addcmul(b, b, { value = 0.3 }) end,
  function(a, b) return a:lerp(b, 0.3) end, function(a, b) return T.where(a:detach():gt(0.123), a, b) end,
  function(a, b) return T.logaddexp(a, b) end, function(a, b) return T.atan2(a, b * b + 1) end,
  function(a, b) return (pair(a, b)) end, function(a, b) return select(2, pair(a, b)) end,
  function(a, b)
    local c, d = pair(a, b)
    return c * 0.5 + d
  end,
  function(a, b)
    local c = a * 1
    c:mul_(b)
    return c
  end,
  function(a, b)
    local c = a + 0
    c:add_(b):tanh_()
    return c
  end,
}
local vector = { -- of [D]
  function(a) return a:softmax(1) end, function(a) return a:log_softmax(1) end, function(a) return a:cumsum(1) end,
  function(a) return a:flip(1) end, function(a) return a:roll(1, 1) end, function(a) return a:outer(a):sum(1) end,
  function(a) return (a * 0.3 + 1):cumprod(1) end, function(a) return a - a:mean() end,
  function(a) return (a + 3):norm() * a * 0.2 end, function(a) return T.nn.F.layer_norm(a + ramp(), { D }) end,
  function(a) return a[T.tensor({ 3, 1, 1 }, { dtype = "i64" })] end,
  function(a) return T.cat({ a[{ { 2, D } }], a[{ { 1, 1 } }] }, 1) end,
  function(a) return a:logsumexp { dim = 1, keepdim = true }:expand(D) end,
  function(a) return T.vmap(function(s) return s:sin() * s end)(a) end,
  function(a)
    local c = T.zeros_like(a)
    c[2] = a[1] * a[3]
    c[{ { 1, 1 } }] = a[{ { 2, 2 } }]
    return c
  end,
  function(a)
    local c = a * 2
    c[{ { 1, 2 } }]:mul_(a[{ { 2, 3 } }])
    return c
  end,
}
local matrix = { -- of [D, D]
  function(a) return a:t() end, function(a) return a:matmul(a) * 0.3 end, function(a) return a:softmax(2) end,
  function(a) return a:tril() end, function(a) return a:diag_embed():sum(1) end,
  function(a) return a:t():contiguous() end,
  function(a) return a - a:mean { dim = 1, keepdim = true } end,
  function(a) return a:reshape(D * D):sin():view(D, D) end,
  function(a) return T.vmap(function(r) return r:softmax(1) * r end)(a) end,
  function(a) return T.vmap(function(r) return r:tanh():sum() end, { in_dims = 2 })(a):unsqueeze(1):expand(D, D) end,
  function(a) return T.nn.F.layer_norm(a + ramp(), { D }) end,
  function(a) return a:var { dim = 1, keepdim = true } + a end,
  function(a)
    local c = a * 1
    c[2] = a[1] * a[3]
    c:t()[1]:add_(1)
    return c
  end,
}

local function pick(g, list) return list[g:int(1, #list)] end
local function tensor(g, shape) return random.tensor(T, g:list(random.numel(shape), -1.2, 1.2), shape) end

-- A step reads values of the pool by number and appends one. Made once, so that a program can run again.
local function make_step(g, shapes)
  local i = g:int(1, #shapes)
  local kind = g:int(1, 4)
  local dim = shapes[i]
  if kind == 1 or dim == 0 then
    local f = pick(g, unary)
    return function(pool) return f(pool[i]) end, dim
  elseif kind == 2 then
    local f, j = pick(g, binary), g:int(1, #shapes)
    if shapes[j] > dim then j = i end -- in-place ones keep the first operand's shape
    return function(pool) return f(pool[i], shapes[j] == dim and pool[j] or pool[j]:expand(pool[i]:shape())) end, dim
  elseif dim == 1 then
    local f = pick(g, vector)
    return function(pool) return f(pool[i]) end, 1
  end
  if g:int(1, 3) == 1 then
    local f = pick(g, { function(a) return a:sum(1) end, function(a) return a:diagonal() end,
      function(a) return a:matmul(a[1]) end, function(a) return a[2] end, function(a) return a:logsumexp(2) end })
    return function(pool) return f(pool[i]) end, 1
  end
  local f = pick(g, matrix)
  return function(pool) return f(pool[i]) end, 2
end

-- Program number `seed`: f(x…) → 0-d tensor, and the values of its arguments.
function M.program(seed)
  local g = random.new(seed)
  local shapes, inputs = {}, {}
  for i = 1, g:int(1, 3) do
    shapes[i] = g:int(1, 2)
    inputs[i] = tensor(g, shapes[i] == 1 and { D } or { D, D })
  end
  local steps, n = {}, #inputs
  for s = 1, g:int(2, 9) do steps[s], shapes[n + s] = make_step(g, shapes) end
  local weight = {}
  for k = 1, 3 do weight[k] = g:number(0.3, 1) end
  local function f(...)
    local pool = { ... }
    for _, step in ipairs(steps) do pool[#pool + 1] = step(pool) end
    local loss
    for k = 0, math.min(2, #pool - 1) do
      local term = (pool[#pool - k]:tanh() * weight[k + 1]):sum()
      loss = loss and loss + term or term
    end
    return loss
  end
  return f, inputs, g
end

-- ---- checks --------------------------------------------------------------------------------------------------------

local function close(a, b, tol)
  local scale = math.max(1, b:abs():max():item())
  return (a - b):abs():max():item() <= tol * scale
end

local function list(...) return { ... } end

local function same(problems, what, got, want, tol)
  for i, w in ipairs(want) do
    local t = got[i]
    if t == nil then t = T.zeros_like(w) end
    if not close(t:detach(), w, tol or 1e-9) then
      problems[#problems + 1] = ("%s: gradient %d differs"):format(what, i)
      return
    end
  end
end

local function filled(grads, inputs)
  local out = {}
  for i, x in ipairs(inputs) do out[i] = grads[i] and grads[i]:detach() or T.zeros_like(x) end
  return out
end

local function leaves(inputs)
  local xs = {}
  for i, x in ipairs(inputs) do xs[i] = x:clone():requires_grad_() end
  return xs
end

local function dot(gs, vs)
  local s = T.zeros({}, { dtype = "f64" })
  for i, v in ipairs(vs) do if gs[i] then s = s + (gs[i] * v):sum() end end
  return s
end

-- First gradients: ambient, key, manager, functional, inside vmap.
local function first(f, inputs, problems)
  local xs = leaves(inputs)
  f(table.unpack(xs)):backward()
  local want = {}
  for i, x in ipairs(xs) do want[i] = x.grad and x.grad:clone() or T.zeros_like(x) end
  for _, kept in ipairs { "nothing", "some" } do -- the same bits
    local calls, again = 0, leaves(inputs)
    T.checkpoint({ f, policy = kept == "some" and function()
      calls = calls + 1
      return calls % 3 == 0 and "save" or "recompute"
    end or nil }, table.unpack(again)):backward()
    for i, x in ipairs(again) do again[i] = x.grad or T.zeros_like(x) end
    same(problems, "checkpoint that keeps " .. kept, again, want, 0)
  end
  same(problems, "T.grad", filled(list(T.grad(f, table.unpack(inputs))), inputs), want)
  local key, got, alias = T.GradKey {}, {}, {}
  for i, x in ipairs(inputs) do alias[i] = key:attach(x:clone(), function(_, g) got[i] = g end) end
  key:backward(f(table.unpack(alias)))
  same(problems, "GradKey", got, want)
  local one = {}
  for i, x in ipairs(inputs) do one[i] = T.stack({ x, x * 0.5 }, 1) end
  local batch = list(T.vmap(function(...)
    local grads = list(T.grad(f, ...))
    for i, x in ipairs { ... } do grads[i] = grads[i] or T.zeros_like(x) end
    return table.unpack(grads, 1, #inputs)
  end)(table.unpack(one)))
  for i in ipairs(inputs) do one[i] = batch[i][1] end
  same(problems, "vmap of grad", one, want)
  return want
end

-- Tangents against the gradient: alone, many at once, through jvp of jvp and grad of jvp, compiled.
local function forward(f, inputs, g, want, problems)
  local vs = {}
  for i, x in ipairs(inputs) do vs[i] = tensor(g, x:shape()) end
  local slope = dot(want, vs)
  local function value(what, got, tol) same(problems, what, { got }, { slope }, tol) end
  local y, jv = T.jvp(f, inputs, vs)
  same(problems, "the value of jvp", { y }, { f(table.unpack(inputs)) }, 0)
  value("jvp", jv)
  value("linearize", select(2, T.linearize(f, table.unpack(inputs)))(table.unpack(vs)))
  local parts = {}
  for i, v in ipairs(vs) do parts[i] = select(2, T.jvp(f, inputs, { [i] = v })) end
  local sum = T.zeros({}, { dtype = "f64" })
  for _, p in ipairs(parts) do sum = sum + p end
  value("jvp by arguments", sum)
  local many = {}
  for i, v in ipairs(vs) do many[i] = T.stack({ v, v * 2 }, 1) end
  local batch = T.vmap(function(...) return select(2, T.jvp(f, inputs, { ... })) end)(table.unpack(many))
  value("vmap of jvp", batch[1])
  value("vmap of jvp, twice as much", batch[2] / 2)
  -- d/dt f(x + t v) at 0 by a key of its own, and the second derivative in two ways
  local function line(t)
    local at = {}
    for i, x in ipairs(inputs) do at[i] = x + vs[i] * t end
    return f(table.unpack(at))
  end
  local zero, one = T.zeros({}, { dtype = "f64" }), T.ones({}, { dtype = "f64" })
  value("jvp along a line", select(2, T.jvp(line, zero, one)))
  local function along(t) return select(2, T.jvp(line, t, one)) end
  local curve = T.grad(along)(zero) or zero
  same(problems, "jvp of jvp", { select(2, T.jvp(along, zero, one)) }, { curve })
  local _, other = T.jvp(function(t) return T.grad(line)(t) or t * 0 end, zero, one)
  same(problems, "jvp of grad, second order", { other }, { curve })
  value("jit of jvp", T.jit(function(...) return select(2, T.jvp(f, { ... }, vs)) end)(table.unpack(inputs)))
end

-- Second: H v by the ambient key, nested functions, hvp, and difference quotients of the first.
local function second(f, inputs, g, problems)
  local vs = {}
  for i, x in ipairs(inputs) do vs[i] = tensor(g, x:shape()) end
  local xs = leaves(inputs)
  local grads = T.grad_of({ f(table.unpack(xs)) }, xs, { create_graph = true, allow_unused = true })
  local s = dot(grads, vs)
  local want = s.requires_grad and filled(T.grad_of({ s }, xs, { allow_unused = true }), inputs) or filled({}, inputs)
  local again = leaves(inputs)
  local y = T.checkpoint(f, table.unpack(again))
  local s2 = dot(T.grad_of({ y }, again, { create_graph = true, allow_unused = true }), vs)
  again = s2.requires_grad and filled(T.grad_of({ s2 }, again, { allow_unused = true }), inputs) or filled({}, inputs)
  same(problems, "checkpoint to the second order", again, want, 0)
  local nested = list(T.grad(function(...) return dot(list(T.grad(f, ...)), vs) end, table.unpack(inputs)))
  same(problems, "nested T.grad", filled(nested, inputs), want)
  local _, hv = T.hvp(f, inputs, vs)
  same(problems, "hvp", filled(hv, inputs), want)
  local _, jv = T.jvp(function(...)
    local gs = list(T.grad(f, ...))
    for i, x in ipairs { ... } do gs[i] = gs[i] or T.zeros_like(x) end
    return gs
  end, inputs, vs)
  same(problems, "jvp of grad", filled(jv, inputs), want)
  local function at(h)
    local moved = {}
    for i, x in ipairs(inputs) do moved[i] = x + vs[i] * h end
    return filled(list(T.grad(f, table.unpack(moved))), inputs)
  end
  local up, down, quotient = at(1e-6), at(-1e-6), {}
  for i in ipairs(inputs) do quotient[i] = (up[i] - down[i]) / 2e-6 end
  same(problems, "difference quotient", want, quotient, 2e-4)
end

-- Compiled, the same bits: gradients, and those of many calls at once.
local function compiled(f, inputs, problems)
  local function gradients(...)
    local grads = list(T.grad(f, ...))
    for i, x in ipairs { ... } do grads[i] = grads[i] or T.zeros_like(x) end
    return table.unpack(grads)
  end
  local want = list(gradients(table.unpack(inputs)))
  same(problems, "jit of grad", list(T.jit(gradients, { check = true })(table.unpack(inputs))), want, 0)
  local many, n = {}, #inputs
  for i, x in ipairs(inputs) do many[i] = T.stack({ x, x * 0.5 }, 1) end
  local function batch(...) return T.vmap(gradients)(...) end
  want = list(batch(table.unpack(many)))
  same(problems, "jit of vmap of grad", list(T.jit(batch)(table.unpack(many, 1, n))), want, 0)
end

-- Keys of random levels that come and go, programs that are dropped, errors in the middle.
local function disorder(f, inputs, g)
  local keys, held = {}, {}
  local xs = leaves(inputs)
  for _ = 1, g:int(2, 5) do
    local what = g:int(1, 6)
    if what == 1 or #keys == 0 then
      keys[#keys + 1] = T.GradKey { level = g:int(1, 4) }
      for _, x in ipairs(xs) do
        keys[#keys]:attach(x, g:int(1, 4) == 1 and function() error("callback", 0) end or function() end)
      end
    elseif what == 2 then
      held[#held + 1] = f(table.unpack(xs))
    elseif what == 3 and #held > 0 then
      pcall(pick(g, keys).backward, pick(g, keys), pick(g, held))
    elseif what == 4 then
      pick(g, keys):close()
    elseif what == 5 then
      pcall(function()
        local fails = g:int(1, 3)
        local runs = 0
        local y = T.checkpoint(function(...)
          runs = runs + 1
          if fails == runs then error("forward", 0) end
          return f(...)
        end, table.unpack(xs))
        y:backward(nil, { create_graph = g:int(1, 2) == 1 })
      end)
    else
      pcall(function() pick(g, held):backward(nil, { retain_graph = true }) end)
    end
  end
end

-- Runs program `seed` in all ways; returns a list of what was wrong.
function M.run(seed)
  local f, inputs, g = M.program(seed)
  local problems = {}
  local function guard(what, body)
    local ok, err = pcall(body)
    if not ok then problems[#problems + 1] = what .. ": " .. tostring(err) end
  end
  guard("first order", function() forward(f, inputs, g, first(f, inputs, problems), problems) end)
  guard("second order", function() second(f, inputs, g, problems) end)
  guard("compiled", function() compiled(f, inputs, problems) end)
  guard("disorder", function() disorder(f, inputs, g) end)
  return problems
end

return M
