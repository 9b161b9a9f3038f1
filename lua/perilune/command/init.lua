-- SPDX-License-Identifier: MIT
-- The subcommands of perilune that are written in Lua. Each is a function of its arguments that prints, and returns the
-- exit status: 0 all went well, 1 something is wrong with what it was given, 2 wrong usage.
local pages = require "perilune.command.pages"

local M = {}

local OK, FAILED, USAGE = 0, 1, 2

-- ---- help -----------------------------------------------------------------------------------------------------

local EXITS = [[
Exit status: 0 all went well; 1 an error in the script (message and traceback on standard error), a difference found,
or output that could not be written; 2 wrong usage; 130 ended by Ctrl-C.]]
M.EXITS = EXITS

function M.overview()
  local lines, widest = { "usage: perilune [COMMAND | FILE.lua ARGS...]" }, 0
  for _, page in ipairs(pages) do widest = math.max(widest, #page[2]) end
  for _, page in ipairs(pages) do
    lines[#lines + 1] = ("  perilune %s%s  %s"):format(page[2], (" "):rep(widest - #page[2]), page[3])
  end
  lines[#lines + 1] = "  perilune --version, --help; perilune COMMAND --help tells more"
  lines[#lines + 1] = EXITS
  return table.concat(lines, "\n")
end

function M.page(name)
  for _, page in ipairs(pages) do
    if page[1] == name then
      return ("usage: perilune %s\n%s%s%s"):format(page[2], page[3], page[4] ~= "" and "\n" or "", page[4])
    end
  end
end

local function usage(name, message)
  io.stderr:write(("perilune %s: %s\nusage: perilune %s\n"):format(name, message,
    (M.page(name) or ""):match "^usage: perilune ([^\n]*)"))
  return USAGE
end

-- ---- small commands -------------------------------------------------------------------------------------------

local commands = {}

function commands.info(...)
  if select("#", ...) > 0 then return usage("info", "takes no arguments") end
  print(require("perilune").info())
  return OK
end

function commands.help(...)
  local T = require "perilune"
  if select("#", ...) == 0 then
    print(T.help_text())
    return OK
  end
  local about = require "perilune.repl.about"
  local env = setmetatable({ T = T, nn = T.nn, optim = T.optim }, { __index = _G })
  local status = OK
  for _, name in ipairs { ... } do
    local text, known = about.name(name, env)
    if known == false then
      io.stderr:write("perilune help: ", text, "\n")
      status = FAILED
    else
      print(text)
    end
  end
  return status
end

-- perilune.command(name, …) → exit status
return function(name, ...)
  if name == "--help" then
    print(M.overview())
    return OK
  end
  local first = ...
  local f = commands[name]
  if not f or first == "--help" or first == "-h" then
    print(M.page(name) or M.overview())
    return OK
  end
  return f(...)
end
