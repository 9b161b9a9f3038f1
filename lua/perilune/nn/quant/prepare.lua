-- SPDX-License-Identifier: MIT
--- From a network of floats to one of 8-bit integers: fuse, prepare, convert. @module perilune.nn.quant.prepare
local T = require "perilune"
local base = require "perilune.nn.module"
local layers = require "perilune.nn.quant.layers"
local observers = require "perilune.nn.quant.observers"
local options = require "perilune.options"
local quantize = require "perilune.nn.quantize"

local fail, describe = options.fail, options.describe
local rawequal = rawequal

local M = {}

local function network(who, net)
  if not base.is_module(net) then fail("%s: a network is wanted, got %s", who, describe(net)) end
end

local function class_of(m) return m and getmetatable(m).__class end

-- ---- what stands behind what -----------------------------------------------------------------------------------

-- At how many places of net each module is.
local function places_of(net)
  local places = {}
  for _, m in ipairs(net:modules()) do
    for _, key in ipairs(base.member_names(m)) do
      local child = rawget(m, key)
      if base.is_module(child) then places[child] = (places[child] or 0) + 1 end
    end
  end
  return places
end

-- Behind a layer in a Sequential: {layer = {bn, relu}}, each of which is at that place alone.
local function in_sequence(net, wanted)
  local nn, found, places = T.nn, {}, places_of(net)
  for _, m in ipairs(net:modules()) do
    if class_of(m) == nn.Sequential then
      local list = {}
      for i = 1, #m do list[i] = m[i] end
      for i, layer in ipairs(list) do
        if wanted[layer] and places[layer] == 1 then
          local bn, relu = list[i + 1], list[i + 2]
          if class_of(layer) ~= nn.Conv2d or class_of(bn) ~= nn.BatchNorm2d or places[bn] > 1 then
            bn, relu = nil, bn
          end
          if class_of(relu) ~= nn.ReLU or places[relu] > 1 then relu = nil end
          found[layer] = { bn = bn, relu = relu }
        end
      end
    end
  end
  return found
end

-- The same by what goes from one to the other when the network is called: each module once, with the very result of the
-- one before.
local function in_calls(net, wanted, call)
  local nn = T.nn
  local of_result, calls, after, handles = {}, {}, {}, {}
  for _, m in ipairs(net:modules()) do
    local class = class_of(m)
    if wanted[m] or class == nn.BatchNorm2d or class == nn.ReLU then
      handles[#handles + 1] = m:register_forward_hook(function(_, args, y)
        calls[m] = (calls[m] or 0) + 1
        for _, other in ipairs(of_result) do
          if rawequal(other[1], args[1]) then
            after[other[2]] = after[other[2]] == nil and m or false
          end
        end
        of_result[#of_result + 1] = { y, m }
      end)
    end
  end
  local ok, why = pcall(call)
  for _, handle in ipairs(handles) do handle:remove() end
  if not ok then error(why, 0) end
  local function behind(m, class)
    local b = after[m]
    return b and calls[b] == 1 and calls[m] == 1 and class_of(b) == class and b or nil
  end
  local found = {}
  for layer in pairs(wanted) do
    local bn = class_of(layer) == nn.Conv2d and behind(layer, nn.BatchNorm2d) or nil
    found[layer] = { bn = bn, relu = behind(bn or layer, nn.ReLU) }
  end
  return found
end

local function usable(bn, layer)
  return bn and bn.track_running_stats and bn.running_mean and bn.num_features == layer.out_channels and bn or nil
end

-- ---- options ---------------------------------------------------------------------------------------------------

local KINDS = { minmax = observers.MinMaxObserver, moving_average = observers.MovingAverageMinMaxObserver,
  histogram = observers.HistogramObserver,
  percentile = function() return observers.HistogramObserver { percentile = 99.99 } end }

local function observer_of(who, v, default)
  if v == nil then v = default end
  if KINDS[v] then return KINDS[v] end
  if type(v) == "function" then return v end
  local names = {}
  for name in pairs(KINDS) do names[#names + 1] = name end
  table.sort(names)
  fail("%s: %s", who, options.unknown("observer", tostring(v), names))
end

-- The convolutions and linear layers that are meant: list of {name, layer}, and the same as a set.
local function chosen(who, net, o)
  local nn = T.nn
  local wanted = quantize.chooser(who, o)
  local list, set = {}, {}
  for name, m in net:named_modules() do
    local class = class_of(m)
    if (class == nn.Conv2d or class == nn.Linear) and not rawget(m, "_lora") and m._parameters.weight
      and m.weight:dtype() == "f32" and wanted(name, m) then
      local terms = m.weight:numel() // math.max(1, m.weight:size(1))
      if terms > 0 and terms <= 65536 then
        list[#list + 1] = { name, m }
        set[m] = true
      end
    end
  end
  if #list == 0 then fail("%s: no layer is quantized; nn.Conv2d and nn.Linear of f32 are wanted", who) end
  return list, set
end

local function first_tensor(v)
  if T.is_tensor(v) then return v end
  if type(v) == "table" then for _, x in ipairs(v) do if T.is_tensor(x) then return x end end end
end

--- net with prepared layers in the place of those that are meant. call: f(), which calls it once, or nil.
local function prepare(who, net, o, rounds, call)
  local list, set = chosen(who, net, o)
  local observer = observer_of(who, o.observer, rounds and "moving_average" or "histogram")
  local found = call and in_calls(net, set, call) or in_sequence(net, set)
  local new, names, taken = {}, {}, {}
  for i, item in ipairs(list) do
    local name, layer = item[1], item[2]
    local f = found[layer] or {}
    local bn = usable(f.bn, layer)
    local relu = (bn or not f.bn) and f.relu or nil
    if bn and taken[bn] then bn, relu = nil, nil end
    new[layer] = layers.Prepared(layer, { bn = bn, relu = relu ~= nil, rounds = rounds, observer = observer })
    new[layer]:train(layer.training)
    names[i] = name
    for _, m in ipairs { bn or false, relu or false } do
      if m then
        taken[m] = true
        new[m] = T.nn.Identity()
      end
    end
  end
  return new, names
end

-- f(); where it fails, the layers that new replaced are in their places again.
local function or_back(root, new, f)
  local ok, why = pcall(f)
  if ok then return end
  local old = {}
  for m, other in pairs(new) do old[other] = m end
  quantize.replace(root, old)
  error(why, 0)
end

--- nn.quant.prepare(net, {train=true, observer=, inputs=, target=, skip=}) → net, names of the layers
-- Layers of net that are to compute with 8-bit integers become prepared ones, in place: nn.Conv2d and nn.Linear, with
-- the nn.BatchNorm2d and nn.ReLU behind them, which an nn.Sequential shows, or a call with inputs (a tensor or list of
-- arguments), which is then compared with a call of the prepared network. With train they round inputs and weights
-- as the integers will, with a gradient that passes through, while observers follow the inputs: quantization-aware
-- training. Without, they compute as before, and data that goes through sets the ranges. observer: of inputs,
-- "moving_average" (with train), "histogram" (without), "minmax", "percentile" (99.99 %), or a function that makes one.
-- Weights have a scale for each channel. nn.quant.convert(net) when all is seen.
--   local net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
--   nn.quant.prepare(net)
--   net(T.randn(5, 1, 4, 4)):sum():backward()
--   print(nn.quant.convert(net:eval()):forward(T.randn(1, 1, 4, 4)):dtype())  --> f32
function M.prepare(net, opts)
  network("nn.quant.prepare", net)
  local o = options.check("nn.quant.prepare", opts, { "train", "observer", "inputs", "target", "skip" })
  local train = true
  if o.train ~= nil then train = options.kind("nn.quant.prepare", "train", "bool", o.train) end
  local inputs = o.inputs
  if T.is_tensor(inputs) then inputs = { inputs } end
  if inputs ~= nil then options.tensors("nn.quant.prepare", "inputs", inputs, 1) end
  local calibration = require "perilune.nn.quant.calibration"
  local before
  local function call() before = first_tensor((net(table.unpack(inputs)))) end
  local new, names
  if inputs then
    calibration.quietly(net, function() new, names = prepare("nn.quant.prepare", net, o, train, call) end)
    for old, m in pairs(new) do m:train(old.training) end
  else
    new, names = prepare("nn.quant.prepare", net, o, train)
  end
  local root = quantize.replace(net, new)
  if before then
    or_back(root, new, function()
      M.check("nn.quant.prepare", root, before, function() return (root(table.unpack(inputs))) end)
    end)
  end
  return root, names
end

-- Prepared layers that do not round give what was before; else something else reads what was between two layers.
function M.check(who, net, before, call)
  local calibration = require "perilune.nn.quant.calibration"
  calibration.quietly(net, function()
    local list = {}
    for _, m in ipairs(net:modules()) do
      if class_of(m) == layers.Prepared then
        list[m] = m.rounds
        m.rounds, m.input_quant.rounding = false, false
      end
    end
    local ok, after = pcall(function() return first_tensor(call()) end)
    for m, rounds in pairs(list) do m.rounds, m.input_quant.rounding = rounds, rounds end
    if not ok then error(after, 0) end
    local gap = (after - before):abs():max():item()
    if not T.isfinite(before):all():item() then
      fail("%s: what the network makes of the data is not finite, so it cannot be compared", who)
    end
    if gap ~= gap or gap > 1e-3 * (1 + before:abs():max():item()) then
      fail("%s: the network reads what is between a layer and its batch norm or ReLU elsewhere, too, so they cannot "
        .. "become one (its results differ by %g); leave these layers out by skip", who, gap)
    end
  end)
end

--- nn.quant.convert(net, {state=}) → net, names of the layers
-- Prepared layers, which have seen data, become nn.quant.Int8Conv2d and nn.quant.Int8Linear, with batch norms folded
-- into them. state: a state_dict of a network that was converted, in place of data.
--   local net = nn.quant.prepare(nn.Sequential(nn.Linear(4, 2)), { train = false })
--   net(T.randn(100, 4))
--   print(nn.quant.convert(net)[1])  --> Int8Linear(in_features=4, out_features=2)
function M.convert(net, opts)
  network("nn.quant.convert", net)
  local o = options.check("nn.quant.convert", opts, { "state" })
  local new, names = {}, {}
  for name, m in net:named_modules() do
    if class_of(m) == layers.Prepared then
      new[m] = layers.convert(m, name, o.state ~= nil)
      names[#names + 1] = name
    end
  end
  if #names == 0 then fail "nn.quant.convert: the network has no prepared layers; nn.quant.prepare(net, {…}) first" end
  net = quantize.replace(net, new)
  if o.state ~= nil then net:load_state_dict(o.state) end
  return net, names
end

--- Everything at once, for T.quantize. batches: as calibration.batches gives them.
function M.static(net, batches, forward, o)
  local calibration = require "perilune.nn.quant.calibration"
  local who, first, before, names = "quantize", batches[1], nil, nil
  local trains = {}
  for _, m in ipairs(net:modules()) do trains[m] = m.training end
  local new
  calibration.quietly(net, function()
    new, names = prepare(who, net, o, false, function()
      before = first_tensor((forward(net, table.unpack(first, 1, first.n))))
    end)
  end)
  for old, m in pairs(new) do trains[m] = trains[old] end
  local root = quantize.replace(net, new)
  or_back(root, new, function()
    calibration.quietly(root, function()
      for _, m in ipairs(root:modules()) do -- observers watch, the rest is in evaluation
        if class_of(m) == layers.Prepared then m.input_quant:train() end
      end
      for _, batch in ipairs(batches) do forward(root, table.unpack(batch, 1, batch.n)) end
    end)
    if before then
      M.check(who, root, before, function() return (forward(root, table.unpack(first, 1, first.n))) end)
    end
    for _, m in ipairs(root:modules()) do if trains[m] ~= nil then rawset(m, "training", trains[m]) end end
    root = M.convert(root)
  end)
  return root, names
end

return M
