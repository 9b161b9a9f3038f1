-- SPDX-License-Identifier: MIT
-- The HTTP server, driven by raw sockets: what is wrong never reaches Lua, limits hold, slow and vanished peers cost
-- nothing but themselves. Server and clients are in this process, so that a spec decides who does what when.

local http = require "perilune.http"
local json = require "perilune.io.json"

local build = os.getenv "PERILUNE_BUILD" or (os.getenv "PERILUNE_ROOT" or ".") .. "/build"
local available = pcall(require, "perilune.httpd")
local sockets = assert(package.loadlib(build .. "/spec/libsockets.so", "luaopen_sockets"))()

describe("the HTTP server", function()
  if not available then
    it("is part of the build", function() pending "built without libmicrohttpd" end)
    return
  end

  local server, port, open

  local function listen(limits)
    if server then server:close() end
    server = assert(http.listen(limits or {}))
    port = select(2, server:address())
  end

  local function connect(buffer)
    local fd = sockets.connect("127.0.0.1", port, buffer)
    open[#open + 1] = fd
    return fd
  end

  local function shut(fd, how)
    for i, other in ipairs(open) do if other == fd then table.remove(open, i) end end
    sockets[how or "close"](fd)
  end

  before_each(function()
    open = {}
    listen()
  end)
  after_each(function()
    for _, fd in ipairs(open) do sockets.close(fd) end
    server:close()
    server = nil
  end)

  local function get(path, more)
    return ("GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n"):format(path, more or "")
  end

  local function post(path, body, more)
    return ("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n"):format(path, #body, more or "")
      .. body
  end

  -- All of `bytes`, while the peer takes them.
  local function send(fd, bytes)
    while #bytes > 0 do
      local n = sockets.send(fd, bytes)
      if n < 0 then
        sockets.sleep(0.001)
        n = 0
      end
      bytes = bytes:sub(n + 1)
    end
  end

  -- An answer of known length → status, body, head; nil where the connection ended before one was whole.
  local function answer(fd)
    local got = ""
    while true do
      local head, rest = got:match "^(.-\r\n\r\n)(.*)$"
      local length = head and tonumber(head:match "[Cc]ontent%-[Ll]ength: (%d+)")
      if head and head:find "^HTTP/1.1 100" then
        got = rest
      elseif length and #rest >= length then
        return tonumber(head:match "^HTTP/1.1 (%d+)"), rest:sub(1, length), head
      else
        local more = sockets.receive(fd, 5)
        if not more or more == "" then return nil, got end
        got = got .. more
      end
    end
  end

  -- Everything until the peer ends or is silent.
  local function all(fd, seconds)
    local got = {}
    while true do
      local more = sockets.receive(fd, seconds or 5)
      if not more then return table.concat(got), "silent" end
      if more == "" then return table.concat(got), "end" end
      got[#got + 1] = more
    end
  end

  -- A chunked body without its frames; whether it has its end.
  local function chunks(text)
    local body, at = {}, assert(text:find("\r\n\r\n", 1, true)) + 4
    while true do
      local size, from = text:match("^(%x+)\r\n()", at)
      if not size then return table.concat(body), false end
      if tonumber(size, 16) == 0 then return table.concat(body), true end
      body[#body + 1], at = text:sub(from, from + tonumber(size, 16) - 1), from + tonumber(size, 16) + 2
    end
  end

  local function works()
    local fd = connect()
    send(fd, get "/works")
    local r = assert(server:next(5), "the server does not hand requests over any more")
    assert.equal("/works", r:path())
    http.text(r, 200, "yes")
    assert.equal(200, (answer(fd)))
    shut(fd)
  end

  local function eventually(f, what)
    for _ = 1, 500 do
      if f() then return end
      sockets.sleep(0.01)
    end
    error(what or "it did not come true", 2)
  end

  it("hands over what was asked, and sends what Lua answers", function()
    local fd = connect()
    send(fd, post("/a%2Fb%20c?x=1&y=%C3%A9+%41&x=2&z", "the body", "X-Words: one\r\nx-words: two\r\n"))
    local r = server:next(5)
    assert.same({ "POST", "/a/b c", "the body", "127.0.0.1" }, { r:method(), r:path(), r:body(), r:peer() })
    assert.same({ x = "1", y = "é A", z = "" }, r:query())
    assert.equal("one, two", r:headers()["x-words"])
    assert.equal("one", r:header "X-WORDS")
    assert.is_nil(r:header "nothing")
    assert.is_true(r:is_open())
    assert.is_true(r:respond(201, { ["X-Answer"] = 42 }, "done"))
    local status, body, head = answer(fd)
    assert.same({ 201, "done" }, { status, body })
    assert.truthy(head:find("X-Answer: 42\r\n", 1, true))
    eventually(function() return not r:is_open() end)
  end)

  it("keeps connections, takes requests that were sent ahead in their order, and HEAD without a body", function()
    local fd = connect()
    send(fd, get "/1" .. get "/2" .. post("/3", "three") .. "HEAD /4 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for i = 1, 4 do
      local r = server:next(5)
      assert.equal("/" .. i, r:path())
      http.text(r, 200, "answer " .. i)
      if i < 4 then assert.equal("answer " .. i, (select(2, answer(fd)))) end
    end
    local head = sockets.receive(fd, 5)
    assert.truthy(head:find("Content-Length: 8", 1, true))
    assert.falsy(head:find("answer 4", 1, true))
  end)

  it("refuses what is no request, and Lua does not see it", function()
    local long = ("x"):rep(40000)
    local bad = {
      ["GET / HTTP/1.1\r\n\r\n"] = 400, -- no Host
      [get("/", "Host: localhost\r\n")] = 400,
      [get("/", "Content-Length: 1\r\nContent-Length: 1\r\n")] = 400,
      [post("/", "0\r\n\r\n", "Transfer-Encoding: chunked\r\n")] = 400,
      [get "/%zz"] = 400, [get "/%4"] = 400, [get "/a%00b"] = 400, [get "http://localhost/"] = 400,
      [get "nothing"] = 400,
      [get("/", "a\1b: c\r\n")] = 400, [get("/", "X-A: b\1c\r\n")] = 400,
      [get("/", "X-Long: " .. long .. "\r\n")] = { 413, 431 }, [get("/" .. long)] = { 413, 414, 431 },
      ["VERYLONGMETHODNAME / HTTP/1.1\r\nHost: localhost\r\n\r\n"] = 501,
      [post("/", "x"):gsub("Length: 1", "Length: one")] = 400,
      [post("/", "x"):gsub("Length: 1", "Length: -1")] = 400,
      [post("/", ""):gsub("Length: 0", "Length: 99999999999999999999999")] = { 400, 413 },
      [post("/", "x"):gsub("Content%-Length: 1", "Transfer-Encoding: chunked") .. "\r\nzz\r\n"] = 400,
    }
    for text, wanted in pairs(bad) do
      local fd = connect()
      send(fd, text)
      local got = all(fd, 0.5)
      local status = tonumber(got:match "^HTTP/1%.[01] (%d+)")
      local fits = got == "" or status == wanted -- also cut without a word
      for _, s in ipairs(type(wanted) == "table" and wanted or {}) do fits = fits or s == status end
      assert.is_true(fits, ("%s → %s"):format(text:sub(1, 100), got))
      assert.is_nil(server:next(0), text:sub(1, 100))
      shut(fd)
    end
    works()
  end)

  it("refuses requests that name another host, as a page from elsewhere makes the browser send them", function()
    for host, fine in pairs { ["localhost:80"] = true, ["127.0.0.1"] = true, ["LOCALHOST:" .. port] = true,
      ["[::1]:80"] = true, ["localhost."] = true, ["evil.example"] = false, ["localhost.evil.example"] = false,
      ["127.0.0.1.evil.example:80"] = false, [""] = false, ["[::1].evil.example"] = false,
      ["localhost@evil"] = false } do
      local fd = connect()
      send(fd, ("GET / HTTP/1.1\r\nHost: %s\r\n\r\n"):format(host))
      local r = server:next(fine and 5 or 0.05)
      assert.equal(fine, r ~= nil, host)
      if r then http.text(r, 200, "") end
      local status = answer(fd)
      assert.is_true(status == (fine and 200 or 403) or (host == "" and status == 400), host)
      shut(fd)
    end
    local fd = connect()
    send(fd, "GET / HTTP/1.0\r\n\r\n")
    assert.equal(403, (answer(fd)))
    listen { hosts = { "models.example" } }
    fd = connect()
    send(fd, "GET / HTTP/1.1\r\nHost: models.example:8080\r\n\r\n")
    assert.truthy(server:next(5))
    listen { hosts = false }
    fd = connect()
    send(fd, "GET / HTTP/1.0\r\n\r\n")
    assert.truthy(server:next(5))
  end)

  it("bounds bodies: of one request, of all together, told and untold", function()
    listen { body = 1000, bodies = 2500 }
    local fd = connect()
    send(fd, post("/", ("a"):rep(1000)))
    local first = server:next(5)
    assert.equal(1000, #first:body())
    for _, text in ipairs { post("/", ("b"):rep(1001)),
      "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        .. ("64\r\n" .. ("c"):rep(100) .. "\r\n"):rep(11) .. "0\r\n\r\n" } do
      local other = connect()
      send(other, text)
      assert.equal(413, (answer(other)), text:sub(1, 120))
      shut(other)
    end
    local second, other = connect(), connect()
    send(second, post("/", ("d"):rep(1000)))
    eventually(function() return server:counts().bodies == 2000 end)
    send(other, post("/", ("d"):rep(501)))
    assert.equal(503, (answer(other)))
    shut(other)
    http.text(server:next(5), 200, "fine")
    assert.equal(200, (answer(second)))
    other = connect()
    send(other, "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
      .. "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n")
    assert.equal("hello world", server:next(5):body())
    http.text(first, 200, "fine")
    assert.equal(200, (answer(fd)))
    first = nil -- luacheck: ignore 311 -- their bodies go with the objects
    collectgarbage()
    collectgarbage()
    eventually(function() return server:counts().bodies == 0 end)
    -- a body without end is not read for ever
    listen { body = 1000 }
    fd = connect()
    send(fd, "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    local piece, sent = "10000\r\n" .. ("e"):rep(0x10000) .. "\r\n", 0
    eventually(function()
      local n = sockets.send(fd, piece)
      sent = sent + math.max(n, 0)
      return n < 0 and sockets.receive(fd, 0) ~= nil
    end, "a body without end is read")
    assert.is_true(sent < 32 << 20)
    works()
  end)

  it("answers 503 where too many requests wait, and the others in their order", function()
    listen { queue = 3 }
    local fds = {}
    for i = 1, 5 do
      fds[i] = connect()
      send(fds[i], get("/" .. i))
      eventually(function() local c = server:counts() return c.waiting + c.refused == i end)
    end
    for i = 4, 5 do
      local status, _, head = answer(fds[i])
      assert.equal(503, status)
      assert.truthy(head:find "Retry%-After: 1")
    end
    for i = 1, 3 do
      local r = server:next(5)
      assert.equal("/" .. i, r:path())
      http.text(r, 200, "")
      assert.equal(200, (answer(fds[i])))
    end
  end)

  it("cuts peers that do not finish their request in time", function()
    listen { read = 0.3, idle = 1 }
    local slow, body = connect(), connect()
    send(body, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
    local from = sockets.now()
    for c in (get("/", "X-A: " .. ("b"):rep(1000) .. "\r\n")):gmatch "." do
      if sockets.send(slow, c) < 0 or sockets.send(body, "x") < 0 then break end
      sockets.sleep(0.02)
      if sockets.receive(slow, 0) == "" then break end
    end
    assert.is_true(sockets.now() - from < 5)
    assert.equal("end", select(2, all(body)))
    assert.is_nil(server:next(0))
    local silent = connect()
    assert.same({ "", "end" }, { all(silent) }) -- says nothing at all
    works()
  end)

  -- Cut anywhere: in the line, the headers, between and in the body; the bytes and the end may come together or apart.
  it("forgets at once those whose peer leaves before their request is whole", function()
    listen { connections = 8 } -- and waits 30 s for the rest of a request
    local whole, from = post("/", ("x"):rep(300), "Content-Type: text/plain\r\n"), sockets.now()
    for at = 1, #whole - 1, 7 do
      for _, apart in ipairs { false, true } do
        local fd = connect()
        send(fd, whole:sub(1, at))
        if apart and at % 3 == 0 then sockets.sleep(0.002) end
        shut(fd, at % 2 == 0 and "reset" or nil)
      end
    end
    works()
    assert.is_true(sockets.now() - from < 20)
    for _ = 1, 500 do
      if server:counts().connections <= 1 then break end
      sockets.sleep(0.01)
    end
    assert.is_true(server:counts().connections <= 1)
  end)

  it("sends an answer in pieces to readers as slow as they are, and holds no more than was allowed", function()
    listen { buffer = 10000 }
    local fd = connect(4096)
    send(fd, get "/stream")
    local r = server:next(5)
    assert.is_true(http.events(r, { ["X-A"] = "b" }))
    local sent, pieces = 0, {}
    repeat -- until it refuses for as long as a reader who reads never lets it
      local piece = ("%08d"):format(sent):rep(125)
      if r:push(piece) then
        sent = sent + 1
        pieces[sent] = piece
      end
    until r:room(0.3) == false or sent > 50000
    -- what the system's own buffers hold, and the buffer: not without bound
    assert.is_true(sent * 1000 < 20e6, sent .. " pieces were taken")
    local before = sent
    for _ = 1, 100 do assert.is_false(r:push("too early")) end
    assert.is_false(r:room(0.05))
    works() -- others do not wait
    -- the reader catches up, also while more is pushed
    local got = {}
    repeat
      local more = sockets.receive(fd, 5)
      got[#got + 1] = more
      if sent < before + 50 and r:push(pieces[1]) then
        sent = sent + 1
        pieces[sent] = pieces[1]
      end
    until sent == before + 50
    assert.is_true(r:room(0) ~= nil)
    r:finish()
    got[#got + 1] = (function()
      local rest = {}
      repeat
        local more = sockets.receive(fd, 5)
        rest[#rest + 1] = more
      until not more or more == "" or table.concat(rest, "", math.max(1, #rest - 1)):find "\r\n0\r\n\r\n$"
      return table.concat(rest)
    end)()
    local text = table.concat(got)
    local body, whole = chunks(text)
    assert.is_true(whole)
    assert.is_true(body == table.concat(pieces))
    assert.truthy(text:find "Transfer%-Encoding: chunked")
    assert.truthy(text:find "text/event%-stream")
    -- and the connection goes on
    send(fd, get "/again")
    http.text(server:next(5), 200, "fine")
    assert.equal("fine", (select(2, answer(fd))))
  end)

  it("cuts readers that take nothing, or next to nothing", function()
    listen { buffer = 10000, write = 0.4 }
    local dead, trickle = connect(4096), connect(4096)
    send(dead, get "/dead")
    local a = server:next(5)
    send(trickle, get "/trickle")
    local b = server:next(5)
    local whole = connect(4096)
    send(whole, get "/whole")
    local c = server:next(5)
    c:respond(200, nil, ("w"):rep(32 << 20))
    a:begin(200)
    b:begin(200)
    local piece, from = ("x"):rep(1000), sockets.now()
    eventually(function()
      for _, r in ipairs { a, b } do while r:push(piece) do end end
      sockets.receive(trickle, 0, 1)
      return not (a:is_open() or b:is_open() or c:is_open())
    end, "a reader that does not read is waited for")
    assert.is_true(sockets.now() - from > 0.3)
    assert.same({ nil, "closed" }, { a:push "x" })
    assert.same({ nil, "closed" }, { a:room(1) })
    assert.same({ nil, "closed" }, { a:finish() })
    assert.equal(3, server:counts().cut)
    works()
  end)

  it("notices at once that a peer is gone, while it waits for Lua and between pieces", function()
    for _, how in ipairs { "reset", "close", "half" } do
      local fd = connect()
      send(fd, get "/waits")
      local r = server:next(5)
      sockets[how](fd)
      local from = sockets.now()
      eventually(function() return not r:is_open() end, how)
      assert.is_true(sockets.now() - from < 1)
      assert.same({ nil, "closed" }, { http.text(r, 200, "too late") })
      fd = connect()
      send(fd, get "/streams")
      r = server:next(5)
      r:begin(200)
      r:push("one")
      assert.truthy(sockets.receive(fd, 5))
      sockets[how](fd)
      eventually(function() return not r:is_open() end, how)
      assert.same({ nil, "closed" }, { r:push "two" })
    end
    open = {}
    -- those that went away before their turn are not handed over
    local fd = connect()
    send(fd, get "/gone")
    eventually(function() return server:counts().waiting == 1 end)
    shut(fd, "reset")
    eventually(function() return server:counts().active == 0 end)
    assert.is_nil(server:next(0))
    eventually(function() return server:counts().connections <= 2 end)
    works()
  end)

  it("answers for handlers that forget to, and does not end an answer that broke off", function()
    local fd = connect()
    send(fd, get "/")
    server:next(5)
    collectgarbage()
    collectgarbage()
    assert.equal(500, (answer(fd)))
    for _, by in ipairs { "collected", "broken" } do
      fd = connect()
      send(fd, get "/")
      local r = server:next(5)
      r:begin(200)
      r:push "the first half"
      if by == "broken" then r:finish(true) end
      r = nil -- luacheck: ignore 311
      collectgarbage()
      collectgarbage()
      local text, how = all(fd)
      local body, whole = chunks(text)
      assert.same({ "the first half", false, "end" }, { body, whole, how }, by)
    end
    works()
  end)

  it("leaves routes, errors and unknown paths to the router", function()
    local said = {}
    local handle = http.router {
      ["GET /json"] = function(r) http.json(r, 200, { nan = 0 / 0, list = { 1, 2 } }) end,
      ["POST /json"] = function(r) http.text(r, 200, r:body()) end,
      ["GET /error"] = function() error "a bug" end,
      ["GET /late"] = function(r)
        r:begin(200)
        error "a late bug"
      end,
    }
    local function ask(text)
      local fd = connect()
      send(fd, text)
      handle(server:next(5))
      return answer(fd)
    end
    local stderr = io.stderr
    io.stderr = { write = function(_, ...) said[#said + 1] = table.concat { ... } end } -- luacheck: ignore 122
    local got = {}
    local ok, failure = pcall(function()
      for i, text in ipairs { get "/json", post("/json", "echo"), get "/none",
        (get "/json"):gsub("GET", "DELETE"), get "/error", get "/late" } do
        got[i] = table.pack(ask(text))
      end
    end)
    io.stderr = stderr -- luacheck: ignore 122
    assert(ok, failure)
    assert.same({ 200, '{"list":[1,2],"nan":null}' }, { got[1][1], got[1][2] })
    assert.truthy(got[1][3]:find "X%-Content%-Type%-Options: nosniff")
    assert.same({ 200, "echo" }, { got[2][1], got[2][2] })
    assert.same({ 404, 405, 500 }, { got[3][1], got[4][1], got[5][1] })
    assert.truthy(got[4][3]:find("Allow: GET, POST\r\n", 1, true))
    assert.is_nil(got[6][1]) -- cut: the status was sent already
    assert.truthy(json.decode(got[5][2]).error.message)
    assert.falsy(got[5][2]:find "a bug") -- that is for the one who runs the server
    assert.truthy(said[1]:find "GET /error: .*a bug")
    assert.truthy(said[2]:find "GET /late: .*a late bug")
  end)

  it("can be closed at any time, and lets finished answers leave if it is told so", function()
    local waits, streams, whole = connect(), connect(), connect(4096)
    send(waits, get "/waits")
    local a = server:next(5)
    send(streams, get "/streams")
    local b = server:next(5)
    b:begin(200)
    b:push "x"
    send(whole, get "/whole")
    local c, text = server:next(5), ("w"):rep(1 << 20)
    c:respond(200, nil, text)
    -- its reader takes it from another process's point of view: after close was called
    local left = sockets.receive(whole, 5, 1 << 22)
    server:close(0.2)
    assert.is_true(#left > 0)
    assert.is_false(a:is_open() or b:is_open())
    assert.same({ nil, "closed" }, { http.text(a, 200, "late") })
    assert.same({ nil, "closed" }, { b:push "late" })
    assert.has_error(function() server:next(0) end)
    server:close() -- twice is nothing
    listen()
    works()
  end)

  it("says what is wrong with its arguments, and why it cannot listen", function()
    local function fails(pattern, f, ...)
      local ok, message = pcall(f, ...)
      assert.is_false(ok)
      assert.truthy(tostring(message):find(pattern), message)
    end
    fails("unknown option 'prot'.*did you mean 'port'", http.listen, { prot = 1 })
    fails("port must be 0 to 65535", http.listen, { port = 70000 })
    fails("hosts must be a list of names or false", http.listen, { hosts = "localhost" })
    local nothing, message, code = http.listen { port = port }
    assert.is_nil(nothing)
    assert.same({ ("127.0.0.1:%d: Address already in use"):format(port), "io" }, { message, code })
    nothing, message = http.listen { host = "no.such.host" }
    assert.is_nil(nothing)
    assert.truthy(message:find "Cannot assign")
    local fd = connect()
    send(fd, get "/")
    local r = server:next(5)
    fails("the status must be 200 to 599", r.respond, r, 100)
    fails("has no body", r.respond, r, 204, nil, "body")
    fails("X%-A must be a text of one line", r.respond, r, 200, { ["X-A"] = "b\r\nSet-Cookie: c" })
    fails("must be a word", r.respond, r, 200, { ["X A"] = "b" })
    fails("push comes after begin", r.push, r, "x")
    fails("finish comes after begin", r.finish, r)
    assert.is_true(r:is_open())
    http.text(r, 200, "still there")
    fails("answered already", r.respond, r, 200, nil, "twice")
    assert.equal("still there", (select(2, answer(fd))))
  end)

  it("serves many connections at a time, and those beyond the limit after them", function()
    listen { connections = 60, queue = 200 }
    local fds, requests = {}, {}
    for i = 1, 60 do
      fds[i] = connect()
      send(fds[i], get("/" .. i))
    end
    for i = 1, 60 do
      requests[i] = assert(server:next(5))
      requests[i]:begin(200)
    end
    local beyond = connect()
    send(beyond, get "/beyond")
    assert.is_nil(server:next(0.1))
    for piece = 1, 20 do
      for _, r in ipairs(requests) do assert.is_true(r:push(("%d:%s;"):format(piece, r:path()))) end
    end
    for _, r in ipairs(requests) do r:finish() end
    for i = 1, 60 do
      local text = ""
      while not text:find "\r\n0\r\n\r\n$" do text = text .. assert(sockets.receive(fds[i], 5)) end
      local wanted = {}
      for piece = 1, 20 do wanted[piece] = ("%d:/%d;"):format(piece, i) end
      assert.equal(table.concat(wanted), (chunks(text)))
      shut(fds[i])
    end
    http.text(assert(server:next(5)), 200, "")
    assert.equal(200, (answer(beyond)))
  end)

  it("takes the next connection when the last of those that were all it may have ends", function()
    listen { connections = 1, queue = 10 }
    for round = 1, 30 do
      local first, second = connect(), connect()
      send(first, get "/first")
      send(second, get "/second")
      http.text(assert(server:next(5), round), 200, "")
      assert.equal(200, (answer(first)))
      shut(first)
      local r = assert(server:next(5), round)
      assert.equal("/second", r:path())
      http.text(r, 200, "")
      assert.equal(200, (answer(second)))
      shut(second)
    end
  end)

  it("outlives whatever is sent to it", function()
    listen { read = 2, header = 4096, body = 500 }
    math.randomseed(19)
    local seeds = { get("/a?b=c", "Accept: */*\r\nConnection: keep-alive\r\n"), post("/x", ("y"):rep(200)),
      "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
      "HEAD / HTTP/1.0\r\nHost: localhost\r\n\r\n" }
    local words = { "\r\n", "\n", "\0", "Host: x\r\n", "Content-Length: 5\r\n", "%", " ", ":", "HTTP/9.9",
      ("z"):rep(5000),
      "Transfer-Encoding: chunked\r\n", "ffffffffffffffff\r\n", "-1", "\255", "Expect: 100-continue\r\n" }
    local handed = 0
    for round = 1, 1500 do
      local text = seeds[math.random(#seeds)]
      for _ = 1, math.random(4) do
        local at, with = math.random(#text), words[math.random(#words)]
        local cut = math.random(0, 3) == 0 and math.random(10) or 0
        text = text:sub(1, at) .. with .. text:sub(at + 1 + cut)
      end
      local fd = connect()
      sockets.send(fd, text)
      if round % 3 == 0 then shut(fd, round % 2 == 0 and "reset" or "close") end
      while true do
        local r = server:next(0.001)
        if not r then break end
        handed = handed + 1
        if math.random(2) == 1 then
          http.text(r, 200, r:path() .. json.line(r:query()) .. json.line(r:headers()) .. r:body())
        elseif r:begin(200) then
          r:push(r:body())
          if math.random(2) == 1 then r:finish() end
        end
      end
      if round % 3 ~= 0 then shut(fd) end
    end
    assert.is_true(handed > 200, "requests that came through: " .. handed)
    works()
    eventually(function() local c = server:counts() return c.connections <= 1 and c.active == 0 end)
  end)

  it("leaves nothing behind", function()
    local function descriptors()
      local n, p = 0, assert(io.popen "ls /proc/$PPID/fd")
      for _ in p:lines() do n = n + 1 end
      p:close()
      return n
    end
    collectgarbage()
    local before = descriptors()
    for i = 1, 20 do
      listen()
      local fd = connect()
      send(fd, get "/")
      local r = server:next(5)
      if i % 2 == 0 then r:begin(200) end
      shut(fd)
      if i % 3 == 0 and i % 2 ~= 0 then http.text(r, 200, "") end
    end
    collectgarbage()
    eventually(function() return descriptors() == before end)
  end)
end)

describe("without libmicrohttpd", function()
  local function listen_with(failure)
    local loaded, searchers = package.loaded["perilune.httpd"], package.searchers
    package.loaded["perilune.httpd"] = nil
    package.searchers = { function() return function() error(failure, 0) end end } -- luacheck: ignore 122
    local nothing, message, code = http.listen {}
    package.loaded["perilune.httpd"], package.searchers = loaded, searchers -- luacheck: ignore 122
    return nothing, message, code
  end

  it("the package that is missing is named", function()
    local nothing, message, code = listen_with "libmicrohttpd.so.12: cannot open shared object file"
    assert.is_nil(nothing)
    assert.equal("missing", code)
    assert.truthy(message:find("install it (Debian: libmicrohttpd12)", 1, true), message)
    message = select(2, listen_with "module 'perilune.httpd' not found")
    assert.truthy(message:find("libmicrohttpd-dev", 1, true), message)
  end)
end)
