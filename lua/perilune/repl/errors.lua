-- SPDX-License-Identifier: MIT
-- What the prompt says of an error: the message, the line that raised it, what the names in that line are, and the
-- calls that led there. perilune's own files and C functions are left out.
local lex = require "perilune.repl.lex"
local show = require "perilune.repl.show"
local hints = require "perilune.help.hints"

local M = {}
local MAX_NAMES, MAX_FRAMES = 8, 12

-- A message handler: {message=, frames={{source, line, name, vars}}}.
function M.capture(message)
  if type(message) == "table" and rawget(message, "frames") and rawget(message, "message") then return message end
  local report = { message = message, frames = {} }
  for level = 2, 200 do
    local info = debug.getinfo(level, "Slnf")
    if not info then break end
    if info.what ~= "C" and not hints.own(info.source) and #report.frames < MAX_FRAMES then
      local frame = { source = info.source, short = info.short_src, line = info.currentline, name = info.name,
        main = info.what == "main" }
      if #report.frames == 0 then frame.vars = hints.variables(level, info.func) end
      report.frames[#report.frames + 1] = frame
    end
  end
  return report
end

-- Text of a line of an input at the prompt, or of a file.
local function source_line(frame, sources)
  local text = sources[frame.source]
  if type(text) == "table" then
    text = text[frame.line]
    return text and text:sub(1, 500):match "^%s*(.-)%s*$"
  end
  if not text then
    local path = frame.source:match "^@(.*)"
    text = path and hints.file_line(path, frame.line)
    return text and #text < 500 and text:match "^%s*(.-)%s*$" or nil
  end
  local line = hints.line_of(text, frame.line)
  return line and (#line < 500 and line:match "^%s*(.-)%s*$" or line:sub(1, 500) .. " …")
end

local function field(value, key)
  if type(value) ~= "table" then return nil end
  return rawget(value, key)
end

-- The names of a line that stand for data: "x" → brief text. Fields of tables as written, x.y.z.
local function names_of(line, vars, env)
  local tokens, list, seen = lex.code(line), {}, {}
  local i = 1
  while i <= #tokens do
    local t, before, after = tokens[i], tokens[i - 1], tokens[i + 1]
    local value
    local text = t.text
    local is_key = after and after.text == "=" and before and (before.text == "{" or before.text == ",")
    local named = before and (before.text == "." or before.text == ":" or before.text == "function")
    if t.kind == "name" and not named and not is_key then
      local slot = vars and vars[text]
      if slot then value = slot[1] else value = rawget(env, text) end
      while tokens[i + 1] and tokens[i + 1].text == "." and tokens[i + 2] and type(value) == "table" do
        value, text = field(value, tokens[i + 2].text), text .. "." .. tokens[i + 2].text
        i = i + 2
      end
      local assigned = tokens[i + 1] and tokens[i + 1].text == "="
      local library = type(value) == "function" or (type(value) == "table" and (rawequal(package.loaded[text], value)
        or rawget(value, "core") ~= nil or rawget(value, "F") ~= nil or rawget(value, "__perilune_module") ~= nil
        or type(rawget(value, "settings")) == "table" or show.brief(value) == "class"))
      library = library or text:find "^T%." and not (vars and vars.T) -- a part of perilune
      local lazy = value == nil and (text == "T" or text == "nn" or text == "optim" or text:find(".", 1, true))
      if not library and not lazy and not assigned and not seen[text] and #list < MAX_NAMES then
        seen[text] = true
        list[#list + 1] = { text, show.brief(value) }
      end
    end
    i = i + 1
  end
  return list
end

local function message_text(v)
  if type(v) == "string" then return v end
  local meta = debug.getmetatable(v)
  local own = type(meta) == "table" and rawget(meta, "__tostring")
  if own then
    local ok, text = pcall(tostring, v)
    if ok then return text end
  end
  -- a text of its own that cannot be had is not asked for again
  return ("(error object is a %s value: %s)"):format(type(v), own and show.brief(v) or show.value(v, { width = 1000 }))
end
M.message_text = message_text

-- The report as text. session: {sources=, env=}
function M.text(report, session, style)
  local message = message_text(report.message)
  local lines, first = {}, report.frames[1]
  if first then -- the place is told by the line below
    local place = ("%s:%d: "):format(first.short, first.line)
    if session.sources[first.source] and message:sub(1, #place) == place then message = message:sub(#place + 1) end
  end
  local line = first and source_line(first, session.sources)
  lines[1] = show.paint(style, "red", "error: ") .. show.printable(message) ..
    hints.runtime(message, line, first and first.vars, session.env,
      line and first.line > 1 and source_line({ source = first.source, line = first.line - 1 }, session.sources) or nil,
      nil, function(name)
        for i = #(session.names or {}), 1, -1 do
          for part in session.sources[session.names[i]]:gmatch "[^\n;]+" do
            if hints.assigns(part, name) then return part end
          end
        end
      end)
  if not first then return lines[1] end
  local place = ("%s, line %d"):format(first.short, first.line)
  lines[2] = ("  %s%s"):format(show.paint(style, "dim", place), line and ":  " .. show.printable(line) or "")
  local names = line and names_of(line, first.vars, session.env) or {}
  for _, entry in ipairs(names) do
    lines[#lines + 1] = ("    %s = %s"):format(show.paint(style, "blue", entry[1]), entry[2])
  end
  for i = 2, #report.frames do
    local frame = report.frames[i]
    local called = source_line(frame, session.sources)
    lines[#lines + 1] = "  " .. show.paint(style, "dim", ("called from %s, line %d"):format(frame.short, frame.line)) ..
      (called and ":  " .. show.printable(called) or "")
  end
  return table.concat(lines, "\n")
end

-- A syntax error: the message without the chunk's name, the line, a caret where one can be told.
function M.syntax(message, text, name, style)
  local line, rest = message:match("^" .. name:gsub("%p", "%%%0") .. ":(%d+): (.*)$")
  line = tonumber(line)
  local out = { show.paint(style, "red", "error: ") .. show.printable(rest or message) }
  local n = 0
  for source in (text .. "\n"):gmatch "([^\n]*)\n" do
    n = n + 1
    if n == line and source:find "%S" then
      source = #source > 500 and source:sub(1, 500) .. " …" or source
      out[1] = out[1] .. hints.syntax(rest or message, source)
      out[2] = ("  %s:  %s"):format(show.paint(style, "dim", ("line %d"):format(n)), show.printable(source))
      local token = rest:match "near '(.*)'$"
      local at = token and source:find(token, 1, true)
      if at then
        local pad = #("  line : ") + #tostring(n) + 1 + (utf8.len(source:sub(1, at - 1)) or at - 1)
        out[3] = (" "):rep(pad) .. show.paint(style, "red", "^")
      end
    end
  end
  return table.concat(out, "\n")
end

return M
