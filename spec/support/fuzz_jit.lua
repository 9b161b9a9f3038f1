-- SPDX-License-Identifier: MIT
-- Random programs for T.jit: tensors of several sizes and dtypes, views, ops in place, products, rows, indices, random
-- numbers, convolutions, parameters and optimizers, as a function that can be run as written and compiled. Both must
-- give the same results bit by bit, or the same error.

local T = require "perilune"
local random = require "spec.support.random"
local F = T.nn.F

local M = {}

-- Sizes: rows R, columns C; h has H heads of them. Some reach what groups, tiles and threads do with long tensors.
local sizes = {
  { 3, 2 }, { 1, 5 }, { 7, 1 }, { 4, 16 }, { 33, 17 }, { 64, 64 }, { 5, 300 }, { 130, 96 }, { 1, 1 }, { 600, 33 },
}
local H = 2

local function pick(g, list) return list[g:int(1, #list)] end

-- ---- steps: by the kind of what they read, {kind of what they give, f}: m [R, C], v [C], c [R, 1], s 0-d, h [H, R, C]

local unary = {
  function(x) return x:tanh() end, function(x) return x:relu() end, function(x) return -x end,
  function(x) return x:sigmoid() end,
  function(x) return (x * 0.3):exp() end, function(x) return (x * x + 1):log() end,
  function(x) return (x * x + 0.5):sqrt() end,
  function(x) return x:abs() end, function(x) return x:clamp(-0.7, 0.9) end, function(x) return F.gelu(x) end,
  function(x) return F.silu(x) end, function(x) return x * 0.5 + 1 end, function(x) return 1 - x end,
  function(x) return 2 / (x * x + 1) end,
  function(x) return x:sin():cos() end, function(x) return (x * x + 1) ^ -0.5 end,
  function(x) return F.leaky_relu(x, 0.1) end,
  function(x) return x:round() * 0.5 + x end, function(x) return x:erf() end, function(x) return F.softplus(x) end,
  function(x) return T.where(x:gt(0.1), x, x * 0.3) end, function(x) return x:masked_fill(x:lt(-0.5), -0.25) end,
  function(x) return x:clone() end, function(x) return x:detach() * 0.7 + x end,
  function(x) return x:to("f64"):sin():to(x:dtype()) end,
  function(x) return x:to("bf16"):to(x:dtype()) end, function(x) return x:sign() + x end,
  function(x) return x:gt(0):to(x:dtype()) * x end,
  function(x) return (x - x:mean()) / (x:std { correction = 0 } + 1) end,
  function(x) return x / (x:abs():sum() + 1) end,
  function(x) return x * x:max() end, function(x) return x - x:amin() * 0.1 end,
  function(x) return F.dropout(x, 0.3) end,
  function(x) return x + T.rand_like(x) * 0.1 end, function(x) return x * T.bernoulli(T.full_like(x, 0.5)) end,
  function(x) local y = x * 1 y:add_(0.5):mul_(x) return y end,
  function(x) local y = x:clone() y:tanh_() return y + x end,
  function(x) local y = x + 0 y:copy_(x * 2) y:clamp_(-1, 1) return y end, function(x) return x:contiguous() end,
  function(x) return x:reshape(-1):reshape(x:shape()) end,
  function(x) return T.checkpoint(function(a) return a:tanh() * a end, x) end,
  function(x) return x:flip(1):flip(1) + x:flip(-1) end, function(x) return x:cumsum(-1) * 0.1 end,
}
local binary = {
  function(a, b) return a + b end, function(a, b) return a - b end, function(a, b) return a * b end,
  function(a, b) return a / (b * b + 1) end, function(a, b) return T.maximum(a, b) end,
  function(a, b) return T.minimum(a, b) + a end,
  function(a, b) return a:lerp(b, 0.25) end, function(a, b) return T.where(a:gt(b), a, b * 0.5) end,
  function(a, b) return T.addcmul(a, b, b, { value = 0.5 }) end, function(a, b) return a:le(b):to(a:dtype()) - b end,
  function(a, b) local y = a * 1 y:add_(b) return y end,
  function(a, b) local y = a * 1 y:mul_(b):sub_(0.1) return y end,
  function(a, b) return T.hypot(a, b * 0.5 + 1) end, function(a, b) return T.fmod(a, b:abs() + 0.5) end,
}
local steps = {
  m = {
    { "m", function(x) return x:softmax(-1) end }, { "m", function(x) return x:log_softmax(-1) end },
    { "m", function(x) return x:softmax(1) end }, { "m", function(x) return F.layer_norm(x, { x:size(-1) }) end },
    { "m", function(x, _, v) return F.layer_norm(x, { x:size(-1) }, v, v) end },
    { "m", function(x, _, v) return F.rms_norm(x, { x:size(-1) }, v) end },
    { "m", function(x, y) return x:matmul(y:t()):matmul(x) * 0.01 end }, { "m", function(x, _, _, c) return x * c end },
    { "m", function(x, _, v) return x + v end }, { "m", function(x, _, v, c) return (x - c) * v end },
    { "m", function(x, _, v, c) return c * v + x end },
    { "m", function(x) return x:t():contiguous():t() end },
    { "m", function(x) return T.cat({ x, x * 2 }, 1)[{ { x:size(1) + 1, 2 * x:size(1) } }] end },
    { "m", function(x, y) return T.stack({ x, y }, 1):sum(1) end }, { "m", function(x) return x:roll(1, 1) end },
    { "m", function(x) return x:tril() + x end },
    { "m", function(x, y) return T.cat({ x, y }, 2)[{ {}, { 2, x:size(2) + 1 } }] end },
    { "m", function(x) local y = x * 1 y[1] = x[1] * 2 return y end },
    { "m", function(x) local y = x * 1 y[{ {}, { 1, 1 } }]:zero_() return y end },
    { "m", function(x) return x:index_select(1, (x:select(2, 1):argsort())) end },
    { "m", function(x) return (x:sort(2)) end },
    { "m", function(x, y) return x:gather(2, y:argsort(2)) end },
    { "m", function(x) return x:var { dim = -1, keepdim = true } + x end },
    { "m", function(x) return T.vmap(function(r) return r:softmax(1) * r end)(x) end },
    { "m", function(x, y) return T.vmap(function(r, s) return r * s:sum() end, { in_dims = { 1, 1 } })(x, y) end },
    { "m", function(x) return F.embedding(x:argmax(2):clamp(1, x:size(1)), x) end },
    { "m", function(x) return F.normalize(x) end },
    { "m", function(x) return F.glu(T.cat({ x, x }, 2)) end },
    { "v", function(x) return x:mean(1) end }, { "v", function(x) return x:sum(1) * 0.1 end },
    { "v", function(x) return x[1] end },
    { "v", function(x) return x:amax(1) end }, { "v", function(x) return (x:max(1)) end },
    { "v", function(x) return x:var { dim = 1, correction = 0 } end },
    { "v", function(x) return x:logsumexp(1) end }, { "v", function(x) return x:t():matmul(x:select(2, 1)) * 0.1 end },
    { "c", function(x) return x:mean(-1, true) end }, { "c", function(x) return x:sum(-1, true) * 0.1 end },
    { "c", function(x) return x:amax { dim = -1, keepdim = true } end },
    { "c", function(x) return x:logsumexp { dim = 2, keepdim = true } end },
    { "c", function(x) return x:std { dim = -1, keepdim = true, correction = 0 } end },
    { "c", function(x) return x[{ {}, { 1, 1 } }] end },
    { "c", function(x) return x:norm { dim = 2, keepdim = true } end },
    { "c", function(x) return x:argmax(2):to(x:dtype()):unsqueeze(2) * 0.01 end },
    { "s", function(x) return x:mean() end }, { "s", function(x) return x:norm() * 0.1 end },
    { "s", function(x) return x:max() end },
    { "s", function(x) return x[1][1] end }, { "s", function(x) return F.cross_entropy(x, x:argmax(2)) end },
    { "s", function(x, y) return F.mse_loss(x, y) end },
    { "s", function(x, y) return F.smooth_l1_loss(x, y:detach()) end },
    { "s", function(x) return F.nll_loss(x:log_softmax(2), x:argmin(2)) end },
    { "h", function(x, y) return T.stack({ x, y }, 1) end },
    { "h", function(x) return x:expand(H, x:size(1), x:size(2)) end },
    { "h", function(x, y) return x:unsqueeze(1) + y:unsqueeze(1):expand(H, x:size(1), x:size(2)) end },
  },
  v = {
    { "v", function(x) return x:softmax(1) end }, { "v", function(x) return x:cumsum(1) * 0.1 end },
    { "v", function(x) return x:flip(1) end },
    { "v", function(x, y) return x:outer(y):sum(2) * 0.1 end }, { "s", function(x, y) return x:dot(y) * 0.1 end },
    { "s", function(x) return x:sum() end },
    { "v", function(x) return F.layer_norm(x, { x:size(1) }) end }, { "v", function(x) return (x:sort(1)) end },
    { "v", function(x) return x:logsumexp(1) - x end }, { "v", function(x) local y = x * 1 y[1] = 0.5 return y end },
  },
  c = {
    { "c", function(x) return x:softmax(1) end }, { "c", function(x) return x:squeeze(2):unsqueeze(2) end },
    { "c", function(x) return x - x:mean() end },
    { "s", function(x) return x:sum() * 0.1 end }, { "c", function(x) return x:matmul(x[{ { 1, 1 } }]) end },
  },
  s = { { "s", function(x, y) return x * y end }, { "s", function(x) return x:reshape(1):squeeze() end } },
  h = {
    { "h", function(x) return x:softmax(-1) end },
    { "h", function(x) return x:transpose(2, 3):contiguous():transpose(2, 3) end },
    { "h", function(x, y) return x:bmm(y:transpose(2, 3)):softmax(-1):bmm(y) end },
    { "m", function(x) return x:sum(1) end },
    { "m", function(x) return x[2] end }, { "m", function(x) return x:mean(1) end },
    { "h", function(x) return F.layer_norm(x, { x:size(3) }) end },
    { "h", function(x, y) return F.scaled_dot_product_attention(x, y, x) end },
    { "m", function(x) return (x:max(1)) end },
    { "h", function(x) return x:flip(1) end },
    { "h", function(x) return x / x:norm { dim = 3, keepdim = true }:add(1) end },
    { "h", function(x)
      return F.conv1d(x:transpose(1, 2), T.ones(H, H, 1, { dtype = x:dtype() }) * 0.5):transpose(1, 2)
    end },
    { "h", function(x) return F.avg_pool1d(F.pad(x, { 1, 1 }), 3, { stride = 1 }) end },
    { "h", function(x) return F.instance_norm(x) end },
    { "h", function(x) return F.group_norm(x:transpose(1, 2), 1):transpose(1, 2) end },
  },
}

-- A step reads the pool by numbers and appends one value.
local function make_step(g, kinds)
  local k = g:int(1, #kinds)
  local kind = kinds[k]
  local function another(of)
    local found = {}
    for i, name in ipairs(kinds) do if name == of then found[#found + 1] = i end end
    return pick(g, found)
  end
  local what = g:int(1, 10)
  if what <= 4 then
    local f = pick(g, unary)
    return function(pool) return f(pool[k]) end, kind
  elseif what <= 6 then
    local f, j = pick(g, binary), another(kind)
    return function(pool) return f(pool[k], pool[j]) end, kind
  end
  local step = pick(g, steps[kind])
  local f, j, v, c = step[2], another(kind), another "v", another "c"
  return function(pool) return f(pool[k], pool[j], pool[v], pool[c]) end, step[1]
end

local function tensor(g, shape, dtype)
  return random.tensor(T, g:list(random.numel(shape), -1.2, 1.2), shape):to(dtype)
end

local layouts = {
  function(x) return x end, function(x) return x end, function(x) return x end,
  function(x) return x:dim() >= 2 and x:transpose(-1, -2):contiguous():transpose(-1, -2) or x end,
  function(x) return x:dim() >= 1 and T.stack({ x, x }, x:dim() + 1):select(x:dim() + 1, 1) or x end,
}

local function arguments(g, R, C, dtype)
  local inputs = {}
  for i, shape in ipairs { { R, C }, { R, C }, { C }, { R, 1 }, {} } do
    inputs[i] = pick(g, layouts)(tensor(g, shape, dtype))
  end
  return inputs
end

-- Program `seed`: f(x…) → results, its arguments m, m, v, c, s, and g for what comes next.
function M.program(seed)
  local g = random.new(seed)
  local R, C = table.unpack(pick(g, sizes))
  local dtype = pick(g, { "f32", "f32", "f32", "f64", "bf16", "f16" })
  local kinds, inputs = { "m", "m", "v", "c", "s" }, arguments(g, R, C, dtype)
  local list = {}
  for s = 1, g:int(1, 14) do list[s], kinds[#kinds + 1] = make_step(g, kinds) end
  local give = { #kinds }
  for _ = 1, g:int(0, 2) do give[#give + 1] = g:int(6, #kinds) end
  local function f(...)
    local pool = { ... }
    for _, step in ipairs(list) do pool[#pool + 1] = step(pool) end
    local out = {}
    for i, k in ipairs(give) do out[i] = pool[k] end
    return table.unpack(out)
  end
  return f, inputs, g
end

local function sum_of(...)
  local total
  for _, t in ipairs { ... } do
    if t:is_floating_point() then
      local s = (t:to("f32") * 0.5):tanh():sum()
      total = total and total + s or s
    end
  end
  return total
end

local function clones(list)
  local out = {}
  for i, x in ipairs(list) do out[i] = x:clone() end
  return out
end

-- ---- ways to run a program: each makes what is called, and gives it arguments of its own -------------------------

local ways = {
  { "forward", function(f) return f end },
  { "no_grad", function(f) return function(...)
    local args = table.pack(...)
    return T.no_grad(function() return f(table.unpack(args)) end)
  end end },
  { "grad", function(f)
    return function(...) return T.value_and_grad(function(...) return sum_of(f(...)) end, ...) end
  end },
  { "backward", function(f) return function(...)
    local xs = { ... }
    for i, x in ipairs(xs) do xs[i] = x:detach():clone():requires_grad_() end
    local loss = sum_of(f(table.unpack(xs)))
    loss:backward()
    local out = { loss:detach() }
    for i, x in ipairs(xs) do out[i + 1] = x.grad or T.zeros {} end
    return table.unpack(out)
  end end },
  { "autocast", function(f) return function(...)
    local args = table.pack(...)
    return T.autocast("bf16", function()
      return T.value_and_grad(function(...) return sum_of(f(...)) end, table.unpack(args))
    end)
  end end },
  { "train", function(f, inputs, g)
    local m = clones(inputs)
    local params = { m[2]:contiguous():requires_grad_(), m[3]:contiguous():requires_grad_() }
    local opt = pick(g, { function() return T.optim.SGD(params, { lr = 0.05, momentum = 0.9 }) end,
      function() return T.optim.AdamW(params, { lr = 0.01 }) end,
      function() return T.optim.RMSprop(params, { lr = 0.01 }) end })()
    local clip = g:int(1, 2) == 1
    return function(x, _, _, c, s)
      opt:zero_grad()
      local loss = sum_of(f(x, params[1], params[2], c, s))
      if loss.requires_grad then
        loss:backward()
        if clip then T.nn.utils.clip_grad_norm_(params, 0.5) end
        opt:step()
      end
      return loss:detach(), params[1], params[2]
    end
  end },
  { "vmap", function(f)
    return T.vmap(function(...) return sum_of(f(...)) end, { randomness = "different" })
  end, many = true },
  { "outside", function(f) return function(...) return f(...) end end, outside = true },
  { "vmap outside", function(f)
    local g = T.vmap(f, { randomness = "different" })
    return function(...) return g(...) end
  end, many = true, outside = true },
}

local function same(a, b)
  if T.is_tensor(a) ~= T.is_tensor(b) then return false end
  if not T.is_tensor(a) then return a == b end
  if a:dtype() ~= b:dtype() or table.concat(a:shape(), "x") ~= table.concat(b:shape(), "x") then return false end
  if a:numel() == 0 then return true end
  a, b = a:detach(), b:detach()
  return a:eq(b):logical_or(a:ne(a):logical_and(b:ne(b))):all():item()
end

local function call(f, inputs, outside)
  T.manual_seed(7)
  local xs = clones(inputs)
  if outside then for _, x in ipairs(xs) do x:requires_grad_() end end
  local out = table.pack(pcall(f, table.unpack(xs)))
  out.given = out.n
  if out[1] and outside then
    local loss = sum_of(table.unpack(out, 2, out.n))
    if loss and loss.requires_grad then
      local ok, err = pcall(loss.backward, loss)
      if not ok then return { false, err, n = 2 } end
      for _, x in ipairs(xs) do out[out.n + 1], out.n = x.grad or false, out.n + 1 end
    end
  end
  out[out.n + 1], out.n = T.rand(1), out.n + 1 -- the generator has moved alike
  for i = 2, out.n do if T.is_tensor(out[i]) then out[i] = out[i]:detach():clone() end end
  return out
end

-- Gradients taken outside come from the graph after its passes, which add them up in another order, and may know that
-- one is zero throughout.
local function like(want, got)
  if not got or not want then
    return not got and (not want or want:numel() == 0 or want:abs():max():item() == 0)
  end
  if want:numel() == 0 then return got:numel() == 0 end
  local tol = ({ f64 = 1e-12, f32 = 2e-5, f16 = 2e-2, bf16 = 1e-1 })[want:dtype()]
  local near = (want - got):abs():le(want:abs():max() * tol + tol)
  return want:dtype() == got:dtype() and near:logical_or(want:ne(want)):all():item()
end

-- One call as written and compiled → what differs; nil, what went wrong in both.
local function compare(title, way, plain, compiled, inputs)
  local want, got = call(plain, inputs, way.outside), call(compiled, inputs, way.outside)
  if want[1] ~= got[1] then
    return ("%s: %s"):format(title, want[1] and "compiled: " .. tostring(got[2]) or "as written: " .. tostring(want[2]))
  end
  if not want[1] then return nil, tostring(want[2]) end
  for i = 2, want.n do
    if not (i > want.given and i < want.n and like or same)(want[i], got[i]) then
      return ("%s: result %d is %s, compiled %s"):format(title, i - 1, tostring(want[i]), tostring(got[i]))
    end
  end
end

local function stacked(way, inputs)
  if way.many then for i, x in ipairs(inputs) do inputs[i] = T.stack({ x, x * 0.5, x + 0.25 }, 1) end end
  return inputs
end

-- Program `seed` in one of the ways, three times as written and compiled → what differs; nil and, if both fail, why.
function M.run(seed, options)
  local f, inputs, g = M.program(seed)
  local way = ways[g:int(1, #ways)]
  stacked(way, inputs)
  local state = g.state
  local plain = way[2](f, inputs, g)
  g.state = state
  local compiled = T.jit(way[2](f, inputs, g), options)
  for round = 1, 3 do
    local wrong, why = compare(("program %d, %s, call %d"):format(seed, way[1], round), way, plain, compiled, inputs)
    if wrong or why then return wrong, why end
  end
end

local other_sizes = { 1, 2, 3, 5, 16, 33, 0, 70 }

-- Program `seed`, compiled once, with arguments of one size after the other → what differs; nil, how many sizes there
-- were and how many of them were traced.
function M.run_sizes(seed, options)
  local f, inputs, g = M.program(seed)
  local way = ways[g:int(1, #ways)]
  local R, C, dtype = inputs[1]:size(1), inputs[1]:size(2), inputs[1]:dtype()
  stacked(way, inputs)
  local state = g.state
  local plain = way[2](f, inputs, g)
  g.state = state
  local compiled = T.jit(way[2](f, inputs, g), options)
  local kinds, seen = 0, {}
  for round = 1, 8 do
    if round > 1 then
      local r = g:int(1, 3) > 1 and pick(g, other_sizes) or R
      local c = g:int(1, 3) == 1 and pick(g, other_sizes) or C
      inputs = stacked(way, arguments(g, r, c, dtype))
      if not seen[r .. "x" .. c] then kinds, seen[r .. "x" .. c] = kinds + 1, true end
    end
    local title = ("program %d, %s, call %d, %s"):format(seed, way[1], round, table.concat(inputs[1]:shape(), "x"))
    local wrong, why = compare(title, way, plain, compiled, inputs)
    -- what nobody asks for is not computed, and cannot fail then
    if wrong and not (inputs[1]:numel() == 0 and wrong:find "as written") then return wrong end
    if why or wrong then break end -- what an optimizer has is another one now
  end
  return nil, kinds, compiled.ntraces, compiled
end

return M
