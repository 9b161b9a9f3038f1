-- SPDX-License-Identifier: MIT
-- What compiling gives: the same workload as written and through T.jit, in turn in one process.
--   perilune run bench/jit.lua -- [--only NAME ...] [--modes A B] [--threads N] [--rounds N] [--json FILE] [--list]
-- Modes: eager, jit, cheap (T.jit that computes cheap operations again in backward), mirror (bench/run.lua's). The
-- ratio is B's time to A's; below 1 B is faster. Two are printed: of the least times, and the median of the rounds'.
-- --work takes processor time (with --threads 1), which other programs disturb less.

local here = debug.getinfo(1, "S").source:match("^@(.*)jit%.lua$") or "./"
local T = require "perilune"
local timing = dofile(here .. "timing.lua")
local workloads = dofile(here .. "workloads/init.lua")
local clock = T.clock or T.core.clock

local function load_file(file) return dofile(here .. "workloads/" .. file .. ".lua") end

local MODES = { eager = true, jit = true, cheap = true, mirror = true }
local ROUND_S = 0.1 -- a round repeats each mode's call for about this long

local function parse(args)
  local o = { only = {}, modes = {}, threads = #timing.cores(), rounds = 15 }
  local i = 1
  local function list(to)
    while args[i + 1] and args[i + 1]:sub(1, 2) ~= "--" do
      i = i + 1
      to[#to + 1] = args[i]
    end
  end
  while i <= #args do
    local a = args[i]
    if a == "--only" then
      list(o.only)
    elseif a == "--modes" then
      list(o.modes)
    elseif a == "--list" or a == "--work" then
      o[a:sub(3)] = true
    elseif (a == "--threads" or a == "--rounds" or a == "--json") and args[i + 1] then
      i = i + 1
      o[a:sub(3)] = a == "--json" and args[i] or assert(math.tointeger(tonumber(args[i])), a .. " wants a whole number")
    elseif a ~= "--" then
      error("unknown option " .. a, 0)
    end
    i = i + 1
  end
  if #o.modes == 0 then o.modes = { "eager", "jit" } end
  if #o.modes ~= 2 then error("--modes wants two", 0) end
  for _, m in ipairs(o.modes) do if not MODES[m] then error("no mode " .. m, 0) end end
  return o
end

-- Those of bench/run.lua that are compiled, but for the two that take a gigabyte; and the groups.
local function names()
  local list, W = {}, {}
  for _, name in ipairs(workloads.names) do
    if #workloads.modes(name) > 1 and not name:find("_mem$") then list[#list + 1] = name end
  end
  load_file("groups")(T, W, { compiled = function(f) return f end })
  return table.move(W.groups, 1, #W.groups, #list + 1, list)
end

local function build(name, mode)
  T.manual_seed(1)
  local call = workloads.build(T, name, load_file, mode)
  if type(call) == "string" then error(name .. ": " .. call, 0) end
  return call
end

local function timed(call, n)
  local from = clock()
  for _ = 1, n do call() end
  return (clock() - from) / n
end

-- Calls of both modes in turn; which one begins changes from round to round.
local function compare(name, modes, rounds)
  local calls, first, least, ratios = {}, {}, { math.huge, math.huge }, {}
  for k = 1, 2 do
    calls[k] = build(name, modes[k])
    first[k] = timed(calls[k], 1)
  end
  local warm, n = clock(), { 1, 1 }
  while clock() - warm < 0.3 do
    for k = 1, 2 do calls[k]() end
  end
  for k = 1, 2 do -- a clock may not have moved
    n[k] = math.max(1, math.floor(ROUND_S / math.max(1e-7, math.min(timed(calls[k], 2), timed(calls[k], 2)))))
  end
  for round = 1, rounds do
    local t = {}
    for j = 1, 2 do
      local k = (round + j) % 2 + 1
      t[k] = timed(calls[k], n[k])
      least[k] = math.min(least[k], t[k])
    end
    ratios[round] = t[2] / t[1]
  end
  return { workload = name, threads = T.get_num_threads(), a = modes[1], b = modes[2], a_s = least[1],
    b_s = least[2], ratio_least = least[2] / least[1], ratio_median = timing.median(ratios), first_a_s = first[1],
    first_b_s = first[2] }
end

local FIELDS = {
  "workload", "threads", "a", "b", "a_s", "b_s", "ratio_least", "ratio_median", "first_a_s", "first_b_s",
}

local function main(args)
  local o = parse(args)
  local all = names()
  if o.list then
    print(table.concat(all, "\n"))
    return
  end
  T.set_num_threads(o.threads)
  if o.work then clock = os.clock end
  print(("%-28s %10s %10s %8s %8s"):format("workload", o.modes[1] .. " ms", o.modes[2] .. " ms", "least", "median"))
  for _, name in ipairs(#o.only > 0 and o.only or all) do
    local r = compare(name, o.modes, o.rounds)
    print(("%-28s %10.4f %10.4f %8.3f %8.3f"):format(name, r.a_s * 1e3, r.b_s * 1e3, r.ratio_least,
      r.ratio_median))
    io.stdout:flush()
    if o.json then
      local f = assert(io.open(o.json, "a"))
      f:write(timing.json(r, FIELDS), "\n")
      f:close()
    end
    collectgarbage()
    collectgarbage()
  end
end

main { ... }
