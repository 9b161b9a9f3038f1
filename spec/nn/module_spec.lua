-- SPDX-License-Identifier: MIT
-- Modules: registration, state, modes, hooks, text, arguments; initializers and utilities.

local T = require "perilune"
local near = require "spec.support.near"
local nn, F = T.nn, T.nn.F
local eq, fails = near.near, near.fails

-- A small network with a shared layer and a buffer.
local function make_net()
  local Net = nn.class("Net")
  function Net:init()
    self.first = nn.Linear(3, 4)
    self.scale = nn.Parameter(T.ones(4))
    self.again = self.first
    self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    self:register_buffer("count", T.zeros(2))
  end
  function Net:forward(x) return self.body(self.first(x) * self.scale) end
  return Net()
end

local function names_of(iterator)
  local out = {}
  for name in iterator do out[#out + 1] = name end
  return out
end

describe("an error inside a network", function()
  local Net = nn.class("Net")
  function Net:init() self.fc, self.out = nn.Linear(4, 6), nn.Linear(6, 2) end
  function Net:forward(x)
    local h = self.fc(x)
    return self.out(h:narrow(2, 1, 5)) -- the tail call leaves no line of this function
  end
  local net
  before_each(function() net = nn.Sequential(nn.ReLU(), Net()) end)
  after_each(function() net = nil end)
  local out = "; in 2.out: Linear(in_features=6, out_features=2, bias=true)"

  it("says in which module", function()
    local _, text = pcall(net, T.ones(3, 4))
    assert.equal(out, text:sub(-#out))
    _, text = pcall(net, T.ones(3, 5))
    assert.truthy(text:find("5 features given, 4 expected; in 2.fc: Linear(", 1, true), text)
    _, text = pcall(net, "x")
    assert.truthy(text:find('ReLU: x must be a tensor, got "x"; in 1: ReLU', 1, true), text)
    _, text = pcall(net[2].out, T.ones(3, 4)) -- alone it needs no path
    assert.is_nil(text:find("; in ", 1, true))
    net[1]:register_forward_hook(function() end)
    net[2]:register_forward_hook(function() end)
    _, text = pcall(net, T.ones(3, 4))
    assert.equal(out, text:sub(-#out))
    assert.equal("f32[2]", net[2].fc(T.ones(2, 4)):sum(2):describe()) -- the way stays one of all results
    assert.equal(3, select("#", nn.Identity()(1, nil, nil)))
  end)

  it("leaves summary with what came before it", function()
    local ok, text = pcall(net.summary, net, T.ones(3, 4))
    assert.is_false(ok)
    assert.truthy(text:find(out .. "\nuntil then:\nmodule ", 1, true), text)
    assert.truthy(text:find("fc %(Linear%) +f32%[3,6%]"), text)
    assert.truthy(text:find("out %(Linear%) +%-"), text)
    assert.is_true(net[2].fc.training)
  end)
end)

describe("a module", function()
  it("knows its parameters in order of assignment, shared ones once", function()
    local net = make_net()
    assert.same({ "scale", "first.weight", "first.bias", "body.1.weight", "body.1.bias" },
      names_of(net:named_parameters()))
    assert.equal(5, #net:parameters())
    assert.same({ "count" }, names_of(net:named_buffers()))
    assert.same({ "", "first", "body", "body.1", "body.2" }, names_of(net:named_modules()))
    assert.equal(5, #net:modules())
    assert.same({ "first", "body" }, names_of(net:named_children()))
    assert.equal(12 + 4 + 4 + 16 + 4, net:num_parameters())
    assert.is_true(net:parameters()[2] == net.first.weight)
  end)

  it("is called like a function, with any number of arguments and results", function()
    local Two = nn.class("Two")
    function Two:forward(a, b) return b, a end
    local x, y = T.ones(1), T.zeros(1)
    local p, q = Two()(x, y)
    assert.is_true(p == y and q == x)
    fails("no forward method", nn.class("Empty")())
  end)

  it("inherits", function()
    local Base = nn.class("Base")
    function Base:init(n) self.n = n end
    function Base:forward(x) return x * self:factor() end
    local Derived = nn.class("Derived", Base)
    function Derived:init(n) Base.init(self, n + 1) end
    function Derived:factor() return self.n end
    eq(Derived(2)(T.ones(2)), { 3, 3 })
    fails("the parent of X must be a class", nn.class, "X", {})
  end)

  it("finds a layer that replaces a plain field", function()
    local Net = nn.class("Late")
    function Net:init()
      self.layer = 3
      self.layer = nn.Linear(2, 2)
    end
    assert.same({ "layer.weight", "layer.bias" }, names_of(Net():named_parameters()))
  end)

  it("forgets a removed layer and takes a new one", function()
    local net = make_net()
    net.scale = nil
    net.first, net.again = nil, nn.Linear(3, 4, { bias = false })
    assert.same({ "again.weight", "body.1.weight", "body.1.bias" }, names_of(net:named_parameters()))
  end)

  it("switches modes and gradients for all below", function()
    local net = make_net()
    assert.is_true(net.training and net.body[2].training)
    net:eval()
    assert.is_false(net.training or net.body[2].training)
    net:train()
    assert.is_true(net.body[1].training)
    net:freeze()
    for _, p in ipairs(net:parameters()) do assert.is_false(p.requires_grad) end
    net:requires_grad_(true)
    net(T.ones(2, 3)):sum():backward()
    assert.is_truthy(net.first.weight.grad)
    net:zero_grad()
    for _, p in ipairs(net:parameters()) do assert.is_nil(p.grad) end
  end)

  it("applies a function to children first", function()
    local seen = {}
    make_net():apply(function(m) seen[#seen + 1] = m:type() end)
    assert.same({ "Linear", "Linear", "ReLU", "Sequential", "Net" }, seen)
  end)

  it("converts, keeping what is shared shared", function()
    local net = make_net():to("f64")
    assert.equal("f64", net.first.weight:dtype())
    assert.is_true(net.first.weight.requires_grad)
    assert.is_true(net.again == net.first)
    assert.equal("f64", net.count:dtype())
    assert.equal("f64", net(T.ones({ 2, 3 }, { dtype = "f64" })):dtype())
    local tied = nn.class("Tied")
    function tied:init()
      self.a = nn.Parameter(T.ones(2))
      self.b = self.a
    end
    local t = tied():to("f64")
    assert.is_true(t.a == t.b)
    assert.equal(1, #t:parameters())
  end)
end)

describe("state_dict", function()
  it("is in order, shares storage, and loads back", function()
    local a, b = make_net(), make_net()
    local names = {}
    for name in pairs(a:state_dict()) do names[#names + 1] = name end
    assert.same({ "scale", "count", "first.weight", "first.bias", "body.1.weight", "body.1.bias" }, names)
    assert.is_true(a:state_dict()["scale"]:shares_storage(a.scale))
    assert.is_false(a:state_dict()["scale"].requires_grad)
    local missing, unexpected = b:load_state_dict(a:state_dict())
    assert.same({ {}, {} }, { missing, unexpected })
    eq(b.first.weight, a.first.weight)
    assert.is_false(b.first.weight:shares_storage(a.first.weight))
  end)

  -- Layers of one size would each get what is the next one's, and the last one would keep its own.
  it("refuses names that count from 0 where ours count from 1, also with strict = false", function()
    local nets = {
      nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)),
      nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))),
      nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 3),
    }
    for _, net in ipairs(nets) do
      local theirs, before = net:state_dict { index_base = 0 }, {}
      for name, t in pairs(net:state_dict()) do before[name] = t:clone() end
      for _, strict in ipairs { true, false } do
        fails("counts layers from 0, as PyTorch does, and here they count from 1: say {index_base = 0}",
          net.load_state_dict, net, theirs, { strict = strict })
        for name, t in pairs(net:state_dict()) do assert.is_true(t:equal(before[name])) end
        net:load_state_dict(theirs, { strict = strict, index_base = 0 })
        net:load_state_dict(before, { strict = strict })
        local some = { extra = T.ones(1) } -- ours with more, and with less
        for name, t in pairs(before) do if #name % 2 == 0 then some[name] = t end end
        net:load_state_dict(some, { strict = false })
      end
    end
  end)

  it("counts from 0 for PyTorch's names", function()
    local net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 1)))
    local names = {}
    for name in pairs(net:state_dict { index_base = 0 }) do names[#names + 1] = name end
    assert.same({ "0.weight", "0.bias", "1.0.weight", "1.0.bias" }, names)
    local sd = { ["0.weight"] = T.ones(2, 2), ["0.bias"] = T.zeros(2), ["1.0.weight"] = T.ones(1, 2),
      ["1.0.bias"] = T.ones(1) }
    net:load_state_dict(sd, { index_base = 0 })
    eq(net(T.ones(1, 2)), { 5 })
  end)

  it("refuses what does not fit, and then changes nothing", function()
    local net = nn.Sequential(nn.Linear(2, 3))
    local before = net[1].bias:clone()
    local function load(sd, opts) return net:load_state_dict(sd, opts) end
    fails("missing: 1.weight", load, { ["1.bias"] = T.zeros(3) })
    fails("unexpected: 2.bias", load,
      { ["1.bias"] = T.zeros(3), ["1.weight"] = T.zeros(3, 2), ["2.bias"] = T.zeros(1) })
    fails("'1.weight' is f32[2,3] in the state and f32[3,2] here", load,
      { ["1.bias"] = T.zeros(3), ["1.weight"] = T.zeros(2, 3) })
    fails("not a tensor", load, { ["1.bias"] = 7, ["1.weight"] = T.zeros(3, 2) })
    fails("did you mean 'strict'", load, {}, { strickt = false })
    eq(net[1].bias, before)
    local missing, unexpected = load({ ["1.bias"] = T.ones(3), x = T.ones(1) }, { strict = false })
    assert.same({ { "1.weight" }, { "x" } }, { missing, unexpected })
    eq(net[1].bias, 1)
  end)

  it("leaves out transient buffers", function()
    local net = make_net()
    net:register_buffer("cache", T.zeros(1), { persistent = false })
    assert.is_nil(net:state_dict()["cache"])
    assert.equal(2, #net:buffers())
  end)
end)

describe("hooks", function()
  it("see and replace arguments and outputs, until removed", function()
    local net = nn.Linear(2, 2)
    local seen
    local h1 = net:register_forward_pre_hook(function(m, args)
      assert.is_true(m == net)
      return args[1] * 0
    end)
    local h2 = net:register_forward_hook(function(_, args, out)
      seen = args[1]
      return out + 1
    end)
    eq(net(T.ones(1, 2)), (net.bias + 1):totable())
    eq(seen, 0)
    h1:remove()
    h2:remove()
    eq(net(T.ones(1, 2)), F.linear(T.ones(1, 2), net.weight, net.bias))
    fails("a function is wanted", net.register_forward_hook, net, 3)
  end)
end)

describe("text", function()
  it("prints a tree", function()
    local net = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 2, { bias = false }), nn.ReLU()),
      nn.Conv2d(1, 8, 3, { padding = 1 }))
    assert.equal([[
Sequential(
  (1): Flatten(start_dim=2, end_dim=-1)
  (2): Sequential(
    (1): Linear(in_features=4, out_features=2, bias=false)
    (2): ReLU()
  )
  (3): Conv2d(1, 8, kernel_size={3, 3}, stride={1, 1}, padding={1, 1})
)]], tostring(net))
  end)

  it("summarizes with shapes, leaving modes as they were", function()
    local net = nn.Sequential(nn.Linear(784, 128), nn.Dropout(0.5))
    net[2]:eval()
    local text = net:summary(T.ones(2, 784))
    assert.is_truthy(text:find("100,480 parameters, 100,480 trainable", 1, true))
    assert.is_truthy(text:find("1 (Linear)", 1, true))
    assert.is_truthy(text:find("f32[2,128]", 1, true))
    assert.is_true(net.training)
    assert.is_false(net[2].training)
    assert.equal(0, #net[1]._hooks.after)
  end)
end)

describe("arguments of layers", function()
  it("may be positional, named or mixed", function()
    assert.is_nil(nn.Linear(4, 2, { bias = false }).bias)
    assert.is_nil(nn.Linear { 4, 2, bias = false }.bias)
    assert.is_nil(nn.Linear(4, 2, false).bias)
    assert.same({ 2, 4 }, nn.Linear { in_features = 4, out_features = 2 }.weight:shape())
    assert.same({ 8, 1, 3, 5 }, nn.Conv2d(2, 8, { 3, 5 }, { groups = 2 }).weight:shape())
    assert.same({ 2, 3 }, nn.LayerNorm({ 2, 3 }).weight:shape())
    assert.same({ 4 }, nn.LayerNorm(4).weight:shape())
    assert.is_nil(nn.LayerNorm(4, { bias = false }).bias)
    assert.equal("f64", nn.Linear(2, 2, { dtype = "f64" }).weight:dtype())
    assert.same({ 2, 2 }, nn.Linear(2.0, 2).weight:shape())
  end)

  it("raise at the caller's line, with what is allowed", function()
    fails("nn.Linear: unknown option 'bais'", nn.Linear, 2, 3, { bais = true })
    fails("did you mean 'bias'?", nn.Linear, 2, 3, { bais = true })
    fails("nn.Linear: out_features is missing", nn.Linear, 2)
    fails("nn.Linear: in_features must be a non-negative integer, got -1", nn.Linear, -1, 2)
    fails('got "4"', nn.Linear, "4", 2)
    fails("at most 5 positional", nn.Linear, 1, 2, true, "f32", "cpu", 6)
    fails("nn.Dropout: p must be a number from 0 to 1, got 1.5", nn.Dropout, 1.5)
    fails("must be multiples of groups 2", nn.Conv2d, 3, 4, 3, { groups = 2 })
    fails("stride must be at least 1", nn.Conv2d, 3, 4, 3, { stride = 0 })
    fails("must be a multiple of num_groups", nn.GroupNorm, 3, 4)
    fails("unknown approximate 'tahn' (allowed: none, tanh); did you mean 'tanh'?", nn.GELU, "tahn")
    fails("argument 2 must be a module", nn.Sequential, nn.ReLU(), 3)
    local line = debug.getinfo(1, "l").currentline + 1
    local err = fails("nn.Linear", function() nn.Linear(2, 3, { bais = 1 }) end)
    assert.is_truthy(err:find("module_spec.lua:" .. line .. ":", 1, true), err)
  end)
end)

describe("containers", function()
  it("Sequential passes on, indexes and grows", function()
    local net = nn.Sequential { nn.Linear(2, 3), nn.ReLU() }
    assert.equal(2, #net)
    assert.is_true(net[1] == net["1"])
    net:append(nn.Linear(3, 1))
    assert.same({ 4, 1 }, net(T.ones(4, 2)):shape())
    local last = net:pop()
    assert.equal("Linear", last:type())
    assert.equal(2, #net)
    net:insert(1, nn.Identity())
    assert.equal("Identity", net[1]:type())
    assert.same({ "2.weight", "2.bias" }, names_of(net:named_parameters()))
    local x = T.ones(2)
    assert.is_true(nn.Sequential()(x) == x)
    fails("indices start at 1", net.insert, net, 0, nn.ReLU())
  end)

  it("may hold tables with tensors as keys, also when it is called first by T.jit", function()
    local net = nn.Linear(2, 1)
    local a, b = T.tensor { 1 }, T.tensor { 1 }
    net.marks = { [a] = { 1 }, [b] = { 2 }, [print] = { 3 } }
    local x = T.ones(1, 2)
    local y = T.jit(function(v) return net(v) end)(x)
    assert.is_true(y:allclose(net(x)))
    -- keys are told apart by what they are, not by the values that they print
    local seen = {}
    T.vmap(function(t)
      for k in pairs(t) do seen[#seen + 1] = k end
      return t[a] + t[b]
    end)({ [a] = T.zeros(2), [b] = T.ones(2) })
    assert.is_true(#seen == 2 and not rawequal(seen[1], seen[2]))
  end)

  it("ModuleList and ModuleDict register", function()
    local Net = nn.class("Net")
    function Net:init()
      self.list = nn.ModuleList { nn.Linear(1, 1), nn.Linear(1, 1) }
      self.dict = nn.ModuleDict { b = nn.Linear(1, 1), a = nn.ReLU() }
    end
    local net = Net()
    assert.same({ "list.1.weight", "list.1.bias", "list.2.weight", "list.2.bias", "dict.b.weight",
      "dict.b.bias" },
      names_of(net:named_parameters()))
    assert.same({ "a", "b" }, net.dict:keys())
    assert.equal(2, #net.dict)
    assert.equal("ReLU", net.dict.a:type())
    fails("taken by a method", nn.ModuleDict, { forward = nn.ReLU() })
    assert.same({ "b", "a" }, nn.ModuleDict({ { "b", nn.ReLU() }, { "a", nn.ReLU() } }):keys())
    assert.same({ "b", "a" }, nn.ParameterDict({ { "b", T.ones(1) }, { "a", T.ones(1) } }):keys())
    fails("must be {name, value}", nn.ModuleDict, { { "b", nn.ReLU() }, { nn.ReLU() } })
    fails("has an entry a, too", nn.ModuleDict, { { "b", nn.ReLU() }, a = nn.ReLU() })
  end)
end)

describe("initializers", function()
  local function moments(t)
    return t:mean():item(), t:std():item(), t:min():item(), t:max():item()
  end

  it("defaults are those of PyTorch", function()
    T.manual_seed(0)
    local m = nn.Linear(100, 200)
    local _, std, lo, hi = moments(m.weight)
    assert.is_true(lo >= -0.1 and hi <= 0.1 and hi > 0.0999 and lo < -0.0999)
    eq(T.tensor(std), 0.1 / math.sqrt(3), 1e-3)
    assert.is_true(m.bias:abs():max():item() <= 0.1 and m.bias:abs():max():item() > 0.09)
    local c = nn.Conv2d(4, 64, 5)
    assert.is_true(c.weight:abs():max():item() <= 0.1 and c.weight:abs():max():item() > 0.099)
    local mean, s = moments(nn.Embedding(100, 100).weight)
    assert.is_true(math.abs(mean) < 0.05 and math.abs(s - 1) < 0.05)
  end)

  it("fill with the asked distributions", function()
    T.manual_seed(1)
    local t = T.empty(200, 100)
    local _, _, lo, hi = moments(nn.init.uniform_(t, 2, 5))
    assert.is_true(lo >= 2 and lo < 2.01 and hi <= 5 and hi > 4.99)
    local mean, std = moments(nn.init.normal_(t, { mean = 1, std = 0.5 }))
    assert.is_true(math.abs(mean - 1) < 0.02 and math.abs(std - 0.5) < 0.01)
    eq(nn.init.constant_(t, 3), 3)
    eq(nn.init.zeros_(t), 0)
    eq(nn.init.ones_(t), 1)
    _, _, _, hi = moments(nn.init.xavier_uniform_(t))
    assert.is_true(hi <= math.sqrt(6 / 300) and hi > 0.99 * math.sqrt(6 / 300))
    _, std = moments(nn.init.xavier_normal_(t, 2.0))
    assert.is_true(math.abs(std / (2 * math.sqrt(2 / 300)) - 1) < 0.03)
    _, std = moments(nn.init.kaiming_normal_(t, { mode = "fan_out", nonlinearity = "relu" }))
    assert.is_true(math.abs(std / math.sqrt(2 / 200) - 1) < 0.03)
    _, std, lo, hi = moments(nn.init.trunc_normal_(t, { std = 2, a = -2, b = 3 }))
    assert.is_true(lo >= -2 and hi <= 3 and lo < -1.99 and hi > 2.98 and std < 1.5)
    eq(nn.init.eye_(T.empty(2, 3)), { { 1, 0, 0 }, { 0, 1, 0 } })
    local q = nn.init.orthogonal_(T.empty(3, 5), 2)
    eq(q:matmul(q:t()), { { 4, 0, 0 }, { 0, 4, 0 }, { 0, 0, 4 } }, 1e-5)
    assert.equal(5 / 3, nn.init.calculate_gain("tanh"))
    eq(T.tensor(nn.init.calculate_gain("leaky_relu", 0.2)), math.sqrt(2 / 1.04))
    fails("did you mean 'relu'", nn.init.calculate_gain, "rellu")
    fails("needs at least 2 dimensions", nn.init.xavier_uniform_, T.empty(3))
    fails("unknown option 'sdt'", nn.init.normal_, t, { sdt = 1 })
  end)

  it("work on parameters without recording", function()
    local p = nn.Parameter(T.zeros(3, 3))
    nn.init.normal_(p)
    assert.is_true(p.is_leaf and p.requires_grad)
  end)
end)

describe("utils", function()
  local function with_grads()
    local a, b = nn.Parameter(T.zeros(2)), nn.Parameter(T.zeros(1))
    local loss = (a * T.tensor { 3, 0 } + b * 4):sum()
    loss:backward()
    return a, b, nn.Parameter(T.zeros(3))
  end

  it("clip_grad_norm_", function()
    local a, b, c = with_grads()
    local norm = nn.utils.clip_grad_norm_({ a, b, c }, 1.0)
    eq(norm, math.sqrt(9 + 64), 1e-5)
    eq(a.grad, { 3 / math.sqrt(73), 0 }, 1e-5)
    eq(b.grad, 8 / math.sqrt(73), 1e-5)
    eq(nn.utils.clip_grad_norm_({ a, b }, 10.0), 1, 1e-5)
    eq(b.grad, 8 / math.sqrt(73), 1e-5)
    local p, q = with_grads()
    eq(nn.utils.clip_grad_norm_({ p, q }, 4.0, { norm_type = math.huge }), 8)
    eq(q.grad, 4, 1e-5)
    p.grad = T.tensor { 1 / 0, 0 }
    fails("the norm of the gradients is inf", nn.utils.clip_grad_norm_, { p, q }, 1,
      { error_if_nonfinite = true })
    fails("max_norm must be a number", nn.utils.clip_grad_norm_, { a }, "1")
  end)

  it("norms of halves are f32, as they may be beyond f16", function()
    for _, dtype in ipairs { "f16", "bf16" } do
      for _, p in ipairs { 1, 2, 3, math.huge } do
        local list, wide = {}, {}
        for i = 1, 3 do
          list[i] = nn.Parameter(T.zeros({ 2 }, { dtype = dtype }))
          list[i].grad = T.tensor({ 60000, -3e4 * i }):clamp(-6e4, 6e4):to(dtype)
          wide[i] = list[i].grad:double()
        end
        local want = T.cat(wide):norm { p = p }
        local total = nn.utils.get_total_norm({ list[1].grad, list[2].grad, list[3].grad }, { norm_type = p })
        local norm = nn.utils.clip_grad_norm_(list, 1, { norm_type = p })
        assert.same({ "f32", "f32" }, { norm:dtype(), total:dtype() })
        eq(norm / want, 1, 1e-6)
        eq(total / want, 1, 1e-6)
        for i = 1, 3 do eq((list[i].grad:double() - wide[i] / want):abs():max(), 0, 4e-3) end
      end
    end
  end)

  it("clip_grad_value_", function()
    local a, b = with_grads()
    nn.utils.clip_grad_value_({ a, b }, 2.5)
    eq(a.grad, { 2.5, 0 })
    eq(b.grad, 2.5)
  end)

  it("parameters to a vector and back", function()
    local m = nn.Linear(2, 2)
    local v = nn.utils.parameters_to_vector(m:parameters())
    assert.same({ 6 }, v:shape())
    nn.utils.vector_to_parameters(T.arange(6):to("f32"), m:parameters())
    eq(m.weight, { 1, 2, 3, 4 })
    eq(m.bias, { 5, 6 })
    fails("a vector of 6 elements", nn.utils.vector_to_parameters, T.ones(5), m:parameters())
  end)
end)

describe("a list of modules", function()
  it("counts from the end, and has parts", function()
    local net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    local x = T.randn(5, 2)
    assert.equal(net[3], net[-1])
    assert.equal(net[1], net[-3])
    local body = net[{ 1, -2 }]
    assert.equal("Sequential", body:type())
    assert.equal(2, #body)
    assert.equal(net[1], body[1])
    assert.is_true(body(x):equal(net[2](net[1](x))))
    net[-1] = nn.Linear(3, 7)
    assert.equal(3, #net)
    assert.same({ 5, 7 }, net(x):shape())
    assert.equal(net[3].weight, net:get_parameter("3.weight"))
    assert.equal(2 * 3 + 3 + 3 * 7 + 7, net:num_parameters())
    assert.equal(1, #nn.ModuleList { nn.ReLU(), nn.Tanh() }[{ 2, 2 }])
    assert.is_nil(net[4])
    fails("Sequential: index 0 is not in 1..3 (indices start at 1)", function() return net[0] end)
    fails("Sequential: index -4 is not in 1..3", function() return net[-4] end)
    fails("Sequential: index 0 is not in 1..3", function() net[0] = nn.ReLU() end)
    fails("Sequential: index nil is not in 1..3", function() return net[{ 1 }] end)
  end)

  it("of encoder layers takes the mask under either name", function()
    local layer = nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16, batch_first = true, dropout = 0 })
    local net, x = nn.TransformerEncoder(layer, 2):eval(), T.randn(2, 3, 8)
    local mask = nn.Transformer.generate_square_subsequent_mask(3):to(x:device())
    local y = net(x, { src_mask = mask })
    assert.is_true(y:equal(net(x, { mask = mask })) and y:equal(net(x, mask)))
    assert.is_false(y:equal(net(x)))
    net = nn.TransformerEncoder(layer, 2, { norm = nn.LayerNorm(8) }):eval()
    assert.is_true(net(x):equal(net.norm(net.layers[2](net.layers[1](x)))))
    fails("norm must be a module, got the class nn.LayerNorm; call it", function()
      return nn.TransformerEncoder { layer, 2, norm = nn.LayerNorm }
    end)
  end)
end)

describe("a module", function()
  it("tells all that its constructor was given", function()
    assert.equal("ConvTranspose2d(2, 4, kernel_size={3, 3}, stride={2, 2}, padding={1, 1}, output_padding={1, 1}, "
      .. "dilation={2, 2}, groups=2, bias=false)", tostring(nn.ConvTranspose2d(2, 4, 3, { stride = 2, padding = 1,
      output_padding = 1, dilation = 2, groups = 2, bias = false })))
    assert.equal("StateDict of 2 (\n  weight: f32[1,2]\n  bias: f32[1]\n)", tostring(nn.Linear(2, 1):state_dict()))
    local net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    assert.equal(net:summary(T.zeros(5, 3)), net:summary({ 5, 3 }))
    assert.equal(nn.F, nn.functional)
  end)

  local function net() return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3))) end

  it("finds members by path", function()
    local m = net()
    assert.equal(m[2][1], m:get_submodule("2.1"))
    assert.equal(m, m:get_submodule(""))
    assert.equal(m[1].weight, m:get_parameter("1.weight"))
    assert.equal(m[2][1].running_mean, m:get_buffer("2.1.running_mean"))
    fails("has no module '7'", m.get_submodule, m, "7.1")
    fails("has no 'running_mean'", m.get_parameter, m, "2.1.running_mean")
    fails("has no 'weight'", m.get_buffer, m, "1.weight")
    m:set_submodule("2.1", nn.Identity())
    assert.equal("Identity", m[2][1]:type())
    assert.equal("bf16", m:bfloat16():get_parameter("1.weight"):dtype())
  end)

  it("copies with what is shared inside", function()
    local m = net()
    m[3] = m[1]
    local copy = m:clone()
    assert.equal(copy[1], copy[3])
    assert.is_false(copy[1].weight == m[1].weight)
    assert.equal(#m:parameters(), #copy:parameters())
    T.no_grad(function() copy[1].weight:zero_() end)
    assert.is_true(m[1].weight:abs():sum():item() > 0)
    assert.is_true(copy[1].weight.requires_grad)
  end)

  it("copies whether tensors that are no parameters require gradients", function()
    local m = nn.Identity()
    m.free, m.fixed = T.ones(2):requires_grad_(), T.ones(2)
    local copy = m:clone()
    assert.is_true(copy.free.requires_grad and copy.free.is_leaf and not rawequal(copy.free, m.free))
    assert.is_false(copy.fixed.requires_grad)
  end)

  it("zeroes gradients without what they were computed from", function()
    for _, of in ipairs { "module", "optimizer" } do
      local m = nn.Linear(1, 1, { bias = false })
      local who = of == "module" and m or T.optim.SGD(m:parameters(), { lr = 0.1 })
      local function add() (m.weight ^ 3):sum():backward { create_graph = true } end
      T.no_grad(m.weight.fill_, m.weight, 2)
      add()
      who:zero_grad { set_to_none = false }
      assert.is_false(m.weight.grad.requires_grad)
      add()
      assert.equal(12.0, T.grad_of(m.weight.grad:sum(), { m.weight })[1]:item())
    end
  end)
end)
