-- SPDX-License-Identifier: MIT
-- Ops that write in place, under all mixtures of derivatives: every one is called in a program that writes its result
-- in some way (over its input, through a view, into out=, inside of a checkpoint or a rule), and a transform of that
-- program must be the transform of the program that calls the op out of place.

local T = require "perilune"
local support = require "spec.ops.support"
local gradcheck = require "spec.support.gradcheck"
local duality = require "spec.ops.duality"

local f64 = { dtype = "f64" }
local pack, unpack = table.pack, table.unpack
local map = support.map -- functions that are traced compare all that they reach

local function mapped(list, f)
  local out = {}
  for i, t in ipairs(list) do out[i] = f(t, i) end
  return out
end

-- ---- functions of lists of tensors, and their derivatives ---------------------------------------------------------

-- A scalar that depends on every number of the list, each in a way of its own, with derivatives of all orders.
local function scalar(ys)
  local s = T.zeros({}, f64)
  for i, y in ipairs(ys) do
    local n = y:numel()
    if n > 0 then
      local w = (T.arange(1, n, 1, f64) / n + i * 0.3):reshape(y:shape())
      s = s + ((y * w):sin() + y * y * w * 0.1):sum()
    end
  end
  return s
end

local function J(f)
  return function(...)
    return select(2, T.jvp(f, { ... }, mapped({ ... }, function(x, i) return (x * 0.7 + i):cos() end)))
  end
end
local function G(f)
  return function(...)
    local xs = { ... }
    local got = pack(T.grad(function(...) return scalar(f(...)) end, ...))
    return mapped(xs, function(x, i) return got[i] or T.zeros_like(x) end)
  end
end
local function L(f)
  return function(...)
    local _, push = T.linearize(f, ...)
    return push(unpack(mapped({ ... }, function(x, i) return (x * 0.6 - i):sin() end)))
  end
end
local function H(f)
  return function(...)
    local out, xs = {}, { ... }
    for i = 1, #xs do
      out[i] = T.hessian(function(x)
        local all = table.move(xs, 1, #xs, 1, {})
        all[i] = x
        return scalar(f(unpack(all)))
      end, xs[i])
    end
    return out
  end
end

local ORDERS = {
  J = J, G = G, L = L, H = H,
  GJ = function(f) return G(J(f)) end, JG = function(f) return J(G(f)) end, JJ = function(f) return J(J(f)) end,
  GG = function(f) return G(G(f)) end, GL = function(f) return G(L(f)) end, HJ = function(f) return H(J(f)) end,
  LJ = function(f) return L(J(f)) end, JL = function(f) return J(L(f)) end,
  GGJ = function(f) return G(G(J(f))) end, GJG = function(f) return G(J(G(f))) end,
  GJJ = function(f) return G(J(J(f))) end, JGG = function(f) return J(G(G(f))) end,
  JGJ = function(f) return J(G(J(f))) end, GGG = function(f) return G(G(G(f))) end,
  GLJ = function(f) return G(L(J(f))) end, JJG = function(f) return J(J(G(f))) end,
  JJJ = function(f) return J(J(J(f))) end,
}

-- Those that are looked at in T.vmap and in T.jit, too.
local SOME = { G = true, GJ = true, GGJ = true, JG = true, JJ = true, LJ = true, H = true }

-- ---- programs -----------------------------------------------------------------------------------------------------

-- x at the point c, with derivatives of all orders: the op sees numbers of its domain.
local function bent(x, c)
  local d = x - c
  return x + (d + d * d * 1.3) * 0.3
end

-- args with out = y among their options.
local function with_out(args, y)
  local all = table.move(args, 1, args.n, 1, { n = args.n })
  local last, options = all[all.n], { out = y }
  if type(last) == "table" and #last == 0 then
    for k, v in pairs(last) do options[k] = v end
  else
    all.n = all.n + 1
  end
  all[all.n] = options
  return all
end

-- Rules that write into their argument and keep what they have written: dx from y and dy.
local FROM_RESULT = {
  exp = function(y, g) return g * y end,
  tanh = function(y, g) return g * (1 - y * y) end,
  sigmoid = function(y, g) return g * y * (1 - y) end,
  sqrt = function(y, g) return g / (y * 2) end,
  reciprocal = function(y, g) return -g * y * y end,
}
local rules = {}
for name, slope in pairs(FROM_RESULT) do
  rules[name] = T.custom {
    name = name .. " over its argument",
    forward = function(ctx, a)
      a[name .. "_"](a)
      ctx:mark_dirty(a)
      ctx:save(a)
      return a
    end,
    backward = function(ctx, g) return slope(ctx:saved(), g) end,
  }
end

-- The ways to write: programs of (op, op_, args, all, like, name) → tensors that hold the result, or must have heard of
-- the write. all is a tensor that depends on every number there is. The second function is the same without a write.
local WRITES = {
  { "in place", function(_, in_place, args)
    local y = args[1] * 1
    local view, odd = y:view(-1), y:reshape(-1)
    assert(in_place(y, unpack(args, 2, args.n)) == y)
    return { y, view, odd }
  end, function(op, args)
    local y = op(unpack(args, 1, args.n))
    return { y, y:reshape(-1), y:reshape(-1) }
  end },
  { "through a view", function(_, in_place, args)
    local both = T.stack({ args[1], args[1] * 0.5 }, 1)
    local before = both:select(1, 1)
    in_place(both[1], unpack(args, 2, args.n))
    return { both, before * args[1] }
  end, function(op, args)
    local y = op(unpack(args, 1, args.n))
    return { T.stack({ y, args[1] * 0.5 }, 1), y * args[1] }
  end },
  { "over itself again", function(_, in_place, args)
    local y = args[1] * 1
    in_place(y, unpack(args, 2, args.n))
    local kept = y * 1
    y:tanh_()
    y:mul_(kept)
    return { y }
  end, function(op, args)
    local y = op(unpack(args, 1, args.n))
    return { y:tanh() * y }
  end },
  { "out=", function(op, _, args, all, like)
    local y = T.zeros(like:shape(), f64) + all * 0
    local given = with_out(args, y)
    assert(op(unpack(given, 1, given.n)) == y)
    return { y, y * all }
  end, function(op, args, all)
    local y = op(unpack(args, 1, args.n))
    return { y, y * all }
  end, any = true },
  { "inside of a checkpoint", function(_, in_place, args, all)
    return { T.checkpoint(function(a)
      local y = a * 1
      in_place(y, unpack(args, 2, args.n))
      return y * all
    end, args[1]) }
  end, function(op, args, all)
    return { op(unpack(args, 1, args.n)) * all }
  end },
  { "inside of a rule", function(_, _, args, all, _, name)
    local y = args[1] * 1
    rules[name](y)
    return { y, y * all }
  end, function(op, args, all)
    local y = op(unpack(args, 1, args.n))
    return { y, y * all }
  end, names = FROM_RESULT, untraced = true },
}

-- The program as a function of its floating tensors, and these. cs: points that take their place.
local function program(row, args, body)
  local flat, at, xs = {}, {}, {}
  map(args, function(t)
    flat[#flat + 1] = t
    return t
  end)
  for i, t in ipairs(flat) do
    if gradcheck.is_floating(t) and (not row.which or row.which[i]) then at[#at + 1], xs[#xs + 1] = i, t end
  end
  return xs, function(cs)
    return function(...)
      local given, now = { ... }, table.move(flat, 1, #flat, 1, {})
      local all = T.zeros({}, f64)
      for k, i in ipairs(at) do
        now[i] = bent(given[k], cs[k])
        all = all + (now[i] * 0.3):sin():sum()
      end
      local i = 0
      local real = map(args, function()
        i = i + 1
        return now[i]
      end)
      return body(real, all)
    end
  end
end

-- ---- what is compared ---------------------------------------------------------------------------------------------

local function compare(want, got, tol)
  assert(#want == #got, #got .. " results")
  for i, w in ipairs(want) do
    if w:numel() > 0 then
      local off, size = (got[i] - w):abs():max():item(), w:abs():max():item()
      assert(off <= tol * (1 + size), ("result %d is off by %.3g of %.3g"):format(i, off, size))
    end
  end
end

local function batched(order, make, xs)
  local n, two = #xs, {}
  for k, x in ipairs(xs) do two[k] = T.stack({ x, x * 1.01 }, 1) end
  for k = 1, n do two[n + k] = two[k] end
  return T.vmap(function(...)
    local all = { ... }
    return order(make({ unpack(all, n + 1) }))(unpack(all, 1, n))
  end)(unpack(two))
end

local MODES = {
  { "", function(order, make, xs) return order(make(xs))(unpack(xs)) end },
  { " in T.vmap", batched, some = true },
  { " in T.jit", function(order, make, xs)
    return { T.jit(function(...) return unpack(order(make(xs))(...)) end)(unpack(xs)) }
  end, some = true, traced = true },
}

-- Of the derivatives of third order each way to write meets another third from op to op, so it meets each of them with
-- every third op: which is wrong in which way does not depend on one op. PERILUNE_SLOW=1: all.
local slow, turns = os.getenv "PERILUNE_SLOW" == "1", {}
local THIRD = {}
for name in pairs(ORDERS) do if #name == 3 then THIRD[#THIRD + 1] = name end end
table.sort(THIRD)
local function in_turn(way)
  local taken = {}
  turns[way] = (turns[way] or 0) + 1
  for i, name in ipairs(THIRD) do taken[name] = slow or (i + turns[way]) % 3 == 0 end
  return taken
end

local count = 0
local function check(info, row, args, way, wrong)
  local op, in_place = support.raw(info.name), T[info.name .. "_"]
  local like = support.results(op, args)[1]
  local xs, make = program(row, args, function(real, all) return way[2](op, in_place, real, all, like, info.name) end)
  local _, plain = program(row, args, function(real, all) return way[3](op, real, all) end)
  local third = in_turn(way)
  for name, order in pairs(ORDERS) do
    for _, mode in ipairs(third[name] == false and {} or MODES) do
      if not (mode.traced and way.untraced or mode.some and not SOME[name]) then
        local known, want = pcall(mode[2], order, plain, xs)
        if known then
          local ok, got = pcall(mode[2], order, make, xs)
          local right, why = ok, got
          if ok then right, why = pcall(compare, want, got, info.name == "cast" and 1e-5 or 1e-9) end
          if not ok and mode.traced and duality.untraceable(got) then right = true end
          if not right then wrong[#wrong + 1] = ("%s: %s%s: %s"):format(way[1], name, mode[1], tostring(why)) end
          count = count + 1
        else -- an op that has no such derivative, or no graph
          local why = tostring(want)
          assert(why:find("not %a+ .*differentiable") or duality.untraceable(why) or why:find "on the values", why)
        end
      end
    end
  end
end

describe("written in place, derivatives of all orders are right:", function()
  local function writes(info, row, way, args)
    if way.any then
      if info.nout ~= 1 or info.nin == 0 then return false end
      local want = support.results(support.func(info.name), args)[1]
      local given = with_out(args, want:clone())
      local ok, why = pcall(support.func(info.name), unpack(given, 1, given.n))
      return ok or not why:find "unknown option 'out'"
    end
    if way.names and not way.names[info.name] then return false end
    return info.flags.inplace and T[info.name .. "_"] and T.is_tensor(args[1])
  end

  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and not row.call and info.differentiable and not info.flags.mutates and not info.flags.seeded then
      it(info.name, function()
        local args, wrong = support.arguments(info.name)[1], {}
        for _, way in ipairs(WRITES) do
          if writes(info, row, way, args) then check(info, row, args, way, wrong) end
        end
        assert(#wrong == 0, table.concat(wrong, "\n"))
      end)
    end
  end

  it("in more than 7000 programs", function() assert.is_true(count > 7000, count .. " programs") end)
end)
