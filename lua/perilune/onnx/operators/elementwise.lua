-- SPDX-License-Identifier: MIT
--- ONNX operators that work element by element, and casts.
-- @module perilune.onnx.operators.elementwise
local T = require "perilune"
local options = require "perilune.options"
local narrow = require "perilune.onnx.narrow"
local registry = require "perilune.onnx.operators.registry"
local schema = require "perilune.onnx.schema"

local op, plain, beside, is_float = registry.op, registry.plain, registry.beside, registry.is_float
local F, label = T.nn.F, narrow.label

-- ---- one input -----------------------------------------------------------------------------------------------------

for name, f in pairs { Abs = "abs", Acos = "acos", Acosh = "acosh", Asin = "asin", Asinh = "asinh", Atan = "atan",
  Atanh = "atanh", Ceil = "ceil", Cos = "cos", Cosh = "cosh", Erf = "erf", Exp = "exp", Floor = "floor", Log = "log",
  Neg = "neg", Reciprocal = "reciprocal", Relu = "relu", Round = "round", Sigmoid = "sigmoid", Sign = "sign",
  Sin = "sin", Sinh = "sinh", Sqrt = "sqrt", Tan = "tan", Tanh = "tanh", Softsign = "softsign", Mish = "mish",
  HardSwish = "hardswish", IsNaN = "isnan", Not = "logical_not", BitwiseNot = "bitwise_not" } do
  -- consumed_inputs: of the first version, about memory
  op(name, "consumed_inputs:ints", function(_, x) return T[f](x) end)
end

op("Softplus", "", function(_, x) return F.softplus(x, 1, x:dtype() == "f64" and 40 or 20) end)
op("Identity", "", function(_, x) return x end)
op("IsInf", "detect_negative:int detect_positive:int", function(c, x)
  local low, high = c.a.detect_negative ~= 0, c.a.detect_positive ~= 0
  if low and high then return x:isinf() end
  if not low and not high then return T.zeros_like(x, { dtype = "bool" }) end
  return x:eq(low and -math.huge or math.huge)
end)

local SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
op("Elu", "alpha:float consumed_inputs:ints", function(c, x) return F.elu(x, c.a.alpha or 1.0) end)
op("Celu", "alpha:float", function(c, x) return F.celu(x, c.a.alpha or 1.0) end)
op("Selu", "alpha:float gamma:float consumed_inputs:ints", function(c, x)
  return F.elu(x, c.a.alpha or SELU_ALPHA) * (c.a.gamma or SELU_GAMMA)
end)
op("LeakyRelu", "alpha:float consumed_inputs:ints", function(c, x) return F.leaky_relu(x, c.a.alpha or 0.01) end)
op("HardSigmoid", "alpha:float beta:float consumed_inputs:ints", function(c, x)
  return (x * (c.a.alpha or 0.2) + (c.a.beta or 0.5)):clamp({ min = 0, max = 1 })
end)
op("ThresholdedRelu", "alpha:float", function(c, x)
  return T.where(x:gt(c.a.alpha or 1.0), x, T.zeros_like(x))
end)
op("Gelu", "approximate:string", function(c, x)
  local how = c.a.approximate or "none"
  if how ~= "none" and how ~= "tanh" then c:fail("approximate '%s'", how) end
  return F.gelu(x, { approximate = how })
end)
op("Swish", "alpha:float", function(c, x) return x * (x * (c.a.alpha or 1.0)):sigmoid() end)
op("Shrink", "lambd:float bias:float", function(c, x)
  local l, b = c.a.lambd or 0.5, c.a.bias or 0.0
  local zero = T.zeros_like(x)
  return T.where(x:lt(-l), (x + b):to(x:dtype()), T.where(x:gt(l), (x - b):to(x:dtype()), zero))
end)

local function flattened(c, x, default)
  if c.opset >= 13 then return nil, registry.axis(c, c.a.axis or -1, x:dim()) end
  local axis, rows = c.a.axis or default, 1
  -- an axis from the end counts from the dimensions; one past the last makes rows of one element
  axis = registry.axis(c, axis < 0 and axis + x:dim() or axis, x:dim() + 1)
  for d = 1, axis - 1 do rows = rows * x:size(d) end
  return x:reshape(rows, x:numel() // math.max(rows, 1)), 2
end
for name, f in pairs { Softmax = "softmax", LogSoftmax = "log_softmax" } do
  op(name, "axis:int", function(c, x)
    local flat, dim = flattened(c, x, 1)
    if not flat then return T[f](x, dim) end
    return T[f](flat, dim):reshape(table.unpack(x:shape()))
  end)
end
op("Hardmax", "axis:int", function(c, x)
  local flat, dim = flattened(c, x, 1)
  local y = flat or x
  if y:numel() == 0 then return x end
  local at = y:argmax(dim, { keepdim = true })
  local out = T.zeros_like(y):scatter(dim, at, 1)
  return flat and out:reshape(table.unpack(x:shape())) or out
end)

-- ---- several inputs ------------------------------------------------------------------------------------------------

-- Before version 7 the second input was broadcast along an axis that an attribute named.
local function old_broadcast(c, x, y)
  if c.opset >= 7 or y:dim() == 0 or not c.a.axis then return y end
  local shape, at = {}, registry.axis(c, c.a.axis, x:dim())
  for d = 1, x:dim() do
    local k = d - at + 1
    shape[d] = k >= 1 and k <= y:dim() and y:size(k) or 1
  end
  return y:reshape(table.unpack(shape))
end

local function binary(name, f)
  op(name, "axis:int broadcast:int consumed_inputs:ints", function(c, x, y)
    y = beside(x, old_broadcast(c, x, y))
    return f(beside(y, x), y)
  end)
end
for name, f in pairs { Add = "add", Sub = "sub", Mul = "mul", Equal = "eq", Greater = "gt", Less = "lt",
  GreaterOrEqual = "ge", LessOrEqual = "le", And = "logical_and", Or = "logical_or", Xor = "logical_xor",
  BitwiseAnd = "bitwise_and", BitwiseOr = "bitwise_or", BitwiseXor = "bitwise_xor" } do binary(name, T[f]) end
binary("Div", function(x, y)
  if is_float(x) then return x / y end
  return T.div(x, y, { rounding_mode = "trunc" })
end)
binary("Pow", function(x, y) -- the result has the type of x
  if x:dtype() == y:dtype() then return x ^ y end
  if is_float(x) then return x ^ y:to(x:dtype()) end
  if is_float(y) then return (x:to("f64") ^ y:to("f64")):to(x:dtype()) end
  return (x ^ y:to(x:dtype())):to(x:dtype())
end)
op("Mod", "fmod:int", function(c, x, y)
  y = beside(x, y)
  if c.a.fmod == 1 then return T.fmod(x, y) end
  if is_float(x) and c.opset < 28 then c:fail "fmod must be 1 for floating types" end
  return T.remainder(x, y)
end)
op("BitShift", "direction:string", function(c, x, y)
  local name = label[x]
  local how = c.a.direction
  if how == "RIGHT" then
    local z = T.bitwise_right_shift(x, y)
    return name and narrow.mark(z, name) or z
  end
  if how ~= "LEFT" then c:fail("direction '%s'", tostring(how)) end
  if name == "uint64" then c:fail "uint64 is kept as i64, whose shifts to the left differ" end
  local z = T.bitwise_left_shift(x, y)
  return name and narrow.mark(narrow.wrap(z, name), name) or z
end)
op("PRelu", "consumed_inputs:ints", function(c, x, slope)
  if c.opset < 7 and slope:numel() > 1 then -- one of each channel
    local shape = {}
    for d = 1, x:dim() do shape[d] = d == 2 and slope:numel() or 1 end
    slope = slope:reshape(shape)
  end
  return T.where(x:lt(0), x * beside(x, slope), x)
end)
op("Where", "", function(_, condition, x, y)
  if T.core.is_symbolic(x) or not T.core.is_symbolic(y) then
    y, condition = beside(x, y), beside(x, condition)
  else
    x, condition = beside(y, x), beside(y, condition)
  end
  return T.where(condition, x, y)
end)

local function many(name, f, finish)
  op(name, "consumed_inputs:ints", function(_, x, ...)
    local n = 1 + select("#", ...)
    for i = 1, n - 1 do x = f(x, beside(x, (select(i, ...)))) end
    return finish and finish(x, n) or x
  end)
end
many("Max", T.maximum)
many("Min", T.minimum)
many("Sum", T.add)
many("Mean", T.add, function(x, n) return x / n end)

-- Bounds of the model itself are numbers. Any others are tensors, traced or not, tracked or not.
local function clip(c, x, low, high)
  if is_float(x) and (not low or c.fixed[2]) and (not high or c.fixed[3]) then
    low, high = registry.number(c, low, "min"), registry.number(c, high, "max")
    if low and high and low > high then return T.full_like(x, high) end
    if low or high then return x:clamp({ min = low, max = high }) end
    return x
  end
  if low then x = T.maximum(x, beside(x, low)) end
  if high then x = T.minimum(x, beside(x, high)) end
  return x
end
op("Clip", "min:float max:float consumed_inputs:ints", function(c, x, low, high)
  if c.opset >= 11 then return clip(c, x, low, high) end
  if not c.a.min and not c.a.max then return x end
  return x:clamp({ min = c.a.min, max = c.a.max })
end, { constants = { 2, 3 } })

-- ---- casts ---------------------------------------------------------------------------------------------------------

local function cast(c, x, name, dtype)
  local kind, from = narrow.kinds[name], label[x]
  if from == name and x:dtype() == dtype then return x end
  local saturate, mode = c.a.saturate ~= 0, c.a.round_mode or "up"
  if not kind then
    if dtype == "bool" then return x:dtype() == "bool" and x or x:ne(0) end
    local y = x:to(dtype)
    return from and rawequal(y, x) and x:detach() or y -- what it was is no more: arithmetic does not wrap
  end
  if not kind.low then
    return narrow.mark(narrow.round(x, name, saturate, mode, function(...) c:fail(...) end), name, { x })
  end
  if name == "uint64" and x:dtype() ~= "u8" and x:dtype() ~= "bool" then
    local y = x:to(dtype)
    if T.core.is_symbolic(y) then
      options.untraceable("onnx: %s '%s': an uint64 is kept as i64, whose sign a trace does not see", c.node.op_type,
        c.node.name or "")
    end
    if y:numel() > 0 and y:amin():item() < 0 then c:fail "an uint64 of 2^63 or more, which i64 cannot hold" end
  end
  return narrow.mark(narrow.wrap(x:is_floating_point() and x:to("i64") or x, name), name, { x })
end
op("Cast", "to:int saturate:int round_mode:string", function(c, x)
  local kind = schema.types[c.a.to or 0]
  if not kind or not kind[2] then c:fail("a cast to %s is not supported", kind and kind[1] or tostring(c.a.to)) end
  return cast(c, x, kind[1], kind[2])
end)
op("CastLike", "saturate:int round_mode:string", function(c, x, like)
  return cast(c, x, label[like], like:dtype())
end)

plain("Det", function(x) return T.linalg.det(x) end)
