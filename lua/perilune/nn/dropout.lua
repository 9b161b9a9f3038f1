-- SPDX-License-Identifier: MIT
--- Dropout layers: in training mode zero a share p of the input and scale the rest by 1/(1-p).
-- @module perilune.nn.dropout
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"

local class, read = base.class, options.read
local out = {}

-- name → the function that does it
--- nn.Dropout(…) → module
-- In training zeros each element with probability p and scales the others by 1/(1 - p).
-- Shapes: [*] → the same
--   print(nn.Dropout(0.5):eval()(T.ones(2, 2)):sum():item())  --> 4.0

--- nn.Dropout1d(…) → module
-- In training zeros whole channels with probability p and scales the others by 1/(1 - p).
-- Shapes: [N, C, L] → the same
--   print(nn.Dropout1d(0.5):eval()(T.ones(1, 1, 2)):sum():item())  --> 2.0

--- nn.Dropout2d(…) → module
-- In training zeros whole channels with probability p and scales the others by 1/(1 - p).
-- Shapes: [N, C, H, W] or [N, C, L] → the same
--   print(nn.Dropout2d(0.5):eval()(T.ones(1, 1, 2, 2)):sum():item())  --> 4.0

--- nn.Dropout3d(…) → module
-- In training zeros whole channels with probability p and scales the others by 1/(1 - p).
-- Shapes: [N, C, D, H, W] → the same
--   print(nn.Dropout3d(0.5):eval()(T.ones(1, 1, 2, 2, 2)):sum():item())  --> 8.0
for name, f in pairs { Dropout = "dropout", Dropout1d = "dropout1d", Dropout2d = "dropout2d",
  Dropout3d = "dropout3d" } do
  local C = class(name)
  local spec = options.spec("nn." .. name, { { "p", "probability", 0.5 }, { "inplace", "bool", false } })
  local drop = F[f]
  function C:init(...)
    local a = read(spec, ...)
    self.p, self.inplace = a.p, a.inplace or nil
  end
  function C:forward(x)
    if not self.training then return x end
    if self.inplace then return x:mul_(drop(T.ones_like(x:detach()), self.p, true)) end
    return drop(x, self.p, true)
  end
  function C:extra_repr() return ("p=%g%s"):format(self.p, self.inplace and ", inplace=true" or "") end
  out[name] = C
end

--- nn.AlphaDropout(…) → module
-- Dropout that keeps mean and variance of SELU's outputs (Klambauer et al. 2017).
-- Shapes: [*] → the same
--   print(nn.AlphaDropout(0.5):eval()(T.ones(2, 2)):sum():item())  --> 4.0

--- nn.FeatureAlphaDropout(…) → module
-- AlphaDropout of whole channels.
-- Shapes: [*] → the same
--   print(nn.FeatureAlphaDropout(0.5):eval()(T.ones(2, 2)):sum():item())  --> 4.0
for name, f in pairs { AlphaDropout = "alpha_dropout", FeatureAlphaDropout = "feature_alpha_dropout" } do
  local C = class(name)
  local spec = options.spec("nn." .. name, { { "p", "probability", 0.5 } })
  function C:init(...) self.p = read(spec, ...).p end
  function C:forward(x) return F[f](x, self.p, self.training) end
  function C:extra_repr() return ("p=%g"):format(self.p) end
  out[name] = C
end

return out
