-- SPDX-License-Identifier: MIT
-- Datasets of tensors, functions, streams, parts and stacks of others; MNIST's family, CIFAR-10, folders of images,
-- text.

local T = require "perilune"
local near = require "spec.support.near"
local data = T.data
local eq, fails = near.near, near.fails

local function numbers(n) return T.arange(n):to("f32"), T.arange(n) * 10 end

local dir
local function write(name, bytes)
  local f = assert(io.open(dir .. "/" .. name, "wb"))
  f:write(bytes)
  f:close()
end

local function fresh()
  dir = os.tmpname()
  os.remove(dir)
  os.execute("mkdir " .. dir)
end
local function clean() os.execute("rm -r " .. dir) end

describe("data.MapDataset", function()
  it("is made of others with a transform, too", function()
    local function ten(v) return v * 10 end
    local function one(_, i) return i end
    local x, y = T.arange(4), T.arange(4)
    local pairs_of = T.data.TensorDataset(x, y)
    local o = { transform = ten }
    local sub = T.data.Subset(pairs_of, { 3, 1 }, o)
    assert.equal(30, sub[1][1]:item())
    assert.equal(3, sub[1][2]:item())
    assert.equal(2, #T.data.Subset({ 1, 2 }, { 1, 2 }))
    assert.equal(0, #T.data.Subset({ 1, 2 }, {}))
    assert.equal(30, T.data.ConcatDataset({ 1, 2 }, { 3 }, o)[3])
    local stack = T.data.StackDataset({ 1, 2 }, { 3, 4 }, o)
    assert.same({ 20, 4 }, stack[2])
    assert.same({ 10, "b" }, T.data.Dataset { len = 1, get = function(_, i) return i, "b" end, transform = ten }[1])
    assert.is_false(pcall(function() -- a get that applies it itself does not do so twice without a word
      return T.data.Dataset { len = 1, get = function(self, i) return self.transform(i) end, transform = ten }[1]
    end))
    for a, b in T.data.DataLoader(sub, { batch_size = 2 }) do
      assert.is_true(a:equal(T.tensor({ 30, 10 }, "i64")) and b:equal(T.tensor({ 3, 1 }, "i64")))
    end
    local stream = T.data.IterableDataset { transform = ten, iter = function()
      local i = 0
      return function()
        i = i + 1
        if i <= 3 then return i, i end
      end
    end }
    for a, b in T.data.DataLoader(stream, { batch_size = 3 }) do
      assert.is_true(a:equal(T.tensor({ 10, 20, 30 }, "i64")) and b:equal(T.tensor({ 1, 2, 3 }, "i64")))
    end
    for what, f in pairs { -- and nothing of it is dropped without a word
      ["data.Subset: "] = function() T.data.Subset({ 1 }, { 1 }, { transfrom = ten }) end,
      ["data.ConcatDataset: "] = function() T.data.ConcatDataset({ 1 }, { transform = 3 }) end,
      ["data.StackDataset: samples by name"] = function() T.data.StackDataset({ a = { 1 } }, o) end,
      ["data.Dataset: transform changes what get gives"] = function()
        T.data.Dataset { len = 1, get = one, get_batch = ten, transform = ten }
      end,
      ["data.Dataset: transform must be"] = function() T.data.Dataset { len = 1, get = one, transform = 3 } end,
      ["data.IterableDataset: transform must be"] = function() T.data.IterableDataset { iter = ten, transform = 3 } end,
    } do
      local ok, message = pcall(f)
      assert.is_false(ok)
      assert.truthy(message:find(what, 1, true), message)
    end
  end)

  it("puts what a transform makes of a sample's first value in its place", function()
    local x, y = T.arange(6):float():view(3, 2), T.arange(3)
    local ds = T.data.TensorDataset(x, y, { transform = function(v) return v * 10 end })
    assert.equal(3, #ds)
    assert.is_true(ds[2][1]:equal(T.tensor { 30, 40 }) and ds[2][2]:item() == 2)
    assert.is_true(T.data.TensorDataset(x, { transform = T.neg })[3]:equal(T.tensor { -5, -6 }))
    local sum = 0
    for a, b in T.data.DataLoader(ds, { batch_size = 2 }) do sum = sum + a:sum():item() + b:sum():item() end
    assert.equal(216, sum)
    local text = assert(T.data.text { text = "to be or not", length = 3, transform = function(v) return v + 100 end })
    assert.equal(T.data.text { text = "to be or not", length = 3 }[1][1][1]:item() + 100, text[1][1][1]:item())
    assert.equal("o b", text.tokenizer:decode(text[1][2]))
    assert.equal(12, text.tokens:numel())
    for _, wrong in ipairs { { transform = 3 }, { transfrom = T.neg } } do
      local ok, message = pcall(T.data.TensorDataset, x, wrong)
      assert.is_false(ok)
      assert.truthy(message:find "data.TensorDataset: " and message:find "transform", message)
    end
  end)

  it("sends the samples of any dataset through a function, also in workers", function()
    local x, y = numbers(6)
    local function twice(a, b) return a * 2, b + 1, a end
    for _, of in ipairs { data.TensorDataset(x, y), { { x[1], y[1] } } } do
      local ds = data.MapDataset(of, twice)
      assert.equal(3, #ds[1])
      eq(ds[1][1], 2)
      assert.equal(11, ds[1][2]:item())
    end
    local ds = data.MapDataset(data.Subset(data.TensorDataset(x, y), { 6, 1 }), twice)
    for _, workers in ipairs { 0, 1 } do
      for a, b, c in data.DataLoader(ds, { batch_size = 2, workers = workers }) do
        eq(a, { 12, 2 })
        assert.same({ 61, 11 }, b:totable())
        eq(c, { 6, 1 })
      end
    end
    assert.equal(5, data.MapDataset({ 4 }, function(v) return v + 1 end)[-1])
    fails("argument 2 must be a function of a sample's values, got 3", data.MapDataset, { 1 }, 3)
    fails("a dataset", data.MapDataset, 3, print)
  end)
end)

describe("data.default_collate", function()
  it("drops no field of any sample", function()
    near.fails("sample 2 of a batch has a field 3, the first has none", data.default_collate, { { 1, 2 }, { 3, 4, 5 } })
    near.fails("sample 2 of a batch has no field 2, the first has", data.default_collate, { { 1, 2 }, { 3 } })
    near.fails("sample 3 of a batch has a field b", data.default_collate, { { a = 1 }, { a = 2 }, { a = 3, b = 1 } })
    near.fails("sample 2 of a batch has a field y", data.default_collate,
      { { a = { x = 1 } }, { a = { x = 1, y = 2 } } })
  end)
end)

describe("data.Standardizer", function()
  it("brings columns to mean 0 and deviation 1, and back", function()
    T.manual_seed(1)
    local x = T.randn(200, 3) * T.tensor { 1, 10, 0 } + T.tensor { 5, -3, 7 }
    local s = data.Standardizer(x)
    local z = s(x)
    near.near(z:mean(1), { 0, 0, 0 }, 1e-4)
    near.near(z:std(1, { correction = 0 }), { 1, 1, 0 }, 1e-4)
    assert.is_true(T.allclose(s:inverse(z), x, { atol = 1e-4 }))
    assert.is_true(T.allclose(s(x[1]), z[1])) -- one row, too
    local other = data.Standardizer(T.rand(2, 3))
    other:load_state_dict(s:state_dict())
    assert.is_true(other(x):equal(z))
    near.near(data.Standardizer(T.tensor { { 1, 0 / 0 }, { 3, 5 } }).mean, { 2, 5 })
    for _, dtype in ipairs { "f32", "f64" } do -- the mean of equal values is rounded
      local equal = T.full({ 3, 4 }, 0.1, { dtype = dtype }) * T.tensor({ 1, 3, 1e6, 0 }, { dtype = dtype })
      near.near(data.Standardizer(equal).std, { 1, 1, 1, 1 })
    end
    -- Against sums in f64, where the spread is small beside the mean, the rows are many, the dtype is coarse.
    local last = { f64 = 2.0 ^ -52, f32 = 2.0 ^ -23, f16 = 2.0 ^ -10, bf16 = 2.0 ^ -7 }
    for dtype, step in pairs(last) do
      for _, n in ipairs { 2, 300, 5000 } do
        for _, mean in ipairs { 0, -3, 300, 3e4, 1e9 } do
          if dtype ~= "f16" or mean < 1e5 then
            local few = T.randint(-2, 2, { n, 1 }):double() * math.max(mean * step * 2, 0.25) + mean
            local col = few:to(dtype)
            col[1] = col[1] + col[1]:abs():mul(step * 2) -- two values at least
            local exact = col:double()
            local m, d = exact:mean():item(), exact:std({ correction = 0 }):item()
            local got = data.Standardizer(col)
            local much = math.max(math.abs(m), d)
            assert.is_true(math.abs(got.mean:item() - m) <= 1e-6 * much, dtype)
            assert.is_true(math.abs(got.std:item() - (d == 0 and 1 or d)) <= 1e-6 * d + 1e-13 * much, dtype)
            assert.equal(dtype, got(col):dtype())
            assert.equal(dtype, got:inverse(got(col)):dtype())
          end
        end
      end
    end
    -- more than are taken at a time
    local wide = T.randn(1 << 18, 5) * T.tensor { 1, 2, 0, 3, 4 } + T.tensor { 5, 6, 7, 8, 9 }
    local of_wide = data.Standardizer(wide)
    near.near(of_wide.mean, wide:double():mean(1):totable(), 1e-5)
    near.near(of_wide.std, { 1, 2, 1, 3, 4 }, 2e-2)
    wide[7][5] = math.huge
    fails("column 5 of f32[262144,5] holds infinite values", data.Standardizer, wide)
    fails("rows are wanted", data.Standardizer, T.ones(3, 0))
    fails("column 2 of f32[2,2] holds infinite values", data.Standardizer, T.tensor { { 1, 1 }, { 3, math.huge } })
    other:load_state_dict { mean = T.tensor { 1, 2, 3 }, std = T.tensor { 2, 0, 1 } }
    near.near(other(T.tensor { 3, 5, 3 }), { 1, 3, 0 })
    fails("column 2 of f32[2,2] has no value", data.Standardizer, T.tensor { { 1, 0 / 0 }, { 3, 0 / 0 } })
    fails("rows are wanted", data.Standardizer, T.ones(3))
    fails("a floating tensor [..., 3] is wanted", s, T.ones(2))
    fails("mean must be floating [3]", s.load_state_dict, s, { mean = T.ones(3, 1), std = T.ones(3) })
    fails("std must be floating [3]", s.load_state_dict, s, { mean = T.ones(3), std = T.ones(3):long() })
    fails("mean must be floating [3]", s.load_state_dict, s, { mean = T.ones(2), std = T.ones(2) })
  end)
end)

describe("data.cifar10", function()
  before_each(fresh)
  after_each(clean)

  local function record(label, first) return string.char(label, first) .. ("\7"):rep(3071) end

  it("reads the binary format", function()
    write("test_batch.bin", record(3, 255) .. record(9, 51))
    local ds = assert(data.cifar10 { split = "test", root = dir })
    assert.equal(2, #ds)
    assert.same({ 2, 3, 32, 32 }, ds.images:shape())
    assert.same({ 4, 10 }, ds.labels:totable())
    assert.equal("truck", ds.classes[ds.labels:get(2)])
    local dark = assert(data.cifar10 { split = "test", root = dir, transform = function(x) return x * 0 end })
    assert.same({ 0, 4, 2 }, { dark[1][1]:sum():item(), dark[1][2]:item(), #dark.labels })
    assert.equal(1.0, ds.images:get(1, 1, 1, 1))
    near.near(ds.images:select(1, 2):select(1, 1):select(1, 1):narrow(1, 1, 2), { 0.2, 7 / 255 })
    os.execute(("mkdir %s/cifar-10-batches-bin"):format(dir))
    for k = 1, 5 do write(("cifar-10-batches-bin/data_batch_%d.bin"):format(k), record(k, k)) end
    local train = assert(data.cifar10 { root = dir, dtype = "u8" })
    assert.same({ 2, 3, 4, 5, 6 }, train.labels:totable())
    assert.same({ 1, 2, 3, 4, 5 }, train.images:view(5, -1):select(2, 1):totable())
  end)

  it("tells what is missing or broken", function()
    local ds, message, code = data.cifar10 { root = dir }
    assert.is_nil(ds)
    assert.equal("io", code)
    assert.truthy(message:find("data_batch_1.bin is not in " .. dir, 1, true))
    write("test_batch.bin", record(3, 255) .. "x")
    ds, message, code = data.cifar10 { root = dir, split = "test" }
    assert.is_nil(ds)
    assert.equal("format", code)
    assert.truthy(message:find("3074 bytes are no records of 3073", 1, true))
    write("test_batch.bin", record(10, 0))
    ds, message = data.cifar10 { root = dir, split = "test" }
    assert.is_nil(ds)
    assert.truthy(message:find("a label is not in 0..9", 1, true))
  end)
end)

describe("data.image_folder", function()
  before_each(fresh)
  after_each(clean)

  local function fill()
    for _, class in ipairs { "dogs", "cats", "empty" } do os.execute(("mkdir '%s/%s'"):format(dir, class)) end
    for i = 1, 3 do
      assert(T.save_image(("%s/cats/c%d.png"):format(dir, i), T.full({ 3, 4, 5 }, i, { dtype = "u8" })))
      assert(T.save_image(("%s/dogs/d%d.PNG"):format(dir, i), T.full({ 1, 4, 5 }, 100 + i, { dtype = "u8" })))
    end
    for _, below in ipairs { "cats/b", "cats/b/deep", "cats/.thumbs" } do
      os.execute(("mkdir '%s/%s'"):format(dir, below))
    end
    for _, file in ipairs { "cats/b/z.png", "cats/b/deep/a.png", "cats/.thumbs/c.png" } do
      assert(T.save_image(dir .. "/" .. file, T.full({ 3, 4, 5 }, 9, { dtype = "u8" })))
    end
    write("dogs/notes.txt", "no picture")
    write("dogs/.hidden.png", "no picture")
  end

  it("finds classes and files, and loads them where PNG is there", function()
    fill()
    local ds = assert(data.image_folder(dir))
    assert.same({ "cats", "dogs", "empty" }, ds.classes)
    local files = {}
    for i, path in ipairs(ds.paths) do files[i] = path:sub(#dir + 2) end
    assert.same({ "cats/c1.png", "cats/c2.png", "cats/c3.png", "cats/b/z.png", "cats/b/deep/a.png", "dogs/d1.PNG",
      "dogs/d2.PNG", "dogs/d3.PNG" }, files) -- hidden ones are not there
    assert.equal(8, #ds)
    assert.same({ 1, 1, 1, 1, 1, 2, 2, 2 }, ds.labels)
    local x, message, code = T.load_image(ds.paths[1])
    if not x then
      assert.equal("unsupported", code)
      return pending(message)
    end
    local transforms = data.transforms
    ds = assert(data.image_folder { dir, transform = transforms.compose { transforms.random_crop(3),
      transforms.random_horizontal_flip(), transforms.color_jitter { brightness = 0.5 }, transforms.to_tensor(),
      transforms.normalize({ 0.5, 0.5, 0.5 }, { 0.1, 0.1, 0.1 }), transforms.random_erasing() } })
    local function run(workers)
      local out = {}
      local loader = data.DataLoader(ds, { batch_size = 2, workers = workers, seed = 4, shuffle = true })
      for images, labels in loader do
        assert.same({ 2, 3, 3, 3 }, images:shape())
        out[#out + 1] = table.concat(images:reshape(-1):totable(), " ") .. table.concat(labels:totable(), " ")
      end
      loader:close()
      return out
    end
    local want = run(0)
    assert.equal(4, #want)
    assert.same(want, run(1))
    assert.same(want, run(3))
  end)

  it("tells what is missing or broken", function()
    local ds, _, code = data.image_folder(dir .. "/none")
    assert.is_nil(ds)
    assert.equal("io", code)
    local message
    ds, message = data.image_folder(dir)
    assert.is_nil(ds)
    assert.truthy(message:find("no folders with .png", 1, true))
    fill()
    write("cats/c2.png", "this is no picture")
    local broken = assert(data.image_folder(dir))
    fails("sample 2: " .. dir .. "/cats/c2.png: neither a PNG nor a JPEG file", function() return broken[2] end)
    fails("sample 2: " .. dir .. "/cats/c2.png", function()
      for _ in data.DataLoader(data.Subset(broken, { 2 }), { workers = 1 }) do end
    end)
    write("cats/b/old.webp", "a picture of another kind")
    ds, message, code = data.image_folder(dir)
    assert.is_nil(ds)
    assert.truthy(message:find("cats/b/old.webp: only PNG and JPEG are read", 1, true), message)
    assert.equal("unsupported", code)
    assert(os.remove(dir .. "/cats/b/old.webp"))
    os.execute(("ln -s .. '%s/cats/b/round'"):format(dir))
    ds, message = data.image_folder(dir)
    assert.is_nil(ds)
    assert.truthy(message:find("folders in folders, deeper than 32", 1, true), message)
    fails("root is missing", data.image_folder, {})
  end)
end)

describe("data.text", function()
  it("makes windows of characters", function()
    local ds = assert(data.text { text = "hello, wörld!", length = 4 })
    assert.equal(3, #ds)
    assert.equal(11, ds.vocab_size)
    local sample = ds[1]
    assert.equal("hell", ds.tokenizer:decode(sample[1]))
    assert.equal("ello", ds.tokenizer:decode(sample[2]))
    assert.equal("rld!", ds.tokenizer:decode(ds[-1][2]))
    assert.equal("wörld", ds.tokenizer:decode(ds.tokenizer:encode("wörld")))
    assert.equal("i64[5]", ds.tokenizer:encode("wörld"):describe()) -- as T.data.tokenizer's
    assert.equal("ld", ds.tokenizer:decode(ds.tokenizer:encode("wörld"):narrow(1, 4, 2):totable()))
    assert.equal("", ds.tokenizer:decode(ds.tokenizer:encode("")))
    fails('"z" is not in the vocabulary', ds.tokenizer.encode, ds.tokenizer, "z")
    fails("id 12 is not in 1..11", ds.tokenizer.decode, ds.tokenizer, { 12 })
    fails("window 4 is not in 1..3", function() return ds[4] end)
    for _, workers in ipairs { 0, 2 } do
      local n = 0
      for x, y in data.DataLoader(ds, { batch_size = 2, workers = workers }) do
        n = n + x:size(1)
        assert.is_true(x:narrow(2, 2, 3):equal(y:narrow(2, 1, 3)))
      end
      assert.equal(3, n)
    end
    assert.equal(9, #data.text { text = "hello, wörld!", length = 4, stride = 1 })
    local bytes = data.text { text = "\255\254a", length = 1 } -- no UTF-8
    assert.equal("\255", bytes.tokenizer:decode { 3 })
  end)

  it("reads files, takes tokenizers, tells what is wrong", function()
    fresh()
    write("a.txt", "one two three")
    local words = { encode = function(_, text)
      local out = {}
      for w in text:gmatch("%a+") do out[#out + 1] = #w end
      return out
    end }
    local ds = assert(data.text { dir .. "/a.txt", length = 2, tokenizer = setmetatable(words, { __len = function()
      return 5
    end }) })
    assert.same({ 3, 3 }, ds[1][1]:totable())
    assert.same({ 3, 5 }, ds[1][2]:totable())
    assert.equal(5, ds.vocab_size)
    assert.equal("io", select(3, data.text(dir .. "/b.txt")))
    local none, message, code = data.text(dir .. "/a.txt")
    assert.is_nil(none)
    assert.equal("format", code)
    assert.truthy(message:find("13 tokens are too few for a window of 64", 1, true))
    assert.equal("io", select(3, data.text(dir)))
    clean()
  end)
end)

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
    for _, o in ipairs { { seed = 1 }, { generator = T.Generator(1) } } do -- nothing would draw with them
      fails("leave seed and generator out", data.DataLoader, stream(2), o)
    end
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
  it("whose function gives no sample say so, and why", function()
    local good = data.TensorDataset(T.arange(4))
    local function none(why) return function() return nil, why end end
    for _, workers in ipairs { 0, 1 } do
      for _, why in ipairs { "nowhere.png: cannot open", false } do
        local get = none(why or nil)
        for name, ds in pairs {
          get = data.Dataset { len = 4, get = get },
          transform = data.Dataset { len = 4, get = function(_, i) return i end, transform = none() },
          map = data.MapDataset(good, get),
          of_tensors = data.TensorDataset(T.arange(4), { transform = none() }),
          part = data.Subset(good, { 1, 2 }, { transform = none() }),
        } do
          local passed, err = pcall(function()
            return data.DataLoader(ds, { batch_size = 2, workers = workers }):iter()()
          end)
          assert.is_false(passed, name)
          assert.truthy(tostring(err):find("there is no sample 1: ", 1, true), name .. ": " .. tostring(err))
          if why and (name == "get" or name == "map") then assert.truthy(tostring(err):find(why, 1, true)) end
        end
      end
    end
  end)

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

it("ConcatDataset joins datasets", function()
  local both = data.ConcatDataset(data.TensorDataset(T.arange(3)), data.TensorDataset(T.arange(4) * 10))
  assert.equal(7, #both)
  assert.same({ 3, 10, 40 }, { both[3]:item(), both[4]:item(), both[7]:item() })
  local seen = {}
  for batch in data.DataLoader(both, { batch_size = 5 }) do seen[#seen + 1] = batch:totable() end
  assert.same({ { 1, 2, 3, 10, 20 }, { 30, 40 } }, seen)
  fails("entry 2 must be a dataset", data.ConcatDataset, both, 1)
end)

describe("mnist files", function()
  before_each(function()
    fresh()
    local images, labels = {}, {}
    for i = 0, 3 * 28 * 28 - 1 do images[i + 1] = string.char(i % 256) end
    for i, l in ipairs { 0, 9, 4 } do labels[i] = string.char(l) end
    write("train-images-idx3-ubyte", "\0\0\8\3" .. string.pack(">I4I4I4", 3, 28,
      28) .. table.concat(images))
    write("train-labels-idx1-ubyte", "\0\0\8\1" .. string.pack(">I4", 3) .. table.concat(labels))
  end)
  after_each(clean)

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
    write("train-labels-idx1-ubyte", "\0\0\8\1" .. string.pack(">I4", 2) .. "\1\2")
    ds, message, code = data.mnist { root = dir }
    assert.is_nil(ds)
    assert.is_truthy(message:find("3 images", 1, true))
    assert.equal("format", code)
    write("train-labels-idx1-ubyte", "\0\0\8\1" .. string.pack(">I4", 3) .. "\1\2\10")
    ds, message = data.mnist { root = dir }
    assert.is_nil(ds)
    assert.is_truthy(message:find("a label is not in 0..9", 1, true))
    write("train-images-idx3-ubyte", "\0\0\8\3" .. string.pack(">I4I4I4", 3, 28, 28) .. "short")
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
