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
  max_new_tokens = "max_new_tokens", num_beams = "num_beams" }
local of_beams = { length_penalty = "length_penalty", early_stopping = "early_stopping" }

-- Fields that change texts otherwise → the value that changes nothing (false: none but null and false).
local others = { constraints = false, diversity_penalty = 0, dola_layers = false, encoder_no_repeat_ngram_size = 0,
  encoder_repetition_penalty = 1, exponential_decay_length_penalty = false, force_words_ids = false,
  forced_bos_token_id = false, forced_decoder_ids = false, forced_eos_token_id = false, guidance_scale = 1,
  max_time = false, num_beam_groups = 1, num_return_sequences = 1, penalty_alpha = 0, prompt_lookup_num_tokens = false,
  renormalize_logits = false, sequence_bias = false, stop_strings = false, token_healing = false, top_h = false,
  watermarking_config = false,
  -- Whisper's own: tokens that its generate puts in front
  is_multilingual = false, lang_to_id = false, task_to_id = false, no_timestamps_token_id = false,
  return_timestamps = false, prompt_ids = false }

-- transformers draws from so many tokens where nothing is said.
local TOP_K = 50

local function plain(v)
  if v == json.null then return nil end
  if json.is_array(v) then
    local out = {}
    for i, x in ipairs(v) do out[i] = plain(x) end
    return out
  end
  return v
end

--- The options o of a call with those of a generation_config.json's table where it has none. longest: the ids of the
-- longest prompt, which max_length counts.
function M.merge(who, o, config, longest)
  for name, nothing in pairs(others) do
    local v = plain(config[name])
    if v ~= nil and v ~= false and v ~= nothing then
      fail("%s: generation_config.json asks for %s, which is not supported; name the options in the call in its place",
        who, name)
    end
  end
  local function take(from)
    for field, option in pairs(from) do if o[option] == nil then o[option] = plain(config[field]) end end
  end
  if o.do_sample == nil then
    o.do_sample = plain(config.do_sample) == true
    for _, option in pairs(drawing) do if o[option] ~= nil then o.do_sample = true end end
  end
  if o.do_sample then
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
