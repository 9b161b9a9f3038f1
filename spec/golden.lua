-- SPDX-License-Identifier: MIT
-- Runs golden cases: perilune run spec/golden.lua -- DIR [op ...] [--every N] [--verbose] [--fails N] [--mode M]
-- Prints one line per operator, the failures, the reasons of skips, and closes with
-- "N passed, N failed, N skipped". Exit status 1 if a case failed, 2 if the command line was wrong.
-- --every N runs each N-th case; --verbose prints every verdict; --fails N prints at most N failures per
-- operator (default 3). --mode runs them in another way: spec/golden/modes.lua. --device cuda makes that the default
-- one; --part K/N takes the K-th of N parts of the operators.

local root = debug.getinfo(1, "S").source:match("^@(.*)spec/golden%.lua$") or ""
if root == "" then root = "./" end
package.path = root .. "?.lua;" .. package.path

local T = require "perilune"
local reader = require "spec.golden.reader"
local cases = require "spec.golden.cases"
local modes = require "spec.golden.modes"
local special = require "spec.golden.special"
local exceptions = require "spec.golden.exceptions"

local function parse(args)
  local o = { ops = {}, every = 1, fails = 3 }
  local i = 1
  while i <= #args do
    local a = args[i]
    if a == "--every" or a == "--fails" then
      i = i + 1
      o[a:sub(3)] = math.tointeger(tonumber(args[i]))
    elseif a == "--mode" or a == "--autocast" or a == "--device" or a == "--part" then
      i = i + 1
      o[a:sub(3)] = args[i]
    elseif a == "--verbose" then
      o.verbose = true
    elseif a ~= "--" then
      if o.dir then o.ops[#o.ops + 1] = a else o.dir = a end
    end
    i = i + 1
  end
  if not o.dir or not o.every or not o.fails or o.every < 1 then
    io.stderr:write("usage: perilune run spec/golden.lua -- DIR [op ...] [--every N] [--verbose] ",
      "[--fails N] [--mode M] [--device D] [--part K/N]\n")
    os.exit(2)
  end
  return o
end

-- ---- bookkeeping --------------------------------------------------------------------------------

local total = { pass = 0, fail = 0, skip = 0 }
local reasons, stale = {}, {}

local function exception_for(op, id, text)
  for _, row in ipairs(exceptions) do
    if row.op == op and id:find(row.id) and (not row.text or text and text:find(row.text)) then return row end
  end
end

-- A verdict function for one operator, which counts, keeps failures and knows the exceptions.
local function counter(op, o)
  local c = { pass = 0, fail = 0, skip = 0, failures = {} }
  function c.verdict(id, v, text)
    local row = v == "fail" and exception_for(op, id, text)
    if row then
      v, text = "skip", row.reason
      row.used = true
    end
    c[v] = c[v] + 1
    total[v] = total[v] + 1
    if v == "skip" then
      local r = reasons[text] or { n = 0, ops = {}, list = {} }
      reasons[text] = r
      r.n = r.n + 1
      if not r.ops[op] then
        r.ops[op] = 0
        r.list[#r.list + 1] = op
      end
      r.ops[op] = r.ops[op] + 1
    elseif v == "fail" then
      c.failures[#c.failures + 1] = id .. ": " .. tostring(text)
    end
    if o.verbose then print(string.format("  %-4s %s%s", v, id, text and "  (" .. text .. ")" or "")) end
  end
  return c
end

local function report(op, c, o)
  print(string.format("%-40s %5d passed %4d failed %4d skipped", op, c.pass, c.fail, c.skip))
  for i, line in ipairs(c.failures) do
    if i > o.fails and not o.verbose then
      print(string.format("    … and %d more", #c.failures - o.fails))
      break
    end
    print("    FAIL " .. line)
  end
  io.stdout:flush()
end

-- ---- one operator -------------------------------------------------------------------------------

local registry = {}
for _, info in ipairs(T.core.ops()) do registry[info.name] = info end

local function every(file, n)
  if n == 1 or not file.cases then return file end
  local some = {}
  for i = 1, #file.cases, n do some[#some + 1] = file.cases[i] end
  file.cases = some
  return file
end

local function run_op(op, o)
  local c = counter(op, o)
  local file = every(reader.open(o.dir, op), o.every)
  if op == "promotion" then
    special.promotion(T, file, c.verdict)
  elseif op == "print" then
    special.print(T, file, c.verdict)
  elseif op:find("^optim%.") then
    special.optim(T, file, c.verdict)
  elseif op:find("^lr_scheduler%.") then
    special.schedule(T, file, c.verdict)
  elseif op:find("^clip_grad_") then
    special.clip(T, file, c.verdict)
  else
    local plan = cases.prepare(T, registry, file)
    for _, case in ipairs(file.cases) do
      if not plan then
        c.verdict(case.id, "skip", "not there yet")
      else
        if o.autocast then c.verdict(case.id, T.autocast(o.autocast, cases.run, T, plan, case))
        elseif o.mode then c.verdict(case.id, modes.run(T, plan, case, o.mode))
        else c.verdict(case.id, cases.run(T, plan, case)) end
      end
    end
  end
  report(op, c, o)
end

local function main(args)
  local o = parse(args)
  local whole = #o.ops == 0 and o.every == 1 and not o.part
  if o.device then T.set_default_device(o.device) end
  if #o.ops == 0 then
    for _, row in ipairs(reader.open(o.dir, "index")) do o.ops[#o.ops + 1] = row.op end
    for _, name in ipairs { "promotion", "print" } do -- op_database.py writes neither
      local f = io.open(o.dir .. "/" .. name .. ".lua")
      if f then
        f:close()
        table.insert(o.ops, name)
      end
    end
  end
  local k, n = (o.part or "1/1"):match("^(%d+)/(%d+)$")
  for i, op in ipairs(o.ops) do
    if i % n == k % n then run_op(op, o) end
  end

  local order = {}
  for text in pairs(reasons) do order[#order + 1] = text end
  table.sort(order, function(a, b) return reasons[a].n > reasons[b].n end)
  if #order > 0 then print("skipped:") end
  for _, text in ipairs(order) do
    local r, parts = reasons[text], {}
    for i, op in ipairs(r.list) do parts[i] = op .. " " .. r.ops[op] end
    print(string.format("  %5d  %s (%s)", r.n, text, table.concat(parts, ", ")))
  end
  for _, row in ipairs(exceptions) do
    if whole and not row.used and not row.optional then stale[#stale + 1] = row.op .. " " .. row.id end
  end
  for _, name in ipairs(stale) do print("exception no longer needed: " .. name) end
  print(string.format("%d passed, %d failed, %d skipped", total.pass, total.fail, total.skip))
  os.exit(total.fail == 0 and 0 or 1)
end

main { ... }
