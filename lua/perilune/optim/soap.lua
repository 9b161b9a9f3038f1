-- SPDX-License-Identifier: MIT
--- SOAP.
-- @module perilune.optim.soap
local T = require "perilune"
local check = require("perilune.optim.optimizer").check
local simple = require "perilune.optim.simple"

local decay, eps, zeros = simple.decay, simple.eps, simple.zeros
local sqrt = math.sqrt
local out = {}

local function count(v) return math.type(v) == "integer" and v > 0 or "an integer > 0" end
local function beta(v) return v == false or type(v) == "number" and v >= 0 and v < 1 or "false or from 0 to below 1" end

-- Is dim d of p turned? Vectors are on request, and no dim that is too long; without elements there is nothing to turn.
local function turned(p, d, group)
  if p:numel() == 0 or p:dim() == 0 or p:dim() == 1 and not group.precondition_1d then return false end
  return p:size(d) <= group.max_precondition_dim
end

-- x in the bases (back: out of them), one dim after the other; each goes to the end, so in the end all are in their
-- places.
local function project(x, s, back)
  local n = x:dim()
  for d = 1, n do
    local q = s["Q" .. d]
    if q then
      x = T.tensordot(x, back and q:t() or q, { { 1 }, { 1 } })
    elseif n > 1 then
      x = x:movedim(1, n)
    end
  end
  return x
end

-- Second moments of the gradient along each dim: running means of the products over all others. → them, by dim
local function statistics(g, s, w)
  local n, new = g:dim(), {}
  for d = 1, n do
    local gg = s["GG" .. d]
    if gg then
      local rows = n > 1 and g:movedim(d, 1):reshape(g:size(d), -1) or g:view(-1, 1)
      new[d] = (gg * (1 - w)):add_(rows:matmul(rows:t()) * w)
    end
  end
  return new
end

-- What is computed in f32 where p is in 16 bits.
local function wide(x) return (x:dtype() == "bf16" or x:dtype() == "f16") and x:to("f32") or x end

-- One round of the power iteration, the basis before it in order of its values. → the bases, by dim, and the second
-- moments, which move along
local function refresh(s, moments, statistics_of)
  local bases = {}
  for d, gg in pairs(statistics_of) do
    local q = s["Q" .. d]
    local product = gg:matmul(q)
    local order = (q * product):sum(1):argsort { descending = true }
    moments = moments:index_select(d, order)
    bases[d] = T.linalg.qr(wide(product:index_select(2, order))):to(q:dtype())
  end
  return bases, moments
end

local function mean(x, a, y) return (x * a):add_(y) end -- a x + y

-- Vyas et al. 2024: AdamW in the eigenbases of Shampoo's second moments, which are brought up to date every
-- precondition_frequency steps by one QR decomposition. The first step only begins the statistics.
-- `lr=3e-3 betas={0.95, 0.95} shampoo_beta=false eps=1e-8 weight_decay=0.01 precondition_frequency=10
-- max_precondition_dim=10000 precondition_1d=false correct_bias=true normalize_gradient=false`
--- optim.SOAP(…) → optimizer
-- Adam in the eigenbases of Shampoo's preconditioners (Vyas et al. 2024), for matrices and convolutions. Its first step
-- only gathers statistics.
--   local p = nn.Parameter(T.tensor { { 1, -2 }, { 3, 1 } })
--   local opt = optim.SOAP({ p }, { lr = 0.1 })
--   local before = (p * p):sum():item()
--   for _ = 1, 3 do
--     opt:zero_grad();
--     (p * p):sum():backward()
--     opt:step()
--   end
--   print((p * p):sum():item() < before)  --> true
out.SOAP = simple.define("SOAP", 3e-3, { { "betas", { 0.95, 0.95 }, check.betas }, { "shampoo_beta", false, beta },
  eps(1e-8), decay(0.01), { "precondition_frequency", 10, count }, { "max_precondition_dim", 10000, count },
  { "precondition_1d", false, check.bool }, { "correct_bias", true, check.bool },
  { "normalize_gradient", false, check.bool } },
  function(p, group)
    local s = { exp_avg = zeros(p), exp_avg_sq = zeros(p) }
    for d = 1, p:dim() do
      if turned(p, d, group) then
        s["GG" .. d] = T.zeros({ p:size(d), p:size(d) }, { dtype = p:dtype(), device = p:device() })
      end
    end
    return s
  end,
  function(p, g, s, t, group)
    local b1, b2 = group.betas[1], group.betas[2]
    local second = statistics(g, s, 1 - (group.shampoo_beta or b2))
    local writes = {}
    local function write(x, new) writes[#writes + 1], writes[#writes + 2] = x, new end
    for d, gg in pairs(second) do write(s["GG" .. d], gg) end
    if t == 1 then
      local bases = {}
      for d, gg in pairs(second) do
        local _, q = T.linalg.eigh(wide(gg))
        bases["Q" .. d] = q:flip(2):to(gg:dtype()):contiguous()
      end
      return writes, bases
    end
    local n, rate = t - 1, group.lr
    if group.correct_bias then rate = rate * sqrt(1 - b2 ^ n) / (1 - b1 ^ n) end
    local turned_g = project(g, s)
    local avg = mean(s.exp_avg, b1, g * (1 - b1))
    local avg_sq = mean(s.exp_avg_sq, b2, turned_g:square():mul_(1 - b2))
    local step = project(project(avg, s) / avg_sq:sqrt():add_(group.eps), s, true)
    if group.normalize_gradient then step = step / step:square():mean():sqrt_():add_(group.eps) end
    local moved = p - step * rate
    if group.weight_decay ~= 0 then moved:mul_(1 - group.lr * group.weight_decay) end
    if n % group.precondition_frequency == 0 then
      local bases
      bases, avg_sq = refresh(s, avg_sq, second)
      for d, q in pairs(bases) do write(s["Q" .. d], q) end
    end
    write(s.exp_avg, avg)
    write(s.exp_avg_sq, avg_sq)
    write(p, moved)
    return writes
  end)

out.SOAP.own_shapes = true -- what it remembers of a dim is a square

return out
