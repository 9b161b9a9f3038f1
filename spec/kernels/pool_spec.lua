-- SPDX-License-Identifier: MIT
-- Pooling against a scan of every window in Lua: values, places (the first of equals, the last NaN), gradients; windows
-- that overlap, leave gaps, are dilated or reach over the edge; rows of all widths, which take different loops.

local T = require "perilune"
local F = T.nn.F

local function triple(v) return type(v) == "table" and v or { v, v } end

-- One image [H, W] (a table of rows): what each window sees, as { value, place from 1, row, column } lists.
local function windows(x, H, W, o)
  local k, s, p, d = triple(o.kernel), triple(o.stride or o.kernel), triple(o.padding or 0), triple(o.dilation or 1)
  local out, behind = {}, #p == 4 and { p[3], p[4] } or p
  local function count(n, i)
    local span = n + p[i] + behind[i] - d[i] * (k[i] - 1) - 1
    local m = (o.ceil_mode and -(-span // s[i]) or span // s[i]) + 1
    if o.ceil_mode and (m - 1) * s[i] >= n + p[i] then m = m - 1 end
    return m
  end
  local Ho, Wo = count(H, 1), count(W, 2)
  for oy = 0, Ho - 1 do
    for ox = 0, Wo - 1 do
      local seen, full = {}, 0
      for a = 0, k[1] - 1 do
        for b = 0, k[2] - 1 do
          local r, c = oy * s[1] - p[1] + a * d[1], ox * s[2] - p[2] + b * d[2]
          if r < H + behind[1] and c < W + behind[2] then full = full + 1 end
          if r >= 0 and r < H and c >= 0 and c < W then
            seen[#seen + 1] = { x[r + 1][c + 1], r * W + c + 1, r + 1, c + 1 }
          end
        end
      end
      out[#out + 1] = { seen = seen, full = full }
    end
  end
  return out, Ho, Wo
end

local CASES = {
  { 9, 9, { kernel = 3, stride = 2, padding = 1 } },
  { 7, 40, { kernel = 3, stride = 1, padding = 1 } },
  { 12, 33, { kernel = 2 } },
  { 11, 70, { kernel = { 2, 5 }, stride = { 1, 3 } } },
  { 16, 37, { kernel = { 3, 7 }, stride = { 2, 4 }, padding = { 1, 3 } } },
  { 8, 50, { kernel = { 1, 3 }, stride = { 1, 5 } } },
  { 13, 29, { kernel = 3, stride = 2, ceil_mode = true } },
  { 13, 30, { kernel = { 4, 3 }, stride = { 3, 2 }, padding = 1, ceil_mode = true } },
  { 10, 24, { kernel = { 3, 2 }, stride = 1, padding = 1, dilation = { 2, 3 } } },
  { 10, 45, { kernel = 3, stride = { 2, 2 }, padding = 1, dilation = 2 } },
  { 11, 52, { kernel = { 2, 3 }, stride = { 1, 2 }, padding = { 1, 2 }, dilation = { 3, 2 }, ceil_mode = true } },
  { 9, 40, { kernel = { 3, 2 }, stride = { 2, 1 }, padding = { 0, 0, 1, 1 } } }, -- before, then behind
  { 8, 33, { kernel = 3, stride = 2, padding = { 2, 1, 0, 2 } } },
  { 8, 34, { kernel = { 2, 4 }, stride = { 2, 3 }, padding = { 1, 0, 0, 3 }, ceil_mode = true } },
  { 7, 31, { kernel = 2, stride = 1, padding = { 1, 0, 2, 3 }, dilation = { 2, 3 } } },
  { 6, 5, { kernel = 2, stride = 1, padding = { 0, 1, 1, 0 } } },
  { 3, 64, { kernel = { 3, 17 }, stride = 1 } },
  { 5, 9, { kernel = { 1, 1 } } },
  { 4, 6, { kernel = { 4, 6 } } },
  { 6, 5, { kernel = 3, stride = 1 } },
  { 12, 33, { kernel = 3 } }, -- windows side by side
  { 11, 41, { kernel = { 2, 5 } } },
  { 10, 30, { kernel = { 4, 2 }, stride = { 2, 2 } } },
  { 9, 34, { kernel = { 2, 4 }, stride = { 3, 4 } } },
  { 13, 23, { kernel = 4, ceil_mode = true } },
}

local function options(o)
  return { stride = o.stride, padding = o.padding, dilation = o.dilation, ceil_mode = o.ceil_mode,
    count_include_pad = o.count_include_pad }
end

-- Planes of few different values, so that many are equal; the last has NaN and infinities.
local function planes(H, W, dtype)
  local x = (T.rand(3, H, W) * 5):floor() - 2
  x[3] = x[3] + T.randn(H, W)
  local last = x[3]
  last[H // 2 + 1][W // 2 + 1], last[1][1], last[H][W] = 0 / 0, -math.huge, 0 / 0
  x[2][1] = -math.huge
  return x:to(dtype)
end

local function same(a, b) return a == b or (a ~= a and b ~= b) end

describe("max pooling", function()
  for i, case in ipairs(CASES) do
    it("case " .. i, function()
      local H, W, o = case[1], case[2], case[3]
      for _, dtype in ipairs { "f32", "f64", "bf16" } do
        local x = planes(H, W, dtype)
        local opts = options(o)
        opts.return_indices = true
        local y, at = F.max_pool2d(x:unsqueeze(1), o.kernel, opts)
        local lone = F.max_pool2d(x:unsqueeze(1), o.kernel, options(o))
        assert.is_true(T.equal(lone:nan_to_num(), y:nan_to_num()))
        local values, places = y:to("f64"):tolist(), at:tolist()
        local rows = x:to("f64"):tolist()
        for plane = 1, 3 do
          local want, Ho, Wo = windows(rows[plane], H, W, o)
          for j, w in ipairs(want) do
            local best, place = -math.huge, w.seen[1][2]
            for _, e in ipairs(w.seen) do
              if e[1] > best or e[1] ~= e[1] then best, place = e[1], e[2] end
            end
            local r, c = (j - 1) // Wo + 1, (j - 1) % Wo + 1
            assert.is_true(same(best, values[1][plane][r][c]), ("%s value at %d,%d"):format(dtype, r, c))
            assert.equal(place, places[1][plane][r][c], ("%s place at %d,%d"):format(dtype, r, c))
          end
          assert.equal(Ho * Wo, #want)
        end
      end
    end)
  end
end)

describe("average pooling", function()
  for i, case in ipairs(CASES) do
    for _, include in ipairs { true, false } do
      it(("case %d, padding %s"):format(i, include and "counts" or "does not count"), function()
        local H, W, o = case[1], case[2], case[3]
        for _, dtype in ipairs { "f32", "f64" } do
          local opts = options(o)
          opts.count_include_pad = include
          local x = T.randn(2, H, W):to(dtype):requires_grad_()
          local y = F.avg_pool2d(x:unsqueeze(1), o.kernel, opts)
          local dy = T.randn(table.unpack(y:shape())):to(dtype)
          y:backward(dy)
          local values, seed = y:detach():to("f64"):tolist(), dy:to("f64"):tolist()
          local rows, slope = x:detach():to("f64"):tolist(), x.grad:to("f64"):tolist()
          local bound = dtype == "f64" and 1e-13 or 1e-5
          for plane = 1, 2 do
            local want, _, Wo = windows(rows[plane], H, W, o)
            local back = {}
            for r = 1, H do
              back[r] = {}
              for c = 1, W do back[r][c] = 0 end
            end
            for j, w in ipairs(want) do
              local r, c, sum = (j - 1) // Wo + 1, (j - 1) % Wo + 1, 0
              local n = include and w.full or #w.seen
              for _, e in ipairs(w.seen) do
                sum = sum + e[1]
                back[e[3]][e[4]] = back[e[3]][e[4]] + seed[1][plane][r][c] / n
              end
              assert.is_true(math.abs(sum / n - values[1][plane][r][c]) < bound, ("value at %d,%d"):format(r, c))
            end
            for r = 1, H do
              for c = 1, W do
                assert.is_true(math.abs(back[r][c] - slope[plane][r][c]) < bound, ("gradient at %d,%d"):format(r, c))
              end
            end
          end
        end
      end)
    end
  end
end)

describe("other forms of pooling", function()
  it("in one and three dims are those in two", function()
    local x = T.randn(4, 6, 50)
    local o = { stride = 2, padding = 1, return_indices = true }
    local y, at = F.max_pool1d(x, 3, o)
    local two = { stride = { 1, 2 }, padding = { 0, 1 }, return_indices = true }
    local z, places = F.max_pool2d(x:unsqueeze(3), { 1, 3 }, two)
    assert.is_true(T.equal(y, z:squeeze(3)) and T.equal(at, places:squeeze(3)))
    local cube = T.randn(2, 3, 6, 10, 20)
    local deep = F.max_pool3d(cube, 2, { stride = { 2, 1, 2 } })
    local flat = F.max_pool2d(cube:view(6, 6, 10, 20), 2, { stride = { 1, 2 } })
    flat = flat:view(2, 3, 6, 9, 10)
    local pairwise = T.maximum(flat:index_select(T.tensor({ 1, 3, 5 }, { dtype = "i64" }), { dim = 3 }),
      flat:index_select(T.tensor({ 2, 4, 6 }, { dtype = "i64" }), { dim = 3 }))
    assert.is_true(T.equal(deep, pairwise))
    local mean = F.avg_pool3d(cube:to("f64"), 2)
    local blocks = cube:to("f64"):view(2, 3, 3, 2, 5, 2, 10, 2):mean { dim = { 4, 6, 8 } }
    assert.is_true((mean - blocks):abs():max():item() < 1e-13)
  end)
  it("adaptive windows of one size, and of several", function()
    local x = T.randn(2, 3, 12, 20):to("f64")
    local function bound(a, b) assert.is_true((a - b):abs():max():item() < 1e-13) end
    bound(F.adaptive_avg_pool2d(x, { 4, 5 }), x:view(2, 3, 4, 3, 5, 4):mean { dim = { 4, 6 } })
    bound(F.adaptive_max_pool2d(x, { 4, 5 }), x:view(2, 3, 4, 3, 5, 4):amax { dim = { 4, 6 } })
    bound(F.adaptive_avg_pool2d(x, 1), x:mean { dim = { 3, 4 }, keepdim = true })
    local y = x:to("f32")
    assert.is_true((F.adaptive_avg_pool2d(y, 1) - y:mean { dim = { 3, 4 }, keepdim = true }):abs():max():item() < 1e-7)
    bound(F.adaptive_avg_pool2d(x, { 5, 7 })["1, 1, 2, 3"], x["1, 1, 3:5, 6:9"]:mean())
  end)
  it("gives the same bits on 1, 2 and 3 threads", function()
    local x = T.randn(8, 16, 40, 40)
    local before, first = T.get_num_threads(), nil
    for n = 1, 3 do
      T.set_num_threads(n)
      local leaf = x:detach():requires_grad_()
      local y = F.avg_pool2d(leaf, 3, { stride = 2, padding = 1 }) + F.max_pool2d(leaf, 3, { stride = 2, padding = 1 })
      y:backward(y:detach())
      first = first or { y:detach(), leaf.grad }
      assert.is_true(T.equal(first[1], y:detach()) and T.equal(first[2], leaf.grad))
    end
    T.set_num_threads(before)
  end)
end)

-- Halves are widened a few planes at a time.
describe("pooling of halves", function()
  local function each(x)
    local leaf = x:detach():clone():requires_grad_()
    local results = {}
    for _, f in ipairs { function(v) return F.max_pool2d(v, 3, { stride = 2, padding = 1 }) end,
      function(v) return F.avg_pool2d(v, 2) end, function(v) return F.adaptive_avg_pool2d(v, 3) end,
      function(v) return F.adaptive_avg_pool2d(v, 1) end, function(v) return F.adaptive_max_pool2d(v, 2) end } do
      leaf.grad = nil
      local y = f(leaf)
      y:backward(T.ones_like(y:detach()))
      results[#results + 1] = y:detach()
      results[#results + 1] = leaf.grad
    end
    return results
  end

  for _, dtype in ipairs { "f16", "bf16" } do
    it("is that of f32 rounded once, at any number of threads, " .. dtype, function()
      local before = T.get_num_threads()
      for _, size in ipairs { { 3, 5, 130, 141 }, { 40, 33, 6, 5 }, { 2, 2, 9, 4 } } do
        local x = T.randn(table.unpack(size)):to(dtype)
        local want = each(x:float())
        for threads = 1, 3 do
          T.set_num_threads(threads)
          for i, got in ipairs(each(x)) do assert.is_true(got:equal(want[i]:to(dtype)), ("result %d"):format(i)) end
        end
        T.set_num_threads(before)
      end
    end)
  end

  it("takes no memory in proportion to the input", function()
    local x = T.randn(64, 16, 56, 56):bfloat16()
    collectgarbage()
    T.reset_peak_memory()
    local live = T.memory().live
    local y = F.avg_pool2d(x, 2)
    assert.is_true(T.memory().peak - live < 2.5 * y:numel() + (2 << 20), "the result, rounded up, and pieces")
  end)
end)
