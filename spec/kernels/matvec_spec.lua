-- SPDX-License-Identifier: MIT
-- Products of a large matrix and one to some thirty vectors, in each dtype as it is stored, matrix on either side and
-- in either layout. The judge is the sum of products in f64; halves must give what those numbers give in f32, rounded.

local T = require "perilune"
local F = T.nn.F

local widen = { f16 = true, bf16 = true }
local eps = { f64 = 1e-13, f32 = 2e-6, f16 = 1e-3, bf16 = 8e-3 } -- of the sum of absolute products

local function near(got, x, w, dtype, what) -- got[m, n] = Σ_k x[m, k] w[n, k]
  local a, b = x:to("f64"), w:to("f64")
  local want = (a:unsqueeze(2) * b:unsqueeze(1)):sum(-1)
  local scale = (a:abs():unsqueeze(2) * b:abs():unsqueeze(1)):sum(-1)
  local off = (got:to("f64") - want):abs()
  local bound = scale * (widen[dtype] and 4e-7 or eps[dtype]) + want:abs() * eps[dtype] + 1e-7
  assert.is_true(off:le(bound):all():item(), what)
end

-- Every way to write x wᵀ that reads w as it is stored.
local function ways(x, w)
  local wt, xt = w:t():contiguous(), x:t():contiguous()
  return {
    linear = F.linear(x, w), ["w transposed"] = x:matmul(w:t()), ["w columns"] = x:matmul(wt),
    ["x columns"] = xt:t():matmul(w:t()), ["other side"] = w:matmul(x:t()):t(),
    ["other side, x dense"] = w:matmul(xt):t(),
    ["other side, w columns"] = wt:t():matmul(xt):t(),
    ["linear, w columns"] = F.linear(x, wt:t()), ["linear, x columns"] = F.linear(xt:t(), w),
    ["linear, both columns"] = F.linear(xt:t(), wt:t()), ["linear, other side"] = F.linear(w, x):t(),
    ["linear, other side, w columns"] = F.linear(wt:t(), x):t(),
    ["linear, other side, x columns"] = F.linear(w, xt:t()):t(),
  }
end

describe("products with a few vectors", function()
  for _, dtype in ipairs { "f32", "f64", "f16", "bf16" } do
    -- 5, 7, 13, 25, 33: one more than few_vectors() of matmul's kernel says for some dtype, layout and processor
    for _, few in ipairs { 1, 2, 5, 7, 13, 25, 33 } do
      it(("%s, %d"):format(dtype, few), function()
        T.manual_seed(few)
        for _, size in ipairs { { 230, 300 }, { 67, 1031 }, { 1027, 65 }, { 17, 4111 }, { 3, 40 } } do
          local N, K = table.unpack(size)
          local x, w = T.randn(few, K):to(dtype), T.randn(N, K):to(dtype)
          local all = ways(x, w)
          for way, got in pairs(all) do near(got, x, w, dtype, ("%s, %d x %d"):format(way, N, K)) end
          if widen[dtype] and few <= 4 then -- taken this way on every processor
            for way, want in pairs(ways(x:to("f32"), w:to("f32"))) do
              assert.is_true(want:to(dtype):equal(all[way]), way .. ", bits")
            end
          end
        end
      end)
    end
  end

  it("with bias, relu, rows of wider matrices, and what is not finite", function()
    T.manual_seed(1)
    for _, dtype in ipairs { "f32", "f16", "bf16" } do
      for _, few in ipairs { 1, 4 } do
        local x, wide, b = T.randn(few, 300):to(dtype), T.randn(400, 333):to(dtype), T.randn(400):to(dtype)
        local w = wide:narrow(2, 7, 300)
        local want = F.linear(x:to("f32"), w:to("f32"):contiguous(), b:to("f32"))
        assert.is_true(F.linear(x, w, b):equal(want:to(dtype)), dtype)
        x[1][17], wide[5][20] = 1 / 0, 0 / 0
        local y = x:matmul(w:t()):to("f32")
        assert.is_true(y[1]:isfinite():logical_not():all():item())
        assert.is_true(y:select(2, 5):isnan():all():item())
        if few > 1 then assert.are.equal(399, y[2]:isfinite():sum():item()) end
      end
    end
  end)

  it("have the same bits with one to eight threads", function()
    T.manual_seed(2)
    local before = T.get_num_threads()
    for _, dtype in ipairs { "f32", "f64", "f16", "bf16" } do
      for _, size in ipairs { { 1, 1024, 700 }, { 1, 40000, 9 }, { 4, 513, 1000 }, { 16, 300, 2000 } } do
        local few, K, N = table.unpack(size)
        local x, w = T.randn(few, K):to(dtype), T.randn(N, K):to(dtype)
        local wt, first = w:t():contiguous(), nil
        for n = 1, 8 do
          T.set_num_threads(n)
          local y = T.cat({ F.linear(x, w), x:matmul(wt) }, 1)
          first = first or y
          assert.is_true(y:equal(first))
        end
      end
    end
    T.set_num_threads(before)
  end)
end)

describe("casts between floats", function()
  it("are the same for any layout", function()
    T.manual_seed(3)
    local edges = T.tensor { 1 / 0, -1 / 0, 0 / 0, -0.0, 1e-7, 65520, 3e38 }
    local x = T.cat({ T.randn(70, 130) * 1e4, edges:expand(70, 7) }, 2)
    for _, from in ipairs { "f32", "f64", "f16", "bf16" } do
      local a = x:to(from)
      for _, to in ipairs { "f32", "f64", "f16", "bf16" } do
        local rows = {}
        for i = 1, 70 do rows[i] = a[i]:contiguous():to(to) end
        local want = T.stack(rows, 1):to("f64")
        local function same(y) return y:to("f64"):nan_to_num(7):equal(want:nan_to_num(7)) end
        assert.is_true(same(a:t():contiguous():t():to(to)), from .. " " .. to)
        assert.is_true(same(T.stack({ a, a }, 3):select(3, 1):to(to)), from .. " " .. to)
        -- what products, pooling and indexing convert for themselves
        local y = T.zeros(70, 137, { dtype = to })
        y:copy_(a:t():contiguous():t())
        assert.is_true(same(y), from .. " " .. to)
      end
    end
  end)
end)
