-- SPDX-License-Identifier: MIT
-- perilune watch, over HTTP: what logs hold while they grow, what is left alone, who is refused, and trainings that are
-- paused and stopped from there.

local T = require "perilune"
local json = require "perilune.io.json"
local term = require "spec.support.terminal"

local build = os.getenv "PERILUNE_BUILD" or (os.getenv "PERILUNE_ROOT" or ".") .. "/build"
local available = pcall(require, "perilune.httpd")
local sockets = assert(package.loadlib(build .. "/spec/libsockets.so", "luaopen_sockets"))()
local q = term.quote

describe("perilune watch", function()
  if not available then
    it("is part of the build", function() pending "built without libmicrohttpd" end)
    return
  end
  local watch = require "perilune.watch"

  local dir, remove, server, handle, token, port, told, shown

  before_each(function()
    dir, remove = term.folder()
    local address
    server, handle, address = assert(watch.open(dir, 0))
    port, token = tonumber(address:match ":(%d+)/"), address:match "#(%x+)$"
    told, shown = {}, {}
  end)
  after_each(function()
    server:close()
    remove()
  end)

  local function write(name, text, mode)
    local f = assert(io.open(dir .. "/" .. name, mode or "wb"))
    f:write(text)
    f:close()
  end

  -- One request, as bytes → status, body, head
  local function ask(bytes)
    local fd = sockets.connect("127.0.0.1", port)
    sockets.send(fd, bytes)
    local request = server:next(2)
    if request then handle(request) end
    local got = ""
    while true do
      local head, body = got:match "^(.-\r\n\r\n)(.*)$"
      local length = head and tonumber(head:match "Content%-Length: (%d+)")
      if length and #body >= length then
        sockets.close(fd)
        return tonumber(head:match "^HTTP/1.1 (%d+)"), body, head
      end
      local more = assert(sockets.receive(fd, 5), "no answer")
      assert(more ~= "", "cut: " .. got)
      got = got .. more
    end
  end

  local function request(method, path, body, more)
    return ask(("%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n%s"):format(method, path,
      #(body or ""), more or ("X-Perilune-Token: " .. token .. "\r\n"), body or ""))
  end

  -- What a page would show: run name → {about=, points = series name → {x=, y=, …}, news = the same of the last answer}
  local function news(fresh)
    if fresh then told, shown = {}, {} end
    local out, more
    repeat
      local status, body = request("POST", "/data", json.line { have = told })
      assert.equal(200, status, body)
      local v = assert(json.decode(body))
      more = v.more
      out = out or { runs = {} }
      out.pictures, out.folder = v.pictures, v.folder
      for _, r in ipairs(v.runs) do
        local run = out.runs[r.about.name] or { news = {} }
        shown[r.id] = shown[r.id] or {}
        run.about, run.id, run.points = r.about, r.id, shown[r.id]
        for _, p in ipairs(r.points) do
          local name, along
          for _, s in ipairs(r.about.series) do if s.id == p.id then name, along = s.name, s.along end end
          run.news[name] = p
          local old = run.points[name] or { x = {}, y = {}, low = {}, high = {} }
          local function put(list, new)
            for i = #list, p.from, -1 do list[i] = nil end
            for i, number in ipairs(new or {}) do list[p.from - 1 + i] = number end
            return list
          end
          run.points[name] = { along = along, total = p.total, x = put(old.x, p.x), y = put(old.y, p.y),
            low = put(old.low, p.low), high = put(old.high, p.high) }
          told[("%d.%d"):format(r.id, p.id)] = { p.generation, p.from - 1 + #p.x, p.total }
        end
        out.runs[r.about.name] = run
      end
    until not more
    return out
  end

  -- The next look at the folder is made at once.
  local function again()
    server:close()
    local address
    server, handle, address = assert(watch.open(dir, 0))
    port, token = tonumber(address:match ":(%d+)/"), address:match "#(%x+)$"
    return news(true)
  end

  it("shows one small page that loads nothing from elsewhere", function()
    local status, body, head = request("GET", "/", "", "")
    assert.equal(200, status)
    assert.is_true(#body < 50000, #body .. " bytes")
    local nonce = head:match "script%-src 'nonce%-(%x+)'"
    assert.truthy(head:find("default-src 'none'", 1, true))
    assert.truthy(head:find("frame-ancestors 'none'", 1, true))
    assert.equal(2, select(2, body:gsub('nonce="' .. nonce .. '"', "")))
    assert.falsy(body:find "https?://")
    assert.falsy(body:find 'src="')
    assert.falsy(body:find "innerHTML") -- text of logs is never markup
    assert.falsy(body:find(token, 1, true))
    assert.not_equal(nonce, select(3, request("GET", "/", "", "")):match "script%-src 'nonce%-(%x+)'")
  end)

  it("answers only to who has the token, on its own name, by the methods that there are", function()
    write("a.csv", "step,loss\n1,0.5\n")
    for _, path in ipairs { "POST /data", "POST /control", "GET /picture?run=1&id=1" } do
      local method, target = path:match "(%u+) (.*)"
      for _, more in ipairs { "", "X-Perilune-Token: \r\n", "X-Perilune-Token: " .. ("0"):rep(32) .. "\r\n",
        "Cookie: " .. token .. "\r\n" } do
        local status, body = request(method, target, "", more)
        assert.equal(403, status, path)
        assert.falsy(body:find(token, 1, true))
      end
    end
    assert.equal(403, (ask(("POST /data HTTP/1.1\r\nHost: evil.example\r\nX-Perilune-Token: %s\r\n"
      .. "Content-Length: 2\r\n\r\n{}"):format(token))))
    assert.equal(405, (request("GET", "/control")))
    assert.equal(405, (request("GET", "/data")))
    for _, path in ipairs { "/a.csv", "/../a.csv", "/..%2f..%2fetc%2fpasswd", "/%2e%2e/%2e%2e/etc/passwd",
      "//etc/passwd", "/index.html", "/picture/../a.csv" } do
      assert.equal(404, (request("GET", path)), path)
    end
    for _, query in ipairs { "run=1&id=1", "run=../../x&id=/etc/passwd", "run=0&id=-1", "", "run=1e999&id=nan",
      "run=0&id=9223372036854775807" } do
      assert.equal(404, (request("GET", "/picture?" .. query)), query)
    end
    for _, body in ipairs { "", "null", "[]", "7", '{"have":7}', '{"have":{"1.1":"x"}}', '{"have":{"1.1":[1,-5,{}]}}',
      '{"have":{"1.1":[1e999,1.5,null]}}', "{", ("["):rep(100000) } do
      assert.equal(200, (request("POST", "/data", body)), body:sub(1, 50))
    end
    for _, body in ipairs { "", "{}", '{"run":1}', '{"run":1,"action":"explode"}', '{"run":"1","action":"stop"}',
      '{"run":1,"action":"stop"}', '{"run":99,"action":"stop"}', '{"run":[],"action":{}}' } do
      assert.equal(409, (request("POST", "/control", body)), body)
    end
  end)

  it("reads logs of all kinds, and of what grows only the new part", function()
    local read, original = 0, T.core.read_range
    T.core.read_range = function(...)
      local bytes = original(...)
      read = read + #(bytes or "")
      return bytes
    end
    local ok, failure = pcall(function()
      assert.same({}, news().runs)
      local rows = {}
      for i = 1, 1500 do rows[i] = ("%d,%d,%.17g,1e-3\n"):format(i, i // 100, 1 / i) end
      T.core.mkdirs(dir .. "/deep/er")
      write("deep/er/a.csv", "step,epoch,loss,lr\n" .. table.concat(rows))
      write("b.jsonl", '{"epoch":1,"loss":0.5,"note":"x","nan":null}\n{"epoch":2,"loss":0.25,"ok":true}\n')
      local log = assert(T.log.tensorboard(dir .. "/tb", { flush = 0 }))
      log:scalar("loss", 2, 10)
      log:scalar("loss", 1, 20)
      log:flush()
      write("data.csv", "height,weight\n1,2\n") -- no log
      local all = again()
      assert.same({ "b.jsonl", "deep/er/a.csv", "tb" }, (function()
        local names = {}
        for name in pairs(all.runs) do names[#names + 1] = name end
        table.sort(names)
        return names
      end)())
      local a, b, tb = all.runs["deep/er/a.csv"], all.runs["b.jsonl"], all.runs.tb
      assert.equal(1500, #a.points.loss.x)
      assert.same({ "step", 1500, 1e-3 }, { a.points.lr.along, a.points.lr.x[1500], a.points.lr.y[1500] })
      assert.is_true(math.abs(a.points.loss.y[3] - 1 / 3) < 1e-6)
      assert.is_nil(a.points.epoch)
      assert.same({ "epoch", { 1, 2 }, { 0.5, 0.25 } }, { b.points.loss.along, b.points.loss.x, b.points.loss.y })
      assert.is_nil(b.points.note)
      assert.same({ { 10, 20 }, { 2, 1 } }, { tb.points.loss.x, tb.points.loss.y })
      assert.equal("ended", a.about.state.state)

      assert.is_true(read > 30000)
      read = 0
      assert.same({}, news().runs["deep/er/a.csv"].news)
      assert.equal(0, read) -- nothing has changed
      write("deep/er/a.csv", "1501,15,7.5,1e-3\n", "ab")
      write("b.jsonl", '{"epoch":3,"loss":0.125}\n', "ab")
      log:scalar("loss", 0.5, 30)
      log:flush()
      all = news()
      local p = all.runs["deep/er/a.csv"].news.loss
      assert.same({ 1500, 2, 1501, 7.5 }, { p.from, #p.x, p.x[2], p.y[2] })
      assert.same({ { 2, 3 }, { 0.25, 0.125 } }, { all.runs["b.jsonl"].news.loss.x, all.runs["b.jsonl"].news.loss.y })
      assert.same({ { 20, 30 }, { 1, 0.5 } }, { all.runs.tb.news.loss.x, all.runs.tb.news.loss.y })
      assert.equal(1501, #all.runs["deep/er/a.csv"].points.loss.x)
      assert.is_true(read < 1000, read .. " bytes were read for three rows")
      log:close()
    end)
    T.core.read_range = original
    assert(ok, failure)
  end)

  it("waits for the other half of what is being written", function()
    write("a.csv", "step,loss\n1,0.5\n2,0.")
    write("b.jsonl", '{"step":1,"loss":1}\n{"step":2,"lo')
    local log = assert(T.log.tensorboard(dir .. "/tb", { flush = 0 }))
    log:scalar("loss", 2, 10)
    log:close()
    local whole = term.read(log.path)
    write("tb/" .. log.path:match "[^/]+$", whole:sub(1, -5))
    local all = again()
    assert.same({ 1 }, all.runs["a.csv"].points.loss.x)
    assert.same({ 1 }, all.runs["b.jsonl"].points.loss.x)
    assert.is_nil(all.runs.tb.points.loss)
    assert.same({}, news().runs["a.csv"].news)
    assert.is_nil(all.runs.tb.about.fault)
    write("a.csv", "25\n", "ab")
    write("b.jsonl", 'ss":3}\n', "ab")
    write("tb/" .. log.path:match "[^/]+$", whole:sub(-4), "ab")
    all = news()
    assert.same({ 1, 2 }, all.runs["a.csv"].points.loss.x)
    assert.same(0.25, all.runs["a.csv"].points.loss.y[2])
    assert.same(3, all.runs["b.jsonl"].points.loss.y[2])
    assert.same({ 10 }, all.runs.tb.points.loss.x)
  end)

  it("reads anew what was written anew, also where it is as long as before", function()
    write("a.csv", "step,loss\n1,0.5\n2,0.4\n")
    assert.same({ 0.5, 0.4 }, again().runs["a.csv"].points.loss.y)
    sockets.sleep(0.02)
    write("a.csv", "step,loss\n1,0.7\n2,0.6\n")
    assert.same({ 0.7, 0.6 }, news().runs["a.csv"].points.loss.y)
    write("a.csv", "step,loss\n1,0.9\n")
    assert.same({ 0.9 }, news().runs["a.csv"].points.loss.y)
    write("a.csv", "step,loss,lr\n1,0.8,1\n2,0.7,1\n3,0.6,1\n")
    local a = news().runs["a.csv"]
    assert.same({ { 0.8, 0.7, 0.6 }, 1 }, { a.points.loss.y, a.news.loss.from })
    -- a second file of events that begins again in the middle of the first: what lies behind is taken once more
    for i = 1, 2 do
      local log = assert(T.log.tensorboard(dir .. "/tb"))
      for step = i == 1 and 1 or 3, 5 do log:scalar("loss", i, step) end
      log:close()
      sockets.sleep(1.1) -- names of these files have seconds
    end
    local p = again().runs.tb.points.loss
    assert.same({ { 1, 2, 3, 4, 5 }, { 1, 1, 2, 2, 2 } }, { p.x, p.y })
  end)

  it("keeps long runs in little room, with their least and greatest", function()
    local rows = { "step,loss,sum" }
    local n = 30000
    for i = 1, n do rows[i + 1] = ("%d,%g,1"):format(i, i == 12345 and 99 or i == 23456 and -99 or 1) end
    write("a.csv", table.concat(rows, "\n") .. "\n")
    local p = again().runs["a.csv"].points.loss
    assert.is_true(#p.x <= 2000 and #p.x >= 900, #p.x)
    assert.equal(n, p.total)
    assert.same({ 99, -99, n }, { math.max(table.unpack(p.high)), math.min(table.unpack(p.low)), p.x[#p.x] })
    local sum = 0
    for i, y in ipairs(p.y) do sum = sum + y * (p.x[i] - (p.x[i - 1] or 0)) end
    assert.is_true(math.abs(sum - n + 2) < n * 1e-4, sum)
    -- page after page the same as at once
    local before = #p.x
    for i = 1, 40 do
      write("a.csv", ("%d,%d,1\n"):format(n + i, i), "ab")
      assert.is_true(news().runs["a.csv"].news.loss.from >= before)
    end
    p = news().runs["a.csv"].points.loss
    local whole = again().runs["a.csv"].points.loss
    assert.same({ whole.x, whole.y, whole.low, whole.high }, { p.x, p.y, p.low, p.high })
    assert.equal(n + 40, whole.total)
  end)

  it("takes what it can of damaged logs", function()
    write("a.jsonl", 'rubbish\n{"step":1,"loss":1}\n[1,2]\n{"step":2,"loss":"x"}\n\0\255\n{"step":"y","loss":3}\n'
      .. '{"step":3,"loss":3}\r\n')
    write("b.csv", '"step","a ""b"", c",loss\n1,2,nan\n2,3,inf\n3,,4\nx,y,z\n4,5\n"5","6","7"\n')
    write("c.jsonl", ("x"):rep(3 << 20) .. '\n{"step":1,"loss":1}\n')
    write("d.csv", "step\n")
    write("e.jsonl", "")
    local log = assert(T.log.tensorboard(dir .. "/tb"))
    for i = 1, 3 do log:scalar("loss", i, i) end
    log:close()
    local bytes = term.read(log.path)
    write("tb/" .. log.path:match "[^/]+$", bytes:sub(1, -10) .. "!" .. bytes:sub(-8))
    write("tb2.tfevents", ("\255"):rep(100))
    local all = again()
    assert.same({ 1, 3 }, all.runs["a.jsonl"].points.loss.x)
    local b = all.runs["b.csv"].points
    assert.same({ { 1, 2, 4, 5 }, { 2, 3, 5, 6 } }, { b['a "b", c'].x, b['a "b", c'].y })
    assert.same({ { 3, 5 }, { 4, 7 } }, { b.loss.x, b.loss.y })
    local series = {}
    for _, s in ipairs(all.runs["b.csv"].about.series) do series[s.name] = s end
    assert.equal(2, series.loss.broken)
    assert.same({ 1 }, all.runs["c.jsonl"].points.loss.x)
    assert.same({ 1, 2 }, all.runs.tb.points.loss.x)
    assert.equal("a record is damaged", all.runs.tb.about.fault)
  end)

  it("follows no link and shows nothing from outside the folder", function()
    local other, gone = term.folder()
    local f = assert(io.open(other .. "/secret.csv", "w"))
    f:write "step,loss\n1,42\n"
    f:close()
    T.core.mkdirs(dir .. "/inside")
    for _, link in ipairs { "ln -s %s/secret.csv %s/link.csv", "ln -s %s %s/folder", "ln -s %s/secret.csv %s/x.png" } do
      os.execute(link:format(q(other), q(dir)))
    end
    write("inside/own.csv", "step,loss\n1,1\n")
    write(".hidden.csv", "step,loss\n1,1\n")
    local all = again()
    assert.truthy(all.runs["inside/own.csv"])
    assert.equal("inside/own.csv", (next(all.runs)))
    assert.is_nil(next(all.runs, (next(all.runs))))
    assert.same({}, all.pictures)
    -- a log that becomes a link
    os.execute(("rm %s/inside/own.csv && ln -s %s/secret.csv %s/inside/own.csv"):format(q(dir), q(other), q(dir)))
    local now = news().runs["inside/own.csv"]
    assert.is_true(now == nil or now.points.loss.y[#now.points.loss.y] == 1) -- not 42
    gone()
  end)

  it("shows pictures: of event files step by step, and files, if they are pictures", function()
    local log = assert(T.log.tensorboard(dir .. "/tb"))
    local shots = {}
    for i = 1, 100 do
      shots[i] = T.full({ 4, 4 }, i, { dtype = "u8" })
      log:image("a <b>picture</b>", shots[i], i)
    end
    log:close()
    write("x.png", T.core.png(T.zeros(2, 2, { dtype = "u8" })))
    write("y.png", "no picture")
    write("z.jpg", "\255\216\255 half a picture")
    local all = again()
    local tag = all.runs.tb.about.pictures[1]
    assert.equal("a <b>picture</b>", tag.tag)
    assert.is_true(#tag.shots <= 64)
    assert.same({ 1, 100 }, { tag.shots[1].step, tag.shots[#tag.shots].step })
    for _, shot in ipairs { tag.shots[1], tag.shots[20], tag.shots[#tag.shots] } do
      local status, bytes, head = request("GET", ("/picture?run=%d&id=%d"):format(all.runs.tb.id, shot.id))
      assert.equal(200, status)
      assert.truthy(head:find("Content-Type: image/png", 1, true))
      assert.is_true(bytes == T.core.png(shots[shot.step]))
    end
    local kinds = {}
    for _, p in ipairs(all.pictures) do
      local status, _, head = request("GET", ("/picture?run=0&id=%d"):format(p.id))
      kinds[p.name] = status == 200 and head:match "Content%-Type: (%S+)" or status
    end
    assert.same({ ["x.png"] = "image/png", ["y.png"] = 404, ["z.jpg"] = "image/jpeg" }, kinds)
  end)

  -- A training in a process of its own.
  local training = [[
    local T = require "perilune"
    local nn, dir, epochs = T.nn, arg[1], tonumber(arg[2])
    T.manual_seed(1)
    local x = T.randn(320, 4)
    local net = nn.Linear(4, 4)
    local slow = { on_batch = function() if dir then T.core.sleep(0.005) end end }
    local history = assert(T.fit(net, { train = T.data.DataLoader(T.data.TensorDataset(x, x:argmax(-1)),
      { batch_size = 16, shuffle = true, seed = 1 }), epochs = epochs, optimizer = T.optim.Adam(net:parameters()),
      callbacks = dir and { T.log.jsonl(dir .. "/run.jsonl", { every = 1 }), slow } or nil, bar = false,
      checkpoint = dir and dir .. "/run.ckpt", resume = arg[3] == "resume" }))
    print(#history, (T.nn.utils.parameters_to_vector(net:parameters()):double() * 1e6):sum():item())
  ]]

  local function start(...)
    write("train.lua", training)
    local out = dir .. "/out"
    os.execute(("%s run %s/train.lua -- %s > %s 2>&1 &"):format(q(term.command), q(dir), table.concat({ ... }, " "),
      q(out)))
    return out
  end

  local function until_state(wanted)
    local state
    for _ = 1, 600 do
      local run = news().runs["run.jsonl"] or again().runs["run.jsonl"]
      state = run and run.about.state
      if state and state.state == wanted then return run, state end
      sockets.sleep(0.05)
    end
    error("the run is " .. tostring(state and state.state) .. ", not " .. wanted .. "\n" .. term.read(dir .. "/out"), 2)
  end

  local function tell(run, action) return request("POST", "/control", json.line { run = run.id, action = action }) end

  it("pauses a training, lets it go on, and stops it where it can be resumed with the same bits", function()
    local out = start(q(dir), 1000)
    local run, state = until_state "running"
    assert.same({ 1000, 20, true }, { state.epochs, state.batches, state.controls })
    assert.is_nil(state.token)
    assert.equal(200, (tell(run, "pause")))
    run = until_state "paused"
    local size = #term.read(dir .. "/run.jsonl")
    sockets.sleep(0.3)
    assert.equal(size, #term.read(dir .. "/run.jsonl"))
    assert.equal(200, (tell(run, "resume")))
    run = until_state "running"
    for _ = 1, 600 do
      if #term.read(dir .. "/run.jsonl") > size then break end
      sockets.sleep(0.01)
    end
    assert.equal(200, (tell(run, "stop")))
    run = until_state "ended"
    local status, body = tell(run, "stop")
    assert.equal(409, status)
    assert.truthy(body:find "has ended")
    local text
    for _ = 1, 600 do
      text = term.read(out)
      if text:find "\n%d+\t" then break end
      sockets.sleep(0.05)
    end
    local step, place = text:match("stopped in epoch %d+ after batch %d+ %(step (%d+)%) by perilune watch; "
      .. "resume = true goes on from (%S+)")
    assert.truthy(step, text)
    assert.equal(dir .. "/run.ckpt", place)
    for _, name in ipairs { ".run", ".control" } do assert.is_nil(io.open(dir .. "/run.jsonl" .. name), name) end
    -- what goes on there ends as what was never stopped
    local epochs = step // 20 + 3
    local resumed = term.shell(("%s run %s/train.lua -- %s %d resume"):format(q(term.command), q(dir), q(dir), epochs))
    write("whole.lua", (training:gsub("arg%[1%]", "nil", 1):gsub("arg%[2%]", "arg[1]")))
    local whole = term.shell(("%s run %s/whole.lua -- %d"):format(q(term.command), q(dir), epochs))
    assert.truthy(whole:match "\n(%d+\t%S+)\n$", whole)
    assert.equal(whole:match "\n(%d+\t%S+)\n$", resumed:match "\n(%d+\t%S+)\n$", resumed)
    local steps = {}
    for line in io.lines(dir .. "/run.jsonl") do
      local row = json.decode(line)
      if row.lr then steps[#steps + 1] = row.step end
    end
    assert.equal(epochs * 20, #steps)
    for i, s in ipairs(steps) do assert.equal(i, s) end
  end)

  it("says of a run that was killed that it was, and tells it nothing", function()
    start(q(dir), 1000)
    until_state "running"
    local pid = json.decode(term.read(dir .. "/run.jsonl.run")).pid
    os.execute(("kill -9 %d"):format(pid))
    local run = until_state "killed"
    assert.equal(409, (tell(run, "stop")))
    assert.is_nil(io.open(dir .. "/run.jsonl.control"))
    -- a state that others can write is nobody's
    os.execute(("chmod 666 %s/run.jsonl.run"):format(q(dir)))
    assert.equal("ended", news().runs["run.jsonl"].about.state.state)
    for _, text in ipairs { "", "{", "7", '{"format":"perilune.run 1"}', '{"format":"perilune.run 1","state":"odd"}',
      '{"format":"perilune.run 1","state":"running","token":"../x"}', ("x"):rep(9000) } do
      os.remove(dir .. "/run.jsonl.run")
      write("run.jsonl.run", text)
      os.execute(("chmod 644 %s/run.jsonl.run"):format(q(dir)))
      assert.equal("ended", news().runs["run.jsonl"].about.state.state, text)
    end
  end)

  it("is drawn by a browser, with what logs hold as text", function()
    local missing = term.missing "chromium"
    if missing then return pending(missing) end
    write("a.csv", "step,loss,<img src=x onerror=document.title='taken'>\n1,2,3\n2,1,4\n")
    write("<b>b.jsonl", '{"step":1,"loss":3}\n{"step":2,"loss":0.5}\n')
    local log = assert(T.log.tensorboard(dir .. "/tb"))
    log:image("picture", T.zeros(8, 8, { dtype = "u8" }), 1)
    log:close()
    local pid, host = T.core.process() -- one of several processes
    assert(T.core.write_own(dir .. "/a.csv.run", json.line { format = "perilune.run 1", pid = pid, host = host,
      step = 3, token = "ab", state = "running", controls = false, epoch = 1, time = os.time(), started = os.time() }))
    news()
    local form = "timeout 60 chromium --headless=new --no-sandbox --disable-gpu --user-data-dir=%s/profile "
      .. "--virtual-time-budget=5000 --dump-dom 'http://127.0.0.1:%d/#%s' > %s/dom 2> %s/said; touch %s/done"
    os.execute(("(%s) &"):format(form:format(q(dir), port, token, q(dir), q(dir), q(dir))))
    local asked = {}
    for _ = 1, 600 do
      local r = server:next(0.1)
      if r then
        asked[#asked + 1] = r:method() .. " " .. r:path()
        handle(r)
      elseif io.open(dir .. "/done") then
        break
      end
    end
    local dom = term.read(dir .. "/dom")
    local all = table.concat(asked, "\n")
    if dom == "" and all == "" then return pending "chromium does not start here" end
    assert.equal("GET /", asked[1])
    assert.truthy(all:find "POST /data" and all:find "GET /picture", all)
    assert.truthy(dom:find 'data%-name="loss"')
    assert.truthy(dom:find("b&gt;b.jsonl", 1, true) or dom:find("&lt;b&gt;b.jsonl", 1, true))
    assert.falsy(dom:find("<img src=\"x\"", 1, true))
    assert.truthy(dom:find("<title>perilune watch</title>", 1, true))
    assert.truthy(dom:find '<img[^>]*src="blob:')
    assert.truthy(dom:find("it cannot be paused or stopped from here", 1, true), dom)
  end)

  it("is a command that says what is wrong", function()
    local function said(args)
      local text, status = term.shell(("%s watch %s"):format(q(term.command), args))
      return text, status
    end
    local text, status = said ""
    assert.same({ 2, 1 }, { status, (text:find("perilune watch: one folder is wanted", 1, true)) })
    text, status = said "--port 70000 ."
    assert.same({ 2, 1 }, { status, (text:find("perilune watch: --port needs an integer", 1, true)) })
    text, status = said "/no/such/folder"
    assert.equal(1, status)
    assert.equal("perilune watch: /no/such/folder: No such file or directory\n", text)
    text, status = said(q(dir .. "/train.lua"))
    assert.equal(1, status, text)
    text, status = said(("--port %d %s"):format(port, q(dir)))
    assert.same({ 1, true }, { status, text:find("Address already in use", 1, true) ~= nil })
    text, status = term.interrupted(("%s watch %s"):format(q(term.command), q(dir)), "http://")
    assert.equal(130, status, text)
    assert.truthy(text:find "http://127.0.0.1:%d+/#%x+\n")
  end)
end)
