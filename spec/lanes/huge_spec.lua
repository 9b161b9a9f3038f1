-- SPDX-License-Identifier: MIT
-- Tensors past 2^31 elements: ops of the registry in so many copies of their rows that they pass them, and named
-- calls (spec/support/huge_cases.lua), each in a process of its own. An index or a count of 32 bits shows as a wrong
-- element or as a process that ends. Only with PERILUNE_LANES=long, as each takes gigabytes, where the machine has it.

local support = require "spec.ops.support"
local named = require "spec.support.huge_cases"

local build = os.getenv "PERILUNE_BUILD" or "build"
local root = os.getenv "PERILUNE_ROOT" or "."
local GIB = 11 -- what tensors of a process may take; of pages about nine are touched

local function lacking()
  if os.getenv "PERILUNE_LANES" ~= "long" then return "PERILUNE_LANES is not long" end
  if (os.getenv "PERILUNE_SANITIZE" or "") ~= "" then return "a sanitizer needs a multiple of the memory" end
  local f = io.open "/proc/meminfo"
  if not f then return "no /proc/meminfo says how much memory there is" end
  local free = tonumber(f:read("a"):match "MemAvailable:%s+(%d+)") / (1 << 20)
  f:close()
  if free < GIB + 2 then return ("%.0f GiB of memory are free, %d are needed"):format(free, GIB + 2) end
end

-- Ops that are one kernel with another formula: of these every sixth.
local function names()
  local list, pointwise = {}, 0
  for name in pairs(named) do list[#list + 1] = name end
  table.sort(list)
  for _, info in ipairs(support.public()) do
    if support.cases[info.name] and not info.flags.seeded and not info.flags.mutates and info.class ~= "creation" then
      pointwise = pointwise + (info.class == "pointwise" and 1 or 0)
      if info.class ~= "pointwise" or pointwise % 6 == 1 then list[#list + 1] = "op " .. info.name end
    end
  end
  return list
end

describe("past 2^31 elements", function()
  local why = lacking()
  if why then return it("all ops", function() pending(why) end) end
  local counts = { fine = 0, refused = 0, ["not tried"] = 0 }
  teardown(function()
    io.stderr:write(("%d calls past 2^31 elements: %d fine, %d refused for memory or by name, %d not tried\n"):format(
      counts.fine + counts.refused + counts["not tried"], counts.fine, counts.refused, counts["not tried"]))
  end)

  for _, name in ipairs(names()) do
    it(name, function()
      local command = "cd '%s' && ulimit -v %d && timeout 600 '%s/bin/perilune' run spec/support/huge.lua -- %d '%s'"
      local p = assert(io.popen((command .. " 2>&1"):format(root, (GIB + 4) << 20, build, GIB, name)))
      local text = p:read "a"
      local ended, how, status = p:close()
      if not ended and not (how == "exit" and status == 124) then
        error(("%s ended with %s %d: %s"):format(name, how, status, text))
      end
      local said = ended and assert(text:match "\t([^\t]*)\t%d+\n$", text) or "slow"
      if said:find "^wrong" then error(said) end
      local kind = said:find "^fine" and "fine" or said:find "^refused" and "refused" or "not tried"
      counts[kind] = counts[kind] + 1
      if kind ~= "fine" then io.stderr:write(name, ": ", said, "\n") end
    end)
  end
end)
