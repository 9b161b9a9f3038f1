-- SPDX-License-Identifier: MIT
--- Values of chat templates as Python has them: none, undefined, lists, tuples, dicts that keep their order; what they
-- print as, how they compare. Integers, floats, booleans and strings are Lua's.
-- @module perilune.jinja.values
local characters = require "perilune.jinja.characters"

local M = {}

local NONE = setmetatable({ kind = "none" }, { __tostring = function() return "None" end })
M.NONE = NONE

local function fail(text, ...)
  error({ jinja = select("#", ...) > 0 and text:format(...) or text }, 0)
end
M.fail = fail

-- What counts the work of the rendering that goes on: values that hold the same value twice may be small and print
-- long.
local meter = function() end
--- Sets it; returns the one before.
function M.set_meter(f)
  local before = meter
  meter = f
  return before
end
--- Counts the work of going through a value once.
function M.spend_on(v)
  if type(v) == "string" then meter(1 + #v // 16) elseif type(v) == "table" and v.n then meter(1 + v.n) end
end

--- An undefined value; `why` says it where somebody uses it.
function M.undefined(why) return { kind = "undefined", why = why } end
function M.list(items, n)
  items.kind, items.n = "list", n or #items
  return items
end
function M.tuple(items, n)
  items.kind, items.n = "tuple", n or #items
  return items
end
function M.dict() return { kind = "dict", n = 0, keys = {}, map = {} } end
--- A function of a list of arguments and a table of named ones.
function M.callable(name, call) return { kind = "function", name = name, call = call } end

local function type_of(v)
  local t = type(v)
  if t == "string" then return "str" end
  if t == "boolean" then return "bool" end
  if t == "number" then return math.type(v) == "integer" and "int" or "float" end
  local k = v.kind
  return k == "none" and "NoneType" or k == "undefined" and "Undefined" or k == "big" and "int" or k
end
M.type_of = type_of

--- What a dict's keys(), values() and items() are: no lists, though they are gone through like these.
function M.view(kind, items, n)
  items.kind, items.n = kind, n
  return items
end

local views = { dict_keys = true, dict_values = true, dict_items = true }
local subscripted = { list = true, tuple = true, range = true }
local sequences = { list = true, tuple = true, range = true, generator = true, dict_keys = true, dict_values = true,
  dict_items = true }
--- Can it be gone through in its order?
function M.is_sequence(v) return type(v) == "table" and sequences[v.kind] or false end
--- Has it an item for a number? Generators and views of dicts have none.
function M.is_subscripted(v) return type(v) == "table" and subscripted[v.kind] or false end
function M.is_dict(v) return type(v) == "table" and (v.kind == "dict" or v.kind == "namespace") end
function M.is_undefined(v) return type(v) == "table" and v.kind == "undefined" end

local mutable = { list = true, dict = true, dict_keys = true, dict_items = true }
local function changing(v) -- v, or what is in the tuple v, that can be changed
  if type(v) ~= "table" then return nil end
  if mutable[v.kind] then return v end
  for i = 1, v.kind == "tuple" and v.n or 0 do
    local found = changing(v[i])
    if found then return found end
  end
end
function M.is_hashable(v) return changing(v) == nil end
--- v, which can be a key.
function M.hashable(v)
  local wrong = changing(v)
  if wrong then fail("TypeError: unhashable type: '%s'", type_of(wrong)) end
  return v
end

-- Keys of dicts: strings, numbers and booleans as they are, tuples by what they print as.
local function key_of(k)
  if type(k) ~= "table" then
    if k == true then return 1 elseif k == false then return 0 end
    return k
  end
  if k.kind == "none" then return k end
  if k.kind == "undefined" then return "\0undefined" end
  if k.kind == "tuple" then return "\0tuple" .. M.repr(k) end
  fail("TypeError: unhashable type: '%s'", type_of(k))
end

function M.dict_set(d, k, v)
  local key = key_of(k)
  if d.map[key] == nil then
    d.n = d.n + 1
    d.keys[d.n] = k
  end
  d.map[key] = v
end
function M.dict_get(d, k)
  if not M.is_hashable(k) then return nil end
  return d.map[key_of(k)]
end

-- ---- truth and equality -----------------------------------------------------------------------------------------

function M.truth(v)
  local t = type(v)
  if t == "boolean" then return v end
  if t == "string" then return v ~= "" end
  if t == "number" then return v ~= 0 end
  local k = v.kind
  if k == "none" or k == "undefined" then return false end
  if k == "generator" then return true end
  if v.n then return v.n > 0 end
  return true
end

local function number_of(v)
  if type(v) == "number" then return v end
  if v == true then return 1 elseif v == false then return 0 end
  if type(v) == "table" and v.kind == "big" then return v.value end
  return nil
end
M.number_of = number_of

local function equal(a, b, depth)
  if rawequal(a, b) then return true end
  depth = (depth or 0) + 1
  meter(1)
  if depth > 100 then fail("RecursionError: values inside too many others") end
  local x, y = number_of(a), number_of(b)
  if x and y then return x == y end
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  if a.kind == "undefined" then return b.kind == "undefined" end
  if a.kind ~= b.kind then return false end
  if a.kind == "list" or a.kind == "tuple" or a.kind == "range" then
    if a.n ~= b.n then return false end
    for i = 1, a.n do if not equal(a[i], b[i], depth) then return false end end
    return true
  end
  if (a.kind == "dict_keys" or a.kind == "dict_items") and a.n == b.n then -- as sets
    for i = 1, a.n do
      local there = false
      for k = 1, b.n do there = there or equal(a[i], b[k], depth) end
      if not there then return false end
    end
    return true
  end
  if a.kind ~= "dict" or a.n ~= b.n then return false end
  for _, k in ipairs(a.keys) do
    local other = M.dict_get(b, k)
    if other == nil or not equal(M.dict_get(a, k), other, depth) then return false end
  end
  return true
end
M.equal = equal

--- a < b; an error for values that have no order.
function M.less(a, b, op)
  local x, y = number_of(a), number_of(b)
  if x and y then return x < y end
  meter(1)
  if type(a) == "string" and type(b) == "string" then return a < b end -- bytes of UTF-8 are in the order of characters
  if type(a) == "table" and type(b) == "table" and a.kind == b.kind and (a.kind == "list" or a.kind == "tuple") then
    for i = 1, math.min(a.n, b.n) do
      if not equal(a[i], b[i]) then return M.less(a[i], b[i], op) end
    end
    return a.n < b.n
  end
  for _, v in ipairs { a, b } do if M.is_undefined(v) then fail("UndefinedError: %s", v.why) end end
  fail("TypeError: '%s' not supported between instances of '%s' and '%s'", op or "<", type_of(a), type_of(b))
end

-- ---- printing -----------------------------------------------------------------------------------------------------

--- The shortest decimal that reads back as x, as Python writes it.
function M.float(x)
  if x ~= x then return "nan" end
  if x == math.huge then return "inf" elseif x == -math.huge then return "-inf" end
  local digits
  for p = 1, 17 do
    digits = ("%." .. p - 1 .. "e"):format(x)
    if tonumber(digits) == x then break end
  end
  local sign, head, tail, exponent = digits:match "^(%-?)(%d)%.?(%d*)e([+-]%d+)$"
  local e, all = tonumber(exponent), head .. tail
  all = all:gsub("0+$", "")
  if all == "" then all = "0" end
  if e < -4 or e >= 16 then
    return ("%s%s%se%s%02d"):format(sign, all:sub(1, 1), #all > 1 and "." .. all:sub(2) or "", e < 0 and "-" or "+",
      math.abs(e))
  end
  if e < 0 then return sign .. "0." .. ("0"):rep(-e - 1) .. all end
  if #all <= e + 1 then return sign .. all .. ("0"):rep(e + 1 - #all) .. ".0" end
  return sign .. all:sub(1, e + 1) .. "." .. all:sub(e + 2)
end

local escapes = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\" }

-- Python's escapes of a character that is not printed.
local function shown(c)
  local f = characters.of(c)
  if f.code < 0 or f.printable then return nil end
  return (f.code < 256 and "\\x%02x" or f.code < 65536 and "\\u%04x" or "\\U%08x"):format(f.code)
end

local function quote(s)
  local q = s:find("'", 1, true) and not s:find('"', 1, true) and '"' or "'"
  s = s:gsub("[%c\\]", function(c) return escapes[c] or ("\\x%02x"):format(c:byte()) end)
  if s:find "[\x80-\xFF]" then s = s:gsub("[\xC2-\xF4][\x80-\xBF]+", shown) end
  if q == "'" then s = s:gsub("'", "\\'") end
  return q .. s .. q
end

local function items_of(v, depth, open, close)
  local parts = {}
  for i = 1, v.n do parts[i] = M.repr(v[i], depth) end
  return open .. table.concat(parts, ", ") .. close
end

function M.repr(v, depth)
  depth = (depth or 0) + 1
  if depth > 100 then fail("RecursionError: values inside too many others") end
  meter(type(v) == "string" and 1 + #v // 16 or 1)
  if type(v) == "string" then return quote(v) end
  if type(v) ~= "table" then return M.str(v) end
  if v.kind == "list" then return items_of(v, depth, "[", "]") end
  if v.kind == "tuple" then return items_of(v, depth, "(", v.n == 1 and ",)" or ")") end
  if v.kind == "dict" then
    local parts = {}
    for i, k in ipairs(v.keys) do
      parts[i] = M.repr(k, depth) .. ": " .. M.repr(M.dict_get(v, k), depth)
    end
    return "{" .. table.concat(parts, ", ") .. "}"
  end
  if v.kind == "undefined" then return "Undefined" end
  if views[v.kind] then return items_of(v, depth, v.kind .. "([", "])") end
  return M.str(v)
end

function M.str(v)
  local t = type(v)
  if t == "string" then return v end
  if t == "number" then return math.type(v) == "integer" and ("%d"):format(v) or M.float(v) end
  if t == "boolean" then return v and "True" or "False" end
  local k = v.kind
  if k == "none" then return "None" end
  if k == "undefined" then return "" end
  if k == "big" then return v.text end
  if k == "range" then
    return v.step == 1 and ("range(%d, %d)"):format(v.from, v.to) or ("range(%d, %d, %d)"):format(v.from, v.to, v.step)
  end
  if k == "list" or k == "tuple" or k == "dict" or views[k] then return M.repr(v) end
  return ("<%s %s>"):format(k, v.name or "object")
end

-- ---- characters and iteration -------------------------------------------------------------------------------------

--- The characters of a string; bytes, where it is no UTF-8.
function M.characters(s)
  local list, n = {}, 0
  meter(#s // 4)
  for c in s:gmatch(utf8.len(s) and utf8.charpattern or ".") do
    n = n + 1
    list[n] = c
  end
  return list, n
end

function M.length(v)
  if type(v) == "string" then return utf8.len(v) or #v end
  if type(v) == "table" and v.n and v.kind ~= "generator" then return v.n end
  if M.is_undefined(v) then return 0 end
  fail("TypeError: object of type '%s' has no len()", type_of(v))
end

--- The items of what can be iterated over: a table and their number.
function M.items(v)
  if type(v) == "string" then return M.characters(v) end
  if type(v) == "table" then
    if sequences[v.kind] then return v, v.n end
    if v.kind == "dict" then return v.keys, v.n end
    if v.kind == "undefined" then return {}, 0 end
  end
  fail("TypeError: '%s' object is not iterable", type_of(v))
end

-- ---- from Lua and from JSON -----------------------------------------------------------------------------------------

-- Lua's tables have no order of keys; these come first, as chats are usually written, the others by the alphabet.
local usual = {}
for i, k in ipairs { "type", "role", "content", "tool_calls", "id", "function", "name", "description", "parameters",
  "arguments", "properties", "required" } do usual[k] = i end

function M.from_lua(v, depth)
  depth = (depth or 0) + 1
  if depth > 64 then fail("a value inside more than 64 others, or inside itself") end
  local t = type(v)
  if t == "string" or t == "number" or t == "boolean" then return v end
  if t == "nil" then return NONE end
  if t ~= "table" then fail("a value must be a string, a number, a boolean or a table, got a %s", t) end
  if v == NONE or v.kind and v.n and (v.keys or sequences[v.kind]) then return v end
  if #v > 0 or next(v) == nil then
    local list = {}
    for i = 1, #v do list[i] = M.from_lua(v[i], depth) end
    return M.list(list)
  end
  local keys, d = {}, M.dict()
  for k in pairs(v) do
    if type(k) ~= "string" then fail("keys of a table must be strings, or 1, 2, …, got %s", tostring(k)) end
    keys[#keys + 1] = k
  end
  table.sort(keys, function(a, b)
    local x, y = usual[a] or 99, usual[b] or 99
    if x ~= y then return x < y end
    return a < b
  end)
  for _, k in ipairs(keys) do M.dict_set(d, k, M.from_lua(v[k], depth)) end
  return d
end

return M
