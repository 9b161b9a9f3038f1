-- SPDX-License-Identifier: MIT
-- perilune generate and perilune chat: the same text as T.models.generate, texts that end it, wrong models and
-- settings, conversations from a pipe and on a terminal, Ctrl-C.

local T = require "perilune"
local talker = require "spec.models.talker"
local term = require "spec.support.terminal"
local text = require "perilune.models.text"
local q = term.quote

local missing = term.missing "perilune"

describe("text that is written token by token", function()
  local model, ids

  setup(function()
    local dir, remove, net, tokenizer = talker.make()
    model = assert(text.open(dir, {}))
    remove()
    model.wanted = talker.greedy(net, tokenizer, assert(text.ids(model, "the quick ")), 60)
    ids = text.ids(model, "the quick ")
  end)
  teardown(function() model = nil end)

  local function reply(stops, o)
    local pieces = {}
    local reason, n = text.reply(model, ids, o or { max_new_tokens = 60 }, stops, function(p)
      pieces[#pieces + 1] = p
    end)
    return table.concat(pieces), reason, n
  end

  it("is the whole text", function()
    local said, reason, n = reply()
    assert.equal(model.wanted, said)
    assert.truthy(reason == "length" and n == 60 or reason == "stop" and n < 60)
  end)

  it("ends before the first of several texts, wherever tokens begin and end", function()
    for at = 1, #model.wanted - 4 do
      for size = 1, 9, 2 do
        local stop = model.wanted:sub(at, at + size)
        local first = model.wanted:find(stop, 1, true)
        local said, reason = reply({ "never comes", stop }, { max_new_tokens = 60 })
        assert.equal(model.wanted:sub(1, first - 1), said)
        assert.equal("stop", reason)
        if at > 40 then break end
      end
      if at > 60 then break end
    end
    assert.equal(model.wanted, (reply { "never comes", model.wanted .. "x", model.wanted:sub(-3) .. "~" }))
  end)

  it("is cut where nobody wants more", function()
    local n = 0
    local reason, made = text.reply(model, ids, { max_new_tokens = 60 }, nil, function()
      n = n + 1
      return n < 3
    end)
    assert.same({ "cut", 3, 3 }, { reason, made, n })
  end)
end)

describe("perilune generate", function()
  if missing then
    it("is built", function() pending(missing) end)
    return
  end
  local dir, remove, net, tokenizer
  local function perilune(args, input)
    return term.shell(("printf %%s %s | XDG_STATE_HOME=%s/state %s %s"):format(q(input or ""), q(dir), q(term.command),
      args))
  end
  local function ids_of(s) return tokenizer:encode(s):totable() end

  setup(function() dir, remove, net, tokenizer = talker.make() end)
  teardown(function()
    remove()
    net, tokenizer = nil, nil
  end)

  it("writes what T.models.generate makes", function()
    for _, prompt in ipairs { "the quick brown", "hällo", "x" } do
      local want = talker.greedy(net, tokenizer, ids_of(prompt), 30) .. "\n"
      assert.same({ want, 0 }, { perilune(("generate --max-new-tokens 30 %s %s"):format(q(dir), q(prompt))) })
      assert.same({ want, 0 }, { perilune(("generate --temperature 0 --top-k 3 --max-new-tokens=30 %s -"):format(
        q(dir)), prompt) })
      local stop = want:sub(5, 8)
      assert.equal(want:sub(1, want:find(stop, 1, true) - 1) .. "\n",
        (perilune(("generate --stop '~~' --stop %s --max-new-tokens 30 %s %s"):format(q(stop), q(dir), q(prompt)))))
    end
  end)

  it("draws the same with the same seed", function()
    local function drawn(seed)
      return (perilune(("generate --temperature 1.5 --top-p 0.95 --seed %d --max-new-tokens 30 %s the"):format(seed,
        q(dir))))
    end
    assert.equal(drawn(1), drawn(1))
    assert.not_equal(drawn(1), drawn(2))
    local free = function() return (perilune(("generate --temperature 1.5 %s the"):format(q(dir)))) end
    assert.not_equal(free(), free())
  end)

  it("says what is wrong with a model or a setting", function()
    local function said(args, status)
      local out, code = perilune(args)
      assert.equal(status, code, out)
      assert.falsy(out:find "traceback", out)
      return out
    end
    assert.truthy(said("generate /nowhere x", 1):find("perilune generate: /nowhere", 1, true))
    assert.truthy(said(("generate --tokenizer /nowhere %s x"):format(q(dir)), 1):find("/nowhere", 1, true))
    assert.truthy(said(("generate %s ''"):format(q(dir)), 0))
    assert.truthy(said(("generate --top-k 3 --min-p 1 --device cuda:99 %s x"):format(q(dir)), 1):find "cuda")
    local bert, gone = term.folder()
    finally(gone)
    assert(T.models.save(T.models.BERT { vocab_size = #tokenizer, hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 2, intermediate_size = 8 }, bert))
    os.execute(("cp %s/tokenizer.json %s"):format(q(dir), q(bert)))
    assert.truthy(said(("generate %s x"):format(q(bert)), 1):find("it makes no text", 1, true))
    assert.truthy(said(("chat %s"):format(q(bert)), 1):find("it makes no text", 1, true))
  end)

  -- What the model replies to messages of the user, with what it said before.
  local function conversation(system, ...)
    local messages, out = { system and { role = "system", content = system } }, {}
    for _, line in ipairs { ... } do
      messages[#messages + 1] = { role = "user", content = line }
      out[#out + 1] = talker.greedy(net, tokenizer, tokenizer:apply_chat_template(messages,
        { add_generation_prompt = true }):totable(), 12)
      messages[#messages + 1] = { role = "assistant", content = out[#out] }
    end
    return table.concat(out, "\n") .. "\n"
  end

  it("talks, from a pipe", function()
    local function chat(options, input)
      return perilune(("chat --max-new-tokens 12 %s %s"):format(options, q(dir)), input)
    end
    assert.equal(conversation(nil, "one", "two", "three"), (chat("", "one\n\ntwo\nthree\n")))
    assert.equal(conversation("be fox", "one", "two"), (chat("--system 'be fox'", "one\ntwo")))
    assert.equal(conversation("dog", "one") .. conversation("dog", "two") .. conversation(nil, "one"),
      (chat("", "/system dog\none\n/reset\ntwo\n/system\none\n/exit\nthree\n")))
    local out, status = chat("", "/nope\none\n")
    assert.same({ "perilune chat: there is no command /nope; /help lists them\n" .. conversation(nil, "one"), 0 },
      { out, status })
    out, status = chat("", ("fox "):rep(300) .. "\none\n") -- what does not fit is not said
    assert.equal(1, status)
    assert.truthy(out:find("context 256; /reset begins anew", 1, true), out)
    assert.truthy(out:find(conversation(nil, "one"), 1, true), out)
    assert.not_equal((chat("--temperature 2 --seed 1", "one\n")), (chat("--temperature 2 --seed 2", "one\n")))
  end)

  it("wants a chat template, and takes one", function()
    local plain, gone = talker.make({}, false)
    finally(gone)
    local out, status = perilune("chat " .. q(plain), "one\n")
    assert.equal(1, status)
    assert.truthy(out:find("has no chat template; --template FILE", 1, true), out)
    term.write(plain .. "/t.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}")
    out, status = perilune(("chat --max-new-tokens 8 --template %s/t.jinja %s"):format(q(plain), q(plain)), "one\n")
    assert.same({ talker.greedy(net, tokenizer, ids_of "one", 8) .. "\n", 0 }, { out, status })
    term.write(plain .. "/t.jinja", "{% for %}")
    out, status = perilune(("chat --template %s/t.jinja %s"):format(q(plain), q(plain)), "one\n")
    assert.equal(1, status)
    assert.truthy(out:find "chat_template" and not out:find "traceback", out)
  end)

  it("stops a reply at Ctrl-C and goes on, on a terminal", function()
    local long, gone = talker.make { max_position_embeddings = 200000, eos_token_id = 319 }
    finally(gone)
    term.write(long .. "/tokenizer_config.json", (term.read(long .. "/tokenizer_config.json"):gsub('"eos_token":"</s>"',
      '"eos_token":"none"')))
    local command = ("%s chat --max-new-tokens 100000 %s"):format(q(term.command), q(long))
    local p = term.play({ { "expect", "ends." }, { "expect", "> " }, { "send", "one\n" }, { "running" },
      { "pause", 300 }, { "send", "\3" }, { "expect", "> " }, { "send", "/help\n" }, { "expect", "/reset" },
      { "expect", "> " }, { "send", "\3" }, { "expect", "^C" }, { "expect", "> " }, { "send", "/exit\n" },
      { "end" } }, ("XDG_STATE_HOME=%s"):format(q(long)), command)
    assert.is_nil(p.missing, p.screen)
    assert.equal(0, p.status, p.screen)
    assert.falsy(p.screen:find "traceback", p.screen)
    assert.equal("one\n/help\n/exit\n", (term.read(long .. "/perilune/chat")))
  end)
end)
