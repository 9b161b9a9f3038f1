-- SPDX-License-Identifier: MIT
--- Optimizers and learning rate schedules.
-- @module perilune.optim
local base = require "perilune.optim.optimizer"
local adam = require "perilune.optim.adam"

local optim = {
  Optimizer = base.Optimizer,
  SGD = require "perilune.optim.sgd",
  Adam = adam.Adam,
  AdamW = adam.AdamW,
  Adam8bit = adam.Adam8bit,
  AdamW8bit = adam.AdamW8bit,
  LBFGS = require "perilune.optim.lbfgs",
  RMSprop = require "perilune.optim.rmsprop",
  lr_scheduler = require "perilune.optim.lr_scheduler",
}

for _, part in ipairs { "adagrad", "adam_variants", "sign", "asgd", "adafactor", "muon", "lamb", "schedule_free",
  "prodigy", "soap" } do
  for name, class in pairs(require("perilune.optim." .. part)) do optim[name] = class end
end

-- Loaded at first use.
local lazy = { compat = "perilune.optim.compat", swa_utils = "perilune.optim.swa_utils" }
return setmetatable(optim, { __index = function(t, key)
  if not lazy[key] then return nil end
  local part = require(lazy[key])
  rawset(t, key, part)
  return part
end })
