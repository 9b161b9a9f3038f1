-- SPDX-License-Identifier: MIT
--- T.quantize: layers of a network that become quantized ones. @module perilune.nn.quantize
local Embedding = require("perilune.nn.embedding").Embedding
local Linear = require("perilune.nn.linear").Linear
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"
local quantized = require "perilune.nn.quantized"

local fail, describe = options.fail, options.describe
local rawget = rawget

local M = {}

local function is_exactly(m, class) return getmetatable(m).__class == class end

--- The quantized layer in place of a nn.Linear or nn.Embedding, with these blocks; nil for other layers. dtype: of
-- rows of embeddings, without it that of the old weight.
function M.replacement(m, blocks, format, activations, dtype)
  local new
  dtype = dtype or m.weight:dtype()
  local state = require "perilune.nn.init_state"
  local was = state.off
  state.off = true
  if is_exactly(m, Linear) then
    new = quantized.QuantizedLinear(m.in_features, m.out_features, { bias = false, format = format,
      activations = activations })
    if m.bias then new.bias = m.bias end
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

local function names_of(o, key)
  local v = o[key]
  if type(v) == "string" then v = { v } end
  if v == nil or type(v) == "function" then return v end
  options.list("quantize", key, v, "names")
  for _, word in ipairs(v) do
    if type(word) ~= "string" then fail("quantize: %s must be names of layers, got %s", key, describe(word)) end
  end
  return v
end

local by_bits = { [8] = "Q8_0", [4] = "Q4_0", [5] = "Q5_0" }

--- T.quantize(net, {bits=8, format=, group=32, method="rtn", target=, skip=, embeddings=false, activations="i16"}) →
--   net, names
-- Layers of net become quantized ones, in place: every nn.Linear whose rows are whole blocks becomes a
-- nn.QuantizedLinear, with embeddings every nn.Embedding, too. bits 8, 5, 4 are the formats "Q8_0", "Q5_0", "Q4_0";
-- format names any that can be made. method "rtn": every weight is rounded to the nearest level of its group.
-- target, skip: ends of names of layers, target also f(name, layer). A weight that a layer shares with one that is
-- not meant stays as it is. names: of the layers that were quantized. layer:dequantize() goes back.
--   local net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
--   print(T.quantize(net, { bits = 4 })[3])
--   --> QuantizedLinear(in_features=32, out_features=2, bias=true, format=Q4_0)
function M.quantize(net, opts)
  if not base.is_module(net) then fail("quantize: a network is wanted, got %s", describe(net)) end
  local o = options.check("quantize", opts, { "bits", "format", "group", "method", "target", "skip", "embeddings",
    "activations" })
  if o.bits ~= nil and not by_bits[o.bits] then fail("quantize: bits must be 8, 5 or 4, got %s", describe(o.bits)) end
  if o.bits ~= nil and o.format ~= nil then fail("quantize: bits and format exclude each other") end
  if o.method ~= nil and o.method ~= "rtn" then
    fail("quantize: %s", options.unknown("method", tostring(o.method), { "rtn" }))
  end
  local format, info = o.format or by_bits[o.bits or 8], nil
  local made = {}
  for _, f in ipairs(T.core.block_formats()) do
    if f.writes then made[#made + 1] = f.name end
    if f.writes and f.name == format then info = f end
  end
  if not info then fail("quantize: %s", options.unknown("format", tostring(format), made)) end
  if o.group ~= nil and o.group ~= info.elements then
    fail("quantize: %s has groups of %d, got group = %s", format, info.elements, describe(o.group))
  end
  if o.activations ~= nil and o.activations ~= "i16" and o.activations ~= "float" then
    fail("quantize: %s", options.unknown("activations", tostring(o.activations), { "i16", "float" }))
  end
  local embeddings = o.embeddings ~= nil and options.kind("quantize", "embeddings", "bool", o.embeddings)
  local wanted = chooser(names_of(o, "target"), names_of(o, "skip") or {})
  if type(o.skip) == "function" then fail "quantize: skip must be names of layers; target may be a function" end
  local list, shared = {}, {}
  for name, m in net:named_modules() do
    local w = m._parameters.weight
    if w then
      local takes = (is_exactly(m, Linear) or embeddings and is_exactly(m, Embedding)
        and not m.max_norm) and not rawget(m, "_lora") and w:is_floating_point() and w:size(2) > 0
        and w:size(2) % info.elements == 0 and wanted(name, m)
      if takes then list[#list + 1] = { name, m, w } else shared[w] = true end
    end
  end
  local new, blocks, names = {}, {}, {}
  for _, item in ipairs(list) do
    local name, m, w = table.unpack(item)
    if not shared[w] then
      blocks[w] = blocks[w] or T.no_grad(T.quantize_blocks, w:detach(), { format = format })
      new[m] = M.replacement(m, blocks[w], format, o.activations)
      names[#names + 1] = name
    end
  end
  if #names == 0 then
    fail("quantize: no layer was quantized; nn.Linear with rows of a multiple of %d that is not shared is wanted",
      info.elements)
  end
  return M.replace(net, new), names
end

return M
