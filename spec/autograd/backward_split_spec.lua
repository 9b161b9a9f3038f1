-- SPDX-License-Identifier: MIT
-- The split of backward graphs: what is kept between forward and backward, and that it changes no gradient.

local T = require "perilune"
local near = require "spec.support.near"
local live = require "spec.support.live"
local support = require "spec.ops.support"

local graph = T.debug.backward_graph
local whole = { { shape = { 4, 5 } }, { shape = { 4, 5 } } }
local both = { true, true }

local function calls(text) -- names of the ops in a graph's text, in order
  local names = {}
  for name in (text or ""):gmatch("= ([%w_.]+)%(") do names[#names + 1] = name end
  return names
end

-- Runs f with the split off.
local function unsplit(f, ...)
  local was = T.debug.split(false)
  local out = table.pack(pcall(f, ...))
  T.debug.split(was)
  assert(out[1], out[2])
  return table.unpack(out, 2, out.n)
end

-- Live bytes that f's result holds while its arguments, made by make(), are gone but for the result.
local function held(f, make)
  live.collect()
  local before = T.memory().live
  local y
  do
    local key = T.GradKey {}
    local a, b = make()
    y = { f(key:attach(a), key:attach(b)), key }
  end
  live.collect()
  local bytes = T.memory().live - before
  return bytes, y
end

describe("what the split keeps", function()
  it("of maximum and fmax: masks instead of the operands", function()
    local g = graph("maximum", whole, both)
    assert.same({ 0, 0, 0, 1 }, g.save)
    assert.equal(3, g.precomp_outputs)
    assert.same({ "eq", "lt", "lt" }, calls(g.precomp))
    local f = graph("fmax", whole, both)
    assert.same({ 0, 0, 0, 1 }, f.save)
    assert.same({ "isnan", "gt", "logical_or", "eq" }, calls(f.precomp))
    assert.equal(2, f.precomp_outputs)
  end)

  it("of nan_to_num: a mask instead of x", function()
    assert.same({ 0, 0, 1 }, graph("nan_to_num", { whole[1] }, { true }).save)
  end)

  it("not where it cannot know that it pays", function()
    -- no sizes, or one operand of unknown size
    assert.same({ 1, 1, 0, 1 }, graph("maximum", whole, both, { polymorphic = true }).save)
    assert.same({ 1, 1, 0, 1 }, graph("maximum", { whole[1], { shape = { 5 } } }, both).save)
  end)

  it("not where the operand is read anyway, or the value has a gradient of its own", function()
    assert.same({ 1, 1, 1, 1 }, graph("pow", whole, both).save)
    assert.is_nil(graph("pow", whole, both).precomp)
    local sin = graph("sin", { whole[1] }, { true })
    assert.same({ 1, 0, 1 }, sin.save)
    assert.is_nil(sin.precomp)
    -- one difference would do for both operands, but it has a gradient, so higher orders need them
    local mse = graph("mse_loss", whole, both)
    assert.same({ 1, 1, 0, 1 }, mse.save)
    assert.is_nil(mse.precomp)
  end)

  it("not where bool operands are as small as the masks", function()
    -- integers of one byte: 2 bytes an element now, 3 as masks
    local g = graph("maximum", { { shape = { 4, 5 }, dtype = "u8" }, { shape = { 4, 5 }, dtype = "u8" } }, both)
    assert.is_nil(g and g.precomp)
  end)

  it("a shape instead of a tensor, whenever the tensor is not read", function()
    local descs = { { shape = { 42 } }, { shape = { 5, 42 } } }
    local g = graph("add", descs, both, { polymorphic = true })
    assert.same({ 0, 0, 0, 1 }, g.save)
    assert.same({ "shape_of", "shape_of" }, calls(g.precomp))
    local m = graph("mul", descs, both, { polymorphic = true }) -- both are read: no shapes move
    assert.same({ 1, 1, 0, 1 }, m.save)
    assert.is_nil(m.precomp)
  end)

  it("in bytes of memory", function()
    local n = 64 * 1024
    local function make() return T.randn(n), T.randn(n) end
    local masks = held(T.maximum, make)
    local operands = unsplit(held, T.maximum, make)
    assert.is_true(masks >= 7 * n and masks < 8 * n, masks .. " bytes with the split")
    assert.is_true(operands >= 12 * n, operands .. " bytes without")
  end)
end)

describe("the split switch", function()
  it("turns it off and says what it was", function()
    assert.is_true(T.debug.split(false))
    local g = graph("add", { { shape = { 42 } }, { shape = { 5, 42 } } }, both, { polymorphic = true })
    local m = graph("maximum", whole, both)
    assert.is_false(T.debug.split(true))
    assert.same({ 1, 1, 0, 1 }, g.save)
    assert.is_nil(g.precomp)
    assert.same({ 1, 1, 0, 1 }, m.save)
    assert.is_nil(m.precomp)
    near.fails("true or false expected", T.debug.split, 1)
  end)
end)

describe("gradients with kept masks", function()
  it("are exact where values are equal, NaN or infinite", function()
    local inf, nan = math.huge, 0 / 0
    local a = { 1, 2, 3, nan, 5, inf, -inf, nan }
    local b = { 2, 2, 1, 4, nan, inf, 1, nan }
    for _, name in ipairs { "maximum", "minimum", "fmax", "fmin" } do
      local function run()
        local _, pull = T.vjp(T[name], T.tensor(a), T.tensor(b))
        return pull(T.arange(8):float())
      end
      local da, db = run()
      local ua, ub = unsplit(run)
      near.same_bits(da, ua)
      near.same_bits(db, ub)
    end
  end)

  it("have second order", function()
    -- f = max(x³, y²): f'' is 6x where x³ wins, 2 where y² does
    local function f(x, y) return T.maximum(x ^ 3, y * y):sum() end
    local x, y = T.tensor({ 2, 1 }, { dtype = "f64" }), T.tensor({ 1, 3 }, { dtype = "f64" })
    local h = T.hessian(f)(x, y)
    near.near(h[1][1], { { 12, 0 }, { 0, 0 } })
    near.near(h[2][2], { { 0, 0 }, { 0, 2 } })
    assert.is_true(T.gradgradcheck(f, { x, y }))
  end)

  it("do not mind what happens to the operands afterwards", function()
    local x, y = T.tensor { 1, 5 }, T.tensor { 2, 3 }
    local key, got = T.GradKey {}, nil
    key:attach(x, function(_, g) got = g end)
    local z = T.maximum(x, y)
    y:fill_(9)
    key:backward(z, T.tensor { 10, 20 })
    near.near(got, { 0, 20 })
  end)

  it("go to every key that records", function()
    local x, y = T.tensor { 1, 5 }, T.tensor { 2, 3 }
    local outer, inner, seen = T.GradKey {}, T.GradKey {}, {}
    outer:attach(x, function(_, g) seen.outer = g end)
    inner:attach(x, function(_, g) seen.inner = g end)
    local z = T.maximum(x, y)
    inner:backward(z, T.ones(2))
    outer:backward(z, T.ones(2))
    near.near(seen.inner, { 0, 1 })
    near.near(seen.outer, { 0, 1 })
  end)
end)

describe("split and unsplit gradients are the same bits:", function()
  local function gradients(name, dtype)
    local f, out = support.func(name), {}
    for _, args in ipairs(support.arguments(name)) do
      local g, flat = support.spread(f, args)
      for i, t in ipairs(flat) do
        if t:dtype() == "f64" then flat[i] = t:to(dtype) end
      end
      T.manual_seed(3)
      local y, pull = T.vjp(function(...)
        local results = {}
        for _, t in ipairs(support.results(g, table.pack(...))) do
          if support.is_tensor(t) and t:is_floating_point() then results[#results + 1] = t end
        end
        return results
      end, table.unpack(flat))
      local dys = {}
      for i, t in ipairs(y) do dys[i] = (t:detach() * 0 + 1.5):nan_to_num() + T.rand_like(t) end
      for _, dx in ipairs(table.pack(pull(dys))) do
        if support.is_tensor(dx) then out[#out + 1] = dx end
      end
    end
    return out
  end

  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and info.differentiable and not info.flags.mutates then
      it(info.name, function()
        for _, dtype in ipairs { "f64", "f32" } do
          local ok, split = pcall(gradients, info.name, dtype)
          if ok or dtype == "f64" then
            assert.is_true(ok, split)
            local plain = unsplit(gradients, info.name, dtype)
            assert.equal(#plain, #split)
            for i, g in ipairs(split) do near.same_bits(g, plain[i]) end
          end
        end
      end)
    end
  end
end)
