-- SPDX-License-Identifier: MIT
--- nn.AdaptiveLogSoftmaxWithLoss: a softmax over many classes, common ones first.
-- @module perilune.nn.adaptive_softmax
local T = require "perilune"
local base = require "perilune.nn.module"
local container = require "perilune.nn.container"
local linear = require "perilune.nn.linear"
local options = require "perilune.options"
local class_name = require("perilune.surface").class_name

local class, fail, describe = base.class, options.fail, options.describe
local is_symbolic = T.core.is_symbolic
local out = {}

-- A softmax over many classes, common ones first, of which most are rarely asked for (Grave et al. 2017): the head
-- has the first cutoffs[1] classes and one entry for each cluster of the others; a cluster has a small matrix of its
-- own. Called as (x [N, in] or [in], target [N] or one number) it gives each target's log probability, and the loss,
-- minus their mean.
--- nn.AdaptiveLogSoftmaxWithLoss(…) → module
-- A softmax over many classes of which most are rare (Grave et al. 2017): common ones first, cutoffs between clusters,
-- whose matrices get smaller by div_value. Called with x and targets; log_prob(x), predict(x).
-- Shapes: x [N, in], target [N] → log probabilities [N], loss
--   local m = nn.AdaptiveLogSoftmaxWithLoss(8, 100, { 10, 50 })
--   local logs, loss = m(T.ones(3, 8), T.tensor({ 1, 20, 100 }, { dtype = "i64" }))
--   print(logs:size(1), loss:dim(), table.concat(m:log_prob(T.ones(3, 8)):shape(), " "))  --> 3	0	3 100
local Adaptive = class "AdaptiveLogSoftmaxWithLoss"
local spec = options.spec("nn.AdaptiveLogSoftmaxWithLoss", {
  { "in_features", "size" }, { "n_classes", "size" }, { "cutoffs", "ints" }, { "div_value", "number", 4.0 },
  { "head_bias", "bool", false }, { "index_base", "int", 1 }, { "dtype", "string", optional = true } })

function Adaptive:init(...)
  local a = options.read(spec, ...)
  local cut = type(a.cutoffs) == "table" and { table.unpack(a.cutoffs) } or { a.cutoffs }
  for i, v in ipairs(cut) do
    if v < 1 or v >= a.n_classes or i > 1 and v <= cut[i - 1] then
      fail("nn.AdaptiveLogSoftmaxWithLoss: cutoffs must rise and be between 1 and n_classes - 1, got %d", v)
    end
  end
  if #cut == 0 then fail("nn.AdaptiveLogSoftmaxWithLoss: cutoffs must not be empty") end
  cut[#cut + 1] = a.n_classes
  self.in_features, self.n_classes, self.cutoffs, self.div_value = a.in_features, a.n_classes, cut, a.div_value
  self.head_bias, self.index_base = a.head_bias, a.index_base
  self.shortlist_size, self.n_clusters = cut[1], #cut - 1
  self.head_size = self.shortlist_size + self.n_clusters
  self.head = linear.Linear(a.in_features, self.head_size, { bias = a.head_bias, dtype = a.dtype })
  local tail = {}
  for i = 1, self.n_clusters do
    local middle = math.floor(a.in_features // a.div_value ^ i)
    local plain = { bias = false, dtype = a.dtype }
    tail[i] = container.Sequential(linear.Linear(a.in_features, middle, plain),
      linear.Linear(middle, cut[i + 1] - cut[i], plain))
  end
  self.tail = container.ModuleList(tail)
end

function Adaptive:reset_parameters()
  self.head:reset_parameters()
  for _, pair in ipairs(self.tail) do
    pair[1]:reset_parameters()
    pair[2]:reset_parameters()
  end
end

local function rows_of(self, x)
  if not T.is_tensor(x) or x:dim() < 1 or x:dim() > 2 or x:size(-1) ~= self.in_features then
    fail("%s: x [N, %d] or [%d] is wanted, got %s", class_name(self), self.in_features, self.in_features, describe(x))
  end
  return x:dim() == 1 and x:unsqueeze(1) or x, x:dim() == 1
end

function Adaptive:forward(x, target)
  local rows, single = rows_of(self, x)
  if not T.is_tensor(target) or target:is_floating_point() or target:dim() ~= rows:dim() - (single and 2 or 1) or
    not single and target:size(1) ~= rows:size(1) then
    fail("%s: the target of %s must be %s, got %s", class_name(self), describe(x), single and "one number" or
      ("integers [%d]"):format(rows:size(1)), describe(target))
  end
  target = (target:long() - self.index_base):reshape(-1)
  -- A trace has no values: which rows are of a cluster is not known, so each cluster is asked about all of them. A
  -- target that is no class is out of the range of the head's entries then.
  local traced = is_symbolic(target) or is_symbolic(rows)
  if not traced and target:numel() > 0 and (target:min():item() < 0 or target:max():item() >= self.n_classes) then
    fail("%s: targets must be in %d..%d", class_name(self), self.index_base, self.n_classes - 1 + self.index_base)
  end
  local head, low = self.head(rows):log_softmax(-1), self.cutoffs[1]
  local entry, parts = target, {}
  for i, pair in ipairs(self.tail) do
    local high = self.cutoffs[i + 1]
    local mine = T.logical_and(target:ge(low), target:lt(high))
    entry = T.where(mine, self.shortlist_size + i - 1, entry)
    local at = not traced and mine:nonzero():squeeze(2)
    if traced then
      local which = T.where(mine, target - low, 0):unsqueeze(2)
      local own = T.gather(pair(rows):log_softmax(-1), which, { dim = 2, index_base = 0 }):squeeze(2)
      parts[i] = T.where(mine, own, 0)
    elseif at:numel() > 0 then
      local logs = pair(rows:index_select(1, at)):log_softmax(-1)
      local which = target:index_select(1, at) - low
      parts[#parts + 1] = { at, T.gather(logs, which:unsqueeze(2), { dim = 2, index_base = 0 }):squeeze(2) }
    end
    low = high
  end
  local logs = T.gather(head, entry:unsqueeze(2), { dim = 2, index_base = 0 }):squeeze(2)
  for _, part in ipairs(parts) do
    logs = traced and logs + part or T.index_add(logs, 1, part[1], part[2])
  end
  local loss = -logs:mean()
  return single and logs:squeeze(1) or logs, loss
end

--- Log probabilities of all classes [N, n_classes].
function Adaptive:log_prob(x)
  local rows, single = rows_of(self, x)
  local head = self.head(rows):log_softmax(-1)
  local parts = { head:narrow(2, 1, self.shortlist_size) }
  for i, pair in ipairs(self.tail) do
    parts[i + 1] = pair(rows):log_softmax(-1) + head:narrow(2, self.shortlist_size + i, 1)
  end
  local logs = T.cat(parts, 2)
  return single and logs:squeeze(1) or logs
end

--- The most probable class of each row [N]. Clusters are looked at only for rows whose head says so.
function Adaptive:predict(x)
  local rows, single = rows_of(self, x)
  local head = self.head(rows)
  local best = head:argmax(-1) -- from 1
  local in_cluster = best:gt(self.shortlist_size)
  local deep = not is_symbolic(rows) and in_cluster:nonzero():squeeze(2)
  if not deep then
    best = T.where(in_cluster, self:log_prob(rows):argmax(-1), best)
  elseif deep:numel() > 0 then
    best = best:index_copy(1, deep, self:log_prob(rows:index_select(1, deep)):argmax(-1))
  end
  best = best + (self.index_base - 1)
  return single and best:squeeze(1) or best
end

function Adaptive:extra_repr()
  return ("%d, %d, cutoffs={%s}"):format(self.in_features, self.n_classes,
    table.concat(self.cutoffs, ", ", 1, self.n_clusters))
end
out.AdaptiveLogSoftmaxWithLoss = Adaptive

return out
