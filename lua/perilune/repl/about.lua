-- SPDX-License-Identifier: MIT
-- What `?x` and help(x) say: the page of a symbol, or what a value is. Looking never runs a user's __index.
local T = require "perilune"
local show = require "perilune.repl.show"
local source = require "perilune.help.source"
local walk = require "perilune.repl.walk"

local M = {}

local HEAD = [[
An input is an expression, whose value is shown, or statements. It may go on over several lines.
  _            the value shown last; _1, _2 …: by the number of the input (the last 20 are kept)
  x;           a semicolon at the end: nothing is shown
  ?name        what a name is: ?T.softmax, ?nn.Linear, ?x; help(x) does the same for a value; ?soft* lists names,
               ?learning rate what speaks of these words
  !command     runs a command of the shell
]]
local KEYS = [[
  Tab          completes names, fields, methods, options in a call's table, file names in strings
  Ctrl-C       stops what runs, or clears the line; Ctrl-D ends
]]
local TAIL = [[
  :help        lists the commands: :time :prof :who :mem :doc :edit :quit
T is perilune, nn is T.nn, optim is T.optim. A local of an input stays, as a global.]]

--- What help() says without a name; keys: lines about a front end that is no terminal.
function M.introduce(keys) M.INTRODUCTION = HEAD .. (keys or KEYS) .. TAIL end
M.introduce()

local function page(what)
  if type(what) ~= "string" and type(what) ~= "function" and type(what) ~= "table" then return nil end
  local text = T.help_text(what)
  if not text or text:find "^no op named" or text:find "^no help for this value" then return nil end
  return text
end

local function signature(f, name)
  f = require("perilune.surface").original[f] or f
  local info = debug.getinfo(f, "Su")
  if info.what == "C" then return "a function written in C" end
  local names = {}
  for i = 1, info.nparams do names[i] = debug.getlocal(f, i) end
  if info.isvararg then names[#names + 1] = "..." end
  return ("%s(%s), %s, line %d"):format(name or "function", table.concat(names, ", "), info.short_src,
    info.linedefined)
end

-- perilune's own classes know their names; functions are found in the tables that hold them.
local function name_of(v)
  if type(v) == "table" and type(rawget(v, "__name")) == "string" then
    local name = rawget(v, "__name")
    for _, space in ipairs { "nn", "optim", "data" } do
      local holder = rawget(T, space)
      if holder and rawequal(holder[name], v) then return (space == "data" and "T.data." or space .. ".") .. name end
    end
  end
  return nil
end

-- What can be said of a value; name: as it was written, if it was.
function M.value(v, width, name)
  if show.is_tensor(v) then return v:is_freed() and "a freed tensor" or v:brief() end
  local text = type(v) ~= "string" and page(v)
  name = name_of(v) or name
  text = text or (name and source.page(name, v)) or (type(v) == "function" and source.page("function", v))
  if text then return text end
  if type(v) == "function" then return signature(v, name) end
  local names = type(v) == "table" and walk.members(v) or {}
  return #names == 0 and show.brief(v) or show.brief(v) .. ":\n" .. walk.columns(names, width or 80)
end

-- The public names that a pattern fits, `soft*`, `nn.*pool*`, in columns; then false if there is none.
function M.matching(pattern, width)
  local wanted = "^" .. pattern:gsub("^T%.", ""):gsub("[.:]", "%%%0"):gsub("%*", ".*"):lower() .. "$"
  local list = {}
  for _, page_ in ipairs(require("perilune.help.reference").pages()) do
    for _, e in ipairs(page_.entries) do
      local path = e.name:gsub("^T%.", "")
      if path:lower():find(wanted) or path:match("[^.]+$"):lower():find(wanted) then list[#list + 1] = path end
    end
  end
  table.sort(list)
  if #list == 0 then return ("no name fits %s"):format(pattern), false end
  return walk.columns(list, width or 80)
end

-- The page for a name as it is typed: "softmax", "T.softmax", "x:sum", "nn.Linear", a variable. Then false if there is
-- no such name.
function M.name(name, env, width)
  name = name:match "^%s*(.-)%s*$"
  if name == "" then return M.INTRODUCTION end
  if name:find "%*" and name:find "^[%w_.:*]+$" then return M.matching(name, width) end
  if name:find "^%w[%w_.%-]*%s+%w[%w%s_.%-]*$" then return T.help_text(name), not T.help_text(name):find "^nothing" end
  if not name:find "^[%a_][%w_.:]*$" then return "a name is wanted, such as T.softmax or x", false end
  local found, value = walk.resolve(name, env)
  local last = name:match "[.:]([%a_][%w_]*)$"
  if found then
    local callable = type(value) == "function" or type(value) == "table"
    -- Lua has a load and a select, too
    if not last and value == rawget(_G, name) and type(value) == "function" and debug.getinfo(value, "S").what == "C"
      and T[name] and T[name] ~= value and page("T." .. name) then
      return page("T." .. name)
    end
    return callable and page(value) or (last and page(name)) or (name:find ":" and page(last))
      or M.value(value, width, name)
  end
  local text = page(name)
  if not text and require("perilune.help.elsewhere").other(name:gsub("^T%.", "")) then -- plot.bar is no T.bar
    return T.help_text(name), false
  end
  text = text or (last and page(last))
  if text then return text end
  return T.help_text(last or name), false
end

-- help(x): a name in a string, or a value; without one, the introduction.
function M.help(...)
  if select("#", ...) == 0 then return M.INTRODUCTION end
  local what = ...
  if type(what) == "string" then return page(what) or (M.name(what, _G)) end
  return M.value(what)
end

return M
