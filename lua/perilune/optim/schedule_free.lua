-- SPDX-License-Identifier: MIT
--- Schedule-free optimizers (Defazio et al. 2024, "The Road Less Scheduled"): AdamWScheduleFree, SGDScheduleFree.
--
-- There are three points: z is stepped, x is the weighted mean of all z, and gradients are taken at y, between them. A
-- parameter holds y in training mode and x, which is to be used, in evaluation mode; opt:train() and opt:eval() go from
-- one to the other. Nets are asked, too: net:eval() of parameters that still are y is an error.
-- @module perilune.optim.schedule_free
local T = require "perilune"
local base = require "perilune.optim.optimizer"
local options = require "perilune.options"
local fused = require "perilune.optim.fused"
local modes = require "perilune.optim.modes"

local check, gather, forget_grads, call = base.check, base.gather, base.forget_grads, base.call
local optimizer_step = T.core.op.optimizer_step
local max = math.max
local out = {}
local owners = modes.owners

local function steps(v) return math.type(v) == "integer" and v >= 0 or "an integer >= 0" end
local function between(v) return type(v) == "number" and v > 0 and v < 1 or "a number between 0 and 1" end

-- What is between z and x is gone where no part of it is x: x could not be found again.
local function betas(v)
  local ok = check.betas(v)
  return ok == true and v[1] == 0 and "two numbers below 1, the first above 0 and the second not below" or ok
end

local AVERAGED = 8 -- a flag of saved steps: the parameters are averages (kernels/optim.h)

-- What is stepped so far, of a group: no settings that a trace was made for.
local carried = { k = true, weight_sum = true, lr_max = true }

-- lr in step k
local function rate_at(group, k) return group.lr * (k <= group.warmup_steps and k / group.warmup_steps or 1) end

-- momentum(group): the part of x in y. first(group): the rule's first settings (kernels/optim_formulas.h).
local function define(name, list, columns, rule, momentum, first)
  local settings = {}
  for _, s in ipairs(list) do settings[#settings + 1] = s end
  for _, s in ipairs { fused.decay(), { "warmup_steps", 0, steps }, { "r", 0.0, check.number },
    { "weight_lr_power", 2.0, check.number }, { "maximize", false, check.bool },
    -- What has been stepped so far; of a group, so that it is saved and loaded with its settings.
    { "train_mode", true, check.bool }, { "k", 0, steps }, { "weight_sum", 0.0, check.nonnegative },
    { "lr_max", -1.0, check.number } } do
    settings[#settings + 1] = s
  end
  local C = base.class(name, settings)
  C.copies, C.moves, C.remembers = true, carried, columns
  local width = 2 + #columns

  function C:add_param_group(group)
    base.Optimizer.add_param_group(self, group)
    local g = self.param_groups[#self.param_groups]
    if #self.param_groups > 1 then g.train_mode = self.param_groups[1].train_mode end
    for _, p in ipairs(g.params) do owners[p] = self end
  end

  --- opt:is_training() → boolean
  -- Do the parameters stand where gradients are taken?
  function C:is_training() return self.param_groups[1].train_mode end

  local function switch(self, training)
    self:_settle()
    local _ <close> = T.no_grad()
    local _ <close> = T.core.hold_interrupts()
    for _, group in ipairs(self.param_groups) do
      if group.train_mode ~= training then
        local m, on = momentum(group), {}
        for i, p in ipairs(group.params) do
          local s, device = group._state[i], p:device()
          local there = on[device] or {}
          if s then on[device] = table.move({ p, s.z, s.z }, 1, 3, #there + 1, there) end
        end
        for _, there in pairs(on) do
          optimizer_step(there, { k = 3, rule = "schedule_free_move", numbers = { training and 1 - m or 1 - 1 / m } })
        end
        group.train_mode = training
      end
    end
    return self
  end

  --- opt:train() → opt
  -- Back to training: parameters are where gradients are taken.
  function C:train()
    if T.core.jit_tracing() then options.untraceable("optim.%s:train() is for outside of T.jit", name) end
    return switch(self, true)
  end

  --- opt:eval() → opt
  -- Parameters become the averages, which are to be evaluated, saved and used.
  function C:eval()
    if T.core.jit_tracing() then options.untraceable("optim.%s:eval() is for outside of T.jit", name) end
    return switch(self, false)
  end

  local function make(p, group)
    local s = { z = p:detach():clone() }
    if columns[1] ~= "z" then s[columns[1]] = fused.zeros(p, group, columns[1]) end
    return s
  end

  function C:_ready(group) -- luacheck: ignore self
    if not group.train_mode then
      options.fail("optim.%s:step: the parameters are averages, in evaluation mode; call opt:train() before gradients "
        .. "are taken", name)
    end
    return gather(group, columns, make)
  end

  local function nothing() end -- the first list's has noted where the group was

  function C:update(group, lists, counts, n)
    if not lists then lists, counts, n = self:_ready(group) end
    -- What is carried is the group's: it moves with the first call, and stands as it was if that fails.
    local was = {}
    local function keep() was.k, was.lr_max, was.weight_sum = group.k, group.lr_max, group.weight_sum end
    local function move(by)
      if by < 0 then
        group.k, group.lr_max, group.weight_sum = was.k, was.lr_max, was.weight_sum
        return
      end
      local k = group.k + 1
      local lr_max = max(rate_at(group, k), group.lr_max)
      group.k, group.lr_max = k, lr_max
      group.weight_sum = group.weight_sum + k ^ group.r * lr_max ^ group.weight_lr_power
    end
    local function of(g, to, step)
      local numbers = first(g)
      for _, v in ipairs { g.warmup_steps, g.r, g.weight_lr_power, g.k, g.weight_sum, g.lr_max, was.weight_sum,
        was.lr_max } do
        numbers[#numbers + 1] = v
      end
      to.k, to.rule, to.numbers, to.step = width, rule, numbers, step
      to.lr, to.weight_decay, to.flags = g.lr, g.weight_decay, g.maximize and 1 or 0
      if columns[1] == "z" then to.flags = to.flags + 2 end
      return to
    end
    local o = group._opts
    if not o then
      o = {}
      group._opts = o
    end
    local fixed = #first(group) + 3
    local function load(attrs)
      local had = attrs.numbers
      group.k, group.weight_sum, group.lr_max = math.tointeger(had[fixed + 1]), had[fixed + 2], had[fixed + 3]
      was.weight_sum, was.lr_max = had[fixed + 4], had[fixed + 5]
      for _, g in ipairs(self.param_groups) do g.train_mode = attrs.flags & AVERAGED == 0 end
    end
    keep()
    move(1)
    local _ <close> = setmetatable({}, { __close = function(_, failed) if failed then move(-1) end end })
    if n == 0 and T.core.jit_tracing() then require("perilune.jit").move(move, keep, nil, group) end
    for i = 1, n do
      call(optimizer_step, group, lists, i, width, o, counts[i], of,
        { moved = i == 1 and move or nil, keep = i == 1 and keep or nothing, carried = carried, load = load,
          fixed = fixed })
    end
    if n > 0 then forget_grads(group, width) end
  end

  return C
end

-- `lr=2.5e-3 betas={0.9, 0.999} eps=1e-8 weight_decay=0 warmup_steps=0 r=0 weight_lr_power=2 state_dtype=false`
--- optim.AdamWScheduleFree(…) → optimizer
-- AdamW that needs no schedule, as it averages (Defazio et al. 2024). opt:eval() before evaluating or using the net,
-- opt:train() before training goes on; a net that is evaluated in the wrong mode is an error.
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.AdamWScheduleFree({ p }, { lr = 0.1 })
--   for _ = 1, 50 do
--     opt:zero_grad();
--     (p * p):sum():backward()
--     opt:step()
--   end
--   opt:eval()
--   print((p * p):sum():item() < 0.5)  --> true
out.AdamWScheduleFree = define("AdamWScheduleFree", { { "lr", 2.5e-3, check.nonnegative },
  { "betas", { 0.9, 0.999 }, betas }, fused.eps(1e-8),
  base.settings.state_dtype(fused.all_states) }, { "exp_avg_sq", "z" }, "schedule_free_adamw",
  function(group) return group.betas[1] end,
  function(group) return { group.betas[1], group.betas[2], group.eps } end)

-- `lr=1 momentum=0.9 weight_decay=0 warmup_steps=0 r=0 weight_lr_power=2`
--- optim.SGDScheduleFree(…) → optimizer
-- SGD that needs no schedule (Defazio et al. 2024): see optim.AdamWScheduleFree.
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.SGDScheduleFree({ p }, { lr = 0.3 })
--   for _ = 1, 50 do
--     opt:zero_grad();
--     (p * p):sum():backward()
--     opt:step()
--   end
--   opt:eval()
--   print((p * p):sum():item() < 0.5)  --> true
out.SGDScheduleFree = define("SGDScheduleFree", { { "lr", 1.0, check.nonnegative }, { "momentum", 0.9, between } },
  { "z" }, "schedule_free_sgd", function(group) return group.momentum end,
  function(group) return { group.momentum } end)

return out
