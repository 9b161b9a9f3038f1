-- SPDX-License-Identifier: MIT
-- Keys in brackets, by generated ones: a 0-d integer tensor picks what the number picks, in reading, in writing, in
-- gradients, in T.jit and under T.vmap; and a value may have dimensions of size 1 in front.

local T = require "perilune"
local random = require "spec.support.random"

local function i64(v) return T.tensor(v, { dtype = "i64" }) end

-- Two keys for a shape, which mean the same: with numbers, and with 0-d tensors in their places.
local function keys(rng, shape)
  local numbers, tensors, block = {}, {}, { rng:int(1, 3) }
  if rng:int(1, 3) == 1 then block[2] = rng:int(1, 2) end
  for d, n in ipairs(shape) do
    local kind = rng:int(1, 6)
    local number, tensor
    if kind <= 2 then
      number = rng:int(1, n) * (rng:int(1, 2) == 1 and 1 or -1)
      tensor = i64(number)
    elseif kind == 3 then
      number = {}
    elseif kind == 4 then
      local from = rng:int(1, n)
      number = { from, rng:int(from, n) }
    elseif kind == 5 then
      local list = {}
      for k = 1, block[1] * (block[2] or 1) do list[k] = rng:int(1, n) end
      number = i64(list):view(block)
    else
      number = i64 { rng:int(1, n) }
    end
    numbers[d], tensors[d] = number, tensor or number
  end
  return numbers, tensors
end

local function each(n, f)
  local rng = random.new(28)
  for case = 1, n do
    local shape = {}
    for d = 1, rng:int(2, 5) do shape[d] = rng:int(1, 4) end
    local a, b = keys(rng, shape)
    f(case, shape, a, b, rng)
  end
end

-- index tensors repeat positions: values that do not depend on which is written last
local function value_for(x, key) return x[key] * 2 end

describe("a 0-d integer tensor in a key", function()
  it("reads what the number reads, with its gradient", function()
    each(300, function(case, shape, a, b)
      local x = T.randn(shape):requires_grad_()
      local y = x:detach():clone():requires_grad_()
      local p, q = x[a], y[b]
      assert.is_true(p:equal(q), ("case %d: %s, %s"):format(case, p:describe(), q:describe()))
      local c = T.randn_like(p)
      T.mul(p, c):sum():backward()
      T.mul(q, c):sum():backward()
      assert.is_true(x.grad:allclose(y.grad), "gradient of case " .. case)
    end)
  end)

  it("writes what the number writes, with its gradient", function()
    each(200, function(case, shape, a, b)
      local w = T.randn(shape)
      local v = value_for(w, a):detach()
      local function write(key)
        local x, value = w:clone():requires_grad_(), v:clone():requires_grad_()
        local y = x * 1
        y[key] = value
        T.mul(y, w):sum():backward()
        return y, x.grad, value.grad
      end
      local y1, x1, v1 = write(a)
      local y2, x2, v2 = write(b)
      assert.is_true(y1:equal(y2), "case " .. case)
      assert.is_true(x1:equal(x2) and v1:equal(v2), "gradients of case " .. case)
    end)
  end)

  it("does so in T.jit and under T.vmap", function()
    each(30, function(case, shape, a, b)
      local x = T.randn(shape)
      assert.is_true(T.jit(function(t) return t[b] + 0 end)(x):equal(x[a]), "T.jit, case " .. case)
      local batch = T.randn(3, table.unpack(shape))
      local got = T.vmap(function(t) return t[b] end)(batch)
      for k = 1, 3 do assert.is_true(got[k]:equal(batch[k][a]), "T.vmap, case " .. case) end
    end)
  end)
end)

describe("a value with dimensions of size 1 in front", function()
  it("is written as if it had none, and gets its gradient", function()
    each(200, function(case, shape, a, _, rng)
      local w = T.randn(shape)
      local v = value_for(w, a):detach()
      local y = w:clone()
      y[a] = v
      local long = v
      for _ = 1, rng:int(1, 2) do long = long:unsqueeze(1) end
      local x = w:clone():requires_grad_()
      local z = x * 1
      long = long:clone():requires_grad_()
      z[a] = long
      assert.is_true(z:equal(y), "case " .. case)
      z:sum():backward()
      assert.same(long:shape(), long.grad:shape())
    end)
    local h = T.zeros(2, 3)
    h[2] = T.ones(1, 3)
    h["1, 2"] = T.tensor { { 5 } }
    assert.same({ { 0, 5, 0 }, { 1, 1, 1 } }, h:totable())
    assert.has_error(function() h[1] = T.ones(2, 3) end)
  end)
end)

describe("keys in T.jit", function()
  it("do at other sizes what they do outside: the same values, or an error", function()
    local rng = random.new(31)
    local refused, done = 0, 0
    for case = 1, 150 do
      local n, key, masked = rng:int(1, 3), {}, 0
      for d = 1, rng:int(1, n) do
        key[d] = ({ 1, -1, {}, { 1, 1 }, { 1, -1 }, { 2, -1 }, "mask" })[rng:int(1, 7)]
        if key[d] == "mask" then
          key[d] = masked == 0 and "mask" or 1
          masked = d
        end
      end
      for d = 1, #key do if key[d] == "mask" then masked = d end end
      local writes, k = rng:int(1, 3) > 1, rng:int(0, 4)
      local function f(x, mask, v)
        local at = {}
        for d = 1, #key do at[d] = key[d] == "mask" and mask or key[d] end
        if not writes then return x[at] end
        local y = x * 1
        y[at] = v
        return y
      end
      local jitted, sizes, wide = T.jit(f), {}, {}
      for call = 1, 6 do
        for d = 1, n do if call == 1 or rng:int(1, 3) == 1 then sizes[d] = ({ 1, 2, 3, 3 })[rng:int(1, 4)] end end
        for d = 1, k do if call == 1 or rng:int(1, 3) == 1 then wide[d] = ({ 1, 1, 2, 3 })[rng:int(1, 4)] end end
        local m = rng:int(1, 4) == 1 and 1 or sizes[math.max(masked, 1)]
        local x, v = T.randn(sizes), k == 0 and T.randn() or T.randn(table.move(wide, 1, k, 1, {}))
        local mask = T.ones({ m }, { dtype = "bool" })
        local fine, want = pcall(f, x, mask, v)
        local also, got = pcall(jitted, x, mask, v)
        -- a mask whose positions are counted is refused in a graph
        if fine or also then
          if not (fine and not also and tostring(got):find "which a graph does not know") then
            assert.equal(fine, also, ("case %d, call %d: %s"):format(case, call, tostring(fine and got or want)))
            assert.is_true(want:equal(got), ("case %d, call %d"):format(case, call))
            done = done + 1
          end
        else
          refused = refused + 1
        end
      end
    end
    assert.is_true(done > 200 and refused > 100, done .. " and " .. refused)
  end)
end)

describe("a number under a mask", function()
  it("is written in T.jit and under T.vmap, too, with its gradient", function()
    local rng = random.new(29)
    for case = 1, 120 do
      local shape, key = {}, {}
      for d = 1, rng:int(1, 4) do shape[d] = rng:int(1, 4) end
      local from = rng:int(1, #shape)
      local to = rng:int(from, #shape)
      for d = 1, from - 1 do key[d] = rng:int(1, 2) == 1 and {} or rng:int(1, shape[d]) end
      local x, v = T.randn(shape), T.randn()
      local function mask_of(t)
        for d = #shape, 1, -1 do
          if d < from or d > to then t = t:sum(d) end
        end
        return t:gt(0)
      end
      local function f(t, value)
        local y, k = t * 1, table.move(key, 1, #key, 1, {})
        k[from] = mask_of(t)
        y[k] = value
        return y
      end
      local function slopes(g)
        local a, b = x:clone():requires_grad_(), v:clone():requires_grad_()
        local y = g(a, b)
        T.mul(y, x):sum():backward()
        return y, a.grad, b.grad
      end
      local y1, a1, b1 = slopes(f)
      local y2, a2, b2 = slopes(T.jit(f))
      assert.is_true(y1:equal(y2) and a1:equal(a2) and b1:equal(b2), "T.jit, case " .. case)
      -- by hand: the mask's positions in the whole
      local whole = mask_of(x)
      for _ = to + 1, #shape do whole = whole:unsqueeze(-1) end
      for d = from - 1, 1, -1 do
        whole = whole:unsqueeze(1)
        if type(key[d]) == "number" then
          local at = T.zeros(shape[d]):bool()
          at[key[d]] = true
          for _ = d + 1, #shape do at = at:unsqueeze(-1) end
          whole = T.logical_and(whole, at)
        end
      end
      assert.is_true(y1:equal(T.where(whole, v, x)), "case " .. case)
      local batch = T.randn(3, table.unpack(shape))
      local got = T.vmap(function(t) return f(t, 2.0) end)(batch)
      for k = 1, 3 do assert.is_true(got[k]:equal(f(batch[k], 2.0)), "T.vmap, case " .. case) end
    end
  end)

  it("must be under a mask that fits", function()
    local x = T.zeros(3, 4)
    assert.has_error(function() x[T.ones(1, 4):bool()] = 1 end)
    assert.has_error(function() x[T.ones(4):bool()] = 1 end)
    local f = T.jit(function(t, mask)
      local y = t * 1
      y[mask] = 1
      return y
    end)
    assert.same({ { 1, 1 } }, f(T.zeros(1, 2), T.ones(1, 2):bool()):totable())
    assert.has_error(function() f(T.zeros(3, 2), T.ones(1, 2):bool()) end)
  end)
end)
