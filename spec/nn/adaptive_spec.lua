-- SPDX-License-Identifier: MIT
-- nn.AdaptiveLogSoftmaxWithLoss, fractional max pooling and interpolate with antialias, beyond what
-- spec/nn/pytorch_spec.lua compares with PyTorch: gradients, shapes, wrong calls.

local T = require "perilune"
local nn, F = T.nn, T.nn.F
local fails = require("spec.support.near").fails

local function f64(...) return T.randn({ ... }, { dtype = "f64" }) end

describe("nn.AdaptiveLogSoftmaxWithLoss", function()
  local function make() return nn.AdaptiveLogSoftmaxWithLoss(6, 12, { 3, 7 }, { div_value = 2, dtype = "f64" }) end

  it("gives the entries of log_prob, their mean as a loss, and the same gradients", function()
    T.manual_seed(2)
    local m, x = make(), f64(20, 6):requires_grad_()
    local target = T.randint(1, 12, { 20 })
    local logs, loss = m(x, target)
    local all = m:log_prob(x)
    local want = T.gather(all, target:unsqueeze(2), { dim = 2 }):squeeze(2)
    assert.is_true(logs:allclose(want, { rtol = 1e-12 }))
    assert.is_true(all:exp():sum(2):allclose(T.ones({ 20 }, { dtype = "f64" })))
    assert.is_true(loss:allclose(-want:mean()))
    local params = { x, table.unpack(m:parameters()) }
    local got, good = T.grad_of(loss, params), T.grad_of(-want:mean(), params)
    for i, g in ipairs(good) do assert.is_true(got[i]:allclose(g, { rtol = 1e-10, atol = 1e-12 }), "gradient " .. i) end
    assert.is_true(m:predict(x):equal(all:argmax(-1)))
  end)

  it("is traced: a training step and predictions", function()
    T.manual_seed(3)
    local m, x, target = make(), f64(20, 6), T.randint(1, 12, { 20 })
    local function step(a, b)
      local logs, loss = m(a, b)
      loss:backward()
      return logs:detach(), loss:detach()
    end
    local logs, loss = step(x, target)
    local want = {}
    for i, p in ipairs(m:parameters()) do want[i] = p.grad:clone() end
    m:zero_grad()
    local f = T.jit(step)
    local traced, its = f(x, target)
    assert.is_true(traced:allclose(logs, { rtol = 1e-12 }) and its:allclose(loss, { rtol = 1e-12 }))
    for i, p in ipairs(m:parameters()) do
      assert.is_true(p.grad:allclose(want[i], { rtol = 1e-10, atol = 1e-14 }), i)
    end
    assert.is_true(T.jit(function(a) return m:predict(a) end)(x):equal(m:predict(x)))
    for _, bad in ipairs { 0, 13 } do
      fails("out of range", f, x, T.full({ 20 }, bad, { dtype = "i64" }))
    end
  end)

  it("takes one sample, a batch without rare classes and an empty one", function()
    local m, x = make(), f64(6)
    local logs, loss = m(x, T.tensor(5, { dtype = "i64" }))
    assert.same({}, logs:shape())
    assert.is_true(loss:allclose(-m:log_prob(x)[5]))
    assert.same({}, m:predict(x):shape())
    assert.same({ 2 }, (m(f64(2, 6), T.tensor({ 1, 2 }, { dtype = "i64" }))):shape())
    assert.same({ 0, 12 }, m:log_prob(f64(0, 6)):shape())
    assert.truthy(tostring(m):find("AdaptiveLogSoftmaxWithLoss(", 1, true))
    assert.equal("6, 12, cutoffs={3, 7}", m:extra_repr())
  end)

  it("says what is wrong", function()
    local m = make()
    fails("targets must be in 1..12", function() m(f64(1, 6), T.tensor({ 13 }, { dtype = "i64" })) end)
    fails("targets must be in 1..12", function() m(f64(1, 6), T.tensor({ 0 }, { dtype = "i64" })) end)
    fails("integers [2], got", function() m(f64(2, 6), T.tensor({ 1 }, { dtype = "i64" })) end)
    fails("x [N, 6] or [6] is wanted", function() m:log_prob(f64(2, 5)) end)
    fails("cutoffs must rise", nn.AdaptiveLogSoftmaxWithLoss, 6, 12, { 7, 3 })
    fails("cutoffs must rise", nn.AdaptiveLogSoftmaxWithLoss, 6, 12, { 12 })
    fails("cutoffs", nn.AdaptiveLogSoftmaxWithLoss, 6, 12, {})
  end)
end)

describe("fractional max pooling", function()
  it("takes maxima of its windows, whose gradient goes there", function()
    T.manual_seed(1)
    for nd = 2, 3 do
      local shape = { 2, 3, 7, 6, 5 }
      local x = f64(table.unpack(shape, 1, nd + 2)):requires_grad_()
      local pool = F["fractional_max_pool" .. nd .. "d"]
      local y, where = pool(x, 2, { output_size = 3, return_indices = true })
      local flat = x:reshape(2, 3, -1)
      assert.is_true(T.gather(flat, where:reshape(2, 3, -1), { dim = 3 }):reshape(y:shape()):equal(y))
      y:sum():backward()
      assert.equal(y:numel(), x.grad:sum():item())
    end
    local x, u = T.randn(3, 8, 8), T.rand(1, 3, 2)
    local a = F.fractional_max_pool2d(x, 3, { output_ratio = 0.5, _random_samples = u })
    assert.same({ 3, 4, 4 }, a:shape())
    assert.is_true(a:equal(nn.FractionalMaxPool2d(3, { output_size = 4, _random_samples = u })(x)))
    assert.same({ 0, 2, 3, 3 }, F.fractional_max_pool2d(T.zeros(0, 2, 6, 6), 2, { output_size = 3 }):shape())
  end)

  it("says what is wrong", function()
    local x = T.ones(1, 1, 5, 5)
    fails("either output_size or output_ratio", F.fractional_max_pool2d, x, 2)
    fails("either output_size or output_ratio", nn.FractionalMaxPool2d, 2, { output_size = 2, output_ratio = 0.5 })
    fails("5 windows of 2 do not fit into 5", F.fractional_max_pool2d, x, 2, { output_size = 5 })
    fails("output_ratio must be between 0 and 1", F.fractional_max_pool2d, x, 2, { output_ratio = 1 })
    fails("_random_samples must be [1,1,2]", F.fractional_max_pool2d, x, 2, { output_size = 2, _random_samples = x })
    fails("3 or 4 dimensions", F.fractional_max_pool2d, T.ones(5, 5), 2, { output_size = 2 })
    fails("kernel_size", F.fractional_max_pool3d, T.ones(1, 5, 5, 5), { 2, 2 }, { output_size = 2 })
  end)
end)

describe("interpolate with antialias", function()
  it("leaves what is not finite to the outputs that read it", function()
    for _, mode in ipairs { "bilinear", "bicubic" } do
      local x, opts = T.arange(1, 64):to("f64"):view(1, 1, 8, 8), { size = { 4, 4 }, mode = mode, antialias = true }
      local y = F.interpolate(x, opts)
      for _, bad in ipairs { 0 / 0, math.huge } do
        x[{ 1, 1, 1, 1 }] = bad
        local z = F.interpolate(x, opts)
        local far = mode == "bilinear" and 2 or 3 -- outputs along each dimension that look at the first pixel
        assert.is_false(z[{ 1, 1, { 1, far - 1 }, { 1, far - 1 } }]:isfinite():any():item())
        local rest = { { 1, 1, { far + 1, 4 } }, { 1, 1, { 1, 4 }, { far + 1, 4 } } }
        for _, at in ipairs(rest) do assert.is_true(z[at]:allclose(y[at], { rtol = 1e-12 })) end
      end
    end
  end)

  it("keeps constants and means, and has the gradient of a linear map", function()
    for _, mode in ipairs { "bilinear", "bicubic" } do
      local opts = { size = { 3, 4 }, mode = mode, antialias = true }
      local y = F.interpolate(T.ones(1, 2, 9, 11), opts)
      assert.is_true(y:allclose(T.ones(1, 2, 3, 4), { rtol = 1e-6 }))
      local x, v, g = f64(1, 1, 9, 11):requires_grad_(), f64(1, 1, 9, 11), f64(1, 1, 3, 4)
      local dx = T.grad_of((F.interpolate(x, opts) * g):sum(), x)
      assert.is_true((dx * v):sum():allclose((F.interpolate(v, opts) * g):sum(), { rtol = 1e-10 }))
      assert.equal("bf16", F.interpolate(T.ones(1, 1, 8, 8):to("bf16"), opts):dtype())
    end
    local bytes = T.full({ 1, 1, 8, 8 }, 200, { dtype = "u8" })
    local small = F.interpolate(bytes, { size = 2, mode = "bicubic", antialias = true })
    assert.equal("u8", small:dtype())
    assert.is_true(small:eq(200):all():item())
    fails("antialias works with mode bilinear and bicubic, not with nearest", F.interpolate, T.ones(1, 1, 4, 4),
      { size = { 2, 2 }, antialias = true })
  end)
end)
