-- SPDX-License-Identifier: MIT
-- T.cli, T.timer, T.profile.

local T = require "perilune"
local root = os.getenv("PERILUNE_ROOT") or "."
local build = os.getenv("PERILUNE_BUILD") or root .. "/build"

describe("T.cli", function()
  local spec = {
    about = "Trains.", rest = "FILE",
    { "epochs", 3, "passes over the data", min = 1, short = "e" },
    { "lr", 1e-3, "learning rate" },
    { "name", "net" },
    { "quick", false, "a short run" },
    { "bar", true, "show progress" },
    { "act", "relu", choices = { "relu", "gelu" } },
    { "sizes", { 128, 64 }, "of hidden layers", list = true },
    { "data_dir", type = "string" },
  }
  local function got(...) return T.cli(spec, { ... }) end

  it("gives defaults of the types they have", function()
    local o = got()
    assert.same({ epochs = 3, lr = 1e-3, name = "net", quick = false, bar = true, act = "relu", sizes = { 128, 64 },
      rest = {} }, o)
    o.sizes[1] = 0
    assert.equal(128, got().sizes[1])
  end)

  it("reads every form of an option", function()
    local o = got("--epochs", "5", "--lr=1e-2", "-e", "7", "--quick", "--no-bar", "--act=gelu", "a.txt", "--sizes",
      "1,2,3", "--data-dir", "x y", "--", "--epochs")
    assert.same({ epochs = 7, lr = 0.01, name = "net", quick = true, bar = false, act = "gelu", sizes = { 1, 2, 3 },
      data_dir = "x y", rest = { "a.txt", "--epochs" } }, o)
    assert.equal("float", math.type(got("--lr", "1").lr))
    assert.equal(-5, T.cli({ { "n", 1 } }, { "--n", "-5" }).n)
    assert.equal("x", got("--data_dir", "x").data_dir)
    assert.equal(false, got("--bar=off").bar)
  end)

  it("says what is wrong", function()
    for text, args in pairs {
      ["unknown option --epoch; did you mean --epochs?"] = { "--epoch", "5" },
      ["--epochs needs an integer, got '2.5'"] = { "--epochs", "2.5" },
      ["--epochs must be at least 1, got 0"] = { "--epochs=0" },
      ["--lr needs a number, got 'fast'"] = { "--lr", "fast" },
      ["--lr needs a number, got 'nan'"] = { "--lr", "nan" },
      ["--epochs needs an integer"] = { "--epochs" },
      ["--act: unknown value 'rely' (allowed: relu, gelu); did you mean 'relu'?"] = { "--act", "rely" },
      ["--sizes needs an integer, got 'b'"] = { "--sizes", "1,b" },
      ["unknown option -x"] = { "-x" },
      ["--quick needs true or false, got 'maybe'"] = { "--quick=maybe" },
    } do
      local o, message, code = T.cli(spec, args)
      assert.is_nil(o)
      assert.equal(text, message)
      assert.equal("usage", code)
    end
    assert.equal("unexpected argument 'x'", select(2, T.cli({ { "n", 1 } }, { "x" })))
    assert.equal("--n is missing", select(2, T.cli({ { "n", type = "integer", required = true } }, {})))
  end)

  it("makes the help from the table", function()
    local o, text, code = got("--help")
    assert.is_nil(o)
    assert.equal("help", code)
    for _, part in ipairs { "usage: ", "[options] [--] FILE", "Trains.", "-e, --epochs N", "(default 3)",
      "--act relu|gelu", "--sizes N,…", "(default 128,64)", "--no-bar turns it off", "-h, --help" } do
      assert.truthy(text:find(part, 1, true), part)
    end
  end)

  it("refuses wrong tables at the caller's line", function()
    for _, wrong in ipairs {
      5, { 5 }, { { "a b" } }, { { "a", 1, typ = "integer" } }, { { "a", {}, "x" } }, { { "a", 1 }, { "a", 2 } },
      { { "help", 1 } }, { { "a", "x", type = "integer" } }, { abut = "x" }, { { "a", 1, "x", "y" } },
      { { "a", "x", choices = { "y", "z" } } }, { { "a", 1, min = 2 } }, { { "a", 2.5, max = 2 } },
      { { "a", { 1, 9 }, list = true, max = 5 } }, { { "a", "x", min = 1 } }, { { "a", 1, max = "2" } },
      { { "a", "x", choices = "x" } },
    } do
      local ok, message = pcall(function() return (T.cli(wrong, {})) end)
      assert.is_false(ok)
      assert.truthy(message:find("tools_spec.lua:", 1, true), message)
    end
  end)

  it("ends a script with status 2, or 0 for --help", function()
    local script = os.tmpname()
    local f = assert(io.open(script, "w"))
    f:write('local o = require("perilune").cli { { "n", 1, "a number" } }\nprint("n is " .. o.n)\n')
    f:close()
    local function run(args)
      local pipe = assert(io.popen(("'%s/bin/perilune' run '%s' -- %s 2>&1"):format(build, script, args)))
      local text = pipe:read("a")
      local _, _, status = pipe:close()
      return text, status
    end
    local text, status = run("--n 4")
    assert.same({ "n is 4\n", 0 }, { text, status })
    text, status = run("--m 4")
    assert.equal(2, status)
    assert.truthy(text:find("unknown option --m", 1, true) and text:find("Try: ", 1, true), text)
    text, status = run("--help")
    assert.equal(0, status)
    assert.truthy(text:find("--n N", 1, true), text)
    os.remove(script)
  end)
end)

describe("T.timer", function()
  local function wait(s)
    local t = T.core.clock()
    while T.core.clock() - t < s do end
  end

  it("is a stopwatch", function()
    local t = T.timer()
    wait(0.01)
    local first = t:lap()
    assert.is_true(first >= 0.01 and t() >= first)
    t:pause()
    local stood = t()
    wait(0.005)
    assert.equal(stood, t())
    t:resume()
    wait(0.002)
    assert.is_true(t() >= stood + 0.002)
    assert.is_true(t:reset()() < stood)
    assert.truthy(tostring(t):find("s$"))
  end)

  it("measures a function", function()
    local calls = 0
    local m = T.timer(function()
      calls = calls + 1
      wait(0.001)
    end, { seconds = 0.03, runs = 3 })
    assert.is_true(m.median >= 0.001 and m.median < 0.1 and m.min <= m.median)
    assert.equal(3, #m)
    assert.is_true(calls >= 3 * m.calls + 1)
    assert.truthy(tostring(m):find("median of 3 runs", 1, true))
    for _, wrong in ipairs { { 5 },
      { print, { runs = 0 } }, { print, { second = 1 } }, { print, { seconds = "x" } } } do
      assert.error(function() T.timer(wrong[1], wrong[2]) end)
    end
  end)
end)

describe("T.profile", function()
  local function find(rows, key)
    for _, r in ipairs(rows) do if r.key == key then return r end end
  end

  it("measures ops, their bytes and lines, also in backward", function()
    local x = T.rand(50, 40):requires_grad_()
    local line = debug.getinfo(1, "l").currentline
    local p, seven = T.profile(function()
      local y = x:exp() -- line + 2
      y:sum():backward()
      return 7
    end)
    assert.equal(7, seven)
    local exp = find(p:rows(), "exp")
    assert.equal(1, exp.calls)
    assert.is_true(exp.bytes >= 8000 and exp.bytes < 9000, exp.bytes)
    assert.is_true(exp.self > 0 and exp.time >= exp.self and p.time >= exp.time)
    assert.is_truthy(find(p:rows(), "mul (backward)"))
    assert.is_truthy(find(p:rows("line"), ("./spec/lua/tools_spec.lua:%d"):format(line + 2))
      or find(p:rows("line"), ("spec/lua/tools_spec.lua:%d"):format(line + 2)))
    assert.is_truthy(p:rows("both")[1].key:find("tools_spec.lua:%d+  %w"))
    local text = tostring(p)
    for _, part in ipairs { "Name", "Self %", "exp", "(outside of ops)", "op calls" } do
      assert.truthy(text:find(part, 1, true), part)
    end
    assert.truthy(p:table { by = "line", limit = 1 }:find("… %d+ more"))
  end)

  it("does not count twice what an op is made of", function()
    local x, y, z = T.rand(3, 3), T.rand(4, 3, 3), T.rand(4, 3, 3)
    local p = T.profile(function() return x:addbmm(y, z) end) -- expands into others
    local whole, inside = find(p:rows(), "addbmm"), 0
    assert.is_true(#p.events > 1)
    for _, r in ipairs(p:rows()) do inside = inside + r.self end
    assert.is_true(math.abs(inside - whole.time) < 1e-6)
    assert.is_true(whole.self < whole.time)
  end)

  it("counts floating-point operations, of every kernel once", function()
    local a, b, w, z = T.rand(20, 30), T.rand(30, 40), T.rand(8, 3, 3, 3), T.rand(2, 3, 6, 6)
    local p = T.profile(function() return a:matmul(b):exp(), T.nn.F.conv2d(z, w), a:t(), a + a end)
    assert.equal(2 * 20 * 30 * 40, find(p:rows(), "matmul").flops)
    assert.equal(20 * 40, find(p:rows(), "exp").flops)
    assert.equal(2 * (2 * 8 * 4 * 4) * (3 * 3 * 3), find(p:rows(), "conv2d").flops)
    assert.equal(20 * 30, find(p:rows(), "add").flops)
    local sum = 0
    for _, e in ipairs(p.events) do sum = sum + e.flops end
    assert.equal(48000 + 800 + 2 * 256 * 27 + 600, sum)
    assert.truthy(tostring(p):find("GFLOP/s", 1, true))
  end)

  it("sees what a compiled function runs", function()
    local f = T.jit(function(x, y) return (x * y + x):tanh():matmul(y) end)
    local x = T.rand(20, 20)
    f(x, x)
    local p = T.profile(function() f(x, x) end)
    assert.equal(1, find(p:rows(), "matmul").calls)
    assert.equal(1, find(p:rows(), "mul and 2 more, fused").calls)
    assert.equal(3 * 400, find(p:rows(), "mul and 2 more, fused").flops)
    assert.equal(2 * 20 ^ 3, find(p:rows(), "matmul").flops)
    assert.equal(2, #p.events)
    assert.truthy(p.events[1].line:find("tools_spec.lua", 1, true))
  end)

  it("writes a trace that says the same", function()
    local path = os.tmpname()
    local p = T.profile(function(region)
      local _ <close> = region('the "first" part')
      return T.ones(3) + 1
    end, path)
    local f = assert(io.open(path))
    local text = f:read("a")
    f:close()
    os.remove(path)
    assert.truthy(text:find('^{"displayTimeUnit":"ms","traceEvents":%[\n.*\n%]}\n$'))
    local _, count = text:gsub('"ph":"X"', "")
    assert.equal(#p.events + 2, count)
    assert.truthy(text:find('"name":"the \\"first\\" part","cat":"region"', 1, true))
    assert.truthy(text:find('"name":"add","cat":"op"', 1, true))
    local none, why, code = T.profile(function() end, "/nowhere/t.json")
    assert.same({ nil, "/nowhere/t.json: cannot write: No such file or directory", "io" }, { none, why, code })
  end)

  it("stops whatever happens", function()
    local ok, err = pcall(T.profile, function()
      local _ = T.ones(2) + 1
      error({ 5 })
    end)
    assert.is_false(ok)
    assert.same({ 5 }, err)
    ok, err = pcall(T.profile, function() T.profile(print) end)
    assert.is_false(ok)
    assert.truthy(err:find("do not nest", 1, true))
    local co = coroutine.wrap(function() T.profile(function() coroutine.yield() end) end)
    ok, err = pcall(co)
    assert.is_false(ok)
    assert.truthy(tostring(err):find("yield", 1, true))
    local p = T.profile(function() pcall(T.matmul, T.ones(2, 3), T.ones(2, 3)) end) -- a refused op ends too
    assert.equal("matmul", p.events[#p.events].name)
    assert.is_true(p.events[#p.events].time >= 0)
    assert.equal(0, #T.profile(function() end).events)
    assert.error(function() T.profile(3) end)
    assert.error(function() T.profile(print, 3) end)
  end)
end)
