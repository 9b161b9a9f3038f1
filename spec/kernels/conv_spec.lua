-- SPDX-License-Identifier: MIT
-- Convolutions large enough for Winograd's tiles or the library's blocked layouts, in every way their work is cut:
-- values and gradients against f64, which is computed by our own matrix products, and the same bits on 1, 2 and 3
-- threads.

local T = require "perilune"
local most = require "spec.support.device".mode and 1 or 3 -- threads: a device has its own
local conv = { T.nn.F.conv1d, T.nn.F.conv2d, T.nn.F.conv3d }
local unpack = table.unpack

-- name, x, w, options
local CASES = {
  { "image by image", { 9, 16, 20, 20 }, { 32, 16, 3, 3 }, { padding = 1 } },
  { "with bias", { 5, 16, 20, 20 }, { 40, 16, 3, 3 }, { padding = 1, bias = true } },
  { "one image, slices of output channels", { 1, 16, 40, 40 }, { 136, 16, 3, 3 }, { padding = 1, bias = true } },
  { "small images, slices for the cache", { 10, 160, 6, 6 }, { 200, 160, 3, 3 }, { padding = 1 } },
  { "slices of input channels", { 3, 200, 12, 12 }, { 136, 200, 3, 3 }, { stride = 2, padding = 1 } },
  { "few tiles, all transformed first", { 16, 72, 7, 7 }, { 64, 72, 3, 3 }, { padding = 1, bias = true } },
  { "runs of tiles, an odd size", { 5, 48, 23, 17 }, { 40, 48, 3, 3 }, { padding = 1, bias = true } },
  { "runs of tiles, one row of them wide", { 2, 64, 6, 150 }, { 96, 64, 3, 3 }, { padding = 1 } },
  { "runs of tiles over many small images", { 100, 40, 4, 5 }, { 48, 40, 3, 3 }, { padding = 1, bias = true } },
  { "runs of tiles, slices of output channels", { 3, 300, 26, 28 }, { 200, 300, 3, 3 }, { padding = 1 } },
  { "blocks of channels, one small image", { 1, 64, 7, 7 }, { 48, 64, 3, 3 }, { padding = 1, bias = true } },
  { "blocks of channels, all tiles first, an odd size", { 2, 48, 23, 17 }, { 80, 48, 3, 3 }, { padding = 1 } },
  { "blocks of channels, runs and groups of slices", { 1, 32, 57, 40 }, { 144, 32, 3, 3 },
    { padding = 1, bias = true } },
  { "blocks of channels, runs over small images", { 90, 32, 4, 5 }, { 64, 32, 3, 3 }, { padding = 1, bias = true } },
  { "1x1", { 8, 520, 7, 7 }, { 400, 520, 1, 1 }, {} },
  { "1x1 with stride", { 6, 320, 14, 14 }, { 520, 320, 1, 1 }, { stride = 2 } },
  { "dilated", { 4, 32, 17, 19 }, { 48, 32, 3, 3 }, { dilation = 2, padding = 1 } },
  { "odd channels", { 4, 19, 21, 18 }, { 37, 19, 5, 3 }, { stride = { 2, 1 }, padding = { 0, 2 } } },
  { "groups", { 3, 48, 14, 14 }, { 96, 12, 3, 3 }, { groups = 4, padding = 1, bias = true } },
  { "depthwise", { 2, 96, 40, 40 }, { 96, 1, 3, 3 }, { groups = 96, padding = 1, bias = true } },
  { "groups of few channels, turned round", { 2, 60, 33, 29 }, { 40, 3, 5, 3 }, { groups = 20, padding = { 3, 0 },
    dilation = { 1, 2 } } },
  { "groups of few channels with stride", { 2, 60, 33, 29 }, { 40, 3, 5, 3 }, { groups = 20, stride = { 2, 1 } } },
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
      for n = 1, most do
        T.set_num_threads(n)
        got[n] = run("f32", x, w, b, dy, o)
      end
      T.set_num_threads(threads)
      for i = 1, #want do
        local gap = (got[1][i]:double() - want[i]):abs():amax():item() / want[i]:abs():amax():item()
        assert.is_true(gap < 3e-6, ("%s is off by %g of its largest value"):format(names[i], gap))
        for n = 2, most do
          assert.is_true(got[1][i]:equal(got[n][i]), ("%s differs with %d threads"):format(names[i], n))
        end
      end
    end)
  end

  it("a NaN reaches the two by two outputs of its tiles, and no others", function()
    local x, w = T.randn(1, 32, 40, 40), T.randn(32, 32, 3, 3)
    x[{ 1, 5, 11, 20 }] = 0 / 0
    local bad = T.nn.F.conv2d(x, w, nil, { padding = 1 }):isnan()
    assert.is_true(bad[{ {}, {}, { 10, 12 }, { 19, 21 } }]:all():item())
    bad[{ {}, {}, { 9, 12 }, { 19, 22 } }] = false
    assert.is_false(bad:any():item())
  end)

  -- Sums are f32 and rounded once: half a place of the result, and what f32 sums leave.
  local function near(got, want, what)
    local room = want:abs() * 2.0 ^ -8 + want:abs():amax() * 1e-4
    assert.equal("bf16", got:dtype())
    assert.is_true(((got:double() - want):abs() - room):amax():item() <= 0, what)
  end

  for _, c in ipairs { { 4, 32, 48, 12, 1 }, { 9, 16, 33, 14, 1 }, { 4, 1, 32, 28, 1 }, { 8, 64, 64, 10, 4 },
    { 2, 4, 4, 64, 1 } } do
    local N, C, O, S, G = table.unpack(c)
    it(("bf16 [%d,%d,%d,%d] to %d channels in %d groups is rounded once, the same with any threads"):format(N, C, S, S,
      O, G), function()
      local before, first = T.get_num_threads(), nil
      local x, w = T.randn(N, C, S, S):bfloat16(), T.randn(O, C // G, 3, 3):bfloat16()
      local b, dy = T.randn(O):bfloat16(), T.randn(N, O, S, S):bfloat16()
      local function all(to)
        local a = {}
        for k, t in ipairs { x, w, b } do a[k] = t:to(to):clone():requires_grad_() end
        local y = T.nn.F.conv2d(a[1], a[2], a[3], { padding = 1, groups = G })
        return { y:detach(), table.unpack(T.grad_of({ y }, a, { grad_outputs = { dy:to(to) } })) }
      end
      local want = all("f64")
      for threads = 1, most do
        T.set_num_threads(threads)
        local got = all("bf16")
        first = first or got
        for k, name in ipairs { "y", "dx", "dw", "db" } do
          near(got[k], want[k], name)
          assert.is_true(got[k]:equal(first[k]), name .. " differs with " .. threads .. " threads")
        end
      end
      T.set_num_threads(before)
    end)
  end
end)
