-- SPDX-License-Identifier: MIT
--- Whose states are those of a group? They stand in arrays beside group.params, which scripts may change: another
-- tensor in a place, another list. States and counts then go with their tensors; a new one begins, one that comes back
-- goes on.
-- @module perilune.optim.members
local options = require "perilune.options"

local fail = options.fail
local M = {}
local left = setmetatable({}, { __mode = "k" }) -- per optimizer: what tensors have left that are in no group for now

local function same(group)
  local of, params = group._of, group.params
  if type(params) ~= "table" or #of ~= #params then return false end
  for i = 1, #of do
    if not rawequal(of[i], params[i]) then return false end
  end
  return true
end

--- group, with as many states as it has parameters, is theirs.
function M.of(group) group._of = table.move(group.params, 1, #group.params, 1, {}) end

local function move(self, check_params)
  local who = "optim." .. self.name
  if self.is_training then -- its parameters are at one of two points, which a state that comes or goes does not tell
    fail("%s: the parameters of a group have changed; make a new optimizer for others, or add a group", who)
  end
  local seen, lists, kept = {}, {}, left[self] or setmetatable({}, { __mode = "k" })
  for k, group in ipairs(self.param_groups) do lists[k] = check_params(who, group.params, seen) end
  left[self] = kept
  for _, group in ipairs(self.param_groups) do
    for i, p in ipairs(group._of) do kept[p] = { group._steps[i], group._state[i] } end
  end
  for k, group in ipairs(self.param_groups) do
    group._steps, group._state, group._lists, group._full, group._columns = {}, {}, nil, nil, nil
    for i, p in ipairs(lists[k]) do
      if kept[p] then group._steps[i], group._state[i] = kept[p][1], kept[p][2] end
      kept[p] = nil
    end
    M.of(group)
  end
  rawset(self, "_converted", false) -- states that waited have not seen net:to
end

-- A group has its states in it, so it is one optimizer's, and there once. owner: whose group k is.
local function check_group(self, k, owner)
  local groups = self.param_groups
  local group = groups[k]
  if not owner then fail("optim.%s: param_groups[%d] is not by opt:add_param_group{params = …}", self.name, k) end
  if not rawequal(owner, self) then
    fail("optim.%s: param_groups[%d] is a group of another optimizer, optim.%s, with its states; add_param_group makes "
      .. "one of the same parameters", self.name, k, owner.name)
  end
  for j = 1, k - 1 do
    if rawequal(groups[j], group) then
      fail("optim.%s: param_groups[%d] is param_groups[%d], so its parameters would move twice", self.name, k, j)
    end
  end
  group._at = k
end

--- Before anybody reads a state of self by a parameter's place. check_params: the check of what groups are made with;
-- owners: group → optimizer.
function M.settle(self, check_params, owners)
  local groups, all = self.param_groups, true
  for k = 1, #groups do
    local group = groups[k]
    local owner = owners[group]
    if not rawequal(owner, self) or group._at ~= k then check_group(self, k, owner) end
    all = all and (self.own_state or same(group))
  end
  if not all then move(self, check_params) end
end

--- Are the parameters of a group what they were when M.of(group) was called?
M.same = same

return M
