-- SPDX-License-Identifier: MIT
--- Which mode are an optimizer's parameters in? Schedule-free optimizers train at one point and evaluate at another; a
-- net that is switched to the other mode asks here, so that nobody evaluates the wrong one unknowingly.
-- @module perilune.optim.modes
local options = require "perilune.options"

-- parameter → the optimizer with modes that was the last to be made for it. Made for the same parameters, any other
-- takes over: a net is trained further by SGD, say, from the averages.
local M = { owners = setmetatable({}, { __mode = "k" }) }

--- Called by net:train(on) before it switches: are the parameters what the mode needs?
function M.check(net, training)
  if next(M.owners) == nil then return end
  for _, p in ipairs(net:parameters()) do
    local opt = M.owners[p]
    if opt and opt:is_training() ~= training then
      if training then
        options.fail("net:train(): its parameters are the averages of optim.%s in evaluation mode; call opt:train() "
          .. "first", opt.name)
      end
      options.fail("net:eval(): its parameters are where optim.%s takes gradients, not their averages; call opt:eval() "
        .. "first, and opt:train() before net:train()", opt.name)
    end
  end
end

--- Called where a graph is saved (by who) that has tensor p: stepped by it, or read alone.
function M.check_saved(who, p, stepped)
  local opt = M.owners[p]
  if not opt or opt:is_training() == stepped then return end
  if stepped then
    options.fail("%s: the graph's parameters are the averages of optim.%s in evaluation mode, which its steps "
      .. "must not begin at; call opt:train() first", who, opt.name)
  end
  options.fail("%s: the graph's parameters are where optim.%s takes gradients, not their averages; call "
    .. "opt:eval() first", who, opt.name)
end

return M
