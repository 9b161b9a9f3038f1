-- SPDX-License-Identifier: MIT
-- Expressions of tokenizer.json mean what Oniguruma makes of them in its Ruby dialect, where PCRE2 reads them
-- otherwise; and added tokens in blanks which another has taken. What is wanted was asked of the tokenizers library.

local tokenizer = require "perilune.data.tokenizer"

local function quoted(s)
  return '"' .. s:gsub('[%c"\\]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
end

-- A tokenizer that knows no character: each becomes the token "u", at its place.
local function open(steps, added)
  return tokenizer.from_json(([[{"version":"1.0","truncation":null,"padding":null,"added_tokens":[%s],
    "normalizer":%s,"pre_tokenizer":%s,"post_processor":null,"decoder":null,"model":{"type":"BPE","dropout":null,
    "unk_token":"u","continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,
    "ignore_merges":false,"vocab":{"u":0},"merges":[]}}]]):format(added or "", steps.normalizer or "null",
    steps.pre or "null"), "expressions")
end
local function removing(regex)
  return open { normalizer = ('{"type":"Replace","pattern":{"Regex":%s},"content":""}'):format(quoted(regex)) }
end
local function splitting(regex)
  return open { pre = ('{"type":"Split","pattern":{"Regex":%s},"behavior":"Isolated","invert":false}')
    :format(quoted(regex)) }
end

local first, message, code = removing "a"
if not first then
  describe("expressions of tokenizers", function()
    it("say which library the build lacks", function()
      assert.equal("unsupported", code)
      return pending(message)
    end)
  end)
  return
end

-- The places of the characters that an expression leaves.
local function left(regex, text)
  local e = assert(assert(removing(regex))(text, { full = true, index_base = 0 }))
  return e.offset_mapping:numel() > 0 and e.offset_mapping:select(2, 1):totable() or {}
end

-- The pieces into which an expression cuts a text.
local function pieces(regex, text)
  local e = assert(assert(splitting(regex))(text, { full = true, index_base = 0 }))
  local out, last = {}, nil
  local words, at = e.word_ids:totable(), e.offset_mapping:totable()
  for k, word in ipairs(words) do
    local c = text:sub(utf8.offset(text, at[k][1] + 1), utf8.offset(text, at[k][2] + 1) - 1)
    if word == last then out[#out] = out[#out] .. c else out[#out + 1] = c end
    last = word
  end
  return table.concat(out, "|")
end

describe("expressions of tokenizers", function()
  it("have POSIX's classes by properties of all characters", function()
    local list = {}
    for c = 1, 0x2fff do list[#list + 1] = utf8.char(c) end
    for c = 0xfb00, 0xffee do list[#list + 1] = utf8.char(c) end
    local text = table.concat(list)
    local word = [[\p{L}\p{Nl}\p{M}\p{Nd}\p{Pc}ⓐ-ⓩⒶ-Ⓩ]]
    for class, same in pairs { alpha = [[\p{Alphabetic}]], alnum = [[\p{Alphabetic}\p{Nd}]], punct = [[\p{P}\p{S}]],
      upper = [[\p{Uppercase}]], lower = [[\p{Lowercase}]], blank = [[\t\p{Zs}]], digit = [[\p{Nd}]], word = word,
      graph = [[\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Co}]], cntrl = [[\p{Cc}]] } do
      assert.same(left("[" .. same .. "]", text), left("[[:" .. class .. ":]]", text), class)
      assert.same(left("[^" .. same .. "]", text), left("[^[:" .. class .. ":]]", text), class)
    end
    for _, class in ipairs { "alpha", "upper", "lower" } do
      assert.same(left("[^[:" .. class .. ":]]", text), left("[[:^" .. class .. ":]]", text), class)
    end
    assert.same({ 0, 3 }, left("[[:punct:]x]", "a€xb👍+"))
  end)

  it("have Ruby's dialect", function()
    for _, c in ipairs {
      { [[\p{N}{1,3}+]], "123456789", "123456789" }, { [[\p{N}{1,3}]], "123456789", "123|456|789" },
      { [[(?:\d){2}+]], "12345", "1234|5" }, { [[[0-9]{1,2}?]], "123", "1|2|3" },
      { [[a{,2}]], "aaab", "aa|a|b" }, { [[x{2}?y]], "xxxy", "x|xxy" }, { [[x{2}?y]], "xy", "x|y" },
      { [[x{y]], "x{y.", "x{y|." }, { [[\x{41}+]], "AAb", "AA|b" }, { [[\u0041{1,2}]], "AAAb", "AA|A|b" },
      { [[(?m)a.b]], "a\nb", "a\nb" }, { [[a.b]], "a\nb", "a\nb" }, { [[(?m:a.)b|c]], "a\nbc", "a\nb|c" },
      { [[a.]], "a\nab", "a\n|ab" }, { [[\v]], "a\v\n", "a|\v|\n" }, { [[\pL]], "apLb", "a|pL|b" },
      { [[\b]], "ab\u{301}c d", "ab\u{301}c| |d" }, { [[\B]], "ab\u{301}", "a|b|\u{301}" },
      { [[\b]], "a\u{203f}b.c", "a\u{203f}b|.|c" }, { [[(?i:'s|'ll)]], "it'S", "it|'S" },
      { [[((a)|(b)){1,2}+c]], "abac", "abac" },
    } do
      assert.equal(c[3], pieces(c[1], c[2]), c[1])
    end
  end)

  it("repeat an atom whole, however it is written", function()
    local text = "a aa aaa é éé ééé 日日日 ²² AAAA \u{1F389}\u{1F389} \t\t\t [[[ }}} {{{"
    for _, atom in ipairs { "a", "é", "日", "²", "🎉", [[\x41]], [[\x{41}]], [[\u00e9]],
      [[\101]], [[\cI]], [[\é]],
      [[\日]], [=[\[]=], [[\t]], [[\p{Lu}]], [[\p{L}]], [[\s]], [[\w]], [[\S]], ".", "[aé]",
      "[^a]", "[[:alpha:]]", "(é)",
      "(?:é|日)", "(?i:a)", [[(?<n>é)\k<n>]], [[(a)\1]], [[\}]], "}" } do
      local body, last = atom:match "^(%(.*%))(\\.+)$"
      body, last = body or "", last or atom
      for _, quantifier in ipairs { "{2}+", "{2}?", "{1,2}+", "{,2}+", "{2,}+" } do
        local inner = quantifier:sub(1, -2):gsub("{,", "{0,")
        assert.equal(pieces(("%s(?:(?:%s)%s)%s"):format(body, last, inner, quantifier:sub(-1)), text),
          pieces(atom .. quantifier, text), atom .. quantifier)
      end
    end
  end)

  it("have superscripts and fractions in \\w alone, not in a class with it", function()
    assert.equal("a²", pieces([[\w+]], "a²"))
    assert.equal("a|²|½", pieces([[[\w]+|½]], "a²½"))
    assert.equal("a|²½|b", pieces([[[^\w]+]], "a²½b"))
    assert.equal("a|²½|b", pieces([[[\w']++]], "a²½b"))
  end)

  it("are refused where PCRE2 has no words for them", function()
    for _, regex in ipairs { "(?i)ss", "(?i:straße)", "(?i)ﬁ", "(?s)a.", "[a[b]]", "[a-c&&b]", [[\xc3\xa9]],
      [=[[\xa0]]=], [[\303\251]], [=[[[:^punct:]]]=] } do
      local t, why, kind = splitting(regex)
      assert.is_nil(t, regex)
      assert.equal("unsupported", kind)
      assert.truthy(why:find("which is not supported", 1, true), why)
    end
  end)
end)

describe("added tokens in blanks", function()
  local function opened(content, lstrip, rstrip)
    return assert(open({}, ([[{"id":1,"content":%s,"single_word":false,"lstrip":%s,"rstrip":%s,"normalized":false,
      "special":true}]]):format(quoted(content), lstrip, rstrip)))
  end
  it("are tokens each, where they take the blanks behind them", function()
    for n = 1, 6 do
      local text = ("\n"):rep(n)
      assert.equal(n, opened("\n", false, true):encode(text):numel())
      assert.equal(1, opened("\n", true, true):encode(text):numel())
      assert.equal(n, opened("\n", true, false):encode(text):numel())
      assert.equal(n, opened("\n", false, false):encode(text):numel())
      assert.equal(n // 2, opened("  ", false, true):encode((" "):rep(n // 2 * 2)):numel())
    end
  end)
  it("are found in a long run without looking at it again and again", function()
    local started = os.clock()
    assert.equal(200000, opened("\n", false, true):encode(("\n"):rep(200000)):numel())
    assert.is_true(os.clock() - started < 20)
  end)
end)
