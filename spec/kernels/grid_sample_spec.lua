-- SPDX-License-Identifier: MIT
-- grid_sample at the sizes where its kernel changes its way: planes, four channels side by side, sixteen, blocks of
-- places and several chunks of channels. All ways must give the same, at any number of threads.

local T = require "perilune"
local F = T.nn.F

local function randn(...) return T.randn(..., { dtype = "f64" }) end
local function near(a, b, what) assert.is_true(T.allclose(a, b, { rtol = 1e-11, atol = 1e-11 }), what) end

-- Value, dx and dgrid.
local function all(x, g, dy, o)
  x, g = x:detach():clone():requires_grad_(), g:detach():clone():requires_grad_()
  local y = F.grid_sample(x, g, o)
  y:backward(dy)
  return { y:detach(), x.grad, g.grad }
end

describe("grid_sample", function()
  local SIZES = { { 2, 1, { 5, 6 }, { 9, 15 } }, { 1, 3, { 7, 4 }, { 11, 13 } }, { 2, 5, { 6, 9 }, { 8, 16 } },
    { 1, 37, { 5, 5 }, { 10, 20 } }, { 1, 20, { 30, 30 }, { 2, 3 } }, { 2, 9, { 3, 4, 5 }, { 4, 5, 6 } } }
  for _, s in ipairs(SIZES) do
    local N, C, size, out = table.unpack(s)
    for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
      if mode ~= "bicubic" or #size == 2 then
        it(("%s of %d channels is that of each channel"):format(mode, C), function()
          T.manual_seed(3)
          local o = { mode = mode, padding_mode = "reflection" }
          local grid = T.rand({ N, table.unpack(out) }, { dtype = "f64" })
          grid = T.stack({ grid, T.rand_like(grid), #size == 3 and T.rand_like(grid) or nil }, -1) * 3 - 1.5
          local x = randn({ N, C, table.unpack(size) })
          local dy = randn({ N, C, table.unpack(out) })
          local got, dgrid = all(x, grid, dy, o), nil
          for c = 1, C do
            local one = all(x:narrow(2, c, 1), grid, dy:narrow(2, c, 1), o)
            near(got[1]:narrow(2, c, 1), one[1], "value")
            near(got[2]:narrow(2, c, 1), one[2], "dx")
            dgrid = dgrid and dgrid + one[3] or one[3]
          end
          near(got[3], dgrid, "dgrid")
        end)
      end
    end
  end

  it("has the same bits at any number of threads, and of halves", function()
    local before = T.get_num_threads()
    for _, d in ipairs { "f32", "bf16" } do
      local x, dy = T.randn(3, 40, 32, 32):to(d), T.randn(3, 40, 33, 31):to(d)
      local grid = (T.rand(3, 33, 31, 2) * 2.4 - 1.2):to(d)
      T.set_num_threads(1)
      local one = all(x, grid, dy)
      for _, n in ipairs { 2, 3 } do
        T.set_num_threads(n)
        for k, v in ipairs(all(x, grid, dy)) do assert.is_true(v:equal(one[k]), d .. " " .. k) end
      end
    end
    T.set_num_threads(before)
  end)

  it("reads NaN where a place is none, the border or zeros where it is far; x has finite gradients", function()
    local bad = { 0 / 0, math.huge, -math.huge, 1e30, -1e30 }
    for _, d in ipairs { "f32", "f64" } do
      for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
        for _, padding in ipairs { "zeros", "border", "reflection" } do
          for _, C in ipairs { 1, 5 } do
            local x, grid = T.ones({ 1, C, 3, 4 }, { dtype = d }), T.zeros({ 1, 1, 10, 2 }, { dtype = d })
            for k, v in ipairs(bad) do grid[1][1][k][1], grid[1][1][k + 5][2] = v, v end
            local got = all(x, grid, T.ones({ 1, C, 1, 10 }, { dtype = d }), { mode = mode, padding_mode = padding })
            assert.is_true(got[2]:isfinite():all():item(), "dx")
            for k = 1, 10 do
              local v, what = got[1][1][C][1][k]:item(), mode .. padding .. k
              local how = (k - 1) % 5 + 1 -- an infinite place has no reflection
              if how == 1 or how <= 3 and padding == "reflection" then assert.is_true(v ~= v, what)
              else assert.equal(padding == "zeros" and 0 or 1, v, what) end
            end
          end
        end
      end
    end
  end)

  it("gives nearest places zeros as their gradient, whatever is read there", function()
    local function slopes(x, g)
      return T.grad(function(v) return F.grid_sample(x, v, { mode = "nearest" }):sum() end)(g)
    end
    for _, C in ipairs { 1, 4, 20 } do
      local x, g = T.full({ 2, C, 3, 3 }, math.huge), T.rand(2, 4, 4, 2)
      x[{ {}, {}, 2 }] = 0 / 0
      for _, f in ipairs { slopes, T.jit(slopes) } do
        assert.equal(0, (f(x, g)):abs():sum():item())
      end
      -- through the composition, which second derivatives take
      local h = T.grad(function(v)
        return T.grad(function(u) return F.grid_sample(x, u, { mode = "nearest" }):sum() end)(v):sum() + v:sum()
      end)(g)
      assert.equal(g:numel(), h:sum():item())
    end
  end)

  it("takes empty batches, channels and grids, and refuses what does not fit", function()
    assert.same({ 0, 2, 3, 3 }, F.grid_sample(T.ones(0, 2, 4, 4), T.ones(0, 3, 3, 2)):shape())
    assert.same({ 2, 3, 0, 3 }, F.grid_sample(T.ones(2, 3, 4, 4), T.ones(2, 0, 3, 2)):shape())
    local got = all(T.ones(2, 0, 4, 4), T.ones(2, 3, 3, 2), T.ones(2, 0, 3, 3))
    assert.equal(0, got[3]:abs():sum():item())
    got = all(T.ones(2, 3, 4, 4), T.ones(2, 0, 3, 2), T.ones(2, 3, 0, 3))
    assert.equal(0, got[2]:abs():sum():item())
    for message, args in pairs {
      ["is wanted, got f32[1,1,2,2] and f32[1,1,1,3]"] = { T.ones(1, 1, 2, 2), T.ones(1, 1, 1, 3) },
      ["the input f32[1,1,0,2] is empty"] = { T.ones(1, 1, 0, 2), T.ones(1, 1, 1, 2) },
      ["must be one of bilinear|nearest|bicubic"] = { T.ones(1, 1, 2, 2), T.ones(1, 1, 1, 2), { mode = "linear" } },
    } do
      local ok, why = pcall(F.grid_sample, table.unpack(args))
      assert.is_false(ok)
      assert(tostring(why):find(message, 1, true), tostring(why))
    end
  end)
end)
