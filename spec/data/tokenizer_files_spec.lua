-- SPDX-License-Identifier: MIT
-- Tokenizers in tiktoken's files of ranks and sentencepiece's models: against what the two libraries made of texts
-- (written down here, and in ../shared/models where it exists).

local T = require "perilune"
local json = require "perilune.io.json"

local models = "../shared/models/tok/"
local function list(ids) return ids:numel() > 0 and ids:totable() or {} end
local function written(bytes, ending, f, ...)
  local path = os.tmpname()
  local file = assert(io.open(path .. ending, "wb"))
  file:write(bytes)
  file:close()
  local t, why, code = f(path .. ending, ...)
  os.remove(path)
  os.remove(path .. ending)
  return t, why, code
end
local function refused(part, code, t, why, got)
  assert.is_nil(t)
  assert.truthy(why:find(part, 1, true), why)
  assert.equal(code, got)
end

if select(3, T.data.tokenizer "spec/fixtures/gpt2.json") == "unsupported" then
  describe("tokenizers in other files", function() it("need Jansson", function() return pending "no Jansson" end) end)
  return
end

-- ---- tiktoken -----------------------------------------------------------------------------------------------------

local digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local function base64(s)
  return (s:gsub("..?.?", function(c)
    local a, b, d = c:byte(1, 3)
    local v, out = a << 16 | (b or 0) << 8 | (d or 0), ""
    for i = 0, 3 do
      local k = v >> 18 - 6 * i & 63
      out = out .. (i > #c and "=" or digits:sub(k + 1, k + 1))
    end
    return out
  end))
end
local function ranks(more)
  local rows = {}
  for b = 0, 255 do rows[b + 1] = base64(string.char(b)) .. " " .. b end
  for i, s in ipairs(more) do rows[256 + i] = base64(s) .. " " .. 255 + i end
  return table.concat(rows, "\n") .. "\n"
end

describe("a file of ranks", function()
  local words = { "in", "th", " th", " the", "the", "ab", "ba", "aba", "12", "\n\n", "'s", "\xc3\xa9", "  " }
  local special = { ["<|end|>"] = 300 }
  local function of(encoding, more)
    return assert(written(ranks(more or words), ".tiktoken", T.data.tokenizer,
      { index_base = 0, encoding = encoding, special = special }))
  end

  it("gives tiktoken's ids", function() -- of tiktoken 0.14
    local text = "the in the ababa's 12345 \n\n é <|end|>  x  "
    for encoding, want in pairs {
      r50k_base = { 260, 32, 256, 259, 32, 261, 263, 266, 32, 264, 51, 52, 53, 32, 265, 32, 267, 32, 300, 32, 32,
        120, 268 },
      cl100k_base = { 260, 32, 256, 259, 32, 261, 263, 266, 32, 264, 51, 52, 53, 32, 265, 32, 267, 32, 300, 32,
        32, 120, 268 },
      o200k_base = { 260, 32, 256, 259, 32, 261, 263, 266, 32, 264, 51, 52, 53, 32, 265, 32, 267, 32, 300, 32, 32,
        120, 268 },
    } do
      local t = of(encoding)
      assert.same(want, list(t:encode(text)), encoding)
      assert.equal(text, t:decode(want, { skip_special = false }))
    end
    local plain = list(of "cl100k_base":encode("<|end|>", { split_special = false }))
    assert.same({ 60, 124, 101, 110, 100, 124, 62 }, plain)
  end)

  it("is the tokenizer.json of the same merges", function()
    local trained = assert(T.data.train_bpe { text = ("the king and the queen sing the ring, a b ab "):rep(9),
      vocab_size = 300 })
    local letters = json.decode(trained.json).model.vocab
    local bytes = {} -- characters of the bytes' alphabet by code
    local next_letter = 256
    for b = 0, 255 do
      local seen = b > 32 and b < 127 or b > 160 and b ~= 173
      bytes[utf8.char(seen and b or next_letter)] = string.char(b)
      if not seen then next_letter = next_letter + 1 end
    end
    local rows = {}
    for token, id in pairs(letters) do
      rows[id + 1] = base64((token:gsub(utf8.charpattern, bytes))) .. " " .. id
    end
    local t = assert(written(table.concat(rows, "\n"), ".tiktoken", T.data.tokenizer,
      { index_base = 0, encoding = "r50k_base", special = {} }))
    for _, text in ipairs { "the king's ring", "abab singing\n\n queens", "", "  é 12", "kingkingking the " } do
      assert.same(list(trained:encode(text, { index_base = 0 })), list(t:encode(text)), text)
    end
  end)

  it("that is none is refused", function()
    local function try(bytes, opts) return written(bytes, ".x", T.data.tokenizer, opts) end
    local good = { encoding = "cl100k_base", special = {} }
    refused("say encoding= or pattern=", "unsupported", try(ranks(words)))
    refused("line 257 is no token", "format", try(ranks {} .. "!! 256\n", good))
    refused("line 257 is no token", "format", try(ranks {} .. "YWI= x\n", good))
    refused("line 257 is no token", "format", try(ranks {} .. "YWI= 99999999999999999999\n", good))
    refused("two tokens have the rank 7", "format", try(ranks {} .. "YWI= 7\n", good))
    refused("a token has the ranks 97 and 256", "format", try(ranks {} .. "YQ== 256\n", good))
    refused("no token for the byte 1", "format", try("AA== 0\n", good))
    refused("the special token <a> has the id 5", "format", try(ranks {}, { pattern = ".", special = { ["<a>"] = 5 } }))
    for opts, part in pairs { [{ encoding = "cl100k" }] = "encoding", [{ pattern = 1 }] = "pattern must be a string",
      [{ special = "x" }] = "special must be a table", [{ special = { a = -1 } }] = "special must be a table" } do
      local ok, why = pcall(T.data.tokenizer, "spec/fixtures/gpt2.json", opts)
      assert.is_false(ok)
      assert.truthy(why:find("data.tokenizer: ", 1, true) and why:find(part, 1, true), why)
    end
  end)
end)

-- ---- sentencepiece ------------------------------------------------------------------------------------------------

local function field(n, bytes) return string.char(n << 3 | 2) .. string.pack("s1", bytes) end
local function piece(text, score, kind)
  return field(1, field(1, text) .. "\x15" .. string.pack("<f", score) .. "\x18" .. string.char(kind or 1))
end
local function model(kind, normalizer, ...)
  local start = piece("<unk>", 0, 2) .. piece("<s>", 0, 3) .. piece("</s>", 0, 3)
  return start .. table.concat { ... } .. field(2, "\x18" .. string.char(kind)) .. field(3, normalizer)
end
local plain = "\x18\0\x20\0" -- no prefix, blanks as they are

describe("sentencepiece's model", function()
  local function of(bytes) return written(bytes, ".model", T.models.tokenizer) end

  it("of BPE merges the best score, and of equals the leftmost", function()
    local t = assert(of(model(2, plain, piece("▁", -9), piece("a", -9), piece("b", -9), piece("ab", -1),
      piece("ba", -1), piece("aba", -2), piece("<ud>", 0, 4))))
    assert.same({ 6, 8 }, list(t:encode "ababa"))
    assert.same({ 6, 9, 5 }, list(t:encode "ab<ud>b"))
    assert.same({ 0 }, list(t:encode("<s>", { split_special = false })))
    assert.equal("ab aba", t:decode(t:encode "ab aba"))
  end)

  it("of Unigram takes the best path, and no control token for text", function()
    local t = assert(of(model(1, "", piece("▁", -3), piece("▁the", -2), piece("t", -5), piece("h", -5), piece("e", -5),
      piece("he", -4), piece("<", -9), piece("s", -9), piece(">", -9))))
    assert.same({ 4, 3, 8 }, list(t:encode "  the   he "))
    assert.same({ 3, 9, 10, 11 }, list(t:encode("<s>", { split_special = false })))
    assert.equal("the he", t:decode(t:encode "the he"))
    assert.same({ 3, 0, 7 }, list(t:encode "xye"))
  end)

  it("that is none, or asks for more, is refused", function()
    local a = piece("a", -1)
    refused("the model_type 3", "unsupported", of(model(3, plain, a)))
    refused("user-defined pieces of sentencepiece (u)", "unsupported", of(model(2, "", piece("u", 0, 4))))
    refused("escape_whitespaces", "unsupported", of(model(2, "\x28\0", a)))
    refused("unused pieces", "unsupported", of(model(2, plain, piece("u", 0, 5))))
    refused("pieces 0 and 3 are both for the unknown", "format", of(model(1, plain, piece("u", 0, 2))))
    refused("piece 3 has the type 9", "format", of(model(1, plain, piece("u", 0, 9))))
    refused("the score of token 3 is no number", "format", of(model(1, plain, piece("u", 0 / 0))))
    refused("tokens 3 and 4 are both", "format", of(model(2, plain, a, a)))
    refused("there is no piece for the unknown", "format", of(a))
    refused("where 5 are left", "format", of(model(2, plain, a):sub(1, 5) .. "\x15\0"))
  end)
end)

describe("sentencepiece's own ids:", function()
  for _, name in ipairs { "sp_bpe_fallback", "unigram_spm" } do
    it(name, function()
      local f = io.open(models .. name .. "/spm.model", "rb")
      if not f then return pending("there is no " .. models .. name) end
      f:close()
      local t = assert(T.models.tokenizer(models .. name .. "/spm.model"))
      local known = dofile(models .. name .. "/cases.lua").spm
      assert.is_true(#known > 300)
      for _, c in ipairs(known) do
        local ids = list(t:encode(c.text, { split_special = false }))
        assert.same(c.ids, ids, c.text)
        if not c.decoded:find "⁇" then assert.equal(c.decoded, t:decode(ids), c.text) end
      end
    end)
  end
end)
