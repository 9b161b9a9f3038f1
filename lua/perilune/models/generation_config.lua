-- SPDX-License-Identifier: MIT
--- The settings of a generation_config.json as options of T.models.generate, with transformers' meaning; what it asks
-- for and is not there is refused. @module perilune.models.generation_config
local json = require "perilune.io.json"
local options = require "perilune.options"

local fail = options.fail
local M = {}

-- Field → option. Fields of drawing count where tokens are drawn, those of beams where there are several.
local drawing = { temperature = "temperature", top_k = "top_k", top_p = "top_p", min_p = "min_p",
  typical_p = "typical_p", epsilon_cutoff = "epsilon_cutoff", eta_cutoff = "eta_cutoff" }
local always = { repetition_penalty = "repetition_penalty", no_repeat_ngram_size = "no_repeat_ngram_size",
  bad_words_ids = "bad_words", min_length = "min_length", min_new_tokens = "min_new_tokens",
  max_new_tokens = "max_new_tokens", num_beams = "num_beams", forced_bos_token_id = "forced_bos",
  forced_eos_token_id = "forced_eos" }
local of_beams = { length_penalty = "length_penalty", early_stopping = "early_stopping" }

-- Fields that change texts otherwise → the value that changes nothing (false: none but null and false).
local others = { assistant_ensemble_weight = 0, constraints = false, diversity_penalty = 0, dola_layers = false,
  encoder_no_repeat_ngram_size = 0, encoder_repetition_penalty = 1, exponential_decay_length_penalty = false,
  force_words_ids = false, forced_decoder_ids = false, guidance_scale = 1, low_memory = false, max_time = false,
  num_beam_groups = 1, num_return_sequences = 1, penalty_alpha = 0, prompt_lookup_num_tokens = false,
  remove_invalid_values = false, renormalize_logits = false, sequence_bias = false, stop_strings = false,
  token_healing = false, top_h = false, watermarking_config = false,
  -- Whisper's own: tokens that its generate puts in front
  is_multilingual = false, lang_to_id = false, language = false, no_timestamps_token_id = false, prompt_ids = false,
  return_timestamps = false, task = false, task_to_id = false }

-- Fields that are read where they are needed, whatever the call says: net.generation_config.
local elsewhere = { "begin_suppress_tokens", "bos_token_id", "decoder_start_token_id", "eos_token_id", "max_length",
  "pad_token_id", "suppress_tokens", "do_sample" }

-- Fields that change no token: how keys and values are kept and programs compiled, what a call returns beside tokens,
-- how an assistant guesses, of whose guesses only what the network itself would choose stays, and notes.
local harmless = { "_commit_hash", "_from_model_config", "assistant_confidence_threshold", "assistant_early_exit",
  "assistant_lookbehind", "cache_config", "compile_config", "continuous_batching_config", "disable_compile",
  "is_assistant", "max_cache_len", "max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule",
  "output_attentions", "output_hidden_states", "output_logits", "output_scores", "prefill_chunk_size",
  "return_dict_in_generate", "return_legacy_cache", "speculation_type", "target_lookbehind", "transformers_version",
  "use_cache", "use_mtp",
  -- Whisper's, of times of words
  "alignment_heads", "max_initial_timestamp_index", "median_filter_width", "prev_sot_token_id" }

-- Field → "obeyed", "refused" or "harmless".
local kinds = { cache_implementation = "refused" } -- where it is "quantized"
for name in pairs(others) do kinds[name] = "refused" end
for _, name in ipairs(harmless) do kinds[name] = "harmless" end
for _, name in ipairs(elsewhere) do kinds[name] = "obeyed" end
for _, list in ipairs { drawing, always, of_beams } do for name in pairs(list) do kinds[name] = "obeyed" end end

--- What becomes of a field: "obeyed", "refused", "harmless", or nil, unknown.
function M.kind(name) return kinds[name] end

-- transformers draws from so many tokens where nothing is said.
local TOP_K = 50

local told = setmetatable({}, { __mode = "k" }) -- tables whose unknown fields were named

local function plain(v)
  if v == json.null then return nil end
  if json.is_array(v) then
    local out = {}
    for i, x in ipairs(v) do out[i] = plain(x) end
    return out
  end
  return v
end

--- Texts that end what is written (stop_strings), for who has a tokenizer. → list
function M.stops(config)
  local v = plain(config.stop_strings)
  if type(v) == "string" then v = { v } end
  local out = {}
  for i, text in ipairs(type(v) == "table" and v or {}) do
    if type(text) ~= "string" or text == "" then
      fail("generation_config.json: stop_strings must be texts, got %s", options.describe(text))
    end
    out[i] = text
  end
  return out
end

-- What is not heeded is not passed over in silence. texts: whoever calls heeds M.stops.
local function check(who, config, texts)
  local unknown = {}
  for name, given in pairs(config) do
    local v, nothing = plain(given), others[name]
    local says = v ~= nil and v ~= false and not (type(v) == "table" and next(v) == nil)
    if texts and name == "stop_strings" then nothing = v end
    if says and nothing ~= nil and v ~= nothing or name == "cache_implementation" and v == "quantized" then
      fail("%s: generation_config.json asks for %s, which is not supported; name the options in the call in its place",
        who, name)
    end
    if says and not kinds[name] then unknown[#unknown + 1] = tostring(name) end
  end
  if #unknown > 0 and not told[config] then
    told[config] = true
    table.sort(unknown)
    io.stderr:write(("warning: %s: generation_config.json has fields that are not known, and not heeded: %s\n"):format(
      who, table.concat(unknown, ", ")))
  end
end

--- The options o of a call with those of a generation_config.json's table where it has none. longest: the ids of the
-- longest prompt, which max_length counts. own: replies are made as text; what that table says of drawing counts only
-- where it asks for it.
function M.merge(who, o, config, longest, own)
  check(who, config, own)
  local function take(from)
    for field, option in pairs(from) do if o[option] == nil then o[option] = plain(config[field]) end end
  end
  if o.do_sample == nil then
    o.do_sample = plain(config.do_sample) == true
    for _, option in pairs(drawing) do if o[option] ~= nil then o.do_sample = true end end
  end
  if o.do_sample and (not own or plain(config.do_sample) == true) then
    take(drawing)
    if o.top_k == nil then o.top_k = TOP_K end
  end
  take(always)
  if (o.num_beams or 1) ~= 1 then take(of_beams) end
  local most = plain(config.max_length)
  if o.max_new_tokens == nil and most ~= nil then
    if math.type(most) ~= "integer" or most <= longest then
      fail("%s: max_length %s of generation_config.json leaves no room behind a prompt of %d ids; give max_new_tokens",
        who, tostring(most), longest)
    end
    o.max_new_tokens = most - longest
  end
  return o
end

return M
