-- SPDX-License-Identifier: MIT
-- Sums of products by subscripts: einsum, tensordot.
-- An operand is a tensor with one label a dimension. Operands are joined from left to right; a label that
-- neither the result nor a later operand needs is summed as soon as possible, in a batched matrix product where
-- two operands share it.
local options = require "perilune.options"

return function(T, core)
  local op, is_tensor, fail = core.op, core.is_tensor, options.fail

  local function position(list, v)
    for i, x in ipairs(list) do
      if x == v then return i end
    end
  end

  -- "ab...c" → { "a", "b", "...", "c" }
  local function labels_of(text)
    local list, i = {}, 1
    while i <= #text do
      local c = text:sub(i, i)
      if c == "." then
        if text:sub(i, i + 2) ~= "..." then fail("einsum: a lone '.' in '%s'", text) end
        if position(list, "...") then fail("einsum: '...' twice in '%s'", text) end
        list[#list + 1] = "..."
        i = i + 3
      elseif c:match "%a" then
        list[#list + 1] = c
        i = i + 1
      else
        fail("einsum: '%s' in '%s' is not a letter", c, text)
      end
    end
    return list
  end

  -- "..." stands for n dimensions, aligned at their last: labels 1 … most, the last ones of them.
  local function spread(list, n, most)
    local out = {}
    for _, l in ipairs(list) do
      if l == "..." then
        for k = most - n + 1, most do out[#out + 1] = k end
      else
        out[#out + 1] = l
      end
    end
    return out
  end

  -- Takes the diagonal where a label occurs twice.
  local function without_repeats(x, list)
    local i = 1
    while i <= #list do
      local j = i + 1
      while j <= #list and list[j] ~= list[i] do j = j + 1 end
      if j <= #list then
        if x:size(i) ~= x:size(j) then
          fail("einsum: subscript '%s' has sizes %d and %d in one operand", list[i], x:size(i), x:size(j))
        end
        local l = list[i]
        x = op.diagonal(x, { dim1 = i, dim2 = j }) -- the diagonal comes last
        table.remove(list, j)
        table.remove(list, i)
        list[#list + 1] = l
      else
        i = i + 1
      end
    end
    return x
  end

  -- Integers sum to i64, also on the way to a product.
  local function sum_away(x, list, keep)
    local dims, rest = {}, {}
    for i, l in ipairs(list) do
      if keep[l] then rest[#rest + 1] = l else dims[#dims + 1] = i end
    end
    if #dims == 0 then return x, list end
    return op.sum(x, dims), rest
  end

  local function arrange(x, list, want)
    local order, same = {}, true
    for i, l in ipairs(want) do
      order[i] = position(list, l)
      same = same and order[i] == i
    end
    return same and x or op.permute(x, order)
  end

  local function product(sizes, list)
    local n = 1
    for _, l in ipairs(list) do n = n * sizes[l] end
    return n
  end

  local function joined(...)
    local out = {}
    for _, list in ipairs { ... } do
      for _, l in ipairs(list) do out[#out + 1] = l end
    end
    return out
  end

  -- x with every label at its full size (a size of 1 stands for any).
  local function full(x, list, sizes, only)
    local shape, changed = x:shape(), false
    for i, l in ipairs(list) do
      if shape[i] ~= sizes[l] and only[l] then shape[i], changed = sizes[l], true end
    end
    return changed and op.expand(x, shape) or x
  end

  -- The product of two operands, labels not in `keep` summed. A label may have size 1 in both, and another one in an
  -- operand that comes later.
  local function contract(x, lx, y, ly, keep)
    local in_x, in_y, sizes = {}, {}, {}
    for i, l in ipairs(lx) do in_x[l], sizes[l] = true, x:size(i) end
    for i, l in ipairs(ly) do
      in_y[l] = true
      if sizes[l] == nil or sizes[l] == 1 then sizes[l] = y:size(i) end
    end
    local batch, inner, left, right, both = {}, {}, {}, {}, {}
    for _, l in ipairs(lx) do
      if in_y[l] then
        both[l] = true
        local list = keep[l] and batch or inner
        list[#list + 1] = l
      else
        left[#left + 1] = l
      end
    end
    for _, l in ipairs(ly) do
      if not in_x[l] then right[#right + 1] = l end
    end
    x, y = full(x, lx, sizes, both), full(y, ly, sizes, both)
    x, y = arrange(x, lx, joined(batch, left, inner)), arrange(y, ly, joined(batch, inner, right))
    local out = joined(batch, left, right)
    local nb, nl, ni, nr = product(sizes, batch), product(sizes, left), product(sizes, inner), product(sizes, right)
    local shape = {}
    for i, l in ipairs(out) do shape[i] = sizes[l] end
    x, y = op.reshape(x, { nb, nl, ni }), op.reshape(y, { nb, ni, nr })
    if x:dtype() ~= y:dtype() and not x:is_floating_point() and not y:is_floating_point() then
      local wide = T.promote_types(x:dtype(), y:dtype())
      x, y = x:to(wide), y:to(wide)
    end
    -- an outer product needs no sum
    local z = #inner == 0 and x * y or op.bmm(x, y)
    return op.reshape(z, shape), out
  end

  local function parse(equation, tensors)
    if type(equation) ~= "string" then fail("einsum: the equation must be a string, got %s", type(equation)) end
    local text = equation:gsub("%s", "")
    local left, right = text, nil
    local arrow = text:find("->", 1, true)
    if arrow then left, right = text:sub(1, arrow - 1), text:sub(arrow + 2) end
    local terms = {}
    for part in (left .. ","):gmatch "([^,]*)," do terms[#terms + 1] = labels_of(part) end
    if #terms ~= #tensors then
      fail("einsum: '%s' has %d operands, %d tensors are given", equation, #terms, #tensors)
    end
    local most, free = 0, {}
    for i, term in ipairs(terms) do
      local has = position(term, "...")
      free[i] = tensors[i]:dim() - #term + (has and 1 or 0)
      if free[i] < 0 or (free[i] > 0 and not has) then
        fail("einsum: operand %d, %s, does not fit its %d subscripts in '%s'", i, tensors[i]:describe(), #term,
          equation)
      end
      most = math.max(most, free[i])
    end
    for i, term in ipairs(terms) do terms[i] = spread(term, free[i], most) end
    return terms, right and labels_of(right), most
  end

  -- Without an arrow: "..." first, then the labels that occur once, in alphabetical order.
  local function implied(terms, most)
    local count, out = {}, {}
    for _, term in ipairs(terms) do
      for _, l in ipairs(term) do count[l] = (count[l] or 0) + 1 end
    end
    for l, n in pairs(count) do
      if n == 1 and type(l) == "string" then out[#out + 1] = l end
    end
    table.sort(out)
    for k = most, 1, -1 do table.insert(out, 1, k) end
    return out
  end

  local function check_sizes(terms, tensors, equation)
    local sizes = {}
    for i, term in ipairs(terms) do
      for d, l in ipairs(term) do
        local n, known = tensors[i]:size(d), sizes[l]
        if known and known ~= n and known ~= 1 and n ~= 1 then
          fail("einsum: subscript '%s' has size %d in operand %d, but %d before, in '%s'", l, n, i, known, equation)
        end
        if not known or known == 1 then sizes[l] = n end
      end
    end
  end

  local function check_result(result, terms)
    local known, seen = {}, {}
    for _, term in ipairs(terms) do
      for _, l in ipairs(term) do known[l] = true end
    end
    for _, l in ipairs(result) do
      if not known[l] then fail("einsum: subscript '%s' of the result is in no operand", l) end
      if seen[l] then fail("einsum: subscript '%s' appears twice in the result", l) end
      seen[l] = true
    end
  end

  -- T.einsum("bij,bjk->bik", x, y): sums of products over the subscripts that the result lacks. Labels are letters,
  -- "..." stands for any leading dimensions; without "->" the result has the labels that occur once, sorted.
  --- T.einsum("ij,jk->ik", x, y) → tensor
  -- Sums of products by index letters; … for the other dimensions.
  --   print(T.einsum("i,i->", T.arange(3), T.arange(3)):item())  --> 14
  T.einsum = function(equation, ...)
    local tensors = { ... }
    if #tensors == 1 and type(tensors[1]) == "table" then tensors = tensors[1] end
    for i, x in ipairs(tensors) do
      if not is_tensor(x) then fail("einsum: operand %d must be a tensor, got %s", i, options.describe(x)) end
    end
    if #tensors == 0 then fail("einsum: no operands") end
    local terms, result, most = parse(equation, tensors)
    result = result and spread(result, most, most) or implied(terms, most)
    check_result(result, terms)
    check_sizes(terms, tensors, equation)
    local x, lx
    for i, term in ipairs(terms) do
      local y, ly = without_repeats(tensors[i], term), term
      local keep = {} -- what the result and later operands need
      for _, l in ipairs(result) do keep[l] = true end
      for k = i + 1, #terms do
        for _, l in ipairs(terms[k]) do keep[l] = true end
      end
      local wanted = setmetatable({}, { __index = keep })
      for _, l in ipairs(lx or {}) do wanted[l] = true end
      y, ly = sum_away(y, ly, wanted)
      if not x then
        x, lx = y, ly
      else
        x, lx = sum_away(x, lx, setmetatable({}, { __index = function(_, l)
          return keep[l] or position(ly, l) ~= nil
        end }))
        x, lx = contract(x, lx, y, ly, keep)
      end
    end
    local out = arrange(x, lx, result)
    return #tensors == 1 and core.own(out, tensors[1]) or out
  end

  local function dim_list(x, list, who)
    local out = {}
    for i, d in ipairs(type(list) == "table" and list or { list }) do
      local k = options.integer(d)
      if not k or k == 0 or k > x:dim() or k < -x:dim() then
        fail("tensordot: %s has no dimension %s (%s)", x:describe(), tostring(d), who)
      end
      out[i] = k < 0 and k + x:dim() + 1 or k
    end
    return out
  end

  --- T.tensordot(x, y, dims) → tensor
  -- Sums over the last dims dimensions of x and the first of y, or lists.
  --   print(T.tensordot(T.ones(2, 3), T.ones(3, 4), 1):size(2))  --> 4
  T.tensordot = function(x, y, dims)
    if not is_tensor(x) or not is_tensor(y) then fail("tensordot: two tensors expected") end
    if type(dims) == "table" and dims.dims ~= nil then dims = options.check("tensordot", dims, { "dims" }).dims end
    if dims == nil then dims = 2 end
    local dx, dy = {}, {}
    local n = options.integer(dims)
    if n then
      if n < 0 or n > x:dim() or n > y:dim() then
        fail("tensordot: cannot sum over %d dimensions of %s and %s", n, x:describe(), y:describe())
      end
      for i = 1, n do dx[i], dy[i] = x:dim() - n + i, i end
    elseif type(dims) == "table" and #dims == 2 then
      options.list("tensordot", "dims", dims)
      dx, dy = dim_list(x, dims[1], "first list"), dim_list(y, dims[2], "second list")
    else
      fail("tensordot: dims must be a number or two lists, got %s", options.describe(dims))
    end
    if #dx ~= #dy then fail("tensordot: lists of %d and %d dimensions", #dx, #dy) end
    local lx, ly, keep = {}, {}, {}
    for i, d in ipairs(dx) do
      if lx[d] or ly[dy[i]] then fail("tensordot: a dimension appears twice") end
      local a, b = x:size(d), y:size(dy[i])
      if a ~= b and a ~= 1 and b ~= 1 then
        fail("tensordot: dimension %d of %s and %d of %s differ in size", d, x:describe(), dy[i], y:describe())
      end
      lx[d], ly[dy[i]] = i, i
    end
    for d = 1, x:dim() do
      if not lx[d] then lx[d] = "x" .. d keep[lx[d]] = true end
    end
    for d = 1, y:dim() do
      if not ly[d] then ly[d] = "y" .. d keep[ly[d]] = true end
    end
    return (contract(x, lx, y, ly, keep))
  end
end
