-- SPDX-License-Identifier: MIT
--- RMSprop.
-- @classmod RMSprop
local T = require "perilune"
local base = require "perilune.optim.optimizer"
local options = require "perilune.options"

local check, gather, forget_grads, call = base.check, base.gather, base.forget_grads, base.call
local rmsprop_step = T.core.op.rmsprop_step

-- Hinton 2012: s = alpha·s + (1 - alpha)·g²; p -= lr·g / (√s + eps). momentum: of the steps. centered: the variance in
-- place of s (Graves 2013). `lr=1e-2 alpha=0.99 eps=1e-8 weight_decay=0 momentum=0 centered=false maximize=false`
--- optim.RMSprop(…) → optimizer
-- Gradients over the root of their mean square (Hinton 2012).
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.RMSprop({ p }, { lr = 0.01 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
local RMSprop = base.class("RMSprop", {
  { "lr", 1e-2, check.nonnegative }, { "alpha", 0.99, check.nonnegative }, { "eps", 1e-8, check.nonnegative },
  { "weight_decay", 0.0, check.nonnegative }, { "momentum", 0.0, check.nonnegative },
  { "centered", false, check.bool }, { "maximize", false, check.bool },
  base.settings.state_dtype { "f32", "bf16", "i8" },
})

RMSprop.remembers = { "square_avg" }

function RMSprop:_admit(g) -- luacheck: ignore self
  if g.centered and g.state_dtype and g.state_dtype ~= "f32" then -- a variance as a difference of two rounded numbers
    options.fail("optim.RMSprop: centered needs state_dtype = \"f32\" or false, got %q", g.state_dtype)
  end
end

-- By flags: 1 a momentum buffer, 2 centered.
local columns = {
  [0] = { "square_avg" }, { "square_avg", "momentum_buffer" }, { "square_avg", "grad_avg" },
  { "square_avg", "momentum_buffer", "grad_avg" },
}

local function make(p, group) return { square_avg = base.settings.zeros(p, group, "square_avg") } end

local function kind_of(group) return (group.momentum > 0 and 1 or 0) + (group.centered and 2 or 0) end

local function settings(group, o, count)
  local kind = kind_of(group)
  o.k, o.lr, o.alpha, o.eps = 2 + #columns[kind], group.lr, group.alpha, group.eps
  o.step = count
  o.weight_decay, o.momentum, o.flags = group.weight_decay, group.momentum, kind + (group.maximize and 4 or 0)
  return o
end

function RMSprop:_ready(group)
  if group.centered then self:_admit(group) end -- switched on since
  return gather(group, columns[kind_of(group)], make)
end

function RMSprop:update(group, lists, counts, n)
  local kind = kind_of(group)
  if not lists then lists, counts, n = self:_ready(group) end
  local o = group._opts
  if not o then
    o = {}
    group._opts = o
  end
  for i = 1, n do call(rmsprop_step, group, lists, i, 2 + #columns[kind], o, counts[i], settings) end
  if n > 0 then forget_grads(group, 2 + #columns[kind]) end
end

return RMSprop
