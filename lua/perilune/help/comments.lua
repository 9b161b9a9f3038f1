-- SPDX-License-Identifier: MIT
--- The comments of perilune's own Lua files, read when somebody asks: the one reader for what pages.lua and source.lua
-- make of them.
-- @module perilune.help.comments
local core = require "perilune.core"

local M = {}

--- The folder of perilune's Lua files.
M.home = debug.getinfo(1, "S").source:match "^@(.*)help/comments%.lua$" or ""

local read = {} -- path → its blocks

--- The comments of a file: a list of { lines, code = the line of code below, at = its number }.
function M.blocks(path)
  if read[path] then return read[path] end
  local list, block, number, f = {}, nil, 0, io.open(path)
  for line in f and f:lines() or function() end do
    number = number + 1
    local comment = line:match "^%s*(%-%-.*)$"
    if comment then
      if not block then
        block = { lines = {}, code = "" }
        list[#list + 1] = block
      end
      table.insert(block.lines, comment)
    elseif block then
      block.code, block.at = line, number
      block = nil
    end
  end
  if f then f:close() end
  read[path] = list
  return list
end

--- The Lua files below the folder, in order, relative to it.
function M.files(folder, list)
  folder, list = folder or "", list or {}
  local found = assert(core.list_folder(M.home .. folder))
  table.sort(found)
  for _, item in ipairs(found) do
    local kind, name = item:sub(1, 1), item:sub(2)
    if kind == "d" then
      M.files(folder .. name .. "/", list)
    elseif name:find "%.lua$" then
      list[#list + 1] = folder .. name
    end
  end
  return list
end

--- The text of a comment, without dashes and ldoc's tags; nil without one. A licence or a heading begins anew.
function M.text(block)
  local out, tags, of_tag = {}, {}, false -- a line below a tag, further in, goes on with it
  for _, line in ipairs(block and block.lines or {}) do
    local text = line:gsub("^%-%-+%s?", "")
    if text:find "^SPDX" or text:find "^[- ]*%-%-%-%-" then
      out, tags, of_tag = {}, {}, false
    elseif text:find "^@" then
      local kind, rest = text:match "^@(%a+)[%[%]%w]*%s+(.*)$"
      if kind == "tparam" or kind == "param" or kind == "treturn" or kind == "return" then
        tags[#tags + 1] = kind:find "return" and "→ " .. rest or "  " .. rest
        of_tag = true
      end
    elseif of_tag and text:find "^%s+%S" then
      tags[#tags] = tags[#tags] .. " " .. text:match "^%s*(.*)$"
    else
      of_tag = false
      out[#out + 1] = text
    end
  end
  table.move(tags, 1, #tags, #out + 1, out)
  local text = table.concat(out, "\n"):match "^%s*(.-)%s*$"
  return text ~= "" and text or nil
end

return M
