-- SPDX-License-Identifier: MIT
-- Launches, counted by the emulated device: lists of tensors take few of them however many tensors there are, and one
-- compiled training step takes what docs/design/cuda.md says.

local child = require "spec.support.child"
local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"

-- Behind T: tell(name) prints how often each kernel ran since the last time.
local counting = ("local count = package.loadlib(%q, 'plce_plant_launches')\n"):format(plugin or "") .. [[
local function tell(name)
  T.cuda.synchronize()
  print("since " .. name)
  io.stdout:flush()
  count()
end
]]

-- name → { kernel → times }, all of them in [""].
local function launches(text)
  local all, now = {}, {}
  for line in text:gmatch "[^\n]+" do
    local name = line:match "^since (.+)"
    if name then
      now = {}
      all[name] = now
    end
    local times, kernel = line:match "^launches (%d+) (.+)"
    if times then now[kernel] = tonumber(times) end
    now[""] = tonumber(line:match "^launches in all: (%d+)") or now[""]
  end
  return all
end

describe("launches", function()
  if not plugin or not plugin:find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device")
    return
  end

  it("of lists are few: norms, factors, zeros, steps of 148 tensors", function()
    local text, fine = child("", counting .. [[
local function list()
  local out = {}
  for i = 1, 148 do out[i] = T.full({ 3 + i % 7, 50 }, 0.5, { device = "cuda" }) end
  return out
end
local params = list()
local f = T.tensor(0.25):cuda()
tell "making"
local op = T.core.op
local norm = op.foreach_norm(params, { p = 2 })
tell "norm"
op.foreach_norm(params, { p = math.huge })
tell "largest"
params[#params + 1] = f
op.foreach_scale_(params)
params[#params] = nil
tell "scale"
op.foreach_zero_(params)
tell "zero"
for _, p in ipairs(params) do
  p:requires_grad_()
  p.grad = T.full({ p:size(1), 50 }, 1.0, { dtype = "f32", device = "cuda" })
end
local opt = T.optim.AdamW(params)
opt:step()
tell "first"
opt:step()
tell "step"
local n = 0
for i = 1, 148 do n = n + (3 + i % 7) * 50 end
assert(math.abs(norm:item() - 0.5 * n ^ 0.5) < 1e-3)
]])
    assert.is_true(fine, text)
    local n = launches(text)
    assert.equal(3, n.norm[""], text) -- two lists and their join
    assert.equal(3, n.largest[""], text)
    assert.equal(2, n.scale[""], text)
    assert.equal(2, n.zero[""], text)
    assert.equal(4, n.step[""], text)
  end)

  -- As bench/gpu.lua has them, of all layers and small widths; attention is one launch, as in cuDNN, whose own kernels
  -- nobody counts here.
  local steps = [[
local tools = { device = "cuda", amp = true, compiled = T.jit }
for _, file in ipairs { "train", "models" } do dofile("bench/workloads/" .. file .. ".lua")(T, {}, tools) end
local function run(step, x, y)
  for _ = 1, 4 do step(x, y) end
  tell "before"
  step(x, y)
  tell "step"
  print(step:plan().device.capture)
end
]]
  it("of one compiled step of GPT-2 with 12 blocks", function()
    local text, fine = child("PERILUNE_EMULATE=open,sdpa", counting .. steps .. [[
local model = tools.gpt(12, 12, 96, 8, 512):to "cuda"
local clip = function(ps) T.nn.utils.clip_grad_norm_(ps, 1.0) end
local step = tools.trainer(model, tools.adamw(model), clip)
run(step, T.randint(1, 512, { 2, 8 }):cuda(), T.randint(1, 512, { 2, 8 }):cuda())
]])
    assert.is_true(fine, text)
    assert.truthy(text:find("\ncaptured", 1, true), text)
    local n = launches(text).step
    assert.equal(147, n["(plain<T, R, A>)"], text) -- products
    assert.equal(2, n.cast_pieces, text)           -- of 98 casts
    assert.falsy(n["(cast_flat<From, To>)"], text)
    assert.falsy(n["(join_slices<T, 16 / (int)sizeof(T)>)"], text) -- attention writes where they would
    assert.equal(1, n["ew_strided<Op>"], text)
    assert.equal(25, n["(weight_parts<T, W, M, plc_bf16>)"], text) -- of gradients that nobody has widened
    assert.is_true(n[""] <= 350, text)
  end)

  -- At full size, on a device that computes nothing: an activation that is computed again is one kernel with its
  -- gradient.
  it("of a mirrored step of GPT-2 are no more than its copies need", function()
    local text, fine = child("PERILUNE_EMULATE=idle,sdpa,memory=40000000000", counting .. [[
local tools = { device = "cuda", mode = "graph" }
function tools.compiled(f) return T.jit(f, { mirror = true }) end
local all = {}
for _, file in ipairs { "train", "models" } do
  dofile("bench/workloads/" .. file .. ".lua")(T, {}, tools)
end
dofile("bench/workloads/gpu.lua")(T, all, tools)
for _, w in ipairs(all) do
  if w.name == "gpt2_124m_step_b32" then
    local _, call = w.build()
    call()
    tell "before"
    call()
    tell "step"
  end
end
]])
    assert.is_true(fine, text)
    local n = launches(text).step
    assert.equal(13, n["ew_flat<Op>"], text) -- those of forward alone, and a sum
    assert.equal(1, n["(ce_forward<T, 16 / (int)sizeof(T)>)"], text)
    assert.is_true(n[""] <= 405, text)
  end)
end)
