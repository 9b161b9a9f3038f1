-- SPDX-License-Identifier: MIT
-- T.memory_limit: eager programs under a limit of memory give the same bits, whatever is evicted and when.
local T = require "perilune"
local fuzz = require "spec.support.fuzz_grad"
local near = require "spec.support.near"
local live = require "spec.support.live"
local fails = near.fails
local nn, F = T.nn, T.nn.F

local stats = T.core.rematerialization
local MB = 1 << 20

-- f's results without a limit and in two ways with one: everything evicted before every op, and a limit that is
-- `room` bytes above what is in use. Results are lists of tensors, read as text so that every bit counts.
local function texts(list)
  local out = {}
  for i, t in ipairs(list) do out[i] = T.is_tensor(t) and t:describe() .. t:detach():to_string() or tostring(t) end
  return out
end

local function run(f, ...)
  T.manual_seed(7)
  return f(...)
end

local function limited(f, bytes, always, ...)
  live.collect()
  local limit <close> = T.memory_limit(T.memory().live + bytes)
  if always then stats "always" end
  local list = run(f, ...)
  local got = texts(list)
  local s = stats(not always)
  assert.same(got, texts(list)) -- what was evicted just now comes back
  assert.is_truthy(limit)
  return got, s
end

local function same(f, room, ...)
  local want = texts(run(f, ...))
  assert.same(want, (limited(f, 1 << 30, true, ...)))
  if not room then return end
  local got, s = limited(f, room, false, ...)
  assert.same(want, got)
  return s
end

describe("T.memory_limit", function()
  it("gives random differentiable programs the same bits, to second order, and leaves nothing", function()
    local n = tonumber(os.getenv "PERILUNE_FUZZ_REMAT") or 60
    for seed = 1, n do
      local f, inputs = fuzz.program(seed)
      local function grads()
        local xs = {}
        for i, x in ipairs(inputs) do xs[i] = x:clone():requires_grad_() end
        local y = f(table.unpack(xs))
        local first = T.grad_of({ y }, xs, { create_graph = true, allow_unused = true })
        local all, s = { y }, T.zeros({}, { dtype = "f64" })
        for i in ipairs(xs) do
          if first[i] then
            all[#all + 1] = first[i]
            s = s + (first[i] * xs[i]:detach():cos()):sum()
          end
        end
        if s.requires_grad then
          local second = T.grad_of({ s }, xs, { allow_unused = true })
          for i in ipairs(xs) do all[#all + 1] = second[i] end
        end
        return all
      end
      local ok, want = pcall(function() return texts(run(grads)) end)
      if ok then
        local got
        live.flat(T, function() got = limited(grads, 1 << 30, true) end)
        assert.same(want, got, "program " .. seed)
      end
    end
  end)

  it("stays below the limit, evicts, computes again, and leaves nothing", function()
    local function chain(n)
      local x = T.rand(1 << 16):requires_grad_()
      local h, kept = x, {}
      for i = 1, n do
        h = (h * 1.5):sin() + x
        kept[i] = h
      end
      h:sum():backward()
      kept[#kept + 1] = x.grad
      return kept
    end
    local want = texts(run(chain, 20))
    live.flat(T, function()
      live.collect()
      local before = T.memory().live
      local bytes = 14 << 18
      local _ <close> = T.memory_limit(before + bytes)
      T.reset_peak_memory()
      local kept = run(chain, 20)
      local s = stats()
      assert.is_true(T.memory().peak <= before + bytes + MB // 2)
      assert.is_true(s.evictions > 10 and s.recomputed > 10)
      assert.same(want, texts(kept))
    end)
  end)

  it("brings back chains of any length without recursion", function()
    live.flat(T, function()
      local n = 30000
      local first = T.rand(32)
      local h, all = first, {}
      local _ <close> = T.memory_limit(1 << 32)
      for i = 1, n do
        h = h + 1
        all[i] = h
      end
      local want = h:to_string()
      assert.is_true(stats(true).evicted >= n)
      assert.equal(want, all[n]:to_string())
      assert.is_true(stats().recomputed >= n)
      assert.equal(32, first:numel())
    end)
  end)

  it("what a graph writes through a view of an argument is written", function()
    local compiled = T.jit(function(x)
      x:add_(1)
      return x * 1
    end)
    local _ <close> = T.memory_limit(T.memory().live + MB)
    stats "always"
    for _ = 1, 3 do
      local x = T.rand(9, 20):t()
      local want = x + 1
      assert.is_true(compiled(x):equal(want))
      assert.is_true(x:equal(want))
    end
    stats(false)
  end)

  it("goes on after what could not be brought back for want of memory", function()
    local _ <close> = T.memory_limit(T.memory().live + MB)
    local a = T.rand(20000)
    local b = (a * 2):sin()
    stats(true)
    local failed = 0
    for room = 10000, 300000, 10000 do
      local inner <close> = T.memory_limit(T.memory().live + room)
      if not pcall(function() return b + 1 end) then failed = failed + 1 end
      stats(true)
      stats(true)
      assert.is_truthy(inner)
    end
    assert.is_true(failed > 0)
    assert.is_true(b:equal((a * 2):sin()))
  end)

  it("forgets the recipes of a loop that goes on and on", function()
    local _ <close> = T.memory_limit(1 << 32)
    local h = T.rand(32)
    for _ = 1, 60000 do h = h * 0.99 end
    assert.is_true(stats().dead < 30000)
  end)

  it("knows nothing of small tensors and of what it cannot compute again", function()
    local _ <close> = T.memory_limit(1 << 32)
    local a = T.rand(16) * 2 -- 64 bytes
    assert.is_truthy(a)
    assert.equal(0, stats().values)
  end)

  it("is exact when tensors are written in place", function()
    same(function()
      local a = T.rand(64, 64)
      local b, c = a * 2, a:t():contiguous()
      local view = b[{ { 3, 9 } }]
      local d = b:exp()
      b:mul_(3)            -- a result with a recipe; d read what it was
      local e = view + 1   -- a view of the new contents
      view:add_(1)
      local f = b + c
      a:add_(5)            -- it has none: all that was made from it
      local g = a + b
      a[{ { 1, 2 } }] = 7
      a:set(3, 3, 1)
      b:copy_(a)
      c:zero_()
      local h = T.zeros(64, 64)
      T.add(a, b, { out = h })
      h:add_(h)
      return { a, b, c, view, d, e, f, g, h, a:t() + h }
    end, 10 << 14)
  end)

  it("keeps the old contents of what is overwritten while evicted tensors need them", function()
    local _ <close> = T.memory_limit(1 << 32)
    local w = T.rand(1000)
    local copy = w:clone()
    local old = w:detach():clone()
    local y = copy * 2
    local z = w:exp()
    stats(true)
    w:zero_()
    copy:fill_(3)
    assert.is_true(y:equal(old * 2))
    assert.is_true(z:equal(old:exp()))
    assert.equal(0, w:sum():item())
  end)

  it("views share the fate of their storage", function()
    same(function()
      local base = T.rand(40, 50) + 1
      local views = { base:t(), base[2], base[{ {}, { 3, 40 } }], base:reshape(2000) }
      views[5] = base:unsqueeze(1):expand(3, 40, 50)
      for i = 1, #views do views[#views + 1] = views[i] * 1 end
      stats(false)
      views[#views + 1] = views[4][{ { 5, 1000 } }]
      return views
    end, 20 << 14)
  end)

  it("draws the same random numbers again, from the default generator and from others", function()
    same(function()
      local g = T.Generator(5)
      local x = T.rand(4000)
      local a = F.dropout(x, 0.5)
      local b = g:run(function() return F.dropout(x, 0.3) + T.randn(4000) end)
      local c = T.rand(4000, { generator = g })
      local y = T.randn(4000) * x
      T.manual_seed(99)
      return { a, b, c, y, T.randperm(200), T.rand(5), a + b, g:get_state() }
    end, 120 << 10)
  end)

  it("trains nets with norms, attention, dropout and checkpoints to the same bits", function()
    local function train()
      local net = nn.Sequential(nn.Conv2d(3, 8, 3, { padding = 1 }), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3), nn.Dropout(0.2), nn.GELU(), nn.Flatten(), nn.Linear(288, 32), nn.LayerNorm(32),
        nn.Linear(32, 10))
      local opt = T.optim.Adam(net:parameters(), { lr = 1e-2 })
      local losses = {}
      for _ = 1, 4 do
        local x, y = T.randn(4, 3, 16, 16), T.randint(1, 10, { 4 })
        opt:zero_grad()
        local loss = F.cross_entropy(net(x), y)
        loss:backward()
        nn.utils.clip_grad_norm_(net:parameters(), 1)
        opt:step()
        losses[#losses + 1] = loss:detach()
      end
      for _, p in ipairs(net:parameters()) do losses[#losses + 1] = p losses[#losses + 1] = p.grad end
      for _, b in pairs(net:state_dict()) do if T.is_tensor(b) then losses[#losses + 1] = b:sum() end end
      return losses
    end
    same(function() -- the order of state_dict does not matter
      local list = train()
      return { table.unpack(list, 1, 20) }
    end, 1 << 20)
    same(function()
      local x = T.randn(2, 10, 16):requires_grad_()
      local w = T.randn(16, 16):requires_grad_()
      local h = T.checkpoint(function(a) return F.dropout((a:matmul(w)):tanh(), 0.4) end, x)
      local q = h:view(2, 10, 2, 8):transpose(2, 3)
      local y = F.scaled_dot_product_attention(q, q, q, { is_causal = true })
      y:sum():backward()
      return { h, y, x.grad, w.grad }
    end, 64 << 10)
  end)

  it("works with jit, custom rules, keys, vmap and saved-tensor hooks", function()
    local square = T.custom { name = "square", forward = function(ctx, x) ctx:save(x) return x * x end,
      backward = function(ctx, g) return g * ctx:saved() * 2 end }
    local fast = T.jit(function(a, b) return (a * b + 1):tanh():sum(1), a - b end)
    same(function()
      local x = T.randn(50, 20):requires_grad_()
      local a, b = x * 2, x:exp()
      local s, d = fast(a, b)
      local y = square(s * 1.5):sum() + d:sum()
      y:backward()
      local key = T.GradKey()
      local z = T.randn(50, 20)
      key:attach(z, function() end)
      local v = T.vmap(function(r) return r:softmax(1) * r end)(z * 2)
      local g
      key:backward(v:sum())
      local packed = T.saved_tensors({ pack = function(t) return t * 1 end, unpack = function(t) return t end },
        function() return T.grad(function(u) return (u * u):exp():sum() end)(z * 0.1) end)
      g = packed
      return { a, b, s, d, y, x.grad, v, g }
    end, 200 << 10)
  end)

  it("reads evicted tensors in every way", function()
    local path = os.tmpname()
    local _ <close> = T.memory_limit(1 << 32)
    local x = T.arange(1, 100)
    local function fresh() local y = x * 1 stats(true) return y end
    assert.equal(42, fresh():get(42))
    assert.equal(100, fresh()[100]:item())
    assert.equal(7, fresh():totable()[7])
    assert.equal(x:to_string(), fresh():to_string())
    assert.equal(tostring(x), tostring(fresh()))
    assert.equal(100, fresh():clone():get(100))
    assert.equal(5050, fresh():sum():item())
    assert.is_true(T.save(path, { y = fresh(), z = fresh()[{ { 3, 60 } }] }))
    local back = T.load(path)
    assert.is_true(back.y:equal(x) and back.z:equal(x[{ { 3, 60 } }]))
    assert.is_true(T.save_npy(path, fresh()))
    assert.is_true(T.load_npy(path):equal(x))
    os.remove(path)
    local y = fresh()
    y:set(1, 9)
    assert.equal(9, y:get(1))
    assert.same({ 2, 3 }, fresh()[{ { 2, 3 } }]:totable())
    assert.equal(3, fresh():reshape(50, 2):get(2, 1))
    assert.is_true(x[fresh():to("i64")]:equal(x))
    assert.is_true(T.zeros(3):expand(fresh():sum():item() > 0 and 2 or 1, 3):size(1) == 2)
    assert.is_true(fresh() == nil or fresh():equal(x))
  end)

  -- A residual tower of bottlenecks. Its step gives the loss and the sum of the gradients, as one number.
  local function tower(blocks)
    local net, x = {}, T.randn(4, 16, 32, 32)
    for i = 1, blocks do
      net[i] = nn.Sequential(nn.Conv2d(16, 8, 1, { bias = false }), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, { padding = 1, bias = false }), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 1, { bias = false }), nn.BatchNorm2d(16))
    end
    return function()
      local h = x
      for _, block in ipairs(net) do h = F.relu(block(h) + h) end
      local loss = h:mean()
      loss:backward()
      local sum = loss:item()
      for _, block in ipairs(net) do
        for _, p in ipairs(block:parameters()) do
          sum = sum + p.grad:sum():item()
          p.grad = nil
        end
      end
      return sum
    end
  end

  it("trains a residual tower in two fifths of its peak without computing more than it did forward again", function()
    T.manual_seed(3)
    local step = tower(8)
    live.collect()
    local before = T.memory().live
    T.reset_peak_memory()
    local want = step()
    local peak = T.memory().peak - before
    live.collect()
    local bytes = before + peak * 2 // 5
    local _ <close> = T.memory_limit(bytes)
    T.reset_peak_memory()
    assert.equal(want, step())
    assert.is_true(T.memory().peak <= bytes + peak // 20)
    assert.is_true(stats().evictions > 20)
    assert.is_true(stats().recomputed <= 8 * 10) -- a block has ten ops
  end)

  it("does not let garbage that an evicted tensor is computed from stay during backward", function()
    live.flat(T, function()
      local w = T.randn(64, 64):requires_grad_()
      local _ <close> = T.memory_limit(1 << 32)
      collectgarbage "stop" -- the boxes of all that follows wait
      local h = w
      for _ = 1, 20 do h = (h:matmul(w) * 0.1):tanh() end
      local loss = h:sum()
      h = nil
      stats(true)
      loss:backward()
      local s = stats()
      collectgarbage "restart"
      assert.is_nil(h)
      assert.is_true(s.evicted <= 1) -- the loss
      assert.is_true(s.values <= 4)
    end)
  end)

  it("keeps no recipes of gradients, unless they will be differentiated again", function()
    local x = T.rand(1000):requires_grad_()
    local _ <close> = T.memory_limit(1 << 32)
    local function noted(create_graph)
      local kept, got
      local y = (x * 2):sin()
      y:register_hook(function(g) kept = g * 3 got = stats().values end)
      local loss = (y * y):sum()
      local before = stats().values
      loss:backward { create_graph = create_graph, retain_graph = true }
      assert.equal(1000, kept:numel())
      got = got - before
      x.grad = nil
      return got
    end
    assert.equal(0, noted(false))
    assert.is_true(noted(true) > 0)
  end)

  it("gives large tensors of any sizes, made and freed in any order, memory of their own", function()
    live.flat(T, function()
      local limit <close> = T.memory_limit(1 << 30)
      local at, kept = 7, {}
      local function draw(n)
        at = (at * 48271) % 2147483647
        return at % n + 1
      end
      local function check(t)
        if not t then return end
        local want = { t.value, t.value, t.value * t.n }
        assert.same(want, { t.x:min():item(), t.x:max():item(), t.x:sum():item() })
      end
      for i = 1, 300 do
        local k, n = draw(24), 200000 + draw(900000)
        check(kept[k])
        if kept[k] then kept[k].x:free() end
        local x = T.zeros(n, { dtype = "i32" })
        x:narrow(1, 1, n):fill_(i) -- what is written through a view stays in memory
        kept[k] = { x = x, n = n, value = i }
        if i % 50 == 0 then T.empty_cache() end
      end
      for k = 1, 24 do check(kept[k]) end
      assert.is_truthy(limit)
      if not os.getenv "PERILUNE_SANITIZE" or os.getenv "PERILUNE_SANITIZE" == "" then
        T.memory_limit(nil) -- pages that are still in use outlive the limit
        for k = 1, 24 do
          check(kept[k])
          if kept[k] then kept[k].x:free() end
        end
      end
    end)
  end)

  it("uses the pages of what is evicted again, and keeps few more than the limit", function()
    local function faults()
      local f = assert(io.open "/proc/self/stat")
      local fields = {}
      for w in f:read("a"):match("%) (.*)"):gmatch("%S+") do fields[#fields + 1] = tonumber(w) or w end
      f:close()
      return fields[8]
    end
    if not io.open "/proc/self/stat" or (os.getenv "PERILUNE_SANITIZE" or "") ~= "" then
      pending("page faults are counted on Linux, without sanitizers")
      return
    end
    live.collect()
    T.empty_cache()
    local bytes = T.memory().live + 48 * MB
    local _ <close> = T.memory_limit(bytes)
    local x, all = T.rand(1 << 21), {}
    for k = 1, 16 do all[k] = x:narrow(1, 1, 400000 + k * 99991) * k end
    local function pass()
      for _, y in ipairs(all) do y:sum() end
    end
    pass()
    local before, evicted = faults(), stats().evictions
    for _ = 1, 4 do pass() end
    assert.is_true(stats().evictions - evicted >= 20)
    assert.is_true(faults() - before < 1000) -- of 7,000 and more where each block is mapped for itself
    assert.is_true(T.memory().reserved <= bytes + 40 * MB)
  end)

  it("says who holds the memory where a limit cannot be met", function()
    local w = T.rand(100, 1000):requires_grad_()
    w:sum():backward()
    local held = T.rand(3000)
    live.collect()
    local _ <close> = T.memory_limit(T.memory().live + 100000)
    local ok, e = pcall(function() return w:t():matmul(w) end)
    assert.is_false(ok)
    local leaves, grads, read, rest = e:match("leaves that require gradients have (%d+), their %.grad (%d+), " ..
      "results that this op is computed from (%d+), and all else (%d+)")
    assert.same({ 400000, 400000, 0 }, { tonumber(leaves), tonumber(grads), tonumber(read) })
    assert.is_true(tonumber(rest) >= held:numel() * 4)
  end)

  it("says which op cannot be met, and everything goes on", function()
    live.flat(T, function()
      local x = T.rand(1000)
      live.collect()
      local _ <close> = T.memory_limit(T.memory().live + 40000)
      local ok, e = pcall(function() return x:unsqueeze(2):matmul(x:unsqueeze(1)) end)
      assert.is_false(ok)
      assert.matches("matmul: the memory limit of %d+ bytes cannot be met: %d+ more are needed, and nothing more " ..
        "can be evicted of the %d+ in use", e)
      assert.is_true((x * 2):equal(x + x))
      fails("memory_limit: 1000 bytes cannot be met", T.memory_limit, 1000)
      assert.is_true(T.memory_limit() > 1000)
    end)
    assert.is_nil(T.memory_limit())
  end)

  it("fails cleanly at every allocation, and gives the same bits afterwards", function()
    local x = T.rand(100)
    local function body()
      local limit <close> = T.memory_limit(1 << 32)
      local a = x * 2
      local b, c = a:sin(), a:exp()
      stats(true)
      local d = b + c
      a:add_(1)
      stats(true)
      x:mul_(1)
      assert.is_truthy(limit)
      return { a:to_string(), b:to_string(), c:to_string(), d:to_string() }
    end
    local want = body()
    local failed, n = 0, 0
    repeat
      T.core.fail_at(n)
      local ok, got = pcall(body)
      T.core.fail_at(-1)
      T.memory_limit(nil)
      if ok then assert.same(want, got) else failed = failed + 1 end
      n = n + 1
    until ok and n > 60
    assert.is_true(failed > 5)
    live.flat(T, body)
  end)

  it("gives back what was: scopes nest, and without a limit everything is there", function()
    local x = T.rand(1000)
    local y, z
    do
      local outer <close> = T.memory_limit "1 GiB"
      assert.equal(1 << 30, T.memory_limit())
      y = x * 2
      do
        local inner <close> = T.memory_limit "100 MB"
        assert.equal(100000000, T.memory_limit())
        z = y + 1
        stats(true)
        assert.is_truthy(inner)
      end
      assert.equal(1 << 30, T.memory_limit())
      assert.equal(2, stats().evicted)
      assert.is_truthy(outer)
    end
    assert.is_nil(T.memory_limit())
    assert.equal(0, stats().values)
    assert.is_true(z:equal(x * 2 + 1))
    for _, wrong in ipairs { 0, -5, 1.5, "much", "2 GG", true, {} } do
      fails("memory_limit: bytes", T.memory_limit, wrong)
    end
  end)
end)
