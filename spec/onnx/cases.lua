-- SPDX-License-Identifier: MIT
-- Modules with inputs for the specs of T.onnx.save, and for check.py.

local T = require "perilune"
local nn = T.nn
local M = {}

-- Results as one list: those in tables taken out, nil left out.
function M.flat(...)
  local out = {}
  local function put(v)
    if type(v) == "table" then for _, x in ipairs(v) do put(x) end elseif v ~= nil then out[#out + 1] = v end
  end
  for i = 1, select("#", ...) do put((select(i, ...))) end
  return out
end

local function class(init, forward)
  local C = nn.class "Case"
  C.init, C.forward = init, forward
  return C()
end

function M.layers()
  local list = {}
  T.manual_seed(1)
  local function add(name, net, ...) list[#list + 1] = { name = name, net = net, inputs = { ... } } end
  local picture, steps, rows = T.randn(2, 4, 8, 8), T.randn(5, 2, 6), T.randn(3, 6)
  for _, name in ipairs { "ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Softplus",
    "Softsign", "Tanh", "Sigmoid", "LogSigmoid", "Hardtanh", "Hardsigmoid", "Hardswish", "Hardshrink", "Softshrink",
    "Tanhshrink", "PReLU", "Identity", "Flatten", "Dropout" } do add(name, nn[name](), rows * 3) end
  add("GELU, tanh", nn.GELU { approximate = "tanh" }, rows)
  add("Threshold", nn.Threshold(0.1, 2), rows)
  add("Softplus, its threshold", nn.Softplus(2, 1), rows * 3)
  add("PairwiseDistance, p = 3", nn.PairwiseDistance(3), rows, rows * 2)
  add("BCELoss", nn.BCELoss { weight = T.rand(6) }, rows:sigmoid(), rows:flip(1):sigmoid())
  add("BCEWithLogitsLoss", nn.BCEWithLogitsLoss { pos_weight = T.rand(6) }, rows, rows:flip(1):sigmoid())
  add("KLDivLoss", nn.KLDivLoss { reduction = "batchmean" }, rows:log_softmax(2), rows:flip(1):softmax(2))
  add("Upsample, nearest-exact", nn.Upsample { scale_factor = 1.5, mode = "nearest-exact" }, picture)
  add("Softmax", nn.Softmax(-1), rows)
  add("LogSoftmax", nn.LogSoftmax(2), rows)
  add("Softmin", nn.Softmin(2), rows)
  add("GLU", nn.GLU(2), rows)
  add("Linear", nn.Linear(6, 3), rows)
  add("Linear of three dimensions", nn.Linear(6, 3), steps)
  add("Linear without bias", nn.Linear { 6, 3, bias = false }, rows)
  add("Bilinear", nn.Bilinear(6, 6, 3), rows, rows * 2)
  add("Conv1d", nn.Conv1d(4, 6, 3), T.randn(2, 4, 9))
  add("Conv2d", nn.Conv2d(4, 6, 3, { padding = 1, stride = 2 }), picture)
  add("Conv2d, groups and dilation", nn.Conv2d(4, 8, 3, { groups = 4, dilation = 2 }), picture)
  add("Conv2d, circular", nn.Conv2d(4, 4, 3, { padding = 1, padding_mode = "circular" }), picture)
  add("Conv2d, reflect", nn.Conv2d(4, 4, 3, { padding = 1, padding_mode = "reflect" }), picture)
  add("Conv2d without a batch", nn.Conv2d(4, 4, 3), picture[1])
  add("Conv3d", nn.Conv3d(2, 3, 2), T.randn(1, 2, 4, 4, 4))
  add("ConvTranspose2d", nn.ConvTranspose2d(4, 3, 3, { stride = 2, padding = 1, output_padding = 1 }), picture)
  add("ConvTranspose2d, more behind than padding", nn.ConvTranspose2d(4, 3, 3,
    { dilation = 4, padding = 1, output_padding = { 3, 1 } }), picture)
  add("MaxPool2d", nn.MaxPool2d(3, { stride = 2, padding = 1 }), picture)
  add("MaxPool2d, ceil_mode", nn.MaxPool2d(3, { stride = 2, ceil_mode = true }), picture)
  add("AvgPool2d", nn.AvgPool2d(3, { stride = 2, padding = 1 }), picture)
  add("AvgPool2d without padding", nn.AvgPool2d(3, { stride = 2, padding = 1, count_include_pad = false }), picture)
  add("AvgPool2d, ceil_mode", nn.AvgPool2d(3, { stride = 2, ceil_mode = true }), picture)
  add("AdaptiveAvgPool2d to one", nn.AdaptiveAvgPool2d(1), picture)
  add("AdaptiveAvgPool2d", nn.AdaptiveAvgPool2d(2), picture)
  add("AdaptiveMaxPool2d", nn.AdaptiveMaxPool2d(4), picture)
  add("AdaptiveAvgPool2d, parts that overlap", nn.AdaptiveAvgPool2d({ 3, 5 }), picture)
  add("AdaptiveMaxPool2d, more parts than elements", nn.AdaptiveMaxPool2d({ 11, 3 }), picture)
  add("LPPool2d", nn.LPPool2d(2, 2), picture)
  add("BatchNorm2d", nn.BatchNorm2d(4), picture)
  add("BatchNorm1d", nn.BatchNorm1d(6), rows)
  add("InstanceNorm2d", nn.InstanceNorm2d(4), picture)
  add("GroupNorm", nn.GroupNorm(2, 4), picture)
  add("LayerNorm", nn.LayerNorm(6), steps)
  add("RMSNorm", nn.RMSNorm(6), steps)
  add("LocalResponseNorm", nn.LocalResponseNorm(2), picture)
  add("Embedding", nn.Embedding(10, 4), T.tensor({ { 1, 5 }, { 10, 2 } }, { dtype = "i64" }))
  add("Embedding, padding_idx from the end", nn.Embedding(10, 4, { padding_idx = -1 }),
    T.tensor({ { 1, 5 }, { 10, 2 } }, { dtype = "i64" }))
  add("EmbeddingBag", nn.EmbeddingBag(10, 4), T.tensor({ { 1, 5 }, { 10, 2 } }, { dtype = "i64" }))
  for _, mode in ipairs { "sum", "mean", "max" } do
    local bag = nn.EmbeddingBag(10, 4, { mode = mode, padding_idx = 2 })
    add("EmbeddingBag with padding, " .. mode, bag, T.tensor({ { 1, 5, 2 }, { 2, 2, 2 } }, { dtype = "i64" }))
    add("EmbeddingBag at offsets, " .. mode, bag, T.tensor({ 1, 5, 2, 7, 2 }, { dtype = "i64" }),
      T.tensor({ 1, 3, 3, 5 }, { dtype = "i64" }))
  end
  add("Embedding, scale_grad_by_freq", nn.Embedding(10, 4, { scale_grad_by_freq = true }),
    T.ones({ 3 }, { dtype = "i64" }))
  local scores, weight = T.randn(2, 4, 3), T.rand(4) + 0.1
  local target = T.tensor({ { 1, 4, -100 }, { 2, 2, 3 } }, { dtype = "i64" })
  for _, reduction in ipairs { "mean", "sum", "none" } do
    local o = { reduction = reduction, label_smoothing = 0.1, weight = weight }
    add("CrossEntropyLoss, smoothed, " .. reduction, nn.CrossEntropyLoss(o), scores, target)
    add("CrossEntropyLoss of probabilities, " .. reduction, nn.CrossEntropyLoss(o), scores, scores:softmax(2):flip(2))
    add("CrossEntropyLoss of one, " .. reduction, nn.CrossEntropyLoss { reduction = reduction }, scores[1]:t()[1],
      T.tensor(2, { dtype = "i64" }))
  end
  add("bucketize", class(function() end, function(_, x)
    return T.bucketize(x, T.tensor { -1, 0, 1 }), T.searchsorted(T.tensor { -1, 0, 1 }, x, { right = true })
  end), T.tensor { { -2, -1, 0.5 }, { 1, 0 / 0, 7 } })
  add("LSTM", nn.LSTM(6, 5), steps)
  add("LSTM, two layers, both ways", nn.LSTM { 6, 5, num_layers = 2, bidirectional = true }, steps)
  add("GRU", nn.GRU(6, 5), steps)
  add("GRU, both ways", nn.GRU { 6, 5, bidirectional = true, batch_first = true }, steps)
  add("RNN", nn.RNN(6, 5), steps)
  add("RNN, relu, both ways", nn.RNN { 6, 5, nonlinearity = "relu", bidirectional = true }, steps)
  add("LSTMCell", nn.LSTMCell(6, 5), rows)
  add("GRUCell", nn.GRUCell(6, 5), rows)
  add("RNNCell", nn.RNNCell(6, 5), rows)
  add("MultiheadAttention", nn.MultiheadAttention(6, 2), steps, steps, steps)
  add("TransformerEncoderLayer", nn.TransformerEncoderLayer(6, 2, 12), steps)
  add("TransformerDecoderLayer", nn.TransformerDecoderLayer(6, 2, 12), steps, steps)
  add("PixelShuffle", nn.PixelShuffle(2), picture)
  add("PixelUnshuffle", nn.PixelUnshuffle(2), picture)
  add("ChannelShuffle", nn.ChannelShuffle(2), picture)
  add("Upsample", nn.Upsample { scale_factor = 2 }, picture)
  add("Upsample, bilinear", nn.Upsample { scale_factor = 2, mode = "bilinear" }, picture)
  add("ZeroPad2d", nn.ZeroPad2d(1), picture)
  add("ReplicationPad2d", nn.ReplicationPad2d(2), picture)
  add("ReflectionPad2d", nn.ReflectionPad2d(2), picture)
  add("CircularPad2d", nn.CircularPad2d(2), picture)
  add("Unfold", nn.Unfold(2), picture)
  add("Fold", nn.Fold({ 8, 8 }, 2, { stride = 2 }), T.randn(2, 16, 16))
  add("Unflatten", nn.Unflatten(2, { 2, 3 }), rows)
  add("CosineSimilarity", nn.CosineSimilarity(2), rows, rows + 1)
  add("PairwiseDistance", nn.PairwiseDistance(), rows, rows + 1)
  for _, name in ipairs { "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCEWithLogitsLoss" } do
    add(name, nn[name](), rows, rows:sigmoid())
  end
  local function sampling(o) return class(function() end, function(_, x, g) return nn.F.grid_sample(x, g, o) end) end
  for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
    for _, padding in ipairs { "zeros", "border", "reflection" } do
      add(("grid_sample, %s, %s"):format(mode, padding), sampling { mode = mode, padding_mode = padding },
        picture, T.rand(2, 5, 3, 2) * 3 - 1.5)
    end
    if mode ~= "bicubic" then
      add("grid_sample of volumes, " .. mode, sampling { mode = mode, align_corners = true }, T.randn(1, 2, 3, 4, 5),
        T.rand(1, 2, 3, 2, 3) * 3 - 1.5)
    end
  end
  add("CrossEntropyLoss", nn.CrossEntropyLoss(), rows, T.tensor({ 1, 2, 6 }, { dtype = "i64" }))
  local function ids(t) return T.tensor(t, { dtype = "i64" }) end
  local frames, spelled = T.randn(6, 4, 5):log_softmax(3), ids { { 2, 3, 3 }, { 4, 5, 1 }, { 2, 2, 2 }, { 1, 1, 1 } }
  for _, o in ipairs { { reduction = "none" }, { reduction = "mean", zero_infinity = true }, { blank = 3 } } do
    add("CTCLoss, " .. (o.reduction or "another blank"), nn.CTCLoss(o), frames, spelled, ids { 6, 5, 3, 4 },
      ids { 3, 2, 3, 0 })
  end
  add("CTCLoss, f64, nothing spelled", nn.CTCLoss(), frames:double(), T.zeros({ 4, 0 }, { dtype = "i64" }),
    ids { 6, 0, 1, 2 }, ids { 0, 0, 0, 0 })
  add("MultiLabelMarginLoss", nn.MultiLabelMarginLoss(), rows, ids { { 1, 3, 0, 2, 2, 2 }, { 0, 1, 1, 1, 1, 1 },
    { 2, 3, 4, 5, 6, 1 } })
  add("linear_cross_entropy", class(function() end, function(_, x, w, t, b)
    return nn.F.linear_cross_entropy(x, w, t, { linear_bias = b, label_smoothing = 0.1, ignore_index = 2 })
  end), rows, T.randn(4, 6), ids { 1, 2, 4 }, T.randn(4))
  local nan, inf = 0 / 0, math.huge
  local odd = T.tensor { { 1.5, -0.0, -2.25, inf }, { 0.0, 1.5, nan, -inf }, { -0.5, 3, 1.5, 0.25 } }
  local function of(name, h, ...) add(name, class(function() end, function(_, ...) return h(...) end), ...) end
  of("signs", function(x, y)
    return x:frac(), x:nan_to_num():signbit():long(), y:copysign(x:nan_to_num()), x:nan_to_num { nan = 1, posinf = 2 },
      x:isnan():bitwise_not():long(), y:int():bitwise_not()
  end, odd, T.randn(3, 4) * 3)
  local ends = T.tensor { 0.0, -0.0, 1, -1, 3.5, -0.25, inf, -inf, nan, 1e30 }
  of("pairs of numbers", function(x, y)
    return T.atan2(x, y), T.hypot(x, y), T.fmax(x, y), T.fmin(x, y), T.xlogy(x, y), T.logaddexp(x, y)
  end, ends:unsqueeze(2), ends)
  of("pairs of numbers, f64", function(x, y) return T.hypot(x, y), T.logaddexp(x, y) end,
    ends:double():unsqueeze(2), ends:double())
  of("functions of one number", function(x) return x:sinc(), x:sigmoid():logit(), x:logit { eps = 0.1 } end, rows)
  of("medians", function(x, y)
    local a, i = x:median(2)
    local b, j = x:median(1, { keepdim = true })
    local c, k = y:kthvalue(3, 2)
    local d, l = x:kthvalue(2, 1)
    return x:median(), y:median(), a, i, b, j, c, k, d, l, y:nanmedian(1)
  end, odd, rows)
  of("integers divided", function(x, y)
    return x // y, x // 3, -x // T.tensor({ -4 }, { dtype = "i64" })
  end, T.arange(-7, 7), T.tensor({ 2, -2, 3, -3, 5, -5, 7, -7, 1, -1, 4, -4, 6, -6, 2 }, { dtype = "i64" }))
  of("numbers divided", function(x, y) return x // y, x % y end,
    T.tensor { 1, -1, 0.3, 7.5, -7.5, 0.6, 1e8, 0, 5, -0.7, 1.5, -1.5, 2, 0, inf },
    T.tensor { 0.1, 0.1, 0.1, 2.5, 2, 0.2, 3, -2, 1e-3, 0.1, -inf, inf, 0, 0, 2 })
  of("medians of integers", function(x)
    local a, i = x:median(2)
    return x:median(), a, i, x:cummax(2), x:count_nonzero(1), x:trace()
  end, T.tensor({ { 3, 1, 2, 0 }, { 5, 5, -1, 5 } }, { dtype = "i64" }))
  of("extremes so far", function(x)
    local a, i = x:cummax(2)
    local b, j = x:cummin(1)
    return a, i, b, j, x:cummin(2), x:flip(1):cummax(1)
  end, odd)
  of("sums so far", function(x) return x:logcumsumexp(1), x:nansum(2), x:count_nonzero(), x:nansum() end, odd)
  of("diagonals", function(x)
    return x:diagonal(), x:diagonal(1, 2, 3), x:diagonal(-2, -1, 1), x[1]:trace(), x[2]:diag(-1), x[1][1]:diag(2),
      T.diag_embed(x[1], -1), T.diag_embed(x[1], 1, 3, 1), x[2]:diag(5)
  end, T.randn(3, 4, 5))
  of("elements at places", function(x)
    local at = ids { { 1 }, { 3 }, { 2 } }
    return T.take_along_dim(x, at, 2), T.take_along_dim(x, ids { { 3, 1, 1, 2, 2, 1 } }, 1), x:take(ids { 1, 18, 7 }),
      T.take_along_dim(x:narrow(2, 1, 1), ids { { 1, 1 }, { 1, 1 }, { 1, 1 } }, 2), T.take_along_dim(x, at)
  end, rows)
  of("ranges", function(x) return x + T.linspace(-1, 2, 6), x * T.logspace(0, 1, 6) end, rows)
  of("orders with NaN", function(x)
    local a, i = x:sort(2)
    local b, j = x:sort(1, { descending = true })
    return a, i, b, j, x:argsort(1), (x:topk(2, 2))
  end, odd)
  for _, o in ipairs { {}, { stride = 2, padding = 1 }, { dilation = 2 }, { ceil_mode = true } } do
    local o2 = { return_indices = true, table.unpack(o) }
    for key, v in pairs(o) do o2[key] = v end
    of(("max_pool2d with places, %s"):format(next(o) or "plain"), function(x)
      return nn.F.max_pool2d(x, 3, o2)
    end, picture)
  end
  of("pools with places", function(x)
    local a, i = nn.F.adaptive_max_pool2d(x, 4, { return_indices = true })
    local b, j = nn.F.adaptive_max_pool2d(x, 1, { return_indices = true })
    local c, k = nn.F.max_pool2d(x[1], 2, { return_indices = true })
    local d, l = nn.F.max_pool1d(x[1], 3, { return_indices = true })
    return a, i, b, j, c, k, d, l, nn.F.max_unpool2d(c, k, 2)
  end, picture)
  add("cumprod", class(function() end, function(_, x) return x:cumprod(1), x:cumprod(2) end), rows)
  -- writes through views, and windows of any strides
  local function f(name, g) add(name, class(function() end, function(_, x) return g(x * 1) end), T.randn(5, 6)) end
  f("a row is written", function(y)
    y:narrow(1, 1, 1):copy_(y:narrow(1, 2, 1) * 2)
    return y
  end)
  f("columns are written in steps", function(y)
    y[{ { 1, 3, 2 }, { 2, 6, 2 } }] = y[{ { 1, 3, 2 }, { 1, 5, 2 } }] + 1
    y:t():select(1, 3):mul_(3)
    return y
  end)
  f("a diagonal is written, then a window of a window", function(y)
    y:diagonal():fill_(7)
    y:narrow(2, 2, 3):narrow(1, 1, 2):add_(1)
    return y
  end)
  f("windows of any strides", function(y)
    local w = y:as_strided({ 2, 2, 2 }, { 7, 2, 1 }, 3)
    y:as_strided({ 2, 2 }, { 7, 2 }):add_(1)
    return w, y
  end)
  return list
end

-- Models with free sizes: `others` are inputs of other sizes.
function M.free()
  local list = {}
  T.manual_seed(2)
  local function add(name, net, dynamic, x, ...)
    list[#list + 1] = { name = name, net = net, dynamic = { x = dynamic }, inputs = { x }, others = { ... } }
  end
  add("rows of a network", nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), { "batch" }, T.randn(3, 6),
    T.randn(1, 6), T.randn(7, 6))
  add("batch of a convolutional network", nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 2)), { "batch" }, T.randn(2, 4, 8, 8), T.randn(5, 4, 8, 8))
  add("pictures of any size", nn.Sequential(nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6), nn.GELU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten()), { "batch", [3] = "height", [4] = "width" }, T.randn(2, 4, 8, 8),
    T.randn(5, 4, 11, 9))
  add("text of any length", class(function(self)
    self.e, self.l = nn.Embedding(11, 6), nn.TransformerEncoderLayer { 6, 2, 12, batch_first = true }
  end, function(self, x) return self.l(self.e(x)) end), { "batch", "length" }, T.randint(1, 11, { 2, 5 }),
    T.randint(1, 11, { 3, 9 }), T.randint(1, 11, { 1, 2 }))
  add("causal attention with places", class(function(self)
    self.q, self.o = nn.Linear(6, 18), nn.Linear(6, 3)
  end, function(self, x)
    local b, l = x:size(1), x:size(2)
    local q = self.q(x):view(b, l, 3, 2, 3):permute { 3, 1, 4, 2, 5 }
    local y = nn.F.scaled_dot_product_attention(q[1], q[2], q[3], { is_causal = true })
    local places = T.arange(l):float():view(1, l, 1)
    return self.o(y:transpose(2, 3):reshape(b, l, 6) + places * 0.1)
  end), { "batch", "length" }, T.randn(2, 5, 6), T.randn(3, 8, 6))
  add("an LSTM", class(function(self) self.l = nn.LSTM { 6, 5, batch_first = true } end,
    function(self, x) return (self.l(x)) end), { "batch", "length" }, T.randn(2, 5, 6), T.randn(3, 8, 6))
  local function f(g) return class(function() end, function(_, x) return g(x) end) end
  -- sizes that a node's own rule gives: behind strides, joins, and what is made of these
  add("pictures of any size, in strides", nn.Sequential(nn.Conv2d(4, 6, 3, { stride = 2, padding = 1 }), nn.ReLU(),
    nn.MaxPool2d(2), nn.ChannelShuffle(2), nn.GroupNorm(2, 6), nn.AvgPool2d(3, { stride = 2 }), nn.Flatten(3)),
    { "batch", [3] = "height", [4] = "width" }, T.randn(2, 4, 17, 16), T.randn(5, 4, 24, 29), T.randn(1, 4, 16, 31))
  add("sums and joins of sizes", f(function(x)
    local y = T.cat({ x, x:t()[{ {}, { 1, 2 } }]:sum() * T.ones(2, x:size(2)), x }, 1)
    local z = nn.F.max_pool1d(y:unsqueeze(1), { kernel_size = 3, stride = 2 }):squeeze(1)
    return z + T.zeros_like(z):fill_(2), y:reshape(-1), T.zeros(z:size(1), z:size(2)) + z:mean(1), x:reshape(-1)
  end), { "n", "m" }, T.randn(4, 6), T.randn(7, 5), T.randn(2, 8))
  local at = T.tensor({ 1, 3 }, { dtype = "i64" })
  add("slices at places", f(function(x)
    return x:index_fill(1, at, 2.5), x:index_fill(2, at, 7), x:index_copy(1, at, x:narrow(1, 1, 2) * 2),
      x:index_add(2, at, x:narrow(2, 1, 2), { alpha = 3 })
  end), { "n", "m" }, T.randn(4, 6), T.randn(7, 5), T.randn(3, 9))
  add("numbers that follow sizes", f(function(x)
    return x:triu(x:size(1) - 3), x:clamp { max = x:size(2) - 5 }, nn.F.layer_norm(x, { x:size(2) }), x:sum():flip(1)
  end), { "n", "m" }, T.randn(4, 6), T.randn(7, 5), T.randn(3, 9))
  add("parts that begin at sizes", f(function(x)
    local n, m = x:size(1), x:size(2)
    return x:narrow(1, n - 1, 2), x:narrow(2, m - 2, 1) * 2, x:narrow(1, 2, n - 1), T.cat({ x, x }, 1):narrow(1, n, n),
      T.cat({ x, x }, 2)[{ {}, { m, 2 * m } }]
  end), { "n", "m" }, T.randn(4, 6), T.randn(7, 8), T.randn(3, 10))
  add("moments over them", f(function(x)
    return x:var(1), x:std { 1, 2 }, x:var(2, { correction = 0 }), x:var({ 2 }, { keepdim = true })
  end), { "n", "m" }, T.randn(4, 6), T.randn(7, 5), T.randn(3, 9))
  add("writes of a whole tensor", f(function(x)
    local y = x * 1
    y:mul_(2)
    y:narrow(1, 1, x:size(1)):add_(1)
    return y
  end), { "n" }, T.randn(4, 6), T.randn(7, 6))
  return list
end

return M
