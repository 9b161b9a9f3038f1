-- SPDX-License-Identifier: MIT
-- optim.compat against the classes that compute the same, and averaged models.

local T = require "perilune"
local nn, optim = T.nn, T.optim
local near = require "spec.support.near"
local eq, fails = near.near, near.fails
local compat = optim.compat

local scale = { 1, 3, 0.5, 2 }
local function start() return T.tensor({ 1.0, -2.0, 0.5, 3.0 }, { dtype = "f64" }) end
local function value(x)
  local a = T.tensor(scale, { dtype = "f64" })
  return ((x * a) ^ 2):sum() + x:sin():sum()
end
local function opfunc(x)
  local leaf = x:detach():clone():requires_grad_()
  local loss = value(leaf)
  return loss:item(), T.grad_of(loss, leaf)
end

-- x after n steps of a method, and of a class.
local function run(name, config, n, own_state)
  local x, state = start(), own_state and {} or nil
  local fx
  for _ = 1, n do
    local y
    y, fx = compat[name](opfunc, x, config, state)
    assert.equal(x, y)
  end
  return x, fx
end
local function class(C, opts, n)
  local p = nn.Parameter(start())
  local opt = C({ p }, opts)
  for _ = 1, n do
    opt:zero_grad()
    value(p):backward()
    opt:step()
  end
  return p:detach()
end

describe("optim.compat", function()
  local same = {
    { "sgd", { learningRate = 0.01 }, optim.SGD, { lr = 0.01 } },
    { "sgd", { learningRate = 0.01, weightDecay = 0.1 }, optim.SGD, { lr = 0.01, weight_decay = 0.1 } },
    { "sgd", { learningRate = 0.01, momentum = 0.9 }, optim.SGD, { lr = 0.01, momentum = 0.9, dampening = 0.9 } },
    { "sgd", { learningRate = 0.01, momentum = 0.9, dampening = 0, nesterov = true }, optim.SGD,
      { lr = 0.01, momentum = 0.9, nesterov = true } },
    { "adagrad", { learningRate = 0.3, learningRateDecay = 0.1 }, optim.Adagrad, { lr = 0.3, lr_decay = 0.1 } },
    { "adadelta", { rho = 0.8 }, optim.Adadelta, { lr = 1.0, rho = 0.8 } },
    { "rmsprop", { learningRate = 0.02 }, optim.RMSprop, { lr = 0.02 } },
    { "adamax", { learningRate = 0.05, epsilon = 1e-8 }, optim.Adamax, { lr = 0.05 } },
    { "rprop", { stepsize = 0.01 }, optim.Rprop, { lr = 0.01 } },
    { "adam", { learningRate = 0.05, epsilon = 1e-30 }, optim.Adam, { lr = 0.05, eps = 1e-30 } },
  }
  for k, case in ipairs(same) do
    it(case[1] .. " takes the steps of the class, settings " .. k, function()
      eq((run(case[1], case[2], 12, true)), class(case[3], case[4], 12), 1e-9)
    end)
  end

  it("adam adds epsilon before it corrects the bias, as torch7 does", function()
    local x, g = run("adam", { learningRate = 0.1, epsilon = 0.01 }, 1, true), select(2, opfunc(start()))
    local m, v = g * 0.1, g * g * 0.001
    eq(x, start() - m / (v:sqrt() + 0.01) * (0.1 * math.sqrt(0.001) / 0.1), 1e-12)
  end)

  it("nag looks ahead, asgd averages", function()
    local x = run("nag", { learningRate = 0.01, momentum = 0.5 }, 2, true)
    local g1 = select(2, opfunc(start()))
    local a = start() - g1 * 0.01
    local ahead = a - g1 * 0.005
    eq(x, ahead - select(2, opfunc(ahead)) * 0.01, 1e-12)
    local y, state = start(), {}
    local mean = T.zeros_like(y)
    for k = 1, 5 do
      local _, _, average = compat.asgd(opfunc, y, { eta0 = 0.01, lambda = 0, alpha = 0, t0 = 0 }, state)
      mean = mean + (y - mean) / math.max(1, k - 1) -- the first two count as one
      eq(average, k == 1 and y or mean, 1e-12)
    end
  end)

  it("sgd slows down with learningRateDecay and takes rates by element", function()
    local x = start()
    compat.sgd(opfunc, x, { learningRate = 1.0, learningRates = T.tensor({ 0, 0, 0, 0.01 }, { dtype = "f64" }) })
    local g = select(2, opfunc(start()))
    eq(x - start(), { 0, 0, 0, -0.01 * g:get(4) }, 1e-12)
    local y = run("sgd", { learningRate = 0.01, learningRateDecay = 1.0 }, 2, true)
    local a = start() - g * 0.01
    eq(y, a - select(2, opfunc(a)) * 0.005, 1e-12)
  end)

  it("lbfgs reaches the minimum", function()
    for _, config in ipairs { { maxIter = 100 }, { maxIter = 60, lineSearch = true } } do
      local x, fx = run("lbfgs", config, 1, true)
      assert.is_true(select(2, opfunc(x)):abs():max():item() < 1e-4)
      assert.is_true(#fx > 3 and fx[#fx] < fx[1])
    end
  end)

  -- torch7's rules, written out once more for a quadratic without a line search.
  local function plain_lbfgs(f, x, c)
    local dirs, steps, rho, size, evals = {}, {}, {}, 1, 1
    local fx, g = f(x)
    local d, t, last_g
    local hist = { fx }
    if g:abs():sum():item() <= c.tolFun then return x, hist, evals end
    for n = 1, c.maxIter do
      if n == 1 then
        d = -g
      else
        local y, s = g - last_g, d * t
        local ys = y:dot(s):item()
        if ys > 1e-10 then
          dirs[#dirs + 1], steps[#steps + 1], rho[#rho + 1] = y, s, 1 / ys
          size = ys / y:dot(y):item()
        end
        local q, a = -g, {}
        for i = #dirs, 1, -1 do
          a[i] = steps[i]:dot(q):item() * rho[i]
          q = q - dirs[i] * a[i]
        end
        q = q * size
        for i = 1, #dirs do q = q + steps[i] * (a[i] - dirs[i]:dot(q):item() * rho[i]) end
        d = q
      end
      last_g = g:clone()
      local last_f, slope = fx, g:dot(d):item()
      if slope > -c.tolX then break end
      t = n == 1 and math.min(1, 1 / g:abs():sum():item()) * c.learningRate or c.learningRate
      x:add_(d * t)
      if n ~= c.maxIter then
        fx, g = f(x)
        evals = evals + 1
        hist[#hist + 1] = fx
      end
      if n == c.maxIter or evals >= c.maxEval or g:abs():sum():item() <= c.tolFun
        or (d * t):abs():sum():item() <= c.tolX or math.abs(fx - last_f) < c.tolX then
        break
      end
    end
    return x, hist, evals
  end

  it("lbfgs stops where sums are small, as torch7 does", function()
    local curve = T.arange(1, 200):to("f64")
    local function f(x) return (curve * x * x):sum():item() / 2, curve * x end
    for _, c in ipairs { { tolFun = 1e-2, tolX = 1e-9 }, { tolFun = 1e-12, tolX = 1e-2 }, { tolFun = 1e-3, tolX = 1e-9,
      maxEval = 7.5 }, { tolFun = 1e9, tolX = 1 }, { tolFun = 1e-9, tolX = 1e-9, maxIter = 3 } } do
      c.learningRate, c.maxIter = 1, c.maxIter or 60
      c.maxEval = c.maxEval or c.maxIter * 1.25
      local x, y = T.ones(200, { dtype = "f64" }), T.ones(200, { dtype = "f64" })
      local _, want, n = plain_lbfgs(f, x, c)
      local _, got, m = compat.lbfgs(f, y, c, {})
      assert.equal(n, m)
      assert.equal(#want, #got)
      eq(y, x, 1e-9)
    end
  end)

  it("lbfgs takes a line search, and settings and x anew with each call", function()
    local seen = {}
    local function halving(f, x, t, d, fx, g, slope, o)
      seen[#seen + 1] = o
      assert.is_true(slope < 0 and T.is_tensor(g))
      local from, n = x:clone(), 0
      repeat
        x:copy_(from + d * t)
        local f1, g1 = f(x)
        n = n + 1
        if f1 <= fx + 1e-4 * t * slope then return f1, g1, x, t, n end
        t = t / 2
      until n == 50
    end
    local options = { tries = 50 }
    local x, fx, n = compat.lbfgs(opfunc, start(), { maxIter = 60, maxEval = 500, lineSearch = halving,
      lineSearchOptions = options })
    assert.is_true(select(2, opfunc(x)):abs():max():item() < 1e-3)
    assert.equal(options, seen[1])
    assert.equal(#seen + 1, #fx)
    assert.is_true(n >= #fx)
    fails("lineSearch must return f, g, x, t", compat.lbfgs, opfunc, start(), { lineSearch = function() return 1 end })
    fails("lineSearch must be a boolean or a function", compat.lbfgs, opfunc, start(), { lineSearch = "wolfe" })
    local state = {}
    compat.lbfgs(opfunc, start(), { maxIter = 2 }, state)
    local other = start() + 1
    local before = other:clone()
    local _, hist = compat.lbfgs(opfunc, other, { maxIter = 1 }, state)
    assert.equal(1, #hist)
    assert.is_false(other:equal(before))
  end)

  it("keeps its memory in config where no state is given", function()
    eq((run("adam", { learningRate = 0.05 }, 5)), run("adam", { learningRate = 0.05 }, 5, true), 0)
    eq((run("sgd", { learningRate = 0.01, momentum = 0.9 }, 5)),
      run("sgd", { learningRate = 0.01, momentum = 0.9 }, 5, true), 0)
  end)

  it("refuses what is wrong", function()
    fails("optim.compat.sgd: unknown option 'learningrate'", compat.sgd, opfunc, start(), { learningrate = 1 })
    fails("learningRate must be a number", compat.adam, opfunc, start(), { learningRate = "x" })
    fails("x must be a floating tensor", compat.adam, opfunc, 3)
    fails("opfunc must be a function", compat.rprop, 3, start())
    fails("must return f(x) and a gradient", compat.sgd, function() return 1 end, start())
  end)
end)

describe("averaged models", function()
  local function net() return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) end

  it("average weights and copy buffers", function()
    local m = net()
    local average = optim.swa_utils.AveragedModel(m)
    local sum = T.zeros(2, 2)
    for k = 1, 4 do
      T.no_grad(function()
        m[1].weight:normal_()
        m[2].running_mean:fill_(k)
      end)
      sum = sum + m[1].weight:detach()
      average:update_parameters(m)
      eq(average.module[1].weight:detach(), (sum / k):reshape(-1):totable(), 1e-6)
    end
    eq(average.module[2].running_mean, { 4, 4 })
    assert.equal(4, average.n_averaged:item())
    assert.same({ 3, 2 }, average(T.ones(3, 2)):shape())
    local names = {}
    for name in pairs(average:state_dict()) do names[name] = true end
    assert.is_true(names.n_averaged and names["module.1.weight"] and names["module.2.running_var"])
  end)

  it("take another mean, buffers too", function()
    local m = net()
    local average = optim.swa_utils.AveragedModel(m, { avg_fn = optim.swa_utils.get_ema_avg_fn(0.5),
      use_buffers = true })
    for k = 1, 3 do
      T.no_grad(function()
        m[1].bias:fill_(k)
        m[2].running_mean:fill_(2 * k)
      end)
      average:update_parameters(m)
    end
    eq(average.module[1].bias:detach(), { 2.25, 2.25 })
    eq(average.module[2].running_mean, { 4.5, 4.5 })
    fails("a module", optim.swa_utils.AveragedModel, 3)
  end)

  it("get their running statistics by one pass", function()
    local m = nn.Sequential(nn.BatchNorm1d(2))
    m:eval()
    local batches = { T.tensor { { 1, 2 }, { 3, 4 } }, T.tensor { { 5, 6 }, { 7, 8 } } }
    local k = 0
    optim.swa_utils.update_bn(function()
      k = k + 1
      return batches[k]
    end, m)
    eq(m[1].running_mean, { 4, 5 })
    eq(m[1].running_var, { 2, 2 })
    assert.equal(0.1, m[1].momentum)
    assert.is_false(m.training)
    optim.swa_utils.update_bn({ batches[2], { batches[1], T.ones(2) }, batches[2] }, m) -- a list of batches
    eq(m[1].running_mean, { 14 / 3, 17 / 3 }, 1e-6)
    fails("batch 2 must be a tensor", optim.swa_utils.update_bn, { batches[1], 3 }, m)
    fails("a list of batches is wanted, got a tensor", optim.swa_utils.update_bn, batches[1], m)
    assert.equal(0.1, m[1].momentum)
  end)
end)

describe("methods that search on their own", function()
  local f64 = { dtype = "f64" }
  local function rosenbrock(x)
    local v = x:detach():requires_grad_()
    local f = 100 * (v[2] - v[1] * v[1]) ^ 2 + (1 - v[1]) ^ 2
    f:backward()
    return f:item(), v.grad
  end
  before_each(function() T.manual_seed(3) end)

  it("cg follows a bent valley, counts its evaluations and never goes up", function()
    local x, calls = T.tensor({ -1.2, 1 }, f64), 0
    local same, fx, evals = compat.cg(function(v)
      calls = calls + 1
      return rosenbrock(v)
    end, x, { maxIter = 200, maxEval = 1000 })
    assert.equal(x, same)
    assert.equal(calls, evals)
    assert.is_true((x - 1):abs():max():item() < 1e-6)
    for k = 2, #fx do assert.is_true(fx[k] < fx[k - 1]) end
    local y = T.tensor({ -1.2, 1 }, f64)
    local _, _, few = compat.cg(rosenbrock, y, { maxIter = 100, maxEval = 7 })
    assert.is_true(few <= 7)
  end)
  it("cg stays where the slope is zero, and comes back from where f is not finite", function()
    local x = T.ones(3)
    assert.equal(1, #select(2, compat.cg(function(v) return 0, v * 0 end, x)))
    local y = T.tensor({ 2.0 }, f64)
    compat.cg(function(v) -- -log is NaN below 0
      local t = v:item()
      return t > 0 and t - math.log(t) or 0 / 0, T.tensor({ t > 0 and 1 - 1 / t or 0 / 0 }, f64)
    end, y, { maxIter = 50, maxEval = 200 })
    assert.is_true(math.abs(y:item() - 1) < 1e-5)
  end)
  it("cmaes needs no gradient and keeps the best point", function()
    local x = T.tensor({ -1.2, 1 }, f64)
    local _, fx = compat.cmaes(function(v) return (rosenbrock(v)) end, x, { ftarget = 1e-10 })
    assert.is_true(fx[#fx] <= 1e-10 and (x - 1):abs():max():item() < 1e-3)
    assert.equal((rosenbrock(x)), fx[#fx])
    local y = T.zeros(2, 3)
    local _, list, evals = compat.cmaes(function(v) return (v - 1):square():sum() end, y, { maxEval = 40, popsize = 8 })
    assert.equal(40, evals)
    assert.equal(5, #list)
    assert.same({ 2, 3 }, y:shape())
  end)
  it("fista finds the minimum of a quadratic with an absolute value beside it", function()
    local A = T.randn({ 20, 8 }, f64)
    local b = A:matmul(T.tensor({ 1, 0, 0, -2, 0, 0, 0, 3 }, f64))
    local function f(v)
      local r = A:matmul(v) - b
      return 0.5 * (r * r):sum():item(), A:t():matmul(r)
    end
    local x = T.zeros({ 8 }, f64)
    local _, hist = compat.fista(f, function(v) return 0.1 * v:abs():sum():item() end,
      function(v, L) return T.nn.F.softshrink(v, 0.1 / L) end, x, { maxiter = 500, errthres = 1e-13 })
    assert.is_true(hist[#hist].F < hist[1].F)
    -- the conditions of a minimum: |slope| <= 0.1, and = 0.1 against the sign where x is not 0
    local _, slope = f(x)
    for i = 1, 8 do
      local v, d = x:get(i), slope:get(i)
      assert.is_true(v == 0 and math.abs(d) <= 0.1 + 1e-6 or math.abs(d + 0.1 * (v > 0 and 1 or -1)) < 1e-5)
    end
    assert.has_error(function() compat.fista(f, f, nil, x) end)
    assert.has_error(function() compat.fista(f, f, f, x, { Lstep = 1 }) end)
  end)
  it("x is back from a point that was only tried where opfunc fails", function()
    for _, name in ipairs { "nag", "cg", "cmaes" } do
      local x, state, calls, last = T.tensor({ 1, -2 }, { dtype = "f64" }), {}, 0, math.huge
      local function f(v)
        calls = calls + 1
        if calls > last then error("broken", 0) end
        return ((v - 3) ^ 4):sum():item(), 4 * (v - 3) ^ 3
      end
      local o = name == "cmaes" and { maxEval = 30 } or {}
      for _ = 1, 2 do compat[name](f, x, o, state) end
      local before = x:totable()
      calls, last = 0, name == "nag" and 0 or 2
      assert.is_false((pcall(compat[name], f, x, o, state)))
      assert.same(before, x:totable(), name)
    end
  end)
end)
