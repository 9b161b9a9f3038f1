-- SPDX-License-Identifier: MIT
-- Saving and loading: what comes back, files of others, malformed files, failing disks.

local T = require "perilune"
local near = require "spec.support.near"
local live = require "spec.support.live"
local eq, fails = near.near, near.fails

local path
local function fresh()
  path = os.tmpname()
end
local function clean()
  os.remove(path)
  path = nil
end

local function write(bytes, where)
  local f = assert(io.open(where or path, "wb"))
  f:write(bytes)
  f:close()
end

local function read(where)
  local f = assert(io.open(where or path, "rb"))
  local s = f:read("a")
  f:close()
  return s
end

-- A file of a header text and bytes of data.
local function file(header, body) return string.pack("<I8", #header) .. header .. (body or "") end

local function temp_files()
  local p = io.popen("ls " .. path .. ".tmp* 2>/dev/null")
  local s = p:read("a")
  p:close()
  return s
end

describe("save and load", function()
  before_each(fresh)
  after_each(clean)

  it("keep dtypes, shapes, values and layouts", function()
    local sd = {}
    for _, dtype in ipairs { "f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "bool" } do
      sd[dtype] = T.tensor({ { 0, 1, 1 }, { 1, 0, 1 } }, { dtype = dtype })
    end
    sd.turned = T.arange(6):view(2, 3):t()
    sd.part = T.arange(10)[{ { 3, 9, 2 } }]
    sd.wide = T.ones(1):expand { 4, 3 }
    sd.none = T.zeros(0, 3)
    sd.scalar = T.tensor(2.5)
    sd['odd "name"\n\\ é'] = T.ones(1)
    assert.is_true(T.save(path, sd, { metadata = { author = "me" } }))
    local got, meta = assert(T.load(path))
    local n = 0
    for name, t in pairs(got) do
      n = n + 1
      assert.same(sd[name]:shape(), t:shape())
      near.same_bits(t, sd[name]:contiguous())
    end
    assert.equal(16, n)
    assert.same({ author = "me" }, meta)
  end)

  -- T.load gives the file's metadata, too: what is written load_state_dict(T.load(path)) has two arguments.
  it("give what takes a state its state, whatever takes one", function()
    local saved, given = os.tmpname(), 0
    local function restores(what, object, other)
      local state = object:state_dict()
      assert(T.save(saved, state, { metadata = { format = "pt" } }))
      local _, meta = T.load(saved)
      assert.equal("pt", meta.format)
      local fine, why = pcall(function() other:load_state_dict(T.load(saved)) end)
      assert.is_true(fine, what .. ": " .. tostring(why))
      local same = T.load(saved)
      assert.is_true(pcall(other.load_state_dict, other, same), what)
      local extra, told = pcall(function() other:load_state_dict(same, { format = "pt" }) end)
      assert.is_false(extra, what)
      assert.truthy(tostring(told):find("format", 1, true), told)
      extra = pcall(function() other:load_state_dict(same, meta) end) -- of another reading
      assert.is_false(extra, what)
      extra, told = pcall(function() other:load_state_dict(T.load "/nowhere/state") end)
      assert.is_false(extra, what)
      assert.truthy(tostring(told):find("No such file", 1, true), told)
      given = given + 1
    end
    local function net() return T.nn.Linear(2, 2) end
    local function trained(make)
      local l = net()
      local fine, o = pcall(make, l:parameters(), { lr = 0.01 })
      if not fine then return nil end
      l(T.ones(1, 2)):sum():backward()
      pcall(o.step, o)
      return o
    end
    for name, make in pairs(T.optim) do
      local one = type(make) ~= "string" and type(name) == "string" and name:find "^%u" and trained(make)
      if one and one.state_dict then restores("optim." .. name, one, trained(make)) end
    end
    local sched = T.optim.lr_scheduler
    local function sgd() return T.optim.SGD(net():parameters(), { lr = 1 }) end
    for name, opts in pairs { StepLR = { step_size = 2 }, ExponentialLR = { gamma = 0.5 }, ReduceLROnPlateau = {},
      CosineAnnealingLR = { T_max = 4 }, LinearLR = {}, ConstantLR = {}, MultiStepLR = { milestones = { 2 } } } do
      restores(name, sched[name](sgd(), opts), sched[name](sgd(), opts))
    end
    restores("GradScaler", T.GradScaler(), T.GradScaler())
    restores("a module", net(), net())
    assert.is_true(given > 15, given)
    os.remove(saved)
  end)

  it("keep nested tables and plain values", function()
    local t = {
      model = { ["1.weight"] = T.ones(2), ["1.bias"] = T.zeros(1) }, list = { T.full({ 1 }, 3), { 4,
        "five" } },
      epoch = 3, rate = 0.1, huge = math.huge, big = math.maxinteger, small = -0.0, ["a.b"] = T.ones(1),
      a = { b = T.zeros(1) }, text = "ü\0\1\n\\\"", flag = false, [7] = "seven", empty = {},
    }
    assert(T.save(path, t))
    local got, meta = assert(T.load(path))
    eq(got.model["1.weight"], { 1, 1 })
    eq(got.list[1], 3)
    assert.same({ 4, "five" }, got.list[2])
    assert.equal("integer", math.type(got.epoch))
    assert.equal(0.1, got.rate)
    assert.equal(math.huge, got.huge)
    assert.equal(math.maxinteger, got.big)
    assert.equal(-math.huge, 1 / got.small)
    eq(got["a.b"], 1)
    eq(got.a.b, 0)
    assert.equal(t.text, got.text)
    assert.is_false(got.flag)
    assert.equal("seven", got[7])
    assert.same({}, got.empty)
    assert.same({}, meta)
  end)

  it("write equal bytes for equal tables, aligned, in the format's order", function()
    local function state() return { b = T.ones(3), a = T.zeros(2), c = T.ones({ 1 }, { dtype = "f64" }),
      m = T.ones({ 1 }, { dtype = "bool" }) } end
    assert(T.save(path, state()))
    local one = read()
    assert(T.save(path, state()))
    assert.equal(one, read())
    local n = string.unpack("<I8", one)
    assert.equal(0, n % 8)
    local names = {}
    for name in pairs(assert(T.load(path))) do names[#names + 1] = name end
    assert.same({ "c", "a", "b", "m" }, names)
    assert.equal('{"c":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}', one:sub(9, 61))
  end)

  it("read files of other writers", function()
    write(file('{ "b" : {"shape":[2] ,"data_offsets":[4, 8],"dtype":"I16"},\n "a\\u00e9\\ud83d\\ude00":' ..
      '{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}, "__metadata__":{"format":"pt"}}   ',
      "\x80\x3f\x00\x40\1\0\255\255"))
    local got, meta = assert(T.load(path))
    eq(got["aé😀"], { 1, 2 })
    eq(got.b, { 1, -1 })
    assert.equal("pt", meta.format)
    write(file("{}"))
    assert.is_nil((next((assert(T.load(path))))))
  end)

  it("read names written as escapes, of all lengths in UTF-8", function()
    for _, c in ipairs { 0x20, 0x7f, 0x80, 0x7ff, 0x800, 0x20ac, 0xd7ff, 0xe000, 0xffff, 0x10000, 0x1f600, 0x10ffff } do
      local escape = c < 0x10000 and ("\\u%04x"):format(c)
        or ("\\u%04X\\u%04x"):format(0xd800 + (c - 0x10000 >> 10), 0xdc00 + (c - 0x10000 & 1023))
      write(file(('{"x%sy":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"z":{"dtype":"U8","shape":[0],'
        .. '"data_offsets":[1,1]},"w":{"dtype":"F32","shape":[0,2],"data_offsets":[1,1]}}'):format(escape), "\7"))
      local got = assert(T.load(path))
      assert.equal(7, got["x" .. utf8.char(c) .. "y"]:item())
      assert.same({ 0, 2 }, got.w:shape())
    end
  end)

  it("are written through into what is no plain file", function()
    if not os.execute(("rm -f '%s' && mkfifo '%s' 2>/dev/null"):format(path, path)) then return pending "no mkfifo" end
    local reader = assert(io.popen(("cat '%s'"):format(path)))
    assert.is_true(T.core.write_file(path, "through"))
    assert.equal("through", reader:read "a")
    reader:close()
    assert.is_true(os.execute(("test -p '%s'"):format(path)))
  end)

  it("replace a file without ever breaking it, keeping its permissions", function()
    assert(T.save(path, { x = T.ones(2) }))
    os.execute("chmod 640 " .. path)
    assert(T.save(path, { x = T.zeros(2) }))
    eq(assert(T.load(path)).x, 0)
    local p = io.popen("stat -c %a " .. path)
    assert.equal("640\n", p:read("a"))
    p:close()
    assert.equal("", temp_files())
    os.execute(("ln -s %s %s.link"):format(path, path))
    assert(T.save(path .. ".link", { x = T.full({ 2 }, 5) }))
    eq(assert(T.load(path)).x, 5)
    os.remove(path .. ".link")
  end)

  it("refuse what cannot be saved", function()
    for ending, want in pairs { gguf = "T.save_gguf", onnx = "T.onnx.save", npz = "T.save_npz", npy = "T.save_npy",
      PNG = "T.save_image", pt = "PyTorch (which reads .safetensors, too: safetensors.torch.load_file)" } do
      local ok, message = pcall(T.save, "x." .. ending, { w = T.ones(1) })
      assert.is_false(ok)
      assert.truthy(message:find("T.save writes safetensors; " .. want .. " writes such files", 1, true), message)
    end
    fails("save net:state_dict()", T.save, path, T.nn.Linear(1, 1))
    fails("'f' is a function", T.save, path, { f = print })
    local loop = { T.ones(1) }
    loop.self = loop
    fails("contains itself", T.save, path, loop)
    fails("not UTF-8", T.save, path, { ["\xff"] = T.ones(1) })
    fails("reserved", T.save, path, { __metadata__ = T.ones(1) })
    fails("the path must be a string", T.save, { x = T.ones(1) }, path)
    fails("unknown option 'meta'", T.save, path, { x = T.ones(1) }, { meta = {} })
    fails("metadata must be strings", T.save, path, { x = T.ones(1) }, { metadata = { a = 1 } })
    fails("zero byte", T.load, "a\0b")
  end)

  it("report a disk that fails, leaving the old file", function()
    local x = { x = T.ones(100000) }
    for where, part in pairs { ["/nowhere/x"] = "No such file", ["/dev/full"] = "not a regular file",
      ["/tmp"] = "not a regular file" } do
      local ok, message, code = T.save(where, x)
      assert.is_nil(ok)
      assert.is_truthy(message:find(part, 1, true), message)
      assert.equal("io", code)
    end
    assert(T.save(path, { x = T.full({ 2 }, 7) }))
    -- A limit on file sizes is a disk that is full: a child of the shell, which ignores the signal.
    local script = os.tmpname()
    write(([[
      local T = require "perilune"
      local ok, message, code = T.save(%q, { x = T.ones(100000) })
      io.write(tostring(ok), " ", tostring(code), " ", tostring(message))]]):format(path), script)
    local i = -1
    while arg[i - 1] do i = i - 1 end
    local first = arg[i]:find("perilune$") and arg[i] .. " run" or arg[i]
    local command = "trap '' XFSZ; ulimit -f 64; LUA_PATH=%q LUA_CPATH=%q %s %s 2>&1"
    local p = io.popen(command:format(package.path, package.cpath, first, script))
    local out = p:read("a")
    p:close()
    os.remove(script)
    assert.is_truthy(out:find("^nil io .*cannot write"), out)
    eq(assert(T.load(path)).x, 7)
    assert.equal("", temp_files())
  end)
end)

describe("load", function()
  before_each(fresh)
  after_each(clean)

  local function refuses(bytes, part, want)
    write(bytes)
    local t, message, code = T.load(path)
    assert.is_nil(t)
    assert.is_truthy(message:find(part, 1, true), message)
    assert.equal(want or "format", code)
  end

  local function header(text, body) return file('{"a":{"dtype":"F32",' .. text .. "}}", body or
    ("\0"):rep(8)) end

  it("tells missing files", function()
    local t, message, code, errno = T.load(path .. ".missing")
    assert.is_nil(t)
    assert.is_truthy(message:find("No such file", 1, true))
    assert.same({ "io", 2 }, { code, errno })
  end)

  it("refuses malformed headers", function()
    refuses("", "not a safetensors file")
    refuses("\1\2\3", "not a safetensors file")
    refuses(string.pack("<I8", 1 << 40) .. "{}", "truncated")
    refuses(("\xff"):rep(8) .. "{}", "truncated")
    write(string.pack("<I8", 100000001) .. "{}")
    os.execute(("truncate -s 100000100 '%s'"):format(path))
    local _, message = T.load(path)
    assert.truthy(message:find("a header of 100000001 bytes; safetensors files have at most 100000000", 1, true))
    refuses(file("[]"), "must begin with '{'")
    refuses(file("{"), "expected '\"'")
    refuses(file("{}x"), "behind the closing")
    refuses(file('{"a":3}'), "expected '{'")
    refuses(header '"shape":[2],"data_offsets":[0,8],"extra":1', "nothing else")
    refuses(header '"shape":[2],"data_offsets":[0,8],"dtype":"F32"', "a key appears twice")
    refuses(header '"shape":[2]', "needs dtype, shape and data_offsets")
    refuses(header '"shape":[-2],"data_offsets":[0,8]', "non-negative integer")
    refuses(header '"shape":[2.0],"data_offsets":[0,8]', "expected an integer")
    refuses(header '"shape":[02],"data_offsets":[0,8]', "begins with 0")
    refuses(header '"shape":[99999999999999999999],"data_offsets":[0,8]', "too large")
    refuses(header '"shape":[4294967296,4294967296],"data_offsets":[0,8]', "overflows")
    refuses(header '"shape":[4294967296,4294967296,0],"data_offsets":[0,0]', "overflows")
    refuses(header('"shape":[' .. ("1,"):rep(16) .. '2],"data_offsets":[0,8]'), "too many dimensions")
    refuses(header '"shape":[3],"data_offsets":[0,8]', "do not fit")
    refuses(header '"shape":[2],"data_offsets":[8,0]', "do not fit")
    refuses(file('{"a":{"dtype":"F9","shape":[1],"data_offsets":[0,1]}}', "x"), '"a" has dtype F9', "unsupported")
    refuses(file('{"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}', ("x"):rep(8)),
      '"a" has dtype C64', "unsupported")
    refuses(file('{"a":{"dtype":"F4","shape":[16],"data_offsets":[0,8]}}', ("x"):rep(8)),
      '"a" has dtype F4', "unsupported")
    refuses(file('{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}', "x"), "do not fill the last one")
    refuses(file('{"\\ud800":{}}'), "surrogate")
    refuses(file('{"\\x":{}}'), "unknown escape")
    refuses(file('{"\\'), "unknown escape")
    for name, why in pairs { ["\\udc00"] = "surrogate", ["\\ud800\\u0041"] = "surrogate", ["\\ud800x"] = "surrogate",
      ["\\ud800\\x0000"] = "surrogate", ["\\u12g4"] = "four hexadecimal", ["\\u12"] = "four hexadecimal",
      ["\xe0\x80\x80"] = "not UTF-8", ["\xed\xa0\x80"] = "not UTF-8", ["\xf0\x80\x80\x80"] = "not UTF-8",
      ["\xf4\x90\x80\x80"] = "not UTF-8", ["\xf5\x80\x80\x80"] = "not UTF-8", ["\xc1\x80"] = "not UTF-8",
      ["\xe2\x28\xa1"] = "not UTF-8", ["\x80"] = "not UTF-8" } do
      refuses(file('{"' .. name .. '":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), why)
    end
    refuses(file '{"\xe2\x82', "not UTF-8")
    for size, why in pairs { ["1.5"] = "an integer", ["1e1"] = "an integer", ["1E1"] = "an integer",
      ["+1"] = "non-negative", ["NaN"] = "non-negative", ["null"] = "non-negative", ['"2"'] = "non-negative",
      ["9223372036854775808"] = "too large", ["18446744073709551616"] = "too large", ["2 2"] = "expected ']'" } do
      refuses(header('"shape":[' .. size .. '],"data_offsets":[0,8]'), why)
      refuses(header('"shape":[2],"data_offsets":[0,' .. size .. ']'), why)
    end
    refuses(header '"shape":[2,],"data_offsets":[0,8]', "non-negative")
    refuses(header '"shape":[2],"data_offsets":[0,8,]', "expected ']'")
    refuses(file(("{"):rep(2000)), "expected '\"'")
    refuses(file('{"\1":{}}'), "control character")
    refuses(file('{"\xc0\x80":{}}'), "not UTF-8")
    refuses(file('{"__metadata__":{"a":1}}'), "expected '\"'")
    refuses(file('{"__metadata__":{},"__metadata__":{"a":"b"},"__metadata__":{}}'), "twice")
  end)

  it("reads unsigned integers into the next wider dtype, and white space before a header", function()
    write(file(' \n{"a":{"dtype":"U16","shape":[3],"data_offsets":[0,6]},' ..
      '"b":{"dtype":"U32","shape":[1,2],"data_offsets":[6,14]},' ..
      '"c":{"dtype":"U64","shape":[2],"data_offsets":[14,30]},' ..
      '"d":{"dtype":"U64","shape":[0],"data_offsets":[30,30]},"e":{"dtype":"U8","shape":[1],"data_offsets":[30,31]}}',
      string.pack("<I2I2I2I4I4I8I8B", 1, 65535, 32768, 7, 0xffffffff, 5, math.maxinteger, 200)))
    local t = assert(T.load(path))
    assert.same({ { 1, 65535, 32768 }, { { 7, 0xffffffff } }, { 5, math.maxinteger }, {}, { 200 } },
      { t.a:totable(), t.b:totable(), t.c:totable(), t.d:totable(), t.e:totable() })
    assert.same({ "i32", "i64", "i64", "u8" }, { t.a:dtype(), t.b:dtype(), t.c:dtype(), t.e:dtype() })
    refuses(file('{"c":{"dtype":"U64","shape":[1],"data_offsets":[0,8]}}', ("\xff"):rep(8)),
      "18446744073709551615 does not fit into i64")
    refuses(file('{"c":{"dtype":"U16","shape":[2],"data_offsets":[0,8]}}', ("\0"):rep(8)), "do not fit")
    refuses(file('{"c":{"dtype":"U32","shape":[4611686018427387904],"data_offsets":[0,8]}}', ("\0"):rep(8)), "overflow")
  end)

  -- Every code of each format, by the formats' own definitions, written out in plain Lua.
  it("reads floats of 8 bits exactly, into f16, and powers of two into f32", function()
    local function value(b, m_bits, bias, fnuz, ieee)
      local m, e = b & (1 << m_bits) - 1, (b & 0x7f) >> m_bits
      local sign, top = b >= 128 and -1 or 1, 0x7f >> m_bits
      if fnuz and b == 0x80 then return 0 / 0 end
      if ieee and e == top then return m == 0 and sign * math.huge or 0 / 0 end
      if not fnuz and not ieee and (b & 0x7f) == 0x7f then return 0 / 0 end
      if e == 0 then return sign * m * 2.0 ^ (1 - bias - m_bits) end
      return sign * (1 + m / (1 << m_bits)) * 2.0 ^ (e - bias)
    end
    local kinds = {
      F8_E4M3 = function(b) return value(b, 3, 7) end,
      F8_E5M2 = function(b) return value(b, 2, 15, false, true) end,
      F8_E4M3FNUZ = function(b) return value(b, 3, 8, true) end,
      F8_E5M2FNUZ = function(b) return value(b, 2, 16, true) end,
      F8_E8M0 = function(b) return b == 255 and 0 / 0 or 2.0 ^ (b - 127) end,
    }
    local all = {}
    for b = 0, 255 do all[b + 1] = string.char(b) end
    for kind, f in pairs(kinds) do
      write(file(('{"a":{"dtype":"%s","shape":[2,128],"data_offsets":[0,256]}}'):format(kind), table.concat(all)))
      local t = assert(T.load(path)).a
      assert.equal(kind == "F8_E8M0" and "f32" or "f16", t:dtype())
      local got = t:reshape(256):to("f64"):totable()
      for b = 0, 255 do
        local want = f(b)
        if want ~= want then
          assert.is_true(got[b + 1] ~= got[b + 1], ("%s %d"):format(kind, b))
        else
          assert.equal(want, got[b + 1], ("%s %d"):format(kind, b))
        end
      end
    end
    -- what others make of them: the largest values, the smallest, one
    write(file('{"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}', "\x7e\x38\x01\xfe"))
    assert.same({ 448.0, 1.0, 2.0 ^ -9, -448.0 }, assert(T.load(path)).a:totable())
    write(file('{"a":{"dtype":"F8_E5M2","shape":[4],"data_offsets":[0,4]}}', "\x7b\x3c\x01\xfc"))
    assert.same({ 57344.0, 1.0, 2.0 ^ -16, -math.huge }, assert(T.load(path)).a:totable())
  end)

  it("names files of other kinds", function()
    local function member(name)
      return "PK\3\4" .. ("\0"):rep(22) .. string.pack("<I2I2", #name, 0) .. name .. "rest"
    end
    for bytes, text in pairs {
      [member "x.npy"] = "an npz archive; T.load_npz", [member "readme"] = "a zip archive",
      ["PK\3\4"] = "a zip archive", ["PK\3\4" .. ("\xff"):rep(40)] = "a zip archive",
      ["\x80\4\x95\20\0\0\0\0\0\0\0}"] = "a pickle",
      ["\x89HDF\r\n\x1a\n\0\0"] = "an HDF5 file",
      ["\x1f\x8b\8\0\0\0\0\0\0\3"] = "gzip", ["version https://git-lfs.github.com/spec/v1\n"] = "Git LFS pointer",
    } do
      refuses(bytes, "not a safetensors file but ")
      refuses(bytes, text)
    end
    assert(T.save_npy(path, T.ones(3)))
    refuses(read(), "T.load_npy")
    for _, kind in ipairs { 3, 4 } do
      refuses(string.pack("<i4i4i4", kind, 1, 3) .. "V 1", "T.load_t7")
      refuses(("%d\n1\n3\nV 1\n"):format(kind), "T.load_t7")
    end
    -- a header of as many bytes as a pickle's first bytes say is one
    local text = "{}" .. (" "):rep(0x280 - 2)
    write(file(text))
    assert.same({}, assert(T.load(path)))
  end)

  it("refuses offsets that overlap, leave holes or miss the end", function()
    local function two(a, b, n)
      local entry = '"%s":{"dtype":"U8","shape":[2],"data_offsets":[%s]}'
      return file("{" .. entry:format("a", a) .. "," .. entry:format("b", b) .. "}", ("\0"):rep(n))
    end
    refuses(two("0,2", "1,3", 3), "overlap")
    refuses(two("0,2", "3,5", 5), "hole")
    refuses(two("0,2", "2,4", 3), "truncated")
    refuses(two("0,2", "2,4", 5), "too long")
    refuses(file('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},' ..
      '"\\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', "xx"), "appears twice")
    refuses(file('{"__metadata__":{},"__metadata__":{}}'), "__metadata__ appears twice")
    refuses(file('{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}', "\2"), "neither 0 nor 1")
  end)

  it("refuses broken plain data", function()
    for _, tree in ipairs { "", "x", "t", "ti1;", "ti1;i2;", "i5;", "ti1;s9:abce", "ti1;T1:qe", "tt",
      "tb0b2e",
      "ti1;b1ei2;" } do
      refuses(file(('{"__metadata__":{"perilune.tree":"%s"}}'):format(tree)), "malformed")
    end
  end)

  it("survives any cut and any changed byte, leaving nothing behind", function()
    assert(T.save(path, { a = T.ones(3), b = { T.zeros(2), "text", 5 } }, { metadata = { k = "v" } }))
    local good = read()
    for n = 0, #good - 1 do
      write(good:sub(1, n))
      assert.is_nil((T.load(path)))
    end
    live.flat(T, function()
      local state = 1
      for _ = 1, 400 do
        state = (state * 1103515245 + 12345) % 2147483648
        local at, byte = state // 7 % #good + 1, state // 65536 % 256
        write(good:sub(1, at - 1) .. string.char(byte) .. good:sub(at + 1))
        local t, message, code = T.load(path)
        assert.is_true(t ~= nil or (type(message) == "string" and (code == "format" or
          code == "unsupported")))
      end
    end)
  end)
end)

describe("load_idx", function()
  local load_idx = require("perilune.io").load_idx
  before_each(fresh)
  after_each(clean)

  local function refuses(part, want)
    local t, message, code = load_idx(path)
    assert.is_nil(t)
    assert.is_truthy(message:find(part, 1, true), message)
    assert.equal(want or "format", code)
  end

  local function gzip(bytes, tail)
    write(bytes)
    os.execute(("gzip -nc %s > %s.gz && mv %s.gz %s"):format(path, path, path, path))
    if tail then write(read() .. tail) end
  end

  it("reads every type, big-endian, gzipped or not", function()
    for code, row in pairs { [0x08] = { "u8", ">BB", 3, 250 }, [0x09] = { "i8", ">bb", 3, -2 },
      [0x0B] = { "i16", ">hh", 300, -2 }, [0x0C] = { "i32", ">i4i4", 70000, -2 },
      [0x0D] = { "f32", ">ff", 1.5, -2 }, [0x0E] = { "f64", ">dd", 0.1, -2 } } do
      local bytes = string.pack(">BBBB I4 I4", 0, 0, code, 2, 1, 2) .. string.pack(row[2], row[3], row[4])
      write(bytes)
      local t = assert(load_idx(path))
      assert.equal(row[1], t:dtype())
      assert.same({ { row[3], row[4] } }, t:totable())
      gzip(bytes)
      assert.is_true(assert(load_idx(path)):equal(t))
    end
    write("\0\0\8\0x")
    assert.equal(0, assert(load_idx(path)):dim())
    write("\0\0\8\1" .. string.pack(">I4", 0))
    assert.equal(0, assert(load_idx(path)):numel())
  end)

  it("refuses malformed files", function()
    local good = "\0\0\8\2" .. string.pack(">I4I4", 2, 3) .. "abcdef"
    for n = 0, #good - 1 do
      write(good:sub(1, n))
      refuses ""
    end
    write(good .. "g")
    refuses "1 bytes more"
    write("\1\0\8\1" .. good)
    refuses "two zero bytes"
    write("\0\0\7\1" .. good)
    refuses "unknown IDX element type 0x07"
    write("\0\0\8\255" .. ("\0"):rep(255 * 4))
    refuses "255 dimensions"
    write("\0\0\14\4" .. ("\xff"):rep(16))
    refuses "overflow"
    write("\0\0\8\1" .. ("\xff"):rep(4) .. "abc")
    refuses "truncated"
    os.remove(path)
    refuses("No such file", "io")
  end)

  it("refuses broken gzip, and bombs before they are unpacked", function()
    local good = "\0\0\8\1" .. string.pack(">I4", 2000) .. ("ab"):rep(1000)
    gzip(good)
    local packed, whole = read(), assert(load_idx(path))
    for n = 2, #packed - 1 do
      write(packed:sub(1, n))
      refuses ""
    end
    for at = 11, #packed do -- behind the gzip header, whose fields say little
      write(packed:sub(1, at - 1) .. string.char(packed:byte(at) ~ 0x10) .. packed:sub(at + 1))
      local t, _, code = load_idx(path) -- bits behind the last code are free
      assert.is_true(code == "format" or (t ~= nil and t:equal(whole)))
    end
    gzip(good, "garbage")
    refuses "corrupt gzip"
    gzip(good .. "x")
    refuses "more data than the header declares"
    gzip(good:sub(1, -2))
    refuses "ends early"
    gzip("\0\0\8\1" .. string.pack(">I4", 0x7fffffff) .. "ab")
    local before = T.memory().peak
    refuses "the file can hold"
    assert.is_true(T.memory().peak - before < 1 << 20)
    gzip(good)
    local t, message = load_idx(path, { max_bytes = 1999 })
    assert.is_nil(t)
    assert.is_truthy(message:find("max_bytes", 1, true))
  end)
end)

describe("a file beside the target that someone put there", function()
  before_each(fresh)
  after_each(clean)

  it("is never written through: temporary files are made new", function()
    local f = assert(io.open "/proc/self/stat")
    local pid = f:read "n"
    f:close()
    local victim = os.tmpname()
    local writers = {
      save = function(p) return T.save(p, { x = T.ones(3) }) end,
      save_npy = function(p) return T.save_npy(p, T.ones(3)) end,
      save_png = function(p) return T.save_image(p, T.zeros({ 3, 4, 4 }, { dtype = "u8" })) end,
      write_file = function(p) return T.core.write_file(p, "text") end,
    }
    for name, save in pairs(writers) do
      local target = path .. (name == "save_png" and ".png" or "")
      write("untouched", victim)
      for k = 0, 2 do
        assert(os.execute(("ln -s '%s' '%s.tmp-%d-%d'"):format(victim, target, pid, k)))
      end
      assert.is_true(save(target), name)
      assert.equal("untouched", read(victim))
      assert.is_true(#read(target) > 3)
      assert(os.execute(("test ! -L '%s' && test -L '%s.tmp-%d-2'"):format(target, target, pid)))
      assert(os.execute(("rm -f '%s.tmp-'* '%s.png'"):format(target, path)))
    end
    os.remove(victim)
  end)
end)
