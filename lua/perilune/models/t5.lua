-- SPDX-License-Identifier: MIT
--- T5 (Raffel et al. 2019): an encoder and a decoder whose places are numbers added to the scores, by buckets of
-- distance.
-- @module perilune.models.t5
local T = require "perilune"
local attention = require "perilune.nn.grouped_attention"
local base = require "perilune.models.base"
local config = require "perilune.models.config"
local encoder = require "perilune.models.encoder"
local json = require "perilune.io.json"
local module = require "perilune.nn.module"
local nn = require "perilune.nn"
local seq2seq = require "perilune.models.seq2seq"

local M = {}

local fields = { { "vocab_size", "count", 32128 }, { "d_model", "count", 512 }, { "d_kv", "count", 64 },
  { "d_ff", "count", 2048 }, { "num_layers", "count", 6 }, { "num_decoder_layers", "count" }, { "num_heads", "count",
    8 },
  { "relative_attention_num_buckets", "count", 32 }, { "relative_attention_max_distance", "count", 128 },
  { "dropout_rate", "probability", 0.1 }, { "layer_norm_epsilon", "nonnegative", 1e-6 },
  { "feed_forward_proj", "string", "relu" }, { "dense_act_fn", "string" }, { "is_gated_act", "bool" },
  { "scale_decoder_outputs", "bool" }, { "pad_token_id", "int", 0 },
  { "eos_token_id", "ints", 1 }, { "decoder_start_token_id", "int", 0 }, { "initializer_factor", "positive", 1.0 } }

-- ---- distances --------------------------------------------------------------------------------------------------

--- The buckets, from 0, of keys 1 … s as seen by queries past + 1 … past + l: i64 [l, s]. Half of the buckets are
-- for single distances, the others for wider and wider ones up to `most`.
function M.buckets(l, s, past, count, most, both_ways, device)
  local key = T.arange(s, { device = device }):unsqueeze(1)
  local distance = key - T.arange(past + 1, past + l, { device = device }):unsqueeze(2)
  local side
  if both_ways then
    count = count // 2
    side, distance = distance:gt(0):long() * count, distance:abs()
  else
    distance = -distance:clamp { max = 0 }
  end
  local exact = count // 2
  local wide = (distance:clamp { min = 1 }:float() / exact):log() / math.log(most / exact) * (count - exact)
  wide = (wide:trunc():long() + exact):clamp { max = count - 1 }
  local bucket = T.where(distance:lt(exact), distance, wide)
  return side and bucket + side or bucket
end

-- ---- layers -----------------------------------------------------------------------------------------------------

local function norm(c) return nn.RMSNorm(c.d_model, { eps = c.layer_norm_epsilon }) end

local function attend(c, first)
  local a = nn.GroupedQueryAttention(c.d_model, c.num_heads, { head_dim = c.d_kv, scale = 1.0, dropout = c.dropout_rate,
    names = { q = "q", k = "k", v = "v", out = "o" } })
  if first then
    a.relative_attention_bias = nn.Embedding(c.relative_attention_num_buckets, c.num_heads, { index_base = 0 })
  end
  return a
end

-- wo(act(wi(x))), or wo(act(wi_0(x)) · wi_1(x)).
local Feed = module.class "T5Feed"
function Feed:init(c)
  if c.gated then
    self.wi_0 = nn.Linear(c.d_model, c.d_ff, { bias = false })
    self.wi_1 = nn.Linear(c.d_model, c.d_ff, { bias = false })
  else
    self.wi = nn.Linear(c.d_model, c.d_ff, { bias = false })
  end
  self.wo = nn.Linear(c.d_ff, c.d_model, { bias = false })
  self.dropout = nn.Dropout(c.dropout_rate)
  rawset(self, "_act", c.act)
end
function Feed:forward(x)
  local y = self.wi and self._act(self.wi(x)) or self._act(self.wi_0(x)) * self.wi_1(x)
  return self.wo(self.dropout(y))
end

local Block = module.class "T5Block"
function Block:init(c, i, decodes)
  local list = { encoder.group({ "SelfAttention", attend(c, i == 1) }, { "layer_norm", norm(c) }) }
  if decodes then list[2] = encoder.group({ "EncDecAttention", attend(c, false) }, { "layer_norm", norm(c) }) end
  list[#list + 1] = encoder.group({ "DenseReluDense", Feed(c) }, { "layer_norm", norm(c) })
  self.layer = nn.ModuleList(list)
  self.dropout = nn.Dropout(c.dropout_rate)
end
function Block:forward(x, how)
  local own, feed, across = self.layer[1], self.layer[#self.layer], #self.layer == 3 and self.layer[2]
  x = x + self.dropout(own.SelfAttention(own.layer_norm(x), { mask = how.bias, cache = how.cache, layer = how.layer }))
  if across then
    x = x + self.dropout(across.EncDecAttention(across.layer_norm(x), { memory = how.memory, mask = how.memory_mask,
      cache = how.cache, layer = how.cache and "memory" .. how.layer or nil }))
  end
  return x + self.dropout(feed.DenseReluDense(feed.layer_norm(x)))
end

local Stack = module.class "T5Stack"
function Stack:init(c, n, words, decodes)
  self.embed_tokens = nn.Embedding(c.vocab_size, c.d_model, { index_base = 0 })
  base.tie(self.embed_tokens, words)
  local list = {}
  for i = 1, n do list[i] = Block(c, i, decodes) end
  self.block = nn.ModuleList(list)
  self.final_layer_norm = norm(c)
  self.dropout = nn.Dropout(c.dropout_rate)
  self.decodes, self.buckets, self.most = decodes, c.relative_attention_num_buckets, c.relative_attention_max_distance
  rawset(self, "_who", c.who)
end
--- (ids, {padding=, memory=, memory_mask=, cache=, hidden_states=}) → [B, L, d_model], hidden states if wanted
function Stack:forward(tokens, o)
  local ids = base.ids(self._who, tokens, self.embed_tokens.num_embeddings)
  local x, past = self.dropout(self.embed_tokens(ids)), o.cache and #o.cache or 0
  local b, l, device = ids:size(1), ids:size(2), ids:device()
  local table_of = self.block[1].layer[1].SelfAttention.relative_attention_bias
  local bias = table_of(M.buckets(l, past + l, past, self.buckets, self.most, not self.decodes, device))
  bias = bias:permute { 3, 1, 2 }:unsqueeze(1)
  local seen = attention.mask { length = l, past = past, causal = self.decodes, device = device,
    padding = base.padding(self._who, o.padding, b, past + l) }
  if seen then bias = T.where(seen, bias, T.full({ 1 }, -math.huge, { dtype = bias:dtype(), device = device })) end
  local hidden = o.hidden_states and { x } or nil
  for i, block in ipairs(self.block) do
    x = block(x, { bias = bias, memory = o.memory, memory_mask = o.memory_mask, cache = o.cache, layer = i })
    if hidden then hidden[i + 1] = x end
  end
  x = self.dropout(self.final_layer_norm(x))
  if hidden then hidden[#hidden] = x end
  return x, hidden
end

-- ---- models -----------------------------------------------------------------------------------------------------

local function encode(self, x, o)
  local y, hidden = self.encoder(x, { padding = o.attention_mask, hidden_states = o.hidden_states })
  local padding = base.padding(self.encoder._who, o.attention_mask, y:size(1), y:size(2))
  return y, padding and padding:ne(0):unsqueeze(2):unsqueeze(2) or nil, hidden
end

local Model = module.class("T5ForConditionalGeneration", seq2seq.Seq2Seq)
function Model:init(c)
  self.shared = nn.Embedding(c.vocab_size, c.d_model, { index_base = 0 })
  self.encoder = Stack(c, c.num_layers, self.shared, false)
  self.decoder = Stack(c, c.num_decoder_layers or c.num_layers, self.shared, true)
  self.lm_head = nn.Linear(c.d_model, c.vocab_size, { bias = false })
  if c.tie_word_embeddings then base.tie(self.lm_head, self.shared) end
  self.scale = c.scale_decoder_outputs and c.d_model ^ -0.5 or 1
  rawset(self, "_seq", { who = c.who, start = c.decoder_start_token_id or c.pad_token_id or 0, pad = c.pad_token_id
    or 0 })
end
Model.encode = encode
function Model:decode(ids, memory, o)
  return self.decoder(ids, { memory = memory, memory_mask = o.mask, cache = o.cache, padding = o.padding,
    hidden_states = o.hidden_states })
end
function Model:project(x) return self.lm_head(self.scale ~= 1 and x * self.scale or x) end

local Encoder = module.class("T5EncoderModel", base.Pretrained)
function Encoder:init(c)
  self.shared = nn.Embedding(c.vocab_size, c.d_model, { index_base = 0 })
  self.encoder = Stack(c, c.num_layers, self.shared, false)
  rawset(self, "_who", c.who)
end
function Encoder:forward(tokens, opts)
  local o = base.options(self._who, opts, { "attention_mask", "hidden_states" })
  local y, _, hidden = encode(self, tokens, o)
  return base.results(y, { last_hidden_state = y, hidden_states = hidden }, opts)
end

--- T.models.T5{…} → module
-- T5. architecture: T5ForConditionalGeneration (the default) or T5EncoderModel. net(ids, {decoder_input_ids= or
-- labels=, attention_mask=, hidden_states=}) → logits [B, L, vocab_size], with results by name; net:generate(nil,
-- {inputs = ids}).
--   local net = T.models.T5 { vocab_size = 8, d_model = 8, d_kv = 4, d_ff = 8, num_layers = 1, num_heads = 2 }
--   local ids = T.tensor({ { 5, 6, 1 } }, { dtype = "i64" })
--   print(table.concat((net(ids, { labels = ids })):shape(), " "))  --> 1 3 8
local family = encoder.family({ model_type = "t5", default = "T5ForConditionalGeneration", fields = fields,
  alias = { hidden_size = "d_model", num_attention_heads = "num_heads", num_hidden_layers = "num_layers",
    head_dim = "d_kv" },
  settled = { "scale_decoder_outputs" },
  ignore = { "^decoder%.block%.0%.layer%.1%.EncDecAttention%.relative_attention_bias", "^decoder%.", "^lm_head%." },
  check = function(path, given, c)
    -- transformers takes what is null as false, but for tie_word_embeddings: all is tied where files do not have more
    local null = json.null
    if given.scale_decoder_outputs == nil then c.scale_decoder_outputs = given.tie_word_embeddings ~= false
    elseif given.scale_decoder_outputs == null then c.scale_decoder_outputs = false end
    if given.is_gated_act == null then c.is_gated_act = false end
    if given.tie_word_embeddings == null then c.tie_word_embeddings = true end
    local list = given.architectures
    if type(list) == "table" and list[1] == "T5EncoderModel" then return end
    config.only(path, given, { is_encoder_decoder = { true }, is_causal = { true } })
  end,
  look = function(c, tensors) -- newer configs say tied of files that hold a head of its own
    local head, words = tensors["lm_head.weight"], tensors["shared.weight"]
    if head and words then c.tie_word_embeddings = head:equal(words) else c.tie_word_embeddings = true end
  end },
  { T5ForConditionalGeneration = Model, T5EncoderModel = Encoder }, function(c, who)
    local act = c.feed_forward_proj:gsub("^gated%-", "")
    c.gated = act ~= c.feed_forward_proj
    if c.gated and act == "gelu" then act = "gelu_new" end
    if c.is_gated_act ~= nil then c.gated = c.is_gated_act end -- these two win in transformers, where a config has them
    c.act = config.activation(who, c.dense_act_fn or act)
    c.who = who
    return c
  end)
for key, v in pairs(family) do M[key] = v end

return M
