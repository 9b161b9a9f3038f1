-- SPDX-License-Identifier: MIT
-- Other names, as PyTorch has them, of functions that are there: arccos, concatenate, greater, multiply, …, and
-- the methods that are functions as well (T.numel(x)).
local options = require "perilune.options"

return function(T, core)
  local methods = core.metatable().methods
  local A = options.aliases

  local function also(from, ...)
    for _, to in ipairs { ... } do
      if T[from] then T[to], A[to] = T[from], from end
      if methods[from] then methods[to] = methods[from] end
      local inplace = from .. "_"
      if T[inplace] and not T[to .. "_"] then
        T[to .. "_"], methods[to .. "_"] = T[inplace], methods[inplace]
        A[to .. "_"] = inplace
      end
    end
  end

  -- Methods that are functions too.
  --- T.detach(x), x:detach() → tensor
  -- x's values as a constant: same memory, no gradient.
  --   print(T.detach(T.ones(1):requires_grad_()).requires_grad)  --> false

  --- T.equal(x, y), x:equal(y) → boolean
  -- Whether shapes and all values are equal.
  --   print(T.equal(T.ones(2), T.ones(2)))  --> true

  --- T.is_floating_point(x), x:is_floating_point() → boolean
  -- Whether the dtype is f32, f64, f16 or bf16.
  --   print(T.is_floating_point(T.arange(2)))  --> false

  --- T.numel(x), x:numel() → number
  -- How many elements x has.
  --   print(T.numel(T.ones(2, 3)))  --> 6
  for _, name in ipairs { "numel", "detach", "equal", "is_floating_point" } do T[name] = methods[name] end

  also("abs", "absolute")
  also("acos", "arccos")
  also("acosh", "arccosh")
  also("asin", "arcsin")
  also("asinh", "arcsinh")
  also("atan", "arctan")
  also("atanh", "arctanh")
  also("atan2", "arctan2")
  also("neg", "negative")
  also("mul", "multiply")
  also("sub", "subtract")
  also("div", "divide", "true_divide")
  also("trunc", "fix")
  also("sign", "sgn")
  also("gt", "greater")
  also("ge", "greater_equal")
  also("lt", "less")
  also("le", "less_equal")
  also("ne", "not_equal")
  also("outer", "ger")
  also("dot", "vdot")
  also("cat", "concatenate")
  also("vstack", "row_stack")
  also("transpose", "swapdims")
  also("dim", "ndimension")
  also("numel", "nelement")
  also("totable", "tolist")

  -- ---- in place ---------------------------------------------------------------------------------------------
  -- Through a copy: x:addmm_(a, b) is x:copy_(x:addmm(a, b)).
  for name in ([[addmm addmv addbmm baddbmm addr cumsum cumprod eq ne lt le gt ge logical_and logical_or logical_xor
    logical_not]]):gmatch "%S+" do
    local f = methods[name]
    methods[name .. "_"] = options.named(name .. "_", function(x, ...)
      if not core.is_tensor(x) then
        options.fail("%s_: argument #1 must be a tensor, got %s", name, options.describe(x))
      end
      return x:copy_((f(x, ...)))
    end)
  end
  for from, to in pairs { eq = "equal", ne = "not_equal", lt = "less", le = "less_equal", gt = "greater",
    ge = "greater_equal" } do
    if to ~= "equal" then methods[to .. "_"] = methods[from .. "_"] end
  end
  -- x:index_put({i, j}, value, {accumulate=}): PyTorch's arguments; the ops take one list, x and value first.
  for _, name in ipairs { "index_put", "index_put_" } do
    local op = core[name]
    methods[name] = options.named(name, function(x, indices, value, opts, ...)
      if type(indices) ~= "table" or value == nil then
        options.fail("%s: write x:%s({ indices }, value, { accumulate = true })", name, name)
      end
      if not core.is_tensor(value) then value = T.tensor(value, { dtype = x:dtype(), device = x:device() }) end
      if type(opts) == "boolean" then opts = { accumulate = opts } end
      local result = op({ x, value, table.unpack(indices) }, opts, ...)
      return name == "index_put_" and x or result
    end)
  end

  -- ---- dtypes -------------------------------------------------------------------------------------------

  --- T.get_default_dtype() → dtype
  -- The dtype of tensors made from floats.
  --   print(T.get_default_dtype())  --> f32
  function T.get_default_dtype() return T.default_dtype() end

  --- T.set_default_dtype(dtype)
  -- Sets the dtype of tensors made from floats.
  --   T.set_default_dtype("f64")
  --   print(T.ones(1):dtype())  --> f64
  --   T.set_default_dtype("f32")
  function T.set_default_dtype(dtype) T.default_dtype(dtype) end
  local floats = { f64 = { 64, 52, -1022, 1023, 1e-15 }, f32 = { 32, 23, -126, 127, 1e-6 },
    bf16 = { 16, 7, -126, 127, 1e-2 }, f16 = { 16, 10, -14, 15, 1e-3 } }
  local integers = { u8 = { 8, 0, 255 }, i8 = { 8, -128, 127 }, i16 = { 16, -32768, 32767 },
    i32 = { 32, -2 ^ 31 // 1 | 0, 2 ^ 31 - 1 | 0 }, i64 = { 64, math.mininteger, math.maxinteger } }
  local function dtype_of(fn, v, among, what)
    if core.is_tensor(v) then v = v:dtype() end
    if v == nil then v = T.default_dtype() end
    if type(v) ~= "string" then options.fail("%s: a dtype or a tensor is wanted, got %s", fn, options.describe(v)) end
    v = T.promote_types(v, v) -- "float32" → "f32"; raises for others
    return among[v] or options.fail("%s: %s is no %s dtype", fn, v, what), v
  end
  -- Of a floating dtype: eps, the distance from 1 to the next number; tiny, the smallest normal one; max, min.
  --- T.finfo(dtype or tensor?) → {eps=, tiny=, max=, min=, bits=, …}
  -- The limits of a floating dtype.
  --   print(T.finfo("bf16").eps, T.finfo("f16").max)  --> 0.0078125	65504.0
  T.finfo = options.named("finfo", function(dtype)
    local f, name = dtype_of("finfo", dtype, floats, "floating")
    local max, tiny = (2 - 2.0 ^ -f[2]) * 2.0 ^ f[4], 2.0 ^ f[3]
    return { dtype = name, bits = f[1], eps = 2.0 ^ -f[2], max = max, min = -max, tiny = tiny, smallest_normal = tiny,
      resolution = f[5] }
  end)

  --- T.iinfo(dtype or tensor) → {max=, min=, bits=, dtype=}
  -- The limits of an integer dtype.
  --   print(T.iinfo("i16").max)  --> 32767
  T.iinfo = options.named("iinfo", function(dtype)
    local f, name = dtype_of("iinfo", dtype, integers, "integer")
    return { dtype = name, bits = f[1], min = f[2], max = f[3] }
  end)

  --- T.result_type(x, y) → dtype
  -- The dtype of an op of both; numbers take part as in arithmetic.
  --   print(T.result_type(T.arange(2), 0.5))  --> f32
  T.result_type = options.named("result_type", function(x, y)
    for i = 1, 2 do
      local v
      if i == 1 then v = x else v = y end
      if not core.is_tensor(v) and type(v) ~= "number" then
        options.fail("result_type: argument #%d must be a tensor or a number, got %s", i, options.describe(v))
      end
    end
    local function small(v) -- of the same kind, without its elements
      if type(v) == "number" then return v end
      return v:dim() == 0 and v:cpu() or T.zeros({ 0 }, { dtype = v:dtype(), device = "cpu" })
    end
    local a, b = small(x), small(y)
    if type(a) == "number" and type(b) == "number" then a = T.tensor(a, { device = "cpu" }) end
    local logical = core.is_tensor(a) and core.is_tensor(b) and a:dtype() == "bool" and b:dtype() == "bool"
    return logical and "bool" or (a + b):dtype()
  end)
  local define = require "perilune.define"(T, core)

  --- T.is_signed(…) → boolean
  -- Whether the dtype has negative numbers.
  --   print(T.is_signed(T.ones(1, { dtype = "u8" })))  --> false
  define("is_signed", { { "x", "tensor" } }, function(a)
    local dtype = a.x:dtype()
    return dtype ~= "u8" and dtype ~= "bool"
  end)

  --- T.is_nonzero(…) → boolean
  -- Whether the only element is not 0.
  --   print(T.is_nonzero(T.tensor { 3 }))  --> true
  define("is_nonzero", { { "x", "tensor" } }, function(a)
    if a.x:numel() ~= 1 then
      options.fail("is_nonzero: one element is wanted, got %s", a.x:describe())
    end
    local v = a.x:item()
    return v ~= 0 and v ~= false
  end)

  --- T.is_same_size(…) → boolean
  -- Whether both have the same sizes.
  --   print(T.is_same_size(T.ones(2), T.zeros(2)))  --> true
  define("is_same_size", { { "x", "tensor" }, { "y", "tensor" } },
    function(a) return table.concat(a.x:shape(), ",") == table.concat(a.y:shape(), ",") end)

  -- x:where(condition, y): x where condition holds, else y
  function methods.where(x, condition, y) return T.where(condition, x, y) end

  --- T.positive(…) → x
  -- x itself.
  --   print(T.positive(T.ones(1)))  --> {1.}  -- f32[1] cpu
  require "perilune.define"(T, core)("positive", { { "x", "tensor" } }, function(a) return a.x end)
end
