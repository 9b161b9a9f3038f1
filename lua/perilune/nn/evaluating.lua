-- SPDX-License-Identifier: MIT
-- A call of a network in evaluation mode and without gradients. Some of its modules may be in that mode while others
-- train, and the other way round: each has its own again afterwards, however the call ends.
local T = require "perilune"

local function begin(net)
  local modes = {}
  for _, m in ipairs(net:modules()) do modes[m] = m.training end
  net:eval()
  return modes
end

local function finish(modes)
  for m, training in pairs(modes) do rawset(m, "training", training) end
end

return function(net, f, ...) return T.core.around(begin, net, finish, T.no_grad, f, ...) end
