-- SPDX-License-Identifier: MIT
--- Tokenizers in the metadata of GGUF files as the text of a tokenizer.json, with the meaning that llama.cpp gives the
-- keys tokenizer.ggml.*: "gpt2" (byte-level BPE), "llama" (BPE ranked by scores, byte fallback), "t5" (Unigram), "bert"
-- (WordPiece).
-- @module perilune.data.tokenizer_gguf
local core = require "perilune.core"
local parts = require "perilune.data.tokenizer_parts"

local quote, stop, unsupported = parts.quote, parts.stop, parts.unsupported
local M = {}

local NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

-- ---- patterns ---------------------------------------------------------------------------------------------------

-- How words are cut, by what tokenizer.ggml.pre names: patterns in order. gpt2: ByteLevel's own pattern comes last;
-- whole: a word that is a token is that token; bos: text begins with the bos token where the file does not say.
local contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
local tail = [[\s*[\r\n]+|\s+(?!\S)|\s+]]
local upper, lower = [=[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]]=], [=[[\p{Ll}\p{Lm}\p{Lo}\p{M}]]=]
local head = [[[^\r\n\p{L}\p{N}]?]]
local function by_digits(digits)
  return contractions .. "|" .. head .. [[\p{L}+|]] .. digits .. [[| ?[^\s\p{L}\p{N}]+[\r\n]*|]] .. tail
end
local function by_case(ending, digits)
  return head .. upper .. "*" .. lower .. "+" .. ending .. "|" .. head .. upper .. "+" .. lower .. "*" .. ending .. "|"
    .. digits .. [[| ?[^\s\p{L}\p{N}]+[\r\n/]*|]] .. tail
end

local gpt2 = { gpt2 = true }
local digits_gpt2 = { [[\p{N}]], gpt2 = true }
local threes = { by_digits [[\p{N}{1,3}]] }
local llama3 = { threes[1], whole = true, bos = true }
local singles = { by_digits [[\p{N}]] }
local gpt4o = { by_case(contractions .. "?", [[\p{N}{1,3}]]) }
local words = [[ ?[^(\s|.,!?…。，、।۔،)]+]]
local bailing = { [['(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|]]
  .. [[\s*[\r\n]|\s+(?!\S)|\s+]] }

local pre = {
  default = { [[[\p{P}\$\+<=>\^~\|]+]], { gpt2 = true }, [[\p{N}+]], "[0-9][0-9][0-9]" },
  falcon = { [[[\p{P}\$\+<=>\^~\|`]+]], { gpt2 = true }, "[0-9][0-9][0-9]" },
  ["deepseek-v3"] = { [[\p{N}{1,3}]], "[一-龥぀-ゟ゠-ヿ]+",
    [[[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|]]
    .. tail },
  ["deepseek-coder"] = { [=[[\r\n]]=], [[\s?\p{L}+]], [[\s?\p{P}+]], "[一-龥ࠀ-一가-퟿]+", [[\p{N}]] },
  tekken = { by_case("", [[\p{N}]]), whole = true, bos = true },
  qwen35 = { contractions .. [[|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|]] .. tail },
  ["seed-coder"] = { contractions .. [[|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|]] .. tail },
  viking = { words, [[\p{N}]] },
}
for names, value in pairs {
  ["gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert jina-v1-en jina-v2-code"
    .. " roberta-bpe mpt olmo jais trillion granite-docling exaone4"] = gpt2,
  ["starcoder refact command-r smollm codeshell exaone minerva-7b"] = digits_gpt2,
  ["llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"] = llama3,
  ["dbrx smaug-bpe glm4 chatglm-bpe"] = threes,
  ["qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"] = singles,
  ["gpt-4o llama4 kanana2 minimax-m2"] = gpt4o,
  ["poro-chat bloom gpt3-finnish"] = { words },
  ["bailingmoe bailingmoe2 llada-moe"] = bailing,
} do
  for name in names:gmatch "%S+" do pre[name] = value end
end

-- ---- reading keys -----------------------------------------------------------------------------------------------

-- The value of tokenizer.ggml.KEY; FORMAT where it is there and of another kind.
local function taker(meta, kinds)
  return function(key, kind)
    key = "tokenizer.ggml." .. key
    local v = meta[key]
    if v == nil then return nil end
    local is = kinds[key]
    local ok = is == kind or kind == "id" and is:find "^[ui]%d+$" and math.type(v) == "integer"
      or kind == "numbers" and is:find "^%[[uif]%d+%]$" or kind == "bytes" and is:find "^%[[ui]8%]$"
    if not ok then stop("%s is %s, %s is wanted", key, is, kind) end
    return v
  end
end

-- Tokens, types and the ids that have names.
local function read_tokens(get)
  local tokens = get("tokens", "[text]")
  if not tokens or #tokens == 0 then stop "there is no tokenizer.ggml.tokens" end
  local t = { tokens = {}, types = {}, scores = get("scores", "numbers"), ids = {}, get = get }
  local types = get("token_type", "numbers")
  for what, list in pairs { scores = t.scores or tokens, token_type = types or tokens } do
    if #list ~= #tokens then stop("tokenizer.ggml.%s has %d values for %d tokens", what, #list, #tokens) end
  end
  for i, text in ipairs(tokens) do
    t.tokens[i] = text == "" and ("[EMPTY_%d]"):format(i - 1) or text
    t.types[i] = types and types[i] or NORMAL
  end
  for name, key in pairs { bos = "bos_token_id", eos = "eos_token_id", unk = "unknown_token_id",
    sep = "seperator_token_id", pad = "padding_token_id", cls = "cls_token_id", mask = "mask_token_id" } do
    local id = get(key, "id") -- "seperator" is how the key is spelled
    if id and (id < 0 or id >= #tokens) then
      stop("tokenizer.ggml.%s is %d, tokens are 0 to %d", key, id, #tokens - 1)
    end
    t.ids[name] = id
    if id and not types and (name == "bos" or name == "eos" or name == "unk") then t.types[id + 1] = CONTROL end
  end
  return t
end

-- Special tokens that take blanks with them, which no key says: llama.cpp goes by names.
local function stripping(name, pre_name)
  name = name:lower()
  local keeps = { ["<unk>"] = true, ["<s>"] = true, ["<|endoftext|>"] = true }
  if name:find("phi-3", 1, true) or name:find("phi3", 1, true) then
    return function(text) return false, not keeps[text] end
  end
  local mask = pre_name == "modern-bert" and "[MASK]" or pre_name:find "^jina%-v2%-" and "<mask>"
  return function(text) return text == mask, false end
end

local function added(t, strips)
  local list = {}
  for i, text in ipairs(t.tokens) do
    local kind = t.types[i]
    if kind == CONTROL or kind == UNKNOWN or kind == USER_DEFINED then
      local left, right = strips(text)
      list[#list + 1] = parts.added(i - 1, text, kind ~= USER_DEFINED, left, right)
    end
  end
  return list
end

local function vocab_of(t) return parts.vocab(t.tokens) end

-- ---- the kinds --------------------------------------------------------------------------------------------------

local function split(pattern)
  return ('{"type":"Split","pattern":{"Regex":%s},"behavior":"Isolated","invert":false}'):format(quote(pattern))
end

-- ByteLevel's pattern as a step among others.
local gpt2_pattern = [['s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+]]

M.gpt2_pattern, M.pre = gpt2_pattern, pre -- what tokenizer_to_gguf.lua names

local kinds = {}

function kinds.gpt2(t)
  local name = t.get("pre", "text") or "default"
  local rules = pre[name]
  if not rules then unsupported("the pre-tokenizer '%s' of tokenizer.ggml.pre is not supported", name) end
  local merges = t.get("merges", "[text]")
  if not merges then stop "there is no tokenizer.ggml.merges" end
  local list, steps = {}, {}
  for i, m in ipairs(merges) do
    local at = m:find(" ", 2, true)
    if not at then stop("merge %d, %s, is not of two tokens", i, quote(m:sub(1, 40))) end
    list[i] = ("[%s,%s]"):format(quote(m:sub(1, at - 1)), quote(m:sub(at + 1)))
  end
  for i, rule in ipairs(rules) do steps[i] = split(type(rule) == "table" and gpt2_pattern or rule) end
  steps[#steps + 1] = parts.byte_level(rules.gpt2)
  return { model = parts.bpe(vocab_of(t), list, nil, { whole = rules.whole }),
    pre_tokenizer = parts.sequence("pretokenizers", steps),
    decoder = parts.byte_level(true), bos = rules.bos or false, eos = false }
end

local function space_prefix(t)
  local v = t.get("add_space_prefix", "bool")
  return v == nil or v
end

function kinds.llama(t)
  if not t.scores then stop "there is no tokenizer.ggml.scores" end
  local of, has_bytes = {}, false
  for i, kind in ipairs(t.types) do
    has_bytes = has_bytes or kind == BYTE
    if kind ~= CONTROL and kind ~= UNKNOWN and kind ~= BYTE and kind ~= USER_DEFINED then of[i] = t.scores[i] end
  end
  local merges, ranks = parts.merges(t.tokens, of)
  local prefix = space_prefix(t)
  local unknown = t.ids.unk or 0
  return { model = parts.bpe(vocab_of(t), merges, ranks, { fallback = has_bytes, unknown = t.tokens[unknown + 1] }),
    normalizer = parts.sentencepiece_normalizer(nil, false, prefix),
    decoder = parts.sentencepiece_decoder(prefix), bos = true, eos = false, default = { bos = 1, eos = 2, unk = 0 } }
end

function kinds.t5(t)
  if not t.scores then stop "there is no tokenizer.ggml.scores" end
  local of = {}
  for i, kind in ipairs(t.types) do
    if kind ~= CONTROL and kind ~= UNKNOWN and kind ~= BYTE then of[i] = kind == USER_DEFINED and 0 or t.scores[i] end
  end
  local map = t.get("precompiled_charsmap", "bytes")
  if map then
    local bytes = {}
    for i, b in ipairs(map) do bytes[i] = string.char(b & 255) end
    map = table.concat(bytes)
  end
  local unknown, prefix = t.ids.unk or 2, space_prefix(t)
  return { model = parts.unigram(t.tokens, of, unknown, false),
    normalizer = parts.sentencepiece_normalizer(map, t.get("remove_extra_whitespaces", "bool"), prefix),
    pre_tokenizer = parts.metaspace(t.tokens), decoder = parts.sentencepiece_decoder(prefix),
    bos = false, eos = true, default = { eos = 1, unk = 2, pad = 0 } }
end

-- The file marks what begins a word, vocab.txt what goes on. Tokens with capitals: the text keeps its own, too.
function kinds.bert(t)
  local mark, cased = "▁", false
  for i, text in ipairs(t.tokens) do
    if t.types[i] ~= CONTROL and t.types[i] ~= UNKNOWN then
      local begins = text:sub(1, #mark) == mark
      t.tokens[i] = begins and text:sub(#mark + 1) or "##" .. text
      if begins and text == mark then t.tokens[i] = text end
      cased = cased or t.types[i] == NORMAL and not text:find "^▁?%[.+%]$" and text:find "%u" ~= nil
    end
  end
  local unknown = t.tokens[(t.ids.unk or 100) + 1]
  if not unknown then stop "there is no token for the unknown" end
  return { model = ('{"type":"WordPiece","unk_token":%s,"continuing_subword_prefix":"##",'
      .. '"max_input_chars_per_word":100,"vocab":{%s}}'):format(quote(unknown), vocab_of(t)),
    normalizer = ('{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,'
      .. '"lowercase":%s}'):format(not cased),
    pre_tokenizer = '{"type":"BertPreTokenizer"}', decoder = '{"type":"WordPiece","prefix":"##","cleanup":true}',
    bos = true, eos = false, sep = true, default = { bos = 101, sep = 102, unk = 100 } }
end

-- ---- the whole --------------------------------------------------------------------------------------------------

local function build(meta, kinds_of)
  local get = taker(meta, kinds_of)
  local model = get("model", "text")
  if not model then
    local whole = meta["tokenizer.huggingface.json"]
    if type(whole) == "string" then return whole, { templates = {}, special = {} } end
    unsupported "there is no tokenizer in this file (no tokenizer.ggml.model)"
  end
  if not kinds[model] then unsupported("the tokenizer '%s' of tokenizer.ggml.model is not supported", model) end
  local t = read_tokens(get)
  local strips = stripping(type(meta["general.name"]) == "string" and meta["general.name"] or "",
    get("pre", "text") or "")
  local raw = table.move(t.tokens, 1, #t.tokens, 1, {})
  local k = kinds[model](t)
  for name, id in pairs(k.default or {}) do
    if t.ids[name] == nil and id < #t.tokens then t.ids[name] = id end
  end
  local function around(name, key, default)
    local yes = get(key, "bool")
    if yes == nil then yes = default end
    local id = t.ids[name]
    if yes and not id then
      stop("tokenizer.ggml.%s asks for a token that no tokenizer.ggml.%s_token_id names", key, name)
    end
    return yes and { id = id, text = raw[id + 1] } or nil
  end
  local first = around(model == "bert" and t.ids.cls and "cls" or "bos", "add_bos_token", k.bos)
  local last = around("eos", "add_eos_token", k.eos) or k.sep and around("sep", "add_sep_token", true) or nil
  local special = {}
  for name, id in pairs(t.ids) do special[name .. "_token"] = raw[id + 1] end
  local chat = { templates = {}, special = special }
  for key, v in pairs(meta) do
    local name = key == "tokenizer.chat_template" and "default" or key:match "^tokenizer%.chat_template%.(.+)$"
    if name and type(v) == "string" then chat.templates[name] = v end
  end
  return parts.whole(added(t, strips), k, parts.template(first, last, model == "bert")), chat
end

--- The same of keys and values that a file is going to have.
function M.of_keys(meta)
  local types = {}
  for key, v in pairs(meta) do
    local one = type(v) == "table" and v[1] or v
    local kind = type(one) == "string" and "text" or type(one) == "boolean" and "bool" or "i32"
    if key == "tokenizer.ggml.precompiled_charsmap" then kind = "u8" end -- as models/gguf.lua writes it
    types[key] = type(v) == "table" and "[" .. kind .. "]" or kind
  end
  return parts.guarded("GGUF", build, meta, types)
end

--- The text of a tokenizer.json, and what Tokenizer.chat has, of a GGUF file.
-- @treturn string, table; or nil, message, code
function M.read(path)
  local gguf = require "perilune.io.gguf"
  local file, message, code, errno = core.open_gguf(path)
  if not file then return nil, message, code, errno end
  local meta, kinds_of = file:metadata()
  file:close()
  local list = gguf.split_files(path, meta)
  if list and #list > 1 and list[1] ~= path and meta["tokenizer.ggml.model"] == nil then return M.read(list[1]) end
  return parts.guarded(path, build, meta, kinds_of)
end

return M
