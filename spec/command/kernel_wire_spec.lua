-- SPDX-License-Identifier: MIT
-- What comes to the Jupyter kernel's sockets and is no proper message, and how the kernel ends.
local json = require "perilune.io.json"
local kernels = require "spec.command.kernel_client"
local random = require "spec.support.random"
local term = require "spec.support.terminal"

local lacking = kernels.missing()
local N = tonumber(os.getenv "PERILUNE_FUZZ_KERNEL") or 400

describe("the Jupyter kernel", function()
  if lacking then return it("is built", function() pending(lacking) end) end

  describe("ignores", function()
    local k
    setup(function() k = kernels.start() end)
    teardown(function() k:close() end)

    -- It goes on: a cell runs, and has not seen what was wrong.
    local function unharmed()
      assert.is_true(k:alive(), k:log())
      local reply, out = k:run "(seen or 0) + 1"
      assert.equal("ok", reply.status)
      assert.equal("1", out.result)
    end
    local function execute(code) return k.side:encode({}, "execute_request", "{}", { code = code }) end
    local function said(text) assert.truthy(k:log():find(text, 1, true), k:log()) end

    it("wrong signatures", function()
      for _, wrong in ipairs { "", "0", ("0"):rep(64), ("z"):rep(64), ("\0"):rep(64), ("0"):rep(1000) } do
        for _, channel in ipairs { "shell", "control", "stdin" } do
          local frames = execute "seen = 1"
          frames[2] = wrong
          k[channel]:send(frames)
        end
      end
      for part = 3, 6 do -- each part is signed
        local frames = execute "seen = 1"
        frames[part] = frames[part]:gsub("}$", ' }')
        k.shell:send(frames)
      end
      unharmed()
      said "the signature is wrong"
    end)

    it("a message that comes twice", function()
      local frames = execute "twice = (twice or 0) + 1"
      k.shell:send(frames)
      k.shell:send(frames)
      assert.equal("1", select(2, k:run "twice").result)
      said "has come before"
    end)

    it("messages with parts missing or too many", function()
      local frames = execute "seen = 1"
      for n = 1, #frames - 1 do k.shell:send(table.move(frames, 1, n, 1, {})) end
      for n = 2, #frames do k.shell:send(table.move(frames, n, #frames, 1, {})) end
      for _, junk in ipairs { { "" }, { "", "" }, { "<IDS|MSG>" }, { "<IDS|MSG>", "<IDS|MSG>" },
        { ("x"):rep(1 << 20) } } do
        for _, channel in ipairs { "shell", "control", "stdin" } do k[channel]:send(junk) end
      end
      frames = execute "buffers = true"
      for i = 1, 1000 do frames[#frames + 1] = ("buffer %d"):format(i) end
      k.shell:send(frames)
      unharmed()
      assert.equal("true", select(2, k:run "buffers").result)
    end)

    it("parts that are signed and no JSON objects", function()
      local side = k.side
      local good = { side:header "execute_request", "{}", "{}", '{"code": "seen = 1"}' }
      for _, wrong in ipairs { "", "{", "null", "[]", "[1]", '"text"', "5", "nan", "{1: 2}", '{"a": }', "\0",
        "\xff\xfe",
        ('{"a":'):rep(5000), ("["):rep(100000), '{"code": "\\ud800"' } do
        for part = 1, 4 do
          local parts = table.move(good, 1, 4, 1, {})
          parts[part] = wrong
          k.shell:send { "<IDS|MSG>", side:_sign(parts), table.unpack(parts) }
        end
      end
      for _, header in ipairs { "{}", '{"msg_type": 5}', '{"msg_type": null}', '{"msg_type": {}}' } do
        local parts = { header, "{}", "{}", "{}" }
        k.control:send { "<IDS|MSG>", side:_sign(parts), table.unpack(parts) }
      end
      unharmed()
    end)

    it("kinds that it does not know, with what is in them", function()
      for _, kind in ipairs { "nosuch_request", "", "execute_reply", "input_reply", "status", "comm_msg", "comm_close",
        "_request", "__index", ("x"):rep(100000), "\u{1F319}_request", "debug_request", "apply_request" } do
        for _, channel in ipairs { "shell", "control", "stdin" } do k:send(channel, kind, { seen = 1 }) end
      end
      unharmed()
    end)

    it("contents with other types than are wanted", function()
      local values = { json.null, true, 5, -1e300, "text", "", json.array {}, {}, { a = 1 }, json.array { 1, "2" }, 0.5,
        math.mininteger, math.maxinteger }
      local names = {
        execute_request = { "silent", "store_history", "user_expressions", "allow_stdin", "stop_on_error" },
        complete_request = { "code", "cursor_pos" }, inspect_request = { "code", "cursor_pos", "detail_level" },
        is_complete_request = { "code" }, comm_info_request = { "target_name" },
        history_request = { "output", "raw", "hist_access_type", "session", "start", "stop", "n", "pattern",
          "unique" } }
      for kind, fields in pairs(names) do
        for _, field in ipairs(fields) do
          for _, v in ipairs(values) do
            local content = { code = "T.softmax(", cursor_pos = 4, hist_access_type = "range" }
            if kind == "execute_request" then content.code = "1" end
            content[field] = v
            local reply = k:ask(kind, content)
            assert.truthy(reply.status == "ok" or reply.status == "error" or reply.status:find "complete"
              or reply.status == "invalid", kind)
          end
        end
      end
      for _, pattern in ipairs { "%", "[", "*[!a-", ("*a"):rep(30), "%f[a]" } do
        assert.equal("ok", k:ask("history_request", { hist_access_type = "search", pattern = pattern, n = 3 }).status)
      end
      for _, v in ipairs { json.null, 5, json.array {} } do
        assert.equal("error", k:ask("execute_request", { code = v }).status)
        k:send("stdin", "input_reply", { value = v })
      end
      unharmed()
    end)

    it("random damage to good messages", function()
      local source = random.new(20251)
      local function rng(n) return source:int(1, n) end
      local kinds = { "execute_request", "complete_request", "inspect_request", "is_complete_request",
        "history_request", "kernel_info_request", "comm_info_request", "interrupt_request", "nosuch_request" }
      for _ = 1, N do
        local frames = k.side:encode({}, kinds[rng(#kinds)], "{}",
          { code = "a = 'text'", cursor_pos = rng(12), hist_access_type = "tail", n = rng(5) })
        for _ = 1, rng(3) do
          local at = rng(#frames)
          local f, how = frames[at], rng(5)
          local from = rng(#f + 1)
          if how == 1 then f = f:sub(1, from - 1) end
          if how == 2 then f = f:sub(1, from - 1) .. string.char(rng(256) - 1) .. f:sub(from + 1) end
          if how == 3 then f = f .. f:sub(from) end
          if how == 4 then table.remove(frames, at) else frames[at] = f end
          if #frames == 0 then frames[1] = "" end
        end
        if #frames >= 6 and rng(4) > 1 then frames[2] = k.side:_sign { table.unpack(frames, 3, 6) } end
        k[({ "shell", "control", "stdin" })[rng(3)]]:send(frames)
      end
      unharmed()
    end)
  end)

  describe("ends", function()
    local k
    after_each(function() k:close() end)

    for _, channel in ipairs { "control", "shell" } do
      it("on request on the " .. channel .. " channel", function()
        k = kernels.start()
        local id = k:send(channel, "shutdown_request", { restart = true })
        local reply = k:take(channel)
        assert.equal(id, reply.parent.msg_id)
        assert.same({ status = "ok", restart = true }, reply.content)
        assert.equal("shutdown_reply", k:wait("shutdown_reply").kind)
        assert.is_true(k:ended())
        assert.equal("", k:log())
      end)
    end

    for name, code in pairs { ["a loop"] = "while true do end", ["waiting for a program"] = "os.execute 'sleep 60'",
      ["waiting for input"] = "io.read()",
      ["what catches everything"] = "while true do pcall(function() while true do end end) end" } do
      it("while a cell runs: " .. name, function()
        k = kernels.start()
        k:send("shell", "execute_request", { code = "print 'runs'\n" .. code, allow_stdin = true })
        k:wait("stream")
        k:send("control", "shutdown_request", { restart = false })
        assert.equal("shutdown_reply", k:take("control").kind)
        assert.is_true(k:ended())
      end)
    end

    it("where a cell ends it, after the reply", function()
      for _, code in ipairs { "print 'last'; os.exit()", ":quit" } do
        k = kernels.start()
        local reply = k:run(code)
        assert.equal("ok", reply.status)
        assert.equal("ask_exit", reply.payload[1].source)
        assert.is_true(k:ended())
        assert.equal("", k:log())
        if code ~= ":quit" then k:close() end
      end
    end)

    it("with the process that started it", function()
      local dir, remove = term.folder()
      term.write(dir .. "/parent.sh", "JPY_PARENT_PID=$$ \"$@\" &\necho $! > " .. dir .. "/pid\nsleep 60 & wait\n")
      k = kernels.start { env = ("sh %s/parent.sh"):format(dir) }
      local parent = k.pid
      local pid = term.read(dir .. "/pid"):match "%d+"
      os.execute("kill -9 " .. parent)
      k.pid = tonumber(pid)
      assert.is_true(k:ended())
      remove()
    end)
  end)

  it("speaks TCP, and without signatures where there is no key", function()
    local zeromq = require "perilune.zeromq"
    local k
    for _ = 1, 20 do -- a port may be taken
      local first = 20000 + tonumber(zeromq.random(2), 16) % 40000
      local ports = { shell = first, control = first + 1, stdin = first + 2, iopub = first + 3, hb = first + 4 }
      local ok
      ok, k = pcall(kernels.start, { transport = "tcp", ports = ports, key = "" })
      if ok then break end
    end
    assert.equal("3", select(2, k:run "1 + 2").result)
    k:close()
  end)
end)
