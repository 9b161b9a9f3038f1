-- SPDX-License-Identifier: MIT
-- Learning rate schedules, one by one, in sequence and made of others.

local T = require "perilune"
local near = require "spec.support.near"
local nn, optim = T.nn, T.optim
local fails = near.fails
local S = optim.lr_scheduler

describe("a schedule", function()
  local function rates(make, n, metric)
    local opt = optim.SGD({ nn.Parameter(T.zeros(1)) }, { lr = 1.0, momentum = 0.9 })
    local s, out = make(opt), { opt.param_groups[1].lr }
    for i = 1, n do
      s:step(metric and metric[i])
      out[i + 1] = opt.param_groups[1].lr
    end
    return out
  end

  local function same(want, got)
    assert.equal(#want, #got)
    for i = 1, #want do
      assert.is_true(math.abs(want[i] - got[i]) < 1e-12, ("%d: %g, should be %g"):format(i, got[i], want[i]))
    end
  end

  it("StepLR, MultiStepLR, ExponentialLR, LambdaLR", function()
    same({ 1, 1, 0.5, 0.5, 0.25 }, rates(function(o) return S.StepLR(o, 2, { gamma = 0.5 }) end, 4))
    same({ 1, 0.1, 0.1, 0.01, 0.01 }, rates(function(o) return S.MultiStepLR(o, { milestones = { 1,
      3 } }) end, 4))
    same({ 1, 0.5, 0.25 }, rates(function(o) return S.ExponentialLR(o, 0.5) end, 2))
    same({ 1, 3, 5 }, rates(function(o) return S.LambdaLR(o, function(t) return 1 + 2 * t end) end, 2))
  end)

  it("CosineAnnealingLR and warm restarts", function()
    local h = math.sqrt(0.5)
    same({ 1, (1 + h) / 2, 0.5, (1 - h) / 2, 0 }, rates(function(o) return S.CosineAnnealingLR(o, 4) end, 4))
    same({ 1, 0.5, 1, 0.5 }, rates(function(o) return S.CosineAnnealingWarmRestarts(o, 2) end, 3))
    same({ 1, 0.5, 1, (1 + h) / 2, 0.5 },
      rates(function(o) return S.CosineAnnealingWarmRestarts(o, { T_0 = 2, T_mult = 2 }) end, 4))
  end)

  it("ConstantLR, LinearLR, PolynomialLR", function()
    same({ 0.5, 0.5, 1 }, rates(function(o) return S.ConstantLR(o, { factor = 0.5, total_iters = 2 }) end, 2))
    same({ 0.5, 0.75, 1, 1 }, rates(function(o) return S.LinearLR(o, { start_factor = 0.5,
      total_iters = 2 }) end, 3))
    same({ 1, 0.25, 0, 0 }, rates(function(o) return S.PolynomialLR(o, { total_iters = 2, power = 2 }) end,
      3))
  end)

  it("OneCycleLR moves momentum the other way", function()
    local opt = optim.SGD({ nn.Parameter(T.zeros(1)) }, { lr = 1.0, momentum = 0.9 })
    local s = S.OneCycleLR(opt, { max_lr = 1, total_steps = 10 })
    local g = opt.param_groups[1]
    assert.is_true(math.abs(g.lr - 0.04) < 1e-12 and math.abs(g.momentum - 0.95) < 1e-12)
    for _ = 1, 2 do s:step() end
    assert.is_true(math.abs(g.lr - 1) < 1e-12 and math.abs(g.momentum - 0.85) < 1e-12)
    for _ = 1, 7 do s:step() end
    assert.is_true(math.abs(g.lr - 4e-6) < 1e-12)
    s:step() -- after the last batch
    assert.is_true(math.abs(g.lr - 4e-6) < 1e-12)
    fails("total_steps is 10", s.step, s)
  end)

  it("ReduceLROnPlateau waits for patience", function()
    same({ 1, 1, 1, 1, 0.1, 0.1 },
      rates(function(o) return S.ReduceLROnPlateau(o, { patience = 1 }) end, 5, { 3, 2, 2, 2, 1 }))
  end)

  it("saves where it is", function()
    local opt = optim.SGD({ nn.Parameter(T.zeros(1)) }, { lr = 1.0 })
    local s = S.StepLR(opt, { step_size = 2, gamma = 0.5 })
    for _ = 1, 3 do s:step() end
    local other = S.StepLR(optim.SGD({ nn.Parameter(T.zeros(1)) }, { lr = 7 }), 1)
    other:load_state_dict(s:state_dict())
    assert.same({ 0.5 }, other:get_last_lr())
    other:step()
    assert.same({ 0.25 }, other:get_last_lr())
    fails("must be an optimizer", S.StepLR, 3, 1)
    fails("step_size is missing", S.StepLR, opt)
  end)
end)

describe("SequentialLR", function()
  local function make()
    local opt = optim.SGD({ nn.Parameter(T.zeros(1)) }, { lr = 1.0 })
    return opt, S.SequentialLR(opt, { milestones = { 4 },
      schedulers = { S.LinearLR(opt, { start_factor = 0.1, total_iters = 4 }), S.CosineAnnealingLR(opt, 6) } })
  end

  it("gives PyTorch's rates, and goes on from a saved state", function()
    local opt, s = make()
    local expected = { 0.1, 0.325, 0.55, 0.775, 1, 0.93301, 0.75, 0.5, 0.25, 0.06699 }
    local again, t
    for i, lr in ipairs(expected) do
      assert.is_true(math.abs(opt.param_groups[1].lr - lr) < 1e-5, "step " .. i)
      if again then assert.equal(opt.param_groups[1].lr, again.param_groups[1].lr) end
      if i == 6 then
        again, t = make()
        t:load_state_dict(s:state_dict())
        assert.equal(opt.param_groups[1].lr, again.param_groups[1].lr)
      end
      s:step()
      if again then t:step() end
    end
  end)

  it("refuses lists that do not fit", function()
    local opt = make()
    fails("a list of 2 schedulers", S.SequentialLR, opt, { schedulers = {}, milestones = { 3 } })
    fails("of the same optimizer", S.SequentialLR, opt,
      { schedulers = { S.CosineAnnealingLR((make()), 3), S.CosineAnnealingLR(opt, 3) }, milestones = { 3 } })
  end)
end)

-- Made by PyTorch 2 with SGD at lr = 0.7.
local rates = {
  multiplicative = { 0.7, 0.63, 0.567, 0.2835, 0.25515, 0.229635, 0.1148175, 0.10333575, 0.093002175, 0.0465010875 },
  chained = { 0.07, 0.063, 0.0567, 0.05103, 0.45927, 0.413343, 0.3720087, 0.33480783, 0.301327047, 0.2711943423 },
  chained_cosine = { 0.14, 0.300247350888534, 0.355229840855791, 0.27930642597588, 0.113378737371981, 0.05,
    0.112069476828142, 0.274569476828142, 0.475430523171858, 0.637930523171858, 0.7, 0.637930523171858 },
  chained_steps = { 0.7, 0.553086419753086, 0.127037037037037, 0.0466666666666667, 0.0324074074074074,
    0.0207407407407407, 0.00583333333333334, 0.000777777777777778, 0.000194444444444445, 0, 0, 0 },
  swa_cos = { 0.7, 0.637930523171858, 0.475430523171858, 0.274569476828142, 0.112069476828142, 0.05, 0.05, 0.05 },
  swa_linear = { 0.7, 0.5375, 0.375, 0.2125, 0.05, 0.05, 0.05 },
  swa_now = { 0.05, 0.05, 0.05, 0.05 },
}
local makers = {
  multiplicative = function(o) return S.MultiplicativeLR(o, function(e) return e % 3 ~= 0 and 0.9 or 0.5 end) end,
  chained = function(o) return S.ChainedScheduler { S.ConstantLR(o, 0.1, 4), S.ExponentialLR(o, 0.9) } end,
  chained_cosine = function(o)
    return S.ChainedScheduler { S.LinearLR(o, 0.2, 1, 3), S.CosineAnnealingLR(o, 5, 0.05) }
  end,
  chained_steps = function(o)
    return S.ChainedScheduler { S.StepLR(o, 3, 0.5), S.MultiStepLR(o, { 2, 7 }, 0.3), S.PolynomialLR(o, 9, 2.0) }
  end,
  swa_cos = function(o) return S.SWALR(o, 0.05, { anneal_epochs = 5 }) end,
  swa_linear = function(o)
    return optim.swa_utils.SWALR(o, { 0.05 }, { anneal_epochs = 4, anneal_strategy = "linear" })
  end,
  swa_now = function(o) return S.SWALR(o, 0.05, { anneal_epochs = 0 }) end,
}

describe("schedules made of others:", function()
  local function sgd() return optim.SGD({ nn.Parameter(T.zeros(1)) }, { lr = 0.7 }) end
  for name, want in pairs(rates) do
    it(name .. " gives PyTorch's rates, and goes on from a saved state", function()
      local o = sgd()
      local s = makers[name](o)
      local o2, s2
      for k, lr in ipairs(want) do
        assert(math.abs(o.param_groups[1].lr - lr) < 1e-12, ("step %d: %.15g"):format(k, o.param_groups[1].lr))
        if s2 then assert(math.abs(o2.param_groups[1].lr - lr) < 1e-12, "restored, step " .. k) end
        if k == 3 then
          o2 = sgd()
          s2 = makers[name](o2)
          s2:load_state_dict(s:state_dict())
        end
        s:step()
        if s2 then s2:step() end
      end
    end)
  end

  it("refuse what does not fit", function()
    local o = sgd()
    fails("one list of schedulers", S.ChainedScheduler, {})
    fails("entry 2 must be a scheduler of the same optimizer", S.ChainedScheduler,
      { S.StepLR(o, 1), S.StepLR(sgd(), 1) })
    fails("ReduceLROnPlateau cannot be a part", S.ChainedScheduler, { S.ReduceLROnPlateau(o) })
    fails("swa_lr must be a number", S.SWALR, o, -1)
    fails("lr_lambda must be a function", S.MultiplicativeLR, o, 3)
  end)
end)

-- Made by PyTorch 2 with SGD at lr = 0.7, but for what is said.
describe("schedules and the rate that is there:", function()
  local function sgd() return optim.SGD({ nn.Parameter(T.zeros(1)) }, { lr = 0.7 }) end
  local function check(want, make, by_hand)
    local o = sgd()
    local list = make(o)
    for k, lr in ipairs(want) do
      local got = o.param_groups[1].lr
      assert(math.abs(got - lr) < 1e-12, ("step %d: %.15g, not %.15g"):format(k, got, lr))
      if by_hand and k == 4 then o.param_groups[1].lr = 0.2 end
      for _, s in ipairs(list) do s:step() end
    end
  end

  it("several work on one optimizer, one after the other", function()
    check({ 0.7, 0.63, 0.2835, 0.25515, 0.229635, 0.10333575, 0.093002175, 0.0837019575, 0.07533176175 },
      function(o) return { S.ExponentialLR(o, 0.9), S.MultiStepLR(o, { 2, 5 }, 0.5) } end)
    check({ 0.175, 0.321352549156242, 0.362618993678113, 0.27882483614586, 0.113245629216691, 0.05, 0.112069476828142,
      0.274569476828142, 0.475430523171858 },
      function(o) return { S.LinearLR(o, 0.25, { total_iters = 3 }), S.CosineAnnealingLR(o, 5, 0.05) } end)
  end)

  it("a rate that was set by hand is gone on from", function()
    check({ 0.7, 0.7, 0.35, 0.35, 0.1, 0.1, 0.05, 0.05, 0.025 },
      function(o) return { S.StepLR(o, 2, 0.5) } end, true)
    check({ 0.7, 0.656458256229943, 0.5375, 0.375, 0.125, 0.0700961894323342, 0.05, 0.0935417437700574, 0.2125 },
      function(o) return { S.CosineAnnealingLR(o, 6, 0.05) } end, true)
  end)

  it("SWALR begins at the rate of its first step", function()
    local o = sgd()
    local main, swa = S.ExponentialLR(o, 0.9), S.SWALR(o, 0.05, { anneal_epochs = 3 })
    for k, lr in ipairs { 0.63, 0.567, 0.5103, 0.45927, 0.3569525, 0.1523175, 0.05, 0.05 } do
      (k <= 4 and main or swa):step()
      assert(math.abs(o.param_groups[1].lr - lr) < 1e-12, "step " .. k)
    end
  end)

  it("warm restarts take fractions of an epoch, other schedules whole numbers alone", function()
    local o = sgd()
    local s = S.CosineAnnealingWarmRestarts(o, 2, 2)
    local want = { 0.67335783637895, 0.597487373415292, 0.0266421636210496, 0.7, 0.67335783637895, 0.00107893319340521,
      0.698314654335269, 0.658672442521924 }
    for k, epoch in ipairs { 0.25, 0.5, 1.75, 2, 2.5, 5.9, 6.25 } do
      s:step(epoch)
      assert(math.abs(o.param_groups[1].lr - want[k]) < 1e-12, "epoch " .. epoch)
    end
    s:step()
    assert(math.abs(o.param_groups[1].lr - want[8]) < 1e-12)
    local step = S.StepLR(sgd(), 2)
    step:step(5)
    assert(math.abs(step:get_last_lr()[1] - 0.7 * 0.01) < 1e-12)
    fails("a whole number >= 0, or nothing is wanted, got 0.5; only ReduceLROnPlateau takes a loss", step.step, step,
      0.5)
    fails("a number >= 0, or nothing is wanted, got -1", s.step, s, -1)
  end)

  it("rates may be one a group, and initial_lr is kept in states", function()
    local function make()
      local a, b = nn.Parameter(T.zeros(1)), nn.Parameter(T.zeros(1))
      return optim.SGD({ { params = { a } }, { params = { b }, lr = 0.2 } }, { lr = 0.1 })
    end
    local o = make()
    S.OneCycleLR(o, { max_lr = { 1, 2 }, total_steps = 10, cycle_momentum = false, div_factor = 4 })
    assert.same({ 0.25, 0.5 }, { o.param_groups[1].lr, o.param_groups[2].lr })
    local again = make()
    again:load_state_dict(o:state_dict())
    assert.equal(0.5, again.param_groups[2].initial_lr)
    assert.same({ 0.05, 0.1 }, S.CyclicLR(make(), { 0.05, 0.1 }, 1, { cycle_momentum = false }):get_last_lr())
    local p = S.ReduceLROnPlateau(make(), { patience = 0, factor = 0.1, min_lr = { 0.05, 0.15 } })
    for _ = 1, 3 do p:step(1) end
    assert.same({ 0.05, 0.15 }, p:get_last_lr())
    fails("max_lr has 3 numbers for 2 groups", S.OneCycleLR, make(), { 1, 2, 3 }, 10)
  end)

  it("a step whose function fails is none, for no group and no part", function()
    local broken
    local function first(t) return 0.9 + 0.01 * t end
    local function second(t)
      if broken then error("broken", 0) end
      return 0.8 + 0.01 * t
    end
    local lambdas = { lr_lambda = { first, second } }
    for name, make in pairs {
      LambdaLR = function(o) return S.LambdaLR(o, lambdas) end,
      MultiplicativeLR = function(o) return S.MultiplicativeLR(o, lambdas) end,
      ChainedScheduler = function(o)
        return S.ChainedScheduler { S.CyclicLR(o, 0.1, 1, 2), S.MultiplicativeLR(o, lambdas) }
      end,
      SequentialLR = function(o)
        return S.SequentialLR(o, { S.ChainedScheduler { S.ExponentialLR(o, 0.5), S.MultiplicativeLR(o, lambdas) },
          S.LambdaLR(o, lambdas) }, { 2 })
      end,
    } do
      local function run(fails_before)
        local a, b = nn.Parameter(T.zeros(1)), nn.Parameter(T.zeros(1))
        local opt = optim.SGD({ { params = { a } }, { params = { b }, lr = 0.2 } }, { lr = 0.1, momentum = 0.9 })
        local s, out = make(opt), {}
        for t = 1, 4 do
          if t == fails_before then
            broken = true
            fails("broken", s.step, s)
            broken = false
          end
          s:step()
          for _, g in ipairs(opt.param_groups) do out[#out + 1] = ("%.17g %.17g"):format(g.lr, g.momentum) end
        end
        return out
      end
      for t = 1, 4 do assert.same(run(), run(t), name) end
    end
  end)

  it("refuse settings that PyTorch refuses", function()
    fails("has neither momentum nor betas", S.OneCycleLR, optim.Adagrad { nn.Parameter(T.zeros(1)) }, 1.0, 10)
    fails("factor must be below 1", S.ReduceLROnPlateau, sgd(), { factor = 1.0 })
    fails("start_factor must be above 0", S.LinearLR, sgd(), { start_factor = 0 })
    fails("from 0 to 1", S.ConstantLR, sgd(), { factor = 1.5 })
  end)
end)

describe("what a schedule has for each group", function()
  local function param() return nn.Parameter(T.ones(1)) end
  local function two()
    return optim.SGD({ { params = { param() }, lr = 1 }, { params = { param() }, lr = 4 } }, { lr = 1 })
  end
  local kinds = {
    StepLR = function(o) return S.StepLR(o, 1, 0.5) end,
    LambdaLR = function(o)
      return S.LambdaLR(o, { lr_lambda = { function() return 1 end, function(t) return 1 / (t + 1) end } })
    end,
    MultiplicativeLR = function(o)
      return S.MultiplicativeLR(o, { lr_lambda = { function() return 1 end, function() return 0.5 end } })
    end,
    OneCycleLR = function(o) return S.OneCycleLR(o, { 1, 5 }, { total_steps = 9, cycle_momentum = false }) end,
    CyclicLR = function(o) return S.CyclicLR(o, { 0.1, 0.2 }, { 1, 3 }, 3, { cycle_momentum = false }) end,
    SWALR = function(o) return S.SWALR(o, { 0.5, 0.1 }, 4) end,
    CosineAnnealingLR = function(o) return S.CosineAnnealingLR(o, 7) end,
    SequentialLR = function(o)
      return S.SequentialLR(o, { schedulers = { S.LinearLR(o, 0.5, 1, 2),
        S.LambdaLR(o, function(t) return 1 / (t + 1) end) }, milestones = { 2 } })
    end,
    ChainedScheduler = function(o) return S.ChainedScheduler { S.ConstantLR(o, 0.5, 2), S.ExponentialLR(o, 0.5) } end,
    ReduceLROnPlateau = function(o) return S.ReduceLROnPlateau(o, { min_lr = { 0.5, 0.25 }, patience = 0 }) end,
  }
  local function step(s) if s.needs_metric then s:step(1) else s:step() end end

  it("goes with the group: one that takes the place of another begins at its own rate", function()
    for name, make in pairs(kinds) do
      local opt, other = two(), two()
      local schedule, want = make(opt), make(other)
      step(schedule)
      step(want)
      table.remove(opt.param_groups, 1)
      for _ = 1, 5 do
        step(schedule)
        step(want)
        assert.equal(other.param_groups[2].lr, opt.param_groups[1].lr, name)
      end
    end
  end)

  it("is appended for a group that comes later; without that it is an error, and nothing moves", function()
    for name, key in pairs { LambdaLR = "lr_lambda", MultiplicativeLR = "lr_lambda", OneCycleLR = "max_lr",
      CyclicLR = "base_lr", SWALR = "swa_lr", ReduceLROnPlateau = "min_lr" } do
      local opt = two()
      local schedule = kinds[name](opt)
      step(schedule)
      opt:add_param_group { params = { param() }, lr = 4 }
      local before, at = schedule:get_last_lr(), schedule.last_epoch
      local ok, why = pcall(step, schedule)
      assert.is_false(ok, name)
      assert.truthy(why:find(key .. " has nothing for group 3", 1, true), why)
      assert.same(before, schedule:get_last_lr(), name)
      assert.equal(at, schedule.last_epoch, name)
      table.insert(schedule[key], schedule[key][2])
      if name == "CyclicLR" then table.insert(schedule.max_lr, 3) end
      for _ = 1, 3 do step(schedule) end
      if schedule.sets then assert.equal(opt.param_groups[2].lr, opt.param_groups[3].lr, name) end
    end
  end)

  it("is saved in the order of the groups", function()
    local opt = two()
    local schedule = S.StepLR(opt, 1, 0.5)
    local groups = opt.param_groups
    groups[1], groups[2] = groups[2], groups[1]
    assert.same({ 4, 1 }, schedule:state_dict().base_lrs)
  end)
end)

it("schedules between steps of a jitted function move with those in front of them, as in the script", function()
  local seen = {}
  for _, jitted in ipairs { false, true } do
    local p, q, r = nn.Parameter(T.ones(3)), nn.Parameter(T.ones(3)), nn.Parameter(T.ones(3))
    local first, second = optim.SGD({ p }, { lr = 1 }), optim.SGD({ q }, { lr = 1 })
    local third = optim.SGD({ r }, { lr = 1 })
    local schedules = { optim.lr_scheduler.StepLR(first, 1, 0.5), optim.lr_scheduler.StepLR(second, 1, 0.5),
      optim.lr_scheduler.StepLR(third, 1, 0.5) }
    local function step(places)
      first:zero_grad()
      second:zero_grad()
      third:zero_grad();
      (p + r):sum():backward()
      first:step()
      third:step()
      schedules[1]:step()
      schedules[3]:step();
      (q * p):index_select(1, places):sum():backward()
      second:step()
      schedules[2]:step()
    end
    local f, log = jitted and T.jit(step) or step, {}
    for _, last in ipairs { 2, 7, 3, 7, 1 } do
      log[#log + 1] = tostring((pcall(f, T.tensor({ 1, last }, { dtype = "i64" }))))
      for k, s in ipairs(schedules) do log[#log + 1] = ("%d: %d %g"):format(k, s.last_epoch, s:get_last_lr()[1]) end
      log[#log + 1] = p:detach():tolist()
      log[#log + 1] = q:detach():tolist()
      log[#log + 1] = r:detach():tolist()
    end
    seen[#seen + 1] = log
  end
  assert.same(seen[1], seen[2])
end)
