-- SPDX-License-Identifier: MIT
-- Random numbers inside T.vmap: along each level of a nest, elements draw alike where it says "same", and differ where
-- it says "different", whatever the draw's argument stands for; in pieces (chunk_size) as at once; in graphs as
-- outside; and gradients go through the numbers that were drawn.

local T = require "perilune"
local fails = require("spec.support.near").fails
local F = T.nn.F

-- Draws of 24 numbers: from nothing, or from what x, zeros, stands for.
local DRAWS = {
  rand = { function() return T.rand(24) end, shared = true },
  normal = { function() return T.normal(0, 1, { 24 }) end, shared = true },
  randint = { function() return T.randint(1, 1 << 20, { 24 }) end, shared = true },
  randperm = { function() return T.randperm(24) end, shared = true },
  ["bernoulli of shared"] = { function() return T.bernoulli(T.full({ 24 }, 0.5)) end, shared = true },
  ["dropout of shared"] = { function() return F.dropout(T.ones(24), 0.5) end, shared = true },
  ["multinomial of shared"] = { function() return T.multinomial(T.ones(40), 24) end, shared = true },
  rand_like = { function(x) return T.rand_like(x) end },
  bernoulli = { function(x) return T.bernoulli(x + 0.5) end },
  dropout = { function(x) return F.dropout(x + 1, 0.5) end, grad = true },
  alpha_dropout = { function(x) return F.alpha_dropout(x + 1, 0.5, true) end, grad = true },
  multinomial = { function(x) return T.multinomial(x + 1, 24) end },
  gumbel_softmax = { function(x) return F.gumbel_softmax(x) end, fills = true },
  attention = { function(x)
    local q = (x * 0 + 1):view(1, 4, 6)
    return F.scaled_dot_product_attention(q, q, T.arange(24):float():view(1, 4, 6), { dropout_p = 0.5 })
  end },
  uniform_ = { function(x) return (x * 1):uniform_() end, fills = true },
  normal_ = { function(x) return (x * 1):normal_() end, fills = true },
  bernoulli_ = { function(x) return (x * 1):bernoulli_(0.5) end, fills = true },
  exponential_ = { function(x) return (x * 1):exponential_() end, fills = true },
  random_ = { function(x) return (x * 1):random_(0, 1 << 20) end, fills = true },
}
local MODES = { "same", "different" }

local function equal(a, b) return a:equal(b) end

-- Does y, [outer, inner, …], vary along its first and second dimension?
local function varies(y)
  local outer, inner, mixed = false, false, true
  for i = 1, y:size(1) do
    for j = 1, y:size(2) do
      if i > 1 and equal(y[i][j], y[1][j]) then mixed = false elseif i > 1 then outer = true end
      if j > 1 and equal(y[i][j], y[i][1]) then mixed = false elseif j > 1 then inner = true end
    end
  end
  return outer, inner, mixed
end

describe("random numbers inside T.vmap:", function()
  for name, draw in pairs(DRAWS) do
    local f = draw[1]
    it(name, function()
      local x = T.zeros(4, 24)
      for _, mode in ipairs(MODES) do
        local each = T.vmap(f, { randomness = mode })
        T.manual_seed(3)
        local y = each(x)
        local after = T.get_rng_state()
        for i = 2, 4 do assert.equal(mode == "same", equal(y[1], y[i]), ("%s, element %d"):format(mode, i)) end
        assert.is_false(equal(y, each(x)), mode .. ": the next call draws anew")
        if mode == "same" then -- what one call outside draws
          T.manual_seed(3)
          assert.is_true(equal(f(x[1]), y[1]), "as outside")
        end
        for size = 1, 3, 2 do
          T.manual_seed(3)
          local pieces = T.vmap(f, { randomness = mode, chunk_size = size })(x)
          for i = 1, 4 do
            for j = i + 1, 4 do
              assert.equal(mode == "same", equal(pieces[i], pieces[j]), ("%s, in pieces of %d"):format(mode, size))
            end
          end
          if mode == "same" then
            assert.is_true(equal(pieces, y), "in pieces as at once")
            assert.equal(after, T.get_rng_state(), "the state afterwards")
          end
        end
      end
      assert.is_false((pcall(T.vmap(f), x)))
    end)

    it(name .. ", in a nest", function()
      for _, outer in ipairs(MODES) do
        for _, inner in ipairs(MODES) do
          local forms = {
            ["of the inner one's"] = function()
              return T.vmap(T.vmap(f, { randomness = inner }), { randomness = outer })(T.zeros(3, 4, 24))
            end,
            ["of the outer one's"] = function()
              return T.vmap(function(x)
                return T.vmap(function(z) return f(x) + z end, { randomness = inner })(T.zeros(4, 1))
              end, { randomness = outer })(T.zeros(3, 24))
            end,
            ["of nobody's"] = function()
              local x = T.zeros(24)
              return T.vmap(function(a)
                return T.vmap(function(z) return f(x) + z + a end, { randomness = inner })(T.zeros(4, 1))
              end, { randomness = outer })(T.zeros(3, 1))
            end,
          }
          for what, g in pairs(forms) do
            local where = ("%s, %s outside, %s inside"):format(what, outer, inner)
            local ok, y = pcall(g)
            if ok then
              local o, i, mixed = varies(y)
              assert.equal(outer == "different", o, where)
              assert.equal(inner == "different", i, where)
              assert.equal(outer == "different" and inner == "different", mixed, where)
            else -- it fills a tensor that these elements share
              assert.is_truthy(draw.fills and what ~= "of the inner one's", where .. ": " .. tostring(y))
              assert.is_truthy(tostring(y):find("a tensor that is the same for all elements", 1, true), tostring(y))
            end
          end
        end
        fails("draws random numbers; say", T.vmap(function(x)
          return T.vmap(function(z) return f(x) + z end)(T.zeros(4, 1))
        end, { randomness = outer }), T.zeros(3, 24))
      end
    end)

    it(name .. ", in T.jit", function()
      local x = T.zeros(4, 24)
      for _, mode in ipairs(MODES) do
        for _, size in ipairs { 4, 3 } do
          local each = T.vmap(f, { randomness = mode, chunk_size = size })
          local compiled = T.jit(function(...) return each(...) end)
          T.manual_seed(5)
          local ok, y = pcall(compiled, x)
          if ok then
            local z = compiled(x)
            T.manual_seed(5)
            if mode == "same" or size == 4 then
              assert.is_true(equal(each(x), y), mode)
              assert.is_true(equal(each(x), z), mode .. ", again")
            end
          else
            assert.is_truthy(tostring(y):find("which a graph cannot say", 1, true), tostring(y))
            assert.is_true(mode == "same" and not draw.shared, name .. ", " .. mode)
          end
        end
      end
    end)
  end

  for name, draw in pairs(DRAWS) do
    if draw.grad then
      it(name .. ": gradients of each element, of what they share, too", function()
        local f = function(w) return draw[1](w):sin() end
        local function gradient(w) return (T.grad(function(...) return f(...):sum() end, w)) end
        local function pushed(w) return (select(2, T.jvp(f, w, T.ones(24)))) end
        local w = T.linspace(-1, 1, 24)
        for _, mode in ipairs(MODES) do
          for what, g in pairs { gradient = gradient, tangent = pushed } do
            T.manual_seed(8)
            local shared = T.vmap(function(z) return g(w) + z end, { randomness = mode })(T.zeros(5, 1))
            T.manual_seed(8)
            local own = T.vmap(g, { randomness = mode })(w:expand(5, 24))
            T.manual_seed(8)
            for i = 1, 5 do
              if mode == "same" then T.manual_seed(8) end
              local want = g(w)
              assert.is_true(T.allclose(want, shared[i]), ("%s, %s of what is shared, no. %d"):format(mode, what, i))
              assert.is_true(T.allclose(want, own[i]), ("%s, %s of its own, element %d"):format(mode, what, i))
            end
          end
        end
      end)
    end
  end

  it("generators of the script's draw alike in all pieces, too", function()
    local g = T.Generator(1)
    local function f(x) return x + T.rand(6, { generator = g }) end
    local y = T.vmap(f, { randomness = "same", chunk_size = 2 })(T.zeros(5, 6))
    for i = 2, 5 do assert.is_true(equal(y[1], y[i])) end
    local other = T.Generator(1)
    assert.is_true(equal(y[1], T.rand(6, { generator = other })))
    assert.equal(other:get_state(), g:get_state())
  end)

  it("what all share is not filled with what differs", function()
    for _, fill in ipairs {
      function(y) y:uniform_() end, function(y) T.nn.init.normal_(y) end,
      function(y) T.bernoulli(T.full({ 3 }, 0.5), { out = y }) end,
    } do
      local function f(x)
        local y = T.ones(3)
        fill(y)
        return y + x
      end
      local why = "a tensor that is the same for all elements"
      fails(why, T.vmap(f, { randomness = "different" }), T.zeros(4, 3))
      fails("draws random numbers; say", T.vmap(f), T.zeros(4, 3))
      fails(why, T.vmap(T.vmap(f, { randomness = "same" }), { randomness = "different" }), T.zeros(2, 4, 3))
      fails(why, T.vmap(function(x)
        local y = x * 1
        return T.vmap(function(z)
          fill(y)
          return y + z
        end, { randomness = "different" })(T.zeros(4, 1))
      end, { randomness = "same" }), T.zeros(2, 3))
      local y = T.vmap(T.vmap(f, { randomness = "same" }), { randomness = "same" })(T.zeros(2, 4, 3))
      assert.is_true(equal(y, y[1][1]:expand(2, 4, 3)))
    end
  end)
end)
