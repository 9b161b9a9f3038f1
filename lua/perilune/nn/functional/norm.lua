-- SPDX-License-Identifier: MIT
--- Normalization made of other ops, and the forms of arguments that PyTorch has.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local running_update, hold = T.core.op.running_update, T.core.hold_interrupts
local alike = T.core.alike

-- Before one of both moves: each is of so many channels. Where they are alike, the first update says so of both.
local function check_running(who, mean, var, channels)
  if not (mean and var) or T.is_tensor(mean) and T.is_tensor(var) and alike(mean, var) then return end
  for _, t in ipairs { mean, var } do
    if not T.is_tensor(t) or t:dim() ~= 1 or t:size(1) ~= channels or not t:is_floating_point() then
      fail("%s: running_mean and running_var must be floating tensors of %d channels, got %s and %s", who, channels,
        describe(mean), describe(var))
    end
  end
end

return function(F)
  local function tensor(who, x)
    if not T.is_tensor(x) then fail("%s: argument #1 must be a tensor, got %s", who, describe(x)) end
  end

  --- x normalized over its last dimensions: `layer_norm(x, {sizes}, weight, bias, eps)` as in PyTorch, or the
  -- op's own
  -- `layer_norm(x, weight, bias, {normalized_shape=, eps=})`.
  function F.layer_norm(x, shape, weight, bias, eps)
    if type(shape) == "userdata" or shape == nil then return (T.layer_norm(x, shape, weight, bias, eps)) end
    if type(shape) == "table" and shape[1] == nil then return (T.layer_norm(x, shape)) end
    return (T.layer_norm(x, weight, bias, { normalized_shape = shape, eps = eps }))
  end

  --- `rms_norm(x, {sizes}, weight, eps)`, or the op's own `rms_norm(x, weight, {normalized_shape=, eps=})`.
  function F.rms_norm(x, shape, weight, eps)
    if type(shape) == "userdata" or shape == nil then return (T.rms_norm(x, shape, weight, eps)) end
    if type(shape) == "table" and shape[1] == nil then return (T.rms_norm(x, shape)) end
    return (T.rms_norm(x, weight, { normalized_shape = shape, eps = eps }))
  end

  --- `group_norm(x, num_groups, weight, bias, eps)`, x [N, C, *].
  function F.group_norm(x, num_groups, weight, bias, eps)
    return (T.group_norm(x, weight, bias, { num_groups = num_groups, eps = eps }))
  end

  --- `batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)`, x [N, C, *]. In
  -- training the
  -- running statistics (nil: none are kept) move by `momentum` (0.1) towards the batch's, the variance
  -- unbiased.
  function F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    if not training then
      return (T.batch_norm(x, running_mean, running_var, weight, bias, { training = false, eps = eps }))
    end
    local y, mean, var = T.batch_norm(x, nil, nil, weight, bias, { training = true, eps = eps })
    check_running("batch_norm", running_mean, running_var, mean:size(1))
    if x:numel() == 0 then return y end -- a batch without values says nothing of their mean
    momentum = momentum or 0.1
    local _ <close> = hold() -- mean and variance are of the same batches
    if running_mean then running_update(running_mean, mean, { momentum = momentum }) end
    if running_var then
      running_update(running_var, var, { momentum = momentum, count = x:numel() // x:size(2) })
    end
    return y
  end

  --- nn.F.normalize(x, {p=2, dim=2, eps=1e-12}) → tensor
  -- x / max(‖x‖_p, eps) along dim.
  --   print(nn.F.normalize(T.tensor { { 3, 4 } }))  --> {{0.6000, 0.8000}}  -- f32[1,2] cpu
  function F.normalize(x, opts)
    opts = options.check("normalize", opts, { "p", "dim", "eps" })
    local norm = x:norm { p = opts.p or 2.0, dim = opts.dim or 2, keepdim = true }
    return x / norm:clamp { min = opts.eps or 1e-12 }
  end

  --- nn.F.local_response_norm(x, size, {alpha=1e-4, beta=0.75, k=1}) → tensor
  -- x / (k + alpha mean of squares over neighbouring channels)^beta.
  --   print(nn.F.local_response_norm(T.ones(1, 1, 1), 1, { alpha = 3, beta = 1 }))
  --   --> {{{0.2500}}}  -- f32[1,1,1] cpu
  function F.local_response_norm(x, size, opts)
    local who = "local_response_norm"
    tensor(who, x)
    if type(size) == "table" then size, opts = nil, size end
    local o = options.check(who, opts, { "size", "alpha", "beta", "k" })
    size = options.integer(size or o.size)
    if not size or size < 1 then fail("%s: size must be a positive integer", who) end
    if x:dim() < 3 then fail("%s: needs at least three dimensions, got %s", who, describe(x)) end
    if x:numel() == 0 then return x end
    local s = x:shape()
    local sq = (x * x):reshape(s[1], 1, s[2], -1):pad { 0, 0, size // 2, (size - 1) // 2 }
    local near = T.avg_pool2d(sq, { kernel_size = { size, 1 }, stride = { 1, 1 } }):reshape(s)
    return x / (near * (o.alpha or 1e-4) + (o.k or 1.0)) ^ (o.beta or 0.75)
  end

  -- Statistics of instances: the running ones move towards the mean over the batch.
  local function instance_statistics(x, mean, var, momentum)
    local _ <close> = T.no_grad()
    local n, c = x:size(1), x:size(2)
    local flat = x:detach():reshape(n, c, -1)
    check_running("instance_norm", mean, var, c)
    local now, spread = mean and flat:mean(3):mean(1), var and flat:var(3):mean(1)
    local _ <close> = hold()
    if mean then running_update(mean, now, { momentum = momentum }) end
    if var then running_update(var, spread, { momentum = momentum }) end
  end

  --- nn.F.instance_norm(x, {running_mean=, running_var=, weight=, bias=, use_input_stats=true, momentum=0.1, eps=1e-5})
  --   → tensor
  -- Each channel of each sample minus its mean over its deviation.
  --   print(nn.F.instance_norm(T.tensor { { { 1, 3 } } }))  --> {{{-1.0000,  1.0000}}}  -- f32[1,1,2] cpu
  function F.instance_norm(x, opts)
    local who = "instance_norm"
    tensor(who, x)
    local o = options.check(who, opts, { "running_mean", "running_var", "weight", "bias", "use_input_stats",
      "momentum", "eps" })
    if x:dim() < 2 then fail("%s: x [N, C, *] is wanted, got %s", who, describe(x)) end
    if o.use_input_stats == false then
      if not (o.running_mean and o.running_var) then fail("%s: running statistics are missing", who) end
      return F.batch_norm(x, o.running_mean, o.running_var, o.weight, o.bias, false, 0.0, o.eps)
    end
    local per = x:size(1) * x:size(2)
    if x:numel() > 0 and x:numel() == per then
      fail("%s: more than one value a channel is needed, got %s", who, describe(x))
    end
    local y = F.group_norm(x, x:size(2), o.weight, o.bias, o.eps) -- first: it may refuse its arguments
    if x:numel() > 0 and (o.running_mean or o.running_var) then
      instance_statistics(x, o.running_mean, o.running_var, o.momentum or 0.1)
    end
    return y
  end
end
