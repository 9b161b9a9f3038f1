-- SPDX-License-Identifier: MIT
-- nn.QuantizedLinear, nn.QuantizedEmbedding, T.quantize: numbers, states, conversions, gradients, adapters, what is
-- refused.

local T = require "perilune"
local nn = T.nn

local function fails(f, want)
  local ok, why = pcall(f)
  assert.is_false(ok)
  assert.is_truthy(tostring(why):find(want, 1, true), tostring(why))
end

local function close(a, b, tol)
  local gap = (a:double() - b:double()):abs():max():item()
  assert.is_true(gap <= tol * (1 + b:abs():max():item()), "differs by " .. gap)
end

local function net()
  return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32, { bias = false }), nn.Linear(32, 3))
end

describe("T.quantize", function()
  it("puts layers of blocks in the place of others, whose results stay near", function()
    T.manual_seed(1)
    for bits, error in pairs { [8] = 0.01, [5] = 0.06, [4] = 0.12 } do
      local n, x = net(), T.randn(5, 64)
      local want = n(x)
      local back, names = T.quantize(n, { bits = bits })
      assert.equal(n, back)
      assert.same({ "1", "3", "4" }, names)
      assert.equal("QuantizedLinear", n[1]:type())
      assert.equal(nn.ReLU, getmetatable(n[2]).__class)
      close(n(x), want, error)
      close(n(x), n[4]:dequantize()(n[3]:dequantize()(n[2](n[1]:dequantize()(x)))), 1e-4)
    end
  end)

  it("takes the layers that are meant", function()
    local function names(o, m) return select(2, T.quantize(m or net(), o)) end
    assert.same({ "3" }, names { target = "3" })
    assert.same({ "1", "4" }, names { skip = { "3" } })
    assert.same({ "4" }, names { target = function(_, l) return l.in_features == 32 end })
    assert.same({ "1" }, names({ format = "Q4_1" }, nn.Sequential(nn.Linear(32, 5), nn.Linear(5, 32))))
    local q = T.quantize(nn.Linear(32, 4), { format = "Q5_1", activations = "float" })
    assert.equal("float", q.activations)
    assert.equal("Q5_1", q.format)
    local e = nn.Sequential(nn.Embedding(7, 32), nn.Linear(32, 7, { bias = false }))
    e[2].weight = e[1].weight
    fails(function() T.quantize(e) end, "no layer was quantized") -- the table stays, and the layer shares it
    local _, both = T.quantize(e, { embeddings = true })
    assert.same({ "1", "2" }, both)
    assert.is_true(rawequal(e[1].weight, e[2].weight))
  end)

  it("refuses what it does not know", function()
    fails(function() T.quantize {} end, "a network is wanted")
    fails(function() T.quantize(net(), { bits = 3 }) end, "bits must be 8, 5 or 4")
    fails(function() T.quantize(net(), { bits = 4, format = "Q4_0" }) end, "exclude each other")
    fails(function() T.quantize(net(), { format = "Q2_K" }) end, "format")
    fails(function() T.quantize(net(), { method = "magic" }) end, "method")
    fails(function() T.quantize(net(), { group = 64 }) end, "groups of 32")
    fails(function() T.quantize(nn.Linear(5, 5)) end, "no layer was quantized")
    fails(function() nn.QuantizedLinear(33, 2) end, "no whole blocks of Q8_0, of 32")
    fails(function() nn.QuantizedLinear(32, 2, { format = "Q9" }) end, "format")
  end)
end)

describe("quantized layers", function()
  it("keep and load their state; blocks of another format do not fit, though they are of the same size", function()
    T.manual_seed(2)
    local path = os.tmpname() .. ".safetensors"
    local a, x = T.quantize(net(), { bits = 4 }), T.randn(2, 64)
    local names = {}
    for name in pairs(a:state_dict()) do names[#names + 1] = name end
    table.sort(names)
    assert.same({ "1.bias", "1.weight_q4_0", "3.weight_q4_0", "4.bias", "4.weight_q4_0" }, names)
    assert(T.save(path, a:state_dict()))
    local b = T.quantize(net(), { bits = 4 })
    b:load_state_dict(assert(T.load(path)))
    assert.is_true(a(x):equal(b(x)))
    local other = nn.Sequential(nn.QuantizedLinear(64, 96, { format = "IQ4_NL" }))
    fails(function() other:load_state_dict(T.load(path)) end, "weight_iq4_nl")
    os.remove(path)
  end)

  it("train what is before and beside them", function()
    T.manual_seed(3)
    local l, x = nn.QuantizedLinear(64, 5, { format = "Q8_0", activations = "float" }), T.randn(3, 64):double()
    l.weight:copy_(T.quantize_blocks(T.randn(5, 64), { format = "Q8_0" }))
    l:to "f64"
    assert.equal("u8", l.weight:dtype())
    assert.is_true(T.gradcheck(function(v, bias) return T.quantized_linear(v, l.weight, bias, l._opts):square() end,
      { x:requires_grad_(), l.bias }))
    l(x):sum():backward()
    close(x.grad, l:numbers "f64":sum(1):expand(3, 64), 1e-12)
    assert.same({ 3, 3, 3, 3, 3 }, l.bias.grad:totable())
    assert.equal(1, #l:parameters())
  end)

  it("follow dtypes, autocast, clones and traces", function()
    T.manual_seed(4)
    local n, x = T.quantize(net(), { bits = 8 }), T.randn(4, 64)
    local want = n(x):detach()
    local low = T.autocast("bf16", function() return n(x) end)
    assert.equal("bf16", low:dtype())
    close(low, want, 0.03)
    local copy = n:clone()
    assert.is_true(copy(x):equal(want))
    assert.is_false(rawequal(copy[1].weight, n[1].weight))
    assert.equal("f16", copy:to "f16"(x:to "f16"):dtype())
    close(T.jit(function(v) return n(v) end)(x), want, 1e-6)
    local e = nn.QuantizedEmbedding(9, 32, { index_base = 0 })
    e.weight:copy_(T.quantize_blocks(T.randn(9, 32), { format = "Q8_0" }))
    local ids = T.tensor({ { 0, 8 }, { 3, 3 } }, { dtype = "i64" })
    assert.is_true(e(ids):equal(e:dequantize()(ids)))
    assert.equal("bf16", e:to "bf16"(ids):dtype())
    fails(function() e(ids + 1) end, "9")
  end)

  it("take adapters, which learn as beside the same numbers", function()
    T.manual_seed(5)
    local q, x = T.quantize(net(), { bits = 4 }), T.randn(6, 64)
    for _, m in ipairs { q[1], q[3], q[4] } do m.activations = "float" end
    local plain = nn.Sequential(q[1]:dequantize(), nn.ReLU(), q[3]:dequantize(), q[4]:dequantize())
    nn.lora(q, { rank = 2, target = "all-linear" })
    nn.lora(plain, { rank = 2, target = "all-linear" })
    assert.equal(6, #q:parameters() - 2) -- two biases are frozen
    for _, k in ipairs { 1, 3, 4 } do
      for _, key in ipairs { "lora_A", "lora_B" } do
        T.no_grad(function() plain[k][key]:copy_(q[k][key]:normal_(0, 0.1)) end)
      end
    end
    q(x):square():sum():backward()
    plain(x):square():sum():backward()
    for _, k in ipairs { 1, 3, 4 } do
      close(q[k].lora_A.grad, plain[k].lora_A.grad, 1e-5)
      close(q[k].lora_B.grad, plain[k].lora_B.grad, 1e-5)
      assert.is_nil(q[k].weight.grad)
    end
    fails(function() nn.merge_lora(q) end, "dequantize = true")
  end)
end)
