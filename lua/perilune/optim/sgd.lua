-- SPDX-License-Identifier: MIT
--- Stochastic gradient descent.
-- @classmod SGD
local T = require "perilune"
local base = require "perilune.optim.optimizer"
local options = require "perilune.options"

local check, gather, forget_grads, call = base.check, base.gather, base.forget_grads, base.call
local sgd_step = T.core.op.sgd_step

-- g = grad + weight_decay·p; b = momentum·b + (1 - dampening)·g (b = g at first); p -= lr·b, with nesterov
-- p -= lr·(g + momentum·b) (Sutskever et al. 2013).
-- @tparam table params
-- @tparam[opt] table opts `lr=1e-3 momentum=0 dampening=0 weight_decay=0 nesterov=false maximize=false`
--- optim.SGD(…) → optimizer
-- Stochastic gradient descent, with momentum and Nesterov's form.
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.SGD({ p }, { lr = 0.1, momentum = 0.9 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
local SGD = base.class("SGD", {
  { "lr", 1e-3, check.nonnegative }, { "momentum", 0.0, check.nonnegative }, { "dampening", 0.0,
    check.number },
  { "weight_decay", 0.0, check.nonnegative }, { "nesterov", false, check.bool },
  { "maximize", false, check.bool }, base.settings.state_dtype { "f32", "bf16", "i8" },
})

function SGD:_admit(g) -- luacheck: ignore self
  if g.nesterov and (g.momentum <= 0 or g.dampening ~= 0) then
    options.fail("optim.SGD: nesterov needs momentum > 0 and dampening = 0")
  end
end

local none, buffer = {}, { "momentum_buffer" }
local function nothing() return {} end
local function make_buffer(p, group)
  return { momentum_buffer = base.settings.zeros(p, group, "momentum_buffer") }
end

local function settings(group, o, count)
  o.lr, o.momentum, o.dampening = group.lr, group.momentum, group.dampening
  o.k = group.momentum ~= 0 and 3 or 2 -- of these settings: a compiled step made for others may run again
  o.weight_decay, o.nesterov, o.maximize = group.weight_decay, group.nesterov, group.maximize
  o.step = count
  return o
end

function SGD:_ready(group) -- luacheck: ignore self
  local with_buffer = group.momentum ~= 0
  local columns = with_buffer and buffer or none
  if with_buffer and group._columns ~= buffer then -- momentum was switched on between steps
    for i, s in pairs(group._state) do
      if not s.momentum_buffer then group._state[i], group._steps[i] = nil, nil end
    end
  end
  return gather(group, columns, with_buffer and make_buffer or nothing)
end

function SGD:update(group, lists, counts, n)
  if not lists then lists, counts, n = self:_ready(group) end
  local width = group.momentum ~= 0 and 3 or 2
  local o = group._opts
  if not o then
    o = {}
    group._opts = o
  end
  for i = 1, n do call(sgd_step, group, lists, i, width, o, counts[i], settings) end
  if n > 0 then forget_grads(group, width) end
end

return SGD
