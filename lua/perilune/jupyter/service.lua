-- SPDX-License-Identifier: MIT
--- The thread that talks to the front ends while cells run: owns the sockets, signs and checks messages, publishes
-- what is printed, answers on the control channel at once, and hands requests of the shell channel to the main thread
-- one by one.
--
-- It is a Lua state of its own, which never loads the engine. With the main thread it speaks through a pair of
-- sockets. From there come {"publish", kind, content, metadata}, {"reply", kind, content, metadata, "stop" or ""},
-- {"idle"} at the end of a request, {"input", serial} and {"input over"} (bindings/zeromq/stream.c), {"over"}; there
-- go {"request", kind, content}, {"published"}, {serial, line}, {"quit"}.
-- @module perilune.jupyter.service
local zeromq = require "perilune.zeromq"
local json = require "perilune.io.json"
local message = require "perilune.jupyter.message"

local PUBLISH_EVERY = 0.05 -- seconds: what is printed meanwhile goes out as one message
local PUBLISH_SIZE = 1 << 16 -- bytes that do not wait
local TICK = 50 -- milliseconds between two interrupts that nothing answers
local PATIENCE = 3 -- seconds until a cell that goes on is ended with the process

local Service = {}
Service.__index = Service

-- ---- sending ----------------------------------------------------------------------------------------------------

function Service:log(...) zeromq.write(self.log_to, ("perilune kernel: " .. table.concat({ ... }, " ") .. "\n")) end

function Service:publish(kind, parent, content, metadata)
  self.iopub:send(self.side:encode({ kind }, kind, parent, content, metadata))
end

function Service:status(state, parent) self:publish("status", parent, { execution_state = state }) end

-- to: the request that is answered, with the socket on which it came
function Service:reply(to, kind, content, metadata)
  to.socket:send(self.side:encode(to.identities, kind, to.raw[1], content, metadata))
end

-- ---- what is printed ----------------------------------------------------------------------------------------------

local function columns(text)
  text = text:gsub("\27%[[%d;]*%a", "")
  return utf8.len(text) or #text
end

-- Text without what a carriage return in the same line writes over: a bar that is redrawn quickly is sent once.
local function settled(text)
  if not text:find("\r", 1, true) then return text end
  local lines = {}
  for line, stop in text:gmatch "([^\n]*)(\n?)" do
    if line:find "\r." then
      local parts, kept, widest = {}, {}, 0
      for part in (line .. "\r"):gmatch "(.-)\r" do parts[#parts + 1] = part end
      for i = #parts, 1, -1 do
        local width = columns(parts[i])
        -- the first line may go on with what was sent before
        if width > widest or i == #parts or (i == 1 and #lines == 0) then table.insert(kept, 1, parts[i]) end
        widest = math.max(widest, width)
      end
      line = table.concat(kept, "\r")
    end
    lines[#lines + 1] = line .. stop
  end
  return table.concat(lines)
end

-- whole: a character whose rest may still come is not kept back
function Service:publish_stream(stream, whole)
  local keep = whole and 0 or message.unfinished(stream.text)
  local text = stream.text:sub(1, #stream.text - keep)
  stream.text = stream.text:sub(#text + 1)
  stream.at = zeromq.now()
  if text == "" then return end
  self:publish("stream", self.printing or "{}", { name = stream.name, text = settled(message.utf8(text)) })
end

-- Takes what has been written to a stream. The other's text was written before.
function Service:absorb(stream)
  while true do
    local bytes = zeromq.read(stream.fd)
    if not bytes or bytes == "" then break end
    local other = stream == self.out and self.err or self.out
    if other.text ~= "" then self:publish_stream(other, true) end
    stream.text = stream.text .. bytes
    if #stream.text >= PUBLISH_SIZE then self:publish_stream(stream) end
  end
end

function Service:drain()
  self:absorb(self.out)
  self:absorb(self.err)
  self:publish_stream(self.out, true)
  self:publish_stream(self.err, true)
end

-- Publishes what has waited long enough. → milliseconds until the next has
function Service:publish_due()
  local wait = 1000
  for _, stream in ipairs { self.out, self.err } do
    if stream.text ~= "" then
      local left = stream.at + PUBLISH_EVERY - zeromq.now()
      if left <= 0 then self:publish_stream(stream) else wait = math.min(wait, math.ceil(left * 1000)) end
    end
  end
  return wait
end

-- ---- requests that are answered here ------------------------------------------------------------------------------

local answers = {}

function answers.kernel_info_request(self, m) self:reply(m, "kernel_info_reply", self.info) end

function answers.interrupt_request(self, m)
  self:interrupt()
  self:reply(m, "interrupt_reply", { status = "ok" })
end

function answers.shutdown_request(self, m)
  local content = { status = "ok", restart = m.content.restart == true }
  self:reply(m, "shutdown_reply", content)
  self:publish("shutdown_reply", m.raw[1], content)
  self.quitting = self.quitting or zeromq.now()
  if self.current then self:interrupt() end
end

function Service:interrupt()
  if not self.current then return end
  self.interrupting = { before = zeromq.interrupted(), at = zeromq.now() }
  zeromq.interrupt()
end

-- A program that the cell waits for takes the interrupt for itself, and one that comes before the cell has begun is
-- lost: until the cell notices, it comes again. One that is to end keeps getting it.
function Service:insist()
  local i = self.interrupting
  if not i or zeromq.now() - i.at < TICK / 1000 then return end
  if zeromq.interrupted() ~= i.before and not self.quitting then
    self.interrupting = nil
    return
  end
  i.at, i.before = zeromq.now(), zeromq.interrupted()
  zeromq.interrupt()
end

-- ---- receiving --------------------------------------------------------------------------------------------------

function Service:receive(socket, name)
  local frames, why = socket:receive(false)
  if not frames then
    if why ~= "nothing" and why ~= "interrupted" then error(why) end
    return nil
  end
  local m, fault = self.side:decode(frames)
  if not m then
    self:log(("a message on the %s channel is ignored: %s"):format(name, fault))
    return "ignored"
  end
  m.socket = socket
  return m
end

-- A request that this thread answers; false for others.
function Service:answer(m)
  if not answers[m.kind] then return false end
  self:status("busy", m.raw[1])
  answers[m.kind](self, m)
  self:status("idle", m.raw[1])
  return true
end

function Service:take_control()
  local m = self:receive(self.control, "control")
  if not m or m == "ignored" then return m ~= nil end
  if not self:answer(m) then
    self:status("busy", m.raw[1])
    self:log("no request of the control channel: " .. m.kind)
    self:status("idle", m.raw[1])
  end
  return true
end

function Service:begin(m)
  if self:answer(m) then return end
  self.current = m
  if m.kind == "execute_request" then
    self:drain()
    self.printing = m.raw[1]
  end
  self:status("busy", m.raw[1])
  self.main:send { "request", m.kind, m.raw[4] }
end

function Service:take_shell()
  local m = table.remove(self.waiting, 1) or self:receive(self.shell, "shell")
  if m and m ~= "ignored" then self:begin(m) end
  return m ~= nil
end

-- What has been sent before an error is known of.
function Service:gather()
  while true do
    local m = self:receive(self.shell, "shell")
    if not m then return end
    if m ~= "ignored" then self.waiting[#self.waiting + 1] = m end
  end
end

-- After an error the cells that were sent before do not run.
function Service:abort_waiting()
  local others = {}
  for _, m in ipairs(self.waiting) do
    if m.kind == "execute_request" then
      self:status("busy", m.raw[1])
      self:reply(m, "execute_reply", { status = "aborted" })
      self:status("idle", m.raw[1])
    else
      others[#others + 1] = m
    end
  end
  self.waiting = others
end

function Service:take_stdin()
  local m = self:receive(self.stdin, "stdin")
  if not m or m == "ignored" then return end
  if m.kind ~= "input_reply" or not self.asked then
    return self:log("nothing was asked: " .. m.kind)
  end
  local value = m.content.value
  self.main:send { self.asked, type(value) == "string" and value or "" }
  self.asked = nil
end

-- ---- what the main thread says ----------------------------------------------------------------------------------

local said = {}

function said.publish(self, _, kind, content, metadata)
  self:drain()
  self:publish(kind, self.current and self.current.raw[1] or "{}", content, metadata)
  self.main:send { "published" } -- what the cell writes from now on comes behind it
end

function said.reply(self, _, kind, content, metadata, stop)
  self:drain()
  self.stopping = stop == "stop"
  if self.stopping then self:gather() end -- who sends a cell when he has the reply, means it to run
  self:reply(self.current, kind, content, metadata)
end

function said.idle(self)
  self:drain()
  self:status("idle", self.current.raw[1])
  self.current, self.interrupting, self.asked = nil, nil, nil
  if self.stopping then self:abort_waiting() end
  self.stopping = false
end

function said.input(self, _, serial)
  self:drain()
  if self.current.content.allow_stdin == false then
    self.main:send { serial }
    self.err.text = "io.read: this front end does not take input (allow_stdin is false)\n"
    return
  end
  self.asked = serial
  self.stdin:send(self.side:encode(self.current.identities, "input_request", self.current.raw[1],
    { prompt = "", password = false }))
end

said["input over"] = function(self) self.asked = nil end

function said.over(self)
  self:drain()
  self.over = true
end

function Service:take_main()
  local frames, why = self.main:receive(false)
  if not frames then
    if why ~= "nothing" and why ~= "interrupted" then error(why) end
    return
  end
  said[frames[1]](self, table.unpack(frames))
end

-- A front end that has begun to listen hears that it has.
function Service:take_subscription()
  local frames = self.iopub:receive(false)
  local topic = frames and frames[1]:match "^\1(.*)$"
  if not topic or not utf8.len(topic) then return end
  self.iopub:send(self.side:encode(topic == "" and {} or { topic }, "iopub_welcome", "{}", { subscription = topic }))
end

-- ---- the loop ---------------------------------------------------------------------------------------------------

function Service:turn()
  local wait = self:publish_due()
  if self.interrupting then wait = math.min(wait, TICK) end
  local watched = { self.control, self.main, self.stdin, self.iopub, self.out.fd, self.err.fd }
  if not self.current and not self.quitting then watched[#watched + 1] = self.shell end
  if #self.waiting > 0 and not self.current then wait = 0 end
  local ready, why = zeromq.wait(watched, wait)
  if not ready then error(why) end
  if ready[5] then self:absorb(self.out) end
  if ready[6] then self:absorb(self.err) end
  if ready[4] then self:take_subscription() end
  if ready[1] then while self:take_control() do end end
  if ready[2] then self:take_main() end
  if ready[3] then self:take_stdin() end
  if (ready[7] or #self.waiting > 0) and not self.current and not self.quitting then self:take_shell() end
  self:insist()
  if self.quitting and not self.current then
    self.main:send { "quit" }
    self.over = true
  elseif self.quitting and zeromq.now() - self.quitting > PATIENCE then
    self:log "the cell does not end: the process does"
    zeromq.stop(0)
  end
  if self.parent and zeromq.parent() ~= self.parent then zeromq.stop(1) end
end

function Service:run()
  self:status("starting", "{}")
  while not self.over do
    local ok, fault = xpcall(self.turn, debug.traceback, self)
    if not ok then
      if fault:find("Context was terminated", 1, true) then return end -- the main thread has failed
      self.faults = (self.faults or 0) + 1
      self:log(fault)
      if self.faults > 100 then error(fault, 0) end -- what goes wrong at every turn
    end
  end
end

local function open(context, kind, address, connects)
  local socket = assert(context:socket(kind))
  assert(socket[connects and "connect" or "bind"](socket, address))
  return socket
end

-- settings: JSON of {key=, addresses = {shell=, control=, stdin=, iopub=, main=}, out=, err=, log= (descriptors),
-- info= (what kernel_info_reply says), parent= (the process without which this one ends)}
return function(context, settings)
  settings = assert(json.decode(settings))
  local at = settings.addresses
  local self = setmetatable({ side = message.side(settings.key), info = settings.info, log_to = settings.log,
    parent = settings.parent, waiting = {},
    out = { name = "stdout", fd = settings.out, text = "", at = 0 },
    err = { name = "stderr", fd = settings.err, text = "", at = 0 },
    main = open(context, "pair", at.main, true) }, Service)
  local ok, fault = xpcall(function()
    for name, kind in pairs { shell = "router", control = "router", stdin = "router", iopub = "xpub" } do
      self[name] = open(context, kind, at[name])
    end
    self.main:send { "open" }
    self:run()
  end, debug.traceback)
  if not ok then
    self:log(fault)
    self.main:send { "quit", fault }
  end
  for _, name in ipairs { "shell", "control", "stdin", "iopub", "main" } do
    if self[name] then self[name]:close() end
  end
end
