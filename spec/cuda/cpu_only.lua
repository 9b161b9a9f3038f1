-- SPDX-License-Identifier: MIT
-- Specs and cases that make no sense with tensors on the device, each with its reason: they are counted as pending
-- under PERILUNE_TEST_DEVICE (spec/support/device.lua), and files of which nothing is left are not started by
-- bench/gpu.sh. file, or folder/ → reason; file → { part of a case's name → reason }.

local bytes = "counts bytes of CPU memory"
local late = "wants the error of a bad index at once; a device notices it when it is next waited for (spec/cuda)"
local plan = "is about plans and compiled groups of the CPU; graphs on a device run otherwise (spec/cuda/jit_spec)"
local pass = "is about kernels of the CPU that make values and tangents at once"
local process = "runs other processes, which have a default device of their own"
local program = "generating has programs of one token on the CPU alone; on a device each is a call"
local numbers = "mixes what the library makes of numbers of files, on the CPU, with tensors of the script"
local text = "is about texts, without tensors"
local scalars = "0-d tensors of the device take the dtype of halves beside them, as PyTorch's do (docs/design/cuda.md)"
local loaded = "loads what was saved, which goes to the CPU unless map_location says otherwise"

local cuda = {
  ["autograd/keys"] = { ["temporaries of a sum are freed"] = bytes },
  ["autograd/custom_rules"] = {
    ["a short walk does not pay"] = "measures times of walks, which wait for kernels there",
  },
  ["autograd/forward_mode"] = { ["tangents run in one pass with the same bits"] = pass },
  ["autograd/checkpoint"] = {
    ["peaks in backward at one of a chain"] = bytes, ["peaks at what the innermost"] = bytes,
  },
  ["autograd/rematerialization"] = bytes,
  ["autograd/saved_tensors"] = { ["frees the memory of what went to a file"] = bytes },
  ["models/decoder"] = { ["needs less memory in training"] = bytes },
  ["models/step"] = {
    ["makes no tensors of its own"] = program, ["makes no tensor for a token"] = program,
  },
  ["onnx/load"] = { ["divide and count as ONNX does"] = late },
  ["call/values"] = {
    ["no probability is refused by binary_cross_entropy"] = late,
    ["a budget of memory charges"] = bytes, ["class 0 is told"] = late,
    ["says its own name, not that of the op inside"] = "wants the words of CPU memory that does not suffice",
  },
  ["fuzz/programs_found"] = { ["stops all collections but"] = bytes },
  ["fuzz/readers"] = { ["refused or read: graphs"] = loaded },
  ["deploy/abi"] = process, ["deploy/build"] = process, ["deploy/programs"] = process,
  ["autograd/promises"] = { ["drops what a branch held"] = bytes },
  ["call/autocast"] = { ["frees its casts at the end"] = bytes },
  ["call/misuse"] = { ["is what it was"] = late },
  ["call/newcomer"] = { ["cross_entropy(net(x), y - 1)"] = late },
  ["nn/layers"] = { ["cross entropy and its options"] = late },
  ["nn/functional"] = {
    ["CTC takes targets in rows"] = late, ["modules pass all tensors on"] = late,
    ["linear_cross_entropy refuses"] = late,
  },
  ["jit/call"] = { ["takes them back where a run fails"] = late },
  ["kernels/expanded_index"] = { ["names the value that is out of range"] = late },
  ["kernels/large"] = { ["refuse targets that are no class"] = late },
  ["jit/failure"] = {
    ["an op that fails in a run"] = late, ["the error of a run names the op"] = late,
    ["a memory budget that the arena does not fit into"] = plan,
    ["memory that runs out in the middle of a step"] = "plays lack of CPU memory",
    ["pins, forces and predicates"] = plan,
  },
  ["graph/plan"] = plan, ["graph/run"] = plan,
  ["graph/recompute_search"] = { ["where more is alive than kept does so at any size"] = plan },
  ["graph/fuse"] = { ["take in what works along rows"] = plan, ["members that pass nothing on"] = plan },
  ["kernels/threads"] = { ["first failure of a team"] = late },
  ["ops/half_numbers"] = { ["and so is a 0-d tensor"] = scalars },
  ["autograd/backward_split"] = bytes,
  ["command/"] = process, ["distributed/"] = process, ["lanes/"] = process,
  ["http/"] = process, ["cmake/"] = text, ["docs/"] = text, ["call/declared"] = text, ["lua/parts"] = text,
  ["lua/collector"] = "is about when the collector runs, by CPU memory",
  ["io/mmap"] = "maps files into tensors of the CPU",
  ["io/memory"] = "plays lack of CPU memory",
  ["call/reliability"] = "plays lack of CPU memory",
}

-- The same with defaults on the CPU: what a spec gets from files, loaders and default arguments stays there.
local moved = {}
for file, why in pairs(cuda) do moved[file] = why end
moved["data/datasets"] = { ["is made of others with a transform"] = numbers }
moved["nn/int8"] = { ["on digits integers lose at most half a percent"] = numbers }
moved["deploy/sizes"] = {
  ["the function's bits: pictures"] = process, ["the function's bits: text"] = process,
  ["the function's bits: sequence"] = process, ["come from ONNX files"] = numbers,
}
moved["graph/io"] = { ["loads as the same program"] = loaded, ["may be a traced function's"] = loaded }

return { cuda = cuda, moved = moved }
