-- SPDX-License-Identifier: MIT
-- A little of everything on the device, for compute-sanitizer: small and odd sizes, every kind of kernel once.
--   perilune run bench/gpu_subset.lua -- [cuda [own]]   own: by our own kernels, where cuDNN would compute

local T = require "perilune"
local nn, F = T.nn, T.nn.F
local args = { ... }
if args[1] == "--" then table.remove(args, 1) end
local device, own = args[1] or "cuda", args[2] == "own"
if own and device == "cuda" then T.cuda.cudnn(false) end
T.manual_seed(1)

local function on(x) return x:to(device) end
local function check(x) assert(x:isfinite():all():item(), "a result is not finite") end

for _, dtype in ipairs { "f32", "f64", "f16", "bf16" } do
  local a, b = on(T.randn(37, 65):to(dtype)), on(T.randn(65, 23):to(dtype))
  check(a:matmul(b))
  check((a * 2 + a:t():contiguous():t()):tanh())
  check(a:softmax(-1))
  check(a:sum(1))
  check(a:to("f32"):to(dtype))
  check(a[{ { 2, 30 } }]:t():contiguous())
end

local net = nn.Sequential(nn.Conv2d(3, 8, 3, { padding = 1 }), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
  nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * 7 * 7, 10)):to(device)
local opt = T.optim.AdamW(net:parameters(), { lr = 1e-3 })
local x, y = on(T.randn(5, 3, 14, 14)), on(T.randint(1, 10, { 5 }))
for _ = 1, 3 do
  opt:zero_grad()
  local loss = F.cross_entropy(net(x), y)
  loss:backward()
  nn.utils.clip_grad_norm_(net:parameters(), 1)
  opt:step()
  check(loss)
end

for _, dtype in ipairs { "f32", "bf16" } do
  local q = on(T.randn(2, 3, 50, 16):to(dtype)):requires_grad_()
  local out = F.scaled_dot_product_attention(q, q, q, { is_causal = true })
  out:sum():backward()
  check(q.grad)
end

for _, by in ipairs(own and { false } or { true, false }) do -- by cuDNN, by our own kernels
  if device == "cuda" then T.cuda.cudnn(by) end
  local lstm = nn.LSTM(6, 7, { num_layers = 2, bidirectional = true }):to(device)
  lstm(on(T.randn(4, 3, 6))):sum():backward()
  check(lstm:parameters()[1].grad)
end
if device == "cuda" then T.cuda.cudnn(not own) end
local e = nn.Embedding(11, 5):to(device)
e(on(T.randint(1, 11, { 9 }))):sum():backward()
check(e.weight.grad)
local values, order = on(T.randn(200)):sort()
check(values)
check(order:to("f32"))
check(F.layer_norm(on(T.randn(50, 33)), { 33 }))
do -- many rows: x's and the weights' gradients in one pass
  local a, w = on(T.randn(4096, 130)):requires_grad_(), on(T.rand(130)):requires_grad_()
  F.rms_norm(a, { 130 }, w):sum():backward()
  check(w.grad)
end
check(on(T.randn(70, 264):to("bf16")):sum(1)) -- neighbours in packs
do -- heads that a group shares, blocks, a cache
  local q, k = on(T.randn(2, 6, 9, 16):to("bf16")), on(T.randn(2, 2, 9, 16):to("bf16"))
  check(F.scaled_dot_product_attention(q, k, k, { is_causal = true, enable_gqa = true }))
  local w = on(T.quantize_blocks(T.randn(7, 256), { format = "Q4_K" }))
  check(T.quantized_linear(on(T.randn(3, 256)), w, { format = "Q4_K" }))
  local cache = on(T.zeros(2, 2, 5, 8))
  T.cache_write_(cache, on(T.randn(2, 2, 1, 8)), on(T.tensor({ 3 }, { dtype = "i64" })))
  check(cache)
end
print("subset: ok on " .. device)
