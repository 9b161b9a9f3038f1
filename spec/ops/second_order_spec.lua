-- SPDX-License-Identifier: MIT
-- Gradients of gradients of every differentiable op, in f64, by random projection: with t = <v, grad_x <w, f(x)>>,
-- the slope of t along a random direction in (x, w) against a difference quotient.

local T = require "perilune"
local support = require "spec.ops.support"
local random = require "spec.support.random"
local gradcheck = require "spec.support.gradcheck"

local STEP = 1e-5
-- Ops whose backward is known once only.
local ONCE = { ctc_nll = true }

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
      vs[k] = state.v[k] or numbers(state, xs[k], 0.5, 1.5)
      state.v[k], used[k] = vs[k], grads[k]
    end
  end
  local t = inner(used, vs)
  for _, w in ipairs(ws) do xs[#xs + 1] = w end
  return t, xs
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
  local t, leaves = projection(f, flat, n, at, values, state)
  if not t then return true end
  local directions = {}
  for k, x in ipairs(leaves) do directions[k] = numbers(state, x) end
  local slope = 0.0
  if t.requires_grad then
    local second = T.grad_of({ t }, leaves, { allow_unused = true })
    for k in ipairs(leaves) do
      if second[k] then slope = slope + (second[k] * directions[k]):sum():item() end
    end
  end
  local function moved(h)
    local list = {}
    for k, x in ipairs(values) do list[k] = x:detach() + directions[k] * h end
    return projection(f, flat, n, at, list, state):item()
  end
  local quotient = (moved(STEP) - moved(-STEP)) / (2 * STEP)
  local close = math.abs(slope - quotient) <= 1e-4 * math.max(1, math.abs(quotient), math.abs(t:item()))
  return close, string.format("slope %.9g, difference quotient %.9g", slope, quotient)
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
          if ONCE[info.name] then
            local ok, text = pcall(check, g, flat, flat.n or #flat, args.which or row.which)
            assert.is_true(not ok and tostring(text):find("not twice differentiable", 1, true) ~= nil, tostring(text))
          else
            local ok, why = check(g, flat, flat.n or #flat, args.which or row.which)
            assert.is_true(ok, string.format("variant %d: %s", i, tostring(why)))
            count = count + 1
          end
        end
      end)
    end
  end

  it("more than 200 calls are checked", function() assert.is_true(count > 200, count .. " calls") end)
end)
