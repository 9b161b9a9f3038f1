-- SPDX-License-Identifier: MIT
--- The state of a training run as one table that T.save takes, and back.
-- @module perilune.fit.snapshot
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local M = {}

local function has(v, method)
  if type(v) ~= "table" then return false end
  local ok, f = pcall(function() return v[method] end)
  return ok and type(f) == "function"
end

--- T.snapshot{net = net, optimizer = opt, epoch = 3, …} → table
-- state_dict() of whatever has one, everything else as it is, and the state of the random numbers: what T.save takes
-- and T.restore hands back. Tensors are shared, not copied.
--   local net = T.nn.Linear(2, 2)
--   local path = os.tmpname()
--   assert(T.save(path, T.snapshot { net = net, epoch = 3 }))
--   print(T.restore({ net = net }, T.load(path)).epoch)  --> 3
--   os.remove(path)
function M.snapshot(objects)
  if type(objects) ~= "table" then fail("snapshot: a table of objects by name is wanted, got %s", describe(objects)) end
  local out = { rng = T.get_rng_state() }
  for name, v in pairs(objects) do
    if name == "rng" then fail("snapshot: the name 'rng' is taken") end
    out[name] = has(v, "state_dict") and v:state_dict() or v
  end
  return out
end

--- T.restore({net = net, optimizer = opt, …}, state) → the rest of the state
-- Hands every object what T.snapshot took from it, and restores the random numbers.
--   local net = T.nn.Linear(2, 2)
--   local path = os.tmpname()
--   assert(T.save(path, T.snapshot { net = net, epoch = 3 }))
--   print(T.restore({ net = net }, T.load(path)).epoch)  --> 3
--   os.remove(path)
function M.restore(objects, state, why, _) -- T.load gives more than the state
  if state == nil and type(why) == "string" then fail("restore: state is nil: %s", why) end
  if type(objects) ~= "table" then fail("restore: a table of objects by name is wanted, got %s", describe(objects)) end
  if type(state) ~= "table" then
    fail("restore: the state must be a table that T.snapshot made, got %s", describe(state))
  end
  local missing, rest = {}, {}
  for name, v in pairs(objects) do
    if not has(v, "load_state_dict") then fail("restore: '%s' has no load_state_dict", tostring(name)) end
    if type(state[name]) ~= "table" then missing[#missing + 1] = tostring(name) end
  end
  if #missing > 0 then
    table.sort(missing)
    fail("restore: the state has nothing for %s", table.concat(missing, ", "))
  end
  local names = {}
  for name in pairs(objects) do names[#names + 1] = name end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end) -- an optimizer before its scheduler
  for _, name in ipairs(names) do objects[name]:load_state_dict(state[name]) end
  for name, v in pairs(state) do
    if objects[name] == nil and name ~= "rng" then rest[name] = v end
  end
  if state.rng ~= nil then T.set_rng_state(state.rng) end
  return rest
end

M.has = has
return M
