-- SPDX-License-Identifier: MIT
--- Operators of the domain com.microsoft on quantized tensors: what onnxruntime's quantization tools write where ONNX
-- has no operator. Each is the operator that its name says, of the numbers that the integers stand for, rounded once;
-- products are summed exactly, in i32.
-- @module perilune.onnx.operators.runtime
local T = require "perilune"
local narrow = require "perilune.onnx.narrow"
local registry = require "perilune.onnx.operators.registry"

local beside, quantized = registry.beside, registry.quantized
local centered = quantized.centered

-- least, most: numbers of inputs, of which the first `required` are never left out; constants: those that are never
-- trained.
local function op(name, attributes, least, most, constants, f, required)
  registry.op(name, attributes, f, { domain = "com.microsoft", arity = { least, most, required or least },
    constants = constants })
end

-- x s - z s in f32; for a tensor as a whole, or along the last dimension.
local function real(x, scale, zero)
  local y = x:to "i32"
  if zero then y = y - beside(x, zero):to "i32" end
  return y:to(scale:dtype()) * beside(x, scale)
end

local function rounded(c, y, scale, zero)
  if not zero then c:fail "the zero point of the result is missing" end
  return quantized.quantize(c, y, beside(y, scale), beside(y, zero), zero:dtype(), narrow.label[zero])
end

-- The operator of ONNX itself, of that version.
local function standard(c, name, opset, ...)
  return registry.ops[name].f(setmetatable({ opset = opset or c.opset, outputs = 1 }, { __index = c }), ...)
end

-- f of images whose channels may be last.
local function images(c, x, f)
  if c.a.channels_last ~= 1 then return f(x) end
  local to, from, n = { 1, x:dim() }, { 1 }, x:dim()
  for d = 2, n - 1 do to[d + 1], from[d] = d, d + 1 end
  from[n] = 2
  return f(x:permute(to)):permute(from)
end

for name, f in pairs { QLinearAdd = T.add, QLinearMul = T.mul } do
  op(name, "", 7, 8, { 2, 3, 5, 6, 7, 8 }, function(c, a, as, az, b, bs, bz, ys, yz)
    return rounded(c, f(real(a, as, az), real(b, bs, bz)), ys, yz or T.zeros({}, { dtype = a:dtype() }))
  end)
end

op("QLinearLeakyRelu", "alpha:float", 4, 5, { 2, 3, 4, 5 }, function(c, x, xs, xz, ys, yz)
  return rounded(c, standard(c, "LeakyRelu", nil, real(x, xs, xz)), ys, yz)
end)
op("QLinearSigmoid", "", 4, 5, { 2, 3, 4, 5 }, function(c, x, xs, xz, ys, yz)
  return rounded(c, T.sigmoid(real(x, xs, xz)), ys, yz)
end)
op("QLinearSoftmax", "axis:int opset:int", 5, 5, { 2, 3, 4, 5 }, function(c, x, xs, xz, ys, yz)
  return rounded(c, standard(c, "Softmax", c.a.opset or 13, real(x, xs, xz)), ys, yz)
end)
op("QLinearAveragePool", "auto_pad:string ceil_mode:int channels_last:int count_include_pad:int dilations:ints "
  .. "kernel_shape:ints pads:ints strides:ints", 4, 5, { 2, 3, 4, 5 }, function(c, x, xs, xz, ys, yz)
  return images(c, real(x, xs, xz), function(v) return rounded(c, standard(c, "AveragePool", nil, v), ys, yz) end)
end)
op("QLinearGlobalAveragePool", "channels_last:int", 5, 5, { 2, 3, 4, 5 }, function(c, x, xs, xz, ys, yz)
  return images(c, real(x, xs, xz), function(v) return rounded(c, standard(c, "GlobalAveragePool", nil, v), ys, yz) end)
end)
op("QLinearConcat", "axis:int", 5, math.huge, nil, function(c, ys, yz, ...)
  local list, n = {}, select("#", ...)
  if n % 3 ~= 0 then c:fail("%d inputs behind the result's scale and zero point, of three each", n) end
  for i = 1, n, 3 do
    local x, s, z = select(i, ...)
    list[#list + 1] = real(x, s, z)
  end
  local axis = c.a.axis or c:fail "axis is missing"
  return rounded(c, T.cat(list, registry.axis(c, axis, list[1]:dim())), ys, yz)
end)
op("QLinearWhere", "", 9, 9, { 3, 4, 6, 7, 8, 9 }, function(c, where, x, xs, xz, y, ys, yz, zs, zz)
  return rounded(c, T.where(where, real(x, xs, xz), real(y, ys, yz)), zs, zz)
end)

-- ---- products ------------------------------------------------------------------------------------------------------

local function product(c, a, az, b, bz) return centered(c, a, az, true):matmul(centered(c, b, bz)) end

op("QGemm", "alpha:float transA:int transB:int", 6, 9, { 2, 3, 5, 6, 8, 9 },
  function(c, a, as, az, b, bs, bz, bias, ys, yz)
    if c.a.transA == 1 then a = a:transpose(1, 2) end
    if c.a.transB == 1 then b = b:transpose(1, 2) end
    local sums = product(c, a, az, b, bz)
    if bias then sums = sums + beside(a, bias) end
    local y = sums:to "f64" * (as:to "f64" * bs:to "f64" * (c.a.alpha or 1.0))
    if not ys then return y:to(as:dtype()) end
    return rounded(c, y, ys:to "f64", yz)
  end)
op("MatMulIntegerToFloat", "", 4, 7, { 3, 4, 5, 6 }, function(c, a, b, as, bs, az, bz, bias)
  local y = product(c, a, az, b, bz):to(as:dtype()) * (as * bs)
  return bias and y + bias or y
end)

-- x times integers b, x rounded to u8 as DynamicQuantizeLinear does: all of it alike.
local function dynamic(c, x, b, scale, zero)
  local q, xs, xz = registry.ops.DynamicQuantizeLinear.f(c, x)
  return product(c, q, xz, b, zero):to(x:dtype()) * (xs * scale)
end

op("DynamicQuantizeMatMul", "", 3, 5, { 3, 4 }, function(c, x, b, scale, zero, bias)
  local y = dynamic(c, x, b, scale, zero)
  return bias and y + bias or y
end)

-- Weights [directions, inputs, 4 hidden]; scales and zero points one a direction, or one a column.
op("DynamicQuantizeLSTM", "activation_alpha:floats activation_beta:floats activations:strings clip:float "
  .. "direction:string hidden_size:int input_forget:int", 12, 12, { 9, 10, 11, 12 },
  function(c, x, w, r, b, lengths, h0, c0, peepholes, ws, wz, rs, rz)
    if not (ws and wz and rs and rz) then c:fail "a scale or zero point of the weights is missing" end
    return registry.lstm(c, x, w:transpose(2, 3), b, lengths, h0, c0, peepholes, function(d, bias)
      local function of(t) return t:select(1, d) end
      local wd, wsd, wzd, rd, rsd, rzd = of(w), of(ws), of(wz), of(r), of(rs), of(rz)
      local given = dynamic(c, x, wd, wsd, wzd)
      if bias then given = given + bias end
      return function(_, h, t) return given:select(1, t) + dynamic(c, h, rd, rsd, rzd) end
    end)
  end, 3)
