-- SPDX-License-Identifier: MIT
-- Creation, in place, random and optimizer ops. Rows of spec/ops/cases.lua; their fields: spec/ops/rows.lua.

local rows = require "spec.ops.rows"
local oracle = require "spec.support.oracle"

local golden, rand = rows.golden, rows.rand
local sqrt = math.sqrt

local R = {}

-- ---- creation, in place, random, optimizers -------------------------------------------------------

local function filled(v)
  return function() return { shape = { 2, 3 }, data = { v, v, v, v, v, v } } end
end
R.zeros = { args = function() return { 2, 3 }, { dtype = "f64" } end, ref = filled(0) }
R.ones = { args = function() return { 2, 3 }, { dtype = "f64" } end, ref = filled(1) }
R.full = { args = function() return { 2, 3 }, 7, { dtype = "f64" } end, ref = filled(7) }
R.eye = golden(function() return 3, { m = 2 } end)
R.linear_fill = { args = function() return { n = 3, start = 2, step = 0.5, dtype = "f64" } end,
  more = { function() return { n = 3, start = 2, step = 0.5 } end, function() return { n = 3, start = 2, step = 1 } end,
    function() return { n = 3, start = 2.5, step = 1 } end },
  ref = function(o)
    return { shape = { 3 }, data = { o.start, o.start + o.step, o.start + 2 * o.step } }
  end }
R.linspace, R.logspace = golden(function() return 0.0, 1.0, 5 end), golden(function() return 0.0, 1.0, 5 end)
R.fill = { args = function(g) return rand(g, { 2, 3 }), 7 end, ref = filled(7) }
R.zero = { args = function(g) return rand(g, { 2, 3 }) end, ref = filled(0) }
R.copy = { args = function(g) return rand(g, { 3, 4 }), rand(g, { 4 }) end,
  ref = oracle.pointwise(function(_, b) return b end) }
local function random_op(args) return { args = args, why = "spec/ops/random_spec.lua" } end
R.uniform = random_op(function() return 0, 1, { 2, 3 } end)
R.normal = random_op(function() return 0, 1, { 2, 3 } end)
R.randint = random_op(function() return 1, 5, { 2, 3 } end)
R.randperm = random_op(function() return 5 end)
R.bernoulli = random_op(function(g) return rand(g, { 2, 3 }, 0, 1) end)
R.multinomial = random_op(function(g) return rand(g, { 4 }, 0.1, 1), 2 end)
R.multinomial_alias_setup = random_op(function(g) return rand(g, { 4 }, 0.1, 1) end)
R.dropout = random_op(function(g) return rand(g, { 2, 3 }) end)
R.uniform_fill = random_op(function(g) return rand(g, { 2, 3 }) end)
R.normal_fill = random_op(function(g) return rand(g, { 2, 3 }) end)
R.exponential_fill = random_op(function(g) return rand(g, { 2, 3 }) end)
R.randint_fill = random_op(function(g) return rand(g, { 2, 3 }), 1, 5 end)
R.bernoulli_fill = random_op(function(g) return rand(g, { 2, 3 }) end)
local function optimizer(args) return { args = args, why = "golden optim.*, spec/optim/optimizers_spec.lua" } end
R.sgd_step = optimizer(function(g) return { rand(g, { 3 }), rand(g, { 3 }) }, { lr = 0.1, k = 2 } end)
R.adam_step = optimizer(function(g)
  return { rand(g, { 3 }), rand(g, { 3 }), rand(g, { 3 }), rand(g, { 3 }, 0, 1) }, { step = 1, k = 4 }
end)
R.rmsprop_step = optimizer(function(g) return { rand(g, { 3 }), rand(g, { 3 }), rand(g, { 3 }, 0, 1) }, { k = 3 } end)
R.optimizer_step = optimizer(function(g)
  return { rand(g, { 3 }), rand(g, { 3 }), rand(g, { 3 }, 0, 1) },
    { k = 3, rule = "adagrad", lr = 0.1, numbers = { 1e-10, 0 } }
end)
R.foreach_norm = { args = function(g) return { rand(g, { 3 }), rand(g, { 2, 2 }) } end,
  ref = function(l)
    local s = 0.0
    for _, t in ipairs(l) do
      for _, v in ipairs(t.data) do s = s + v * v end
    end
    return { shape = {}, data = { sqrt(s) } }
  end }
R.foreach_scale_ = optimizer(function(g) return { rand(g, { 3 }), rand(g, {}) } end)
R.foreach_scale_.one_layout = true
R.foreach_zero_ = optimizer(function(g) return { rand(g, { 3 }), rand(g, { 2 }) } end)

return R
