-- SPDX-License-Identifier: MIT
--- What both kinds of weight and spectral normalization compute. @module perilune.nn.utils.norms
local T = require "perilune"

local norms = {}

--- Norms of the slices of v along dim, its other dims being 1; false: the norm of all.
function norms.but(v, dim)
  if not dim then return v:norm() end
  local dims = {}
  for d = 1, v:dim() do if d ~= dim then dims[#dims + 1] = d end end
  if #dims == 0 then return v:abs() end
  return v:norm { p = 2, dim = dims, keepdim = true }
end

--- A vector over its length, or over eps where that is larger.
function norms.unit(v, eps) return v / v:norm():clamp { min = eps } end

--- w as a matrix whose rows are its slices along dim.
function norms.matrix(w, dim) return (dim == 1 and w or w:movedim(dim, 1)):reshape(w:size(dim), -1) end

--- A random unit vector of n numbers like w's.
function norms.random(n, w, eps) return norms.unit(T.randn({ n }, { dtype = w:dtype(), device = w:device() }), eps) end

return norms
