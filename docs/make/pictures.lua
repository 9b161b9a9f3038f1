-- SPDX-License-Identifier: MIT
-- Makes the pictures of the README from real runs: perilune run docs/make/pictures.lua
-- Needs the images of Fashion-MNIST; takes about a minute. Writes docs/img/*.svg.
local T = require "perilune"
local nn, optim, data = T.nn, T.optim, T.data
local out = (arg[0]:match("^(.*)/make/[^/]*$") or "docs") .. "/img/"

T.manual_seed(1)
local train = assert(data.fashion_mnist { split = "train" })
local test = assert(data.fashion_mnist { split = "test" })
local net = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
local epochs = 10
local opt = optim.Adam(net:parameters(), { lr = 2e-3 })
local history = T.fit(net, {
  train = data.DataLoader(train, { batch_size = 128, shuffle = true }),
  valid = data.DataLoader(test, { batch_size = 1000 }),
  epochs = epochs,
  optimizer = opt,
  scheduler = optim.lr_scheduler.CosineAnnealingLR(opt, epochs),
  metrics = "accuracy",
})
print(history)
print(history:plot { title = "Fashion-MNIST, 784-128-10" })
assert(history:plot({ title = "Fashion-MNIST, 784-128-10", ylabel = "cross entropy", width = 420, height = 300 })
  :svg(out .. "losses.svg"))

local confusion = T.metrics.confusion_matrix { classes = 10 }
net:eval()
T.no_grad(function()
  for x, y in data.DataLoader(test, { batch_size = 1000 }) do confusion:update(net(x), y) end
end)
assert(confusion:plot({ names = train.classes, title = "10,000 test images", width = 440, height = 460 })
  :svg(out .. "confusion.svg"))

local images = {}
for i = 1, 24 do images[i] = test[i][1] end
assert(T.stack(images, 1):imshow({ cols = 12, scale = 2 }):svg(out .. "images.svg"))

arg = { [0] = "examples/gan.lua", "--svg", out .. "gan.svg" } -- luacheck: ignore 111 121
dofile((out:gsub("docs/img/$", "")) .. "examples/gan.lua")
