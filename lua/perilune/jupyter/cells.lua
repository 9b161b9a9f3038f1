-- SPDX-License-Identifier: MIT
--- Runs cells: the prompt's session (perilune.repl.session) whose results, errors and pages become messages.
-- @module perilune.jupyter.cells
local T = require "perilune"
local zeromq = require "perilune.zeromq"
local json = require "perilune.io.json"
local errors = require "perilune.repl.errors"
local history = require "perilune.repl.history"
local input = require "perilune.repl.input"
local about = require "perilune.repl.about"
local environment = require "perilune.repl.environment"
local display = require "perilune.jupyter.display"
local Session = require "perilune.repl.session"

local Cells = {}
Cells.__index = Cells

local WIDTH = display.WIDTH

local KEYS = [[
  Tab          completes names, fields, methods, options in a call's table; Shift-Tab tells what a name is
  stop         the button stops what runs, and keeps all variables
  display(x)   shows a value now; what it returns has :update(y), which shows another in the same place
  clear_output()   removes what the cell has shown
]]

-- What os.exit raises: the cell ends, then the kernel does.
local EXIT = setmetatable({}, { __tostring = function() return "the kernel ends" end })

--- send(kind, content, metadata): publishes a message about the request that is being answered.
function Cells.new(env, send)
  environment.equip(env)
  about.introduce(KEYS)
  local shower = display.shower(send)
  if rawget(env, "display") == nil then rawset(env, "display", shower) end
  if rawget(env, "clear_output") == nil then
    rawset(env, "clear_output", function(wait)
      zeromq.flush()
      send("clear_output", { wait = wait == true })
    end)
  end
  T.core.notebook = { note = display.note,
    fit = function(rows) return require "perilune.jupyter.fit_view"(rows, shower) end }
  local self = setmetatable({ count = 0, send = send, failures = {}, stored = {} }, Cells)
  local session = Session.new { env = env, out = io.stdout, err = io.stderr, guard = zeromq.guard,
    style = { colour = true, width = WIDTH }, chunk_name = function() return self.chunk end,
    end_hint = ":quit ends the kernel", without = { edit = "needs a terminal" } }
  session.known = environment.known(env)
  session.own_help = rawget(env, "help")
  self.session, self.keep = session, session.keep
  function session.complain(_, text) self.failures[#self.failures + 1] = text end
  function session.present(_, values) self:present(values) end
  function session.page(_, text) self.pages[#self.pages + 1] = text end
  T.core.prompt = errors.capture -- T.fit returns what it has when an interrupt stops it here
  T.set_printoptions { linewidth = WIDTH }
  local earlier, path = history.load "notebook_history"
  self.earlier, self.history_path = earlier or {}, earlier and path
  self.number = #self.earlier > 0 and 2 or 1 -- all earlier sessions count as one
  os.exit = function() -- luacheck: ignore
    session.over = true
    error(EXIT, 0)
  end
  -- while a program runs, an interrupt is the program's alone; who waits for it is meant, too
  local execute = os.execute
  os.execute = function(...) -- luacheck: ignore
    local ok, how, status = execute(...)
    if how == "signal" and status == 2 or how == "exit" and status == 130 then
      T.core.raised(true)
      error("interrupted!", 2)
    end
    return ok, how, status
  end
  return self
end

function Cells:present(values)
  if values.n == 1 and display.is_handle(values[1]) then return end -- display(x) at the end of a cell
  local data, metadata = display.bundle_of(values)
  self.result = data["text/plain"]
  if self.silent then return end
  zeromq.flush()
  self.send("execute_result", { execution_count = self.count, data = data, metadata = metadata })
end

local function without_colours(text) return (text:gsub("\27%[[%d;]*m", "")) end

local function lines_of(texts)
  local out = json.array {}
  for line in (table.concat(texts, "\n") .. "\n"):gmatch "([^\n]*)\n" do out[#out + 1] = line end
  return out
end

-- What an error is for those who read the reply alone.
local function failure(texts)
  local first = without_colours(texts[1] or "error"):match("^[^\n]*"):gsub("^error: ", "")
  return { status = "error", ename = first:find "interrupted!?$" and "interrupted" or "error", evalue = first,
    traceback = lines_of(texts) }
end

-- Runs f under the session's guard with what it complains about taken apart. → whether it went well, texts
function Cells:attempt(f)
  self.failures = {}
  local ok = f()
  local texts = self.failures
  self.failures = {}
  if self.session.over then return true, {} end
  if ok then
    for _, text in ipairs(texts) do io.stderr:write(text, "\n") end
  end
  return ok, texts
end

-- name → expression, each as a value or an error
function Cells:expressions(list)
  local out = {}
  for name, text in pairs(type(list) == "table" and list ~= json.null and list or {}) do
    local data, metadata
    local ok, texts = self:attempt(function()
      local f, kind = self.session:compile(tostring(text), "=expression")
      if not f or kind ~= "expression" then
        self.session:complain("error: " .. (f and "an expression is wanted" or kind))
        return false
      end
      return (self.session:guarded(function() data, metadata = display.bundle_of(f(table.pack)) end))
    end)
    out[tostring(name)] = ok and { status = "ok", data = data, metadata = metadata } or failure(texts)
  end
  return out
end

--- The cells of earlier sessions and of this one: list of {session=, line=, code=, result=}
function Cells:remembered()
  local out = {}
  for i, code in ipairs(self.earlier) do out[i] = { session = 1, line = i, code = code } end
  return table.move(self.stored, 1, #self.stored, #out + 1, out)
end

--- Answers an execute_request. → what the reply says, whether cells that wait are to be dropped
function Cells:execute(content)
  local code = content.code
  if type(code) ~= "string" then return failure { "error: the request has no code" }, false end
  local session, blank = self.session, not code:find "%S"
  self.silent = content.silent == true
  local stored = not self.silent and content.store_history ~= false and not blank
  if stored then self.count = self.count + 1 end
  if not self.silent then self.send("execute_input", { code = code, execution_count = self.count }) end
  self.pages, self.result = {}, nil
  self.chunk = stored and ("=cell %d"):format(self.count) or "=code"
  session.sources["=code"] = nil
  session.inputs = self.count - 1
  session.keep = stored and self.keep or function() end
  local ok, texts = self:attempt(function() return input.run(session, code) end)
  zeromq.flush()
  if stored then
    session.last = input.is_code(code) and code or session.last
    self.stored[self.count] = { session = self.number, line = self.count, code = code, result = self.result }
    if self.history_path and not history.append(self.history_path, code) then self.history_path = nil end
  end
  local reply = ok and { status = "ok", user_expressions = self:expressions(content.user_expressions),
    payload = json.array {} } or failure(texts)
  reply.execution_count = self.count
  if not ok then
    self.send("error", { ename = reply.ename, evalue = reply.evalue, traceback = reply.traceback })
  else
    for _, text in ipairs(self.pages) do
      table.insert(reply.payload, { source = "page", start = 0, data = { ["text/plain"] = text } })
    end
    if session.over then table.insert(reply.payload, { source = "ask_exit", keepkernel = false }) end
  end
  zeromq.flush()
  return reply, not ok and not self.silent and content.stop_on_error ~= false
end

return Cells
