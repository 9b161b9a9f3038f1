-- SPDX-License-Identifier: MIT
--- GPT-NeoX and Pythia (Black et al. 2022): queries, keys and values of each head side by side in one product,
-- attention and feed-forward in parallel. @module perilune.models.gpt_neox
local config = require "perilune.models.config"
local decoder = require "perilune.models.decoder"
local nn = require "perilune.nn"

local fields = config.fields(config.rotary, { { "vocab_size", "count", 50432 }, { "hidden_size", "count", 6144 },
  { "num_hidden_layers", "count", 44 }, { "num_attention_heads", "count", 64 }, { "intermediate_size", "count", 24576 },
  { "hidden_act", "string", "gelu" }, { "rotary_pct", "positive", 0.25 }, { "rotary_emb_base", "positive", 10000.0 },
  { "attention_dropout", "probability", 0.0 }, { "hidden_dropout", "probability", 0.0 },
  { "layer_norm_eps", "nonnegative", 1e-5 }, { "tie_word_embeddings", "bool", false },
  { "use_parallel_residual", "bool", true }, { "attention_bias", "bool", true }, { "bos_token_id", "int", 0 },
  { "eos_token_id", "ints", 2 } })

--- T.models.GPTNeoX{…} → module
-- GPT-NeoX and Pythia. As T.models.Llama.
--   local net = T.models.GPTNeoX { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 1 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
return decoder.family { name = "GPTNeoX", model_type = "gpt_neox", prefix = "gpt_neox", fields = fields,
  ignore = { "rotary_emb%.inv_freq$", "attention%.bias$", "attention%.masked_bias$" },
  -- rotary_pct and rotary_emb_base say it; transformers takes no notice of these outside of rope_parameters, and turns
  -- other dimensions than there are where head_dim is not the heads' own
  check = function(path, given, c)
    config.only(path, given, { partial_rotary_factor = {}, rope_theta = { c.rotary_emb_base },
      head_dim = { c.hidden_size // c.num_attention_heads } })
  end,
  settings = function(c, who)
    local act = config.activation(who, c.hidden_act)
    return { names = decoder.names { root = "gpt_neox", embed = "embed_in", norm = "final_layer_norm",
      head = "embed_out", token = "classifier",
      attention = "attention" }, vocab = c.vocab_size, width = c.hidden_size, layers = c.num_hidden_layers,
      tied = c.tie_word_embeddings, parallel = c.use_parallel_residual, dropout = c.hidden_dropout,
      embed_dropout = c.hidden_dropout,
      ropes = { config.rope(who, c, config.rope_of(c), c.hidden_size // c.num_attention_heads,
        { theta = c.rotary_emb_base, partial = c.rotary_pct }) },
      norm = function(width) return nn.LayerNorm(width, { eps = c.layer_norm_eps }) end,
      attention = function() return nn.GroupedQueryAttention(c.hidden_size, c.num_attention_heads, { fused = "heads",
        bias = c.attention_bias, dropout = c.attention_dropout, names = { qkv = "query_key_value",
          out = "dense" } }) end,
      mlp = function()
        return decoder.MLP(c.hidden_size, c.intermediate_size, act, "dense_h_to_4h", "dense_4h_to_h")
      end }
  end }
