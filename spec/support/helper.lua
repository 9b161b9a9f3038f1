-- SPDX-License-Identifier: MIT
-- Loaded by busted before any spec file: loads perilune once, sets the pace of the collector, and fails a file that
-- leaves tensors alive. Spec files therefore make tensors inside `it` or drop them in `after_each`.
-- PERILUNE_TEST_DEVICE=cuda makes their tensors on the device; see spec/support/device.lua.

local busted = require "busted"
local ok, T = pcall(require, "perilune")
if not ok then
  if not tostring(T):find("not found", 1, true) then error(T, 0) end
  return -- layering and style specs run before anything is built
end
-- A device that was named and is not there would leave every spec of devices pending.
local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"
if plugin and plugin ~= "" then assert(io.open(plugin), "PERILUNE_CUDA_PLUGIN: no " .. plugin):close() end
local live = require "spec.support.live"
require "spec.support.device".install(busted, T)

live.pace()

local baseline = {}

busted.subscribe({ "file", "start" }, function()
  T.debug.cache_clear()
  baseline.blocks, baseline.bytes = live.blocks(T)
  return nil, true
end)

busted.subscribe({ "file", "end" }, function(file)
  T.debug.cache_clear() -- backward graphs hold constants
  local blocks, bytes = live.blocks(T)
  if blocks > baseline.blocks then
    error(string.format("%s leaves %d blocks (%d bytes) alive", file.name, blocks - baseline.blocks,
      bytes - baseline.bytes), 0)
  end
  return nil, true
end)
