-- SPDX-License-Identifier: MIT
-- Hostile calls of ops (spec/support/hostile.lua) with tensors on the emulated device, whose blocks of memory end where
-- pages end: the device's kernels have loads, casts and checks of their own beside the CPU's. PERILUNE_HOSTILE sets how
-- many (a long run is 100000), PERILUNE_HOSTILE_SEED where to begin.
local run = require "spec.support.hostile.process"

local COUNT = tonumber(os.getenv "PERILUNE_HOSTILE") or 6000
local FIRST = tonumber(os.getenv "PERILUNE_HOSTILE_SEED") or 1
-- fused groups are compiled, for seconds each, and have specs of their own
local DEVICE = "PERILUNE_HOSTILE_DEVICE=cuda PERILUNE_EMULATE=guard PERILUNE_CUDA_QUIET=1 PERILUNE_PASSES=-fuse"

describe("hostile calls with tensors on a device", function()
  if not (os.getenv "PERILUNE_CUDA_PLUGIN" or ""):find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device")
    return
  end

  it("that once reached a kernel reach none", function()
    local closing, text = run("found", 1, 1, DEVICE)
    assert(closing, text)
  end)

  it("of every op end in results or errors", function()
    local closing, text = run("ops", FIRST, COUNT, DEVICE)
    assert(closing, text)
    print(closing)
  end)
end)
