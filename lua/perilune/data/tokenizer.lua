-- SPDX-License-Identifier: MIT
--- Tokenizers: text to ids and back.
-- @classmod Tokenizer
local classes = require "perilune.classes"
local core = require "perilune.core"
local options = require "perilune.options"

local chat = require "perilune.data.chat"
local files = require "perilune.data.tokenizer_files"
local id_base = require "perilune.data.id_base"

local fail, describe = options.fail, options.describe

-- Options by name, those that are yes or no checked: "no" would be yes.
local function checked(who, opts, names)
  opts = options.check(who, opts, names)
  for _, name in ipairs { "add_special", "split_special", "skip_special", "full" } do
    if opts[name] ~= nil then options.kind(who, name, "bool", opts[name]) end
  end
  return opts
end

local Tokenizer = classes.new("tokenizer", "tokenizer")
Tokenizer.__len = function(self) return self.handle:size() end
Tokenizer.__tostring = function(self) return ("tokenizer of %d tokens"):format(#self) end

local M = { Tokenizer = Tokenizer }

--- A tokenizer from the text of a tokenizer.json file; `name` is for messages.
-- chat: chat templates and special tokens, {templates={default=}, special={bos_token=}}; base: what its ids count from
-- where a call does not say (1); handle: the text opened, where it is already.
-- @treturn Tokenizer or nil, message, code
function M.from_json(json, name, chat_, base, handle)
  local message, code
  if not handle then handle, message, code = core.tokenizer(json, name) end
  if not handle then return nil, message, code end
  return setmetatable({ handle = handle, json = json, name = name, chat = chat_, index_base = base or 1 }, Tokenizer)
end

-- How it travels to a loader's worker: from_json(json, name, chat, base) there. See data.pack.
Tokenizer.__pack = function(self) return M.from_json, { self.json, self.name, self.chat or false, self.index_base } end

-- What ids count from: what the call says, else what the tokenizer does.
local function base_of(who, opts, own)
  local base = opts.index_base
  if base == nil then base = own end
  if base ~= 0 and base ~= 1 then fail("%s: index_base must be 0 or 1, got %s", who, describe(base)) end
  return base
end

-- Whether special tokens in a text count as such: what the call says, else tokenizer_config.json.
local function recognizes(self, opts)
  if opts.split_special ~= nil then return opts.split_special end
  return not (self.chat and self.chat.split_special_tokens)
end

-- A whole file; of a GGUF file its first bytes alone, it holds a model's weights.
local function read(path)
  local f, message = io.open(path, "rb")
  if not f then return nil, message end
  local text = f:read(4)
  if text == "GGUF" then
    f:close()
    return text
  end
  f:seek "set"
  text, message = f:read "a"
  f:close()
  return text, ("%s: %s"):format(path, message or "cannot read")
end

local function is_folder(path)
  local f = io.open(path, "rb")
  local code = f and select(3, f:read(1))
  if f then f:close() end
  return code == 21 -- EISDIR
end

--- T.data.tokenizer(path, {index_base=1, encoding=, pattern=, special=}) → tokenizer; or nil, message, code
-- A tokenizer.json file, vocab.txt (WordPiece, BERT's), vocab.json beside merges.txt (byte-level BPE, GPT-2's), or
-- the folder of one, with any model (BPE, Unigram, WordPiece, WordLevel), normalizer,
-- pre_tokenizer, post_processor and decoder of the Hugging Face tokenizers library, with the same results. Of a GGUF
-- file the tokenizer in its metadata (gpt2, llama, bert, t5), with llama.cpp's ids, and its chat template. A model of
-- sentencepiece (BPE, Unigram), with its ids; nothing is put around a text. A file of ranks of tiktoken: `encoding`
-- is "cl100k_base", "o200k_base", "p50k_base", "p50k_edit" or "r50k_base", by default as the file is named, or
-- `pattern` says how words are cut and `special` has ids, the file's, by token.
-- t:encode(text, {add_special=true, split_special=true, index_base=1}) → i64 [n]; t:decode(ids, {skip_special=true,
-- errors="replace", index_base=1}) → text; t(text, {pair=, padding=, truncation=, …}) → what models take, see
-- Tokenizer:__call; t:stream{} decodes token by token; t:apply_chat_template(messages, {…}) → ids or text, with the
-- chat template and special tokens that stand beside the file; t:token(id), t:id(token), #t, t:save(path). Ids are the
-- file's, and count from 1, as nn.Embedding counts. The networks of T.models take ids from 0, and refuse others from
-- here: open the tokenizer with index_base=0 for them, which then holds for all its calls. Needs Jansson when perilune
-- is built, PCRE2 for expressions, utf8proc for normal forms, cases and classes of characters.
--   print((T.data.tokenizer("/nowhere/tokenizer.json", { index_base = 0 })))  --> nil
function M.tokenizer(path, opts)
  opts = options.check("data.tokenizer", opts, { "index_base", "encoding", "pattern", "special" })
  local base = base_of("data.tokenizer", opts, 1)
  if type(path) ~= "string" then fail("data.tokenizer: the path must be a string, got %s", describe(path)) end
  local kind = files.encoding("data.tokenizer", path, opts)
  local text, message = read(path)
  if not text and is_folder(path) then
    local folder = path:gsub("/*$", "/")
    for _, name in ipairs { "tokenizer.json", "vocab.txt", "vocab.json" } do
      path = folder .. name
      text, message = read(path)
      if text then break end
    end
    if not text then return nil, folder .. ": there is no tokenizer.json, vocab.txt or vocab.json", "io" end
  end
  if not text then return nil, message, "io" end
  for _, name in ipairs { "encoding", "pattern", "special" } do
    if opts[name] ~= nil and not files.is_tiktoken(text) then
      return nil, ("%s: %s= is for tiktoken's files of ranks, and this is none"):format(path, name), "format"
    end
  end
  if text == "GGUF" then
    local json, found, why = require("perilune.data.tokenizer_gguf").read(path)
    if not json then return nil, found, why end
    return M.from_json(json, path, found, base)
  end
  local dir, name = path:match "^(.-)([^/]*)$"
  local beside, why, code = chat.beside(dir)
  if why then return nil, why, code end
  local own, handle -- ids are those of the file itself
  if name:find "%.txt$" then
    text, why, code = files.wordpiece(text, path, not beside or beside.do_lower_case ~= false)
  elseif name:find "vocab%.json$" then
    local merges
    merges, message = read(dir .. name:gsub("vocab%.json$", "merges.txt"))
    if not merges then return nil, message, "io" end
    text, why, code = files.byte_level(text, merges, path)
  elseif files.is_tiktoken(text) then
    own, text, why, code = true, files.tiktoken(text, path, kind)
  elseif files.is_sentencepiece(text) then
    own, text, why, code = true, files.sentencepiece(text, path)
  end
  if not text then return nil, why, code end
  if beside and beside.add_prefix_space ~= nil then text = files.with_prefix_space(text, beside.add_prefix_space) end
  if beside and beside.tokens then
    text, why, code = files.with_tokens(text, path, beside.tokens, own)
    if not text then return nil, why, code end
    handle, beside.tokens = why, nil
  end
  return M.from_json(text, path, beside, base, handle)
end

-- ---- training ---------------------------------------------------------------------------------------------------

local function quote(s)
  return '"' .. s:gsub('[%c"\\]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
end

-- The text of a tokenizer.json: special tokens, the bytes' characters, the merges, in this order of ids.
local function json_of(special, texts, merges)
  local vocab, pairs_, added = {}, {}, {}
  for i, s in ipairs(special) do
    vocab[i] = quote(s) .. ":" .. i - 1
    added[i] = ('{"id":%d,"content":%s,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,'
      .. '"special":true}'):format(i - 1, quote(s))
  end
  for k, text in ipairs(texts) do vocab[#vocab + 1] = quote(text) .. ":" .. #special + k - 1 end
  for k, m in ipairs(merges) do pairs_[k] = ("[%s,%s]"):format(quote(texts[m[1]]), quote(texts[m[2]])) end
  local bytes = '{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}'
  return ('{"version":"1.0","truncation":null,"padding":null,"added_tokens":[%s],"normalizer":null,"pre_tokenizer":%s,'
    .. '"post_processor":null,"decoder":%s,"model":{"type":"BPE","dropout":null,"unk_token":null,'
    .. '"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,'
    .. '"ignore_merges":false,"vocab":{%s},"merges":[%s]}}'):format(table.concat(added, ","), bytes, bytes,
    table.concat(vocab, ","), table.concat(pairs_, ","))
end

local train_spec = options.spec("data.train_bpe", { { "vocab_size", "count" }, { "text", "string", optional = true },
  { "files", "any", optional = true }, { "special", "any", optional = true }, { "min_count", "count", 2 } })

local function check_special(list)
  local seen = {}
  options.list("data.train_bpe", "special", list, "strings")
  for _, s in ipairs(list) do
    if type(s) ~= "string" or #s < 3 or seen[s] or not utf8.len(s) then
      fail("data.train_bpe: special tokens must be different texts of at least three characters, got %s", describe(s))
    end
    seen[s] = true
  end
  return list
end

-- Learns a tokenizer of vocab_size tokens: `data.train_bpe{vocab_size, text=, files={path, …}, special={"<|end|>"},
-- min_count=2}`. Special tokens have the first ids, then come the 256 bytes, then what merging gives. The merges are
-- those that the tokenizers library learns from the same words (cut by GPT-2's expression).
-- @treturn Tokenizer or nil, message, code when a file cannot be read
--- T.data.train_bpe{vocab_size, text=, files={path, …}, special=, min_count=2} → tokenizer, or nil, message, code
-- Learns byte-level BPE from text; t:save(path) writes a tokenizer.json. See data.tokenizer.
--   local t = assert(T.data.train_bpe { 260, text = ("low lower lowest "):rep(9), special = { "<|end|>" } })
--   print(#t, t:decode(t:encode("lowest low")))  --> 260	lowest low
function M.train_bpe(...)
  local a = options.read(train_spec, ...)
  local special = check_special(a.special or {})
  if a.text == nil and a.files == nil then fail("data.train_bpe: text or files are wanted") end
  if a.files ~= nil then options.list("data.train_bpe", "files", a.files, "paths") end
  if a.vocab_size < 256 + #special then
    fail("data.train_bpe: vocab_size must be at least %d: 256 bytes and the special tokens", 256 + #special)
  end
  local trainer, message, code = core.bpe_trainer()
  if not trainer then return nil, message, code end
  if a.text then trainer:feed(a.text) end
  for _, path in ipairs(a.files or {}) do
    local f
    f, message = io.open(path, "rb")
    if not f then return nil, message, "io" end
    local text
    text, message = f:read("a")
    f:close()
    if not text then return nil, ("%s: %s"):format(path, message or "cannot read"), "io" end
    trainer:feed(text)
  end
  local texts, merges = trainer:run(a.vocab_size - #special, a.min_count)
  for _, m in ipairs(merges) do texts[m[3]] = texts[m[1]] .. texts[m[2]] end
  return M.from_json(json_of(special, texts, merges), "train_bpe")
end

-- ---- using ------------------------------------------------------------------------------------------------------

--- The ids of a text, i64 [n]. `add_special=true`: with what the file's template puts around a text;
-- `split_special=true`: special tokens written out in the text count as such, otherwise they are plain text;
-- `index_base`: 0 gives the file's own ids, 1 counts from 1; by default what the tokenizer was opened with. Takes any
-- bytes. All of the text, whatever the file says of truncation.
-- @treturn Tensor or nil, message, code when the file's pattern takes too long, or a character has no token
function Tokenizer:encode(text, opts)
  opts = checked("encode", opts, { "add_special", "split_special", "index_base" })
  if type(text) ~= "string" then fail("encode: a string is wanted, got %s", describe(text)) end
  local base = base_of("encode", opts, self.index_base)
  local ids, message, code = self.handle:encode(text, base, { around = opts.add_special ~= false,
    recognize = recognizes(self, opts) })
  if ids == nil then return nil, message, code end
  return id_base.mark(ids, base)
end

local call_options = { "pair", "add_special", "split_special", "index_base", "padding", "padding_side", "pad_to",
  "pad_to_multiple_of", "pad_id", "pad_type", "truncation", "truncation_side", "max_length", "full" }
local strategies = { longest_first = 0, only_first = 1, only_second = 2 }

local function side_of(who, value, from_file)
  if value == nil then return from_file end
  if value ~= "left" and value ~= "right" then fail("%s must be 'left' or 'right', got %s", who, describe(value)) end
  return value == "left"
end

local function count_of(who, value, from_file)
  if value == nil then return from_file end
  local n = options.integer(value)
  if not n or n < 0 then fail("%s must be a whole number from 0, got %s", who, describe(value)) end
  return n
end

-- What cuts texts: an option, else what the file says.
local function truncation_of(opts, file, o, beside)
  local kind = opts.truncation
  o.left = side_of("tokenizer: truncation_side", opts.truncation_side or beside.truncation_side, file.left)
  local most = count_of("tokenizer: max_length", opts.max_length, file.max_length)
  if kind == nil then kind = file.max_length ~= nil or opts.max_length ~= nil and not opts.padding end
  if kind == false then return end
  if kind == true then
    o.strategy = file.max_length and file.strategy or 0
  else
    o.strategy = strategies[kind]
    if not o.strategy then
      fail("tokenizer: truncation must be true, false, 'longest_first', 'only_first' or 'only_second', got %s",
        describe(kind))
    end
  end
  if not most then fail("tokenizer: truncation needs max_length, the file says none") end
  o.max_length = most
end

-- What fills rows up: an option, else what the file says. padding=true: to the longest; "max_length"; a number.
local function padding_of(self, opts, file, o, base)
  local kind, beside = opts.padding, self.chat or {}
  if kind == nil then kind = file.pads or opts.pad_to ~= nil end
  if opts.pad_to ~= nil then
    if kind ~= true then fail("tokenizer: pad_to goes with padding=true, not with %s", describe(kind)) end
    kind = opts.pad_to
  end
  o.pads_left = side_of("tokenizer: padding_side", opts.padding_side or beside.padding_side, file.pads_left)
  local word = kind ~= false and opts.pad_id == nil and beside.special and beside.special.pad_token
  local pad_id = word and self.handle:id(word, 0)
  if word and not pad_id then
    fail("tokenizer: pad_token of tokenizer_config.json, %q, is no token of %s; say pad_id", word, self.name)
  end
  o.pad_id = count_of("tokenizer: pad_id", opts.pad_id and options.integer(opts.pad_id) and opts.pad_id - base
    or opts.pad_id, pad_id or file.pad_id)
  o.pad_type = count_of("tokenizer: pad_type", opts.pad_type, file.pad_type)
  o.pad_multiple = count_of("tokenizer: pad_to_multiple_of", opts.pad_to_multiple_of,
    file.pads and file.pad_multiple or 0)
  o.pads = kind ~= false
  if kind == false or kind == true or kind == "longest" then
    if kind == true and opts.padding == nil and file.pads and file.pad_to >= 0 then o.pad_to = file.pad_to end
    return
  end
  if kind == "max_length" then
    kind = opts.max_length or o.max_length or file.max_length
    if not kind then fail("tokenizer: padding='max_length' needs max_length") end
  end
  o.pad_to = count_of("tokenizer: padding", kind)
end

local function texts_of(what, value)
  if type(value) == "string" then return { value }, true end
  if type(value) ~= "table" then
    fail("tokenizer: %s must be a string or a list of strings, got %s", what, describe(value))
  end
  options.list("tokenizer", what, value, "strings")
  for i = 1, #value do
    if type(value[i]) ~= "string" then
      fail("tokenizer: %s %d must be a string, got %s", what, i, describe(value[i]))
    end
  end
  return value, false
end

--- t(text, {…}) → what models take: a table of i64 tensors `input_ids`, `attention_mask`, `token_type_ids`,
-- `special_tokens_mask`, [n] of one text, [rows, n] of a list of texts with padding; without padding a list of tables.
-- Texts of a list are encoded on all threads. `pair`: second text, or list of them. `padding`: true or "longest",
-- "max_length", or a number of tokens; `padding_side` "right" or "left", `pad_to_multiple_of`, `pad_id`, `pad_type`.
-- `truncation`: true, "longest_first", "only_first", "only_second", with `max_length` and `truncation_side`; max_length
-- alone cuts, too, beside `padding` it is what that fills up to, as in transformers; what is
-- not given is as the file says, or tokenizer_config.json beside it (padding_side, truncation_side, pad_token).
-- `full=true` adds `offset_mapping` [n, 2] (first and last character of each token;
-- with index_base=0 from 0, end exclusive), `word_ids`, `sequence_ids` (index_base - 1: none) and the list `tokens`.
-- `add_special`, `split_special`, `index_base` as of encode.
-- @treturn table or nil, message, code
function Tokenizer:__call(text, opts)
  opts = checked("tokenizer", opts, call_options)
  local base = base_of("tokenizer", opts, self.index_base)
  local list, one = texts_of("text", text)
  local o = { one = one, full = opts.full and true or false, around = opts.add_special ~= false,
    recognize = recognizes(self, opts) }
  local pair
  if opts.pair ~= nil then
    local single
    pair, single = texts_of("pair", opts.pair)
    if single ~= one or #pair ~= #list then
      fail("tokenizer: there are %d texts and %d second texts", #list, #pair)
    end
  end
  local file = self.handle:defaults()
  truncation_of(opts, file, o, self.chat or {})
  padding_of(self, opts, file, o, base)
  local out, message, code = self.handle:encode_many(list, pair, base, o)
  if out == nil then return nil, message, code end
  for _, row in ipairs(out.input_ids and { out } or out) do id_base.mark(row.input_ids, base) end
  return out
end

local function ids_of(who, ids, base)
  if core.is_tensor(ids) then
    if base then id_base.check(who, ids, base, ("say index_base=%d"):format(1 - base)) end
    ids = ids:numel() == 0 and {} or ids:dim() == 0 and { ids:item() } or ids:flatten():totable()
  end
  if type(ids) ~= "table" then fail("%s: a tensor or a list of ids is wanted, got %s", who, describe(ids)) end
  return ids
end

local function keeps(who, opts)
  local kind = opts.errors
  if kind == nil or kind == "replace" then return false end
  if kind ~= "keep" then fail("%s: errors must be 'replace' or 'keep', got %s", who, describe(kind)) end
  return true
end

--- The text of ids, a tensor or a list; `skip_special=true` leaves special tokens out. Bytes that are no whole
-- characters become U+FFFD, with `errors="keep"` they stay as they are.
function Tokenizer:decode(ids, opts)
  opts = checked("decode", opts, { "skip_special", "index_base", "errors" })
  local base = base_of("decode", opts, self.index_base)
  return self.handle:decode(ids_of("decode", ids, base), opts.skip_special ~= false, base, keeps("decode", opts))
end

-- ---- decoding token by token ------------------------------------------------------------------------------------

local Stream = classes.new("tokenizer stream", "stream")

local incomplete = "\xEF\xBF\xBD"

--- t:stream{skip_special=true, index_base=} → a function-like object: s(id) → what the token adds to the text, ""
-- while a character is incomplete. s:finish() → what is left. All together are the text of decode, but where bytes that
-- were a character turn out to be none, with those behind them: what was given is not taken back.
function Tokenizer:stream(opts)
  opts = checked("stream", opts, { "skip_special", "index_base" })
  local base = base_of("stream", opts, self.index_base)
  return setmetatable({ handle = self.handle, skip = opts.skip_special ~= false, base = base,
    ids = {}, prefix = "", seen = 0 }, Stream)
end

-- How much of a text was given already: all of the prefix, or, where the decoder has changed its mind (bytes that were
-- a character are none with those behind them), whole characters that both have.
local function given(text, prefix)
  local n = #prefix
  if text:sub(1, n) == prefix then return n end
  n = 0
  while text:byte(n + 1) == prefix:byte(n + 1) do n = n + 1 end
  while n > 0 and (text:byte(n + 1) or 0) & 0xC0 == 0x80 do n = n - 1 end
  return n
end

function Stream:text() return self.handle:decode(self.ids, self.skip, self.base, false) end

-- Decoding depends on what is around a token, so the ids since the last but one text that was given are decoded each
-- time; what they gave before is the prefix.
function Stream:__call(id)
  local ids = self.ids
  if self.prefix == "" and #ids > 0 then
    local text = self:text()
    if text:sub(-3) ~= incomplete then self.prefix, self.seen = text, #ids end
  end
  ids[#ids + 1] = id
  local ok, text = pcall(self.text, self)
  if not ok then
    ids[#ids] = nil
    error(text, 2)
  end
  if #text <= #self.prefix or text:sub(-3) == incomplete then return "" end
  local n = given(text, self.prefix)
  local seen = #ids - self.seen
  self.ids = table.move(ids, self.seen + 1, #ids, 1, {})
  self.prefix, self.seen = self:text(), seen
  return text:sub(n + 1)
end

--- What is left at the end: a character that stayed incomplete, as U+FFFD. The stream begins anew.
function Stream:finish()
  local text = #self.ids > 0 and self:text() or ""
  local n = given(text, self.prefix)
  self.ids, self.prefix, self.seen = {}, "", 0
  return text:sub(n + 1)
end

--- The token of an id as the file writes it, and whether it is special; nil for an id that there is not.
function Tokenizer:token(id, opts)
  opts = checked("token", opts, { "index_base" })
  local i = options.integer(id)
  if not i then fail("token: an integer is wanted, got %s", describe(id)) end
  return self.handle:token(i, base_of("token", opts, self.index_base))
end

--- The id of a token as the file writes it (" the" is "Ġthe"), or nil.
function Tokenizer:id(token, opts)
  opts = checked("id", opts, { "index_base" })
  if type(token) ~= "string" then fail("id: a string is wanted, got %s", describe(token)) end
  return self.handle:id(token, base_of("id", opts, self.index_base))
end

--- t:apply_chat_template(messages, {add_generation_prompt=false, tools=, documents=, chat_template=, tokenize=true,
-- continue_final_message=false, index_base=, …}) → ids, i64 [n], or with tokenize=false text. messages: a list of
-- tables with role and content, or the text of a JSON array, which keeps the order of keys (tools and documents, too).
-- Other options are variables of the template.
-- @treturn Tensor or string; or nil, message (with the template's line), code
function Tokenizer:apply_chat_template(messages, opts) return chat.apply(self, messages, opts) end

--- Writes the tokenizer.json file.
-- @treturn boolean true; or nil, message, code
function Tokenizer:save(path)
  if type(path) ~= "string" then fail("save: the path must be a string, got %s", describe(path)) end
  return core.write_file(path, self.json)
end

return M
