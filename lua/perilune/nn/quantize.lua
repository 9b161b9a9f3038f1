-- SPDX-License-Identifier: MIT
--- T.quantize: layers of a network that become quantized ones. @module perilune.nn.quantize
local Embedding = require("perilune.nn.embedding").Embedding
local Linear = require("perilune.nn.linear").Linear
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"
local quantized = require "perilune.nn.quantized"

local fail, describe = options.fail, options.describe
local rawget, rawset = rawget, rawset

local M = {}

local function is_exactly(m, class) return getmetatable(m).__class == class end

-- y = x Wᵀ + b and nothing else: nn.Linear, and GPT-2's layers with W [in, out].
local function is_linear(m) return is_exactly(m, Linear) or rawget(getmetatable(m).__class, "linear") == true end

--- W [out, in] of such a layer, a view of its weight.
function M.matrix(m) return m.transposed and m.weight:t() or m.weight end

--- The quantized layer in place of a linear one or a nn.Embedding, with these blocks; nil for other layers. dtype: of
-- rows of embeddings, without it that of the old weight.
function M.replacement(m, blocks, format, activations, dtype)
  local new
  dtype = dtype or m.weight:dtype()
  local state = require "perilune.nn.init_state"
  local was = state.off
  state.off = true
  if is_linear(m) then
    new = quantized.QuantizedLinear(m.in_features, m.out_features, { bias = false, format = format,
      activations = activations })
    if m.bias then new.bias = m.bias end
    if m.transposed then -- it is saved and dequantized as what it was
      rawset(new, "transposed", true)
      rawset(new, "_stands_for", getmetatable(m).__class)
    end
  elseif is_exactly(m, Embedding) then
    new = quantized.QuantizedEmbedding(m.num_embeddings, m.embedding_dim, { format = format,
      index_base = m.index_base, dtype = dtype })
  end
  state.off = was
  if new then
    new[new._key] = blocks
    new:train(m.training)
  end
  return new
end

--- Puts new modules in the place of others, wherever these are children: { [old] = new }. → the root
function M.replace(net, new)
  if new[net] then return new[net] end
  for _, m in ipairs(net:modules()) do
    for _, key in ipairs(base.member_names(m)) do
      local child = rawget(m, key)
      if base.is_module(child) and new[child] then m[key] = new[child] end
    end
  end
  return net
end

local function ends(name, word) return name == word or name:sub(-#word - 1) == "." .. word end

-- Whether a layer is meant: f(name, layer).
local function chooser(target, skip)
  local function one_of(list, name)
    for _, word in ipairs(list) do if ends(name, word) then return true end end
    return false
  end
  return function(name, m)
    if type(target) == "function" then return target(name, m) and true or false end
    return (target == nil or one_of(target, name)) and not one_of(skip, name)
  end
end

local function names_of(who, o, key)
  local v = o[key]
  if type(v) == "string" then v = { v } end
  if v == nil or type(v) == "function" then return v end
  options.list(who, key, v, "names")
  for _, word in ipairs(v) do
    if type(word) ~= "string" then fail("%s: %s must be names of layers, got %s", who, key, describe(word)) end
  end
  return v
end

--- Whether a layer is meant by the options target and skip: f(name, layer).
function M.chooser(who, o)
  if type(o.skip) == "function" then fail("%s: skip must be names of layers; target may be a function", who) end
  return chooser(names_of(who, o, "target"), names_of(who, o, "skip") or {})
end

local by_bits = { [8] = "Q8_0", [4] = "Q4_0", [5] = "Q5_0" }

local function forward_of(o) return o.forward or function(net, ...) return net(...) end end

-- What one layer of a group becomes, by methods that look at its inputs: { [weight] = {blocks, scale} }.
local function calibrated(list, method, info, o, net)
  local calibration = require "perilune.nn.quant.calibration"
  local batches = calibration.batches("quantize", o.calibration, o.forward ~= nil)
  local forward, names = forward_of(o), {}
  for _, item in ipairs(list) do names[item[2]] = item[1] end
  local awq, fold = require "perilune.nn.quant.awq", require "perilune.nn.quant.fold"
  local now = {} -- layers in the place of others
  -- Scales of the inputs of a group, and whether they are in what is before.
  local function scales(group, weights, gram, before, look)
    local m, source
    if o.fold then
      for i, b in ipairs(before) do before[i] = now[b] or b end
      m, source = fold.find(group, before, look)
    end
    if o.fold == "only" and not m then return T.ones_like(gram.size), true end
    local size = source and fold.pooled(gram.size, source) or gram.size
    local s = awq.scales(weights, gram.gram, size, info)
    local folded, back
    if m then folded, back = fold.put(group, m, source, s, look) end
    if o.fold == "only" and not folded then return T.ones_like(s), true end
    return folded or s, folded ~= nil, back
  end
  local function each(group, gram, before, look, done)
    local where = group[1].weight:device()
    if gram.gram:abs():amax():item() == 0 then -- nothing is known of the inputs
      for _, m in ipairs(group) do
        now[m] = done(m, T.quantize_blocks(M.matrix(m):detach():contiguous(), { format = info.name }), nil)
      end
      return
    end
    local weights, scale, inside, back = {}, nil, nil, nil
    for i, m in ipairs(group) do weights[i] = M.matrix(m):detach():double():contiguous() end
    if method == "awq" then scale, inside, back = scales(group, weights, gram, before, look) end
    local made = {}
    local ok, why = pcall(function() -- all of them, or none with what is before divided already
      for i, m in ipairs(group) do
        if scale then
          made[i] = awq.quantize(weights[i], gram.gram, scale, info):to(where)
        else
          made[i] = require("perilune.nn.quant.gptq").quantize(weights[i], gram.gram, info, o)
          if not made[i] then fail("quantize: the inputs of %s are singular; a larger damp may help", names[m]) end
          made[i] = made[i]:to(where)
        end
        weights[i] = nil
      end
    end)
    if not ok then
      if back then back() end
      error(why, 0)
    end
    for i, m in ipairs(group) do
      now[m] = done(m, made[i], scale and not inside and scale:reciprocal():to(m.weight:dtype()) or nil)
    end
  end
  return function(done)
    calibration.quietly(net, function()
      calibration.each("quantize", net, batches, forward, list, method == "awq" and o.fold,
        function(group, gram, _, before, look) each(group, gram, before, look, done) end)
    end)
  end
end

local METHODS = { "rtn", "gptq", "awq", "static" }
-- Options of one method alone.
local of_method = { calibration = "gptq awq static", forward = "gptq awq static", act_order = "gptq", damp = "gptq",
  observer = "static", bits = "rtn gptq awq", format = "rtn gptq awq", group = "rtn gptq awq",
  embeddings = "rtn gptq awq", activations = "rtn gptq awq", input_scale = "rtn awq", fold = "awq" }

local function check_method(o)
  local method = o.method == nil and "rtn" or o.method
  local known = false
  for _, name in ipairs(METHODS) do known = known or name == method end
  if not known then fail("quantize: %s", options.unknown("method", tostring(method), METHODS)) end
  for key, text in pairs(of_method) do
    if o[key] ~= nil and not (" " .. text .. " "):find(" " .. method .. " ", 1, true) then
      fail('quantize: %s is for method "%s", and it is "%s"', key, text:gsub(" ", '" or "'), method)
    end
  end
  local function of(key, kind, default)
    if o[key] == nil then return default end
    return options.kind("quantize", key, kind, o[key])
  end
  return method, { calibration = o.calibration, forward = of("forward", "callable"), act_order = of("act_order", "bool",
    false), damp = of("damp", "positive", 0.01), fold = o.fold == "only" and "only" or of("fold", "bool", true) }
end

--- T.quantize(net, {bits=8, format=, group=32, method="rtn", target=, skip=, embeddings=false, activations="i16",
--   input_scale=false, fold=true, calibration=, forward=, act_order=false, damp=0.01, observer="histogram"})
--   → net, names, left
-- Layers of net become quantized ones, in place: every nn.Linear (and GPT-2's layers of that kind) whose rows are whole
-- blocks becomes a nn.QuantizedLinear, with embeddings every nn.Embedding, too. bits 8, 5, 4 are the formats "Q8_0",
-- "Q5_0", "Q4_0"; format names any that can be made. target, skip: ends of names of layers, target also f(name, layer).
-- A weight that a layer shares with one that is not meant stays as it is. names: of the layers that were quantized;
-- left: of those that were meant and were not, each with the reason behind a colon. layer:dequantize() goes back.
-- Methods:
-- "rtn": every weight is rounded to the nearest level of its group. input_scale: with scales of ones, into which the
-- state of a network by "awq" can be loaded; that state, as a table: where it has some.
-- "gptq" (Frantar et al. 2022): what rounding loses in one column the later ones make up for, on the inputs that the
-- layer has with the calibration data. act_order: the columns with the largest inputs first. damp: share of the mean
-- that is added to the diagonal of their Gram matrix.
-- "awq" (Lin et al. 2023): channels with large inputs are rounded more finely. What undoes it is put into the norm or
-- linear layer that makes the input, where nothing else reads that (it is tried); else layer.input_scale, with which x
-- is multiplied, undoes it. fold "only": no layer gets one, which GGUF files have no place for; false: all layers do.
-- "static": nn.Conv2d and nn.Linear become nn.quant.Int8Conv2d and nn.quant.Int8Linear, which round their inputs, too,
-- to 8 bits with scales that the calibration data sets, and compute with integers; batch norms and ReLUs behind them
-- become part of them. observer as in nn.quant.prepare.
-- calibration: inputs of net: a tensor, a list of them or of lists of arguments, a DataLoader or iterator, of which the
-- first value counts. forward: f(net, …), which gets all of them; without it net(…). Layers are quantized one after
-- another, each with inputs from those that are quantized already.
--   local net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
--   T.quantize(net, { bits = 4, method = "gptq", calibration = T.randn(100, 64) })
--   print(net[3])  --> QuantizedLinear(in_features=32, out_features=2, bias=true, format=Q4_0)
function M.quantize(net, opts)
  if not base.is_module(net) then fail("quantize: a network is wanted, got %s", describe(net)) end
  local o = options.check("quantize", opts, { "bits", "format", "group", "method", "target", "skip", "embeddings",
    "activations", "input_scale", "fold", "calibration", "forward", "act_order", "damp", "observer" })
  if o.bits ~= nil and not by_bits[o.bits] then fail("quantize: bits must be 8, 5 or 4, got %s", describe(o.bits)) end
  if o.bits ~= nil and o.format ~= nil then fail("quantize: bits and format exclude each other") end
  local method, settings = check_method(o)
  if method == "static" then
    local calibration = require "perilune.nn.quant.calibration"
    local batches = calibration.batches("quantize", o.calibration, o.forward ~= nil)
    return require("perilune.nn.quant.prepare").static(net, batches, forward_of(settings), o)
  end
  local format, info = o.format or by_bits[o.bits or 8], nil
  local made = {}
  for _, f in ipairs(T.core.block_formats()) do
    if f.writes then made[#made + 1] = f.name end
    if f.writes and f.name == format then info = f end
  end
  if not info then fail("quantize: %s", options.unknown("format", tostring(format), made)) end
  if method ~= "rtn" then
    local codes = require "perilune.nn.quant.codes"
    info = codes.format(format)
    if not info then
      fail('quantize: method "%s" makes %s, not %s', method, table.concat(codes.names(), ", "), format)
    end
  end
  if o.group ~= nil and o.group ~= info.elements then
    fail("quantize: %s has groups of %d, got group = %s", format, info.elements, describe(o.group))
  end
  if o.activations ~= nil and o.activations ~= "i16" and o.activations ~= "float" then
    fail("quantize: %s", options.unknown("activations", tostring(o.activations), { "i16", "float" }))
  end
  local embeddings = o.embeddings ~= nil and options.kind("quantize", "embeddings", "bool", o.embeddings)
  local ones = o.input_scale
  if ones ~= nil and type(ones) ~= "table" then options.kind("quantize", "input_scale", "bool", ones) end
  local wanted = M.chooser("quantize", o)
  local list, shared, left = {}, {}, {}
  local function why_not(m, w)
    if rawget(m, "_lora") then return "it has an adapter" end
    if not w:is_floating_point() then return "its weight is " .. w:dtype() end
    local columns = is_linear(m) and m.in_features or w:size(2)
    if columns == 0 or columns % info.elements ~= 0 then
      return ("rows of %d elements are no whole blocks of %d"):format(columns, info.elements)
    end
    if m.max_norm then return "it has max_norm" end
  end
  for name, m in net:named_modules() do
    local w = m._parameters.weight
    if w then
      local meant = (is_linear(m) or embeddings and is_exactly(m, Embedding)) and wanted(name, m)
      local why = meant and why_not(m, w)
      if why then left[#left + 1] = name .. ": " .. why end
      if meant and not why then list[#list + 1] = { name, m, w } else shared[w] = true end
    elseif is_linear(m) and wanted(name, m) then
      left[#left + 1] = name .. ": its weight is computed of others"
    end
  end
  for _, item in ipairs(list) do
    if shared[item[3]] then left[#left + 1] = item[1] .. ": a layer that is not meant has the same weight" end
  end
  local blocks, names, linear, users, trains = {}, {}, {}, {}, {}
  local function made_of(m, of, scale)
    local q = M.replacement(m, of, format, o.activations)
    if scale and is_linear(m) then q:register_buffer("input_scale", scale) end
    return q:train(trains[m]) -- it does not while data goes through
  end
  for _, item in ipairs(list) do
    local name, m, w = table.unpack(item)
    if not shared[w] then
      names[#names + 1], trains[m] = name, m.training
      users[w] = users[w] or {}
      table.insert(users[w], m)
      if method ~= "rtn" and is_linear(m) then linear[#linear + 1] = item end
    end
  end
  if #names == 0 then
    fail("quantize: no layer was quantized; nn.Linear with rows of a multiple of %d that is not shared is wanted%s",
      info.elements, #left > 0 and " (" .. table.concat(left, "; ", 1, math.min(#left, 3)) .. ")" or "")
  end
  for w, modules in pairs(users) do
    local n = 0
    for _, m in ipairs(modules) do if is_linear(m) then n = n + 1 end end
    if method ~= "rtn" and n > 0 and #modules > 1 then
      for _, item in ipairs(list) do
        if item[3] == w then
          fail('quantize: the weight of %s is shared by %d layers, for which method "%s" would find different blocks; '
            .. "name them in skip", item[1], #modules, method)
        end
      end
    end
  end
  local run, new = #linear > 0 and calibrated(linear, method, info, settings, net), {}
  for _, item in ipairs(list) do
    local m, w = item[2], item[3]
    if not shared[w] and (method == "rtn" or not is_linear(m)) then
      blocks[w] = blocks[w] or T.no_grad(T.quantize_blocks, M.matrix(m):detach():contiguous(), { format = format })
      local scaled = ones
      if type(ones) == "table" then scaled = ones[item[1] .. ".input_scale"] ~= nil end
      new[m] = made_of(m, blocks[w],
        scaled and is_linear(m) and T.ones({ m.in_features }, { dtype = w:dtype(), device = w:device() }) or nil)
    end
  end
  net = M.replace(net, new)
  if run then
    run(function(m, of, scale)
      local q = made_of(m, of, scale)
      net = M.replace(net, { [m] = q })
      return q
    end)
  end
  return net, names, left
end

return M
