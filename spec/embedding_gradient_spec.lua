-- SPDX-License-Identifier: MIT
-- F.embedding{scale_grad_by_freq=}: the gradient of a row, divided by how often it was asked for.

local T = require "perilune"
local F = T.nn.F

describe("F.embedding with scale_grad_by_freq", function()
  it("divides the gradient of each row by its count", function()
    for base = 0, 1 do
      local w = T.ones(4, 2):requires_grad_()
      local ids = T.tensor({ { 1, 3, 3 }, { 3, 1, 2 } }, { dtype = "i64" }) - (1 - base)
      local y = F.embedding(ids, w, { scale_grad_by_freq = true, index_base = base })
      assert.same({ 2, 3, 2 }, y:shape())
      y:sum():backward()
      assert.same({ { 1, 1 }, { 1, 1 }, { 1, 1 }, { 0, 0 } }, w.grad:totable())
      w.grad = nil
      F.embedding(ids, w, { index_base = base }):sum():backward()
      assert.same({ { 2, 2 }, { 1, 1 }, { 3, 3 }, { 0, 0 } }, w.grad:totable())
    end
  end)
end)
