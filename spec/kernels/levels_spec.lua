-- SPDX-License-Identifier: MIT
-- What no level fuses has the same bits at each of them: conversions of halves at every length, whatever is no number
-- among them, and grid_sample in each number of channels that lie side by side, with its gradients. Loops that are
-- written once for each width of registers are compared so.

local child = require "spec.support.child"

local SCRIPT = [[
  local T = require "perilune"
  local F = T.nn.F
  T.manual_seed(5)
  -- normal numbers are made by logarithms, in which levels differ
  local function random(...) return (T.rand(...) - 0.5) * 4 end
  local words = {}
  local function put(t)
    local list = t:reshape(-1):tolist()
    for i, v in ipairs(list) do list[i] = v ~= v and "nan" or ("%a"):format(v) end
    words[#words + 1] = table.concat(list, " ")
  end
  for n = 1, 70 do
    for _, odd in ipairs { 0 / 0, 1 / 0, 3.4e38, -0.0, 1e-40 } do
      local x = random(n)
      x[n * 7 % n + 1], x[(n + 1) // 2], x[n] = odd, -odd, odd
      for _, half in ipairs { "bf16", "f16" } do
        put(x:to(half))
        put(x:to(half) + x:flip(1):to(half))
        put(x:to(half):relu())
      end
    end
  end
  for _, dtype in ipairs { "f32", "f64" } do
    for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
      for _, channels in ipairs { 3, 4, 16, 21 } do
        local x = random(1, channels, 9, 11, { dtype = dtype }):requires_grad_()
        local grid = (T.rand(1, 5, 13, 2, { dtype = dtype }) * 2.4 - 1.2):requires_grad_()
        local y = F.grid_sample(x, grid, { mode = mode })
        y:backward(random(1, channels, 5, 13, { dtype = dtype }))
        put(y:detach())
        put(x.grad)
        put(grid.grad)
      end
    end
  end
  io.write(table.concat(words, "\n"))
]]

describe("the processor levels agree on", function()
  it("halves and grid_sample", function()
    local want
    for _, level in ipairs { "v2", "v3", "v4" } do
      local got = child("PERILUNE_ISA=" .. level, SCRIPT)
      want = want or got
      assert.is_true(got:find("0x", 1, true) ~= nil, got)
      if want ~= got then
        local a, b, line = want:gmatch "[^\n]*", got:gmatch "[^\n]*", 0
        for one in a do
          line = line + 1
          assert.is_true(one == b(), ("%s differs from v2 in result %d"):format(level, line))
        end
      end
    end
  end)
end)
