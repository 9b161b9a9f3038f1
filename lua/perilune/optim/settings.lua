-- SPDX-License-Identifier: MIT
--- Settings of optimizers: what each may be, and the look that every step takes at those of its groups.
-- @module perilune.optim.settings
local options = require "perilune.options"
local states = require "perilune.optim.states"

local fail, describe = options.fail, options.describe
local type, rawequal = type, rawequal
local M = {}

--- Is v a list of as many numbers as `like`?
function M.is_numbers(v, like)
  if type(v) ~= "table" or type(like) ~= "table" or #v ~= #like then return false end
  for i = 1, #like do if type(v[i]) ~= "number" then return false end end
  return true
end

-- A setting that is another than at the last step, or a list.
local function look(group, s, v, old)
  local class_, key = group._class, s[1]
  local ok = type(v) == "number" and (type(s[2]) == "number" or s[3](1) == true) or s[3](v)
  if ok ~= true and not M.is_numbers(v, s[2]) then
    fail("optim.%s:step: %s of a group must be %s, got %s", class_.name, key, ok, describe(v))
  end
  if key == "state_dtype" and old ~= nil and v ~= old and next(group._state) then
    fail("optim.%s:step: state_dtype of a group was %s when its states were made, and is %s; make a new optimizer, and "
      .. "load_state_dict what fits", class_.name, describe(old), describe(v))
  end
  if type(v) == "boolean" or (v == 0) ~= (old == 0) then group._full = nil end -- other states may be wanted
end

--- Settings are free to be changed between steps, so each step looks at them: what is missing or of another kind would
-- be taken for the op's default, or for true. Numbers may be any, as in PyTorch. group._seen: what was fine at the last
-- step, by place in the class's list.
function M.check_group(group)
  local seen, list = group._seen, group._class.settings
  if not seen then
    seen = {}
    group._seen = seen
  end
  for k = 1, #list do
    local s = list[k]
    local v, old = group[s[1]], seen[k]
    if not rawequal(v, old) or v == nil then
      look(group, s, v, old)
      seen[k] = v
    elseif type(v) == "table" then
      look(group, s, v, old)
    end
  end
end

-- Checks of settings: true, or what would have been right.
local check = {}
function check.nonnegative(v)
  return type(v) == "number" and v >= 0 and v < math.huge or "a finite number >= 0"
end
function check.number(v) return type(v) == "number" and v == v or "a number" end
function check.bool(v) return type(v) == "boolean" or "true or false" end
function check.betas(v)
  if type(v) == "table" and #v == 2 then
    local a, b = v[1], v[2]
    if type(a) == "number" and type(b) == "number" and a >= 0 and a < 1 and b >= 0 and b < 1 then
      return true
    end
  end
  return "two numbers from 0 to below 1"
end
M.check = check

-- Settings that many have, as class() takes them, and the state that most begin with.
local common = { betas = { "betas", { 0.9, 0.999 }, check.betas },
  decoupled = { "decoupled_weight_decay", false, check.bool } }
function common.decay(v) return { "weight_decay", v or 0.0, check.nonnegative } end
function common.eps(v) return { "eps", v, check.nonnegative } end
common.zeros = states.zeros

--- state_dtype: what the states are kept in; false: as the parameter is. Which of "f32", "bf16" and "i8" a class can
-- use is said by its own list.
function common.state_dtype(list, default)
  local names = {}
  for i, name in ipairs(list) do names[i], names[name] = ("%q"):format(name), true end
  local wanted = table.concat(names, ", ") .. " or false"
  return { "state_dtype", default or false, function(v) return v == false or names[v] or wanted end }
end
M.common = common

return M
