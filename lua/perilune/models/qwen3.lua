-- SPDX-License-Identifier: MIT
--- Qwen3 (Yang et al. 2025): Llama with norms of the queries and keys of each head. @module perilune.models.qwen3
local llama = require "perilune.models.llama"
local nn = require "perilune.nn"
local qwen2 = require "perilune.models.qwen2"

local M = {}

--- The attention of a layer.
function M.attention(c)
  return nn.GroupedQueryAttention(c.hidden_size, c.num_attention_heads, {
    num_kv_heads = c.num_key_value_heads or c.num_attention_heads, head_dim = c.head_dim, bias = c.attention_bias,
    dropout = c.attention_dropout, qk_norm = function(width) return nn.RMSNorm(width, { eps = c.rms_norm_eps }) end })
end

local fields = { { "head_dim", "count", 128 } }
for _, field in ipairs(qwen2.own_fields) do fields[#fields + 1] = field end

--- T.models.Qwen3{…} → module
-- Qwen3: Llama with norms of the queries and keys of each head. As T.models.Llama.
--   local net = T.models.Qwen3 { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2, num_key_value_heads = 1, head_dim = 4 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
local family = llama.family("Qwen3", "qwen3", fields, function(c, who)
  return llama.settings(c, who, { d = { windows = qwen2.windows(c, who), attention = function()
    return M.attention(c) end } })
end)
for key, v in pairs(family) do M[key] = v end

return M
