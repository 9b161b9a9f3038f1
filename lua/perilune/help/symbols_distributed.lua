-- SPDX-License-Identifier: MIT
-- What T.help knows of T.distributed, continued from symbols.lua. The examples run in one process, which is a group of
-- its own.
local S = {}
local D = "distributed."

-- An example begins with a group and ends it.
local function page(name, signature, text, example)
  S[D .. name] = { signature, text, ([[
T.distributed.init_process_group()
%s
T.distributed.destroy_process_group()]]):format(example) }
end

-- ---- processes -----------------------------------------------------------------------------------------------------

page("init_process_group", 'T.distributed.init_process_group(["mpi" or "nccl",] {timeout=1800})',
  [[Joins the processes that `perilune launch -n N script.lua` (or mpirun) started; alone, one process is a group.
timeout: seconds after which an operation that others do not take part in raises an error.
Groups need Open MPI (Debian: openmpi-bin libopenmpi-dev). Tensors of GPUs go through NCCL where it is there, else
through the host's memory; "nccl" insists on it. Each rank has a GPU of its own: T.cuda.set_device, with
T.distributed.get_node_local_rank().]],
  "print(T.distributed.get_rank(), T.distributed.get_world_size())  --> 0\t1")
page("destroy_process_group", "T.distributed.destroy_process_group([group])",
  "Ends the group of all, or one of new_group, after what is under way in it.",
  "print(T.distributed.is_initialized())  --> true")
page("new_group", "T.distributed.new_group(ranks, {timeout=}) → group",
  [[A group of some processes, for the option group of other functions. Every process makes this call, also those that
are not in the list. group:rank() (-1: not in it), group:size().]],
  "print(T.distributed.new_group({ 0 }))  --> process group {0}")
S[D .. "is_available"] = { "T.distributed.is_available() → true; or false, why not",
  "Can several processes be joined in this build?", "print(type(T.distributed.is_available()))  --> boolean" }
S[D .. "is_mpi_available"] = { "T.distributed.is_mpi_available() → true; or false, why not",
  "The same as T.distributed.is_available().", "print(type(T.distributed.is_mpi_available()))  --> boolean" }
S[D .. "is_initialized"] = { "T.distributed.is_initialized() → boolean", "Was init_process_group called?",
  "print(T.distributed.is_initialized())  --> false" }
page("get_rank", "T.distributed.get_rank([group]) → 0 …",
  "The number of this process, from 0; -1 outside of the group.",
  "print(T.distributed.get_rank())  --> 0")
page("get_world_size", "T.distributed.get_world_size([group]) → count", "How many processes there are.",
  "print(T.distributed.get_world_size())  --> 1")
page("get_backend", "T.distributed.get_backend([group]) → name", "What the group was made with.",
  "print(T.distributed.get_backend())  --> mpi")
S[D .. "get_node_local_rank"] = { "T.distributed.get_node_local_rank() → 0 …",
  "The number of this process among those of its machine: which GPU is whose. LOCAL_RANK, where it is set.",
  "print(T.distributed.get_node_local_rank() >= 0)  --> true" }
page("get_process_group_ranks", "T.distributed.get_process_group_ranks(group) → list",
  "The ranks of the members among all processes.", "print(#T.distributed.get_process_group_ranks())  --> 1")
page("get_global_rank", "T.distributed.get_global_rank(group, rank in it) → rank among all",
  "Where a member of a group is among all processes.",
  "print(T.distributed.get_global_rank(T.distributed.new_group({ 0 }), 0))  --> 0")
page("get_group_rank", "T.distributed.get_group_rank(group, rank among all) → rank in it",
  "Where a process is in a group that it is a member of.",
  "print(T.distributed.get_group_rank(T.distributed.new_group({ 0 }), 0))  --> 0")

-- ---- operations ----------------------------------------------------------------------------------------------------

local options = " Options: group, async_op (a work is returned; work:wait() ends the operation)."

page("all_reduce", 'T.distributed.all_reduce(x, {op="sum", group=, async_op=}) → x or work',
  [[x := the reduction of all ranks' x, everywhere. op: "sum", "avg" (floats), "min", "max", "prod", "band", "bor",
"bxor" (integers, booleans). Any dtype and layout; f16 and bf16 are rounded after each addition.]] .. options,
  "print(T.distributed.all_reduce(T.ones(2)))  --> {1., 1.}  -- f32[2] cpu")
page("reduce", 'T.distributed.reduce(x, dst=0, {op="sum", …}) → x or work',
  "The same on rank dst alone; what the others have in x then is undefined." .. options,
  "print(T.distributed.reduce(T.ones(2), 0))  --> {1., 1.}  -- f32[2] cpu")
page("broadcast", "T.distributed.broadcast(x, src=0, {…}) → x or work", "x := rank src's x." .. options,
  "print(T.distributed.broadcast(T.ones(2), 0))  --> {1., 1.}  -- f32[2] cpu")
page("all_gather", "T.distributed.all_gather(list, x, {…}) → list or work",
  "The tensors of the list, one a rank, become those ranks' x." .. options,
  "print(T.distributed.all_gather({ T.zeros(1) }, T.ones(1))[1])  --> {1.}  -- f32[1] cpu")
page("all_gather_into_tensor", "T.distributed.all_gather_into_tensor(out, x, {…}) → out or work",
  "out := all ranks' x, joined along the first dimension." .. options,
  "print(T.distributed.all_gather_into_tensor(T.zeros(2), T.ones(2)))  --> {1., 1.}  -- f32[2] cpu")
page("gather", "T.distributed.gather(x, list, dst=0, {…}) → list or work",
  "On rank dst the tensors of the list become the ranks' x; the others give nil." .. options,
  "print(T.distributed.gather(T.ones(1), { T.zeros(1) })[1])  --> {1.}  -- f32[1] cpu")
page("scatter", "T.distributed.scatter(x, list, src=0, {…}) → x or work",
  "x := entry 1 + rank of rank src's list; the others give nil." .. options,
  "print(T.distributed.scatter(T.zeros(1), { T.ones(1) }))  --> {1.}  -- f32[1] cpu")
page("reduce_scatter", 'T.distributed.reduce_scatter(out, list, {op="sum", …}) → out or work',
  "out := the reduction of what the ranks have in entry 1 + rank of their lists." .. options,
  "print(T.distributed.reduce_scatter(T.zeros(1), { T.ones(1) }))  --> {1.}  -- f32[1] cpu")
page("reduce_scatter_tensor", 'T.distributed.reduce_scatter_tensor(out, x, {op="sum", …}) → out or work',
  "The same with the pieces joined along the first dimension of x." .. options,
  "print(T.distributed.reduce_scatter_tensor(T.zeros(2), T.ones(2)))  --> {1., 1.}  -- f32[2] cpu")
page("all_to_all", "T.distributed.all_to_all(out, list, {…}) → out or work",
  "Entry 1 + r of out becomes what rank r has in its list for this rank." .. options,
  "print(T.distributed.all_to_all({ T.zeros(1) }, { T.ones(1) })[1])  --> {1.}  -- f32[1] cpu")
page("all_to_all_single",
  "T.distributed.all_to_all_single(out, x, {output_split_sizes=, input_split_sizes=, …}) → out or work",
  "The same along the first dimension of tensors; pieces are equal, or of the given numbers of rows." .. options,
  "print(T.distributed.all_to_all_single(T.zeros(2), T.ones(2)))  --> {1., 1.}  -- f32[2] cpu")
page("barrier", "T.distributed.barrier({group=, async_op=})", "Waits until all ranks are here.",
  "T.distributed.barrier()")

local two = [[
print(pcall(T.distributed.%s, T.ones(1), %d) == false)  --> true]]
page("send", "T.distributed.send(x, dst, {group=, tag=0})", "x goes to rank dst, which calls recv.",
  two:format("send", 0))
page("isend", "T.distributed.isend(x, dst, {group=, tag=0}) → work",
  "send that does not wait; x must stay as it is.", two:format("isend", 0))
page("recv", "T.distributed.recv(x, src=any, {group=, tag=0}) → rank",
  "x := what rank src sends, or any; returns who sent.", two:format("recv", 0))
page("irecv", "T.distributed.irecv(x, src=any, {group=, tag=0}) → work", "recv that does not wait.",
  two:format("irecv", 0))
page("batch_isend_irecv", "T.distributed.batch_isend_irecv{{T.distributed.isend, x, rank}, …} → list of works",
  "Several messages at once.", "print(#T.distributed.batch_isend_irecv {})  --> 0")

-- ---- values --------------------------------------------------------------------------------------------------------

local plain = " Tables, numbers, strings, booleans and tensors; no code runs when they arrive."
page("all_gather_object", "T.distributed.all_gather_object(list, value, {group=}) → list",
  "list[1 + r] := rank r's value." .. plain,
  'print(T.distributed.all_gather_object({}, { name = "a" })[1].name)  --> a')
page("gather_object", "T.distributed.gather_object(value, list, dst=0, {group=}) → list",
  "The same on rank dst alone; the others give nil." .. plain,
  'print(T.distributed.gather_object("a", {})[1])  --> a')
page("broadcast_object_list", "T.distributed.broadcast_object_list(list, src=0, {group=}) → list",
  "The entries of the list become those of rank src's." .. plain,
  "print(T.distributed.broadcast_object_list({ 3 })[1])  --> 3")
page("scatter_object_list", "T.distributed.scatter_object_list(out, list, src=0, {group=}) → out",
  "out[1] := entry 1 + rank of rank src's list; the others give nil." .. plain,
  "print(T.distributed.scatter_object_list({}, { 3 })[1])  --> 3")

-- ---- training ------------------------------------------------------------------------------------------------------

S["nn.parallel.DistributedDataParallel"] = {
  "nn.parallel.DistributedDataParallel(net, {bucket_cap_mb=25, broadcast_buffers=true, process_group=}) → module",
  [[Trains net in all processes, each with its share of a batch: backward leaves in .grad the averages over the
ranks, in buckets that travel while backward computes others. Parameters and buffers begin as rank 0's; buffers become
rank 0's before each forward in training. The network is .module; ddp:no_sync(f) only accumulates. Parameters may be
unused on some ranks. Inside of it a network may be jitted; T.jit around it is refused.]],
  [[
T.distributed.init_process_group()
local ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 1, { bias = false }))
ddp(T.ones(1, 2)):sum():backward()
print(ddp.module.weight.grad)  --> {{1., 1.}}  -- f32[1,2] cpu
T.distributed.destroy_process_group()]] }
S["data.DistributedSampler"] = {
  "T.data.DistributedSampler(dataset or n, {num_replicas=, rank=, shuffle=true, seed=0, drop_last=false}) → sampler",
  [[This process's share of a dataset, for T.data.DataLoader(ds, {sampler = s}). s:set_epoch(e) before each epoch
gives another order, the same in all processes (T.fit calls it). Where samples cannot be shared out evenly the first
ones come again, or with drop_last the last are left out.]],
  [[
local s = T.data.DistributedSampler(5, { num_replicas = 2, rank = 1, shuffle = false })
print(table.concat(s:indices(), " "))  --> 2 4 1]] }

return S
