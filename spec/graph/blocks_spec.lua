-- SPDX-License-Identifier: MIT
-- Blocks of channels between convolutions (engine/graph/passes/blocks.c): random networks have the bits that they have
-- outside of a graph, whatever is between their convolutions, and the plan shows what is computed in blocks.

local T = require "perilune"
local on_device = require "spec.support.device".mode ~= nil
local nn, F = T.nn, T.nn.F

-- How many results of the plan's nodes lie in blocks.
local function in_blocks(jitted)
  local n, turned = 0, 0
  for _, node in ipairs(jitted:plan():list()) do
    local s = node.shapes[1]
    if #s == 5 and (s[5] == 16 or s[5] == 8) then
      if node.op == "clone" then turned = turned + 1 end
      if node.op ~= "clone" and node.op ~= "reshape" and node.op ~= "permute" then n = n + 1 end
    elseif node.op == "clone" then
      turned = turned + 1
    end
  end
  return n, turned
end

local function equal_bits(a, b)
  assert.same(a:shape(), b:shape())
  assert.is_true(a:eq(b):logical_or(a:isnan():logical_and(b:isnan())):all():item())
end

-- f(x) and its compiled form, called twice, to the bit; → the compiled form.
local function same(f, x)
  local jitted = T.jit(function(v) return f(v) end)
  T.no_grad(function()
    local want = table.pack(f(x))
    for _ = 1, 2 do
      local got = table.pack(jitted(x))
      assert.equal(want.n, got.n)
      for i = 1, want.n do equal_bits(want[i], got[i]) end
    end
    assert.is_true(jitted:plan():verify())
  end)
  return jitted
end

local net = {}
local function conv(name, ...)
  net[name] = net[name] or nn.Conv2d(...)
  return net[name]
end

-- Without the library, and below AVX2, there are no blocks.
local function possible()
  local a, b = conv("a", 32, 64, 3, { stride = 2, padding = 1 }), conv("b", 64, 64, 1)
  return not on_device and in_blocks(same(function(x) return b(a(x)) end, T.randn(2, 32, 40, 40))) > 0
end

describe("blocks of channels", function()
  local have
  setup(function()
    T.manual_seed(1)
    have = possible()
    conv("c", 64, 128, 1)
    conv("d", 32, 128, 1, { stride = 2 })
    conv("e", 128, 64, 1)
    conv("dw", 64, 64, 3, { padding = 1, groups = 64 })
    conv("w", 64, 64, 3, { padding = 1 })
    conv("s", 32, 64, 1, { stride = 2 })
    conv("odd", 64, 40, 1)
    conv("stem", 3, 64, 7, { stride = 2, padding = 3 })
  end)
  teardown(function() net = {} end)

  -- name → function of x, results in blocks, and how many are turned (nil: not asked); x [n, 32, h, w]
  local cases = {
    ["tails and all"] = { function(x) return net.c(net.b(net.a(x):relu()):relu()) end, 2, 0 },
    ["a residual block"] = { function(x)
      local y = net.a(x):relu()
      local z = (net.b(net.b(y):relu()) + y):relu()
      return net.c(z)
    end, 3, 0 },
    ["a shortcut that no convolution reads"] = { function(x)
      return net.e((net.c(net.a(x):relu()) + net.d(x)):relu())
    end, 3, 0 },
    ["what is read in the plain layout, too"] = { function(x)
      local y = net.a(x):relu()
      return net.b(y), y:mean({ 3, 4 }), y:sum()
    end, 1, 1 },
    ["a sum with what lies plain"] = { function(x)
      return net.b((net.a(x) + T.sin(net.s(x):flip { 3 })):relu())
    end, 1, 1 },
    ["functions, numbers and channels' numbers"] = { function(x)
      local y = net.a(x)
      y = F.silu(y) * 2 + 0.5
      y = y * y:mean({ 3, 4 }, { keepdim = true }):sigmoid() - net.b.bias:view(64, 1, 1)
      return net.b(T.clamp(y, { min = -1, max = 1 }))
    end, nil, nil },
    ["max pooling"] = { function(x)
      local y = F.max_pool2d(net.a(x):relu(), 3, { stride = 2, padding = 1 })
      return net.b(F.max_pool2d(y, { 2, 1 }))
    end, 3, 0 },
    ["joined channels"] = { function(x)
      local y = net.a(x)
      return net.e(T.cat({ y, net.b(y):relu() }, 2))
    end, 3, 0 },
    ["channels for themselves"] = { function(x) return net.b(net.dw(net.a(x):relu()):relu()) end, 2, 0 },
    ["Winograd's tiles"] = { function(x) return net.w(net.w(net.a(x):relu()):relu()) end, 2, 0 },
    ["a result that is read"] = { function(x)
      local y = net.a(x)
      return y, net.b(y)
    end, 0, 0 },
    ["channels that are no blocks"] = { function(x) return net.odd(net.a(x)):relu() end, 1, 0 },
    ["functions of rows and columns"] = { function(x)
      local y = net.a(x)
      return net.b(y * T.arange(y:size(4)) + y:transpose(3, 4):contiguous():transpose(3, 4))
    end, nil, nil },
  }
  for name, c in pairs(cases) do
    it("are between convolutions: " .. name, function()
      for _, shape in ipairs { { 2, 32, 80, 80 }, { 1, 32, 117, 81 }, { 5, 32, 64, 64 } } do
        local x = T.randn(shape)
        x[{ 1, 1, 1, 1 }] = 0 / 0
        local n, turned = in_blocks(same(c[1], x))
        if have and c[2] then assert.equal(c[2], n) end
        if have and c[3] then assert.equal(c[3], turned) end
      end
    end)
  end

  it("are there for ops that compute each element for itself, and for no others: all ops", function()
    local x, number = T.randn(2, 32, 24, 24), T.tensor(0.75)
    local forms = {
      function(y) return y end, function(y) return y, y * 0.5 end, function(y) return y, y * 0.5, y + 1 end,
      function(y) return y, net.b.bias:view(64, 1, 1) end, function(y) return y, number end,
      function(y) return y, net.b.bias:view(1, 64, 1, 1), number end, function(y) return number, y end,
      function(y) return y, 1 end, function(y) return y, 2 end, function(y) return y, -2 end,
    }
    local calls, inside = 0, 0
    local y = T.no_grad(function() return net.a(x) end)
    for _, info in ipairs(T.core.ops()) do
      local op = not info.flags.internal and not info.flags.mutates and not info.flags.seeded and T[info.name]
      for k, form in ipairs(op and forms or {}) do
        local ok, z = pcall(T.no_grad, function() return (op(form(y:clone()))) end)
        if ok and T.is_tensor(z) and z:dtype() == "f32" and z:dim() == 4 and z:size(2) == 64 then
          local fine, jitted = pcall(same, function(v) return net.b((op(form(net.a(v))))) end, x)
          local trace = not fine and tostring(jitted):find("T.jit", 1, true)
          assert(fine or trace, ("%s, form %d: %s"):format(info.name, k, tostring(jitted)))
          calls, inside = calls + 1, inside + (fine and in_blocks(jitted) > 1 and 1 or 0)
        end
      end
    end
    assert.is_true(calls > 200, calls .. " calls")
    if have then assert.is_true(inside > 100, inside .. " in blocks") end
  end)

  it("begin behind the first convolution", function()
    local f = function(x) return net.b(F.max_pool2d(net.stem(x):relu(), 3, { stride = 2, padding = 1 }):relu()) end
    local n, turned = in_blocks(same(f, T.randn(1, 3, 90, 90)))
    if have then assert.same({ 3, 0 }, { n, turned }) end
  end)

  it("stay out of graphs that need gradients", function()
    local f = T.jit(function(x) return net.b(net.a(x):relu()):sum() end)
    f(T.randn(2, 32, 40, 40)):backward()
    net.a:zero_grad()
    net.b:zero_grad()
    assert.equal(0, (in_blocks(f)))
  end)

  -- Random networks: a list of images, each step makes another of some of them.
  local steps = {
    function(list, pick) -- a convolution
      local x, groups = list[pick(#list)], pick(6) == 1 and 16 or 1
      local c, k = x:size(2), ({ 1, 1, 3, 3, 5 })[pick(5)]
      local o = ({ 16, 32, 64, 64, 128, 24, 3 })[pick(groups > 1 and 5 or 7)]
      if c % groups > 0 then groups = 1 end
      if c >= 32 and c == o and pick(3) == 1 then groups = c end
      local w, b = T.randn(o, c // groups, k, k) / math.sqrt(c // groups * k * k), pick(2) == 1 and T.randn(o) or nil
      local options = { stride = pick(4) == 1 and 2 or 1, padding = k // 2, groups = groups }
      return function(v) return F.conv2d(v[1], w, b, options) end, { x }
    end,
    function(list, pick) return ({ T.relu, F.silu, T.sigmoid, T.neg })[pick(4)], { list[pick(#list)] }, true end,
    function(list, pick) -- two of one shape
      local a, same_shape = list[pick(#list)], {}
      for _, b in ipairs(list) do
        if table.concat(a:shape(), ",") == table.concat(b:shape(), ",") then same_shape[#same_shape + 1] = b end
      end
      return ({ T.add, T.mul, T.maximum })[pick(3)], { a, same_shape[pick(#same_shape)] }, true
    end,
    function(list, pick)
      local x = list[pick(#list)]
      if math.min(x:size(3), x:size(4)) < 3 then return nil end
      return function(v) return (F.max_pool2d(v[1], 3, { stride = 2, padding = 1 })) end, { x }
    end,
    function(list, pick) -- channels joined
      local a, fits = list[pick(#list)], {}
      for _, b in ipairs(list) do
        if a:size(1) == b:size(1) and a:size(3) == b:size(3) and a:size(4) == b:size(4) and b:size(2) < 200 then
          fits[#fits + 1] = b
        end
      end
      if #fits == 0 or a:size(2) > 200 then return nil end
      return function(v) return T.cat(v, 2) end, { a, fits[pick(#fits)] }
    end,
    function(list, pick)
      local x = list[pick(#list)]
      local n, c = x:size(1), x:size(2)
      local s = ({ T.randn(1, c, 1, 1), T.randn(c, 1, 1), T.randn(n, c, 1, 1) })[pick(3)]
      return function(v) return v[1] * s end, { x }
    end,
    function(list, pick) -- what wants the plain layout
      return ({ function(v) return v[1]:flip { 4 } end, function(v) return v[1]:softmax(2) end,
        function(v) return v[1]:mean({ 3, 4 }, { keepdim = true }) + v[1] end })[pick(3)], { list[pick(#list)] }
    end,
  }

  it("keep the bits of random networks", function()
    local seeds, total = tonumber(os.getenv "PERILUNE_FUZZ_BLOCKS") or 25, 0
    for seed = 1, seeds do
      T.manual_seed(seed)
      local state = seed * 2654435761 % 4294967296
      local function pick(n)
        state = (state * 1664525 + 1013904223) % 4294967296
        return state // 65536 % n + 1
      end
      local x = T.randn(pick(3), ({ 32, 48, 64, 3 })[pick(4)], 24 + pick(40), 24 + pick(40))
      local tape, values, place = {}, { x }, { [x] = 1 }
      T.no_grad(function()
        for _ = 1, 6 + pick(14) do
          local f, args, spread = steps[pick(3) > 1 and 1 or pick(#steps)](values, pick)
          if f then
            local g = spread and function(v) return f(table.unpack(v)) end or f
            local from = {}
            for i, a in ipairs(args) do from[i] = place[a] end
            local y = g(args)
            tape[#tape + 1] = { g, from }
            values[#values + 1], place[y] = y, #values + 1
          end
        end
      end)
      local also = pick(#values)
      local function f(v)
        local all = { v }
        for k, step in ipairs(tape) do
          local args = {}
          for i, from in ipairs(step[2]) do args[i] = all[from] end
          all[k + 1] = step[1](args)
        end
        return all[#all], all[also] + 1
      end
      total = total + in_blocks(same(f, x))
    end
    if have then assert.is_true(total > seeds / 2) end
  end)
end)
