-- SPDX-License-Identifier: MIT
-- T.bar, the progress bar: it walks what it is given unchanged, and prints on terminals and elsewhere.

local T = require "perilune"
local near = require "spec.support.near"
local data = T.data
local eq, fails = near.near, near.fails

local function numbers(n) return T.arange(n):to("f32"), T.arange(n) * 10 end

describe("bar", function()
  -- A file that keeps what is written.
  local function sink()
    local out = { text = "" }
    function out:write(...)
      for _, s in ipairs { ... } do self.text = self.text .. s end
      return self
    end
    function out.flush() end
    return out
  end

  it("walks loaders, lists, numbers and iterators unchanged", function()
    local f = sink()
    local loader = data.DataLoader(data.TensorDataset(numbers(5)), { batch_size = 2 })
    local n = 0
    for x, y in T.bar(loader, { file = f }) do
      n = n + 1
      eq(y, (x * 10):totable())
    end
    assert.equal(3, n)
    local got = {}
    for i, v in T.bar({ "a", "b" }, { file = f }) do got[i] = v end
    assert.same({ "a", "b" }, got)
    for i in T.bar(3, { file = f }) do got[i] = i end
    assert.same({ 1, 2, 3 }, got)
    local t = { x = 1, y = 2 }
    got = {}
    local iter, state, control = pairs(t)
    for k, v in T.bar(iter, state, control, { file = f, title = "pairs" }) do got[k] = v end
    assert.same(t, got)
    got = {}
    for i, v in T.bar(ipairs { 7, 8 }) do got[i] = v end
    assert.same({ 7, 8 }, got)
    fails("an iterator, a list, a loader or a number is wanted", T.bar, true)
    fails("did you mean 'title'", T.bar, { 1 }, { titel = "x" })
  end)

  it("prints plain lines where there is no terminal", function()
    local f = sink()
    local bar = T.bar(20, { file = f, title = "epoch 1" })
    for i in bar do bar:set { loss = 1 / i } end
    local lines = {}
    for line in f.text:gmatch("[^\n]+") do lines[#lines + 1] = line end
    assert.equal(10, #lines)
    assert.is_truthy(lines[1]:find("^epoch 1  10%%  2/20  "))
    assert.is_truthy(lines[10]:find("^epoch 1 100%%  20/20  "))
    assert.is_truthy(lines[10]:find("loss 0.05", 1, true))
    assert.is_nil(f.text:find("\27", 1, true))
    assert.is_nil(f.text:find("\r", 1, true))
  end)

  it("ends its line when the loop is left early, and may be quiet", function()
    local f = sink()
    for i in T.bar(100, { file = f }) do
      if i == 3 then break end
    end
    assert.is_truthy(f.text:find("2/100", 1, true))
    assert.equal("\n", f.text:sub(-1))
    f = sink()
    for _ in T.bar(100, { file = f, quiet = true }) do end
    assert.equal("", f.text)
  end)
end)
