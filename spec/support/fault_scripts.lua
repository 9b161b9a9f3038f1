-- SPDX-License-Identifier: MIT
-- Small programs of all kinds in which memory runs out, at every place: { name, function() → what it computes }.

local T = require "perilune"
local nn, optim = T.nn, T.optim

local function training_step()
  local net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
  local opt = optim.Adam(net:parameters(), { lr = 1e-3 })
  local x, y = T.randn(5, 4), T.randint(1, 3, { 5 })
  local loss = nn.F.cross_entropy(net(x), y)
  opt:zero_grad()
  loss:backward()
  opt:step()
  return loss:item()
end

return {
  { "arithmetic", function() return ((T.ones(100) + 1) * 2):sum():item() end },
  { "broadcasting", function() return (T.ones(30, 1) * T.ones(1, 40)):mean():item() end },
  { "a table", function() return T.tensor { { 1, 2 }, { 3, 4 } }:sum(1):sum():item() end },
  { "random numbers", function() return T.randn(100):numel() end },
  { "products", function() return T.ones(20, 30):matmul(T.ones(30, 10)):sum():item() end },
  { "rows", function() return T.ones(20, 30):softmax(-1):sum():item() end },
  { "views", function()
    return T.ones(20, 30):transpose(1, 2):reshape(600):narrow(1, 1, 100):sum():item()
  end },
  { "joining", function() return T.cat({ T.ones(20), T.zeros(20) }, 1):sum():item() end },
  { "indexing", function()
    local x = T.arange(100):view(10, 10)
    x[{ 2, { 1, 5 } }] = 7
    return x[T.tensor({ 1, 2 }, { dtype = "i64" })]:sum():item()
  end },
  { "means in place", function()
    local x = T.ones(3, 4)
    x:scatter_reduce_(1, T.ones({ 2, 4 }, { dtype = "i64" }), T.full({ 2, 4 }, 3.0), { reduce = "mean" })
    return x:sum():item()
  end },
  { "text", function() return #tostring(T.ones(4, 4)) end },
  { "convolution", function()
    return nn.F.conv2d(T.ones(1, 2, 6, 6), T.ones(3, 2, 3, 3), { padding = 1 }):sum():item()
  end },
  { "backward", function()
    local x = T.ones(100):requires_grad_()
    local y = (x * x + x):sum()
    y:backward()
    return x.grad:sum():item()
  end },
  { "second order", function()
    local x = T.ones(10):requires_grad_()
    local g = T.grad_of({ (x * x * x):sum() }, { x }, { create_graph = true })
    if type(g) == "table" then g = g[1] end
    g:sum():backward()
    return x.grad:sum():item()
  end },
  { "a key", function()
    local x, sum = T.ones(100), 0
    local key = T.GradKey {}
    key:attach(x, function(_, g) sum = g:sum():item() end)
    key:backward(x:cos(), T.ones(100))
    return sum
  end },
  { "a custom rule", function()
    local f = T.custom { name = "faulty", forward = function(ctx, a)
      ctx:save(a)
      return a * a
    end, backward = function(ctx, g) return g * 2 * ctx:saved() end }
    local x = T.ones(100):requires_grad_()
    f(x):sum():backward()
    return x.grad:sum():item()
  end },
  { "in place", function()
    local x = T.ones(10, 10):requires_grad_()
    local y = x * 1
    y:mul_(2):add_(1)
    y:sum():backward()
    return x.grad:sum():item()
  end },
  { "layer norm", function()
    local x, w, b = T.randn(4, 32):requires_grad_(), T.ones(32), T.zeros(32)
    nn.F.layer_norm(x, { 32 }, w, b):sum():backward()
    return 1
  end },
  { "embedding", function()
    local w = T.ones(50, 8):requires_grad_()
    nn.F.embedding(T.tensor({ 1, 50, 7 }, { dtype = "i64" }), w):sum():backward()
    return w.grad:sum():item()
  end },
  { "half precision", function() return (T.ones(100, { dtype = "f16" }) * 2):to("f32"):sum():item() end },
  { "a training step", training_step },
  { "a jitted function with gradients", function()
    local w = T.ones(20, 3):requires_grad_()
    local f = T.jit(function(x) return (x:matmul(w) * 2):tanh(), T.rand(3) end)
    local out = 0
    for _ = 1, 2 do
      local y = f(T.ones(7, 20))
      y:sum():backward()
      out = out + y:sum():item()
    end
    return out + w.grad:sum():item()
  end },
  { "a jitted training step", function()
    T.manual_seed(1)
    local net = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 4))
    local opt = T.optim.Adam(net:parameters(), { lr = 0.1 })
    local step = T.jit(function(x, y)
      opt:zero_grad()
      local loss = nn.F.cross_entropy(net(x), y)
      loss:backward()
      opt:step()
      return loss
    end, { mirror = "auto" })
    local x, y = T.ones(9, 20), T.ones({ 9 }, { dtype = "i64" })
    step(x, y)
    return step(x, y):item()
  end },
  { "batches by vmap", function()
    return T.vmap(function(a, b) return a:matmul(b):softmax(-1) end)(T.ones(4, 3, 5), T.ones(4, 5, 2)):sum():item()
  end },
  { "derivatives forward", function()
    local _, t = T.jvp(function(a) return (a * a):sin():sum() end, T.ones(20), T.ones(20))
    return t:item()
  end },
  { "a checkpoint", function()
    local net, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)), T.ones(3, 6):requires_grad_()
    T.checkpoint(net, x):sum():backward()
    return x.grad:numel()
  end },
  { "a recurrent net", function()
    local y = nn.LSTM(5, 6, { num_layers = 2 })(T.ones(4, 2, 5))
    y:sum():backward()
    return y:numel()
  end },
  { "attention", function()
    local q = T.ones(2, 2, 5, 4):requires_grad_()
    nn.F.scaled_dot_product_attention(q, q, q):sum():backward()
    return q.grad:numel()
  end },
  { "convolution backward", function()
    local x, w = T.ones(2, 3, 8, 8):requires_grad_(), T.ones(4, 3, 3, 3):requires_grad_()
    nn.F.max_pool2d(nn.F.conv2d(x, w, { padding = 1 }), 2):sum():backward()
    return w.grad:sum():item()
  end },
  { "linear algebra", function()
    local a = (T.eye(5) * 3 + 1):requires_grad_()
    local q, r = T.linalg.qr(a)
    ;(T.linalg.inv(a):sum() + T.linalg.svdvals(a):sum() + q:sum() + r:sum()):backward()
    return T.linalg.eigvalsh(a:detach()):sum():item()
  end },
  { "sorting", function()
    local x = T.arange(60):view(6, 10):float():requires_grad_()
    ;((x:sort(2)) * 2):sum():backward()
    return (x:detach():topk(3, 2)):sum():item() + x:detach():cumsum(1):sum():item() + T.unique(x:detach()):numel()
  end },
  { "einsum", function() return T.einsum("ij,jk->ik", T.ones(4, 5), T.ones(5, 6)):sum():item() end },
  { "a planned graph", function()
    local g = T.graph()
    local x, w = g:input("x", { 4, 4 }), g:input("w", { 4, 4 }, { leaf = true })
    local y = x
    for _ = 1, 6 do y = T.relu(T.linear(y, w)) end
    g:outputs { y = y, table.unpack(g:gradient(y, { w }, { mirror = "mincut" })) }
    g:plan()
    return g:run { x = T.ones(4, 4), w = T.ones(4, 4), }.y:sum():item()
  end },
  { "a hook", function()
    local x, n = T.ones(5):requires_grad_(), 0
    x:register_hook(function(g) n = n + g:sum():item() end);
    (x * 3):sum():backward()
    return n
  end },
}
