-- SPDX-License-Identifier: MIT
-- Builders of rows for spec/ops/cases.lua. A row says how to call an op and what comes out:
--   args     function(g) -> arguments of T.<op>, tensors in f64, small; g makes numbers (spec/support/random)
--   more     further such functions: broadcasting, other options
--   ref      the naive reference on {shape=, data=}, given the same arguments (see spec/support/oracle)
--   golden   name of a golden operator that judges the values (true: the same name)
--   why      instead of both: what else judges the values
--   which    positions of the inputs that get a gradient (default: every floating tensor)
--   tol      tolerance of values; gtol of gradients
--   one_layout  the op is for contiguous tensors only (view)
--   ties     it chooses among values; with equal ones (stride 0) there is no difference quotient
--   regular  it wants matrices of full rank, which stride 0 does not give
--   skip_grad   why the gradient cannot be checked by difference quotients
--   call     function(T) -> the function to call, where it is not T.<op>

local T = require "perilune"
local random = require "spec.support.random"
local oracle = require "spec.support.oracle"

local M = {}

-- A random f64 tensor.
function M.rand(g, shape, lo, hi)
  return random.tensor(T, g:list(random.numel(shape), lo, hi), shape)
end
-- Distinct values, for ops that choose.
function M.distinct(g, shape)
  return random.tensor(T, g:distinct(random.numel(shape)), shape)
end
-- Whole numbers lo..hi as i64.
function M.ints(g, shape, lo, hi)
  return random.tensor(T, g:ints(random.numel(shape), lo, hi), shape, "i64")
end
function M.bools(g, shape)
  return random.tensor(T, g:ints(random.numel(shape), 0, 1), shape, "bool")
end
-- n rows, each a permutation of 1..m, as i64.
function M.permutations(g, n, m)
  local out = {}
  for r = 0, n - 1 do
    for i = 1, m do out[r * m + i] = i end
    for i = m, 2, -1 do
      local j = g:int(1, i)
      out[r * m + i], out[r * m + j] = out[r * m + j], out[r * m + i]
    end
  end
  return random.tensor(T, out, { n, m }, "i64")
end
local rand = M.rand

-- f(x) per element, x in [lo, hi].
function M.unary(f, lo, hi, extra)
  local row = {
    args = function(g) return rand(g, { 3, 4 }, lo, hi) end,
    more = {
      function(g) return rand(g, { 2, 1, 5 }, lo, hi) end,
      function(g) return rand(g, {}, lo, hi) end,
    },
    ref = f and oracle.pointwise(f),
  }
  for k, v in pairs(extra or {}) do row[k] = v end
  return row
end

-- f(x, y) per element with broadcasting.
function M.binary(f, lo, hi, extra)
  local row = {
    args = function(g) return rand(g, { 3, 4 }, lo, hi), rand(g, { 3, 4 }, lo, hi) end,
    more = {
      function(g) return rand(g, { 3, 4 }, lo, hi), rand(g, { 4 }, lo, hi) end,
      function(g) return rand(g, { 3, 1 }, lo, hi), rand(g, { 2, 1, 4 }, lo, hi) end,
      function(g) return rand(g, {}, lo, hi), rand(g, { 2, 3 }, lo, hi) end,
    },
    ref = f and oracle.pointwise(f),
  }
  for k, v in pairs(extra or {}) do row[k] = v end
  return row
end

-- f(list) per group along dimensions, options {dim=, keepdim=}.
function M.reduction(f, make, extra)
  make = make or rand
  local red = oracle.reduce(f)
  local row = {
    args = function(g) return make(g, { 3, 4 }, 0.5, 2) end,
    more = {
      function(g) return make(g, { 3, 4 }, 0.5, 2), { dim = 1 } end,
      function(g) return make(g, { 2, 3, 2 }, 0.5, 2), { dim = -1, keepdim = true } end,
    },
    ref = function(x, o) return red(x, o and o.dim, o and o.keepdim) end,
  }
  for k, v in pairs(extra or {}) do row[k] = v end
  return row
end

-- f(list) -> list along one dimension, option {dim=}.
function M.scan(f, extra)
  local line = oracle.lines(f)
  local row = {
    args = function(g) return rand(g, { 3, 4 }, 0.3, 1.5), { dim = 2 } end,
    more = { function(g) return rand(g, { 3, 2, 2 }, 0.3, 1.5), { dim = 1 } end },
    ref = function(x, o) return line(x, o.dim) end,
  }
  for k, v in pairs(extra or {}) do row[k] = v end
  return row
end

-- Values judged by the golden corpus alone; args still feed gradients and wrong calls.
function M.golden(args, extra)
  local row = { args = args, golden = true }
  for k, v in pairs(extra or {}) do row[k] = v end
  return row
end

return M
