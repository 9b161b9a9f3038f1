-- SPDX-License-Identifier: MIT
--- Losses as modules: `loss(input, target)`. Each calls the function of nn.F with its options.
-- @module perilune.nn.loss
local F = require "perilune.nn.functional"
local base = require "perilune.nn.module"
local options = require "perilune.options"
local surface = require "perilune.surface"

local out = {}
local reduction = { "reduction", { "mean", "sum", "none" }, "mean" }

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

-- Tensors among the options follow the module as buffers, but are no part of its state.
local function define(name, f, args)
  local C = base.class(name)
  local spec = options.spec("nn." .. name, args)
  local apply = surface.one(f, F[f])
  function C:init(...)
    local a = options.read(spec, ...)
    for key, v in pairs(a) do
      if type(v) == "userdata" then
        self:register_buffer(key, v, { persistent = false })
        self._tensors = self._tensors or {}
        self._tensors[#self._tensors + 1] = key
      else
        self[key] = v
      end
    end
    self._opts = a
  end
  function C:forward(...)
    local tensors = self._tensors
    if tensors then
      for i = 1, #tensors do self._opts[tensors[i]] = self[tensors[i]] end
    end
    local n = select("#", ...)
    if n <= 2 then
      local input, target = ...
      return apply(input, target, self._opts)
    end
    local values = { ... }
    values[n + 1] = self._opts
    return apply(table.unpack(values, 1, n + 1))
  end
  out[name] = C
end

for _, item in ipairs(list) do define(item[1], item[2], item[3]) end

return out
