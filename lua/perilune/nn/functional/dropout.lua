-- SPDX-License-Identifier: MIT
--- Dropout: of elements, of whole channels, and for networks of SELU.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe

return function(F)
  local function check_p(who, p)
    if p == nil then return 0.5 end
    if type(p) ~= "number" or not (p >= 0 and p <= 1) then
      fail("%s: p must be a number from 0 to 1, got %s", who, describe(p))
    end
    return p
  end

  --- Zeros each element with probability p (0.5) and scales the rest by 1/(1-p); nothing if `training` is
  -- false.
  function F.dropout(x, p, training)
    if type(p) == "table" then
      options.check("dropout", p, { "p", "training" })
      p, training = p.p, p.training
    end
    p = check_p("dropout", p)
    if training == false or p == 0 then return x end
    return T.dropout(x, p)
  end

  -- Whole channels at once: the mask has size 1 in the last `nd` dimensions.
  --- nn.F.dropout1d(…) → tensor
  -- Zeros whole channels with probability p and scales the others by 1/(1 - p).
  --   print(nn.F.dropout1d(T.ones(1, 1, 2), 0.5, false):sum():item())  --> 2.0

  --- nn.F.dropout2d(…) → tensor
  -- Zeros whole channels of [N, C, H, W] or [N, C, L] with probability p and scales the others by 1/(1 - p).
  --   print(nn.F.dropout2d(T.ones(1, 1, 2, 2), 0.5, false):sum():item())  --> 4.0

  --- nn.F.dropout3d(…) → tensor
  -- Zeros whole channels with probability p and scales the others by 1/(1 - p).
  --   print(nn.F.dropout3d(T.ones(1, 1, 2, 2, 2), 0.5, false):sum():item())  --> 8.0
  for nd = 1, 3 do
    local who = ("dropout%dd"):format(nd)
    F[who] = function(x, p, training)
      p = check_p(who, p)
      if x:dim() ~= nd + 2 and x:dim() ~= nd + 1 then
        fail("%s: the input must have %d or %d dimensions, got %d", who, nd + 1, nd + 2, x:dim())
      end
      if training == false or p == 0 then return x end
      local shape = x:shape()
      local first = nd == 2 and 3 or #shape - nd + 1 -- dropout2d takes three dimensions for [N, C, L], as PyTorch
      for d = first, #shape do shape[d] = 1 end
      return x * T.dropout(T.ones(shape, { dtype = x:dtype(), device = x:device() }), p)
    end
  end

  -- Dropped elements become SELU's lower limit; then mean and variance are restored (Klambauer et al. 2017).
  local limit = -1.7580993408473766
  local function alpha(who, x, mask_shape, p, training)
    if not T.is_tensor(x) or not x:is_floating_point() then
      fail("%s: a floating tensor is wanted, got %s", who, describe(x))
    end
    if type(p) == "table" then
      local o = options.check(who, p, { "p", "training" })
      p, training = o.p, o.training
    end
    p = check_p(who, p)
    if training == nil then training = false end
    if not training or p == 0 then return x end
    if p == 1 then return x * 0 end
    local keep = T.bernoulli(T.zeros(mask_shape(x), { dtype = x:dtype(), device = x:device() }), 1 - p)
    local a = ((1 - p) * (1 + p * limit * limit)) ^ -0.5
    return (x * keep + (1 - keep) * limit) * a - a * limit * p
  end

  --- nn.F.alpha_dropout(…) → tensor
  -- Dropout that keeps mean and variance of SELU's outputs.
  --   print(nn.F.alpha_dropout(T.ones(2), 0.5, false))  --> {1., 1.}  -- f32[2] cpu
  function F.alpha_dropout(x, p, training)
    return alpha("alpha_dropout", x, function(t) return t:shape() end, p, training)
  end

  --- nn.F.feature_alpha_dropout(…) → tensor
  -- alpha_dropout of whole channels of [N, C, *].
  --   print(nn.F.feature_alpha_dropout(T.ones(1, 2), 0.5, false))  --> {{1., 1.}}  -- f32[1,2] cpu
  function F.feature_alpha_dropout(x, p, training)
    return alpha("feature_alpha_dropout", x, function(t)
      local shape = t:shape()
      if #shape < 2 then fail("feature_alpha_dropout: [N, C, *] is wanted, got %s", describe(t)) end
      for d = 3, #shape do shape[d] = 1 end
      return shape
    end, p, training)
  end
end
