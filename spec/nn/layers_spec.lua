-- SPDX-License-Identifier: MIT
-- What layers and losses compute, and what cannot be seen from outputs alone: layers in training, gradients of
-- embeddings, lazy layers, nn.utils (weight_norm, spectral_norm, functional_call, fusion), inplace=true.

local T = require "perilune"
local near = require "spec.support.near"
local nn, F = T.nn, T.nn.F
local eq, fails = near.near, near.fails

describe("layers compute", function()
  it("Linear", function()
    local m = nn.Linear(3, 2)
    local x = T.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    eq(m(x), x:matmul(m.weight:t()) + m.bias, 1e-5)
    assert.same({ 5, 4, 2 }, m(T.ones(5, 4, 3)):shape())
  end)

  it("Bilinear", function()
    local m = nn.Bilinear(2, 3, 2)
    local x, y = T.tensor { { 1, 2 } }, T.tensor { { 3, 4, 5 } }
    local want = {}
    for k = 1, 2 do
      want[k] = x:matmul(m.weight:select(1, k)):matmul(y:t()):item() + m.bias:get(k)
    end
    eq(m(x, y), want, 1e-5)
  end)

  it("Conv1d, Conv2d, Conv3d", function()
    local c1 = nn.Conv1d(1, 1, 3, { padding = 1 })
    c1:load_state_dict { weight = T.tensor { { { 1, 2, 3 } } }, bias = T.tensor { 10 } }
    eq(c1(T.tensor { { { 1, 2, 3, 4 } } }), { 18, 24, 30, 21 })
    local c2 = nn.Conv2d(1, 2, 2, { stride = 2, bias = false })
    c2:load_state_dict { weight = T.tensor { { { { 1, 0 }, { 0, 1 } } }, { { { 0, 1 }, { 1, 0 } } } } }
    local x = T.arange(16):to("f32"):view(1, 1, 4, 4)
    eq(c2(x), { 7, 11, 23, 27, 7, 11, 23, 27 })
    assert.same({ 2, 4, 3, 3, 3 }, nn.Conv3d(1, 4, 2)(T.ones(2, 1, 4, 4, 4)):shape())
    assert.same({ 2, 4, 5, 5 }, nn.Conv2d(1, 4, 3, { padding = "same" })(T.ones(2, 1, 5, 5)):shape())
  end)

  it("norms without values: running statistics stay, batches are counted", function()
    for _, m in ipairs {
      nn.BatchNorm1d(2), nn.BatchNorm2d { 2, momentum = false }, nn.InstanceNorm1d { 2, track_running_stats = true },
    } do
      local shape = ({ BatchNorm1d = { 0, 2 }, BatchNorm2d = { 0, 2, 3, 3 }, InstanceNorm1d = { 0, 2, 3 } })[m:type()]
      assert.same(shape, m(T.zeros(shape)):shape())
      eq(m.running_mean, { 0, 0 })
      eq(m.running_var, { 1, 1 })
    end
  end)

  it("norms with a weight alone", function()
    for _, make in ipairs {
      function(o) return nn.BatchNorm2d { 4, bias = o } end, function(o) return nn.GroupNorm { 2, 4, bias = o } end,
      function(o) return nn.InstanceNorm2d { 4, affine = true, bias = o } end,
    } do
      local plain, with = make(false), make(true)
      local x = T.randn(2, 4, 3, 3)
      assert.is_nil(plain.bias)
      eq(plain(x), with(x), 1e-6)
      assert.equal(1, #plain:parameters())
    end
  end)

  it("LSTM with proj_size=0 has no projection", function()
    assert.equal(4, #nn.LSTM { 3, 5, proj_size = 0 }:parameters())
    fails("proj_size must be at least 0", nn.LSTM, 3, 5, { proj_size = -1 })
  end)

  it("pooling", function()
    local x = T.arange(16):to("f32"):view(1, 1, 4, 4)
    eq(nn.MaxPool2d(2)(x), { 6, 8, 14, 16 })
    eq(nn.MaxPool2d { 3, stride = 1 }(x), { 11, 12, 15, 16 })
    eq(nn.AvgPool2d(2)(x), { 3.5, 5.5, 11.5, 13.5 })
    eq(nn.AdaptiveAvgPool2d(1)(x), { 8.5 })
    eq(nn.AdaptiveAvgPool2d({ 1, 2 })(x), { 7.5, 9.5 })
    eq(nn.MaxPool1d(2)(x:view(1, 4, 4)), { 2, 4, 6, 8, 10, 12, 14, 16 })
    assert.same({ 1, 1, 2, 2, 2 }, nn.MaxPool3d(2)(T.ones(1, 1, 4, 4, 4)):shape())
    local y, at = nn.MaxPool2d(2, { return_indices = true })(x)
    eq(y, { 6, 8, 14, 16 })
    eq(at, { 6, 8, 14, 16 })
  end)

  it("Embedding, with a row that stays zero", function()
    local m = nn.Embedding(4, 3, { padding_idx = 2 })
    eq(m.weight:select(1, 2), 0)
    local y = m(T.tensor({ { 1, 2 }, { 4, 4 } }, { dtype = "i64" }))
    assert.same({ 2, 2, 3 }, y:shape())
    eq(y[1][1], m.weight[1])
    y:sum():backward()
    eq(m.weight.grad, { { 1, 1, 1 }, { 0, 0, 0 }, { 0, 0, 0 }, { 2, 2, 2 } })
    local m0 = nn.Embedding(2, 1, { index_base = 0 })
    eq(m0(T.tensor({ 1, 0 }, { dtype = "i64" })), { m0.weight:get(2, 1), m0.weight:get(1, 1) })
    fails("padding_idx 5", nn.Embedding, 4, 3, 5)
  end)

  it("LayerNorm, RMSNorm, GroupNorm", function()
    local x = T.tensor { { 1, 2, 3, 4 }, { 2, 4, 6, 8 } }
    local s = 1 / math.sqrt(1.25 + 1e-5)
    eq(nn.LayerNorm(4)(x)[1], { -1.5 * s, -0.5 * s, 0.5 * s, 1.5 * s }, 1e-5)
    local r = 1 / math.sqrt(7.5)
    eq(nn.RMSNorm(4, { eps = 0 })(x)[1], { r, 2 * r, 3 * r, 4 * r }, 1e-5)
    local g = nn.GroupNorm(2, 4, { eps = 0.0 })(x)
    eq(g, { { -1, 1, -1, 1 }, { -1, 1, -1, 1 } }, 1e-4)
  end)

  it("BatchNorm, in training and evaluation", function()
    local m = nn.BatchNorm1d(2)
    local x = T.tensor { { 1, 10 }, { 3, 30 } }
    eq(m(x), { { -1, -1 }, { 1, 1 } }, 1e-4)
    eq(m.running_mean, { 0.2, 2 })
    eq(m.running_var, { 0.9 + 0.1 * 2, 0.9 + 0.1 * 200 }, 1e-5)
    assert.equal(1, m.num_batches_tracked:item())
    m:eval()
    local y = m(x)
    eq(y[1][1], (1 - 0.2) / math.sqrt(1.1 + 1e-5), 1e-5)
    eq(m.running_mean, { 0.2, 2 })
    assert.same({ "weight", "bias", "running_mean", "running_var", "num_batches_tracked" }, (function()
      local names = {}
      for name in pairs(m:state_dict()) do names[#names + 1] = name end
      return names
    end)())
    local average = nn.BatchNorm1d(2, { momentum = false })
    average(x)
    average(x * 3)
    eq(average.running_mean, { 4, 40 }, 1e-5)
    assert.same({ 2, 3, 4, 4 }, nn.BatchNorm2d(3)(T.randn(2, 3, 4, 4)):shape())
    fails("must be [N, C, H, W], got 2-d", nn.BatchNorm2d(3), T.ones(2, 3))
    fails("has 4 features in dimension 2, the layer 3", nn.BatchNorm1d(3), T.ones(2, 4))
  end)

  it("Dropout, in training only", function()
    T.manual_seed(3)
    local m = nn.Dropout(0.25)
    local x = T.ones(4000)
    local y = m(x)
    local zeros = y:eq(0):sum():item()
    assert.is_true(zeros > 880 and zeros < 1120, zeros)
    eq(y:max(), 1 / 0.75)
    assert.is_true(m:eval()(x) == x)
    eq(nn.Dropout(1.0)(x), 0)
    local z = nn.Dropout2d(0.5)(T.ones(10, 20, 3, 3)):sum { dim = { 3, 4 } }
    assert.is_true((z:eq(0) + z:eq(18)):all():item() and z:eq(0):any():item())
    z = nn.Dropout2d(0.5)(T.ones(10, 20, 3)):sum(3) -- [N, C, L], as in PyTorch
    assert.is_true((z:eq(0) + z:eq(6)):all():item() and z:sum(2):gt(0):all():item())
  end)

  it("Flatten, Unflatten, Identity", function()
    assert.same({ 2, 12 }, nn.Flatten()(T.ones(2, 3, 4)):shape())
    assert.same({ 24 }, nn.Flatten(1)(T.ones(2, 3, 4)):shape())
    assert.same({ 2, 3, 4 }, nn.Unflatten(2, { 3, -1 })(T.ones(2, 12)):shape())
  end)

  it("activations", function()
    local x = T.tensor { -2, -0.5, 0, 1.5 }
    eq(nn.ReLU()(x), { 0, 0, 0, 1.5 })
    eq(nn.LeakyReLU(0.1)(x), { -0.2, -0.05, 0, 1.5 })
    eq(nn.ELU()(x), { math.exp(-2) - 1, math.exp(-0.5) - 1, 0, 1.5 })
    eq(nn.Hardtanh(-1, 1)(x), { -1, -0.5, 0, 1 })
    eq(nn.Softplus()(x), F.softplus(x))
    eq(nn.Sigmoid()(x), x:sigmoid())
    eq(nn.GELU("tanh")(T.tensor { 1 }), 0.841192, 1e-5)
    eq(nn.GELU()(T.tensor { 1 }), 0.8413447, 1e-5)
    eq(nn.Softmax()(x):sum(), 1)
    eq(nn.LogSoftmax(1)(x):exp():sum(), 1)
    eq(nn.Softmin()(x), nn.Softmax()(-x))
    eq(nn.GLU()(x), { -2 * 0.5, -0.5 / (1 + math.exp(-1.5)) })
    eq(nn.PReLU()(x), { -0.5, -0.125, 0, 1.5 })
    for _, name in ipairs { "ReLU6", "Tanh", "SiLU", "Mish", "SELU", "CELU", "Softsign", "Tanhshrink",
      "Hardswish",
      "Hardsigmoid", "LogSigmoid", "Hardshrink", "Softshrink" } do
      assert.same({ 4 }, nn[name]()(x):shape(), name)
    end
  end)
end)

describe("losses", function()
  local x, y
  before_each(function()
    x = T.tensor { { 1, 2, 3 }, { 3, 2, 1 } }
    y = T.tensor({ 3, 3 }, { dtype = "i64" })
  end)
  after_each(function() x, y = nil, nil end)

  it("cross entropy and its options", function()
    local z = math.log(math.exp(1) + math.exp(2) + math.exp(3))
    eq(nn.CrossEntropyLoss()(x, y), ((z - 3) + (z - 1)) / 2, 1e-5)
    eq(nn.CrossEntropyLoss { reduction = "none" }(x, y), { z - 3, z - 1 }, 1e-5)
    eq(nn.CrossEntropyLoss { index_base = 0 }(x, y - 1), ((z - 3) + (z - 1)) / 2, 1e-5)
    local w = T.tensor { 1, 1, 4 }
    eq(nn.CrossEntropyLoss { weight = w, reduction = "sum" }(x, y), 4 * (z - 3 + z - 1), 1e-5)
    eq(nn.NLLLoss()(x:log_softmax(-1), y), ((z - 3) + (z - 1)) / 2, 1e-5)
    eq(F.cross_entropy(x, y, { label_smoothing = 0.3 }),
      ((0.7 * (z - 3) + 0.3 * (z - 2)) + (0.7 * (z - 1) + 0.3 * (z - 2))) / 2, 1e-5)
    fails("reduction", nn.CrossEntropyLoss, { reduction = "avg" })
    assert.is_false(pcall(nn.CrossEntropyLoss(), x, y + 1))
    assert.is_false(pcall(nn.CrossEntropyLoss(), x, y - 3))
  end)

  it("regression and binary losses", function()
    local a, b = T.tensor { 0, 1, 4 }, T.tensor { 0.5, 1, 1 }
    eq(nn.MSELoss()(a, b), (0.25 + 9) / 3)
    eq(nn.L1Loss { reduction = "sum" }(a, b), 3.5)
    eq(nn.SmoothL1Loss { reduction = "none" }(a, b), { 0.125, 0, 2.5 })
    eq(nn.HuberLoss { reduction = "none", delta = 2.0 }(a, b), { 0.125, 0, 2 * (3 - 1) })
    local p, t = T.tensor { 0.25, 0.5 }, T.tensor { 1, 0 }
    eq(nn.BCELoss()(p, t), -(math.log(0.25) + math.log(0.5)) / 2, 1e-5)
    eq(nn.BCEWithLogitsLoss { reduction = "none" }(T.tensor { 0.0, 2.0 }, t), { math.log(2),
      math.log(1 + math.exp(2)) },
      1e-5)
    eq(nn.BCEWithLogitsLoss { pos_weight = T.tensor { 3.0, 3.0 }, reduction = "sum" }(T.tensor { 0.0, 0.0 },
      t),
      4 * math.log(2), 1e-5)
    local q = T.tensor { { 0.5, 0.5 } }
    eq(nn.KLDivLoss("batchmean")(T.tensor { { 0.25, 0.75 } }:log(), q),
      0.5 * math.log(2) + 0.5 * math.log(2 / 3), 1e-5)
  end)

  it("composed ones", function()
    eq(F.cosine_similarity(T.tensor { { 1, 0 } }, T.tensor { { 1, 1 } }), math.sqrt(0.5), 1e-5)
    eq(F.normalize(T.tensor { { 3, 4 } }), { 0.6, 0.8 }, 1e-6)
    eq(F.margin_ranking_loss(T.tensor { 1.0 }, T.tensor { 2.0 }, T.tensor { 1 }, { margin = 0.5 }), 1.5)
    eq(F.soft_margin_loss(T.tensor { 0.0 }, T.tensor { 1 }), math.log(2), 1e-6)
  end)
end)

describe("in training", function()
  it("AlphaDropout keeps mean and variance", function()
    T.manual_seed(3)
    local x = T.randn(40000)
    for _, p in ipairs { 0.1, 0.5 } do
      local y = nn.AlphaDropout(p)(x)
      eq(y:mean(), { 0 }, 0.05)
      eq(y:std(), { 1 }, 0.05)
      local limit = -1.7580993408473766
      local dropped = limit * (1 - p) / math.sqrt((1 - p) * (1 + p * limit * limit))
      assert.is_true(math.abs((y - dropped):abs():lt(1e-5):double():mean():item() - p) < 0.02)
    end
    local z = nn.FeatureAlphaDropout(0.5)(T.ones(50, 4, 3))
    eq(z:std(3, { correction = 0 }):max(), { 0 }, 1e-6) -- whole channels
    assert.is_true(z:min():item() < 0)
    eq(nn.AlphaDropout(0.5):eval()(T.ones(2)), { 1, 1 })
    fails("p must be a number from 0 to 1", nn.AlphaDropout, 2)
  end)

  it("RReLU draws slopes", function()
    T.manual_seed(4)
    local y = nn.RReLU(0.2, 0.4)(T.full({ 1000 }, -1.0))
    assert.is_true(y:min():item() >= -0.4 and y:max():item() <= -0.2 and y:std():item() > 0.04)
    eq(nn.RReLU(0.2, 0.4):eval()(T.tensor { -1, 2 }), { -0.3, 2 })
    local x = T.tensor { -1, 2 }:requires_grad_()
    local z = nn.F.rrelu(x, 0.2, 0.4, true)
    z:sum():backward()
    eq(x.grad, { -z:get(1), 1 })
    fails("lower 3 is above upper", nn.RReLU, 3, 1)
  end)
end)

describe("stacks of a Transformer's layers", function()
  it("are copies of the layer as it is: dtype, mode, what is frozen, what was replaced", function()
    for kind, args in pairs { Encoder = 1, Decoder = 2 } do
      local layer = nn["Transformer" .. kind .. "Layer"](8, 2, 16, { dropout = 0.5, activation = "gelu" })
      layer.norm1 = nn.RMSNorm(8)
      layer.dropout.p = 0.25
      layer.linear1.weight:requires_grad_(false)
      layer:double():eval()
      local net = nn["Transformer" .. kind](layer, 2)
      local x = T.randn({ 3, 2, 8 }, { dtype = "f64" })
      local function run(f) return f(x, args == 2 and x or nil) end
      assert.is_true(run(net):equal(run(function(a, b) return layer(layer(a, b), b) end)))
      for _, copy in ipairs(net.layers) do
        assert.equal("f64", copy.linear2.weight:dtype())
        assert.is_false(copy.linear1.weight.requires_grad)
        assert.is_true(copy.linear2.weight.requires_grad)
        assert.is_false(rawequal(copy.linear2.weight, layer.linear2.weight))
        assert.equal(0.25, copy.dropout.p)
        assert.is_false(copy.training)
      end
    end
  end)
end)

it("what a script registers, assigns or leaves out beside the options of a layer stays or counts", function()
  local lazy = nn.LazyLinear(3)
  lazy:register_buffer("extra", T.ones(2))
  lazy(T.ones(1, 4))
  assert.is_not_nil(lazy:state_dict().extra)
  local loss = nn.CrossEntropyLoss()
  loss.weight = T.tensor { 1, 2 }
  loss:to "f64"
  assert.equal("f64", loss.weight:dtype())
  assert.is_not_nil(loss:state_dict().weight)
  local Own = nn.class("Own", nn.GELU)
  function Own:init() end
  assert.is_true(Own()(T.ones(1)):equal(nn.GELU()(T.ones(1))))
end)

describe("EmbeddingBag", function()
  local ids = T.tensor({ 1, 2, 2, 3 }, { dtype = "i64" })
  after_each(function() collectgarbage() end)

  it("names what does not fit", function()
    local m = nn.EmbeddingBag(3, 2)
    local i64 = { dtype = "i64" }
    fails("ids [n] need offsets", m, ids)
    fails("the first offset must be 1", m, ids, T.tensor({ 2 }, i64))
    fails("offsets must not decrease", m, ids, T.tensor({ 1, 4, 2 }, i64))
    fails("offsets must not decrease, nor be behind", m, ids, T.tensor({ 1, 9 }, i64))
    fails("ids must be integers", m, T.ones(2, 2))
    fails("per_sample_weights go with mode", m, ids:view(2, 2), nil, T.ones(2, 2))
    fails("unknown mode", nn.EmbeddingBag, 3, 2, { mode = "min" })
    assert.same({ 2, 2 }, m(ids:view(2, 2)):shape())
  end)
  teardown(function() ids = nil end)
end)

describe("F.embedding with max_norm", function()
  it("scales the rows that it reads in T.jit as it is written, at each call", function()
    local ids = T.tensor({ { 1, 3, 3 }, { 2, 1, 2 } }, { dtype = "i64" })
    for _, norm_type in ipairs { 1, 2 } do
      local a = T.arange(12):float():view(4, 3):sin() * 3
      local b = a:clone()
      local function f(i, w) return F.embedding(i, w, { max_norm = 1, norm_type = norm_type }) end
      local g = T.jit(f)
      for row = 1, 2 do
        assert.same(f(ids[row], a):totable(), g(ids[row], b):totable())
        assert.same(a:totable(), b:totable())
      end
    end
  end)
end)

describe("F.embedding with scale_grad_by_freq", function()
  it("divides the gradient of each row by its count", function()
    for base = 0, 1 do
      local w = T.ones(4, 2):requires_grad_()
      local ids = T.tensor({ { 1, 3, 3 }, { 3, 1, 2 } }, { dtype = "i64" }) - (1 - base)
      local y = F.embedding(ids, w, { scale_grad_by_freq = true, index_base = base })
      assert.same({ 2, 3, 2 }, y:shape())
      y:sum():backward()
      assert.same({ { 1, 1 }, { 1, 1 }, { 1, 1 }, { 0, 0 } }, w.grad:totable())
      local traced = T.jit(T.grad(function(v)
        return F.embedding(ids, v, { scale_grad_by_freq = true, index_base = base }):sum()
      end))
      assert.same(w.grad:totable(), traced(w:detach()):totable())
      w.grad = nil
      F.embedding(ids, w, { index_base = base }):sum():backward()
      assert.same({ { 2, 2 }, { 1, 1 }, { 3, 3 }, { 0, 0 } }, w.grad:totable())
    end
  end)
end)

describe("lazy layers", function()
  it("become plain ones at their first call", function()
    local net = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(2))
    fails("1: LazyConv1d has no parameters yet", net.parameters, net)
    assert.same({ 5, 2 }, net(T.rand(5, 3, 6)):shape())
    assert.equal("Conv1d", net[1]:type())
    assert.equal(3, net[1].in_channels)
    assert.equal(16, net[4].in_features)
    assert.equal(6, #net:parameters())
    net:train(false)
    local twin = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(2)):eval()
    twin:load_state_dict(net:state_dict())
    local x = T.rand(2, 3, 6)
    eq(twin(x):detach(), net(x):detach(), 0)
    assert.is_false(twin[2].training)
    fails("out_features is missing", nn.LazyLinear)
    fails("no dimension of channels", nn.LazyConv2d(1, 1), T.ones(3))
  end)
end)

describe("nn.utils.", function()
  it("weight_norm trains length and direction", function()
    local m = nn.Linear(3, 2)
    local before = m.weight:detach():clone()
    assert.equal(m, nn.utils.weight_norm(m))
    local names = {}
    for name in m:named_parameters() do names[#names + 1] = name end
    assert.same({ "bias", "weight_g", "weight_v" }, names)
    eq(m.weight_g:detach(), before:norm { dim = 2 }, 1e-6)
    m(T.ones(1, 3)):sum():backward()
    assert.is_truthy(m.weight_g.grad and m.weight_v.grad)
    eq((m.weight_v.grad * m.weight_v):sum(2):detach(), { 0, 0 }, 1e-6) -- across its direction only
    T.no_grad(function() m.weight_g:mul_(2) end)
    m(T.ones(1, 3))
    eq(m.weight:detach(), before * 2, 1e-6)
    local copy = m:clone()
    nn.utils.remove_weight_norm(copy)
    eq(copy.weight:detach(), before * 2, 1e-6)
    assert.equal(2, #copy:parameters())
    assert.equal(3, #m:parameters())
    m(T.ones(1, 3)) -- its own rule is still there
    fails("has no weight_norm", nn.utils.remove_weight_norm, copy)
    fails("has no parameter 'weight'", nn.utils.weight_norm, m)
    fails("dim 3 of", nn.utils.weight_norm, nn.Linear(2, 2), { dim = 3 })
  end)

  it("spectral_norm finds the largest singular value in training", function()
    T.manual_seed(1)
    local m = nn.utils.spectral_norm(nn.Linear(4, 3), { n_power_iterations = 50 })
    m(T.ones(1, 4))
    eq(T.linalg.svdvals(m.weight:detach()):narrow(1, 1, 1), { 1 }, 1e-4)
    m(T.ones(1, 4)):sum():backward()
    assert.is_truthy(m.weight_orig.grad)
    m:eval()
    local u = m.weight_u:clone()
    m(T.ones(1, 4))
    eq(m.weight_u, u, 0)
    nn.utils.remove_spectral_norm(m)
    eq(T.linalg.svdvals(m.weight:detach()):narrow(1, 1, 1), { 1 }, 1e-4)
    assert.same({}, m:buffers())
    fails("at least 2 dims", nn.utils.spectral_norm, nn.Linear(2, 2), "bias")
  end)

  it("functional_call gives gradients to other tensors", function()
    local m = nn.Sequential(nn.Linear(2, 1))
    local w = T.ones(1, 2):requires_grad_()
    local y = nn.utils.functional_call(m, { ["1.weight"] = w, ["1.bias"] = T.zeros(1) }, T.tensor { { 3, 4 } })
    assert.equal(7.0, y:item())
    y:backward()
    eq(w.grad, { 3, 4 })
    assert.is_nil(m[1].weight.grad)
    assert.is_true(m[1].weight.requires_grad)
    fails("has no '1.weigth'", nn.utils.functional_call, m, { ["1.weigth"] = w })
    fails("linear", nn.utils.functional_call, m, { ["1.weight"] = T.ones(3, 3) }, T.ones(1, 2))
    assert.same({ 1, 2 }, m[1].weight:shape()) -- put back after the error
  end)

  it("stack_module_state makes an ensemble of networks, whose states it copies", function()
    local nets = {}
    for k = 1, 3 do
      nets[k] = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
      nets[k](T.randn(6, 2))
      nets[k]:eval()
      nets[k][3].bias.requires_grad = false
    end
    local params, buffers = nn.utils.stack_module_state(nets)
    assert.is_true(params["1.weight"].is_leaf and params["1.weight"].requires_grad)
    assert.is_false(params["3.bias"].requires_grad or buffers["2.running_mean"].requires_grad)
    assert.same({ 3, 4 }, buffers["2.running_var"]:shape())
    local x = T.randn(5, 2)
    local each = { in_dims = { 1, 1, false } }
    local function one(p, b, v) return nn.utils.functional_call(nets[2], { p, b }, v) end
    local y = T.vmap(one, each)(params, buffers, x)
    y:sum():backward()
    for k, net in ipairs(nets) do
      local own = net(x)
      eq(y[k]:detach(), own:detach(), 1e-6)
      own:sum():backward()
      eq(params["1.weight"].grad[k], net[1].weight.grad, 1e-6)
    end
    T.no_grad(function() params["1.weight"]:zero_() end)
    assert.is_true(nets[1][1].weight:abs():min():item() > 0)
    local stack = nn.utils.stack_module_state
    fails("the list of modules is empty", stack, {})
    fails("entry 2 must be a module, got 3", stack, { nets[1], 3 })
    fails("entry 1 is Linear, entry 2 Conv1d", stack, { nn.Linear(1, 1), nn.Conv1d(1, 1, 1) })
    fails("entries 1 and 2 differ in being in training", stack, { nets[1], nets[2]:clone():train() })
    fails("entry 2 has no 'bias', entry 1 has", stack, { nn.Linear(1, 1), nn.Linear(1, 1, { bias = false }) })
    fails("entry 1 has no 'bias', entry 2 has", stack, { nn.Linear(1, 1, { bias = false }), nn.Linear(1, 1) })
    fails("'weight' is f32[1,1] in entry 1 and f32[1,2] in entry 2", stack, { nn.Linear(1, 1), nn.Linear(2, 1) })
    fails("'weight' is f32[1,1] in entry 1 and f64[1,1] in entry 2", stack,
      { nn.Linear(1, 1), nn.Linear(1, 1):double() })
    fails("'weight' of entries 1 and 2 differ in requires_grad", stack, { nn.Linear(1, 1):freeze(), nn.Linear(1, 1) })
    fails("'weight' is given twice", nn.utils.functional_call, nn.Linear(1, 1),
      { { weight = T.ones(1, 1) }, { weight = T.ones(1, 1) } }, T.ones(1))
    fails("entry 2 must be a table of tensors, got 3", nn.utils.functional_call, nn.Linear(1, 1),
      { { weight = T.ones(1, 1) }, 3 }, T.ones(1))
  end)

  it("functional_call replaces what is tied at all of its places, by whichever name", function()
    local Tied = nn.class("Tied")
    function Tied:init()
      self.embedding, self.inner, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, { bias = false })
      self.again = nn.ModuleList { self.inner }
      self.head.weight = self.embedding.weight
    end
    function Tied:forward(i) return self.head(self.again[1](self.inner(self.embedding(i)))) end
    local m, i = Tied(), T.tensor({ 1, 5, 2 }, { dtype = "i64" })
    local w = T.randn(5, 4):requires_grad_()
    local want = T.matmul(m.inner(m.inner(w:index_select(1, i))), w:t())
    local gradient = T.grad_of(want:sin():sum(), w)
    for _, tensors in ipairs {
      { ["embedding.weight"] = w }, { ["head.weight"] = w }, { ["embedding.weight"] = w, ["head.weight"] = w },
    } do
      w.grad = nil
      local y = nn.utils.functional_call(m, tensors, i)
      eq(y:detach(), want:detach(), 1e-6)
      y:sin():sum():backward()
      eq(w.grad, gradient, 1e-5)
    end
    assert.is_true(rawequal(m.head.weight, m.embedding.weight)) -- put back
    fails("'embedding.weight' and 'head.weight' are one tensor of Tied", nn.utils.functional_call, m,
      { ["embedding.weight"] = w, ["head.weight"] = w:clone() }, i)
    m:zero_grad()
    local b = T.ones(4):requires_grad_()
    nn.utils.functional_call(m, { ["inner.bias"] = b }, i):sum():backward()
    assert.is_not_nil(b.grad)
    assert.is_nil(m.inner.bias.grad)
  end)

  it("fusing BatchNorm needs evaluation mode", function()
    fails("evaluation mode", nn.utils.fuse_conv_bn_eval, nn.Conv1d(1, 1, 1), nn.BatchNorm1d(1))
    local l, bn = nn.Linear(3, 2), nn.BatchNorm1d(2)
    bn(l(T.randn(9, 3)))
    l:eval()
    bn:eval()
    local x = T.randn(4, 3)
    eq(nn.utils.fuse_linear_bn_eval(l, bn)(x):detach(), bn(l(x)):detach(), 1e-5)
  end)

  it("fuses each kind of convolution with its BatchNorm, whatever the groups", function()
    for _, case in ipairs { { nn.Conv2d, 4, 6, 3, { groups = 2 } }, { nn.ConvTranspose2d, 4, 6, 3, { groups = 2 } },
      { nn.ConvTranspose2d, 4, 4, 3, { groups = 4 } }, { nn.ConvTranspose2d, 4, 4, 2 } } do
      local l, bn = case[1](table.unpack(case, 2)):eval(), nn.BatchNorm2d(case[3]):eval()
      bn.running_mean:normal_()
      bn.running_var:uniform_(0.5, 2)
      local x = T.randn(2, 4, 5, 5)
      eq(nn.utils.fuse_conv_bn_eval(l, bn)(x):detach(), bn(l(x)):detach(), 1e-5)
    end
    local conv, bn = nn.Conv2d(4, 4, 3):eval(), nn.BatchNorm2d(4):eval()
    fails("transpose = true, and the layer is a Conv2d", nn.utils.fuse_conv_bn_eval, conv, bn, { transpose = true })
    fails("remove weight_norm", nn.utils.fuse_conv_bn_eval, nn.utils.weight_norm(conv), bn)
  end)

  it("evaluates with the statistics that there are, also where track_running_stats was switched off", function()
    local bn, x = nn.BatchNorm1d(2), T.randn(5, 2) + 3
    bn(x)
    local mean, want = bn.running_mean:clone(), bn:eval()(x):detach()
    bn.track_running_stats = false
    eq(bn(x):detach(), want, 0)
    bn:train()(x)
    eq(bn.running_mean, mean, 0)
    assert.equal(1, bn.num_batches_tracked:item())
  end)

  it("computes what its fields say", function()
    local x = T.arange(64):float():view(1, 1, 8, 8)
    local conv = nn.Conv2d(1, 1, 3, { stride = 2 })
    conv.stride, conv.padding, conv.padding_mode = { 1, 1 }, { 1, 1 }, "circular"
    assert.same({ 1, 1, 8, 8 }, conv(x):shape())
    eq(conv(x), nn.F.conv2d(nn.F.pad(x, { 1, 1, 1, 1 }, { mode = "circular" }), conv.weight, conv.bias), 0)
    local loss, logits = nn.CrossEntropyLoss(), T.tensor { { 1, 2 }, { 3, 0 } }
    local target = T.tensor({ 1, 2 }, { dtype = "i64" })
    loss.reduction, loss.weight = "sum", T.tensor { 3, 1 }
    eq(loss(logits, target), nn.F.cross_entropy(logits, target, loss.weight, { reduction = "sum" }), 0)
  end)

  it("unpad_sequence undoes pad_sequence", function()
    local list = { T.rand(3, 2), T.rand(1, 2) }
    local back = nn.utils.unpad_sequence(nn.utils.pad_sequence(list), { 3, 1 })
    for i, x in ipairs(list) do eq(back[i], x, 0) end
    fails("entry 2", nn.utils.pad_sequence, { T.ones(2), 3 })
  end)
end)

describe("inplace = true", function()
  it("overwrites the input and gives the same gradients", function()
    local made = { nn.ReLU, nn.ReLU6, nn.SiLU, nn.Mish, nn.SELU, nn.Hardswish, nn.Hardsigmoid, nn.ELU, nn.CELU,
      nn.LeakyReLU, nn.Hardtanh }
    local w = T.randn(4, 6)
    for _, class in ipairs(made) do
      local x = T.randn(4, 6):requires_grad_()
      local plain, over = class(), class { inplace = true }
      local function gradient(m)
        local y = x * 2
        local z = m(y)
        return z, T.grad_of((z * w):sum(), x), y
      end
      local a, da = gradient(plain)
      local b, db, y = gradient(over)
      local ok = a:equal(b) and da:equal(db) and y:shares_storage(b) and y:equal(a)
      assert.is_true(ok, tostring(over))
      assert.truthy(tostring(over):find("inplace=true", 1, true))
      assert.is_nil(tostring(plain):find("inplace", 1, true))
    end
    assert.equal("Threshold(threshold=0.5, value=2, inplace=true)", tostring(nn.Threshold(0.5, 2, true)))
    fails("requires a gradient", nn.ReLU(true), T.ones(2):requires_grad_())
    fails("unknown option 'inplace'", nn.GELU, { inplace = true })
  end)

  it("of Dropout drops where the input is", function()
    for _, case in ipairs { { nn.Dropout, { 8, 8 } }, { nn.Dropout2d, { 4, 4, 2, 2 } } } do
      local x = T.ones(case[2]) * 1
      T.manual_seed(3)
      local y = case[1](0.5, true)(x)
      T.manual_seed(3)
      assert.is_true(y:equal(case[1](0.5)(T.ones(case[2]))))
      assert.is_true(x:equal(y))
    end
    assert.equal("Dropout(p=0.5, inplace=true)", tostring(nn.Dropout { inplace = true }))
  end)
end)

describe("small layers:", function()
  it("padding", function()
    eq(nn.ConstantPad1d({ 1, 2 }, 5)(T.ones(1, 2)), { 5, 1, 1, 5, 5 })
    assert.same({ 1, 1, 3, 3 }, nn.ZeroPad2d { 1, 0, 0, 1 }(T.ones(1, 1, 2, 2)):shape())
    eq(nn.ReflectionPad1d(1)(T.tensor { { 1, 2, 3 } }), { 2, 1, 2, 3, 2 })
    eq(nn.ReplicationPad1d(1)(T.tensor { { 1, 2, 3 } }), { 1, 1, 2, 3, 3 })
    eq(nn.CircularPad1d(1)(T.tensor { { 1, 2, 3 } }), { 3, 1, 2, 3, 1 })
    assert.equal("ZeroPad2d(padding={2, 2, 2, 2})", tostring(nn.ZeroPad2d(2)))
    fails("padding must be one number or 4", nn.ZeroPad2d, { 1, 2 })
  end)

  it("AdaptiveMaxPool and Softmax2d", function()
    local image = T.arange(16):float():view(1, 1, 4, 4)
    local y, where = nn.AdaptiveMaxPool2d(2, { return_indices = true })(image)
    eq(y, { 6, 8, 14, 16 })
    assert.same({ 6, 8, 14, 16 }, where:flatten():totable())
    assert.same({ 1, 1, 1, 2 }, nn.AdaptiveMaxPool2d { 1, 2 }(image):shape())
    eq(nn.Softmax2d()(T.zeros(2, 1, 1)), { 0.5, 0.5 })
    fails("[N, C, H, W]", nn.Softmax2d(), T.zeros(2))
  end)

  it("ParameterList registers and saves", function()
    local m = nn.class("M")()
    m.list = nn.ParameterList { T.ones(2), nn.Parameter(T.zeros(3)) }
    assert.equal(2, #m.list)
    m.list:append(T.ones(4))
    assert.equal(3, #m:parameters())
    local state = m:state_dict()
    assert.is_truthy(state["list.1"] and state["list.3"])
    assert.is_true(m.list[3].requires_grad)
    fails("a tensor is wanted", m.list.append, m.list, 1)
  end)

  it("gumbel_softmax draws with the probabilities of softmax", function()
    T.manual_seed(1)
    local logits = T.tensor { 0, 1, 2 }:expand(4000, 3):contiguous():requires_grad_()
    local y = nn.F.gumbel_softmax(logits, { hard = true })
    eq(y:sum(-1):detach(), T.ones(4000):totable(), 1e-5)
    eq(y:mean(1):detach(), T.tensor { 0, 1, 2 }:softmax():totable(), 0.03)
    y:square():sum():backward()
    assert.is_true(logits.grad:abs():sum():item() > 0)
    fails("tau must be a finite number > 0", nn.F.gumbel_softmax, logits, { tau = 0 })
  end)
end)
