-- SPDX-License-Identifier: MIT
-- Language models from GGUF files: the workloads of ../shared/bench/MODELS.md, one JSON line a result, for
-- models_compare.py there, which runs this and a peer in turn.
--   perilune run bench/models.lua -- --models FOLDER [--only NAME] [--modes MODE] [--threads N] [--json FILE]
-- NAME_pp512: 512 tokens into an empty cache in one call; NAME_tg64: 64 tokens, each the best of the last one's logits;
-- The first in products of bf16, where the processor has them: llama.cpp rounds to 8 bits there.
-- NAME_load: open the file, one token. Samples are single calls: one first, one to warm up, then 5 to 20 in 10 s.
local T = require "perilune"
local timing = dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/timing.lua")

local o = { models = ".", modes = { "q8_0", "q4_0", "q4_k" }, only = { "llm05_pp512", "llm05_tg64", "llm05_load" } }
local i = 1
while arg[i] do
  local name = arg[i]:match "^%-%-(%a+)$"
  assert(name, "usage: --models FOLDER [--only NAME …] [--modes MODE …] [--threads N] [--json FILE]")
  local list = {}
  i = i + 1
  while arg[i] and arg[i]:sub(1, 2) ~= "--" do
    list[#list + 1], i = arg[i], i + 1
  end
  o[name] = (name == "only" or name == "modes") and list or list[1]
end
if o.threads then T.set_num_threads(math.tointeger(o.threads)) end

local ids = {}
for k = 0, 511 do ids[k + 1] = (k * 7919) % 31000 + 300 end

local calls = {}
function calls.pp512(net)
  T.set_float32_matmul_precision "medium"
  local all = T.tensor({ ids }, { dtype = "i64" })
  return function() T.no_grad(net, all, { cache = T.nn.KVCache(), last = 1 }) end
end
function calls.tg64(net)
  return function() net:generate({ ids[1] }, { max_new_tokens = 64, stop = false }) end
end
function calls.load(_, path)
  return function()
    local net = assert(T.models.load(path))
    T.no_grad(net, T.tensor({ { 1 } }, { dtype = "i64" }), { last = 1 })
    net = nil -- luacheck: ignore
    collectgarbage()
  end
end

local function seconds(call)
  local t = T.timer()
  call()
  return t:elapsed()
end

for _, workload in ipairs(o.only) do
  for _, mode in ipairs(o.modes) do
    local size, kind = workload:match "^(.-)_(%w+)$"
    local path = ("%s/%s-%s.gguf"):format(o.models, size, mode)
    local net = kind ~= "load" and assert(T.models.load(path)) or nil
    local call = calls[kind](net, path)
    local first, samples, total = seconds(call), {}, 0
    seconds(call)
    while #samples < 5 or #samples < 20 and total < 10 do
      samples[#samples + 1] = seconds(call)
      total = total + samples[#samples]
    end
    local middle, work = timing.median(samples), kind == "pp512" and 512 or 64
    local unit = kind == "load" and "s" or "tokens/s"
    local line = ('{"workload": "%s", "impl": "perilune", "mode": "%s", "threads": %d, "median_s": %.6f, '
      .. '"min_s": %.6f, "peak_rss_mb": %.1f, "unit": "%s", "throughput": %.3f, "first_s": %.6f}'):format(workload,
      mode, T.get_num_threads(), middle, timing.min(samples), timing.peak_kb() / 1024, unit,
      kind == "load" and middle or work / middle, first)
    print(line)
    if o.json then
      local f = assert(io.open(o.json, "a"))
      f:write(line, "\n")
      f:close()
    end
  end
end
