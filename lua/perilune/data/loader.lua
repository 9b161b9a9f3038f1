-- SPDX-License-Identifier: MIT
--- Batches of a dataset for a generic for: `for x, y in data.DataLoader(ds, {batch_size = 64}) do`.
-- @classmod DataLoader
local T = require "perilune"
local dataset = require "perilune.data.dataset"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe

local DataLoader = { __name = "DataLoader" }
DataLoader.__index = DataLoader

local spec = options.spec("data.DataLoader", {
  { "batch_size", "count", 1 }, { "shuffle", "bool", false }, { "drop_last", "bool", false },
  { "seed", "int", optional = true }, { "collate", "func", optional = true }, { "workers", "size", 0 },
  { "prefetch", "size", 0 } })

--- @param ds anything with `#ds` and `ds[i]`
-- @tparam[opt] table opts `batch_size=1 shuffle=false drop_last=false seed= collate=`; with a seed every
-- loader
-- gives the same orders, pass after pass
local function new(ds, opts)
  if (type(ds) ~= "table" and type(ds) ~= "userdata") then
    fail("data.DataLoader: a dataset is wanted, something with #ds and ds[i], got %s", describe(ds))
  end
  local a = options.read(spec, opts or {})
  if a.workers > 0 or a.prefetch > 0 then
    fail("data.DataLoader: worker threads and prefetch are not there yet; use workers = 0")
  end
  if type(ds) == "userdata" then ds = dataset.TensorDataset(ds) end
  a.dataset, a.epoch, a._active = ds, 0, setmetatable({}, { __mode = "k" })
  return setmetatable(a, DataLoader)
end

--- The number of batches of one pass.
function DataLoader:__len()
  local n = #self.dataset
  if self.drop_last then return n // self.batch_size end
  return (n + self.batch_size - 1) // self.batch_size
end

-- ---- collecting samples ------------------------------------------------------------------------------

--- Joins samples into a batch: tensors are stacked, numbers become a tensor, lists and tables are joined
-- field
-- by field, anything else stays a list.
local function default_collate(samples)
  local first = samples[1]
  local kind = type(first)
  if kind == "userdata" then return T.stack(samples, 1) end
  if kind == "number" then
    local all_integers = true
    for _, v in ipairs(samples) do all_integers = all_integers and math.type(v) == "integer" end
    return T.tensor(samples, { dtype = all_integers and "i64" or "f32" })
  end
  if kind == "boolean" then return T.tensor(samples) end
  if kind == "table" then
    local out = {}
    for key in pairs(first) do
      local column = {}
      for i, sample in ipairs(samples) do
        column[i] = sample[key]
        if column[i] == nil then
          fail("data.DataLoader: sample %d of a batch has no field %s, the first has", i, tostring(key))
        end
      end
      out[key] = default_collate(column)
    end
    return out
  end
  return samples
end

local function is_list(v) return type(v) == "table" and getmetatable(v) == nil and v[1] ~= nil end

local function collect(self, order, first, last)
  local samples, ds = {}, self.dataset
  for i = first, last do samples[#samples + 1] = ds[order and order[i] or i] end
  if self.collate then return self.collate(samples) end
  local batch = default_collate(samples)
  if is_list(batch) and type(samples[1]) == "table" then return table.unpack(batch) end
  return batch
end

-- ---- passes ------------------------------------------------------------------------------------------

-- A function that returns batch after batch of one pass.
local function pass(self)
  local ds = self.dataset
  local n, size, count, b = #ds, self.batch_size, #self, 0
  local order, whole, list
  if self.shuffle then
    order = dataset.permutation(n, self.seed and self.seed + self.epoch)
  end
  self.epoch = self.epoch + 1
  if not self.collate and n > 0 then
    if order then
      whole = dataset.has_method(ds, "get_batch")
    elseif dataset.has_method(ds, "get_range") then
      whole = true
    elseif dataset.has_method(ds, "get_batch") then
      order, whole = T.arange(n), true
    end
  end
  if order and not whole then list = order:totable() end
  return function()
    b = b + 1
    if b > count then return nil end
    local first, last = (b - 1) * size + 1, math.min(b * size, n)
    if not whole then return collect(self, list, first, last) end
    if not order then return ds:get_range(first, last) end
    return ds:get_batch(order:narrow(1, first, last - first + 1))
  end
end

--- An iterator of its own for one pass; `for x, y in loader do` makes one by itself.
function DataLoader:iter() return pass(self) end

-- The batch that a loop hands back tells which pass goes on, so loops over one loader may be nested.
function DataLoader:__call(_, control)
  local step
  if control == nil then
    step = pass(self)
  else
    step = self._active[control] or self._current
    self._active[control] = nil
  end
  return self:_remember(step, step())
end

function DataLoader:_remember(step, first, ...)
  self._current = step
  if first ~= nil and (type(first) == "userdata" or type(first) == "table") then
    self._active[first] = step
  end
  return first, ...
end

function DataLoader:__tostring()
  return ("DataLoader of %d samples in %d batches of %d"):format(#self.dataset, #self, self.batch_size)
end

DataLoader.default_collate = default_collate

return setmetatable(DataLoader, { __call = function(_, ...) return new(...) end })
