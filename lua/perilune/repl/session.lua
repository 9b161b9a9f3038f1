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

-- settings: {env=, style={colour=, width=}, out=file, err=file, timed=boolean, chunk=function() → name}
function Session.new(settings)
  return setmetatable({
    env = settings.env, style = settings.style, out = settings.out, err = settings.err, timed = settings.timed,
    chunk_name = settings.chunk_name, prefix = settings.prefix or "", inputs = 0, results = 0, sources = {}, names = {},
  }, Session)
end

-- ---- compiling ------------------------------------------------------------------------------------------------

-- More lines may make it whole; a quoted string goes on only behind a backslash.
local function incomplete(message, text)
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

-- → function, kind ("expression", "statement"), names of locals to keep; or nil, message, whether more lines may help.
-- An expression's function takes one that gets the values, and returns what that returns.
function Session:compile(text, name)
  text = without_shebang(text)
  local f, expression_fault = expression(text, name, self.env)
  if f then return f, "expression" end
  local fault
  f, fault = load(text, name, "t", self.env)
  if not f then return nil, fault, incomplete(fault, text) or incomplete(expression_fault, text) end
  local names = lex.top_locals(text)
  if #names > 0 then -- the values of the locals at the end, unless the text returns something itself
    local keeper = load(text .. "\nreturn " .. table.concat(names, ", "), name, "t", self.env)
    if keeper then return keeper, "statement", names end
  end
  return f, "statement"
end

function Session:is_incomplete(text)
  local f, _, more = self:compile(text, "=input")
  return f == nil and more
end

-- ---- results --------------------------------------------------------------------------------------------------

-- The next numbers for the values that are not nil; `_` is the first of them.
function Session:keep(values)
  local env, first = self.env, true
  for i = 1, values.n do
    local v = values[i]
    if v ~= nil then
      self.results = self.results + 1
      rawset(env, "_" .. self.results, v)
      if self.results > KEPT_RESULTS then rawset(env, "_" .. self.results - KEPT_RESULTS, nil) end
      if first then rawset(env, "_", v) end
      first = false
    end
  end
end

local function silenced(text)
  local tokens = lex.code(text)
  return tokens[#tokens] and tokens[#tokens].text == ";"
end

function Session:write(text) self.out:write(text, "\n") end

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
  local results = table.pack(terminal.guard(errors.capture, f, ...))
  local ok = results[1]
  if ok then return true, table.move(results, 2, results.n, 1, { n = results.n - 1 }) end
  local report = results[2]
  if type(report) ~= "table" or not report.frames then report = { message = report, frames = {} } end -- out of memory
  local told, text = pcall(errors.text, report, self, self.style)
  self:complain(told and text or "error: " .. tostring(report.message))
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
  local ok, values = self:guarded(f, table.pack)
  if ok and kind == "expression" then values = values[1] end
  local took = terminal.now() - start
  if ok and names then
    for i, key in ipairs(names) do rawset(self.env, key, values[i]) end
  elseif ok and values.n > 0 then
    self:keep(values)
    if kind ~= "expression" or not silenced(text) then
      ok = self:guarded(function() self:write(show.values(values, values.n, self.style)) end)
    end
  end
  if self.timed and took >= SLOW then self:write(show.paint(self.style, "dim", self:seconds(took))) end
  return ok
end

return Session
