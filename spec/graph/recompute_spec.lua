-- SPDX-License-Identifier: MIT
-- Recomputation: what each policy keeps and computes again on small graphs with known answers. Sizes in bytes; N is
-- 4096 f32. docs/design/recompute.md derives the figures.

local T = require "perilune"
local nn = T.nn

local N = 16384

-- Builds graphs: b.fc, b.leaf and so on; all weights become xs.
local function builder()
  local g = T.graph()
  local b = { g = g, xs = {}, n = 0 }
  local function name(prefix)
    b.n = b.n + 1
    return prefix .. b.n
  end
  function b.leaf(shape, opts)
    local t = g:input(name("x"), shape, opts or { leaf = true })
    b.xs[#b.xs + 1] = t
    return t
  end
  -- A fully connected layer without bias: reads x and W.
  function b.fc(x, out)
    local w = b.leaf({ out or x:size(2), x:size(2) })
    return T.linear(x, w)
  end
  function b.input(rows, cols) return b.leaf({ rows or 1, cols or 4096 }) end
  return b
end

-- Plans ys with policy and returns the plan.
local function plan_of(b, ys, mirror, opts)
  local options = { mirror = mirror, allow_unused = true }
  for k, v in pairs(opts or {}) do options[k] = v end
  local grads = b.g:gradient(ys, b.xs, options)
  local outputs = {}
  for _, y in ipairs(ys) do outputs[#outputs + 1] = y end
  for i = 1, #b.xs do outputs[#outputs + 1] = grads[i] end
  b.g:outputs(outputs)
  local plan = b.g:plan()
  assert.is_true(b.g:verify())
  assert.is_true(plan:verify())
  return plan
end

local graphs = {}

local function attention_steps(steps)
  return function(b)
    local m = b.fc(b.input(16, 1024))
    local ys = {}
    for i = 1, steps do
      local q = b.fc(b.input(1, 1024))
      ys[i] = b.fc(T.tanh(m + q))
    end
    return ys
  end
end
graphs.N1, graphs.N2, graphs.N3 = attention_steps(2), attention_steps(5), attention_steps(1)

function graphs.N4(b)
  local function f() return b.fc(b.input()) end
  local s, t = f() + f(), f() + f()
  return { b.fc(T.sigmoid(s) * T.tanh(t)) }
end

function graphs.N5(b)
  local x = b.fc(b.input(32, 512))
  local y = x:to("f64"):mean(1, { keepdim = true })
  local w = b.leaf({ 4, 512 }, { leaf = true, dtype = "f64" })
  return { T.linear(y, w) }
end

function graphs.N6(b)
  local y = T.tanh(b.fc(b.input()))
  return { b.fc(T.sigmoid(b.fc(b.input()) + y)) }
end

function graphs.N7(b)
  local z = T.tanh(T.tanh(b.input()))
  return { b.fc(z * T.sigmoid(z)) }
end

function graphs.N8(b) return { b.fc(T.gelu(b.fc(b.input(), 16384)), 4096) } end

function graphs.N9(b)
  local x = b.input()
  local gate, up = b.fc(x, 16384), b.fc(x, 16384)
  return { b.fc(T.sigmoid(gate) * gate * up, 4096) }
end

local function conv_bn(b, x)
  local w = b.leaf({ 64, x:size(2), 3, 3 })
  local c = T.conv2d(x, w, { padding = 1 })
  return (T.batch_norm(c, b.leaf({ 64 }), b.leaf({ 64 }), { training = true }))
end
local function image(b, channels) return b.leaf({ 4, channels or 64, 32, 32 }) end -- 1 MiB for 64 channels

function graphs.N10(b)
  local y = T.relu(conv_bn(b, image(b)))
  return { T.conv2d(y, b.leaf({ 64, 64, 3, 3 }), { padding = 1 }) }
end

function graphs.N11(b)
  local x = b.fc(b.input())
  for _ = 1, 8 do x = T.tanh(x) end
  return { b.fc(x) }
end

local function residual(b)
  local x = T.relu(conv_bn(b, image(b)))
  local ends = { x }
  for _ = 1, 3 do
    local y = conv_bn(b, T.relu(conv_bn(b, x)))
    x = T.relu(x + y)
    ends[#ends + 1] = x
  end
  return { T.linear(x:flatten(2), b.leaf({ 10, 65536 })) }, ends
end
graphs.N12 = residual

function graphs.N13(b)
  local x = b.leaf({ 4 * 128, 512 })
  local function heads(t) return t:view(4, 128, 8, 64):transpose(2, 3) end
  local q, k, v = heads(b.fc(x)), heads(b.fc(x)), heads(b.fc(x))
  local p = T.softmax(q:matmul(k:transpose(3, 4)) * 0.125, -1)
  local o = nn.F.dropout(p, 0.1):matmul(v)
  return { b.fc(o:transpose(2, 3):reshape(512, 512)) }
end

function graphs.N14(b)
  local x = b.leaf({ 10, 3, 256, 256 })
  for _ = 1, 10 do x = x * x end
  return { x }
end

function graphs.N15(b)
  local x, ends = b.input(), {}
  for i = 1, 16 do
    x = b.fc(x)
    ends[i] = x
  end
  return { x }, ends
end

function graphs.B(b)
  local f3 = b.fc(T.sigmoid(b.fc(b.input()) + b.fc(b.input())))
  local f4 = b.fc(b.input())
  return { b.fc(T.tanh(f3 + f4)) }
end

-- {stash, recomputed nodes} by policy; "same" as mirror.
local figures = {
  N1 = { none = 131072, mirror = { 73728, 4 } },
  N2 = { none = 327680, mirror = { 86016, 10 } },
  N3 = { none = 65536, mirror = { 65536, 0 } },
  N4 = { none = 49152, mirror = { 32768, 1 } },
  N5 = { none = 4096, mirror = { 65536, 2 }, mincut = { 4096, 0 } },
  N6 = { none = 32768, mirror = { 32768, 0 } },
  N7 = { none = 4 * N, mirror = { N, 3 }, mincut = { 0, 4 } },
  N8 = { none = 131072, mirror = { 65536, 1 } },
  N9 = { none = 327680, mirror = { 131072, 3 } },
  N10 = { none = 2097664, mirror = { 1048576, 2 } },
  N11 = { none = 131072, mirror = { 16384, 7 } },
  N12 = { none = 14683648, mirror = { 7340032, 17 } },
  N13 = { none = 8912896, mirror = { 8912896, 0 } },
  N14 = { none = 70778880, mirror = { 0, 9 } },
  N15 = { none = 245760, mirror = { 245760, 0 } },
  B = { none = 32768, mirror = { 32768, 0 } },
}

describe("recomputation keeps and repeats what the table says:", function()
  local names = {}
  for name in pairs(figures) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local want = figures[name]
    it(name, function()
      local b = builder()
      local plan = plan_of(b, graphs[name](b), "none")
      assert.same({ "none", want.none, 0 }, { "none", plan.stash_bytes, plan.recomputed })
      for _, policy in ipairs { "mirror", "mincut" } do
        b = builder()
        plan = plan_of(b, graphs[name](b), policy)
        local w = want[policy] or want.mirror
        assert.same({ policy, w[1], w[2] }, { policy, plan.stash_bytes, plan.recomputed })
      end
    end)
  end

  it("N12 with pinned block outputs", function()
    local b = builder()
    local ys, ends = graphs.N12(b)
    local plan = plan_of(b, ys, "mincut", { pin = { ends[2], ends[3], ends[4] } })
    assert.same({ 10485760, 11 }, { plan.stash_bytes, plan.recomputed })
  end)

  it("N13 with seeded dropout allowed", function()
    local b = builder()
    local plan = plan_of(b, graphs.N13(b), "mincut", { seeded = true })
    assert.same({ 6291456, 1 }, { plan.stash_bytes, plan.recomputed })
  end)

  it("N15 with boundaries of the user", function()
    local b = builder()
    local ys, ends = graphs.N15(b)
    local plan = plan_of(b, ys, "mincut", { heavy = true, pin = { ends[4], ends[8], ends[12] } })
    assert.same({ 49152, 12 }, { plan.stash_bytes, plan.recomputed })
    b = builder()
    ys = graphs.N15(b)
    local asked = 0
    plan = plan_of(b, ys, function(node)
      asked = asked + 1
      return node.op == "linear" and not ("linear_4 linear_8 linear_12"):find(node.name .. "%f[%s\0]")
    end)
    assert.equal(16, asked)
    assert.same({ 49152, 12 }, { plan.stash_bytes, plan.recomputed })
  end)
end)

-- Runs the same graph under each policy on the same numbers; all outputs must have the same bits.
local function bit_equal(build, policies, feed)
  local first
  for _, case in ipairs(policies) do
    local b = builder()
    local ys = build(b)
    local options = { mirror = case[1], allow_unused = true }
    for k, v in pairs(case[2] or {}) do options[k] = v end
    local outputs = b.g:gradient(ys, b.xs, options)
    for _, y in ipairs(ys) do outputs[#outputs + 1] = y end
    b.g:outputs(outputs)
    T.manual_seed(11)
    local out = b.g:run(feed(b))
    if case[3] then assert.equal(case[3], b.g:plan().recomputed) end
    if first then
      for i = 1, #first do
        assert.is_true(first[i]:equal(out[i]), ("output %d under %s"):format(i, tostring(case[1])))
      end
    end
    first = first or out
  end
end

local function random_feed(shapes)
  return function()
    T.manual_seed(5)
    local feed = {}
    for name, shape in pairs(shapes) do feed[name] = T.randn(shape) * 0.1 end
    return feed
  end
end

describe("recomputed gradients", function()
  it("have the bits of those that are not", function()
    local function build(b)
      local x, w = b.g:input("x", { 8, 32 }), b.g:input("w", { 32, 32 }, { leaf = true })
      b.xs = { x, w }
      local y = x
      for _ = 1, 3 do
        y = T.layer_norm(T.gelu(y:matmul(w)) + T.sigmoid(y), { 32 })
        y = y:transpose(1, 2):contiguous():transpose(1, 2) * 2
      end
      return { y, y:sum() }
    end
    bit_equal(build, { { "none" }, { "mirror" }, { "mincut" }, { "mincut", { heavy = true } } },
      random_feed { x = { 8, 32 }, w = { 32, 32 } })
  end)

  it("N23: dropout draws the same numbers again", function()
    local function build(b)
      local x = b.g:input("x", { 64, 64 })
      b.xs = { x }
      local y = nn.F.dropout(T.tanh(x), 0.3) * x
      return { T.tanh(nn.F.dropout(y, 0.5)) * nn.F.dropout(x, 0.1) }
    end
    bit_equal(build, { { "none" }, { "mincut", { seeded = true, force = { "dropout_1", "dropout_2" } } } },
      random_feed { x = { 64, 64 } })
  end)

  it("N20: leave running statistics alone: three steps, several batch norms", function()
    local function run(policy)
      T.manual_seed(2)
      local net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4),
        nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
      local g = T.graph()
      local x = g:input("x", { 5, 2, 8, 8 })
      local loss = net(x):pow(2):mean()
      g:outputs { loss, table.unpack(g:gradient(loss, net:parameters(), { mirror = policy })) }
      local out
      for k = 1, 3 do out = g:run { x = T.randn(5, 2, 8, 8) * k } end
      assert.equal(policy == "none", g:plan().recomputed == 0)
      return out, net:state_dict()
    end
    local want, stats = run("none")
    for _, policy in ipairs { "mirror", "mincut" } do
      local out, state = run(policy)
      for i = 1, #want do assert.is_true(want[i]:equal(out[i])) end
      for k, v in pairs(stats) do assert.is_true(v:equal(state[k]), k) end
    end
  end)

  it("N21: are refused where they would read a leaf that was overwritten", function()
    local p = T.ones(4)
    local g = T.graph()
    local x = g:input("x", { 4 })
    local sum = x + p
    local y = T.tanh(sum)
    local z = T.tanh(y)
    p:add_(x)
    local function ask(mirror, opts)
      opts.mirror = mirror
      g:outputs { g:gradient({ z }, x, opts) }
      return pcall(g.plan, g)
    end
    local ok, err = ask("mincut", { force = { sum, y } })
    assert.is_false(ok)
    assert.is_truthy(err:find("would read a leaf that is overwritten", 1, true), err)
  end)

  it("come before writes to the leaves they read, if those stand behind the backward half", function()
    local w = T.full({ 4 }, 0.5)
    local g = T.graph()
    local x = g:input("x", { 4 })
    local y = T.tanh(T.tanh(x * w) * w)
    local dw = g:gradient({ y * y }, w, { mirror = "mincut" })
    w:sub_(dw)
    g:outputs { y }
    assert.is_true(g:plan():verify())
    local W = T.full({ 4 }, 0.5)
    for _ = 1, 3 do
      local X = T.randn(4)
      g:run { x = X }
      local V = W:clone():requires_grad_()
      local Y = T.tanh(T.tanh(X * V) * V)
      Y:square():sum():backward()
      W = W - V.grad
      assert.is_true((W - w):abs():max():item() < 1e-6)
    end
  end)
end)

describe("policy mirror", function()
  local function stages(build)
    local b = builder()
    local ys, nodes = build(b)
    local plan = plan_of(b, ys, "mirror")
    local list = {}
    for i, n in ipairs(nodes) do list[i] = plan.stage[n] end
    return list, plan
  end

  it("M1: stores a sum of two layers and its tanh", function()
    assert.same({ 0, 0 }, (stages(function(b)
      local add = b.fc(b.input()) + b.fc(b.input())
      local y = T.tanh(add)
      return { y }, { add, y }
    end)))
  end)

  it("M2: repeats all of five sums of leaves", function()
    assert.same({ 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 }, (stages(function(b)
      local x, ys, nodes = b.input(5), {}, {}
      for i = 1, 5 do
        local add = x + b.input(1)
        ys[i] = T.tanh(add)
        nodes[2 * i - 1], nodes[2 * i] = add, ys[i]
      end
      return ys, nodes
    end)))
  end)

  it("M3: of two tanh stores the first; the layer's backward reads the copy of the second", function()
    local list, plan = stages(function(b)
      local y = b.g:name(T.tanh(b.input()), "y")
      local z = b.g:name(T.tanh(y), "z")
      local f = b.fc(z)
      return { f }, { y, z, f }
    end)
    assert.same({ 0, 1, 0 }, list)
    local mirror, reads
    for _, node in ipairs(plan:list()) do
      if node.name == "z_mirror" then mirror = node.outputs[1] end
      if node.name:find("^linear_1_backward") then
        for _, v in ipairs(node.inputs) do reads = reads or v == mirror end
      end
    end
    assert.is_truthy(mirror)
    assert.is_true(reads)
  end)

  it("M5: training keeps more than inference, which keeps what a stopped gradient does", function()
    local function arena(kind)
      local g = T.graph()
      local x = g:input("x", { 10, 3, 256, 256 })
      local y = x
      for _ = 1, 10 do y = y * y end
      if kind == "training" then
        g:outputs { y, g:gradient({ y }, x) }
      elseif kind == "stopped" then
        g:outputs { y, (g:gradient({ y:detach() * 1 }, x)) }
      else
        g:outputs { y }
      end
      return g:plan().arena_bytes, g:plan().stash_bytes
    end
    local training, kept = arena("training")
    local inference = arena("inference")
    assert.equal(9 * 7864320, kept)
    assert.is_true(training > inference)
    local _, stopped = arena("stopped")
    assert.equal(0, stopped)
  end)

  it("N22: takes time in proportion: 20 squarings, 10,000 nodes", function()
    local b = builder()
    local x = b.leaf({ 64 })
    local y = x
    for _ = 1, 20 do y = y * y end
    assert.equal(19, plan_of(b, { y }, "mirror").recomputed)
    local function seconds(n, policy)
      b = builder()
      y = b.leaf({ 4 })
      for _ = 1, n do y = T.tanh(y) end
      collectgarbage()
      local from = os.clock()
      plan_of(b, { y }, policy)
      return os.clock() - from
    end
    -- Least times of runs that take turns: neighbours on the machine make single ones longer, never shorter. What grows
    -- with the power 1.5 of its graph takes 2.8 times as long however often it is tried; proportion with a share of the
    -- caches that neighbours leave, up to 2.4.
    for _, policy in ipairs { "none", "mirror", "mincut" } do
      local half, whole, tries = math.huge, math.huge, 0
      repeat
        half, whole = math.min(half, seconds(5000, policy)), math.min(whole, seconds(10000, policy))
        tries = tries + 1
      until tries == 80 or tries >= 3 and whole < 2.7 * half and whole < 1
      assert.is_true(whole < 1, ("%s: %.2f s"):format(policy, whole))
      assert.is_true(whole < 2.7 * half, ("%s: %.3f s, half of it %.3f s"):format(policy, whole, half))
    end
  end)
end)
