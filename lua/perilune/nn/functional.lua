-- SPDX-License-Identifier: MIT
--- nn.F: the functions behind the modules. Ops of the engine under their own names (relu, softmax,
-- layer_norm,
-- cross_entropy, conv2d, …), plus what is made of several ops.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"
local surface = require "perilune.surface"

local fail, describe = options.fail, options.describe
local core = T.core
local running_update = T.core.op.running_update

-- Anything not defined here is the engine's op of that name.
local F = setmetatable({}, { __index = function(F, name)
  local f = type(name) == "string" and T[name] or nil
  if type(f) ~= "function" then return nil end
  rawset(F, name, f)
  return f
end })

-- ---- activations -------------------------------------------------------------------------------------

--- softmax(-x)
function F.softmin(x, ...) return T.softmax(T.neg(x), ...) end

--- Splits dimension `dim` (the last) in halves a, b and returns a · sigmoid(b).
function F.glu(x, dim)
  if type(dim) == "table" then dim = options.check("glu", dim, { "dim" }).dim end
  dim = dim or -1
  local n = x:size(dim)
  if n % 2 ~= 0 then fail("glu: dimension %d has odd size %d", dim, n) end
  return x:narrow(dim, 1, n // 2) * x:narrow(dim, n // 2 + 1, n // 2):sigmoid()
end

--- x where x > 0, else weight · x; weight has one element, or one a channel (dimension 2).
function F.prelu(x, weight)
  if not core.is_tensor(weight) then fail("prelu: weight must be a tensor, got %s", describe(weight)) end
  local n, nd = weight:numel(), x:dim()
  if weight:dim() > 1 then fail("prelu: weight must have at most one dimension, got %s", describe(weight)) end
  if n > 1 then
    local channels = nd >= 2 and x:size(2) or nd == 1 and x:size(1) or 1
    if channels ~= n then fail("prelu: %d weights for %d channels", n, channels) end
  end
  if nd >= 2 then
    local shape = { 1, n }
    for d = 3, nd do shape[d] = 1 end
    weight = weight:view(shape)
  elseif nd == 0 then
    weight = weight:view {}
  end
  return T.core.op.prelu_core(x, weight)
end

-- ---- losses of pairs ---------------------------------------------------------------------------------

-- [N, 1] beside [N] would be compared as [N, N]: hardly what is meant, and it shows in nothing but the results. Told
-- once for each function, on standard error.
local told = {}
for _, name in ipairs { "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss" } do
  local loss = T[name]
  F[name] = function(x, y, ...)
    if not told[name] and core.is_tensor(x) and core.is_tensor(y) and (x:dim() ~= y:dim()
      or x:numel() ~= y:numel()) then
      local ok, shape = pcall(T.broadcast_shapes, x:shape(), y:shape())
      if ok and y:numel() > 1 then
        told[name] = true
        io.stderr:write(("warning: %s: %s and the target %s are compared as [%s]; give them one shape\n"):format(
          options.here(name), x:describe(), y:describe(), table.concat(shape, ",")))
      end
    end
    return loss(x, y, ...)
  end
end

-- ---- convolution -------------------------------------------------------------------------------------

local function entry(v, d) return type(v) == "table" and (v[d] or v[1]) or v or 1 end

-- 'valid' is no padding; 'same' keeps the size: dilation (kernel - 1) in all, what does not halve goes
-- behind.
local function padded(x, weight, opts, nd)
  local new = {}
  for key, v in pairs(opts) do new[key] = v end
  if opts.padding == "valid" then
    new.padding = 0
    return x, new
  elseif opts.padding ~= "same" then
    fail("conv%dd: %s", nd, options.unknown("padding", opts.padding, { "same", "valid" }))
  end
  local before, extra, uneven = {}, {}, false
  for d = 1, nd do
    if entry(opts.stride, d) ~= 1 then fail("conv%dd: padding 'same' needs stride 1", nd) end
    local total = entry(opts.dilation, d) * (weight:size(d + 2) - 1)
    before[d] = total // 2
    extra[2 * (nd - d) + 1], extra[2 * (nd - d) + 2] = 0, total % 2
    uneven = uneven or total % 2 == 1
  end
  new.padding = before
  return uneven and x:pad(extra) or x, new
end

-- conv1d, conv2d, conv3d (x, weight, bias, {stride=, padding=, dilation=, groups=}); padding also "same",
-- "valid".
for nd = 1, 3 do
  local conv = T[("conv%dd"):format(nd)]
  F[("conv%dd"):format(nd)] = function(x, weight, bias, opts, ...)
    if type(bias) == "table" and opts == nil then bias, opts = nil, bias end
    if type(opts) == "table" and type(opts.padding) == "string" then x, opts = padded(x, weight, opts, nd) end
    return conv(x, weight, bias, opts, ...)
  end
end

-- ---- dropout -----------------------------------------------------------------------------------------

local function check_p(who, p)
  if p == nil then return 0.5 end
  if type(p) ~= "number" or not (p >= 0 and p <= 1) then
    fail("%s: p must be a number from 0 to 1, got %s", who, describe(p))
  end
  return p
end

--- Zeros each element with probability p (0.5) and scales the rest by 1/(1-p); nothing if `training` is
-- false.
function F.dropout(x, p, training)
  if type(p) == "table" then
    options.check("dropout", p, { "p", "training" })
    p, training = p.p, p.training
  end
  p = check_p("dropout", p)
  if training == false or p == 0 then return x end
  return T.dropout(x, p)
end

-- Whole channels at once: the mask has size 1 in the last `nd` dimensions.
for nd = 1, 3 do
  local who = ("dropout%dd"):format(nd)
  F[who] = function(x, p, training)
    p = check_p(who, p)
    if x:dim() ~= nd + 2 and x:dim() ~= nd + 1 then
      fail("%s: the input must have %d or %d dimensions, got %d", who, nd + 1, nd + 2, x:dim())
    end
    if training == false or p == 0 then return x end
    local shape = x:shape()
    for d = #shape - nd + 1, #shape do shape[d] = 1 end
    return x * T.dropout(T.ones(shape, { dtype = x:dtype(), device = x:device() }), p)
  end
end

-- ---- normalization -----------------------------------------------------------------------------------

--- x normalized over its last dimensions: `layer_norm(x, {sizes}, weight, bias, eps)` as in PyTorch, or the
-- op's own
-- `layer_norm(x, weight, bias, {normalized_shape=, eps=})`.
function F.layer_norm(x, shape, weight, bias, eps)
  if type(shape) == "userdata" or shape == nil then return (T.layer_norm(x, shape, weight, bias, eps)) end
  if type(shape) == "table" and shape[1] == nil then return (T.layer_norm(x, shape)) end
  return (T.layer_norm(x, weight, bias, { normalized_shape = shape, eps = eps }))
end

--- `rms_norm(x, {sizes}, weight, eps)`, or the op's own `rms_norm(x, weight, {normalized_shape=, eps=})`.
function F.rms_norm(x, shape, weight, eps)
  if type(shape) == "userdata" or shape == nil then return (T.rms_norm(x, shape, weight, eps)) end
  if type(shape) == "table" and shape[1] == nil then return (T.rms_norm(x, shape)) end
  return (T.rms_norm(x, weight, { normalized_shape = shape, eps = eps }))
end

--- `group_norm(x, num_groups, weight, bias, eps)`, x [N, C, *].
function F.group_norm(x, num_groups, weight, bias, eps)
  return (T.group_norm(x, weight, bias, { num_groups = num_groups, eps = eps }))
end

--- `batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)`, x [N, C, *]. In
-- training the
-- running statistics (nil: none are kept) move by `momentum` (0.1) towards the batch's, the variance
-- unbiased.
function F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
  if not training then
    return (T.batch_norm(x, running_mean, running_var, weight, bias, { training = false, eps = eps }))
  end
  local y, mean, var = T.batch_norm(x, nil, nil, weight, bias, { training = true, eps = eps })
  momentum = momentum or 0.1
  if running_mean then running_update(running_mean, mean, { momentum = momentum }) end
  if running_var then
    local n = x:numel() // x:size(2)
    running_update(running_var, var, { momentum = momentum, factor = n / (n - 1) })
  end
  return y
end

--- x / max(‖x‖_p, eps) along a dimension. Options `p=2 dim=2 eps=1e-12`.
function F.normalize(x, opts)
  opts = options.check("normalize", opts, { "p", "dim", "eps" })
  local norm = x:norm { p = opts.p or 2.0, dim = opts.dim or 2, keepdim = true }
  return x / norm:clamp { min = opts.eps or 1e-12 }
end

-- ---- embedding ---------------------------------------------------------------------------------------

-- y, whose gradient is divided by `often`.
local scaled_by = T.custom { name = "scale_grad_by_freq", forward = function(ctx, y, often)
  ctx:save(often)
  return y:view(y:shape())
end, backward = function(ctx, g) return g / ctx:saved(), nil end }

--- Rows of weight [rows, width] for ids of any shape: [*, width]. Options `padding_idx index_base=1`; with
-- `scale_grad_by_freq` the gradient of a row is divided by how often ids has it.
-- With `max_norm` rows that are read and whose `norm_type`-norm (2) is larger are first scaled down to it, in place.
function F.embedding(ids, weight, opts)
  if opts == nil or (opts.max_norm == nil and not opts.scale_grad_by_freq) then
    return T.embedding(weight, ids, opts and { padding_idx = opts.padding_idx, index_base = opts.index_base })
  end
  local o = { padding_idx = opts.padding_idx, index_base = opts.index_base }
  if opts.scale_grad_by_freq then -- each row's gradient by how often ids has it
    local rest = { padding_idx = opts.padding_idx, index_base = opts.index_base, max_norm = opts.max_norm,
      norm_type = opts.norm_type }
    local y = F.embedding(ids, weight, rest)
    if not y.requires_grad then return y end
    local flat = ids:reshape(-1):long()
    local counts = T.bincount(flat, { index_base = o.index_base })
    local often = T.index_select(counts, flat, { dim = 1, index_base = o.index_base })
    return scaled_by(y, often:to(y:dtype()):reshape(ids:shape()):unsqueeze(-1))
  end
  T.no_grad(function()
    local rows = (ids:reshape(-1):unique())
    local at = { dim = 1, index_base = o.index_base }
    local read = T.index_select(weight, rows, at)
    local norm = read:norm { p = opts.norm_type or 2.0, dim = { 2 }, keepdim = true }
    local scale = T.where(norm:gt(opts.max_norm), opts.max_norm / (norm + 1e-7), T.ones_like(norm))
    weight:index_copy_(1, rows, read * scale, { index_base = o.index_base })
  end)
  return T.embedding(weight, ids, o)
end

-- ---- losses ------------------------------------------------------------------------------------------

--- Cosine of the angle between x and y along `dim` (2): x·y / max(‖x‖‖y‖, eps).
function F.cosine_similarity(x, y, opts)
  opts = options.check("cosine_similarity", opts, { "dim", "eps" })
  local dim, eps = opts.dim or 2, opts.eps or 1e-8
  local shape = T.no_grad(function() return (x + y):shape() end)
  x, y = x:expand(shape), y:expand(shape)
  local a = x / x:norm { dim = dim, keepdim = true }:clamp { min = eps }
  local b = y / y:norm { dim = dim, keepdim = true }:clamp { min = eps }
  return (a * b):sum(dim)
end

-- The mean or sum of a loss, or the loss itself.
local function reduced(who, loss, reduction)
  if reduction == nil or reduction == "mean" then return loss:mean() end
  if reduction == "sum" then return loss:sum() end
  if reduction == "none" then return loss end
  fail("%s: %s", who, options.unknown("reduction", reduction, { "mean", "sum", "none" }))
end

--- max(0, -y (x1 - x2) + margin). Options `margin=0 reduction="mean"`.
function F.margin_ranking_loss(x1, x2, y, opts)
  opts = options.check("margin_ranking_loss", opts, { "margin", "reduction" })
  return reduced("margin_ranking_loss", ((x2 - x1) * y + (opts.margin or 0)):relu(), opts.reduction)
end

--- log(1 + exp(-y x)), y ∈ {-1, 1}.
function F.soft_margin_loss(x, y, opts)
  opts = options.check("soft_margin_loss", opts, { "reduction" })
  return reduced("soft_margin_loss", T.softplus(-(y * x)), opts.reduction)
end

for _, part in ipairs { "functional_more", "functional_recurrent", "functional_attention", "functional_image",
  "functional_extra", "functional_fractional" } do
  require("perilune.nn." .. part)(F)
end

surface.one("interpolate", F.interpolate) -- which has the other name, upsample, as well

-- Functions made of several ops speak in their own name, whichever op inside refuses.
for name in ([[adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices
  max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices cosine_similarity ctc_loss dropout1d dropout2d
  dropout3d embedding_bag glu gumbel_softmax hinge_embedding_loss margin_ranking_loss multilabel_soft_margin_loss
  normalize poisson_nll_loss prelu soft_margin_loss softmin upsample]]):gmatch "%S+" do
  local f = surface.one(name, F[name])
  F[name] = options.named(name, function(x, ...)
    if not core.is_tensor(x) then fail("%s: argument #1 must be a tensor, got %s", name, describe(x)) end
    return f(x, ...)
  end)
end

-- In f32 within T.autocast, as their kin among the engine's ops.
T.core.full_precision(F, { "cosine_embedding_loss", "hinge_embedding_loss", "triplet_margin_loss", "poisson_nll_loss",
  "multi_margin_loss", "multilabel_margin_loss", "margin_ranking_loss", "soft_margin_loss", "grid_sample", "ctc_loss" })

return F
