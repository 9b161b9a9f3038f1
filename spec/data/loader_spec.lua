-- SPDX-License-Identifier: MIT
-- DataLoader: order, collation, seeds; the same batches with any number of workers, what travels, errors, loops that
-- are left, samplers.

local T = require "perilune"
local live = require "spec.support.live"
local near = require "spec.support.near"
local data = T.data
local eq, fails = near.near, near.fails

local function numbers(n) return T.arange(n):to("f32"), T.arange(n) * 10 end

-- All batches of some passes as text. Loaders are closed, so that no memory is in flight.
local function trace(loader, passes)
  local out = {}
  for _ = 1, passes or 1 do
    for x, r, i in loader do
      out[#out + 1] = ("%s|%s|%s"):format(table.concat(i:totable(), ","), table.concat(r:totable(), ","),
        x:sum():item())
    end
    out[#out + 1] = "end"
  end
  loader:close()
  return out
end

local function noisy(n)
  local scale = 10
  return data.Dataset { len = n or 23, get = function(_, i)
    return T.full({ 300 }, i * scale + 0.0), T.rand(1):item(), i
  end }
end

describe("a batch", function()
  it("is the loop's own: what is written into it does not reach the dataset", function()
    local x = T.ones(6, 2)
    local sets = { x, data.TensorDataset(x), data.TensorDataset(x, T.arange(6)), data.TensorDataset(x, x, x),
      data.Subset(data.TensorDataset(x), { 1, 2, 3 }), data.Dataset { len = 4, get = function(_, i) return x[i] end } }
    for i, set in ipairs(sets) do
      for _, o in ipairs { {}, { shuffle = true }, { batch_size = 2 }, { batch_size = 6, workers = 1 } } do
        local loader, batches = data.DataLoader(set, o), 0
        for a, b, c in loader do
          for _, t in ipairs { a, b or a, c or a } do t:mul_(2) end
          batches = batches + 1
        end
        loader:close()
        assert.is_true(batches > 0)
        assert.equal(12, x:sum():item(), "dataset " .. i)
      end
    end
  end)
end)

describe("workers", function()
  it("are as many as the loader says when a pass begins", function()
    local made = {}
    local loader = data.DataLoader(T.arange(8), { workers = 1, collate = function(list) return list[1] end,
      worker_init = function() end })
    local open = T.core.workers
    T.core.workers = function(n, ...)
      made[#made + 1] = n
      return open(n, ...)
    end
    for _, n in ipairs { 1, 1, 2, 1 } do
      loader.workers = n
      for _ in loader do end -- luacheck: ignore 542
    end
    T.core.workers = open
    loader:close()
    assert.same({ 1, 2, 1 }, made)
  end)

  it("give the same batches as none, in order, shuffled or not, with random numbers", function()
    for _, o in ipairs { {}, { shuffle = true }, { shuffle = true, drop_last = true, seed = 5 },
      { sampler = { 7, 3, 3, 20 }, seed = 2 }, { prefetch = 5 } } do
      local function run(workers)
        T.manual_seed(11)
        local opts = { batch_size = 4, workers = workers }
        for k, v in pairs(o) do if k ~= "prefetch" or workers > 0 then opts[k] = v end end
        return trace(data.DataLoader(noisy(), opts), 2), T.rand(1):item()
      end
      local want, after = run(0)
      for workers = 1, 3 do
        local got, then_ = run(workers)
        assert.same(want, got)
        assert.equal(after, then_)
      end
    end
  end)

  it("see what changed between passes, and only then are others", function()
    local plus, shift, starts = 1, T.tensor { 100.0 }, os.tmpname()
    local set = data.Dataset { len = 4, get = function(self, i) return i * self.scale + plus + shift:item() end }
    local function run(workers)
      set.scale, plus, shift = 1, 1, T.tensor { 100.0 }
      local init = workers > 0 and function()
        local f = assert(io.open(starts, "a"))
        f:write "x"
        f:close()
      end or nil
      local out, loader = {}, data.DataLoader(set, { batch_size = 2, workers = workers, worker_init = init })
      local function one()
        for x in loader do out[#out + 1] = x:totable() end
      end
      one() one()
      set.scale = 10
      one()
      plus = 2
      one()
      shift = T.tensor { 200.0 }
      one()
      loader.collate = function(list) return T.tensor(list):neg() end
      one()
      -- within a pass nothing changes: the loops below go on with what they began with
      for x in loader do
        out[#out + 1] = x:totable()
        if workers > 0 then set.scale = set.scale + 1 end
      end
      loader:close()
      return out
    end
    local want = run(0)
    assert.same(want, run(1))
    local f = assert(io.open(starts))
    assert.equal("xxxxx", f:read "a") -- not for the second pass
    f:close()
    os.remove(starts)
    -- nested passes over a dataset that changes: each has its own
    set.scale, plus, shift = 1, 0, T.tensor { 0.0 }
    local loader, seen = data.DataLoader(set, { batch_size = 2, workers = 1 }), {}
    for x in loader do
      seen[#seen + 1] = x:get(1)
      set.scale = set.scale * 10
      for y in loader do seen[#seen + 1] = y:get(1) end
    end
    assert.same({ 1, 10, 30, 3, 100, 300 }, seen)
    loader:close()
  end)

  it("make samples of the script's default dtype, also where it changes between passes", function()
    local set = data.Dataset { len = 3, get = function(_, i)
      return { i / 4, T.tensor { i / 3 }, T.zeros(2), T.rand(2), T.tensor(i) / 3,
        T.randn(1):mul(0):add(i), i } -- a device may draw another last digit
    end }
    local function run(workers)
      local out, loader = {}, data.DataLoader(set, { batch_size = 2, workers = workers, seed = 3 })
      for _, dtype in ipairs { "f64", "f32", "f16" } do
        T.default_dtype(dtype)
        for a, b, c, d, e, f, g in loader do
          for _, t in ipairs { a, b, c, d, e, f } do
            assert.equal(dtype, t:dtype())
            out[#out + 1] = t:totable()
          end
          assert.equal("i64", g:dtype())
        end
      end
      loader:close()
      return out
    end
    local ok, why = pcall(function()
      local want = run(0)
      assert.same(want, run(1))
      assert.same(want, run(2))
    end)
    T.default_dtype "f32"
    assert(ok, why)
  end)

  it("shuffle tensors as no workers do", function()
    local function run(workers)
      T.manual_seed(12)
      local out = {}
      local set = data.TensorDataset(T.arange(9))
      local loader = data.DataLoader(set, { batch_size = 4, shuffle = true, workers = workers })
      for _ = 1, 2 do for x in loader do out[#out + 1] = x:totable() end end
      loader:close()
      return out, T.rand(1):item()
    end
    local want, after = run(0)
    local got, then_ = run(2)
    assert.same(want, got)
    assert.equal(after, then_)
  end)

  it("draw new random numbers each pass, the same ones for the same seed", function()
    local one = trace(data.DataLoader(noisy(), { workers = 2, seed = 1 }), 2)
    local two = trace(data.DataLoader(noisy(), { workers = 1, seed = 1 }), 2)
    assert.same(one, two)
    assert.are_not.equal(one[1], one[25])
  end)

  it("carry tensors of all kinds, tables, text, numbers", function()
    local ds = data.Dataset { len = 3, get = function(_, i)
      return { name = "s" .. i, flag = i == 2, list = { i, { deep = i / 2 } }, small = T.arange(2),
        none = T.zeros(0, 3), big = T.ones(100, 7), turned = T.arange(60):view(6, 10):t(),
        wide = T.tensor({ 1.5 }):expand { 40 } }
    end }
    local seen = {}
    for s in data.DataLoader(ds, { workers = 2, collate = function(samples) return samples[1] end }) do
      seen[#seen + 1] = s.name
      local i = #seen
      assert.equal(i == 2, s.flag)
      assert.same({ i, { deep = i / 2 } }, s.list)
      assert.same({ 1, 2 }, s.small:totable())
      assert.same({ 0, 3 }, s.none:shape())
      assert.equal(700, s.big:sum():item())
      assert.is_true(s.turned:equal(T.arange(60):view(6, 10):t():cpu())) -- workers make tensors on the CPU
      assert.equal(60, s.wide:sum():item())
      s.big:add_(1) -- it is this state's own from now on
    end
    assert.same({ "s1", "s2", "s3" }, seen)
  end)

  it("share a dataset's tensors without a copy", function()
    local x = T.rand(1000, 1000)
    local loader = data.DataLoader(data.TensorDataset(x, T.arange(1000)), { workers = 2, batch_size = 1 })
    local before = T.memory().live
    local n = 0
    for a, i in loader do
      n = n + 1
      assert.equal(n, i:item())
      assert.equal(x:get(n, 1), a:get(1, 1))
      if n == 1 then assert.is_true(T.memory().live - before < 2 << 20) end
      if n == 40 then break end
    end
    loader:close()
  end)

  it("take functions with upvalues, classes, cycles, modules and subsets along", function()
    local Scaled = { __name = "Scaled" }
    Scaled.__index = function(self, key)
      if math.type(key) == "integer" then return self:sample(key) end
      return Scaled[key]
    end
    Scaled.__len = function(self) return self.n end
    local count = 0
    local function bump()
      count = count + 1
      return count
    end
    local function peek() return count end
    function Scaled:sample(i)
      local before = peek()
      bump()
      return { i * self.k, peek() - before, self.me == self and math.floor(1.5) or 0 }
    end
    local ds = setmetatable({ n = 6, k = 3 }, Scaled)
    ds.me = ds
    for a, b, c in data.DataLoader(data.Subset(ds, { 2, 4, 6 }), { workers = 1, batch_size = 3 }) do
      assert.same({ 6, 12, 18 }, a:totable())
      assert.same({ 1, 1, 1 }, b:totable()) -- bump and peek still share their variable
      assert.same({ 1, 1, 1 }, c:totable())
    end
    assert.equal(0, count) -- the worker's variable is another one
  end)

  it("say what cannot travel, and where it is", function()
    local function refuses(text, ds, opts)
      opts = opts or {}
      opts.workers = 1
      fails(text, function() for _ in data.DataLoader(ds, opts) do end end)
    end
    local co, f = coroutine.create(print), assert(io.open("/dev/null"))
    refuses("dataset.get (upvalue get) (upvalue co) cannot travel to a worker", data.Dataset { len = 1,
      get = function() return co end })
    refuses("dataset.files[1] cannot travel to a worker; make it in worker_init: it is a userdata (file)",
      { 1, files = { f } })
    refuses("collate (upvalue co) cannot travel", { 1, 2 }, { collate = function() return co end })
    refuses("it is a C function that no loaded module holds", { 1, f = string.gmatch("a", "a") })
    f:close()
    refuses("cannot travel back from a worker: it is a coroutine", { 1 },
      { collate = function() return coroutine.create(print) end })
    local deep = {}
    for _ = 1, 400 do deep = { deep } end
    refuses("nested deeper than 150", { 1, deep = deep })
  end)

  it("run worker_init, which may make what cannot travel", function()
    local loader = data.DataLoader({ 1, 2, 3 }, { workers = 2, worker_init = function(k, ds)
      local file = assert(io.open("/dev/zero"))
      return setmetatable({}, { __len = function() return #ds end,
        __index = function(_, i) return file:read(1):byte() + ds[i] + (k > 2 and 100 or 0) end })
    end })
    local got = {}
    for x in loader do got[#got + 1] = x:item() end
    assert.same({ 1, 2, 3 }, got)
    loader:close()
  end)

  it("raise a sample's error at the loop, with number and traceback", function()
    local function broken(i)
      if i == 5 then error("no such picture") end
      return i
    end
    local loader = data.DataLoader(data.Dataset { len = 8, get = function(_, i)
      local v = broken(i)
      return v
    end }, { workers = 2, batch_size = 2 })
    local n = 0
    local ok, message = pcall(function() for _ in loader do n = n + 1 end end)
    assert.is_false(ok)
    assert.equal(2, n)
    assert.truthy(message:find("^%S*loader_spec.lua:%d+: data.DataLoader: in a worker: sample 5: "), message)
    assert.truthy(message:find("no such picture", 1, true))
    assert.truthy(message:find("in upvalue 'broken'", 1, true))
    assert.is_nil(message:find("stack traceback.*stack traceback"))
    n = 0
    pcall(function() for _ in loader do n = n + 1 end end) -- the workers live on
    assert.equal(2, n)
    loader:close()
    fails("init is broken", function()
      for _ in data.DataLoader({ 1 }, { workers = 2, worker_init = function() error("init is broken") end }) do end
    end)
    fails("globals of the script are not there", function()
      for _ in data.DataLoader(data.Dataset { len = 1, get = function() return no_such_global() end }, -- luacheck: ignore
        { workers = 1 }) do end
    end)
    fails("sample 2 is nil", function()
      for _ in data.DataLoader(setmetatable({}, { __len = function() return 3 end, __index = function(_, i)
        return i ~= 2 and i or nil
      end }), { workers = 1 }) do end
    end)
  end)

  it("that would end the program are errors, and no batch is lost", function()
    for _, what in ipairs { "exit in get", "exit in worker_init", "exit in collate" } do
      local function leave(where) if what == "exit in " .. where then os.exit(0) end end
      local loader = data.DataLoader(data.Dataset { len = 6, get = function(_, i)
        if i == 5 then leave "get" end
        return i
      end }, { workers = 2, batch_size = 2, worker_init = function() leave "worker_init" end,
        collate = function(samples)
          leave "collate"
          return T.tensor(samples)
        end })
      local got = {}
      fails("os.exit in a worker would end the whole program", function()
        for b in loader do got[#got + 1] = b:get(1) end
      end)
      assert.same(what == "exit in get" and { 1, 3 } or {}, got)
      loader:close()
    end
  end)

  it("survive loops that are left, nested loops, closing and collecting", function()
    local function body()
      local loader = data.DataLoader(noisy(40), { workers = 2, batch_size = 2, prefetch = 3, seed = 1 })
      for _ in loader do break end -- luacheck: ignore 512
      for _, _, i in loader:iter() do
        if i:get(1) > 5 then break end
      end
      local firsts, inner = {}, 0
      for _, _, a in loader do
        firsts[#firsts + 1] = a:get(1)
        if #firsts == 3 then break end
        for _ in loader do inner = inner + 1 end
      end
      assert.same({ 1, 3, 5 }, firsts)
      assert.equal(40, inner)
      pcall(function() for _ in loader do error("mine") end end)
      loader:close()
      loader:close()
      local n = 0
      for _ in loader do n = n + 1 end
      assert.equal(20, n)
    end
    live.flat(T, body) -- the last one is left to the collector
  end)

  it("end soon when closed while they compute for ever", function()
    local loader = data.DataLoader(data.Dataset { len = 4, get = function(_, i)
      while i > 1 do i = i + 1 end
      return i
    end }, { workers = 2 })
    for _ in loader do break end -- luacheck: ignore 512
    local begin = os.time()
    loader:close()
    assert.is_true(os.time() - begin < 20)
  end)

  it("are threads that end: no orphan after close", function()
    if not io.open("/proc/self/status") then return pending("no /proc") end
    local function threads()
      for line in io.lines("/proc/self/status") do
        local n = line:match("^Threads:%s*(%d+)")
        if n then return tonumber(n) end
      end
    end
    -- a joined thread may be counted a moment longer
    local function settle(n)
      local begin = os.time()
      while threads() ~= n and os.time() - begin < 60 do T.ones(1000):sum() end
      assert.equal(n, threads())
    end
    local before = threads()
    local loader = data.DataLoader(noisy(), { workers = 3 })
    for _ in loader do break end -- luacheck: ignore 512
    assert.equal(before + 3, threads())
    loader:close()
    settle(before)
    do
      local other <close> = data.DataLoader(noisy(), { workers = 2 })
      for _ in other do break end -- luacheck: ignore 512
    end
    settle(before)
  end)

  it("refuse wrong options", function()
    fails("workers must be a non-negative integer", data.DataLoader, { 1 }, { workers = -1 })
    fails("workers must be 0 to 256", function() for _ in data.DataLoader({ 1 }, { workers = 1000 }) do end end)
    fails("say workers = 1 or more", data.DataLoader, { 1 }, { prefetch = 2 })
    fails("leave shuffle out", data.DataLoader, { 1 }, { shuffle = true, sampler = { 1 } })
    fails("leave sampler, shuffle", data.DataLoader, { 1 }, { batch_size = 2, batch_sampler = { { 1 } } })
  end)
end)

describe("samplers", function()
  local function order(loader)
    local out = {}
    for x in loader do for i = 1, x:size(1) do out[#out + 1] = x:get(i) end end
    return out
  end

  it("decide the order", function()
    local ds = data.TensorDataset(T.arange(10))
    assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }, order(data.DataLoader(ds, { sampler = data.SequentialSampler(ds) })))
    local random = data.RandomSampler(10, { seed = 3 })
    local a = order(data.DataLoader(ds, { sampler = random, batch_size = 3 }))
    local b = order(data.DataLoader(ds, { sampler = random, batch_size = 3 }))
    assert.are_not.same(a, b)
    assert.same(a, order(data.DataLoader(ds, { sampler = data.RandomSampler(10, { seed = 3 }) })))
    table.sort(a)
    assert.same(ds.tensors[1]:totable(), a)
    local more = data.RandomSampler(ds, { replacement = true, num_samples = 25 })
    assert.equal(25, #order(data.DataLoader(ds, { sampler = more })))
    fails("needs replacement = true", data.RandomSampler, 3, { num_samples = 4 })
    assert.same({ 5, 5, 2 }, order(data.DataLoader({ 1, 2, 3, 4, 5 }, { sampler = { 5, 5, 2 } })))
  end)

  it("are of what the dataset has at each pass", function()
    local list = { 1, 2, 3 }
    local of = { data.SequentialSampler(list), data.RandomSampler(list, { seed = 1 }),
      data.DistributedSampler(list, { num_replicas = 1, rank = 0 }) }
    of[4] = data.BatchSampler(of[2], 2)
    local loaders = { data.DataLoader(list, { shuffle = true }) }
    for k, s in ipairs(of) do
      loaders[#loaders + 1] = data.DataLoader(list, { [k < 4 and "sampler" or "batch_sampler"] = s })
    end
    for n = 3, 6 do
      list[n] = n
      for k, loader in ipairs(loaders) do
        local seen = order(loader)
        table.sort(seen)
        assert.same(list, seen)
        assert.equal(k == 5 and (n + 1) // 2 or n, #loader)
        if of[k - 1] then assert.truthy(tostring(of[k - 1]):find("of " .. #loader, 1, true)) end
      end
    end
    local some = data.RandomSampler(list, { num_samples = 5 })
    assert.equal(5, #some:indices():totable())
    list[5], list[6] = nil, nil
    fails("num_samples = 5 of 4 samples needs replacement", function() return #some end)
  end)

  it("weigh samples", function()
    local s = data.WeightedSampler({ 0, 3, 1 }, 4000, { seed = 1 })
    assert.equal(4000, #s)
    local count = { 0, 0, 0 }
    for _, i in ipairs(s:indices():totable()) do count[i] = count[i] + 1 end
    assert.equal(0, count[1])
    assert.is_true(math.abs(count[2] - 3000) < 150, count[2])
    local once = data.WeightedSampler(T.tensor { 1, 0, 2 }, 2, { replacement = false }):indices():totable()
    table.sort(once)
    assert.same({ 1, 3 }, once)
    fails("only 2 weights are positive", data.WeightedSampler, { 1, 0, 2 }, 3, { replacement = false })
    fails("must not be negative", data.WeightedSampler, { 1, -1 }, 1)
  end)

  it("make batches", function()
    local batches = data.BatchSampler(data.SequentialSampler(7), 3)
    assert.equal(3, #batches)
    local sizes = {}
    for x in data.DataLoader(data.TensorDataset(T.arange(7)), { batch_sampler = batches, workers = 2 }) do
      sizes[#sizes + 1] = x:size(1)
    end
    assert.same({ 3, 3, 1 }, sizes)
    assert.equal(2, #data.BatchSampler(data.SequentialSampler(7), 3, true))
    fails("must be a positive integer", data.BatchSampler, data.SequentialSampler(7), 0)
  end)
end)

describe("DataLoader", function()
  local function collect(loader)
    local xs, sizes = {}, {}
    for x in loader do
      sizes[#sizes + 1] = x:size(1)
      for i = 1, x:size(1) do xs[#xs + 1] = x:get(i) end
    end
    return xs, sizes
  end

  it("batches in order, the rest last or dropped", function()
    local x, y = numbers(7)
    local ds = data.TensorDataset(x, y)
    local loader = data.DataLoader(ds, { batch_size = 3 })
    assert.equal(3, #loader)
    local xs, sizes = collect(loader)
    assert.same({ 1, 2, 3, 4, 5, 6, 7 }, xs)
    assert.same({ 3, 3, 1 }, sizes)
    xs, sizes = collect(data.DataLoader(ds, { batch_size = 3, drop_last = true }))
    assert.same({ 1, 2, 3, 4, 5, 6 }, xs)
    assert.same({ 3, 3 }, sizes)
    assert.equal(2, #data.DataLoader(ds, { batch_size = 3, drop_last = true }))
    for a, b in loader do eq(b, (a * 10):totable()) end
    assert.same({}, (collect(data.DataLoader(data.TensorDataset(T.zeros(0, 2)), { batch_size = 2 }))))
  end)

  it("shuffles anew each pass, keeping rows together", function()
    T.manual_seed(1)
    local x, y = numbers(50)
    local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = 8, shuffle = true })
    local a, b = collect(loader), collect(loader)
    assert.are_not.same(a, b)
    table.sort(a)
    table.sort(b)
    assert.same(x:totable(), a)
    assert.same(x:totable(), b)
    for p, q in loader do eq(q, (p * 10):totable()) end
  end)

  it("repeats itself with a seed and leaves the global generator alone", function()
    local ds = data.TensorDataset((numbers(20)))
    local function loader() return data.DataLoader(ds, { batch_size = 4, shuffle = true, seed = 9 }) end
    local one, two = loader(), loader()
    T.manual_seed(5)
    local a1, a2 = collect(one), collect(one)
    local after = T.rand(1):item()
    assert.same(a1, (collect(two)))
    assert.same(a2, (collect(two)))
    assert.are_not.same(a1, a2)
    T.manual_seed(5)
    assert.equal(after, T.rand(1):item())
  end)

  it("takes anything with # and [], and joins samples", function()
    local list = {}
    for i = 1, 5 do list[i] = { T.full({ 2 }, i), i, "s" .. i, { flag = i > 2 } } end
    local seen = {}
    for x, n, s, t in data.DataLoader(list, { batch_size = 2 }) do
      seen[#seen + 1] = s
      assert.same({ #s, 2 }, x:shape())
      assert.equal("i64", n:dtype())
      assert.equal("bool", t.flag:dtype())
    end
    assert.same({ { "s1", "s2" }, { "s3", "s4" }, { "s5" } }, seen)
    local odd = setmetatable({}, { __len = function() return 3 end, __index = function(_,
      i) return i * 0.5 end })
    local got = {}
    for x in data.DataLoader(odd, { batch_size = 2, shuffle = true }) do got[#got + 1] = x:sum():item() end
    assert.equal(3.0, got[1] + got[2])
  end)

  it("collates by a function of one's own", function()
    local loader = data.DataLoader({ 1, 2, 3 }, { batch_size = 2, collate = function(s) return #s, s[1] end })
    local got = {}
    for n, first in loader do got[#got + 1] = n * 10 + first end
    assert.same({ 21, 13 }, got)
  end)

  it("may be looped over again after a break, and within itself", function()
    local loader = data.DataLoader(data.TensorDataset((numbers(6))), { batch_size = 2 })
    for x in loader do -- luacheck: ignore 512
      assert.equal(2, x:size(1))
      break
    end
    local pairs_seen = 0
    local firsts = {}
    for a in loader do
      firsts[#firsts + 1] = a:get(1)
      for _ in loader do pairs_seen = pairs_seen + 1 end
    end
    assert.equal(9, pairs_seen)
    assert.same({ 1, 3, 5 }, firsts)
  end)

  -- Batches that tell nothing of their loop: numbers, text, one object again and again.
  local buffer = {}
  local JOINS = {
    numbers = function(s) return s[1] end,
    text = function(s) return "batch " .. s[1] end,
    ["one object"] = function() return buffer end,
    ["equal numbers"] = function() return 1 end,
  }
  for name, join in pairs(JOINS) do
    for _, workers in ipairs { 0, 1 } do
      it(("nests and leaves loops over %s with %d workers"):format(name, workers), function()
        local loader <close> = data.DataLoader({ 1, 2, 3 }, { collate = join, workers = workers })
        local inner, outer = 0, 0
        for _ = 1, 20 do -- more loops that are left than it remembers
          for _ in loader do break end -- luacheck: ignore 512
        end
        for _ in loader do
          outer = outer + 1
          assert(outer < 9)
          local k = 0
          for _ in loader do
            inner = inner + 1
            assert(inner < 99)
          end
          for _ in loader do
            k = k + 1
            if k == 2 then break end
          end
        end
        assert.same({ 3, 9 }, { outer, inner })
      end)
    end
  end

  it("gives passes that are read in turns the samples of passes one by one", function()
    for _, workers in ipairs { 0, 2 } do
      local function loader()
        return data.DataLoader(noisy(9), { batch_size = 2, seed = 5, shuffle = true, workers = workers })
      end
      local want, got, at = {}, { {}, {}, {} }, {}
      do
        local l <close> = loader()
        for k = 1, 3 do
          want[k] = {}
          for _, r in l do table.insert(want[k], r:sum():item()) end
        end
      end
      local l <close> = loader()
      for k = 1, 3 do at[k] = l:iter() end
      for _ = 1, 5 do
        for k = 1, 3 do table.insert(got[k], select(2, at[k]()):sum():item()) end
      end
      assert.same(want, got)
    end
  end)

  it("refuses what would be batches of less than samples", function()
    local short = { indices = function() return { 1 } end }
    local sampler = setmetatable(short, { __len = function() return 3 end })
    fails("gave 1 samples where its # says 3", function()
      for _ in data.DataLoader({ 1, 2, 3 }, { batch_sampler = data.BatchSampler(sampler, 2) }) do end
    end)
    for _, samples in ipairs { { 1, true }, { true, 1 }, { 1, T.ones(1) }, { 1, "a" } } do
      fails("samples 1 and 2 of a batch are", data.default_collate, samples)
    end
  end)

  it("works on subsets without collecting samples", function()
    local x, y = numbers(10)
    local sub = data.Subset(data.TensorDataset(x, y), { 10, 1, 5 })
    local xs = {}
    for a, b in data.DataLoader(sub, { batch_size = 2 }) do
      eq(b, (a * 10):totable())
      for i = 1, a:size(1) do xs[#xs + 1] = a:get(i) end
    end
    assert.same({ 10, 1, 5 }, xs)
  end)

  it("refuses wrong options", function()
    fails("unknown option 'batchsize'", data.DataLoader, { 1 }, { batchsize = 2 })
    fails("did you mean 'batch_size'", data.DataLoader, { 1 }, { batchsize = 2 })
    fails("batch_size must be a positive integer, got 0", data.DataLoader, { 1 }, { batch_size = 0 })
    fails("say workers = 1", data.DataLoader, { 1 }, { prefetch = 2 })
    fails("something with #ds and ds[i], got 3", data.DataLoader, 3)
    fails("sample 2 of a batch has no field b", function()
      for _ in data.DataLoader({ { a = 1, b = 2 }, { a = 1 } }, { batch_size = 2 }) do end
    end)
  end)
end)
