-- SPDX-License-Identifier: MIT
-- BPE of bytes and of characters against what the tokenizers library made (spec/fixtures/make_tokenizers.py); hostile
-- files, long texts.

local T = require "perilune"
local mutate = require "spec.support.mutate"
local near = require "spec.support.near"
local known = require "spec.fixtures.tokenizers"
local data = T.data
local fails = near.fails

local fixtures = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/"
local function list(ids) return ids:numel() > 0 and ids:totable() or {} end

-- A fixture, changed by plain replacements of text; or nil, message, code.
local function altered(file, ...)
  local json = mutate.read(fixtures .. file)
  for _, change in ipairs { ... } do
    local from, to = json:find(change[1], 1, true)
    assert(from, change[1])
    json = json:sub(1, from - 1) .. change[2] .. json:sub(to + 1)
  end
  local path = os.tmpname()
  local f = assert(io.open(path, "wb"))
  f:write(json)
  f:close()
  local t, message, code = data.tokenizer(path)
  os.remove(path)
  return t, message, code
end

local gpt2, message, code = data.tokenizer(fixtures .. "gpt2.json")
if not gpt2 then
  describe("data.tokenizer", function()
    it("says which library the build lacks", function()
      assert.equal("unsupported", code)
      assert.truthy(message:find("libjansson-dev", 1, true) or message:find("libpcre2-dev", 1, true), message)
      return pending(message)
    end)
  end)
  return
end

describe("data.tokenizer", function()
  local prefix = altered("gpt2.json", { '"ByteLevel","add_prefix_space":false', '"ByteLevel","add_prefix_space":true' })
  local split = assert(data.tokenizer(fixtures .. "split.json"))

  local llama = assert(data.tokenizer(fixtures .. "llama.json"))
  local kinds = { gpt2 = gpt2, split = split, prefix = prefix, llama = llama }
  local function plus(name, file, ...)
    local t, why = altered(file, ...)
    -- a build without utf8proc says so; an older PCRE2 has no \p{Alphabetic}
    if not t then assert(why:find("libutf8proc-dev", 1, true) or name == "words", why) end
    kinds[name] = t
    return t
  end
  local metaspace = plus("metaspace", "metaspace.json")
  plus("forms", "gpt2.json", { '"normalizer":null', [["normalizer":{"type":"Sequence","normalizers":[{"type":"NFKD"},
    {"type":"StripAccents"},{"type":"Lowercase"},{"type":"Strip","strip_left":true,"strip_right":true},
    {"type":"Replace","pattern":{"Regex":"\\s+"},"content":" "}]}]] })
  plus("composed", "gpt2.json", { '"normalizer":null', '"normalizer":{"type":"NFC"}' })
  plus("decomposed", "gpt2.json", { '"normalizer":null', '"normalizer":{"type":"NFD"}' })
  -- The parts of a fixture, replaced: its JSON has no other text between the keys.
  local function with(name, file, parts)
    local json = mutate.read(fixtures .. file)
    for i = 1, #parts, 2 do
      local from, to = json:match(('"%s":()%%b{}()'):format(parts[i]))
      json = json:sub(1, from - 1) .. parts[i + 1] .. json:sub(to)
    end
    kinds[name] = data.tokenizer and require("perilune.data.tokenizer").from_json(json, name)
  end
  with("words", "metaspace.json", { "normalizer", "null", "pre_tokenizer", '{"type":"Whitespace"}', "decoder",
    '{"type":"Fuse"}' })
  if kinds.words then
    kinds.words = require("perilune.data.tokenizer").from_json(kinds.words.json:gsub('"fuse_unk":true',
      '"fuse_unk":false'), "words")
  end
  with("blanks", "metaspace.json", { "normalizer", "null", "pre_tokenizer", [[{"type":"Sequence","pretokenizers":[
    {"type":"WhitespaceSplit"},{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}]}]] })
  for name, behaviour in pairs { previous = "MergedWithPrevious", next = "MergedWithNext" } do
    local json = mutate.read(fixtures .. "llama.json"):gsub('"pre_tokenizer":null', function()
      return ('"pre_tokenizer":{"type":"Split","pattern":{"String":"▁"},"behavior":"%s","invert":false}')
        :format(behaviour)
    end)
    local from, to = json:match '"normalizer":()%b{}()'
    kinds[name] = assert(require("perilune.data.tokenizer").from_json(json:sub(1, from - 1) ..
      '{"type":"Replace","pattern":{"String":" "},"content":"▁"}' .. json:sub(to), name))
  end

  for name, t in pairs(kinds) do
    it("gives the ids and texts of the reference: " .. name, function()
      for _, case in ipairs(known[name]) do
        local text, ids, bare = known.texts[case[1]], case[2], case[3]
        local plain = case[4] or text
        local full = case[5] or plain
        local got = t:encode(text, { index_base = 0 })
        assert.same(ids, list(got), text)
        assert.equal(plain, t:decode(got, { index_base = 0 }))
        assert.equal(full, t:decode(ids, { index_base = 0, skip_special = false }))
        assert.equal(bare, t:encode(text, { add_special = false }):numel())
        local one = list(t:encode(text))
        for i, id in ipairs(one) do assert.equal(ids[i] + 1, id) end
        assert.equal(plain, t:decode(one))
      end
    end)
  end

  it("keeps every byte, valid UTF-8 or not", function()
    local all = {}
    for b = 0, 255 do all[#all + 1] = string.char(b) end
    local text = table.concat(all) .. "\237\160\128 \240\159\152 caf\195" .. table.concat(all):reverse()
    for _, t in ipairs { llama, gpt2, split } do
      assert.equal(text, t:decode(t:encode(text), { errors = "keep" }))
      assert.truthy(utf8.len(t:decode(t:encode(text))))
    end
    assert.equal("a\u{FFFD}b\u{FFFD}\u{FFFD}", gpt2:decode(gpt2:encode("a\xE2\x82b\xFF\xC0")))
    fails("errors must be 'replace' or 'keep'", gpt2.decode, gpt2, { 1 }, { errors = "strict" })
  end)

  it("knows tokens and their ids", function()
    assert.equal(704, #gpt2)
    assert.equal(1, gpt2:id("<|endoftext|>"))
    assert.equal(0, gpt2:id("<|endoftext|>", { index_base = 0 }))
    assert.is_nil(gpt2:id("no such token"))
    local token, special = gpt2:token(1)
    assert.equal("<|endoftext|>", token)
    assert.is_true(special)
    token, special = gpt2:token(gpt2:id("Ġthe"))
    assert.equal("Ġthe", token)
    assert.is_false(special)
    assert.is_nil(gpt2:token(705))
    assert.equal(" the", gpt2:decode { gpt2:id("Ġthe") })
    assert.equal(gpt2:id("Ġthe"), gpt2:encode(" the"):item())
    local plain = gpt2:encode("<|endoftext|>", { split_special = false })
    assert.is_true(plain:numel() > 1)
    assert.equal("<|endoftext|>", gpt2:decode(plain))
    assert.equal("tokenizer of 704 tokens", tostring(gpt2))
  end)

  it("counts from what it was opened with, in all its calls and in workers", function()
    local zero = assert(data.tokenizer(fixtures .. "gpt2.json", { index_base = 0 }))
    assert.equal(0, zero.index_base)
    assert.equal(1, gpt2.index_base)
    local ids = zero:encode("the king")
    assert.is_true((gpt2:encode("the king") - 1):equal(ids))
    assert.is_true(gpt2:encode("the king"):equal(zero:encode("the king", { index_base = 1 })))
    assert.is_true(ids:equal(zero("the king").input_ids))
    assert.equal("the king", zero:decode(ids))
    assert.is_false(pcall(zero.decode, zero, gpt2:encode("the king"))) -- which count from 1
    assert.equal(0, zero:id("<|endoftext|>"))
    assert.equal("<|endoftext|>", (zero:token(0)))
    local said = zero:apply_chat_template({ { content = "the king", role = "user" } },
      { chat_template = "{{ messages[0].content }}" })
    assert.is_true(ids:equal(said))
    local s, text = zero:stream {}, ""
    for _, id in ipairs(ids:totable()) do text = text .. s(id) end
    assert.equal("the king", text .. s:finish())
    local set = data.Dataset { len = 1, get = function() return zero:encode("the king") end }
    for x in data.DataLoader(set, { batch_size = 1, workers = 1 }) do assert.is_true(ids:equal(x[1])) end
    local ok, why = pcall(data.tokenizer, fixtures .. "gpt2.json", { index_base = 2 })
    assert.is_false(ok)
    assert.truthy(why:find("data.tokenizer: index_base must be 0 or 1, got 2", 1, true), why)
    why = select(2, pcall(data.tokenizer, fixtures .. "gpt2.json", { base = 0 }))
    assert.truthy(why:find("data.tokenizer: unknown option 'base'", 1, true), why)
  end)

  it("takes long texts without quadratic time", function()
    for i, piece in ipairs { "a", "ab", "abcdefg", " \n", "\255", "word ", "the king ", "a", "é ", "\255", "☃", " " } do
      local begin, t = os.clock(), i <= 7 and gpt2 or i % 2 == 0 and metaspace or llama
      assert.is_true(t:encode(piece:rep(1500000 // #piece)):numel() > 0)
      assert.is_true(os.clock() - begin < 5, ("%q: %g s"):format(piece, os.clock() - begin)) -- quadratic: hours
    end
  end)

  it("goes with data.text and into workers", function()
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write(("We know our gods. "):rep(40))
    f:close()
    local ds = assert(data.text { path, length = 16, tokenizer = gpt2 })
    assert.equal(704, ds.vocab_size)
    assert.truthy(ds.tokenizer:decode(ds[1][1]):find("^We know"))
    local upper = data.Dataset { len = 4, get = function(_, i)
      return gpt2:encode("the king " .. i):narrow(1, 1, 2)
    end }
    local got = {}
    for x in data.DataLoader(upper, { batch_size = 4, workers = 1 }) do got = x[4]:totable() end
    assert.same(gpt2:encode("the king"):narrow(1, 1, 2):totable(), got)
    local n = 0
    for x in data.DataLoader(ds, { batch_size = 2, workers = 1 }) do n = n + x:size(1) end
    assert.equal(#ds, n)
    assert.is_true(gpt2:save(path))
    assert.same(gpt2:encode("the"):totable(), assert(data.tokenizer(path)):encode("the"):totable())
    os.remove(path)
    assert.equal("io", select(3, gpt2:save("/nowhere/x.json")))
  end)

  it("learns the merges that the reference learns", function()
    local texts = {}
    for i, case in ipairs(known.gpt2) do texts[i] = known.texts[case[1]] end
    local t = assert(data.train_bpe { 330, text = table.concat(texts), special = { "<|end|>" } })
    assert.equal(330, #t)
    local json, got = t.json, {}
    for a, b in json:match('"merges":%[(.*)%]}}$'):gmatch('%["(.-)","(.-)"%]') do got[#got + 1] = a .. " " .. b end
    assert.same(known.merges, got)
    assert.equal("<|end|>", t:token(1))
    local text = "To be, or not to be: \0\255\" \\ that is the question.\n"
    assert.equal(text, t:decode(t:encode(text), { errors = "keep" }))
    assert.is_true(t:encode(text):numel() < #text)
    local path = os.tmpname()
    assert(t:save(path))
    assert.same(t:encode(text):totable(), assert(data.tokenizer(path)):encode(text):totable())
    local same = data.train_bpe { 270, files = { path }, min_count = 3 }
    assert.is_true(#same <= 270)
    os.remove(path)
    assert.equal("io", select(3, data.train_bpe { 300, files = { path } }))
    assert.equal(256, #data.train_bpe { 300, text = "abc" })
    fails("vocab_size must be at least 257", data.train_bpe, { 256, text = "a", special = { "<x>" } })
    fails("text or files are wanted", data.train_bpe, { 300 })
    fails("at least three characters", data.train_bpe, { 300, text = "a", special = { "a" } })
  end)

  it("refuses what it does not do, by name", function()
    local function refuses(kind, text, ...)
      local t, why, got = altered(...)
      assert.is_nil(t)
      assert.truthy(why:find(text, 1, true), why)
      assert.equal(kind, got)
    end
    local model = '"model":{"type":"BPE"'
    refuses("unsupported", "the model 'Neural'", "gpt2.json", { model, '"model":{"type":"Neural"' })
    refuses("unsupported", "the normalizer 'Upper'", "gpt2.json",
      { '"normalizer":null', '"normalizer":{"type":"Upper"}' })
    refuses("unsupported", "the pre_tokenizer 'Commas'", "split.json", { '"type":"Split"', '"type":"Commas"' })
    refuses("unsupported", "the behavior 'Doubled'", "split.json", { '"Isolated"', '"Doubled"' })
    refuses("unsupported", "the decoder 'Morse'", "llama.json", { '"type":"ByteFallback"', '"type":"Morse"' })
    refuses("unsupported", "the model's option 'dropout'", "gpt2.json", { '"dropout":null', '"dropout":0.1' })
    refuses("unsupported", "an intersection of classes", "split.json", { '(?i:', '[a-z&&[aeiou]]|(?i:' })
    refuses("format", "replacement must be", "gpt2.json", { '"pre_tokenizer":{"type":"ByteLevel"',
      '"pre_tokenizer":{"type":"Metaspace"' })
    refuses("format", "a step without pattern", "gpt2.json", { '"normalizer":null',
      '"normalizer":{"type":"Replace","content":""}' })
    refuses("format", "a merge of tokens that are not in the vocabulary", "gpt2.json", { '"merges":[[',
      '"merges":[["no","thing"],[' })
    refuses("format", "a merge must be two words", "gpt2.json", { '"merges":[[', '"merges":["nothing",[' })
    refuses("format", "an id in model.vocab", "gpt2.json", { '"!":1', '"!":-1' })
    refuses("format", "an id in model.vocab", "gpt2.json", { '"!":1', '"!":16000000' })
    refuses("format", "belongs to two tokens", "gpt2.json", { '"!":1', '"!":2' })
    refuses("format", "duplicate object key", "gpt2.json", { '"!":1', '"!":1,"!":1' })
    refuses("format", "more than 4096 bytes", "gpt2.json", { '"content":"<mask>"', '"content":"' .. ("x"):rep(5000)
      .. '"' })
    refuses("format", "line 1:", "gpt2.json", { '"version":"1.0"', '"version":' })
    refuses("format", "is malformed", "split.json", { '(?i:', '(?i(' })
    assert.equal("io", select(3, data.tokenizer("/nowhere/tokenizer.json")))
    fails("the path must be a string", data.tokenizer, 3)
    fails("encode: a string is wanted, got 3", gpt2.encode, gpt2, 3)
    fails("there is no token with id 705; ids are 1 to 704", gpt2.decode, gpt2, { 705 })
    fails("id 2 of the list is no integer", gpt2.decode, gpt2, { 1, "x" })
    fails("index_base must be 0 or 1", gpt2.encode, gpt2, "a", { index_base = 2 })
  end)

  it("ends expressions that would run for ever", function()
    local t = assert(altered("split.json", { "(?i:", "(?:(?:a+)+)+$|(?i:" }))
    local begin = os.clock()
    local ids, why, kind = t:encode(("a"):rep(4000) .. "b")
    if not ids then
      assert.equal("format", kind)
      assert.truthy(why:find("cannot be matched", 1, true), why)
    end
    assert.is_true(os.clock() - begin < 20)
  end)
end)
