-- SPDX-License-Identifier: MIT
--- nn.F as scripts see it: the functions behind the modules, with their arguments declared. Each may come by position,
-- in PyTorch's order, or by name in a final table; any other is an error. Modules call the functions themselves.
-- @module perilune.nn.functional
local T = require "perilune"
local raw = require "perilune.nn.functional"
local options = require "perilune.options"
local surface = require "perilune.surface"

local F = setmetatable({}, { __index = function(F, name)
  local f = type(name) == "string" and T[name] or nil
  if type(f) ~= "function" then return nil end
  rawset(F, name, f)
  return f
end })
for name, f in next, raw do F[name] = surface.one(name, f) end

-- The first `n` arguments go to the function one by one, the others in one table.
local define = require "perilune.define"(T, T.core, { into = F, prefix = "nn.F." })
local function declare(who, n, args) options.publish(define(who, args, raw[who], n), who) end

local function may(name, kind) return { name, kind, optional = true } end
local x, y, weight = { "x", "tensor" }, { "y", "tensor" }, may("weight", "tensor")
local reduction = may("reduction", { "mean", "sum", "none" })
local index_base, training = may("index_base", "int"), may("training", "bool")

-- ---- activations and dropout ---------------------------------------------------------------------------------

declare("glu", 2, { x, { "dim", "int", -1 } })
declare("prelu", 2, { x, { "weight", "tensor" } })
declare("rrelu", 4, { x, may("lower", "number"), may("upper", "number"), training })
for _, who in ipairs { "dropout", "dropout1d", "dropout2d", "dropout3d" } do
  declare(who, 3, { x, { "p", "probability", 0.5 }, { "training", "bool", true } })
end
for _, who in ipairs { "alpha_dropout", "feature_alpha_dropout" } do
  declare(who, 3, { x, { "p", "probability", 0.5 }, { "training", "bool", false } })
end
declare("gumbel_softmax", 1, { x, may("tau", "positive"), may("hard", "bool"), may("dim", "int") })

-- ---- normalization ---------------------------------------------------------------------------------------------

local eps, bias = may("eps", "number"), may("bias", "tensor")
local running_mean, running_var = may("running_mean", "tensor"), may("running_var", "tensor")
local momentum = may("momentum", "number")
declare("group_norm", 5, { x, { "num_groups", "count" }, weight, bias, eps })
declare("batch_norm", 8, { x, running_mean, running_var, weight, bias, training, momentum, eps })
declare("instance_norm", 1, { x, running_mean, running_var, weight, bias, may("use_input_stats", "bool"), momentum,
  eps })
declare("local_response_norm", 2, { x, { "size", "count" }, may("alpha", "number"), may("beta", "number"),
  may("k", "number") })
declare("normalize", 1, { x, may("p", "number"), may("dim", "ints"), eps })

-- Either the shape stands second, or the engine's own form is meant: (x, weight, bias, {normalized_shape=, eps=}).
for who, args in pairs {
  layer_norm = { x, { "normalized_shape", "ints" }, weight, bias, eps },
  rms_norm = { x, { "normalized_shape", "ints" }, weight, eps },
} do
  declare(who, #args, args)
  local by_shape, own = F[who], T[who]
  F[who] = function(...)
    local _, second = ...
    if select("#", ...) < 2 or second == nil or T.is_tensor(second)
      or type(second) == "table" and second[1] == nil and next(second) ~= nil then
      return (own(...))
    end
    return by_shape(...)
  end
end

-- ---- losses -------------------------------------------------------------------------------------------------------

local margin = may("margin", "number")
local x1, x2, anchor = { "x1", "tensor" }, { "x2", "tensor" }, { "anchor", "tensor" }
local positive, negative = { "positive", "tensor" }, { "negative", "tensor" }
declare("cosine_similarity", 2, { x, y, may("dim", "int"), eps })
declare("margin_ranking_loss", 3, { x1, x2, y, margin, reduction })
declare("soft_margin_loss", 2, { x, y, reduction })
declare("cosine_embedding_loss", 3, { x1, x2, y, margin, reduction })
declare("hinge_embedding_loss", 2, { x, y, margin, reduction })
declare("triplet_margin_loss", 3, { anchor, positive, negative, may("margin", "positive"), may("p", "number"), eps,
  may("swap", "bool"), reduction })
declare("triplet_margin_with_distance_loss", 3, { anchor, positive, negative, may("distance_function", "callable"),
  may("margin", "positive"), may("swap", "bool"), reduction })
declare("gaussian_nll_loss", 3, { x, y, { "var", "operand" }, may("full", "bool"), may("eps", "positive"), reduction })
declare("poisson_nll_loss", 2, { x, y, may("log_input", "bool"), may("full", "bool"), eps, reduction })
declare("multi_margin_loss", 2, { x, y, weight, may("p", "int"), margin, reduction, index_base })
declare("multilabel_margin_loss", 2, { x, y, reduction, index_base })
declare("multilabel_soft_margin_loss", 2, { x, y, weight, reduction })
declare("linear_cross_entropy", 3, { x, { "linear_weight", "tensor" }, { "target", "tensor" },
  may("linear_bias", "tensor"), weight, reduction, may("ignore_index", "int"), may("label_smoothing", "number"),
  index_base, may("chunk", "count") })
declare("ctc_loss", 4, { { "log_probs", "tensor" }, { "targets", "tensor" }, { "input_lengths", "lengths" },
  { "target_lengths", "lengths" }, may("blank", "int"), reduction, may("zero_infinity", "bool"), index_base })

-- ---- embeddings and attention -------------------------------------------------------------------------------------

local ids = { "ids", "tensor" }
declare("embedding", 2, { ids, { "weight", "tensor" }, may("padding_idx", "int"), may("max_norm", "positive"),
  may("norm_type", "number"), may("scale_grad_by_freq", "bool"), index_base })
declare("embedding_bag", 3, { ids, { "weight", "tensor" }, may("offsets", "tensor"),
  may("mode", { "sum", "mean", "max" }), may("per_sample_weights", "tensor"), may("padding_idx", "int"),
  may("include_last_offset", "bool"), may("max_norm", "positive"), may("norm_type", "number"),
  may("scale_grad_by_freq", "bool"), index_base })
declare("scaled_dot_product_attention", 4, { { "query", "tensor" }, { "key", "tensor" }, { "value", "tensor" },
  may("attn_mask", "tensor"), may("dropout_p", "probability"), may("is_causal", "bool"), may("scale", "number"),
  may("enable_gqa", "bool") })

-- ---- windows and images -------------------------------------------------------------------------------------------

local kernel_size, stride = { "kernel_size", "window" }, may("stride", "window")
local padding, dilation = may("padding", "window"), may("dilation", "window")
declare("unfold", 1, { x, kernel_size, dilation, padding, stride })
declare("fold", 1, { x, { "output_size", "window" }, kernel_size, dilation, padding, stride })
for nd = 1, 3 do
  declare(("max_unpool%dd"):format(nd), 3, { x, { "indices", "tensor" }, kernel_size, stride, padding,
    may("output_size", "window"), index_base })
  declare(("lp_pool%dd"):format(nd), 1, { x, { "norm_type", "number" }, kernel_size, stride,
    may("ceil_mode", "bool"), padding, dilation })
end
for nd = 2, 3 do
  declare(("fractional_max_pool%dd"):format(nd), 2, { x, kernel_size, may("output_size", "window"),
    may("output_ratio", "numbers"), may("return_indices", "bool"), index_base, may("_random_samples", "tensor") })
end
for _, who in ipairs { "interpolate", "upsample" } do
  declare(who, 1, { x, may("size", "window"), may("scale_factor", "numbers"), may("mode", "string"),
    may("align_corners", "bool"), may("recompute_scale_factor", "bool"), may("antialias", "bool") })
end
declare("affine_grid", 2, { { "theta", "tensor" }, { "size", "window" }, may("align_corners", "bool") })

-- ---- regions and boxes ----------------------------------------------------------------------------------------

local boxes, size, scores = { "boxes", "any" }, { "output_size", "window" }, { "scores", "tensor" }
local threshold = { "iou_threshold", "number" }
declare("roi_align", 3, { x, boxes, size, may("spatial_scale", "number"), may("sampling_ratio", "int"),
  may("aligned", "bool"), may("mode", { "mean", "max" }), index_base })
declare("roi_pool", 3, { x, boxes, size, may("spatial_scale", "number"), index_base })
declare("box_iou", 2, { { "a", "tensor" }, { "b", "tensor" } })
declare("nms", 3, { { "boxes", "tensor" }, scores, threshold, index_base })
declare("batched_nms", 4, { { "boxes", "tensor" }, scores, { "classes", "tensor" }, threshold, index_base })
declare("deform_conv2d", 4, { x, { "offset", "tensor" }, { "weight", "tensor" }, may("bias", "tensor"), stride, padding,
  dilation, may("mask", "tensor") })

-- ---- recurrent networks -------------------------------------------------------------------------------------------

local w_ih, w_hh, b_ih, b_hh = { "w_ih", "tensor" }, { "w_hh", "tensor" }, may("b_ih", "tensor"), may("b_hh", "tensor")
for _, who in ipairs { "rnn_tanh_cell", "rnn_relu_cell" } do
  declare(who, 6, { x, may("h", "tensor"), w_ih, w_hh, b_ih, b_hh })
end
declare("gru_cell", 7, { x, may("h", "tensor"), w_ih, w_hh, b_ih, b_hh, may("linear_before_reset", "bool") })
declare("lstm_cell", 7, { x, may("state", "state"), w_ih, w_hh, b_ih, b_hh, may("w_peephole", "tensor") })
local layers = { may("num_layers", "count"), bias, may("batch_first", "bool"), may("bidirectional", "bool"),
  may("dropout", "probability"), training }
layers[2] = may("bias", "bool")
local sequence, weights = { "x", "sequence" }, { "weights", "tensors" }
declare("rnn", 3, { sequence, may("h_0", "tensor"), weights, may("nonlinearity", { "tanh", "relu" }),
  table.unpack(layers) })
local function also(list, last)
  local out = table.move(list, 1, #list, 1, {})
  out[#out + 1] = last
  return out
end
declare("gru", 3, { sequence, may("h_0", "tensor"), weights,
  table.unpack(also(layers, may("linear_before_reset", "bool"))) })
declare("lstm", 3, { sequence, may("state", "state"), weights, may("proj_size", "count"),
  table.unpack(also(layers, may("peepholes", "bool"))) })

return F
