-- SPDX-License-Identifier: MIT
-- Damaged files of every format (spec/support/readers.lua, mutate.lua). PERILUNE_FUZZ_FILES sets how many for each
-- reader, PERILUNE_FUZZ_SEED where to begin, PERILUNE_FUZZ_ONLY one reader, PERILUNE_FUZZ_KEEP a folder for what is
-- read wrongly. PERILUNE_LANES=long: a million for each.

local mutate = require "spec.support.mutate"
local readers = require "spec.support.readers"

local long = os.getenv "PERILUNE_LANES" == "long"
local sanitized = (os.getenv "PERILUNE_SANITIZE" or "") ~= "" -- where it counts
local count = tonumber(os.getenv "PERILUNE_FUZZ_FILES") or (long and 1000000 or sanitized and 2000 or 1000)
local first = tonumber(os.getenv "PERILUNE_FUZZ_SEED") or 1
local only = os.getenv "PERILUNE_FUZZ_ONLY"

describe("damaged files are refused or read:", function()
  local files, refused, tried = 0, 0, 0
  for _, reader in ipairs(readers) do
    if not only or reader.name == only then
      it(reader.name, function()
        local n = reader.slow and not long and count // 5 or count
        local problems, taken, bad = mutate.fuzz(reader, first, n)
        tried, files, refused = tried + 1, files + n, refused + bad
        if long then io.stderr:write(("%s: %d files, %d taken, %d refused\n"):format(reader.name, n, taken, bad)) end
        assert.equal("", problems)
      end)
    end
  end

  teardown(function() -- counts of what came through
    for _, reader in ipairs(readers) do
      for key in pairs(reader) do reader[key] = nil end -- graphs hold tensors
    end
    io.stderr:write(("%d readers, %d damaged files, %d refused, the others read\n"):format(tried, files, refused))
  end)
end)
