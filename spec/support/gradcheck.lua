-- SPDX-License-Identifier: MIT
-- Gradients against central differences, in f64. The judged number is L = sum over outputs of <w, y> with
-- fixed
-- random w, so one backward pass gives the whole gradient.

local random = require "spec.support.random"
local oracle = require "spec.support.oracle"

local M = {}

local STEP = 1e-6

local function is_floating(t)
  local d = t:dtype()
  return d == "f64" or d == "f32" or d == "f16" or d == "bf16"
end
M.is_floating = is_floating

-- The floating results of f(...) that carry gradients' meaning, as a list.
local function outputs(f, args, n)
  local got = table.pack(f(table.unpack(args, 1, n)))
  if type(got[1]) == "table" then got = got[1] end
  local ys = {}
  for i = 1, got.n or #got do -- nil where an option says so
    local y = got[i]
    if type(y) == "userdata" and is_floating(y) then ys[#ys + 1] = y end
  end
  return ys
end

local function weighted(ys, ws)
  local s = 0.0
  for i, y in ipairs(ys) do
    local d = oracle.from(y).data
    for k, v in ipairs(d) do s = s + v * ws[i][k] end
  end
  return s
end

-- Checks f(args...) for every floating tensor among args (or the positions in `which`). `relayout(t)` may
-- return the
-- same values in another layout; gradients flow to the tensor it returns. Returns true, or false and what
-- differs.
function M.check(T, f, args, o)
  o = o or {}
  local n = args.n or #args
  local flat, list = {}, {}
  for i = 1, n do
    local a = args[i]
    if type(a) == "userdata" and is_floating(a) and (not o.which or o.which[i]) then
      flat[i] = oracle.from(a)
      list[#list + 1] = i
    end
  end
  if #list == 0 then return false, "no floating input" end
  local function fresh(i, data)
    local t = random.tensor(T, data or flat[i].data, flat[i].shape, args[i]:dtype())
    return t
  end
  -- analytic
  local tracked = table.move(args, 1, n, 1, {})
  local leaves = {}
  for _, i in ipairs(list) do
    local t = fresh(i)
    if o.relayout then t = o.relayout(t) or t end
    flat[i] = oracle.from(t) -- a stride-0 layout repeats values
    leaves[i] = t:detach():requires_grad_()
    tracked[i] = leaves[i]
  end
  local g = random.new(7)
  local ys, ws, dys, used = outputs(f, tracked, n), {}, {}, {}
  for i, y in ipairs(ys) do
    ws[i] = g:list(random.numel(y:shape()), 0.5, 1.5)
    if y.requires_grad then
      used[#used + 1] = y
      dys[#dys + 1] = random.tensor(T, ws[i], y:shape(), y:dtype())
    end
  end
  -- Beside tracked results, untracked ones are statistics, which no gradient flows through. If none is
  -- tracked,
  -- the op claims a gradient of zero, which the difference quotients judge.
  for i, y in ipairs(ys) do
    if #used > 0 and not y.requires_grad then
      for k = 1, #ws[i] do ws[i][k] = 0.0 end
    end
  end
  local xs = {}
  for k, i in ipairs(list) do xs[k] = leaves[i] end
  local grads = {}
  if #used > 0 then grads = table.pack(T.grad_of(used, xs, { grad_outputs = dys, allow_unused = true })) end
  if type(grads[1]) == "table" then grads = grads[1] end
  -- numeric
  local rtol, atol = o.rtol or 1e-5, o.atol or 1e-6
  for k, i in ipairs(list) do
    local got = grads[k]
    local gd = got and oracle.from(got)
    if got and table.concat(got:shape(), ",") ~= table.concat(flat[i].shape, ",") then
      return false, "gradient " .. i .. " has shape " .. table.concat(got:shape(), ",")
    end
    local plain = table.move(args, 1, n, 1, {})
    for _, j in ipairs(list) do plain[j] = fresh(j) end
    for e = 1, #flat[i].data do
      local data = table.move(flat[i].data, 1, #flat[i].data, 1, {})
      local h = STEP * math.max(1, math.abs(data[e]))
      data[e] = flat[i].data[e] + h
      plain[i] = fresh(i, data)
      local up = weighted(outputs(f, plain, n), ws)
      data[e] = flat[i].data[e] - h
      plain[i] = fresh(i, data)
      local down = weighted(outputs(f, plain, n), ws)
      local want = (up - down) / (2 * h)
      local have = gd and gd.data[e] or 0.0
      local close = math.abs(have - want) <= atol + rtol * math.max(1, math.abs(want)) -- false for NaN
      if not close then
        local text = "input %d, element %d: gradient %.9g, difference quotient %.9g"
        return false, string.format(text, i, e, have, want)
      end
    end
  end
  return true
end

-- Whether a gradient has the shape and the dtype of what it is of.
function M.alike(grad, x)
  return grad:dtype() == x:dtype() and table.concat(grad:shape(), ",") == table.concat(x:shape(), ",")
end

-- The same along one random direction for each input: two evaluations of f, however many elements there are.
function M.along(T, f, args, which)
  local n = args.n or #args
  local g, list, xs, tracked = random.new(7), {}, {}, table.move(args, 1, n, 1, {})
  for i = 1, n do
    if type(args[i]) == "userdata" and is_floating(args[i]) and (not which or which[i]) then
      local k = #list + 1
      list[k], xs[k] = i, args[i]:detach():clone():requires_grad_()
      tracked[i] = xs[k]
    end
  end
  local ys, ws, used, dys = outputs(f, tracked, n), {}, {}, {}
  for k, y in ipairs(ys) do
    ws[k] = g:list(y:numel(), 0.5, 1.5)
    if y.requires_grad then
      used[#used + 1], dys[#dys + 1] = y, random.tensor(T, ws[k], y:shape(), y:dtype())
    end
  end
  if #used == 0 then return false, "no result is tracked" end
  for k, y in ipairs(ys) do
    if not y.requires_grad then for q = 1, #ws[k] do ws[k][q] = 0.0 end end
  end
  local grads = T.grad_of(used, xs, { grad_outputs = dys, allow_unused = true })
  for k, i in ipairs(list) do
    local d = random.tensor(T, g:list(xs[k]:numel(), -1, 1), xs[k]:shape(), "f64")
    if grads[k] and not M.alike(grads[k], xs[k]) then -- the product below would broadcast
      return false, ("input %d is %s, its gradient %s"):format(i, xs[k]:describe(), grads[k]:describe())
    end
    local slope = grads[k] and (grads[k] * d):sum():item() or 0.0
    local function moved(h)
      local now = table.move(args, 1, n, 1, {})
      now[i] = args[i]:detach() + d * h
      return weighted(outputs(f, now, n), ws)
    end
    local quotient = (moved(STEP) - moved(-STEP)) / (2 * STEP)
    local near = math.abs(slope - quotient) <= 1e-5 * math.max(1, math.abs(quotient)) -- false for NaN
    if not near then
      return false, string.format("input %d: slope %.9g, difference quotient %.9g", i, slope, quotient)
    end
  end
  return true
end

return M
