-- SPDX-License-Identifier: MIT
-- T.log: CSV and JSON lines as text, TensorBoard's files through a decoder of the specs' own.

local T = require "perilune"
local events = require "spec.support.tfevents"

local function lines_of(path)
  local out = {}
  for line in io.lines(path) do out[#out + 1] = line end
  return out
end

describe("T.log", function()
  local path
  before_each(function() path = os.tmpname() end)
  after_each(function() os.remove(path) end)

  it("is still the logarithm", function()
    assert.is_true(T.log(T.ones(2)):equal(T.zeros(2)))
    assert.is_true(T.grad(T.log)(T.tensor(4.0)):item() == 0.25)
    assert.is_nil(T.log.nothing)
    assert.truthy(T.help_text(T.log):find("T.log(", 1, true))
  end)

  it("writes CSV that keeps what a row is", function()
    local log = assert(T.log.csv(path))
    assert(log:write { step = 1, loss = 0.1, note = 'a "b", c', ok = true })
    assert.equal(2, #lines_of(path)) -- at once, not at the end
    assert(log:write { step = 2, loss = T.tensor(0.5), ok = false })
    log:close()
    assert.same({ "step,loss,note,ok", '1,0.1,"a ""b"", c",true', "2,0.5,,false" }, lines_of(path))
    log = assert(T.log.csv(path, { append = true }))
    assert(log:write { loss = 1 / 0, step = 3 })
    log:close()
    assert.equal("3,inf,,", lines_of(path)[4])
    assert.equal(4, #lines_of(path))
  end)

  it("leaves the file alone when it is collected unused", function()
    for _, kind in ipairs { "csv", "jsonl" } do
      assert(T.log[kind](path))
      local log = assert(T.log[kind](path))
      log:write { step = 1 }
      collectgarbage()
      collectgarbage()
      log:write { step = 2 }
      log:close()
      assert.equal(kind == "csv" and 3 or 2, #lines_of(path))
      assert.falsy(table.concat(lines_of(path)):find "\0")
    end
  end)

  it("writes JSON lines", function()
    local log = assert(T.log.jsonl(path))
    assert(log:write { step = 1, loss = 0 / 0, name = 'q"\n\\\255', ok = true, n = 12345678901 })
    log:close()
    assert.same({ '{"step":1,"loss":null,"n":12345678901,"name":"q\\"\\n\\\\ÿ","ok":true}' }, lines_of(path))
  end)

  it("refuses wrong rows and says why a file cannot be opened", function()
    local log = assert(T.log.csv(path))
    log:write { loss = 1 }
    local ok, message = pcall(log.write, log, { los = 1 })
    assert.is_false(ok)
    assert.truthy(message:find("unknown column 'los' (allowed: loss); did you mean 'loss'?", 1, true), message)
    assert.error(function() log:write { loss = {} } end)
    assert.error(function() log:write(3) end)
    log:close()
    assert.error(function() log:write { loss = 1 } end)
    for _, kind in ipairs { "csv", "jsonl" } do
      local none, why = T.log[kind]("/nowhere/x")
      assert.is_nil(none)
      assert.truthy(why:find("/nowhere/x", 1, true))
    end
    assert.error(function() T.log.csv(3) end)
    assert.error(function() T.log.csv(path, { apend = true }) end)
    local none, why = T.log.tensorboard(path .. "/x") -- a file is where the folder should be
    assert.is_nil(none)
    assert.truthy(why:find("cannot make the folder", 1, true), why)
  end)

  it("says when the disk is full", function()
    local log = T.log.jsonl("/dev/full")
    if not log then return pending("no /dev/full") end
    local ok, message = log:write { loss = 1 }
    assert.is_nil(ok)
    assert.truthy(message:find("/dev/full", 1, true), message)
    log:close()
  end)
end)

describe("T.log.tensorboard", function()
  local dir, path
  before_each(function()
    dir, path = os.tmpname(), nil
    os.remove(dir)
  end)
  after_each(function()
    if path then os.remove(path) end
    os.remove(dir .. "/a/b")
    os.remove(dir .. "/a")
    os.remove(dir)
  end)

  -- What f writes: tag → list of {step=, value=}.
  local function written(f)
    local log = assert(T.log.tensorboard(dir .. "/a/b"))
    path = log.path
    f(log)
    assert(log:close())
    local records = events.read(path)
    assert.equal("brain.Event:2", records[1].version)
    local by_tag = {}
    for i = 2, #records do
      local r = records[i]
      assert.is_true(math.abs(r.wall - os.time()) < 100)
      local tag = events.field(r.value, 1)
      by_tag[tag] = by_tag[tag] or {}
      table.insert(by_tag[tag], r)
    end
    return by_tag
  end

  it("knows the checksum's published values", function()
    for text, crc in pairs { ["123456789"] = 0xe3069283, [("\0"):rep(32)] = 0x8a9136aa, [""] = 0 } do
      assert.equal(crc, T.core.crc32c(text))
      assert.equal(crc, events.crc32c(text))
    end
  end)

  it("writes scalars", function()
    local got = written(function(log)
      for i = 1, 3 do assert(log:scalar("loss", 1 / i, 10 * i)) end
      assert(log:scalars("acc", { train = 0.5, valid = T.tensor(0.25) }, 1 << 40))
      assert(log:scalar("auto", 1))
      assert(log:scalar("auto", 2))
      assert(log:write { epoch = 7, lr = 0.5, note = "text is left out" })
    end)
    assert.equal(3, #got.loss)
    assert.equal(30, got.loss[3].step)
    assert.is_true(math.abs(events.field(got.loss[3].value, 2) - 1 / 3) < 1e-7)
    assert.equal(0.25, events.field(got["acc/valid"][1].value, 2))
    assert.equal(1 << 40, got["acc/train"][1].step)
    assert.same({ 0, 1 }, { got.auto[1].step, got.auto[2].step })
    assert.equal(7, got.lr[1].step)
    assert.is_nil(got.note)
  end)

  it("writes histograms that count every finite number", function()
    T.manual_seed(1)
    local x = T.randn(10, 100)
    local got = written(function(log)
      assert(log:histogram("w", x, 2))
      assert(log:histogram("same", T.ones(5), 2, { bins = 4 }))
      assert(log:histogram("odd", T.tensor { 1, 0 / 0, 1 / 0, 3 }, 2))
      assert(log:histogram("none", T.tensor { 0 / 0 }, 2))
    end)
    local h = events.field(got.w[1].value, 5)
    assert.equal(x:min():item(), events.field(h, 1))
    assert.equal(x:max():item(), events.field(h, 2))
    assert.equal(1000.0, events.field(h, 3))
    assert.is_true(math.abs(events.field(h, 4) - x:double():sum():item()) < 1e-9)
    local limits, counts = events.doubles(events.field(h, 6)), events.doubles(events.field(h, 7))
    assert.same({ 30, 30 }, { #limits, #counts })
    local values = x:reshape(-1):totable()
    for i = 1, 30 do -- the counts are those of the intervals between the limits
      local lo, n = limits[i - 1] or -math.huge, 0
      for _, v in ipairs(values) do
        if v > lo and v <= limits[i] then n = n + 1 end
      end
      assert.is_true(math.abs(n - counts[i]) <= 1, ("bucket %d: %g, %d counted"):format(i, counts[i], n))
    end
    local same = events.field(got.same[1].value, 5)
    assert.same({ 5, 0, 0, 0 }, events.doubles(events.field(same, 7)))
    assert.equal(2.0, events.field(events.field(got.odd[1].value, 5), 3))
    assert.is_nil(got.none)
  end)

  it("writes images and text", function()
    local got = written(function(log)
      assert(log:image("rgb", T.rand(3, 4, 5), 1))
      assert(log:image("grey", T.rand(4, 5), 1))
      assert(log:text("note", "hello ä", 9))
    end)
    local image = events.field(got.rgb[1].value, 4)
    assert.same({ 4, 5, 3 }, { events.field(image, 1), events.field(image, 2), events.field(image, 3) })
    assert.equal("\137PNG\r\n\26\n", events.field(image, 4):sub(1, 8))
    assert.equal(1, events.field(events.field(got.grey[1].value, 4), 3))
    local v = got.note[1].value
    assert.equal(9, got.note[1].step)
    assert.equal("text", events.field(events.field(events.field(v, 9), 1), 1))
    assert.equal("hello ä", events.field(events.field(v, 8), 8))
    assert.equal(7, events.field(events.field(v, 8), 1))
  end)

  it("refuses what is no scalar, no tag, no step", function()
    local log = assert(T.log.tensorboard(dir .. "/a/b"))
    path = log.path
    for _, f in ipairs {
      function() log:scalar("a", "b") end, function() log:scalar("", 1) end, function() log:scalar("a", 1, 1.5) end,
      function() log:histogram("a", 3) end, function() log:image("a", T.zeros(7)) end,
      function() log:image("a", T.zeros(2, 9, 9)) end, function() log:text("a", "\255") end,
      function() log:histogram("a", T.ones(3), 1, { bin = 3 }) end,
    } do
      local ok, message = pcall(f)
      assert.is_false(ok)
      assert.truthy(message:find("log_spec.lua:", 1, true), message)
    end
    log:close()
    assert.error(function() log:scalar("a", 1) end)
    assert.equal(1, #events.read(path))
  end)
end)
