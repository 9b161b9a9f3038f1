-- SPDX-License-Identifier: MIT
-- perilune serve, over HTTP: replies are what T.models.generate makes, whole and in pieces; what is wrong is refused in
-- the form of the API; peers that vanish, read slowly or knock too often cost nothing but themselves. Server and
-- clients are in this process, so that a spec decides who does what when.

local T = require "perilune"
local json = require "perilune.io.json"
local live = require "spec.support.live"
local talker = require "spec.models.talker"
local term = require "spec.support.terminal"

local build = os.getenv "PERILUNE_BUILD" or (os.getenv "PERILUNE_ROOT" or ".") .. "/build"
local available = pcall(require, "perilune.httpd")
local sockets = assert(package.loadlib(build .. "/spec/libsockets.so", "luaopen_sockets"))()

describe("perilune serve", function()
  if not available then
    it("is part of the build", function() pending "built without libmicrohttpd" end)
    return
  end
  local serve = require "perilune.serve"
  local dir, remove, net, tokenizer, server, port, open

  setup(function() dir, remove, net, tokenizer = talker.make() end)
  teardown(function()
    remove()
    net, tokenizer = nil, nil
  end)

  local function start(o, folder)
    if server then server:close() end
    local settings = { port = 0, name = "talker" }
    for key, v in pairs(o or {}) do settings[key] = v end
    server = assert(serve.open(folder or dir, settings))
    port = tonumber(server.address:match ":(%d+)/")
  end
  before_each(function()
    open = {}
    start()
  end)
  after_each(function()
    for fd in pairs(open) do sockets.close(fd) end
    server:close()
    server = nil
  end)

  -- ---- clients ---------------------------------------------------------------------------------------------

  local function connect(buffer)
    local fd = sockets.connect("127.0.0.1", port, buffer)
    open[fd] = true
    return fd
  end
  local function shut(fd, how)
    open[fd] = nil
    sockets[how or "close"](fd)
  end

  local function bytes_of(method, path, body, more)
    body = type(body) == "table" and json.line(body) or body or ""
    return ("%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n%s"):format(method, path, #body,
      more or "Content-Type: application/json\r\n", body)
  end

  -- A request under way: got (bytes so far).
  local function send(method, path, body, more, buffer)
    local fd, bytes = connect(buffer), bytes_of(method, path, body, more)
    for _ = 1, 5000 do
      local n = #bytes > 0 and sockets.send(fd, bytes) or 0
      if #bytes == 0 then break end
      if n < 0 then
        sockets.sleep(0.001)
        n = 0
      end
      bytes = bytes:sub(n + 1)
    end
    return { fd = fd, got = "" }
  end

  -- Has the answer come whole? Takes what has come first.
  local function whole(c)
    local more = not c.over and sockets.receive(c.fd, 0)
    if more == "" then c.over = true end
    c.got = c.got .. (more or "")
    local head, rest = c.got:match "^(.-\r\n\r\n)(.*)$"
    if not head then return c.over end
    c.status, c.head = tonumber(head:match "^HTTP/1.1 (%d+)"), head
    local length = tonumber(head:match "Content%-Length: (%d+)")
    if length then
      c.body = #rest >= length and rest or nil
      return c.body ~= nil or c.over
    end
    c.ended = rest:find "\r\n0\r\n\r\n$" ~= nil
    return c.ended or c.over
  end

  local function finish(...)
    for _ = 1, 20000 do
      local all = true
      for _, c in ipairs { ... } do all = whole(c) and all end
      if all then break end
      server:turn(0.002)
    end
    for _, c in ipairs { ... } do
      assert(whole(c), "no answer: " .. c.got)
      if open[c.fd] then shut(c.fd) end
    end
  end

  -- One request → status, value
  local function ask(path, body, method, more)
    local c = send(method or "POST", path, body, more)
    finish(c)
    return c.status, c.body and json.decode(c.body), c
  end

  -- The events of a stream, decoded; the last is "[DONE]".
  local function events_of(c)
    assert(c.head:find("text/event-stream", 1, true), c.got)
    local text, at = {}, c.got:find("\r\n\r\n", 1, true) + 4
    while true do
      local size, from = c.got:match("^(%x+)\r\n()", at)
      size = tonumber(size or "0", 16)
      if size == 0 then break end
      text[#text + 1], at = c.got:sub(from, from + size - 1), from + size + 2
    end
    local out = {}
    for data in table.concat(text):gmatch "data: (.-)\n\n" do
      out[#out + 1] = data == "[DONE]" and data or assert(json.decode(data))
    end
    return out
  end

  local function streamed(c)
    local said, reason, usage = {}, nil, nil
    local events = events_of(c)
    assert.equal("[DONE]", table.remove(events))
    for _, e in ipairs(events) do
      local choice = e.choices[1]
      if choice then
        said[#said + 1] = choice.delta and choice.delta.content or choice.text or ""
        if choice.finish_reason ~= json.null then reason = choice.finish_reason end
      end
      if e.usage and e.usage ~= json.null then usage = e.usage end
    end
    return table.concat(said), reason, usage
  end

  local function greedy(prompt, n) return talker.greedy(net, tokenizer, tokenizer:encode(prompt):totable(), n) end
  local function user(text) return { { role = "user", content = text } } end
  local function chat_ids(messages)
    return tokenizer:apply_chat_template(messages, { add_generation_prompt = true }):totable()
  end

  -- ---- replies ---------------------------------------------------------------------------------------------

  it("completes as T.models.generate does, whole and as a stream", function()
    for _, prompt in ipairs { "the quick brown", "hällo", "x" } do
      local want = greedy(prompt, 30)
      local status, v = ask("/v1/completions", { model = "talker", prompt = prompt, max_tokens = 30, temperature = 0 })
      assert.equal(200, status)
      assert.same({ "text_completion", want, "talker", 0 }, { v.object, v.choices[1].text, v.model,
        v.choices[1].index })
      assert.equal(#tokenizer:encode(prompt):totable(), v.usage.prompt_tokens)
      assert.equal(v.usage.prompt_tokens + v.usage.completion_tokens, v.usage.total_tokens)
      assert.equal(v.usage.completion_tokens == 30 and "length" or "stop", v.choices[1].finish_reason)
      local c = send("POST", "/v1/completions", { prompt = json.array(tokenizer:encode(prompt):totable()),
        max_tokens = 30, temperature = 0, stream = true, stream_options = { include_usage = true } })
      finish(c)
      assert.is_true(c.ended)
      local said, reason, usage = streamed(c)
      assert.same({ want, v.choices[1].finish_reason }, { said, reason })
      assert.same(v.usage, usage)
    end
    local want = greedy("the", 30)
    local stop = want:match("[%w ][%w ]", 4)
    local _, v = ask("/v1/completions", { prompt = json.array { "the" }, max_tokens = 30, temperature = 0,
      stop = stop })
    assert.same({ want:sub(1, want:find(stop, 1, true) - 1), "stop" }, { v.choices[1].text,
      v.choices[1].finish_reason })
    _, v = ask("/v1/completions", { prompt = "the", temperature = 0 })
    assert.equal(greedy("the", 16), v.choices[1].text)
  end)

  it("chats by the model's template", function()
    local messages = { { role = "system", content = "fox" }, { role = "user", content = "one" } }
    local want = talker.greedy(net, tokenizer, chat_ids(messages), 20)
    local status, v = ask("/v1/chat/completions", { messages = messages, max_tokens = 20, temperature = 0 })
    assert.equal(200, status)
    assert.same({ "chat.completion", "assistant", want }, { v.object, v.choices[1].message.role,
      v.choices[1].message.content })
    messages[2].content = json.array { { type = "text", text = "o" }, { type = "text", text = "ne" } }
    local c = send("POST", "/v1/chat/completions", { messages = messages, max_completion_tokens = 20, temperature = 0,
      stream = true })
    finish(c)
    local first = events_of(c)[1]
    assert.same({ "chat.completion.chunk", "assistant" }, { first.object, first.choices[1].delta.role })
    assert.same({ want, v.choices[1].finish_reason }, { (streamed(c)), select(2, streamed(c)) })
    local plain, gone = talker.make({}, false)
    finally(gone)
    start({}, plain)
    status, v = ask("/v1/chat/completions", { messages = user "x" })
    assert.equal(400, status)
    assert.truthy(v.error.message:find("has no chat template", 1, true))
  end)

  it("draws the same with the same seed", function()
    local function drawn(seed, more)
      local _, v = ask("/v1/completions", { prompt = "the", max_tokens = 20, seed = seed, top_p = more,
        temperature = 2 })
      return v.choices[1].text
    end
    assert.equal(drawn(1), drawn(1))
    assert.equal(drawn(-7, 0.9), drawn(-7, 0.9))
    assert.not_equal(drawn(1), drawn(2))
    assert.not_equal(drawn(), drawn())
  end)

  it("makes many replies in turns, each as if alone", function()
    start { max_streams = 5, max_queue = 100 }
    local clients, want = {}, {}
    for i = 1, 24 do
      local prompt, n = ("fox "):rep(i % 5 + 1), 5 * (i % 7) + 3
      want[i] = greedy(prompt, n)
      clients[i] = send("POST", "/v1/completions", { prompt = prompt, max_tokens = n, temperature = 0,
        stream = i % 2 == 0 })
    end
    finish(table.unpack(clients))
    for i, c in ipairs(clients) do
      assert.equal(want[i], i % 2 == 0 and (streamed(c)) or json.decode(c.body).choices[1].text)
    end
    -- a short one behind a long one does not wait for its end
    start()
    local long = send("POST", "/v1/completions", { prompt = "the", max_tokens = 200, temperature = 2, seed = 1 })
    for _ = 1, 20 do server:turn(0.01) end
    local short = send("POST", "/v1/completions", { prompt = "the", max_tokens = 3, temperature = 0 })
    finish(short)
    assert.is_false(whole(long) or false)
    finish(long)
  end)

  it("embeds texts as the mean of the last hidden states", function()
    local texts = { "the quick brown fox", "x" }
    local status, v = ask("/v1/embeddings", { input = json.array(texts) })
    assert.equal(200, status)
    local _, packed = ask("/v1/embeddings", { input = json.array(texts), encoding_format = "base64" })
    for i, text in ipairs(texts) do
      local states = T.no_grad(net.model, T.tensor({ tokenizer:encode(text):totable() }, { dtype = "i64" }))
      local want = states:mean(2):squeeze(1):totable()
      assert.equal(i - 1, v.data[i].index)
      assert.equal(32, #v.data[i].embedding)
      for k, x in ipairs(want) do assert.is_true(math.abs(x - v.data[i].embedding[k]) < 1e-6) end
      local base64 = require "perilune.io.base64"
      assert.equal(base64(("<" .. ("f"):rep(32)):pack(table.unpack(want))), packed.data[i].embedding)
    end
    local bert, gone = term.folder()
    finally(gone)
    local encoder = T.models.BERT { vocab_size = #tokenizer, hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 2, intermediate_size = 8 }
    assert(T.models.save(encoder, bert))
    os.execute(("cp %s/tokenizer.json %s"):format(term.quote(dir), term.quote(bert)))
    start({}, bert)
    status, v = ask("/v1/embeddings", { input = "x" })
    assert.same({ 200, 8 }, { status, #v.data[1].embedding })
    status, v = ask("/v1/completions", { prompt = "x" })
    assert.equal(400, status)
    assert.truthy(v.error.message:find("makes no text", 1, true))
  end)

  -- ---- what is wrong ---------------------------------------------------------------------------------------

  it("tells models and health", function()
    local status, v = ask("/v1/models", nil, "GET")
    assert.same({ 200, "talker", "model" }, { status, v.data[1].id, v.data[1].object })
    assert.equal("talker", select(2, ask("/v1/models/talker", nil, "GET")).id)
    status, v = ask("/health", nil, "GET")
    assert.same({ 200, "ok", 0, 0 }, { status, v.status, v.running, v.waiting })
    assert.equal(404, (ask("/v1/nope", {})))
    assert.equal(405, (ask("/v1/completions", nil, "GET")))
  end)

  it("refuses by name what is wrong or would not be heeded", function()
    local function refused(path, body, status, param, words, more)
      local got, v = ask(path, body, "POST", more)
      local what = type(body) == "string" and body:sub(1, 80) or json.line(body or {}):sub(1, 200)
      assert.equal(status, got, what)
      assert.truthy(v.error.message:find(words, 1, true), what .. ": " .. v.error.message)
      assert.equal("invalid_request_error", v.error.type)
      assert.equal(param or json.null, v.error.param, what)
    end
    for _, body in ipairs { "", "{", "[]", "null", "7", '"x"', '{"prompt":}', "\0\255", ("["):rep(5000),
      '{"prompt":"x"} x' } do
      refused("/v1/completions", body, 400, nil, "JSON object")
    end
    refused("/v1/completions", '{"prompt":"x"}', 415, nil, "Content-Type", "Content-Type: text/plain\r\n")
    refused("/v1/completions", '{"prompt":"x"}', 415, nil, "Content-Type", "")
    local wrong = { n = { 2, 0, 1.5, "1" }, temperature = { -1, "x", 101 }, top_p = { 0, 1.1 },
      max_tokens = { 0, 1.5, -3, 1000 }, seed = { 0.5, "x" }, stop = { 3, "", { a = 1 }, json.array { "" } },
      stream = { 1 }, logprobs = { 1, true },
      best_of = { 2 }, echo = { true }, presence_penalty = { 1 }, logit_bias = { { ["5"] = 1 } },
      stream_options = { 1 }, prompt = { 3, { a = 1 }, json.array { "a", "b" }, json.array { 1, "x" },
        json.array { 100000 }, json.array { -1 }, json.array { json.array { 1 }, json.array { 2 } },
        json.array { json.null } } }
    for name, values in pairs(wrong) do
      for _, value in ipairs(values) do
        local body = { prompt = "x" }
        body[name] = value
        refused("/v1/completions", body, 400, name == "max_tokens" and value == 1000 and "prompt" or name,
          name == "prompt" and "prompt" or name)
      end
    end
    refused("/v1/completions", '{"prompt":"x","max_tokens":3,"max_tokens":4}', 400, nil, "'max_tokens' is there twice")
    refused("/v1/completions", {}, 400, "prompt", "prompt is missing")
    refused("/v1/completions", { prompt = "x", temprature = 1 }, 400, "temprature", "did you mean temperature?")
    refused("/v1/completions", { prompt = ("fox "):rep(2000) }, 400, "prompt", "context is 256 tokens")
    refused("/v1/completions", { prompt = "x", model = "other" }, 404, "model", "'talker'")
    refused("/v1/chat/completions", {}, 400, "messages", "messages must be a list")
    refused("/v1/chat/completions", { messages = json.array {} }, 400, "messages", "messages must be a list")
    refused("/v1/chat/completions", { messages = json.array { 7 } }, 400, "messages[0]", "role")
    refused("/v1/chat/completions", { messages = user(5) }, 400, "messages[0].content", "text")
    refused("/v1/chat/completions", { messages = user(json.array { { type = "image_url" } }) }, 400,
      "messages[0].content", "parts of text")
    refused("/v1/chat/completions", { messages = user(json.array { { type = "text", text = "x", lang = "en" } }) }, 400,
      "messages[0].content", 'content[0] has no field "lang"')
    refused("/v1/chat/completions", { messages = user "x", tools = json.array { {} } }, 400, "tools", "not supported")
    refused("/v1/chat/completions", { messages = user "x", response_format = { type = "json_object" } }, 400,
      "response_format", "not supported")
    local call = { name = "f", arguments = "{}" }
    for key, value in pairs { contents = "x", prefix = true, function_call = call, tool_calls = json.array { call },
      name = 5, tool_call_id = 5, refusal = "no", audio = { id = "a" }, annotations = json.array { {} } } do
      local message = { role = "assistant", content = "x", [key] = value }
      refused("/v1/chat/completions", { messages = json.array { user("x")[1], message } }, 400,
        (key == "contents" or key == "prefix") and "messages[1]" or "messages[1]." .. key, key)
    end
    for _, content in ipairs { false, json.null } do
      local message = { role = "user", content = content or nil }
      refused("/v1/chat/completions", { messages = json.array { message } }, 400, "messages[0].content", "missing")
    end
    refused("/v1/chat/completions", { messages = user "x", max_tokens = 2, max_completion_tokens = 3 }, 400,
      "max_tokens", "they differ")
    refused("/v1/completions", { prompt = "x", stream_options = { include_usage = true } }, 400, "stream_options",
      "for streams")
    refused("/v1/embeddings", {}, 400, "input", "input is missing")
    refused("/v1/embeddings", { input = ("fox "):rep(2000) }, 400, "input", "context is 256")
    refused("/v1/embeddings", { input = "x", dimensions = 3 }, 400, "dimensions", "not supported")
    -- what is as if left out
    for _, more in ipairs { { n = 1 }, { logprobs = json.null }, { echo = false }, { presence_penalty = 0 },
      { user = "me" }, { best_of = 1.0 }, { suffix = json.null }, { top_p = 1 }, { top_k = 0 }, { min_p = 0 } } do
      more.prompt, more.max_tokens = "x", 2
      local status, v = ask("/v1/completions", more)
      assert.equal(200, status, json.line(v))
    end
    local sent_back = { role = "assistant", content = json.null, refusal = json.null, audio = json.null,
      annotations = json.array {}, function_call = json.null, tool_calls = json.array {} }
    local said = { role = "tool", content = "42", tool_call_id = "a", name = "f" }
    local taken, v = ask("/v1/chat/completions", { messages = json.array { user("x")[1], sent_back, said },
      max_tokens = 2, max_completion_tokens = 2 })
    assert.equal(200, taken, json.line(v))
    local status, big = ask("/v1/completions", { prompt = ("x"):rep((4 << 20) + 1000) }) -- by the server's loop
    assert.equal(413, status)
    assert.truthy(big.error.message)
    start { max_new_tokens = 5 }
    refused("/v1/completions", { prompt = "x", max_tokens = 6 }, 400, "max_tokens", "5")
  end)

  it("wants its key where there is one", function()
    start { key = "secret" }
    for _, header in ipairs { "", "Authorization: Bearer wrong\r\n", "Authorization: secret\r\n" } do
      local status, v = ask("/v1/models", nil, "GET", header)
      assert.same({ 401, "invalid_api_key" }, { status, v.error.code })
    end
    assert.equal(200, (ask("/v1/models", nil, "GET", "Authorization: Bearer secret\r\n")))
    assert.equal(200, (ask("/health", nil, "GET", "")))
  end)

  -- ---- peers -----------------------------------------------------------------------------------------------

  local function long(stream)
    return { prompt = "the", max_tokens = 250, temperature = 3, seed = 1, stream = stream }
  end
  local function turns(n) for _ = 1, n do server:turn(0.005) end end

  it("ends the reply of a connection that is cut", function()
    for _, how in ipairs { "close", "reset", "half" } do
      for _, stream in ipairs { true, false } do
        start()
        local c = send("POST", "/v1/completions", long(stream))
        for _ = 1, 500 do
          turns(1)
          if #server.jobs.running == 1 then break end
        end
        turns(3)
        assert.equal(1, #server.jobs.running)
        if how == "half" then sockets.half(c.fd) else shut(c.fd, how) end
        local steps = 0
        while #server.jobs.running > 0 and steps < 100 do
          turns(1)
          sockets.sleep(0.002)
          steps = steps + 1
        end
        assert.same({ 0, 1, 0 }, { #server.jobs.running, server.jobs.lost, server.jobs.done })
      end
    end
  end)

  it("says that it is busy, and that a reply took too long", function()
    start { max_streams = 1, max_queue = 2 }
    local clients = {}
    for i = 1, 6 do
      clients[i] = send("POST", "/v1/completions", long(false))
      turns(2)
    end
    finish(table.unpack(clients))
    local counts = {}
    for _, c in ipairs(clients) do counts[c.status] = (counts[c.status] or 0) + 1 end
    assert.same({ [200] = 3, [503] = 3 }, counts)
    assert.truthy(clients[6].head:find "Retry%-After")
    start { timeout = 0.05 }
    local c, d = send("POST", "/v1/completions", long(false)), send("POST", "/v1/completions", long(true))
    for _ = 1, 200 do
      turns(1)
      if #server.jobs.running == 2 then break end
    end
    sockets.sleep(0.06)
    finish(c, d)
    assert.same({ 504, "server_error" }, { c.status, json.decode(c.body).error.type })
    local events = events_of(d)
    assert.equal("the reply took too long", events[#events].error.message)
  end)

  it("loses nothing under hundreds of requests with faults, and keeps no memory", function()
    local fox = greedy("fox", 6)
    local kinds = {
      function(i) -- a slow reader among them: nobody takes what comes until all have been asked for
        local c = send("POST", "/v1/completions", { prompt = "fox", max_tokens = 6, temperature = 0,
          stream = i % 2 == 0 }, nil, i % 4 == 0 and 2048 or nil)
        c.want = fox
        return c
      end,
      function() return send("POST", "/v1/chat/completions", { messages = user "one", max_tokens = 4 }) end,
      function() return send("POST", "/v1/completions", '{"prompt"') end,
      function() return send("POST", "/v1/embeddings", { input = "one two" }) end,
      function() return send("POST", "/v1/completions", { prompt = ("x"):rep(100000) }) end,
    }
    local function wave(n)
      local clients = {}
      for i = 1, n do
        if i % 3 == 0 then -- somebody who goes away, in the middle of a request or of its answer
          local fd = connect()
          local bytes = bytes_of("POST", "/v1/completions", long(i % 2 == 0))
          sockets.send(fd, bytes:sub(1, i % 4 == 0 and #bytes // 2 or -1))
          server:turn(0)
          if i % 5 > 2 then server:turn(0.002) end
          shut(fd, i % 2 == 0 and "reset" or "close")
        else
          clients[#clients + 1] = kinds[i % #kinds + 1](i)
        end
        server:turn(0)
      end
      finish(table.unpack(clients))
      for _, c in ipairs(clients) do
        assert.truthy(c.status == 200 or c.status == 400, c.got)
        if c.body then assert.truthy(json.decode(c.body)) else assert.is_true(c.ended) end
        if c.want then
          assert.equal(c.want, c.body and json.decode(c.body).choices[1].text or (streamed(c)))
        end
      end
      for _ = 1, 200 do
        if #server.jobs.running + #server.jobs.waiting == 0 then break end
        server:turn(0.005)
      end
      assert.equal(0, #server.jobs.running + #server.jobs.waiting)
    end
    start { max_queue = 200 }
    wave(60)
    wave(60)
    local function traces() -- of the batch's program, one for each number of rows, with values of its own
      local program = server.model.batch.program
      return program and program.ntraces or 0
    end
    local blocks, bytes = live.blocks(T)
    local before = traces()
    local lua = collectgarbage "count"
    for _ = 1, os.getenv "PERILUNE_LANES" == "long" and 165 or 4 do wave(60) end -- long: 10,000 requests in all
    local blocks2, bytes2 = live.blocks(T)
    local more = traces() - before
    assert.is_true(more <= 5)
    assert.is_true(blocks2 <= blocks + 2 + 200 * more, ("%d blocks, before %d"):format(blocks2, blocks))
    assert.is_true(bytes2 <= bytes + 65536 * (1 + more), ("%d bytes, before %d"):format(bytes2, bytes))
    assert.is_true(collectgarbage "count" < lua + 200 * (1 + more), "Lua's memory grows")
    local counts = server.listener:counts()
    assert.same({ 0, 0, 0 }, { counts.waiting, counts.active, counts.bodies })
  end)

  it("is a command", function()
    local q = term.quote
    local missing = term.missing "perilune"
    if missing then return pending(missing) end
    local text, status = term.shell(("%s serve /nowhere"):format(q(term.command)))
    assert.equal(1, status)
    assert.truthy(text:find("perilune serve: /nowhere", 1, true), text)
    text, status = term.shell(("%s serve --port %d %s"):format(q(term.command), port, q(dir)))
    assert.same({ 1, true }, { status, text:find("Address already in use", 1, true) ~= nil })
    text, status = term.interrupted(("%s serve --port 0 %s"):format(q(term.command), q(dir)), "http://")
    assert.equal(130, status, text)
    assert.truthy(text:find "http://127.0.0.1:%d+/v1\n", text)
    assert.falsy(text:find "traceback", text)
  end)
end)
