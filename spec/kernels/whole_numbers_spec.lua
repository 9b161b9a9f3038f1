-- SPDX-License-Identifier: MIT
-- Reductions of whole numbers as they are stored (isa/reduce/reduce_int.c) against those of the same numbers in
-- f64, which holds them exactly, at the ends of each type, in rows, columns and transposed; and sums that wrap.

describe("reductions of whole numbers", function()
  local T = require "perilune"
  local ENDS = { u8 = { 0, 255 }, i8 = { -128, 127 }, i16 = { -32768, 32767 }, i32 = { -2147483648, 2147483647 },
    i64 = { -2 ^ 35, 2 ^ 35 }, bool = { 0, 1 } }

  local function check(x, what)
    local wide = x:to "f64"
    for _, f in ipairs { "sum", "amax", "amin", "any", "all", "count_nonzero" } do
      for dim = 0, x:dim() do
        local options = dim > 0 and { dim = dim } or nil
        local want, got = wide[f](wide, options):to "f64", x[f](x, options):to "f64"
        assert(want:equal(got), ("%s over %d of %s"):format(f, dim, what))
      end
    end
  end

  for kind, ends in pairs(ENDS) do
    it("are exact in " .. kind, function()
      T.manual_seed(8)
      for _, size in ipairs { { 1, 1 }, { 7, 5 }, { 300, 130 }, { 33, 1000 }, { 2, 33000 }, { 33000, 2 },
        { 5, 4, 600 } } do
        local which = T.randint(0, 9, size)
        local x = T.randint(0, 1, size):mul(ends[2]):to(kind) -- neighbours in value, with both ends far apart
        if kind ~= "bool" then x = x:masked_fill(which:eq(1), math.tointeger(ends[1])):masked_fill(which:eq(2), 3) end
        local what = ("%s %s"):format(kind, table.concat(size, " x "))
        check(x, what)
        check(x:transpose(-1, -2), what .. ", transposed")
        for k = 1, 2 do
          local all = T.full(size, kind == "bool" and k == 2 or math.tointeger(ends[k]), { dtype = kind })
          check(all, what .. (k == 1 and ", all the least" or ", all the largest"))
        end
        if size[2] > 4 and #size == 2 then check(x:narrow(2, 2, size[2] - 3), what .. ", part of rows") end
      end
    end)
  end

  it("of i64 wrap, and of nothing are what they begin with", function()
    local x = T.tensor({ { math.maxinteger, 1 }, { 1, math.maxinteger } }, { dtype = "i64" })
    assert.are.same({ math.mininteger, math.mininteger }, x:sum(1):tolist())
    assert.are.same({ math.mininteger, math.mininteger }, x:sum(2):tolist())
    assert.are.same({ math.maxinteger, math.maxinteger }, x:amax(1):tolist())
    for _, kind in ipairs { "u8", "i8", "i16", "i32", "i64" } do
      local none = T.zeros(0, 3, { dtype = kind })
      assert.are.same({ 0, 0, 0 }, none:sum(1):tolist())
      assert.are.same({ 0, 0, 0 }, none:any(1):to("i32"):tolist())
      assert.are.same({ 1, 1, 1 }, none:all(1):to("i32"):tolist())
    end
  end)
end)

describe("running sums of columns", function()
  local T = require "perilune"
  for _, kind in ipairs { "f32", "f64" } do
    it("have the bits of rows in " .. kind, function()
      T.manual_seed(9)
      for _, size in ipairs { { 1, 5 }, { 7, 513 }, { 5000, 4 }, { 9, 3 }, { 65, 1030 }, { 0, 5 } } do
        local x = T.randn(size, { dtype = kind }) + 0.25
        for _, f in ipairs { "cumsum", "cumprod" } do
          local want = T[f](x:t():contiguous(), 2):t()
          assert.is_true(T[f](x, 1):equal(want))
          assert.is_true(T[f](T.stack { x, x }, 2)[2]:equal(want))
        end
        local y = x:clone():requires_grad_()
        T.cumsum(y, 1):backward(x)
        assert.is_true(y.grad:equal(x:flip(1):cumsum(1):flip(1)))
      end
    end)
  end
end)

describe("binary_cross_entropy_with_logits of f32", function()
  local T = require "perilune"
  it("is that of f64, rounded", function()
    T.manual_seed(10)
    local x = T.cat { T.randn(1000) * 4, T.tensor { 0, -0.0, 1e-30, 88, -88, 104, -104, 800, -800, 3e38, -3e38 } }
    local n = x:numel()
    local t = T.cat { T.rand(n - 4), T.tensor { 0, 1, 1, 0 } }
    local pos = T.rand(n) * 3
    for _, options in ipairs { { reduction = "none" }, { reduction = "none", pos_weight = pos } } do
      local wide = { reduction = "none", pos_weight = options.pos_weight and pos:to "f64" }
      local got = T.nn.F.binary_cross_entropy_with_logits(x, t, options):tolist()
      local want = T.nn.F.binary_cross_entropy_with_logits(x:to "f64", t:to "f64", wide):tolist()
      for i = 1, n do
        local fine = math.abs(got[i] - want[i]) <= 6.1e-8 * math.abs(want[i]) + 1e-45
        assert(fine, ("%g: %.9g, not %.9g"):format(x[i]:item(), got[i], want[i]))
      end
    end
    local edges = T.tensor { 0 / 0, math.huge, math.huge, -math.huge, -math.huge }
    local targets = T.tensor { 0.5, 0, 1, 0, 1 }
    local odd = T.nn.F.binary_cross_entropy_with_logits(edges, targets, { reduction = "none" }):tolist()
    local same = T.nn.F.binary_cross_entropy_with_logits
    local wide = same(edges:to "f64", targets:to "f64", { reduction = "none" }):tolist()
    for i = 1, 5 do assert(odd[i] == wide[i] or odd[i] ~= odd[i] and wide[i] ~= wide[i], i) end
  end)
end)
