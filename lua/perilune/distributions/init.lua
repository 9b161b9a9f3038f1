-- SPDX-License-Identifier: MIT
--- T.distributions: random numbers with densities, for policies, variational inference and priors. Names and shapes as
-- in torch.distributions; classes count from 1.
--
--   local d = T.distributions.Normal(0, 1)
--   local x = d:rsample(5)               -- with gradients; d:sample(5) without
--   print(d:log_prob(x):sum(), d.mean, d:entropy())
-- @module perilune.distributions
local M = {}
for _, part in ipairs { "continuous", "gamma", "discrete", "joint", "kl" } do
  for name, value in pairs(require("perilune.distributions." .. part)) do M[name] = value end
end
for _, inner in ipairs { "standard_gamma", "slope", "binary", "classes", "drawn" } do M[inner] = nil end
M.Distribution = require("perilune.distributions.base").Distribution
return require("perilune.surface").seal(M)
