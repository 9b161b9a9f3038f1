-- SPDX-License-Identifier: MIT
--- Chat templates: the part of Jinja that they use, in the environment that transformers gives them (trim_blocks,
-- lstrip_blocks, loop controls, raise_exception, strftime_now, a tojson without escapes), without access to anything
-- but what they are given. A rendering is bounded: in steps, in the depth of calls, in what it writes and holds.
-- @module perilune.jinja
local compile = require "perilune.jinja.compile"
local library = require "perilune.jinja.filters"
local json = require "perilune.jinja.json"
local values = require "perilune.jinja.values"

local NONE, fail = values.NONE, values.fail
local M = { null = NONE }

-- ---- what templates find there -------------------------------------------------------------------------------------

local function whole(v)
  local n = math.tointeger(values.number_of(v))
  if not n then fail("TypeError: '%s' object cannot be interpreted as an integer", values.type_of(v)) end
  return n
end

local MAX_RANGE = 100000

local function range(run, args)
  local from, to, step = 0, args[1], 1
  if args.n == 0 or args.n > 3 then fail "TypeError: range expected 1 to 3 arguments" end
  if args.n > 1 then from, to = whole(args[1]), args[2] end
  if args.n > 2 then step = whole(args[3]) end
  to = whole(to)
  if step == 0 then fail "ValueError: range() arg 3 must not be zero" end
  if (to - from) // step > MAX_RANGE then fail("OverflowError: Range too big. The maximum is %d.", MAX_RANGE) end
  local r, n = { kind = "range", from = from, to = to, step = step }, 0
  for i = from, step > 0 and to - 1 or to + 1, step do
    n = n + 1
    r[n] = i
  end
  r.n = n
  run.spend(n)
  return r
end

local function dict(run, args, named, order)
  local d = values.dict()
  if args.n > 0 then
    if values.is_dict(args[1]) then
      run.spend(args[1].n)
      for _, k in ipairs(args[1].keys) do values.dict_set(d, k, values.dict_get(args[1], k)) end
    else
      local items, n = values.items(args[1])
      run.spend(n)
      for i = 1, n do
        local pair, two = values.items(items[i])
        if two ~= 2 then fail "ValueError: dictionary update sequence element must have length 2" end
        values.dict_set(d, pair[1], pair[2])
      end
    end
  end
  for _, k in ipairs(order) do values.dict_set(d, k, named[k]) end
  return d
end

local function namespace(run, args, named, order)
  local d = dict(run, args, named, order)
  d.kind = "namespace"
  return d
end

local function cycler(_, args)
  local at = 1
  if args.n == 0 then fail "RuntimeError: at least one item has to be provided" end
  local attributes = { current = args[1] }
  attributes.next = values.callable("next", function()
    local v = args[at]
    at = at % args.n + 1
    attributes.current = args[at]
    return v
  end)
  attributes.reset = values.callable("reset", function()
    at, attributes.current = 1, args[1]
    return NONE
  end)
  return { kind = "cycler", attributes = attributes }
end

local function joiner(_, args, named)
  local sep, used = args[1] or named.sep or ", ", false
  return values.callable("joiner", function()
    if used then return sep end
    used = true
    return ""
  end)
end

local globals = { range = range, dict = dict, namespace = namespace, cycler = cycler, joiner = joiner,
  raise_exception = function(_, args) fail("%s", values.str(args[1] == nil and "" or args[1])) end,
  strftime_now = function(_, args)
    local format = type(args[1]) == "string" and args[1] or fail "TypeError: strftime_now: a format is wanted"
    local ok, text = pcall(os.date, format)
    return ok and text or fail("ValueError: strftime_now: the format %s", values.repr(format))
  end }
for name, f in pairs(globals) do globals[name] = values.callable(name, f) end
globals.self = { kind = "TemplateReference", attributes = {} }

-- ---- rendering -----------------------------------------------------------------------------------------------------

local DEFAULTS = { steps = 1000000, bytes = 16 << 20, depth = 60 }

local function new_run(limits)
  local run = { out = {}, n = 0, line = 1 }
  local steps, bytes, depth = 0, 0, 0
  function run.spend(n)
    steps = steps + n
    if steps > limits.steps then fail("it takes more than %d steps", limits.steps) end
  end
  function run.write(text)
    bytes = bytes + #text
    if bytes > limits.bytes then fail("it writes more than %d bytes", limits.bytes) end
    run.n = run.n + 1
    run.out[run.n] = text
  end
  function run.deeper(f)
    depth = depth + 1
    if depth > limits.depth then fail("more than %d calls inside each other", limits.depth) end
    local v = f()
    depth = depth - 1
    return v
  end
  return run
end

local function message_of(name, line, err)
  if type(err) == "table" and err.jinja then return ("%s: line %d: %s"):format(name, line, err.jinja) end
  return ("%s: line %d: %s"):format(name, line, tostring(err))
end

local Template = { __name = "template" }
Template.__index = Template

--- A value of templates from JSON text, with its order of keys; what table constructors cannot say.
function M.from_json(text)
  local ok, v = pcall(json.decode, text)
  if not ok then return nil, type(v) == "table" and v.jinja or tostring(v), "format" end
  return v
end

--- Compiles a template: `name` is for messages, limits {steps=, bytes=, depth=} bound every rendering.
-- @return template; or nil, message (with the line), code
function M.compile(source, name, limits)
  local state = { line = 1 }
  name = name or "template"
  if #source > 1 << 20 then return nil, name .. ": a template of more than 1 MiB", "format" end
  local ok, body = pcall(compile, source, state, library.filters, library.tests)
  if not ok then return nil, message_of(name, state.line, body), "format" end
  limits = setmetatable(limits or {}, { __index = DEFAULTS })
  return setmetatable({ body = body, name = name, limits = limits }, Template)
end

--- The text for variables (a table by name: strings, numbers, booleans, tables, values of from_json).
-- @return text; or nil, message (with the line), code
function Template:render(variables)
  local run = new_run(self.limits)
  local before = values.set_meter(run.spend)
  local ok, err = pcall(function()
    local vars = setmetatable({}, { __index = globals })
    for name, v in pairs(variables or {}) do vars[name] = values.from_lua(v) end
    self.body { vars = setmetatable({}, { __index = vars }), run = run }
  end)
  values.set_meter(before)
  if not ok then return nil, message_of(self.name, run.line, err), "format" end
  return table.concat(run.out, "", 1, run.n)
end

return M
