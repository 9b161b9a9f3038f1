-- SPDX-License-Identifier: MIT
-- ONNX models against onnxruntime, in turn: latency of one call, and peak memory of the process that loads and runs it.
--   perilune run bench/onnx.lua -- [--threads 2] [--rounds 9] [--work] [--python python3] MODEL.onnx...
-- Both sides are processes that read requests line by line (this file with --side, and onnx_peer.py) and get the same
-- inputs, in an npz file. Where others use the machine, processor time (--work --threads 1) says more than latency.
-- Their outputs are compared, relative to the largest. Sizes that a file leaves free are 1, integers are below 1000.
--   load PATH INPUTS OUTPUTS   loads, runs once and keeps the outputs   -> seconds
--   time S                     one call, over about S seconds           -> seconds
--   work S                     processor time of one call               -> seconds
--   peak                       VmHWM                                    -> MB
--   end

local here = debug.getinfo(1, "S").source:match("^@(.*)onnx%.lua$") or "./"
local T = require "perilune"
local timing = dofile(here .. "timing.lua")
local clock = T.clock or T.core.clock

local o, models = { threads = 2, rounds = 9, python = "python3" }, {}
do
  local i = 1
  while arg[i] do
    local a = arg[i]
    if a == "--side" or a == "--work" then
      o[a:sub(3)] = true
    elseif (a == "--threads" or a == "--rounds") and arg[i + 1] then
      i = i + 1
      o[a:sub(3)] = math.tointeger(tonumber(arg[i])) or timing.fail("%s wants a whole number", a)
    elseif a == "--python" and arg[i + 1] then
      i = i + 1
      o.python = arg[i]
    elseif a:sub(1, 2) == "--" and a ~= "--" then
      timing.fail("unknown option %s", a)
    elseif a ~= "--" then
      models[#models + 1] = a
    end
    i = i + 1
  end
end

-- ---- our side ------------------------------------------------------------------------------------------------------

local function side()
  T.set_num_threads(o.threads)
  local call
  for line in io.lines() do
    local word, rest = line:match "^(%S+)%s*(.*)$"
    if word == "load" then
      local path, from, to = rest:match "^(%S+) (%S+) (%S+)$"
      local begin = clock()
      local net = assert(T.onnx.load(path, { inference = true })):eval()
      local given, list = assert(T.load_npz(from)), {}
      for i, input in ipairs(net.inputs) do list[i] = given[input.name] end
      local run = T.jit(function(...) return net(...) end)
      call = function() return T.no_grad(function() return run(table.unpack(list)) end) end
      local out, named = table.pack(call()), {}
      print(clock() - begin)
      for i, output in ipairs(net.outputs) do named[output.name] = out[i] end
      assert(T.save_npz(to, named))
    elseif word == "time" or word == "work" then
      local limit, n, count = tonumber(rest), 0, word == "work" and os.clock or clock
      call()
      local begin, from = clock(), count()
      repeat
        call()
        n = n + 1
      until clock() - begin > limit
      print((count() - from) / n)
    elseif word == "peak" then
      print(timing.peak_kb() / 1e3)
    elseif word == "end" then -- the pipe stays open in the other side, which was forked later
      return
    end
    io.stdout:flush()
  end
end

if o.side then
  side()
  return
end

-- ---- both --------------------------------------------------------------------------------------------------------

local function start(command)
  local pipe = os.tmpname()
  os.remove(pipe)
  local _, bad = timing.read_command("mkfifo " .. timing.quote(pipe))
  if bad ~= 0 then timing.fail("cannot make a named pipe at %s", pipe) end
  local p = { from = io.popen(("%s < %s"):format(command, pipe)) }
  p.to = assert(io.open(pipe, "w"))
  os.remove(pipe)
  function p.ask(...)
    p.to:write(string.format(...), "\n")
    p.to:flush()
    return tonumber((p.from:read "l")) or timing.fail("a side has ended: %s", command)
  end
  function p.stop()
    p.to:write "end\n"
    p.to:close()
    p.from:close()
  end
  return p
end

local function inputs_of(path, to)
  local net, named = assert(T.onnx.load(path)), {}
  T.manual_seed(1)
  for _, input in ipairs(net.inputs) do
    if not input.optional then
      local shape = {}
      for d, n in ipairs(input.shape) do shape[d] = n or 1 end
      named[input.name] = input.dtype:find "^i" and T.randint(0, 999, shape):to(input.dtype)
        or T.randn(shape):to(input.dtype)
    end
  end
  assert(T.save_npz(to, named))
end

local function difference(a, b)
  local ours, theirs, most = assert(T.load_npz(a)), assert(T.load_npz(b)), 0
  for name, t in pairs(ours) do
    local u = theirs[name]
    most = math.max(most, (t - u):abs():amax():item() / math.max(u:abs():amax():item(), 1e-30))
  end
  return most
end

local folder = os.tmpname()
os.remove(folder)
assert(os.execute("mkdir -m 700 " .. timing.quote(folder)))
print("| Model | perilune, ms | onnxruntime, ms | Time ratio | Range | perilune, MB | onnxruntime, MB | Memory ratio "
  .. "| Difference |")
print "|---|---|---|---|---|---|---|---|---|"
for _, path in ipairs(models) do
  inputs_of(path, folder .. "/in.npz")
  local sides = {
    start(("%s run %sonnx.lua -- --side --threads %d"):format(timing.quote(timing.program()), here, o.threads)),
    start(("%s %sonnx_peer.py %d"):format(timing.quote(o.python), here, o.threads)),
  }
  local times, ratios, peaks, how = { {}, {} }, {}, {}, o.work and "work 0.4" or "time 0.4"
  for k, s in ipairs(sides) do s.ask("load %s %s/in.npz %s/out%d.npz", path, folder, folder, k) end
  for _ = 1, o.rounds do
    for k, s in ipairs(sides) do table.insert(times[k], s.ask(how)) end
    ratios[#ratios + 1] = times[1][#times[1]] / times[2][#times[2]]
  end
  for k, s in ipairs(sides) do
    peaks[k] = s.ask "peak"
    s.stop()
  end
  table.sort(ratios)
  print(("| `%s` | %.1f | %.1f | %.2f | %.2f … %.2f | %.0f | %.0f | %.2f | %.1g |"):format(path:match "[^/]*$",
    timing.median(times[1]) * 1e3, timing.median(times[2]) * 1e3, timing.median(ratios), ratios[1], ratios[#ratios],
    peaks[1], peaks[2], peaks[1] / peaks[2], difference(folder .. "/out1.npz", folder .. "/out2.npz")))
  io.stdout:flush()
end
os.execute("rm -rf " .. timing.quote(folder))
