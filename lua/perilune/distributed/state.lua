-- SPDX-License-Identifier: MIT
--- What T.distributed knows: whether there is a process group, the groups, and what runs in them.
-- @module perilune.distributed.state
local T = require "perilune"
local classes = require "perilune.classes"
local core = require "perilune.core"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe

local state = {
  world = nil,       -- the group of all processes, once init_process_group was called
  pending = {},      -- works that nobody has waited for: their tensors must stay
  npending = 0,
  counter = 0,       -- of groups
}

-- ---- groups -----------------------------------------------------------------------------------------------

local Group = classes.new("process group", "group")
state.Group = Group

--- The rank of this process in the group, -1 outside of it; how many processes it has; their ranks among all.
function Group:rank() return self.mine or -1 end
function Group:size() return self.n end
function Group.__tostring(g) return ("process group {%s}"):format(table.concat(g.ranks, ",")) end

-- A group of these ranks; raw: what core.group.new gave.
function state.make_group(ranks, rank, timeout, raw)
  local g = { ranks = ranks, n = #ranks, raw = raw, timeout = timeout, at = {}, id = state.counter }
  state.counter = state.counter + 1
  for i, r in ipairs(ranks) do g.at[r] = i - 1 end
  g.mine = g.at[rank]
  return setmetatable(g, Group)
end

--- The group g (all processes where it is nil), of which this process must be a member.
function state.group(who, g)
  if not state.world then
    fail("%s: there is no process group yet; call T.distributed.init_process_group() first", who)
  end
  if g == nil then return state.world end
  if getmetatable(g) ~= Group then
    fail("%s: group must be what T.distributed.new_group returned, got %s", who, describe(g))
  end
  if g.gone then fail("%s: this group was destroyed", who) end
  if not g.mine then
    fail("%s: rank %d is not in this group, which has {%s}; call it on members only", who, state.world.mine,
      table.concat(g.ranks, ", "))
  end
  return g
end

--- The place in group g of the process with rank r among all.
function state.member(who, what, g, r)
  local rank = options.integer(r)
  if not rank or not g.at[rank] then
    local n = g.ranks[g.n]
    fail("%s: %s must be a rank of the group, %s, got %s", who, what,
      g == state.world and ("0 to %d"):format(n) or "one of " .. table.concat(g.ranks, ", "), describe(r))
  end
  return g.at[rank]
end

-- ---- works ------------------------------------------------------------------------------------------------

local Work = classes.new("work", "work")

local function settle(work)
  if state.pending[work] then
    state.pending[work] = nil
    state.npending = state.npending - 1
  end
end

--- Waits until the operation is done, at most `timeout` seconds (the group's without one) → true. Raises what failed.
function Work:wait(timeout)
  if timeout ~= nil and (type(timeout) ~= "number" or timeout <= 0) then
    fail("wait: the timeout must be a number of seconds > 0, got %s", describe(timeout))
  end
  if self.failed then error(self.failed, 0) end
  if not self.waited then
    local ok, source = true, nil
    if self.raw then ok, source = pcall(self.raw.wait, self.raw, timeout or self.group.timeout) end
    if not ok then
      self.failed = options.here((tostring(source):gsub("^.-:%d+: ", "")))
      error(self.failed, 0)
    end
    self.waited, self.source = true, source or self.source
    settle(self)
    if self.raw then self.raw:close() end
    if self.finish then
      local _ <close> = T.no_grad()
      self.finish(source)
    end
    self.raw, self.finish, self.keep = nil, nil, nil
  end
  return true
end

--- Is the operation done? Where results are copied, wait() does that.
function Work:is_completed()
  return self.waited or (not self.raw) or self.raw:test()
end
function Work.__tostring(w) return ("work: %s%s"):format(w.who, w.waited and ", done" or "") end

-- Lets go of works that are done and that nobody asks for.
local function sweep()
  for work in pairs(state.pending) do
    local ok, done = pcall(work.raw.test, work.raw)
    if not ok or done then settle(work) end
  end
end

--- Starts an operation on contiguous tensors of the CPU, or (where NCCL takes them) of a GPU. call: {op, peer, tag,
-- send, receive}; finish() runs once it is done.
function state.start(who, kind, g, src, dst, call, background, finish)
  if core.jit_tracing() then
    options.untraceable(("%s: a function that T.jit traces would do this once, while it is traced, and not at later "
      .. "calls; do it outside"):format(who))
  end
  local work = setmetatable({ who = who, group = g, finish = finish, keep = { src, dst } }, Work)
  if g.n == 1 and kind ~= "send" and kind ~= "receive" then
    if src and dst and not rawequal(src, dst) then
      local _ <close> = T.no_grad()
      dst:view(-1):copy_(src:view(-1))
    end
    if not background then work:wait() end
    return work
  end
  local t = dst or src
  if t and t:device() ~= "cpu" then -- queued on the GPU's stream: what is queued later comes later
    require("perilune.distributed.gpu").start(who, kind, g, src, dst, call)
    work.source = call.peer
    if not background then work:wait() end
    return work
  end
  call.background = background
  work.raw = core.group.start(who, kind, g.raw, src, dst, call)
  if background then
    if state.npending > 64 then sweep() end
    state.pending[work] = true
    state.npending = state.npending + 1
  else
    work:wait()
  end
  return work
end

--- A work that is several others.
function state.join(who, g, works, finish)
  local work = setmetatable({ who = who, group = g }, Work)
  work.finish = function()
    for _, w in ipairs(works) do w:wait() end
    if finish then finish() end
  end
  work.is_completed = function(self)
    if self.waited then return true end
    for _, w in ipairs(works) do if not w:is_completed() then return false end end
    return true
  end
  return work
end

return state
