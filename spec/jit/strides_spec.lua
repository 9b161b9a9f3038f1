-- SPDX-License-Identifier: MIT
-- A trace takes its arguments as row-major. A function that asks for strides, or whether something is contiguous, runs
-- as it is written where one is not: the same results as without T.jit, whatever came first.

local T = require "perilune"

describe("what a jitted function asks of memory", function()
  local ASK = {
    stride = function(x) return x + x:stride(1) end,
    strides = function(x) return x * tonumber(table.concat(x:stride(), "0")) end,
    ["stride of a view"] = function(x) return x + x:t():stride(2) end,
    is_contiguous = function(x) return x:is_contiguous() and x * 2 or x * 3 end,
    ["is_contiguous of a view"] = function(x) return x:t():is_contiguous() and x * 2 or x * 3 end,
    ["inside vmap"] = function(x) return T.vmap(function(row) return row * row:stride(1) end)(x) end,
    ["with a gradient"] = function(x) return T.grad(function(v) return (v * v:stride(2)):pow(2):sum() end)(x) end,
  }
  local LIE = {
    function(n) return T.randn(n, 4) end,
    function(n) return T.randn(4, n):t() end,
    function(n) return T.randn(1, 4):expand(n, 4) end,
    function(n) return T.randn(n, 8):narrow(2, 2, 4) end,
    function(n) return T.randn(2 * n, 4):slice(1, 1, n, 2) end,
  }

  for name, f in pairs(ASK) do
    it(name .. " is what it is without", function()
      for first = 1, #LIE do
        local compiled, checked = T.jit(f), T.jit(f, { check = true })
        for k = 0, 3 * #LIE - 1 do
          local x = LIE[(first + k - 1) % #LIE + 1](k < #LIE and 3 or 1 + k % 4)
          assert.is_true(T.equal(f(x), compiled(x)), ("layout %d first, call %d"):format(first, k))
          assert.is_true(T.equal(f(x), checked(x)), ("layout %d first, call %d, check"):format(first, k))
        end
      end
    end)
  end

  -- A copy or a view, as the memory is: what is written afterwards shows which.
  local TAKE = {
    contiguous = function(x) return x:contiguous() end,
    reshape = function(x) return x:reshape(-1) end,
    flatten = function(x) return x:flatten(2) end,
    to = function(x) return x:to { memory_format = "contiguous" } end,
    channels_last = function(x) return x:contiguous("channels_last") end,
    unflatten = function(x) return x:flatten(1, 2):unflatten(1, { x:size(1), x:size(2) }) end,
    twice = function(x) return x:contiguous("channels_last"):reshape(-1) end,
  }
  local FROM = {
    itself = function(x) return x end,
    transposed = function(x) return x:transpose(1, 2) end,
    clone = function(x) return x:clone() end,
    channels_last = function(x) return x:contiguous("channels_last") end,
    ["a clone of that"] = function(x) return x:contiguous("channels_last"):clone() end,
    ["something computed"] = function(x) return x * 2 end,
  }
  local function numbers(...) return T.arange(1, 2 * 3 * 4 * 5, { dtype = "f32" }):view(...):clone() end
  local FOUR = {
    function() return numbers(2, 3, 4, 5) end,
    function() return numbers(3, 2, 4, 5):transpose(1, 2) end,
    function() return numbers(2, 3, 4, 5):contiguous("channels_last") end,
    function() return numbers(3, 2, 4, 5):contiguous("channels_last"):transpose(1, 2) end,
    function() return numbers(2, 3, 5, 4):transpose(3, 4) end,
  }
  for from, of in pairs(FROM) do
    for take, how in pairs(TAKE) do
      it(("what %s took from %s shares its memory as without, or is refused"):format(take, from), function()
        local function written(x)
          local a = of(x)
          local b = how(a)
          b:add_(1)
          return a * 1, b * 1
        end
        local function source(x)
          local a = of(x)
          local b = how(a)
          a:mul_(3)
          return a * 1, b * 1
        end
        local function returned(x) return how(of(x)) end
        for _, f in ipairs { written, source, returned } do
          local refused = 0
          for first = 1, #FOUR do
            local compiled = T.jit(f)
            for k = 0, #FOUR - 1 do
              local make = FOUR[(first + k - 1) % #FOUR + 1]
              local x, y = make(), make()
              local want, also = f(x)
              local fine, got, got_also = pcall(compiled, y)
              if fine then
                if f == returned then -- what is written later shows it, too
                  want:add_(1)
                  got:add_(1)
                end
                local text = ("layout %d first, call %d"):format(first, k)
                assert.is_true(T.equal(want, got), text)
                assert.is_true(T.equal(x, y), text .. ": the argument")
                assert.is_true(not also or T.equal(also, got_also), text)
              else
                assert.truthy(tostring(got):find("channels last", 1, true), got)
                refused = refused + 1
              end
            end
          end
          local named = (from .. take):find("channels_last") or from == "a clone of that" or take == "twice"
          if not named then assert.equal(0, refused) end
          local lax = T.jit(f, { fallback = true })
          for _, make in ipairs(FOUR) do assert.is_true(T.equal((f(make())), (lax(make())))) end
        end
      end)
    end
  end

  it("a format that the function gives is not asked for inside", function()
    local f = function(x) return x:contiguous("channels_last"):is_contiguous("channels_last") and x * 2 or x * 3 end
    local x = T.randn(2, 3, 4, 5)
    local fine, text = pcall(T.jit(f), x)
    assert.is_false(fine)
    assert.truthy(text:find("is_contiguous: f32[2,3,4,5] would be channels last without a graph", 1, true), text)
    assert.is_true(T.equal(x * 2, T.jit(f, { fallback = true })(x)))
    assert.is_false((pcall(T.jit(function(v) return v * v:contiguous("channels_last"):clone():stride(2) end), x)))
  end)

  it("a write into an argument that is not row-major is seen by who saved it", function()
    local compiled = T.jit(function(x)
      x:add_(1)
      return x * 1
    end)
    for _ = 1, 3 do
      local x, w = T.randn(3, 2):t(), T.randn(2, 3):requires_grad_()
      local l, version = (w * x):sum(), x:version()
      compiled(x)
      assert.is_true(x:version() > version)
      assert.error_matches(function() l:backward() end, "modified in place")
    end
  end)

  it("all of an argument is written through any view that shows all of it", function()
    local WRITE = {
      function(x) x[1] = 5 return x * 1 end,
      function(x) x:reshape(-1):add_(1) return x * 2 end,
      function(x) x:view(3):mul_(x[1]) return x[{ 1, 2 }] + x end,
      function(x) x:unsqueeze(1)[1][1]:zero_() return x + 1 end,
      function(x) local v = x:t() x[1] = 5 return v * 2 end,
    }
    for k, f in ipairs(WRITE) do
      local compiled = T.jit(f)
      for _ = 1, 3 do
        local x = T.randn(1, 3)
        local y = x:clone()
        assert.is_true(T.equal(f(x), compiled(y)), k)
        assert.is_true(T.equal(x, y), k)
      end
    end
  end)

  it("a 0-d operand beside one that is not row-major is one element", function()
    local order = { 3, 1, 2 }
    local x = T.randn(2, 3, 4):permute(order):contiguous():permute(2, 3, 1)
    local mask, value = x:gt(0), T.tensor(2.5):requires_grad_()
    for name, f in pairs {
      masked_fill = function(a, m, v) return a:masked_fill(m, v) end,
      masked_fill_ = function(a, m, v) return a:clone():masked_fill_(m, v) end,
      ["a view's"] = function(a, m, v)
        local y = a * 2
        y:select(2, 2):masked_fill_(m:select(2, 1), v)
        return y
      end,
      index = function(a, m, v)
        local y = a:clone()
        y[m] = v
        return y
      end,
      where = function(a, m, v) return T.where(m, v, a) end,
      mul = function(a, _, v) return a * v end,
      maximum = function(a, _, v) return v:maximum(a) end,
      lerp = function(a, _, v) return a:lerp(v, 0.25) end,
      addcmul = function(a, _, v) return T.addcmul(a, a, v) end,
    } do
      local compiled = T.jit(f)
      for call = 1, 3 do
        local want, got = f(x, mask, value), compiled(x, mask, value)
        assert.is_true(T.equal(want, got), name)
        assert.same(want:stride(), got:stride(), name)
        local a, b = T.grad_of(want:sum(), value), T.grad_of(got:sum(), value)
        assert.is_true(a:allclose(b), ("%s, gradient, call %d"):format(name, call))
      end
    end
  end)
end)
