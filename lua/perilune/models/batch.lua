-- SPDX-License-Identifier: MIT
--- Several texts made together: each is a coroutine of its own, which calls net:generate(ids, {batch = batch}) as if it
-- were alone. Where it wants its next token it yields, and one call of the network, batch:step(), serves all that wait:
-- the weights are read once for all of them. Texts come and go at any step. @module perilune.models.batch
local T = require "perilune"
local core = require "perilune.core"
local evaluating = require "perilune.nn.evaluating"
local KVCache = require("perilune.nn.cache").KVCache
local step = require "perilune.models.step"

local M = {}
local Batch, State = {}, {}
Batch.__index, State.__index = Batch, State

local BLOCK = 256 -- places by which the memory grows
local EAGER = 8   -- steps before they are compiled (models/step.lua)

--- What texts of net can be made in; nil where its layers need more than keys and values of their own rows: windows,
-- experts, angles that depend on the length. streams: how many texts at a time.
function M.new(net, streams)
  if not net.begin or not net._d or not net._d.names or not step.fits(net) then return nil end
  local device = net[net._d.names.root][net._d.names.embed].weight:device()
  return setmetatable({ net = net, device = device, streams = streams, slots = {}, rows = 0, room = 0, ks = {},
    vs = {}, waiting = {}, steps = 0, calls = 0 }, Batch)
end

-- ---- memory ------------------------------------------------------------------------------------------------

-- Memory of all layers for rows texts of room places, what is there copied over; like: a cache with the layers' sizes.
local function reserve(self, rows, room, like)
  if rows <= self.rows and room <= self.room then return end
  rows, room = math.max(rows, self.rows), math.max((room + BLOCK - 1) // BLOCK * BLOCK, self.room)
  local _ <close> = T.no_grad()
  for _, name in ipairs { "k", "v" } do
    local list = name == "k" and self.ks or self.vs
    for i, at in ipairs(like or self.like) do
      local t = at[name]
      local new = T.zeros({ rows, t[1], room, t[2] }, { dtype = t[3], device = t[4] })
      if list[i] then
        new:narrow(1, 1, self.rows):narrow(3, 1, self.room):copy_(list[i])
      end
      list[i] = new
    end
  end
  self.like, self.rows, self.room = like or self.like, rows, room
end

-- Heads, width, dtype and device of the keys and values of each layer of a cache.
local function sizes_of(cache)
  local out = {}
  for i, at in ipairs(cache.layers) do
    out[i] = {}
    for _, name in ipairs { "k", "v" } do
      local t = at[name]
      out[i][name] = { t:size(2), t:size(4), t:dtype(), t:device() }
    end
  end
  return out
end

-- ---- one text ----------------------------------------------------------------------------------------------

--- Takes a free row for a prompt. → the state that generate.lua works with; it is given back when it is closed.
function Batch:begin(rows)
  if #rows ~= 1 then error("generate: batch goes with one prompt in each coroutine", 0) end
  local slot = 1
  while self.slots[slot] do slot = slot + 1 end
  if slot > self.streams then error("generate: the batch has no room for another text", 0) end
  local state = setmetatable({ batch = self, slot = slot, n = 0, first = { table.unpack(rows) } }, State)
  self.slots[slot] = state
  return state
end

--- The row is free again; nobody waits for it.
function State:close()
  local batch = self.batch
  if batch.slots[self.slot] ~= self then return end
  batch.slots[self.slot], batch.waiting[self] = nil, nil
  if next(batch.slots) == nil then -- a long text is over: its memory is not kept
    batch.ks, batch.vs, batch.rows, batch.room, batch.like = {}, {}, 0, 0, nil
  end
end
State.__close = State.close

-- The prompt, read alone, into the row.
local function read(self, ids)
  local batch, cache = self.batch, KVCache()
  local logits = batch.net(T.tensor({ ids }, { dtype = "i64", device = batch.device }), { cache = cache, last = 1 })
  local n = #cache
  local rows = 1
  while rows < self.slot do rows = rows * 2 end
  reserve(batch, rows, n + 1, batch.like or sizes_of(cache))
  local _ <close> = T.no_grad()
  for i, at in ipairs(cache.layers) do
    batch.ks[i]:narrow(1, self.slot, 1):narrow(3, 1, n):copy_(at.k:narrow(3, 1, n))
    batch.vs[i]:narrow(1, self.slot, 1):narrow(3, 1, n):copy_(at.v:narrow(3, 1, n))
  end
  self.n = n
  return logits:squeeze(2)
end

--- One id more, or the prompt → logits [1, V] of what comes next. Yields the batch until batch:step() has them.
function State:advance(rows)
  if self.n == 0 then return read(self, rows[1]) end
  local places = self.batch.net._d.places
  if places and self.n >= places then
    error(("generate: %d places, and the text reaches place %d"):format(places, self.n + 1), 0)
  end
  self.id, self.got = rows[1][1], nil
  self.batch.waiting[self] = true
  while self.batch.waiting[self] do coroutine.yield(self.batch) end
  if self.failure then error(self.failure, 0) end
  return self.got
end

-- ---- one step of all ---------------------------------------------------------------------------------------

-- All rows one place further: ids [R, 1], at place[r] of row r each.
local function forward(net, ids, place, logits, ...)
  local ks, vs = step.apart(...)
  local seen = T.arange(0, ks[1]:size(3) - 1, { device = ks[1]:device() }):unsqueeze(1):le(place:unsqueeze(2)):long()
  local at, places = place:unsqueeze(2), net._d.places
  if places then at = at:clamp { max = places - 1 } end -- rows that nobody waits for may be full
  local y = net(ids, { cache = step.whole(ks, vs, place), attention_mask = seen, position_ids = at, last = 1 })
  logits:copy_(y:squeeze(2))
end

local function run(self)
  local rows, most = 1, 0
  for slot, state in pairs(self.slots) do
    if state.n > 0 then
      while rows < slot do rows = rows * 2 end
      most = math.max(most, state.n)
    end
  end
  reserve(self, rows, most + 1)
  -- Rows that nobody waits for are computed, too; what they write lies behind their last place.
  local ids, place = {}, {}
  for r = 1, rows do
    local state = self.slots[r]
    ids[r], place[r] = { state and self.waiting[state] and state.id or 0 }, state and state.n or 0
  end
  local ks, vs = {}, {}
  for i = 1, #self.ks do ks[i], vs[i] = self.ks[i]:narrow(1, 1, rows), self.vs[i]:narrow(1, 1, rows) end
  local where = { dtype = "i64", device = self.device }
  local logits = T.empty({ rows, self.net._d.vocab }, { dtype = ks[1]:dtype(), device = self.device })
  self.steps = self.steps + 1
  if self.steps > EAGER and ks[1]:device() == "cpu" and not self.program then
    local net = self.net -- an upvalue, which is a guard
    self.program = T.jit(function(...) forward(net, ...) end, { name = "generate", max_traces = 64 })
  end
  local f = self.program or function(...) forward(self.net, ...) end
  f(T.tensor(ids, where), T.tensor(place, where), logits, table.unpack(step.beside(ks, vs)))
  return logits
end

--- One call of the network for all texts that wait. → how many did
function Batch:step()
  local states = {}
  for state in pairs(self.waiting) do states[#states + 1] = state end
  if #states == 0 then return 0 end
  core.raised(false)
  local ok, logits
  if self.net.training then ok, logits = pcall(evaluating, self.net, run, self)
  else ok, logits = pcall(T.no_grad, run, self) end
  self.calls = self.calls + 1
  for _, state in ipairs(states) do
    self.waiting[state] = nil
    if ok then
      state.got, state.n = logits:narrow(1, state.slot, 1), state.n + 1
    else
      state.failure = logits
    end
  end
  if not ok and core.raised() == "interrupt" then error(logits, 0) end
  return #states
end

return M
