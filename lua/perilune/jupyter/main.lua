-- SPDX-License-Identifier: MIT
--- The kernel's main thread: starts the heartbeat and the service, then answers the requests that the service hands on,
-- one after the other.
-- @module perilune.jupyter.main
local zeromq = require "perilune.zeromq"
local json = require "perilune.io.json"
local message = require "perilune.jupyter.message"

local MAIN = "inproc://main"

-- ---- the connection file ----------------------------------------------------------------------------------------

local channels = { "shell", "control", "stdin", "iopub", "hb" }

-- → the address of each channel, the key; nil, message
local function connection(path)
  local c, why = json.read(path)
  if not c then return nil, why end
  local function bad(name, what) return nil, ("%s: %s must be %s"):format(path, name, what) end
  if type(c) ~= "table" then return bad("it", "an object") end
  if c.transport ~= nil and c.transport ~= "tcp" and c.transport ~= "ipc" then return bad("transport", "tcp or ipc") end
  if type(c.ip) ~= "string" then return bad("ip", "a string") end
  if type(c.key or "") ~= "string" then return bad("key", "a string") end
  if (c.key or "") ~= "" and (c.signature_scheme or "hmac-sha256") ~= "hmac-sha256" then
    return bad("signature_scheme", "hmac-sha256")
  end
  local out = {}
  for _, name in ipairs(channels) do
    local port = c[name .. "_port"]
    if math.type(port) ~= "integer" then return bad(name .. "_port", "an integer") end
    out[name] = c.transport == "ipc" and ("ipc://%s-%d"):format(c.ip, port) or ("tcp://%s:%d"):format(c.ip, port)
  end
  return out, c.key or ""
end

-- ---- what kernel_info_reply says --------------------------------------------------------------------------------

local function info()
  local T = require "perilune"
  local language = _VERSION:match "%d+%.%d+"
  return { status = "ok", protocol_version = message.VERSION, implementation = "perilune",
    implementation_version = T.version,
    language_info = { name = "lua", version = language, mimetype = "text/x-lua", file_extension = ".lua",
      pygments_lexer = "lua", codemirror_mode = "lua" },
    banner = ("perilune %s, %s. T is perilune, nn is T.nn, optim is T.optim; ?name tells what a name is."):format(
      T.version, _VERSION),
    help_links = json.array { { text = "Lua", url = "https://www.lua.org/manual/5.4/" } },
    debugger = false, supported_features = json.array {} }
end

-- ---- the loop ---------------------------------------------------------------------------------------------------

-- Replies have the name of their request; one-way messages have none.
local function reply_kind(kind)
  local name = kind:match "^(.*)_request$"
  return name and name .. "_reply"
end

local function answer(cells, pair, log, kind, text)
  local content = json.decode(text) -- an object: the service has looked
  if kind == "execute_request" then
    local reply, stop = cells:execute(content)
    pair:send { "reply", "execute_reply", message.json(reply), "{}", stop and "stop" or "" }
    return
  end
  local f = require("perilune.jupyter.requests")[kind]
  if not f then
    zeromq.write(log, ("perilune kernel: a message of an unknown kind: %q\n"):format(kind:sub(1, 100)))
    return
  end
  local reply = f(cells, content)
  if reply and reply_kind(kind) then
    pair:send { "reply", reply_kind(kind), message.json(reply), "{}", "" }
  end
end

-- A fault of the kernel's own: nobody waits for the reply in vain.
local function failed(pair, log, kind, fault)
  zeromq.write(log, "perilune kernel: " .. fault .. "\n")
  if not reply_kind(kind) then return end
  pair:send { "reply", reply_kind(kind), message.json { status = "error", ename = "kernel", evalue = fault,
    traceback = json.array {} }, "{}", "" }
end

-- Answers until the service or a cell ends the kernel. → exit status
local function serve(pair, log, send)
  local cells
  while true do
    local m, why = pair:receive()
    if not m and why ~= "interrupted" then error(why, 0) end
    local word = m and m[1]
    if word == "open" then
      zeromq.input(pair)
      cells = require("perilune.jupyter.cells").new(_G, send)
    elseif word == "request" then
      local ok, fault = xpcall(answer, debug.traceback, cells, pair, log, m[2], m[3])
      if not ok then failed(pair, log, m[2], type(fault) == "string" and fault or "an error that is no text") end
      pair:send { "idle" }
      if cells.session.over then
        pair:send { "over" }
        return 0
      end
    elseif word == "quit" then
      return m[2] and 1 or 0 -- the service has failed and said why
    end
  end
end

--- Runs a kernel for a connection file. → exit status
return function(path)
  local addresses, key = connection(path)
  if not addresses then
    io.stderr:write("perilune kernel: ", key, "\n")
    return 1
  end
  zeromq.idle()
  local context = zeromq.context()
  local pair = assert(context:socket "pair")
  assert(pair:bind(MAIN))
  local heartbeat, why = zeromq.heartbeat(context, addresses.hb)
  if not heartbeat then
    io.stderr:write("perilune kernel: ", why, "\n")
    return 1
  end
  local settings = { key = key, addresses = addresses, info = info() }
  local parent = math.tointeger(tonumber(os.getenv "JPY_PARENT_PID"))
  if parent == zeromq.parent() then settings.parent = parent end
  addresses.main = MAIN
  local out, err, log = zeromq.capture()
  if not out then
    io.stderr:write("perilune kernel: ", err, "\n")
    return 1
  end
  settings.out, settings.err, settings.log = out, err, log
  local service = assert(zeromq.service(context, "perilune.jupyter.service", message.json(settings)))
  local function send(kind, content, metadata)
    pair:send { "publish", kind, message.json(content), metadata and message.json(metadata) or "{}" }
    local m, what
    repeat m, what = pair:receive() until m or what ~= "interrupted"
  end
  local ok, status = xpcall(serve, debug.traceback, pair, log, send)
  if not ok then
    zeromq.write(log, ("perilune kernel: %s\n"):format(status))
    pair:send { "over" }
    status = 1
  end
  zeromq.input(nil)
  service:join()
  zeromq.release(log)
  pair:close()
  context:shutdown()
  heartbeat:join()
  context:close()
  return status
end
