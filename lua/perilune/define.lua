-- SPDX-License-Identifier: MIT
--- Defines functions made of other ops from a list of their arguments: T.name(x, …) and x:name(…) at once. Every
-- argument may come by position or, in one final table, by name; a wrong one is an error that names the function.
-- @module perilune.define
local options = require "perilune.options"

local read, named = options.read, options.named

-- define = bound to T; define(name, args, f): f(a) gets the checked values by name. args as for options.spec;
-- `where`: a table for the function instead of T and the methods, with the prefix of its messages.
return function(T, core)
  local methods = core.metatable().methods
  return function(name, args, f, where, prefix)
    local spec = options.spec((prefix or "") .. name, args, { list_first = args[1] and args[1][2] == "tensors" })
    local made = named(spec.who, function(...) return f(read(spec, ...)) end)
    if where then
      where[name] = made
    else
      T[name] = made
      if args[1] and (args[1][2] == "tensor" or args[1][2] == "operand") then methods[name] = made end
    end
    return made
  end
end
