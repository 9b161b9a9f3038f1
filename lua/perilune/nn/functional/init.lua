-- SPDX-License-Identifier: MIT
--- nn.F: the functions behind the modules. Ops of the engine under their own names (relu, softmax, layer_norm,
-- cross_entropy, conv2d, …), plus what is made of several ops, a file each subject in this folder.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"
local surface = require "perilune.surface"

local fail, describe = options.fail, options.describe
local core = T.core

-- Anything not defined here is the engine's op of that name.
local F = setmetatable({}, { __index = function(F, name)
  local f = type(name) == "string" and T[name] or nil
  if type(f) ~= "function" then return nil end
  rawset(F, name, f)
  return f
end })

for _, part in ipairs { "activation", "loss", "conv", "dropout", "norm", "embedding", "pool", "fractional_pool", "fold",
  "resize", "detection", "attention", "recurrent" } do
  require("perilune.nn.functional." .. part)(F)
end
require("perilune.nn.functional.linear_cross_entropy").install(F)

--- nn.F.upsample(x, {size=, scale_factor=, mode="nearest"}) → tensor
-- Another name of nn.F.interpolate.
--   print(nn.F.upsample(T.tensor { { { 1, 3 } } }, { scale_factor = 2 }))
--   --> {{{1., 1., 3., 3.}}}  -- f32[1,1,4] cpu
F.upsample = F.interpolate
surface.one("interpolate", F.interpolate) -- which has the other name as well

-- Functions made of several ops speak in their own name, whichever op inside refuses.
for name in ([[adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices
  max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices cosine_similarity ctc_loss dropout1d dropout2d
  dropout3d embedding_bag glu gumbel_softmax hinge_embedding_loss margin_ranking_loss
  multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss normalize poisson_nll_loss prelu
  soft_margin_loss softmin upsample]]):gmatch "%S+" do
  local f = surface.one(name, F[name])
  F[name] = options.named(name, function(x, ...)
    if not core.is_tensor(x) then fail("%s: argument #1 must be a tensor, got %s", name, describe(x)) end
    return f(x, ...)
  end)
end

-- In f32 within T.autocast, as the losses of the engine are.
T.core.full_precision(F, { "cosine_embedding_loss", "hinge_embedding_loss", "triplet_margin_loss", "poisson_nll_loss",
  "multi_margin_loss", "multilabel_margin_loss", "margin_ranking_loss", "soft_margin_loss", "ctc_loss" })

T.core.rounded_once(F, { "cosine_similarity" })

-- What is written in Lua may look at sizes: a trace of T.jit notes it as a whole.
for name, f in next, F do
  if core.parameters(f) and not surface.sealed[f] then rawset(F, name, surface.again(f)) end
end

return F
