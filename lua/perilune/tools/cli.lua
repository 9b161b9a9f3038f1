-- SPDX-License-Identifier: MIT
--- Options of a script from one table: `local opt = T.cli { { "epochs", 3, "passes over the data" }, … }`.
-- @module perilune.tools.cli
local options = require "perilune.options"

local fail, describe = options.fail, options.describe

-- Text → value, or nil; and what would have been right.
local kinds = {
  integer = { function(s) return s:match("^[+-]?%d+$") and math.tointeger(tonumber(s)) end, "an integer", "N" },
  number = { function(s)
    local v = tonumber(s)
    return v and not s:find("[xXnN]") and v + 0.0
  end, "a number", "X" },
  string = { function(s) return s end, "text", "TEXT" },
  boolean = { function(s)
    local words = { ["true"] = true, yes = true, on = true, ["1"] = true, ["false"] = false, no = false, off = false,
      ["0"] = false }
    return words[s]
  end, "true or false", "" },
}

local entry_keys = { "name", "default", "help", "type", "choices", "required", "short", "min", "max", "list" }

local function kind_of(v)
  if math.type(v) == "float" then return "number" end
  return math.type(v) or type(v)
end

-- The default of an option, checked against its type, and against what a value that is given may be.
local function check_default(o, v)
  local ok = kind_of(v) == o.type or (o.type == "number" and type(v) == "number")
  if not ok then fail("cli: the default of '%s' must be %s, got %s", o.name, kinds[o.type][2], describe(v)) end
  local fits = not o.choices
  for _, word in ipairs(o.choices or {}) do fits = fits or word == v end
  if not fits then fail("cli: the default of '%s', %s, is none of its choices", o.name, describe(v)) end
  if o.min and v < o.min or o.max and v > o.max then
    fail("cli: the default of '%s', %s, is not within min and max", o.name, describe(v))
  end
end

-- {name, default, help, …} with every field checked.
local function read_entry(e)
  if type(e) ~= "table" then fail("cli: an option is a table {name, default, help}, got %s", describe(e)) end
  local o, at = {}, { "name", "default", "help" }
  for key, v in pairs(e) do
    local name = at[key] or key
    if type(name) ~= "string" then
      fail("cli: option %s has %s too many", describe(e[1]), describe(v))
    end
    if o[name] ~= nil then fail("cli: option %s: %s is given twice", describe(e[1]), name) end
    o[name] = v
  end
  options.check("cli", o, entry_keys)
  if type(o.name) ~= "string" or not o.name:match("^%a[%w_-]*$") then
    fail("cli: the name of an option must be letters, digits, - and _, got %s", describe(o.name))
  end
  local first = o.default
  if o.list and first ~= nil and type(first) ~= "table" then
    fail("cli: the default of the list '%s' must be a table, got %s", o.name, describe(first))
  end
  if o.list then first = first and first[1] end
  o.type = o.type or (first ~= nil and kind_of(first)) or "string"
  if not kinds[o.type] then
    fail("cli: option '%s': %s", o.name, options.unknown("type", o.type, { "integer", "number", "string", "boolean" }))
  end
  for _, bound in ipairs { "min", "max" } do
    if o[bound] ~= nil and (type(o[bound]) ~= "number" or o.type ~= "number" and o.type ~= "integer") then
      fail("cli: option '%s': %s is a number, for an option of numbers, got %s", o.name, bound, describe(o[bound]))
    end
  end
  if o.choices ~= nil then options.list("cli", ("choices of '%s'"):format(o.name), o.choices, "values") end
  if o.list then
    for _, v in ipairs(o.default or {}) do check_default(o, v) end
  elseif o.default ~= nil then
    check_default(o, o.default)
  end
  if o.type == "boolean" and o.default == nil then o.default = false end
  if o.short and (type(o.short) ~= "string" or not o.short:match("^%a$")) then
    fail("cli: short of '%s' must be one letter", o.name)
  end
  o.flag = o.name:gsub("_", "-")
  o.key = o.name:gsub("-", "_")
  return o
end

local function read_spec(spec)
  if type(spec) ~= "table" then fail("cli: a list of options is wanted, got %s", describe(spec)) end
  local list, by_flag = {}, {}
  for key in pairs(spec) do
    if math.type(key) ~= "integer" and key ~= "about" and key ~= "usage" and key ~= "rest" then
      fail("cli: %s", options.unknown("field", key, { "about", "usage", "rest" }))
    end
  end
  for _, e in ipairs(spec) do
    local o = read_entry(e)
    for _, flag in ipairs { o.flag, o.short } do
      if by_flag[flag] or flag == "help" or flag == "h" then fail("cli: option '%s' is there twice", flag) end
      by_flag[flag] = o
    end
    list[#list + 1] = o
  end
  return list, by_flag
end

-- ---- help ----------------------------------------------------------------------------------------------------

local function value_text(o, v)
  if o.list then
    local out = {}
    for i, x in ipairs(v) do out[i] = value_text({ type = o.type }, x) end
    return table.concat(out, ",")
  end
  return math.type(v) == "float" and ("%g"):format(v) or tostring(v)
end

local function help_text(spec, list, program)
  local lines = { ("usage: %s %s"):format(program, spec.usage or ("[options]" .. (spec.rest and " [--] " .. spec.rest
    or ""))) }
  if spec.about then lines[#lines + 1] = spec.about end
  lines[#lines + 1] = ""
  local left, width = {}, 0
  for i, o in ipairs(list) do
    local what = o.choices and table.concat(o.choices, "|") or kinds[o.type][3] .. (o.list and ",…" or "")
    left[i] = ("  %s--%s%s"):format(o.short and "-" .. o.short .. ", " or "", o.flag, what ~= "" and " " .. what or "")
    width = math.max(width, utf8.len(left[i]))
  end
  left[#list + 1] = "  -h, --help"
  width = math.min(math.max(width, #left[#list + 1]), 34)
  for i = 1, #list + 1 do
    local o = list[i] or { help = "prints this", type = "string" }
    local note = o.required and "required" or o.default ~= nil and o.type ~= "boolean" and "default " ..
      value_text(o, o.default) or o.default == true and "default on; --no-" .. o.flag .. " turns it off" or nil
    local text = (o.help or "") .. (note and (o.help and " (" or "(") .. note .. ")" or "")
    lines[#lines + 1] = (left[i] .. (" "):rep(math.max(2, width + 2 - utf8.len(left[i]))) .. text):gsub("%s+$", "")
  end
  return table.concat(lines, "\n") .. "\n"
end

-- ---- reading arguments ------------------------------------------------------------------------------------------

-- One value of an option from its text; nil and a message.
local function convert(o, s)
  if o.choices then
    for _, word in ipairs(o.choices) do if tostring(word) == s then return word end end
    local words = {}
    for i, word in ipairs(o.choices) do words[i] = tostring(word) end
    return nil, ("--%s: %s"):format(o.flag, options.unknown("value", s, words))
  end
  local v = kinds[o.type][1](s)
  if v == nil or (v == false and o.type ~= "boolean") then
    return nil, ("--%s needs %s, got '%s'"):format(o.flag, kinds[o.type][2], s)
  end
  if (o.min and v < o.min) or (o.max and v > o.max) then
    local range = o.min and o.max and ("from %s to %s"):format(o.min, o.max) or o.min and "at least " .. o.min or
      "at most " .. o.max
    return nil, ("--%s must be %s, got %s"):format(o.flag, range, s)
  end
  return v
end

local function convert_all(o, s)
  if not o.list then return convert(o, s) end
  local out = {}
  for part in (s .. ","):gmatch("([^,]*),") do
    local v, message = convert(o, part)
    if v == nil then return nil, message end
    out[#out + 1] = v
  end
  return out
end

local function unknown(flag, by_flag)
  local names = { "help" }
  for name in pairs(by_flag) do if #name > 1 then names[#names + 1] = name end end
  table.sort(names)
  local near = options.nearest(flag, names)
  return ("unknown option --%s%s"):format(flag, near and "; did you mean --" .. near .. "?" or "")
end

-- The option that a word names, whether it is negated, and a value given with "=".
local function find(word, by_flag)
  local flag, value = word:match("^%-%-([^=]+)=(.*)$")
  flag = flag or word:match("^%-%-(.+)$")
  if flag then
    local name = flag:gsub("_", "-")
    if by_flag[name] then return by_flag[name], false, value end
    local o = by_flag[name:match("^no%-(.+)$") or ""]
    if o and o.type == "boolean" and not o.list and value == nil then return o, true end
    return nil, unknown(flag, by_flag)
  end
  local letter, rest = word:match("^%-(%a)=?(.*)$")
  local o = letter and by_flag[letter]
  if not o then return nil, "unknown option " .. word end
  return o, false, rest ~= "" and rest or nil
end

-- Values by key, or nil and a message; "help" where that was asked for.
local function parse(spec, list, by_flag, args)
  local values, rest, i = {}, {}, 1
  while i <= #args do
    local word = args[i]
    if word == "--help" or word == "-h" then return nil, "help" end
    if word == "--" then
      table.move(args, i + 1, #args, #rest + 1, rest)
      break
    elseif word:match("^%-%-?%a") then
      local o, negated, value = find(word, by_flag)
      if not o then return nil, negated end
      if o.type == "boolean" and not o.list and value == nil then
        values[o.key] = not negated
      else
        if value == nil then
          i = i + 1
          value = args[i]
          if value == nil then return nil, ("--%s needs %s"):format(o.flag, kinds[o.type][2]) end
        end
        local v, message = convert_all(o, value)
        if v == nil then return nil, message end
        values[o.key] = v
      end
    else
      rest[#rest + 1] = word
    end
    i = i + 1
  end
  if #rest > 0 and not spec.rest then return nil, ("unexpected argument '%s'"):format(rest[1]) end
  for _, o in ipairs(list) do
    if values[o.key] == nil then
      if o.required then return nil, ("--%s is missing"):format(o.flag) end
      values[o.key] = o.list and table.move(o.default or {}, 1, #(o.default or {}), 1, {}) or o.default
    end
  end
  if spec.rest then values.rest = rest end
  return values
end

--- T.cli({about=, rest=, {name, default, help, …}, …}, args?) → table
-- An option may also have type=, choices=, required=, short=, min=, max=, list=. Reads the script's options: --name
-- value, --name=value, -n value, --flag, --no-flag. The type is the default's, or type= "integer", "number", "string",
-- "boolean". Wrong ones: a message, exit status 2; --help: a page made from the table, status 0. rest= names further
-- arguments, which come as .rest. With a list of arguments: the table, or nil, message, code.
--   local spec = { { "epochs", 3, "passes" }, { "lr", 1e-3 }, { "quick", false } }
--   local opt = T.cli(spec, { "--epochs", "5", "--quick" })
--   print(opt.epochs, opt.lr, opt.quick)    --> 5	0.001	true
--   print(T.cli(spec, { "--epoch", "5" }))  --> nil	unknown option --epoch; did you mean --epochs?	usage
return function(spec, args)
  local list, by_flag = read_spec(spec)
  if args ~= nil and type(args) ~= "table" then fail("cli: the arguments must be a list, got %s", describe(args)) end
  local given = args or rawget(_G, "arg") or {}
  local program = (rawget(_G, "arg") or {})[0] or "perilune"
  local values, message = parse(spec, list, by_flag, given)
  if values then return values end
  local help = message == "help"
  local text = help and help_text(spec, list, program) or
    ("%s: %s\nTry: %s --help\n"):format(program, message, program)
  if args then return nil, help and text or message, help and "help" or "usage" end
  (help and io.stdout or io.stderr):write(text)
  os.exit(help and 0 or 2, true)
end
