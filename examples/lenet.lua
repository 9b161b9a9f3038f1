-- SPDX-License-Identifier: MIT
-- A convolutional network in the manner of LeNet-5, with batch normalization, on Fashion-MNIST.
--   perilune run examples/lenet.lua -- [--epochs 2] [--seed 1] [--quick] [--root DIR]
-- Ends with "ok" when the test accuracy is at least 87 % (--quick, 6,000 images: 80 %).
local T = require "perilune"
local nn, optim, data = T.nn, T.optim, T.data

-- ---- arguments ---------------------------------------------------------------------------------------
local options = T.cli {
  about = "Trains a convolutional network on Fashion-MNIST.",
  { "epochs", 2, "passes over the images", min = 1 },
  { "seed", 1, "of all random numbers" },
  { "quick", false, "a tenth of the images, a fifth of those of the test, a lower goal" },
  { "root", type = "string", help = "folder of the images" },
}

-- ---- data --------------------------------------------------------------------------------------------
T.manual_seed(options.seed)
local train = assert(data.fashion_mnist { split = "train", root = options.root })
local test = assert(data.fashion_mnist { split = "test", root = options.root })
local mean, deviation = train.images:mean():item(), train.images:std():item()
for _, set in ipairs { train, test } do set.images:sub_(mean):div_(deviation) end
local kinds = #test.classes
if options.quick then
  train = data.random_split(train, { 0.1, 0.9 }, { seed = options.seed })[1]
  test = data.Subset(test, T.arange(2000))
end

-- ---- network -----------------------------------------------------------------------------------------
local LeNet = nn.class("LeNet")

function LeNet:init(classes)
  self.features = nn.Sequential(
    nn.Conv2d(1, 12, 5, { padding = 2, bias = false }), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(12, 24, 5, { bias = false }), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2))
  self.classifier = nn.Sequential(
    nn.Linear(24 * 5 * 5, 96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, classes))
end

-- f32[N, 1, 28, 28] → f32[N, classes]
function LeNet:forward(x)
  return self.classifier(self.features(x):flatten(2))
end

local net = LeNet(kinds)
print(net)
local loader = data.DataLoader(train, { batch_size = 64, shuffle = true, drop_last = true })
local opt = optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 1e-4 })
local schedule = optim.lr_scheduler.OneCycleLR(opt, { max_lr = 0.1, total_steps = options.epochs * #loader })

local function accuracy()
  local _ <close> = T.no_grad()
  local right = 0
  net:eval()
  for x, y in data.DataLoader(test, { batch_size = 500 }) do
    right = right + net(x):argmax(-1):eq(y):sum():item()
  end
  net:train()
  return right / #test
end

-- ---- training ----------------------------------------------------------------------------------------
local reached
for epoch = 1, options.epochs do
  local bar = T.bar(loader, { title = ("epoch %d"):format(epoch) })
  local total, batches = 0, 0
  for x, y in bar do
    local loss = nn.F.cross_entropy(net(x), y, { label_smoothing = 0.05 })
    opt:zero_grad()
    loss:backward()
    opt:step()
    schedule:step()
    batches = batches + 1
    total = total + loss:item()
    if batches % 20 == 0 then bar:set { loss = total / batches } end
  end
  reached = accuracy()
  print(("epoch %d: mean loss %.4f, test accuracy %.2f %%"):format(epoch, total / batches, 100 * reached))
end

local goal = options.quick and 0.80 or 0.87
assert(reached >= goal, ("test accuracy %.4f is below %.2f"):format(reached, goal))
print("ok")
