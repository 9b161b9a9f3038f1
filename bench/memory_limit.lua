-- SPDX-License-Identifier: MIT
-- Training steps without and under T.memory_limit, in one process: peak, processor time, and whether the losses agree.
--   perilune run bench/memory_limit.lua -- [WORKLOAD] [FRACTION] [STEPS]
-- The limit is FRACTION of the peak without one. Both nets begin with the same numbers.

local T = require "perilune"
local here = debug.getinfo(1, "S").source:match("^@(.*)memory_limit%.lua$") or "./"
local timing = dofile(here .. "timing.lua")
local workloads = dofile(here .. "workloads/init.lua")
local args = {}
for _, a in ipairs(arg) do if a ~= "--" then args[#args + 1] = a end end
local name, fraction, steps = args[1] or "resnet50_b8_mem", tonumber(args[2] or 0.6), tonumber(args[3] or 3)
T.set_num_threads(#timing.cores())

-- Seconds of the processor and page faults of this process so far (Linux).
local function spent()
  local f = assert(io.open "/proc/self/stat")
  local fields = {}
  for w in f:read("a"):match("%) (.*)"):gmatch("%S+") do fields[#fields + 1] = tonumber(w) or w end
  f:close()
  return (fields[12] + fields[13]) / 100, fields[8]
end

local function peak_rss()
  for line in io.lines "/proc/self/status" do
    local kb = line:match "^VmHWM:%s*(%d+)"
    if kb then return tonumber(kb) / 1e3 end
  end
end

-- Runs the steps; a fraction of `peak` is the limit, nil: none.
local function run(peak)
  T.manual_seed(1)
  local function load(file) return dofile(here .. "workloads/" .. file .. ".lua") end
  local call = workloads.build(T, name, load, "eager")
  if type(call) == "string" then timing.fail("%s", call) end
  collectgarbage()
  T.empty_cache()
  T.reset_peak_memory()
  local limit = peak and T.memory_limit(math.floor(peak * fraction))
  local row = { cpu = math.huge, wall = math.huge }
  for i = 1, steps + 1 do
    if i == 2 then T.reset_peak_memory() end -- the optimizer has its state
    local cpu, faults = spent()
    local wall = T.core.clock()
    local loss = call()
    row.loss = loss:item()
    if i > 1 then
      local cpu_after, faults_after = spent()
      row.cpu, row.wall = math.min(row.cpu, cpu_after - cpu), math.min(row.wall, T.core.clock() - wall)
      row.faults = faults_after - faults
    end
  end
  row.peak = T.memory().peak
  if limit then
    local s = T.debug.rematerialization()
    row.evictions, row.recomputed = s.evictions / (steps + 1), s.recomputed / (steps + 1)
    getmetatable(limit).__close(limit)
  end
  return row
end

local free = run()
local free_rss = peak_rss()
collectgarbage()
T.empty_cache()
local reset = io.open("/proc/self/clear_refs", "w") -- 5: the peak of the resident set begins anew
if reset then reset:write "5" reset:close() end
local under = run(free.peak)
assert(free.loss == under.loss, "the losses differ")
local out = { workload = name, fraction = fraction, peak_mb = free.peak / 1e6, limited_peak_mb = under.peak / 1e6,
  peak_ratio = under.peak / free.peak, rss_mb = free_rss, limited_rss_mb = reset and peak_rss(), cpu_s = free.cpu,
  limited_cpu_s = under.cpu, cpu_ratio = under.cpu / free.cpu, wall_ratio = under.wall / free.wall,
  evictions = under.evictions, recomputed = under.recomputed }
print(timing.json(out, { "workload", "fraction", "peak_mb", "limited_peak_mb", "peak_ratio", "rss_mb", "limited_rss_mb",
  "cpu_s", "limited_cpu_s", "cpu_ratio", "wall_ratio", "evictions", "recomputed" }))
