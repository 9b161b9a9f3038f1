-- SPDX-License-Identifier: MIT
--- The HTTP server of the commands that serve: arguments checked, answers in JSON and as streams of events, paths to
-- handlers. What a server and a request can do is in bindings/http/http.h; docs/design/http.md tells the decisions.
--   local http = require "perilune.http"
--   local server = assert(http.listen { port = 8080 })
--   local handle = http.router { ["GET /hello"] = function(request) http.text(request, 200, "hello\n") end }
--   while true do
--     local request = server:next()
--     if request then handle(request) end
--   end
-- @module perilune.http
local core = require "perilune.core"
local options = require "perilune.options"
local json = require "perilune.io.json"

local fail, describe = options.fail, options.describe
local http = {}

local NO_LIBRARY = "the HTTP server needs libmicrohttpd: "

-- The module, or nil, message, code.
local function open()
  local ok, module = pcall(require, "perilune.httpd")
  if ok then return module end
  if tostring(module):find("libmicrohttpd", 1, true) then
    return nil, NO_LIBRARY .. "install it (Debian: libmicrohttpd12)", "missing"
  end
  return nil, NO_LIBRARY .. "this perilune was built without it; install libmicrohttpd-dev (Debian), then build again",
    "missing"
end

local spec = options.spec("http.listen", {
  { "host", "string", "127.0.0.1" }, { "port", "size", 0 }, { "hosts", "any", optional = true },
  { "connections", "count", 256 }, { "queue", "count", 64 }, { "header", "count", 32 << 10 },
  { "body", "size", 8 << 20 }, { "bodies", "size", 64 << 20 }, { "buffer", "count", 256 << 10 },
  { "idle", "positive", 30 }, { "read", "positive", 30 }, { "write", "positive", 60 },
})

-- This machine's own names: a page from elsewhere that makes the browser ask here sends its own name (DNS rebinding).
local own = { "127.0.0.1", "localhost", "::1" }

--- http.listen{host="127.0.0.1", port=0, hosts=, connections=, queue=, …} → server; or nil, message, code
-- hosts: names that the Host header may have; false: any. Without it: on an address of this machine alone its own
-- names, else any. The limits and their meaning: HttpLimits in bindings/http/http.h.
function http.listen(...)
  local a = options.read(spec, ...)
  if a.host == "localhost" then a.host = "127.0.0.1" end
  if a.port > 65535 then fail("http.listen: port must be 0 to 65535, got %d", a.port) end
  if a.hosts == nil then a.hosts = (a.host:find "^127%." or a.host == "::1") and own end
  if type(a.hosts) ~= "table" and a.hosts ~= false then
    fail("http.listen: hosts must be a list of names or false, got %s", describe(a.hosts))
  end
  local module, message, code = open()
  if not module then return nil, message, code end
  return module.listen(a)
end

--- What a server's address is called in a browser.
function http.url(server)
  local host, port = server:address()
  return ("http://%s:%d/"):format(host:find ":" and "[" .. host .. "]" or host, port)
end

-- ---- answers ----------------------------------------------------------------------------------------------------

local function headers_of(kind, more)
  local out = { ["Content-Type"] = kind, ["Cache-Control"] = "no-store", ["X-Content-Type-Options"] = "nosniff" }
  for name, value in pairs(more or {}) do out[name] = value end
  return out
end

--- A whole answer of text; kind: its content type. → true; or nil, "closed"
function http.text(request, status, text, kind, more)
  return request:respond(status, headers_of(kind or "text/plain; charset=utf-8", more), text)
end

--- A whole answer of a value in JSON; what is no number is null.
function http.json(request, status, value, more)
  return request:respond(status, headers_of("application/json", more), json.line(value))
end

--- What is wrong, in the form that clients of model servers read.
function http.refuse(request, status, message, kind, more)
  return http.json(request, status, { error = { message = message, code = status,
    type = kind or (status >= 500 and "server_error" or "invalid_request_error") } }, more)
end

--- Begins a stream of events (text/event-stream); then request:push(http.event(…)) … request:finish().
function http.events(request, more) return request:begin(200, headers_of("text/event-stream", more)) end

--- One event as its bytes: a text, or a value in JSON.
function http.event(value, name)
  local data = type(value) == "string" and value or json.line(value)
  return (name and "event: " .. name .. "\n" or "") .. "data: " .. data:gsub("\r?\n", "\ndata: ") .. "\n\n"
end

-- ---- paths ------------------------------------------------------------------------------------------------------

--- A function of a request that calls the handler of its method and path. routes: {["GET /"] = f, …}; f(request). An
-- error of a handler is 500 and goes to standard error, with Ctrl-C's as the only exception.
function http.router(routes)
  local paths = {}
  for key, f in pairs(routes) do
    local method, path = key:match "^(%u+) (/%S*)$"
    if not method then fail("http.router: a route is a method and a path, as 'GET /', got %s", describe(key)) end
    paths[path] = paths[path] or {}
    paths[path][method] = f
  end
  return function(request)
    local methods, method = paths[request:path()], request:method()
    if not methods then return http.refuse(request, 404, "there is nothing at this path") end
    local f = methods[method] or (method == "HEAD" and methods.GET)
    if not f then
      local allowed = {}
      for name in pairs(methods) do allowed[#allowed + 1] = name end
      table.sort(allowed)
      return http.refuse(request, 405, "this path does not take " .. method, nil,
        { Allow = table.concat(allowed, ", ") })
    end
    core.raised(false)
    local ok, failure = xpcall(f, debug.traceback, request)
    if ok then return true end
    if core.raised() == "interrupt" then error(failure, 0) end
    io.stderr:write("perilune: ", method, " ", request:path(), ": ", tostring(failure), "\n")
    if not pcall(http.refuse, request, 500, "an error in the server") then pcall(request.finish, request, true) end
    return false
  end
end

--- n random bytes as hexadecimal figures, of the system's generator: for what nobody shall guess.
function http.token(n)
  local f = assert(io.open("/dev/urandom", "rb"))
  local bytes = f:read(n or 16)
  f:close()
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

return http
