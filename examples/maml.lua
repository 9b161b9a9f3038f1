-- SPDX-License-Identifier: MIT
-- One step of MAML with second-order gradients (https://arxiv.org/abs/1703.03400): four sine curves, three inner
-- steps each, and the gradient of the loss after them with respect to the parameters before them.
--   perilune run examples/maml.lua
-- Compares loss, gradients and updated parameters with PyTorch's float64 numbers in spec/fixtures/second_order.lua;
-- ends with "ok" when all agree to 1e-6 relative.
local T = require "perilune"
local F = T.nn.F

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local expected = dofile(here .. "../spec/fixtures/second_order.lua").maml

local function tensor(t) return T.tensor(t.data, { dtype = "f64" }):reshape(t.shape) end

local function tensors(list)
  local out = {}
  for i, t in ipairs(list) do out[i] = tensor(t) end
  return out
end

local function loss(p, x, y)
  local h = (x:matmul(p[1]) + p[2]):tanh()
  h = F.softplus(h:matmul(p[3]) + p[4])
  return ((h:matmul(p[5]) + p[6] - y) ^ 2):mean()
end

-- The parameters after the inner steps. `order` 1 takes the inner gradients as constants.
local function adapt(p, x, y, order)
  for _ = 1, expected.steps do
    local g, fast = T.grad(loss)(p, x, y), {}
    for i, t in ipairs(p) do fast[i] = t - expected.inner_lr * (order == 1 and g[i]:detach() or g[i]) end
    p = fast
  end
  return p
end

-- The loss on the query half of each task, after adapting to its support half.
local function meta_loss(p, x, y, order)
  local total = 0
  for task = 1, x:size(1) do
    local fast = adapt(p, x[{ task, 1 }], y[{ task, 1 }], order)
    total = total + loss(fast, x[{ task, 2 }], y[{ task, 2 }])
  end
  return total / x:size(1)
end

local params, x, y = tensors(expected.params), tensor(expected.x), tensor(expected.y)
local value, grads = T.value_and_grad(meta_loss)(params, x, y, 2)
local first_order = T.grad(meta_loss)(params, x, y, 1)
local updated = {}
for i, p in ipairs(params) do updated[i] = p - expected.outer_lr * grads[i] end

-- ---- the comparison ------------------------------------------------------------------------------------
local count = 0
local function compare(name, got, want)
  local scale = math.max(want:abs():max():item(), 1e-30)
  local off = (got - want):abs():max():item() / scale
  assert(off <= 1e-6, ("%s differs from PyTorch by %g relative"):format(name, off))
  count = count + 1
  print(("  %-24s largest %12.6g   relative difference %.1e"):format(name, scale, off))
end

print(("meta loss %.12f, PyTorch %.12f"):format(value:item(), expected.loss))
compare("loss", value, T.tensor(expected.loss, { dtype = "f64" }))
for i, g in ipairs(tensors(expected.grads)) do compare("gradient " .. i, grads[i], g) end
for i, g in ipairs(tensors(expected.first_order)) do compare("first-order gradient " .. i, first_order[i], g) end
for i, p in ipairs(tensors(expected.updated)) do compare("updated parameter " .. i, updated[i], p) end
local apart = (grads[1] - first_order[1]):abs():max():item()
assert(apart > 1e-3, "the second-order terms are missing")
print(("%d values as PyTorch's"):format(count))
print("ok")
