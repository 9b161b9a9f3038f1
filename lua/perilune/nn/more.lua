-- SPDX-License-Identifier: MIT
--- Layers with functions of nn.F behind them: AlphaDropout, FeatureAlphaDropout, RReLU, EmbeddingBag, MaxUnpool,
-- ParameterDict.
-- @module perilune.nn.more
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local init = require "perilune.nn.init_"
local options = require "perilune.options"

local class, fail, describe, read = base.class, options.fail, options.describe, options.read
local out = {}

-- Dropout for networks of SELU: elements, or whole channels.
for name, f in pairs { AlphaDropout = "alpha_dropout", FeatureAlphaDropout = "feature_alpha_dropout" } do
  local C = class(name)
  local spec = options.spec("nn." .. name, { { "p", "probability", 0.5 } })
  function C:init(...) self.p = read(spec, ...).p end
  function C:forward(x) return F[f](x, self.p, self.training) end
  function C:extra_repr() return ("p=%g"):format(self.p) end
  out[name] = C
end

--- leaky_relu with random slopes in training, their mean otherwise.
local RReLU = class "RReLU"
local rrelu_spec = options.spec("nn.RReLU", { { "lower", "number", 1 / 8 }, { "upper", "number", 1 / 3 } })
function RReLU:init(...)
  local a = read(rrelu_spec, ...)
  if a.lower > a.upper then fail("nn.RReLU: lower %g is above upper %g", a.lower, a.upper) end
  self.lower, self.upper = a.lower, a.upper
end
function RReLU:forward(x) return F.rrelu(x, self.lower, self.upper, self.training) end
function RReLU:extra_repr() return ("lower=%g, upper=%g"):format(self.lower, self.upper) end
out.RReLU = RReLU

--- Sums, means or maxima of the rows of a table over bags of ids [B, N], or [n] with offsets → [B, embedding_dim].
-- weight [num_embeddings, embedding_dim], normal. The row `padding_idx` does not count.
local EmbeddingBag = class "EmbeddingBag"
local bag_spec = options.spec("nn.EmbeddingBag", {
  { "num_embeddings", "count" }, { "embedding_dim", "count" }, { "mode", { "sum", "mean", "max" }, "mean" },
  { "include_last_offset", "bool", false }, { "padding_idx", "int", optional = true }, { "index_base", "int", 1 },
  { "dtype", "string", optional = true } })
function EmbeddingBag:init(...)
  local a = read(bag_spec, ...)
  self.num_embeddings, self.embedding_dim, self.mode = a.num_embeddings, a.embedding_dim, a.mode
  self.weight = base.Parameter(T.empty({ a.num_embeddings, a.embedding_dim }, { dtype = a.dtype }))
  self._opts = { mode = a.mode, include_last_offset = a.include_last_offset, padding_idx = a.padding_idx,
    index_base = a.index_base }
  local row = a.padding_idx and a.padding_idx - a.index_base + 1
  if row and (row < 1 or row > a.num_embeddings) then
    fail("nn.EmbeddingBag: padding_idx %d is not in %d..%d", a.padding_idx, a.index_base,
      a.index_base + a.num_embeddings - 1)
  end
  self._row = row
  self:reset_parameters()
end
function EmbeddingBag:reset_parameters()
  init.normal_(self.weight)
  local row = self._row
  if row then T.no_grad(function() self.weight:select(1, row):fill_(0) end) end
end
--- (ids, offsets, per_sample_weights)
function EmbeddingBag:forward(ids, offsets, per_sample_weights)
  local o = self._opts
  if per_sample_weights then
    o = {}
    for key, v in pairs(self._opts) do o[key] = v end
    o.per_sample_weights = per_sample_weights
  end
  return F.embedding_bag(ids, self.weight, offsets, o)
end
function EmbeddingBag:extra_repr()
  return ("%d, %d, mode=%s"):format(self.num_embeddings, self.embedding_dim, self.mode)
end
out.EmbeddingBag = EmbeddingBag

for nd = 1, 3 do
  local name, f = ("MaxUnpool%dd"):format(nd), ("max_unpool%dd"):format(nd)
  local C = class(name)
  local spec = options.spec("nn." .. name, { { "kernel_size", "window" }, { "stride", "window", optional = true },
    { "padding", "window", 0 }, { "index_base", "int", 1 } })
  function C:init(...)
    local a = read(spec, ...)
    self.kernel_size, self.stride, self.padding, self.index_base = a.kernel_size, a.stride, a.padding, a.index_base
  end
  --- (x, indices of a max pooling, {output_size=})
  function C:forward(x, indices, opts)
    local o = options.check(name, opts, { "output_size" })
    return F[f](x, indices, self.kernel_size, { stride = self.stride, padding = self.padding,
      output_size = o.output_size, index_base = self.index_base })
  end
  out[name] = C
end

--- Parameters by name: `nn.ParameterDict{a = T.zeros(2)}`; tensors become parameters. `d.a`, `d:get(name)`,
-- `d:set(name, t)`, `d:keys()`.
local ParameterDict = class "ParameterDict"
function ParameterDict:init(given)
  if given ~= nil and type(given) ~= "table" then
    fail("nn.ParameterDict: a table of tensors is wanted, got %s", describe(given))
  end
  local names = {}
  for name in pairs(given or {}) do names[#names + 1] = name end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  for _, name in ipairs(names) do self:set(name, given[name]) end
end
function ParameterDict:set(name, p)
  if type(name) ~= "string" then fail("ParameterDict: names are strings, got %s", describe(name)) end
  if ParameterDict[name] ~= nil or name == "training" or name:sub(1, 1) == "_" then
    fail("ParameterDict: the name '%s' is taken by a method or field", name)
  end
  if not T.is_tensor(p) then fail("ParameterDict: '%s' must be a tensor, got %s", name, describe(p)) end
  self[name] = base.is_parameter[p] and p or base.Parameter(p)
  return self
end
function ParameterDict:get(name) return base.member(self, name) end
--- Names in the order in which they were set.
function ParameterDict:keys()
  local names = {}
  for name in self:named_parameters() do names[#names + 1] = name end
  return names
end
function ParameterDict:__len() return #self:keys() end
out.ParameterDict = ParameterDict

return out
