-- SPDX-License-Identifier: MIT
-- What a jitted function costs for sizes that it was not called with before (docs/design/symbolic-sizes.md): its calls
-- made again, and its plan, against a first trace.
--   perilune run bench/sizes.lua -- [NAME ...]

local T = require "perilune"
local again = require "perilune.jit.again"
local nn, F, core = T.nn, T.nn.F, T.core
local clock = core.clock

local function training(net, loss_of)
  local opt = T.optim.AdamW(net:parameters(), { lr = 0.01 })
  return function(x, y)
    opt:zero_grad()
    local loss = loss_of(net(x), y)
    loss:backward()
    opt:step()
    return loss
  end
end

local function mean(y) return y:mean() end

local cases = {
  mlp_step = { function()
    return training(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)),
      F.cross_entropy)
  end, function(n) return T.randn(n, 64), T.randint(1, 10, { n }) end },
  transformer_step = { function()
    local layers = {}
    for i = 1, 6 do
      layers[i] = nn.TransformerEncoderLayer(64, 4, { dim_feedforward = 128, batch_first = true, dropout = 0.0 })
    end
    return training(nn.Sequential(table.unpack(layers)), mean)
  end, function(n) return T.randn(2, n, 64) end },
  lstm_step = { function()
    local net = nn.LSTM(32, 64, { num_layers = 2 })
    return training(setmetatable({ parameters = function() return net:parameters() end },
      { __call = function(_, x) return (net(x)) end }), mean)
  end, function(n) return T.randn(n, 4, 32) end },
  conv_step = { function()
    local layers = {}
    for _ = 1, 10 do
      for _, layer in ipairs { nn.Conv2d(8, 8, 3, { padding = 1 }), nn.BatchNorm2d(8), nn.ReLU() } do
        layers[#layers + 1] = layer
      end
    end
    return training(nn.Sequential(table.unpack(layers)), mean)
  end, function(n) return T.randn(n, 8, 8, 8) end },
  forward = { function()
    local net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return function(x) return net(x) end
  end, function(n) return T.randn(n, 64) end },
}

local SIZES, ROUNDS = { 12, 7, 16, 9 }, 12

local function least(n, f)
  local best = math.huge
  for round = 1, n do best = math.min(best, f(round)) end
  return best
end

local function measure(name)
  local make, inputs = table.unpack(cases[name])
  local f = T.jit(make())
  for _ = 1, 2 do f(inputs(SIZES[1])) end
  local root, calls, plan = f.last, math.huge, math.huge
  for round = 1, ROUNDS do
    local tensors = { inputs(SIZES[1 + round % #SIZES]) }
    local begin = clock()
    local program, why = core.jit_replay(root.program, tensors, again.repeater(root.again))
    local between = clock()
    if not program then error(name .. ": " .. why, 0) end
    if root.tracked > 0 then
      core.jit_joint(program, root.wanting, name, root.tracked)
    else
      core.jit_compile(program)
    end
    calls, plan = math.min(calls, between - begin), math.min(plan, clock() - between)
  end
  local traced = least(5, function()
    local g = T.jit(make())
    g(inputs(SIZES[1]))
    return g.trace_seconds
  end)
  local nodes = #f:graph():nodes()
  print(("%-18s %6d %10.4f %10.4f %12.4f %10.4f %8.3f"):format(name, nodes, calls * 1e3, plan * 1e3,
    (calls + plan) * 1e5 / nodes, traced * 1e3, (calls + plan) / traced))
end

print(("%-18s %6s %10s %10s %12s %10s %8s"):format("workload", "nodes", "calls ms", "plan ms", "per 100 ms", "trace ms",
  "ratio"))
local only = {}
for _, a in ipairs { ... } do if a ~= "--" then only[#only + 1] = a end end
if #only == 0 then
  for name in pairs(cases) do only[#only + 1] = name end
  table.sort(only)
end
for _, name in ipairs(only) do measure(name) end
