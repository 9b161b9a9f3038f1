-- SPDX-License-Identifier: MIT
-- GGUF files: those of gguf, llama.cpp's Python package (spec/fixtures/gguf/make.py), read to the bit and written byte
-- for
-- byte; hostile ones; and those of ../shared/models/gguf where that is there.

local T = require "perilune"
local near = require "spec.support.near"
local fails = near.fails

local root = os.getenv "PERILUNE_ROOT" or "."
local fixtures = root .. "/spec/fixtures/gguf/"

local path
local function save(bytes)
  local f = assert(io.open(path, "wb"))
  f:write(bytes)
  f:close()
end
local function bytes_of(where)
  local f = assert(io.open(where or path, "rb"))
  local s = f:read "a"
  f:close()
  return s
end

-- Files by hand: keys {name, kind, bytes}, tensors {name, {sizes, the fastest first}, type, place}, data.
local function file(keys, tensors, data, x)
  x = x or {}
  local out = { x.magic or "GGUF", string.pack("<I4I8I8", x.version or 3, x.n or #tensors, x.nkey or #keys) }
  for _, k in ipairs(keys) do out[#out + 1] = string.pack("<s8I4", k[1], k[2]) .. k[3] end
  for _, t in ipairs(tensors) do
    out[#out + 1] = string.pack("<s8I4", t[1], t.ndim or #t[2])
    for _, n in ipairs(t[2]) do out[#out + 1] = string.pack("<i8", n) end
    out[#out + 1] = string.pack("<I4I8", t[3], t[4])
  end
  local head = table.concat(out)
  return head .. ("\0"):rep(-#head % (x.alignment or 32)) .. data
end

describe("GGUF", function()
  before_each(function() path = os.tmpname() end)
  after_each(function() os.remove(path) end)

  it("blocks of every type become the numbers of the reference, to the bit", function()
    local got, want = assert(T.load(fixtures .. "blocks.gguf")), assert(T.load(fixtures .. "blocks.safetensors"))
    local n, halves = 0, assert(T.load(fixtures .. "blocks.gguf", { dtype = "f16" }))
    local file_ = assert(T.open(fixtures .. "blocks.gguf"))
    for name, t in pairs(want) do
      near.same_bits(got[name], t)
      near.same_bits(halves[name], t:to("f16"))
      assert.equal(name, (select(2, file_:dtype(name))))
      near.same_bits(file_:read(name, { dtype = "bf16" }), t:to("bf16"))
      near.same_bits(file_:slice(name, { 1, { 35, 70 } }), t[{ 1, { 35, 70 } }]:contiguous())
      n = n + 1
    end
    assert.equal(15, n)
    file_:close()
    local reads = 0
    for _, f in ipairs(T.core.block_formats()) do if f.reads then reads = reads + 1 end end
    assert.equal(n, reads)
  end)

  it("writes the bytes of the reference", function()
    local t, meta = assert(T.load(fixtures .. "quantized.gguf"))
    local source = {}
    local types = { F32 = "F32", F16 = "F16", BF16 = "BF16", Q8_0 = "Q8_0", Q4_0 = "Q4_0", Q4_1 = "Q4_1", Q5_0 = "Q5_0",
      Q5_1 = "Q5_1" }
    local ordered = t -- in the file's order
    for name in pairs(types) do source[name] = t.F32 end
    for name in pairs(source) do rawset(ordered, name, source[name]) end
    assert.same({ ["general.architecture"] = "none", ["a.name"] = "x", ["b.rate"] = 0.10000000149011612,
      ["c.count"] = 3 }, meta)
    assert.is_true(T.save_gguf(path, ordered, { metadata = meta, type = types }))
    assert.is_true(bytes_of() == bytes_of(fixtures .. "quantized.gguf"))
    assert(T.save_gguf(path, { x = t.F32, y = t.F32[1], z = T.ones(2, 3), i = T.arange(3) }, { type = "Q8_0" }))
    local f = assert(T.open(path))
    local stored = {}
    for _, name in ipairs(f.names) do stored[#stored + 1] = name .. (select(2, f:dtype(name))) end
    f:close()
    assert.same({ "iI64", "xQ8_0", "yF32", "zF32" }, stored)
    -- what others than f32 become, and layouts
    local turned = T.arange(0, 63):view(32, 2):to("f64"):t()
    assert(T.save_gguf(path, { a = turned, b = turned:to("f16"), c = turned },
      { type = { a = "Q8_0", b = "Q8_0", c = "F16" } }))
    local got = assert(T.load(path))
    near.near(got.a, turned, 0.25)
    near.same_bits(got.a, got.b)
    near.same_bits(got.c, turned:to("f16"):contiguous())
  end)

  it("keeps metadata of every kind, and writes it again", function()
    local t, meta, kinds = T.load_gguf(fixtures .. "metadata.gguf")
    assert.same({ "f32", "i8" }, { t.odd:dtype(), t.bytes:dtype() })
    assert.same({ 0, 1, 2 }, t.bytes:totable())
    local want = { ["general.architecture"] = "none", ["general.alignment"] = 64, ["k.uint8"] = 255, ["k.int8"] = -128,
      ["k.uint16"] = 65535, ["k.int16"] = -32768, ["k.uint32"] = 0xffffffff, ["k.int32"] = -2147483648,
      ["k.uint64"] = "18446744073709551615", ["k.int64"] = math.mininteger, ["k.float32"] = 0.10000000149011612,
      ["k.float64"] = 0.1, ["k.yes"] = true, ["k.no"] = false, ["k.text"] = "caf\u{e9}\n", ["k.ints"] = { 1, -2, 3 },
      ["k.floats"] = { 0.5, -1.5 }, ["k.texts"] = { "a", "", "bc" }, ["k.nested"] = { { 1, 2 }, { 3 } } }
    assert.same(want, meta)
    assert.same({ "u64", "f64", "[i32]", "[text]", "[[i32]]", "bool", "u8" }, { kinds["k.uint64"], kinds["k.float64"],
      kinds["k.ints"], kinds["k.texts"], kinds["k.nested"], kinds["k.yes"], kinds["k.uint8"] })
    assert(T.save_gguf(path, t, { metadata = meta, kinds = kinds }))
    local t2, meta2, kinds2 = T.load_gguf(path)
    assert.same({ meta, kinds }, { meta2, kinds2 })
    near.same_bits(t.odd, t2.odd)
    -- kinds that nobody states
    assert(T.save_gguf(path, {}, { metadata = { a = 1, b = -1, c = 1 << 40, d = -1 << 40, e = 0.5, f = { 1, 2 },
      g = { 1, 1 << 40 },
      h = { 1, 0.5 }, i = { true }, j = { "x" }, k = "" } }))
    t, meta, kinds = T.load_gguf(path)
    assert.is_nil((next(t)))
    assert.same({ a = "u32", b = "i32", c = "u64", d = "i64", e = "f32", f = "[i32]", g = "[i64]", h = "[f32]",
      i = "[bool]",
      j = "[text]", k = "text" }, kinds)
    assert.same({ 1, 1 << 40 }, meta.g)
  end)

  it("reads models that llama.cpp split, whole or not at all", function()
    local function part(i, n, name, no)
      local file_ = ("%s-%05d-of-%05d.gguf"):format(path, i, n)
      assert(T.save_gguf(file_, { [name] = T.ones(3) * i }, { metadata = { ["split.no"] = no or i - 1,
        ["split.count"] = n, ["a.b"] = i }, kinds = { ["split.no"] = "u16", ["split.count"] = "u16" } }))
      return file_
    end
    local files = { part(1, 3, "x"), part(2, 3, "y"), part(3, 3, "z") }
    for _, name in ipairs(files) do
      local t, meta = assert(T.load(name))
      assert.same({ 1.0, 2.0, 3.0, 1 }, { t.x[1]:item(), t.y[1]:item(), t.z[1]:item(), meta["a.b"] })
      local f <close> = assert(T.open(name))
      assert.same({ "x", "y", "z" }, f.names)
      assert.equal(3.0, f:slice("z", { 2 }):item())
    end
    local function refuses(name, text, want)
      for _, f in ipairs { T.load, T.open } do
        local t, message, code = f(name)
        assert.is_nil(t)
        assert.truthy(message:find(text, 1, true), message)
        assert.equal(want, code)
      end
    end
    part(2, 3, "y", 2)
    refuses(files[1], "is not part 2 of 3", "format")
    os.remove(files[2])
    refuses(files[1], "cannot open", "io")
    assert(os.rename(files[1], path .. "-alone.gguf"))
    refuses(path .. "-alone.gguf", "part 1 of 3 of a model", "format")
    part(1, 3, "x")
    part(2, 3, "x")
    refuses(files[1], "'x' is in two parts", "format")
    os.execute(("rm -f '%s'-*"):format(path))
  end)

  it("refuses what it cannot write, and writes nothing then", function()
    local x = T.ones(2, 32)
    os.remove(path)
    fails("unknown type 'Q9'", T.save_gguf, path, { x = x }, { type = "Q9" })
    fails("unknown type 'Q2_K'", T.save_gguf, path, { x = x }, { type = "Q2_K" })
    fails("rows of 33, which are no whole blocks of 32", T.save_gguf, path, { x = T.ones(2, 33) },
      { type = { x = "Q8_0" } })
    fails("not finite", T.save_gguf, path, { x = x / 0 }, { type = "Q4_0" })
    fails("not finite", T.save_gguf, path, { x = x * 1e30 }, { type = "Q8_0" })
    fails("which GGUF does not have", T.save_gguf, path, { x = x:to("u8") })
    fails("other than 1 to 4 dimensions", T.save_gguf, path, { x = T.tensor(1) })
    fails("longer than ggml's 63 bytes", T.save_gguf, path, { [("x"):rep(64)] = x })
    fails("has a name that is not UTF-8", T.save_gguf, path, { ["x\xFF"] = x })
    fails("the value of 'k' is not UTF-8", T.save_gguf, path, {}, { metadata = { k = "\xC3" } })
    fails("the value of 'k' is not UTF-8", T.save_gguf, path, {}, { metadata = { k = { "a", "\xED\xA0\x80" } } })
    fails("keys of the metadata are texts in UTF-8", T.save_gguf, path, {}, { metadata = { ["k\xFF"] = 1 } })
    fails("is i64 and shall be F32: convert it first", T.save_gguf, path, { x = T.arange(32) },
      { type = { x = "F32" } })
    fails("type has 'y', which is no tensor", T.save_gguf, path, { x = x }, { type = { y = "F16" } })
    fails("it has 3 under \"n\"", T.save_gguf, path, { n = 3 })
    fails("an empty list", T.save_gguf, path, {}, { metadata = { a = {} } })
    fails("different kinds", T.save_gguf, path, {}, { metadata = { a = { 1, "x" } } })
    fails("the value of 'a', 256, is no u8", T.save_gguf, path, {}, { metadata = { a = 256 }, kinds = { a = "u8" } })
    fails("is no u64", T.save_gguf, path, {}, { metadata = { a = "18446744073709551616" }, kinds = { a = "u64" } })
    fails("no kind of value", T.save_gguf, path, {}, { metadata = { a = 1 }, kinds = { a = "u128" } })
    fails("which metadata has not", T.save_gguf, path, {}, { kinds = { a = "u8" } })
    fails("power of two", T.save_gguf, path, {}, { alignment = 48 })
    fails("unknown option 'quantize'", T.save_gguf, path, {}, { quantize = "Q8_0" })
    assert.is_nil(io.open(path))
    assert.equal("io", select(3, T.save_gguf("/nowhere/x.gguf", { x = x })))
  end)

  it("reads lists of lists of every kind, and none that is passed over is read as another", function()
    local function list(kind, ...) return string.pack("<I4I8", kind, select("#", ...)) .. table.concat({ ... }) end
    local text, u8, u32 = string.pack("<s8", "ab"), "\9", string.pack("<I4", 7)
    save(file({ { "k", 9, list(9, list(8, text, text), list(4, u32), list(0, u8, u8, u8), list(9, list(8, text),
      list(9)), list(7)) }, { "after", 4, u32 } }, {}, ""))
    local meta = select(2, assert(T.load_gguf(path)))
    assert.same({ { "ab", "ab" }, { 7 }, { 9, 9, 9 }, { { "ab" }, {} }, {} }, meta.k)
    assert.equal(7, meta.after)
  end)

  it("refuses broken headers", function()
    local function refuses(bytes, part, want)
      save(bytes)
      local t, message, code = T.load_gguf(path)
      assert.is_nil(t)
      assert.truthy(message:find(part, 1, true), message)
      assert.equal(want or "format", code)
    end
    local u32, data = string.pack("<I4", 7), ("abcd"):rep(32)
    local w = { "w", { 32 }, 0, 0 }
    local good = file({ { "k", 4, u32 } }, { w }, data)
    save(good)
    assert.equal(7, select(2, assert(T.load_gguf(path))).k)
    for n = 0, #good - 1 do
      save(good:sub(1, n))
      assert.is_nil((T.load_gguf(path)))
    end
    refuses("", "not a GGUF file")
    refuses(file({}, {}, "", { magic = "GGUX" }), "not a GGUF file")
    refuses(file({}, {}, "", { version = 1 }), "GGUF version 1; 2 and 3", "unsupported")
    refuses(file({}, {}, "", { version = 0x03000000 }), "version 3 of a big-endian", "unsupported")
    refuses(file({}, { w }, data, { n = 1 << 60 }), "more keys or tensors")
    refuses(file({}, { w }, data, { nkey = -1 }), "more keys or tensors")
    refuses(file({ { "k", 4, u32 }, { "k", 4, u32 } }, {}, ""), "the key 'k' appears twice")
    refuses(file({}, { w, { "w", { 1 }, 0, 128 } }, data .. data), "the tensor 'w' appears twice")
    refuses(file({ { "k", 77, u32 } }, {}, ""), "a value of a kind")
    refuses(file({ { "k", 7, "\2" } }, {}, ""), "neither 0 nor 1")
    for _, text in ipairs { "\xFF", "a\xC0\x80", ("x"):rep(20) .. "\xED\xA0\x80", "\xC3" } do
      refuses(file({ { text, 7, "\1" } }, {}, ""), "not UTF-8")
      refuses(file({ { "k", 8, string.pack("<s8", text) } }, {}, ""), "not UTF-8")
      refuses(file({ { "k", 9, string.pack("<I4I8s8s8", 8, 2, "é", text) } }, {}, ""), "not UTF-8")
      refuses(file({}, { { text, { 32 }, 0, 0 } }, data), "not UTF-8")
    end
    refuses(file({ { "k", 9, string.pack("<I4I8", 0, 1 << 40) } }, {}, ""), "a list longer than the file")
    refuses(file({ { "k", 9, string.pack("<I4I8", 9, 1):rep(20) } }, {}, ""), "nested too deep")
    refuses(file({ { "k", 8, string.pack("<I8", -1) } }, {}, ""), "longer than the file")
    for kind, value in pairs { [4] = string.pack("<I4", 48), [0] = "\32", [2] = "\32\0", [7] = "\1",
      [10] = string.pack("<I8", 32), [8] = string.pack("<s8", "") } do
      refuses(file({ { "general.alignment", kind, value } }, {}, ""), "no power of two")
    end
    refuses(file({ { "general.alignment", 4, string.pack("<I4", 0) } }, {}, ""), "no power of two")
    refuses(file({ { "general.alignment", 4, string.pack("<I4", 1 << 31) } }, {}, ""), "no power of two")
    refuses(file({ { "general.alignment", 8, string.pack("<s8", "32") } }, {}, ""), "no power of two")
    refuses(file({}, { { "w", { 32 }, 200, 0 } }, data), "type 200", "unsupported")
    refuses(file({}, { { "w", { 32 }, 4, 0 } }, data), "type 4", "unsupported")
    refuses(file({}, { { "w", { 32 }, 12, 0 } }, data), "no whole blocks of 256")
    refuses(file({}, { { "w", { 1, 1, 1, 1, 1 }, 0, 0 } }, data), "5 dimensions")
    refuses(file({}, { { "w", {}, 0, 0 } }, data), "0 dimensions")
    refuses(file({}, { { "w", { -1 }, 0, 0 } }, data), "a negative size")
    refuses(file({}, { { "w", { 1 << 33, 1 << 33 }, 0, 0 } }, data), "overflow")
    refuses(file({}, { { "w", { 32 }, 0, 4 } }, data), "not aligned")
    refuses(file({}, { { "w", { 32 }, 0, 32 } }, data), "beyond the end")
    refuses(file({}, { w, { "v", { 8 }, 0, 96 } }, data), "overlaps")
    refuses(file({}, { w, { "v", { 8 }, 0, 0 } }, data), "overlaps")
    refuses(file({}, { { "v", { 8 }, 0, 0 }, w }, data), "overlaps")
    refuses(file({}, { w, { "v", { 32 }, 0, 0 } }, data), "overlaps")
    refuses(file({}, {}, ("\0"):rep(32 * 100001), { n = 100001 }), "more than 100000 keys or tensors")
    refuses(file({}, {}, ("\0"):rep(13 * 100001), { nkey = 100001 }), "more than 100000 keys or tensors")
    refuses(file({}, { { "w", { 256 }, 16, 0 } }, data), "is IQ2_XXS, which perilune cannot", "unsupported")
    fails("unknown dtype 'f64'", T.load_gguf, path, { dtype = "f64" })
    fails("the path must be a string", T.load_gguf, 1)
  end)

  it("reads headers that are longer than the first piece of the file", function()
    local words = {}
    for i = 1, 60000 do words[i] = "word " .. i end
    assert(T.save_gguf(path, { x = T.arange(0, 9) }, { metadata = { words = words } }))
    local t, meta = assert(T.load(path))
    assert.same({ 60000, "word 60000", 9 }, { #meta.words, meta.words[60000], t.x[10]:item() })
  end)
end)

local shared = root .. "/../shared/models/gguf/"
local index = loadfile(shared .. "index.lua")
describe("the collection of GGUF files", function()
  if not index then
    pending "is not beside this checkout"
    return
  end
  for _, name in ipairs { "blocks", "blocks_more" } do
    it("has the numbers of the reference: " .. name, function()
      local want, f = assert(T.load(shared .. name .. ".safetensors")), assert(T.open(shared .. name .. ".gguf"))
      for _, key in ipairs(f.names) do
        local t, message, code = f:read(key)
        local _, stored = f:dtype(key)
        if stored:find "^IQ[123]" then
          assert.same({ nil, "unsupported" }, { t, code }, message)
        else
          near.same_bits(t:to(want[key]:dtype()), want[key])
        end
      end
      f:close()
    end)
  end

  it("has models whose tensors and metadata are read", function()
    for _, model in ipairs(index().models) do
      local t, meta = T.load(shared .. model.name .. ".gguf")
      assert.is_truthy(t, meta)
      assert.equal("string", type(meta["general.architecture"]))
      local n = 0
      for _ in pairs(t) do n = n + 1 end
      assert.equal(model.tensors, n)
    end
  end)

  it("has metadata of every kind", function()
    local _, meta = assert(T.load(shared .. "metadata.gguf"))
    for key, v in pairs(dofile(shared .. "metadata.lua").values) do
      if v ~= "" then assert.same(v, meta[key], key) end -- the writer leaves out empty texts
    end
    assert.same({ "9223372036854775808", "18446744073709551615" }, { meta["k.u64"], meta["k.u64_max"] })
  end)

  it("has broken files, which are refused", function()
    local cases = dofile(shared .. "broken/cases.lua")
    assert(T.load_gguf(shared .. "broken/" .. cases.good))
    for _, f in ipairs(cases.refuse) do
      local before = T.memory().peak
      local t, message, code = T.load_gguf(shared .. "broken/" .. f.file)
      assert.is_nil(t, f.file)
      assert.is_true(#message > 10 and (code == "format" or code == "unsupported"), f.file)
      assert.is_true(T.memory().peak - before < 1 << 20)
    end
  end)
end)
