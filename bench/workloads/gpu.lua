-- SPDX-License-Identifier: MIT
-- The workloads of bench/gpu.lua: names, work per call, units and modes are those of the PyTorch side, which stands in
-- ../shared/bench/README.md, "On a GPU". `tools.device` says where tensors are, `tools.tiny` asks for small sizes.

return function(T, W, tools)
  local nn, optim, F = T.nn, T.optim, T.nn.F
  local M = 1 << 20

  local function cut(full, tiny) return tools.tiny and tiny or full end
  local function on(x, dtype)
    if dtype then x = x:to(dtype) end
    return x:to(tools.device)
  end
  local function bf16(...) return on(T.randn(...), "bf16") end
  local function f32(...) return on(T.randn(...)) end
  -- The result of a call that nobody wants gives its memory back at once, as it does where references are counted.
  local function dropping(f)
    return function()
      local y = f()
      local v = tools.values and tools.values(y)
      y:free()
      return v
    end
  end
  -- With --values calls return a number that says what they computed.
  local function valued(call, of)
    if not tools.values then return call end
    return function()
      call()
      return tools.values(table.unpack(of()))
    end
  end
  local function forward_backward(f, inputs, dy)
    for _, x in ipairs(inputs) do x:requires_grad_() end
    return valued(tools.compiled(function()
      for _, x in ipairs(inputs) do x.grad = nil end
      f(table.unpack(inputs)):backward(dy)
    end), function()
      local grads = {}
      for i, x in ipairs(inputs) do grads[i] = x.grad end
      return grads
    end)
  end
  -- name, unit, modes, builder → (work per call, call)
  local function def(names, unit, modes, build)
    for name in names:gmatch("%S+") do
      W[#W + 1] = { name = name, unit = unit, modes = modes, build = function() return build(name) end }
    end
  end
  local function numbers(name)
    local out = {}
    for n in name:gmatch("%d+") do out[#out + 1] = math.tointeger(tonumber(n)) end
    return out
  end

  local function gemm(name)
    local n = cut(numbers(name)[2], 64)
    local make = name:find("bf16") and bf16 or f32
    local a, b = make(n, n), make(n, n)
    local f = tools.compiled(function(x, y) return x:matmul(y) end)
    return 2 * n ^ 3, dropping(function() return f(a, b) end)
  end
  def("gemm_f32_4096", "TFLOP/s", "eager tf32", gemm)
  def("gemm_bf16_4096 gemm_bf16_8192", "TFLOP/s", "eager compile", gemm)
  def("gemm_bf16_1024", "TFLOP/s", "eager graph", gemm)

  def("copy_1g", "GB/s", "eager", function()
    local n = cut(256 * M, 1000)
    local x, y = f32(n), f32(n)
    return 8 * n, valued(function() y:copy_(x) end, function() return { y } end)
  end)
  def("ew_64m_f32 ew_64m_bf16", "GB/s", "eager compile", function(name)
    local n, half = cut(64 * M, 1000), name:find("bf16")
    local make = half and bf16 or f32
    local x, y = make(n), make(n)
    local f = tools.compiled(function(a, b) return (a * b + a):tanh() end)
    return 3 * (half and 2 or 4) * n, dropping(function() return f(x, y) end)
  end)
  def("cast_64m", "GB/s", "eager compile", function()
    local n = cut(64 * M, 1000)
    local x = f32(n)
    local f = tools.compiled(function(a) return a:to("bf16") end)
    return 6 * n, dropping(function() return f(x) end)
  end)
  def("sum_64m", "GB/s", "eager compile", function()
    local n = cut(64 * M, 1000)
    local x = f32(n)
    local f = tools.compiled(function(a) return a:sum() end)
    return 4 * n, dropping(function() return f(x) end)
  end)

  local function rowwise(name)
    local kind, size = name:match("^%a+"), numbers(name)
    local rows, n = cut(size[1], 8), cut(size[2], 64)
    local x = bf16(rows, n)
    if kind == "xent" then
      local labels = on(T.randint(1, n, { rows }))
      return 3 * 2 * rows * n, forward_backward(function(a) return F.cross_entropy(a:to("f32"), labels) end, { x })
    end
    local f = {
      softmax = function(a) return a:softmax(-1) end,
      layernorm = function(a, w, b) return F.layer_norm(a, { n }, w, b, 1e-5) end,
      rmsnorm = function(a, w) return F.rms_norm(a, { n }, w, 1e-5) end,
    }
    local inputs = { x }
    if kind ~= "softmax" then inputs[2] = bf16(n) end
    if kind == "layernorm" then inputs[3] = bf16(n) end
    return 5 * 2 * rows * n, forward_backward(f[kind], inputs, bf16(rows, n))
  end
  def("softmax_8192x32768 layernorm_16384x4096 rmsnorm_16384x4096 xent_8192x50304", "GB/s", "eager compile", rowwise)
  def("softmax_4096x1024", "GB/s", "eager graph compile", rowwise)

  local function gpt2()
    if tools.tiny then return tools.gpt(2, 2, 64, 32, 512):to(tools.device), 32, 512 end
    return tools.gpt(12, 12, 768, 1024, 50304):to(tools.device), 1024, 50304
  end

  def("adamw_124m", "GB/s", "eager graph", function()
    local params, total = gpt2():parameters(), 0
    for _, p in ipairs(params) do
      p.grad = f32(table.unpack(p:shape()))
      total = total + p:numel()
    end
    local opt = optim.AdamW(params, { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0.01 })
    return 28 * total, valued(tools.compiled(function() opt:step() end), function() return params end)
  end)

  def("sdpa_b4h16s2048d128_causal_fwd sdpa_b4h16s2048d128_causal_bwd sdpa_b1h64s8192d128_causal_fwd "
    .. "sdpa_b1h64s8192d128_causal_bwd", "TFLOP/s", "eager", function(name)
      local B, H, S, D = table.unpack(numbers(name))
      H, S = cut(H, 2), cut(S, 64)
      local q, k, v, dy = bf16(B, H, S, D), bf16(B, H, S, D), bf16(B, H, S, D), bf16(B, H, S, D)
      local function attend() return F.scaled_dot_product_attention(q, k, v, { is_causal = true }) end
      local flop = 4 * B * H * S * S * D / 2 -- the mask leaves half of the two products
      if name:find("fwd$") then return flop, dropping(attend) end
      for _, x in ipairs { q, k, v } do x:requires_grad_() end
      local y = attend()
      return 2.5 * flop, valued(function()
        for _, x in ipairs { q, k, v } do x.grad = nil end
        y:backward(dy, { retain_graph = true })
      end, function() return { q.grad, k.grad, v.grad } end)
    end)

  local function last(x) return x:to { memory_format = "channels_last" } end

  def("conv_fwd_bwd", "TFLOP/s", "eager graph compile", function()
    local n = cut(64, 2)
    local work = 3 * 2 * n * 56 * 56 * 64 * 64 * 9
    return work, forward_backward(function(x, w)
      return F.conv2d(x, w, nil, { padding = 1 })
    end, { last(bf16(n, 64, 56, 56)), last(bf16(64, 64, 3, 3)) }, last(bf16(n, 64, 56, 56)))
  end)

  def("dispatch_add dispatch_add_done", "ns/op", "eager", function()
    local a, b = on(T.ones(1)), on(T.ones(1))
    return 500, function()
      for _ = 1, 500 do local _ = a + b end
    end
  end)

  -- ---- training steps: tokens, samples or images a call ----------------------------------------------

  def("mlp_step_b64", "samples/s", "eager tf32 graph compile compile+graph", function()
    local model = tools.mlp():to(tools.device)
    local step = tools.trainer(model, tools.adam(model))
    local x, y = f32(64, 784), on(T.randint(1, 10, { 64 }))
    return 64, function() return step(x, y) end
  end)

  local function gpt2_step(name)
    local model, block, vocab = gpt2()
    local batch = cut(numbers(name)[3], 2)
    tools.amp = true
    local step = tools.trainer(model, tools.adamw(model), function(ps) nn.utils.clip_grad_norm_(ps, 1.0) end)
    local x, y = on(T.randint(1, vocab, { batch, block })), on(T.randint(1, vocab, { batch, block }))
    return batch * block, function() return step(x, y) end
  end
  def("gpt2_124m_step_b32", "tokens/s", "eager graph compile", gpt2_step)
  def("gpt2_124m_step_b64", "tokens/s", "eager compile", gpt2_step)

  def("resnet50_step_b256", "images/s", "eager graph compile", function()
    local batch, side = cut(256, 2), cut(224, 64)
    local model = tools.resnet({ 3, 4, 6, 3 }, true, true, 1000)
    model:to { device = tools.device, memory_format = "channels_last" }
    tools.amp = true
    local step = tools.trainer(model, tools.sgd(model, tools.values and 3e-5)) -- else no two ways agree: bench/gpu.lua
    local x, y = last(f32(batch, 3, side, side)), on(T.randint(1, 1000, { batch }))
    return batch, function() return step(x, y) end
  end)

  local function lstm_step()
    local model = tools.char_lstm():to(tools.device)
    local opt = optim.RMSprop(model:parameters(), { lr = 2e-3, alpha = 0.95, eps = 1e-8 })
    local step = tools.trainer(model, opt, function(ps) nn.utils.clip_grad_value_(ps, 5.0) end)
    local x, y = on(T.randint(1, 65, { 50, 50 })), on(T.randint(1, 65, { 50, 50 }))
    return 2500, function() return step(x, y) end
  end
  def("lstm_char_step", "tokens/s", "eager tf32 graph", lstm_step)
  def("lstm_char_step_own", "tokens/s", "eager graph", function() -- without cuDNN
    if tools.device == "cuda" then T.cuda.cudnn(false) end
    return lstm_step()
  end)
end
