-- SPDX-License-Identifier: MIT
--- From samples to batches, in the script's thread and in workers alike.
-- @module perilune.data.collate
local T = require "perilune"
local core = require "perilune.core"
local dataset = require "perilune.data.dataset"
local options = require "perilune.options"

local fail = options.fail
local M = {}

-- Samples of a batch have one shape; says what to do where they have not.
local function check_like(first, sample, i)
  if not core.is_tensor(first) or not core.is_tensor(sample) then return end
  local a, b = first:shape(), sample:shape()
  local same = #a == #b
  for d = 1, #a do same = same and a[d] == b[d] end
  if not same then
    fail("data.DataLoader: samples 1 and %d of a batch are %s and %s; make them equal with a transform (resize, crop, "
      .. "pad), or join them with collate = function(samples) … end", i, first:describe(), sample:describe())
  end
end

--- T.data.default_collate{sample, …} → batch
-- Tensors are stacked, numbers become a tensor, tables are joined field by field, anything else stays a list.
--   print(T.data.default_collate { 1, 2 })  --> {1, 2}  -- i64[2] cpu
function M.default(samples)
  if type(samples) ~= "table" or samples[1] == nil then
    fail("data.default_collate: a list of samples is wanted, got %s", options.describe(samples))
  end
  local first = samples[1]
  local kind = type(first)
  if kind == "userdata" then
    local ok, y = pcall(T.stack, samples, 1)
    if ok then return y end
    for i, sample in ipairs(samples) do check_like(first, sample, i) end
    error(y, 0)
  end
  if kind == "number" or kind == "boolean" then
    for i, v in ipairs(samples) do
      if type(v) ~= kind then
        fail("data.DataLoader: samples 1 and %d of a batch are %s and %s, which make no tensor", i,
          options.describe(first), options.describe(v))
      end
    end
  end
  if kind == "number" then
    local all_integers = true
    for _, v in ipairs(samples) do all_integers = all_integers and math.type(v) == "integer" end
    return T.tensor(samples, { dtype = all_integers and "i64" or T.default_dtype() })
  end
  if kind == "boolean" then return T.tensor(samples) end
  if kind == "table" then
    local out = {}
    for i, sample in ipairs(samples) do
      for key in pairs(type(sample) == "table" and sample or {}) do
        if first[key] == nil then
          fail("data.DataLoader: sample %d of a batch has a field %s, the first has none", i, tostring(key))
        end
      end
    end
    for key in pairs(first) do
      local column = {}
      for i, sample in ipairs(samples) do
        column[i] = sample[key]
        if column[i] == nil then
          fail("data.DataLoader: sample %d of a batch has no field %s, the first has", i, tostring(key))
        end
      end
      if not (key == "n" and first.n == #first) then out[key] = M.default(column) end -- of table.pack: no field
    end
    return out
  end
  return samples
end

--- The values of a batch: those of a list one by one. Named ones beside them would be lost in the loop.
function M.values(batch, first)
  if type(first) ~= "table" or type(batch) ~= "table" or getmetatable(batch) ~= nil or batch[1] == nil then
    return batch
  end
  local key = options.stray(batch)
  if key ~= nil then
    fail("data.DataLoader: a sample has values 1 … %d and the field %s, which a loop would not get; give all of them "
      .. "names, or join samples with collate = function(samples) … end", #batch, options.describe(key))
  end
  return table.unpack(batch)
end

-- ---- seeds -------------------------------------------------------------------------------------------------------

--- The seed of sample i in a pass: it depends on nothing else, so any number of workers draws the same numbers.
-- The mixing steps of SplitMix64 (Steele, Lea, Flood 2014).
function M.sample_seed(base, i)
  local z = base + i * 0x9e3779b97f4a7c15
  z = (z ~ (z >> 30)) * 0xbf58476d1ce4e5b9
  z = (z ~ (z >> 27)) * 0x94d049bb133111eb
  return z ~ (z >> 31)
end

-- ---- one batch -----------------------------------------------------------------------------------------------------

-- f() with the generator as it was afterwards.
local function keeping_rng(f, ...)
  local state = core.get_rng_state()
  local results = table.pack(pcall(f, ...))
  core.set_rng_state(state)
  if not results[1] then error(results[2], 0) end
  return table.unpack(results, 2, results.n)
end

-- In a worker math.random is seeded too: there is no way to put it back in the script's own state.
local function seed(job, i)
  local s = M.sample_seed(job.base, i)
  core.manual_seed(s)
  if job.worker then math.randomseed(s) end
end

local function collect(job, indices)
  local samples, ds = {}, job.dataset
  for k, i in ipairs(indices) do
    seed(job, i)
    job.at = i
    local sample = ds[i]
    if sample == nil then fail("data.DataLoader: sample %d is nil", i) end
    samples[k] = sample
  end
  job.at = nil
  if job.collate then return job.collate(samples) end
  return M.values(M.default(samples), samples[1])
end

local function collect_whole(job, positions)
  seed(job, positions:numel() > 0 and positions:get(1) or 0)
  return job.dataset:get_batch(positions)
end

--- The values of the batch of these samples. job: {dataset=, collate=, base=, worker=}; indices: a list, or an i64
-- tensor for datasets that give whole batches.
function M.batch(job, indices)
  local f = type(indices) == "table" and collect or collect_whole
  if job.worker then return f(job, indices) end
  return keeping_rng(f, job, indices)
end

--- Whether the dataset gives whole batches; a Subset does where what it is made of does.
function M.has_batches(ds)
  if getmetatable(ds) == dataset.Subset then return rawget(ds, "positions") ~= nil end
  return dataset.has_method(ds, "get_batch")
end

return M
