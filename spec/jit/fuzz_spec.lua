-- SPDX-License-Identifier: MIT
-- Random programs (spec/support/fuzz_jit.lua) as written and compiled: the same bits, the same state of the generator,
-- the same errors, and memory returns. PERILUNE_FUZZ_JIT sets how many, PERILUNE_FUZZ_SEED where to begin.

local T = require "perilune"
local fuzz = require "spec.support.fuzz_jit"
local live = require "spec.support.live"

local on_device = require "spec.support.device".mode ~= nil -- where the emulation takes its time
local COUNT = tonumber(os.getenv "PERILUNE_FUZZ_JIT") or (on_device and 40 or 400)
local FIRST = tonumber(os.getenv "PERILUNE_FUZZ_SEED") or 1

local function run(first, count, options)
  local found = {}
  for seed = first, first + count - 1 do
    local ok, problem = pcall(fuzz.run, seed, options)
    if not ok or problem then found[#found + 1] = ok and problem or ("program %d: %s"):format(seed, problem) end
    if #found > 10 then break end
  end
  return table.concat(found, "\n")
end

local function blocks()
  T.debug.cache_clear()
  return (live.blocks(T))
end

describe("random programs compiled", function()
  it("give the bits that they give as written", function()
    assert.equal("", run(FIRST, COUNT))
  end)

  it("with less memory, too", function()
    assert.equal("", run(FIRST + 100000, COUNT // 4, { mirror = "mirror" }))
    assert.equal("", run(FIRST + 200000, COUNT // 4, { mirror = "mincut", heavy = true }))
  end)

  it("leave nothing behind", function()
    run(FIRST, 20)
    local before = blocks()
    run(FIRST, 20)
    assert.equal(before, blocks())
  end)
end)
