-- SPDX-License-Identifier: MIT
-- Modules against PyTorch: spec/fixtures/modules.py wrote the states, inputs and outputs. Each state loads by name,
-- with PyTorch's names for children, and gives the same outputs.

local T = require "perilune"
local nn = T.nn

local path = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/modules.safetensors"

-- Pooling at the places that the fixture gives; its indices count from 0.
local function fractional(kind, kernel, opts)
  return { nn.Identity(), function(_, x, u)
    opts._random_samples = u
    local y, where = nn["FractionalMaxPool" .. kind](kernel, opts)(x)
    return y, where and where - 1
  end }
end

local function smooth(opts)
  opts.antialias = true
  return { nn.Identity(), function(_, x) return nn.F.interpolate(x, opts) end }
end

-- A recurrent layer over padded sequences of given lengths.
local function packed(module, sorted)
  return { module, function(m, x, lengths)
    local y, state = m(nn.utils.rnn.pack_padded_sequence(x, lengths, { enforce_sorted = sorted }))
    local out, n = nn.utils.rnn.pad_packed_sequence(y, { padding_value = 0.5 })
    return out, n, state
  end }
end

-- case → how the module is made here; a second entry is how it is called.
local function build()
  return {
    linear = { nn.Linear(4, 3) },
    linear_plain = { nn.Linear(4, 3, { bias = false }) },
    bilinear = { nn.Bilinear(3, 4, 2) },
    conv1d = { nn.Conv1d(4, 6, 3, { stride = 2, padding = 1, groups = 2 }) },
    conv2d = { nn.Conv2d(3, 4, { 3, 2 }, { padding = 1, dilation = { 1, 2 } }) },
    conv2d_same = { nn.Conv2d(2, 2, 3, { padding = "same" }) },
    conv3d = { nn.Conv3d(2, 3, 2, { stride = 2 }) },
    conv_transpose1d = { nn.ConvTranspose1d(4, 6, 3, { stride = 2, padding = 1, output_padding = 1, groups = 2 }) },
    conv_transpose2d = { nn.ConvTranspose2d(3, 2, { 3, 2 }, { stride = { 2, 1 }, dilation = 2 }) },
    conv_transpose3d = { nn.ConvTranspose3d(2, 3, 2, { stride = 2, bias = false }) },
    embedding = { nn.Embedding(7, 3, { index_base = 0 }) },
    layer_norm = { nn.LayerNorm { 3, 4 } },
    rms_norm = { nn.RMSNorm(4, { eps = 1e-5 }) },
    group_norm = { nn.GroupNorm(2, 4) },
    batch_norm1d = { nn.BatchNorm1d(4) },
    batch_norm2d = { nn.BatchNorm2d(3) },
    batch_norm3d = { nn.BatchNorm3d(2, { affine = false }) },
    instance_norm1d = { nn.InstanceNorm1d(3, { affine = true }) },
    instance_norm2d = { nn.InstanceNorm2d(3, { affine = true, track_running_stats = true }) },
    instance_norm3d = { nn.InstanceNorm3d(2) },
    prelu = { nn.PReLU(3) },
    rnn = { nn.RNN(3, 4, 2) },
    rnn_relu = { nn.RNN(3, 4, { nonlinearity = "relu", bias = false }) },
    lstm = { nn.LSTM(3, 4, 2, { bidirectional = true }) },
    lstm_batch_first = { nn.LSTM(3, 4, { batch_first = true }) },
    gru = { nn.GRU(3, 4, 2, { bidirectional = true, batch_first = true }) },
    gru_plain = { nn.GRU(3, 4, { bias = false }) },
    rnn_cell = { nn.RNNCell(3, 4) },
    lstm_cell = { nn.LSTMCell(3, 4) },
    gru_cell = { nn.GRUCell(3, 4) },
    attention = { nn.MultiheadAttention(8, 2),
      function(m, q, k, v) return m(q, k, v, { need_weights = true }) end },
    attention_dims = { nn.MultiheadAttention(8, 2, { kdim = 5, vdim = 6, batch_first = true }),
      function(m, q, k, v) return m(q, k, v, { need_weights = true }) end },
    encoder_layer = { nn.TransformerEncoderLayer(8, 2, 16) },
    encoder_layer_first = { nn.TransformerEncoderLayer(8, 2, 16,
      { activation = "gelu", batch_first = true, norm_first = true }) },
    decoder_layer = { nn.TransformerDecoderLayer(8, 2, 16) },
    encoder = { nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, nn.LayerNorm(8)) },
    decoder = { nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2) },
    upsample = { nn.Upsample { scale_factor = 1.5, mode = "bilinear" } },
    upsample_bicubic = { nn.Upsample { size = { 5, 7 }, mode = "bicubic", align_corners = true } },
    pixel_shuffle = { nn.PixelShuffle(2) },
    pixel_unshuffle = { nn.PixelUnshuffle(2) },
    local_response_norm = { nn.LocalResponseNorm(3, { alpha = 0.1 }) },
    lp_pool2d = { nn.LPPool2d(2, 2, { stride = 1 }) },
    fold = { nn.Fold({ 4, 5 }, { 2, 2 }, { padding = 1 }) },
    unfold = { nn.Unfold({ 2, 3 }, { stride = 2, padding = 1 }) },
    sequential = { nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 2), nn.Sigmoid())) },
    max_pool2d = { nn.MaxPool2d(3, { stride = 2, padding = 1 }) },
    avg_pool2d = { nn.AvgPool2d(2, { ceil_mode = true }) },
    embedding_bag_sum = { nn.EmbeddingBag(7, 3, { mode = "sum", index_base = 0 }) },
    embedding_bag_mean = { nn.EmbeddingBag(7, 3, { padding_idx = 1, index_base = 0 }) },
    embedding_bag_max = { nn.EmbeddingBag(7, 3, { mode = "max", index_base = 0 }) },
    embedding_bag_last = { nn.EmbeddingBag(7, 3, { include_last_offset = true, index_base = 0 }) },
    transformer = { nn.Transformer(8, 2, 2, 1, 16) },
    transformer_first = { nn.Transformer(8, 2, 1, 2, 16,
      { activation = "gelu", batch_first = true, norm_first = true }) },
    lazy_linear = { nn.LazyLinear(3) },
    lazy_conv2d = { nn.LazyConv2d(6, 3, { groups = 2 }) },
    lazy_conv_transpose1d = { nn.LazyConvTranspose1d(2, 3) },
    lazy_batch_norm2d = { nn.LazyBatchNorm2d() },
    lazy_instance_norm1d = { nn.LazyInstanceNorm1d { affine = true } },
    weight_norm = { nn.utils.weight_norm(nn.Linear(4, 3)) },
    weight_norm_dim = { nn.utils.weight_norm(nn.Conv1d(4, 3, 2), { dim = 2 }) },
    weight_norm_all = { nn.utils.weight_norm(nn.Linear(4, 3), "weight", false) },
    spectral_norm = { nn.utils.spectral_norm(nn.Conv2d(2, 3, 2)) },
    spectral_norm_transposed = { nn.utils.spectral_norm(nn.ConvTranspose2d(2, 3, 2)) },
    max_unpool1d = { nn.MaxUnpool1d(2, { index_base = 0 }) },
    max_unpool2d = { nn.MaxUnpool2d(2, { index_base = 0 }) },
    max_unpool3d = { nn.MaxUnpool3d(2, { index_base = 0 }) },
    rrelu = { nn.RReLU(0.1, 0.5) },
    alpha_dropout = { nn.AlphaDropout(0.4) },
    parameter_list = { nn.ParameterList { T.zeros(2), T.zeros(3) }, function() return T.zeros(1) end },
    parameter_dict = { nn.ParameterDict { a = T.zeros(2), b = T.zeros(3) }, function() return T.zeros(1) end },
    fused_conv = { nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3)),
      function(m, x) return nn.utils.fuse_conv_bn_eval(m[1], m[2])(x) end },
    zero_pad2d = { nn.ZeroPad2d { 1, 2, 0, 1 } },
    reflection_pad3d = { nn.ReflectionPad3d(1) },
    replication_pad2d = { nn.ReplicationPad2d { 2, 1, 1, 0 } },
    circular_pad1d = { nn.CircularPad1d(2) },
    constant_pad1d = { nn.ConstantPad1d({ 1, 2 }, 0.5) },
    channel_shuffle = { nn.ChannelShuffle(2) },
    softmax2d = { nn.Softmax2d() },
    cosine_similarity = { nn.CosineSimilarity { dim = 2 } },
    pairwise_distance = { nn.PairwiseDistance { p = 1 } },
    adaptive_max_pool2d = { nn.AdaptiveMaxPool2d { 2, 3 } },
    lp_pool1d = { nn.LPPool1d(2, 3) },
    glu = { nn.GLU() },
    unflatten = { nn.Unflatten(2, { 2, 3 }) },
    lstm_proj = { nn.LSTM(3, 5, 2, { bidirectional = true, proj_size = 2 }) },
    adaptive_log_softmax = { nn.AdaptiveLogSoftmaxWithLoss(8, 20, { 5, 11 },
      { div_value = 2, head_bias = true, index_base = 0 }) },
    adaptive_log_prob = { nn.AdaptiveLogSoftmaxWithLoss(6, 9, { 4 }), function(m, x) return m:log_prob(x) end },
    adaptive_predict = { nn.AdaptiveLogSoftmaxWithLoss(6, 9, { 4 }, { index_base = 0 }),
      function(m, x) return m:predict(x) end },
    fractional_max_pool2d = fractional("2d", { 2, 3 }, { output_size = { 4, 5 }, return_indices = true }),
    fractional_max_pool2d_ratio = fractional("2d", 2, { output_ratio = 0.6 }),
    fractional_max_pool3d = fractional("3d", { 2, 3, 2 }, { output_size = { 3, 4, 5 }, return_indices = true }),
    fractional_max_pool3d_ratio = fractional("3d", 2, { output_ratio = 0.6 }),
    antialias_bilinear = smooth { mode = "bilinear", size = { 3, 14 } },
    antialias_bilinear_factor = smooth { mode = "bilinear", scale_factor = { 0.4, 0.7 } },
    antialias_bilinear_corners = smooth { mode = "bilinear", size = { 3, 4 }, align_corners = true },
    antialias_bicubic = smooth { mode = "bicubic", size = { 3, 14 } },
    antialias_bicubic_factor = smooth { mode = "bicubic", scale_factor = { 0.4, 0.7 } },
    antialias_bicubic_corners = smooth { mode = "bicubic", size = { 3, 4 }, align_corners = true },
    packed_lstm = packed(nn.LSTM(3, 4, 2, { bidirectional = true }), false),
    packed_gru = packed(nn.GRU(3, 4, 2, { bidirectional = true }), true),
    packed_rnn = packed(nn.RNN(3, 4), false),
    packed_lstm_proj = packed(nn.LSTM(3, 5, { bidirectional = true, proj_size = 2 }), false),
    adaptive_avg_pool2d = { nn.AdaptiveAvgPool2d { 2, 3 } },
  }
end

-- The file as { case = { state = {name = tensor}, inputs = {…}, outputs = {…} } }.
local function fixtures()
  local cases = {}
  local device = T.zeros(1):device() -- not that of what was loaded, under PERILUNE_TEST_DEVICE=moved
  for key, t in pairs(assert(T.load(path))) do
    local case, kind, name = key:match("^([^/]+)/(%a+)/(.+)$")
    local c = cases[case] or { state = {}, ["in"] = {}, out = {} }
    cases[case] = c
    c[kind][kind ~= "state" and math.tointeger(tonumber(name)) or name] = t:to(device)
  end
  return cases
end

-- Tensors of a list of results, lists among them opened.
local function flat(list, out)
  out = out or {}
  for i = 1, #list do
    if type(list[i]) == "table" then flat(list[i], out) else out[#out + 1] = list[i] end
  end
  return out
end

local function run(name, case, make)
  local module, call = make[1]:eval(), make[2]
  module:load_state_dict(case.state, { index_base = 0 })
  local got
  if call then
    got = { call(module, table.unpack(case["in"])) }
  else
    got = { module(table.unpack(case["in"])) }
  end
  got = flat(got)
  for k, want in ipairs(case.out) do
    assert(got[k], name .. ": output " .. k .. " is missing")
    assert.same(want:shape(), got[k]:shape(), name)
    local far = (got[k]:detach():cpu() - want:cpu()):abs():max():item()
    assert(far <= 2e-5 * math.max(1, want:abs():max():item()), ("%s: output %d is off by %g"):format(name, k, far))
  end
end

describe("states that PyTorch saved", function()
  it("load by name and give the same outputs, in 100 kinds of modules", function()
    local cases, n, failed = fixtures(), 0, {}
    local makers = build()
    for name, case in pairs(cases) do
      if not makers[name] then
        failed[#failed + 1] = name .. ": no module"
      else
        local ok, why = pcall(run, name, case, makers[name])
        if not ok then failed[#failed + 1] = name .. ": " .. tostring(why) end
        n = n + 1
      end
    end
    table.sort(failed)
    assert.same({}, failed)
    assert.is_true(n >= 100)
  end)
end)
