-- SPDX-License-Identifier: MIT
-- Ctrl-C behind instruction n of what makes a trace (lua/perilune/jit/trace.lua): afterwards no trace may be open, and
-- the script's numbers are those of one that was never interrupted. For the prompt, which takes one Ctrl-C a line:
--   try, finish = dofile "…/interrupt_trace.lua" (every)
-- then lines of try(), each with one interruption `every` instructions behind the last, till all have been; and
-- finish(), which prints counts.

local T = require "perilune"
local each = dofile(debug.getinfo(1, "S").source:match "^@(.*/)" .. "interrupt_each.lua")

return function(every)
  local net, opt, step

  local function build()
    T.manual_seed(7)
    net = T.nn.Sequential(T.nn.Linear(4, 4), T.nn.Tanh())
    opt = T.optim.Adam(net:parameters(), { lr = 1e-2 })
    local x, y = T.randn(3, 4), T.randn(3, 4)
    step = T.jit(function()
      opt:zero_grad()
      T.nn.F.mse_loss(net(x), y):backward()
      opt:step()
    end)
  end

  -- Two steps more, and what they leave.
  local function go_on()
    for _ = 1, 2 do step() end
    local out = { ("traced %d"):format(step.ntraces) }
    for i, p in ipairs(net:parameters()) do
      out[i + 1] = ("%.17g"):format((p:detach():to "f64" * 3.7):sin():sum():item())
    end
    return table.concat(out, " ")
  end

  local want = {}
  build()
  want[go_on()] = true -- interrupted before the first step
  build()
  step()
  want[go_on()] = true -- or after it

  return each(every, "perilune/jit/trace.lua", build, function() step() end, function()
    local got = go_on()
    if not want[got] then return got end
  end)
end
