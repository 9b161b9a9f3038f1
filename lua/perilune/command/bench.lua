-- SPDX-License-Identifier: MIT
-- perilune bench: the workloads of bench/run.lua where there is a checkout, a few probes of the machine elsewhere.
local T = require "perilune"
local terminal = require "perilune.terminal"

local MIN_SECONDS, SAMPLES = 0.05, 5

local function file_exists(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end

-- The checkout that holds this folder, or the one in which these modules are.
local function checkout()
  local own = debug.getinfo(1, "S").source:match "^@(.*)lua/perilune/command/bench%.lua$"
  for _, root in ipairs { ".", "..", own or "." } do
    if file_exists(root .. "/bench/run.lua") and file_exists(root .. "/bench/workloads/init.lua") then return root end
  end
  return nil
end

-- Median seconds of one call of f.
local function measure(f)
  local n = 1
  local function sample()
    local start = terminal.now()
    for _ = 1, n do f() end
    return terminal.now() - start
  end
  sample()
  while n < 1 << 24 do
    local took = sample()
    if took >= MIN_SECONDS then break end
    n = math.max(n * 2, math.min(n * 64, math.ceil(n * MIN_SECONDS / math.max(took, 1e-9))))
  end
  local list = {}
  for i = 1, SAMPLES do list[i] = sample() / n end
  table.sort(list)
  return list[SAMPLES // 2 + 1]
end

local function probes()
  local nn = T.nn
  local a, b = T.randn(2), T.randn(2)
  local big, square = T.randn(1 << 20), T.randn(1024, 1024)
  local rows = T.randn(4096, 1024)
  local net = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
  local opt = T.optim.Adam(net:parameters(), { lr = 1e-3 })
  local x, y = T.randn(64, 784), T.randint(1, 10, { 64 })
  return {
    { "a + b, 2 elements", function() return a + b end },
    { "exp, 2^20 elements", function() return big:exp() end, 8 * (1 << 20), "GB/s" },
    { "sum, 2^20 elements", function() return big:sum() end, 4 * (1 << 20), "GB/s" },
    { "softmax, 4096 x 1024", function() return rows:softmax(-1) end, 8 * 4096 * 1024, "GB/s" },
    { "matmul, 1024 x 1024", function() return square:matmul(square) end, 2 * 1024 ^ 3, "GFLOP/s" },
    { "training step, MLP 784-128-10, batch 64", function()
      local loss = nn.F.cross_entropy(net(x), y)
      opt:zero_grad()
      loss:backward()
      opt:step()
    end },
  }
end

local function seconds(t)
  if t < 1e-6 then return ("%.1f ns"):format(t * 1e9) end
  if t < 1e-3 then return ("%.2f us"):format(t * 1e6) end
  return ("%.2f ms"):format(t * 1e3)
end

-- → exit status
return function(...)
  local root = checkout()
  if root then
    -- for people a table; --json - prints the lines instead, --json FILE writes them as well
    local args, lines = { ... }, false
    for i = #args, 1, -1 do
      if args[i] == "--json" and args[i + 1] == "-" then
        table.remove(args, i)
        table.remove(args, i)
        lines = true
      end
    end
    if not lines then args[#args + 1] = "--table" end
    _G.arg = { [0] = root .. "/bench/run.lua", table.unpack(args) }
    local f, message = loadfile(root .. "/bench/run.lua")
    if not f then
      io.stderr:write("perilune bench: ", message, "\n")
      return 1
    end
    return f(table.unpack(args))
  end
  if select("#", ...) > 0 then
    io.stderr:write("perilune bench: options are those of bench/run.lua, and there is no checkout here\n")
    return 2
  end
  print(("perilune %s, %s, %d threads; median of %d samples"):format(T.version, T.core.isa(), T.get_num_threads(),
    SAMPLES))
  for _, probe in ipairs(probes()) do
    local t = measure(probe[2])
    local rate = probe[3] and ("  %.1f %s"):format(probe[3] / t / 1e9, probe[4]) or ""
    print(("  %-42s %12s%s"):format(probe[1], seconds(t), rate))
  end
  return 0
end
