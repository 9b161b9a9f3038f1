-- SPDX-License-Identifier: MIT
--- BPE tokenizers in the format of tokenizer.json files.
-- @classmod Tokenizer
local core = require "perilune.core"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe

local Tokenizer = { __name = "tokenizer" }
Tokenizer.__index = Tokenizer
Tokenizer.__len = function(self) return self.handle:size() end
Tokenizer.__tostring = function(self) return ("tokenizer of %d tokens"):format(#self) end

local M = { Tokenizer = Tokenizer }

--- A tokenizer from the text of a tokenizer.json file; `name` is for messages.
-- @treturn Tokenizer or nil, message, code
function M.from_json(json, name)
  local handle, message, code = core.tokenizer(json, name)
  if not handle then return nil, message, code end
  return setmetatable({ handle = handle, json = json, name = name }, Tokenizer)
end

-- How it travels to a loader's worker: from_json(json, name) there. See data.pack.
Tokenizer.__pack = function(self) return M.from_json, { self.json, self.name } end

-- Reads a tokenizer.json file: BPE of bytes, as of GPT-2 and its successors, or of characters, as of Llama. Other
-- kinds are refused by name.
-- @treturn Tokenizer or nil, message, code
--- T.data.tokenizer(path) → tokenizer, or nil, message, code
-- BPE from a tokenizer.json file: of bytes, as of GPT-2 and its successors, or of characters, as of Llama, with normal
-- forms, lower case, Metaspace and byte_fallback. t:encode(text, {add_special=true, split_special=true, index_base=1})
-- → i64 [n]; t:decode(ids, {skip_special=true, index_base=1}) → text; t:token(id), t:id(token), #t, t:save(path). Ids
-- count from 1 unless index_base=0. Needs Jansson and PCRE2 when perilune is built, utf8proc for normal forms and lower
-- case.
--   print((T.data.tokenizer("/nowhere/tokenizer.json")))  --> nil
function M.tokenizer(path)
  if type(path) ~= "string" then fail("data.tokenizer: the path must be a string, got %s", describe(path)) end
  local f, message = io.open(path, "rb")
  if not f then return nil, message, "io" end
  local json
  json, message = f:read("a")
  f:close()
  if not json then return nil, ("%s: %s"):format(path, message or "cannot read"), "io" end
  return M.from_json(json, path)
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
  if type(list) ~= "table" then fail("data.train_bpe: special must be a list of strings, got %s", describe(list)) end
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
--   local t = T.data.train_bpe { 260, text = ("low lower lowest "):rep(9), special = { "<|end|>" } }
--   print(#t, t:decode(t:encode("lowest low")))  --> 260	lowest low
function M.train_bpe(...)
  local a = options.read(train_spec, ...)
  local special = check_special(a.special or {})
  if a.text == nil and a.files == nil then fail("data.train_bpe: text or files are wanted") end
  if a.files ~= nil and type(a.files) ~= "table" then fail("data.train_bpe: files must be a list of paths") end
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

local function base_of(who, opts)
  local base = opts.index_base == nil and 1 or opts.index_base
  if base ~= 0 and base ~= 1 then fail("%s: index_base must be 0 or 1, got %s", who, describe(base)) end
  return base
end

--- The ids of a text, i64 [n]. `add_special=true`: with what the file's template puts around a text;
-- `split_special=true`: special tokens written out in the text count as such, otherwise they are plain text;
-- `index_base=1`: 0 gives the file's own ids. Takes any bytes.
-- @treturn Tensor or nil, message, code when the file's pattern takes too long
function Tokenizer:encode(text, opts)
  opts = options.check("encode", opts, { "add_special", "split_special", "index_base" })
  if type(text) ~= "string" then fail("encode: a string is wanted, got %s", describe(text)) end
  return self.handle:encode(text, base_of("encode", opts), opts.add_special ~= false, opts.split_special ~= false)
end

--- The text of ids, a tensor or a list; `skip_special=true` leaves special tokens out. Bytes that are no whole
-- characters stay as they are.
function Tokenizer:decode(ids, opts)
  opts = options.check("decode", opts, { "skip_special", "index_base" })
  if core.is_tensor(ids) then
    ids = ids:numel() == 0 and {} or ids:dim() == 0 and { ids:item() } or ids:flatten():totable()
  end
  if type(ids) ~= "table" then fail("decode: a tensor or a list of ids is wanted, got %s", describe(ids)) end
  return self.handle:decode(ids, opts.skip_special ~= false, base_of("decode", opts))
end

--- The token of an id as the file writes it, and whether it is special; nil for an id that there is not.
function Tokenizer:token(id, opts)
  opts = options.check("token", opts, { "index_base" })
  local i = options.integer(id)
  if not i then fail("token: an integer is wanted, got %s", describe(id)) end
  return self.handle:token(i, base_of("token", opts))
end

--- The id of a token as the file writes it (" the" is "Ġthe"), or nil.
function Tokenizer:id(token, opts)
  opts = options.check("id", opts, { "index_base" })
  if type(token) ~= "string" then fail("id: a string is wanted, got %s", describe(token)) end
  return self.handle:id(token, base_of("id", opts))
end

--- Writes the tokenizer.json file.
-- @treturn boolean true; or nil, message, code
function Tokenizer:save(path)
  if type(path) ~= "string" then fail("save: the path must be a string, got %s", describe(path)) end
  return core.write_file(path, self.json)
end

return M
