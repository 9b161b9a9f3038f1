-- SPDX-License-Identifier: MIT
--- Arguments of constructors and functions: positional values plus one final table of options, or one mixed
-- table. Wrong ones raise at the caller's line and say what is allowed.
-- @module perilune.options
local options = {}
local core = require "perilune.core"

local getinfo = debug.getinfo
local here = getinfo(1, "S").source:gsub("options%.lua$", "")

--- Public functions of Lua → their names: what the script called, whichever of its parts refuses (surface.lua).
options.public = setmetatable({}, { __mode = "k" })
local published = {} -- all those names

-- What runs a function of the script or of a part has nothing to say of its errors.
local runs = { no_grad = true, enable_grad = true, inference_mode = true, autocast = true, checkpoint = true }

function options.publish(f, name)
  if runs[name] then return end
  if not options.public[f] then options.public[f] = name end
  published[name] = true
end

local function last_of(name) return name:match "[^.]+$" end

-- The message in the name of the public function that was called, where it begins with that of one of its parts.
local function speaking(name, message)
  local inner, rest = message:match "^([%a_][%w_.]*)(: .*)$"
  if not inner or last_of(inner) == last_of(name) then return message end
  local part = inner:gsub("_$", "")
  if not (published[inner] or published[part] or core.op[inner] or core.op[part] or core[inner]
    or rawget(core.metatable().methods, inner)) then
    return message
  end
  return name .. rest
end
options.speaking = speaking

--- Text behind a message: of what module of a network it speaks. nn/module.lua says it.
function options.in_modules() return "" end

--- Raises at the first stack level outside perilune's own Lua files.
function options.fail(fmt, ...)
  local message = select("#", ...) > 0 and fmt:format(...) or fmt
  local level = 2
  while true do
    local info = getinfo(level, "S")
    -- where the caller's frame went with a tail call: better none than ours
    if not info then error(message .. options.in_modules(), 0) end
    if info.what ~= "C" and info.source:sub(1, #here) ~= here then break end
    level = level + 1
  end
  local called = level > 2 and options.public[getinfo(level - 1, "f").func]
  if called then message = speaking(called, message) end
  error(message .. options.in_modules(), level)
end
local fail = options.fail

--- The same for what a graph cannot stand for: T.jit(f, {fallback = true}) runs f as it is written.
function options.untraceable(...)
  core.jit_refused(true)
  fail(...)
end

--- "file:line: text" of the first stack level outside perilune's own Lua files.
function options.here(text)
  for level = 2, 200 do
    local info = getinfo(level, "Sl")
    if not info then break end
    if info.what ~= "C" and info.source:sub(1, #here) ~= here then
      return ("%s:%d: %s"):format(info.short_src, info.currentline, text)
    end
  end
  return text
end

--- Raises the error for a method that was called with a dot: `what` is the call as it should be.
function options.colon(what)
  fail("%s: call it with a colon, %s", what:match "[:.](%w[%w_]*)" or what, what)
end

-- What pcall gave, or its error once more: the message with the function's name in place of the op's inside that
-- raised it.
local function renamed(name, ok, ...)
  if ok then return ... end
  local message = ...
  if type(message) == "string" then
    local at, inner, rest = message:match("^(.-:%d+: )([%w_.]+)(: .*)$")
    if inner and inner ~= name and (published[inner] or core.op[inner] or core.metatable().methods[inner]
      or core[inner]) then
      message = at .. name .. rest
    end
  end
  error(message, 0)
end

options.renamed = renamed

--- While T.jit traces, public functions of Lua are called as mode.again(f, …), and as mode.method(f, …) those that get
-- functions or modules (jit/again.lua). Else both are false.
options.mode = { again = false, method = false }
local mode = options.mode

-- pcall that makes tensors where those among the arguments are.
local follow = core.device.follow

--- f, whose errors name `name`, also those of the ops that it is made of. What f makes (T.zeros, T.arange, …) is
-- where the tensors among its arguments do.
function options.named(name, f)
  local most, any = core.parameters(f)
  if not most or any then most = math.huge end
  local function call(...) return renamed(name, follow(f, ...)) end
  return function(...)
    if select("#", ...) > most then
      local surface = require "perilune.surface"
      surface.too_many(name, surface.parameters(f), ...)
    end
    if mode.again then return mode.again(call, ...) end
    return renamed(name, follow(f, ...))
  end
end

--- The value of an argument that may stand at its place or among the options o; not both: one of them would count
--- without a word.
function options.once(who, name, given, o)
  if given == nil then return o[name] end
  if o[name] ~= nil then fail("%s: argument %s is given twice", who, name) end
  return given
end

-- Options that are switches wherever they stand. What is neither true nor false would count as true: 0, "false".
local switches = {}
for name in ([[align_corners aligned always antialias append average_attn_weights batch_first ceil_mode check copy
  enable_gqa enable_timing enforce_sorted equal_nan error_if_nonfinite fallback hard heavy hermitian include_last_offset
  is_causal keep_dtype linear_before_reset memory_is_causal need_weights non_blocking peepholes persistent
  recompute_scale_factor requires_grad return_indices seeded set_to_none src_is_causal strict swap tgt_is_causal
  trainable training transpose unsafe_math use_input_stats]]):gmatch "%S+" do
  switches[name] = true
end

--- Raises where `name` is such an option and v is neither true nor false.
function options.switch(who, name, v)
  if switches[name] and v ~= nil and type(v) ~= "boolean" then
    fail("%s: %s must be true or false, got %s", who, name, options.describe(v))
  end
end

--- Checks that every key of `given` is in the list `names`, and that switches are true or false.
function options.check(who, given, names)
  if given == nil then return {} end
  if type(given) ~= "table" then
    local most = names[1] -- what a number alone is meant to be: the learning rate where there is one
    for _, name in ipairs(names) do
      if name == "lr" then most = name end
    end
    fail("%s: options must be a table, got %s%s", who, type(given),
      most and ("; for example { %s = %s }"):format(most, type(given) == "number" and given or "…") or "")
  end
  local known = {}
  for _, name in ipairs(names) do known[name] = true end
  for key, v in pairs(given) do
    if not known[key] then fail("%s: %s", who, options.unknown("option", key, names)) end
    options.switch(who, key, v)
  end
  return given
end

-- What a reader of files gives behind its first result, the file's metadata → the result before it.
local companions = setmetatable({}, { __mode = "k" })

--- The arguments, and notes of tables behind the first that they came with it: whoever is given all of them by
-- f(T.load(path)) was not given an argument too many.
function options.with_companions(...)
  local given = table.pack(...)
  for i = 2, given[1] ~= nil and given.n or 0 do
    if type(given[i]) == "table" then companions[given[i]] = given[i - 1] end
  end
  return ...
end

--- Is that the table that came with value?
function options.comes_with(extra, value)
  return value ~= nil and type(extra) == "table" and rawequal(companions[extra], value)
end

--- A value in words for messages.
-- What a key of a table is called and sorted by: neither values of a tensor, which a trace has not got and which may be
-- equal, nor what a script's __tostring says.
function options.key_text(k)
  local kind = type(k)
  if kind == "string" or kind == "number" or kind == "boolean" then return tostring(k) end
  return ("%s %p"):format(kind, k)
end

function options.describe(v)
  if type(v) == "string" then return ("%q"):format(v) end
  if core.is_tensor(v) and core.is_freed(v) then return "a freed tensor" end
  if type(v) == "userdata" and v.brief and v.shape then
    return ("a tensor [%s]"):format(table.concat(v:shape(), ","))
  end
  if type(v) == "table" or type(v) == "userdata" or type(v) == "function" then return "a " .. type(v) end
  return tostring(v)
end
local describe = options.describe

-- Integer-valued floats count as integers, numeric strings do not.
local function integer(v)
  return (math.type(v) == "integer" and v) or (math.type(v) == "float" and math.tointeger(v)) or nil
end
options.integer = integer

--- The first key of a table that is no place of a list: {1, 2, a = 3}, {[0] = 1, 2}; nil if it is a list.
function options.stray(t)
  local n = #t
  for key, v in next, t do
    if (math.type(key) ~= "integer" or key < 1 or key > n) and not (key == "n" and v == n) then return key end
  end
end
local stray = options.stray

--- Raises unless v, argument `name` of `who`, is a list; what: of what.
function options.list(who, name, v, what)
  if type(v) ~= "table" or getmetatable(v) ~= nil then
    fail("%s: %s must be a list%s, got %s", who, name, what and " of " .. what or "", describe(v))
  end
  local key = stray(v)
  if key ~= nil then
    fail("%s: %s must be a list%s; it has the key %s", who, name, what and " of " .. what or "", describe(key))
  end
  return v
end

--- Raises unless v is a list of at least `least` tensors (or one of them, as a list); → the list.
function options.tensors(who, name, v, least)
  if core.is_tensor(v) then v = { v } end
  options.list(who, name, v, "tensors")
  for i, t in ipairs(v) do
    if not core.is_tensor(t) then fail("%s: entry %d of %s must be a tensor, got %s", who, i, name, describe(t)) end
  end
  if #v < (least or 0) then fail("%s: %s is empty; at least %d is wanted", who, name, least) end
  return v
end

-- All of them by `who`: signatures in help and reference are written from these.
options.specs = {}
--- Other names of functions: name → the name it stands for. Help and reference list them.
options.aliases = {}

core.nearest(function(word, allowed)
  local names = {}
  for name in allowed:gmatch "%S+" do names[#names + 1] = name end
  return options.nearest(word, names)
end)

--- {{name, value}, …} of a table of named values: sorted by name, since a Lua table has no order, or as it is where it
-- is such a list already.
function options.named_pairs(who, given)
  local list = {}
  if type(given[1]) == "table" and getmetatable(given[1]) == nil then
    for key in pairs(given) do
      if math.type(key) ~= "integer" or key < 1 or key > #given then
        options.fail("%s: a list of {name, value} has an entry %s, too", who, tostring(key))
      end
    end
    for i = 1, #given do
      local pair = given[i]
      if type(pair) ~= "table" or getmetatable(pair) ~= nil or #pair ~= 2 then
        options.fail("%s: entry %d of a list must be {name, value}, got %s", who, i, options.describe(pair))
      end
      list[i] = { pair[1], pair[2] }
    end
    return list
  end
  for name, value in pairs(given) do list[#list + 1] = { name, value } end
  table.sort(list, function(a, b) return tostring(a[1]) < tostring(b[1]) end)
  return list
end

-- What is in options_spec.lua: read when one asks for it.
return setmetatable(options, { __index = function(_, key)
  require "perilune.options_spec"
  return rawget(options, key)
end })
