-- SPDX-License-Identifier: MIT
-- Values and gradients where formulas have an edge: at a threshold, at 0, of NaN and infinities, of repeated indices.

local T = require "perilune"

local NAN, INF = 0 / 0, math.huge

local function same(want, got, what)
  assert.equal(#want, #got)
  for i, v in ipairs(want) do
    local ok = v ~= v and got[i] ~= got[i] or v == got[i] or math.abs(v - got[i]) < 1e-5
    if not ok then error(("%s: entry %d is %s, not %s"):format(what, i, got[i], v)) end
  end
end

describe("at their edges", function()
  for _, dtype in ipairs { "f32", "f64" } do
    it("hardshrink, softshrink and sinc of " .. dtype, function()
      local at = { NAN, INF, -INF, 0.5, -0.5, 0, 0.75, -0.75 }
      for name, want in pairs {
        hardshrink = { { NAN, INF, -INF, 0, 0, 0, 0.75, -0.75 }, { 3, 3, 3, 0, 0, 0, 3, 3 } },
        softshrink = { { NAN, INF, -INF, 0, 0, 0, 0.25, -0.25 }, { 3, 3, 3, 0, 0, 0, 3, 3 } },
        sinc = { { NAN, NAN, NAN, 2 / math.pi, 2 / math.pi, 1, 0.3001055, 0.3001055 },
          { NAN, NAN, NAN, -12 / math.pi, 12 / math.pi, 0, -4.0288491, 4.0288491 } },
      } do
        for _, n in ipairs { 1, 5 } do -- short and long loops
          local list = {}
          for _ = 1, n do for _, v in ipairs(at) do list[#list + 1] = v end end
          local x = T.tensor(list, { dtype = dtype }):requires_grad_()
          local y = T[name](x)
          y:backward(T.full(x:shape(), 3.0, { dtype = dtype }))
          for k = 0, n - 1 do
            local from = k * #at
            same(want[1], table.move(y:totable(), from + 1, from + #at, 1, {}), name)
            same(want[2], table.move(x.grad:totable(), from + 1, from + #at, 1, {}), name .. "'s gradient")
          end
        end
      end
    end)
  end

  it("index_fill by a tensor: an element counts once, however often it is named", function()
    local index = T.tensor({ 1, 1, 2, 1 }, { dtype = "i64" })
    for _, shape in ipairs { { 3 }, { 3, 2 } } do
      local x, v = T.zeros(shape, { dtype = "f64" }):requires_grad_(), T.tensor(2.0, { dtype = "f64" }):requires_grad_()
      local f = function(a, b) return a:index_fill(1, index, b) end
      f(x, v):sum():backward()
      assert.equal(2 * (shape[2] or 1), v.grad:item())
      assert.equal(shape[2] or 1, x.grad:sum():item())
      assert.is_true(T.gradcheck(f, { x:detach():requires_grad_(), v:detach():requires_grad_() }))
      assert.is_true(T.gradgradcheck(f, { x:detach():requires_grad_(), v:detach():requires_grad_() }))
    end
    -- what is not written has no part in it, be it infinite
    local v = T.tensor(1.0):requires_grad_()
    T.zeros(3):index_fill(1, T.tensor({ 1 }, { dtype = "i64" }), v):backward(T.tensor { 2, INF, NAN })
    assert.equal(2, v.grad:item())
  end)
end)
