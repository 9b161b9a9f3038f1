-- SPDX-License-Identifier: MIT
-- Ops whose kernels have fast forms for some sizes, dims or layouts: values against other ways to the same result
-- (single rows, formulas, the same in f64), NaN and infinities, and the same bits on 1, 2 and 3 threads.

local T = require "perilune"
local F = T.nn.F
local unpack = table.unpack

local function near(a, b, bound, what)
  assert.equal(table.concat(b:shape(), ","), table.concat(a:shape(), ","), what)
  local off = (a:to("f64") - b:to("f64")):abs()
  local scale = b:to("f64"):abs():clamp(1)
  local worst = a:numel() > 0 and (off / scale):nan_to_num { nan = 0, posinf = 0 }:max():item() or 0
  assert.is_true(worst <= bound, ("%s: off by %g"):format(what, worst))
  local same = a:isnan():eq(b:isnan()):all():item()
  assert.is_true(same, what .. ": NaN elsewhere")
end

local function equal_bits(a, b, what)
  assert.is_true(T.equal(a:nan_to_num { nan = 77 }, b:nan_to_num { nan = 77 }), what)
end

-- f's results on 1, 2 and 3 threads are the same; returns the first.
local function on_threads(f, what)
  local before, first = T.get_num_threads(), nil
  for n = 1, 3 do
    T.set_num_threads(n)
    local y = { f() }
    first = first or y
    for i, t in ipairs(y) do equal_bits(t, first[i], ("%s on %d threads"):format(what, n)) end
  end
  T.set_num_threads(before)
  return unpack(first)
end

describe("reductions along any dim", function()
  local shapes = { { 3, 5, 40 }, { 30, 13, 19 }, { 4, 300, 600 }, { 1, 9, 1 }, { 200, 3, 7 }, { 2, 70000 },
    { 3000, 9 } }
  local ops = {
    sum = function(x, d) return x:sum(d) end,
    mean = function(x, d) return x:mean(d) end,
    norm = function(x, d) return x:norm { dim = d } end,
    norm1 = function(x, d) return x:norm(1, { dim = d }) end,
    var = function(x, d) return x:var(d) end,
    amax = function(x, d) return x:amax(d) end,
    amin = function(x, d) return x:amin(d) end,
    logsumexp = function(x, d) return x:logsumexp(d) end,
    prod = function(x, d) return (x:sign() * x:abs() ^ 0.05):prod(d) end,
  }
  -- The same, each output from a row of its own.
  local function by_rows(f, x, d)
    local rows = x:transpose(d, -1):contiguous()
    local flat, out = rows:reshape(-1, rows:size(-1)), {}
    for i = 1, flat:size(1) do out[i] = f(flat[i]:to("f64"), 1) end
    local y = T.stack(out):reshape { unpack(rows:shape(), 1, rows:dim() - 1) }
    return y
  end
  for name, f in pairs(ops) do
    it(name, function()
      for _, shape in ipairs(shapes) do
        T.manual_seed(3)
        local x = T.randn(unpack(shape))
        if x:numel() < 10000 then
          for d = 1, #shape do
            local got = on_threads(function() return f(x, d) end, name)
            local want = by_rows(f, x, d)
            -- by_rows leaves the last dim where d was
            if d < #shape then
              local perm = {}
              for i = 1, #shape - 1 do perm[i] = i end
              table.remove(perm, d)
              perm[#perm + 1] = d
              want = want:permute(perm)
            end
            near(got, want, 1e-5, ("%s of [%s], dim %d"):format(name, table.concat(shape, ","), d))
          end
        else
          for d = 1, #shape do
            near(on_threads(function() return f(x, d) end, name), f(x:to("f64"), d), 1e-4, name)
          end
        end
        if name ~= "var" then near(f(x), f(x:to("f64")), 1e-4, name .. " of all") end
      end
    end)
  end

  it("over dims that are not neighbours, and of other dtypes", function()
    local x = T.randn(6, 9, 5, 8)
    for _, dims in ipairs { { 1, 3 }, { 2, 4 }, { 1, 4 }, { 1, 2, 4 } } do
      near(x:sum { dim = dims }, x:to("f64"):sum { dim = dims }, 1e-5, "sum")
      near(x:amax { dim = dims }, x:to("f64"):amax { dim = dims }, 0, "amax")
    end
    for _, dtype in ipairs { "f16", "bf16", "f64", "i32", "i64", "u8", "bool" } do
      local y = (T.rand(37, 70) * 5):to(dtype)
      for d = 1, 2 do
        assert.is_true(T.equal(y:count_nonzero(d), y:to("f64"):ne(0):to("i64"):sum(d)), dtype)
        assert.is_true(T.equal(y:any(d):to("bool"), y:to("i64"):sum(d):gt(0)), dtype)
        assert.is_true(T.equal(y:ne(0):all(d), y:count_nonzero(d):eq(y:size(d))), dtype)
        near(y:sum(d), y:to("f64"):sum(d), dtype == "f16" and 2e-3 or dtype == "bf16" and 2e-2 or 0, "sum of " .. dtype)
      end
    end
    local many = T.ones(70000, 3, { dtype = "u8" })
    assert.equal(210000, many:count_nonzero():item())
    assert.is_true(T.equal(many:count_nonzero(1), T.full({ 3 }, 70000, { dtype = "i64" })))
  end)

  it("keep NaN and infinities", function()
    local nan, inf = 0 / 0, math.huge
    for _, n in ipairs { 1, 7, 16, 64, 65, 130, 1000 } do
      for _, at in ipairs { 1, (n + 1) // 2, n } do
        local x = T.randn(3, n)
        x[2][at] = nan
        x[3][at] = -inf
        for _, f in ipairs { "amax", "amin", "sum", "logsumexp", "prod", "norm" } do
          local y = f == "norm" and x:norm { dim = 2 } or x[f](x, 2)
          local xt = x:t():contiguous()
          local down = f == "norm" and xt:norm { dim = 1 } or xt[f](xt, 1)
          assert.is_true(y[2]:isnan():item(), f)
          assert.is_true(down[2]:isnan():item(), f)
          assert.is_false(y[1]:isnan():item() or down[1]:isnan():item(), f)
        end
        assert.equal(-inf, x:amin(2)[3]:item())
        assert.is_true(n == 1 or x:amax(2)[3]:item() > -inf)
      end
    end
    assert.equal(-inf, T.full({ 20, 3 }, -inf):logsumexp(1)[1]:item())
    assert.equal(inf, T.full({ 20, 30 }, inf):logsumexp(1)[1]:item())
  end)
end)

describe("softmax and cross entropy along a dim that is not the last", function()
  local shapes = { { 4, 20, 9 }, { 2, 3, 300 }, { 3, 130, 16, 17 }, { 5, 1, 8 }, { 1000, 12 }, { 2, 7, 5 } }
  it("agree with rows", function()
    for _, dtype in ipairs { "f32", "f64", "bf16" } do
      for _, shape in ipairs(shapes) do
        local d = #shape > 2 and 2 or 1
        local x = (T.randn(unpack(shape)) * 4):to(dtype)
        local bound = dtype == "f64" and 1e-13 or dtype == "f32" and 4e-6 or 4e-2 -- 2 in the last place of 16
        for _, f in ipairs { "softmax", "log_softmax" } do
          local got = on_threads(function() return x[f](x, d) end, f)
          local want = x:transpose(d, -1):contiguous()
          near(got, want[f](want, -1):transpose(d, -1), bound, f)
          local a, b = x:detach():requires_grad_(), want:detach():requires_grad_()
          local dy = T.randn(unpack(shape)):to(dtype)
          a[f](a, d):backward(dy)
          b[f](b, -1):backward(dy:transpose(d, -1):contiguous())
          near(a.grad, b.grad:transpose(d, -1), bound * 20, f .. " gradient")
        end
      end
    end
  end)
  it("cross entropy with weights and ignored targets", function()
    for _, dtype in ipairs { "f32", "f64" } do
      for _, shape in ipairs(shapes) do
        if #shape > 2 then
          local C, rest = shape[2], { shape[1], unpack(shape, 3) }
          local x = (T.randn(unpack(shape)) * 3):to(dtype)
          local y, w = T.randint(1, C, rest), T.rand(C):to(dtype)
          y:view(-1)[2] = -100
          local options = { {}, { reduction = "sum" }, { reduction = "none" }, { weight = w },
            { label_smoothing = 0.1 } }
          for _, o in ipairs(options) do
            local a, b = x:detach():requires_grad_(), x:movedim(2, -1):reshape(-1, C):detach():requires_grad_()
            local la = on_threads(function() return F.cross_entropy(a:detach(), y, o) end, "cross_entropy")
            near(la, F.cross_entropy(b, y:reshape(-1), o):detach():reshape(la:shape()), 3e-6, "cross entropy")
            local dy = T.rand(unpack(la:shape())):to(dtype)
            F.cross_entropy(a, y, o):backward(dy)
            F.cross_entropy(b, y:reshape(-1), o):backward(dy:reshape { unpack(la:dim() > 0 and { -1 } or {}) })
            near(a.grad:movedim(2, -1):reshape(-1, C), b.grad, 3e-6, "its gradient")
          end
        end
      end
    end
  end)
  it("refuse targets that are no class", function()
    assert.has_error(function() F.cross_entropy(T.randn(2, 3, 9), T.full({ 2, 9 }, 4, { dtype = "i64" })) end)
  end)
end)

describe("losses in blocks", function()
  it("agree with their formulas", function()
    local x, t = T.randn(100, 333), T.randn(100, 333)
    local p, q = T.rand(100, 333), T.rand(100, 333)
    p:view(-1)[1], p:view(-1)[2], q:view(-1)[3] = 0, 1, 0
    local X, D, P, Q = x:to("f64"), (x - t):to("f64"), p:to("f64"), q:to("f64")
    local near_zero = D:abs()
    local function smooth(beta)
      return T.where(near_zero:lt(beta), D * D * (0.5 / beta), near_zero - 0.5 * beta)
    end
    local cases = {
      { "mse_loss", x, t, {}, D * D },
      { "l1_loss", x, t, {}, near_zero },
      { "smooth_l1_loss", x, t, { beta = 0.7 }, smooth(0.7) },
      { "huber_loss", x, t, { delta = 0.7 }, smooth(0.7) * 0.7 },
      { "binary_cross_entropy", p, q, {}, -(Q * P:log():clamp(-100) + (1 - Q) * (1 - P):log():clamp(-100)) },
      { "binary_cross_entropy_with_logits", x, q, {}, (1 - Q) * X + (1 + (-X):exp()):log() },
      { "kl_div", x, q, {}, T.where(Q:eq(0), Q * 0, Q * Q:log()) - Q * X },
      { "kl_div", x, t, { log_target = true }, t:to("f64"):exp() * (t:to("f64") - X) },
    }
    for _, c in ipairs(cases) do
      local name, a, b, o, want = unpack(c)
      o.reduction = "none"
      near(on_threads(function() return F[name](a, b, o) end, name), want, 1e-6, name)
      o.reduction = "sum"
      near(on_threads(function() return F[name](a, b, o) end, name), want:sum(), 1e-6, name .. " sum")
    end
  end)
end)

describe("transposed copies and conversions", function()
  it("of every size of element and window", function()
    for _, dtype in ipairs { "u8", "bool", "i16", "f16", "f32", "i32", "f64", "i64" } do
      for _, s in ipairs { { 1, 9 }, { 7, 8 }, { 8, 8 }, { 9, 17 }, { 40, 24 }, { 33, 65 }, { 130, 70 } } do
        local x = T.arange(s[1] * s[2]):to(dtype):view(s[1], s[2])
        local y = on_threads(function() return x:t():contiguous() end, dtype)
        local at = T.arange(s[1] * s[2]):view(s[1], s[2]) -- built another way: picked by place
        local picked = {}
        for j = 1, s[2] do picked[j] = x:select(2, j) end
        assert.is_true(T.equal(y, T.stack(picked)), dtype)
        assert.is_true(T.equal(x:t():to("f64"), at:t():contiguous():to(dtype):to("f64")), dtype)
        local z = T.zeros(s[2], s[1], { dtype = dtype })
        z:t():copy_(x)
        assert.is_true(T.equal(z, y), dtype)
        assert.is_true(T.equal(x:t():sort(1):t():contiguous(), (x:sort(2))), dtype)
      end
    end
  end)
end)

describe("a matrix times a vector", function()
  it("agrees with sums, and gives the same bits in any layout of the two", function()
    for _, dtype in ipairs { "f32", "f64", "bf16" } do
      for _, s in ipairs { { 1, 1 }, { 3, 5 }, { 5, 33 }, { 300, 70 }, { 70, 5000 }, { 1, 70000 }, { 600, 31 } } do
        local a, x = T.randn(s[1], s[2]):to(dtype), T.randn(s[2]):to(dtype)
        local across, apart = a:t():contiguous():t(), T.stack({ x, x }, -1):select(2, 1)
        local y = on_threads(function() return a:matmul(x) end, "mv")
        local bound = dtype == "f64" and 1e-12 or dtype == "f32" and 1e-4 or 5e-2
        near(y, (a:to("f64") * x:to("f64")):sum(2), bound, "mv")
        for _, other in ipairs { across:matmul(x), a:matmul(apart), x:matmul(a:t()), apart:matmul(across:t()) } do
          equal_bits(y, other, dtype)
        end
        equal_bits(y, F.linear(a, x:unsqueeze(1)):squeeze(2), "linear")
        if s[2] < 100 then
          local many = T.stack { a, a:neg(), a * 2 }
          equal_bits(many:matmul(x)[2], (many[2]:matmul(x)), "a batch")
          local strided = many:transpose(1, 2):contiguous():transpose(1, 2)
          equal_bits(strided:matmul(x)[3], many[3]:matmul(x), "a strided batch")
        end
      end
    end
    assert.is_true(T.rand(0, 3):matmul(T.rand(3)):numel() == 0)
    assert.equal(0, T.rand(3, 0):matmul(T.rand(0)):abs():sum():item())
    local a = T.ones(3, 40)
    a[2][7] = 0 / 0
    assert.same({ false, true, false }, a:matmul(T.ones(40)):isnan():tolist())
    assert.same({ false, true, false }, a:t():contiguous():t():matmul(T.ones(40)):isnan():tolist())
  end)
end)

describe("batch norm of [N, C]", function()
  it("agrees with [N, C, 1, 2] of every value twice", function()
    for _, dtype in ipairs { "f32", "f64", "bf16" } do
      for _, s in ipairs { { 2, 1 }, { 7, 5 }, { 33, 130 }, { 300, 17 } } do
        for _, training in ipairs { true, false } do
          local function leaf(t) return t:to(dtype):detach():clone():requires_grad_() end
          local x, w, b = T.randn(s[1], s[2]) * 3 + 1, T.randn(s[2]), T.randn(s[2])
          local dy = T.randn(s[1], s[2]):to(dtype)
          local function norm(v, seed, k)
            local X, W, B = leaf(v), leaf(w), leaf(b)
            local mean, var = T.full({ s[2] }, 0.5):to(dtype), T.full({ s[2] }, 2):to(dtype)
            local y = F.batch_norm(X, mean, var, W, B, { training = training })
            y:backward(seed)
            return { y:detach(), X.grad, W.grad / k, B.grad / k, mean }
          end
          local one = { on_threads(function() return unpack(norm(x, dy, 1)) end, "batch norm") }
          local function twice(t) return t:view(s[1], s[2], 1, 1):tile { 1, 1, 1, 2 } end
          local two = norm(twice(x), twice(dy), 2)
          two[1], two[2] = two[1]:select(4, 1):squeeze(3), two[2]:select(4, 1):squeeze(3)
          local bound = dtype == "f64" and 1e-10 or dtype == "f32" and 2e-4 or 1e-1
          for i = 1, 5 do near(one[i], two[i], bound, ("%s %dx%d, part %d"):format(dtype, s[1], s[2], i)) end
        end
      end
    end
  end)
end)

describe("powers", function()
  it("by small whole exponents are products", function()
    local x = T.tensor { 0, -0.0, 1, -1.5, 3.25, -math.huge, math.huge, 0 / 0, 1e-30, 1e30 }
    for _, k in ipairs { 0, 1, 2, 3, 4, -1, -2, 0.5 } do
      for _, dtype in ipairs { "f32", "f64", "bf16" } do
        local v = x:to(dtype)
        local want = v:to("f64") ^ T.full({ 10 }, k, { dtype = "f64" })
        near(v ^ k, want:to(dtype), 1e-6, dtype .. " to the power of " .. k)
      end
    end
  end)
end)

describe("writes and reads by index, flips, products of integers", function()
  it("scatter_add of rows whose index was expanded is index_add", function()
    for _, dtype in ipairs { "f32", "f64", "bf16", "i64", "u8" } do
      for _, width in ipairs { 1, 3, 64, 300 } do
        local x, y = (T.rand(50, width) * 4):to(dtype), (T.rand(400, width) * 4):to(dtype)
        local i = T.randint(1, 50, { 400, 1 })
        local got = on_threads(function() return x:scatter_add(i:expand(400, width), y, { dim = 1 }) end, "scatter_add")
        equal_bits(got, x:index_add(i:squeeze(2), y, { dim = 1 }), dtype)
      end
    end
  end)
  it("flip and rows by index", function()
    for _, dtype in ipairs { "u8", "f16", "f32", "f64" } do
      for _, width in ipairs { 1, 17, 64, 67, 400 } do
        local x = T.arange(9 * width):to(dtype):view(9, width)
        local back, up = x:flip(2), x:flip(1)
        for j = 1, math.min(width, 20) do assert.is_true(T.equal(back:select(2, j), x:select(2, width + 1 - j))) end
        local at = T.tensor({ 9, 1, 5, 5 }, { dtype = "i64" })
        local picked = x:index_select(at, { dim = 1 })
        assert.is_true(T.equal(up[1], x[9]) and T.equal(picked[1], x[9]) and T.equal(picked[4], x[5]))
      end
    end
  end)
  it("integer matrices, in every layout", function()
    for _, dtype in ipairs { "i8", "u8", "i16", "i32", "i64" } do
      for _, s in ipairs { { 5, 7, 9 }, { 1, 1, 1 }, { 3, 130, 700 }, { 20, 33, 513 } } do
        local x, y = T.randint(0, 9, { s[1], s[2] }), T.randint(0, 9, { s[2], s[3] })
        local want = x:to("f64"):matmul(y:to("f64")):to("i64"):to(dtype)
        x, y = x:to(dtype), y:to(dtype)
        assert.is_true(T.equal(on_threads(function() return x:matmul(y) end, "matmul"), want), dtype)
        assert.is_true(T.equal(x:matmul(y:t():contiguous():t()), want), dtype)
        assert.is_true(T.equal(x:t():contiguous():t():matmul(y), want), dtype)
      end
    end
  end)
end)

-- Kernels that go through a row once take it as it is stored, in pieces of 512; f64 and i64 are used in place.
describe("orders and scans of rows in pieces", function()
  local function values(dtype, n)
    local list = {}
    for i = 1, n do list[i] = (i * 7919 + i // 3 * 31) % 97 - (dtype == "u8" and 0 or 40) end
    if dtype:find "f" then
      list[n // 2 + 1] = -0.0
      if n > 5000 then list[n - 7], list[n - 2] = 0 / 0, 0 / 0 end
    end
    return T.tensor(list, { dtype = dtype })
  end
  for _, dtype in ipairs { "f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8" } do
    it("of " .. dtype, function()
      for _, n in ipairs { 1, 49, 511, 512, 513, 1024, 4095, 4096, 5001 } do
        local row = values(dtype, n)
        for _, x in ipairs { row, T.stack({ row, row:flip(1), row:roll(5) }, 2) } do
          local wide = x:to((dtype:find "f") and "f64" or "i64")
          local function same(name, got, want)
            equal_bits(got:to(want:dtype()), want, ("%s of %s, %d"):format(name, dtype, n))
          end
          for _, f in ipairs { "argmax", "argmin" } do
            same(f, x[f](x, 1), wide[f](wide, 1))
          end
          for _, f in ipairs { "max", "min", "cummax", "cummin" } do
            local y, at = x[f](x, 1)
            local y2, at2 = wide[f](wide, 1)
            same(f, y, y2:to(dtype))
            same(f .. "'s places", at, at2)
          end
          for _, f in ipairs { "cumsum", "cumprod" } do
            if dtype:find "f" then
              near(x[f](x, 1):to("f64"), wide[f](wide, 1):to(dtype):to("f64"), dtype == "f64" and 0 or 1e-6, f)
            else
              for _, to in ipairs { "i64", "u8", "i16" } do
                same(f, x[f](x, 1, { dtype = to }), wide[f](wide, 1):to(to))
              end
            end
          end
          local sorted, place = x:sort(1)
          for _, k in ipairs { 1, 2, n // 3, n // 2 + 1, n } do
            if k >= 1 and k <= n then
              local y, at = x:kthvalue(k, 1)
              same("kthvalue", y, sorted:select(1, k))
              same("kthvalue's place", at, place:select(1, k))
            end
          end
          local y, at = x:median(1)
          local nan = wide:isnan():any():item()
          if not nan then
            same("median", y, sorted:select(1, (n + 1) // 2))
            same("median's place", at, place:select(1, (n + 1) // 2))
          else
            assert.is_true(y:isnan():all():item())
            same("median's place", at, wide:isnan():to("u8"):argmax(1))
          end
          for _, largest in ipairs { true, false } do
            local all, places = x:sort(1, { descending = largest })
            for _, k in ipairs { 1, 3, n // 9, n // 2 } do
              if k >= 1 and k <= n then
                local v, p = x:topk(k, 1, { largest = largest })
                same("topk", v, all:narrow(1, 1, k))
                same("topk's places", p, places:narrow(1, 1, k))
              end
            end
          end
        end
      end
    end)
  end
end)
