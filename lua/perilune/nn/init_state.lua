-- SPDX-License-Identifier: MIT
--- Whether initializers write: `off` while a network is built whose parameters come from a file. Those that are to be
-- replaced take no memory then.
local T = require "perilune"

local state = { off = false }

--- T.empty for a parameter, or one element that stands for all.
function state.empty(shape, opts)
  if not state.off then return T.empty(shape, opts) end
  local one = {}
  for d = 1, #shape do one[d] = 1 end
  return T.empty(one, opts):expand(shape)
end

return state
