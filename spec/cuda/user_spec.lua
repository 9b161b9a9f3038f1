-- SPDX-License-Identifier: MIT
-- What people did with tensors on the device and what went wrong then, case by case: mixed precision, files, pictures,
-- data loading, functions that make tensors beside their arguments, T.jit and T.graph.

local T = require "perilune"
local near = require "spec.support.near"
local nn, F, data = T.nn, T.nn.F, T.data

local ok, why = T.core.device.available()

describe("with tensors on the device", function()
  if not ok then
    pending("no device: " .. tostring(why))
    return
  end

  -- f(tensors…) on both devices.
  local function same(what, tol, f, ...)
    local args = { ... }
    T.manual_seed(4)
    local want = { f(table.unpack(args)) }
    for i, x in ipairs(args) do args[i] = x:cuda() end
    T.manual_seed(4)
    local got = { f(table.unpack(args)) }
    assert.equal(#want, #got, what)
    for i, x in ipairs(got) do
      assert.equal("cuda", x:device(), what)
      assert.equal(want[i]:dtype(), x:dtype(), what)
      near.near(x:cpu():double(), want[i]:double(), tol)
    end
  end

  it("norms take weights and gradients of other dtypes than x's", function()
    for _, name in ipairs { "bf16", "f16", "f32" } do
      same(name, 0.03, function(x, w, b)
        local leaves = { x:to(name):requires_grad_(), w:detach():requires_grad_(), b:detach():requires_grad_() }
        local y = F.layer_norm(leaves[1], { 33 }, leaves[2], leaves[3])
        local z = F.rms_norm(leaves[1], { 33 }, leaves[2])
        local loss = (y:float() * x):sum() + (z:float() * x):sum()
        loss:backward()
        return y:detach(), z:detach(), leaves[1].grad, leaves[2].grad, leaves[3].grad
      end, T.randn(7, 33), T.rand(33) + 0.5, T.randn(33))
    end
  end)

  it("T.autocast trains as on the CPU", function()
    local function losses(device)
      T.manual_seed(1)
      local net = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)):to(device)
      local opt = T.optim.SGD(net:parameters(), { lr = 0.2 })
      local x, y, out = T.randn(20, 6):to(device), T.randint(1, 3, { 20 }):to(device), {}
      for i = 1, 6 do
        opt:zero_grad()
        local loss = T.autocast("bf16", function() return F.cross_entropy(net(x), y) end)
        loss:backward()
        opt:step()
        out[i] = loss:item()
      end
      return out
    end
    local want, got = losses("cpu"), losses("cuda")
    for i = 1, 6 do assert.near(want[i], got[i], 0.01) end
    assert.is_true(got[6] < got[1])
  end)

  it("linear_cross_entropy in chunks has the CPU's loss and gradients, also as one chunk and under autocast", function()
    local x, w, b = T.randn(10, 6), T.randn(7, 6), T.randn(7)
    local target = T.randint(1, 7, { 10 })
    for _, chunk in ipairs { 3, false } do
      for _, half in ipairs { false, "bf16" } do
        local all = {}
        for _, where in ipairs { "cpu", "cuda" } do
          local leaves = {}
          for i, t in ipairs { x, w, b } do leaves[i] = t:to(where):clone():requires_grad_() end
          local _ <close> = T.autocast("bf16", { enabled = half and true or false })
          local loss = F.linear_cross_entropy(leaves[1], leaves[2], target:to(where),
            { linear_bias = leaves[3], chunk = chunk or nil, label_smoothing = 0.1 })
          loss:backward()
          all[where] = { loss:detach(), leaves[1].grad, leaves[2].grad, leaves[3].grad }
        end
        for i, want in ipairs(all.cpu) do
          assert.equal("cuda", all.cuda[i]:device())
          local tol = half and 2e-2 or 1e-5
          assert.is_true(all.cuda[i]:cpu():to("f32"):allclose(want:to("f32"), { rtol = tol, atol = tol }), i)
        end
      end
    end
  end)

  it("functions make what they need beside their arguments there, whatever the default device", function()
    local x = T.rand(3, 4) + 0.5
    for default in pairs { cpu = true, cuda = true } do
      T.core.device.with(default, function()
        same("vander", 1e-6, function(a) return T.vander(a[1]) end, x)
        same("combinations", 1e-6, function(a) return T.combinations(a[1], 2) end, x)
        same("unique_consecutive", 0, function(a)
          return T.unique_consecutive(a, { return_inverse = true, return_counts = true })
        end, T.tensor { 1, 1, 2, 2, 2, 3 }:cpu())
        same("randint_like", 0, function(a) return T.randint_like(a, 1, 9) end, x)
        same("matrix_power", 1e-6, function(a) return T.linalg.matrix_power(a, 0) end, x:matmul(x:t()))
        same("quantile", 1e-6, function(a) return T.quantile(a, 0.3) end, x)
        same("interpolate", 1e-5, function(a)
          return F.interpolate(a:view(1, 1, 3, 4), { size = { 5, 7 }, mode = "bilinear" }),
            F.interpolate(a:view(1, 1, 3, 4), { size = { 5, 7 }, mode = "nearest" })
        end, x)
        same("affine_grid", 1e-5, function(a) return F.affine_grid(a:narrow(1, 1, 2):narrow(2, 1, 3):view(1, 2, 3),
          { 1, 1, 3, 4 }) end, x)
        same("fold and unfold", 1e-5, function(a)
          local columns = F.unfold(a:view(1, 1, 3, 4), { kernel_size = 2 })
          return columns, F.fold(columns, { output_size = { 3, 4 }, kernel_size = 2 })
        end, x)
        same("max_unpool2d", 1e-6, function(a)
          local y, at = F.max_pool2d_with_indices(a:view(1, 1, 3, 4), 2)
          return F.max_unpool2d(y, at, 2)
        end, x)
        same("embedding_bag", 1e-5, function(a)
          local ids = T.tensor({ 1, 3, 2, 2 }, { dtype = "i64", device = a:device() })
          return F.embedding_bag(ids:view(2, 2), a), F.embedding_bag(ids:view(2, 2), a, { mode = "max" })
        end, x)
        same("packed sequences", 1e-6, function(a)
          local p = nn.utils.rnn.pack_padded_sequence(a:t(), T.tensor({ 2, 4, 3 }, { dtype = "i64", device = "cpu" }),
            { enforce_sorted = false })
          return p.data, (nn.utils.rnn.pad_packed_sequence(p))
        end, x)
        same("initializers", 1e-5, function(a)
          return nn.init.orthogonal_(a:clone()), nn.init.eye_(a:clone()), nn.init.sparse_(a:clone(), 0.5)
        end, x)
      end)
    end
  end)

  it("files, pictures and workers take them", function()
    local path = os.tmpname()
    local x = T.randn(3, 5)
    assert(T.save_npy(path, x:t():cuda()))
    near.near(assert(T.load_npy(path)), x:t())
    local picture = T.randint(0, 255, { 3, 6, 9 }):to("u8")
    if T.save_image(path .. ".png", picture:cuda()) then
      assert.is_true(assert(T.load_image(path .. ".png")):equal(picture))
    end
    os.remove(path .. ".png")
    os.remove(path)
    local transforms = data.transforms
    for _, f in ipairs { transforms.resize { 4, 5 }, transforms.to_tensor(), transforms.gray(),
      transforms.resize({ 9, 4 }, { mode = "bicubic" }), transforms.center_crop(4) } do
      local there = f(picture:cuda())
      assert.equal("cuda", there:device())
      assert.is_true(there:cpu():equal(f(picture)))
    end
    assert.is_true(#T.core.png(picture:permute(2, 3, 1):contiguous():cuda()) > 0)
    local sum = 0
    local ds = data.TensorDataset(T.ones(40, 50):cuda(), T.arange(40):cuda())
    for _, workers in ipairs { 0, 2 } do
      for a, b in data.DataLoader(ds, { batch_size = 16, shuffle = true, workers = workers }) do
        assert.equal("cuda", a:device())
        sum = sum + a:sum():item() + b:sum():item()
      end
    end
    assert.equal(2 * (2000 + 820), sum)
    T.core.device.with("cuda", function() -- samples are numbered on the CPU
      local here = data.TensorDataset(T.ones(10, 2, { device = "cpu" }))
      for a in data.DataLoader(here, { batch_size = 4, shuffle = true }) do assert.equal("cpu", a:device()) end
      assert.equal(3, #data.random_split(here, { 7, 3 }, { seed = 1 })[2])
    end)
  end)

  it("a watched backward pass looks at gradients there", function()
    local x = T.tensor({ 0.0, 1.0 }, { device = "cuda" }):requires_grad_() -- 1 / 0
    local text = near.fails("NaN or Inf", function()
      local _ <close> = T.anomaly(true)
      x:sqrt():sum():backward()
    end)
    assert.truthy(text:find("sqrt", 1, true))
  end)

  it("T.jit knows where tensors are: x:device(), losses of means, gradients of arguments", function()
    local net = nn.Linear(4, 2):cuda()
    local f = T.jit(function(x)
      assert(x:device() == "cuda")
      local y = net(x) + T.ones(2, { device = x:device() })
      local loss = y:pow(2):mean()
      loss:backward()
      return loss
    end)
    local x = T.randn(3, 4):cuda():requires_grad_()
    local want = (net(x) + 1):pow(2):mean()
    want:backward()
    local gx, gw = x.grad:clone(), net.weight.grad:clone()
    x.grad, net.weight.grad, net.bias.grad = nil, nil, nil
    near.near(f(x), want, 1e-5)
    near.near(x.grad, gx, 1e-5)
    near.near(net.weight.grad, gw, 1e-5)
    local g = T.jit(function(a) return (a * 2):sum() end) -- other devices, other traces
    near.near(g(T.ones(3):cuda()):cpu(), 6)
    near.near(g(T.ones(3)), 6)
    assert.equal("cuda", g(T.ones(3):cuda()):device())
  end)

  it("T.jit writes into what it made there; whole Jacobians", function()
    local x, w = T.randn(6), T.randn(6)
    local f = T.jit(function(a, b)
      local y = T.zeros(2, 6, { device = a:device() })
      y[1]:fill_(3)
      y[2]:copy_(a)
      return y, T.jacobian(function(r) return (r * b):sin() end, a)
    end)
    local y, j = f(x:cuda(), w:cuda())
    near.near(y:cpu(), T.stack({ T.full({ 6 }, 3.0), x }, 1))
    near.near(j:cpu(), T.jacobian(function(r) return (r * w):sin() end, x), 1e-5)
  end)

  it("lazy layers and LBFGS find the device of what they meet", function()
    local net = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1))
    assert.equal("cuda", net(T.randn(5, 3):cuda()):device())
    local p = nn.Parameter(T.ones(3):cuda())
    local opt = T.optim.LBFGS({ p }, { max_iter = 3 })
    local function closure()
      opt:zero_grad()
      local loss = (p * p):sum()
      loss:backward()
      return loss
    end
    opt:step(closure)
    local path = os.tmpname()
    assert(T.save(path, { opt = opt:state_dict() }))
    opt:load_state_dict(assert(T.load(path)).opt)
    os.remove(path)
    opt:step(closure)
    near.near(p:cpu(), 0, 1e-3)
  end)

  it("T.graph runs there: inputs by device, gradients, constants, files", function()
    local w = T.randn(3, 2):cuda()
    local g = T.graph()
    local x = g:input("x", { 5, 3 }, { device = "cuda" })
    local y = (x:matmul(w):tanh() * 3 + 1):pow(2):mean()
    g:outputs { y, g:gradient({ y }, x) }
    local X = T.randn(5, 3)
    local leaf = X:clone():requires_grad_()
    local want = (leaf:matmul(w:cpu()):tanh() * 3 + 1):pow(2):mean()
    want:backward()
    for _ = 1, 5 do
      local out = g:run { x = X:cuda() }
      near.near(out[1], want, 1e-5)
      near.near(out[2], leaf.grad, 1e-5)
      assert.equal("cuda", out[2]:device())
    end
    local path = os.tmpname()
    assert(T.save_graph(path, g))
    local there = assert(T.core.device.with("cuda", T.load_graph, path))
    near.near(there:run { x = X:cuda() }[1], want, 1e-5)
    near.near(assert(T.load_graph(path)):run { x = X }[1], want, 1e-5)
    os.remove(path)
    os.remove(path .. ".safetensors")
  end)

  it("gradients that nothing flows into are zeros where the gradients are, whatever the default device", function()
    for _, default in ipairs { "cpu", "cuda" } do
      T.set_default_device(default)
      local x = T.tensor({ { 1, 2, 3 }, { 4, 5, 7 } }, { device = "cuda", dtype = "f64" }):requires_grad_()
      local g = T.grad_of(x:logsumexp(2):sum(), x, { create_graph = true })
      local h = T.grad_of((g * g):sum(), x)
      T.set_default_device "cpu"
      local a = x:detach():cpu():requires_grad_()
      local b = T.grad_of(a:softmax(2):pow(2):sum(), a)
      near.near(h, b, 1e-12)
      assert.equal("cuda", h:device())
      local bag = T.nn.EmbeddingBag(3, 2, { mode = "max", padding_idx = 1 }):to "cuda"
      bag(T.ones(2, 2, { dtype = "i64", device = "cuda" })):sum():backward()
      assert.equal(0, bag.weight.grad:abs():sum():item())
      assert.equal("cuda", bag.weight.grad:device())
    end
  end)

  it("errors that a wait finds are named by the call that made them; gradients are where their leaf is", function()
    local x, rows = T.randn(3, 4):cuda(), T.tensor({ 1, 9, 2 }, { dtype = "i64" }):cuda()
    local far = T.full({ 3, 4 }, 9, { dtype = "i64" }):cuda()
    local calls = {
      index_select = function() return x:index_select(1, rows) end, gather = function() return x:gather(1, far) end,
      embedding = function() return T.nn.F.embedding(rows, x) end, take = function() return T.take(x, far + 90) end,
      cross_entropy = function() return T.cross_entropy(x, rows) end,
      nll_loss = function() return T.nll_loss(x, rows) end,
      scatter = function() return x:scatter(1, far, x) end, index_add = function() return x:index_add(1, rows, x) end,
      index_copy = function() return x:index_copy(1, rows, x) end,
    }
    local waits = { function() T.cuda.synchronize() end, function() x:cpu() end, function() x:nonzero() end, function()
      return T.nn.Linear(4, 2):to "cuda"(x):sum():item()
    end, function(y) return y:sum():item() end, function(y) return tostring(y) end, function(y) return y:totable() end,
      function() T.zeros(3, 4):copy_(x) end, function() return x:unique() end, function() return T.linalg.svd(x) end }
    for name, call in pairs(calls) do
      for _, wait in ipairs(waits) do
        local y = call()
        local fine, said = pcall(wait, y)
        assert.is_false(fine)
        assert.truthy(said:find("[ :]" .. name .. ": [^:]* is ") and said:find("(noticed on the device", 1, true), said)
        assert.falsy(said:find("in Linear", 1, true), said)
        assert.is_true((pcall(wait, x))) -- once
      end
    end
    local p = T.zeros(2):requires_grad_()
    local _, said = pcall(function() p.grad = T.zeros(2, { device = "cuda" }) end)
    said = tostring(said)
    assert.truthy(said:find("grad: f32[2] on cuda cannot be the gradient of f32[2] on cpu; move it", 1, true), said)
  end)

  it("networks are loaded to the default device, and draw there what they draw on the CPU", function()
    local dir = os.tmpname()
    os.remove(dir)
    assert(os.execute('mkdir "' .. dir .. '"'))
    T.manual_seed(2)
    local net = T.models.Llama { vocab_size = 16, hidden_size = 8, intermediate_size = 16, num_hidden_layers = 1,
      num_attention_heads = 2 }
    assert(T.models.save(net, dir))
    local drawn = {}
    for i, default in ipairs { "cpu", "cuda" } do
      T.set_default_device(default)
      local done, said = pcall(function()
        local again = assert(T.models.load(dir))
        for _, p in ipairs(again:parameters()) do assert.equal(default, p:device()) end
        drawn[i] = again:generate({ 3, 5 }, { max_new_tokens = 6, stop = false, do_sample = true, seed = 7 }):totable()
      end)
      T.set_default_device "cpu"
      assert.is_true(done, tostring(said))
      assert.equal("cpu", assert(T.models.load(dir, { device = "cpu" })):parameters()[1]:device())
    end
    assert.same(drawn[1], drawn[2])
    os.execute('rm -r "' .. dir .. '"')
  end)

  it("layers that are prepared for 8 bits watch on the device of their network", function()
    for _, observer in ipairs { "histogram", "percentile", "minmax", "moving_average" } do
      local net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)):to "cuda"
      nn.quant.prepare(net, { train = observer == "moving_average", observer = observer })
      for _ = 1, 2 do net(T.randn(5, 2, 4, 4):cuda()) end
      net = nn.quant.convert(net:eval())
      for _, b in ipairs(net:buffers()) do assert.equal("cuda", b:device()) end
      assert.equal("cuda", net(T.randn(1, 2, 4, 4):cuda()):device())
    end
  end)

  it("tensors of the CPU that a memory limit has evicted are read on the way to a device, and beside it", function()
    local stats = T.core.rematerialization
    local x, g = T.arange(1, 100), T.arange(1, 100):cuda()
    local _ <close> = T.memory_limit(1 << 32)
    local function evicted(y)
      assert.is_true(stats(true).evicted > 0)
      return y
    end
    local function fresh() return evicted(x * 1) end
    local function scalar() return evicted((x * 1):sum()) end
    local function jitted(f, ...)
      local j, y = T.jit(f), nil
      for _ = 1, 5 do y = j(...) end
      return y
    end
    local ways = {
      to = function() return fresh():to "cuda" end,
      later = function()
        local y = fresh():pin_memory():to("cuda", { non_blocking = true })
        T.cuda.synchronize()
        return y
      end,
      copy = function() return T.zeros(100, { dtype = "i64" }):cuda():copy_(fresh()) end,
      back = function() return fresh():copy_(g) end,
      beside = function() return (g * scalar()):div(5050):long() end,
      where = function() return T.where(g:gt(0), g, scalar()) end,
      jit = function() return jitted(function(a, n) return (a * n):div(5050):long() end, g, scalar()) end,
      inside = function() return jitted(function(a) return a:cuda() * 1 end, fresh()) end,
    }
    for name, way in pairs(ways) do assert.is_true(way():cpu():equal(x), name) end
    local a = T.randn(50):requires_grad_()
    local b = a:detach():clone():requires_grad_()
    local y = evicted((evicted((a * 3):sin()):cuda() * 2):sum())
    y:backward()
    T.sum((b * 3):sin() * 2):backward()
    assert.is_true(T.allclose(a.grad, b.grad, { atol = 1e-5 }))
  end)
end)
