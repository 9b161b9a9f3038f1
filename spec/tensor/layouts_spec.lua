-- SPDX-License-Identifier: MIT
-- A pointwise result lies in memory as its operands do, by PyTorch's rule: every pointwise op, on operands with the
-- strides of spec/golden/layouts.lua, has the strides that PyTorch gives, eagerly and compiled, and the values of
-- row-major operands.

local T = require "perilune"
local support = require "spec.ops.support"
local random = require "spec.support.random"
local root = os.getenv "PERILUNE_ROOT" or "."
local golden = dofile(root .. "/spec/golden/layouts.lua")

-- Kernels that want row-major arrays, and functions made of several ops, each of which keeps what it is given.
local OTHERS = { tril = true, triu = true, polygamma = true, kron = true, prelu_core = true, gammainc = true,
  gammaincc = true }

local function strides(x) return table.concat(x:stride(), ",") end
local function on_device() return T.zeros(1):device() ~= "cpu" end

-- The same, but for sizes of 1, whose strides mean nothing.
local function alike(want, y, what)
  for d, n in ipairs(y:shape()) do
    if n ~= 1 and want[d] ~= y:stride(d) then
      error(("%s: strides %s, PyTorch's are %s"):format(what, strides(y), table.concat(want, ",")))
    end
  end
end

-- A tensor of those sizes and strides, with the dtype of like.
local function operand(g, sizes, lie, like)
  local n = 1
  for d, s in ipairs(sizes) do n = n + (s - 1) * lie[d] end
  local whole = like:dtype() == "bool" or like:dtype():find "[iu]"
  local x = random.tensor(T, whole and g:ints(n, 0, 1) or g:list(n, 0.2, 0.9), { n }, like:dtype())
  return x:as_strided(sizes, lie)
end

local function same(a, b, what)
  assert(a:dtype() == b:dtype() and table.concat(a:shape(), ",") == table.concat(b:shape(), ","), what)
  for i, v in ipairs(b:contiguous():reshape(-1):totable()) do
    local u = a:contiguous():reshape(-1):get(i)
    assert(u == v or (u ~= u and v ~= v), ("%s: element %d is %s, should be %s"):format(what, i, u, v))
  end
end

-- The positions of tensors among the arguments.
local function tensors_of(args)
  local at = {}
  for k = 1, args.n do if support.is_tensor(args[k]) then at[#at + 1] = k end end
  return at
end

local function with(args, at, list)
  local out = table.move(args, 1, args.n, 1, {})
  for k, x in ipairs(list) do out[at[k]] = x end
  return out
end

describe("the layout of results", function()
  local asked = {}
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if info.class == "pointwise" and row and not info.flags.mutates and not OTHERS[info.name] then
      asked[#asked + 1] = info.name
      it("of " .. info.name .. " is PyTorch's", function()
        if on_device() then return end -- of which only channels last follow
        local args, f = support.arguments(info.name)[1], support.raw(info.name)
        local at, g = tensors_of(args), random.new(5)
        for number, case in ipairs(golden[#at] or {}) do
          local list, rows = {}, {}
          for k, lie in ipairs(case[1]) do
            list[k] = operand(g, lie[1], lie[2], args[at[k]])
            rows[k] = list[k]:contiguous()
          end
          local what = ("%s, case %d"):format(info.name, number)
          local given = with(args, at, list)
          local y = f(table.unpack(given, 1, args.n))
          alike(case[2], y, what)
          same(y, f(table.unpack(with(args, at, rows), 1, args.n)), what)
          if number % 6 == 0 then
            local jitted = T.jit(function(...)
              local z = f(...)
              return z, strides(z) .. tostring(z:is_contiguous())
            end)
            for _ = 1, 2 do
              local z, told = jitted(table.unpack(given, 1, args.n))
              assert.equal(strides(y) .. tostring(y:is_contiguous()), told, what)
              assert.equal(strides(y), strides(z), what .. ", compiled")
              same(z, y, what .. ", compiled")
            end
          end
        end
      end)
    end
  end

  it("is asked of all pointwise ops", function() assert.is_true(#asked > 90, #asked .. " ops") end)

  it("of what is made like a tensor is that of its clone", function()
    if on_device() then return end
    for number, case in ipairs(golden[1]) do
      local x = operand(random.new(number), case[1][1][1], case[1][1][2], T.zeros(1))
      for _, name in ipairs { "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like" } do
        alike(case[2], T[name](x), name .. " " .. number)
      end
      alike(case[2], T.full_like(x, 3), "like " .. number)
      alike(case[2], x:clone(), "like " .. number)
      alike(case[2], x:to "f64", "like " .. number)
      T.manual_seed(3)
      local a = T.rand_like(x)
      T.manual_seed(3)
      assert.is_true(T.equal(a, T.rand_like(x:contiguous())))
    end
  end)

  it("goes through chains, gradients, writes and compiled functions", function()
    if on_device() then return end
    T.manual_seed(4)
    local x, w = T.randn(5, 4, 3), T.randn(4, 5):requires_grad_()
    local function f(a, b)
      local y = (a:permute(3, 2, 1) * b):tanh() + b
      local z = y:exp() * 2
      z:select(1, 1):add_(y:select(1, 2))
      local v = (z + y):transpose(2, 3)
      return v, v:is_contiguous() and 1 or 2, y:stride(1)
    end
    local j = T.jit(f)
    for _, a in ipairs { x, x:permute(2, 3, 1):contiguous():permute(3, 1, 2) } do
      w.grad = nil
      local y, two, s = f(a, w)
      y:pow(2):sum():backward()
      local grad = w.grad
      for _ = 1, 4 do
        w.grad = nil
        local z, one, t = j(a, w)
        assert.equal(strides(y), strides(z))
        assert.equal(two, one)
        assert.equal(s, t)
        assert.is_true(T.allclose(y:detach(), z:detach()))
        z:pow(2):sum():backward()
        assert.is_true(T.allclose(grad, w.grad))
        assert.is_true(w.grad:is_contiguous())
      end
    end
  end)

  -- Whether a result is a view or a copy of what was reshaped hangs on the layout, and so does what a write reaches.
  it("decides what writes through reshape reach, compiled as eagerly, also where arguments repeat elements", function()
    if on_device() then return end
    local orders = { { 1, 2, 3 }, { 2, 1, 3 }, { 3, 2, 1 }, { 2, 3, 1 }, { 1, 3, 2 } }
    local sizes, g = { 4, 2, 3 }, random.new(11)
    local function lies(order, repeats)
      local whole, back = {}, {}
      for k, d in ipairs(order) do whole[k], back[d] = repeats[d] and 1 or sizes[d], k end
      return random.tensor(T, g:list(whole[1] * whole[2] * whole[3], 0.2, 0.9), whole, "f32")
        :permute(table.unpack(back)):expand(sizes)
    end
    local bodies = {
      function(a, b) return a * b end, function(a, b) return T.lerp(b, a, a) + a end,
      function(a) return a:exp() * 2 end,
      function(a, b) return (a + 1):addcmul(b, a) end,
    }
    local reached, tried = 0, 0
    for _, first in ipairs(orders) do
      for bits = 0, 6 do
        local a = lies(first, { bits & 1 ~= 0, bits & 2 ~= 0, bits & 4 ~= 0 })
        for _, second in ipairs(orders) do
          local b = lies(second, {})
          for k, body in ipairs(bodies) do
            local function f(...)
              local y = body(...)
              y:reshape(-1):fill_(7)
              return y
            end
            local y, z = f(a, b), T.jit(f, { max_traces = 1000 })(a, b)
            local what = ("body %d of %s and %s"):format(k, strides(a), strides(b))
            assert(strides(y) == strides(z), what)
            same(z, y, what)
            reached, tried = reached + (y:eq(7):all():item() and 1 or 0), tried + 1
          end
        end
      end
    end
    assert.is_true(reached > 50 and reached < tried - 50, reached .. " of " .. tried)
    local x = T.ones(1, 3):expand(4, 3)
    assert.is_true(rawequal(x, T.jit(function(t) return t end)(x)))
    local j = T.jit(function(t) return t * 2 + 1 end)
    for _, n in ipairs { 4, 5, 6, 7, 4 } do -- also in traces that are made again for other sizes
      local t = T.arange(3):to("f32"):view(1, 3):expand(n, 3)
      same(j(t), t * 2 + 1, "of " .. n)
    end
  end)

  it("survives a limit of memory", function()
    if on_device() then return end
    local x = T.randn(64, 1000)
    local want = x:t():exp():add(1):clone()
    local _ <close> = T.memory_limit(1800000)
    local y = x:t():exp():add(1)
    local others = {}
    for k = 1, 6 do others[k] = (x:t() * k):exp() end -- until y has to go
    assert.is_true(T.equal(others[1], x:t():mul(1):exp()))
    assert.equal("1,1000", strides(y))
    assert.is_true(T.equal(y, want))
  end)
end)
