-- SPDX-License-Identifier: MIT
--- Export of pointwise ops that ONNX has no operator for: signs, angles, logarithms of sums, numbers in place of NaN.
-- @module perilune.onnx.export.special
local T = require "perilune"

return function(Export)
  local ops, float = Export.ops, Export.float

  local function where(e, c, a, b) return e:emit("Where", { c, a, b }) end
  local function both(e, a, b) return e:emit("And", { a, b }) end
  local function operands(e, node, x, y)
    local d = node.dtypes[1]
    return e:cast(x, d), e:cast(y, d), d
  end

  -- Numbers below 0, and -0, whose reciprocal is. A NaN has no sign here.
  local function negative(e, name, d)
    local zero = e:number(0, d)
    local below = e:emit("Less", { name, zero })
    if not float[d] then return below end
    local minus = e:emit("Less", { e:emit("Reciprocal", { name }), zero })
    return e:emit("Or", { below, both(e, e:emit("Equal", { name, zero }), minus) })
  end
  function ops.signbit(e, _, x)
    local d = x.dtype == "bool" and "i32" or x.dtype
    return negative(e, e:cast(x, d), d)
  end
  -- `size`, which is not below 0, with a minus where `of` has it. By a product: Where of onnxruntime makes 0 of -0.
  local function signed(e, size, of, d)
    return e:emit("Mul", { size, where(e, negative(e, of, d), e:number(-1, d), e:number(1, d)) })
  end
  function ops.copysign(e, node, x, y)
    local a, b, d = operands(e, node, x, y)
    return signed(e, e:emit("Abs", { a }), b, d)
  end
  function ops.frac(e, node, x)
    return e:emit("Sub", { x.name, ops.trunc(e, node, x) })
  end
  function ops.bitwise_not(e, _, x)
    return e:emit(x.dtype == "bool" and "Not" or "BitwiseNot", { x.name })
  end

  -- The angle in the first quadrant, then the one that the signs tell. Two infinities are 45 degrees, two zeros 0.
  function ops.atan2(e, node, y, x)
    local b, a, d = operands(e, node, y, x)
    local zero, one, infinite = e:number(0, d), e:number(1, d), e:number(math.huge, d)
    local v, u = e:emit("Abs", { b }), e:emit("Abs", { a })
    local ratio = e:emit("Div", { v, u })
    ratio = where(e, both(e, e:emit("Equal", { v, infinite }), e:emit("Equal", { u, infinite })), one, ratio)
    ratio = where(e, both(e, e:emit("Equal", { v, zero }), e:emit("Equal", { u, zero })), zero, ratio)
    local angle = e:emit("Atan", { ratio })
    angle = where(e, negative(e, a, d), e:emit("Sub", { e:number(math.pi, d), angle }), angle)
    return signed(e, angle, b, d)
  end
  -- By the larger one, so that squares do not overflow.
  function ops.hypot(e, node, x, y)
    local a, b, d = operands(e, node, x, y)
    local zero, infinite = e:number(0, d), e:number(math.huge, d)
    a, b = e:emit("Abs", { a }), e:emit("Abs", { b })
    local most, least = e:emit("Max", { a, b }), e:emit("Min", { a, b })
    local q = e:emit("Div", { least, most })
    local root = e:emit("Sqrt", { e:emit("Add", { e:emit("Mul", { q, q }), e:number(1, d) }) })
    local size = where(e, e:emit("Equal", { most, zero }), zero, e:emit("Mul", { most, root }))
    local some = e:emit("Or", { e:emit("Equal", { a, infinite }), e:emit("Equal", { b, infinite }) })
    return where(e, some, infinite, size)
  end

  for ours, theirs in pairs { fmax = "Max", fmin = "Min" } do
    ops[ours] = function(e, node, x, y)
      local a, b, d = operands(e, node, x, y)
      local best = e:emit(theirs, { a, b })
      if not float[d] then return best end
      return where(e, e:emit("IsNaN", { a }), b, where(e, e:emit("IsNaN", { b }), a, best))
    end
  end

  function ops.xlogy(e, node, x, y)
    local a, b, d = operands(e, node, x, y)
    local zero = e:number(0, d)
    local nothing = both(e, e:emit("Equal", { a, zero }), e:emit("Not", { e:emit("IsNaN", { b }) }))
    return where(e, nothing, zero, e:emit("Mul", { a, e:emit("Log", { b }) }))
  end
  function ops.sinc(e, node, x)
    local d = node.dtypes[1]
    local name = e:cast(x, d)
    local turns = e:emit("Mul", { name, e:number(math.pi, d) })
    local y = e:emit("Div", { e:emit("Sin", { turns }), turns })
    return where(e, e:emit("Equal", { name, e:number(0, d) }), e:number(1, d), y)
  end
  function ops.logit(e, node, x)
    local d, eps = node.dtypes[1], node.attrs.eps
    local name = e:cast(x, d)
    if eps then
      name = e:emit("Min", { e:emit("Max", { name, e:number(eps, d) }), e:number(1 - eps, d) })
    end
    return e:emit("Log", { e:emit("Div", { name, e:emit("Sub", { e:number(1, d), name }) }) })
  end
  --- log(exp(a) + exp(b)): the larger one, and what the other adds. Of two equal infinities it is that one.
  function Export.log_sum(e, a, b, d)
    local most = e:emit("Max", { a, b })
    local gap = e:emit("Neg", { e:emit("Abs", { e:emit("Sub", { a, b }) }) })
    local more = ops.log1p(e, { dtypes = { d } }, { name = e:emit("Exp", { gap }), dtype = d })
    local alike = both(e, e:emit("Equal", { a, b }), e:emit("IsInf", { a }))
    return where(e, alike, a, e:emit("Add", { most, more }))
  end
  function ops.logaddexp(e, node, x, y)
    local a, b, d = operands(e, node, x, y)
    return Export.log_sum(e, a, b, d)
  end
  function ops.nan_to_num(e, node, x)
    local d, a = node.dtypes[1], node.attrs
    local nan, high, low = a.nan, a.posinf, a.neginf
    if not float[d] then return e:emit("Identity", { x.name }) end
    local most = T.finfo(d).max
    local y = where(e, e:emit("IsNaN", { x.name }), e:number(nan or 0, d), x.name)
    y = where(e, e:emit("Equal", { x.name, e:number(math.huge, d) }), e:number(high or most, d), y)
    return where(e, e:emit("Equal", { x.name, e:number(-math.huge, d) }), e:number(low or -most, d), y)
  end
end
