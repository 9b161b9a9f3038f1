-- SPDX-License-Identifier: MIT
-- A front end for the Jupyter kernel: starts `perilune kernel run` and talks to it over ZeroMQ.
local json = require "perilune.io.json"
local term = require "spec.support.terminal"

local M = {}
local PATIENCE = tonumber(os.getenv "PERILUNE_PATIENCE") or 60 -- seconds; a busy machine is slow

-- Why there is no kernel here, or nil.
function M.missing()
  if not term.there() then return term.missing "perilune" end
  local ok, why = pcall(require, "perilune.zeromq")
  if not ok then return "built without ZeroMQ (Debian: libzmq3-dev): " .. why:match "^[^\n]*" end
end

local Kernel = {}
Kernel.__index = Kernel

local kinds = { shell = "dealer", control = "dealer", stdin = "dealer", iopub = "sub", hb = "req" }
local ports = { shell = 1, control = 2, stdin = 3, iopub = 4, hb = 5 }

-- Starts a kernel. options: env= settings in front of the command, key= what messages are signed with, transport=
-- "ipc" or "tcp", ports= for tcp
function M.start(options)
  options = options or {}
  local zeromq, message = require "perilune.zeromq", require "perilune.jupyter.message"
  local dir, remove = term.folder()
  local key = options.key or "a key"
  local c = { transport = options.transport or "ipc", ip = dir .. "/k", key = key, signature_scheme = "hmac-sha256" }
  if c.transport == "tcp" then c.ip = "127.0.0.1" end
  for name, port in pairs(options.ports or ports) do c[name .. "_port"] = port end
  assert(json.write(dir .. "/connection.json", c))
  local command = term.command:find "^/" and term.command or (os.getenv "PWD") .. "/" .. term.command
  local line = "cd %s && XDG_STATE_HOME=%s %s setsid %s kernel run connection.json 2> log > /dev/null & echo $!"
  local pipe = io.popen(line:format(term.quote(dir), term.quote(dir), options.env and "env " .. options.env or "",
    term.quote(command)))
  local pid = pipe:read "n"
  pipe:close()
  local self = setmetatable({ dir = dir, remove = remove, pid = pid, zeromq = zeromq, side = message.side(key),
    context = zeromq.context(), key = key, published = {} }, Kernel)
  for name, kind in pairs(kinds) do
    -- one name: what is asked on stdin finds who runs the cell
    self[name] = self.context:socket(kind, "the front end")
    local address = c.transport == "tcp" and ("tcp://127.0.0.1:%d"):format(c[name .. "_port"])
      or ("ipc://%s-%d"):format(c.ip, ports[name])
    assert(self[name]:connect(address))
  end
  local ok, why = pcall(self.wait, self, "iopub_welcome")
  if ok then return self end
  self:close()
  error(why, 2)
end

function Kernel:log() return term.read(self.dir .. "/log") end

-- One that has ended and that nobody has waited for does not run: what waits for orphans may be slow, in containers.
function Kernel:alive()
  local stat = io.open(("/proc/%d/stat"):format(self.pid))
  if not stat then return os.execute(("kill -0 %d 2> /dev/null"):format(self.pid)) == true end
  local text = stat:read "a"
  stat:close()
  return text ~= nil and not text:find "%) [ZX] "
end

-- Waits until the process has ended; false if it does not.
function Kernel:ended(seconds)
  local stop = self.zeromq.now() + (seconds or PATIENCE)
  while self:alive() do
    if self.zeromq.now() > stop then return false end
    os.execute "sleep 0.02"
  end
  return true
end

-- The next message of a channel; an error when none comes.
function Kernel:take(channel)
  local stop = self.zeromq.now() + PATIENCE
  while not self.zeromq.wait({ self[channel] }, 200)[1] do
    if self.zeromq.now() > stop or not self:alive() and not self.zeromq.wait({ self[channel] }, 200)[1] then
      error(("nothing comes on the %s channel; the kernel says: %s"):format(channel, self:log()), 2)
    end
  end
  return assert(self.side:decode(assert(self[channel]:receive())))
end

-- Takes what is published until a message of this kind comes; → that message. check(message): whether it is meant
function Kernel:wait(kind, check)
  while true do
    local m = self:take "iopub"
    self.published[#self.published + 1] = m
    if m.kind == kind and (not check or check(m)) then return m end
  end
end

-- Sends a request; → its msg_id
function Kernel:send(channel, kind, content)
  local frames = self.side:encode({}, kind, "{}", content)
  self[channel]:send(frames)
  return json.decode(frames[3]).msg_id
end

-- The reply to a request, and what was published about it until the kernel was idle again.
function Kernel:finish(channel, id)
  local reply
  repeat reply = self:take(channel) until reply.parent.msg_id == id
  self:wait("status", function(m) return m.parent.msg_id == id and m.content.execution_state == "idle" end)
  local list = {}
  for _, m in ipairs(self.published) do
    if m.parent.msg_id == id and m.kind ~= "status" and m.kind ~= "execute_input" then list[#list + 1] = m end
  end
  return reply.content, list, reply
end

-- Asks and waits for the answer.
function Kernel:ask(kind, content, channel)
  channel = channel or "shell"
  self.published = {}
  return self:finish(channel, self:send(channel, kind, content))
end

-- Runs a cell. → reply, {stdout=, stderr= texts, result=, error= contents, messages=}
function Kernel:run(code, more)
  local content = { code = code, silent = false, store_history = true, allow_stdin = false, stop_on_error = true }
  for name, v in pairs(more or {}) do content[name] = v end
  return M.sorted(self:ask("execute_request", content))
end

function M.sorted(reply, list)
  local out = { stdout = "", stderr = "", messages = list }
  for _, m in ipairs(list) do
    if m.kind == "stream" then out[m.content.name] = out[m.content.name] .. m.content.text end
    if m.kind == "execute_result" then out.result = m.content.data["text/plain"] end
    if m.kind == "error" then out.error = m.content end
  end
  return reply, out
end

-- Ends the kernel and this side; what it left is removed.
function Kernel:close()
  if self:alive() then
    self:send("control", "shutdown_request", { restart = false })
    if not self:ended(10) then os.execute(("kill -9 %d"):format(self.pid)) end
  end
  for name in pairs(kinds) do self[name]:close() end
  self.context:close()
  local log = self:log()
  self.remove()
  assert(not log:find "Sanitizer" and not log:find "traceback", log)
end

return M
