-- SPDX-License-Identifier: MIT
-- Results that are unique only up to the sign of vectors: qr, svd, eigh. Finds the signs, compares, and turns the
-- recorded output gradients the same way. Where values coincide, vectors may mix: then only the values count.

local reader = require "spec.golden.reader"

local M = {}

-- Per output: "columns" or "rows" carry a sign, "values" do not.
local KINDS = {
  ["linalg.qr"] = { "columns", "rows" },
  ["linalg.svd"] = { "columns", "values", "rows" },
  ["linalg.eigh"] = { "values", "columns" },
}

-- The sign of each of the first k columns of `got` against `want`, shape [..., 1, k].
local function signs(T, got, want, k)
  local d = (got:narrow(-1, 1, k) * want:narrow(-1, 1, k)):sum(-2, { keepdim = true })
  return T.where(d:lt(0), T.full({}, -1, { dtype = got:dtype() }), T.full({}, 1, { dtype = got:dtype() }))
end

-- t with the signs on its first k columns (or rows); the rest is kept.
local function turned(T, t, kind, s)
  if kind == "values" then return t end
  if kind == "rows" then return turned(T, t:transpose(-2, -1), "columns", s):transpose(-2, -1):contiguous() end
  local k, n = s:size(-1), t:size(-1)
  local first = t:narrow(-1, 1, k) * s
  if k == n then return first end
  return T.cat({ first, t:narrow(-1, k + 1, n - k) }, t:dim())
end

-- Whether two neighbours among the values are so near that their vectors may mix, or a singular value is zero.
local function coincide(T, values, singular)
  local n = values:size(-1)
  if values:numel() == 0 then return false end
  local near = values:dtype() == "f64" and 1e-8 or 1e-4
  local scale = values:abs():amax():item()
  if singular and values:amin():item() <= near * scale then return true end
  if n < 2 then return false end
  local gap = (values:narrow(-1, 2, n - 1) - values:narrow(-1, 1, n - 1)):abs():amin():item()
  return gap <= near * scale
end

-- Compares; returns what is wrong or nil, whether gradients are comparable, and turn(i, dy) for output gradients.
function M.check(T, plan, case, got)
  local file, kinds = plan.file, KINDS[plan.file.op]
  local want = {}
  for i, ref in ipairs(case.outputs) do
    want[i] = reader.tensor(T, file, ref)
    got[i] = got[i]:detach()
    if got[i]:dtype() ~= ref.dtype or not reader.same_shape(got[i]:shape(), ref.shape) then
      return reader.check(got[i], file, ref, case.tol, "output " .. i) and nil or "output " .. i .. ": shape or dtype"
    end
  end
  local vectors, values, k
  for i, kind in ipairs(kinds) do
    if kind == "values" then
      local ok, why = reader.check(got[i], file, case.outputs[i], case.tol, "output " .. i)
      if not ok then return why end
      values = want[i]
    elseif kind == "columns" then
      vectors = i
    end
  end
  local a = reader.tensor(T, file, case.inputs[1])
  k = math.min(a:size(-1), a:size(-2))
  if values and coincide(T, values, plan.file.op == "linalg.svd") then return nil, false end
  local s = signs(T, got[vectors], want[vectors], k)
  for i, kind in ipairs(kinds) do
    if kind ~= "values" then
      local x, y = turned(T, got[i], kind, s), want[i]
      local dim = kind == "rows" and -2 or -1
      local extra = plan.file.op == "linalg.svd" and x:size(dim) - k or 0
      if extra > 0 and x:numel() > 0 then -- the vectors behind the first k span one space and are arbitrary in it
        local u, v = x:narrow(dim, k + 1, extra), y:narrow(dim, k + 1, extra)
        if kind == "rows" then u, v = u:transpose(-2, -1), v:transpose(-2, -1) end
        local gap = (u:matmul(u:transpose(-2, -1)) - v:matmul(v:transpose(-2, -1))):abs():amax():item()
        if gap > 100 * (case.tol[1] + case.tol[2]) then return "output " .. i .. ": another null space, by " .. gap end
        local rest = y:narrow(dim, k + 1, extra)
        x = T.cat({ x:narrow(dim, 1, k), rest }, dim == -1 and x:dim() or x:dim() - 1)
      end
      local ok, why = reader.check(x:contiguous(), file, case.outputs[i], case.tol, "output " .. i)
      if not ok then return why end
    end
  end
  return nil, true, function(i, dy) return turned(T, dy, kinds[i], s) end
end

-- (g + gᵀ) / 2, for gradients that are stored symmetrised.
function M.symmetric(g)
  return (g + g:transpose(-2, -1)) / 2
end

return M
