-- SPDX-License-Identifier: MIT
-- The prompt: reads inputs from a terminal through libedit (or plainly without it), or from a pipe, and hands them to
-- a session. require "perilune.repl"() runs it in any Lua 5.4 and returns its exit status.
local T = require "perilune"
local terminal = require "perilune.terminal"
local show = require "perilune.repl.show"
local Session = require "perilune.repl.session"
local environment = require "perilune.repl.environment"
local input = require "perilune.repl.input"
local history = require "perilune.repl.history"

-- ---- what was typed ----------------------------------------------------------------------------------------------

-- Fills the editor from the history file. → the file's path, or nil and why it is not used
local function load_history(editor)
  local list, path = history.load "history"
  for _, entry in ipairs(list or {}) do editor:add(entry) end
  return list and path, path
end

local function remember(session, editor, text)
  if input.is_code(text) and text:find "%S" then session.last = text end -- what :edit opens
  if not text:find "%S" or text == session.remembered then return end
  session.remembered = text
  editor:add((text:gsub("%z", " ")))
  if not session.history then return end
  local ok, message = history.append(session.history, text)
  if not ok then
    session.history = nil
    session:complain("history: " .. message .. "; later lines are not kept")
  end
end

-- ---- the loops ------------------------------------------------------------------------------------------------

local function prompts(session)
  local first = ("[%d]> "):format(session.inputs + 1)
  local more = (" "):rep(#first - 3) .. ">> "
  if not session.style.colour then return first, more end
  -- libedit wants a character behind each invisible text
  return "\1\27[1m\1" .. first:sub(1, -2) .. "\1\27[0m\1 ", "\1\27[2m\1" .. more:sub(1, -2) .. "\1\27[0m\1 "
end

-- Lines until they are an input; nil and why at the end, false when Ctrl-C cleared it.
local function read_input(session, editor)
  local first, more = prompts(session)
  local text, why = editor:read(first)
  while text and input.is_code(text) and session:is_incomplete(text) do
    session.pending = text
    local line
    -- what is pasted brings its own blanks
    line, why = editor:read(more, not terminal.pending() and require("perilune.repl.lex").indent(text) or 0)
    if not line then
      session.pending = nil
      if why == "interrupt" then return false end
      return text, why -- the end of input: what is there is judged as it is
    end
    text = text .. "\n" .. line
    -- a blank line ends an input that is typed; in one that is pasted more follows at once
    if not line:find "%S" and not terminal.pending() then break end
  end
  session.pending = nil
  if not text and why == "interrupt" then return false end
  return text, why
end

local SIGNALS = { terminated = 15, hangup = 1 }

-- The terminal's width, for tables and for tensors, unless the user has set that.
local function follow_width(session)
  local width = math.max(20, math.min(terminal.width() or 80, 1000))
  if width ~= session.style.width then
    session.style.width = width
    T.set_printoptions { linewidth = width }
  end
end

local function interactive(session)
  local editor, plain = require("perilune.repl.lines").editor()
  local completer
  editor:on_complete(function(line, cursor)
    completer = completer or require("perilune.repl.complete").new(session.env)
    return completer:for_editor((session.pending and session.pending .. "\n" or ""), line, cursor, session.style.width)
  end)
  if session.style.colour then
    editor:on_paint(function(line)
      if not session.pending and not input.is_code(line) then return nil end
      local before = session.pending and session.pending .. "\n" or ""
      return show.code(before .. line, #before + 1)
    end)
  end
  local why_not
  session.history, why_not = load_history(editor)
  session:write(("perilune %s, %s. ? introduces the prompt, Ctrl-D ends."):format(T.version, _VERSION))
  if not session.history then session:complain("history: " .. why_not .. "; lines are not kept") end
  local why
  repeat
    follow_width(session)
    session.out:flush()
    local text
    text, why = read_input(session, editor)
    if text == false then
      session.out:write(plain and "\n" or "^C\n")
      why = nil
    elseif text then
      remember(session, editor, text)
      follow_width(session)
      input.run(session, text)
    elseif why == "end" then
      session.out:write "\n"
    end
  until why or session.over
  editor:close()
  if SIGNALS[why] then terminal.die(SIGNALS[why]) end
  return 0
end

-- Inputs from a pipe or a file: no prompts; line numbers are those of the whole.
local function piped(session)
  local status, text, first, lines = 0, nil, 1, {}
  session.sources["=stdin"] = lines
  for line in function() return (io.stdin:read "l") end do -- a closed standard input is an empty one
    lines[#lines + 1] = line
    text = text and text .. "\n" .. line or line
    if not input.is_code(text) or not session:is_incomplete(text) then
      if not input.run(session, text, first) then status = 1 end
      text, first = nil, #lines + 1
      session.out:flush()
    end
    if session.over then return status end
  end
  if text and not input.run(session, text, first) then status = 1 end
  return status
end

return function()
  environment.equip(_G)
  T.core.prompt = require("perilune.repl.errors").capture -- T.fit returns what it has when Ctrl-C stops it here
  local on_terminal = terminal.is_terminal(0) and terminal.is_terminal(1)
  local dumb = os.getenv "TERM" == "dumb"
  local session = Session.new {
    env = _G, out = io.stdout, err = io.stderr, timed = on_terminal,
    style = { width = 80,
      colour = terminal.is_terminal(1) and not dumb and (os.getenv "NO_COLOR" or "") == "" },
    prefix = on_terminal and "" or "perilune: ",
    chunk_name = on_terminal and function(n) return "=input " .. n end or function() return "=stdin" end,
  }
  session.known = environment.known(_G)
  session.own_help = rawget(_G, "help")
  return on_terminal and interactive(session) or piped(session)
end
