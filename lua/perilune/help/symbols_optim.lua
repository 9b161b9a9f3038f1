-- SPDX-License-Identifier: MIT
-- What T.help and the reference know of
-- optimizers: name → {signature, text, example, shapes=}.
-- Signatures are written from the declared arguments where there are any.
local signature = require "perilune.help.signature"

local S = {}
local settings = signature.settings

S["optim.SGD"] = { settings("optim.SGD"), "Stochastic gradient descent, with momentum and Nesterov's form.", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.SGD({ p }, { lr = 0.1, momentum = 0.9 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.Adam"] = { settings("optim.Adam"), "Adam (Kingma & Ba 2015); amsgrad on request.", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.Adam({ p }, { lr = 0.1 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.AdamW"] = { settings("optim.AdamW"),
  "Adam whose weight decay does not pass through the moments (Loshchilov & Hutter 2019).", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.AdamW({ p }, { lr = 0.1 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.Adamax"] = { settings("optim.Adamax"),
  "Adam with the largest gradient in place of the second moment.", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.Adamax({ p }, { lr = 0.1 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.NAdam"] = { settings("optim.NAdam"), "Adam with Nesterov's momentum (Dozat 2016).", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.NAdam({ p }, { lr = 0.1 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.RAdam"] = { settings("optim.RAdam"),
  "Adam that corrects for the variance of its rate in the first steps (Liu et al. 2020).", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.RAdam({ p }, { lr = 0.1 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.RMSprop"] = { settings("optim.RMSprop"),
  "Gradients over the root of their mean square (Hinton 2012).", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.RMSprop({ p }, { lr = 0.01 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.Adagrad"] = { settings("optim.Adagrad"),
  "Gradients over the root of the sum of their squares (Duchi et al. 2011).", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.Adagrad({ p }, { lr = 0.1 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.Adadelta"] = { settings("optim.Adadelta"), "Steps in the units of former steps (Zeiler 2012).", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.Adadelta({ p }, { lr = 1.0 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.Adafactor"] = { settings("optim.Adafactor"),
  "Adam with factored second moments (Shazeer & Stern 2018).", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.Adafactor({ p }, { lr = 0.1 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.Rprop"] = { settings("optim.Rprop"),
  "Steps by the sign of the gradient alone (Riedmiller & Braun 1993).", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.Rprop({ p }, { lr = 0.1 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.ASGD"] = { settings("optim.ASGD"), "Averaged gradient descent (Polyak & Juditsky 1992).", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.ASGD({ p }, { lr = 0.1 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.Lion"] = { settings("optim.Lion"), "The sign of a mixed momentum (Chen et al. 2023).", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.Lion({ p }, { lr = 0.01 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.Muon"] = { settings("optim.Muon"), "Orthogonalized momentum for matrices (Jordan et al. 2024).", [[
local p = nn.Parameter(T.eye(2))
local opt = optim.Muon({ p }, { lr = 0.1 })
local before = (p * p):sum()
before:backward()
opt:step()
opt:zero_grad()
print((p * p):sum():item() < before:item())  --> true]] }

S["optim.LBFGS"] = { settings("optim.LBFGS"),
  "Limited-memory BFGS (Liu & Nocedal 1989); step(closure) runs the closure several times.", [[
local p = nn.Parameter(T.tensor { 1, -2 })
local opt = optim.LBFGS({ p }, { lr = 1 })
opt:step(function()
  opt:zero_grad()
  local loss = (p * p):sum()
  loss:backward()
  return loss
end)
print(p:detach():abs():max():item() < 1e-3)  --> true]] }

S["optim.Optimizer"] = { "optim.X(params or groups, {lr=, …}) → optimizer",
  [[What all optimizers have: step(closure?), zero_grad{set_to_none=true}, param_groups (tables with the
settings as fields), add_param_group{params=, …}, state_dict(), load_state_dict(sd).]], [[
local a, b = nn.Parameter(T.ones(1)), nn.Parameter(T.ones(1))
local opt = optim.SGD({ { params = { a } }, { params = { b }, lr = 0.5 } }, { lr = 0.1 })
print(opt.param_groups[1].lr, opt.param_groups[2].lr, getmetatable(opt) ~= optim.Optimizer)  --> 0.1	0.5	true]] }

S["optim.compat.sgd"] = {
  [[optim.compat.sgd(opfunc, x, {learningRate=1e-3, learningRateDecay=0, weightDecay=0, momentum=0,
  dampening=momentum, nesterov=false, learningRates=}, state) → x, {f(x), …}]],
  "torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.", [[
local x, state = T.tensor { 1, -2 }, {}
local _, fx = optim.compat.sgd(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true]] }

S["optim.compat.adam"] = {
  [[optim.compat.adam(opfunc, x, {learningRate=1e-3, learningRateDecay=0, beta1=0.9, beta2=0.999,
  epsilon=1e-8, weightDecay=0}, state) → x, {f(x), …}]],
  "torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.", [[
local x, state = T.tensor { 1, -2 }, {}
local _, fx = optim.compat.adam(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true]] }

S["optim.compat.adamax"] = {
  [[optim.compat.adamax(opfunc, x, {learningRate=2e-3, beta1=0.9, beta2=0.999, epsilon=1e-38,
  weightDecay=0}, state) → x, {f(x), …}]],
  "torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.", [[
local x, state = T.tensor { 1, -2 }, {}
local _, fx = optim.compat.adamax(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true]] }

S["optim.compat.adagrad"] = {
  [[optim.compat.adagrad(opfunc, x, {learningRate=1e-3, learningRateDecay=0, weightDecay=0},
  state) → x, {f(x), …}]],
  "torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.", [[
local x, state = T.tensor { 1, -2 }, {}
local _, fx = optim.compat.adagrad(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true]] }

S["optim.compat.adadelta"] = {
  "optim.compat.adadelta(opfunc, x, {rho=0.9, eps=1e-6, weightDecay=0}, state) → x, {f(x), …}",
  "torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.", [[
local x, state = T.tensor { 1, -2 }, {}
local _, fx = optim.compat.adadelta(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true]] }

S["optim.compat.rmsprop"] = {
  [[optim.compat.rmsprop(opfunc, x, {learningRate=1e-2, alpha=0.99, epsilon=1e-8, weightDecay=0,
  initialMean=0}, state) → x, {f(x), …}]],
  "torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.", [[
local x, state = T.tensor { 1, -2 }, {}
local _, fx = optim.compat.rmsprop(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true]] }

S["optim.compat.nag"] = {
  [[optim.compat.nag(opfunc, x, {learningRate=1e-3, learningRateDecay=0, momentum=0.9, weightDecay=0},
  state) → x, {f(x), …}]],
  "torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.", [[
local x, state = T.tensor { 1, -2 }, {}
local _, fx = optim.compat.nag(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true]] }

S["optim.compat.asgd"] = { [[optim.compat.asgd(opfunc, x, {eta0=1e-4, lambda=1e-4, alpha=0.75, t0=1e6, weightDecay=0},
  state) → x, {f(x), …}]],
  "torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.", [[
local x, state = T.tensor { 1, -2 }, {}
local _, fx = optim.compat.asgd(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true]] }

S["optim.compat.rprop"] = { [[optim.compat.rprop(opfunc, x, {stepsize=0.1, etaplus=1.2, etaminus=0.5, stepsizemax=50,
  stepsizemin=1e-6, niter=1}, state) → x, {f(x), …}]],
  "torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.", [[
local x, state = T.tensor { 1, -2 }, {}
local _, fx = optim.compat.rprop(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true]] }

S["optim.compat.lbfgs"] = {
  [[optim.compat.lbfgs(opfunc, x, {maxIter=20, maxEval=, learningRate=1, tolFun=1e-5, tolX=1e-9,
  nCorrection=100, lineSearch=, lineSearchOptions=}, state) → x, {f(x), …}, evaluations]],
  [[torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.
lineSearch is true (strong Wolfe conditions) or a function (opfunc, x, t, d, f, g, slope, lineSearchOptions) that
returns f, g, x, t and how often it called opfunc.]], [[
local x, state = T.tensor { 1, -2 }, {}
local _, fx = optim.compat.lbfgs(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true]] }

S["optim.swa_utils.AveragedModel"] = { "optim.swa_utils.AveragedModel(model, {avg_fn=, use_buffers=false}) → module",
  "A copy of the model whose parameters are averages: update_parameters(model) after each step or epoch.", [[
local net = nn.Linear(1, 1)
local average = optim.swa_utils.AveragedModel(net)
average:update_parameters(net)
print(average.n_averaged:item(), average(T.ones(1)):equal(net(T.ones(1))))  --> 1	true]] }

S["optim.swa_utils.SWALR"] = {
  "optim.swa_utils.SWALR(opt, swa_lr, anneal_epochs=10, anneal_strategy=\"cos\") → schedule",
  "Another name of optim.lr_scheduler.SWALR.", [[
print(optim.swa_utils.SWALR == optim.lr_scheduler.SWALR)  --> true]] }

S["optim.swa_utils.get_ema_avg_fn"] = { "optim.swa_utils.get_ema_avg_fn(decay=0.999) → function",
  "avg_fn of an exponential average.", [[
print(optim.swa_utils.get_ema_avg_fn(0.5)(1, 3))  --> 2.0]] }

S["optim.swa_utils.get_swa_avg_fn"] = { "optim.swa_utils.get_swa_avg_fn() → function",
  "avg_fn of the plain mean.", [[
print(optim.swa_utils.get_swa_avg_fn()(1, 3, 1))  --> 2.0]] }

S["optim.swa_utils.update_bn"] = { "optim.swa_utils.update_bn(loader, model)",
  "Computes the running statistics of BatchNorm layers anew, in one pass over a loader.", [[
local net, once = nn.BatchNorm1d(1), true
optim.swa_utils.update_bn(function()
  local x = once and T.tensor { { 1 }, { 3 } } or nil
  once = false
  return x
end, net)
print(net.running_mean)  --> {2.}  -- f32[1] cpu]] }

return S
