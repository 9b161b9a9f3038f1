-- SPDX-License-Identifier: MIT
-- Batch norms with the sum and the relu behind them under T.jit are one pass over images whose channels are last;
-- the bits are those of the nodes one by one.

local child = require "spec.support.child"
local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"

local step = ("local count = package.loadlib(%q, 'plce_plant_launches')\n"):format(plugin or "") .. [[
local nn, F = T.nn, T.nn.F
T.manual_seed(3)
local function conv(i, o) return nn.Conv2d(i, o, 3, { padding = 1, bias = false }) end
local c, b = nn.ModuleList { conv(8, 16), conv(16, 16), conv(16, 16) }, nn.ModuleList {}
for i = 1, 4 do b:append(nn.BatchNorm2d(16)) end
c:to { device = "cuda", memory_format = "channels_last" }
b:to "cuda"
local params = c:parameters()
for _, p in ipairs(b:parameters()) do params[#params + 1] = p end
local function f(x)
  local y
  do
    local _ <close> = T.autocast("bf16", { enabled = HALF })
    local a = F.relu(b[1](c[1](x)))
    a = F.relu(b[2](c[2](a)) + a)         -- the sum with what was there
    y = F.relu(b[3](c[2](a)) + b[4](c[3](a))) -- two norms
    y = y + F.relu(-a)
  end
  for _, p in ipairs(params) do p.grad = nil end
  y:float():square():mean():backward()
  return y
end
local g = T.jit(f)
local x = T.randn(2, 8, 6, 6):cuda():to { memory_format = LAST and "channels_last" or nil }
local function numbers(run)
  local y = run(x)
  local out = { y:detach():float() }
  for i, p in ipairs(params) do out[i + 1] = p.grad:float() end
  return out
end
for _ = 1, 5 do
  local state = b[4].running_var:clone()
  local want = numbers(f)
  b[4].running_var:copy_(state)
  for i, t in ipairs(numbers(g)) do assert(T.equal(t, want[i]), "value " .. i) end
end
T.cuda.synchronize()
print "since before"
io.stdout:flush()
count()
numbers(g)
T.cuda.synchronize()
print "since step"
io.stdout:flush()
count()
print(g:explain())
]]

describe("batch norm and what is behind it", function()
  if not plugin or not plugin:find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device")
    return
  end
  for _, half in ipairs { true, false } do
    for _, last in ipairs { true, false } do
      local name = (half and "bf16, " or "f32, ") .. (last and "channels last" or "row-major")
      it("has the eager bits: " .. name, function()
        local text, fine = child("PERILUNE_EMULATE=open", ("local HALF, LAST = %s, %s\n"):format(half, last) .. step)
        assert.is_true(fine, text)
        assert.truthy(text:find "captured", text)
      end)
    end
  end
end)

describe("gradients of norms' weights", function()
  if not plugin or not plugin:find("emulated", 1, true) then return end
  it("of halves are read as they are, with the bits of wide ones", function()
    local text, fine = child("PERILUNE_EMULATE=open", [[
local F = T.nn.F
for _, case in ipairs { { "bf16", 7, 33 }, { "f16", 37, 136 }, { "bf16", 18, 260 } } do
  local dtype, rows, n = table.unpack(case)
  for _, kind in ipairs { "layer_norm", "rms_norm" } do
    T.manual_seed(2)
    local layer = kind == "layer_norm"
    local x, w, b = T.randn(rows, n):cuda(), T.randn(n):cuda(), T.randn(n):cuda()
    local all = { x, w, T.randn(n, n):to(dtype):cuda(), layer and b or nil }
    for _, t in ipairs(all) do t:requires_grad_() end
    local function f()
      for _, t in ipairs(all) do t.grad = nil end
      local y = layer and F.layer_norm(x * 2, { n }, w, b, 1e-5) or F.rms_norm(x * 2, { n }, w, 1e-5)
      y:to(dtype):matmul(all[3]):float():square():mean():backward()
      local out = {}
      for i, t in ipairs(all) do out[i] = t.grad:clone() end
      return table.unpack(out)
    end
    local want, g = { f() }, T.jit(f)
    for run = 1, 5 do
      for i, t in ipairs { g() } do assert(T.equal(t, want[i]), ("%s %s %d, value %d"):format(kind, dtype, rows, i)) end
    end
  end
end
print "the same"
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("the same", 1, true), text)
  end)
end)

describe("gradients of softmaxes on a device", function()
  it("keep their digits where one class is nearly certain, fused or not", function()
    local text, fine = child("PERILUNE_EMULATE=open", [[
for _, n in ipairs { 3, 300, 4500 } do
  for _, gap in ipairs { 17 } do
    for dim = n > 1000 and 2 or 1, 2 do
      local x = T.randn(3, n)
      x[{ {}, 2 }] = x[{ {}, 2 }] + gap
      local dy, all = T.zeros(3, n), T.randn(3, n) + 100
      dy[{ {}, 2 }] = 1
      if dim == 1 then x, dy, all = x:t():contiguous(), dy:t():contiguous(), all:t():contiguous() end
      for _, name in ipairs { "softmax", "log_softmax" } do
        for k, g in ipairs { dy, name == "softmax" and all or nil } do
          local function f(a, b) return T.grad_of(a[name](a * 1, dim), a, { grad_outputs = b }) * 2 end
          local want = f(x:double():requires_grad_(), g:double())
          local a, b = x:cuda():requires_grad_(), g:cuda()
          local got = f(a, b)
          local off = (got:cpu():double() - want):abs()
          local most = k == 1 and 5e-4 or 3e-4
          local size = k == 1 and want:abs() + 1e-30 or want:abs():amax(dim, true)
          local worst = (off / size):max():item()
          assert(worst < most, ("%s %d %g %d %d: %g"):format(name, n, gap, dim, k, worst))
          assert(T.equal(T.jit(f)(a, b), got), ("%s %d %g %d %d: fused bits"):format(name, n, gap, dim, k))
        end
      end
    end
  end
end
print "right"
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("right", 1, true), text)
  end)
end)
