-- SPDX-License-Identifier: MIT
--- Qwen3's mixtures of experts (Yang et al. 2025). @module perilune.models.qwen3_moe
local config = require "perilune.models.config"
local llama = require "perilune.models.llama"
local nn = require "perilune.nn"
local qwen3 = require "perilune.models.qwen3"

local M = {}

local fields = { { "vocab_size", "count", 151936 }, { "hidden_size", "count", 2048 }, { "intermediate_size", "count",
  6144 },
  { "num_hidden_layers", "count", 24 }, { "num_key_value_heads", "count", 4 },
  { "max_position_embeddings", "count", 32768 }, { "use_sliding_window", "bool", false },
  { "sliding_window", "count", 4096 }, { "decoder_sparse_step", "count", 1 }, { "moe_intermediate_size", "count", 768 },
  { "output_router_logits", "bool", false },
  { "num_experts_per_tok", "count", 8 }, { "num_experts", "size", 128 }, { "norm_topk_prob", "bool", false },
  { "mlp_only_layers", "any" } }

-- Files keep the layers of each expert apart.
local function parts(...)
  local list = { ... }
  return function(prefix, e)
    local names = {}
    for i, w in ipairs(list) do names[i] = ("%smlp.experts.%d.%s.weight"):format(prefix, e, w) end
    return names
  end
end
--- Rules for the names of experts.
M.stacks = { { "^(.*)mlp%.experts%.gate_up_proj$", parts("gate_proj", "up_proj") },
  { "^(.*)mlp%.experts%.down_proj$", parts("down_proj") } }

-- Whether layer i, from 1, has experts.
local function sparse(c, i)
  for _, dense in ipairs(c.mlp_only_layers or {}) do if dense == i - 1 then return false end end
  return c.num_experts > 0 and i % c.decoder_sparse_step == 0
end

--- T.models.Qwen3Moe{…} → module
-- Qwen3's mixtures of experts. As T.models.Llama.
--   local net = T.models.Qwen3Moe { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2, num_key_value_heads = 1,
--     num_experts = 4, num_experts_per_tok = 2, moe_intermediate_size = 4 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
local family = llama.family("Qwen3Moe", "qwen3_moe", fields, function(c, who)
  local act = config.activation(who, c.hidden_act)
  local windows = c.use_sliding_window and config.windows(c, who, function() return true end) or nil
  return llama.settings(c, who, { d = { windows = windows, attention = function() return qwen3.attention(c) end,
    mlp = function(i)
      if not sparse(c, i) then return nn.GatedMLP(c.hidden_size, c.intermediate_size, { activation = act }) end
      return nn.MixtureOfExperts(c.hidden_size, c.moe_intermediate_size, { num_experts = c.num_experts,
        top_k = c.num_experts_per_tok, normalize = c.norm_topk_prob, activation = act })
    end } })
end, { alias = { num_local_experts = "num_experts" } })
for key, v in pairs(family) do M[key] = M[key] or v end

return M
