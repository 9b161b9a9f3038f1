-- SPDX-License-Identifier: MIT
-- What a backward that failed left in the .grad of leaves that come in as arguments stays known (see
-- spec/autograd/failed_backward_spec.lua for captured ones).

local T = require "perilune"

it("a sum that a failed backward has changed stays refused after a jitted function has added to it", function()
  for _, check in ipairs { false, true } do
    for calls = 0, 3 do
      local list = { T.ones(3):requires_grad_(), T.ones(3):requires_grad_() }
      local p, q = list[1], list[2]
      local f = T.jit(function(a, b) (a * b):sum():backward() end, { check = check })
      for _ = 1, calls do f(p, q) end
      p.grad, q.grad = T.ones(3), T.ones(3)
      local late = q * 1
      late:register_hook(function() error "late" end)
      assert.is_false(pcall(function() (late + p):sum():backward() end))
      for _ = 1, 2 do f(p, q) end
      assert.same({ 4, 4, 4 }, p.grad:totable())
      local opt = T.optim.SGD(list, { lr = 0.1 })
      assert.is_false((pcall(opt.step, opt)))
      opt:zero_grad()
      f(p, q)
      opt:step()
    end
  end
end)
