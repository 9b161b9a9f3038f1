-- SPDX-License-Identifier: MIT
--- Qwen2 (Yang et al. 2024): Llama with biases of queries, keys and values, and windows in the upper layers if wanted.
-- @module perilune.models.qwen2
local config = require "perilune.models.config"
local llama = require "perilune.models.llama"
local nn = require "perilune.nn"

local M = { fields = { { "vocab_size", "count", 151936 }, { "intermediate_size", "count", 22016 },
  { "num_key_value_heads", "count", 32 }, { "max_position_embeddings", "count", 32768 },
  { "use_sliding_window", "bool", false }, { "sliding_window", "count", 4096 }, { "max_window_layers", "size", 28 },
  { "layer_types", "any" } } }

--- The windows of a config of Qwen.
function M.windows(c, who)
  local off = not c.use_sliding_window
  return config.windows(c, who, function(i) return not off and i > c.max_window_layers end, off)
end

--- T.models.Qwen2{…} → module
-- Qwen2: Llama with biases of queries, keys and values. As T.models.Llama.
--   local net = T.models.Qwen2 { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2, num_key_value_heads = 1 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
local family = llama.family("Qwen2", "qwen2", M.fields, function(c, who)
  local width = c.hidden_size
  return llama.settings(c, who, { d = { windows = M.windows(c, who), attention = function()
    return nn.GroupedQueryAttention(width, c.num_attention_heads, {
      num_kv_heads = c.num_key_value_heads or c.num_attention_heads, head_dim = c.head_dim, bias = true,
        out_bias = false,
      dropout = c.attention_dropout })
  end } })
end)
M.own_fields = M.fields
for key, v in pairs(family) do if key ~= "windows" then M[key] = v end end

return M
