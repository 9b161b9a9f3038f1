-- SPDX-License-Identifier: MIT
-- The workloads by name: how much work one call does, its unit, and what builds it. Units that start with
-- "ns/" and the unit "s" are better when lower, all others when higher.

local CONV = 2 * 32 * 56 * 56 * 64 * 64 * 9 -- FLOP of the forward convolution
local MI = 1 << 20

-- name, work per call, unit; the order is the order of a full run
local WORK = {
  { "dispatch_add", 200000, "ns/op" },
  { "dispatch_grad", 200, "ns/op" },
  { "custom_grad", 1000, "ns/call" },
  { "ew_1m", 3 * 4 * MI, "GB/s" },
  { "ew_16m", 3 * 4 * 16 * MI, "GB/s" },
  { "sum_16m", 4 * 16 * MI, "GB/s" },
  { "softmax_4096x1024", 5 * 4 * 4096 * 1024, "GB/s" },
  { "layernorm_4096x1024", 5 * 4 * 4096 * 1024, "GB/s" },
  { "matmul_64", 2 * 64 ^ 3, "GFLOP/s" },
  { "matmul_256", 2 * 256 ^ 3, "GFLOP/s" },
  { "matmul_1024", 2 * 1024 ^ 3, "GFLOP/s" },
  { "matmul_2048", 2 * 2048 ^ 3, "GFLOP/s" },
  { "bmm_64x128x64x128", 2 * 64 * 128 * 64 * 128, "GFLOP/s" },
  { "conv_fwd_bwd", 3 * CONV, "GFLOP/s" },
  { "mlp_step_b64", 64, "samples/s" },
  { "mlp_step_b1024", 1024, "samples/s" },
  { "lenet_step_b64", 64, "samples/s" },
  { "gradient_penalty_step", 256, "samples/s" },
  { "pinn_step", 1024, "samples/s" },
  { "resnet18_cifar_step_b64", 64, "samples/s" },
  { "gpt_nano_step", 12 * 64, "tokens/s" },
  { "lstm_char_step", 50 * 50, "tokens/s" },
  { "chain_1e6", 1, "s" },
  { "resnet50_b8_mem", 8, "samples/s" },
  { "gptmed_mem", 8 * 256, "tokens/s" },
  { "startup", 1, "s" },
  { "mnist_epoch", 937 * 64, "samples/s" },
}

local M = { names = {}, work = {}, unit = {} }
for i, row in ipairs(WORK) do
  M.names[i], M.work[row[1]], M.unit[row[1]] = row[1], row[2], row[3]
end

-- Workloads that T.jit compiles, and what else they run as: bf16 under autocast, mirror with recomputation.
local COMPILED = {
  ew_1m = {}, ew_16m = {}, ["softmax_4096x1024"] = {}, ["layernorm_4096x1024"] = {}, mlp_step_b64 = {},
  mlp_step_b1024 = {},
  lenet_step_b64 = {}, resnet18_cifar_step_b64 = {}, gpt_nano_step = { "bf16" }, lstm_char_step = {},
  resnet50_b8_mem = { "mirror" }, gptmed_mem = { "mirror" },
}

-- What mode mirror asks for, where it is not cheap ops alone: half of what is kept, products computed again included.
local MIRROR = { gptmed_mem = { budget = { fraction = 0.5 } } }

-- What mode jit allows where it matters: sums in another order than the script's, as torch.compile allows itself.
local UNSAFE = { lstm_char_step = true }

-- The modes a workload runs in, each in a process of its own.
function M.modes(name)
  local more = COMPILED[name]
  return more and { "eager", "jit", table.unpack(more) } or { "eager" }
end

-- The figure of a workload whose call took this long, in its unit.
function M.figure(name, seconds)
  local work, unit = M.work[name], M.unit[name]
  if unit:find("^ns/") then return seconds * 1e9 / work end
  if unit == "s" then return seconds end
  return work / seconds / (unit:find("^G") and 1e9 or 1)
end

-- Builds the workload's call with perilune `T`, or returns the reason (a string) why there is none.
-- `load_file(name)` returns the module bench/workloads/<name>.lua. Mode "bf16": forward passes under autocast.
function M.build(T, name, load_file, mode)
  local W, tools = {}, { mode = mode }
  -- A function that takes and returns tensors, as the mode wants it.
  function tools.compiled(f)
    if mode == "jit" then return T.jit(f, { unsafe_math = UNSAFE[name] }) end
    if mode == "cheap" then return T.jit(f, { mirror = "auto" }) end
    if mode == "mirror" then return T.jit(f, MIRROR[name] or { mirror = "auto" }) end
    return f
  end
  for _, file in ipairs { "micro", "dense", "train", "models", "groups" } do load_file(file)(T, W, tools) end
  local make = W[name]
  if not make then return "no such workload" end
  return make(T)
end

return M
