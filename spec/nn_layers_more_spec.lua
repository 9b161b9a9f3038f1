-- SPDX-License-Identifier: MIT
-- What layers do in training, and what cannot be seen from their outputs alone: AlphaDropout, RReLU, EmbeddingBag,
-- lazy layers, weight_norm and spectral_norm, functional_call, copies, members by path.

local T = require "perilune"
local nn = T.nn
local near = require "spec.support.near"
local eq, fails = near.near, near.fails

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

describe("EmbeddingBag", function()
  local ids = T.tensor({ 1, 2, 2, 3 }, { dtype = "i64" })
  after_each(function() collectgarbage() end)

  it("names what does not fit", function()
    local m = nn.EmbeddingBag(3, 2)
    local i64 = { dtype = "i64" }
    fails("ids [n] need offsets", m, ids)
    fails("the first offset must be 1", m, ids, T.tensor({ 2 }, i64))
    fails("offsets must not decrease", m, ids, T.tensor({ 1, 4, 2 }, i64))
    fails("offsets must not decrease, nor lie behind", m, ids, T.tensor({ 1, 9 }, i64))
    fails("ids must be integers", m, T.ones(2, 2))
    fails("per_sample_weights go with mode", m, ids:view(2, 2), nil, T.ones(2, 2))
    fails("unknown mode", nn.EmbeddingBag, 3, 2, { mode = "min" })
    assert.same({ 2, 2 }, m(ids:view(2, 2)):shape())
  end)
  teardown(function() ids = nil end)
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

  it("fusing BatchNorm needs evaluation mode", function()
    fails("evaluation mode", nn.utils.fuse_conv_bn_eval, nn.Conv1d(1, 1, 1), nn.BatchNorm1d(1))
    local l, bn = nn.Linear(3, 2), nn.BatchNorm1d(2)
    bn(l(T.randn(9, 3)))
    l:eval()
    bn:eval()
    local x = T.randn(4, 3)
    eq(nn.utils.fuse_linear_bn_eval(l, bn)(x):detach(), bn(l(x)):detach(), 1e-5)
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

describe("a list of modules", function()
  it("counts from the end, and has parts", function()
    local net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    local x = T.randn(5, 2)
    assert.equal(net[3], net[-1])
    assert.equal(net[1], net[-3])
    local body = net[{ 1, -2 }]
    assert.equal("Sequential", body:type())
    assert.equal(2, #body)
    assert.equal(net[1], body[1])
    assert.is_true(body(x):equal(net[2](net[1](x))))
    net[-1] = nn.Linear(3, 7)
    assert.equal(3, #net)
    assert.same({ 5, 7 }, net(x):shape())
    assert.equal(net[3].weight, net:get_parameter("3.weight"))
    assert.equal(2 * 3 + 3 + 3 * 7 + 7, net:num_parameters())
    assert.equal(1, #nn.ModuleList { nn.ReLU(), nn.Tanh() }[{ 2, 2 }])
    assert.is_nil(net[4])
    fails("Sequential: index 0 is not in 1..3 (indices start at 1)", function() return net[0] end)
    fails("Sequential: index -4 is not in 1..3", function() return net[-4] end)
    fails("Sequential: index 0 is not in 1..3", function() net[0] = nn.ReLU() end)
    fails("Sequential: index nil is not in 1..3", function() return net[{ 1 }] end)
  end)

  it("of encoder layers takes the mask under either name", function()
    local layer = nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16, batch_first = true, dropout = 0 })
    local net, x = nn.TransformerEncoder(layer, 2):eval(), T.randn(2, 3, 8)
    local mask = nn.Transformer.generate_square_subsequent_mask(3):to(x:device())
    local y = net(x, { src_mask = mask })
    assert.is_true(y:equal(net(x, { mask = mask })) and y:equal(net(x, mask)))
    assert.is_false(y:equal(net(x)))
  end)
end)

describe("a module", function()
  it("tells all that its constructor was given", function()
    assert.equal("ConvTranspose2d(2, 4, kernel_size={3, 3}, stride={2, 2}, padding={1, 1}, output_padding={1, 1}, "
      .. "dilation={2, 2}, groups=2, bias=false)", tostring(nn.ConvTranspose2d(2, 4, 3, { stride = 2, padding = 1,
      output_padding = 1, dilation = 2, groups = 2, bias = false })))
    assert.equal("StateDict of 2 (\n  weight: f32[1,2]\n  bias: f32[1]\n)", tostring(nn.Linear(2, 1):state_dict()))
    local net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    assert.equal(net:summary(T.zeros(5, 3)), net:summary({ 5, 3 }))
    assert.equal(nn.F, nn.functional)
  end)

  local function net() return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3))) end

  it("finds members by path", function()
    local m = net()
    assert.equal(m[2][1], m:get_submodule("2.1"))
    assert.equal(m, m:get_submodule(""))
    assert.equal(m[1].weight, m:get_parameter("1.weight"))
    assert.equal(m[2][1].running_mean, m:get_buffer("2.1.running_mean"))
    fails("has no module '7'", m.get_submodule, m, "7.1")
    fails("has no 'running_mean'", m.get_parameter, m, "2.1.running_mean")
    fails("has no 'weight'", m.get_buffer, m, "1.weight")
    m:set_submodule("2.1", nn.Identity())
    assert.equal("Identity", m[2][1]:type())
    assert.equal("bf16", m:bfloat16():get_parameter("1.weight"):dtype())
  end)

  it("copies with what is shared inside", function()
    local m = net()
    m[3] = m[1]
    local copy = m:clone()
    assert.equal(copy[1], copy[3])
    assert.is_false(copy[1].weight == m[1].weight)
    assert.equal(#m:parameters(), #copy:parameters())
    T.no_grad(function() copy[1].weight:zero_() end)
    assert.is_true(m[1].weight:abs():sum():item() > 0)
    assert.is_true(copy[1].weight.requires_grad)
  end)
end)
