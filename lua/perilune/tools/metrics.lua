-- SPDX-License-Identifier: MIT
--- Measures of how well a model does: `T.metrics.accuracy(logits, target)` is a number at once;
-- `T.metrics.accuracy{…}`, without tensors, is a meter that batches are added to: `m:update(logits, target)`,
-- `m:value()`, `m:reset()`. Class predictions are logits or probabilities with the classes in dimension 2 (`dim=` says
-- otherwise), or the numbers of classes, which start at 1.
-- @module perilune.tools.metrics
local T = require "perilune"
local classes = require "perilune.classes"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local metrics = {}

-- ---- what all share ------------------------------------------------------------------------------------------

local function check(who, pred, target)
  for i, x in ipairs { pred or false, target or false } do
    if not T.is_tensor(x) then
      fail("%s: argument #%d must be a tensor, got %s", who, i, describe(x or nil))
    end
  end
end

local function same_shape(a, b)
  local p, q = a:shape(), b:shape()
  if #p ~= #q then return false end
  for i = 1, #p do if p[i] ~= q[i] then return false end end
  return true
end

-- Predicted classes as integers of target's shape, and the number of classes where logits tell it.
local function classes_of(self, pred, target)
  local who, d = self.who, self.dim or math.min(2, pred:dim())
  if pred:dim() == target:dim() + 1 and pred:dim() > 0 then
    local best = pred:argmax(d)
    if same_shape(best, target) then return best, pred:size(d) end
  elseif same_shape(pred, target) then
    if pred:is_floating_point() then
      fail("%s: floating predictions of target's shape, %s; give class numbers, or logits with a dimension more", who,
        pred:describe())
    end
    return pred
  end
  fail("%s: predictions %s do not fit targets %s; logits have one dimension more, the classes in dimension %d", who,
    pred:describe(), target:describe(), d)
end

local function in_range(self, x, c, what)
  if x:numel() == 0 then return end
  local lo, hi = x:min():item(), x:max():item()
  if lo >= 1 and hi <= c then return end
  local hint = hi > c and not self.classes and "; say how many there are: classes =" or ""
  if lo == 0 then hint = "; classes count from 1: add 1" end
  fail("%s: %s class %d is not in 1 … %d%s", self.who, what, lo < 1 and lo or hi, c, hint)
end

-- Booleans of yes and no: any other number is a class of something else, and would be a yes without a word.
local function yes_of(who, x, what)
  if x:dtype() == "bool" then return x end
  if not x:eq(0):logical_or(x:eq(1)):all():item() then
    fail("%s: %s %s must be booleans, or 0 and 1; of classes 1 and 2 give x:eq(2)", who, what, x:describe())
  end
  return x:ne(0)
end

-- Which scores mean yes. One half is the middle of probabilities, and of nothing else.
local function above(self, scores)
  if self.threshold == nil and scores:lt(0):logical_or(scores:gt(1)):any():item() then
    fail("%s: scores %s are no probabilities from 0 to 1; of logits give threshold = 0", self.who, scores:brief())
  end
  return scores:gt(self.threshold or 0.5)
end

-- Flat predictions and targets without those to be ignored, which are known before anything is made of the targets.
local function kept(self, pred, target)
  pred, target = pred:reshape(-1), target:reshape(-1)
  if self.ignore_index == nil then return pred, target end
  local keep = target:ne(self.ignore_index)
  return pred[keep], target[keep]
end

-- NaN is no class, though argmax takes it for the largest and a threshold for no. dim: that of the classes.
local function no_nan(self, pred, target, dim)
  if not pred:is_floating_point() then return end
  local nan = (dim and pred:size(dim) > 0 and pred:amax(dim) or pred):isnan() -- the largest is NaN where one is
  if nan:any():item() and kept(self, nan, target):any():item() then
    fail("%s: NaN among the predictions %s is no class", self.who, pred:describe())
  end
end

-- Flat predicted and true classes without those to be ignored, and how many classes logits tell of. Of a question of
-- yes and no they are booleans, and the third is "yes".
local function flat_classes(self, pred, target)
  check(self.who, pred, target)
  if same_shape(pred, target) and (pred:is_floating_point() or pred:dtype() == "bool" or target:dtype() == "bool") then
    no_nan(self, pred, target)
    pred, target = kept(self, pred, target)
    pred = pred:is_floating_point() and above(self, pred) or yes_of(self.who, pred, "predictions")
    return pred, yes_of(self.who, target, "targets"), "yes"
  end
  local logits, count = pred
  pred, count = classes_of(self, pred, target)
  if count then no_nan(self, logits, target, self.dim or math.min(2, logits:dim())) end
  if count and target:dtype() == "bool" then
    fail("%s: boolean targets for logits of %d classes; of false, true make 1, 2: target:long() + 1", self.who, count)
  end
  pred, target = kept(self, pred, target)
  if count then in_range(self, target, count, "target") end
  return pred, target, count
end

-- Makes the public function of a class of meters: with tensors the value at once, else a meter.
--- T.metrics.f1(pred, target, {average=, classes=, dim=, ignore_index=, threshold=0.5}) → number; or a meter
-- 2 PR / (P + R) of precision P and recall R; options as for T.metrics.precision.
--   print(T.metrics.f1(T.tensor { 0.9, 0.2 }, T.tensor { true, false }))  --> 1.0

--- T.metrics.mae(pred, target) → number; T.metrics.mae() → meter
-- Mean absolute error.
--   print(T.metrics.mae(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 1.0

--- T.metrics.mse(pred, target) → number; T.metrics.mse() → meter
-- Mean squared error.
--   print(T.metrics.mse(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 2.0

--- T.metrics.precision(pred, target, {average=, classes=, dim=, ignore_index=, threshold=0.5}) → number; or a meter
-- average: "macro", "micro", "weighted", "none", "binary". Right among predicted. Of two classes given as scores or
-- booleans: of yes alone ("binary"). "macro" averages over the classes that occur, "none" gives a tensor. 0 where
-- nothing was predicted.
--   local yes = T.tensor { true, true, false, true }
--   print(T.metrics.precision(T.tensor { 0.9, 0.2, 0.7, 0.8 }, yes) * 3)  --> 2.0

--- T.metrics.recall(pred, target, {average=, classes=, dim=, ignore_index=, threshold=0.5}) → number; or a meter
-- Right among true; options as for T.metrics.precision.
--   local yes = T.tensor { true, true, false, true }
--   print(T.metrics.recall(T.tensor { 0.9, 0.2, 0.7, 0.1 }, yes) * 3)  --> 1.0
local kinds = { dim = "int", ignore_index = "int", threshold = "number" }
local function define(name, names, class)
  local who = "metrics." .. name
  class.__index, class.__name = class, who
  classes.class(class, "meter")
  function class.__tostring(self)
    local v = self:value()
    return math.type(v) == "float" and ("%s %.4f"):format(name, v) or ("%s %s"):format(name, tostring(v))
  end
  class.__call = class.update
  local function make(opts)
    opts = options.check(who, opts, names)
    local self = { who = who, name = name }
    for key, v in pairs(opts) do self[key] = kinds[key] and options.kind(who, key, kinds[key], v) or v end
    setmetatable(self, class)
    if class.init then self:init() end
    self:reset()
    return self
  end
  metrics[name] = function(first, ...)
    if T.is_tensor(first) or select("#", ...) > 0 then
      if select("#", ...) > 2 then
        require("perilune.surface").too_many(who, { "prediction", "target", "options" }, first, ...)
      end
      local target, opts = ...
      local m = make(opts)
      m:update(first, target)
      return m:value()
    end
    if type(first) == "number" then
      fail("%s: a prediction tensor, or a table of options, is wanted; got %s", who, describe(first))
    end
    return make(first)
  end
end

local function check_count(self, key, v, least)
  if math.type(v) ~= "integer" or v < least then
    fail("%s: %s must be an integer of at least %d, got %s", self.who, key, least, describe(v))
  end
end

local function mean_of(self) return self.n > 0 and self.total / self.n or 0 / 0 end

-- ---- shares of right answers -----------------------------------------------------------------------------------

local Accuracy = { value = mean_of }

function Accuracy:reset() self.total, self.n = 0, 0 end

--- Adds a batch. Floating predictions of target's shape are two classes, cut at `threshold` (0.5); targets are
-- then booleans, or 0 and 1.
function Accuracy:update(pred, target)
  local _ <close> = T.no_grad()
  pred, target = flat_classes(self, pred, target)
  self.total = self.total + pred:eq(target):sum():item()
  self.n = self.n + target:numel()
  return self
end

--- T.metrics.accuracy(pred, target, {dim=2, ignore_index=, threshold=0.5}) → number; or a meter
-- The share of right classes. pred: logits or probabilities with the classes in dimension `dim`, class numbers, or
-- probabilities of yes of target's shape; threshold = 0 for their logits. Without tensors, T.metrics.accuracy{…} is a
-- meter: m:update(pred, target), m:value(), m:reset(). That holds for all metrics.
--   local logits = T.tensor { { 2, 1 }, { 0, 3 }, { 5, 4 } }
--   print(T.metrics.accuracy(logits, T.tensor({ 1, 2, 2 }, { dtype = "i64" })) * 3)  --> 2.0
--   local m = T.metrics.accuracy()
--   m:update(logits, T.tensor({ 1, 2, 1 }, { dtype = "i64" }))
--   print(m:value(), m)  --> 1.0	accuracy 1.0000
define("accuracy", { "dim", "ignore_index", "threshold" }, Accuracy)

local TopK = { value = mean_of, reset = Accuracy.reset }

function TopK:init()
  self.k = self.k or 5
  check_count(self, "k", self.k, 1)
end

function TopK:update(pred, target)
  check(self.who, pred, target)
  local _ <close> = T.no_grad()
  local d = self.dim or math.min(2, pred:dim())
  if pred:dim() ~= target:dim() + 1 then
    fail("%s: predictions %s do not fit targets %s; logits have one dimension more", self.who, pred:describe(),
      target:describe())
  end
  if pred:size(d) < self.k then
    fail("%s: k = %d, but %s has %d classes in dimension %d", self.who, self.k, pred:describe(), pred:size(d), d)
  end
  local _, best = pred:topk(self.k, d)
  if not same_shape(best:select(d, 1), target) then
    fail("%s: predictions %s do not fit targets %s", self.who, pred:describe(), target:describe())
  end
  no_nan(self, pred, target, d)
  local hits = best:eq(target:unsqueeze(d)):any(d)
  hits, target = kept(self, hits, target)
  in_range(self, target, pred:size(d), "target")
  self.total = self.total + hits:sum():item()
  self.n = self.n + target:numel()
  return self
end

--- T.metrics.top_k(logits, target, {k=5, dim=2, ignore_index=}) → number; or a meter
-- The share of samples whose class is among the k highest logits.
--   local logits = T.tensor { { 2, 1, 0 }, { 0, 3, 1 } }
--   print(T.metrics.top_k(logits, T.tensor({ 2, 1 }, { dtype = "i64" }), { k = 2 }))  --> 0.5
define("top_k", { "k", "dim", "ignore_index" }, TopK)

-- ---- counts of pairs of classes ----------------------------------------------------------------------------------

local Confusion = {}

function Confusion:init()
  if self.classes ~= nil then check_count(self, "classes", self.classes, 2) end
end

function Confusion:reset() self.counts, self.binary = nil, nil end

-- Pairs of classes 1 … c; a binary question is the classes 1 (no) and 2 (yes).
local function pairs_of(self, pred, target)
  local count
  pred, target, count = flat_classes(self, pred, target)
  pred, target = pred:long(), target:long()
  if count == "yes" then
    pred, target, count, self.binary = pred + 1, target + 1, 2, true
  end
  local c = self.classes or count
  if not c and self.counts then c = self.counts:size(1) end
  if not c and target:numel() > 0 then c = math.max(pred:max():item(), target:max():item()) end
  return pred, target, c
end

function Confusion:update(pred, target)
  local _ <close> = T.no_grad()
  local c
  pred, target, c = pairs_of(self, pred, target)
  if not c then return self end -- an empty batch says nothing of how many there are
  in_range(self, target, c, "target")
  in_range(self, pred, c, "predicted")
  if not self.counts then self.counts = T.zeros({ c, c }, { dtype = "i64", device = pred:device() }) end
  if self.counts:size(1) ~= c then
    fail("%s: %d classes now, %d before", self.who, c, self.counts:size(1))
  end
  local flat = (target - 1) * c + pred
  self.counts:view(-1):scatter_add_(1, flat, T.ones_like(flat))
  return self
end

--- i64[C, C]: rows are the true classes, columns the predicted ones.
function Confusion:value()
  return self.counts and self.counts:clone() or T.zeros({ self.classes or 0, self.classes or 0 }, { dtype = "i64" })
end

--- A heat map of it; see T.plot.matrix.
function Confusion:plot(opts)
  local o = { title = "confusion matrix", xlabel = "predicted", ylabel = "true" }
  for key, v in pairs(opts or {}) do o[key] = v end
  return T.plot.matrix(self:value(), o)
end

--- T.metrics.confusion_matrix(pred, target, {classes=, dim=2, ignore_index=, threshold=0.5}) → i64[C,C]; or a meter
-- How often a class (row) was taken for another (column). The meter's :plot{names=} is a heat map.
--   local pred = T.tensor({ 1, 2, 2 }, { dtype = "i64" })
--   print(T.metrics.confusion_matrix(pred, T.tensor({ 1, 1, 2 }, { dtype = "i64" })))
--   --> {{1, 1},
--   -->  {0, 1}}  -- i64[2,2] cpu
define("confusion_matrix", { "classes", "dim", "ignore_index", "threshold" }, Confusion)

-- Per class: right, predicted, true.
local function tallies(counts)
  local right = counts:diagonal():double():totable()
  return right, counts:sum(1):double():totable(), counts:sum(2):double():totable()
end

local function ratio(a, b) return b > 0 and a / b or 0.0 end

-- Averages of a score per class: score(right, predicted, true). Nothing predicted or nothing true gives 0; classes
-- that occur neither way do not count.
local averages = { "macro", "micro", "weighted", "none", "binary" }

local function averaged(name, score)
  local C = { reset = Confusion.reset, update = Confusion.update }
  function C:init()
    Confusion.init(self)
    if self.average == nil then return end
    for _, word in ipairs(averages) do if word == self.average then return end end
    fail("%s: %s", self.who, options.unknown("average", self.average, averages))
  end
  function C:value()
    if not self.counts then return 0 / 0 end
    local right, predicted, truth = tallies(self.counts)
    local average = self.average or (self.binary and "binary" or "macro")
    if average == "binary" then
      if #right ~= 2 then fail('%s: average = "binary" needs two classes, there are %d', self.who, #right) end
      return score(right[2], predicted[2], truth[2])
    end
    local sum, weight, r, p, t, each = 0, 0, 0, 0, 0, {}
    for i = 1, #right do
      r, p, t = r + right[i], p + predicted[i], t + truth[i]
      each[i] = score(right[i], predicted[i], truth[i])
      local w = average == "weighted" and truth[i] or (predicted[i] + truth[i] > 0 and 1 or 0)
      sum, weight = sum + w * each[i], weight + w
    end
    if average == "none" then return T.tensor(each) end
    if average == "micro" then return score(r, p, t) end
    return ratio(sum, weight)
  end
  define(name, { "average", "classes", "dim", "ignore_index", "threshold" }, C)
end

averaged("precision", function(right, predicted) return ratio(right, predicted) end)
averaged("recall", function(right, _, truth) return ratio(right, truth) end)
averaged("f1", function(right, predicted, truth) return ratio(2 * right, predicted + truth) end)

-- ---- averages ----------------------------------------------------------------------------------------------------

local Mean = { value = mean_of, reset = Accuracy.reset }

--- Adds a number that stands for `n` samples (1), or a tensor's elements.
function Mean:update(v, n)
  if T.is_tensor(v) then
    if n ~= nil and v:numel() ~= 1 then
      fail("%s: a weight is for one number, got %s; the elements of a tensor count one each", self.who, v:describe())
    end
    if n == nil then
      self.total = self.total + v:detach():double():sum():item()
      self.n = self.n + v:numel()
      return self
    end
    v = v:item()
  end
  if type(v) ~= "number" then fail("%s: a number or a tensor is wanted, got %s", self.who, describe(v)) end
  if n ~= nil and (type(n) ~= "number" or n < 0) then
    fail("%s: the weight must be a number >= 0, got %s", self.who, describe(n))
  end
  self.total, self.n = self.total + v * (n or 1), self.n + (n or 1)
  return self
end

--- T.metrics.mean(x) → number; T.metrics.mean() → meter
-- m:update(value, n): a mean that stands for n samples; m:update(tensor): all its elements.
--   local m = T.metrics.mean()
--   m:update(2, 10)
--   m:update(5, 20)
--   print(m:value())  --> 4.0
define("mean", {}, Mean)

local Perplexity = { reset = Accuracy.reset }
local IGNORED = -100 -- what cross_entropy leaves out by itself

--- exp of the mean cross entropy of all targets. Losses of halves are taken in f32, their sum in f64.
function Perplexity:update(logits, target)
  check(self.who, logits, target)
  local _ <close> = T.no_grad()
  local ignored = self.ignore_index or IGNORED
  local wide = (logits:dtype() == "f16" or logits:dtype() == "bf16") and logits:float() or logits
  local loss = T.nn.F.cross_entropy(wide, target, { reduction = "none", ignore_index = ignored })
  self.total = self.total + loss:double():sum():item()
  self.n = self.n + target:ne(ignored):sum():item()
  return self
end
function Perplexity:value() return math.exp(mean_of(self)) end

--- T.metrics.perplexity(logits, target, {ignore_index=}) → number; or a meter
-- exp of the mean cross entropy; logits [N,C,…], target [N,…], of which ignore_index (-100) is left out.
--   print(T.metrics.perplexity(T.zeros(2, 8), T.tensor({ 1, 8 }, { dtype = "i64" })) - 8 < 1e-5)  --> true
define("perplexity", { "ignore_index" }, Perplexity)

local function error_of(name, f)
  local C = { value = mean_of, reset = Accuracy.reset }
  function C:update(pred, target)
    check(self.who, pred, target)
    if not same_shape(pred, target) then
      fail("%s: predictions %s and targets %s differ in shape", self.who, pred:describe(), target:describe())
    end
    local _ <close> = T.no_grad()
    self.total = self.total + f(pred:double() - target:double()):sum():item()
    self.n = self.n + target:numel()
    return self
  end
  define(name, {}, C)
end
error_of("mse", function(d) return d * d end)
error_of("mae", function(d) return d:abs() end)

local R2 = {}
function R2:reset() self.n, self.mean, self.squares, self.rest, self.origin = 0, 0, 0, 0, nil end

--- 1 - sum (y - p)² / sum (y - mean y)². Batches are joined by their means and squared distances from them (Chan,
-- Golub, LeVeque 1979): a difference of sums of squares has no digits left where the mean is large.
function R2:update(pred, target)
  check(self.who, pred, target)
  if not same_shape(pred, target) then
    fail("%s: predictions %s and targets %s differ in shape", self.who, pred:describe(), target:describe())
  end
  local n = target:numel()
  if n == 0 then return self end
  local _ <close> = T.no_grad()
  local y = target:double()
  local d = pred:double() - y
  self.rest = self.rest + (d * d):sum():item()
  self.origin = self.origin or y:reshape(-1):get(1) -- equal targets have a mean of exactly 0 from here
  y = y - self.origin
  local mean = y:mean():item()
  local step, all = mean - self.mean, self.n + n
  self.squares = self.squares + (y - mean):square():sum():item() + step * step * self.n * n / all
  self.n, self.mean = all, self.mean + step * n / all
  return self
end
function R2:value()
  if self.n < 2 then return 0 / 0 end
  return 1 - self.rest / self.squares
end

--- T.metrics.r2(pred, target) → number; T.metrics.r2() → meter
-- 1 - Σ(y - p)² / Σ(y - mean y)²: the share of variance that is explained. NaN of fewer than two targets; of equal ones
-- -inf, or NaN where all are met.
--   print(T.metrics.r2(T.tensor { 1, 2, 4 }, T.tensor { 1, 2, 3 }))  --> 0.5
define("r2", {}, R2)

-- ---- ranking ------------------------------------------------------------------------------------------------------

local Auc = {}
function Auc:reset() self.scores, self.targets = {}, {} end

--- Scores of any kind, larger for yes; targets are booleans, or 0 and 1. Keeps all of them.
function Auc:update(scores, target)
  check(self.who, scores, target)
  if not same_shape(scores, target) then
    fail("%s: scores %s and targets %s differ in shape", self.who, scores:describe(), target:describe())
  end
  if scores:is_floating_point() and scores:isnan():any():item() then
    fail("%s: NaN among the scores %s has no rank", self.who, scores:describe())
  end
  local function own(x) return (x:shares_storage(scores) or x:shares_storage(target)) and x:clone() or x end
  local yes = yes_of(self.who, target, "targets"):detach():reshape(-1)
  self.scores[#self.scores + 1] = own(scores:detach():double():reshape(-1)) -- a script may use its memory again
  self.targets[#self.targets + 1] = own(yes)
  return self
end

--- Area under the ROC curve: the chance that a yes scores above a no, ties counting half (Mann & Whitney 1947).
function Auc:value()
  if #self.scores == 0 then return 0 / 0 end
  local _ <close> = T.no_grad()
  local scores, order = T.cat(self.scores):sort()
  local yes = T.cat(self.targets):index_select(order, 1):totable()
  local s = scores:totable()
  local ranks, count, i = 0, 0, 1
  while i <= #s do
    local j = i
    while j < #s and s[j + 1] == s[i] do j = j + 1 end
    for k = i, j do
      if yes[k] then ranks, count = ranks + (i + j) / 2, count + 1 end
    end
    i = j + 1
  end
  local no = #s - count
  if count == 0 or no == 0 then return 0 / 0 end
  return (ranks - count * (count + 1) / 2) / (count * no)
end

--- T.metrics.auc(scores, target) → number; T.metrics.auc() → meter
-- Area under the ROC curve of yes/no targets: the chance that a yes scores above a no.
--   print(T.metrics.auc(T.tensor { 0.1, 0.4, 0.35, 0.8 }, T.tensor { false, false, true, true }))  --> 0.75
define("auc", {}, Auc)

return require("perilune.surface").seal(metrics)
