-- SPDX-License-Identifier: MIT
-- Where what was typed is kept for later sessions: files of the user's state folder (bindings/terminal/history.c).
local terminal = require "perilune.terminal"

local M = {}

local KEPT = 2000 -- entries that a session begins with

local function folder()
  local state = os.getenv "XDG_STATE_HOME"
  if state and state:find "^/" then return state .. "/perilune" end
  local home = os.getenv "HOME"
  return home and home ~= "" and home .. "/.local/state/perilune" or nil
end

--- The entries of earlier sessions, oldest first, and the file's path; nil and why it is not used.
function M.load(name)
  local where = folder()
  if not where then return nil, "there is no HOME" end
  local ok, message = terminal.make_dirs(where)
  if not ok then return nil, message end
  local path = where .. "/" .. name
  local list
  list, message = terminal.history_load(path, KEPT)
  if not list then return nil, message end
  return list, path
end

--- Adds an entry to a file. → true; or nil, message
M.append = terminal.history_append

return M
