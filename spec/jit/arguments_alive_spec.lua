-- SPDX-License-Identifier: MIT
-- A trace keeps nothing of the call that it was made in: tensors inside of tables among its arguments die with these.

local T = require "perilune"

describe("T.jit", function()
  local function r() return T.randn(50) end
  local CASES = {
    plain = { function(a, b) return a + b end, function() return r(), r() end },
    ["a table"] = { function(p) return p.x + p.y end, function() return { x = r(), y = r() } end },
    ["a list"] = { function(p, z) return p[1] * z + p[2] end, function() return { r(), r() }, r() end },
    ["tables in tables"] = { function(p) return p.a.x + p.b end, function() return { a = { x = r() }, b = r() } end },
    ["a table that is walked"] = {
      function(p)
        local s = 0
        for _, v in ipairs(p) do s = s + v end
        return s
      end, function() return { r(), r(), r() } end },
  }
  for name, case in pairs(CASES) do
    it("keeps no tensor of its first call: " .. name, function()
      local f, seen = T.jit(case[1]), setmetatable({}, { __mode = "k" })
      local function note(v)
        seen[v] = true
        if T.is_tensor(v) then return end
        for _, x in pairs(v) do note(x) end
      end
      for _ = 1, 4 do
        local args = { case[2]() }
        for _, v in ipairs(args) do note(v) end
        f(table.unpack(args))
      end
      for _ = 1, 3 do collectgarbage() end
      assert.is_nil(next(seen))
      assert.truthy(tostring(f):find("1 traces", 1, true))
    end)
  end

  it("still sees what objects among the arguments hold", function()
    local object = setmetatable({ k = 2 }, {})
    local f = T.jit(function(p) return p.x * p.o.k end)
    local x = T.ones(3)
    assert.equal(6, f({ x = x, o = object }):sum():item())
    object.k = 5
    assert.equal(15, f({ x = x, o = object }):sum():item())
    local g = T.jit(function(p) return p.x * p.f() end)
    local k = 2
    local h = function() return k end
    assert.equal(6, g({ x = x, f = h }):sum():item())
    k = 3
    assert.equal(9, g({ x = x, f = h }):sum():item())
  end)

  it("keeps what a call is told by, so that no other gets its address", function()
    local kinds = {
      userdata = io.tmpfile,
      thread = function() return coroutine.create(print) end,
      table = function() return setmetatable({}, {}) end,
      ["function"] = function()
        local k = 1
        return function() return k end
      end,
    }
    for kind, make in pairs(kinds) do
      local f, seen = T.jit(function(p) return p.x + 1 end), setmetatable({}, { __mode = "k" })
      local function call()
        local v = make()
        seen[v] = true
        f({ x = T.ones(3), v = v })
      end
      call()
      for _ = 1, 3 do collectgarbage() end
      assert.truthy(next(seen), kind)
    end
  end)

  it("tells calls by objects that are keys", function()
    local f = T.jit(function(p)
      local s = 0
      for _, v in pairs(p) do s = s + v end
      return s
    end)
    for i = 1, 30 do
      assert.equal(3 * i, f({ [{}] = T.full({ 3 }, i) }):sum():item())
      if i % 7 == 0 then collectgarbage() end
    end
  end)
end)
