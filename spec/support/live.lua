-- SPDX-License-Identifier: MIT
-- Counts what is alive in the engine, after the collector has taken everything it can.

local M = {}

-- How Lua's collector runs in specs: at half as much garbage as there is to keep. At a tenth it took up to half of the
-- time of specs with many Lua objects; what a collection at each place would do, PERILUNE_COLLECT shows.
function M.pace() collectgarbage("incremental", 150, 400) end

-- Collects until nothing more goes away (finalizers may free what others hold).
function M.collect()
  local before
  for round = 1, 20 do
    collectgarbage()
    local now = collectgarbage "count"
    if round >= 3 and now == before then break end
    before = now
  end
end

-- Live blocks and bytes after a full collection, on the CPU and on the device.
function M.blocks(T)
  local blocks, bytes
  repeat -- a finalizer may free what another one waits for, and so on
    local before = blocks
    M.collect()
    local m, d = T.memory(), T.core.device.memory()
    blocks, bytes = m.blocks + d.blocks, m.live + d.live
  until blocks == before
  return blocks, bytes
end

-- Runs f(...) and returns how many blocks and bytes it left behind.
function M.left_by(T, f, ...)
  local blocks, bytes = M.blocks(T)
  f(...)
  local blocks_after, bytes_after = M.blocks(T)
  return blocks_after - blocks, bytes_after - bytes
end

-- Raises if f(...) leaves a block behind. The first run fills caches (backward graphs, plans), the second
-- counts.
function M.flat(T, f, ...)
  f(...)
  local blocks, bytes = M.left_by(T, f, ...)
  if blocks ~= 0 then error(string.format("%d blocks, %d bytes left behind", blocks, bytes), 2) end
end

return M
