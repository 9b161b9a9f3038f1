-- SPDX-License-Identifier: MIT
-- Operators on 8-bit tensors, ONNX's and onnxruntime's own, against what they say in plain Lua. Scales are powers of
-- two, so that all numbers between are exact and ties are met.

local T = require "perilune"
local writer = require "spec.onnx.writer"
local near = require("spec.support.near").near

local function run(op, inputs, attributes, standard)
  local path, given = os.tmpname(), {}
  local f = assert(io.open(path, "wb"))
  f:write(writer.single(op, inputs, 1, attributes, 17, not standard and "com.microsoft" or nil))
  f:close()
  local m, message = T.onnx.load(path)
  os.remove(path)
  for _, t in ipairs(inputs) do if t then given[#given + 1] = t end end
  if not m then error(message) end
  return m(table.unpack(given))
end

local function even(x)
  local low = math.floor(x)
  local rest = x - low
  if rest > 0.5 or (rest == 0.5 and low % 2 == 1) then low = low + 1 end
  return low
end
local limits = { u8 = { 0, 255 }, i8 = { -128, 127 } }

-- A random tensor of 8-bit integers with scale and zero point.
local function random(dtype, ...)
  local l = limits[dtype]
  return { q = T.randint(l[1], l[2], { ... }):to(dtype), s = T.tensor(2.0 ^ math.random(-4, -1)),
    z = T.tensor(math.random(l[1], l[2]), { dtype = dtype }), dtype = dtype }
end
local function real(t) return (t.q:to "f64" - t.z:to "f64") * t.s:to "f64" end

-- y in f64 → as a list of integers of a's dtype, with a's scale and zero point.
local function rounded(y, a)
  local l, list, s, z = limits[a.dtype], {}, a.s:item(), a.z:item()
  for i, v in ipairs(y:contiguous():reshape(-1):totable()) do
    list[i] = math.tointeger(math.max(l[1], math.min(l[2], even(v / s) + z)))
  end
  return list
end
local function same(want, got, a)
  assert.equal(a.dtype, got:dtype())
  assert.same(want:shape(), got:shape())
  assert.same(rounded(want, a), got:contiguous():reshape(-1):totable())
end

before_each(function()
  T.manual_seed(23)
  math.randomseed(23)
end)

describe("onnxruntime's operators on 8-bit tensors", function()
  for _, dtype in ipairs { "u8", "i8" } do
    local function operands()
      local a, y = random(dtype, 2, 3, 4, 5), random(dtype)
      y.s = T.tensor(0.5)
      return a, y, { a.q, a.s, a.z, y.s, y.z }
    end
    it(dtype .. ": sums, products, choices, joins", function()
      local a, y = operands()
      local b = random(dtype, 2, 1, 4, 5)
      local function both(op) return run(op, { a.q, a.s, a.z, b.q, b.s, b.z, y.s, y.z }) end
      same(real(a) + real(b), both "QLinearAdd", y)
      same(real(a) * real(b), both "QLinearMul", y)
      local where = T.rand(2, 3, 4, 5):gt(0.5)
      same(T.where(where, real(a), real(b)),
        run("QLinearWhere", { where, a.q, a.s, a.z, b.q, b.s, b.z, y.s, y.z }), y)
      for axis = -3, 1, 4 do
        same(T.cat({ real(a), real(b) }, 2), run("QLinearConcat", { y.s, y.z, a.q, a.s, a.z, b.q, b.s, b.z },
          { axis = axis }), y)
      end
    end)
    it(dtype .. ": functions of one tensor", function()
      local a, y, behind = operands()
      local x = real(a)
      same(T.where(x:lt(0), x * 0.25, x), run("QLinearLeakyRelu", behind, { alpha = 0.25 }), y)
      local fine = { s = T.tensor(1 / 128), z = y.z, dtype = dtype }
      local q = { a.q, a.s, a.z, fine.s, fine.z }
      same(T.sigmoid(x), run("QLinearSigmoid", q), fine)
      same(x:softmax(4), run("QLinearSoftmax", q, { axis = 3, opset = 13 }), fine)
      same(x:reshape(2, 3, 20):softmax(3):reshape(2, 3, 4, 5), run("QLinearSoftmax", q, { axis = 2, opset = 11 }), fine)
    end)
    it(dtype .. ": means over windows and planes, channels behind or in front", function()
      local a, y, behind = operands()
      local window = { kernel_shape = { 2, 4 }, strides = { 1, 1 } }
      local pooled = T.avg_pool2d(real(a), { kernel_size = { 2, 4 }, stride = 1 })
      same(pooled, run("QLinearAveragePool", behind, window), y)
      same(real(a):mean({ 3, 4 }, { keepdim = true }), run("QLinearGlobalAveragePool", behind), y)
      local last = { a.q:permute({ 1, 3, 4, 2 }):contiguous(), a.s, a.z, y.s, y.z }
      window.channels_last = 1
      same(pooled:permute { 1, 3, 4, 2 }, run("QLinearAveragePool", last, window), y)
      same(real(a):mean({ 3, 4 }, { keepdim = true }):permute { 1, 3, 4, 2 },
        run("QLinearGlobalAveragePool", last, { channels_last = 1 }), y)
    end)
    it(dtype .. ": QGemm, with scales for all or for columns, turned, rounded or not", function()
      for turn = 0, 3 do
        for _, columns in ipairs { false, true } do
          local p, q, out = random(dtype, 3, 5), random("i8", 5, 4), random(dtype)
          out.s = T.tensor(4.0)
          if columns then
            q.s = T.tensor { 0.5, 0.25, 1, 0.125 }
            q.z = T.tensor({ 3, -5, 0, 7 }, { dtype = "i8" })
          end
          local bias = T.randint(-900, 900, { 4 }):to "i32"
          local want = real(p):matmul(real(q)) * 0.5 + bias:to "f64" * (p.s:to "f64" * q.s:to "f64" * 0.5)
          local first = turn % 2 == 1 and p.q:t():contiguous() or p.q
          local second = turn > 1 and q.q:t():contiguous() or q.q
          local o = { alpha = 0.5, transA = turn % 2, transB = turn // 2 }
          same(want, run("QGemm", { first, p.s, p.z, second, q.s, q.z, bias, out.s, out.z }, o), out)
          near(run("QGemm", { first, p.s, p.z, second, q.s, q.z, bias }, o), want:to "f32", 0)
          same(want - bias:to "f64" * (p.s:to "f64" * q.s:to "f64" * 0.5),
            run("QGemm", { first, p.s, p.z, second, q.s, q.z, false, out.s, out.z }, o), out)
        end
      end
    end)
  end

  -- From -100 to 155, so that rounding to 8 bits with that range's scale, 1, changes nothing.
  local function whole(...)
    local x = T.randint(-100, 155, { ... }):to "f32"
    x:view(-1)[1], x:view(-1)[2] = -100, 155
    return x
  end
  it("products with f32", function()
    local x, w, bias = whole(4, 6), random("i8", 6, 3), T.randn(3)
    local want = x:to("f64"):matmul(real(w)):to "f32"
    near(run("DynamicQuantizeMatMul", { x, w.q, w.s, w.z }), want, 0)
    near(run("DynamicQuantizeMatMul", { x, w.q, w.s, w.z, bias }), want + bias, 0)
    local a = random("u8", 4, 6)
    near(run("MatMulIntegerToFloat", { a.q, w.q, a.s, w.s, a.z, w.z, bias }),
      real(a):matmul(real(w)):to "f32" + bias, 0)
  end)
  it("LSTM of rounded states is LSTM where rounding changes nothing", function()
    for _, direction in ipairs { "forward", "reverse", "bidirectional" } do
      for _, columns in ipairs { false, true } do
        local n = direction == "bidirectional" and 2 or 1
        local x, h, c = whole(1, 2, 3) / 64, whole(n, 2, 4), T.randn(n, 2, 4)
        for d = 1, n do h[d] = whole(2, 4) / 128 end
        local function weights(rows)
          local shape = columns and { n, 16 } or { n }
          return { q = T.randint(-128, 127, { n, rows, 16 }):to "i8", s = T.full(shape, 1 / 64),
            z = T.randint(-9, 9, shape):to "i8" }
        end
        local w, r, b = weights(3), weights(4), T.randn(n, 32)
        local function plain(t)
          local z = t.z:to "f32"
          return ((t.q:to "f32" - (columns and z:unsqueeze(2) or z:view(n, 1, 1))) / 64):transpose(2, 3):contiguous()
        end
        local o = { hidden_size = 4, direction = direction }
        local want = run("LSTM", { x, plain(w), plain(r), b, false, h, c }, o, true)
        near(run("DynamicQuantizeLSTM", { x, w.q, r.q, b, false, h, c, false, w.s, w.z, r.s, r.z }, o), want, 1e-5)
        local ok, why = pcall(run, "DynamicQuantizeLSTM",
          { x, w.q, r.q, b, false, h, c, false, w.s, w.z, r.s, false }, o)
        assert.is_false(ok)
        assert.truthy(why:find "is missing", why)
      end
    end
  end)
  it("others are refused by name", function()
    local ok, why = pcall(run, "QAttention", { T.ones(2) })
    assert.is_false(ok)
    assert.truthy(why:find("operator QAttention of domain 'com.microsoft'", 1, true), why)
    assert.truthy(why:find("quantized", 1, true), why)
  end)
end)

describe("sums of 8-bit products", function()
  it("are exact past 2^24", function()
    local a, b = T.full({ 2, 2001 }, 255):to "u8", T.full({ 2001, 3 }, 255):to "u8"
    a[2], b:t()[3] = 254, 253
    local y = run("MatMulInteger", { a, b }, nil, true)
    assert.same({ { 130115025, 130115025, 129094515 }, { 129604770, 129604770, 128588262 } }, y:totable())
    local az, bz = T.tensor(3, { dtype = "u8" }), T.tensor({ 1, 2, 0 }, { dtype = "u8" })
    local z = run("MatMulInteger", { a, b, az, bz }, nil, true)
    assert.same({ 252 * 254 * 2001, 252 * 253 * 2001, 252 * 253 * 2001 }, z[1]:totable())
    local x, w = T.full({ 1, 223, 3, 3 }, 255):to "u8", T.full({ 2, 223, 3, 3 }, 255):to "u8"
    assert.same({ 130505175, 130505175 }, run("ConvInteger", { x, w }, nil, true):reshape(-1):totable())
    local f = run("QLinearConv", { x, T.tensor(1.0), T.tensor(0, { dtype = "u8" }), w, T.tensor { 1, 2 },
      T.tensor(1, { dtype = "u8" }), T.tensor(2.0 ^ 20), T.tensor(0, { dtype = "u8" }) }, nil, true)
    assert.same({ even(255 * 254 * 2007 / 2 ^ 20), even(255 * 254 * 2007 / 2 ^ 19) }, f:reshape(-1):totable())
  end)
end)
