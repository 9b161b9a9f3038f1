-- SPDX-License-Identifier: MIT
-- Tensors on the device as people use them: moving, mixing, training, checkpoints, T.cuda; emulated or on a GPU.

local T = require "perilune"
local near = require "spec.support.near"
local nn, optim = T.nn, T.optim

local ok, why = T.cuda.is_available()

describe("device tensors", function()
  if not ok then
    pending("no device: " .. tostring(why))
    return
  end

  it("move, say where they are, and come back unchanged", function()
    local x = T.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    local y = x:to("cuda")
    assert.equal("cuda", y:device())
    assert.equal("cpu", x:device())
    assert.equal(y, y:to("cuda"))
    assert.equal(y, y:cuda())
    assert.equal(x, x:cpu())
    assert.same(x:totable(), y:totable())
    assert.same(x:totable(), y:cpu():totable())
    assert.equal("cuda", x:to(y):device())
    assert.equal("f64", x:to { dtype = "f64", device = "cuda" }:dtype())
    assert.equal("cuda", T.zeros(2, { device = "cuda" }):device())
    assert.equal("cuda", T.tensor({ 1, 2 }, { device = "cuda" }):device())
    assert.equal("cuda", T.ones_like(y):device())
    for _, dtype in ipairs { "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "bool" } do
      near.same_bits(x:to(dtype):cuda():cpu(), x:to(dtype))
    end
    near.same_bits(x:t():cuda():cpu(), x:t():contiguous())
    assert.equal(0, T.zeros(0, 3):cuda():cpu():numel())
  end)

  it("are read by item, get, totable, to_string, print, ==, #", function()
    local y = T.tensor({ 1.5, 2, 3 }, { device = "cuda" })
    assert.equal(6.5, y:sum():item())
    assert.equal(2.0, y:get(2))
    y:set(2, 7)
    assert.equal(7.0, y:get(2))
    assert.equal(3, #y)
    assert.is_true(y:equal(T.tensor { 1.5, 7, 3 }:cuda()))
    assert.truthy(tostring(y):find("cuda", 1, true))
    assert.equal(T.tensor { 1.5, 7, 3 }:to_string(), y:to_string())
    assert.is_true(y[1] < y[2])
  end)

  it("have a switch for reproducible libraries, on at first", function()
    assert.is_true(T.deterministic())
    assert.is_false(T.deterministic(false))
    assert.is_false(T.cuda.deterministic())
    assert.is_true(T.deterministic(true))
    assert.is_true(T.cuda.deterministic())
  end)

  it("mix with numbers and 0-d CPU tensors, and with nothing else from there", function()
    local y = T.ones(2, 3, { device = "cuda" })
    near.near((y * 2 + T.tensor(1)):cpu(), 3)
    near.near((1 - y):cpu(), 0)
    local text = near.fails("add: x is f32[2,3] on cuda, y is f32[2,3] on cpu", function() return y + T.ones(2, 3) end)
    assert.truthy(text:find('y:to("cuda")', 1, true))
    near.fails("on cpu", function() return T.ones(3, 2):matmul(y) end)
    near.fails("on cpu", function() return nn.F.linear(y, T.ones(4, 3)) end)
    near.fails("no device", function() return y:to("cuda:1") end)
    near.fails('no device "cuda:1"', function() return y:cuda(1) end)
    near.fails('no device "cuda:2"', function() return nn.Linear(2, 2):cuda(2) end)
    assert.equal("cuda", y:to("cuda:0"):cuda(0):device())
    near.fails("a device is wanted", function() return T.zeros(2, { device = "gpu" }) end)
    local x = T.zeros(2, 3)
    x:copy_(y)
    near.near(x, 1)
    y:copy_(T.full({ 2, 3 }, 4.0))
    near.near(y:cpu(), 4)
    assert.equal("cuda", y[T.tensor({ 2, 1 }, { dtype = "i64" })]:device())
  end)

  it("keep views, versions and gradients", function()
    local w = T.randn(3, 4, { device = "cuda" }):requires_grad_()
    local v = w:view(4, 3):t()
    assert.is_true(v:shares_storage(w))
    local loss = (v * v):sum() + w:cpu():sum() -- a gradient that crosses
    loss:backward()
    assert.equal("cuda", w.grad:device())
    near.near(w.grad:cpu(), (w:detach():cpu() * 2 + 1))
    local x = T.ones(3, { device = "cuda" })
    local before = x:version()
    x:add_(1)
    x[1]:mul_(5)
    assert.is_true(x:version() > before)
    assert.same({ 10, 2, 2 }, x:totable())
    local a = T.ones(2, { device = "cuda" }):requires_grad_()
    local b = a * a
    b:mul_(3)
    b:sum():backward()
    near.near(a.grad:cpu(), 6)
    local saved = a * a
    T.no_grad(function() a:add_(1) end)
    near.fails("modified in place", function() saved:sum():backward() end)
  end)

  it("draw the CPU's random numbers", function()
    for _, draw in ipairs {
      function(o) return T.rand(1000, o) end, function(o) return T.randint(1, 99, { 77 }, o) end,
      function(o) return T.rand(33, { dtype = "f64", device = o.device }) end,
    } do
      T.manual_seed(7)
      local here = draw {}
      T.manual_seed(7)
      near.same_bits(draw { device = "cuda" }:cpu(), here)
    end
    T.manual_seed(7)
    local x = T.ones(1000)
    local here = nn.F.dropout(x, 0.3)
    T.manual_seed(7)
    near.same_bits(nn.F.dropout(x:cuda(), 0.3):cpu(), here)
  end)

  -- The same training on both devices.
  local function train(device, make)
    T.manual_seed(3)
    local net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)):to(device)
    local opt = make(net:parameters())
    local x, y = T.randn(20, 6):to(device), T.randint(1, 3, { 20 }):to(device)
    local last
    for _ = 1, 8 do
      local loss = nn.F.cross_entropy(net(x), y)
      opt:zero_grad()
      loss:backward()
      nn.utils.clip_grad_norm_(net:parameters(), 1.0)
      opt:step()
      last = loss:item()
    end
    return last, net, opt
  end

  it("train networks as the CPU does", function()
    for name, make in pairs {
      sgd = function(p) return optim.SGD(p, { lr = 0.1, momentum = 0.9, weight_decay = 1e-3 }) end,
      adam = function(p) return optim.Adam(p, { lr = 0.01, amsgrad = true }) end,
      adamw = function(p) return optim.AdamW(p, { lr = 0.01 }) end,
      rmsprop = function(p) return optim.RMSprop(p, { lr = 0.01, centered = true, momentum = 0.5 }) end,
    } do
      local a, b = train("cpu", make), train("cuda", make)
      assert.is_true(math.abs(a - b) < 1e-4, ("%s: %g on the CPU, %g on the device"):format(name, a, b))
    end
  end)

  it("step parameters that share memory one after the other, whatever their strides", function()
    local function stepped(where)
      local all = T.linspace(-1, 1, 24000):to(where)
      local columns = all:view(2, 12000):t()
      local params = { all, all:narrow(1, 101, 9000), columns:select(2, 2), columns, all }
      for i, x in ipairs(params) do
        local p = x:detach():requires_grad_()
        params[i], p.grad = p, T.full(x:shape(), i, { dtype = "f32" }):to(where)
      end
      -- Of two such steps on one element the order shows.
      optim.SGD(params, { lr = 0.5, weight_decay = 0.5 }):step()
      return all:cpu()
    end
    near.near(stepped("cuda"), stepped("cpu"), 1e-5)
  end)

  it("keep checkpoints that load across devices", function()
    local make = function(p) return optim.Adam(p, { lr = 0.01 }) end
    local _, net, opt = train("cuda", make)
    local path = os.tmpname()
    assert(T.save(path, net:state_dict()))
    local state = assert(T.load(path))
    local here = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
    here:load_state_dict(state)
    local there = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)):cuda()
    there:load_state_dict(state)
    assert.equal("cuda", there:parameters()[1]:device())
    local x = T.randn(2, 6)
    near.near(here(x), net(x:cuda()):cpu(), 1e-5)
    near.near(there(x:cuda()):cpu(), here(x), 1e-5)
    local fresh = make(there:parameters())
    fresh:load_state_dict(opt:state_dict())
    there(x:cuda()):sum():backward()
    fresh:step()
    os.remove(path)
  end)

  it("run in jitted functions and under vmap", function()
    local x = T.randn(4, 5)
    local f = T.jit(function(a) return (a * 2):relu():sum(1) end)
    near.near(f(x:cuda()):cpu(), f(x), 1e-6)
    local g = T.vmap(function(a) return (a * a):sum() end)
    near.near(g(x:cuda()):cpu(), g(x), 1e-6)
  end)

  it("report index values out of range and divisions by zero when they are waited for", function()
    local x = T.randn(3, 4, { device = "cuda" })
    local y = x:index_select(1, T.tensor({ 1, 9 }, { dtype = "i64", device = "cuda" }))
    local text = near.fails("index 9 is out of range: 1 to 3", function() return y:totable() end)
    assert.truthy(text:find("index_select", 1, true))
    near.near((x * 0):cpu(), 0) -- reported once; the session goes on
    local function whole(v) return T.tensor(v, { dtype = "i64", device = "cuda" }) end
    local z = whole { 1, 2 }:floor_divide(whole { 1, 0 })
    near.fails("integer division by zero", function() return z:cpu() end)
    local e = nn.Embedding(4, 2):cuda()
    near.fails("index 5", function() return e(T.tensor({ 5 }, { dtype = "i64", device = "cuda" })):cpu() end)
  end)
end)

describe("T.cuda", function()
  if not ok then
    pending("no device: " .. tostring(why))
    return
  end

  it("tells what there is", function()
    assert.is_true(T.cuda.is_available())
    assert.equal(1, T.cuda.device_count())
    assert.equal(0, T.cuda.current_device())
    assert.is_string(T.cuda.get_device_name())
    assert.is_true(T.cuda.get_device_capability() >= 8)
    local free, total = T.cuda.mem_get_info()
    assert.is_true(free > 0 and free <= total)
  end)

  it("counts memory", function()
    collectgarbage()
    T.cuda.reset_peak_memory_stats()
    local before = T.cuda.memory_allocated()
    local x = T.zeros(1000, 100, { device = "cuda" })
    assert.equal(before + 400384, T.cuda.memory_allocated()) -- rounded up to 512
    x:free()
    assert.equal(before, T.cuda.memory_allocated())
    assert.is_true(T.cuda.max_memory_allocated() >= before + 400000)
    T.cuda.empty_cache()
    assert.is_true(T.cuda.memory_stats().allocations > 0)
  end)

  it("refuses more than the limit, with the numbers, and goes on", function()
    T.cuda.set_memory_limit(T.cuda.memory_allocated() + (1 << 20))
    local text = near.fails("out of device memory", function() return T.zeros(1 << 20, { device = "cuda" }) end)
    assert.truthy(text:find("GiB wanted", 1, true))
    T.cuda.set_memory_limit(nil)
    assert.equal(1 << 20, T.zeros(1 << 20, { device = "cuda" }):numel())
  end)

  it("has streams and events", function()
    local s, a, b = T.cuda.Stream(), T.cuda.Event { enable_timing = true }, T.cuda.Event { enable_timing = true }
    a:record()
    local x = T.cuda.stream(s, function() return T.ones(10, { device = "cuda" }) * 2 end)
    s:synchronize()
    assert.is_true(s:query())
    b:record()
    b:synchronize()
    assert.is_true(a:elapsed_time(b) >= 0)
    near.near(x:cpu(), 2)
    near.fails("boom", function() T.cuda.stream(s, function() error "boom" end) end)
    near.fails("a function is wanted", function() T.cuda.stream(s, 3) end)
    T.cuda.synchronize()
  end)

  it("has a default device that errors do not leave behind", function()
    assert.equal("cpu", T.get_default_device())
    T.set_default_device("cuda")
    local x = T.zeros(2)
    local y = T.tensor { 1, 2 }
    T.set_default_device("cpu")
    assert.equal("cuda", x:device())
    assert.equal("cuda", y:device())
    pcall(T.zeros, -1, { device = "cuda" })
    assert.equal("cpu", T.get_default_device())
    near.fails("a device is wanted", T.set_default_device, "tpu")
  end)

  it("T.profile has the times of kernels, each once, in ops of others, compiled functions and backward", function()
    local x = T.randn(300, 40):cuda():requires_grad_()
    local p = T.profile(function()
      local y = x:exp()
      y:softmax(-1):sum():backward()
    end)
    local all, here = 0, {}
    for _, e in ipairs(p.events) do all = all + e.gpu end
    for _, r in ipairs(p:rows()) do here[r.key] = r end
    assert.is_true(here.exp.gpu > 0 and here.softmax.gpu > 0 and here["softmax_bwd (backward)"].gpu > 0)
    assert.is_true(all <= p.time, all .. " of " .. p.time)
    for i = 2, #p:rows() do assert.is_true(p:rows()[i - 1].gpu >= p:rows()[i].gpu) end
    assert.truthy(tostring(p):find("of kernels on the GPU", 1, true))
    local first = tostring(p):match "[^\n]+"
    assert.truthy(first:find("GPU", 1, true), first)
    local z = T.rand(20, 20):cuda()
    local f = T.jit(function(a) return (a * 2 + 1):tanh():matmul(a) end)
    f(z)
    local q = T.profile(function() f(z) end)
    assert.is_true(q.events[1].gpu > 0 and q.events[2].gpu > 0)
    local cpu = T.profile(function() return T.ones(3):exp() end)
    for _, e in ipairs(cpu.events) do assert.equal(0, e.gpu) end
    assert.falsy(tostring(cpu):find("GPU", 1, true))
    local path = os.tmpname()
    p:trace(path)
    local file = assert(io.open(path))
    assert.truthy(file:read("a"):find '"gpu_us":%d')
    file:close()
    os.remove(path)
  end)

  it("keeps its switches", function()
    assert.is_false(T.cuda.allow_tf32(true))
    assert.equal("high", T.get_float32_matmul_precision()) -- one and the same
    assert.is_true(T.cuda.allow_tf32(false))
    assert.equal("highest", T.get_float32_matmul_precision())
    assert.is_true(T.cuda.deterministic())
  end)
end)
