-- SPDX-License-Identifier: MIT
--- Operations on tensors in which all processes of a group take part, and messages between two.
--
-- Their last argument is a table of options: group (all processes), async_op = true (a work is returned at once; its
-- wait() ends the operation). Ranks count from 0, also those of members of a group: they are ranks among all.
-- @module perilune.distributed.collectives
local core = require "perilune.core"
local options = require "perilune.options"
local state = require "perilune.distributed.state"
local tensors = require "perilune.distributed.tensors"

local fail, describe = options.fail, options.describe
local check, check_list, brief, agree = tensors.check, tensors.check_list, tensors.brief, tensors.agree
local M = {}

local function read_options(who, opts, ...)
  local o = options.check(who, opts, { "group", "async_op", ... })
  if o.async_op ~= nil and type(o.async_op) ~= "boolean" then
    fail("%s: async_op must be true or false, got %s", who, describe(o.async_op))
  end
  return o, state.group(who, o.group), o.async_op == true
end

-- (t, root, opts) or (t, opts) with the root among the options, not both: root, opts
local function root_of(who, name, root, opts, default)
  if type(root) == "table" then
    if opts ~= nil then fail("%s: too many arguments behind a table of options", who) end
    root, opts = nil, root
  end
  if type(opts) == "table" then root = options.once(who, name, root, opts) end
  if root == nil then root = default end
  return root, opts
end

-- The work where it was asked for, else the result.
local function result(work, async, value)
  if async then return work end
  return value
end

-- ---- reductions -------------------------------------------------------------------------------------------

local function in_place(who, kind, t, opts, root_name, root)
  check(who, "the tensor", t)
  local o, g, async = read_options(who, opts, "op", root_name)
  local op, average = tensors.reduction(who, o.op, t)
  local peer = root_name and state.member(who, root_name, g, root)
  agree(g, who, "%s op=%s%s", brief(t), o.op or "sum", root_name and (" %s=%d"):format(root_name, root) or "")
  local there, back = tensors.target(who, t, true, tensors.place(who, g, t, kind, op))
  local mine = not peer or peer == g.mine
  local work = state.start(who, kind, g, there, there, { op = op, peer = peer }, async, function()
    if average and mine then there:div_(g.n) end
    if back and mine then back() end
  end)
  return result(work, async, t)
end

--- T.distributed.all_reduce(x, {op="sum", group=, async_op=}) → x or work
-- x := the reduction of all ranks' x, everywhere. op: "sum", "avg" (floats), "min", "max", "prod", "band", "bor",
-- "bxor" (integers, booleans). Any dtype and layout; f16 and bf16 are rounded after each addition. Options: group,
-- async_op (a work is returned; work:wait() ends the operation).
--   T.distributed.init_process_group()
--   print(T.distributed.all_reduce(T.ones(2)))  --> {1., 1.}  -- f32[2] cpu
--   T.distributed.destroy_process_group()
function M.all_reduce(t, opts) return in_place("all_reduce", "all_reduce", t, opts) end

--- T.distributed.reduce(x, dst=0, {op="sum", …}) → x or work
-- The same on rank dst alone; what the others have in x then is undefined. Options: group, async_op (a work is
-- returned; work:wait() ends the operation).
--   T.distributed.init_process_group()
--   print(T.distributed.reduce(T.ones(2), 0))  --> {1., 1.}  -- f32[2] cpu
--   T.distributed.destroy_process_group()
function M.reduce(t, dst, opts)
  dst, opts = root_of("reduce", "dst", dst, opts, 0)
  return in_place("reduce", "reduce", t, opts, "dst", dst)
end

local function reduce_pieces(who, out, pieces, opts)
  local o, g, async = read_options(who, opts, "op")
  local op, average = tensors.reduction(who, o.op, out)
  agree(g, who, "%s op=%s", brief(out), o.op or "sum")
  local place = tensors.place(who, g, out, "reduce_scatter", op)
  local there, back = tensors.target(who, out, false, place)
  local work = state.start(who, "reduce_scatter", g, pieces(g, place), there, { op = op }, async, function()
    if average then there:div_(g.n) end
    if back then back() end
  end)
  return result(work, async, out)
end

--- T.distributed.reduce_scatter(out, list, {op="sum", …}) → out or work
-- out := the reduction of what the ranks have in entry 1 + rank of their lists. Options: group, async_op (a work is
-- returned; work:wait() ends the operation).
--   T.distributed.init_process_group()
--   print(T.distributed.reduce_scatter(T.zeros(1), { T.ones(1) }))  --> {1.}  -- f32[1] cpu
--   T.distributed.destroy_process_group()
function M.reduce_scatter(out, list, opts)
  check("reduce_scatter", "the result", out)
  return reduce_pieces("reduce_scatter", out, function(g, place)
    return tensors.joined(check_list("reduce_scatter", "the list", list, g.n, out), place)
  end, opts)
end

--- T.distributed.reduce_scatter_tensor(out, x, {op="sum", …}) → out or work
-- The same with the pieces joined along the first dimension of x. Options: group, async_op (a work is returned;
-- work:wait() ends the operation).
--   T.distributed.init_process_group()
--   print(T.distributed.reduce_scatter_tensor(T.zeros(2), T.ones(2)))  --> {1., 1.}  -- f32[2] cpu
--   T.distributed.destroy_process_group()
function M.reduce_scatter_tensor(out, input, opts)
  local who = "reduce_scatter_tensor"
  check(who, "the result", out)
  check(who, "the input", input)
  return reduce_pieces(who, out, function(g, place)
    if input:numel() ~= g.n * out:numel() or input:dtype() ~= out:dtype() then
      fail("%s: the input %s must be %d times the result %s", who, brief(input), g.n, brief(out))
    end
    return tensors.source(input, place)
  end, opts)
end

-- ---- copies -----------------------------------------------------------------------------------------------

--- T.distributed.broadcast(x, src=0, {…}) → x or work
-- x := rank src's x. Options: group, async_op (a work is returned; work:wait() ends the operation).
--   T.distributed.init_process_group()
--   print(T.distributed.broadcast(T.ones(2), 0))  --> {1., 1.}  -- f32[2] cpu
--   T.distributed.destroy_process_group()
function M.broadcast(t, src, opts)
  check("broadcast", "the tensor", t)
  src, opts = root_of("broadcast", "src", src, opts, 0)
  local _, g, async = read_options("broadcast", opts, "src")
  local peer = state.member("broadcast", "src", g, src)
  agree(g, "broadcast", "%s src=%d", brief(t), src)
  local place = tensors.place("broadcast", g, t, "broadcast")
  local there, back
  if peer == g.mine then
    there = tensors.source(t, place)
  else
    there, back = tensors.target("broadcast", t, false, place)
  end
  return result(state.start("broadcast", "broadcast", g, nil, there, { peer = peer }, async, back), async, t)
end

--- T.distributed.all_gather(list, x, {…}) → list or work
-- The tensors of the list, one a rank, become those ranks' x. Options: group, async_op (a work is returned; work:wait()
-- ends the operation).
--   T.distributed.init_process_group()
--   print(T.distributed.all_gather({ T.zeros(1) }, T.ones(1))[1])  --> {1.}  -- f32[1] cpu
--   T.distributed.destroy_process_group()
function M.all_gather(list, t, opts)
  check("all_gather", "the tensor", t)
  local _, g, async = read_options("all_gather", opts)
  check_list("all_gather", "the list", list, g.n, t)
  agree(g, "all_gather", "%s", brief(t))
  local place = tensors.place("all_gather", g, t, "all_gather")
  local all = tensors.room(t, g.n, place)
  local work = state.start("all_gather", "all_gather", g, tensors.source(t, place), all, {}, async,
    function() tensors.spread(all, list) end)
  return result(work, async, list)
end

--- T.distributed.all_gather_into_tensor(out, x, {…}) → out or work
-- out := all ranks' x, joined along the first dimension. Options: group, async_op (a work is returned; work:wait() ends
-- the operation).
--   T.distributed.init_process_group()
--   print(T.distributed.all_gather_into_tensor(T.zeros(2), T.ones(2)))  --> {1., 1.}  -- f32[2] cpu
--   T.distributed.destroy_process_group()
function M.all_gather_into_tensor(out, t, opts)
  local who = "all_gather_into_tensor"
  check(who, "the result", out)
  check(who, "the tensor", t)
  local _, g, async = read_options(who, opts)
  if out:numel() ~= g.n * t:numel() or out:dtype() ~= t:dtype() then
    fail("%s: the result %s must be %d times the tensor %s", who, brief(out), g.n, brief(t))
  end
  agree(g, who, "%s", brief(t))
  local place = tensors.place(who, g, t, "all_gather")
  local there, back = tensors.target(who, out, false, place)
  return result(state.start(who, "all_gather", g, tensors.source(t, place), there, {}, async, back), async, out)
end

-- What gather and scatter are given: (t, list, root, opts), the list on the root alone; the root may be
-- among the options, and those behind t where there is no list. Gives the group, the root in it, the
-- list, async, and where the data is.
local function rooted(who, key, role, t, list, root, opts)
  check(who, "the tensor", t)
  if root == nil and opts == nil and type(list) == "table" and list[1] == nil and next(list) ~= nil then
    list, opts = nil, list -- gather(t, {dst = 1})
  end
  root, opts = root_of(who, key, root, opts, 0)
  local _, g, async = read_options(who, opts, key)
  local peer = state.member(who, key, g, root)
  if peer == g.mine then
    check_list(who, "the list", list, g.n, t)
  elseif list ~= nil then
    fail("%s: only rank %d, the %s, gives a list", who, root, role)
  end
  agree(g, who, "%s %s=%d", brief(t), key, root)
  return g, peer, list, async, tensors.place(who, g, t, who)
end

--- T.distributed.gather(x, list, dst=0, {…}) → list or work
-- On rank dst the tensors of the list become the ranks' x; the others give nil. Options: group, async_op (a work is
-- returned; work:wait() ends the operation).
--   T.distributed.init_process_group()
--   print(T.distributed.gather(T.ones(1), { T.zeros(1) })[1])  --> {1.}  -- f32[1] cpu
--   T.distributed.destroy_process_group()
function M.gather(t, list, dst, opts)
  local g, peer, all_of, async, place = rooted("gather", "dst", "destination", t, list, dst, opts)
  local all = peer == g.mine and tensors.room(t, g.n, place) or nil
  local work = state.start("gather", "gather", g, tensors.source(t, place), all, { peer = peer }, async,
    all and function() tensors.spread(all, all_of) end)
  return result(work, async, all_of)
end

--- T.distributed.scatter(x, list, src=0, {…}) → x or work
-- x := entry 1 + rank of rank src's list; the others give nil. Options: group, async_op (a work is returned;
-- work:wait() ends the operation).
--   T.distributed.init_process_group()
--   print(T.distributed.scatter(T.zeros(1), { T.ones(1) }))  --> {1.}  -- f32[1] cpu
--   T.distributed.destroy_process_group()
function M.scatter(t, list, src, opts)
  local g, peer, all_of, async, place = rooted("scatter", "src", "source", t, list, src, opts)
  local all = peer == g.mine and tensors.joined(all_of, place) or nil
  local there, back = tensors.target("scatter", t, false, place)
  return result(state.start("scatter", "scatter", g, all, there, { peer = peer }, async, back), async, t)
end

--- T.distributed.all_to_all(out, list, {…}) → out or work
-- Entry 1 + r of out becomes what rank r has in its list for this rank. Options: group, async_op (a work is returned;
-- work:wait() ends the operation).
--   T.distributed.init_process_group()
--   print(T.distributed.all_to_all({ T.zeros(1) }, { T.ones(1) })[1])  --> {1.}  -- f32[1] cpu
--   T.distributed.destroy_process_group()
function M.all_to_all(out, list, opts)
  local _, g, async = read_options("all_to_all", opts)
  if type(out) ~= "table" or type(list) ~= "table" then
    fail("all_to_all: two lists of tensors are wanted, got %s and %s", describe(out), describe(list))
  end
  check("all_to_all", "entry 1 of the input list", list[1])
  check_list("all_to_all", "the input list", list, g.n, list[1])
  check_list("all_to_all", "the output list", out, g.n, list[1])
  agree(g, "all_to_all", "%s", brief(list[1]))
  local place = tensors.place("all_to_all", g, list[1], "all_to_all")
  local all = tensors.room(list[1], g.n, place)
  local work = state.start("all_to_all", "all_to_all", g, tensors.joined(list, place), all, {}, async,
    function() tensors.spread(all, out) end)
  return result(work, async, out)
end

-- Numbers of rows → numbers of elements, checked against t.
local function sizes(who, what, list, n, t)
  if list == nil then
    local rows = t:dim() > 0 and t:size(1) or 0
    if rows % n ~= 0 then
      fail("%s: %d rows of the %s cannot be cut into %d equal pieces; give %s_split_sizes", who, rows, what, n, what)
    end
    list = {}
    for i = 1, n do list[i] = rows // n end
  end
  local row, sum, out = t:dim() > 0 and t:size(1) > 0 and t:numel() // t:size(1) or 0, 0, {}
  if type(list) ~= "table" or #list ~= n then
    fail("%s: %s_split_sizes must be a list of %d numbers", who, what, n)
  end
  for i, rows in ipairs(list) do
    local k = options.integer(rows)
    if not k or k < 0 then
      fail("%s: %s_split_sizes[%d] must be a number of rows, got %s", who, what, i, describe(rows))
    end
    sum, out[i] = sum + k, k * row
  end
  if t:dim() == 0 or sum ~= t:size(1) then
    fail("%s: %s_split_sizes add up to %d, the %s is %s", who, what, sum, what, brief(t))
  end
  return out
end

--- T.distributed.all_to_all_single(out, x, {output_split_sizes=, input_split_sizes=, …}) → out or work
-- The same along the first dimension of tensors; pieces are equal, or of the given numbers of rows. Options: group,
-- async_op (a work is returned; work:wait() ends the operation).
--   T.distributed.init_process_group()
--   print(T.distributed.all_to_all_single(T.zeros(2), T.ones(2)))  --> {1., 1.}  -- f32[2] cpu
--   T.distributed.destroy_process_group()
function M.all_to_all_single(out, input, opts)
  local who = "all_to_all_single"
  check(who, "the result", out)
  check(who, "the input", input)
  local o, g, async = read_options(who, opts, "output_split_sizes", "input_split_sizes")
  if out:dtype() ~= input:dtype() then fail("%s: %s and %s differ in dtype", who, brief(out), brief(input)) end
  local receive = sizes(who, "output", o.output_split_sizes, g.n, out)
  local send = sizes(who, "input", o.input_split_sizes, g.n, input)
  if g.n == 1 and send[1] ~= receive[1] then fail("%s: %s and %s differ in size", who, brief(out), brief(input)) end
  agree(g, who, "%s", out:dtype())
  local place = tensors.place(who, g, out, "all_to_all")
  local there, back = tensors.target(who, out, false, place)
  local pieces = { send = send, receive = receive }
  local work = state.start(who, "all_to_all", g, tensors.source(input, place), there, pieces, async, back)
  return result(work, async, out)
end

--- T.distributed.barrier({group=, async_op=})
-- Waits until all ranks are here.
--   T.distributed.init_process_group()
--   T.distributed.barrier()
--   T.distributed.destroy_process_group()
function M.barrier(opts)
  local _, g, async = read_options("barrier", opts)
  agree(g, "barrier", "")
  if core.device.memory().reserved > 0 then core.device.synchronize() end
  return result(state.start("barrier", "barrier", g, nil, nil, {}, async), async)
end

-- ---- between two ------------------------------------------------------------------------------------------

local function message(who, t, name, peer, opts)
  check(who, "the tensor", t)
  peer, opts = root_of(who, name, peer, opts)
  local o = options.check(who, opts, { "group", "tag", name })
  local g = state.group(who, o.group)
  local tag = options.integer(o.tag or 0)
  if not tag or tag < 0 or tag > 32767 then fail("%s: tag must be from 0 to 32767, got %s", who, describe(o.tag)) end
  if peer == nil and name == "dst" then fail("%s: dst, the rank that receives, is missing", who) end
  local at = peer ~= nil and state.member(who, name, g, peer) or nil
  if at == g.mine then fail("%s: rank %d cannot send to itself", who, peer) end
  if at == nil and g.n == 1 then fail("%s: there is no other rank in the group", who) end
  return g, { peer = at, tag = tag }
end

-- Where a message's tensor is: through NCCL once the group has used it, which both ends know.
local function direct(who, g, t, kind, call)
  local place = tensors.place(who, g, t, kind)
  if place ~= "cpu" and (call.peer == nil or call.tag ~= 0) then
    fail("%s: NCCL, which carries tensors of GPUs, knows no tags and wants the sender's rank", who)
  end
  return place
end

local function send(who, t, dst, opts, async)
  local g, call = message(who, t, "dst", dst, opts)
  local place = direct(who, g, t, "send", call)
  return state.start(who, "send", g, tensors.source(t, place), nil, call, async)
end

local function receive(who, t, src, opts, async)
  local g, call = message(who, t, "src", src, opts)
  local place = direct(who, g, t, "receive", call)
  local there, back = tensors.target(who, t, false, place)
  return state.start(who, "receive", g, nil, there, call, async, back), g
end

--- T.distributed.send(x, dst, {group=, tag=0})
-- x goes to rank dst, which calls recv.
--   T.distributed.init_process_group()
--   print(pcall(T.distributed.send, T.ones(1), 0) == false)  --> true
--   T.distributed.destroy_process_group()
function M.send(t, dst, opts) send("send", t, dst, opts, false) end

--- T.distributed.isend(x, dst, {group=, tag=0}) → work
-- send that does not wait; x must stay as it is.
--   T.distributed.init_process_group()
--   print(pcall(T.distributed.isend, T.ones(1), 0) == false)  --> true
--   T.distributed.destroy_process_group()
function M.isend(t, dst, opts) return send("isend", t, dst, opts, true) end

--- T.distributed.recv(x, src=any, {group=, tag=0}) → rank
-- x := what rank src sends, or any; returns who sent.
--   T.distributed.init_process_group()
--   print(pcall(T.distributed.recv, T.ones(1), 0) == false)  --> true
--   T.distributed.destroy_process_group()
function M.recv(t, src, opts)
  local work, g = receive("recv", t, src, opts, false)
  return g.ranks[work.source + 1]
end

--- T.distributed.irecv(x, src=any, {group=, tag=0}) → work
-- recv that does not wait.
--   T.distributed.init_process_group()
--   print(pcall(T.distributed.irecv, T.ones(1), 0) == false)  --> true
--   T.distributed.destroy_process_group()
function M.irecv(t, src, opts) return receive("irecv", t, src, opts, true) end

--- T.distributed.batch_isend_irecv{{T.distributed.isend, x, rank}, …} → list of works
-- Several messages at once.
--   T.distributed.init_process_group()
--   print(#T.distributed.batch_isend_irecv {})  --> 0
--   T.distributed.destroy_process_group()
function M.batch_isend_irecv(list)
  if type(list) ~= "table" then fail("batch_isend_irecv: a list of {function, tensor, rank} is wanted") end
  local works = {}
  for i, entry in ipairs(list) do
    local f = type(entry) == "table" and entry[1]
    if f ~= M.isend and f ~= M.irecv then
      fail("batch_isend_irecv: entry %d must begin with T.distributed.isend or irecv", i)
    end
    works[i] = f(entry[2], entry[3], entry[4])
  end
  return works
end

M.ReduceOp = { SUM = "sum", AVG = "avg", MIN = "min", MAX = "max", PRODUCT = "prod", BAND = "band", BOR = "bor",
  BXOR = "bxor" }

return M
