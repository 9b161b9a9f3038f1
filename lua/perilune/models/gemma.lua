-- SPDX-License-Identifier: MIT
--- Gemma (Gemma Team 2024): Llama with norms times 1 + weight, embeddings times √width, GeGLU, wide heads.
-- @module perilune.models.gemma
local config = require "perilune.models.config"
local llama = require "perilune.models.llama"
local nn = require "perilune.nn"

local M = {}

--- Fields of all Gemmas.
M.common = { { "vocab_size", "count", 256000 }, { "hidden_size", "count", 3072 }, { "intermediate_size", "count",
  24576 },
  { "num_hidden_layers", "count", 28 }, { "num_attention_heads", "count", 16 }, { "num_key_value_heads", "count", 16 },
  { "head_dim", "count", 256 }, { "hidden_act", "string", "gelu_pytorch_tanh" }, { "hidden_activation", "string" },
  { "max_position_embeddings", "count", 8192 }, { "pad_token_id", "int", 0 }, { "eos_token_id", "ints", 1 },
  { "bos_token_id", "int", 2 }, { "tie_word_embeddings", "bool", true } }

--- A norm times 1 + weight.
function M.norm(c)
  return function(width) return nn.RMSNorm(width, { eps = c.rms_norm_eps, unit_offset = true }) end
end

--- What all Gemmas refuse.
function M.refused(path, given)
  config.only(path, given, { use_bidirectional_attention = { false } })
end

--- Settings of all Gemmas; d: in place of some.
function M.decoder_settings(c, who, d, names)
  d = d or {}
  d.norm, d.scale = M.norm(c), math.sqrt(c.hidden_size)
  return llama.settings(c, who, { d = d, names = names })
end

--- T.models.Gemma{…} → module
-- Gemma: norms times 1 + weight, GeGLU, embeddings times √hidden_size. As T.models.Llama.
--   local net = T.models.Gemma { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2, num_key_value_heads = 1, head_dim = 4 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
local family = llama.family("Gemma", "gemma", M.common, function(c, who)
  -- early files say "gelu" and mean its form with tanh
  c.hidden_act = c.hidden_activation or c.hidden_act == "gelu" and "gelu_pytorch_tanh" or c.hidden_act
  return M.decoder_settings(c, who)
end, { check = M.refused })
for key, v in pairs(family) do M[key] = v end

return M
