-- SPDX-License-Identifier: MIT
-- Ctrl-C: an op that would take minutes stops at once with an error, kernels work again afterwards, and the rest of
-- the session runs. The command reads its lines from a pipe; the signal comes from outside.

local term = require "spec.support.terminal"

local command = term.command
if not term.there() then
  return describe("Ctrl-C", function() it("needs the command", function() pending(term.missing "perilune") end) end)
end

-- Sends SIGINT as soon as the line after `setup` runs; returns what the session printed and what it took from
-- the signal to its end, in milliseconds of the processor's time: others on the machine do not count.
local function session(setup, line)
  local script, out = os.tmpname(), os.tmpname()
  local f = assert(io.open(script, "w"))
  f:write("T = require 'perilune' T.set_num_threads(2)\n", setup, "\n",
    "io.stderr:write('begin\\n') ", line, "\n",
    "print('after', T.ones(300, 300):matmul(T.ones(300, 300)):sum():item(), T.randn(50000):sort():numel())\n")
  f:close()
  -- an own process group, so that the shell's rule for background jobs does not make it deaf to SIGINT
  local pipe = assert(io.popen(([[
    '%s' < '%s' > '%s' 2>&1 & p=$!
    n=0; while ! grep -q begin '%s' && [ $n -lt 6000 ]; do sleep 0.05; n=$((n+1)); done
    sleep 0.1; cat /proc/$p/stat; kill -INT $p; wait $p; times]]):format(command, script, out, out)))
  local before, all = 0, 0
  for said in pipe:lines() do
    local user, system = said:match("^%d+ %(.*%) %a" .. (" %-?%d+"):rep(10) .. " (%d+) (%d+)")
    if user then before = (user + system) / 100 end
    local seconds = 0
    for m, s in said:gmatch "(%d+)m([%d.]+)s" do seconds = seconds + m * 60 + s end
    all = math.max(all, seconds)
  end
  pipe:close()
  local took = (all - before) * 1000
  local text = assert(io.open(out)):read "a"
  os.remove(script)
  os.remove(out)
  return text, took
end

local LIMIT = 10000 -- milliseconds of the processor's time; each would take minutes of it

-- A graph whose plan takes long, and one that does not.
local GRAPH = [[G = T.graph() X = G:input("x", { 4, 4 }) W = G:input("w", { 4, 4 }, { leaf = true }) Y = X
for i = 1, %d do Y = Y + T.relu(T.linear(Y, W)) end ]]
local LONG, SHORT = GRAPH:format(100000), GRAPH:format(300)

local CASES = {
  { "a loop", "", "while true do end" },
  { "small ops", "", "while true do local a = T.ones(2) + 1 end" },
  { "matrix products", "x = T.randn(2000, 2000)", "for i = 1, 100000 do x:matmul(x) end" },
  { "one matrix product", "x = T.ones(8000, 8000)", "x:matmul(x)" },
  { "matrix products in f64", "x = T.randn(1500, 1500):double()", "for i = 1, 100000 do x:matmul(x) end" },
  { "elementwise ops", "x = T.randn(5000000)", "while true do x:exp():sin() end" },
  { "convolution", "x, w = T.randn(16, 32, 64, 64), T.randn(64, 32, 3, 3)",
    "while true do T.nn.F.conv2d(x, w, { padding = 1 }) end" },
  { "sorting", "x = T.randn(5000000)", "while true do x:sort(1) end" },
  { "reading into tables", "x = T.randn(5000000)", "while true do x:totable() end" },
  { "making from tables", "t = T.ones(3000000):totable()", "while true do T.tensor(t) end" },
  { "backward", "q = T.ones(1):requires_grad_()",
    "while true do local z = q for i = 1, 20000 do z = z * 1 end z:backward() end" },
  { "a hook", "q = T.ones(1):requires_grad_()",
    "q:register_hook(function() while true do end end); (q * 2):backward()" },
  { "a loop in a coroutine", "", "coroutine.wrap(function() while true do end end)()" },
  { "a loop in a coroutine in a coroutine", "", "coroutine.wrap(function() " ..
    "for _ in coroutine.wrap(function() coroutine.yield(1) while true do end end) do end end)()" },
  { "a scheduler of coroutines", "t = {} for i = 1, 3 do t[i] = coroutine.create(function() " ..
    "while true do coroutine.yield(i) end end) end", "while true do for i = 1, 3 do coroutine.resume(t[i]) end end" },
  { "a loop in Lua that a coroutine has left", "c = coroutine.wrap(function() coroutine.yield(1) end) c()",
    "while true do end" },
  { "waiting for a loader's workers", "",
    "for _ in T.data.DataLoader({ 1 }, { workers = 2, collate = function() while true do end end }) do end" },
  { "a loader's workers in kernels", "", "for _ in T.data.DataLoader({ 1 }, { workers = 1, collate = function() "
    .. "local x = require('perilune').randn(2000, 2000) while true do x:matmul(x) end end }) do end" },
  { "one call of a jitted function", "x = T.randn(1500, 1500) f = T.jit(function(a) "
    .. "for i = 1, 4000 do a = a:matmul(x):tanh() end return a end)", "f(x)" },
  { "jitted small ops", "f = T.jit(function(a) for i = 1, 3000 do a = a:sin() end return a end) x = T.ones(1)",
    "while true do f(x) end" },
  { "planning a graph", LONG .. [[G:outputs { (G:gradient(Y, X, { mirror = "auto", heavy = true })) }]], "G:plan()" },
  { "planning again and again", SHORT .. "G:outputs { Y }",
    [[while true do G:name(Y, "y") G:gradient(Y, X, { mirror = "auto", heavy = true }) G:plan() end]] },
  { "a gradient pass", LONG, "while true do G:gradient(Y, X) end" },
  { "tracing", "function f(x) for i = 1, 1000 do x = x:sin() end return x end",
    "while true do T.jit(f)(T.ones(2)) end" },
  { "planning a jitted function", "f = T.jit(function(x) local w = x * 1 w:requires_grad_() local y = w "
    .. "for i = 1, 60000 do y = y + y:tanh() end y:sum():backward() return w.grad end, "
    .. "{ mirror = 'auto', heavy = true })", "f(T.ones(4))" },
  { "ops in a coroutine", "x = T.randn(1000, 1000)",
    "coroutine.wrap(function() while true do x:matmul(x) end end)()" },
}

describe("Ctrl-C stops", function()
  for _, case in ipairs(CASES) do
    it(case[1], function()
      local text, took = session(case[2], case[3])
      assert.is_truthy(text:find("interrupted", 1, true), text)
      assert.is_truthy(text:find("after\t27000000.0\t50000", 1, true), text)
      assert.is_true(took < LIMIT, ("%s took %.0f ms"):format(case[1], took))
    end)
  end
end)

describe("a jitted function that Ctrl-C stopped", function()
  it("runs again, with the same results", function()
    local text = session([[x = T.randn(300, 300) s = T.zeros(300, 300)
function g(a) for i = 1, 400 do a = (a:matmul(x) * 0.01):tanh() end return a end f = T.jit(g) y = f(x)]],
      [[repeat ok, e = pcall(f, x) until not ok print(e) print('next', f(x):equal(y), y:equal(g(x)), f)]])
    assert.is_truthy(text:find("interrupted", 1, true), text)
    assert.is_truthy(text:find("next\ttrue\ttrue\tjit%(.-%): 1 traces"), text)
  end)
end)

describe("a graph whose gradient pass or plan Ctrl-C stopped", function()
  local function stopped(setup, line)
    local text = session(LONG .. setup, line)
    assert.is_truthy(text:find("interrupted", 1, true), text)
    assert.is_nil(text:find("interrupted.*interrupted"), text) -- one error, which pcall gets
    return text
  end

  it("has no half of a pass", function()
    local text = stopped("core = require 'perilune.core' top = 0",
      [[print(pcall(function() while true do G:gradient(Y, X) end end)) ]]
      .. [[for _, n in ipairs(G:nodes()) do top = math.max(top, n.stage) end ]]
      .. [[print('same', top == #core.graph_regions(G.ir))]])
    assert.is_truthy(text:find("same\ttrue", 1, true), text:sub(1, 2000))
  end)

  it("is planned again, as it would have been", function()
    local text = stopped("G:outputs { (G:gradient(Y, X)) } P = G:plan() "
      .. "G:outputs { (G:gradient(Y, X, { mirror = 'auto', heavy = true })) }",
      [[ok, e = pcall(G.plan, G) print(ok, e) G:outputs { X * 2 } print('planned', G:plan().nodes, ]]
      .. [[G:run({ x = T.ones(4, 4), w = T.ones(4, 4) })[1]:sum():item())]])
    assert.is_truthy(text:find("planned\t1\t32.0", 1, true), text:sub(1, 2000))
  end)
end)

-- The perilune command notes which coroutine runs; but for that its coroutines are Lua's own.
describe("coroutines of the perilune command", function()
  it("behave as Lua's", function()
    local code = [[
local function show(...) print(select("#", ...), ...) end
local co = coroutine.create(function(a, b) local c = coroutine.yield(a + b, nil) error("bad " .. c, 0) end)
show(coroutine.resume(co, 1, 2)) show(coroutine.status(co)) show(coroutine.resume(co, "x"))
show(coroutine.resume(co)) show(coroutine.status(co)) show(coroutine.resume(coroutine.running()))
show(pcall(coroutine.resume, 3)) show(pcall(coroutine.wrap, 3))
local w = coroutine.wrap(function(...) show(...) show(coroutine.yield()) return nil, nil end)
show(w(1, nil)) show(w(nil)) show(pcall(w))
local closed
local f = coroutine.wrap(function() local _ <close> = setmetatable({}, { __close = function() closed = true end })
  error "inside" end)
show(pcall(f)) show(closed)
show(pcall(coroutine.wrap(function() error({ 1 }) end)))
local g = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end)
for i in g do io.write(i, " ") end print()
show(coroutine.isyieldable(), coroutine.wrap(function() return coroutine.isyieldable() end)())
show(coroutine.close(coroutine.create(print)))
]]
    local file = os.tmpname()
    local f = assert(io.open(file, "w"))
    f:write(code)
    f:close()
    local function output(program)
      local pipe = assert(io.popen(("'%s' '%s' 2>&1"):format(program, file)))
      local text = pipe:read "a"
      pipe:close()
      return (text:gsub("table: 0x%x+", "table"):gsub("coroutine expected", "thread expected"))
    end
    local missing = term.missing "lua5.4"
    local ours, lua = output(command), output "lua5.4"
    os.remove(file)
    if missing then return pending(missing) end
    assert.equal(lua, ours)
  end)
end)

it("a script that Ctrl-C ends has the exit status of one that SIGINT ended", function()
  local missing = term.missing("perilune", "bash")
  if missing then return pending(missing) end
  local function status(code)
    code = code:gsub("GOING", "print 'going' io.stdout:flush()")
    return select(2, term.interrupted(("%s -e %s"):format(term.quote(term.command), term.quote(code)), "going"))
  end
  assert.equal(130, status "GOING while true do end")
  assert.equal(1, status "pcall(function() GOING while true do end end) error 'another'")
  assert.equal(0, status "pcall(function() GOING while true do end end)")
end)

it("a script that Ctrl-C ends in one of perilune's own files is told its own line", function()
  local missing = term.missing("perilune", "bash")
  if missing then return pending(missing) end
  local dir, remove = term.folder()
  local path = dir .. "/s.lua"
  term.write(path, "local T = require 'perilune'\nprint 'going' io.stdout:flush()\nwhile true do T.randn(2, 3) end\n")
  for _ = 1, 5 do -- wherever it is then
    local text, status = term.interrupted(("%s %s"):format(term.quote(term.command), term.quote(path)), "going")
    assert.equal(130, status)
    assert.truthy(text:find(path .. ":3: interrupted!", 1, true), text)
    assert.is_nil(text:find("tensor/create.lua", 1, true), text)
  end
  remove()
end)

describe("a part of the library that goes on where a call fails", function()
  it("ends with Ctrl-C, wherever it strikes", function()
    for _, body in ipairs { "x:matmul(x)", "local i = 0 for _ = 1, 1e9 do i = i + 1 end" } do
      local text = session("core = require 'perilune.core' x = T.randn(1000, 1000)",
        ("print(pcall(function() while true do core.attempt(function() %s end) end end))"):format(body)
        .. " print(core.raised())")
      assert.truthy(text:find("false\t[^\n]*interrupted"), text)
      assert.truthy(text:find("\ninterrupt\n", 1, true), text)
    end
  end)

  -- core.attempt raises on what says nothing of the call: Ctrl-C, memory that is out, what a device noticed late. A
  -- bare pcall is for who raises all again (error, restore, finish within a few lines), asks core.raised, or calls
  -- neither kernels nor scripts; those are counted here, and the counts only fall.
  local ALONE = { ["autograd/autocast"] = 1, ["data/pack"] = 1, init = 1, ["io/pt"] = 1,
    ["jit/trace"] = 1, ["linalg/init"] = 1, ["models/config"] = 1, ["models/generate"] = 1,
    ["models/text"] = 1, ["nn/functional/linear_cross_entropy"] = 1, ["nn/functional/loss"] = 1, ["nn/module"] = 1,
    ["nn/print"] = 1, ["nn/quant/fold"] = 1, ["nn/quantize"] = 1, options_spec = 1, ["tensor/create"] = 1 }
  it("asks core.attempt, not pcall", function()
    local many = {}
    for path in io.popen("find lua/perilune -name '*.lua' | sort"):lines() do
      local name = path:match "^lua/perilune/(.*)%.lua$"
      if not name:find "^command/" and not name:find "^repl/" and not name:find "^jupyter/" and not name:find "^help/"
        and not name:find "^jinja/" and not name:find "^http/" then
        local lines, n = {}, 0
        for line in io.lines(path) do lines[#lines + 1] = line end
        for i, line in ipairs(lines) do
          if line:find "%f[%w_.:]x?pcall%(" and not line:find "^%s*%-%-" then
            local after = table.concat(lines, "\n", i, math.min(i + 11, #lines))
            if not (after:find "%f[%w_]error%(" or after:find "%f[%w_]restore%(" or after:find "%f[%w_]finish%("
              or after:find "core%.raised") then n = n + 1 end
          end
        end
        if n > (ALONE[name] or 0) then many[#many + 1] = name .. ": " .. n end
      end
    end
    assert.equal("", table.concat(many, ", "))
  end)
end)
