-- SPDX-License-Identifier: MIT
-- Gradients of gradients of jitted functions: what the plain function gives, by graphs that are made when first asked
-- for.
local T = require "perilune"
local nn, optim = T.nn, T.optim

local function raises(pattern, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok, "no error")
  assert.matches(pattern, tostring(err))
end

local function close(a, b, what)
  local d = (a:detach() - b:detach()):abs():max():item()
  local size = math.max(1, a:detach():abs():max():item())
  assert.is_true(d <= 2e-5 * size, ("%s: %g apart, of %g"):format(what, d, size))
end

describe("gradients of gradients of jitted functions", function()
  -- Steps with a penalty on the gradient of the output with respect to the input.
  local function penalized(jit, make, x_shape)
    T.manual_seed(4)
    local net = make()
    local f = jit and T.jit(net) or net
    local opt = optim.SGD(net:parameters(), { lr = 0.05 })
    local out = {}
    for _ = 1, 3 do
      local x = T.randn(table.unpack(x_shape)):requires_grad_()
      opt:zero_grad()
      local y = f(x):pow(2):mean()
      local g = T.grad_of(y, x, { create_graph = true })
      local loss = y + (g * g):sum()
      loss:backward()
      out[#out + 1], out[#out + 2] = loss:detach(), x.grad
      for _, p in ipairs(net:parameters()) do out[#out + 1] = p.grad:clone() end
      opt:step()
    end
    for _, b in ipairs(net:buffers()) do out[#out + 1] = b:float() end
    return out
  end

  for name, case in pairs {
    mlp = { function() return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)) end, { 5, 6 } },
    norm = { function()
      return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    end, { 5, 6 } },
    conv = { function()
      return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Sigmoid(), nn.Flatten(), nn.Linear(48, 2))
    end, { 3, 2, 6, 6 } },
    dropout = { function()
      return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.25), nn.Linear(8, 3))
    end, { 5, 6 } },
  } do
    it("a penalty on a gradient: " .. name, function()
      local a, b = penalized(false, table.unpack(case)), penalized(true, table.unpack(case))
      assert.equal(#a, #b)
      for i = 1, #a do close(a[i], b[i], ("%s, value %d"):format(name, i)) end
    end)
  end

  it("derivatives of any order", function()
    local f = T.jit(function(x) return (x ^ 5):sum() end)
    local x = T.tensor({ 1.5, -2 }, { dtype = "f64" }):requires_grad_()
    local y = f(x)
    for _, want in ipairs { { 5 * 1.5 ^ 4, 80 }, { 20 * 1.5 ^ 3, -160 }, { 60 * 1.5 ^ 2, 240 }, { 120 * 1.5, -240 } } do
      y = T.grad_of(y:sum(), x, { create_graph = true })
      assert.is_true(y:detach():allclose(T.tensor(want, { dtype = "f64" })))
    end
  end)

  it("arguments and captured tensors that depend on each other count once", function()
    local w = T.tensor({ 0.5, 2 }, { dtype = "f64" }):requires_grad_()
    local function plain(a, b) return (a * a * b * w):sum() end
    local grads = {}
    for i, f in ipairs { plain, (T.jit(plain)) } do
      local a = w * 3
      local b = a * a
      local g = T.grad_of(f(a, b), { a, w }, { create_graph = true })
      grads[i] = T.grad_of((g[1] * g[2]):sum(), w)
    end
    assert.is_true(grads[1]:allclose(grads[2]))
  end)

  it("several results, of which one has no gradient that arrives", function()
    local f = T.jit(function(x) return x:tanh(), x * x, x:detach() * 2 end)
    local x = T.tensor({ 0.3, -0.7 }, { dtype = "f64" }):requires_grad_()
    local y, z, d = f(x)
    assert.is_false(d.requires_grad)
    local g = T.grad_of(y:sum(), x, { create_graph = true })
    local t = x:detach():tanh()
    assert.is_true(T.grad_of(g:sum(), x):allclose(-2 * t * (1 - t * t)))
    g = T.grad_of((y * z):sum(), x, { create_graph = true })
    local e = T.grad_of((x:tanh() * x * x):sum(), x, { create_graph = true })
    assert.is_true(T.grad_of(g:sum(), x):allclose(T.grad_of(e:sum(), x)))
  end)

  it("what was written meanwhile, or is written by the function, is an error", function()
    local w = T.ones(3):requires_grad_()
    local f = T.jit(function(x) return (x * w):sum() end)
    local x = T.ones(3):requires_grad_()
    local y = f(x)
    w:detach():fill_(2)
    raises("modified in place after the call", function() y:backward { create_graph = true } end)
    local count = T.zeros(1)
    local counting = T.jit(function(t)
      count:add_(1)
      return (t * t * (count * 1)):sum()
    end)
    y = counting(x)
    raises("not twice differentiable: .* compiled by jit", function() y:backward { create_graph = true } end)
    assert.equal(1, count:item())
    y = counting(x)
    y:backward()
    assert.is_true(x.grad:equal(T.full({ 3 }, 4.0)))
  end)
end)
