-- SPDX-License-Identifier: MIT
-- Names of perilune load at first use. Where that is inside a traced function the trace sees nothing of it: reading the
-- files is no call that a graph would repeat, and what loads is whole afterwards. Each name in a process of its own.

local child = require "spec.support.child"
local T = require "perilune"

local code = [[
local name = %q
local function of(x) return x[name] end
local f = T.jit(function(x) local _ = T[name]; pcall(of, x); return x * 2 end) -- x.data is refused
assert(f(T.ones(2)):sum():item() == 4)
assert(T.allclose(T.ones(2), T.ones(2)) and f.ntraces == 1)
print "whole"
]]

describe("a name that is first used inside a traced function", function()
  local names = { "nn", "optim", "data", "distributions", "save", "metrics", "no_such_name" }
  local seen = {}
  for _, name in ipairs(names) do seen[name] = true end
  for _, of in ipairs { T, T.core.metatable().methods } do -- one name of each part
    for name in pairs(of) do
      local part = type(name) == "string" and T.core.part_of(name)
      if part and not seen[part] then
        seen[part] = true
        names[#names + 1] = name
      end
    end
  end
  table.sort(names)
  it("is there, whichever part has it: " .. #names .. " names", function()
    assert.is_true(#names > 20)
    for _, name in ipairs(names) do
      local text, fine = child("", code:format(name))
      assert.is_true(fine and text == "whole\n", name .. ": " .. text)
    end
  end)
end)
