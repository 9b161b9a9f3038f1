-- SPDX-License-Identifier: MIT
-- Values and gradients where formulas have an edge: at a threshold, at 0, of NaN and infinities, of repeated indices.

local T = require "perilune"

local F = T.nn.F
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
        hardshrink = { { NAN, INF, -INF, 0, 0, 0, 0.75, -0.75 }, { 0, 3, 3, 0, 0, 0, 3, 3 } },
        softshrink = { { NAN, INF, -INF, 0, 0, 0, 0.25, -0.25 }, { 0, 3, 3, 0, 0, 0, 3, 3 } },
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

  -- A number added to all classes changes nothing, as long as the sums are exact. Forward keeps log sum exp x rounded,
  -- which in f32 at 1e7 is off by 0.3: first and second gradients must not show it.
  it("cross_entropy: classes far from 0 have the gradients of those near it", function()
    local function gradients(list, shape, far, dtype, target, weight, options)
      local x = (T.tensor(list, { dtype = dtype }):reshape(shape) + far):requires_grad_()
      local loss = T.cross_entropy(x, target, weight, options)
      local dx = T.grad_of(loss:sum(), x, { create_graph = true })
      local second = T.grad_of((dx * T.tensor(list, { dtype = dtype }):reshape(shape)):sum(), x)
      return dx:detach():reshape(-1):totable(), second:reshape(-1):totable()
    end
    local list = {}
    for i = 1, 2 * 4 * 6 do list[i] = i * 5 % 7 * 2 - 6 end
    for _, dtype in ipairs { "f32", "f64" } do
      for _, far in ipairs { 192, -192, 1 << 17, -(1 << 17), 1 << 22, 1 << 23 } do
        for _, shape in ipairs { { 12, 4 }, { 2, 4, 6 } } do -- along rows, and down columns
          local n = #shape == 2 and { 12 } or { 2, 6 }
          local target = (T.arange(0, 11):reshape(n) % 4 + 1):to("i64")
          for _, smooth in ipairs { 0, 0.25 } do
            for _, reduction in ipairs { "mean", "sum", "none" } do
              for _, weight in ipairs { false, T.tensor({ 1, 2, 0.5, 3 }, { dtype = dtype }) } do
                local o = { reduction = reduction, label_smoothing = smooth }
                local g, h = gradients(list, shape, 0, dtype, target, weight or nil, o)
                local gf, hf = gradients(list, shape, far, dtype, target, weight or nil, o)
                local what = ("cross_entropy of %s + %d, %d dims, smoothing %g, %s"):format(dtype, far, #shape,
                  smooth, reduction)
                same(g, gf, what .. ": gradient")
                same(h, hf, what .. ": second gradient")
              end
            end
          end
        end
      end
    end
  end)

  -- PyTorch's own gradients there depend on the length: whole vectors of 16 or so give this, what is left behind them
  -- passes dy. Here the length makes no difference.
  it("activations: the gradient at NaN", function()
    for name, want in pairs {
      relu = 1, leaky_relu = 0.01, threshold = 1, relu6 = 0, hardtanh = 0, hardshrink = 0, softshrink = 0,
      hardsigmoid = 0, elu = NAN, selu = NAN, celu = NAN, hardswish = NAN, silu = NAN, gelu = NAN, mish = NAN,
      softplus = NAN, softsign = NAN,
    } do
      for _, dtype in ipairs { "f64", "f32", "bf16", "f16" } do
        for _, n in ipairs { 1, 3, 64, 67 } do
          local x = T.full({ n }, NAN, { dtype = dtype }):requires_grad_()
          local y = name == "threshold" and x:threshold(0.5, 0.1) or T[name](x)
          y:sum():backward()
          for _, v in ipairs(x.grad:totable()) do
            assert(v ~= v and want ~= want or math.abs(v - want) < 1e-4, ("%s of %s: %g"):format(name, dtype, v))
          end
        end
      end
    end
  end)

  it("incomplete gamma functions of large arguments, as with 30 digits", function()
    for _, row in ipairs {
      { 25, 27.500000000000004, 0.7089896993403522, 0.2910103006596478 },
      { 900, 810, 0.0009838475661111892, 0.9990161524338888 },
      { 1e4, 1e4, 0.5013298083399552, 0.4986701916600448 },
      { 1e6, 990000, 5.446644693010809e-24, 1 },
      { 5e6, 5e6, 0.5000594708039378, 0.4999405291960622 },
      { 5e6, 5000500, 0.5885234642756908, 0.4114765357243092 },
      { 1e8, 99900000, 7.369931066896994e-24, 1 },
      { 1e8, 100010000, 0.8413447464717988, 0.1586552535282012 },
      { 1e9, 1e9, 0.5000042052208701, 0.4999957947791299 },
    } do
      local a, x = T.tensor(row[1], { dtype = "f64" }), T.tensor(row[2], { dtype = "f64" })
      for k, name in ipairs { "gammainc", "gammaincc" } do
        local got, want = T.special[name](a, x):item(), row[k + 2]
        local close = math.abs(got - want) <= 2e-13 * want
        assert(close, ("%s(%g, %g) is %.17g, not %.17g"):format(name, row[1], row[2], got, want))
      end
    end
  end)

  it("xlog1py and entr at 0 have PyTorch's slopes", function()
    local x = T.tensor({ 0, 0, 0, 2 }, { dtype = "f64" }):requires_grad_()
    local y = T.tensor({ 1, 3, -0.5, 1 }, { dtype = "f64" })
    T.xlog1py(x, y):sum():backward()
    same({ math.log(2), math.log(4), -math.log(2), math.log(2) }, x.grad:totable(), "xlog1py for x")
    same({ 0, 0, 0 }, T.xlog1py(T.zeros(3), T.tensor { INF, -1, -2 }):totable(), "xlog1py where the logarithm is none")
    local z = T.tensor({ 0, -0.0, 0.5, -1 }, { dtype = "f64" }):requires_grad_()
    local e = T.special.entr(z)
    same({ 0, 0, math.log(2) / 2, -INF }, e:totable(), "entr")
    e:sum():backward()
    same({ INF, INF, math.log(2) - 1, NAN }, z.grad:totable(), "entr's gradient")
    local w = T.tensor({ INF, -1e4, 0 }, { dtype = "f64" }):requires_grad_()
    T.special.log_ndtr(w):sum():backward()
    same({ 0, 10000.0001, 0.79788456 }, w.grad:totable(), "log_ndtr's gradient")
  end)

  it("a number has dim 1 for quantiles, as for other reductions", function()
    local x = T.tensor(2.5)
    for _, dim in ipairs { 1, -1 } do
      assert.same({}, x:quantile(0.5, dim):shape())
      assert.same({ 2 }, x:nanquantile(T.tensor { 0, 1 }, dim, { keepdim = true }):shape())
      local value, place = x:nanmedian(dim)
      assert.same({ 2.5, 1 }, { value:item(), place:item() })
    end
  end)

  it("equal infinite medians share a gradient with each other alone", function()
    for _, inf in ipairs { INF, -INF } do
      local x = T.tensor({ inf, 2, NAN, inf, inf }, { dtype = "f64" }):requires_grad_()
      x:nanmedian():backward()
      same({ 1 / 3, 0, 0, 1 / 3, 1 / 3 }, x.grad:totable(), "nanmedian of " .. inf)
    end
  end)

  it("polygamma far below 0", function()
    local x = T.tensor({ -100.5, -1000.25, -4988429.2 }, { dtype = "f64" })
    same({ 9.8597034918701, 19.7382095517, 28.566851096445 }, x:polygamma(1):totable(), "n = 1")
    same({ -9.8027202627198e-5, 124.0251057227, 247.04791970405 }, x:polygamma(2):totable(), "n = 2")
    same({ 194.81818012692, 1558.545456542, 3768.6158729774 }, x:polygamma(3):totable(), "n = 3")
  end)

  it("Bessel functions of the largest numbers", function()
    local x = T.tensor({ 1.797e308, -1.797e308, INF }, { dtype = "f64" })
    same({ INF, INF, INF }, T.special.i0(x):totable(), "i0")
    same({ INF, -INF, INF }, T.special.i1(x):totable(), "i1")
  end)

  it("frexp of numbers below the normal ones, with a gradient", function()
    local x = T.tensor({ 1.401298464324817e-45, 3, -0.25, 0, INF, -INF, NAN }):requires_grad_()
    local m, e = T.frexp(x)
    same({ 0.5, 0.75, -0.5, 0, INF, -INF, NAN }, m:totable(), "mantissa")
    same({ -148, 2, -1, 0, 0, 0, 0 }, e:totable(), "exponent")
    m[{ { 2, 3 } }]:sum():backward()
    same({ 0, 0.25, 2, 0, 0, 0, 0 }, x.grad:totable(), "gradient")
  end)

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

  it("qr has no gradient where a pivot is rounding error: infinite or NaN, never noise by noise", function()
    local function gradient(a, dtype)
      local x = T.tensor(a, { dtype = dtype }):requires_grad_()
      local q, r = T.linalg.qr(x)
      ;(q:sum() + r:sum()):backward()
      return x.grad
    end
    for _, dtype in ipairs { "f32", "f64" } do
      assert.equal(0, gradient({ { 1, 2 }, { 2, 4 }, { 3, 6 } }, dtype):isfinite():sum():item())
      local g = gradient({ { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 } }, dtype)
      assert.equal(0, g:narrow(2, 1, 2):isfinite():sum():item())
      g = gradient({ { 0.1, 0.1, 3 }, { 0.3, 0.3, 1 }, { 0.7, 0.7, 2 } }, dtype)
      assert.equal(0, g:narrow(2, 1, 2):isfinite():sum():item())
      -- the last pivot of a square or wide matrix is not divided by
      same({ 1.414214, -1.414214, -1.414214, -2.828427, 0, 0 },
        gradient({ { 1, 1, 1 }, { 1, 1, 1 } }, dtype):flatten():totable(), "qr")
      -- columns of very different size are not degenerate
      assert.is_true(gradient({ { 1, 1e-12 }, { 1, -1e-12 }, { 2, 1e-12 } }, dtype):isfinite():all():item())
    end
    local x = T.randn(2, 4, 3, { dtype = "f64" }):requires_grad_()
    assert.is_true(T.gradcheck(function(a) return T.linalg.qr(a) end, { x }))
    assert.is_true(T.gradgradcheck(function(a) return T.linalg.qr(a) end, { x }))
  end)

  it("norms of expanded f32 matrices, thin ones too, are those of their f64 copies", function()
    for _, sizes in ipairs { { 3, 4 }, { 3000, 4 }, { 4, 3000 }, { 3000, 16 }, { 100, 100 } } do
      for _, ord in ipairs { "fro", "nuc", 2, 1, -1, INF, -INF } do
        local x = T.tensor(0.1):requires_grad_()
        local y = T.linalg.matrix_norm(x:expand(sizes), { ord = ord })
        y:backward()
        local d = x:detach():double():requires_grad_()
        local z = T.linalg.matrix_norm(d:expand(sizes), { ord = ord })
        z:backward()
        assert.is_true(math.abs(y:item() / z:item() - 1) < 2e-6, ord .. ": " .. y:item() .. " for " .. z:item())
        assert.is_true(math.abs(x.grad:item() / d.grad:item() - 1) < 2e-6, ord .. ": gradient " .. x.grad:item())
      end
    end
  end)

  it("pictures of bytes are resized to the bytes that PyTorch gives", function()
    local list = {}
    for i = 0, 63 do list[i + 1] = (i * 37 + 11 * (i // 5)) % 256 end
    local x = T.tensor(list, { dtype = "u8" }):view(1, 1, 8, 8)
    for _, row in ipairs {
      { "bilinear", { 5, 7 }, false, false,
        "18 61 106 149 195 180 43 110 152 195 127 59 81 119 189 118 116 80 122 169 212 40 82 125 " ..
        "168 200 56 49 129 172 153 84 81 95 141" },
      { "bilinear", { 9, 4 }, true, false,
        "0 86 180 14 45 140 228 68 98 186 90 114 145 185 73 166 195 118 123 215 153 82 176 167 45 " ..
        "134 183 62 91 176 93 114 145 146 73 159" },
      { "bilinear", { 5, 3 }, false, true,
        "63 154 135 146 133 103 137 106 165 89 153 105 150 114 102" },
      { "bicubic", { 5, 7 }, false, false,
        "13 59 103 149 210 197 37 107 151 214 132 40 74 117 212 114 110 55 118 186 237 27 88 129 " ..
        "172 232 38 36 132 183 160 73 71 92 145" },
      { "bicubic", { 9, 4 }, true, false,
        "0 88 179 14 41 140 255 66 95 205 74 111 143 211 44 164 218 113 118 239 160 65 200 172 21 " ..
        "142 215 38 93 184 77 118 145 152 72 159" },
      { "bicubic", { 5, 3 }, false, true,
        "50 164 135 153 136 93 144 92 178 76 167 98 157 113 98" },
    } do
      local mode, size, align, smooth, want = table.unpack(row)
      local y = T.nn.F.interpolate(x, { size = size, mode = mode, align_corners = align, antialias = smooth })
      assert.equal("u8", y:dtype())
      assert.equal(want, table.concat(y:flatten():totable(), " "), mode)
      local both = T.nn.F.interpolate(T.cat({ x, x }, 2), { size = size, mode = mode, align_corners = align,
        antialias = smooth })
      assert.is_true(both:select(2, 2):equal(y:select(2, 1)))
    end
  end)

  it("clamp without one bound passes infinities on that side", function()
    for _, dtype in ipairs { "f32", "f64" } do
      for _, row in ipairs {
        { { min = -0.5 }, { 0, 0, 1, 1, 0 } }, { { max = 0.5 }, { 1, 1, 0, 0, 0 } },
        { { min = -0.5, max = 0.5 }, { 0, 0, 0, 0, 0 } },
      } do
        local x = T.tensor({ -INF, -2, 2, INF, NAN }, { dtype = dtype }):requires_grad_()
        x:clamp(row[1]):sum():backward()
        same(row[2], x.grad:totable(), "clamp's gradient")
      end
    end
  end)

  it("elu, celu and selu have no second derivative at 0", function()
    for _, name in ipairs { "elu", "celu", "selu" } do
      local x = T.tensor({ 0, -0.0, -1, 1, NAN }, { dtype = "f64" }):requires_grad_()
      local g = T.grad_of(T[name](x):sum(), x, { create_graph = true })
      local h = T.grad_of(g:sum(), x):totable()
      assert(h[1] == 0 and h[2] == 0 and h[3] > 0.3 and h[4] == 0 and h[5] == 0, name)
    end
  end)

  it("the variance of equal elements is 0, and so is the gradient of their deviation", function()
    T.manual_seed(3)
    for _, dtype in ipairs { "f64", "f32", "f16", "bf16" } do
      for _, n in ipairs { 3, 7, 33, 1000 } do
        local v = T.rand(40, { dtype = dtype }) * 100
        for dim, x in ipairs { v:view(1, 40):expand(n, 40), v:view(40, 1):expand(40, n) } do
          x = x:contiguous():requires_grad_()
          local y = x:std(dim)
          assert.equal(0, y:ne(0):sum():item(), dtype)
          y:sum():backward()
          assert.equal(0, x.grad:ne(0):sum():item(), dtype)
          assert.equal(0, x:var(dim):ne(0):sum():item(), dtype)
        end
      end
    end
    local last = T.tensor({ 0x1.fffffffffffffp1023 }, { dtype = "f64" }) -- 2 pi times which there is no number for
    for _, name in ipairs { "i0e", "i1e" } do
      local got = T.special[name](last):item()
      assert.is_true(math.abs(got / 2.9754474593159e-155 - 1) < 1e-12, name .. " " .. got)
    end
    local far = T.tensor({ 1e300, -INF, 1 }, { dtype = "f64" })
    assert.equal(INF, T.tensor({ 1e300, -1e300 }, { dtype = "f64" }):var():item())
    assert.is_true(far:var():isnan():item())
  end)

  it("a correction above the count of elements leaves var's gradient finite, as in PyTorch", function()
    local x = T.tensor({ 1, 2, 6 }, { dtype = "f64" }):requires_grad_()
    local y = x:var { correction = 4 }
    assert.equal(INF, y:item())
    same({ 4, 2, -6 }, T.grad_of(y, x):totable(), "var's gradient") -- 2 (x - mean) / (3 - 4)
    same({ 0, 0, 0 }, T.grad_of(x:std { correction = 4 }, x):totable(), "std's gradient")
  end)

  it("equal medians of all elements share the gradient", function()
    local x = T.tensor({ 2, 1, 2, 2, 5 }):requires_grad_()
    x:median():backward()
    same({ 1 / 3, 0, 1 / 3, 1 / 3, 0 }, x.grad:totable(), "median's gradient")
    local z = T.tensor({ NAN, 1, NAN, 3 }):requires_grad_()
    z:median():backward()
    same({ 0.5, 0, 0.5, 0 }, z.grad:totable(), "median's gradient at NaN")
    local k = T.tensor({ { 1, 1 }, { 1, 0 } }):requires_grad_()
    k:median { keepdim = true }:sum():backward()
    same({ 1 / 3, 1 / 3, 1 / 3, 0 }, k.grad:flatten():totable(), "median's gradient, keepdim")
  end)

  it("rms_norm of half precision adds the epsilon of f32", function()
    for _, dtype in ipairs { "f16", "bf16" } do
      local x = T.tensor({ 1e-3, 2e-3 }, { dtype = dtype })
      local a, b = table.unpack(x:double():totable())
      local root = math.sqrt((a * a + b * b) / 2 + 2.0 ^ -23)
      for _, y in ipairs { (T.rms_norm(x, { normalized_shape = { 2 } })), T.nn.RMSNorm(2):to(dtype)(x) } do
        assert.equal(dtype, y:dtype())
        assert(math.abs(y[1]:item() - a / root) < 0.005 and math.abs(y[2]:item() - b / root) < 0.005, dtype)
      end
    end
  end)

  it("bools are close where they are equal", function()
    assert.same({ true, false }, T.tensor({ true, true }):isclose(T.tensor { true, false }):totable())
  end)
end)

-- Where several elements are the result, or nothing is, no difference quotient judges: by definition, as in PyTorch.
describe("the gradient without a slope of", function()
  local function norm(p) return function(x) return x:norm(p) end end
  local function op(name, ...)
    local rest = table.pack(...)
    return function(x) return x[name](x, table.unpack(rest, 1, rest.n)) end
  end
  -- name, f, x, the gradient of f(x)
  local rows = {
    { "amax of equal elements", op "amax", { 3, 3, 1 }, { 0.5, 0.5, 0 } },
    { "amin of equal elements", op "amin", { 1, 3, 1, 1 }, { 1 / 3, 0, 1 / 3, 1 / 3 } },
    { "max of equal elements", op "max", { 3, 3, 1 }, { 0.5, 0.5, 0 } },
    { "min of equal elements", op "min", { 1, 3, 1, 1 }, { 1 / 3, 0, 1 / 3, 1 / 3 } },
    { "max of NaNs", op "max", { NAN, 1, NAN }, { 0.5, 0, 0.5 } },
    { "mean of nothing", op "mean", {}, {} },
    { "prod of nothing", op "prod", {}, {} },
    { "var of one element", op "var", { 1 }, { NAN } },
    { "std of one element", op "std", { 1 }, { NAN } },
    { "var with no degree of freedom", op("var", { correction = 3 }), { 1, 2, 4 }, { -INF, -INF, INF } },
    { "var with fewer than none", op("var", { correction = 4 }), { 1, 2, 4 }, { 8 / 3, 2 / 3, -10 / 3 } },
    { "std of equal elements", op "std", { 5, 5 }, { 0, 0 } },
  }
  for _, p in ipairs { 0, 0.5, 1, 1.5, 2, 3, INF, -INF, -1 } do
    rows[#rows + 1] = { "the norm of zeros, p = " .. p, norm(p), { 0, 0 }, { 0, 0 } }
    local some = (p < 0 or p == 0) and 0 or 1
    rows[#rows + 1] = { "a norm with one zero, p = " .. p, norm(p), { 0, 2 }, { 0, some } }
  end
  rows[#rows + 1] = { "the norm of equal elements, p = inf", norm(INF), { 3, -3, 1 }, { 0.5, -0.5, 0 } }
  rows[#rows + 1] = { "the norm of equal elements, p = -inf", norm(-INF), { 1, -1, 3 }, { 0.5, -0.5, 0 } }
  for _, row in ipairs(rows) do
    it(row[1], function()
      for _, dtype in ipairs { "f32", "f64" } do
        local x = (#row[3] > 0 and T.tensor(row[3], { dtype = dtype }) or T.zeros({ 0 }, { dtype = dtype }))
        x:requires_grad_()
        row[2](x):backward()
        same(row[4], x.grad:totable(), row[1])
      end
    end)
  end
end)

-- The same of several inputs: f, its inputs, their gradients.
describe("the gradients without a slope of", function()
  local function op(name) return function(...) return T[name](...) end end
  local ln2, ln3 = math.log(2), math.log(3)
  for name, row in pairs {
    ["maximum of equal elements"] = { op "maximum", { { 1, 2, 3 }, { 1, 4, 0 } }, { { 0.5, 0, 1 }, { 0.5, 1, 0 } } },
    ["minimum of equal elements"] = { op "minimum", { { 1, 2, 3 }, { 1, 4, 0 } }, { { 0.5, 1, 0 }, { 0.5, 0, 1 } } },
    ["clamp at its limits"] = { op "clamp_tensor", { { 1, 2, 3 }, { 1, 0, 0 }, { 5, 2, 5 } },
      { { 0.5, 0.5, 1 }, { 0.5, 0, 0 }, { 0, 0.5, 0 } } },
    ["clamp to one number"] = { op "clamp_tensor", { { 0, 1, 2, NAN }, { 1, 1, 1, 0 }, { 1, 1, 1, 2 } },
      { { 0, 1, 0, 1 }, { 1, 0, 0, 0 }, { 0, 0, 1, 0 } } },
    ["clamp with min above max"] = { op "clamp_tensor", { { -1, 0, 1, 2, 3 }, { 2, 2, 2, 2, 2 }, { 0, 0, 0, 0, 0 } },
      { { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 }, { 1, 1, 1, 1, 1 } } },
    ["powers of 0"] = { op "pow", { { 0, 0, 2, 0 }, { 2, 0, 3, 1 } }, { { 0, 0, 12, 1 }, { 0, 0, 8 * ln2, 0 } } },
    ["xlogy at 0"] = { op "xlogy", { { 0, 0, 0, 2 }, { 3, 0, -1, 3 } }, { { ln3, 0, 0, ln3 }, { 0, NAN, 0, 2 / 3 } } },
  } do
    it(name, function()
      for _, dtype in ipairs { "f32", "f64" } do
        local xs = {}
        for i, list in ipairs(row[2]) do xs[i] = T.tensor(list, { dtype = dtype }):requires_grad_() end
        row[1](table.unpack(xs)):sum():backward()
        for i, want in ipairs(row[3]) do same(want, xs[i].grad:totable(), ("%s, input %d"):format(name, i)) end
      end
    end)
  end

  -- Of equal extremes all share, of zeros one or more hold the product, with x among them or not (PyTorch lets x share
  -- where it is only overwritten, which halves gradients).
  it("scatter_reduce of equal values and zeros", function()
    local third = 1000 / 3
    local rows = {
      { "amax", true, { 0, 5, 100, third }, { 0.5, 0.5, 0, 5, third, third } },
      { "amin", true, { 1, 0, 100, third }, { 0, 0, 10, 0, third, third } },
      { "prod", true, { 25, 150, 100, 0 }, { 10, 10, 250, 150, 0, 0 } },
      { "mean", true, { 1 / 3, 10 / 3, 100, third }, { 1 / 3, 1 / 3, 10 / 3, 10 / 3, third, third } },
      { "amax", false, { 0, 0, 100, 0 }, { 0.5, 0.5, 0, 10, 500, 500 } },
      { "amin", false, { 0, 0, 100, 0 }, { 0.5, 0.5, 10, 0, 500, 500 } },
      { "prod", false, { 0, 0, 100, 0 }, { 5, 5, 50, 30, 0, 0 } },
      { "mean", false, { 0, 0, 100, 0 }, { 0.5, 0.5, 5, 5, 500, 500 } },
    }
    for _, row in ipairs(rows) do
      local x = T.tensor({ 2, 5, 5, 0 }, { dtype = "f64" }):requires_grad_()
      local src = T.tensor({ 5, 5, 3, 5, 0, 0 }, { dtype = "f64" }):requires_grad_()
      local y = T.scatter_reduce(x, T.tensor({ 1, 1, 2, 2, 4, 4 }, { dtype = "i64" }), src,
        { dim = 1, reduce = row[1], include_self = row[2] })
      ;(y * T.tensor { 1, 10, 100, 1000 }):sum():backward()
      same(row[3], x.grad:totable(), row[1] .. " x")
      same(row[4], src.grad:totable(), row[1] .. " src")
    end
  end)

  it("binary_cross_entropy of 0 and 1, and next to them", function()
    local x = T.tensor({ 0, 1, 1e-13, 0.5, 1 - 1e-13 }, { dtype = "f64" }):requires_grad_()
    T.binary_cross_entropy(x, T.tensor({ 0, 1, 0.25, 0.5, 0.75 }, { dtype = "f64" }), { reduction = "sum" }):backward()
    local got = x.grad:totable()
    for i, want in ipairs { 0, 0, -250000000998.8507, 0, 250000000998.85068 } do
      assert.is_true(math.abs(got[i] - want) <= 1e-6 * math.abs(want), got[i])
    end
  end)

  it("scatters without an index", function()
    local index = T.zeros({ 0, 2 }, { dtype = "i64" })
    for _, f in ipairs { "scatter", "scatter_add", "scatter_reduce" } do
      local x, src = T.randn(3, 2):requires_grad_(), T.randn(3, 2):requires_grad_()
      T[f](x, index, src, { dim = 1, reduce = f == "scatter_reduce" and "sum" or nil }):sum():backward()
      assert.is_true(T.equal(x.grad, T.ones(3, 2)), f)
      assert.is_true(T.equal(src.grad, T.zeros(3, 2)), f)
    end
  end)

  it("full singular vectors, whose first ones count, of many matrices", function()
    for _, shape in ipairs { { 2, 4, 3 }, { 2, 3, 4 } } do
      local x = T.randn(shape, { dtype = "f64" })
      local function gradient(full)
        local a = x:clone():requires_grad_()
        local u, s, v = T.linalg.svd(a, { full_matrices = full })
        u, v = u:narrow(3, 1, 3), v:narrow(2, 1, 3)
        ;((u:abs() * 2):sum() + (s * s * s):sum() + (v * v * v * v):sum()):backward()
        return a.grad
      end
      assert.is_true((gradient(true) - gradient(false)):abs():max():item() < 1e-9)
    end
  end)
end)

describe("a place of grid_sample that is none", function()
  it("is NaN; an infinite one is outside, as a distant one", function()
    local x = T.arange(1, 32):double():reshape(1, 2, 4, 4)
    for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
      for _, padding in ipairs { "zeros", "border", "reflection" } do
        local function sample(v)
          local grid = T.tensor({ { { { v, 0.25 }, { 0.25, v }, { 0.1, 0.2 } } } }, { dtype = "f64" })
          local function f(a, b)
            return F.grid_sample(a, b, { mode = mode, padding_mode = padding, align_corners = false })
          end
          local y = f(x, grid)
          local again = T.jvp(f, { x, grid }, { T.zeros_like(x), T.zeros_like(grid) })
          assert.is_true(T.allclose(y, again, { equal_nan = true }), mode .. " " .. padding)
          return y
        end
        for _, channels in ipairs { 1, 2 } do
          local what = ("%s %s %d"):format(mode, padding, channels)
          assert.same({ true, true, false }, sample(NAN)[1][channels][1]:isnan():totable(), what)
          for _, sign in ipairs { 1, -1 } do
            local far = sample(sign * INF)
            if padding == "reflection" then assert.same({ true, true, false }, far[1][1][1]:isnan():totable(), what)
            else assert.is_true(T.allclose(far, sample(sign * 1e6)), what) end
          end
        end
      end
    end
  end)
end)

describe("as_strided of empty lists", function()
  it("is a 0-d view", function()
    assert.same({}, T.tensor(3.0):as_strided({}, {}):shape())
    assert.equal(3, T.arange(4):as_strided({}, {}, 2):item())
  end)
end)
