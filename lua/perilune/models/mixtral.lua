-- SPDX-License-Identifier: MIT
--- Mixtral (Jiang et al. 2024): Mistral with a mixture of experts in each layer. @module perilune.models.mixtral
local config = require "perilune.models.config"
local llama = require "perilune.models.llama"
local nn = require "perilune.nn"

local fields = { { "intermediate_size", "count", 14336 }, { "num_key_value_heads", "count", 8 },
  { "max_position_embeddings", "count", 131072 }, { "rms_norm_eps", "nonnegative", 1e-5 }, { "sliding_window",
    "count" },
  { "output_router_logits", "bool", false }, { "router_jitter_noise", "nonnegative", 0.0 },
  { "num_experts_per_tok", "count", 2 }, { "num_local_experts", "count", 8 }, { "bos_token_id", "int", 1 },
  { "eos_token_id", "ints", 2 } }

-- Files keep each expert's w1 (gate), w3 (up) and w2 (down) apart.
local function parts(...)
  local list = { ... }
  return function(prefix, e)
    local names = {}
    for i, w in ipairs(list) do names[i] = ("%smlp.experts.%d.%s.weight"):format(prefix, e, w) end
    return names
  end
end

--- T.models.Mixtral{…} → module
-- Mixtral: a mixture of experts in each layer. As T.models.Llama.
--   local net = T.models.Mixtral { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2, num_key_value_heads = 1 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
return llama.family("Mixtral", "mixtral", fields, function(c, who)
  local act = config.activation(who, c.hidden_act)
  return llama.settings(c, who, { theta = 1e6, d = { windows = config.windows(c, who, function() return true end),
    mlp = function() return nn.MixtureOfExperts(c.hidden_size, c.intermediate_size, { num_experts = c.num_local_experts,
      top_k = c.num_experts_per_tok, activation = act }) end } })
end, { alias = { num_experts = "num_local_experts" },
  old = { { "%.block_sparse_moe%.", ".mlp." } }, new = { { "%.mlp%.", ".block_sparse_moe." } },
  stacks = { { "^(.*)mlp%.experts%.gate_up_proj$", parts("w1", "w3") },
    { "^(.*)mlp%.experts%.down_proj$", parts("w2") } } })
