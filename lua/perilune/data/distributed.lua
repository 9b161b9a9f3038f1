-- SPDX-License-Identifier: MIT
--- The share of one process in a dataset: data.DistributedSampler(ds).
-- @module perilune.data.distributed
local classes = require "perilune.classes"
local dataset = require "perilune.data.dataset"
local options = require "perilune.options"
local sampler = require "perilune.data.sampler"

local fail, describe = options.fail, options.describe
local Distributed = classes.new("DistributedSampler", "sampler")
-- The dataset may have grown since the last pass.
local function look(self)
  self.of = sampler.count("data.DistributedSampler", self.source)
  self.n = self.drop_last and self.of // self.num_replicas or (self.of + self.num_replicas - 1) // self.num_replicas
  return self.n
end
Distributed.__len = look
Distributed.__tostring = function(self)
  return ("DistributedSampler of %d, %d of %d"):format(#self, self.rank, self.num_replicas)
end

local spec = options.spec("data.DistributedSampler", { { "num_replicas", "count", optional = true },
  { "rank", "size", optional = true }, { "shuffle", "bool", true }, { "seed", "int", 0 },
  { "drop_last", "bool", false } })

--- T.data.DistributedSampler(dataset or n, {num_replicas=, rank=, shuffle=true, seed=0, drop_last=false}) → sampler
-- This process's share of a dataset, for T.data.DataLoader(ds, {sampler = s}). s:set_epoch(e) before each epoch gives
-- another order, the same in all processes (T.fit calls it). Where samples cannot be shared out evenly the first ones
-- come again, or with drop_last the last are left out.
--   local s = T.data.DistributedSampler(5, { num_replicas = 2, rank = 1, shuffle = false })
--   print(table.concat(s:indices(), " "))  --> 2 4 1
function Distributed.new(what, opts)
  local a = options.read(spec, opts or {})
  if not a.num_replicas or not a.rank then
    local D = require "perilune.distributed"
    if not D.is_initialized() then
      fail("data.DistributedSampler: there is no process group; call T.distributed.init_process_group() first, or give "
        .. "num_replicas and rank")
    end
    a.num_replicas, a.rank = a.num_replicas or D.get_world_size(), a.rank or D.get_rank()
  end
  if a.rank >= a.num_replicas then
    fail("data.DistributedSampler: rank must be from 0 to %d, got %d", a.num_replicas - 1, a.rank)
  end
  a.source, a.epoch = what, 0
  look(a)
  return setmetatable(a, Distributed)
end

--- Another order from the next pass on.
function Distributed:set_epoch(epoch)
  local e = options.integer(epoch)
  if not e then fail("set_epoch: the epoch must be an integer, got %s", describe(epoch)) end
  self.epoch = e
  return self
end

function Distributed:_text() -- of any rank
  return ("DistributedSampler of %d in %d parts%s"):format(self.of, self.num_replicas,
    self.shuffle and (", seed = %d"):format(self.seed) or ", shuffle = false")
end
function Distributed:state_dict() return { epoch = self.epoch } end
function Distributed:load_state_dict(state)
  options.check("DistributedSampler:load_state_dict", state, { "epoch" })
  return self:set_epoch(state.epoch)
end

function Distributed:indices()
  look(self)
  local order = self.shuffle and self.of > 0 and dataset.permutation(self.of, self.seed + self.epoch):totable()
  local list = {}
  for i = 1, self.n do
    local k = (i - 1) * self.num_replicas + self.rank -- from 0, and again from the front
    list[i] = order and order[k % self.of + 1] or k % self.of + 1
  end
  return list
end

getmetatable(Distributed).__call = function(_, ...) return Distributed.new(...) end
return { DistributedSampler = Distributed }
