-- SPDX-License-Identifier: MIT
--- Distances and similarities of two inputs, as modules.
-- @module perilune.nn.distance
local F = require "perilune.nn.functional"
local T = require "perilune"
local simple = require "perilune.nn.simple"

local CosineSimilarity = simple.class("CosineSimilarity", { { "dim", "int", 2 }, { "eps", "nonnegative", 1e-8 } })
function CosineSimilarity:forward(x, y) return F.cosine_similarity(x, y, self._opts) end
local PairwiseDistance = simple.class("PairwiseDistance", { { "p", "number", 2.0 }, { "eps", "nonnegative", 1e-6 },
  { "keepdim", "bool", false } })
function PairwiseDistance:forward(x, y) return T.pairwise_distance(x, y, self._opts) end

return { CosineSimilarity = CosineSimilarity, PairwiseDistance = PairwiseDistance }
