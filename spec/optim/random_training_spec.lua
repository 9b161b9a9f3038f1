-- SPDX-License-Identifier: MIT
-- Twenty steps of training with optimizers, schedules of several parts, clipping and groups drawn at random: rates and
-- parameters are PyTorch's, as the script is written, where state is saved and loaded into new objects half-way, and
-- under T.jit.
-- spec/fixtures/optim/random_training.py wrote the cases.

local T = require "perilune"
local nn, optim = T.nn, T.optim

local path = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/optim/random_training.lua"

local function wave(shape, k)
  local n, list = 1, {}
  for _, size in ipairs(shape) do n = n * size end
  for i = 0, n - 1 do list[i + 1] = ((i * 37 + k * 61 + 11) % 97 - 48) / 32 end
  return T.tensor(list, { dtype = "f64" }):view(shape)
end

local FIGURES = { 5, 4, 4.5, 4.4, 4.39, 4.6, 3, 3.1, 3.2, 2.999 }

local function build(case, params)
  local given = params
  if case.group then
    local own = { params = { params[3] } }
    for k, v in pairs(case.group) do own[k] = v end
    given = { { params = { params[1], params[2] } }, own }
  end
  local opts = {}
  for k, v in pairs(case.opts) do opts[k] = v end
  local opt = optim[case.name](given, opts)
  return opt, assert(load("local S, opt = ... return " .. case.schedule))(optim.lr_scheduler, opt)
end

local function run(case, mode)
  local params, failed = {}, {}
  for j, shape in ipairs(case.shapes) do params[j] = wave(shape, j):requires_grad_() end
  local opt, schedule = build(case, params)
  local waves = {}
  local function losses(t)
    local loss
    for j, p in ipairs(params) do
      if not (j == 2 and (t == 4 or t == 5)) then
        local one = ((p - 0.1 * j) ^ 2 * (1 + 0.3 * (t - 1) % 2)):sum() + (p:sin() * waves[j]):sum()
        loss = loss and loss + one or one
      end
    end
    return loss
  end
  local function step(t)
    opt:zero_grad()
    losses(t):backward()
    if case.clip == "norm" then nn.utils.clip_grad_norm_(params, 1.5) end
    if case.clip == "inf" then nn.utils.clip_grad_norm_(params, 0.5, math.huge) end
    if case.clip == "value" then nn.utils.clip_grad_value_(params, 0.4) end
    opt:step()
  end
  local compiled = mode == "jit" and T.jit(step, { max_traces = 64 }) or step
  for t, rates in ipairs(case.rates) do
    for j, shape in ipairs(case.shapes) do
      waves[j] = wave(shape, t - 1 + j - 1)
    end
    compiled(t)
    if schedule then
      if case.schedule:find "Plateau" then schedule:step(FIGURES[(t - 1) % 10 + 1]) else schedule:step() end
    end
    for k, rate in ipairs(rates) do
      local got = opt.param_groups[k].lr
      if math.abs(got - rate) > 1e-8 then failed[#failed + 1] = ("rate %g, not %g, at step %d"):format(got, rate, t) end
    end
    if mode == "saved" and t == 10 then
      local state, s = opt:state_dict(), schedule and schedule:state_dict()
      for j, p in ipairs(params) do params[j] = p:detach():clone():requires_grad_() end
      opt, schedule = build(case, params)
      if schedule then schedule:load_state_dict(s) end
      opt:load_state_dict(state)
    end
  end
  for j, p in ipairs(params) do
    local want = T.tensor(case.after[j], { dtype = "f64" })
    local far = ((p:detach():view(-1) - want):abs() / (want:abs() + 1)):max():item()
    if far >= 1e-7 or far ~= far then failed[#failed + 1] = ("parameter %d is off by %g"):format(j, far) end
  end
  return table.concat(failed, "; ")
end

describe("training drawn at random", function()
  for _, mode in ipairs { "written", "saved", "jit" } do
    it("goes PyTorch's way: " .. mode, function()
      local failed, n = {}, 0
      for k, case in ipairs(dofile(path)) do
        local ok, why = pcall(run, case, mode)
        if not ok or why ~= "" then
          failed[#failed + 1] = ("%d %s %s %s: %s"):format(k, case.name, case.schedule, case.clip, why)
        end
        n = n + 1
      end
      assert.same({}, failed)
      assert.is_true(n >= 100)
    end)
  end
end)
