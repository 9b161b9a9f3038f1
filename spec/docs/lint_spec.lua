-- SPDX-License-Identifier: MIT
-- What is said of scripts before they run: of what is always true, false or nil and hardly meant so; and of nothing
-- else, which all files of this repository are asked for.

local T = require "perilune"
local lint = require "perilune.help.lint"
local term = require "spec.support.terminal"

local prelude = [[
local T = require "perilune"
local nn, optim, F, data = T.nn, T.optim, T.nn.F, T.data
local x, y = T.rand(4, 2), T.tensor({ 1, 2, 3, 1 }, { dtype = "i64" })
local net = nn.Linear(2, 3)
local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = 2 })
]]
local line = select(2, prelude:gsub("\n", "\n")) + 1

local function said(code)
  local list = lint.check(prelude .. code, _G)
  local texts = {}
  for i, found in ipairs(list) do texts[i] = ("%d %s: %s"):format(found.line, found.kind, found.text) end
  return table.concat(texts, "\n"), list
end

local wrong = {
  ["if x:gt(0):all() then end"] = "x:gt(0):all() is a tensor, and so true whatever it holds: x:gt(0):all():item()",
  ["while not x:isnan():any() do break end"] = "is a tensor, and so true",
  ["local loss = F.cross_entropy(net(x), y) if loss:isnan() then error 'NaN' end"] = "loss:isnan() is a tensor",
  ["if T.isnan(x):any() and true then end"] = "is a tensor, and so true",
  ["local text = x:gt(0):any() and 'yes' or 'no'"] = "is a tensor, and so true",
  ["repeat local done = x:lt(1) until done:all()"] = "done:all() is a tensor",
  ["local function f(v) if v:eq(1):all() then return v end end"] = "is a tensor, and so true",
  ["if x.is_cuda then end"] = "x.is_cuda is a method, not called, so this is always true: x:is_cuda()",
  ["if not x.is_contiguous then end"] = "so this is always false: x:is_contiguous()",
  ["if x.dtype == 'f32' then end"] = "x.dtype is a method, not called, so this is always false: x:dtype()",
  ["assert(x.dtype == y.dtype)"] = "so this is always true: x:dtype()",
  ["if 'cuda' == x.device then end"] = "so this is always false: x:device()",
  ["function net:forward(v) if v.dtype ~= 'f32' then v = v:detach() end return v:view(-1) end"] =
    "v.dtype is a method, not called, so this is always true",
  ["local device = T.cuda.is_available and 'cuda' or 'cpu'"] = "T.cuda.is_available is a function, not called",
  ["if nn.is_module then end"] = "nn.is_module is a function, not called, so this is always true: nn.is_module()",
  ["if x:shape() == y:shape() then end"] = "two tables are never equal, so this is always false",
  ["if x:size() ~= { 4, 2 } then end"] = "two tables are never equal, so this is always true",
  ["local right = 0 for i = 1, 4 do if y[i] == 3 then right = right + 1 end end"] =
    "y[i] is a tensor, which == never finds equal to a number",
  ["local p = net(x):argmax(2) for i = 1, #p do if p[i] == y[i] then print(i) end end"] = "are the same object",
  ["for a, b in loader do if b[1] == 2 then print(a) end end"] = "b[1] is a tensor",
  ["if x:sum() == 0 then end"] = "x:sum() is a tensor, which == never finds equal to a number",
  ["if x == x:clone() then end"] = "are the same object, so this is always false",
  ["print((x * 2)[1] ~= 3)"] = "is a tensor, which == never finds equal to a number, so this is always true",
  ["nn.Linear(2, 2, { bias = False })"] = "False is no value of Lua's but a variable that holds nil: false",
  ["local ok = x:gt(0):all() if ok then end"] = "ok is a tensor, and so true",
  ["local t = { x:gt(0):any() and 1 or 2 }"] = "is a tensor, and so true",
  ["local n = x:shape()[0]"] = "x:shape()[0] is nil: a list counts from 1, and from its front alone; x:size(1)",
  ["local s = x:size() T.zeros(s[-1])"] = "s[-1] is nil: a list counts from 1, and from its front alone; x:size(-1)",
  ["print(x:shape())"] = 'x:shape() is a list, of which print tells its address: table.concat(x:shape(), ", ")',
  ["print('sizes', (x * 2):size(), 1)"] = "(x * 2):size() is a list, of which print",
  ["local s = x:shape() print(1, s)"] = "s is a list, of which print",
  ["print(x:totable())"] = "print(x) shows what a tensor holds",
  ["x:requires_grad_(True)"] = "True is no value of Lua's",
  ["x:sum(None)"] = "None is no value of Lua's but a variable that holds nil: nil",
  ["T.zeros(2, { dtype = f64 })"] = "the variable f64 gets no value anywhere and is nil",
  ["local lr = 0.1 optim.SGD(net:parameters(), { lr = l })"] = "the variable l gets no value anywhere",
}

local right = {
  "local function f(o) if o:all() or o.items:any() then end end",
  "print(x:shape()[1], x:size(-1), #x:shape(), table.concat(x:shape()))", "local s = x:shape() s[0] = 3 print(s[1])",
  "local function print(v) return v end print(x:shape())", "local ok if y then ok = x:gt(0):all() end if ok then end",
  "local ok = x:gt(0):all() if x then ok = nil end if ok then end", "print(x:totable()[1], (x:shape())[2])",
  "if x:gt(0):all():item() then end", "if x:is_cuda() then end", "if x.grad == nil then end", "if x == nil then end",
  "local z = x and x:sum() or 0", "local mask = nil if mask == nil or mask then mask = x end",
  "local z = x.requires_grad and x:detach() or x", "if not x.requires_grad then end", "if x:sum():item() == 0 then end",
  "if x:dtype() == 'f32' and x:size(1) == 4 then end", "if T.equal(x, x) and T.allclose(x, x) then end",
  "local total = 0 total = total + x:sum() if total == 0 then end", "if #x:shape() == 2 then end",
  "local w, cfg = y, { dtype = 'f32' } if cfg.dtype == 'f32' then end if w == y then end",
  "local function f(opts) if opts.device == 'cpu' then opts.lr = 1 end end",
  "local function f(v) if type(v) == 'number' and v == 3 then return 1 end return v:backward() end",
  "local function f(m) m:update(1) if m:mean() == 0 then return 1 end end",
  "local Meter = {} function Meter.mean() return 1 end function Meter.new() return Meter end "
    .. "if Meter.new():mean() == 1 then end",
  "local names = { 'a' } for i, name in ipairs(names) do if names[i] == name then end end",
  "if T.cuda and T.cuda.is_available() then end", "local jit = T.jit and T.jit(print)", "if T.jit then end",
  "if net.training == true then end", "for i = 1, 4 do if y:get(i) == 3 then end end", "f = 3 print(f)",
  "print(maybe and 1 or 2)", "local t = { a = 1, b = 2 } if t.a == 1 then end", "local True = true print(True)",
  "if x[1]:item() == 3 then end", "if tostring(x) == '' then end", "local s = x:shape() if s[1] == 4 then end",
  "local k = 'sin_' if x[k] then x[k](x) end", "if getmetatable(x) == getmetatable(y) then end",
  "local d = T.distributions.Normal(0, 1) if d:mean() == 3 then end", "goto on ::on::",
  "if x:contiguous() == x or x == x:to 'f32' or x:add_(1) == x then end",
  "local act = T.relu if T.relu == act then end",
  "local f = x.relu if x.relu == f then end", "print('\\z\n if x == {} then \\z\n')", "print('\\\r\n if x == {} then')",
  "local a <const>, b <close> = 0xA-1, nil print(a // 2, a ~ 3, [==[ ]] x == {} ]==])",
}

-- Of a variable that holds several kinds nothing is sure: ways to assign times what is asked.
local assigned = {
  "x = 3", "x, net.y = 3, 4", "net.y, x = 4, 3", "x, net[1] = 3, 4", "x, (net).y = 3, 4", "x, net('a').b = 3, 4",
}
local places = {
  "%s", "do %s end", "local function f() %s end", "local t = { f = function() %s end, a = 1 }", "if y then %s end",
  "local t = { 1, { f = function() for i = 1, 2 do %s end if y then end repeat until y end } }", "repeat %s until y",
  "T.vmap { f = function() while y do %s end end, b = 2 }",
}
local either = { -- a parameter that is a tensor, or something else
  "if v == 'none' then return end", "if v == 0 then return end", "if v ~= false then return end",
  "if true == v then return end",
}

describe("what a script does without meaning to", function()
  for code, part in pairs(wrong) do
    it("is told: " .. code, function()
      local text, list = said(code)
      assert.equal(1, #list, text)
      assert.truthy(text:find(part, 1, true), text)
      assert.equal(line, list[1].line)
    end)
  end

  for _, code in ipairs(right) do
    it("is not seen in " .. code, function() assert.equal("", (said(code))) end)
  end

  for _, place in ipairs(places) do
    for _, code in ipairs(assigned) do
      local set = place:format(code)
      it("is not seen where a variable changes: " .. set, function()
        assert.equal("", (said(set .. " if x == 3 then end")))
        assert.equal("", (said(set:gsub("%f[%w]x%f[%W]", "made") .. " print(made, { made })")))
      end)
    end
  end

  for _, code in ipairs(either) do
    it("is not seen in what asks which of two kinds a parameter has: " .. code, function()
      assert.equal("", (said("local function f(v) " .. code .. " return v:backward() end")))
    end)
  end

  it("says nothing of methods that give the tensor itself", function()
    local n = 0
    for name in pairs(T.core.metatable().methods) do
      local v = T.ones(1, 1)
      local fine, same = pcall(function() return rawequal(v[name](v), v) end)
      if fine and same then
        n = n + 1
        assert.equal("", (said(("local same = x:%s() == x"):format(name))))
        assert.equal("", (said(("local same = x == x:%s()"):format(name))))
      end
    end
    assert.is_true(n >= 20, n)
  end)

  it("counts a script's lines from a mark of its encoding, through a line for the system", function()
    for _, head in ipairs { "#!/usr/bin/env it's x == {}\n", "\xEF\xBB\xBF", "\xEF\xBB\xBF# '\n" } do
      local list = lint.check(head .. prelude .. "if x:gt(0):all() then end", _G)
      assert.equal(1, #list)
      assert.equal(line + select(2, head:gsub("\n", "")), list[1].line)
    end
  end)

  it("is looked for in steps that grow with the text, however it is nested", function()
    local function steps(n) -- of Lua's machine
      local texts = { "local v = x" .. (":abs()"):rep(n), "local v = " .. ("1 + "):rep(n) .. "x",
        ("do local a = f(x, 1) end "):rep(n), "local t = { " .. ("{ 1, 'a' }, "):rep(n) .. "}" }
      local list = {}
      for i, code in ipairs(texts) do
        local count = 0
        local hook, mask, every = debug.gethook()
        debug.sethook(function() count = count + 1 end, "", 1000)
        lint.check(prelude .. code, _G)
        debug.sethook(hook, mask, every)
        list[i] = count
      end
      return list
    end
    local few, many = steps(500), steps(2000)
    for i, n in ipairs(many) do assert.is_true(n < 8 * few[i], ("%d: %d, then %d"):format(i, few[i], n)) end
  end)

  it("is told of every method that tells whether a tensor is something", function()
    local n = 0
    for name in pairs(T.core.metatable().methods) do
      if name:find "^is_" then
        n = n + 1
        assert.truthy(said(("if x.%s then end"):format(name)):find(("always true: x:%s()"):format(name), 1, true), name)
      end
    end
    assert.is_true(n >= 5)
  end)

  it("is nowhere in this repository", function()
    local list, blocks = {}, 0
    local function look(path, code)
      for _, found in ipairs(lint.check(code, _G)) do
        if found.kind == "nothing" and path:find "%.md$" then goto continue end -- blocks go on from earlier ones
        list[#list + 1] = ("%s:%d: %s"):format(path, found.line, found.text)
        ::continue::
      end
    end
    local files = term.shell "find README.md CONTRIBUTING.md docs examples bench lua -name '*.lua' -o -name '*.md'"
    for path in files:gmatch "[^\n]+" do
      local f = assert(io.open(path))
      local text = f:read "a"
      f:close()
      if path:find "%.lua$" then look(path, text) end
      for code in path:find "%.md$" and text:gmatch "\n```lua\n(.-)\n```" or function() end do
        blocks = blocks + 1
        look(path, 'local T = require "perilune"; local nn, optim = T.nn, T.optim; ' .. code)
      end
    end
    assert.is_true(blocks > 50)
    assert.equal("", table.concat(list, "\n"))
  end)

  it("is told by the command before a script runs, unless PERILUNE_LINT is 0", function()
    if not term.there() then return pending(term.missing "perilune") end
    local path = os.tmpname()
    term.write(path, prelude .. "if x:gt(0):all() then print 'ran' end\n")
    local out = term.shell(("%s run %s 2>&1"):format(term.quote(term.command), path))
    assert.truthy(out:find(("warning: %s:%d: x:gt(0):all() is a tensor"):format(path, line), 1, true), out)
    assert.truthy(out:find("\nran", 1, true), out)
    assert.equal("ran\n", term.shell(("PERILUNE_LINT=0 %s run %s 2>&1"):format(term.quote(term.command), path)))
    term.write(path, "if x == { 1 } then print 'ran' end print 'no perilune'\n")
    assert.equal("no perilune\n", term.shell(("%s run %s 2>&1"):format(term.quote(term.command), path)))
    os.remove(path)
  end)
end)
