-- SPDX-License-Identifier: MIT
-- Files of torch7, binary and ascii, written here as torch7's File.lua writes them.

local T = require "perilune"
local near = require "spec.support.near"
local fails = near.fails

local path

local t7 = require "spec.support.t7_writer"
local bytes_of = t7.bytes_of

local function save(bytes)
  local f = assert(io.open(path, "wb"))
  f:write(bytes)
  f:close()
end

local function round(ascii, v)
  save(bytes_of(ascii, v))
  return assert(T.load_t7(path))
end

-- ---- what is read ------------------------------------------------------------------------------------------------

describe("load_t7", function()
  before_each(function() path = os.tmpname() end)
  after_each(function() os.remove(path) end)

  for name, ascii in pairs { binary = false, ascii = true } do
    it("reads plain data: " .. name, function()
      local t = { 1, 2.5, "three", true, { deep = { false, -1e300 } }, [10] = "", ["a key"] = "line\nend \0 byte\n",
        huge = math.huge }
      assert.same(t, round(ascii, t))
      assert.equal("text", round(ascii, "text"))
      assert.equal(0.1, round(ascii, 0.1))
      assert.equal(-math.huge, round(ascii, -math.huge))
      local nan = round(ascii, { 0 / 0 })[1]
      assert.is_true(nan ~= nan)
      save(bytes_of(ascii, false))
      assert.is_false(T.load_t7(path))
    end)

    it("reads cycles and shared tables: " .. name, function()
      local t = { name = "root", part = { n = 1 } }
      t.self, t.again, t.part.parent = t, t.part, t
      local got = round(ascii, t)
      assert.equal(got, got.self)
      assert.equal(got.part, got.again)
      assert.equal(got, got.part.parent)
      assert.equal("root", got.name)
    end)

    it("reads tensors of every type: " .. name, function()
      local types = { Byte = "u8", Char = "i8", Short = "i16", Int = "i32", Long = "i64", Float = "f32",
        Double = "f64" }
      for kind, dtype in pairs(types) do
        local x = round(ascii, function(w) w.tensor(kind, { 2, 3 }, { 3, 1 }, 1, { 1, 2, 3, 4, 5, 100 }) end)
        assert.equal(dtype, x:dtype())
        assert.same({ { 1, 2, 3 }, { 4, 5, 100 } }, x:to("i64"):totable())
      end
      local x = round(ascii, function(w) w.tensor("Double", { 2, 2 }, { 1, 3 }, 2, { 1, 2.5, -3, 4, 5e10, 6, 7 }) end)
      assert.same({ { 2.5, 5e10 }, { -3.0, 6.0 } }, x:totable())
      assert.equal(0, round(ascii, function(w) w.tensor("Float", {}, {}, 1, nil) end):numel())
      assert.same({ 7, 8 }, round(ascii, function(w) w.storage("Long", { 7, 8 }) end):totable())
      assert.same({ 0 }, round(ascii, function(w) w.storage("Int", {}) end):shape())
    end)

    it("keeps the memory that views share: " .. name, function()
      local list = { 1, 2, 3, 4 }
      local got = round(ascii, { a = function(w) w.tensor("Float", { 4 }, { 1 }, 1, list) end,
        b = function(w) w.tensor("Float", { 2 }, { 1 }, 3, list) end })
      got.a:fill_(9)
      assert.same({ 9, 9 }, got.b:totable())
    end)

    it("reads networks as tables: " .. name, function()
      local got = round(ascii, function(w)
        w.object(4, {})
        w.class("nn.Linear")
        w.value { train = true, weight = function(v) v.tensor("Float", { 1, 2 }, { 2, 1 }, 1, { 3, 4 }) end }
      end)
      assert.equal("nn.Linear", got.torch_class)
      assert.is_true(got.train)
      assert.same({ { 3.0, 4.0 } }, got.weight:totable())
    end)

    it("refuses code and malformed files: " .. name, function()
      local function refused(code, text, bytes)
        save(bytes)
        local v, message, got = T.load_t7(path)
        assert.is_nil(v)
        assert.truthy(message:find(text, 1, true), message)
        assert.equal(code, got)
      end
      for kind = 6, 8 do
        refused("unsupported", "only data is loaded", bytes_of(ascii, { function(w)
          w.int(kind)
          w.int(1)
          w.text("\27Lua")
        end }))
      end
      local good = bytes_of(ascii, { "text", 1, true })
      for n = 1, #good - 2 do -- (ascii: without the last line end it is whole)
        save(good:sub(1, n))
        local v, message, code = T.load_t7(path)
        assert.is_nil(v, n)
        assert.equal("format", code)
        assert.is_string(message)
      end
      refused("format", "more data behind", good .. "xy")
      if ascii then
        for _, text in ipairs { ("1"):rep(200), ("1"):rep(200) .. "\n", "4.5\n", "4x\n", "4-\n" } do
          refused("format", text == "4.5\n" and "an integer was due" or "a number was due", text)
        end
        for _, text in ipairs { "", "\n" } do refused("format", "the file ends early", text) end
        save "1\n0.5" -- a number without a line end
        assert.equal(0.5, T.load_t7(path))
      end
      refused("format", "type 9", bytes_of(ascii, function(w) w.int(9) end))
      refused("format", "a text longer than the file", bytes_of(ascii, function(w)
        w.int(2)
        w.int(1000000)
      end))
      refused("format", "a text longer than the file", bytes_of(ascii, function(w)
        w.int(2)
        w.int(-1)
      end))
      refused("format", "reaches outside its storage", bytes_of(ascii, function(w)
        w.tensor("Float", { 3 }, { 1 }, 1, { 1, 2 })
      end))
      refused("format", "reaches outside its storage", bytes_of(ascii, function(w)
        w.tensor("Float", { 2 }, { 1 }, 0, { 1, 2 })
      end))
      refused("format", "reaches outside its storage", bytes_of(ascii, function(w)
        w.tensor("Float", { 1 << 62, 4 }, { 1, 1 }, 1, { 1, 2 })
      end))
      refused("format", "without storage", bytes_of(ascii, function(w) w.tensor("Float", { 3 }, { 1 }, 1, nil) end))
      refused("format", "more than 16 dimensions", bytes_of(ascii, function(w)
        w.object(4, {})
        w.class("torch.FloatTensor")
        w.int(17)
      end))
      refused("format", "a storage longer than the file", bytes_of(ascii, function(w)
        w.object(4, {})
        w.class("torch.FloatStorage")
        w.longs { 1 << 40 }
      end))
      refused("format", "key that is nil", bytes_of(ascii, function(w)
        w.object(3, {})
        w.int(1)
        w.value(nil)
        w.value(1)
      end))
      refused("format", "whose fields are no table", bytes_of(ascii, function(w)
        w.object(4, {})
        w.class("tds.Hash")
        w.value(3)
      end))
      refused("format", "nested deeper", bytes_of(ascii, function(w)
        for i = 1, 3000 do
          w.int(3)
          w.int(i)
          w.int(1)
          w.value(1)
        end
      end))
    end)
  end

  it("reads storages larger than its buffer, and refuses cut ones", function()
    local list = {}
    for i = 1, 20000 do list[i] = i end
    local bytes = bytes_of(false, function(w) w.tensor("Double", { 20000 }, { 1 }, 1, list) end)
    save(bytes)
    assert.same(list, assert(T.load_t7(path)):totable())
    save(bytes:sub(1, 100000))
    local v, message, code = T.load_t7(path)
    assert.is_nil(v)
    assert.truthy(message:find("longer than the file", 1, true) or message:find("ends early", 1, true), message)
    assert.equal("format", code)
    bytes = bytes_of(true, function(w) w.tensor("Long", { 2 }, { 1 }, 1, { 5, 777 }) end)
    save((bytes:gsub("777", "7.5")))
    v, message = T.load_t7(path)
    assert.is_nil(v)
    assert.truthy(message:find("an integer was due", 1, true), message)
  end)

  it("leaves functions out where that is asked for", function()
    for _, ascii in ipairs { false, true } do
      local shared = { n = 1 }
      local function code(kind, index, upvalues)
        return function(w)
          w.int(kind)
          if kind ~= 6 then w.int(index) end
          if index then
            w.text "\27LJ code that is not run"
            w.value(upvalues)
          end
        end
      end
      local function again(w) -- the function that was written before
        w.int(8)
        w.int(1001)
      end
      save(bytes_of(ascii, { 5, code(8, 1001, { shared, again }), again, code(7, 1002, {}), code(6, 0, nil),
        shared = shared, net = function(w)
          w.object(4, {})
          w.class("nn.Module")
          w.value { train = true, updateOutput = code(8, 1003, { "name", shared }) }
        end }))
      assert.equal("unsupported", select(3, T.load_t7(path)))
      assert.same({ 5, shared = { n = 1 }, net = { torch_class = "nn.Module", train = true } },
        (assert(T.load_t7(path, { functions = "skip" }))))
      save(bytes_of(ascii, code(8, 99, {})))
      assert.same({ nil, path .. ": a function and nothing else", "unsupported" },
        { T.load_t7(path, { functions = "skip" }) })
    end
    fails("unknown functions 'run'", T.load_t7, path, { functions = "run" })
    fails("unknown option", T.load_t7, path, { function_ = "skip" })
  end)

  it("tells what is missing", function()
    assert.equal("io", select(3, T.load_t7(path .. ".none")))
    save("")
    assert.equal("format", select(3, T.load_t7(path)))
    fails("the path must be a string", T.load_t7, 1)
  end)
end)
