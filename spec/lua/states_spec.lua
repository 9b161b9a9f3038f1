-- SPDX-License-Identifier: MIT
-- Two Lua states on one thread, as a program that embeds Lua may have them: tensors that both have objects of.

local T = require "perilune"

local build = os.getenv "PERILUNE_BUILD" or (os.getenv "PERILUNE_ROOT" or ".") .. "/build"
local states = assert(package.loadlib(build .. "/spec/libstates.so", "luaopen_states"))()

describe("a leaf of which two Lua states have objects", function()
  local other
  before_each(function() other = states.new() end)

  local record = [[
    T = require "perilune"
    x = T.tensor({ 1, 2, 3 }):requires_grad_()
    y = (x * x):sum()
  ]]

  -- What `other` saves is packed by a function of this state, which so has an object of its leaf; what it records then
  -- is its own.
  local function packed(keep)
    local scope = T.core.saved_open(function(t)
      keep[#keep + 1] = t
      return t:detach():clone()
    end, function(t) return t end)
    states.run(other, record)
    T.core.saved_close(scope)
    assert.is_true(#keep > 0)
    states.run(other, "y = (x * x):sum()")
  end

  it("has its gradient after one of them has collected its object", function()
    local keep = {}
    packed(keep)
    assert.is_true(keep[1].requires_grad)
    keep[1] = nil
    collectgarbage()
    collectgarbage()
    assert.equal("2 4 6", states.run(other, [[
      y:backward()
      return x.grad and ("%d %d %d"):format(x.grad[1]:item() // 1, x.grad[2]:item() // 1, x.grad[3]:item() // 1)
    ]]))
    states.close(other)
  end)

  it("has its gradient after one of them has freed it or was closed", function()
    for _, free in ipairs { true, false } do
      local keep = {}
      packed(keep)
      local x = keep[1]
      keep[1] = nil
      if free then
        states.run(other, "x:free()")
      else
        states.close(other)
      end
      collectgarbage()
      if free then states.run(other, "y:backward()") else (x * x):sum():backward() end
      assert.same({ 2, 4, 6 }, x.grad:totable())
      if free then states.close(other) end
      other = states.new()
    end
    states.close(other)
  end)

  it("is freed when both have let it go, with a gradient that has a history", function()
    local function round()
      local keep = {}
      packed(keep)
      states.run(other, [[
        y = (x * x * x):sum()
        y:backward { create_graph = true }
        x, y = nil, nil
        collectgarbage()
      ]])
      assert.is_true(keep[1].grad.requires_grad)
      keep[1] = nil
      collectgarbage()
      states.run(other, "collectgarbage()")
    end
    round()
    require "spec.support.live".flat(T, round)
    states.close(other)
  end)
end)
