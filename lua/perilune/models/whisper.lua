-- SPDX-License-Identifier: MIT
--- Whisper (Radford et al. 2022): sound as log-mel features, read by convolutions and an encoder, written by a decoder.
-- @module perilune.models.whisper
local T = require "perilune"
local attention = require "perilune.nn.grouped_attention"
local base = require "perilune.models.base"
local config = require "perilune.models.config"
local encoder = require "perilune.models.encoder"
local module = require "perilune.nn.module"
local nn = require "perilune.nn"
local options = require "perilune.options"
local seq2seq = require "perilune.models.seq2seq"

local fail, describe = options.fail, options.describe
local M = {}

local fields = { { "vocab_size", "count", 51865 }, { "num_mel_bins", "count", 80 }, { "d_model", "count", 384 },
  { "encoder_layers", "count", 4 }, { "encoder_attention_heads", "count", 6 }, { "encoder_ffn_dim", "count", 1536 },
  { "decoder_layers", "count", 4 }, { "decoder_attention_heads", "count", 6 }, { "decoder_ffn_dim", "count", 1536 },
  { "max_source_positions", "count", 1500 }, { "max_target_positions", "count", 448 }, { "dropout", "probability",
    0.0 },
  { "attention_dropout", "probability", 0.0 }, { "activation_dropout", "probability", 0.0 },
  { "activation_function", "string", "gelu" }, { "decoder_start_token_id", "int", 50257 },
  { "pad_token_id", "int", 50256 }, { "bos_token_id", "int", 50256 }, { "eos_token_id", "ints", 50256 },
  { "initializer_range", "nonnegative", 0.02 } }

local function attend(c, heads)
  return nn.GroupedQueryAttention(c.d_model, heads, { bias = true, key_bias = false, dropout = c.attention_dropout,
    names = { out = "out_proj" } })
end

local Layer = module.class "WhisperLayer"
function Layer:init(c, heads, hidden, decodes)
  self.self_attn = attend(c, heads)
  self.self_attn_layer_norm = nn.LayerNorm(c.d_model)
  if decodes then
    self.encoder_attn = attend(c, heads)
    self.encoder_attn_layer_norm = nn.LayerNorm(c.d_model)
  end
  self.fc1, self.fc2 = nn.Linear(c.d_model, hidden), nn.Linear(hidden, c.d_model)
  self.final_layer_norm = nn.LayerNorm(c.d_model)
  self.drop, self.act_drop = nn.Dropout(c.dropout), nn.Dropout(c.activation_dropout)
  rawset(self, "_act", c.act)
end
function Layer:forward(x, how)
  how = how or {}
  x = x + self.drop(self.self_attn(self.self_attn_layer_norm(x), { mask = how.mask, is_causal = how.is_causal,
    cache = how.cache, layer = how.layer }))
  if self.encoder_attn then
    x = x + self.drop(self.encoder_attn(self.encoder_attn_layer_norm(x), { memory = how.memory, cache = how.cache,
      layer = how.cache and "memory" .. how.layer or nil }))
  end
  return x + self.drop(self.fc2(self.act_drop(self._act(self.fc1(self.final_layer_norm(x))))))
end

local Encoder = module.class "WhisperEncoder"
function Encoder:init(c)
  self.conv1 = nn.Conv1d(c.num_mel_bins, c.d_model, 3, { padding = 1 })
  self.conv2 = nn.Conv1d(c.d_model, c.d_model, 3, { stride = 2, padding = 1 })
  self.embed_positions = nn.Embedding(c.max_source_positions, c.d_model, { index_base = 0 })
  self.embed_positions:freeze()
  local list = {}
  for i = 1, c.encoder_layers do list[i] = Layer(c, c.encoder_attention_heads, c.encoder_ffn_dim, false) end
  self.layers = nn.ModuleList(list)
  self.layer_norm = nn.LayerNorm(c.d_model)
  self.drop = nn.Dropout(c.dropout)
  rawset(self, "_size", { c.num_mel_bins, 2 * c.max_source_positions })
  rawset(self, "_who", c.who)
end
function Encoder:forward(x, all)
  local want = self._size
  if not T.is_tensor(x) or x:dim() ~= 3 or x:size(2) ~= want[1] or x:size(3) ~= want[2] then
    fail("%s: features must be [B, %d, %d], got %s; T.models.log_mel makes them", self._who, want[1], want[2],
      describe(x))
  end
  local y = nn.F.gelu(self.conv2(nn.F.gelu(self.conv1(x)))):transpose(2, 3)
  local hidden
  y, hidden = encoder.run(self.layers, self.drop(y + self.embed_positions.weight), nil, all)
  y = self.layer_norm(y)
  if hidden then hidden[#hidden] = y end
  return y, hidden
end

local Decoder = module.class "WhisperDecoder"
function Decoder:init(c)
  local pad = c.pad_token_id
  if pad and (pad < 0 or pad >= c.vocab_size) then pad = nil end
  self.embed_tokens = nn.Embedding(c.vocab_size, c.d_model, { index_base = 0, padding_idx = pad })
  self.embed_positions = nn.Embedding(c.max_target_positions, c.d_model, { index_base = 0 })
  local list = {}
  for i = 1, c.decoder_layers do list[i] = Layer(c, c.decoder_attention_heads, c.decoder_ffn_dim, true) end
  self.layers = nn.ModuleList(list)
  self.layer_norm = nn.LayerNorm(c.d_model)
  self.drop = nn.Dropout(c.dropout)
  rawset(self, "_who", c.who)
end
function Decoder:forward(tokens, memory, o)
  local ids = base.ids(self._who, tokens, self.embed_tokens.num_embeddings)
  local b, l, past, device = ids:size(1), ids:size(2), o.cache and #o.cache or 0, ids:device()
  local most = self.embed_positions.num_embeddings
  if past + l > most then fail("%s: %d places, and the text reaches place %d", self._who, most, past + l) end
  local x = self.embed_tokens(ids) + self.embed_positions.weight:narrow(1, past + 1, l)
  local padding = base.padding(self._who, o.padding, b, past + l)
  local plain = l > 1 and past == 0 and not padding
  local mask = not plain and attention.mask { length = l, past = past, padding = padding, device = device } or nil
  x = self.drop(x)
  local hidden = o.hidden_states and { x } or nil
  for i, layer in ipairs(self.layers) do
    x = layer(x, { mask = mask, is_causal = plain, memory = memory, cache = o.cache, layer = i })
    if hidden then hidden[i + 1] = x end
  end
  x = self.layer_norm(x)
  if hidden then hidden[#hidden] = x end
  return x, hidden
end

local Model = module.class("WhisperForConditionalGeneration", seq2seq.Seq2Seq)
function Model:init(c)
  self.model = encoder.group({ "encoder", Encoder(c) }, { "decoder", Decoder(c) })
  self.proj_out = nn.Linear(c.d_model, c.vocab_size, { bias = false })
  if c.tie_word_embeddings then base.tie(self.proj_out, self.model.decoder.embed_tokens) end
  rawset(self, "_seq", { who = c.who, start = c.decoder_start_token_id, pad = c.pad_token_id or 0 })
end
function Model:encode(x, o)
  local y, hidden = self.model.encoder(x, o.hidden_states)
  return y, nil, hidden
end
function Model:decode(ids, memory, o) return self.model.decoder(ids, memory, o) end
function Model:project(x) return self.proj_out(x) end

-- ---- from sound to features --------------------------------------------------------------------------------

-- Slaney's scale: linear to 1 kHz, then logarithmic.
local step = math.log(6.4) / 27
local function mel_of(hz) return hz < 1000 and 3 * hz / 200 or 15 + math.log(hz / 1000) / step end
local function hz_of(mel) return mel < 15 and 200 * mel / 3 or 1000 * math.exp(step * (mel - 15)) end

-- Triangles over the frequencies 0 … rate/2, each of the same area: [bins, n].
local function filters(bins, n, rate, where)
  local edge, rows = {}, {}
  local top = mel_of(rate / 2)
  for i = 0, bins + 1 do edge[i] = hz_of(top * i / (bins + 1)) end
  for m = 1, bins do
    rows[m] = {}
    for k = 1, n do
      local f = (k - 1) * (rate / 2) / (n - 1)
      local up, down = (f - edge[m - 1]) / (edge[m] - edge[m - 1]), (edge[m + 1] - f) / (edge[m + 1] - edge[m])
      rows[m][k] = math.max(0, math.min(up, down)) * 2 / (edge[m + 1] - edge[m - 1])
    end
  end
  return T.tensor(rows, where)
end

--- T.models.log_mel(wave, {bins=80, seconds=30, rate=16000, n_fft=400, hop=160}) → features
-- What Whisper reads of a wave: it is cut or padded with zeros to `seconds`, its spectrum in windows of n_fft every hop
-- samples is summed over `bins` mel bands, and the logarithm of that, at most 8 below the largest, is (x + 4) / 4.
-- Shapes: wave [n] or [B, n], at `rate` → [B, bins, seconds rate / hop]
--   local tone = (T.arange(16000):float() * (2 * math.pi * 440 / 16000)):sin()
--   print(table.concat(T.models.log_mel(tone, { seconds = 2 }):shape(), " "))  --> 1 80 200
function M.log_mel(wave, opts)
  local o = options.check("models.log_mel", opts, { "bins", "seconds", "rate", "n_fft", "hop" })
  local function count(name, default)
    return options.kind("models.log_mel", name, "count", o[name] == nil and default or o[name])
  end
  local bins, seconds, rate, n, hop = count("bins", 80), count("seconds", 30), count("rate", 16000), count("n_fft",
    400),
    count("hop", 160)
  if not T.is_tensor(wave) or wave:dim() < 1 or wave:dim() > 2 or not wave:is_floating_point()
    or wave:size(-1) == 0 then
    fail("models.log_mel: the wave must be floating [n] or [B, n], got %s", describe(wave))
  end
  if wave:dim() == 1 then wave = wave:unsqueeze(1) end
  local total, dtype = seconds * rate, wave:dtype()
  wave = wave:double()
  if wave:size(2) > total then wave = wave:narrow(2, 1, total) end
  if wave:size(2) < total then wave = nn.F.pad(wave, { 0, total - wave:size(2) }) end
  local frames = nn.F.pad(wave:unsqueeze(2), { n // 2, n // 2 }, "reflect"):squeeze(2):unfold(2, n, hop)
  frames = frames:narrow(2, 1, total // hop)
  -- The spectrum as two products: n is small and need not be a power of two. Of x[t] and x[n - t], which have the same
  -- weight in the window, the cosines want the sum and the sines the difference: half of the work.
  local where = { dtype = "f64", device = wave:device() }
  local pairs_of = (n - 1) // 2
  local first, last = frames:narrow(3, 2, pairs_of), frames:narrow(3, n - pairs_of + 1, pairs_of):flip(3)
  local even = { frames:narrow(3, 1, 1), first + last }
  if n % 2 == 0 then even[3] = frames:narrow(3, n // 2 + 1, 1) end
  local t = T.arange(0, n // 2, where)
  local window = 0.5 - (t * (2 * math.pi / n)):cos() * 0.5
  local angle = (t:unsqueeze(2) * t:unsqueeze(1)):remainder(n) * (2 * math.pi / n)
  local power = (T.cat(even, 3) * window):matmul(angle:cos()):square()
    + ((first - last) * window:narrow(1, 2, pairs_of)):matmul(angle:sin():narrow(1, 2, pairs_of)):square()
  local mel = power:matmul(filters(bins, n // 2 + 1, rate, where):t()):clamp { min = 1e-10 }:log10()
  local top = mel:amax({ 2, 3 }, { keepdim = true })
  return ((T.maximum(mel, top - 8) + 4) / 4):transpose(2, 3):to(dtype):contiguous()
end

--- T.models.Whisper{…} → module
-- Whisper. net(features, {decoder_input_ids= or labels=, hidden_states=}) → logits [B, L, vocab_size], with results
-- by name; features [B, num_mel_bins, 2 max_source_positions], as T.models.log_mel makes them; net:generate(prompt,
-- {inputs = features}).
--   local net = T.models.Whisper { vocab_size = 8, d_model = 8, encoder_layers = 1, decoder_layers = 1,
--     encoder_attention_heads = 2, decoder_attention_heads = 2, encoder_ffn_dim = 8, decoder_ffn_dim = 8,
--     max_source_positions = 50, decoder_start_token_id = 1, pad_token_id = 0 }
--   local ids = T.tensor({ { 1, 5, 3 } }, { dtype = "i64" })
--   print(table.concat((net(T.zeros(1, 80, 100), { decoder_input_ids = ids })):shape(), " "))  --> 1 3 8
local family = encoder.family({ model_type = "whisper", prefix = "model", default = "WhisperForConditionalGeneration",
  fields = fields, alias = { init_std = "initializer_range", hidden_size = "d_model",
    num_attention_heads = "encoder_attention_heads", num_hidden_layers = "encoder_layers" },
  check = function(path, given) config.only(path, given, { is_causal = { true } }) end },
  { WhisperForConditionalGeneration = Model },
  function(c, who)
    c.act, c.who = config.activation(who, c.activation_function), who
    return c
  end)
for key, v in pairs(family) do M[key] = v end

return M
