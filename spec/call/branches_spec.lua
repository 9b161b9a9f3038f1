-- SPDX-License-Identifier: MIT
-- Functions with several forms (max of one tensor, along a dim, of two) go one way or another by what they are given.
-- Every public function is called with two dozen kinds of arguments; whatever it takes, an option that there is not
-- must be an error, and out= must be an error or receive the result: a branch that drops what stands behind does
-- neither.

local T = require "perilune"

describe("no branch drops what stands behind its arguments:", function()
  -- Those that only say something, or change what others do.
  local LEFT = { "^set_", "seed", "save", "load", "^_", "_$", "thread", "default", "dist", "help" }

  local function wanted(name, f)
    if type(name) ~= "string" or type(f) ~= "function" then return false end
    for _, pattern in ipairs(LEFT) do if name:find(pattern) then return false end end
    return true
  end

  local function forms()
    local x = T.tensor { { 0.5, 1.25, 2 }, { 3.5, 0.25, 1 }, { 4, 0.75, 1.5 } }
    local y = T.tensor { { 1, 0.5, 1.75 }, { 2, 2, 0.125 }, { 3, 1.5, 0.5 } }
    local v = T.tensor { 1.5, 0.5, 2 }
    local index = T.tensor({ { 1, 2, 3 }, { 3, 3, 1 }, { 2, 1, 1 } }, { dtype = "i64" })
    local image, other = x:reshape(1, 1, 3, 3), y:reshape(1, 1, 3, 3)
    return { { x }, { v }, { x, y }, { x, v }, { v, x }, { x, 1 }, { x, 1, 1 }, { x, 2, 3 }, { x, 1, 2, 1 },
      { x, y, v }, { x, y, y }, { v, x, y }, { y, x, 1 }, { x, 1, index }, { x, 1, index, y },
      { x, 1, T.tensor { 1, 3 }:long() },
      { x, index }, { x:gt(1), x, y }, { x, x:gt(1), 2 }, { x:gt(1), y:gt(1) }, { image }, { image, 1 },
      { x:reshape(1, 3, 3), y:reshape(1, 3, 3) }, { image, other }, { x, { 3 } }, { { x, y } }, { { x, y }, 1 },
      { index }, { index, index } }
  end

  local function call(f, form, options)
    local args = table.move(form, 1, #form, 1, {})
    args[#args + 1] = options
    T.manual_seed(1)
    return pcall(f, table.unpack(args))
  end

  local names = {}
  for name, f in pairs(T) do if wanted(name, f) then names[#names + 1] = name end end
  table.sort(names)

  it("an unknown option", function()
    local taken, all = 0, forms()
    for _, name in ipairs(names) do
      for i, form in ipairs(all) do
        if call(T[name], form) then
          taken = taken + 1
          assert(not call(T[name], form, { no_such_option = 1 }), ("%s takes any option in form %d"):format(name, i))
        end
      end
    end
    assert(taken > 1000, taken)
  end)

  it("out=", function()
    local written, all = 0, forms()
    for _, name in ipairs(names) do
      for i, form in ipairs(all) do
        local fine, want, more = call(T[name], form)
        if fine and type(want) == "userdata" and more == nil and pcall(T.clone, want) then
          local out = T.full(want:shape(), want:dtype() == "bool" and 1 or 77, { dtype = want:dtype() })
          want = want:contiguous():to_string()
          if call(T[name], form, { out = out }) then
            written = written + 1
            assert(out:to_string() == want, ("%s does not write to out in form %d"):format(name, i))
          end
        end
      end
    end
    assert(written > 500, written)
  end)
end)
