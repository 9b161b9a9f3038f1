-- SPDX-License-Identifier: MIT
-- Schedules made of others, up to three deep, with a rate set by hand and a resume in between: rates and momenta are
-- PyTorch's after every step. spec/fixtures/optim/random_schedules.py wrote the cases, and says what it mends there.

local T = require "perilune"
local near = require "spec.support.near"
local nn, optim = T.nn, T.optim
local S = optim.lr_scheduler

local path = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/optim/random_schedules.lua"
local lambdas = { [0] = function(t) return 1 / (t + 1) end, function(t) return 0.9 ^ t end,
  function(t) return t < 3 and 1.0 or 0.5 end }

local function sgd(rates)
  local groups = {}
  for i, rate in ipairs(rates) do groups[i] = { params = { nn.Parameter(T.zeros(1)) }, lr = rate } end
  return optim.SGD(groups, { lr = 0.1, momentum = 0.9 })
end

local function build(tree, opt)
  local parts, options = {}, {}
  for i, part in ipairs(tree.parts or {}) do parts[i] = build(part, opt) end
  if tree.k == "SequentialLR" then return S.SequentialLR(opt, { schedulers = parts, milestones = tree.milestones }) end
  if tree.k == "ChainedScheduler" then return S.ChainedScheduler(parts) end
  for key, v in pairs(tree.a) do options[key] = v end
  local f = options.lr_lambda
  if type(f) == "table" then
    options.lr_lambda = { lambdas[f[1]], lambdas[f[2]] }
  elseif f then
    options.lr_lambda = lambdas[f]
  end
  return S[tree.k](opt, options)
end

local function run(case)
  local opt = sgd(case.rates)
  local schedule = build(case.tree, opt)
  for t, want in ipairs(case.after) do
    for _, group in ipairs(t - 1 == case.by_hand and opt.param_groups or {}) do group.lr = 0.05 end
    if t - 1 == case.resume then
      local of_opt, of_schedule = opt:state_dict(), schedule:state_dict()
      opt = sgd(case.rates)
      schedule = build(case.tree, opt)
      opt:load_state_dict(of_opt)
      schedule:load_state_dict(of_schedule)
    end
    for i, group in ipairs(opt.param_groups) do
      for k, name in ipairs { "lr", "momentum" } do
        local expected = want[2 * i - 2 + k]
        local far = math.abs(group[name] - expected)
        if far >= 1e-8 or far ~= far then
          return ("%s of group %d is %g, not %g, after %d steps"):format(name, i, group[name], expected, t - 1)
        end
      end
    end
    schedule:step()
  end
end

describe("schedules made of others at random", function()
  it("give PyTorch's rates", function()
    local failed = {}
    for k, case in ipairs(dofile(path)) do
      local why = run(case)
      if why then failed[#failed + 1] = ("%d: %s"):format(k, why) end
    end
    assert.same({}, failed)
  end)

  it("of one part need no milestones, and milestones do not fall", function()
    local opt = sgd { 1 }
    local one = S.SequentialLR(opt, { S.StepLR(opt, 1, 0.5) }, {})
    one:step()
    assert.same({ 0.5 }, one:get_last_lr())
    near.fails("milestones must not fall, got {6, 2}", S.SequentialLR, opt,
      { S.StepLR(opt, 1), S.StepLR(opt, 2), S.StepLR(opt, 3) }, { 6, 2 })
    near.fails("a list of 1 schedulers is wanted for 0 milestones", S.SequentialLR, opt, {}, {})
    near.fails("total_iters must be a positive integer, got 0", S.ConstantLR, opt, 0.5, 0) -- which factor would stay?
  end)
end)
