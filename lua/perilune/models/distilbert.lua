-- SPDX-License-Identifier: MIT
--- DistilBERT (Sanh et al. 2019): half of BERT's layers, no kinds of sentence, no pooler.
-- @module perilune.models.distilbert
local T = require "perilune"
local base = require "perilune.models.base"
local config = require "perilune.models.config"
local encoder = require "perilune.models.encoder"
local module = require "perilune.nn.module"
local nn = require "perilune.nn"

local fields = { { "vocab_size", "count", 30522 }, { "max_position_embeddings", "count", 512 },
  { "sinusoidal_pos_embds", "bool", false }, { "n_layers", "count", 6 }, { "n_heads", "count", 12 },
  { "dim", "count", 768 }, { "hidden_dim", "count", 3072 }, { "dropout", "probability", 0.1 },
  { "attention_dropout", "probability", 0.1 }, { "activation", "string", "gelu" }, { "qa_dropout", "probability", 0.1 },
  { "seq_classif_dropout", "probability", 0.2 }, { "pad_token_id", "int", 0 } }

local Layer = module.class "DistilBertLayer"
function Layer:init(c)
  self.attention = nn.GroupedQueryAttention(c.dim, c.n_heads, { bias = true, dropout = c.attention_dropout,
    names = { q = "q_lin", k = "k_lin", v = "v_lin", out = "out_lin" } })
  self.sa_layer_norm = nn.LayerNorm(c.dim, { eps = 1e-12 })
  self.ffn = encoder.group({ "lin1", nn.Linear(c.dim, c.hidden_dim) }, { "lin2", nn.Linear(c.hidden_dim, c.dim) })
  self.output_layer_norm = nn.LayerNorm(c.dim, { eps = 1e-12 })
  self.drop = nn.Dropout(c.dropout)
  rawset(self, "_act", c.act)
end
function Layer:forward(x, mask)
  x = self.sa_layer_norm(x + self.attention(x, { mask = mask }))
  return self.output_layer_norm(x + self.drop(self.ffn.lin2(self._act(self.ffn.lin1(x)))))
end

local call = { "attention_mask", "position_ids", "hidden_states", "inputs_embeds" }

local Model = module.class("DistilBertModel", base.Pretrained)
function Model:init(c)
  local pad = c.pad_token_id
  if pad and (pad < 0 or pad >= c.vocab_size) then pad = nil end
  self.embeddings = encoder.group(
    { "word_embeddings", nn.Embedding(c.vocab_size, c.dim, { index_base = 0, padding_idx = pad }) },
    { "position_embeddings", nn.Embedding(c.max_position_embeddings, c.dim, { index_base = 0 }) },
    { "LayerNorm", nn.LayerNorm(c.dim, { eps = 1e-12 }) }, { "dropout", nn.Dropout(c.dropout) })
  local list = {}
  for i = 1, c.n_layers do list[i] = Layer(c) end
  self.transformer = encoder.group { "layer", nn.ModuleList(list) }
  rawset(self, "_who", c.who)
end
function Model:forward(tokens, opts)
  local o, e, who = base.options(self._who, opts, call), self.embeddings, self._who
  local x = o.inputs_embeds
  if x == nil then
    x = e.word_embeddings(base.ids(who, tokens, e.word_embeddings.num_embeddings))
  else
    base.embeds(who, tokens, x, e.word_embeddings.embedding_dim)
  end
  local b, l, at = x:size(1), x:size(2), o.position_ids
  if at == nil then at = T.arange(0, l - 1, { device = x:device() }):unsqueeze(1) end
  at = encoder.rows(who, "position_ids", at, b, l, e.position_embeddings.num_embeddings)
  x = e.dropout(e.LayerNorm(x + e.position_embeddings(at)))
  local y, hidden = encoder.run(self.transformer.layer, x, encoder.mask(who, o.attention_mask, b, l), o.hidden_states)
  return base.results(y, { last_hidden_state = y, hidden_states = hidden }, opts)
end

local classes = {
  DistilBertModel = Model,
  DistilBertForMaskedLM = encoder.masked_head("DistilBertForMaskedLM", "distilbert", Model, function(self, c)
    self.vocab_transform = nn.Linear(c.dim, c.dim)
    self.vocab_layer_norm = nn.LayerNorm(c.dim, { eps = 1e-12 })
    self.vocab_projector = nn.Linear(c.dim, c.vocab_size)
    if c.tie_word_embeddings then base.tie(self.vocab_projector, self.distilbert.embeddings.word_embeddings) end
    rawset(self, "_act", c.act)
  end, function(self, x) return self.vocab_projector(self.vocab_layer_norm(self._act(self.vocab_transform(x)))) end),
  DistilBertForSequenceClassification = encoder.text_head("DistilBertForSequenceClassification", "distilbert", Model,
    function(self, c)
      self.pre_classifier = nn.Linear(c.dim, c.dim)
      self.classifier = nn.Linear(c.dim, c.num_labels)
      self.dropout = nn.Dropout(c.seq_classif_dropout)
    end, function(self, x) return self.classifier(self.dropout(self.pre_classifier(x:select(2, 1)):relu())) end),
  DistilBertForTokenClassification = encoder.token_head("DistilBertForTokenClassification", "distilbert", Model),
  DistilBertForQuestionAnswering = encoder.answer_head("DistilBertForQuestionAnswering", "distilbert", Model),
}

--- T.models.DistilBERT{…} → module
-- DistilBERT, by default with the head for masked words; as T.models.BERT, with fields of its own and no kinds.
--   local net = T.models.DistilBERT { vocab_size = 8, dim = 8, hidden_dim = 8, n_layers = 1, n_heads = 2 }
--   print(table.concat((net(T.tensor({ { 1, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
return encoder.family({ model_type = "distilbert", prefix = "distilbert", default = "DistilBertForMaskedLM",
  fields = fields, alias = { hidden_size = "dim", num_attention_heads = "n_heads", num_hidden_layers = "n_layers" },
  ignore = { "position_ids$", "^vocab_" } }, classes, function(c, who)
    c.hidden_size, c.act, c.head_dropout, c.who = c.dim, config.activation(who, c.activation), c.dropout, who
    return c
  end)
