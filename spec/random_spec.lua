-- SPDX-License-Identifier: MIT
-- Random ops: moments and ranges of large samples, the same bits from the same seed, masks and their
-- gradients.

local T = require "perilune"
local near = require "spec.support.near"

-- Mean and variance of a tensor's elements.
local function moments(t)
  local x = t:to("f64")
  local m = x:mean():item()
  return m, ((x - m) * (x - m)):mean():item(), x:min():item(), x:max():item()
end

local function within(x, want, tol, what)
  assert.is_true(math.abs(x - want) <= tol, string.format("%s is %g, should be %g", what or "value", x, want))
end

describe("random numbers", function()
  before_each(function() T.manual_seed(42) end)

  it("uniform: range, mean, variance, every tenth of the range", function()
    for _, dtype in ipairs { "f32", "f64" } do
      local t = T.uniform(-2, 3, { 200000 }, { dtype = dtype })
      local m, v, lo, hi = moments(t)
      within(m, 0.5, 0.02, "mean")
      within(v, 25 / 12, 0.03, "variance")
      assert.is_true(lo >= -2 and hi < 3)
      for k = 0, 9 do
        local share = T.logical_and(t:ge(-2 + k * 0.5), t:lt(-1.5 + k * 0.5)):to("f64"):mean():item()
        within(share, 0.1, 0.005, "share")
      end
    end
    local _, _, lo, hi = moments(T.rand(100000))
    assert.is_true(lo >= 0 and hi < 1)
  end)

  it("normal: mean, variance, skewness, kurtosis, no correlation of neighbours", function()
    local t = T.normal(1, 2, { 200000 }, { dtype = "f64" })
    local m, v = moments(t)
    within(m, 1, 0.03, "mean")
    within(v, 4, 0.06, "variance")
    local z = (t - m) / math.sqrt(v)
    within((z * z * z):mean():item(), 0, 0.03, "skewness")
    within((z * z * z * z):mean():item(), 3, 0.1, "kurtosis")
    within((z:narrow(1, 1, 199999) * z:narrow(1, 2, 199999)):mean():item(), 0, 0.01, "correlation")
  end)

  it("randint: both ends, all values alike", function()
    local t = T.randint(3, 7, { 100000 })
    assert.equal("i64", t:dtype())
    for v = 1, 9 do
      within(t:eq(v):to("f64"):mean():item(), (v >= 3 and v <= 7) and 0.2 or 0, 0.01, "share of " .. v)
    end
    assert.is_false((pcall(T.randint, 5, 3, { 2 })))
  end)

  it("randperm: each number once, order differs, places alike", function()
    local p = T.randperm(1000)
    near.near((p:sort()), T.arange(1000))
    assert.is_false(p:equal(T.arange(1000)))
    local first = 0
    for _ = 1, 2000 do first = first + T.randperm(5):get(1) end
    within(first / 2000, 3, 0.15, "mean of the first place")
    assert.equal(0, T.randperm(0):numel())
  end)

  it("bernoulli and multinomial: frequencies", function()
    local b = T.full({ 100000 }, 0.3):bernoulli()
    within(b:to("f64"):mean():item(), 0.3, 0.01)
    local w = T.tensor { 1, 2, 7 }
    local draws = w:multinomial(50000, { replacement = true })
    for k, share in ipairs { 0.1, 0.2, 0.7 } do
      within(draws:eq(k):to("f64"):mean():item(), share, 0.015, "share of " .. k)
    end
    near.near((w:multinomial(3):sort()), { 1, 2, 3 })
    assert.is_false((pcall(w.multinomial, w, 4)))
  end)

  it("fillers: the distributions of their names, in place", function()
    local x = T.zeros(100000)
    assert.equal(x, x:uniform_(2, 4))
    within((moments(x)), 3, 0.02)
    x:normal_(5, 0.5)
    within((moments(x)), 5, 0.02)
    x:exponential_(2)
    within((moments(x)), 0.5, 0.02)
    x:bernoulli_(0.25)
    within((moments(x)), 0.25, 0.01)
    x:random_(1, 3)
    within((moments(x)), 2, 0.02)
  end)
end)

describe("seeds", function()
  local function draw()
    return T.randn(1001):to_string() .. T.rand(77):to_string() .. T.randperm(50):to_string()
      .. T.randint(1, 9, { 33 }):to_string() .. T.dropout(T.ones(100), 0.5):to_string()
  end

  it("give the same bits again, at any number of threads", function()
    local threads = T.get_num_threads()
    T.manual_seed(7)
    local a = draw()
    for _, n in ipairs { 1, 2, 3 } do
      T.set_num_threads(n)
      T.manual_seed(7)
      assert.equal(a, draw())
    end
    T.set_num_threads(threads)
    assert.are_not.equal(a, draw())
  end)

  it("state comes back", function()
    T.manual_seed(9)
    draw()
    local state = T.get_rng_state()
    local a = draw()
    T.set_rng_state(state)
    assert.equal(a, draw())
    assert.is_false((pcall(T.set_rng_state, "short")))
    assert.is_false((pcall(T.set_rng_state, 5)))
  end)

  it("a refused call draws nothing", function()
    T.manual_seed(5)
    local a = T.randn(4):to_string()
    T.manual_seed(5)
    pcall(T.randn, -1)
    pcall(T.randint, 5, 3, { 2 })
    pcall(T.dropout, T.ones(3), 2)
    assert.equal(a, T.randn(4):to_string())
  end)
end)

describe("dropout", function()
  it("zeroes a share p, scales the rest, and its gradient is the same mask", function()
    T.manual_seed(3)
    local x = T.ones(100000):requires_grad_()
    local y = T.dropout(x, 0.25)
    y:sum():backward()
    within(y:eq(0):to("f64"):mean():item(), 0.25, 0.01)
    within(y:mean():item(), 1, 0.02)
    near.same_bits(x.grad, y:detach())
    near.near(T.dropout(T.ones(10), 0.0), 1)
    near.near(T.dropout(T.ones(10), 1.0), 0)
    for _, p in ipairs { -0.1, 1.1, 0 / 0 } do
      assert.is_false((pcall(T.dropout, T.ones(3), p)))
    end
  end)
end)
