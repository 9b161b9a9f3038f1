-- SPDX-License-Identifier: MIT
-- Random programs (spec/support/fuzz.lua): nothing a script does ends the process, every error is text with a place,
-- and memory returns. PERILUNE_FUZZ sets how many, PERILUNE_FUZZ_SEED where to begin, PERILUNE_FUZZ_TELL a file that
-- hears of every call before it is made.

local T = require "perilune"
local fuzz = require "spec.support.fuzz"
local live = require "spec.support.live"

local on_device = require "spec.support.device".mode ~= nil -- where the emulation takes its time
local COUNT = tonumber(os.getenv "PERILUNE_FUZZ") or (on_device and 100 or 1000)
local FIRST = tonumber(os.getenv "PERILUNE_FUZZ_SEED") or 1
local BATCH = 25

local function blocks()
  T.debug.cache_clear()
  return (live.blocks(T))
end

local function listener()
  local path = os.getenv "PERILUNE_FUZZ_TELL"
  if not path then return nil end
  return function(line)
    local f = assert(io.open(path, "a"))
    f:write(line, "\n")
    f:close()
  end
end

-- The first of the programs from … to that leaves blocks behind.
local function guilty(from, to)
  for seed = from, to do
    local before = blocks()
    fuzz.run(seed)
    local left = blocks() - before
    if left ~= 0 then
      local _, trace = fuzz.run(seed)
      return ("program %d leaves %d blocks:\n%s"):format(seed, left, fuzz.text(trace))
    end
  end
  return ("programs %d to %d leave blocks together, none alone"):format(from, to)
end

describe("random programs", function()
  it("end in results or in clear errors, and leave nothing", function()
    local tell = listener()
    local found = {}
    fuzz.run(FIRST)
    local before = blocks()
    for from = FIRST, FIRST + COUNT - 1, BATCH do
      local to = math.min(from + BATCH, FIRST + COUNT) - 1
      for seed = from, to do
        if tell then tell("-- program " .. seed) end
        for _, problem in ipairs(fuzz.run(seed, tell)) do
          found[#found + 1] = ("program %d: %s"):format(seed, problem)
        end
      end
      local now = blocks()
      if now ~= before then
        found[#found + 1] = guilty(from, to)
        before = blocks()
      end
      if #found > 40 then break end
    end
    assert.equal("", table.concat(found, "\n"))
  end)
end)
