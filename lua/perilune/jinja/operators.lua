-- SPDX-License-Identifier: MIT
--- What operators, subscripts and calls of templates do.
-- @module perilune.jinja.operators
local methods = require "perilune.jinja.methods"
local values = require "perilune.jinja.values"

local M = {}
local fail, str, type_of = values.fail, values.str, values.type_of

local function used(...)
  for _, v in ipairs { ... } do if values.is_undefined(v) then fail("UndefinedError: %s", v.why) end end
end

-- ---- arithmetic ---------------------------------------------------------------------------------------------------

local function checked(v)
  if math.type(v) == "float" and v ~= v then return v end
  return v
end

-- Integers that do not fit 64 bits are an error, not a wrong number.
local function exact(op, a, b, v)
  if math.type(v) == "integer" then
    local f = op(a + 0.0, b + 0.0)
    if math.abs(f) > 9.2e18 then fail "OverflowError: an integer of more than 64 bits" end
  end
  return checked(v)
end

local function numbers(name, op)
  return function(a, b)
    local x, y = values.number_of(a), values.number_of(b)
    if x and y then return exact(op, x, y, op(x, y)) end
    used(a, b)
    fail("TypeError: unsupported operand type(s) for %s: '%s' and '%s'", name, type_of(a), type_of(b))
  end
end

local add = numbers("+", function(a, b) return a + b end)
local subtract = numbers("-", function(a, b) return a - b end)
local multiply = numbers("*", function(a, b) return a * b end)

local function nonzero(b, what)
  if b == 0 then fail("ZeroDivisionError: %s", what) end
  return b
end
local divide = numbers("/", function(a, b) return a / nonzero(b, "division by zero") end)
local floor_divide = numbers("//", function(a, b) return a // nonzero(b, "integer division or modulo by zero") end)
local modulo = numbers("%", function(a, b) return a % nonzero(b, "integer modulo by zero") end)

local function power(a, b)
  local x, y = values.number_of(a), values.number_of(b)
  if not x or not y then
    used(a, b)
    fail("TypeError: unsupported operand type(s) for ** or pow(): '%s' and '%s'", type_of(a), type_of(b))
  end
  if math.type(x) == "integer" and math.type(y) == "integer" and y >= 0 then
    local v = 1
    if x ^ y > 9.2e18 or x ^ y < -9.2e18 then fail "OverflowError: an integer of more than 64 bits" end
    if x == 0 or x == 1 then return y == 0 and 1 or x end
    if x == -1 then return y % 2 == 0 and 1 or -1 end
    for _ = 1, y do v = v * x end
    return v
  end
  if x == 0 and y < 0 then fail "ZeroDivisionError: 0.0 cannot be raised to a negative power" end
  local v = (x + 0.0) ^ y
  if math.abs(v) == math.huge and math.abs(x) < math.huge and math.abs(y) < math.huge then
    fail "OverflowError: (34, 'Numerical result out of range')"
  end
  if v ~= v and x == x and y == y then fail "ValueError: a negative number to a power that is not whole" end
  return v
end

local function repeated(run, v, n)
  n = math.max(n, 0)
  if n > 1 << 40 then fail "MemoryError: a value repeated too often" end
  if type(v) == "string" then
    run.spend(#v * n // 16)
    return v:rep(n)
  end
  run.spend(v.n * n)
  local list = {}
  for k = 0, n - 1 do table.move(v, 1, v.n, k * v.n + 1, list) end
  return v.kind == "tuple" and values.tuple(list, v.n * n) or values.list(list, v.n * n)
end

local function countable(v)
  return type(v) == "string" or type(v) == "table" and (v.kind == "list" or v.kind == "tuple")
end

M.binary = {
  ["+"] = function(run, a, b)
    if type(a) == "string" then
      if type(b) == "string" then
        run.spend((#a + #b) // 16)
        return a .. b
      end
      used(b)
      fail('TypeError: can only concatenate str (not "%s") to str', type_of(b))
    end
    if type(a) == "table" and type(b) == "table" and a.kind == b.kind and (a.kind == "list" or a.kind == "tuple") then
      run.spend(a.n + b.n)
      local all = table.move(b, 1, b.n, a.n + 1, table.move(a, 1, a.n, 1, {}))
      return a.kind == "list" and values.list(all, a.n + b.n) or values.tuple(all, a.n + b.n)
    end
    return add(a, b)
  end,
  ["-"] = function(_, a, b) return subtract(a, b) end,
  ["*"] = function(run, a, b)
    if countable(b) and not countable(a) then a, b = b, a end
    if countable(a) and type(b) == "boolean" then b = b and 1 or 0 end
    if countable(a) and math.type(b) == "integer" then return repeated(run, a, b) end
    return multiply(a, b)
  end,
  ["/"] = function(_, a, b) return divide(a, b) end,
  ["//"] = function(_, a, b) return floor_divide(a, b) end,
  ["%"] = function(run, a, b)
    if type(a) == "string" then return methods.percent(run, a, b) end
    return modulo(a, b)
  end,
  ["**"] = function(_, a, b) return power(a, b) end,
  ["~"] = function(run, a, b)
    a, b = str(a), str(b)
    run.spend((#a + #b) // 16)
    return a .. b
  end,
}

function M.negative(v)
  local x = values.number_of(v)
  if x then return -x end
  used(v)
  fail("TypeError: bad operand type for unary -: '%s'", type_of(v))
end
function M.positive(v)
  local x = values.number_of(v)
  if x then return x end
  used(v)
  fail("TypeError: bad operand type for unary +: '%s'", type_of(v))
end

-- ---- comparisons --------------------------------------------------------------------------------------------------

local function contains(v, item)
  values.spend_on(v)
  if type(v) == "string" then
    if type(item) ~= "string" then
      fail("TypeError: 'in <string>' requires string as left operand, not %s", type_of(item))
    end
    return v:find(item, 1, true) ~= nil
  end
  if values.is_dict(v) then return values.dict_get(v, values.hashable(item)) ~= nil end
  if type(v) == "table" and v.kind == "dict_keys" then values.hashable(item) end
  local all, n = values.items(v)
  for i = 1, n do if values.equal(all[i], item) then return true end end
  return false
end
M.contains = contains

M.compare = {
  ["=="] = values.equal,
  ["!="] = function(a, b) return not values.equal(a, b) end,
  ["<"] = function(a, b) return values.less(a, b, "<") end,
  [">"] = function(a, b) return values.less(b, a, ">") end,
  ["<="] = function(a, b) return values.less(a, b, "<=") or values.equal(a, b) end,
  [">="] = function(a, b) return values.less(b, a, ">=") or values.equal(a, b) end,
  ["in"] = function(a, b) return contains(b, a) end,
  ["not in"] = function(a, b) return not contains(b, a) end,
}

-- ---- parts --------------------------------------------------------------------------------------------------------

local function missing(v, name)
  local kind = type(v) == "table" and v.kind == "none" and "None" or ("'%s object'"):format(type_of(v))
  return values.undefined(("%s has no attribute %s"):format(kind, values.repr(name)))
end

--- v.name: a method first, then an item.
function M.attribute(v, name)
  if values.is_undefined(v) then fail("UndefinedError: %s", v.why) end
  if name:sub(1, 1) == "_" then
    return values.undefined(("access to attribute '%s' of '%s' object is unsafe."):format(name, type_of(v)))
  end
  if type(v) == "table" and v.attributes then
    local a = v.attributes[name]
    if a == nil then return missing(v, name) end
    return a
  end
  local method = methods.find(v, name)
  if method then return method end
  if values.is_dict(v) then
    local item = values.dict_get(v, name)
    if item ~= nil then return item end
  end
  return missing(v, name)
end

--- v[key]: an item first, then, for names, a method.
function M.item(v, key)
  if values.is_undefined(v) then fail("UndefinedError: %s", v.why) end
  if type(key) == "boolean" and not values.is_dict(v) then
    local item = M.item(v, key and 1 or 0)
    return values.is_undefined(item) and missing(v, key) or item
  end
  if values.is_dict(v) then
    local item = values.dict_get(v, key)
    if item ~= nil then return item end
  elseif math.type(key) == "integer" then
    local all, n = v, nil
    if type(v) == "string" then all, n = values.characters(v) -- counted
    elseif values.is_subscripted(v) then n = v.n end
    if n then
      local item = all[key < 0 and n + key + 1 or key + 1]
      if item ~= nil and key < n and key >= -n then return item end
      return missing(v, key)
    end
  end
  if type(key) == "string" then
    if values.is_dict(v) and key:sub(1, 1) == "_" then return missing(v, key) end
    return M.attribute(v, key)
  end
  return missing(v, key)
end

--- v[from:to:step] of parts that may be nil.
function M.slice(run, v, parts)
  local all, n
  if type(v) == "string" then all, n = values.characters(v)
  elseif values.is_subscripted(v) then all, n = v, v.n
  elseif values.is_undefined(v) then fail("UndefinedError: %s", v.why)
  else return missing(v, "slice") end
  run.spend(n)
  local p = {}
  for i = 1, 3 do
    if parts[i] ~= nil and parts[i] ~= values.NONE then
      p[i] = math.tointeger(values.number_of(parts[i]))
      if not p[i] then fail "TypeError: slice indices must be integers or None" end
    end
  end
  local step = p[3] or 1
  if step == 0 then fail "ValueError: slice step cannot be zero" end
  local low, high = step > 0 and 0 or -1, step > 0 and n or n - 1
  local function place(i, default)
    if i == nil then return default end
    if i < 0 then i = math.max(i + n, low) end
    return math.min(i, high)
  end
  local from, to = place(p[1], step > 0 and 0 or n - 1), place(p[2], step > 0 and n or -1)
  local out = {}
  for i = from, step > 0 and to - 1 or to + 1, step do out[#out + 1] = all[i + 1] end
  if type(v) == "string" then return table.concat(out) end
  if v.kind == "range" then
    out.kind, out.n, out.step = "range", #out, v.step * step
    out.from, out.to = v.from + from * v.step, v.from + to * v.step
    return out
  end
  return v.kind == "tuple" and values.tuple(out) or values.list(out)
end

function M.call(run, callee, args, named, order)
  run.spend(1)
  if values.is_undefined(callee) then fail("%s: %s", callee.error or "UndefinedError", callee.why) end
  if type(callee) ~= "table" or not callee.call then
    fail("TypeError: '%s' object is not callable", type_of(callee))
  end
  return callee.call(run, args, named or {}, order or {})
end

return M
