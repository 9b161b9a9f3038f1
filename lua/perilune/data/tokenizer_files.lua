-- SPDX-License-Identifier: MIT
--- Vocabularies in older files as the text of a tokenizer.json: vocab.txt (WordPiece, BERT's), vocab.json with
-- merges.txt (byte-level BPE, GPT-2's), tiktoken's files of ranks, sentencepiece's models.
-- @module perilune.data.tokenizer_files
local core = require "perilune.core"
local json = require "perilune.io.json"
local options = require "perilune.options"
local parts = require "perilune.data.tokenizer_parts"

local fail, describe, stop, unsupported = options.fail, options.describe, parts.stop, parts.unsupported
local M = {}

local function quote(s)
  return '"' .. s:gsub('[%c"\\]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
end

local function added_token(id, text)
  return ('{"id":%d,"content":%s,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}')
    :format(id, quote(text))
end

local bert_special = { ["[PAD]"] = true, ["[UNK]"] = true, ["[CLS]"] = true, ["[SEP]"] = true, ["[MASK]"] = true }

--- vocab.txt, a token a line, ids from 0 in order; lower: as do_lower_case of tokenizer_config.json.
-- @treturn string; or nil, message, code
function M.wordpiece(text, name, lower)
  local vocab, added, ids, n = {}, {}, {}, 0
  if not utf8.len(text) then return nil, name .. ": malformed vocabulary: it is no UTF-8", "format" end
  for line in text:gmatch "[^\n]*" do
    local token = line:gsub("%s+$", "")
    if ids[token] == nil and (token ~= "" or n > 0) then
      ids[token] = n
      if token ~= "" then
        vocab[#vocab + 1] = quote(token) .. ":" .. n
        if bert_special[token] then added[#added + 1] = added_token(n, token) end
      end
    end
    n = n + 1
  end
  for _, token in ipairs { "[UNK]", "[CLS]", "[SEP]" } do
    if not ids[token] then return nil, ("%s: malformed vocabulary: there is no %s"):format(name, token), "format" end
  end
  local cls, sep = ids["[CLS]"], ids["[SEP]"]
  return ([[{"version":"1.0","truncation":null,"padding":null,"added_tokens":[%s],"normalizer":{"type":"BertNormalizer",
    "clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":%s},
    "pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":{"type":"BertProcessing","sep":["[SEP]",%d],
    "cls":["[CLS]",%d]},"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},"model":{"type":"WordPiece",
    "unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{%s}}}]])
    :format(table.concat(added, ","), tostring(lower), sep, cls, table.concat(vocab, ","))
end

--- vocab.json and the lines of merges.txt.
-- @treturn string; or nil, message, code
function M.byte_level(vocab, merges, name)
  local list = {}
  for line in merges:gmatch "[^\r\n]+" do
    if not (#list == 0 and line:find "^#version") then
      local a, b = line:match "^(%S+) (%S+)%s*$"
      if not a then return nil, ("%s: malformed merges: %q"):format(name, line:sub(1, 40)), "format" end
      list[#list + 1] = ("[%s,%s]"):format(quote(a), quote(b))
    end
  end
  local bytes = '{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}'
  local end_token = vocab:match '"<|endoftext|>"%s*:%s*(%d+)'
  return ('{"version":"1.0","truncation":null,"padding":null,"added_tokens":[%s],"normalizer":null,"pre_tokenizer":%s,'
    .. '"post_processor":%s,"decoder":%s,"model":{"type":"BPE","vocab":%s,"merges":[%s]}}'):format(
    end_token and added_token(math.tointeger(tonumber(end_token)), "<|endoftext|>") or "", bytes,
    '{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":true}', bytes, vocab,
    table.concat(list, ","))
end

-- ---- tiktoken ---------------------------------------------------------------------------------------------------

-- Encodings by name: how words are cut, and special tokens (github.com/openai/tiktoken).
local END, PROMPT = "<|endoftext|>", "<|endofprompt|>"
local PREFIX, MIDDLE, SUFFIX = "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"
local r50k = [['(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++\z|\s+(?!\S)|\s]]
local o200k = [=[[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+]=]
  .. [=[(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+]=]
  .. [=[[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|]=]
  .. [=[\s*[\r\n]+|\s+(?!\S)|\s+]=]
local encodings = {
  r50k_base = { pattern = r50k, special = { [END] = 50256 } },
  p50k_base = { pattern = r50k, special = { [END] = 50256 } },
  p50k_edit = { pattern = r50k, special = { [END] = 50256, [PREFIX] = 50281, [MIDDLE] = 50282, [SUFFIX] = 50283 } },
  cl100k_base = { pattern = [['(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|]]
    .. [[ ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++\z|\s*[\r\n]|\s+(?!\S)|\s]],
    special = { [END] = 100257, [PREFIX] = 100258, [MIDDLE] = 100259, [SUFFIX] = 100260, [PROMPT] = 100276 } },
  o200k_base = { pattern = o200k, special = { [END] = 199999, [PROMPT] = 200018 } },
}

-- The characters that stand for bytes: those that are seen stand for themselves, the others come behind.
local letters, next_letter = {}, 256
for b = 0, 255 do
  local seen = b > 32 and b < 127 or b > 160 and b ~= 173
  letters[string.char(b)] = utf8.char(seen and b or next_letter)
  if not seen then next_letter = next_letter + 1 end
end

local value = {}
for i, c in utf8.codes "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/" do
  value[string.char(c)] = i - 1
end
local function from_base64(s)
  local data = s:gsub("=+$", "")
  if #s % 4 ~= 0 or #s - #data > 2 or data:find "[^%w+/]" then return nil end
  return (data:gsub("..?.?.?", function(c)
    local v = 0
    for i = 1, 4 do v = v << 6 | (value[c:sub(i, i)] or 0) end
    return string.char(v >> 16, v >> 8 & 255, v & 255):sub(1, #c - 1)
  end))
end

local function ranks_of(text, kind)
  local tokens, score, ids, line = {}, {}, {}, 0
  for row in text:gmatch "([^\n]*)\n?" do
    line = line + 1
    if row:find "%S" then
      local word, rank = row:match "^(%S+) (%d+)\r?$"
      local bytes = word and from_base64(word)
      local id = rank and math.tointeger(tonumber(rank))
      if not bytes or bytes == "" or not id or id >= 1 << 24 then
        stop("line %d is no token in base 64 and a rank", line)
      end
      local n = #tokens + 1
      tokens[n], score[n], ids[n] = bytes:gsub("[\0-\255]", letters), -id, id
    end
  end
  local seen, rank = {}, {}
  local vocab = {}
  for i, token in ipairs(tokens) do
    if seen[token] then stop("a token has the ranks %d and %d", seen[token], ids[i]) end
    if rank[ids[i]] then stop("two tokens have the rank %d", ids[i]) end
    seen[token], rank[ids[i]] = ids[i], true
    vocab[i] = parts.quote(token) .. ":" .. ids[i]
  end
  for b = 0, 255 do
    if not seen[letters[string.char(b)]] then stop("there is no token for the byte %d", b) end
  end
  local added = {}
  for token, id in pairs(kind.special) do
    if rank[id] then stop("the special token %s has the id %d, which is the rank of another", token, id) end
    added[#added + 1] = parts.added(id, token, true)
  end
  local merges, merge_ranks = parts.merges(tokens, score)
  table.sort(added)
  return parts.whole(added, { model = parts.bpe(table.concat(vocab, ","), merges, merge_ranks, { whole = true }),
    pre_tokenizer = parts.sequence("pretokenizers", { ('{"type":"Split","pattern":{"Regex":%s},"behavior":"Isolated",'
      .. '"invert":false}'):format(parts.quote(kind.pattern)), parts.byte_level(false) }),
    decoder = parts.byte_level(false) })
end

--- The kind of encoding that options and the file's name say; raises what options cannot be. nil: they do not say.
function M.encoding(who, path, opts)
  local name = opts.encoding or path:match "([%w_]+)%.tiktoken$"
  if opts.encoding ~= nil and not encodings[opts.encoding] then
    local known = {}
    for k in pairs(encodings) do known[#known + 1] = k end
    table.sort(known)
    fail("%s: %s", who, options.unknown("encoding", tostring(opts.encoding), known))
  end
  local known = encodings[name]
  if opts.pattern ~= nil and type(opts.pattern) ~= "string" then
    fail("%s: pattern must be a string, got %s", who, describe(opts.pattern))
  end
  if opts.special ~= nil and type(opts.special) ~= "table" then
    fail("%s: special must be a table of ids by token, got %s", who, describe(opts.special))
  end
  for token, id in pairs(opts.special or {}) do
    if type(token) ~= "string" or not utf8.len(token) or not options.integer(id) or id < 0 then
      fail("%s: special must be a table of ids, from 0, by token; it has %s under %s", who, describe(id),
        describe(token))
    end
  end
  if not known and not opts.pattern then return nil end
  return { pattern = opts.pattern or known.pattern, special = opts.special or known and known.special or {} }
end

function M.is_tiktoken(text) return text:find "^[%w+/]+=* %d+\r?\n" ~= nil or text:find "^[%w+/]+=* %d+$" ~= nil end

--- tiktoken's file: a token in base 64 and its rank a line; kind: see encoding.
-- @treturn string; or nil, message, code
function M.tiktoken(text, name, kind)
  if not kind then
    return nil, name .. ": a file of ranks does not say how words are cut: say encoding= or pattern=", "unsupported"
  end
  return parts.guarded(name, ranks_of, text, kind)
end

--- The text of a tokenizer.json whose ByteLevel before the model puts a blank in front, or does not.
function M.with_prefix_space(text, on)
  local from, to = text:find '"pre_tokenizer"%s*:%s*%b{}'
  if not from then return text end
  local function set(object)
    if not object:find '"type"%s*:%s*"ByteLevel"' then return nil end
    local new, n = object:gsub('("add_prefix_space"%s*:%s*)%a+', "%1" .. tostring(on))
    if n == 0 then new = object:gsub("^{", '{"add_prefix_space":' .. tostring(on) .. ",") end
    return new
  end
  local steps = text:sub(from, to):gsub("%b{}", function(whole)
    if whole:find '"type"%s*:%s*"Sequence"' then return "{" .. whole:sub(2):gsub("%b{}", set) end
    return set(whole)
  end)
  return text:sub(1, from - 1) .. steps .. text:sub(to + 1)
end

-- ---- tokens that tokenizer_config.json names --------------------------------------------------------------------

local function entry(id, content, settings)
  local out = { ('"id":%d,"content":%s'):format(id, parts.quote(content)) }
  for _, key in ipairs { "single_word", "lstrip", "rstrip", "normalized", "special" } do
    local v = settings[key]
    if v == nil then v = key == "normalized" and not settings.special end
    out[#out + 1] = ('"%s":%s'):format(key, tostring(v == true))
  end
  return "{" .. table.concat(out, ",") .. "}"
end

--- The text of a tokenizer.json with the tokens that tokenizer_config.json beside it names and it lacks, as
-- transformers has them: those without an id stand behind all others. tokens: a list of { content, id or nil, settings,
-- role }. own: ids are those of the file; tokens of a role, as "bos_token", need not be there, and others need an id.
-- @treturn string, and the opened text where it is as it was; or nil, message, code
function M.with_tokens(text, path, tokens, own)
  local handle, message, code = core.tokenizer(text, path)
  if not handle then return nil, message, code end
  local have
  local function is_added(content, id, wants_special)
    local _, is_special = handle:token(id, 0)
    if is_special then return true end
    local ids = not wants_special and handle:encode(content, 0, { around = false, recognize = true })
    if ids and ids:numel() == 1 then return true end -- a whole word, which nothing divides
    if not have then
      have = {}
      local whole = json.decode(text)
      for _, a in ipairs(type(whole) == "table" and type(whole.added_tokens) == "table" and whole.added_tokens or {}) do
        have[a.content] = true
      end
    end
    return have[content] ~= nil
  end
  local new, next_id, made = {}, handle:size(), {}
  for _, t in ipairs(tokens) do
    local content, wanted, settings = t[1], t[2], t[3]
    local id = made[content] or handle:id(content, 0)
    if not id and not (own and t[4]) then
      if wanted ~= next_id and (wanted or own) then
        local which = parts.quote(content) .. (wanted and (" (%d)"):format(wanted) or "")
        return nil, ("%s: tokenizer_config.json names the token %s, which this file of %d tokens lacks"):format(path,
          which, next_id), "unsupported"
      end
      id, next_id = next_id, next_id + 1
      made[content], new[#new + 1] = id, entry(id, content, settings)
    elseif id and not made[content] and not is_added(content, id, settings.special) then
      made[content], new[#new + 1] = id, entry(id, content, settings)
    end
  end
  if #new == 0 then return text, handle end
  local list = table.concat(new, ",")
  local from, to = text:find '"added_tokens"%s*:%s*%['
  if from then
    local close = text:find("^%s*%]", to + 1)
    -- in front: the order of this list does not count, each has its id
    return text:sub(1, to) .. list .. (close and "" or ",") .. text:sub(to + 1)
  end
  text = text:gsub('"added_tokens"%s*:%s*null%s*,', "", 1)
  return (text:gsub("{", function() return '{"added_tokens":[' .. list .. "]," end, 1))
end

-- ---- sentencepiece ----------------------------------------------------------------------------------------------

-- sentencepiece_model.proto: what of it text depends on.
local normalizer = { [2] = { "charsmap", "bytes" }, [3] = { "prefix", "int" }, [4] = { "collapse", "int" },
  [5] = { "escape", "int" }, [6] = { "tsv", "bytes" } }
local model = {
  [1] = { "pieces", { [1] = { "piece", "bytes" }, [2] = { "score", "float" }, [3] = { "type", "int" } }, list = true },
  [2] = { "trainer", { [3] = { "kind", "int" }, [24] = { "suffix", "int" }, [35] = { "fallback", "int" } } },
  [3] = { "normalizer", normalizer }, [5] = { "denormalizer", normalizer },
}
local UNIGRAM, BPE = 1, 2
local NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

local function pieces_of(text)
  local m = require("perilune.onnx.wire").decode(text, model)
  local trainer, norm = m.trainer or {}, m.normalizer or {}
  local kind = trainer.kind or UNIGRAM
  if #m.pieces == 0 then stop "there are no pieces" end
  if kind ~= UNIGRAM and kind ~= BPE then unsupported("the model_type %d of sentencepiece", kind) end
  if trainer.suffix == 1 then unsupported "treat_whitespace_as_suffix of sentencepiece" end
  if norm.escape == 0 then unsupported "escape_whitespaces=false of sentencepiece" end
  if m.denormalizer and #(m.denormalizer.charsmap or "") > 0 then unsupported "a denormalizer of sentencepiece" end
  local prefix, collapse = norm.prefix ~= 0, norm.collapse ~= 0
  local tokens, score, added, unknown, has_bytes = {}, {}, {}, nil, trainer.fallback == 1
  for i, p in ipairs(m.pieces) do
    local what = p.type or NORMAL
    tokens[i] = p.piece or ""
    if tokens[i] == "" then stop("piece %d is empty", i - 1) end
    if what == NORMAL or what == UNUSED and kind == UNIGRAM then
      score[i] = what == NORMAL and (p.score or 0.0) or nil
    elseif what == UNKNOWN then
      if unknown then stop("pieces %d and %d are both for the unknown", unknown, i - 1) end
      unknown = i - 1
    elseif what == USER_DEFINED then
      if prefix or collapse then
        unsupported("user-defined pieces of sentencepiece (%s) where blanks are added or taken away", tokens[i])
      end
      added[#added + 1] = parts.added(i - 1, (tokens[i]:gsub("▁", " ")), false)
    elseif what == UNUSED then
      unsupported "unused pieces in BPE of sentencepiece"
    elseif what ~= CONTROL and what ~= BYTE then
      stop("piece %d has the type %d", i - 1, what)
    end
    if what == UNKNOWN or what == CONTROL then added[#added + 1] = parts.added(i - 1, tokens[i], true) end
  end
  if not unknown then stop "there is no piece for the unknown" end
  local k = { normalizer = parts.sentencepiece_normalizer(norm.charsmap, collapse, prefix),
    decoder = parts.sentencepiece_decoder(prefix or collapse) }
  if kind == BPE then
    local merges, ranks = parts.merges(tokens, score)
    k.model = parts.bpe(parts.vocab(tokens), merges, ranks, { fallback = has_bytes, unknown = tokens[unknown + 1] })
  else
    k.model = parts.unigram(tokens, score, unknown, has_bytes, true)
    k.pre_tokenizer = parts.metaspace(tokens, true) -- sums of scores go through the whole text, rounding too
  end
  return parts.whole(added, k)
end

function M.is_sentencepiece(text) return text:byte() == 10 and text:find "^%s*{" == nil end

--- sentencepiece's model, a message of protobuf. It does not say what is put around a text: nothing is.
-- @treturn string; or nil, message, code
function M.sentencepiece(text, name) return parts.guarded(name, pieces_of, text) end

return M
