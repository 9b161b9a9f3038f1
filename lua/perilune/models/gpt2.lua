-- SPDX-License-Identifier: MIT
--- GPT-2 (Radford et al. 2019): learned places, one product for queries, keys and values, weights [in, out] as in its
-- files. @module perilune.models.gpt2
local T = require "perilune"
local config = require "perilune.models.config"
local decoder = require "perilune.models.decoder"
local module = require "perilune.nn.module"
local nn = require "perilune.nn"

-- y = x W + b with W [in, out]; linear: T.quantize may put a nn.QuantizedLinear in its place.
local Conv1D = module.class "Conv1D"
Conv1D.linear = true
function Conv1D:init(from, to, _)
  self.in_features, self.out_features, self.transposed = from, to, true
  self.weight = nn.Parameter(nn.init.normal_(T.empty { from, to }, 0, 0.02))
  self.bias = nn.Parameter(T.zeros { to })
end
function Conv1D:forward(x) return nn.F.linear(x, self.weight:t(), self.bias) end
function Conv1D:extra_repr() return ("in_features=%d, out_features=%d"):format(self.in_features, self.out_features) end

local fields = { { "vocab_size", "count", 50257 }, { "n_positions", "count", 1024 }, { "n_embd", "count", 768 },
  { "n_layer", "count", 12 }, { "n_head", "count", 12 }, { "n_inner", "count" },
  { "activation_function", "string", "gelu_new" }, { "resid_pdrop", "probability", 0.1 },
  { "embd_pdrop", "probability", 0.1 }, { "attn_pdrop", "probability", 0.1 },
  { "layer_norm_epsilon", "nonnegative", 1e-5 }, { "scale_attn_weights", "bool", true },
  { "scale_attn_by_inverse_layer_idx", "bool", false }, { "reorder_and_upcast_attn", "bool", false },
  { "tie_word_embeddings", "bool", true }, { "bos_token_id", "int", 50256 }, { "eos_token_id", "ints", 50256 } }

--- T.models.GPT2{…} → module
-- GPT-2. As T.models.Llama, with GPT-2's own fields.
--   local net = T.models.GPT2 { vocab_size = 8, n_positions = 16, n_embd = 8, n_layer = 1, n_head = 2 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
return decoder.family { name = "GPT2", model_type = "gpt2", class_names = { ForCausalLM = "GPT2LMHeadModel" },
  prefix = "transformer",
  fields = fields, ignore = { "attn%.bias$", "attn%.masked_bias$" },
  alias = { hidden_size = "n_embd", max_position_embeddings = "n_positions", num_attention_heads = "n_head",
    num_hidden_layers = "n_layer" },
  check = function(path, given) config.only(path, given, { add_cross_attention = { false } }) end,
  settings = function(c, who)
    local act, width = config.activation(who, c.activation_function), c.n_embd
    return { names = decoder.names { root = "transformer", embed = "wte", places = "wpe", layers = "h", norm = "ln_f",
      token = "classifier", attention = "attn", attention_norm = "ln_1", mlp_norm = "ln_2" }, vocab = c.vocab_size,
        width = width,
      layers = c.n_layer, places = c.n_positions, tied = c.tie_word_embeddings, dropout = c.resid_pdrop,
      embed_dropout = c.embd_pdrop,
      norm = function(n) return nn.LayerNorm(n, { eps = c.layer_norm_epsilon }) end,
      attention = function(i)
        local scale = c.scale_attn_weights and (width // c.n_head) ^ -0.5 or 1.0
        return nn.GroupedQueryAttention(width, c.n_head, { fused = "blocks", dropout = c.attn_pdrop, linear = Conv1D,
          scale = c.scale_attn_by_inverse_layer_idx and scale / i or scale, names = { qkv = "c_attn",
            out = "c_proj" } })
      end,
      mlp = function() return decoder.MLP(width, c.n_inner or 4 * width, act, "c_fc", "c_proj", Conv1D) end }
  end }
