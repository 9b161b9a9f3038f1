-- SPDX-License-Identifier: MIT
-- Trains a 784-128-10 network (Adam, batches of 64) on the 60,000 images of Fashion-MNIST and tests it on the
-- other 10,000.
--   perilune run examples/fashion_mnist.lua -- [--epochs 3] [--seed 1] [--quick] [--save FILE]
-- Ends with "ok" when the test accuracy is at least 87 % (--quick, a tenth of the images: 78 %).
local T = require "perilune"
local nn, optim, data = T.nn, T.optim, T.data

-- ---- arguments ---------------------------------------------------------------------------------------
local options = T.cli {
  about = "Trains a network with one hidden layer on Fashion-MNIST.",
  { "epochs", 3, "passes over the images", min = 1 },
  { "seed", 1, "of all random numbers" },
  { "quick", false, "a tenth of the images, a lower goal" },
  { "save", type = "string", help = "write the weights to this file" },
  { "root", type = "string", help = "folder of the images" },
}

-- ---- data --------------------------------------------------------------------------------------------
T.manual_seed(options.seed)
local train = assert(data.fashion_mnist { split = "train", root = options.root })
local test = assert(data.fashion_mnist { split = "test", root = options.root })
local mean, deviation = train.images:mean():item(), train.images:std():item()
for _, set in ipairs { train, test } do set.images:sub_(mean):div_(deviation) end
print(("%d training images, %d test images, %d classes"):format(#train, #test, #train.classes))
if options.quick then train = data.random_split(train, { 0.1, 0.9 }, { seed = options.seed })[1] end

-- ---- network -----------------------------------------------------------------------------------------
local net = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
print(net)
local opt = optim.Adam(net:parameters(), { lr = 2e-3 })
local loader = data.DataLoader(train, { batch_size = 64, shuffle = true })
local schedule = optim.lr_scheduler.CosineAnnealingLR(opt, options.epochs * #loader)

-- Predicted classes of the whole test set, 1000 images at a time.
local function predict()
  local _ <close> = T.no_grad()
  local parts = {}
  net:eval()
  for x in data.DataLoader(test, { batch_size = 1000 }) do parts[#parts + 1] = net(x):argmax(-1) end
  net:train()
  return T.cat(parts)
end

local function accuracy(predicted, labels)
  return predicted:eq(labels):sum():item() / labels:numel()
end

-- ---- training ----------------------------------------------------------------------------------------
local reached, predicted
for epoch = 1, options.epochs do
  local bar = T.bar(loader, { title = ("epoch %d"):format(epoch) })
  local total, batches = 0, 0
  for x, y in bar do
    local loss = nn.F.cross_entropy(net(x), y)
    opt:zero_grad()
    loss:backward()
    opt:step()
    schedule:step()
    batches = batches + 1
    total = total + loss:item()
    if batches % 50 == 0 then bar:set { loss = total / batches } end
  end
  predicted = predict()
  reached = accuracy(predicted, test.labels)
  print(("epoch %d: mean loss %.4f, test accuracy %.2f %%"):format(epoch, total / batches, 100 * reached))
end

-- ---- what it learned -----------------------------------------------------------------------------------
for class, name in ipairs(test.classes) do
  local mine = test.labels:eq(class)
  local right = (predicted:eq(class) * mine):sum():item()
  print(("  %-12s %.1f %%"):format(name, 100 * right / mine:sum():item()))
end

local path = options.save or os.tmpname()
assert(T.save(path, net:state_dict()))
local saved = assert(T.load(path))
for name, p in pairs(net:state_dict()) do
  assert(saved[name]:equal(p), name .. " changed on its way to disk")
end
if not options.save then os.remove(path) end
print(("saved and read back %d parameters (%s)"):format(net:num_parameters(),
  options.save or "a temporary file"))

local goal = options.quick and 0.78 or 0.87
assert(reached >= goal, ("test accuracy %.4f is below %.2f"):format(reached, goal))
print("ok")
