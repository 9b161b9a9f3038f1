-- SPDX-License-Identifier: MIT
-- Random programs about what a jitted function reads besides its arguments (spec/support/captured.lua), as written and
-- compiled. PERILUNE_FUZZ_CAPTURED sets how many, PERILUNE_FUZZ_SEED where to begin.

local captured = require "spec.support.captured"

local on_device = require "spec.support.device".mode ~= nil
local COUNT = tonumber(os.getenv "PERILUNE_FUZZ_CAPTURED") or (on_device and 30 or 150)
local FIRST = tonumber(os.getenv "PERILUNE_FUZZ_SEED") or 1

describe("programs whose surroundings change between calls of a jitted function", function()
  it("give what they give as written, or are refused", function()
    local found, calls, refused = {}, 0, 0
    for seed = FIRST, FIRST + COUNT - 1 do
      local problem, n, none = captured.run(seed, seed % 3 == 0 and { mirror = "mirror" } or nil)
      calls, refused = calls + n, refused + none
      if problem then found[#found + 1] = ("program %d: %s"):format(seed, problem) end
      if #found > 3 then break end
    end
    assert.equal("", table.concat(found, "\n"))
    assert.is_true(refused < 0.15 * calls, ("%d of %d calls were refused"):format(refused, calls))
  end)
end)
