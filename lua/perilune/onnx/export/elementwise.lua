-- SPDX-License-Identifier: MIT
--- Export of pointwise ops, comparisons, activations and casts.
-- @module perilune.onnx.export.elementwise
local T = require "perilune"
local writer = require "perilune.onnx.writer"

return function(Export)
  local ops = Export.ops
  local float = { f32 = true, f64 = true, f16 = true, bf16 = true }

  -- The dtype in which operands meet: a weak number takes that of the tensor.
  local function common(a, b)
    if a.number ~= nil and a.weak and b.number == nil then
      if float[b.dtype] or math.type(a.number) == "integer" then return b.dtype end
    elseif b.number ~= nil and b.weak and a.number == nil then
      if float[a.dtype] or math.type(b.number) == "integer" then return a.dtype end
    end
    return T.promote_types(a.dtype, b.dtype)
  end

  local function unary(ours, theirs, attributes)
    ops[ours] = function(e, node, x) return e:emit(theirs, { e:cast(x, node.dtypes[1]) }, attributes) end
  end
  for ours, theirs in pairs { neg = "Neg", abs = "Abs", sign = "Sign", sqrt = "Sqrt", reciprocal = "Reciprocal",
    exp = "Exp", log = "Log", sin = "Sin", cos = "Cos", tan = "Tan", asin = "Asin", acos = "Acos", atan = "Atan",
    sinh = "Sinh", cosh = "Cosh", tanh = "Tanh", asinh = "Asinh", acosh = "Acosh", atanh = "Atanh",
    sigmoid = "Sigmoid", erf = "Erf", relu = "Relu",
    softsign = "Softsign", mish = "Mish", hardswish = "HardSwish" } do unary(ours, theirs) end

  -- Of integers these are the integers.
  local function whole(f)
    return function(e, node, x) return float[x.dtype] and f(e, node, x) or e:emit("Identity", { x.name }) end
  end
  ops.floor = whole(function(e, _, x) return e:emit("Floor", { x.name }) end)
  ops.ceil = whole(function(e, _, x) return e:emit("Ceil", { x.name }) end)
  function ops.square(e, node, x)
    local name = e:cast(x, node.dtypes[1])
    return e:emit("Mul", { name, name })
  end
  function ops.rsqrt(e, node, x) return e:emit("Reciprocal", { e:emit("Sqrt", { e:cast(x, node.dtypes[1]) }) }) end
  function ops.round(e, node, x)
    if node.attrs.decimals and node.attrs.decimals ~= 0 then e:fail(node, "decimals are not supported") end
    return e:emit(float[x.dtype] and "Round" or "Identity", { x.name })
  end
  ops.trunc = whole(function(e, _, x) -- no operator: towards zero by sign
    local s = e:emit("Sign", { x.name })
    return e:emit("Mul", { s, e:emit("Floor", { e:emit("Abs", { x.name }) }) })
  end)

  -- c · f(x) with constants in x's dtype.
  local function times(e, x, c, dtype) return e:emit("Mul", { x, e:number(c, dtype) }) end
  local function plus(e, x, c, dtype) return e:emit("Add", { x, e:number(c, dtype) }) end

  function ops.exp2(e, node, x)
    return e:emit("Exp", { times(e, e:cast(x, node.dtypes[1]), math.log(2), node.dtypes[1]) })
  end
  function ops.log2(e, node, x)
    return times(e, e:emit("Log", { e:cast(x, node.dtypes[1]) }), 1 / math.log(2), node.dtypes[1])
  end
  function ops.log10(e, node, x)
    return times(e, e:emit("Log", { e:cast(x, node.dtypes[1]) }), 1 / math.log(10), node.dtypes[1])
  end
  -- Of x near 0, where 1 + x and exp(x) have lost most of it, by what they lost (Kahan): both factors err alike.
  local function choose(e, c, a, b) return e:emit("Where", { c, a, b }) end
  function ops.log1p(e, node, x)
    local d = node.dtypes[1]
    local v, one = e:cast(x, d), e:number(1, d)
    local u = e:emit("Add", { v, one })
    local share = e:emit("Div", { v, e:emit("Sub", { u, one }) })
    share = choose(e, e:emit("Equal", { u, v }), one, share) -- so large that 1 is nothing, or infinite
    return choose(e, e:emit("Equal", { u, one }), v, e:emit("Mul", { e:emit("Log", { u }), share }))
  end
  function ops.expm1(e, node, x)
    local d = node.dtypes[1]
    local v, one, least = e:cast(x, d), e:number(1, d), e:number(-1, d)
    local u = e:emit("Exp", { v })
    local less = e:emit("Sub", { u, one })
    local share = choose(e, e:emit("Equal", { u, less }), one, e:emit("Div", { v, e:emit("Log", { u }) }))
    local y = choose(e, e:emit("Equal", { less, least }), least, e:emit("Mul", { less, share }))
    return choose(e, e:emit("Equal", { u, one }), v, y)
  end
  function ops.erfc(e, node, x)
    return e:emit("Sub", { e:number(1, node.dtypes[1]), e:emit("Erf", { e:cast(x, node.dtypes[1]) }) })
  end

  -- ---- two operands ------------------------------------------------------------------------------------------------

  local function binary(ours, theirs)
    ops[ours] = function(e, node, x, y)
      local d = node.dtypes[1]
      return e:emit(theirs, { e:cast(x, d), e:cast(y, d) })
    end
  end
  for ours, theirs in pairs { add = "Add", sub = "Sub", mul = "Mul", div = "Div", pow = "Pow", maximum = "Max",
    minimum = "Min" } do binary(ours, theirs) end
  function ops.trunc_divide(e, node, x, y)
    local d = node.dtypes[1]
    if float[d] then e:fail(node, "of floats is not supported") end
    return e:emit("Div", { e:cast(x, d), e:cast(y, d) })
  end
  -- fmod, which is exact, as a / b is not, and whether it is on the other side of 0 than b.
  local function rest_of(e, a, b, d)
    local zero, rest = e:number(0, d), e:emit("Mod", { a, b }, { fmod = 1 })
    local differ = e:emit("Xor", { e:emit("Less", { rest, zero }), e:emit("Less", { b, zero }) })
    return rest, e:emit("And", { differ, e:emit("Not", { e:emit("Equal", { rest, zero }) }) })
  end
  function ops.floor_divide(e, node, x, y)
    local d = node.dtypes[1]
    if not float[d] then -- theirs is cut off: one less where that was not exact and the signs differ
      local a, b, zero = e:cast(x, d), e:cast(y, d), e:number(0, d)
      local q = e:emit("Div", { a, b })
      local cut = e:emit("Not", { e:emit("Equal", { e:emit("Mod", { a, b }, { fmod = 0 }), zero }) })
      local differ = e:emit("Xor", { e:emit("Less", { a, zero }), e:emit("Less", { b, zero }) })
      local less = e:emit("Cast", { e:emit("And", { cut, differ }) }, { to = writer.kinds[d] })
      return e:emit("Sub", { q, less })
    end
    local a, b, zero = e:cast(x, d), e:cast(y, d), e:number(0, d)
    local rest, other = rest_of(e, a, b, d)
    local q = e:emit("Div", { e:emit("Sub", { a, rest }), b }) -- whole but for its rounding
    q = e:emit("Sub", { q, e:emit("Cast", { other }, { to = writer.kinds[d] }) })
    local low = e:emit("Floor", { q })
    local high = e:emit("Greater", { e:emit("Sub", { q, low }), e:number(0.5, d) })
    q = e:emit("Add", { low, e:emit("Cast", { high }, { to = writer.kinds[d] }) })
    return choose(e, e:emit("Equal", { b, zero }), e:emit("Div", { a, b }), q)
  end
  function ops.fmod(e, node, x, y)
    local d = node.dtypes[1]
    return e:emit("Mod", { e:cast(x, d), e:cast(y, d) }, { fmod = 1 })
  end
  function ops.remainder(e, node, x, y)
    local d = node.dtypes[1]
    local a, b = e:cast(x, d), e:cast(y, d)
    if not float[d] then return e:emit("Mod", { a, b }, { fmod = 0 }) end
    local rest, other = rest_of(e, a, b, d)
    return e:emit("Add", { rest, choose(e, other, b, e:number(0, d)) })
  end
  function ops.add_scaled(e, node, x, y)
    local d = node.dtypes[1]
    return e:emit("Add", { e:cast(x, d), times(e, e:cast(y, d), node.attrs.alpha, d) })
  end
  function ops.addcmul(e, node, x, a, b)
    local d = node.dtypes[1]
    local p = e:emit("Mul", { e:cast(a, d), e:cast(b, d) })
    return e:emit("Add", { e:cast(x, d), times(e, p, node.attrs.value, d) })
  end
  function ops.addcdiv(e, node, x, a, b)
    local d = node.dtypes[1]
    local p = e:emit("Div", { e:cast(a, d), e:cast(b, d) })
    return e:emit("Add", { e:cast(x, d), times(e, p, node.attrs.value, d) })
  end
  function ops.lerp(e, node, x, y, w)
    local d = node.dtypes[1]
    local a, b = e:cast(x, d), e:cast(y, d)
    return e:emit("Add", { a, e:emit("Mul", { e:cast(w, d), e:emit("Sub", { b, a }) }) })
  end
  for ours, theirs in pairs { eq = "Equal", lt = "Less", le = "LessOrEqual", gt = "Greater", ge = "GreaterOrEqual" } do
    ops[ours] = function(e, _, x, y)
      local d = common(x, y)
      if d == "bool" and ours ~= "eq" then d = "i32" end -- an order of bools is not in ONNX
      return e:emit(theirs, { e:cast(x, d), e:cast(y, d) })
    end
  end
  function ops.ne(e, node, x, y) return e:emit("Not", { ops.eq(e, node, x, y) }) end
  for ours, theirs in pairs { logical_and = "And", logical_or = "Or", logical_xor = "Xor" } do
    ops[ours] = function(e, _, x, y) return e:emit(theirs, { e:cast(x, "bool"), e:cast(y, "bool") }) end
  end
  function ops.logical_not(e, _, x) return e:emit("Not", { e:cast(x, "bool") }) end
  for ours, theirs in pairs { bitwise_and = "BitwiseAnd", bitwise_or = "BitwiseOr", bitwise_xor = "BitwiseXor" } do
    local logical = { bitwise_and = "And", bitwise_or = "Or", bitwise_xor = "Xor" }
    ops[ours] = function(e, node, x, y)
      local d = node.dtypes[1]
      return e:emit(d == "bool" and logical[ours] or theirs, { e:cast(x, d), e:cast(y, d) })
    end
  end
  -- Integers are finite.
  local function finite(e, x) return e:emit("Equal", { x.name, x.name }) end
  function ops.isnan(e, _, x)
    return float[x.dtype] and e:emit("IsNaN", { x.name }) or e:emit("Not", { finite(e, x) })
  end
  function ops.isinf(e, _, x)
    return float[x.dtype] and e:emit("IsInf", { x.name }) or e:emit("Not", { finite(e, x) })
  end
  function ops.isfinite(e, _, x)
    if not float[x.dtype] then return finite(e, x) end
    return e:emit("Not", { e:emit("Or", { e:emit("IsNaN", { x.name }), e:emit("IsInf", { x.name }) }) })
  end
  ops["where"] = function(e, node, c, x, y)
    local d = node.dtypes[1]
    return e:emit("Where", { e:cast(c, "bool"), e:cast(x, d), e:cast(y, d) })
  end
  function ops.masked_fill(e, node, x, mask, v)
    return e:emit("Where", { e:cast(mask, "bool"), e:cast(v, node.dtypes[1]), x.name })
  end
  function ops.cast(e, node, x) return e:cast(x, node.dtypes[1]) end

  function ops.clamp(e, node, x)
    local d, low, high = node.dtypes[1], node.attrs.min, node.attrs.max
    local name = e:cast(x, d)
    if low then name = e:emit("Max", { name, e:number(low, d) }) end
    if high then name = e:emit("Min", { name, e:number(high, d) }) end
    return name
  end
  function ops.clamp_tensor(e, node, x, low, high)
    local d = node.dtypes[1]
    local name = e:cast(x, d)
    if low then name = e:emit("Max", { name, e:cast(low, d) }) end
    if high then name = e:emit("Min", { name, e:cast(high, d) }) end
    return name
  end

  -- ---- activations -------------------------------------------------------------------------------------------------

  function ops.relu6(e, node, x)
    return e:emit("Clip", { x.name, e:number(0, node.dtypes[1]), e:number(6, node.dtypes[1]) })
  end
  function ops.hardtanh(e, node, x)
    local d = node.dtypes[1]
    return e:emit("Clip", { x.name, e:number(node.attrs.min_val, d), e:number(node.attrs.max_val, d) })
  end
  -- Attributes are f32, in which not all numbers of an f64 are.
  local function exact(v, d) return d ~= "f64" or v ~= v or string.unpack("f", string.pack("f", v)) == v end
  -- a x above 0, b f(x) below
  local function halves(e, x, d, a, b, below)
    local over = a == 1 and x or times(e, x, a, d)
    return e:emit("Where", { e:emit("Greater", { x, e:number(0, d) }), over, times(e, below, b, d) })
  end
  function ops.leaky_relu(e, node, x)
    local d, slope = node.dtypes[1], node.attrs.negative_slope + 0.0
    if exact(slope, d) then return e:emit("LeakyRelu", { x.name }, { alpha = slope }) end
    return halves(e, x.name, d, 1, slope, x.name)
  end
  function ops.elu(e, node, x)
    local d, alpha = node.dtypes[1], node.attrs.alpha + 0.0
    if exact(alpha, d) then return e:emit("Elu", { x.name }, { alpha = alpha }) end
    return halves(e, x.name, d, 1, alpha, e:emit("Elu", { x.name }, { alpha = 1.0 }))
  end
  function ops.selu(e, node, x)
    local d = node.dtypes[1]
    if d ~= "f64" then return e:emit("Selu", { x.name }) end
    local scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
    return halves(e, x.name, d, scale, scale * alpha, e:emit("Elu", { x.name }, { alpha = 1.0 }))
  end
  function ops.celu(e, node, x) -- Celu is of f32 alone; alpha · elu(x / alpha) is the same
    local d, alpha = node.dtypes[1], node.attrs.alpha + 0.0
    if d == "f32" then return e:emit("Celu", { x.name }, { alpha = alpha }) end
    return times(e, e:emit("Elu", { times(e, x.name, 1 / alpha, d) }, { alpha = 1.0 }), alpha, d)
  end
  function ops.hardsigmoid(e, node, x)
    local d = node.dtypes[1]
    if d ~= "f64" then return e:emit("HardSigmoid", { x.name }, { alpha = 1 / 6, beta = 0.5 }) end
    return times(e, e:emit("Clip", { plus(e, x.name, 3, d), e:number(0, d), e:number(6, d) }), 1 / 6, d)
  end
  -- Not by Shrink, whose NaN is 0.
  function ops.hardshrink(e, node, x)
    local d = node.dtypes[1]
    local small = e:emit("LessOrEqual", { e:emit("Abs", { x.name }), e:number(node.attrs.lambd, d) })
    return e:emit("Where", { small, e:number(0, d), x.name })
  end
  function ops.softshrink(e, node, x)
    local d, lambd = node.dtypes[1], node.attrs.lambd
    return e:emit("Sub", { x.name, e:emit("Clip", { x.name, e:number(-lambd, d), e:number(lambd, d) }) })
  end
  function ops.threshold(e, node, x)
    local d = node.dtypes[1]
    local low = e:emit("LessOrEqual", { x.name, e:number(node.attrs.threshold, d) })
    return e:emit("Where", { low, e:number(node.attrs.value, d), x.name })
  end
  function ops.silu(e, _, x) return e:emit("Mul", { x.name, e:emit("Sigmoid", { x.name }) }) end
  function ops.softplus(e, node, x)
    local d, beta, threshold = node.dtypes[1], node.attrs.beta, node.attrs.threshold
    local scaled = beta == 1 and x.name or times(e, x.name, beta, d)
    local y = e:emit("Softplus", { scaled })
    if beta ~= 1 then y = times(e, y, 1 / beta, d) end
    if threshold >= (d == "f64" and 40 or 20) then return y end -- from there on x is the same
    return e:emit("Where", { e:emit("Greater", { scaled, e:number(threshold, d) }), x.name, y })
  end
  function ops.logsigmoid(e, _, x) return e:emit("Neg", { e:emit("Softplus", { e:emit("Neg", { x.name }) }) }) end
  function ops.tanhshrink(e, _, x) return e:emit("Sub", { x.name, e:emit("Tanh", { x.name }) }) end
  function ops.prelu_core(e, _, x, w) return e:emit("PRelu", { x.name, w.name }) end
  function ops.gelu(e, node, x)
    local d, y = node.dtypes[1]
    if node.attrs.approximate == "tanh" then
      local cube = e:emit("Mul", { e:emit("Mul", { x.name, x.name }), x.name })
      local inner = e:emit("Add", { x.name, times(e, cube, 0.044715, d) })
      y = e:emit("Tanh", { times(e, inner, math.sqrt(2 / math.pi), d) })
    else
      y = e:emit("Erf", { times(e, x.name, math.sqrt(0.5), d) })
    end
    return e:emit("Mul", { times(e, x.name, 0.5, d), plus(e, y, 1, d) })
  end
  function ops.dropout(e, node)
    e:fail(node, "it draws random numbers; call eval() on the module before it is exported")
  end
  for _, name in ipairs { "attention_dropout", "bernoulli", "uniform", "normal", "randint" } do
    ops[name] = ops.dropout
  end
  Export.float, Export.kind = float, function(dtype) return writer.kinds[dtype] end
end
