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

  -- ---- dtypes -------------------------------------------------------------------------------------------
  function T.get_default_dtype() return T.default_dtype() end
  function T.set_default_dtype(dtype) T.default_dtype(dtype) end
  -- The dtype of x op y; numbers take part as they do in arithmetic.
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
  define("is_signed", { { "x", "tensor" } }, function(a)
    local dtype = a.x:dtype()
    return dtype ~= "u8" and dtype ~= "bool"
  end)
  define("is_nonzero", { { "x", "tensor" } }, function(a)
    if a.x:numel() ~= 1 then
      options.fail("is_nonzero: one element is wanted, got %s", a.x:describe())
    end
    local v = a.x:item()
    return v ~= 0 and v ~= false
  end)
  define("is_same_size", { { "x", "tensor" }, { "y", "tensor" } },
    function(a) return table.concat(a.x:shape(), ",") == table.concat(a.y:shape(), ",") end)

  -- x:where(condition, y): x where condition holds, else y
  function methods.where(x, condition, y) return T.where(condition, x, y) end
  require "perilune.define"(T, core)("positive", { { "x", "tensor" } }, function(a) return a.x end)
end
