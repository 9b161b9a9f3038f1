-- SPDX-License-Identifier: MIT
-- Tokenizers in GGUF files: against llama.cpp's own results and sentencepiece's (../shared/models, where it exists),
-- and against the tokenizer.json that says the same.

local T = require "perilune"
local json = require "perilune.io.json"

local models = "../shared/models/"
local function exists(path)
  local f = io.open(path, "rb")
  if f then f:close() end
  return f ~= nil
end

-- A tokenizer from a GGUF file of these keys below "tokenizer.ggml." (those with a dot are whole keys).
local function of(keys, kinds)
  local meta, names, path = {}, {}, os.tmpname()
  for k, v in pairs(keys) do meta[k:find(".", 1, true) and k or "tokenizer.ggml." .. k] = v end
  for k, v in pairs(kinds or {}) do names["tokenizer.ggml." .. k] = v end
  assert(T.save_gguf(path, { w = T.ones(1) }, { metadata = meta, kinds = names }))
  local t, why, code = T.models.tokenizer(path)
  os.remove(path)
  return t, why, code
end
local function refused(part, code, keys, kinds)
  local t, why, got = of(keys, kinds)
  assert.is_nil(t)
  assert.truthy(why:find(part, 1, true), why)
  assert.equal(code, got)
end

local function list(ids) return ids:numel() > 0 and ids:totable() or {} end

-- tokens and merges of a tokenizer.json of BPE; types: 3 for special tokens, 4 for other added ones
local function parts(text)
  local tree = json.decode(text)
  local tokens, types, merges = {}, {}, {}
  for token, id in pairs(tree.model.vocab) do tokens[id + 1], types[id + 1] = token, 1 end
  for _, a in ipairs(tree.added_tokens) do tokens[a.id + 1], types[a.id + 1] = a.content, a.special and 3 or 4 end
  for i, m in ipairs(tree.model.merges) do merges[i] = type(m) == "table" and m[1] .. " " .. m[2] or m end
  return tokens, types, merges
end

local sample = "the king's men, 1234 of them,\n\n  saw ÉTÉ it's\tWe'LL 你好 <|endoftext|>"

if not T.data.tokenizer("spec/fixtures/gpt2.json") and select(3, T.data.tokenizer "spec/fixtures/gpt2.json")
  == "unsupported" then
  describe("tokenizers in GGUF files", function() it("need Jansson", function() return pending "no Jansson" end) end)
  return
end

describe("a tokenizer in a GGUF file", function()
  local trained = assert(T.data.train_bpe { text = ("the king and the queen sing the ring "):rep(9), vocab_size = 290,
    special = { "<|endoftext|>" } })
  local tokens, types, merges = parts(trained.json)

  it("of byte-level BPE is the tokenizer.json of the same tokens", function()
    local t = assert(of { model = "gpt2", pre = "gpt-2", tokens = tokens, token_type = types, merges = merges,
      bos_token_id = 0, eos_token_id = 0, ["tokenizer.chat_template"] = "{{ bos_token }}{{ messages[0].content }}" })
    assert.equal(#tokens, #t)
    for _, split in ipairs { true, false } do
      assert.same(list(trained:encode(sample, { index_base = 0, split_special = split })),
        list(t:encode(sample, { split_special = split })))
    end
    assert.equal(sample, t:decode(t:encode(sample), { skip_special = false }))
    assert.equal("<|endoftext|>hi", t:apply_chat_template({ { role = "user", content = "hi" } }, { tokenize = false }))
    local one = assert(T.data.tokenizer) -- counts from 1 there
    local path = os.tmpname()
    assert(t:save(path))
    assert.same(list(t:encode(sample)), list(assert(one(path, { index_base = 0 })):encode(sample)))
    os.remove(path)
  end)

  it("puts the tokens around a text that the file asks for", function()
    local keys = { model = "gpt2", pre = "llama-bpe", tokens = tokens, token_type = types, merges = merges,
      bos_token_id = 0, eos_token_id = 5 }
    local plain = list(assert(of(keys)):encode("the", { add_special = false }))
    local bos = list(assert(of(keys)):encode "the") -- llama-bpe begins with one
    assert.same({ 0, table.unpack(plain) }, bos)
    keys.add_bos_token, keys.add_eos_token = false, true
    plain[#plain + 1] = 5
    assert.same(plain, list(assert(of(keys)):encode "the"))
  end)

  it("cuts words as tokenizer.ggml.pre says", function()
    local function pieces(pre, text)
      local t = assert(of { model = "gpt2", pre = pre, tokens = tokens, token_type = types, merges = merges,
        bos_token_id = 0 })
      local e, out = t(text, { full = true, add_special = false }), {}
      local words, offsets, last = list(e.word_ids), e.offset_mapping:totable(), nil
      for i, w in ipairs(words) do
        if w == last then out[#out] = out[#out]:sub(1, -2) .. "|" else out[#out + 1] = "" end
        out[#out] = text:sub(1, offsets[i][2])
        last = w
      end
      local from = 0
      for i, s in ipairs(out) do
        out[i], from = s:sub(from + 1), #s
      end
      return table.concat(out, "·")
    end
    local text = "We'LL pay 12345 \n\n now's"
    assert.equal("We·'·LL· pay· 12345· \n\n· now·'s", (pieces("gpt-2", text)))
    assert.equal("We·'LL· pay· ·123·45· \n\n· now·'s", (pieces("llama-bpe", text)))
    assert.equal("We·'LL· pay· ·1·2·3·4·5· \n\n· now·'s", (pieces("qwen2", text)))
    assert.equal("We'LL· pay· ·123·45· \n\n· now's", (pieces("gpt-4o", text)))
    assert.equal("We·'·LL· pay· ·1·2·3·4·5· \n\n· now·'s", (pieces("starcoder", text)))
    local source = assert(io.open("lua/perilune/data/tokenizer_gguf.lua", "rb")):read "a"
    local n = 0
    for name in source:match("local pre = (.-)\n%-%- %-%-%-%- reading keys"):gmatch "[%w%-%._]+" do
      local t, why = of { model = "gpt2", pre = name, tokens = tokens, token_type = types, merges = merges,
        bos_token_id = 0 }
      if t then
        n = n + 1
        assert.equal(sample, t:decode(t:encode(sample, { add_special = false }), { skip_special = false }), name)
      else
        assert.truthy(why:find("pre-tokenizer '" .. name .. "'", 1, true), why)
      end
    end
    assert.is_true(n > 55, n .. " names")
  end)

  -- what sentencepiece and llama.cpp make of it: the best score first, then the leftmost
  it("of scores merges the best first, and of equals the leftmost", function()
    local pieces = { "<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "ba", "aba", "<ud>" }
    local keys = { model = "llama", tokens = pieces, token_type = { 2, 3, 3, 1, 1, 1, 1, 1, 1, 4 },
      scores = { 0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -1.0, -1.0, -2.0, 0.0 }, bos_token_id = 1, eos_token_id = 2,
      unknown_token_id = 0, add_bos_token = false, add_space_prefix = false }
    local function of_text(t, text)
      local out = {}
      for i, id in ipairs(list(t:encode(text))) do out[i] = pieces[id + 1] end
      return table.concat(out, " ")
    end
    local t = assert(of(keys))
    assert.equal("ab aba", of_text(t, "ababa"))
    assert.equal("ba ba", of_text(t, "baba"))
    assert.equal("ba b", of_text(t, "bab"))
    assert.equal("b <unk> <ud> ab", of_text(t, "bxy<ud>ab"))
    assert.equal("b <s> ab", of_text(t, "b<s>ab"))
    assert.equal(0, t:encode("<s>", { split_special = false }):min():item()) -- unknown characters, not the token
    keys.add_bos_token, keys.add_space_prefix = nil, nil
    t = assert(of(keys))
    assert.equal("<s> ▁ ab <ud> ▁ ab", of_text(t, "ab<ud>ab"))
    assert.equal("ab ab", t:decode(t:encode "ab ab"))
    keys.scores[8] = -0.5
    assert.equal("<s> ▁ aba ba", of_text(assert(of(keys)), "ababa"))
  end)

  it("is saved with ranks, which are checked", function()
    local text =
      [=[{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"ba":3},"merges":[["a","b"],["b","a"]],"merge_ranks":%s}]=]
    local function with(ranks)
      return require("perilune.data.tokenizer").from_json(('{"model":%s}'):format(text:format(ranks)), "ranks")
    end
    assert.same({ 3, 1 }, list(assert(with "[0,0]"):encode("bab", { index_base = 0 }))) -- ba is the leftmost
    assert.same({ 1, 2 }, list(assert(with "[0,1]"):encode("bab", { index_base = 0 })))
    assert.same({ 1, 2 }, list(assert(with "null"):encode("bab", { index_base = 0 })))
    for _, ranks in ipairs { "[0]", "[0,2]", "[1,1]", "[0,-1]", '[0,"1"]', "[0,0,0]", "1", "{}" } do
      local t, why, code = with(ranks)
      assert.is_nil(t, ranks)
      assert.truthy(why:find("merge_ranks", 1, true), why)
      assert.equal("format", code)
    end
  end)

  it("of bert is WordPiece", function()
    local t = assert(of { model = "bert", tokens = { "[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁low", "er", "▁,", "▁e" },
      token_type = { 3, 3, 3, 3, 1, 1, 1, 1 }, cls_token_id = 2, seperator_token_id = 3, unknown_token_id = 1,
      padding_token_id = 0 })
    assert.same({ 2, 4, 5, 6, 7, 1, 3 }, list(t:encode "LOWER, é zz"))
    assert.same({ 0, 0, 0, 1, 1 }, list(t("low", { pair = "low" }).token_type_ids))
    assert.equal("lower, e", t:decode { 2, 4, 5, 6, 7, 3 })
    assert.equal("##er", (t:token(5)))
  end)

  it("of t5 is Unigram", function()
    local t = assert(of { model = "t5", tokens = { "<pad>", "</s>", "<unk>", "▁", "▁the", "t", "h", "e", "he", "▁k" },
      token_type = { 3, 3, 2, 1, 1, 1, 1, 1, 1, 1 }, eos_token_id = 1, unknown_token_id = 2,
      scores = { 0.0, 0.0, 0.0, -3.0, -2.0, -5.0, -5.0, -5.0, -4.0, -6.0 }, remove_extra_whitespaces = true })
    assert.same({ 4, 9, 7, 3, 8, 1 }, list(t:encode "  the   ke he "))
    assert.same({ 3, 2, 1 }, list(t:encode "xyz"))
    assert.equal("the he", t:decode(t:encode "the he"))
  end)

  it("that is none is refused by what is wrong", function()
    local function keys(change)
      local k = { model = "gpt2", pre = "gpt-2", tokens = tokens, token_type = types, merges = merges }
      for name, v in pairs(change) do k[name] = v or nil end
      return k
    end
    refused("no tokenizer in this file", "unsupported", { ["general.name"] = "x" })
    refused("the tokenizer 'rwkv'", "unsupported", keys { model = "rwkv" })
    refused("the pre-tokenizer 'mine'", "unsupported", keys { pre = "mine" })
    refused("there is no tokenizer.ggml.tokens", "format", keys { tokens = false })
    refused("there is no tokenizer.ggml.merges", "format", keys { merges = false })
    refused("there is no tokenizer.ggml.scores", "format", keys { model = "llama" })
    refused("token_type has 1 values for " .. #tokens, "format", keys { token_type = { 1 } })
    refused("tokenizer.ggml.tokens is text, [text] is wanted", "format", keys { tokens = "a" })
    refused(("bos_token_id is %d, tokens are 0 to %d"):format(#tokens, #tokens - 1), "format",
      keys { bos_token_id = #tokens })
    refused("add_eos_token asks for a token", "format", keys { add_eos_token = true })
    refused("merge 1, \"ab\", is not of two tokens", "format", keys { merges = { "ab" } })
    refused("a merge of tokens that are not in the vocabulary", "format", keys { merges = { "Q zz" } })
    refused("tokens 0 and 1 are both \"a\"", "format", keys { tokens = { "a", "a" }, token_type = { 1, 1 } })
    refused("the score of token 1 is no number", "format", { model = "llama", tokens = { "a", "b" },
      scores = { 0.0, 0 / 0 } })
    local t, why, code = T.models.tokenizer "spec/fixtures/gguf/metadata.gguf"
    assert.is_nil(t)
    assert.equal("unsupported", code, why)
  end)
end)

-- ---- the oracles --------------------------------------------------------------------------------------------------

describe("tokenizers in GGUF files give llama.cpp's ids:", function()
  for _, name in ipairs { "sp", "gpt2" } do
    it(name, function()
      local path = models .. "gguf/tokenize_" .. name .. ".lua"
      if not exists(path) then return pending("there is no " .. path) end
      local known = dofile(path)
      local t = assert(T.models.tokenizer(models .. "gguf/" .. known.file))
      for _, c in ipairs(known.cases) do
        assert.same(c.ids, list(t:encode(c.text)), c.text)
        assert.same(c.plain or c.ids, list(t:encode(c.text, { add_special = false, split_special = false })), c.text)
      end
    end)
  end

  for name, pre in pairs { bytelevel_split3 = "llama-bpe", bytelevel_gpt2 = "gpt-2" } do
    it("of the tokens of " .. name, function()
      local path = models .. "tok/" .. name
      if not exists(path .. "/tokenizer.json") then return pending("there is no " .. path) end
      local tok, kind, merge = parts(assert(io.open(path .. "/tokenizer.json", "rb")):read "a")
      local cases = dofile(path .. "/cases.lua").encode
      local bos = cases[1].ids[1] -- of the empty text
      local t = assert(of { model = "gpt2", pre = pre, tokens = tok, token_type = kind, merges = merge,
        bos_token_id = bos, add_bos_token = bos ~= nil })
      local n = 0
      for _, c in ipairs(cases) do
        n = n + 1
        assert.same(c.ids, list(t:encode(c.text)), c.text)
        assert.equal(c.decoded, t:decode(c.ids))
      end
      assert.is_true(n > 300)
    end)
  end
end)
