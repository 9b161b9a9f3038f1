-- SPDX-License-Identifier: MIT
-- tokenizer.json files with one value exchanged for another, at every place: each is refused with a message and a code,
-- or is a tokenizer that encodes and decodes, or says why it cannot.

local json = require "perilune.io.json"
local tokenizer = require "perilune.data.tokenizer"
local near = require "spec.support.near"
local known = require "spec.fixtures.text.tokenizer_kinds"

local others = { json.null, true, false, 0, -1, 3, 1e99, 0.5, "", "x", "low", "\u{2581}\u{2581}", json.decode "[]",
  { 1 }, { "a", "b", "c" }, {}, { type = "None" }, { type = "Sequence" } }

-- f(change, key) for every place in the tree: change(v) puts v there and returns what was there. Of long lists the
-- first two.
local function each_place(tree, f)
  local keys = {}
  for k in pairs(tree) do keys[#keys + 1] = k end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for i, k in ipairs(keys) do
    if #keys < 40 or i <= 2 then
      f(function(v)
        local was = tree[k]
        tree[k] = v
        return was
      end, k)
      if type(tree[k]) == "table" and tree[k] ~= json.null then each_place(tree[k], f) end
    end
  end
end

local first, message, code = tokenizer.from_json(known.kinds[1].json, "kinds")
if not first then
  describe("damaged tokenizer files", function()
    it("say which library the build lacks", function()
      assert.equal("unsupported", code)
      return pending(message)
    end)
  end)
  return
end

describe("a tokenizer file with another value", function()
  local seen = {}
  for n, kind in ipairs(known.kinds) do
    it("is refused or works: " .. kind.name, function()
      local tree = json.decode(kind.json)
      local at = n
      local function try(where)
        local t, why, what = tokenizer.from_json(json.encode(tree), "damaged")
        if not t then
          assert.is_true(what == "format" or what == "unsupported", where .. ": " .. tostring(what))
          assert.truthy(why:find("^damaged: ") and #why > 25 and #why < 500, where .. ": " .. why)
          return
        end
        local e, none, kind_of = t:encode "low \u{1F468}a"
        if e then t:decode(e) else assert.is_true(kind_of == "format" or kind_of == "unsupported", none) end
      end
      each_place(tree, function(change, key)
        -- what stands at the same place in another file was tried there; three values of it say enough
        local place = (tree.model.type or "") .. tostring(key)
        seen[place] = (seen[place] or 0) + 1
        for k = 1, seen[place] == 1 and #others or 3 do
          at = at % #others + 1
          local was = change(others[seen[place] == 1 and k or at])
          try(tostring(key))
          change(was)
        end
        if type(key) == "string" then
          local was = change(nil)
          try("without " .. key)
          change(was)
        end
      end)
    end)
  end
end)

describe("a tokenizer", function()
  local by_name = {}
  for _, kind in ipairs(known.kinds) do by_name[kind.name] = kind end
  local function altered(name, change)
    local tree = json.decode(by_name[name].json)
    change(tree)
    return tokenizer.from_json(json.encode(tree), "altered")
  end
  local function refused(part, name, change)
    local t, why, what = altered(name, change)
    assert.is_nil(t)
    assert.truthy(why:find(part, 1, true), why)
    assert.is_true(what == "format" or what == "unsupported")
  end

  it("says which token it has not, where it has none for the unknown", function()
    local t = assert(altered("Unigram", function(j) j.model.unk_id = json.null end))
    local function lacks(word)
      local e, why, what = t:encode(word)
      assert.is_nil(e)
      assert.equal("format", what)
      local said = ("'%s' has no token, and the tokenizer has none for the unknown"):format(word)
      assert.truthy(why:find(said, 1, true), why)
    end
    lacks "\u{1F468}"
    for _, name in ipairs { "WordLevel", "WordPiece" } do
      t = assert(altered(name, function(j) j.model.unk_token = "[none]" end))
      lacks "zzz"
    end
  end)

  it("refuses tokens that do not belong together", function()
    local with = "BPE, Metaspace first, added tokens"
    refused("has id 1, and ", with, function(j) j.added_tokens[1].content, j.added_tokens[1].id = "l", 1 end)
    refused("belongs to two tokens", with, function(j) j.added_tokens[1].id = 1 end)
    refused("a token must be a text and a score", "Unigram", function(j) j.model.vocab[2] = { "x", "y" } end)
    refused("must be one character", "BPE with byte fallback", function(j) j.decoder.decoders[4].content = "xy" end)
    refused("not base 64", "Unigram with letters of a map", function(j)
      j.normalizer.precompiled_charsmap = "A*" .. j.normalizer.precompiled_charsmap:sub(3)
    end)
    refused("prepend_scheme", with, function(j) j.pre_tokenizer.prepend_scheme = "last" end)
    refused("does not fit prepend_scheme", with, function(j) j.pre_tokenizer.add_prefix_space = false end)
    refused("the truncation strategy", "WordPiece", function(j) j.truncation.strategy = "Middle" end)
    for name in pairs { truncation = 1, padding = 1 } do
      for _, v in ipairs { true, 3, "x", json.decode "[1]" } do
        refused(name .. " must be an object", with, function(j) j[name] = v end)
      end
    end
    for _, v in ipairs { true, 3, json.decode "[]", { a = 1 } } do -- a word that is no text is not as if it were absent
      refused("must be a text", "WordPiece", function(j) j.truncation.strategy = v end)
      refused("must be a text", "WordPiece", function(j) j.truncation.direction = v end)
      refused("must be a text", with, function(j) j.version = v end)
      refused("the padding strategy", with, function(j) j.padding = { strategy = v } end)
    end
    refused("the padding strategy 'Longest'", with, function(j) j.padding = { strategy = "Longest" } end)
    refused("is not in the vocabulary", "BPE with byte fallback", function(j)
      j.post_processor.special_tokens["<s>"].ids = { 1 << 20 }
    end)
  end)

  it("cuts down to nothing, and not below", function()
    local t = assert(tokenizer.from_json(by_name.WordPiece.json, "WordPiece"))
    assert.same({ 3, 4 }, t("low lower", { max_length = 2, padding = false }).input_ids:totable())
    assert.same({ 3, 4, 4 }, t("low lower", { pair = "a", max_length = 3, padding = false, truncation = true })
      .input_ids:totable())
    near.fails("too many are there for max_length", t, "low lower low lower", { pair = "a", truncation = "only_second",
      max_length = 6 })
  end)

  it("orders long runs of combining marks as short ones", function()
    for _, form in ipairs { "NFD", "NFKD", "NFC" } do
      local t = assert(tokenizer.from_json(by_name['{"type": "' .. form .. '"}'].json, form))
      for _, n in ipairs { 5, 31, 40, 90 } do
        local marks = {} -- classes 230, 220 and 1, mixed
        for i = 1, n do marks[i] = ({ "\u{301}", "\u{323}", "\u{334}" })[i % 3 + 1] end
        local got = table.concat(t("x" .. table.concat(marks), { full = true }).tokens)
        local want = { "x" }
        for k = 3, 1, -1 do
          for i = 1, n do
            if i % 3 + 1 == k then want[#want + 1] = marks[i] end
          end
        end
        assert.equal(table.concat(want), got, form .. " " .. n)
      end
    end
  end)
end)
