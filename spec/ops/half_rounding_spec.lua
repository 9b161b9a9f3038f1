-- SPDX-License-Identifier: MIT
-- f16 and bf16 are computed in f32 and rounded once: results and gradients of what adds up many terms, or is made of
-- several steps, lie within about one step of the dtype of what f64 gives for the same numbers. A step that is rounded
-- before it is added to others leaves its error where the sum cancels, tens of steps.

local T = require "perilune"
local random = require "spec.support.random"
local F = T.nn.F

local BY = { beta = 0.6, alpha = 0.7 }
-- name, shapes, function; "value": the gradient is made of the result as it was rounded
local CASES = {
  { "addmm", { { 12, 9 }, { 12, 40 }, { 40, 9 } }, function(x, y, z) return x:addmm(y, z, BY) end },
  { "addmv", { { 9 }, { 9, 30 }, { 30 } }, function(x, y, z) return x:addmv(y, z, BY) end },
  { "addr", { { 9, 7 }, { 9 }, { 7 } }, function(x, y, z) return x:addr(y, z, BY) end },
  { "baddbmm", { { 3, 5, 6 }, { 3, 5, 40 }, { 3, 40, 6 } }, function(x, y, z) return x:baddbmm(y, z, BY) end },
  { "baddbmm of one matrix", { { 5, 1 }, { 3, 5, 40 }, { 3, 40, 6 } },
    function(x, y, z) return x:baddbmm(y, z, BY) end },
  { "addbmm", { { 5, 6 }, { 3, 5, 40 }, { 3, 40, 6 } }, function(x, y, z) return x:addbmm(y, z, BY) end },
  { "linear", { { 12, 40 }, { 9, 40 }, { 9 } }, function(x, y, z) return F.linear(x, y, z) end },
  { "matmul", { { 2, 7, 90 }, { 90, 6 } }, function(x, y) return x:matmul(y) end },
  { "conv2d", { { 2, 4, 7, 7 }, { 5, 4, 3, 3 }, { 5 } }, function(x, y, z) return F.conv2d(x, y, z) end },
  { "conv_transpose1d", { { 2, 4, 9 }, { 4, 3, 3 }, { 3 } }, function(x, y, z) return F.conv_transpose1d(x, y, z) end },
  { "conv_transpose2d", { { 2, 4, 5, 5 }, { 4, 3, 3, 3 }, { 3 } },
    function(x, y, z) return F.conv_transpose2d(x, y, z, { stride = 2 }) end },
  { "conv_transpose2d of groups", { { 2, 4, 5, 5 }, { 4, 3, 3, 3 }, { 6 } },
    function(x, y, z) return F.conv_transpose2d(x, y, z, { groups = 2 }) end },
  { "conv_transpose3d", { { 1, 3, 3, 3, 3 }, { 3, 2, 2, 2, 2 }, { 2 } },
    function(x, y, z) return F.conv_transpose3d(x, y, z) end },
  { "trapezoid", { { 6, 33 } }, function(x) return x:trapezoid() end },
  { "trapezoid at positions", { { 6, 33 }, { 33 } }, function(x, y) return T.trapezoid(x, y) end },
  { "cumulative_trapezoid", { { 6, 33 } }, function(x) return x:cumulative_trapezoid() end },
  { "renorm", { { 9, 33 } }, function(x) return x:renorm(2, 1, 0.5) end },
  { "nearest interpolation", { { 2, 3, 6, 6 } }, function(x) return F.interpolate(x, { size = { 15, 13 } }) end },
  { "bilinear interpolation", { { 2, 3, 6, 6 } },
    function(x) return F.interpolate(x, { size = { 15, 13 }, mode = "bilinear" }) end },
  { "sum", { { 30, 70 } }, function(x) return x:sum() end },
  { "mean of columns", { { 90, 7 } }, function(x) return x:mean(1) end },
  { "var", { { 6, 90 } }, function(x) return x:var(2) end },
  { "logsumexp", { { 6, 90 } }, function(x) return x:logsumexp(2) end, "value" },
  { "softmax", { { 6, 90 } }, function(x) return x:softmax(2) end, "value" },
  { "layer_norm", { { 6, 33 }, { 33 }, { 33 } },
    function(x, y, z) return F.layer_norm(x, { 33 }, { weight = y, bias = z }) end },
  { "group_norm", { { 2, 6, 5, 5 }, { 6 }, { 6 } },
    function(x, y, z) return F.group_norm(x, 2, { weight = y, bias = z }) end },
  { "index_select of few rows", { { 3, 4 } },
    function(x) return x:index_select(1, T.arange(300):remainder(3) + 1) end },
  { "index_add", { { 3, 4 }, { 90, 4 } }, function(x, y) return x:index_add(1, T.arange(90):remainder(3) + 1, y) end },
  { "avg_pool2d", { { 2, 3, 9, 9 } }, function(x) return F.avg_pool2d(x, 3, { stride = 1 }) end },
  { "fold", { { 2, 27, 16 } }, function(x) return F.fold(x, { 6, 6 }, 3) end },
  { "cross_entropy", { { 40, 11 } }, function(x) return F.cross_entropy(x, T.arange(40):remainder(11) + 1) end },
}

-- The largest distance of y from f64's in steps of its dtype; a number near zero counts as a fiftieth of the mean.
local function steps(y, want, digits)
  local size = want:abs()
  local scale = T.maximum(size, size:mean() / 50):log2():floor()
  local off = ((y:double() - want):abs() / (scale + (1 - digits)):exp2())
  return off:max():item()
end

describe("halves are rounded once:", function()
  for _, case in ipairs(CASES) do
    local name, shapes, f, only = table.unpack(case)
    for dtype, digits in pairs { f16 = 11, bf16 = 8 } do
      it(name .. " of " .. dtype, function()
        local g = random.new(5)
        local halves, wide = {}, {}
        for i, shape in ipairs(shapes) do
          local n = 1
          for _, s in ipairs(shape) do n = n * s end
          halves[i] = random.tensor(T, g:list(n, -2, 2), shape, "f64"):to(dtype)
          wide[i] = halves[i]:double():requires_grad_()
          halves[i]:requires_grad_()
        end
        local y, want = f(table.unpack(halves)), f(table.unpack(wide))
        assert.equal(dtype, y:dtype())
        assert.same(want:shape(), y:shape())
        local off = steps(y:detach(), want:detach(), digits)
        assert.is_true(off <= 1.01, ("the value is %.2f steps off"):format(off))
        local n = y:numel()
        local dy = random.tensor(T, g:list(n, -2, 2), y:shape(), "f64"):to(dtype)
        y:backward(dy)
        want:backward(dy:double())
        for i, x in ipairs(only and {} or halves) do
          off = steps(x.grad, wide[i].grad, digits)
          assert.is_true(off <= 2.5, ("the gradient of argument %d is %.2f steps off"):format(i, off))
        end
      end)
    end
  end
end)
