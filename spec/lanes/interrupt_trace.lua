-- SPDX-License-Identifier: MIT
-- Ctrl-C behind instruction n of what makes a trace (lua/perilune/jit/trace.lua): afterwards no trace may be open, and
-- the script's numbers are those of one that was never interrupted. For the prompt, which takes one Ctrl-C a line:
--   try, finish = dofile "…/interrupt_trace.lua" (every)
-- then lines of try(), each with one interruption `every` instructions behind the last, till all have been; and
-- finish(), which prints counts.

local T = require "perilune"
local pid = assert(tonumber(io.open("/proc/self/stat"):read "a":match "^%d+"))

return function(every)
  local at, tried, finds, over = 1, 0, 0, false
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

  local ours = {} -- function → is it of the library's tracing?
  local function is_ours(f, source)
    if ours[f] == nil then ours[f] = source:find("perilune/jit/trace.lua", 1, true) ~= nil end
    return ours[f]
  end

  local function look()
    local ok, got = pcall(go_on)
    if not ok and tostring(got):find "interrupted!" then return end -- it came late
    if not ok or not want[got] then
      finds = finds + 1
      print(("instruction %d: %s"):format(at, got))
    end
  end

  local function try()
    if over then return end
    if tried > 0 then look() end
    at = tried * every + 1
    tried = tried + 1
    build()
    local n = 0
    debug.sethook(function()
      local info = debug.getinfo(2, "fS")
      if not (info and is_ours(info.func, info.source)) then return end
      n = n + 1
      if n == at then io.popen(("kill -INT %d"):format(pid)):close() end
    end, "", 1)
    step()
    debug.sethook()
    over = true
  end

  local function finish()
    print(("%d interruptions, %d finds%s"):format(tried - 1, finds, over and "" or ", not over"))
  end
  return try, finish
end
