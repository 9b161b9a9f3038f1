-- SPDX-License-Identifier: MIT
-- Mutation testing of the gradient and shape rules in engine/ops: which changes of the code does no spec notice?
--   lua5.4 spec/mutants/run.lua ROOT BUILD [--files PATTERN] [--every N] [--from K] [--jobs N] [--slowest SECONDS]
--     [--budget SECONDS] [--report FILE] [--only FILE] [--specs FILE…]
-- as ./setup mutants does; without --specs: those of ops, autograd, nn and tensor, and that of recurrent nets on the
-- emulated GPU where it is built, which alone asks for their rules. --from: another sample of every N. --only:
-- the survivors of that report. --slowest: without tests that take longer; --budget: of a mutant's tests, together.
-- Builds all mutants into one engine (spec/mutants/build.lua), notes which `it` of the specs asks for which mutant, and
-- runs for each mutant those that do, each in a child of its own, until one fails, crashes or takes too long. Prints
-- what survives, then counts, by folder. Survivors that no spec can kill, as nothing that a caller sees changes, are in
-- spec/mutants/equivalent.lua with the reason; they count apart.
local root, build = arg[1], arg[2]
local folder = (os.getenv "PL_MUTANTS_DIR" or build .. "/mutants")
local files_wanted, every, specs, report, budget, only = nil, 1, {}, nil, 90, nil
local first, slots, slowest = 0, 2, 60
do
  local i = 3
  while arg[i] do
    if arg[i] == "--files" then files_wanted = arg[i + 1]; i = i + 1
    elseif arg[i] == "--every" then every = tonumber(arg[i + 1]); i = i + 1
    elseif arg[i] == "--from" then first = tonumber(arg[i + 1]); i = i + 1
    elseif arg[i] == "--jobs" then slots = tonumber(arg[i + 1]); i = i + 1
    elseif arg[i] == "--slowest" then slowest = tonumber(arg[i + 1]); i = i + 1
    elseif arg[i] == "--report" then report = arg[i + 1]; i = i + 1
    elseif arg[i] == "--budget" then budget = tonumber(arg[i + 1]); i = i + 1
    elseif arg[i] == "--only" then only = arg[i + 1]; i = i + 1
    elseif arg[i] == "--specs" then
      specs = table.move(arg, i + 1, #arg, 1, {})
      break
    else error("unknown: " .. arg[i]) end
    i = i + 1
  end
end
package.path = root .. "/lua/?.lua;" .. root .. "/lua/?/init.lua;" .. root .. "/?.lua;" .. package.path

if not os.getenv "PL_MUTANTS_BUILT" then
  local mutants = require "spec.mutants.build".all(root, build, folder, files_wanted)
  local f = assert(io.open(folder .. "/list.lua", "w"))
  f:write "return {\n"
  for _, m in ipairs(mutants) do
    f:write(("{id=%d,line=%d,file=%q,func=%q,kind=%q,what=%q,key=%q},\n"):format(m.id, m.line, m.file, m.func, m.kind,
      m.what, m.key))
  end
  f:write "}\n"
  f:close()
  local emulated = build .. "/spec/cuda_emulated.so"
  local f_emulated = io.open(emulated)
  if f_emulated then f_emulated:close() end
  local again = { f_emulated and "PERILUNE_CUDA_PLUGIN='" .. emulated .. "' PERILUNE_CUDA_QUIET=1" or "",
    "PL_MUTANTS_BUILT=1", "OMP_NUM_THREADS=1", "PERILUNE_ROOT='" .. root .. "'", "PERILUNE_BUILD='"
    .. build .. "'",
    "LD_PRELOAD='" .. folder .. "/lib/mutants.so'",
    "LUA_PATH_5_4='" .. package.path .. "'", "LUA_CPATH_5_4='" .. folder .. "/lib/?.so;;'", "lua5.4" }
  for i = 0, #arg do again[#again + 1] = "'" .. arg[i] .. "'" end
  local ok = os.execute("cd '" .. root .. "' && env " .. table.concat(again, " "))
  os.exit(ok and 0 or 1)
end

local mutants = dofile(folder .. "/list.lua")
local equivalent = dofile(root .. "/spec/mutants/equivalent.lua")
local process = require "mutants"

-- ---- specs, without busted: `it`s with the hooks around them
local tests, scope = {}, nil
local luassert = require "luassert"
local env = setmetatable({ assert = luassert, spy = require "luassert.spy", stub = require "luassert.stub",
  mock = require "luassert.mock",
  match = require "luassert.match" }, { __index = _G })
_G.assert = luassert
local function describe(name, body)
  local outer = scope
  scope = { name = (outer and outer.name .. " " or "") .. tostring(name), outer = outer, before = {}, after = {},
    file = outer and outer.file }
  local mine = scope
  local ok, err = pcall(body)
  if not ok and not tostring(err):find "pending" then io.stderr:write(tostring(err), "\n") end
  scope = mine.outer
end
env.describe, env.context, env.insulate, env.expose = describe, describe, describe, describe
env.pending = function() end
local function hook(list) return function(f) table.insert(scope[list], f) end end
env.before_each, env.setup, env.lazy_setup = hook "before", hook "before", hook "before"
env.after_each, env.teardown, env.lazy_teardown = hook "after", hook "after", hook "after"
env.strict_setup, env.strict_teardown = hook "before", hook "after"
env.it = function(name, body)
  local s = scope
  tests[#tests + 1] = { name = s.file .. ": " .. s.name .. " " .. tostring(name), kills = 0, file = s.file,
    run = function()
    local chain, last = {}, nil
    local at = s
    while at do table.insert(chain, 1, at); at = at.outer end
    for _, c in ipairs(chain) do for _, f in ipairs(c.before) do f() end end
    env.finally = function(f) last = f end
    local ok, err = xpcall(body, function(e) return type(e) == "table" and tostring(e.message or e)
      or debug.traceback(tostring(e)) end)
    if last then last() end
    if os.getenv "PL_MUTANTS_SHOW" and not ok then io.stderr:write(s.file, " ", tostring(name), ": ", tostring(err),
      "\n") end
    return ok
  end }
end
env.test, env.spec = env.it, env.it
env.finally = function() end
setmetatable(_G, { __index = function(_, k) if k ~= "_TEST" then return rawget(env, k) end end })

if #specs == 0 then
  local folders = "spec/ops/*_spec.lua spec/autograd/*_spec.lua spec/nn/*_spec.lua spec/tensor/*_spec.lua"
  if os.getenv "PERILUNE_CUDA_PLUGIN" then folders = folders .. " spec/cuda/recurrent_spec.lua" end
  local list = assert(io.popen(("cd '%s' && ls %s"):format(root, folders)))
  for line in list:lines() do specs[#specs + 1] = line end
  list:close()
end
local function load_spec(file)
  scope = { name = "", before = {}, after = {}, file = file:match "spec/(.*)_spec" or file }
  local f, err = loadfile(file)
  local ok, why = pcall(function() return (assert(f, err))() end)
  if not ok then io.stderr:write("left out: ", file, ": ", tostring(why), "\n") end
  scope = nil
end
for _, file in ipairs(specs) do
  if file:find "spec/cuda/" then
    -- the emulation's threads do not survive a fork: the child opens the device, and the file is one test
    tests[#tests + 1] = { name = file, kills = 0, file = file, roomy = true, run = function()
      tests = {}
      load_spec(file)
      for _, t in ipairs(tests) do if not t.run() then return false end end
      return #tests > 0
    end }
  else
    load_spec(file)
  end
end
process.start()

local function child(t, mutant, seconds)
  return process.run(t.run, mutant, seconds, not os.getenv "PL_MUTANTS_SHOW", t.roomy)
end

-- ---- which test asks for which mutant, and how long it takes
local began = process.now()
local asked, known = {}, {} -- number of mutant → tests
for _, m in ipairs(mutants) do known[m.id] = m end
local sound = 0
for k, t in ipairs(tests) do
  process.reached()
  child(t, 0, slowest)
  local _, passed, how, seconds = process.wait()
  t.seconds = seconds
  if passed then
    sound = sound + 1
    t.order = k
    for _, id in ipairs(process.reached()) do
      if known[id] then
        asked[id] = asked[id] or {}
        table.insert(asked[id], t)
      end
    end
  else
    io.stderr:write("left out (", how, "): ", t.name, "\n")
  end
end
io.stderr:write(("%d of %d tests, %.0f s\n"):format(sound, #tests, process.now() - began))

-- ---- the mutants ---------------
local killers = {} -- function → its tests that killed before, best first
local left, survivors, killed, unreached, same = {}, {}, 0, 0, 0
local chosen -- the survivors of a report
if only then
  chosen = {}
  for line in io.lines(only) do
    local key = line:match "^survived\t([^\t]*)"
    if key then chosen[key] = true end
  end
end
for i, m in ipairs(mutants) do
  if i % every == first % every and (not chosen or chosen[m.key]) then left[#left + 1] = m end
end
local function order(m)
  local list = {}
  for _, t in ipairs(asked[m.id] or {}) do list[#list + 1] = t end
  local best = killers[m.file .. m.func] or {}
  table.sort(list, function(a, b)
    local x, y = a.seconds / (1 + 3 * (best[a] or 0)), b.seconds / (1 + 3 * (best[b] or 0))
    if x ~= y then return x < y end
    return a.order < b.order
  end)
  return list
end
local running, at, done = {}, 0, 0
local by_folder = {} -- folder → {mutants, killed}
local out = report and assert(io.open(report, "w")) or nil
local function finish(job, how)
  done = done + 1
  local m = job.m
  local folder_of = m.file:match "(.*)/"
  by_folder[folder_of] = by_folder[folder_of] or { 0, 0, 0 }
  by_folder[folder_of][1] = by_folder[folder_of][1] + 1
  local why = equivalent(m)
  if how and why then print(("%s: listed as equivalent (%s), yet killed: mend the list"):format(m.key, why)) end
  if not how and why then
    same = same + 1
    by_folder[folder_of][3] = by_folder[folder_of][3] + 1
    if out then out:write("equivalent\t", m.key, "\t", why, "\n") end
  elseif how then
    killed = killed + 1
    by_folder[folder_of][2] = by_folder[folder_of][2] + 1
    local k = m.file .. m.func
    killers[k] = killers[k] or {}
    killers[k][job.now] = (killers[k][job.now] or 0) + 1
    if out then out:write("killed\t", m.key, "\t", how, "\t", job.now.name, "\n") end
  else
    survivors[#survivors + 1] = m
    if #job.list == 0 then unreached = unreached + 1 end
    local line = ("%s:%d %s: %s: %s (%d tests)"):format(m.file, m.line, m.func, m.kind, m.what, #job.list)
    print(line)
    if out then out:write("survived\t", m.key, "\t", m.line, "\t", #job.list, "\n") out:flush() end
  end
  if done % 500 == 0 then io.stderr:write(("%d of %d, %d survive, %.0f s\n"):format(done, #left, #survivors,
    process.now() - began)) end
end
local function step(job)
  job.k = job.k + 1
  local t = job.list[job.k]
  if not t or job.spent > budget then return finish(job, nil) end
  job.now = t
  running[child(t, job.m.id, 3 + 10 * t.seconds)] = job
  job.busy = true
end
local function count() local n = 0 for _ in pairs(running) do n = n + 1 end return n end
while true do
  while count() < slots and at < #left do
    at = at + 1
    local m = left[at]
    step { m = m, list = order(m), k = 0, spent = 0 }
  end
  local active = count()
  if active == 0 and at >= #left then break end
  if active > 0 then
    local pid, passed, how, seconds = process.wait()
    local job = running[pid]
    if job then
      running[pid] = nil
      job.spent = job.spent + seconds
      if passed then step(job) else finish(job, how) end
    end
  end
end
local names = {}
for name in pairs(by_folder) do names[#names + 1] = name end
table.sort(names)
for _, name in ipairs(names) do
  local all, gone, alike = table.unpack(by_folder[name])
  print(("%-26s %5d of %5d killed, %4d equivalent, %5.1f %% of the others"):format(name, gone, all, alike,
    100 * gone / math.max(1, all - alike)))
end
local told = "%d mutants, %d killed (%.1f %%), %d equivalent (%.1f %% of the others killed), %d survive, of which %d "
  .. "are in code that no test reaches; %d tests, %.0f s"
print(told:format(#left, killed, 100 * killed / math.max(1, #left), same, 100 * killed / math.max(1, #left - same),
  #survivors, unreached, sound, process.now() - began))
if out then out:close() end
