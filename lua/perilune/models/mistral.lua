-- SPDX-License-Identifier: MIT
--- Mistral (Jiang et al. 2023): Llama with a window. @module perilune.models.mistral
local config = require "perilune.models.config"
local llama = require "perilune.models.llama"

--- T.models.Mistral{…} → module
-- Mistral: Llama with a sliding_window. As T.models.Llama.
--   local net = T.models.Mistral { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2, num_key_value_heads = 1 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
return llama.family("Mistral", "mistral", { { "intermediate_size", "count", 14336 }, { "num_key_value_heads", "count",
  8 },
  { "max_position_embeddings", "count", 131072 }, { "sliding_window", "count", 4096 },
  { "bos_token_id", "int", 1 }, { "eos_token_id", "ints", 2 } }, function(c, who)
  return llama.settings(c, who, { d = { windows = config.windows(c, who, function() return true end) } })
end)
