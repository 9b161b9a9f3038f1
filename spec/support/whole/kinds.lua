-- SPDX-License-Identifier: MIT
-- The statements of random programs: what each is as Lua text, and what it means (reference.lua). A statement is a
-- table:
-- k its kind, o the variables it assigns, a those it reads, and whatever else the kind wants. Variables are numbers.

local ref = require "spec.support.whole.reference"

local K = {}
local invalid, numel = ref.invalid, ref.numel

local function var(id) return "v" .. id end
local function vars(ids)
  local l = {}
  for i, id in ipairs(ids) do l[i] = var(id) end
  return table.concat(l, ", ")
end
local function number(x) return ("%.17g"):format(x):gsub("^(%-?%d+)$", "%1.0") .. "" end
local function get(r, id) return r.vars[id] or invalid("v" .. id .. " is not there") end
local function tensor(r, id)
  local t = get(r, id)
  if not t.storage then invalid "not a tensor" end
  return t
end
K.tensor = tensor

local function set(r, id, t)
  r.vars[id] = t or nil
  return t
end

-- ---- shapes
-- ----------------------------------------------------------------------------------------------------------

-- Row-major strides in elements.
local function strides(shape)
  local s, n = {}, 1
  for d = #shape, 1, -1 do
    s[d] = n
    n = n * shape[d]
  end
  return s
end

-- Calls f with every index of the shape, and the element's number.
local function each(shape, f)
  local n = numel(shape)
  local s = strides(shape)
  for i = 0, n - 1 do
    local at = {}
    for d = 1, #shape do at[d] = i // s[d] % shape[d] + 1 end
    f(at, i + 1)
  end
end

-- The elements of `from` that a view of shape `to` has: where(index there) → index here.
local function picks(from, to, where)
  local s, out = strides(from), {}
  each(to, function(at, i)
    local j, n = where(at), 1
    for d = 1, #from do
      if j[d] < 1 or j[d] > from[d] then invalid "out of range" end
      n = n + (j[d] - 1) * s[d]
    end
    out[i] = n
  end)
  return out
end

local function broadcast_shape(a, b)
  local out = {}
  for d = 1, math.max(#a, #b) do
    local x, y = a[#a - d + 1] or 1, b[#b - d + 1] or 1
    if x ~= y and x ~= 1 and y ~= 1 then return nil end
    table.insert(out, 1, math.max(x, y))
  end
  return out
end
K.broadcast_shape = broadcast_shape

local function expand_picks(from, to)
  return picks(from, to, function(at)
    local j = {}
    for d = 1, #from do j[d] = from[d] == 1 and 1 or at[d + #to - #from] end
    return j
  end)
end

local function same(a, b)
  if #a ~= #b then return false end
  for d = 1, #a do if a[d] ~= b[d] then return false end end
  return true
end
K.same = same

-- t as an operand of that shape.
local function operand(r, t, shape)
  local v = r:read(t)
  if same(t.shape, shape) then return v end
  local got = broadcast_shape(t.shape, shape)
  if not got or not same(got, shape) then invalid "shapes do not fit" end
  return r:gather(v, expand_picks(t.shape, shape))
end

local function follows(r, t)
  r:current(t)
  return next(t.e) ~= nil
end

-- What a product keeps: each operand for the other's gradient.
local function product_saves(r, a, b)
  return r:saved(follows(r, b) and a or nil, follows(r, a) and b or nil)
end

local function plain(...)
  for i = 1, select("#", ...) do if not select(i, ...).plain then return false end end
  return true
end

-- ---- values
-- ----------------------------------------------------------------------------------------------------------

K.leaf = {
  text = function(s)
    local l = {}
    for i, x in ipairs(s.values) do l[i] = number(x) end
    return ("%s = N({ %s }, { %s }%s)"):format(var(s.o[1]), table.concat(s.shape, ", "), table.concat(l, ", "),
      s.tracked and ", true" or "")
  end,
  run = function(r, s) set(r, s.o[1], r:leaf(s.values, s.shape, s.tracked)) end,
}

K.rand = {
  text = function(s)
    return ("%s = T.rand({ %s }, { dtype = \"f64\"%s })"):format(var(s.o[1]), table.concat(s.shape, ", "),
      s.own and ", generator = C.generator" or "")
  end,
  run = function(r, s) set(r, s.o[1], r:leaf((s.own and r.draw_own or r.draw)(s.shape), s.shape)) end,
}

-- After the result exists: an op keeps it, too, where its gradient may be made of it.
local function keep_output(r, t, vec)
  for _, e in pairs(vec.e) do
    if e.node.saves then table.insert(e.node.saves, r:saved(t)[1]) end
  end
end

local unary_text = { neg = "-%s" }
K.unary = {
  text = function(s) return var(s.o[1]) .. " = " .. (unary_text[s.f] or "%s:" .. s.f .. "()"):format(var(s.a[1])) end,
  run = function(r, s)
    local t = tensor(r, s.a[1])
    local x = r:read(t)
    local y = s.f == "neg" and r:scale(x, -1) or r:unary(s.f, x, r:saved(t))
    local out = set(r, s.o[1], r:tensor(y, t.shape, t.plain))
    keep_output(r, out, y)
  end,
}

local binary_text = { add = "%s + %s", sub = "%s - %s", mul = "%s * %s" }
K.binary = {
  text = function(s)
    if s.alpha then
      return ("%s = %s:%s(%s, { alpha = %s })"):format(var(s.o[1]), var(s.a[1]), s.f, var(s.a[2]), number(s.alpha))
    end
    return var(s.o[1]) .. " = " .. binary_text[s.f]:format(var(s.a[1]), var(s.a[2]))
  end,
  run = function(r, s)
    local a, b = tensor(r, s.a[1]), tensor(r, s.a[2])
    local shape = broadcast_shape(a.shape, b.shape) or invalid "shapes do not fit"
    local x, y = operand(r, a, shape), operand(r, b, shape)
    local z
    if s.f == "mul" then z = r:mul(x, y, product_saves(r, a, b))
    else z = r:add(x, r:scale(y, (s.f == "sub" and -1 or 1) * (s.alpha or 1))) end
    set(r, s.o[1], r:tensor(z, shape, plain(a, b)))
  end,
}

local number_text = { mul = "%s * %s", add = "%s + %s", rsub = "%s" }
K.number = {
  text = function(s)
    if s.f == "rsub" then return ("%s = %s - %s"):format(var(s.o[1]), number(s.c), var(s.a[1])) end
    return var(s.o[1]) .. " = " .. number_text[s.f]:format(var(s.a[1]), number(s.c))
  end,
  run = function(r, s)
    local t = tensor(r, s.a[1])
    local x = r:read(t)
    local z = s.f == "mul" and r:scale(x, s.c)
      or r:add(s.f == "add" and x or r:scale(x, -1), ref.fill(#x.v, s.c))
    set(r, s.o[1], r:tensor(z, t.shape, t.plain))
  end,
}

K.clone = {
  text = function(s) return ("%s = %s:clone()"):format(var(s.o[1]), var(s.a[1])) end,
  run = function(r, s)
    local t = tensor(r, s.a[1])
    set(r, s.o[1], r:tensor(r:scale(r:read(t), 1), t.shape, t.plain))
  end,
}

-- s.dim: nil for all elements
K.reduce = {
  text = function(s) return ("%s = %s:%s(%s)"):format(var(s.o[1]), var(s.a[1]), s.f, s.dim or "") end,
  run = function(r, s)
    local t = tensor(r, s.a[1])
    local shape, terms, count = {}, {}, s.dim and t.shape[s.dim] or #t.map
    if s.dim and not t.shape[s.dim] then invalid "no such dim" end
    for d = 1, #t.shape do if s.dim and d ~= s.dim then shape[#shape + 1] = t.shape[d] end end
    local st = strides(shape)
    local c = s.f == "mean" and 1 / count or 1
    each(t.shape, function(at, i)
      local n, k = 1, 0
      for d = 1, #t.shape do
        if s.dim and d ~= s.dim then
          k = k + 1
          n = n + (at[d] - 1) * st[k]
        end
      end
      terms[i] = { n, i, c }
    end)
    set(r, s.o[1], r:tensor(r:linear(r:read(t), numel(shape), terms), shape))
  end,
}

-- Along dimension 1, two of the same shape.
K.join = {
  text = function(s) return ("%s = T.%s({ %s }, 1)"):format(var(s.o[1]), s.f, vars(s.a)) end,
  run = function(r, s)
    local a, b = tensor(r, s.a[1]), tensor(r, s.a[2])
    if not same(a.shape, b.shape) or (s.f == "cat" and #a.shape == 0) then invalid "shapes do not fit" end
    local n = #a.map
    local left, right = {}, {}
    for i = 1, n do left[i], right[i] = { i, i, 1 }, { i + n, i, 1 } end
    local shape = { table.unpack(a.shape) }
    if s.f == "cat" then shape[1] = 2 * shape[1] else table.insert(shape, 1, 2) end
    set(r, s.o[1], r:tensor(r:add(r:linear(r:read(a), 2 * n, left), r:linear(r:read(b), 2 * n, right)), shape))
  end,
}

-- Rows by number, which may repeat.
K.rows = {
  text = function(s)
    return ("%s = %s:index_select(1, T.tensor({ %s }, { dtype = \"i64\" }))"):format(var(s.o[1]), var(s.a[1]),
      table.concat(s.index, ", "))
  end,
  run = function(r, s)
    local t = tensor(r, s.a[1])
    if #t.shape == 0 then invalid "0-d" end
    local shape = { #s.index, table.unpack(t.shape, 2) }
    set(r, s.o[1], r:tensor(r:gather(r:read(t), picks(t.shape, shape, function(at)
      return { s.index[at[1]], table.unpack(at, 2) }
    end)), shape))
  end,
}

-- ---- views
-- -----------------------------------------------------------------------------------------------------------

-- how → picks, shape; or a list of both for those with several results
local views = {}
K.views = views

local function without(list, d)
  local out = { table.unpack(list) }
  table.remove(out, d)
  return out
end
local function with(list, d, x)
  local out = { table.unpack(list) }
  out[d] = x
  return out
end
local function inserted(list, d, x)
  local out = { table.unpack(list) }
  table.insert(out, d, x)
  return out
end

local function narrowed(shape, d, from, n)
  if not shape[d] or from < 1 or n < 1 or from + n - 1 > shape[d] then invalid "out of range" end
  local to = with(shape, d, n)
  return picks(shape, to, function(at) return with(at, d, at[d] + from - 1) end), to
end
local function selected(shape, d, i)
  if not shape[d] then invalid "no such dim" end
  local to = without(shape, d)
  return picks(shape, to, function(at) return inserted(at, d, i) end), to
end

views.select = { text = function(s, x) return ("%s:select(%d, %d)"):format(x, s.dim, s.i) end,
  pick = function(s, shape) return selected(shape, s.dim, s.i) end }
views.narrow = { text = function(s, x) return ("%s:narrow(%d, %d, %d)"):format(x, s.dim, s.i, s.n) end,
  pick = function(s, shape) return narrowed(shape, s.dim, s.i, s.n) end }
views.index = { text = function(s, x) return ("%s[%d]"):format(x, s.i) end,
  pick = function(s, shape) return selected(shape, 1, s.i) end }
views.slice = { -- { from, to } or a number for the first dimension, a range for the second if there is one
  text = function(s, x) return ("%s[{ %s }]"):format(x, s.key) end,
  pick = function(s, shape)
    local p, to = narrowed(shape, 1, s.i, s.n)
    if s.i2 then
      local q, to2 = narrowed(to, 2, s.i2, s.n2)
      local both = {}
      for i, j in ipairs(q) do both[i] = p[j] end
      return both, to2
    end
    return p, to
  end }
views.transpose = { text = function(_, x) return x .. ":transpose(1, 2)" end,
  pick = function(_, shape)
    if #shape < 2 then invalid "1-d" end
    local to = { shape[2], shape[1], table.unpack(shape, 3) }
    return picks(shape, to, function(at) return { at[2], at[1], table.unpack(at, 3) } end), to
  end }
views.unsqueeze = { text = function(s, x) return ("%s:unsqueeze(%d)"):format(x, s.dim) end,
  pick = function(s, shape)
    if s.dim > #shape + 1 then invalid "no such dim" end
    return picks(shape, inserted(shape, s.dim, 1), function(at) return without(at, s.dim) end), inserted(shape,
      s.dim, 1)
  end }
views.view = { text = function(s, x) return ("%s:view(%s)"):format(x, table.concat(s.shape, ", ")) end, plain = true,
  pick = function(s, shape)
    if numel(shape) ~= numel(s.shape) then invalid "sizes" end
    local p = {}
    for i = 1, numel(shape) do p[i] = i end
    return p, s.shape
  end }
views.expand = { text = function(s, x) return ("%s:expand(%s)"):format(x, table.concat(s.shape, ", ")) end,
  pick = function(s, shape)
    local got = broadcast_shape(shape, s.shape)
    if not got or not same(got, s.shape) then invalid "sizes" end
    return expand_picks(shape, s.shape), s.shape
  end }
views.diagonal = { text = function(_, x) return x .. ":diagonal()" end,
  pick = function(_, shape)
    if #shape ~= 2 then invalid "not a matrix" end
    local to = { math.min(shape[1], shape[2]) }
    return picks(shape, to, function(at) return { at[1], at[1] } end), to
  end }
local function pieces(shape, d, size)
  if not shape[d] then invalid "no such dim" end
  local list = {}
  for from = 1, shape[d], size do list[#list + 1] = { narrowed(shape, d, from, math.min(size,
    shape[d] - from + 1)) } end
  return list
end
views.chunk = { many = true, text = function(s, x) return ("table.unpack(%s:chunk(%d, %d))"):format(x, s.n, s.dim) end,
  pick = function(s, shape)
    if not shape[s.dim] then invalid "no such dim" end
    return pieces(shape, s.dim, (shape[s.dim] + s.n - 1) // s.n)
  end }
views.split = { many = true, text = function(s, x) return ("table.unpack(%s:split(%d, %d))"):format(x, s.n, s.dim) end,
  pick = function(s, shape) return pieces(shape, s.dim, s.n) end }
views.unbind = { many = true, text = function(s, x) return ("table.unpack(%s:unbind(%d))"):format(x, s.dim) end,
  pick = function(s, shape)
    if not shape[s.dim] then invalid "no such dim" end
    local list = {}
    for i = 1, shape[s.dim] do list[i] = { selected(shape, s.dim, i) } end
    return list
  end }

K.view = {
  text = function(s) return vars(s.o) .. " = " .. views[s.how].text(s, var(s.a[1])) end,
  run = function(r, s)
    local t, how = tensor(r, s.a[1]), views[s.how]
    if how.plain and not t.plain then invalid "layout" end
    if r.off > 0 then invalid "a view made where nothing is recorded" end
    if how.many then
      local list = how.pick(s, t.shape)
      if #list < #s.o then invalid "too few pieces" end
      for i, id in ipairs(s.o) do set(r, id, r:view(t, list[i][1], list[i][2])).frozen = t.frozen end
    else
      local p, shape = how.pick(s, t.shape)
      set(r, s.o[1], r:view(t, p, shape, how.plain)).frozen = t.frozen
    end
  end,
}

K.detach = {
  text = function(s) return ("%s = %s:detach()"):format(var(s.o[1]), var(s.a[1])) end,
  run = function(r, s)
    local t = tensor(r, s.a[1])
    set(r, s.o[1], r:detach(t)).frozen = t.frozen
  end,
}

-- ---- writes
-- ------------------------------------------------------------------------------------------------------------

local function places_overlap(a, b)
  if a.storage ~= b.storage then return false end
  local at = {}
  for _, p in ipairs(a.map) do at[p] = true end
  for _, p in ipairs(b.map) do if at[p] then return true end end
  return false
end

-- A body writes into what it was given; the history of what was detached with gaps cannot be followed.
local function outside(r, t, window)
  local root = t.history.root
  if root.alias and (t ~= root or window) and (ref.gaps(root) or ref.overlaps(root)) then r:allow "gaps" end
  if root.alias and r.tracing then r:allow "detached" end
  local what = r.given and r.given[t.storage]
  if what then r:allow(what) end
end

-- Writes what compute(x, others…) gives. What an op reads of its target it reads from a copy.
local function write(r, s, compute)
  local t = tensor(r, s.a[1])
  if t.frozen then invalid "nobody may write here" end
  local other = s.a[2] and tensor(r, s.a[2])
  if other and other ~= t and places_overlap(t, other) and ref.overlaps(other) then invalid "reads what it writes" end
  r:check_write(t, other)
  outside(r, t)
  local x = r:read(t)
  local y = other and operand(r, other, t.shape)
  local z = compute(x, y, t, other)
  r:write(t, z)
  for _, e in pairs(z.e) do
    if e.node.keeps_output then
      e.node.saves = e.node.saves or {}
      table.insert(e.node.saves, r:saved(t)[1])
    end
  end
end

-- y in place of x, which gets zeros for a gradient; they depend on nothing.
local function over(r, x, y)
  return (r:record("over", { x, y }, { { table.unpack(y.v) } }, function(g)
    return { ref.fill(#y.v, 0.0), g[1] }
  end))
end

local writes = {}
K.writes = writes
local function mark(z)
  for _, e in pairs(z.e) do e.node.keeps_output = true end
  return z
end
for _, f in ipairs { "sin", "tanh", "sigmoid", "square", "relu" } do
  writes[f] = { text = function(_, x) return ("%s:%s_()"):format(x, f) end,
    compute = function(r) return function(x) return mark(r:unary(f, x)) end end }
end
writes.neg = { text = function(_, x) return x .. ":neg_()" end,
  compute = function(r) return function(x) return r:scale(x, -1) end end }
writes.zero = { text = function(_, x) return x .. ":zero_()" end,
  compute = function(r) return function(x) return over(r, x, ref.fill(#x.v, 0.0)) end end }
writes.fill = { text = function(s, x) return ("%s:fill_(%s)"):format(x, number(s.c)) end,
  compute = function(r, s) return function(x) return over(r, x, ref.fill(#x.v, s.c)) end end }
writes.mul_number = { text = function(s, x) return ("%s:mul_(%s)"):format(x, number(s.c)) end,
  compute = function(r, s) return function(x) return r:scale(x, s.c) end end }
writes.add_number = { text = function(s, x) return ("%s:add_(%s)"):format(x, number(s.c)) end,
  compute = function(r, s) return function(x) return r:add(x, ref.fill(#x.v, s.c)) end end }
writes.add = { two = true, text = function(s, x, y)
  return s.alpha and ("%s:add_(%s, { alpha = %s })"):format(x, y, number(s.alpha)) or ("%s:add_(%s)"):format(x, y)
end, compute = function(r, s) return function(x, y) return r:add(x, r:scale(y, s.alpha or 1)) end end }
writes.sub = { two = true, text = function(_, x, y) return ("%s:sub_(%s)"):format(x, y) end,
  compute = function(r) return function(x, y) return r:add(x, r:scale(y, -1)) end end }
writes.mul = { two = true, text = function(_, x, y) return ("%s:mul_(%s)"):format(x, y) end,
  compute = function(r) return function(x, y, t, other)
    return r:mul(x, y, other ~= t and follows(r, t) and r:saved(other) or nil)
  end end }
writes.copy = { two = true, text = function(_, x, y) return ("%s:copy_(%s)"):format(x, y) end,
  compute = function(r) return function(x, y) return over(r, x, y) end end }

K.write = {
  text = function(s) return writes[s.f].text(s, var(s.a[1]), s.a[2] and var(s.a[2])) end,
  run = function(r, s) write(r, s, writes[s.f].compute(r, s)) end,
}

-- t[{…}] = x or a number: a write through a view that nobody holds
K.assign = {
  text = function(s)
    local v = s.a[2] and var(s.a[2]) or number(s.c)
    if s.how == "index" then return ("%s[%d] = %s"):format(var(s.a[1]), s.i, v) end
    return ("%s[{ %s }] = %s"):format(var(s.a[1]), s.key, v)
  end,
  run = function(r, s)
    local t = tensor(r, s.a[1])
    if t.frozen then invalid "nobody may write here" end
    local other = s.a[2] and tensor(r, s.a[2])
    if other and places_overlap(t, other) then invalid "reads what it writes" end
      local p, shape = views[s.how].pick(s, t.shape)
    r:check_write(t, other)
    outside(r, t, true)
    local window = r:view(t, p, shape)
    window.history = t.history
    local x = r:read(window)
    r:write(window, over(r, x, other and operand(r, other, shape) or ref.fill(#p, s.c)))
  end,
}

-- ---- lifetimes
-- ----------------------------------------------------------------------------------------------------------

K.drop = {
  text = function(s) return var(s.a[1]) .. " = nil" end,
  run = function(r, s)
    get(r, s.a[1])
    if r.captured[s.a[1]] then invalid "a function reads it" end
    r.vars[s.a[1]] = nil
  end,
}
K.collect = {
  text = function(s) return s.full and "collectgarbage()" or "collectgarbage(\"step\")" end,
  run = function() end,
}

-- What the other files about statements use.
K.common = { var = var, vars = vars, get = get, tensor = tensor, set = set, same = same, plain = plain,
  follows = follows,
  selected = selected, number = number }

-- ---- any statement -----------------------------------------------------------------------------------------------

K.exec = function(r, s) K[s.k].run(r, s) end
K.var, K.vars = var, vars
require "spec.support.whole.functions" (K)
require "spec.support.whole.gradients" (K)
return K
