-- SPDX-License-Identifier: MIT
-- Free sizes of saved graphs. A function is traced at several sets of sizes, from the least to the largest, and the
-- traces have to be one text but for integers; an integer that changes becomes an expression of the sizes that is right
-- at all of them: c·a·b + d, where a and b are free sizes ("$1") or sizes of values that were made before ("@7.2").
-- What is no such thing is refused: the function depends on sizes in a way that no one text can say.
-- docs/design/deploy.md tells what that proves.
local core = require "perilune.core"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local M = {}

--- Such a function is traced: what it makes of sizes has to be made in the graph.
M.tracing = false
M.most, M.least_default, M.most_default, M.most_factors = 16, 1, 4096, 4
local LARGEST, MOST_SIZE = 1 << 53, 0x7fffffff
local MOST_TRIED = 12 -- values of a size that are all tried
local MOST_RULED = 8 -- different sizes that only rules give, as atoms of expressions

-- ---- expressions
-- -----------------------------------------------------------------------------------------------------

local function factor(v, by)
  if math.abs(v * 1.0 * by) > LARGEST then return nil end
  return v * by
end

--- An expression's value, as engine/deploy/free_sizes.c has it; nil: it is none, or too large. size_of(v, d): a size of
-- a value, or nil.
function M.value(text, values, size_of)
  local sign, coefficient, rest = text:match "^(%-?)(%d+)%*(.*)$"
  local v = 1
  if coefficient then
    if coefficient ~= "0" and coefficient:find "^0" or sign == "-" and coefficient == "0" then return nil end
    v = math.tointeger(tonumber(sign .. coefficient))
    if not v or math.abs(v) > LARGEST then return nil end
  else
    rest = text
  end
  local product, plus, offset = rest:match "^([^+-]*)([+-])(%d+)$"
  product = product or rest
  if offset then
    offset = not offset:find "^0" and math.tointeger(tonumber(offset))
    if not offset or offset > LARGEST then return nil end
  end
  local n = 0
  for atom in (product .. "*"):gmatch "([^*]*)%*" do
    n = n + 1
    local k, number, d = atom:match "^%$([1-9]%d*)$", atom:match "^@(%d+)%.([1-9]%d*)$"
    local a
    if k then a = #k < 4 and values[tonumber(k)]
    elseif number then a = #d < 4 and (number == "0" or not number:find "^0") and #number < 12
      and size_of(math.tointeger(tonumber(number)), math.tointeger(tonumber(d))) end
    v = a and n <= M.most_factors and factor(v, a)
    if not v then return nil end
  end
  if offset then v = plus == "+" and v + offset or v - offset end
  return math.abs(v) <= LARGEST and v or nil
end

--- Is there an expression in it?
function M.is_free(text) return text:find "[$@]" ~= nil end

-- ---- which sizes are tried
-- -----------------------------------------------------------------------------------------------

-- Values of one size: the example, the ends and their neighbours, and some between; all where they are few.
local function trials(s)
  local list, seen = {}, {}
  local function add(v)
    v = math.min(math.max(v, s.least), s.most)
    if not seen[v] then list[#list + 1], seen[v] = v, true end
  end
  add(s.size)
  add(s.least)
  add(s.most)
  for v = s.least, s.most - s.least < MOST_TRIED and s.most or 0 do add(v) end
  add(s.least + 1)
  add(s.most - 1)
  local ratio = s.most / s.least
  for k = 1, 4 do add(math.floor(s.least * ratio ^ (k / 5)) | 1) end
  for k = 1, 2 do add(s.least + (s.most - s.least) * k // 3) end
  add(s.size + 1)
  add(2 * s.size)
  return list
end

-- The same numbers at every run, so that a function is saved as the same text.
local function shuffled(list, draw)
  local out = table.move(list, 1, #list, 1, {})
  for i = #out, 2, -1 do
    local j = draw() % i + 1
    out[i], out[j] = out[j], out[i]
  end
  return out
end

--- Sets of values, the example first: all least, all most; then one size alone at its ends, which tells it from every
-- other one; then each in an order of its own, in which all of its values come.
function M.points(sizes)
  local lists, points, n, seed = {}, {}, 0, 1
  local function draw()
    seed = (seed * 1103515245 + 12345) & 0x7fffffff
    return seed >> 12
  end
  local function add(at)
    local point = {}
    for k, list in ipairs(lists) do point[k] = at(k, list) end
    points[#points + 1] = point
  end
  for k, s in ipairs(sizes) do
    lists[k] = trials(s)
    n = math.max(n, #lists[k])
  end
  for p = 1, 3 do add(function(_, list) return list[math.min(p, #list)] end) end
  for one = 1, #sizes > 1 and #sizes or 0 do
    for p = 2, math.min(3, #lists[one]) do
      add(function(k, list) return list[k == one and p or 1] end)
    end
  end
  local orders = {}
  for k, list in ipairs(lists) do orders[k] = shuffled(list, draw) end
  for p = 0, n - 1 do add(function(k) return orders[k][p % #orders[k] + 1] end) end
  return points
end

-- ---- one text of many
-- ------------------------------------------------------------------------------------------------------

local Merge = {}
Merge.__index = Merge

-- a·x + b through all points; nil.
local function line_through(x, y)
  local i, j = 1, nil
  for k = 2, #x do
    if x[k] ~= x[1] then
      j = k
      break
    end
  end
  if not j then return nil end
  local a, rest = (y[j] - y[i]) // (x[j] - x[i]), (y[j] - y[i]) % (x[j] - x[i])
  if rest ~= 0 or a == 0 then return nil end
  local b = y[i] - a * x[i]
  for k = 1, #x do if a * x[k] + b ~= y[k] then return nil end end
  return a, b
end

local function expression(a, name, b)
  return (a == 1 and "" or a .. "*") .. name .. (b == 0 and "" or ("%+d"):format(b))
end

-- Products of up to three atoms, those of fewer and of free sizes first.
local function each_product(atoms, degree, from, x, name, f)
  for k = from, #atoms do
    local y = {}
    for p = 1, #atoms[k].x do y[p] = (x and x[p] or 1) * atoms[k].x[p] end
    local whole = name and name .. "*" .. atoms[k].name or atoms[k].name
    local found
    if degree == 1 then found = f(y, whole) else found = each_product(atoms, degree - 1, k, y, whole, f) end
    if found then return found end
  end
end

function Merge:express(x)
  local key = table.concat(x, ",")
  if self.known[key] == nil then
    local function try(product, name)
      local a, b = line_through(product, x)
      return a and expression(a, name, b)
    end
    for degree = 1, 3 do
      self.known[key] = self.known[key] or each_product(self.atoms, degree, 1, nil, nil, try)
    end
    self.known[key] = self.known[key] or false
  end
  return self.known[key]
end

-- A size that a rule gives, as an atom of what comes.
function Merge:rule_gives(x, v, d)
  local key = table.concat(x, ",")
  if self.ruled[key] or self.nruled == MOST_RULED then return end
  self.ruled[key], self.nruled = true, self.nruled + 1
  self.atoms[#self.atoms + 1] = { name = ("@%d.%d"):format(v, d), x = x }
  self.known = {}
end

local function values_text(sizes, point)
  local list = {}
  for k, s in ipairs(sizes) do list[k] = ("%s = %d"):format(s.name, point[k]) end
  return table.concat(list, ", ")
end

local function subject(line)
  local kind, name, op = tostring(line[1]):match "^(%a+) (%S+) (%S+)"
  return kind == "node" and ("node %s (%s)"):format(name, op) or tostring(line[1]):match "^%a+" or "a line"
end

--- The lines of all traces (file.lua's: lists of texts, and of integers as {v} or, of a result, {v, of=, dim=}) as one
-- list of texts.
function M.merge(who, sizes, points, traces)
  local self = setmetatable({ known = {}, ruled = {}, nruled = 0, atoms = {} }, Merge)
  for k, s in ipairs(sizes) do
    local x = {}
    for p, point in ipairs(points) do x[p] = point[k] end
    self.atoms[k] = { name = "$" .. k, x = x }
  end
  local function other(p, what)
    fail("%s: at %s the function does something else than at %s (%s); narrower bounds are given by "
      .. "sizes={name={least,most}}", who, values_text(sizes, points[p]), values_text(sizes, points[1]), what)
  end
  local first, out = traces[1], {}
  for p = 2, #traces do
    if #traces[p] ~= #first then other(p, ("%d lines, %d"):format(#first, #traces[p])) end
  end
  for i, line in ipairs(first) do
    local texts, new = {}, {}
    for p = 2, #traces do
      if #traces[p][i] ~= #line then other(p, subject(line)) end
    end
    -- what an op is given comes before what it gives
    local order = {}
    for j, piece in ipairs(line) do if not (type(piece) == "table" and piece.of) then order[#order + 1] = j end end
    for j, piece in ipairs(line) do if type(piece) == "table" and piece.of then order[#order + 1] = j end end
    for _, j in ipairs(order) do
      local piece = line[j]
      if type(piece) == "string" then
        texts[j] = piece
        for p = 2, #traces do if traces[p][i][j] ~= piece then other(p, subject(line)) end end
      else
        local x, same = {}, true
        for p = 1, #traces do
          local q = traces[p][i][j]
          if type(q) ~= "table" or q.of ~= piece.of then other(p, subject(line)) end
          x[p] = q[1]
          same = same and x[p] == x[1]
        end
        local e = same and (piece.text or tostring(x[1])) or self:express(x)
        if not e and piece.of then
          e = "?"
          new[#new + 1] = { x, piece.of, piece.dim }
        elseif not e then
          fail("%s: %s: %s depends on the free sizes in a way that a saved graph cannot say: %d at %s, %d at %s", who,
            subject(line), piece.what or "a number", x[1], values_text(sizes, points[1]), x[3],
            values_text(sizes, points[3]))
        end
        texts[j] = e
      end
    end
    for _, n in ipairs(new) do self:rule_gives(table.unpack(n)) end
    out[i] = table.concat(texts)
  end
  return out
end

-- Whether two captured tensors are one, or have the same elements; NaN is NaN.
function M.same_tensor(a, b)
  if a == b then return true end
  if a:dtype() ~= b:dtype() or #a:shape() ~= #b:shape() then return false end
  for d, n in ipairs(a:shape()) do if b:size(d) ~= n then return false end end
  b = b:to(a:device())
  return a:equal(b) or a:eq(b):logical_or(a:ne(a):logical_and(b:ne(b))):all():item()
end

-- ---- what the caller leaves free
-- ---------------------------------------------------------------------------------------

local function bounds(who, name, given)
  if given == nil then return M.least_default, M.most_default end
  local least, most
  if type(given) == "table" then least, most = given[1], given[2] end
  if math.type(least) ~= "integer" or math.type(most) ~= "integer" or least < 1 or most < least or most > MOST_SIZE then
    fail("%s: sizes: '%s' must be {least, most}, such as {1, 64}, got %s", who, name, describe(given))
  end
  return least, most
end

--- {x = {"batch"}} and {batch = {1, 64}} → list of {name=, size=, least=, most=, places={{input, dim}…}}, by name.
-- shapes: of the example.
function M.read(who, names, shapes, dynamic, given)
  local list, by_name = {}, {}
  if type(dynamic) ~= "table" or getmetatable(dynamic) ~= nil then
    fail("%s: dynamic must be a table such as { x = { \"n\" } }, got %s", who, describe(dynamic))
  end
  for key, axes in pairs(dynamic) do
    local at
    for i, name in ipairs(names) do if name == key then at = i end end
    if not at then fail("%s: dynamic: %s", who, options.unknown("input", key, names)) end
    if type(axes) ~= "table" then
      fail("%s: dynamic: sizes of '%s' must be a table, got %s", who, key, describe(axes))
    end
    for d, name in pairs(axes) do
      if math.type(d) ~= "integer" or d < 1 or d > #shapes[at] then
        fail("%s: dynamic: '%s' has no dimension %s", who, key, tostring(d))
      end
      if type(name) ~= "string" or name == "" then
        fail("%s: dynamic: the name of a size must be text, got %s", who, describe(name))
      end
      local s = by_name[name]
      if not s then
        s = { name = name, size = shapes[at][d], places = {} }
        by_name[name], list[#list + 1] = s, s
      elseif s.size ~= shapes[at][d] then
        fail("%s: dynamic: '%s' is %d here and %d there", who, name, s.size, shapes[at][d])
      end
      s.places[#s.places + 1] = { at, d }
    end
  end
  if given ~= nil and type(given) ~= "table" then
    fail("%s: sizes must be a table such as { batch = { 1, 64 } }, got %s", who, describe(given))
  end
  for name in pairs(given or {}) do
    if not by_name[name] then fail("%s: sizes: dynamic has no size '%s'", who, tostring(name)) end
  end
  if #list > M.most then fail("%s: %d free sizes; at most %d are", who, #list, M.most) end
  table.sort(list, function(a, b) return a.name < b.name end)
  for _, s in ipairs(list) do
    s.least, s.most = bounds(who, s.name, given and given[s.name])
    if s.size < s.least or s.size > s.most then
      fail("%s: '%s' is %d in the example, which is not from %d to %d", who, s.name, s.size, s.least, s.most)
    end
  end
  return list
end

--- Traces at all points; trace(shapes, point) → a saved graph's lines and tensors by value (file.lua). → lines, tensors
function M.lines(who, sizes, shapes, trace)
  local points, all, owned = M.points(sizes), {}, {}
  for p, point in ipairs(points) do
    local moved = {}
    for i, shape in ipairs(shapes) do moved[i] = table.move(shape, 1, #shape, 1, {}) end
    for k, s in ipairs(sizes) do for _, at in ipairs(s.places) do moved[at[1]][at[2]] = point[k] end end
    local was = M.tracing
    M.tracing = true
    local ok, lines, own = core.attempt(trace, moved)
    M.tracing = was
    if not ok then
      if p == 1 then error(lines, 0) end
      fail("%s: at %s: %s; narrower bounds are given by sizes={name={least,most}}", who, values_text(sizes, point),
        (tostring(lines):gsub("^[^:]*:%d+: ", "")))
    end
    all[p] = lines
    owned[p] = own
  end
  local texts = M.merge(who, sizes, points, all)
  for p, own in ipairs(owned) do
    for name, t in pairs(own) do
      if not owned[1][name] or not M.same_tensor(owned[1][name], t) then
        fail("%s: a tensor that the function makes or captures, %s, depends on the free sizes (%s)", who, describe(t),
          values_text(sizes, points[p]))
      end
    end
  end
  return texts, owned[1]
end

return M
