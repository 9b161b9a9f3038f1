-- SPDX-License-Identifier: MIT
--- Methods of strings, lists and dicts in templates. Those that change a value are refused, as in transformers'
-- sandbox.
-- @module perilune.jinja.methods
local characters = require "perilune.jinja.characters"
local signed = require "perilune.jinja.signatures"
local values = require "perilune.jinja.values"

local M = {}
local NONE, fail, str = values.NONE, values.fail, values.str

-- ---- arguments ------------------------------------------------------------------------------------------------------

local function text(name, v)
  if type(v) ~= "string" then fail("TypeError: %s: a string is wanted, not '%s'", name, values.type_of(v)) end
  return v
end
local function whole(name, v)
  local n = math.tointeger(values.number_of(v))
  if not n then fail("TypeError: %s: an integer is wanted, not '%s'", name, values.type_of(v)) end
  return n
end
M.text, M.whole = text, whole

-- Argument i, or the one with the name; `default` where it is absent.
local function argument(args, named, i, name, default)
  local v
  if i <= args.n then v = args[i] else v = named[name] end
  if v == nil then return default end
  return v
end
M.argument = argument

-- ---- characters ----------------------------------------------------------------------------------------------------

local upper, lower, title = characters.upper, characters.lower, characters.title
M.upper, M.lower, M.title, M.capitalize = upper, lower, title, characters.capitalize
M.is_upper, M.is_lower = characters.is_upper, characters.is_lower
local function are(what) return function(_, s) return characters.all(s, what) end end

-- ---- strip, split, find --------------------------------------------------------------------------------------------

-- Whether a character is stripped: one of `set`, or a space.
local function stripper(set)
  if set == nil or set == NONE then
    return function(c)
      return c:find "^[%s\x1C-\x1F]$" ~= nil or c == "\u{A0}" or c == "\u{85}" or c == "\u{3000}" or c == "\u{1680}"
        or c:find "^\xE2\x80[\x80-\x8A\xA8\xA9\xAF]$" ~= nil or c == "\u{205F}"
    end
  end
  local has = {}
  for _, c in ipairs((values.characters(text("strip", set)))) do has[c] = true end
  return function(c) return has[c] end
end

M.is_space = stripper(nil)

local function strip(s, set, left, right)
  local is, all, n = stripper(set), values.characters(s)
  local from, to = 1, n
  while left and from <= to and is(all[from]) do from = from + 1 end
  while right and to >= from and is(all[to]) do to = to - 1 end
  return table.concat(all, "", from, to)
end
M.strip = strip

-- { first byte, word, byte behind it } of what is between spaces.
local function words_of(s)
  local words = {}
  if not s:find "[\x80-\xFF]" then
    for from, word, to in s:gmatch "()([^%s\x1C-\x1F]+)()" do words[#words + 1] = { from, word, to } end
    return words
  end
  local is, at, from = stripper(nil), 1, nil
  for _, c in ipairs((values.characters(s))) do
    local space = is(c)
    if space and from then words[#words + 1] = { from, s:sub(from, at - 1), at } end
    if space then from = nil elseif not from then from = at end
    at = at + #c
  end
  if from then words[#words + 1] = { from, s:sub(from), #s + 1 } end
  return words
end

local function split(s, sep, most, from_right)
  local list, n = {}, 0
  most = most and most >= 0 and most or math.huge
  if sep == nil or sep == NONE then
    local words = words_of(s)
    if #words <= most then
      for i, w in ipairs(words) do list[i] = w[2] end
    elseif from_right then -- the blanks before what is left stay, as those behind it do below
      local k = #words - most
      list[1] = s:sub(1, words[k][3] - 1)
      for i = k + 1, #words do list[#list + 1] = words[i][2] end
    else
      for i = 1, most do list[i] = words[i][2] end
      list[#list + 1] = s:sub(words[most + 1][1])
    end
    return values.list(list)
  end
  if text("split", sep) == "" then fail "ValueError: empty separator" end
  local places, at = {}, 1
  while true do
    local i = s:find(sep, at, true)
    if not i then break end
    places[#places + 1] = i
    at = i + #sep
  end
  local first, last = 1, math.min(#places, most)
  if from_right then first, last = math.max(1, #places - most + 1), #places end
  at = 1
  for i = first, last do
    n = n + 1
    list[n] = s:sub(at, places[i] - 1)
    at = places[i] + #sep
  end
  list[n + 1] = s:sub(at)
  return values.list(list, n + 1)
end

local function replace(run, s, old, new, most)
  local out, at, count = {}, 1, 0
  most = most and most >= 0 and most or math.huge
  if old == "" then
    local all, n = values.characters(s)
    run.spend(math.min(n + 1, most) * (1 + #new // 16) // 1)
    for i = 1, n + 1 do
      if count < most then
        out[#out + 1] = new
        count = count + 1
      end
      out[#out + 1] = all[i]
    end
  else
    while count < most do
      local i = s:find(old, at, true)
      if not i then break end
      out[#out + 1] = s:sub(at, i - 1)
      out[#out + 1] = new
      at, count = i + #old, count + 1
      run.spend(1 + #new // 16)
    end
    out[#out + 1] = s:sub(at)
  end
  run.spend(#s // 16 + #new * count // 16)
  return table.concat(out)
end
M.replace = replace

-- The place of a text, in characters from 0, or -1.
local function find(s, what, from_right)
  local i = s:find(what, 1, true)
  if from_right then
    local at = i
    while at do
      i, at = at, s:find(what, at + 1, true)
    end
  end
  if not i then return -1 end
  return (utf8.len(s, 1, i - 1) or i - 1)
end

-- s[start:end] for the methods that look for something there, and where it begins; nil where it begins behind the end.
local function window(name, s, args)
  if args.n < 2 then return s, 0 end
  local all, n = values.characters(s)
  local function place(v, default)
    if v == nil or v == NONE then return default end
    local i = whole(name, v)
    return math.max(0, i < 0 and i + n or i)
  end
  local from, to = place(args[2], 0), math.min(place(args[3], n), n)
  if from > n then return nil, from end
  return table.concat(all, "", from + 1, to), from
end

local function pad(run, s, width, fill, left)
  local n = math.max(0, width - values.length(s))
  run.spend(n // 16)
  if left == "both" then
    local before = n // 2 + (n & width & 1)
    return fill:rep(before) .. s .. fill:rep(n - before)
  end
  return left and fill:rep(n) .. s or s .. fill:rep(n)
end
M.pad = pad

-- ---- formats -------------------------------------------------------------------------------------------------------

local MAX_WIDTH = 1000

-- A number or text by the part of a format behind the colon: [[fill]align][sign][0][width][,][.precision][type].
local function format_value(run, v, spec)
  local fill, align, rest = spec:match "^(.)([<>=^])(.*)$"
  if not fill then
    fill, align, rest = " ", spec:match "^([<>=^]?)(.*)$"
  end
  local sign, zero, width, comma, precision, kind = rest:match "^([-+ ]?)(0?)(%d*)(,?)%.?(%d*)([%a%%]?)$"
  if not sign then fail("ValueError: Invalid format specifier '%s'", spec) end
  width, precision = tonumber(width) or 0, tonumber(precision)
  if width > MAX_WIDTH or (precision or 0) > 99 then fail("ValueError: a width of more than %d", MAX_WIDTH) end
  local s, x = nil, values.number_of(v)
  if spec ~= "" and not x and type(v) ~= "string" then
    fail("TypeError: unsupported format string passed to %s.__format__", values.type_of(v))
  end
  if type(v) == "number" or x and kind ~= "" and kind ~= "s" then
    if kind == "d" or kind == "" and math.type(x) == "integer" then
      if not math.tointeger(x) then fail "ValueError: Unknown format code 'd' for object of type 'float'" end
      s = ("%d"):format(math.tointeger(x))
    elseif kind == "x" or kind == "X" or kind == "o" then
      s = ("%" .. kind):format(math.tointeger(x) or 0)
    elseif kind ~= "" and ("fFeEg"):find(kind, 1, true) then
      s = ("%." .. (precision or 6) .. kind):format(x)
    elseif kind == "%" then
      s = ("%." .. (precision or 6) .. "f%%"):format(x * 100)
    elseif kind == "" then
      s = precision and ("%." .. precision .. "g"):format(x) or str(v)
    else
      fail("ValueError: Unknown format code '%s'", kind)
    end
    if comma == "," then
      local head, tail = s:match "^(%-?%d+)(.*)$"
      head = head:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^(%-?),", "%1")
      s = head .. tail
    end
    if (sign == "+" or sign == " ") and s:sub(1, 1) ~= "-" then s = sign .. s end
    if zero == "0" and align == "" then fill, align = "0", "=" end
    if align == "=" then
      local mark, digits = s:match "^([-+ ]?)(.*)$"
      return mark .. pad(run, digits, width - #mark, fill, true)
    end
    if align == "" then align = ">" end
  else
    if kind ~= "" and kind ~= "s" then
      fail("ValueError: Unknown format code '%s' for object of type '%s'", kind, values.type_of(v))
    end
    s = str(v)
    if precision then s = table.concat((values.characters(s)), "", 1, math.min(precision, values.length(s))) end
  end
  if align == "^" then
    local n = math.max(0, width - values.length(s))
    return fill:rep(n // 2) .. s .. fill:rep(n - n // 2)
  end
  return pad(run, s, width, fill, align == ">")
end

-- "{} {0.name!r:>5}".format(…)
local function format(run, s, args, named)
  local out, at, auto = {}, 1, 0
  while at <= #s do
    local i = s:find("[{}]", at)
    out[#out + 1] = s:sub(at, (i or #s + 1) - 1)
    if not i then break end
    local c = s:sub(i, i)
    if s:sub(i + 1, i + 1) == c then
      out[#out + 1], at = c, i + 2
    else
      local field, conversion, spec, after = s:match("^{([%w_]*)!?([rs]?):?([^{}]*)}()", i)
      if not field then fail "ValueError: the format string is not supported" end
      local v
      if field == "" then
        v, auto = args[auto + 1], auto + 1
      elseif field:find "^%d+$" then
        v = args[tonumber(field) + 1]
      else
        v = named[field]
      end
      if v == nil then fail("IndexError: no argument for {%s}", field) end
      if conversion == "r" then v = values.repr(v) elseif conversion == "s" then v = str(v) end
      out[#out + 1] = format_value(run, v, spec)
      at = after
    end
    run.spend(1)
  end
  return table.concat(out)
end

--- "%s of %d" % (a, b)
function M.percent(run, s, v)
  local args = type(v) == "table" and v.kind == "tuple" and v or { v, n = 1 }
  local k = 0
  local out, at = {}, 1
  local function item_text(name, flags, width, precision, kind)
    if kind == "%" then return "%" end
    local item
    if name then
      item = values.is_dict(v) and values.dict_get(v, name)
    else
      k = k + 1
      item = args[k]
    end
    if item == nil then fail "TypeError: not enough arguments for format string" end
    if (tonumber(width) or 0) > MAX_WIDTH or #precision > 3 then
      fail("ValueError: a width of more than %d", MAX_WIDTH)
    end
    run.spend(1)
    if kind == "s" or kind == "r" then
      local text_ = kind == "s" and str(item) or values.repr(item)
      local most = tonumber(precision:match "%d+")
      if most then text_ = table.concat((values.characters(text_)), "", 1, math.min(most, values.length(text_))) end
      return pad(run, text_, tonumber(width) or 0, " ", not flags:find("-", 1, true))
    end
    local x = values.number_of(item)
    if not x then fail("TypeError: %%%s format: a real number is required, not %s", kind, values.type_of(item)) end
    if kind == "d" or kind == "i" or kind == "u" then
      x = x >= 0 and math.floor(x) or math.ceil(x)
      return ("%" .. flags .. width .. "d"):format(math.tointeger(x) or 0)
    end
    if not ("xXofFeEgG"):find(kind, 1, true) then fail("ValueError: unsupported format character '%s'", kind) end
    if ("xXo"):find(kind, 1, true) then x = math.tointeger(x) or 0 end
    return ("%" .. flags .. width .. precision .. kind):format(x)
  end
  while true do
    local i = s:find("%", at, true)
    out[#out + 1] = s:sub(at, (i or #s + 1) - 1)
    if not i then break end
    local name, after = s:match("^%(([^()]*)%)()", i + 1)
    local flags, width, precision, kind, rest = s:match("^([-+ 0#]*)(%d*)(%.?%d*)([%a%%])()", after or i + 1)
    if not flags or #flags > 5 then fail "ValueError: incomplete format" end
    out[#out + 1] = item_text(name, flags, width, precision, kind)
    at = rest
  end
  if k < args.n and not values.is_dict(v) and not (type(v) == "table" and v.kind == "list") then
    fail "TypeError: not all arguments converted during string formatting"
  end
  return table.concat(out)
end

-- ---- the tables ----------------------------------------------------------------------------------------------------

local function all_are(s, test)
  if s == "" then return false end
  for c in s:gmatch(utf8.len(s) and utf8.charpattern or ".") do if not test(c) then return false end end
  return true
end

local function affix(s, v, at_end)
  local list = type(v) == "table" and v.kind == "tuple" and v or { v, n = 1 }
  for i = 1, list.n do
    local a = text("startswith", list[i])
    if s and (at_end and (a == "" or s:sub(-#a) == a) or not at_end and s:sub(1, #a) == a) then return true end
  end
  return false
end

local function parts_of(s, sep, right)
  local i
  if sep == "" then fail "ValueError: empty separator" end
  local at = s:find(sep, 1, true)
  while at do
    i = at
    at = right and s:find(sep, at + 1, true) or nil
  end
  if not i then return values.tuple(right and { "", "", s } or { s, "", "" }) end
  return values.tuple { s:sub(1, i - 1), sep, s:sub(i + #sep) }
end

-- Where args[1] is in s, between args[2] and args[3]; -1 for nowhere.
local function found(name, s, args, from_right)
  local part, from = window(name, s, args)
  local i = part and find(part, args[1], from_right) or -1
  return i >= 0 and i + from or -1
end

local function expanded(s, size)
  local column = 0
  return (s:gsub(utf8.len(s) and utf8.charpattern or ".", function(c)
    if c == "\n" or c == "\r" then column = 0 return c end
    if c ~= "\t" then column = column + 1 return c end
    local n = size > 0 and size - column % size or 0
    column = column + n
    return (" "):rep(n)
  end))
end

-- The lines of a text, as Python's splitlines cuts it, with or without what ends them.
local endings = { ["\n"] = true, ["\r"] = true, ["\r\n"] = true, ["\v"] = true, ["\f"] = true, ["\x1C"] = true,
  ["\x1D"] = true, ["\x1E"] = true, ["\u{85}"] = true, ["\u{2028}"] = true, ["\u{2029}"] = true }
local function lines(s, keep)
  local list, from, at = {}, 1, 1
  while true do
    local i = s:find("[\n\v\f\r\x1C-\x1E\xC2\xE2]", at)
    if not i then break end
    local ending = s:match("^\r\n", i) or s:match("^\xC2\x85", i) or s:match("^\xE2\x80[\xA8\xA9]", i)
      or s:sub(i, i)
    at = i + #ending
    if endings[ending] then
      list[#list + 1] = s:sub(from, (keep and at or i) - 1)
      from = at
    end
  end
  if from <= #s then list[#list + 1] = s:sub(from) end
  return list
end
M.lines = lines

-- s in the middle, or at an end, of `width` characters.
local function padded(name, left)
  return function(run, s, args)
    local fill = args[2] or " "
    if values.length(fill) ~= 1 then
      fail("TypeError: %s: The fill character must be exactly one character long", name)
    end
    return pad(run, s, values.number_of(args[1]), fill, left)
  end
end

local strings = {
  upper = function(_, s) return upper(s) end,
  lower = function(_, s) return lower(s) end,
  casefold = function(_, s) return characters.casefold(s) end,
  title = function(_, s) return title(s) end,
  capitalize = function(_, s) return characters.capitalize(s) end,
  swapcase = function(_, s) return characters.swapcase(s) end,
  strip = function(_, s, args) return strip(s, args[1], true, true) end,
  lstrip = function(_, s, args) return strip(s, args[1], true, false) end,
  rstrip = function(_, s, args) return strip(s, args[1], false, true) end,
  split = function(run, s, args, named)
    run.spend(#s // 8)
    return split(s, argument(args, named, 1, "sep"), values.number_of(argument(args, named, 2, "maxsplit", -1)))
  end,
  rsplit = function(run, s, args, named)
    run.spend(#s // 8)
    return split(s, argument(args, named, 1, "sep"), values.number_of(argument(args, named, 2, "maxsplit", -1)), true)
  end,
  splitlines = function(_, s, args, named)
    return values.list((lines(s, values.truth(argument(args, named, 1, "keepends", false)))))
  end,
  replace = function(run, s, args, named)
    return replace(run, s, args[1], args[2], values.number_of(argument(args, named, 3, "count", -1)))
  end,
  startswith = function(_, s, args)
    return affix(window("startswith", s, args), args[1], false)
  end,
  endswith = function(_, s, args)
    return affix(window("endswith", s, args), args[1], true)
  end,
  find = function(_, s, args) return found("find", s, args) end,
  rfind = function(_, s, args) return found("rfind", s, args, true) end,
  index = function(_, s, args)
    local i = found("index", s, args)
    return i >= 0 and i or fail "ValueError: substring not found"
  end,
  count = function(_, s, args)
    local what = args[1]
    s = window("count", s, args)
    if not s then return 0 end
    if what == "" then return values.length(s) + 1 end
    local n, at = 0, s:find(what, 1, true)
    while at do
      n, at = n + 1, s:find(what, at + #what, true)
    end
    return n
  end,
  join = function(run, s, args)
    local all, n = values.items(args[1])
    local out = {}
    run.spend(n * (1 + #s // 16))
    for i = 1, n do
      out[i] = text("join", all[i])
      run.spend(#out[i] // 16)
    end
    local joined = table.concat(out, s)
    run.spend(n + #joined // 16)
    return joined
  end,
  format = function(run, s, args, named) return format(run, s, args, named) end,
  removeprefix = function(_, s, args)
    return affix(s, args[1], false) and s:sub(#args[1] + 1) or s
  end,
  removesuffix = function(_, s, args)
    return args[1] ~= "" and affix(s, args[1], true) and s:sub(1, -#args[1] - 1) or s
  end,
  partition = function(_, s, args) return parts_of(s, args[1], false) end,
  rpartition = function(_, s, args) return parts_of(s, args[1], true) end,
  zfill = function(run, s, args)
    local sign, rest = s:match "^([-+]?)(.*)$"
    return sign .. pad(run, rest, values.number_of(args[1]) - #sign, "0", true)
  end,
  ljust = padded("ljust", false),
  rjust = padded("rjust", true),
  center = padded("center", "both"),
  isdigit = are "digit",
  isnumeric = are "number",
  isdecimal = are "decimal",
  isalpha = are "letter",
  isalnum = are "alphanumeric",
  isprintable = function(_, s) return s == "" or characters.all(s, "printable") end,
  isascii = function(_, s) return not s:find "[\x80-\xFF]" end,
  isspace = function(_, s) return all_are(s, stripper(nil)) end,
  isupper = function(_, s) return characters.is_upper(s) end,
  islower = function(_, s) return characters.is_lower(s) end,
  istitle = function(_, s) return characters.is_title(s) end,
  encode = function() fail "str.encode: bytes are not supported" end,
  expandtabs = function(run, s, args, named)
    local size = values.number_of(argument(args, named, 1, "tabsize", 8))
    if size > 1000 then fail "ValueError: expandtabs: a tabsize of more than 1000" end
    run.spend(#s + select(2, s:gsub("\t", "")) * math.max(size, 0))
    return expanded(s, size)
  end,
}
local within, part = "!sub start end /", "!sub:str start end /"
local nothing = { __index = function() return "" end }
signed(strings, setmetatable({ strip = "chars:str? /", lstrip = "chars:str? /", rstrip = "chars:str? /",
  split = "sep:str? maxsplit:int", rsplit = "sep:str? maxsplit:int", splitlines = "keepends:int",
  replace = "!old:str !new:str count:int", startswith = within, endswith = within, find = part, rfind = part,
  index = part, count = part, join = "!iterable /", format = "*", removeprefix = "!prefix:str /",
  removesuffix = "!suffix:str /", partition = "!sep:str /", rpartition = "!sep:str /", zfill = "!width:int /",
  ljust = "!width:int fillchar:str /", rjust = "!width:int fillchar:str /", center = "!width:int fillchar:str /",
  encode = "encoding:str errors:str", expandtabs = "tabsize:int" }, nothing))

local lists = {
  index = function(_, v, args)
    for i = 1, v.n do if values.equal(v[i], args[1]) then return i - 1 end end
    fail("ValueError: %s is not in list", values.repr(args[1]))
  end,
  count = function(_, v, args)
    local n = 0
    for i = 1, v.n do if values.equal(v[i], args[1]) then n = n + 1 end end
    return n
  end,
  copy = function(run, v)
    run.spend(v.n)
    return values.list(table.move(v, 1, v.n, 1, {}), v.n)
  end,
}

local function pairs_of(d)
  local list = {}
  for i, k in ipairs(d.keys) do list[i] = values.tuple { k, values.dict_get(d, k) } end
  return values.list(list, d.n)
end
M.pairs_of = pairs_of

local dicts = {
  items = function(run, d)
    run.spend(d.n)
    return values.view("dict_items", pairs_of(d), d.n)
  end,
  keys = function(run, d)
    run.spend(d.n)
    return values.view("dict_keys", table.move(d.keys, 1, d.n, 1, {}), d.n)
  end,
  values = function(run, d)
    local list = {}
    run.spend(d.n)
    for i, k in ipairs(d.keys) do list[i] = values.dict_get(d, k) end
    return values.view("dict_values", list, d.n)
  end,
  get = function(_, d, args)
    local v = values.dict_get(d, values.hashable(args[1]))
    if v ~= nil then return v end
    if args.n >= 2 then return args[2] end
    return NONE
  end,
  copy = function(run, d)
    run.spend(d.n)
    local new = values.dict()
    for _, k in ipairs(d.keys) do values.dict_set(new, k, values.dict_get(d, k)) end
    return new
  end,
}

signed(lists, setmetatable({ index = "!value /", count = "!value /" }, nothing))
local fixed = { index = lists.index, count = lists.count } -- tuples and ranges have no copy
signed(dicts, setmetatable({ get = "!key default /" }, nothing))

local refused = { list = {}, dict = {} }
for name in ("append extend insert pop remove clear reverse sort"):gmatch "%a+" do refused.list[name] = true end
for name in ("pop popitem clear update setdefault"):gmatch "%a+" do refused.dict[name] = true end

local numbers = {
  is_integer = function(_, v) return math.tointeger(v) ~= nil end,
  bit_length = function(_, v)
    local n, x = 0, math.abs(v)
    while x > 0 do n, x = n + 1, x >> 1 end
    return n
  end,
}

signed(numbers, setmetatable({}, nothing))

--- The method of a value as a callable, or nil.
function M.find(v, name)
  local kind, set = type(v), nil
  if kind == "string" then set = strings
  elseif kind == "number" then set = numbers
  elseif kind == "table" then
    kind = v.kind
    if refused[kind] and refused[kind][name] then
      local unsafe = values.undefined(("access to attribute '%s' of '%s' object is unsafe."):format(name, kind))
      unsafe.error = "SecurityError"
      return unsafe
    end
    set = kind == "dict" and dicts or kind == "list" and lists or (kind == "tuple" or kind == "range") and fixed or nil
  end
  local method = set and set[name]
  if not method then return nil end
  return values.callable(name, function(run, args, named)
    values.spend_on(v)
    return method(run, v, args, named or {})
  end)
end

return M
