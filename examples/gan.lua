-- SPDX-License-Identifier: MIT
-- A generative adversarial network (Goodfellow et al. 2014) that learns to make points on a noisy ring.
--   perilune run examples/gan.lua -- [--steps 3000] [--seed 1] [--svg FILE] [--quick]
-- Draws true and made points in the terminal. Ends with "ok" when 90 % of 2,000 made points are within 0.2 of the
-- ring and each of its 12 sectors has some (--quick, 2,000 steps: 75 % within 0.25, 10 sectors).
local T = require "perilune"
local nn, optim, F = T.nn, T.optim, T.nn.F

local options = T.cli {
  about = "Trains a generative adversarial network on points of a ring.",
  { "steps", type = "integer", min = 1, help = "training steps (3000; 2000 with --quick)" },
  { "seed", 1, "of all random numbers" },
  { "svg", type = "string", help = "write the picture to this file" },
  { "quick", false, "a short run with a lower goal" },
}
local steps = options.steps or (options.quick and 2000 or 3000)
T.manual_seed(options.seed)

-- f32[n, 2]: radius 1, with some noise
local function real(n)
  local angle = T.rand(n) * (2 * math.pi)
  return T.stack({ angle:cos(), angle:sin() }, 2) + T.randn(n, 2) * 0.05
end

local latent, batch = 8, 128
local generator = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
local critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2),
  nn.Linear(64, 1))
-- the critic learns faster (Heusel et al. 2017), so that what it tells the generator is up to date
local opt_g = optim.Adam(generator:parameters(), { lr = 1e-3, betas = { 0.0, 0.9 } })
local opt_d = optim.Adam(critic:parameters(), { lr = 3e-3, betas = { 0.0, 0.9 } })
local decay = { optim.lr_scheduler.CosineAnnealingLR(opt_g, steps), optim.lr_scheduler.CosineAnnealingLR(opt_d, steps) }
local yes, no = T.ones(batch, 1), T.zeros(batch, 1)
local bce = F.binary_cross_entropy_with_logits

-- ---- training ----------------------------------------------------------------------------------------
local mean_d, mean_g = T.metrics.mean(), T.metrics.mean()
for step = 1, steps do
  -- the critic: true points are 1, made ones 0
  local made = generator(T.randn(batch, latent))
  local loss_d = bce(critic(real(batch)), yes) + bce(critic(made:detach()), no)
  opt_d:zero_grad()
  loss_d:backward()
  opt_d:step()
  -- the generator: what it makes should be taken for true
  local loss_g = bce(critic(made), yes)
  opt_g:zero_grad()
  loss_g:backward()
  opt_g:step()
  for _, d in ipairs(decay) do d:step() end
  mean_d:update(loss_d)
  mean_g:update(loss_g)
  if step % (steps // 5) == 0 then
    print(("step %4d: critic %.3f, generator %.3f"):format(step, mean_d:value(), mean_g:value()))
    mean_d:reset()
    mean_g:reset()
  end
end

-- ---- what it makes --------------------------------------------------------------------------------------
local points = T.no_grad(function() return generator(T.randn(2000, latent)) end)
local x, y = points:select(2, 1), points:select(2, 2)
local sample = real(300)
local picture = T.plot({
  { x = sample:select(2, 1), y = sample:select(2, 2), label = "true" },
  { x = x:narrow(1, 1, 300), y = y:narrow(1, 1, 300), label = "made" },
}, { style = "points", width = 420, height = 400, xlim = { -1.5, 1.5 }, ylim = { -1.5, 1.5 } })
print(picture:text { width = 44, height = 18 })
if options.svg then assert(picture:svg(options.svg)) end

local distance = ((x * x + y * y):sqrt() - 1):abs()
local near = distance:lt(options.quick and 0.25 or 0.2):float():mean():item()
local sector = ((T.atan2(y, x) / (2 * math.pi) + 0.5) * 12):floor():clamp(0, 11):long() + 1
local filled = T.zeros(12):scatter_add_(1, sector, T.ones(2000)):ge(2000 / 12 / 5):sum():item()
print(("%.1f %% of the points are near the ring, %d of 12 sectors are filled"):format(100 * near, filled))
assert(near >= (options.quick and 0.75 or 0.9) and filled >= (options.quick and 10 or 12), "the goal was missed")
print("ok")
