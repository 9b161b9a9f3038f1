-- SPDX-License-Identifier: MIT
-- Every model and every step of tokenizer.json files, against what the tokenizers library made
-- (spec/fixtures/text/make_tokenizer_kinds.py); batches, truncation, padding, streams; and, where ../shared/models
-- is, its cases.

local T = require "perilune"
local tokenizer = require "perilune.data.tokenizer"
local near = require "spec.support.near"
local fails = near.fails
local known = require "spec.fixtures.text.tokenizer_kinds"
local zero = { index_base = 0 }

local function list(ids) return ids:numel() > 0 and ids:flatten():totable() or {} end

local first, message, code = tokenizer.from_json(known.kinds[1].json, "kinds")
if not first then
  describe("kinds of tokenizers", function()
    it("say which library the build lacks", function()
      assert.equal("unsupported", code)
      return pending(message)
    end)
  end)
  return
end

describe("kinds of tokenizers", function()
  local by_name = {}
  it("count characters that a map makes nothing of as the reference does", function()
    local t = by_name["Unigram with byte fallback and a compiled map"]
    for text, want in pairs { ["\u{200b}\u{fb01}\u{200b}\u{200b}low"] = "0 1 0 2 0 2 3 4 4 5 5 6",
      ["\u{200b}\u{200b}\u{e9}\u{200b} \u{fb01}\u{200b}A low"] = "0 1 0 1 3 4 3 5 3 5 5 6 7 10",
      ["\u{fb01}\u{200b}A"] = "0 1 0 2 0 2 2 3",
      ["A\u{200b}\u{200b}\u{fb01}\u{200b}low"] = "0 1 0 1 3 5 3 5 5 6 6 7 7 8" } do
      local e = t(text, { full = true, index_base = 0, add_special = false })
      assert.equal(want, table.concat(list(e.offset_mapping), " "))
    end
  end)

  for _, kind in ipairs(known.kinds) do
    local t = assert(tokenizer.from_json(kind.json, kind.name))
    by_name[kind.name] = t
    it("give what the reference gives: " .. kind.name, function()
      for _, row in ipairs(kind.rows) do
        local text = known.texts[row.text]
        local e = assert(t(text, { full = true, index_base = 0 }))
        assert.same(row.tokens, e.tokens, text)
        assert.same(row.offsets, list(e.offset_mapping), text)
        if row.ids then
          assert.same(row.ids, list(e.input_ids), text)
          assert.same(row.types, list(e.token_type_ids), text)
          assert.same(row.special, list(e.special_tokens_mask), text)
          assert.same(row.mask, list(e.attention_mask), text)
          assert.equal(row.decoded, t:decode(e.input_ids, zero), text)
          assert.equal(row.all, t:decode(row.ids, { index_base = 0, skip_special = false }), text)
          local plain = t(text, { truncation = false, padding = false })
          assert.same(plain.input_ids:totable(), t:encode(text):totable(), text)
        end
      end
      for _, row in ipairs(kind.pairs) do
        local e = t(known.texts[row.a], { pair = known.texts[row.b], full = true, index_base = 0 })
        assert.same(row.ids, list(e.input_ids))
        assert.same(row.types, list(e.token_type_ids))
        assert.same(row.offsets, list(e.offset_mapping))
      end
      for _, row in ipairs(kind.lists) do -- random ids
        local ids = table.concat(row.ids, " ")
        assert.equal(row.decoded, t:decode(row.ids, zero), ids)
        assert.equal(row.all, t:decode(row.ids, { index_base = 0, skip_special = false }), ids)
      end
    end)
  end

  local roberta, wordpiece = by_name["bytes, RobertaProcessing"], by_name["WordPiece"]

  it("encode lists of texts on all threads as one by one", function()
    local texts = {}
    for i = 1, 200 do texts[i] = known.texts[i % #known.texts + 1]:rep(i % 7) .. i end
    local threads, results = T.get_num_threads(), {}
    for _, n in ipairs { 1, 2, 5 } do
      T.set_num_threads(n)
      results[#results + 1] = roberta(texts, { padding = true, full = true, padding_side = "left" })
    end
    T.set_num_threads(threads)
    for i, text in ipairs(texts) do
      local ids = roberta:encode(text)
      local mask = results[1].attention_mask[i]:eq(1)
      assert.same(ids:totable(), results[1].input_ids[i]:masked_select(mask):totable())
    end
    for key, value in pairs(results[1]) do
      if T.is_tensor(value) then
        for i = 2, #results do assert.same(value:totable(), results[i][key]:totable()) end
      end
    end
    local loose = roberta({ "low", "lower low" })
    assert.equal(2, #loose)
    assert.same(roberta:encode("lower low"):totable(), loose[2].input_ids:totable())
    assert.same({}, roberta({}))
  end)

  it("count positions from 1, as everything here, or from 0", function()
    local e = roberta("low lower", { full = true })
    local at = e.offset_mapping:totable()
    assert.same({ 1, 0 }, at[1])
    local text = ""
    for i = 2, #at - 1 do text = text .. ("low lower"):sub(at[i][1], at[i][2]) end
    assert.equal("lowlower", text)
    assert.equal(0, e.word_ids[1]:item())
    assert.equal(1, e.word_ids[2]:item())
    assert.equal(1, e.sequence_ids[2]:item())
    assert.equal(0, e.sequence_ids[1]:item())
    local from_zero = roberta("low lower", { full = true, index_base = 0 })
    assert.same({ 0, 0 }, from_zero.offset_mapping:totable()[1])
    assert.equal(-1, from_zero.word_ids[1]:item())
  end)

  it("cut and fill up as asked, else as the file says", function()
    local e = wordpiece({ "low lower lowest", "a" })
    assert.same({ 2, 8 }, e.input_ids:size())
    assert.same({ 3, 5, 5, 6, 5, 4, 1, 1 }, list(e.input_ids[1]))
    assert.same({ 1, 1, 1, 0, 0, 0, 0, 0 }, list(e.attention_mask[2]))
    e = wordpiece("low lower lowest", { max_length = 4, truncation_side = "left", padding = false })
    assert.same({ 3, 5, 7, 4 }, list(e.input_ids))
    e = wordpiece("a", { padding = 5, pad_to_multiple_of = 4, padding_side = "left", pad_id = 2, pad_type = 9 })
    assert.same({ 2, 2, 2, 2, 2, 3, 8, 4 }, list(e.input_ids))
    assert.same({ 9, 9, 9, 9, 9, 0, 0, 0 }, list(e.token_type_ids))
    e = wordpiece("a b c a", { pair = "low low", truncation = "only_first", max_length = 7, padding = "max_length" })
    assert.same({ 3, 8, 9, 4, 5, 5, 4 }, list(e.input_ids))
    fails("needs a second text", wordpiece, "a b c d e f g", { truncation = "only_second" })
    fails("max_length is 1, and there are 2 special tokens", wordpiece, "a", { max_length = 1 })
    fails("truncation needs max_length", roberta, "a", { truncation = true })
    fails("a text has 6 tokens, more than the 4", wordpiece, { "low low low low low" }, { padding = 4 })
    fails("truncation must be true", wordpiece, "a", { truncation = "middle" })
    fails("padding_side must be 'left' or 'right'", wordpiece, "a", { padding_side = "top" })
    fails("there are 2 texts and 1 second texts", wordpiece, { "a", "b" }, { pair = { "c" } })
    fails("full must be true or false", wordpiece, "a", { full = "no" })
    fails("add_special must be true or false", wordpiece.encode, wordpiece, "a", { add_special = "no" })
    fails("skip_special must be true or false", wordpiece.decode, wordpiece, { 1 }, { skip_special = "no" })
    fails("tokenize must be true or false", wordpiece.apply_chat_template, wordpiece, {}, { tokenize = "no" })
    fails("text 2 must be a string, got 3", wordpiece, { "a", 3 })
    fails("unknown option", wordpiece, "a", { padded = true })
  end)

  it("decode token by token", function()
    local t = by_name["BPE with byte fallback"]
    local text = "low \u{1F468} caf\u{E9} the lower"
    for _, k in ipairs { t, assert(T.data.train_bpe { 260, text = "low lower" }) } do
      local stream, whole, parts = k:stream {}, "", 0
      for _, id in ipairs(k:encode(text):totable()) do
        local part = stream(id)
        assert.truthy(utf8.len(part))
        if #part > 0 then parts = parts + 1 end
        whole = whole .. part
      end
      assert.equal(text, whole .. stream:finish())
      assert.is_true(parts > 5)
    end
    local stream = t:stream { index_base = 0 }
    local state = 7 -- bytes that are characters until others come: what was given stays, and all of it is characters
    for _ = 1, 300 do
      local ids, out, taken_back = {}, "", false
      for i = 1, 6 do
        state = state * 1103515245 + 12345 & 0x7fffffff
        ids[i] = state % 4 == 0 and t:id("low", zero) or t:id(("<0x%02X>"):format(state >> 8 & 255), zero)
        out = out .. stream(ids[i])
        local now = t:decode(ids, zero)
        taken_back = taken_back or now:sub(1, #out) ~= out
      end
      out = out .. stream:finish()
      assert.truthy(utf8.len(out))
      if not taken_back then assert.equal(t:decode(ids, zero), out) end
    end
    assert.equal("", stream(t:id("<0xE2>", zero)))
    assert.equal("\u{FFFD}", stream:finish())
    assert.equal("low", stream(t:id("low", zero)))
    fails("there is no token with id 9999", stream, 9999)
    assert.equal("low", stream(t:id("low", zero)))
  end)
end)

describe("older files of vocabularies", function()
  local function folder(contents, body)
    local dir = os.tmpname()
    os.remove(dir)
    assert(os.execute("mkdir " .. dir))
    for name, content in pairs(contents) do
      local f = assert(io.open(dir .. "/" .. name, "wb"))
      f:write(content)
      f:close()
    end
    body(dir)
    os.execute("rm -r " .. dir)
  end

  it("are read: vocab.txt", function()
    local tokens = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nlow\n##er\n!\nLow\n"
    folder({ ["vocab.txt"] = tokens }, function(dir)
      local t = assert(T.data.tokenizer(dir .. "/vocab.txt"))
      assert.same({ 2, 4, 5, 6, 1, 3 }, t:encode("Lower! x", zero):totable())
      assert.equal("lower!", t:decode(t:encode "LOWER!"))
      assert.same({ 0, 0, 0, 1, 1 }, t("low", { pair = "low", index_base = 0 }).token_type_ids:totable())
    end)
    folder({ ["vocab.txt"] = tokens, ["tokenizer_config.json"] = '{"do_lower_case": false}' }, function(dir)
      assert.same({ 2, 7, 5, 3 }, assert(T.data.tokenizer(dir)):encode("Lower", zero):totable())
    end)
    folder({ ["vocab.txt"] = "a\nb\n" }, function(dir)
      local t, why, kind = T.data.tokenizer(dir)
      assert.is_nil(t)
      assert.truthy(why:find("there is no [UNK]", 1, true))
      assert.equal("format", kind)
    end)
  end)

  it("are read: vocab.json and merges.txt", function()
    local f = assert(io.open((os.getenv "PERILUNE_ROOT" or ".") .. "/spec/fixtures/gpt2.json", "rb"))
    local json = f:read "a"
    f:close()
    local lines = { "#version: 0.2" }
    for pair in json:match('"merges":%[(.*)%]'):gmatch "%b[]" do
      local a, b = pair:match '^%["(.-)","(.-)"%]$'
      lines[#lines + 1] = a:gsub('\\(.)', "%1") .. " " .. b:gsub('\\(.)', "%1")
    end
    local whole = assert(tokenizer.from_json(json, "gpt2"))
    local vocab = json:match '"model":.-"vocab":(%b{})'
    folder({ ["vocab.json"] = vocab, ["merges.txt"] = table.concat(lines, "\n") .. "\n" }, function(dir)
      local t = assert(T.data.tokenizer(dir))
      for _, text in ipairs { "To be, or not to be", " the king's 12\n\n", "caf\u{E9}<|endoftext|>" } do
        assert.same(whole:encode(text):totable(), t:encode(text):totable())
      end
      os.remove(dir .. "/merges.txt")
      assert.equal("io", select(3, T.data.tokenizer(dir)))
    end)
  end)
end)

-- ---- the shared oracle --------------------------------------------------------------------------------------------

local root = (os.getenv("PERILUNE_ROOT") or ".") .. "/../shared/models/tok/"
local names = { "bytelevel_gpt2", "bytelevel_roberta", "bytelevel_split3", "bytelevel_nfc", "sp_bpe_fallback",
  "unigram_metaspace", "unigram_spm", "wordpiece", "clip_bpe", "added_tokens" }

local function oracle(path)
  local chunk = loadfile(root .. path)
  if not chunk then return nil, "../shared/models is not here" end
  return chunk()
end

describe("the tokenizers of ../shared/models", function()
  for _, name in ipairs(names) do
    it("are exact: " .. name, function()
      local cases, why = oracle(name .. "/cases.lua")
      if not cases then return pending(why) end
      local t = assert(T.data.tokenizer(root .. name .. "/tokenizer.json"))
      for _, row in ipairs(cases.encode) do
        local e = t(row.text, { full = true, index_base = 0 })
        assert.same(row.ids, list(e.input_ids), row.text)
        assert.same(row.ids, list(t:encode(row.text, zero)), row.text)
        assert.same(row.plain or row.ids, list(t:encode(row.text, { index_base = 0, add_special = false })), row.text)
        assert.equal(row.decoded, t:decode(row.ids, zero), row.text)
        assert.equal(row.decoded_all, t:decode(row.ids, { index_base = 0, skip_special = false }), row.text)
        if row.tokens then assert.same(row.tokens, e.tokens, row.text) end
        if row.offsets then assert.same(row.offsets, list(e.offset_mapping), row.text) end
        if row.types then assert.same(row.types, list(e.token_type_ids), row.text) end
      end
      for _, row in ipairs(cases.pairs) do
        local e = t(row.a, { pair = row.b, index_base = 0 })
        assert.same(row.ids, list(e.input_ids))
        assert.same(row.types, list(e.token_type_ids))
        assert.same(row.special, list(e.special_tokens_mask))
      end
      for _, row in ipairs(cases.decode) do
        assert.equal(row.decoded, t:decode(row.ids, zero))
        assert.equal(row.decoded_all, t:decode(row.ids, { index_base = 0, skip_special = false }))
      end
      for _, row in ipairs(cases.stream) do
        local stream = t:stream(zero)
        for i, id in ipairs(row.ids) do assert.equal(row.chunks[i], stream(id)) end
      end
      for _, row in ipairs(cases.batch) do
        local e = t(row.a, { pair = row.b, index_base = 0, truncation = row.strategy, truncation_side = row.side,
          padding_side = row.side, max_length = row.max_length, padding = row.pad_to, pad_id = row.pad_id })
        assert.same(row.ids, list(e.input_ids))
        assert.same(row.mask, list(e.attention_mask))
        assert.same(row.types, list(e.token_type_ids))
      end
    end)
  end

  local empty = '{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0]]}'
  local function quote(s)
    return '"' .. s:gsub('[%c"\\]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
  end
  local function part(key, json, model)
    return assert(tokenizer.from_json(('{"%s":%s,"model":%s}'):format(key, json, model or empty), key))
  end

  it("have exact parts", function()
    local parts, why = oracle("components.lua")
    if not parts then return pending(why) end
    for _, p in ipairs(parts.normalizers) do
      local t = part("normalizer", p.json)
      for _, row in ipairs(p.cases) do assert.equal(row.out, t.handle:normalize(row.text), p.name) end
    end
    for _, p in ipairs(parts.pre_tokenizers) do
      local t = part("pre_tokenizer", p.json)
      for _, row in ipairs(p.cases) do
        local e = t(row.text, { full = true, index_base = 0 })
        assert.same(row.pieces, e.tokens, p.name)
        assert.same(row.offsets, list(e.offset_mapping), p.name)
      end
    end
    for _, p in ipairs(parts.decoders) do
      for _, row in ipairs(p.cases) do
        local seen, vocab, ids = {}, {}, {}
        for i, piece in ipairs(row.pieces) do
          if not seen[piece] then
            seen[piece] = #vocab
            vocab[#vocab + 1] = quote(piece) .. ":" .. #vocab
          end
          ids[i] = seen[piece]
        end
        local words = ('{"type":"WordLevel","unk_token":"x","vocab":{%s}}'):format(table.concat(vocab, ","))
        assert.equal(row.out, part("decoder", p.json, words):decode(ids, zero), p.name)
      end
    end
  end)
end)
