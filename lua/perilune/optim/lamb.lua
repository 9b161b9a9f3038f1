-- SPDX-License-Identifier: MIT
--- LAMB.
-- @module perilune.optim.lamb
local check = require("perilune.optim.optimizer").check
local fused = require "perilune.optim.fused"

local out = {}

local function trust(v) return v == false or type(v) == "number" and v > 0 or "a number > 0 or false" end

-- You et al. 2020: AdamW's step u (with weight decay in it), times ‖p‖ / ‖u‖, parameter by parameter. max_trust: the
-- most that this ratio may be; always_adapt = false: groups without weight decay (biases, norms) step without it.
-- `lr=1e-3 betas={0.9, 0.999} eps=1e-6 weight_decay=0.01 bias_correction=true always_adapt=true max_trust=false`
--- optim.LAMB(…) → optimizer
-- Adam's steps scaled to the size of each parameter, for large batches (You et al. 2020).
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.LAMB({ p }, { lr = 0.1 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
out.LAMB = fused.define("LAMB", 1e-3, { fused.betas, fused.eps(1e-6), fused.decay(0.01),
  { "bias_correction", true, check.bool }, { "always_adapt", true, check.bool }, { "max_trust", false, trust } }, {
  rule = "lamb", columns = fused.moments, make = fused.make_moments, decay = "inside", states = fused.all_states,
  numbers = function(group)
    return { group.betas[1], group.betas[2], group.eps, group.bias_correction and 1 or 0, group.always_adapt and 1 or 0,
      group.max_trust or math.huge }
  end,
})

return out
