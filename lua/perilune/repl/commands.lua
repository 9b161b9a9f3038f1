-- SPDX-License-Identifier: MIT
-- The prompt's commands: a colon and a word. Each gets the session and the text behind the word.
local T = require "perilune"
local terminal = require "perilune.terminal"
local walk = require "perilune.repl.walk"
local about = require "perilune.repl.about"
local show = require "perilune.repl.show"
local options = require "perilune.options"
local shell = require "perilune.shell"

local M = {}
local commands, pages = {}, {}

local function bytes(n)
  for _, unit in ipairs { "B", "kB", "MB", "GB" } do
    if math.abs(n) < 1000 or unit == "GB" then
      return unit == "B" and ("%d B"):format(n) or ("%.1f %s"):format(n, unit)
    end
    n = n / 1000
  end
end

local function seconds(t)
  if t < 1e-3 then return ("%.3g us"):format(t * 1e6) end
  if t < 1 then return ("%.3g ms"):format(t * 1e3) end
  return ("%.3g s"):format(t)
end

-- The code behind a command as a function, or nil after saying what is wrong.
local function compiled(session, word, text)
  if not text:find "%S" then
    session:complain(("error: :%s needs an expression, such as :%s x:matmul(x)"):format(word, word))
    return nil
  end
  local f, fault = session:compile(text, "=input")
  if f then
    session.sources["=input"] = text
    return function() f(function() end) end
  end
  session:complain(require("perilune.repl.errors").syntax(fault, text, "input", session.style))
  return nil
end

-- ---- :time ------------------------------------------------------------------------------------------------------

pages.time = { "EXPRESSION", "runs it for half a second and tells the time of one run" }
function commands.time(session, text)
  local f = compiled(session, "time", text)
  if not f then return false end
  return session:guarded(function()
    local peak_before = T.memory().live
    T.reset_peak_memory()
    local best, total, n = math.huge, 0, 0
    repeat
      local start = terminal.now()
      f()
      local took = terminal.now() - start
      best, total, n = math.min(best, took), total + took, n + 1
    until total > 0.5 or n >= 1000000
    session:write(n == 1 and ("%s, one run"):format(seconds(best))
      or ("%s in the mean, %s at best, %d runs"):format(seconds(total / n), seconds(best), n))
    local extra = T.memory().peak - peak_before
    session:write(("%s of tensors at the peak, above what was there"):format(bytes(math.max(0, extra))))
  end)
end

-- ---- :prof ------------------------------------------------------------------------------------------------------

local function function_names()
  local names = {}
  for _, op in ipairs(T.core.ops()) do
    local f = T.core.op[op.name]
    if f then names[f] = op.name end
    if rawget(T, op.name) then names[rawget(T, op.name)] = op.name end
  end
  for name, f in pairs(T.core.metatable().methods) do
    if type(f) == "function" and not names[f] then names[f] = name end
  end
  return names
end

-- Times of functions, C functions included, from call and return hooks. A function's own time is its time less that of
-- the functions it calls.
local function profile(f)
  local stats, stack, now = {}, {}, terminal.now
  local ops = function_names()
  local function leave(t)
    local top = table.remove(stack)
    if not top then return end
    local took = t - top.start
    local entry = stats[top.key]
    entry.own, entry.calls = entry.own + took - top.inner, entry.calls + 1
    if #stack > 0 then stack[#stack].inner = stack[#stack].inner + took end
  end
  local function hook(event)
    local t = now()
    if event ~= "call" then leave(t) end
    if event == "return" then return end
    local info = debug.getinfo(2, "Sf")
    local key = info.func
    if not stats[key] then
      local named = debug.getinfo(2, "n").name
      stats[key] = { own = 0, calls = 0, name = ops[key] or named or "?",
        where = info.what == "C" and (ops[key] and "op" or "C") or ("%s:%d"):format(info.short_src, info.linedefined) }
    end
    stack[#stack + 1] = { key = key, start = t, inner = now() - t }
  end
  local start = now()
  local finish <close> = setmetatable({}, { __close = function() debug.sethook() end })
  debug.sethook(hook, "cr")
  f()
  debug.sethook()
  local list = {}
  for _, entry in pairs(stats) do list[#list + 1] = entry end
  table.sort(list, function(a, b) return a.own > b.own end)
  return list, now() - start, finish
end

pages.prof = { "EXPRESSION", "runs it once and lists where the time went" }
function commands.prof(session, text)
  local f = compiled(session, "prof", text)
  if not f then return false end
  return session:guarded(function()
    local list, total = profile(f)
    local sum = 0
    for _, entry in ipairs(list) do sum = sum + entry.own end
    session:write(("%s in all (the profiler itself slows small calls)"):format(seconds(total)))
    session:write(("%7s  %10s  %8s  %s"):format("share", "own time", "calls", "function"))
    for i = 1, math.min(15, #list) do
      local e = list[i]
      session:write(("%6.1f%%  %10s  %8d  %s (%s)"):format(100 * e.own / math.max(sum, 1e-12), seconds(e.own), e.calls,
        e.name, e.where))
    end
  end)
end

-- ---- :who, :mem -------------------------------------------------------------------------------------------------

pages.who = { "", "lists the variables of the session" }
function commands.who(session)
  local rows, widest = {}, 0
  for name, value in next, session.env do
    if type(name) == "string" and not session.known[name] and not name:find "^_%d*$" then
      rows[#rows + 1] = { name, value }
      widest = math.max(widest, #name)
    end
  end
  table.sort(rows, function(a, b) return a[1] < b[1] end)
  for _, row in ipairs(rows) do
    local v, size = row[2], ""
    if show.is_tensor(v) and not v:is_freed() then size = "  " .. bytes(v:numel() * v:element_size()) end
    session:write(("%s%s  %s%s"):format(show.paint(session.style, "blue", row[1]), (" "):rep(widest - #row[1]),
      show.brief(v), size))
  end
  if #rows == 0 then session:write "no variables yet" end
  return true
end

pages.mem = { "", "tells how much memory is in use" }
function commands.mem(session)
  local m = T.memory()
  session:write(("tensors: %s in %d blocks, peak %s, %s kept for reuse"):format(bytes(m.live), m.blocks, bytes(m.peak),
    bytes(math.max(0, m.reserved - m.live))))
  session:write(("Lua:     %s"):format(bytes(collectgarbage "count" * 1024)))
  return true
end

-- ---- :doc, :edit, :quit, :help ----------------------------------------------------------------------------------

pages.doc = { "NAME", "the same as ?NAME" }
function commands.doc(session, text)
  local page = about.name(text, session.env, session.style.width)
  session:page(terminal.width() and walk.wrapped(page, session.style.width) or page)
  return true
end

pages.edit = { "[FILE]", "opens the last input, or a file, in $EDITOR, then runs it" }
function commands.edit(session, text)
  local path = text:match "^%s*(.-)%s*$"
  local own, why
  if path == "" then
    own, why = shell.temporary_folder()
    local f
    if own then
      path = own .. "/input.lua"
      f, why = io.open(path, "w")
    end
    if f then
      f:setvbuf "no"
      local written
      written, why = f:write(session.last or "", "\n")
      f = f:close() and written
    end
    if not f then
      if own then shell.remove(own) end
      session:complain("error: " .. why)
      return false
    end
  end
  local visual, editor = os.getenv "VISUAL", os.getenv "EDITOR"
  editor = visual and visual ~= "" and visual or editor and editor ~= "" and editor or "vi"
  local ok, _, code = os.execute(editor .. " " .. shell.quote(path))
  local f, message = io.open(path)
  local code_text = f and f:read "a"
  if f then f:close() end
  if own then shell.remove(own) end
  if not ok then
    session:complain(("error: %s ended with status %s; set EDITOR"):format(editor, tostring(code)))
    return false
  end
  if not code_text then
    session:complain("error: " .. tostring(message))
    return false
  end
  if not code_text:find "%S" then return true end
  if own then session.last = code_text:gsub("%s+$", "") end
  return session:run(code_text)
end

pages.quit = { "", "ends the session, as Ctrl-D does" }
function commands.quit(session)
  session.over = true
  return true
end

pages.help = { "", "this list" }
local ORDER = { "time", "prof", "who", "mem", "doc", "edit", "quit", "help" }
M.names = ORDER
function commands.help(session)
  for _, word in ipairs(ORDER) do
    if not session.without[word] then
      session:write(("  :%-18s %s"):format(word .. " " .. pages[word][1], pages[word][2]))
    end
  end
  session:write "? introduces the prompt."
  return true
end

-- Runs a line that begins with a colon; an unambiguous beginning of a word is enough.
function M.run(session, line)
  local word, rest = line:match "^%s*:%s*(%a*)(.*)$"
  local hits = {}
  for _, name in ipairs(ORDER) do
    if name == word then hits = { name } break end
    if word ~= "" and name:sub(1, #word) == word then hits[#hits + 1] = name end
  end
  local lacking = #hits == 1 and session.without[hits[1]]
  if lacking then
    session:complain(("error: :%s %s"):format(hits[1], lacking))
    return false
  end
  if #hits == 1 then return commands[hits[1]](session, rest) end
  local near = options.nearest(word, ORDER)
  session:complain(("error: unknown command :%s%s; :help lists them"):format(word,
    near and ("; did you mean :%s?"):format(near) or ""))
  return false
end

return M
