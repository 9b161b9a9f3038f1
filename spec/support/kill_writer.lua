-- SPDX-License-Identifier: MIT
-- A process that spec/lanes/kills_spec.lua ends with kill -9. Arguments: the number of the writer in writers.lua, its
-- path, how many elements, and at which system call it shall end (faults.c), or "loop": it writes both versions.
local which, path, size, at = tonumber(arg[1]), arg[2], tonumber(arg[3]), arg[4]
local write = require "spec.support.writers"(size)[which][3]
if at == "loop" then
  for k = 1, math.huge do assert(write(path, k % 2 + 1)) end
end
os.getenv(("faults KILL %d 1"):format(at))
assert(write(path, 2))
io.open(path .. ".finished", "w"):close()
