-- SPDX-License-Identifier: MIT
-- Single operations on large tensors: elementwise, reductions, rows, products, convolution.

return function(T, W, tools)
  local F = T.nn.F

  -- A call that runs f forward and back-propagates `dy` to every input.
  local function forward_backward(f, inputs, dy)
    for _, x in ipairs(inputs) do x:requires_grad_() end
    return tools.compiled(function()
      for _, x in ipairs(inputs) do x.grad = nil end
      f(table.unpack(inputs)):backward(dy)
    end)
  end

  local function elementwise(n)
    return function()
      local x, y = T.randn(n), T.randn(n)
      if tools.mode == "eager" then return function() local _ = (x * y + x):tanh() end end
      local f = tools.compiled(function(a, b) return (a * b + a):tanh() end)
      return function() local _ = f(x, y) end
    end
  end
  W.ew_1m = elementwise(1 << 20)
  W.ew_16m = elementwise(16 << 20)

  function W.sum_16m()
    local x = T.randn(16 << 20)
    return function() local _ = x:sum() end
  end

  W["softmax_4096x1024"] = function()
    local x, dy = T.randn(4096, 1024), T.randn(4096, 1024)
    return forward_backward(function(a) return a:softmax(-1) end, { x }, dy)
  end

  W["layernorm_4096x1024"] = function()
    return forward_backward(function(x, w, b)
      return F.layer_norm(x, { 1024 }, w, b, 1e-5)
    end, { T.randn(4096, 1024), T.ones(1024), T.zeros(1024) }, T.randn(4096, 1024))
  end

  local function product(a_shape, b_shape)
    return function()
      local a, b = T.randn(table.unpack(a_shape)), T.randn(table.unpack(b_shape))
      return function() local _ = a:matmul(b) end
    end
  end
  for _, n in ipairs { 64, 256, 1024, 2048 } do W["matmul_" .. n] = product({ n, n }, { n, n }) end
  W["bmm_64x128x64x128"] = product({ 64, 128, 64 }, { 64, 64, 128 })

  function W.conv_fwd_bwd()
    return forward_backward(function(x, w)
      return F.conv2d(x, w, nil, { padding = 1 })
    end, { T.randn(32, 64, 56, 56), T.randn(64, 64, 3, 3) }, T.randn(32, 64, 56, 56))
  end
end
