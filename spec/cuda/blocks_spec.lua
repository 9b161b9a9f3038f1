-- SPDX-License-Identifier: MIT
-- Block formats on the device: numbers are the CPU's bits in every format, products those of the numbers; caches of
-- keys and values; what is said of a place that does not fit.

local T = require "perilune"
local ok, why = T.core.device.available()

local FORMATS = { Q4_0 = { 32, 18 }, Q4_1 = { 32, 20 }, Q5_0 = { 32, 22 }, Q5_1 = { 32, 24 }, Q8_0 = { 32, 34 },
  Q2_K = { 256, 84 }, Q3_K = { 256, 110 }, Q4_K = { 256, 144 }, Q5_K = { 256, 176 }, Q6_K = { 256, 210 },
  IQ4_NL = { 32, 18 }, IQ4_XS = { 256, 136 }, TQ1_0 = { 256, 54 }, TQ2_0 = { 256, 66 }, MXFP4 = { 32, 17 } }

describe("blocks on the device", function()
  if not ok then
    pending("no device: " .. tostring(why))
    return
  end

  it("are the CPU's numbers, bit by bit, in every format", function()
    T.manual_seed(4)
    local count = 0
    for format, size in pairs(FORMATS) do
      count = count + 1
      local w = T.randint(0, 255, { 5, 3 * size[2] }):to("u8") -- any bytes: scales that are no numbers, too
      for _, dtype in ipairs { "f32", "f64", "bf16" } do
        local want = T.dequantize_blocks(w, { format = format, dtype = dtype })
        local got = T.dequantize_blocks(w:cuda(), { format = format, dtype = dtype })
        assert.equal("cuda", got:device())
        assert.same({ 5, 3 * size[1] }, got:shape())
        local fine = T.isclose(got:cpu():to("f64"), want:to("f64"), { rtol = 0, atol = 0, equal_nan = true })
        assert.is_true(fine:all():item(), format .. " " .. dtype)
      end
    end
    assert.equal(15, count)
  end)

  it("multiply: few rows and many, with a bias, both ways, a part of the matrix at a time", function()
    T.manual_seed(5)
    for _, format in ipairs { "Q8_0", "Q4_0", "Q4_K", "Q6_K" } do
      local w = T.quantize_blocks(T.randn(70, 512), { format = format })
      local there = w:cuda()
      for _, dtype in ipairs { "f32", "f64", "bf16", "f16" } do
        local numbers = T.dequantize_blocks(w, { format = format, dtype = "f64" })
        local tol = ({ f32 = 1e-4, f64 = 1e-9, bf16 = 0.05, f16 = 6e-3 })[dtype]
        local x, bias, dy = T.randn(2, 3, 512):to(dtype), T.randn(70):to(dtype), T.randn(4, 70):to(dtype)
        local function near(got, want, what)
          local off = (got:cpu():to("f64") - want):abs():max():item()
          assert.equal(dtype, got:dtype())
          local fine = off <= tol * math.max(1, want:abs():max():item())
          assert.is_true(fine, ("%s %s %s: off by %g"):format(format, dtype, what, off))
        end
        local plain = x:to("f64"):matmul(numbers:t())
        near(T.quantized_linear(x:cuda(), there, { format = format }), plain, "linear")
        near(T.quantized_linear(x:cuda(), there, bias:cuda(), { format = format }), plain + bias:to("f64"), "with bias")
        near(T.quantized_matmul(dy:cuda(), there, { format = format }), dy:to("f64"):matmul(numbers), "matmul")
        local leaf = x:cuda():requires_grad_()
        local y = T.quantized_linear(leaf, there, { format = format })
        local up = T.randn(2, 3, 70):to(dtype)
        y:backward(up:cuda())
        near(leaf.grad, up:to("f64"):matmul(numbers), "gradient")
      end
    end
    local none = T.quantized_linear(T.zeros(0, 32):cuda(), T.quantize_blocks(T.ones(2, 32), { format = "Q8_0" }):cuda(),
      { format = "Q8_0" })
    assert.same({ 0, 2 }, none:shape())
  end)

  it("have caches of keys and values: a place for all, one for each, and places that do not fit", function()
    for _, case in ipairs { { "f32", 8 }, { "bf16", 8 }, { "bf16", 3 }, { "f64", 1 }, { "i8", 5 } } do
      local dtype, D = table.unpack(case)
      local src = T.arange(0, 2 * 3 * 2 * D - 1):view(2, 3, 2, D):to(dtype)
      for _, at in ipairs { { 2 }, { 4, 1 } } do
        local place = T.tensor(at, { dtype = "i64" })
        local here = T.zeros(2, 3, 5, D, { dtype = dtype })
        local there = here:cuda()
        T.cache_write_(here, src, place)
        T.cache_write_(there, src:cuda(), place:cuda())
        assert.is_true(there:cpu():equal(here), dtype .. D)
      end
    end
    for _, place in ipairs { 5, 0, -1 } do
      local cache = T.zeros(1, 1, 5, 4):cuda()
      T.cache_write_(cache, T.ones(1, 1, 2, 4):cuda(), T.tensor({ place }, { dtype = "i64" }):cuda())
      local fine, err = pcall(T.cuda.synchronize)
      assert.is_false(fine)
      local said = ("cache_write: index %d is out of range: 1 to 4"):format(place)
      assert.truthy(tostring(err):find(said, 1, true), tostring(err))
      assert.equal(0, cache:sum():item()) -- nothing was written
    end
  end)

  it("products of i8 with sums of i32, transposed operands too", function()
    local a, b = T.randint(-128, 127, { 7, 300 }):to("i8"), T.randint(-128, 127, { 300, 9 }):to("i8")
    local want = T.int_mm(a, b)
    assert.is_true(T.int_mm(a:cuda(), b:cuda()):cpu():equal(want))
    assert.is_true(T.int_mm(b:t():cuda(), a:t():cuda()):cpu():equal(want:t()))
  end)

  it("cross entropy and its tangent in one call", function()
    local x, v = T.randn(6, 11), T.randn(6, 11)
    local target, weight = T.randint(1, 11, { 6 }), T.rand(11) + 0.5
    target[3] = -100
    for _, options in ipairs { {}, { reduction = "sum", label_smoothing = 0.1 }, { reduction = "none" } } do
      local function run(on)
        local function of(a) return T.cross_entropy(a, on(target), on(weight), options) end
        return T.jvp(of, { on(x) }, { on(v) })
      end
      local y, dy = run(function(t) return t end)
      local y2, dy2 = run(function(t) return t:cuda() end)
      local function one(t) return type(t) == "table" and t[1] or t end
      assert.is_true(one(y2):cpu():allclose(one(y), { rtol = 1e-5, atol = 1e-6 }))
      assert.is_true(one(dy2):cpu():allclose(one(dy), { rtol = 1e-4, atol = 1e-5 }))
    end
    local op = T.core.op.cross_entropy_dual
    if op then
      local here, there = { op(x, target, v, weight) }, { op(x:cuda(), target:cuda(), v:cuda(), weight:cuda()) }
      for i = 1, 3 do assert.is_true(there[i]:cpu():allclose(here[i], { rtol = 1e-4, atol = 1e-5 }), i) end
    end
  end)
end)
