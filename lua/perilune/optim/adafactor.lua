-- SPDX-License-Identifier: MIT
--- Adafactor.
-- @module perilune.optim.adafactor
local T = require "perilune"
local check = require("perilune.optim.optimizer").check
local simple = require "perilune.optim.simple"

local decay, zeros = simple.decay, simple.zeros
local out = {}

local function positive(v) return type(v) == "number" and v > 0 and v < math.huge or "a finite number > 0" end

-- The spacing of numbers near 1.
local spacing = { f32 = 2.0 ^ -23, f64 = 2.0 ^ -52, f16 = 2.0 ^ -10, bf16 = 2.0 ^ -7 }
local function factors(v)
  return type(v) == "table" and (v[1] == false or type(v[1]) == "number") and type(v[2]) == "number" or
    "{a number or false, a number}"
end

-- Second moments of matrices as a product of row and column means (Shazeer & Stern 2018), steps relative to the
-- size of the weights. `lr=1e-2 beta2_decay=-0.8 eps={false, 1e-3} d=1 weight_decay=0`; eps[1] false: the dtype's
-- spacing.
--- optim.Adafactor(…) → optimizer
-- Adam with factored second moments (Shazeer & Stern 2018).
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.Adafactor({ p }, { lr = 0.1 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
out.Adafactor = simple.define_live("Adafactor", 1e-2, {
  { "beta2_decay", -0.8, check.number }, { "eps", { false, 1e-3 }, factors },
  { "d", 1.0, positive }, decay() },
  {
    fixed = { "eps" },
    key = function(p) return p:dtype() end,
    make = function(p)
      if p:dim() < 2 then return { variance = zeros(p) } end
      local rows, cols = p:shape(), p:shape()
      rows[#rows], cols[#cols - 1] = 1, 1
      local o = { dtype = p:dtype(), device = p:device() }
      return { row_var = T.zeros(rows, o), col_var = T.zeros(cols, o) }
    end,
    means = function(_, g, s)
      if s.variance then
        local square = g * g
        return { s.variance, square, square }
      end
      local function mean_square(d) return g:norm(2, d, { keepdim = true }):square():div_(g:size(d)) end
      local rows, columns = mean_square(-1), mean_square(-2)
      return { s.row_var, rows, rows, s.col_var, columns, columns }
    end,
    means_settings = function(group, step)
      return { k = 3, rule = "adafactor_mean", numbers = { group.beta2_decay }, step = step }
    end,
    columns = function(p, g, s, group)
      local dtype = p:dtype() == "f64" and "f64" or "f32" -- in which it is computed
      if s.variance then
        return g, s.variance:to(dtype):rsqrt(), T.ones({}, { dtype = dtype, device = p:device() }):expand_as(p)
      end
      local eps = group.eps[1] or spacing[p:dtype()]
      local rows = s.row_var:to(dtype)
      rows = (rows / rows:mean(-2, { keepdim = true }):clamp { min = eps }):rsqrt()
      return g, rows:expand_as(p), s.col_var:to(dtype):rsqrt():expand_as(p)
    end,
    settings = function(group, _, dtype)
      return { rule = "adafactor", numbers = { group.eps[1] or spacing[dtype], group.eps[2], group.d }, flags = 0 }
    end,
  })

out.Adafactor.own_shapes = true -- its state is smaller than the parameters

return out
