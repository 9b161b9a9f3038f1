-- SPDX-License-Identifier: MIT
-- Convolutions large enough for the library's blocked layouts, in every way their work is cut: values and gradients
-- against f64, which is computed by our own matrix products, and the same bits on 1, 2 and 3 threads.

local T = require "perilune"
local conv = { T.nn.F.conv1d, T.nn.F.conv2d, T.nn.F.conv3d }
local unpack = table.unpack

-- name, x, w, options
local CASES = {
  { "image by image", { 9, 16, 20, 20 }, { 32, 16, 3, 3 }, { padding = 1 } },
  { "with bias", { 5, 16, 20, 20 }, { 40, 16, 3, 3 }, { padding = 1, bias = true } },
  { "one image, slices of output channels", { 1, 16, 40, 40 }, { 136, 16, 3, 3 }, { padding = 1, bias = true } },
  { "small images, slices for the cache", { 10, 160, 6, 6 }, { 200, 160, 3, 3 }, { padding = 1 } },
  { "slices of input channels", { 3, 200, 12, 12 }, { 136, 200, 3, 3 }, { stride = 2, padding = 1 } },
  { "1x1", { 8, 520, 7, 7 }, { 400, 520, 1, 1 }, {} },
  { "1x1 with stride", { 6, 320, 14, 14 }, { 520, 320, 1, 1 }, { stride = 2 } },
  { "dilated", { 4, 32, 17, 19 }, { 48, 32, 3, 3 }, { dilation = 2, padding = 1 } },
  { "odd channels", { 4, 19, 21, 18 }, { 37, 19, 5, 3 }, { stride = { 2, 1 }, padding = { 0, 2 } } },
  { "groups", { 3, 48, 14, 14 }, { 96, 12, 3, 3 }, { groups = 4, padding = 1, bias = true } },
  { "depthwise", { 2, 96, 40, 40 }, { 96, 1, 3, 3 }, { groups = 96, padding = 1, bias = true } },
  { "one dim", { 6, 32, 300 }, { 64, 32, 5 }, { padding = 2, bias = true } },
  { "three dims", { 3, 16, 8, 10, 9 }, { 24, 16, 3, 3, 3 }, { padding = 1 } },
}

local function run(dtype, x, w, b, dy, o)
  local function leaf(t) return t and t:to(dtype):detach():clone():requires_grad_() end
  x, w, b = leaf(x), leaf(w), leaf(b)
  local options = { stride = o.stride, padding = o.padding, dilation = o.dilation, groups = o.groups }
  local y = conv[x:dim() - 2](x, w, b, options)
  y:backward(dy and dy:to(dtype) or T.ones_like(y))
  return { y:detach(), x.grad, w.grad, b and b.grad }
end

describe("convolution:", function()
  local names = { "y", "dx", "dw", "db" }
  for _, case in ipairs(CASES) do
    it(case[1], function()
      T.manual_seed(3)
      local o = case[4]
      local x, w = T.randn(unpack(case[2])), T.randn(unpack(case[3]))
      local b = o.bias and T.randn(case[3][1])
      local dy = T.randn(unpack(run("f64", x, w, b, nil, o)[1]:shape()))
      local want = run("f64", x, w, b, dy, o)
      local threads, got = T.get_num_threads(), {}
      for n = 1, 3 do
        T.set_num_threads(n)
        got[n] = run("f32", x, w, b, dy, o)
      end
      T.set_num_threads(threads)
      for i = 1, #want do
        local gap = (got[1][i]:double() - want[i]):abs():amax():item() / want[i]:abs():amax():item()
        assert.is_true(gap < 3e-6, ("%s is off by %g of its largest value"):format(names[i], gap))
        assert.is_true(got[1][i]:equal(got[2][i]), names[i] .. " differs with 2 threads")
        assert.is_true(got[1][i]:equal(got[3][i]), names[i] .. " differs with 3 threads")
      end
    end)
  end

  it("halves are rounded once", function()
    local x, w = T.randn(4, 32, 12, 12):bfloat16(), T.randn(48, 32, 3, 3):bfloat16()
    local y = T.nn.F.conv2d(x, w, { padding = 1 })
    assert.is_true(y:equal(T.nn.F.conv2d(x:float(), w:float(), { padding = 1 }):bfloat16()))
  end)
end)
