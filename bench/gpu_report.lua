-- SPDX-License-Identifier: MIT
-- Joins what the slices of bench/gpu.sh left in a folder: one JSON file (gpu.json) and one Markdown table (gpu.md) with
-- ratios to PyTorch from the same run and the goals of docs/design/cuda.md.
--   perilune run bench/gpu_report.lua -- FOLDER [OTHER FOLDERS whose figures are added]

local folders = { ... }
local folder = assert(folders[1], "a folder is wanted")

local function lines(name)
  local out = {}
  for _, dir in ipairs(folders) do
    local f = io.open(dir .. "/" .. name)
    for l in f and f:lines() or function() end do
      if l:sub(1, 1) == "{" then out[#out + 1] = l end
    end
    if f then f:close() end
  end
  return out
end

local function field(line, key)
  local v = line:match('"' .. key .. '":%s*"([^"]*)"') or line:match('"' .. key .. '":%s*([%-%d%.eE+]+)')
  return tonumber(v) or v
end

-- side[name][mode] = the line's figures; the last line of a name and mode counts.
local function side(name)
  local out, order = {}, {}
  for _, l in ipairs(lines(name)) do
    local w, m = field(l, "workload"), field(l, "mode")
    out[w] = out[w] or {}
    if not out[w][m] then order[#order + 1] = { w, m } end
    out[w][m] = { text = l, throughput = field(l, "throughput"), unit = field(l, "unit"), device = field(l, "device"),
      median = field(l, "median_s"), memory = field(l, "peak_device_mb") }
  end
  return out, order
end

local ours, order = side("perilune.jsonl")
local torch, torch_order = side("torch.jsonl")
for _, row in ipairs(torch_order) do
  if not (ours[row[1]] and ours[row[1]][row[2]]) then order[#order + 1] = row end
end

-- A goal is met or not, or open while a figure is missing. at_least: of our figure; ratio: to PyTorch in that mode.
local GOALS = {
  { "gemm_bf16_8192", "eager", ratio = 0.95 },
  { "ew_64m_f32", "eager", at_least = 3900 }, { "ew_64m_bf16", "eager", at_least = 3900 },
  { "cast_64m", "eager", at_least = 3900 }, { "adamw_124m", "eager", at_least = 3900 },
  { "rmsnorm_16384x4096", "eager", at_least = 3000 },
  { "sdpa_b4h16s2048d128_causal_fwd", "eager", ratio = 0.95, to = "cudnn" },
  { "sdpa_b4h16s2048d128_causal_bwd", "eager", ratio = 0.95, to = "cudnn" },
  { "sdpa_b1h64s8192d128_causal_fwd", "eager", ratio = 0.95, to = "cudnn" },
  { "sdpa_b1h64s8192d128_causal_bwd", "eager", ratio = 0.95, to = "cudnn" },
  { "gpt2_124m_step_b32", "eager", at_least = 300000 }, { "gpt2_124m_step_b32", "graph", at_least = 450000 },
  { "gpt2_124m_step_b32", "graph", ratio = 1, to = "compile" },
  { "resnet50_step_b256", "eager", ratio = 1 },
  { "dispatch_add", "eager", at_most = 5000 },
  { "mlp_step_b64", "graph", twice = "eager" },
}

local function better_when_lower(unit) return unit == "ns/op" end

-- How many times as fast as PyTorch; nil without both.
local function ratio(a, b)
  if not a or not b or type(a.throughput) ~= "number" or type(b.throughput) ~= "number" then return nil end
  return better_when_lower(a.unit) and b.throughput / a.throughput or a.throughput / b.throughput
end

local function goal(g)
  local a = ours[g[1]] and ours[g[1]][g[2]]
  if g.at_least then
    return string.format(">= %g %s", g.at_least, a and a.unit or ""), a and a.throughput >= g.at_least
  end
  if g.at_most then return string.format("<= %g ns", g.at_most), a and a.throughput <= g.at_most end
  if g.twice then
    local b = ours[g[1]] and ours[g[1]][g.twice]
    return ">= 2 times " .. g.twice, a and b and a.throughput >= 2 * b.throughput
  end
  local r = ratio(a, torch[g[1]] and torch[g[1]][g.to or g[2]])
  return string.format(">= %g of PyTorch's %s", g.ratio, g.to or g[2]), r and r >= g.ratio
end

local function number(x)
  if type(x) ~= "number" then return "" end
  return x >= 1000 and string.format("%.0f", x) or string.format("%.3g", x)
end

local md, json = {}, {}
local function say(fmt, ...) md[#md + 1] = string.format(fmt, ...) end

local probe = lines("probe.json")[1]
say("# perilune on a GPU\n")
say("%s\n", probe and ("`" .. probe .. "`") or "No probe was run.")
say("| workload | mode | perilune | PyTorch | unit | ratio | MiB | PyTorch's MiB |\n|---|---|---|---|---|---|---|---|")
for _, row in ipairs(order) do
  local a, b = (ours[row[1]] or {})[row[2]], (torch[row[1]] or {})[row[2]]
  local r = ratio(a, b)
  say("| %s | %s | %s | %s | %s | %s | %s | %s |", row[1], row[2], number(a and a.throughput),
    number(b and b.throughput), (a or b).unit, r and string.format("%.2f", r) or "", number(a and a.memory),
    number(b and b.memory))
end
say("\nRatio: how many times as fast as PyTorch in the same mode of the same run.\n")
say("| goal | mode | wanted | |\n|---|---|---|---|")
local met, missed, open = 0, 0, 0
local goals = {}
for _, g in ipairs(GOALS) do
  local text, ok = goal(g)
  if ok then met = met + 1 elseif ok == false then missed = missed + 1 else open = open + 1 end
  say("| %s | %s | %s | %s |", g[1], g[2], text, ok and "met" or ok == false and "**missed**" or "not measured")
  goals[#goals + 1] = string.format('{"workload": "%s", "mode": "%s", "wanted": "%s", "met": %s}', g[1], g[2], text,
    ok == nil and "null" or tostring(ok))
end
say("\n%d goals met, %d missed, %d not measured.\n", met, missed, open)
local checks = lines("checks.jsonl")
if #checks > 0 then
  say("| check | result | seconds |\n|---|---|---|")
  for _, l in ipairs(checks) do
    say("| %s | %s | %s |", field(l, "check"), field(l, "result"), number(field(l, "seconds")))
  end
end

local all = {}
for _, name in ipairs { "perilune.jsonl", "torch.jsonl" } do
  for _, l in ipairs(lines(name)) do all[#all + 1] = "    " .. l end
end
json[1] = '{\n  "probe": ' .. (probe or "null") .. ',\n  "results": [\n' .. table.concat(all, ",\n") .. "\n  ],"
json[2] = '  "goals": [\n    ' .. table.concat(goals, ",\n    ") .. "\n  ],"
json[3] = '  "checks": [' .. (#checks > 0 and "\n    " .. table.concat(checks, ",\n    ") .. "\n  " or "") .. "]\n}"

local function write(name, text)
  local f = assert(io.open(folder .. "/" .. name, "w"))
  f:write(text, "\n")
  f:close()
end
write("gpu.md", table.concat(md, "\n"))
write("gpu.json", table.concat(json, "\n"))
print(table.concat(md, "\n"))
