-- SPDX-License-Identifier: MIT
-- Fused groups, tile by tile on the CPU and as kernels of a device: the same bits as the ops one by one, over random
-- programs of pointwise ops and of ops that work along rows, and no memory for what stays inside.
local T = require "perilune"
local F = T.nn.F
local near = require "spec.support.near"

local seed = math.tointeger(tonumber(os.getenv("PERILUNE_FUZZ_SEED") or 1))
local few = require("spec.support.device").mode and 6 -- there each program compiles kernels of its own
local rounds = math.tointeger(tonumber(os.getenv("PERILUNE_FUZZ_ROUNDS") or few or 60))

-- A generator of its own, so that a failure can be repeated by its seed.
local function generator(s)
  local state = s * 2654435761 % 4294967296 + 1
  return function(n)
    state = (state * 6364136223846793005 + 1442695040888963407)
    return (state >> 33) % n + 1
  end
end

local unary = {
  function(x) return x:tanh() end, function(x) return x:relu() end, function(x) return -x end,
  function(x) return (x * 0.25):exp() end, function(x) return x * x end, function(x) return x:sigmoid() end,
  function(x) return F.gelu(x) end, function(x) return x * 0.5 + 1 end, function(x) return (x * x + 1):rsqrt() end,
  function(x) return x:abs():sqrt() end, function(x) return x:clamp(-1, 1) end,
}
local binary = {
  function(a, b) return a + b end, function(a, b) return a - b end, function(a, b) return a * b end,
  function(a, b) return a / (b * b + 1) end, function(a, b) return T.maximum(a, b) end,
}
-- Along the last dim, of the same shape.
local rows = {
  function(x) return x:softmax(-1) end, function(x) return x:log_softmax(-1) end,
  function(x, w, b) return F.layer_norm(x, { w:size(1) }, w, b) end,
  function(x, w) return F.rms_norm(x, { w:size(1) }, w) end,
  function(x, w) return F.layer_norm(x, { w:size(1) }) end,
}
-- Along the last dim, one value a row, kept as a dim of 1.
local stats = {
  function(x) return x:mean(-1, true) end, function(x) return x:sum(-1, true) end,
  function(x) return (x:max(-1, true)) end, function(x) return x:var { dim = -1, keepdim = true } end,
  function(x) return x:amax { dim = -1, keepdim = true } end, function(x) return x:sum(-1):unsqueeze(-1) end,
  function(x) return T.logsumexp(x, -1, true) end, function(x) return x:std { dim = -1, keepdim = true } end,
  function(x) return (x:min(-1, true)) end, function(x) return x:mean(-1):unsqueeze(-1):contiguous() end,
}

local shapes = {
  { 3, 2 }, { 40, 100 }, { 7, 5, 33 }, { 300, 64 }, { 5, 3000 }, { 2, 9, 4, 17 }, { 1000, 7 }, { 65, 1024 },
  { 1024, 128 }, { 16, 20, 64 }, { 2050, 32 }, { 128, 700 },
}

-- A program as a list of steps, so that it does the same each time it runs.
local function program(pick, nstep)
  local steps = {}
  for i = 1, nstep do
    steps[i] = { pick(10), pick(1000), pick(1000), pick(1000) }
  end
  return function(x, y, w, b)
    local wide, columns = { x, y }, {}
    local function any(list, k) return list[(k - 1) % #list + 1] end
    for _, s in ipairs(steps) do
      local v = any(wide, s[3])
      local r
      if s[1] <= 3 then
        r = any(unary, s[2])(v)
      elseif s[1] <= 5 then
        r = any(binary, s[2])(v, any(wide, s[4]))
      elseif s[1] == 6 then
        r = any(binary, s[2])(v, s[4] % 2 == 0 and w or b)
      elseif s[1] == 7 then
        r = any(rows, s[2])(v, w, b)
      elseif s[1] <= 9 or #columns == 0 then
        local c = any(stats, s[2])(v)
        if s[4] % 3 == 0 then c = any(unary, s[4])(c) end
        columns[#columns + 1] = c
        if c:dim() == v:dim() then r = any(binary, s[4])(v, c) end
      else
        r = any(binary, s[2])(v, any(columns, s[4]))
        if r:dim() ~= x:dim() then r = nil end
      end
      if r then wide[#wide + 1] = r end
    end
    local ends = {}
    for k, s in ipairs(steps) do -- sums over rows, and of everything
      local v = any(wide, s[4])
      if k <= 3 and s[2] % 3 == 0 then
        ends[#ends + 1] = s[3] % 2 == 0 and v:sum() or v:mean()
      elseif k <= 3 and s[2] % 3 == 1 then
        local lead = {}
        for d = 1, v:dim() - 1 do lead[d] = d end
        ends[#ends + 1] = s[3] % 2 == 0 and v:sum { dim = lead } or v:mean { dim = lead, keepdim = true }
      end
    end
    return wide[#wide], wide[math.max(1, #wide - 2)], ends
  end
end

local function same(a, b)
  return a:dtype() == b:dtype() and pcall(near.same_bits, a, b)
end

-- The names of fused nodes, a line a group.
local function groups(f)
  local out = {}
  for i, g in ipairs(f:plan().groups) do out[i] = table.concat(g, " ") end
  return table.concat(out, "\n")
end

describe("fused groups", function()
  it("take in what works along rows, and rows' statistics that are read again", function()
    local x, dy = T.randn(64, 100):requires_grad_(), T.randn(64, 100)
    local soft = T.jit(function()
      x.grad = nil
      x:softmax(-1):backward(dy)
    end)
    soft()
    assert.equal("softmax_1 softmax_bwd_1", groups(soft))
    assert.equal(0, soft:plan().arena_bytes)
    local by_hand = T.jit(function(a)
      local d = a - a:mean(-1, true)
      return d / ((d * d):mean(-1, true) + 1e-5):sqrt()
    end)
    by_hand(x:detach())
    assert.equal("mean_1 sub_1 mul_1 mean_2 add_1 sqrt_1 div_1", groups(by_hand))
    assert.equal(0, by_hand:plan().arena_bytes)
    local w, b = T.ones(100):requires_grad_(), T.zeros(100):requires_grad_()
    local bias = T.jit(function()
      x.grad, b.grad = nil, nil
      local loss = (x + b):relu():mean()
      loss:backward()
      return loss
    end)
    bias()
    assert.matches("^add_1 relu_1 mean_1\n", groups(bias)) -- the mean is the loss
    assert.matches("relu_bwd_1 sum_to_1$", groups(bias)) -- that sum is the bias's gradient
    local norm = T.jit(function()
      x.grad, w.grad, b.grad = nil, nil, nil
      F.layer_norm(x, { 100 }, w, b):backward(dy)
    end)
    norm()
    assert.equal("layer_norm_1 layer_norm_bwd_1", groups(norm))
    assert.equal(0, norm:plan().arena_bytes)
    local columns = T.jit(function(a) return a / (a - a:amax { dim = 1, keepdim = true }):exp() end)
    columns(x:detach())
    assert.equal("sub_1 exp_1 div_1", groups(columns)) -- the maximum of columns needs all rows first
    local long = T.jit(function(a) return (a * 2):sum(-1, true) + a end)
    long(T.randn(2, 100000))
    assert.equal("", groups(long))
  end)

  it("give the bits of the ops one by one, forward and backward", function()
    for round = seed, seed + rounds - 1 do
      local pick = generator(round)
      local shape = shapes[pick(#shapes)]
      local dtype = ({ "f32", "f32", "f32", "f64", "bf16", "f16" })[pick(6)]
      T.manual_seed(round)
      local body = program(pick, 3 + pick(14))
      local function leaf(...) return T.randn(...):to(dtype):requires_grad_() end
      local x, y = leaf(table.unpack(shape)), leaf(table.unpack(shape))
      local w, b = leaf(shape[#shape]), leaf(shape[#shape])
      local dy = T.randn(table.unpack(shape)):to(dtype)
      local function step()
        for _, p in ipairs { x, y, w, b } do p.grad = nil end
        local u, v, ends = body(x, y, w, b)
        local loss = ends[1] and ends[1]:sum()
        if loss and loss.requires_grad and round % 2 == 0 then
          loss:backward()
        elseif u.requires_grad and u:dtype() == dtype then
          u:backward(dy)
        end
        for i, e in ipairs(ends) do ends[i] = e:detach() end
        return u:detach(), v:detach(), table.unpack(ends)
      end
      local want = { step() }
      for _, p in ipairs { x, y, w, b } do want[#want + 1] = p.grad or T.zeros(1) end
      local jitted = T.jit(step, { name = "round " .. round })
      for _ = 1, 2 do
        local got = { jitted() }
        for _, p in ipairs { x, y, w, b } do got[#got + 1] = p.grad or T.zeros(1) end
        for k = 1, #want do
          assert(same(want[k], got[k]), ("round %d (PERILUNE_FUZZ_SEED), result %d differs"):format(round, k))
        end
      end
    end
  end)

  it("members that pass nothing on and share nothing stay alone", function()
    local function grouped(f, n)
      local g, list = T.graph(), {}
      for i = 1, n do list[i] = g:input("x" .. i, { 64, 128 }) end
      g:outputs { f(table.unpack(list)) }
      return g:plan().groups
    end
    assert.equal(0, #grouped(function(a, b) return a:tanh(), b:exp() end, 2))
    assert.equal(0, #grouped(function(a, b) return a:softmax(-1), b:sum(-1) end, 2))
    assert.equal(1, #grouped(function(a) return a:tanh(), a:exp() end, 1)) -- read once
    local list = grouped(function(a, b, c) return a:exp(), (b:tanh() * b):sum(-1), c:softmax(-1) end, 3)
    assert.equal(1, #list)
    assert.equal(3, #list[1])
  end)
end)
