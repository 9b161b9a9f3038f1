-- SPDX-License-Identifier: MIT
-- T.quantize with calibration: GPTQ against its definition in plain Lua, AWQ's scales, what both leave of a network's
-- results on data that they have not seen, and the order in which layers are visited.

local T = require "perilune"
local codes = require "perilune.nn.quant.codes"
local gptq = require "perilune.nn.quant.gptq"
local near = require "spec.support.near"
local nn = T.nn
local function fails(f, part) return near.fails(part, f) end

-- Inputs with few directions and some large channels, as those of layers in trained networks are.
local function inputs(n, k)
  local mix, channels = T.randn(k // 4, k), T.randn(k):exp()
  local function draw() return (T.randn(n, k // 4):matmul(mix) + 0.3 * T.randn(n, k)) * channels end
  return draw(), draw()
end

local function gram_of(x) return x:double():t():matmul(x:double()) end

describe("codes in blocks", function()
  for _, name in ipairs(codes.names()) do
    it("are where " .. name .. " has them", function()
      T.manual_seed(3)
      local f = codes.format(name)
      local blocks = T.quantize_blocks(T.randn(5, 2 * f.elements), { format = name })
      local numbers = T.dequantize_blocks(blocks, { format = name, dtype = "f64" })
      local base, step = codes.grid(f, blocks)
      local wide = numbers:view(5, -1, f.group)
      local q = codes.round(f, wide, base:unsqueeze(3), step:unsqueeze(3))
      assert.is_true((base:unsqueeze(3) + step:unsqueeze(3) * q - wide):abs():max():item() < 1e-6)
      assert.is_true(codes.put(f, blocks, q:view(5, -1)):equal(blocks))
      -- any codes come back, not only those that rounding makes
      local other = T.randint(0, f.top, { 5, 2 * f.elements })
      local back = T.dequantize_blocks(codes.put(f, blocks, other), { format = name, dtype = "f64" })
      back = back:view(5, -1, f.group)
      local found = codes.round(f, back, base:unsqueeze(3), step:unsqueeze(3)):view(5, -1)
      assert.is_true(found:equal(other:double()))
    end)
  end
end)

-- The definition: of the columns that are left, H's inverse; round the first, spread its error by the inverse's row,
-- take the column out of the inverse by elimination. w: numbers of Lua. grid(column) → base, step by row; order: of
-- the columns.
local function reference(w, h, order, top, grid)
  local n, k = #w, #w[1]
  local inverse = T.linalg.inv(h)
  local q = {}
  for r = 1, n do q[r] = {} end
  local gone = {}
  for _, c in ipairs(order) do
    local base, step = grid(c)
    local row = inverse:select(1, c):totable()
    for r = 1, n do
      local v = step[r] == 0 and 0 or (w[r][c] - base[r]) / step[r]
      local down = math.floor(v)
      v = v - down > 0.5 and down + 1 or v - down < 0.5 and down or down + down % 2
      v = math.max(0, math.min(top, v))
      q[r][c] = v
      local e = (w[r][c] - (base[r] + step[r] * v)) / row[c]
      for j = 1, k do if not gone[j] and j ~= c then w[r][j] = w[r][j] - e * row[j] end end
    end
    gone[c] = true
    inverse = inverse - (inverse:select(2, c) / row[c]):unsqueeze(2) * inverse:select(1, c)
  end
  return q
end

describe("GPTQ", function()
  -- 288 columns: more than it works on at a time
  for _, case in ipairs { { "Q4_0", 288 }, { "Q4_1", 160 }, { "Q5_0", 96 }, { "Q8_0", 96 }, { "Q4_K", 512 },
    { "Q6_K", 256 } } do
    local name, k = case[1], case[2]
    it("of " .. name .. " gives the codes of the definition, in order and with act_order", function()
      T.manual_seed(4)
      local f = codes.format(name)
      local x = inputs(600, k)
      local w, h = T.randn(3, k):double() / 8, gram_of(x)
      h = h / h:diagonal():mean()
      local damped = (h + T.eye(k, { dtype = "f64" }) * 0.01)
      for _, act in ipairs { false, true } do
        local blocks = gptq.quantize(w, h, f, { damp = 0.01, act_order = act })
        -- its scales are those of its blocks; the definition must reach the same codes with them
        local base, step = codes.grid(f, blocks)
        local wide = T.dequantize_blocks(blocks, { format = name, dtype = "f64" }):view(3, -1, f.group)
        local got = codes.round(f, wide, base:unsqueeze(3), step:unsqueeze(3)):view(3, -1):totable()
        local bases, steps = base:t():totable(), step:t():totable()
        local order = act and h:diagonal():argsort({ descending = true, stable = true }):totable() or {}
        if not act then for c = 1, k do order[c] = c end end
        local want = reference(w:totable(), damped, order, f.top, function(c)
          local g = (c - 1) // f.group + 1
          return bases[g], steps[g]
        end)
        local differ = 0
        for r = 1, 3 do
          for c = 1, k do
            if step:get(r, (c - 1) // f.group + 1) ~= 0 and got[r][c] ~= want[r][c] then differ = differ + 1 end
          end
        end
        assert.equal(0, differ)
      end
    end)
  end

  it("is plain rounding where inputs have nothing to do with each other", function()
    T.manual_seed(5)
    local f = codes.format "Q4_0"
    local w = T.randn(4, 64):double()
    local blocks = gptq.quantize(w, T.eye(64, { dtype = "f64" }), f, { damp = 0.01 })
    local base, step = codes.grid(f, blocks)
    local wide = w:view(4, -1, 32)
    local q = codes.round(f, wide, base:unsqueeze(3), step:unsqueeze(3)):view(4, -1)
    assert.is_true(codes.put(f, blocks, q):equal(blocks))
  end)

  it("works with fewer rows than columns", function()
    T.manual_seed(6)
    local l = T.quantize(nn.Sequential(nn.Linear(64, 8)), { bits = 4, method = "gptq", calibration = T.randn(5, 64) })
    assert.is_true(T.isfinite(l[1]:numbers()):all():item())
  end)
end)

describe("on data that was not seen", function()
  for _, format in ipairs { "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K" } do
    it("both lose less than plain rounding in " .. format, function()
      T.manual_seed(7)
      local seen, unseen = inputs(1500, 256)
      local l = nn.Linear(256, 64)
      local want, lost = l(unseen):detach(), {}
      for _, how in ipairs { "rtn", "gptq", "act_order", "awq" } do
        local o = { format = format, activations = "float", method = how, calibration = seen }
        if how == "rtn" then o.calibration = nil end
        if how == "act_order" then o.method, o.act_order = "gptq", true end
        local q = T.quantize(nn.Sequential(l), o)
        lost[how] = (q(unseen):detach() - want):square():mean():item()
      end
      assert.is_true(lost.gptq < 0.4 * lost.rtn, ("%g of %g"):format(lost.gptq, lost.rtn))
      assert.is_true(lost.act_order < 0.1 * lost.rtn, ("%g of %g"):format(lost.act_order, lost.rtn))
      assert.is_true(lost.awq < 0.85 * lost.rtn, ("%g of %g"):format(lost.awq, lost.rtn))
    end)
  end

  it("a language model that has learned keeps more of its loss", function()
    T.manual_seed(1)
    -- text with structure: the next letter depends on two before it
    local rule, state, text = T.randint(0, 31, { 32, 32, 2 }), { 1, 2 }, {}
    local rows = rule:totable()
    math.randomseed(5)
    for i = 1, 30000 do
      local next_one = rows[state[1] + 1][state[2] + 1][math.random(2)]
      state, text[i] = { state[2], next_one }, next_one
    end
    local ids = T.tensor(text, { dtype = "i64" }):view(-1, 50)
    local net = T.models.Llama { vocab_size = 32, hidden_size = 64, intermediate_size = 128, num_hidden_layers = 2,
      num_attention_heads = 4, num_key_value_heads = 2 }
    local opt = T.optim.AdamW(net:train():parameters(), { lr = 5e-3 })
    for step = 0, 149 do
      local batch = ids:narrow(1, step % 25 * 20 + 1, 20)
      local _, out = net(batch, { labels = batch })
      opt:zero_grad()
      out.loss:backward()
      opt:step()
    end
    net:eval()
    local held = ids:narrow(1, 501, 100)
    local function loss(n) return T.no_grad(function() return select(2, n(held, { labels = held })).loss:item() end) end
    local full, lost = loss(net), {}
    assert.is_true(full < 2.5, "learned nothing: " .. full)
    local calibration = { ids:narrow(1, 1, 100), ids:narrow(1, 101, 300) }
    for _, method in ipairs { "rtn", "gptq", "awq" } do
      local o = { bits = 4, method = method, skip = { "lm_head" }, activations = "float" }
      if method ~= "rtn" then o.calibration = calibration end
      lost[method] = loss(T.quantize(net:clone(), o)) - full
    end
    assert.is_true(lost.gptq < lost.rtn, ("%g of %g"):format(lost.gptq, lost.rtn))
    assert.is_true(lost.awq < lost.rtn, ("%g of %g"):format(lost.awq, lost.rtn))
  end)
end)

describe("calibration", function()
  local function net()
    T.manual_seed(9)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
  end

  local function blocks(n)
    local list = {}
    for _, m in ipairs(n:modules()) do
      if m:type() == "QuantizedLinear" then
        list[#list + 1] = m.weight
        list[#list + 1] = rawget(m, "input_scale")
      end
    end
    return list
  end
  local function same(a, b)
    a, b = blocks(a), blocks(b)
    assert.equal(#a, #b)
    for i, t in ipairs(a) do assert.is_true(t:equal(b[i]), "of layer " .. i) end
  end

  it("comes as a tensor, a list, a loader, an iterator", function()
    local x = T.randn(40, 32)
    local loader = T.data.DataLoader(T.data.TensorDataset(x, T.arange(40)), { batch_size = 20 })
    local halves = { x:narrow(1, 1, 20), x:narrow(1, 21, 20) }
    for _, method in ipairs { "gptq", "awq" } do
      local function made(calibration, forward)
        return T.quantize(net(), { bits = 4, method = method, calibration = calibration, forward = forward })
      end
      local want = made(halves)
      same(made(loader), want)
      local turn = 0
      same(made(function() turn = turn + 1 return halves[turn] end), want)
      same(made({ { halves[1] }, { halves[2] } }), want)
      local labels = 0
      same(made(loader, function(n, v, y) labels = labels + y:numel() return n(v) end), want)
      assert.is_true(labels >= 40 and labels % 20 == 0)
    end
  end)

  it("leaves modes, hooks and gradients as they were", function()
    local n, x = net():train(), T.randn(40, 32)
    n[2]:eval()
    T.quantize(n, { bits = 4, method = "gptq", calibration = x })
    assert.is_true(n.training and n[1].training and n[3].training and not n[2].training)
    assert.is_true(n(x).requires_grad) -- biases are trained
    local before = net()
    before[1]:register_forward_hook(function() error "an own hook" end)
    fails(function() T.quantize(before, { method = "gptq", calibration = x }) end, "an own hook")
    assert.equal("Linear", before[1]:type())
    assert.is_true(before.training)
  end)

  it("goes block by block where blocks are a chain, with the same result as through all of the network", function()
    T.manual_seed(10)
    local function model()
      T.manual_seed(11)
      return T.models.Llama { vocab_size = 32, hidden_size = 32, intermediate_size = 64, num_hidden_layers = 3,
        num_attention_heads = 4, num_key_value_heads = 2 }
    end
    local ids = {}
    for i = 1, 3 do ids[i] = T.randint(0, 31, { 2, 10 }) end
    for _, method in ipairs { "gptq", "awq" } do
      local calls, n = 0, model()
      n.model.layers[1]:register_forward_pre_hook(function() calls = calls + 1 end)
      local fold
      if method == "awq" then fold = false end -- which calls blocks to try it
      local chained = T.quantize(n, { bits = 4, method = method, calibration = ids, fold = fold })
      -- per batch: once to look, once for the inputs of the blocks, four groups of layers, once to the next, the head
      assert.equal(3 * 8, calls)
      local other = model()
      for _, layer in ipairs(other.model.layers) do -- results that are other tensors: no chain
        layer:register_forward_hook(function(_, _, y) return y * 1 end)
        layer:register_forward_pre_hook(function(_, args) args[1] = args[1] * 1 return args end)
      end
      same(chained, T.quantize(other, { bits = 4, method = method, calibration = ids, fold = fold }))
    end
  end)

  it("visits a layer that is called twice, and layers with one input once", function()
    local Twice = nn.class "Twice"
    function Twice:init()
      self.a, self.b, self.c = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
    end
    function Twice:forward(x)
      local y = self.a(x) + self.b(x)
      return self.c(self.c(y):tanh())
    end
    T.manual_seed(12)
    local x = T.randn(60, 32)
    local n = Twice()
    local plain = n:clone()
    T.quantize(n, { bits = 8, method = "gptq", calibration = x })
    -- what c saw: both of its inputs, behind layers that are quantized
    local y = n.a(x) + n.b(x)
    local both = T.cat({ y, plain.c(y):tanh() }, 1):detach()
    local want = gptq.quantize(plain.c.weight, gram_of(both), codes.format "Q8_0", { damp = 0.01 })
    local off = n.c.weight:ne(want):float():mean():item()
    assert.is_true(off < 0.01, "blocks differ in " .. off)
  end)

  it("by awq survives files, and becomes one weight again", function()
    local path, x = os.tmpname() .. ".safetensors", T.randn(40, 32)
    local n = T.quantize(net(), { bits = 4, method = "awq", calibration = x })
    assert(T.save(path, n:state_dict()))
    local state = assert(T.load(path))
    local back = T.quantize(net(), { bits = 4, input_scale = state })
    back:load_state_dict(state)
    assert.is_true(back(x):equal(n(x)))
    n = T.quantize(net(), { bits = 4, method = "awq", calibration = x, fold = false })
    back = T.quantize(net(), { bits = 4, input_scale = true })
    back:load_state_dict(n:state_dict())
    assert.is_true(back(x):equal(n(x)))
    os.remove(path)
    local l = n[3]
    local v = T.randn(5, 64)
    near.near(l:dequantize()(v), l(v), 1e-3)
    local clone = n:clone()
    assert.is_false(rawequal(clone[1].input_scale, n[1].input_scale))
    assert.equal("QuantizedLinear(in_features=64, out_features=32, bias=true, format=Q4_0, input_scale=true)",
      tostring(l))
  end)

  it("by awq does not go through a clamp that the data does not reach", function()
    local x = T.randn(100, 64) * T.linspace(0.1, 4, 64)
    local function inside(l) return rawget(l, "input_scale") == nil end
    local Clamped = nn.class "Clamped"
    function Clamped:init(most) self.a, self.b, self.most = nn.Linear(64, 64), nn.Linear(64, 8), most end
    function Clamped:forward(v) return self.b(self.a(v):clamp(-self.most, self.most)) end
    T.manual_seed(15)
    for most, want in pairs { [1e3] = false, [math.huge] = true } do
      local old = Clamped(most)
      old.a.weight:detach():mul_(T.linspace(0.02, 6, 64):unsqueeze(2))
      local n = T.quantize(old, { bits = 4, method = "awq", calibration = x })
      assert.equal(want, inside(n.b), tostring(most))
    end
  end)

  it("by awq that fails half way divides nothing", function()
    local awq, x = require "perilune.nn.quant.awq", T.randn(100, 64) * T.linspace(0.1, 4, 64)
    T.manual_seed(16)
    local n = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 8))
    local want, quantize = n(x), awq.quantize
    awq.quantize = function() error "no more" end
    local ok, why = pcall(T.quantize, n, { bits = 4, method = "awq", calibration = x })
    awq.quantize = quantize
    assert.is_false(ok)
    assert.truthy(tostring(why):find "no more")
    assert.is_true(n(x):equal(want))
    assert.is_nil(rawget(T.quantize(n, { bits = 4, method = "awq", calibration = x })[2], "input_scale"))
  end)

  it("of zeros says nothing: refused, and where one layer has them it is rounded plainly", function()
    for _, method in ipairs { "gptq", "awq", "static" } do
      fails(function() T.quantize(net(), { method = method, calibration = T.zeros(5, 32) }) end, "calibration is zeros")
    end
    for _, method in ipairs { "gptq", "awq" } do
      local Dead = nn.class "Dead"
      function Dead:init() self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 8) end
      function Dead:forward(x) return self.b(self.a(x) * 0) end
      T.manual_seed(13)
      local n = Dead()
      local plain = T.quantize(n:clone(), { bits = 4 })
      T.quantize(n, { bits = 4, method = method, calibration = T.randn(50, 32) })
      assert.is_true(n.b.weight:equal(plain.b.weight))
      assert.is_nil(rawget(n.b, "input_scale"))
    end
    -- channels that the data never has keep their weights
    T.manual_seed(14)
    local x, l = T.randn(200, 64), nn.Linear(64, 32)
    local seen = x:clone()
    seen:narrow(2, 9, 56):zero_()
    local function lost(o)
      local q = T.quantize(nn.Sequential(l), o)
      return (q(x) - l(x)):square():mean():item()
    end
    local plain = lost { bits = 4, activations = "float" }
    local awq = lost { bits = 4, activations = "float", method = "awq", calibration = seen }
    assert.is_true(awq < 2 * plain, ("%g of %g"):format(awq, plain))
  end)

  it("is refused where it cannot be right", function()
    local x = T.randn(8, 32)
    fails(function() T.quantize(net(), { method = "gptq" }) end, "calibration is missing")
    fails(function() T.quantize(net(), { method = "gptq", calibration = {} }) end, "calibration is empty")
    fails(function() T.quantize(net(), { method = "gptq", calibration = 5 }) end, "calibration must be a tensor")
    fails(function() T.quantize(net(), { calibration = x }) end, 'calibration is for method "gptq" or "awq"')
    fails(function() T.quantize(net(), { method = "awq", calibration = x, act_order = true }) end, "act_order is for")
    fails(function() T.quantize(net(), { method = "gptq", calibration = x, format = "IQ4_NL" }) end, "format")
    fails(function() T.quantize(net(), { method = "gptq", calibration = x / 0 }) end, "not finite")
    fails(function() T.quantize(net(), { method = "gptq", calibration = T.randn(3, 31) }) end, "31")
    local lazy = nn.class "Lazy"
    function lazy:init() self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32) end
    function lazy:forward(v) return self.a(v) end
    local n = lazy()
    fails(function() T.quantize(n, { method = "gptq", calibration = x }) end, "never reaches b")
    assert.equal("Linear", n.a:type())
    local tied = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    tied[2].weight = tied[1].weight
    fails(function() T.quantize(tied, { method = "gptq", calibration = x }) end, "shared by 2 layers")
  end)
end)

describe("AWQ's scales", function()
  local function scaled(net)
    local list, all = {}, 0
    for name, m in net:named_modules() do
      if m:type() == "QuantizedLinear" then
        all = all + 1
        if rawget(m, "input_scale") then list[#list + 1] = name end
      end
    end
    table.sort(list)
    return list, all
  end
  -- Norms that differ by channel; what a layer in front of it makes of it in floats.
  local function uneven(net)
    T.no_grad(function()
      for _, p in ipairs(net:parameters()) do if p:dim() == 1 then p:add_(T.randn(p:shape()) * 0.4) end end
    end)
    return net
  end

  -- Heads that are shared, one for each, all at once; weights of norms that count from 1; halves, which round them.
  local cases = {}
  for kind, groups in pairs { Llama = { 8, 2, 1 }, Qwen2 = { 2 }, Qwen3 = { 2 }, Gemma = { 1, 8 }, Phi3 = { 2, 8 },
    Mistral = { 4 } } do
    for _, shared in ipairs(groups) do cases[#cases + 1] = { kind, shared } end
  end
  for _, case in ipairs(cases) do
    local kind, shared = case[1], case[2]
    it(("are in norms and rows before, none is left: %s with %d of 8 heads"):format(kind, shared), function()
      T.manual_seed(20)
      local net = uneven(T.models[kind] { vocab_size = 64, hidden_size = 128, intermediate_size = 256,
        num_hidden_layers = 2, num_attention_heads = 8, num_key_value_heads = shared, head_dim = kind == "Gemma" and 16
          or nil, pad_token_id = kind == "Phi3" and 0 or nil, eos_token_id = kind == "Phi3" and 1 or nil,
          bos_token_id = kind == "Phi3" and 1 or nil }:eval())
      local ids = T.randint(0, 63, { 4, 30 })
      local want = net(ids):detach()
      -- 8 bits with single scales: folding is seen in what is left, and the results are those of floats
      local o = { format = "Q8_0", method = "awq", calibration = { ids, ids:flip(2) }, skip = { "lm_head" } }
      local q = T.quantize(net:clone(), o)
      local left, all = scaled(q)
      assert.same({}, left)
      assert.is_true(all >= 8)
      assert.is_true((q(ids) - want):norm():item() < 0.02 * want:norm():item())
      local moved = 0
      for name, p in q:named_parameters() do
        if p:dim() == 1 and not p:equal(net:get_parameter(name)) then moved = moved + 1 end
      end
      assert.is_true(moved >= 4) -- norms
    end)
  end

  it("stay at the layer where another reads its input, or nothing linear is before", function()
    local Net = nn.class "Net"
    function Net:init(how)
      self.how, self.norm, self.a, self.b = how, nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)
    end
    function Net:forward(x)
      local y = self.norm(x)
      if self.how == "twice" then return self.a(y) + y end
      if self.how == "weight" then return self.a(y) * self.norm.weight end
      if self.how == "relu" then return self.b(self.a(y):relu()) end
      if self.how == "gelu" then return self.b(nn.F.gelu(self.a(y))) end
      if self.how == "shift" then return self.b(self.a(y) + 1) end
      if self.how == "unused" then return self.b(x + 0 * self.a(y)) end
      if self.how == "clamp" then return self.b(self.a(y):clamp(-4, 4)) end
      return self.b(self.a(y)) + self.norm(x * 2)
    end
    local want = { twice = { "a" }, weight = { "a" }, relu = {}, gelu = { "b" }, shift = { "b" }, unused = { "a", "b" },
      called = { "a" }, clamp = { "b" } }
    for how, left in pairs(want) do
      T.manual_seed(21)
      local net = uneven(Net(how))
      if how == "clamp" then T.no_grad(function() net.norm.weight:mul_(4) end) end
      local x = T.randn(200, 64) * T.randn(64):exp()
      local y = net(x):detach()
      local skip = (how == "twice" or how == "weight") and "b" or nil
      local o = { format = "Q8_0", method = "awq", calibration = x, skip = skip }
      local q = T.quantize(net:clone(), o)
      local off = (q(x) - y):norm():item() / y:norm():item()
      assert.is_true(off < 0.02, how .. ": off by " .. off)
      assert.same(left, (scaled(q)), how)
      o.fold = "only"
      q = T.quantize(net:clone(), o)
      assert.same({}, (scaled(q)), how)
      assert.is_true((q(x) - y):norm():item() < 0.02 * y:norm():item(), how)
      o.fold = false
      assert.equal(select(2, scaled(q)), #scaled(T.quantize(net:clone(), o)), how)
    end
  end)

  it("multiply rows of blocks that are there, in every format", function()
    T.manual_seed(22)
    for _, name in ipairs(codes.names()) do
      local f = codes.format(name)
      local b = T.quantize_blocks(T.randn(6, 2 * f.elements), { format = name })
      local by = T.tensor({ 0.5, 1, 2, 3.3, 0.11, 17 }, { dtype = "f64" })
      local old = T.dequantize_blocks(b, { format = name, dtype = "f64" }) * by:unsqueeze(2)
      local new = T.dequantize_blocks(codes.multiply_rows(f, b, by), { format = name, dtype = "f64" })
      assert.is_true((new - old):abs():max():item() <= 2e-3 * old:abs():max():item(), name)
      for i = 1, 3 do assert.is_true(new[i]:equal(old[i]), name) end -- powers of two
      assert.is_nil(codes.multiply_rows(f, b, by * 1e-6), name)
      assert.is_nil(codes.multiply_rows(f, b, by * 1e8), name)
    end
  end)

  it("leave nothing in the way of GGUF files", function()
    T.manual_seed(23)
    local path = os.tmpname() .. ".gguf"
    local net = uneven(T.models.Llama { vocab_size = 64, hidden_size = 64, intermediate_size = 128,
      num_hidden_layers = 1, num_attention_heads = 4, num_key_value_heads = 2 }:eval())
    local ids = T.randint(0, 63, { 2, 20 })
    local o = { bits = 4, method = "awq", calibration = ids, skip = { "lm_head" }, fold = false }
    local ok, why = T.models.save(T.quantize(net:clone(), o), path)
    assert.is_nil(ok)
    assert.is_truthy(why:find('fold = "only"', 1, true))
    o.fold = nil
    local q = T.quantize(net, o)
    assert(T.models.save(q, path, { type = "F32" }))
    local back = assert(T.models.load(path))
    near.near(back(ids):detach(), q(ids):detach(), 1e-3)
    os.remove(path)
  end)
end)

describe("layers with weights [in, out], GPT-2's", function()
  local function gpt2()
    T.manual_seed(30)
    local net = T.models.GPT2 { vocab_size = 64, n_positions = 32, n_embd = 64, n_layer = 2, n_head = 4 }:eval()
    T.no_grad(function()
      for _, p in ipairs(net:parameters()) do if p:dim() == 1 then p:add_(T.randn(p:shape()) * 0.3) end end
    end)
    return net
  end

  it("are quantized by every method, dequantized and saved as what they were", function()
    local net = gpt2()
    local ids = T.randint(0, 63, { 4, 20 })
    local want = net(ids):detach()
    local off = {}
    for _, o in ipairs { { method = "rtn" }, { method = "gptq" }, { method = "awq" }, { method = "awq",
      fold = false } } do
      local key = o.method .. tostring(o.fold)
      if o.method ~= "rtn" then o.calibration = ids end
      o.bits, o.activations = 4, "float"
      local q, names, left = T.quantize(net:clone(), o)
      assert.equal(8, #names)
      assert.same({ "lm_head: a layer that is not meant has the same weight" }, left)
      local layer = q.transformer.h[1].attn.c_proj
      assert.equal("QuantizedLinear", layer:type())
      local y = q(ids):detach()
      off[key] = (y - want):norm():item() / want:norm():item()
      assert.is_true(off[key] < 0.25, key .. ": " .. off[key])
      local back = layer:dequantize()
      assert.equal("Conv1D", back:type())
      local x = T.randn(3, 64)
      near.near(back(x):detach(), layer(x):detach(), 1e-4)
      -- as a folder: a square weight that is the wrong way round would be of the right shape
      local dir = os.tmpname()
      os.remove(dir)
      assert(os.execute("mkdir " .. dir))
      assert(T.models.save(q:clone(), dir))
      near.near(assert(T.models.load(dir))(ids):detach(), y, 1e-3)
      os.execute("rm -r " .. dir)
    end
    assert.is_true(off.gptqnil < off.rtnnil and off.awqnil < off.rtnnil)
  end)

  it("are said to be left where they do not fit, as others are", function()
    local net = nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    net[4].weight = net[3].weight
    local _, names, left = T.quantize(net, { bits = 4, skip = "4" })
    assert.same({ "1" }, names)
    assert.same({ "2: rows of 48 elements are no whole blocks of 32",
      "3: a layer that is not meant has the same weight" }, left)
    fails(function() T.quantize(nn.Sequential(nn.Linear(48, 2))) end,
      "1: rows of 48 elements are no whole blocks of 32")
  end)
end)
