-- SPDX-License-Identifier: MIT
-- Datasets, loaders, the MNIST family's files, and the progress bar.

local T = require "perilune"
local near = require "spec.support.near"
local data = T.data
local eq, fails = near.near, near.fails

local function numbers(n) return T.arange(n):to("f32"), T.arange(n) * 10 end

local function write(path, bytes)
  local f = assert(io.open(path, "wb"))
  f:write(bytes)
  f:close()
end

describe("a stream", function()
  local function stream(n)
    return data.IterableDataset { iter = function()
      local i = 0
      return function()
        i = i + 1
        if i <= n then return T.full({ 2 }, i), i end
      end
    end }
  end

  it("comes in batches, pass after pass", function()
    local loader = data.DataLoader(stream(5), { batch_size = 2 })
    for _ = 1, 2 do
      local got = {}
      for x, y in loader do
        got[#got + 1] = y:totable()
        assert.same({ #y, 2 }, x:shape())
      end
      assert.same({ { 1, 2 }, { 3, 4 }, { 5 } }, got)
    end
    local n = 0
    for _ in data.DataLoader(stream(5), { batch_size = 2, drop_last = true }) do n = n + 1 end
    assert.equal(2, n)
    for list in data.DataLoader(stream(2), { batch_size = 4, collate = function(s) return s end }) do n = n + #list end
    assert.equal(4, n)
    for _ in data.DataLoader(stream(0), { batch_size = 2 }) do n = n + 100 end
    assert.equal(4, n)
    assert.equal("DataLoader of a stream in batches of 2", tostring(loader))
  end)

  it("has no length and one reader", function()
    fails("it has no length", function() return #stream(2) end)
    fails("leave shuffle, sampler, batch_sampler and workers out", data.DataLoader, stream(2), { shuffle = true })
    fails("leave shuffle, sampler, batch_sampler and workers out", data.DataLoader, stream(2), { workers = 2 })
    fails("iter = function(self)", data.IterableDataset, {})
    fails("iter must return a function, got 3", function()
      return data.DataLoader(data.IterableDataset { iter = function() return 3 end }):iter()
    end)
  end)
end)

describe("StackDataset", function()
  it("puts samples side by side", function()
    local s = data.StackDataset(T.arange(3), { "a", "b", "c" })
    assert.equal(3, #s)
    assert.equal("b", s[2][2])
    local named = data.StackDataset { x = T.arange(3), y = { 4, 5, 6 } }
    assert.equal(6, named[-1].y)
    for batch in data.DataLoader(named, { batch_size = 3 }) do assert.same({ 4, 5, 6 }, batch.y:totable()) end
    fails("datasets of", data.StackDataset, { 1, 2 }, { 1 })
    fails("at least one dataset", data.StackDataset)
    fails("entry 2 must be a dataset, got 3", data.StackDataset, { 1 }, 3)
  end)
end)

describe("datasets", function()
  it("TensorDataset gives rows", function()
    local x, y = T.arange(6):view(3, 2), T.tensor { 7, 8, 9 }
    local ds = data.TensorDataset(x, y)
    assert.equal(3, #ds)
    eq(ds[2][1], { 3, 4 })
    eq(ds[-1][2], 9)
    eq(data.TensorDataset(x)[1], { 1, 2 })
    fails("sample 0 is not in 1..3 (they start at 1)", function() return ds[0] end)
    fails("sample 4 is not in 1..3", function() return ds[4] end)
    fails("argument 2 has 2 rows, argument 1 has 3", data.TensorDataset, x, T.ones(2))
    fails("at least one dimension", data.TensorDataset, T.tensor(1))
  end)

  it("Dataset is made of two functions", function()
    local ds = data.Dataset { len = 4, get = function(self, i) return T.tensor { i * self.k }, i end, k = 5 }
    assert.equal(4, #ds)
    eq(ds[3][1], 15)
    assert.equal(3, ds[3][2])
    fails("get must be a function", data.Dataset, { len = 3 })
  end)

  it("Subset and random_split", function()
    local ds = data.TensorDataset((numbers(10)))
    local sub = data.Subset(ds, { 9, 2 })
    assert.equal(2, #sub)
    eq(sub[1], 9)
    eq(sub:get_batch(T.tensor({ 2, 1 }, { dtype = "i64" })), { 2, 9 })
    fails("sample 11 is not in 1..10", data.Subset, ds, { 11 })
    local parts = data.random_split(ds, { 7, 3 }, { seed = 4 })
    local again = data.random_split(ds, { 0.7, 0.3 }, { seed = 4 })
    local seen = {}
    for k = 1, 2 do
      assert.same(parts[k].indices, again[k].indices)
      for _, i in ipairs(parts[k].indices) do seen[i] = (seen[i] or 0) + 1 end
    end
    assert.equal(7, #parts[1])
    for i = 1, 10 do assert.equal(1, seen[i]) end
    fails("the lengths sum to 9, the dataset has 10", data.random_split, ds, { 7, 2 })
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

describe("mnist files", function()
  local dir
  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    os.execute("mkdir " .. dir)
    local images, labels = {}, {}
    for i = 0, 3 * 28 * 28 - 1 do images[i + 1] = string.char(i % 256) end
    for i, l in ipairs { 0, 9, 4 } do labels[i] = string.char(l) end
    write(dir .. "/train-images-idx3-ubyte", "\0\0\8\3" .. string.pack(">I4I4I4", 3, 28,
      28) .. table.concat(images))
    write(dir .. "/train-labels-idx1-ubyte", "\0\0\8\1" .. string.pack(">I4", 3) .. table.concat(labels))
  end)
  after_each(function() os.execute("rm -r " .. dir) end)

  it("become images in [0, 1] and classes from 1", function()
    local ds = assert(data.mnist { root = dir })
    assert.equal(3, #ds)
    assert.same({ 3, 1, 28, 28 }, ds.images:shape())
    eq(ds.images:view(-1)[256], 1)
    eq(ds.images:view(-1)[52], 51 / 255)
    assert.same({ 1, 10, 5 }, ds.labels:totable())
    assert.equal("9", ds.classes[ds.labels:get(2)])
    local raw = assert(data.fashion_mnist { root = dir, dtype = "u8" })
    assert.equal("u8", raw.images:dtype())
    assert.equal("Ankle boot", raw.classes[10])
    os.execute("gzip " .. dir .. "/*")
    assert.is_true(assert(data.mnist { root = dir }).images:equal(ds.images))
  end)

  it("that are missing or broken are told, not raised", function()
    local ds, message, code = data.fashion_mnist { split = "test", root = dir }
    assert.is_nil(ds)
    assert.is_truthy(message:find("t10k-images-idx3-ubyte", 1, true))
    assert.is_truthy(message:find("dataset-fashion-mnist", 1, true))
    assert.equal("io", code)
    write(dir .. "/train-labels-idx1-ubyte", "\0\0\8\1" .. string.pack(">I4", 2) .. "\1\2")
    ds, message, code = data.mnist { root = dir }
    assert.is_nil(ds)
    assert.is_truthy(message:find("3 images", 1, true))
    assert.equal("format", code)
    write(dir .. "/train-labels-idx1-ubyte", "\0\0\8\1" .. string.pack(">I4", 3) .. "\1\2\10")
    ds, message = data.mnist { root = dir }
    assert.is_nil(ds)
    assert.is_truthy(message:find("a label is not in 0..9", 1, true))
    write(dir .. "/train-images-idx3-ubyte", "\0\0\8\3" .. string.pack(">I4I4I4", 3, 28, 28) .. "short")
    ds, message, code = data.mnist { root = dir }
    assert.is_nil(ds)
    assert.is_truthy(message:find("truncated", 1, true))
    assert.equal("format", code)
    fails("did you mean 'train'", data.mnist, { split = "trai" })
    fails("unknown option 'folder'", data.mnist, { folder = dir })
  end)

  it("of Fashion-MNIST are the real ones, where installed", function()
    local ds, message = data.fashion_mnist { split = "test", root = "/usr/share/datasets/fashion-mnist" }
    if not ds then return pending(message) end
    assert.equal(10000, #ds)
    for class = 1, 10 do assert.equal(1000, ds.labels:eq(class):sum():item()) end
    local mean = ds.images:mean():item()
    assert.is_true(math.abs(mean - 0.2868) < 1e-3, mean)
  end)
end)

describe("bar", function()
  -- A file that keeps what is written.
  local function sink()
    local out = { text = "" }
    function out:write(...)
      for _, s in ipairs { ... } do self.text = self.text .. s end
      return self
    end
    function out.flush() end
    return out
  end

  it("walks loaders, lists, numbers and iterators unchanged", function()
    local f = sink()
    local loader = data.DataLoader(data.TensorDataset(numbers(5)), { batch_size = 2 })
    local n = 0
    for x, y in T.bar(loader, { file = f }) do
      n = n + 1
      eq(y, (x * 10):totable())
    end
    assert.equal(3, n)
    local got = {}
    for i, v in T.bar({ "a", "b" }, { file = f }) do got[i] = v end
    assert.same({ "a", "b" }, got)
    for i in T.bar(3, { file = f }) do got[i] = i end
    assert.same({ 1, 2, 3 }, got)
    local t = { x = 1, y = 2 }
    got = {}
    local iter, state, control = pairs(t)
    for k, v in T.bar(iter, state, control, { file = f, title = "pairs" }) do got[k] = v end
    assert.same(t, got)
    got = {}
    for i, v in T.bar(ipairs { 7, 8 }) do got[i] = v end
    assert.same({ 7, 8 }, got)
    fails("an iterator, a list, a loader or a number is wanted", T.bar, true)
    fails("did you mean 'title'", T.bar, { 1 }, { titel = "x" })
  end)

  it("prints plain lines where there is no terminal", function()
    local f = sink()
    local bar = T.bar(20, { file = f, title = "epoch 1" })
    for i in bar do bar:set { loss = 1 / i } end
    local lines = {}
    for line in f.text:gmatch("[^\n]+") do lines[#lines + 1] = line end
    assert.equal(10, #lines)
    assert.is_truthy(lines[1]:find("^epoch 1  10%%  2/20  "))
    assert.is_truthy(lines[10]:find("^epoch 1 100%%  20/20  "))
    assert.is_truthy(lines[10]:find("loss 0.05", 1, true))
    assert.is_nil(f.text:find("\27", 1, true))
    assert.is_nil(f.text:find("\r", 1, true))
  end)

  it("ends its line when the loop is left early, and may be quiet", function()
    local f = sink()
    for i in T.bar(100, { file = f }) do
      if i == 3 then break end
    end
    assert.is_truthy(f.text:find("2/100", 1, true))
    assert.equal("\n", f.text:sub(-1))
    f = sink()
    for _ in T.bar(100, { file = f, quiet = true }) do end
    assert.equal("", f.text)
  end)
end)
