-- SPDX-License-Identifier: MIT
--- What commands need of the system's shell: words as it reads them, folders for files that nobody keeps.
-- @module perilune.shell
local M = {}

--- A word that the shell takes as it is.
function M.quote(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

--- A new folder that only its owner reads, where TMPDIR says, else in /tmp → its path; or nil and why not. Unlike
-- os.tmpname, which knows /tmp alone and raises.
function M.temporary_folder()
  local root = os.getenv "TMPDIR"
  root = root and root ~= "" and root or "/tmp"
  for try = 1, 9 do
    local name = ("%s/perilune_%s"):format(root, ("%p%s%s%d"):format({}, os.time(), os.clock(), try):gsub("%W", ""))
    if os.execute("mkdir -m 700 " .. M.quote(name) .. " 2>/dev/null") then return name end
  end
  return nil, root .. ": no folder can be made there; TMPDIR may name another place"
end

--- Removes a folder with what is in it.
function M.remove(folder) os.execute("rm -rf " .. M.quote(folder)) end

return M
