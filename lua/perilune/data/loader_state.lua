-- SPDX-License-Identifier: MIT
--- Where a pass of a DataLoader stands, and how another loader comes to stand there: not the order, which may be long,
-- but what it was made from: where the generator, the loader's count of passes and the sampler were when it began. Of
-- a sampler whose state nobody knows the order is kept.
-- @module perilune.data.loader_state
local T = require "perilune"
local dataset = require "perilune.data.dataset"
local options = require "perilune.options"
local sampler = require "perilune.data.sampler"

local fail, describe = options.fail, options.describe
local M = {}

local WHO = "DataLoader:load_state_dict"

local function order_of(self) return self.batch_sampler or self.sampler end
local function is_stream(self) return getmetatable(self.dataset) == dataset.IterableDataset end
local function samples_of(self) return is_stream(self) and -1 or #self.dataset end

-- What makes the order, beside what the state has of it: with another seed the same state is of other batches.
local function made_by(self)
  local order = order_of(self)
  local text = is_stream(self) and "an IterableDataset" or order and sampler.text(order)
    or self.shuffle and "shuffle = true" or "shuffle = false"
  return self.seed and ("%s, seed = %d"):format(text, self.seed) or text
end

-- A sampler may hand out the table that it counts in.
local function copied(v)
  if type(v) ~= "table" or getmetatable(v) ~= nil then return v end
  local out = {}
  for key, x in next, v do out[key] = copied(x) end
  return out
end
local function state_of(order) return order and copied(sampler.state(order)) or nil end

--- A pass begins, and is made by make(its state) → what that returns, and the state. One that is resumed is made as it
-- was then. What a stream draws is its own affair: it has the global generator.
function M.begin(self, make)
  local s, order = self._resume, order_of(self)
  if s then
    s.ended = nil
    self.epoch = s.epoch
    if s.sampler then sampler.load_state(order, s.sampler) end
    self._kept = s.order and s
    self._now = s
    local function again()
      local got = table.pack(pcall(make, s))
      self._kept = nil
      if not got[1] then error(got[2], 0) end
      return table.unpack(got, 2, got.n)
    end
    local base, samples = T.Generator(0):set_state(s.rng):run(again)
    return base, samples, s
  end
  local generator = not is_stream(self) and self.generator
  s = { epoch = self.epoch, batch = 0, samples = samples_of(self), batch_size = self.batch_size, by = made_by(self),
    rng = generator and generator:get_state() or T.get_rng_state(), sampler = state_of(order) }
  self._now = s
  local base, samples
  if generator then base, samples = generator:run(make, s) else base, samples = make(s) end
  return base, samples, s
end

--- What a sampler whose state is unknown gave: kept for the pass's state.
function M.keep(self, order, sizes)
  local of = order_of(self)
  if not sampler.state(of) then self._now.order, self._now.sizes = order, sizes end
end

--- step, counting what it gives. The pass is made: one that failed before is resumed by the next loop.
function M.counted(self, s, step)
  self._resume = nil
  local function given(first, ...)
    if first ~= nil then s.batch = s.batch + 1 else s.ended = true end
    return first, ...
  end
  return function() return given(step()) end
end

local function integers(list)
  if T.is_tensor(list) or list == nil then return list end
  return #list > 0 and T.tensor(list, { dtype = "i64", device = "cpu" }) or T.zeros({ 0 }, { dtype = "i64" })
end

--- See DataLoader:state_dict.
function M.state_dict(self)
  local s, order, out = self._resume or self._now, order_of(self), {}
  if s and not s.ended then
    for key, v in next, s do out[key] = v end
    out.order, out.sizes = integers(s.order), integers(s.sizes)
  else -- between passes: the next one begins where the generator is then
    out = { epoch = self.epoch, batch = 0, samples = samples_of(self), batch_size = self.batch_size, by = made_by(self),
      sampler = state_of(order) }
  end
  out.generator = self.generator and self.generator:get_state() or nil
  return out
end

local fields = { epoch = "size", batch = "size", samples = "int", batch_size = "count" }

local function check(self, state)
  options.check(WHO, state, { "epoch", "batch", "samples", "batch_size", "by", "rng", "sampler", "order", "sizes",
    "generator" })
  for key, kind in next, fields do options.kind(WHO, key, kind, state[key]) end
  local own = samples_of(self)
  if state.samples ~= own or state.batch_size ~= self.batch_size then
    fail("%s: the state is of %d samples in batches of %d; this loader has %d in batches of %d", WHO, state.samples,
      state.batch_size, own, self.batch_size)
  end
  local order = order_of(self)
  local by = made_by(self)
  if state.by ~= by or (state.sampler == nil) ~= (state_of(order) == nil) then
    fail("%s: the state is of a loader with another order (%s); this one has %s", WHO, describe(state.by), by)
  end
  if own >= 0 and state.batch > #self then
    fail("%s: the state is behind batch %d; a pass has %d", WHO, state.batch, #self)
  end
  if (state.generator == nil) ~= (self.generator == nil) then
    fail("%s: the state is of a loader %s a generator", WHO, state.generator and "with" or "without")
  end
  if state.batch > 0 or state.rng ~= nil then T.Generator(0):set_state(state.rng) end -- an error where it is none
  for _, key in ipairs { "order", "sizes" } do
    if state[key] ~= nil and not T.is_tensor(state[key]) then
      fail("%s: %s must be a tensor, got %s", WHO, key, describe(state[key]))
    end
  end
  return order
end

--- See DataLoader:load_state_dict.
function M.load_state_dict(self, state)
  local order = check(self, state)
  if state.generator then self.generator:set_state(state.generator) end
  if state.sampler then sampler.load_state(order, state.sampler) end
  self.epoch, self._now, self._resume = state.epoch, nil, nil
  if state.rng == nil then return self end -- between passes
  local s = {}
  for key, v in next, state do s[key] = v end
  s.generator = nil
  self._resume = s
  return self
end

return M
