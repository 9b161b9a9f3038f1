-- SPDX-License-Identifier: MIT
-- Several GPUs in one process. Emulation: each script runs in a process of its own that sees two or three devices, once
-- with work that is done at once and once with streams that are late (what events do not order shows then). There a
-- kernel that is given another device's memory, or a stream of another device, ends the process.

local child = require "spec.support.child"

local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"

describe("several GPUs", function()
  if not plugin or not plugin:find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device")
    return
  end

  -- Runs the script on two devices, in both ways, with these further words; it must end well and print what is said.
  local function both(code, expected, words)
    for _, how in ipairs { "devices=2", "devices=2,late" } do
      local text, fine = child("PERILUNE_EMULATE=" .. how .. (words and "," .. words or ""), code)
      assert.is_true(fine, how .. ":\n" .. text)
      for _, line in ipairs(expected) do
        assert.truthy(text:find(line, 1, true), ("%s: '%s' is not in:\n%s"):format(how, line, text))
      end
    end
  end

  it("have names and numbers; \"cuda\" is the thread's current one", function()
    both([[
print("count", T.cuda.device_count(), T.cuda.current_device())
local first, second = T.ones(2, { device = "cuda" }), T.ones(2, { device = "cuda:1" })
print("there", first:device(), second:device(), T.ones(2):cuda(1):device())
T.cuda.set_device(1)
local x = T.ones(2):cuda()
print("moved", T.cuda.current_device(), x:device(), x:is_cuda(), x:cpu():is_cuda())
print("scoped", T.cuda.device(0, function(a) return T.ones(a):to("cuda"):device(), T.cuda.current_device() end, 3))
print("kept", pcall(T.cuda.device, 0, error, "boom"), T.cuda.current_device())
T.cuda.set_device("cuda:0")
print("named", T.cuda.current_device(), T.ones(2):cuda():device())
T.set_default_device("cuda:1")
print("default", T.zeros(2):device(), T.get_default_device(), T.tensor { 1 }:device(), T.rand(3):device())
T.set_default_device("cpu")
print("like", T.zeros_like(x):device(), (x * 2):device(), x:new_ones(2):device(), T.ones(3):to(x):device())
print("round", T.ones(1, { device = x:device() }):device())
]], { "count\t2\t0", "there\tcuda:0\tcuda:1\tcuda:1", "moved\t1\tcuda:1\ttrue\tfalse", "scoped\tcuda:0\t0",
      "kept\tfalse\t1", "named\t0\tcuda:0", "default\tcuda:1\tcuda:1\tcuda:1\tcuda:1",
      "like\tcuda:1\tcuda:1\tcuda:1\tcuda:1", "round\tcuda:1" })
  end)

  it("that are not there are errors with the count", function()
    local text = child("PERILUNE_EMULATE=devices=2", [[
for _, f in ipairs { function() return T.ones(2):cuda(2) end, function() return T.ones(2, { device = "cuda:7" }) end,
  function() T.cuda.set_device(3) end, function() T.cuda.set_device(-1) end,
  function() return T.cuda.memory_allocated(2) end,
  function() T.cuda.synchronize("cuda:4") end, function() return T.cuda.Stream { device = 9 } end,
  function() return T.nn.Linear(2, 2):to("cuda:2") end, function() return T.ones(2):to("cuda:x") end,
  function() return T.ones(2):to("cuda:01") end, function() T.cuda.set_device("gpu") end,
  function() T.cuda.device(1) end,
  function() return T.ones(2):to("cuda:99999999999999999999") end } do
  print(pcall(f))
end
print("goes on", T.ones(2):cuda(1):sum():item())
]])
    local _, n = text:gsub("this process has 2 GPUs, \"cuda:0\" to \"cuda:1\"", "")
    assert.equal(9, n, text)
    for _, line in ipairs { 'to: there is no device "cuda:2"', 'set_device: there is no device "cuda:3"',
      'set_device: there is no device "cuda:-1"', 'Stream: there is no device "cuda:9"', 'no device "cuda:x"',
      'no device "cuda:01"', "set_device: a device is wanted", "device: a function is wanted after the GPU",
      "goes on\t2.0" } do
      assert.truthy(text:find(line, 1, true), ("'%s' is not in:\n%s"):format(line, text))
    end
  end)

  it("do not mix: the error names both", function()
    both([[
local x, y = T.ones(2, 3, { device = "cuda:0" }), T.ones(2, 3, { device = "cuda:1" })
print(pcall(function() return y + x end))
print(pcall(function() return x:matmul(y:t()) end))
print(pcall(function() return x:gather(1, T.zeros(2, 3, { dtype = "i64", device = "cuda:1" })) end))
print(pcall(function() return x:add_(y) end))
print(pcall(function() return x * y:sum() end))
print("numbers", (x * T.tensor(2.0)):sum():item(), (y * 2):sum():item())
]], { "add: x is f32[2,3] on cuda:1, y is f32[2,3] on cuda:0", 'move one, y:to("cuda:1")', "matmul: ",
      "gather: ", "f32[] on cuda:1",
      "numbers\t12.0\t12.0" })
  end)

  it("copy between each other, in order", function()
    both([[
local x = T.arange(1000, { dtype = "f32", device = "cuda:0" })
for i = 1, 20 do -- there and back, with work on both sides
  local y = (x + 1):to("cuda:1") * 2
  x = (y - 2):to("cuda:0") / 2
end
print("same", x:cpu():equal(T.arange(1000, { dtype = "f32" })))
local a = T.randn(7, 5)
local t = a:cuda(0):t()
local double = t:to { device = "cuda:1", dtype = "f64" }
print("strided", t:to("cuda:1"):cpu():equal(a:t()), double:cpu():equal(a:t():double()))
local z = T.zeros(5, 7, { device = "cuda:1", dtype = "f64" })
z:copy_(t)
T.cuda.synchronize(0) -- the copy is work of the source, and behind what z's device had to do
print("into", z:cpu():equal(a:t():double()))
local over = T.zeros(1000, { device = "cuda:1" })
over:copy_(T.ones(1000):cuda(0))
T.cuda.synchronize(0)
print("over", over:sum():item())
z:t():copy_(T.ones(7, 1):cuda(0))
print("broadcast", z:sum():item())
print("empty", T.zeros(0, 3):cuda(0):to("cuda:1"):device())
local big = T.arange(1 << 20, { device = "cuda:1" })
local there = big:to("cuda:0")
big:zero_()
print("before", there:max():item())
]], { "same\ttrue", "strided\ttrue\ttrue", "into\ttrue", "over\t1000.0",
      "broadcast\t35.0", "empty\tcuda:1", "before\t1048576" })
    both([[print("host", T.arange(10):cuda(0):to("cuda:1"):sum():item())]], { "host\t55" }, "no-peers")
  end)

  it("are opened when they are used", function()
    local text, fine = child("PERILUNE_EMULATE=devices=3,only=1", [[
print("asked", T.cuda.device_count(), T.cuda.memory_allocated(0), T.cuda.get_device_name(0),
  T.cuda.get_device_properties(2).major)
T.cuda.empty_cache()
T.cuda.reset_peak_memory_stats(2)
T.cuda.set_device(1)
local net = T.nn.Sequential(T.nn.Linear(4, 8), T.nn.ReLU(), T.nn.Linear(8, 2)):cuda()
local opt = T.optim.Adam(net:parameters())
for _ = 1, 3 do
  opt:zero_grad()
  net(T.randn(3, 4):cuda()):pow(2):mean():backward()
  opt:step()
end
T.cuda.synchronize()
print("used", net[1].weight:device(), T.cuda.memory_allocated(1) > 0, T.cuda.memory_allocated(), T.cuda.mem_get_info())
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("asked\t3\t0\temulation on the CPU\t9", 1, true), text)
    assert.truthy(text:find("used\tcuda:1\ttrue", 1, true), text)
    text, fine = child("PERILUNE_EMULATE=devices=2,only=1", "T.ones(2):cuda()") -- the emulation itself looks
    assert.is_falsy(fine)
    assert.truthy(text:find("something is made on device 0", 1, true), text)
  end)

  it("have memory, limits and statistics of their own", function()
    both([[
local x = T.zeros(1000, { device = "cuda:1" })
print("each", T.cuda.memory_allocated(0), T.cuda.memory_allocated(1), T.cuda.memory_stats("cuda:1").blocks)
T.cuda.set_memory_limit(1 << 16, 1)
print(pcall(function() return T.zeros(1 << 20, { device = "cuda:1" }) end))
print("other", T.zeros(1 << 20, { device = "cuda:0" }):numel())
T.cuda.set_memory_limit(nil, 1)
T.cuda.device(1, function() print("inside", T.cuda.memory_allocated(), T.cuda.max_memory_allocated() >= 4096) end)
x = nil
collectgarbage() collectgarbage()
T.cuda.empty_cache()
print("gone", T.cuda.memory_allocated(1), T.cuda.memory_reserved(1))
]], { "each\t0\t4096\t1", "cuda:1: out of device memory", "other\t1048576", "inside\t4096\ttrue", "gone\t0\t0" })
    local text, fine = child("PERILUNE_EMULATE=devices=2,memory=33554432", [[
local kept = { T.zeros(1 << 20, { device = "cuda:0" }), T.zeros(1 << 20, { device = "cuda:1" }) }
for i = 1, 1500 do
  local x = T.ones(1 << 14, { device = i % 2 == 0 and "cuda:0" or "cuda:1" }) * 2
end
print("retries", T.cuda.memory_stats(0).retries, T.cuda.memory_stats(1).retries)
print(pcall(function() return T.zeros(1 << 23, { device = "cuda:1" }) end))
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("retries\t0\t0", 1, true), text)
    assert.truthy(text:find("cuda:1: out of device memory: 0.031 GiB wanted", 1, true), text)
  end)

  it("fail alone: the other one goes on", function()
    local text, fine = child("PERILUNE_EMULATE=devices=2,fault=3", [[
local a, b = T.ones(4, { device = "cuda:0" }), T.ones(4, { device = "cuda:1" })
local ok, err = pcall(function() return (b * 2):sum():item() end)
print(ok, err)
print(pcall(function() return T.ones(4):cuda(1) end))
print("goes on", (a * 3):sum():item(), T.ones(2):sum():item())
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("cuda:1: the device stopped working after cudaErrorIllegalAddress", 1, true), text)
    assert.truthy(text:find("goes on\t12.0\t2.0", 1, true), text)
  end)

  it("that are too old are said when they are used", function()
    local text, fine = child("PERILUNE_EMULATE=devices=2,old-device=0", [[
print(T.cuda.is_available(), pcall(function() return T.ones(2):cuda(0) end))
print("goes on", T.ones(2):cuda(1):sum():item())
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("device 0 has compute capability 7.0", 1, true), text)
    assert.truthy(text:find("goes on\t2.0", 1, true), text)
  end)

  it("report index values out of range, each its own", function()
    both([[
local x = T.randn(3, 4):cuda(1)
local y = x:index_select(1, T.tensor({ 1, 9 }, { dtype = "i64" }):cuda(1))
print("fine", T.ones(2):cuda(0):sum():item())
print(pcall(function() return y:totable() end))
print("again", T.ones(2):cuda(1):sum():item())
]], { "fine\t2.0", "index_select: index 9 is out of range", "again\t2.0" })
  end)

  it("have streams and events of their own; streams wait for events of others", function()
    both([[
local s = T.cuda.Stream { device = 1 }
print("stream", s:device(), T.cuda.Stream():device())
local x, y = T.ones(1000, { device = "cuda:0" })
T.cuda.stream(s, function()
  print("on it", T.cuda.current_device())
  y = T.ones(1000):cuda() * 3
end)
print("after", T.cuda.current_device(), y:device())
local e = s:record_event()
T.cuda.Stream { device = 0 }:wait_event(e)
e:wait()
s:synchronize()
print("value", y:sum():item(), e:query(), s:query())
print(pcall(function() e:record() end))
local f = T.cuda.Event { enable_timing = true }
print("never", f:query(), pcall(function() return f:elapsed_time(f) end))
T.cuda.synchronize(1)
s = nil
collectgarbage() collectgarbage()
print("freed", (y * 2):sum():item())
]], { "stream\tcuda:1\tcuda:0", "on it\t1", "after\t0\tcuda:1", "value\t3000.0\ttrue\ttrue",
      "recorded on cuda:1 before, the stream is one of cuda:0", "never\ttrue\tfalse", "freed\t6000.0" })
  end)

  it("take a net apart: gradients go back to the GPUs of their tensors", function()
    both([[
local nn, optim = T.nn, T.optim
local function train(first, second)
  T.manual_seed(3)
  local a = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16)):to(first)
  local b = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.Linear(16, 3)):to(second)
  local params = a:parameters()
  for _, p in ipairs(b:parameters()) do params[#params + 1] = p end
  local opts = { optim.SGD(params, { lr = 0.05, momentum = 0.9 }), optim.AdamW(params, { lr = 0.01 }),
    optim.RMSprop(params, { lr = 0.01 }), optim.Adam(params, { lr = 0.01, amsgrad = true }) }
  local x, y = T.randn(20, 6):to(first), T.randint(1, 3, { 20 }):to(second)
  local norm, last
  for i = 1, 8 do
    local opt = opts[i % #opts + 1]
    opt:zero_grad()
    last = nn.F.cross_entropy(b(a(x):to(second)), y)
    last:backward()
    norm = nn.utils.clip_grad_norm_(params, 0.5):item()
    assert(params[1].grad:device() == first and params[#params].grad:device() == second)
    opt:step()
  end
  return last:item(), norm, opts[2]
end
local l0, n0 = train("cpu", "cpu")
local l1, n1 = train("cuda:0", "cuda:1")
local l2, n2, opt = train("cuda:1", "cuda:0")
print("loss", math.abs(l0 - l1) < 1e-4, l1 == l2, "norm", math.abs(n0 - n1) < 1e-4, math.abs(n1 - n2) < 1e-6)
local state = opt:state_dict()
opt:load_state_dict(state)
opt:step()
]], { "loss\ttrue\ttrue\tnorm\ttrue\ttrue" })
  end)

  it("have gradients of gradients, shared leaves, views and batches across", function()
    both([[
local w = T.tensor({ 1, 2, 3 }, { dtype = "f64", device = "cuda:1" }):requires_grad_()
local y = (w * w):to("cuda:0") * T.tensor({ 2, 2, 2 }, { dtype = "f64", device = "cuda:0" })
local sum = y:to("cpu"):sum() + (w * 3):to("cuda:0"):cpu():sum()
sum:backward()
print("first", w.grad:device(), table.concat(w.grad:totable(), " "))
local function f3(v) return (v:to("cuda:0"):pow(3) * T.tensor(2.0)):to("cuda:1"):sum() end
local second = T.grad(function(v) return T.grad(f3)(v):sum() end)(w:detach())
print("second", second:device(), table.concat(second:totable(), " "))
local m = T.ones(4, 3, { device = "cuda:0" }):requires_grad_()
m[2]:to("cuda:1"):mul(5):sum():backward()
m:t():to("cuda:1"):sum():backward()
print("view", m.grad:device(), m.grad:sum():item(), m.grad[2]:sum():item())
local f = T.vmap(function(a) return (a:to("cuda:1") * 2):sum() end)
print("batch", f(T.ones(5, 2):cuda(0)):device(), f(T.ones(5, 2):cuda(0)):sum():item())
local j = T.jacobian(function(a) return a:to("cuda:1"):pow(2) end, T.tensor({ 1.0, 2.0 }):cuda(0))
print("jacobian", (type(j) == "table" and j[1] or j):cpu():sum():item())
local scaler = T.GradScaler { init_scale = 4.0 }
local p, q = T.ones(2, { device = "cuda:0" }):requires_grad_(), T.ones(2, { device = "cuda:1" }):requires_grad_()
local opt = T.optim.SGD({ p, q }, { lr = 1.0 })
scaler:scale((p:to("cuda:1") * q):sum()):backward()
scaler:step(opt)
scaler:update()
print("scaled", p:sum():item(), q:sum():item())
]], { "first\tcuda:1\t7.0 11.0 15.0", "second\tcuda:1\t12.0 24.0 36.0", "view\tcuda:0\t27.0\t18.0",
      "batch\tcuda:1\t20.0", "jacobian\t6.0", "scaled\t0.0\t0.0" })
  end)

  it("serve jitted functions, a trace for each", function()
    both([[
local net = T.nn.Sequential(T.nn.Linear(4, 8), T.nn.Tanh()):to("cuda:1")
local f = T.jit(function(x) return (x * 2 + T.ones(4, { device = x:device() })):relu():softmax(1):sum(1) end)
local x = T.randn(5, 4)
local want = f.f and f.f(x) or (x * 2 + 1):relu():softmax(1):sum(1)
for i = 1, 6 do
  for _, d in ipairs { "cuda:0", "cuda:1", "cpu" } do
    local y = f(x:to(d))
    assert(y:device() == d, y:device() .. " " .. d)
    assert(T.allclose(y:cpu(), want:cpu(), { atol = 1e-6 }))
  end
end
print("groups", (T.core.jit_device_groups(f.last.program)))
local g = T.jit(function(a) return net(a):sum() end)
for i = 1, 6 do g(x:cuda(1)) end
local how = select(3, T.core.jit_device_groups(g.last.program))
print("captured", how, T.allclose(g(x:cuda(1)):cpu(), net(x:cuda(1)):sum():cpu()))
local h = T.jit(function(a, b)
  local two = T.full({ 4 }, 2.0, { device = "cuda:1" })
  return (a:to("cuda:1") * b + two):sum():to("cuda:0") + a:sum()
end)
local a, b = x:cuda(0), x:cuda(1)
for i = 1, 5 do
  local y = h(a, b)
  assert(y:device() == "cuda:0")
  assert(math.abs(y:item() - ((x * x + 2):sum() + x:sum()):item()) < 1e-3)
end
print("across", (select(3, T.core.jit_device_groups(h.last.program))))
local p = T.ones(4, { device = "cuda:0" }):requires_grad_()
local step = T.jit(function(v)
  local loss = ((v * p):to("cuda:1") * T.ones(4, { device = "cuda:1" })):pow(2):sum()
  loss:backward()
  return loss
end)
for i = 1, 5 do p.grad = nil step(T.ones(4, { device = "cuda:0" })) end
print("backward", p.grad:device(), p.grad:sum():item())
T.cuda.set_device(1)
local made = T.jit(function() return T.ones(3, { device = "cuda" }) * 2 end)
print("made", made():device(), made():device())
T.cuda.set_device(0)
print("then", made():device())
]], { "captured\tcaptured\ttrue", "across\tnot captured", "backward\tcuda:0\t8.0", "made\tcuda:1\tcuda:1" })
  end)

  it("keep checkpoints that load anywhere", function()
    both([[
local path = os.tmpname()
local net = T.nn.Linear(3, 2):to("cuda:1")
local opt = T.optim.Adam(net:parameters())
net(T.ones(1, 3, { device = "cuda:1" })):sum():backward()
opt:step()
assert(T.save(path, { net = net:state_dict(), opt = opt:state_dict() }))
for _, d in ipairs { "cpu", "cuda:0", "cuda:1" } do
  local state = assert(T.load(path, { map_location = d }))
  print("loaded", d, state.net.weight:device() == d)
  local other = T.nn.Linear(3, 2):to(d)
  other:load_state_dict(assert(T.load(path)).net)
  print("same", d, other.weight:cpu():equal(net.weight:cpu()), other.weight:device())
  local again = T.optim.Adam(other:parameters())
  again:load_state_dict(state.opt)
  other(T.ones(1, 3, { device = d })):sum():backward()
  again:step()
end
print(pcall(T.load, path, { map_location = "cuda:4" }))
os.remove(path)
]], { "loaded\tcpu\ttrue", "loaded\tcuda:0\ttrue", "loaded\tcuda:1\ttrue",
      "same\tcpu\ttrue\tcpu", "same\tcuda:1\ttrue\tcuda:1",
      'no device "cuda:4"; this process has 2 GPUs' })
  end)

  it("have a current one in each thread", function()
    both([[
T.cuda.set_device(1)
local loader = T.data.DataLoader({ 1, 2, 3, 4 }, { batch_size = 1, workers = 2, collate = function(list)
  local P = require "perilune"
  P.cuda.set_device(list[1] % 2)
  return P.full({ 4 }, list[1] + 0.0, { device = "cuda" })
end })
local seen = {}
for x in loader do
  seen[#seen + 1] = x:device() .. "=" .. x:sum():item()
  x = x:to("cuda") * 2 -- a worker's tensor is moved and freed here
end
print(table.concat(seen, " "))
print("mine", T.cuda.current_device())
loader:close()
]], { "cuda:1=4.0 cuda:0=8.0 cuda:1=12.0 cuda:0=16.0", "mine\t1" })
  end)
end)
