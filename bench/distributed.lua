-- SPDX-License-Identifier: MIT
-- Processes that exchange tensors: seconds of all_reduce by size, and of a training step of DistributedDataParallel.
--   perilune launch -n 2 bench/distributed.lua -- [--rounds 7] [--seconds 0.2]
-- One JSON line each from rank 0; bench/distributed_peer.py prints the same of PyTorch (gloo):
--   python3 -m torch.distributed.run --nproc-per-node 2 bench/distributed_peer.py
local T = require "perilune"
local nn, D = T.nn, T.distributed
local options = T.cli { { "rounds", 7, "samples of each", min = 1 }, { "seconds", 0.2, "of each sample" } }
D.init_process_group()
local clock = T.core.clock

-- Median of the samples of f's time, the slowest rank's of each; all ranks call f equally often.
local function time(f)
  f()
  D.barrier()
  local from = clock()
  f()
  local once = D.all_reduce(T.tensor({ clock() - from }, { dtype = "f64" }), { op = "max" }):item()
  local n, samples = math.max(1, math.floor(options.seconds / once)), {}
  for i = 1, options.rounds do
    D.barrier()
    from = clock()
    for _ = 1, n do f() end
    samples[i] = D.all_reduce(T.tensor({ (clock() - from) / n }, { dtype = "f64" }), { op = "max" }):item()
  end
  table.sort(samples)
  return samples[#samples // 2 + 1]
end

local function report(name, bytes, f)
  local s = time(f)
  if D.get_rank() > 0 then return end
  print(('{"workload":"%s","impl":"perilune","processes":%d,"median_s":%.6g,"gb_per_s":%.3g}'):format(name,
    D.get_world_size(), s, bytes / s / 1e9))
end

for _, n in ipairs { 1, 1024, 65536, 1048576, 16777216 } do
  local x = T.ones(n)
  report("all_reduce_" .. 4 * n, 4 * n, function() D.all_reduce(x) end)
end

local layers = {}
for i = 1, 4 do layers[i] = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) end
local net = nn.Sequential(table.unpack(layers))
local ddp = nn.parallel.DistributedDataParallel(net)
local x = T.randn(64, 1024)
report("ddp_mlp_step", 4 * net:num_parameters(), function()
  net:zero_grad()
  ddp(x):square():mean():backward()
end)
report("mlp_step_alone", 0, function()
  net:zero_grad()
  net(x):square():mean():backward()
end)
