-- SPDX-License-Identifier: MIT
-- How near hot operations come to what this machine can do: achieved / attainable, 1 being the roof.
--   perilune run bench/roofline.lua -- [--only PATTERN ...] [--threads 1] [--rounds 9] [--cc cc] [--json FILE]
-- roofline.c, compiled with -march=native, measures bandwidth and peaks, before and after the operations; the best
-- counts.
-- Attainable is the larger of bytes / bandwidth and operations / peak: bytes that must be read and written once,
-- operations that the definition asks for. An operation whose arrays fit a cache may be above 1.

local here = debug.getinfo(1, "S").source:match("^@(.*)roofline%.lua$") or "./"
local T = require "perilune"
local timing = dofile(here .. "timing.lua")
local clock = T.clock or T.core.clock
local F, optim = T.nn.F, T.optim

local function parse(args)
  local o, i = { only = {}, threads = 1, rounds = 9, cc = "cc" }, 1
  while i <= #args do
    local a = args[i]
    if a == "--only" then
      while args[i + 1] and args[i + 1]:sub(1, 2) ~= "--" do
        i = i + 1
        o.only[#o.only + 1] = args[i]
      end
    elseif (a == "--cc" or a == "--json") and args[i + 1] then
      i = i + 1
      o[a:sub(3)] = args[i]
    elseif (a == "--threads" or a == "--rounds") and args[i + 1] then
      i = i + 1
      o[a:sub(3)] = math.tointeger(tonumber(args[i])) or timing.fail("%s wants a whole number", a)
    elseif a ~= "--" then
      timing.fail("unknown option %s", a)
    end
    i = i + 1
  end
  return o
end

-- ---- the machine -------------------------------------------------------------------------------------

local function compile(o)
  local program = os.tmpname()
  local _, bad = timing.read_command(("%s -O3 -march=native -pthread %s -o %s 2>&1"):format(o.cc,
    timing.quote(here .. "roofline.c"), program))
  if bad ~= 0 then timing.fail("cannot compile roofline.c with %s", o.cc) end
  return program
end

-- Raises roof[name] to what a run of the program measures.
local function measure(program, threads, roof)
  for name, v in timing.read_command(("%s %d"):format(program, threads)):gmatch("(%w+) ([%d.]+)") do
    roof[name] = math.max(roof[name] or 0, tonumber(v) * 1e9)
  end
  roof.bandwidth = math.max(roof.copy, roof.triad)
end

-- ---- the operations ----------------------------------------------------------------------------------
-- { name, what it computes in, bytes, operations, make() → the call }

local size = { f32 = 4, f64 = 8, bf16 = 2, f16 = 2, i8 = 1 }
local MI = 1 << 20

local function cases()
  local list = {}
  local function case(...) list[#list + 1] = { ... } end

  local function product(name, kind, M, K, N, make)
    local s = size[kind]
    case(("%s %dx%dx%d %s"):format(name, M, K, N, kind), kind == "f16" and "f32" or kind,
      s * (M * K + K * N) + (kind == "i8" and 4 or s) * M * N, 2 * M * K * N, make)
  end
  local function matmul(kind, M, K, N)
    product("matmul", kind, M, K, N, function()
      local x, y = T.randn(M, K):to(kind), T.randn(K, N):to(kind)
      return function() return x:matmul(y) end
    end)
  end
  local function linear(kind, M, K, N)
    product("linear", kind, M, K, N, function()
      local x, w = T.randn(M, K):to(kind), T.randn(N, K):to(kind)
      return function() return F.linear(x, w) end
    end)
  end
  for _, n in ipairs { 64, 256, 1024, 2048 } do
    for _, kind in ipairs { "f32", "bf16" } do matmul(kind, n, n, n) end
  end
  matmul("f64", 512, 512, 512)
  matmul("f16", 1024, 1024, 1024)
  for _, kind in ipairs { "f32", "bf16", "f16" } do
    linear(kind, 1, 4096, 4096)
    matmul(kind, 1, 4096, 4096)
    linear(kind, 4, 4096, 4096)
    linear(kind, 16, 1024, 2048)
  end
  for _, n in ipairs { 256, 1024 } do
    product("int_mm", "i8", n, n, n, function()
      local x, y = T.randint(-128, 127, { n, n }):to("i8"), T.randint(-128, 127, { n, n }):to("i8")
      return function() return T.int_mm(x, y) end
    end)
  end

  local function conv(B, C, H, O, k, stride)
    local P = H // stride
    case(("conv2d %dx%dx%d, %d of %dx%d/%d"):format(B, C, H, O, k, k, stride), "f32",
      4 * (B * C * H * H + O * C * k * k + B * O * P * P), 2 * B * O * P * P * C * k * k, function()
        local x, w = T.randn(B, C, H, H), T.randn(O, C, k, k)
        return function() return F.conv2d(x, w, { padding = k // 2, stride = stride }) end
      end)
  end
  conv(4, 64, 56, 64, 3, 1)
  conv(4, 128, 28, 128, 3, 1)
  conv(4, 256, 14, 256, 3, 1)
  conv(4, 256, 14, 1024, 1, 1)
  conv(4, 64, 56, 128, 3, 2)

  for _, causal in ipairs { false, true } do
    local B, H, S, D = 2, 8, 512, 64
    case("attention 2x8x512x64" .. (causal and " causal" or ""), "f32", 4 * 4 * B * H * S * D,
      (causal and 2 or 4) * B * H * S * S * D, function()
        local q, k, v = T.randn(B, H, S, D), T.randn(B, H, S, D), T.randn(B, H, S, D)
        return function() return F.scaled_dot_product_attention(q, k, v, { is_causal = causal }) end
      end)
  end

  -- Bound by memory: arrays of 64 MB, which no cache holds.
  local n = 16 * MI
  local function stream(name, kind, arrays, make)
    case(name .. " " .. kind, nil, arrays * n * size[kind], 0, make)
  end
  local function two(kind) return T.randn(n // 4096, 4096):to(kind), T.randn(n // 4096, 4096):to(kind) end
  for _, kind in ipairs { "f32", "bf16", "f16" } do
    stream("copy_", kind, 2, function()
      local x, y = two(kind)
      return function() return x:copy_(y) end
    end)
    stream("add_", kind, 3, function()
      local x, y = two(kind)
      return function() return x:add_(y) end
    end)
    stream("exp_ of -x^2", kind, 4, function()
      local x = two(kind)
      return function() return x:square_():neg_():exp_() end
    end)
    stream("gelu", kind, 2, function()
      local x = two(kind)
      return function() return F.gelu(x) end
    end)
    stream("sum", kind, 1, function()
      local x = two(kind)
      return function() return x:sum() end
    end)
    stream("softmax", kind, 2, function()
      local x = two(kind)
      return function() return x:softmax(-1) end
    end)
    stream("layer_norm", kind, 2, function()
      local x, w = two(kind), T.randn(4096):to(kind)
      return function() return F.layer_norm(x, { 4096 }, w) end
    end)
    stream("transpose copy", kind, 2, function()
      local x = two(kind)
      return function() return x:t():contiguous() end
    end)
  end
  list[#list + 1] = { "cast f32 to bf16", nil, 6 * n, 0, function()
    local x = two "f32"
    return function() return x:to "bf16" end
  end }
  -- Optimizers: bytes an element that a step reads and writes, gradient and parameter included. LAMB and Prodigy read
  -- twice, as their rate is known when all has been seen; in 8 bits a state is 1 byte and 4 of 256.
  local function step(name, bytes, opts)
    local what = name .. " step"
    for key, v in pairs(opts or {}) do what = what .. " " .. key .. "=" .. tostring(v) end
    list[#list + 1] = { what, nil, bytes * n // 2, 0, function()
      local given = { lr = name ~= "Prodigy" and 1e-9 or nil }
      for key, v in pairs(opts or {}) do given[key] = v end
      local p = T.randn(2048, n // 4096):requires_grad_()
      local opt = optim[name]({ p }, given)
      p.grad = T.randn(2048, n // 4096) -- once: giving a gradient copies it
      return function() opt:step() end
    end }
  end
  step("SGD", 12)
  step("SGD", 20, { momentum = 0.9 })
  for _, name in ipairs { "Adagrad", "ASGD", "Lion", "RMSprop", "SGDScheduleFree" } do step(name, 20) end
  for _, name in ipairs { "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adadelta", "Rprop", "AdamWScheduleFree" } do
    step(name, 28)
  end
  step("LAMB", 40)
  step("Prodigy", 52)
  step("Adafactor", 24)
  for _, dtype in ipairs { "bf16", "i8" } do
    local state = dtype == "bf16" and 2 or 1 + 4 / 256
    step("Lion", 12 + 2 * state, { state_dtype = dtype })
    step("AdamW", 12 + 4 * state, { state_dtype = dtype })
    step("LAMB", 20 + 6 * state, { state_dtype = dtype })
  end
  return list
end

local function least(call, rounds)
  local function timed(n)
    local from = clock()
    for _ = 1, n do call() end
    return (clock() - from) / n
  end
  timed(1)
  local n = math.max(1, math.floor(timing.SAMPLE_S / math.max(1e-7, timed(1))))
  local t = math.huge
  for _ = 1, rounds do t = math.min(t, timed(n)) end
  return t
end

local function wanted(name, only)
  for _, pattern in ipairs(only) do if name:find(pattern) then return true end end
  return #only == 0
end

local function main(args)
  local o = parse(args)
  T.set_num_threads(o.threads)
  T.manual_seed(1)
  local program, roof, rows = compile(o), {}, {}
  measure(program, o.threads, roof)
  for _, case in ipairs(cases()) do
    if wanted(case[1], o.only) then
      rows[#rows + 1] = { case, least(case[5](), o.rounds) }
      collectgarbage()
      collectgarbage()
    end
  end
  measure(program, o.threads, roof)
  os.remove(program)
  print(("GB/s: copy %.1f, triad %.1f; peaks, GFLOP/s: f32 %.0f, f64 %.0f, bf16 %.0f, i8 %.0f"):format(roof.copy / 1e9,
    roof.triad / 1e9, roof.f32 / 1e9, roof.f64 / 1e9, (roof.bf16 or 0) / 1e9, (roof.i8 or 0) / 1e9))
  print("| Operation | bound by | achieved / attainable |\n|---|---|---|")
  local out = o.json and assert(io.open(o.json, "a"))
  for _, row in ipairs(rows) do
    local case, t = row[1], row[2]
    local peak = case[2] and (roof[case[2]] or roof.f32)
    local memory, compute = case[3] / roof.bandwidth, peak and case[4] / peak or 0
    local share = math.max(memory, compute) / t
    print(("| %s | %s | %.2f |"):format(case[1], memory > compute and "memory" or case[2], share))
    if out then
      out:write(timing.json({ op = case[1], threads = o.threads, min_s = t, share = share },
        { "op", "threads", "min_s", "share" }), "\n")
    end
  end
  if out then out:close() end
end

main { ... }
