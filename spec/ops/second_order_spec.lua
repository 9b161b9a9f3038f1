-- SPDX-License-Identifier: MIT
-- Gradients of gradients of every differentiable op, and those of these, in f64, by random projection: with
-- t = <v, grad_x <w, f(x)>>, the slope of t along a random direction in (x, w) against a difference quotient; then
-- the same for s = <u, grad_(x, w) t>. A rule leaves out what nobody asks for: what it gives for one of (x, w) alone,
-- and from one of the gradients in t alone, must be what it gives among all.

local T = require "perilune"
local support = require "spec.ops.support"
local random = require "spec.support.random"
local gradcheck = require "spec.support.gradcheck"

local STEP = 1e-5

local function numbers(g, like, lo, hi)
  return random.tensor(T, g:list(like:numel(), lo, hi), like:shape(), like:dtype())
end

-- Floating tracked results of f as a list.
local function results(f, args, n)
  local got = table.pack(f(table.unpack(args, 1, n)))
  if type(got[1]) == "table" then got = got[1] end
  local ys = {}
  for i = 1, got.n or #got do -- nil where an option says so
    local y = got[i]
    if type(y) == "userdata" and gradcheck.is_floating(y) and y.requires_grad then ys[#ys + 1] = y end
  end
  return ys
end

local function inner(list, others)
  local s
  for i, t in pairs(list) do
    local p = (t * others[i]):sum()
    s = s and s + p or p
  end
  return s
end

-- t at the given values; leaves returned for its gradient. ws are made at the first call.
local function projection(f, flat, n, at, values, state)
  local args, xs = table.move(flat, 1, n, 1, {}), {}
  for k, i in ipairs(at) do
    xs[k] = values[k]:detach():clone():requires_grad_()
    args[i] = xs[k]
  end
  local ys = results(f, args, n)
  if #ys == 0 then return nil end
  local ws = {}
  for i, y in ipairs(ys) do
    local w = values[#at + i]
    if not w then
      w = numbers(state, y, 0.5, 1.5)
      values[#at + i] = w
    end
    ws[i] = w:detach():clone():requires_grad_()
  end
  local grads = T.grad_of({ inner(ys, ws) }, xs, { create_graph = true, allow_unused = true })
  local used, vs = {}, {}
  for k in ipairs(xs) do
    if grads[k] then
      assert(gradcheck.alike(grads[k], xs[k]), "the gradient's shape")
      vs[k] = state.v[k] or numbers(state, xs[k], 0.5, 1.5)
      state.v[k], used[k] = vs[k], grads[k]
    end
  end
  local t, parts = inner(used, vs), {}
  for k, d in pairs(used) do parts[#parts + 1] = (d * vs[k]):sum() end
  for _, w in ipairs(ws) do xs[#xs + 1] = w end
  return t, xs, parts
end

local function close_to(a, b)
  if not a or not b then -- nothing is zero
    return (a or b) == nil or (a or b):abs():sum():item() == 0
  end
  return (a - b):abs():max():item() <= 1e-9 * (1 + b:abs():max():item())
end

-- Whether each leaf asked alone, and all parts of t one by one, give what is in `second`.
local function same_alone(t, leaves, parts, second)
  local options = { allow_unused = true, retain_graph = true }
  for k, x in ipairs(#leaves > 1 and leaves or {}) do
    if x:numel() > 0 and not close_to(T.grad_of({ t }, { x }, options)[1], second[k]) then
      return false, ("leaf %d alone"):format(k)
    end
  end
  if #parts < 2 then return true end
  local sums = {}
  for _, part in ipairs(parts) do
    local ds = part.requires_grad and T.grad_of({ part }, leaves, options) or {}
    for k in ipairs(leaves) do
      if ds[k] then sums[k] = sums[k] and sums[k] + ds[k] or ds[k] end
    end
  end
  for k, x in ipairs(leaves) do
    if x:numel() > 0 and not close_to(sums[k], second[k]) then
      return false, ("gradients one by one, leaf %d"):format(k)
    end
  end
  return true
end

-- Leaves and a function of steps along a random direction for `of(values)`, which gives a number and its leaves.
local function slope_beside(of, values, state, tolerance)
  local s, leaves = of(values)
  local directions, slope = {}, 0.0
  for k, x in ipairs(leaves) do directions[k] = numbers(state, x) end
  if s.requires_grad then
    local ds = T.grad_of({ s }, leaves, { allow_unused = true })
    for k in ipairs(leaves) do
      if ds[k] then
        if not gradcheck.alike(ds[k], leaves[k]) then
          return false, ("leaf %d is %s, its gradient %s"):format(k, leaves[k]:describe(), ds[k]:describe())
        end
        slope = slope + (ds[k] * directions[k]):sum():item()
      end
    end
  end
  local function moved(h)
    local list = {}
    for k, x in ipairs(values) do list[k] = x:detach() + directions[k] * h end
    return (of(list)):item()
  end
  local quotient = (8 * (moved(STEP) - moved(-STEP)) - moved(2 * STEP) + moved(-2 * STEP)) / (12 * STEP)
  local close = math.abs(slope - quotient) <= tolerance * math.max(1, math.abs(quotient), math.abs(s:item()))
  return close, string.format("slope %.9g, difference quotient %.9g", slope, quotient)
end

local function check(f, flat, n, which)
  local at, values = {}, {}
  for i = 1, n do
    if type(flat[i]) == "userdata" and gradcheck.is_floating(flat[i]) and (not which or which[i]) then
      at[#at + 1] = i
      values[#values + 1] = flat[i]
    end
  end
  local state = random.new(17)
  state.v = {}
  local t, leaves, parts = projection(f, flat, n, at, values, state)
  if not t then return true end
  if t.requires_grad then
    local second = T.grad_of({ t }, leaves, { allow_unused = true, retain_graph = true })
    local ok, why = same_alone(t, leaves, parts, second)
    if not ok then return false, why end
  end
  local ok, why = slope_beside(function(v) return projection(f, flat, n, at, v, state) end, values, state, 1e-4)
  if not ok or not t.requires_grad then return ok, why end
  -- and once more: the slope of the second gradients' projection
  local us = {}
  ok, why = slope_beside(function(v)
    local p, xs = projection(f, flat, n, at, v, state)
    local s = p * 0
    for k, d in pairs(T.grad_of({ p }, xs, { create_graph = true, allow_unused = true })) do
      us[k] = us[k] or numbers(state, d, 0.5, 1.5)
      s = s + (d * us[k]):sum()
    end
    return s, xs
  end, values, state, 1e-3)
  return ok, "third order: " .. why
end

describe("the gradient of the gradient of", function()
  local count = 0
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and info.differentiable and not info.flags.seeded and not row.skip_grad then
      it(info.name, function()
        local f = support.func(info.name)
        for i, args in ipairs(support.arguments(info.name, true)) do
          local g, flat = support.spread(f, args)
          local ok, why = check(g, flat, flat.n or #flat, args.which or row.which)
          assert.is_true(ok, string.format("variant %d: %s", i, tostring(why)))
          count = count + 1
        end
      end)
    end
  end

  it("more than 200 calls are checked", function() assert.is_true(count > 200, count .. " calls") end)
end)
