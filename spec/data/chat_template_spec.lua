-- SPDX-License-Identifier: MIT
-- Chat templates against what Jinja makes of them (spec/fixtures/text/make_chat_templates.py) and, where
-- ../shared/models is, against transformers; templates that mean harm.

local T = require "perilune"
local near = require "spec.support.near"
local fails = near.fails
local known = require "spec.fixtures.text.chat_templates"

local function compile(source, options) return assert(T.data.chat_template(source, options)) end
local function refused(source, text, variables, options)
  local t, why, code = T.data.chat_template(source, options)
  local got
  if t then got, why, code = t:render(variables) end
  assert.is_nil(got, source)
  assert.equal("format", code)
  assert.truthy(why:find(text, 1, true), why)
end

describe("data.chat_template", function()
  it("renders what Jinja renders", function()
    for _, case in ipairs(known.cases) do
      local t, why = T.data.chat_template(case.template)
      local got
      if t then got, why = t:render(known.context) end
      if case.error then
        assert.is_nil(got, case.template)
        assert.truthy(why:find("chat_template: line 1: ", 1, true), why)
      else
        assert.equal(case.text, got, case.template .. ": " .. tostring(why))
      end
    end
  end)

  it("knows the characters of all scripts as Python does", function()
    if T.core.character(0x3B1) == "Cn" then return pending "a build without utf8proc" end
    local characters, wrong = require "spec.fixtures.text.chat_characters", {}
    for _, row in ipairs(characters.rows) do
      local t = compile("{{ " .. row[1] .. " }}")
      for i, text in ipairs(characters.texts) do
        local got, why = t:render { x = text }
        if got ~= row[2][i] then
          wrong[#wrong + 1] = ("%s of %q: %q, and %q is wanted"):format(row[1], text, got or why, row[2][i])
        end
      end
    end
    assert.equal("", table.concat(wrong, "\n"))
  end)

  -- Nothing that Jinja refuses is taken, and what both take is the same text. A refusal by name where Jinja writes
  -- something (an order of operations that nobody needs) is allowed, but must stay rare.
  it("takes of every filter, method and test what Jinja takes", function()
    local calls = require "spec.fixtures.text.chat_calls"
    local tried, taken, refusals = 0, 0, 0
    for _, call in ipairs(calls.calls) do
      for i, row in ipairs(call.table) do
        local k = 0
        for which in row:gmatch "%d+" do
          k = k + 1
          local args = calls.arguments[k]
          local source = call.form:gsub("%%s", function() return "\0" end)
          source = source:gsub("%z", calls.values[i]:gsub("%%", "%%%%"), 1)
          source = source:gsub("%z", ("(" .. args .. ")"):gsub("%%", "%%%%"), 1)
          local want = call.results[tonumber(which)]
          local t = T.data.chat_template(source)
          local got, why
          if t then got, why = t:render(calls.context) end
          tried = tried + 1
          if want then taken = taken + 1 end
          if got then assert.equal(want, got, source) elseif want then
            refusals = refusals + 1
            assert.truthy(not why or not why:find("attempt to", 1, true), source)
          end
        end
      end
    end
    assert.is_true(tried > 20000 and refusals < taken // 8, refusals .. " of " .. taken)
  end)

  it("takes tables and JSON texts, which keep the order of keys", function()
    local t = compile "{{ d | tojson }}{{ x }}"
    assert.equal('{"b": 1, "a": [2.5, null]}None', t:render('{"d": {"b": 1, "a": [2.5, null]}}', '{"x": null}'))
    assert.equal('{"role": 1, "a": 3, "b": 2}7', t:render({ d = { a = 3, b = 2, role = 1 }, x = 7 }))
    assert.equal('"\u{1F600}\\"\\n"', compile "{{ s | tojson }}":render [[{"s": "\ud83d\ude00\"\n"}]])
    fails("malformed JSON: line 1: a value is expected", t.render, t, '{"d": }')
    fails("variables must be a table or JSON text", t.render, t, 3)
  end)

  it("says where a template fails", function()
    refused("a\nb\n{% if x %}\n", "line 3: TemplateSyntaxError: Unexpected end of template")
    refused("\n\n{{ x.y }}", "line 3: UndefinedError: 'x' is undefined")
    refused("{{ 1 }}\n{% frob %}", "line 2: TemplateSyntaxError: Encountered unknown tag 'frob'")
    refused("{% include 'x' %}", "'include' is not supported")
    refused("{{ 'é'.encode() }}", "str.encode: bytes are not supported")
    refused("{{ s }}", "mine: line 1: ", { s = print }, { name = "mine" })
    fails("the source must be a string", T.data.chat_template, 3)
    fails("max_steps must be a whole number", T.data.chat_template, "", { max_steps = 0 })
  end)

  it("drops no argument of a filter, test, method or macro", function()
    local library = require "perilune.jinja.filters"
    local any = { map = true, select = true, reject = true, selectattr = true, rejectattr = true, format = true }
    local many, tried = ("'a', "):rep(9), 0
    local function each(form, name, anything)
      if anything then return end
      tried = tried + 2
      refused(form:format(name, many), "takes at most")
      refused(form:format(name, "foo=1"), "takes no keyword argument 'foo'")
    end
    for name in pairs(library.filters) do each("{{ 'x' | %s(%s) }}", name, any[name]) end
    for name in pairs(library.tests) do
      if name:find "^%a" then each("{{ 'x' is %s(%s) }}", name) end
    end
    for value, methods in pairs { ["'x'"] = "upper strip split rsplit splitlines replace startswith find count join "
      .. "zfill center isdigit expandtabs title partition removeprefix", ["{'a': 1}"] = "items keys values get copy",
      ["[1]"] = "index count copy" } do
      for name in methods:gmatch "%S+" do each("{{ " .. value .. ".%s(%s) }}", name) end
    end
    assert.is_true(tried > 180, tried)
    refused("{{ 'x' | replace('a') }}", "the argument new is missing")
    refused("{{ 'x' | batch(2, linecount=3) }}", "multiple values")
    refused("{{ '%s' | format }}", "not enough arguments")
    refused("{{ 1 is divisibleby }}", "the argument other is missing")
    local m = "{% macro m(x, y=2) %}{{ x }}{{ y }}{% endmacro %}"
    refused(m .. "{{ m(1, z=3) }}", "macro 'm' takes no keyword argument 'z'")
    refused(m .. "{{ m(1, 2, 3) }}", "takes not more than 2")
    refused(m .. "{% call m(1) %}a{% endcall %}", "does not call its caller")
    assert.equal("1(3,){'z': 4}", compile(
      "{% macro m(x) %}{{ x }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 3, z=4) }}"):render {})
    refused("{{ 'x' +}}", "TemplateSyntaxError")
    refused("{{ 03 }}", "begins with 0")
    -- what Jinja prints
    assert.equal("4 1 -1 True False 1 a       b  c", compile([[{{ 'abcabc'.find('b', 2) }}
      {{- ' ' }}{{ 'abcabc'.find('b', -5, 3) }} {{ ''}}
      {{- '' }}{{ 'abc'.find('a', 1) }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.endswith('c', 0, 2) }}
      {{- ' ' }}{{ 'aba'.count('a', 1) }} {{ 'a\tb'.expandtabs() ~ ' ' ~ '\tc'.expandtabs(1) }}]]):render {})
  end)

  it("reaches nothing but what it is given", function()
    for _, name in ipairs { "os", "io", "require", "_G", "package", "load", "string", "debug" } do
      assert.equal("False", compile("{{ " .. name .. " is defined }}"):render {})
    end
    assert.equal("|||", compile "{{ s.__class__ }}|{{ s['__len'] }}|{{ d._x }}|{{ d.keys.call }}":render { s = "x",
      d = { a = 1 } })
    refused("{{ s.__class__.__mro__ }}", "unsafe", { s = "x" })
    refused("{{ l.append(1) }}", "SecurityError", { l = { 1 } })
    local list = { 1, 2 }
    compile "{% set l = l + [3] %}{{ l | sort(reverse=true) }}":render { l = list }
    assert.same({ 1, 2 }, list)
  end)

  it("is bounded in steps, depth and size", function()
    local many = {
      { "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 100000 steps" },
      { "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls inside each other" },
      { "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}", "steps" },
      { "{{ 'x' * 99999999999 }}", "steps" },
      { "{{ [0] * 99999999999 }}", "steps" },
      { "{{ 'x' * 9999999999999999 }}", "MemoryError" },
      { "{{ range(999999999) }}", "Range too big" },
      { "{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "steps" },
      { "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "inside too many others" },
      { "{% set ns = namespace(s=[1]) %}{% for i in range(50) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "steps" },
      { "{% set ns = namespace(s=[1]) %}{% for i in range(50) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
        .. "{{ ns.s == [] + ns.s }}{{ ns.s | tojson }}", "steps" },
      { "{% set b = 'x' * 9999 %}{% for i in range(9999) %}{{ b }}{% endfor %}", "more than 16777216 bytes" },
      { "{{ ('x' * 99999) | replace('x', 'y' * 99999) }}", "steps" },
      { "{{ ('x' * 99999).replace('', 'y' * 99999) }}", "steps" },
      { "{{ range(99999) | join('y' * 99999) }}", "steps" },
      { "{{ ('x\n' * 99999) | indent('y' * 99999) }}", "steps" },
      { "{{ 'x' | center(99999999999) }}", "steps" },
      { "{{ '%999999d' % 1 }}", "a width of more than" },
      { "{{ '{:999999}'.format(1) }}", "a width of more than" },
      { "{% for a in [[]] recursive %}{{ loop([[]]) }}{% endfor %}", "calls inside each other" },
      { "{{ 9 ** 9 ** 9 }}", "OverflowError" },
      { "{{ 9223372036854775807 + 1 }}", "OverflowError" },
      { ("("):rep(999) .. "1" .. (")"):rep(999), nil },
      { "{{ " .. ("("):rep(999) .. "1" .. (")"):rep(999) .. " }}", "levels inside each other" },
      { "{{ " .. ("not "):rep(9999) .. "1 }}", "levels inside each other" },
      { ("{% if true %}"):rep(999) .. ("{% endif %}"):rep(999), "levels inside each other" },
      { "{{ " .. ("-"):rep(9999) .. "1 }}", "levels inside each other" },
    }
    for _, case in ipairs(many) do
      local begin = os.clock()
      if case[2] then refused(case[1], case[2], {}, { max_steps = 100000 }) end
      assert.is_true(os.clock() - begin < 10, case[1])
    end
    local loop = {}
    loop.x = loop
    refused("{{ loop }}", "inside itself", { m = loop })
    refused("{% for i in range(10) %}{% endfor %}", "more than 5 steps", {}, { max_steps = 5 })
    refused("{{ 'abc' }}", "more than 2 bytes", {}, { max_bytes = 2 })
  end)

  it("ends for any damaged template", function()
    local pieces = {}
    for _, case in ipairs(known.cases) do
      for piece in case.template:gmatch "[%w_]+%s*|?[^%w]?" do pieces[#pieces + 1] = piece end
    end
    local seed = 7
    local function random(n)
      seed = (seed * 1103515245 + 12345) % 2147483648
      return seed // 65536 % n + 1
    end
    local whole = 0
    for _ = 1, tonumber(os.getenv "PERILUNE_FUZZ_CHAT") or 3000 do
      local source = known.cases[random(#known.cases)].template
      for _ = 1, random(3) do
        local at = random(#source + 1)
        local kind = random(3)
        local sign = ("{}%#|-([.'"):sub(random(10), -1):sub(1, 1)
        local piece = kind == 1 and pieces[random(#pieces)] or kind == 2 and sign or ""
        source = source:sub(1, at - 1) .. piece .. source:sub(at + random(3) - 1)
      end
      local t, why, code = T.data.chat_template(source, { max_steps = 20000 })
      local got
      if t then got, why, code = t:render(known.context) end
      if got then whole = whole + 1
      else
        assert.equal("format", code)
        assert.truthy(why:find("^chat_template: line %d+: "), why)
        assert.is_nil(why:find("%.lua:%d+:"), source .. "\n" .. why) -- an error of this code, not of the template
      end
    end
    assert.is_true(whole > 100)
  end)
end)

describe("apply_chat_template", function()
  local source = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    .. "{% if tools %}{{ tools | length }}{% endif %}{% if add_generation_prompt %}<a>{% endif %}{{ mood }}"
  local tok = T.data.train_bpe { 300, text = "user assistant", special = { "<user>" } }
  if not tok then return end
  local chat = { { role = "user", content = "Hi" } }

  it("gives text or ids", function()
    local function text(o)
      o.chat_template, o.tokenize = source, false
      return tok:apply_chat_template(chat, o)
    end
    assert.equal("<user>Hi</>", text {})
    assert.equal("<user>Hi</><a>", text { add_generation_prompt = true })
    assert.equal("<user>Hi</>2calm", text { tools = { {}, {} }, mood = "calm" })
    assert.equal("<user>Hi", text { continue_final_message = true })
    local ids = tok:apply_chat_template(chat, { chat_template = source })
    assert.same(tok:encode("<user>Hi</>"):totable(), ids:totable())
    assert.equal(0, tok:apply_chat_template(chat, { chat_template = source, index_base = 0 })[1]:item())
    fails("did you mean add_generation_prompt", text, { add_generation_promt = true })
    fails("has no chat template", tok.apply_chat_template, tok, chat, {})
    fails("message 1 must be a table", tok.apply_chat_template, tok, { 3 }, { chat_template = source })
    fails("messages must be a list or JSON text", tok.apply_chat_template, tok, 3, { chat_template = source })
    assert.equal("format", select(3, tok:apply_chat_template(chat, { chat_template = "{{ x.y }}" })))
  end)

  it("finds what stands beside the file", function()
    local dir = os.tmpname()
    os.remove(dir)
    assert(os.execute("mkdir " .. dir))
    assert(tok:save(dir .. "/tokenizer.json"))
    local function write(name, content)
      local f = assert(io.open(dir .. "/" .. name, "wb"))
      f:write(content)
      f:close()
    end
    write("tokenizer_config.json", [[{"bos_token": {"content": "<s>"}, "chat_template": [{"name": "default",
      "template": "{{ bos_token }}D"}, {"name": "tool_use", "template": "T"}]}]])
    local t = assert(T.data.tokenizer(dir))
    assert.equal("<s>D", t:apply_chat_template(chat, { tokenize = false }))
    assert.equal("T", t:apply_chat_template(chat, { tokenize = false, tools = { { name = "f" } } }))
    write("chat_template.jinja", "J{{ bos_token }}")
    assert.equal("J<s>", assert(T.data.tokenizer(dir .. "/tokenizer.json")):apply_chat_template(chat,
      { tokenize = false }))
    write("tokenizer_config.json", "{")
    assert.equal("format", select(3, T.data.tokenizer(dir)))
    os.execute("rm -r " .. dir)
    assert.equal("io", select(3, T.data.tokenizer(dir)))
  end)

  it("heeds what tokenizer_config.json says of tokens and calls, as transformers does", function()
    local dir = os.tmpname()
    os.remove(dir)
    assert(os.execute("mkdir " .. dir))
    local function write(name, content)
      local f = assert(io.open(dir .. "/" .. name, "wb"))
      f:write(content)
      f:close()
    end
    local plain = assert(T.data.train_bpe { vocab_size = 260, text = "aaaa bbbb", special = { "<s>", "</s>" } })
    local n, a, b = #plain, plain:id("a", { index_base = 0 }), plain:id("b", { index_base = 0 })
    write("tokenizer.json", (plain.json:gsub('"added_tokens":%b[]', '"added_tokens":[]')))
    local function opened(config)
      write("tokenizer_config.json", config)
      return T.data.tokenizer(dir, { index_base = 0 })
    end
    local function ids(t, text) return t:encode(text):totable() end
    assert.equal(5, #ids(assert(opened "{}"), "a<s>b")) -- a word of the model, and not a token of its own
    local t = assert(opened [[{"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": true},
      "padding_side": "left", "truncation_side": "left", "pad_token": "</s>"}]])
    assert.same({ a, 0, b }, ids(t, "a<s>b"))
    assert.same({ a, 1, b }, ids(t, "a  </s>b"))
    assert.equal("ab", t:decode { a, 0, b })
    assert.same({ { 1, 1, a }, { a, b, a } }, t({ "a", "aba" }, { padding = true }).input_ids:totable())
    assert.same({ b, a }, t("aba", { truncation = true, max_length = 2 }).input_ids:totable())
    assert.same({ b, a }, t("aba", { max_length = 2 }).input_ids:totable())
    assert.same({ { 1, 1, a }, { a, b, a } }, t({ "a", "aba" }, { padding = true, max_length = 2 }).input_ids:totable())
    fails("more than the 2 that rows are padded to", t, { "a", "aba" }, { padding = "max_length", max_length = 2 })
    assert.same({ { a, 7 }, { a, b } }, t({ "a", "aba" }, { padding = true, pad_id = 7, padding_side = "right",
      truncation = true, max_length = 2, truncation_side = "right" }).input_ids:totable())
    local classes = '{"tokenizer_class": "%s", "add_prefix_space": %s}'
    for _, c in ipairs { { "GPT2Tokenizer", "true", 2 }, { "RobertaTokenizerFast", "false", 1 },
      { "BlenderbotTokenizer", "null", 2 }, { "WhisperTokenizer", "null", 1 },
      { "PreTrainedTokenizerFast", "true", 1 } } do
      assert.equal(c[3], #ids(assert(opened(classes:format(c[1], c[2]))), "a"), c[1])
    end
    local new = '{"added_tokens_decoder": {"%d": {"content": "<new>", "special": %s}}, "split_special_tokens": %s}'
    t = assert(opened(new:format(n, "true", "false")))
    assert.same({ a, n, b }, ids(t, "a<new>b"))
    assert.equal(n + 1, #t)
    assert.same({ a, n, b }, ids(assert(opened(new:format(n, "false", "true"))), "a<new>b"))
    t = assert(opened(new:format(n, "true", "true")))
    assert.equal(7, #ids(t, "a<new>b"))
    assert.same({ a, n, b }, t:encode("a<new>b", { split_special = true }):totable())
    local none, why, code = opened(new:format(n + 1, "true", "true"))
    assert.same({ nil, "unsupported" }, { none, code })
    assert.truthy(why:find('"<new>" (' .. n + 1 .. ")", 1, true), why)
    -- tokens without an id stand behind all others: those of a role first, in an order of their own
    local without = [[{"pad_token": "<pad>", "extra_special_tokens": {}, "unk_token": "<unk>", "image_token": "<image>",
      "additional_special_tokens": ["<x>", "<y>"]%s}]]
    t = assert(opened(without:format ""))
    assert.same({ n, n + 1, n + 2, n + 3, n + 4 }, ids(t, "<unk><pad><image><x><y>"))
    assert.same({ { a, n + 1, n + 1 }, { a, b, a } }, t({ "a", "aba" }, { padding = true }).input_ids:totable())
    t = assert(opened(without:format(new:gsub("^{", ", "):gsub("}$", ""):format(n, "true", "false"))))
    assert.same({ n, n + 1, n + 5 }, ids(t, "<new><unk><y>"))
    write("added_tokens.json", ('{"<y>": %d, "<more>": %d, "<x>": %d}'):format(n + 1, n + 2, n))
    t = assert(opened(without:format ""))
    assert.same({ n, n + 1, n + 2, n + 3 }, ids(t, "<x><y><more><unk>"))
    assert.equal("", t:decode { n, n + 3 })
    assert.equal("<more>", t:decode { n + 2 })
    os.execute("rm -r " .. dir)
  end)

  local root = (os.getenv("PERILUNE_ROOT") or ".") .. "/../shared/models/"
  for _, name in ipairs { "chatml", "headers", "headings", "inst", "options", "signatures", "tags", "thoughts", "tools",
    "turns" } do
    it("is exact for ../shared/models: " .. name, function()
      local cases = loadfile(root .. "tok/chat/" .. name .. "/cases.lua")
      if not cases then return pending "../shared/models is not here" end
      cases = cases()
      tok.chat = { templates = { default = cases.template }, special = cases.special }
      for _, row in ipairs(cases.cases) do
        local o = { tokenize = false }
        for k in pairs(row.lua.options) do -- values by JSON: the order of keys counts
          local value = require("perilune.jinja").from_json(row.options)
          o[k] = value.map[k]
        end
        local got, why = tok:apply_chat_template(row.messages, o)
        if row.error then assert.is_nil(got) else assert.equal(row.text, got, why) end
      end
    end)
  end

  it("is exact for single features and a whole folder", function()
    local cases = loadfile(root .. "tok/chat/jinja.lua")
    if not cases then return pending "../shared/models is not here" end
    cases = cases()
    for _, row in ipairs(cases.cases) do
      local t, why = T.data.chat_template(row.template)
      local got
      if t then got, why = t:render(cases.context, cases.special) end
      if row.error then assert.is_nil(got, row.template) else assert.equal(row.text, got, why) end
    end
    local t = assert(T.data.tokenizer(root .. "hf/llama_chat"))
    for _, row in ipairs(dofile(root .. "hf/llama_chat/chat.lua").cases) do
      local o = { add_generation_prompt = true, tokenize = false }
      assert.equal(row.text, t:apply_chat_template(row.messages, o))
      o.tokenize, o.index_base = nil, 0
      assert.same(row.ids, t:apply_chat_template(row.messages, o):totable())
    end
  end)
end)
