-- SPDX-License-Identifier: MIT
-- Costs of the engine itself: one-element tensors, long graphs, gradients written in Lua.

return function(T, W)
  function W.dispatch_add()
    local a, b = T.ones(1), T.ones(1)
    return function()
      for _ = 1, 200000 do local _ = a + b end
    end
  end

  function W.dispatch_grad()
    local a, b, dy = T.full({ 1 }, 0.99), T.full({ 1 }, 0.01), T.ones(1)
    local x = T.ones(1):requires_grad_()
    return function()
      x.grad = nil
      local y = x
      for _ = 1, 100 do y = y * a + b end
      y:backward(dy)
    end
  end

  function W.custom_grad()
    local cube = T.custom {
      name = "bench_cube",
      forward = function(ctx, x)
        ctx:save(x)
        return x * x * x
      end,
      backward = function(ctx, g)
        local x = ctx:saved()
        return g * 3 * x * x
      end,
    }
    local x, dy = T.full({ 1 }, 0.5):requires_grad_(), T.ones(1)
    return function()
      for _ = 1, 1000 do
        x.grad = nil
        cube(x):backward(dy)
      end
    end
  end

  function W.chain_1e6()
    local one = T.ones(1)
    return function()
      local x = T.ones(1):requires_grad_()
      local y = x
      for _ = 1, 1000000 do y = y + one end
      y:backward()
      assert(x.grad:item() == 1)
    end
  end
end
