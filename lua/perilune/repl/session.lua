-- SPDX-License-Identifier: MIT
-- One session at the prompt: compiles inputs (an expression first, then statements), runs them so that Ctrl-C stops
-- them, keeps their results as _, _1, _2 …, and shows them.
local terminal = require "perilune.terminal"
local lex = require "perilune.repl.lex"
local show = require "perilune.repl.show"
local errors = require "perilune.repl.errors"

local Session = {}
Session.__index = Session

local KEPT_RESULTS, KEPT_SOURCES = 20, 1000
local SLOW = 0.1 -- seconds from which the time is told

-- settings: {env=, style={colour=, width=}, out=file, err=file, timed=boolean, chunk_name=function(n) → name,
-- guard=what calls so that an interrupt is an error (terminal.guard), end_hint=how a session ends, without= commands
-- that it does not have → why}
function Session.new(settings)
  return setmetatable({
    env = settings.env, style = settings.style, out = settings.out, err = settings.err, timed = settings.timed,
    chunk_name = settings.chunk_name, prefix = settings.prefix or "", inputs = 0, kept = {}, sources = {}, names = {},
    guard = settings.guard or terminal.guard, end_hint = settings.end_hint or "Ctrl-D or :quit ends the prompt",
    without = settings.without or {},
  }, Session)
end

-- ---- compiling ------------------------------------------------------------------------------------------------

-- More lines may make it whole; a quoted string goes on only behind a backslash.
local function incomplete(message, text)
  if message:find("function arguments expected", 1, true) then return false end -- x:shape
  return message:sub(-5) == "<eof>" and (not message:find("unfinished string", 1, true) or text:sub(-1) == "\\")
end

-- The shebang line of a pasted script is no Lua.
local function without_shebang(text) return (text:gsub("^#![^\n]*", "")) end

-- `return f(x)` would be a tail call, and the input's frame gone when f raises: the values go through a function that
-- is the chunk's argument.
local function expression(text, name, env)
  local plain, fault = load("return " .. text, name, "t", env)
  if not plain then return nil, fault end
  local tokens = lex.code(text)
  local last = tokens[#tokens]
  if not last then return function(pack) return pack() end end
  local bare = text:sub(1, last.text == ";" and last.from - 1 or last.to)
  return load("return (...)(" .. bare .. ")", name, "t", env) or function(pack) return pack(plain()) end
end

-- Statements and an expression behind them, `x = x + 1; x`: the function gets what takes the locals and the values.
local function ending_in_expression(text, name, env)
  local tokens, depth = lex.code(text), 0
  local last = tokens[#tokens]
  if not last or last.open then return nil end
  local stop = last.text == ";" and last.from - 1 or last.to
  for i = #tokens, 2, -1 do
    local t, before = tokens[i], tokens[i - 1]
    local kind = t.kind == "keyword" or t.kind == "symbol"
    depth = depth - (kind and lex.opens[t.text] or 0) + (kind and lex.closes[t.text] or 0)
    -- behind a line's end only a name begins a statement for sure: ( " { [ may go on with the line above
    local begins = depth == 0 and t.from <= stop and (before.text == ";"
      or t.kind == "name" and text:sub(before.to + 1, t.from):find "\n")
    if begins and load("return " .. text:sub(t.from, stop), name, "t", env) then
      local head = text:sub(1, t.from - 1)
      local names = lex.top_locals(head)
      local f = load(head, name, "t", env) and load(("%s return (...)({%s}, %s)"):format(head, table.concat(names,
        ", "),
        text:sub(t.from, stop)), name, "t", env)
      if f then return f, names end
    end
  end
  return nil
end

-- → function, kind ("expression", "statement", "both"), names of locals to keep; or nil, message, whether more lines
-- may help. An expression's function takes one that gets the values, and returns what that returns.
function Session:compile(text, name)
  text = without_shebang(text):gsub("^%s*=%f[^=]", " ", 1) -- =x as in Lua 5.1
  local f, expression_fault = expression(text, name, self.env)
  if f then return f, "expression" end
  local both, both_names = ending_in_expression(text, name, self.env)
  if both then return both, "both", both_names end
  local fault
  f, fault = load(text, name, "t", self.env)
  if not f then
    local more = incomplete(fault, text) or incomplete(expression_fault, text)
    local tokens = lex.code(text)
    local statement = tokens[1] and tokens[1].kind == "keyword"
    for _, t in ipairs(tokens) do statement = statement or t.text == "=" end
    return nil, not statement and fault:find("syntax error near", 1, true) and expression_fault or fault, more
  end
  local names = lex.top_locals(text)
  if #names > 0 then -- the values of the locals at the end, unless the text returns something itself
    local keeper = load(text .. "\nreturn " .. table.concat(names, ", "), name, "t", self.env)
    if keeper then return keeper, "statement", names end
  end
  return f, "statement"
end

-- for i in range(3): print(i), or while True: and the end of the line: a block of Python's, which no line makes whole.
-- A method's colon has its name behind it.
local PYTHON = { ["for"] = true, ["while"] = true, ["if"] = true, ["elif"] = true, ["try"] = true }
local function is_python(text)
  local line = text:match "^%s*([^\n]*)"
  if not PYTHON[line:match "^%a+"] or line:find "%f[%w_]do%f[^%w_]" or line:find "%f[%w_]then%f[^%w_]" then
    return false
  end
  local tokens = lex.code(line)
  for i, t in ipairs(tokens) do
    local behind = tokens[i + 1]
    if t.text == ":" and t.kind == "symbol" and (not behind or behind.from > t.to + 1) then return true end
  end
  return false
end

function Session:is_incomplete(text)
  if is_python(text) then return false end
  local f, _, more = self:compile(text, "=input")
  return f == nil and more
end

-- ---- results --------------------------------------------------------------------------------------------------

-- The first value that is not nil, as `_` and under the input's number, that of the prompt and of errors.
function Session:keep(values)
  local env = self.env
  for i = 1, values.n do
    local v = values[i]
    if v ~= nil then
      rawset(env, "_" .. self.inputs, v)
      rawset(env, "_", v)
      self.kept[#self.kept + 1] = self.inputs
      if #self.kept > KEPT_RESULTS then rawset(env, "_" .. table.remove(self.kept, 1), nil) end
      return
    end
  end
end

local function silenced(text)
  local tokens = lex.code(text)
  return tokens[#tokens] and tokens[#tokens].text == ";"
end

function Session:write(text) self.out:write(text, "\n") end

-- What an input gave, and what is told of a name. A front end that shows more than text has its own.
function Session:present(values) self:write(show.values(values, values.n, self.style)) end
function Session:page(text) self:write(text) end

function Session:complain(text)
  self.out:flush()
  self.err:write(self.prefix, text, "\n")
  self.err:flush()
end

-- Remembers the text behind a chunk's name, for the lines that errors show.
function Session:remember(name, text)
  if self.sources[name] then return end -- "=stdin": its lines are there
  self.sources[name] = text
  self.names[#self.names + 1] = name
  if #self.names > KEPT_SOURCES then self.sources[table.remove(self.names, 1)] = nil end
end

-- Calls f(…) so that Ctrl-C stops it; complains about an error. → whether it went well, its results
function Session:guarded(f, ...)
  local results = table.pack(self.guard(errors.capture, f, ...))
  local ok = results[1]
  if ok then return true, table.move(results, 2, results.n, 1, { n = results.n - 1 }) end
  local report = results[2]
  if type(report) ~= "table" or not report.frames then report = { message = report, frames = {} } end -- out of memory
  -- the terminal has echoed ^C: what follows begins a line
  if self.timed and errors.message_text(report.message):find("interrupted", 1, true) then self.out:write "\n" end
  local told, text = pcall(errors.text, report, self, self.style)
  self:complain(told and text or "error: " .. errors.message_text(report.message))
  return false
end

-- ---- one input ------------------------------------------------------------------------------------------------

function Session:seconds(took)
  if took < 1 then return ("%.0f ms"):format(took * 1000) end
  if took < 120 then return ("%.2f s"):format(took) end
  return ("%d min %d s"):format(took // 60, took % 60 // 1)
end

-- Runs a whole input; false when it raised or did not compile. first: the number of its first line.
function Session:run(text, first)
  text = ("\n"):rep((first or 1) - 1) .. text
  self.inputs = self.inputs + 1
  local name = self.chunk_name(self.inputs)
  local f, kind, names = self:compile(text, name)
  if not f then
    self:complain(errors.syntax(kind, text, name:sub(2), self.style))
    return false
  end
  self:remember(name, text)
  local start = terminal.now()
  local locals
  local ok, values = self:guarded(f, kind == "both" and function(list, ...)
    locals = list
    return table.pack(...)
  end or table.pack)
  if ok and kind ~= "statement" then values = values[1] end
  local took = terminal.now() - start
  for i, key in ipairs(locals and names or {}) do rawset(self.env, key, locals[i]) end
  if ok and names and kind == "statement" then
    for i, key in ipairs(names) do rawset(self.env, key, values[i]) end
  elseif ok and values.n > 0 then
    self:keep(values)
    if kind == "statement" or not silenced(text) then
      ok = self:guarded(self.present, self, values)
    end
  end
  local notes = require("perilune.help.uncalled").notes
  for _, note in ipairs(ok and notes(text, self.env, kind == "expression" and values or nil) or {}) do
    self:complain("note: " .. note)
  end
  if self.timed and took >= SLOW then self:write(show.paint(self.style, "dim", self:seconds(took))) end
  return ok
end

return Session
