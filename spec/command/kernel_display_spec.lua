-- SPDX-License-Identifier: MIT
-- What the Jupyter kernel shows besides text: pictures, tables, bars, trainings that are under way.
local kernels = require "spec.command.kernel_client"

local lacking = kernels.missing()

local letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local function unbase64(text)
  return (text:gsub("=", ""):gsub("..?.?.?", function(part)
    local v = 0
    for i = 1, 4 do v = v << 6 | (i <= #part and letters:find(part:sub(i, i), 1, true) - 1 or 0) end
    return (">I3"):pack(v):sub(1, #part - 1)
  end))
end

-- Width and height of a PNG picture (RFC 2083, 3.1 and 4.1.1).
local function size_of(data)
  local bytes = unbase64(assert(data["image/png"], "there is no picture"))
  assert.equal("\137PNG\r\n\26\n", bytes:sub(1, 8))
  assert.equal("IEND", bytes:sub(-8, -5))
  local width, height = (">I4I4"):unpack(bytes, 17)
  return width, height
end

describe("the Jupyter kernel shows", function()
  if lacking then return it("is built", function() pending(lacking) end) end
  local k
  setup(function() k = kernels.start() end)
  teardown(function() k:close() end)

  -- The content of the cell's only message of this kind.
  local function only(kind, code)
    local reply, out = k:run(code)
    assert.equal("ok", reply.status, reply.evalue)
    local found
    for _, m in ipairs(out.messages) do
      if m.kind == kind then
        assert.is_nil(found, "two messages of the kind " .. kind)
        found = m.content
      end
    end
    return assert(found, "no message of the kind " .. kind), out
  end
  local function result(code) return only("execute_result", code) end

  it("plots as pictures", function()
    local c = result "T.plot({ 1, 2, 3 }, { width = 300, height = 200 })"
    assert.same({ 600, 400 }, { size_of(c.data) })
    assert.same({ width = 300, height = 200 }, c.metadata["image/png"])
    assert.truthy(c.data["text/plain"]:find "⠤")
    assert.same({ 256, 256 }, { size_of(result "T.rand(1, 8, 8):imshow()".data) })
    assert.truthy(result "T.plot.hist(T.randn(100))".data["image/png"])
    assert.truthy(result "T.plot.matrix(T.eye(3))".data["image/png"])
  end)

  it("tensors that are pictures as pictures, others as text", function()
    for _, shape in ipairs { "16, 32, 3", "3, 16, 32", "16, 32, 1", "4, 16, 32" } do
      assert.same({ 256, 128 }, { size_of(result(("T.zeros(%s):to 'u8'"):format(shape)).data) })
    end
    for _, code in ipairs { "T.zeros(16, 32, 3)", "T.zeros(16, 32):to 'u8'", "T.zeros(3, 3, 3):to 'u8'",
      "T.zeros(2, 16, 16):to 'u8'", "T.zeros(0, 16, 3):to 'u8'", "T.zeros(5):to 'u8'" } do
      assert.same({ "text/plain" }, { next(result(code).data), nil }, code)
    end
  end)

  it("what a value's metatable says", function()
    local c = result [[
      setmetatable({}, { __tostring = function() return "text" end, __mime = function(v)
        return { ["text/html"] = "<b>&\xff</b>", ["image/png"] = "\0\1\255", ["image/svg+xml"] = "<svg/>",
          ["application/json"] = { a = 1 } }, { ["image/png"] = { width = 3 } }
      end })]]
    assert.same({ ["text/plain"] = "text", ["text/html"] = "<b>&\u{FFFD}</b>", ["image/png"] = "AAH/",
      ["image/svg+xml"] = "<svg/>", ["application/json"] = { a = 1 } }, c.data)
    assert.same({ ["image/png"] = { width = 3 } }, c.metadata)
    c = result("C = { __mime = function() return { ['text/html'] = 'of the class' } end }; C.__index = C\n"
      .. "return setmetatable({}, { __index = C })")
    assert.equal("of the class", c.data["text/html"])
    assert.equal("error", k:run("return setmetatable({}, { __mime = function() error 'broken' end })").status)
    for _, wrong in ipairs { "5", "'x'", "{}", "function() return 5 end", "function() return { png = 'x' } end",
      "function() return { ['text/html'] = {} } end", "function() return { ['a/json'] = print } end" } do
      local reply = k:run(("return setmetatable({}, { __mime = %s })"):format(wrong))
      assert.equal("error", reply.status, wrong)
      assert.truthy(reply.evalue:find "__mime" or reply.evalue:find "json", reply.evalue)
    end
    assert.equal("ok", k:run("return setmetatable({}, { __mime = function() end })").status)
  end)

  it("summaries, histories and profiles as tables", function()
    local summary = result "net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())\nnet:summary()".data
    assert.truthy(summary["text/plain"]:find "9 parameters, 9 trainable")
    assert.truthy(summary["text/html"]:find('<td style="text-align:left">&nbsp;&nbsp;1 (Linear)</td>', 1, true))
    assert.truthy(summary["text/html"]:find "<p>9 parameters, 9 trainable")
    assert.is_nil(result "'just text'".data["text/html"])
    local profile = result "(T.profile(function() return T.ones(10) * 2 end))".data
    assert.truthy(profile["text/html"]:find ">mul</td>", profile["text/html"])
    local history = result("net = nn.Linear(2, 2)\n"
      .. "T.fit(net, { train = { { T.randn(4, 2), T.tensor { 1, 2, 1, 2 }:long() } }, "
      .. "epochs = 3, quiet = true, optimizer = optim.SGD(net:parameters(), { lr = 0.1 }) })")
    assert.truthy(history.data["text/html"]:find(">epoch</th>", 1, true))
    assert.equal(4, select(2, history.data["text/html"]:gsub("<tr>", "")))
  end)

  it("several values together", function()
    local data = result "T.plot { 1, 2 }, '<a>'".data
    assert.truthy(data["text/html"]:find '^<img src="data:image/png;base64,')
    assert.truthy(data["text/html"]:find('<pre>&quot;&lt;a&gt;&quot;</pre>', 1, true))
    assert.is_nil(result "1, 2".data["text/html"])
  end)

  it("values while a cell runs, and others in their place", function()
    local _, out = k:run "print 'before'; local d = display(T.plot { 1, 2 }, 5); print 'between'; d:update 'new'; d"
    local seen = {}
    for _, m in ipairs(out.messages) do seen[#seen + 1] = m.kind == "stream" and m.content.text or m.kind end
    assert.equal("before\n display_data display_data between\n update_display_data", table.concat(seen, " "))
    local shown, changed = out.messages[2].content, out.messages[5].content
    assert.equal(shown.transient.display_id, changed.transient.display_id)
    assert.not_equal(shown.transient.display_id, out.messages[3].content.transient.display_id)
    assert.equal('"new"', changed.data["text/plain"])
    assert.same({ wait = true }, only("clear_output", "clear_output(true)"))
    assert.same({ wait = false }, only("clear_output", "clear_output()"))
  end)

  it("bars in one line that is written over", function()
    local start = k.zeromq.now()
    local _, out = k:run "for i, bar in T.bar(300) do os.execute 'sleep 0.001' end"
    assert.equal("", out.stderr)
    assert.is_nil(out.stdout:find("\27[K", 1, true))
    local _, turns = out.stdout:gsub("\r", "")
    assert.is_true(turns >= 2 and turns < (k.zeromq.now() - start) / 0.1 + 4, turns) -- ten a second
    assert.equal(1, select(2, out.stdout:gsub("\n", "")))
    assert.truthy(out.stdout:find "300/300")
    -- what is shorter hides what was longer
    _, out = k:run("local b = T.bar(0, { total = 3 }) b:step() b:set { note = 'a long word' } b.drawn = 0 b:step() "
      .. "b:set { note = '' } b.drawn = 0 b:step() b:finish()")
    local widths = {}
    for part in out.stdout:gsub("\27%[%d*m", ""):gmatch "[^\r\n]+" do widths[#widths + 1] = utf8.len(part) end
    assert.equal(widths[#widths - 1], widths[#widths - 2], out.stdout)
  end)

  describe("T.fit", function()
    local train = [[
      local x = T.randn(400, 4)
      local loader = T.data.DataLoader(T.data.TensorDataset(x, x:argmax(-1)), { batch_size = 4 })
      local net = nn.Linear(4, 4)
      local function slow() os.execute "sleep 0.003" end
      h = T.fit(net, { train = loader, epochs = EPOCHS, callbacks = { on_batch = slow }, metrics = "accuracy",
        optimizer = optim.SGD(net:parameters(), { lr = 0.1 }) });]]

    it("as one display that changes", function()
      local start = k.zeromq.now()
      local reply, out = k:run((train:gsub("EPOCHS", "3")))
      assert.equal("ok", reply.status, reply.evalue)
      assert.equal("", out.stdout .. out.stderr)
      local id, last
      for _, m in ipairs(out.messages) do
        if id then
          assert.equal("update_display_data", m.kind)
          assert.equal(id, m.content.transient.display_id)
        else
          assert.equal("display_data", m.kind)
          assert.truthy(m.content.data["text/html"]:find '<progress value="%d+" max="100"')
          id = m.content.transient.display_id
        end
        last = m.content.data
      end
      assert.is_true(#out.messages >= 4 and #out.messages < (k.zeromq.now() - start) / 0.25 + 6, #out.messages)
      assert.is_nil(last["text/html"]:find "<progress")
      assert.truthy(last["text/html"]:find "<table>.*<svg")
      assert.equal(4, select(2, last["text/html"]:gsub("<tr>", "")))
      assert.equal(last["text/plain"], select(2, k:run "h").result)
    end)

    it("with rows in the middle of epochs", function()
      local _, out = k:run((train:gsub("epochs = EPOCHS", "epochs = 2, eval_every = 30")))
      local both, last = 0, nil
      for _, m in ipairs(out.messages) do
        last = m.content.data["text/html"]
        if last:find "<progress.*<table>" then both = both + 1 end
      end
      assert.is_true(both >= 4, both)
      assert.is_nil(last:find "<progress")
      assert.equal(8, select(2, last:gsub("<tr>", "")))
    end)

    it("whose history an interrupt leaves", function()
      k.published = {}
      local id = k:send("shell", "execute_request", { code = (train:gsub("EPOCHS", "1000")) })
      k:wait("update_display_data", function(m) return m.content.data["text/plain"]:find "\n +1 " end)
      k:send("control", "interrupt_request", {})
      local reply, out = kernels.sorted(k:finish("shell", id))
      assert.equal("ok", reply.status)
      assert.truthy(out.stdout:find "interrupted in epoch")
      assert.truthy(tonumber(select(2, k:run "#h").result) >= 1)
    end)
  end)
end)
