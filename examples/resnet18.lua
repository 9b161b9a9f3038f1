-- SPDX-License-Identifier: MIT
-- ResNet-18 (He et al. 2016) on Fashion-MNIST, 28 × 28 images of one channel: the first convolution has stride 2
-- and no pooling follows, so that the four stages see 14, 7, 4 and 2 pixels a side.
--   perilune run examples/resnet18.lua -- [--epochs 3] [--seed 1] [--quick] [--root DIR]
-- Ends with "ok" when the test accuracy is at least 90 % (--quick, a quarter of the channels, 500 training and
-- 150 test images: 55 %).
local T = require "perilune"
local nn, optim, data = T.nn, T.optim, T.data

-- ---- arguments ---------------------------------------------------------------------------------------
local options = T.cli {
  about = "Trains a ResNet-18 on Fashion-MNIST.",
  { "epochs", type = "integer", min = 1, help = "passes over the images (3)" },
  { "seed", 1, "of all random numbers" },
  { "quick", false, "500 of the images, a quarter of the channels, a lower goal" },
  { "root", type = "string", help = "folder of the images" },
}
options.epochs = options.epochs or 3

-- ---- data --------------------------------------------------------------------------------------------
T.manual_seed(options.seed)
local train = assert(data.fashion_mnist { split = "train", root = options.root })
local test = assert(data.fashion_mnist { split = "test", root = options.root })
local classes = #test.classes
local mean, deviation = train.images:mean():item(), train.images:std():item()
for _, set in ipairs { train, test } do set.images:sub_(mean):div_(deviation) end
if options.quick then
  train = data.random_split(train, { 500, #train - 500 }, { seed = options.seed })[1]
  test = data.Subset(test, T.arange(150))
end

-- ---- network -----------------------------------------------------------------------------------------

-- Two convolutions and the way around them; where sizes change, that is a 1 × 1 convolution.
local Block = nn.class("BasicBlock")
function Block:init(from, to, stride)
  self.conv1 = nn.Conv2d(from, to, 3, { stride = stride, padding = 1, bias = false })
  self.bn1 = nn.BatchNorm2d(to)
  self.conv2 = nn.Conv2d(to, to, 3, { padding = 1, bias = false })
  self.bn2 = nn.BatchNorm2d(to)
  if stride ~= 1 or from ~= to then
    self.downsample = nn.Sequential(nn.Conv2d(from, to, 1, { stride = stride, bias = false }), nn.BatchNorm2d(to))
  end
end
function Block:forward(x)
  local y = self.bn2(self.conv2(self.bn1(self.conv1(x)):relu()))
  return (y + (self.downsample and self.downsample(x) or x)):relu()
end

local ResNet = nn.class("ResNet18")
function ResNet:init(n, width)
  self.conv1 = nn.Conv2d(1, width, 3, { stride = 2, padding = 1, bias = false })
  self.bn1 = nn.BatchNorm2d(width)
  local from = width
  for stage, to in ipairs { width, 2 * width, 4 * width, 8 * width } do
    self["layer" .. stage] = nn.Sequential(Block(from, to, stage == 1 and 1 or 2), Block(to, to, 1))
    from = to
  end
  self.fc = nn.Linear(from, n)
  for _, m in ipairs(self:modules()) do
    if m:type() == "Conv2d" then nn.init.kaiming_normal_(m.weight, { mode = "fan_out", nonlinearity = "relu" }) end
    if m:type() == "BasicBlock" then nn.init.zeros_(m.bn2.weight) end -- each block begins as the identity
  end
end
-- f32[N, 1, 28, 28] → f32[N, classes]
function ResNet:forward(x)
  x = self.bn1(self.conv1(x)):relu()
  for stage = 1, 4 do x = self["layer" .. stage](x) end
  return self.fc(x:mean { dim = { 3, 4 } })
end

-- ---- training ----------------------------------------------------------------------------------------
local net = ResNet(classes, options.quick and 16 or 64)
print(("ResNet-18, %.1f million parameters"):format(net:num_parameters() / 1e6))
local loader = data.DataLoader(train, { batch_size = options.quick and 25 or 50, shuffle = true, drop_last = true })
local opt = optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 5e-4 })
local history = T.fit(net, {
  train = loader,
  valid = data.DataLoader(test, { batch_size = 300 }),
  epochs = options.epochs,
  optimizer = opt,
  scheduler = optim.lr_scheduler.OneCycleLR(opt, { max_lr = 0.1, total_steps = options.epochs * #loader }),
  schedule = "batch",
  metrics = "accuracy",
})

local goal, reached = options.quick and 0.55 or 0.90, history[#history].valid_accuracy
print(("test accuracy %.2f %%"):format(100 * reached))
assert(reached >= goal, ("test accuracy %.4f is below %.2f"):format(reached, goal))
print("ok")
