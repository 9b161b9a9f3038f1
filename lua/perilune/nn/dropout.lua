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

-- Dropout for networks of SELU: elements, or whole channels.
for name, f in pairs { AlphaDropout = "alpha_dropout", FeatureAlphaDropout = "feature_alpha_dropout" } do
  local C = class(name)
  local spec = options.spec("nn." .. name, { { "p", "probability", 0.5 } })
  function C:init(...) self.p = read(spec, ...).p end
  function C:forward(x) return F[f](x, self.p, self.training) end
  function C:extra_repr() return ("p=%g"):format(self.p) end
  out[name] = C
end

return out
