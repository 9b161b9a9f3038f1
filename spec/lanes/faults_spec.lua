-- SPDX-License-Identifier: MIT
-- Faults at every place: system calls of writers and readers, and allocations of perilune's modules, in processes with
-- libfaults.so (spec/support/programs/faults.c) in front. PERILUNE_LANES=long: larger files, no place left out.

local build = os.getenv "PERILUNE_BUILD" or "build"
local root = os.getenv "PERILUNE_ROOT" or "."
local long = os.getenv "PERILUNE_LANES" == "long"
local sanitized = (os.getenv "PERILUNE_SANITIZE" or "") ~= ""
local faults = build .. "/spec/libfaults.so"

-- What a script prints; its last line, counts that end in "0 finds", goes to the closing line of the lane.
local function lane(script, settings, ...)
  local command = ("cd '%s' && env LD_PRELOAD='%s' %s '%s/bin/perilune' run spec/%s -- %s 2>&1"):format(root,
    faults, settings, build, script, table.concat({ ... }, " "))
  local p = assert(io.popen(command))
  local text = p:read "a"
  local fine = p:close()
  local counts = text:match "([^\n]*finds)\n$"
  if not fine or not counts then error(script .. " ended early: " .. text:sub(-2000)) end
  io.stderr:write(("%s: %s\n"):format(script, counts))
  if not counts:find ", 0 finds$" then error(text:sub(-4000)) end
  return counts
end

describe("a fault", function()
  local there = io.open(faults)
  if not there or sanitized then -- a sanitizer's runtime must come first
    pending "libfaults.so is not built, or a sanitizer is"
    return
  end
  there:close()

  it("at a system call on a file: the old file or the new one, and an error", function()
    local folder = os.tmpname()
    os.remove(folder)
    assert(os.execute("mkdir '" .. folder .. "'"))
    local ok, counts = pcall(lane, "support/file_faults.lua", ("PERILUNE_FAULTS='%s'"):format(folder), folder,
      long and 5000000 or 500)
    os.execute("rm -rf '" .. folder .. "'")
    if not ok then error(counts, 0) end
    assert.is_true(tonumber(counts:match "(%d+) calls failed") > 1500)
  end)

  it("that is Ctrl-C: steps and statistics are whole, or none; torn sums of gradients are refused", function()
    local counts = lane("lanes/state_faults.lua", "", "INT", long and 1 or 3, long and "all" or "")
    assert.is_true(tonumber(counts:match "(%d+) failed") > 20)
  end)

  it("at an allocation: an error that names memory, nothing left behind, the same numbers afterwards", function()
    local counts = lane("support/memory_faults.lua", "", long and 1 or 3)
    assert.is_true(tonumber(counts:match "(%d+) allocations failed") > 1000)
  end)
end)
