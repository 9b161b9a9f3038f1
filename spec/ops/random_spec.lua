-- SPDX-License-Identifier: MIT
-- Random ops: moments and ranges of large samples, the same bits from the same seed, masks and their
-- gradients.

local T = require "perilune"
local near = require "spec.support.near"
local fails = near.fails

-- Mean and variance of a tensor's elements.
local function moments(t)
  local x = t:to("f64")
  local m = x:mean():item()
  return m, ((x - m) * (x - m)):mean():item(), x:min():item(), x:max():item()
end

local function within(x, want, tol, what)
  assert.is_true(math.abs(x - want) <= tol, string.format("%s is %g, should be %g", what or "value", x, want))
end

describe("T.Generator", function()
  it("has a state of its own", function()
    T.manual_seed(3)
    local was = T.get_rng_state()
    local g = T.Generator(7)
    local a = T.rand(4, { generator = g })
    local b = T.randn(4, { generator = g })
    assert.equal(was, T.get_rng_state())
    g:manual_seed(7)
    assert.is_true(a:equal(T.rand({ 4 }, { generator = g })))
    local state = g:get_state()
    assert.is_true(b:equal(T.randn(4, { generator = g })))
    g:set_state(state)
    assert.is_true(T.allclose(b, g:run(T.randn, 4):to(b:device()), { rtol = 1e-6, atol = 1e-6 }))
    assert.equal(7, g:initial_seed())
    assert.equal("Generator(seed 7)", tostring(g))
    T.manual_seed(7) -- the same numbers as the global one's
    assert.is_true(a:equal(T.rand(4)))
    assert.is_false(T.Generator(1):run(T.rand, 4):equal(T.Generator(2):run(T.rand, 4)))
    assert.is_true(T.Generator():run(T.rand, 4):equal(T.Generator():run(T.rand, 4)))
  end)

  it("draws for every function that takes one", function()
    local p = T.tensor { 0.2, 0.3, 0.5 }
    for name, f in pairs {
      uniform = function(o) return T.uniform(1, 2, { 5 }, o) end,
      normal = function(o) return T.normal(1, 2, { 5 }, o) end,
      randint = function(o) return T.randint(1, 99, { 5 }, o) end, randperm = function(o) return T.randperm(9, o) end,
      bernoulli = function(o) return T.bernoulli(T.full({ 20 }, 0.5), o) end,
      multinomial = function(o) return p:multinomial(20, { replacement = true, generator = o.generator }) end,
      device = function(o) return T.rand(5, { device = "cpu", dtype = "f64", generator = o.generator }) end,
    } do
      local g = T.Generator(5)
      local first, second = f { generator = g }, f { generator = g }
      assert.is_true(first:equal(f { generator = g:manual_seed(5) }), name)
      assert.is_false(first:equal(second), name)
    end
  end)

  it("comes back from errors and says what is wrong", function()
    local g = T.Generator(1)
    T.manual_seed(1)
    local was = T.get_rng_state()
    fails("boom", g.run, g, function() error "boom" end)
    assert.equal(was, T.get_rng_state())
    fails("generator must be made by T.Generator, got 1", T.rand, 2, { generator = 1 })
    fails("zeros: unknown option 'generator'", T.zeros, 2, { generator = g })
    fails("manual_seed: an integer is wanted", g.manual_seed, g, 1.5)
    fails("call it with a colon, generator:manual_seed(", g.manual_seed, 1)
    fails("a function is wanted", g.run, g, 1)
    local state = g:get_state()
    fails("set_rng_state", g.set_state, g, "x")
    assert.equal(state, g:get_state())
  end)
end)

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

  it("uniform in every floating dtype: never the upper end, nor below the lower one", function()
    local ranges = { { 0, 1 }, { 1, 2 }, { -1, 0 }, { -2, -1 }, { -3, 5 }, { -0.25, 0.25 }, { 1000, 1008 }, { -8, 0.5 },
      { 0, 2 ^ -24 }, { -2 ^ -14, 2 ^ -14 }, { 255, 256 }, { -256, -248 }, { 0, 65504 } }
    for _, dtype in ipairs { "f16", "bf16", "f32", "f64" } do
      for _, r in ipairs(ranges) do
        local what = ("%s in [%g, %g)"):format(dtype, r[1], r[2])
        local into = T.zeros({ 20000 }, { dtype = dtype })
        for _, x in ipairs { T.uniform(r[1], r[2], { 20000 }, { dtype = dtype }), into:uniform_(r[1], r[2]) } do
          local lo, hi = x:double():min():item(), x:double():max():item()
          assert.is_true(lo >= r[1] and hi < r[2], what .. (": %g … %g"):format(lo, hi))
        end
      end
    end
    local none = { { "f16", -1e6, 1e6 }, { "f32", -3e38, 3e38 }, { "f64", -1.7e308, 1.7e308 }, { "bf16", 0, 1 / 0 } }
    for _, bad in ipairs(none) do
      fails("uniform: ", T.uniform, bad[2], bad[3], { 4 }, { dtype = bad[1] })
      fails("is no range of " .. bad[1], function() T.zeros({ 4 }, { dtype = bad[1] }):uniform_(bad[2], bad[3]) end)
    end
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
    for dtype, digits in pairs { f16 = 11, bf16 = 8, f32 = 24, f64 = 53 } do
      local most = 1 << digits
      local x = T.randint(most - 3, most, { 2000 }, { dtype = dtype })
      for v = most - 3, most do within(x:eq(v):to("f64"):mean():item(), 0.25, 0.05, dtype .. ", share of " .. v) end
      fails("does not hold all integers", T.randint, 0, most + 1, { 4 }, { dtype = dtype })
      fails("does not hold all integers", function() T.zeros({ 4 }, { dtype = dtype }):randint_fill_(-most - 1, 0) end)
    end
  end)

  it("randperm: each number once, order differs, places alike", function()
    local p = T.randperm(1000)
    near.near((p:sort()), T.arange(1000))
    assert.is_false(p:equal(T.arange(1000)))
    local first = 0
    for _ = 1, 400 do first = first + T.randperm(5):get(1) end
    within(first / 400, 3, 0.3, "mean of the first place")
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

  it("the alias method: the shares that its tables say, and the frequencies drawn", function()
    for _, dtype in ipairs { "f64", "f32", "f16", "bf16" } do
      local w = T.tensor({ 3, 1, 0, 4, 8 }, { dtype = dtype })
      local J, q = T.multinomial_alias_setup(w)
      local share = q:to("f64"):tolist()
      for i, j in ipairs(J:tolist()) do share[j] = share[j] + 1 - q:get(i) end
      for i, v in ipairs { 3, 1, 0, 4, 8 } do within(share[i] / 5, v / 16, 0.01, "share of " .. i) end
      assert.equal(0, q:get(3))
    end
    local J, q = T.multinomial_alias_setup(T.tensor { 3, 1, 0, 4 })
    local draws = T.multinomial_alias_draw(J, q, 50000)
    assert.equal("i64", draws:dtype())
    for k, share in ipairs { 0.375, 0.125, 0, 0.5 } do
      within(draws:eq(k):to("f64"):mean():item(), share, share == 0 and 0 or 0.015, "share of " .. k)
    end
    local function seeded()
      return T.multinomial_alias_draw(J, q, 9, { generator = T.Generator(3), index_base = 0 })
    end
    assert.is_true(seeded():equal(seeded()))
    assert.equal(0, T.multinomial_alias_draw(J, q, 0):numel())
    -- shares that rounding leaves a little short: nothing of weight 0 may be drawn
    local rough = T.full({ 1000 }, 0.1)
    rough[500] = 0
    local J2, q2 = T.multinomial_alias_setup(rough)
    assert.equal(0, q2:get(500))
    assert.equal(0, J2:eq(500):sum():item())
    for text, bad in pairs { ["is empty"] = T.zeros(0), ["all weights are zero"] = T.zeros(3),
      ["not a finite number"] = T.tensor { 1, -1 }, ["sum of the weights"] = T.full({ 2 }, 1e308, { dtype = "f64" }),
    } do
      near.fails(text, T.multinomial_alias_setup, bad)
    end
    near.fails("must be what", T.multinomial_alias_draw, q, q, 3)
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
    assert.is_false((pcall(T.randn, -1)))
    assert.is_false((pcall(T.randint, 5, 3, { 2 })))
    assert.is_false((pcall(T.dropout, T.ones(3), 2)))
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
