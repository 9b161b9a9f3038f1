-- SPDX-License-Identifier: MIT
-- T.models.save to GGUF: what is read back computes the same bits, files of llama.cpp's converter come back with their
-- tensors as they were, and what GGUF has no words for is refused.

local T = require "perilune"
local near = require "spec.support.near"

local function logits(net) return T.no_grad(net, T.tensor({ { 1, 5, 9, 30, 2, 63, 0 } }, { dtype = "i64" })) end
local sizes = { vocab_size = 64, hidden_size = 64, intermediate_size = 96, num_hidden_layers = 2,
  num_attention_heads = 4, num_key_value_heads = 2, initializer_range = 0.3, bos_token_id = 3, eos_token_id = 7 }

local function made(kind, more)
  local o = {}
  for key, v in pairs(sizes) do o[key] = v end
  for key, v in pairs(more or {}) do o[key] = v end
  local net = T.models[kind](o):eval()
  T.no_grad(function() for _, p in ipairs(net:parameters()) do if p:dim() == 1 then p:normal_(1, 0.2) end end end)
  return net
end

local path
local function saved(net, o)
  assert(T.models.save(net, path, o))
  return assert(T.models.load(path))
end
local function same(a, b) near.same_bits(logits(a), logits(b)) end

local variants = {
  plain = {}, tied = { tie_word_embeddings = true }, heads = { head_dim = 32 },
  linear = { rope_scaling = { rope_type = "linear", factor = 2.0 } },
  yarn = { rope_scaling = { rope_type = "yarn", factor = 4.0, original_max_position_embeddings = 64, beta_fast = 16,
    beta_slow = 2 }, mlp_bias = true },
  llama3 = { rope_scaling = { rope_type = "llama3", factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0,
    original_max_position_embeddings = 16 } },
}

describe("T.models.save to GGUF", function()
  before_each(function()
    path = os.tmpname()
    os.remove(path)
    path = path .. ".gguf"
  end)
  after_each(function() os.remove(path) end)

  for _, kind in ipairs { "Llama", "Qwen2", "Qwen3" } do
    it("writes what reads as the same network: " .. kind, function()
      for name, more in pairs(variants) do
        local own = {}
        for key, v in pairs(more) do if kind == "Llama" or key ~= "mlp_bias" then own[key] = v end end
        local net = made(kind, own)
        local again = saved(net)
        if name == "llama3" then -- its factors are f32 in the file
          assert.is_true(T.allclose(logits(net), logits(again), { rtol = 1e-4, atol = 1e-5 }))
        else
          same(net, again)
        end
        assert.same({ 3, 7 }, { again.generation_config.bos_token_id, again.generation_config.eos_token_id })
        same(again, saved(again))
      end
    end)
  end

  it("keeps quantized weights as they are, and makes matrices of a type", function()
    local net = made "Llama"
    local f16 = saved(net, { dtype = "f16" })
    local want = logits(net)
    assert.is_true((want - logits(f16)):abs():max():item() < 0.02 * want:abs():max():item())
    local q8 = saved(net, { type = "Q8_0" })
    assert.equal("Q8_0", q8.model.layers[1].self_attn.q_proj.format)
    for _, format in ipairs { "Q8_0", "Q4_0", "Q5_0" } do
      local q = made "Llama"
      T.quantize(q, { format = format, skip = { "lm_head" } })
      same(q, saved(q))
      assert.equal(format, saved(q).model.layers[2].mlp.up_proj.format)
    end
  end)

  it("puts a tokenizer beside the weights, which reads texts as before", function()
    local learn = T.data.train_bpe
    local learned = learn and learn { 300, text = ("the cat sat on the mat; it's 1234 o'clock\n\n"):rep(50),
      special = { "<pad>", "<s>" } }
    if not learned then return pending "built without tokenizers" end
    local json = require "perilune.io.json"
    local texts = { "the cat sat", "  it's 12345 o'clock!\n\n\t x", "naïve Grüße 日本語 🎉", "<pad>the<s> mat", "" }
    local function opened(change)
      local t, file = json.decode(learned.json), os.tmpname()
      change(t)
      assert(json.write(file, t))
      local tokenizer = assert(T.models.tokenizer(file))
      os.remove(file)
      return tokenizer
    end
    local function split(pattern)
      return { type = "Sequence", pretokenizers = json.array { { type = "Split", pattern = { Regex = pattern },
        behavior = "Isolated", invert = false }, { type = "ByteLevel", add_prefix_space = false, trim_offsets = true,
        use_regex = false } } }
    end
    local llama3 = [[(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|]]
      .. [[ ?[^\s\p{L}\p{N}]+[\r\n]*|]] .. [[\s*[\r\n]+|\s+(?!\S)|\s+]]
    local kinds = {
      ["gpt-2"] = function() end,
      dbrx = function(t) t.pre_tokenizer = split(llama3) end,
      ["llama-bpe"] = function(t)
        t.pre_tokenizer, t.model.ignore_merges = split(llama3), true
        local first = { SpecialToken = { id = "<s>", type_id = 0 } }
        local function text(name, kind) return { Sequence = { id = name, type_id = kind } } end
        t.post_processor = { type = "TemplateProcessing", single = json.array { first, text("A", 0) },
          pair = json.array { first, text("A", 0), text("B", 1) },
          special_tokens = { ["<s>"] = { id = "<s>", ids = json.array { 1 }, tokens = json.array { "<s>" } } } }
      end,
      qwen2 = function(t)
        t.pre_tokenizer = split((llama3:gsub("{1,3}", "", 1)))
      end,
    }
    for name, change in pairs(kinds) do
      local tokenizer = opened(change)
      local net = made("Llama", { vocab_size = 320 })
      assert(T.models.save(net, path, { tokenizer = tokenizer }))
      local _, meta = T.load(path)
      assert.equal(name, meta["tokenizer.ggml.pre"])
      assert.equal(320, #meta["tokenizer.ggml.tokens"])
      local back = assert(T.models.tokenizer(path))
      for _, text in ipairs(texts) do
        assert.same(tokenizer:encode(text):totable(), back:encode(text):totable(), name .. ": " .. text)
      end
      assert.equal(texts[3], back:decode(tokenizer:encode(texts[3]), { skip_special = true }))
      same(net, assert(T.models.load(path)))
    end
    local function refused(part, change, size)
      local net = made("Llama", { vocab_size = size or 320 })
      local ok, why = T.models.save(net, path, { tokenizer = opened(change) })
      assert.is_nil(ok)
      assert.truthy(why:find(part, 1, true), why)
    end
    refused("patterns that none", function(t) t.pre_tokenizer = split "\\p{L}+|." end)
    refused("its normalizer is Lowercase", function(t) t.normalizer = { type = "Lowercase" } end)
    refused("adds a blank", function(t) t.pre_tokenizer.add_prefix_space = true end)
    refused("and the model has 64 tokens", function() end, 64)
    -- what keys have no word for is found by reading them back
    for _, flag in ipairs { "lstrip", "rstrip", "single_word" } do
      refused("would make other tokens of", function(t) t.added_tokens[1][flag] = true end)
    end
    refused("would make other tokens of", function(t) t.decoder = { type = "Fuse" } end)
    near.fails("tokenizer must be one", function() T.models.save(made "Llama", path, { tokenizer = "x" }) end)
  end)

  it("keeps heads of a width of their own, and turns a part of them: Phi3", function()
    local net = made("Phi3", { head_dim = 32, partial_rotary_factor = 0.5, pad_token_id = 0 })
    same(net, saved(net))
  end)

  it("keeps the id of padding, and makes none up", function()
    for _, pad in ipairs { false, 5 } do
      local net = made("Phi3", { pad_token_id = pad })
      local back = saved(net)
      assert.equal(pad or nil, back.config.pad_token_id)
      local dir = os.tmpname()
      os.remove(dir)
      os.execute("mkdir " .. dir)
      assert(T.models.save(back, dir))
      local c = assert(require("perilune.io.json").read(dir .. "/config.json"))
      os.execute("rm -r " .. dir)
      assert.equal(pad or require("perilune.io.json").null, c.pad_token_id)
    end
  end)

  it("keeps all ends of texts, and ids of no token nowhere", function()
    local function ends(net)
      local list = net.generation_config.eos_token_id
      return type(list) == "table" and { table.unpack(list) } or { list }
    end
    local net = made "Llama"
    for _, case in ipairs { { { 7, 9, 8 } }, { { 7, 8, 9, 10, 3 } }, { { 64, 9, -1, 8 }, { 9, 8 } }, { { 64 }, {} } } do
      net.generation_config.eos_token_id = case[1] -- of a text, a turn, a message, and more
      for _, again in ipairs { (saved(net)), (saved(saved(net))) } do assert.same(case[2] or case[1], ends(again)) end
    end
    net.generation_config.eos_token_id = 7
    assert(T.models.save(net, path))
    local tensors, meta = T.load(path)
    for name, id in pairs { eos = 64, eot = 4294967295, eom = -1, bos = 100, padding = 64 } do
      meta[("tokenizer.ggml.%s_token_id"):format(name)] = id
    end
    meta["perilune.eos_token_ids"] = { 5, 64, -1 }
    assert(T.save_gguf(path, tensors, { metadata = meta }))
    local other = assert(T.models.load(path))
    assert.same({ 5 }, ends(other))
    assert.same({}, { other.generation_config.bos_token_id, other.generation_config.pad_token_id })
  end)

  it("reads every key that changes the numbers, or refuses it by name", function()
    assert(T.models.save(made "Llama", path))
    local tensors, meta = T.load(path)
    local function read(more)
      local all = {}
      for key, v in pairs(meta) do all[key] = v end
      for key, v in pairs(more) do all["llama." .. key] = v end
      assert(T.save_gguf(path, tensors, { metadata = all }))
      return T.models.load(path)
    end
    for _, key in ipairs { "rope.scaling.factor", "rope.scale_linear" } do -- which without a type is that of linear
      local s = assert(read { [key] = 4.0 }).model.rotary1._settings
      assert.same({ "linear", 4 }, { s.kind, s.factor })
      assert.equal("default", assert(read { [key] = 1.0 }).model.rotary1.kind)
    end
    for _, zero in ipairs { { ["rope.scaling.factor"] = 0.0 }, {} } do
      zero["rope.scaling.type"] = "linear"
      assert.equal("default", assert(read(zero)).model.rotary1.kind)
    end
    local yarn = { ["rope.scaling.type"] = "yarn", ["rope.scaling.factor"] = 4.0,
      ["rope.scaling.original_context_length"] = 16, ["rope.scaling.yarn_beta_fast"] = 8.0 }
    assert.equal(8, assert(read(yarn)).model.rotary1._settings.beta_fast)
    for mix, part in pairs { [-1] = false, [1] = false, [0] = "yarn_ext_factor = 0.0 is not supported" } do
      yarn["rope.scaling.yarn_ext_factor"] = mix + 0.0
      local net, why = read(yarn)
      assert.truthy(part and why:find(part, 1, true) or not part and net, why)
    end
    yarn["rope.scaling.yarn_ext_factor"] = nil
    yarn["rope.scaling.attn_factor"] = 2.0
    for part, more in pairs { ["llama.rope.scaling.attn_factor"] = yarn, ["llama.expert_count"] = { expert_count = 4 },
      ["llama.attention.causal = false"] = { ["attention.causal"] = false },
      ["llama.logit_scale"] = { logit_scale = 2.0 },
      ["llama.attention.value_length"] = { ["attention.value_length"] = 8 },
      ["llama.final_logit_softcapping"] = { final_logit_softcapping = 30.0 } } do
      local none, why, code = read(more)
      assert.same({ nil, "unsupported" }, { none, code })
      assert.truthy(why:find(part, 1, true) and why:find("is not supported", 1, true), why)
    end
    assert(read { logit_scale = 1.0, expert_count = 0, ["attention.causal"] = true })
  end)

  it("writes a Mistral without a window as llama.cpp does, as a Llama", function()
    local net = made("Mistral", { sliding_window = false })
    local back = saved(net)
    assert.equal("LlamaForCausalLM", back:type())
    same(net, back)
    near.fails("windows", function() assert(T.models.save(made("Mistral", { sliding_window = 4 }), path)) end)
  end)

  -- Logits of llama.cpp, which has no windows here, are those of the network within 2e-4 of the largest, Gemma's for
  -- the table of halves that GELU is there, those of Gemma 2 and 3 within 6e-4.
  it("knows norms that count from 1, and fused products", function()
    for _, case in ipairs { { "Gemma", { head_dim = 16 } }, { "Gemma", { head_dim = 32, num_key_value_heads = 1 } },
      { "Phi3", { pad_token_id = 0 } }, { "Phi3", { pad_token_id = 0, sliding_window = 4, num_key_value_heads = 4 } },
      { "Phi3", { pad_token_id = 0, partial_rotary_factor = 0.5 } },
      { "Gemma2", { head_dim = 16, query_pre_attn_scalar = 16, sliding_window = 3 } },
      { "Gemma2", { head_dim = 32, query_pre_attn_scalar = 32, sliding_window = 4, num_hidden_layers = 3,
        attn_logit_softcapping = 3.0, final_logit_softcapping = 2.0 } },
      { "Gemma3", { head_dim = 16, query_pre_attn_scalar = 16, sliding_window = 3, num_hidden_layers = 7,
        rope_local_base_freq = 500.0, final_logit_softcapping = 3.0 } },
      { "Gemma3", { head_dim = 32, query_pre_attn_scalar = 32, sliding_window = 4, tie_word_embeddings = false,
        rope_theta = 9000.0, rope_scaling = { rope_type = "linear", factor = 8.0 } } } } do
      local kind = case[1]
      local net = made(kind, case[2])
      local back = saved(net)
      assert.equal(kind .. "ForCausalLM", back:type())
      same(net, back)
      same(back, saved(back))
      local q = T.quantize(net:clone(), { bits = 8, skip = { "lm_head" } })
      same(q, saved(q))
      -- in the file a norm is what it multiplies with
      assert(T.models.save(net, path))
      local stored = assert(T.load(path))
      local norm = net.model.norm.weight:detach()
      near.near(stored["output_norm.weight"], kind:find "Gemma" and norm + 1 or norm, 1e-6)
    end
    -- factors of frequencies for short texts and for long ones
    local short, long = {}, {}
    for i = 1, 8 do short[i], long[i] = 1 + 0.1 * i, 2 + 0.3 * i end
    local net = made("Phi3", { pad_token_id = 0, max_position_embeddings = 64, original_max_position_embeddings = 16,
      rope_scaling = { type = "longrope", short_factor = short, long_factor = long } })
    local back = saved(net)
    for _, length in ipairs { 7, 40 } do
      local ids = T.randint(0, 63, { 1, length })
      near.near(T.no_grad(back, ids), T.no_grad(net, ids), 1e-3)
    end
    local stored, keys = T.load(path)
    assert.same({ 8, 8 }, { stored["rope_factors_long.weight"]:numel(), stored["rope_factors_short.weight"]:numel() })
    stored["rope_factors_long.weight"] = nil
    local some = {}
    for name, t in pairs(stored) do some[#some + 1] = { name, t } end
    assert(require("perilune.io.gguf").save_rows(path, some, keys))
    local nothing, missing = T.models.load(path)
    assert.is_nil(nothing)
    assert.truthy(missing:find("'rope_factors_long.weight' is missing", 1, true), missing)
    -- heads that are rotated in part where there is no word for it
    assert(T.models.save(made "Llama", path))
    local tensors, meta = T.load(path)
    meta["llama.rope.dimension_count"] = 8
    local rows = {}
    for name, t in pairs(tensors) do rows[#rows + 1] = { name, t } end
    assert(require("perilune.io.gguf").save_rows(path, rows, meta))
    local none, why = T.models.load(path)
    assert.is_nil(none)
    assert.truthy(why:find("rope.dimension_count is 8", 1, true), why)
  end)

  it("puts sentencepiece's tokenizers beside the weights: BPE with byte fallback, Unigram", function()
    if not T.data.train_bpe then return pending "built without tokenizers" end
    local json, parts = require "perilune.io.json", require "perilune.data.tokenizer_parts"
    local function decoder(prefix) return assert(json.decode(parts.sentencepiece_decoder(prefix))) end
    local function opened(model, more)
      local t = { version = "1.0", model = model, added_tokens = json.array {}, normalizer = { type = "Sequence",
        normalizers = json.array { { type = "Prepend", prepend = "▁" }, { type = "Replace",
          pattern = { String = " " }, content = "▁" } } },
        decoder = decoder(true) }
      for id, text in ipairs { "<unk>", "<s>", "</s>" } do
        t.added_tokens[id] = { id = id - 1, content = text, special = true, single_word = false, lstrip = false,
          rstrip = false, normalized = false }
      end
      if more then more(t) end
      local f = assert(io.open(path .. ".json", "w"))
      f:write(json.encode(t))
      f:close()
      local out = assert(T.models.tokenizer(path .. ".json"))
      os.remove(path .. ".json")
      return out
    end
    local vocab, n, merges = { ["<unk>"] = 0, ["<s>"] = 1, ["</s>"] = 2 }, 3, json.array {}
    local function put(text)
      if not vocab[text] then vocab[text], n = n, n + 1 end
    end
    for b = 0, 255 do put(("<0x%02X>"):format(b)) end
    local letters = { "▁", "a", "b", "c", "d", "é" }
    for _, c in ipairs(letters) do put(c) end
    math.randomseed(3)
    local tokens = { table.unpack(letters) }
    for _ = 1, 40 do -- what sentencepiece finds: every way of making a token is a merge, in order of the tokens
      local new = tokens[math.random(#tokens)] .. tokens[math.random(#tokens)]
      if not vocab[new] and #new < 12 then
        put(new)
        tokens[#tokens + 1] = new
      end
    end
    for i = #letters + 1, #tokens do
      for at = 1, #tokens[i] - 1 do
        local a, b = tokens[i]:sub(1, at), tokens[i]:sub(at + 1)
        if utf8.len(a) and vocab[a] and vocab[b] then merges[#merges + 1] = json.array { a, b } end
      end
    end
    local function bpe()
      return { type = "BPE", unk_token = "<unk>", fuse_unk = true, byte_fallback = true, vocab = vocab,
        merges = merges }
    end
    local function unigram()
      local list = json.array {}
      for i, text in ipairs { "<unk>", "<s>", "</s>", table.unpack(tokens) } do
        list[i] = json.array { text, i < 4 and 0.0 or -math.random(100) / 8 }
      end
      return { type = "Unigram", unk_id = 0, byte_fallback = false, vocab = list }
    end
    local net = made("Llama", { vocab_size = 384 })
    local texts = {}
    for i = 1, 60 do
      local t = {}
      for k = 1, math.random(0, 12) do t[k] = ({ " ", "a", "b", "c", "d", "é", "z", "日", "</s>" })[math.random(9)] end
      texts[i] = table.concat(t)
    end
    local function without_prefix(t)
      t.normalizer, t.decoder = { type = "Replace", pattern = { String = " " }, content = "▁" },
        decoder(false)
    end
    for _, c in ipairs { { bpe, "llama" }, { bpe, "llama", without_prefix }, { unigram, "t5" },
      { unigram, "t5", without_prefix } } do
      local tokenizer = opened(c[1](), c[3])
      assert(T.models.save(net, path, { tokenizer = tokenizer }))
      local _, meta = T.load_gguf(path)
      assert.equal(c[2], meta["tokenizer.ggml.model"])
      assert.equal(c[3] == nil, meta["tokenizer.ggml.add_space_prefix"])
      local back = assert(T.models.tokenizer(path))
      for _, text in ipairs(texts) do
        local a, b = tokenizer:encode(text), back:encode(text)
        assert.same(a:totable(), b:totable(), text)
        assert.equal(tokenizer:decode(a), back:decode(b))
      end
    end
    local function refused(part, model, change)
      local ok, why = T.models.save(net, path, { tokenizer = opened(model, change) })
      assert.is_nil(ok)
      assert.truthy(why:find(part, 1, true), why)
    end
    local fewer = bpe()
    fewer.merges = json.array { merges[1], table.unpack(merges, 3) }
    refused("would make other tokens", fewer) -- keys have no merges: what two tokens make is merged
    refused("it has a step NFKC", bpe(), function(t) t.normalizer = { type = "NFKC" } end)
    refused("would make other tokens", unigram(), function(t)
      t.normalizer = { type = "Sequence", normalizers = json.array { { type = "Replace", pattern = { String = "a" },
        content = "b" }, t.normalizer } }
    end)
  end)

  it("turns GPT-2's weights, and back", function()
    for _, tied in ipairs { true, false } do
      T.manual_seed(3)
      local net = T.models.GPT2 { vocab_size = 64, n_embd = 64, n_layer = 2, n_head = 4, n_positions = 32,
        n_inner = not tied and 96 or nil, tie_word_embeddings = tied, bos_token_id = 3, eos_token_id = 7 }:eval()
      T.no_grad(function() for _, p in ipairs(net:parameters()) do p:add_(T.randn_like(p) * 0.2) end end)
      local back = saved(net)
      assert.equal("GPT2LMHeadModel", back:type())
      same(net, back)
      assert.same({ 64, 192 }, back.transformer.h[1].attn.c_attn.weight:shape())
      local q = T.quantize(net:clone(), { bits = 8, skip = { "lm_head" } })
      local again = saved(q)
      same(q, again)
      assert.equal("QuantizedLinear", again.transformer.h[1].attn.c_proj:type())
      assert(T.models.save(net, path, { type = "Q8_0" }))
      local stored = assert(T.load(path))
      near.near(stored["position_embd.weight"], net.transformer.wpe.weight:detach(), 1e-7) -- not quantized
      assert.same({ 192, 64 }, stored["blk.0.attn_qkv.weight"]:shape())
      local plain = assert(T.models.load(path, { dequantize = true }))
      near.near(logits(plain), logits(assert(T.models.load(path))), 1e-3)
    end
  end)

  it("gives the tensors of others' files back as they were", function()
    local folder = (os.getenv "PERILUNE_MODELS" or "../shared/models") .. "/gguf/"
    if not T.core.file_head(folder .. "llama_f32.gguf") then return pending "no files of others" end
    local n = 0
    for _, name in ipairs { "llama_f32", "llama_f16", "llama_bf16", "llama_q8_0", "llama_q4_0", "llama_q4_k",
      "llama_mixed", "llama3_rope_q8_0", "qwen2_q4_0", "qwen3_q6_k" } do
      local net = T.core.file_head(folder .. name .. ".gguf") and T.models.load(folder .. name .. ".gguf",
        { dtype = "file" })
      if net then
        assert(T.models.save(net, path))
        local was, now = assert(T.open(folder .. name .. ".gguf")), assert(T.open(path))
        for _, tensor in ipairs(was.names) do
          assert.is_true(now:has(tensor), name .. ": " .. tensor)
          local a, b = was:read(tensor), now:read(tensor)
          assert.is_true(a:shape()[1] == b:shape()[1] and T.equal(a:float(), b:float()), name .. ": " .. tensor)
        end
        for key, v in pairs(was.metadata) do
          if key:find "%.attention%." or key:find "%.rope%." or key:find "_length$" or key:find "block_count" then
            if now.metadata[key] ~= nil then assert.equal(v, now.metadata[key], name .. ": " .. key) end
          end
        end
        was:close()
        now:close()
        n = n + 1
      end
    end
    assert.is_true(n > 3)
  end)

  it("refuses what GGUF has no words for", function()
    local function refused(part, net, o)
      local ok, why = T.models.save(net, path, o)
      assert.is_nil(ok)
      assert.truthy(why:find(part, 1, true), why)
    end
    refused("not GPTNeoXForCausalLM", T.models.GPTNeoX { vocab_size = 8, hidden_size = 32, intermediate_size = 8,
      num_hidden_layers = 1, num_attention_heads = 2 })
    local small = { vocab_size = 8, n_embd = 8, n_layer = 1, n_head = 2, activation_function = "relu" }
    refused("hidden_act relu", T.models.GPT2(small))
    small.activation_function, small.scale_attn_by_inverse_layer_idx = "gelu_new", true
    refused("scale_attn_by_inverse_layer_idx", T.models.GPT2(small))
    refused("hidden_act gelu", made("Llama", { hidden_act = "gelu" }))
    refused("dynamic", made("Llama", { rope_scaling = { rope_type = "dynamic", factor = 2.0 } }))
    refused("no windows", made("Qwen2", { use_sliding_window = true, sliding_window = 3, max_window_layers = 1 }))
    local two = { head_dim = 16, query_pre_attn_scalar = 16, sliding_window = 3 }
    local function gemma2(more)
      local o = {}
      for key, v in pairs(two) do o[key] = v end
      for key, v in pairs(more) do o[key] = v end
      return made("Gemma2", o)
    end
    refused("windows in all layers but every 2nd", gemma2 { layer_types = { "full_attention", "full_attention" } })
    refused("query_pre_attn_scalar 8", gemma2 { query_pre_attn_scalar = 8 })
    refused("final_logit_softcapping is not set", gemma2 { final_logit_softcapping = false })
    refused("tie_word_embeddings is false", gemma2 { tie_word_embeddings = false })
    refused("no biases", gemma2 { attention_bias = true })
    near.fails("type is for GGUF files", function() T.models.save(made "Llama", "/nowhere", { type = "F16" }) end)
    near.fails("unknown type", function() assert(T.models.save(made "Llama", path, { type = "Q9" })) end)
    local ok, _, code = T.models.save(made "Llama", "/nowhere/x.gguf")
    assert.same({ nil, "io" }, { ok, code })
  end)
end)
