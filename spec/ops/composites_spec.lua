-- SPDX-License-Identifier: MIT
-- Conveniences made of other ops (lua/perilune/tensor/conveniences.lua). Expected values by hand, or as PyTorch gives
-- them.

local T = require "perilune"
local near = require "spec.support.near"
local eq, fails = near.near, near.fails

local function matrix() return T.tensor { { 1, 2 }, { 3, 4 } } end

describe("powers of two", function()
  -- x 2^e, exactly but for one rounding
  local function exact(x, e)
    while math.abs(e) > 500 and x ~= 0 and math.abs(x) < math.huge and x == x do
      local part = e > 0 and 500 or -500
      x, e = x * 2.0 ^ part, e - part
    end
    return x == 0 and x or x * 2.0 ^ math.max(-500, math.min(e, 500))
  end

  it("functions of two tensors take a 0-d one as arithmetic does", function()
    local dtypes = { "f16", "bf16", "f32", "f64", "i64", "u8", "bool" }
    for name, f in pairs { ldexp = T.ldexp, xlog1py = T.special.xlog1py, xlogy = T.xlogy } do
      for _, a in ipairs(dtypes) do
        for _, b in ipairs(dtypes) do
          local x, y = T.ones({ 3 }, { dtype = a }), T.tensor(1, { dtype = b })
          local want = T.result_type(x, y)
          if not want:match "^b?f" then want = "f32" end
          assert.equal(want, f(x, y):dtype(), name .. " " .. a .. "[3] " .. b .. "[]")
          assert.equal(want, f(y, x):dtype(), name .. " " .. b .. "[] " .. a .. "[3]")
        end
      end
    end
  end)

  it("ldexp is right where 2^y leaves the range, in every dtype", function()
    local xs = { 0, -0.0, 1, -1.5, 3, 2.0 ^ -1000, 2.0 ^ 1000, -2.0 ^ -14, 2.0 ^ 15, 2.0 ^ -149, 1 / 0, -1 / 0, 0 / 0 }
    local es = { 0, 1, -1, 7, 20, -20, 64, -64, 100, 127, 128, -150, 300, -300, 1024, -1074, 2000, -2000, 2098, 1 << 40,
      -(1 << 40) }
    for _, d in ipairs { "f64", "f32", "f16", "bf16" } do
      for _, ed in ipairs { "i64", "f64" } do
        if ed == "i64" or d == "f64" then
          local x = T.tensor(xs, { dtype = d })
          for _, e in ipairs(es) do
            local got = T.ldexp(x, T.full({ #xs }, e, { dtype = ed }))
            assert.equal(d, got:dtype())
            local want = {}
            for i, v in ipairs(x:to("f64"):totable()) do want[i] = exact(v, e) end
            want = T.tensor(want, { dtype = "f64" }):to(d)
            assert.is_true(got:allclose(want, { rtol = 0, atol = 0, equal_nan = true }), ("%s 2^%d"):format(d, e))
          end
        end
      end
    end
  end)

  it("logaddexp2 of halves is rounded once", function()
    T.manual_seed(3)
    for _, d in ipairs { "f16", "bf16" } do
      local x = T.cat { T.randn(200) * 8, T.zeros(40) }:to(d)
      local y = T.cat { T.randn(200) * 8, -T.arange(1, 40):float() / 4 }:to(d)
      local want = T.logaddexp2(x:to("f64"), y:to("f64"))
      local got = T.logaddexp2(x, y):to("f64")
      assert.is_true(got:allclose(want, { rtol = d == "f16" and 2.0 ^ -10 or 2.0 ^ -7, atol = 1e-7 }))
    end
  end)
end)

describe("forms in place of functions", function()
  it("write the result into x", function()
    local a, b = T.tensor { { 1, 2 }, { 3, 4 } }, T.tensor { { 0, 1 }, { 1, 0 } }
    local x = T.ones(2, 2)
    local same = x
    assert.equal(same, x:addmm_(a, b))
    eq(x, { { 3, 2 }, { 5, 4 } })
    eq(T.ones(2):addmv_(a, T.ones(2)), { 4, 8 })
    eq(T.ones(2):cumsum_(1), { 1, 2 })
    eq(T.tensor { 2, 3 }:cumprod_(1), { 2, 6 })
    eq(T.tensor { 1, 3 }:gt_(2), { 0, 1 })
    eq(T.tensor { 1, 3 }:greater_equal_(1), { 1, 1 })
    eq(T.tensor { true, false }:logical_or_(T.tensor { false, false }):long(), { 1, 0 })
    local leaf = T.ones(2):requires_grad_()
    eq(T.grad_of((leaf * 2):cumsum_(1):sum(), leaf), { 4, 2 })
    fails("addmm_: f32[2,2] does not broadcast to f32[2]", function() T.ones(2):addmm_(a, b) end)
  end)

  it("index_put takes the positions in a list", function()
    local i, j = T.tensor({ 1, 1 }, { dtype = "i64" }), T.tensor({ 1, 2 }, { dtype = "i64" })
    local x = T.zeros(2, 2)
    eq(x:index_put({ i, j }, T.tensor { 5, 6 }), { { 5, 6 }, { 0, 0 } })
    eq(x, 0)
    assert.equal(x, x:index_put_({ i }, 2, { accumulate = true }))
    eq(x, { { 4, 4 }, { 0, 0 } })
    fails("index_put_: write x:index_put_({ indices }, value", function() x:index_put_(i, 2) end)
  end)

  it("T.finfo and T.iinfo tell a dtype's limits", function()
    for _, d in ipairs { "f64", "f32", "bf16", "f16" } do
      local f = T.finfo(d)
      local one = T.ones({ 1 }, { dtype = d })
      assert.is_true((one + f.eps):gt(1):item() and not (one + f.eps / 2):gt(1):item(), d)
      local max = T.tensor({ f.max, f.min }, { dtype = d })
      assert.same({ f.max, f.min }, max:to("f64"):totable())
      assert.is_false((max * 2):isfinite():any():item())
      assert.equal(f.tiny, T.tensor({ f.tiny }, { dtype = d }):to("f64"):item())
    end
    assert.equal(-2147483648, T.iinfo("i32").min)
    assert.equal(255, T.iinfo(T.zeros({ 1 }, { dtype = "u8" })).max)
    assert.equal("f32", T.finfo().dtype)
    fails("finfo: i64 is no floating dtype", T.finfo, "i64")
    fails("iinfo: f32 is no integer dtype", T.iinfo, "f32")
    fails("unknown dtype", T.finfo, "f99")
  end)

  it("eye, linspace and logspace take a device and requires_grad", function()
    assert.is_true(T.eye(2, { requires_grad = true, device = "cpu", dtype = "f64" }).requires_grad)
    assert.is_true(T.linspace(0, 1, 3, { requires_grad = true }).requires_grad)
    eq(T.logspace(0, 2, 3, { device = "cpu" }), { 1, 10, 100 })
    eq(T.eye(2, { device = "cpu" }), { { 1, 0 }, { 0, 1 } })
    assert.equal(6, T.randperm(3, { device = "cpu" }):sum():item())
    fails("eye: unknown option 'devize'", T.eye, 2, { devize = "cpu" })
  end)
end)

describe("composites:", function()
  it("limits and angles", function()
    local x = matrix()
    eq(x:clip(2, 3), { 2, 2, 3, 3 })
    local y = x:clone()
    y:clip_(2, 3)
    eq(y, { 2, 2, 3, 3 })
    eq(x:clamp_min(2), { 2, 2, 3, 4 })
    eq(x:clamp_max(2), { 1, 2, 2, 2 })
    eq(x:clamp_min(T.tensor { 2, 5 }), { 2, 5, 3, 5 })
    eq(x:clamp_max(T.tensor { 2, 1 }), { 1, 1, 2, 1 })
    eq(T.tensor { 180, 90 }:deg2rad(), { math.pi, math.pi / 2 }, 1e-6)
    eq(T.tensor { math.pi }:rad2deg(), { 180 }, 1e-4)
  end)

  it("shapes", function()
    local x = matrix()
    assert.same({ 4 }, x:ravel():shape())
    eq(x:fliplr(), { 2, 1, 4, 3 })
    eq(x:flipud(), { 3, 4, 1, 2 })
    eq(x:swapaxes(1, 2), { 1, 3, 2, 4 })
    assert.same({ 3, 2, 1 }, T.zeros(1, 3, 2):moveaxis(1, -1):shape())
    assert.same({ 1 }, T.tensor(3):atleast_1d():shape())
    assert.same({ 1, 1 }, T.tensor(3):atleast_2d():shape())
    assert.same({ 1, 2 }, T.ones(2):atleast_2d():shape())
    eq(T.column_stack { T.tensor { 8, 9 }, x }, { 8, 1, 2, 9, 3, 4 })
    local list = T.broadcast_tensors { T.ones(2, 1), T.ones(3) }
    assert.same({ 2, 3 }, list[1]:shape())
    assert.same({ 2, 3 }, list[2]:shape())
    fails("sizes 2 and 3 differ", T.broadcast_tensors, { T.ones(2), T.ones(3) })
    eq(T.block_diag { x, T.tensor { 5 } }, { 1, 2, 0, 3, 4, 0, 0, 0, 5 })
    fails("fliplr: at least 2 dimensions", T.fliplr, T.ones(2))
    local counts = T.tensor { 0, 2 }:long()
    eq(x:repeat_interleave(counts, 2), { 2, 2, 4, 4 })
    eq(x:repeat_interleave { repeats = counts, dim = 1 }, { 3, 4, 3, 4 })
    eq(x:repeat_interleave(T.tensor { 1, 0, 0, 2 }:long()), { 1, 4, 4 })
    fails("unknown option 'dims'", x.repeat_interleave, x, { repeats = counts, dims = 1 })
    eq(x:diff(1, 1), { 2, 2 })
    eq(x:diff(1, 2, { prepend = T.zeros(2, 1) }), { 1, 1, 3, 1 })
    eq(T.tensor { 1, 4, 9 }:diff(2), { 2 })
    eq(T.cdist(T.zeros(1, 2), x, 1), { 3, 7 })
    fails("cdist", T.cdist, x, x, -1)
  end)

  it("reductions", function()
    local x = matrix()
    local nan = T.tensor { { 1, 0 / 0 }, { 3, 4 } }
    eq(nan:nanmean(), { 8 / 3 }, 1e-6)
    eq(nan:nanmean { dim = 1 }, { 2, 4 })
    assert.same({ 2, 1 }, nan:nanmean(2, { keepdim = true }):shape())
    eq(x:quantile(0.5), { 2.5 })
    eq(x:quantile(0.25, 1), { 1.5, 2.5 })
    assert.same({ 1, 1 }, x:quantile(0.5, { keepdim = true }):shape())
    local q = nan:quantile(0, 2)
    assert.is_true(q:isnan()[1]:item() and q:get(2) == 3)
    fails("q must be a number from 0 to 1", x.quantile, x, 2)
    local median = T.jit(function(a) return a:quantile(0.5, 2) end)
    for _ = 1, 3 do eq(median(x), { 1.5, 3.5 }) end
    eq(x:dist(x * 2), { math.sqrt(30) }, 1e-5)
    eq(x:trapezoid(), { 1.5, 3.5 })
    eq(x:trapezoid { dx = 2, dim = 1 }, { 4, 6 })
    assert.same({ { 1, 2 }, { 2, 1 } }, T.tensor { { 0, 1 }, { 1, 0 } }:argwhere():totable())
  end)

  it("makers and the diagonal", function()
    local x = matrix()
    local i = T.tensor({ 1 }, { dtype = "i32" })
    for _, made in ipairs { i:new_zeros(2, 1), i:new_ones { 2, 1 }, i:new_full({ 2, 1 }, 7),
      i:new_tensor { { 1 }, { 2 } }, i:new_empty(2, 1) } do
      assert.equal("i32", made:dtype())
      assert.same({ 2, 1 }, made:shape())
    end
    eq(x:clone():fill_diagonal_(9), { 9, 2, 3, 9 })
  end)

  it("by a Lua function", function()
    local x = matrix()
    assert.equal(x, x:apply_(function(v, i) if i > 1 then return v * i end end))
    eq(x, { 1, 4, 9, 16 })
    eq(x:map_(T.tensor { 10, 20 }, function(a, b) return a + b end), { 11, 24, 19, 36 })
    fails("apply_: the function must return numbers", x.apply_, x, function() return "a" end)
    fails("apply_: f must be a function", x.apply_, x, 3)
    fails("boom", x.apply_, x, function() error("boom", 0) end)
    eq(x, { 11, 24, 19, 36 })
  end)

  it("a few singular values", function()
    T.manual_seed(2)
    local A = T.randn({ 30, 5 }, { dtype = "f64" }):matmul(T.randn({ 5, 20 }, { dtype = "f64" }))
    local U, S, V = T.svd_lowrank(A, 5)
    eq(U:matmul(S:diag()):matmul(V:t()), A:reshape(-1):totable(), 1e-9)
    eq(S, T.linalg.svdvals(A):narrow(1, 1, 5):totable(), 1e-9)
    local centred = A - A:mean(1, { keepdim = true })
    eq((select(2, T.pca_lowrank(A, { q = 5, niter = 4 }))), T.linalg.svdvals(centred):narrow(1, 1, 5):totable(), 1e-8)
    fails("q is 9, but", T.svd_lowrank, T.ones(3, 4), 9)
  end)

  it("dtypes and limits", function()
    assert.equal("f32", T.result_type(T.arange(2), 1.5))
    assert.equal("f16", T.result_type(T.ones(2, { dtype = "f16" }), T.tensor(1.0, { dtype = "f64" })))
    assert.equal("bool", T.result_type(T.ones(1, { dtype = "bool" }), T.ones(1, { dtype = "bool" })))
    fails("argument #2 must be a tensor or a number", T.result_type, T.ones(1))
    assert.is_true(T.is_signed(T.arange(1)))
    assert.is_false(T.is_nonzero(T.zeros(1)))
    fails("one element is wanted", T.is_nonzero, T.ones(2))
    eq(T.tensor { -1, 5 }:clamp_min_(0):clamp_max_(3), { 0, 3 })
    fails("clamp_min_", function() T.arange(2):clamp_min_("x") end)
  end)

  -- What ignores NaN has the gradient of what does not, where there is none: also between equal elements.
  it("without NaN have values and gradients of those that count it", function()
    local rows = { { 1, 2, 2, 2, 3 }, { 2, 2 }, { -0.0, 0.0, 1 }, { math.huge, math.huge, 1 }, { 5 }, { 3, 1, 2, 1 } }
    for _, row in ipairs(rows) do
      for _, name in ipairs { "median", "sum", "mean" } do
        local x = T.tensor(row, { dtype = "f64" }):requires_grad_()
        local with = T.tensor(table.move({ 0 / 0 }, 1, 1, #row + 1, table.move(row, 1, #row, 1, {})), { dtype = "f64" })
        local y, z = x[name](x), with:requires_grad_()["nan" .. name](with)
        assert.equal(y:item(), z:item(), name)
        local want = T.grad_of(y, x):totable()
        want[#want + 1] = 0
        assert.same(want, T.grad_of(z, with):totable(), name)
      end
    end
  end)

  it("are differentiable", function()
    local w = T.randn({ 3, 3 }, { dtype = "f64" }):requires_grad_()
    assert.is_true(T.gradcheck(function(a)
      return a:quantile(0.3, 2), a:dist(a * a), a:trapezoid(), a:fliplr(), a:nanmean(1), T.block_diag { a, a },
        a:clamp_max(0.5)
    end, { w }))
  end)
end)
