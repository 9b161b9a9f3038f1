-- SPDX-License-Identifier: MIT
-- T.jit on the device: neighbouring elementwise operations run as one kernel, generated for them, with the very bits of
-- the operations one by one; and all of it is captured. The device is the emulation, which compiles the generated
-- source with a C++ compiler, or a GPU.

local T = require "perilune"
local nn, F = T.nn, T.nn.F

local ok, why = T.core.device.available()

local function same(a, b, what)
  assert.equal("cuda", a:device(), what)
  assert.equal(a:dtype(), b:dtype(), what)
  local x, y = a:cpu(), b:cpu()
  local equal = x:eq(y):logical_or(x:ne(x):logical_and(y:ne(y)))
  assert.is_true(equal:all():item(), what .. ": other values than one by one")
end

-- f on device tensors, jitted and not; returns groups and members of the jitted one.
local function both(what, f, ...)
  local args = { ... }
  for i, x in ipairs(args) do args[i] = x:cuda() end
  local want = table.pack(f(table.unpack(args)))
  local jitted = T.jit(f)
  for run = 1, 2 do
    local got = table.pack(jitted(table.unpack(args)))
    for i = 1, want.n do same(got[i], want[i], ("%s, run %d, result %d"):format(what, run, i)) end
  end
  return T.core.jit_device_groups(jitted.last.program)
end

describe("T.jit on the device", function()
  if not ok then
    pending("no device: " .. tostring(why))
    return
  end

  it("what a function makes is where the call says, with the numbers of there", function()
    local function draws(f)
      T.manual_seed(7)
      return f()
    end
    local made = function() return T.randn(100, { device = "cuda" }) * 2 + 1 end -- no leaf is on the GPU
    local eager, jitted = draws(made), T.jit(made)
    for _ = 1, 3 do
      local y = draws(jitted)
      assert.equal("cuda", y:device())
      assert.is_true(y:equal(eager))
    end
    local function beside(x)
      return x + T.ones(3, { device = "cuda" }), T.zeros(3, { device = "cpu" }) + 2,
        T.randn(5, { device = "cpu" }), T.zeros(3)
    end
    local x = T.ones(3):cuda()
    local f = T.jit(beside)
    for _ = 1, 4 do
      local want = table.pack(draws(function() return beside(x) end))
      local got = table.pack(draws(function() return f(x) end))
      for k = 1, 4 do
        assert.equal(k == 1 and "cuda" or "cpu", got[k]:device())
        assert.is_true(got[k]:equal(want[k]), "result " .. k)
      end
    end
    local g = T.jit(function(a) return a * T.full({ 3 }, 4, { device = "cpu" }):to("cuda") end)
    assert.same({ 4, 4, 4 }, g(x):totable())
  end)

  it("joins elementwise operations, whatever is beside them", function()
    T.manual_seed(1)
    for _, dtype in ipairs { "f32", "f64", "f16", "bf16" } do
      local function make(...) return T.randn(...):to(dtype) end
      local groups, members = both(dtype, function(x, y, row, col, one)
        local z = (x * y + row):tanh() * col - one
        return z:sigmoid() * 2.5 + x, T.where(z:gt(0), z, x:abs())
      end, make(7, 12), make(7, 12), make(12), make(7, 1), make(1))
      assert.is_true(groups >= 1 and members >= 6, ("%d groups of %d"):format(groups, members))
    end
  end)

  it("takes odd sizes, shifted addresses, single elements and empty tensors", function()
    local f = function(x, y) return (x * y - y):relu() + 1, (x + y):to("bf16"):to("f32") * 0.5 end
    for _, n in ipairs { 0, 1, 2, 3, 5, 31, 64, 1001 } do
      both("n = " .. n, f, T.randn(n), T.randn(n))
    end
    local x = T.randn(65):cuda()
    local jitted = T.jit(f)
    local a, b = x[{ { 2, 33 } }], x[{ { 33, 64 } }]
    same(jitted(a, b), f(a, b), "addresses that no pack begins at")
  end)

  it("passes parameters at every run", function()
    both("parameters", function(x, y)
      return x:clamp(-0.5, 0.75) + F.gelu(y) * F.leaky_relu(x, 0.2), T.lerp(x, y, 0.25), x:nan_to_num(1, 2, 3):neg()
    end, T.randn(6, 5), T.randn(6, 5))
  end)

  it("joins what works along rows: sums, softmax, norms, at every length of a row", function()
    T.manual_seed(5)
    for _, dtype in ipairs { "f32", "f64", "f16", "bf16" } do
      for _, shape in ipairs { { 7, 12 }, { 2, 3, 33 }, { 3, 129 }, { 5, 1030 }, { 2, 4096 } } do
        local n = shape[#shape]
        local what = dtype .. " " .. table.concat(shape, "x") .. ": "
        local function make(...) return (T.randn(...)):to(dtype) end
        local x, y, w, b = make(shape), make(shape), make(n), make(n)
        local groups, members = both(what .. "written out", function(a)
          local d = a - a:mean(-1, true)
          local v = (d * d):mean(-1, true)
          return d / (v + 1e-3):sqrt() * 2, v
        end, x)
        assert.same({ 1, 8 }, { groups, members })
        groups = both(what .. "softmax of scores, and its gradient", function(a, c)
          local p = F.softmax(a * 0.5 + c, -1)
          local q = F.log_softmax(a * c, -1)
          return p * q, (p * q):sum(-1), p:logsumexp(-1):exp(), (a - a:amax(-1, true)):exp(), a:amin(-1)
        end, x, y)
        assert.equal(1, groups)
        groups = both(what .. "norms", function(a, c, g, h)
          local r = a + c
          return r, F.layer_norm(r, { n }, g, h):relu(), F.rms_norm(r * 2, { n }, g) - c, (r + 1):std(-1),
            r:var(-1, { keepdim = true })
        end, x, y, w, b)
        assert.equal(1, groups)
      end
    end
  end)

  it("takes operands that are repeated (expand) for what they are, views between members too", function()
    T.manual_seed(7)
    local x, col, row, one = T.randn(7, 12), T.randn(7, 1), T.randn(12), T.randn(1)
    for what, small in pairs { column = col, row = row, one = one } do
      local groups, members = both(what .. " repeated, along rows", function(a, c)
        return (a * c:expand(7, 12)):sum(-1)
      end, x, small)
      assert.same({ 1, 2 }, { groups, members })
      groups, members = both(what .. " repeated", function(a, c) return (a * c:expand(7, 12)):relu() end, x, small)
      assert.same({ 1, 2 }, { groups, members })
    end
    -- a window of an image that is channels last, planned as one row
    local image = T.randn(1, 3, 4, 5):to { memory_format = "channels_last" }
    both("a channel repeated", function(a, c) return (a:narrow(2, 2, 1):expand(1, 6, 4, 5) * c):relu() end, image,
      T.randn(1, 6, 4, 5))
    local groups, members = both("views between", function(a) return ((a * 2):view(12, 7) + 1):relu() end, x)
    assert.same({ 1, 3 }, { groups, members })
    groups, members = both("views that others read", function(a)
      local s = (a * 2):sum(-1):unsqueeze(-1)
      return ((a / s):softmax(-1)):t():matmul(s)
    end, x)
    assert.same({ 1, 4 }, { groups, members })
  end)

  it("keeps images channels last where a group would go by rows", function()
    local function train(jit)
      T.manual_seed(4)
      local one, two = nn.Conv2d(3, 8, 3, { padding = 1 }), nn.Conv2d(8, 8, 3, { padding = 1 })
      local head = nn.Linear(8, 4)
      for _, m in ipairs { one, two, head } do m:to { device = "cuda", memory_format = "channels_last" } end
      local image = T.randn(5, 3, 6, 6):cuda():to { memory_format = "channels_last" }
      local function step(a)
        for _, m in ipairs { one, two, head } do m:zero_grad() end
        local y = F.relu(one(a))
        y = F.relu(two(y) + y)
        local small = y:mean { 3, 4 }
        head(small):square():mean():backward()
        return y, small, one.weight.grad:clone(), two.weight.grad:clone()
      end
      if jit then step = T.jit(step) end
      local results
      for _ = 1, 5 do results = table.pack(step(image)) end
      return results, step
    end
    local want = train(false)
    local got, step = train(true)
    for i = 1, want.n do
      same(got[i]:detach(), want[i]:detach(), "result " .. i)
      if want[i]:dim() == 4 then assert.same(want[i]:stride(), got[i]:stride(), "result " .. i) end
    end
    local groups, members, how = T.core.jit_device_groups(step.last.program)
    assert.is_true(groups >= 2 and members > 5, ("%d groups of %d"):format(groups, members))
    assert.equal("captured", how)
  end)

  it("ends a group where a kernel has no more room: arguments, results, parameters", function()
    local x = T.randn(3, 4)
    local groups, members = both("parameters", function(a)
      for i = 1, 20 do a = a:clamp(-i, 2 * i) end
      return a
    end, x)
    assert.same({ 2, 20 }, { groups, members }) -- sixteen at once
    local inputs = {}
    for i = 1, 30 do inputs[i] = T.randn(3, 4) end
    groups, members = both("arguments", function(s, ...)
      for _, y in ipairs { ... } do s = s + y end
      return s
    end, table.unpack(inputs))
    assert.same({ 2, 29 }, { groups, members })
    groups, members = both("results", function(a)
      local list = {}
      for i = 1, 28 do
        a = (a * 0.5):tanh()
        list[i] = a
      end
      return table.unpack(list)
    end, x)
    assert.is_true(groups <= 3 and members == 56, ("%d groups of %d"):format(groups, members))
  end)

  it("gradients along rows are one kernel as well, views between them and all", function()
    T.manual_seed(6)
    for _, shape in ipairs { { 9, 40 }, { 3, 5, 200 } } do
      local x, w = T.randn(shape):cuda(), T.randn(shape):cuda():requires_grad_()
      for what, f in pairs {
        written = function(a)
          local y = w * a
          local d = y - y:mean(-1, true)
          return (d / ((d * d):mean(-1, true) + 1e-5):sqrt()):pow(3)
        end,
        softmax = function(a) return (F.softmax(w * a, -1) * a):sum(-1):abs():log() end,
        scores = function(a)
          local e = (w * a - (w * a):amax(-1, true):detach()):exp()
          return e / e:sum(-1, true)
        end,
        norm = function(a) return F.gelu(F.layer_norm(w * a, { shape[#shape] })):square():sum(-1) end,
        std = function(a) return (w * a) / (w * a):std(-1, { keepdim = true }) end,
      } do
        local function step(a)
          w.grad = nil
          local y = f(a)
          y:backward(T.ones_like(y))
          return y:detach()
        end
        local want = step(x)
        local dw = w.grad
        local jitted = T.jit(step)
        for run = 1, 5 do
          same(jitted(x), want, ("%s, run %d"):format(what, run))
          same(w.grad, dw, ("gradient of %s, run %d"):format(what, run))
        end
        local _, _, how = T.core.jit_device_groups(jitted.last.program)
        assert.equal("captured", how)
      end
    end
  end)

  it("few long rows keep kernels of several blocks; what else is there is joined", function()
    local x = T.randn(2, 5000)
    local groups, members = both("long", function(a) return (a * 2 + 1):sum(-1), (a - 1):relu() * 3 end, x)
    assert.is_true(groups >= 1 and members < 7, ("%d groups of %d"):format(groups, members))
    -- softmax and norms take a block a row anyway
    groups, members = both("long softmax", function(a) return F.softmax(a * 2 + 1, -1) * 3 end, x)
    assert.same({ 1, 4 }, { groups, members })
    groups, members = both("long norm", function(a) return F.rms_norm(a * 2 + 1, { 5000 }):relu() end, x)
    assert.same({ 1, 4 }, { groups, members })
  end)

  -- Gradients of f(x, …) for all of them, one by one and jitted; returns groups and members of the jitted one.
  local function gradients(what, f, ...)
    return both(what, function(...)
      local leaves = { ... }
      for i, x in ipairs(leaves) do leaves[i] = x:detach():requires_grad_() end
      return table.unpack(T.grad_of(f(table.unpack(leaves)), leaves))
    end, ...)
  end

  it("the backward of a norm is one kernel with its neighbours, sums over rows come behind it", function()
    T.manual_seed(8)
    for _, dtype in ipairs { "f32", "bf16" } do -- a kernel of each is compiled once
      for _, shape in ipairs { { 7, 12 }, { 2, 3, 33 }, { 3, 129 }, { 40, 1030 }, { 2, 5000 } } do
        local n = shape[#shape]
        local what = dtype .. " " .. table.concat(shape, "x") .. ": "
        local function make(...) return (T.randn(...)):to(dtype) end
        local x, c = make(shape), make(shape)
        local function through(norm)
          return function(a, d, ...)
            local r = a * 2 + 1
            return ((norm(r, ...) * d):tanh() + r * 0.5):sum()
          end
        end
        local layer = through(function(r, w, b) return F.layer_norm(r, { n }, w, b) end)
        local rms = through(function(r, w) return F.rms_norm(r, { n }, w) end)
        gradients(what .. "RMS norm", rms, x, c, make(n))
        if n == 33 then gradients(what .. "without weights", layer, x, c) end
        local groups = gradients(what .. "layer norm with f32 weights", layer, x, c, T.randn(n), T.randn(n))
        assert.is_true(groups <= 2, ("%s: %d groups"):format(what, groups))
      end
    end
  end)

  it("parts of a product and their gradient, which is one join", function()
    for _, dtype in ipairs { "bf16" } do
      gradients("heads " .. dtype, function(x)
        local function head(k) return x:narrow(3, 8 * k - 7, 8):view(2, 5, 2, 4):transpose(2, 3) end
        return (head(1):matmul(head(2):transpose(-1, -2)):matmul(head(3))):tanh():sum()
      end, (T.randn(2, 5, 24) * 0.3):to(dtype))
    end
    for _, dtype in ipairs { "f32", "bf16", "f64" } do -- more than a launch takes, whole packs and none
      for _, sizes in ipairs { { 5, 2, 1, 8, 4, 4 }, { 8, 8, 8 }, { 16, 8 } } do
        gradients("parts " .. dtype, function(x)
          local at, sum = 1, nil
          for k, n in ipairs(sizes) do
            local part = (x:narrow(3, at, n):transpose(1, 3) * k):tanh():sum()
            sum, at = sum and sum + part or part, at + n
          end
          return sum
        end, T.randn(2, 5, 24):to(dtype))
      end
    end
  end)

  it("trains as without", function()
    local function losses(jit)
      T.manual_seed(3)
      local net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)):to("cuda")
      local opt = T.optim.SGD(net:parameters(), { lr = 0.1 })
      local x, y = T.randn(5, 6):cuda(), T.randint(1, 4, { 5 }):cuda()
      local function step(a, b)
        opt:zero_grad()
        local loss = F.cross_entropy(net(a), b)
        loss:backward()
        opt:step()
        return loss
      end
      if jit then step = T.jit(step) end
      local out = {}
      for i = 1, 5 do out[i] = step(x, y):item() end
      return out
    end
    local want, got = losses(false), losses(true)
    for i = 1, 5 do assert.near(want[i], got[i], 1e-6) end
    assert.is_true(got[5] < got[1])
  end)

  it("casts of weights and of their gradients go many a launch, where nothing is written in between", function()
    local x, y = T.randn(6, 12):cuda(), T.randn(6, 8):cuda()
    local function train(jit, dtype, accumulate)
      T.manual_seed(8)
      local net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 16, { bias = false }), nn.Linear(16, 8))
      net:to "cuda"
      local params, losses = net:parameters(), {}
      local opt = T.optim.SGD(params, { lr = 0.05, momentum = 0.9 })
      local function step(a, b)
        opt:zero_grad()
        local loss
        do
          local _ <close> = T.autocast(dtype)
          loss = F.mse_loss(net(a), b)
        end
        loss:backward()
        if accumulate then
          local w = params[1].grad:to(dtype):to("f32") -- a cast of a cast, and one that waits for it
          loss = loss + w:sum()
        end
        nn.utils.clip_grad_norm_(params, 1)
        opt:step()
        return loss
      end
      if jit then step = T.jit(step) end
      for i = 1, 6 do losses[i] = step(x, y):item() end
      for _, p in ipairs(params) do losses[#losses + 1] = p:detach():sum():item() end
      return losses
    end
    for _, dtype in ipairs { "bf16", "f16" } do
      for _, accumulate in ipairs { false, true } do
        local want, got = train(false, dtype, accumulate), train(true, dtype, accumulate)
        for i, v in ipairs(want) do assert.near(v, got[i], 2e-3 * math.max(1, math.abs(v)), dtype .. i) end
      end
    end
    -- written in place in between: each cast sees what is there in its turn
    local function f(a, b)
      local first = a:to("bf16"):to("f32")
      local c = b * 1
      local early = c:to("bf16")
      c:add_(1)
      local late = c:to("bf16")
      return first, early:to("f32"), late:to("f32"), a:to("bf16"), b:to("bf16"), c
    end
    local a, b = T.randn(33):cuda(), T.randn(33):cuda()
    local jitted, want = T.jit(f), { f(a, b) }
    for _ = 1, 5 do
      local got = { jitted(a, b) }
      for i = 1, #want do assert.is_true(got[i]:equal(want[i]), i) end
    end
    local function written(v, w) -- of arguments
      local before = v:to("bf16")
      v:mul_(2)
      return before, v:to("bf16"), w:to("bf16")
    end
    local one = T.randn(40):cuda() -- two arguments of one memory, one of them written twice
    local function overlapping(p, q)
      p:mul_(2)
      local first = q:to("bf16")
      p:add_(1)
      return first, q:to("f16"), b:to("bf16")
    end
    local h = T.jit(overlapping)
    for _ = 1, 4 do
      local mine = one:clone()
      local wanted = { overlapping(mine[{ { 1, 30 } }], mine[{ { 11, 40 } }]) }
      local got = { h(one[{ { 1, 30 } }], one[{ { 11, 40 } }]) }
      for i = 1, 3 do assert.is_true(got[i]:equal(wanted[i]), "overlapping " .. i) end
      assert.is_true(one:equal(mine))
    end
    local v, g = T.randn(20):cuda(), T.jit(written)
    for _ = 1, 5 do
      local start = v:clone()
      local before, after = g(v, b)
      assert.is_true(before:equal(start:to("bf16")) and after:equal((start * 2):to("bf16")) and v:equal(start * 2))
    end
  end)

  it("is captured after three runs, and repeats what changes", function()
    T.manual_seed(2)
    local w, seen = T.randn(4, 3):cuda(), T.zeros(3):cuda()
    local ones = T.ones(5):cuda()
    local function f(x, k)
      local y = (x:matmul(w) * k):tanh()
      seen:add_(ones:matmul(y)) -- a product and an elementwise update in place
      return y, y:exp() + 1
    end
    local jitted = T.jit(f)
    local mine = T.zeros(3)
    for run = 1, 7 do
      local x, k = T.randn(5, 4), T.tensor(run * 0.5)
      if run == 6 then w:mul_(2) end -- in place: no new capture
      local y, z = jitted(x:cuda(), run % 2 == 0 and k or k:cuda())
      local want = (x:matmul(w:cpu()) * k):tanh()
      mine = mine + want:sum(1)
      assert.is_true(T.allclose(y:cpu(), want, { atol = 1e-5 }), "run " .. run)
      assert.is_true(T.allclose(z:cpu(), want:exp() + 1, { atol = 1e-5 }), "run " .. run)
      assert.is_true(T.allclose(seen:cpu(), mine, { atol = 1e-4 }), "state after run " .. run)
    end
    local _, _, how = T.core.jit_device_groups(jitted.last.program)
    assert.equal("captured", how)
  end)

  it("captures whole training steps", function()
    local function train(device, jit)
      T.manual_seed(3)
      local net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4)):to(device)
      local opt = T.optim.AdamW(net:parameters(), { lr = 1e-2 })
      local x, y = T.randn(5, 6):to(device), T.randint(1, 4, { 5 }):to(device)
      local function step(a, b)
        opt:zero_grad()
        local loss = F.cross_entropy(net(a), b)
        loss:backward()
        nn.utils.clip_grad_norm_(net:parameters(), 1)
        opt:step()
        return loss
      end
      if jit then step = T.jit(step) end
      local out = {}
      for i = 1, 8 do out[i] = step(x, y):item() end
      return out, jit and select(3, T.core.jit_device_groups(step.last.program))
    end
    local want = train("cpu")
    local got, how = train("cuda", true)
    for i = 1, 8 do assert.near(want[i], got[i], 1e-4) end
    assert.equal("captured", how)
  end)

  it("says why it is not captured", function()
    local function reason(f, ...)
      local jitted = T.jit(f)
      for _ = 1, 5 do jitted(...) end
      return (select(3, T.core.jit_device_groups(jitted.last.program)))
    end
    local x = T.randn(6, 4):cuda()
    assert.matches("linalg.inv runs on the CPU", reason(function(a) return T.linalg.inv(a) * 2 end, T.eye(3):cuda()))
    assert.matches("writes into an argument", reason(function(a) a:add_(1) return a * 2 end, x:clone()))
    local jitted = T.jit(function(a) a:add_(1) return a * 2 end)
    for _ = 1, 5 do jitted(x) end
    assert.matches("writes into an argument", tostring(jitted:explain()))
    assert.matches("on the device .* writes into an argument", tostring(jitted:plan()))
    assert.matches("writes into an argument", jitted:plan().device.capture)
  end)

  it("draws on in captured work, with the bits of the CPU", function()
    local function run(device, jit)
      T.manual_seed(11)
      local function f(a)
        local kept = F.dropout(a, 0.3)
        local noise = T.bernoulli(a * 0 + 0.4) + T.randperm(50):view(5, 10)
        return kept, noise + a:clone():uniform_(-1, 1) * 2
      end
      if jit then f = T.jit(f) end
      local x, out = T.ones(5, 10):to(device), {}
      for i = 1, 8 do
        if i == 7 then T.manual_seed(4) end
        if i == 6 then T.randn(3) end -- the script draws in between
        local kept, noise = f(x)
        out[i] = T.cat { kept:cpu():view(-1), noise:cpu():view(-1) }
      end
      out[9] = T.rand(4)
      return out, jit and select(3, T.core.jit_device_groups(f.last.program))
    end
    local want = T.core.device.with("cpu", run, "cpu")
    local got, how = T.core.device.with("cuda", run, "cuda", true)
    for i = 1, 9 do assert.is_true(T.equal(want[i]:cpu(), got[i]:cpu()), "run " .. i) end
    assert.equal("captured", how)
  end)

  it("captures steps of nets with dropout, whose backward repeats the draw, under a schedule", function()
    for _, rule in ipairs { "SGD", "AdamW", "RMSprop" } do
      local function train(device, jit)
        T.manual_seed(3)
        local net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 4)):to(device)
        local opt = T.optim[rule](net:parameters(),
          { lr = 1e-2, weight_decay = 0.1, momentum = rule ~= "AdamW" and 0.9 or nil })
        local schedule = T.optim.lr_scheduler.StepLR(opt, { step_size = 2, gamma = 0.5 })
        local x, y = T.randn(5, 6):to(device), T.randint(1, 4, { 5 }):to(device)
        local function step(a, b)
          opt:zero_grad()
          local loss = F.cross_entropy(net(a), b)
          loss:backward()
          opt:step()
          schedule:step()
          return loss
        end
        if jit then step = T.jit(step, { mirror = "mirror", seeded = true }) end
        local out = {}
        for i = 1, 9 do out[i] = step(x, y):item() end
        return out, jit and select(3, T.core.jit_device_groups(step.last.program))
      end
      local want = train("cpu")
      local got, how = train("cuda", true)
      for i = 1, 9 do assert.near(want[i], got[i], 1e-4, rule .. " run " .. i) end
      assert.equal("captured", how, rule)
    end
  end)

  it("sees captured numbers change", function()
    local factor, x = T.tensor(2.0), T.randn(6, 4):cuda()
    local jitted = T.jit(function(a) return a * factor + 1 end)
    for run = 1, 40 do
      if run > 5 and run % 2 == 0 then factor:add_(1) end
      assert.is_true(T.allclose(jitted(x):cpu(), x:cpu() * factor + 1), "run " .. run)
    end
  end)

  it("puts results where the same call without it does, with arguments on the CPU too", function()
    local w = T.randn(4):cuda()
    local function f(x)
      local y = (x * 2):to("cuda")
      return y + w, x + 1, T.full({ 2 }, 3, { device = "cuda" }), T.arange(4, { device = "cuda" }) + 1, y:sum():cpu()
    end
    local x = T.randn(4)
    local jitted, want = T.jit(f), { f(x) }
    for run = 1, 3 do
      for i, got in ipairs { jitted(x) } do
        assert.equal(want[i]:device(), got:device(), ("run %d, result %d"):format(run, i))
        assert.is_true(want[i]:cpu():equal(got:cpu()))
      end
    end
    local leaf = T.ones(3):requires_grad_()
    local g = T.jit(function(t)
      local y = t:to("cuda")
      return (y * y * T.full({ 3 }, 5, { device = "cuda" })):sum()
    end)
    for run = 1, 3 do
      local y = g(leaf)
      y:backward()
      assert.equal("cuda", y:device())
      assert.equal("cpu", leaf.grad:device())
      assert.same({ 10.0 * run, 10.0 * run, 10.0 * run }, leaf.grad:totable())
    end
  end)

  it("makes noise on the device without a copy, where only what it captures is there", function()
    local w = T.randn(5):cuda()
    local f = T.jit(function() return (T.randn(5, { device = "cuda" }) * w):sum() end)
    for _ = 1, 5 do assert.equal("cuda", f():device()) end
    local plan = f:plan()
    assert.truthy(tostring(plan):find("captured", 1, true))
    assert.is_nil(tostring(plan):find("not captured", 1, true))
  end)

  it("gives captured memory back", function()
    collectgarbage()
    collectgarbage()
    local before = T.core.device.memory().live
    do
      local jitted = T.jit(function(a) return (a * 2):sigmoid() + 1 end)
      local x = T.randn(100, 100):cuda()
      for _ = 1, 6 do jitted(x) end
    end
    collectgarbage()
    collectgarbage()
    collectgarbage()
    assert.is_true(T.core.device.memory().live <= before, "live bytes grew")
  end)
end)
