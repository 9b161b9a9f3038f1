-- SPDX-License-Identifier: MIT
--- Tensors on their way: what an operation reads and writes as contiguous memory of the CPU, checks of arguments, and
-- PERILUNE_DISTRIBUTED_DEBUG=1, which compares what all ranks are about to do before they do it.
-- @module perilune.distributed.tensors
local T = require "perilune"
local core = require "perilune.core"
local options = require "perilune.options"
local state = require "perilune.distributed.state"

local fail, describe, is_tensor = options.fail, options.describe, core.is_tensor
local M = {}

-- ---- arguments --------------------------------------------------------------------------------------------

--- A tensor that is there.
function M.check(who, what, t)
  if not is_tensor(t) or core.is_freed(t) then fail("%s: %s must be a tensor, got %s", who, what, describe(t)) end
  return t
end

local function brief(t) return ("%s[%s]"):format(t:dtype(), table.concat(t:shape(), ",")) end
M.brief = brief

--- A list of n tensors, each with `like`'s dtype (and number of elements).
function M.check_list(who, what, list, n, like)
  if type(list) ~= "table" then fail("%s: %s must be a list of tensors, got %s", who, what, describe(list)) end
  if #list ~= n then fail("%s: %s must have %d tensors, one for each rank, got %d", who, what, n, #list) end
  for i, t in ipairs(list) do
    M.check(who, ("%s[%d]"):format(what, i), t)
    if t:dtype() ~= like:dtype() or t:numel() ~= like:numel() then
      fail("%s: %s[%d] is %s, which does not fit %s", who, what, i, brief(t), brief(like))
    end
  end
  return list
end

local ops = { sum = "sum", avg = "sum", prod = "prod", min = "min", max = "max", band = "band", bor = "bor",
  bxor = "bxor" }
local op_names = { "sum", "avg", "min", "max", "prod", "band", "bor", "bxor" }

--- The name of a reduction as the engine knows it, and whether the sum is divided.
function M.reduction(who, op, t)
  op = op == nil and "sum" or op
  local known = type(op) == "string" and ops[op:lower()]
  if not known then fail("%s: %s", who, options.unknown("op", op, op_names)) end
  op = op:lower()
  local dtype = t:dtype()
  if op == "avg" and not t:is_floating_point() then
    fail("%s: op \"avg\" needs floating numbers, %s are none; use \"sum\" and divide, or t:float()", who, brief(t))
  end
  if op:find "^b" and t:is_floating_point() then
    fail("%s: op \"%s\" combines bits of integers and booleans, not of %s", who, op, dtype)
  end
  return known, op == "avg"
end

-- ---- where it goes ----------------------------------------------------------------------------------------------

local warned
local function staged(why)
  if warned then return end
  warned = true
  if (core.rank or 0) > 0 then return end -- rank 0 speaks for all
  io.stderr:write("perilune: T.distributed: tensors of the GPU go through the host's memory and MPI",
    why and (": " .. why) or "", "\n")
end

--- The device on which an operation on t takes place: "cpu", or t's own where NCCL carries it or nobody else is there.
-- Ranks decide alike as long as their tensors are on devices alike.
function M.place(who, g, t, kind, op)
  local device = t:device()
  if device == "cpu" or g.n == 1 then return device end
  local gpu = require "perilune.distributed.gpu"
  local together = kind ~= "send" and kind ~= "receive"
  if gpu.ready(who, g, device, together) and gpu.takes(kind, op, t:dtype()) then return device end
  if g.nccl == false then staged(gpu.why) end
  return "cpu"
end

--- What is read of t, as contiguous memory in that place.
function M.source(t, place)
  local _ <close> = T.no_grad()
  t = t:detach()
  if t:device() ~= place then t = t:to(place) end
  return t:contiguous()
end

-- A computed tensor that ranks write into: its history knows nothing of them, so a backward through it is an error, not
-- the gradient of what it was before. To look at the numbers it is as good as any.
local ends
local function end_history(who, t)
  ends = ends or T.custom { name = "written by other ranks", forward = function(ctx, x, name)
    ctx.who = name
    return x:clone()
  end, backward = function(ctx)
    fail("backward of %s: it has no gradient, since it wrote what other ranks computed into a tensor with a history; "
      .. "give it x:detach(), or do it after backward", ctx.who)
  end }
  T.enable_grad(function() t:copy_(ends(t:detach():requires_grad_(), who)) end)
end

--- Memory for t's new values, with the old ones where `read`, and a function that puts them into t (nil: t is that
-- memory itself).
function M.target(who, t, read, place)
  local tracked = core.grad_mode() and t.requires_grad and not t.is_leaf
  local _ <close> = T.no_grad()
  local there, back = t, nil
  if t:device() ~= place or not t:is_contiguous() then
    there = read and M.source(t, place) or T.empty(t:shape(), { dtype = t:dtype(), device = place })
    back = function() t:copy_(there) end
  end
  if not tracked then return there, back end
  return there, function()
    if back then back() end
    end_history(who, t)
  end
end

--- Room for n pieces like t, one behind the other.
function M.room(t, n, place) return T.empty({ n, t:numel() }, { dtype = t:dtype(), device = place }) end

--- The tensors of a list, one behind the other.
function M.joined(list, place)
  local _ <close> = T.no_grad()
  local all = M.room(list[1], #list, place)
  for i, t in ipairs(list) do all[i]:copy_(t:detach():reshape(-1)) end
  return all
end

--- Puts the pieces of `all` into the tensors of a list.
function M.spread(all, list)
  for i, t in ipairs(list) do t:copy_(all[i]:view(t:shape())) end
end

-- ---- do all ranks do the same? ----------------------------------------------------------------------------

local function wanted()
  local level = os.getenv "PERILUNE_DISTRIBUTED_DEBUG"
  return level ~= nil and level ~= "" and level ~= "0" and level:upper() ~= "OFF"
end
M.debug = wanted()

local WIDTH = 192

--- In debug mode: raises if the ranks of g are not all about to do what `fmt` says.
function M.agree(g, who, fmt, ...)
  if not M.debug or g.n == 1 then return end
  local mine = (who .. " " .. fmt:format(...)):sub(1, WIDTH)
  local src = T.from_string(mine .. ("\0"):rep(WIDTH - #mine), "u8"):to("cpu")
  local all = T.empty({ g.n, WIDTH }, { dtype = "u8", device = "cpu" })
  state.start(who, "all_gather", g, src, all, {}, false)
  local lines, differ = {}, false
  for i = 1, g.n do
    local text = all[i]:to_string():gsub("%z+$", "")
    differ = differ or text ~= mine
    lines[i] = ("rank %d: %s"):format(g.ranks[i], text)
  end
  if differ then fail("%s: the ranks do not agree: %s", who, table.concat(lines, "; ")) end
end

return M
