-- SPDX-License-Identifier: MIT
-- perilune's side of the GPU benchmarks: the same workloads, modes and JSON lines as ../shared/bench/gpu_peers.py.
--   perilune run bench/gpu.lua -- [--only NAME ...] [--modes MODE ...] [--json FILE] [--budget SECONDS] [--logs DIR]
--   perilune run bench/gpu.lua -- --device cpu --tiny     everything once, small, without a GPU
--   perilune run bench/gpu.lua -- --values                what small workloads compute, on the device and on the CPU
-- Modes: eager; tf32; compile: T.jit, its steps launched one by one; graph and compile+graph: T.jit, its steps one
-- captured CUDA graph. Every result comes from a process of its own. Exit status 1: something failed; 2: wrong usage,
-- or no device.

local here = debug.getinfo(1, "S").source:match("^@(.*)gpu%.lua$") or "./"
local timing = dofile(here .. "timing.lua")
local fail, quote, read_command = timing.fail, timing.quote, timing.read_command

local MODES = { "eager", "tf32", "graph", "compile", "compile+graph" }
local START = { eager = 20, tf32 = 20, graph = 30, compile = 30, ["compile+graph"] = 30 } -- seconds that must be left
local LIMIT_S, WARM_CALLS, SAMPLE_S, SAMPLES = 240, 10, 0.02, 5
local FIELDS = { "workload", "impl", "mode", "device", "deterministic", "captured", "median_s", "min_s",
  "peak_device_mb", "peak_live_mb", "unit", "throughput", "first_s" }

local function parse(args)
  local o, i = { only = {}, modes = {}, device = "cuda" }, 1
  local function list(into)
    while args[i + 1] and args[i + 1]:sub(1, 2) ~= "--" do
      i = i + 1
      into[#into + 1] = args[i]
    end
  end
  while i <= #args do
    local a = args[i]
    if a == "--only" then list(o.only)
    elseif a == "--modes" then list(o.modes)
    elseif a == "--tiny" or a == "--list" or a == "--values" then o[a:sub(3)] = true
    elseif a == "--json" or a == "--budget" or a == "--device" or a == "--child" or a == "--logs" or
      a == "--deterministic" then
      i = i + 1
      o[a:sub(3)] = args[i] or fail("%s wants a value", a)
    elseif a ~= "--" then fail("unknown option '%s'", a)
    end
    i = i + 1
  end
  o.budget = o.budget and (tonumber(o.budget) or fail("--budget wants seconds"))
  local d = o.deterministic
  if d and d ~= "yes" and d ~= "no" then fail("--deterministic is yes or no") end
  if o.device ~= "cuda" and o.device ~= "cpu" then fail("--device is cuda or cpu") end
  return o
end

-- The table of workloads; builders are called in children only.
local function workloads(T, tools)
  local W = {}
  for _, file in ipairs { "train", "models" } do dofile(here .. "workloads/" .. file .. ".lua")(T, {}, tools) end
  dofile(here .. "workloads/gpu.lua")(T, W, tools)
  return W
end

-- ---- the child: one workload in this process ------------------------------------------------------------

local function measure(call, host, o, device)
  local T = require "perilune"
  local clock = T.core.clock
  local function wait() if device then device.synchronize() end end
  local function timed(n)
    wait()
    local start = clock()
    for _ = 1, n do call() end
    if not host then wait() end
    return clock() - start
  end
  local start = clock()
  timed(1)
  local first = clock() - start
  timed(WARM_CALLS)
  if device then -- what only the first calls needed does not count as peak
    device.trim()
    device.reset_peak()
  end
  local n = 1
  while timed(n) < SAMPLE_S and not host do n = n * 2 end
  local samples, begin = {}, clock()
  while #samples < SAMPLES or clock() - begin < (o.tiny and 0.1 or 1.0) do samples[#samples + 1] = timed(n) / n end
  return first, samples
end

-- "yes", or why some function was not captured; nil where none was compiled.
local function captured(functions)
  local said
  for _, j in ipairs(functions) do
    local fine, plan, backward = pcall(function() return j:plan() end)
    for _, p in ipairs(fine and { plan, backward } or {}) do
      local how = p.device and p.device.capture
      if how == "captured" then said = said or "yes" elseif how then said = how end
    end
  end
  return said
end

local function json(row)
  timing.FIELDS = FIELDS
  return timing.json(row)
end

-- What VALUES calls computed, as numbers in one line: losses, else the mean of magnitudes of results or gradients.
local VALUES = 6
local function print_values(call)
  local list = {}
  for i = 1, VALUES do
    local v = call()
    if type(v) == "userdata" then v = v:item() end
    list[i] = ("%.9g"):format(v or 0)
  end
  print("values " .. table.concat(list, " "))
end

local function child(o)
  local T = require "perilune"
  local name, mode = o.only[1], o.child
  local tools = { device = o.device, tiny = o.tiny, mode = mode }
  if o.values then
    function tools.values(...)
      local sum, all = 0, { ... }
      for _, t in ipairs(all) do sum = sum + t:detach():to("f64"):abs():mean():item() end
      return sum / #all
    end
  end
  local jit = mode ~= "eager" and mode ~= "tf32"
  local compiled = {} -- what is asked later whether it was captured
  function tools.compiled(f)
    if not jit then return f end
    compiled[#compiled + 1] = T.jit(f)
    return compiled[#compiled]
  end
  if o.deterministic == "no" then T.deterministic(false) end
  T.manual_seed(1)
  T.set_float32_matmul_precision(mode == "tf32" and "high" or "highest")
  local device = o.device == "cuda" and T.core.device or nil
  local found
  for _, w in ipairs(workloads(T, tools)) do
    if w.name == name then found = w end
  end
  local work, call = found.build()
  if o.values then return print_values(call) end
  local first, samples = measure(call, name == "dispatch_add", o, device)
  local label, peak = "cpu", {}
  if device then
    local m = device.memory()
    label, peak = device.info().name, { m.reserved >> 20, m.peak >> 20 }
  end
  local loss = call()
  if type(loss) == "userdata" then loss = loss:item() end
  if loss and (loss ~= loss or math.abs(loss) == math.huge) then error("the result is " .. loss) end
  local median, unit = timing.median(samples), found.unit
  local scale = unit:sub(1, 1) == "T" and 1e12 or unit:sub(1, 1) == "G" and 1e9 or 1
  print(json {
    workload = name, impl = "perilune", mode = mode, device = label .. (o.tiny and " (tiny)" or ""),
    deterministic = o.deterministic or "yes", captured = device and captured(compiled) or nil,
    median_s = median,
    min_s = timing.min(samples), peak_device_mb = peak[1], peak_live_mb = peak[2], unit = unit,
    throughput = unit == "ns/op" and median * 1e9 / work or work / median / scale,
    first_s = first,
  })
end

-- ---- the parent ---------------------------------------------------------------------------------------------

-- A line of results, or nil and why not; "late" when the time was up.
local function in_child(exe, name, mode, seconds, o)
  local form = "%sexec timeout %d %s run %s -- --child %s --only %s --device %s%s%s%s 2>&1"
  local cmd = string.format(form, mode == "compile" and "PERILUNE_CUDA_GRAPHS=0 " or "", math.max(1, seconds // 1),
    quote(exe), quote(here .. "gpu.lua"),
    quote(mode), name, o.device, o.tiny and " --tiny" or "", o.values and " --values" or "",
    o.deterministic and " --deterministic " .. o.deterministic or "")
  local text, code = read_command(cmd)
  local line = text:match("([^\n]+)\n*$") or ""
  if code == 124 then return nil, "late" end
  if code ~= 0 or not line:find(o.values and "^values " or "^{") then
    local log = o.logs and io.open(("%s/bench-%s-%s.log"):format(o.logs, name, mode), "w")
    if log then
      log:write(text)
      log:close()
    end
    return nil, "exit status " .. code .. ": " .. (text:match("([^\n]*error[^\n]*)") or text:match("[^\n]+") or line)
  end
  return line
end

local function run_child(exe, w, mode, seconds, o) return in_child(exe, w.name, mode, seconds, o) end

local function runs(w, mode)
  return (" " .. w.modes .. " "):find(" " .. mode .. " ", 1, true) ~= nil
end

-- The device's numbers beside the CPU's: f32 ones agree to a thousandth, those of rounded factors to a twentieth, which
-- training steps of small batches reach (means over two images). ResNet-50's to a tenth: batch norm over a few values a
-- channel magnifies the rounding of halves. 1e-6 in the images makes losses of the CPU alone differ by 2 % before the
-- first step, and by 7 % after five small ones.
local function compare(exe, w, mode, seconds, o)
  local lines = {}
  for i, device in ipairs { o.device, "cpu" } do
    local side = setmetatable({ device = device }, { __index = o })
    local line, why = in_child(exe, w.name, device == "cpu" and "eager" or mode, seconds, side)
    if not line then return nil, why end
    lines[i] = line
  end
  local limit = (w.name:find("bf16") or w.name:find("gpt2") or w.name:find("^sdpa") or
    w.name:find("^conv") or w.name:find("norm_") or w.name:find("^softmax") or w.name:find("^xent")) and 0.05 or
    w.name:find("resnet") and 0.1 or 1e-3
  local theirs, worst, at = {}, 0, 0
  for v in lines[2]:gmatch("%S+") do theirs[#theirs + 1] = tonumber(v) end
  for v in lines[1]:gmatch("%S+") do
    v = tonumber(v)
    if v then
      at = at + 1
      local off = math.abs(v - theirs[at]) / math.max(math.abs(theirs[at]), 1e-6)
      worst = (off ~= off or off > worst) and off or worst
    end
  end
  local fine = at == VALUES and worst <= limit
  local beside = fine and "" or "  CPU: " .. lines[2]
  print(("%-32s %-14s %s  differs by %.1e%s"):format(w.name, mode, lines[1], worst, beside))
  return fine or nil, ("on the CPU the values are others, by %.1e"):format(worst)
end

local function check_device(T, o)
  if o.device == "cpu" then return end
  local device = T.core.device
  if not device then fail("this build has no device \"cuda\"") end
  local there, why = device.available()
  if not there then fail("%s", why) end
end

local function main(args)
  local o = parse(args)
  if o.child then return child(o) end
  if o.values then o.tiny = true end
  local T = require "perilune"
  local clock = T.core.clock
  local begin = clock()
  local all = workloads(T, { compiled = function(f) return f end, device = o.device })
  if o.list then
    for _, w in ipairs(all) do print(w.name, w.modes) end
    return
  end
  local known, modes, failed, left = {}, {}, false, {}
  for _, w in ipairs(all) do known[w.name] = w end
  for _, name in ipairs(o.only) do
    if not known[name] then fail("no workload '%s'; see --list", name) end
  end
  for _, m in ipairs(#o.modes > 0 and o.modes or MODES) do
    if START[m] then
      modes[#modes + 1] = m
    else
      io.stderr:write("skip mode ", m, ": perilune has none of that name\n")
    end
  end
  check_device(T, o)
  local exe = timing.program()
  for _, mode in ipairs(modes) do
    for _, w in ipairs(all) do
      local wanted = #o.only == 0
      for _, name in ipairs(o.only) do wanted = wanted or name == w.name end
      if wanted and runs(w, mode) and not (o.device == "cpu" and mode == "tf32") then
        local rest = (o.budget or math.huge) - (clock() - begin) - 3
        local line, why
        if rest >= (o.tiny and 3 or START[mode]) then
          line, why = (o.values and compare or run_child)(exe, w, mode, math.min(LIMIT_S, rest), o)
        else
          why = "late"
        end
        if line == true then
          io.stdout:flush()
        elseif line then
          print(line)
          io.stdout:flush()
          if o.json then
            local f = assert(io.open(o.json, "a"))
            f:write(line, "\n")
            f:close()
          end
        elseif why == "late" and rest < LIMIT_S then
          left[mode] = (left[mode] or "") .. " " .. w.name
        else
          failed = true
          if why == "late" then why = "not done in " .. LIMIT_S .. " s" end
          io.stderr:write("skip ", w.name, " ", mode, ": ", why, "\n")
        end
      end
    end
  end
  for _, mode in ipairs(modes) do
    if left[mode] then io.stderr:write("left out: --modes ", mode, " --only", left[mode], "\n") end
  end
  os.exit(failed and 1 or 0)
end

main({ ... })
