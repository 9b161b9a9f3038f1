-- SPDX-License-Identifier: MIT
-- More calls of ops, for their gradients and the gradients of those alone: each option that a gradient rule reads,
-- both sides
-- of each of its cases, sizes that all differ. Joined to the rows of spec/ops/cases.lua as their field `gradients`.

local T = require "perilune"
local rows = require "spec.ops.rows"
local rand, ints, bools, distinct = rows.rand, rows.ints, rows.bools, rows.distinct

local M = {}

local function whole(values) return T.tensor(values, { dtype = "i64" }) end
-- f, of whose tensors only those at the positions have a gradient: statistics and weights of classes have none.
local function only(positions, f)
  local which = {}
  for _, i in ipairs(positions) do which[i] = true end
  return { f, which = which }
end
-- f, whose gradient is something else than the slope, such as 0 for the row of padding; the slope of that is checked.
local function by_definition(f) return { f, defined = true } end

-- add(name, function(g) … end, …): functions as in a row's `more`.
local function add(name, ...)
  M[name] = M[name] or {}
  for _, f in ipairs { ... } do table.insert(M[name], f) end
end
local function list(...)
  local values = { ... }
  return function() return T.tensor(values, { dtype = "f64" }) end
end
-- A list of values, then options.
local function at(values, options)
  return function() return T.tensor(values, { dtype = "f64" }), options end
end

-- ---- one input

add("abs", list(-2, -0.7, 0.4, 3))
add("sign", list(-2, -0.7, 0.4, 3))
for _, name in ipairs { "floor", "ceil", "trunc", "round", "frac" } do add(name, list(-2.3, -0.7, 0.4, 1.2)) end
add("sinc", list(-1.3, -0.2, 0.6, 2.2))
add("lgamma", list(-1.4, -0.6, 0.4, 7))
add("digamma", list(-1.4, -0.6, 0.4, 7))
add("i0e", list(-3, -0.4, 0.4, 3))
add("i1e", list(-3, -0.4, 0.4, 3))
add("i1", list(-3, -0.4, 0.4, 3))
add("logit", at({ -0.3, 0.1, 0.3, 0.6, 0.85, 1.4 }, { eps = 0.2 }), at({ 0.1, 0.3, 0.6 }, { eps = 1e-6 }))
add("polygamma", function(g) return rand(g, { 3 }, 0.5, 3), 0 end, function(g) return rand(g, { 3 }, 0.5, 3), 2 end)
add("nan_to_num", list(-2, 0.5, 3))
add("clamp", at({ -2, -0.2, 0.3, 2 }, { max = 0.5 }), at({ -2, -0.2, 0.3, 2 }, { min = -1, max = 1 }))
add("round", at({ 1.234, -1.377, 0.12 }, { decimals = 1 }))

-- ---- activations

local WIDE = { -7.1, -3.3, -2.2, -1.2, -0.6, -0.2, 0.3, 0.7, 1.4, 2.3, 3.4, 6.6 }
for _, name in ipairs { "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "silu", "mish", "softplus",
  "logsigmoid", "softsign",
  "tanhshrink", "hardtanh", "hardsigmoid", "hardswish", "hardshrink", "softshrink", "gelu", "tanh", "sigmoid" } do
  add(name, at(WIDE))
end
add("gelu", at(WIDE, { approximate = "tanh" }))
add("leaky_relu", at(WIDE, { negative_slope = 0.3 }))
add("hardtanh", at(WIDE, { min_val = -2, max_val = 0.5 }))
add("hardshrink", at(WIDE, { lambd = 1.3 }))
add("softshrink", at(WIDE, { lambd = 1.3 }))
add("threshold", at(WIDE, { threshold = -1, value = 3 }))
add("softplus", at(WIDE, { beta = 2.5 }), at(WIDE, { beta = 2, threshold = 3 }), at(WIDE, { beta = 0.5,
  threshold = 1 }))
add("elu", at(WIDE, { alpha = 1.7 }))
add("celu", at(WIDE, { alpha = 1.7 }))
add("prelu_core", function() return T.tensor(WIDE, { dtype = "f64" }), T.tensor({ 0.3 }, { dtype = "f64" }) end)

-- ---- two and three inputs

add("add_scaled", function(g) return rand(g, { 3, 4 }), rand(g, { 4 }), { alpha = 3 } end,
  function(g) return rand(g, { 3, 4 }), rand(g, { 4 }), { alpha = -1.25 } end)
add("pow", function() return T.tensor({ 0.7, 1.3, -2.1 }, { dtype = "f64" }), 3 end,
  function() return T.tensor({ 0.7, 1.3, 2.1 }, { dtype = "f64" }), -1.5 end, function(g) return 2.5, rand(g,
    { 3 }) end,
  function() return T.tensor({ 0.7, 1.3, 2.1 }, { dtype = "f64" }), 1 end, function() return T.tensor({ 0.7, 1.3 },
    { dtype = "f64" }), 2 end)
add("div", function(g) return rand(g, { 3 }, -2, -0.5), rand(g, { 2, 1 }, 0.5, 2) end, function(g) return 1.5, rand(g,
  { 3 }, 0.5, 2) end,
  function(g) return rand(g, { 3 }), 0.4 end)
add("mul", function(g) return 1.5, rand(g, { 3 }) end, function(g) return rand(g, { 3 }), 2 end)
add("sub", function(g) return 1.5, rand(g, { 3 }) end, function(g) return rand(g, { 3 }), 2 end)
for _, name in ipairs { "remainder", "fmod" } do
  add(name, function() return T.tensor({ 2.3, -2.3, 4.4, 0.4 }, { dtype = "f64" }), T.tensor({ 0.9, 0.9, -1.3, 1.1 },
    { dtype = "f64" }) end)
end
add("atan2", function(g) return rand(g, { 3, 4 }, -2, -0.3), rand(g, { 4 }, 0.3, 2) end,
  function(g) return rand(g, { 3, 4 }, -2, -0.3), rand(g, { 4 }, -2, -0.3) end)
add("hypot", function(g) return rand(g, { 3, 4 }, -2, -0.3), rand(g, { 4 }, 0.3, 2) end)
add("copysign", function(g) return rand(g, { 3, 1 }, -2, -0.3), rand(g, { 4 }, 0.3, 2) end,
  function(g) return rand(g, { 3, 1 }, -2, -0.3), rand(g, { 4 }, -2, -0.3) end,
  function(g) return rand(g, { 3, 1 }, 0.3, 2), rand(g, { 4 }, -2, -0.3) end)
add("logaddexp", function(g) return rand(g, { 3, 1 }, -9, 9), rand(g, { 4 }, -9, 9) end)
add("gammainc", function(g) return ints(g, { 4 }, 1, 4), rand(g, { 3, 1 }, 0.5, 4) end)
add("addcmul", function(g) return rand(g, { 3, 4 }), rand(g, { 4 }), rand(g, { 3, 1 }), { value = -1.7 } end)
add("addcdiv", function(g) return rand(g, { 3, 4 }), rand(g, { 4 }), rand(g, { 3, 1 }, 0.5, 2), { value = -1.7 } end)
for _, value in ipairs { 1, 2 } do
  add("addcmul", function(g) return rand(g, { 2, 3 }), rand(g, { 3 }), rand(g, { 2, 1 }), { value = value } end)
  add("addcdiv", function(g) return rand(g, { 2, 3 }), rand(g, { 3 }), rand(g, { 2, 1 }, 0.5, 2), { value = value } end)
end
add("lerp", function(g) return rand(g, { 4 }), rand(g, { 3, 1 }), rand(g, { 2, 1, 1 }, -1, 2) end)
add("clamp_tensor", function(g) return distinct(g, { 3, 4 }), T.full({ 4 }, -0.33, { dtype = "f64" }), T.full({ 4 },
  0.17, { dtype = "f64" }) end,
  function(g) return distinct(g, { 3, 4 }), nil, T.full({ 4 }, 0.17, { dtype = "f64" }) end,
  function(g) return distinct(g, { 3, 4 }), T.full({ 3, 1 }, 0.17, { dtype = "f64" }) end,
  function(g) return distinct(g, { 3, 4 }), T.full({}, 0.4, { dtype = "f64" }), T.full({ 4 }, 0.17,
    { dtype = "f64" }) end)

-- ---- reductions and scans

for _, name in ipairs { "sum", "mean", "nansum", "logsumexp", "amax", "amin", "var", "std", "norm" } do
  add(name, function(g) return distinct(g, { 2, 3, 4 }), { dim = { 1, 3 } } end,
    function(g) return distinct(g, { 2, 3, 4 }), { dim = { -1, 1 }, keepdim = true } end,
    function(g) return distinct(g, { 2, 3, 4 }), { dim = 2 } end)
end
for _, name in ipairs { "var", "std" } do
  add(name, function(g) return rand(g, { 2, 3, 4 }), { dim = { 1, 2 }, correction = 0 } end,
    function(g) return rand(g, { 2, 3, 4 }), { dim = 3, correction = 2, keepdim = true } end,
    function(g) return rand(g, { 5 }), { correction = 0.5 } end)
end
for _, p in ipairs { 1, 0, 3, 1.5, 0.7, math.huge, -math.huge, -1 } do
  add("norm", function(g) return distinct(g, { 3, 4 }), { p = p, dim = 2 } end,
    function(g) return distinct(g, { 2, 3, 2 }), { p = p, dim = { 1, 3 }, keepdim = true } end,
      function(g) return distinct(g, { 5 }), { p = p } end)
end
add("prod", function(g) return distinct(g, { 2, 3, 4 }), { dim = { 1, 3 } } end,
  function(g) return distinct(g, { 2, 3, 2 }), { dim = { 1, 2, 3 } } end,
  function(g) return distinct(g, { 2, 3, 2, 2 }), { dim = { 1, 2, 4 } } end,
  function(g) return distinct(g, { 2, 3, 4 }), { dim = { -1, 2 }, keepdim = true } end)
add("prod", at({ 0.7, -1.3, 2.1 }), function(g) return rand(g, { 2, 3, 4 }), { dim = 2, keepdim = true } end,
  function(g) return rand(g, { 2, 3, 4 }), { dim = -1 } end, at({ 0.7, 0, 2.1, -1.1 }), at({ 0.7, 0, 2.1, 0 }))
for _, name in ipairs { "max_dim", "min_dim" } do
  add(name, function(g) return distinct(g, { 2, 3, 4 }), { dim = 2 } end,
    function(g) return distinct(g, { 2, 3, 4 }), { dim = -1, keepdim = true, index_base = 0 } end)
end
add("median", function(g) return distinct(g, { 7 }) end, function(g) return distinct(g, { 2, 3, 4 }), { dim = 2,
  keepdim = true } end,
  function(g) return distinct(g, { 2, 3, 4 }), { dim = 1, index_base = 0 } end)
add("kthvalue", function(g) return distinct(g, { 2, 4, 3 }), { k = 3, dim = 2, keepdim = true } end,
  function(g) return distinct(g, { 2, 4, 3 }), { k = 1, dim = 2, index_base = 0 } end)
add("topk", function(g) return distinct(g, { 2, 4, 3 }), { k = 3, dim = 2, largest = false, index_base = 0 } end,
  function(g) return distinct(g, { 2, 4, 3 }), { k = 2 } end)
add("sort", function(g) return distinct(g, { 2, 4, 3 }), { dim = 2, descending = true, index_base = 0 } end,
  function(g) return distinct(g, { 2, 4, 3 }), { dim = 1 } end)
for _, name in ipairs { "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin" } do
  add(name, function(g) return distinct(g, { 2, 4, 3 }), { dim = 2 } end, function(g) return distinct(g, { 2, 4, 3 }),
    { dim = -1 } end)
end
add("cumprod", at({ 0.7, 0, 2.1, -1.1 }, { dim = 1 }))
for _, name in ipairs { "softmax", "log_softmax" } do
  add(name, function(g) return rand(g, { 2, 4, 3 }, -3, 3), { dim = 2 } end, function(g) return rand(g, { 2, 4, 3 },
    -3, 3), { dim = 1 } end,
    function(g) return rand(g, { 5 }, -3, 3) end)
end

-- ---- masks, indices, vectors in a matrix's place

add("masked_fill", function(g) return rand(g, { 3, 4 }), bools(g, { 4 }), rand(g, {}) end,
  function(g) return rand(g, { 4 }), bools(g, { 3, 1 }), rand(g, {}) end)
add("masked_select", function(g) return rand(g, { 4 }), bools(g, { 3, 1 }) end,
  function(g) return rand(g, { 2, 1, 4 }), bools(g, { 3, 1 }) end, function(g) return rand(g, {}), bools(g, { 5 }) end)
add("index_add", function(g) return rand(g, {}), whole { 1 }, rand(g, { 1 }), { dim = 1, alpha = 0.7 } end)
add("trace", function(g) return rand(g, { 2, 4 }) end, function(g) return rand(g, { 4, 2 }) end)
add("linear", function(g) return rand(g, { 2, 3, 4 }), rand(g, { 4 }) end,
  function(g) return rand(g, { 4 }), rand(g, { 4 }), rand(g, {}) end,
  function(g) return rand(g, { 4 }), rand(g, { 3, 4 }), rand(g, { 3 }) end)

add("matmul", function(g) return rand(g, { 2, 3, 4 }), rand(g, { 4 }) end, -- batches beside vectors and matrices
  function(g) return rand(g, { 4 }), rand(g, { 2, 4, 3 }) end,
  function(g) return rand(g, { 3, 2, 4, 5 }), rand(g, { 5 }) end,
  function(g) return rand(g, { 4 }), rand(g, { 3, 2, 4, 5 }) end,
  function(g) return rand(g, { 5, 4 }), rand(g, { 4 }) end, function(g) return rand(g, { 4 }), rand(g, { 4, 5 }) end,
  function(g) return rand(g, { 2, 3, 4 }), rand(g, { 4, 5 }) end,
  function(g) return rand(g, { 3, 4 }), rand(g, { 2, 4, 5 }) end,
  function(g) return rand(g, { 2, 1, 3, 4 }), rand(g, { 5, 4, 2 }) end,
  function(g) return rand(g, { 4 }), rand(g, { 4 }) end)
add("linalg.qr", function(g) return rand(g, { 3, 3 }) end, function(g) return rand(g, { 2, 3, 5 }) end,
  function(g) return rand(g, { 2, 5, 3 }) end)
add("linalg.qr", function(g) return rand(g, { 1, 3 }) end, function(g) return rand(g, { 4, 3 }), { mode = "r" } end,
  function(g) return rand(g, { 2, 3 }), { mode = "r" } end,
  function(g) return rand(g, { 2, 3 }), { mode = "complete" } end)

-- ---- norms, losses, networks

add("layer_norm", function(g) return rand(g, { 2, 3, 4 }), rand(g, { 3, 4 }), rand(g, { 3, 4 }),
  { normalized_shape = { 3, 4 }, eps = 0.3 } end,
  function(g) return rand(g, { 2, 3, 4 }), rand(g, { 4 }), nil, { normalized_shape = { 4 } } end,
  function(g) return rand(g, { 2, 3, 4 }), nil, rand(g, { 4 }), { normalized_shape = { 4 } } end)
add("rms_norm", function(g) return rand(g, { 2, 3, 4 }), rand(g, { 3, 4 }), { normalized_shape = { 3, 4 },
  eps = 0.3 } end,
  function(g) return rand(g, { 2, 3, 4 }), nil, { normalized_shape = { 4 } } end)
add("group_norm", function(g) return rand(g, { 3, 4, 2, 5 }), nil, nil, { num_groups = 4, eps = 0.3 } end,
  function(g) return rand(g, { 3, 6, 2 }), rand(g, { 6 }), nil, { num_groups = 3 } end,
  function(g) return rand(g, { 3, 6, 2 }), nil, rand(g, { 6 }), { num_groups = 1 } end)
add("batch_norm", function(g) return rand(g, { 3, 2, 5 }), nil, nil, nil, nil, { training = true, eps = 0.3 } end,
  only({ 1, 4, 5 }, function(g)
    return rand(g, { 3, 2, 5 }), rand(g, { 2 }), rand(g, { 2 }, 0.5, 2), rand(g, { 2 }), rand(g, { 2 }), { eps = 0.3 }
  end),
  function(g) return rand(g, { 3, 2 }), nil, nil, rand(g, { 2 }), nil, { training = true } end,
  only({ 1, 4 }, function(g) return rand(g, { 3, 2 }), rand(g, { 2 }), rand(g, { 2 }, 0.5, 2), nil, rand(g, { 2 }) end))
for _, name in ipairs { "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div" } do -- either side broadcast
  for _, reduction in ipairs { "none", "mean" } do
    add(name, function(g) return rand(g, { 3, 4 }, 0.1, 0.4), rand(g, { 4 }, 0.6, 0.9), { reduction = reduction } end,
      function(g) return rand(g, { 4 }, 0.1, 0.4), rand(g, { 2, 3, 1 }, 0.6, 0.9), { reduction = reduction } end,
      function(g) return rand(g, { 2, 1, 1 }, 0.1, 0.4), rand(g, { 3, 4 }, 0.6, 0.9), { reduction = reduction } end)
  end
end
-- a mean over the batch, also of one element; sizes of 2 that another input broadcasts to
add("kl_div", function(g) return rand(g, { 3, 4 }, -3, 0), rand(g, { 3, 4 }, 0.1, 1), { reduction = "batchmean" } end,
  function(g) return rand(g, {}, -3, 0), rand(g, {}, 0.1, 1), { reduction = "batchmean" } end)
for _, reduction in ipairs { "none", "sum", "mean" } do
  add("mse_loss", function(g) return rand(g, { 2, 1 }, -3, 3), rand(g, { 1, 2 }, -3, 3), { reduction = reduction } end,
    function(g) return rand(g, { 3, 1 }, -3, 3), rand(g, { 3, 1 }, -3, 3), { reduction = reduction } end)
  add("binary_cross_entropy", only({ 1, 2 }, function(g)
    return rand(g, { 3, 2 }, 0.1, 0.9), rand(g, { 3, 2 }, 0, 1), rand(g, { 2 }, 0.5, 2), { reduction = reduction }
  end))
  add("cross_entropy_prob", only({ 1, 2, 3 }, function(g)
    return rand(g, { 2, 4, 3 }, -3, 3), rand(g, { 2, 4, 3 }, 0, 1), rand(g, { 4 }, 0.5, 2), { reduction = reduction,
      label_smoothing = 0.3 }
  end))
  for _, name in ipairs { "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss" } do
    add(name, function(g) return rand(g, { 3, 4 }, -3, 3), rand(g, { 3, 4 }, -3, 3), { reduction = reduction } end)
  end
  add("smooth_l1_loss", function(g) return rand(g, { 3, 4 }, -3, 3), rand(g, { 3, 4 }, -3, 3),
    { reduction = reduction, beta = 0.6 } end)
  add("huber_loss", function(g) return rand(g, { 3, 4 }, -3, 3), rand(g, { 3, 4 }, -3, 3), { reduction = reduction,
    delta = 0.6 } end)
  add("binary_cross_entropy", only({ 1, 2 }, function(g)
    return rand(g, { 3, 4 }, 0.1, 0.9), rand(g, { 3, 4 }, 0, 1), rand(g, { 4 }, 0.5, 2), { reduction = reduction }
  end))
  add("binary_cross_entropy_with_logits", only({ 1, 2 }, function(g)
    return rand(g, { 3, 4 }, -3, 3), rand(g, { 3, 4 }, 0, 1), rand(g, { 3, 1 }, 0.5, 2), rand(g, { 4 }, 0.5, 2),
      { reduction = reduction }
  end), only({ 1, 2 }, function(g)
    return rand(g, { 3, 4 }, -3, 3), rand(g, { 3, 4 }, 0, 1), nil, rand(g, { 4 }, 0.5, 2), { reduction = reduction }
  end))
  add("kl_div", function(g) return rand(g, { 3, 4 }, -3, 0), rand(g, { 3, 4 }, 0.1, 1), { reduction = reduction } end,
    function(g) return rand(g, { 3, 4 }, -3, 0), rand(g, { 3, 4 }, -2, 0), { reduction = reduction,
      log_target = true } end)
  add("nll_loss", only({ 1 }, function(g)
    return rand(g, { 3, 5 }, -3, 0), ints(g, { 3 }, 1, 5), rand(g, { 5 }, 0.5, 2), { reduction = reduction }
  end),
    function(g) return rand(g, { 4, 5 }, -3, 0), whole { 0, 4, 2, 3 }, { reduction = reduction, ignore_index = 2,
      index_base = 0 } end)
  add("cross_entropy", only({ 1 }, function(g)
    return rand(g, { 4, 5 }, -3, 3), whole { 1, 4, 2, 3 }, rand(g, { 5 }, 0.5, 2),
      { reduction = reduction, label_smoothing = 0.3, ignore_index = 2 }
  end), function(g) return rand(g, { 3, 5 }, -3, 3), whole { 0, 4, 2 }, { reduction = reduction, index_base = 0 } end,
    function(g) return rand(g, { 3, 5 }, -3, 3), ints(g, { 3 }, 1, 5), { reduction = reduction,
      label_smoothing = 0.1 } end,
    function(g) return rand(g, { 2, 5, 3 }, -3, 3), ints(g, { 2, 3 }, 1, 5), { reduction = reduction } end)
  add("cross_entropy_prob", only({ 1, 2 }, function(g)
    return rand(g, { 3, 4 }, -3, 3), rand(g, { 3, 4 }, 0, 1), rand(g, { 4 }, 0.5, 2), { reduction = reduction,
      label_smoothing = 0.3 }
  end), function(g) return rand(g, { 2, 4, 3 }, -3, 3), rand(g, { 2, 4, 3 }, 0, 1), { reduction = reduction } end)
end
for _, reduction in ipairs { "none", "sum" } do
  add("cross_entropy_linear", only({ 1, 2, 4 }, function(g)
    return rand(g, { 5, 3 }, -2, 2), rand(g, { 4, 3 }, -2, 2), whole { 1, 4, 2, 3, 1 }, rand(g, { 4 }, -1, 1),
      rand(g, { 4 }, 0.5, 2), { reduction = reduction, label_smoothing = 0.3, ignore_index = 2, chunk = 2 }
  end), function(g) return rand(g, { 5, 3 }, -2, 2), rand(g, { 4, 3 }, -2, 2), whole { 0, 3, 2, 3, 1 },
    { reduction = reduction, index_base = 0, chunk = 3 } end)
end
add("rnn_seq", function(g) return rand(g, { 4, 2, 3 }), rand(g, { 2, 3 }), rand(g, { 3, 3 }), { relu = true } end,
  function(g) return rand(g, { 4, 2, 3 }), rand(g, { 2, 3 }), rand(g, { 3, 3 }), { relu = true, reverse = true } end)
add("lstm_seq", function(g) return rand(g, { 4, 2, 12 }), rand(g, { 2, 3 }), rand(g, { 2, 3 }), rand(g, { 12, 3 }),
  { reverse = true } end)
add("gru_seq", function(g) return rand(g, { 4, 2, 9 }), rand(g, { 2, 3 }), rand(g, { 9, 3 }), rand(g, { 3 }),
  { reverse = true } end)
add("attention", function(g)
  return rand(g, { 2, 3, 5, 3 }), rand(g, { 2, 3, 4, 3 }), rand(g, { 2, 3, 4, 2 }), rand(g, { 5, 1 }), { scale = 0.7,
    is_causal = true }
end, function(g)
  return rand(g, { 2, 2, 3 }), rand(g, { 2, 4, 3 }), rand(g, { 2, 4, 2 }), T.tensor { { true, false, true, false },
    { false, false, false, false } },
    { scale = 1.3 }
end)

-- ---- products, convolutions, pooling

for name, shapes in pairs { addmm = { { 3, 2 }, { 3, 4 }, { 4, 2 } }, addmv = { { 3 }, { 3, 4 }, { 4 } },
  addr = { { 3, 2 }, { 3 }, { 2 } },
  addbmm = { { 3, 2 }, { 5, 3, 4 }, { 5, 4, 2 } }, baddbmm = { { 5, 3, 2 }, { 5, 3, 4 }, { 5, 4, 2 } } } do
  local function call(first, options)
    return function(g) return rand(g, first), rand(g, shapes[2]), rand(g, shapes[3]), options end
  end
  add(name, call(shapes[1], { beta = 0.7, alpha = -1.3 }), call(shapes[1], { beta = 0 }), call(shapes[1],
    { alpha = 0 }), call({ 1 }, { beta = -2 }),
    call({}, { alpha = 2 }))
end
add("linear", function(g) return rand(g, { 4 }), rand(g, { 2, 4 }), rand(g, { 2 }) end, function(g) return rand(g,
  { 2, 3, 4 }), rand(g, { 5, 4 }), rand(g, { 5 }) end)
add("bilinear", function(g) return rand(g, { 5, 2, 3 }), rand(g, { 5, 2, 4 }), rand(g, { 6, 3, 4 }) end)
for d = 1, 3 do
  local function sizes(n, c, ...) return { n, c, table.unpack({ ... }, 1, d) } end
  local function each(...) return table.pack(table.unpack({ ... }, 1, d)) end
  local function options(o)
    for _, v in pairs(o) do if type(v) == "table" then v.n = nil end end
    return o
  end
  add("conv" .. d .. "d", function(g)
    return rand(g, sizes(2, 4, 6, 5, 4)), rand(g, sizes(6, 2, 3, 2, 2)), rand(g, { 6 }),
      options { stride = each(2, 1, 2), padding = each(2, 1, 1), dilation = each(1, 2, 1), groups = 2 }
  end, function(g) return rand(g, sizes(2, 3, 5, 4, 3)), rand(g, sizes(3, 1, 2, 3, 2)), options { groups = 3,
    padding = each(1, 0, 1) } end)
  add("conv_transpose" .. d .. "d", function(g)
    return rand(g, sizes(2, 4, 3, 4, 2)), rand(g, sizes(4, 3, 3, 2, 2)), rand(g, { 6 }),
      options { stride = each(2, 3, 2), padding = each(1, 0, 1), output_padding = each(1, 2, 0), dilation = each(2, 1,
        1), groups = 2 }
  end, function(g) return rand(g, sizes(1, 2, 4, 3, 3)), rand(g, sizes(2, 3, 2, 3, 1)) end,
    function(g) -- an output padding of the stride and more: positions that no input reaches
      return rand(g, sizes(2, 2, 3, 4, 2)), rand(g, sizes(2, 3, 2, 2, 2)), options { stride = each(1, 1, 1),
        output_padding = each(2, 1, 2), dilation = each(3, 2, 3) }
    end)
  add("max_pool" .. d .. "d", function(g)
    return distinct(g, sizes(2, 3, 6, 5, 4)), options { kernel_size = each(3, 2, 2), stride = each(2, 3, 1),
      padding = each(1, 0, 1), ceil_mode = true }
  end, function(g)
    return distinct(g, sizes(2, 3, 6, 5, 4)), options { kernel_size = each(2, 2, 2), dilation = each(2, 1, 2),
      return_indices = true, index_base = 0 }
  end, function(g) return distinct(g, { 3, table.unpack({ 6, 5, 4 }, 1, d) }), options { kernel_size = each(2, 3,
    2) } end)
  add("avg_pool" .. d .. "d", function(g)
    return rand(g, sizes(2, 3, 6, 5, 4)), options { kernel_size = each(3, 2, 2), stride = each(2, 3, 1),
      padding = each(1, 0, 1), ceil_mode = true }
  end, function(g)
    return rand(g, sizes(2, 3, 6, 5, 4)), options { kernel_size = each(3, 2, 2), padding = each(1, 1, 1),
      count_include_pad = false }
  end, function(g) return rand(g, sizes(2, 3, 6, 5, 4)), options { kernel_size = each(3, 2, 2),
    divisor_override = 7 } end,
    function(g) return rand(g, { 3, table.unpack({ 6, 5, 4 }, 1, d) }), options { kernel_size = each(2, 3, 2) } end)
  for _, name in ipairs { "adaptive_max_pool", "adaptive_avg_pool" } do
    add(name .. d .. "d", function(g) return distinct(g, sizes(2, 3, 7, 5, 4)), options { output_size = each(3, 2,
      3) } end,
      function(g) return distinct(g, { 3, table.unpack({ 7, 5, 4 }, 1, d) }), options { output_size = each(7, 3,
        1) } end)
  end
  add("adaptive_max_pool" .. d .. "d", function(g)
    return distinct(g, sizes(2, 3, 7, 5, 4)), options { output_size = each(3, 2, 3), return_indices = true,
      index_base = 0 }
  end)
end

-- ---- shapes

add("flatten", function(g) return rand(g, { 2, 3, 4, 5 }), { start_dim = 2, end_dim = 3 } end,
  function(g) return rand(g, { 2, 3 }) end)
add("unflatten", function(g) return rand(g, { 2, 12, 3 }), { dim = 2, sizes = { 3, -1 } } end)
add("transpose", function(g) return rand(g, { 2, 3, 4 }), 3, 1 end, function(g) return rand(g, { 2, 3, 4 }), -1, -2 end)
add("permute", function(g) return rand(g, { 2, 3, 4, 5 }), { 2, 4, 1, 3 } end)
add("movedim", function(g) return rand(g, { 2, 3, 4 }), 3, 1 end, function(g) return rand(g, { 2, 3, 4, 5 }), { 1,
  2 }, { 3, 1 } end)
add("squeeze", function(g) return rand(g, { 1, 3, 1 }) end, function(g) return rand(g, { 1, 3, 1 }), { dim = { 1,
  3 } } end,
  function(g) return rand(g, { 1, 3, 1 }), { dim = 1 } end)
add("unsqueeze", function(g) return rand(g, { 3, 4 }), { dim = -1 } end, function(g) return rand(g, { 3, 4 }),
  { dim = 1 } end)
add("expand", function(g) return rand(g, { 3, 1 }), { 5, -1, 2 } end)
add("narrow", function(g) return rand(g, { 5, 3, 2 }), 1, 3, 2 end, function(g) return rand(g, { 2, 3, 5 }), -1, 1,
  4 end)
add("select", function(g) return rand(g, { 2, 3, 4 }), 1, 2 end, function(g) return rand(g, { 2, 3, 4 }), -1, 3 end)
add("slice", function(g) return rand(g, { 7, 3 }), { dim = 1, start = 1, length = 3, step = 3 } end,
  function(g) return rand(g, { 2, 9 }), { dim = 2, start = 3, length = 2, step = 4 } end)
add("unfold", function(g) return rand(g, { 7, 3 }), 1, 3, 2 end, function(g) return rand(g, { 2, 6, 3 }), 2, 2, 3 end)
for _, name in ipairs { "diagonal", "tril", "triu", "diag" } do
  add(name, function(g) return rand(g, { 3, 4 }), 1 end, function(g) return rand(g, { 4, 3 }), -2 end)
end
add("tril", function(g) return rand(g, { 2, 3, 4 }), -1 end)
add("triu", function(g) return rand(g, { 2, 3, 4 }), 2 end)
add("diag", function(g) return rand(g, { 3 }), 1 end, function(g) return rand(g, { 3 }), -2 end)
add("diagonal", function(g) return rand(g, { 2, 3, 4 }), { offset = 1, dim1 = 3, dim2 = 1 } end,
  function(g) return rand(g, { 2, 3, 4 }), { offset = -1 } end)
add("diag_embed", function(g) return rand(g, { 2, 3 }), { offset = 1 } end, function(g) return rand(g, { 2, 3 }),
  { offset = -2, dim1 = 1, dim2 = 3 } end)
add("as_strided", function(g) return rand(g, { 12 }), { 3, 2 }, { 2, 1 }, 1 end, function(g) return rand(g, { 12 }),
  { 3, 3 }, { 1, 2 }, 2 end)
add("flip", function(g) return rand(g, { 2, 3, 4 }), { 1, 3 } end, function(g) return rand(g, { 2, 3, 4 }), { -2 } end)
add("roll", function(g) return rand(g, { 3, 5 }), { shifts = { 1, -2 }, dims = { 1, 2 } } end,
  function(g) return rand(g, { 3, 5 }), { shifts = 4 } end)
add("cat", function(g) return { rand(g, { 0 }), rand(g, { 2, 3 }), rand(g, { 0 }), rand(g, { 1, 3 }) }, { dim = 1 } end,
  function(g) return { rand(g, { 2, 3 }), rand(g, { 0 }), rand(g, { 2, 1 }) }, { dim = -1 } end,
  function(g) return { rand(g, { 0 }), rand(g, { 3 }), rand(g, { 0 }), rand(g, { 2 }) }, { dim = 1 } end,
  function(g) return { rand(g, { 2, 3 }), rand(g, { 2, 0 }), rand(g, { 2, 2 }) }, { dim = 2 } end)
add("cat", function(g) return { rand(g, { 2, 3, 2 }), rand(g, { 2, 1, 2 }), rand(g, { 2, 4, 2 }) }, { dim = 2 } end,
  function(g) return { rand(g, { 3 }), rand(g, { 2 }) }, { dim = -1 } end,
  function(g) return { rand(g, { 0 }), rand(g, { 2, 3 }), rand(g, { 2, 1 }) }, { dim = 2 } end)
add("stack", function(g) return { rand(g, { 2, 3 }), rand(g, { 2, 3 }), rand(g, { 2, 3 }) }, { dim = 2 } end,
  function(g) return { rand(g, { 2, 3 }), rand(g, { 2, 3 }) }, { dim = -1 } end)
add("tile", function(g) return rand(g, { 2, 3 }), { 3 } end, function(g) return rand(g, { 2, 3 }), { 2, 1, 3 } end)
add("repeat_interleave", function(g) return rand(g, { 2, 3, 4 }), 3, { dim = 2 } end, function(g) return rand(g, { 2,
  3 }), 2, { dim = -1 } end)
add("repeat_each", function(g) return rand(g, { 2, 3, 4 }), whole { 2, 0, 3 }, { dim = 2 } end,
  function(g) return rand(g, { 3 }), whole { 2, 0, 3 } end)
for _, mode in ipairs { "constant", "reflect", "replicate", "circular" } do
  add("pad", function(g) return rand(g, { 2, 3, 5 }), { pad = { 2, 1 }, mode = mode } end)
  add("pad", function(g) return rand(g, { 2, 3, 4, 5 }), { pad = { 2, 1, 1, 2 }, mode = mode } end)
end
add("pad", function(g) return rand(g, { 4, 5 }), { pad = { -1, 2, 1, -2 }, value = 3 } end)

-- ---- indexing

add("gather", function(g) return rand(g, { 3, 4, 2 }), { dim = 2, index = ints(g, { 2, 3, 2 }, 1, 4) } end,
  function(g) return rand(g, { 3, 4 }), { dim = 1, index = ints(g, { 2, 3 }, 0, 2), index_base = 0 } end)
add("take_along_dim", function(g) return rand(g, { 3, 4 }), ints(g, { 1, 2 }, 1, 4), { dim = 2 } end,
  function(g) return rand(g, { 3, 1 }), ints(g, { 2, 5 }, 0, 2), { dim = 1, index_base = 0 } end,
    function(g) return rand(g, { 3, 4 }), ints(g, { 5 }, 1, 12) end,
  function(g) return rand(g, { 3, 4 }), ints(g, { 5 }, 0, 11), { index_base = 0 } end)
add("index_select", function(g) return rand(g, { 3, 4, 2 }), { dim = 2, index = ints(g, { 5 }, 0, 3),
  index_base = 0 } end)
add("take", function(g) return rand(g, { 3, 4 }), ints(g, { 2, 3 }, 0, 11), { index_base = 0 } end)
add("embedding", by_definition(function(g) return rand(g, { 5, 2 }), whole { { 1, 2, 2 }, { 4, 2, 5 } },
  { padding_idx = 2 } end),
  by_definition(function(g) return rand(g, { 5, 2 }), whole { 0, 2, 2, 4 }, { padding_idx = 4, index_base = 0 } end),
  by_definition(function(g) return rand(g, { 5, 2 }), whole { 1, 2, 2, 4 }, { padding_idx = -1 } end))
add("index", function(g) return { rand(g, { 3, 4, 5 }), whole { 3, 1, 1 }, whole { 2, 4, 2 } } end,
  function(g) return { rand(g, { 3, 4, 5 }), whole { 2, 0 } }, { dims = { 3 }, index_base = 0 } end,
  function(g) return { rand(g, { 3, 4, 5 }), whole { { 3 }, { 1 } }, whole { 2, 4, 2 } }, { dims = { 1, 3 } } end)
for _, accumulate in ipairs { true, false } do
  add("index_put", function(g) return { rand(g, { 3, 4 }), rand(g, { 4 }), whole { 3, 1 } },
    { accumulate = accumulate } end,
    function(g) return { rand(g, { 3, 4 }), rand(g, { 3, 2 }), whole { 2, 0 } }, { accumulate = accumulate,
      dims = { 2 }, index_base = 0 } end,
    function(g) return { rand(g, { 3, 4 }), rand(g, { 3 }), whole { 1, 1, 3 }, whole { 2, 2, 4 } },
      { accumulate = accumulate } end)
end
add("index_put", function(g)
  return { rand(g, { 4, 5 }), rand(g, { 1, 3 }), whole { 2, 2, 4 }, whole { { 1, 1, 5 } } }
end, function(g)
  return { rand(g, { 4, 5 }), rand(g, { 3 }), whole { { 2 } }, whole { 1, 5, 1 } }
end, function(g)
  return { rand(g, { 4, 5 }), rand(g, { 2, 3 }), whole { { 2 }, { 2 } }, whole { 1, 5, 1 } }
end)
add("index_put", function(g)
  return { rand(g, { 3, 4, 2 }), rand(g, { 2, 3, 4 }), whole { { 3 }, { 1 } }, whole { { 1, 2, 1 } } }, { dims = { 1,
    3 } }
end)
for _, reduce in ipairs { "none", "add" } do
  add("scatter", function(g) return rand(g, { 3, 4 }), rows.permutations(g, 3, 4):narrow(2, 1, 2), rand(g, { 3, 4 }),
    { dim = 2, reduce = reduce } end)
end
add("scatter", function(g) return rand(g, { 4, 2 }), whole { { 0, 3 }, { 2, 1 } }, rand(g, { 3, 2 }), { dim = 1,
  index_base = 0 } end)
add("scatter_add", function(g) return rand(g, { 4, 2 }), whole { { 0, 3 }, { 0, 1 } }, rand(g, { 3, 2 }), { dim = 1,
  index_base = 0 } end)
for _, reduce in ipairs { "sum", "prod", "mean", "amax", "amin" } do
  for _, include in ipairs { true, false } do
    add("scatter_reduce", function(g)
      return rand(g, { 4, 2 }, 0.5, 2), whole { { 0, 3 }, { 0, 1 }, { 2, 1 } }, rand(g, { 3, 2 }, 0.5, 2),
        { dim = 1, index_base = 0, reduce = reduce, include_self = include }
    end, function(g) -- of a row the first
      return rand(g, {}, 0.5, 2), T.tensor(0, { dtype = "i64" }), rand(g, { 3 }, 0.5, 2),
        { dim = 1, index_base = 0, reduce = reduce, include_self = include }
    end, not include and function(g) -- sources that are equal to what they replace
      return T.full({ 3 }, 0.5, { dtype = "f64" }), whole { 0, 2 }, T.full({ 2 }, 0.5, { dtype = "f64" }),
        { dim = 1, index_base = 0, reduce = reduce, include_self = include }
    end or nil)
  end
end
add("index_add", function(g) return rand(g, { 3, 4 }), whole { 0, 3, 0 }, rand(g, { 3, 3 }), { dim = 2, alpha = -1.7,
  index_base = 0 } end)
add("index_copy", function(g) return rand(g, { 3, 4 }), whole { 0, 3 }, rand(g, { 3, 2 }), { dim = 2,
  index_base = 0 } end)
add("index_fill", function(g) return rand(g, { 3, 4 }), whole { 0, 3 }, rand(g, {}), { dim = 2, index_base = 0 } end)
add("where", function(g) return bools(g, { 3, 1 }), 0.5, rand(g, { 4 }) end, function(g) return bools(g, { 3, 1 }),
  rand(g, { 4 }), 2 end)

add("masked_scatter", function(g)
  return rand(g, { 3, 1 }), T.tensor { { true, false, true, true }, { false, true, true, false },
    { true, true, false, false } }, rand(g, { 8 })
end, function(g) return rand(g, { 3, 4 }), T.tensor { true, false, true, true }, rand(g, { 2, 5 }) end)
add("gather", function(g) return rand(g, { 4 }), { dim = 1, index = whole { 3, 1, 1 } } end,
  function(g) return rand(g, { 4 }), { dim = 1, index = T.tensor(3, { dtype = "i64" }) } end)

return M
