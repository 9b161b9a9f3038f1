-- SPDX-License-Identifier: MIT
--- Orders of samples for a DataLoader: `data.DataLoader(ds, {sampler = data.RandomSampler(#ds)})`. A sampler of your
-- own is anything with `#s` and `s:indices()` → a list or i64 tensor of sample numbers, made anew for each pass; a
-- batch sampler has `#s` and `s:batches()` → a list of such lists.
-- @module perilune.data.sampler
local T = require "perilune"
local classes = require "perilune.classes"
local dataset = require "perilune.data.dataset"
local options = require "perilune.options"
local surface = require "perilune.surface"

local fail, describe = options.fail, options.describe
local M = {}

local function class(name)
  local C = classes.new(name, "sampler")
  C.__len = function(self)
    if self._look then self:_look() end
    return self.n
  end
  C.__tostring = function(self) return ("%s of %d"):format(name, #self) end
  getmetatable(C).__call = function(_, ...) return surface.one("data." .. name, C.new)(...) end
  M[name] = C
  return C
end

-- The number of samples, from a number or a dataset.
local function count(who, what)
  if type(what) == "number" then
    local n = options.integer(what)
    if not n or n < 0 then
      fail("%s: the number of samples must be a non-negative integer, got %s", who, describe(what))
    end
    return n
  end
  if type(what) ~= "table" and type(what) ~= "userdata" then
    fail("%s: a dataset or the number of samples is wanted, got %s", who, describe(what))
  end
  return #dataset.is_dataset(who, what)
end

M.count = count

-- make() with the generator seeded; the global one stays as it is.
local function seeded(seed, make)
  if seed == nil then return make() end
  local state = T.get_rng_state()
  T.manual_seed(seed)
  local ok, v = pcall(make)
  T.set_rng_state(state)
  if not ok then error(v, 0) end
  return v
end

--- T.data.SequentialSampler(dataset or n) → sampler
-- 1, 2, … n.
--   print(T.data.SequentialSampler(3):indices())  --> {1, 2, 3}  -- i64[3] cpu
local Sequential = class "SequentialSampler"
function Sequential.new(what)
  local s = setmetatable({ source = what }, Sequential)
  s:_look()
  return s
end
-- A dataset may have grown since the last pass, as a buffer of experience does.
function Sequential:_look() self.n = count("data.SequentialSampler", self.source) end
function Sequential:indices()
  self:_look()
  return T.arange(self.n, { device = "cpu" })
end

--- T.data.RandomSampler(dataset or n, {replacement=false, num_samples=n, seed=}) → sampler
-- A random order, another one each pass, of the samples that the dataset has then.
--   print(#T.data.RandomSampler(10, { num_samples = 4 }))  --> 4
local Random = class "RandomSampler"
local random_spec = options.spec("data.RandomSampler", { { "replacement", "bool", false },
  { "num_samples", "count", optional = true }, { "seed", "int", optional = true } })
function Random.new(what, opts)
  local a = options.read(random_spec, opts or {})
  a.source, a.pass = what, 0
  setmetatable(a, Random):_look()
  return a
end
function Random:_look()
  self.of = count("data.RandomSampler", self.source)
  self.n = self.num_samples or self.of
  if not self.replacement and self.n > self.of then
    fail("data.RandomSampler: num_samples = %d of %d samples needs replacement = true", self.n, self.of)
  end
end
function Random:indices()
  self:_look()
  local seed = self.seed and self.seed + self.pass
  self.pass = self.pass + 1
  if self.replacement then
    return seeded(seed, function() return T.randint(1, self.of, { self.n }, { device = "cpu" }) end)
  end
  local order = dataset.permutation(self.of, seed)
  return self.n < self.of and order:narrow(1, 1, self.n) or order
end

--- T.data.WeightedSampler(weights, n, {replacement=true, seed=}) → sampler
-- n samples drawn by weight.
--   print(T.data.WeightedSampler({ 0, 1 }, 3):indices())  --> {2, 2, 2}  -- i64[3] cpu

--- T.data.WeightedRandomSampler(weights, n, {replacement=true, seed=}) → sampler
-- T.data.WeightedSampler, as PyTorch calls it.
--   print(T.data.WeightedRandomSampler({ 1, 0 }, 2):indices())  --> {1, 1}  -- i64[2] cpu
local Weighted = class "WeightedSampler"
local weighted_spec = options.spec("data.WeightedSampler", { { "replacement", "bool", true },
  { "seed", "int", optional = true } })
function Weighted.new(weights, n, opts)
  local a = options.read(weighted_spec, opts or {})
  if type(weights) == "table" then weights = T.tensor(weights, { dtype = "f64", device = "cpu" }) end
  if type(weights) ~= "userdata" or weights:dim() ~= 1 or weights:numel() == 0 then
    fail("data.WeightedSampler: weights must be a list or a tensor of one dimension, got %s", describe(weights))
  end
  local sum = weights:sum():item()
  if weights:lt(0):any():item() or sum ~= sum or sum <= 0 or sum == math.huge then
    fail("data.WeightedSampler: weights must not be negative, and their sum positive and finite")
  end
  a.weights, a.pass = weights:to { dtype = "f64", device = "cpu" }, 0
  if n ~= nil and type(n) ~= "number" then
    fail("data.WeightedSampler: the number of samples must be an integer, got %s", describe(n))
  end
  a.n = count("data.WeightedSampler", n or weights:numel())
  if not a.replacement and a.n > weights:gt(0):sum():item() then
    fail("data.WeightedSampler: %d samples without replacement, but only %d weights are positive", a.n,
      weights:gt(0):sum():item())
  end
  return setmetatable(a, Weighted)
end
function Weighted:indices()
  local seed = self.seed and self.seed + self.pass
  self.pass = self.pass + 1
  if self.n == 0 then return T.empty({ 0 }, { dtype = "i64", device = "cpu" }) end
  return seeded(seed, function() return T.multinomial(self.weights, self.n, { replacement = self.replacement }) end)
end

-- Samplers that count their passes: what a DataLoader's state has of them.
for _, class_ in ipairs { Sequential, Random, Weighted } do
  function class_:state_dict() return { pass = self.pass } end
  function class_:load_state_dict(state)
    options.check(class_.__name .. ":load_state_dict", state, { "pass" })
    if (state.pass == nil) ~= (self.pass == nil) then
      fail("data.%s: load_state_dict: the state is of another kind of sampler", class_.__name)
    end
    if self.pass then self.pass = options.kind(class_.__name .. ":load_state_dict", "pass", "size", state.pass) end
    return self
  end
end

--- What decides its next orders; nil: nobody knows. A list has one order.
function M.state(sampler)
  if type(sampler) ~= "table" then return {} end
  if type(sampler.state_dict) == "function" and type(sampler.load_state_dict) == "function" then
    return sampler:state_dict()
  end
  if type(sampler.indices) ~= "function" and type(sampler.batches) ~= "function" then return {} end
end

--- What it is, beside its state: a text.
function M.text(sampler)
  if type(sampler) ~= "table" then return "a list" end
  if type(sampler._text) == "function" then return sampler:_text() end
  if type(sampler.indices) == "function" or type(sampler.batches) == "function" then return "a sampler of one's own" end
  return "a list"
end
for _, class_ in ipairs { Sequential, Random, Weighted } do
  function class_:_text()
    return tostring(self) .. (self.replacement and ", replacement" or "")
      .. (self.seed and (", seed = %d"):format(self.seed) or "")
  end
end

--- Sets it.
function M.load_state(sampler, state)
  if type(sampler) == "table" and type(sampler.load_state_dict) == "function" then sampler:load_state_dict(state) end
end

--- T.data.BatchSampler(sampler, batch_size, drop_last=false) → batch sampler
-- Lists of sample numbers; an own one is anything with #s and s:batches().
--   print(#T.data.BatchSampler(T.data.SequentialSampler(5), 2))  --> 3
local Batch = class "BatchSampler"
function Batch.new(sampler, size, drop_last)
  size = options.integer(size)
  if type(sampler) ~= "table" then fail("data.BatchSampler: a sampler is wanted, got %s", describe(sampler)) end
  if getmetatable(sampler) == nil and type(sampler.indices) ~= "function" then
    dataset.is_dataset("data.BatchSampler", sampler)
  end
  if drop_last ~= nil and type(drop_last) ~= "boolean" then
    fail("data.BatchSampler: drop_last must be true or false, got %s", describe(drop_last))
  end
  if not size or size < 1 then fail("data.BatchSampler: the batch size must be a positive integer") end
  return setmetatable({ sampler = sampler, size = size, drop_last = drop_last == true }, Batch)
end
Batch.__len = function(self)
  local n = #self.sampler
  return self.drop_last and n // self.size or (n + self.size - 1) // self.size
end
Batch.__tostring = function(self) return ("BatchSampler of %d batches"):format(#self) end
function Batch:batches()
  local order, out = M.indices(self.sampler), {}
  if #order ~= #self.sampler then
    fail("data.BatchSampler: the sampler gave %d samples where its # says %d", #order, #self.sampler)
  end
  for b = 1, #self do out[b] = table.move(order, (b - 1) * self.size + 1, math.min(b * self.size, #order), 1, {}) end
  return out
end

function Batch:_text()
  return ("BatchSampler (%s), %d%s"):format(M.text(self.sampler), self.size, self.drop_last and ", true" or "")
end
-- Those of its sampler; nil: nobody knows.
function Batch:state_dict() return M.state(self.sampler) end
function Batch:load_state_dict(state)
  M.load_state(self.sampler, state)
  return self
end

--- The order of a sampler, a list or a tensor as a list.
function M.indices(sampler)
  local order = sampler
  if type(sampler) == "table" and type(sampler.indices) == "function" then order = sampler:indices() end
  if type(order) == "userdata" then order = order:numel() > 0 and order:totable() or {} end
  if type(order) ~= "table" then fail("data.DataLoader: a sampler gave %s, not sample numbers", describe(order)) end
  return order
end

return M
