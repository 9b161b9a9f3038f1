-- SPDX-License-Identifier: MIT
-- A training has the same bits on any number of threads, traced or not, with the collector stopped and forced, at each
-- processor level by itself (spec/support/hash_training.lua), whatever memory held before; so have random programs.
-- PERILUNE_LANES=long: 1 to 8 threads, more steps, more programs.

local child = require "spec.support.child"
local build = os.getenv "PERILUNE_BUILD" or "build"
local root = os.getenv "PERILUNE_ROOT" or "."
local long = os.getenv "PERILUNE_LANES" == "long"
local steps, threads = long and 100 or 3, long and "1 2 3 4 5 6 7 8" or "1 2 3 5"

local function output(settings, arguments)
  local p = assert(io.popen(("cd '%s' && env %s '%s/bin/perilune' %s 2>&1"):format(root, settings, build, arguments)))
  local text = p:read "a"
  assert(p:close(), text)
  return text
end

-- The hashes of a run: each number of threads, eager and traced.
local function hashes(settings, numbers)
  local list = {}
  local text = output(settings, ("run spec/support/hash_training.lua -- %d %s"):format(steps, numbers or threads))
  for hash in text:gmatch "%x%x%x%x%x%x%x%x" do list[#list + 1] = hash end
  assert.is_true(#list >= 2, text)
  return list
end

local function one(list, what)
  for i, hash in ipairs(list) do assert.equal(list[1], hash, ("%s: run %d of %d"):format(what, i, #list)) end
  return list[1]
end

describe("a training has the same bits", function()
  it("on any number of threads, at each processor level", function()
    local seen, runs = {}, 0
    for _, level in ipairs { "v2", "v3", "v4" } do
      local name = output("PERILUNE_ISA=" .. level, "info"):match "kernels: (%w+)"
      if not seen[name] then -- others are not compiled, or not known to this processor
        local list = hashes("PERILUNE_ISA=" .. level)
        seen[name] = one(list, name)
        runs = runs + #list
      end
    end
    io.stderr:write(("%d trainings of %d steps\n"):format(runs, steps))
  end)

  it("whatever the collector does", function()
    local want = one(hashes("PERILUNE_COLLECT=off", "2"), "the collector left alone")
    for _, points in ipairs { "stop", "11+2", "alloc:701+7" } do
      assert.equal(want, one(hashes("PERILUNE_COLLECT=" .. points, "2"), points), points)
    end
  end)

  it("whatever the memory held before", function()
    local want = one(hashes("PERILUNE_POISON=", "2"), "memory as it is")
    for _, byte in ipairs { "255", "0x40", "0" } do
      assert.equal(want, one(hashes("PERILUNE_POISON=" .. byte, "2"), byte), byte)
    end
    -- NaN for what is read before it is written
    local count = long and 3000 or 60
    local text = child("PERILUNE_POISON=255", ([[
      package.path = "%s/?.lua;" .. package.path
      local generate, run = require "spec.support.whole.generate", require "spec.support.whole.run"
      for _, way in ipairs { "eager", "called", "traced", "traced_mincut" } do
        for seed = 90000001, 90000000 + %d do
          local problem = run.check(generate.program(seed), way)
          if problem then print(seed, way, problem) end
        end
      end
      print "all done"]]):format(root, count))
    assert.equal("all done", (text:gsub("%s+$", "")))
  end)

  it("again in the same process, in another thread's stead", function()
    local text = child("OMP_NUM_THREADS=2", ([[
      local f = loadfile "%s/spec/support/hash_training.lua"
      for n = 1, 2 do
        arg = { [0] = "x", "2", tostring(n) }
        f()
      end]]):format(root))
    local list = {}
    for hash in text:gmatch "%x%x%x%x%x%x%x%x" do list[#list + 1] = hash end
    assert.equal(4, #list, text)
    one(list, "one process")
  end)
end)
