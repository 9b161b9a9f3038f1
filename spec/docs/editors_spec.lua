-- SPDX-License-Identifier: MIT
-- Correct programs have no findings in an editor, and wrong ones have one: the examples, the benchmarks, the blocks of
-- the documents and all examples of the reference are judged by the definitions, first by
-- spec/support/editors/names.lua, which knows names, methods and options, and, where one is installed, by language
-- servers (lua-language-server, emmylua_ls), which know types.

local T = require "perilune"
local docs = require "spec.support.docs"
local editor = require "spec.support.editors.names"
local langserver = require "spec.support.editors.server"

local root = os.getenv "PERILUNE_ROOT" or "."
local inventory = dofile(root .. "/docs/make/inventory.lua")
local text = dofile(root .. "/docs/make/meta.lua")(inventory)
local definitions = editor.definitions(text)

local HEAD = 'local T = require "perilune"\nlocal nn, optim = T.nn, T.optim\n'

local function read(path)
  local f = assert(io.open(path))
  local s = f:read "a"
  f:close()
  return s
end

-- All correct programs: list of {name, text}
local programs = {}
local function files(pattern)
  local pipe = assert(io.popen(("cd '%s' && ls %s"):format(root, pattern)))
  local list = {}
  for line in pipe:lines() do list[#list + 1] = line end
  pipe:close()
  return list
end
for _, path in ipairs(files "examples/*.lua bench/*.lua") do
  programs[#programs + 1] = { path, read(root .. "/" .. path) }
end
for _, path in ipairs(files "README.md docs/*.md docs/tutorial/*.md bench/README.md") do
  for _, b in ipairs(docs.blocks(root .. "/" .. path)) do
    if b.lang == "lua" and b.mark ~= "raises" and not path:find "notebooks" then -- whose cells share globals
      local head = b.code:find('require "perilune"', 1, true) and "" or HEAD
      programs[#programs + 1] = { ("%s, block at line %d"):format(path, b.line), head .. b.code }
    end
  end
end
do
  local parts = {}
  local function flush(name)
    programs[#programs + 1] = { "examples of the reference up to " .. name, HEAD .. table.concat(parts, "\n") }
    parts = {}
  end
  local last
  for _, e in ipairs(inventory.all()) do
    if e.example and not e.same then
      parts[#parts + 1] = ("do -- %s\n%s\nend"):format(e.name, e.example)
      last = e.name
      if #parts == 100 then flush(last) end
    end
  end
  flush(last)
end

-- Wrong lines, each behind SETUP. Who finds it: "names" what needs no inference; "types" a language server.
local SETUP = HEAD .. [[
local x, y, net = T.ones(2, 3), T.ones(2, 3), nn.Linear(3, 3)
local opt = optim.SGD(net:parameters(), { lr = 0.1 })
print(x, y, net, opt)
]]
local WRONG = {
  { "x:sofmax(1)", "both" }, { "T.sofmax(x)", "both" }, { "nn.Liner(2, 3)", "both" },
  { "optim.Adm(net:parameters())", "both" }, { "nn.F.reluu(x)", "both" }, { "T.linalg.invv(x)", "both" },
  { "T.data.DataLoadr(x)", "both" }, { "T.metrics.acuracy(x, y)", "both" }, { "print(x:sum():itm())", "both" },
  { "print((x - y):asb())", "both" }, { "print((-x):exq())", "both" }, { "print(x[1]:asb())", "both" },
  { "print((2 * x[1]):asb())", "both" }, { "print(net(x):sofmax(-1))", "both" }, { "opt:zero_grads()", "both" },
  { 'local h = T.fit(net, {}) print(h:colum("loss"))', "both" },
  { "local m = T.metrics.accuracy() m:updat(x, y)", "both" }, { 'local f = T.plot({ 1, 2 }) f:savee("x.svg")', "both" },
  { "local s = optim.lr_scheduler.StepLR(opt, 3) s:stp()", "both" },
  { 'x:sum("x")', "types" }, { 'x:sum(1, "yes")', "types" }, { "x:sum { keepdim = 3 }", "types" },
  { 'nn.Linear("2", 3)', "types" }, { 'nn.Dropout("half")', "types" }, { 'T.zeros("two")', "types" },
  { 'T.fit("net", {})', "types" }, { 'optim.SGD(net:parameters(), { lr = "fast" })', "types" },
  { 'T.manual_seed("one")', "types" }, { 'x:reshape("2", {})', "types" }, { 'T.cat("x")', "types" },
  { "local n = 1 n = x:shape() print(n)", "types" }, { 'print(("a"):rep(x:shape()))', "types" },
  { "print(math.floor(x))", "types" }, { 'T.randn({ 2, 3 }, { dtype = 64 })', "types" },
  { "x:sum { keepdimm = true }", "names" }, { "nn.Linear(2, 3, { bais = false })", "names" },
  { 'T.randn({ 2, 3 }, { dtyp = "f64" })', "names" }, { "T.zeros(2, 3, { dvice = 1 })", "names" },
  { "optim.Adam(net:parameters(), { weight_deca = 0.1 })", "names" },
  { "T.fit(net, { train = {}, epoch = 3 })", "names" }, { "T.data.DataLoader(x, { batch = 3 })", "names" },
  { "local F = nn.F F.gelu(x, { aproximate = 'tanh' })", "names" },
  { "T.jit(net, { falback = true })", "names" },
}

describe("names in an editor", function()
  it("are known in every correct program, its options and its methods, too", function()
    local list = {}
    for _, p in ipairs(programs) do
      for _, fault in ipairs(editor.check(definitions, p[2])) do
        -- T.clock is asked for by benchmarks that run with older versions, which had it
        if not (p[1]:find "^bench/" and fault:find "T.clock") then list[#list + 1] = p[1] .. ", " .. fault end
      end
    end
    assert.is_true(#programs > 80, #programs .. " programs")
    assert.equal("", table.concat(list, "\n"))
  end)

  it("are unknown where they are misspelt", function()
    local missed, n = {}, 0
    for _, w in ipairs(WRONG) do
      local found = #editor.check(definitions, SETUP .. w[1]) > 0
      if w[2] ~= "types" then
        n = n + 1
        if not found then missed[#missed + 1] = w[1] end
      end
    end
    assert.equal(0, #editor.check(definitions, SETUP))
    assert.is_true(n > 25)
    assert.equal("", table.concat(missed, "\n"))
  end)
end)

-- What servers say of correct programs, with the reason.
local function allowed(d, line, name)
  local code, message = d.code, d.message
  if name:find "^bench/" then return true end -- which read arguments and files without types, and ask older versions
  -- What is assigned in a branch, and what pcall gives.
  if message:find("found `%S+%?`") or line:find "pcall" or line:find "message:" then return true end
  if code == "undefined-field" then
    local field = message:match "`([^`]*)`"
    -- Arithmetic of values without a type is a number to the server: function(x) return (x * x):sum() end
    if T.core.metatable().methods[field] and line:find("%)[^)]*:" .. field .. "%f[%W]") then return true end
    if field:find "[,:]" or field:find "^%[" then return true end -- x["2, 1:2"]: else misspelt methods were such
    return field == "is_a" or line:find "loss:backward" -- shown not to be there; loss = 0 before
  end
  -- What a closure or a loop assigns, and lists of Lua itself, may be nil to the server; tonumber and io.open may.
  if code == "need-check-nil" then return not line:find "T%.%l[%w_.]*%b():" end
  if code == "cast-local-type" then return line:find "= nil" or line:find "loss = loss +" end -- loss = 0 before
  if message:find("type `never`", 1, true) or message:find("|never", 1, true) then return true end
  if code == "assign-type-mismatch" then -- local total = 0, then total = total + loss:item(); net = nil at its end
    return message:find("`number` to `integer`", 1, true) ~= nil or line:find "= nil" ~= nil
      or line:find "loss = loss %+" ~= nil or message:find("to `[^`]*%d%)?%?`") ~= nil or line:find "p %- 0.1" ~= nil
  end
  if code == "inject-field" then return line:find "group%[" ~= nil end -- a table chosen by `and … or …`
  if code == "unnecessary-assert" then return line:find "popen" or line:find "%[kind%]" end -- fails without memory
  return false
end

local IGNORED = { unused = true, ["preferred-local-alias"] = true, ["redefined-local"] = true,
  ["unnecessary-if"] = true }

describe("a language server", function()
  local function on_path(name)
    local pipe = assert(io.popen(("command -v %s 2> /dev/null"):format(name)))
    local path = pipe:read "l"
    pipe:close()
    return path
  end

  local dir
  local function write(name, what)
    local f = assert(io.open(dir .. "/" .. name, "w"))
    f:write(what)
    f:close()
  end
  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    assert(os.execute(("mkdir '%s'"):format(dir)))
  end)
  after_each(function() os.execute(("rm -rf '%s'"):format(dir)) end)

  -- of(name of a file, its text) → findings
  local function judge(of)
    local faults, missed = {}, {}
    for i, p in ipairs(programs) do
      local lines = {}
      for line in (p[2] .. "\n"):gmatch "([^\n]*)\n" do lines[#lines + 1] = line end
      for _, d in ipairs(of(("program%d.lua"):format(i), p[2])) do
        if not IGNORED[d.code] and not allowed(d, lines[d.line], p[1]) then
          faults[#faults + 1] = ("%s: %s [%s] | %s"):format(p[1], d.message:match "[^\n]*", d.code, lines[d.line])
        end
      end
    end
    for i, w in ipairs(WRONG) do
      local found = false
      for _, d in ipairs(of(("wrong%d.lua"):format(i), SETUP .. w[1])) do
        found = found or not IGNORED[d.code] and d.line > 5
      end
      if not found and w[2] ~= "names" then missed[#missed + 1] = w[1] end
    end
    assert.equal("", table.concat(faults, "\n"))
    assert.equal("", table.concat(missed, "\n"))
  end

  it("finds nothing in correct programs, and something in wrong ones", function()
    local server = on_path "emmylua_ls"
    if not server then
      print "skipped: emmylua_ls, a language server for Lua, is not on PATH"
      return pending "no language server"
    end
    write("perilune.lua", text)
    write(".luarc.json", '{"runtime":{"version":"Lua 5.4"}}')
    local s = langserver.open("'" .. server .. "'", dir)
    local probe = 'local T = require "perilune"\nT.sofmax()\n'
    local tries = 0
    repeat -- until it has read the definitions
      os.execute "sleep 0.5"
      tries = tries + 1
      local ready = false
      for _, d in ipairs(langserver.findings(s, ("probe%d.lua"):format(tries), probe)) do
        ready = ready or d.code == "undefined-field"
      end
    until ready or tries > 100
    assert.is_true(tries <= 100, "the server read no definitions")
    judge(function(name, what) return langserver.findings(s, name, what) end)
    langserver.close(s)
  end)

  it("of the other kind does, too, and finds nothing in the definitions", function()
    local server = on_path "lua-language-server"
    if not server then
      print "skipped: lua-language-server is not on PATH"
      return pending "no language server"
    end
    assert(os.execute(("mkdir '%s/library'"):format(dir)))
    write("library/perilune.lua", text)
    write(".luarc.json", ('{"runtime.version":"Lua 5.4","workspace.library":["%s/library"]}'):format(dir))
    for i, p in ipairs(programs) do write(("program%d.lua"):format(i), p[2]) end
    for i, w in ipairs(WRONG) do write(("wrong%d.lua"):format(i), SETUP .. w[1]) end
    local found = langserver.check("'" .. server .. "'", dir)
    assert.is_true(#(found["wrong1.lua"] or {}) > 0, "the server read no definitions")
    judge(function(name) return found[name] or {} end)
    assert.same({}, langserver.check("'" .. server .. "'", dir .. "/library"))
  end)
end)
