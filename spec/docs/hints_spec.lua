-- SPDX-License-Identifier: MIT
-- Hints name something that is there and is not what was asked for: over every public name, each written with the
-- mistakes that hands make, and asked through each of the doors that give hints.

local T = require "perilune"
local elsewhere = require "perilune.help.elsewhere"
local hints = require "perilune.help.hints"
local options = require "perilune.options"
local reference = require "perilune.help.reference"

-- Every fourth of the public names: {path, space, last}, "nn.Linear" → "nn.", "Linear".
local function inventory()
  local list, count = {}, 0
  for _, page in ipairs(reference.pages()) do
    for _, e in ipairs(page.entries) do
      local path = e.name:gsub("^T%.", "")
      local space, last = path:match "^(.*%.)([^.]+)$"
      count = count + 1
      if count % 4 == 0 then list[#list + 1] = { path = path, space = space or "", last = last or path } end
    end
  end
  return list
end

local function value(path)
  local v = T
  for key in path:gmatch "[^.]+" do
    if type(v) ~= "table" then return nil end
    v = v[key]
  end
  return v
end

-- Is there something under this path? Methods are written x:name.
local function exists(path)
  local method = path:match "^x:([%w_]+)"
  local methods = T.core.metatable().methods
  if method then return methods[method] ~= nil end
  path = path:gsub("^T%.", "")
  return value(path) ~= nil or methods[path] ~= nil or T.core.op[path] ~= nil or path:find "^[xn]e?t? ?[=:]" ~= nil
end

-- Of the mistakes two for each name in turn.
local turn = 0
local function mistakes(word)
  local out = { word:lower(), word:upper(), word:gsub("_", ""), word:sub(1, 1):upper() .. word:sub(2) }
  if #word > 4 then
    local at = #word // 2
    out[#out + 1] = word:sub(1, at) .. word:sub(at + 2) -- one left out
    out[#out + 1] = word:sub(1, at) .. word:sub(at, at) .. word:sub(at + 1) -- one twice
    out[#out + 1] = word:sub(1, at - 1) .. word:sub(at + 1, at + 1) .. word:sub(at, at) .. word:sub(
      at + 2) -- two swapped
  end
  turn = turn + 1
  return { out[turn % #out + 1], out[(turn + 3) % #out + 1] }
end

describe("a hint", function()
  local names = inventory()

  it("of T.help leads to a name that exists and is another one", function()
    local wrong, given, asked = {}, 0, 0
    for _, n in ipairs(names) do
      for _, word in ipairs(mistakes(n.last)) do
        local path = n.space .. word
        if not exists(path) then
          asked = asked + 1
          local found = elsewhere.meant(path)
          if found then given = given + 1 end
          if found and (not exists(found) or found:gsub("^T%.", "") == path) then
            wrong[#wrong + 1] = path .. " → " .. found
          end
        end
      end
    end
    assert.same({}, wrong)
    assert.is_true(asked > 250 and given > 0.95 * asked, given .. " hints of " .. asked)
  end)

  it("of a call of nothing is a name of the same table, or a path that exists", function()
    local wrong, given, asked = {}, 0, 0
    local env = { T = T, nn = T.nn, optim = T.optim, x = T.ones(2) }
    for _, n in ipairs(names) do
      local holder = n.space == "" and "T" or (n.space:find "^nn%." or n.space:find "^optim%.") and n.space:sub(1, -2)
        or "T." .. n.space:sub(1, -2)
      local method = n.space == "" and T.core.metatable().methods[n.last] ~= nil
      for _, word in ipairs(mistakes(n.last)) do
        for _, kind in ipairs { "field", method and "method" or nil } do
          local there
          if kind == "method" then
            there = T.core.metatable().methods[word] ~= nil
          else
            there = exists(n.space .. word)
          end
          if not there then
            asked = asked + 1
            local line = (kind == "field" and holder .. "." or "x:") .. word .. "()"
            local text = hints.runtime(("attempt to call a nil value (%s '%s')"):format(kind, word), line, nil, env)
            local near, path = text:match "^; did you mean '(.-)'%?$", text:match "^; is (.-) meant%?$"
            path = path or text:match "^; (x:[%w_]+%(%))$" -- what another library calls otherwise: x:T()
            if near or path then given = given + 1 end
            if text ~= "" and not near and not path or near == word or (near and not exists(kind == "method" and
              "x:" .. near or n.space .. near)) or path and (not exists(path) or path == holder .. "." .. word) then
              wrong[#wrong + 1] = line .. " → " .. text
            end
          end
        end
      end
    end
    assert.same({}, wrong)
    assert.is_true(asked > 300 and given > 0.95 * asked, given .. " hints of " .. asked)
  end)

  it("of an option is an option", function()
    local wrong, asked, given = {}, 0, 0
    local function judge(who, list)
      local known = {}
      for _, name in ipairs(list) do known[name] = true end
      for _, name in ipairs(list) do
        for _, word in ipairs(mistakes(name)) do
          if not known[word] then
            asked = asked + 1
            local near = options.nearest(word, list)
            if near then given = given + 1 end
            if near and (near == word or not known[near]) then wrong[#wrong + 1] = ("%s %s"):format(who, word) end
            local text = T.core.did_you_mean(word, table.concat(list, " "))
            assert.equal(near and ("; did you mean %s?"):format(near) or "", text)
          end
        end
        assert.not_equal(name, options.nearest(name, list), who)
      end
    end
    for who, spec in pairs(options.specs) do judge(who, spec.names) end
    for _, op in ipairs(T.core.ops()) do
      local list = {}
      for i, a in ipairs(op.attrs) do list[i] = a.name end
      judge(op.name, list)
    end
    assert.same({}, wrong)
    assert.is_true(asked > 600 and given > 0.95 * asked, given .. " hints of " .. asked)
  end)

  it("follows the words of other libraries", function()
    assert.equal("accuracy", options.nearest("acc", { "accuracy", "auc", "f1" }))
    assert.equal("dim", options.nearest("axis", { "dim", "keepdim", "dtype" }))
    assert.equal("lr", options.nearest("learning_rate", { "lr", "eps" }))
    assert.equal("T.optim.Adam", elsewhere.meant "optim.adam")
    assert.equal("T.nn.Conv2d", elsewhere.meant "nn.Conv2D")
    assert.equal("T.nn.Conv2d", elsewhere.meant "nn.conv2d")
    assert.equal("T.nn.ReLU", elsewhere.meant "nn.Relu")
    assert.equal("T.nn.ReLU", elsewhere.find("Relu", "nn."))
    assert.truthy(T.help_text("optim.adam"):find("There is no optim.adam; this is T.optim.Adam.\noptim.Adam(", 1, true))
    for written, meant in pairs { ["torch.relu"] = "T.relu", ["np.mean"] = "T.mean", ["torch.nn.Linear"] =
      "T.nn.Linear", ["torch.nn.functional.relu"] = "T.relu", ["torch.optim.Adam"] = "T.optim.Adam" } do
      local says = ("There is no %s; this is %s.\n"):format(written, meant)
      assert.truthy(T.help_text(written):find(says, 1, true), written)
    end
    assert.truthy(T.help_text("plot.bar"):find("did you mean plot?", 1, true))
    assert.falsy(require("perilune.repl.about").name("plot.bar", { T = T }):find("progress bar", 1, true))
    local _, message = pcall(T.fit, T.nn.Linear(1, 2), { train = {}, metrics = "acc", optimizer = { "SGD", lr = 1 } })
    assert.truthy(message:find("did you mean 'accuracy'?", 1, true), message)
  end)

  it("follows the names of transformers, tokenizers, safetensors, peft and onnx", function()
    local tokenizer = T.data.train_bpe { 256, text = "a" }
    local env = { T = T, nn = T.nn, net = T.nn.Linear(1, 1), t = tokenizer }
    local function hint(line, kind, name, verb)
      return hints.runtime(("attempt to %s a nil value (%s '%s')"):format(verb or "call", kind, name), line, nil, env)
    end
    assert.equal("; is T.models.load meant?", hint("T.models.from_pretrained(1)", "field", "from_pretrained"))
    assert.equal("; is T.models.load meant?",
      hint("T.models.AutoModelForCausalLM.from_pretrained(1)", "field", "AutoModelForCausalLM", "index"))
    assert.equal("; is T.models.tokenizer meant?",
      hint("T.AutoTokenizer.from_pretrained(1)", "field", "AutoTokenizer", "index"))
    assert.equal("; is T.load meant?", hint("T.safetensors.torch.load_file(1)", "field", "safetensors", "index"))
    assert.equal("; is T.nn.lora meant?", hint("nn.get_peft_model(net)", "field", "get_peft_model"))
    assert.equal("; is T.onnx.save meant?", hint("T.onnx.export(net)", "field", "export"))
    assert.equal("; did you mean 'Llama'?", hint("T.models.lama {}", "field", "lama"))
    assert.truthy(hint("net:save_pretrained(1)", "method", "save_pretrained"):find("T.models.save(net", 1, true))
    if tokenizer then
      assert.equal("; t:decode(row) of each row", hint("t:batch_decode {}", "method", "batch_decode"))
    end
    assert.equal("; requires_grad is a field: x.requires_grad",
      hints.runtime("attempt to call a boolean value (method 'requires_grad')", "p:requires_grad()", nil, env))
    assert.equal("max_new_tokens", options.nearest("max_length", { "max_new_tokens", "min_length" }))
    assert.equal("rank", options.nearest("r", { "rank", "alpha" }))
    -- each of these names leads somewhere
    for _, name in ipairs { "from_pretrained", "AutoTokenizer", "AutoModel", "AutoImageProcessor", "LoraConfig",
      "PeftModel", "safetensors", "gguf", "peft", "transformers", "InferenceSession", "export", "save_pretrained",
      "merge_and_unload" } do
      assert.is_true(exists(elsewhere.other(name)), name)
    end
  end)

  it("of T.help for a word without a page of its own lists the pages that speak of it", function()
    local text = T.help_text("jinja")
    assert.truthy(text:find("^no op named 'jinja'"), text)
    assert.truthy(text:find("\n  T.data.chat_template  ", 1, true), text)
    assert.equal("no op named 'xyzzyxyzzy'", T.help_text("xyzzyxyzzy"))
  end)

  it("of T.help for words of the field has the right page among the first three", function()
    local search, searches, wrong = require "perilune.help.search", dofile((os.getenv "PERILUNE_ROOT" or ".")
      .. "/spec/fixtures/searches.lua"), {}
    for _, s in ipairs(searches) do
      local right, found = false, {}
      for i, e in ipairs(search.find(s[1], 3)) do
        found[i] = e.name
        for k = 2, #s do right = right or e.name:find(s[k]) ~= nil end
      end
      if not right then wrong[#wrong + 1] = s[1] .. ": " .. table.concat(found, " ") end
    end
    assert.same({}, wrong)
    assert.is_true(#searches > 80)
    for word, stem in pairs { clipping = "clip", clips = "clip", rates = "rat", normalization = "normaliz",
      loss = "loss", sizes = "siz", queries = "query" } do
      assert.equal(stem, search.stem(word))
    end
    assert.truthy(T.help_text("learning rate"):find "^What speaks of learning rate:\n  optim.lr_scheduler")
    assert.equal("nothing speaks of xyzzy plugh", T.help_text("xyzzy plugh"))
    for _, e in ipairs(search.find("weights", 1e9)) do assert.is_true(exists(e.name), e.name) end
  end)

  it("of T.help knows the methods of tokenizers", function()
    local text = T.help_text("Tokenizer:apply_chat_template")
    assert.truthy(text:find("add_generation_prompt=false", 1, true), text)
    assert.equal(text, T.help_text("tokenizer.apply_chat_template"))
    assert.truthy(T.help_text("Tokenizer:__call"):find("attention_mask", 1, true))
    assert.truthy(T.help_text("Tokenizer:nothing"):find("^no op named"))
  end)

  it("of an ordering names the method that does it", function()
    local x, y = T.ones(3), T.ones(3)
    local function text(f) return select(2, pcall(f)) end
    assert.truthy(text(function() return x > 0 end):find("x:gt(0) for x > 0", 1, true))
    assert.truthy(text(function() return x >= 2 end):find("x:ge(2) for x >= 2", 1, true))
    assert.truthy(text(function() return x < 0.5 end):find("x:lt(0.5) for x < 0.5", 1, true))
    assert.truthy(text(function() return x <= 1 end):find("x:le(1) for x <= 1", 1, true))
    assert.truthy(text(function() return x > y end):find("x:lt(y) for x < y, x:gt(y) for x > y", 1, true))
  end)

  it("of a method that is not called says that it is one", function()
    local env = { x = T.ones(2) }
    local function runtime(message, line) return hints.runtime(message, line, nil, env) end
    assert.equal("; x.shape is a method, not called: x:shape()",
      runtime("attempt to index a function value (field 'shape')", "x.shape[1]"))
    assert.equal("; x.numel is a method, not called: x:numel()",
      runtime("attempt to perform arithmetic on a function value (field 'numel')", "n = x.numel + 1"))
    assert.truthy(runtime("attempt to index a nil value (field 'grad')", "print(x.grad[1])"):find(
      "; x.grad is nil until a backward has reached it", 1, true))
  end)

  it("of a line that goes on with the call above it says so, of others not", function()
    local function runtime(line, before)
      return hints.runtime("attempt to perform arithmetic on a nil value (global 'w')", line, nil, {}, before)
    end
    local text = "; a line that begins with ( goes on with the call above it: put a ; before the ("
    assert.equal(text, runtime("(w * w):sum()", "local w = T.ones(2)"))
    assert.equal("", runtime("(w * w):sum()", nil))
    assert.equal("", runtime("(w * w):sum()", "local v = T.ones(2)"))
    assert.equal("", runtime("y = w * w", "local w = T.ones(2)"))
  end)

  it("of a variable of the script's never names a function of T for it", function()
    local env = { log = setmetatable({}, { __index = { write = print } }), list = {}, s = "text", T = T }
    for line, want in pairs {
      ["log:add{ a = 1 }"] = "", ["list:exp()"] = "; list is a table, not a tensor", ["s:matmul()"] = "",
      ["T.randn(2):permutee(1)"] = "; did you mean 'permute'?",
      ["net(x):sofmax(2)"] = "; did you mean 'softmax'?", ["f(x):map(print)"] = "", ["f(x):numpy()"] =
        "; is x:totable() meant?", ["T.seed(1)"] = "; is T.manual_seed meant?",
      ["list:append(1)"] = "; t[#t + 1] = v, or "
        .. "table.insert(t, v), appends", ["T.log.cvs()"] = "; did you mean 'csv'?",
    } do
      local name = line:match ".*[:.]([%a_]+)%s*[({]"
      local kind = line:find ":" and "method" or "field"
      local message = ("attempt to call a nil value (%s '%s')"):format(kind, name)
      assert.equal(want, hints.runtime(message, line, nil, env), line)
    end
  end)

  it("of a syntax error says how Lua writes it", function()
    for line, want in pairs {
      ["x = [1, 2]"] = { "unexpected symbol near '['", "a list is written { 1, 2, 3 }" },
      ["if x == nil: print(1)"] = { "'then' expected near ':'", "if … then … else … end, without a colon" },
      ["function f(x): return x end"] = { "unexpected symbol near ':'", "function f(x) … end, without a colon" },
      ["n++"] = { "unexpected symbol near '+'", "n = n + 1" },
      ["y = x[1, 2]"] = { "']' expected near ','", 'x[{1, 2}] or x["1, 2"]' },
      ["y = x[:, 1]"] = { "unexpected symbol near ':'", 'x[{{}, 1}] or x[":, 1"]' },
      ["y = x[2:3]"] = { "']' expected near ':'", 'x[{{2, 3}}] or x["2:3"]' },
      ["x:sum(dim=1)"] = { "')' expected near '='", "x:sum({dim = 1})" },
      ["T.zeros(2, 3, dtype='f64')"] = { "')' expected near '='", "T.zeros(2, 3, {dtype = 'f64'})" },
      ['y = x.to(dtype = "f64")'] = { "')' expected near '='", 'x:to({dtype = "f64"})' },
      ["y = x.sum(dim=1)"] = { "')' expected near '='", "x:sum({dim = 1})" },
      ["y = nn.Linear(2, bias=false)"] = { "')' expected near '='", "nn.Linear(2, {bias = false})" },
      ["c = a @ b"] = { "unexpected symbol near '@'", "a:matmul(b)" },
      ["x += 1"] = { "syntax error near '+'", "x = x + …, or in place x:add_(…)" },
      ["if a != b then"] = { "'then' expected near '!'", "Lua writes ~=" },
      ["a && b"] = { "syntax error near '&'", "Lua writes and" },
      ["y = x ** 2"] = { "unexpected symbol near '*'", "x ^ y" },
      ["x:shape"] = { "function arguments expected near <eof>", "x:shape()" },
      ["import torch"] = { "syntax error near 'torch'", 'local T = require "perilune"' },
      ["def f(x):"] = { "syntax error near 'f'", "function f(x)" },
      ["for i in range(3):"] = { "'do' expected near ':'", "for i = 1, n do" },
      ["for i = 1, 3 print(i) end"] = { "'do' expected near 'print'", "for i = 1, n do … end" },
      ["print x"] = { "syntax error near 'x'", "print(…)" },
    } do
      local text = hints.syntax(want[1], line)
      assert.truthy(text:find(want[2], 1, true), line .. " → " .. text)
    end
    -- and says nothing where it knows nothing
    for line, message in pairs { ["x = = 3"] = "unexpected symbol near '='", ["f({a = 1}"] = "')' expected near <eof>",
        ["x = 'a"] = "unfinished string near ''a'" }
    do
      assert.equal("", hints.syntax(message, line), line)
    end
  end)
end)

describe("methods at the prompt", function()
  it("show how they are called: x.shape without brackets, too", function()
    local show, bare, n = require "perilune.repl.show", {}, 0
    for name, f in pairs(T.core.metatable().methods) do
      if type(f) == "function" and not name:find "^_" then
        n = n + 1
        local text = show.value(f, {})
        if not text:find "[({]" or text:find "0x%x%x%x" then bare[#bare + 1] = name .. ": " .. text end
      end
    end
    table.sort(bare)
    assert.is_true(n > 300)
    assert.equal("", table.concat(bare, "\n"))
  end)

  -- every method of tensors, taken for a field, in each of these
  local USES = { "x.@ + 1", "x.@ > 1", "'a' .. x.@", "x.@[1]", "#x.@", "x + x.@", "T.zeros(x.@)", "x:view(x.@)",
    "T.zeros(2, { dtype = x.@ })", "x[x.@]", "T.tensor { x.@ }", "for _ = 1, x.@ do end", "nn.Linear(x.@)", "a + 1",
    "nn.Linear(x.@, 3)", "math.floor(x.@)" }
  it("says of methods that are not called that they are methods", function()
    local wrong, count, methods = {}, 0, {}
    for name, f in pairs(T.core.metatable().methods) do
      if type(f) == "function" then methods[#methods + 1] = name end
    end
    table.sort(methods)
    for i, name in ipairs(methods) do
      for k, use in ipairs(USES) do
        if (i + k) % 4 == 0 then
          local code = use:gsub("@", name)
          local env = { T = T, nn = T.nn, x = T.ones(2, 3), math = math, a = T.ones(1)[name] }
          local f = assert(load("return " .. code, "=x", "t", env) or load(code, "=x", "t", env))
          local ok, message = pcall(f)
          local hint = not ok and hints.runtime(tostring(message):gsub("^x:1: ", ""), code, nil, env)
          count = count + 1
          local want = "; a is the method "
          if use ~= "a + 1" then want = ("; x.%s is a method, not called: x:%s()"):format(name, name) end
          if not hint or not hint:find(want, 1, true) then
            wrong[#wrong + 1] = ("%s: %s%s"):format(code, message, hint or "")
          end
        end
      end
    end
    assert.same({}, wrong)
    assert.is_true(count > 1000, count)
  end)

  it("of these is a note at the prompt where nothing fails, and none where it is meant", function()
    local uncalled, env = require "perilune.help.uncalled", { x = T.ones(2), T = T, net = T.nn.Linear(2, 2) }
    for code, n in pairs { ["x.dtype == 'f32'"] = 1, ["if x.is_cuda then return 1 end"] = 1, ["a, b = x.shape"] = 1,
      ["not x.requires_grad_"] = 1,
      ["local p = net.parameters; q = 1"] = 1, ["y = x.dim ~= 2 or x.ndim == 1"] = 1,
      ["x.shape"] = 0, ["pcall(x.view, x, 2)"] = 0, ["x.requires_grad == true"] = 0, ["T.exp == nil"] = 0,
      ["net.weight == nil"] = 0, ["x:dtype() == 'f32'"] = 0, ["{ x.exp, x.log }"] = 0, ["net.training and 1"] = 0 } do
      assert.equal(n, #uncalled.notes(code, env), code)
    end
  end)
end)

-- What a script's line says when it fails, with its hint.
local function failing(code)
  local f = assert(load(code, code, "t", setmetatable({ T = T, nn = T.nn, optim = T.optim }, { __index = _G })))
  local before = { rawget(_G, "T"), rawget(_G, "nn"), rawget(_G, "optim") } -- hints look at the script's globals
  _G.T, _G.nn, _G.optim = T, T.nn, T.optim
  local ok, message = xpcall(f, hints.told)
  _G.T, _G.nn, _G.optim = before[1], before[2], before[3]
  return not ok and tostring(message):gsub("^%[string .-%]:", "") or nil
end

describe("a script's failing line", function()
  it("names the colon wherever a method of a tensor is called with a dot, whatever the op then misses", function()
    local list, n = {}, 0
    for name, f in pairs(T.core.metatable().methods) do
      for _, given in ipairs(type(f) == "function" and { "", "0", "1, 2", "'f32'" } or {}) do
        for _, holder in ipairs { "x", "(x + 1)" } do
          local message = failing(("local x = T.ones(2, 3)\nlocal r = %s.%s(%s)"):format(holder, name, given))
          if message then
            n = n + 1
            if not message:find "[x)]:[%w_]+%(" then list[#list + 1] = ("%s.%s(%s): %s"):format(holder, name, given,
              message) end
          end
        end
      end
    end
    table.sort(list)
    assert.is_true(n > 2000, n)
    assert.equal("", table.concat(list, "\n"))
  end)

  it("names what gave nil, of every function that says why in its second result", function()
    local n = 0
    for path, entry in pairs(require("perilune.help.pages").all()) do
      local v = value(path)
      if entry.signature and entry.signature:find("or nil", 1, true) and type(v) == "function" then
        n = n + 1
        local name = "T." .. path
        local hint = hints.runtime("attempt to index a nil value (local 'v')", "print(v.x)", { v = {} }, { T = T }, nil,
          nil, function(variable) return ("local %s = %s(a, b)"):format(variable, name) end)
        assert.truthy(hint:find(("%s gave nil, and says why in its second result: assert(%s(…))"):format(name, name), 1,
          true), path .. hint)
      end
    end
    assert.is_true(n > 20, n)
  end)

  local says = {
    ["local net = nn.class 'Net'\nfunction net:forward(x) self.fc(x) end\nlocal m = net() m.fc = nn.Linear(2, 2)\n"
      .. "local y = m(T.ones(1, 2))\nprint(y:sum())"] = "y = m(…) gave nothing: does its forward return the result?",
    ["local Net = nn.class 'Net'\nfunction Net:init() self.fc = nn.Linear(2, 2) end\n"
      .. "function Net:forward(x) local y = fc(x) return y end\nNet()(T.ones(1, 2))"] = "it is self.fc",
    ["local a, b = nn.Linear(2, 2), nn.Linear(2, 2)\nlocal p = a:parameters() + b:parameters()"] =
      "an optimizer takes groups, { { params = a }, { params = b } }",
    ["local x = T.ones(2, 3)\nlocal a, b = x:shape()\nfor i = 1, a do print(i) end"] = "of a tensor, x:size(1)",
    ["local w = T.ones(2):requires_grad_()\nw = w - 1\nw:sum():backward()\nlocal v = w - 0.1 * w.grad"] =
      "w is a result of ops, which keep no gradient; parameters are changed in place, inside of T.no_grad()",
    ["local w = T.ones(2):requires_grad_() * 2\nw:sum():backward()\nprint(w.grad.x)"] = "w:retain_grad()",
    ["local Net = nn.Module:extend('Net')"] = 'local Net = nn.class("Net")',
    ["local opt = optim.SGD(nn.Linear(2, 2):parameters(), { lr = 1 })\nprint(opt.param_groups[0].lr)"] =
      "lists count from 1: opt.param_groups[1]",
    ["T.plot.bar({ 1, 2 })"] = 'T.plot(y, { style = "bars" })',
    ["T.plot.savefig('x.png')"] = "figure:png(path)",
    ["local plot = T.plot\nplot.title('a')"] = "T.plot(x, y, { title = … })",
    ["print(nn.Linear(2, 2):parameters()[-1]:sum())"] = "the last entry of a list is t[#t]",
    ["local x = T.ones(2, 3)\nprint(x:shape()[0] + 1)"] = "lists count from 1",
  }
  for code, hint in pairs(says) do
    it("says: " .. hint, function() assert.truthy((failing(code) or ""):find(hint, 1, true), failing(code)) end)
  end
end)
