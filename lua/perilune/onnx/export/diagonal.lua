-- SPDX-License-Identifier: MIT
--- Export of diagonals: parts of matrices, and matrices of them.
-- @module perilune.onnx.export.diagonal
local T = require "perilune"

return function(Export)
  local ops = Export.ops

  local function from_zero(d, n) return d < 0 and d + n or d - 1 end

  -- x with the axes a, b behind the others.
  local function behind(e, x, a, b)
    local perm, n = {}, #x.shape
    for d = 0, n - 1 do if d ~= a and d ~= b then perm[#perm + 1] = d end end
    perm[n - 1], perm[n] = a, b
    local shape = {}
    for i, d in ipairs(perm) do shape[i] = x.shape[d + 1] end
    return a == n - 2 and b == n - 1 and x.name or e:emit("Transpose", { x.name }, { perm = perm }), shape
  end

  local function diagonal(e, node, x, a, b, offset)
    local name, shape = behind(e, x, a, b)
    e:fixed(node, { x.shape[a + 1], x.shape[b + 1], offset }, "size")
    local n, rows, columns = #shape, x.shape[a + 1], x.shape[b + 1]
    local flat, list = { table.unpack(shape, 1, n - 2) }, {}
    flat[n - 1] = rows * columns
    for i = 0, rows - 1 do
      local j = i + offset
      if j >= 0 and j < columns then list[#list + 1] = i * columns + j end
    end
    local places = e:constant(#list > 0 and T.tensor(list, { dtype = "i64" }) or T.zeros({ 0 }, { dtype = "i64" }))
    return e:emit("Gather", { e:reshape(name, flat), places }, { axis = n - 2 })
  end
  function ops.diagonal(e, node, x)
    local a, n = node.attrs, #x.shape
    return diagonal(e, node, x, from_zero(a.dim1, n), from_zero(a.dim2, n), a.offset)
  end
  function ops.trace(e, node, x)
    return e:emit("ReduceSum", { e:cast({ name = diagonal(e, node, x, 0, 1, 0), dtype = x.dtype }, node.dtypes[1]),
      e:integers { 0 } }, { keepdims = 0 })
  end

  -- A matrix for each row of the last dim, which stands on its diagonal: all else is an element behind it, 0.
  local function embedded(e, node, x, offset)
    local n = #x.shape
    local count = e:fixed(node, { x.shape[n], offset }, "size")[1]
    local size, list, pads = count + math.abs(offset), {}, {}
    for i = 0, size - 1 do
      for j = 0, size - 1 do
        local on = j - i == offset
        list[#list + 1] = on and (offset >= 0 and i or j) or count
      end
    end
    for d = 1, 2 * n do pads[d] = d == 2 * n and 1 or 0 end
    local places = e:constant(T.tensor(list, { dtype = "i64" }):view(size, size))
    return e:emit("Gather", { e:emit("Pad", { x.name, e:integers(pads) }), places }, { axis = n - 1 })
  end
  function ops.diag_embed(e, node, x)
    local a, n = node.attrs, #x.shape + 1
    local one, two = from_zero(a.dim1, n), from_zero(a.dim2, n)
    if x.dtype == "bool" then e:fail(node, "of bools is not supported") end
    local y, perm, at = embedded(e, node, x, a.offset), {}, 0
    for d = 0, n - 1 do
      if d == one then perm[d + 1] = n - 2
      elseif d == two then perm[d + 1] = n - 1
      else
        perm[d + 1], at = at, at + 1
      end
    end
    return one == n - 2 and two == n - 1 and y or e:emit("Transpose", { y }, { perm = perm })
  end
  function ops.diag(e, node, x)
    local k = node.attrs.diagonal
    if #x.shape == 2 then return diagonal(e, node, x, 0, 1, k) end
    if x.dtype == "bool" then e:fail(node, "of bools is not supported") end
    return embedded(e, node, x, k)
  end
end
