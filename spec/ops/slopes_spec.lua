-- SPDX-License-Identifier: MIT
-- The slope of every pointwise op where formulas have an edge, taken three ways: backward, forward mode, and as the
-- derivative of the gradient for what it was multiplied by. The Jacobian is diagonal, so all three are the same.
-- A mask around a product, where(edge, 0, dy * slope), is right backward alone: transposed it is 0 times infinity.

local T = require "perilune"
local support = require "spec.ops.support"

local NAN, INF = 0 / 0, math.huge
local EDGES = {
  NAN, INF, -INF, 0, -0.0, 1, -1, 0.5, -0.5, 2, -3, 1e-300, -1e-300, 1e300, -1e300, 3, 6, -0.25, 0.25, 20, -20,
}
local F64 = { dtype = "f64" }

local function same(a, b)
  return a == b or (a ~= a and b ~= b) or math.abs(a - b) <= 1e-9 * math.max(math.abs(a), math.abs(b))
end

-- Each edge, for ops of two inputs each pair of them.
local function inputs(n)
  local v = T.tensor(EDGES, F64)
  if n == 1 then return { v } end
  return { v:repeat_interleave(#EDGES), v:tile(#EDGES) }
end

-- Attributes that an op insists on.
local function attributes(info)
  local o = {}
  for _, a in ipairs(info.attrs) do
    if not a.optional and a.default == nil then
      o[a.name] = a.type == "int" and 1 or a.type == "dtype" and "f32" or 0.5
    end
  end
  if info.name == "clamp" then o.min, o.max = -0.5, 1 end
  return o
end

-- What is NaN the second time at an end where value and slope are numbers: as in PyTorch, 0 times infinity.
local UNSETTLED = {
  atan = true, atan2 = true, erf = true, erfc = true, gammainc = true, gammaincc = true,
}
local function finite(v) return v == v and v ~= INF and v ~= -INF end

-- 0 times an infinite x where the branch of the weight is not taken, and forward alone.
local function excepted(name, k, x, i) return name == "prelu_core" and k == 2 and x[1]:get(i) == INF end

local function check(what, x, got, want, skipped)
  for i, v in ipairs(want) do
    if not same(got[i], v) and not skipped(i) then
      local at = {}
      for k, t in ipairs(x) do at[k] = ("%g"):format(t:get(i)) end
      error(("%s at %s is %.17g, backward says %.17g"):format(what, table.concat(at, ", "), got[i], v), 0)
    end
  end
end

-- kron counts as pointwise for its shape rule; mixed pairs of elements are multiplied.
local NOT = { kron = true, tril = true, triu = true }

describe("slopes at edges of", function()
  for _, info in ipairs(support.public()) do
    local pointwise = info.class == "pointwise" and info.differentiable and info.nout == 1 and not info.flags.seeded
    if pointwise and (info.nin == 1 or info.nin == 2) and not info.flags.mutates and not NOT[info.name] then
      it(info.name, function()
        local x, o = inputs(info.nin), attributes(info)
        for k = 1, info.nin do
          local function f(v)
            local args = { x[1], x[2] }
            args[k] = v
            if next(o) then args[#args + 1] = o end
            return T.core.op[info.name](table.unpack(args))
          end
          local v = x[k]:clone():requires_grad_()
          local ok, y = pcall(f, v)
          if not ok then
            assert(y:find "it has no gradient for", y)
          else
            local dy = T.ones_like(y):requires_grad_()
            local g = T.grad_of(y, v, { grad_outputs = dy, create_graph = true })
            g = type(g) == "table" and g[1] or g
            local want = g:detach():totable()
            local _, tangent = T.jvp(f, x[k], T.ones_like(x[k]))
            local function skipped(i) return excepted(info.name, k, x, i) end
            check("tangent for input " .. k, x, tangent:totable(), want, skipped)
            if g.requires_grad then
              local o2 = { grad_outputs = T.ones_like(g), allow_unused = true, retain_graph = true }
              local curve = T.grad_of(g, v, o2)
              curve = type(curve) == "table" and curve[1] or curve
              for i, c in ipairs(curve and not UNSETTLED[info.name] and curve:totable() or {}) do
                local number = finite(want[i]) and finite(y:get(i)) and not skipped(i)
                assert(c == c or not number, ("the second derivative for input %d is NaN at %g"):format(k, x[k]:get(i)))
              end
              local again = T.grad_of(g, dy, { grad_outputs = T.ones_like(g), allow_unused = true })
              again = type(again) == "table" and again[1] or again
              check("second derivative for input " .. k .. " and its factor", x, again:totable(), want, skipped)
            end
          end
        end
      end)
    end
  end

  -- PyTorch's: the second slope of what is vertical at an end has a sign, too
  it("asin, acos, atanh and acosh at their ends, twice", function()
    local inf = math.huge
    for name, want in pairs {
      asin = { { 1, inf, inf }, { -1, inf, -inf } }, acos = { { 1, -inf, -inf }, { -1, -inf, inf } },
      atanh = { { 1, inf, inf }, { -1, inf, -inf } }, acosh = { { 1, inf, -inf } },
    } do
      for _, row in ipairs(want) do
        for _, dtype in ipairs { "f64", "f32" } do
          local x = T.tensor({ row[1] }, { dtype = dtype }):requires_grad_()
          local g = T.grad_of(T[name](x), x, { create_graph = true })
          assert.equal(row[2], g:item(), name)
          assert.equal(row[3], T.grad_of(g, x):item(), name)
        end
      end
    end
  end)

  -- Their slopes are made of rounded results, or those of f32 have few digits where they are next to nothing.
  local ROUNDED = { tanh = true, sigmoid = true, expm1 = true, gelu = true, sinc = true }
  local FEW = { -- digits, in halves alone
    rsqrt = true, erf = true, erfc = true, i0e = true, i1e = true, i1 = true, erfcx = true, ndtri = true,
    logaddexp = true, pow = true,
  }
  -- By dtype: powers of ten from … to, how far slopes may be off, what is next to nothing, what is next to infinite.
  local RANGES = {
    f32 = { -30, 38, 2e-4, 1e-37, 3e38 }, f16 = { -4, 4, 0.12, 3e-7, 6e4 }, bf16 = { -30, 38, 0.12, 1e-37, 3e38 },
  }

  for dtype, range in pairs(RANGES) do
    it(dtype .. " are those of f64, over its whole range", function()
      local from, to, tol, none, most = table.unpack(range)
      local function points(step, dense)
        local at = {}
        for e = from, to, step do
          local v = math.min(1.37 * 10.0 ^ e, most)
          at[#at + 1], at[#at + 2] = v, -v
        end
        for i = 0, dense do at[#at + 1] = -8 + 16.2 / dense * i end
        return T.tensor(at, { dtype = dtype })
      end
      local line, few = points(0.5, 60), points(dtype == "f16" and 1 or 8.5, 12)
      local n = few:numel()
      local plane = { few:repeat_interleave(n), few:tile(n) }
      local function slope(info, k, x, as)
        local v = {}
        for i = 1, info.nin do v[i] = x[i]:to(as):clone() end
        v[k]:requires_grad_()
        v[#v + 1] = attributes(info)
        local y = T.core.op[info.name](table.unpack(v))
        return T.grad_of(y:sum(), v[k], { allow_unused = true }):totable(), y:detach():totable()
      end
      local count = 0
      for _, info in ipairs(support.public()) do
        local fits = info.class == "pointwise" and info.differentiable and info.nout == 1 and info.nin <= 2
          and not info.flags.seeded and not info.flags.mutates and not NOT[info.name] and not ROUNDED[info.name]
          and info.name ~= "cast" and not (dtype ~= "f32" and FEW[info.name])
        for k = 1, fits and info.nin or 0 do
          local x = info.nin == 1 and { line } or plane
          local fine, got = pcall(slope, info, k, x, dtype)
          if not fine then
            assert(got:find "it has no gradient for", got)
          else
            local want, value = slope(info, k, x, "f64")
            for i, w in ipairs(want) do
              local g = got[i]
              local near = g == w or g ~= g and w ~= w or math.abs(g - w) <= tol * math.abs(w) + none
                or math.abs(w) > most or value[i] ~= value[i]
              if not near then
                local here = ("%g"):format(x[1]:get(i)) .. (x[2] and (", %g"):format(x[2]:get(i)) or "")
                error(("%s at %s has a slope for input %d of %g, in f64 %g"):format(info.name, here, k, g, w), 0)
              end
            end
            count = count + 1
          end
        end
      end
      assert(count > 60, count)
    end)
  end

  -- A mask that is a number hides what it depends on: e x^(e-1), taken as 0 at e = 0, would not grow with e.
  it("two inputs have one mixed second derivative", function()
    local count = 0
    for _, info in ipairs(support.public()) do
      if info.class == "pointwise" and info.differentiable and info.nout == 1 and info.nin == 2
        and not info.flags.seeded and not info.flags.mutates and not NOT[info.name] then
        local x, mixed = inputs(2), {}
        for k = 1, 2 do
          local v = { x[1]:clone():requires_grad_(), x[2]:clone():requires_grad_() }
          local ok, y = pcall(T.core.op[info.name], v[1], v[2], attributes(info))
          if ok and y.requires_grad then
            local o = { grad_outputs = T.ones_like(y), create_graph = true, allow_unused = true }
            local fine, g = pcall(T.grad_of, y, v[k], o)
            if not fine then assert(g:find "it has no gradient for", g) end
            if fine and g and g.requires_grad then
              local m = T.grad_of(g, v[3 - k], { grad_outputs = T.ones_like(g), allow_unused = true })
              mixed[k] = m and m:totable()
            end
          end
        end
        local a, b = mixed[1], mixed[2]
        for i = 1, a and b and #a or 0 do
          if finite(a[i]) and finite(b[i]) and math.abs(x[1]:get(i)) > 1e-200 and math.abs(x[2]:get(i)) < 1e200 then
            count = count + 1
            local near = same(a[i], b[i]) or math.abs(a[i] - b[i]) < 1e-12
            assert(near, ("%s at %g, %g: %.9g and %.9g"):format(info.name, x[1]:get(i), x[2]:get(i), a[i], b[i]))
          end
        end
      end
    end
    assert(count > 500, count)
  end)

  it("i0e, i1e, erfcx and sinc far out, where formulas have no digits or overflow", function()
    local rows = { -- x, then the slopes of mpmath
      i0e = {
        { 9.9, -0.0066734856091770653351 }, { 10.1, -0.0064704453058763891504 }, { 49.9, -0.00057022137590531280901 },
        { 50.1, -0.00056679274944295067709 }, { 200, -0.000070656554278997847884 },
        { 10000.0, -1.9947862106984188116e-7 },
        { 100000000.0, -1.9947114094873312174e-13 }, { 1e+100, -1.9947114020071633421e-151 },
      },
      i1e = {
        { 9.9, -0.0056317705926372210866 }, { 10.1, -0.0054811248167460935119 }, { 49.9, -0.00055299187872429099004 },
        { 50.1, -0.00054973557778979879624 }, { 200, -0.000070125962695166741228 },
        { 10000.0, -1.9944869852852434529e-7 },
        { 100000000.0, -1.9947113795666600002e-13 }, { 1e+100, -1.9947114020071633421e-151 },
      },
      erfcx = {
        { 9.9, -0.0056705197066336224357 }, { 10.1, -0.0054513295088671180063 }, { 49.9, -0.00022644489477001144925 },
        { 50.1, -0.00022464163694684926289 }, { 200, -0.000014104210694014422315 },
        { 10000.0, -5.641895750849127453e-9 },
        { 100000000.0, -5.6418958354775620232e-17 }, { 1e+100, -5.64189583547756269e-201 },
      },
    }
    for name, list in pairs(rows) do
      for _, row in ipairs(list) do
        local x = T.tensor({ row[1] }, F64):requires_grad_()
        local got = T.grad_of(T[name](x), x):item()
        assert(math.abs(got - row[2]) <= 3e-13 * math.abs(row[2]), ("%s at %g: %.17g"):format(name, row[1], got))
      end
    end
    for dtype, v in pairs { f32 = 3e38, f64 = 1.7e308 } do
      local x = T.tensor({ v, -v }, { dtype = dtype }):requires_grad_()
      local y = x:sinc()
      assert.is_true(y:abs():max():item() < 1e-37)
      assert.is_true(T.grad_of(y:sum(), x):isfinite():all():item())
    end
  end)

  it("sinc near 0, where its formula has no digits", function()
    for _, dtype in ipairs { "f64", "f32" } do
      local at = { 1e-8, -3e-6, 1e-4, 0.01, 0.0999, 0.1001, 0.3 }
      local x = T.tensor(at, { dtype = dtype }):requires_grad_()
      x:sinc():sum():backward()
      for i, v in ipairs(at) do -- sum over k of (-1)^k 2k (pi v)^(2k) / (2k + 1)! / v
        local u, term, sum = (math.pi * v) ^ 2, 1, 0
        for n = 1, 20 do
          term = -term * u / (2 * n * (2 * n + 1))
          sum = sum + term * 2 * n
        end
        local want, got = sum / v, x.grad:get(i)
        local near = math.abs(got - want) < (dtype == "f64" and 1e-13 or 3e-5) * math.abs(want)
        assert(near, ("%g: %.17g, should be %.17g"):format(v, got, want))
      end
    end
  end)
end)

-- Rows whose exponentials leave the range, or whose products do: the whole Jacobian of each reduction and scan, by rows
-- backward and by columns forward.
describe("both directions along rows of", function()
  local ROWS = {
    { -1000, 1000, 0 }, { 1000, 0, -1000 }, { -800, 0, 800 }, { 1e-300, 1e-200, 0 }, { 0, 0, 0 }, { 3, 3, -5 },
    { 1e-170, -1e-170, 1e-180 }, { 0, -700, 700 },
  }
  local count = 0

  local function jacobian(f, x)
    local tracked = x:clone():requires_grad_()
    local y = f(tracked)
    if not y.requires_grad then return nil end
    local n, m, J = x:numel(), y:numel(), {}
    for i = 1, m do
      local dy = T.zeros(m, F64)
      dy[i] = 1
      J[i] = T.grad_of(y, tracked, { grad_outputs = dy:view(y:shape()), retain_graph = true }):reshape(-1):totable()
    end
    for j = 1, n do
      local v = T.zeros(n, F64)
      v[j] = 1
      local _, t = T.jvp(f, x, v)
      for i, got in ipairs(t:reshape(-1):totable()) do
        local size = 0 -- sums round to the size of what cancels in them
        for k = 1, n do size = math.max(size, math.abs(J[i][k])) end
        local rounding = size < math.huge and math.abs(got - J[i][j]) <= 1e-15 * size
        local what = "d y%d / d x%d is %.17g forward, %.17g backward"
        assert(rounding or same(got, J[i][j]), what:format(i, j, got, J[i][j]))
      end
    end
    return true
  end

  for _, info in ipairs(support.public()) do
    if info.differentiable and info.nin == 1 and info.class == "reduction" and not info.flags.seeded then
      it(info.name, function()
        local o = attributes(info)
        for _, attr in ipairs(info.attrs) do
          if attr.name == "dim" then o.dim = 1 end
        end
        local function f(x)
          local y = T.core.op[info.name](x, next(o) and o or nil)
          return type(y) == "table" and y[1] or y
        end
        for _, row in ipairs(ROWS) do
          local x = T.tensor(row, F64)
          if pcall(f, x) and jacobian(f, x) then count = count + 1 end
        end
      end)
    end
  end

  it("most of them take a row", function() assert.is_true(count > 100, count .. " rows") end)
end)

-- For every op, with inputs of one value each: <dy, J v> of forward mode is <Jᵀ dy, v> of backward, for ones dy and v.
describe("both directions at edges of", function()
  local function total(list)
    local sum = 0
    for _, t in ipairs(list) do sum = sum + t:to("f64"):sum():item() end
    return sum
  end

  local function check_at(info, args, value)
    local flat, n = {}, 0
    local constant = support.map(args, function(t)
      if t:dtype() ~= "f64" then return t end
      n = n + 1
      flat[n] = T.full(t:shape(), value, F64)
      return flat[n]
    end)
    local order = {}
    for i, t in ipairs(flat) do order[t] = i end
    local function f(...)
      local now = { ... }
      local real = support.map(constant, function(t) return order[t] and now[order[t]] or t end)
      local out = {}
      for _, y in ipairs(support.results(support.func(info.name), real)) do
        if support.is_tensor(y) and y:dtype() == "f64" then out[#out + 1] = y end
      end
      return out
    end
    local ones, leaves = {}, {}
    for i, t in ipairs(flat) do
      ones[i], leaves[i] = T.ones_like(t), t:clone():requires_grad_()
    end
    local ok, ys = pcall(f, table.unpack(leaves))
    if not ok or n == 0 then return end -- the op refuses such values
    local tracked = {}
    for _, y in ipairs(ys) do if y.requires_grad then tracked[#tracked + 1] = y end end
    if #tracked == 0 then return end
    local dys = {}
    for i, y in ipairs(tracked) do dys[i] = T.ones_like(y) end
    local fine, g = pcall(T.grad_of, tracked, leaves, { grad_outputs = dys, allow_unused = true })
    if not fine then return end
    local back = {}
    for i = 1, n do if g[i] then back[#back + 1] = g[i] end end
    local _, tangents = T.jvp(f, flat, ones)
    local ahead = {}
    for i, y in ipairs(ys) do if y.requires_grad and tangents[i] then ahead[#ahead + 1] = tangents[i] end end
    local a, b = total(ahead), total(back)
    if not (same(a, b) or math.abs(a - b) < 1e-9) then
      error(("at %g forward says %.17g, backward %.17g"):format(value, a, b), 0)
    end
  end

  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and info.differentiable and not info.flags.seeded and not info.flags.mutates and not row.skip_grad then
      it(info.name, function()
        for _, args in ipairs(support.arguments(info.name)) do
          for _, value in ipairs { 0, 1, -1, 0.5 } do check_at(info, args, value) end
        end
      end)
    end
  end
end)
