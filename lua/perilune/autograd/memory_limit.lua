-- SPDX-License-Identifier: MIT
-- T.memory_limit: eager programs in less memory. The engine's side is engine/remat/.
local options = require "perilune.options"

return function(T, core)
  local fail, describe = options.fail, options.describe
  local units = { [""] = 1, B = 1, KB = 1e3, MB = 1e6, GB = 1e9, TB = 1e12, K = 1 << 10, M = 1 << 20, G = 1 << 30,
    KIB = 1 << 10, MIB = 1 << 20, GIB = 1 << 30, TIB = 1 << 40 }

  local function bytes_of(v)
    local n = v
    if type(v) == "string" then
      local number, unit = v:match "^%s*(%d+%.?%d*)%s*(%a*)%s*$"
      number, unit = tonumber(number), unit and units[unit:upper()]
      n = number and unit and math.floor(number * unit)
    end
    n = type(n) == "number" and math.tointeger(n)
    if not n or n <= 0 then
      fail("memory_limit: bytes, as a whole number or as \"2 GB\", \"512 MiB\", expected, got %s",
        type(v) == "string" and ("%q"):format(v) or describe(v))
    end
    return n
  end

  -- What was before comes back at the end of the block.
  local scope = { __close = core.held(function(self)
    if not self.open then return end
    self.open = nil
    core.memory_limit(self.was)
  end) }
  local begin = core.held(function(limit)
    local was = core.memory_limit()
    core.memory_limit(limit)
    return setmetatable({ was = was, open = true }, scope)
  end)

  --- T.memory_limit("2 GB" or bytes or nil) → scope; T.memory_limit() → bytes or nil
  -- While it holds, eager programs stay below so many bytes of the CPU's memory: results that can be computed again
  -- give their memory up, and are computed again when they are read, to the same bits. Units: kB, MB, GB, KiB, MiB,
  -- GiB. nil: no limit; everything is computed. Where too much cannot be computed again: an out-of-memory error that
  -- names the op. The scope restores what was. Of this thread; see docs/design/rematerialization.md.
  --   do
  --     local _ <close> = T.memory_limit "1 GB"
  --     print(T.memory_limit())  --> 1000000000
  --     local x = T.ones(1000):requires_grad_()
  --     local y = x
  --     for _ = 1, 10 do y = (y * 1.1):sin() end
  --     y:sum():backward()
  --   end
  --   print(T.memory_limit())    --> nil
  T.memory_limit = function(...)
    if select("#", ...) == 0 then return (core.memory_limit()) end
    if select("#", ...) > 1 then require("perilune.surface").too_many("memory_limit", { "limit" }, ...) end
    local limit = ...
    if limit ~= nil then limit = bytes_of(limit) end
    return begin(limit)
  end
  T.debug.rematerialization = core.rematerialization
end
