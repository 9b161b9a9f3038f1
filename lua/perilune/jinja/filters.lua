-- SPDX-License-Identifier: MIT
--- Filters and tests of templates: functions of the rendering, the value, the list of arguments, the named ones.
-- @module perilune.jinja.filters
local characters = require "perilune.jinja.characters"
local json = require "perilune.jinja.json"
local methods = require "perilune.jinja.methods"
local numerals = require "perilune.jinja.numerals"
local ops = require "perilune.jinja.operators"
local signed = require "perilune.jinja.signatures"
local values = require "perilune.jinja.values"
local wrapped = require "perilune.jinja.wrap"

local NONE, fail, str, truth = values.NONE, values.fail, values.str, values.truth
local argument, whole = methods.argument, methods.whole
local filters, tests = {}, {}

-- ---- attributes of items --------------------------------------------------------------------------------------------

-- "a.b.0" or a number: a function that takes this out of an item.
local function getter(name, default)
  local parts = {}
  if name == nil or name == NONE then return function(v) return v end end
  if type(name) == "string" then
    for part in (name .. "."):gmatch "([^.]*)%." do parts[#parts + 1] = math.tointeger(tonumber(part)) or part end
  else
    parts[1] = name
  end
  return function(v)
    for _, part in ipairs(parts) do
      v = ops.item(v, part)
      if values.is_undefined(v) and default ~= nil then return default end
    end
    return v
  end
end

local function folded(v, case) return not case and type(v) == "string" and methods.lower(v) or v end

-- Sorted by key(item), equal ones in their order.
local function sorted(run, items, n, key, reverse)
  local rows = {}
  for i = 1, n do rows[i] = { key(items[i]), items[i] } end
  local function before(a, b)
    if reverse then return values.less(b[1], a[1]) end
    return values.less(a[1], b[1])
  end
  local other = {}
  local width = 1
  while width < n do
    run.spend(n)
    for from = 1, n, 2 * width do
      local a, b = from, from + width
      local a_end, b_end = math.min(from + width - 1, n), math.min(from + 2 * width - 1, n)
      for k = from, b_end do
        if a <= a_end and (b > b_end or not before(rows[b], rows[a])) then
          other[k], a = rows[a], a + 1
        else
          other[k], b = rows[b], b + 1
        end
      end
    end
    rows, other = other, rows
    width = width * 2
  end
  local out = {}
  for i = 1, n do out[i] = rows[i][2] end
  return out
end

local function items_of(run, v)
  local items, n = values.items(v)
  run.spend(n)
  return items, n
end

local function list_filter(f, any)
  return function(run, v, args, named)
    local items, n = {}, 0
    if not any or truth(v) then items, n = items_of(run, v) end -- any: what is false is no items, whatever it is
    return f(run, items, n, args, named)
  end
end

local function generator(list) -- prints as one, else like a list
  list.kind, list.n = "generator", #list
  return list
end

filters.list = list_filter(function(_, items, n) return values.list(table.move(items, 1, n, 1, {}), n) end)

filters.sort = list_filter(function(run, items, n, args, named)
  local reverse = truth(argument(args, named, 1, "reverse", false))
  local case = truth(argument(args, named, 2, "case_sensitive", false))
  local attribute = argument(args, named, 3, "attribute")
  local keys = {}
  if type(attribute) == "string" then
    for part in (attribute .. ","):gmatch "([^,]*)," do keys[#keys + 1] = getter(part) end
  else
    keys[1] = getter(attribute)
  end
  return values.list(sorted(run, items, n, function(v)
    if #keys == 1 then return folded(keys[1](v), case) end
    local t = {}
    for i, k in ipairs(keys) do t[i] = folded(k(v), case) end
    return values.tuple(t)
  end, reverse), n)
end)

filters.first = list_filter(function(_, items, n)
  if n == 0 then return values.undefined "No first item, sequence was empty." end
  return items[1]
end)
filters.last = list_filter(function(_, items, n)
  if n == 0 then return values.undefined "No last item, sequence was empty." end
  return items[n]
end)

local function extreme(better)
  return list_filter(function(_, items, n, args, named)
    if n == 0 then return values.undefined "No aggregated item, sequence was empty." end
    local case = truth(argument(args, named, 1, "case_sensitive", false))
    local key = getter(argument(args, named, 2, "attribute"))
    local best = items[1]
    for i = 2, n do
      if better(folded(key(items[i]), case), folded(key(best), case)) then best = items[i] end
    end
    return best
  end)
end
filters.min = extreme(values.less)
filters.max = extreme(function(a, b) return values.less(b, a) end)

filters.sum = list_filter(function(run, items, n, args, named)
  local key, total = getter(argument(args, named, 1, "attribute")), argument(args, named, 2, "start", 0)
  if type(total) == "string" then fail "TypeError: sum() can't sum strings [use ''.join(seq) instead]" end
  for i = 1, n do total = ops.binary["+"](run, total, key(items[i])) end
  return total
end)

filters.join = list_filter(function(run, items, n, args, named)
  local sep, key, out = str(argument(args, named, 1, "d", "")), getter(argument(args, named, 2, "attribute")), {}
  for i = 1, n do
    out[i] = str(key(items[i]))
    run.spend(1 + (#out[i] + #sep) // 16)
  end
  return table.concat(out, sep)
end)

function filters.reverse(run, v)
  local items, n = items_of(run, v)
  local out = {}
  for i = 1, n do out[i] = items[n - i + 1] end
  return type(v) == "string" and table.concat(out) or generator(out)
end

filters.unique = list_filter(function(run, items, n, args, named)
  local case = truth(argument(args, named, 1, "case_sensitive", false))
  local key, seen, out = getter(argument(args, named, 2, "attribute")), values.dict(), {}
  for i = 1, n do
    local v = items[i]
    local k = folded(key(v), case)
    if values.dict_get(seen, values.hashable(k)) == nil then
      values.dict_set(seen, k, true)
      out[#out + 1] = v
    end
  end
  run.spend(n)
  return generator(out)
end)

filters.groupby = list_filter(function(run, items, n, args, named)
  local case = truth(argument(args, named, 3, "case_sensitive", false))
  local default = argument(args, named, 2, "default")
  if default == NONE then default = nil end
  local key = getter(argument(args, named, 1, "attribute"), default)
  local rows = sorted(run, items, n, function(v) return folded(key(v), case) end)
  local out, last = {}, nil
  for i = 1, n do
    local k = key(rows[i])
    if i == 1 or not values.equal(folded(k, case), last) then
      local group = values.list {}
      local t = values.tuple { k, group }
      t.attributes = { grouper = k, list = group }
      out[#out + 1], last = t, folded(k, case)
    end
    local group = out[#out][2]
    group.n = group.n + 1
    group[group.n] = rows[i]
  end
  return values.list(out)
end)

filters.batch = list_filter(function(_, items, n, args, named)
  local size, fill = values.number_of(args[1]), argument(args, named, 2, "fill_with", NONE)
  if size < 1 then fail "ValueError: batch: a size from 1 is wanted" end
  local out = {}
  for i = 1, n, size do
    local row = table.move(items, i, math.min(i + size - 1, n), 1, {})
    while fill ~= NONE and #row < math.min(size, 10000) do row[#row + 1] = fill end
    out[#out + 1] = values.list(row)
  end
  return generator(out)
end)

filters.slice = list_filter(function(run, items, n, args, named)
  local count, fill = values.number_of(args[1]), argument(args, named, 2, "fill_with", NONE)
  if count < 1 then fail "ValueError: slice: a number from 1 is wanted" end
  run.spend(count)
  local each, more, at, out = n // count, n % count, 1, {}
  for i = 1, count do
    local size = each + (i <= more and 1 or 0)
    local row = table.move(items, at, at + size - 1, 1, {})
    if fill ~= NONE and i > more then row[#row + 1] = fill end
    out[i], at = values.list(row), at + size
  end
  return generator(out)
end)

-- A filter or an attribute for each item.
filters.map = list_filter(function(run, items, n, args, named)
  local out = {}
  if args.n == 0 and named.attribute ~= nil then
    for k in pairs(named) do
      if k ~= "attribute" and k ~= "default" then
        fail("FilterArgumentError: Unexpected keyword argument %s", values.repr(k))
      end
    end
    local default = named.default
    if default == NONE then default = nil end
    local key = getter(named.attribute, default)
    for i = 1, n do out[i] = key(items[i]) end
    return generator(out)
  end
  local f = filters[args[1]]
  if not f then fail("TemplateRuntimeError: No filter named %s.", values.repr(args[1] or NONE)) end
  local rest = table.move(args, 2, args.n, 1, { n = args.n - 1 })
  for i = 1, n do
    run.spend(1)
    out[i] = f(run, items[i], rest, named)
  end
  return generator(out)
end, true)

local function selecting(wanted, attribute)
  return list_filter(function(run, items, n, args, named)
    local key, at = nil, 1
    if attribute then
      if args.n == 0 then fail "FilterArgumentError: Missing parameter for attribute name" end
      key, at = getter(args[1]), 2
    end
    local test = args[at] ~= nil and (tests[args[at]] or
      fail("TemplateRuntimeError: No test named %s.", values.repr(args[at])))
    local rest = table.move(args, at + 1, args.n, 1, { n = math.max(0, args.n - at) })
    local out = {}
    for i = 1, n do
      run.spend(1)
      local v = items[i]
      if key then v = key(v) end
      local ok
      if test then ok = truth(test(run, v, rest, named)) else ok = truth(v) end
      if ok == wanted then out[#out + 1] = items[i] end
    end
    return generator(out)
  end, true)
end
filters.select, filters.reject = selecting(true, false), selecting(false, false)
filters.selectattr, filters.rejectattr = selecting(true, true), selecting(false, true)

-- ---- values ---------------------------------------------------------------------------------------------------------

function filters.default(_, v, args, named)
  local fallback = argument(args, named, 1, "default_value", "")
  local also_false = truth(argument(args, named, 2, "boolean", false))
  if values.is_undefined(v) or also_false and not truth(v) then return fallback end
  return v
end
filters.d = filters.default

function filters.length(_, v) return values.length(v) end
filters.count = filters.length
function filters.string(_, v) return str(v) end
function filters.safe(_, v) return str(v) end
local entities = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&#34;", ["'"] = "&#39;" }
function filters.escape(_, v)
  return (str(v):gsub("[&<>\"']", entities))
end
filters.e, filters.forceescape = filters.escape, filters.escape

filters["int"] = function(_, v, args, named)
  local default = argument(args, named, 1, "default", 0)
  local x = values.number_of(v)
  if math.type(x) == "integer" or x and type(v) == "table" then return type(v) == "table" and v or x end
  if not x and type(v) == "string" then
    local n = numerals.int(v, values.number_of(argument(args, named, 2, "base", 10)))
    if n then return n end
    x = numerals.float(v)
  end
  if not x or x ~= x or x == math.huge or x == -math.huge then return default end
  return math.tointeger(x >= 0 and math.floor(x) or math.ceil(x))
    or fail "OverflowError: an integer of more than 64 bits"
end

function filters.float(_, v, args, named)
  local x = values.number_of(v) or type(v) == "string" and numerals.float(v)
  if x then return x + 0.0 end
  return argument(args, named, 1, "default", 0.0)
end

function filters.abs(_, v)
  local x = values.number_of(v)
  if not x then fail("TypeError: bad operand type for abs(): '%s'", values.type_of(v)) end
  return math.abs(x)
end

function filters.round(_, v, args, named)
  local x = values.number_of(v)
  local digits, method = argument(args, named, 1, "precision", 0), argument(args, named, 2, "method", "common")
  if not x then fail("TypeError: type %s doesn't define __round__ method", values.type_of(v)) end
  if digits == NONE and method == "common" then
    return math.type(x) == "integer" and x or math.tointeger(tonumber(("%.0f"):format(x)))
      or fail "OverflowError: an integer of more than 64 bits"
  end
  digits = whole("round", digits)
  if method ~= "common" and method ~= "ceil" and method ~= "floor" then
    fail "FilterArgumentError: method must be common, ceil or floor"
  end
  if method == "common" then
    if math.type(x) == "integer" and digits >= 0 then return x end
    if math.abs(digits) > 300 then return x + 0.0 end
    if digits >= 0 then return tonumber(("%." .. math.min(digits, 99) .. "f"):format(x)) + 0.0 end
    local rounded = tonumber(("%.0f"):format(x / 10.0 ^ -digits)) * 10.0 ^ -digits
    return math.type(x) == "integer" and math.tointeger(rounded) or rounded
  end
  local scale = 10.0 ^ digits
  return (method == "ceil" and math.ceil(x * scale) or math.floor(x * scale)) / scale
end

function filters.tojson(run, v, args, named)
  local indent, sep = argument(args, named, 2, "indent", NONE), argument(args, named, 3, "separators", NONE)
  local comma, colon
  if indent == NONE then
    indent = nil
  elseif type(indent) ~= "string" then
    indent = (" "):rep(math.min(math.max(0, whole("tojson", indent)), 100))
  end
  if sep ~= NONE then
    local two, n = values.items(sep)
    if n ~= 2 then fail("ValueError: tojson: separators must be two texts, got %d", n) end
    comma, colon = methods.text("tojson", two[1]), methods.text("tojson", two[2])
  end
  return json.encode(v, { indent = indent, ascii = truth(argument(args, named, 1, "ensure_ascii", false)),
    sorted = truth(argument(args, named, 4, "sort_keys", false)), spend = run.spend, comma = comma, colon = colon })
end

function filters.items(run, v)
  if values.is_undefined(v) then return generator {} end
  if not values.is_dict(v) then fail "TypeError: Can only get item pairs from a mapping." end
  run.spend(v.n)
  return generator(methods.pairs_of(v))
end

function filters.dictsort(run, v, args, named)
  if not values.is_dict(v) then fail "TypeError: dictsort wants a mapping" end
  local case, by = truth(argument(args, named, 1, "case_sensitive", false)), argument(args, named, 2, "by", "key")
  local reverse = truth(argument(args, named, 3, "reverse", false))
  if by ~= "key" and by ~= "value" then
    fail 'FilterArgumentError: You can only sort by either "key" or "value"'
  end
  local list = methods.pairs_of(v)
  local at = by == "value" and 2 or 1
  return values.list(sorted(run, list, list.n, function(p) return folded(p[at], case) end, reverse), list.n)
end

-- An attribute, never an item: values of templates have none but methods.
function filters.attr(_, v, args)
  local name = methods.text("attr", args[1])
  if name:sub(1, 1) ~= "_" then
    if type(v) == "table" and v.attributes and v.attributes[name] ~= nil then return v.attributes[name] end
    local method = methods.find(v, name)
    if method then return method end
  end
  return values.undefined(("'%s object' has no attribute '%s'"):format(values.type_of(v), name))
end

filters.random = list_filter(function(_, items, n)
  if n == 0 then return values.undefined "No random item, sequence was empty." end
  return items[math.random(n)]
end)

-- ---- texts ----------------------------------------------------------------------------------------------------------

function filters.upper(_, v) return methods.upper(str(v)) end
function filters.lower(_, v) return methods.lower(str(v)) end
function filters.capitalize(_, v) return methods.capitalize(str(v)) end
-- Words begin behind blanks, hyphens and brackets here.
function filters.title(_, v)
  local out, word = {}, nil
  local function close()
    if word then out[#out + 1] = methods.upper(word[1]) .. methods.lower(table.concat(word, "", 2)) end
    word = nil
  end
  for _, c in ipairs((values.characters(str(v)))) do
    if methods.is_space(c) or c:find "^[-({%[<]$" then
      close()
      out[#out + 1] = c
    else
      word = word or {}
      word[#word + 1] = c
    end
  end
  close()
  return table.concat(out)
end
function filters.trim(_, v, args, named) return methods.strip(str(v), argument(args, named, 1, "chars"), true, true) end
function filters.replace(run, v, args, named)
  local most = values.number_of(argument(args, named, 3, "count", NONE)) -- nil: all
  return methods.replace(run, str(v), str(args[1]), str(args[2]), most)
end
function filters.wordcount(_, v)
  local n, inside = 0, false
  for _, c in ipairs((values.characters(str(v)))) do
    local now = c == "_" or characters.of(c).alphanumeric
    if now and not inside then n = n + 1 end
    inside = now
  end
  return n
end
function filters.format(run, v, args, named)
  if args.n > 0 and next(named) then
    fail "FilterArgumentError: can't handle positional and keyword arguments at the same time"
  end
  if next(named) == nil then return methods.percent(run, str(v), values.tuple(args)) end
  local d = values.dict()
  for k, x in pairs(named) do values.dict_set(d, k, x) end
  return methods.percent(run, str(v), d)
end
function filters.center(run, v, args, named)
  return methods.pad(run, str(v), values.number_of(argument(args, named, 1, "width", 80)), " ", "both")
end
function filters.striptags(_, v)
  return (str(v):gsub("<!%-%-.-%-%->", ""):gsub("<[^>]*>", ""):gsub("%s+", " "):match "^ ?(.-) ?$")
end
function filters.urlencode(run, v)
  local function quote(s, keep)
    return (s:gsub("[^%w_.~" .. keep .. "-]", function(c) return ("%%%02X"):format(c:byte()) end))
  end
  local one = type(v) ~= "table" or v == NONE or v.kind == "big"
  if one then return quote(str(v), "/") end
  local rows, n = values.items(values.is_dict(v) and methods.pairs_of(v) or v)
  local out = {}
  run.spend(n)
  for i = 1, n do
    local pair, two = values.items(rows[i])
    if two ~= 2 then fail "ValueError: urlencode: pairs are wanted" end
    out[i] = (quote(str(pair[1]), "") .. "=" .. quote(str(pair[2]), "")):gsub("%%20", "+")
  end
  return table.concat(out, "&")
end

function filters.indent(run, v, args, named)
  local width = argument(args, named, 1, "width", 4)
  local first = truth(argument(args, named, 2, "first", false))
  local blank = truth(argument(args, named, 3, "blank", false))
  local pad = type(width) == "string" and width or (" "):rep(math.min(math.max(0, whole("indent", width)), 1000))
  run.spend(#v // 8)
  local out = methods.lines(v .. "\n") -- so that what ends the text ends a line
  for i, line in ipairs(out) do
    if i == 1 and first or i > 1 and (line ~= "" or blank) then out[i] = pad .. line end
    run.spend(1 + #pad // 16)
  end
  return table.concat(out, "\n")
end

function filters.truncate(_, v, args, named)
  local length = values.number_of(argument(args, named, 1, "length", 255))
  local ending = argument(args, named, 3, "end", "...")
  local hard, leeway = truth(argument(args, named, 2, "killwords", false)), argument(args, named, 4, "leeway", NONE)
  leeway = leeway == NONE and 5 or values.number_of(leeway)
  if length < values.length(ending) then fail("AssertionError: expected length >= %d", values.length(ending)) end
  if leeway < 0 then fail("AssertionError: expected leeway >= 0, got %d", leeway) end
  if values.length(v) <= length + leeway then return v end
  local all = values.characters(methods.text("truncate", v))
  local head = table.concat(all, "", 1, length - values.length(ending))
  if not hard then head = head:match "^(.*) [^ ]*$" or head end
  return head .. ending
end

function filters.wordwrap(run, v, args, named)
  local width = values.number_of(argument(args, named, 1, "width", 79))
  local sep = argument(args, named, 3, "wrapstring", NONE)
  local long = truth(argument(args, named, 2, "break_long_words", true))
  local hyphens = truth(argument(args, named, 4, "break_on_hyphens", true))
  if width < 1 then fail("ValueError: invalid width %d (must be > 0)", width) end
  sep = sep == NONE and "\n" or sep
  local out = {}
  for i, line in ipairs(methods.lines(v)) do
    out[i] = table.concat(wrapped(run, line, width, long, hyphens), sep)
    run.spend(1 + #out[i] // 8)
  end
  return table.concat(out, sep)
end

function filters.filesizeformat() fail "the filter 'filesizeformat' is not supported" end

-- ---- tests ----------------------------------------------------------------------------------------------------------

local function integer(v)
  local n = math.tointeger(values.number_of(v))
  if not n then fail("TypeError: an integer is wanted, not '%s'", values.type_of(v)) end
  return n
end

function tests.defined(_, v) return not values.is_undefined(v) end
function tests.undefined(_, v) return values.is_undefined(v) end
function tests.none(_, v) return v == NONE end
tests["true"] = function(_, v) return v == true end
tests["false"] = function(_, v) return v == false end
function tests.boolean(_, v) return type(v) == "boolean" end
function tests.integer(_, v) return math.type(v) == "integer" or values.type_of(v) == "int" end
function tests.float(_, v) return math.type(v) == "float" end
function tests.number(_, v) return values.number_of(v) ~= nil end
function tests.string(_, v) return type(v) == "string" end
function tests.mapping(_, v) return type(v) == "table" and v.kind == "dict" end
function tests.iterable(_, v)
  return type(v) == "string" or values.is_sequence(v) or values.is_dict(v) or values.is_undefined(v)
end
function tests.sequence(_, v)
  if type(v) == "string" or values.is_undefined(v) then return true end
  return values.is_subscripted(v) or type(v) == "table" and v.kind == "dict"
end
function tests.callable(_, v) return type(v) == "table" and (v.call ~= nil or values.is_undefined(v)) end
function tests.odd(_, v) return integer(v) % 2 == 1 end
function tests.even(_, v) return integer(v) % 2 == 0 end
function tests.divisibleby(_, v, args)
  local by = integer(args[1])
  if by == 0 then fail "ZeroDivisionError: integer modulo by zero" end
  return integer(v) % by == 0
end
function tests.lower(_, v) return methods.is_lower(str(v)) end
function tests.upper(_, v) return methods.is_upper(str(v)) end
function tests.sameas(_, v, args) return rawequal(v, args[1]) and math.type(v) == math.type(args[1]) end
function tests.escaped() return false end
tests["in"] = function(_, v, args) return ops.contains(args[1], v) end
tests.filter = function(_, v) return filters[v] ~= nil end
tests.test = function(_, v) return tests[v] ~= nil end
for name, op in pairs { eq = "==", equalto = "==", ["=="] = "==", ne = "!=", ["!="] = "!=", lt = "<", lessthan = "<",
  ["<"] = "<", gt = ">", greaterthan = ">", [">"] = ">", le = "<=", ["<="] = "<=", ge = ">=", [">="] = ">=" } do
  local compare = ops.compare[op]
  tests[name] = function(_, v, args) return compare(v, args[1] == nil and NONE or args[1]) end
end

-- select("test", …), map("filter", …) and format pass on what they get.
signed(filters, { list = "", sort = "reverse:int case_sensitive attribute", first = "", last = "",
  min = "case_sensitive attribute", max = "case_sensitive attribute", sum = "attribute start", join = "d attribute",
  reverse = "", unique = "case_sensitive attribute", groupby = "!attribute default case_sensitive",
  batch = "!linecount:int fill_with", slice = "!slices:int fill_with", map = "*", select = "*", reject = "*",
  selectattr = "*", rejectattr = "*", default = "default_value boolean", d = "default_value boolean", length = "",
  count = "", string = "", safe = "", escape = "", e = "", forceescape = "", int = "=defined default base",
  float = "=defined default", abs = "", round = "precision method", items = "",
  tojson = "ensure_ascii indent separators sort_keys", dictsort = "case_sensitive by reverse:int",
  attr = "=defined !name:str", random = "", upper = "", lower = "", capitalize = "", title = "", trim = "chars:str?",
  replace = "!old !new count:int?", wordcount = "", format = "*", center = "width:int", striptags = "", urlencode = "",
  indent = "=str width first blank", truncate = "length:int killwords end:str leeway:int?",
  wordwrap = "=str width:int break_long_words wrapstring:str? break_on_hyphens", filesizeformat = "binary" })

local others = {} -- tests with one argument; the others have none
for name in ("divisibleby sameas in eq equalto == ne != lt lessthan < gt greaterthan > le <= ge >="):gmatch "%S+" do
  others[name] = "!other /"
end
others.filter, others.test = "=hashable", "=hashable"
signed(tests, setmetatable(others, { __index = function() return "" end }))

return { filters = filters, tests = tests }
