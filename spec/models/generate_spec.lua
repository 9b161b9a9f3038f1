-- SPDX-License-Identifier: MIT
-- Tokens of net:generate against transformers' (spec/fixtures/generate/make.py, or the cases of the file in
-- PERILUNE_GENERATE_CASES, which it also writes), and against themselves: with a cache, an assistant, in a batch, and
-- token by token without any of that.

local T = require "perilune"
local formula = require "spec.support.formula_networks"
local json = require "perilune.io.json"
local kind_of_field = require("perilune.models.generation_config").kind
local near = require "spec.support.near"
local nn = T.nn
local plain = formula.plain

local path = os.getenv "PERILUNE_GENERATE_CASES"
  or (os.getenv "PERILUNE_ROOT" or ".") .. "/spec/fixtures/generate/cases.jsonl"

local own_names = { eos_token_id = "stop", bad_words_ids = "bad_words", suppress_tokens = "suppress",
  begin_suppress_tokens = "begin_suppress", forced_bos_token_id = "forced_bos", forced_eos_token_id = "forced_eos" }

local function settings(given)
  local o = {}
  for name, v in pairs(given) do o[own_names[name] or name] = plain(v) end
  return o
end

-- Rows of ids as tensors, padded on the right.
local function padded(rows)
  local ids, mask, most = {}, {}, 0
  for _, row in ipairs(rows) do most = math.max(most, #row) end
  for r, row in ipairs(rows) do
    ids[r], mask[r] = {}, {}
    for k = 1, most do ids[r][k], mask[r][k] = row[k] or 0, row[k] and 1 or 0 end
  end
  return T.tensor(ids, { dtype = "i64" }), T.tensor(mask, { dtype = "i64" })
end

local function made(net, prompts, o)
  if not net.first_ids then return net:generate(prompts, o) end
  o.inputs, o.inputs_mask = padded(prompts)
  local out = net:generate(nil, o)
  return T.is_tensor(out) and { out } or out
end

local function text(ids) return table.concat(T.is_tensor(ids) and ids:totable() or plain(ids), " ") end

-- Files generation_config.json in the call's place, and prompts [B, L] whose padding no mask speaks of.
local function with_files(case, dir, failed)
  local path_of_file, count = dir .. "/generation_config.json", 0
  for _, file in ipairs(case.files) do
    os.remove(path_of_file)
    if file.config ~= json.null then assert(json.write(path_of_file, file.config)) end
    local net = assert(T.models.load(dir, { dtype = "f64" }))
    local prompts, o = T.tensor(plain(file.prompts), { dtype = "i64" }), { generation_config = true }
    for key, v in pairs(file.more) do o[key] = v end
    if net.first_ids then o.inputs = prompts end
    local ok, out = pcall(net.generate, net, not net.first_ids and prompts or nil, o)
    for r, want in ipairs(file.tokens) do
      local ids = ok and out[r]:totable() or {}
      local ends = ids[#ids]
      for i = #ids + 1, #want do -- what follows the end is padding
        if want[i] == file.pad or want[i] == ends or type(file.pad) ~= "number" then ids[i] = want[i] end
      end
      count = count + 1
      if not ok or text(ids) ~= text(want) then
        failed[#failed + 1] = ("%s %s, prompt %d:\n%s, and %s is wanted"):format(case.family, json.line(file.config), r,
          ok and text(ids) or tostring(out), text(want))
      end
    end
  end
  os.remove(path_of_file)
  return count
end

describe("generate and transformers", function()
  after_each(formula.forget)
  local lines = {}
  for line in io.lines(path) do lines[#lines + 1] = line end
  it("make the same tokens", function()
    local failed, texts = {}, 0
    for _, line in ipairs(lines) do
      local case = assert(json.decode(line))
      for _, name in ipairs(case.fields or {}) do -- none is passed over in silence
        if not kind_of_field(name) then failed[#failed + 1] = "nobody knows the field " .. name end
      end
      if not case.fields then formula.folder(case, function(dir)
        if case.files then
          texts = texts + with_files(case, dir, failed)
          return
        end
        local net = assert(T.models.load(dir, { dtype = "f64" }))
        for _, call in ipairs(case.calls) do
          local prompts = plain(call.prompts)
          local ok, out = pcall(made, net, prompts, settings(call.options))
          for r, want in ipairs(call.tokens) do
            local got = ok and text(out[r]) or tostring(out)
            texts = texts + 1
            if got ~= text(want) then
              failed[#failed + 1] = ("%s %d %s, prompt %s:\n%s, and %s is wanted"):format(case.family, case.seed,
                json.line(call.options), text(prompts[r]), got, text(want))
            end
          end
        end
      end) end
    end
    assert.equal("", table.concat(failed, "\n"))
    assert.is_true(texts > #lines)
    if os.getenv "PERILUNE_GENERATE_CASES" then print(("%d networks, %d texts"):format(#lines, texts)) end
  end)
end)

-- ---- angles that depend on the length ----------------------------------------------------------------------

local ropes = {
  longrope = function()
    return T.models.Phi3 { vocab_size = 40, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2,
      num_attention_heads = 2, pad_token_id = 0, initializer_range = 0.5, max_position_embeddings = 64,
      original_max_position_embeddings = 8, rope_scaling = { type = "longrope", short_factor = { 1, 1.1, 1.2, 1.3 },
        long_factor = { 1.5, 2, 3, 4 } } }
  end,
  dynamic = function()
    return T.models.Llama { vocab_size = 40, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2,
      num_attention_heads = 2, initializer_range = 0.5, max_position_embeddings = 8, rope_scaling = {
        rope_type = "dynamic", factor = 2.0 } }
  end,
}

local function prompt(seed, n)
  local ids = {}
  for i = 1, n do ids[i] = (seed * 11 + i * i * 7 + i) % 40 end
  return ids
end
local function joined(a, b) return table.move(b, 1, #b, #a + 1, { table.unpack(a) }) end

for kind, make in pairs(ropes) do
  describe("texts that outgrow " .. kind, function()
    local net, other
    before_each(function()
      T.manual_seed(5)
      net, other = make():eval(), make():eval()
      for _, n in ipairs { net, other } do n:to "f64" end
    end)
    after_each(function() net, other = nil, nil end)
    local function run(ids, n, o)
      o = o or {}
      o.max_new_tokens, o.stop = n, false
      return net:generate(ids, o)
    end

    it("are the same with a cache that is kept, and with an assistant", function()
      for n = 1, 12 do
        local ids, cache = prompt(n, n), nn.KVCache()
        local want = run(ids, 9)
        assert.equal(text(want), text(run(ids, 9, { cache = cache })))
        for _, guesser in ipairs { other, net } do
          for _, draft in ipairs { 1, 4 } do
            assert.equal(text(want), text(run(ids, 9, { assistant = guesser, draft = draft })))
          end
        end
        for keep = 1, n + 9, 4 do -- goes on elsewhere, behind some of what is there
          local more = joined({ table.unpack(joined(ids, want:totable()), 1, keep) }, prompt(n + 1, 2))
          assert.equal(text(run(more, 4)), text(run(more, 4, { cache = cache })))
        end
      end
    end)

    it("are each as alone in a batch", function()
      local rows = { prompt(1, 3), prompt(2, 10), prompt(3, 7) }
      for _, o in ipairs { {}, { num_beams = 3 }, { repetition_penalty = 1.3 } } do
        local seen = { {}, {}, {} }
        if not o.num_beams then o.on_token = function(id, r) table.insert(seen[r], id) end end
        local out = run(rows, 6, o)
        o.on_token = nil
        for r, row in ipairs(rows) do
          local alone = text(run(row, 6, o))
          assert.equal(alone, text(out[r]))
          if not o.num_beams then assert.equal(alone, text(seen[r])) end
        end
      end
      near.fails("scores of prompts of several lengths", function() return run(rows, 2, { scores = true }) end)
    end)

    if kind == "longrope" then
      it("are those of whole texts, token by token", function()
        for n = 1, 9 do
          local ids, want = prompt(n, n), {}
          for i = 1, 8 do
            want[i] = T.no_grad(function()
              return net(T.tensor({ joined(ids, want) }, { dtype = "i64" }), { last = 1 })
                :argmax(-1, { index_base = 0 }):item()
            end)
          end
          assert.equal(text(want), text(run(ids, 8)))
        end
      end)

      it("find no cache that was turned by the other factors", function()
        local cache = nn.KVCache()
        net(T.tensor({ prompt(1, 8) }, { dtype = "i64" }), { cache = cache })
        near.fails("turned for texts of up to 8 places", function()
          return net(T.tensor({ { 3 } }, { dtype = "i64" }), { cache = cache })
        end)
        cache:reset()
        net(T.tensor({ prompt(1, 9) }, { dtype = "i64" }), { cache = cache })
        net(T.tensor({ { 3 } }, { dtype = "i64" }), { cache = cache })
        cache:crop(4)
        near.fails("turned for texts of more than 8 places, and this text is shorter", function()
          return net(T.tensor({ { 3 } }, { dtype = "i64" }), { cache = cache })
        end)
      end)
    end
  end)
end
