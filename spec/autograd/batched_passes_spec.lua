-- SPDX-License-Identifier: MIT
-- Derivatives of batched passes: many gradients or tangents at one x (T.vmap, T.jacobian, T.hessian), differentiated
-- by x again, for one function of every family. A loop over the batch, which broadcasts nothing, is the judge.

local T = require "perilune"
local F = T.nn.F

local f64 = { dtype = "f64" }

local functions = {
  gelu_tanh = function(v) return F.gelu(v, { approximate = "tanh" }) end,
  clamp = function(v) return v:clamp(-0.5, 0.5) ^ 3 end,
  powers = function(v) return (v:abs() + 0.1) ^ v end,
  atan2 = function(v) return v:atan2(v * v + 0.5) end,
  where = function(v) return T.where(v:gt(0), v ^ 3, v:sin()) end,
  glu = F.glu,
  layer_norm = function(v) return F.layer_norm(v, { 4 }) end,
  batch_norm = function(v) return F.batch_norm(v, nil, nil, { training = true }) end,
  attention = function(v) return F.scaled_dot_product_attention(v, v:sin(), v:cos()) end,
  conv1d = function(v) return F.conv1d(v, v[{ {}, {}, { 1, 2 } }]:sin(), nil, { padding = 1 }) end,
  bce = function(v) return F.binary_cross_entropy_with_logits(v, v:sigmoid(), { reduction = "none" }) end,
  huber = function(v) return F.huber_loss(v, v:sin() * 3, { reduction = "none" }) end,
}
for _, name in ipairs { "tanh", "sigmoid", "erf", "square", "reciprocal", "atan", "asinh", "expm1" } do
  functions[name] = function(v) return v[name](v) end
end
for _, name in ipairs { "softmax", "log_softmax", "logsumexp", "cumsum", "cumprod", "logcumsumexp", "prod", "var" } do
  functions[name] = function(v) return v[name](v, 2) end
end
for _, name in ipairs { "relu", "relu6", "leaky_relu", "hardsigmoid", "hardshrink", "softshrink", "hardtanh", "silu",
  "gelu", "elu", "selu", "celu", "softplus", "mish", "hardswish", "logsigmoid", "softsign", "tanhshrink" } do
  functions[name] = function(v) return F[name](v) ^ 2 end
end

-- What each pass gives for the k-th direction at x.
local passes = {
  vjp = function(f, x, dy) local _, pull = T.vjp(f, x); return (pull(dy)) end,
  jvp = function(f, x, _, dx) local _, tangent = T.jvp(f, x, dx); return tangent end,
  ["jvp of grad"] = function(f, x, _, dx)
    local _, tangent = T.jvp(T.grad(function(u) return f(u):sin():sum() end), x, dx)
    return tangent
  end,
}
local ways = {
  grad = function(f, x) return (T.grad(f, x)) end,
  backward = function(f, x)
    local leaf = x:clone():requires_grad_()
    f(leaf):backward()
    return leaf.grad
  end,
  jvp = function(f, x) local _, tangent = T.jvp(f, x, x:cos()); return tangent end,
  jit = function(f, x) return (T.jit(function(u) return (T.grad(f, u)) end)(x)) end,
}

describe("batched passes are differentiated again", function()
  for name, f in pairs(functions) do
    for pass, run in pairs(passes) do
      it(name .. ", " .. pass, function()
        T.manual_seed(7)
        local x = T.randn({ 2, 3, 4 }, f64)
        local dy, dx = T.randn({ 3, table.unpack(f(x):shape()) }, f64), T.randn({ 3, 2, 3, 4 }, f64)
        local function batched(u)
          return (T.vmap(function(a, b) return run(f, u, a, b) end)(dy, dx)):sin():sum() + u:sum()
        end
        local function looped(u)
          local sum = u:sum()
          for k = 1, 3 do sum = sum + run(f, u, dy[k], dx[k]):sin():sum() end
          return sum
        end
        for way, derive in pairs(ways) do
          local want, got = derive(looped, x), derive(batched, x)
          assert.same(want:shape(), got:shape(), way)
          local scale = 1 + want:abs():max():item()
          assert.is_true((want - got):abs():max():item() < 1e-9 * scale, way)
        end
      end)
    end
  end
end)
