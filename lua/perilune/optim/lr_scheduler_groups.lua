-- SPDX-License-Identifier: MIT
--- What schedules have in lists with an entry for each parameter group: starts, limits, functions. An entry goes with
-- its group, wherever that stands in opt.param_groups by now, so that a group which takes the place of another does not
-- get what was the other's. What a script appends to a list is for the groups that came since.
-- @module perilune.optim.lr_scheduler
local options = require "perilune.options"

local fail = options.fail
local M = {}

local LISTS = { "base_lrs", "max_lr", "base_lr", "min_lr", "lr_lambda", "swa_lr" }
local known = setmetatable({}, { __mode = "k" }) -- by schedule: the groups that its lists are of
local left = setmetatable({}, { __mode = "k" }) -- by schedule: what groups had that are not among them for now

local function same(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if not rawequal(a[i], b[i]) then return false end
  end
  return true
end

-- list, of the groups `of`, for those of `groups`.
local function moved(list, of, groups, kept, name)
  local entry, out, extra = {}, {}, #of
  for k, group in ipairs(of) do
    entry[group] = list[k]
    kept[group] = kept[group] or {}
    kept[group][name] = list[k]
  end
  for i, group in ipairs(groups) do
    out[i] = entry[group]
    if out[i] == nil and kept[group] then out[i] = kept[group][name] end
    if out[i] == nil and list[extra + 1] ~= nil then
      extra = extra + 1
      out[i] = list[extra]
    end
  end
  return out
end

--- The lists of a schedule are of the groups that its optimizer has now, in their order.
function M.settle(self)
  local groups, of = self.optimizer.param_groups, known[self]
  if of and same(of, groups) then return end
  if of then
    local kept = left[self] or setmetatable({}, { __mode = "k" })
    left[self] = kept
    for _, name in ipairs(LISTS) do
      local list = rawget(self, name)
      if type(list) == "table" then self[name] = moved(list, of, groups, kept, name) end
    end
  end
  known[self] = table.move(groups, 1, #groups, 1, {})
end

--- Goes over the groups, like ipairs(opt.param_groups), with settled lists.
function M.each(self)
  M.settle(self)
  return ipairs(self.optimizer.param_groups)
end

--- A setting for group i, where it may be a list with one for each.
function M.setting(self, name, i)
  local v = self[name]
  if type(v) ~= "table" then return v end
  if v[i] == nil then
    fail("lr_scheduler.%s: %s has nothing for group %d, which was added since; append an entry to the list",
      self.__name, name, i)
  end
  return v[i]
end

--- The same, a list with as many entries as there are groups, each a number: what constructors ask.
function M.check_numbers(self, who, name)
  local v, n = self[name], #self.optimizer.param_groups
  local list = type(v) == "table" and v or { v }
  if type(v) == "table" and #list ~= n then fail("%s: %s has %d numbers for %d groups", who, name, #list, n) end
  for k = 1, math.max(1, #list) do
    local x = list[k]
    if type(x) ~= "number" or x ~= x then
      fail("%s: %s must be a number or a list of them, got %s", who, name, options.describe(v))
    end
  end
end

return M
