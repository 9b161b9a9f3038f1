-- SPDX-License-Identifier: MIT
-- What batched backward passes give: T.jacobian and T.hessian against one backward pass for each element.
--   build/bin/perilune run bench/jacobian.lua -- [--threads n]
-- One JSON line each: milliseconds for a whole matrix, batched, by tangents and pass by pass, and the ratio of the
-- first and the last.
local T = require "perilune"
local nn = T.nn

local threads = 2
for i, a in ipairs(arg) do if a == "--threads" then threads = assert(tonumber(arg[i + 1])) end end
T.set_num_threads(threads)
T.manual_seed(1)

local clock = os.clock

-- Median milliseconds of processor time, all threads together, over at least `least` runs.
local function median(f, least)
  f()
  local times, sum = {}, 0.0
  while #times < least or sum < 0.5 * threads do
    local from = clock()
    f()
    times[#times + 1] = clock() - from
    sum = sum + times[#times]
  end
  table.sort(times)
  return times[#times // 2 + 1] * 1000
end

local function one_by_one(f, x)
  local y, pull = T.vjp(f, x)
  local rows, n = {}, y:numel()
  for i = 1, n do
    local dy = T.zeros({ n }, { dtype = y:dtype() })
    dy:set(i, 1)
    rows[i] = pull(dy:view(y:shape())):reshape(-1)
  end
  return T.stack(rows, 1)
end

local function report(name, f, x)
  local want, got = one_by_one(f, x), T.jacobian(f, x)
  local far = (want - got:reshape(want:shape())):abs():max():item()
  assert(far < 1e-3, name .. ": batched and single passes differ by " .. far)
  local batched, single = median(function() T.jacobian(f, x) end, 5), median(function() one_by_one(f, x) end, 3)
  local forward = median(function() T.jacobian(f, x, { mode = "forward" }) end, 5)
  print(('{"name": "%s", "batched_ms": %.3f, "forward_ms": %.3f, "single_ms": %.3f, "ratio": %.4f}'):format(name,
    batched, forward, single, batched / single))
end

local mlp = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 64))
report("jacobian_mlp_64", function(x) return mlp(x) end, T.randn(64))

local conv = nn.Sequential(nn.Conv2d(1, 8, 3, { padding = 1 }), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3),
  nn.Flatten(), nn.Linear(8 * 5 * 5, 100))
report("jacobian_conv_100", function(x) return conv(x) end, T.randn(1, 1, 14, 14))

local W = T.randn(20, 20)
local function energy(v) return ((W:matmul(v:view(20, 20)):tanh() ^ 2):sum()) end
report("hessian_400", T.grad(energy), T.randn(400))

local norm = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 32), nn.Softmax(-1))
report("jacobian_norm_softmax_256", function(x) return norm(x) end, T.randn(8, 32))
