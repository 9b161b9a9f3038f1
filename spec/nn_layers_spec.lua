-- SPDX-License-Identifier: MIT
-- What layers and losses compute.

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
