-- SPDX-License-Identifier: MIT
-- A trace takes its arguments as row-major. A function that asks for strides, or whether something is contiguous, runs
-- as it is written where one is not: the same results as without T.jit, whatever came first.

local T = require "perilune"

describe("what a jitted function asks of memory", function()
  local ASK = {
    stride = function(x) return x + x:stride(1) end,
    strides = function(x) return x * tonumber(table.concat(x:stride(), "0")) end,
    ["stride of a view"] = function(x) return x + x:t():stride(2) end,
    is_contiguous = function(x) return x:is_contiguous() and x * 2 or x * 3 end,
    ["is_contiguous of a view"] = function(x) return x:t():is_contiguous() and x * 2 or x * 3 end,
    ["inside vmap"] = function(x) return T.vmap(function(row) return row * row:stride(1) end)(x) end,
    ["with a gradient"] = function(x) return T.grad(function(v) return (v * v:stride(2)):pow(2):sum() end)(x) end,
  }
  local LIE = {
    function(n) return T.randn(n, 4) end,
    function(n) return T.randn(4, n):t() end,
    function(n) return T.randn(1, 4):expand(n, 4) end,
    function(n) return T.randn(n, 8):narrow(2, 2, 4) end,
    function(n) return T.randn(2 * n, 4):slice(1, 1, n, 2) end,
  }

  for name, f in pairs(ASK) do
    it(name .. " is what it is without", function()
      for first = 1, #LIE do
        local compiled = T.jit(f)
        for k = 0, 3 * #LIE - 1 do
          local x = LIE[(first + k - 1) % #LIE + 1](k < #LIE and 3 or 1 + k % 4)
          assert.is_true(T.equal(f(x), compiled(x)), ("layout %d first, call %d"):format(first, k))
        end
      end
    end)
  end
end)
