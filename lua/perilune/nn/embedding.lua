-- SPDX-License-Identifier: MIT
--- Tables of vectors looked up by number: Embedding, EmbeddingBag.
-- @module perilune.nn.embedding
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local init = require "perilune.nn.initializers"
local init_state = require "perilune.nn.init_state"
local options = require "perilune.options"

local current = require("perilune.nn.simple").current

--- nn.Embedding(…) → module
-- Rows of a table by number, from 1 (index_base=0: from 0). weight [num_embeddings, embedding_dim], normal; the row
-- padding_idx (-1: the last) starts as zeros and gets no gradient. scale_grad_by_freq: each row's gradient divided by
-- how often the ids of a call have it.
-- Shapes: ids [*] → [*, embedding_dim]
--   print(table.concat(nn.Embedding(10, 4)(T.tensor({ 1, 7 }, { dtype = "i64" })):shape(), " "))  --> 2 4
local Embedding = base.class "Embedding"

local spec = options.spec("nn.Embedding", {
  { "num_embeddings", "count" }, { "embedding_dim", "count" }, { "padding_idx", "int", optional = true },
  { "max_norm", "positive", optional = true }, { "norm_type", "number", 2.0 },
  { "scale_grad_by_freq", "bool", false }, { "index_base", "int", 1 }, { "dtype", "string", optional = true } })

-- The row of padding_idx, from 1; negative ones count from the end.
local function padding_row(who, a)
  local first, n = a.index_base, a.num_embeddings
  local at = a.padding_idx
  if at < 0 and at < first then at = at + first + n end
  if at < first or at >= first + n then
    options.fail("%s: padding_idx %d is not in %d..%d", who, a.padding_idx, first, first + n - 1)
  end
  return at - first + 1, at
end

function Embedding:init(...)
  local a = options.read(spec, ...)
  self.num_embeddings, self.embedding_dim = a.num_embeddings, a.embedding_dim
  self.index_base = a.index_base
  self.weight = base.Parameter(init_state.empty({ a.num_embeddings, a.embedding_dim }, { dtype = a.dtype }))
  if a.padding_idx then
    self._padding_row, self.padding_idx = padding_row("nn.Embedding", a)
  end
  self.max_norm, self.norm_type = a.max_norm, a.norm_type
  self.scale_grad_by_freq = a.scale_grad_by_freq
  self._opts = {}
  self:reset_parameters()
end

function Embedding:reset_parameters()
  init.normal_(self.weight)
  if self._padding_row and not init_state.off then
    local _ <close> = T.no_grad()
    self.weight:select(1, self._padding_row):fill_(0)
  end
end

local settings = { "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "index_base" }
function Embedding:forward(ids)
  return F.embedding(ids, self.weight, current(self, settings))
end

function Embedding:extra_repr()
  return ("%d, %d%s"):format(self.num_embeddings, self.embedding_dim,
    self.padding_idx and (", padding_idx=%d"):format(self.padding_idx) or "")
end

--- nn.EmbeddingBag(…) → module
-- Sums, means or maxima of rows of a table over bags of ids; padding_idx does not count. With include_last_offset the
-- last offset is where the last bag ends. max_norm, norm_type and scale_grad_by_freq as in nn.Embedding.
-- Shapes: ids [B, N], or [n] with offsets [B] → [B, embedding_dim]
--   local bag = nn.EmbeddingBag(10, 4, { mode = "sum" })
--   local ids = T.tensor({ 1, 2, 7 }, { dtype = "i64" })
--   print(table.concat(bag(ids, T.tensor({ 1, 3 }, { dtype = "i64" })):shape(), " "))  --> 2 4
local EmbeddingBag = base.class "EmbeddingBag"
local bag_spec = options.spec("nn.EmbeddingBag", {
  { "num_embeddings", "count" }, { "embedding_dim", "count" }, { "mode", { "sum", "mean", "max" }, "mean" },
  { "include_last_offset", "bool", false }, { "padding_idx", "int", optional = true },
  { "max_norm", "positive", optional = true }, { "norm_type", "number", 2.0 },
  { "scale_grad_by_freq", "bool", false }, { "index_base", "int", 1 }, { "dtype", "string", optional = true } })
function EmbeddingBag:init(...)
  local a = options.read(bag_spec, ...)
  self.num_embeddings, self.embedding_dim, self.mode = a.num_embeddings, a.embedding_dim, a.mode
  self.weight = base.Parameter(T.empty({ a.num_embeddings, a.embedding_dim }, { dtype = a.dtype }))
  self.include_last_offset, self.index_base = a.include_last_offset, a.index_base
  self.max_norm, self.norm_type, self.scale_grad_by_freq = a.max_norm, a.norm_type, a.scale_grad_by_freq
  self._opts = {}
  if a.scale_grad_by_freq and a.mode == "max" then
    options.fail 'nn.EmbeddingBag: scale_grad_by_freq goes with mode "sum" or "mean", not "max"'
  end
  if a.padding_idx then self._row, self.padding_idx = padding_row("nn.EmbeddingBag", a) end
  self:reset_parameters()
end
function EmbeddingBag:reset_parameters()
  init.normal_(self.weight)
  local row = self._row
  if row then T.no_grad(function() self.weight:select(1, row):fill_(0) end) end
end
local bag_settings = { "mode", "include_last_offset", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq",
  "index_base" }
--- (ids, offsets, per_sample_weights)
function EmbeddingBag:forward(ids, offsets, per_sample_weights)
  local o = current(self, bag_settings)
  o.per_sample_weights = per_sample_weights
  local y = F.embedding_bag(ids, self.weight, offsets, o)
  o.per_sample_weights = nil
  return y
end
function EmbeddingBag:extra_repr()
  return ("%d, %d, mode=%s"):format(self.num_embeddings, self.embedding_dim, self.mode)
end

return { Embedding = Embedding, EmbeddingBag = EmbeddingBag }
