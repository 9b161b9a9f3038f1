-- SPDX-License-Identifier: MIT
-- Hostile calls (spec/support/hostile.lua): nothing that a script or a saved graph says reaches a kernel unchecked.
-- Each run is a process of its own in an empty folder; the sanitizer build is where it counts. PERILUNE_HOSTILE sets
-- how many ops (a long run is 400000; programs are a tenth of it), PERILUNE_HOSTILE_SEED where to begin.

local T = require "perilune"
local hostile = require "spec.support.hostile"
local FOUND = require "spec.support.hostile.found"
local run = require "spec.support.hostile.process"
local child = require "spec.support.child"

local sanitized = (os.getenv "PERILUNE_SANITIZE" or "") ~= ""
local COUNT = tonumber(os.getenv "PERILUNE_HOSTILE") or sanitized and 10000 or 4000
local FIRST = tonumber(os.getenv "PERILUNE_HOSTILE_SEED") or 1

describe("hostile calls", function()
  it("that once reached a kernel are errors", function()
    local taken = {}
    for i, call in ipairs(FOUND) do
      local inputs = {}
      for k, text in ipairs(call[2]) do inputs[k] = hostile.input(text) end
      local ok, err = hostile.apply(call[1], inputs, call[3])
      if ok then taken[#taken + 1] = ("%d: %s was taken"):format(i, call[1]) end
      if not ok and not tostring(err):find((call[1]:gsub("_bwd2?$", "")), 1, true) then
        taken[#taken + 1] = ("%d: %s"):format(i, tostring(err))
      end
    end
    assert.equal("", table.concat(taken, "\n"))
  end)

  it("of functions that the library keeps for itself are errors", function()
    local core = T.core
    assert.has_error(function() core.autocast_leave(255) end)
    assert.has_error(function() core.autocast_enter("i64") end)
    assert.has_error(function() core.neg_(7) end)
    assert.has_error(function() core.fill_(7, 3) end)
    local f = T.jit(function(x) return x * 2 end, { name = "f" })
    f(T.ones(3))
    local program, ir = f.last.program, f.last.ir
    assert.has_error(function() core.jit_run(program, { T.ones(2, 2) }) end)
    assert.has_error(function() core.jit_run(program, { T.ones(3):to("f64") }) end)
    assert.has_error(function() core.jit_reads_after(ir, -5, T.ones(1)) end)
    assert.has_error(function() core.jit_views(ir, T.ones(3), { 1 }, false) end)
    assert.has_error(function() core.jit_joint(program, { 99 }, "f", 1) end)
    assert.has_error(function() core.graph_region(T.graph().ir, { policy = 0 / 0, ys = {} }) end)
  end)

  it("leave no trace behind whose graph nobody holds", function()
    local core = T.core
    core.jit_enter(core.graph_new(), nil)
    core.jit_abort(core.graph_new()) -- another one
    assert.is_true(core.jit_tracing())
    collectgarbage()
    collectgarbage()
    assert.is_false(core.jit_tracing())
    assert.equal(4, (T.ones(2) * 2):sum():item())
  end)

  it("name no group that is none", function() -- in a process of its own: MPI stays open, and keeps memory
    local text = child("ASAN_OPTIONS=detect_leaks=0", [[
      local group = T.core.group
      local ok, open = pcall(group.open)
      if ok and open then
        for _, g in ipairs { T.GradKey(), T.ones(2), "x", 1, io.stdout } do
          assert(not pcall(group.start, "barrier", "barrier", g, nil, nil, {}))
        end
      end
      print "ended"]])
    assert.matches("ended", text)
  end)

  it("of every op end in results or errors", function()
    local closing, text = run("ops", FIRST, COUNT)
    assert(closing, text)
    print(closing)
  end)

  it("of every function and method end in results or errors", function()
    local closing, text = run("programs", FIRST, math.max(COUNT // 10, 100))
    assert(closing, text)
    print(closing)
  end)
end)
