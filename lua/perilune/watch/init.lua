-- SPDX-License-Identifier: MIT
--- `perilune watch DIR`: a page on this machine that shows trainings from their logs while these grow, and tells them
-- to pause, to go on or to stop. docs/design/watch.md says who can see and do what.
-- @module perilune.watch
local core = require "perilune.core"
local http = require "perilune.http"
local json = require "perilune.io.json"
local runs = require "perilune.watch.runs"

local M = {}

local PORT, SLICE = 8711, 0.15 -- seconds of reading before the page hears what there is so far

-- The page has everything in it, and may load nothing from anywhere.
local function page(request)
  local nonce = http.token()
  local text = require("perilune.watch.page"):gsub("NONCE", nonce)
  http.text(request, 200, text, "text/html; charset=utf-8", {
    ["Content-Security-Policy"] = ("default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; img-src blob: "
      .. "data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"):format(nonce, nonce),
    ["Referrer-Policy"] = "no-referrer", ["X-Frame-Options"] = "DENY" })
end

-- A handler for those alone who know the token. It is in the address that was printed, behind its #, which no browser
-- sends or tells other pages.
local function guarded(token, f)
  return function(request)
    if request:header "x-perilune-token" ~= token then
      return http.refuse(request, 403, "the token is missing or wrong: open the address that perilune watch printed")
    end
    return f(request)
  end
end

local function asked(request)
  local v = json.decode(request:body())
  return type(v) == "table" and v or {}
end

--- The server and its handler of requests, for a folder: server, handle, address; or nil, message, code
function M.open(folder, port)
  local real, message = core.real_path(folder)
  if not real then return nil, message, "io" end
  if not core.list_folder(real) then return nil, folder .. ": not a folder, or it cannot be read", "io" end
  local limits = { port = port or PORT, body = 1 << 20, bodies = 8 << 20 }
  local server, why, code = http.listen(limits)
  if code == "io" and not port then -- somebody has that port: any other one
    limits.port = 0
    server, why, code = http.listen(limits)
  end
  if not server then return nil, why, code end
  local all, token = runs.open(real), http.token()
  local handle = http.router {
    ["GET /"] = page,
    ["POST /data"] = guarded(token, function(request)
      all:look()
      local more = all:read(SLICE)
      local have = asked(request).have
      http.text(request, 200, all:json(type(have) == "table" and have or {}, more), "application/json")
    end),
    ["POST /control"] = guarded(token, function(request)
      local wish = asked(request)
      local ok, failure = all:tell(math.tointeger(wish.run), wish.action)
      if not ok then return http.refuse(request, 409, failure) end
      http.json(request, 200, { done = wish.action })
    end),
    ["GET /picture"] = guarded(token, function(request)
      local q = request:query()
      local bytes, kind = all:picture(math.tointeger(tonumber(q.run)), math.tointeger(tonumber(q.id)))
      if not bytes then return http.refuse(request, 404, "there is no such picture any more") end
      http.text(request, 200, bytes, kind)
    end),
  }
  return server, handle, http.url(server) .. "#" .. token
end

--- Serves until Ctrl-C. → exit status
function M.main(folder, port)
  local server, handle, address = M.open(folder, port)
  if not server then
    io.stderr:write("perilune watch: ", handle, "\n")
    return 1
  end
  local _ <close> = server
  print(("watching %s\n  %s\nCtrl-C ends"):format(folder, address))
  io.stdout:flush()
  while true do
    local request = server:next(1)
    if request then handle(request) end
  end
end

return M
