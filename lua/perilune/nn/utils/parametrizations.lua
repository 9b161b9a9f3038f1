-- SPDX-License-Identifier: MIT
--- nn.utils.parametrizations: weights of norms that are trained, of spectral norm 1, with orthonormal rows or columns;
-- on nn.utils.parametrize. Names in states are PyTorch's.
-- @module perilune.nn.utils.parametrizations
local T = require "perilune"
local base = require "perilune.nn.module"
local norms = require "perilune.nn.utils.norms"
local options = require "perilune.options"
local parametrize = require "perilune.nn.utils.parametrize"
local class_name = require("perilune.surface").class_name

local fail, describe, read = options.fail, options.describe, options.read

local parametrizations = {}

local function tensor_of(who, m, name)
  if not base.is_module(m) then fail("%s: a module is wanted, got %s", who, describe(m)) end
  local t = m[name]
  if not T.is_tensor(t) then fail("%s: %s has no parameter '%s'", who, class_name(m), name) end
  return t
end

local function dim_of(who, dim, t)
  local d = dim < 0 and dim + t:dim() + 1 or dim
  if d < 1 or d > t:dim() then
    fail("%s: dim %d of %s does not exist; dims are numbered from 1", who, dim, describe(t))
  end
  return d
end

-- ---- weight normalization (Salimans & Kingma 2016) -----------------------------------------------------------

local WeightNorm = base.class "WeightNorm"
function WeightNorm:init(dim) self.dim = dim end
function WeightNorm:forward(g, v) return v * (g / norms.but(v, self.dim)) end
function WeightNorm:right_inverse(w) return { norms.but(w, self.dim), w } end
function WeightNorm:extra_repr() return "dim=" .. tostring(self.dim) end

local weight_spec = options.spec("parametrizations.weight_norm", { { "module", "any" }, { "name", "string", "weight" },
  { "dim", "any", 1 } })

--- nn.utils.parametrizations.weight_norm(module, name="weight", {dim=1}) → module
-- The parameter becomes g v / ‖v‖ (Salimans & Kingma 2016), of original0, g, and original1, v; dim=false: one norm for
-- all. nn.utils.parametrize.remove_parametrizations takes it away.
--   local l = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
--   for name, p in l:named_parameters() do print(name, table.concat(p:shape(), " ")) end
--   --> bias	2
--   --> parametrizations.weight.original0	2 1
--   --> parametrizations.weight.original1	2 3
function parametrizations.weight_norm(...)
  local a = read(weight_spec, ...)
  local t, dim = tensor_of("parametrizations.weight_norm", a.module, a.name), a.dim
  if dim then
    dim = dim_of("parametrizations.weight_norm", options.kind("parametrizations.weight_norm", "dim", "int", dim), t)
  end
  return parametrize.register_parametrization(a.module, a.name, WeightNorm(dim), { unsafe = true })
end

-- ---- spectral normalization (Miyato et al. 2018) -------------------------------------------------------------

local SpectralNorm = base.class "SpectralNorm"
function SpectralNorm:init(w, iterations, eps, dim)
  self.dim, self.eps, self.n_power_iterations = dim, eps, iterations
  if w:dim() == 1 then return end
  local W = norms.matrix(w, dim)
  self:register_buffer("_u", norms.random(W:size(1), w, eps))
  self:register_buffer("_v", norms.random(W:size(2), w, eps))
  self:_iterate(W, 15)
end

function SpectralNorm:_iterate(W, n)
  local _ <close> = T.no_grad()
  for _ = 1, n do
    self._u:copy_(norms.unit(W:mv(self._v), self.eps))
    self._v:copy_(norms.unit(W:t():mv(self._u), self.eps))
  end
end

function SpectralNorm:forward(w)
  if w:dim() == 1 then return norms.unit(w, self.eps) end
  local W, u, v = norms.matrix(w, self.dim), self._u, self._v
  if self.training then
    self:_iterate(W, self.n_power_iterations)
    u, v = u:clone(), v:clone() -- the next call overwrites them
  end
  return w / u:dot(W:mv(v))
end

-- Of all weights with this value the one that is it; its largest singular value should be 1.
function SpectralNorm:right_inverse(w) return w end -- luacheck: no self
function SpectralNorm:extra_repr()
  return ("dim=%d, n_power_iterations=%d"):format(self.dim, self.n_power_iterations)
end

local spectral_spec = options.spec("parametrizations.spectral_norm", { { "module", "any" },
  { "name", "string", "weight" }, { "n_power_iterations", "count", 1 }, { "eps", "nonnegative", 1e-12 },
  { "dim", "int", optional = true } })

--- nn.utils.parametrizations.spectral_norm(module, name="weight", {n_power_iterations=1, eps=1e-12, dim=1}) → module
-- The parameter becomes the original one over its largest singular value (Miyato et al. 2018) as a matrix with the rows
-- of dimension dim (2 for transposed convolutions). In training each time that it is read the vectors by which that is
-- known, buffers _u and _v, come n_power_iterations steps nearer.
--   local l = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2), "weight", { n_power_iterations = 30 })
--   print(math.abs(T.linalg.svdvals(l.weight:detach()):get(1) - 1) < 1e-3)  --> true
function parametrizations.spectral_norm(...)
  local who, a = "parametrizations.spectral_norm", read(spectral_spec, ...)
  local t = tensor_of(who, a.module, a.name)
  if t:dim() == 0 then fail("%s: '%s' must have a dim at least, got %s", who, a.name, describe(t)) end
  local dim = dim_of(who, a.dim or (class_name(a.module):match "^ConvTranspose" and t:dim() > 1 and 2 or 1), t)
  local by = SpectralNorm(t:detach(), a.n_power_iterations, a.eps, dim):train(a.module.training)
  return parametrize.register_parametrization(a.module, a.name, by)
end

-- ---- orthogonal matrices (Lezcano-Casado & Martínez-Rubio 2019) -----------------------------------------------

-- Signs of the diagonal, 1 for 0, as a row that scales columns.
local function signs(A)
  local d = A:diagonal(0, -2, -1)
  return T.where(d:lt(0), -1.0, 1.0):to(A:dtype()):unsqueeze(-2)
end

-- The orthogonal factor of A = Q R with a positive diagonal of R.
local function orthogonalized(A)
  local Q, R = T.linalg.qr(A)
  return Q * signs(R)
end

local function is_orthogonal(Q)
  local k = Q:size(-1)
  local eps = 10 * Q:size(-2) * T.finfo(Q:dtype()).eps
  local near = (Q:transpose(-2, -1):matmul(Q) - T.eye(k, { dtype = Q:dtype(), device = Q:device() })):abs()
  return near:numel() == 0 or near:max():item() <= eps
end

local Orthogonal = base.class "Orthogonal"
function Orthogonal:init(map, trivialize)
  self.orthogonal_map, self.use_trivialization = map, trivialize
  if trivialize then self:register_buffer("base", nil) end
end

-- [*, n, k], n ≥ k, of a matrix of that shape: by its lower triangle.
local maps = {}

local function skew(X)
  local n, k = X:size(-2), X:size(-1)
  X = X:tril()
  if n ~= k then
    local s = X:shape()
    s[#s] = n - k
    X = T.cat({ X, T.zeros(s, { dtype = X:dtype(), device = X:device() }) }, -1)
  end
  return X - X:transpose(-2, -1), k
end

function maps.matrix_exp(X)
  local A, k = skew(X)
  return T.linalg.matrix_exp(A):narrow(-1, 1, k)
end

-- (I - A/2)⁻¹ (I + A/2)
function maps.cayley(X)
  local A, k = skew(X)
  local I = T.eye(A:size(-1), { dtype = A:dtype(), device = A:device() })
  return T.linalg.solve(I - A * 0.5, I + A * 0.5):narrow(-1, 1, k)
end

-- Reflectors below the diagonal; the diagonal's ±1 are signs of the columns, which are not trained.
function maps.householder(X)
  local A = X:tril(-1)
  local tau = 2 / (A:square():sum(-2) + 1)
  local Q = T.linalg.householder_product(A, tau)
  return Q * X:detach():diagonal(0, -2, -1):trunc():unsqueeze(-2)
end

function Orthogonal:forward(X)
  local wide = X:size(-2) < X:size(-1)
  if wide then X = X:transpose(-2, -1) end
  local Q = maps[self.orthogonal_map](X)
  if self.use_trivialization and self.base then Q = self.base:matmul(Q) end
  return wide and Q:transpose(-2, -1) or Q
end

function Orthogonal:right_inverse(Q)
  local _ <close> = T.no_grad()
  local wide, like = Q:size(-2) < Q:size(-1), Q
  if wide then Q = Q:transpose(-2, -1) end
  local n, k = Q:size(-2), Q:size(-1)
  if not self.use_trivialization then
    if self.orthogonal_map ~= "householder" then return nil end
    local A, tau = T.linalg.geqrf(Q)
    -- Q of LAPACK's Q R with the signs that make R's diagonal positive; where tau is 0 nothing is reflected
    local s = signs(A):squeeze(-2)
    s = T.where(tau:eq(0), -s, s)
    A = A:tril(-1)
    A:diagonal(0, -2, -1):copy_(s)
    return wide and A:transpose(-2, -1) or A
  end
  if n == k then
    Q = is_orthogonal(Q) and Q:clone() or orthogonalized(Q)
  else
    local s = Q:shape()
    s[#s] = n - k
    Q = orthogonalized(T.cat({ Q, T.randn(s, { dtype = Q:dtype(), device = Q:device() }) }, -1))
  end
  if self.base then self.base:copy_(Q) else self:register_buffer("base", Q) end
  local zero = T.zeros_like(like) -- of which householder makes the identity, as its diagonal tells signs
  zero:diagonal(0, -2, -1):fill_(-1)
  return zero
end

function Orthogonal:extra_repr() return self.orthogonal_map end

local orthogonal_spec = options.spec("parametrizations.orthogonal", { { "module", "any" },
  { "name", "string", "weight" }, { "orthogonal_map", "string", optional = true },
  { "use_trivialization", "bool", true } })

--- nn.utils.parametrizations.orthogonal(module, name="weight", {orthogonal_map=, use_trivialization=true}) → module
-- Rows or columns of the matrix, whichever are fewer, are orthonormal from now on: it is computed by orthogonal_map
-- "matrix_exp" (the default where it is square), "cayley" or "householder" (the default else) of the original one, and,
-- with use_trivialization, turned by the buffer base, which makes the value at the beginning. A matrix that is not
-- orthogonal becomes the nearest one that its QR decomposition gives.
--   local l = nn.utils.parametrizations.orthogonal(nn.Linear(3, 2))
--   local w = l.weight:detach()
--   print(w:matmul(w:t()):sub(T.eye(2)):abs():max():item() < 1e-5)  --> true
function parametrizations.orthogonal(...)
  local who, a = "parametrizations.orthogonal", read(orthogonal_spec, ...)
  local t = tensor_of(who, a.module, a.name)
  if t:dim() < 2 then fail("%s: '%s' must be a matrix or a batch of them, got %s", who, a.name, describe(t)) end
  local map = a.orthogonal_map or (t:size(-1) == t:size(-2) and "matrix_exp" or "householder")
  if not maps[map] then
    fail("%s: %s", who, options.unknown("orthogonal_map", map, { "cayley", "householder", "matrix_exp" }))
  end
  local by = Orthogonal(map, a.use_trivialization):train(a.module.training)
  return parametrize.register_parametrization(a.module, a.name, by, { unsafe = true })
end

return parametrizations
