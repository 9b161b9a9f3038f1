-- SPDX-License-Identifier: MIT
-- perilune chat: a conversation with a model, line by line. Ctrl-C stops a reply, not the conversation.
local T = require "perilune"
local core = require "perilune.core"
local history = require "perilune.repl.history"
local terminal = require "perilune.terminal"
local text = require "perilune.models.text"

local OK, FAILED, INTERRUPTED = 0, 1, 130
local SIGNALS = { terminated = 15, hangup = 1 }

local function complain(message) io.stderr:write("perilune chat: ", message, "\n") end

-- ---- a conversation ----------------------------------------------------------------------------------------

local Chat = {}
Chat.__index = Chat

function Chat:reset()
  self.messages = {}
  if self.system then self.messages[1] = { role = "system", content = self.system } end
end

-- Answers the messages so far; the cache has what the model has read of them already. → true and whether Ctrl-C stopped
-- the reply; or nil, message
function Chat:reply(emit)
  local ids, why = text.chat_ids(self.model, self.messages)
  if not ids then return nil, why end
  local context, most = self.model.context, self.o.max_new_tokens or 512
  if context then
    if #ids >= context then
      return nil, ("the conversation has %d tokens and the model's context %d; /reset begins anew"):format(#ids,
        context)
    end
    most = math.min(most, context - #ids)
  end
  local settings = text.sampling(self.o, self.model.net.generation_config)
  settings.max_new_tokens, settings.cache, settings.generator = most, self.cache, self.generator
  local said = {}
  core.raised(false)
  local ok, failure = terminal.guard(function(e) return e end, text.reply, self.model, ids, settings, self.o.stop,
    function(piece)
      said[#said + 1] = piece
      return emit(piece)
    end)
  local stopped = not ok and core.raised() == "interrupt"
  if not ok and not stopped then return nil, text.plain(failure) end
  self.messages[#self.messages + 1] = { role = "assistant", content = table.concat(said) }
  return true, stopped
end

-- One message of the user's, answered. → whether it could be, and whether Ctrl-C stopped that
function Chat:say(line)
  self.messages[#self.messages + 1] = { role = "user", content = line }
  local n, written = #self.messages, true
  local ok, why = self:reply(function(piece)
    written = io.stdout:write(piece) and io.stdout:flush() and written
    return written and true or false
  end)
  io.stdout:write "\n"
  io.stdout:flush()
  if not ok then
    for i = #self.messages, n, -1 do self.messages[i] = nil end
    complain(why)
  end
  return ok and written, ok and why
end

-- ---- commands ----------------------------------------------------------------------------------------------

local HELP = [[
Each line is a message. Ctrl-C stops a reply.
/reset         begins anew
/system TEXT   sets the system prompt and begins anew; without TEXT there is none
/exit, Ctrl-D  ends]]

-- → "exit", true where the line was a command, nil where it is a message
function Chat:command(line)
  local word, rest = line:match "^%s*/(%a+)%s*(.-)%s*$"
  if not word then return nil end
  if word == "exit" or word == "quit" then return "exit" end
  if word == "reset" then
    self:reset()
  elseif word == "system" then
    self.system = rest ~= "" and rest or nil
    self:reset()
  elseif word == "help" then
    print(HELP)
  else
    complain(("there is no command /%s; /help lists them"):format(word))
  end
  return true
end

-- ---- where lines come from ---------------------------------------------------------------------------------

local function on_terminal(chat)
  local editor = require("perilune.repl.lines").editor()
  local list, path = history.load "chat"
  for _, entry in ipairs(list or {}) do editor:add(entry) end
  print(chat.model.name .. ": /help lists the commands, Ctrl-D ends.")
  while true do
    io.stdout:flush()
    local line, why = editor:read "> "
    if line and line:find "%S" then
      editor:add(line)
      if list and not history.append(path, line) then list = nil end
      local command = chat:command(line)
      if command == "exit" then break end
      if not command then chat:say(line) end
    elseif not line and why == "interrupt" then
      print "^C"
    elseif not line then
      if why == "end" then print() end
      editor:close()
      return SIGNALS[why] and terminal.die(SIGNALS[why]) or OK
    end
  end
  editor:close()
  return OK
end

local function piped(chat)
  local status = OK
  for line in io.stdin:lines() do
    local command = line:find "%S" and chat:command(line)
    if command == "exit" then break end
    if not command and line:find "%S" then
      local ok, stopped = chat:say(line)
      if stopped then return INTERRUPTED end
      if not ok then status = FAILED end
    end
  end
  return status
end

-- → exit status
return function(path, o)
  local model, why = text.open(path, o)
  why = why or text.mute(model)
  if not why and not model.template then
    why = model.name .. " has no chat template; --template FILE gives one, perilune generate goes on with a text"
  end
  if why then
    complain(why)
    return FAILED
  end
  local chat = setmetatable({ model = model, o = o, system = o.system, cache = T.nn.KVCache(),
    generator = T.Generator(o.seed or text.seed()) }, Chat)
  chat:reset()
  if terminal.is_terminal(0) and terminal.is_terminal(1) then return on_terminal(chat) end
  return piped(chat)
end
