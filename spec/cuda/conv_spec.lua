-- SPDX-License-Identifier: MIT
-- Convolutions that cuDNN takes, with an emulated one that reads what it is asked as the library does and computes
-- the documented formulas (emulate/cudnn_graph.cpp): every direction and dtype, beside the CPU's f64. Its first engines
-- round more than we allow, or give other bits each time: none of them may be chosen.

local child = require "spec.support.child"
local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"

local both = ("local count = package.loadlib(%q, 'plce_plant_launches')\n"):format(plugin or "") .. [==[
local F = T.nn.F
local TOL = { f64 = 1e-13, f32 = 4e-6, f16 = 2.0 ^ -10, bf16 = 2.0 ^ -7 }
local CASES = {
  { "conv1d", { 2, 4, 9 }, { 6, 2, 3 }, 6, { groups = 2, padding = 1 } },
  { "conv2d", { 2, 4, 7, 6 }, { 6, 4, 3, 2 }, 6, { stride = 2, padding = 1 } },
  { "conv2d", { 2, 6, 5, 5 }, { 6, 1, 3, 3 }, 6, { groups = 6, dilation = 2, padding = 2 } },
  { "conv3d", { 1, 2, 4, 5, 3 }, { 3, 2, 2, 3, 2 }, 3, {} },
  { "conv_transpose2d", { 2, 4, 5, 4 }, { 4, 3, 3, 2 }, 3, { stride = 2, padding = 1 } },
}
local function run(c, dtype, where, wide, bias, last)
  T.manual_seed(3)
  local leaves = {}
  for i, shape in ipairs { c[2], c[3], bias and { c[4] } or nil } do
    local x = T.randn(shape, { dtype = "f64" }):to(dtype):to(wide or dtype):to(where)
    if last and i < 3 then x = x:contiguous { memory_format = "channels_last" } end
    leaves[i] = x:requires_grad_()
  end
  local y = F[c[1]](leaves[1], leaves[2], leaves[3], c[5])
  T.manual_seed(4)
  y:backward(T.randn(y:shape(), { dtype = "f64" }):to(dtype):to(wide or dtype):to(where))
  local list = { y:detach():cpu() }
  for i, x in ipairs(leaves) do list[i + 1] = x.grad:cpu() end
  return list
end
local function compare(dtype, bias, last)
  for n, c in ipairs(CASES) do
    if not last or #c[2] == 4 then
      local want, got, again = run(c, dtype, "cpu", "f64", bias), run(c, dtype, "cuda", nil, bias, last),
        run(c, dtype, "cuda", nil, bias, last)
      for i, w in ipairs(want) do
        local off = ((got[i]:double() - w):abs() / (w:abs() + w:abs():mean() * 0.05)):max():item()
        if not (off <= TOL[dtype]) then error(("%s %d of %s, result %d: off by %g"):format(c[1], n, dtype, i, off)) end
        assert(T.equal(got[i], again[i]), c[1] .. " of " .. dtype .. ": other bits")
      end
    end
  end
end
]==]

local function taken(text) return tonumber(text:match "launches (%d+) cudnnConv" or 0) end

describe("convolutions by cuDNN", function()
  if not plugin or not plugin:find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device")
    return
  end

  for _, dtype in ipairs { "f64", "f32", "f16", "bf16" } do
    it("are those of f64, rounded once: " .. dtype, function()
      local text, fine = child("PERILUNE_EMULATE=conv", both .. ([==[
compare(%q, false)
compare(%q, true)
compare(%q, true, true)
T.cuda.benchmark(true)
compare(%q, true)
T.cuda.synchronize()
count()
]==]):gsub("%%q", ("%q"):format(dtype)))
      assert.is_true(fine, text)
      assert.is_true(taken(text) >= 3 * 2 * (3 * 5 + 3), text) -- each direction, twice
    end)
  end

  it("may be TF32's where that is allowed", function()
    local text, fine = child("PERILUNE_EMULATE=conv", both .. [==[
local step = T.jit(function(x, w) return F.conv2d(x, w) end)
local x, w = T.randn(2, 3, 5, 5), T.randn(4, 3, 3, 3)
local exact = F.conv2d(x:double(), w:double())
local function off(f) return (exact - f(x:cuda(), w:cuda()):cpu():double()):abs():max():item() end
for _ = 1, 5 do assert(off(step) < 1e-5) end
T.set_float32_matmul_precision "high"
for _ = 1, 5 do assert(off(F.conv2d) > 1e-4 and off(step) > 1e-4) end
T.set_float32_matmul_precision "highest"
for _ = 1, 5 do assert(off(F.conv2d) < 1e-5 and off(step) < 1e-5) end
T.cuda.allow_tf32(true)
TOL.f32 = 0.1
compare("f32", true)
for _ = 1, 5 do assert(off(F.conv2d) > 1e-4 and off(step) > 1e-4) end
T.cuda.synchronize()
count()
]==])
    assert.is_true(fine, text)
    assert.is_true(taken(text) > 0, text)
  end)
end)
