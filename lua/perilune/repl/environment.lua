-- SPDX-License-Identifier: MIT
-- The names that the prompt, and a notebook's cells, know from the start.
local T = require "perilune"
local terminal = require "perilune.terminal"

local M = {}

--- T, help, and nn and optim at their first use. Names that exist already stay.
function M.equip(env)
  if rawget(env, "T") == nil then rawset(env, "T", T) end
  if rawget(env, "help") == nil then
    rawset(env, "help", function(...)
      local page, width = require("perilune.repl.about").help(...), terminal.width()
      print(width and require("perilune.repl.walk").wrapped(page, width) or page)
    end)
  end
  if getmetatable(env) == nil then
    local lazy = { nn = true, optim = true }
    local written = { True = "true", False = "false", None = "nil" }
    setmetatable(env, { __lazy = lazy, __index = function(t, key)
      if not lazy[key] then
        if written[key] then error(("%s is a variable that is nil; Lua writes %s"):format(key, written[key]), 2) end
        return nil
      end
      rawset(t, key, T[key])
      return T[key]
    end })
  end
end

--- The set of names that are no variables of the user's.
function M.known(env)
  local known = { nn = true, optim = true }
  for key in next, env do known[key] = true end
  return known
end

return M
