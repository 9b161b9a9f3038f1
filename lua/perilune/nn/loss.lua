-- SPDX-License-Identifier: MIT
--- Losses as modules: `loss(input, target)`. Each calls the function of nn.F with its options.
-- @module perilune.nn.loss
local F = require "perilune.nn.functional"
local base = require "perilune.nn.module"
local options = require "perilune.options"
local simple = require "perilune.nn.simple"
local surface = require "perilune.surface"

local out = {}
local reduction = { "reduction", { "mean", "sum", "none" }, "mean" }

--- nn.BCELoss(…) → module
-- -y log x - (1 - y) log(1 - x) of probabilities x; reduction "mean", "sum" or "none".
-- Shapes: [*], [*] → 0-d
--   print(nn.BCELoss()(T.tensor { 0.5, 0.9 }, T.tensor { 1, 1 }))  --> 0.3993  -- f32[] cpu

--- nn.BCEWithLogitsLoss(…) → module
-- BCELoss of sigmoid(x), computed without loss of digits; reduction "mean", "sum" or "none".
-- Shapes: [*], [*] → 0-d
--   print(nn.BCEWithLogitsLoss()(T.tensor { 0, 2 }, T.tensor { 1, 1 }))  --> 0.4100  -- f32[] cpu

--- nn.CTCLoss(…) → module
-- -log of the probability of all alignments of the target (Graves et al. 2006).
-- Shapes: log_probs [T, N, C], targets [N, S], input_lengths [N], target_lengths [N] → 0-d
--   local i64 = { dtype = "i64" }
--   local log_probs = T.zeros(2, 1, 2):log_softmax(-1)
--   print(nn.CTCLoss { blank = 1 }(log_probs, T.tensor({ { 2 } }, i64), T.tensor({ 2 }, i64), T.tensor({ 1 }, i64)))
--   --> 0.2877  -- f32[] cpu

--- nn.CosineEmbeddingLoss(…) → module
-- 1 - cos where y is 1, max(0, cos - margin) where it is -1.
-- Shapes: [N, D], [N, D], [N] → 0-d
--   print(nn.CosineEmbeddingLoss()(T.tensor { { 1, 0 } }, T.tensor { { 1, 0 } }, T.tensor { -1 }))
--   --> 1.  -- f32[] cpu

--- nn.CrossEntropyLoss(…) → module
-- -log softmax(x)[target], the mean over the batch; weight: one number a class.
-- Shapes: logits [N, C, *], classes [N, *] or probabilities [N, C, *] → 0-d
--   print(nn.CrossEntropyLoss()(T.tensor { { 2, 0 } }, T.tensor({ 1 }, { dtype = "i64" })))
--   --> 0.1269  -- f32[] cpu

--- nn.GaussianNLLLoss(…) → module
-- (log v + (x - y)²/v)/2; full adds log(2π)/2.
-- Shapes: mean, target, variance [N, *] → 0-d
--   print(nn.GaussianNLLLoss()(T.tensor { 0.0 }, T.tensor { 2.0 }, T.tensor { 1.0 }))  --> 2.  -- f32[] cpu

--- nn.HingeEmbeddingLoss(…) → module
-- x where y is 1, max(0, margin - x) where it is -1; reduction "mean", "sum" or "none".
-- Shapes: [*], [*] → 0-d
--   print(nn.HingeEmbeddingLoss()(T.tensor { 0.5, 0.5 }, T.tensor { 1, -1 }))  --> 0.5000  -- f32[] cpu

--- nn.HuberLoss(…) → module
-- (x - y)²/2 within delta of each other, delta (|x - y| - delta/2) farther away; reduction "mean", "sum" or "none".
-- Shapes: [*], [*] → 0-d
--   print(nn.HuberLoss()(T.tensor { 0, 0 }, T.tensor { 0.5, 3 }))  --> 1.3125  -- f32[] cpu

--- nn.KLDivLoss(…) → module
-- y (log y - x) for logarithms x; reduction "mean", "sum" or "none".
-- Shapes: [*], [*] → 0-d
--   print(nn.KLDivLoss()(T.tensor { -0.7, -0.7 }, T.tensor { 0.5, 0.5 }))  --> 0.0034  -- f32[] cpu

--- nn.L1Loss(…) → module
-- |x - y|; reduction "mean", "sum" or "none".
-- Shapes: [*], [*] → 0-d
--   print(nn.L1Loss()(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 1.  -- f32[] cpu

--- nn.MSELoss(…) → module
-- (x - y)²; reduction "mean", "sum" or "none".
-- Shapes: [*], [*] → 0-d
--   print(nn.MSELoss()(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 2.  -- f32[] cpu

--- nn.MarginRankingLoss(…) → module
-- max(0, -y (x1 - x2) + margin).
-- Shapes: [N], [N], [N] → 0-d
--   print(nn.MarginRankingLoss()(T.tensor { 1 }, T.tensor { 3 }, T.tensor { 1 }))  --> 2.  -- f32[] cpu

--- nn.MultiLabelMarginLoss(…) → module
-- The hinge between each of a sample's classes and each of the others; a list of classes ends with one below the first.
-- Shapes: [N, C], classes [N, C] → 0-d
--   print(nn.MultiLabelMarginLoss()(T.tensor { { 1, 0.5 } }, T.tensor({ { 1, 0 } }, { dtype = "i64" })))
--   --> 0.2500  -- f32[] cpu

--- nn.MultiLabelSoftMarginLoss(…) → module
-- The mean over classes of BCEWithLogitsLoss.
-- Shapes: [N, C], [N, C] of 0 and 1 → 0-d
--   print(nn.MultiLabelSoftMarginLoss()(T.tensor { { 0, 2 } }, T.tensor { { 1, 1 } }))  --> 0.4100  -- f32[] cpu

--- nn.MultiMarginLoss(…) → module
-- The mean over other classes of max(0, margin - x[y] + x[i])^p.
-- Shapes: [N, C], classes [N] → 0-d
--   print(nn.MultiMarginLoss()(T.tensor { { 1, 0.5 } }, T.tensor({ 1 }, { dtype = "i64" })))
--   --> 0.2500  -- f32[] cpu

--- nn.NLLLoss(…) → module
-- -x[target], the mean over the batch.
-- Shapes: log-probabilities [N, C, *], classes [N, *] → 0-d
--   print(nn.NLLLoss()(T.tensor { { -0.5, -1 } }, T.tensor({ 1 }, { dtype = "i64" })))  --> 0.5000  -- f32[] cpu

--- nn.PoissonNLLLoss(…) → module
-- e^x - y x; reduction "mean", "sum" or "none".
-- Shapes: [*], [*] → 0-d
--   print(nn.PoissonNLLLoss()(T.tensor { 0, 1 }, T.tensor { 1, 2 }))  --> 0.8591  -- f32[] cpu

--- nn.SmoothL1Loss(…) → module
-- (x - y)²/(2 beta) within beta of each other, |x - y| - beta/2 farther away; reduction "mean", "sum" or "none".
-- Shapes: [*], [*] → 0-d
--   print(nn.SmoothL1Loss()(T.tensor { 0, 0 }, T.tensor { 0.5, 3 }))  --> 1.3125  -- f32[] cpu

--- nn.SoftMarginLoss(…) → module
-- log(1 + e^(-y x)), y -1 or 1; reduction "mean", "sum" or "none".
-- Shapes: [*], [*] → 0-d
--   print(nn.SoftMarginLoss()(T.tensor { 1, 1 }, T.tensor { 1, -1 }))  --> 0.8133  -- f32[] cpu

--- nn.TripletMarginLoss(…) → module
-- max(0, d(a, p) - d(a, n) + margin), d the p-norm distance.
-- Shapes: anchor, positive, negative [N, D] → 0-d
--   print(nn.TripletMarginLoss()(T.zeros(1, 2), T.zeros(1, 2), T.tensor { { 3, 4 } }))  --> 0.  -- f32[] cpu

--- nn.TripletMarginWithDistanceLoss(…) → module
-- TripletMarginLoss with a distance of one's own.
-- Shapes: anchor, positive, negative [N, D] → 0-d
--   print(nn.TripletMarginWithDistanceLoss()(T.zeros(1, 2), T.zeros(1, 2), T.tensor { { 3, 4 } }))
--   --> 0.  -- f32[] cpu
local list = {
  { "CrossEntropyLoss", "cross_entropy", { { "weight", "tensor", optional = true }, reduction,
    { "ignore_index", "int", optional = true }, { "label_smoothing", "probability", 0.0 },
    { "index_base", "int", optional = true } } },
  { "NLLLoss", "nll_loss", { { "weight", "tensor", optional = true }, reduction,
    { "ignore_index", "int", optional = true }, { "index_base", "int", optional = true } } },
  { "MSELoss", "mse_loss", { reduction } },
  { "L1Loss", "l1_loss", { reduction } },
  { "SmoothL1Loss", "smooth_l1_loss", { reduction, { "beta", "nonnegative", 1.0 } } },
  { "HuberLoss", "huber_loss", { reduction, { "delta", "nonnegative", 1.0 } } },
  { "BCELoss", "binary_cross_entropy", { { "weight", "tensor", optional = true }, reduction } },
  { "BCEWithLogitsLoss", "binary_cross_entropy_with_logits", { { "weight", "tensor", optional = true },
    reduction,
    { "pos_weight", "tensor", optional = true } } },
  { "KLDivLoss", "kl_div", { { "reduction", { "mean", "sum", "none", "batchmean" }, "mean" },
    { "log_target", "bool", false } } },
  { "CosineEmbeddingLoss", "cosine_embedding_loss", { { "margin", "number", 0.0 }, reduction } },
  { "HingeEmbeddingLoss", "hinge_embedding_loss", { { "margin", "number", 1.0 }, reduction } },
  { "MarginRankingLoss", "margin_ranking_loss", { { "margin", "number", 0.0 }, reduction } },
  { "SoftMarginLoss", "soft_margin_loss", { reduction } },
  { "TripletMarginLoss", "triplet_margin_loss", { { "margin", "positive", 1.0 }, { "p", "number", 2.0 },
    { "eps", "nonnegative", 1e-6 }, { "swap", "bool", false }, reduction } },
  { "TripletMarginWithDistanceLoss", "triplet_margin_with_distance_loss",
    { { "distance_function", "func", optional = true }, { "margin", "positive", 1.0 }, { "swap", "bool", false },
      reduction } },
  { "GaussianNLLLoss", "gaussian_nll_loss", { { "full", "bool", false }, { "eps", "positive", 1e-6 }, reduction } },
  { "PoissonNLLLoss", "poisson_nll_loss", { { "log_input", "bool", true }, { "full", "bool", false },
    { "eps", "nonnegative", 1e-8 }, reduction } },
  { "MultiMarginLoss", "multi_margin_loss", { { "p", "int", 1 }, { "margin", "number", 1.0 },
    { "weight", "tensor", optional = true }, reduction, { "index_base", "int", optional = true } } },
  { "MultiLabelMarginLoss", "multilabel_margin_loss", { reduction, { "index_base", "int", optional = true } } },
  { "MultiLabelSoftMarginLoss", "multilabel_soft_margin_loss", { { "weight", "tensor", optional = true }, reduction } },
  { "CTCLoss", "ctc_loss", { { "blank", "int", optional = true }, reduction, { "zero_infinity", "bool", false },
    { "index_base", "int", optional = true } } },
}

-- Tensors among the options (weight, pos_weight) are buffers: they follow the module and are in its state.
local function define(name, f, args)
  local C = base.class(name)
  local spec = options.spec("nn." .. name, args)
  local apply = surface.one(f, F[f])
  function C:init(...)
    local a = options.read(spec, ...)
    for _, arg in ipairs(args) do
      local key = arg[1]
      if arg[2] == "tensor" then self:register_buffer(key, a[key]) else self[key] = a[key] end
    end
    self._opts = a
  end
  function C:forward(...)
    local o, n = simple.current(self, spec.names), select("#", ...)
    if n <= 2 then
      local input, target = ...
      return apply(input, target, o)
    end
    local values = { ... }
    values[n + 1] = o
    return apply(table.unpack(values, 1, n + 1))
  end
  out[name] = C
end

for _, item in ipairs(list) do define(item[1], item[2], item[3]) end

return out
