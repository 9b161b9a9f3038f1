-- SPDX-License-Identifier: MIT
-- The model of embed.c: a table of functions over strings of 32-bit floats.
local T = require "perilune"
local nn, optim = T.nn, T.optim

T.manual_seed(1)
local net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
local opt = optim.Adam(net:parameters(), { lr = 1e-2 })

local function column(bytes) return T.from_string(bytes, "f32"):view(-1, 1) end

local M = {}

-- One step of training; returns the loss.
function M.step(x, y)
  local loss = nn.F.mse_loss(net(column(x)), column(y))
  opt:zero_grad()
  loss:backward()
  opt:step()
  return loss:item()
end

function M.predict(x)
  return T.no_grad(function() return net(column(x)):flatten():to_string() end)
end

return M
