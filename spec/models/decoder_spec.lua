-- SPDX-License-Identifier: MIT
-- Decoders made from options: the cache changes nothing, padding neither, what was written is read again, generating
-- text does what its options say, and bad folders are refused whole.

local T = require "perilune"
local json = require "perilune.io.json"
local near = require "spec.support.near"
local folder = require "spec.support.folder"
local function fails(f, part) return near.fails(part, f) end

local tiny = { vocab_size = 32, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2,
  num_attention_heads = 4,
  pad_token_id = 0, initializer_range = 0.3 }
local function with(more)
  local o = {}
  for key, v in pairs(tiny) do o[key] = v end
  for key, v in pairs(more or {}) do o[key] = v end
  return o
end

local kinds = {
  Llama = { num_key_value_heads = 2 },
  Mistral = { num_key_value_heads = 2, sliding_window = 4 },
  Qwen2 = { num_key_value_heads = 2, use_sliding_window = true, sliding_window = 3, max_window_layers = 1 },
  Qwen3 = { num_key_value_heads = 2, head_dim = 8 },
  Gemma = { num_key_value_heads = 1, head_dim = 8 },
  Gemma2 = { num_key_value_heads = 2, head_dim = 8, query_pre_attn_scalar = 8, sliding_window = 4 },
  Gemma3 = { num_key_value_heads = 1, head_dim = 8, query_pre_attn_scalar = 8, sliding_window = 4,
    sliding_window_pattern = 2 },
  Phi3 = {}, Phi = {}, GPTNeoX = { num_attention_heads = 2 },
  Mixtral = { num_key_value_heads = 2, num_local_experts = 3 },
  Qwen3Moe = { num_key_value_heads = 2, num_experts = 4, num_experts_per_tok = 2, moe_intermediate_size = 8,
    decoder_sparse_step = 2 },
  Olmoe = { num_experts = 4, num_experts_per_tok = 2, clip_qkv = 1.5 },
}
local names = { "GPT2" }
for name in pairs(kinds) do names[#names + 1] = name end
table.sort(names)

local function made(name, more)
  T.manual_seed(5)
  if name == "GPT2" then
    return T.models.GPT2 { vocab_size = 32, n_embd = 16, n_layer = 2, n_head = 4, n_positions = 64, bos_token_id = 1,
      eos_token_id = 2, initializer_range = 0.3, resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0 }
  end
  local o = with(kinds[name])
  for key, v in pairs(more or {}) do o[key] = v end
  return T.models[name](o)
end

local function ids(list) return T.tensor(list, { dtype = "i64" }) end
local function same(a, b, tol)
  assert.same(a:shape(), b:shape())
  local d = (a:detach() - b:detach()):abs():max():item()
  assert.is_true(d <= (tol or 2e-4), "differs by " .. d)
end

local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

local text = { 3, 9, 27, 14, 5, 30, 8, 21, 4, 11 }

describe("a decoder of T.models", function()
  for _, name in ipairs(names) do
    it(name .. ": token by token with a cache is the same as all at once", function()
      local net = made(name):eval()
      T.no_grad(function()
        local whole, cache, at = net(ids { text }), T.nn.KVCache { block = 4 }, 0
        for _, n in ipairs { 4, 1, 1, 3, 1 } do
          local part = net(ids { { table.unpack(text, at + 1, at + n) } }, { cache = cache })
          same(part, whole:narrow(2, at + 1, n))
          at = at + n
        end
      end)
    end)

    it(name .. ": padding on either side changes nothing for what is real", function()
      local net = made(name):eval()
      T.no_grad(function()
        local short = { table.unpack(text, 1, 6) }
        local alone = net(ids { short })
        local batch = { { table.unpack(text) }, { 0, 0, 0, 0, table.unpack(short) }, { table.unpack(short) } }
        for _ = 1, 4 do table.insert(batch[3], 0) end
        local mask = ids { { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 }, { 0, 0, 0, 0, 1, 1, 1, 1, 1, 1 },
          { 1, 1, 1, 1, 1, 1, 0, 0, 0, 0 } }
        local y = net(ids(batch), { attention_mask = mask })
        same(y:narrow(1, 1, 1), net(ids { text }))
        same(y:narrow(1, 2, 1):narrow(2, 5, 6), alone)
        same(y:narrow(1, 3, 1):narrow(2, 1, 6), alone)
        -- and so for text made from prompts of several lengths
        local o = { max_new_tokens = 6, stop = false }
        local both = net:generate({ text, short }, o)
        assert.same(net:generate(text, o):totable(), both[1]:totable())
        assert.same(net:generate(short, o):totable(), both[2]:totable())
      end)
    end)

    it(name .. ": is read again as it was written, and trains", function()
      local net = made(name)
      folder(function(dir)
        assert(T.models.save(net, dir))
        local again = assert(T.models.load(dir))
        assert.is_true(net:eval()(ids { text }):equal(again(ids { text })))
        local before = again:parameters()[1]:clone()
        local opt = T.optim.AdamW(again:train():parameters(), { lr = 0.01 })
        local function loss() return select(2, again(ids { text }, { labels = ids { text } })).loss end
        local first = loss()
        first:backward()
        opt:step()
        assert.is_true(loss():item() < first:item())
        assert.is_false(before:equal(again:parameters()[1]))
      end)
    end)
  end

  it("has a tokenizer whose ids are the file's", function()
    local path = (os.getenv "PERILUNE_ROOT" or ".") .. "/spec/fixtures/gpt2.json"
    local tokenizer = T.models.tokenizer(path)
    if tokenizer then
      assert.same(T.data.tokenizer(path):encode("the cat"):totable(), (tokenizer:encode("the cat") + 1):totable())
    end
    assert.is_nil((T.models.tokenizer "/nowhere"))
    near.fails("path must be a string", T.models.tokenizer, 3)
    near.fails("takes the path alone", T.models.tokenizer, path, { index_base = 1 })
  end)

  it("has the other heads of its family", function()
    local net = made("Llama", { architecture = "LlamaForSequenceClassification", num_labels = 3 }):eval()
    local y = net(ids { { 5, 6, 7, 0 } })
    assert.same({ 1, 3 }, y:shape())
    same(y, net(ids { { 5, 6, 7 } })) -- padding does not count
    folder(function(dir)
      local lm = made("Llama"):eval()
      assert(T.models.save(lm, dir))
      local bare = assert(T.models.load(dir, { architecture = "LlamaModel" }))
      same(bare(ids { text }), (select(2, lm(ids { text }, { hidden_states = true })).hidden_states[3]))
      local classes, new = assert(T.models.load(dir, { architecture = "LlamaForSequenceClassification",
        num_labels = 4 }))
      assert.same({ "score.weight" }, new)
      assert.same({ 1, 4 }, classes(ids { text }):shape())
      assert(T.models.save(bare, dir)) -- without a prefix: the head's own names come back
      local names_of = T.load(dir .. "/model.safetensors")
      assert.is_truthy(names_of["layers.0.self_attn.q_proj.weight"])
      local head, drawn = assert(T.models.load(dir, { architecture = "LlamaForCausalLM" }))
      assert.same({ "lm_head.weight" }, drawn)
      assert.same({ 1, 10, 32 }, head(ids { text }):shape())
    end)
  end)

  it("gives the same gradients when its layers are computed again", function()
    for _, name in ipairs { "Llama", "GPT2", "Mixtral" } do
      local net = made(name):train()
      local function gradients()
        net:zero_grad()
        select(2, net(ids { text }, { labels = ids { text } })).loss:backward()
        local list = {}
        for i, p in ipairs(net:parameters()) do list[i] = p.grad:clone() end
        return list
      end
      local want = gradients()
      net:gradient_checkpointing()
      for i, g in ipairs(gradients()) do assert.is_true(g:equal(want[i])) end
    end
    for _, name in ipairs { "Llama", "GPT2", "Mixtral", "Gemma2", "GPTNeoX" } do
      local net = made(name):train()
      for _, how in ipairs { { every = 2 }, { places = 2 }, { every = 2, places = 3 }, { every = 5, places = 100 },
        { auto = true }, { auto = true, every = 2 } } do
        local function gradients(on)
          net:gradient_checkpointing(on)
          net:zero_grad()
          select(2, net(ids { text, text }, { labels = ids { text, text } })).loss:backward()
          local list = {}
          for i, p in ipairs(net:parameters()) do list[i] = p.grad:clone() end
          return list
        end
        local want = gradients(false)
        for i, g in ipairs(gradients(how)) do same(g, want[i], 1e-5) end
      end
      fails(function() net:gradient_checkpointing { every = 0 } end, "every")
      fails(function() net:gradient_checkpointing { rows = 2 } end, "rows")
      fails(function() net:gradient_checkpointing { auto = 2 } end, "auto")
    end
    fails(function() T.models.ResNet { depths = { 1 }, hidden_sizes = { 4 } }:gradient_checkpointing() end,
      "ResNetForImageClassification has no layers")
  end)

  it("needs less memory in training with fewer inputs kept, and feed-forward layers in parts", function()
    T.manual_seed(1)
    local net = T.models.Llama { vocab_size = 50, hidden_size = 32, intermediate_size = 2048, num_hidden_layers = 6,
      num_attention_heads = 4 }:train()
    T.nn.lora(net, { rank = 2 })
    local tokens = T.randint(0, 49, { 1, 512 })
    local function peak(on)
      net:gradient_checkpointing(on)
      local before
      for _ = 1, 2 do
        collectgarbage() collectgarbage()
        before = T.memory().live
        T.reset_peak_memory()
        select(2, net(tokens, { labels = tokens, logits = false })).loss:backward()
      end
      return T.memory().peak - before
    end
    local plain, layers, chosen = peak(false), peak(true), peak { auto = true }
    local calls = 0
    local hook = net.model.layers[1].mlp:register_forward_pre_hook(function() calls = calls + 1 end)
    local parts = peak { every = 3, places = 32 }
    hook:remove()
    assert.equal(2 * 3 * 512 // 32, calls) -- of two steps: forward, for the inputs of all parts, for each part
    assert.is_true(layers < 0.5 * plain, ("%d of %d"):format(layers, plain))
    assert.is_true(parts < 0.75 * layers, ("%d of %d"):format(parts, layers))
    assert.is_true(chosen < 0.75 * layers, ("%d of %d"):format(chosen, layers))
  end)

  it("shows its hidden states and takes embeddings in place of ids", function()
    local net = made("Llama"):eval()
    local y, out = net(ids { text }, { hidden_states = true })
    assert.equal(3, #out.hidden_states)
    same(net.lm_head(out.hidden_states[3]), y)
    same(net(nil, { inputs_embeds = out.hidden_states[1] }), y)
    assert.equal("ModelOutput(hidden_states, logits)", tostring(out))
  end)

  it("can be jitted, losses and gradients, too", function()
    for _, name in ipairs { "Llama", "GPT2", "Gemma2", "Mixtral" } do
      local net = made(name):eval()
      local f = T.jit(function(x) return (net(x)) end)
      T.no_grad(function() same(f(ids { text }), (net(ids { text }))) end)
      local function loss(x) return select(2, net(x, { labels = x })).loss end
      local p = net:parameters()[1]
      loss(ids { text }):backward()
      local want = p.grad:clone()
      net:zero_grad()
      T.jit(loss)(ids { text }):backward()
      same(p.grad, want, 1e-5)
    end
  end)

  it("says what is wrong with a call", function()
    local net = made("Llama")
    fails(function() net(ids { { 3, 32 } }) end, "ids must be from 0 to 31, the 32 of the table; got 32")
    fails(function() net(T.ones(1, 2)) end, "ids must be integers [B, L]")
    fails(function() net(ids { text }, { attention_mask = ids { { 1, 1 } } }) end, "attention_mask must be [1, 10]")
    fails(function() net(ids { text }, { attention_mask = T.ones(1, 1, 10, 9) }) end,
      "an attention_mask of 4 dimensions must be bools (true: seen), or numbers that are added to the scores, [1 or 1")
    fails(function() net(ids { text }, { attention_mask = ids { { { text } } } }) end, "of 4 dimensions must be bools")
    fails(function() net(ids { text }, { position_ids = ids { { 1, 1 } } }) end,
      "position_ids must be integers [1, 10]")
    fails(function() net(ids { text }, { labels = ids { { 1, 1 } } }) end, "labels must be integers")
    fails(function() net(ids { text }, { mask = 1 }) end, "unknown option 'mask'")
    fails(function() T.models.Llama { hidden_sise = 4 } end, "did you mean 'hidden_size'")
    fails(function() T.models.Llama(with { hidden_act = "gelo" }) end, "did you mean 'gelu'")
    fails(function() T.models.Llama(with { num_attention_heads = 3, head_dim = 7, num_key_value_heads = 2 }) end,
      "must be a multiple of num_kv_heads 2")
    fails(function() T.models.Llama(with { architecture = "LlamaForPoems" }) end, "unknown architecture")
    fails(function() made "GPT2"(ids { T.arange(0, 99):remainder(32):totable() }) end, "64 places")
    local x = ids { text }
    fails(function() net(x:ne(3)) end, "ids must be integers [B, L]")
    fails(function() net(x, { cache = {} }) end, "cache must be a nn.KVCache, got a table")
    fails(function() net(x, { last = 0 }) end, "last must be a positive integer")
    fails(function() net(x, { last = 11 }) end, "last is 11, and there are 10 places")
    fails(function() net(x, { last = 1, labels = x }) end, "last and labels exclude each other")
    fails(function() net(x, { hidden_states = "no" }) end, "hidden_states must be true or false")
    fails(function() net(x, { inputs_embeds = T.ones(1, 10, 16) }) end, "one of them must be nil")
    fails(function() net(nil, { inputs_embeds = T.ones(1, 10, 15) }) end, "inputs_embeds must be [B, L, 16]")
    fails(function() T.models.Llama(with { architecture = "LlamaModel" })(x, { labels = x }) end,
      "labels is for other heads")
  end)

  it("reads each row of a batch of vmap", function()
    local net, x = made("Llama"):eval(), ids { text, text }
    same(net(x), T.vmap(function(row) return net(row):squeeze(1) end)(x))
  end)

  it("refuses ids of a tokenizer that count from 1", function()
    local t = T.data.train_bpe { 258, text = ("low lower "):rep(9) }
    local net = T.models.Llama(with { vocab_size = 260, eos_token_id = nil })
    for _, x in ipairs { t:encode "low", t("low").input_ids, t({ "low", "lower" }, { padding = true }).input_ids } do
      fails(function() net(x) end, "these ids count from 1")
      fails(function() net:generate(x) end, "these ids count from 1")
      assert.equal(x:size(-1), net(x - 1):size(2))
    end
    local x = t:encode("low", { index_base = 0 })
    fails(function() net(x, { labels = t({ "low" }, { padding = true }).input_ids }) end, "these ids count from 1")
    fails(function() t:decode(x) end, "these ids count from 0")
    fails(function() t:decode(net:generate(x, { max_new_tokens = 1 })) end, "say index_base=0")
    assert.equal("low", t:decode(x, { index_base = 0 }))
    assert.equal("low", t:decode(x:add_(1)))
  end)
end)

describe("net:generate", function()
  local net
  before_each(function() net = made("Llama"):eval() end)
  after_each(function() net = nil end)

  it("stops where it is told", function()
    local all = net:generate(text, { max_new_tokens = 12, stop = false }):totable()
    assert.equal(12, #all)
    local first = 1
    while all[first] ~= all[4] do first = first + 1 end
    assert.same({ table.unpack(all, 1, first) }, net:generate(text, { max_new_tokens = 12, stop = all[4] }):totable())
    local two = net:generate(text, { max_new_tokens = 12, stop = { { all[3], all[4] } } }):totable()
    assert.same(all[#two - 1], all[3])
    assert.same(all[#two], all[4])
    net.generation_config.eos_token_id = all[1]
    assert.same({ all[1] }, net:generate(text, { max_new_tokens = 12 }):totable())
    local later = net:generate(text, { max_new_tokens = 12, min_new_tokens = 3 }):totable()
    assert.is_true(#later >= 3)
    -- ids that a config names and the table does not have: of none
    for _, none in ipairs { -1, 99999 } do
      net.generation_config = { eos_token_id = { none, all[1] }, pad_token_id = none, suppress_tokens = { none } }
      local rows = net:generate({ text, { 5, 6, 7 } }, { max_new_tokens = 12, min_new_tokens = 3 })
      assert.same(later, rows[1]:totable())
    end
    fails(function() net:generate(text, { suppress = 99999 }) end, "there is no token 99999, only those from 0 to")
  end)

  it("chooses as generation_config.json says where it is told to", function()
    local function out(o)
      o.seed = o.seed or o.generation_config and net.generation_config.do_sample and 5 or nil
      return net:generate(text, o):totable()
    end
    local greedy = out { max_new_tokens = 8, stop = false }
    net.generation_config = { do_sample = true, temperature = 3.0, top_p = 0.9, max_new_tokens = 8,
      repetition_penalty = 1.3, eos_token_id = 31 }
    assert.same(greedy, out { max_new_tokens = 8, stop = false })
    assert.same(out { seed = 5, max_new_tokens = 8, temperature = 3.0, top_p = 0.9, top_k = 50,
      repetition_penalty = 1.3 }, out { generation_config = true })
    assert.same(out { seed = 5, max_new_tokens = 8, temperature = 0.5, top_p = 0.9, top_k = 2,
      repetition_penalty = 1.3 }, out { generation_config = true, temperature = 0.5, top_k = 2 })
    assert.same(out { max_new_tokens = 8, repetition_penalty = 1.3 },
      net:generate(text, { generation_config = true, do_sample = false }):totable())
    net.generation_config = { max_length = #text + 3, num_beams = 2, length_penalty = 2.0,
      bad_words_ids = { { 3, 4 }, { 5 } }, temperature = 9, guidance_scale = 1.0, forced_bos_token_id = false }
    assert.same(out { max_new_tokens = 3, num_beams = 2, length_penalty = 2.0, bad_words = { { 3, 4 }, { 5 } } },
      out { generation_config = true })
    net.generation_config.guidance_scale = 1.5
    fails(function() out { generation_config = true } end, "generation_config.json asks for guidance_scale")
    net.generation_config = { max_length = 4 }
    fails(function() out { generation_config = true } end, "leaves no room behind a prompt of " .. #text .. " ids")
    fails(function() out { generation_config = 1 } end, "generation_config must be true or false")
  end)

  it("keeps the penalty of generation_config.json in chat and serve where nothing is drawn", function()
    local sampling = require("perilune.models.text").sampling
    local own = { do_sample = false, temperature = 0.5, top_k = 7, repetition_penalty = 1.3 }
    assert.same({ do_sample = false, repetition_penalty = 1.3 }, sampling({}, own))
    assert.same({ do_sample = false, repetition_penalty = 2 },
      sampling({ repetition_penalty = 2, temperature = 0 }, own))
    assert.same({ do_sample = true, temperature = 2, repetition_penalty = 1.3 }, sampling({ temperature = 2 }, own))
    own.do_sample = true
    assert.same({ do_sample = true, temperature = 0.5, top_k = 7, repetition_penalty = 1.3 }, sampling({}, own))
    own = { do_sample = true, typical_p = 0.9, min_length = 4, bad_words_ids = { { 3 } }, max_length = 20 }
    assert.same({ do_sample = true, top_k = 50, typical_p = 0.9, min_length = 4, bad_words = { { 3 } } },
      sampling({}, own))
    assert.same({ do_sample = true, typical_p = 0.9, min_length = 4, bad_words = { { 3 } } },
      sampling({ top_k = 0 }, own))
    fails(function() sampling({}, { num_beams = 4 }) end, "asks for num_beams = 4")
    fails(function() sampling({}, { top_h = 0.5 }) end, "asks for top_h, which is not supported")
  end)

  it("bans no word that is the end of the text", function()
    local logits = T.tensor { { 1, 2, 3 } }
    local o = { bad_words = { { 2 }, { 0 }, { 1, 2 } }, eos = 2 }
    local got = T.models.process(logits, ids { { 0 } }, o)
    assert.same({ -math.huge, 2, 3 }, got[1]:totable())
    assert.same({ -math.huge, 2, -math.huge }, T.models.process(logits, ids { { 1 } }, o)[1]:totable())
  end)

  it("tells each token as it comes, and may be stopped by who listens", function()
    local seen = {}
    local got = net:generate(text, { max_new_tokens = 9, stop = false, on_token = function(id)
      seen[#seen + 1] = id
      return #seen < 5
    end })
    assert.equal(5, #seen)
    assert.same(seen, got:totable())
  end)

  it("draws the same with the same seed, and only what is left", function()
    local o = { max_new_tokens = 20, stop = false, temperature = 1.5, seed = 3 }
    local a, state = net:generate(text, o):totable(), T.get_rng_state()
    assert.same(a, net:generate(text, o):totable())
    assert.equal(state, T.get_rng_state())
    o.seed = 4
    assert.not_same(a, net:generate(text, o):totable())
    local greedy = net:generate(text, { max_new_tokens = 20, stop = false }):totable()
    assert.same(greedy, net:generate(text, { max_new_tokens = 20, stop = false, top_k = 1, seed = 1 }):totable())
    assert.same(greedy, net:generate(text, { max_new_tokens = 20, stop = false, top_p = 1e-9, seed = 1 }):totable())
  end)

  it("draws by the shares", function()
    local count, logits = { 0, 0 }, T.no_grad(net, ids { text }, { last = 1 }):view(1, -1)
    local _, two = logits:topk(2, -1, { index_base = 0 })
    two = two:totable()[1]
    local share = T.models.process(logits, nil, { top_k = 2 }):softmax(-1):max():item()
    for seed = 1, 400 do
      local id = net:generate(text, { max_new_tokens = 1, stop = false, top_k = 2, seed = seed }):item()
      local which = id == two[1] and 1 or 2
      assert.is_true(id == two[which])
      count[which] = count[which] + 1
    end
    assert.is_true(math.abs(count[1] / 400 - share) < 0.1, count[1] / 400 .. " of " .. share)
  end)

  it("gives with an assistant what it gives without", function()
    local o = { max_new_tokens = 15, stop = false }
    local want = net:generate(text, o):totable()
    T.manual_seed(9)
    local other = T.models.Llama(with { num_hidden_layers = 1 }):eval()
    for _, small in ipairs { net, other } do
      for _, draft in ipairs { 1, 4 } do
        assert.same(want, net:generate(text, { max_new_tokens = 15, stop = false, assistant = small,
          draft = draft }):totable())
      end
    end
  end)

  it("reads only what a cache does not have", function()
    local cache, o = T.nn.KVCache(), { max_new_tokens = 5, stop = false }
    local want, read = net:generate(text, o):totable(), 0
    local hook = net.model.embed_tokens:register_forward_hook(function(_, args) read = read + args[1]:numel() end)
    o.cache = cache
    assert.same(want, net:generate(text, o):totable())
    assert.equal(#text + 4, #cache)
    local longer = { table.unpack(text) }
    for _, id in ipairs(want) do longer[#longer + 1] = id end
    longer[#longer + 1] = 7
    read = 0
    local got = net:generate(longer, o):totable()
    assert.equal(2 + 4, read)
    hook:remove()
    assert.same(net:generate(longer, { max_new_tokens = 5, stop = false }):totable(), got)
    longer[3] = 1 -- another text from the third token on
    assert.same(net:generate(longer, { max_new_tokens = 5, stop = false }):totable(), net:generate(longer, o):totable())
  end)

  it("reads again what a cache has from another network, from other weights, or of other ids", function()
    local o = { max_new_tokens = 6, stop = false }
    local function agrees(model, cache, prompt)
      o.cache = nil
      local want = model:generate(prompt, o)
      o.cache = cache
      assert.same(want:totable(), model:generate(prompt, o):totable())
    end
    local cache, first = T.nn.KVCache(), made("Llama"):eval()
    local second = made("Llama", { head_dim = 8 }):eval()
    agrees(first, cache, text)
    agrees(second, cache, text)
    agrees(first, cache, text)
    T.no_grad(function() for _, p in ipairs(first:parameters()) do p:mul_(1.5) end end)
    agrees(first, cache, text)
    cache:crop(2)
    first(ids { { 9, 9, 9, 9 } }, { cache = cache })
    agrees(first, cache, text)
  end)

  it("finds texts at least as likely with beams", function()
    local function score(list)
      local all = { table.unpack(text) }
      for _, id in ipairs(list) do all[#all + 1] = id end
      local lp, sum = T.no_grad(net, ids { all }):log_softmax(-1):totable()[1], 0
      for i, id in ipairs(list) do sum = sum + lp[#text + i - 1][id + 1] end
      return sum
    end
    local o = { max_new_tokens = 3, stop = false }
    local greedy = net:generate(text, o):totable()
    o.num_beams = 32 * 32 -- all of them
    local best = net:generate(text, o):totable()
    assert.is_true(score(best) >= score(greedy) - 1e-5)
    local exhaustive = -math.huge
    for a = 0, 31 do
      local b = net:generate({ table.unpack(text) }, { max_new_tokens = 1, stop = false }):item()
      exhaustive = math.max(exhaustive, score { a, b, b })
    end
    assert.is_true(score(best) >= exhaustive - 1e-5)
    local batch = net:generate({ text, { 4, 5 } }, { max_new_tokens = 3, stop = false, num_beams = 3 })
    assert.same(net:generate({ 4, 5 }, { max_new_tokens = 3, stop = false, num_beams = 3 }):totable(),
      batch[2]:totable())
  end)

  it("says what is wrong with a call, and leaves the mode as it was", function()
    net:train()
    fails(function() net:generate(text, { temperatur = 1 }) end, "did you mean 'temperature'")
    fails(function() net:generate(text, { temperature = 0 }) end, "temperature must be")
    fails(function() net:generate({}) end, "prompt 1 is empty")
    fails(function() net:generate("Hello") end, "T.data.tokenizer(folder, { index_base = 0 }):encode(text) makes them")
    fails(function() net:generate { input_ids = ids { 3 } } end, "its ids are .input_ids")
    fails(function() net:generate { 3, 99 } end, "ids must be from 0 to 31")
    fails(function() net:generate({ text, text }, { cache = T.nn.KVCache() }) end, "one prompt")
    fails(function() net:generate(text, { num_beams = 2, temperature = 2 }) end, "beams")
    fails(function() net:generate(text, { stop = { {} } }) end, "empty list in stop")
    fails(function() net:generate { 3, nil, 4 } end, "an id of the prompt must be a non-negative integer, got nil")
    fails(function() net:generate(text, { do_sample = "no" }) end, "do_sample must be true or false")
    fails(function() net:generate(text, { num_beams = 2, early_stopping = 1 }) end, "early_stopping must be")
    fails(function() net:generate(text, { max_new_tokens = 2, min_new_tokens = 3 }) end, "more than max_new_tokens")
    for name, o in pairs { draft = { draft = 3 }, length_penalty = { length_penalty = 2 },
      early_stopping = { early_stopping = true }, seed = { seed = 1, generator = T.Generator(1), do_sample = true },
      on_token = { num_beams = 2, on_token = print }, scores = { num_beams = 2, scores = true },
      inputs = { inputs = ids { 3 } }, inputs_mask = { inputs_mask = ids { 3 } } } do
      fails(function() net:generate(text, o) end, name .. " does nothing")
    end
    fails(function() net:generate(text, { seed = 1 }) end, "seed does nothing where the best token is taken")
    net:generate(text, { seed = 1, do_sample = false, max_new_tokens = 1 })
    local all = T.arange(0, 31):long():totable()
    fails(function() net:generate(text, { suppress = all }) end, "remove every token")
    fails(function() net:generate(text, { suppress = all, do_sample = true }) end, "remove every token")
    net.model.layers[1]:eval()
    net:generate(text, { max_new_tokens = 1 })
    assert.is_true(net.training and net.model.training and net.model.layers[2].training)
    assert.is_false(net.model.layers[1].training or net.model.layers[1].mlp.training)
    net:train()
    fails(function() T.models.generate(3) end, "a network of T.models is wanted")
  end)
end)

describe("T.models.load", function()
  -- A folder that is fine, after something was done to it; → the message.
  local function refused(change, name)
    local message
    folder(function(dir)
      assert(T.models.save(made(name or "Llama"), dir))
      change(dir)
      local net, why, code = T.models.load(dir)
      assert.is_nil(net)
      assert.is_string(code)
      message = why
    end)
    return message
  end
  local function settings(dir, f)
    local c = assert(json.read(dir .. "/config.json"))
    f(c)
    write(dir .. "/config.json", json.encode(c))
  end
  local function tensors(dir, f)
    local t, list = assert(T.load(dir .. "/model.safetensors")), {}
    for key, v in pairs(t) do list[key] = v:clone() end
    f(list)
    assert(T.save(dir .. "/model.safetensors", list))
  end
  local function has(message, ...)
    for _, part in ipairs { ... } do assert.is_truthy(message:find(part, 1, true), message) end
  end

  it("names file, tensor, what it expected and what it found", function()
    has(refused(function(d) tensors(d, function(t) t["model.norm.weight"] = nil end) end),
      "1 tensor is missing: model.norm.weight")
    has(refused(function(d) tensors(d, function(t) t["model.norm.weight"] = T.ones(3) end) end),
      "model.safetensors: tensor 'model.norm.weight' is [3], expected [16]")
    has(refused(function(d) tensors(d, function(t) t.odd = T.ones(3) end) end), "1 tensor is not of this model: odd")
    has(refused(function(d) tensors(d, function(t) t["model.norm.weight"] = T.ones(16, { dtype = "i64" }) end) end),
      "tensor 'model.norm.weight' is i64, expected f32")
    has(refused(function(d) os.remove(d .. "/model.safetensors") end), "without weights: model.safetensors")
    has(refused(function(d) os.remove(d .. "/config.json") end), "config.json")
    has(refused(function(d) write(d .. "/config.json", "{\n\"a\": 1,\n}") end), "config.json: no JSON: line 3")
    has(refused(function(d) write(d .. "/config.json", "[]") end), "an object is wanted")
    has(refused(function(d) write(d .. "/model.safetensors", "short") end), "model.safetensors")
  end)

  it("refuses experts that do not fit, and tied tensors that differ", function()
    local function changed(name, more, f)
      local message
      folder(function(dir)
        assert(T.models.save(made(name, more), dir))
        tensors(dir, f)
        local net, why = T.models.load(dir)
        assert.is_nil(net)
        message = why
      end)
      return message
    end
    local expert = "model.layers.1.block_sparse_moe.experts.2.w3.weight"
    has(changed("Mixtral", nil, function(t) t[expert] = T.ones(24, 15) end),
      "tensor 'model.layers.1.mlp.experts.2.w3.weight' is [24, 15], expected [24, 16]")
    has(changed("Mixtral", nil, function(t) t[expert] = t[expert]:half() end), "is f16, and others of its kind are not")
    has(changed("Mixtral", nil, function(t) t[expert] = nil end),
      "1 tensor is missing: model.layers.1.mlp.experts.2.w3.weight")
    local tied = { tie_word_embeddings = true }
    has(changed("Llama", tied, function(t) t["lm_head.weight"] = T.zeros(32, 16) end),
      "'lm_head.weight' is the same as 'model.embed_tokens.weight' in this model")
    folder(function(dir) -- the same twice is fine
      assert(T.models.save(made("Llama", tied), dir))
      tensors(dir, function(t) t["lm_head.weight"] = t["model.embed_tokens.weight"]:clone() end)
      assert(T.models.load(dir))
    end)
  end)

  it("refuses configs that it cannot follow", function()
    local function config(f, name) return refused(function(d) settings(d, f) end, name) end
    -- transformers keeps these and computes without them
    has(config(function(c) c.attn_logit_softcapping = 1.5 end, "Gemma3"), "attn_logit_softcapping = 1.5 is not")
    has(config(function(c) c.partial_rotary_factor = 0.5 end, "GPTNeoX"), "partial_rotary_factor = 0.5 is not")
    has(config(function(c) c.rope_theta = 500.0 end, "GPTNeoX"), "rope_theta = 500.0 is not supported (only 10000.0)")
    has(config(function(c) c.head_dim = 2 end, "GPTNeoX"), "head_dim = 2 is not")
    for _, name in ipairs { "Llama", "Gemma2", "GPT2" } do -- every decoder
      has(config(function(c) c.is_causal = false end, name), "is_causal = false is not supported")
    end
    -- words for layers: too few, unknown ones, windows of no width, and those that transformers takes no notice of
    local function layers(words, name, window)
      return config(function(c) c.layer_types, c.sliding_window = json.array(words), window end, name)
    end
    local all, some = "full_attention", "sliding_attention"
    has(layers({ all }, "Gemma2", 4), "layer_types must be a list of 2 words, one for each layer, got 1 of them")
    has(layers({ all, "linear_attention" }, "Gemma2", 4), "unknown entry of layer_types 'linear_attention'")
    has(layers({ all, some }, "Gemma2", json.null), "entry 2 of layer_types is sliding_attention, and there is no")
    has(layers({ all, some }, "Mistral", 4), "entry 1 of layer_types is full_attention, which is not supported")
    has(layers({ all, some }, "Llama"), "entry 2 of layer_types is sliding_attention, which is not supported")
    for _, name in ipairs { "Qwen2", "Qwen3" } do -- a window that is off
      local why = config(function(c)
        c.layer_types, c.sliding_window, c.use_sliding_window = json.array { all, some }, 4, false
      end, name)
      has(why, "entry 2 of layer_types is sliding_attention, and use_sliding_window is false")
    end
    has(config(function(c) c.rope_scaling = { type = "linear", factor = 8.0 } end, "Gemma3"),
      "rope_scaling says type = linear, which is called rope_type here")
    has(config(function(c) c.rope_parameters = { rope_type = "linear", factor = 8.0 } end, "Gemma3"),
      "rope_parameters must have full_attention and sliding_attention")
    -- other names that fields have in transformers win over their own
    has(config(function(c) c.num_hidden_layers = 3 end, "GPT2"), "missing", "transformer.h.2")
    has(config(function(c) c.num_experts = 4 end, "Mixtral"), "mlp.gate.weight' is [3, 16], expected [4, 16]")
    has(config(function(c) c.model_type = "lama" end), "config.json: unknown model_type 'lama'", "did you mean 'llama'")
    has(config(function(c) c.architectures = { "LlamaForTables" } end), "unknown architecture 'LlamaForTables'")
    has(config(function(c) c.hidden_size = "wide" end), "hidden_size must be a positive integer")
    has(config(function(c) c.intermediate_size = 20 end), "tensor", "is [24, 16], expected [20, 16]")
    has(config(function(c) c.hidden_act = "swoosh" end), "unknown activation 'swoosh'")
    has(config(function(c) c.rope_scaling = { rope_type = "spiral" } end), "kind", "spiral")
    has(config(function(c) c.rope_scaling = { rope_type = "llama3", factor = 2.0 } end), "needs low_freq_factor")
    has(config(function(c) c.quantization_config = { bits = 4 } end), "quantization_config")
  end)

  it("reads shards, and says which is missing or lacks what the index names", function()
    local function shards(d)
      local t, map = assert(T.load(d .. "/model.safetensors")), {}
      local parts = { {}, {} }
      for key, v in pairs(t) do
        local i = key:find "layers%.1" and 2 or 1
        parts[i][key], map[key] = v:clone(), ("model-%d.safetensors"):format(i)
      end
      for i = 1, 2 do assert(T.save(("%s/model-%d.safetensors"):format(d, i), parts[i])) end
      os.remove(d .. "/model.safetensors")
      write(d .. "/model.safetensors.index.json", json.encode { weight_map = map })
    end
    folder(function(d)
      local net = made "Llama":eval()
      assert(T.models.save(net, d))
      shards(d)
      assert.is_true(net(ids { text }):equal((assert(T.models.load(d))(ids { text }))))
      -- What is written over them is read again, as in transformers, and an empty generation_config.json is one.
      net = made("Llama", { eos_token_id = 2 }):eval()
      T.no_grad(function() net.model.norm.weight:mul_(3) end)
      net.generation_config = {}
      assert(T.models.save(net, d))
      local again = assert(T.models.load(d))
      assert.is_true(net(ids { text }):equal((again(ids { text }))))
      assert.is_nil(again.generation_config.eos_token_id)
    end)
    has(refused(function(d)
      shards(d)
      os.remove(d .. "/model-2.safetensors")
    end), "model-2.safetensors")
    has(refused(function(d)
      shards(d)
      assert(T.save(d .. "/model-2.safetensors", { x = T.ones(1) }))
    end), "model-2.safetensors: tensor", "is not in the index")
    has(refused(function(d)
      shards(d)
      write(d .. "/model.safetensors.index.json", '{"weight_map": {"a": "../other.safetensors"}}')
    end), "shards lie beside their index")
  end)

  it("reads configs of both styles alike", function()
    folder(function(d)
      local net = made("Llama", { rope_theta = 500.0, rope_scaling = { rope_type = "linear", factor = 2.0 } }):eval()
      assert(T.models.save(net, d))
      local old = assert(T.models.load(d))
      settings(d, function(c)
        c.rope_parameters = { rope_type = "linear", factor = 2.0, rope_theta = 500.0 }
        c.rope_theta, c.rope_scaling = nil, nil
      end)
      local new = assert(T.models.load(d))
      local want = net(ids { text })
      assert.is_true(want:equal((old(ids { text }))) and want:equal((new(ids { text }))))
    end)
  end)

  it("has no loss of a router, and says so where the config asks for one", function()
    local net = made("Mixtral", { output_router_logits = true })
    local given = ids { { 1, 2, 3 } }
    net(given)
    fails(function() net(given, { labels = given }) end, "output_router_logits of the config asks for a loss")
    net = made("Mixtral", { router_jitter_noise = 0.1 })
    fails(function() net(given) end, "router_jitter_noise of the config asks for noise")
    net:eval()(given)
  end)

  it("computes the loss without all logits", function()
    local tokens = T.randint(0, 31, { 2, 7 })
    local labels = tokens:clone()
    labels[1][3] = -100
    for name in pairs(kinds) do
      local net = made(name)
      local function run(o)
        net:zero_grad()
        o.labels = labels
        local logits, out = net(tokens, o)
        out.loss:backward()
        local grads = {}
        for n, p in net:named_parameters() do grads[n] = p.grad end
        return logits, out, grads
      end
      local logits, out, grads = run {}
      local none, less, again = run { logits = false }
      assert.is_truthy(logits)
      assert.is_nil(none)
      assert.is_nil(less.logits)
      assert.is_true(T.allclose(out.loss, less.loss, { rtol = 1e-5, atol = 1e-6 }), name)
      for n, g in pairs(grads) do assert.is_true(T.allclose(g, again[n], { rtol = 1e-3, atol = 1e-5 }), name .. n) end
    end
    local net = made "Llama"
    fails(function() net(tokens, { logits = false }) end, "wants labels")
    fails(function() net(tokens, { logits = 3, labels = tokens }) end, "logits")
    fails(function() net(tokens, { logits = false, labels = tokens[{ { 1, 1 } }] }) end, "integers [2, 7]")
  end)

  it("adds up the gradient of a head of halves in f32, chunk by chunk", function()
    local net = made("Llama", { vocab_size = 4096 }):to "bf16"
    local tokens = T.randint(0, 4095, { 4, 1025 })
    local function grad(o, f)
      net:zero_grad()
      o.labels = tokens
      f(o):backward()
      return net.lm_head.weight.grad
    end
    local function run(o) return select(2, net(tokens, o)).loss end
    local want = grad({}, run):float()
    for _, f in ipairs { run, function(o) return T.jit(run)(o) end } do
      local got = grad({ logits = false }, f)
      assert.equal("bf16", got:dtype())
      local off = ((got:float() - want):norm() / want:norm()):item()
      assert.is_true(off < 0.0035, off) -- twice as far where each of eight chunks is rounded
    end
  end)

  it("takes dtypes, and wrong calls are errors", function()
    folder(function(d)
      assert(T.models.save(made "Llama", d, { dtype = "bf16" }))
      assert.equal("bf16", T.load(d .. "/model.safetensors")["model.norm.weight"]:dtype())
      assert.equal("f32", T.models.load(d):parameters()[1]:dtype())
      assert.equal("bf16", T.models.load(d, { dtype = "file" }):parameters()[1]:dtype())
      assert.equal("f64", T.models.load(d, { dtype = "f64" }):parameters()[1]:dtype())
      assert.equal("f64", T.models.load(d, { dtype = "float64" }):parameters()[1]:dtype())
      local none, message = T.models.save(made "Llama", d .. "/nowhere")
      assert.is_nil(none)
      has(message, "make the folder first")
      none, message = T.models.load(d .. "/nowhere")
      assert.is_nil(none)
      has(message, "models are not downloaded")
    end)
    fails(function() T.models.load(3) end, "the folder must be a string")
    fails(function() T.models.load("x", { dtype = "f8" }) end, "unknown dtype 'f8'")
    fails(function() T.models.load("x", { device = "gpu" }) end, "a device is wanted")
    folder(function(d)
      assert(T.models.save(made "Llama", d))
      local net, why = T.models.load(d, { num_labels = 3 })
      assert.is_nil(net)
      assert.truthy(why:find("num_labels is for classes, and LlamaForCausalLM has none", 1, true), why)
    end)
    fails(function() T.models.save(T.nn.Linear(2, 2), "x") end, "a network of T.models is wanted")
  end)
end)
