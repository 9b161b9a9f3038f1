-- SPDX-License-Identifier: MIT
-- Forward and reverse mode are one derivative: <w, J v> = <Jᵀ w, v> for one function of tensors in f64, in the ways
-- that there are to get J v, and the same to the second and third order.

local T = require "perilune"
local random = require "spec.support.random"
local gradcheck = require "spec.support.gradcheck"

local M = {}
local STEP = 1e-5

local function numbers(g, like) return random.tensor(T, g:list(like:numel(), -1, 1), like:shape(), like:dtype()) end

-- The floating tensors of a list, lists among them opened.
local function floats(list, out)
  out = out or {}
  for i = 1, list.n or #list do
    local v = list[i]
    if type(v) == "table" then floats(v, out)
    elseif T.is_tensor(v) and gradcheck.is_floating(v) then out[#out + 1] = v end
  end
  return out
end

local function mapped(list, f)
  local out = {}
  for i, t in ipairs(list) do out[i] = f(t) end
  return out
end

-- Σ <a_i, b_i>; nil among them is zero.
local function dot(a, b, n)
  local s = 0.0
  for i = 1, n or #b do
    if a[i] and b[i] and a[i]:numel() > 0 then s = s + (a[i]:detach() * b[i]):sum():item() end
  end
  return s
end

local function largest(list)
  local size = 0.0
  for _, t in pairs(list) do if t:numel() > 0 then size = math.max(size, t:detach():abs():max():item()) end end
  return size
end

-- The gradients of a scalar function at xs, zeros where there is none.
local function gradients(f, xs)
  local got = table.pack(T.grad(f, table.unpack(xs)))
  if type(got[1]) == "table" then got = got[1] end
  local out = {}
  for k, x in ipairs(xs) do out[k] = got[k] or T.zeros_like(x) end
  return out
end

local function along(f, xs, vs) return (select(2, T.jvp(f, xs, vs))) end

-- Ways to (y, J v) of f at xs.
local WAYS = {
  { "jvp", function(f, xs, vs) return T.jvp(f, xs, vs) end },
  { "linearize", function(f, xs, vs)
    local y, push = T.linearize(f, table.unpack(xs))
    return y, push(table.unpack(vs))
  end, twice = true },
  { "jvp of checkpoint", function(f, xs, vs)
    return T.jvp(function(...)
      return { T.checkpoint(function(...) return table.unpack(f(...)) end, ...) }
    end, xs, vs)
  end },
  { "jvp of leaves", function(f, xs, vs)
    return T.jvp(f, mapped(xs, function(x) return x:clone():requires_grad_() end), vs)
  end },
  { "jvp inside no_grad", function(f, xs, vs) return T.no_grad(T.jvp, f, xs, vs) end },
  { "jvp of strided tensors", function(f, xs, vs)
    local function strided(t) return random.layout(T, t, "transposed") or t end
    return T.jvp(f, mapped(xs, strided), mapped(vs, strided))
  end, strided = true },
  { "jvp of jit", function(f, xs, vs)
    local compiled = T.jit(function(...) return table.unpack(f(...)) end)
    return T.jvp(function(...) return { compiled(...) } end, xs, vs)
  end, traced = true },
  { "jit of jvp", function(f, xs, vs)
    local n = #xs
    local got = { T.jit(function(...)
      local all = { ... }
      local y, v = T.jvp(f, { table.unpack(all, 1, n) }, { table.unpack(all, n + 1) })
      return table.unpack(table.move(v, 1, #v, #y + 1, table.move(y, 1, #y, 1, {})))
    end)(table.unpack(table.move(vs, 1, n, n + 1, table.move(xs, 1, n, 1, {})))) }
    return table.move(got, 1, #got // 2, 1, {}), table.move(got, #got // 2 + 1, #got, 1, {})
  end, traced = true },
}

-- Higher orders, each as a number in several ways. f is the scalar <w, f(x)>; moving(h) is the points x + h u.
local function higher(c, what, f, xs, g)
  local us = { c.directions(xs, g), c.directions(xs, g), c.directions(xs, g) }
  local function beside(h, u)
    local at = {}
    for k, x in ipairs(xs) do at[k] = x + u[k] * h end
    return table.unpack(at)
  end
  local function judge(order, of, all)
    local size = math.abs(of(table.unpack(xs)):item())
    for name, value in pairs(all) do
      local want, tol = all.reference, 1e-7
      if name == "quotient" then tol = c.tol or 2e-4 end
      local off = math.abs(value - want)
      assert(off <= tol * (1 + size + math.abs(want)), ("%s: order %d by %s is %.9g, should be %.9g"):format(what,
        order, name, value, want))
    end
  end
  -- second: <H u1, u2>
  local function first(...) return along(f, { ... }, us[1]) end
  local function first_by_reverse(...)
    local s = T.zeros({}, { dtype = "f64" })
    for k, d in ipairs(gradients(f, { ... })) do s = s + (d * us[1][k]):sum() end
    return s
  end
  local function quotient(of, u) return (of(beside(STEP, u)):item() - of(beside(-STEP, u)):item()) / (2 * STEP) end
  judge(2, first, { reference = along(first, xs, us[2]):item(),
    ["reverse over forward"] = dot(gradients(first, xs), us[2]),
    ["forward over reverse"] = along(first_by_reverse, xs, us[2]):item(),
    ["reverse over reverse"] = dot(gradients(first_by_reverse, xs), us[2]),
    quotient = not c.kinks and quotient(first, us[2]) or nil })
  if c.orders < 3 then return end
  local function second(...) return along(first, { ... }, us[2]) end
  local function second_by_reverse(...)
    local s = T.zeros({}, { dtype = "f64" })
    for k, d in ipairs(gradients(first_by_reverse, { ... })) do s = s + (d * us[2][k]):sum() end
    return s
  end
  judge(3, second, { reference = along(second, xs, us[3]):item(),
    ["reverse over forward over forward"] = dot(gradients(second, xs), us[3]),
    ["forward over reverse over reverse"] = along(second_by_reverse, xs, us[3]):item(),
    ["reverse over reverse over reverse"] = dot(gradients(second_by_reverse, xs), us[3]),
    quotient = not c.kinks and quotient(second, us[3]) or nil })
end

-- Does a graph refuse, by name, to stand for values that it does not know yet?
function M.untraceable(why)
  why = tostring(why)
  return why:find("which a graph does not know", 1, true) or why:find("it has no values until its graph runs", 1, true)
end

-- Fails unless all that is said above holds for f at the floating tensors among args (those with which[i], if given).
-- Fields of c: which; seeded: f draws random numbers; dense: it takes contiguous tensors alone; untraced: T.jit
-- is left out; once: it is differentiable once only; orders = 3 of derivatives are
-- compared, 0: T.grad with backward alone; kinks: it has no difference quotients here; tol: of those;
-- directions(xs, g): tangents.
function M.check(what, f, args, c)
  local at, xs, n = {}, {}, args.n or #args
  for i = 1, n do
    if T.is_tensor(args[i]) and gradcheck.is_floating(args[i]) and (not c.which or c.which[i]) then
      at[#at + 1], xs[#xs + 1] = i, args[i]:detach()
    end
  end
  local function h(...)
    if c.seeded then T.manual_seed(5) end
    local all = table.move(args, 1, n, 1, {})
    for k, i in ipairs(at) do all[i] = (select(k, ...)) end
    return floats(table.pack(f(table.unpack(all, 1, n))))
  end
  local g = random.new(3)
  c.directions = c.directions or function(like) return mapped(like, function(x) return numbers(g, x) end) end
  c.orders = c.orders or 3
  local vs = c.directions(xs, g)
  local leaves = mapped(xs, function(x) return x:clone():requires_grad_() end)
  local ys, used, ws, tracked = h(table.unpack(leaves)), {}, {}, {}
  for i, y in ipairs(ys) do
    if y.requires_grad then
      used[#used + 1], ws[#ws + 1], tracked[i] = y, numbers(g, y), #ws + 1
    end
  end
  if #used == 0 then return false end
  local grads = T.grad_of(used, leaves, { grad_outputs = ws, allow_unused = true })
  local want = dot(grads, vs, #vs)
  local function scalar(...)
    local s = T.zeros({}, { dtype = "f64" })
    for i, y in ipairs(h(...)) do if tracked[i] then s = s + (y * ws[tracked[i]]):sum() end end
    return s
  end
  local by_key = dot(gradients(scalar, xs), vs)
  assert(math.abs(by_key - want) <= 1e-9 * (1 + math.abs(want)), ("%s: <Jᵀ w, v> by T.grad is %.12g, by backward %.12g")
    :format(what, by_key, want))
  if c.orders < 1 then return true end
  for _, way in ipairs(WAYS) do
    local leave_out = way.twice and c.once or way.strided and c.dense or way.traced and (c.untraced or c.seeded)
    if not leave_out then
      local ok, y, jv = pcall(way[2], h, xs, vs)
      if not ok and way.traced and M.untraceable(y) then goto next end
      assert(ok, tostring(y))
      local got, size = 0.0, 1.0
      for i, t in ipairs(ys) do
        local same = t:numel() == 0
          or T.allclose(y[i]:detach(), t:detach(), { rtol = 0, atol = 0, equal_nan = true })
        assert(same or way.strided or way.traced, what .. ": " .. way[1] .. " changes the value")
        assert(tracked[i] or largest { jv[i] } == 0, what .. ": " .. way[1] .. " gives a constant a tangent")
        if tracked[i] then got, size = got + dot({ jv[i] }, { ws[tracked[i]] }), size + largest { jv[i] } end
      end
      assert(math.abs(got - want) <= (c.exact or 1e-9) * (size + math.abs(want)),
        ("%s: <w, J v> by %s is %.12g, <Jᵀ w, v> is %.12g"):format(what, way[1], got, want))
    end
    ::next::
  end
  if c.once or c.orders < 2 then return true end
  higher(c, what, scalar, xs, g)
  return true
end

-- Where zeros stand among the numbers, formulas that divide must give what the polynomial has. Quotients from both
-- sides, and with another step, say whether f is smooth there; then derivatives of first and second order must be
-- theirs, in all mixtures of modes.
function M.at_zeros(what, f, args, c)
  local n, at, xs = args.n or #args, {}, {}
  for i = 1, n do
    if T.is_tensor(args[i]) and args[i]:dtype() == "f64" and (not c.which or c.which[i]) then
      local x = args[i]:detach():clone():reshape(-1)
      for k = c.first, x:numel(), c.every do x[k] = 0 end
      at[#at + 1], xs[#xs + 1] = i, x:view(args[i]:shape())
    end
  end
  local g = random.new(5)
  local function directions() return mapped(xs, function(x) return numbers(g, x) end) end
  local vs, us, ws = directions(), directions(), {}
  local function scalar(...)
    local all = table.move(args, 1, n, 1, {})
    for k, i in ipairs(at) do all[i] = (select(k, ...)) end
    local s = T.zeros({}, { dtype = "f64" })
    for i, y in ipairs(floats(table.pack(f(table.unpack(all, 1, n))))) do
      ws[i] = ws[i] or numbers(g, y)
      s = s + (y * ws[i]):sum()
    end
    return s
  end
  -- (of(x + h u) - of(x - h u)) / 2h, or nil where there is no such slope
  local function slope(of, u)
    local function moved(h)
      local points = {}
      for k, x in ipairs(xs) do points[k] = x + u[k] * h end
      return of(table.unpack(points)):item()
    end
    local here, up, down = moved(0), moved(STEP), moved(-STEP)
    local q, wide = (up - down) / (2 * STEP), (moved(8 * STEP) - moved(-8 * STEP)) / (16 * STEP)
    local near = 1e-3 * (1 + math.abs(q))
    if math.abs(up + down - 2 * here) / STEP <= near and math.abs(q - wide) <= near then return q end
  end
  local function judge(order, name, got, want)
    if math.abs(got - want) <= 1e-3 * (1 + math.abs(want)) then return end
    error(("%s, with a zero at each of %d from %d: order %d by %s is %.9g, should be %.9g"):format(what, c.every,
      c.first, order, name, got, want), 0)
  end
  if #xs == 0 or not pcall(scalar, table.unpack(xs)) then return false end
  local function first(...) return along(scalar, { ... }, vs) end
  local function first_by_reverse(...)
    local s = T.zeros({}, { dtype = "f64" })
    for k, d in ipairs(gradients(scalar, { ... })) do s = s + (d * vs[k]):sum() end
    return s
  end
  local ok, want = pcall(slope, scalar, vs) -- a step may leave the domain
  if not ok or not want then return false end
  judge(1, "forward", first(table.unpack(xs)):item(), want)
  judge(1, "reverse", first_by_reverse(table.unpack(xs)):item(), want)
  want = not c.once and slope(first, us)
  if not want then return true end
  judge(2, "forward over forward", along(first, xs, us):item(), want)
  judge(2, "reverse over forward", dot(gradients(first, xs), us), want)
  judge(2, "forward over reverse", along(first_by_reverse, xs, us):item(), want)
  judge(2, "reverse over reverse", dot(gradients(first_by_reverse, xs), us), want)
  return true
end

return M
