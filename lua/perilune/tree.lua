-- Tables of tensors, nested at will: what the functional API takes and returns.
local core = require "perilune.core"
local options = require "perilune.options"

local is_tensor, fail = core.is_tensor, options.fail

local floating, alike = core.floats, core.alike

-- Keys in a fixed order: 1 … n, then the rest by their text.
local function keys(t)
  local list, n, rest = {}, #t, nil
  for i = 1, n do list[i] = i end
  for k in pairs(t) do
    if not (math.type(k) == "integer" and k >= 1 and k <= n) then
      rest = rest or {}
      rest[#rest + 1] = k
    end
  end
  if not rest then return list end
  table.sort(rest, function(a, b) return options.key_text(a) < options.key_text(b) end)
  return table.move(rest, 1, #rest, #list + 1, list)
end
local function is_tree(v) return type(v) == "table" and getmetatable(v) == nil end

-- The same structure with f(tensor) for every tensor; other values stay if `keep`.
local function map(v, f, keep, depth)
  if is_tensor(v) then return f(v) end
  if not is_tree(v) then
    if keep then return v end
    return nil
  end
  depth = depth or 0
  if depth > 100 then fail("tables of tensors are nested more than 100 deep; is one inside itself?") end
  local out = {}
  for _, k in ipairs(keys(v)) do out[k] = map(v[k], f, keep, depth + 1) end
  return out
end

local function leaves(v)
  local list = {}
  map(v, function(t) if floating(t) then list[#list + 1] = t end end)
  return list
end

local function same_shape(a, b) return table.concat(a:shape(), ",") == table.concat(b:shape(), ",") end

-- Leaves of `v` beside those of `like`, which must have the structure; nil where `v` has none. A name that `like` lacks
-- is an error: it would be lost.
local function beside(who, what, like, v)
  local list, n = {}, 0
  local function walk(a, b)
    if is_tensor(a) then
      if not floating(a) then return end
      n = n + 1
      if b == nil then return end
      if not is_tensor(b) then fail("%s: %s must be a tensor like %s, got %s", who, what, a:describe(), type(b)) end
      if not alike(a, b) and (not same_shape(a, b) or a:dtype() ~= b:dtype()) then
        fail("%s: %s is %s, but must be like %s", who, what, b:describe(), a:describe())
      end
      list[n] = b
    elseif is_tree(a) and b ~= nil then
      if not is_tree(b) then
        fail("%s: %s must be a table like the other, got %s", who, what, options.describe(b))
      end
      for k in pairs(b) do
        if a[k] == nil then fail("%s: %s has an entry '%s', which the other has not", who, what, tostring(k)) end
      end
      for _, k in ipairs(keys(a)) do walk(a[k], b[k]) end
    elseif is_tree(a) then
      n = n + #leaves(a)
    end
  end
  walk(like, v)
  return list, n
end

-- The list of a function's arguments: a tensor alone, or a table of them by position.
local function arguments(who, v)
  if is_tensor(v) then return { n = 1, v } end
  if not is_tree(v) then fail("%s: a tensor or the list of arguments expected, got %s", who, options.describe(v)) end
  for k in pairs(v) do
    if math.type(k) ~= "integer" and k ~= "n" then
      fail("%s: the list of arguments has an entry '%s'; an argument that is a table goes inside: {{%s = …}}", who,
        tostring(k), tostring(k))
    end
  end
  return table.pack(table.unpack(v, 1, math.type(v.n) == "integer" and v.n or #v))
end

local function check_function(who, f)
  local meta = getmetatable(f)
  if type(f) ~= "function" and not (type(meta) == "table" and meta.__call) then
    fail("%s: a function expected, got %s%s", who, options.describe(f),
      who == "grad" and type(f) == "userdata" and "; of a tensor: T.grad_of(y, x, { create_graph = true })" or "")
  end
  return f
end

return { arguments = arguments, check_function = check_function, floating = floating, map = map, leaves = leaves,
  beside = beside, is_tree = is_tree }
