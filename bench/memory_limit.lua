-- SPDX-License-Identifier: MIT
-- Training steps without and under T.memory_limit, in turns in one process: peak, processor time, and whether the
-- losses agree.
--   perilune run bench/memory_limit.lua -- [WORKLOAD] [FRACTION] [STEPS] [ROUNDS]
-- The limit is FRACTION of the peak without one. All nets begin with the same numbers.

local T = require "perilune"
local here = debug.getinfo(1, "S").source:match("^@(.*)memory_limit%.lua$") or "./"
local timing = dofile(here .. "timing.lua")
local workloads = dofile(here .. "workloads/init.lua")
local args = {}
for _, a in ipairs(arg) do if a ~= "--" then args[#args + 1] = a end end
local name, fraction, steps = args[1] or "resnet50_b8_mem", tonumber(args[2] or 0.5), tonumber(args[3] or 3)
local rounds = tonumber(args[4] or 3)
T.set_num_threads(#timing.cores())

-- Seconds of the processor, user and system, and page faults of this process so far (Linux).
local function spent()
  local f = assert(io.open "/proc/self/stat")
  local fields = {}
  for w in f:read("a"):match("%) (.*)"):gmatch("%S+") do fields[#fields + 1] = tonumber(w) or w end
  f:close()
  return fields[12] / 100, fields[13] / 100, fields[8]
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
  local reset = io.open("/proc/self/clear_refs", "w") -- 5: the peak of the resident set begins anew
  if reset then reset:write "5" reset:close() end
  local limit = peak and T.memory_limit(math.floor(peak * fraction))
  local row = { cpu = {}, user = {}, system = {}, wall = {}, faults = {} }
  for i = 1, steps + 1 do
    if i == 2 then T.reset_peak_memory() end -- the optimizer has its state
    local user, system, faults = spent()
    local wall = T.core.clock()
    local loss = call()
    row.loss = loss:item()
    if i > 1 then
      local user_after, system_after, faults_after = spent()
      local k = i - 1
      row.user[k], row.system[k] = user_after - user, system_after - system
      row.cpu[k] = row.user[k] + row.system[k]
      row.wall[k], row.faults[k] = T.core.clock() - wall, faults_after - faults
    end
  end
  row.peak, row.rss = T.memory().peak, reset and peak_rss()
  if limit then
    local s = T.debug.rematerialization()
    row.evictions, row.recomputed = s.evictions / (steps + 1), s.recomputed / (steps + 1)
    getmetatable(limit).__close(limit)
  end
  return row
end

local free, under = {}, {}
for i = 1, rounds do
  free[i] = run()
  under[i] = run(free[1].peak)
  assert(free[i].loss == free[1].loss and under[i].loss == free[1].loss, "the losses differ")
end

-- The median of the rounds' medians, and of their ratios.
local function median(rows, field)
  local list = {}
  for i, row in ipairs(rows) do list[i] = timing.median(row[field]) end
  return timing.median(list)
end
local function ratio(field)
  local list = {}
  for i, row in ipairs(under) do list[i] = timing.median(row[field]) / timing.median(free[i][field]) end
  return timing.median(list)
end
local function least(rows)
  local l = math.huge
  for _, row in ipairs(rows) do l = math.min(l, table.unpack(row.cpu)) end
  return l
end
local a, b = free[1], under[#under]
local out = { workload = name, fraction = fraction, peak_mb = a.peak / 1e6, limited_peak_mb = b.peak / 1e6,
  peak_ratio = b.peak / a.peak, rss_mb = a.rss, limited_rss_mb = b.rss, user_s = median(free, "user"),
  system_s = median(free, "system"), limited_user_s = median(under, "user"), limited_system_s = median(under, "system"),
  faults = median(free, "faults"), limited_faults = median(under, "faults"), cpu_ratio = ratio "cpu",
  least_cpu_ratio = least(under) / least(free), wall_ratio = ratio "wall", evictions = b.evictions,
  recomputed = b.recomputed }
print(timing.json(out, { "workload", "fraction", "peak_mb", "limited_peak_mb", "peak_ratio", "rss_mb",
  "limited_rss_mb", "user_s", "system_s", "limited_user_s", "limited_system_s", "faults", "limited_faults",
  "cpu_ratio", "least_cpu_ratio", "wall_ratio", "evictions", "recomputed" }))
