-- SPDX-License-Identifier: MIT
-- Random programs (spec/support/identities/) with and without what must not change a number: checkpoints, graphs,
-- limits of memory, rules, batches, coroutines and so on around functions. PERILUNE_FUZZ_IDENTITIES sets how many,
-- PERILUNE_FUZZ_SEED where to begin.

local programs = require "spec.support.identities.programs"

local on_device = require "spec.support.device".mode ~= nil
local COUNT = tonumber(os.getenv "PERILUNE_FUZZ_IDENTITIES") or (on_device and 8 or 24)
local FIRST = tonumber(os.getenv "PERILUNE_FUZZ_SEED") or 1

describe("functions that are called through something else", function()
  it("compute what they compute alone, or are refused", function()
    local found, runs, refused = {}, 0, 0
    for seed = FIRST, FIRST + COUNT - 1 do
      local problem, no, n = programs.run(seed, COUNT > 24 and 8 or 2)
      runs, refused = runs + n, refused + no
      if problem then found[#found + 1] = problem end
      if #found > 3 then break end
    end
    assert.equal("", table.concat(found, "\n"))
    assert.is_true(refused < 0.3 * runs, ("%d of %d runs were refused"):format(refused, runs))
  end)
end)
