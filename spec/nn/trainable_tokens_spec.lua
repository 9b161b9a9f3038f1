-- SPDX-License-Identifier: MIT
-- Rows of tables that an adapter trains (trainable_token_indices): as if the whole weight was trained and the gradients
-- of other rows were dropped; beside weights in blocks; several adapters; files and calls that do not fit. PEFT's own
-- numbers are in spec/models/peft_spec.lua.

local T = require "perilune"
local json = require "perilune.io.json"
local near = require "spec.support.near"
local folder = require "spec.support.folder"
local nn = T.nn
local function fails(f, part) return near.fails(part, f) end

local function same(a, b, why, tol)
  assert.same(a:shape(), b:shape())
  local off = (a:detach():double() - b:detach():double()):abs():max():item()
  assert.is_true(off <= (tol or 1e-5), ("%s: off by %g"):format(why, off))
end

-- A table, a layer, a head with a bias that may share the table's weight.
local function network(tied, o)
  T.manual_seed(4)
  local Net = nn.class "Net"
  function Net:init()
    self.wte = nn.Embedding(9, 32, o)
    self.wpe = nn.Embedding(4, 32)
    self.proj = nn.Linear(32, 32)
    self.head = nn.Linear(32, 9)
    if tied then self.head.weight = self.wte.weight end
  end
  function Net:forward(ids) return self.head(self.proj(self.wte(ids) + self.wpe.weight):tanh()) end
  return Net()
end
local function tokens() return T.tensor({ { 3, 8, 1, 3 }, { 2, 1, 8, 5 } }, { dtype = "i64" }) end

local function stir(net, seed)
  T.manual_seed(seed)
  T.no_grad(function()
    for _, p in ipairs(net:parameters()) do if p.requires_grad then p:add_(T.randn(p:shape()) * 0.3) end end
  end)
  return net
end

describe("trainable_token_indices", function()
  it("trains these rows as if the whole weight was trained, the head that shares them, too", function()
    local ids = tokens()
    for _, tied in ipairs { true, false } do
      for _, o in ipairs { { index_base = 1 }, { padding_idx = 8 }, { scale_grad_by_freq = true }, { index_base = 0 },
        not tied and { max_norm = 2.0, padding_idx = 3 } or nil } do
        local rows = { 8, 3, 2 }
        local why = ("%s %s"):format(tied, json.encode(o))
        local first = o.index_base or 1
        local net, whole = network(tied, o), network(tied, o)
        same(T.no_grad(nn.lora(net, { target = "proj", trainable_token_indices = rows }), ids),
          T.no_grad(whole, ids), why, 0)
        assert.same({ 3, 32 }, net.wte.trainable_tokens_delta:shape())
        assert.equal(tied, rawequal(net.head.trainable_tokens_delta, net.wte.trainable_tokens_delta))
        assert.equal(3 * 32 + 2 * 8 * 32, net:num_parameters { trainable = true })
        T.manual_seed(9)
        local new, at = T.randn(3, 32), T.tensor(rows, { dtype = "i64" }) + (1 - first)
        T.no_grad(function()
          net.wte.trainable_tokens_delta:copy_(new)
          whole.wte.weight:index_copy_(1, at, new)
        end)
        local y, z = net(ids), whole(ids)
        same(y, z, why)
        T.manual_seed(5)
        local g = T.randn(y:shape())
        y:backward(g)
        z:backward(g)
        same(net.wte.trainable_tokens_delta.grad, whole.wte.weight.grad:index_select(1, at), why)
        assert.is_nil(net.wte.weight.grad)
        same(T.no_grad(T.jit(function(x) return net(x) end), ids), y, why)
        same(T.no_grad(net:clone(), ids), y, why)
        nn.set_adapter(net, false)
        same(T.no_grad(net, ids), T.no_grad(network(tied, o), ids), why, 0)
        nn.set_adapter(net, "default")
        same(T.no_grad(nn.merge_lora(net), ids), z, why)
        assert.equal(tied and 5 or 6, #net:parameters())
        assert.equal(0, #net:buffers())
      end
    end
  end)

  it("is the same beside weights in blocks", function()
    local ids = tokens()
    for _, tied in ipairs { true, false } do
      local blocks = network(tied)
      blocks = T.quantize(blocks, { format = "Q8_0", embeddings = true, skip = "wpe" }) or blocks
      local plain = blocks:clone()
      for _, name in ipairs { "wte", "head", "proj" } do plain[name] = plain[name]:dequantize() end
      if tied then plain.head.weight = plain.wte.weight end
      for _, net in ipairs { blocks, plain } do
        nn.lora(net, { target = "proj", trainable_token_indices = { wte = { 1, 8 } } })
        stir(net, 6)
      end
      for name, p in plain:named_parameters() do
        if p.requires_grad then T.no_grad(function() blocks:get_parameter(name):copy_(p) end) end
      end
      local y, z = blocks(ids), plain(ids)
      same(y, z, "blocks", 2e-2)
      y:sum():backward()
      z:sum():backward()
      same(blocks.wte.trainable_tokens_delta.grad, plain.wte.trainable_tokens_delta.grad, "gradient", 2e-2)
      fails(function() nn.merge_lora(blocks) end, "not floating")
      folder(function(dir)
        assert(nn.save_lora(blocks, dir))
        assert(nn.load_lora(nn.merge_lora(plain), dir))
        assert.equal(tied, plain.head.trainable_tokens_delta ~= nil)
      end)
    end
  end)

  it("is written under the table's name and read again, by several adapters", function()
    local net, want, ids = network(true), {}, tokens()
    for k, o in ipairs { { name = "one", trainable_token_indices = { 1, 3 } },
      { name = "two", trainable_token_indices = { wte = { 5 }, head = { 1, 2 } } }, { name = "three" } } do
      o.target = "proj"
      stir(nn.lora(net, o), k)
      want[o.name] = T.no_grad(net, ids)
    end
    local tables = { one = { wte = { 0, 2 } }, two = { wte = { 4 }, head = { 0, 1 } } }
    for name, y in pairs(want) do
      nn.set_adapter(net, name)
      same(T.no_grad(net, ids), y, name, 0)
      folder(function(dir)
        assert(nn.save_lora(net, dir))
        assert.same(tables[name] or json.null, json.read(dir .. "/adapter_config.json").trainable_token_indices)
        local again = assert(nn.load_lora(network(true), dir))
        same(T.no_grad(again, ids), y, name, 0)
        assert.equal(name == "one", rawequal(again.head.trainable_tokens_delta, again.wte.trainable_tokens_delta
          or false))
      end)
    end
    nn.set_adapter(net, { "one", "three" })
    fails(function() nn.set_adapter(net, { "one", "two" }) end, "have a wte of their own")
    nn.set_adapter(net, "two")
    fails(function() nn.merge_lora(net) end, "shares and has not")
    local head = stir(nn.lora(network(true), { target = "proj", trainable_token_indices = { head = { 2 } } }), 7)
    assert.is_nil(head.wte.trainable_tokens_delta)
    fails(function() nn.merge_lora(head) end, "shares and has not")
  end)

  it("says what does not fit, and changes nothing then", function()
    local function wrong(part, given, o)
      local net = network(true)
      o = o or {}
      o.target, o.trainable_token_indices = o.target or "proj", given
      fails(function() nn.lora(net, o) end, part)
      assert.equal(5, #net:parameters())
      assert.is_true(net.wte.weight.requires_grad)
    end
    wrong("10 is not in 1..9, the ids of wte", { 10 })
    wrong("0 is not in 1..9", { 0 })
    wrong("row 2 of wte is named twice", { 3, 3 })
    wrong("ids or { name = ids } are wanted", 3)
    wrong("ids or { name = ids } are wanted", {})
    wrong("no row 1.5", { 1.5 })
    wrong("no table and no linear layer is named by 'nothing'", { nothing = { 1 } })
    wrong("all of wte is trained already", { 1 }, { modules_to_save = "wte" })
    wrong("dora of head", { 1 }, { target = "head", dora = true })
    local net = nn.lora(network(true), { target = "proj", trainable_token_indices = { 2 } })
    fails(function() nn.lora(net, { target = "head", trainable_token_indices = { 2 } }) end, "already, 'default'")
    local plain = { target = "all-linear", trainable_token_indices = { 1 } }
    fails(function() nn.lora(nn.Sequential(nn.Linear(2, 2)), plain) end, "no table of vectors")
    folder(function(dir)
      assert(nn.save_lora(net, dir))
      local file, key = dir .. "/adapter_config.json", "trainable_token_indices"
      local c = assert(json.read(file))
      for _, case in ipairs { { "is missing", json.null }, { "expected [2, 32]", { wte = { 1, 2 } } },
        { "no ids for 'wte'", { head = { 1 } } }, { "has 9 rows, and no row 9", { 9 } },
        { "is what 'x' is for", { wte = { 1 }, x = { 2 } } } } do
        c[key] = case[2]
        assert(json.write(file, c))
        local other = network(true)
        local ok, why = nn.load_lora(other, dir)
        assert.is_nil(ok)
        assert.is_truthy(why:find(case[1], 1, true), why)
        assert.equal(5, #other:parameters())
      end
    end)
  end)
end)
