-- SPDX-License-Identifier: MIT
--- Losses as modules: `loss(input, target)`. Each calls the function of nn.F with its options.
-- @module perilune.nn.loss
local F = require "perilune.nn.functional"
local base = require "perilune.nn.module"
local options = require "perilune.options"

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
}

-- Tensors among the options follow the module as buffers, but are no part of its state.
local function define(name, f, args)
  local C = base.class(name)
  local spec = options.spec("nn." .. name, args)
  local apply = F[f]
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
  function C:forward(input, target)
    local tensors = self._tensors
    if tensors then
      for i = 1, #tensors do self._opts[tensors[i]] = self[tensors[i]] end
    end
    return apply(input, target, self._opts)
  end
  out[name] = C
end

for _, item in ipairs(list) do define(item[1], item[2], item[3]) end

return out
