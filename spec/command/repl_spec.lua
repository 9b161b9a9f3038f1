-- SPDX-License-Identifier: MIT
-- The prompt, on a real terminal: a session of 60 inputs, 20 of them wrong (spec/fixtures/session.lua), line editing,
-- history shared by two sessions, Ctrl-C, completion by Tab, and terminals and files that do not work.

local term = require "spec.support.terminal"
local inputs = require "spec.fixtures.session"

local sanitized = (os.getenv "PERILUNE_SANITIZE" or "") ~= ""
local home, remove_home
local function env(extra) return ("XDG_STATE_HOME=%s NO_COLOR=1 %s"):format(term.quote(home), extra or "") end

-- Each text is an input; the next prompt is awaited. → what play() returns, and what each printed
local function session(list, settings)
  local steps = { { "expect", "[1]> " } }
  for i, text in ipairs(list) do
    steps[#steps + 1] = { "send", text .. "\n" }
    steps[#steps + 1] = { "expect", "]> " }
    steps[#steps + 1] = { "send", ("print('%s%d')\n"):format("mark ", i) } -- what is before belongs to the input
    steps[#steps + 1] = { "expect", ("\nmark %d\r"):format(i) }
    steps[#steps + 1] = { "expect", "]> " }
  end
  steps[#steps + 1] = { "send", "\4" }
  local got = term.play(steps, env(settings))
  local printed, at = {}, 1
  for i, text in ipairs(list) do
    local _, echoed = got.screen:find(text:match "[^\n]*$" .. "\n", at, true)
    local stop = echoed and got.screen:find("[^\n]*print%('mark " .. i .. "'%)\n", echoed)
    printed[i] = stop and got.screen:sub(echoed + 1, stop - 1):gsub("\n$", "") or "(nothing)"
    at = stop or at
  end
  return got, printed
end

describe("the prompt", function()
  if not term.there() then return it("is built", function() pending(term.missing "perilune") end) end
  before_each(function() home, remove_home = term.folder() end)
  after_each(function() remove_home() end)

  it("answers a session of 60 inputs, 20 of them wrong", function()
    local texts, wrong = {}, 0
    for i, input in ipairs(inputs) do
      texts[i] = input[1]
      if input.wrong then wrong = wrong + 1 end
    end
    assert.is_true(#inputs >= 60 and wrong >= 20, ("%d inputs, %d wrong"):format(#inputs, wrong))
    local got, printed = session(texts)
    assert.is_nil(got.missing, got.screen)
    assert.equal(0, got.status)
    for i, input in ipairs(inputs) do
      local text = printed[i]
      local is_error = text:find("error: ", 1, true) ~= nil
      assert.equal(input.wrong or false, is_error, ("input %d, %s: %s"):format(i, input[1], text))
      if type(input[2]) == "string" then
        assert.equal(input[2], text, ("input %d, %s"):format(i, input[1]))
      end
      for _, part in ipairs(type(input[2]) == "table" and input[2] or {}) do
        assert.truthy(text:find(part, 1, true), ("input %d, %s: %s is not in %s"):format(i, input[1], part, text))
      end
    end
  end)

  it("ends an input that goes on with a blank line, but not one that is pasted", function()
    local got = term.play({ { "expect", "[1]> " }, { "send", "x = 1 +\n" }, { "expect", ">> " }, { "send", "\n" },
      { "expect", "unexpected symbol near <eof>" }, { "expect", "[2]> " },
      { "send", "function f(v)\n\n  return v\n\nend\nf(7)\n" }, { "expect", "\n7\r" }, { "expect", "[4]> " },
      { "send", "error 'here'\n" }, { "expect", "input 4, line 1" }, { "send", "\4" } }, env())
    assert.is_nil(got.missing, got.screen)
  end)

  it("T.fit returns what it has when Ctrl-C stops it", function()
    local got = term.play({ { "expect", "[1]> " },
      { "send", "net = nn.Linear(2, 2); opt = optim.SGD(net:parameters(), { lr = 0.1 })\n" }, { "expect", "[2]> " },
      { "send", "train = { { T.ones(2, 2), T.ones(2):long() } }; slow = function() for i = 1, 1e6 do end end\n" },
      { "expect", "[3]> " },
      { "send", "h = T.fit(net, { train = train, optimizer = opt, epochs = 1e9, quiet = true, callbacks = slow })\n" },
      { "running" }, { "pause", 600 }, { "send", "\3" }, { "expect", "interrupted in epoch " }, { "expect", "[4]> " },
      { "send", "#h > 0 and h[#h].loss < h[1].loss\n" }, { "expect", "\ntrue\r" }, { "expect", "[5]> " },
      { "send", "T.fit(net, { train = train, optimizer = opt, step = function() return oops.x end })\n" },
      { "expect", "attempt to index a nil value (global 'oops')" }, { "expect", "input 5, line 1" },
      { "expect", "[6]> " }, { "send", "while true do end\n" }, { "running" }, { "pause", 200 }, { "send", "\3" },
      { "expect", "^C\r\nerror: interrupted!" }, { "expect", "[7]> " }, { "send", "\4" } }, env())
    assert.is_nil(got.missing, got.screen)
  end)

  it("starts and completes quickly", function()
    local starts, completions = {}, {}
    for i = 1, 5 do
      local got = term.play({ { "expect", "]> " }, { "send", "T.soft\t" }, { "expect", "softmax" },
        { "send", "\3" }, { "expect", "^C" }, { "expect", "]> " }, { "send", "\4" } },
        env())
      assert.is_nil(got.missing, got.screen)
      starts[i], completions[i] = got.times[1], got.times[2]
    end
    table.sort(starts)
    table.sort(completions)
    -- the best of five, without the time that other programs had; measured alone: 9 ms and 2 ms, and several times
    -- that where many programs share the caches. What is to be caught is work at the start that a user would feel.
    local slack = sanitized and 20 or 1
    assert.is_true(starts[1] <= 150 * slack, starts[1] .. " ms to the prompt")
    assert.is_true(completions[1] <= 100 * slack, completions[1] .. " ms to complete")
  end)

  it("edits lines, and goes through the history, inputs of several lines too", function()
    local got = term.play({
      { "expect", "]> " }, { "send", "12 + 3\n" }, { "expect", "15" }, { "expect", "]> " },
      { "send", "\27[A\1" }, { "send", "100 + \n" }, { "expect", "115" }, { "expect", "]> " },
      { "send", "do\nprint('two', 'lines')\nend\n" }, { "expect", "two\tlines\r\n" }, { "expect", "]> " },
      { "send", "\27[A" }, { "pause", 50 }, { "send", "\n" }, { "expect", "two\tlines\r\n" }, { "expect", "]> " },
      { "send", "abc\23" }, { "send", "'ä' .. 'ö'\127\127ü'\n" }, { "expect", "äü" }, { "expect", "]> " },
      { "send", "\4" },
    }, env())
    assert.is_nil(got.missing, got.screen)
    assert.equal(0, got.status)
  end)

  it("keeps the history of two sessions that run at once", function()
    local steps = { { "expect", "]> " } }
    for i = 1, 30 do
      steps[#steps + 1] = { "send", ("mine = %d\n"):format(i) }
      steps[#steps + 1] = { "expect", "]> " }
    end
    steps[#steps + 1] = { "send", "\4" }
    local path = os.tmpname()
    local lines = {}
    for i, step in ipairs(steps) do lines[i] = step[1] .. " " .. term.escape(step[2]) end
    term.write(path, table.concat(lines, "\n"):gsub("mine = ", "other = ") .. "\n")
    local pty = term.command:gsub("bin/perilune$", "spec/pty")
    local other = io.popen(("env TERM=xterm %s %s %s %s 2>/dev/null"):format(env(), pty, path, term.command))
    local got = term.play(steps, env())
    other:read "a"
    other:close()
    os.remove(path)
    assert.is_nil(got.missing, got.screen)
    local history = "\n" .. term.read(home .. "/perilune/history")
    for i = 1, 30 do
      assert.truthy(history:find(("\nmine = %d\n"):format(i), 1, true), "mine = " .. i)
      assert.truthy(history:find(("\nother = %d\n"):format(i), 1, true), "other = " .. i)
    end
    got = term.play({ { "expect", "]> " }, { "send", "\18mine = 17" }, { "pause", 100 }, { "send", "\n" },
      { "expect", "]> " }, { "send", "mine .. '!'\n" }, { "expect", "17!" }, { "send", "\4" } }, env())
    assert.is_nil(got.missing, got.screen)
  end)

  it("stops what runs on Ctrl-C, clears a line, and keeps what is there", function()
    local got = term.play({
      { "expect", "]> " }, { "send", "kept = T.ones(3)\n" }, { "expect", "]> " },
      { "send", "while true do end\n" }, { "running" }, { "pause", 100 }, { "send", "\3" }, { "expect", "interrupted" },
      { "expect", "]> " },
      { "send", "x = T.ones(8000, 8000)\n" }, { "expect", "]> " },
      { "send", "x:matmul(x)\n" }, { "running" }, { "pause", 200 }, { "send", "\3" }, { "expect", "interrupted" },
      { "expect", "]> " },
      { "send", "io.read()\n" }, { "running" }, { "pause", 100 }, { "send", "\3" }, { "expect", "interrupted" },
      { "expect", "]> " },
      { "send", "half a line" }, { "pause", 100 }, { "send", "\3" }, { "expect", "^C" }, { "expect", "]> " },
      { "send", "if true then\n" }, { "expect", ">> " }, { "send", "\3" }, { "expect", "^C" }, { "expect", "]> " },
      { "send", "kept:sum():item()\n" }, { "expect", "3.0" }, { "send", "\4" },
    }, env())
    assert.is_nil(got.missing, got.screen)
    assert.equal(0, got.status)
    -- the matrix product would take many seconds; the limit leaves room for a busy machine
    assert.is_true(got.times[6] < (sanitized and 5000 or 1000), got.times[6] .. " ms")
  end)

  it("completes names, methods, options and files, and runs no __index for it", function()
    term.write(home .. "/data of mine.txt", "")
    local function typed(keys, result)
      return { { "send", keys }, { "pause", 60 }, { "send", "\n" }, { "expect", result }, { "expect", "]> " } }
    end
    local steps = { { "expect", "]> " } }
    for _, part in ipairs {
      typed("h = setmetatable({alpha = 42}, {__index = function() error 'it ran' end})", "" ),
      typed("h.al\t + 1", "43"),
      typed("h.be\t;", "it ran"), -- only now, as the line runs
      typed("T.ones(2, 3):numel(\t)", "6"),
      typed("T.ones(2, 3):nume\t() + 1", "7"),
      typed("T.ones(2, 3):sum(1, {keepd\ttrue}):dim()", "2"),
      typed("T.zeros({2}, {dtype = \"f6\t}):dtype()", "f64"),
      typed(("io.open('%s/data\t):close()"):format(home), "true"),
      typed("nn.Linear{2, 3, bia\tfalse}.bias", "nil"),
      typed("('abc'):rev\t()", "cba"),
      typed("str\t.up\t('x')", "X"),
    } do table.move(part, 1, #part, #steps + 1, steps) end
    steps[#steps + 1] = { "send", "T.arg\t\t" }
    steps[#steps + 1] = { "expect", "argmax" }
    steps[#steps + 1] = { "expect", "argsort" }
    for _, step in ipairs { { "send", "\3" }, { "expect", "^C" }, { "expect", "]> " }, { "send", "\4" } } do
      steps[#steps + 1] = step
    end
    local got = term.play(steps, env())
    assert.is_nil(got.missing, got.screen)
    assert.equal(0, got.status)
  end)

  it("reads plain lines where libedit is missing", function()
    local got = term.play({ { "expect", "]> " }, { "send", "T.no_grad(T.ones, 1)\n" }, { "expect", "f32[1] cpu" },
      { "expect", "]> " }, { "send", "do local _ <close> = T.no_grad() end\n" }, { "expect", "]> " },
      { "send", "half a line" }, { "pause", 100 }, { "send", "\3" }, { "expect", "]> " },
      { "send", "if true then\n" },
      { "expect", ">> " }, { "send", "return 'inside' end\n" }, { "expect", '"inside"\r' }, { "expect", "]> " },
      { "send", "\4" } }, env(), term.quote(term.command) ..
      " -e 'require \"perilune.terminal\".editor = nil return require \"perilune.repl\" ()'", true)
    assert.is_nil(got.missing, got.screen)
    assert.equal(0, got.status)
  end)

  it("opens an editor for an input", function()
    local script = home .. "/editor"
    term.write(script, "#!/bin/sh\ngrep -q '1 + 2' \"$1\" && echo '6 * 7' > \"$1\"\n")
    assert(os.execute("chmod +x " .. term.quote(script)))
    local got = term.play({ { "expect", "]> " }, { "send", "1 + 2\n" }, { "expect", "3\r" }, { "expect", "]> " },
      { "send", ":edit\n" }, { "expect", "42\r" }, { "expect", "]> " }, { "send", ":edit /nowhere/x.lua\n" },
      { "expect", "error: " }, { "expect", "]> " }, { "send", ":quit\n" } }, env("VISUAL= EDITOR=" .. script))
    assert.is_nil(got.missing, got.screen)
    assert.equal(0, got.status)
  end)

  it("follows the terminal's width and colours only where wanted", function()
    local function shown(settings)
      return term.play({ { "expect", "]>" }, { "size", 40 }, { "send", "T.arange(30)\n" }, { "expect", "i64[30]" },
        { "expect", "]>" }, { "send", "{1, 'a'}\n" }, { "expect", '"a"' }, { "expect", "]>" }, { "send", "\4" } },
        "XDG_STATE_HOME=" .. home .. " " .. settings)
    end
    local plain = shown "NO_COLOR=1"
    assert.is_nil(plain.missing, plain.screen)
    for line in plain.screen:gmatch "[^\n]+" do
      if line:find "^[{ ][ %d]%d," then assert.is_true(#line:gsub("  %-%-.*", "") <= 41, line) end
    end
    assert.is_nil(plain.raw:find "\27%[3%dm")
    assert.truthy(shown("NO_COLOR=").raw:find "\27%[32m")
    local drawn = term.play({ { "expect", "]>" }, { "send", "T.plot { 1, 4, 9 }\n" }, { "expect", "]>" },
      { "send", "setmetatable({}, { __tostring = function() return '\\27[31mred' end })\n" }, { "expect", "]>" },
      { "send", "?nn.Conv2d\n" }, { "expect", "]>" }, { "send", "\4" } }, "NO_COLOR= XDG_STATE_HOME=" .. home)
    assert.truthy(drawn.raw:find("\27%[[%d;]+m⠉"), drawn.raw) -- a picture of ours has colours
    assert.truthy(drawn.raw:find("\\x1b[31mred", 1, true), drawn.raw) -- nobody else sends escapes
    for line in drawn.screen:match("%?nn.Conv2d\n(.*)"):gmatch "[^\n]+" do
      assert.is_true(utf8.len(line) <= 80, line)
    end
  end)

  it("colours what is typed and indents what goes on", function()
    local got = term.play({ { "expect", "]>" }, { "send", "local n = 12 -- twelve" }, { "pause", 150 },
      { "send", "\n" }, { "expect", "[2]>" }, { "ready" }, { "send", "for i = 1, 2 do\n" }, { "expect", ">>" },
      { "ready" }, { "pause", 100 }, { "send", "if i == n then\n" }, { "pause", 200 },
      { "send", "print 'never'\n" }, { "pause", 200 },
      { "send", "else\n" },
      { "pause", 200 }, { "send", "print('x' .. i)\n" }, { "pause", 200 }, { "send", "end\n" }, { "pause", 200 },
      { "send", "end\n" }, { "expect", "x1\r\nx2\r" }, { "expect", "[3]>" }, { "ready" },
      { "send", "s = 'a text that is much longer than this terminal of the spec is wide, eighty columns'; #s" },
      { "pause", 150 }, { "send", "\1\5\n" },
      { "expect", "\27[36m81\27[0m" }, { "send", "\4" } }, "NO_COLOR= XDG_STATE_HOME=" .. home)
    assert.is_nil(got.missing, got.raw)
    for _, part in ipairs { "\27[35mlocal\27[0m n = \27[36m12\27[0m \27[2m-- twelve\27[0m",
      "\27[35mif\27[0m i == n \27[35mthen", "\27[1A\27[5Cs = \27[32m'a text that is much longer than this terminal "
      .. "of the spec is wide, eig\r\27[Bhty columns'\27[0m" } do
      assert.truthy(got.raw:find(part, 1, true), part .. " is not in " .. got.raw)
    end
    local kept = term.read(home .. "/perilune/history")
    local block = "for i = 1, 2 do\\n  if i == n then\\n    print 'never'\\n  else\\n    print('x' .. i)\\n"
      .. "  end\\nend\n"
    assert.truthy(kept:find(block, 1, true), kept)
  end)

  it("says what is wrong with its history file, and goes on", function()
    local dir = home .. "/perilune"
    assert(os.execute("mkdir " .. dir .. " && mkdir " .. dir .. "/history"))
    local got = term.play({ { "expect", "lines are not kept" }, { "expect", "]> " }, { "send", "1 + 1\n" },
      { "expect", "2" }, { "send", "\4" } }, env())
    assert.is_nil(got.missing, got.screen)
    assert(os.execute("rmdir " .. dir .. "/history"))
    term.write(dir .. "/history", ("\0\255 \\n x\n"):rep(1000) .. ("a"):rep(100000))
    got = term.play({ { "expect", "]> " }, { "send", "1 + 1\n" }, { "expect", "2" }, { "send", "\4" } }, env())
    assert.is_nil(got.missing, got.screen)
    term.write(dir .. "/history", ("line\n"):rep(5000))
    got = term.play({ { "expect", "]> " }, { "send", "last\n" }, { "expect", "]> " }, { "send", "\4" } }, env())
    assert.is_nil(got.missing, got.screen)
    local _, lines = term.read(dir .. "/history"):gsub("\n", "")
    assert.equal(2001, lines)
  end)

  it("takes a line of 20,000 characters, and ends when the terminal goes", function()
    local long = "#'" .. ("x"):rep(20000) .. "'"
    local got = term.play({ { "expect", "]> " }, { "send", long .. "\n" }, { "expect", "20000\r" },
      { "expect", "]> " }, { "send", "\4" } }, env())
    assert.is_nil(got.missing, got.screen:sub(-200))
    assert.equal(0, got.status)
    for _, signal in ipairs { "TERM", "HUP" } do
      got = term.play({ { "expect", "]> " },
        { "send", ("os.execute '(sleep 0.3; kill -%s $PPID) &';\n"):format(signal) }, { "expect", "]> " },
      }, env())
      assert.equal(signal == "TERM" and 143 or 129, got.status, got.screen)
    end
  end)
end)

describe("inputs from a pipe", function()
  if not term.there() then return end
  local function piped(text)
    local path = os.tmpname()
    term.write(path, text)
    local out, status = term.shell(("%s < %s"):format(term.quote(term.command), path))
    os.remove(path)
    return out, status
  end

  it("are answered plainly, with the lines of the whole in errors and status 1 after one", function()
    assert.same({ '2\n"f32[2,3]"\n', 0 }, { piped "1 + 1\nlocal x = T.ones(2, 3)\nx:describe()\n" })
    local out, status = piped "x = T.ones(2, 3)\nfunction f(a)\n  return a:matmul(a)\nend\nf(x)\nprint 'on'"
    assert.equal(1, status)
    assert.truthy(out:find("stdin, line 3:  return a:matmul(a)", 1, true), out)
    assert.truthy(out:find("called from stdin, line 5:  f(x)", 1, true), out)
    assert.truthy(out:find("a = f32[2,3] cpu", 1, true), out)
    assert.truthy(out:find("on\n", 1, true), out)
  end)

  it("may end in the middle, hold bytes that are no text, or be missing", function()
    local out, status = piped "for i = 1, 3 do\n"
    assert.equal(1, status)
    assert.truthy(out:find("'end' expected", 1, true), out)
    out, status = piped "'\255\254\0' == 1\n\255\n1\n"
    assert.equal(1, status)
    assert.truthy(out:find("false\n", 1, true) and out:find("1\n$"), out)
    assert.equal(0, select(2, term.shell(term.quote(term.command) .. " <&-")))
    out, status = term.shell(term.quote(term.command) .. " -e 'print(1)' >/dev/full")
    assert.equal(1, status)
    assert.truthy(out:find("cannot write standard output", 1, true), out)
    assert.equal(1, select(2, term.shell(term.quote(term.command) .. " -e 'print(1)' >&-")))
  end)
end)
