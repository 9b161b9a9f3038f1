-- SPDX-License-Identifier: MIT
-- Passes over graphs: what each removes, that none changes a bit of the outputs, and that each can be turned off.

local T = require "perilune"
local on_device = require "spec.support.device".mode ~= nil
local nn = T.nn

local root = os.getenv("PERILUNE_ROOT") or "."
local build = os.getenv("PERILUNE_BUILD") or root .. "/build"

-- The plan of f(a, b, c) → output, all of 4 elements.
local function plan_of(f, options)
  local g = T.graph(options)
  local a, b, c = g:input("a", { 4 }), g:input("b", { 4 }), g:input("c", { 4 })
  g:outputs { f(a, b, c) }
  local plan = g:plan()
  assert.is_true(plan:verify())
  return plan, g
end

local function ops_of(plan)
  local list = {}
  for _, node in ipairs(plan:list()) do list[#list + 1] = node.op end
  return table.concat(list, " ")
end

describe("common subexpressions", function()
  it("M10: count as the page says", function()
    for _, case in ipairs {
      { 1, function(a) return (a + 5) + (a + 5) end },
      { 0, function(a) return (a + 1) + (a + 2) end },
      { 1, function(a) return (1 + a) + (a + 1) end },
      { 1, function(a, b) return (a + b) + (a + b) end },
      { 2, function(a, b, c) return ((a + b) + c) + ((a + b) + c) end },
    } do
      assert.equal(case[1], plan_of(case[2]).passes.cse.removed)
    end
  end)

  it("M12: are not random draws; nor what is written into", function()
    assert.equal(0, plan_of(function(a) return nn.F.dropout(a) + nn.F.dropout(a) end).passes.cse.removed)
    local _, g = plan_of(function(a)
      local x, y = a:clone(), a:clone()
      x:uniform_()
      return x + y
    end)
    T.manual_seed(9)
    local got = g:run({ a = T.full({ 4 }, 10.0), b = T.ones(4), c = T.ones(4) })[1]
    T.manual_seed(9)
    assert.is_true(got:equal(T.zeros(4):uniform_() + 10))
  end)

  it("leave the copies of recomputation alone", function()
    local g = T.graph()
    local x = g:input("x", { 64 })
    local y = T.tanh(T.tanh(T.tanh(x)))
    g:outputs { y, g:gradient({ y }, x, { mirror = "mincut" }) }
    assert.equal(2, g:plan().recomputed)
  end)
end)

describe("identities", function()
  it("drop what gives its input back", function()
    for _, case in ipairs {
      { "exp", function(a) return (a * 1):exp() end },
      { "exp", function(a) return (a / 1):exp() end },
      { "exp", function(a) return (a - 0):exp() end },
      { "exp", function(a) return (-(-a)):exp() end },
      { "exp", function(a) return a:view(2, 2):t():t():view(4):exp() end },
      { "exp", function(a) return a:expand(4):contiguous():exp() end },
      { "add", function(a) return a + 0 end }, -- -0 + 0 is 0
      { "div", function(a) return a / a end },
    } do
      assert.equal(case[1], ops_of(plan_of(case[2])))
    end
  end)

  it("of real numbers only with unsafe_math", function()
    local function logsum(a) return ((a:exp() + T.exp(a * 0)):log()) end
    local safe, g = plan_of(logsum)
    local unsafe, h = plan_of(logsum, { unsafe_math = true })
    assert.equal("exp mul exp add log", ops_of(safe))
    assert.equal("mul logaddexp", ops_of(unsafe))
    local feed = { a = T.full({ 4 }, 1e4), b = T.ones(4), c = T.ones(4) }
    assert.equal(math.huge, g:run(feed)[1]:get(1))
    assert.equal(1e4, h:run(feed)[1]:get(1))
    local _, q = plan_of(function(a) return a / a end, { unsafe_math = true })
    assert.equal(1, q:run({ a = T.zeros(4), b = T.ones(4), c = T.ones(4) })[1]:get(1))
    local _, p = plan_of(function(a) return a / a end)
    local v = p:run({ a = T.zeros(4), b = T.ones(4), c = T.ones(4) })[1]:get(1)
    assert.is_true(v ~= v)
  end)
end)

describe("constants", function()
  it("are computed once", function()
    local g = T.graph()
    local x = g:input("x", { 3 })
    g:outputs { x * g:trace(function() return (T.ones({}) * 3 + 1):sqrt() end) }
    local plan = g:plan()
    assert.equal("mul", ops_of(plan))
    assert.equal(4, plan.passes.fold.removed)
    assert.is_true(g:run({ x = T.ones(3) })[1]:equal(T.full({ 3 }, 2.0)))
  end)
end)

describe("layout", function()
  it("makes copies that kernels want nodes of their own", function()
    local g = T.graph()
    local x = g:input("x", { 3, 4 })
    g:outputs { T.softmax(x:t(), -1) }
    assert.equal("t clone softmax", ops_of(g:plan()))
    local X = T.randn(3, 4)
    assert.is_true(g:run({ x = X })[1]:equal(T.softmax(X:t(), -1)))
  end)
end)

describe("slices", function()
  -- The gradient of y [2, 3, 12] from parts that f reads: by a graph, one by one; and how many nodes the pass took.
  local function compare(f, dtype)
    T.manual_seed(3)
    local Y = (T.randn(2, 3, 12) * 0.3):to(dtype)
    local g = T.graph()
    local y = g:input("y", { 2, 3, 12 }, { dtype = dtype, leaf = true })
    local loss = f(y)
    g:outputs { table.unpack(g:gradient(loss, { y })) }
    local leaf = Y:clone():requires_grad_()
    local want = T.grad_of(f(leaf), { leaf })[1]
    local plan = g:plan()
    assert.is_true(plan:verify())
    assert.equal(want:to_string(), g:run({ y = Y })[1]:to_string())
    assert.is_true(T.equal(want, g:run({ y = Y })[1]))
    local text = (1 / want):to_string() -- zeros of either sign
    assert.equal(text, (1 / g:run({ y = Y })[1]):to_string())
    return plan.passes.slices.removed, ops_of(plan)
  end
  local function part(y, k) return y:narrow(3, 4 * k - 3, 4) end

  it("that cover a dim have one gradient", function()
    for _, dtype in ipairs { "f32", "f64", "bf16", "f16" } do
      assert.equal(4, (compare(function(y) return (part(y, 3) * part(y, 1):exp() * -part(y, 2)):sum() end, dtype)))
      local taken, ops = compare(function(y)
        local function heads(a) return a:view(2, 3, 2, 2):transpose(2, 3) end
        return (heads(part(y, 1)):matmul(heads(part(y, 2)):transpose(-1, -2)):matmul(heads(part(y, 3)))):sum()
      end, dtype)
      assert.equal(3, taken)
      assert.is_truthy(ops:find("slices_bwd reshape", 1, true), ops)
      assert.is_falsy(ops:find("slice_bwd", 1, true), ops)
    end
    local along_two = function(y) return (y:narrow(2, 1, 2):exp():sum() + (y:narrow(2, 3, 1) * 0 * -1):sum()) end
    assert.equal(2, (compare(along_two, "f32")))
  end)

  it("are left alone where they leave holes, overlap, or are along two dims", function()
    assert.equal(0, (compare(function(y) return (part(y, 1) * part(y, 3)):sum() end, "f32")))
    assert.equal(0, (compare(function(y) return (y:narrow(3, 1, 7) * y:narrow(3, 6, 7)):sum() end, "f32")))
    assert.equal(0, (compare(function(y) return y:narrow(3, 1, 6):exp():sum() + y:narrow(2, 1, 2):sum() end, "f32")))
    local function every_other(y) return (y[{ {}, {}, { 1, 12, 2 } }] * y[{ {}, {}, { 2, 12, 2 } }]):sum() end
    assert.equal(0, (compare(every_other, "f32")))
  end)

  it("give gradients of their own", function()
    local function f(a)
      local y = a:detach():requires_grad_()
      local d = T.grad_of((part(y, 1):exp() * part(y, 2) * part(y, 3)):sum(), { y }, { create_graph = true })[1]
      return T.grad_of((d * d):sum(), { y })[1]
    end
    T.manual_seed(4)
    local Y = T.randn(2, 3, 12)
    local j = T.jit(f)
    for _ = 1, 2 do assert.is_true(T.equal(f(Y), j(Y))) end
    assert.is_true(j:plan().passes.slices.removed > 0)
  end)
end)

describe("tails of convolutions", function()
  local net = {}
  before_each(function()
    T.manual_seed(7)
    net.a, net.b = nn.Conv2d(16, 32, 3, { padding = 1 }), nn.Conv2d(32, 32, 1)
    net.c = nn.Conv2d(16, 32, 1, { bias = false })
    net.g = nn.Conv2d(32, 32, 3, { padding = 1, groups = 32 })
    net.w = nn.Conv2d(16, 32, 3, { padding = 1, stride = 2 })
  end)
  after_each(function() net.a, net.b, net.c, net.g, net.w = nil, nil, nil, nil, nil end)

  -- name → function, and how many nodes go
  local cases = {
    ["a relu"] = { function(x) return net.a(x):relu() end, 1 },
    ["a sum"] = { function(x) return net.b(net.a(x)) + net.c(x) end, 1 },
    ["a residual block"] = { function(x) return (net.b(net.a(x):relu()) + net.c(x)):relu() end, 3 },
    ["a relu that others read, too"] = { function(x)
      local y = net.a(x):relu()
      return (y + net.b(y)):relu(), y
    end, 3 },
    ["groups and strides"] = { function(x) return net.g(net.w(x):relu()):relu() end, 2 },
    ["a sum of a sum"] = { function(x) return (net.a(x) + net.c(x) + net.c(x + 1)):relu() end, 3 },
    ["two readers"] = { function(x)
      local y = net.a(x)
      return y:relu() + y
    end, 0 },
    ["the same twice"] = { function(x)
      local y = net.a(x)
      return y + y
    end, 0 },
    ["a result"] = { function(x)
      local y = net.a(x)
      return y, y:relu()
    end, 0 },
    ["what is broadcast"] = { function(x)
      return (net.a(x) + net.c(x):mean({ 3, 4 }, { keepdim = true })):relu()
    end, 0 },
    ["what lies otherwise"] = { function(x) return (net.a(x) + net.c(x):transpose(3, 4)):relu() end, 0 },
    ["another type"] = { function(x) return net.a(x):double():relu() end, 0 },
  }
  local shapes = { { 2, 16, 12, 12 }, { 1, 16, 56, 56 }, { 16, 16, 5, 5 }, { 1, 16, 3, 3 } }
  for name, c in pairs(cases) do
    it("have the bits of what they stand for: " .. name, function()
      for _, shape in ipairs(shapes) do
        local x = T.randn(shape)
        x[{ 1, 1, 1, 1 }] = 0 / 0
        local jitted = T.jit(function(v) return c[1](v) end)
        T.no_grad(function()
          local want = table.pack(c[1](x))
          local got = table.pack(jitted(x))
          for i, y in ipairs(want) do assert.equal(y:to_string(), got[i]:to_string()) end
          assert.equal(on_device and 0 or c[2], jitted:plan().passes.tails.removed) -- what the CPU's kernels can
        end)
      end
    end)
  end

  it("come with all ranks, and without a batch", function()
    for _, c in ipairs { { nn.Conv1d(4, 8, 3), { 2, 4, 9 } }, { nn.Conv1d(4, 8, 3), { 4, 9 } },
      { nn.Conv3d(2, 3, 2), { 2, 2, 5, 5, 5 } }, { nn.Conv2d(64, 64, 3, { padding = 1 }), { 8, 64, 28, 28 } } } do
      local x, f = T.randn(c[2]), function(x) return (c[1](x) + c[1](x):cos()):relu() end
      local jitted = T.jit(function(v) return f(v) end)
      T.no_grad(function()
        jitted(x)
        assert.is_true(f(x):equal(jitted(x)))
      end)
    end
  end)

  it("stay apart where gradients are asked for", function()
    local conv, x = nn.Conv2d(2, 3, 2), T.randn(1, 2, 5, 5)
    local step = T.jit(function(v)
      local loss = conv(v):relu():sum()
      loss:backward()
      return loss
    end)
    step(x)
    assert.equal(0, step:plan().passes.tails.removed)
  end)
end)

describe("PERILUNE_PASSES", function()
  local script = [[
    local T = require "perilune"
    local F = T.nn.F
    local g = T.graph()
    local x, w = g:input("x", { 6, 8 }), g:input("w", { 8, 8 }, { leaf = true })
    local h = F.gelu((x * 1):matmul(w)) + (x + 2) * (2 + x)
    h = T.softmax((h + h:t():contiguous():t()):t(), 1):t()
    local loss = (h * h):sum() * (T.ones({}) * 2)
    g:outputs { loss, table.unpack(g:gradient(loss, { x, w }, { mirror = "mincut" })) }
    T.manual_seed(1)
    local out = g:run { x = T.randn(6, 8), w = T.randn(8, 8) }
    local p = g:plan().passes
    print(("%d %d %d %d"):format(p.cse.removed, p.identities.removed, p.fold.removed, p.dce.removed))
    for _, t in ipairs(out) do print((t:to_string():gsub(".", function(c) return ("%02x"):format(c:byte()) end))) end
  ]]

  local function run(passes)
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write(script)
    f:close()
    local pipe = assert(io.popen(("PERILUNE_PASSES=%s '%s/bin/perilune' run %s 2>&1"):format(passes, build, path)))
    local counts, bits = pipe:read("l"), pipe:read("a")
    pipe:close()
    os.remove(path)
    return counts, bits
  end

  it("turns passes off one by one; the outputs keep their bits", function()
    local counts, bits = run("")
    assert.is_truthy(counts:match("^[1-9]%d* [1-9]%d* [1-9]%d* %d+$"), counts .. bits)
    assert.is_true(#bits > 500)
    for _, off in ipairs { "-cse", "-identities", "-fold", "-dce", "-layout", "-fold,-identities,-layout,-cse,-dce" } do
      local c, b = run(off)
      assert.equal(bits, b, off)
      if off == "-cse" then assert.equal("0", c:match("^%d+")) end
    end
  end)
end)
