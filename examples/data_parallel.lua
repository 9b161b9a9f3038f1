-- SPDX-License-Identifier: MIT
-- Fashion-MNIST in several processes: each takes its share of every batch, gradients are averaged.
--   perilune launch -n 2 examples/data_parallel.lua -- [--epochs 2] [--batch 64] [--seed 1] [--quick] [--root DIR]
--   perilune run examples/data_parallel.lua                      (one process: the same script, the same batches)
-- Ends with "ok" when the test accuracy is at least 84 % (--quick, 6,000 images: 76 %).
local T = require "perilune"
local nn, optim, data, D = T.nn, T.optim, T.data, T.distributed

-- ---- arguments ---------------------------------------------------------------------------------------
local options = T.cli {
  about = "Trains a network on Fashion-MNIST in several processes.",
  { "epochs", 2, "passes over the images", min = 1 },
  { "batch", 64, "images of a step, over all processes", min = 1 },
  { "seed", 1, "of all random numbers" },
  { "quick", false, "a tenth of the images, a lower goal" },
  { "root", type = "string", help = "folder of the images" },
}

-- ---- processes ---------------------------------------------------------------------------------------
D.init_process_group()
local rank, world = D.get_rank(), D.get_world_size()
assert(options.batch % world == 0, ("--batch %d cannot be shared out among %d processes"):format(options.batch, world))

-- ---- data --------------------------------------------------------------------------------------------
T.manual_seed(options.seed)
local train = assert(data.fashion_mnist { split = "train", root = options.root })
local test = assert(data.fashion_mnist { split = "test", root = options.root })
local mean, deviation = train.images:mean():item(), train.images:std():item()
for _, set in ipairs { train, test } do set.images:sub_(mean):div_(deviation) end
if options.quick then train = data.random_split(train, { 0.1, 0.9 }, { seed = options.seed })[1] end
local share = data.DistributedSampler(train, { seed = options.seed, drop_last = true })
local loader = data.DataLoader(train, { batch_size = options.batch // world, sampler = share, drop_last = true })

-- ---- network -----------------------------------------------------------------------------------------
local net = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, #test.classes))
local parallel = nn.parallel.DistributedDataParallel(net)
local opt = optim.Adam(net:parameters(), { lr = 1e-3 })

-- Each process judges every world-th image; the counts are added up.
local function accuracy()
  local _ <close> = T.no_grad()
  local right = T.zeros({ 1 }, { dtype = "i64" })
  local mine = data.Subset(test, T.arange(rank + 1, #test, world))
  for x, y in data.DataLoader(mine, { batch_size = 500 }) do right:add_(net(x):argmax(-1):eq(y):sum()) end
  return D.all_reduce(right):item() / #test
end

-- ---- training ----------------------------------------------------------------------------------------
local reached
for epoch = 1, options.epochs do
  share:set_epoch(epoch)
  local total, batches = T.zeros(1), 0
  for x, y in T.bar(loader, { title = ("epoch %d"):format(epoch) }) do
    local loss = nn.F.cross_entropy(parallel(x), y)
    opt:zero_grad()
    loss:backward()
    opt:step()
    total:add_(loss:detach())
    batches = batches + 1
  end
  D.all_reduce(total, { op = "avg" })
  reached = accuracy()
  if rank == 0 then
    print(("epoch %d: %d processes, mean loss %.4f, test accuracy %.2f %%"):format(epoch, world,
      total:item() / batches, 100 * reached))
  end
end
D.destroy_process_group()

local goal = options.quick and 0.76 or 0.84
assert(reached >= goal, ("test accuracy %.4f is below %.2f"):format(reached, goal))
if rank == 0 then print("ok") end
