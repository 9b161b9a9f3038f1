-- SPDX-License-Identifier: MIT
--- BERT (Devlin et al. 2018): words, places and kinds of sentence, layers normed after. RoBERTa is made of the same.
-- @module perilune.models.bert
local T = require "perilune"
local base = require "perilune.models.base"
local config = require "perilune.models.config"
local encoder = require "perilune.models.encoder"
local module = require "perilune.nn.module"
local nn = require "perilune.nn"

local M = {}

M.fields = { { "vocab_size", "count", 30522 }, { "hidden_size", "count", 768 }, { "num_hidden_layers", "count", 12 },
  { "num_attention_heads", "count", 12 }, { "intermediate_size", "count", 3072 }, { "hidden_act", "string", "gelu" },
  { "hidden_dropout_prob", "probability", 0.1 }, { "attention_probs_dropout_prob", "probability", 0.1 },
  { "max_position_embeddings", "count", 512 }, { "type_vocab_size", "count", 2 },
  { "layer_norm_eps", "nonnegative", 1e-12 }, { "pad_token_id", "int", 0 }, { "classifier_dropout", "probability" } }

--- What is refused: decoders, and other ways to tell places.
function M.check(path, given)
  config.only(path, given, { is_decoder = { false }, add_cross_attention = { false },
    position_embedding_type = { "absolute" } })
end

-- The sum of word, place and kind, normed. c.places_from: places count real tokens, from the padding's id on.
local Embeddings = module.class "BertEmbeddings"
function Embeddings:init(c)
  local width, pad = c.hidden_size, c.pad_token_id
  if pad and (pad < 0 or pad >= c.vocab_size) then pad = nil end
  self.word_embeddings = nn.Embedding(c.vocab_size, width, { index_base = 0, padding_idx = pad })
  self.position_embeddings = nn.Embedding(c.max_position_embeddings, width, { index_base = 0,
    padding_idx = c.places_from })
  self.token_type_embeddings = nn.Embedding(c.type_vocab_size, width, { index_base = 0 })
  self.LayerNorm = nn.LayerNorm(width, { eps = c.layer_norm_eps })
  self.dropout = nn.Dropout(c.hidden_dropout_prob)
  self.places_from, self.places, self.kinds = c.places_from, c.max_position_embeddings, c.type_vocab_size
end
function Embeddings:forward(tokens, o, who)
  local x = o.inputs_embeds
  if x == nil then
    tokens = base.ids(who, tokens, self.word_embeddings.num_embeddings)
    x = self.word_embeddings(tokens)
  else
    base.embeds(who, tokens, x, self.word_embeddings.embedding_dim)
  end
  local b, l, device, at = x:size(1), x:size(2), x:device(), o.position_ids
  if at == nil and self.places_from and o.inputs_embeds == nil then
    local real = tokens:ne(self.places_from):long()
    at = real:cumsum(2) * real + self.places_from
  elseif at == nil then
    local first = self.places_from and self.places_from + 1 or 0
    at = T.arange(first, first + l - 1, { device = device }):unsqueeze(1)
  end
  at = encoder.rows(who, "position_ids", at, b, l, self.places)
  local kind = o.token_type_ids
  if kind == nil then kind = T.zeros({ 1, l }, { dtype = "i64", device = device }) end
  kind = encoder.rows(who, "token_type_ids", kind, b, l, self.kinds)
  return self.dropout(self.LayerNorm(x + self.token_type_embeddings(kind) + self.position_embeddings(at)))
end

local call = { "attention_mask", "token_type_ids", "position_ids", "hidden_states", "inputs_embeds" }

--- The class `name` of the model below the heads, with its pooler if `pooled`.
function M.model(name, pooled)
  local C = module.class(name, base.Pretrained)
  function C:init(c)
    self.embeddings = Embeddings(c)
    local list = {}
    for i = 1, c.num_hidden_layers do list[i] = encoder.Layer(c.layer) end
    self.encoder = encoder.group { "layer", nn.ModuleList(list) }
    if pooled then self.pooler = encoder.group { "dense", nn.Linear(c.hidden_size, c.hidden_size) } end
    rawset(self, "_who", c.who)
  end
  function C:forward(tokens, opts)
    local o = base.options(self._who, opts, call)
    local x = self.embeddings(tokens, o, self._who)
    local mask = encoder.mask(self._who, o.attention_mask, x:size(1), x:size(2))
    local y, hidden = encoder.run(self.encoder.layer, x, mask, o.hidden_states)
    local first = pooled and self.pooler.dense(y:select(2, 1)):tanh() or nil
    return base.results(y, { last_hidden_state = y, pooler_output = first, hidden_states = hidden }, opts)
  end
  return C
end

--- What the classes are made from.
function M.settings(c, who)
  c.layer = { hidden_size = c.hidden_size, heads = c.num_attention_heads, hidden = c.intermediate_size,
    eps = c.layer_norm_eps, act = config.activation(who, c.hidden_act), dropout = c.hidden_dropout_prob,
    attention_dropout = c.attention_probs_dropout_prob }
  c.head_dropout, c.who = c.classifier_dropout or c.hidden_dropout_prob, who
  return c
end

-- cls.predictions: a layer, then the words' own vectors and a bias.
local Predictions = module.class "Predictions"
function Predictions:init(c, words)
  self.transform = encoder.group({ "dense", nn.Linear(c.hidden_size, c.hidden_size) },
    { "LayerNorm", nn.LayerNorm(c.hidden_size, { eps = c.layer_norm_eps }) })
  self.bias = nn.Parameter(T.zeros { c.vocab_size })
  self.decoder = nn.Linear(c.hidden_size, c.vocab_size)
  if c.tie_word_embeddings then
    base.tie(self.decoder, words)
    self.decoder.bias = self.bias
  end
  rawset(self, "_act", c.layer.act)
end
function Predictions:forward(x)
  return self.decoder(self.transform.LayerNorm(self._act(self.transform.dense(x))))
end

local Model, Pooled = M.model("BertModel", false), M.model("BertModel", true)
local classes = {
  BertModel = Pooled,
  BertForMaskedLM = encoder.masked_head("BertForMaskedLM", "bert", Model, function(self, c)
    self.cls = encoder.group { "predictions", Predictions(c, self.bert.embeddings.word_embeddings) }
  end, function(self, x) return self.cls.predictions(x) end),
  BertForSequenceClassification = encoder.text_head("BertForSequenceClassification", "bert", Pooled, function(self, c)
    self.dropout = nn.Dropout(c.head_dropout)
    self.classifier = nn.Linear(c.hidden_size, c.num_labels)
  end, function(self, _, out) return self.classifier(self.dropout(out.pooler_output)) end),
  BertForTokenClassification = encoder.token_head("BertForTokenClassification", "bert", Model),
  BertForQuestionAnswering = encoder.answer_head("BertForQuestionAnswering", "bert", Model),
}

--- T.models.BERT{…} → module
-- BERT, by default with the head for masked words. architecture: BertForMaskedLM, BertModel,
-- BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering. net(ids, {attention_mask=,
-- token_type_ids=, position_ids=, labels=, hidden_states=, inputs_embeds=}) → logits, with options results by name;
-- of BertModel last_hidden_state and pooler_output. Ids count from 0.
--   local net = T.models.BERT { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2 }
--   print(table.concat((net(T.tensor({ { 1, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
M.own_fields = M.fields
local family = encoder.family({ model_type = "bert", prefix = "bert", default = "BertForMaskedLM", fields = M.fields,
  check = M.check, old = { { "LayerNorm%.gamma$", "LayerNorm.weight" }, { "LayerNorm%.beta$", "LayerNorm.bias" } },
  ignore = { "position_ids$", "pooler%.", "^cls%.seq_relationship%.", "^cls%.predictions%." } }, classes, M.settings)
for key, v in pairs(family) do M[key] = M[key] or v end

return M
