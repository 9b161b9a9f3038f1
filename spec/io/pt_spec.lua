-- SPDX-License-Identifier: MIT
-- Files of torch.save: real ones (spec/fixtures/pt/make.py), hostile ones written by hand, and those of
-- ../shared/models/pt where that is there.

local T = require "perilune"
local P = require "spec.support.pt_writer"
local numpy = require "spec.support.numpy_writer"
local near = require "spec.support.near"
local fails = near.fails

local root = os.getenv "PERILUNE_ROOT" or "."
local fixtures = root .. "/spec/fixtures/pt/"

local path
local function save(bytes)
  local f = assert(io.open(path, "wb"))
  f:write(bytes)
  f:close()
end
local function load(bytes, opts)
  save(bytes)
  return T.load_pt(path, opts)
end

local floats = string.pack("<ffff", 1, 2, 3, 4)
local storage = P.storage("Float", "0", 4)

describe("load_pt", function()
  before_each(function() path = os.tmpname() end)
  after_each(function() os.remove(path) end)

  for _, name in ipairs { "zip.pt", "before_zip.pt", "protocol4.pt" } do
    it("reads what torch.save wrote: " .. name, function()
      local t = assert(T.load_pt(fixtures .. name))
      local dtypes = { float64 = "f64", float32 = "f32", float16 = "f16", bfloat16 = "bf16", int64 = "i64",
        int32 = "i32", int16 = "i16", int8 = "i8", uint8 = "u8" }
      for theirs, ours in pairs(dtypes) do
        assert.equal(ours, t.dtypes[theirs]:dtype())
        assert.same({ 0, 1, 2, 100 }, t.dtypes[theirs]:to("i64"):totable())
      end
      assert.same({ true, false }, t.bool:totable())
      local base = T.arange(0, 23):to("f32"):view(4, 6)
      near.same_bits(base, t.base)
      near.same_bits(base:t():contiguous(), t.turned:contiguous())
      assert.same({ 1, 6 }, t.turned:stride())
      near.same_bits(base[{ { 2, 3 }, { 3, 5 } }]:contiguous(), t.part:contiguous())
      near.same_bits(base[{ { 1, 4, 2 }, { 2, 6, 3 } }]:contiguous(), t.steps:contiguous())
      near.same_bits(T.zeros(3, 4), t.wide:contiguous())
      assert.equal(3.5, t.scalar:item())
      assert.same({ 2, 0, 3 }, t.none:shape())

      -- one storage for base and its views
      t.base:fill_(7)
      assert.equal(7.0, t.part:sum():item() / t.part:numel())
      assert.equal(7.0, t.turned[6][4]:item())

      -- parameters: one object is one, gradients are required where they were
      assert.is_true(rawequal(t.tied[1], t.tied[2]))
      assert.is_true(t.tied[1].requires_grad)
      assert.is_false(t.frozen.requires_grad)

      local names = {}
      for key in pairs(t.model) do names[#names + 1] = key end
      assert.same({ "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
        "1.num_batches_tracked" }, names)
      assert.equal(1, t.model["1.num_batches_tracked"]:item())
      assert.equal(0.5, t.optimizer.param_groups[1].lr)
      assert.same({ 0.9, 0.999 }, t.optimizer.param_groups[1].betas)
      assert.is_false(t.optimizer.param_groups[1].maximize)
      assert.equal(1.0, t.optimizer.state[0].step:item())
      assert.same({ 3, 2 }, t.optimizer.state[0].exp_avg:shape())

      assert.equal("integer", math.type(t.epoch))
      assert.same({ 7, 0.125, 1 << 40, -5, "caf\u{e9}", "\0\255" },
        { t.epoch, t.best, t.big, t.negative, t.name, t.bytes })
      assert.same({ true, false, false }, t.flags)
      assert.same({ 1, 2 }, t.shape)
      assert.same({ "cuda:1", "torch.float16" }, { t.device, t.dtype })
      assert.same({ [1] = true, a = true }, t.set)
      assert.same({ 1, { 2.5, "x" } }, t.nested.a.b)
      local order = {}
      for key, v in pairs(t.ordered) do order[#order + 1] = key .. v end
      assert.same({ "z1", "a2", "m3" }, order)
      assert.same({ 1 }, t.counts.x)

      local null = {}
      t = assert(T.load_pt(fixtures .. name, { none = null }))
      assert.is_true(rawequal(null, t.flags[3]))
    end)
  end

  it("is what T.load calls, and a module takes", function()
    local net = T.nn.Sequential(T.nn.Linear(2, 3), T.nn.BatchNorm1d(3))
    local t = assert(T.load(fixtures .. "zip.pt", { none = "null" }))
    assert.equal("null", t.flags[3])
    net:load_state_dict(t.model, { index_base = 0 })
    near.same_bits(net[1].weight:detach(), t.model["0.weight"])
    assert(T.save(path, t)) -- and it goes into a safetensors file
    near.same_bits(assert(T.load(path)).turned, t.turned:contiguous())
    fails("none= is not for such a file", T.load, path, { none = 1 })
  end)

  it("reads wide and narrow dtypes into those that hold their values, and says which tensors it cannot have", function()
    local t, message, code = T.load_pt(fixtures .. "wide.pt")
    assert.is_nil(t)
    assert.truthy(message:find("'complex' has the dtype of torch's torch.ComplexFloatStorage", 1, true), message)
    assert.equal("unsupported", code)
    t = assert(T.load_pt(fixtures .. "wide.pt", { unsupported = "skip" }))
    assert.same({ { 1, 65535 }, { 0xffffffff }, { 1 << 40 }, { 448.0, -1.5 }, { 57344.0, 0.25 } },
      { t.u16:totable(), t.u32:totable(), t.u64:totable(), t.f8:totable(), t.f8b:totable() })
    assert.same({ "i32", "i64", "i64", "f16", "f16" }, { t.u16:dtype(), t.u32:dtype(), t.u64:dtype(), t.f8:dtype(),
      t.f8b:dtype() })
    assert.is_nil(t.complex)
    assert.is_nil(t.sparse)
    near.near(t.plain, 1)
  end)

  it("reads numbers of NumPy, big-endian archives, storages that are views, sets", function()
    local function scalar(kind, order, bytes)
      return P.call("numpy.core.multiarray", "scalar", P.call("numpy", "dtype", P.text(kind), "\x89", "\x88")
        .. P.tuple(P.int(3), P.text(order), "N", "N", "N", P.int(-1), P.int(-1), P.int(0)) .. "b",
        P.call("_codecs", "encode", P.text(bytes), P.text "latin1"))
    end
    assert.equal(1.5, load(P.zip(scalar("f8", "<", "\0\0\0\0\0\0\u{f8}?"))))
    assert.equal(-2, load(P.zip(scalar("i2", ">", "\u{ff}\u{fe}"))))
    assert.is_true(load(P.zip(scalar("b1", "|", "\1"))))
    local t = load(P.zip(P.tensor(storage, 0, { 4 }, { 1 }), { ["0"] = string.pack(">ffff", 1, 2, 3, 4) },
      { ["a/byteorder"] = "big" }))
    assert.same({ 1.0, 2.0, 3.0, 4.0 }, t:totable())
    local whole = P.tensor(P.storage("Float", "k", 4, "N"), 0, { 4 }, { 1 })
    local part = P.tensor(P.storage("Float", "k", 4, P.tuple(P.text "v", P.int(2), P.int(2))), 1, { 1 }, { 1 })
    t = load(P.old(P.list(whole, part), { { "k", 4, floats } }))
    assert.same({ { 1.0, 2.0, 3.0, 4.0 }, { 4.0 } }, { t[1]:totable(), t[2]:totable() })
    local function bits(facts) -- as torch.save writes z.conj().imag
      local d = P.global("collections", "OrderedDict") .. ")R"
      return P.call("torch._utils", "_rebuild_tensor_v2", storage, P.int(1), P.ints { 2 }, P.ints { 2 }, "\x88", d,
        facts)
    end
    for _, case in ipairs { { P.dict(P.text "neg", "\x88"), -1 }, { P.dict(P.text "neg", "\x89"), 1 }, { "}", 1 },
      { "N", 1 } } do
      t = load(P.zip(bits(case[1]), { ["0"] = floats }))
      assert.same({ 2.0 * case[2], 4.0 * case[2] }, t:totable())
      assert.is_true(t.requires_grad and t.is_leaf)
    end
    assert.same({ [1] = true, x = true }, load(P.zip("\x8f(K\1" .. P.text "x" .. "\x90")))
    assert.same({ x = true }, load(P.zip("(" .. P.text "x" .. "\x91")))
    assert.is_false(load(P.zip "N"))
  end)

  it("reads arrays of NumPy as tensors", function()
    local function array(kind, order, shape, fortran, bytes, cut)
      local dtype = P.call("numpy", "dtype", P.text(kind), "\x89", "\x88") .. P.tuple(P.int(3), P.text(order), "N",
        "N", "N", P.int(-1), P.int(-1), P.int(0)) .. "b"
      local text = bytes:gsub(".", function(c) return utf8.char(c:byte()) end)
      return P.call("numpy.core.multiarray", "_reconstruct", P.global("numpy", "ndarray"), P.ints { 0 }, P.text "b")
        .. (cut and "" or P.tuple(P.int(1), P.ints(shape), dtype, fortran and "\x88" or "\x89",
          P.call("_codecs", "encode", P.text(text), P.text "latin1")) .. "b")
    end
    local t = load(P.zip(array("f4", "<", { 2, 2 }, false, floats)))
    assert.same({ { 1.0, 2.0 }, { 3.0, 4.0 } }, t:totable())
    t = load(P.zip(P.dict(P.text "a", array("f4", "<", { 2, 2 }, true, floats), P.text "b",
      array("b1", "|", { 2 }, false, "\1\0"), P.text "c", array("i8", "<", {}, false, string.pack("<i8", -5)),
      P.text "d",
      array("f2", "<", { 0, 3 }, false, ""))))
    assert.same({ { { 1.0, 3.0 }, { 2.0, 4.0 } }, { true, false }, -5, "f16", 0 }, { t.a:totable(), t.b:totable(),
      t.c:item(), t.d:dtype(), t.d:numel() })
    for _, row in ipairs { { array("f4", "<", { 3 }, false, floats), "16 bytes for 3 elements" },
      { array("f4", "<", { 1 << 30, 1 << 30, 1 << 30 }, false, floats), "an array of NumPy with 16 bytes" },
      { array("f4", ">", { 4 }, false, floats), "a dtype that perilune does not have" },
      { array("u4", "<", { 4 }, false, floats), "a dtype that perilune does not have" },
      { array("f4", "<", { 4 }, false, floats, true), "without elements" },
      { P.call("numpy.core.multiarray", "_reconstruct", P.global("torch", "Size"), P.ints { 0 }, P.text "b"),
        "a class that is not known" } } do
      local v, message = load(P.zip(row[1]))
      assert.is_nil(v)
      assert.truthy(message:find(row[2], 1, true), message)
    end
    assert.equal("", load(P.zip(P.global("__builtin__", "bytes") .. ")R")))
  end)

  it("keeps cycles", function()
    local t = load(P.zip "]q\0h\0a")
    assert.is_true(rawequal(t, t[1]))
  end)

  local function refuses(bytes, part, want)
    local t, message, code = load(bytes)
    assert.is_nil(t)
    assert.truthy(message:find(part, 1, true), message)
    assert.equal(want or "format", code)
  end

  it("runs nothing: every name that is no data is refused and named", function()
    local mark = path .. ".ran"
    for _, f in ipairs { { "posix", "system" }, { "os", "system" }, { "builtins", "eval" }, { "builtins", "exec" },
      { "builtins", "open" }, { "builtins", "getattr" }, { "subprocess", "Popen" }, { "torch", "load" },
      { "torch.hub", "load" }, { "operator", "attrgetter" }, { "collections", "UserDict" },
      { "torch.nn.modules.linear", "Linear" }, { "__main__", "Net" }, { "torch.storage", "_load_from_bytes" },
      { "numpy.core.multiarray", "fromfile" }, { "torch._utils", "_rebuild" } } do
      local name = f[1] .. "." .. f[2]
      local pickle = P.call(f[1], f[2], P.text("touch " .. mark))
      refuses(P.zip(pickle), "it names " .. name, "unsupported")
      refuses(P.zip(P.dict(P.text "a", pickle)), "it names " .. name, "unsupported")
      refuses(P.old(pickle, {}), "it names " .. name, "unsupported")
      -- by protocol 4's way of naming, and as NEWOBJ
      refuses(P.zip(P.text(f[1]) .. P.text(f[2]) .. "\x93)R"), "it names " .. name, "unsupported")
      refuses(P.zip(P.global(f[1], f[2]) .. ")\x81"), "it names " .. name, "unsupported")
    end
    assert.is_nil(io.open(mark))
    -- names that are known are not for calling with anything
    refuses(P.zip(P.call("torch", "FloatStorage", P.text "x")), "a call of torch.FloatStorage", "unsupported")
    refuses(P.zip(P.call("builtins", "int", P.text "1")), "a call of builtins.int", "unsupported")
    refuses(P.zip(P.text "os" .. ")R"), "a call of something that is no function", "unsupported")
    refuses(P.zip(P.global("torch", "Size")), "which is no data", "unsupported")
    refuses(P.zip(storage, { ["0"] = floats }), "a storage without a tensor", "unsupported")
    refuses(P.zip(P.call("torch._tensor", "_rebuild_from_type_v2", P.global("torch", "Size"),
      P.global("torch", "Size"), P.tuple(), "N")), "a class that is not known", "unsupported")
    for code, name in pairs { i = "INST", o = "OBJ", ["\x92"] = "NEWOBJ_EX", ["\x82"] = "EXT1", P = "PERSID" } do
      refuses(P.zip(code), "the opcode " .. name, "unsupported")
    end
  end)

  it("leaves objects of other classes out where that is asked for, without making them", function()
    local mark = path .. ".ran"
    local one = P.tensor(storage, 0, { 4 }, { 1 })
    local namespace = P.global("argparse", "Namespace") .. ")\x81" .. P.dict(P.text "lr", P.int(1)) .. "b"
    local evil = P.call("posix", "system", P.text("touch " .. mark))
    local both = P.dict(P.text "model", P.dict(P.text "w", one), P.text "args", namespace, P.text "x", evil,
      P.text "list", P.list(P.int(1), namespace, evil), P.text "class", P.global("torch", "FloatStorage"), P.text "d",
      P.call("collections", "defaultdict", P.global("__main__", "make"), P.dict(P.text "k", P.int(2))))
    for _, bytes in ipairs { P.zip(both, { ["0"] = floats }), P.old(both, { { "0", 4, floats } }) } do
      assert.equal("unsupported", select(3, load(bytes)))
      local t = assert(T.load(path, { unsupported = "skip" }))
      assert.same({ 1.0, 2.0, 3.0, 4.0 }, t.model.w:totable())
      assert.same({ 1, false, false }, t.list)
      assert.same({ nil, nil, nil, 2 }, { t.args, t.x, t.class, t.d.k })
    end
    -- a dictionary of its own class
    local userdict = P.global("UserDict", "IterableUserDict") .. ")\x81(" .. P.text "a" .. P.int(1) .. "u"
    local t, left = load(P.zip(P.dict(P.text "u", userdict)), { unsupported = "skip" })
    assert.is_nil((next(t)))
    assert.same({ 1, "'u' is of UserDict.IterableUserDict, which is no data" }, { #left, left[1] })
    for _, whole in ipairs { namespace, evil, P.global("torch", "Size") } do
      local v, message, code = load(P.zip(whole), { unsupported = "skip" })
      assert.same({ nil, "unsupported" }, { v, code })
      assert.truthy(message:find("the object in it is", 1, true), message)
    end
    assert.is_nil(io.open(mark))
  end)

  it("refuses views that leave their storage, and storages that are not as they are described", function()
    local function view(offset, size, stride)
      return P.zip(P.tensor(storage, offset, size, stride), { ["0"] = floats })
    end
    assert.same({ 2.0, 4.0 }, load(view(1, { 2 }, { 2 })):totable())
    refuses(view(0, { 8 }, { 1 }), "outside its storage")
    refuses(view(3, { 2 }, { 1 }), "outside its storage")
    refuses(view(0, { 2 }, { 0x7f000000 }), "outside its storage")
    refuses(view(0, { 0x7fffffff, 0x7fffffff, 0x7fffffff }, { 0, 0, 0 }), "outside its storage")
    refuses(view(0, { 2 }, { -1 }), "strides with -1")
    refuses(view(0, { -2 }, { 1 }), "sizes with -2")
    refuses(view(-1, { 1 }, { 1 }), "do not belong together")
    refuses(view(0, { 1, 1 }, { 1 }), "do not belong together")
    local many = {}
    for i = 1, 17 do many[i] = 1 end
    refuses(view(0, many, many), "at most 16")
    local t = P.tensor(storage, 0, { 4 }, { 1 })
    refuses(P.zip(t, { ["0"] = floats:sub(1, 12) }), "has 12 bytes where its tensors need 16")
    refuses(P.zip(t, { ["0"] = floats .. floats }), "has 32 bytes where its tensors need 16")
    refuses(P.zip(t, {}), "no storage '0' is in the archive")
    refuses(P.zip(P.tensor(P.storage("Float", "../0", 4), 0, { 4 }, { 1 }), { ["0"] = floats }), "no storage '../0'")
    refuses(P.zip(P.tensor(P.storage("Float", "0", 0x7fffffff), 0, { 4 }, { 1 }), { ["0"] = floats }), "has 16 bytes")
    refuses(P.zip(P.list(t, P.tensor(P.storage("Int", "0", 4), 0, { 4 }, { 1 })), { ["0"] = floats }), "in two ways")
    refuses(P.zip(P.tensor(P.storage("Bool", "0", 4), 0, { 4 }, { 1 }), { ["0"] = "\0\1\2\0" }), "neither 0 nor 1")
    refuses(P.zip(t, { ["0"] = floats }, { ["a/byteorder"] = "odd" }), "byteorder")
    refuses(P.zip(t, { ["0"] = floats }, { ["a/data.pkl"] = false }), "without data.pkl")
    refuses(P.zip(t, { ["0"] = floats }, { ["a/constants.pkl"] = "" }), "TorchScript", "unsupported")
    local old = { { "0", 4, floats } }
    assert.same({ 1.0, 2.0, 3.0, 4.0 }, load(P.old(t, old)):totable())
    refuses(P.old(t, {}), "storage '0' is not in the file")
    refuses(P.old(t, { { "0", 5, floats } }), "has 5 elements where its tensors need 4")
    refuses(P.old(t, { { "0", 4, floats:sub(1, 15) } }), "ends within storage '0'")
    refuses(P.old(t, { old[1], old[1] }), "listed twice")
    refuses(P.old(t, { old[1], { "1", 4, floats } }), "no tensor has it")
    refuses(P.old(t, old, false), "big-endian", "unsupported")
    refuses(("\0"):rep(257) .. "ustar\0", "the tar format of torch before 0.1.10", "unsupported")
    refuses(P.zip(P.tensor(P.storage("Float", ("k"):rep(200), 4), 0, { 4 }, { 1 }), { ["0"] = floats }),
      "no storage '" .. ("k"):rep(60) .. "…'")
    refuses(P.zip(P.tensor(P.storage("Float", "0", -4), 0, { 4 }, { 1 }), { ["0"] = floats }),
      "is not that of a storage")
    local members = { { "a/data.pkl", "\x80\2" .. t .. "." }, { "a/data/0", floats } }
    save(numpy.zip(members, true)) -- an archive as beyond 4 GiB
    assert.same({ 1.0, 2.0, 3.0, 4.0 }, assert(T.load_pt(path)):totable())
    members[2][3] = { method = 8 }
    refuses(numpy.zip(members), "compressed members", "unsupported")
  end)

  it("refuses broken pickles", function()
    for text, part in pairs {
      [""] = "nothing is on the stack", ["("] = "nothing is on the stack", ["K\1K\2"] = "more than one value",
      ["h\5"] = "entry 5 of the memo", ["K\1a"] = "nothing is on the stack", ["t"] = "no mark",
      ["\xff"] = "0xff, which is no",
      ["X\xff\xff\xff\x7fabc"] = "longer than the file", ["\x80\9"] = "protocol 9", ["K\1K\2a"] = "a list that is none",
      ["}(K\1u"] = "a key without a value", ["}(]K\1u"] = "a key of a dictionary", ["K\1Q"] = "a persistent id",
      ["]}b"] = "attributes of something", ["ca\n"] = "ends early",
      ["\x95\xff\xff\xff\xff\xff\xff\xff\xff"] = "a frame longer",
      [("a"):rep(3) .. "c" .. ("x"):rep(600)] = "nothing is on the stack", ["c" .. ("x"):rep(600)] = "does not end",
      ["\x8a\9\0\0\0\0\0\0\0\0\1"] = "more than 64 bits",
      ["}(X\1\0\0\0x\x8a\9\0\0\0\0\0\0\0\0\1u"] = "'x' is an integer",
    } do
      save(P.zip(text))
      local t, message, code = T.load_pt(path)
      assert.is_nil(t, text)
      assert.truthy(message:find(part, 1, true), message)
      assert.is_true(code == "format" or code == "unsupported")
    end
    refuses(P.zip(("]"):rep(50000) .. ("a"):rep(49999)), "nested deeper than 1000")
    local good = P.zip(P.dict(P.text "a", P.tensor(storage, 0, { 2, 2 }, { 2, 1 })), { ["0"] = floats })
    for n = 0, #good - 1 do assert.is_nil((load(good:sub(1, n)))) end
    good = P.old(P.dict(P.text "a", P.tensor(storage, 0, { 2, 2 }, { 2, 1 })), { { "0", 4, floats } })
    for n = 0, #good - 1 do assert.is_nil((load(good:sub(1, n)))) end
    refuses("", "not a file of torch.save")
    refuses("\x80\2]q\0.", "that torch.save did not write", "unsupported")
  end)

  it("takes its options and arguments seriously", function()
    fails("unknown option 'weights_only'", T.load_pt, path, { weights_only = true })
    fails("unknown unsupported 'drop'", T.load_pt, path, { unsupported = "drop" })
    fails("the path must be a string", T.load_pt, 1)
    assert.equal("io", select(3, T.load_pt(path .. ".none")))
  end)
end)

-- What ../shared/models/pt holds: files of torch.save with their tensors in safetensors, and files to be refused.
local shared = root .. "/../shared/models/pt/"
local index = loadfile(shared .. "index.lua")
describe("the collection of PyTorch files", function()
  if not index then
    pending "is not beside this checkout"
    return
  end
  -- keys joined by '/', places in lists from 0
  local function get(v, where)
    if where == "" or where == "tensor" and T.core.is_tensor(v) then return v end
    for part in where:gmatch "[^/]+" do
      local n, t = tonumber(part), v
      v = t[part]
      if v == nil and n then v = t[getmetatable(t) and n or n + 1] end
    end
    return v
  end

  for _, f in ipairs(index().files) do
    if f.tensors or f.same_as then
      it(f.file, function()
        local t = assert(T.load_pt(shared .. f.file))
        local n = 0
        for name, want in pairs(assert(T.load(shared .. (f.same_as or f.file):gsub("pt$", "safetensors")))) do
          near.same_bits(get(t, name):detach():contiguous(), want)
          n = n + 1
        end
        assert.equal(f.tensors or n, n)
        for name, want in pairs(f.plain or {}) do assert.equal(want, get(t, name), name) end
        for _, name in ipairs(f.requires_grad or {}) do assert.is_true(get(t, name).requires_grad) end
      end)
    end
  end

  for _, f in ipairs(dofile(shared .. "broken/cases.lua").refuse) do
    it("refuses " .. f.file, function()
      local before = T.memory().peak
      local t, message, code = T.load_pt(shared .. "broken/" .. f.file)
      assert.is_nil(t)
      assert.is_true(#message > 10)
      assert.is_true(code == "format" or code == "unsupported")
      assert.is_true(T.memory().peak - before < 1 << 20)
    end)
  end
end)
