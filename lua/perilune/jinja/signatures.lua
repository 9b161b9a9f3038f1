-- SPDX-License-Identifier: MIT
--- What filters, tests and methods of templates take. In Python an argument too many, one that is missing and one with
-- an unknown name are errors; a function in Lua would not see them, and the text would be another one.
-- @module perilune.jinja.signatures
local values = require "perilune.jinja.values"
local fail = values.fail

-- "!old !new count": names in their order, "!" those that must be there. "a b /": only by position. "*": anything.
local function parsed(text)
  local s = { n = 0, least = 0, at = {} }
  for mark, name in text:gmatch "(!?)([%w_/*]+)" do
    if name == "/" then s.by_place = true
    elseif name == "*" then s.any = true
    else
      s.n = s.n + 1
      s[s.n], s.at[name] = name, s.n
      if mark == "!" then s.least = s.n end
    end
  end
  return s
end

local function check(name, s, args, named)
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
end

--- Functions f(run, v, args, named) by name, each of which checks what it is given by its text in `texts`.
return function(functions, texts)
  for name, f in pairs(functions) do
    local s = parsed(texts[name] or error("jinja: no signature of " .. name))
    functions[name] = function(run, v, args, named)
      check(name, s, args, named)
      return f(run, v, args, named)
    end
  end
  return functions
end
