-- SPDX-License-Identifier: MIT
--- What filters, tests and methods of templates take. In Python an argument too many, one that is missing and one with
-- an unknown name are errors; a function in Lua would not see them, and the text would be another one.
-- @module perilune.jinja.signatures
local values = require "perilune.jinja.values"
local fail = values.fail

-- What a value must be: its test and its name. Python takes booleans for whole numbers, and None for what is absent
-- only where it says so: "?".
local kinds = {
  int = function(v) return math.tointeger(values.number_of(v)) ~= nil and math.type(v) ~= "float" end,
  str = function(v) return type(v) == "string" end,
  hashable = values.is_hashable,
  defined = function(v) return not values.is_undefined(v) end,
}

local function wanted(name, what, kind, v)
  if not kind or kind.test(v) or kind.none and v == values.NONE then return end
  if values.is_undefined(v) then fail("UndefinedError: %s", v.why) end
  fail("TypeError: %s: %s must be %s, not '%s'", name, what, kind.name, values.type_of(v))
end

-- "!old !new:str count:int?": names in their order, "!" those that must be there, what they must be. "a b /": only by
-- position. "*": anything. "=str" what it is a filter, test or method of.
local function parsed(text)
  local s = { n = 0, least = 0, at = {}, kind = {} }
  for mark, name, kind, none in text:gmatch "([!=]?)([%w_/*]+):?([%a]*)(%??)" do
    local test = mark == "=" and name or kind
    test = test ~= "" and { name = test, none = none ~= "", test = kinds[test] } or nil
    if name == "/" then s.by_place = true
    elseif name == "*" then s.any = true
    elseif mark == "=" then s.receiver = test
    else
      s.n = s.n + 1
      s[s.n], s.at[name], s.kind[s.n] = name, s.n, test
      if mark == "!" then s.least = s.n end
    end
  end
  return s
end

local function check(name, s, v, args, named)
  wanted(name, "the value", s.receiver, v)
  if s.any then return end
  if args.n > s.n then
    fail("TypeError: %s takes at most %d argument%s here, %d given", name, s.n, s.n == 1 and "" or "s", args.n)
  end
  for k in pairs(named) do
    local i = not s.by_place and s.at[k]
    if not i then fail("TypeError: %s takes no keyword argument %s here", name, values.repr(k)) end
    if i <= args.n then fail("TypeError: %s got multiple values for argument %s", name, values.repr(k)) end
  end
  for i = 1, s.least do
    if args.n < i then
      if named[s[i]] == nil then fail("TypeError: %s: the argument %s is missing", name, s[i]) end
      args[i], args.n = named[s[i]], i
      named[s[i]] = nil
    end
  end
  for i, kind in pairs(s.kind) do
    local given
    if i <= args.n then given = args[i] else given = named[s[i]] end
    if given ~= nil then wanted(name, s[i], kind, given) end
  end
end

--- Functions f(run, v, args, named) by name, each of which checks what it is given by its text in `texts`.
return function(functions, texts)
  for name, f in pairs(functions) do
    local s = parsed(texts[name] or error("jinja: no signature of " .. name))
    functions[name] = function(run, v, args, named)
      check(name, s, v, args, named)
      return f(run, v, args, named)
    end
  end
  return functions
end
