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
  ["net(x):backward()"] = "y:sum():backward()",
  ["x:sum():backward()"] = "call requires_grad_() on a leaf before",
  ["T.save('/tmp/never.safetensors', net)"] = "save net:state_dict(), not the module itself",
  ["nn.Sequential(net, nn.ReLU)"] = "got the class nn.ReLU; call it: nn.ReLU(…)",
  ["nn.Sequential(net, T.relu)"] = "an activation has a module, such as nn.ReLU()",
  ["nn.ReLU(x)"] = "make the module first: local m = nn.ReLU(…), then m(x)",
  ["local C = nn.class 'C' local c = C() c.layers = { nn.Linear(2, 2) } c:parameters()"] =
    "C.layers is a plain table, so the modules in it do not register and would be neither trained nor saved; "
    .. "wrap it: nn.ModuleList(…)",
  ["local C = nn.class 'C' local c = C() c.in_ = { a = nn.Parameter(T.ones(2)) } "
    .. "optim.SGD(nn.Sequential(c):parameters(), { lr = 1 })"] = "1 (C).in_ is a plain table, so the parameters in it",
  ["local C = nn.class 'C' local c = C() c.blocks = { { act = nn.ReLU(), fc = nn.Linear(2, 2) } } c:state_dict()"] =
    "C.blocks[1] is a plain table, so the modules in it do not register",
  ["if x > 0 then end"] = "x:gt(0) for x > 0",
  ["local first = x[0]"] = "indices start at 1",
  ["x.foo = 1"] = "only grad and requires_grad",
}

describe("a plain table of modules", function()
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
