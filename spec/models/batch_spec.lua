-- SPDX-License-Identifier: MIT
-- Texts that are made together (models/batch.lua): each as if alone, whoever comes and goes; rows and memory are given
-- back however a text ends.

local T = require "perilune"
local batches = require "perilune.models.batch"
local near = require "spec.support.near"

local sizes = { vocab_size = 64, hidden_size = 32, intermediate_size = 48, num_hidden_layers = 2,
  num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 1024, initializer_range = 0.4 }
local function with(more)
  local out = {}
  for key, v in pairs(sizes) do out[key] = v end
  for key, v in pairs(more or {}) do out[key] = v end
  return out
end
local function made(kind, more)
  T.manual_seed(3)
  return T.models[kind or "Llama"](with(more)):eval()
end

local function prompt(i)
  local p = {}
  for k = 1, i * 5 % 23 + 1 do p[k] = (i * 7 + k * 3) % 64 end
  return p
end
-- Greedy, drawn, and with changed logits, of many lengths.
local function settings(i)
  local o = { max_new_tokens = 3 + i * 11 % 60, stop = false }
  if i % 3 == 1 then o.temperature, o.top_k, o.seed = 0.8, 20, i end
  if i % 3 == 2 then o.repetition_penalty = 1.3 end
  return o
end

-- Makes texts 1 … total, at most `streams` at a time; leave(i, n) true: text i is abandoned at its n-th token.
local function run(net, batch, total, streams, leave)
  local out, running, first, count = {}, {}, 1, {}
  while first <= total or next(running) do
    local n = 0
    for _ in pairs(running) do n = n + 1 end
    while n < streams and first <= total do
      local i = first
      running[i] = coroutine.create(function()
        local o = settings(i)
        o.batch = batch
        out[i] = net:generate(prompt(i), o):totable()
      end)
      first, n = first + 1, n + 1
    end
    for i, c in pairs(running) do
      local ok, what = coroutine.resume(c)
      assert(ok, what)
      count[i] = (count[i] or 0) + 1
      if leave and leave(i, count[i]) then coroutine.close(c) end
      if coroutine.status(c) == "dead" then running[i] = nil end
    end
    batch:step()
  end
  return out
end

describe("a batch of texts", function()
  it("ends where a table of places does, and a text that is full stops no other one", function()
    local net = T.models.GPT2 { vocab_size = 64, n_embd = 16, n_layer = 1, n_head = 2, n_positions = 20 }:eval()
    local batch = assert(batches.new(net, 2))
    local full = batch:begin { { table.unpack(prompt(4), 1, 20) } } -- whose reader is behind
    full:advance { { table.unpack(prompt(4), 1, 20) } }
    local out
    local more = coroutine.wrap(function()
      return net:generate({ 1, 2, 3 }, { max_new_tokens = 17, stop = false, batch = batch })
    end)
    repeat
      out = more()
      batch:step()
    until T.is_tensor(out)
    assert.same(net:generate({ 1, 2, 3 }, { max_new_tokens = 17, stop = false }):totable(), out:totable())
    near.fails("20 places, and the text reaches place 21", function() return full:advance { { 1 } } end)
    full:close()
    near.fails("20 places, and the text reaches place 21", function()
      return net:generate({ 1, 2, 3 }, { max_new_tokens = 19, stop = false })
    end)
  end)

  for _, kind in ipairs { "Llama", "Qwen2", "GPT2" } do
    it("makes each as if it were alone: " .. kind, function()
      local net = kind == "GPT2" and T.models.GPT2 { vocab_size = 64, n_embd = 32, n_layer = 2, n_head = 4,
        n_positions = 84, initializer_range = 0.4 }:eval() or made(kind)
      local batch = assert(batches.new(net, 16))
      local out = run(net, batch, 40, 16)
      local tokens = 0
      for i = 1, 40 do
        assert.same(net:generate(prompt(i), settings(i)):totable(), out[i], kind .. " " .. i)
        tokens = tokens + #out[i]
      end
      assert.is_true(batch.calls * 4 < tokens, "calls of the network are shared")
      assert.is_nil(next(batch.slots))
      assert.equal(0, batch.rows)
      collectgarbage()
      collectgarbage()
      local before = T.memory().live
      run(net, batch, 40, 16)
      collectgarbage()
      collectgarbage()
      assert.is_true(T.memory().live <= before + 4096, "its programs keep the memory of texts")
      local held = T.memory().live
      batch.program = nil
      collectgarbage()
      collectgarbage()
      assert.is_true(held - T.memory().live < 2^20, "its programs keep the memory of texts")
    end)
  end

  it("works in quantized weights, and over blocks of the memory", function()
    local net = made(nil, { hidden_size = 64, intermediate_size = 64 })
    T.quantize(net, { bits = 8 })
    local batch, out = assert(batches.new(net, 4)), {}
    local list = {}
    for i = 1, 4 do
      list[i] = coroutine.create(function()
        local n = i == 1 and 300 or 40
        out[i] = net:generate({ i, 9 }, { max_new_tokens = n, stop = false, batch = batch }):totable()
      end)
    end
    repeat
      local some = false
      for _, c in ipairs(list) do
        if coroutine.status(c) ~= "dead" then
          some = true
          assert(coroutine.resume(c))
        end
      end
      batch:step()
    until not some
    for i = 1, 4 do
      assert.same(net:generate({ i, 9 }, { max_new_tokens = i == 1 and 300 or 40, stop = false }):totable(), out[i])
    end
  end)

  it("sees which adapters of its network are active", function()
    local net = made():to "f64"
    T.nn.lora(net, { rank = 2, target = "all-linear" })
    T.no_grad(function()
      for _, p in ipairs(net:parameters()) do if p:eq(0):all():item() then p:normal_(0, 0.5) end end
    end)
    local batch = batches.new(net, 1)
    for _, which in ipairs { "default", false, "default" } do
      T.nn.set_adapter(net, which)
      local out = run(net, batch, 1, 1)[1]
      local o = settings(1)
      assert.same(net:generate(prompt(1), o):totable(), out)
      assert.is_true(#out > 9) -- with its program
    end
  end)

  it("goes on without those that are abandoned, and keeps nothing of them", function()
    local net = made()
    local batch = assert(batches.new(net, 8))
    local out = run(net, batch, 30, 8, function(i, n) return i % 4 == 0 and n == i % 7 + 1 end)
    for i = 1, 30 do
      if out[i] then assert.same(net:generate(prompt(i), settings(i)):totable(), out[i]) end
      if i % 4 ~= 0 then assert.is_table(out[i]) end
    end
    assert.is_nil(next(batch.slots))
    assert.is_nil(next(batch.waiting))
    assert.equal(0, batch.rows)
  end)

  it("tells each text where a step fails, and works again", function()
    local net = made()
    local batch = assert(batches.new(net, 2))
    local forward = net.model.forward
    local function start()
      local c = coroutine.create(function()
        return net:generate({ 1, 2 }, { max_new_tokens = 5, stop = false, batch = batch })
      end)
      assert(coroutine.resume(c))
      return c
    end
    local a, b = start(), start()
    rawset(net.model, "forward", function() error "no more" end)
    batch:step()
    rawset(net.model, "forward", forward)
    for _, c in ipairs { a, b } do
      local ok, why = coroutine.resume(c)
      assert.is_false(ok)
      assert.truthy(tostring(why):find("no more", 1, true))
    end
    assert.is_nil(next(batch.slots))
    assert.equal(4, #run(net, batch, 4, 2))
  end)

  it("is not for networks whose layers see windows or choose experts", function()
    assert.is_nil(batches.new(made("Mistral", { sliding_window = 4 }), 4))
    assert.is_nil(batches.new(made("Mixtral", { num_local_experts = 3 }), 4))
    local net = made()
    local batch = batches.new(net, 1)
    for _, o in ipairs { { num_beams = 2 }, { cache = T.nn.KVCache() } } do
      o.batch = batch
      local ok, why = pcall(net.generate, net, { 1 }, o)
      assert.is_false(ok)
      assert.truthy(tostring(why):find("batch", 1, true), why)
    end
  end)
end)
