-- SPDX-License-Identifier: MIT
--- Layers whose weights are blocks of ggml's formats, and what makes them of others.
-- @module perilune.nn.quantized
local T = require "perilune"
local Embedding = require("perilune.nn.embedding").Embedding
local Linear = require("perilune.nn.linear").Linear
local base = require "perilune.nn.module"
local init_state = require "perilune.nn.init_state"
local options = require "perilune.options"

local fail, read = options.fail, options.read
local quantized_linear, dequantize_blocks = T.quantized_linear, T.dequantize_blocks
local rawget, rawset = rawget, rawset

local M = {}

-- Formats with numbers by name: elements and bytes of a block, whether they can be made.
local formats = {}
for _, f in ipairs(T.core.block_formats()) do if f.reads then formats[f.name] = f end end

local function format_of(who, name)
  if formats[name] then return formats[name] end
  local list = {}
  for known in pairs(formats) do list[#list + 1] = known end
  table.sort(list)
  fail("%s: %s", who, options.unknown("format", tostring(name), list))
end

-- The buffer has the format in its name: blocks of two formats may be of one size, and a state must not go from one to
-- the other without a word.
local function keep(self, blocks, format)
  rawset(self, "format", format)
  rawset(self, "_key", "weight_" .. format:lower())
  self:register_buffer(self._key, blocks)
end

-- A class whose objects have their blocks as `weight`, whatever the buffer is called.
local function class(name)
  local C = base.class(name)
  function C.__index(self, key)
    if key ~= "weight" then return C[key] end
    local own = rawget(self, "_key")
    return own and rawget(self, own)
  end
  return C
end

local function empty_blocks(who, rows, elements, f)
  if elements % f.elements ~= 0 or elements == 0 then
    fail("%s: rows of %d elements are no whole blocks of %s, of %d elements each", who, elements, f.name, f.elements)
  end
  local bytes = elements // f.elements * f.bytes
  if init_state.off then return T.empty({ 1, 1 }, { dtype = "u8" }):expand(rows, bytes) end
  return T.zeros({ rows, bytes }, { dtype = "u8" })
end

-- ---- linear ------------------------------------------------------------------------------------------------

--- nn.QuantizedLinear(…) → module
-- nn.Linear with a weight in blocks of format, "Q8_0", "Q4_K" …, which is not trained: y = x Wᵀ + b, with gradients
-- for x and b. Results have x's dtype, any floating one. T.quantize and T.models.load make them; a new one is zeros.
-- activations "i16": x may be rounded to 16 bits in every 32 elements; "float": it stays as it is. layer.weight are the
-- blocks, u8 [out, bytes of a row], a buffer whose name in the state has the format; layer:numbers() is W.
-- Shapes: [*, in_features] → [*, out_features]
--   local l = nn.QuantizedLinear(64, 2, { format = "Q4_0" })
--   print(l)  --> QuantizedLinear(in_features=64, out_features=2, bias=true, format=Q4_0)
--   print(table.concat(l.weight:shape(), " "))  --> 2 36
local QuantizedLinear = class "QuantizedLinear"
local linear_spec = options.spec("nn.QuantizedLinear", { { "in_features", "count" }, { "out_features", "size" },
  { "bias", "bool", true }, { "format", "string", "Q8_0" }, { "activations", { "i16", "float" }, "i16" },
  { "dtype", "string", optional = true }, { "input_scale", "bool", false } })

local function set_up(self, from, to, format, activations)
  self.in_features, self.out_features, self.activations = from, to, activations
  rawset(self, "_opts", { format = format, activations = activations })
end

function QuantizedLinear:init(...)
  local a = read(linear_spec, ...)
  local f = format_of("nn.QuantizedLinear", a.format)
  set_up(self, a.in_features, a.out_features, a.format, a.activations)
  keep(self, empty_blocks("nn.QuantizedLinear", a.out_features, a.in_features, f), a.format)
  if a.bias then self.bias = base.Parameter(T.zeros({ a.out_features }, { dtype = a.dtype })) end
  if a.input_scale then self:register_buffer("input_scale", T.ones({ a.in_features }, { dtype = a.dtype })) end
end

-- t in x's dtype: blocks have none, so nothing but x says what is computed in.
local function as(x, t)
  if t and t:dtype() ~= x:dtype() and x:is_floating_point() then return t:to(x:dtype()) end
  return t
end

function QuantizedLinear:forward(x)
  local scale = rawget(self, "input_scale")
  if scale then x = x * as(x, scale) end
  local o = self._opts
  o.activations = self.activations -- as it is now
  return quantized_linear(x, rawget(self, self._key), as(x, self.bias), o)
end

--- W as numbers, [out_features, in_features] of dtype, f32 by default; n rows of it from row `from` on.
function QuantizedLinear:numbers(dtype, from, n)
  local scale, blocks = rawget(self, "input_scale"), self.weight
  if from then blocks = blocks:narrow(1, from, n) end
  if not scale then return dequantize_blocks(blocks, { format = self.format, dtype = dtype or "f32" }) end
  local wide = (dtype == "f64" or scale:dtype() == "f64") and "f64" or "f32"
  return (dequantize_blocks(blocks, { format = self.format, dtype = wide }) * scale:to(wide)):to(dtype or "f32")
end

--- The nn.Linear with the same numbers, or the layer that it stands for.
function QuantizedLinear:dequantize(dtype)
  local other = rawget(self, "_stands_for") -- a class whose weight is [in, out]
  if other then
    local l = base.instance(other)
    l.in_features, l.out_features, l.transposed = self.in_features, self.out_features, true
    l.weight = base.Parameter(self:numbers(dtype):t():contiguous())
    if self.bias then l.bias = self.bias end
    return l:train(self.training)
  end
  local l = Linear(self.in_features, 0, { bias = false })
  l.out_features = self.out_features
  l.weight = base.Parameter(self:numbers(dtype))
  if self.bias then l.bias = self.bias end
  return l
end

function QuantizedLinear:extra_repr()
  return ("in_features=%d, out_features=%d, bias=%s, format=%s%s"):format(self.in_features, self.out_features,
    tostring(self.bias ~= nil), self.format, rawget(self, "input_scale") and ", input_scale=true" or "")
end
M.QuantizedLinear = QuantizedLinear

-- ---- embedding ---------------------------------------------------------------------------------------------

--- nn.QuantizedEmbedding(…) → module
-- nn.Embedding with a table in blocks of format, which is not trained. Results are f32, or what the network was
-- converted to.
-- Shapes: ids [*] → [*, embedding_dim]
--   local e = nn.QuantizedEmbedding(10, 32, { format = "Q8_0" })
--   print(table.concat(e(T.tensor({ 1, 7 }, { dtype = "i64" })):shape(), " "))  --> 2 32
local QuantizedEmbedding = class "QuantizedEmbedding"
local embedding_spec = options.spec("nn.QuantizedEmbedding", { { "num_embeddings", "count" },
  { "embedding_dim", "count" }, { "format", "string", "Q8_0" }, { "index_base", "int", 1 },
  { "dtype", "string", optional = true } })

function QuantizedEmbedding:init(...)
  local a = read(embedding_spec, ...)
  local f = format_of("nn.QuantizedEmbedding", a.format)
  self.num_embeddings, self.embedding_dim, self.index_base = a.num_embeddings, a.embedding_dim, a.index_base
  rawset(self, "_opts", { index_base = a.index_base })
  self:register_buffer("like", T.zeros({ 0 }, { dtype = a.dtype }), { persistent = false }) -- the dtype of results
  keep(self, empty_blocks("nn.QuantizedEmbedding", a.num_embeddings, a.embedding_dim, f), a.format)
end

function QuantizedEmbedding:forward(ids)
  local o = self._opts
  o.index_base = self.index_base -- as it is now
  local rows = T.embedding(rawget(self, self._key), ids, o)
  return dequantize_blocks(rows, { format = self.format, dtype = self.like:dtype() })
end

--- The table as numbers, [num_embeddings, embedding_dim] of dtype, f32 by default.
QuantizedEmbedding.numbers = QuantizedLinear.numbers

--- The nn.Embedding with the same numbers.
function QuantizedEmbedding:dequantize(dtype)
  local e = Embedding(1, self.embedding_dim, { index_base = self.index_base })
  e.num_embeddings = self.num_embeddings
  e.weight = base.Parameter(self:numbers(dtype))
  return e
end

function QuantizedEmbedding:extra_repr()
  return ("%d, %d, format=%s"):format(self.num_embeddings, self.embedding_dim, self.format)
end
M.QuantizedEmbedding = QuantizedEmbedding

return M
