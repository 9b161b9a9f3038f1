-- SPDX-License-Identifier: MIT
-- Functions made of several ops, of f16 and bf16: what they give is what f32 gives of the same numbers, rounded once.

local T = require "perilune"
local nn = T.nn
local F = nn.F

local EPS = { f16 = 2.0 ^ -10, bf16 = 2.0 ^ -7 }

-- Is got, of halves, within a unit of its largest element of want?
local function near(got, want, d, what, units)
  assert.equal(d, got:dtype(), what)
  local off, scale = (got:float() - want):abs():max():item(), want:abs():max():item()
  assert(off <= (units or 0.51) * EPS[d] * scale,
    ("%s of %s is off by %g, %g of a unit"):format(what, d, off, off / scale / EPS[d]))
end

local function halves(list, d)
  local narrow, wide = {}, {}
  for i, x in ipairs(list) do
    local floats = T.is_tensor(x) and x:is_floating_point()
    narrow[i] = floats and x:to(d) or x
    wide[i] = floats and narrow[i]:float() or x
  end
  return narrow, wide
end

describe("of halves", function()
  local function randn(...) return T.randn(...) end
  local CALLS = {
    grid_sample = function(mode, padding)
      return function(x, grid) return F.grid_sample(x, grid, { mode = mode, padding_mode = padding }) end,
        { randn(2, 3, 9, 7), T.rand(2, 5, 6, 2) * 2.4 - 1.2 }
    end,
    cosine_similarity = function() return F.cosine_similarity, { randn(6, 40), randn(6, 40) } end,
    hinge_embedding_loss = function()
      return F.hinge_embedding_loss, { randn(200), T.where(randn(200):gt(0), 1.0, -1.0) }
    end,
    poisson_nll_loss = function()
      return function(x, t) return F.poisson_nll_loss(x, t, { full = true, log_input = false }) end,
        { T.rand(300) + 0.1, T.rand(300) * 5 }
    end,
    cov = function() return T.cov, { randn(5, 60) + 8 } end,
    ["x:cov()"] = function() return function(x) return x:cov() end, { randn(5, 60) + 8 } end,
    corrcoef = function() return T.corrcoef, { randn(5, 60) + 8 } end,
    cdist = function() return T.cdist, { randn(7, 30), randn(5, 30) } end,
    quantile = function() return function(x) return T.quantile(x, 0.3) end, { randn(101) } end,
    ["embedding_bag, weights"] = function()
      return function(w, s)
        return F.embedding_bag(T.arange(40):view(4, 10), w, { mode = "sum", per_sample_weights = s })
      end, { randn(40, 16), randn(4, 10) }
    end,
    ["embedding_bag, mean"] = function()
      return function(w) return F.embedding_bag(T.arange(39):view(3, 13), w) end, { randn(40, 16) }
    end,
  }
  local function check(name, make, ...)
    for _, d in ipairs { "bf16", "f16" } do
      T.manual_seed(1)
      local f, args = make(...)
      local narrow, wide = halves(args, d)
      local want = f(table.unpack(wide))
      near(f(table.unpack(narrow)), want, d, name)
      near(T.jit(f)(table.unpack(narrow)), want, d, name .. " in T.jit")
      local x, y = narrow[1]:requires_grad_(), wide[1]:requires_grad_()
      local gx, gy = T.grad_of(f(table.unpack(narrow)):sum(), x), T.grad_of(f(table.unpack(wide)):sum(), y)
      near(gx, gy, d, "the gradient of " .. name, 2)
    end
  end
  for name, make in pairs(CALLS) do
    it(name, function()
      if name ~= "grid_sample" then return check(name, make) end
      for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
        for _, padding in ipairs { "zeros", "border", "reflection" } do
          check(("grid_sample, %s, %s"):format(mode, padding), make, mode, padding)
        end
      end
    end)
  end

  it("linear_cross_entropy adds the gradients of its chunks up in f32", function()
    for _, d in ipairs { "bf16", "f16" } do
      T.manual_seed(1)
      local x, t = T.randn(2048, 16):to(d), T.randint(1, 8, { 2048 })
      local w, b = T.randn(8, 16):to(d):requires_grad_(), T.randn(8):to(d):requires_grad_()
      local W, B = w:detach():float():requires_grad_(), b:detach():float():requires_grad_()
      local function loss(v, u, rows, chunk)
        return F.linear_cross_entropy(rows, v, t, { linear_bias = u, chunk = chunk, reduction = "sum" })
      end
      local WG, BG = table.unpack(table.pack(T.grad_of(loss(W, B, x:float()), { W, B })))
      if not T.is_tensor(WG) then WG, BG = WG[1], WG[2] end
      local wg, bg = T.grad_of(loss(w, b, x, 8), { w, b })
      if not T.is_tensor(wg) then wg, bg = wg[1], wg[2] end
      near(wg, WG, d, "linear_weight's gradient", 1)
      near(bg, BG, d, "linear_bias' gradient", 1)
      local v = T.randn(8, 16):to(d)
      local _, tangent = T.jvp(function(a) return loss(a, b:detach(), x, 8) end, w:detach(), v)
      local _, TANGENT = T.jvp(function(a) return loss(a, B:detach(), x:float()) end, W:detach(), v:float())
      near(tangent, TANGENT, d, "tangent", 2)
    end
  end)

  it("linear_cross_entropy does so in a trace, whether its gradient is taken there or outside", function()
    for _, d in ipairs { "bf16", "f16" } do
      for _, chunk in ipairs { 8, 2048 } do
        T.manual_seed(1)
        local x, t = T.randn(2048, 16):to(d), T.randint(1, 8, { 2048 })
        local w, b = T.randn(8, 16):to(d):requires_grad_(), T.randn(8):to(d):requires_grad_()
        local function loss(v, u)
          return F.linear_cross_entropy(x, v, t, { linear_bias = u, chunk = chunk, reduction = "mean" })
        end
        local function gradients(f)
          w.grad, b.grad = nil, nil
          f()
          return { w.grad, b.grad }
        end
        local want = gradients(function() loss(w, b):backward() end)
        local outside, inside = T.jit(loss), T.jit(function(v, u) loss(v, u):backward() end)
        for _ = 1, 2 do
          for _, how in ipairs { "outside", "inside" } do
            local got = gradients(function()
              if how == "inside" then inside(w, b) else outside(w, b):backward() end
            end)
            for i = 1, 2 do
              assert.equal(d, got[i]:dtype())
              near(got[i], want[i]:float(), d, ("%s, chunks of %d, %s"):format(d, chunk, how), 1)
            end
          end
        end
      end
    end
  end)

  it("nextafter gives the half next to x", function()
    for d, least in pairs { f16 = 2.0 ^ -24, bf16 = 2.0 ^ -133 } do
      T.manual_seed(1)
      local x = T.cat({ T.randn(3000) * 100, T.tensor { 1, -1, 2, 65504, 0 } }):to(d)
      local up, down = x:nextafter(math.huge), x:nextafter(-math.huge)
      assert.is_true(up:gt(x):all():item() and down:lt(x):all():item())
      -- between neighbours there is none: their mean is one of them
      local mean = ((up:double() + x:double()) / 2):to(d)
      assert.is_true(mean:eq(up):logical_or(mean:eq(x)):all():item())
      assert.is_true(down:nextafter(x):eq(x):all():item() and x:nextafter(x):equal(x))
      assert.equal(least, T.zeros({}, { dtype = d }):nextafter(1):item())
      assert.equal(-least, T.zeros({}, { dtype = d }):nextafter(-1):item())
      assert.is_true(T.tensor(0 / 0):to(d):nextafter(1):isnan():item())
      assert.equal(1 + EPS[d], T.ones({ 1 }, { dtype = d }):nextafter(T.tensor(9.0)):item())
      local t = T.stack({ x, x }):t()
      assert.is_true(t:nextafter(x:unsqueeze(2)):equal(t))
    end
  end)
end)

describe("pad by replicate", function()
  it("repeats the end that is left where negative pads crop all", function()
    local x = T.tensor { { { 1, 2, 3 } } }
    local function pad(lo, hi) return x:pad({ lo, hi }, { mode = "replicate" }):flatten():tolist() end
    assert.same({ 3, 3 }, pad(-5, 4))
    assert.same({ 3 }, pad(-3, 1))
    assert.same({ 1, 1 }, pad(3, -4))
    assert.same({ 1, 1, 1 }, pad(3, -3))
    assert.same({ 2, 3, 3 }, pad(-1, 1))
    assert.has_error(function() pad(-4, 0) end)
    local y = x:clone():requires_grad_()
    assert.same({ 0, 0, 4 }, T.grad_of(y:pad({ -4, 5 }, { mode = "replicate" }):sum(), y):flatten():tolist())
  end)
end)
