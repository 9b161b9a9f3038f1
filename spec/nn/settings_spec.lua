-- SPDX-License-Identifier: MIT
-- A setting that is assigned to a module's field afterwards (conv.stride = 2, loss.label_smoothing = 0.1) does what it
-- does in the constructor: of every class of nn and every argument, but those that decide which parameters there are.
local T = require "perilune"
local options = require "perilune.options"
local nn = T.nn

local f64 = { dtype = "f64" }
local function randn(...) return T.randn({ ... }, f64) end
local function ids(t) return T.tensor(t, { dtype = "i64" }) end

-- Arguments that say which parameters a module has, and of what shape.
local MAKES = {}
for name in ([[in_channels out_channels in_features out_features in1_features in2_features num_features num_parameters
  num_embeddings embedding_dim normalized_shape num_channels input_size hidden_size num_layers bidirectional proj_size
  peepholes bias affine elementwise_affine init dtype device groups unit_offset num_heads embed_dim kdim vdim
  add_bias_kv]]):gmatch "%S+" do
  MAKES[name] = true
end
-- Classes whose arguments make other modules, which have the settings, or that have none.
local CONTAINERS = {}
for name in ([[Transformer TransformerEncoder TransformerDecoder TransformerEncoderLayer TransformerDecoderLayer
  GatedMLP GroupedQueryAttention MixtureOfExperts KVCache QuantizedEmbedding RotaryEmbedding
  SyncBatchNorm AdaptiveLogSoftmaxWithLoss]]):gmatch "%S+" do
  CONTAINERS[name] = true
end
-- Arguments of one class: what is read when it is made alone.
local ALONE = { Conv = { kernel_size = true }, ConvTranspose = { kernel_size = true, padding_mode = true },
  BatchNorm = { track_running_stats = true }, InstanceNorm = { track_running_stats = true },
  FractionalMaxPool = { output_ratio = true }, Upsample = { scale_factor = true, recompute_scale_factor = true },
  UpsamplingNearest2d = { scale_factor = true }, UpsamplingBilinear2d = { scale_factor = true },
  ConstantPad = { padding = true }, MaxUnpool = { kernel_size = true, padding = true },
  Fold = { kernel_size = true, stride = true, padding = true, dilation = true }, Unflatten = { dim = true },
  QuantizedLinear = { format = true, input_scale = true } }

-- class without its number of dimensions → arguments of the constructor, the call (m, its dimensions), other values
local sizes = { 7, 6, 5 }
local function image(nd, c) return randn(2, c or 4, table.unpack(sizes, 1, nd)) end
local function on(make) return function(m, nd) return m(make(nd)) end end
local function over(c) return on(function(nd) return image(nd, c) end) end
local pair = on(function() return randn(3, 4) end)
local function loss(target, input) return function(m) return m((input or randn(3, 4)), target) end end
local classes = ids { 1, 4, 2 }
local mean = { reduction = "sum" }
local function with(t) t.reduction = "sum" return t end
local ROWS = {
  Conv = { { 4, 4, 3 }, over(), { stride = 2, padding = 1, dilation = 2, padding_mode = "circular" }, { padding = 2 } },
  ConvTranspose = { { 4, 4, 3 }, over(), { stride = 3, padding = 1, dilation = 2, output_padding = 1 },
    { stride = 2 } },
  MaxPool = { { 2 }, over(), { kernel_size = 3, stride = 1, padding = 1, dilation = 2, return_indices = true,
    ceil_mode = true }, { stride = 2 } },
  AvgPool = { { 4 }, over(), { kernel_size = 3, stride = 1, padding = 0, dilation = 2, ceil_mode = true,
    count_include_pad = false, divisor_override = 3 }, { stride = 3, padding = 1 } },
  LPPool = { { 2.0, 2 }, over(), { norm_type = 4.0, kernel_size = 3, stride = 1, padding = 1, dilation = 2,
    ceil_mode = true }, { stride = 2 } },
  AdaptiveAvgPool = { { 2 }, over(), { output_size = 3 } },
  AdaptiveMaxPool = { { 2 }, over(), { output_size = 3, return_indices = true } },
  FractionalMaxPool = { { 2, 3 }, over(), { kernel_size = 1, output_size = 2, return_indices = true } },
  MaxUnpool = { { 2 }, function(m, nd)
    return m(nn.F[("max_pool%dd_with_indices"):format(nd)](image(nd):narrow(3, 1, 5), 2))
  end, { stride = 3 } },
  BatchNorm = { { 4 }, over(), { eps = 1.0, momentum = 0.5 } },
  InstanceNorm = { { 4 }, over(), { eps = 1.0, momentum = 0.5 }, { track_running_stats = true } },
  Dropout = { { 0.5 }, over(), { p = 0.9, inplace = true } },
  AlphaDropout = { { 0.5 }, over(), { p = 0.9 } }, FeatureAlphaDropout = { { 0.5 }, over(), { p = 0.9 } },
  ConstantPad = { { 1, 2 }, over(), { value = 3 } },
  LayerNorm = { { 4 }, pair, { eps = 1.0 } }, RMSNorm = { { 4 }, pair, { eps = 1.0 } },
  GroupNorm = { { 2, 4 }, over(), { eps = 1.0, num_groups = 4 } },
  LocalResponseNorm = { { 2 }, over(), { size = 3, alpha = 1.0, beta = 2.0, k = 2.0 } },
  Embedding = { { 5, 4 }, function(m) return m(ids { 1, 2, 2 }) end, { padding_idx = 2, max_norm = 0.5,
    norm_type = 1.0, scale_grad_by_freq = true, index_base = 0 }, { max_norm = 1.0 } },
  EmbeddingBag = { { 5, 4 }, function(m) return m(ids { 1, 2, 2, 3 }, ids { 1, 3 }) end, { mode = "sum",
    padding_idx = 2, max_norm = 0.5, norm_type = 1.0, scale_grad_by_freq = true, include_last_offset = true },
    { max_norm = 1.0 } },
  PixelShuffle = { { 2 }, function(m) return m(randn(1, 16, 2, 2)) end, { upscale_factor = 4 } },
  PixelUnshuffle = { { 2 }, function(m) return m(randn(1, 1, 4, 4)) end, { downscale_factor = 4 } },
  ChannelShuffle = { { 2 }, over(8), {} },
  Fold = { { { 4, 4 }, 2 }, function(m) return m(randn(1, 8, 9)) end, { output_size = { 10, 2 } } },
  Unfold = { { 2 }, function(m) return m(image(2)) end, { kernel_size = 3, stride = 2, padding = 1, dilation = 2 } },
  Upsample = { {}, function(m) return m(image(2)) end, { size = { 3, 4 }, mode = "bilinear", align_corners = true },
    { size = { 9, 8 }, mode = "bicubic" } },
  UpsamplingNearest2d = { {}, function(m) return m(image(2)) end, { size = { 3, 4 } }, { size = 2 } },
  UpsamplingBilinear2d = { {}, function(m) return m(image(2)) end, { size = { 3, 4 } }, { size = 2 } },
  Flatten = { {}, over(), { start_dim = 1, end_dim = 2 } },
  Unflatten = { { 2, { 2, 2 } }, over(), { sizes = { 4, 1 } } },
  PReLU = { {}, pair, {} }, RReLU = { {}, pair, { lower = 0.0, upper = 0.9 } },
  GELU = { {}, pair, { approximate = "tanh" } }, ELU = { {}, pair, { alpha = 3.0 } },
  CELU = { {}, pair, { alpha = 3.0 } },
  LeakyReLU = { {}, pair, { negative_slope = 0.5 } }, Hardtanh = { {}, pair, { min_val = -0.1, max_val = 0.1 } },
  Hardshrink = { {}, pair, { lambd = 0.1 } }, Softshrink = { {}, pair, { lambd = 0.1 } },
  Softplus = { {}, pair, { beta = 2.0, threshold = 0.1 } },
  Threshold = { { 0.1, 2 }, pair, { threshold = 0.5, value = 3 } },
  Softmax = { {}, pair, { dim = 1 } }, LogSoftmax = { {}, pair, { dim = 1 } }, Softmin = { {}, pair, { dim = 1 } },
  GLU = { {}, function(m) return m(randn(2, 4, 6)) end, { dim = 2 } },
  QuantizedLinear = { { 64, 4 }, function(m)
    m.weight:copy_(T.quantize_blocks(T.randn(4, 64), { format = "Q4_0" }))
    return m(T.randn(3, 64))
  end, { activations = "float" }, { format = "Q4_0" } },
  Linear = { { 4, 2 }, pair, {} }, Bilinear = { { 4, 4, 2 }, function(m) return m(randn(3, 4), randn(3, 4)) end, {} },
  RNN = { { 4, 3 }, function(m) return m(randn(2, 3, 4)) end, { batch_first = true, dropout = 0.9,
    nonlinearity = "relu" }, { num_layers = 2 } },
  LSTM = { { 4, 3 }, function(m) return (m(randn(2, 3, 4))) end, { batch_first = true, dropout = 0.9 },
    { num_layers = 2 } },
  GRU = { { 4, 3 }, function(m) return m(randn(2, 3, 4)) end, { batch_first = true, dropout = 0.9,
    linear_before_reset = false }, { num_layers = 2 } },
  RNNCell = { { 4, 3 }, pair, { nonlinearity = "relu" } },
  LSTMCell = { { 4, 3 }, function(m) return (m(randn(3, 4))) end, {} },
  GRUCell = { { 4, 3 }, function(m) return m(randn(3, 4), randn(3, 3)) end, { linear_before_reset = false } },
  MultiheadAttention = { { 4, 2 }, function(m)
    local x = randn(2, 3, 4)
    return (m(x, x, x))
  end, { dropout = 0.9, batch_first = true, add_zero_attn = true } },
  CosineSimilarity = { {}, function(m) return m(randn(2, 3, 4), randn(2, 3, 4)) end, { dim = 3, eps = 5.0 } },
  PairwiseDistance = { {}, function(m) return m(randn(3, 4), randn(3, 4)) end, { p = 1.0, eps = 1.0, keepdim = true } },
  CrossEntropyLoss = { {}, loss(classes), with { ignore_index = 4, label_smoothing = 0.3, weight = randn(4):abs() } },
  NLLLoss = { {}, loss(classes), with { ignore_index = 4, weight = randn(4):abs() } },
  MSELoss = { {}, loss(randn(3, 4)), mean }, L1Loss = { {}, loss(randn(3, 4)), mean },
  SmoothL1Loss = { {}, loss(randn(3, 4)), with { beta = 0.2 } },
  HuberLoss = { {}, loss(randn(3, 4)), with { delta = 0.2 } },
  BCELoss = { {}, loss(T.rand({ 3, 4 }, f64), T.rand({ 3, 4 }, f64)), with { weight = randn(4):abs() } },
  BCEWithLogitsLoss = { {}, loss(T.rand({ 3, 4 }, f64)), with { weight = randn(4):abs(),
    pos_weight = randn(4):abs() } },
  KLDivLoss = { {}, loss(T.rand({ 3, 4 }, f64)), { reduction = "batchmean", log_target = true } },
  CosineEmbeddingLoss = { {}, function(m) return m(randn(3, 4), randn(3, 4), ids { 1, -1, -1 }) end,
    with { margin = -1.0 } },
  HingeEmbeddingLoss = { {}, loss(ids { { 1, -1, 1, 1 }, { -1, -1, 1, 1 }, { 1, -1, -1, 1 } }), with { margin = 3.0 } },
  MarginRankingLoss = { {}, function(m) return m(randn(4), randn(4), ids { 1, -1, 1, 1 }) end, with { margin = 3.0 } },
  SoftMarginLoss = { {}, loss(ids { { 1, -1, 1, 1 }, { -1, -1, 1, 1 }, { 1, -1, -1, 1 } }), mean },
  TripletMarginLoss = { {}, function(m) return m(randn(3, 4), randn(3, 4), randn(3, 4)) end, with { margin = 9.0,
    p = 1.0, eps = 1.0, swap = true } },
  TripletMarginWithDistanceLoss = { {}, function(m) return m(randn(3, 4), randn(3, 4), randn(3, 4)) end,
    with { margin = 9.0, swap = true, distance_function = function(a, b) return (a - b):abs():amax(2) end } },
  GaussianNLLLoss = { {}, function(m) return m(randn(3, 4), randn(3, 4), T.rand({ 3, 4 }, f64)) end,
    with { full = true, eps = 2.0 } },
  PoissonNLLLoss = { {}, loss(T.rand({ 3, 4 }, f64) * 5, T.rand({ 3, 4 }, f64) + 1),
    with { log_input = true, full = true, eps = 0.5 }, { log_input = false } },
  MultiMarginLoss = { {}, loss(classes), with { p = 2, margin = 3.0, weight = randn(4):abs() } },
  MultiLabelMarginLoss = { {}, loss(ids { { 1, 2, 0, 0 }, { 3, 0, 0, 0 }, { 1, 0, 0, 0 } }), mean },
  MultiLabelSoftMarginLoss = { {}, loss(T.rand({ 3, 4 }, f64):gt(0.5):double()), with { weight = randn(4):abs() } },
  CTCLoss = { {}, function(m) return m(randn(5, 1, 4):log_softmax(-1), ids { { 2, 3 } }, ids { 5 }, ids { 2 }) end,
    with { blank = 4 } },
}
-- Arguments that change nothing that these calls show: which number is the first, infinite losses.
local UNSEEN = { index_base = true, zero_infinity = true, _random_samples = true }

local function arguments(name) return options.specs["nn." .. name].args or options.specs["nn." .. name] end

local function made(name, row, extra)
  local o = {}
  for i, arg in ipairs(arguments(name)) do o[arg[1]] = row[1][i] end
  for _, more in ipairs { row[4] or {}, extra or {} } do
    for key, v in pairs(more) do o[key] = v end
  end
  T.manual_seed(1)
  return nn[name](o):to "f64"
end

-- Results, gradients and the state that a call leaves.
local function outcome(m, call, nd)
  T.manual_seed(2)
  for _, p in ipairs(m:parameters()) do p.grad = nil end
  local list = table.pack(call(m, nd))
  if list[1].requires_grad then (list[1] * list[1]):sum():backward() end
  for _, p in ipairs(m:parameters()) do list[#list + 1] = p.grad end
  for _, name in ipairs { "running_mean", "running_var" } do list[#list + 1] = m[name] end
  return list
end

local function alike(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if table.concat(a[i]:shape(), " ") ~= table.concat(b[i]:shape(), " ") or not a[i]:equal(b[i]) then return false end
  end
  return true
end

teardown(function() ROWS = nil end)
describe("a setting that is assigned does what it does in the constructor:", function()
  for name in pairs(nn.__lazy or {}) do local _ = nn[name] end
  local most = os.getenv "PERILUNE_LANES" == "long" and 3 or 1 -- dimensions; 2 where there is no class for one
  local names = {}
  for who in pairs(options.specs) do
    local name = who:match "^nn%.(%u[%w]*)$"
    if name and not CONTAINERS[name] and not name:match "^Lazy" then names[#names + 1] = name end
  end
  table.sort(names)

  local function shown(name, stem, nd)
    local row, settings = ROWS[stem], {}
    for _, arg in ipairs(arguments(name)) do
      if not (MAKES[arg[1]] or UNSEEN[arg[1]] or arg[1] == "inplace" or ALONE[stem] and ALONE[stem][arg[1]]) then
        settings[#settings + 1] = arg[1]
      end
    end
    if #settings == 0 then return end
    assert(row, name .. ": a row is wanted whose call shows its settings")
    local first = made(name, row)
    local plain, state = outcome(made(name, row), row[2], nd), first:state_dict()
    for _, key in ipairs(settings) do
      local value = row[3][key]
      assert(value ~= nil, ("%s: another value of %s is wanted that shows"):format(name, key))
      local m, other = made(name, row), made(name, row, { [key] = value })
      m[key] = value
      assert.is_string(tostring(m))
      if next(state) and not (key == "weight" or key == "pos_weight") then other:load_state_dict(state) end
      local want = outcome(other, row[2], nd)
      assert.is_true(alike(outcome(m, row[2], nd), want), ("%s.%s: assigned it is passed over"):format(name, key))
      assert.is_false(alike(plain, want), ("%s.%s: this value does not show"):format(name, key))
    end
  end

  it("also one number for all dimensions where there was a list", function()
    local up, pad, norm = nn.ConvTranspose2d(1, 1, 3), nn.ReflectionPad2d { 1, 1, 1, 1 }, nn.LayerNorm(4)
    up.stride, up.padding, pad.padding, norm.normalized_shape = 3, 1, 1, 4
    assert.equal("ConvTranspose2d(1, 1, kernel_size={3, 3}, stride=3, padding=1)", tostring(up))
    assert.equal(8, up(T.ones(1, 1, 3, 3), { output_size = { 8, 8 } }):size(4))
    assert.equal("ReflectionPad2d(padding=1)", tostring(pad))
    assert.equal(5, pad(T.ones(1, 1, 3, 3)):size(4))
    assert.is_string(tostring(norm))
  end)

  for _, name in ipairs(names) do
    local stem, nd = name:match "^(%a+)(%d)d$"
    nd = tonumber(nd)
    if nd and not ROWS[name] and (ROWS[stem] or stem:match "Pad$") then
      if nd <= most or most == 1 and nd == 2 and not options.specs["nn." .. stem .. "1d"] then
        if ROWS[stem] then it(name, function() shown(name, stem, nd) end) end
      end
    else
      it(name, function() shown(name, name, 1) end)
    end
  end
end)
