-- SPDX-License-Identifier: MIT
-- Reductions read arrays as they lie (kernels/cpu/reduce/reduce_run.c): transposed, rows of a wider matrix, in stacks.
-- Sizes are around those at which loops change their way: lanes, chunks, blocks, tiles that are transposed first.
-- Whatever the layout and the processor level, the bits are those of a row-major copy, NaN and zeros of either sign
-- included.

describe("reductions of arrays as they lie", function()
  local T = require "perilune"
  local near = require "spec.support.near"

  local FUNCTIONS = { "sum", "mean", "prod", "amax", "amin", "any", "count_nonzero", "nansum", "logsumexp", "norm",
    "var" }
  local SIZES = { { 7, 5 }, { 8, 16 }, { 100, 37 }, { 300, 130 }, { 130, 530 }, { 1, 300 },
    { 3, 70000 }, { 70000, 2 }, { 600, 530 } }

  local function check(y, what)
    local dense = y:contiguous()
    for _, f in ipairs(y:numel() > 300000 and { "sum", "amin", "norm" } or FUNCTIONS) do
      for dim = 0, y:dim() do
        local options = dim > 0 and { dim = dim } or nil
        local fine, got = pcall(y[f], y, options)
        local same, why = pcall(near.same_bits, fine and got or dense, fine and dense[f](dense, options) or dense)
        assert(same, ("%s over %d of %s: %s"):format(f, dim, what, why))
      end
    end
  end

  local function each_layout(x, what)
    check(x:transpose(-1, -2), what .. ", transposed")
    local rows, cols = x:size(-2), x:size(-1)
    if cols > 4 then check(x:narrow(-1, 2, cols - 3), what .. ", part of rows") end
    if rows > 4 then check(x:transpose(-1, -2):narrow(-1, 2, rows - 3), what .. ", part of columns") end
    check(x:unsqueeze(1):expand(2, rows, cols):transpose(-1, -2), what .. ", in a stack that repeats")
    check(T.stack({ x, x:flip(1) }):transpose(-1, -2), what .. ", in a stack")
  end

  for _, kind in ipairs { "f32", "f64", "bf16", "f16", "i64", "i32", "u8", "bool" } do
    it("give the bits of row-major arrays in " .. kind, function()
      T.manual_seed(3)
      for _, size in ipairs(SIZES) do
        local x = T.randn(size) * 3
        x = kind == "bool" and x:gt(0) or kind == "u8" and x:abs():to(kind) or x:to(kind)
        each_layout(x, ("%s %d x %d"):format(kind, size[1], size[2]))
      end
    end)
  end

  for _, kind in ipairs { "f32", "f64", "bf16", "f16" } do
    it("keep NaN, infinities and signs of zeros in " .. kind, function()
      T.manual_seed(4)
      for _, size in ipairs { { 37, 100 }, { 300, 130 }, { 9, 600 } } do
        local x = T.randn(size):to(kind)
        local which = T.randint(0, 40, size)
        for k, v in ipairs { 0 / 0, math.huge, -math.huge, 0.0, -0.0 } do x = x:masked_fill(which:eq(k), v) end
        each_layout(x, kind)
        local zeros = T.where(which:gt(20), T.tensor(0.0), T.tensor(-0.0)):to(kind)
        each_layout(zeros, kind .. " zeros")
        each_layout(zeros:masked_fill(which:eq(3), -1), kind .. " nothing above zero")
      end
    end)
  end

  it("see no elements beyond the ends of parts", function()
    local x = T.full({ 64, 80 }, math.huge)
    x:narrow(1, 5, 33):narrow(2, 9, 41):fill_(1)
    local part = x:narrow(1, 5, 33):narrow(2, 9, 41)
    for _, p in ipairs { part, part:t() } do
      assert.are.equal(33 * 41, p:sum():item())
      assert.are.equal(p:size(1), p:sum(1):amax():item())
      assert.are.equal(1, p:amax(2):amax():item())
    end
  end)
end)
