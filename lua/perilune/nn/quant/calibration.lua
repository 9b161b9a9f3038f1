-- SPDX-License-Identifier: MIT
--- Data that goes through a network so that its layers see their inputs, one after another, each behind those that are
-- quantized already. What a layer needs of its inputs is their Gram matrix; one stands at a time.
--
-- A network is a chain of blocks more often than not (a ModuleList or Sequential whose members are called in turn, each
-- with the result of the one before). Then the inputs of one block are kept, and only that block runs for its layers;
-- else all of the network does, up to the layer. Which it is is watched while the data goes through for the first time.
-- @module perilune.nn.quant.calibration
local T = require "perilune"
local evaluating = require "perilune.nn.evaluating"
local base = require "perilune.nn.module"
local container = require "perilune.nn.container"
local fold = require "perilune.nn.quant.fold"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local rawequal = rawequal

local M = {}

local STOP = {} -- raised where nothing behind is of interest

local function until_stopped(f, ...)
  local ok, why = pcall(f, ...)
  if not ok and not rawequal(why, STOP) then error(why, 0) end
end

local function hang(list)
  local handles = {}
  for i, item in ipairs(list) do
    local m = item[1]
    handles[i] = item[2] == "pre" and m:register_forward_pre_hook(item[3]) or m:register_forward_hook(item[3])
  end
  return handles
end
local function take_off(handles)
  for _, handle in ipairs(handles) do handle:remove() end
end

-- f() while hooks are there: { {module, "pre" or "after", hook} … }.
local function hooked(list, f)
  T.core.around(hang, list, take_off, f)
end

-- list, unless no number of its floating tensors says anything.
local function telling(who, list)
  local numbers, any = false, false
  for _, batch in ipairs(list) do
    for i = 1, batch.n do
      local t = batch[i]
      if T.is_tensor(t) and t:is_floating_point() and t:numel() > 0 then
        numbers = true
        any = any or t:ne(0):any():item()
      end
    end
  end
  if numbers and not any then
    fail("%s: calibration is zeros, which say nothing of what goes through the network", who)
  end
  return list
end

--- What was given as data, as a list of packed arguments: a tensor, a list of tensors or of lists of arguments, or
-- anything for a generic for, of which the first value counts unless `all`.
function M.batches(who, data, all)
  if data == nil then fail("%s: calibration is missing: inputs of the network, as a list or a DataLoader", who) end
  if T.is_tensor(data) then return telling(who, { table.pack(data) }) end
  local list = {}
  if type(data) == "table" and getmetatable(data) == nil then
    options.list(who, "calibration", data, "inputs")
    for i, v in ipairs(data) do
      list[i] = type(v) == "table" and getmetatable(v) == nil and table.pack(table.unpack(v)) or table.pack(v)
    end
  else
    local meta = getmetatable(data)
    if type(data) ~= "function" and not (type(meta) == "table" and meta.__call) then
      fail("%s: calibration must be a tensor, a list of inputs, a DataLoader or an iterator, got %s", who,
        describe(data))
    end
    local function take(first, ...)
      if first == nil then return false end
      list[#list + 1] = all and table.pack(first, ...) or table.pack(first)
      return first
    end
    local control
    repeat control = take(data(nil, control or nil)) until not control
  end
  if #list == 0 then fail("%s: calibration is empty", who) end
  return telling(who, list)
end

--- f() with net in evaluation and without gradients; afterwards its modules train or not as before.
function M.quietly(net, f)
  evaluating(net, f)
end

-- ---- the Gram matrix of inputs -------------------------------------------------------------------------------

local Gram = {}
Gram.__index = Gram

--- gram [K, K]: sum of xᵀx over rows x; size [K]: sum of |x|; both f64.
function Gram:add(x)
  local rows = x:detach():reshape(-1, x:size(-1))
  if rows:dtype() ~= "f64" then rows = rows:float() end
  self.gram:add_(rows:t():matmul(rows):double())
  self.size:add_(rows:abs():sum(1, { dtype = "f64" }))
  self.rows = self.rows + rows:size(1)
end

local function gram_of(width, device)
  local o = { dtype = "f64", device = device }
  return setmetatable({ gram = T.zeros({ width, width }, o), size = T.zeros({ width }, o), rows = 0 }, Gram)
end

-- ---- order ---------------------------------------------------------------------------------------------------

-- Lists of modules that might be a chain with layers inside; inside: layer → place in the list, or false where it is
-- in two.
local function chains(net, wanted)
  local found = {}
  for _, m in ipairs(net:modules()) do
    local class = getmetatable(m).__class
    if class == container.ModuleList or class == container.Sequential then
      local chain = { blocks = {}, inside = {}, layers = 0, good = true }
      for _, block in ipairs(m:children()) do
        local at = #chain.blocks + 1
        chain.blocks[at] = block
        for _, part in ipairs(block:modules()) do
          if wanted[part] then
            if part == block or chain.inside[part] ~= nil then chain.good = false end
            chain.inside[part], chain.layers = at, chain.layers + 1
          end
        end
      end
      if chain.good and #chain.blocks > 1 and chain.layers > 0 then found[#found + 1] = chain end
    end
  end
  return found
end

-- Hooks that watch whether members of a list are called once each, in turn, with each other's first results.
local function watch(chain, hooks)
  local at, last = 0, nil
  for i, block in ipairs(chain.blocks) do
    hooks[#hooks + 1] = { block, "pre", function(_, args)
      if at ~= i - 1 or i > 1 and not rawequal(args[1], last) or not T.is_tensor(args[1]) then chain.good = false end
      at = i
    end }
    hooks[#hooks + 1] = { block, "after", function(_, _, out)
      last = out
      if type(out) == "table" and getmetatable(out) == nil then last = out[1] end
    end }
  end
  return function() -- behind a batch
    if at ~= #chain.blocks then chain.good = false end
    at, last = 0, nil
  end
end

-- Modules that are at one place of net, with parameters of their own, and are called once a batch: f(module). calls:
-- how often each was in the first one.
local function at_one_place(net, calls)
  local places, users = {}, {}
  for _, m in ipairs(net:modules()) do
    for _, key in ipairs(base.member_names(m)) do
      local v = base.member(m, key)
      if base.is_module(v) then places[v] = (places[v] or 0) + 1
      elseif base.is_parameter[v] then users[v] = (users[v] or 0) + 1 end
    end
  end
  return function(m)
    for _, p in pairs(m._parameters) do if users[p] > 1 then return false end end
    return calls[m] == 1 and places[m] == 1
  end
end

--- Everything goes through once. → groups of layers with one input, in the order of their first calls, { layers,
-- leader's calls in each batch, before: what may have made their input, where folds is true }; the best chain or nil.
-- layers: { {name, layer} … }.
local function plan(who, net, batches, forward, layers, folds)
  local wanted, name_of, calls = {}, {}, {}
  for _, item in ipairs(layers) do
    local m = item[2]
    wanted[m], name_of[m], calls[m] = true, item[1], {}
  end
  local order, group_of, seen, now = {}, {}, {}, 0
  local last_input, last_group -- of the call before
  local recent, often = {}, {} -- results of norms and linear layers in the first batch
  local hooks, ends, lists = {}, {}, chains(net, wanted)
  for _, chain in ipairs(lists) do ends[#ends + 1] = watch(chain, hooks) end
  local function called(m, args)
    local x = args[1]
    local g = group_of[m]
    if not g then
      g = rawequal(x, last_input) and now == 1 and last_group or nil
      if not g then
        g = { layers = {}, together = true, noted = now == 1 and fold.noted(recent, x) }
        order[#order + 1] = g
      end
      group_of[m] = g
      table.insert(g.layers, m)
    end
    calls[m][now] = (calls[m][now] or 0) + 1
    if calls[m][now] > 1 then g.together = false end
    if m == g.layers[1] then seen[g] = x elseif not rawequal(seen[g], x) then g.together = false end
    last_input, last_group = x, g
  end
  for m in pairs(wanted) do hooks[#hooks + 1] = { m, "pre", called } end
  for _, m in ipairs(folds and net:modules() or {}) do
    if fold.takes(m) then
      hooks[#hooks + 1] = { m, "after", function(_, _, y)
        if now > 1 then return end
        often[m] = (often[m] or 0) + 1
        recent[#recent + 1] = { m, y }
        if #recent > 8 then table.remove(recent, 1) end
      end }
    end
  end
  hooked(hooks, function()
    for i, batch in ipairs(batches) do
      now, last_input, last_group, seen = i, nil, nil, {}
      forward(net, table.unpack(batch, 1, batch.n))
      for _, done in ipairs(ends) do done() end
    end
  end)
  local single = at_one_place(net, often)
  for _, g in ipairs(order) do
    g.before = g.noted and fold.candidates(g.noted, single) or {}
  end
  local idle = {}
  for _, item in ipairs(layers) do if not next(calls[item[2]]) then idle[#idle + 1] = item[1] end end
  if #idle > 0 then
    fail("%s: the calibration data never reaches %s; give more of it, or name what is left out in skip", who,
      table.concat(idle, ", ", 1, math.min(#idle, 5)))
  end
  local groups = {}
  for _, g in ipairs(order) do
    for i = 1, #batches do
      for _, m in ipairs(g.layers) do
        if calls[m][i] ~= calls[g.layers[1]][i] then g.together = false end
      end
    end
    for _, m in ipairs(g.together and { g.layers[1] } or g.layers) do
      groups[#groups + 1] = { layers = g.together and g.layers or { m }, calls = calls[m], name = name_of[m],
        before = g.together and g.before or {} }
    end
  end
  local best
  for _, chain in ipairs(lists) do
    if chain.good and (not best or chain.layers > best.layers) then best = chain end
  end
  return groups, best
end

-- ---- going through ------------------------------------------------------------------------------------------

-- The arguments of all blocks of a chain for every batch, those of the first one whole, of the others but the first.
local function arguments(net, batches, forward, chain)
  local all, current = {}, nil
  local hooks = {}
  for i, block in ipairs(chain.blocks) do
    hooks[i] = { block, "pre", function(_, args)
      current[i] = table.pack(table.unpack(args, 1, args.n))
      if i > 1 then current[i][1] = nil end
      if i == #chain.blocks then error(STOP, 0) end
    end }
  end
  hooked(hooks, function()
    for i, batch in ipairs(batches) do
      current = {}
      all[i] = current
      until_stopped(forward, net, table.unpack(batch, 1, batch.n))
    end
  end)
  return all
end

--- Calls visit(layers, gram, name, before, look) for every group of layers with one input, in the order of calls, with
-- what goes into them when what visit changed before is in place. folds: before are modules that may have made the
-- input, and look() calls what is around with the first batch again: → sums of |input|, results.
function M.each(who, net, batches, forward, layers, folds, visit)
  local groups, chain = plan(who, net, batches, forward, layers, folds)
  local at, args = 0, nil -- the block that args are for
  local function whole(i) return forward, net, table.unpack(batches[i], 1, batches[i].n) end
  local function block(i)
    local a = args[i][at]
    return chain.blocks[at], table.unpack(a, 1, a.n)
  end
  local function step() -- to the next block
    for i = 1, #batches do
      local a = args[i][at]
      local out = chain.blocks[at](table.unpack(a, 1, a.n))
      args[i][at] = nil
      args[i][at + 1][1] = out
    end
    at = at + 1
  end
  for _, g in ipairs(groups) do
    local place = chain and chain.inside[g.layers[1]]
    for _, m in ipairs(g.layers) do if chain and chain.inside[m] ~= place then place = nil end end
    if place and place >= at then
      if not args then args, at = arguments(net, batches, forward, chain), 1 end
      while at < place do step() end
    else
      place = nil
    end
    local leader, gram = g.layers[1], nil
    local left
    local function called(_, a)
      gram = gram or gram_of(a[1]:size(-1), a[1]:device())
      gram:add(a[1])
      left = left - 1
      if left == 0 then error(STOP, 0) end
    end
    hooked({ { leader, "pre", called } }, function()
      for i = 1, #batches do
        left = g.calls[i] or 0
        if left > 0 then
          if place then until_stopped(block(i)) else until_stopped(whole(i)) end
        end
      end
    end)
    if not gram then fail("%s: the calibration data no longer reaches %s; give more of it", who, g.name) end
    if not T.isfinite(gram.gram:sum()):item() then
      fail("%s: inputs of %s are not finite, with the calibration data given", who, g.name)
    end
    visit(g.layers, gram, g.name, g.before, function()
      local sums, results
      local hooks = { { leader, "pre", function(_, a)
        local sum = a[1]:reshape(-1, a[1]:size(-1)):abs():sum(1, { dtype = "f64" })
        sums = sums and sums + sum or sum
      end } }
      if not place then -- forward may return nothing
        hooks[2] = { net, "after", function(_, _, out) results = { results, out } end }
      end
      local first = 1
      while (g.calls[first] or 0) == 0 do first = first + 1 end
      hooked(hooks, function()
        if not place then return forward(net, table.unpack(batches[first], 1, batches[first].n)) end
        local a = args[first][at]
        results = { chain.blocks[at](table.unpack(a, 1, a.n)) }
      end)
      return sums, results
    end)
  end
end

return M
