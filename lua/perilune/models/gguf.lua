-- SPDX-License-Identifier: MIT
--- Models in GGUF files, as llama.cpp keeps them: their keys and names of tensors in transformers' words.
-- @module perilune.models.gguf
local config = require "perilune.models.config"
local gguf = require "perilune.io.gguf"
local json = require "perilune.io.json"

local T = require "perilune"

local M = {}

-- Names of tensors: before ".weight" or ".bias".
local whole = { token_embd = "model.embed_tokens", output_norm = "model.norm", output = "lm_head" }
local inside = { attn_norm = "input_layernorm", ffn_norm = "post_attention_layernorm", attn_q = "self_attn.q_proj",
  attn_k = "self_attn.k_proj", attn_v = "self_attn.v_proj", attn_output = "self_attn.o_proj",
  attn_q_norm = "self_attn.q_norm", attn_k_norm = "self_attn.k_norm", ffn_gate = "mlp.gate_proj",
    ffn_up = "mlp.up_proj",
  ffn_down = "mlp.down_proj" }

-- Architectures → model_type and class. pairs: heads are rotated by neighbours, as their rows are kept for it; act:
-- of the feed-forward layers, silu without it; offset: norms are kept as what they multiply with, 1 more than the
-- weight;
-- fused: what other names stand for; window: every so many layers one sees all, and the others look through a window;
-- large: the number of layers from which on scores are scaled by another size than that of heads, as files say
-- nothing of it; tied: the output is the embedding; plain: no biases; prefix, whole, inside: other names than Llama's;
-- turned: weights that the network has as [in, out].
local gemma2_names = { ffn_norm = "pre_feedforward_layernorm", post_attention_norm = "post_attention_layernorm",
  post_ffw_norm = "post_feedforward_layernorm" }
local kinds = { llama = { "llama", "LlamaForCausalLM", pairs = true }, qwen2 = { "qwen2", "Qwen2ForCausalLM" },
  qwen3 = { "qwen3", "Qwen3ForCausalLM" },
  gemma = { "gemma", "GemmaForCausalLM", act = "gelu_pytorch_tanh", offset = 1, tied = true, plain = true },
  gemma2 = { "gemma2", "Gemma2ForCausalLM", act = "gelu_pytorch_tanh", offset = 1, fused = gemma2_names, window = 2,
    large = 46, tied = true, plain = true },
  gemma3 = { "gemma3_text", "Gemma3ForCausalLM", act = "gelu_pytorch_tanh", offset = 1, fused = gemma2_names,
    window = 6, large = 62, plain = true },
  gpt2 = { "gpt2", "GPT2LMHeadModel", act = "gelu_new", prefix = "transformer.h",
    whole = { token_embd = "transformer.wte", position_embd = "transformer.wpe", output_norm = "transformer.ln_f",
      output = "lm_head" },
    inside = { attn_norm = "ln_1", ffn_norm = "ln_2", attn_qkv = "attn.c_attn", attn_output = "attn.c_proj",
      ffn_up = "mlp.c_fc", ffn_down = "mlp.c_proj" },
    turned = { attn_qkv = true, attn_output = true, ffn_up = true, ffn_down = true } },
  phi3 = { "phi3", "Phi3ForCausalLM", fused = { attn_qkv = "self_attn.qkv_proj", ffn_up = "mlp.gate_up_proj" } } }

-- Ids of config.json → their keys in GGUF.
local special = { bos = "bos", eos = "eos", pad = "padding" }
-- Keys of ids that end a text beside eos: of a turn, of a message. Files of T.models.save with more ends than keys have
-- all of them in a list of their own, too.
local more_ends = { "eot", "eom" }
local ALL_ENDS = "perilune.eos_token_ids"

local function is_token(id, vocab) return math.type(id) == "integer" and id >= 0 and id < vocab end
local function is_norm(part) return part:find "_norm$" ~= nil end

-- What scores of queries and keys are divided by the root of.
local function score_size(kind, layers, width, heads, head_dim)
  return kind.large == layers and width / heads or head_dim
end

-- Rows of heads with neighbours rotated → with halves rotated; of blocks, too.
local halves
function halves(t, heads)
  if gguf.is_blocks(t) then
    t.blocks = halves(t.blocks, heads)
    return t
  end
  local shape = t:shape()
  local d = shape[1] // heads
  local parts = t:reshape(heads, d // 2, 2, -1):transpose(2, 3)
  return parts:reshape(shape)
end

local function name_of(name, how)
  local stem, kind = name:match "^(.*)%.(%a+)$"
  local layer, part = (stem or ""):match "^blk%.(%d+)%.(.*)$"
  local own = layer and (how.fused and how.fused[part] or (how.inside or inside)[part])
  if own then return ("%s.%s.%s.%s"):format(how.prefix or "model.layers", layer, own, kind), part, kind end
  own = (how.whole or whole)[stem]
  if own then return own .. "." .. kind, stem, kind end
end

-- The config of a GPT-2, whose fields have names of their own.
local function gpt2_config(key, tensors, heads, width)
  return { model_type = "gpt2", architectures = json.array { "GPT2LMHeadModel" },
    vocab_size = tensors["transformer.wte.weight"]:size(1), n_embd = width, n_head = heads, n_layer = key "block_count",
    n_positions = key "context_length", n_inner = key "feed_forward_length",
    layer_norm_epsilon = key "attention.layer_norm_epsilon", tie_word_embeddings = tensors["lm_head.weight"] == nil }
end

-- Keys below the architecture's name that would change the numbers, each with a value that changes nothing; nor does 0.
local neutral = { ["attention.causal"] = true, ["attention.max_alibi_bias"] = 0, ["attention.clamp_kqv"] = 0,
  ["attention.scale"] = 0, ["attention.output_scale"] = 0, expert_count = 0, logit_scale = 1, embedding_scale = 1,
  residual_scale = 1, ["attention.temperature_scale"] = 0, ["rope.scaling.yarn_log_multiplier"] = 0,
  ["rope.scaling.yarn_attn_factor"] = 1, use_parallel_residual = false,
  ["attention.temperature_length"] = 0, ["rope.scaling.alpha"] = 0, n_deepstack_layers = 0 }
local capped = { attn_logit_softcapping = 0, final_logit_softcapping = 0 }

local function refuse_keys(path, arch, kind, meta, head_dim)
  local function look(list)
    for name, nothing in pairs(list) do
      local v = meta[arch .. "." .. name]
      if v ~= nil and v ~= nothing and v ~= 0 then
        config.fault("%s: %s.%s = %s is not supported", path, arch, name, tostring(v))
      end
    end
  end
  look(neutral)
  if not kind.window then look(capped) end
  look { ["attention.value_length"] = head_dim }
end

-- The config of a network in Llama's manner.
local function rotary_config(s)
  local path, arch, kind, meta, key, tensors = s.path, s.arch, s.kind, s.meta, s.key, s.tensors
  local heads, shared, width, head_dim, words = s.heads, s.shared, s.width, s.head_dim, s.words
  local factors, by_length = s.factors, s.by_length
  local c = { model_type = kind[1], architectures = json.array { kind[2] }, vocab_size = words:size(1),
    hidden_size = width, intermediate_size = key "feed_forward_length", num_hidden_layers = key "block_count",
    num_attention_heads = heads, num_key_value_heads = shared, head_dim = head_dim,
    rms_norm_eps = key "attention.layer_norm_rms_epsilon", max_position_embeddings = key "context_length",
    rope_theta = key("rope.freq_base", 10000.0), tie_word_embeddings = tensors["lm_head.weight"] == nil,
    attention_bias = tensors["model.layers.0.self_attn.q_proj.bias"] ~= nil or nil }
  if kind.window then
    local window = meta[arch .. ".attention.sliding_window"] or kind[1] == "gemma2" and 4096 or 0
    local every = meta[arch .. ".attention.sliding_window_pattern"]
    if every ~= nil and math.type(every) ~= "integer" then
      config.fault("%s: %s.attention.sliding_window_pattern must be an integer", path, arch)
    end
    every = every or kind.window
    c.query_pre_attn_scalar = score_size(kind, c.num_hidden_layers, width, heads, head_dim)
    c.layer_types = json.array {}
    for i = 1, c.num_hidden_layers do
      c.layer_types[i] = window > 0 and i % every ~= 0 and "sliding_attention" or "full_attention"
    end
    c.sliding_window = window > 0 and window or nil
    local function cap(name, default)
      local v = meta[arch .. "." .. name]
      if v == nil then v = default end
      c[name] = v ~= 0 and v or json.null
    end
    cap("final_logit_softcapping", kind[1] == "gemma2" and 30.0 or 0)
    cap("attn_logit_softcapping", kind[1] == "gemma2" and 50.0 or 0)
    if kind[1] == "gemma3_text" then c.rope_local_base_freq = key("rope.freq_base_swa", 10000.0) end
  end
  local own_dim = head_dim * heads ~= width and head_dim or nil -- where it is not what follows from the width
  if kind[1] == "qwen2" then c.head_dim, c.attention_bias = own_dim, nil end
  if kind[1] == "llama" then c.mlp_bias = tensors["model.layers.0.mlp.gate_proj.bias"] ~= nil or nil end
  if kind[1] == "phi3" then
    c.head_dim, c.attention_bias = own_dim, nil
    local window = meta[arch .. ".attention.sliding_window"]
    if window and window > 0 then c.sliding_window = window end
    c.partial_rotary_factor = key("rope.dimension_count", head_dim) / head_dim
  elseif key("rope.dimension_count", head_dim) ~= head_dim then
    config.fault("%s: %s.rope.dimension_count is %d; heads are of %d, and are rotated whole", path, arch,
      key "rope.dimension_count", head_dim)
  end
  -- Without a type a factor is llama.cpp's first one; the oldest files have it under another name.
  local factor = meta[arch .. ".rope.scaling.factor"] or meta[arch .. ".rope.scale_linear"]
  local scaling = meta[arch .. ".rope.scaling.type"] or factor and factor ~= 0 and factor ~= 1 and "linear"
  -- How much of YaRN's mixing there is: by the type where it is below 0.
  local mix, usual = key("rope.scaling.yarn_ext_factor", -1), scaling == "yarn" and 1 or 0
  if mix >= 0 and mix ~= usual and (scaling == "yarn" or scaling == "linear") then
    config.fault("%s: %s.rope.scaling.yarn_ext_factor = %s is not supported", path, arch, mix)
  end
  if factors then -- each frequency divided by a factor of its own
    if gguf.is_blocks(factors) then factors = factors:numbers() end
    local list = factors:double():totable()
    c.rope_scaling = { rope_type = "longrope", short_factor = json.array(list),
      long_factor = json.array { table.unpack(list) }, attention_factor = 1.0, factor = 1.0,
      original_max_position_embeddings = c.max_position_embeddings }
  elseif by_length.short or by_length.long then
    if not (by_length.short and by_length.long) then
      config.fault("%s: tensor 'rope_factors_%s.weight' is missing beside the other one", path,
        by_length.short and "long" or "short")
    end
    local original = key("rope.scaling.original_context_length", c.max_position_embeddings)
    c.rope_scaling = { rope_type = "longrope", short_factor = json.array(by_length.short:double():totable()),
      long_factor = json.array(by_length.long:double():totable()), factor = 1.0,
      attention_factor = key("rope.scaling.attn_factor", 1.0), original_max_position_embeddings = original }
    if kind[1] == "phi3" then c.original_max_position_embeddings = original end
  elseif scaling == "linear" then -- without a factor, or with 0, nothing is scaled
    if factor and factor ~= 0 then c.rope_scaling = { rope_type = "linear", factor = factor } end
  elseif scaling == "yarn" then
    local heat = key("rope.scaling.attn_factor", 1)
    if heat ~= 1 then config.fault("%s: %s.rope.scaling.attn_factor = %s is not supported", path, arch, heat) end
    c.rope_scaling = { rope_type = "yarn", factor = key "rope.scaling.factor",
      beta_fast = key("rope.scaling.yarn_beta_fast", 32.0), beta_slow = key("rope.scaling.yarn_beta_slow", 1.0),
      original_max_position_embeddings = key "rope.scaling.original_context_length" }
  elseif scaling and scaling ~= "none" then
    config.fault("%s: %s.rope.scaling.type %s is not supported", path, arch, tostring(scaling))
  end
  return c
end

--- config.json's table, tensors by transformers' names, the file of each, and generation_config.json's table. blocks:
-- quantized tensors stay so (perilune.io.gguf). map: as in T.load.
function M.read(path, blocks, map)
  local stored, meta, code = gguf.read(path, { blocks = blocks, map = map })
  if not stored then error({ message = meta, code = code }, 0) end
  local arch = meta["general.architecture"]
  local kind = kinds[arch]
  if arch == nil then
    config.fault("%s: has tensors, but no general.architecture, so it is no model; T.load reads it", path)
  end
  if not kind then
    config.fault("%s: general.architecture %s is not supported (llama, qwen2, qwen3, gemma, gemma2, gemma3, phi3 "
      .. "and gpt2 are)", path,
      tostring(arch))
  end
  local function key(name, default)
    local v = meta[arch .. "." .. name]
    if v == nil then v = default end
    if v == nil then config.fault("%s: the key %s.%s is missing", path, arch, name) end
    return v
  end
  local heads = key "attention.head_count"
  local shared = key("attention.head_count_kv", heads)
  local width = key "embedding_length"
  for name, v in pairs { head_count = heads, head_count_kv = shared, embedding_length = width } do
    if math.type(v) ~= "integer" or v < 1 then
      config.fault("%s: %s must be a positive integer, got %s", path, name, tostring(v))
    end
  end
  local head_dim = key("attention.key_length", width // heads)
  refuse_keys(path, arch, kind, meta, head_dim)
  local tensors, from, factors, by_length = {}, {}, nil, {}
  for name, t in pairs(stored) do
    local new, part, which = name_of(name, kind)
    if name == "rope_freqs.weight" then
      factors = t
    elseif name:find "^rope_factors_%a+%.weight$" then -- of short texts and of long ones
      by_length[name:match "_(%a+)%."] = gguf.is_blocks(t) and t:numbers() or t
    elseif not new then
      config.fault("%s: tensor '%s' is not of a model of architecture %s", path, name, arch)
    else
      if kind.pairs and (part == "attn_q" or part == "attn_k") then
        local n = part == "attn_q" and heads or shared
        if t:size(1) % (2 * n) ~= 0 then
          config.fault("%s: tensor '%s' has %d rows, no even number for each of %d heads", path, name, t:size(1), n)
        end
        t = halves(t, n)
      end
      if kind.offset and is_norm(part) then t = t:float() - kind.offset end
      if kind.turned and kind.turned[part] and which == "weight" and not gguf.is_blocks(t) then t = t:t() end
      tensors[new], from[new] = t, path
    end
  end
  local words = tensors[(kind.whole or whole).token_embd .. ".weight"]
  if not words then config.fault("%s: tensor 'token_embd.weight' is missing", path) end
  local c
  if arch == "gpt2" then
    c = gpt2_config(key, tensors, heads, width)
  else
    c = rotary_config { path = path, arch = arch, kind = kind, meta = meta, key = key, tensors = tensors, words = words,
      heads = heads, shared = shared, width = width, head_dim = head_dim, factors = factors, by_length = by_length }
  end
  local generation = {}
  local function token(key_name) -- an id beyond the table, as 2^32 - 1 for none, is of no token
    local id = meta["tokenizer.ggml." .. key_name .. "_token_id"]
    return is_token(id, words:size(1)) and id or nil
  end
  for name, key_name in pairs(special) do
    local id = token(key_name)
    generation[name .. "_token_id"], c[name .. "_token_id"] = id, id
  end
  local ends, have = json.array { generation.eos_token_id }, { [generation.eos_token_id or -1] = true }
  local function add(id)
    if is_token(id, words:size(1)) and not have[id] then ends[#ends + 1], have[id] = id, true end
  end
  for _, name in ipairs(more_ends) do add(token(name)) end
  local all = meta[ALL_ENDS]
  for _, id in ipairs(type(all) == "table" and all or {}) do add(id) end
  if #ends > 1 or generation.eos_token_id == nil and #ends > 0 then generation.eos_token_id = ends end
  -- A default of the architecture would be an id that nobody chose, and may be none of the vocabulary's.
  for name in pairs(special) do
    if c[name .. "_token_id"] == nil then c[name .. "_token_id"] = json.null end
  end
  return c, tensors, from, generation
end

-- ---- writing -----------------------------------------------------------------------------------------------

local function inverse(map)
  local out = {}
  for key, v in pairs(map) do out[v] = key end
  return out
end

local function gguf_name(name, how)
  local stem, kind = name:match "^(.*)%.(%a+)$"
  local prefix = (how.prefix or "model.layers"):gsub("%.", "%%.")
  local layer, part = (stem or ""):match("^" .. prefix .. "%.(%d+)%.(.*)$")
  local own = layer and (how.fused and inverse(how.fused)[part] or inverse(how.inside or inside)[part])
  if own then return ("blk.%s.%s.%s"):format(layer, own, kind), own, kind end
  own = inverse(how.whole or whole)[stem]
  if own then return own .. "." .. kind, own, kind end
end

-- Rows of heads with halves rotated → with neighbours.
local function neighbours(t, heads)
  local shape = t:shape()
  return t:reshape(heads, 2, shape[1] // heads // 2, -1):transpose(2, 3):reshape(shape)
end

-- What GGUF says of the angles of places: into meta; factors of single frequencies by the names of their tensors, or
-- nil.
local function write_rope(who, rope, arch, meta)
  local s = rope._settings
  local at = arch .. ".rope."
  meta[at .. "freq_base"], meta[at .. "dimension_count"] = s.base + 0.0, s.dim
  local function refuse(why) config.fault("%s: rope_scaling %s %s", who, s.kind, why) end
  if s.kind == "default" then return nil end
  if s.kind == "linear" then
    meta[at .. "scaling.type"], meta[at .. "scaling.factor"] = "linear", s.factor + 0.0
  elseif s.kind == "yarn" then
    if s.attention_factor or s.mscale or s.mscale_all_dim or not s.truncate then
      refuse "has settings that GGUF has no keys for"
    end
    if s.beta_fast ~= 32 then meta[at .. "scaling.yarn_beta_fast"] = s.beta_fast + 0.0 end
    if s.beta_slow ~= 1 then meta[at .. "scaling.yarn_beta_slow"] = s.beta_slow + 0.0 end
    meta[at .. "scaling.type"], meta[at .. "scaling.factor"] = "yarn", s.factor + 0.0
    meta[at .. "scaling.original_context_length"] = s.original_max_positions
  elseif s.kind == "llama3" then
    local list = rope.inv_freq:double():totable()
    for i, w in ipairs(list) do list[i] = s.base ^ (-2 * (i - 1) / s.dim) / w end
    return { rope_freqs = list }
  elseif s.kind == "longrope" and s.attention_factor == 1 and table.concat(s.short_factor, " ") == table.concat(
    s.long_factor, " ") then
    return { rope_freqs = { table.unpack(s.short_factor) } }
  elseif s.kind == "longrope" then
    rope:set_frequencies(0)
    meta[at .. "scaling.attn_factor"] = rope.heat + 0.0
    meta[at .. "scaling.original_context_length"] = s.original_max_positions
    return { rope_factors_short = { table.unpack(s.short_factor) },
      rope_factors_long = { table.unpack(s.long_factor) } }
  else
    refuse "cannot be written to GGUF"
  end
end

--- Writes a network of T.models to a GGUF file. list: {{name, tensor or Blocks}} under transformers' names; kind: what
-- matrices become (T.save_gguf's type); nil: what they are; tokenizer: goes into the file, too. → true, or nil,
-- message, code
function M.write(path, net, list, kind, tokenizer)
  local m, c = net._model, net.config
  local arch, found
  if m.class == "MistralForCausalLM" then arch, found = "llama", kinds.llama end -- as llama.cpp has it
  for name, k in pairs(kinds) do if k[2] == m.class then arch, found = name, k end end
  if not arch then
    config.fault("models.save: GGUF files are written of LlamaForCausalLM, MistralForCausalLM without a window, "
      .. "Qwen2ForCausalLM, Qwen3ForCausalLM, GemmaForCausalLM, Gemma2ForCausalLM, Gemma3ForCausalLM and "
      .. "Phi3ForCausalLM and GPT2LMHeadModel, not %s", m.class)
  end
  local gpt2 = arch == "gpt2"
  if gpt2 then
    config.only("models.save: GGUF's gpt2", c, { scale_attn_weights = { true },
      scale_attn_by_inverse_layer_idx = { false } })
    c = { hidden_act = c.activation_function, num_attention_heads = c.n_head, hidden_size = c.n_embd,
      num_hidden_layers = c.n_layer, intermediate_size = c.n_inner or 4 * c.n_embd, vocab_size = c.vocab_size,
      max_position_embeddings = c.n_positions, layer_norm_eps = c.layer_norm_epsilon, bos_token_id = c.bos_token_id,
      eos_token_id = c.eos_token_id, pad_token_id = c.pad_token_id }
  end
  local windows = net._d.windows or {}
  for i = 1, c.num_hidden_layers do
    if found.window then
      if (windows[i] or false) ~= (i % found.window ~= 0 and c.sliding_window) then
        config.fault("models.save: GGUF's %s has windows in all layers but every %d%s; this network has them elsewhere",
          arch, found.window, found.window == 2 and "nd" or "th")
      end
    elseif windows[i] and arch ~= "phi3" then
      config.fault "models.save: GGUF has no windows for this architecture"
    end
  end
  if found.tied and not c.tie_word_embeddings then
    config.fault("models.save: GGUF's %s has no output of its own; tie_word_embeddings is false here", arch)
  elseif found.plain and c.attention_bias then
    config.fault("models.save: GGUF's %s has no biases of attention", arch)
  end
  local act = found.act or "silu"
  if c.hidden_act ~= act then
    config.fault("models.save: hidden_act %s; GGUF's layers of this architecture have %s", tostring(c.hidden_act), act)
  end
  local heads = c.num_attention_heads
  local shared = c.num_key_value_heads or heads
  local head_dim = c.head_dim or c.hidden_size // heads
  local meta = { ["general.architecture"] = arch, ["tokenizer.ggml.model"] = "none",
    [arch .. ".vocab_size"] = c.vocab_size,
    [arch .. ".context_length"] = c.max_position_embeddings, [arch .. ".embedding_length"] = c.hidden_size,
    [arch .. ".block_count"] = c.num_hidden_layers, [arch .. ".feed_forward_length"] = c.intermediate_size,
    [arch .. ".attention.head_count"] = heads, [arch .. ".attention.head_count_kv"] = shared,
    [arch .. ".attention.key_length"] = head_dim, [arch .. ".attention.value_length"] = head_dim,
    [arch .. (gpt2 and ".attention.layer_norm_epsilon" or ".attention.layer_norm_rms_epsilon")] =
      (gpt2 and c.layer_norm_eps or c.rms_norm_eps) + 0.0,
    [arch .. ".attention.sliding_window"] = (arch == "phi3" or found.window) and c.sliding_window or nil }
  if found.window then
    local size = score_size(found, c.num_hidden_layers, c.hidden_size, heads, head_dim)
    if c.query_pre_attn_scalar ~= size then
      config.fault("models.save: query_pre_attn_scalar %s; GGUF's %s of %d layers has %s", c.query_pre_attn_scalar,
        arch, c.num_hidden_layers, size)
    end
    for _, name in ipairs { "attn_logit_softcapping", "final_logit_softcapping" } do
      if c[name] then
        meta[arch .. "." .. name] = c[name] + 0.0
      elseif arch == "gemma2" then
        config.fault("models.save: GGUF's %s always has a cap; %s is not set", arch, name)
      end
    end
    local near = net[net._d.names.root].rotary2
    if near then
      if near._settings.kind ~= "default" then
        config.fault("models.save: rope_parameters of layers with a window are %s; GGUF has plain ones",
          near._settings.kind)
      end
      meta[arch .. ".rope.freq_base_swa"] = near._settings.base + 0.0
    end
  end
  for name, key in pairs(special) do
    local id = net.generation_config[name .. "_token_id"]
    if id == nil then id = c[name .. "_token_id"] end
    local ids = {}
    for _, one in ipairs(type(id) == "table" and id or { id }) do
      if is_token(one, c.vocab_size) then ids[#ids + 1] = one end
    end
    for i, key_name in ipairs { key, table.unpack(name == "eos" and more_ends or {}) } do
      meta[("tokenizer.ggml.%s_token_id"):format(key_name)] = ids[i]
    end
    if #ids > 1 + #more_ends then meta[ALL_ENDS] = ids end
  end
  if tokenizer then
    for key, v in pairs(require("perilune.data.tokenizer_to_gguf").keys(tokenizer, c.vocab_size)) do meta[key] = v end
  end
  local rows = {}
  for _, item in ipairs(list) do
    local name, part, which = gguf_name(item[1], found)
    local t = item[2]
    if not name then config.fault("models.save: tensor '%s' has no name in GGUF files of %s", item[1], arch) end
    local n = found.pairs and (part == "attn_q" and heads or part == "attn_k" and shared)
    if gguf.is_blocks(t) then
      rows[#rows + 1] = { name, n and neighbours(t.blocks, n) or t.blocks, t.format }
    else
      if n then t = neighbours(t, n) end
      if found.offset and is_norm(part) then t = t:float() + found.offset end
      if found.turned and found.turned[part] and which == "weight" then t = t:t():contiguous() end
      local table_of_places = part == "position_embd"
      rows[#rows + 1] = { name, (t:dim() == 1 or table_of_places) and t:float() or t, plain = table_of_places }
    end
  end
  local factors = not gpt2 and write_rope("models.save", net[net._d.names.root].rotary1, arch, meta)
  for _, name in ipairs { "rope_freqs", "rope_factors_short", "rope_factors_long" } do -- in one order in each file
    local factor = factors and factors[name]
    if factor then rows[#rows + 1] = { name .. ".weight", T.tensor(factor, { dtype = "f32" }) } end
  end
  local map = "tokenizer.ggml.precompiled_charsmap"
  return gguf.save_rows(path, rows, meta, kind, meta[map] and { [map] = "[u8]" })
end

return M
