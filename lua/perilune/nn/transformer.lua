-- SPDX-License-Identifier: MIT
--- The whole Transformer: an encoder and a decoder (Vaswani et al. 2017).
-- @classmod Transformer
local T = require "perilune"
local attention = require "perilune.nn.attention"
local base = require "perilune.nn.module"
local init = require "perilune.nn.initializers"
local options = require "perilune.options"

local LayerNorm = require("perilune.nn.norm").LayerNorm
local fail = options.fail

-- (src, tgt, opts) → [T, N, E], as tgt. Both stacks end in a LayerNorm; matrices start as xavier_uniform.
--- nn.Transformer(…) → module
-- An encoder and a decoder. Options of the call: src_mask, tgt_mask, memory_mask, …_key_padding_mask, …_is_causal.
-- Shapes: src [S, N, E], tgt [L, N, E] → [L, N, E]
--   local net = nn.Transformer { d_model = 8, nhead = 2, num_encoder_layers = 1, num_decoder_layers = 1,
--     dim_feedforward = 16 }
--   print(table.concat(net(T.ones(5, 1, 8), T.ones(3, 1, 8)):shape(), " "))  --> 3 1 8
local Transformer = base.class "Transformer"

local spec = options.spec("nn.Transformer", {
  { "d_model", "count", 512 }, { "nhead", "count", 8 }, { "num_encoder_layers", "count", 6 },
  { "num_decoder_layers", "count", 6 }, { "dim_feedforward", "count", 2048 }, { "dropout", "probability", 0.1 },
  { "activation", "any", "relu" }, { "custom_encoder", "any", optional = true },
  { "custom_decoder", "any", optional = true }, { "layer_norm_eps", "nonnegative", 1e-5 },
  { "batch_first", "bool", false }, { "norm_first", "bool", false }, { "bias", "bool", true },
  { "dtype", "string", optional = true } })

function Transformer:init(...)
  local a = options.read(spec, ...)
  if a.d_model % a.nhead ~= 0 then
    fail("nn.Transformer: d_model %d must be a multiple of nhead %d", a.d_model, a.nhead)
  end
  local layer = { a.d_model, a.nhead, dim_feedforward = a.dim_feedforward, dropout = a.dropout,
    activation = a.activation, layer_norm_eps = a.layer_norm_eps, batch_first = a.batch_first,
    norm_first = a.norm_first, bias = a.bias, dtype = a.dtype }
  local function norm() return LayerNorm(a.d_model, { eps = a.layer_norm_eps, bias = a.bias, dtype = a.dtype }) end
  self.encoder = a.custom_encoder
    or attention.TransformerEncoder(attention.TransformerEncoderLayer(layer), a.num_encoder_layers, norm())
  self.decoder = a.custom_decoder
    or attention.TransformerDecoder(attention.TransformerDecoderLayer(layer), a.num_decoder_layers, norm())
  for name, part in pairs { custom_encoder = self.encoder, custom_decoder = self.decoder } do
    if not base.is_module(part) then
      fail("nn.Transformer: %s must be a module, got %s", name, options.describe(part))
    end
  end
  self.d_model, self.nhead, self.batch_first = a.d_model, a.nhead, a.batch_first
  for _, p in ipairs(self:parameters()) do
    if p:dim() > 1 then init.xavier_uniform_(p) end
  end
end

local names = { "src_mask", "tgt_mask", "memory_mask", "src_key_padding_mask", "tgt_key_padding_mask",
  "memory_key_padding_mask", "src_is_causal", "tgt_is_causal", "memory_is_causal" }

function Transformer:forward(src, tgt, opts)
  local o = options.check("Transformer", opts, names)
  for i, x in ipairs { src or false, tgt or false } do
    if not T.is_tensor(x) or x:size(-1) ~= self.d_model then
      fail("Transformer: argument #%d must be a tensor whose last size is d_model, %d, got %s", i, self.d_model,
        options.describe(x))
    end
  end
  local memory = self.encoder(src, { src_mask = o.src_mask, src_key_padding_mask = o.src_key_padding_mask,
    is_causal = o.src_is_causal })
  return self.decoder(tgt, memory, { tgt_mask = o.tgt_mask, memory_mask = o.memory_mask,
    tgt_key_padding_mask = o.tgt_key_padding_mask, memory_key_padding_mask = o.memory_key_padding_mask,
    tgt_is_causal = o.tgt_is_causal, memory_is_causal = o.memory_is_causal })
end

--- [n, n] with 0 on and below the diagonal and -inf above: each place sees itself and those before.
function Transformer.generate_square_subsequent_mask(n, opts)
  if type(n) == "table" then n = opts end -- called as a method
  if not options.integer(n) or n < 0 then
    fail("generate_square_subsequent_mask: a size is wanted, got %s", options.describe(n))
  end
  return T.full({ n, n }, -math.huge):triu(1)
end

function Transformer:extra_repr() return ("d_model=%d, nhead=%d"):format(self.d_model, self.nhead) end

return { Transformer = Transformer }
