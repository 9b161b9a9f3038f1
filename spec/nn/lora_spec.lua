-- SPDX-License-Identifier: MIT
-- nn.lora: what is trained and what is not, merging, DoRA, files, and folders that do not fit.

local T = require "perilune"
local json = require "perilune.io.json"
local near = require "spec.support.near"
local folder = require "spec.support.folder"
local nn = T.nn
local function fails(f, part) return near.fails(part, f) end

local function same(a, b, tol)
  assert.same(a:shape(), b:shape())
  local d = (a:detach():double() - b:detach():double()):abs():max():item()
  assert.is_true(d <= (tol or 1e-5), "differs by " .. d)
end

local function net()
  local Net = nn.class "Net"
  function Net:init()
    self.q_proj = nn.Linear(4, 6)
    self.v_proj = nn.Linear(6, 5, { bias = false })
    self.score = nn.Linear(5, 2)
  end
  function Net:forward(x) return self.score(self.v_proj(self.q_proj(x):tanh())) end
  return Net()
end

local function stirred(n) -- adapters that do something
  T.no_grad(function()
    for _, m in ipairs(n:modules()) do if m.lora_B then m.lora_B:normal_(0, 0.5) end end
  end)
  return n
end

describe("nn.lora", function()
  it("leaves weights alone that other layers have as well", function()
    local Tied = nn.class "Tied"
    function Tied:init()
      self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, { bias = false })
      self.head.weight = self.embed.weight
      self.again = nn.Linear(4, 7, { bias = false })
    end
    function Tied:forward(x) return self.head(self.embed(x)) end
    local n, x = stirred(nn.lora(Tied(), { target = "head" })), T.tensor({ 1, 5 }, { dtype = "i64" })
    local want = n(x)
    fails(function() nn.merge_lora(n) end, "the weight of head is that of embed as well")
    same(n(x), want, 0)
    n = Tied()
    n.embed, n.again.weight = nn.Embedding(7, 4), n.head.weight
    stirred(nn.lora(n, { target = { "head", "again" } }))
    fails(function() nn.merge_lora(n) end, "is that of")
  end)

  it("drops the same of W x and of B A x where DoRA trains", function()
    for _, rank in ipairs { 1, 2 } do
      local n, x = nn.Sequential(nn.Linear(6, 5)), T.randn(3, 6)
      stirred(nn.lora(n, { target = "all-linear", rank = rank, dora = true, dropout = 0.5 })):train()
      local m = n[1]
      T.manual_seed(rank)
      local y = n(x)
      T.manual_seed(rank)
      local d, w, ba = T.dropout(x, 0.5), m.weight, m.lora_B:matmul(m.lora_A) * (16 / rank)
      local ratio = m.lora_magnitude_vector / (w + ba):square():sum(2):sqrt()
      same(y, nn.F.linear(x, w, m.bias) + (ratio - 1) * nn.F.linear(d, w) + ratio * nn.F.linear(d, ba))
    end
  end)

  it("is DoRA of the same numbers beside weights in blocks, also of another input scale", function()
    for _, how in ipairs { { 64, 40 }, { 32, 600, dropout = 0.5 }, { 64, 513, bias = false },
      { 32, 8, scaled = true } } do
      local plain = nn.Linear(how[1], how[2], { bias = how.bias ~= false })
      local blocks = T.quantize(nn.Sequential(plain), { bits = 4, activations = "float" })
      if how.scaled then blocks[1]:register_buffer("input_scale", T.rand(how[1]) + 0.5) end
      local floats, found = nn.Sequential(blocks[1]:dequantize()), {}
      for _, n in ipairs { blocks, floats } do
        T.manual_seed(3)
        stirred(nn.lora(n, { target = "all-linear", rank = 3, dora = true, dropout = how.dropout })):train()
        local m, x = n[1], T.randn(5, how[1]):requires_grad_()
        T.manual_seed(4)
        local y = n(x)
        y:square():sum():backward()
        found[#found + 1] = { y, x.grad, m.lora_A.grad, m.lora_B.grad, m.lora_magnitude_vector.grad }
      end
      for k, v in ipairs(found[1]) do
        local want = found[2][k]
        assert.is_true((v - want):abs():max():item() <= 1e-4 * want:abs():max():item(), k .. " of " .. how[2])
      end
    end
    folder(function(dir) -- and in files
      local function fresh()
        T.manual_seed(5)
        return T.quantize(nn.Sequential(nn.Linear(32, 6)), { bits = 8 })
      end
      local n, x = stirred(nn.lora(fresh(), { target = "all-linear", dora = true })), T.randn(2, 32)
      assert(nn.save_lora(n, dir))
      local back = fresh()
      assert(nn.load_lora(back, dir))
      same(back(x), n(x))
      local c = assert(json.read(dir .. "/adapter_config.json"))
      c.use_dora = false
      assert(json.write(dir .. "/adapter_config.json", c))
      local _, why = nn.load_lora(fresh(), dir)
      assert.truthy(why:find("use_dora of the config is not true", 1, true), why)
    end)
  end)

  it("names layers to PEFT so that no other is meant", function()
    local n = nn.ModuleList { net(), net() }
    nn.lora(n, { target = function(name) return name ~= "1.q_proj" and not name:find "score" end })
    folder(function(dir)
      assert(nn.save_lora(n, dir))
      local targets = assert(json.read(dir .. "/adapter_config.json")).target_modules
      assert.equal("0.q_proj v_proj", table.concat(targets, " "))
    end)
  end)

  it("changes nothing at first, and trains two small matrices a layer", function()
    for _, dora in ipairs { false, true } do
      local n, x = net(), T.randn(3, 4)
      local want, weights = n(x), n.q_proj.weight:clone()
      local back, names = nn.lora(n, { rank = 2, dora = dora })
      assert.equal(n, back)
      assert.same({ "q_proj", "v_proj" }, names)
      same(n(x), want)
      local train = {}
      for name, p in n:named_parameters() do if p.requires_grad then train[#train + 1] = name end end
      table.sort(train)
      assert.same(dora and { "q_proj.lora_A", "q_proj.lora_B", "q_proj.lora_magnitude_vector", "v_proj.lora_A",
        "v_proj.lora_B", "v_proj.lora_magnitude_vector" } or { "q_proj.lora_A", "q_proj.lora_B", "v_proj.lora_A",
        "v_proj.lora_B" }, train)
      local opt = T.optim.AdamW(n:parameters(), { lr = 0.05 })
      local first, last
      for _ = 1, 30 do
        local loss = (n(x) - 1):square():mean()
        opt:zero_grad()
        loss:backward()
        opt:step()
        first, last = first or loss:item(), loss:item()
      end
      assert.is_true(last < first * 0.7, last .. " of " .. first)
      assert.is_true(n.q_proj.weight:equal(weights))
    end
  end)

  it("is W + alpha/rank B A", function()
    for _, o in ipairs { { scale = 3 }, { rslora = true, scale = 6 / math.sqrt(2) } } do
      local n = stirred(nn.lora(net(), { rank = 2, alpha = 6, target = "q_proj", rslora = o.rslora }))
      local l, x = n.q_proj, T.randn(3, 4)
      same(l(x), nn.F.linear(x, l.weight + l.lora_B:matmul(l.lora_A) * o.scale, l.bias))
    end
  end)

  it("is many at once in T.vmap, on inputs that are the same for all", function()
    local n = nn.Sequential(nn.Linear(3, 2))
    nn.lora(n, { rank = 2, target = { "0" } })
    for _, length in ipairs { 1, 5 } do
      local x, name = T.randn(4, length, 3), "1.lora_B"
      local b = T.randn(2, 2, 2)
      local y = T.vmap(function(p) return nn.utils.functional_call(n, { [name] = p }, x) end)(b)
      for k = 1, 2 do same(y[k], nn.utils.functional_call(n, { [name] = b[k] }, x)) end
    end
  end)

  it("is merged into the weights, and then gone", function()
    for _, o in ipairs { { rank = 3 }, { rank = 2, dora = true, alpha = 5 }, { rank = 2, rslora = true } } do
      local n, x = nn.lora(net(), o), T.randn(3, 4)
      stirred(n)
      if o.dora then T.no_grad(function() n.q_proj.lora_magnitude_vector:mul_(1.3) end) end
      local want = n(x)
      assert.equal(5, #nn.merge_lora(n):parameters())
      same(n(x), want)
      nn.lora(n, o) -- and may be put there once more
      same(n(x), want)
    end
  end)

  it("is not merged into a weight that is computed, where it would be lost", function()
    local n = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    nn.lora(n, { rank = 2, target = { "0" } })
    stirred(n)
    local x = T.randn(4, 3)
    local want = n(x)
    fails(function() nn.merge_lora(n) end, "the weight of 0 is computed of others")
    nn.utils.parametrize.remove_parametrizations(n[1], "weight")
    same(nn.merge_lora(n)(x), want)
  end)

  it("is chosen by name, by all, or by a function", function()
    local function names(target) return select(2, nn.lora(net(), { target = target })) end
    assert.same({ "q_proj", "v_proj" }, names "all-linear")
    assert.same({ "score" }, names { "score" })
    assert.same({ "q_proj", "score" }, names(function(name) return name ~= "v_proj" end))
    fails(function() names "k_proj" end, "no layer is named by target")
    fails(function() nn.lora(nn.Sequential(nn.Linear(2, 2)), { target = { "0", "v_prok" } }) end,
      "no layer is named by 'v_prok'")
    fails(function() nn.lora(net(), { target = 3 }) end, "target must be a list")
    fails(function() nn.lora(net(), { rank = 0 }) end, "rank must be a positive integer")
    fails(function() nn.lora(net(), { r = 4 }) end, "unknown option 'r'")
    fails(function() nn.lora((nn.lora(net()))) end, "has an adapter already")
    fails(function() nn.lora(3) end, "a network is wanted")
  end)

  it("is written and read as PEFT does", function()
    for _, o in ipairs { { rank = 2, alpha = 5 }, { rank = 3, dora = true }, { rank = 2, rslora = true } } do
      folder(function(dir)
        local plain = net()
        local n = stirred(nn.lora(plain:clone(), o))
        n.score:requires_grad_(true) -- a head that was trained as well
        T.no_grad(function() n.score.weight:add_(1) end)
        assert(nn.save_lora(n, dir))
        local c, t = assert(json.read(dir .. "/adapter_config.json")),
          assert(T.load(dir .. "/adapter_model.safetensors"))
        assert.equal("LORA", c.peft_type)
        assert.same({ "q_proj", "v_proj" }, { table.unpack(c.target_modules) })
        assert.is_truthy(t["base_model.model.q_proj.lora_A.weight"])
        local again, names = assert(nn.load_lora(plain, dir))
        assert.same({ "q_proj", "v_proj" }, names)
        local x = T.randn(3, 4)
        same(again(x), n(x))
        assert.is_true(again.score.weight.requires_grad and not again.q_proj.weight.requires_grad)
      end)
    end
  end)

  it("has ranks and scales by name, where a name is the end of another, too", function()
    for _, o in ipairs { { "^q_proj", 8 }, { "q_proj", 8 }, { "^q_proj$", 8 }, { "proj", 4 }, { "_proj", 4 },
      { "^x.q_proj", 4 }, { "q.*", 8 }, { "(q|k)_proj", 8 }, { "[kq]_proj", 8 }, { [[a\.\d+\.q_proj]], 4 }, { "q", 4 },
      { "q_proj|k_proj", 8 }, { [[\w{6}]], 8, 8 }, { "(?!v).*_proj", 8 }, { "(?P<one>q)_proj", 8 } } do
      if not T.core.expression_found("a build with PCRE2", "a", "a") and o[1]:find "[%*%(%[|{]" then break end
      folder(function(dir)
        local n = stirred(nn.lora(net(), { rank = 2, alpha = 4 }))
        assert(nn.save_lora(n, dir))
        local c = assert(json.read(dir .. "/adapter_config.json"))
        c.alpha_pattern = { [o[1]] = 8 }
        assert(json.write(dir .. "/adapter_config.json", c))
        local again = assert(nn.load_lora(net(), dir))
        assert.equal(o[2], again.q_proj._lora.of.default.alpha, o[1])
        assert.equal(o[3] or 4, again.v_proj._lora.of.default.alpha, o[1])
      end)
    end
    folder(function(dir)
      local function nested()
        local n = nn.Sequential(nn.Linear(4, 4))
        n.inner = nn.Sequential(nn.Linear(4, 4))
        return n
      end
      local n = nested()
      nn.lora(n.inner, { rank = 3, alpha = 5, target = function() return true end })
      nn.lora(n, { rank = 2, alpha = 7, target = function(name) return name == "0" or name == "1" end })
      assert(nn.save_lora(n, dir))
      local plain = nested()
      plain:load_state_dict(n:state_dict(), { strict = false })
      local again = assert(nn.load_lora(plain, dir))
      local function of(net_) return net_[1]._lora.alpha, net_.inner[1]._lora.alpha, net_[1]._lora.rank end
      assert.same({ of(n) }, { of(again) })
    end)
  end)

  it("drops inputs of the adapter in training alone, and copies with the network", function()
    local n, x = stirred(nn.lora(net(), { dropout = 0.5 })), T.ones(3, 4)
    assert.is_false(n(x):equal(n(x)))
    local other = n:eval():clone()
    assert.is_true(n(x):equal(other(x)))
    T.no_grad(function() other.q_proj.lora_B:fill_(0) end)
    assert.is_false(n(x):equal(other(x)))
  end)

  it("refuses adapters of another network, and changes nothing then", function()
    local function refused(change)
      local message
      folder(function(dir)
        assert(nn.save_lora(nn.lora(net(), { rank = 2 }), dir))
        local t, list = assert(T.load(dir .. "/adapter_model.safetensors")), {}
        for key, v in pairs(t) do list[key] = v:clone() end
        local c = assert(json.read(dir .. "/adapter_config.json"))
        change(list, c)
        assert(T.save(dir .. "/adapter_model.safetensors", list))
        assert(json.write(dir .. "/adapter_config.json", c))
        local n = net()
        local got, why, code = nn.load_lora(n, dir)
        assert.is_nil(got)
        assert.is_string(code)
        assert.equal(5, #n:parameters())
        assert.is_true(n.q_proj.weight.requires_grad)
        message = why
      end)
      return message
    end
    local function has(message, part) assert.is_truthy(message:find(part, 1, true), message) end
    local A, B = "base_model.model.q_proj.lora_A.weight", "base_model.model.q_proj.lora_B.weight"
    has(refused(function(t) t[B] = nil end), "'q_proj' has no lora_B")
    has(refused(function(t) t[A] = T.ones(3, 4) end), "lora_A of 'q_proj' is [3, 4], expected [2, 4]")
    has(refused(function(t) t["base_model.model.k_proj.lora_A.weight"] = T.ones(2, 4) end), "the layer 'k_proj', which")
    has(refused(function(t) t["base_model.model.norm.weight"] = T.ones(2) end), "nothing in the network is what")
    has(refused(function(t) t["base_model.model.score.weight"] = T.ones(2) end), "is [2], expected [2, 5]")
    has(refused(function(_, c) c.peft_type = "IA3" end), "peft_type must be LORA, got IA3")
    has(refused(function(_, c) c.use_dora = true end), "has no lora_magnitude_vector")
    has(refused(function(_, c) c.lora_bias = true end), "has no lora_bias")
    has(refused(function(t) t[B:gsub("weight$", "bias")] = T.ones(4) end), "lora_bias of the config is not true")
    -- what computes otherwise, and keys that are no expressions, or differ (the first is known to the file alone)
    for field, v in pairs { layer_replication = json.array { 1 }, alora_invocation_tokens = json.array { 5 },
      use_qalora = true, target_parameters = json.array { "q" }, kasa_config = { beta = 1 } } do
      has(refused(function(_, c) c[field] = v end), field .. " is not supported")
    end
    for _, start in ipairs { "pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga" } do
      has(refused(function(_, c) c.init_lora_weights = start end), "changes the network's own weights")
    end
    for _, key in ipairs { "(q", "q_proj|[", "*" } do
      has(refused(function(_, c) c.alpha_pattern = { [key] = 3 } end), ("the key '%s' of alpha_pattern"):format(key))
    end
    has(refused(function(_, c) c.alpha_pattern = { q_proj = 3, ["^q_proj"] = 4 } end), "both stand for 'q_proj'")
    fails(function() nn.save_lora(net(), "/tmp") end, "no adapters")
  end)

  it("goes beside the layers of T.models, and is no part of what T.models.save writes", function()
    local m = T.models.GPT2 { vocab_size = 16, n_positions = 16, n_embd = 8, n_layer = 2, n_head = 2 }
    local _, names = nn.lora(m)
    assert.same({ "transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_attn" }, names)
    stirred(m):eval()
    local ids = T.tensor({ { 3, 4, 5 } }, { dtype = "i64" })
    local want = m(ids)
    assert.equal(3, m:generate({ 3, 4 }, { max_new_tokens = 3, stop = false }):numel())
    folder(function(dir)
      fails(function() T.models.save(m, dir) end, "nn.merge_lora")
      assert(nn.save_lora(m, dir)) -- which would be beside weights that have it already
      nn.merge_lora(m)
      local ok, why, code = T.models.save(m, dir)
      assert.same({ nil, "unsupported" }, { ok, code })
      assert.truthy(why:find("adapter_config.json: there is an adapter in this folder", 1, true), why)
      assert.is_nil((T.models.load(dir)))
      os.remove(dir .. "/adapter_config.json")
      os.remove(dir .. "/adapter_model.safetensors")
      assert(T.models.save(m, dir))
      same(assert(T.models.load(dir))(ids), want)
    end)
  end)
end)
