-- SPDX-License-Identifier: MIT
-- nn.F.scaled_dot_product_attention, which keeps no scores, against the formula spelled out: masks, dropout, dtypes,
-- layouts, lengths, two orders of gradients, and what it keeps in memory.

local T = require "perilune"
local gradcheck = require "spec.support.gradcheck"
local near = require "spec.support.near"
local nn, F = T.nn, T.nn.F
local fails = near.fails

local function same(got, want, tol)
  assert.same(want:shape(), got:shape())
  local d = (got:detach():double() - want:detach():double()):abs():max():item()
  local size = math.max(1, want:detach():double():abs():max():item())
  assert.is_true(d <= tol * size, ("differs by %g of %g"):format(d, size))
end

-- All of it, with the scores; keep multiplies the shares.
local function formula(q, k, v, o, keep)
  local s = (q:matmul(k:transpose(-2, -1))) * o.scale
  local hidden
  if o.is_causal then
    hidden = T.gt(T.arange(k:size(-2)):unsqueeze(1), T.arange(q:size(-2)):unsqueeze(2))
  elseif o.attn_mask and o.attn_mask:dtype() == "bool" then
    hidden = o.attn_mask:logical_not()
  elseif o.attn_mask then
    s = s + o.attn_mask
  end
  if hidden then s = s:masked_fill(hidden, -math.huge) end
  local p = s:softmax(-1)
  if hidden then p = p:masked_fill(hidden, 0) end
  if keep then p = p * keep end
  return p:matmul(v)
end

-- Result, gradients, and gradients of a function of these.
local function orders(f, list, dy)
  local x = {}
  for i, t in ipairs(list) do x[i] = t:detach():clone():requires_grad_() end
  local y = f(table.unpack(x))
  local g = T.grad_of({ y }, x, { grad_outputs = { dy }, create_graph = true })
  local z = 0
  for i, t in ipairs(g) do z = z + (t * t * (i / 2)):sum() + t:sin():sum() end
  local out = { y, table.unpack(g) }
  for _, h in ipairs(T.grad_of({ z }, x)) do out[#out + 1] = h end
  return out
end

local function compare(list, dy, o, tol)
  local got = orders(function(q, k, v) return F.scaled_dot_product_attention(q, k, v, o) end, list, dy)
  local want = orders(function(q, k, v) return formula(q, k, v, o) end, list, dy)
  assert.equal(7, #got)
  for i, w in ipairs(want) do same(got[i], w, tol) end
end

local function inputs(dtype, batch, L, S, E, D)
  local function one(...)
    local shape = { table.unpack(batch) }
    for _, n in ipairs { ... } do shape[#shape + 1] = n end
    return T.randn(shape, { dtype = dtype })
  end
  return { one(L, E), one(S, E), one(S, D) }, one(L, D), one
end

describe("attention", function()
  it("takes boolean and added masks, causal or not, in f64 and f32", function()
    T.manual_seed(1)
    for dtype, tol in pairs { f64 = 1e-9, f32 = 2e-4 } do
      for _, c in ipairs { { { 2 }, 5, 7, 3, 4 }, { { 2, 3 }, 17, 18, 8, 5 }, { { 1 }, 130, 33, 16, 16 },
        { { 2 }, 1, 37, 72, 20 }, { { 3 }, 2, 64, 16, 16 }, { { 1 }, 3, 5, 5, 33 } } do
        local list, dy = inputs(dtype, table.unpack(c))
        local L, S = c[2], c[3]
        local seen = T.rand(L, S):gt(0.3)
        seen["1, :"] = true
        compare(list, dy, { scale = 0.4 }, tol)
        compare(list, dy, { scale = 0.4, is_causal = true }, tol)
        compare(list, dy, { scale = 0.4, attn_mask = seen }, tol)
        compare(list, dy, { scale = 0.4, attn_mask = T.randn({ L, S }, { dtype = dtype }) }, tol)
        compare(list, dy, { scale = 0.4, attn_mask = T.randn({ 1, S }, { dtype = dtype }) }, tol)
      end
    end
  end)

  it("gives zeros, and no gradient, to queries that see nothing", function()
    local list, dy = inputs("f64", { 2 }, 4, 5, 3, 2)
    local seen = T.ones(4, 5):to("bool")
    seen["2, :"] = false
    compare(list, dy, { scale = 1.0, attn_mask = seen }, 1e-9)
    local hidden = T.zeros(4, 5)
    hidden["2, :"] = -math.huge
    for _, mask in ipairs { seen, hidden } do
      local q = list[1]:clone():requires_grad_()
      local y = F.scaled_dot_product_attention(q, list[2], list[3], { attn_mask = mask })
      assert.equal(0, y:select(2, 2):abs():max():item())
      y:sum():backward()
      assert.equal(0, q.grad:select(2, 2):abs():max():item())
      assert.is_true(q.grad:isfinite():all():item())
    end
    local none = F.scaled_dot_product_attention(T.randn(1, 2, 3), T.zeros(1, 0, 3), T.zeros(1, 0, 4))
    assert.equal(0, none:abs():sum():item())
  end)

  it("has a gradient for a mask that learns", function()
    local list, dy = inputs("f64", { 2, 2 }, 4, 5, 3, 2)
    for _, shape in ipairs { { 4, 5 }, { 2, 1, 4, 5 }, { 5 } } do
      local mask = T.randn(shape, { dtype = "f64" })
      local function with(f)
        local m = mask:clone():requires_grad_()
        local g = T.grad_of({ f(m) }, { m }, { grad_outputs = { dy }, create_graph = true })[1]
        return { g, T.grad_of({ g:sin():sum() }, { m })[1] }
      end
      local got = with(function(m)
        return F.scaled_dot_product_attention(list[1], list[2], list[3], { attn_mask = m, scale = 0.5 })
      end)
      local want = with(function(m) return formula(list[1], list[2], list[3], { attn_mask = m, scale = 0.5 }) end)
      for i, w in ipairs(want) do same(got[i], w, 1e-9) end
    end
  end)

  it("drops shares, the same ones again for gradients of every order", function()
    for _, causal in ipairs { false, true } do
      local list, dy = inputs("f64", { 2, 2 }, 6, 9, 4, 3)
      local o = { scale = 0.5, is_causal = causal, dropout_p = 0.4 }
      local state = T.get_rng_state()
      -- values that name their key show what was kept
      local shares = F.scaled_dot_product_attention(list[1], list[2], T.eye(9, { dtype = "f64" }):expand(2, 2, 9, 9), o)
      local all = formula(list[1], list[2], T.eye(9, { dtype = "f64" }):expand(2, 2, 9, 9), o)
      local keep = shares:ne(0):double() / 0.6
      same(shares, all * keep, 1e-9)
      local function again(q, k, v)
        T.set_rng_state(state)
        return F.scaled_dot_product_attention(q, k, v, o)
      end
      local got = orders(again, list, dy)
      local want = orders(function(q, k, v) return formula(q, k, v, o, keep) end, list, dy)
      for i, w in ipairs(want) do same(got[i], w, 1e-9) end
    end
    local q = T.randn(4, 64, 8)
    local v = T.ones(4, 64, 8)
    T.manual_seed(3)
    local y1 = F.scaled_dot_product_attention(q, q, v, { dropout_p = 0.25 })
    local y2 = F.scaled_dot_product_attention(q, q, v, { dropout_p = 0.25 })
    assert.is_false(y1:equal(y2))
    T.manual_seed(3)
    assert.is_true(F.scaled_dot_product_attention(q, q, v, { dropout_p = 0.25 }):equal(y1))
    near.near(y1:mean(), { 1 }, 0.02)
    assert.equal(0, F.scaled_dot_product_attention(q, q, v, { dropout_p = 1.0 }):abs():max():item())
    fails("dropout_p must be a number from 0 to 1, got 2", function()
      F.scaled_dot_product_attention(q, q, v, { dropout_p = 2 })
    end)
  end)

  it("takes f16 and bf16, small and large, near the same in f64", function()
    T.manual_seed(4)
    for dtype, tol in pairs { f16 = 0.01, bf16 = 0.06 } do
      for _, c in ipairs { { { 2 }, 5, 7, 3, 4 }, { { 2, 2 }, 200, 150, 64, 48 }, { { 1 }, 300, 300, 64, 64 } } do
        for _, kind in ipairs { "plain", "causal", "bool", "added" } do
          local list, dy = inputs(dtype, table.unpack(c))
          local L, S = c[2], c[3]
          local o = { scale = 0.2, is_causal = kind == "causal",
            attn_mask = kind == "bool" and T.rand(L, S):gt(0.2) or nil }
          if kind == "added" then o.attn_mask = T.randn({ L, S }, { dtype = dtype }) end
          local function first(f, to)
            local x = {}
            for i, t in ipairs(list) do x[i] = t:to(to):clone():requires_grad_() end
            local y = f(x[1], x[2], x[3])
            return { y, table.unpack(T.grad_of({ y }, x, { grad_outputs = { dy:to(to) } })) }
          end
          local got = first(function(q, k, v) return F.scaled_dot_product_attention(q, k, v, o) end, dtype)
          local wide = { scale = o.scale, is_causal = o.is_causal, attn_mask = o.attn_mask }
          if kind == "added" then wide.attn_mask = o.attn_mask:double() end
          local want = first(function(q, k, v) return formula(q, k, v, wide) end, "f64")
          for i, w in ipairs(want) do
            assert.equal(dtype, got[i]:dtype())
            same(got[i], w, tol)
          end
        end
      end
    end
  end)

  it("takes a few queries in half precision, near the same in f64", function()
    for dtype, tol in pairs { f16 = 2e-3, bf16 = 2e-2 } do
      for _, c in ipairs { { { 2, 2 }, 1, 131, 64, 64 }, { { 2 }, 3, 17, 40, 24 } } do
        local list = inputs(dtype, table.unpack(c))
        local wide = {}
        for i, t in ipairs(list) do wide[i] = t:double() end
        local mask = T.rand(c[2], c[3]):gt(0.3)
        mask["1, :"] = true
        for _, o in ipairs { { scale = 0.2 }, { scale = 0.2, attn_mask = mask }, { scale = 0.2, is_causal = true } } do
          same(F.scaled_dot_product_attention(list[1], list[2], list[3], o), formula(wide[1], wide[2], wide[3], o), tol)
        end
      end
    end
  end)

  it("has no slope where one key takes everything, for one query as for many", function()
    for L = 1, 5 do
      local q = (T.ones(1, L, 20) * 30):requires_grad_()
      local k = T.cat({ T.ones(1, 1, 20) * 1.7, T.randn(1, 30, 20) * 0.1 }, 2)
      local y = F.scaled_dot_product_attention(q, k, T.randn(1, 31, 8))
      y:sum():backward()
      assert.equal(0, q.grad:abs():max():item())
    end
  end)

  it("drops the same shares in bf16 whichever way it computes", function()
    local q, k = T.randn({ 1, 200, 64 }, { dtype = "bf16" }), T.randn({ 1, 150, 64 }, { dtype = "bf16" })
    local eye = T.eye(150, { dtype = "bf16" }):unsqueeze(1)
    local state = T.get_rng_state()
    local large = F.scaled_dot_product_attention(q, k, eye, { dropout_p = 0.5 })
    T.set_rng_state(state)
    local small = F.scaled_dot_product_attention(q:float(), k:float(), eye:float(), { dropout_p = 0.5 })
    local both = large:ne(0):ne(small:ne(0)):sum():item() -- a share may round to nothing
    assert.is_true(both <= 20, both .. " shares differ")
  end)

  it("does not depend on the layout of its inputs", function()
    for _, dtype in ipairs { "f32", "f64", "bf16" } do
      local qkv = T.randn({ 2, 70, 3, 4, 16 }, { dtype = dtype })
      local list, dense = {}, {}
      for i = 1, 3 do
        list[i] = qkv:select(3, i):transpose(2, 3) -- heads are between the places
        dense[i] = list[i]:contiguous()
      end
      local function all(x)
        local a = {}
        for i, t in ipairs(x) do a[i] = t:detach():requires_grad_() end
        local y = F.scaled_dot_product_attention(a[1], a[2], a[3], { is_causal = true })
        return { y, table.unpack(T.grad_of({ (y * y):sum() }, a)) }
      end
      local got, want = all(list), all(dense)
      for i, w in ipairs(want) do assert.is_true(got[i]:equal(w)) end
      local turned = dense[1]:transpose(3, 4):contiguous():transpose(3, 4)
      same(F.scaled_dot_product_attention(turned, dense[2], dense[3]),
        F.scaled_dot_product_attention(dense[1], dense[2], dense[3]), dtype == "bf16" and 0.02 or 1e-6)
    end
  end)

  it("broadcasts batches and shares key heads without copies of them", function()
    local q, k = T.randn({ 2, 4, 5, 3 }, { dtype = "f64" }), T.randn({ 1, 1, 6, 3 }, { dtype = "f64" })
    local want = formula(q, k, k, { scale = 1 / math.sqrt(3) })
    same(F.scaled_dot_product_attention(q, k, k), want, 1e-12)
    same(F.scaled_dot_product_attention(q, k:squeeze(1):squeeze(1), k:squeeze(1)), want, 1e-12)
    same(F.scaled_dot_product_attention(q:select(1, 1):select(1, 1), k:squeeze(), k:squeeze()),
      want:select(1, 1):select(1, 1), 1e-12)
    local two = T.randn({ 2, 2, 6, 3 }, { dtype = "f64" })
    local mask = T.randn({ 2, 4, 5, 6 }, { dtype = "f64" })
    same(F.scaled_dot_product_attention(q, two, two, { enable_gqa = true, attn_mask = mask }),
      formula(q, two:repeat_interleave(2, { dim = 2 }), two:repeat_interleave(2, { dim = 2 }),
        { scale = 1 / math.sqrt(3), attn_mask = mask }), 1e-12)
    for _, keys in ipairs { two, two:repeat_interleave(2, { dim = 2 }) } do -- queries for all batches
      local many = q:select(1, 1)
      local each = keys:repeat_interleave(4 // keys:size(2), { dim = 2 })
      same(F.scaled_dot_product_attention(many, keys, keys, { enable_gqa = true }),
        formula(many:expand(2, 4, 5, 3), each, each, { scale = 1 / math.sqrt(3) }), 1e-12)
    end
    fails("do not broadcast", function() F.scaled_dot_product_attention(q, T.randn({ 3, 1, 6, 3 }, { dtype = "f64" }),
      T.randn({ 3, 1, 6, 3 }, { dtype = "f64" })) end)
    fails("must be bool or floating and broadcast", function()
      F.scaled_dot_product_attention(q, k, k, { attn_mask = T.ones(7, 7) })
    end)
  end)

  it("has the same bits with any number of threads", function()
    local before = T.get_num_threads()
    for _, dtype in ipairs { "f32", "bf16" } do
      local list, dy = inputs(dtype, { 1, 2 }, 700, 300, 64, 64)
      local want
      for threads = 1, 3 do
        T.set_num_threads(threads)
        local x = {}
        for i, t in ipairs(list) do x[i] = t:clone():requires_grad_() end
        local y = F.scaled_dot_product_attention(x[1], x[2], x[3], { is_causal = true })
        local got = { y, table.unpack(T.grad_of({ y }, x, { grad_outputs = { dy } })) }
        want = want or got
        for i, w in ipairs(want) do assert.is_true(got[i]:equal(w)) end
      end
    end
    T.set_num_threads(before)
  end)

  it("needs memory for the lengths, not for their product", function()
    local n = 3000
    for dtype, size in pairs { f32 = 4, bf16 = 2 } do
      local x = T.randn({ 1, n, 16 }, { dtype = dtype, requires_grad = true })
      local mask = T.ones(1, n):to("bool")
      T.core.collect()
      T.reset_peak_memory()
      local start = T.memory().live
      F.scaled_dot_product_attention(x, x, x, { attn_mask = mask, dropout_p = 0.1 }):sum():backward()
      local most = T.memory().peak - start
      assert.is_true(most < n * n * size / 2, most .. " bytes for " .. dtype)
    end
  end)

  it("is what MultiheadAttention steps through with a cache", function()
    for _, dtype in ipairs { "f64", "bf16" } do
      local m = nn.MultiheadAttention(8, 2, { batch_first = true, dtype = dtype })
      m:eval()
      local x = T.randn({ 2, 6, 8 }, { dtype = dtype })
      local whole, cache, parts = m(x, x, x, { is_causal = true }), {}, {}
      local at = 1
      for _, step in ipairs { 3, 1, 2 } do -- several places at once see each other causally
        local z = x:narrow(2, at, step)
        parts[#parts + 1] = m(z, z, z, { cache = cache, is_causal = true })
        at = at + step
      end
      same(T.cat(parts, 2), whole, dtype == "bf16" and 0.03 or 1e-12)
      assert.same({ 2, 2, 6, 4 }, cache.k:shape())
    end
  end)
end)

describe("attention, in pieces and of padding,", function()
  local function randn(...) return T.randn({ ... }, { dtype = "f64" }) end
  before_each(function() T.manual_seed(11) end)

  it("is the same in pieces with a cache", function()
    local m = nn.MultiheadAttention(8, 2, { batch_first = true, dtype = "f64" })
    local x = randn(2, 5, 8)
    local whole, cache, parts = m(x, x, x, { is_causal = true }), {}, {}
    for t = 1, 5 do
      local z = x:narrow(2, t, 1)
      parts[t] = m(z, z, z, { cache = cache })
    end
    same(T.cat(parts, 2), whole, 1e-10)
  end)
  it("is the same in pieces with a cache for a stack of layers", function()
    local net = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, { batch_first = true, dtype = "f64" }), 3)
    net:eval()
    local x = randn(2, 4, 8)
    local cache, o = {}, { is_causal = true }
    o.cache = cache
    local first = net(x:narrow(2, 1, 3), o)
    same(T.cat({ first, net(x:narrow(2, 4, 1), o) }, 2), net(x, { is_causal = true }), 1e-10)
    assert.equal(3, #cache)
    assert.same({ is_causal = true, cache = cache }, o)
  end)
  it("keeps a cache as it was where a call fails", function()
    local m = nn.MultiheadAttention(8, 2, { batch_first = true })
    local x, cache = T.randn(2, 3, 8), {}
    m(x, x, x, { cache = cache })
    local k = cache.k
    fails("the mask f32[5,5]", m, x, x, x, { cache = cache, attn_mask = T.zeros(5, 5) })
    assert.is_true(rawequal(k, cache.k))
  end)
  it("is causal beside a mask that is given", function()
    local m = nn.MultiheadAttention(8, 2, { batch_first = true, dtype = "f64" })
    local x, bias = randn(2, 3, 8), randn(3, 3)
    local both = bias:masked_fill(T.ones(3, 3):triu(1):bool(), -math.huge)
    for _, need in ipairs { true, false } do
      same((m(x, x, x, { attn_mask = bias, is_causal = true, need_weights = need })),
        (m(x, x, x, { attn_mask = both, need_weights = need })), 1e-10)
    end
    fails("needs a key for each of 3 queries", m, x, x:narrow(2, 1, 2), nil,
      { attn_mask = T.zeros(3, 2), is_causal = true })
  end)
  it("takes masks of its own sizes and dtypes only", function()
    local m = nn.MultiheadAttention(8, 2, { batch_first = true })
    local x = T.randn(2, 3, 8)
    for _, need in ipairs { true, false } do
      local function refuses(part, o)
        o.need_weights = need
        fails(part, m, x, x, x, o)
      end
      refuses("key_padding_mask must be [2, 3]", { key_padding_mask = T.zeros(3, 2):bool() })
      refuses("key_padding_mask must be bool or floating", { key_padding_mask = T.zeros({ 2, 3 }, { dtype = "u8" }) })
      refuses("attn_mask must be bool or floating", { attn_mask = T.zeros({ 3, 3 }, { dtype = "i64" }) })
      refuses("attn_mask must be [3, 3] or [4, 3, 3]", { attn_mask = T.zeros(3, 4, 3) })
    end
  end)
  it("does not look at padding", function()
    local m = nn.MultiheadAttention(8, 2, { batch_first = true, dtype = "f64" })
    local x = randn(1, 4, 8)
    local pad = T.tensor { { false, false, false, true } }
    local y = m(x, x, x, { key_padding_mask = pad })
    local short = x:narrow(2, 1, 3)
    same(y:narrow(2, 1, 3), m(short, short, short), 1e-10)
  end)
  it("gives zeros to queries that see nothing", function()
    local q = randn(1, 2, 3)
    local mask = T.tensor { { false, false }, { true, false } }
    local y = F.scaled_dot_product_attention(q, q, q, mask)
    assert.equal(0, y:select(2, 1):abs():max():item())
    same(y:select(2, 2), q:select(2, 1), 1e-10)
  end)
  it("has exact gradients and shares key heads", function()
    local function check(o, ...)
      assert(gradcheck.check(T, function(q, k, v) return F.scaled_dot_product_attention(q, k, v, o) end, { ... }, {}))
    end
    check({ is_causal = true }, randn(2, 3, 2), randn(2, 3, 2), randn(2, 3, 4))
    check({ enable_gqa = true }, randn(1, 4, 2, 3), randn(1, 2, 3, 3), randn(1, 2, 3, 3))
  end)
  it("keeps no scores in f32, with the gradients of the formula in both orders", function()
    local function spelled(q, k, v, o)
      local s = (q * o.scale):matmul(k:transpose(-2, -1))
      if o.is_causal then
        s = s:masked_fill(T.gt(T.arange(k:size(-2)):unsqueeze(1), T.arange(q:size(-2)):unsqueeze(2)), -math.huge)
      end
      return s:softmax(-1):matmul(v)
    end
    local function all(f, dtype, list, dy, o)
      local x = {}
      for i, t in ipairs(list) do x[i] = t:to(dtype):clone():requires_grad_() end
      local y = f(x[1], x[2], x[3], o)
      local g = T.grad_of({ y }, x, { grad_outputs = { dy:to(dtype) }, create_graph = true })
      local z = (g[1] * g[1]):sum() + (g[2]:sin() * g[2]):sum() + (g[3] * g[3] * g[3]):sum()
      local h = T.grad_of({ z }, x)
      return { y, g[1], g[2], g[3], h[1], h[2], h[3] }
    end
    for _, c in ipairs { { 1, 1, 1, 1, 1 }, { 2, 5, 4, 3, 2 }, { 3, 17, 33, 8, 20 }, { 2, 130, 70, 16, 16 } } do
      for _, causal in ipairs { true, false } do
        local B, L, S, E, D = table.unpack(c)
        local list, dy = { T.randn(B, L, E), T.randn(B, S, E), T.randn(B, S, D) }, T.randn(B, L, D)
        local o = { is_causal = causal, scale = 0.3 }
        local got = all(F.scaled_dot_product_attention, "f32", list, dy, o)
        local want = all(spelled, "f64", list, dy, o)
        assert.equal(7, #got)
        for i, w in ipairs(want) do
          same(got[i]:double(), w, 1e-5)
        end
      end
    end
    -- rows that see one key only: the gradient is what is left of two equal numbers
    local q = T.full({ 1, 3, 8 }, 20.0):requires_grad_()
    local k = T.eye(8):unsqueeze(1) * 8
    F.scaled_dot_product_attention(q, k, k):sum():backward()
    assert.is_true(q.grad:abs():max():item() < 1e-4)
  end)
  it("says what does not fit", function()
    local q = T.randn(2, 3, 4)
    fails("differ in width", F.scaled_dot_product_attention, q, T.randn(2, 3, 5), q)
    fails("exclude each other", F.scaled_dot_product_attention, q, q, q, T.ones(3, 3), { is_causal = true })
    fails("multiple of num_heads", nn.MultiheadAttention, 7, 2)
  end)
end)
