-- SPDX-License-Identifier: MIT
--- Gemma 2 (Gemma Team 2024): norms after as well as before, caps on scores and logits, windows in every second layer.
-- @module perilune.models.gemma2
local config = require "perilune.models.config"
local gemma = require "perilune.models.gemma"
local llama = require "perilune.models.llama"
local nn = require "perilune.nn"

local M = {}

M.own_fields = config.fields(gemma.common, { { "hidden_size", "count", 2304 }, { "intermediate_size", "count", 9216 },
  { "num_hidden_layers", "count", 26 }, { "num_attention_heads", "count", 8 }, { "num_key_value_heads", "count", 4 },
  { "hidden_activation", "string", "gelu_pytorch_tanh" }, { "query_pre_attn_scalar", "positive", 256 },
  { "sliding_window", "count", 4096 }, { "layer_types", "any" }, { "final_logit_softcapping", "positive", 30.0 },
  { "attn_logit_softcapping", "positive", 50.0 } })

--- Names of the children that Gemma has beside Llama's.
M.names = { mlp_norm = "pre_feedforward_layernorm", attention_post = "post_attention_layernorm",
  mlp_post = "post_feedforward_layernorm" }

--- The attention of a layer.
function M.attention(c, qk_norm)
  return nn.GroupedQueryAttention(c.hidden_size, c.num_attention_heads, { num_kv_heads = c.num_key_value_heads,
    head_dim = c.head_dim, bias = c.attention_bias, dropout = c.attention_dropout,
    scale = c.query_pre_attn_scalar ^ -0.5, softcap = c.attn_logit_softcapping, qk_norm = qk_norm })
end

--- T.models.Gemma2{…} → module
-- Gemma 2: norms after as well, caps on scores and logits, windows in every second layer. As T.models.Llama.
--   local net = T.models.Gemma2 { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2, num_key_value_heads = 1, head_dim = 4 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
local family = llama.family("Gemma2", "gemma2", M.own_fields, function(c, who)
  c.hidden_act = c.hidden_activation
  return gemma.decoder_settings(c, who, { cap = c.final_logit_softcapping,
    windows = config.windows(c, who, function(i) return i % 2 == 1 end),
    attention = function() return M.attention(c) end },
    M.names)
end, { check = gemma.refused })
for key, v in pairs(family) do M[key] = v end

return M
