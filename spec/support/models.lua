-- SPDX-License-Identifier: MIT
-- The models whose plans specs look at, made of nn's modules: each entry returns net, and function(g) → loss, and a
-- function that draws numbers for the graph's inputs.
local T = require "perilune"
local nn = T.nn
local F = nn.F

local M = {}

local function classifier(net, shape, classes)
  return net, function(g)
    local x = g:input("x", shape)
    local y = g:input("y", { shape[1] }, { dtype = "i64" })
    return F.cross_entropy(net(x), y), function()
      return { x = T.randn(shape) * 0.5, y = T.randint(1, classes, { shape[1] }) }
    end
  end
end

function M.mlp(batch)
  local net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
  return classifier(net, { batch or 64, 784 }, 10)
end

function M.lenet(batch)
  local net = nn.Sequential(nn.Conv2d(1, 6, 5, { padding = 2 }), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5),
    nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(),
    nn.Linear(84, 10))
  return classifier(net, { batch or 64, 1, 28, 28 }, 10)
end

local function conv_bn(cin, cout, size, stride, relu)
  local layers = { nn.Conv2d(cin, cout, size, { stride = stride or 1, padding = size // 2, bias = false }),
    nn.BatchNorm2d(cout) }
  if relu ~= false then layers[3] = nn.ReLU() end
  return nn.Sequential(table.unpack(layers))
end

local Residual = nn.class("Residual")
function Residual:init(cin, width, stride, bottleneck)
  local cout = bottleneck and 4 * width or width
  if bottleneck then
    self.body = nn.Sequential(conv_bn(cin, width, 1), conv_bn(width, width, 3, stride),
      conv_bn(width, cout, 1, 1, false))
  else
    self.body = nn.Sequential(conv_bn(cin, width, 3, stride), conv_bn(width, cout, 3, 1, false))
  end
  if cin ~= cout or stride ~= 1 then self.short = conv_bn(cin, cout, 1, stride, false) end
end
function Residual:forward(x) return F.relu(self.body(x) + (self.short and self.short(x) or x)) end

-- depths per stage, bottleneck blocks, batch, size of the images
function M.resnet(depths, bottleneck, batch, size, imagenet, width)
  width = width or 64
  local layers = { conv_bn(3, width, imagenet and 7 or 3, imagenet and 2 or 1) }
  if imagenet then layers[2] = nn.MaxPool2d(3, { stride = 2, padding = 1 }) end
  local cin = width
  for stage, depth in ipairs(depths) do
    for i = 1, depth do
      local w = (width // 2) << stage
      layers[#layers + 1] = Residual(cin, w, (stage > 1 and i == 1) and 2 or 1, bottleneck)
      cin = bottleneck and 4 * w or w
    end
  end
  local head = nn.Linear(cin, 1000)
  local Net = nn.class("ResNet")
  function Net:init() self.blocks, self.head = nn.Sequential(table.unpack(layers)), head end
  function Net:forward(x) return self.head(self.blocks(x):mean({ 3, 4 })) end
  return classifier(Net(), { batch, 3, size, size }, 1000)
end
function M.resnet18(batch, size) return M.resnet({ 2, 2, 2, 2 }, false, batch or 32, size or 224, true) end
function M.resnet50(batch, size) return M.resnet({ 3, 4, 6, 3 }, true, batch or 32, size or 224, true) end
function M.resnet152(batch, size) return M.resnet({ 3, 8, 36, 3 }, true, batch or 32, size or 224, true) end

local Block = nn.class("GPTBlock")
function Block:init(dim, heads)
  self.heads, self.dim = heads, dim
  self.norm1 = nn.LayerNorm(dim, { bias = false })
  self.qkv = nn.Linear(dim, 3 * dim, { bias = false })
  self.proj = nn.Linear(dim, dim, { bias = false })
  self.norm2 = nn.LayerNorm(dim, { bias = false })
  self.up = nn.Linear(dim, 4 * dim, { bias = false })
  self.down = nn.Linear(4 * dim, dim, { bias = false })
end
function Block:forward(x)
  local B, S = x:size(1), x:size(2)
  local part = self.qkv(self.norm1(x)):split(self.dim, 3)
  for i, z in ipairs(part) do part[i] = z:view(B, S, self.heads, self.dim // self.heads):transpose(2, 3) end
  local y = F.scaled_dot_product_attention(part[1], part[2], part[3], { is_causal = true })
  x = x + self.proj(y:transpose(2, 3):reshape(B, S, self.dim))
  return x + self.down(F.gelu(self.up(self.norm2(x))))
end

function M.gpt(layers, heads, dim, block, vocab, batch)
  local Net = nn.class("GPT")
  function Net:init()
    self.token, self.place = nn.Embedding(vocab, dim), nn.Embedding(block, dim)
    local blocks = {}
    for i = 1, layers do blocks[i] = Block(dim, heads) end
    self.blocks, self.norm = nn.Sequential(table.unpack(blocks)), nn.LayerNorm(dim, { bias = false })
  end
  function Net:forward(ids)
    local x = self.token(ids) + self.place.weight:narrow(1, 1, ids:size(2))
    return F.linear(self.norm(self.blocks(x)), self.token.weight)
  end
  local net = Net()
  return net, function(g)
    local ids = g:input("x", { batch, block }, { dtype = "i64" })
    local y = g:input("y", { batch, block }, { dtype = "i64" })
    return F.cross_entropy(net(ids):flatten(1, 2), y:flatten()),
      function() return { x = T.randint(1, vocab, { batch, block }), y = T.randint(1, vocab, { batch, block }) } end
  end
end
function M.gpt_nano() return M.gpt(4, 4, 128, 64, 65, 12) end
function M.gpt_medium() return M.gpt(8, 8, 512, 256, 8192, 8) end

function M.lstm(batch, steps)
  local Net = nn.class("CharLSTM")
  function Net:init()
    self.embed = nn.Embedding(65, 65)
    self.lstm = nn.LSTM(65, 128, { num_layers = 2, batch_first = true })
    self.head = nn.Linear(128, 65)
  end
  function Net:forward(ids) return self.head((self.lstm(self.embed(ids)))) end
  local net = Net()
  batch, steps = batch or 50, steps or 50
  return net, function(g)
    local ids = g:input("x", { batch, steps }, { dtype = "i64" })
    local y = g:input("y", { batch, steps }, { dtype = "i64" })
    return F.cross_entropy(net(ids):flatten(1, 2), y:flatten()),
      function() return { x = T.randint(1, 65, { batch, steps }), y = T.randint(1, 65, { batch, steps }) } end
  end
end

-- Graph of a training step: loss and the gradients of all parameters.
function M.graph(net, feed, options)
  local g = T.graph()
  local loss, numbers = g:trace(feed, g)
  local outputs = g:gradient(loss, net:parameters(), options)
  table.insert(outputs, 1, loss)
  g:outputs(outputs)
  return g, numbers
end

return M
