-- SPDX-License-Identifier: MIT
-- Random programs of views, writes, hooks, keys, functions and dropped references (spec/support/whole/): the engine
-- gives
-- what a reference gives that shares no memory, frees nothing and fuses nothing; as written and traced, and the same
-- bits whenever Lua collects. PERILUNE_FUZZ_WHOLE sets how many programs, PERILUNE_FUZZ_SEED where to begin. What
-- fails is
-- made small and printed as a script.

local T = require "perilune"
local generate = require "spec.support.whole.generate"
local live = require "spec.support.live"
local run = require "spec.support.whole.run"

local sanitized = (os.getenv "PERILUNE_SANITIZE" or "") ~= ""
-- ./setup test runs this file in two builds: other programs in each, fewer where each takes longer
local COUNT = tonumber(os.getenv "PERILUNE_FUZZ_WHOLE") or sanitized and 250 or 1000
local FIRST = tonumber(os.getenv "PERILUNE_FUZZ_SEED") or sanitized and 100001 or 1
local MOST = 3 -- failures that are made small

-- Programs from FIRST + offset in one way. → text of what failed
local function programs(way, count, offset, most)
  local found = {}
  for seed = FIRST + (offset or 0), FIRST + (offset or 0) + count - 1 do
    local program = generate.program(seed)
    local problem = run.check(program, way)
    if problem then
      local small, why = program, problem
      if #found < (most or MOST) then small, why = run.minimize(program, way, problem) end
      found[#found + 1] = ("program %d, %s: %s\n%s"):format(seed, way, why,
        #found < MOST and run.script(small, why) or "(not made small)")
      if #found >= 10 then break end
    end
  end
  return table.concat(found, "\n\n")
end

local function blocks()
  T.debug.cache_clear()
  return (live.blocks(T))
end

describe("random whole programs", function()
  setup(function() collectgarbage "generational" end)
  teardown(live.pace)

  it("give what the reference gives, and leave nothing behind", function()
    programs("eager", 25) -- what is made once is kept
    local found, left, before = {}, {}, blocks()
    for offset = 0, COUNT - 1, 25 do
      local text = programs("eager", math.min(25, COUNT - offset), offset, MOST - #found)
      if text ~= "" then found[#found + 1] = text end
      local now = blocks()
      if now ~= before then left[#left + 1] = ("programs from %d on leave %d blocks"):format(FIRST + offset,
        now - before) end
      before = now
    end
    assert.equal("", table.concat(found, "\n\n"))
    assert.equal("", table.concat(left, "\n"))
  end)

  it("give the same bits with collections after each statement", function()
    assert.equal("", programs("pressure", COUNT // 5, 1000000))
  end)

  it("give the same bits with collections wherever the bindings may collect", function()
    assert.equal("", programs("points", COUNT // 20, 2000000))
  end)

  it("give the same bits with collections wherever Lua makes objects", function()
    assert.equal("", programs("objects", COUNT // 20, 3000000))
  end)

  it("give the same bits with checkpoints and without", function()
    assert.equal("", programs("called", COUNT // 2, 7000000))
  end)

  it("give what the reference gives when they are traced", function()
    assert.equal("", programs("traced", COUNT // 4, 4000000))
  end)

  it("give what the reference gives when what backward needs is computed again", function()
    assert.equal("", programs("traced_mirror", COUNT // 8, 5000000))
    assert.equal("", programs("traced_mincut", COUNT // 8, 6000000))
  end)
end)

-- A judge that finds nothing is worth nothing: defects that were there, or might be, are put into the methods that
-- programs call, and some program must show them. Sanitizers have nothing to say of it.
describe("the judge of random programs", function()
  if sanitized then return end
  local methods = T.core.metatable().methods

  local function finds(place, name, broken, way)
    local was = place[name]
    place[name] = broken(was)
    local found
    local ok, err = pcall(function()
      for seed = 1, 600 do
        found = run.check(generate.program(seed), way or "eager")
        if found then break end
      end
    end)
    place[name] = was
    if not ok then error(err, 0) end
    assert.is_truthy(found, name)
  end

  it("finds an alias by detach that has a history", function()
    finds(methods, "detach", function() return function(x) return x:view(x:shape()) end end)
  end)
  it("finds hooks that are lost with the object they were put on", function()
    finds(methods, "register_hook", function(register) return function(x, f)
      local weak = setmetatable({ f, x }, { __mode = "v" })
      return register(x, function(g) if weak[2] then return f(g) end end)
    end end)
  end)
  it("finds a checkpoint that forgets what its function changes", function()
    finds(T, "checkpoint", function(checkpoint) return function(f, ...)
      local list = table.pack(...)
      for i = 1, list.n do list[i] = list[i]:clone() end
      return checkpoint(f, table.unpack(list, 1, list.n))
    end end)
  end)
  it("finds draws that are not repeated", function()
    finds(T, "checkpoint", function(checkpoint) return function(f, ...)
      return checkpoint(function(...)
        T.rand(1)
        return f(...)
      end, ...)
    end end)
  end)
  it("finds draws from a generator of the script's that are not repeated", function()
    finds(T, "checkpoint", function(checkpoint) return function(f, ...)
      return checkpoint(function(...)
        T.rand(1, { generator = run.generator() })
        return f(...)
      end, ...)
    end end)
  end)
  it("finds a counter that a second run counts again", function()
    finds(T, "checkpoint", function(checkpoint) return function(f, ...)
      local args = table.pack(...)
      local out = table.pack(checkpoint(f, ...))
      if out[1].requires_grad then
        out[1]:register_hook(function() pcall(T.no_grad, function() f(table.unpack(args, 1, args.n)) end) end)
      end
      return table.unpack(out, 1, out.n)
    end end)
  end)
  it("finds a checkpoint that adds gradients up in another order", function()
    finds(T, "checkpoint", function(checkpoint) return function(f, ...)
      local out = table.pack(checkpoint(f, ...))
      out[1] = (out[1] * 3) * (1 / 3)
      return table.unpack(out, 1, out.n)
    end end, "called")
  end)
  it("finds a walk that goes below the inputs it was asked for", function()
    finds(T, "grad_of", function(grad_of) return function(ys, xs, o)
      local y = ys[1]
      local got = grad_of(ys, xs, o)
      pcall(y.backward, y)
      return got
    end end)
  end)
  it("finds a write that ignores its scale", function()
    finds(methods, "add_", function(add) return function(x, y) return add(x, y) end end)
  end)
  it("finds a view that is a copy", function()
    finds(methods, "narrow", function(narrow) return function(...) return narrow(...):clone() end end)
  end)
end)
