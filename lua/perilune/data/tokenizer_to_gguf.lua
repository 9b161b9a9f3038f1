-- SPDX-License-Identifier: MIT
--- A tokenizer as the keys tokenizer.ggml.* of a GGUF file, where these can say it: byte-level BPE whose words are cut
-- as one of llama.cpp's pre-tokenizers does ("gpt2"), sentencepiece's BPE with byte fallback ("llama") and Unigram
-- ("t5"). What is read back from them (tokenizer_gguf.lua) is the same.
-- @module perilune.data.tokenizer_to_gguf
local json = require "perilune.io.json"
local gguf = require "perilune.data.tokenizer_gguf"

local M = {}

local NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

local function refuse(fmt, ...)
  error({ code = "unsupported", message = "models.save: the tokenizer cannot be written to GGUF: " .. fmt:format(...) },
    0)
end

local function given(v) return v ~= nil and v ~= json.null end

-- How words are cut, as tokenizer_gguf has it: patterns in order, whether ByteLevel's own comes last.
local function rules_of(pre)
  local rules = { gpt2 = false }
  local function step(s, last)
    if s.type == "ByteLevel" then
      if s.add_prefix_space == true then refuse "its ByteLevel adds a blank in front" end
      local own = s.use_regex ~= false
      if last then rules.gpt2 = own elseif own then rules[#rules + 1] = gguf.gpt2_pattern end
    elseif s.type == "Split" and type(s.pattern) == "table" and s.behavior == "Isolated" and s.invert ~= true
      and type(s.pattern.Regex) == "string" then
      rules[#rules + 1] = s.pattern.Regex
    elseif s.type == "Digits" and s.individual_digits == true then
      rules[#rules + 1] = [[\p{N}]]
    else
      refuse("its pre-tokenizer has a step %s", tostring(s.type))
    end
  end
  if type(pre) ~= "table" then refuse "it has no pre-tokenizer" end
  local list = pre.type == "Sequence" and pre.pretokenizers or { pre }
  for i, s in ipairs(list) do step(s, i == #list) end
  if list[#list].type ~= "ByteLevel" then refuse "its pre-tokenizer does not end in ByteLevel" end
  return rules
end

local first_names = { "gpt-2", "llama-bpe", "qwen2", "dbrx", "starcoder", "tekken", "gpt-4o" }

local function pre_name(rules, whole)
  local function is(known)
    if (known.gpt2 or false) ~= rules.gpt2 or (known.whole or false) ~= whole or #known ~= #rules then return false end
    for i, rule in ipairs(known) do
      if (type(rule) == "table" and gguf.gpt2_pattern or rule) ~= rules[i] then return false end
    end
    return true
  end
  for _, name in ipairs(first_names) do if is(gguf.pre[name]) then return name end end
  local names = {}
  for name in pairs(gguf.pre) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do if is(gguf.pre[name]) then return name end end
  refuse "words are cut by patterns that none of llama.cpp's pre-tokenizers has"
end

-- The special tokens that a text gets in front and behind, nil for none: their contents.
local function around(post)
  local list, found = { post }, { false, false }
  if type(post) == "table" and post.type == "Sequence" then list = post.processors end
  for _, p in ipairs(list) do
    if type(p) == "table" and p.type == "TemplateProcessing" then
      local at = 1
      for _, piece in ipairs(p.single) do
        if piece.Sequence then
          at = 2
        elseif piece.SpecialToken and not found[at] then
          found[at] = piece.SpecialToken.id
        else
          refuse "it puts several tokens in front or behind"
        end
      end
    elseif given(p) and p.type ~= "ByteLevel" then
      refuse("its post-processor is %s", tostring(p.type))
    end
  end
  return found[1], found[2]
end

-- What keys do not say they may still say wrongly: an added token that takes blanks, a byte without a token, tokens
-- put around in a way of their own. So the keys are read back, and both tokenizers asked.
local samples = { "", " ", "a", "A b  c   d\n\n e\r\n\tf", "it's 12345 o'clock, they'LL", "naïve Grüße 日本語 🎉 ½²",
  "x_y-z...!?(){}[]<>|\\/@#$%^&*~`+=\u{a0}\u{2003}\u{200b}" }

local function compare(tokenizer, meta, added, more)
  local text, message = gguf.of_keys(meta)
  local back
  if text then back, message = require("perilune.data.tokenizer").from_json(text, "GGUF") end
  if not back then refuse("its keys cannot be read: %s", tostring(message)) end
  local function ask(sample)
    local a, b = tokenizer:encode(sample, { index_base = 0 }), back:encode(sample, { index_base = 0 })
    local same = a and b and a:numel() == b:numel() and (a:numel() == 0 or a:eq(b):all():item())
    if same and a:numel() > 0 then
      local o = { index_base = 0, skip_special = false }
      same = tokenizer:decode(a, o) == back:decode(b, o)
    end
    if not same then refuse("its keys would make other tokens of %q", sample) end
  end
  for _, sample in ipairs(samples) do ask(sample) end
  for _, one in ipairs(more) do ask(one) end
  local bytes = {}
  for b = 1, 255 do bytes[b] = string.char(b) end
  ask(table.concat(bytes))
  for _, a in ipairs(added) do
    for _, form in ipairs { "%s", "x%sy", " %s ", "x\n %s \ny", "%s%s" } do
      ask((form:gsub("%%s", function() return a end)))
    end
  end
end

-- ---- sentencepiece's ---------------------------------------------------------------------------------------------

-- Does it put a mark in front of a text, and make one blank of several? What else it does the comparison tells.
local function spaces(t)
  local prefix, single = false, false
  local function look(s)
    if type(s) ~= "table" then return end
    for _, key in ipairs { "normalizers", "pretokenizers" } do
      for _, one in ipairs(s[key] or {}) do look(one) end
    end
    if s.type == "Prepend" or s.type == "Metaspace" and s.prepend_scheme ~= "never" then prefix = true end
    if s.type == "WhitespaceSplit" or s.type == "Replace" and type(s.pattern) == "table"
      and s.pattern.Regex == " {2,}" then single = true end
    if s.type == "ByteLevel" or s.type == "NFKC" or s.type == "NFKD" or s.type == "NFD" or s.type == "Lowercase" then
      refuse("it has a step %s", s.type)
    end
  end
  look(t.normalizer)
  look(t.pre_tokenizer)
  return prefix, single
end

local values = {}
for i = 1, 64 do
  values[("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):byte(i)] = i - 1
end
local function bytes_of_base64(s)
  local out, v, bits = {}, 0, 0
  for i = 1, #s do
    local six = values[s:byte(i)]
    if six then
      v, bits = (v << 6 | six) & 0xFFFFFF, bits + 6
      if bits >= 8 then
        bits = bits - 8
        out[#out + 1] = v >> bits & 255
      end
    end
  end
  return out
end

local function charsmap(normalizer)
  local found
  local function look(s)
    for _, one in ipairs(type(s) == "table" and s.normalizers or {}) do look(one) end
    if type(s) == "table" and s.type == "Precompiled" then found = s.precompiled_charsmap end
  end
  look(normalizer)
  return type(found) == "string" and #found > 0 and bytes_of_base64(found) or nil
end

-- Scores by which pairs are merged as the list of merges has it: a token is the better the earlier it is made.
local function scores_of_merges(model, tokens)
  local rank, scores = {}, {}
  for i, m in ipairs(model.merges) do
    local a, b = m[1], m[2]
    if type(m) == "string" then a, b = m:match "^(.-) (.*)$" end
    rank[a .. b] = rank[a .. b] or i
  end
  local last = -(#model.merges + 1.0)
  for i, text in ipairs(tokens) do scores[i] = rank[text] and -(rank[text] + 0.0) or last end
  return scores
end

-- Blanks of Unicode. Without U+0085, which sentencepiece and its keys keep, and the WhitespaceSplit that stands for
-- them in tokenizer.json drops.
local blanks = { 0x9, 0xb, 0xc, 0xd, 0x1c, 0xa0, 0x1680, 0x2000, 0x2007, 0x200b, 0x2028, 0x202f, 0x205f, 0x3000,
  0xfeff, 0xad }

-- Texts that ask for the merges of tokens: a few thousand of them, alone and with a neighbour; and for blanks.
local function texts_of(tokens, types)
  local out, step = { "a  b", "  a", "a  ", "ﬁ ½ Å ℌ é" }, #tokens // 2048 + 1
  for _, c in ipairs(blanks) do
    for _, form in ipairs { "a%sb", "%sa", "a%s", "a %sb" } do out[#out + 1] = form:format(utf8.char(c)) end
  end
  for i = 1, #tokens, step do
    if types[i] == NORMAL then
      local text = tokens[i]:gsub("▁", " ")
      out[#out + 1] = text
      out[#out + 1] = text .. (tokens[i + 1] or ""):gsub("▁", " ")
    end
  end
  return out
end

local function sentencepiece(t, model, size)
  local tokens, types, ids, meta = {}, {}, {}, {}
  local scores = {}
  local function put(id, text, kind)
    if id >= size then refuse("token %q has the id %d, and the model has %d tokens", text, id, size) end
    tokens[id + 1], types[id + 1], ids[text] = text, kind, id
  end
  if model.type == "BPE" then
    for text, id in pairs(model.vocab) do
      put(id, text, model.byte_fallback and text:find "^<0x%x%x>$" and BYTE or NORMAL)
    end
  else
    for i, entry in ipairs(model.vocab) do
      put(i - 1, entry[1], NORMAL)
      scores[i] = entry[2] + 0.0
    end
  end
  for _, a in ipairs(t.added_tokens or {}) do put(a.id, a.content, a.special and CONTROL or USER_DEFINED) end
  local unknown
  if model.type == "BPE" then unknown = given(model.unk_token) and ids[model.unk_token] or nil
  elseif given(model.unk_id) then unknown = model.unk_id end
  if unknown then
    types[unknown + 1] = UNKNOWN
    meta.unknown_token_id = unknown
  end
  for i = 1, size do
    if not tokens[i] then tokens[i], types[i] = ("[PAD %d]"):format(i - 1), UNUSED end -- no text has a blank left
  end
  if model.type == "BPE" then scores = scores_of_merges(model, tokens) end
  local least = 0.0
  for i = 1, size do if types[i] == NORMAL and scores[i] then least = math.min(least, scores[i]) end end
  for i = 1, size do
    if types[i] == UNUSED then scores[i] = least -- which says what characters without a token cost
    elseif types[i] == CONTROL or types[i] == UNKNOWN or not scores[i] then scores[i] = 0.0 end
  end
  meta.scores, meta.tokens, meta.token_type = scores, tokens, types
  local prefix, single = spaces(t)
  meta.add_space_prefix, meta.remove_extra_whitespaces = prefix, single
  meta.model = model.type == "BPE" and "llama" or "t5"
  if model.type ~= "BPE" then meta.precompiled_charsmap = charsmap(t.normalizer) end
  local out = {}
  for key, v in pairs(meta) do out["tokenizer.ggml." .. key] = v end
  return out, ids, texts_of(tokens, types)
end

--- Keys and values for `size` tokens of a model. Raises { code, message } for what has no keys.
function M.keys(tokenizer, size)
  local t = assert(json.decode(tokenizer.json))
  local model, meta = t.model, {}
  if model.type ~= "BPE" and model.type ~= "Unigram" then
    refuse("its model is %s; BPE or Unigram is wanted", tostring(model.type))
  end
  local pieces = model.type == "Unigram" or model.byte_fallback == true
  if not pieces and given(t.normalizer) and t.normalizer.type ~= "NFC" then -- which llama.cpp leaves out, too
    refuse("its normalizer is %s", tostring(t.normalizer.type))
  end
  for _, name in ipairs { "continuing_subword_prefix", "end_of_word_suffix" } do
    if given(model[name]) and model[name] ~= "" then refuse("it has a %s", name) end
  end
  local tokens, types, ids, more = {}, {}, {}, {}
  local at = "tokenizer.ggml."
  local function put(id, text, kind)
    if id >= size then refuse("token %q has the id %d, and the model has %d tokens", text, id, size) end
    tokens[id + 1], types[id + 1], ids[text] = text, kind, id
  end
  if pieces then
    meta, ids, more = sentencepiece(t, model, size)
  else
    for text, id in pairs(model.vocab) do put(id, text, NORMAL) end
    for _, a in ipairs(t.added_tokens or {}) do put(a.id, a.content, a.special and CONTROL or USER_DEFINED) end
    for i = 1, size do
      if not tokens[i] then tokens[i], types[i] = ("[PAD%d]"):format(i - 1), UNUSED end
    end
    local merges = {}
    for i, m in ipairs(model.merges) do merges[i] = type(m) == "table" and m[1] .. " " .. m[2] or m end
    meta[at .. "model"] = "gpt2"
    meta[at .. "pre"] = pre_name(rules_of(t.pre_tokenizer), model.ignore_merges == true)
    meta[at .. "tokens"], meta[at .. "token_type"], meta[at .. "merges"] = tokens, types, merges
  end
  local first, last = around(t.post_processor)
  meta[at .. "add_bos_token"], meta[at .. "add_eos_token"] = first ~= false, last ~= false
  for name, text in pairs { bos = first, eos = last } do
    if text then meta[at .. name .. "_token_id"] = ids[text] or refuse("there is no token %q", text) end
  end
  local chat = tokenizer.chat and tokenizer.chat.templates and tokenizer.chat.templates.default
  if type(chat) == "string" then meta["tokenizer.chat_template"] = chat end
  local added = {}
  for i, a in ipairs(t.added_tokens or {}) do added[i] = a.content end
  compare(tokenizer, meta, added, more)
  return meta
end

return M
