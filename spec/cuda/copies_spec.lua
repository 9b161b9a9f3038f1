-- SPDX-License-Identifier: MIT
-- Pinned memory, copies beside the work of a GPU, and loaders that use them. The scripts run in processes of their own,
-- once with work that is done at once and once with streams that are late: a copy that nobody waits for has not
-- happened then, and memory that is handed out too early has other contents.

local T = require "perilune"
local child = require "spec.support.child"
local near = require "spec.support.near"

local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"
local ok, why = T.cuda.is_available()

describe("pinned memory", function()
  it("is for tensors of the CPU, and needs a GPU", function()
    local x = T.ones(3)
    assert.is_false(x:is_pinned())
    if not ok then
      near.fails("cuda", function() return x:pin_memory() end)
      near.fails("pin_memory is for GPUs", function() return T.data.DataLoader(x, { pin_memory = true }) end)
      near.fails("device is for GPUs", function() return T.data.DataLoader(x, { device = "cuda" }) end)
      return
    end
    local y = x:pin_memory()
    assert.is_true(y:is_pinned())
    assert.equal(y, y:pin_memory())
    assert.is_true(y[{ { 1, 2 } }]:is_pinned())
    assert.is_false((y + 1):is_pinned())
    near.near(y + 1, 2)
    assert.is_false(y:cuda():is_pinned())
    near.fails("x:cpu():pin_memory()", function() return y:cuda():pin_memory() end)
    assert.same({ { 1, 3 }, { 2, 4 } }, T.tensor { { 1, 2 }, { 3, 4 } }:t():pin_memory():totable())
    assert.equal(0, T.zeros(0, 2):pin_memory():numel())
    assert.same({ true, false }, T.tensor { true, false }:pin_memory():totable())
  end)

  if not ok then
    pending("no device: " .. tostring(why))
    return
  end

  it("goes to the GPU and comes back without waiting, and like any other", function()
    local x = T.randn(50, 7):pin_memory()
    for _, y in ipairs { x:to("cuda", { non_blocking = true }), x:cuda { non_blocking = true }, x:cuda(0),
      x:to { device = "cuda", non_blocking = true }, T.randn(2, 2):copy_(1) and x:clone():cuda { non_blocking = true },
      x:to { device = "cuda", dtype = "f32", non_blocking = true } } do
      assert.equal("cuda", y:device())
      assert.is_true(y:cpu():equal(x))
      local z = (y * 2):to("cpu", { non_blocking = true })
      T.cuda.synchronize()
      assert.is_true(z:equal(x * 2))
    end
    assert.is_true(x:cuda():to("cpu", { non_blocking = true }):is_pinned())
    assert.equal("f64", x:to { device = "cuda", dtype = "f64", non_blocking = true }:dtype())
    assert.is_true(x:t():cuda { non_blocking = true }:cpu():equal(x:t()))
    local w = x:detach():requires_grad_() -- a history goes the ordinary way
    w:to("cuda", { non_blocking = true }):sum():backward()
    near.near(w.grad, 1)
    near.fails("non_block", function() return x:to("cuda", { non_block = true }) end)
  end)

  it("serves loaders", function()
    local ds = T.data.TensorDataset(T.arange(20, { dtype = "f32" }):view(10, 2), T.arange(10))
    for _, workers in ipairs { 0, 2 } do
      local seen = {}
      for x, y in T.data.DataLoader(ds, { batch_size = 4, device = "cuda", workers = workers }) do
        assert.equal("cuda", x:device())
        assert.equal("cuda", y:device())
        seen[#seen + 1] = { x:sum():item(), y:max():item() }
      end
      assert.same({ { 36.0, 4 }, { 100.0, 8 }, { 74.0, 10 } }, seen)
      for x, y in T.data.DataLoader(ds, { batch_size = 4, pin_memory = true, workers = workers }) do
        assert.is_true(x:is_pinned() and y:is_pinned())
      end
    end
    local nested = T.data.DataLoader({ 1, 2, 3 }, { batch_size = 2, device = "cuda",
      collate = function(list) return { x = T.tensor(list), names = { "a", T.ones(2) } } end })
    local n = 0
    for batch in nested do
      n = n + 1
      assert.equal("cuda", batch.x:device())
      assert.equal("a", batch.names[1])
      assert.equal("cuda", batch.names[2]:device())
    end
    assert.equal(2, n)
    near.fails("no device", function() return T.data.DataLoader(ds, { device = "cuda:9" }) end)
  end)

  it("an error in a batch comes in its turn", function()
    local bad = setmetatable({}, { __len = function() return 6 end, __index = function(_, i)
      if i == 5 then error("sample five", 0) end
      return T.tensor { i + 0.0 }
    end })
    local seen = {}
    near.fails("sample five", function()
      for x in T.data.DataLoader(bad, { batch_size = 2, device = "cuda" }) do seen[#seen + 1] = x:sum():item() end
    end)
    assert.same({ 3.0, 7.0 }, seen)
  end)
end)

describe("copies beside the work", function()
  if not plugin or not plugin:find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device")
    return
  end

  local function both(code, expected)
    for _, how in ipairs { "open", "late", "devices=2,late" } do
      local text, fine = child("PERILUNE_EMULATE=" .. how, code)
      assert.is_true(fine, how .. ":\n" .. text)
      for _, line in ipairs(expected) do
        assert.truthy(text:find(line, 1, true), ("%s: '%s' is not in:\n%s"):format(how, line, text))
      end
    end
  end

  it("do not wait for what is queued, and what comes later waits for them", function()
    local code = [[
local s, e = T.cuda.Stream(), T.cuda.Event()
local x = T.ones(1000, { device = "cuda" })
local host = T.full({ 1000 }, 7.0):pin_memory()
T.cuda.synchronize()
for _ = 1, 20 do x = x + 1 end
e:record()
local y = T.cuda.stream(s, function() return host:cuda { non_blocking = true } end)
s:synchronize()
print("ahead", e:query())
local z = host:cuda { non_blocking = true } * x
print("value", z:sum():item(), y:sum():item())
]]
    local text = child("PERILUNE_EMULATE=late", code)
    assert.truthy(text:find("ahead\tfalse", 1, true), text)
    both(code, { "value\t147000.0\t7000.0" })
  end)

  it("keep pinned memory until it was read", function()
    both([[
local sum = T.zeros(1 << 15, { device = "cuda" })
for i = 1, 30 do
  sum = sum + T.full({ 1 << 15 }, i + 0.0):pin_memory():cuda { non_blocking = true }
  if i % 3 == 0 then collectgarbage() collectgarbage() end
end
print("sum", sum:max():item(), sum:min():item())
local down = {}
for i = 1, 30 do
  local y = T.full({ 1 << 12 }, i + 0.0, { device = "cuda" }):to("cpu", { non_blocking = true })
  if i % 2 == 0 then down[#down + 1] = { i, y } end -- the others are dropped before their copy has run
  collectgarbage()
end
T.cuda.synchronize()
local wrong = 0
for _, d in ipairs(down) do if d[2]:min():item() ~= d[1] or d[2]:max():item() ~= d[1] then wrong = wrong + 1 end end
print("wrong", wrong)
]], { "sum\t465.0\t465.0", "wrong\t0" })
  end)

  it("keep device memory until it was used", function()
    both([[
local s = T.cuda.Stream()
local hosts = {}
for i = 1, 12 do hosts[i] = T.full({ 1 << 14 }, i + 0.0):pin_memory() end
local sum = T.zeros(1 << 14, { device = "cuda" })
for i = 1, 12 do
  sum = sum + hosts[i]:cuda { non_blocking = true }
  collectgarbage() collectgarbage()
  T.cuda.stream(s, function() return hosts[1]:cuda { non_blocking = true } end)
  s:synchronize() -- copies run far ahead of sums
end
print("sum", sum:max():item(), sum:min():item())
sum, hosts, s = nil, nil, nil
collectgarbage() collectgarbage()
T.cuda.synchronize()
T.cuda.empty_cache()
print("left", T.cuda.memory_allocated(), T.cuda.memory_reserved())
]], { "sum\t78.0\t78.0", "left\t0\t0" })
  end)

  it("train from a loader as from the CPU", function()
    both([[
local function train(device)
  T.manual_seed(5)
  local net = T.nn.Sequential(T.nn.Linear(3, 8), T.nn.ReLU(), T.nn.Linear(8, 1)):to(device)
  local opt = T.optim.SGD(net:parameters(), { lr = 0.05 })
  local x = T.randn(40, 3)
  local ds = T.data.TensorDataset(x, x:sum(2, true))
  local last
  for _ = 1, 3 do
    for a, b in T.data.DataLoader(ds, { batch_size = 8, shuffle = true, seed = 1, device = device, workers = 1 }) do
      local loss = (net(a) - b):pow(2):mean()
      opt:zero_grad()
      loss:backward()
      opt:step()
      last = loss
    end
    collectgarbage()
  end
  return last:item()
end
local a, b = train("cpu"), train("cuda")
print("same", math.abs(a - b) < 1e-5, a, b)
]], { "same\ttrue" })
  end)

  it("say that there is no more pinned memory", function()
    local text, fine = child("PERILUNE_EMULATE=pinned=9437184", [[
print(pcall(function() return T.zeros(4 << 20):pin_memory() end))
print("goes on", T.ones(4):pin_memory():cuda { non_blocking = true }:sum():item())
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("the system has no 0.016 GiB more of pinned memory", 1, true), text)
    assert.truthy(text:find("goes on\t4.0", 1, true), text)
  end)

  it("out of device memory collects garbage once and tries again", function()
    local text, fine = child("PERILUNE_EMULATE=memory=8388608", [[
local host = T.ones(1 << 19):pin_memory()
for _ = 1, 20 do local x = host:cuda { non_blocking = true } end
print("fine", host:cuda { non_blocking = true }:sum():item())
print(pcall(function() return T.ones(3 << 20):pin_memory():cuda { non_blocking = true } end))
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("fine\t524288.0", 1, true), text)
    assert.truthy(text:find("out of device memory: 0.012 GiB wanted", 1, true), text)
  end)
end)
