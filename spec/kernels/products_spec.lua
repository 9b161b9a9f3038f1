-- SPDX-License-Identifier: MIT
-- Products of tall matrices with small weights, which the kernel may turn over, copy or take in batches. The judge is
-- the sum of products, one by one, in f64.

local T = require "perilune"
local F = T.nn.F

-- y[…, n] = Σ_k x[…, k] w[n, k], on the CPU
local function judge(x, w)
  return (x:to("cpu"):to("f64"):unsqueeze(-2) * w:to("cpu"):to("f64")):sum(-1):to(x:device())
end

local function check(x, w, ...)
  local want = judge(x, w)
  local tol = x:dtype() == "f64" and 1e-12 or 2e-5
  for i, got in ipairs { F.linear(x, w), x:matmul(w:t()), ... } do
    assert.is_true(T.allclose(got:to("f64"), want, { rtol = tol, atol = tol * x:size(-1) }), ("way %d"):format(i))
  end
end

describe("products of tall matrices", function()
  for _, dtype in ipairs { "f32", "f64" } do
    it("with weights of all shapes and layouts, " .. dtype, function()
      T.manual_seed(7)
      for _, size in ipairs { { 511, 33, 20 }, { 512, 33, 20 }, { 700, 130, 65 }, { 600, 17, 300 }, { 600, 20, 301 },
        { 1030, 64, 1 }, { 513, 1, 9 }, { 2500, 12, 65 } } do
        local M, K, N = table.unpack(size)
        local x, w = T.randn(M, K, { dtype = dtype }), T.randn(N, K, { dtype = dtype })
        check(x, w)
        check(x, w:t():contiguous():t()) -- it is transposed in memory already
        check(x, T.randn(N, K + 3, { dtype = dtype }):narrow(2, 2, K)) -- rows of a wider one
        check(x:t():contiguous():t(), w)
      end
    end)

    it("in batches, with dims swapped, " .. dtype, function()
      T.manual_seed(8)
      local x, w = T.randn(40, 30, 24, { dtype = dtype }), T.randn(10, 24, { dtype = dtype })
      check(x, w)
      check(x:transpose(1, 2), w)
      check(x:transpose(1, 2):narrow(1, 3, 20), w)
      check(x:narrow(3, 5, 12), w:narrow(2, 5, 12))
      local each = T.randn(40, 24, 10, { dtype = dtype }) -- a weight for each matrix
      local got = x:matmul(each)
      for i = 1, 40, 13 do assert.is_true(T.allclose(got[i], x[i]:matmul(each[i]), { rtol = 1e-5, atol = 1e-5 })) end
      assert.is_true(T.allclose(T.randn(0, 24, { dtype = dtype }):matmul(w:t()), T.zeros(0, 10, { dtype = dtype })))
    end)
  end

  -- A few columns are read where they lie (strip in gemm_micro.h), more are packed: the same sums in the same order.
  for _, dtype in ipairs { "f32", "f64" } do
    it("of few columns have the bits of a wider product's, " .. dtype, function()
      T.manual_seed(10)
      local same = require("spec.support.near").same_bits
      for _, M in ipairs { 1, 3, 8, 15 } do
        for _, K in ipairs { 1, 4, 63, 256, 257 } do
          local a, b = T.randn(3, M, K, { dtype = dtype }), T.randn(3, K, 40, { dtype = dtype })
          local c = T.randn(3, M, 40, { dtype = dtype })
          local wide, added = a:matmul(b), T.baddbmm(c, a, b, { beta = 0.75, alpha = 1.5 })
          for N = 2, 17 do -- one column is a product with a vector
            local from = 1 + N % 5
            local function cut(t) return t:narrow(-1, from, N) end
            local few = cut(b):contiguous()
            for _, x in ipairs { a, a:transpose(2, 3):contiguous():transpose(2, 3) } do
              for _, y in ipairs { few, cut(b), few:transpose(2, 3):contiguous():transpose(2, 3) } do
                same(x:matmul(y), cut(wide):contiguous())
                same(T.baddbmm(cut(c), x, y, { beta = 0.75, alpha = 1.5 }), cut(added):contiguous())
              end
            end
          end
        end
      end
    end)
  end

  it("do not depend on the number of threads", function()
    T.manual_seed(9)
    local x, w = T.randn(50, 50, 128):transpose(1, 2), T.randn(65, 128)
    local before, first = T.get_num_threads(), nil
    for n = 1, 4 do
      T.set_num_threads(n)
      local y = F.linear(x, w)
      first = first or y
      assert.is_true(y:equal(first))
    end
    T.set_num_threads(before)
  end)
end)

-- Many small matrices: those of bf16 go to the library several in a call, a row of the last batch dim at most.
describe("batches of small matrices", function()
  local function flip(t) return t:transpose(-1, -2) end
  -- y[b, m, n] = Σ_k x[b, m, k] w[b, k, n] in f64
  local function batch_judge(x, w)
    return (x:to("f64"):unsqueeze(-1) * w:to("f64"):unsqueeze(-3)):sum(-2)
  end
  local near = { f32 = 1e-6, f64 = 1e-14, bf16 = 2 ^ -8, f16 = 2 ^ -11 }
  local function same(x, w, text)
    local want, got = batch_judge(x, w), x:matmul(w)
    -- rounded once, behind sums in f32
    local bound = batch_judge(x:abs(), w:abs()) * 1e-6 + want:abs() * near[x:dtype()] + 1e-30
    assert.is_true((got:to("f64") - want):abs():le(bound):all():item(), text)
  end

  for _, dtype in ipairs { "f32", "f64", "bf16", "f16" } do
    it("of each size and layout, " .. dtype, function()
      T.manual_seed(10)
      for _, size in ipairs { { 4, 4, 4 }, { 1, 5, 3 }, { 16, 16, 16 }, { 15, 17, 16 }, { 3, 40, 31 }, { 24, 24, 24 },
        { 33, 20, 47 }, { 64, 65, 33 }, { 70, 9, 40 } } do
        local m, k, n = table.unpack(size)
        for _, b in ipairs { 1, 7, 35 } do
          local x, w = T.randn(b, m, k):to(dtype), T.randn(b, k, n):to(dtype)
          local text = ("%d x %d x %d x %d"):format(b, m, k, n)
          same(x, w, text)
          same(flip(flip(x):contiguous()), flip(flip(w):contiguous()), text .. " transposed")
          same(T.randn(b, m, k + 3):to(dtype):narrow(3, 2, k), w, text .. " of wider rows")
        end
        local x = T.randn(5, m, 9, k):to(dtype):transpose(2, 3) -- heads between rows
        same(x, T.randn(5, 9, k, n):to(dtype), "heads")
        same(x, T.randn(5, n, 9, k):to(dtype):permute(1, 3, 4, 2), "heads on both sides")
        same(x, T.randn(9, k, n):to(dtype):expand(5, 9, k, n), "of which some repeat")
        same(x, T.randn(5, 1, k, n):to(dtype):expand(5, 9, k, n), "of which each repeats")
      end
    end)

    it("at any number of threads, " .. dtype, function()
      T.manual_seed(11)
      local before, first = T.get_num_threads(), nil
      local x, w = T.randn(130, 33, 30):to(dtype), T.randn(130, 30, 40):to(dtype)
      for n = 1, 4 do
        T.set_num_threads(n)
        local y = x:matmul(w)
        first = first or y
        assert.is_true(y:equal(first))
      end
      T.set_num_threads(before)
    end)
  end
end)

-- Rows and columns are read where they lie or packed, as sizes and strides ask for (gemm_micro.h); halves are widened
-- tile by tile and in pieces of their terms, and long sums of few results cut in parts (gemm_halves.c).
describe("products of random sizes and strides", function()
  local same = require("spec.support.near").same_bits
  -- The same matrix in rows that lie further apart, by 4 KiB for some, and in transposed memory.
  local function spread(t, wide)
    local r, c = t:size(1), t:size(2)
    local room = T.zeros(r, wide, { dtype = t:dtype() })
    room:narrow(2, 1, c):copy_(t)
    return room:narrow(2, 1, c)
  end
  local function lies(t)
    local per = t:dtype() == "f64" and 512 or 1024
    return { t, spread(t, t:size(2) + 5), spread(t, (t:size(2) // per + 1) * per), t:t():contiguous():t() }
  end

  it("f64 has the same bits whatever its strides", function()
    T.manual_seed(12)
    math.randomseed(12)
    for _ = 1, 12 do
      local m, k, n = math.random(90), math.random(300), math.random(90)
      local a, b = T.randn(m, k, { dtype = "f64" }), T.randn(k, n, { dtype = "f64" })
      local want = m > 1 and n > 1 and a:matmul(b)
      for _, x in ipairs(want and lies(a) or {}) do
        for _, y in ipairs(lies(b)) do
          if n > 8 or y:stride(2) == 1 then same(x:matmul(y), want) end
        end
      end
    end
  end)

  for _, dtype in ipairs { "f16", "bf16" } do
    it("halves are rounded once, " .. dtype, function()
      T.manual_seed(13)
      local ulp = dtype == "f16" and 2 ^ -11 or 2 ^ -8
      local function near(got, want, scale, text)
        local bound = scale * 1e-6 + want:abs() * ulp + 1e-7
        assert.equal(dtype, got:dtype())
        assert.is_true((got:to("f64") - want):abs():le(bound):all():item(), text)
      end
      local sizes = { { 37, 65, 40 }, { 70, 1500, 66 }, { 33, 5000, 34 }, { 20, 2100, 300 }, { 600, 70, 40 } }
      for _, size in ipairs(sizes) do
        local m, k, n = table.unpack(size)
        local a, b, c = T.randn(m, k):to(dtype), T.randn(k, n):to(dtype), T.randn(n):to(dtype)
        local A, B, C = a:to "f64", b:to "f64", c:to "f64"
        local want, scale = A:matmul(B), A:abs():matmul(B:abs())
        for i, x in ipairs(lies(a)) do
          for j, y in ipairs(lies(b)) do
            local text = ("%d x %d x %d, %d, %d"):format(m, k, n, i, j)
            near(x:matmul(y), want, scale, text)
            near(F.linear(x, y:t(), c), want + C, scale + C:abs(), text .. " with a bias")
          end
        end
        near(T.addmm(c:expand(m, n), a, b, { beta = 0, alpha = 0.5 }), want * 0.5, scale, "alpha")
        near(T.addmm(c:expand(m, n), a, b), want + C, scale + C:abs(), "added")
        local before = T.get_num_threads()
        local one = F.linear(a, b:t(), c)
        for threads = 1, 3 do
          T.set_num_threads(threads)
          same(F.linear(a, b:t(), c), one)
        end
        T.set_num_threads(before)
      end
    end)
  end
end)

-- The rows of a layer's input are packed once, and its weight once for all of them (gemm_panels.c): from 32 to 1024
-- rows, in blocks of rows and terms, panels of 14 rows and 32 columns with what is left over.
describe("products of dozens of rows", function()
  local same = require("spec.support.near").same_bits
  local function wider(t, by)
    local room = T.full({ t:size(1), t:size(2) + by }, 0 / 0)
    room:narrow(2, 3, t:size(2)):copy_(t)
    return room:narrow(2, 3, t:size(2))
  end

  for _, size in ipairs { { 32, 520, 128 }, { 45, 769, 131 }, { 33, 1030, 1029 }, { 128, 64, 160 }, { 197, 775, 200 },
    { 515, 65, 145 } } do
    local M, K, N = table.unpack(size)
    it(("%d x %d x %d"):format(M, K, N), function()
      T.manual_seed(15)
      local x, w, bias = T.randn(M, K), T.randn(N, K), T.randn(N)
      local X, W = x:to "f64", w:to "f64"
      local want, scale = X:matmul(W:t()), X:abs():matmul(W:abs():t())
      local function near(got, what, text)
        assert.is_true((got:to "f64" - what):abs():le(scale * 1e-6 + 1e-6):all():item(), text)
      end
      local turned = x:t():contiguous():t()
      local got = F.linear(x, w, bias)
      near(got, want + bias:to "f64", "bias")
      for i, a in ipairs { x, wider(x, 7), turned } do
        for k, b in ipairs { w, wider(w, 9), w:t():contiguous():t() } do
          near(a:matmul(b:t()), want, ("layouts %d and %d"):format(i, k))
        end
        near(F.linear(a, wider(w, 5), bias), want + bias:to "f64", ("bias, layout %d"):format(i))
      end
      near(F.linear(x, w, bias):relu(), (want + bias:to "f64"):relu(), "relu")
      local c = T.randn(M, N)
      near(T.addmm(c, x, w:t(), { beta = 0.5, alpha = 2 }) / 2, want + c:to "f64" / 4, "added")
      local before, by_rows = T.get_num_threads(), w:t():contiguous()
      local plain = x:matmul(by_rows)
      for threads = 1, 3 do
        T.set_num_threads(threads)
        same(F.linear(x, w, bias), got)
        same(x:matmul(by_rows), plain)
      end
      T.set_num_threads(before)
      -- what is not finite stays in its row or column
      x[2][1] = 1 / 0
      w[3][1] = 0 / 0
      local odd = F.linear(x, w):isfinite()
      assert.equal((M - 1) * (N - 1), odd:to("i64"):sum():item())
    end)
  end
end)
