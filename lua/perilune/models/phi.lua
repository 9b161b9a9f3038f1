-- SPDX-License-Identifier: MIT
--- Phi-1 and Phi-2 (Gunasekar et al. 2023): attention and feed-forward side by side behind one norm, rotation of a
-- part of each head, biases everywhere. @module perilune.models.phi
local config = require "perilune.models.config"
local decoder = require "perilune.models.decoder"
local llama = require "perilune.models.llama"
local nn = require "perilune.nn"

local fields = { { "vocab_size", "count", 51200 }, { "hidden_size", "count", 2048 }, { "intermediate_size", "count",
  8192 },
  { "num_hidden_layers", "count", 24 }, { "hidden_act", "string", "gelu_new" }, { "layer_norm_eps", "nonnegative",
    1e-5 },
  { "qk_layernorm", "bool", false }, { "resid_pdrop", "probability", 0.0 }, { "embd_pdrop", "probability", 0.0 },
  { "bos_token_id", "int", 1 }, { "eos_token_id", "ints", 2 } }

--- T.models.Phi{…} → module
-- Phi-1 and Phi-2: attention and feed-forward in parallel, rotation of a part of each head. As T.models.Llama.
--   local net = T.models.Phi { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
return llama.family("Phi", "phi", fields, function(c, who)
  local act = config.activation(who, c.hidden_act)
  local function norm(width) return nn.LayerNorm(width, { eps = c.layer_norm_eps }) end
  return llama.settings(c, who, { partial = 0.5, names = { mlp_norm = false, norm = "final_layernorm" }, d = {
    norm = norm,
    parallel = true, head_bias = true, dropout = c.resid_pdrop, embed_dropout = c.embd_pdrop,
    attention = function() return nn.GroupedQueryAttention(c.hidden_size, c.num_attention_heads, { bias = true,
      num_kv_heads = c.num_key_value_heads or c.num_attention_heads, head_dim = c.head_dim,
      dropout = c.attention_dropout, qk_norm = c.qk_layernorm and norm or nil,
      names = { out = "dense", q_norm = "q_layernorm", k_norm = "k_layernorm" } }) end,
    mlp = function() return decoder.MLP(c.hidden_size, c.intermediate_size, act, "fc1", "fc2") end } })
end)
