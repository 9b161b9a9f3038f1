-- SPDX-License-Identifier: MIT
-- Balances a pole on a cart with a policy gradient (REINFORCE, Williams 1992). The cart is simulated here, with the
-- equations of Barto, Sutton & Anderson (1983) and the limits of the usual benchmark: 500 steps at most.
--   perilune run examples/cartpole.lua -- [--episodes 400] [--seed 1] [--quick]
-- Ends with "ok" when the last 20 episodes last 400 steps on average (--quick, 200 episodes: 150).
local T = require "perilune"
local nn, optim, F = T.nn, T.optim, T.nn.F

local options = T.cli {
  about = "Learns to balance a pole on a cart.",
  { "episodes", type = "integer", min = 20, help = "attempts (400; 200 with --quick)" },
  { "seed", 1, "of all random numbers" },
  { "quick", false, "a short run with a lower goal" },
}
local episodes = options.episodes or (options.quick and 200 or 400)
T.manual_seed(options.seed)
math.randomseed(options.seed)

-- ---- the cart ----------------------------------------------------------------------------------------
local GRAVITY, CART, POLE, HALF, FORCE, DT = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
local Cart = {}
Cart.__index = Cart

function Cart.new()
  local function r() return math.random() * 0.1 - 0.05 end
  return setmetatable({ x = r(), v = r(), angle = r(), spin = r(), steps = 0 }, Cart)
end

function Cart:state() return { self.x, self.v, self.angle, self.spin } end

-- Pushes left (1) or right (2); true while the pole stands and the cart is on its track.
function Cart:push(action)
  local force = action == 2 and FORCE or -FORCE
  local sin, cos = math.sin(self.angle), math.cos(self.angle)
  local t = (force + POLE * HALF * self.spin ^ 2 * sin) / (CART + POLE)
  local spin2 = (GRAVITY * sin - cos * t) / (HALF * (4 / 3 - POLE * cos ^ 2 / (CART + POLE)))
  local speed2 = t - POLE * HALF * spin2 * cos / (CART + POLE)
  self.x, self.v = self.x + DT * self.v, self.v + DT * speed2
  self.angle, self.spin = self.angle + DT * self.spin, self.spin + DT * spin2
  self.steps = self.steps + 1
  return math.abs(self.x) < 2.4 and math.abs(self.angle) < math.rad(12) and self.steps < 500
end

-- ---- policy --------------------------------------------------------------------------------------------
local policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
local opt = optim.Adam(policy:parameters(), { lr = 1e-2 })

-- One attempt: the states, what was done in them, and how many steps it lasted.
local function episode()
  local _ <close> = T.no_grad()
  local cart, states, actions = Cart.new(), {}, {}
  repeat
    local state = cart:state()
    local left = policy(T.tensor(state)):softmax(-1):get(1)
    local action = math.random() < left and 1 or 2
    states[#states + 1], actions[#actions + 1] = state, action
  until not cart:push(action)
  return states, actions, cart.steps
end

-- The reward is 1 a step; what follows an action counts, later steps less. Standing until the end goes on to count.
local function returns(n, discount)
  local out, sum = {}, n == 500 and 1 / (1 - discount) or 0.0
  for i = n, 1, -1 do
    sum = 1 + discount * sum
    out[i] = sum
  end
  return out
end

-- ---- training ----------------------------------------------------------------------------------------
local lengths, per_update = {}, 5
local states, actions, values = {}, {}, {}
for i = 1, episodes do
  local s, a, n = episode()
  lengths[i] = n
  table.move(s, 1, n, #states + 1, states)
  table.move(a, 1, n, #actions + 1, actions)
  table.move(returns(n, 0.99), 1, n, #values + 1, values)
  if i % per_update == 0 then
    local advantage = T.tensor(values)
    advantage = (advantage - advantage:mean()) / (advantage:std() + 1e-6)
    local done = T.tensor(actions, { dtype = "i64" })
    for _ = 1, 2 do
      local chosen = F.log_softmax(policy(T.tensor(states)), -1):gather(2, done:unsqueeze(2)):squeeze(2)
      local loss = -(chosen * advantage):mean()
      opt:zero_grad()
      loss:backward()
      opt:step()
    end
    states, actions, values = {}, {}, {}
  end
  if i % (episodes // 10) == 0 then
    local sum = 0
    for k = i - 9, i do sum = sum + lengths[k] end
    print(("episode %3d: %5.1f steps on average of the last ten"):format(i, sum / 10))
  end
end

print("steps by episode: " .. T.plot.spark(lengths))
local sum = 0
for k = episodes - 19, episodes do sum = sum + lengths[k] end
print(("the last 20 episodes: %.1f steps"):format(sum / 20))
assert(sum / 20 >= (options.quick and 150 or 400), "the pole fell too early")
print("ok")
