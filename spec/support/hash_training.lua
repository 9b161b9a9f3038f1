-- SPDX-License-Identifier: MIT
-- A training of a small convolution net, a recurrent net and an attention block, eager and jitted, whose parameters and
-- losses are hashed: for spec/lanes/bits_spec.lua. Arguments: how many steps, then numbers of threads. Prints the
-- processor level and one hash for each number of threads.

local T = require "perilune"
local nn, optim = T.nn, T.optim
local F = nn.F

local Net = nn.class("Net")
function Net:init()
  self.conv = nn.Conv2d(3, 16, 3, { padding = 1 })
  self.norm = nn.BatchNorm2d(16)
  self.deep = nn.Conv2d(16, 24, 3, { stride = 2, padding = 1 })
  self.words = nn.Embedding(40, 24)
  self.lstm = nn.LSTM(24, 24)
  self.ln = nn.LayerNorm(24)
  self.heads = nn.Linear(24, 72)
  self.out = nn.Linear(24, 10)
end
function Net:forward(x, words)
  local h = F.relu(self.norm(self.conv(x)))
  h = F.max_pool2d(F.gelu(self.deep(h)), 2):flatten(3):permute(1, 3, 2) -- [N, P, 24]
  local s = (self.lstm(self.words(words):transpose(1, 2))):transpose(1, 2)
  h = T.cat({ h, s }, 2)
  local parts = self.heads(self.ln(h)):chunk(3, -1)
  for k, part in ipairs(parts) do parts[k] = part:unsqueeze(2) end
  local y = F.scaled_dot_product_attention(parts[1], parts[2], parts[3]):squeeze(2)
  return self.out(F.dropout(y, 0.1):mean(2))
end

local function training(steps, jit)
  T.manual_seed(7)
  local net = Net()
  local opt = optim.AdamW(net:parameters(), { lr = 1e-2 })
  local function step(x, w, y)
    opt:zero_grad()
    local loss = F.cross_entropy(net(x, w), y, { label_smoothing = 0.1 })
    loss:backward()
    nn.utils.clip_grad_norm_(net:parameters(), 1)
    opt:step()
    return loss
  end
  if jit then step = T.jit(step) end
  local text = {}
  for _ = 1, steps do
    local x, w, y = T.randn(12, 3, 24, 24), T.randint(1, 40, { 12, 7 }), T.randint(1, 10, { 12 })
    text[#text + 1] = ("%a"):format(step(x, w, y):item())
  end
  for _, p in ipairs(net:parameters()) do
    for _, v in ipairs(p:detach():reshape(-1):totable()) do text[#text + 1] = ("%a"):format(v) end
  end
  return T.core.crc32c(table.concat(text, " "))
end

local steps = tonumber(arg[1])
for k = 2, #arg do
  T.set_num_threads(tonumber(arg[k]))
  print(("%08x %08x"):format(training(steps, false), training(steps, true)))
end
