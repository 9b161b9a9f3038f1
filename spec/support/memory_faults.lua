-- SPDX-License-Identifier: MIT
-- A process in which allocations of perilune's modules fail (faults.c): each program of fault_scripts.lua with the
-- failure at every place, once, twice and from there on. Arguments: how many places are left out between two. Prints
-- what went wrong and, last, counts.

local T = require "perilune"
local live = require "spec.support.live"
local step = tonumber(arg[1])

local tried, failed, finds = 0, 0, 0
local function find(fmt, ...)
  finds = finds + 1
  print(fmt:format(...))
end

-- Whether the script came through, what it gave or said, and how many allocations failed.
local function run(script, n, count)
  os.getenv(("faults MALLOC %d %d"):format(n, count))
  local ok, result = pcall(script)
  local fell = tonumber(os.getenv("faults ?"):match " (%d+)")
  os.getenv "faults OFF"
  tried, failed = tried + 1, failed + fell
  return ok, result, fell
end

for k, row in ipairs(require "spec.support.fault_scripts") do
  local name, script = row[1], row[2]
  T.manual_seed(3)
  script()
  T.manual_seed(3)
  local want = script()
  local function whole(where)
    T.manual_seed(3)
    local ok, got = pcall(script)
    if not ok or got ~= want then
      find("%s: after %s it gives %s, not %s", name, where, tostring(got), tostring(want))
    end
  end
  T.empty_cache()
  local blocks = live.blocks(T)
  for _, count in ipairs { 0, 1, 2 } do
    for n = k % step, 1 << 30, step do
      T.manual_seed(3)
      local ok, result, fell = run(script, n, count)
      local where = ("failure %d (%s)"):format(n, count == 0 and "and all behind" or count .. " times")
      if ok and result ~= want then
        find("%s: with %s it gives %s, not %s", name, where, tostring(result), tostring(want))
      end
      if not ok and not (type(result) == "string" and result:find("memory", 1, true)) then
        find("%s: %s says %s", name, where, tostring(result))
      end
      if fell == 0 then break end
      if n % 16 == k % 16 then whole(where) end
      if finds > 20 then break end
    end
  end
  whole "all failures"
  local now = live.blocks(T)
  if now ~= blocks then find("%s: %d blocks left", name, now - blocks) end
end
print(("%d runs, %d allocations failed, %d finds"):format(tried, failed, finds))
