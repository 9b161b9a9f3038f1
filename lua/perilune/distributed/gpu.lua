-- SPDX-License-Identifier: MIT
--- Groups whose tensors are on GPUs: NCCL carries them from GPU to GPU, where all processes have it. Its communicator
-- is made at the group's first operation on such a tensor, with an id that goes round through MPI.
-- @module perilune.distributed.gpu
local T = require "perilune"
local core = require "perilune.core"
local options = require "perilune.options"
local state = require "perilune.distributed.state"

local M = {}

local function gpu_of(device) return math.tointeger(tonumber(device:match ":(%d+)$")) or 0 end

-- All ranks of g together: do all have NCCL? Then make the communicator.
local function connect(who, g, device)
  local version, why = core.group.device_library()
  local all = T.tensor({ version and 1 or 0 }, { dtype = "i64", device = "cpu" })
  state.start(who, "all_reduce", g, all, all, { op = "min" }, false)
  g.nccl = false
  if all:item() == 0 then
    M.why = why or "NCCL is missing in another process"
    return
  end
  local id = g.mine == 0 and core.group.device_id() or ("\0"):rep(128)
  local bytes = T.from_string(id, "u8"):to "cpu"
  state.start(who, "broadcast", g, nil, bytes, { peer = 0 }, false)
  g.nccl = core.group.device_new(bytes:to_string(), gpu_of(device), g.mine, g.n)
end

--- Can g's ranks exchange tensors of `device` directly? together: all ranks of g make this call now (no message
-- between two).
function M.ready(who, g, device, together)
  if g.nccl == nil and together then
    connect(who, g, device)
    if not g.nccl and state.backend == "nccl" then options.fail("%s: backend \"nccl\": %s", who, M.why) end
  end
  return g.nccl and true or false
end

--- Does NCCL do this operation?
function M.takes(kind, op, dtype) return core.group.device_takes(kind, op, dtype) end

function M.start(who, kind, g, src, dst, call)
  core.group.device_start(who, kind, g.nccl, src, dst, call, g.n)
end

return M
