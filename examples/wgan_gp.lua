-- SPDX-License-Identifier: MIT
-- One step of a WGAN-GP critic (https://arxiv.org/abs/1704.00028): its loss holds the norm of its own gradient, so
-- the backward pass runs through a backward pass.
--   perilune run examples/wgan_gp.lua
-- Compares loss, gradients and updated parameters with PyTorch's float64 numbers in spec/fixtures/second_order.lua;
-- ends with "ok" when all agree to 1e-6 relative.
local T = require "perilune"
local F = T.nn.F

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local expected = dofile(here .. "../spec/fixtures/second_order.lua").wgan_gp

local function tensor(t) return T.tensor(t.data, { dtype = "f64" }):reshape(t.shape) end

local params, want = {}, { grads = {}, updated = {} }
for i, t in ipairs(expected.params) do
  params[i] = tensor(t):requires_grad_()
  want.grads[i], want.updated[i] = tensor(expected.grads[i]), tensor(expected.updated[i])
end
local real, fake, mix = tensor(expected.real), tensor(expected.fake), tensor(expected.mix)

local function critic(a)
  local h = F.leaky_relu(F.linear(a, params[1], params[2]), 0.2)
  h = F.layer_norm(F.linear(h, params[3], params[4]):tanh(), { 16 })
  return F.linear(h, params[5], params[6])
end

-- The norm of the critic's gradient between real and generated samples shall be 1.
local x = (mix * real + (1 - mix) * fake):requires_grad_()
local slope = T.grad_of(critic(x):sum(), x, { create_graph = true })
local norm = (slope * slope):sum(2):sqrt()
local penalty = ((norm - 1) ^ 2):mean()
local distance = critic(real):mean() - critic(fake):mean()
local loss = expected.weight * penalty - distance
loss:backward()

local opt = T.optim.SGD(params, { lr = expected.lr })

-- ---- the comparison ------------------------------------------------------------------------------------
local count = 0
local function compare(name, got, value)
  if type(value) == "number" then value = T.tensor(value, { dtype = "f64" }) end
  local scale = value:abs():max():item()
  -- The last bias moves both means alike: its gradient is zero but for rounding.
  local off = (got - value):abs():max():item() / math.max(scale, 1e-9)
  assert(off <= 1e-6, ("%s differs from PyTorch by %g relative"):format(name, off))
  count = count + 1
  print(("  %-24s largest %12.6g   relative difference %.1e"):format(name, scale, off))
end

print(("loss %.12f, PyTorch %.12f"):format(loss:item(), expected.loss))
compare("gradient norms", norm, tensor(expected.norm))
compare("penalty", penalty, expected.penalty)
compare("distance", distance, expected.distance)
compare("loss", loss, expected.loss)
for i, g in ipairs(want.grads) do compare("gradient " .. i, params[i].grad, g) end
opt:step()
for i, p in ipairs(want.updated) do compare("updated parameter " .. i, params[i]:detach(), p) end
print(("%d values as PyTorch's"):format(count))
print("ok")
