-- SPDX-License-Identifier: MIT
-- Instructions per call of what small models pay for, counted by callgrind, in one build or in several side by side:
--   perilune run bench/instructions.lua -- [--only NAME] [--calls N] [EXECUTABLE ...]
-- Each workload runs N and 2 N times; the difference of the counts is that of N calls, without the start. With several
-- builds, of the same flags, "ratio" is the last one's count over the first one's. Needs valgrind.

local o, executables = { calls = 1000 }, {}

-- ---- workloads: each returns what is called once per call -------------------------------------------------------

local W, names = {}, {}

local function workload(name, make)
  names[#names + 1], W[name] = name, make
end

workload("add", function(T)
  local a, b = T.ones(1), T.ones(1)
  return function()
    for _ = 1, 20 do local _ = a + b end
  end
end)

workload("grad", function(T) -- dispatch_grad
  local a, b, dy = T.full({ 1 }, 0.99), T.full({ 1 }, 0.01), T.ones(1)
  local x = T.ones(1):requires_grad_()
  return function()
    x.grad = nil
    local y = x
    for _ = 1, 20 do y = y * a + b end
    y:backward(dy)
  end
end)

workload("custom", function(T) -- custom_grad
  local cube = T.custom {
    name = "bench_cube",
    forward = function(ctx, x)
      ctx:save(x)
      return x * x * x
    end,
    backward = function(ctx, g)
      local x = ctx:saved()
      return g * 3 * x * x
    end,
  }
  local x, dy = T.full({ 1 }, 0.5):requires_grad_(), T.ones(1)
  return function()
    x.grad = nil
    cube(x):backward(dy)
  end
end)

workload("chain", function(T, n) -- chain_1e6: one chain, as long as there are calls
  local x, one = T.ones(1):requires_grad_(), T.ones(1)
  local y, i = x, 0
  return function()
    for _ = 1, 20 do y = y + one end
    i = i + 1
    if i == n then y:backward() end
  end
end)

workload("mlp", function(T)
  local nn = T.nn
  local net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
  local x = T.ones(2, 4)
  return function()
    net:zero_grad()
    net(x):sum():backward()
  end
end)

-- ---- counting ------------------------------------------------------------------------------------------------------

local function count(executable, name, n)
  local script = debug.getinfo(1, "S").source:sub(2)
  local command = ("valgrind --tool=callgrind --callgrind-out-file=/dev/null '%s' run '%s' -- --run %s %d 2>&1")
    :format(executable, script, name, n)
  local pipe = io.popen(command)
  local text = pipe:read("a")
  pipe:close()
  return tonumber(text:match("Collected : (%d+)")) or error(command .. "\n" .. text, 0)
end

local i = 1
while arg[i] do
  if arg[i] == "--only" then
    o.only, i = arg[i + 1], i + 1
  elseif arg[i] == "--calls" then
    o.calls, i = math.tointeger(tonumber(arg[i + 1])) or error("--calls wants a whole number", 0), i + 1
  elseif arg[i] == "--run" then
    o.run, o.calls, i = arg[i + 1], math.tointeger(tonumber(arg[i + 2])), i + 2
  elseif arg[i] ~= "--" then
    executables[#executables + 1] = arg[i]
  end
  i = i + 1
end

if o.run then
  local T = require "perilune"
  T.set_num_threads(1)
  local call = W[o.run](T, o.calls)
  for _ = 1, o.calls do call() end
else
  if #executables == 0 then executables[1] = "/proc/" .. io.open("/proc/self/stat"):read("n") .. "/exe" end
  for _, name in ipairs(names) do
    if not o.only or o.only == name then
      local per = {}
      for k, e in ipairs(executables) do
        per[k] = (count(e, name, 2 * o.calls) - count(e, name, o.calls)) / o.calls
      end
      local shown = {}
      for k, p in ipairs(per) do shown[k] = ("%.1f"):format(p) end
      print(('{"workload":"%s","instructions_per_call":[%s],"ratio":%.4f}')
        :format(name, table.concat(shown, ","), per[#per] / per[1]))
    end
  end
end
