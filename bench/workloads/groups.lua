-- SPDX-License-Identifier: MIT
-- What T.jit runs as one group of nodes, or leaves alone: rows, sums and pointwise chains, forward and backward. Only
-- bench/jit.lua takes these; they have no counterpart in other engines' lists.

return function(T, W, tools)
  local F = T.nn.F

  -- Forward alone: f of tensors of these shapes.
  local function forward(f, ...)
    local shapes = { ... }
    return function()
      local list = {}
      for i, s in ipairs(shapes) do list[i] = T.randn(table.unpack(s)) end
      local call = tools.compiled(f)
      return function() local _ = call(table.unpack(list)) end
    end
  end

  -- Forward and backward to every tensor, from a given gradient (`dy`: its shape) or from a loss.
  local function both(f, dy, ...)
    local shapes = { ... }
    return function()
      local list, seed = {}, dy and T.randn(table.unpack(dy))
      for i, s in ipairs(shapes) do list[i] = T.randn(table.unpack(s)):requires_grad_() end
      local call = tools.compiled(function()
        for _, x in ipairs(list) do x.grad = nil end
        f(table.unpack(list)):backward(seed)
      end)
      return function() call() end
    end
  end

  local R, C = 4096, 1024
  local rows, row = { R, C }, { C }
  W.softmax_forward = forward(function(x) return x:softmax(-1) end, rows)
  W.layernorm_forward = forward(function(x, w, b) return F.layer_norm(x, { C }, w, b) end, rows, row, row)
  W.softmax_small = both(function(x) return x:softmax(-1) end, { 64, 128 }, { 64, 128 })
  W.softmax_wide = both(function(x) return x:softmax(-1) end, { 64, 32768 }, { 64, 32768 })
  W.gelu_layernorm = both(function(x, w, b) return F.layer_norm(F.gelu(x), { C }, w, b) end, rows, rows, row, row)
  W.residual_layernorm = both(function(x, y, w, b)
    return F.layer_norm(x + y, { C }, w, b)
  end, rows, rows, rows, row, row)
  W.rms_norm = both(function(x, w) return F.rms_norm(x, { C }, w) end, rows, rows, row)
  W.normalize_by_hand = both(function(x)
    local d = x - x:mean(-1, true)
    return d / ((d * d):mean(-1, true) + 1e-5):sqrt()
  end, rows, rows)

  function W.masked_softmax()
    local future = T.ones(C, C):triu(2):to("bool")
    local square = { 4, C, C }
    return both(function(x) return (x * 0.125):masked_fill(future, -math.huge):softmax(-1) end, square, square)()
  end

  local function classes(n, k, loss)
    return function()
      local y = T.randint(1, k, { n })
      return both(function(x) return loss(x, y) end, nil, { n, k })()
    end
  end
  W.cross_entropy_64x10 = classes(64, 10, F.cross_entropy)
  W.cross_entropy_4096x1000 = classes(4096, 1000, F.cross_entropy)
  W.cross_entropy_2048x32000 = classes(2048, 32000, F.cross_entropy)
  W.mse_1m = both(function(x, y) return F.mse_loss(x, y) end, nil, { 1 << 20 }, { 1 << 20 })
  W.huber_1m = both(function(x, y) return F.huber_loss(x, y) end, nil, { 1 << 20 }, { 1 << 20 })
  W.bias_gelu = both(function(x, b) return F.gelu(x + b) end, rows, rows, row)
  W.swiglu = both(function(x, y) return F.silu(x) * y end, rows, rows, rows)
  W.add_small = forward(function(x, y) return x + y end, { 16 }, { 16 })
  W.mean_rows = forward(function(x) return x:mean(-1) end, rows)
  W.sum_columns = forward(function(x) return x:sum(1) end, rows)
  W.groups = {
    "softmax_forward", "layernorm_forward", "softmax_small", "softmax_wide", "gelu_layernorm", "residual_layernorm",
    "rms_norm", "normalize_by_hand", "masked_softmax", "cross_entropy_64x10", "cross_entropy_4096x1000",
    "cross_entropy_2048x32000", "mse_1m", "huber_1m", "bias_gelu", "swiglu", "add_small", "mean_rows", "sum_columns",
  }
end
