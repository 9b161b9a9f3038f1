-- SPDX-License-Identifier: MIT
-- A variational autoencoder (Kingma & Welling 2014) of Fashion-MNIST images with eight latent numbers.
--   perilune run examples/vae.lua -- [--epochs 5] [--seed 1] [--quick] [--root DIR]
-- Prints an image and its reconstruction as characters. Ends with "ok" when the negative evidence lower bound of
-- the test images is below 255 nats (--quick, 6,000 images and two epochs: 300).
local T = require "perilune"
local nn, optim, data, F = T.nn, T.optim, T.data, T.nn.F

local options = T.cli {
  about = "Trains a variational autoencoder on Fashion-MNIST.",
  { "epochs", type = "integer", min = 1, help = "passes over the images (5; 2 with --quick)" },
  { "seed", 1, "of all random numbers" },
  { "quick", false, "a tenth of the images, a lower goal" },
  { "root", type = "string", help = "folder of the images" },
}
local epochs = options.epochs or (options.quick and 2 or 5)
T.manual_seed(options.seed)

local train = assert(data.fashion_mnist { split = "train", root = options.root })
local test = assert(data.fashion_mnist { split = "test", root = options.root })
if options.quick then train = data.random_split(train, { 0.1, 0.9 }, { seed = options.seed })[1] end

-- ---- model -------------------------------------------------------------------------------------------
local VAE = nn.class("VAE")

function VAE:init(latent)
  self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 2 * latent))
  self.decoder = nn.Sequential(nn.Linear(latent, 256), nn.ReLU(), nn.Linear(256, 784))
end

-- Mean and log variance of the latent numbers: two of f32[N, latent].
function VAE:encode(x)
  return table.unpack(self.encoder(x):chunk(2, -1))
end

-- f32[N, 784] of 0 … 1 → logits of the pixels, mean and log variance
function VAE:forward(x)
  local mean, log_variance = self:encode(x)
  local z = mean
  if self.training then z = mean + T.randn_like(mean) * (log_variance / 2):exp() end
  return self.decoder(z), mean, log_variance
end

-- -log p(x|z) + KL(q(z|x) ‖ N(0, 1)), summed over pixels, averaged over images (equation 10 there).
local function bound(logits, x, mean, log_variance)
  local fit = F.binary_cross_entropy_with_logits(logits, x, { reduction = "sum" })
  local divergence = (log_variance + 1 - mean:square() - log_variance:exp()):sum() * -0.5
  return (fit + divergence) / x:size(1), divergence / x:size(1)
end

local net = VAE(8)
print(net)
local opt = optim.Adam(net:parameters(), { lr = 2e-3 })

-- The same bound for all test images, with z at its mean.
local function tested()
  local _ <close> = T.no_grad()
  local total, divergence = 0, 0
  net:eval()
  for x in data.DataLoader(test, { batch_size = 500 }) do
    x = x:flatten(2)
    local logits, mean, log_variance = net(x)
    local loss, kl = bound(logits, x, mean, log_variance)
    total, divergence = total + loss:item() * x:size(1), divergence + kl:item() * x:size(1)
  end
  net:train()
  return total / #test, divergence / #test
end

-- ---- training ----------------------------------------------------------------------------------------
local loader = data.DataLoader(train, { batch_size = 64, shuffle = true })
local reached, divergence
for epoch = 1, epochs do
  local total, batches = 0, 0
  for x in T.bar(loader, { title = ("epoch %d"):format(epoch) }) do
    x = x:flatten(2)
    local logits, mean, log_variance = net(x)
    local loss = bound(logits, x, mean, log_variance)
    opt:zero_grad()
    loss:backward()
    opt:step()
    total, batches = total + loss:item(), batches + 1
  end
  reached, divergence = tested()
  print(("epoch %d: %.2f while training; test %.2f nats, of which %.2f divergence"):format(epoch, total / batches,
    reached, divergence))
end

-- ---- what it sees --------------------------------------------------------------------------------------
local shades = { " ", ".", ":", "+", "*", "#" }
local function drawn(row)
  local out = {}
  for i, v in ipairs(row:totable()) do out[i] = shades[1 + math.floor(v * 5.999)] end
  return table.concat(out)
end
T.no_grad(function()
  net:eval()
  local image = test[1][1]
  local again = net(image:view(1, 784)):sigmoid():view(28, 28)
  for y = 1, 28, 2 do print(drawn(image[{ 1, y }]) .. "   " .. drawn(again[y])) end
end)

local goal = options.quick and 300 or 255
assert(reached < goal, ("%.2f nats, not below %d"):format(reached, goal))
print("ok")
