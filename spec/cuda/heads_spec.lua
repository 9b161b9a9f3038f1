-- SPDX-License-Identifier: MIT
-- Attention whose heads lie side by side: under T.jit the device writes its result into the rows of all heads, and the
-- gradients for queries, keys and values into one tensor, without the copy and the join behind it. The bits are those
-- of eager code, by cuDNN (the emulated one) and by our own kernels, also where somebody looks at what is between.

local child = require "spec.support.child"
local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"

local code = ("local count = package.loadlib(%q, 'plce_plant_launches')\n"):format(plugin or "") .. [[
local F = T.nn.F
local function tell(name)
  T.cuda.synchronize()
  print("since " .. name)
  io.stdout:flush()
  count()
end
local B, L, H, KV, D = table.unpack(SIZES)
local function weights()
  T.manual_seed(7)
  local all = (H + 2 * KV) * D
  local w = { T.randn(B, L, H * D), T.randn(all, H * D) * 0.3, T.randn(H * D, H * D) * 0.3, T.randn(all) }
  for i, t in ipairs(w) do w[i] = t:to(DTYPE):cuda():requires_grad_() end
  return w
end
local function heads(x, n) return x:view(B, L, n, D):transpose(2, 3) end
-- How rows are made of what attention gives, and what is returned.
local uses = {
  plain = function(y, w) return F.linear(y:transpose(2, 3):reshape(B, L, H * D), w) end,
  twice = function(y, w)
    local rows = y:transpose(2, 3)
    return F.linear(rows:reshape(B, L, H * D), w) + rows:reshape(B, L, H * D)
  end,
  shown = function(y, w) return F.linear(y:transpose(2, 3):reshape(B, L, H * D), w), y end,
  rows = function(y, w)
    local rows = y:transpose(2, 3):reshape(B, L, H * D)
    return F.linear(rows, w), rows
  end,
  summed = function(y, w) return F.linear(y:transpose(2, 3):reshape(B, L, H * D), w) + y:sum() end,
  changed = function(y, w) -- in place, on a copy
    local rows = y:transpose(2, 3):clone():reshape(B, L, H * D)
    return F.linear(rows:mul(2):add_(1), w)
  end,
}
local function step(use, mask)
  return function(w)
    local qkv = F.linear(w[1], w[2], w[4])
    local q = heads(qkv:slice(3, 1, H * D), H)
    local k = heads(qkv:slice(3, H * D + 1, KV * D), KV)
    local v = heads(qkv:slice(3, (H + KV) * D + 1, KV * D), KV)
    if KV < H then k, v = k:repeat_interleave(H // KV, 2), v:repeat_interleave(H // KV, 2) end
    local y = F.scaled_dot_product_attention(q, k, v, { is_causal = not mask, attn_mask = mask })
    local out = table.pack(uses[use](y, w[3]))
    out[1]:float():square():mean():backward()
    return table.unpack(out)
  end
end
for _, use in ipairs { "plain", "twice", "shown", "rows", "summed", "changed" } do
  for _, mask in ipairs { false, T.randn(L, L):to(DTYPE):cuda() } do
    local f = step(use, mask or nil)
    local w = weights()
    local function all(run)
      for _, p in ipairs(w) do p.grad = nil end
      local out = table.pack(run())
      for _, p in ipairs(w) do out[#out + 1] = p.grad end
      for i, t in ipairs(out) do out[i] = t:detach():clone() end
      return out
    end
    local want = all(function() return f(w) end)
    local g = T.jit(function() return f(w) end)
    for run = 1, 6 do
      local got = all(g)
      assert(#got == #want)
      for i, t in ipairs(got) do
        local what = use .. (mask and ", masked" or "")
        assert(T.equal(t, want[i]), ("%s, run %d, value %d of %d"):format(what, run, i, #want))
      end
    end
    if use == "plain" and not mask then
      tell "before"
      all(g)
      tell "step"
    end
    assert(g:plan().device.capture == "captured", g:plan().device.capture)
  end
end
print "the same"
]]

describe("attention with its heads side by side", function()
  if not plugin or not plugin:find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device")
    return
  end
  for _, case in ipairs {
    { "bf16", "2, 9, 3, 3, 8", "open,sdpa" },
    { "bf16", "2, 9, 3, 3, 8", "guard,sdpa" },
    { "bf16", "2, 9, 3, 3, 8", "open,sdpa=200" }, -- in slices
    { "f16", "2, 16, 4, 2, 16", "open,sdpa" },
    { "f16", "2, 16, 4, 2, 16", "guard" },
    { "f32", "3, 5, 2, 2, 8", "open,sdpa" },
    { "f64", "1, 7, 3, 1, 5", "open" },
    { "f64", "1, 7, 3, 1, 5", "guard" },
    { "bf16", "1, 1, 1, 1, 8", "open,sdpa" },
    { "f16", "2, 6, 1, 1, 8", "open,sdpa" },
    { "bf16", "2, 6, 2, 2, 12", "open,sdpa" }, -- heads that cuDNN does not take
  } do
    local dtype, sizes, how = table.unpack(case)
    it(("has the bits of eager code: %s [%s], %s"):format(dtype, sizes, how), function()
      local settings = ("local DTYPE, SIZES = %q, { %s }\n"):format(dtype, sizes)
      local text, fine = child("PERILUNE_EMULATE=" .. how, settings .. code)
      assert.is_true(fine, text)
      assert.truthy(text:find("the same", 1, true), text)
      if dtype == "bf16" and how == "open,sdpa" and sizes == "2, 9, 3, 3, 8" then
        local step = text:match "since step(.*)"
        assert.falsy(step:find("join_slices", 1, true), step)
        assert.falsy(step:find("ew_strided", 1, true), step)
      end
    end)
  end
end)
