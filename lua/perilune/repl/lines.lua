-- SPDX-License-Identifier: MIT
-- Where lines come from on a terminal: libedit's editor (bindings/terminal/editor.c), or a plain one without it.
local terminal = require "perilune.terminal"

local M = {}

-- A signal ends the call. It raises at the next instruction, or at the one behind that where a scope was opened before,
-- so there have to be some.
local function read_line()
  local line = io.read "l"
  for _ = 1, 2 do end
  return line
end

-- Lines from the terminal without libedit. Ctrl-C shows as a line that could not be read.
local function plain_reader()
  return {
    read = function(_, prompt)
      io.stdout:write((prompt:gsub("\1[^\1]*\1", "")))
      io.stdout:flush()
      local ok, line = terminal.guard(function() return "interrupt" end, read_line)
      if not ok then return nil, "interrupt" end
      if line == nil then return nil, "end" end
      return line
    end,
    add = function() end, on_complete = function() end, on_paint = function() end, close = function() end,
  }
end

--- The editor of this terminal, and whether this perilune was built without libedit.
function M.editor()
  local plain = not terminal.editor
  return plain and plain_reader() or terminal.editor() or plain_reader(), plain
end

return M
