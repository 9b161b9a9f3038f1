-- SPDX-License-Identifier: MIT
--- Activations made of other ops: softmin, glu, prelu, rrelu, gumbel_softmax.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local core = T.core

return function(F)

  --- nn.F.softmin(x, dim=-1, dtype?) → tensor
  -- softmax of -x.
  --   print(nn.F.softmin(T.tensor { 0, 0 }))  --> {0.5000, 0.5000}  -- f32[2] cpu
  function F.softmin(x, ...) return T.softmax(T.neg(x), ...) end

  -- Splits dimension `dim` (the last) in halves a, b and returns a · sigmoid(b).
  --- nn.F.glu(…) → tensor
  -- a · sigmoid(b) of the halves a, b of x along dim.
  --   print(nn.F.glu(T.tensor { 2, 0 }))  --> {1.}  -- f32[1] cpu
  function F.glu(x, dim)
    if type(dim) == "table" then dim = options.check("glu", dim, { "dim" }).dim end
    dim = dim or -1
    local n = x:size(dim)
    if n % 2 ~= 0 then fail("glu: dimension %d has odd size %d", dim, n) end
    return x:narrow(dim, 1, n // 2) * x:narrow(dim, n // 2 + 1, n // 2):sigmoid()
  end

  -- x where x > 0, else weight · x; weight has one element, or one a channel (dimension 2).
  --- nn.F.prelu(…) → tensor
  -- x, or weight x below 0; one weight, or one a channel.
  --   print(nn.F.prelu(T.tensor { -2, 3 }, T.tensor { 0.5 }))  --> {-1.,  3.}  -- f32[2] cpu
  function F.prelu(x, weight)
    if not core.is_tensor(weight) then fail("prelu: weight must be a tensor, got %s", describe(weight)) end
    local n, nd = weight:numel(), x:dim()
    if weight:dim() > 1 then fail("prelu: weight must have at most one dimension, got %s", describe(weight)) end
    if n > 1 then
      local channels = nd >= 2 and x:size(2) or nd == 1 and x:size(1) or 1
      if channels ~= n then fail("prelu: %d weights for %d channels", n, channels) end
    end
    if nd >= 2 then
      local shape = { 1, n }
      for d = 3, nd do shape[d] = 1 end
      weight = weight:reshape(shape)
    elseif nd == 0 then
      weight = weight:view {}
    end
    return T.core.op.prelu_core(x, weight)
  end

  -- x where positive, else a x: in training a is uniform in [lower, upper) for each element, else their mean (Xu et
  -- al. 2015). Options `lower=1/8 upper=1/3 training=false`.
  --- nn.F.rrelu(x, lower=1/8, upper=1/3, training=false) → tensor
  -- x, or a x below 0, a uniform in lower … upper in training, else their mean.
  --   print(nn.F.rrelu(T.tensor { -1, 1 }, 0.2, 0.4))  --> {-0.3000,  1.0000}  -- f32[2] cpu
  function F.rrelu(x, lower, upper, training)
    if not T.is_tensor(x) or not x:is_floating_point() then
      fail("rrelu: a floating tensor is wanted, got %s", describe(x))
    end
    if type(lower) == "table" then
      local o = options.check("rrelu", lower, { "lower", "upper", "training" })
      lower, upper, training = o.lower, o.upper, o.training
    end
    lower, upper = lower or 1 / 8, upper or 1 / 3
    if type(lower) ~= "number" or type(upper) ~= "number" or lower > upper then
      fail("rrelu: lower %s must be a number up to upper %s", describe(lower), describe(upper))
    end
    if not training then return T.leaky_relu(x, { negative_slope = (lower + upper) / 2 }) end
    return T.where(x:ge(0), x, x * T.uniform(lower, upper, x:shape(), { dtype = x:dtype(), device = x:device() }))
  end

  --- nn.F.gumbel_softmax(logits, {tau=1, hard=false, dim=-1}) → tensor
  -- A random draw with the probabilities softmax(logits) that has a gradient; hard: one-hot forward.
  --   print(nn.F.gumbel_softmax(T.tensor { 0, 100 }, { hard = true }))  --> {0., 1.}  -- f32[2] cpu
  function F.gumbel_softmax(x, opts)
    if not T.is_tensor(x) then fail("gumbel_softmax: argument #1 must be a tensor, got %s", describe(x)) end
    if type(opts) == "number" then opts = { tau = opts } end
    local o = options.check("gumbel_softmax", opts, { "tau", "hard", "dim" })
    local tau, dim = o.tau or 1, o.dim or -1
    if type(tau) ~= "number" or tau ~= tau or tau <= 0 then
      fail("gumbel_softmax: tau must be a positive number, got %s", describe(tau))
    end
    -- -log E has a Gumbel distribution if E has an exponential one
    local noise = -T.empty_like(x):exponential_():log()
    local soft = T.softmax((x + noise) / tau, dim)
    if not o.hard then return soft end
    local where = soft:detach():argmax(dim, { keepdim = true })
    local one = T.scatter(T.zeros_like(soft:detach()), dim, where, 1)
    return one - soft:detach() + soft
  end
end
