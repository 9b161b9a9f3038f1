-- SPDX-License-Identifier: MIT
-- perilune launch: becomes Open MPI's mpirun, which starts the processes, passes signals on, and ends all when one
-- fails.
-- A line of shell in front of each process gives it the names of torchrun's environment.
local core = require "perilune.core"
local shell = require "perilune.shell"

local FAILED = 1

-- ---- the command line ------------------------------------------------------------------------------------------

local with_value = { n = "count", np = "count", hosts = "text", hostfile = "text", threads = "count", env = "list",
  ["master-addr"] = "text", ["master-port"] = "count", ["nproc-per-node"] = "count" }
local switches = { tag = true, show = true }

-- → flags, words from the script on; or nil, message
local function parse(args)
  local flags, i = { env = {} }, 1
  while i <= #args do
    local name, value = args[i]:match "^%-%-?([%a][%w-]*)=?(.*)$"
    if not name then break end
    if name:find "^n%d+$" then name, value = "n", name:sub(2) end
    local kind = with_value[name]
    if kind then
      if value == "" then
        i = i + 1
        value = args[i] or ""
      end
      if kind == "count" then
        value = math.tointeger(tonumber(value))
        if not value or value < 1 then return nil, ("-%s needs a number >= 1, got '%s'"):format(name, args[i] or "") end
      elseif value == "" then
        return nil, ("--%s needs a value"):format(name)
      end
      if kind == "list" then flags.env[#flags.env + 1] = value else flags[name] = value end
    elseif switches[name] and value == "" then
      flags[name] = true
    else
      return nil, "unknown option " .. args[i]
    end
    i = i + 1
  end
  flags.n = flags.n or flags.np or flags["nproc-per-node"]
  local words = table.move(args, i, #args, 1, {})
  if #words == 0 then return nil, "which script?" end
  if words[2] == "--" then table.remove(words, 2) end
  return flags, words
end

-- ---- what is there -------------------------------------------------------------------------------------------

local function output(command)
  local pipe = io.popen(command .. " 2>/dev/null")
  local text = pipe and pipe:read "a" or ""
  if pipe then pipe:close() end
  return text
end

local function first_line(command) return output(command):match "^[^\n]*" end

-- Processes on each machine, and how many there are in all; hosts: "a:2,b:2".
local function places(flags)
  if not flags.hosts then return flags.n end
  local most, sum = 0, 0
  for host in flags.hosts:gmatch "[^,]+" do
    local slots = math.tointeger(tonumber(host:match ":(%d+)$")) or 1
    most, sum = math.max(most, slots), sum + slots
  end
  flags.n = flags.n or sum
  return math.max(1, most)
end

local function cores() return math.max(1, math.tointeger(tonumber(first_line "nproc")) or core.get_num_threads()) end

-- One process for each GPU, else for each core.
local function default_count()
  local _, gpus = output("nvidia-smi -L"):gsub("GPU %d+:", "")
  return gpus > 0 and gpus or cores()
end

-- ---- mpirun's words ---------------------------------------------------------------------------------------------

-- Names that other machines need, too.
local function carried(flags)
  local names, list = {}, {}
  for name in ("\n" .. output "env"):gmatch "\n([%a_][%w_]*)=" do
    if name:find "^PERILUNE_" or name:find "^LUA_" or name:find "^OMP_" or name:find "^CUDA_" or name:find "^NCCL_" then
      names[name] = true
    end
  end
  for name in pairs(names) do list[#list + 1] = name end
  table.sort(list)
  for _, setting in ipairs(flags.env) do list[#list + 1] = setting end
  return list
end

-- Runs in front of each process. MPICH's names stand behind Open MPI's.
local rank_shell = [[
export RANK="${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" WORLD_SIZE="${OMPI_COMM_WORLD_SIZE:-${PMI_SIZE:-1}}"
export LOCAL_RANK="${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-0}}"
export LOCAL_WORLD_SIZE="${OMPI_COMM_WORLD_LOCAL_SIZE:-${MPI_LOCALNRANKS:-1}}"
"$0" "$@"
s=$?
[ $s -le 128 ] || [ $s = 143 ] || echo "perilune launch: rank $RANK was ended by signal $((s - 128))" >&2
exit $s]]

local function add(words, ...) for _, word in ipairs { ... } do words[#words + 1] = word end end

local function command_line(flags, script)
  local per_machine = places(flags)
  flags.n = flags.n or default_count()
  local words = { "mpirun" }
  if output("mpirun --version"):find "Open" then
    add(words, "--quiet", "--oversubscribe", "--bind-to", "none")
    if first_line "id -u" == "0" then add(words, "--allow-run-as-root") end
    if flags.tag then add(words, "--tag-output") end
    if not flags.hosts and not flags.hostfile and not output "env":find "OMPI_MCA_" then
      add(words, "--mca", "pml", "ob1", "--mca", "btl", "self,vader") -- one machine: memory alone, no network
    end
  end
  add(words, "-n", tostring(flags.n))
  if flags.hosts then add(words, "--host", flags.hosts) end
  if flags.hostfile then add(words, "--hostfile", flags.hostfile) end
  local settings = {
    OMP_NUM_THREADS = flags.threads or os.getenv "OMP_NUM_THREADS" or math.max(1, cores() // (per_machine or flags.n)),
    MASTER_ADDR = flags["master-addr"] or os.getenv "MASTER_ADDR"
      or flags.hosts and flags.hosts:match "^[^,:]+" or "127.0.0.1",
    MASTER_PORT = flags["master-port"] or os.getenv "MASTER_PORT" or 29500,
  }
  for _, name in ipairs { "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT" } do
    add(words, "-x", ("%s=%s"):format(name, settings[name]))
  end
  for _, name in ipairs(carried(flags)) do if not settings[name] then add(words, "-x", name) end end
  add(words, "sh", "-c", rank_shell, core.program() or "perilune", "run", script[1], "--")
  add(words, table.unpack(script, 2))
  return words
end

local function quoted(word) return word:find "^[%w_./:=,+-]+$" and word or shell.quote(word) end

-- → exit status; nil, message for wrong usage
return function(...)
  local flags, words = parse { ... }
  if not flags then return nil, words end
  local file, why = io.open(words[1])
  if not file then
    io.stderr:write("perilune launch: ", why, "\n")
    return FAILED
  end
  file:close()
  if first_line "command -v mpirun" == "" then
    io.stderr:write("perilune launch: mpirun was not found; install Open MPI (Debian: apt-get install openmpi-bin)\n")
    return FAILED
  end
  local line = command_line(flags, words)
  if flags.show then
    for i, word in ipairs(line) do line[i] = quoted(word) end
    print(table.concat(line, " "))
    return 0
  end
  local _, message = core.group.execute(line)
  io.stderr:write("perilune launch: ", message, "\n")
  return FAILED
end
