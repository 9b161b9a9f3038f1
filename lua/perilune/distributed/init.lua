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

--- Joins the processes that one command started: init_process_group([backend,] {timeout=1800}).
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

--- Ends the group (or one made by new_group); waits for what is under way in it.
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

--- A group of some processes: new_group({0, 2}, {timeout=}). Every process makes this call, those that are not in the
-- group, too. Without ranks: all.
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

--- Can several processes be joined here? → true; or false and why not.
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
function M.is_mpi_available() return M.is_available() end
function M.is_initialized() return state.world ~= nil end

--- The rank of this process (in the group; -1: it is no member), the number of processes.
function M.get_rank(group)
  if group == nil then return state.group("get_rank").mine end
  if getmetatable(group) ~= state.Group then return state.group("get_rank", group).mine end
  return group:rank()
end
function M.get_world_size(group)
  if group ~= nil and getmetatable(group) == state.Group then return group.n end
  return state.group("get_world_size", group).n
end
function M.get_backend(group)
  state.group("get_backend", group)
  return state.backend
end

--- The rank among the processes of this machine: which GPU is whose. From LOCAL_RANK, or MPI; 0 for one process.
function M.get_node_local_rank()
  return number_of "LOCAL_RANK" or number_of "OMPI_COMM_WORLD_LOCAL_RANK" or (state.info or {}).local_rank or 0
end

--- Ranks of a group's members among all processes, and the other way.
function M.get_process_group_ranks(group)
  local g = group or state.group("get_process_group_ranks")
  if getmetatable(g) ~= state.Group then state.group("get_process_group_ranks", g) end
  return table.move(g.ranks, 1, g.n, 1, {})
end
function M.get_global_rank(group, rank)
  local g = state.group("get_global_rank", group)
  local r = options.integer(rank)
  if not r or r < 0 or r >= g.n then
    fail("get_global_rank: the group has ranks 0 to %d, got %s", g.n - 1, describe(rank))
  end
  return g.ranks[r + 1]
end
function M.get_group_rank(group, rank)
  local g = state.group("get_group_rank", group)
  return state.member("get_group_rank", "the rank", g, rank)
end

return M
