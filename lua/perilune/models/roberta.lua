-- SPDX-License-Identifier: MIT
--- RoBERTa (Liu et al. 2019): BERT whose places count real tokens, from behind the padding's id on.
-- @module perilune.models.roberta
local T = require "perilune"
local base = require "perilune.models.base"
local bert = require "perilune.models.bert"
local config = require "perilune.models.config"
local encoder = require "perilune.models.encoder"
local module = require "perilune.nn.module"
local nn = require "perilune.nn"

local fields = config.fields(bert.own_fields, { { "vocab_size", "count", 50265 }, { "pad_token_id", "int", 1 },
  { "bos_token_id", "int", 0 }, { "eos_token_id", "ints", 2 } })

local Head = module.class "RobertaLMHead"
function Head:init(c, words)
  self.bias = nn.Parameter(T.zeros { c.vocab_size })
  self.dense = nn.Linear(c.hidden_size, c.hidden_size)
  self.layer_norm = nn.LayerNorm(c.hidden_size, { eps = c.layer_norm_eps })
  self.decoder = nn.Linear(c.hidden_size, c.vocab_size)
  if c.tie_word_embeddings then
    base.tie(self.decoder, words)
    self.decoder.bias = self.bias
  end
end
function Head:forward(x) return self.decoder(self.layer_norm(nn.F.gelu(self.dense(x)))) end

local Model, Pooled = bert.model("RobertaModel", false), bert.model("RobertaModel", true)
local classes = {
  RobertaModel = Pooled,
  RobertaForMaskedLM = encoder.masked_head("RobertaForMaskedLM", "roberta", Model, function(self, c)
    self.lm_head = Head(c, self.roberta.embeddings.word_embeddings)
  end, function(self, x) return self.lm_head(x) end),
  RobertaForSequenceClassification = encoder.text_head("RobertaForSequenceClassification", "roberta", Model,
    function(self, c)
      self.dropout = nn.Dropout(c.head_dropout)
      self.classifier = encoder.group({ "dense", nn.Linear(c.hidden_size, c.hidden_size) },
        { "out_proj", nn.Linear(c.hidden_size, c.num_labels) })
    end, function(self, x)
      local y = self.classifier.dense(self.dropout(x:select(2, 1))):tanh()
      return self.classifier.out_proj(self.dropout(y))
    end),
  RobertaForTokenClassification = encoder.token_head("RobertaForTokenClassification", "roberta", Model),
  RobertaForQuestionAnswering = encoder.answer_head("RobertaForQuestionAnswering", "roberta", Model),
}

--- T.models.RoBERTa{…} → module
-- RoBERTa, by default with the head for masked words; as T.models.BERT.
--   local net = T.models.RoBERTa { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
return encoder.family({ model_type = "roberta", prefix = "roberta", default = "RobertaForMaskedLM", fields = fields,
  check = bert.check, ignore = { "position_ids$", "pooler%.", "^lm_head%." } }, classes, function(c, who)
    local settings = bert.settings(c, who)
    settings.places_from = c.pad_token_id or 1
    return settings
  end)
