-- SPDX-License-Identifier: MIT
-- Linear algebra. Rows of spec/ops/cases.lua; their fields: spec/ops/rows.lua. Inputs are far from singular, which
-- a matrix of repeated rows is not: `regular` leaves stride 0 out.

local T = require "perilune"
local rows = require "spec.ops.rows"

local rand = rows.rand
local R = {}

-- A batch of n × n matrices with a strong diagonal of distinct numbers.
local function strong(g, shape)
  local n = shape[#shape]
  return rand(g, shape, -1, 1) + T.diag(T.arange(1, n):to("f64") * 2)
end
local function symmetric(g, shape)
  local a = strong(g, shape)
  return a + a:transpose(-2, -1)
end

local function row(name, make, more, extra)
  local out = {
    regular = true, golden = "linalg." .. name, args = make, more = more,
    call = function() return T.linalg[name] end,
  }
  for k, v in pairs(extra or {}) do out[k] = v end
  R["linalg." .. name] = out
end
local function square(g) return strong(g, { 3, 3 }) end
local function batch(g) return strong(g, { 2, 3, 3 }) end

row("inv", square, { batch })
row("det", square, { batch })
row("slogdet", square, { batch })
row("solve", function(g) return strong(g, { 3, 3 }), rand(g, { 3, 2 }) end, {
  function(g) return strong(g, { 2, 3, 3 }), rand(g, { 3, 2 }) end,
  function(g) return strong(g, { 3, 3 }), rand(g, { 3 }) end,
  function(g) return strong(g, { 2, 3, 3 }), rand(g, { 2, 3 }) end,
  function(g) return strong(g, { 3, 3 }), rand(g, { 2, 4, 3 }), { left = false } end,
})
row("solve_triangular", function(g) return strong(g, { 3, 3 }), rand(g, { 3, 2 }), { upper = true } end, {
  function(g) return strong(g, { 2, 3, 3 }), rand(g, { 3, 2 }), { upper = false } end,
  function(g) return strong(g, { 3, 3 }), rand(g, { 2, 3 }), { upper = true, left = false, unitriangular = true } end,
})
local along = "the gradient is the one along symmetric matrices; spec/ops/linalg_spec.lua checks it there"
row("cholesky", function(g) return symmetric(g, { 3, 3 }) end, nil, { skip_grad = along })
row("pivoted_cholesky", function(g) return symmetric(g, { 3, 3 }) end,
  { function(g) return symmetric(g, { 2, 3, 3 }) end },
  { golden = false, why = "spec/ops/pytorch_spec.lua compares with LAPACK's pstrf", skip_grad = along })
row("geqrf", function(g) return rand(g, { 4, 3 }) end, { function(g) return rand(g, { 2, 2, 3 }) end },
  { golden = false, why = "spec/ops/pytorch_spec.lua compares with PyTorch",
    skip_grad = "no one derives its reflectors; backward says so" })
row("eigh", function(g) return symmetric(g, { 3, 3 }) end, nil, { skip_grad = along })
row("eigvalsh", function(g) return symmetric(g, { 3, 3 }) end, nil, { skip_grad = along })
row("qr", square, {
  function(g) return rand(g, { 4, 3 }) end,
  function(g) return rand(g, { 2, 2, 4 }) end,
  function(g) return strong(g, { 3, 3 }), { mode = "complete" } end,
})
row("svd", function(g) return strong(g, { 3, 3 }) end, {
  function(g) return rand(g, { 4, 3 }), { full_matrices = false } end,
  function(g) return rand(g, { 2, 2, 4 }), { full_matrices = false } end,
})
row("svdvals", square, { function(g) return rand(g, { 2, 4, 3 }) end })
row("pinv", function(g) return rand(g, { 4, 3 }) end, {
  function(g) return rand(g, { 2, 2, 4 }), { rtol = 1e-9 } end,
})
for name, more in pairs { eig = { batch },
  lu_factor = { function(g) return rand(g, { 4, 3 }) end, function(g) return rand(g, { 2, 2, 4 }) end } } do
  row(name, square, more, { golden = false, why = "spec/ops/pytorch_spec.lua compares with PyTorch" })
end
R.matrix_exp = {
  golden = true, args = function(g) return rand(g, { 3, 3 }, -1, 1) end,
  more = { function(g) return rand(g, { 2, 2, 2 }, -2, 2) end },
}

return R
