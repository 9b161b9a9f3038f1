-- SPDX-License-Identifier: MIT
--- Adam and AdamW.
-- @module perilune.optim.adam
local T = require "perilune"
local base = require "perilune.optim.optimizer"

local check, gather, forget_grads, call = base.check, base.gather, base.forget_grads, base.call
local adam_step = T.core.op.adam_step

local moments = { "exp_avg", "exp_avg_sq" }
local moments_max = { "exp_avg", "exp_avg_sq", "max_exp_avg_sq" }

local zeros = base.settings.zeros

local function make(p, group)
  return { exp_avg = zeros(p, group, "exp_avg"), exp_avg_sq = zeros(p, group, "exp_avg_sq") }
end
local function make_max(p, group)
  local s = make(p, group)
  s.max_exp_avg_sq = zeros(p, group, "max_exp_avg_sq")
  return s
end

local function define(name, decay, decoupled, state_dtype)
  local known = {
    { "lr", 1e-3, check.nonnegative }, { "betas", { 0.9, 0.999 }, check.betas },
    { "eps", 1e-8, check.nonnegative }, { "weight_decay", decay, check.nonnegative },
    { "amsgrad", false, check.bool }, { "maximize", false, check.bool },
    base.settings.state_dtype({ "f32", "bf16", "i8" }, state_dtype),
  }
  if not decoupled then known[#known + 1] = { "decoupled_weight_decay", false, check.bool } end
  local C = base.class(name, known)
  C.remembers = moments

  local function settings(group, o, count)
    local betas = group.betas
    o.k, o.lr, o.beta1, o.beta2, o.eps = group.amsgrad and 5 or 4, group.lr, betas[1], betas[2], group.eps
    local apart = decoupled or group.decoupled_weight_decay
    o.weight_decay, o.flags = group.weight_decay, (apart and 1 or 0) + (group.maximize and 2 or 0)
    o.step = count
    return o
  end

  function C:_ready(group) -- luacheck: ignore self
    local amsgrad = group.amsgrad
    return gather(group, amsgrad and moments_max or moments, amsgrad and make_max or make)
  end

  function C:update(group, lists, counts, n)
    local amsgrad = group.amsgrad
    if not lists then lists, counts, n = self:_ready(group) end
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
-- Adam (Kingma & Ba 2015); amsgrad on request. state_dtype = "bf16" (rounded by chance, so that means keep moving) or
-- "i8" (optim.Adam8bit) keeps the moments in fewer bits, "f32" those of half-precision parameters in more.
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

--- optim.Adam8bit(…) → optimizer
-- Adam whose moments take one byte an element each, in blocks of 256 with a scale (Dettmers et al. 2022): Adam with
-- state_dtype = "i8". Parameters of fewer than 4096 elements keep theirs in f32.
--   local p = nn.Parameter(T.ones(64, 64))
--   local opt = optim.Adam8bit({ p }, { lr = 0.1 })
--   p.grad = T.ones(64, 64)
--   opt:step()
--   print(opt:state_dict().state[1].exp_avg:dtype())  --> i8

--- optim.AdamW8bit(…) → optimizer
-- AdamW with state_dtype = "i8": see optim.Adam8bit.
--   local p = nn.Parameter(T.ones(64, 64))
--   local opt = optim.AdamW8bit({ p }, { lr = 0.1, weight_decay = 0 })
--   p.grad = T.ones(64, 64)
--   opt:step()
--   print(math.abs(p:detach():get(1, 1) - 0.9) < 1e-3)  --> true
return {
  --- Kingma & Ba 2015: m, v are running means of g and g²; p -= lr · m̂ / (√v̂ + eps), with weight_decay
  -- added
  -- to the gradient. amsgrad: v̂ from its largest value so far (Reddi et al. 2018).
  -- `lr=1e-3 betas={0.9, 0.999} eps=1e-8 weight_decay=0 amsgrad=false maximize=false decoupled_weight_decay=false
  -- state_dtype=false`
  Adam = define("Adam", 0.0, false),
  --- The same with weight decay apart from the gradient: p -= lr·weight_decay·p first (Loshchilov & Hutter
  -- 2019). `weight_decay=0.01`
  AdamW = define("AdamW", 0.01, true),
  -- Both with 8 bits a moment (Dettmers et al. 2022), `state_dtype="i8"`.
  Adam8bit = define("Adam8bit", 0.0, false, "i8"),
  AdamW8bit = define("AdamW8bit", 0.01, true, "i8"),
}
