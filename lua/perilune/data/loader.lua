-- SPDX-License-Identifier: MIT
--- Batches of a dataset for a generic for: `for x, y in data.DataLoader(ds, {batch_size = 64}) do`.
-- @classmod DataLoader
local T = require "perilune"
local classes = require "perilune.classes"
local core = require "perilune.core"
local collate = require "perilune.data.collate"
local dataset = require "perilune.data.dataset"
local loader_state = require "perilune.data.loader_state"
local options = require "perilune.options"
local pack = require "perilune.data.pack"
local sampler = require "perilune.data.sampler"

local fail, describe = options.fail, options.describe

local DataLoader = classes.new("DataLoader", "loader")

local PREFETCH, WAIT_MS = 2, 50

local spec = options.spec("data.DataLoader", {
  { "batch_size", "count", 1 }, { "shuffle", "bool", false }, { "drop_last", "bool", false },
  { "seed", "int", optional = true }, { "generator", "any", optional = true },
  { "collate", "func", optional = true }, { "workers", "size", 0 },
  { "prefetch", "count", optional = true }, { "sampler", "any", optional = true },
  { "batch_sampler", "any", optional = true }, { "worker_init", "func", optional = true },
  { "pin_memory", "bool", false }, { "device", "string", optional = true }, { "endless", "bool", false } })

local function check_combinations(a, given)
  if a.device or a.pin_memory then
    local there, why = core.device.available()
    if not there and a.device ~= "cpu" then
      fail("data.DataLoader: %s is for GPUs; %s", a.device and "device" or "pin_memory", why)
    end
    if a.device and a.device ~= "cpu" then core.device.with(a.device, function() end) end -- is there such a one?
  end
  if a.generator ~= nil and getmetatable(a.generator) ~= T.Generator then
    fail("data.DataLoader: generator must be a T.Generator, got %s", describe(a.generator))
  end
  if a.generator and a.seed then fail("data.DataLoader: a generator or a seed decides the order, not both") end
  if a.sampler and a.shuffle then fail("data.DataLoader: a sampler has its own order; leave shuffle out") end
  if a.batch_sampler and (a.sampler or a.shuffle or a.drop_last or given.batch_size) then
    fail("data.DataLoader: a batch_sampler decides batches; leave sampler, shuffle, drop_last and batch_size out")
  end
  for _, name in ipairs { "sampler", "batch_sampler" } do
    local v = a[name]
    if v ~= nil and type(v) ~= "table" and type(v) ~= "userdata" then
      fail("data.DataLoader: %s must be a list of indices or a sampler, got %s", name, describe(v))
    end
  end
  if a.workers == 0 and (a.prefetch or a.worker_init) then
    fail("data.DataLoader: prefetch and worker_init are for workers; say workers = 1 or more")
  end
end

local function is_stream(ds) return getmetatable(ds) == dataset.IterableDataset end

--- @param ds anything with `#ds` and `ds[i]`
-- @tparam[opt] table opts `batch_size=1 shuffle=false drop_last=false seed= collate= sampler= batch_sampler=`, and
-- `workers=0 prefetch=2 worker_init=`, and `pin_memory=false device= endless=false`. With a seed every loader gives the
-- same orders, pass after pass.
--
-- Random numbers that `ds[i]` draws depend on the seed, the pass and i alone, so batches are the same with any number
-- of workers (of math.random: with any number but 0).
--
-- Each worker is a thread with a Lua state of its own. At the first pass it gets a copy of dataset and collate: tables
-- with their metatables, functions with their upvalues, tensors without a copy of their memory, which nobody may write
-- to from then on. Modules, and what they hold, are required anew there. `worker_init(k, dataset)` runs once in
-- worker k; what it returns, if anything, replaces the dataset: open files and connections there. A pass that finds
-- them changed (another transform, another collate, new values of upvalues) begins with new workers. `prefetch` batches
-- per worker are made ahead. close() ends the workers; so does the collector.
--
-- With `device`, batches are there, and the next one is on its way while a loop works on this one: from pinned memory,
-- beside what the GPU computes. `pin_memory` leaves them in pinned memory, for `x:to("cuda", {non_blocking = true})`.
local function new(ds, opts)
  if (type(ds) ~= "table" and type(ds) ~= "userdata") then
    fail("data.DataLoader: a dataset is wanted, something with #ds and ds[i], got %s%s", describe(ds), ds == nil and
      "; where files are missing a dataset is nil and a message: assert(T.data.mnist {…}) shows it" or "")
  end
  if not is_stream(ds) then dataset.is_dataset("data.DataLoader", ds) end
  local a = options.read(spec, opts or {})
  check_combinations(a, opts or {})
  if is_stream(ds) and (a.shuffle or a.sampler or a.batch_sampler or a.workers > 0) then
    fail("data.DataLoader: an IterableDataset has an order of its own and one reader; leave shuffle, sampler, "
      .. "batch_sampler and workers out")
  end
  if is_stream(ds) and (a.seed or a.generator) then
    fail("data.DataLoader: an IterableDataset draws what it wants in its iter; leave seed and generator out, and give "
      .. "them to what it draws with")
  end
  if type(ds) == "userdata" then ds = dataset.TensorDataset(ds) end
  a.dataset, a.epoch, a._passes = ds, 0, 0
  setmetatable(a, DataLoader):_forget()
  return a
end

--- The number of batches of one pass.
function DataLoader:__len()
  if self.batch_sampler then return #self.batch_sampler end
  local n = #(self.sampler or self.dataset)
  if self.drop_last then return n // self.batch_size end
  return (n + self.batch_size - 1) // self.batch_size
end

-- ---- one pass: which samples, in which batches ---------------------------------------------------------------------

-- Where the random numbers of this pass begin. Drawn from the global generator where there is no seed.
local function base_seed(self)
  if self.seed then return collate.sample_seed(self.seed, self.epoch) end
  return T.randint(0, math.maxinteger - 1, { 1 }, { device = "cpu" }):item()
end

-- Batches of a sampler whose state is unknown, as one list and their sizes, and back.
local function keep_batches(self, batches)
  if sampler.state(self.batch_sampler) then return end
  local all, sizes = {}, {}
  for b, batch in ipairs(batches) do
    sizes[b] = #batch
    table.move(batch, 1, #batch, #all + 1, all)
  end
  loader_state.keep(self, all, sizes)
end
local function kept_batches(kept)
  local all, sizes, batches, at = sampler.indices(kept.order), sampler.indices(kept.sizes), {}, 0
  for b, n in ipairs(sizes) do
    batches[b] = table.move(all, at + 1, at + n, 1, {})
    at = at + n
  end
  return batches
end

-- A function from the number of a batch to its samples: a list, or i64 [n] for datasets with get_batch, or first and
-- last for a run of a dataset with get_range.
local function plan(self)
  local ds, size = self.dataset, self.batch_size
  local whole = not self.collate and collate.has_batches(ds)
  if self.batch_sampler then
    local kept = self._kept
    local batches = kept and kept_batches(kept) or self.batch_sampler:batches()
    if #batches ~= #self.batch_sampler then
      fail("data.DataLoader: the batch sampler gave %d batches where its # says %d", #batches, #self.batch_sampler)
    end
    if not kept then keep_batches(self, batches) end
    if not whole then return function(b) return batches[b] end end
    return function(b) return T.tensor(batches[b], { dtype = "i64", device = "cpu" }) end
  end
  local n = #(self.sampler or ds)
  local order
  if self.sampler then
    order = sampler.indices(self._kept and self._kept.order or self.sampler)
    if not self._kept then loader_state.keep(self, order) end
    if #order ~= n then fail("data.DataLoader: the sampler gave %d samples where its # says %d", #order, n) end
    if whole and n > 0 then order = T.tensor(order, { dtype = "i64", device = "cpu" }) end
  elseif self.shuffle then
    order = dataset.permutation(n, self.seed and self.seed + self.epoch)
    if not whole then order = n > 0 and order:totable() or {} end
  elseif not self.collate and dataset.has_method(ds, "get_range") and self.workers == 0 then
    return function(b) return (b - 1) * size + 1, math.min(b * size, n) end
  elseif whole and n > 0 then
    order = T.arange(n, { device = "cpu" })
  end
  return function(b)
    local first, last = (b - 1) * size + 1, math.min(b * size, n)
    if type(order) == "userdata" then return order:narrow(1, first, last - first + 1) end
    local list = {}
    for i = first, last do list[#list + 1] = order and order[i] or i end
    return list
  end
end

-- ---- passes in this thread -----------------------------------------------------------------------------------

-- A batch is the loop's own, also where it is a run of rows: what is written into it does not reach the dataset.
local function own(x, y, ...)
  if select("#", ...) > 0 then
    local list = { x, y, ... }
    for i, t in ipairs(list) do list[i] = t:clone() end
    return table.unpack(list)
  end
  return x:clone(), y and y:clone()
end

local function local_pass(self, samples, count, base, b)
  local ds = self.dataset
  local plain = getmetatable(ds) == dataset.TensorDataset -- draws no random numbers
  local job
  return function()
    b = b + 1
    if b > count then return nil end
    local first, last = samples(b)
    if last and plain then return own(ds:get_range(first, last)) end
    if last then return ds:get_range(first, last) end
    if plain and type(first) == "userdata" then return ds:get_batch(first) end
    job = job or { dataset = ds, collate = self.collate, base = base }
    return collate.batch(job, first)
  end
end

-- Of an IterableDataset.
local function stream_pass(self)
  local next_sample = self.dataset:iter()
  if type(next_sample) ~= "function" then
    fail("data.IterableDataset: iter must return a function, got %s", describe(next_sample))
  end
  local join = self.collate or DataLoader.default_collate
  local function sample(...)
    if select("#", ...) > 1 and ... ~= nil then return { ... } end
    return (...)
  end
  return function()
    local samples = {}
    while next_sample and #samples < self.batch_size do
      local s = sample(next_sample())
      if s == nil then next_sample = nil else samples[#samples + 1] = s end
    end
    if #samples == 0 or self.drop_last and #samples < self.batch_size then return nil end
    local batch = join(samples)
    if self.collate then return batch end
    return collate.values(batch, samples[1])
  end
end

-- ---- batches for a GPU ------------------------------------------------------------------------------------------

-- v with its tensors in pinned memory, or from there on the device. Tables are made anew where something changes; those
-- with a metatable stay, unless they know how to move: v:to(device).
local function placed(v, device)
  if type(v) == "userdata" and T.is_tensor(v) then
    if v:is_cuda() then return device and v:to(device) or v end
    v = v:pin_memory()
    return device and v:to(device, { non_blocking = true }) or v
  end
  if type(v) ~= "table" then return v end
  if getmetatable(v) ~= nil then return device and type(v.to) == "function" and v:to(device) or v end
  local out = {}
  for key, item in pairs(v) do out[key] = placed(item, device) end
  return out
end

local function place_all(device, ...)
  local values = table.pack(...)
  for i = 1, values.n do values[i] = placed(values[i], device) end
  return values
end

-- The batches of step, one of them ahead. An error waits for the turn of its batch.
local function ahead(step, device)
  local next_batch
  local function fetch()
    core.raised(false)
    local values = table.pack(pcall(step))
    if not values[1] then
      if core.raised() == "interrupt" then error(values[2], 0) end
      return { failed = true, n = 0, values[2] }
    end
    if values[2] == nil then return { n = 0 } end
    return place_all(device, table.unpack(values, 2, values.n))
  end
  return function()
    local batch = next_batch or fetch()
    if batch.failed then
      next_batch = { n = 0 }
      error(batch[1], 0)
    end
    next_batch = batch.n > 0 and fetch() or batch
    return table.unpack(batch, 1, batch.n)
  end
end

local function for_gpu(self, step)
  if self.device and self.device ~= "cpu" then return ahead(step, self.device) end
  if not self.pin_memory then return step end
  local function pin(...)
    if ... == nil then return nil end
    local values = place_all(nil, ...)
    return table.unpack(values, 1, values.n)
  end
  return function() return pin(step()) end
end

-- ---- passes through workers -----------------------------------------------------------------------------------

local function same(a, b)
  for i = 1, math.max(#a, #b) do if not rawequal(a[i], b[i]) then return false end end
  return true
end

-- Workers have a copy of the dataset, so new ones are wanted where it changed since; a pass that goes on has the old
-- ones to its end.
local function crew_of(self)
  local setup = { dataset = self.dataset, collate = self.collate, worker_init = self.worker_init,
    dtype = T.default_dtype() }
  local text, tensors = pack.pack(setup, "data.DataLoader")
  local crew = self._crew
  if crew and crew.text == text and crew.workers == self.workers and same(crew.tensors, tensors) then return crew end
  local pool = core.workers(self.workers, "perilune.data.worker", text, tensors)
  if crew then
    crew.retired = true
    if crew.passes == 0 then crew.pool:close() end
  end
  self._crew = { pool = pool, text = text, tensors = tensors, workers = self.workers, passes = 0,
    before = crew and crew.passes > 0 and crew }
  return self._crew
end

-- Waits in short steps: between them Ctrl-C gets through.
local function answer(pool, pass, b)
  while true do
    local ok, text, tensors = pool:take(pass, b, WAIT_MS)
    if ok then return pack.unpack(text, tensors) end
    if ok == false then fail("data.DataLoader: in a worker: %s", text) end
  end
end

-- Batches come in order, whichever worker made them. The guard tells the workers when nobody wants the rest.
local function worker_pass(self, samples, count, base, b)
  local crew = crew_of(self)
  local pool = crew.pool
  self._passes, crew.passes = self._passes + 1, crew.passes + 1
  local pass, submitted, goes_on = self._passes, b, true
  local function ended()
    if not goes_on then return end
    goes_on, crew.passes = false, crew.passes - 1
    if crew.retired and crew.passes == 0 then pool:close() end
  end
  local function forget()
    pool:cancel(pass)
    ended()
  end
  local guard = setmetatable({}, { __gc = forget, __close = forget })
  local watch = setmetatable({}, { __close = function(_, err) if err ~= nil then forget() end end })
  local function submit()
    if submitted >= count then return end
    submitted = submitted + 1
    pool:submit(pass, submitted, pack.pack({ base = base, indices = samples(submitted), dtype = T.default_dtype() },
      "data.DataLoader", true))
  end
  for _ = 1, self.workers * (self.prefetch or PREFETCH) do submit() end
  local function step()
    assert(guard) -- lives as long as this function
    b = b + 1
    if b > count then
      ended()
      return nil
    end
    local _ <close> = watch -- Ctrl-C while waiting, or an error in a worker: nobody wants the rest
    local batch = answer(pool, pass, b)
    submit()
    return table.unpack(batch, 1, batch.n)
  end
  return step, guard
end

-- A function that returns batch after batch of one pass, and what to close when it is left early.
local function pass(self)
  if T.core.jit_tracing() then
    options.untraceable("data.DataLoader: a loop over it in a traced function would read one pass for ever; pass "
      .. "batches as arguments")
  end
  if is_stream(self.dataset) then
    local _, step, s = loader_state.begin(self, function(s)
      local step = stream_pass(self)
      for b = 1, s.batch do
        if step() == nil then
          fail("data.DataLoader: the state is behind batch %d, and the dataset has %d now", s.batch, b - 1)
        end
      end
      return nil, step
    end)
    self.epoch = self.epoch + 1
    return loader_state.counted(self, s, for_gpu(self, step))
  end
  local ds = self.dataset
  local plain = getmetatable(ds) == dataset.TensorDataset and not self.collate -- draws nothing
  -- base is of this pass: others may begin before it ends
  local base, samples, s = loader_state.begin(self, function() return plain and 0 or base_seed(self), plan(self) end)
  local count = #self -- behind plan: a batch sampler may know it by then only
  self.epoch = self.epoch + 1
  if self.workers > 0 and count > 0 then
    local step, guard = worker_pass(self, samples, count, base, s.batch)
    return loader_state.counted(self, s, for_gpu(self, step)), guard
  end
  return loader_state.counted(self, s, for_gpu(self, local_pass(self, samples, count, base, s.batch)))
end

--- T.data.DataLoader(dataset, {batch_size=1, shuffle=, drop_last=, seed=, collate=, sampler=, workers=0, …}) → loader
-- Batches for a generic for; #loader counts them. Samples are joined by collate (data.default_collate). Also endless=,
-- batch_sampler=, prefetch=, worker_init=, pin_memory=, device=. Random numbers drawn for sample i depend on the seed,
-- the pass and i alone. workers=n: threads, each with a Lua state of its own, which gets a copy of the dataset at the
-- first pass, and new ones where it changed before a later one: tables, functions with their upvalues, tensors without
-- a copy (read only from then on); modules are required anew. prefetch=2: batches made ahead per worker.
-- worker_init=function(k, dataset): runs first in worker k; may return a dataset in place, with open files for example.
-- An error in a worker is raised at the loop. loader:close() ends the threads. endless: a loop goes on with pass after
-- pass until it is left; loader:iter() is one pass. device="cuda": batches are there; the next one is copied, from
-- pinned memory, while the loop works on this one. pin_memory: batches are in pinned memory. generator=T.Generator(…):
-- what the loader draws comes from it, not from the global one. loader:state_dict() says where a pass stands.
--   for x in T.data.DataLoader(T.arange(5), { batch_size = 2, workers = 2 }) do print(x) end
--   --> {1, 2}  -- i64[2] cpu
--   --> {3, 4}  -- i64[2] cpu
--   --> {5}  -- i64[1] cpu
--   print(#T.data.DataLoader(T.arange(5), { batch_size = 2 }))  --> 3
function DataLoader:iter()
  local step, guard = pass(self)
  return step, nil, nil, guard
end

-- The batch that a loop hands back tells which pass goes on, so loops over one loader may be nested. A batch that
-- begins with a number or text, or with the same object each time, may stand in several: then it is the loop of that
-- line, else the latest.
local MOST = 16 -- loops that were left, by break, are not told apart from those that go on

function DataLoader:_forget()
  self._active, self._sites, self._equal = setmetatable({}, { __mode = "k" }), setmetatable({}, { __mode = "k" }), {}
end

-- The line of the for, called in a function that __call calls.
local function site_of_loop()
  local at = debug.getinfo(4, "Sl")
  return at and at.source .. ":" .. at.currentline or "?"
end

local function begin(self)
  local step = pass(self)
  self._sites[step] = site_of_loop()
  return step
end

local function going_on(self, control)
  local equal, found, site, at = self._equal, self._active[control], nil, nil
  for i = #equal, 1, -1 do
    if rawequal(equal[i].last, control) then
      site = site or site_of_loop()
      local here = self._sites[equal[i].step] == site
      if not at or here and not equal[at].here then at = i end
      equal[i].here = here
    end
  end
  if at and (equal[at].here or not found) then return table.remove(equal, at).step end
  self._active[control] = nil
  return found
end

function DataLoader:__call(_, control)
  local step
  if control == nil then
    step = begin(self)
  else
    step = going_on(self, control)
    if not step then fail("data.DataLoader: no loop over it stands at the batch %s", describe(control)) end
  end
  local site = self._sites[step]
  return self:_remember(site, self:_onwards(step, step()))
end

-- What the pass gave; of an endless loader, at the end of a pass, the first batch of the next one.
function DataLoader:_onwards(step, first, ...)
  if first ~= nil or not self.endless then return step, first, ... end
  step = pass(self)
  return step, step()
end

function DataLoader:_remember(site, step, first, ...)
  if first == nil then return end
  self._sites[step] = site
  if (type(first) == "userdata" or type(first) == "table") and self._active[first] == nil then
    self._active[first] = step
  else
    local equal = self._equal
    if #equal == MOST then table.remove(equal, 1) end
    equal[#equal + 1] = { step = step, last = first }
  end
  return first, ...
end

--- loader:state_dict() → table
-- Where the loop that was begun last stands, for T.save: its batches that were given, and what its order was made from.
-- After loader:load_state_dict(state) the next loop gives the batches that would have followed, with any number of
-- workers, and the passes behind it are those that would have come; the global generator stays where it is (T.fit keeps
-- that, or T.get_rng_state). An IterableDataset is read from its beginning, and what was given is dropped.
--   local loader = T.data.DataLoader(T.arange(6), { batch_size = 2, shuffle = true, seed = 1 })
--   local state, want
--   for x in loader do
--     if state then want = x break end
--     state = loader:state_dict()
--   end
--   local other = T.data.DataLoader(T.arange(6), { batch_size = 2, shuffle = true, seed = 1 }):load_state_dict(state)
--   for x in other do print(x:equal(want)) break end  --> true
function DataLoader:state_dict()
  if type(self) ~= "table" then options.colon "loader:state_dict()" end
  return loader_state.state_dict(self)
end

--- loader:load_state_dict(state) → loader
-- See loader:state_dict. The dataset's size, batch_size, shuffle, seed and the sampler's kind and settings have to be
-- those of then.
function DataLoader:load_state_dict(state)
  if type(self) ~= "table" then options.colon "loader:load_state_dict(state)" end
  return loader_state.load_state_dict(self, state)
end

--- Ends the worker threads, if there are any; the next pass starts new ones with the dataset as it is then.
function DataLoader:close()
  if type(self) ~= "table" then options.colon "loader:close()" end
  local crew = self._crew
  self._crew = nil
  self:_forget()
  while crew do
    crew.pool:close()
    crew = crew.before
  end
end
DataLoader.__close = DataLoader.close

function DataLoader:__tostring()
  if is_stream(self.dataset) then return ("DataLoader of a stream in batches of %d"):format(self.batch_size) end
  return ("DataLoader of %d samples in %d batches%s%s"):format(#self.dataset, #self,
    self.batch_sampler and "" or " of " .. self.batch_size,
    self.workers > 0 and (" from %d workers"):format(self.workers) or "")
end

DataLoader.default_collate = collate.default

-- Nothing is at its numbers, so a loop by ipairs would end before its first turn, one by pairs go over its fields.
local function not_a_list(how)
  fail("data.DataLoader: a loader is no %s; its batches come by for x, y in loader do … end, counted by a variable of "
    .. "the loop's own", how)
end
getmetatable(DataLoader).__index = function(_, key)
  if math.type(key) == "integer" then not_a_list(("list with an entry %d (ipairs asks for it)"):format(key)) end
end
DataLoader.__pairs = function() not_a_list "table for pairs" end

getmetatable(DataLoader).__call = function(_, ...) return new(...) end
return DataLoader
