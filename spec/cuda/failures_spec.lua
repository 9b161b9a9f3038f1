-- SPDX-License-Identifier: MIT
-- What can go wrong with a device, each in a process of its own: the message, and that the CPU goes on. Emulation only:
-- PERILUNE_EMULATE plays the bad day.

local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"
local build = os.getenv "PERILUNE_BUILD" or "build"
local run = require "spec.support.child"

local moving = [[
local ok, err = pcall(function() return T.ones(2):cuda() end)
print(ok, err)
print("cpu", T.ones(2):sum():item(), T.cuda.is_available())
]]

describe("without a device", function()
  it("no plug-in is one clear line", function()
    local text, fine = run("PERILUNE_CUDA_PLUGIN=/nowhere/perilune_cuda.so", moving)
    assert.is_true(fine)
    assert.truthy(text:find("false\t.*cuda: .*perilune_cuda.so"), text)
    assert.truthy(text:find("cpu\t2.0\tfalse", 1, true), text)
  end)

  it("a file that is no plug-in is refused", function()
    local text, fine = run(("PERILUNE_CUDA_PLUGIN='%s/lib/perilune/core.so'"):format(build), moving)
    assert.is_true(fine)
    assert.truthy(text:find("another version", 1, true), text)
  end)

  local real = build .. "/lib/perilune/perilune_cuda.so"
  local there = io.open(real)
  if not there then -- no part of the build, compiled for tests alone
    real = build .. "/spec/perilune_cuda.so"
    there = io.open(real)
  end
  if there then
    there:close()
    it("the real plug-in loads, and says what is missing if anything is", function()
      local text, fine = run("PERILUNE_CUDA_PLUGIN='" .. real .. "'", moving)
      assert.is_true(fine, text)
      assert.is_nil(text:find("does not load", 1, true), text)
      assert.truthy(text:find("cpu\t2.0\t", 1, true), text)
    end)
  else
    pending("this build has no perilune_cuda.so (PERILUNE_CUDA=OFF, or no nvcc)")
  end

  if not plugin or not plugin:find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device")
    return
  end
  for what, says in pairs {
    ["no-driver"] = "no NVIDIA driver",
    ["old-driver"] = "the driver supports CUDA 12.2, the plug-in needs 13.0",
    ["no-device"] = "the driver is there, but no device",
  } do
    it(what .. " is said, and the CPU goes on", function()
      local text, fine = run("PERILUNE_EMULATE=" .. what, moving)
      assert.is_true(fine, text)
      assert.truthy(text:find(says, 1, true), text)
      assert.truthy(text:find("cpu\t2.0\tfalse", 1, true), text)
    end)
  end

  it("out of device memory flushes once, collects, then says the numbers", function()
    local text, fine = run("PERILUNE_EMULATE=memory=8388608", [[
for i = 1, 40 do local x = T.zeros(1 << 18, { device = "cuda" }) end -- garbage makes room
local a = T.zeros(1 << 20, { device = "cuda" })
local ok, err = pcall(function() return T.zeros(3 << 20, { device = "cuda" }) end)
print(ok, err)
print(T.ones(3, { device = "cuda" }):sum():item(), T.cuda.memory_stats().retries > 0)
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("out of device memory: 0.012 GiB wanted", 1, true), text)
    assert.truthy(text:find("3.0\ttrue", 1, true), text)
  end)

  it("tensors that a script drops are collected before their memory is wanted", function()
    local text, fine = run("PERILUNE_EMULATE=memory=33554432", [[
local kept = T.zeros(1 << 20, { device = "cuda" }) -- 4 of 32 MiB
for i = 1, 2000 do local x = T.ones(1 << 14, { device = "cuda" }) * 2 end -- 250 MiB in all
local m = T.cuda.memory_stats()
print("retries", m.retries, m.peak < 20 << 20)
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("retries\t0\ttrue", 1, true), text)
  end)

  it("large intermediate results on an empty device cost steps of the collector, no full collections", function()
    local text, fine = run("PERILUNE_EMULATE=memory=2097152", [[
local a, b = T.ones(1600, { device = "cuda" }), T.ones(1600, { device = "cuda" }) -- over 1/512 of the memory
local old, hit, fulls = {}, nil, 0
for i = 1, 40 do old[i] = setmetatable({}, { __gc = function() hit = true end }) end
collectgarbage() collectgarbage() -- what is old now goes in full collections alone
for i = 1, 40 do
  old[i], hit = nil, nil
  (a * b + a):tanh():free()
  if hit then fulls = fulls + 1 end
end
print("fulls", fulls, fulls < 10, T.cuda.memory_stats().peak <= 5 * 6656)
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("fulls\t%d+\ttrue\ttrue"), text)
  end)

  it("a fault marks the device dead; the CPU goes on", function()
    local text, fine = run("PERILUNE_EMULATE=fault=3", [[
local x = T.ones(4, { device = "cuda" })
local ok, err
for i = 1, 5 do
  ok, err = pcall(function() x = x * 2; return x:sum():item() end)
  if not ok then break end
end
print(ok, err)
print(pcall(function() return T.ones(4):cuda() end))
print("cpu", T.ones(4):sum():item())
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("the device stopped working after cudaErrorIllegalAddress", 1, true), text)
    assert.truthy(text:find("PERILUNE_CUDA_SYNC=1", 1, true), text)
    assert.truthy(text:find("cpu\t4.0", 1, true), text)
  end)

  it("PERILUNE_CUDA_SYNC=1 names the op that faulted", function()
    local text = run("PERILUNE_CUDA_SYNC=1 PERILUNE_EMULATE=fault=2", [[
local x = T.full({ 4 }, 2.0, { device = "cuda" })
print(pcall(function() return x:exp() end))
]])
    assert.truthy(text:find("noticed in exp", 1, true), text)
  end)

  it("an index out of range names op and value, in every kind of op, once; the session goes on", function()
    local text, fine = run("", [[
local bad = T.tensor({ 1, 9 }, { dtype = "i64", device = "cuda" })
local x = T.randn(3, 4):cuda()
for name, f in pairs {
  gather = function() return x:gather(1, bad:view(2, 1)) end,
  index = function() return x[bad] end,
  index_add = function() return x:index_add(1, bad, T.ones(2, 4):cuda()) end,
  embedding = function() return T.nn.F.embedding(bad, x) end,
  cross_entropy = function() return T.nn.F.cross_entropy(x:narrow(1, 1, 2), bad) end,
} do
  local ok, err = pcall(function() return f():cpu() end)
  print(name, ok, err)
  print(name, "goes on", T.ones(2):cuda():sum():item())
end
]])
    assert.is_true(fine, text)
    for _, name in ipairs { "gather", "index", "index_add", "embedding", "cross_entropy" } do
      assert.truthy(text:find(name .. "\tfalse\t[^\n]*9[^\n]*out of range"), text)
      assert.truthy(text:find(name .. "\tgoes on\t2.0"), text)
    end
  end)

  it("f64 takes no path of tensor cores; what rounds to TF32 leaves it alone", function()
    local text, fine = run("", [[
T.set_float32_matmul_precision("high") -- before there is a device
assert(T.zeros(1):cuda() and T.cuda.allow_tf32())
T.set_float32_matmul_precision("highest")
assert(not T.cuda.allow_tf32())
T.set_float32_matmul_precision("high")
local a, b = T.randn({ 33, 17 }, { dtype = "f64" }), T.randn({ 17, 9 }, { dtype = "f64" })
local q = T.randn({ 1, 2, 9, 8 }, { dtype = "f64" })
local function far(f, ...)
  local here, there = { ... }, {}
  for i, x in ipairs(here) do there[i] = x:cuda() end
  local y = f(table.unpack(there))
  assert(y:dtype() == "f64")
  return (y:cpu() - f(table.unpack(here))):abs():max():item()
end
local worst = math.max(far(T.matmul, a, b),
  far(function(x) return T.nn.F.scaled_dot_product_attention(x, x, x, { is_causal = true }) end, q),
  far(function(x) return T.nn.F.conv2d(x, x[{ { 1, 1 }, {}, { 1, 3 }, { 1, 3 } }]) end, q))
print("worst", worst < 1e-12)
local ok, err = pcall(function() return T.autocast("f64", function() end) end)
print("autocast", ok, err)
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("worst\ttrue", 1), text)
    assert.truthy(text:find("autocast\tfalse", 1), text)
  end)

  it("out of memory in the middle of a training step leaves parameters as they were", function()
    local text, fine = run("PERILUNE_EMULATE=memory=16777216", [[
T.manual_seed(1)
local net = T.nn.Sequential(T.nn.Linear(64, 64), T.nn.ReLU(), T.nn.Linear(64, 8)):cuda()
local opt = T.optim.Adam(net:parameters(), { lr = 0.1 })
local function step(n)
  opt:zero_grad()
  local loss = net(T.randn(n, 64, { device = "cuda" })):pow(2):mean()
  loss:backward()
  opt:step()
  return loss:item()
end
step(8)
local before = net[1].weight:cpu():clone()
local ok, err = pcall(step, 40000)
print(ok, err)
print("same", net[1].weight:cpu():equal(before))
collectgarbage()
print("again", pcall(step, 8))
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("false\t.*out of device memory"), text)
    assert.truthy(text:find("same\ttrue", 1, true), text)
    assert.truthy(text:find("again\ttrue", 1, true), text)
  end)

  it("work that is not done yet is no failure of what is launched next", function()
    local text, fine = run("PERILUNE_EMULATE=slow", [[
local s, e = T.cuda.Stream(), T.cuda.Event()
local x = T.ones(4, { device = "cuda" })
e:record(s)
local said = { e:query(), e:query(), e:query(), T.cuda.Stream():query() }
x = x * 2
print(said[1], said[2], said[3], said[4], x:sum():item())
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("false\tfalse\ttrue\tfalse\t8.0", 1, true), text)
  end)

  it("memory that another stream may still use is handed out again only when that is over", function()
    local text, fine = run("PERILUNE_EMULATE=slow", [[
local function round() return T.ones(1 << 19, { device = "cuda" }) end
local reserved = T.cuda.memory_reserved
round()
collectgarbage() collectgarbage()
local one = reserved()
round()
collectgarbage() collectgarbage()
print("alone", reserved() == one)
local s = T.cuda.Stream()
round()
collectgarbage() collectgarbage()
round()
print("beside", reserved() > one)
for i = 1, 50 do round() collectgarbage() end
print("no more", reserved() <= 5 * one, T.cuda.memory_allocated() <= 2 * one)
T.cuda.empty_cache()
collectgarbage() collectgarbage()
T.cuda.empty_cache()
print("all", reserved())
assert(s)
]])
    assert.is_true(fine, text)
    for _, line in ipairs { "alone\ttrue", "beside\ttrue", "no more\ttrue\ttrue", "all\t0" } do
      assert.truthy(text:find(line, 1, true), text)
    end
  end)

  it("memory of a stream outlives it", function()
    local text, fine = run("", [[
local s = T.cuda.Stream()
local x = T.cuda.stream(s, function()
  local y = T.ones(1000, { device = "cuda" })
  return y * 2 + y
end)
s:synchronize()
s = nil
collectgarbage() collectgarbage()
print("read", x:sum():item())
x = nil
collectgarbage() collectgarbage()
T.cuda.empty_cache()
print("empty", T.cuda.memory_allocated(), T.cuda.memory_reserved())
print("again", T.ones(1000, { device = "cuda" }):sum():item())
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("read\t3000.0", 1, true), text)
    assert.truthy(text:find("empty\t0\t0", 1, true), text)
    assert.truthy(text:find("again\t1000.0", 1, true), text)
  end)

  it("a capture takes memory that waits in lists, and other captured work may be dropped meanwhile", function()
    local text, fine = run("PERILUNE_EMULATE=memory=10485760", [[
local x = T.randn(1 << 18):cuda() -- 1 MiB
local function make()
  return T.jit(function(a)
    local b = a:cumsum(1) -- two blocks at once, and a result
    return b:cumsum(1) + b
  end)
end
local first = make()
for _ = 1, 6 do first(x) end
print("first", (select(3, T.core.jit_device_groups(first.last.program))))
first = nil
local second = make()
for _ = 1, 3 do second(x) end
collectgarbage() collectgarbage()
local waits = T.zeros(4 << 18, { device = "cuda" }) -- 4 MiB
waits = nil
collectgarbage() collectgarbage()
local retries = T.cuda.memory_stats().retries
local y = second(x)
print("second", (select(3, T.core.jit_device_groups(second.last.program))), T.cuda.memory_stats().retries > retries)
print("same", T.allclose(y:cpu(), x:cpu():cumsum(1):cumsum(1) + x:cpu():cumsum(1), { rtol = 1e-3, atol = 1e-3 }))
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("first\tcaptured", 1, true), text)
    assert.truthy(text:find("second\tcaptured\ttrue", 1, true), text)
    assert.truthy(text:find("same\ttrue", 1, true), text)
  end)

  it("no cuDNN, no cuBLASLt, no NVRTC: what they do is done without", function()
    local text, fine = run("", [[
print(T.cuda.get_device_properties().libraries)
local x = T.randn(2, 3, 6, 6):cuda():requires_grad_()
local y = T.nn.F.conv2d(x, T.randn(4, 3, 3, 3):cuda())
y:sum():backward()
local f = T.jit(function(a) return (a * 2):tanh() + 1 end)
print("without", f(y:detach()):isfinite():all():item() and x.grad:device())
]])
    assert.is_true(fine, text) -- the emulation has none of the three
    assert.truthy(text:find("without\tcuda", 1, true), text)
  end)

  it("an op without a kernel says once that it runs on the CPU", function()
    local text = run("PERILUNE_CUDA_QUIET=0", [[
local x = T.eye(3):cuda()
for i = 1, 3 do T.linalg.inv(x) end
print(T.linalg.inv(x):device())
]])
    local _, n = text:gsub("linalg.inv has no CUDA kernel", "")
    assert.equal(1, n)
    assert.truthy(text:find("cuda", 1, true))
  end)
end)
