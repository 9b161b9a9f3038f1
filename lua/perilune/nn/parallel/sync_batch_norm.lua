-- SPDX-License-Identifier: MIT
--- What nn.SyncBatchNorm has beside nn.BatchNorm1d, 2d and 3d: statistics of the batches of all processes.
--
-- Means and variances are made of sums over the ranks, in two passes, as one process would: first of the values, then
-- of the squares of what they are away from the mean. A sum over ranks is an op with a gradient, the sum over ranks of
-- gradients, so all else is made of ordinary ops and has derivatives of any order.
-- @module perilune.nn.parallel.sync_batch_norm
local T = require "perilune"
local options = require "perilune.options"
local rerun = require "perilune.autograd.checkpoint_state"

local fail = options.fail

-- Ranks that take part in different calls would add up what does not belong together: behind the values travel a number
-- of the call and its square, whose sums are n times a rank's own only where all have the same. Small, so that sums in
-- f32 are exact.
local NUMBERS = 61

local function add_over_ranks(v, group, number)
  local sent = T.cat { v, T.tensor({ number, number * number }, { dtype = v:dtype(), device = v:device() }) }
  require("perilune.distributed").all_reduce(sent, { group = group })
  local n = v:numel()
  local marks = sent:narrow(1, n + 1, 2):to("cpu"):double():totable()
  if marks[1] ~= group.n * number or marks[2] ~= group.n * number * number then
    fail "nn.SyncBatchNorm: the ranks are in different calls; all make the same layers, and call them in one order"
  end
  return sent:narrow(1, 1, n):clone()
end

-- Of the group's next call, by a layer. It is counted as a generator counts what it draws, so that a checkpointed
-- function has the same when it runs again.
local function next_number(group, layer)
  group.calls = group.calls or { state = 0 }
  if rerun.running then rerun.generator(group.calls) end
  group.calls.state = (group.calls.state + 1) % NUMBERS
  return (group.calls.state + 7 * layer) % NUMBERS + 1
end

local sum_over_ranks
sum_over_ranks = T.custom {
  name = "sum_over_ranks",
  forward = function(ctx, v, group, number)
    ctx.group, ctx.number = group, number
    return add_over_ranks(v, group, number)
  end,
  backward = function(ctx, g)
    -- the ranks go back through the same ops in the same order, with the number of forward
    return sum_over_ranks(g, ctx.group, ctx.number)
  end,
}

return function(classes)
  local C = classes.SyncBatchNorm

  local layers = 0 -- that were made: all ranks make the same

  function C:_set_up_ranks(group)
    if group ~= nil and getmetatable(group) ~= require("perilune.distributed.state").Group then
      fail("nn.SyncBatchNorm: process_group must be what T.distributed.new_group returned, got %s",
        options.describe(group))
    end
    layers = layers + 1
    rawset(self, "_process_group", group)
    rawset(self, "_layer", layers)
  end

  -- What goes through the group of all processes is apart from what DistributedDataParallel sends in it meanwhile,
  -- whose order is that of gradients.
  local function group_of(self)
    local state = package.loaded["perilune.distributed.state"]
    if not state or not state.world then return nil end
    local group = state.group("nn.SyncBatchNorm", self._process_group)
    if group ~= state.world or group.n == 1 then return group end
    if not group.of_norms then group.of_norms = require("perilune.distributed").new_group() end
    return group.of_norms
  end

  function C:_across_ranks()
    local group = group_of(self)
    return group ~= nil and group.n > 1
  end

  -- The layer's result in training, of several processes: x of this one.
  function C:_joined(x)
    local group = group_of(self)
    local dtype = x:dtype()
    local half = dtype == "f16" or dtype == "bf16"
    if half then x = x:float() end
    local shape, dims = {}, {}
    for d = 1, x:dim() do
      shape[d] = d == 2 and x:size(2) or 1
      if d ~= 2 then dims[#dims + 1] = d end
    end
    local c = x:size(2)
    local function sum(v, more)
      v = v:sum(dims)
      return sum_over_ranks(more and T.cat { v, more } or v, group, next_number(group, self._layer))
    end
    local count = T.tensor({ x:numel() // c }, { dtype = x:dtype(), device = x:device() })
    local sums = sum(x, count)
    local n = sums:narrow(1, c + 1, 1):detach()
    local total = n:item()
    if total == 1 then
      fail("nn.SyncBatchNorm: more than one value a channel is needed, got %s here and none on other ranks",
        options.describe(x))
    end
    local mean = sums:narrow(1, 1, c) / n
    local away = x - mean:view(shape)
    local var = sum(away * away) / n
    if total > 0 then self:_follow(mean, var, total) end
    local scale = (var + self.eps):rsqrt()
    if self.weight then scale = scale * self.weight end
    local y = away * scale:view(shape)
    if self.bias then y = y + self.bias:view(shape) end
    return half and y:to(dtype) or y
  end

  -- Running statistics move towards the batch's, the variance unbiased; all ranks have the same.
  function C:_follow(mean, var, n)
    if not (self.training and self.track_running_stats) then return end
    local _ <close> = T.no_grad()
    local share = self.momentum or self.num_batches_tracked:to(mean:dtype()):reciprocal()
    for buffer, now in pairs { running_mean = mean, running_var = var * (n / (n - 1)) } do
      local kept = self[buffer]
      kept:add_((now:to(kept:dtype()) - kept) * share)
    end
  end

  --- The nn.BatchNorm1d, 2d and 3d in net become nn.SyncBatchNorm, in place; returns net. Parameters, buffers and hooks
  -- stay. Classes derived from them, and lazy ones that were not called yet, are errors.
  function C.convert_sync_batchnorm(net, process_group)
    local who, base = "nn.SyncBatchNorm.convert_sync_batchnorm", require "perilune.nn.module"
    if not base.is_module(net) then fail("%s: a network is wanted, got %s", who, base.no_module(net)) end
    for _, m in ipairs(net:modules()) do
      local class = getmetatable(m).__class
      if class.__name:find "^LazyBatchNorm" then
        fail("%s: a %s does not know its features yet; call the network once before", who, class.__name)
      end
      for nd = 1, 3 do
        local plain = classes[("BatchNorm%dd"):format(nd)]
        if rawequal(class, plain) then
          base.become(m, C)
          m:_set_up_ranks(process_group)
        elseif rawequal(m.averaged, plain.averaged) then
          fail("%s: %s is derived from %s, what it computes of a batch is not known; derive it from nn.SyncBatchNorm",
            who, class.__name, plain.__name)
        end
      end
    end
    return net
  end
end
