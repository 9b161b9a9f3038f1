-- SPDX-License-Identifier: MIT
-- The definitions for editors are well-formed, and say nothing that is not so: every example of the reference is run
-- with its functions recorded, and what goes in and comes out is of the types that the definitions give.

local T = require "perilune"
local annotations = require "spec.support.editors.annotations"
local docs = require "spec.support.docs"

local root = os.getenv "PERILUNE_ROOT" or "."
local inventory = dofile(root .. "/docs/make/inventory.lua")
local text = dofile(root .. "/docs/make/meta.lua")(inventory)
local known = annotations.read(text)

describe("the parser of annotations", function()
  it("reads what it is for, and sees faults", function()
    for _, s in ipairs { "integer", "perilune.Tensor|number", "string[]", '"a"|"b"', "0|1",
      "fun(x: integer, ...: any): a.b, c", "table<string, perilune.Tensor>",
      "(integer|string)[]", "number?", "fun()" } do
      local _, rest = annotations.parse(s)
      assert.equal("", rest, s)
    end
    for _, s in ipairs { "", "|a", "fun(x", "table<a>", "(a", "fun(: a)" } do
      assert.is_false(pcall(annotations.parse, s), s)
    end
    local faults = annotations.read(table.concat({ "---@param x integr", "---@param y integer", "function f(x, z) end",
      "", "---@class A: B", "---@field a integer", "---@field a integer", "---@nonsense", "---@return" }, "\n")).faults
    local all = table.concat(faults, "\n")
    for _, what in ipairs { "integr is not defined", "parameter 2 is z", "the type B is not defined",
      "a is there twice", "unknown annotation, nonsense", "a type is expected" } do
      assert.truthy(all:find(what, 1, true), what .. "\n" .. all)
    end
    local function fits(s, v) return (annotations.fits(known, annotations.parse(s), v, T.is_tensor)) end
    assert.is_true(fits("integer", 2.0) and not fits("integer", 2.5) and fits("integer[]", { 1, 2 }))
    assert.is_true(not fits("integer[]", { 1, "2" }) and fits("perilune.Tensor", T.ones(1)))
    assert.is_false(fits("nn.Module", T.ones(1)))
    assert.is_true(fits("table<string, number>", { a = 1 }) and not fits("table<string, number>", { 1 }))
    assert.is_true(fits('"a"|"b"', "b") and not fits('"a"|"b"', "c") and fits("function", T.nn.ReLU()))
  end)
end)

describe("the definitions for editors", function()
  it("are well-formed: every type is one that is defined, every annotation belongs to its parameter", function()
    assert.equal("", table.concat(known.faults, "\n"))
    assert.is_true(#known.functions > 1500)
  end)

  it("ask nothing of tables where a tensor, too, may be: a server misses fields that must be there", function()
    for class, body in text:gmatch "%-%-%-@class (perilune%.%u%a*)[^\n]*\n(.-)\n\n" do
      for field in (class == "perilune.Tensor" and body or ""):gmatch "%-%-%-@field ([%a_]+) [^\n?]*\n" do
        assert.equal(nil, field)
      end
    end
    assert.truthy(known.classes["perilune.Tensor"].fields.grad)
  end)

  -- What is open on purpose: any value is taken, or what a function of the caller's gives comes back. Whoever adds a
  -- function gives its types; this list is no place for what was not thought of.
  local OPEN = {}
  for name in ("T.bar T.checkpoint T.cuda.device T.cuda.stream T.data.default_collate "
    .. "T.distributed.all_gather_object T.distributed.gather_object T.enable_grad T.help T.help_text "
    .. "T.inference_mode T.is_tensor T.no_grad T.profile T.saved_tensors nn.is_module "
    .. "nn.utils.functional_call nn.utils.parametrize.cached"):gmatch "%S+" do
    OPEN[name] = true
  end

  it("leave open only what any value may be, and what callers give back", function()
    local list, used = {}, {}
    for _, f in ipairs(known.functions) do
      local function look(what, t)
        if annotations.text(t):gsub("%?$", "") ~= "any" then return end
        if OPEN[f.name] then used[f.name] = true else list[#list + 1] = ("%s: %s"):format(f.name, what) end
      end
      for _, p in ipairs(f.params) do if p[1] ~= "..." then look(p[1], p[2]) end end
      for i, r in ipairs(f.returns) do look("result " .. i, r) end
    end
    assert.equal("", table.concat(list, "\n"))
    for name in pairs(OPEN) do assert.is_true(used[name], name .. " is open no more") end
  end)

  -- Functions by their names, where examples call them.
  local by_name = {}
  for _, f in ipairs(known.functions) do by_name[f.name] = f end

  local faults, checked = {}, 0
  local function note(name, what) faults[name .. what] = ("%s%s"):format(name, what) end

  local function shown(v)
    return T.is_tensor(v) and "a tensor" or type(v) == "string" and ("%q"):format(v) or tostring(v)
  end

  local function check_call(f, shift, ...)
    local n = select("#", ...)
    for i = 1, math.min(n - shift, #f.params) do
      local p, v = f.params[i], (select(i + shift, ...))
      if p[1] == "..." then break end
      checked = checked + 1
      if v ~= nil and not annotations.fits(known, p[2], v, T.is_tensor) then
        -- several sizes, tensors or indices one by one: the overloads say so
        local fine = false
        for _, o in ipairs(f.overloads) do
          local q = o.params[i] or o.params[#o.params]
          fine = fine or (q and annotations.fits(known, q[2], v, T.is_tensor))
        end
        if not fine then note(f.name, (": %s is %s, got %s"):format(p[1], annotations.text(p[2]), shown(v))) end
      end
    end
  end

  local function check_results(f, ...)
    if #f.returns == 0 and ... ~= nil then note(f.name, ": no result is declared, it gave " .. shown(...)) end
    for i = #f.returns + 1, #f.returns > 0 and select("#", ...) or 0 do
      local fine = (select(i, ...)) == nil
      for _, o in ipairs(f.overloads) do fine = fine or #o.returns >= i end
      if not fine then note(f.name, (": result %d is not declared, it gave %s"):format(i, shown((select(i, ...))))) end
    end
    for i, t in ipairs(f.returns) do
      local v = (select(i, ...))
      if v ~= nil then
        checked = checked + 1
        local fine = annotations.fits(known, t, v, T.is_tensor)
        for _, o in ipairs(f.overloads) do
          fine = fine or (o.returns[i] and annotations.fits(known, o.returns[i], v, T.is_tensor))
        end
        if not fine then
          note(f.name, (": returns %s, got %s"):format(annotations.text(t), shown(v)))
        end
      end
    end
    return ...
  end

  local function recorded(f, name)
    local definition = by_name[name]
    if not definition then return f end
    local shift = 0
    return function(...)
      check_call(definition, shift, ...)
      return check_results(definition, f(...))
    end
  end

  -- A table of functions as it is, its own functions recorded; other tables below it alike.
  local function view(holder, name, depth)
    return setmetatable({}, { __index = function(_, key)
      local v = holder[key]
      local path = name .. "." .. tostring(key)
      if type(v) == "function" then return recorded(v, path) end
      local meta = type(v) == "table" and getmetatable(v)
      if type(v) == "table" and depth < 4 and (meta == nil or meta == false) then return view(v, path, depth + 1) end
      if type(v) == "table" and depth < 4 and type(meta) == "table" and meta.__call and v.__name and by_name[path] then
        return recorded(v, path)
      end
      return v
    end, __newindex = holder, __call = function(_, ...) return holder(...) end,
      __pairs = function() return pairs(holder) end })
  end

  it("are so in every example", function()
    local seen, run = view(T, "T", 1), 0
    local nn, optim = view(T.nn, "nn", 1), view(T.optim, "optim", 1)
    local methods = T.core.metatable().methods
    local originals = {}
    for name, f in pairs(methods) do
      local definition = by_name["Tensor:" .. name]
      if type(f) == "function" and definition then
        originals[name] = f
        methods[name] = function(...)
          check_call(definition, 1, ...)
          return check_results(definition, f(...))
        end
      end
    end
    local lines, blocks = {}, {}
    for _, e in ipairs(inventory.all()) do if e.example and not e.same then blocks[#blocks + 1] = e end end
    for _, path in ipairs { "README.md", "docs/cookbook.md", "docs/from-pytorch.md", "docs/tutorial/compiled.md",
      "docs/tutorial/data.md", "docs/tutorial/gradients.md", "docs/tutorial/own-gradient.md",
      "docs/tutorial/tensors.md" } do
      for _, b in ipairs(docs.blocks(root .. "/" .. path)) do
        if b.lang == "lua" and not b.mark and not b.code:find "save" and not b.code:find '%.%l+"' then -- no files
          blocks[#blocks + 1] = { name = path .. ":" .. b.line, example = b.code }
        end
      end
    end
    local ok, failure = pcall(function()
      for _, e in ipairs(blocks) do
        do
          local env = setmetatable({ T = seen, nn = nn, optim = optim, print = function() end,
            require = function(name) return name == "perilune" and seen or require(name) end }, { __index = _G })
          local f = load(e.example, "=" .. e.name, "t", env)
          if f then
            run = run + 1
            local fine, why = pcall(f)
            if not fine then lines[#lines + 1] = e.name .. ": " .. tostring(why) end
          end
        end
      end
    end)
    for name, f in pairs(originals) do methods[name] = f end
    assert(ok, failure)
    local list = {}
    for _, what in pairs(faults) do list[#list + 1] = what end
    table.sort(list)
    if os.getenv "PERILUNE_TYPES" then
      print(table.concat(lines, "\n"))
      print(run, checked, #list)
    end
    assert.is_true(run > 800 and checked > 3000, run .. " examples, " .. checked .. " values")
    assert.is_true(#lines < 40, table.concat(lines, "\n")) -- those that look at functions themselves
    assert.equal("", table.concat(list, "\n"))
  end)
end)

local entries = inventory.all()

-- A sample holds what the caller put into it, and a function of the caller's gives what it likes.
local OPEN_METHODS = {}
for name in ("perilune.Graph.trace T.Generator.run T.GradManager.record T.data.ConcatDataset.get "
  .. "T.data.MapDataset.get T.data.StackDataset.get "
  .. "T.data.Subset.get T.data.Subset.get_batch T.data.TensorDataset.get T.data.TensorDataset.get_batch "
  .. "T.data.TensorDataset.get_range nn.parallel.DistributedDataParallel.no_sync nn.Module.forward "
  .. "nn.RotaryEmbedding.stretch"):gmatch "%S+" do
  OPEN_METHODS[name] = true
end

-- f(class, field, the type of a method)
local function each_method(f)
  for name, class in pairs(known.classes) do
    for field, t in pairs(class.fields) do
      local kind = t[1]
      if kind[1] == "fun" and not name:find "Options$" then f(name, field, kind) end
    end
  end
end

describe("the definitions of methods for editors", function()
  it("leave no result open that is of one kind", function()
    local list, used, count = {}, {}, 0
    each_method(function(class, field, kind)
      local name = class .. "." .. field
      count = count + 1
      for _, r in ipairs(kind.returns) do
        if annotations.text(r) == "any" then
          if OPEN_METHODS[name] then used[name] = true else list[#list + 1] = name end
        end
      end
    end)
    table.sort(list)
    assert.equal("", table.concat(list, "\n"))
    assert.is_true(count > 500, count .. " methods")
    for name in pairs(OPEN_METHODS) do assert.is_true(used[name], name .. " is open no more") end
  end)

  it("are what methods give in the examples of their classes", function()
    local faults, checked, undo = {}, 0, {}
    local function judge(name, kind, ...)
      local n = math.max(select("#", ...), #kind.returns)
      for i = 1, n do
        local v, t = (select(i, ...)), kind.returns[i]
        if v ~= nil then
          checked = checked + 1
          if not t or not annotations.fits(known, t, v, T.is_tensor) then
            faults[("%s: result %d is %s, declared %s"):format(name, i, T.is_tensor(v) and "a tensor" or tostring(v),
              t and annotations.text(t) or "nothing")] = true
          end
        end
      end
      return ...
    end
    local classes = { ["nn.Module"] = T.nn.Module, ["optim.Optimizer"] = T.optim.Optimizer,
      ["optim.lr_scheduler.LRScheduler"] = T.optim.lr_scheduler.LRScheduler }
    for _, e in ipairs(entries) do
      if type(e.class) == "table" then classes[e.name] = e.class end
    end
    each_method(function(class, field, kind)
      local holder = classes[class]
      local f = holder and rawget(holder, field)
      if type(f) == "function" then
        undo[#undo + 1] = function() rawset(holder, field, f) end
        rawset(holder, field, function(...) return judge(class .. ":" .. field, kind, f(...)) end)
      end
    end)
    local run = 0
    for _, e in ipairs(entries) do
      if e.class and e.example and not e.same then
        local env = setmetatable({ T = T, nn = T.nn, optim = T.optim, print = function() end }, { __index = _G })
        local f = load(e.example, "=" .. e.name, "t", env)
        if f and pcall(f) then run = run + 1 end
      end
    end
    for _, f in ipairs(undo) do f() end
    local list = {}
    for what in pairs(faults) do list[#list + 1] = what end
    table.sort(list)
    assert.equal("", table.concat(list, "\n"))
    assert.is_true(run > 150 and checked > 500, ("%d examples, %d results of %d methods"):format(run, checked, #undo))
  end)
end)
