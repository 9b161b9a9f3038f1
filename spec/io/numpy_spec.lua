-- SPDX-License-Identifier: MIT
-- npy and npz: NumPy's own files, ours read back, broken ones.

local T = require "perilune"
local mutate = require "spec.support.mutate"
local near = require "spec.support.near"
local numpy = require "spec.support.numpy_writer"
local eq, fails = near.near, near.fails
local npy, zip = numpy.npy, numpy.zip

local fixtures = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/"
local path

local function write(bytes)
  local f = assert(io.open(path, "wb"))
  f:write(bytes)
  f:close()
end

local function refused(code, text, bytes, load)
  write(bytes)
  local t, message, got = (load or T.load_npy)(path)
  assert.is_nil(t)
  assert.truthy(message:find(text, 1, true), message)
  assert.truthy(message:find(path, 1, true), message)
  assert.equal(code, got)
end

describe("npy", function()
  before_each(function() path = os.tmpname() end)
  after_each(function() os.remove(path) end)

  it("keeps every dtype and layout that NumPy has", function()
    for _, dtype in ipairs { "f32", "f64", "f16", "i8", "i16", "i32", "i64", "u8", "bool" } do
      local x = T.tensor({ { 0, 1, 1 }, { 1, 0, 1 } }, { dtype = dtype })
      assert.is_true(T.save_npy(path, x))
      near.same_bits(x, assert(T.load_npy(path)))
      assert(T.save_npy(path, x:t()))
      near.same_bits(x:t():contiguous(), assert(T.load_npy(path)))
    end
    for _, x in ipairs { T.tensor(2.5), T.zeros(0, 3), T.ones(4) } do
      assert(T.save_npy(path, x))
      local y = assert(T.load_npy(path))
      assert.same(x:shape(), y:shape())
    end
    assert.equal(0, (#mutate.read(path) - 16) % 64) -- 4 floats behind an aligned header
    fails("NumPy has no dtype bf16", T.save_npy, path, T.ones(2):to("bf16"))
    fails("a tensor is wanted, got 3", T.save_npy, path, 3)
  end)

  it("reads both byte orders, Fortran order, versions 1 to 3, Python 2's sizes", function()
    local header = "{'descr': '%s', 'fortran_order': %s, 'shape': (2, 3), }"
    write(npy(header:format(">i2", "False"), string.pack(">i2i2i2i2i2i2", 1, 2, 3, 4, 5, -6)))
    eq(T.load_npy(path), { { 1, 2, 3 }, { 4, 5, -6 } })
    write(npy(header:format("<f4", "True"), string.pack("<ffffff", 1, 2, 3, 4, 5, 6), 2))
    local x = assert(T.load_npy(path))
    eq(x, { { 1, 3, 5 }, { 2, 4, 6 } })
    assert.same({ 1, 2 }, x:stride())
    write(npy('{"shape": (2L,), "fortran_order": False, "descr": "<u4"}\n', string.pack("<I4I4", 7, 0xffffffff), 3))
    assert.same({ 7, 0xffffffff }, T.load_npy(path):totable())
    write(npy('{"shape": (2,), "fortran_order": False, "descr": ">u8"}\n', string.pack(">I8I8", 7, math.maxinteger), 1))
    assert.same({ 7, math.maxinteger }, T.load_npy(path):totable())
    write(npy('{"shape": (2,), "fortran_order": False, "descr": "<u8"}\n', string.pack("<I8I8", 7, math.mininteger), 1))
    local y, message, code = T.load_npy(path)
    assert.same({ nil, "format" }, { y, code })
    assert.truthy(message:find("9223372036854775808 does not fit into i64", 1, true), message)
  end)

  it("is written as npz, every dtype and layout", function()
    local t = { ["a b/é"] = T.arange(0, 5):view(2, 3), turned = T.arange(6):view(2, 3):t(), s = T.tensor(2.5),
      none = T.zeros(0, 3) }
    for _, dtype in ipairs { "f64", "f16", "i8", "i16", "i32", "u8", "bool" } do
      t[dtype] = T.ones({ 3 }, { dtype = dtype })
    end
    assert.is_true(T.save_npz(path, t))
    local got, names = T.load_npz(path)
    local n = 0
    for name, x in pairs(t) do
      near.same_bits(got[name], x:contiguous())
      n = n + 1
    end
    assert.equal(n, #names)
    assert(T.save_npz(path, {}))
    assert.same({}, (assert(T.load_npz(path))))
    fails("no dtype bf16", T.save_npz, path, { x = T.ones({ 1 }, { dtype = "bf16" }) })
    fails("it has 3 under", T.save_npz, path, { x = 3 })
    fails("a name that is empty", T.save_npz, path, { [""] = T.ones(1) })
    fails("a table of tensors", T.save_npz, path, T.ones(1))
    assert.equal("io", select(3, T.save_npz("/nowhere/x.npz", t)))
  end)

  it("that is malformed comes back as nil, message, code", function()
    local good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"
    refused("format", "not an npy file", "\0\0\8\1aaaaaaaaaaaa")
    local function wide(extra)
      return zip({ { "a.npy", npy(good, "12345678"), { extra = extra } } }, true)
    end
    local pack = string.pack
    for _, extra in ipairs { "", "abc", pack("<I2s2", 7, "other"), pack("<I2I2", 1, 24), pack("<I2s2", 1, ""),
      pack("<I2s2", 1, ("x"):rep(23)), pack("<I2s2I2s2", 7, "", 1, "1234567") } do
      refused("format", "a 64-bit size is missing", wide(extra), T.load_npz)
    end
    write(zip { { "a", npy(good, "12345678") } }) -- no array: its name does not end in .npy
    assert.is_nil(next((assert(T.load_npz(path)))))
    refused("format", "ends early", "\x93NUMPY\1\0\255\255")
    refused("format", "npy version 9", npy(good, "12345678", 9))
    refused("format", "npy version 1.2", (npy(good, "12345678"):gsub("^(.......).", "%1\2")))
    refused("format", "behind the dictionary", npy(good .. "\0", "12345678"))
    refused("format", "a size was due", npy(good:gsub("%(2", "(\0" .. "2"), "12345678"))
    refused("format", "a NUL in descr", npy(good:gsub("<f4", "<f4\0"), "12345678"))
    refused("format", "a tuple: (n,)", npy(good:gsub("2,", "2"), "12345678"))
    refused("format", "',' or ')' was due", npy(good:gsub("2,", "1 2"), "12345678"))
    refused("format", "begins with 0", npy(good:gsub("2,", "02,"), "12345678"))
    refused("format", "holds", "x", function(p) return nil, p .. " holds", "format" end)
    refused("format", "truncated", npy(good, "1234567"))
    refused("format", "1 bytes more", npy(good, "123456789"))
    refused("format", "sizes overflow", npy(good:gsub("2,", "4611686018427387904, 4611686018427387904"), ""))
    refused("format", "a size overflows", npy(good:gsub("2,", "99999999999999999999"), ""))
    refused("format", "truncated", npy(good:gsub("2,", "1000000000000,"), "1234"))
    refused("format", "more than 16 dimensions", npy(good:gsub("2,", ("1,"):rep(17)), "1234"))
    refused("format", "a size was due", npy(good:gsub("2,", "-2,"), "12345678"))
    refused("format", "once each", npy(good:gsub("'shape'", "'descr'"), "12345678"))
    refused("format", "are due", npy("{'descr': '<f4'}", ""))
    refused("format", "text behind", npy(good .. "x", "12345678"))
    refused("format", "a bool is neither", npy(good:gsub("<f4", "|b1"), "\0\2"))
    refused("unsupported", "Python objects are code", npy(good:gsub("<f4", "|O"), "12345678"))
    refused("unsupported", "complex", npy(good:gsub("<f4", "complex"), "12345678"))
    refused("unsupported", "structured arrays", npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}"))
    local t, message, code = T.load_npy(path .. ".none")
    assert.is_nil(t)
    assert.truthy(message:find("No such file", 1, true))
    assert.equal("io", code)
    write(npy(good, "12345678"))
    t, message = T.load_npy(path, { max_bytes = 7 })
    assert.is_nil(t)
    assert.truthy(message:find("max_bytes = 7", 1, true))
    fails("the path must be a string", T.load_npy, 3)
    fails("unknown option 'maxbytes'", T.load_npy, path, { maxbytes = 1 })
  end)
end)

describe("npz", function()
  before_each(function() path = os.tmpname() end)
  after_each(function() os.remove(path) end)
  local one = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", string.pack("<f", 5))

  it("of NumPy, deflated, is read", function()
    local z, names, code = T.load_npz(fixtures .. "arrays.npz")
    if code == "unsupported" then return pending(names) end
    assert.same({ "f4", "big", "fortran", "zeros", "flags", "half", "word" }, names)
    eq(z.f4, { { 0, 1, 2 }, { 3, 4, 5 } })
    assert.equal("i32", z.big:dtype())
    eq(z.big, { 0, 1, 2 })
    eq(z.fortran, { { 0, 1, 2 }, { 3, 4, 5 } })
    assert.same({ 50, 40 }, z.zeros:shape())
    assert.same({ true, false }, z.flags:totable())
    eq(z.half, { 1.5, -2 })
    assert.same({ 65535 }, z.word:totable())
  end)

  it("stored is read, and malformed refused", function()
    write(zip { { "a.npy", one }, { "b.npy", one } })
    eq(assert(T.load_npz(path)).b, { 5 })
    refused("format", "not a zip archive", "hello", T.load_npz)
    refused("format", "wrong checksum", zip { { "a.npy", one, { crc = 1 } } }, T.load_npz)
    refused("unsupported", "encrypted", zip { { "a.npy", one, { flags = 1 } } }, T.load_npz)
    refused("unsupported", "zip method 12", zip { { "a.npy", one, { method = 12 } } }, T.load_npz)
    local huge = { size = 1 << 31, packed = 1 << 31 }
    refused("format", "does not fit the file", zip { { "a.npy", one, huge } }, T.load_npz)
    refused("format", "members overlap", zip { { "a.npy", one }, { "b.npy", one, { at = 0 } } }, T.load_npz)
    refused("format", "one name", zip { { "a.npy", one }, { "a.npy", one } }, T.load_npz)
    refused("format", "it is member 'b.npy'", zip { { "a.npy", one }, { "b.npy", "some text" } }, T.load_npz)
    write(zip { { "readme.txt", "some text" }, { "a.npy", one } }) -- what is no array is passed over
    local only, names = T.load_npz(path)
    eq(only.a, { 5 })
    assert.same({ "a" }, names)
    if T.load_npz(fixtures .. "arrays.npz") then
      refused("format", "ends early", zip { { "a.npy", one, { method = 8 } } }, T.load_npz)
    end
    write(zip { { "a.npy", one } })
    local z, message = T.load_npz(path, { max_bytes = 10 })
    assert.is_nil(z)
    assert.truthy(message:find("max_bytes = 10", 1, true))
  end)

  -- A reader that goes by the directory and one that goes by what is in front of the members must see the same files.
  it("is the same arrays or refused, whatever byte of its headers is another", function()
    local two = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", string.pack("<f", 7))
    local good = zip { { "a.npy", one }, { "b.npy", two } }
    local data, tried, taken = { good:find(one, 1, true) }, 0, 0
    local more = { good:find(two, 1, true) }
    for at = 1, #good do
      local inside = at >= data[1] and at <= data[2] or at >= more[1] and at <= more[2] -- the checksum's matter
      for _, with in ipairs { 0, 1, 0x20, 0xff } do
        local byte = string.char(good:byte(at) ~ (with == 0 and good:byte(at) or with))
        if not inside and byte ~= good:sub(at, at) then
          tried = tried + 1
          write(good:sub(1, at - 1) .. byte .. good:sub(at + 1))
          local z = T.load_npz(path)
          if z then
            taken = taken + 1
            assert.same({ 5 }, z.a and z.a:totable(), ("byte %d, %d"):format(at, with))
            assert.same({ 7 }, z.b and z.b:totable(), ("byte %d, %d"):format(at, with))
          end
        end
      end
    end
    assert.is_true(tried > 600 and taken > 50 and taken < tried // 2, ("%d of %d"):format(taken, tried))
  end)

  it("is read from archives with fields of 64 bits, whatever is damaged", function()
    local good = zip({ { "a.npy", one }, { "b.npy", one } }, true)
    write(good)
    local z, names = assert(T.load_npz(path))
    eq(z.a, { 5 })
    eq(z.b, { 5 })
    assert.same({ "a", "b" }, names)
    local from = good:find("PK\1\2", 1, true) -- the directory and what is behind it
    for i = from, #good do
      for _, change in ipairs { 1, 0x80, 0xff } do
        write(good:sub(1, i - 1) .. string.char(good:byte(i) ~ change) .. good:sub(i + 1))
        local got, why, code = T.load_npz(path)
        if got then -- a field that nobody reads, or a name
          for _, t in pairs(got) do eq(t, { 5 }) end
        else
          assert.is_true(code == "format" or code == "unsupported", why)
        end
      end
      write(good:sub(1, i - 1) .. good:sub(i + 1))
      assert.is_nil((T.load_npz(path)))
    end
    refused("format", "no 64-bit locator", good:sub(#good - 21), T.load_npz)
  end)
end)
