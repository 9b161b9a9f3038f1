-- SPDX-License-Identifier: MIT
-- The timing rules of the benchmarks, and what a process can say of itself on Linux.
-- A sample is the mean of n calls in a row; n is the smallest power of two that lasts SAMPLE_S.

local M = {
  SAMPLE_S = 0.02, -- a sample repeats the call until it lasts at least this long
  WARM_S = 0.5, -- warm up at least this long, and at least WARM_CALLS calls
  WARM_CALLS = 3,
  BUDGET_S = 3.0, -- take samples for about this long,
  LEAST = 5, -- but no fewer
  MOST = 100, -- and no more than these
  LIMIT_S = 900, -- give up on a workload after this long
}

-- Calls `call` by the rules above, `clock` being monotonic seconds. Returns the first call's time, the list
-- of samples (seconds per call) and the result of one more call.
function M.measure(call, clock)
  local function timed(n)
    local start = clock()
    for _ = 1, n do call() end
    return clock() - start
  end
  local first = timed(1)
  local begin, calls = clock(), 1
  while calls < M.WARM_CALLS or clock() - begin < M.WARM_S do
    timed(1)
    calls = calls + 1
  end
  local n = 1
  while timed(n) < M.SAMPLE_S do n = n * 2 end
  local samples = {}
  begin = clock()
  while #samples < M.LEAST or (#samples < M.MOST and clock() - begin < M.BUDGET_S) do
    samples[#samples + 1] = timed(n) / n
  end
  return first, samples, call()
end

function M.median(list)
  local s = table.move(list, 1, #list, 1, {})
  table.sort(s)
  local h = #s // 2
  return #s % 2 == 1 and s[h + 1] or (s[h] + s[h + 1]) / 2
end

function M.min(list)
  return math.min(table.unpack(list))
end

-- A field of /proc/self/status, or nil.
function M.status(field)
  local f = io.open("/proc/self/status")
  if not f then return nil end
  local text = f:read("a")
  f:close()
  return text:match("\n" .. field .. ":%s*([^\n]+)")
end

-- Peak resident memory of this process in kB.
function M.peak_kb()
  local text = M.status("VmHWM")
  return text and tonumber(text:match("%d+"))
end

-- The processors this process may use, as a list of numbers.
function M.cores()
  local list = {}
  for part in (M.status("Cpus_allowed_list") or "0"):gmatch("[^,]+") do
    local a, b = part:match("^(%d+)%-(%d+)")
    a = a or part:match("%d+")
    for i = tonumber(a), tonumber(b or a) do list[#list + 1] = i end
  end
  return list
end

-- ---- processes --------------------------------------------------------------------------------

-- Leaves with a word on standard error: the call was wrong.
function M.fail(...)
  io.stderr:write("bench: ", string.format(...), "\n")
  os.exit(2)
end

-- An argument for the shell.
function M.quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

-- What a command prints, and its exit status.
function M.read_command(cmd)
  local p = io.popen(cmd)
  local text = p:read("a")
  local _, _, code = p:close()
  return text, code or 0
end

-- The program that runs this script, found through the process table.
function M.program()
  local f = io.open("/proc/self/stat")
  local pid = f and f:read("n")
  if f then f:close() end
  local exe = pid and M.read_command("readlink /proc/" .. pid .. "/exe"):gsub("\n$", "")
  if not exe or exe == "" then M.fail("cannot tell which program is running") end
  return exe
end

-- ---- results ----------------------------------------------------------------------------------

-- One JSON value: numbers, strings, booleans; nil is written by M.json as null.
local function value(v)
  if v == nil then return "null" end
  if type(v) == "number" then
    if v ~= v or v == math.huge or v == -math.huge then return "null" end
    return math.type(v) == "integer" and tostring(v) or string.format("%.9g", v)
  end
  if type(v) == "boolean" then return tostring(v) end
  return '"' .. tostring(v):gsub('[%c"\\]', function(c)
    return string.format("\\u%04x", c:byte())
  end) .. '"'
end

M.FIELDS = {
  "workload", "impl", "mode", "threads", "median_s", "min_s", "peak_rss_mb", "unit", "throughput", "first_s",
}

-- One result as a JSON object on one line, its keys in a fixed order.
function M.json(row, fields)
  local out = {}
  for i, k in ipairs(fields or M.FIELDS) do out[i] = value(k) .. ": " .. value(row[k]) end
  return "{" .. table.concat(out, ", ") .. "}"
end

return M
