-- SPDX-License-Identifier: MIT
--- Optimizers and learning rate schedules.
-- @module perilune.optim
local base = require "perilune.optim.optimizer"
local adam = require "perilune.optim.adam"

return {
  Optimizer = base.Optimizer,
  SGD = require "perilune.optim.sgd",
  Adam = adam.Adam,
  AdamW = adam.AdamW,
  lr_scheduler = require "perilune.optim.lr_scheduler",
}
