-- SPDX-License-Identifier: MIT
-- A number added to all elements changes nothing in ops of differences: softmax, moments, losses of classes. As long as
-- the sums are exact, gradients must not show where the elements lie: what forward keeps (a log-sum-exp, a mean) is
-- rounded there, and what divides by it or subtracts it is moved as a whole.

local T = require "perilune"

local SHAPE = { 4, 12 }
local list = {}
for i = 1, 48 do list[i] = i * 5 % 7 * 2 - 6 end

local function rows(x, first, count) return x:narrow(1, first, count) end
local function classes() return T.tensor({ 1, 5, 2, 4 }, { dtype = "i64" }) end

-- Scalars or tensors of x [4, 12]; `moved` says how much the value moves with c.
local OPS = {
  logsumexp = { function(x) return x:logsumexp(2) end, moved = 1 },
  ["logsumexp of all"] = { function(x) return x:logsumexp() end, moved = 1 },
  ["logsumexp of two dims of three"] = { function(x) return x:reshape(2, 4, 6):logsumexp { 1, 3 } end, moved = 1 },
  logcumsumexp = { function(x) return x:logcumsumexp(2) end, moved = 1 },
  ["logcumsumexp down columns"] = { function(x) return x:logcumsumexp(1) end, moved = 1 },
  logaddexp = { function(x) return T.logaddexp(rows(x, 1, 2), rows(x, 3, 2)) end, moved = 1 },
  logaddexp2 = { function(x) return T.logaddexp2(rows(x, 1, 2), rows(x, 3, 2)) end, moved = 1 },
  softmax = { function(x) return x:softmax(2) end },
  log_softmax = { function(x) return x:log_softmax(2) end },
  ["softmax down columns"] = { function(x) return x:softmax(1) end },
  ["log_softmax down columns"] = { function(x) return x:log_softmax(1) end },
  var = { function(x) return x:var(2) end },
  std = { function(x) return x:std(2) end },
  ["var of all"] = { function(x) return x:var { correction = 0 } end },
  ["std down columns"] = { function(x) return x:std(1) end },
  cov = { function(x) return x:cov() end },
  cross_entropy = { function(x) return T.cross_entropy(x, classes()) end },
  ["cross_entropy, smoothed"] = {
    function(x) return T.cross_entropy(x, classes(), nil, { label_smoothing = 0.25 }) end,
  },
  ["cross_entropy down columns"] = {
    function(x)
      local many = T.tensor({ { 1, 4, 2, 3, 1, 2, 3, 4, 1, 4, 1, 4 } }, { dtype = "i64" })
      return T.cross_entropy(x:reshape(1, 4, 12), many)
    end,
  },
  cross_entropy_prob = { function(x) return T.cross_entropy_prob(x, T.full(SHAPE, 0.125, { dtype = x:dtype() })) end },
  multi_margin_loss = { function(x) return T.nn.F.multi_margin_loss(x, classes()) end },
  cdist = { function(x) return T.cdist(rows(x, 1, 2), rows(x, 3, 2)) end },
  mse_loss = { function(x) return T.mse_loss(rows(x, 1, 2), rows(x, 3, 2)) end },
}

-- By dtype: what is added, and how far gradients may be off.
local FAR = {
  f64 = { { 1 << 20, 1 << 30, -(1 << 33) }, 1e-12 },
  f32 = { { 40, 56, 85, -85, 117, 1 << 12, 1 << 17, 1 << 20, -(1 << 20) }, 2e-6 },
  f16 = { { 512, -512 }, 4e-3 }, bf16 = { { 64, -64 }, 3e-2 },
}

local function weights(y)
  local w = {}
  for i = 1, y:numel() do w[i] = (i * 3 % 5 + 1) / 4 end
  return T.tensor(w, { dtype = y:dtype() }):reshape(y:shape())
end

local function near(got, want, tol, what)
  local g, w, size = got:to("f64"):reshape(-1):totable(), want:to("f64"):reshape(-1):totable(), 0
  for i = 1, #w do size = math.max(size, math.abs(w[i])) end
  for i = 1, #w do
    local fine = math.abs(g[i] - w[i]) <= tol * size -- false of NaN
    assert(fine, fine or ("%s: entry %d is %.9g, not %.9g"):format(what, i, g[i], w[i]))
  end
end

-- Value, gradient, second derivative and tangent.
local function ways(f, x)
  local r = {}
  local v = x:clone():requires_grad_()
  local y = f(v)
  r.value = y:detach()
  local g = T.grad_of((y * weights(y)):sum(), v, { create_graph = true })
  r.gradient = g:detach()
  if x:dtype() == "f64" or x:dtype() == "f32" then
    if g.requires_grad then r["second derivative"] = T.grad_of((g * weights(g)):sum(), v) end
    local _, t = T.jvp(f, x, weights(x))
    r.tangent = t
    r["gradient in T.jit"] = T.jit(function(u) return (T.grad(function(s)
      local z = f(s)
      return (z * weights(z)):sum()
    end)(u)) end)(x)
  end
  return r
end

describe("elements far from 0 have the gradients of those near it:", function()
  local names = {}
  for name in pairs(OPS) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    it(name, function()
      local f, moved = OPS[name][1], OPS[name].moved
      for _, dtype in ipairs { "f64", "f32", "f16", "bf16" } do
        local x = T.tensor(list, { dtype = dtype }):reshape(SHAPE)
        local want = ways(f, x)
        for _, c in ipairs(FAR[dtype][1]) do
          local got = ways(f, x + c)
          for way, w in pairs(want) do
            local tol = FAR[dtype][2] * (way == "second derivative" and 10 or 1)
            if way ~= "value" then near(got[way], w, tol, ("%s of %s + %d"):format(way, dtype, c))
            elseif not moved then near(got[way], w, tol, ("value of %s + %d"):format(dtype, c)) end
          end
        end
      end
    end)
  end
end)

-- Where one class is nearly certain its gradient, q - 1, is rounding alone if it is taken so: it is minus what the
-- others have. The judge adds those up in Lua. Random rows: gaps up to e^-60, lengths on both sides of every loop's,
-- weights, smoothing, any dy.
describe("classes that are nearly certain have the gradient of the others, by", function()
  local exp = math.exp

  -- dx and <dx, v> of (1-e) w_t (lse - x_t) + e/C sum w_c (lse - x_c), times s
  local function row(x, t, w, e, s)
    local n, top, sum, W, rest, dx = #x, math.max(table.unpack(x)), 0, 0, 0, {}
    for i = 1, n do sum, W = sum + exp(x[i] - top), W + w[i] end
    local hit = (1 - e) * w[t]
    local K = hit + e / n * W
    for i = 1, n do
      local q = exp(x[i] - top) / sum
      if i ~= t then rest = rest + q end
      dx[i] = s * (K * q - e / n * w[i])
    end
    dx[t] = s * (e / n * (W - w[t]) - K * rest)
    return dx
  end

  local function random(n, scale, next)
    local drawn = {}
    for i = 1, n do drawn[i] = scale * (next() * 2 - 1) end
    return drawn
  end

  local function logged(x, target, o)
    local y = x:log_softmax(2)
    return T.nll_loss(y, target, o.weight, { reduction = "none" })
  end
  local function plain(x, target, o)
    return T.cross_entropy(x, target, o.weight, { label_smoothing = o.smooth, reduction = "none" })
  end
  local WAYS = {
    cross_entropy = plain,
    ["cross_entropy down columns"] = function(x, target, o)
      local y = T.cross_entropy(x:t():unsqueeze(1), target:unsqueeze(1), o.weight,
        { label_smoothing = o.smooth, reduction = "none" })
      return y:squeeze(1)
    end,
    ["log_softmax and nll_loss"] = logged,
    ["log_softmax and nll_loss down columns"] = function(x, target, o)
      local y = x:t():unsqueeze(1):log_softmax(2)
      return T.nll_loss(y, target:unsqueeze(1), o.weight, { reduction = "none" }):squeeze(1)
    end,
    cross_entropy_prob = function(x, target, o)
      local p = T.nn.F.one_hot(target, x:size(2)):to(x:dtype())
      return T.cross_entropy_prob(x, p, o.weight, { label_smoothing = o.smooth, reduction = "none" })
    end,
    linear_cross_entropy = function(x, target, o)
      local one = T.eye(x:size(2), { dtype = x:dtype() })
      local settings = { weight = o.weight, label_smoothing = o.smooth, reduction = "none" }
      return T.nn.F.linear_cross_entropy(x, one, target, settings)
    end,
    ["cross_entropy in T.jit"] = plain,
    ["log_softmax and nll_loss in T.jit"] = logged,
  }

  local function close(got, want, tol, what)
    local size = 0
    for i = 1, #want do size = math.max(size, math.abs(want[i])) end
    for i = 1, #want do
      local fine = math.abs(got[i] - want[i]) <= tol * size + 1e-37
      assert(fine, fine or ("%s: entry %d is %.9g, not %.9g"):format(what, i, got[i], want[i]))
    end
  end

  local count = tonumber(os.getenv "PERILUNE_FUZZ_GRAD") or 16
  local names = {}
  for name in pairs(WAYS) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    it(name, function()
      local loss, seed = WAYS[name], 7 + #name
      if name:find "jit" then loss = T.jit(loss) end
      local function next()
        seed = (seed * 1103515245 + 12345) % 2147483648
        return seed / 2147483648
      end
      local function pick(from) return from[1 + math.floor(next() * #from)] end
      local smoothed = not name:find "nll"
      local through_logs = not smoothed or name:find "prob" -- whose second derivatives are composed
      for case = 1, count do
        local many, n = pick { 1, 3, 9, 17 }, pick { 2, 3, 5, 8, 13, 31, 64, 300 }
        local dtype = case % 3 == 0 and "f64" or "f32"
        local e, far = case % 5 == 4 and smoothed and 0.125 or 0, ({ 0, 6, 20, -40, 100 })[case % 5 + 1]
        local flat, target = random(many * n, 1, next), {}
        for r = 1, many do
          target[r] = 1 + math.floor(next() * n)
          local best = next() < 0.8 and target[r] or 1 + math.floor(next() * n)
          flat[(r - 1) * n + best] = next() * 60
        end
        local x = (T.tensor(flat, { dtype = dtype }) + far):reshape(many, n)
        local w = random(n, case % 2 == 0 and 0.5 or 0, next)
        for i = 1, n do w[i] = w[i] + 1 end
        local weight = T.tensor(w, { dtype = dtype })
        local dy = T.tensor(random(many, 1, next), { dtype = dtype })
        local o = { weight = case % 2 == 0 and weight or nil, smooth = e }
        local class = T.tensor(target, { dtype = "i64" })
        local v = T.tensor(random(many * n, 1, next), { dtype = dtype }):reshape(many, n)
        local u = x:clone():requires_grad_()
        local up = dy:clone():requires_grad_()
        local y = loss(u, class, o)
        local g = T.grad_of(y, u, { grad_outputs = up, create_graph = true })
        g = type(g) == "table" and g[1] or g
        local again, tangent
        if not through_logs then again = T.grad_of((g * v):sum(), up) end
        if not name:find "jit" and not (through_logs and name:find "columns") and not name:find "prob" then
          tangent = select(2, T.jvp(function(z) return loss(z, class, o) end, x, v))
        end
        for r = 1, many do
          local d, wide = dy:get(r), weight:double():totable()
          local one = row(x:double():select(1, r):totable(), target[r], wide, e, 1)
          local want, with = {}, 0
          local vr = v:select(1, r):totable()
          local size = 0
          for i = 1, n do
            want[i], with = one[i] * d, with + one[i] * vr[i]
            size = math.max(size, math.abs(one[i]))
          end
          local tol = dtype == "f64" and 1e-10 or 2e-5
          local what = ("%s, case %d, row %d of %d of %s"):format(name, case, r, n, dtype)
          close(g:detach():select(1, r):totable(), want, tol, what)
          local function derivative(t, of)
            local fine = math.abs(t:get(r) - with) <= 4 * tol * size + 1e-37
            assert(fine, fine or ("%s: the %s is %.9g, not %.9g"):format(what, of, t:get(r), with))
          end
          if again then derivative(again, "gradient's gradient for its factor") end
          if tangent then derivative(tangent, "tangent") end
        end
      end
    end)
  end
end)

describe("values, gradients and second derivatives of logistic functions keep their digits at both ends:", function()
  -- s = sigmoid(x), r = 1 - s, l = log(1 + e^-|x|), judged in doubles
  local function parts(x)
    local e = math.exp(-math.abs(x))
    local s, r = (x > 0 and 1 or e) / (1 + e), (x > 0 and e or 1) / (1 + e)
    local u = 1 + e
    return s, r, u == 1 and e or math.log(u) * e / (u - 1)
  end
  local function with_logits(t, p)
    return function(x)
      local s, r, l = parts(x)
      local q = 1 - t + p * t
      return (x > 0 and (1 - t) * x or -p * t * x) + q * l, (1 - t) * s - p * t * r, q * s * r
    end, function(x)
      local weight = p ~= 1 and T.tensor({ p }, { dtype = x:dtype() }) or nil
      return T.binary_cross_entropy_with_logits(x, T.full_like(x, t), nil, weight, { reduction = "none" })
    end
  end
  local soft = function(x) local s, r, l = parts(x) return math.max(x, 0) + l, s, s * r end
  local minus = function(x) local s, r, l = parts(x) return math.max(-x, 0) + l, -r, s * r end
  local cases = {
    logaddexp = { soft, function(x) return T.logaddexp(x, T.zeros_like(x)) end },
    softplus = { soft, function(x) return x:softplus(1, 1000) end },
    logsigmoid = { minus, function(x) return -x:logsigmoid() end },
    soft_margin_loss = { minus, function(x)
      return T.nn.F.soft_margin_loss(x, T.ones_like(x), { reduction = "none" })
    end },
    silu = { function(x) local s, r = parts(x) return x * s, s + x * s * r, s * r * (2 + x * (r - s)) end, T.silu },
  }
  for _, t in ipairs { 0, 1, 0.25 } do
    for _, p in ipairs { 1, 3 } do cases["with_logits, " .. t .. ", " .. p] = { with_logits(t, p) } end
  end
  for name, case in pairs(cases) do
    it(name, function()
      local tols = { f32 = 2e-6, f64 = 1e-13, bf16 = 2e-2 }
      for dtype, tol in pairs(tols) do
        local xs = {}
        for _, v in ipairs { 0, 0.5, 1, 3, 6, 10, 17, 24, 40, 80 } do xs[#xs + 1], xs[#xs + 2] = v, -v - 0.25 end
        local x = T.tensor(xs, { dtype = dtype }):requires_grad_()
        local y = case[2](x)
        local g = T.grad_of({ y:sum() }, { x }, { create_graph = true })[1]
        local h = T.grad_of({ g:sum() }, { x })[1]
        local exact = x:double():totable()
        for i, v in ipairs(exact) do
          local want = { case[1](v) }
          for k, is in ipairs { y, g, h } do
            local got = is:get(i)
            local room = tol * math.abs(want[k]) + (math.abs(want[k]) < 1e-30 and 1e-33 or 0)
            assert.is_true(math.abs(got - want[k]) <= room, ("%s of %s at %g, derivative %d: %.9g, not %.9g")
              :format(name, dtype, v, k - 1, got, want[k]))
          end
        end
      end
    end)
  end
end)
