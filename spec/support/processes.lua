-- SPDX-License-Identifier: MIT
-- Runs programs in several processes with perilune launch, as users do.
local term = require "spec.support.terminal"

local M = {}
local q = term.quote

-- Why there are no several processes here, or nil.
function M.missing()
  if not term.there() then return "no perilune command" end
  if not os.execute "command -v mpirun > /dev/null" then return "no mpirun (Debian: openmpi-bin)" end
  local plugin = term.command:gsub("bin/perilune$", "lib/perilune/perilune_mpi.so")
  local f = io.open(plugin)
  if not f then return "built without MPI (Debian: libopenmpi-dev)" end
  f:close()
end

local head = [[
local T = require "perilune"
local D, nn, optim = T.distributed, T.nn, T.optim
local rank, world
local function init(timeout)
  D.init_process_group { timeout = timeout or 60 }
  rank, world = D.get_rank(), D.get_world_size()
end
local function equal(want, got, what)
  if T.core.is_tensor(got) then got = got:totable() end
  if T.core.is_tensor(want) then want = want:totable() end
  local function same(a, b)
    if type(a) ~= "table" or type(b) ~= "table" then return a == b end
    for k, v in pairs(a) do if not same(v, b[k]) then return false end end
    for k in pairs(b) do if a[k] == nil then return false end end
    return true
  end
  if not same(want, got) then
    local show = function(v) return type(v) == "table" and "{" .. T.tensor(v):tostring() .. "}" or tostring(v) end
    error(("%s: %s is wanted, got %s"):format(what or "equal", show(want), show(got)), 2)
  end
end
local function raises(text, f, ...)
  local ok, message = pcall(f, ...)
  if ok then error("no error, wanted: " .. text, 2) end
  if not message:find(text, 1, true) then error(("wanted %q, got: %s"):format(text, message), 2) end
end
]]

-- Runs code on n ranks → output of all (both streams), exit status. env: settings in front; flags: of launch.
function M.run(n, code, env, flags)
  local dir, remove = term.folder()
  term.write(dir .. "/script.lua", head .. code)
  local command = term.command:find "^/" and term.command or "$OLDPWD/" .. term.command
  local text, status = term.shell(("cd %s && %s timeout -k 5 200 %s launch -n %d %s script.lua a b"):format(q(dir),
    env and "env " .. env or "", command, n, flags or ""))
  remove()
  return text, status
end

-- The same where all must go well.
function M.good(n, code, env, flags)
  local text, status = M.run(n, code, env, flags)
  if status ~= 0 then error(("status %s: %s"):format(status, text), 2) end
  return text
end

-- How many lines the head has: error messages count from there.
M.head = select(2, head:gsub("\n", "\n"))

return M
