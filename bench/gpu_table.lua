-- SPDX-License-Identifier: MIT
-- What bounds the memory-bound ops of bench/gpu.lua, from the compiled kernels, without a GPU: a Markdown table for
-- docs/design/cuda.md. Bytes an element that the op must move and that its kernels move are counted by hand below,
-- registers and the widths of loads are read from the machine code (spec/support/machine_code.lua).
--   perilune run bench/gpu_table.lua -- [BUILD]       PERILUNE_CUOBJDUMP names cuobjdump where it is not on the PATH

local args = { ... }
if args[1] == "--" then table.remove(args, 1) end
local build = args[1] or "build"
local here = debug.getinfo(1, "S").source:match("^@(.*)gpu_table%.lua$") or "./"
local code = dofile(here .. "../spec/support/machine_code.lua")
local tool = code.tool()
if not tool then
  io.stderr:write("gpu_table: no cuobjdump; PERILUNE_CUOBJDUMP names it\n")
  os.exit(2)
end

-- One H200: bytes that a multiprocessor must have under way to keep its share of 4.3 TB/s busy for 800 ns.
local PROCESSORS, BANDWIDTH, LATENCY = 132, 4.3e12, 800e-9
local NEEDED = BANDWIDTH * LATENCY / PROCESSORS

-- op; object and pattern of the kernel that moves most; threads of a block; bytes an element that must move and that
-- move; what a thread has under way: loads of so many bits; shared memory of a block
local ROWS = {
  { "a + b, f32", "elementwise/elementwise_f32", "ew_flatI7EwFloatIfLi0E", 256, 12, 12, { 2, 128 } },
  { "a + b, bf16", "elementwise/elementwise_bf16", "ew_flatI7EwFloatI8plc_bf16Li0E", 256, 6, 6, { 2, 128 } },
  { "tanh, gelu, bf16", "elementwise/elementwise_bf16", "ew_flatI7EwFloatI8plc_bf16Li1E", 256, 4, 4, { 2, 128 } },
  { "cast_64m", "shape/cast", "cast_flatIf8plc_bf16E", 256, 6, 6, { 2, 128 } },
  { "sum_64m", "reduce/reduce", "by_blockIffLb1E", 256, 4, 4, { 8, 32 } },
  { "sums of columns, bf16", "reduce/reduce", "by_packI8plc_bf16fE", 256, 2, 2, { 8, 128 } },
  { "x:t():contiguous(), f32", "elementwise/elementwise", "turn_kernelIjE", 256, 8, 8, { 4, 32 }, 4224 },
  { "softmax_4096x1024 forward", "norm/softmax", "kept_rowsI8plc_bf16Li128E", 128, 4, 4, { 8, 16 } },
  { "softmax_4096x1024 backward", "norm/softmax", "kept_rows_bwdI8plc_bf16Li128E", 128, 6, 6, { 16, 16 } },
  { "softmax_8192x32768 forward", "norm/softmax", "staged_rowsI8plc_bf16E", 256, 4, 4, { 4, 128 }, 65536 },
  { "softmax_8192x32768 backward", "norm/softmax", "staged_rows_bwdI8plc_bf16E", 256, 6, 6, { 8, 128 }, 131072 },
  { "layernorm_16384x4096 forward", "norm/layer_norm", "kept_forwardI8plc_bf16S0_Li256E", 256, 4, 4, { 16, 16 } },
  { "layernorm_16384x4096 backward", "norm/layer_norm", "kept_backwardI8plc_bf16S0_Li256ELi16ELb1E", 256, 6, 6,
    { 32, 16 } },
  { "norm of a list, f32", "optim/foreach", "norm_pieces", 256, 4, 4, { 4, 128 } },
  { "a list times a number, f32", "optim/foreach", "scale_pieces", 256, 8, 8, { 4, 128 } },
  { "adamw_124m", "optim/optim", "step_groups", 256, 28, 28, { 4, 128 } },
  { "xent_8192x50304 forward, of bf16", "loss/cross_entropy", "ce_forwardI8plc_bf16Li8E", 256, 2, 2, { 1, 128 } },
  { "xent_8192x50304 backward, of bf16", "loss/cross_entropy", "ce_backwardI8plc_bf16Li8E", 256, 4, 4, { 1, 128 } },
}

local function find(object, pattern)
  for name, r in pairs(code.resources(tool, object)) do
    if name:find(pattern) then return name, r end
  end
  error(("%s has no kernel %s"):format(object, pattern))
end

print("| op | must move | moves | registers | threads a multiprocessor | under way | loads | expected |")
print("|---|---|---|---|---|---|---|---|")
for _, row in ipairs(ROWS) do
  local op, object, pattern, threads, must, moved, way, shared = table.unpack(row)
  object = ("%s/cuda/%s.o"):format(build, object)
  local name, r = find(object, pattern)
  local c = code.code(tool, object, { name })[name]
  local blocks = math.min(2048 // threads, 32, 65536 // ((r.registers + 7) // 8 * 8 * threads))
  if shared then blocks = math.min(blocks, (228 << 10) // (shared + 1024)) end
  local loads = c.loads[way[2]] or 0
  if loads < way[1] then error(("%s has %d loads of %d bits, not %d"):format(name, loads, way[2], way[1])) end
  local bytes = blocks * threads * way[1] * way[2] // 8
  local share = must / moved * math.min(1, bytes / NEEDED)
  print(("| %s | %d B | %d B | %d | %d | %d KiB | %d x %d bits | %d %% |"):format(op, must, moved, r.registers,
    blocks * threads, bytes >> 10, way[1], way[2], math.floor(100 * share + 0.5)))
end
print(("\nUnder way: bytes that the threads of a multiprocessor ask for at a time; %d KiB keep it busy.")
  :format(math.floor(NEEDED / 1024 + 0.5)))
