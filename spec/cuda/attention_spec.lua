-- SPDX-License-Identifier: MIT
-- Attention that cuDNN takes, with an emulated one that computes from what it is asked (emulate/cudnn_attention.cpp):
-- operands of all layouts, heads that groups share, gradients in slices. Beside the CPU's numbers.

local child = require "spec.support.child"
local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"

-- Results and gradients on both devices; fused(n): the library computed so many calls since the last time.
local both = ("local count = package.loadlib(%q, 'plce_plant_launches')\n"):format(plugin or "") .. [[
local F = T.nn.F
local function near(what, got, want, tol)
  local off = (got:cpu():to("f64") - want:to("f64")):abs():max():item()
  if not (off <= tol * math.max(1, want:abs():max():item())) then error(("%s: off by %g"):format(what, off), 2) end
end
local function compare(what, dtype, shapes, view, dy)
  local tol, out = dtype == "bf16" and 0.04 or 6e-3, {}
  T.manual_seed(3)
  local data = {}
  for i, s in ipairs(shapes) do data[i] = T.randn(table.unpack(s)):to(dtype) end
  for _, where in ipairs { "cpu", "cuda" } do
    local leaves = {}
    for i, x in ipairs(data) do leaves[i] = x:to(where):clone():requires_grad_() end
    local y = F.scaled_dot_product_attention(view(table.unpack(leaves)))
    if dy == "sum" then y:sum():backward()
    else
      T.manual_seed(4)
      y:backward(T.randn(table.unpack(y:shape())):to(dtype):to(where))
    end
    out[where] = { y:detach() }
    for i, x in ipairs(leaves) do out[where][i + 1] = x.grad end
  end
  for i, want in ipairs(out.cpu) do near(what .. " " .. i, out.cuda[i], want, tol) end
end
T.cuda.synchronize()
]]

local function fused(text) return tonumber(text:match "launches (%d+) cudnnSdpa" or 0) end

describe("attention by cuDNN", function()
  if not plugin or not plugin:find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device")
    return
  end

  it("takes views of one projection, and results as they come", function()
    local text, fine = child("PERILUNE_EMULATE=sdpa", both .. [[
for _, dtype in ipairs { "bf16", "f16" } do
  for _, causal in ipairs { true, false } do
    compare("parts", dtype, { { 2, 5, 3 * 3 * 8 } }, function(x)
      local p = x:split(3 * 8, 3)
      for i = 1, 3 do p[i] = p[i]:view(2, 5, 3, 8):transpose(2, 3) end
      return p[1], p[2], p[3], { is_causal = causal }
    end)
  end
end
count()
]])
    assert.is_true(fine, text)
    assert.equal(8, fused(text), text) -- each forward and backward
  end)

  it("takes heads that a group shares, repeated keys and gradients of sums", function()
    local text, fine = child("PERILUNE_EMULATE=sdpa", both .. [[
for _, causal in ipairs { true, false } do
  local options = { is_causal = causal, enable_gqa = true }
  local function plain(q, k, v) return q, k, v, options end
  compare("groups", "bf16", { { 2, 6, 4, 16 }, { 2, 2, 4, 16 }, { 2, 2, 4, 8 } }, plain)
  compare("groups of views", "bf16", { { 2, 5, 6, 16 }, { 2, 5, 3, 16 }, { 2, 5, 3, 16 } }, function(q, k, v)
    return q:transpose(2, 3), k:transpose(2, 3), v:transpose(2, 3), options
  end)
  compare("one head for all", "f16", { { 3, 4, 7, 8 }, { 3, 1, 5, 8 }, { 3, 1, 5, 8 } }, plain)
  compare("keys for a whole batch", "bf16", { { 3, 2, 4, 8 }, { 2, 6, 8 }, { 2, 6, 8 } }, function(q, k, v)
    return q, k:expand(3, 2, 6, 8), v:expand(3, 2, 6, 8), { is_causal = causal }
  end)
  local function same(q, k, v) return q, k, v end
  compare("a sum", "bf16", { { 2, 2, 4, 8 }, { 2, 2, 4, 8 }, { 2, 2, 4, 8 } }, same, "sum")
  compare("columns apart", "bf16", { { 2, 2, 8, 4 }, { 2, 2, 8, 6 }, { 2, 2, 6, 8 } }, function(q, k, v)
    return q:transpose(3, 4), k:transpose(3, 4), v, { is_causal = causal }
  end)
  compare("three dims", "bf16", { { 4, 5, 8 }, { 4, 6, 8 }, { 4, 6, 8 } }, function(q, k, v) return q, k, v end)
end
count()
]])
    assert.is_true(fine, text)
    assert.equal(28, fused(text), text)
  end)

  it("takes a gradient that repeats its bits in slices, batches and then heads, until they fit", function()
    for most, slices in pairs { [2 * 3 * 4 * 4 * 2] = 2, [3 * 4 * 4 * 2] = 4, [4 * 4 * 2] = 12 } do
      local text, fine = child("PERILUNE_EMULATE=sdpa=" .. most, both .. [[
compare("slices", "bf16", { { 4, 3, 4, 8 }, { 4, 3, 4, 8 }, { 4, 3, 4, 8 } }, function(q, k, v)
  return q, k, v, { is_causal = true }
end)
count()
]])
      assert.is_true(fine, text)
      assert.equal(1 + slices, fused(text), text)
    end
  end)

  it("leaves masks, dropout and odd heads to our own kernels", function()
    local text, fine = child("PERILUNE_EMULATE=sdpa", both .. [[
local qkv = { { 2, 2, 4, 8 }, { 2, 2, 4, 8 }, { 2, 2, 4, 8 } }
compare("mask", "bf16", qkv, function(q, k, v)
  return q, k, v, { attn_mask = T.ones(4, 4):tril():to("bool"):to(q:device()) }
end)
compare("odd", "bf16", { { 2, 2, 4, 7 }, { 2, 2, 4, 7 }, { 2, 2, 4, 7 } }, function(q, k, v) return q, k, v end)
T.cuda.cudnn(false)
compare("switched off", "bf16", qkv, function(q, k, v) return q, k, v end)
count()
]])
    assert.is_true(fine, text)
    assert.equal(0, fused(text), text)
  end)
end)
