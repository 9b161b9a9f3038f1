-- SPDX-License-Identifier: MIT
-- Several adapters of one network, drawn at random: each computes, trains, is merged and saved as if it were alone,
-- several are sums, none is the network; heads of their own where the network's is the embedding.

local T = require "perilune"
local json = require "perilune.io.json"
local near = require "spec.support.near"
local folder = require "spec.support.folder"
local nn = T.nn
local function fails(f, part) return near.fails(part, f) end

local function network(seed)
  T.manual_seed(seed)
  local net = T.models.Llama({ vocab_size = 24, hidden_size = 8, intermediate_size = 12, num_hidden_layers = 2,
    num_attention_heads = 2, max_position_embeddings = 16, tie_word_embeddings = seed % 2 == 0 }):eval()
  T.no_grad(function()
    for _, p in ipairs(net:parameters()) do if p:dim() == 2 then p:mul_(10) end end
  end)
  return net
end
local function tokens() return T.tensor({ { 3, 7, 1, 20 }, { 5, 5, 2, 9 } }, { dtype = "i64" }) end
local function of(net) return T.no_grad(net, tokens()) end
local function same(a, b, why)
  local off = (a - b):abs():max():item()
  assert.is_true(off < 1e-5, ("%s: off by %g"):format(why, off))
end

-- What one adapter of a network has is made unlike what it was at first.
local function stir(net, name, seed)
  T.manual_seed(seed)
  nn.set_adapter(net, name)
  T.no_grad(function()
    for _, p in ipairs(net:parameters()) do
      if p.requires_grad then p:add_(T.randn(p:shape()) * 0.2) end
    end
  end)
end

describe("several adapters", function()
  it("compute, are merged, saved and loaded, each as if alone", function()
    for seed = 1, 4 do
      local net, plan, want = network(seed), {}, {}
      local base = of(net)
      for k, name in ipairs { "default", "short", "code_2" } do
        plan[k] = { name = name, rank = 1 + (seed + k) % 3, alpha = 4 * k, rslora = (seed + k) % 2 == 0,
          dora = (seed * k) % 5 == 3,
          target = ({ "q_proj", { "v_proj", "down_proj" }, "all-linear" })[1 + (seed + k) % 3],
          modules_to_save = ({ false, "lm_head", { "norm", "embed_tokens" } })[1 + seed * k % 3] or nil }
      end
      for k, o in ipairs(plan) do
        nn.lora(net, o)
        stir(net, o.name, 10 * seed + k)
        want[o.name] = of(net:eval())
        assert.is_true((want[o.name] - base):abs():max():item() > 1e-3, ("%d %s"):format(seed, json.encode(o)))
        -- the same on a network that has no other
        local alone = nn.lora(network(seed), o)
        stir(alone, o.name, 10 * seed + k)
        folder(function(dir)
          assert(nn.save_lora(net, dir, { name = o.name }))
          local again = assert(nn.load_lora(network(seed), dir))
          same(of(again:eval()), want[o.name], "loaded alone")
          local c = assert(json.read(dir .. "/adapter_config.json"))
          assert.equal(o.modules_to_save ~= nil, c.modules_to_save ~= json.null)
        end)
      end
      local copy = net:clone()
      local jitted = T.jit(function(x) return net(x) end)
      for _, name in ipairs { "short", "default", "code_2", "short" } do
        nn.set_adapter(net, name)
        same(of(net), want[name], name)
        same(T.no_grad(jitted, tokens()), want[name], "jit " .. name)
      end
      nn.set_adapter(net, false)
      same(of(net), base, "none")
      assert.equal(0, net:num_parameters { trainable = true })
      nn.set_adapter(copy, "default")
      same(of(copy), want.default, "a copy")
      same(of(net), base, "none beside a copy")
      for k = 1, 3 do
        local whole = net:clone()
        nn.set_adapter(whole, plan[k].name)
        nn.merge_lora(whole)
        same(of(whole), want[plan[k].name], "merged")
        assert.equal(#network(seed):parameters() + (seed % 2 == 0 and plan[k].modules_to_save and 1 or 0),
          #whole:parameters())
        folder(function(dir) -- with a head of its own where it has got one
          assert(T.models.save(whole, dir))
          same(of(assert(T.models.load(dir))), want[plan[k].name], "merged and saved")
        end)
      end
    end
  end)

  it("add up where several are active", function()
    local net = network(1)
    for k, name in ipairs { "a", "b" } do
      nn.lora(net, { name = name, rank = k, alpha = 3, target = { "q_proj", "lm_head" } })
      stir(net, name, k)
    end
    nn.set_adapter(net, { "a", "b" })
    local layer, x = net.lm_head, T.randn(3, 8)
    local function part(name, rank) return layer["lora_B_" .. name]:matmul(layer["lora_A_" .. name]) * (3 / rank) end
    same(layer(x), nn.F.linear(x, layer.weight + part("a", 1) + part("b", 2)), "two")
    local want = of(net)
    same(of(nn.merge_lora(net:clone())), want, "merged")
    nn.lora(net, { name = "c", dora = true, target = "q_proj" })
    fails(function() nn.set_adapter(net, { "a", "c" }) end, "'c' of model.layers.0.self_attn.q_proj is DoRA")
    nn.lora(net, { name = "d", modules_to_save = "norm" })
    nn.lora(net, { name = "e", modules_to_save = "norm" })
    fails(function() nn.set_adapter(net, { "d", "e" }) end, "both 'd' and 'e' have a model.norm of their own")
    nn.set_adapter(net, { "a", "d" })
  end)

  it("train what is active, and leave the rest alone", function()
    local net = network(2)
    nn.lora(net, { name = "a", modules_to_save = "lm_head" })
    nn.lora(net, { name = "b", modules_to_save = "lm_head" })
    local before = net:clone()
    local embed = net.model.embed_tokens.weight
    for round, name in ipairs { "a", "b", "a" } do
      nn.set_adapter(net, name)
      local opt = T.optim.SGD(net:parameters(), { lr = 1 })
      assert.is_true(net.lm_head.weight ~= embed and not embed.requires_grad)
      select(2, net(tokens(), { labels = tokens() })).loss:backward()
      opt:step()
      opt:zero_grad()
      for _, other in ipairs { "a", "b" } do
        nn.set_adapter(net, other)
        nn.set_adapter(before, other)
        local moved = not of(net):equal(of(before))
        assert.equal(round > 1 or other == "a", moved, round .. other)
      end
      nn.set_adapter(net, false)
      nn.set_adapter(before, false)
      assert.is_true(of(net):equal(of(before)) and net.lm_head.weight == embed)
    end
  end)

  it("say what is wrong", function()
    local net = network(1)
    fails(function() nn.set_adapter(net, "a") end, "has no adapters")
    nn.lora(net, { name = "a" })
    fails(function() nn.lora(net, { name = "a" }) end, "has an adapter already, 'a'")
    fails(function() nn.lora(net, { name = "a.b" }) end, "letters, digits and _")
    fails(function() nn.lora(net, { name = "b", modules_to_save = "head" }) end, "no module is named by")
    nn.lora(net, { name = "b" })
    fails(function() nn.set_adapter(net, "c") end, "there is no adapter \"c\"; there are 'a', 'b'")
    fails(function() nn.set_adapter(net, { "a", "a" }) end, "named twice")
    fails(function() nn.set_adapter(net) end, "the adapters")
    nn.set_adapter(net, false)
    fails(function() nn.save_lora(net, "/nowhere") end, "which adapter")
    fails(function() nn.save_lora(net, "/nowhere", { name = "z" }) end, "there is no adapter \"z\"")
    folder(function(dir)
      assert(nn.save_lora(net, dir, { name = "a" }))
      local ok, why = nn.load_lora(net, dir, { name = "b" })
      assert.is_nil(ok)
      assert.truthy(why:find("has an adapter already, 'b'", 1, true), why)
    end)
  end)

  it("T.models.save writes what is tied, and refuses other ties", function()
    local net = network(2)
    net.lm_head.weight = nn.Parameter(net.lm_head.weight:detach() * 2)
    folder(function(dir)
      local want = of(net)
      assert(T.models.save(net, dir))
      same(of(assert(T.models.load(dir))), want, "untied")
      net = network(1)
      net.lm_head.weight = net.model.embed_tokens.weight
      want = of(net)
      assert(T.models.save(net, dir))
      same(of(assert(T.models.load(dir))), want, "tied")
      net.model.layers[2].input_layernorm.weight = net.model.norm.weight
      local ok, why = T.models.save(net, dir)
      assert.is_nil(ok)
      assert.truthy(why:find("are one tensor, which a LlamaForCausalLM does not say", 1, true), why)
    end)
  end)

  it("train biases beside, and what is shared stays so in files", function()
    local function biased()
      return T.models.Llama({ vocab_size = 24, hidden_size = 8, intermediate_size = 12, num_hidden_layers = 1,
        num_attention_heads = 2, attention_bias = true, mlp_bias = true, tie_word_embeddings = true }):eval()
    end
    T.manual_seed(7)
    local source = biased():state_dict()
    local function fresh()
      local net = biased()
      assert(net:load_state_dict(source))
      return net
    end
    for bias, count in pairs { none = 0, lora_only = 1, all = 7 } do
      local net = nn.lora(fresh(), { target = "q_proj", bias = bias })
      local trained = 0
      for name, p in net:named_parameters() do
        if p.requires_grad and name:find "bias$" then trained = trained + 1 end
      end
      assert.equal(count, trained)
      stir(net, "default", 5)
      local want = of(net)
      folder(function(dir)
        assert(nn.save_lora(net, dir))
        assert.equal(bias, assert(json.read(dir .. "/adapter_config.json")).bias)
        same(of(assert(nn.load_lora(fresh(), dir))), want, bias)
      end)
      nn.set_adapter(net, false)
      same(of(net), of(fresh()), "the network's own biases")
      nn.set_adapter(net, "default")
      same(of(nn.merge_lora(net)), want, "merged")
    end
    local net = nn.lora(fresh(), { target = "q_proj" })
    net.model.embed_tokens.weight:requires_grad_(true) -- which is that of the head
    T.no_grad(function() net.model.embed_tokens.weight:mul_(2) end)
    folder(function(dir)
      assert(nn.save_lora(net, dir))
      local c = assert(json.read(dir .. "/adapter_config.json"))
      assert.same({ "lm_head", "model.embed_tokens" }, { table.unpack(c.modules_to_save) })
      assert.is_true(c.ensure_weight_tying)
      local again = assert(nn.load_lora(fresh(), dir))
      same(of(again), of(net), "tied")
      assert.equal(again.lm_head.weight, again.model.embed_tokens.weight)
    end)
    fails(function() nn.lora(fresh(), { bias = "some" }) end, "unknown bias 'some'")
    local _, names = nn.lora(fresh(), { target = "all-linear", modules_to_save = "mlp" }) -- no adapters within
    assert.equal(4, #names)
  end)
end)
