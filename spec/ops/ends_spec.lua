-- SPDX-License-Identifier: MIT
-- Ops whose results are in range though what lies between would not be: sums of powers, variances, log-sum-exps.
-- Elements are scaled by powers of two, which are exact: values and gradients of plain elements say what is right.

local T = require "perilune"

local NAN, INF = 0 / 0, math.huge
local F = T.nn.F

local function near(want, got, tol, what)
  assert.equal(#want, #got, what)
  for i, w in ipairs(want) do
    local ok = w == got[i] or (w ~= w and got[i] ~= got[i]) or math.abs(w - got[i]) <= tol * math.abs(w)
    assert(ok, ("%s: entry %d is %.9g, not %.9g"):format(what, i, got[i], w))
  end
end
local function flat(t) return t:to("f64"):reshape(-1):totable() end

local LIST = { 1, -2, 3, 0.5, -0.25, 2.5 }
local SCALES = { f32 = { 2 ^ 100, 2 ^ -100 }, f64 = { 2.0 ^ 700, 2.0 ^ -700, 2.0 ^ -900 }, bf16 = { 2 ^ 90, 2 ^ -90 } }
local TOL = { f32 = 2e-6, f64 = 1e-12, bf16 = 3e-2 }

describe("in range though what lies between is not:", function()
  -- |s x| = s |x|, and the gradient does not see s
  it("norms of any order, their gradients and tangents", function()
    for dtype, scales in pairs(SCALES) do
      for _, p in ipairs { 2, 3, 4, 2.5, 10, 20, 1.5, 0.5, -1, -3 } do
        local function f(x) return x:norm { p = p, dim = { 2 } } end
        local x = T.tensor({ LIST, LIST }, { dtype = dtype }):requires_grad_()
        local y = f(x)
        local dx = T.grad_of(y:sum(), x)
        local v = T.tensor({ LIST, { 1, 1, 1, 1, 1, 1 } }, { dtype = dtype })
        local _, t = T.jvp(f, x:detach(), v)
        for _, s in ipairs(scales) do
          if not (p == 0.5 and dtype ~= "f64" and s > 1) then
            local what = ("norm of order %g of %s times %g"):format(p, dtype, s)
            local tol = TOL[dtype] * math.max(1, math.abs(p))
            local z = (x:detach() * s):requires_grad_()
            local w = f(z)
            near(flat(y:detach()), flat(w:detach():to "f64" / s), tol, what)
            near(flat(dx), flat(T.grad_of(w:sum(), z)), tol, what .. ": gradient")
            local value, tangent = T.jvp(f, z:detach(), v)
            near(flat(y:detach()), flat(value:to "f64" / s), tol, what .. ": value beside the tangent")
            near(flat(t), flat(tangent), tol, what .. ": tangent")
          end
        end
      end
    end
    for dtype, scales in pairs(SCALES) do -- joint norms of several tensors
      local x = T.tensor(LIST, { dtype = dtype })
      for _, p in ipairs { 2, 3, 10, 20, 0.5, -3, INF, 1 } do
        for _, s in ipairs(scales) do
          local y, z = x * s, T.core.op.foreach_norm({ x, x }, { p = p })
          if not (p == 0.5 and dtype ~= "f64" and s > 1) then
            near(flat(z * 1.0), flat(T.core.op.foreach_norm({ y, y }, { p = p }):to "f64" / s), 2e-6,
              ("joint norm of order %g of %s times %g"):format(p, dtype, s))
          end
        end
      end
    end
    for _, v in ipairs { 0, INF, NAN } do
      local y = T.core.op.foreach_norm({ T.tensor({ v, 1 }, { dtype = "f64" }) }, { p = v == 0 and -2.0 or 2.0 })
      near({ v }, flat(y), 0, "joint norm")
    end
    -- rows of their own: zeros, infinities, NaN and small ones beside each other
    local x = T.tensor({ { 0, 0 }, { 3, 4 }, { INF, 1 }, { NAN, 1 }, { 3, 4 }, { 3, 4 } }, { dtype = "f64" })
    local s = T.tensor({ { 1 }, { 2.0 ^ -800 }, { 1 }, { 1 }, { 2.0 ^ 800 }, { 1 } }, { dtype = "f64" })
    near({ 0, 5 * 2.0 ^ -800, INF, NAN, 5 * 2.0 ^ 800, 5 }, flat((x * s):norm(2, { 2 })), 1e-15, "norm of rows")
    near({ 0, 5 * 2.0 ^ -800, INF, NAN, 5 * 2.0 ^ 800, 5 }, flat((x * s):t():norm(2, { 1 })), 1e-15, "norm of columns")
  end)

  it("layer, group and RMS norm of squares beyond f32", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      local w = T.tensor({ LIST, LIST }, { dtype = dtype })
      for name, f in pairs {
        layer_norm = function(x) return F.layer_norm(x, { 6 }, nil, nil, { eps = 0 }) end,
        group_norm = function(x) return F.group_norm(x, 1, nil, nil, { eps = 0 }) end,
        rms_norm = function(x) return F.rms_norm(x, { 6 }, nil, { eps = 0 }) end,
      } do
        local x = T.tensor({ LIST, { 1, 2, 3, 4, 5, 7 } }, { dtype = dtype }):requires_grad_()
        local y = f(x)
        local dx = T.grad_of((y * w):sum(), x)
        for _, s in ipairs { 2 ^ 70, 2 ^ 100 } do
          local z = (x:detach() * s):requires_grad_()
          local u = f(z)
          near(flat(y:detach()), flat(u:detach()), 4 * TOL[dtype], name .. " of " .. dtype)
          local g, size = flat(T.grad_of((u * w):sum(), z):to "f64" * s), dx:to("f64"):abs():max():item()
          for i, v in ipairs(flat(dx)) do
            assert(math.abs(v - g[i]) < 4 * TOL[dtype] * size, name .. "'s gradient")
          end
        end
      end
    end
    -- beyond doubles, too, there is no number; never 0
    for name, f in pairs {
      layer_norm = function(x) return F.layer_norm(x, { 2 }) end,
      group_norm = function(x) return F.group_norm(x, 1) end,
    } do
      local y = f(T.tensor({ { 1e300, -1e300 } }, { dtype = "f64" }))
      assert(y:isnan():all():item(), name)
    end
  end)

  -- e^(x - y) of halves, y rounded far from 0, may be 1 for all of 100000 elements: their sum is no f16
  it("gradients of log-sum-exps of many halves", function()
    for dtype, far in pairs { f16 = { 0, 1000, 60000 }, bf16 = { 0, 1e9 } } do
      for _, c in ipairs(far) do
        local x = T.full({ 100000 }, c, { dtype = dtype }):requires_grad_()
        local last = T.grad_of(x:logsumexp(), x):narrow(1, 99999, 1)
        near({ 1e-5 }, flat(last), 8e-3, ("logsumexp of %s at %g"):format(dtype, c))
      end
    end
  end)

  it("losses of classes whose log-sum-exp is far from 0", function()
    for _, c in ipairs { 1e5, 1e12, 1e16, 1e30 } do
      for _, dtype in ipairs { "f64", "f32", "bf16" } do
        local x, classes = T.full({ 2, 8 }, c, { dtype = dtype }), T.tensor({ 1, 3 }, { dtype = "i64" })
        local many = T.full({ 2, 8, 16 }, c, { dtype = dtype })
        for what, loss in pairs {
          cross_entropy = T.cross_entropy(x, classes),
          ["smoothed cross_entropy"] = T.cross_entropy(x, classes, nil, { label_smoothing = 0.1 }),
          ["cross_entropy down columns"] = T.cross_entropy(many, T.ones({ 2, 16 }, { dtype = "i64" })),
          cross_entropy_prob = T.cross_entropy_prob(x, T.full({ 2, 8 }, 0.125, { dtype = dtype })),
          ["cross_entropy beside its tangent"] = (T.jvp(function(v) return T.cross_entropy(v, classes) end, x, x)),
          log_softmax = -x:log_softmax(2):mean(),
        } do
          near({ math.log(8) }, flat(loss), dtype == "bf16" and 4e-3 or 1e-6, ("%s of %s at %g"):format(what, dtype, c))
        end
      end
    end
  end)

  it("products with infinite elements have the products of the others as gradients", function()
    for _, row in ipairs {
      { { INF, 2, 3 }, { 6, INF, INF } }, { { -INF, 2, 1 }, { 2, -INF, -INF } }, { { INF, INF, 2 }, { INF, INF, INF } },
      { { NAN, 2, 3 }, { NAN, NAN, NAN } }, { { INF, 0, 3 }, { 0, INF, NAN } },
    } do
      for _, dtype in ipairs { "f64", "f32" } do
        local x = T.tensor(row[1], { dtype = dtype }):requires_grad_()
        near(row[2], flat(T.grad_of(x:prod(), x)), 0, "prod")
        near(row[2], flat(T.grad_of(x:prod(1), x)), 0, "prod of a dim")
      end
    end
  end)

  it("products of one element have no others, be it infinite or NaN", function()
    for _, v in ipairs { INF, -INF, NAN, 0, 2 } do
      local x = T.tensor({ { v }, { 1 } }, { dtype = "f64" }):requires_grad_()
      assert.same({ 1, 1 }, flat(T.grad_of(x:cumprod(2):sum(), x)), tostring(v))
      assert.same({ 1, 1 }, flat(T.grad_of(x:prod(2):sum(), x)), tostring(v))
    end
  end)

  it("distances of many rows at any scale, far from 0, beside rows that are not finite", function()
    local x = T.arange(1, 40 * 5):mul(7):remainder(31):float():reshape(40, 5) / 8
    for _, shift in ipairs { 0, 1 << 10, 1 << 18 } do
      for _, scale in ipairs { 1, 2.0 ^ -80, 2.0 ^ 60, 2.0 ^ 100 } do
        local rows = (x + shift) * scale
        local wide = rows:double()
        local a, b = rows:clone():requires_grad_(), wide:clone():requires_grad_()
        local got = T.cdist(a, rows:narrow(1, 3, 30))
        local want = T.cdist(b, wide:narrow(1, 3, 30), 2, { compute_mode = "donot_use_mm_for_euclid_dist" })
        local off = ((got:double() - want):abs() / scale):max():item()
        assert.is_true(off < 1e-5 + shift * 6e-8, ("shift %g, scale %g: off by %g"):format(shift, scale, off))
        got:sum():backward()
        want:sum():backward()
        -- of equal rows the slope is that of what was rounded; far beyond 1 its factor is no float
        local far = shift > 0 or scale > 2.0 ^ 60
        assert.is_true(far or (a.grad:double() - b.grad):abs():max():item() < 1e-4, "gradient")
        local pairs_of = T.pdist(rows):double() - T.pdist(wide)
        assert.is_true((pairs_of:abs() / scale):max():item() < 1e-5, "pdist")
      end
    end
    local bad = x:clone()
    bad[2][1], bad[3][2] = NAN, INF
    local d = T.cdist(bad, x)
    assert.is_true(d[2]:isnan():all():item() and not d[3]:isfinite():any():item())
    assert.is_true((d:narrow(1, 4, 37) - T.cdist(x, x):narrow(1, 4, 37)):abs():max():item() < 1e-5)
    local one = T.randn(1, 3):requires_grad_()
    T.pdist(one):sum():backward()
    assert.same({ 0, 0, 0 }, flat(one.grad))
  end)

  it("losses of infinite targets, entr at infinity, renorm beside NaN, cdist that counts", function()
    local x = T.tensor({ 1, 1, 0.5 }, { dtype = "f64" })
    local t = T.tensor({ INF, -INF, 1 }, { dtype = "f64" })
    near({ -INF, INF, math.log(1 + math.exp(-0.5)) },
      flat(F.binary_cross_entropy_with_logits(x, t, { reduction = "none" })), 1e-12, "values")
    local e = T.tensor({ INF, 2, 0 }, { dtype = "f64" }):requires_grad_()
    local y = T.special.entr(e)
    near({ -INF, -2 * math.log(2), 0 }, flat(y:detach()), 1e-15, "entr")
    near({ -INF, -math.log(2) - 1, INF }, flat(T.grad_of(y:sum(), e)), 1e-15, "entr's gradient")
    local r = T.tensor({ { NAN, 1 }, { 0.3, 0.4 }, { 3, 4 } }, { dtype = "f64" }):requires_grad_()
    local z = T.renorm(r, 2, 1, 1)
    near({ NAN, 1, 0.3, 0.4, 0.6, 0.8 }, flat(z:detach()), 1e-6, "renorm")
    near({ 1, 1, 1, 1, 0.032, -0.024 }, flat(T.grad_of(z:sum(), r)), 1e-5, "renorm's gradient")
    local a = T.tensor({ { 1, 2 } }, { dtype = "f64" }):requires_grad_()
    local d = T.cdist(a, T.tensor({ { 1, 3 } }, { dtype = "f64" }), 0)
    assert.same({ 1 }, flat(d:detach()))
    assert.same({ 0, 0 }, flat(T.grad_of(d:sum(), a)))
  end)
end)

describe("far from zero", function()
  local support = require "spec.ops.support"
  local FAR = { f32 = { 1e5, 1e10, 3e19, 1e25, 1e38 }, bf16 = { 1e5, 1e10, 3e19, 1e38 }, f16 = { 50, 300, 1e4 } }
  local MOST = { f32 = 1e38, bf16 = 1e38, f16 = 6e4 }
  local seeded = { dropout = true, alpha_dropout = true, uniform_fill = true, normal_fill = true,
    exponential_fill = true, bernoulli_fill = true, rrelu = true }

  -- y, dy/dx and d²y/dx² of one input, as f64; nil from where there are none
  local function derivatives(f, x)
    x = x:clone():requires_grad_()
    local ok, y = pcall(f, x)
    if not ok or not T.is_tensor(y) or not y.requires_grad or y:numel() ~= x:numel() then return {} end
    local out = { flat(y:detach()) }
    local g = T.grad_of(y:sum(), x, { create_graph = true })
    out[2] = flat(g:detach())
    if g.requires_grad then
      local h = T.grad_of(g:sum(), x, { allow_unused = true })
      out[3] = h and flat(h)
    end
    return out
  end

  it("values and two derivatives of ops of one tensor are numbers where those of f64 are", function()
    local count, wrong = 0, {}
    for _, info in ipairs(support.public()) do
      if support.cases[info.name] and info.differentiable and info.nin == 1 and not seeded[info.name] then
        local f = support.func(info.name)
        local forms = { f }
        if info.name == "gelu" then forms[2] = function(x) return f(x, { approximate = "tanh" }) end end
        for form, g in ipairs(forms) do
          for dtype, list in pairs(FAR) do
            local all = {}
            for _, v in ipairs(list) do all[#all + 1], all[#all + 2] = v, -v end
            local x = T.tensor(all, { dtype = dtype })
            local got, want = derivatives(g, x), derivatives(g, x:double())
            for order, values in ipairs(want) do
              for i, w in ipairs(values) do
                count = count + 1
                local v = got[order] and got[order][i]
                if v and v ~= v and math.abs(w) < MOST[dtype] and math.abs(want[1][i]) < MOST[dtype] then
                  wrong[#wrong + 1] = ("%s, form %d, %s: derivative %d at %g"):format(info.name, form, dtype, order - 1,
                    all[i])
                end
              end
            end
          end
        end
      end
    end
    assert.same({}, wrong)
    assert.is_true(count > 1000, count .. " compared")
  end)
end)
