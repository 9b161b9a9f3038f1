-- SPDX-License-Identifier: MIT
-- T.metrics against values of scikit-learn 1.7 on the same lists, and against formulas written out.

local T = require "perilune"
local metrics = T.metrics

local function ints(list) return T.tensor(list, { dtype = "i64" }) end
local function near(want, got, tolerance)
  assert.is_true(math.abs(want - got) <= (tolerance or 1e-12), ("wanted %.17g, got %.17g"):format(want, got))
end

local target, pred = { 1, 2, 3, 3, 2, 1, 1, 3, 2, 3 }, { 1, 3, 3, 3, 2, 2, 1, 1, 2, 3 }

-- Logits whose largest entry is in the column of each class.
local function logits_of(classes, count)
  local rows = {}
  for i, c in ipairs(classes) do
    rows[i] = {}
    for k = 1, count do rows[i][k] = (k == c and 2 or 0) - 0.1 * ((k * 7 + i) % 5) end
  end
  return T.tensor(rows)
end

describe("T.metrics", function()
  it("gives scikit-learn's precision, recall and F1", function()
    local p, t = ints(pred), ints(target)
    for _, name in ipairs { "precision", "recall", "f1" } do
      near(0.6944444444444443, metrics[name](p, t))
      near(0.7, metrics[name](p, t, { average = "micro" }))
      near(0.7, metrics[name](p, t, { average = "weighted" }))
      local each = metrics[name](logits_of(pred, 3), t, { average = "none" }):totable()
      near(2 / 3, each[1], 1e-6)
      near(3 / 4, each[3], 1e-6)
    end
    local q = ints { 1, 3, 3, 3, 2, 2, 1, 1, 2, 3, 1 }
    local u = ints { 1, 2, 3, 3, 2, 1, 1, 3, 2, 3, 4 }
    near(0.47916666666666663, metrics.precision(q, u))
    near(0.5208333333333333, metrics.recall(q, u))
    near(0.49702380952380953, metrics.f1(q, u))
    near(metrics.f1(q, u), metrics.f1(q, u, { classes = 9 })) -- classes that never occur do not count
  end)

  it("gives scikit-learn's figures of two classes", function()
    local y = T.tensor { 0, 1, 1, 0, 1, 0, 1, 1 }
    local s = T.tensor { .2, .7, .4, .5, .9, .5, .5, .1 }
    near(0.6, metrics.auc(s, y))
    near(0.6, metrics.precision(s, y, { threshold = 0.45 }))
    near(0.6, metrics.recall(s, y:ne(0), { threshold = 0.45 }))
    near(0.6, metrics.f1(s, y, { threshold = 0.45, average = "binary" }))
    near(0.5, metrics.accuracy(s, y, { threshold = 0.45 }))
    local logits = T.tensor { 0.3, -0.2, 2, -3, 0.1 }
    near(0.8, metrics.accuracy(logits, T.tensor { 1, 0, 1, 0, 0 }, { threshold = 0 }))
    near(0.8, metrics.accuracy(logits:sigmoid(), T.tensor { 1, 0, 1, 0, 0 }))
    near(0.8596491228070176, metrics.r2(T.tensor { 1.5, 2, 3, 0 }, T.tensor { 1, 2, 3.5, -1 }), 1e-12)
    near(0.5, metrics.mae(T.tensor { 1.5, 2, 3, 0 }, T.tensor { 1, 2, 3.5, -1 }))
    near(0.375, metrics.mse(T.tensor { 1.5, 2, 3, 0 }, T.tensor { 1, 2, 3.5, -1 }))
  end)

  it("counts pairs of classes", function()
    local counts = metrics.confusion_matrix(logits_of(pred, 3), ints(target))
    assert.same({ { 2, 1, 0 }, { 0, 2, 1 }, { 1, 0, 3 } }, counts:totable())
    local m = metrics.confusion_matrix { classes = 4 }
    for i = 1, #target do m:update(ints { pred[i] }, ints { target[i] }) end
    assert.same({ 2, 1, 0, 0 }, m:value():totable()[1])
    assert.same({ 0, 0, 0, 0 }, m:value():totable()[4])
    local b = metrics.confusion_matrix(T.tensor { .9, .1, .8 }, T.tensor { true, true, false })
    assert.same({ { 0, 1 }, { 1, 1 } }, b:totable())
  end)

  -- What scikit-learn says of pairs drawn at random (spec/fixtures/metrics.py), at once and in batches.
  it("gives scikit-learn's figures of random pairs, in one pass and in batches", function()
    local path = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/metrics.lua"
    local failed, n = {}, 0
    local function same(want, got)
      if type(want) == "table" then
        got = type(got) == "table" and got or got:totable()
        for i, w in ipairs(want) do if not same(w, got[i]) then return false end end
        return #want == #got
      end
      return want == got or want ~= want and got ~= got or math.abs(want - got) <= 1e-6 * math.max(1, math.abs(want))
    end
    for k, case in ipairs(dofile(path)) do
      local dtypes = { classes = "i64", booleans = "bool", numbers = "f64" }
      local p = T.tensor(case.pred, { dtype = dtypes[case.kind] or "f32" })
      local t = T.tensor(case.target, { dtype = case.target_dtype })
      local opts = next(case.opts) and case.opts or nil
      local once = metrics[case.name](p, t, opts)
      local m, first = metrics[case.name](opts), 1
      for _, last in ipairs(table.move({ #case.target }, 1, 1, #case.cuts + 1, case.cuts)) do
        m:update(p:narrow(1, first, last - first + 1), t:narrow(1, first, last - first + 1))
        first = last + 1
      end
      if not same(case.want, once) then failed[#failed + 1] = ("%d %s: %s"):format(k, case.name, tostring(once)) end
      if not same(case.want, m:value()) then failed[#failed + 1] = ("%d %s in batches"):format(k, case.name) end
      n = n + 1
    end
    assert.same({}, failed)
    assert.is_true(n >= 120)
  end)

  it("keeps what halves and large means have", function()
    T.manual_seed(5)
    local x, y = T.randn(4000, 20) * 5, T.randint(1, 20, { 4000 })
    for _, dtype in ipairs { "f16", "bf16" } do
      local half = x:to(dtype)
      near(1, metrics.perplexity(half, y) / metrics.perplexity(half:double(), y), 1e-5)
    end
    near(2, metrics.perplexity(T.zeros(4, 2), ints { 1, 2, -100, -100 }), 1e-5) -- what cross_entropy leaves out
  end)

  it("sums over batches what one call gives", function()
    T.manual_seed(3)
    local x, y = T.randn(64, 7), T.randint(1, 7, { 64 })
    local all = { accuracy = {}, top_k = { k = 3 }, f1 = { classes = 7 }, perplexity = {} }
    for name, opts in pairs(all) do
      local m = metrics[name](opts)
      for i = 0, 3 do m:update(x:narrow(1, 16 * i + 1, 16), y:narrow(1, 16 * i + 1, 16)) end
      near(metrics[name](x, y, opts), m:value(), 1e-5)
      local before = m:value()
      m:reset()
      m(x, y)
      near(before, m:value(), 1e-5)
    end
    local mean = metrics.mean()
    mean:update(T.tensor { 1, 2, 3 })
    mean:update(10, 2)
    near(26 / 5, mean:value())
  end)

  it("knows that more guesses are more often right", function()
    T.manual_seed(4)
    local x, y = T.randn(50, 6), T.randint(1, 6, { 50 })
    local last = metrics.accuracy(x, y)
    near(last, metrics.top_k(x, y, { k = 1 }))
    for k = 2, 6 do
      local now = metrics.top_k(x, y, { k = k })
      assert.is_true(now >= last)
      last = now
    end
    assert.equal(1.0, last)
  end)

  it("leaves out ignored targets and takes classes from another dimension", function()
    local x = logits_of({ 1, 2, 3, 1 }, 3)
    local y = ints { 1, -1, 3, -1 }
    assert.equal(1.0, metrics.accuracy(x, y, { ignore_index = -1 }))
    assert.error(function() metrics.accuracy(x, y) end) -- -1 is no class
    local ppl = metrics.perplexity(T.zeros(4, 3), y, { ignore_index = -1 })
    near(3, ppl, 1e-5)
    local text = x:view(2, 2, 3) -- [batch, time, class]
    assert.equal(1.0, metrics.accuracy(text, ints { { 1, 2 }, { 3, 1 } }, { dim = 3 }))
    assert.equal(1.0, metrics.accuracy(text:permute(1, 3, 2), ints { { 1, 2 }, { 3, 1 } }))
    assert.equal(1.0, metrics.top_k(text, ints { { 1, 2 }, { 3, 1 } }, { dim = 3, k = 1 }))
  end)

  it("has nothing to say of nothing", function()
    for _, name in ipairs { "accuracy", "top_k", "f1", "mean", "mse", "auc", "perplexity", "r2" } do
      local v = metrics[name]():value()
      assert.is_true(v ~= v, name)
    end
  end)

  it("records nothing", function()
    local x = T.randn(4, 3):requires_grad_()
    metrics.accuracy(x, ints { 1, 2, 3, 1 })
    metrics.perplexity(x, ints { 1, 2, 3, 1 })
    metrics.mse(x, x)
    assert.is_nil(x.grad)
  end)

  it("refuses what does not fit, at the caller's line", function()
    local wrong = {
      { metrics.accuracy, T.zeros(3, 4), ints { 1, 2 }, "predictions f32[3,4] do not fit targets i64[2]" },
      { metrics.f1, T.zeros(3, 4), "cat", "argument #2 must be a tensor, got \"cat\"" },
      { metrics.top_k, T.zeros(2, 3), ints { 1, 2 }, "k = 5, but f32[2,3] has 3 classes" },
      { metrics.confusion_matrix, ints { 1, 5 }, ints { 1, 2 }, "predicted class 5 is not in 1 … 2", { classes = 2 } },
      { metrics.confusion_matrix, ints { 1, 1 }, ints { 1, 0 }, "target class 0 is not in 1 … " },
      { metrics.accuracy, T.zeros(2, 3), ints { 0, 2 }, "target class 0 is not in 1 … 3; classes count from 1" },
      { metrics.accuracy, T.zeros(2, 3), ints { 1, 4 }, "target class 4 is not in 1 … 3" },
      { metrics.top_k, T.zeros(2, 3), ints { 0, 2 }, "target class 0 is not in 1 … 3", { k = 2 } },
      { metrics.top_k, T.zeros(2, 3, 4), ints { { 1, 2 }, { 2, 1 } }, "do not fit targets i64[2,2]", { k = 2 } },
      { metrics.accuracy, T.zeros(2, 2), T.tensor { true, false }, "boolean targets for logits of 2 classes" },
      { metrics.accuracy, T.zeros(2), ints { 1, 2 }, "must be booleans, or 0 and 1" },
      { metrics.f1, T.zeros(2), ints { 1, -1 }, "must be booleans, or 0 and 1" },
      { metrics.f1, ints { 1, 2 }, T.tensor { true, false }, "predictions i64[2] must be booleans, or 0 and 1" },
      { metrics.accuracy, T.tensor { 0.3, -2 }, ints { 1, 0 }, "are no probabilities from 0 to 1; of logits give" },
      { metrics.f1, T.tensor { 0.3, 1.5 }, T.tensor { true, false }, "are no probabilities from 0 to 1" },
      { metrics.auc, T.zeros(2), ints { 1, -1 }, "must be booleans, or 0 and 1" },
      { metrics.auc, T.tensor { 1, 0 / 0 }, ints { 1, 0 }, "NaN among the scores" },
      { metrics.accuracy, T.tensor { { 1, 0 / 0 } }, ints { 2 }, "NaN among the predictions" },
      { metrics.accuracy, T.tensor { 1, 0 / 0 }, ints { 1, 0 }, "NaN among the predictions" },
      { metrics.f1, T.tensor { 1, 0 / 0 }, ints { 1, 0 }, "NaN among the predictions", { ignore_index = 1 } },
      { metrics.top_k, T.tensor { { 1, 0 / 0 } }, ints { 2 }, "NaN among the predictions", { k = 1 } },
      { metrics.precision, ints { 1, 2 }, ints { 1, 2 }, "did you mean 'macro'?", { average = "marco" } },
      { metrics.auc, T.zeros(3), T.zeros(2), "differ in shape" },
      { metrics.accuracy, T.zeros(2), T.zeros(2), "did you mean 'threshold'?", { treshold = 1 } },
      { metrics.f1, T.zeros(3), ints { 1, 2, 3 }, "two classes, there are 3", { average = "binary", classes = 3 } },
    }
    for i, w in ipairs(wrong) do
      local ok, message = pcall(function() return (w[1](w[2], w[3], w[5])) end)
      if i < #wrong then
        assert.is_false(ok, w[4])
        assert.truthy(tostring(message):find(w[4], 1, true), message)
        assert.truthy(tostring(message):find("metrics_spec.lua:", 1, true), message)
      end
    end
    local row = T.tensor { { 1, 2 }, { 0 / 0, 0 } } -- where it does not count it may stand
    assert.equal(1, metrics.accuracy(row, ints { 2, 9 }, { ignore_index = 9 }))
    assert.equal(1, metrics.top_k(row, ints { 2, 9 }, { ignore_index = 9, k = 1 }))
    assert.error(function() metrics.accuracy(0.5) end)
    assert.error(function() metrics.mean():update("x") end)
    assert.error(function() metrics.mean():update(T.ones(2), 3) end)
  end)
end)
