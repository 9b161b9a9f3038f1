-- SPDX-License-Identifier: MIT
--- Types that ONNX's operators take at opset 18, and those of their results. Where an operator lacks a type, it
-- computes in a wider one that holds all its values; where there is none, saving is an error: who reads the file would
-- refuse it.
-- @module perilune.onnx.export.types
local T = require "perilune"

local M = {}

local function set(text)
  local out = {}
  for word in text:gmatch "%S+" do out[word] = true end
  return out
end
local narrow_floats, floats = set "f16 f32 f64", set "bf16 f16 f32 f64"
local signed = set "bf16 f16 f32 f64 i8 i16 i32 i64"
local numbers = set "bf16 f16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64"
local wide_numbers, extremes = set "bf16 f16 f32 f64 i32 i64 u32 u64", set "bf16 f16 f32 f64 i8 i32 i64 u8 u32 u64"
local ordered = set "f16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64"

-- Of the first input, and of those others that must be of its type.
local takes = { Celu = set "f32", IsInf = set "f32 f64", MaxPool = set "f16 f32 f64 i8 u8",
  Pow = set "bf16 f16 f32 f64 i32 i64", Range = set "f32 f64 i16 i32 i64", Neg = signed, Relu = signed, TopK = ordered,
  Shrink = ordered, OneHot = ordered, ReduceMax = extremes, ReduceMin = extremes }
for types, names in pairs {
  [narrow_floats] = "Acos Acosh Asin Asinh Atan Atanh AveragePool Conv ConvTranspose Cos Cosh Elu GRU "
    .. "GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish InstanceNormalization LSTM Mish RNN Round Selu Sin Sinh "
    .. "NegativeLogLikelihoodLoss Softplus Softsign Tan",
  [floats] = "BatchNormalization Ceil Erf Exp Floor IsNaN LayerNormalization LeakyRelu Log LogSoftmax Reciprocal "
    .. "Sigmoid Softmax SoftmaxCrossEntropyLoss Sqrt Tanh",
  [wide_numbers] = "CumSum Gemm MatMul PRelu ReduceL1 ReduceL2 ReduceLogSumExp ReduceMean ReduceProd ReduceSum "
    .. "ReduceSumSquare",
  [numbers] = "Abs Add ArgMax ArgMin Clip Div Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Sign Sub",
  [set "i8 i16 i32 i64 u8 u16 u32 u64"] = "BitwiseAnd BitwiseOr BitwiseXor", [set "bool"] = "And Not Or Xor",
} do
  for name in names:gmatch "%S+" do takes[name] = types end
end

-- Wider types that hold all values.
local wider = { bool = "i32", i8 = "i32", i16 = "i32", u8 = "i32", bf16 = "f32", f16 = "f32" }

-- Results that are not of the first input's type: that of another input, or a type.
local gives = { Where = 2, OneHot = 3 }
for name in ("And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor"):gmatch "%S+" do
  gives[name] = "bool"
end
for name in ("ArgMax ArgMin NonZero Shape Size"):gmatch "%S+" do gives[name] = "i64" end

--- The type in which op computes on inputs of type dtype; nil where there is none.
function M.computes_in(op, dtype)
  local types = takes[op]
  if not types or types[dtype] then return dtype end
  local to = wider[dtype]
  return to and types[to] and to or nil
end

--- The type of op's k-th result. known(name) → the type of an input.
function M.result(op, inputs, attributes, known, kinds, k)
  if op == "Cast" then
    for dtype, kind in pairs(kinds) do if kind == attributes.to then return dtype end end
  elseif op == "ConstantOfShape" then
    return T.is_tensor(attributes.value) and attributes.value:dtype() or "f32"
  elseif (op == "TopK" or op == "MaxPool") and k == 2 then
    return "i64"
  end
  local what = gives[op] or 1
  return type(what) == "string" and what or known(inputs[what])
end

return M
