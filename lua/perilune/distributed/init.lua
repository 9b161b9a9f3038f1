-- SPDX-License-Identifier: MIT
--- Processes that compute together: `perilune launch -n 4 train.lua` starts them, T.distributed.init_process_group()
-- joins them. Without a launcher there is one process, and everything works with it alone.
-- @module perilune.distributed
local core = require "perilune.core"
local options = require "perilune.options"
local collectives = require "perilune.distributed.collectives"
local objects = require "perilune.distributed.objects"
local state = require "perilune.distributed.state"

local fail, describe = options.fail, options.describe
local M = {}
for name, f in pairs(collectives) do M[name] = f end
for name, f in pairs(objects) do M[name] = f end

local TIMEOUT = 1800 -- seconds, as in PyTorch

local function number_of(name) return math.tointeger(tonumber(os.getenv(name) or "")) end

-- How many processes the environment speaks of, where it does.
local function announced()
  for _, name in ipairs { "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS" } do
    local n = number_of(name)
    if n then return n, name end
  end
  return os.getenv "PMIX_RANK" and 2 or 1, "PMIX_RANK"
end

local function check_timeout(who, v)
  if v == nil then return nil end
  if type(v) ~= "number" or v ~= v or v <= 0 then
    fail("%s: timeout must be a number of seconds > 0, got %s", who, describe(v))
  end
  return v
end

local backends = { "mpi", "nccl" }

local function check_backend(name)
  if name == nil then return "mpi" end
  if type(name) ~= "string" then fail("init_process_group: the backend must be a name, got %s", describe(name)) end
  for _, known in ipairs(backends) do if name:lower() == known then return known end end
  fail("init_process_group: %s; tensors of the CPU go through MPI, those of GPUs through NCCL where it is there",
    options.unknown("backend", name, backends))
end

--- T.distributed.init_process_group(["mpi" or "nccl",] {timeout=1800})
-- Joins the processes that `perilune launch -n N script.lua` (or mpirun) started; alone, one process is a group.
-- timeout: seconds after which an operation that others do not take part in raises an error. Groups need Open MPI
-- (Debian: openmpi-bin libopenmpi-dev). Tensors of GPUs go through NCCL where it is there, else through the host's
-- memory; "nccl" insists on it. Each rank has a GPU of its own: T.cuda.set_device, with
-- T.distributed.get_node_local_rank().
--   T.distributed.init_process_group()
--   print(T.distributed.get_rank(), T.distributed.get_world_size())  --> 0	1
--   T.distributed.destroy_process_group()
function M.init_process_group(backend, opts)
  local who = "init_process_group"
  if type(backend) == "table" then backend, opts = nil, backend end
  local o = options.check(who, opts, { "backend", "timeout" })
  if state.world then
    fail("init_process_group: there is a process group already; call destroy_process_group() before another")
  end
  backend = check_backend(backend or o.backend)
  local timeout = check_timeout(who, o.timeout) or TIMEOUT
  local size, where = announced()
  local info = { rank = 0, size = 1, local_rank = 0, local_size = 1, library = "none" }
  if size > 1 then
    local why
    info, why = core.group.open()
    if not info then fail("%s", (why:gsub("^.-:%d+: ", ""))) end
    if info.size == 1 and where == "WORLD_SIZE" then
      fail("init_process_group: WORLD_SIZE is %d, but MPI knows this process alone; start the script with "
        .. "perilune launch -n %d, or mpirun", size, size)
    end
  end
  local ranks = {}
  for i = 1, info.size do ranks[i] = i - 1 end
  state.info, state.backend = info, backend
  state.world = state.make_group(ranks, info.rank, timeout)
  core.rank = info.rank
  if backend == "nccl" then -- at once, so that what is missing is said here
    local there, why = core.device.available()
    if not there then
      state.world, core.rank = nil, nil
      fail("init_process_group: backend \"nccl\" needs a GPU: %s; use \"mpi\"", (why:gsub("^.-:%d+: ", "")))
    end
    local mine = "cuda:" .. core.device.current()
    if info.size > 1 then require("perilune.distributed.gpu").ready(who, state.world, mine, true) end
  end
end

--- T.distributed.destroy_process_group([group])
-- Ends the group of all, or one of new_group, after what is under way in it.
--   T.distributed.init_process_group()
--   print(T.distributed.is_initialized())  --> true
--   T.distributed.destroy_process_group()
function M.destroy_process_group(group)
  local g = state.group("destroy_process_group", group)
  for work in pairs(state.pending) do
    if g == state.world or work.group == g then work:wait() end
  end
  g.gone = true
  if g.nccl then
    core.device.synchronize()
    g.nccl:close()
  end
  if g == state.world then state.world, core.rank = nil, nil end
end

--- T.distributed.new_group(ranks, {timeout=}) → group
-- A group of some processes, for the option group of other functions. Every process makes this call, also those that
-- are not in the list. group:rank() (-1: not in it), group:size().
--   T.distributed.init_process_group()
--   print(T.distributed.new_group({ 0 }))  --> process group {0}
--   T.distributed.destroy_process_group()
function M.new_group(ranks, opts)
  local who = "new_group"
  local world = state.group(who)
  local o = options.check(who, opts, { "timeout" })
  local timeout = check_timeout(who, o.timeout) or world.timeout
  if ranks == nil then ranks = world.ranks end
  if type(ranks) ~= "table" or #ranks == 0 then
    fail("new_group: a list of ranks is wanted, got %s", describe(ranks))
  end
  local list, seen = {}, {}
  for i, r in ipairs(ranks) do
    state.member(who, ("ranks[%d]"):format(i), world, r)
    list[i] = options.integer(r)
    if seen[list[i]] then fail("new_group: rank %d is there twice", list[i]) end
    seen[list[i]] = true
  end
  table.sort(list)
  local raw = world.n > 1 and core.group.new(list, world.timeout) or nil
  return state.make_group(list, world.mine, timeout, raw)
end

-- ---- who is who -------------------------------------------------------------------------------------------

--- T.distributed.is_available() → true; or false, why not
-- Can several processes be joined in this build?
--   print(type(T.distributed.is_available()))  --> boolean
function M.is_available()
  for entry in package.cpath:gmatch "[^;]+" do
    local file = io.open((entry:gsub("%?", "perilune/perilune_mpi")))
    if file then
      file:close()
      return true
    end
  end
  if os.getenv "PERILUNE_MPI_PLUGIN" then return true end
  return false, "this build of perilune has no MPI (Debian: openmpi-bin libopenmpi-dev, then build again)"
end

--- T.distributed.is_mpi_available() → true; or false, why not
-- The same as T.distributed.is_available().
--   print(type(T.distributed.is_mpi_available()))  --> boolean
function M.is_mpi_available() return M.is_available() end

--- T.distributed.is_initialized() → boolean
-- Was init_process_group called?
--   print(T.distributed.is_initialized())  --> false
function M.is_initialized() return state.world ~= nil end

--- T.distributed.get_rank([group]) → 0 …
-- The number of this process, from 0; -1 outside of the group.
--   T.distributed.init_process_group()
--   print(T.distributed.get_rank())  --> 0
--   T.distributed.destroy_process_group()
function M.get_rank(group)
  if group == nil then return state.group("get_rank").mine end
  if getmetatable(group) ~= state.Group then return state.group("get_rank", group).mine end
  return group:rank()
end

--- T.distributed.get_world_size([group]) → count
-- How many processes there are.
--   T.distributed.init_process_group()
--   print(T.distributed.get_world_size())  --> 1
--   T.distributed.destroy_process_group()
function M.get_world_size(group)
  if group ~= nil and getmetatable(group) == state.Group then return group.n end
  return state.group("get_world_size", group).n
end

--- T.distributed.get_backend([group]) → name
-- What the group was made with.
--   T.distributed.init_process_group()
--   print(T.distributed.get_backend())  --> mpi
--   T.distributed.destroy_process_group()
function M.get_backend(group)
  state.group("get_backend", group)
  return state.backend
end

--- T.distributed.get_node_local_rank() → 0 …
-- The number of this process among those of its machine: which GPU is whose. LOCAL_RANK, where it is set.
--   print(T.distributed.get_node_local_rank() >= 0)  --> true
function M.get_node_local_rank()
  return number_of "LOCAL_RANK" or number_of "OMPI_COMM_WORLD_LOCAL_RANK" or (state.info or {}).local_rank or 0
end

--- T.distributed.get_process_group_ranks(group) → list
-- The ranks of the members among all processes.
--   T.distributed.init_process_group()
--   print(#T.distributed.get_process_group_ranks())  --> 1
--   T.distributed.destroy_process_group()
function M.get_process_group_ranks(group)
  local g = group or state.group("get_process_group_ranks")
  if getmetatable(g) ~= state.Group then state.group("get_process_group_ranks", g) end
  return table.move(g.ranks, 1, g.n, 1, {})
end

--- T.distributed.get_global_rank(group, rank in it) → rank among all
-- Where a member of a group is among all processes.
--   T.distributed.init_process_group()
--   print(T.distributed.get_global_rank(T.distributed.new_group({ 0 }), 0))  --> 0
--   T.distributed.destroy_process_group()
function M.get_global_rank(group, rank)
  local g = state.group("get_global_rank", group)
  local r = options.integer(rank)
  if not r or r < 0 or r >= g.n then
    fail("get_global_rank: the group has ranks 0 to %d, got %s", g.n - 1, describe(rank))
  end
  return g.ranks[r + 1]
end

--- T.distributed.get_group_rank(group, rank among all) → rank in it
-- Where a process is in a group that it is a member of.
--   T.distributed.init_process_group()
--   print(T.distributed.get_group_rank(T.distributed.new_group({ 0 }), 0))  --> 0
--   T.distributed.destroy_process_group()
function M.get_group_rank(group, rank)
  local g = state.group("get_group_rank", group)
  return state.member("get_group_rank", "the rank", g, rank)
end

return M
