-- SPDX-License-Identifier: MIT
-- Checks of arguments by their values. They are made where values can be read, and passed over where a graph is made,
-- which has none; inside T.vmap all tensors of the batch are looked at. So a function that checks can be traced and
-- batched.
local core = require "perilune.core"

local M = {}

--- Whether test(x), a bool tensor, is true of some element; false where nothing can be read.
-- test sees x without a history, inside T.vmap with the batch's dimensions in front: it works element by element, or
-- along dimensions that are counted from the end. Where it brings in other tensors of the batch nothing can be said.
function M.some(x, test)
  if x:numel() == 0 then return false end
  local values = core.readable(x)
  if not values then return false end
  local found = test(values)
  local _, batches = core.readable(found)
  return batches == 0 and found:any():item()
end

return M
