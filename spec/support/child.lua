-- SPDX-License-Identifier: MIT
-- A script in a process of its own: for settings that are read at start, and for what a process may not survive.

local build = os.getenv "PERILUNE_BUILD" or "build"
local root = os.getenv "PERILUNE_ROOT" or "."

-- What a script prints, with these settings in front of the command, and whether it ended well. T is perilune.
return function(settings, code)
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write("local T = require 'perilune'\n", code)
  f:close()
  local p = assert(io.popen(("cd '%s' && env %s '%s/bin/perilune' run %s 2>&1"):format(root, settings, build, path)))
  local text = p:read("a")
  local fine = p:close()
  os.remove(path)
  return text, fine
end
