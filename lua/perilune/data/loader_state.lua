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
local function samples_of(self)
  return getmetatable(self.dataset) == dataset.IterableDataset and -1 or #self.dataset
end

--- A pass begins, and is made by make() → what that returns, and the pass's state. One that is resumed is made as it
-- was then.
function M.begin(self, make)
  local s, order = self._resume, order_of(self)
  if s then
    self._resume, s.ended = nil, nil
    self.epoch = s.epoch
    if s.sampler then sampler.load_state(order, s.sampler) end
    self._kept = s.order and s
    self._now = s
    local function again()
      local got = table.pack(pcall(make))
      self._kept = nil
      if not got[1] then error(got[2], 0) end
      return table.unpack(got, 2, got.n)
    end
    local base, samples = T.Generator(0):set_state(s.rng):run(again)
    return base, samples, s
  end
  local generator = self.generator
  s = { epoch = self.epoch, batch = 0, samples = samples_of(self), batch_size = self.batch_size,
    rng = generator and generator:get_state() or T.get_rng_state(), sampler = order and sampler.state(order) or nil }
  self._now = s
  local base, samples
  if generator then base, samples = generator:run(make) else base, samples = make() end
  return base, samples, s
end

--- What a sampler whose state is unknown gave: kept for the pass's state.
function M.keep(self, order, sizes)
  local of = order_of(self)
  if not sampler.state(of) then self._now.order, self._now.sizes = order, sizes end
end

--- step, counting what it gives.
function M.counted(s, step)
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
  if s and s.batch > 0 and not s.ended then
    for key, v in next, s do out[key] = v end
    out.order, out.sizes = integers(s.order), integers(s.sizes)
  else -- between passes: the next one begins where the generator is then
    out = { epoch = self.epoch, batch = 0, samples = samples_of(self), batch_size = self.batch_size,
      sampler = order and sampler.state(order) or nil }
    if s and not s.ended then out.epoch, out.sampler = s.epoch, s.sampler end -- it has given nothing
  end
  out.generator = self.generator and self.generator:get_state() or nil
  return out
end

local fields = { epoch = "size", batch = "size", samples = "int", batch_size = "count" }

local function check(self, state)
  options.check(WHO, state, { "epoch", "batch", "samples", "batch_size", "rng", "sampler", "order", "sizes",
    "generator" })
  for key, kind in next, fields do options.kind(WHO, key, kind, state[key]) end
  local own = samples_of(self)
  if state.samples ~= own or state.batch_size ~= self.batch_size then
    fail("%s: the state is of %d samples in batches of %d; this loader has %d in batches of %d", WHO, state.samples,
      state.batch_size, own, self.batch_size)
  end
  local order = order_of(self)
  if (state.sampler == nil) ~= (not order or not sampler.state(order)) then
    fail("%s: the state is of a loader with another sampler", WHO)
  end
  if own >= 0 and state.batch > #self then
    fail("%s: the state is behind batch %d; a pass has %d", WHO, state.batch, #self)
  end
  if (state.generator == nil) ~= (self.generator == nil) then
    fail("%s: the state is of a loader %s a generator", WHO, state.generator and "with" or "without")
  end
  if state.batch > 0 then T.Generator(0):set_state(state.rng) end -- an error where it is none
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
  if state.batch == 0 then return self end
  local s = {}
  for key, v in next, state do s[key] = v end
  s.generator = nil
  self._resume = s
  return self
end

return M
