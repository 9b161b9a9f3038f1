-- SPDX-License-Identifier: MIT
--- A network that several processes train together: nn.parallel.DistributedDataParallel(net).
--
-- Every process has the whole network and a share of the batch. Gradients are averaged over the processes in buckets
-- while backward still computes others. A bucket is sent once all its gradients are there, buckets always in one order,
-- so that all processes make the same calls; at the end of backward the averages replace the gradients (Li et al.,
-- "PyTorch Distributed", VLDB 2020).
-- @module perilune.nn.parallel
local T = require "perilune"
local core = require "perilune.core"
local options = require "perilune.options"
local base = require "perilune.nn.module"
local tree = require "perilune.tree"

local fail = options.fail
local MB, FIRST_MB = 2 ^ 20, 1 -- the first bucket is small: communication begins early

--- nn.parallel.DistributedDataParallel(net, {bucket_cap_mb=25, broadcast_buffers=true, process_group=}) → module
-- Trains net in all processes, each with its share of a batch: backward leaves in .grad the averages over the ranks, in
-- buckets that travel while backward computes others. Parameters and buffers begin as rank 0's; buffers become rank 0's
-- before each forward in training outside of no_sync. The network is .module; ddp:no_sync(f) only accumulates.
-- Parameters may be unused on some ranks; those that come later, or are unfrozen later, are an error. Inside of it a
-- network may be jitted; T.jit around it is refused.
--   T.distributed.init_process_group()
--   local ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 1, { bias = false }))
--   ddp(T.ones(1, 2)):sum():backward()
--   print(ddp.module.weight.grad)  --> {{1., 1.}}  -- f32[1,2] cpu
--   T.distributed.destroy_process_group()
local DDP = base.class("DistributedDataParallel")
local spec = options.spec("nn.parallel.DistributedDataParallel", { { "bucket_cap_mb", "number", 25 },
  { "broadcast_buffers", "bool", true }, { "find_unused_parameters", "bool", true },
  { "process_group", "any", optional = true } })

local function distributed() return require "perilune.distributed", require "perilune.distributed.state" end

-- ---- making one ------------------------------------------------------------------------------------------------

-- All ranks must have the same parameters and buffers in the same order.
local function check_alike(self, D)
  local lines = {}
  for _, what in ipairs { "parameter", "buffer" } do
    for _, item in ipairs(base.collect(self.module, what)) do
      local t = item[2]
      lines[#lines + 1] = ("%s %s[%s]%s"):format(item[1], t:dtype(), table.concat(t:shape(), ","),
        t.requires_grad and "" or " (constant)")
    end
  end
  local all = D.all_gather_object({}, lines, { group = self.group })
  for r, other in ipairs(all) do
    for i = 1, math.max(#lines, #other) do
      if lines[i] ~= other[i] then
        fail("nn.parallel.DistributedDataParallel: the networks differ: here entry %d is %s, on rank %d it is %s", i,
          lines[i] or "missing", self.group.ranks[r], other[i] or "missing")
      end
    end
  end
end

-- Tensors become rank 0's (of the group), all under way at once.
local function broadcast(self, D, list)
  local works, src = {}, self.group.ranks[1]
  for i, t in ipairs(list) do works[i] = D.broadcast(t, src, { group = self.group, async_op = true }) end
  for _, work in ipairs(works) do work:wait() end
end

-- Parameters in reverse order (about that of their gradients), one dtype and device a bucket, up to a size.
local function make_buckets(parameters, cap)
  local open, buckets, where = {}, {}, {}
  for k = #parameters, 1, -1 do
    local p = parameters[k]
    local kind = p:dtype() .. p:device()
    local bytes = p:numel() * (p:dtype():find "64" and 8 or p:dtype():find "16" and 2 or 4)
    local b = open[kind]
    local limit = (b and b == buckets[1] and math.min(FIRST_MB * MB, cap)) or cap
    if not b or b.bytes + bytes > limit then
      b = { items = {}, n = 0, bytes = 0 }
      open[kind], buckets[#buckets + 1] = b, b
    end
    b.items[#b.items + 1] = { p = p, at = b.n + 1, n = p:numel() }
    b.n, b.bytes, where[p] = b.n + p:numel(), b.bytes + bytes, b
  end
  return buckets, where
end

function DDP:init(net, opts)
  local a = options.read(spec, opts or {})
  local jitted = type(net) == "table" and not base.is_module(net) and rawget(net, "module") or nil
  if jitted then
    rawset(self, "_jitted", net)
    net = jitted
  end
  if not base.is_module(net) then
    fail("nn.parallel.DistributedDataParallel: a network is wanted, got %s", base.no_module(net))
  end
  if a.bucket_cap_mb <= 0 then fail("nn.parallel.DistributedDataParallel: bucket_cap_mb must be > 0") end
  local D, state = distributed()
  rawset(self, "group", state.group("nn.parallel.DistributedDataParallel", a.process_group))
  self.module = net
  local trained = {}
  for _, p in ipairs(net:parameters()) do if p.requires_grad then trained[#trained + 1] = p end end
  if #trained == 0 then
    fail("nn.parallel.DistributedDataParallel: no parameter of the network requires a gradient: there is nothing to "
      .. "average")
  end
  check_alike(self, D)
  broadcast(self, D, net:parameters())
  broadcast(self, D, net:buffers())
  local buckets, where = make_buckets(trained, a.bucket_cap_mb * MB)
  rawset(self, "_ddp", { buckets = buckets, where = where, buffers = a.broadcast_buffers, sync = true, next_sync = true,
    count = 0 })
  local weak = setmetatable({ self }, { __mode = "v" }) -- hooks stay with the parameters
  for _, p in ipairs(trained) do
    local b = where[p]
    p:register_post_accumulate_grad_hook(function()
      if weak[1] then weak[1]:_ready(b, p) end
    end)
  end
end

-- ---- forward -----------------------------------------------------------------------------------------------------

-- A parameter that was added, replaced or unfrozen since has no hook: each rank would train it for itself.
local function check_known(self)
  for _, item in ipairs(base.collect(self.module, "parameter")) do
    local p = item[2]
    if p.requires_grad and not self._ddp.where[p] then
      fail("nn.parallel.DistributedDataParallel: parameter %s requires a gradient and did not when the network was "
        .. "wrapped: added, replaced or unfrozen since, its gradients would not be averaged; wrap again", item[1])
    end
  end
end

-- A backward through these takes part in the exchange, be it that it reaches no parameter here, or fails.
local function watch(self, results)
  local weak = setmetatable({ self }, { __mode = "v" })
  for i = 1, results.n do
    for _, y in ipairs(tree.leaves(results[i])) do
      if y.requires_grad and not y.is_leaf then
        y:register_hook(function()
          if weak[1] and weak[1]._ddp.next_sync then weak[1]:_walk() end
        end)
      end
    end
  end
end

function DDP:forward(...)
  local d = self._ddp
  if core.jit_tracing() then
    options.untraceable("nn.parallel.DistributedDataParallel: a function that T.jit traces would not average "
      .. "gradients; compile the network inside instead: DistributedDataParallel(T.jit(net))")
  end
  if self.group.gone then fail("nn.parallel.DistributedDataParallel: its process group was destroyed") end
  if core.grad_mode() then
    d.next_sync = d.sync
    if d.sync then check_known(self) end
    if d.buffers and d.sync and self.training and self.group.n > 1 then
      broadcast(self, (distributed()), self.module:buffers())
    end
  end
  local results = table.pack((rawget(self, "_jitted") or self.module)(...))
  if core.grad_mode() and d.next_sync and self.group.n > 1 then watch(self, results) end
  return table.unpack(results, 1, results.n)
end

local function switch(d)
  local was = d.sync
  d.sync = false
  return { d = d, sync = was }
end
local function switch_back(was) was.d.sync = was.sync end
local not_synced = { __close = core.held(function(scope) switch_back(scope.was) end) }

--- Inside f, or until the end of the block of `local _ <close> = ddp:no_sync()`, gradients only accumulate; the first
-- backward of a forward outside averages their sum.
function DDP:no_sync(f, ...)
  local d = self._ddp
  if f ~= nil then return core.around(switch, d, switch_back, f, ...) end
  return core.open(setmetatable({}, not_synced), switch, d)
end

-- ---- backward ----------------------------------------------------------------------------------------------------

-- Behind the gradients is a number for each that says whether it is there, and one that says which backward it is.
local function flat_of(b)
  local p = b.items[1].p
  if not b.flat then b.flat = T.empty({ b.n + #b.items + 1 }, { dtype = p:dtype(), device = p:device() }) end
  return b.flat
end

-- Small, so that its average is exact enough in bf16 to tell from another's.
local function number_of(d) return d.count % 4 end

-- The bucket's gradients, and which of them there are, go round.
local function launch(self, b)
  local _ <close> = T.no_grad()
  local params = {}
  for i, item in ipairs(b.items) do params[i] = item.p end
  core.check_whole("nn.parallel.DistributedDataParallel", params) -- before others get a part of it
  local flat = flat_of(b)
  for i, item in ipairs(b.items) do
    local g = item.p.grad
    local part, mark = flat:narrow(1, item.at, item.n), flat:narrow(1, b.n + i, 1)
    if g then part:copy_(g:reshape(-1)) else part:zero_() end
    mark:fill_(g and 1 or 0)
  end
  flat:narrow(1, flat:numel(), 1):fill_(number_of(self._ddp))
  flat:div_(self.group.n)
  b.work = (distributed()).all_reduce(flat, { group = self.group, async_op = true })
end

-- The averages become the gradients.
local function take(b)
  b.work:wait()
  b.work = nil
  local _ <close> = T.no_grad()
  local marks
  for i, item in ipairs(b.items) do
    local p = item.p
    local part = b.flat:narrow(1, item.at, item.n):view(p:shape())
    if p.grad then
      p.grad:copy_(part)
    else
      marks = marks or b.flat:narrow(1, b.n + 1, #b.items):to("cpu"):float():totable()
      if marks[i] > 0 then p.grad = part:clone() end
    end
  end
end

-- Where backward failed on one rank, what the others sent meets its next one.
local function check_number(d, b)
  if math.abs(b.flat:narrow(1, b.flat:numel(), 1):item() - number_of(d)) < 1e-2 then return end
  fail("nn.parallel.DistributedDataParallel: the ranks are not in the same backward: on one of them an earlier one "
    .. "failed or was left out; the gradients are no averages. Start again from a checkpoint")
end

-- Buckets that are full, in order.
local function launch_full(self, walk, all)
  local buckets = self._ddp.buckets
  while walk.next <= #buckets and (all or walk.got[buckets[walk.next]] == #buckets[walk.next].items) do
    launch(self, buckets[walk.next])
    walk.next = walk.next + 1
  end
end

-- What the backward that is under way has sent; nil: it adds to no .grad.
function DDP:_walk()
  local d = self._ddp
  if not d.walk and core.after_backward(function(ok) self:_finish(ok) end) then
    d.walk, d.count = { next = 1, got = {} }, d.count + 1
  end
  return d.walk
end

-- The gradient of p, of bucket b, is in .grad. One that a backward inside of a rule or hook put there is not all of it.
function DDP:_ready(b, p)
  local d = self._ddp
  if not d.next_sync or self.group.n == 1 then return end
  local walk, depth = self:_walk(), core.backward_depth()
  if not walk then return end
  if b.work then
    fail("nn.parallel.DistributedDataParallel: %s got a gradient once more after it had been averaged: a backward "
      .. "inside of a rule or hook reaches it, too; use T.grad_of there, or no_sync for this forward", p:describe())
  end
  if depth > 1 then return end
  walk.got[b] = (walk.got[b] or 0) + 1
  launch_full(self, walk, false)
end

function DDP:_finish(ok)
  local d = self._ddp
  local walk = d.walk
  d.walk = nil
  if not ok then -- what is under way keeps its memory
    for _, b in ipairs(d.buckets) do b.work, b.flat = nil, nil end
    return
  end
  if self.group.gone then fail("nn.parallel.DistributedDataParallel: its process group was destroyed") end
  launch_full(self, walk, true)
  local last = d.buckets[#d.buckets]
  last.work:wait()
  check_number(d, last)
  for _, b in ipairs(d.buckets) do take(b) end
end

return { DistributedDataParallel = DDP }
