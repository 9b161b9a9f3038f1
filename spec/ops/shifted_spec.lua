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
