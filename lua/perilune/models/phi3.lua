-- SPDX-License-Identifier: MIT
--- Phi-3 (Abdin et al. 2024): Llama with one product for queries, keys and values, and one for gate and up.
-- @module perilune.models.phi3
local config = require "perilune.models.config"
local llama = require "perilune.models.llama"
local nn = require "perilune.nn"

local fields = { { "vocab_size", "count", 32064 }, { "hidden_size", "count", 3072 }, { "intermediate_size", "count",
  8192 },
  { "rms_norm_eps", "nonnegative", 1e-5 }, { "max_position_embeddings", "count", 4096 },
  { "original_max_position_embeddings", "count", 4096 }, { "sliding_window", "count" },
  { "resid_pdrop", "probability", 0.0 }, { "embd_pdrop", "probability", 0.0 }, { "bos_token_id", "int", 1 },
  { "eos_token_id", "ints", 32000 }, { "pad_token_id", "int", 32000 } }

--- T.models.Phi3{…} → module
-- Phi-3: Llama with fused products. As T.models.Llama.
--   local net = T.models.Phi3 { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2, pad_token_id = 0 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
return llama.family("Phi3", "phi3", fields, function(c, who)
  local act = config.activation(who, c.hidden_act)
  return llama.settings(c, who, { yarn_is_longrope = true, partial = 1.0, d = { dropout = c.resid_pdrop,
    embed_dropout = c.embd_pdrop,
    windows = config.windows(c, who, function() return true end),
    attention = function() return nn.GroupedQueryAttention(c.hidden_size, c.num_attention_heads, { fused = "blocks",
      num_kv_heads = c.num_key_value_heads or c.num_attention_heads, head_dim = c.head_dim,
      dropout = c.attention_dropout }) end,
    mlp = function()
      return nn.GatedMLP(c.hidden_size, c.intermediate_size, { activation = act, fused = true })
    end } })
end)
