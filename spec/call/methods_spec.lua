-- SPDX-License-Identifier: MIT
-- No method of perilune's classes drops an argument: d:rsample(2, 3), where a shape {2, 3} is meant, is an error in
-- every class, not only in the parent of all. Found are the classes by walking through what is loaded.

local T = require "perilune"
local near = require "spec.support.near"
local surface = require "perilune.surface"
local core = require "perilune.core"

-- Files whose classes scripts do not meet, and methods that perilune calls: steps of an optimizer, rates of a schedule.
local inner = { "jinja/", "jit/", "onnx/", "serve/", "watch/", "repl/", "command/", "jupyter", "models/", "cuda.lua",
  "distributed/state", "nn/module", "nn/quant/layers", "nn/quant/observers", "distributions/base", "parallel.lua" }
local own = { init = true, forward = true, lr_at = true, update = true, extra_repr = true, apply = true }

local function is_inner(file)
  for _, part in ipairs(inner) do
    if file:find(part, 1, true) then return true end
  end
end

it("no method drops an argument", function()
  local loaded = { T.optim.swa_utils, T.nn.parallel, T.nn.quant }
  for name in pairs(core.lazy()) do loaded[#loaded + 1] = T[name] end
  assert.is_true(#loaded > 3)
  local seen, open, count = {}, {}, 0
  local function walk(t)
    if type(t) ~= "table" or seen[t] then return end
    seen[t] = true
    for key, v in next, t do
      if type(v) == "table" then walk(v) end
      local names, any
      if type(v) == "function" and type(key) == "string" and key:sub(1, 1) ~= "_" and not own[key] then
        names, any = surface.parameters(surface.original[v] or v)
      end
      if names and names[1] == "self" and not any then
        local from = debug.getinfo(surface.original[v] or v, "S")
        local file = from.short_src:match "perilune/.*"
        if file and not is_inner(file) then
          count = count + 1
          if not surface.sealed[v] then open[#open + 1] = ("%s:%d: %s"):format(file, from.linedefined, key) end
        end
      end
    end
    walk(debug.getmetatable(t))
  end
  for name, v in pairs(package.loaded) do
    if name:find "^perilune" then walk(v) end
  end
  table.sort(open)
  assert.equal("", table.concat(open, "\n"))
  assert.is_true(count > 250, count)
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
