-- SPDX-License-Identifier: MIT
-- The plug-in's runtime over time: what it keeps, how often it waits, GPUs without memory pools, faults by every name.
-- Scripts run in processes of their own; the emulation counts events and waits.

local child = require "spec.support.child"
local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"

-- Behind T: counts() → events that exist, waits of the host for events.
local counting = ("local tell = package.loadlib(%q, 'plce_plant_counts')\n"):format(plugin or "")

local function counts(text)
  local list = {}
  for events, waits in text:gmatch "events (%d+), waits for events (%d+)" do
    list[#list + 1] = { events = tonumber(events), waits = tonumber(waits) }
  end
  return list
end

describe("the runtime of a GPU", function()
  if not plugin or not plugin:find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device")
    return
  end

  it("keeps one event a stream for a pinned tensor, however often it is copied", function()
    local text, fine = child("", counting .. [[
local x = T.ones(1000):pin_memory()
local function copies(n) for _ = 1, n do x:to("cuda", { non_blocking = true }):free() end end
copies(3)
T.cuda.synchronize()
tell()
copies(200)
tell()
]])
    assert.is_true(fine, text)
    local c = counts(text)
    assert.is_true(c[2].events - c[1].events <= 4, text)
  end)

  it("uploads through a ring that has room for many, and numbers without it", function()
    local text, fine = child("", counting .. [[
local x = T.randn(1000)
local first = x:cuda()
tell()
for _ = 1, 50 do x:cuda():free() end
tell()
for i = 1, 100 do T.tensor(i):cuda():free() end
local y = T.ones(3, { device = "cuda" }):requires_grad_()
for _ = 1, 100 do y:sum():backward() end
tell()
assert(first:cpu():equal(x))
local big = T.arange(0, 5000000 - 1)            -- 40 MB: many rounds of the ring
for _ = 1, 3 do assert(big:cuda():cpu():equal(big)) end
for n = 60, 70 do                               -- sizes on both sides of what travels in a launch
  local z = T.arange(1, n)
  assert(z:cuda():cpu():equal(z))
end
print("equal")
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("equal", 1, true), text)
    local c = counts(text)
    assert.equal(c[1].waits, c[2].waits, text)
    assert.equal(c[2].waits, c[3].waits, text)
    assert.equal(c[2].events, c[3].events, text)
  end)

  it("does not mix the bytes of uploads that streams are late with", function()
    local text, fine = child("PERILUNE_EMULATE=late", [[
local all = {}
for i = 1, 40 do all[i] = T.full({ 300000 }, i):cuda() end     -- 46 MB, and nobody has waited yet
for i = 1, 40 do assert(all[i]:cpu():equal(T.full({ 300000 }, i)), i) end
print("equal")
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("equal", 1, true), text)
  end)

  local sizes = [[
local reserved = 0
for i = 1, 50 do
  local x = T.empty(2 ^ 20 // 4 * 2 * (1 + i % 50), { device = "cuda" })   -- 2 to 100 MiB, each size seldom
  x:free()
  reserved = math.max(reserved, T.cuda.memory_reserved())
end
local s = T.cuda.memory_stats()
print(s.peak >> 20, reserved >> 20)
]]
  for _, how in ipairs { "", "no-pools" } do
    it("bounds what idles when sizes vary" .. (how ~= "" and ", without memory pools" or ""), function()
      local text, fine = child("PERILUNE_EMULATE=" .. how, sizes)
      assert.is_true(fine, text)
      local peak, reserved = text:match "(%d+)\t(%d+)"
      assert.is_true(tonumber(reserved) <= 1.25 * tonumber(peak) + 256 + 4, text)
    end)
  end

  it("works where the GPU has no memory pools: training, captures, little memory, copies between two", function()
    local text, fine = child("PERILUNE_EMULATE=no-pools,devices=2", [[
local x = T.randn(64, 64)
local a = x:to("cuda:0")
assert((a:matmul(a)):cpu():allclose(x:matmul(x), { rtol = 1e-4, atol = 1e-4 }))
assert(a:to("cuda:1"):cpu():equal(x) and a:to("cuda:1"):to("cuda:0"):cpu():equal(x))
local f = T.jit(function(v) return (v * 2 + 1):tanh():sum(-1) end)
local y
for _ = 1, 6 do y = f(a) end
assert(y:cpu():allclose((x * 2 + 1):tanh():sum(-1), { rtol = 1e-5, atol = 1e-5 }))
T.cuda.empty_cache()
T.cuda.set_memory_limit(8 << 20)
print(pcall(T.empty, 1 << 24, { device = "cuda" }))
print("done", T.cuda.memory_stats().retries)
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("out of device memory", 1, true), text)
    assert.truthy(text:find "done\t[1-4]", text)
  end)

  it("takes rows another way where a block has little shared memory", function()
    local text, fine = child("PERILUNE_EMULATE=shared=50000", [[
local x = T.randn(2, 16384):requires_grad_()
local y = x:cuda():softmax(-1)
assert(y:cpu():allclose(x:softmax(-1), { rtol = 1e-4, atol = 1e-8 }))
print("equal", T.cuda.memory_stats().blocks > 0)
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("equal\ttrue", 1, true), text)
  end)

  for code, name in pairs { [999] = "cudaErrorUnknown", [709] = "cudaErrorContextIsDestroyed", [220] = "cudaError",
    [201] = "cudaError" } do
    it(("takes error %d as the end of the device"):format(code), function()
      local text, fine = child("PERILUNE_EMULATE=fault=2,fault-as=" .. code, [[
local x = T.ones(4, { device = "cuda" })
for _ = 1, 5 do pcall(function() return (x * 2):cpu() end) end
print(pcall(function() return T.ones(400):cuda() end))
print("cpu", T.ones(4):sum():item())
]])
      assert.is_true(fine, text)
      assert.truthy(text:find("the device stopped working after " .. name, 1, true), text)
      assert.truthy(text:find("cpu\t4.0", 1, true), text)
    end)
  end
end)
