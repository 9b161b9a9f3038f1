-- SPDX-License-Identifier: MIT
--- Gemma 3's text model (Gemma Team 2025): norms of queries and keys in place of caps, five layers with a window to one
-- that sees all, rotary places of another base in each kind. @module perilune.models.gemma3
local config = require "perilune.models.config"
local gemma = require "perilune.models.gemma"
local gemma2 = require "perilune.models.gemma2"
local llama = require "perilune.models.llama"

local fields = config.fields(gemma2.own_fields, { { "vocab_size", "count", 262208 },
  { "max_position_embeddings", "count", 131072 }, { "final_logit_softcapping", "positive" },
  { "attn_logit_softcapping", "positive", false }, { "rope_local_base_freq", "positive", 10000.0 },
  { "sliding_window_pattern", "count", 6 } })

-- Settings of places in layers that see all and in those with a window.
local function ropes(c, who)
  local new, all = c.rope_parameters, {}
  if type(new) ~= "table" then new = {} end
  if new.rope_type or new.type then
    config.fault("%s: rope_parameters must have full_attention and sliding_attention, which have a rope_type each", who)
  end
  for _, name in ipairs { "rope_parameters", "rope_scaling" } do -- the second changes what the first has
    local part = c[name]
    if name == "rope_parameters" then part = new.full_attention end
    for key, v in pairs(type(part) == "table" and part or {}) do all[key] = v end
  end
  local old = c.rope_scaling
  if type(old) == "table" and old.type and not old.rope_type then
    config.fault("%s: rope_scaling says type = %s, which is called rope_type here", who, tostring(old.type))
  end
  local window = { max_position_embeddings = c.max_position_embeddings, rope_theta = c.rope_local_base_freq }
  return { config.rope(who, c, all, c.head_dim, { theta = 1e6 }),
    config.rope(who, window, new.sliding_attention, c.head_dim, {}) }
end

-- transformers keeps the cap of attention's scores of a config and computes without it.
local function check(path, given)
  gemma.refused(path, given)
  config.only(path, given, { attn_logit_softcapping = { false } })
end

--- T.models.Gemma3{…} → module
-- Gemma 3's text model: two bases of rotary places, five layers with a window to one without. As T.models.Llama.
--   local net = T.models.Gemma3 { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2, num_key_value_heads = 1, head_dim = 4 }
--   print(table.concat((net(T.tensor({ { 0, 7, 3 } }, { dtype = "i64" }))):shape(), " "))  --> 1 3 8
return llama.family("Gemma3", "gemma3_text", fields, function(c, who)
  c.hidden_act = c.hidden_activation
  local windows = config.windows(c, who, function(i) return i % c.sliding_window_pattern ~= 0 end)
  local list = ropes(c, who)
  local d = gemma.decoder_settings(c, who, { cap = c.final_logit_softcapping, windows = windows,
    attention = function() return gemma2.attention(c, gemma.norm(c)) end, ropes = list,
    rope_of = function(i) return windows[i] and 2 or 1 end }, gemma2.names)
  return d
end, { check = check, class_names = { Model = "Gemma3TextModel",
  ForSequenceClassification = "Gemma3TextForSequenceClassification",
  ForTokenClassification = "Gemma3TextForTokenClassification" } })
