-- SPDX-License-Identifier: MIT
-- T.fit, T.early_stop, T.snapshot, T.restore: the loop does what the written-out loop does, and a run that is stopped
-- at any point, also by kill -9, goes on with the same bits.

local T = require "perilune"
local near = require "spec.support.near"
local nn, optim, data = T.nn, T.optim, T.data
local root = os.getenv("PERILUNE_ROOT") or "."
local build = os.getenv("PERILUNE_BUILD") or root .. "/build"

local function problem()
  T.manual_seed(7)
  local x = T.randn(96, 8)
  local y = x:matmul(T.randn(8, 3)):argmax(-1)
  return data.TensorDataset(x, y)
end

-- Fresh objects of a small run with everything that has a state.
local function setup(seed)
  local ds = problem()
  T.manual_seed(seed or 1)
  local net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
  local opt = optim.Adam(net:parameters(), { lr = 1e-2 })
  return {
    net = net, opt = opt, sched = optim.lr_scheduler.CosineAnnealingLR(opt, 40),
    train = data.DataLoader(ds, { batch_size = 16, shuffle = true }), valid = data.DataLoader(ds, { batch_size = 32 }),
  }
end

local function bits(o)
  local out = {}
  for name, t in pairs(o.net:state_dict()) do out[#out + 1] = name .. "=" .. t:contiguous():to_string() end
  for i, s in pairs(o.opt:state_dict().state) do
    out[#out + 1] = ("%d %d "):format(i, s.step) .. s.exp_avg:to_string() .. s.exp_avg_sq:to_string()
  end
  table.sort(out)
  return table.concat(out, "\n")
end

local function same(a, b) assert.is_true(a == b, "the bits differ") end

local function options_of(o, more)
  local a = { train = o.train, valid = o.valid, optimizer = o.opt, scheduler = o.sched, schedule = "batch", epochs = 4,
    metrics = { "accuracy", "f1" }, clip = 1, quiet = true }
  for key, v in pairs(more or {}) do a[key] = v end
  return a
end

local paths = {}
local function temporary()
  paths[#paths + 1] = os.tmpname()
  os.remove(paths[#paths])
  return paths[#paths]
end

describe("T.fit", function()
  it("refuses targets for which its own loss is no loss", function()
    local x, y = T.randn(8, 3), T.randn(8, 1)
    local function message(target, out, more)
      local net = nn.Linear(3, out)
      local o = { train = { { x, target } }, optimizer = optim.SGD(net:parameters(), { lr = 0.1 }), quiet = true }
      for key, v in pairs(more or {}) do o[key] = v end
      local ok, text = pcall(T.fit, net, o)
      return ok or text
    end
    for _, more in ipairs { {}, { jit = true } } do
      assert.truthy(message(y, 1, more):find("the targets are f32[8,1]: without loss = they are classes", 1, true))
      assert.truthy(message(y, 1, more):find("nn.F.mse_loss", 1, true))
      assert.truthy(message(T.ones(8, { dtype = "i64" }), 1, more):find(
        "one class, of which cross_entropy is always 0", 1,
        true))
      assert.is_true(message(T.ones(8, { dtype = "i64" }), 2, more))
      assert.is_true(message(y, 1, { loss = nn.F.mse_loss, jit = more.jit }))
    end
  end)

  it("says where it goes on, and its log goes on there", function()
    local path, log = temporary(), temporary()
    local lines, old = {}, print
    local function run(epochs, stop, kind)
      lines = {}
      rawset(_G, "print", function(text) lines[#lines + 1] = text end)
      local o = setup()
      local ok, err = pcall(T.fit, o.net, { train = o.train, optimizer = o.opt, epochs = epochs, bar = false,
        checkpoint = path, resume = true, callbacks = { assert(T.log[kind](log)), stop } })
      rawset(_G, "print", old)
      return ok, err
    end
    local function rows()
      local list = {}
      for line in io.lines(log) do list[#list + 1] = line:match "^(%d+)," or line:match '"epoch":(%d+)' or "head" end
      return table.concat(list, " ")
    end
    for kind, head in pairs { csv = "head ", jsonl = "" } do
      os.remove(path)
      os.remove(log)
      assert.is_true(run(2, nil, kind))
      assert.equal(("no checkpoint at %s yet: training begins"):format(path), lines[1])
      assert.equal(head .. "1 2", rows())
      -- killed between the log and the checkpoint: the row of epoch 3 is there, its checkpoint is not
      assert.is_false((run(3, function() error "killed" end, kind)))
      assert.equal(("resumed after epoch 2 (step 12) from %s"):format(path), lines[1])
      assert.equal(head .. "1 2 3", rows())
      assert.is_true(run(4, nil, kind))
      assert.equal(head .. "1 2 3 4", rows())
    end
    os.remove(path)
    assert.is_true(run(1, nil, "csv")) -- a run that begins begins its log, too
    assert.equal("head 1", rows())
  end)

  after_each(function()
    for _, p in ipairs(paths) do
      os.remove(p)
      os.remove(p .. ".best")
    end
    paths = {}
  end)

  it("does what the loop does that it replaces", function()
    local a, b = setup(), setup()
    T.manual_seed(5)
    local history, run = T.fit(a.net, options_of(a))
    T.manual_seed(5)
    local losses = {}
    for epoch = 1, 4 do
      local total, n = 0.0, 0
      b.net:train()
      for x, y in b.train do
        local loss = nn.F.cross_entropy(b.net(x), y)
        loss:backward()
        nn.utils.clip_grad_norm_(b.net:parameters(), 1)
        b.opt:step()
        b.opt:zero_grad()
        b.sched:step()
        total, n = total + loss:item() * x:size(1), n + x:size(1)
      end
      losses[epoch] = total / n
    end
    same(bits(a), bits(b))
    assert.same(losses, history:column("loss"))
    assert.equal(24, run.step)
    assert.is_true(history[4].loss < history[1].loss)
    b.net:eval()
    local x, y = problem().tensors[1], problem().tensors[2]
    assert.is_true(math.abs(history[4].valid_accuracy - T.metrics.accuracy(b.net(x), y)) < 1e-12)
    assert.is_true(math.abs(history[4].valid_loss - nn.F.cross_entropy(b.net(x), y):item()) < 1e-5)
    assert.truthy(tostring(history):find("epoch +loss +valid_loss +valid_accuracy +valid_f1 +lr +seconds"))
    assert.equal(history:best("valid_loss").valid_loss, math.min(table.unpack(history:column("valid_loss"))))
  end)

  it("ends after as many steps as it is told, also in the middle of a pass", function()
    local function steps_of(more)
      local o = setup()
      local history, run = T.fit(o.net, options_of(o, more))
      return { #history, run.step, run.epoch }, bits(o)
    end
    assert.same({ 4, 24, 4 }, (steps_of {}))
    assert.same({ 2, 8, 2 }, (steps_of { steps = 8 }))
    assert.same({ 1, 6, 1 }, (steps_of { steps = 8, epochs = 1 }))
    assert.same({ 0, 0, 0 }, (steps_of { steps = 0 }))
    assert.same({ 2, 4, 2 }, (steps_of { steps = 4, accumulate = 2 }))
    assert.equal(select(2, steps_of { epochs = 2 }), (select(2, steps_of { steps = 12 })))
    local o, x = setup(), T.rand(4, 8)
    local a = options_of(o, { steps = 9, valid = false, train = function()
      return function() return x, T.tensor({ 1, 2, 3, 1 }, { dtype = "i64" }) end
    end })
    a.epochs, a.valid = nil, nil -- an endless pass
    local history, run = T.fit(o.net, a)
    assert.same({ 1, 9 }, { #history, run.step })
    a.train, a.steps = function() return function() end end, 20
    local ok, message = pcall(T.fit, o.net, a)
    assert.is_false(ok)
    assert.truthy(message:find("train gave no batch in epoch 1, so its 20 steps cannot be reached", 1, true), message)
  end)

  it("takes batches from lists and functions, and measures on them without validation", function()
    local o = setup()
    local list = {}
    for x, y in o.train do list[#list + 1] = { x, y } end
    local h = T.fit(o.net, { train = list, optimizer = o.opt, epochs = 2, metrics = "accuracy", quiet = true })
    assert.is_true(h[2].accuracy > 0.3 and h[2].valid_accuracy == nil)
    local calls = 0
    local from_function = T.fit(o.net, { optimizer = o.opt, epochs = 2, quiet = true, train = function()
      calls = calls + 1
      return coroutine.wrap(function() for _, b in ipairs(list) do coroutine.yield(b[1], b[2]) end end)
    end })
    assert.same({ 2, 2 }, { #from_function, calls })
  end)

  it("weighs the losses of batches by their samples, also of inputs in a table", function()
    local x, y = T.randn(10, 3), T.randn(10, 1)
    local samples, Net = {}, nn.class "Net"
    for i = 1, 10 do samples[i] = { { x = x[i], twice = { x[i] * 2 } }, y[i] } end
    function Net:init() self.fc = nn.Linear(3, 1) end
    function Net:forward(input) return self.fc(input.x) end
    local net = Net()
    local batches = data.DataLoader(samples, { batch_size = 4 })
    local h = T.fit(net, { train = batches, valid = batches, optimizer = optim.SGD(net:parameters(), { lr = 0 }),
      quiet = true, loss = nn.F.mse_loss })
    local want = nn.F.mse_loss(net { x = x }, y):item()
    assert.is_true(math.abs(h[1].valid_loss - want) < 1e-6 and math.abs(h[1].loss - want) < 1e-6)
  end)

  it("adds gradients up over batches", function()
    local function trained(size, accumulate)
      local ds = problem()
      T.manual_seed(2)
      local net = nn.Linear(8, 3)
      local opt = optim.SGD(net:parameters(), { lr = 0.1 })
      local _, run = T.fit(net, { train = data.DataLoader(ds, { batch_size = size }), optimizer = opt, epochs = 2,
        accumulate = accumulate, quiet = true })
      return net.weight, run.step
    end
    local w, steps = trained(24, 1)
    local v, same_steps = trained(8, 3)
    assert.same({ 8, 8 }, { steps, same_steps })
    assert.is_true(w:allclose(v, { atol = 1e-6 }))
    local _, odd = trained(8, 5) -- 12 batches: groups of 5, 5 and 2
    assert.equal(6, odd)
  end)

  it("calls back in order, and stops when told", function()
    local o, seen = setup(), {}
    local watch = {}
    for _, event in ipairs { "on_start", "on_epoch_start", "on_epoch", "on_end" } do
      watch[event] = function(_, run) seen[#seen + 1] = event .. run.epoch end
    end
    function watch:on_batch(run) if run.step == 8 then run.stop = "enough" end end
    local last
    local h, run = T.fit(o.net, options_of(o, { callbacks = { watch, function(r) last = r.row end } }))
    assert.same({ "on_start0", "on_epoch_start1", "on_epoch1", "on_epoch_start2", "on_epoch2", "on_end2" }, seen)
    assert.same({ 8, 2, "enough" }, { run.step, #h, run.stop })
    assert.equal(h[2], last)
  end)

  it("takes a step of the script's own", function()
    local o = setup()
    local h = T.fit(o.net, options_of(o, { metrics = { mae = T.metrics.mae() }, step = function(run, x, y)
      local out = run.net(x)
      local target = nn.F.one_hot(y, 3):float()
      return (out - target):square():mean(), out, target
    end }))
    assert.is_true(h[4].loss < h[1].loss and h[4].valid_mae < 1)
  end)

  it("goes on from any batch with the same bits", function()
    local whole = setup()
    local early = { patience = 9, monitor = "valid_accuracy" }
    T.manual_seed(5)
    local full = T.fit(whole.net, options_of(whole, { callbacks = { T.early_stop(early) } }))
    for _, stop_at in ipairs { 1, 5, 6, 7, 12, 17, 23 } do
      local path, first = temporary(), setup()
      local settings = { path = path, every = 1 }
      T.manual_seed(5)
      local ok, err = pcall(T.fit, first.net, options_of(first, { checkpoint = settings, callbacks = {
        T.early_stop(early),
        { on_batch = function(_, run) if run.step == stop_at + 1 then error("power cut", 0) end end },
      } }))
      assert.is_false(ok)
      assert.equal("power cut", err)
      local second = setup(99) -- other weights, other random numbers
      second.train.epoch = 3
      local h, run = T.fit(second.net, options_of(second, { checkpoint = settings, resume = true,
        callbacks = { T.early_stop(early) } }))
      same(bits(whole), bits(second))
      assert.equal(24, run.step)
      for i, row in ipairs(full) do
        for _, name in ipairs { "loss", "valid_loss", "valid_accuracy", "valid_f1", "lr" } do
          assert.equal(row[name], h[i][name], name)
        end
      end
    end
  end)

  it("goes on with loaders that have a seed, and keeps the best weights", function()
    local path = temporary()
    local function seeded(epochs, resume)
      local o = setup()
      o.train = data.DataLoader(problem(), { batch_size = 16, shuffle = true, seed = 3 })
      local settings = { path = path, best = "valid_loss" }
      T.fit(o.net, options_of(o, { epochs = epochs, resume = resume, checkpoint = settings }))
      return bits(o)
    end
    local whole = seeded(4)
    os.remove(path)
    seeded(2)
    same(whole, seeded(4, true))
    same(whole, seeded(4, true)) -- nothing left to do
    local best = assert(T.load(path .. ".best"))
    assert.is_truthy(best["1.weight"])
  end)

  -- f(…), which ends by the power cut, or, without one, well: any other error would leave all nets as they were made.
  local function cut(at, f, ...)
    local ok, err = pcall(f, ...)
    if at then assert.equal("power cut", not ok and err) else assert.is_true(ok, err) end
  end

  it("goes on with samplers that count their passes, and generators", function()
    local kinds = {
      function(n) return { sampler = data.RandomSampler(n, { seed = 3 }) } end,
      function(n) return { batch_sampler = data.BatchSampler(data.RandomSampler(n, { seed = 3 }), 16) } end,
      function(_) return { shuffle = true, generator = T.Generator(3) } end,
    }
    for _, kind in ipairs(kinds) do
      local path = temporary()
      local function trained(epochs, resume, stop_at)
        local o, ds = setup(), problem()
        local opts = kind(#ds)
        if not opts.batch_sampler then opts.batch_size = 16 end
        o.train = data.DataLoader(ds, opts)
        local stop = { on_batch = function(_, run) if run.step == stop_at then error("power cut", 0) end end }
        cut(stop_at, T.fit, o.net, options_of(o, { epochs = epochs, resume = resume,
          checkpoint = { path = path, every = 1 }, callbacks = stop }))
        return bits(o)
      end
      local whole = trained(3)
      for _, at in ipairs { 4, 14 } do
        os.remove(path)
        trained(3, nil, at)
        same(whole, trained(3, true))
      end
      os.remove(path)
      trained(2)
      same(whole, trained(3, true))
    end
  end)

  it("goes on with loaders that have workers", function()
    local path = temporary()
    local function trained(stop_at, resume)
      T.manual_seed(3)
      local ds = data.Dataset { len = 60, get = function(_, i)
        return T.full({ 4 }, i / 60) + T.rand(4), i % 3 + 1 -- drawn in the worker
      end }
      local loader = data.DataLoader(ds, { batch_size = 8, shuffle = true, workers = 2 })
      local net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3))
      local o = { net = net, opt = optim.Adam(net:parameters()) }
      cut(stop_at, T.fit, net, { train = loader, optimizer = o.opt, epochs = 3, quiet = true, resume = resume,
        checkpoint = { path = path, every = 1 },
        callbacks = { on_batch = function(_, run) if run.step == stop_at then error("power cut", 0) end end } })
      loader:close()
      return bits(o)
    end
    local whole = trained()
    os.remove(path)
    trained(12)
    same(whole, trained(nil, true))
  end)

  it("compiled gives the bits of the plain loop, in every form", function()
    local forms = { { valid = false }, {}, { accumulate = 3 }, { autocast = "bf16" }, { scaler = true },
      { step = function(run, x, y)
        local z = run.net(x * 2)
        return run.loss_function(z, y), z, y
      end } }
    for _, more in ipairs(forms) do
      local runs, all = {}, {}
      for k, jit in ipairs { false, true, { mirror = "auto" } } do
        local o = setup(2)
        if more.valid == false then o.valid = nil end
        if more.scaler then more.scaler = T.GradScaler { init_scale = 512, growth_interval = 3 } end
        local a = options_of(o, more)
        if more.valid == false then a.valid = nil end
        a.jit = jit
        local history, run = T.fit(o.net, a)
        runs[k] = bits(o)
        all[k] = { history:column("loss"), more.valid == false and history:column("accuracy")
          or history:column("valid_accuracy"), more.scaler and more.scaler:get_scale() }
        if jit then
          assert.is_true(run.train_step.ntraces <= 2)
          assert.is_falsy(run.train_step.eager or run.valid_step.eager)
        end
      end
      same(runs[1], runs[2])
      same(runs[1], runs[3])
      assert.same(all[1], all[2])
    end
    local o = setup()
    for text, more in pairs { ["run.step is known outside of the graph alone"] = { jit = true,
      step = function(run, x, y) return run.loss_function(run.net(x), y) * run.step end },
      ["jit must be true, or a table of T.jit's options, got 3"] = { jit = 3 } } do
      local ok, err = pcall(T.fit, o.net, options_of(o, more))
      assert.is_false(ok)
      assert.is_truthy(err:find(text, 1, true), err)
    end
  end)

  it("compiled sees what callbacks change: fields of the network, adapters, what a loss has around itself", function()
    local Net = nn.class "Net"
    function Net:init() self.a, self.b, self.scale = nn.Linear(3, 4), nn.Linear(4, 1), 1.0 end
    function Net:forward(x) return self.b(self.a(x):tanh() * self.scale) end
    local function losses(change, jit)
      T.manual_seed(3)
      local o = { net = Net(), beta = 1.0 }
      for _, name in ipairs { "p", "q" } do nn.lora(o.net, { rank = 1, target = "all-linear", name = name }) end
      T.no_grad(function() for _, p in ipairs(o.net:parameters()) do p:uniform_(-0.2, 0.2) end end)
      local batch = { { T.randn(6, 3), T.randn(6, 1) } }
      local history = T.fit(o.net, { train = batch, valid = batch, epochs = 4, quiet = true, jit = jit,
        optimizer = T.optim.SGD(o.net:parameters(), { lr = 0.01 }),
        loss = function(y, t) return nn.F.mse_loss(y, t) * o.beta end,
        callbacks = { function(run) change(o, run.epoch, run) end } })
      return { history:column "loss", history:column "valid_loss" }
    end
    local seen = losses(function() end)
    for name, change in pairs {
      field = function(o, epoch) o.net.scale = ({ 3.0, 1.0, 0.5, 1.0 })[epoch] end,
      loss = function(o, epoch) o.beta = ({ 3.0, 1.0, 0.5, 1.0 })[epoch] end,
      other_loss = function(_, epoch, run) run.loss_function = epoch % 2 == 0 and nn.F.l1_loss or nn.F.mse_loss end,
      clip = function(_, epoch, run) run.options.clip = ({ 1e-3, 5.0, 1e-2, 5.0 })[epoch] end,
      adapter = function(o, epoch) nn.set_adapter(o.net, ({ "p", "q", { "p", "q" }, "p" })[epoch]) end } do
      local want = losses(change)
      assert.is_false(seen[2][3] == want[2][3], name)
      assert.same(want, losses(change, true), name)
    end
  end)

  it("trains in mixed precision, and goes on", function()
    local path = temporary()
    local function trained(epochs, resume)
      local o = setup()
      o.scaler = T.GradScaler { init_scale = 1024, growth_interval = 5 }
      local h = T.fit(o.net, options_of(o, { epochs = epochs, resume = resume, checkpoint = path, autocast = "bf16",
        scaler = o.scaler, step = function(run, x, y)
          local out = run.net(x)
          assert.equal("bf16", out:dtype())
          return nn.F.cross_entropy(out:float(), y), out, y
        end }))
      return bits(o), h, o.scaler:get_scale()
    end
    local whole, h, scale = trained(4)
    assert.is_true(h[4].loss < h[1].loss and scale > 1024)
    os.remove(path)
    trained(2)
    local again, _, scale2 = trained(4, true)
    same(whole, again)
    assert.equal(scale, scale2)
  end)

  it("comes through kill -9 with the same bits", function()
    local script, finished, checkpoint = temporary(), temporary(), temporary()
    local f = assert(io.open(script, "w"))
    f:write([[
local T = require "perilune"
local nn, optim, data = T.nn, T.optim, T.data
local checkpoint, finished = arg[1], arg[2]
T.manual_seed(1)
local x = T.randn(512, 16)
local ds = data.TensorDataset(x, x:matmul(T.randn(16, 4)):argmax(-1))
local net = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 4))
local opt = optim.Adam(net:parameters(), { lr = 1e-3 })
T.fit(net, { train = data.DataLoader(ds, { batch_size = 16, shuffle = true }), optimizer = opt, epochs = 20,
  quiet = true, checkpoint = { path = checkpoint, every = 7 }, resume = true })
assert(T.save(finished, { net = net:state_dict(), opt = opt:state_dict() }))
]])
    f:close()
    local function bytes()
      local g = assert(io.open(finished, "rb"))
      local s = g:read("a")
      g:close()
      os.remove(finished)
      return s
    end
    local command = ("'%s/bin/perilune' run '%s' -- '%s' '%s'"):format(build, script, checkpoint, finished)
    assert(os.execute(command))
    local want = bytes()
    os.remove(checkpoint)
    local kills, done = 0, false
    while not done and kills < 120 do
      local wait = 0.03 * 1.1 ^ kills -- longer each time: also a slow machine arrives, and one that is busy
      -- the shell's own message about the killed process goes nowhere
      os.execute(("{ %s & p=$!; sleep %.3f; kill -9 $p; wait $p; } 2>/dev/null"):format(command, wait))
      local g = io.open(finished, "rb")
      if g then
        g:close()
        done = true
      else
        kills = kills + 1
      end
    end
    assert.is_true(done and kills >= 2, kills .. " kills")
    assert.is_true(bytes() == want, "the weights differ")
    for line in io.popen(("ls '%s'* 2>/dev/null"):format(checkpoint)):lines() do
      if line ~= checkpoint then os.remove(line) end -- temporary files that kill -9 left
    end
  end)

  it("says what is wrong before it trains", function()
    local o = setup()
    for part, args in pairs {
      ["got a table; a dataset needs a loader: T.data.DataLoader(ds, {batch_size = 64})"] =
        { train = problem(), optimizer = o.opt },
      ["unknown option 'epoch' (allowed:"] = { train = o.train, optimizer = o.opt, epoch = 3 },
      ["optimizer must be one of optim.* or its name, got a table"] = { train = o.train, optimizer = {} },
      ["unknown metric 'acuracy'"] = { train = o.train, optimizer = o.opt, metrics = { "acuracy" } },
      ["the metric 'pairs' is no number"] = { train = o.train, optimizer = o.opt, metrics = {
        pairs = T.metrics.confusion_matrix { classes = 3 } } },
      ["unknown event 'on_epochs'"] = { train = o.train, optimizer = o.opt, callbacks = { { on_epochs = print } } },
      ["callback 1 must be a table"] = { train = o.train, optimizer = o.opt, callbacks = { 3 } },
      ["resume needs checkpoint"] = { train = o.train, optimizer = o.opt, resume = true },
      ["optimizer is missing"] = { train = o.train },
      ["scheduler is made with another optimizer"] = { train = o.train, optimizer = "Adam", scheduler = o.sched },
      ["has 60 steps, but with one an epoch it takes 10"] = { train = o.train, optimizer = o.opt, epochs = 10,
        scheduler = optim.lr_scheduler.OneCycleLR(o.opt, 0.1, { total_steps = 60 }) },
    } do
      local ok, message = pcall(function() return (T.fit(o.net, args)) end)
      assert.is_false(ok)
      assert.truthy(message:find(part, 1, true), message)
      assert.truthy(message:find("fit_spec.lua:", 1, true), message)
    end
    assert.error(function() T.fit({}, { train = o.train, optimizer = o.opt }) end)
    local own = { on_device = "cpu", epochs = 0 } -- a field of the callback's own
    function own:on_epoch() self.epochs = self.epochs + 1 end
    local late = { update = function(m) m.n = 3 end, reset = function(m) m.n = nil end } -- empty until it is updated
    function late:value() return self.n or T.zeros(0) end
    local h = T.fit(o.net, { train = o.train, optimizer = o.opt, epochs = 1, quiet = true, callbacks = own,
      metrics = { late = late } })
    assert.same({ 1, 3 }, { own.epochs, h[1].late })
  end)

  it("stops at a loss that is NaN, and reports files that are no checkpoints", function()
    local o, path = setup(), temporary()
    local ok, message = pcall(T.fit, o.net, options_of(o, { loss = function(out) return out:sum() * (0 / 0) end }))
    assert.is_false(ok)
    assert.truthy(message:find("the loss is NaN in epoch 1, batch 1", 1, true), message)
    assert(T.save(path, { w = T.ones(2) }))
    local none, why, code = T.fit(o.net, options_of(o, { checkpoint = path, resume = true }))
    assert.same({ nil, path .. ": not a checkpoint of T.fit", "format" }, { none, why, code })
    local f = assert(io.open(path, "w"))
    f:write("nonsense")
    f:close()
    none, why, code = T.fit(o.net, options_of(o, { checkpoint = path, resume = true }))
    assert.is_nil(none)
    assert.equal("format", code)
    assert.is_string(why)
  end)
end)

describe("T.early_stop", function()
  it("waits as long as it is told", function()
    local stop = T.early_stop { patience = 2 }
    local seen = {}
    for i, v in ipairs { 3, 2, 2.5, 1, 1, 1 } do seen[i] = stop(v) end
    assert.same({ false, false, false, false, false, true }, seen)
    assert.same({ 1, 4 }, { stop.best, stop.best_at })
    stop = T.early_stop { patience = 1, mode = "max", min_delta = 0.1 }
    assert.same({ false, false, true }, { stop(0.5), stop(0.65), stop(T.tensor(0.7)) })
    assert.is_true(T.early_stop(0)(1) == false)
    assert.error(function() stop("x") end)
    assert.error(function() T.early_stop { mode = "mix" } end)
  end)

  it("knows by the name which way is better, or asks", function()
    local ways = {
      min = "loss valid_loss val-loss error valid_mse rmse MAE nll valid.wer cer2 perplexity cross_entropy fid "
        .. "valid_kl bce_loss accuracy_loss",
      max = "accuracy valid_accuracy acc top_5 top5 valid_f1 f1 auc recall mean_iou r2 bleu valid/score psnr mAP "
        .. "balanced_accuracy cosine_similarity" }
    for mode, names in pairs(ways) do
      for name in names:gmatch "%S+" do
        local stop = T.early_stop { monitor = name, patience = 1 }
        assert.is_false(stop(1.0))
        assert.equal(mode == "min", not stop(0.5), name)
      end
    end
    for _, name in ipairs { "valid_mean", "gap", "accum", "weekly", "topology", "x" } do
      near.fails(("early_stop: is more of '%s' better, or less? Say so"):format(name), T.early_stop, { monitor = name })
      assert.is_false(T.early_stop { monitor = name, mode = "max" } (1))
      local o = setup()
      near.fails(("fit: checkpoint: is more of '%s' better"):format(name), T.fit, o.net,
        options_of(o, { checkpoint = { path = temporary(), best = name } }))
    end
    local o, path = setup(), temporary()
    local h = T.fit(o.net, options_of(o, { epochs = 3, checkpoint = { path = path, best = "gap", mode = "min" },
      callbacks = { { on_epoch = function(_, r) r.row.gap = ({ 3, 1, 2 })[r.epoch] end } } }))
    assert.equal(2, h:best("gap", "min").epoch)
    assert.equal(1, h:best("gap", "max").epoch)
    near.fails("history:best: is more of 'gap' better", h.best, h, "gap")
    near.fails("did you mean 'max'", h.best, h, "gap", "maxi")
    assert.is_not_nil(T.load(path .. ".best"))
    os.remove(path .. ".best")
  end)

  it("gives the best weights back", function()
    local o, best = setup(), nil
    local figures = { 0.5, 0.9, 0.8, 0.7, 0.6 }
    local h, run = T.fit(o.net, options_of(o, { epochs = 5, callbacks = {
      function(r)
        r.row.score = figures[r.epoch]
        if r.epoch == 2 then best = o.net[1].weight:clone() end
      end,
      T.early_stop { monitor = "score", patience = 2, restore = true },
    } }))
    assert.equal(4, #h)
    assert.equal("score has not got better for 2 epochs", run.stop)
    assert.is_true(o.net[1].weight:equal(best))
    assert.error(function() T.fit(o.net, options_of(o, { callbacks = T.early_stop { monitor = "scor" } })) end)
  end)
end)

describe("T.snapshot", function()
  it("keeps states, plain data and random numbers through a file", function()
    local path, o = temporary(), setup()
    T.fit(o.net, options_of(o, { epochs = 1 }))
    assert(T.save(path, T.snapshot { net = o.net, opt = o.opt, sched = o.sched, epoch = 3, note = "\0\255\\x" }))
    local next_numbers = T.rand(3)
    local p = setup(9)
    local rest = T.restore({ net = p.net, opt = p.opt, sched = p.sched }, assert(T.load(path)))
    assert.same({ epoch = 3, note = "\0\255\\x" }, rest)
    assert.is_true(T.rand(3):equal(next_numbers))
    same(bits(o), bits(p))
    assert.equal(o.sched.last_epoch, p.sched.last_epoch)
    assert.equal(o.opt.param_groups[1].lr, p.opt.param_groups[1].lr)
    local ok, message = pcall(T.restore, { net = p.net, other = p.opt }, T.load(path))
    assert.is_false(ok)
    assert.truthy(message:find("the state has nothing for other", 1, true), message)
    assert.error(function() T.snapshot { rng = 1 } end)
    assert.error(function() T.snapshot(1) end)
    assert.error(function() T.restore({ x = 1 }, {}) end)
    os.remove(path)
  end)
end)
