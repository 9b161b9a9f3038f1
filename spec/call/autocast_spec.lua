-- SPDX-License-Identifier: MIT
-- T.autocast and T.set_float32_matmul_precision against what PyTorch does (spec/fixtures).

local T = require "perilune"
local fixture = require "spec.fixtures.mixed_precision"
local near = require "spec.support.near"
local nn, F = T.nn, T.nn.F
local fails = near.fails

local function tensor(t, dtype) return T.tensor(t.data, { dtype = dtype or "f32" }):view(t.shape) end
local function A(d, ...) return (T.rand(...) + 0.1):to(d) end
local function sym(d)
  local x = T.rand(4, 4)
  return (x:matmul(x:t()) + T.eye(4) * 4):to(d)
end
local function labels() return T.tensor({ 1, 2, 3, 4 }, { dtype = "i64" }) end
local function signs() return T.tensor { 1, -1, 1, -1 } end

local calls = {
  matmul = function(a, b) return A(a, 4, 4):matmul(A(b, 4, 4)) end,
  mm = function(a, b) return T.mm(A(a, 4, 4), A(b, 4, 4)) end,
  matmul_vector = function(a, b) return A(a, 4, 4):matmul(A(b, 4)) end,
  bmm = function(a, b) return T.bmm(A(a, 2, 4, 4), A(b, 2, 4, 4)) end,
  addmm = function(a, b) return T.addmm(A(a, 4, 4), A(b, 4, 4), A(b, 4, 4)) end,
  baddbmm = function(a, b) return T.baddbmm(A(a, 2, 4, 4), A(b, 2, 4, 4), A(b, 2, 4, 4)) end,
  addbmm = function(a, b) return T.addbmm(A(a, 4, 4), A(b, 2, 4, 4), A(b, 2, 4, 4)) end,
  einsum = function(a, b) return T.einsum("ij,jk->ik", A(a, 4, 4), A(b, 4, 4)) end,
  linear = function(a, b) return F.linear(A(a, 4, 4), A(b, 4, 4), A(b, 4)) end,
  conv1d = function(a, b) return F.conv1d(A(a, 1, 2, 4), A(b, 2, 2, 3)) end,
  conv2d = function(a, b) return F.conv2d(A(a, 1, 2, 4, 4), A(b, 2, 2, 3, 3)) end,
  conv3d = function(a, b) return F.conv3d(A(a, 1, 2, 4, 4, 4), A(b, 2, 2, 3, 3, 3)) end,
  conv_transpose2d = function(a, b) return T.conv_transpose2d(A(a, 1, 2, 4, 4), A(b, 2, 2, 3, 3)) end,
  prelu = function(a, b) return F.prelu(A(a, 1, 2, 4, 4), A(b, 2)) end,
  scaled_dot_product_attention = function(a, b)
    return F.scaled_dot_product_attention(A(a, 1, 2, 4, 4), A(b, 1, 2, 4, 4), A(b, 1, 2, 4, 4))
  end,
  softmax = function(a) return A(a, 4, 4):softmax(-1) end,
  log_softmax = function(a) return A(a, 4, 4):log_softmax(-1) end,
  layer_norm = function(a, b) return F.layer_norm(A(a, 4, 4), { 4 }, A(b, 4), A(b, 4)) end,
  rms_norm = function(a, b) return F.rms_norm(A(a, 4, 4), { 4 }, A(b, 4)) end,
  group_norm = function(a, b) return F.group_norm(A(a, 4, 4, 3), 2, A(b, 4), A(b, 4)) end,
  batch_norm = function(a, b)
    return (F.batch_norm(A(a, 4, 4, 3), A(b, 4), A(b, 4), A(b, 4), A(b, 4), true))
  end,
  sum = function(a) return A(a, 4, 4):sum() end,
  exp = function(a) return A(a, 4, 4):exp() end,
  gelu = function(a) return F.gelu(A(a, 4, 4)) end,
  cumsum = function(a) return A(a, 4, 4):cumsum(1) end,
  prod = function(a) return A(a, 4, 4):prod() end,
  trace = function(a) return A(a, 4, 4):trace() end,
  add = function(a, b) return A(a, 4) + A(b, 4) end,
  addcmul = function(a, b) return T.addcmul(A(a, 4), A(b, 4), A(b, 4)) end,
  cat = function(a, b) return T.cat { A(a, 4, 4), A(b, 4, 4) } end,
  stack = function(a, b) return T.stack { A(a, 4, 4), A(b, 4, 4) } end,
  index_copy = function(a, b)
    return T.index_copy(A(a, 4, 4), 1, T.tensor({ 1 }, { dtype = "i64" }), A(b, 1, 4))
  end,
  cross_entropy = function(a) return F.cross_entropy(A(a, 4, 4), labels()) end,
  cross_entropy_prob = function(a, b) return F.cross_entropy(A(a, 4, 4), A(b, 4, 4)) end,
  nll_loss = function(a) return F.nll_loss(A(a, 4, 4), labels()) end,
  binary_cross_entropy = function(a, b) return F.binary_cross_entropy(A(a, 4, 4) / 2, A(b, 4, 4) / 2) end,
  hinge_embedding_loss = function(a) return F.hinge_embedding_loss(A(a, 4), signs()) end,
  cosine_embedding_loss = function(a, b) return F.cosine_embedding_loss(A(a, 4, 4), A(b, 4, 4), signs()) end,
  margin_ranking_loss = function(a, b) return F.margin_ranking_loss(A(a, 4), A(b, 4), signs()) end,
  triplet_margin_loss = function(a, b) return F.triplet_margin_loss(A(a, 4, 4), A(b, 4, 4), A(b, 4, 4)) end,
  multi_margin_loss = function(a) return F.multi_margin_loss(A(a, 4, 4), labels()) end,
  cdist = function(a, b) return T.cdist(A(a, 4, 4), A(b, 4, 4)) end,
  quantile = function(a) return T.quantile(A(a, 4), 0.5) end,
  grid_sample = function(a, b) return F.grid_sample(A(a, 1, 2, 4, 4), A(b, 1, 3, 3, 2), { align_corners = false }) end,
  max_pool2d = function(a) return F.max_pool2d(A(a, 1, 2, 4, 4), 2) end,
  avg_pool2d = function(a) return F.avg_pool2d(A(a, 1, 2, 4, 4), 2) end,
  max_pool3d = function(a) return F.max_pool3d(A(a, 1, 2, 4, 4, 4), 2) end,
  avg_pool3d = function(a) return F.avg_pool3d(A(a, 1, 2, 4, 4, 4), 2) end,
  linalg_inv = function(a) return T.linalg.inv(sym(a)) end,
  linalg_cholesky = function(a) return T.linalg.cholesky(sym(a)) end,
  linalg_qr = function(a) return (T.linalg.qr(sym(a))) end,
  linalg_svd = function(a) return (T.linalg.svd(sym(a))) end,
  linalg_eigh = function(a) return (T.linalg.eigh(sym(a))) end,
  linalg_solve = function(a, b) return T.linalg.solve(sym(a), A(b, 4, 4)) end,
  embedding = function(a) return F.embedding(labels(), A(a, 4, 4)) end,
  dot = function(a, b) return T.dot(A(a, 4), A(b, 4)) end,
  mv = function(a, b) return T.mv(A(a, 4, 4), A(b, 4)) end,
  outer = function(a, b) return T.outer(A(a, 4), A(b, 4)) end,
  addr = function(a, b) return T.addr(A(a, 4, 4), A(b, 4), A(b, 4)) end,
  addmv = function(a, b) return T.addmv(A(a, 4), A(b, 4, 4), A(b, 4)) end,
  inner_scalars = function(a, b) return T.inner(A(a, {}), A(b, 4)) end,
  inner_vectors = function(a, b) return T.inner(A(a, 4), A(b, 4)) end,
  inner_matrix = function(a, b) return T.inner(A(a, 3, 4), A(b, 4)) end,
  inner_matrices = function(a, b) return T.inner(A(a, 3, 4), A(b, 2, 4)) end,
  vecdot_vectors = function(a, b) return T.linalg.vecdot(A(a, 4), A(b, 4)) end,
  vecdot_matrices = function(a, b) return T.linalg.vecdot(A(a, 2, 4), A(b, 2, 4)) end,
  tensordot = function(a, b) return T.tensordot(A(a, 4, 4), A(b, 4, 4), 1) end,
  multi_dot = function(a, b) return T.linalg.multi_dot { A(a, 4, 4), A(b, 4, 4) } end,
  kron = function(a, b) return T.kron(A(a, 2, 2), A(b, 2, 2)) end,
  matrix_power = function(a) return T.linalg.matrix_power(A(a, 3, 3), 3) end,
  matrix_exp = function(a) return T.matrix_exp(A(a, 3, 3)) end,
  bilinear = function(a, b) return F.bilinear(A(a, 2, 4), A(b, 2, 4), A(b, 5, 4, 4), A(b, 5)) end,
  avg_pool1d = function(a) return F.avg_pool1d(A(a, 1, 2, 4), 2) end,
  adaptive_avg_pool2d = function(a) return F.adaptive_avg_pool2d(A(a, 1, 2, 4, 4), 2) end,
  adaptive_avg_pool3d = function(a) return F.adaptive_avg_pool3d(A(a, 1, 2, 4, 4, 4), 2) end,
  adaptive_max_pool3d = function(a) return F.adaptive_max_pool3d(A(a, 1, 2, 4, 4, 4), 2) end,
  pad_constant = function(a) return F.pad(A(a, 1, 2, 4), { 1, 1 }) end,
  pad_circular = function(a) return F.pad(A(a, 1, 2, 4), { 1, 1 }, { mode = "circular" }) end,
  conv_transpose1d = function(a, b) return T.conv_transpose1d(A(a, 1, 2, 4), A(b, 2, 2, 3)) end,
  conv_transpose3d = function(a, b) return T.conv_transpose3d(A(a, 1, 2, 4, 4, 4), A(b, 2, 2, 3, 3, 3)) end,
  linear_cross_entropy = function(a, b) return F.linear_cross_entropy(A(a, 4, 4), A(b, 4, 4), labels()) end,
}
for _, name in ipairs { "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div",
  "binary_cross_entropy_with_logits", "soft_margin_loss", "poisson_nll_loss" } do
  local share = name == "binary_cross_entropy_with_logits" and 0.5 or 1 -- its targets are at most 1
  calls[name] = function(a, b) return F[name](A(a, 4, 4), A(b, 4, 4) * share) end
end

describe("T.autocast", function()
  local function each(kind, a, b)
    for name, want in pairs(fixture.dtypes) do
      local call = assert(calls[name], "no call for " .. name)
      if want[kind] then
        local got = T.autocast("bf16", function() return call(a, b):dtype() end)
        assert.equal(want[kind], got, ("%s of %s and %s"):format(name, a, b))
      end
    end
  end
  it("gives PyTorch's dtypes from f32", function() each(1, "f32", "f32") end)
  it("gives PyTorch's dtypes from bf16", function() each(2, "bf16", "bf16") end)
  it("leaves f64 alone", function() each(3, "f64", "f64") end)
  it("gives PyTorch's dtypes from bf16 with f32", function() each(4, "bf16", "f32") end)

  it("cross_entropy reads halves as they are and computes in f32: the bits of a cast, no copy of the logits", function()
    T.manual_seed(5)
    local x, y, w = T.randn(6, 11):to("bf16"):requires_grad_(), T.randint(1, 11, { 6 }), T.rand(11)
    for _, opts in ipairs { {}, { weight = w }, { reduction = "none" }, { label_smoothing = 0.1 } } do
      local results = {}
      for i, logits in ipairs { x, x:to("f32") } do
        x.grad = nil
        local loss = T.autocast("bf16", function() return F.cross_entropy(logits, y, opts) end)
        assert.equal("f32", loss:dtype())
        loss:sum():backward()
        results[i] = { loss:detach(), x.grad }
      end
      assert.is_true(results[1][1]:equal(results[2][1]))
      assert.is_true(results[1][2]:equal(results[2][2]))
      assert.equal("bf16", results[1][2]:dtype())
    end
    local f = T.jit(function(v) return T.autocast("bf16", function() return F.cross_entropy(v, y) end) end)
    f(x)
    assert.is_nil(tostring(f:graph()):find("cast", 1, true))
    local many = T.randn(3, 600, 4):to("bf16") -- the mean counts more samples than bf16 can
    local t = T.randint(1, 4, { 3, 600 })
    local losses = T.autocast("bf16", function() return T.vmap(F.cross_entropy)(many, t) end)
    for i = 1, 3 do
      local one = T.autocast("bf16", function() return F.cross_entropy(many[i], t[i]) end)
      assert.is_true(losses[i]:allclose(one, { rtol = 1e-5 }))
    end
    assert.equal("bf16", F.cross_entropy(x, y):dtype())
    assert.equal("f32", F.cross_entropy(x, y, { dtype = "f32" }):dtype())
    assert.is_false((pcall(F.cross_entropy, x, y, { dtype = "f64" })))
  end)

  -- A function made of others whose products were cast on the way would give f32 with bf16's digits.
  it("what comes out in f32 was computed in f32", function()
    local root, inputs, n = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/", {}, 0
    for key, t in pairs(assert(T.load(root .. "functions.safetensors"))) do
      local case, kind, k = key:match("^(.+)/(%a+)/(%d+)$")
      if kind == "in" then
        inputs[case] = inputs[case] or {}
        inputs[case][math.tointeger(tonumber(k))] = t:is_floating_point() and t:to("f32") or t
      end
    end
    -- PyTorch's, too, multiply in bf16; the logits of the last one are a linear layer's, the loss of them is f32
    local LOW = { svd_lowrank = true, pca_lowrank = true, linear_cross_entropy = true }
    for _, row in ipairs(dofile(root .. "functions.lua")) do
      local xs, names = inputs[row[1]] or {}, {}
      for i = 1, #xs do names[i] = "x" .. i end
      local code = ("local %s = ... return %s"):format(#xs > 0 and table.concat(names, ", ") or "_", row[2])
      local f = load(code, "=spec", "t", setmetatable({ T = T }, { __index = _G }))
      local function results()
        T.manual_seed(3)
        return table.pack(f(table.unpack(xs)))
      end
      local fine, plain = pcall(results)
      local also, cast = pcall(T.autocast, "bf16", results)
      if fine and also and not LOW[row[1]:match "^(.-)_%d+$"] then
        for i = 1, plain.n do
          local a, b = plain[i], cast[i]
          if T.is_tensor(a) and a:dtype() == "f32" and b:dtype() == "f32" then
            n = n + 1
            assert.is_true(a:allclose(b, { rtol = 1e-4, atol = 1e-5, equal_nan = true }), row[1] .. ": " .. row[2])
          end
        end
      end
    end
    assert.is_true(n > 150, n .. " results")
  end)

  it("keeps the casts of a traced function's weights as it does without", function()
    local function results(jit, seed, inside, region, given, dtype, written)
      T.manual_seed(seed)
      local w, b = T.randn({ 24, 24 }, { requires_grad = true }), T.randn({ 24 }, { requires_grad = true })
      local x = T.randn(16, 24)
      local function body(v, weight, bias)
        local h = F.linear(v, weight, bias):relu()
        h = F.linear(h, weight, bias)
        if written then T.no_grad(function() b:mul_(0.5) end) end -- w's cast stays, b's does not
        h = F.linear(h:tanh(), weight:t(), bias)
        local y = T.no_grad(function() return F.linear(h, weight) end)
        local loss = (h:float():square():mean() + y:float():mean()) * 64
        if inside then loss:backward() end
        return loss
      end
      local function f(v, weight, bias)
        if region then return body(v, weight or w, bias or b) end
        return T.autocast(dtype, body, v, weight or w, bias or b)
      end
      local g, out = jit and T.jit(f) or f, {}
      for _ = 1, 3 do
        w.grad, b.grad = nil, nil
        local function call() if given then return g(x, w, b) else return g(x) end end
        local loss
        if region then loss = T.autocast(dtype, call) else loss = call() end
        if not inside then loss:backward() end
        table.move({ loss:detach(), w.grad, b.grad, b:detach():clone() }, 1, 4, #out + 1, out)
      end
      return out
    end
    for n = 0, 31 do
      local inside, region, given, wide = n & 1 > 0, n & 2 > 0, n & 4 > 0, n & 8 > 0
      local written = n & 16 > 0 and not given and inside
      local args = { n, inside, region, given, wide and "bf16" or "f16", written }
      local want, got = results(false, table.unpack(args)), results(true, table.unpack(args))
      for k = 1, #want do assert.is_true(want[k]:equal(got[k]), ("case %d, result %d"):format(n, k)) end
    end
  end)

  it("ends with its block, also by an error, and nests", function()
    local a = T.ones(2, 2)
    do
      local _ <close> = T.autocast("bf16")
      assert.is_true(T.is_autocast_enabled())
      assert.equal("bf16", T.get_autocast_dtype())
      do
        local _ <close> = T.autocast("bf16", { enabled = false })
        assert.equal("f32", a:matmul(a):dtype())
        assert.is_nil(T.get_autocast_dtype())
      end
      assert.equal("f16", T.autocast("f16", function() return a:matmul(a):dtype() end))
      assert.equal("bf16", a:matmul(a):dtype())
    end
    assert.is_false(T.is_autocast_enabled())
    assert.equal("f32", a:matmul(a):dtype())
    assert.is_false((pcall(T.autocast, "bf16", function() error "stop" end)))
    assert.is_false(T.is_autocast_enabled())
    assert.same({ 3, 4 }, { T.autocast({ "bf16", cache_enabled = false }, function(x, y) return x, y end, 3, 4) })
    assert.same({ 5 }, { T.autocast("bf16", { enabled = true }, function(x) return x end, 5) })
  end)

  it("refuses what it does not know", function()
    fails('the dtype must be "bf16" or "f16"', function() T.autocast("f32") end)
    fails("unknown option 'cache'", function() T.autocast("bf16", { cache = true }) end)
    fails("enabled must be true or false", function() T.autocast("bf16", { enabled = 1 }) end)
    fails("a function or nothing expected", function() T.autocast("bf16", 3) end)
  end)

  -- The network of the fixture, with PyTorch's parameters.
  local function network()
    local net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))
    for i, p in ipairs(net:parameters()) do T.no_grad(p.copy_, p, tensor(fixture.network.params[i])) end
    return net, tensor(fixture.network.x), T.tensor(fixture.network.y, { dtype = "i64" }) + 1
  end

  it("trains a network as PyTorch does", function()
    for _, mode in ipairs { "exact", "bf16" } do
      local net, x, y = network()
      local loss
      do
        local _ <close> = T.autocast("bf16", { enabled = mode == "bf16" })
        loss = F.cross_entropy(net(x), y)
      end
      loss:backward()
      local want, tol = fixture.network[mode], mode == "exact" and 1e-5 or 0.006
      near.near(loss, { want.loss }, tol)
      for i, p in ipairs(net:parameters()) do
        assert.equal("f32", p.grad:dtype())
        near.near(p.grad, want.grads[i].data, tol)
      end
    end
  end)

  it("casts a weight once a region, and again after it changed", function()
    local w = T.randn({ 64, 64 }, { requires_grad = true })
    local x = T.randn({ 3, 64 }, { dtype = "bf16" })
    local function allocations(opts)
      local _ <close> = T.autocast("bf16", opts)
      local first = T.memory().allocations
      for _ = 1, 20 do F.linear(x, w) end
      return T.memory().allocations - first
    end
    local kept = allocations()
    assert.is_true(allocations { cache_enabled = false } >= kept + 19)
    local _ <close> = T.autocast("bf16")
    local y = F.linear(x, w)
    T.no_grad(function() w:mul_(2) end)
    near.near(F.linear(x, w):float(), (y:float() * 2):totable(), 1e-6)
  end)

  it("lets several losses share a cast, each with a backward of its own", function()
    local w = T.randn({ 4, 4 }, { requires_grad = true })
    local x = T.randn(3, 4)
    local _ <close> = T.autocast("bf16")
    local l1, l2 = F.linear(x, w):sum(), F.linear(x, w):sum()
    l1:backward()
    local once = w.grad:clone()
    l2:backward()
    near.near(w.grad, (once * 2):totable(), 1e-6)
    F.linear(x, w):sum():backward()
    near.near(w.grad, (once * 3):totable(), 1e-6)
  end)

  it("does not take a cast made without gradients for one with", function()
    local w = T.randn({ 4, 4 }, { requires_grad = true })
    local x = T.randn(3, 4)
    local _ <close> = T.autocast("bf16")
    T.no_grad(function() F.linear(x, w) end)
    F.linear(x, w):sum():backward()
    assert.is_true(w.grad:abs():sum():item() > 0)
    local key = T.GradKey {}
    local seen
    key:attach(w, function(_, g) seen = g end)
    key:backward(F.linear(x, w):sum())
    near.near(seen, w.grad:totable(), 1e-6)
  end)

  it("frees its casts at the end of the outermost region", function()
    local w = T.randn({ 256, 256 }, { requires_grad = true })
    local x = T.randn(4, 256)
    T.core.collect()
    local live = T.memory().live
    do
      local _ <close> = T.autocast("bf16")
      T.no_grad(function()
        local _ <close> = T.autocast("bf16")
        F.linear(x, w)
      end)
      T.core.collect()
      assert.is_true(T.memory().live >= live + 256 * 256 * 2)
    end
    T.core.collect()
    assert.equal(live, T.memory().live)
  end)

  it("has gradients of gradients", function()
    local w = (T.randn(4, 4)):requires_grad_()
    local x = T.randn({ 3, 4 }, { requires_grad = true })
    local y = T.autocast("bf16", function() return F.linear(x, w):float():tanh():sum() end)
    local g = T.grad_of(y, x, { create_graph = true })
    g:square():sum():backward()
    assert.is_true(w.grad:isfinite():all():item() and w.grad:abs():sum():item() > 0)
  end)

  it("is restored when a checkpoint computes again", function()
    local w = T.randn({ 4, 4 }, { requires_grad = true })
    local x = T.randn({ 3, 4 }, { requires_grad = true })
    local seen = {}
    local y = T.autocast("bf16", function()
      return T.checkpoint(function(a)
        local h = F.linear(a, w)
        seen[#seen + 1] = h:dtype()
        return h
      end, x)
    end)
    y:sum():backward()
    assert.same({ "bf16", "bf16" }, seen)
    assert.is_true(x.grad:isfinite():all():item())
  end)

  it("gives the same bits with any number of threads", function()
    local before = T.get_num_threads()
    local a, b = T.randn(300, 700), T.randn(200, 700)
    local want
    for threads = 1, 3 do
      T.set_num_threads(threads)
      local y = T.autocast("bf16", function() return F.linear(a, b) end)
      want = want or y
      assert.is_true(y:equal(want))
    end
    T.set_num_threads(before)
    near.near(want:float(), F.linear(a:bfloat16():float(), b:bfloat16():float()):bfloat16():float():totable(), 0.02)
  end)
end)

describe("T.set_float32_matmul_precision", function()
  it("changes products of f32, and only where it says so", function()
    assert.equal("highest", T.get_float32_matmul_precision())
    local a, b = T.randn(200, 300), T.randn(300, 200)
    local exact = a:matmul(b)
    T.set_float32_matmul_precision("high")
    assert.is_true(a:matmul(b):equal(exact))
    T.set_float32_matmul_precision("medium")
    assert.equal("medium", T.get_float32_matmul_precision())
    local y = a:matmul(b)
    assert.equal("f32", y:dtype())
    near.near(y, exact:totable(), 0.5)
    near.near(y:sum(), a:bfloat16():double():matmul(b:bfloat16():double()):sum():totable(), 1)
    near.near(F.linear(a, b:t(), T.ones(200)), (y + 1):totable(), 1e-4)
    T.set_float32_matmul_precision("highest")
    assert.is_true(a:matmul(b):equal(exact))
    fails("unknown precision 'low'", function() T.set_float32_matmul_precision("low") end)
  end)
end)
