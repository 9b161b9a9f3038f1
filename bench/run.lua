-- SPDX-License-Identifier: MIT
-- perilune's side of the benchmarks: one JSON line per workload and mode, or a row of a table with --table.
--   perilune run bench/run.lua -- [--only NAME ...] [--threads N] [--json FILE] [--table] [--list]
-- Every workload and mode runs in a process of its own, so peak_rss_mb is its peak alone. A workload that
-- cannot run is skipped with its reason on stderr.

local here = debug.getinfo(1, "S").source:match("^@(.*)run%.lua$") or "./"
local timing = dofile(here .. "timing.lua")
local fail, quote, read_command = timing.fail, timing.quote, timing.read_command
local workloads = dofile(here .. "workloads/init.lua")

local function parse(args)
  local o = { only = {}, threads = #timing.cores() }
  local i = 1
  while i <= #args do
    local a = args[i]
    if a == "--only" then
      while args[i + 1] and args[i + 1]:sub(1, 2) ~= "--" do
        i = i + 1
        if not workloads.work[args[i]] then fail("no workload '%s'; see --list", args[i]) end
        o.only[#o.only + 1] = args[i]
      end
    elseif a == "--threads" or a == "--json" or a == "--child" then
      i = i + 1
      if not args[i] then fail("%s wants a value", a) end
      o[a:sub(3)] = args[i]
    elseif a == "--list" or a == "--table" then
      o[a:sub(3)] = true
    elseif a ~= "--" then
      fail("unknown option '%s'", a)
    end
    i = i + 1
  end
  o.threads = math.tointeger(tonumber(o.threads)) or fail("--threads wants a whole number")
  if #o.only == 0 then o.only = workloads.names end
  return o
end

local function row(name, mode, threads, samples, peak_kb, first)
  local median = timing.median(samples)
  return {
    workload = name, impl = "perilune", mode = mode, threads = threads, median_s = median,
    min_s = timing.min(samples),
    peak_rss_mb = peak_kb and math.floor(peak_kb / 102.4 + 0.5) / 10,
    unit = workloads.unit[name], throughput = workloads.figure(name, median), first_s = first,
  }
end

-- ---- the child: one workload in this process ------------------------------------------------

-- The number of a loss: a tensor, a Lua number or nothing.
local function number(loss)
  if type(loss) == "userdata" then return loss:item() end
  return loss
end

local function child(name, mode, threads)
  local T = require "perilune"
  T.set_num_threads(threads)
  T.manual_seed(1)
  local call = workloads.build(T, name, function(file)
    return dofile(here .. "workloads/" .. file .. ".lua")
  end, mode)
  if type(call) == "string" then
    print("skip " .. call)
    return
  end
  local first, samples, last = timing.measure(call, T.clock or T.core.clock)
  last = number(last)
  if last and (last ~= last or math.abs(last) == math.huge) then error("the result is " .. last) end
  print(timing.json(row(name, mode, threads, samples, timing.peak_kb(), first)))
end

-- ---- the parent: processes --------------------------------------------------------------------

local exe = timing.program()
local is_perilune = exe:match("[^/]*$"):find("^perilune") ~= nil

-- The start of a child's command line: threads pinned to the first cores, as the peers do it.
local function prefix(threads)
  local cores = timing.cores()
  local use = table.concat(cores, ",", 1, math.min(threads, #cores))
  local has_taskset = select(2, read_command("command -v taskset >/dev/null 2>&1")) == 0
  local set = "OMP_PROC_BIND=${OMP_PROC_BIND:-true} OMP_NUM_THREADS=%d OPENBLAS_NUM_THREADS=%d exec %s"
  return string.format(set, threads, threads, has_taskset and "taskset -c " .. use .. " " or "")
end

local function in_child(name, mode, threads)
  local cmd = string.format("%stimeout %d %s%s %s%s --child %s --threads %d --only %s", prefix(threads),
    timing.LIMIT_S, quote(exe), is_perilune and " run" or "", quote(here .. "run.lua"),
    is_perilune and " --" or "", mode, threads, name)
  local text, code = read_command(cmd)
  local line = text:match("([^\n]+)\n*$") or ""
  if code == 124 then return nil, "not done in " .. timing.LIMIT_S .. " s" end
  if code ~= 0 then return nil, "exit status " .. code end
  if line:find("^skip ") then return nil, line:sub(6) end
  return line
end

local PROBE = 'require "perilune" for l in io.lines("/proc/self/status") do '
  .. 'local k = l:match("VmHWM:%s*(%d+)") if k then print(k) end end'

-- Whole processes that load the engine and end; the first warms the files up.
local function startup_import(threads)
  local T = require "perilune"
  local clock = T.clock or T.core.clock
  local samples, peaks = {}, {}
  local cmd = "exec " .. quote(exe) .. " -e " .. quote(PROBE)
  local first
  for i = 0, 5 do
    local start = clock()
    local text, code = read_command(cmd)
    local took = clock() - start
    if code ~= 0 then return nil, "exit status " .. code end
    if i == 0 then first = took else samples[i], peaks[i] = took, tonumber(text) end
  end
  return row("startup", "import", threads, samples, math.max(table.unpack(peaks)), first)
end

-- The sum of the sizes that `find` prints for files under a folder, links followed.
local function folder_size(dir, pattern)
  local total = 0
  local find = "find -L %s -maxdepth 4 -type f -name %s -printf '%%s\\n'"
  local sizes = read_command(string.format(find, quote(dir), quote(pattern)))
  for n in sizes:gmatch("%d+") do total = total + tonumber(n) end
  return total
end

-- What is installed: the program, the compiled modules and the Lua files, where this process found them.
local function startup_disk(threads)
  require "perilune"
  local function folder(path)
    return path and (path:match("^(.*)/[^/]*$") or ".")
  end
  local lua = folder(package.searchpath("perilune", package.path))
  local modules = folder(package.searchpath("perilune.core", package.cpath))
  local total = is_perilune and folder_size(folder(exe), "perilune") or 0
  if lua then total = total + folder_size(lua, "*.lua") end
  if modules then total = total + folder_size(modules, "*.so") end
  return {
    workload = "startup", impl = "perilune", mode = "disk", threads = threads, unit = "MB",
    throughput = math.floor(total / 1e5 + 0.5) / 10,
  }
end

-- Calls take(line) for every result of a workload, or skip(reason).
local function results(name, threads, take, skip)
  if name == "startup" then
    local r, why = startup_import(threads)
    if r then take(timing.json(r)) else skip(why) end
    take(timing.json(startup_disk(threads)))
    return
  end
  for _, mode in ipairs(workloads.modes(name)) do
    local line, why = in_child(name, mode, threads)
    if line then take(line) else skip(why) end
  end
end

-- ---- a table for people -------------------------------------------------------------------------

local function duration(s)
  if not s then return "-" end
  if s < 1e-6 then return ("%.1f ns"):format(s * 1e9) end
  if s < 1e-3 then return ("%.2f us"):format(s * 1e6) end
  if s < 1 then return ("%.2f ms"):format(s * 1e3) end
  return ("%.2f s"):format(s)
end

-- What a result's line says, as a row; the heading before the first.
local headed = false
local function show(line)
  local function text(key) return line:match('"' .. key .. '":%s*"([^"]*)"') end
  local function value(key) return tonumber(line:match('"' .. key .. '":%s*(-?[%d.eE+-]+)')) end
  local form = "%-30s %-10s %12s %12s %16s %9s"
  if not headed then print(form:format("workload", "mode", "median", "fastest", "figure", "peak MB")) end
  headed = true
  local figure = value "throughput"
  print((form:format(text "workload", text "mode", duration(value "median_s"), duration(value "min_s"),
    figure and ("%.4g %s"):format(figure, text "unit" or "") or "-",
    value "peak_rss_mb" and ("%.1f"):format(value "peak_rss_mb") or "-"):gsub("%s+$", "")))
end

local function main(args)
  local o = parse(args)
  if o.list then
    print(table.concat(workloads.names, "\n"))
    return
  end
  if o.child then return child(o.only[1], o.child, o.threads) end
  for _, name in ipairs(o.only) do
    results(name, o.threads, function(line)
      if o.table then show(line) else print(line) end
      io.stdout:flush()
      if o.json then
        local f = assert(io.open(o.json, "a"))
        f:write(line, "\n")
        f:close()
      end
    end, function(why)
      io.stderr:write("skip perilune ", name, ": ", why, "\n")
    end)
  end
end

main { ... }
