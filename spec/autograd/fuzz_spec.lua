-- SPDX-License-Identifier: MIT
-- Random differentiable programs (spec/support/fuzz_grad.lua): gradients of first and second order agree however they
-- are taken, and memory returns. PERILUNE_FUZZ_GRAD sets how many, PERILUNE_FUZZ_SEED where to begin.

local T = require "perilune"
local fuzz = require "spec.support.fuzz_grad"
local live = require "spec.support.live"

local COUNT = tonumber(os.getenv "PERILUNE_FUZZ_GRAD") or 300
local FIRST = tonumber(os.getenv "PERILUNE_FUZZ_SEED") or 1
local BATCH = 25

local function blocks()
  T.debug.cache_clear()
  return (live.blocks(T))
end

local function guilty(from, to)
  for seed = from, to do
    local before = blocks()
    fuzz.run(seed)
    local left = blocks() - before
    if left ~= 0 then return ("program %d leaves %d blocks"):format(seed, left) end
  end
  return ("programs %d to %d leave blocks together, none alone"):format(from, to)
end

describe("random differentiable programs", function()
  it("have the same gradients in every way, and leave nothing", function()
    local found = {}
    fuzz.run(FIRST)
    local before = blocks()
    for from = FIRST, FIRST + COUNT - 1, BATCH do
      local to = math.min(from + BATCH, FIRST + COUNT) - 1
      for seed = from, to do
        for _, problem in ipairs(fuzz.run(seed)) do found[#found + 1] = ("program %d: %s"):format(seed, problem) end
      end
      if blocks() ~= before then
        found[#found + 1] = guilty(from, to)
        before = blocks()
      end
      if #found > 20 then break end
    end
    assert.equal("", table.concat(found, "\n"))
  end)
end)
