-- SPDX-License-Identifier: MIT
-- Hostile calls in a process and a folder of their own: perilune run hostile/run.lua -- ops|programs|found FIRST COUNT.
-- PERILUNE_HOSTILE_DEVICE: where the tensors of ops are; found: the calls of hostile/found.lua.
-- PERILUNE_HOSTILE_TELL names a file that holds the call before it is made: after a crash, what to look at.

local T = require "perilune"
local hostile = require "spec.support.hostile"

local what, first, count = arg[1], math.tointeger(tonumber(arg[2])), math.tointeger(tonumber(arg[3]))
T.core.set_memory_budget(96 << 20) -- huge sizes fail at once

rawset(os, "exit", function() error "ends the process" end) -- T.cli, of a script whose arguments are wrong

local tell
local path = os.getenv "PERILUNE_HOSTILE_TELL"
if path then
  local f = assert(io.open(path, "w"))
  f:setvbuf "no"
  function tell(line)
    f:seek("set", 0)
    f:write((line:gsub("%c", " ")), (" "):rep(80), "\n")
  end
end

local done, refused, lost = 0, 0, 0
for i, call in ipairs(what == "found" and require "spec.support.hostile.found" or {}) do
  local inputs = {}
  for k, text in ipairs(call[2]) do inputs[k] = hostile.input(text) end
  if tell then tell(i .. " " .. call[1]) end
  if hostile.apply(call[1], inputs, call[3]) then done = done + 1 else refused = refused + 1 end
end
for seed = first, what == "found" and 0 or first + count - 1 do
  if what == "ops" then
    local ok, ran = hostile.op(seed, tell)
    if ok and ran then done = done + 1 else refused = refused + 1 end
  else
    local ok, bad = hostile.program(seed, tell)
    done, refused, lost = done + (ok or 0), refused + (bad or 0), lost + (ok and 0 or 1)
  end
end
local unit = what ~= "programs" and "ops" or ("calls of %d functions"):format(hostile.functions())
io.stderr:write(("\nhostile: %d %s, %d taken, %d refused%s\n"):format(done + refused, unit, done, refused,
  lost > 0 and (", %d programs without memory to begin"):format(lost) or ""))
