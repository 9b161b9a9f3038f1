-- SPDX-License-Identifier: MIT
-- One more token as a compiled program: the same tokens as calls of the network give, whatever the cache, its growth,
-- what is done to it and to the weights in between; networks that cannot have one.

local T = require "perilune"
local nn = T.nn

local sizes = { vocab_size = 64, hidden_size = 32, intermediate_size = 48, num_hidden_layers = 2,
  num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 512, initializer_range = 0.4 }

local function with(more)
  local out = {}
  for key, v in pairs(sizes) do out[key] = v end
  for key, v in pairs(more or {}) do out[key] = v end
  return out
end

-- Greedy tokens by calls of the network.
local function called(net, prompt, n)
  local cache, out, ids = nn.KVCache(), {}, T.tensor({ prompt }, { dtype = "i64" })
  T.no_grad(function()
    for i = 1, n do
      out[i] = net(ids, { cache = cache, last = 1 }):argmax(-1, { index_base = 0 }):item()
      ids = T.tensor({ { out[i] } }, { dtype = "i64" })
    end
  end)
  return out
end
local function generated(net, prompt, n, o)
  o = o or {}
  o.max_new_tokens, o.stop = n, false
  return net:generate(prompt, o):totable()
end

describe("generating", function()
  it("gives the tokens of plain calls, over blocks of the cache", function()
    T.manual_seed(1)
    for _, kind in ipairs { "Llama", "Qwen2", "GPT2", "Gemma2", "Mixtral" } do
      local net
      if kind == "GPT2" then
        net = T.models.GPT2 { vocab_size = 64, n_embd = 32, n_layer = 2, n_head = 4, n_positions = 512,
          initializer_range = 0.4 }
      elseif kind == "Gemma2" then
        net = T.models.Gemma2(with { head_dim = 8, sliding_window = 7 })
      else
        net = T.models[kind](with(kind == "Mixtral" and { num_local_experts = 3 } or nil))
      end
      net:eval()
      local want = called(net, { 5, 9, 2 }, 90)
      assert.same(want, generated(net, { 5, 9, 2 }, 90), kind)
      assert.same(want, generated(net, { 5, 9, 2 }, 90, { cache = nn.KVCache { block = 16 } }), kind)
    end
  end)

  it("goes on from a cache that was cropped, filled by others, or of changed weights", function()
    T.manual_seed(2)
    local net = T.models.Llama(sizes):eval()
    local cache = nn.KVCache()
    local first = generated(net, { 7, 8 }, 40, { cache = cache })
    assert.same(called(net, { 7, 8 }, 40), first)
    local prompt = { 7, 8, table.unpack(first, 1, 20) }
    prompt[#prompt + 1] = 1
    assert.same(called(net, prompt, 30), generated(net, prompt, 30, { cache = cache }))
    T.no_grad(function() for _, p in ipairs(net:parameters()) do p:mul_(0.9) end end)
    assert.same(called(net, { 7, 8 }, 40), generated(net, { 7, 8 }, 40, { cache = cache }))
    net:to "f64"
    assert.same(called(net, { 3 }, 30), generated(net, { 3 }, 30))
    T.quantize(net:to "f32", { bits = 8, embeddings = true })
    assert.same(called(net, { 3 }, 30), generated(net, { 3 }, 30))
    nn.lora(net, { rank = 2, target = "all-linear" })
    T.no_grad(function() for _, m in ipairs(net:modules()) do if m.lora_B then m.lora_B:normal_(0, 0.5) end end end)
    assert.same(called(net, { 3 }, 30), generated(net, { 3 }, 30))
  end)

  it("reads nothing of a cache whose network computes otherwise by now, whatever was changed", function()
    T.manual_seed(7)
    local net = T.models.Llama(sizes):eval()
    for _, name in ipairs { "a", "b" } do nn.lora(net, { rank = 2, target = "all-linear", name = name }) end
    T.no_grad(function()
      for _, p in ipairs(net:parameters()) do if p:eq(0):all():item() then p:normal_(0, 0.5) end end
    end)
    local cache, prompt, attention = nn.KVCache(), { 5, 9, 2, 11 }, net.model.layers[1].self_attn
    local function replaced(w)
      attention.k_proj.weight = nn.Parameter(w)
      collectgarbage()
      collectgarbage()
    end
    local hook
    for i, change in ipairs { function() end, function() nn.set_adapter(net, "a") end,
      function() nn.set_adapter(net, { "a", "b" }) end, function() nn.set_adapter(net, false) end,
      function() replaced(T.randn(16, 32)) end, function() replaced(T.randn(16, 32)) end,
      function() hook = attention:register_forward_hook(function(_, _, y) return y * 0.1 end) end,
      function() hook:remove() end, function() attention.scale = 3.0 end,
      function() rawset(attention.v_proj, "forward", function(_, x) return x:narrow(3, 1, 16) end) end } do
      change()
      local want = generated(net, prompt, 12)
      assert.same(want, generated(net, prompt, 12, { cache = cache }), i)
      local kept = cache:crop(3) -- and nothing was changed: it is read from where it differs
      assert.same(want, generated(net, prompt, 12, { cache = kept }), i)
      local places = {}
      rawset(cache, "crop", function(self, n)
        places[#places + 1] = n
        return getmetatable(self).crop(self, n)
      end)
      generated(net, { 5, 9, 2, 11, want[1], 3 }, 1, { cache = cache })
      assert.same({ 5 }, places)
      rawset(cache, "crop", nil)
    end
  end)

  it("goes on from a cache where something that is no number was", function()
    T.manual_seed(6)
    local net = T.models.Llama(sizes):eval()
    local cache = nn.KVCache()
    local want = generated(net, { 5, 9, 2 }, 30)
    for _, keep in ipairs { 2, 5, 20 } do
      generated(net, { 5, 9, 2 }, 30, { cache = cache })
      for _, at in ipairs(cache.layers) do
        for _, t in ipairs { at.k, at.v } do t:narrow(3, keep + 1, at.n - keep):fill_(0 / 0) end
      end
      cache:crop(keep)
      assert.same(want, generated(net, { 5, 9, 2 }, 30, { cache = cache }), keep)
    end
  end)

  it("does batches, scores, drawn tokens and beams alike", function()
    T.manual_seed(3)
    local net = T.models.Llama(sizes):eval()
    local both = net:generate({ { 4, 5 }, { 6, 7 } }, { max_new_tokens = 30, stop = false })
    assert.same(called(net, { 4, 5 }, 30), both[1]:totable())
    assert.same(called(net, { 6, 7 }, 30), both[2]:totable())
    local padded = net:generate({ { 4, 5 }, { 6 } }, { max_new_tokens = 30, stop = false })
    assert.same(called(net, { 6 }, 30), padded[2]:totable())
    local ids, scores = net:generate({ 4, 5 }, { max_new_tokens = 30, stop = false, scores = true })
    assert.same(ids:totable(), scores:argmax(-1, { index_base = 0 }):totable())
    local o = { temperature = 0.8, top_k = 9, seed = 11 }
    local a = generated(net, { 4, 5 }, 40, o)
    assert.same(a, generated(net, { 4, 5 }, 40, { temperature = 0.8, top_k = 9, seed = 11 }))
    local one = net:generate({ 4, 5 }, { max_new_tokens = 30, stop = false, num_beams = 3 }):totable()
    assert.same(one, net:generate({ 4, 5 }, { max_new_tokens = 30, stop = false, num_beams = 3 }):totable())
  end)

  it("calls hooks as often as the network is called", function()
    T.manual_seed(4)
    local net, n = T.models.Llama(sizes):eval(), 0
    generated(net, { 1 }, 30)
    local hook = net.model.layers[1]:register_forward_hook(function() n = n + 1 end)
    generated(net, { 1 }, 20)
    assert.equal(20, n)
    hook:remove()
  end)

  it("makes no tensors of its own once there is a program", function()
    T.manual_seed(5)
    local net = T.models.Llama(sizes):eval()
    generated(net, { 1 }, 40)
    local blocks = {}
    net:generate({ 1 }, { max_new_tokens = 40, stop = false,
      on_token = function() blocks[#blocks + 1] = T.memory().blocks end })
    for i = 10, 40 do assert.is_true(blocks[i] <= blocks[9], "more tensors live at each token") end
  end)

  it("makes no tensor for a token: what kernels work in, and the plan's memory, is all that is asked for", function()
    T.manual_seed(4)
    for layers = 1, 3, 2 do
      local net = T.models.Llama(with { num_hidden_layers = layers }):eval()
      local counts, last = {}, nil
      net:generate({ 5, 9, 2 }, { max_new_tokens = 40, stop = false, on_token = function()
        local now = T.memory().allocations
        counts[#counts + 1], last = last and now - last, now
      end })
      -- 4 of attention (two threads, twice), one of the plan, one of the embedding; run op by op a layer has 80
      for i = 12, 30 do
        assert.is_true(counts[i] <= 4 * layers + 2, ("token %d: %d allocations"):format(i, counts[i]))
      end
    end
  end)
end)
