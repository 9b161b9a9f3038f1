-- SPDX-License-Identifier: MIT
-- No method of perilune's classes drops an argument: d:rsample(2, 3), where a shape {2, 3} is meant, is an error in
-- every class, also in those that are local to a file and in userdata. Found are the classes by walking through all
-- that functions of perilune can reach.

local T = require "perilune"
local near = require "spec.support.near"
local classes = require "perilune.classes"
local surface = require "perilune.surface"
local core = require "perilune.core"

-- Files whose classes scripts do not meet.
local INNER = { "command/chat.lua", "graph/sizes.lua", "jinja/", "jupyter/cells.lua", "jupyter/fit_view.lua",
  "jupyter/message.lua", "jupyter/service.lua", "models/batch.lua", "models/decoder.lua", "models/seq2seq.lua",
  "models/text.lua", "nn/quant/calibration.lua", "onnx/", "plot/raster.lua", "repl/", "serve/", "watch/" }
-- What perilune alone calls: the rate of a schedule, the step of one parameter; constructors and forward count for
-- themselves.
local own = { init = true, forward = true, new = true, lr_at = true }
-- Tensors, of which surface_spec.lua speaks, and userdata that only Lua files of perilune hold; methods that take any
-- number of arguments.
local INNER_C = { ["tensor"] = true, ["perilune.Batch"] = true }
local ANY = { save = true, mark_dirty = true, mark_non_differentiable = true }

local function is_inner(file)
  for _, part in ipairs(INNER) do
    if file:find(part, 1, true) then return true end
  end
end

-- Loads all files, and makes one object of each class of C.
local function everything()
  core.load_parts()
  for name in pairs(core.lazy()) do assert(T[name] ~= nil) end
  local root = os.getenv "PERILUNE_ROOT" or "."
  for path in io.popen(("cd '%s/lua' && find perilune -name '*.lua'"):format(root)):lines() do
    if path ~= "perilune/data/worker.lua" then -- which changes os.exit
      pcall(require, (path:gsub("%.lua$", ""):gsub("/init$", ""):gsub("/", ".")))
    end
  end
  local x = T.ones(1):requires_grad_()
  x:register_hook(print):remove()
  T.GradKey():close()
  T.scope()
  return T.custom { forward = function(_, y) return y:clone() end, backward = function(_, g) return g end }
end

-- All tables that are metatables or classes, wherever a function of what is loaded can reach them: through fields,
-- metatables and the locals that functions use. So a class is found that is local to a file.
local function metatables()
  local keep = everything()
  local seen, found, stack = { [_G] = true }, {}, {}
  local function put(v)
    local kind = type(v)
    if (kind == "table" or kind == "function" or kind == "userdata") and not seen[v] then
      seen[v], stack[#stack + 1] = true, v
    end
  end
  put(keep)
  for name, v in pairs(package.loaded) do
    if name:find "^perilune" then put(v) end
  end
  for key, v in pairs(debug.getregistry()) do
    if type(key) == "string" and key:find "^perilune%." then put(v) end
  end
  while #stack > 0 do
    local v = table.remove(stack)
    if type(v) == "function" then
      local i, name, value = 1, debug.getupvalue(v, 1)
      while name do
        put(value)
        i = i + 1
        name, value = debug.getupvalue(v, i)
      end
      put(surface.original[v])
    else
      put(debug.getmetatable(v))
      if type(v) == "table" then
        for key, value in next, v do
          put(key)
          put(value)
        end
        if rawget(v, "__index") ~= nil then found[#found + 1] = v end
      end
    end
  end
  return found, seen
end

-- The tables in which a metatable's objects look up methods.
local function tables_of(meta)
  local index = rawget(meta, "__index")
  if type(index) == "table" then return { index } end
  local list = { meta }
  for i = 1, 9 do
    local name, value = debug.getupvalue(index, i)
    if name == "" and type(value) == "table" then list[#list + 1] = value end -- of a function of C
  end
  return list
end

it("no method drops an argument", function()
  local found, seen = metatables()
  local open, count, of_c, looked, props = {}, 0, 0, {}, {}
  for v in pairs(seen) do
    if type(v) == "table" and rawget(v, "props") then props[v.props] = true end -- of distributions: no methods
  end
  local function look(meta, t)
    local name = rawget(meta, "__name") or "?"
    for key, f in next, t do
      local is = type(f) == "function" and type(key) == "string" and key:byte(1) ~= 95 and not own[key]
      local original = surface.original[f] or f
      local names = is and surface.parameters(original)
      if names and names[1] == "self" then
        local from = debug.getinfo(original, "S")
        local file = from.short_src:match "perilune/.*" or from.short_src
        count = count + 1
        local inside = is_inner(file) or key == "update" and file:find("optim/", 1, true)
        if not inside and not (surface.sealed[f] and classes.all[t]) then
          open[#open + 1] = ("%s:%d: %s; make its class with perilune.classes"):format(file, from.linedefined, key)
        end
      elseif is and not names and not surface.sealed[f] and rawget(meta, "__metatable") == false and not ANY[key]
        and not INNER_C[name] then
        of_c = of_c + 1
        local _, err = pcall(f, table.unpack({ [20] = true }, 1, 20))
        if not tostring(err):find("takes at most", 1, true) then
          open[#open + 1] = ("%s: %s: %s"):format(name, key, tostring(err))
        end
      end
    end
  end
  for _, meta in ipairs(found) do
    for _, t in ipairs(tables_of(meta)) do
      if not looked[t] and not props[t] then
        looked[t] = true
        look(meta, t)
      end
    end
  end
  table.sort(open)
  assert.equal("", table.concat(open, "\n"))
  assert.is_true(count > 500 and of_c > 5, ("%d of Lua, %d of C"):format(count, of_c))
end)

it("a class that is local to a file is found", function()
  local Hidden = { __name = "hidden" }
  Hidden.__index = Hidden
  function Hidden:get(key) return self[key] end
  package.loaded["perilune.hidden"] = function() return setmetatable({}, Hidden) end
  local found = metatables()
  package.loaded["perilune.hidden"] = nil
  local there = false
  for _, meta in ipairs(found) do there = there or meta == Hidden end
  assert.is_true(there)
end)

it("nor does one of these, which were found dropping some", function()
  local gm, key = T.GradManager(), T.GradKey()
  near.fails("release: takes no arguments, got 1", function() gm:release(1) end)
  near.fails("release: call it with a colon, gm:release()", function() gm.release() end)
  near.fails("attached: takes at most 1 argument (key), got 2", function() key:attached(1) end)
  key:close()
  local f = T.jit(function(x) return x + 1 end)
  f(T.ones(1))
  near.fails("graph: takes no arguments, got 1", function() f:graph(1) end)
  near.fails("explain: takes no arguments, got 1", function() f:explain(1) end)
  local handle = T.ones(1):requires_grad_():register_hook(print)
  near.fails("remove: takes at most 1 argument (handle), got 2", function() handle:remove(1) end)
  local meter = T.metrics.accuracy {}
  near.fails("update: takes at most 2 arguments (pred, target), got 3", function()
    meter:update(T.ones(1), T.ones(1), 1)
  end)
end)

it("an empty table of options is none", function()
  for _, name in ipairs { "Softmax2d", "ReLU", "Identity", "Flatten" } do
    assert.equal(name, T.nn[name]({}):type())
  end
  near.fails("unknown option 'dim'", function() T.nn.Softmax2d { dim = 1 } end)
end)

it("a shape is one argument of a distribution's methods", function()
  local d = T.distributions.Normal(T.zeros(2), 1)
  near.fails("rsample: takes at most 1 argument (shape)", function() d:rsample(2, 3) end)
  near.fails("log_prob: takes at most 1 argument (x)", function() d:log_prob(T.zeros(2), {}, 1) end)
  near.fails("call it with a colon", function() d.rsample { 2 } end)
  assert.same({ 2, 3, 2 }, d:rsample({ 2, 3 }):shape())
end)

it("the message of a file that was not read is shown where its value goes", function()
  local net, missing = T.nn.Linear(1, 1), "no_such_file.pt: cannot open"
  local opt = T.optim.SGD(net:parameters(), { lr = 1 })
  local broken = os.tmpname()
  near.fails("load_state_dict: sd is nil: " .. missing, function() net:load_state_dict(T.load "no_such_file.pt") end)
  near.fails("load_state_dict: sd is nil: " .. missing, function() opt:load_state_dict(T.load "no_such_file.pt") end)
  near.fails("Linear: x is nil: " .. missing, function() net(T.load "no_such_file.pt") end)
  near.fails("restore: state is nil: " .. missing, function() T.restore({ net = net }, T.load "no_such_file.pt") end)
  near.fails("restore: state is nil: " .. broken, function() T.restore({ net = net }, T.load(broken)) end)
  near.fails("load_state_dict: sd is nil: " .. broken, function() net:load_state_dict(T.load(broken)) end)
  os.remove(broken)
end)

it("enumerate_support has one dimension of values, and the batch's on request", function()
  local D = T.distributions
  for _, d in ipairs { D.Bernoulli(T.full({ 2, 3 }, 0.5)), D.Binomial(4, T.full({ 3 }, 0.5)), D.Bernoulli(0.5),
    D.Categorical(T.ones(2, 3, 4)), D.OneHotCategorical(T.ones(2, 3, 4)), D.OneHotCategorical(T.ones(4)) } do
    local all, few = d:enumerate_support(), d:enumerate_support(false)
    local n = all:size(1)
    local function shape(batch)
      local s = { n }
      for i, size in ipairs(d.batch_shape) do s[i + 1] = batch and size or 1 end
      return table.move(d.event_shape, 1, #d.event_shape, #s + 1, s)
    end
    assert.same(shape(true), all:shape())
    assert.same(shape(false), few:shape())
    assert.same(shape(false), d:enumerate_support({ expand = false }):shape())
    assert.is_true(few:expand(all:shape()):equal(all))
    assert.is_true(d:log_prob(few):logsumexp(1):abs():max():item() < 1e-5)
  end
  near.fails("expand must be true or false", function() D.Bernoulli(0.5):enumerate_support(1) end)
  near.fails("there is no enumerate_support", function() D.Normal(0, 1):enumerate_support() end)
end)
