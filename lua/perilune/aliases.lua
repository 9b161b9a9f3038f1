-- SPDX-License-Identifier: MIT
-- Other names, as PyTorch has them, of functions that are there: arccos, concatenate, greater, multiply, …, and
-- the methods that are functions as well (T.numel(x)).
local options = require "perilune.options"

return function(T, core)
  local methods = core.metatable().methods
  local A = {} -- new name → the name it stands for; help and reference list them

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

  -- Products and factorizations of matrices, whose home is T.linalg.
  for name, from in pairs { inverse = "inv", det = "det", slogdet = "slogdet", cholesky = "cholesky", qr = "qr",
    svd = "svd", matrix_power = "matrix_power", pinverse = "pinv", cross = "cross" } do
    T[name], methods[name], A[name] = T.linalg[from], T.linalg[from], "linalg." .. from
  end
  function T.chain_matmul(...)
    local list = { ... }
    if #list == 1 and type(list[1]) == "table" then list = list[1] end
    return T.linalg.multi_dot(list)
  end

  -- x:where(condition, y): x where condition holds, else y
  function methods.where(x, condition, y) return T.where(condition, x, y) end
  require "perilune.define"(T, core)("positive", { { "x", "tensor" } }, function(a) return a.x end)

  options.aliases = A
end
