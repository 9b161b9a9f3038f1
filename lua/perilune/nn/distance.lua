-- SPDX-License-Identifier: MIT
--- Distances and similarities of two inputs, as modules.
-- @module perilune.nn.distance
local F = require "perilune.nn.functional"
local T = require "perilune"
local simple = require "perilune.nn.simple"

local current = simple.current

--- nn.CosineSimilarity(…) → module
-- x·y / (‖x‖ ‖y‖) along dim.
-- Shapes: [*], [*] → [*] without dim
--   print(nn.CosineSimilarity()(T.tensor { { 1, 0 } }, T.tensor { { 1, 1 } }))  --> {0.7071}  -- f32[1] cpu
local CosineSimilarity = simple.class("CosineSimilarity", { { "dim", "int", 2 }, { "eps", "nonnegative", 1e-8 } })
local of_similarity, of_distance = { "dim", "eps" }, { "p", "eps", "keepdim" }
function CosineSimilarity:forward(x, y) return F.cosine_similarity(x, y, current(self, of_similarity)) end

--- nn.PairwiseDistance(…) → module
-- The p-norm of x - y + eps over the last dimension.
-- Shapes: [N, D], [N, D] → [N]
--   print(nn.PairwiseDistance()(T.zeros(1, 2), T.tensor { { 3, 4 } }))  --> {5.0000}  -- f32[1] cpu
local PairwiseDistance = simple.class("PairwiseDistance", { { "p", "number", 2.0 }, { "eps", "nonnegative", 1e-6 },
  { "keepdim", "bool", false } })
function PairwiseDistance:forward(x, y) return T.pairwise_distance(x, y, current(self, of_distance)) end

return { CosineSimilarity = CosineSimilarity, PairwiseDistance = PairwiseDistance }
