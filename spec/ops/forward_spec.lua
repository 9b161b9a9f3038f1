-- SPDX-License-Identifier: MIT
-- Tangents of every differentiable op, in f64: against double vjp and difference quotients, under vmap, and as tangents
-- of the op's gradient (forward over reverse) and of tangents (forward over forward).

local T = require "perilune"
local support = require "spec.ops.support"
local random = require "spec.support.random"
local gradcheck = require "spec.support.gradcheck"

local STEP = 1e-5
-- Ops that take contiguous tensors alone.
local DENSE = { view = true, as_strided = true }

local function numbers(g, like, lo, hi)
  return random.tensor(T, g:list(like:numel(), lo, hi), like:shape(), like:dtype())
end

-- Floating results as a list.
local function floats(...)
  local got, ys = table.pack(...), {}
  if type(got[1]) == "table" then got = got[1] end
  for i = 1, got.n or #got do
    if type(got[i]) == "userdata" and gradcheck.is_floating(got[i]) then ys[#ys + 1] = got[i] end
  end
  return ys
end

-- The call as a function of its floating arguments alone, and those.
local function reduced(name, args, row)
  local g, flat = support.spread(support.func(name), args)
  local n, at, xs = flat.n or #flat, {}, {}
  for i = 1, n do
    if type(flat[i]) == "userdata" and gradcheck.is_floating(flat[i]) and (not row.which or row.which[i]) then
      at[#at + 1], xs[#xs + 1] = i, flat[i]
    end
  end
  return function(...)
    local all = table.move(flat, 1, n, 1, {})
    for k, i in ipairs(at) do all[i] = (select(k, ...)) end
    return floats(g(table.unpack(all, 1, n)))
  end, xs
end

local function close(what, got, want, tol)
  assert.equal(#want, #got, what)
  for i, w in ipairs(want) do
    assert.same(w:shape(), got[i]:shape(), what)
    if w:numel() > 0 then
      local off, size = (got[i] - w):abs():max():item(), w:abs():max():item()
      assert.is_true(off <= tol * (1 + size), string.format("%s: result %d is off by %.3g of %.3g", what, i, off, size))
    end
  end
end

-- A scalar that depends on every result twice.
local function scalar(ys)
  local s = T.zeros({}, { dtype = "f64" })
  for _, y in ipairs(ys) do s = s + (y * y + y:sin() * 3):sum() end
  return s
end

local function gradient(f, n)
  return function(...)
    local got, xs, list = table.pack(T.grad(function(...) return scalar(f(...)) end, ...)), { ... }, {}
    for i = 1, n do list[i] = got[i] or T.zeros_like(xs[i]) end
    return list
  end
end

local function moved(f, xs, vs, h)
  local at = {}
  for i, x in ipairs(xs) do at[i] = x + vs[i] * h end
  return f(table.unpack(at))
end

local function quotient(f, xs, vs)
  local up, down, list = moved(f, xs, vs, STEP), moved(f, xs, vs, -STEP), {}
  for i in ipairs(up) do list[i] = (up[i] - down[i]) / (2 * STEP) end
  return list
end

local function pairs_of(xs, vs)
  local both = table.move(xs, 1, #xs, 1, {})
  return table.move(vs, 1, #vs, #both + 1, both)
end

-- Which results are differentiable: statistics and positions are not.
local function tracked(f, xs)
  local at, which = {}, {}
  for i, x in ipairs(xs) do at[i] = x:clone():requires_grad_() end
  for i, y in ipairs(f(table.unpack(at))) do which[i] = y.requires_grad end
  return which
end

-- The same numbers, apart from each other in memory and in reverse order of dims.
local function strided(t)
  local order = {}
  for d = 1, t:dim() do order[d] = t:dim() + 1 - d end
  local wide = T.stack({ t:permute(order), t:permute(order) }, -1):contiguous():select(-1, 2)
  return wide:permute(order)
end

local function mapped(list, f)
  local out = {}
  for i, t in ipairs(list) do out[i] = f(t) end
  return out
end

-- The same tangent in another layout, under a limit of memory, and in f32.
local function variants(what, name, args, row, f, xs, vs, jv)
  if not DENSE[name] then
    close(what .. ": strided", select(2, T.jvp(f, mapped(xs, strided), mapped(vs, strided))), jv, 1e-9)
  end
  do
    local _ <close> = T.memory_limit(1 << 30)
    local function computed(...) return table.unpack(mapped({ ... }, function(t) return t * 1 end)) end
    local _, got = T.jvp(function(...) return f(computed(...)) end, xs, vs)
    close(what .. ": under a limit of memory", got, jv, 1e-9)
  end
  local function narrow(t) return t:dtype() == "f64" and t:float() or t end
  local _, got = T.jvp(reduced(name, support.map(args, narrow), row), mapped(xs, narrow), mapped(vs, narrow))
  for _, t in ipairs(got) do assert.equal("f32", t:dtype(), what) end
  close(what .. ": in f32", mapped(got, function(t) return t:double() end), jv, 2e-3)
end

-- Argument k alone, while the other floating ones are integers, where the op takes these: no part of tangents.
local function beside_integers(what, name, args, row, xs, k)
  local others = {}
  for j, x in ipairs(xs) do if j ~= k then others[x] = (x * 3):round():to("i64") end end
  local f, only = reduced(name, support.map(args, function(t) return others[t] or t end), row)
  if #only ~= 1 then return end
  local g = random.new(29)
  local v = numbers(g, only[1], 0.5, 1.5)
  local taken, y = pcall(f, only[1])
  if not taken or #y == 0 then return end
  local _, push = T.linearize(f, only[1])
  close(what .. ": beside integers, argument " .. k, select(2, T.jvp(f, only, { v })), push(v), 1e-9)
end

local count = 0
local function check(name, i, args, row)
  local f, xs = reduced(name, args, row)
  local g = random.new(23)
  local vs, more = {}, {}
  for k, x in ipairs(xs) do vs[k], more[k] = numbers(g, x, 0.5, 1.5), numbers(g, x, -1, 1) end
  local what = string.format("%s, variant %d", name, i)
  local y, jv = T.jvp(f, xs, vs)
  close(what .. ": the value", y, f(table.unpack(xs)), 0)
  local _, push = T.linearize(f, table.unpack(xs))
  close(what .. ": double vjp", jv, push(table.unpack(vs)), 1e-9)
  local slope = quotient(f, xs, vs)
  for k, yes in ipairs(tracked(f, xs)) do slope[k] = yes and slope[k] or slope[k] * 0 end
  close(what .. ": difference quotient", jv, slope, row.gtol or 1e-5)
  if i == 1 then variants(what, name, args, row, f, xs, vs, jv) end
  -- one argument alone, the others are constants
  for k = 1, #xs > 1 and #xs < 5 and #xs or 0 do
    local _, part = T.jvp(f, xs, { [k] = vs[k] })
    close(what .. ": argument " .. k .. " alone", part, push(table.unpack({ [k] = vs[k] }, 1, #xs)), 1e-9)
    beside_integers(what, name, args, row, xs, k)
  end
  -- many tangents at once
  local two = {}
  for k, v in ipairs(vs) do two[k] = T.stack({ v, more[k] }, 1) end
  local each = T.vmap(function(...) return select(2, T.jvp(f, xs, { ... })) end)(table.unpack(two))
  local first, second = {}, {}
  for k, t in ipairs(each) do first[k], second[k] = t[1], t[2] end
  close(what .. ": vmap, 1", first, jv, 1e-9)
  close(what .. ": vmap, 2", second, push(table.unpack(more)), 1e-9)
  -- forward over reverse
  local grad = gradient(f, #xs)
  local _, hv = T.jvp(grad, xs, vs)
  local _, hpush = T.linearize(grad, table.unpack(xs))
  close(what .. ": tangent of the gradient", hv, hpush(table.unpack(vs)), 1e-8)
  -- forward over forward, against reverse over reverse over forward
  local function tangent(...)
    local n, both = #xs, { ... }
    return select(2, T.jvp(f, { table.unpack(both, 1, n) }, { table.unpack(both, n + 1, 2 * n) }))
  end
  local _, second_order = T.jvp(tangent, pairs_of(xs, vs), pairs_of(vs, more))
  local _, tpush = T.linearize(tangent, table.unpack(pairs_of(xs, vs)))
  close(what .. ": tangent of the tangent", second_order, tpush(table.unpack(pairs_of(vs, more))), 1e-8)
  count = count + 1
end

describe("the tangent of", function()
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and info.differentiable and not info.flags.seeded and not row.skip_grad then
      it(info.name, function()
        for i, args in ipairs(support.arguments(info.name)) do
          check(info.name, i, args, row)
        end
      end)
    end
  end

  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    local in_place = T[info.name .. "_"]
    if row and info.differentiable and info.flags.inplace and not info.flags.seeded and in_place then
      it(info.name .. " in place", function()
        local args = support.arguments(info.name)[1]
        local f, flat = support.spread(support.func(info.name), args)
        local g = support.spread(function(x, ...)
          if type(x) ~= "table" then return in_place(x * 1, ...) end
          return in_place({ x[1] * 1, table.unpack(x, 2) }, ...)
        end, args)
        local random_numbers, vs = random.new(7), {}
        for i, t in ipairs(flat) do vs[i] = gradcheck.is_floating(t) and numbers(random_numbers, t, -1, 1) or false end
        local function moving(h)
          local xs, ds, at = {}, {}, {}
          for i, t in ipairs(flat) do
            if vs[i] then xs[#xs + 1], ds[#ds + 1], at[#at + 1] = t, vs[i], i end
          end
          return floats(select(2, T.jvp(function(...)
            local now = table.move(flat, 1, #flat, 1, {})
            for k, i in ipairs(at) do now[i] = (select(k, ...)) end
            return h(table.unpack(now, 1, #flat))
          end, xs, ds)))
        end
        local want = moving(f)
        close(info.name .. "_", { table.unpack(moving(g), 1, #want) }, want, 1e-12)
      end)
    end
  end

  it("more than 200 calls are checked", function() assert.is_true(count > 200, count .. " calls") end)
end)
