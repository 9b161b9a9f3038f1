-- SPDX-License-Identifier: MIT
--- OLMoE (Muennighoff et al. 2024): many small experts, norms of all queries and all keys.
-- @module perilune.models.olmoe
local config = require "perilune.models.config"
local llama = require "perilune.models.llama"
local nn = require "perilune.nn"
local qwen3_moe = require "perilune.models.qwen3_moe"

local fields = { { "vocab_size", "count", 50304 }, { "hidden_size", "count", 2048 }, { "intermediate_size", "count",
  2048 },
  { "num_hidden_layers", "count", 16 }, { "num_attention_heads", "count", 16 },
  { "max_position_embeddings", "count", 4096 }, { "rms_norm_eps", "nonnegative", 1e-5 }, { "clip_qkv", "positive" },
  { "output_router_logits", "bool", false },
  { "num_experts_per_tok", "count", 8 }, { "num_experts", "count", 64 }, { "norm_topk_prob", "bool", false },
  { "pad_token_id", "int", 1 }, { "eos_token_id", "ints", 50279 } }

--- T.models.Olmoe{…} → module
-- OLMoE: many small experts. As T.models.Llama.
--   local net = T.models.Olmoe { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2, num_experts = 4,
--     num_experts_per_tok = 2 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
return llama.family("Olmoe", "olmoe", fields, function(c, who)
  local act = config.activation(who, c.hidden_act)
  return llama.settings(c, who, { d = {
    attention = function() return nn.GroupedQueryAttention(c.hidden_size, c.num_attention_heads, {
      num_kv_heads = c.num_key_value_heads or c.num_attention_heads, head_dim = c.head_dim, bias = c.attention_bias,
      dropout = c.attention_dropout, clip = c.clip_qkv, norm_all = true,
      qk_norm = function(width) return nn.RMSNorm(width, { eps = c.rms_norm_eps }) end }) end,
    mlp = function() return nn.MixtureOfExperts(c.hidden_size, c.intermediate_size, { num_experts = c.num_experts,
      top_k = c.num_experts_per_tok, normalize = c.norm_topk_prob, activation = act }) end } })
end, { alias = { num_local_experts = "num_experts" }, stacks = qwen3_moe.stacks })
