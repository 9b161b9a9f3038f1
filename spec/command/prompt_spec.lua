-- SPDX-License-Identifier: MIT
-- The parts of the prompt without a terminal: the lexer, completion of cut-off code, what is kept and shown, values
-- that do not want to be looked at.

local T = require "perilune"
local lex = require "perilune.repl.lex"
local Completer = require "perilune.repl.complete"
local walk = require "perilune.repl.walk"
local show = require "perilune.repl.show"
local about = require "perilune.repl.about"
local random = require "spec.support.random"

local root = os.getenv "PERILUNE_ROOT" or "."
local plain = { width = 80, colour = false }

local function has(list, word)
  for _, w in ipairs(list) do if w == word then return true end end
  return false
end

local function candidates(env, text) return select(2, Completer.new(env):candidates(text)) end

-- Lua files of the tree.
local function sources(n)
  local pipe, list = assert(io.popen(("find '%s/lua' '%s/spec' -name '*.lua' | sort"):format(root, root))), {}
  for path in pipe:lines() do list[#list + 1] = path end
  pipe:close()
  if not n then return list end
  local some = {}
  for i = 1, n do some[i] = list[1 + i * 7919 % #list] end
  return some
end

local function read(path)
  local f = assert(io.open(path))
  local text = f:read "a"
  f:close()
  return text
end

describe("the lexer", function()
  it("cuts every Lua file of the tree into its tokens, none of them open", function()
    for _, path in ipairs(sources()) do
      local text, at = read(path):gsub("^#![^\n]*", ""), 1
      local tokens = lex.tokens(text)
      for i, t in ipairs(tokens) do -- plain ifs: there are half a million tokens
        local wrong = text:sub(at, t.from - 1):find "%S" or text:sub(t.from, t.to) ~= t.text
          or (t.open and (i < #tokens or t.kind ~= "comment"))
        if wrong then error(("%s, byte %d: %s"):format(path, t.from, t.text:sub(1, 40))) end
        at = t.to + 1
      end
      assert.is_nil(text:sub(at):find "%S", path)
    end
  end)

  it("takes any bytes", function()
    local draw = random.new(7)
    local function next_int(n) return draw:int(1, n) end
    local pieces = { "[[", "]]", "[==[", "--", "'", '"', "\\", "\n", "x", "1e", "0x", "..", "{", "}", "local ", "\0",
      "\255", "end ", ":", "(", "é", "T.", "x:" }
    for _ = 1, 2000 do
      local out = {}
      for i = 1, next_int(12) do out[i] = pieces[next_int(#pieces)] end
      local text = table.concat(out)
      lex.tokens(text)
      lex.top_locals(text)
      Completer.new { T = T }:candidates(text)
    end
  end)

  it("finds the locals outside of blocks", function()
    assert.same({ "a", "b", "f", "d" }, lex.top_locals [[
local a, b <const> = 1, 2
local function f() local inner = 1 end
do local hidden = 1 end
for i = 1, 2 do local also = i end
if a then local c = 1 elseif b then local e = 2 else local g = 3 end
local t <close> = nil
local d]])
  end)
end)

describe("statements with an expression behind them", function()
  it("give its value, where it surely begins there", function()
    local Session = require "perilune.repl.session"
    local session = Session.new { env = { f = print, g = print }, style = plain }
    for text, want in pairs { ["x = 1; f(x)"] = "both", ["local x = 1\nf(x)"] = "both", ["x = f\n(g)(1)"] = "statement",
      ["x = f\n'text'"] = "statement", ["for i = 1, 2 do f(i) end"] = "statement", ["f(1)"] = "expression",
      ["x = g\n.y"] = "statement", ["do x = 1; f(x) end"] = "statement" } do
      assert.equal(want, (select(2, session:compile(text, "=input"))), text)
    end
  end)
end)

describe("completion", function()
  it("offers every name of T from all but its last letter", function()
    local missing = {}
    for name in pairs(T) do
      if name:find "^%a" and not has(candidates({ T = T }, "T." .. name:sub(1, -2)), name) then
        missing[#missing + 1] = name
      end
    end
    assert.same({}, missing)
  end)

  it("takes real code cut anywhere, in less than 20 ms", function()
    local env, worst = setmetatable({ T = T, nn = T.nn, optim = T.optim }, { __index = _G }), 0
    candidates(env, "T.x{a")
    for _, path in ipairs(sources(12)) do
      local text = read(path):sub(1, 3000)
      for cut = 1, #text, 61 do
        local start = os.clock()
        candidates(env, text:sub(1, cut))
        worst = math.max(worst, os.clock() - start)
      end
    end
    assert.is_true(worst < (os.getenv "PERILUNE_SANITIZE" and 0.4 or 0.1), worst .. " s") -- alone: 3 ms
  end)

  it("knows what expressions are", function()
    local env = { T = T, nn = T.nn, x = T.ones(2, 3), net = T.nn.Sequential(T.nn.Linear(2, 2)), s = "text",
      t = { list = { { deep = 1 } } } }
    for text, word in pairs {
      ["x:su"] = "sum", ["x.gr"] = "grad", ["x[1]:sof"] = "softmax", ["(x + 1)"] = false, ["x:exp():lo"] = "log",
      ["T.ones(2):me"] = "mean", ["T.randn(2, 3)[1]:t"] = "tanh", ["net:par"] = "parameters",
      ["nn.Linear(2, 3):st"] = "state_dict", ["s:up"] = "upper", ["('a'):re"] = "rep", ["t.li"] = "list",
      ["t.list[1].de"] = "deep", ["local value = 1; val"] = "value", ["T.log.ten"] = "tensorboard",
      ["T.metrics.acc"] = "accuracy", ["x:sum{ke"] = "keepdim=", ["nn.Conv2d(1, 2, 3, {pad"] = "padding=",
      ["T.optim.SGD(p, {mom"] = "momentum=", ["T.meshgrid(a, {ind"] = "indexing=", ["T.zeros(2, {dtype = 'bf"] = "bf16",
      ["x:pad({1, 1}, {mode = 'ref"] = "reflect", ["whi"] = "while", ["T.load('nowhere/"] = false,
      ["-- a comment T.so"] = false, ["'T.so"] = false, ["unknown.na"] = false, ["x:nothing_like_it"] = false,
    } do
      local list = candidates(env, text)
      if word then
        assert.is_true(has(list, word), text .. " gives " .. table.concat(list, " ", 1, math.min(#list, 9)))
      else
        assert.same({}, list, text)
      end
    end
  end)

  it("never runs what the user wrote", function()
    local function ran() error "it ran" end
    local hostile = setmetatable({ alpha = 1 }, { __index = ran, __len = ran, __pairs = ran, __call = ran, __eq = ran,
      __tostring = ran, __name = 7, __lazy = { beta = true } })
    local first, second = {}, {}
    setmetatable(first, { __index = second })
    setmetatable(second, { __index = first })
    local locked = setmetatable({ gamma = 1 }, { __metatable = false, __index = { delta = 1 } })
    local behind = setmetatable({}, { __index = hostile })
    local env = setmetatable({ h = hostile, loop = first, locked = locked, g = behind }, { __index = ran })
    assert.same({ "alpha" }, candidates(env, "h.al"))
    assert.same({}, candidates(env, "h.be"))
    assert.same({}, candidates(env, "h.alpha.x"))
    assert.same({}, candidates(env, "loop.x"))
    assert.same({ "delta" }, candidates(env, "locked.de"))
    assert.same({ "alpha" }, candidates(env, "g.al"))
    assert.same({}, candidates(env, "nope.x"))
    about.value(hostile)
    show.brief(hostile)
    assert.is_false((walk.resolve("h.nothing.more", env)))
  end)
end)

describe("values", function()
  it("are shown as one would type them", function()
    for _, case in ipairs {
      { { 1, 2, { a = "b" } }, '{ 1, 2, { a = "b" } }' }, { {}, "{}" },
      { "te\txt", [["te\txt"]] }, { "a\nb", "a\nb" },
      { { "a\nb\"" }, '{ "a\\nb\\"" }' },
      { { ["not a name"] = 1, ["end"] = 2 }, '{ ["end"] = 2, ["not a name"] = 1 }' },
      { { [2.5] = true }, "{ [2.5] = true }" },
      { { { { { { 1 } } } } }, "{ { { { {…} } } } }" }, { { "\255" }, '{ "\\xff" }' }, { 1.5, "1.5" }, { nil, "nil" },
    } do assert.equal(case[2], show.value(case[1], plain)) end
    local cycle = { name = "c" }
    cycle.me = cycle
    assert.equal('{ me = {… itself}, name = "c" }', show.value(cycle, plain))
    assert.equal("{ f32[2,3] x∈[1,1] μ=1 σ=0 NaN:0 }", show.value({ T.ones(2, 3) }, plain))
    assert.equal("{ {1., 1.}  -- f32[2] cpu }", show.value({ T.ones(2) }, plain))
  end)

  it("stay within the width and a bounded size", function()
    local big = {}
    for i = 1, 100000 do big[i] = { i, tostring(i):rep(3) } end
    local start = os.clock()
    local text = show.value(big, { width = 40 })
    assert.is_true(os.clock() - start < 1)
    assert.is_true(#text < 10000)
    for line in text:gmatch "[^\n]+" do assert.is_true(#line <= 40, line) end
    assert.truthy(text:find("… 99950 more", 1, true))
    assert.truthy(#show.value({ ("x"):rep(1000000) }, plain) < 5000)
  end)

  it("in colour say the same", function()
    for _, v in ipairs { { 1, "two", { three = true } }, "text", 4.5, T.tensor { 1, 0 / 0, 1 / 0 } } do
      local coloured = show.value(v, { width = 80, colour = true })
      assert.equal(show.value(v, plain), (coloured:gsub("\27%[%d*m", "")))
    end
    assert.truthy(show.value(T.tensor { 0 / 0 }, { width = 80, colour = true }):find("\27[31m", 1, true))
  end)

  it("are explained: names, values, methods", function()
    local env = { T = T, nn = T.nn, x = T.ones(2), f = function(a, b) return a + b end }
    assert.truthy(about.name("T.softmax", env):find("T.softmax(x, dim=-1", 1, true))
    assert.truthy(about.name("x:softmax", env):find("T.softmax(x, dim=-1", 1, true))
    assert.truthy(about.name("softmax", env):find(":softmax())", 1, true))
    assert.truthy(about.name("nn.Linear", env):find("in_features: integer", 1, true))
    assert.truthy(about.name("x", env):find("f32[2]", 1, true))
    assert.truthy(about.name("f", env):find("f(a, b)", 1, true))
    assert.truthy(about.name("", env):find(":help", 1, true))
    assert.is_false(select(2, about.name("sotfmax", env)))
    assert.truthy(about.name("sotfmax", env):find("did you mean softmax?", 1, true))
    assert.is_false(select(2, about.name("1 + 1", env)))
  end)
end)
