-- SPDX-License-Identifier: MIT
-- Functions of nn.F: what the golden corpus and spec/nn/pytorch_spec.lua do not show. Gradients by difference
-- quotients, other spellings of arguments, refusals.

local T = require "perilune"
local gradcheck = require "spec.support.gradcheck"
local near = require "spec.support.near"
local nn = T.nn
local F = nn.F
local fails = near.fails

local f64 = { dtype = "f64" }

local function randn(...) return T.randn({ ... }, f64) end
local function far(a, b) return (a - b):abs():max():item() end
local function same(a, b, tol)
  assert.same(b:shape(), a:shape())
  local d = a:numel() > 0 and far(a:detach(), b:detach()) or 0
  assert(d <= (tol or 1e-10), ("differs by %g"):format(d))
end
local function check(f, ...) assert(gradcheck.check(T, f, { ... }, {})) end

before_each(function() T.manual_seed(11) end)

describe("einsum", function()
  it("is what its sums say", function()
    local a, b, c = randn(2, 3, 4), randn(4, 3), randn(2, 4)
    same(T.einsum("bij,ji->b", a, b), (a * b:t():unsqueeze(1)):sum { dim = { 2, 3 } })
    same(T.einsum("bij,jk,bj->ki", a, b, c),
      (a:unsqueeze(4) * b:view(1, 1, 4, 3) * c:view(2, 1, 4, 1)):sum { dim = { 1, 3 } }:t())
    same(T.einsum("ii->i", a:select(1, 1):narrow(2, 1, 3)), a:select(1, 1):narrow(2, 1, 3):diagonal())
    same(T.einsum("...j,jk", a, b), a:matmul(b))
    same(T.einsum("bij,bij", { a, a }), (a * a):sum())
    same(T.einsum("i,i,i->i", randn(3) * 0 + 2, randn(3) * 0 + 3, randn(3) * 0 + 4), T.full({ 3 }, 24.0, f64))
  end)
  -- Equations drawn at random: up to four operands, labels twice in one, dots, sizes of 1 that stand for any. The
  -- reference puts every label at a place of its own, multiplies all and sums what the result lacks.
  it("is a product of everything, summed", function()
    local random = require("spec.support.random").new(29)
    local function pick(n) return random:int(1, n) end
    local function without_repeats(x, labels)
      local seen = {}
      for i, l in ipairs(labels) do
        if seen[l] then
          local rest = { table.unpack(labels) }
          table.remove(rest, i)
          table.remove(rest, seen[l])
          rest[#rest + 1] = l
          return without_repeats(x:diagonal { dim1 = seen[l], dim2 = i }, rest)
        end
        seen[l] = i
      end
      return x, labels
    end
    local function reference(terms, xs, all, result)
      local product = T.ones({}, f64)
      for i, term in ipairs(terms) do
        local x, labels = without_repeats(xs[i], term)
        local order, shape = {}, {}
        for k, l in ipairs(all) do
          shape[k] = 1
          for d, own in ipairs(labels) do if own == l then order[#order + 1], shape[k] = d, x:size(d) end end
        end
        product = product * (#order > 0 and x:permute(order) or x):reshape(shape)
      end
      local order, gone = {}, {}
      for k, l in ipairs(all) do if not result[l] then gone[#gone + 1] = k end end
      if #gone > 0 then product = product:sum { dim = gone, keepdim = true } end
      for l, at in pairs(result) do for k, other in ipairs(all) do if other == l then order[at] = k end end end
      for _, k in ipairs(gone) do order[#order + 1] = k end
      local shape = {}
      local y = product:permute(order)
      for d = 1, y:dim() - #gone do shape[d] = y:size(d) end
      return y:reshape(shape)
    end
    for _ = 1, 150 do
      local letters, sizes, terms, xs, texts, all, known = { "a", "b", "c", "d" }, {}, {}, {}, {}, {}, {}
      for _, l in ipairs { "a", "b", "c", "d", 1, 2 } do sizes[l] = pick(3) end
      for i = 1, pick(4) do
        local term, text, shape, dots = {}, "", {}, pick(6) <= 2 and pick(3) - 1
        local here, own = pick(4), {}
        for k = 1, pick(4) do
          if dots and k == here then
            for l = 3 - dots, 2 do term[#term + 1] = l end
            text, dots = text .. "...", nil
          end
          term[#term + 1] = letters[pick(4)]
          text = text .. term[#term]
        end
        for k, l in ipairs(term) do
          own[l] = own[l] or (pick(8) == 1 and 1 or sizes[l])
          shape[k] = own[l]
          if not known[l] then
            known[l] = true
            all[#all + 1] = l
          end
        end
        terms[i], texts[i], xs[i] = term, text, T.randn(shape, f64)
      end
      local result, out, n = {}, "", 0
      if known[1] or known[2] then out = "..." end
      for _, l in ipairs { 1, 2 } do
        if known[l] then
          n = n + 1
          result[l] = n
        end
      end
      for _, l in ipairs(all) do
        if type(l) == "string" and pick(2) == 1 then
          n = n + 1
          result[l], out = n, out .. l
        end
      end
      local equation = table.concat(texts, ",") .. "->" .. out
      local ok, why = pcall(function() same(T.einsum(equation, xs), reference(terms, xs, all, result), 1e-9) end)
      assert(ok, equation .. ": " .. tostring(why))
    end
  end)
  it("sums integers in i64, also on the way to a product", function()
    local a, b = T.full({ 1, 2, 100 }, 2, { dtype = "i8" }), T.ones({ 3 }, { dtype = "i8" })
    local y = T.einsum("...ik,...j->ij", a, b)
    assert.equal("i64", y:dtype())
    near.near(y, { 200, 200, 200, 200, 200, 200 })
    near.near(T.einsum("ik->i", a[1]), { 200, 200 })
    assert.equal("i8", T.einsum("ik,jk->ij", a[1], a[1]):dtype()) -- a matrix product has its operands' dtype
  end)
  it("has exact gradients", function()
    check(function(x, y, z) return T.einsum("bij,jk,bk->i", x, y, z) end, randn(2, 3, 2), randn(2, 4), randn(2, 4))
    check(function(x, y) return T.tensordot(x, y, { { 3, 1 }, { 1, 2 } }) end, randn(2, 3, 4), randn(4, 2, 2))
  end)
  it("says what does not fit", function()
    fails("'i' has size 3 in operand 2, but 2 before", T.einsum, "ij,ik->jk", randn(2, 3), randn(3, 3))
    fails("is in no operand", T.einsum, "ij->ik", randn(2, 3))
    fails("has 2 operands, 1 tensors", T.einsum, "ij,jk->ik", randn(2, 3))
    fails("is not a letter", T.einsum, "i1->i", randn(2, 3))
    fails("differ in size", T.tensordot, randn(2, 3), randn(2, 3), 1)
  end)
end)

describe("distances and differences", function()
  it("many rows take the way through a product", function()
    local a, b = randn(40, 5), randn(30, 5)
    same(T.cdist(a, b), T.cdist(a, b, { compute_mode = "donot_use_mm_for_euclid_dist" }), 1e-9)
    check(function(x, y) return T.cdist(x, y) end, randn(26, 2), randn(2, 2))
    same(T.cdist(a, a):diagonal(), T.zeros({ 40 }, f64), 1e-6)
  end)
  it("counts differing entries for p = 0", function()
    local a, b = T.tensor({ { 1.0, 2, 3 } }), T.tensor({ { 1.0, 0, 4 }, { 1, 2, 3 } })
    assert.same({ { 2.0, 0.0 } }, T.cdist(a, b, { p = 0 }):totable())
  end)
  it("differences take pieces before and after", function()
    local x = T.tensor { 4, 1, 7 }
    assert.same({ 4.0, -3.0, 6.0, -7.0 }, x:diff({ prepend = T.tensor { 0 }, append = T.tensor { 0 } }):totable())
    assert.same({ 9.0 }, x:diff({ n = 2 }):totable())
    assert.same({ true, false }, T.tensor({ true, false, false }):diff():totable())
  end)
  it("tril_indices lists places from 1", function()
    assert.same({ { 1, 2, 2 }, { 1, 1, 2 } }, T.tril_indices(2, 2):totable())
    assert.same({ { 0, 0, 1 }, { 0, 1, 1 } }, T.triu_indices(2, 2, { index_base = 0 }):totable())
  end)
end)

it("deform_conv2d reads nothing of the pixels at the border where it looks outside", function()
  local x = T.full({ 1, 1, 2, 2 }, math.huge)
  local y = F.deform_conv2d(x, T.full({ 1, 2, 2, 2 }, -0.5), T.ones(1, 1, 1, 1))
  assert.is_true(y:eq(math.huge):all():item(), tostring(y))
end)

describe("embedding_bag", function()
  it("gives the gradient of a maximum to the first row that has it, in every way to take one", function()
    local ids = T.tensor({ { 1, 2, 3 }, { 3, 3, 2 } }, { dtype = "i64" })
    local w = T.tensor { { 1, 2 }, { 1, 5 }, { 0, 2 } }
    local function f(v) return F.embedding_bag(ids, v, { mode = "max" }) end
    local leaf = w:clone():requires_grad_()
    f(leaf):sum():backward()
    local jitted = w:clone():requires_grad_()
    T.jit(f)(jitted):sum():backward()
    local want = { { 1, 0 }, { 1, 2 }, { 0, 0 } } -- PyTorch's
    assert.same({ want, want, want }, { leaf.grad:totable(), jitted.grad:totable(),
      T.grad(function(v) return f(v):sum() end)(w):totable() })
    assert.same({ { 1, 4 }, { 3, 4 } },
      select(2, T.jvp(f, { w }, { T.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } } })):totable())
    assert.is_true(f(w):equal(T.no_grad(f, w)))
  end)

  it("is traced with a padding row and offsets, and bags of nothing else are 0", function()
    local ids, offsets = T.tensor({ 1, 2, 2, 3, 2 }, { dtype = "i64" }), T.tensor({ 1, 3, 3, 4 }, { dtype = "i64" })
    local want = { sum = { { 1 }, { 0 }, { 0 }, { -4 } }, mean = { { 1 }, { 0 }, { 0 }, { -4 } },
      max = { { 1 }, { 0 }, { 0 }, { -4 } } }
    for mode, y in pairs(want) do
      local w = T.tensor { { 1 }, { math.huge }, { -4 } }:requires_grad_()
      local f = function(v) return F.embedding_bag(ids, v, offsets, { mode = mode, padding_idx = 2 }) end
      for _, g in ipairs { f, T.jit(f) } do
        w.grad = nil
        local got = g(w)
        same(got:detach(), T.tensor(y))
        got:sum():backward()
        same(w.grad, T.tensor { { 1 }, { 0 }, { 1 } })
      end
    end
  end)
  it("gives the same whatever the default dtype is", function()
    local ids, starts = T.tensor({ 1, 2, 2, 3, 2 }, { dtype = "i64" }), T.tensor({ 1, 3, 3 }, { dtype = "i64" })
    local old, seen = T.default_dtype(), {}
    for _, default in ipairs { "f32", "f64", "bf16" } do
      T.set_default_dtype(default)
      local ok, why = pcall(function()
        for _, dtype in ipairs { "f32", "f64", "bf16" } do
          for _, mode in ipairs { "sum", "mean", "max" } do
            for _, padding in ipairs { false, 2 } do
              local w = T.tensor({ { 1.25 }, { 3 }, { -4 } }, { dtype = dtype }):requires_grad_()
              local y = F.embedding_bag(ids, w, starts, { mode = mode, padding_idx = padding or nil })
              y:sum():backward()
              local got, key = y:describe() .. y:detach():to_string() .. w.grad:to_string(),
                dtype .. mode .. tostring(padding)
              seen[key] = seen[key] or got
              assert.equal(seen[key], got, key .. " by default " .. default)
            end
          end
        end
      end)
      T.set_default_dtype(old)
      assert(ok, why)
    end
  end)
  it("ends the last bag at the last offset with include_last_offset", function()
    local ids = T.tensor({ 1, 2, 3, 4, 5 }, { dtype = "i64" })
    local w = T.tensor { { 1 }, { 10 }, { 100 }, { 1000 }, { 1e4 } }
    local function bag(offsets, mode)
      return F.embedding_bag(ids, w, T.tensor(offsets, { dtype = "i64" }), { mode = mode, include_last_offset = true })
    end
    for mode, y in pairs { sum = { { 11 }, { 100 } }, mean = { { 5.5 }, { 100 } }, max = { { 10 }, { 100 } } } do
      same(bag({ 1, 3, 4 }, mode), T.tensor(y))
    end
    same(bag({ 1, 3, 6 }, "sum"), T.tensor { { 11 }, { 11100 } })
    same(bag({ 1, 3, 3 }, "sum"), T.tensor { { 11 }, { 0 } })
    fails("offsets must not decrease, nor be behind the 5 ids", bag, { 1, 3, 8 })
    fails("offsets must not decrease, nor be behind the 5 ids", bag, { 1, 4, 3 })
  end)
  it("scales rows with max_norm, and gradients by how often an id is read, as embedding", function()
    local ids, w = T.tensor({ { 1, 2 }, { 1, 3 } }, { dtype = "i64" }), T.tensor { { 3, 4 }, { 0.3, 0.4 }, { 0, 2 } }
    local m = nn.EmbeddingBag(3, 2, { mode = "sum", max_norm = 1, scale_grad_by_freq = true })
    m:load_state_dict { weight = w }
    local y = m(ids)
    y:sum():backward()
    assert.is_true(T.allclose(m.weight:detach(), T.tensor { { 0.6, 0.8 }, { 0.3, 0.4 }, { 0, 1 } }))
    assert.is_true(T.allclose(y, T.tensor { { 0.9, 1.2 }, { 0.6, 1.8 } }))
    same(m.weight.grad, T.ones(3, 2))
    fails("scale_grad_by_freq goes with mode", nn.EmbeddingBag, 3, 2, { mode = "max", scale_grad_by_freq = true })
  end)
  it("takes a padding_idx from the end, as embedding", function()
    local w, ids = randn(3, 2), T.tensor({ { 1, 3 } }, { dtype = "i64" })
    for base = 0, 1 do
      local at = ids - 1 + base
      same(F.embedding_bag(at, w, { mode = "sum", padding_idx = -1, index_base = base }), w:narrow(1, 1, 1))
      same(F.embedding_bag(at, w, { mode = "sum", padding_idx = base, index_base = base }), w:narrow(1, 3, 1))
      fails("padding_idx -4 is no row", F.embedding_bag, at, w, { padding_idx = -4, index_base = base })
    end
  end)
end)

describe("a loss", function()
  it("counts classes from 1", function()
    local x = randn(3, 4)
    local one, zero = T.tensor({ 1, 4, 2 }, { dtype = "i64" }), T.tensor({ 0, 3, 1 }, { dtype = "i64" })
    same(F.multi_margin_loss(x, one), F.multi_margin_loss(x, zero, { index_base = 0 }))
    local labels = T.tensor({ { 2, 4, 0, 1 }, { 0, 1, 1, 1 }, { 1, 0, 0, 0 } }, { dtype = "i64" })
    same(F.multilabel_margin_loss(x, labels), F.multilabel_margin_loss(x, labels - 1, { index_base = 0 }))
  end)
  it("CTC takes targets in rows or in one list, and sets impossible ones aside", function()
    local lp = randn(6, 2, 4):log_softmax(-1)
    local rows = T.tensor({ { 2, 3, 2 }, { 4, 1, 1 } }, { dtype = "i64" })
    local list = T.tensor({ 2, 3, 2, 4 }, { dtype = "i64" })
    same(F.ctc_loss(lp, rows, { 6, 5 }, { 3, 1 }), F.ctc_loss(lp, list, { 6, 5 }, { 3, 1 }))
    same(F.ctc_loss(lp, rows, { 6, 5 }, { 3, 1 }), F.ctc_loss(lp, list - 1, { 6, 5 }, { 3, 1 }, { index_base = 0 }))
    local x = randn(6, 2, 4):requires_grad_()
    local y = F.ctc_loss(x:log_softmax(-1), rows, { 2, 5 }, { 3, 1 }, { reduction = "none", zero_infinity = true })
    assert.equal(0, y:get(1))
    y:sum():backward()
    assert.equal(0, x.grad:select(2, 1):abs():max():item())
    assert.is_true(x.grad:select(2, 2):abs():max():item() > 0)
    check(function(z) return F.ctc_loss(z:log_softmax(-1), rows, { 6, 5 }, { 3, 1 }, { reduction = "sum" }) end,
      randn(6, 2, 4))
    local lengths = { 3, 1 }
    local traced = T.jit(function(logs, targets) return F.ctc_loss(logs, targets, { 6, 5 }, lengths) end)
    same(F.ctc_loss(lp, rows, { 6, 5 }, { 3, 1 }), traced(lp, list))
    lengths = T.tensor(lengths, { dtype = "i64" })
    same(F.ctc_loss(lp, rows, { 6, 5 }, { 3, 1 }), traced(lp, rows)) -- no values are needed of rows
    fails("give a list of numbers, n:totable()", traced, lp, list)
    fails("is 5, classes are 1 to 4", F.ctc_loss, lp, rows + 1, { 6, 5 }, { 3, 1 })
    fails("is not between 0 and 6", F.ctc_loss, lp, rows, { 7, 5 }, { 3, 1 })
  end)
  it("CTC without an alignment is infinite and its gradient NaN, as PyTorch's", function()
    local x = randn(4, 2, 3):requires_grad_()
    local rows = T.tensor({ { 2, 2, 2 }, { 2, 3, 1 } }, { dtype = "i64" })
    local y = F.ctc_loss(x:log_softmax(-1), rows, { 4, 4 }, { 3, 2 }, { reduction = "none" })
    assert.equal(math.huge, y:get(1))
    y:sum():backward()
    assert.is_true(x.grad:select(2, 1):isnan():all():item())
    assert.is_true(x.grad:select(2, 2):isfinite():all():item())
  end)
  it("cosine_similarity below eps: value, slope and curvature are PyTorch's", function()
    for _, row in ipairs {
      { { 1e-12, 0 }, { 1, 2 }, 4.472135954999579e-05, { 44716887.4140408, 89442719.09999159 },
        { 3.577708763999663e-05, -1.7888543819998316e-05 }, { -1.7887649374920562e16, -1.341640787394301e16 } },
      { { 1e-9, 2e-9 }, { 3, 1 }, 0.158113883008419, { 87797261.9931859, 17480640.977952838 },
        { -0.015811388300841903, 0.04743416490252568 }, { -1.931583684723417e16, -1.0347402415383654e16 } },
      { { 0, 0 }, { 1, 2 }, 0, { 44721359.549995795, 89442719.09999159 }, { 0, 0 } },
      { { 1e-5, 2e-5 }, { 1e-5, -2e-5 }, -0.6, { 32000, -16000 }, { 32000, 16000 }, { -320000000, -640000000 } },
    } do
      local x, y = T.tensor(row[1], f64):requires_grad_(), T.tensor(row[2], f64):requires_grad_()
      local c = F.cosine_similarity(x, y, { dim = 1 })
      local g = T.grad_of(c, { x, y }, { create_graph = true })
      near.near(c, row[3], 1e-12)
      near.near(g[1], row[4], 1e-12)
      near.near(g[2], row[5], 1e-12)
      if row[6] then near.near(T.grad_of(g[1]:sum() + g[2]:sum(), { x })[1], row[6], 1e-11) end
    end
  end)
  it("poisson_nll_loss of no events has a gradient for them", function()
    local x, y = T.tensor({ 0.5, 1 }, f64), T.tensor({ 0, 4 }, f64):requires_grad_()
    F.poisson_nll_loss(x, y, { full = true, reduction = "sum" }):backward()
    near.near(y.grad, { -0.5, -1 + math.log(4) + 0.125 }, 1e-12)
  end)
  it("probabilities have no number to count from", function()
    local x, p = randn(3, 4), randn(3, 4):softmax(2)
    same(F.cross_entropy(x, p, { index_base = 0, reduction = "sum" }), F.cross_entropy(x, p, { reduction = "sum" }))
    same(nn.CrossEntropyLoss { index_base = 0 }(x, p), F.cross_entropy(x, p))
  end)
  it("modules pass all tensors on", function()
    local a, b, c = randn(3, 4), randn(3, 4), randn(3, 4)
    same(nn.TripletMarginLoss { margin = 0.5 }(a, b, c), F.triplet_margin_loss(a, b, c, { margin = 0.5 }))
    same(nn.GaussianNLLLoss { full = true }(a, b, c:abs()), F.gaussian_nll_loss(a, b, c:abs(), { full = true }))
    local y = T.tensor({ 1, -1, 1 }, f64)
    same(nn.CosineEmbeddingLoss()(a, b, y), F.cosine_embedding_loss(a, b, y))
  end)
end)

describe("images", function()
  it("fold is the adjoint of unfold", function()
    local o = { kernel_size = { 2, 3 }, stride = { 2, 1 }, padding = 1, dilation = { 1, 2 } }
    local x = randn(2, 3, 5, 6)
    local cols = F.unfold(x, o)
    local y = randn(table.unpack(cols:shape()))
    o.output_size = { 5, 6 }
    same((cols * y):sum(), (x * F.fold(y, o)):sum(), 1e-9)
    check(function(z) return F.fold(z, { output_size = 4, kernel_size = 2 }) end, randn(1, 4, 9))
    -- an infinity stays where it is
    local inf = T.zeros({ 1, 4, 4 }, f64)
    inf[{ 1, 1, 1 }] = math.huge
    assert.equal(1, F.fold(inf, { output_size = 3, kernel_size = 2 }):isinf():sum():item())
  end)
  it("sampling at the places of the pixels gives the picture", function()
    for _, align in ipairs { true, false } do
      local x = randn(2, 3, 4, 5)
      local eye = T.tensor({ { 1.0, 0, 0 }, { 0, 1, 0 } }, f64):unsqueeze(1):expand { 2, 2, 3 }
      local grid = F.affine_grid(eye, { 2, 3, 4, 5 }, { align_corners = align })
      for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
        same(F.grid_sample(x, grid, { mode = mode, align_corners = align }), x, 1e-10)
      end
      local v = randn(1, 2, 3, 4, 2)
      local eye3 = T.eye(4, f64):narrow(1, 1, 3):unsqueeze(1)
      same(F.grid_sample(v, F.affine_grid(eye3, v:shape(), { align_corners = align }), { align_corners = align }), v)
    end
  end)
  it("sampling has exact gradients, in volumes too", function()
    check(function(x, g) return F.grid_sample(x, g) end, randn(1, 2, 3, 4), randn(1, 2, 2, 2) * 0.4)
    check(function(x, g) return F.grid_sample(x, g, { padding_mode = "reflection" }) end, randn(1, 1, 3, 4, 2),
      randn(1, 2, 1, 2, 3) * 0.4)
  end)
  it("NaN places read zeros and nothing out of bounds", function()
    local grid = T.full({ 1, 1, 1, 2 }, 0 / 0)
    local y = F.grid_sample(T.ones(1, 1, 2, 2), grid)
    assert.equal(1, y:numel())
  end)
  it("interpolate by the nearest place takes PyTorch's, whose products are f32", function()
    -- {points, size, a position of the result from 0, the place it takes there}: in f64 it would be one less or more
    for _, c in ipairs { { 32, 122, 61, 15 }, { 119, 49, 21, 51 }, { 18, 111, 37, 5 }, { 62, 112, 56, 30 },
      { 30, 104, 52, 15 }, { 106, 38, 19, 53 }, { 98, 90, 45, 49 }, { 105, 25, 15, 62 }, { 126, 22, 11, 62 },
      { 86, 74, 37, 43 }, { 58, 54, 27, 28 }, { 26, 92, 46, 13 } } do
      for _, dtype in ipairs { "f32", "f64", "u8" } do
        local x = T.arange(0, c[1] - 1):to(dtype):view(1, 1, c[1])
        assert.equal(c[4], F.interpolate(x, { size = c[2] }):double():get(1, 1, c[3] + 1), table.concat(c, " "))
      end
    end
  end)

  it("resizing keeps constants, and areas keep means", function()
    for _, mode in ipairs { "nearest", "nearest-exact", "bilinear", "bicubic", "area" } do
      local y = F.interpolate(T.full({ 1, 2, 4, 6 }, 3.0, f64), { size = { 7, 5 }, mode = mode })
      same(y, T.full({ 1, 2, 7, 5 }, 3.0, f64), 1e-12)
    end
    local x = randn(1, 2, 4, 6)
    same(F.interpolate(x, { size = { 2, 3 }, mode = "area" }):mean(), x:mean(), 1e-12)
    fails("either size or scale_factor", F.interpolate, x, { mode = "bilinear" })
    fails("did you mean 'bilinear'", F.interpolate, x, { size = 3, mode = "bilinar" })
    fails("align_corners has no meaning", F.interpolate, x, { size = 3, align_corners = true })
  end)

  -- 1.3 of 3 points are 3: PyTorch leaves such a dimension alone, whatever the factor says, but for bicubic's 16 places
  it("leaves a dimension alone whose size stays", function()
    for n = 2, 6 do
      for _, factor in ipairs { 1, 1 + 0.4 / n, 1 + 0.9 / n } do
        for _, mode in ipairs { "bilinear", "bicubic" } do
          for _, smooth in ipairs { false, true } do
            for _, dtype in ipairs { "f64", "f32", "u8" } do
              local x = (T.rand(1, 2, n, 3) * 200):to(dtype)
              local o = { mode = mode, antialias = smooth }
              o.scale_factor = { factor, 2.0 }
              local y = F.interpolate(x, o)
              o.scale_factor = { 1, 2.0 }
              local stays = factor == 1 or smooth or mode == "bilinear" or dtype == "u8"
              assert.equal(stays, y:equal(F.interpolate(x, o)), ("%d x %g, %s, %s"):format(n, factor, mode, dtype))
            end
          end
        end
      end
    end
    local x = T.tensor { { { 1, 2, 7 } } }
    assert.same({ 1, 2, 7 }, F.interpolate(x, { scale_factor = 1.3, mode = "linear" }):flatten():totable())
  end)
  -- Rounded to f32, but for pictures whose size stays or doubles, be the factor 1.05 or 2.04.
  it("the nearest pixels are PyTorch's", function()
    for _, rank in ipairs { 3, 4, 5 } do
      for n = 1, 9 do
        for _, factor in ipairs { 0.5, 0.7, 1, 1.05, 1.3, 2, 2.04, 2.2, 3.1, 1 / 3 } do
          local out, want, slope = (n * factor) // 1 | 0, {}, {}
          if out >= 1 then
            for i = 1, n do slope[i] = 0 end
            for i = 0, out - 1 do
              local f32 = string.unpack("<f", string.pack("<f", i * string.unpack("<f", string.pack("<f", 1 / factor))))
              local at = rank == 4 and (out == n and i or out == 2 * n and i // 2) or math.min(f32 // 1 | 0, n - 1)
              want[i + 1], slope[at + 1] = at + 1, slope[at + 1] + 1
            end
            local shape, factors = { 1, 1, 1, 1, 1 }, { 1, 1, 1 }
            shape[rank], factors[rank - 2] = n, factor
            shape, factors = { table.unpack(shape, 1, rank) }, { table.unpack(factors, 1, rank - 2) }
            local x = T.arange(1, n, f64):view(shape):requires_grad_()
            local y = F.interpolate(x, { scale_factor = factors })
            local text = ("%d-d, %d by %g"):format(rank - 2, n, factor)
            assert.same(want, y:detach():flatten():totable(), text)
            assert.same(slope, T.grad_of(y:sum(), x):flatten():totable(), text)
          end
        end
      end
    end
  end)
  it("pooling by an infinite power takes the largest or least magnitude", function()
    local x = randn(2, 2, 6)
    for _, ceil in ipairs { false, true } do
      local o = { stride = 2, ceil_mode = ceil }
      same(F.lp_pool1d(x, math.huge, 3, o), (T.max_pool1d(x:abs(), 3, o)), 0)
      same(F.lp_pool1d(x, -math.huge, 3, o), -T.max_pool1d(-x:abs(), 3, o), 0)
    end
    fails("takes no padding", F.lp_pool1d, x, -math.huge, 3, { padding = 1 })
  end)
  it("a transposed convolution takes the size it should have", function()
    local up = nn.ConvTranspose2d(2, 3, 3, { stride = 2, padding = 1 })
    assert.same({ 1, 3, 8, 7 }, up(T.randn(1, 2, 4, 4), { output_size = { 8, 7 } }):shape())
    fails("output_size 9 is not one of 7 to 8", function() up(T.randn(1, 2, 4, 4), { output_size = { 9, 7 } }) end)
  end)
  it("instance norm in evaluation uses running statistics", function()
    local m = nn.InstanceNorm1d(2, { track_running_stats = true, momentum = 1.0, dtype = "f64" })
    local x = randn(3, 2, 5)
    m(x)
    same(m.running_mean, x:mean(3):mean(1), 1e-12)
    same(m.running_var, x:var(3):mean(1), 1e-12)
    m:eval()
    same(m(x), (x - m.running_mean:view(1, 2, 1)) / (m.running_var:view(1, 2, 1) + 1e-5):sqrt(), 1e-10)
  end)
end)

describe("forms that PyTorch has", function()
  it("gaussian_nll_loss takes a number as variance", function()
    local x, y = T.randn(3, 4), T.randn(3, 4)
    local want = T.nn.F.gaussian_nll_loss(x, y, T.full({ 3, 4 }, 0.3), { reduction = "none" })
    assert.is_true(T.allclose(T.nn.F.gaussian_nll_loss(x, y, 0.3, { reduction = "none" }), want))
    assert.is_true(T.allclose(T.nn.GaussianNLLLoss()(x, y, 0.3), want:mean()))
  end)

  it("ConvTranspose takes padding_mode zeros, and no other", function()
    assert.same({ 1, 1, 3, 3 }, T.nn.ConvTranspose2d(1, 1, 2, { padding_mode = "zeros" })(T.ones(1, 1, 2, 2)):shape())
    assert.is_false(pcall(T.nn.ConvTranspose2d, 1, 1, 2, { padding_mode = "reflect" }))
  end)

  it("losses have the tensors they were given in their state, and take them from another's", function()
    local x, n = T.randn(4, 3), 0
    local y = T.tensor({ 1, 3, 2, 2 }, { dtype = "i64" })
    local targets = { CrossEntropyLoss = y, NLLLoss = y, MultiMarginLoss = y }
    for _, row in ipairs { { "CrossEntropyLoss", "weight" }, { "NLLLoss", "weight" }, { "BCELoss", "weight" },
      { "BCEWithLogitsLoss", "weight" }, { "BCEWithLogitsLoss", "pos_weight" }, { "MultiMarginLoss", "weight" },
      { "MultiLabelSoftMarginLoss", "weight" } } do
      local name, key = row[1], row[2]
      local a, b = nn[name] { [key] = T.tensor { 1, 2, 3 } }, nn[name] { [key] = T.ones(3) }
      local state = a:state_dict()
      assert.same({ 1, 2, 3 }, state[key]:totable())
      local target = targets[name] or T.rand(4, 3)
      local input = name == "BCELoss" and x:sigmoid() or x
      local want = a(input, target)
      assert.is_false(want:equal(b(input, target)))
      b:load_state_dict(state)
      assert.is_true(want:equal(b(input, target)))
      assert.is_true(want:equal(a:clone()(input, target)))
      if target:is_floating_point() then target = target:double() end
      assert.equal("f64", a:to("f64")(input:double(), target):dtype())
      n = n + 1
    end
    assert.equal(7, n)
    assert.same({}, nn.CrossEntropyLoss():state_dict())
  end)

  it("pdist can be traced", function()
    local x = T.randn(4, 3)
    assert.is_true(T.allclose(T.jit(function(v) return T.pdist(v) end)(x), T.pdist(x)))
  end)
end)

describe("linear_cross_entropy", function()
  local function made()
    T.manual_seed(5)
    return T.randn({ 9, 4 }, { dtype = "f64" }):requires_grad_(), T.randn({ 6, 4 }, { dtype = "f64" }):requires_grad_(),
      T.randint(1, 6, { 9 }), T.randn({ 6 }, { dtype = "f64" }):requires_grad_()
  end

  it("has the composition's gradients, of second order, too, and inside functions", function()
    local x, w, y, b = made()
    local function whole(v, u, c) return F.cross_entropy(F.linear(v, u, c), y) end
    local function parts(v, u, c) return F.linear_cross_entropy(v, u, y, { linear_bias = c, chunk = 2 }) end
    local function near_all(a, e)
      for i = 1, 3 do assert.is_true(T.allclose(a[i], e[i], { rtol = 1e-10, atol = 1e-12 })) end
    end
    local want = T.grad_of(whole(x, w, b), { x, w, b })
    for _, f in ipairs { parts, T.jit(parts) } do near_all(T.grad_of(f(x, w, b), { x, w, b }), want) end
    local function second(f)
      local gx, gw = table.unpack(T.grad_of(f(x, w, b), { x, w }, { create_graph = true }))
      return T.grad_of((gx * gx):sum() + (gw * gw):sum(), { x, w, b })
    end
    near_all(second(parts), second(whole))
    local tangent = T.randn({ 9, 4 }, { dtype = "f64" })
    local function of(f) return function(v) return f(v, w:detach(), b:detach()) end end
    local _, da = T.jvp(of(whole), x:detach(), tangent)
    local _, db = T.jvp(of(parts), x:detach(), tangent)
    assert.is_true(T.allclose(da, db, { rtol = 1e-10, atol = 1e-12 }))
  end)

  it("is the composition's number in every dtype, whatever is asked for and however many rows", function()
    T.manual_seed(6)
    local n, c = 9000, 50 -- losses of some 20 each: their sum is more than f16 has
    local x, w, y, k = T.randn(n, 8), T.randn(c, 8) * 3, T.randint(1, c, { n }), T.rand(c)
    for _, dtype in ipairs { "f16", "bf16", "f32", "f64" } do
      local a, b, classes = x:to(dtype), w:to(dtype):requires_grad_(), k:to(dtype)
      for _, chunk in ipairs { 64, 1000, n } do
        for _, o in ipairs { {}, { weight = classes }, { label_smoothing = 0.1 }, { ignore_index = 3 },
          { weight = classes, ignore_index = 3, label_smoothing = 0.1 }, { reduction = "sum" },
          { reduction = "none" } } do
          local want = F.cross_entropy(F.linear(a, b), y, o)
          o.chunk = chunk
          local got = F.linear_cross_entropy(a, b, y, o)
          assert.equal(want:dtype(), got:dtype())
          local near_enough = { rtol = dtype == "bf16" and 8e-3 or dtype == "f16" and 1e-3 or 1e-5, atol = 1e-5 }
          assert.is_true(T.allclose(got, want, near_enough), ("%s %d: %s, %s"):format(dtype, chunk, got, want))
        end
      end
    end
  end)

  it("takes the classes' weights as constants, as the composition does", function()
    local x, w, y, b = made()
    local k = T.rand(6):to("f64"):requires_grad_()
    for _, reduction in ipairs { "mean", "sum", "none" } do
      for _, chunk in ipairs { 2, 9 } do
        local o = { weight = k, reduction = reduction, chunk = chunk }
        local got = F.linear_cross_entropy(x:detach(), w:detach(), y, o)
        o.chunk = nil
        assert.equal(F.cross_entropy(F.linear(x:detach(), w:detach()), y, o).requires_grad, got.requires_grad)
        assert.is_false(got.requires_grad)
        assert.is_true(F.linear_cross_entropy(x, w, y, { weight = k, linear_bias = b, chunk = chunk }).requires_grad)
      end
    end
  end)

  it("never has all outputs", function()
    local n, k, c = 2048, 16, 20000 -- outputs: 164 MB
    local x, w, y = T.randn(n, k):requires_grad_(), T.randn(c, k), T.randint(1, c, { n })
    collectgarbage()
    collectgarbage()
    T.reset_peak_memory()
    local before = T.memory().live
    F.linear_cross_entropy(x, w, y):backward()
    assert.is_true(T.memory().peak - before < 40e6, T.memory().peak - before)
  end)

  it("refuses what does not fit", function()
    local x, w = T.randn(3, 4), T.randn(5, 4)
    near.fails("target must be class numbers [3]", function() F.linear_cross_entropy(x, w, T.arange(2)) end)
    near.fails("target must be class numbers [3]", function() F.linear_cross_entropy(x, w, T.rand(3)) end)
    near.fails("x [*, K] with linear_weight [C, K]", function() F.linear_cross_entropy(x, w:t(), T.arange(3)) end)
    near.fails("chunk", function() F.linear_cross_entropy(x, w, T.arange(3), { chunk = 0 }) end)
    near.fails("linear_cross_entropy", function() F.linear_cross_entropy(x, w, T.arange(4, 6)) end)
  end)
end)

describe("regions without samples", function()
  it("are 0 with a gradient of zeros, also beside infinities", function()
    local x = T.tensor({ math.huge, 1, 2, 3 }):view(1, 1, 2, 2)
    for _, boxes in ipairs { T.zeros(0, 5), T.tensor { { 0, 1, 1, 1, 1 } }, T.tensor { { 0, 9, 9, 9, 9 } } } do
      for _, ratio in ipairs { -1, 2 } do
        for _, mode in ipairs { "mean", "max" } do
          for name, f in pairs { aligned = true, plain = false, pool = "pool" } do
            local image = x:clone():requires_grad_()
            local o = f ~= "pool" and { aligned = f, sampling_ratio = ratio, mode = mode, index_base = 0 }
              or { index_base = 0 }
            local y = (f == "pool" and T.nn.F.roi_pool or T.nn.F.roi_align)(image, boxes, 2, o)
            local what = name .. ": " .. tostring(y)
            assert(y.requires_grad, what)
            y:sum():backward()
            local outside = boxes:size(1) == 0 or boxes:narrow(2, 2, 1):item() == 9
            local empty = outside or name == "aligned" and ratio < 1
            if empty then
              assert(y:abs():sum():item() == 0 and image.grad:abs():sum():item() == 0, what)
            end
          end
        end
      end
    end
    assert.same({ 0 }, T.tensor({ { math.huge } }):trapezoid():totable())
  end)
end)
