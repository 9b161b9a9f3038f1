-- SPDX-License-Identifier: MIT
-- What T.help and the reference know of
-- schedules of the learning rate: name → {signature, text, example, shapes=}.
-- Signatures are written from the declared arguments where there are any.
local signature = require "perilune.help.signature"

local S = {}
local schedule = signature.schedule

S["optim.lr_scheduler.StepLR"] = { schedule("optim.lr_scheduler.StepLR"), "lr · gamma^(t // step_size).", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.StepLR(opt, 2)
local rates = {}
for t = 1, 4 do
  rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  schedule:step()
end
print(table.concat(rates, " "))  --> 1 1 0.1 0.1]] }

S["optim.lr_scheduler.MultiStepLR"] = { schedule("optim.lr_scheduler.MultiStepLR"),
  "lr · gamma^(number of milestones reached).", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.MultiStepLR(opt, { 1, 3 })
local rates = {}
for t = 1, 4 do
  rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  schedule:step()
end
print(table.concat(rates, " "))  --> 1 3 3 3]] }

S["optim.lr_scheduler.ExponentialLR"] = { schedule("optim.lr_scheduler.ExponentialLR"), "lr · gamma^t.", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.ExponentialLR(opt, 0.5)
local rates = {}
for t = 1, 4 do
  rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  schedule:step()
end
print(table.concat(rates, " "))  --> 1 0.5 0.25 0.125]] }

S["optim.lr_scheduler.ConstantLR"] = { schedule("optim.lr_scheduler.ConstantLR"),
  "lr · factor during the first total_iters steps, then lr.", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.ConstantLR(opt, 0.5, 2)
local rates = {}
for t = 1, 4 do
  rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  schedule:step()
end
print(table.concat(rates, " "))  --> 0.5 0.5 1 1]] }

S["optim.lr_scheduler.LinearLR"] = { schedule("optim.lr_scheduler.LinearLR"),
  "The factor goes from start_factor to end_factor in total_iters steps.", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.LinearLR(opt, 0.5, 1, 2)
local rates = {}
for t = 1, 4 do
  rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  schedule:step()
end
print(table.concat(rates, " "))  --> 0.5 0.75 1 1]] }

S["optim.lr_scheduler.PolynomialLR"] = { schedule("optim.lr_scheduler.PolynomialLR"),
  "lr (1 - t/total_iters)^power, then 0.", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.PolynomialLR(opt, 4)
local rates = {}
for t = 1, 4 do
  rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  schedule:step()
end
print(table.concat(rates, " "))  --> 1 0.75 0.5 0.25]] }

S["optim.lr_scheduler.CosineAnnealingLR"] = { schedule("optim.lr_scheduler.CosineAnnealingLR"),
  "Half a cosine from lr to eta_min in T_max steps (Loshchilov & Hutter 2017).", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.CosineAnnealingLR(opt, 4)
local rates = {}
for t = 1, 4 do
  rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  schedule:step()
end
print(table.concat(rates, " "))  --> 1 0.854 0.5 0.146]] }

S["optim.lr_scheduler.CosineAnnealingWarmRestarts"] = { schedule("optim.lr_scheduler.CosineAnnealingWarmRestarts"),
  "The same, starting again every T_0 steps, each period T_mult times as long.", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 2)
local rates = {}
for t = 1, 4 do
  rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  schedule:step()
end
print(table.concat(rates, " "))  --> 1 0.5 1 0.5]] }

S["optim.lr_scheduler.LambdaLR"] = { schedule("optim.lr_scheduler.LambdaLR"),
  "lr · f(t); a function, or one a group.", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.LambdaLR(opt, function(t) return 1 / (t + 1) end)
local rates = {}
for t = 1, 4 do
  rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  schedule:step()
end
print(table.concat(rates, " "))  --> 1 0.5 0.333 0.25]] }

S["optim.lr_scheduler.MultiplicativeLR"] = { schedule("optim.lr_scheduler.MultiplicativeLR"),
  "lr · f(1) · f(2) · … · f(t); a function, or one a group.", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.MultiplicativeLR(opt, function() return 0.5 end)
local rates = {}
for t = 1, 4 do
  rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  schedule:step()
end
print(table.concat(rates, " "))  --> 1 0.5 0.25 0.125]] }

S["optim.lr_scheduler.OneCycleLR"] = { schedule("optim.lr_scheduler.OneCycleLR"),
  "Up to max_lr and down again in total_steps; momentum the other way (Smith & Topin 2018).", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.OneCycleLR(opt, 1.0, { total_steps = 10 })
local rates = {}
for t = 1, 4 do
  rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  schedule:step()
end
print(table.concat(rates, " "))  --> 0.04 0.52 1 0.95]] }

S["optim.lr_scheduler.CyclicLR"] = { schedule("optim.lr_scheduler.CyclicLR"),
  "Back and forth between base_lr and max_lr (Smith 2017).", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.CyclicLR(opt, 0.1, 0.5, 2, { cycle_momentum = false })
local rates = {}
for t = 1, 4 do
  rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  schedule:step()
end
print(table.concat(rates, " "))  --> 0.1 0.3 0.5 0.3]] }

S["optim.lr_scheduler.SWALR"] = { schedule("optim.lr_scheduler.SWALR"),
  "From the rate that is there to swa_lr in anneal_epochs steps.", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.SWALR(opt, 0.05, 2)
local rates = {}
for t = 1, 4 do
  rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  schedule:step()
end
print(table.concat(rates, " "))  --> 1 0.525 0.05 0.05]] }

S["optim.lr_scheduler.LRScheduler"] = {
  "schedule:step(), schedule:get_last_lr(), schedule:state_dict(), schedule:load_state_dict(sd)",
  "What all schedules have; last_epoch counts the steps.", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.StepLR(opt, 1)
schedule:step()
print(schedule:get_last_lr()[1], schedule.last_epoch, optim.lr_scheduler.LRScheduler ~= nil)  --> 0.1	1	true]] }

S["optim.lr_scheduler.ReduceLROnPlateau"] = { schedule("optim.lr_scheduler.ReduceLROnPlateau"),
  "lr · factor whenever step(metric) has not improved for more than patience steps.", [[
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.ReduceLROnPlateau(opt, { patience = 1 })
for _ = 1, 4 do schedule:step(2.5) end
print(opt.param_groups[1].lr)  --> 0.1]] }

S["optim.lr_scheduler.SequentialLR"] = { schedule("optim.lr_scheduler.SequentialLR"),
  [[One schedule after the other, each with its own count from 0; the parts are made first, on the same
optimizer.]], [[
local S = optim.lr_scheduler
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.SequentialLR(opt, {
  schedulers = { S.LinearLR(opt, 0.5, 1, 2), S.ExponentialLR(opt, 0.5) }, milestones = { 2 } })
schedule:step()
print(opt.param_groups[1].lr)  --> 0.75]] }

S["optim.lr_scheduler.ChainedScheduler"] = { "optim.lr_scheduler.ChainedScheduler{schedule, …} → schedule",
  "All schedules at once, one on top of the other.", [[
local S = optim.lr_scheduler
local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
local schedule = optim.lr_scheduler.ChainedScheduler { S.ConstantLR(opt, 0.5, 1), S.ExponentialLR(opt, 0.1) }
schedule:step()
print(("%.3g"):format(opt.param_groups[1].lr))  --> 0.1]] }

return S
