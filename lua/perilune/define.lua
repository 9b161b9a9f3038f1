-- SPDX-License-Identifier: MIT
--- Defines functions that are written in Lua: T.name(x, …) and x:name(…) at once.
--   local define = require "perilune.define"(T, core)
--   define("name", function(x, …) … end)       which reads its arguments itself
--   define("name", args, function(a) … end)    which gets the checked values by name; args as for options.spec
-- Every declared argument may come by position or, in one final table, by name; a wrong one is an error that names the
-- function. With `space`, {into = table, prefix = "linalg."}, they are functions of that table alone.
-- @module perilune.define
local options = require "perilune.options"

-- f(values of the first n arguments, the others that are given in one table).
local function spread(f, a, names, n)
  local list, rest = {}, nil
  for i, name in ipairs(names) do
    if i <= n then
      list[i] = a[name]
    elseif a[name] ~= nil then
      rest = rest or {}
      rest[name] = a[name]
    end
  end
  list[n + 1] = rest
  return f(table.unpack(list, 1, rest and n + 1 or n))
end

return function(T, core, space)
  local methods, into = core.metatable().methods, space and space.into or T

  -- n: f(x, …, {…}) takes the first n values by position, the others in a table, and names itself in its errors.
  return function(name, args, f, n)
    local method, made = not space, args
    if type(args) == "table" then
      local read, kind = options.read, args[1] and args[1][2]
      local spec = options.spec((space and space.prefix or "") .. name, args, { list_first = kind == "tensors" })
      method = method and (kind == "tensor" or kind == "operand")
      if n then
        spec.who = name
        made = function(...) return spread(f, read(spec, ...), spec.names, n) end
      else
        made = options.named(spec.who, function(...) return f(read(spec, ...)) end)
      end
    end
    into[name] = made
    if method then methods[name] = made end
    return made
  end
end
