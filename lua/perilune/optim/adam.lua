-- SPDX-License-Identifier: MIT
--- Adam and AdamW.
-- @module perilune.optim.adam
local T = require "perilune"
local base = require "perilune.optim.optimizer"

local check, gather, forget_grads, call = base.check, base.gather, base.forget_grads, base.call
local adam_step = T.core.op.adam_step

local moments = { "exp_avg", "exp_avg_sq" }
local moments_max = { "exp_avg", "exp_avg_sq", "max_exp_avg_sq" }

local function make(p) return { exp_avg = T.zeros_like(p), exp_avg_sq = T.zeros_like(p) } end
local function make_max(p)
  local s = make(p)
  s.max_exp_avg_sq = T.zeros_like(p)
  return s
end

local function define(name, decay, decoupled)
  local known = {
    { "lr", 1e-3, check.nonnegative }, { "betas", { 0.9, 0.999 }, check.betas },
    { "eps", 1e-8, check.nonnegative }, { "weight_decay", decay, check.nonnegative },
    { "amsgrad", false, check.bool }, { "maximize", false, check.bool },
  }
  if not decoupled then known[#known + 1] = { "decoupled_weight_decay", false, check.bool } end
  local C = base.class(name, known)

  local function settings(group, o, count)
    local betas = group.betas
    o.k, o.lr, o.beta1, o.beta2, o.eps = group.amsgrad and 5 or 4, group.lr, betas[1], betas[2], group.eps
    local apart = decoupled or group.decoupled_weight_decay
    o.weight_decay, o.flags = group.weight_decay, (apart and 1 or 0) + (group.maximize and 2 or 0)
    o.step = count
    return o
  end

  function C:update(group)
    local amsgrad = group.amsgrad
    local lists, counts, n = gather(group, amsgrad and moments_max or moments, amsgrad and make_max or make)
    local o = group._opts
    if not o then
      o = {}
      group._opts = o
    end
    local width = amsgrad and 5 or 4
    for i = 1, n do call(adam_step, group, lists, i, width, o, counts[i], settings) end
    if n > 0 then forget_grads(group, width) end
  end

  return C
end

--- optim.Adam(…) → optimizer
-- Adam (Kingma & Ba 2015); amsgrad on request.
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.Adam({ p }, { lr = 0.1 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true

--- optim.AdamW(…) → optimizer
-- Adam whose weight decay does not pass through the moments (Loshchilov & Hutter 2019).
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.AdamW({ p }, { lr = 0.1 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
return {
  --- Kingma & Ba 2015: m, v are running means of g and g²; p -= lr · m̂ / (√v̂ + eps), with weight_decay
  -- added
  -- to the gradient. amsgrad: v̂ from its largest value so far (Reddi et al. 2018).
  -- `lr=1e-3 betas={0.9, 0.999} eps=1e-8 weight_decay=0 amsgrad=false maximize=false decoupled_weight_decay=false`
  Adam = define("Adam", 0.0, false),
  --- The same with weight decay apart from the gradient: p -= lr·weight_decay·p first (Loshchilov & Hutter
  -- 2019). `weight_decay=0.01`
  AdamW = define("AdamW", 0.01, true),
}
