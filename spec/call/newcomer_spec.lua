-- SPDX-License-Identifier: MIT
-- The mistakes of the first hour, most of them PyTorch's habits: each is an error at the script's own line that says
-- what to write instead.

local T = require "perilune"

local env = setmetatable({ T = T, nn = T.nn, optim = T.optim, data = T.data }, { __index = _G })
local prelude = [[
local net = nn.Linear(2, 3)
local opt = optim.SGD(net:parameters(), { lr = 0.1 })
local schedule = optim.lr_scheduler.StepLR(opt, { step_size = 1 })
local x, y = T.rand(4, 2), T.tensor({ 1, 2, 3, 1 }, { dtype = "i64" })
local set = data.TensorDataset(x, y)
local loader = data.DataLoader(set, { batch_size = 2 })
]]
local line = select(2, prelude:gsub("\n", "\n")) + 1

local wrong = {
  ["net.parameters()"] = "call it with a colon, net:parameters()",
  ["T.save(net:state_dict(), 'net.safetensors')"] = "the path comes first: T.save(path, t)",
  ["T.save('x.npy', x)"] = "T.save writes safetensors; T.save_npy writes such files",
  ["nn.LSTM(3, 2)(T.ones(2, 4))"] = "nn.LSTM: the input f32[2,4] has 4 features, input_size is 3",
  ["local y = x[{ {}, false }]"] = "for a new dimension of size 1 use x:unsqueeze(dim)",
  ["net.train()"] = "with a colon",
  ["net.eval()"] = "eval: call it with a colon, net:eval()",
  ["net.to('f64')"] = "with a colon",
  ["net.state_dict()"] = "with a colon",
  ["opt.step()"] = "step: call it with a colon, opt:step()",
  ["opt.zero_grad()"] = "opt:zero_grad()",
  ["schedule.step()"] = "schedule:step()",
  ["loader.close()"] = "loader:close()",
  ["if x.ndim == 2 then end"] = "tensors have no field 'ndim'; x:dim()",
  ["local z = x.T"] = "tensors have no field 'T'; x:t()",
  ["return x.data"] = "tensors have no field 'data'; x:detach()",
  ["return x.nbytes"] = "x:numel() * x:element_size()",
  ["x.sum()"] = "argument x is missing",
  ["x.item()"] = "call it as x:item()",
  ["optim.Adam(net)"] = "pass net:parameters()",
  ["optim.Adam(net:parameters(), { learning_rate = 1 })"] = "did you mean 'lr'?",
  ["data.DataLoader(set, { num_workers = 2 })"] = "did you mean 'workers'?",
  ["T.fit(net, { train = loader, optimiser = opt })"] = "did you mean 'optimizer'?",
  ["T.fit(net, { train = loader, optimizer = opt, num_epochs = 2 })"] = "did you mean 'epochs'?",
  ["data.random_split(set, { 0.8, 0.1 })"] = "shares are numbers that sum to 1; got 0.8, all sum to 0.9",
  ["data.image_folder('/tmp', { transform = 3 })"] = "data.image_folder: transform must be a function",
  ["data.DataLoader(data.mnist { split = 'train', root = '/nowhere' })"] = "assert(T.data.mnist {…}) shows it",
  ["for _ in data.DataLoader({ T.rand(2), T.rand(3) }, { batch_size = 2 }) do end"] =
    "samples 1 and 2 of a batch are f32[2] and f32[3]; make them equal with a transform",
  ["T.custom { forward = function(ctx, a) ctx:save_for_backward(a) return a end, backward = print }(x)"] = "ctx:save(x",
  ["nn.F.cross_entropy(net(x), y - 1)"] = "target 0 at position 1 is not in 1 … 3",
  ["net(T.rand(2, 28, 28))"] = "28 features given, 2 expected",
  ["net(T.ones(2, 5))"] = "5 features given, 2 expected, which come last: x:transpose(-2,-1)",
  ["nn.Conv2d(1, 4, 3)(T.ones(8, 9, 9))"] = "of a batch without channels x:unsqueeze(2)",
  ["nn.F.cross_entropy(T.ones(2, 5, 4), T.ones(2, 5):long())"] =
    "where the classes are last: x:flatten(1,-2), target:flatten()",
  ["optim.Adam({ net:parameters(), net:parameters() })"] = "a group needs the field params: { { params =",
  ["optim.Adam(nn.ReLU():parameters())"] = "the modules that are assigned to its fields: self.fc = nn.Linear(…)",
  ["T.fit(net, { train = { x, y }, optimizer = opt })"] = "one batch is { { x, y } }",
  ["T.fit(net, { train = loader, optimizer = opt, batch_size = 8 })"] = "it is an option of T.data.DataLoader",
  ["T.fit(net, { train = loader, optimizer = opt, shuffle = true })"] = "it is an option of T.data.DataLoader",
  ["T.fit(net, { train = loader, optimizer = opt, lr = 1 })"] = "it is an option of the optimizer",
  ["net(x):backward()"] = "y:sum():backward()",
  ["x:sum():backward()"] = "call requires_grad_() on a leaf before",
  ["T.save('/tmp/never.safetensors', net)"] = "save net:state_dict(), not the module itself",
  ["nn.Sequential(net, nn.ReLU)"] = "got the class nn.ReLU; call it: nn.ReLU(…)",
  ["nn.Sequential(net, T.relu)"] = "an activation has a module, such as nn.ReLU()",
  ["nn.ReLU(x)"] = "make the module first: local m = nn.ReLU(…), then m(x)",
  ["local C = nn.class 'C' local c = C() c.layers = { nn.Linear(2, 2) } c:parameters()"] =
    "C.layers is a plain table, so the modules in it do not register and would be neither trained nor saved; "
    .. "wrap it: nn.ModuleList(…)",
  ["local C = nn.class 'C' function C:forward(v) return self.layers[1](v) end local c = C() "
    .. "c.layers = { nn.Linear(2, 2) } c(x)"] = "C.layers is a plain table, so the modules in it do not register",
  ["local C = nn.class 'C' local c = C() c.in_ = { a = nn.Parameter(T.ones(2)) } "
    .. "optim.SGD(nn.Sequential(c):parameters(), { lr = 1 })"] = "1 (C).in_ is a plain table, so the parameters in it",
  ["local C = nn.class 'C' local c = C() c.blocks = { { act = nn.ReLU(), fc = nn.Linear(2, 2) } } c:state_dict()"] =
    "C.blocks[1] is a plain table, so the modules in it do not register",
  ["if x > 0 then end"] = "x:gt(0) for x > 0",
  ["local first = x[0]"] = "indices start at 1",
  ["for i, batch in ipairs(loader) do end"] = "data.DataLoader: a loader is no list with an entry 1 (ipairs asks",
  ["for a, b in pairs(loader) do end"] = "its batches come by for x, y in loader do",
  ["net:train(loader)"] = "train: true, false or nothing is wanted, got a table",
  ["local C = nn.class 'C' function C:__init__() end"] = "the constructor is function C:init(…)",
  ["local C = nn.class 'C' function C:call(v) return v end C()(x)"] =
    "C: no forward method; define function C:forward(x) … end (call is never called)",
  ["T.save('/tmp/never.safetensors', { epoch = 1, net = net })"] =
    "save: 'net' is the module Linear, of which a file would get the fields; save net:state_dict(), and load it by "
    .. "net:load_state_dict(…)",
  ["T.save('/tmp/never.safetensors', { run = { opt = opt } })"] = "'run.opt' is an object, SGD, of which",
  ["T.fit(net, { train = loader, optimizer = optim.SGD(nn.Linear(2, 3):parameters(), { lr = 1 }) })"] =
    "fit: the optimizer has none of the network's parameters",
  ["data.Dataset { len = 3, get = function(i) return i end }"] = "get = function(self, i) … end, not function(i)",
  ["opt.lr = 0.5"] = "optim.SGD: lr is a setting of each group: for _, group in ipairs(opt.param_groups)",
  ["x.foo = 1"] = "only grad and requires_grad",
}

describe("a plain table of modules", function()
  local nn = T.nn
  local Net = nn.class "Net"
  function Net:init(t) self.layers = t end
  function Net:forward(x)
    local l = self.layers[1] or self.layers.a
    while getmetatable(l) == nil do l = l[1] or l.a end
    return type(l) == "table" and l(x) or x * l
  end
  local x
  before_each(function() x = T.ones(1, 2) end)
  after_each(function() x = nil end)
  local tables = {
    list = function() return { nn.Linear(2, 2) } end,
    names = function() return { a = nn.Linear(2, 2) } end,
    lists = function() return { { nn.Linear(2, 2), nn.ReLU() } } end,
    mixed = function() return { { a = { nn.Linear(2, 2) } } } end,
    parameters = function() return { a = nn.Parameter(T.ones(2)) } end,
  }
  local ways = {
    call = function(net) return net(x) end,
    part = function(net) return nn.Sequential(nn.ReLU(), net)(x) end,
    clone = function(net) return net:clone()(x) end,
    eval = function(net) return net:eval()(x) end,
    converted = function(net) return net:to("f64")(x:to "f64") end,
    jit = function(net) return T.jit(net)(x) end,
    jitted = function(net) return T.jit(function(v) return net(v) end)(x) end,
    vmap = function(net) return T.vmap(net)(x) end,
    checkpoint = function(net) return T.checkpoint(net, x) end,
    hooked = function(net)
      net:register_forward_hook(function() end)
      return net(x)
    end,
    worker = function(net)
      local set = T.data.MapDataset(T.data.TensorDataset(x), function(v) return net(v):detach() end)
      local loader <close> = T.data.DataLoader(set, { workers = 1 })
      for y in loader do assert.is_table(y) end
    end,
    later = function(net)
      local t = net.layers
      net.layers = nil
      net.layers = { nn.Identity() } -- refused, too, and taken back
      assert.is_false((pcall(net, x)))
      net.layers = nil
      net.layers = nn.ModuleList { nn.Identity() }
      assert.equal(x, net(x))
      net.layers = nil
      net.layers = t
      return net(x)
    end,
    parameters = function(net) return net:parameters() end,
    state = function(net) return net:state_dict() end,
    optimizer = function(net) return T.optim.SGD(net:parameters(), { lr = 1 }) end,
  }
  for kind, make in pairs(tables) do
    for way, use in pairs(ways) do
      if kind == "parameters" and way == "worker" then goto continue end -- to which parameters travel as plain tensors
      it(("is refused: %s by %s"):format(kind, way), function()
        local ok, message = pcall(use, Net(make()))
        assert.is_false(ok)
        assert.truthy(message:find("Net%)?%.layers[%w_.%[%]]* is a plain table, so the %a+ in it do not register"),
          message)
      end)
      ::continue::
    end
  end

  it("is the network's matter: a part may list what another part has", function()
    local Part = nn.class "Part"
    function Part:init(a) self.others = { a } end
    function Part:forward(v) return self.others[1](v) end
    local Whole = nn.class "Whole"
    function Whole:init()
      self.a = nn.Linear(2, 2)
      self.part = Part(self.a)
    end
    function Whole:forward(v) return self.part(v) end
    assert.same({ 1, 2 }, Whole()(x):shape())
    local stranger = Part(nn.Linear(2, 2))
    function Whole:forward(v) return stranger(v) end -- of which the network knows nothing
    assert.error_matches(function() return Whole()(x) end, "Part.others is a plain table")
  end)

  it("makes no trace of T.jit again, whatever metamethods a class has", function()
    local Long = nn.class "Long"
    Long.__len = function() return 3 end
    function Long:init() self.fc = nn.Linear(2, 2) end
    function Long:forward(v) return self.fc(v) * #self end
    local net = Long()
    local jitted = T.jit(net)
    for _ = 1, 3 do assert.is_true(T.allclose(jitted(x), net(x))) end
    assert.equal(1, jitted.ntraces)
  end)

  it("may hold what is registered elsewhere", function()
    local C = T.nn.class "C"
    local c = C()
    c.a = T.nn.Linear(2, 2)
    c.order = { c.a, c.a.weight, 3 }
    assert.equal(2, #c:parameters())
    assert.equal(0, #c:buffers())
  end)
end)

describe("the first hour", function()
  for code, part in pairs(wrong) do
    it("says what to do instead of " .. code, function()
      local chunk = assert(load(prelude .. code, "=script.lua", "t", env))
      local ok, message = pcall(chunk)
      assert.is_false(ok)
      assert.truthy(message:find(part, 1, true), message)
      assert.truthy(message:find(("script.lua:%d: "):format(line), 1, true), message)
    end)
  end
end)
