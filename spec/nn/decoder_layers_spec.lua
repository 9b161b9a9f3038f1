-- SPDX-License-Identifier: MIT
-- Layers of decoders against their formulas spelled out: rotary places, grouped queries, gated feed-forward, mixtures
-- of experts, the cache.

local T = require "perilune"
local near = require "spec.support.near"
local attention = { mask = function(o)
  o.device = T.get_default_device()
  return require("perilune.nn.grouped_attention").mask(o)
end }
local nn = T.nn
local function fails(f, part) return near.fails(part, f) end

local function same(a, b, tol)
  assert.same(a:shape(), b:shape())
  local d = (a:detach():double() - b:detach():double()):abs():max():item()
  assert.is_true(d <= (tol or 1e-5), "differs by " .. d)
end

describe("nn.RotaryEmbedding", function()
  it("turns each pair by its place times its frequency", function()
    local rope = nn.RotaryEmbedding(4, { base = 100 })
    local x = T.randn(1, 2, 3, 6)
    local cos, sin = rope(T.tensor({ { 0, 1, 5 } }, { dtype = "i64" }))
    local y, list = rope:rotate(x, cos, sin):totable(), x:totable()
    for h = 1, 2 do
      for l, place in ipairs { 0, 1, 5 } do
        for i = 1, 2 do
          local a = place / 100 ^ ((i - 1) / 2)
          local p, q = list[1][h][l][i], list[1][h][l][i + 2]
          assert.near(p * math.cos(a) - q * math.sin(a), y[1][h][l][i], 1e-5)
          assert.near(q * math.cos(a) + p * math.sin(a), y[1][h][l][i + 2], 1e-5)
        end
        for i = 5, 6 do assert.equal(list[1][h][l][i], y[1][h][l][i]) end
      end
    end
  end)

  it("keeps products of queries and keys the same under a shift, also interleaved", function()
    for _, interleaved in ipairs { false, true } do
      local rope = nn.RotaryEmbedding(8, { interleaved = interleaved })
      local q, k = T.randn(1, 1, 4, 8), T.randn(1, 1, 4, 8)
      local function scores(shift)
        local cos, sin = rope(T.arange(shift, shift + 3):unsqueeze(1))
        return rope:rotate(q, cos, sin):matmul(rope:rotate(k, cos, sin):transpose(3, 4))
      end
      same(scores(0), scores(100), 1e-3)
    end
  end)

  it("has the rules for longer texts", function()
    local function frequencies(o) return nn.RotaryEmbedding(o).inv_freq:totable() end
    local plain = frequencies { 8, base = 10000 }
    local linear = frequencies { 8, base = 10000, kind = "linear", factor = 4 }
    for i = 1, 4 do assert.near(plain[i] / 4, linear[i], 1e-7) end
    -- the shortest wave stays, the longest is divided
    for _, o in ipairs { { kind = "llama3", low_freq_factor = 1, high_freq_factor = 4 }, { kind = "yarn" } } do
      o[1], o.factor, o.original_max_positions, o.base = 8, 8, 64, 10000
      local w = frequencies(o)
      assert.near(plain[1], w[1], 1e-7)
      assert.near(plain[4] / 8, w[4], 1e-7)
    end
    local long = nn.RotaryEmbedding { 4, kind = "longrope", factor = 4, original_max_positions = 4,
      short_factor = { 1, 2 }, long_factor = { 3, 5 } }
    long(T.tensor({ { 0, 3 } }, { dtype = "i64" }))
    near.near(long.inv_freq, { 1, 0.005 })
    long(T.tensor({ { 0, 4 } }, { dtype = "i64" }))
    near.near(long.inv_freq, { 1 / 3, 0.002 })
    long(T.tensor({ { 0, 1 } }, { dtype = "i64" }))
    near.near(long.inv_freq, { 1, 0.005 })
  end)

  it("keeps its angles in f32, whatever the network is converted to", function()
    local rope = nn.RotaryEmbedding(8)
    local at = T.tensor({ { 1, 77, 1000 } }, { dtype = "i64" })
    local want = rope(at)
    for _, dtype in ipairs { "bf16", "f16", "f64" } do
      rope:to(dtype)
      local cos = rope(at)
      assert.equal("f32", cos:dtype())
      assert.is_true(cos:equal(want))
    end
  end)

  it("refuses settings that do not go together", function()
    fails(function() nn.RotaryEmbedding(3) end, "dim must be even")
    fails(function() nn.RotaryEmbedding { 4, kind = "yarn" } end, "kind yarn needs factor")
    fails(function() nn.RotaryEmbedding { 4, kind = "yarm" } end, "did you mean 'yarn'")
    fails(function()
      nn.RotaryEmbedding { 4, kind = "longrope", factor = 2, original_max_positions = 4, short_factor = { 1 },
        long_factor = { 1, 1 } }
    end, "short_factor must have 2 entries")
    fails(function() nn.RotaryEmbedding(4)(T.ones(1, 2)) end, "positions must be integers")
  end)
end)

describe("nn.GroupedQueryAttention", function()
  -- All heads spelled out, keys repeated; seen: bools [B, 1, L, S].
  local function formula(layer, x, seen)
    local b, l, d = x:size(1), x:size(2), layer.head_dim
    local function heads(y, n) return y:reshape(b, l, n, d):transpose(2, 3) end
    local times = layer.num_heads // layer.num_kv_heads
    local q = heads(layer.q_proj(x), layer.num_heads)
    local k = heads(layer.k_proj(x), layer.num_kv_heads):repeat_interleave(times, 2)
    local v = heads(layer.v_proj(x), layer.num_kv_heads):repeat_interleave(times, 2)
    local s = q:matmul(k:transpose(3, 4)) / math.sqrt(d)
    if layer.softcap then s = (s / layer.softcap):tanh() * layer.softcap end
    local p = s:masked_fill(seen:logical_not(), -math.huge):softmax(-1)
    return layer.o_proj(p:matmul(v):transpose(2, 3):reshape(b, l, -1))
  end

  it("is attention with repeated keys, with and without a cap on scores", function()
    for _, cap in ipairs { false, 1.5 } do
      local layer = nn.GroupedQueryAttention(12, 4, { num_kv_heads = 2, softcap = cap or nil, head_dim = 5 })
      local x = T.randn(2, 6, 12)
      local causal = attention.mask { length = 6 }
      same(layer(x, { is_causal = true }), formula(layer, x, causal))
      local padding = T.tensor({ { 0, 0, 1, 1, 1, 1 }, { 1, 1, 1, 1, 1, 1 } }, { dtype = "i64" })
      local mask = attention.mask { length = 6, window = 3, padding = padding }
      local y = layer(x, { mask = mask })
      same(y:narrow(2, 3, 4), formula(layer, x, mask):narrow(2, 3, 4)) -- what sees nothing is zero here, NaN there
      assert.is_true(y:narrow(2, 1, 2):select(1, 1):eq(0):all():item())
    end
  end)

  it("says in a mask what is seen", function()
    assert.is_nil(attention.mask { length = 1, past = 4 })
    local m = attention.mask { length = 2, past = 2, window = 2 }
    near.near(m:long(), { 0, 1, 1, 0, 0, 0, 1, 1 })
    near.near(attention.mask({ length = 2, causal = false, padding = T.tensor({ { 1, 0 } }, {
      dtype = "i64" }) }):long(),
      { 1, 0 })
  end)

  it("gives the same from fused weights", function()
    local plain = nn.GroupedQueryAttention(8, 2)
    local x = T.randn(1, 3, 8)
    local blocks = nn.GroupedQueryAttention(8, 2, { fused = "blocks" })
    local heads = nn.GroupedQueryAttention(8, 2, { fused = "heads" })
    local q, k, v = plain.q_proj.weight, plain.k_proj.weight, plain.v_proj.weight
    T.no_grad(function()
      blocks.qkv_proj.weight:copy_(T.cat({ q, k, v }, 1))
      heads.qkv_proj.weight:copy_(T.cat({ q:narrow(1, 1, 4), k:narrow(1, 1, 4), v:narrow(1, 1, 4), q:narrow(1, 5, 4),
        k:narrow(1, 5, 4), v:narrow(1, 5, 4) }, 1))
      for _, other in ipairs { blocks, heads } do other.o_proj.weight:copy_(plain.o_proj.weight) end
    end)
    local y = plain(x, { is_causal = true })
    same(y, blocks(x, { is_causal = true }))
    same(y, heads(x, { is_causal = true }))
  end)

  it("goes on with a cache where it was", function()
    local layer = nn.GroupedQueryAttention(8, 4, { num_kv_heads = 2 })
    local x, cache = T.randn(1, 7, 8), nn.KVCache { block = 2 }
    for _, window in ipairs { false, 3 } do
      cache:reset()
      local whole = layer(x, { mask = attention.mask { length = 7, window = window or nil } })
      T.no_grad(function()
        for i, n in ipairs { 3, 1, 1, 2 } do
          local past = ({ 0, 3, 4, 5 })[i]
          local part = layer(x:narrow(2, past + 1, n), { cache = cache, window = window or nil,
            mask = attention.mask { length = n, past = past, window = window or nil } })
          same(part, whole:narrow(2, past + 1, n))
        end
      end)
      assert.equal(7, #cache)
    end
  end)

  it("has a cache with room for a few places first, and what is in it stays when that grows", function()
    for block, rooms in pairs { [256] = { 64, 64, 128, 128, 256, 256, 512, 512, 768 }, [96] = { 96, 96, 96, 192, 192,
      288, 288, 576, 576 }, [100] = { 100, 100, 100, 200, 200, 300, 300, 600, 600 } } do
      local cache, all = nn.KVCache { block = block }, T.randn(1, 2, 513, 4)
      for i, n in ipairs { 1, 64, 65, 128, 129, 256, 257, 512, 513 } do
        local past = #cache
        local part = all:narrow(3, past + 1, n - past)
        local k, v = cache:update(1, part, -part)
        assert.is_true(k:equal(all:narrow(3, 1, n)) and v:equal(-all:narrow(3, 1, n)))
        assert.equal(rooms[i], cache.layers[1].k:size(3), ("%d of blocks of %d"):format(n, block))
      end
    end
  end)

  it("sees the same in one call, in pieces with a cache, and by a mask", function()
    local x = T.randn(2, 7, 8)
    for _, cap in ipairs { false, 5.0 } do
      local layer = nn.GroupedQueryAttention(8, 4, { num_kv_heads = 2, softcap = cap or nil })
      for _, window in ipairs { 1, 2, 3, 7, 9 } do
        local seen = T.ones(1, 1, 7, 7):tril():triu(1 - window):bool()
        local want = layer(x, { mask = seen })
        same(want, layer(x, { is_causal = true, window = window }), 1e-5)
        for _, sizes in ipairs { { 1, 1, 1, 1, 1, 1, 1 }, { 3, 4 }, { 2, 1, 4 } } do
          local cache, parts, at = nn.KVCache(1), {}, 1
          for i, n in ipairs(sizes) do
            parts[i] = layer(x:narrow(2, at, n), { cache = cache, is_causal = true, window = window })
            at = at + n
          end
          same(want, T.cat(parts, 2), 1e-5)
        end
      end
      fails(function() layer(x, { window = 2 }) end, "window goes with is_causal = true")
      fails(function() layer(x, { mask = T.ones(1, 1, 7, 7), is_causal = true }) end, "exclude each other")
    end
  end)
  it("limits and normalizes whatever the projections are, and those of a memory", function()
    local x = T.randn(2, 3, 8)
    for _, o in ipairs { { clip = 0.3 }, { qk_norm = nn.RMSNorm },
      { qk_norm = nn.RMSNorm, norm_all = true, clip = 0.3 } } do
      local function layer(fused)
        local given = { fused = fused }
        for key, v in pairs(o) do given[key] = v end
        return nn.GroupedQueryAttention(8, 2, given)
      end
      local plain, blocks, heads = layer "none", layer "blocks", layer "heads"
      local q, k, v = plain.q_proj.weight, plain.k_proj.weight, plain.v_proj.weight
      local function rows(list) return T.cat(list, 1):detach() end
      for fused, w in pairs { [blocks] = rows { q, k, v }, [heads] = rows { q:narrow(1, 1, 4), k:narrow(1, 1, 4),
        v:narrow(1, 1, 4), q:narrow(1, 5, 4), k:narrow(1, 5, 4), v:narrow(1, 5, 4) } } do
        T.no_grad(function()
          fused.qkv_proj.weight:copy_(w)
          fused.o_proj.weight:copy_(plain.o_proj.weight)
        end)
        same(fused(x), plain(x))
      end
      same(plain(x, { memory = x }), plain(x))
    end
  end)
  it("gives zeros, and gradients, to queries that a mask of numbers hides everything from", function()
    local layer = nn.GroupedQueryAttention(8, 2, { softcap = 5 })
    local x = T.randn(1, 2, 8):requires_grad_()
    local mask = T.tensor { { { { -math.huge, -math.huge }, { 0, -math.huge } } } }
    local y = layer(x, { mask = mask })
    y:sum():backward()
    assert.equal(0, y:select(2, 1):abs():sum():item())
    assert.is_true(x.grad:isfinite():all():item())
  end)
  it("refuses what it would not use", function()
    local layer, x, rope = nn.GroupedQueryAttention(8, 2), T.randn(1, 3, 8), nn.RotaryEmbedding(4)
    local cos, sin = rope(T.arange(0, 2):unsqueeze(1))
    for name, v in pairs { is_causal = true, rope = rope, window = 2 } do
      fails(function() layer(x, { memory = x, [name] = v }) end, name .. " does not go with memory")
    end
    fails(function() layer(x, { cos = cos, sin = sin }) end, "cos and sin are for rope")
    local cache = nn.KVCache()
    fails(function() layer(x, { cache = cache, window = 2 }) end, "window goes with is_causal = true")
    assert.equal(0, #cache)
  end)
  it("refuses sizes that do not fit", function()
    fails(function() nn.GroupedQueryAttention(8, 3) end, "must be a multiple of num_heads 3")
    fails(function() nn.GroupedQueryAttention(8, 4, { num_kv_heads = 3 }) end, "must be a multiple of num_kv_heads 3")
    fails(function() nn.GroupedQueryAttention(8, 4, { num_kv_heads = 2, fused = "heads" }) end, "as many key heads")
    fails(function() nn.GroupedQueryAttention(8, 4)(T.ones(1, 2, 7)) end, "must be [B, L, 8]")
  end)
end)

describe("nn.KVCache", function()
  it("grows by blocks and forgets on demand", function()
    local cache = nn.KVCache { block = 4 }
    local k, v = T.randn(2, 1, 9, 3), T.randn(2, 1, 9, 3)
    local gk, gv
    for i = 1, 9 do gk, gv = cache:update(1, k:narrow(3, i, 1), v:narrow(3, i, 1)) end
    assert.is_true(gk:equal(k) and gv:equal(v))
    assert.equal(12, cache.layers[1].k:size(3))
    assert.equal(9, #cache)
    cache:crop(5)
    assert.is_true(cache:get(1):equal(k:narrow(3, 1, 5)))
    cache:reorder(T.tensor({ 2, 2 }, { dtype = "i64" }))
    assert.is_true(cache:get(1):select(1, 1):equal(k:narrow(3, 1, 5):select(1, 2)))
    assert.equal(0, #cache:reset())
    fails(function() cache:update(1, T.ones(1, 2), T.ones(1, 2)) end, "keys and values [B, H, n, D]")
    -- what would be broadcast or converted without a word
    local one = T.ones(2, 1, 1, 3)
    cache:update(1, one, one)
    for _, bad in ipairs { T.ones(1, 1, 1, 3), T.ones(2, 1, 1, 1), one:double() } do
      fails(function() cache:update(1, one, bad) end, "layer 1 has values f32[2,1,4,3]")
      fails(function() cache:update(1, bad, one) end, "layer 1 has keys f32[2,1,4,3]")
    end
    fails(function() cache:update(2, one, T.ones(1, 1, 1, 3)) end, "differ in batch or heads")
    fails(function() cache:update(nil, one, one) end, "layer must be a positive integer")
    fails(function() cache:crop(-1) end, "n must be a non-negative integer")
    fails(function() cache:crop(1.5) end, "n must be a non-negative integer")
    assert.equal(1, #cache)
    local layer = nn.GroupedQueryAttention(4, 2)
    fails(function() layer(T.ones(1, 2, 4), { cache = {} }) end, "cache must be a nn.KVCache, got a table")
  end)
end)

describe("feed-forward of decoders", function()
  it("is gated", function()
    local mlp = nn.GatedMLP(3, 5, { activation = "gelu_tanh", bias = true })
    local x = T.randn(2, 3)
    same(mlp(x), mlp.down_proj(nn.F.gelu(mlp.gate_proj(x), { approximate = "tanh" }) * mlp.up_proj(x)))
    local fused = nn.GatedMLP(3, 5, { activation = "gelu_tanh", bias = true, fused = true })
    T.no_grad(function()
      fused.gate_up_proj.weight:copy_(T.cat({ mlp.gate_proj.weight, mlp.up_proj.weight }, 1))
      fused.gate_up_proj.bias:copy_(T.cat({ mlp.gate_proj.bias, mlp.up_proj.bias }, 1))
      fused.down_proj.weight:copy_(mlp.down_proj.weight)
      fused.down_proj.bias:copy_(mlp.down_proj.bias)
    end)
    same(mlp(x), fused(x))
    fails(function() nn.GatedMLP(3, 5, { activation = "silo" }) end, "did you mean 'silu'")
  end)

  it("sends each place through the chosen experts alone, and its gradient back", function()
    for _, normalize in ipairs { true, false } do
      local moe = nn.MixtureOfExperts(4, 6, { num_experts = 5, top_k = 2, normalize = normalize })
      local x = T.randn(3, 7, 4):requires_grad_()
      local w = moe.experts
      local function dense(input)
        local rows = input:reshape(-1, 4)
        local share = nn.F.linear(rows, moe.gate.weight):softmax(-1)
        local best = share:detach():topk(2, -1):narrow(2, 2, 1)
        share = share * share:detach():ge(best):float()
        if normalize then share = share / share:sum(-1, { keepdim = true }) end
        local y = 0
        for e = 1, 5 do
          local all = nn.F.linear(rows, w.gate_up_proj:select(1, e))
          local z = nn.F.silu(all:narrow(2, 1, 6)) * all:narrow(2, 7, 6)
          y = y + nn.F.linear(z, w.down_proj:select(1, e)) * share:narrow(2, e, 1)
        end
        return y:view(3, 7, 4)
      end
      local dy, list = T.randn(3, 7, 4), { x, moe.gate.weight, w.gate_up_proj, w.down_proj }
      local y, z = moe(x), dense(x)
      same(y, z)
      local got = T.grad_of({ y }, list, { grad_outputs = { dy } })
      local want = T.grad_of({ z }, list, { grad_outputs = { dy } })
      for i = 1, 4 do same(got[i], want[i]) end
      local jitted = T.jit(function(input) return (moe(input)) end)
      same(jitted(x), z)
      got = T.grad_of({ jitted(x) }, list, { grad_outputs = { dy } })
      for i = 1, 4 do same(got[i], want[i]) end
    end
    fails(function() nn.MixtureOfExperts(4, 6, { num_experts = 2, top_k = 3 }) end, "must not exceed num_experts 2")
  end)
end)

describe("nn.RMSNorm", function()
  it("multiplies by 1 + weight with unit_offset", function()
    local a, b = nn.RMSNorm(4, { eps = 1e-6 }), nn.RMSNorm(4, { eps = 1e-6, unit_offset = true })
    local x = T.randn(2, 4)
    same(a(x), b(x))
    T.no_grad(function()
      a.weight:fill_(1.5)
      b.weight:fill_(0.5)
    end)
    same(a(x), b(x))
    fails(function() nn.RMSNorm(4, { unit_offset = true, elementwise_affine = false }) end, "has none")
  end)
end)

describe("an activation", function()
  local makes = { TransformerEncoderLayer = function(f) return nn.TransformerEncoderLayer(4, 2, { dim_feedforward = 6,
      activation = f }) end,
    TransformerDecoderLayer = function(f) return nn.TransformerDecoderLayer(4, 2, { dim_feedforward = 6,
      activation = f }) end,
    GatedMLP = function(f) return nn.GatedMLP(4, 6, { activation = f }) end,
    MixtureOfExperts = function(f) return nn.MixtureOfExperts(4, 6, 3, { activation = f }) end }
  for name, make in pairs(makes) do
    it("that is a module is a child, with parameters and a mode, and another may take its place: " .. name, function()
      T.manual_seed(1)
      local m, x = make(nn.PReLU()):eval(), T.randn(2, 3, 4)
      local function call() return (m(x, x)) end
      if name ~= "TransformerDecoderLayer" then call = function() return (m(x)) end end
      assert.is_false(m.activation.training)
      call():sum():backward()
      assert.is_true(m.activation.weight.grad:abs():item() > 0)
      assert.is_not_nil(m:state_dict()["activation.weight"])
      local other = make "relu":eval()
      m.activation = nil
      m.activation = "relu"
      other:load_state_dict(m:state_dict())
      local want = call()
      m = other
      assert.is_true(call():equal(want))
      m.activation = T.tanh
      assert.is_false(call():equal(want))
    end)
  end
end)
