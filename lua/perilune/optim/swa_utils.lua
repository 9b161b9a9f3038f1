-- SPDX-License-Identifier: MIT
--- optim.swa_utils: averages of a model's weights along training (Izmailov et al. 2018; exponential: Polyak).
-- @module perilune.optim.swa_utils
local T = require "perilune"
local nn_base = require "perilune.nn.module"
local options = require "perilune.options"
local sched = require "perilune.optim.lr_scheduler"

local fail, describe = options.fail, options.describe
local swa = { SWALR = sched.SWALR }

--- optim.swa_utils.get_ema_avg_fn(decay=0.999) → function
-- avg_fn of an exponential average.
--   print(optim.swa_utils.get_ema_avg_fn(0.5)(1, 3))  --> 2.0
local ema = options.spec("optim.swa_utils.get_ema_avg_fn", { { "decay", "probability", 0.999 } })
function swa.get_ema_avg_fn(...)
  local decay = options.read(ema, ...).decay
  return function(average, new) return average * decay + new * (1 - decay) end
end

--- optim.swa_utils.get_swa_avg_fn() → function
-- avg_fn of the plain mean.
--   print(optim.swa_utils.get_swa_avg_fn()(1, 3, 1))  --> 2.0
function swa.get_swa_avg_fn()
  return function(average, new, n) return average + (new - average) / (n + 1) end
end

--- optim.swa_utils.AveragedModel(model, {avg_fn=, use_buffers=false}) → module
-- A copy of the model whose parameters are averages: update_parameters(model) after each step or epoch. Buffers are
-- copied, with use_buffers averaged, but for integers, which count.
--   local net = nn.Linear(1, 1)
--   local average = optim.swa_utils.AveragedModel(net)
--   average:update_parameters(net)
--   print(average.n_averaged:item(), average(T.ones(1)):equal(net(T.ones(1))))  --> 1	true
local Averaged = nn_base.class "AveragedModel"
local spec = options.spec("optim.swa_utils.AveragedModel", { { "model", "any" },
  { "avg_fn", "func", optional = true }, { "use_buffers", "bool", false } })
function Averaged:init(...)
  local a = options.read(spec, ...)
  if not nn_base.is_module(a.model) then
    fail("optim.swa_utils.AveragedModel: model must be a module, got %s", describe(a.model))
  end
  self.module = a.model:clone()
  self:register_buffer("n_averaged", T.zeros({}, { dtype = "i64" }))
  self.avg_fn, self.use_buffers = a.avg_fn or swa.get_swa_avg_fn(), a.use_buffers
end
function Averaged:forward(...) return self.module(...) end

local function tensors(m, buffers)
  local list = m:parameters()
  if buffers then for _, b in ipairs(m:buffers()) do list[#list + 1] = b end end
  return list
end
function Averaged:update_parameters(model)
  if not nn_base.is_module(model) then fail("update_parameters: a module is wanted, got %s", describe(model)) end
  local own, new = tensors(self.module, self.use_buffers), tensors(model, self.use_buffers)
  if #own ~= #new then fail("update_parameters: the model has %d tensors, the average %d", #new, #own) end
  for i, average in ipairs(own) do -- a smaller one would be repeated
    if average:numel() ~= new[i]:numel() then
      fail("update_parameters: tensor %d of the model is %s, of the average %s", i, describe(new[i]), describe(average))
    end
  end
  local _ <close> = T.no_grad()
  local _ <close> = T.core.hold_interrupts() -- all averages and their count move together
  local traced = T.core.jit_tracing() -- then n is a tensor, which the graph reads at each run
  local n = traced and self.n_averaged:clone() or self.n_averaged:item()
  for i, average in ipairs(own) do
    if not average:is_floating_point() or n == 0 then
      average:copy_(new[i])
    elseif traced then
      average:copy_(T.where(n:eq(0), new[i], self.avg_fn(average, new[i], n)))
    else
      average:copy_(self.avg_fn(average, new[i], n))
    end
  end
  if not self.use_buffers then
    local from = model:buffers()
    for i, b in ipairs(self.module:buffers()) do b:copy_(from[i]) end
  end
  self.n_averaged:add_(1)
end
swa.AveragedModel = Averaged

-- An iterator over batches in a list; of one that is a list itself, its first entry.
local function batches(list)
  options.list("update_bn", "the batches", list, "batches")
  local i = 0
  return function()
    i = i + 1
    local batch = list[i]
    if type(batch) == "table" and getmetatable(batch) == nil then batch = batch[1] end
    if list[i] ~= nil and not T.is_tensor(batch) then
      fail("update_bn: batch %d must be a tensor, or a list that begins with one, got %s", i, describe(list[i]))
    end
    return batch
  end
end

--- optim.swa_utils.update_bn(loader, model)
-- Computes the running statistics of BatchNorm layers anew, in one pass over a loader, an iterator or a list of
-- batches.
--   local net = nn.BatchNorm1d(1)
--   optim.swa_utils.update_bn({ T.tensor { { 1 }, { 3 } } }, net)
--   print(net.running_mean)  --> {2.}  -- f32[1] cpu
function swa.update_bn(loader, model)
  if not nn_base.is_module(model) then fail("update_bn: a module is wanted, got %s", describe(model)) end
  local meta = getmetatable(loader)
  if type(loader) == "table" and meta == nil then
    loader = batches(loader)
  elseif type(loader) ~= "function" and not (type(meta) == "table" and meta.__call) then
    fail("update_bn: a loader, an iterator or a list of batches is wanted, got %s", describe(loader))
  end
  local training = model.training
  -- Plain averages from nothing, while the loader runs.
  local function begin(norms)
    for _, m in ipairs(model:modules()) do
      if m.running_mean and m.running_var then
        norms[#norms + 1] = { m, m.momentum }
        m.running_mean:zero_()
        m.running_var:fill_(1)
        m.num_batches_tracked:zero_()
        m.momentum = false
      end
    end
    if #norms > 0 then model:train() end
    return norms
  end
  local function finish(norms)
    for _, item in ipairs(norms) do item[1].momentum = item[2] end
    if #norms > 0 then model:train(training) end
  end
  local norms = {}
  T.core.around(begin, norms, finish, function()
    if #norms == 0 then return end
    local _ <close> = T.no_grad()
    for x in loader do model(x) end
  end)
end

return require("perilune.surface").seal(swa)
