-- SPDX-License-Identifier: MIT
-- Recurrent nets that cuDNN computes as a whole, against the CPU: every kind, depth, direction and length, values,
-- first and second gradients; and when our own kernels are used instead. The device is a GPU with cuDNN, or the
-- emulation, whose cuDNN is written from the documented formulas with weights and reserve in forms of its own
-- (spec/cuda/emulate/cudnn.cpp).

local T = require "perilune"
local nn = require "perilune.nn"
local F = nn.F

local core = T.core
local ok, why = core.device.available()
local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"
local build, root = os.getenv "PERILUNE_BUILD" or "build", os.getenv "PERILUNE_ROOT" or "."
local S, N, I = 5, 3, 2 -- lengths below know
local gates = { lstm = 4, gru = 3, tanh = 1, relu = 1 }

-- How often the library was asked to compute while f ran.
local function calls(f)
  local was, n = core.recurrent, 0
  core.recurrent = function(...)
    local y, state = was(...)
    n = n + (y and 1 or 0)
    return y, state
  end
  local fine, err = pcall(f)
  core.recurrent = was
  if not fine then error(err, 0) end
  return n
end

local function options_of(o, kind)
  if kind == "lstm" or kind == "gru" then return o end
  local all = { nonlinearity = kind }
  for k, v in pairs(o) do all[k] = v end
  return all
end

-- A net of that kind on a device with leaves x, h, c, weights…, and its function.
local function net(kind, H, o, device, dtype)
  T.manual_seed(11)
  local layers, both, xs, weights = o.num_layers or 1, o.bidirectional and 2 or 1, {}, {}
  local function leaf(...)
    local t = (T.randn { ... } * 0.5):to(dtype or "f32"):to(device)
    t.requires_grad = true
    xs[#xs + 1] = t
    return t
  end
  local x, h, c = leaf(S, N, I), leaf(layers * both, N, H), leaf(layers * both, N, H)
  for l = 1, layers do
    for _ = 1, both do
      weights[#weights + 1] = leaf(gates[kind] * H, l == 1 and I or both * H)
      weights[#weights + 1] = leaf(gates[kind] * H, H)
      for _ = 1, o.bias == false and 0 or 2 do weights[#weights + 1] = leaf(gates[kind] * H) end
    end
  end
  if kind ~= "lstm" then table.remove(xs, 3) end
  return xs, function(input)
    input = input or x
    if kind == "lstm" then return F.lstm(input, { h, c }, weights, o) end
    if kind == "gru" then return F.gru(input, h, weights, o) end
    return F.rnn(input, h, weights, options_of(o, kind))
  end, x
end

-- Results, then gradients for all leaves: of a sum over results, or of the squares of its gradients.
local function values(kind, H, o, device, dtype, lengths, second)
  local xs, f, x = net(kind, H, options_of(o, kind), device, dtype)
  local y, h, c
  if lengths then
    y, h, c = f(nn.utils.rnn.pack_padded_sequence(x, lengths, { enforce_sorted = false }))
    y = nn.utils.rnn.pad_packed_sequence(y, { total_length = S })
  else
    y, h, c = f()
  end
  local out, loss, leaves = { y, h, c }, 0, table.move(xs, 1, #xs, 1, {})
  for i, v in ipairs { y, h, c } do
    local factor = T.randn(v:shape()):to(device)
    if second then leaves[#leaves + 1] = factor:requires_grad_() end -- what arrives from above has a gradient, too
    loss = loss + (v:float() * factor * (1 + i)):sum()
  end
  if second then
    local sum = 0
    for i, g in ipairs(T.grad_of(loss, xs, { create_graph = true })) do
      sum = sum + (g:float() ^ 2 * (0.2 + 0.1 * i)):sum()
    end
    loss = sum
  end
  for _, g in ipairs(T.grad_of(loss, leaves)) do out[#out + 1] = g end
  return out
end

local function close(got, want, tol, what)
  assert.equal(#want, #got, what)
  for i, w in ipairs(want) do
    assert.equal(w:dtype(), got[i]:dtype(), what)
    local a, b = got[i]:float():cpu(), w:float()
    local scale = math.max(1, b:abs():max():item())
    local off = (a - b):abs():max():item() / scale
    if off ~= off or off > tol then error(("%s: result %d is off by %.3g of %.3g"):format(what, i, off, scale), 0) end
  end
end

local function name(kind, o, lengths, second)
  return ("%s, %d layers%s%s%s%s"):format(kind, o.num_layers, o.bidirectional and ", both ways" or "",
    o.bias == false and ", no bias" or "", lengths and ", lengths" or "", second and ", second gradients" or "")
end

describe("recurrent nets of cuDNN", function()
  if not ok then
    pending("no device: " .. tostring(why))
    return
  end
  if not core.recurrent_takes(T.zeros({ 1, 1, 1 }, { device = "cuda" }), "f32", "lstm", 1, 0, 1, false, true) then
    pending("no cuDNN that computes recurrent nets")
    return
  end

  for _, second in ipairs { false, true } do
    it(second and "have the CPU's second gradients" or "have the CPU's values and gradients", function()
      for _, kind in ipairs { "lstm", "gru", "tanh", "relu" } do
        for _, k in ipairs(second and { 3, 7, 8, 11, 14 } or { 0, 3, 5, 8, 11, 14 }) do
          local o = { num_layers = k & 1 == 0 and 1 or 2, bidirectional = k & 2 ~= 0, bias = k & 4 == 0 }
          -- a hidden size of 3 makes the emulation leave gaps between weights
          local lengths, H = k & 8 ~= 0 and { 3, 5, 2 } or nil, (k & 1) + 3
          local got
          local what = name(kind, o, lengths, second)
          assert.equal(1, calls(function() got = values(kind, H, o, "cuda", "f32", lengths, second) end), what)
          close(got, values(kind, H, o, "cpu", "f32", lengths, second), 1e-5, what)
        end
      end
    end)
  end

  it("compute narrow floats", function()
    for _, dtype in ipairs { "f16", "bf16" } do
      for _, kind in ipairs { "lstm", "gru", "relu" } do
        local o, got = { num_layers = 2, bidirectional = true }, nil
        assert.equal(1, calls(function() got = values(kind, 4, o, "cuda", dtype) end))
        close(got, values(kind, 4, o, "cpu", dtype), dtype == "f16" and 1e-2 or 6e-2, kind .. " in " .. dtype)
      end
    end
  end)

  it("draw the CPU's dropout between layers", function()
    for _, kind in ipairs { "lstm", "gru" } do
      local o, got = { num_layers = 3, bidirectional = true, dropout = 0.4, training = true }, nil
      assert.equal(3, calls(function() got = values(kind, 4, o, "cuda") end))
      close(got, values(kind, 4, o, "cpu"), 1e-5, kind)
    end
  end)

  it("can be walked back twice, and give part of their gradients", function()
    local xs, f = net("lstm", 3, { num_layers = 2 }, "cuda")
    local y, h = f()
    local loss = y:sum() + h:sum()
    local first = T.grad_of(loss, xs, { retain_graph = true })
    local before = {}
    for i, g in ipairs(first) do before[i] = g:cpu() end
    close(T.grad_of(loss, xs), before, 0, "the second time")
    for _, device in ipairs { "cuda", "cpu" } do -- only h_n is used, only one weight asked for
      local leaves, run = net("gru", 3, {}, device)
      local _, last = run()
      first[device] = T.grad_of(last:sum(), leaves[4])
    end
    close({ first.cuda }, { first.cpu }, 1e-5, "one weight")
  end)

  it("infer without backward; projections only so", function()
    local function project(device, grad)
      T.manual_seed(2)
      local layer = nn.LSTM(I, 4, { proj_size = 2, num_layers = 2, bidirectional = true })
      layer:to(device)
      local x, y, h, c = T.randn(S, N, I):to(device), nil, nil, nil
      local n = calls(function()
        if grad then y, h, c = layer(x) else T.no_grad(function() y, h, c = layer(x) end) end
      end)
      return { y, type(h) == "table" and h[1] or h, type(h) == "table" and h[2] or c }, n
    end
    local got, n = project("cuda")
    assert.equal(1, n)
    close(got, (project "cpu"), 1e-5, "projected")
    got, n = project("cuda", true)
    assert.equal(0, n)
    close(got, (project("cpu", true)), 1e-5, "projected, to be differentiated")
    local _, f = net("gru", 4, {}, "cuda")
    assert.equal(1, calls(function() T.no_grad(f) end))
  end)

  it("take [N, S, in], one sequence and missing states", function()
    for _, form in ipairs { "batch_first", "single" } do
      local out = {}
      for _, device in ipairs { "cuda", "cpu" } do
        T.manual_seed(4)
        local layer = nn.GRU(I, 4, { batch_first = form == "batch_first" }):to(device)
        local x = form == "single" and T.randn(S, I) or T.randn(N, S, I)
        out[device] = table.pack(layer(x:to(device)))
      end
      close(out.cuda, out.cpu, 1e-5, form)
    end
  end)

  it("run under T.autocast in its dtype and give f32", function()
    local function run(device)
      return T.autocast("bf16", function() return values("lstm", 4, { num_layers = 2 }, device) end)
    end
    local got
    assert.equal(1, calls(function() got = run "cuda" end))
    close(got, run "cpu", 6e-2, "autocast")
  end)

  it("train in a captured step as one by one", function()
    local function train(device, jit)
      T.manual_seed(6)
      local model = nn.LSTM(I, 4, { num_layers = 2, bidirectional = true }):to(device)
      local x, opt = T.randn(S, N, I):to(device), T.optim.SGD(model:parameters(), { lr = 0.1 })
      local function step(input)
        opt:zero_grad()
        local loss = (model(input) ^ 2):mean()
        loss:backward()
        opt:step()
        return loss
      end
      if jit then step = T.jit(step) end
      local out = {}
      for i = 1, 6 do out[i] = step(x):item() end
      return out, jit and select(3, core.jit_device_groups(step.last.program))
    end
    local want, got, how = train("cpu"), nil, nil
    assert.is_true(calls(function() got, how = train("cuda", true) end) > 0)
    for i = 1, 6 do assert.near(want[i], got[i], 1e-5) end
    assert.equal("captured", how)
  end)

  it("have second gradients inside T.jit", function()
    local xs, f = net("gru", 4, { num_layers = 2 }, "cuda")
    local function twice()
      local g = T.grad_of((f() ^ 2):sum(), xs[1], { create_graph = true })
      return T.grad_of((g ^ 2):sum(), xs[1])
    end
    local want = twice():cpu()
    local jitted = T.jit(twice)
    for _ = 1, 2 do close({ jitted() }, { want }, 1e-5, "jitted") end
  end)

  it("leave f64, T.vmap and what is switched off to our own kernels", function()
    assert.equal(0, calls(function() values("lstm", 4, {}, "cuda", "f64") end))
    assert.equal(0, calls(function()
      local _, f = net("gru", 4, {}, "cuda")
      T.vmap(function(x) return (f(x)) end)(T.randn(2, S, N, I):cuda())
    end))
    assert.is_true(T.cuda.cudnn(false))
    assert.equal(0, calls(function() values("lstm", 4, {}, "cuda") end))
    assert.is_false(T.cuda.cudnn(true))
    assert.equal(1, calls(function() values("lstm", 4, {}, "cuda") end))
  end)

  it("refuse lengths that do not fit", function()
    local x, state = T.zeros({ 2, 2, 1 }, { device = "cuda" }), T.zeros({ 4 }, { device = "cuda" })
    local row = T.zeros({ 16 }, { device = "cuda" })
    for _, lengths in ipairs { { 3, 1 }, { 0, 2 } } do
      assert.has_error(function()
        core.recurrent(x, state, row, T.tensor(lengths, { dtype = "i64" }), "lstm", 1, 0, 1, false, true)
      end)
    end
    assert.has_error(function() core.recurrent(x, state, row:narrow(1, 1, 9), nil, "lstm", 1, 0, 1, false, true) end)
  end)

  if not plugin or not plugin:find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device, whose cuDNN can be taken away")
    return
  end
  for _, bad in ipairs { "no-cudnn", "old-cudnn", "cudnn-refuses=3" } do
    it("with " .. bad .. " are our own kernels'", function()
      local path = os.tmpname()
      local f = assert(io.open(path, "w"))
      f:write [[
local T = require "perilune"
local nn = require "perilune.nn"
local layer = nn.GRU(2, 4):cuda()
layer(T.randn(3, 2, 2):cuda()):sum():backward()
print(T.core.recurrent_takes(T.zeros({ 1, 1, 1 }, { device = "cuda" }), "f32", "gru", 1, 0, 1, false, true))
]]
      f:close()
      local command = "cd '%s' && PERILUNE_EMULATE=%s '%s/bin/perilune' run %s 2>&1"
      local p = assert(io.popen(command:format(root, bad, build, path)))
      local text = p:read "a"
      assert.is_true(p:close(), text)
      os.remove(path)
      assert.equal("false\n", text)
    end)
  end
end)
