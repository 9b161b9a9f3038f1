-- SPDX-License-Identifier: MIT
--- What there is to say of functions that are no ops. It stands above each of them in its Lua file, as a comment that
-- is read when somebody asks:
--
--   --- T.hstack(tensors) → tensor
--   -- Joined side by side.
--   -- Shapes: [N, *] … → [M, *]
--   --   print(T.hstack { T.ones(1), T.zeros(1) })  --> {1., 0.}  -- f32[2] cpu
--
-- The first line is the signature, behind "NAME :: " where it does not begin with the name, and may go on in indented
-- lines; "(…)" behind the name is written from the declared arguments. Then comes the text, then, indented, the
-- example, which prints what stands behind `-->`. What is written in C has its comments in bindings.lua, beside this
-- file.
-- @module perilune.help.pages
local core = require "perilune.core"
local comments = require "perilune.help.comments"
local options = require "perilune.options"
local signature = require "perilune.help.signature"

local M = {}

-- The path that a line of comment begins an entry for, and its signature; nil for other lines. The names of T have no
-- "T." in paths, methods of tensors neither.
local function head(text)
  local path, rest = text:match "^%-%-%- ([%a_][%w_.:]*) :: (.+)$"
  if not path then
    path = text:match "^%-%-%- ([%a_][%w_.:]*)[({]"
    rest = path and text:sub(5)
  end
  local space = path and path:match "^(%a+)[.:]"
  if space == "T" or space == "x" then return path:sub(3), rest end
  if space == "nn" or space == "optim" then return path, rest end
  return nil
end

-- Adds the entries of a file to the table: path → {signature, text, example, shapes, file}.
local function read(file, entries)
  for _, block in ipairs(comments.blocks(comments.home .. file)) do
    local entry, in_head
    for _, comment in ipairs(block.lines) do
      local path, sig = head(comment)
      if path then
        local first = entries[path]
        if first then error(("%s: %s is described twice, first in %s"):format(file, path, first.file)) end
        entry = { signature = sig, text = {}, example = {}, file = file }
        entries[path], in_head = entry, true
      elseif entry then
        local code, text = comment:match "^%-%-   (.*)$", comment:match "^%-%- ?(.*)$"
        in_head = in_head and code ~= nil
        if in_head then
          entry.signature = entry.signature .. " " .. code
        elseif code or #entry.example > 0 then
          table.insert(entry.example, code or text)
        elseif text:find "^Shapes: " then
          entry.shapes = text:match "^Shapes: (.*)$"
        else
          table.insert(entry.text, text)
        end
      end
    end
  end
end

-- The declaration behind a path, if there is one.
local function declared(path)
  local plain = path:gsub("^optim%.lr_scheduler", "lr_scheduler"):gsub("^nn%.utils%.", "")
  return options.specs[path] and path or options.specs[plain] and plain or nil
end

local function complete(path, entry)
  entry.text, entry.example = table.concat(entry.text, "\n"), table.concat(entry.example, "\n")
  entry.who = declared(path)
  entry.arguments = entry.who and signature.arguments(entry.who) or {}
  entry.same = not path:find(".", 1, true) and entry.text:match "^Another name of T%.([%w_.]+)%."
    or entry.text:match "^T%.([%w_.]+) under its other name" or nil
  local name, returns = entry.signature:match "^([%w_.]+)%(…%)(.*)$"
  if name and entry.who then
    entry.signature = (path:find "^optim%.lr_scheduler%." and signature.schedule(path)
      or signature.call(entry.who, name)) .. returns
  elseif name and path:find "^optim%.%u%w+$" then
    entry.signature = signature.settings(path) .. returns
  end
end

-- Methods that an entry names second, "x:dim(), x:ndimension() → …", and that have none: list of {name, first name}.
local function both(all)
  local list = {}
  for path, entry in pairs(all) do
    local first, second = entry.signature:match "^x:([%w_]+)%(%), x:([%w_]+)%(%)"
    if first == path and not all[second] then list[#list + 1] = { second, first } end
  end
  return list
end

local entries

--- All entries: path → {signature, text, example, shapes, arguments, file, same}; same: of what it is another name.
function M.all()
  if entries then return entries end
  core.load_parts() -- all functions are there, with their arguments and other names
  getmetatable(require "perilune").__pairs(require "perilune") -- loads every part: each declares its arguments then
  local all = {}
  for _, file in ipairs(comments.files()) do read(file, all) end
  for path, entry in pairs(all) do complete(path, entry) end
  for name, from in pairs(options.aliases) do
    if not all[name] then
      all[name] = { signature = ("T.%s(…), as T.%s"):format(name, from), arguments = {}, file = "tensor/aliases.lua",
        text = ("Another name of T.%s."):format(from), same = from,
        example = ("print(T.%s == T.%s)  --> true"):format(name, from) }
    end
  end
  local methods = core.metatable().methods
  local function other_name(name, from)
    all[name] = { signature = ("x:%s(…), as x:%s"):format(name, from), arguments = {}, file = "tensor/aliases.lua",
      text = ("Another name of x:%s."):format(from), same = from,
      example = ("print(T.ones(1).%s == T.ones(1).%s)  --> true"):format(name, from) }
  end
  for name, from in pairs(options.aliases) do -- the forms in place
    name, from = name .. "_", from .. "_"
    if methods[name] and methods[name] == methods[from] and not all[name] then other_name(name, from) end
  end
  for _, entry in ipairs(both(all)) do other_name(entry[1], entry[2]) end
  entries = all
  return all
end

return M
