-- SPDX-License-Identifier: MIT
-- Tensors that are parts of files (engine/tensor/file_map.h): what is written never reaches the file, and whatever
-- another program does to the file changes no tensor and ends no process.

local T = require "perilune"

local dir
local function at(name) return dir .. "/" .. name end
local function before()
  collectgarbage()
  collectgarbage()
  dir = os.tmpname()
  os.remove(dir)
  assert(os.execute(("mkdir '%s'"):format(dir)))
end
local function after() os.execute(("rm -rf '%s'"):format(dir)) end
local function mapped() return T.core.mapped_bytes() end
local function bytes(name)
  local f = assert(io.open(at(name), "rb"))
  local text = f:read "a"
  f:close()
  return text
end
local function collect() collectgarbage() collectgarbage() end

-- Whether the system lends leases here at all: not on network file systems, not on others than Linux.
local function possible()
  before()
  assert(T.save(at "x", { w = T.zeros(1 << 16) }))
  local t = { T.load(at "x") }
  local some = #t == 2 and mapped() > 0
  t = nil -- luacheck: ignore
  collect()
  after()
  return some
end
local here = possible()
local it_maps = here and it or function(name) it(name .. " (no leases on this file system)", function() end) end

local N = 300000 -- elements: not whole pages
local function file(name)
  local t = { a = T.rand(N), b = T.arange(N), h = T.rand(N):to "bf16", small = T.rand(3) }
  assert(T.save(at(name), t))
  return t
end
local function same(x, y)
  for name, t in pairs(y) do assert.is_true(x[name]:equal(t), name) end
end

-- What another program may do to a file; each as a shell command with the file's name. (truncate(1) opens files without
-- waiting, and is told to come again.)
local others = {
  ["writes over it"] = "head -c 4000000 /dev/zero | dd of='%s' conv=notrunc 2>/dev/null",
  ["cuts it"] = "dd if=/dev/null of='%s' bs=1 seek=100 2>/dev/null",
  ["empties it"] = ": > '%s'",
  ["cuts it and makes it as long as it was"] = "dd if=/dev/null of='%s' bs=1 seek=100 2>/dev/null && "
    .. "truncate -s 4800000 '%s'",
  ["appends to it"] = "echo more >> '%s'",
  ["removes it"] = "rm '%s'",
  ["puts another in its place"] = "echo other > '%s.new' && mv '%s.new' '%s'",
}

describe("a mapped file", function()
  before_each(before)
  after_each(after)

  it_maps("is mapped for large tensors that need no conversion, and ends with them", function()
    local t = file "x"
    local x = T.load(at "x")
    assert.equal(N * (4 + 8 + 2), mapped())
    same(x, t)
    local view = x.a:narrow(1, 5, 10)
    x = nil -- luacheck: ignore
    collect()
    assert.equal(N * 4, mapped())
    assert.is_true(view:equal(t.a:narrow(1, 5, 10)))
    view = nil -- luacheck: ignore
    collect()
    assert.equal(0, mapped())
    same(T.load(at "x", { mmap = false }), t)
    assert.equal(0, mapped())
  end)

  it_maps("opens files that are longer than the memory at once", function()
    local f = assert(io.open(at "long", "wb")) -- sparse: 64 GiB
    local size = 64 << 30
    local header = ('{"w":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}'):format(size // 4, size)
    header = header .. (" "):rep(-#header % 8)
    f:write(("<I8"):pack(#header), header)
    f:close()
    if not os.execute(("truncate -s %d '%s'"):format(8 + #header + size, at "long")) then return end
    local begin = os.clock() -- the processor's time: others on the machine do not count
    local x = assert(T.load(at "long"))
    assert.equal(size // 4, x.w:numel())
    assert.equal(0, x.w[-1]:item())
    assert.is_true(os.clock() - begin < 1)
    local o = assert(T.open(at "long"))
    assert.equal(0, o:read("w")[1000]:item())
    o:close()
  end)

  it_maps("stays as it is, whatever is written into its tensors", function()
    local t = file "x"
    local was = bytes "x"
    local x, y = T.load(at "x"), T.load(at "x")
    x.a:fill_(1)
    x.b[{ { 10, 20 } }] = -1
    x.h:set(7, 100)
    T.copy_(x.a:narrow(1, 1, 5), T.zeros(5))
    x.a:mul_(2)
    T.add(t.b, 1, { out = x.b })
    local f = T.jit(function(v) v:add_(3) end)
    f(x.a)
    assert.same({ 3, 5 }, { x.a[1]:item(), x.a[6]:item() })
    assert.is_true(x.b:equal(t.b + 1))
    assert.equal(was, bytes "x")
    same(y, t)
    local p = T.nn.Parameter(T.load(at "x").a)
    local opt = T.optim.AdamW({ p }, { lr = 0.1 })
    for _ = 1, 2 do
      p:sum():backward()
      opt:step()
    end
    assert.is_true(p:detach():ne(t.a):all():item())
    assert.equal(was, bytes "x")
  end)

  it_maps("may be read again and again: no two tensors are one", function()
    local t = file "x"
    local o = assert(T.open(at "x"))
    local a, b = o:read "a", o:read "a"
    a:zero_()
    assert.is_true(b:equal(t.a))
    o:close()
    assert.is_true(b:equal(t.a))
  end)

  it_maps("is saved over by who loaded it", function()
    local t = file "x"
    local x = T.load(at "x")
    for i = 1, 3 do
      x.a:add_(1)
      assert(T.save(at "x", x))
      x = T.load(at "x")
      assert.is_true(x.a:allclose(t.a + i))
      assert.is_true(x.b:equal(t.b))
    end
  end)

  for what, command in pairs(others) do
    it_maps("keeps its tensors when another program " .. what, function()
      local t = file "x"
      local x, y, o = T.load(at "x"), T.load(at "x"), assert(T.open(at "x"))
      y.a:add_(1)
      y.b:set(3, -5)
      local r = o:read "h"
      assert(os.execute((command:gsub("%%s", at "x"))))
      same(x, t)
      assert.is_true(y.a:equal(t.a + 1))
      assert.equal(-5, y.b[3]:item())
      assert.is_true(r:equal(t.h))
      y.a:add_(1)
      x.b:zero_()
      assert.is_true(y.a:equal(t.a + 1 + 1))
      local ok, v, why = pcall(o.read, o, "a") -- from the changed file
      assert.is_true(ok)
      assert.is_true(v == nil and type(why) == "string" or T.is_tensor(v))
      o:close()
    end)
  end

  it_maps("is read where another program has it open for writing", function()
    local t = file "x"
    local f = assert(io.open(at "x", "r+b"))
    local x = T.load(at "x")
    assert.equal(0, mapped())
    same(x, t)
    f:close()
    x = T.load(at "x")
    assert.is_true(mapped() > 0)
    same(x, t)
  end)

  it_maps("may be opened for writing by this process, too", function()
    local t = file "x"
    local x = T.load(at "x")
    local f = assert(io.open(at "x", "wb"))
    f:write "short"
    f:close()
    same(x, t)
  end)

  it_maps("serves GGUF: blocks and numbers", function()
    local t = { w = T.rand(256, 512), q = T.rand(512, 512) }
    assert(T.save_gguf(at "x.gguf", t, { type = { q = "Q8_0" } }))
    local x = T.load(at "x.gguf")
    assert.equal(256 * 512 * 4, mapped())
    assert.is_true(x.w:equal(t.w))
    local read = require("perilune.io.gguf").read
    local y = read(at "x.gguf", { blocks = true, map = true })
    local z = read(at "x.gguf", { blocks = true, map = false })
    assert(os.execute((": > '%s'"):format(at "x.gguf")))
    assert.is_true(y.q.blocks:equal(z.q.blocks))
    assert.is_true(x.w:equal(t.w))
  end)

  it_maps("serves threads that load data", function()
    local t = file "x"
    local x = T.load(at "x")
    local loader = T.data.DataLoader(T.data.TensorDataset(x.a:view(300, 1000)), { batch_size = 100, workers = 2 })
    local sum = 0
    for batch in loader:iter() do sum = sum + batch:double():sum():item() end
    assert.is_true(math.abs(sum - t.a:double():sum():item()) < 1e-3)
  end)

  it("is refused nothing else: options", function()
    file "x"
    assert.error(function() T.load(at "x", { mmap = 1 }) end)
    assert.error(function() T.open(at "x", { map = true }) end)
    assert.is_table(T.load(at "x", { mmap = true }))
  end)
end)
