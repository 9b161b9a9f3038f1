-- SPDX-License-Identifier: MIT
--- Datasets: anything with `#ds` and `ds[i]`, i from 1. A sample of several values is a list of them.
--
-- A dataset may also have a method `get_batch(idx)` that takes an i64 tensor of positions and returns whole
-- batches; the loader uses it instead of collecting samples.
-- @module perilune.data.dataset
local T = require "perilune"
local classes = require "perilune.classes"
local core = require "perilune.core"
local options = require "perilune.options"

local fail, describe, integer = options.fail, options.describe, options.integer
local surface = require "perilune.surface"
local index_select = T.core.op.index_select
local M = {}

local function checked(who, i, n)
  local k = integer(i)
  if not k then fail("%s: a sample's number must be an integer, got %s", who, describe(i)) end
  if k < 0 then k = n + 1 + k end
  if k < 1 or k > n then
    fail("%s: sample %s is not in 1..%d%s", who, tostring(i), n, i == 0 and " (they start at 1)" or "")
  end
  return k
end

-- A class of objects whose integer keys are samples and whose other keys are fields and methods.
local function class(name)
  local C = classes.new(name, "set")
  function C.__index(self, key)
    if integer(key) then return self:get(checked(name, key, #self)) end
    return C[key]
  end
  function C.__len(self) return self:len() end
  function C.__tostring(self) return ("%s of %d samples"):format(name, #self) end
  getmetatable(C).__call = function(_, ...) return surface.one("data." .. name, C.new)(...) end
  return C
end

-- The arguments as a list, in which none is nil but at the end.
local function given(who, ...)
  local list, n = { ... }, select("#", ...)
  while n > 0 and list[n] == nil do n = n - 1 end
  for i = 1, n do
    if list[i] == nil then fail("%s: argument %d is nil", who, i) end
  end
  return list
end

-- Something with #ds and ds[i]: an object, a tensor or a plain list.
local function is_dataset(who, ds)
  if type(ds) ~= "table" and type(ds) ~= "userdata" then
    fail("%s: a dataset (something with #ds and ds[i]) is wanted, got %s", who, describe(ds))
  end
  if core.is_tensor(ds) and ds:dim() == 0 then fail("%s: a 0-d tensor has no samples", who) end
  if type(ds) == "table" and getmetatable(ds) == nil and #ds == 0 and next(ds) ~= nil then
    fail("%s: a dataset (something with #ds and ds[i]) is wanted, got a table without samples that has the key %s%s",
      who, describe((next(ds))), ds.get and "; T.data.Dataset { len = n, get = function(i) … end } makes one" or "")
  end
  return ds
end
M.is_dataset = is_dataset

-- What transform= may be: a function, or something that is called like one.
local function transforming(who, f)
  local meta = getmetatable(f)
  if type(f) ~= "function" and not (type(meta) == "table" and meta.__call) then
    fail("%s: transform must be a function, got %s", who, describe(f))
  end
  return f
end

-- Raises where a function gave no sample: nil, message is what T.load_image and the like return of a file that they
-- cannot read, and would be a batch of messages.
local function some(i, first, message)
  if first ~= nil then return end
  fail("data: there is no sample %s: %s", i, message and tostring(message) or "a function gave nothing")
end

-- Sample i: one value, or a list of several.
local function sample_of(i, ...)
  some(i, ...)
  if select("#", ...) == 1 then return (...) end
  return { ... }
end

--- T.data.Dataset{len=n or function, get=function(self, i) … end, transform=, …} → dataset
-- Made of two functions; get returns the values of sample i, of which transform changes the first. Other fields are
-- kept.
--   local ds = T.data.Dataset { len = 3, get = function(self, i) return i * i end }
--   print(#ds, ds[3])  --> 3	9
M.Dataset = class "Dataset"

function M.Dataset.new(fields)
  if type(fields) ~= "table" then fail("data.Dataset: a table with len and get is wanted") end
  local self = {}
  for key, v in pairs(fields) do self[key] = v end
  local len, get = self.len, self.get
  if type(len) ~= "function" and not (integer(len) and integer(len) >= 0) then
    fail("data.Dataset: len must be an integer >= 0 or a function, got %s", describe(len))
  end
  if type(get) ~= "function" then fail("data.Dataset: get must be a function, got %s", describe(get)) end
  local info = debug.getinfo(get, "u")
  local first = info.nparams == 1 and not info.isvararg and debug.getlocal(get, 1)
  if first and first ~= "self" and first ~= "_" then
    fail("data.Dataset: get is given the dataset and the number of a sample: get = function(self, %s) … end, not "
      .. "function(%s)", first, first)
  end
  if type(len) ~= "function" then self.len = function() return integer(len) end end
  local transform = self.transform
  if transform ~= nil then
    transforming("data.Dataset", transform)
    for _, name in ipairs { "get_batch", "get_range" } do
      if self[name] ~= nil then fail("data.Dataset: transform changes what get gives, and %s goes past it", name) end
    end
    self.transform = nil -- a get that applies self.transform itself would do so twice: there is none
  end
  self.get = function(ds, i)
    if not transform then return sample_of(i, get(ds, i)) end
    local values = table.pack(get(ds, i))
    some(i, table.unpack(values, 1, values.n))
    return sample_of(i, transform(values[1]), table.unpack(values, 2, values.n))
  end
  return setmetatable(self, M.Dataset)
end

--- T.data.TensorDataset(x, y, …, {transform=}) → dataset
-- Tensors of equal first size side by side: ds[i] is {x[i], y[i], …}, of one tensor x[i]. transform: what x[i] becomes.
--   local ds = T.data.TensorDataset(T.eye(2), T.arange(2))
--   print(#ds, ds[2][2]:item())  --> 2	2
M.TensorDataset = class "TensorDataset"

-- The options in a last table, as {transform = f}, apart from what stands before it.
local function with_transform(who, ...)
  local n = select("#", ...)
  local last = n > 1 and (select(n, ...))
  if type(last) ~= "table" or getmetatable(last) ~= nil or type((next(last))) ~= "string" then return nil, ... end
  options.check(who, last, { "transform" })
  return transforming(who, last.transform), table.unpack({ ... }, 1, n - 1)
end

-- A class whose objects are made of what stands before {transform=}; refused(…): why there cannot be one, or false.
local function transformable(C, refused)
  local who, make = "data." .. C.__name, C.new
  local function made(transform, ...)
    local why = transform and refused and refused(...)
    if why then fail("%s: %s", who, why) end
    return M.transformed(make(...), transform)
  end
  function C.new(...) return made(with_transform(who, ...)) end
end

function M.TensorDataset.new(...)
  local tensors = given("data.TensorDataset", ...)
  if #tensors == 0 then fail("data.TensorDataset: at least one tensor is wanted") end
  for i, t in ipairs(tensors) do
    if type(t) ~= "userdata" or t:dim() == 0 then
      local list = type(t) == "table" and type(t[1]) == "userdata"
      fail("data.TensorDataset: argument %d must be a tensor of at least one dimension, got %s%s", i, describe(t),
        list and "; tensors come one by one: TensorDataset(x, y)" or "")
    end
    if t:size(1) ~= tensors[1]:size(1) then
      fail("data.TensorDataset: argument %d has %d rows, argument 1 has %d", i, t:size(1), tensors[1]:size(1))
    end
  end
  return setmetatable({ tensors = tensors }, M.TensorDataset)
end

transformable(M.TensorDataset)

function M.TensorDataset:len() return rawget(self, "tensors")[1]:size(1) end

function M.TensorDataset:get(i)
  local tensors = rawget(self, "tensors")
  if #tensors == 1 then return tensors[1]:select(1, i) end
  local out = {}
  for k, t in ipairs(tensors) do out[k] = t:select(1, i) end
  return out
end

--- Rows idx (i64 [n]) of every tensor.
function M.TensorDataset:get_batch(idx)
  local tensors = rawget(self, "tensors")
  if #tensors == 2 then
    return index_select(tensors[1], idx, 1), index_select(tensors[2], idx, 1)
  end
  local out = {}
  for k, t in ipairs(tensors) do out[k] = index_select(t, idx, 1) end
  return table.unpack(out)
end

--- Rows first … last of every tensor, without a copy.
function M.TensorDataset:get_range(first, last)
  local out = {}
  for k, t in ipairs(rawget(self, "tensors")) do out[k] = t:narrow(1, first, last - first + 1) end
  return table.unpack(out)
end

--- T.data.Subset(dataset, indices, {transform=}) → dataset
-- Some samples of a dataset, by number. transform: what the first value of each becomes, so that of two parts one may
-- be augmented.
--   print(T.data.Subset({ "a", "b", "c" }, { 3, 1 })[1])  --> c
M.Subset = class "Subset"

-- Looks where methods are, without running a user's __index function: it may know integers only.
local function has_method(ds, name)
  if type(ds) ~= "table" then return false end
  local meta = getmetatable(ds)
  local f = rawget(ds, name)
  if f == nil and type(meta) == "table" then
    local index = rawget(meta, "__index")
    f = rawget(meta, name) or (type(index) == "table" and index[name]) or nil
  end
  return type(f) == "function"
end
M.has_method = has_method

function M.Subset.new(dataset, indices)
  local list = indices
  if type(indices) == "userdata" then list = indices:totable() end
  if type(list) ~= "table" then
    fail("data.Subset: a list of sample numbers is wanted, got %s", describe(indices))
  end
  options.list("data.Subset", "the indices", list, "sample numbers")
  local n, out = #is_dataset("data.Subset", dataset), {}
  for i, k in ipairs(list) do out[i] = checked("data.Subset", k, n) end
  local self = { dataset = dataset, indices = out }
  if has_method(dataset, "get_batch") and #out > 0 then
    self.positions = T.tensor(out, { dtype = "i64", device = "cpu" })
  end
  return setmetatable(self, M.Subset)
end
transformable(M.Subset)

function M.Subset:len() return #rawget(self, "indices") end
function M.Subset:get(i) return rawget(self, "dataset")[rawget(self, "indices")[i]] end

function M.Subset:get_batch(idx)
  return rawget(self, "dataset"):get_batch(index_select(rawget(self, "positions"), idx:cpu(), 1))
end

--- T.data.MapDataset(dataset, f) → dataset
-- The samples of a dataset through f, which gets a sample's values (of one with names the table) and returns as many as
-- it likes, each time anew.
--   local pairs_of = T.data.TensorDataset(T.eye(2), T.arange(2))
--   local ds = T.data.MapDataset(pairs_of, function(x, y) return x * 10, y end)
--   print(#ds, ds[2][1])  --> 2	{ 0., 10.}  -- f32[2] cpu
M.MapDataset = class "MapDataset"

function M.MapDataset.new(dataset, f)
  is_dataset("data.MapDataset", dataset)
  local meta = getmetatable(f)
  if type(f) ~= "function" and not (type(meta) == "table" and meta.__call) then
    fail("data.MapDataset: argument 2 must be a function of a sample's values, got %s", describe(f))
  end
  return setmetatable({ dataset = dataset, f = f }, M.MapDataset)
end

function M.MapDataset:len() return #rawget(self, "dataset") end

function M.MapDataset:get(i)
  local sample, f = rawget(self, "dataset")[i], rawget(self, "f")
  if type(sample) == "table" and getmetatable(sample) == nil and (sample[1] ~= nil or next(sample) == nil) then
    local key = options.stray(sample)
    if key ~= nil then
      fail("data.MapDataset: sample %d has values 1 … %d and the field %s, which the function would not get; give all "
        .. "of them names", i, #sample, describe(key))
    end
    return sample_of(i, f(table.unpack(sample)))
  end
  return sample_of(i, f(sample))
end

-- A dataset of {x, …} or x whose x goes through `transform`, if there is one; the fields stay.
local carried = { "images", "labels", "classes", "tokens", "tokenizer", "vocab_size" }
function M.transformed(ds, transform)
  if transform == nil then return ds end
  local out = M.MapDataset(ds, function(x, ...) return transform(x), ... end)
  for _, name in ipairs(carried) do out[name] = ds[name] end
  return out
end

--- T.data.ConcatDataset(a, b, …, {transform=}) → dataset
-- Datasets one after the other. transform: what the first value of each sample becomes.
--   print(T.data.ConcatDataset({ 1, 2 }, { 3 })[3])  --> 3
M.ConcatDataset = class "ConcatDataset"

function M.ConcatDataset.new(first, ...)
  local parts = given("data.ConcatDataset", first, ...)
  if #parts == 1 and type(first) == "table" and getmetatable(first) == nil then
    parts = { table.unpack(options.list("data.ConcatDataset", "the datasets", first, "datasets")) }
  end
  local ends, n = {}, 0
  for i, ds in ipairs(parts) do
    if type(ds) ~= "table" then fail("data.ConcatDataset: entry %d must be a dataset, got %s", i, describe(ds)) end
    n = n + #is_dataset("data.ConcatDataset", ds)
    ends[i] = n
  end
  if n == 0 then fail("data.ConcatDataset: no samples") end
  return setmetatable({ parts = parts, ends = ends }, M.ConcatDataset)
end
transformable(M.ConcatDataset)

function M.ConcatDataset:len()
  local ends = rawget(self, "ends")
  return ends[#ends]
end

function M.ConcatDataset:get(i)
  local before = 0
  for k, last in ipairs(rawget(self, "ends")) do
    if i <= last then return rawget(self, "parts")[k][i - before] end
    before = last
  end
end

-- Samples that come one after the other, from a stream whose length nobody knows:
-- `data.IterableDataset{iter = function(self) return next_sample end}`. iter begins a pass and returns a function that
-- gives one sample a call, nil at the end; several values make a list. Other fields are kept.
--- T.data.IterableDataset{iter=function(self) return next_sample end, transform=, …} → dataset
-- A stream: iter begins a pass and returns a function that gives a sample a call, nil at the end. A DataLoader makes
-- batches of it, in its order, without workers. transform: what the first value of each sample becomes.
--   local set = T.data.IterableDataset { iter = function()
--     local i = 0
--     return function() i = i + 1 if i <= 3 then return i end end
--   end }
--   for x in T.data.DataLoader(set, { batch_size = 2 }) do print(x) end
--   --> {1, 2}  -- i64[2] cpu
--   --> {3}  -- i64[1] cpu
M.IterableDataset = { __name = "IterableDataset" }
M.IterableDataset.__index = M.IterableDataset
M.IterableDataset.__tostring = function() return "IterableDataset" end
M.IterableDataset.__len = function() fail("data.IterableDataset: it has no length; for x in loader do … end") end
setmetatable(M.IterableDataset, { __call = function(_, fields)
  if type(fields) ~= "table" or type(fields.iter) ~= "function" then
    fail("data.IterableDataset: a table with iter = function(self) return next_sample end is wanted, got %s",
      describe(fields))
  end
  local self = {}
  for key, v in pairs(fields) do self[key] = v end
  local transform, iter = self.transform, self.iter
  if transform ~= nil then
    transforming("data.IterableDataset", transform)
    local function changed(x, ...)
      if x == nil then return nil end
      return transform(x), ...
    end
    function self.iter(...)
      local following = iter(...)
      return function() return changed(following()) end
    end
  end
  return setmetatable(self, M.IterableDataset)
end })

--- T.data.StackDataset(a, b, …, {transform=}) → dataset
-- Samples of several datasets side by side; of a table with names, by name. transform: what the first value becomes.
--   print(T.data.StackDataset({ "a", "b" }, { 3, 4 })[2][2])  --> 4
M.StackDataset = class "StackDataset"

function M.StackDataset.new(first, ...)
  local parts = given("data.StackDataset", first, ...)
  if #parts == 1 and type(first) == "table" and getmetatable(first) == nil then
    parts = {}
    for key, ds in pairs(first) do parts[key] = ds end
  end
  local n
  for key, ds in pairs(parts) do
    if type(ds) ~= "table" and type(ds) ~= "userdata" then
      fail("data.StackDataset: entry %s must be a dataset, got %s", tostring(key), describe(ds))
    end
    is_dataset("data.StackDataset", ds)
    if n and #ds ~= n then fail("data.StackDataset: datasets of %d and %d samples", n, #ds) end
    n = #ds
  end
  if not n then fail("data.StackDataset: at least one dataset is wanted") end
  return setmetatable({ parts = parts, n = n }, M.StackDataset)
end
transformable(M.StackDataset, function(first)
  return type(first) == "table" and getmetatable(first) == nil and first[1] == nil
    and "samples by name have no first value for transform; T.data.MapDataset(dataset, f) gives f the whole sample"
end)

function M.StackDataset:len() return rawget(self, "n") end

function M.StackDataset:get(i)
  local out = {}
  for key, ds in pairs(rawget(self, "parts")) do out[key] = ds[i] end
  return out
end

-- Cuts a dataset at random into parts of the given sizes (or shares that sum to 1).
-- @param dataset
-- @tparam table lengths
-- @tparam[opt] table opts `seed=`: the same cut every time
-- @treturn {Subset,…}
--- T.data.random_split(dataset, {lengths or shares}, {seed=}) → list of datasets
-- Cuts a dataset at random into parts.
--   local parts = T.data.random_split({ 1, 2, 3, 4, 5 }, { 0.8, 0.2 }, { seed = 1 })
--   print(#parts[1], #parts[2])  --> 4	1
function M.random_split(dataset, lengths, opts)
  opts = options.check("data.random_split", opts, { "seed" })
  local n, sizes, total = #is_dataset("data.random_split", dataset), {}, 0
  if type(lengths) ~= "table" or #lengths == 0 then
    fail("data.random_split: a list of lengths or parts is wanted, such as { 0.8, 0.2 }, got %s", describe(lengths))
  end
  options.list("data.random_split", "the lengths", lengths, "numbers")
  local sum = 0
  for i, v in ipairs(lengths) do
    if type(v) ~= "number" or v < 0 then fail("data.random_split: length %d is %s", i, describe(v)) end
    sum = sum + v
  end
  local shares = math.abs(sum - 1) < 1e-9 and not (n == 1 and #lengths == 1)
  for i, v in ipairs(lengths) do
    sizes[i] = shares and math.floor(v * n) or integer(v)
    if not sizes[i] then
      fail("data.random_split: lengths are integers that sum to %d, shares are numbers that sum to 1; got %s, all "
        .. "sum to %g", n, describe(v), sum)
    end
    total = total + sizes[i]
  end
  if shares then -- what rounding left over goes to the first parts, one each
    local i = 1
    while total < n do
      sizes[i], total, i = sizes[i] + 1, total + 1, i % #sizes + 1
    end
  end
  if total ~= n then
    fail("data.random_split: the lengths sum to %d, the dataset has %d samples", total, n)
  end
  local order = M.permutation(n, opts.seed)
  order = n > 0 and order:totable() or {}
  local parts, at = {}, 0
  for i, size in ipairs(sizes) do
    parts[i] = M.Subset(dataset, table.move(order, at + 1, at + size, 1, {}))
    at = at + size
  end
  return parts
end

-- Sample numbers are on the CPU, whatever the default device: they are read one by one, and datasets on the CPU cannot
-- be indexed from elsewhere.
local function on_cpu(f, ...) return core.device.with("cpu", f, ...) end

--- A random order of 1 … n as i64 [n]; with a seed always the same one, without touching the global
-- generator.
function M.permutation(n, seed)
  if seed == nil then return on_cpu(T.randperm, n) end
  local state = T.get_rng_state()
  T.manual_seed(seed)
  local ok, order = pcall(on_cpu, T.randperm, n)
  T.set_rng_state(state)
  if not ok then error(order, 0) end
  return order
end

return M
