-- SPDX-License-Identifier: MIT
-- T.help knows every public function, and what it says of those that are no ops is true: their examples run.

local T = require "perilune"
local docs = require "spec.support.docs"
local symbols = require("perilune.help.pages").all()

local ops = {}
for _, info in ipairs(T.core.ops()) do ops[info.name] = info end

-- Names of T that can be called and are no op or its form in place.
local function others()
  local list = {}
  for name in pairs(T.core.lazy()) do -- loaded at first use, which is now
    assert(T[name] ~= nil, name)
  end
  for name, value in pairs(T) do
    local meta = type(value) == "table" and getmetatable(value)
    local callable = type(value) == "function" or (meta and meta.__call)
    if callable and not ops[name] and not ops[name:match("^(.*)_$")] then list[#list + 1] = name end
  end
  for _, space in ipairs { "metrics", "log", "plot", "data" } do
    local file = space == "metrics" and "tools.metrics" or space
    for name, value in pairs(require("perilune." .. file)) do
      local inner = type(value) == "table" and getmetatable(value) == nil and value or { [""] = value }
      for key in pairs(inner) do list[#list + 1] = space .. "." .. name .. (key ~= "" and "." .. key or "") end
    end
  end
  local nn, optim = T.nn, T.optim
  local function add(space, t, keep)
    for name, value in pairs(t) do
      local meta = type(value) == "table" and getmetatable(value)
      local callable = type(value) == "function" or (meta and meta.__call) or name == "LRScheduler"
        or name == "Optimizer" or name == "Distribution"
      if callable and keep(name, value) then list[#list + 1] = space .. "." .. name end
    end
  end
  local function all() return true end
  add("nn", nn, all)
  add("nn.F", nn.F, function(name) return T[name] == nil end)
  add("nn.init", nn.init, all)
  add("nn.utils", nn.utils, all)
  add("nn.utils.rnn", nn.utils.rnn, all)
  add("nn.utils.prune", nn.utils.prune, all)
  add("nn.utils.parametrize", nn.utils.parametrize, all)
  add("nn.utils.parametrizations", nn.utils.parametrizations, all)
  add("distributions", T.distributions, all)
  add("linalg", T.linalg, function(name) return not ops["linalg." .. name] end)
  add("special", T.special, all)
  add("cuda", T.cuda, all)
  add("models", T.models, all)
  add("onnx", T.onnx, all)
  add("distributed", T.distributed, all)
  add("nn.parallel", nn.parallel, all)
  add("nn.quant", nn.quant, all)
  add("optim", optim, all)
  add("optim.lr_scheduler", optim.lr_scheduler, all)
  add("optim.compat", optim.compat, all)
  add("optim.swa_utils", optim.swa_utils, all)
  if not rawget(T, "GradScaler") then list[#list + 1] = "GradScaler" end
  table.sort(list)
  return list
end

-- An op whose function is written in Lua: T.zeros takes more forms than the op that it calls.
local function wrapped(name) return ops[name] ~= nil and rawget(T, name) ~= T.core[name] end

describe("T.help", function()
  it("has a page for every public function that is no op, and for nothing else", function()
    local missing, known = {}, {}
    for _, name in ipairs(others()) do
      known[name] = true
      if not symbols[name] then missing[#missing + 1] = name end
    end
    assert.same({}, missing)
    local unknown = {}
    local methods = T.core.metatable().methods
    for name in pairs(symbols) do
      if not known[name] and methods[name] == nil and not wrapped(name) then unknown[#unknown + 1] = name end
    end
    assert.same({}, unknown)
    assert.is_true(#others() >= 95, "only " .. #others() .. " functions found")
  end)

  it("has a page for every method of a tensor", function()
    local missing, count = {}, 0
    for name in pairs(T.core.metatable().methods) do
      if name:sub(1, 1) ~= "_" then
        count = count + 1
        local page = T.help_text(name)
        local says = symbols[name] or ops[name] or ops[name:match "^(.*)_$"]
        if not says or page:find("^There is no ") or page:find("^no op named") then missing[#missing + 1] = name end
      end
    end
    table.sort(missing)
    assert.same({}, missing)
    assert.is_true(count > 400, "only " .. count .. " methods found")
  end)

  it("has a page for every method of a class, by its name and by its value", function()
    local missing, wrong = {}, {}
    local all = require("perilune.help.methods").all()
    for _, m in ipairs(all) do
      local path, name, f = m[1], m[2], m[3]
      local full = path .. ":" .. name
      if not m.text then missing[#missing + 1] = full end
      local page, of_value = T.help_text(path .. "." .. name), T.help_text(f)
      local head = (path:find "^nn%." or path:find "^optim%." or path == "Tokenizer") and full or "T." .. full
      head = { head .. "(", (head:gsub(":", ".")) .. "(" }
      if page:sub(1, #head[1]) ~= head[1] and page:sub(1, #head[2]) ~= head[2] then
        wrong[#wrong + 1] = full .. ": " .. page
      end
      if not of_value:find("[:.]" .. name .. "[({]") and not of_value:find "^%S*%(" then
        wrong[#wrong + 1] = of_value
      end
    end
    assert.same({}, missing)
    assert.same({}, wrong)
    assert.is_true(#all > 450, #all .. " methods")
    -- what says nothing itself has a sentence of its class, and no other's
    local by_text, shared = {}, {}
    for _, m in ipairs(all) do
      local other = by_text[m.text]
      if not require("perilune.help.source").of_function(m[3]) then
        if other and other[3] ~= m[3] then
          shared[#shared + 1] = ("%s:%s %s:%s"):format(m[1], m[2], other[1], other[2])
        end
        by_text[m.text] = m
      end
    end
    assert.same({}, shared)
    local page = T.help_text "nn.Module.parameters"
    assert.truthy(page:find("nn.Module:parameters()", 1, true))
    local by_value = T.nn.Linear(1, 1).parameters
    for _, name in ipairs { "Module:parameters", "T.nn.Linear.parameters", "parameters", by_value } do
      assert.equal(page, T.help_text(name))
    end
    assert.equal(T.help_text "item", T.help_text "Tensor.item")
    assert.truthy(T.help_text("optim.Adam.stepp"):find("optim.Adam has no method stepp; did you mean step?", 1, true))
  end)

  it("finds a page by name, with T., and by value", function()
    local page = T.help_text("jvp")
    assert.truthy(page:find("T.jvp(f, x, v) → y, J v", 1, true))
    assert.truthy(page:find("print(jv)", 1, true))
    assert.equal(page, T.help_text("T.jvp"))
    assert.equal(page, T.help_text(T.jvp))
    assert.truthy(T.help_text(T.GradManager):find("gm:record()", 1, true))
    assert.truthy(T.help_text(T.inference_mode):find("T.no_grad()", 1, true))
    assert.truthy(T.help_text(T.concat):find("T.cat", 1, true))
    assert.truthy(T.help_text("custom"):find("state", 1, true))
  end)

  it("still knows ops, forms in place, and near misses", function()
    assert.truthy(T.help_text("softmax"):find("T.softmax(", 1, true))
    assert.truthy(T.help_text(T.softmax):find("T.softmax(", 1, true))
    assert.truthy(T.help_text("relu_"):find("in place: relu_", 1, true))
    assert.truthy(T.help_text("jacobain"):find("jacobian", 1, true))
    assert.truthy(T.help_text("no_such_thing_"):find("no op named", 1, true))
    local all = T.help_text()
    assert.truthy(all:find("\n  losses +%d+  Losses\n"))
    for topic in all:gmatch "\n  ([%w-]+) +%d+  " do
      local names = T.help_text(topic)
      assert.truthy(names:find "\n  [%w_.]+ +%S" or T.help_text("T." .. topic), topic) -- some topics are names as well
    end
    assert.truthy(T.help_text("losses"):find("\n  T.mse_loss +"))
    assert.equal("no help for this value", T.help_text({}))
  end)

  it("lists every table of functions by its path", function()
    local tables = {}
    for name in pairs(symbols) do
      local path = name:match "^(.*)%.[^.]+$"
      if path and path ~= "" then tables[path] = tables[path] or {}; table.insert(tables[path], name) end
    end
    for path, names in pairs(tables) do
      local value = T
      for key in path:gmatch "[^.]+" do value = value[key] end
      if type(value) == "table" and not value.__index then -- no class
        local text = T.help_text("T." .. path)
        for _, name in ipairs(names) do
          assert.truthy(text:find("\n  [T.]*" .. name:gsub("%p", "%%%0") .. " +%S"), path .. " lists no " .. name)
        end
        assert.truthy(T.help_text(path), path)
      end
    end
  end)

  it("calls an op by its own name, whatever else it is called", function()
    local wrong = {}
    for name, info in pairs(ops) do
      local f = rawget(T, name)
      if f and not info.flags.internal and not symbols[name] then
        local head = T.help_text(f):match("^[^\n]*")
        if not head:find("T." .. name .. "(", 1, true) then wrong[#wrong + 1] = name .. ": " .. head end
      end
    end
    assert.same({}, wrong)
  end)

  it("prints", function()
    local out, old = {}, print
    rawset(_G, "print", function(text) out[#out + 1] = text end)
    local ok, err = pcall(T.help, "vjp")
    rawset(_G, "print", old)
    assert.is_true(ok, err)
    assert.same({ T.help_text("vjp") }, out)
  end)
end)

describe("the example of", function()
  local names = {}
  for name in pairs(symbols) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    it(name .. " runs and prints what it says", function()
      local entry, out = symbols[name], {}
      local plain = name == "optim.Optimizer" and "optim.X" or name:find("LRScheduler", 1, true) and "schedule" or name
      plain = name == "nn.Module" and "nn.class" or plain
      assert.is_true(entry.signature:find(plain, 1, true) ~= nil, "the signature does not name it")
      assert.truthy(entry.example:find(name, 1, true), "the example does not use it")
      local env = setmetatable({
        nn = T.nn, optim = T.optim,
        T = setmetatable({ help = function(what) out[#out + 1] = T.help_text(what) and nil end }, { __index = T }),
        print = function(...)
          local words = table.pack(...)
          for i = 1, words.n do words[i] = tostring(words[i]) end
          out[#out + 1] = table.concat(words, "\t")
        end,
      }, { __index = _G })
      local chunk = assert(load(entry.example, "=" .. name, "t", env))
      local ok, err = pcall(chunk)
      assert.is_true(ok, err)
      assert.equal(table.concat(docs.expected(entry.example), "\n"), table.concat(out, "\n"))
    end)
  end
end)
