-- SPDX-License-Identifier: MIT
-- Single operations against PyTorch's on the CPU, in turn: a Markdown table of ratios (above 1: perilune is slower).
--   perilune run bench/ops.lua -- [--only PATTERN ...] [--threads 1] [--rounds 5] [--python python3] [--above 1.1]
--                                 [--work] [--sample 0.02] [--json FILE] [--since FILE]
-- The cases are in ops_cases.lua; PyTorch runs in a child process, ops_peer.py. Without PyTorch: --python none.
-- --work takes processor time on both sides, which other programs disturb less; --sample: seconds that a sample lasts.
-- --json appends a line a case, a history; --since reads one and marks what is slower than there, by ratios.

local here = debug.getinfo(1, "S").source:match("^@(.*)ops%.lua$") or "./"
local T = require "perilune"
local timing = dofile(here .. "timing.lua")
local clock = T.clock or T.core.clock

local sample_s = 0.02 -- a sample repeats its call for about this long

local function parse(args)
  local o, i = { only = {}, threads = 1, rounds = 5, python = "python3" }, 1
  while i <= #args do
    local a = args[i]
    if a == "--only" then
      while args[i + 1] and args[i + 1]:sub(1, 2) ~= "--" do
        i = i + 1
        o.only[#o.only + 1] = args[i]
      end
    elseif a == "--list" or a == "--work" then
      o[a:sub(3)] = true
    elseif (a == "--python" or a == "--json" or a == "--since") and args[i + 1] then
      i = i + 1
      o[a:sub(3)] = args[i]
    elseif (a == "--threads" or a == "--rounds" or a == "--above" or a == "--sample") and args[i + 1] then
      i = i + 1
      o[a:sub(3)] = tonumber(args[i]) or timing.fail("%s wants a number", a)
    elseif a ~= "--" then
      timing.fail("unknown option %s", a)
    end
    i = i + 1
  end
  return o
end

-- "x 2,3; i i64<10 4" as a list of { name, kind, { sizes } }; the kind is f32 where none is given.
local function inputs_of(text)
  local list = {}
  for part in text:gmatch("[^;]+") do
    local name, kind, sizes = part:match("^%s*(%a%w*)%s+(%S-)%s*([%d,]+)%s*$")
    local dims = {}
    for d in sizes:gmatch("%d+") do dims[#dims + 1] = math.tointeger(d) end
    list[#list + 1] = { name, kind == "" and "f32" or kind, dims }
  end
  return list
end

local function tensor(kind, sizes)
  local dtype, below = kind:match("^(%w+)<(%d+)$")
  if dtype then return T.randint(0, math.tointeger(below) - 1, sizes):to(dtype) end
  if kind == "bool" then return T.rand(sizes):lt(0.5) end
  if kind == "uniform" then return T.rand(sizes) end
  if kind == "spd" then
    local a, n = T.randn(sizes), sizes[#sizes]
    return a:matmul(a:transpose(-1, -2)) / n + T.eye(n)
  end
  return T.randn(sizes):to(kind)
end

-- Our call of a case: forward, or forward and backward to every floating input.
local function build(case)
  local list, floats = {}, {}
  for i, spec in ipairs(inputs_of(case[2])) do
    local t = tensor(spec[2], spec[3])
    list[i] = t
    if case.grad and t:dtype():find("f") then floats[#floats + 1] = t:requires_grad_() end
  end
  local f, n = case[3], #list
  if case.setup then return f(table.unpack(list, 1, n)) end
  local a, b, c, d = table.unpack(list, 1, n)
  if not case.grad then return function() local _ = f(a, b, c, d) end end
  local seed = T.ones_like(f(a, b, c, d):detach())
  return function()
    for i = 1, #floats do floats[i].grad = nil end
    f(a, b, c, d):backward(seed)
  end
end

-- The other process: requests go through a named pipe, answers come back through popen.
local Peer = {}
Peer.__index = Peer

function Peer.start(o)
  local pipe = os.tmpname()
  os.remove(pipe)
  local _, bad = timing.read_command("mkfifo " .. timing.quote(pipe))
  if bad ~= 0 then timing.fail("cannot make a named pipe at %s", pipe) end
  local p = { from = io.popen(("%s %sops_peer.py %d %s < %s"):format(timing.quote(o.python), here, o.threads,
    o.work and "work" or "wall", pipe)) }
  p.to = assert(io.open(pipe, "w"))
  os.remove(pipe)
  return setmetatable(p, Peer)
end

function Peer:ask(...)
  self.to:write(string.format(...), "\n")
  self.to:flush()
  return self.from:read("l") or timing.fail("PyTorch's side has ended")
end

function Peer:set(case)
  local parts = {}
  for i, s in ipairs(inputs_of(case[2])) do
    parts[i] = ('["%s", "%s", [%s]]'):format(s[1], s[2], table.concat(s[3], ", "))
  end
  local setup, call = case[4]:match("^(.-)%s*;;%s*(.*)$")
  local text = ('{"inputs": [%s], "setup": "%s", "call": "%s", "grad": %s}'):format(table.concat(parts, ", "),
    (setup or ""):gsub("\n", "\\n"), call or case[4], tostring(case.grad or false))
  local answer = self:ask("set %s", text)
  return answer ~= "ok" and answer or nil
end

local function compare(case, peer, rounds)
  local call = build(case)
  local function ours(n)
    local from = clock()
    for _ = 1, n do call() end
    return (clock() - from) / n
  end
  local bad = peer and peer:set(case)
  if bad then return nil, bad end
  local sides = { ours, peer and function(n) return tonumber((peer:ask("time %d", n))) end }
  local n, t, ratios = {}, { {}, {} }, {}
  for k, side in ipairs(sides) do
    side(1)
    local once = math.max(1e-7, side(1)) -- a clock may not have moved
    n[k] = math.max(1, math.floor(sample_s / math.max(1e-7, side(math.max(1, math.floor(2e-3 / once))))))
  end
  for round = 1, rounds do
    for j = 1, #sides do
      local k = #sides == 1 and 1 or (round + j) % 2 + 1
      t[k][round] = sides[k](n[k])
    end
    ratios[round] = t[1][round] / (t[2][round] or 0 / 0)
  end
  return timing.median(t[1]), timing.median(peer and t[2] or { 0 / 0 }), timing.median(ratios),
    timing.min(t[1]) / timing.min(peer and t[2] or { 0 / 0 })
end

local function wanted(name, only)
  for _, pattern in ipairs(only) do if name:find(pattern) then return true end end
  return #only == 0
end

-- The newest least ratio of each case in a history; a case is its name and its sizes.
local function history(path)
  local f, last = path and (io.open(path) or timing.fail("cannot read %s", path)), {}
  if not f then return last end
  for line in f:lines() do
    local name, sizes, ratio = line:match('"case": "(.-)", "sizes": "(.-)".*"ratio_least": ([%d.e+-]+)')
    if name then last[name .. " | " .. sizes] = tonumber(ratio) end
  end
  f:close()
  return last
end

local FIELDS = { "case", "sizes", "threads", "rounds", "ours_s", "peer_s", "ratio", "ratio_least", "when" }

local function main(args)
  local o = parse(args)
  local before, slower = history(o.since), {}
  local out = o.json and assert(io.open(o.json, "a"))
  local cases = dofile(here .. "ops_cases.lua")(T)
  if o.list then
    for _, case in ipairs(cases) do print(case[1], case[2]) end
    return
  end
  T.set_num_threads(o.threads)
  if o.work then clock = os.clock end
  sample_s = o.sample or sample_s
  T.manual_seed(1)
  local peer = o.python ~= "none" and Peer.start(o) or nil
  print(("| case | sizes | perilune ms | PyTorch ms | ratio |\n|%s"):format(("---|"):rep(5)))
  for _, case in ipairs(cases) do
    if wanted(case[1], o.only) then
      local fine, a, b, ratio, of_least = pcall(compare, case, peer, o.rounds)
      if not fine or not a then
        print(("| %s | %s | %s | | |"):format(case[1], case[2], fine and b or a))
      else
        if out then
          out:write(timing.json({ case = case[1], sizes = case[2], threads = o.threads, rounds = o.rounds, ours_s = a,
            peer_s = b, ratio = ratio, ratio_least = of_least, when = os.date "!%Y-%m-%dT%H:%M:%SZ" }, FIELDS), "\n")
        end
        local was = before[case[1] .. " | " .. case[2]]
        if was and of_least > 1.25 * was then
          slower[#slower + 1] = ("%s, %s: %.2f, was %.2f"):format(case[1], case[2], of_least, was)
        end
      end
      if fine and a and (not o.above or ratio > o.above) then
        print(("| %s | %s | %.4f | %.4f | %.2f |"):format(case[1], case[2], a * 1e3, b * 1e3, ratio))
      end
      io.stdout:flush()
      collectgarbage()
      collectgarbage()
    end
  end
  if out then out:close() end
  if o.since then
    print(#slower == 0 and "\nNo case is slower than in the history." or "\nSlower than in the history:")
    for _, line in ipairs(slower) do print("- " .. line) end
  end
end

main { ... }
