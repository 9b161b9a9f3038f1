-- SPDX-License-Identifier: MIT
-- T.open: files read tensor by tensor and in parts; models in shards; files that change while they are open.

local T = require "perilune"
local near = require "spec.support.near"
local fails = near.fails

local dir
local function at(name) return dir .. "/" .. name end
local function write(name, bytes)
  local f = assert(io.open(at(name), "wb"))
  f:write(bytes)
  f:close()
end

local function before()
  dir = os.tmpname()
  os.remove(dir)
  assert(os.execute(("mkdir '%s'"):format(dir)))
end
local function after() os.execute(("rm -rf '%s'"):format(dir)) end

-- How many bytes this process has read from files.
local function bytes_read()
  local f = io.open "/proc/self/io"
  if not f then return nil end
  local text = f:read "a"
  f:close()
  return tonumber(text:match "rchar: (%d+)")
end

describe("T.open", function()
  before_each(before)
  after_each(after)

  it("lists what is there and reads single tensors", function()
    local t = { w = T.rand(3, 4), i = T.arange(5), h = T.ones({ 2 }, { dtype = "bf16" }), s = T.tensor(2.5) }
    assert(T.save(at "a", t, { metadata = { by = "me" } }))
    local f = assert(T.open(at "a"))
    assert.same({ "safetensors", 4, "me" }, { f.kind, #f, f.metadata.by })
    assert.same({ "i", "s", "w", "h" }, f.names)
    assert.same({ { 3, 4 }, {}, true, false }, { f:shape "w", f:shape "s", f:has "w", f:has "x" })
    assert.same({ "bf16", "BF16" }, { f:dtype "h" })
    for name, x in pairs(t) do near.same_bits(f:read(name), x) end
    near.same_bits(f:read("w", { dtype = "f64" }), t.w:to("f64"))
    near.same_bits(f:read("w", { map_location = "cpu" }), t.w)
    fails("has no tensor 'W'", f.read, f, "W")
    fails("the name of a tensor is wanted", f.read, f, 1)
    fails("unknown option 'dtyp'", f.read, f, "w", { dtyp = "f64" })
    f:close()
    fails("the file is closed", f.read, f, "w")
    do
      local g <close> = assert(T.open(at "a"))
      f = g
    end
    fails("the file is closed", f.read, f, "w")
  end)

  it("slices as indexing does", function()
    local x = T.arange(0, 6 * 7 * 8 - 1):view(6, 7, 8):to("f32")
    assert(T.save(at "a", { x = x, s = T.tensor(1) }))
    local f <close> = assert(T.open(at "a"))
    local cases = { {}, { 1 }, { -1 }, { { 2, 3 } }, { {}, 2 }, { {}, { 3, -2 } }, { {}, {}, { 2, 5 } }, { 2, 3, 4 },
      { { 1, 6, 2 } },
      { { 2, 5, 3 }, { 1, 7, 2 }, { 1, 8, 5 } }, { 3, {}, { 8, 8 } }, { { 4, 3 } },
      { -2, { -3, -1 }, -8 }, { {}, {}, {} } }
    for _, key in ipairs(cases) do
      near.same_bits(f:slice("x", key), (#key == 0 and x or x[key]):contiguous())
    end
    assert.equal(1, f:slice("s", {}):item())
    for key, part in pairs { [{ 7 }] = "7 is out of range for dimension 1 of 6", [{ 0 }] = "0 is out of range",
      [{ {}, { 1, 8 } }] = "1 to 8 is out of range for dimension 2 of 7", [{ { 3, 1 } }] = "out of range",
      [{ { 1, 2, 0 } }] = "a step from 1", [{ "x" }] = "an entry is a position",
      [{ 1, 2, 3, 4 }] = "4 entries for the 3",
      [{ { 1 } }] = "an entry is a position", [{ a = 1 }] = "0 entries", [{ 1.5 }] = "an entry is a position" } do
      fails(part, f.slice, f, "x", key)
    end
    fails("a list of positions", f.slice, f, "x", 1)
  end)

  it("reads of a file what a slice needs, not more", function()
    local x = T.arange(0, (1 << 20) - 1):view(1024, 1024):to("f32") -- 4 MiB
    assert(T.save(at "a", { x = x }))
    assert(T.save_gguf(at "b", { x = x }, { type = "Q8_0" }))
    if not bytes_read() then return end
    local whole = assert(T.load(at "b")).x
    for name, want in pairs { a = x, b = whole } do
      local f <close> = assert(T.open(at(name)))
      for key, most in pairs { [{ 5 }] = 8192, [{ { 7, 10 } }] = 32768, [{ {}, { 3, 4 } }] = 6 << 20,
        [{ { 1, 8 }, 9 }] = 1 << 17 } do
        local from = bytes_read()
        local t = f:slice("x", key)
        local n = bytes_read() - from
        near.same_bits(t, want[key]:contiguous())
        assert.is_true(n < most, ("%s: %d bytes"):format(name, n))
      end
    end
  end)

  it("survives a file that is cut or replaced while it is open", function()
    local x = T.rand(1000, 100)
    for name, save in pairs { a = function(p) return T.save(p, { x = x }) end,
      b = function(p) return T.save_gguf(p, { x = x }) end } do
      assert(save(at(name)))
      local f <close> = assert(T.open(at(name)))
      near.same_bits(f:read "x", x)
      -- truncate(1) does not wait: told to come again while what is mapped is copied, it fails
      local again = "do sleep 0.1; n=$((n+1)); [ $n != 300 ] || exit 1; done"
      local cut = "n=0; until truncate -s 5000 '%s' 2>/dev/null; " .. again
      assert(os.execute(cut:format(at(name))))
      for _ = 1, 2 do
        local t, message, code = f:read "x"
        assert.same({ nil, "format" }, { t, code })
        assert.truthy(message:find("the file ends early", 1, true), message)
        t, message, code = f:slice("x", { { 900, 910 }, { 1, 5 } })
        assert.same({ nil, "format" }, { t, code }, message)
      end
      near.same_bits(f:slice("x", { { 1, 2 } }), x[{ { 1, 2 } }]:contiguous())
      assert(save(at(name))) -- another file takes its name; ours stays what it is
      assert.is_nil((f:read "x"))
    end
  end)

  it("says what it does not read", function()
    for name, bytes in pairs { text = "hello, this is no tensor", empty = "" } do
      write(name, bytes)
      assert.equal("format", select(3, T.open(at(name))))
    end
    assert.equal("io", select(3, T.open(at "none")))
    assert(T.save_npy(at "x.npy", T.ones(3)))
    local f, message, code = T.open(at "x.npy")
    assert.same({ nil, "unsupported" }, { f, code })
    assert.truthy(message:find("T.load_npy", 1, true), message)
    fails("the path must be a string", T.open, 1)
  end)
end)

describe("a model in shards", function()
  before_each(before)
  after_each(after)

  local function index(map, more) -- the text of an index
    local rows = {}
    for name, file in pairs(map) do rows[#rows + 1] = ('"%s": "%s"'):format(name, file) end
    return ('{"metadata": {"total_size": 48%s}, "weight_map": {%s}}'):format(more or "", table.concat(rows, ", "))
  end
  local map = { a = "m-1.safetensors", b = "m-1.safetensors", c = "m-2.safetensors" }
  local function make(text)
    assert(T.save(at "m-1.safetensors", { a = T.ones(2), b = T.arange(3) }))
    assert(T.save(at "m-2.safetensors", { c = T.zeros(4) }))
    write("model.safetensors.index.json", text or index(map))
  end

  it("is read by its index and by its folder, whole and tensor by tensor", function()
    make()
    for _, path in ipairs { dir, dir .. "/", at "model.safetensors.index.json" } do
      local t, meta = assert(T.load(path))
      local names = {}
      for name in pairs(t) do names[#names + 1] = name end
      assert.same({ "b", "a", "c" }, names)
      near.near(t.a, 1)
      assert.equal("48", meta.total_size)
      local f <close> = assert(T.open(path))
      assert.same({ { "b", "a", "c" }, "48" }, { f.names, f.metadata.total_size })
      assert.same({ 2, 3 }, f:slice("b", { { 2, 3 } }):totable())
    end
    near.near(assert(T.load(dir, { map_location = "cpu" })).c, 0)
    fails("none= is not for such a file", T.load, dir, { none = 1 })
  end)

  it("may be PyTorch's, or one file in a folder", function()
    local pt = require "spec.support.pt_writer"
    local function file(name, n)
      return pt.zip(pt.dict(pt.text(name), pt.tensor(pt.storage("Float", "0", 1), 0, { 1 }, { 1 })),
        { ["0"] = string.pack("<f", n) })
    end
    write("p-1.bin", file("x", 1))
    write("p-2.bin", file("y", 2))
    write("pytorch_model.bin.index.json", index { x = "p-1.bin", y = "p-2.bin" })
    local t = assert(T.load(dir))
    assert.same({ 1.0, 2.0 }, { t.x:item(), t.y:item() })
    assert.equal("unsupported", select(3, T.open(dir)))
    write("p-2.bin", pt.zip(pt.dict(pt.text "y", pt.int(2)), {}))
    local got, message, code = T.load(dir)
    assert.same({ nil, "format" }, { got, code })
    assert.truthy(message:find("'y', which is no tensor", 1, true), message)
    os.remove(at "pytorch_model.bin.index.json")
    assert.truthy(select(2, T.load(dir)):find("p-1.bin and p-2.bin could both be meant", 1, true))
    os.remove(at "p-2.bin")
    near.near(assert(T.load(dir)).x, 1)
    assert(T.save(at "adapter.safetensors", { z = T.ones(1) })) -- safetensors first
    near.near(assert(T.load(dir)).z, 1)
    near.near(assert(T.open(dir)):read "z", 1)
  end)

  it("is refused as a whole if anything is wrong with it", function()
    local function refuses(part, want)
      for _, f in ipairs { T.load, T.open } do
        local t, message, code = f(dir)
        assert.is_nil(t)
        assert.truthy(message:find(part, 1, true), message)
        assert.equal(want or "format", code)
      end
    end
    refuses("a folder without weights", "io")
    make "{"
    refuses("no JSON")
    make '{"weight_map": 3}'
    refuses("weight_map is missing")
    make "[]"
    refuses("weight_map is missing")
    make '{"weight_map": {"a": 3}}'
    refuses("no map of names to files")
    for _, name in ipairs { "../m-1.safetensors", "/etc/passwd", "..", "a/b" } do
      make(index { a = name })
      refuses("shards lie beside their index")
    end
    make(index { a = "m-1.safetensors", b = "m-1.safetensors", c = "m-3.safetensors" })
    refuses("m-3.safetensors: cannot open", "io")
    make(index { a = "m-1.safetensors", b = "m-1.safetensors", c = "m-2.safetensors", d = "m-2.safetensors" })
    refuses("tensor 'd', which the index")
    make(index { a = "m-1.safetensors", c = "m-2.safetensors" })
    refuses("tensor 'b' is not in the index")
    make(index { a = "model.safetensors.index.json" })
    for _, f in ipairs { T.load, T.open } do assert.equal("format", select(3, f(dir))) end -- names itself
    assert(os.execute(("mkdir '%s'"):format(at "sub")))
    make(index { a = "sub" })
    for _, f in ipairs { T.load, T.open } do assert.is_nil((f(dir))) end
    make()
    assert(os.execute(("truncate -s -4 '%s'"):format(at "m-2.safetensors")))
    refuses("m-2.safetensors: truncated")
  end)
end)
