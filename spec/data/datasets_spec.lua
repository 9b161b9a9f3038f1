-- SPDX-License-Identifier: MIT
-- CIFAR-10, folders of images, text.

local T = require "perilune"
local mutate = require "spec.support.mutate"
local near = require "spec.support.near"
local data = T.data
local fails = near.fails

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
    write("dogs/notes.txt", "no picture")
    write("dogs/.hidden.png", "no picture")
  end

  it("finds classes and files, and loads them where PNG is there", function()
    fill()
    local ds = assert(data.image_folder(dir))
    assert.same({ "cats", "dogs", "empty" }, ds.classes)
    assert.equal(6, #ds)
    assert.same({ 1, 1, 1, 2, 2, 2 }, ds.labels)
    assert.truthy(ds.paths[4]:find("dogs/d1.PNG$"))
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
    assert.equal(3, #want)
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
    assert.equal("", mutate.fuzz({ ("some text "):rep(20) }, function(path)
      return data.text { path, length = 120 }
    end))
    clean()
  end)
end)
