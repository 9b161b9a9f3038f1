-- SPDX-License-Identifier: MIT
-- The Jupyter kernel, by its protocol (spec/command/kernel_client.lua speaks for the front end).
local json = require "perilune.io.json"
local kernels = require "spec.command.kernel_client"
local term = require "spec.support.terminal"

local lacking = kernels.missing()
-- ThreadSanitizer keeps a signal until the thread calls the system, which a loop in Lua never does.
local kept_back = (os.getenv "PERILUNE_SANITIZE" or "") == "thread" and "ThreadSanitizer keeps signals from loops"

describe("the Jupyter kernel", function()
  if lacking then return it("is built", function() pending(lacking) end) end
  local k
  setup(function() k = kernels.start() end)
  teardown(function() k:close() end)

  it("says what it is", function()
    local reply = k:ask("kernel_info_request", {})
    assert.equal("ok", reply.status)
    assert.equal("perilune", reply.implementation)
    assert.equal("lua", reply.language_info.name)
    assert.equal(".lua", reply.language_info.file_extension)
    assert.equal("5.", reply.protocol_version:sub(1, 2))
    assert.same(reply, (k:ask("kernel_info_request", {}, "control")))
  end)

  describe("running cells", function()
    it("shows results as the prompt does and counts", function()
      local reply, out = k:run "local x = T.tensor { 1, 2 }\nx * 2"
      assert.equal("ok", reply.status)
      assert.equal("{2., 4.}  -- f32[2] cpu", out.result)
      local again, kept = k:run "x:sum():item()" -- the local has stayed
      assert.equal(reply.execution_count + 1, again.execution_count)
      assert.equal("3.0", kept.result)
      assert.equal("3.0", select(2, k:run "_").result)
      assert.equal("{2., 4.}  -- f32[2] cpu", select(2, k:run("_" .. reply.execution_count)).result)
      assert.is_nil(select(2, k:run "x;").result)
      assert.equal("ok", k:run("").status)
      assert.equal(again.execution_count + 3, k:run("").execution_count) -- an empty cell does not count
    end)

    it("publishes busy, the input, output, the result and idle in this order", function()
      k:run "print 'a'; 5"
      local seen = {}
      for _, m in ipairs(k.published) do
        seen[#seen + 1] = m.kind == "status" and m.content.execution_state or m.kind
      end
      assert.equal("busy execute_input stream execute_result idle", table.concat(seen, " "))
    end)

    it("is quiet where it is asked to be", function()
      local before = k:run("1").execution_count
      local reply, out = k:run("print 'loud'; 7", { silent = true })
      assert.equal(before, reply.execution_count)
      assert.is_nil(out.result)
      assert.equal("loud\n", out.stdout)
      for _, m in ipairs(k.published) do assert.not_equal("execute_input", m.kind) end
      reply, out = k:run("8", { store_history = false })
      assert.equal(before, reply.execution_count)
      assert.equal("8", out.result)
      assert.equal("1", select(2, k:run "_").result)
      assert.equal(before + 2, k:run("1").execution_count)
    end)

    it("shows errors with the line, the names in it and the calls", function()
      local reply, out = k:run "local function f(q)\n  return q:matmul(T.zeros(5))\nend\nf(T.zeros(2, 3))"
      assert.equal("error", reply.status)
      assert.truthy(reply.evalue:find("matmul", 1, true), reply.evalue)
      local text = table.concat(reply.traceback, "\n"):gsub("\27%[%d*m", "")
      assert.truthy(text:find("cell %d+, line 2:  return q:matmul"), text)
      assert.truthy(text:find("q = f32[2,3] cpu", 1, true), text)
      assert.truthy(text:find("called from cell %d+, line 4"), text)
      assert.same(reply.traceback, out.error.traceback)
      assert.equal("ok", k:run("1").status)
      reply = k:run "x = = 1"
      assert.equal("error", reply.status)
      assert.truthy(reply.evalue:find "unexpected symbol", reply.evalue)
      assert.equal("error", k:run("error(setmetatable({}, {__tostring = error}))").status)
      assert.equal("error", k:run("error()").status)
      assert.equal("error", k:run("return setmetatable({}, { __tostring = function() error 'no text' end })").status)
    end)

    it("evaluates expressions behind the cell", function()
      local reply = k:run("a = 3", { user_expressions = { good = "a + 1", bad = "a.b.c", wrong = "a =" } })
      assert.same({ ["text/plain"] = "4" }, reply.user_expressions.good.data)
      assert.equal("error", reply.user_expressions.bad.status)
      assert.equal("error", reply.user_expressions.wrong.status)
      assert.equal("ok", reply.status)
    end)

    it("knows the prompt's questions and commands", function()
      local reply = k:run "?T.softmax"
      assert.truthy(reply.payload[1].data["text/plain"]:find("T.softmax(", 1, true))
      local out
      reply, out = k:run ":who"
      assert.equal("ok", reply.status)
      assert.truthy(out.stdout:find "x", out.stdout)
      assert.equal("error", k:run(":edit").status)
      assert.is_nil(select(2, k:run ":help").stdout:find ":edit")
      assert.truthy(k:run("help").payload[1].data["text/plain"]:find "Shift%-Tab")
      assert.equal("error", k:run(":nosuch").status)
      assert.equal("from the shell\n", select(2, k:run "!echo from the shell").stdout)
      assert.equal("wrong\n", select(2, k:run "!echo wrong >&2").stderr)
      reply, out = k:run "!yes | head -n 1" -- signals are to programs what they always are
      assert.same({ "ok", "y\n", "" }, { reply.status, out.stdout, out.stderr })
    end)

    it("drops waiting cells after an error, if it is asked to", function()
      k.published = {}
      local function cell(code, stop)
        return k:send("shell", "execute_request", { code = code, stop_on_error = stop, silent = false })
      end
      local first = cell("os.execute 'sleep 0.3'; error 'stop'", true)
      local second, info, third = cell("z1 = 1", true), k:send("shell", "kernel_info_request", {}), cell("z2 = 1", true)
      assert.equal("error", k:finish("shell", first).status)
      assert.equal("aborted", k:finish("shell", second).status)
      -- both replies may come before the other requests are answered
      assert.equal("aborted", k:finish("shell", third).status)
      k:wait("status", function(m) return m.parent.msg_id == info and m.content.execution_state == "idle" end)
      assert.equal("nil\tnil", select(2, k:run "z1, z2").result)
      first, second = cell("os.execute 'sleep 0.2'; error 'go on'", false), cell("z1 = 1", true)
      assert.equal("error", k:finish("shell", first).status)
      assert.equal("ok", k:finish("shell", second).status)
    end)
  end)

  describe("output", function()
    it("keeps the order of both streams and of programs", function()
      local _, out = k:run "print 'a'; io.stderr:write 'b\\n'; print 'c'; os.execute 'echo d'; io.write 'e';"
      local text = ""
      for _, m in ipairs(out.messages) do text = text .. m.content.text end
      assert.equal("a\nb\nc\nd\ne", text)
      assert.equal("b\n", out.stderr)
    end)

    it("comes while the cell runs", function()
      k.published = {}
      local id = k:send("shell", "execute_request", { code = "print 'now'; os.execute 'sleep 300'" })
      k:wait("stream", function(m) return m.content.text == "now\n" end)
      assert.is_false(k.zeromq.wait({ k.shell }, 0)[1])
      k:send("control", "interrupt_request", {})
      k:finish("shell", id)
    end)

    it("is UTF-8, whatever the bytes", function()
      local _, out = k:run "io.write '\\xff\\xc3'; io.flush(); io.write '\\xa4 \\xe2\\x82'; io.flush(); print '\\xac'"
      assert.equal("\u{FFFD}ä €\n", out.stdout)
      _, out = k:run "'\\0\\xff'"
      assert.equal('"\\x00\\xff"', out.result)
      assert.equal("error", k:run("error '\\xff\\xfe'").status)
    end)

    it("leaves out what a carriage return writes over", function()
      local _, out = k:run "for i = 1, 20000 do io.write('\\rstep ', i) end io.flush() print()"
      assert.truthy(out.stdout:find "step 20000\n$")
      assert.is_true(#out.stdout < 50000, #out.stdout)
    end)

    it("may be long", function()
      local start = k.zeromq.now()
      local _, out = k:run "for i = 1, 100000 do print(i) end"
      assert.equal(588895, #out.stdout)
      -- one each 64 kB, and one each 50 ms
      assert.is_true(#out.messages < 588895 // 65536 + (k.zeromq.now() - start) / 0.05 + 3, #out.messages)
    end)
  end)

  describe("interrupts", function()
    local function interrupted(code, how)
      k.published = {}
      local id = k:send("shell", "execute_request", { code = "print 'runs'\n" .. code })
      k:wait("stream")
      how()
      local reply = k:finish("shell", id)
      assert.equal("error", reply.status, code)
      assert.equal("interrupted", reply.ename, reply.evalue)
      assert.equal("12", select(2, k:run "kept").result) -- its state is there
    end
    local function message()
      local id = k:send("control", "interrupt_request", {})
      local reply
      repeat reply = k:take "control" until reply.parent.msg_id == id
      assert.equal("ok", reply.content.status)
    end
    local function signal() os.execute(("kill -INT %d"):format(k.pid)) end

    for name, how in pairs { message = message, signal = signal } do
      it("by " .. name .. " stop loops, kernels of the engine and waiting", function()
        if kept_back then return pending(kept_back) end
        k:run "kept = 12"
        interrupted("while true do end", how)
        interrupted("coroutine.wrap(function() while true do end end)()", how)
        interrupted("local a = T.randn(6000, 6000); for i = 1, 1000 do a:matmul(a) end", how)
      end)
    end

    it("reach programs that the cell waits for", function()
      k:run "kept = 12"
      interrupted("os.execute 'sleep 60'", message)
    end)

    it("mean nothing to an idle kernel", function()
      signal()
      message()
      assert.equal("2", select(2, k:run "1 + 1").result)
    end)

    it("come again where the cell has caught them", function()
      if kept_back then return pending(kept_back) end
      k:run "kept = 12"
      k.published = {}
      local id = k:send("shell", "execute_request",
        { code = "print 'runs'\npcall(function() while true do end end)\nprint 'caught'\nwhile true do end" })
      k:wait("stream", function(m) return m.content.text:find "runs" end)
      message()
      k:wait("stream", function(m) return m.content.text:find "caught" end)
      message()
      assert.equal("interrupted", k:finish("shell", id).ename)
    end)
  end)

  describe("input", function()
    local function question(code)
      k.published = {}
      local id = k:send("shell", "execute_request", { code = code, allow_stdin = true })
      local m = k:take "stdin"
      assert.equal("input_request", m.kind)
      assert.equal(id, m.parent.msg_id)
      return id
    end
    local function answer(text) k:send("stdin", "input_reply", { value = text, status = "ok" }) end

    it("is asked of the front end", function()
      local id = question "io.write 'name? '; io.read() .. '!'"
      answer "Ada"
      local _, out = kernels.sorted(k:finish("shell", id))
      assert.equal("name? ", out.stdout)
      assert.equal('"Ada!"', out.result)
      id = question "io.read('n', 'l')"
      answer "12 apples"
      _, out = kernels.sorted(k:finish("shell", id))
      assert.equal('12\t" apples"', out.result)
      id = question "for line in io.lines() do if line == '' then break end print('<' .. line .. '>') end"
      answer "one"
      assert.equal("input_request", k:take("stdin").kind)
      answer ""
      _, out = kernels.sorted(k:finish("shell", id))
      assert.equal("<one>\n", out.stdout)
    end)

    it("is refused where there is none", function()
      local reply, out = k:run("io.read()", { allow_stdin = false })
      assert.equal("ok", reply.status)
      assert.equal("nil", out.result)
      assert.truthy(out.stderr:find "does not take input")
    end)

    it("can be interrupted, and a late answer is nobody's", function()
      local id = question "io.read()"
      k:send("control", "interrupt_request", {})
      assert.equal("interrupted", k:finish("shell", id).ename)
      answer "late"
      id = question "io.read()"
      answer "in time"
      assert.equal('"in time"', select(2, kernels.sorted(k:finish("shell", id))).result)
    end)
  end)

  describe("questions", function()
    it("of completion count characters", function()
      local function complete(code, at)
        return k:ask("complete_request", { code = code, cursor_pos = at or utf8.len(code) })
      end
      local reply = complete "s = 'äöü'; T.softma"
      assert.same({ "softmax" }, reply.matches)
      assert.same({ 13, 19 }, { reply.cursor_start, reply.cursor_end })
      assert.same({ "softmax" }, complete("T.softma + 1", 8).matches)
      assert.same({ "who" }, complete(":wh").matches)
      assert.same({}, complete("nosuchname.").matches)
      assert.equal("ok", complete("T.", 100).status)
      assert.equal("ok", complete("T.", -3).status)
    end)

    it("of names find what the cursor is at", function()
      local function found(code, at)
        local reply = k:ask("inspect_request", { code = code, cursor_pos = at or utf8.len(code), detail_level = 0 })
        return reply.found and reply.data["text/plain"]:match "^[^\n]*"
      end
      k:run "x = T.zeros(2, 3)"
      for code, head in pairs { ["T.softmax"] = "T.softmax", ["T.softmax(x, "] = "T.softmax",
        ["x:sum"] = "x:sum", ["x:exp():sum("] = "x:sum", ["nn.Linear { bias = "] = "nn.Linear", ["x"] = "f32[2,3] x",
        ["string.rep('a', "] = "a function written in C" } do
        local text = found(code)
        assert.truthy(text and text:find(head:gsub("^x:", ""), 1, true), ("%s: %s"):format(code, text))
      end
      assert.truthy(found("T.softmax(x)", 4):find("softmax", 1, true))
      assert.truthy(found("T.softmax(x)", 11):find("f32[2,3]", 1, true))
      assert.is_false(found "nosuchname")
      assert.is_false(found "")
      assert.is_false(found "1 + ")
    end)

    it("of whole inputs are answered as the prompt does", function()
      local function state(code) return k:ask("is_complete_request", { code = code }) end
      assert.equal("complete", state("x = 1").status)
      assert.equal("complete", state("?T.relu").status)
      assert.equal("invalid", state("x = = 1").status)
      assert.same({ status = "incomplete", indent = "  " }, state "for i = 1, 3 do")
    end)

    it("of history give cells of now and of earlier", function()
      local n = k:run("'one of these'").execution_count
      local function history(request)
        request.raw, request.output = true, request.output or false
        return k:ask("history_request", request).history
      end
      local tail = history { hist_access_type = "tail", n = 1 }
      assert.equal(1, #tail)
      assert.same({ n, "'one of these'" }, { tail[1][2], tail[1][3] })
      assert.same({ "'one of these'", '"one of these"' }, { table.unpack(history { hist_access_type = "tail", n = 1,
        output = true }[1][3]) })
      assert.same("'one of these'", history { hist_access_type = "range", session = 0, start = n, stop = n + 1 }[1][3])
      assert.same("'one of these'", history { hist_access_type = "search", pattern = "*one of*", n = 5 }[1][3])
      assert.same({}, { table.unpack(history { hist_access_type = "search", pattern = "nothing has [this" }) })
      assert.truthy(term.read(k.dir .. "/perilune/notebook_history"):find("'one of these'\n", 1, true))
    end)

    it("of comms find none", function()
      assert.same({}, k:ask("comm_info_request", {}).comms)
      k.published = {}
      k:send("shell", "comm_open", { comm_id = "c", target_name = "nobody", data = {} })
      assert.equal("c", k:wait("comm_close").content.comm_id)
    end)
  end)

  it("answers its heart's beat while it works", function()
    k.published = {}
    local loop = kept_back and "os.remove '/nowhere'" or "" -- a call of the system, for the signal that ends it
    local id = k:send("shell", "execute_request", { code = ("print 'runs'; while true do %s end"):format(loop) })
    k:wait("stream")
    for _, text in ipairs { "beat", "", ("x"):rep(100000) } do
      k.hb:send { text }
      assert.is_true(k.zeromq.wait({ k.hb }, 60000)[1])
      assert.same({ text }, k.hb:receive())
    end
    assert.equal("ok", k:ask("kernel_info_request", {}, "control").status)
    k:send("control", "interrupt_request", {})
    k:finish("shell", id)
  end)
end)

describe("perilune kernel", function()
  if lacking then return it("is built", function() pending(lacking) end) end
  local dir, remove
  before_each(function() dir, remove = term.folder() end)
  after_each(function() remove() end)
  local function kernel(args, env)
    return term.shell(("env %s %s kernel %s"):format(env or "", term.quote(term.command), args))
  end

  it("installs and takes away", function()
    local text, status = kernel("install --prefix " .. dir)
    assert.equal(0, status, text)
    local folder = dir .. "/share/jupyter/kernels/perilune"
    local spec = assert(json.read(folder .. "/kernel.json"))
    assert.same({ "kernel", "run", "{connection_file}" }, { table.unpack(spec.argv, 2) })
    assert.truthy(spec.argv[1]:find "^/.*perilune$")
    assert.equal("lua", spec.language)
    assert.truthy(term.read(folder .. "/logo-svg.svg"):find "^<svg")
    assert.equal(0, (select(2, kernel("install --prefix " .. dir)))) -- again
    assert.equal(0, (select(2, kernel("uninstall --prefix " .. dir))))
    assert.is_nil(io.open(folder .. "/kernel.json"))
    assert.equal(1, (select(2, kernel("uninstall --prefix " .. dir))))
    for env, where in pairs { ["JUPYTER_DATA_DIR=@/a"] = "/a", ["-u JUPYTER_DATA_DIR XDG_DATA_HOME=@/b"] = "/b/jupyter",
      ["-u JUPYTER_DATA_DIR -u XDG_DATA_HOME HOME=@/c"] = "/c/.local/share/jupyter" } do
      text, status = kernel("install --name lua-5.4", (env:gsub("@", dir)))
      assert.equal(0, status, text)
      assert(json.read(dir .. where .. "/kernels/lua-5.4/kernel.json"))
    end
  end)

  it("says what to install where there is no ZeroMQ", function()
    local build = term.command:gsub("/bin/perilune$", "")
    build = build:find "^/" and build or os.getenv "PWD" .. "/" .. build
    local copy = ("mkdir -p $1/bin $1/lib/perilune && cp $2/bin/perilune $1/bin && ln -s $2/share $1/share && "
      .. "ln -s $2/lib/perilune/[!z]*.so $1/lib/perilune"):gsub("%$(%d)", { ["1"] = dir, ["2"] = term.quote(build) })
    assert.equal(0, (select(2, term.shell(copy))))
    for _, args in ipairs { "install --prefix " .. dir, "run x.json" } do
      local text, status = term.shell(("env -u LUA_CPATH_5_4 %s/bin/perilune kernel %s"):format(dir, args))
      assert.equal(1, status)
      assert.truthy(text:find("apt-get install libzmq3-dev", 1, true), text)
    end
    assert.equal("1\n", (term.shell(("env -u LUA_CPATH_5_4 %s/bin/perilune -e 'print(1)'"):format(dir))))
  end)

  it("leaves kernels of other programs alone", function()
    local folder = dir .. "/share/jupyter/kernels/python3"
    os.execute("mkdir -p " .. folder)
    term.write(folder .. "/kernel.json", '{"argv": ["python", "-m", "ipykernel_launcher"]}')
    for _, verb in ipairs { "install", "uninstall" } do
      local text, status = kernel(("%s --prefix %s --name python3"):format(verb, dir))
      assert.equal(1, status)
      assert.truthy(text:find("another program's kernel", 1, true), text)
    end
    assert.truthy(term.read(folder .. "/kernel.json"):find "ipykernel")
  end)

  it("refuses wrong usage and wrong connection files", function()
    for _, args in ipairs { "", "nosuch", "install x", "install --nope", "install --name a/b", "install --name ..",
      "run", "run a b", "install --user --prefix x" } do
      local text, status = kernel(args, "HOME=" .. dir)
      assert.equal(2, status, args .. ": " .. text)
    end
    local good = { transport = "ipc", ip = dir .. "/k", key = "", shell_port = 1, control_port = 2, stdin_port = 3,
      iopub_port = 4, hb_port = 5 }
    for name, value in pairs { transport = "carrier pigeon", ip = 5, key = { 1 }, shell_port = "1", hb_port = json.null,
      signature_scheme = "md5" } do
      local wrong = { key = "k" }
      for key, v in pairs(good) do wrong[key] = key ~= "key" and v or "k" end
      wrong[name] = value
      assert(json.write(dir .. "/c.json", wrong))
      local text, status = kernel(("run %s/c.json"):format(dir))
      assert.equal(1, status, name)
      assert.truthy(text:find(name, 1, true), text)
    end
    for _, text in ipairs { "", "[]", "5", "{" } do
      term.write(dir .. "/c.json", text)
      assert.equal(1, (select(2, kernel(("run %s/c.json"):format(dir)))), text)
    end
    assert.equal(1, (select(2, kernel("run " .. dir .. "/nowhere.json"))))
    good.ip = dir .. "/nowhere/k"
    assert(json.write(dir .. "/c.json", good))
    local text, status = kernel(("run %s/c.json"):format(dir))
    assert.equal(1, status)
    assert.truthy(text:find("No such file", 1, true), text)
  end)
end)
