-- SPDX-License-Identifier: MIT
-- Damaged files of the formats that have no spec of their own here: safetensors, IDX, TensorBoard's events, saved
-- graphs.
-- spec/support/mutate.lua says how to run it for longer.

local T = require "perilune"
local live = require "spec.support.live"
local mutate = require "spec.support.mutate"
local events = require "perilune.command.events"
local graphs = require "spec.support.graph_texts"

-- The bytes of a file that f(path) writes.
local function bytes_of(f)
  local path = os.tmpname()
  assert(f(path))
  local s = mutate.read(path)
  os.remove(path)
  return s
end

describe("damaged files of", function()
  it("safetensors are refused", function()
    local flat = bytes_of(function(p) return T.save(p, { w = T.rand(3, 4), b = T.arange(5), ok = T.ones(2):gt(0) }) end)
    local nested = bytes_of(function(p)
      return T.save(p, { net = { w = T.rand(2) }, epoch = 3, name = "x\0y", list = { 1, { 2.5, true } } })
    end)
    assert.equal("", mutate.fuzz({ flat, nested }, T.load))
    -- only the header is damaged, and its length is right: what reaches the parser behind it
    local header, at = string.unpack("<s8", flat)
    local function whole(h) return string.pack("<s8", h) .. flat:sub(at) end
    assert.equal("", mutate.fuzz({ header }, T.load, { wrap = whole }))
  end)

  it("IDX are refused, gzipped or not", function()
    local plain = "\0\0\8\2" .. string.pack(">I4I4", 3, 4) .. "abcdefghijkl"
    assert.equal("", mutate.fuzz({ plain, "\0\0\13\1" .. string.pack(">I4ff", 2, 1, 2) }, T.load_idx))
    local packed = bytes_of(function(p)
      local f = assert(io.open(p, "wb"))
      f:write("\0\0\8\2" .. string.pack(">I4I4", 100, 40) .. ("abcd"):rep(1000))
      f:close()
      os.execute(("gzip -c '%s' > '%s.gz' && mv '%s.gz' '%s'"):format(p, p, p, p))
      return true
    end)
    local path = os.tmpname()
    local f = assert(io.open(path, "wb"))
    f:write(packed)
    f:close()
    local unpacked = T.load_idx(path) -- not without gzip or zlib
    os.remove(path)
    if unpacked then assert.equal("", mutate.fuzz({ packed }, T.load_idx)) end
  end)

  it("TensorBoard's events are refused", function()
    local dir = os.tmpname()
    os.remove(dir)
    local log = T.log.tensorboard(dir)
    for step = 1, 3 do log:scalar("loss", 1 / step, step) end
    log:close()
    local pipe = assert(io.popen(("cat '%s'/events*; rm -r '%s'"):format(dir, dir)))
    local file = pipe:read("a")
    pipe:close()
    assert.equal("", mutate.fuzz({ file }, events.summary))
    -- one damaged event in a sound record: what reaches the decoder
    local function framed(s)
      local function masked(x)
        local crc = T.core.crc32c(x)
        return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff
      end
      local n = string.pack("<I8", #s)
      return n .. string.pack("<I4", masked(n)) .. s .. string.pack("<I4", masked(s))
    end
    local at, list = 1, {}
    while at < #file do
      local n = string.unpack("<I8", file, at)
      list[#list + 1] = file:sub(at + 12, at + 11 + n)
      at = at + 16 + n
    end
    assert.equal("", mutate.fuzz(list, events.summary, { wrap = framed, all_may_pass = true }))
  end)

  it("saved graphs are refused, or are graphs that plan and run", function()
    local texts, by_text = graphs.make()
    local taken, count, first = 0, mutate.COUNT * 8, mutate.FIRST
    local before = live.blocks(T)
    for i, text in ipairs(texts) do assert.is_true(graphs.try(text, by_text[i])) end
    for seed = first, first + count - 1 do
      local k = seed % #texts + 1
      local good = { texts[k], texts[k], texts[seed // 7 % #texts + 1] }
      local ok, is_graph, problem = pcall(graphs.try, mutate.damage_text(good, seed), by_text[k])
      assert(ok, ("text %d raises %s"):format(seed, tostring(is_graph)))
      assert(is_graph or type(problem) == "string", ("text %d gives no reason"):format(seed))
      if is_graph then taken = taken + 1 end
    end
    assert.equal(0, live.blocks(T) - before)
    assert.is_true(taken < count)
    print(("damaged graphs: %d texts, %d of them still graphs"):format(count, taken))
  end)

  it("saved graphs' tensors are refused", function()
    local path = os.tmpname()
    local g = T.graph()
    g:outputs { g:input("x", { 2, 3 }) * T.rand(2, 3) + T.rand(3) }
    assert(T.save_graph(path, g))
    local text, bytes = mutate.read(path), mutate.read(path .. ".safetensors")
    os.remove(path)
    os.remove(path .. ".safetensors")
    local function load(p) -- the damaged file is that of the tensors
      local to = p .. ".graph"
      local f = assert(io.open(to, "wb"))
      f:write(text)
      f:close()
      assert(os.rename(p, to .. ".safetensors"))
      local loaded, message, code = T.load_graph(to)
      os.remove(to)
      os.remove(to .. ".safetensors")
      return loaded, message, code
    end
    assert.equal("", mutate.fuzz({ bytes }, load))
  end)
end)
