-- SPDX-License-Identifier: MIT
-- Products with blocks of ggml's formats against products of their numbers in f64, for every format: rows around the
-- counts where the way of working changes, ends of rows that are no whole span, numbers that cannot be rounded,
-- threads.
local T = require "perilune"

-- Elements and bytes of a block, and where in it halves are.
local formats = {
  Q4_0 = { 32, 18, { 0 } }, Q4_1 = { 32, 20, { 0, 2 } }, Q5_0 = { 32, 22, { 0 } }, Q5_1 = { 32, 24, { 0, 2 } },
  Q8_0 = { 32, 34, { 0 } }, Q2_K = { 256, 84, { 80, 82 } }, Q3_K = { 256, 110, { 108 } }, Q4_K = { 256, 144, { 0, 2 } },
  Q5_K = { 256, 176, { 0, 2 } }, Q6_K = { 256, 210, { 208 } }, IQ4_NL = { 32, 18, { 0 } }, IQ4_XS = { 256, 136, { 0 } },
  TQ1_0 = { 256, 54, { 52 } }, TQ2_0 = { 256, 66, { 64 } }, MXFP4 = { 32, 17, {} },
}
local names = {}
for name in pairs(formats) do names[#names + 1] = name end
table.sort(names)

-- Rows of blocks of any bits, but for halves, which are between 1/64 and 1/4 of either sign.
local function blocks_of(name, rows, elements)
  local f = formats[name]
  local w = T.randint(0, 255, { rows, elements // f[1], f[2] }):to("u8")
  for _, at in ipairs(f[3]) do
    local high = T.randint(0x24, 0x33, { rows, elements // f[1] }) + 128 * T.randint(0, 1, { rows, elements // f[1] })
    w:select(3, at + 2):copy_(high:to("u8"))
  end
  if name == "MXFP4" then w:select(3, 1):copy_(T.randint(118, 126, { rows, elements // 32 }):to("u8")) end
  return w:flatten(2)
end

-- The largest difference, relative to what the sum of the terms' sizes lets expect.
local function off(got, want, x, numbers)
  local size = x:double():abs():matmul(numbers:double():abs():t())
  return ((got:double() - want):abs() / (size + 1e-30)):max():item()
end

describe("products with blocks", function()
  for _, name in ipairs(names) do
    it("are those of the numbers of " .. name, function()
      T.manual_seed(11)
      local e = formats[name][1]
      for _, k in ipairs { e, 256, 256 + (e == 32 and 224 or 256), 1280, e == 32 and 2080 or 2048 } do
        local w = blocks_of(name, 67, k)
        local numbers = T.dequantize_blocks(w, { format = name })
        for _, m in ipairs { 1, 2, 3, 15, 16, 17, 40 } do
          local x, bias = T.randn(m, k), T.randn(67)
          local want = x:double():matmul(numbers:double():t())
          local exact = T.quantized_linear(x, w, { format = name, activations = "float" })
          local rounded = T.quantized_linear(x, w, { format = name })
          assert.is_true(off(exact, want, x, numbers) < 1e-6)
          -- half a step of the largest of 32 is lost at most
          assert.is_true(off(rounded, want, x:abs():amax(2, { keepdim = true }):expand(m, k), numbers) < 1.6e-5)
          local with_bias = T.quantized_linear(x, w, bias, { format = name })
          assert.is_true(with_bias:allclose(rounded + bias, { rtol = 1e-6, atol = 1e-6 * want:abs():max():item() }))
          if m < 4 then
            assert.is_true(off(T.quantized_linear(x:double(), w, { format = name }), want, x, numbers) < 1e-12)
            local dy = T.randn(m, 67)
            local back = dy:double():matmul(numbers:double())
            assert.is_true(off(T.quantized_matmul(dy, w, { format = name }), back, dy, numbers:t()) < 1e-6)
          end
        end
      end
    end)
  end

  it("have the numbers that files of them are read as", function()
    T.manual_seed(12)
    local path = os.tmpname()
    for _, name in ipairs(names) do
      local w = T.randint(0, 255, { 3, 7 * formats[name][2] }):to("u8")
      assert(T.core.save_gguf(path, { "w" }, { w }, { name }, { true }, 0, "", 32))
      local want, got = assert(T.load_gguf(path)).w, T.dequantize_blocks(w, { format = name })
      assert.is_true(got:isnan():equal(want:isnan()) and got:nan_to_num():equal(want:nan_to_num()), name)
      assert.is_true(got:signbit():logical_or(got:isnan()):equal(want:signbit():logical_or(want:isnan())), name)
      for _, dtype in ipairs { "f16", "bf16", "f64" } do
        local narrow = T.dequantize_blocks(w, { format = name, dtype = dtype })
        assert.is_true(narrow:nan_to_num():equal(want:to(dtype):nan_to_num()), name .. " as " .. dtype)
      end
    end
    os.remove(path)
  end)

  it("lose as little as the formats let expect when they are made", function()
    T.manual_seed(15)
    -- root mean squares of what is lost, relative to x; ggml's are within 1.5 percent of these for the types with _K
    local most = { Q4_0 = { 0.088, 0.062, 0.118 }, Q4_1 = { 0.081, 0.032, 0.12 }, Q5_0 = { 0.044, 0.031, 0.064 },
      Q5_1 = { 0.039, 0.0153, 0.058 }, Q8_0 = { 0.0056, 0.0039, 0.0093 }, Q4_K = { 0.074, 0.0305, 0.093 },
      Q5_K = { 0.037, 0.0148, 0.052 }, Q6_K = { 0.0186, 0.0138, 0.0262 } }
    for k, x in ipairs { T.randn(64, 1024), T.rand(64, 1024), T.randn(64, 1024) ^ 3 } do
      for name, bounds in pairs(most) do
        local w = T.quantize_blocks(x, { format = name })
        local lost = ((T.dequantize_blocks(w, { format = name }) - x):square():mean() / x:square():mean()):sqrt():item()
        assert.is_true(lost < bounds[k] and lost > bounds[k] / 2, ("%s, %d: %g"):format(name, k, lost))
        local narrow = x:narrow(1, 1, 2):to "bf16"
        assert.is_true(T.quantize_blocks(narrow, { format = name })
          :equal(T.quantize_blocks(narrow:double(), { format = name })))
      end
    end
    for name in pairs(most) do
      local zeros = T.dequantize_blocks(T.quantize_blocks(T.zeros(256), { format = name }), { format = name })
      assert.equal(0, zeros:abs():max():item())
      for _, v in ipairs { 3.25, -3.25, 1e-30, -1e-30 } do -- below what halves hold nothing is left
        local y = T.dequantize_blocks(T.quantize_blocks(T.full({ 256 }, v), { format = name }), { format = name })
        assert.is_true((y - v):abs():max():item() < 1e-2 * math.max(math.abs(v), 1e-20), name .. " of " .. v)
      end
      for _, bad in ipairs { 1e30, 0 / 0, math.huge } do
        local x = T.zeros(512)
        x[300] = bad
        assert.is_false((pcall(T.quantize_blocks, x, { format = name })))
      end
    end
  end)

  it("do not round what would be lost", function()
    local w = T.quantize_blocks(T.ones(4, 64), { format = "Q8_0" })
    local x = T.zeros(2, 64)
    x[1][3] = math.huge
    local y = T.quantized_linear(x, w, { format = "Q8_0" })
    assert.equal(math.huge, y[1][2]:item())
    assert.equal(0, y[2][2]:item())
    x = T.full({ 64 }, 1e-38)
    local small = T.quantized_linear(x, w, { format = "Q8_0" })[1]:item()
    assert.is_true(math.abs(small / 64e-38 - 1) < 1e-2)
    assert.is_true(T.quantized_linear(x * (0 / 0), w, { format = "Q8_0" }):isnan():all():item())
  end)

  it("are the same on one to four threads, and for x of any layout", function()
    T.manual_seed(13)
    local before = T.get_num_threads()
    for _, name in ipairs { "Q4_0", "Q4_K", "Q8_0" } do
      local w = blocks_of(name, 300, 1024)
      for _, m in ipairs { 1, 40 } do
        local x, dy, first, back = T.randn(m, 1024), T.randn(m, 300), nil, nil
        for n = 1, 4 do
          T.set_num_threads(n)
          local y, dx = T.quantized_linear(x, w, { format = name }), T.quantized_matmul(dy, w, { format = name })
          first, back = first or y, back or dx
          assert.is_true(first:equal(y) and back:equal(dx))
        end
        assert.is_true(first:equal(T.quantized_linear(x:t():contiguous():t(), w, { format = name })))
        local apart = T.stack({ x, x }, 2)
        assert.is_true(first:equal(T.quantized_linear(apart, w, { format = name }):select(2, 2)) or m == 40)
      end
    end
    T.set_num_threads(before)
  end)

  it("multiply many rows in bf16 where the precision of products allows it", function()
    T.manual_seed(16)
    local w, x, bias = blocks_of("Q4_K", 200, 512), T.randn(96, 512), T.randn(200)
    local exact = T.quantized_linear(x, w, bias, { format = "Q4_K", activations = "float" })
    local before, threads = T.get_float32_matmul_precision(), T.get_num_threads()
    T.set_float32_matmul_precision "medium"
    local first
    for n = 1, 3 do
      T.set_num_threads(n)
      local y = T.quantized_linear(x, w, bias, { format = "Q4_K", activations = "float" })
      first = first or y
      assert.is_true(first:equal(y))
    end
    T.set_num_threads(threads)
    T.set_float32_matmul_precision(before)
    local size = exact:square():mean():sqrt():item()
    local narrow = T.dequantize_blocks(w, { format = "Q4_K", dtype = "bf16" }):double()
    local want = x:to "bf16":double():matmul(narrow:t()) + bias:double()
    local same = first:equal(exact) -- on processors without products of bf16
    assert.is_true(same or (first:double() - want):abs():max():item() < 1e-4 * size)
  end)

  it("take narrow floats and empty rows", function()
    T.manual_seed(14)
    local w = blocks_of("Q4_K", 5, 512)
    for _, dtype in ipairs { "f16", "bf16" } do
      local x, b = T.randn(3, 512):to(dtype), T.randn(5):to(dtype)
      local y = T.quantized_linear(x, w, b, { format = "Q4_K" })
      assert.equal(dtype, y:dtype())
      local want = T.quantized_linear(x:float(), w, b:float(), { format = "Q4_K" }):to(dtype)
      assert.is_true(want:equal(y))
    end
    assert.same({ 0, 5 }, T.quantized_linear(T.zeros(0, 512), w, { format = "Q4_K" }):shape())
    assert.same({ 2, 0 }, T.quantized_linear(T.zeros(2, 512), w:narrow(1, 1, 0), { format = "Q4_K" }):shape())
    assert.equal(0, T.quantized_matmul(T.zeros(2, 0), w:narrow(1, 1, 0), { format = "Q4_K" }):abs():sum():item())
  end)

  it("refuse rows that are no blocks, sizes that differ, formats that are not made", function()
    local w = T.quantize_blocks(T.ones(4, 64), { format = "Q8_0" })
    for message, call in pairs {
      ["a row of Q4_K is a multiple of 144 bytes"] = { T.quantized_linear, T.ones(64), w, { format = "Q4_K" } },
      ["96 features given, 64 expected"] = { T.quantized_linear, T.ones(96), w, { format = "Q8_0" } },
      ["64 features given, 4 expected"] = { T.quantized_matmul, T.ones(64), w, { format = "Q8_0" } },
      ["must be u8"] = { T.quantized_linear, T.ones(64), T.ones(4, 68), { format = "Q8_0" } },
      ["must be one of"] = { T.dequantize_blocks, w, { format = "Q9" } },
      ["no whole blocks of 32"] = { T.quantize_blocks, T.ones(33), { format = "Q8_0" } },
      ["can be read, not made"] = { T.quantize_blocks, T.ones(256), { format = "Q2_K" } },
      ["not finite"] = { T.quantize_blocks, T.ones(32) / 0, { format = "Q8_0" } },
    } do
      local ok, why = pcall(table.unpack(call))
      assert.is_false(ok)
      assert.is_truthy(tostring(why):find(message, 1, true), tostring(why))
    end
  end)
end)
