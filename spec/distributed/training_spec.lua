-- SPDX-License-Identifier: MIT
-- nn.parallel.DistributedDataParallel and data.DistributedSampler: the same training as in one process on the joined
-- batch, whatever is unused, frozen, accumulated, or of another dtype.

local T = require "perilune"
local D, nn = T.distributed, T.nn
local processes = require "spec.support.processes"

local missing = processes.missing()
local function several(name, f)
  it(name, function()
    if missing then return pending(missing) end
    f()
  end)
end

-- For programs: are tensors equal up to a tolerance?
local close = [[
local function close(want, got, what, tol)
  if want:shape()[1] ~= nil and want:numel() ~= got:numel() then error(what .. ": sizes", 2) end
  local d = (want:double() - got:double()):abs():max():item()
  if not (d <= (tol or 1e-6)) then error(("%s: differs by %g"):format(what, d), 2) end
end
]]

describe("data.DistributedSampler", function()
  it("shares a dataset out", function()
    local function share(n, world, opts)
      local seen, all = {}, {}
      for r = 0, world - 1 do
        local o = { num_replicas = world, rank = r }
        for k, v in pairs(opts or {}) do o[k] = v end
        local s = T.data.DistributedSampler(n, o)
        local list = s:indices()
        assert.equal(#s, #list)
        all[r + 1] = list
        for _, i in ipairs(list) do
          assert.is_true(i >= 1 and i <= n)
          seen[i] = (seen[i] or 0) + 1
        end
      end
      return seen, all
    end
    local seen, all = share(10, 3) -- 12 places: two come twice
    local twice = 0
    for i = 1, 10 do
      assert.is_true(seen[i] == 1 or seen[i] == 2)
      twice = twice + seen[i] - 1
    end
    assert.equal(2, twice)
    for r = 1, 3 do assert.equal(4, #all[r]) end
    seen = share(10, 3, { drop_last = true })
    local count = 0
    for _, n in pairs(seen) do
      assert.equal(1, n)
      count = count + n
    end
    assert.equal(9, count)
    assert.same({ { 1, 4, 7, 10 }, { 2, 5, 8, 1 }, { 3, 6, 9, 2 } }, select(2, share(10, 3, { shuffle = false })))
    assert.same({ 2, 2 }, (share(2, 4, { shuffle = false })))
  end)

  it("gives another order each epoch, the same everywhere", function()
    local function order(rank, epoch, seed)
      return T.data.DistributedSampler(8, { num_replicas = 2, rank = rank, seed = seed }):set_epoch(epoch):indices()
    end
    assert.same(order(0, 3), order(0, 3))
    assert.not_same(order(0, 3), order(0, 4))
    assert.not_same(order(0, 3), order(0, 3, 9))
    local joined = {}
    for r = 0, 1 do for _, i in ipairs(order(r, 5)) do joined[#joined + 1] = i end end
    table.sort(joined)
    assert.same({ 1, 2, 3, 4, 5, 6, 7, 8 }, joined)
    local ds = T.data.TensorDataset(T.arange(6))
    local s = T.data.DistributedSampler(ds, { num_replicas = 2, rank = 1, shuffle = false })
    local batches = {}
    for x in T.data.DataLoader(ds, { batch_size = 2, sampler = s }) do batches[#batches + 1] = x:totable() end
    assert.same({ { 2, 4 }, { 6 } }, batches)
    assert.equal("DistributedSampler of 3, 1 of 2", tostring(s))
  end)

  it("hears of T.fit's epochs, also in a batch sampler", function()
    local x, net = T.arange(32):float():view(32, 1), nn.Linear(1, 1)
    for _, key in ipairs { "sampler", "batch_sampler" } do
      local s, seen = T.data.DistributedSampler(32, { num_replicas = 2, rank = 0 }), {}
      local loader = T.data.DataLoader(x, { [key] = key == "sampler" and s or T.data.BatchSampler(s, 4) })
      T.fit(net, { train = loader, epochs = 2, quiet = true, optimizer = "SGD", step = function(run, rows)
        seen[run.epoch] = (seen[run.epoch] or "") .. " " .. table.concat(rows:reshape(-1):totable(), " ")
        return net(rows):sum() * 0
      end })
      assert.not_equal(seen[1], seen[2], key)
    end
  end)

  it("names what is wrong", function()
    for text, f in pairs {
      ["call T.distributed.init_process_group() first, or give num_replicas and rank"] = function()
        T.data.DistributedSampler(4)
      end,
      ["rank must be from 0 to 1, got 2"] = function() T.data.DistributedSampler(4, { num_replicas = 2, rank = 2 }) end,
      ["the epoch must be an integer, got 0.5"] = function()
        T.data.DistributedSampler(4, { num_replicas = 2, rank = 0 }):set_epoch(0.5)
      end,
    } do
      local ok, message = pcall(f)
      assert.is_false(ok)
      assert.truthy(message:find(text, 1, true), message)
    end
  end)
end)

describe("one process with DistributedDataParallel", function()
  before_each(function() D.init_process_group() end)
  after_each(function() D.destroy_process_group() end)

  it("trains as without it", function()
    T.manual_seed(1)
    local net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    local ddp = nn.parallel.DistributedDataParallel(net)
    local x = T.randn(5, 3)
    net(x):sum():backward()
    local want = net:parameters()[1].grad:clone()
    net:zero_grad()
    ddp(x):sum():backward()
    assert.is_true(want:equal(net:parameters()[1].grad))
    assert.truthy(next(ddp:state_dict()):find "^module%.")
    assert.equal(#net:parameters(), #ddp:parameters())
    assert.is_true(rawequal(ddp.module, net))
  end)

  it("names what is wrong", function()
    local DDP = nn.parallel.DistributedDataParallel
    for text, f in pairs {
      ["a network is wanted, got 3"] = function() DDP(3) end,
      ["no parameter of the network requires a gradient"] = function() DDP(nn.ReLU()) end,
      ["unknown option 'bucket_cap'"] = function() DDP(nn.Linear(1, 1), { bucket_cap = 3 }) end,
      ["bucket_cap_mb must be > 0"] = function() DDP(nn.Linear(1, 1), { bucket_cap_mb = 0 }) end,
      ["parameter b.weight requires a gradient and did not when the network was wrapped"] = function()
        local net = nn.Module()
        net.a, net.b = nn.Linear(1, 1), nn.Linear(1, 1):freeze()
        function net:forward(x) return self.b(self.a(x)) end
        local ddp = DDP(net)
        ddp(T.ones(1, 1)):sum():backward()
        net.b.weight:requires_grad_()
        ddp(T.ones(1, 1))
      end,
      ["a function that T.jit traces would not average gradients"] = function()
        local ddp = DDP(nn.Linear(1, 1))
        T.jit(function(x) return ddp(x) end)(T.ones(1, 1))
      end,
    } do
      local ok, message = pcall(f)
      assert.is_false(ok)
      assert.truthy(message:find(text, 1, true), message)
      assert.truthy(message:find("training_spec.lua:", 1, true), message)
    end
  end)
end)

describe("nn.SyncBatchNorm", function()
  several("gives what one process gives on the joined batch, whatever the shares", function()
    processes.good(2, close .. [[
      init()
      local first, share = ({ 1, 6 })[rank + 1], ({ 5, 3 })[rank + 1]
      for _, what in ipairs { "plain", "average", "bare", "batch", "second", "checkpoint" } do
        T.set_default_dtype "f64"
        local opts = { momentum = what ~= "average" and 0.1, affine = what ~= "bare",
          track_running_stats = what ~= "batch" }
        local function make()
          T.manual_seed(5)
          return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, opts), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3),
            nn.BatchNorm1d(3, { bias = false }))
        end
        local alone, net = make(), nn.SyncBatchNorm.convert_sync_batchnorm(make())
        if what == "plain" then net = net:clone() end
        local X, W = T.randn(8, 2, 4, 4) + 3, T.randn(8, 3)
        local x, w = X:narrow(1, first, share):clone(), W:narrow(1, first, share)
        X:requires_grad_() x:requires_grad_()
        local function loss(f, x, w)
          local y = f(x)
          if what ~= "second" then return (y * w):pow(2):sum() end
          return (y * w):sum() + T.grad_of(y:pow(3):sum(), x, { create_graph = true }):pow(2):sum()
        end
        local forward = what == "checkpoint" and function(v)
          return T.checkpoint(function(u) return net(u) end, v)
        end or net
        for _ = 1, 2 do
          alone:zero_grad() net:zero_grad() X.grad = nil x.grad = nil
          loss(alone, X, W):backward()
          loss(forward, x, w):backward()
          close(X.grad:narrow(1, first, share), x.grad, what .. ": of x", 1e-9)
          for i, p in ipairs(net:parameters()) do
            close(alone:parameters()[i].grad, D.all_reduce(p.grad:clone()), what .. ": of parameter " .. i, 1e-9)
          end
          for i, b in ipairs(net:buffers()) do close(alone:buffers()[i], b, what .. ": buffer " .. i, 1e-12) end
        end
        local before = net:state_dict()["2.running_mean"]
        before = before and before:clone()
        close(alone:eval()(X:detach()), net:eval()(X:detach()), what .. ": evaluated", 1e-12) -- each for itself
        assert(not before or before:equal(net:state_dict()["2.running_mean"]))
        T.set_default_dtype "f32"
      end
    ]])
  end)

  several("names what is wrong", function()
    processes.good(2, [[
      init()
      local a, b = nn.SyncBatchNorm(2), nn.SyncBatchNorm(2)
      assert(a(T.randn(6, 2):bfloat16()):dtype() == "bf16" and a(T.zeros(rank * 3, 2)):size(1) == rank * 3)
      raises("more than one value a channel is needed", a, T.randn(rank, 2))
      raises("a function that T.jit traces", T.jit(function(x) return a(x) end), T.randn(3, 2))
      raises("the ranks are in different calls", function()
        local x = T.randn(3, 2)
        if rank == 0 then a(x) b(x) else b(x) a(x) end
      end)
    ]])
  end)

  it("is batch norm without several processes", function()
    T.manual_seed(1)
    local x = T.randn(5, 3)
    local norm, sync = nn.BatchNorm1d(3), nn.SyncBatchNorm(3)
    assert.is_true(norm(x):equal(sync(x)) and norm.running_var:equal(sync.running_var))
    local Own = nn.class("Own", nn.BatchNorm1d)
    local net = nn.Sequential(nn.BatchNorm1d(3))
    local weight = net[1].weight
    assert.is_true(rawequal(net, nn.SyncBatchNorm.convert_sync_batchnorm(net)))
    assert.truthy(tostring(net[1]):find("SyncBatchNorm(3", 1, true))
    assert.is_true(rawequal(weight, net[1].weight))
    for text, f in pairs {
      ["got the class nn.BatchNorm1d; call it"] = function()
        nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d)
      end,
      ["a network is wanted, got 3"] = function() nn.SyncBatchNorm.convert_sync_batchnorm(3) end,
      ["a LazyBatchNorm1d does not know its features yet"] = function()
        nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.LazyBatchNorm1d()))
      end,
      ["Own is derived from BatchNorm1d"] = function() nn.SyncBatchNorm.convert_sync_batchnorm(Own(3)) end,
      ["process_group must be what T.distributed.new_group returned, got 3"] = function()
        nn.SyncBatchNorm(3, { process_group = 3 })
      end,
    } do
      local ok, message = pcall(f)
      assert.is_false(ok)
      assert.truthy(message:find(text, 1, true), message)
    end
  end)
end)

describe("several processes with DistributedDataParallel", function()
  several("train as one on the joined batch", function()
    processes.good(2, close .. [[
      init()
      local function make(seed)
        T.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3))
      end
      T.manual_seed(7)
      local X, Y = T.randn(16, 6), T.randint(1, 3, { 16 })
      for _, cap in ipairs { 25, 0.0005 } do -- one bucket, many
        local alone, net = make(1), make(1 + rank) -- ranks begin differently
        local ddp = nn.parallel.DistributedDataParallel(net, { bucket_cap_mb = cap })
        local a, b = optim.Adam(alone:parameters(), { lr = 0.01 }), optim.Adam(ddp:parameters(), { lr = 0.01 })
        local x, y = X:narrow(1, rank * 8 + 1, 8), Y:narrow(1, rank * 8 + 1, 8)
        for step = 1, 5 do
          a:zero_grad() nn.F.cross_entropy(alone(X), Y):backward() a:step()
          b:zero_grad() nn.F.cross_entropy(ddp(x), y):backward()
          for i, p in ipairs(net:parameters()) do
            if step == 1 then close(alone:parameters()[i].grad, p.grad, "gradient " .. i) end
          end
          b:step()
        end
        for i, p in ipairs(net:parameters()) do close(alone:parameters()[i], p, "parameter " .. i, 1e-5) end
        -- all ranks have the same bits
        local all = D.all_gather_object({}, net:parameters()[1]:detach():to_string())
        assert(all[1] == all[2])
      end
    ]])
  end)

  several("take gradients that are unused, frozen, accumulated, of two passes, of several dtypes", function()
    processes.good(2, close .. [[
      init()
      local Net = nn.class "Net"
      function Net:init()
        self.a, self.b, self.c = nn.Linear(2, 2, { bias = false }), nn.Linear(2, 2, { bias = false }), nn.Linear(2, 2)
        self.d = nn.Linear(2, 2, { bias = false }):to "f64"
        self.frozen = nn.Linear(2, 2):freeze()
        for _, p in ipairs(self:parameters()) do T.no_grad(function() p:fill_(1) end) end
      end
      function Net:forward(x, way)
        local y = self.frozen(x)
        if way == "b" then y = y + self.b(x) elseif way == "d" then y = y + self.d(x:double()):float() end
        return y + self.a(x)
      end
      local net = Net()
      local ddp = nn.parallel.DistributedDataParallel(net, { find_unused_parameters = true })
      local x = T.full({ 1, 2 }, rank + 1.0)
      -- b on rank 0 alone, c nowhere
      ddp(x, rank == 0 and "b" or nil):sum():backward()
      equal({ { 1.5, 1.5 }, { 1.5, 1.5 } }, net.a.weight.grad, "everywhere")
      equal({ { 0.5, 0.5 }, { 0.5, 0.5 } }, net.b.weight.grad, "on one rank")
      assert(net.c.weight.grad == nil and net.frozen.weight.grad == nil)
      -- f64 beside f32; two forwards, one backward
      ddp:zero_grad()
      local both = ddp(x, "d"):sum() + ddp(x * 2, "d"):sum()
      both:backward()
      equal({ { 4.5, 4.5 }, { 4.5, 4.5 } }, net.d.weight.grad, "f64")
      assert(net.d.weight.grad:dtype() == "f64")
      -- accumulation: two passes without exchange, then one with
      ddp:zero_grad()
      ddp:no_sync(function() ddp(x):sum():backward() end)
      equal(rank + 1, net.a.weight.grad:get(1, 1), "no_sync")
      do
        local _ <close> = ddp:no_sync()
        ddp(x):sum():backward()
      end
      equal(2 * (rank + 1), net.a.weight.grad:get(1, 1), "no_sync as a block")
      ddp(x):sum():backward()
      equal(4.5, net.a.weight.grad:get(1, 1), "three passes")
      -- a hook of the user's, added later, changes what is averaged
      ddp:zero_grad()
      net.a.weight:register_hook(function(g) return g * 10 end)
      ddp(x):sum():backward()
      equal(15, net.a.weight.grad:get(1, 1), "hook")
      -- T.grad_of exchanges nothing; nor does evaluation
      local g = T.grad_of(ddp(x):sum(), net.b.weight, { allow_unused = true })
      assert(g == nil)
      T.no_grad(function() ddp(x * (rank + 1)) end)
      -- backward that fails leaves nothing behind
      local bad = T.custom { name = "bad", forward = function(ctx, t) return t * 1 end,
        backward = function() error "no gradient" end }
      raises("no gradient", function() bad(ddp(bad(x:requires_grad_()))):sum():backward() end)
      ddp:zero_grad()
      ddp(x:detach()):sum():backward()
      equal(15, net.a.weight.grad:get(1, 1), "after a failure")
    ]])
  end)

  several("average what any backward adds to .grad, and say so where ranks are not in the same one", function()
    processes.good(2, close .. [[
      init()
      local DDP = nn.parallel.DistributedDataParallel
      local x = T.full({ 1, 2 }, rank + 1.0)
      local function make(cap)
        T.manual_seed(3)
        local net = nn.Sequential(nn.Linear(2, 2, { bias = false }), nn.Linear(2, 2, { bias = false }))
        return net, DDP(net, { bucket_cap_mb = cap })
      end
      -- what two ranks give, computed by one
      local function mean_of(f)
        local sum
        for r = 1, 2 do
          local net = nn.Sequential(nn.Linear(2, 2, { bias = false }), nn.Linear(2, 2, { bias = false }))
          net:load_state_dict((make(25)):state_dict())
          f(net, T.full({ 1, 2 }, r * 1.0), net)
          local g = {}
          for i, p in ipairs(net:parameters()) do g[i] = p.grad and p.grad / 2 + (sum and sum[i] or 0) or false end
          sum = g
        end
        return sum
      end
      local function check(what, f)
        for _, cap in ipairs { 25, 1e-6 } do -- one bucket, one for each parameter
          local net, ddp = make(cap)
          f(ddp, x, net)
          for i, g in ipairs(mean_of(f)) do
            local p = net:parameters()[i]
            assert((p.grad ~= nil) == (g ~= false), what)
            if g then close(g, p.grad, what .. " " .. i) end
          end
        end
      end
      check("chosen inputs", function(net, v, inner)
        net(v):square():sum():backward { inputs = { inner[2].weight } }
      end)
      -- a rule that asks for gradients of parameters, or runs a backward of its own
      local function inside(at, ask)
        return function(net, v, inner)
          local other = (inner[1].weight * inner[2].weight):sum()
          local rule = T.custom { name = "inside", forward = function(_, t) return t * 1 end, backward = function(_, g)
            ask(other, inner:parameters())
            return g
          end }
          local h = at == 1 and inner[1](v) or nil
          h = h and inner[2](rule(h)) or rule(net(v))
          local _ = at == 1 and net(v) -- forward of the wrapper says that this backward is averaged
          h:square():sum():backward()
        end
      end
      for at = 1, 2 do
        check("grad_of inside " .. at, inside(at, function(y, ps) T.grad_of(y, ps) end))
      end
      check("backward inside", inside(2, function(y) y:backward() end))
      check("GradManager", function(net, v, inner)
        local gm = T.GradManager():attach(inner:parameters())
        local _ <close> = gm:record()
        gm:backward(net(v):square():sum())
      end)
      -- a backward that fails on one rank: the next one of that rank meets this one of the other
      local net, ddp = make(25)
      if rank == 0 then
        local h = net[2].weight:register_hook(function() error "not here" end)
        raises("not here", function() ddp(x):sum():backward() end)
        h:remove()
      end
      raises("the ranks are not in the same backward", function() ddp(x):sum():backward() end)
    ]])
  end)

  several("share buffers, work with T.jit inside, in groups, and with bf16", function()
    processes.good(2, close .. [[
      init()
      T.manual_seed(rank)
      local net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
      local ddp = nn.parallel.DistributedDataParallel(net)
      for _ = 1, 3 do ddp(T.randn(8, 4)):sum():backward() end
      ddp(T.randn(8, 4))
      -- each forward begins with rank 0's statistics: after it they are what the rank saw
      local seen = D.all_gather_object({}, net[2].running_mean:detach())
      assert(not seen[1]:equal(seen[2]))
      D.broadcast(net[2].running_mean, 0)
      -- a jitted network inside
      T.manual_seed(3)
      local plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
      T.manual_seed(3)
      local inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
      local fast = nn.parallel.DistributedDataParallel(T.jit(inner))
      T.manual_seed(5)
      local x = T.randn(6, 4)
      for _ = 1, 3 do
        plain:zero_grad() inner:zero_grad()
        plain(x):square():mean():backward()
        fast(x:narrow(1, rank * 3 + 1, 3)):square():mean():backward()
        for i, p in ipairs(plain:parameters()) do close(p.grad, inner:parameters()[i].grad, "jit " .. i) end
      end
      -- a group of one exchanges nothing
      local mine = { D.new_group { 0 }, D.new_group { 1 } }
      local own = nn.Linear(1, 1, { bias = false })
      local solo = nn.parallel.DistributedDataParallel(own, { process_group = mine[rank + 1] })
      solo(T.full({ 1, 1 }, rank + 1.0)):sum():backward()
      equal(rank + 1, own.weight.grad:item(), "alone")
      -- half precision
      local half = nn.Linear(2, 2):to "bf16"
      local h = nn.parallel.DistributedDataParallel(half)
      h(T.full({ 1, 2 }, rank + 1.0):to "bf16"):sum():backward()
      equal(1.5, half.weight.grad:float():get(1, 1), "bf16")
      -- ranks whose networks differ
      local other = nn.Linear(2, 2 + rank)
      raises("the networks differ: here entry 1 is weight f32", nn.parallel.DistributedDataParallel, other)
    ]])
  end)

  several("run the example with one process's losses", function()
    if not T.data.fashion_mnist { split = "test" } then return pending "Fashion-MNIST is not installed" end
    local term = require "spec.support.terminal"
    local losses = {}
    for n = 1, 2 do
      local text, status = term.shell(("%s launch -n %d examples/data_parallel.lua --quick --epochs 1"):format(
        term.command, n))
      assert.equal(0, status, text)
      losses[n] = tonumber(text:match "mean loss ([%d.]+)")
    end
    assert.is_true(math.abs(losses[1] - losses[2]) < 2e-3, losses[1] .. " " .. losses[2])
  end)

  several("are told when a rank ends in the middle of training", function()
    local text, status = processes.run(2, [[
      init()
      local ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
      for step = 1, 3 do
        if rank == 1 and step == 2 then os.exit(0, true) end
        ddp(T.ones(1, 2)):sum():backward()
      end
    ]])
    assert.equal(1, status)
    assert.truthy(text:find("rank 0: script.lua:", 1, true), text)
    assert.truthy(text:find("all_reduce: rank 1 has ended", 1, true), text)
  end)

  several("train with T.fit: one progress bar, one report, one checkpoint, another order each epoch", function()
    local text = processes.good(2, [[
      init()
      for _ in T.bar(2, { title = "bar of " .. rank }) do end
      T.manual_seed(rank)
      local x = T.randn(32, 3)
      D.broadcast(x, 0)
      local net = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
      local ds = T.data.TensorDataset(x, x:sum(2, { keepdim = true }))
      local sampler = T.data.DistributedSampler(ds, { seed = 4 })
      local orders, indices = {}, sampler.indices
      function sampler:indices() orders[#orders + 1] = table.concat(indices(self), " ") return indices(self) end
      local history = T.fit(net, { train = T.data.DataLoader(ds, { batch_size = 4, sampler = sampler }), epochs = 30,
        optimizer = optim.Adam(net:parameters(), { lr = 0.1 }), loss = nn.MSELoss(), checkpoint = "fit.ckpt" })
      assert(#orders == 30 and orders[1] ~= orders[2])
      assert(history[30].loss < 1e-2, history[30].loss)
      local all = D.all_gather_object({}, net.module.weight:detach():to_string())
      assert(all[1] == all[2])
    ]])
    assert.truthy(text:find("bar of 0", 1, true), text)
    assert.is_nil(text:find("bar of 1", 1, true), text)
    assert.equal(1, select(2, text:gsub("epoch 30/30", "")), text)
  end)
end)
