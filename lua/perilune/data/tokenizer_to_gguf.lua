-- SPDX-License-Identifier: MIT
--- A tokenizer as the keys tokenizer.ggml.* of a GGUF file, where these can say it: byte-level BPE whose words are cut
-- as one of llama.cpp's pre-tokenizers does ("gpt2"). What is read back from them (tokenizer_gguf.lua) is the same.
-- @module perilune.data.tokenizer_to_gguf
local json = require "perilune.io.json"
local gguf = require "perilune.data.tokenizer_gguf"

local M = {}

local NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

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

local function compare(tokenizer, meta, added)
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
  local bytes = {}
  for b = 1, 255 do bytes[b] = string.char(b) end
  ask(table.concat(bytes))
  for _, a in ipairs(added) do
    for _, form in ipairs { "%s", "x%sy", " %s ", "x\n %s \ny", "%s%s" } do
      ask((form:gsub("%%s", function() return a end)))
    end
  end
end

--- Keys and values for `size` tokens of a model. Raises { code, message } for what has no keys.
function M.keys(tokenizer, size)
  local t = assert(json.decode(tokenizer.json))
  local model, meta = t.model, {}
  if model.type ~= "BPE" or model.byte_fallback == true then
    refuse("its model is %s; byte-level BPE is wanted", model.type == "BPE" and "BPE with byte fallback"
      or tostring(model.type))
  end
  if given(t.normalizer) and t.normalizer.type ~= "NFC" then -- which llama.cpp leaves out, too
    refuse("its normalizer is %s", tostring(t.normalizer.type))
  end
  for _, name in ipairs { "continuing_subword_prefix", "end_of_word_suffix" } do
    if given(model[name]) and model[name] ~= "" then refuse("it has a %s", name) end
  end
  local tokens, types, ids = {}, {}, {}
  local function put(id, text, kind)
    if id >= size then refuse("token %q has the id %d, and the model has %d tokens", text, id, size) end
    tokens[id + 1], types[id + 1], ids[text] = text, kind, id
  end
  for text, id in pairs(model.vocab) do put(id, text, NORMAL) end
  for _, a in ipairs(t.added_tokens or {}) do put(a.id, a.content, a.special and CONTROL or USER_DEFINED) end
  for i = 1, size do
    if not tokens[i] then tokens[i], types[i] = ("[PAD%d]"):format(i - 1), UNUSED end
  end
  local merges = {}
  for i, m in ipairs(model.merges) do merges[i] = type(m) == "table" and m[1] .. " " .. m[2] or m end
  local at = "tokenizer.ggml."
  meta[at .. "model"] = "gpt2"
  meta[at .. "pre"] = pre_name(rules_of(t.pre_tokenizer), model.ignore_merges == true)
  meta[at .. "tokens"], meta[at .. "token_type"], meta[at .. "merges"] = tokens, types, merges
  local first, last = around(t.post_processor)
  meta[at .. "add_bos_token"], meta[at .. "add_eos_token"] = first ~= false, last ~= false
  for name, text in pairs { bos = first, eos = last } do
    if text then meta[at .. name .. "_token_id"] = ids[text] or refuse("there is no token %q", text) end
  end
  local chat = tokenizer.chat and tokenizer.chat.templates and tokenizer.chat.templates.default
  if type(chat) == "string" then meta["tokenizer.chat_template"] = chat end
  local added = {}
  for i, a in ipairs(t.added_tokens or {}) do added[i] = a.content end
  compare(tokenizer, meta, added)
  return meta
end

return M
