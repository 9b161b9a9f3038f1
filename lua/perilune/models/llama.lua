-- SPDX-License-Identifier: MIT
--- Llama (Touvron et al. 2023): grouped queries, rotary places, SwiGLU. @module perilune.models.llama
local config = require "perilune.models.config"
local decoder = require "perilune.models.decoder"
local nn = require "perilune.nn"

local M = {}

--- Settings of a decoder in Llama's manner, which its relatives change.
function M.settings(c, who, more)
  more = more or {}
  local head_dim = c.head_dim or c.hidden_size // c.num_attention_heads
  local rope = { theta = more.theta, partial = more.partial, yarn_is_longrope = more.yarn_is_longrope }
  local act = config.activation(who, c.hidden_act)
  local d = { names = decoder.names(more.names), vocab = c.vocab_size, width = c.hidden_size,
    layers = c.num_hidden_layers,
    padding = c.pad_token_id, tied = c.tie_word_embeddings,
    ropes = { config.rope(who, c, config.rope_of(c), head_dim, rope) },
    norm = function(width) return nn.RMSNorm(width, { eps = c.rms_norm_eps }) end,
    attention = function() return nn.GroupedQueryAttention(c.hidden_size, c.num_attention_heads, {
      num_kv_heads = c.num_key_value_heads or c.num_attention_heads, head_dim = head_dim, bias = c.attention_bias
        or false,
      dropout = c.attention_dropout }) end,
    mlp = function() return nn.GatedMLP(c.hidden_size, c.intermediate_size, { activation = act, bias = c.mlp_bias
      or false })
    end }
  if d.padding and (d.padding < 0 or d.padding >= d.vocab) then d.padding = nil end
  for key, v in pairs(more.d or {}) do d[key] = v end
  return d
end

--- Fields that Llama and its relatives share.
M.fields = { { "vocab_size", "count", 32000 }, { "hidden_size", "count", 4096 }, { "intermediate_size", "count",
  11008 },
  { "num_hidden_layers", "count", 32 }, { "num_attention_heads", "count", 32 }, { "num_key_value_heads", "count" },
  { "head_dim", "count" }, { "hidden_act", "string", "silu" }, { "rms_norm_eps", "nonnegative", 1e-6 },
  { "attention_bias", "bool", false }, { "attention_dropout", "probability", 0.0 }, { "mlp_bias", "bool", false },
  { "tie_word_embeddings", "bool", false } }

--- A family in Llama's manner: fields in place of Llama's, and what becomes of M.settings.
function M.family(name, model_type, fields, settings, more)
  local a = { name = name, model_type = model_type, prefix = "model", ignore = { "rotary_emb%.inv_freq$" },
    fields = config.fields(config.rotary, M.fields, fields), settings = settings }
  for key, v in pairs(more or {}) do a[key] = v end
  return decoder.family(a)
end

--- T.models.Llama{…} → module
-- Llama with grouped queries and any of the rules for longer texts (rope_scaling). Settings are the fields of
-- config.json, with transformers' defaults; false: none. architecture: LlamaForCausalLM (the default), LlamaModel or
-- LlamaForSequenceClassification. net(ids) → logits [B, L, vocab_size]; net(ids, {attention_mask=, position_ids=,
-- labels=, cache=, hidden_states=, inputs_embeds=, last=, logits=true}) → logits, results by name: loss (of labels,
-- which are shifted by one; -100 does not count), hidden_states. logits = false, with labels: nil in their place; for
-- training: they never stand whole then, as in nn.F.linear_cross_entropy. attention_mask: [B, L], 0 where padding is
-- (on either side; places count what is real where position_ids are not given), or [B or 1, heads or 1, L, L], bools,
-- true: seen, or numbers that are added to scores, which then is all that hides. Ids count from 0.
--   local net = T.models.Llama { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
local family = M.family("Llama", "llama", { { "bos_token_id", "int", 1 }, { "eos_token_id", "ints", 2 } }, M.settings)
for key, v in pairs(family) do if M[key] == nil or key == "fields" or key == "settings" then M[key] = v end end

return M
